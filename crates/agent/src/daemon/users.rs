//! Users of this machine: which one calls over the socket, and whose an object is.
//!
//! The kernel says which user has opened a connection. The agent's own user and root may do everything; any
//! other user has what it has brought, and may read what is for all. The agent opens no path that such a user
//! names: it might open what the user cannot.

use polycast_api::error::{Kind, Refusal};
use polycast_types::ObjectId;
use tonic::Request;
use tonic::transport::server::UdsConnectInfo;

/// Divisor of each limit of the agent: another user gets at most this part.
const PART: usize = 4;

/// The user who has brought an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Holder {
    /// The user's number.
    pub uid: u32,
    /// Other users are not to see it.
    pub private: bool,
    /// It is a set whose files lie where the user has them: other users are not to read them there.
    pub in_place: bool,
}

/// The user who calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct User {
    uid: u32,
    rank: Rank,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Rank {
    /// The agent's own user: what the one can open, so can the other.
    Own,
    /// Root, where the agent is not: may do everything, but does not see the same paths.
    Root,
    /// Any other.
    Other,
}

impl User {
    /// The user at the other end of the socket.
    ///
    /// # Errors
    /// The kernel does not say it.
    pub(crate) fn of<T>(request: &Request<T>) -> Result<Self, Refusal> {
        let info = request.extensions().get::<UdsConnectInfo>();
        let credentials = info.and_then(|info| info.peer_cred);
        let unknown = || Refusal::new(Kind::Internal, "the system does not say which user calls");
        Ok(User::numbered(credentials.ok_or_else(unknown)?.uid()))
    }

    /// The agent itself.
    pub(crate) fn agent() -> Self {
        User { uid: rustix::process::geteuid().as_raw(), rank: Rank::Own }
    }

    /// A user of whom nothing is known: one who looks at the page. No user has this number.
    pub(crate) fn anyone() -> Self {
        User { uid: u32::MAX, rank: Rank::Other }
    }

    /// The user of this number.
    pub(crate) fn numbered(uid: u32) -> Self {
        let own = rustix::process::geteuid().as_raw();
        let rank = match uid {
            uid if uid == own => Rank::Own,
            0 => Rank::Root,
            _ => Rank::Other,
        };
        User { uid, rank }
    }

    /// Returns the holder of the objects that it brings.
    pub(crate) fn holder(self, private: bool) -> Holder {
        Holder { uid: self.uid, private, in_place: false }
    }

    /// Returns the holder of the sets that it adds.
    pub(crate) fn holder_in_place(self, private: bool) -> Holder {
        Holder { in_place: true, ..self.holder(private) }
    }

    pub(crate) fn uid(self) -> u32 {
        self.uid
    }

    /// Returns true if it is neither the agent's own user nor root.
    pub(crate) fn is_other(self) -> bool {
        self.rank == Rank::Other
    }

    /// Returns true if paths mean the same to it and to the agent.
    pub(crate) fn shares_paths(self) -> bool {
        self.rank == Rank::Own
    }

    /// Returns true if it may read and send an object; `in_place` is one that lies where its holder has it.
    pub(crate) fn may_see(self, holder: Option<Holder>, in_place: bool) -> bool {
        let is_own = holder.is_some_and(|holder| holder.uid == self.uid);
        let is_hidden = |holder: Holder| holder.private || holder.in_place;
        !self.is_other() || is_own || !(in_place || holder.is_some_and(is_hidden))
    }

    /// Returns true if it may end or remove anything that this user has begun; `None` is the agent's.
    pub(crate) fn may_end(self, uid: Option<u32>) -> bool {
        !self.is_other() || uid == Some(self.uid)
    }

    /// Checks that it may remove or replace an object.
    ///
    /// # Errors
    /// It is another user's.
    pub(crate) fn check_change(self, object: ObjectId, holder: Option<Holder>) -> Result<(), Refusal> {
        if self.may_end(holder.map(|holder| holder.uid)) {
            return Ok(());
        }
        let whose = match holder {
            Some(Holder { uid, .. }) => format!("it was brought by user {uid}"),
            None => "it has come from elsewhere".to_string(),
        };
        let why = format!(
            "object {object} is not user {}'s to change: {whose}; root and the agent's user may",
            self.uid
        );
        Err(Refusal::new(Kind::NotAllowed, why))
    }

    /// Checks that it may do what only the agent's user and root may do.
    ///
    /// # Errors
    /// It is another user.
    pub(crate) fn check_trusted(self, what: &str) -> Result<(), Refusal> {
        if !self.is_other() {
            return Ok(());
        }
        let own = rustix::process::geteuid().as_raw();
        let why = format!(
            "user {} may not {what} at this agent: only user {own}, whose it is, and root may",
            self.uid
        );
        Err(Refusal::new(Kind::NotAllowed, why))
    }

    /// Checks that the agent may open paths for it.
    ///
    /// # Errors
    /// It is another user, who might name a path that only the agent can open.
    pub(crate) fn check_path(self) -> Result<(), Refusal> {
        if !self.is_other() {
            return Ok(());
        }
        let own = rustix::process::geteuid().as_raw();
        let why = format!(
            "this agent runs as user {own}, and opens no paths that user {} names: bring the bytes with Put, as `polycast send` does",
            self.uid
        );
        Err(Refusal::new(Kind::NotAllowed, why))
    }

    /// Returns the part of a limit that it may take; all of it if it is trusted.
    pub(crate) fn share(self, most: usize) -> usize {
        if self.is_other() { (most / PART).max(1) } else { most }
    }

    /// The same, of bytes.
    pub(crate) fn share_bytes(self, most: u64) -> u64 {
        if self.is_other() { most / PART as u64 } else { most }
    }

    /// One that takes more than its share.
    pub(crate) fn too_many(self, count: usize, what: &str) -> Refusal {
        let why = format!("user {} has {count} {what} here, which is as many as one user may", self.uid);
        Refusal::new(Kind::Full, why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polycast_types::{AppId, DataId};

    const ONE: User = User { uid: 1_001, rank: Rank::Other };
    const ANOTHER: User = User { uid: 1_002, rank: Rank::Other };
    const ROOT: User = User { uid: 0, rank: Rank::Root };

    #[test]
    fn users_have_what_is_theirs_and_see_what_is_for_all() {
        let (open, private) = (Some(ONE.holder(false)), Some(ONE.holder(true)));
        for (holder, in_place, sees) in
            [(None, false, true), (open, false, true), (private, false, false), (open, true, false)]
        {
            assert_eq!(ANOTHER.may_see(holder, in_place), sees, "{holder:?} {in_place}");
            assert!(ROOT.may_see(holder, in_place) && User::agent().may_see(holder, in_place));
        }
        assert!(ONE.may_see(private, false) && ONE.may_see(open, true));
        let object = ObjectId { app: AppId::default(), data: DataId(7) };
        assert!(ONE.check_change(object, private).is_ok() && ROOT.check_change(object, None).is_ok());
        let why = ANOTHER.check_change(object, open).unwrap_err();
        assert_eq!(why.kind, Kind::NotAllowed);
        assert!(why.message.contains("object 7") && why.message.contains("brought by user 1001"), "{why}");
        assert!(ONE.check_change(object, None).unwrap_err().message.contains("from elsewhere"));
        assert!(ONE.check_path().unwrap_err().message.contains("opens no paths that user 1001 names"));
        assert!(ROOT.check_path().is_ok() && !ROOT.shares_paths());
        assert_eq!((ONE.share(64), ONE.share(2), ROOT.share(64)), (16, 1, 64));
    }
}
