//! Reasons why a host is no receiver of a transfer, or no longer one: the only place of the sentences.

use crate::push::Slower;
use alloc::string::{String, ToString};
use polycast_types::{Duration, Printable};
use polycast_wire::WireError;

/// Way in which a control connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gone {
    /// The other end closed it.
    Closed,
    /// The network broke it, in these words.
    Broken(String),
    /// Bytes that are not our protocol, or another version of it.
    Foreign(WireError),
}

/// Reason why a receiver was turned away or given up.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Why {
    /// HELLO names another transfer.
    #[error("there is no such transfer here")]
    UnknownHandle,
    /// HELLO came without the proof that an offer with a code asks for.
    #[error("this offer is for those who know its code: polycast accept CODE")]
    NeedsCode,
    /// The proof is wrong.
    #[error("that is not the code of this offer")]
    WrongCode,
    /// Too many have come with another code: no code is looked at for a while.
    #[error("too many wrong codes have come: try again in 10 s")]
    TooManyCodes,
    /// The receivers are named, and this name is not among them.
    #[error("its name is not among this transfer's receivers")]
    NotListed,
    /// A receiver of this name is here.
    #[error("a receiver of this name has joined already")]
    Twice,
    /// It has come and left so often.
    #[error("it has joined {0} times")]
    TooOften(u32),
    /// The receivers are counted, and all are here.
    #[error("all its receivers have joined")]
    Full,
    /// The transfer has ended.
    #[error("the transfer is over")]
    Over,
    /// Bytes that are not our protocol, or another version of it.
    #[error("{0}")]
    Foreign(WireError),
    /// It was called, and its agent does not let it join, or cannot be reached; in the agent's words.
    #[error("{}", Printable(.0))]
    NotComing(String),
    /// It was called and did not become ready in time.
    #[error("never joined")]
    NeverJoined,
    /// It has said HELLO, and then nothing for so long.
    #[error("it said HELLO and then nothing for {0}")]
    NotReady(Duration),
    /// It was added too late.
    #[error("the transfer had ended when it was added")]
    AddedLate,
    /// The group has changed without it.
    #[error("taken out of the transfer")]
    TakenOut,
    /// Its control connection was closed.
    #[error("it went away in mid-transfer")]
    WentAway,
    /// Its control connection broke.
    #[error("its connection failed: {}", Printable(.0))]
    Broken(String),
    /// It gave up, in its own words.
    #[error("{}", Printable(.0))]
    Said(String),
    /// It has said nothing for so long.
    #[error("no sign of life for {0}")]
    Stalled(Duration),
    /// It lives, but no bytes have reached it for so long.
    #[error("nothing has reached it for {0}")]
    Starved(Duration),
    /// It lives and is served, but has verified nothing more for so long.
    #[error("it lives, but has verified nothing more for {0}")]
    NoProgress(Duration),
    /// It says that it has the object, and cannot show bytes of it.
    #[error("it says that it has the object, but cannot show the bytes of it that it was asked for")]
    Unproven,
    /// It was not done when the deadline came. The time that this transfer had is not the one that its user
    /// named: a path, or another transfer before it, took its part of that.
    #[error("not done at the deadline")]
    Deadline,
    /// It is slower than the others, and is not to catch up.
    #[error("{0}")]
    Slow(Slower),
    /// No path of the network leads to it.
    #[error("failed links cut it off from the source")]
    CutOff,
    /// The path that it depends on is lost, for this reason.
    #[error("the trees are lost: {0}")]
    TreesLost(String),
    /// One that knows the transfer's keys was taken out: the others go on in another transfer, which has
    /// other ones.
    #[error("the transfer goes on under new keys, because a receiver was taken out")]
    Rekeyed,
    /// The source's user ended the transfer.
    #[error("it was cancelled at the source")]
    SourceCancelled,
    /// The source cannot go on.
    #[error("the source failed")]
    SourceFailed,
    /// Bytes of the source have changed since it began: it may have sent a part of each version.
    #[error("its bytes were changed while it was being sent")]
    Changed,
    /// The same, and the source begins again with what is there now.
    #[error("its bytes were changed while it was being sent, and it is sent again")]
    ChangedAndAgain,
}

impl Why {
    /// Returns true if the path is to blame: another one may reach the receiver.
    #[must_use]
    pub fn blames_path(&self) -> bool {
        matches!(self, Why::Starved(_) | Why::CutOff | Why::TreesLost(_))
    }

    /// Returns true if another transfer may get the object to the receiver.
    #[must_use]
    pub fn may_go_on(&self) -> bool {
        self.blames_path() || *self == Why::Rekeyed
    }

    /// Returns true if it must not come again while the transfer runs.
    #[must_use]
    pub fn is_final(&self) -> bool {
        self.may_go_on()
            || matches!(
                self,
                Why::TakenOut
                    | Why::Deadline
                    | Why::AddedLate
                    | Why::NoProgress(_)
                    | Why::Unproven
                    | Why::Slow(_)
            )
    }
}

impl From<Gone> for Why {
    fn from(gone: Gone) -> Self {
        match gone {
            Gone::Closed => Why::WentAway,
            Gone::Broken(words) => Why::Broken(words),
            Gone::Foreign(error) => Why::Broken(error.to_string()),
        }
    }
}
