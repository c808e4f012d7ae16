//! The other end of a row of changes: takes each in its order, or not at all.

use alloc::collections::BTreeSet;
use polycast_wire::rack::{Standing, Update, Updates};

/// State of a follower.
#[derive(Debug)]
pub(super) struct Follower {
    stream: u64,
    applied: u64,
    settled: bool,
    /// Sessions with a label that this stream has named.
    sessions: BTreeSet<u32>,
    /// Sessions with a label from before this stream.
    old: BTreeSet<u32>,
    /// Updates whose numbers were not new.
    pub(super) stale: u64,
    /// Messages that came before others which they follow.
    pub(super) gaps: u64,
}

impl Follower {
    pub(super) fn new() -> Self {
        Follower {
            stream: 0,
            applied: 0,
            settled: true,
            sessions: BTreeSet::new(),
            old: BTreeSet::new(),
            stale: 0,
            gaps: 0,
        }
    }

    pub(super) fn stream(&self) -> u64 {
        self.stream
    }

    pub(super) fn applied(&self) -> u64 {
        self.applied
    }

    pub(super) fn settled(&self) -> bool {
        self.settled
    }

    /// Returns the number of sessions that have a label.
    pub(super) fn len(&self) -> usize {
        self.sessions.len() + self.old.len()
    }

    /// Returns true unless a message is of a newer stream than the followed one. Such messages come too
    /// early: only a `Standing` names the run that it is for, so only that begins a stream.
    pub(super) fn follows(&mut self, message: &Updates<'_>) -> bool {
        self.gaps += u64::from(message.stream > self.stream);
        message.stream <= self.stream
    }

    /// Begins a stream if it is a newer one.
    pub(super) fn begin(&mut self, stream: u64) -> bool {
        if stream <= self.stream {
            return false;
        }
        self.stream = stream;
        self.applied = 0;
        self.settled = false;
        self.old.append(&mut self.sessions);
        true
    }

    /// The updates of a message that come next; none if it is of an old stream or something before it is
    /// missing.
    pub(super) fn fresh<'m, 'a>(&mut self, message: &'m Updates<'a>) -> &'m [Update<'a>] {
        let updates = message.updates.as_slice();
        if message.stream < self.stream {
            self.stale += updates.len() as u64;
            return &[];
        }
        if message.after > self.applied {
            self.gaps += 1;
            return &[];
        }
        let known = updates.partition_point(|update| update.number <= self.applied);
        self.stale += known as u64;
        &updates[known..]
    }

    /// Returns true if applying an update adds a session.
    pub(super) fn grows(&self, update: &Update<'_>) -> bool {
        !update.label.is_empty()
            && !self.sessions.contains(&update.session)
            && !self.old.contains(&update.session)
    }

    /// Notes that an update is applied.
    pub(super) fn apply(&mut self, update: &Update<'_>) {
        assert!(update.number > self.applied, "no update is applied out of order");
        self.applied = update.number;
        self.old.remove(&update.session);
        if update.label.is_empty() {
            self.sessions.remove(&update.session);
        } else {
            self.sessions.insert(update.session);
        }
    }

    /// Gives a label of before this stream up, so that there is room for one of this stream: which session's.
    pub(super) fn make_room(&mut self) -> Option<u32> {
        self.old.pop_first()
    }

    /// Returns the number of sessions with a label that this stream has named.
    pub(super) fn named(&self) -> usize {
        self.sessions.len()
    }

    /// Looks whether all of it agrees.
    pub(super) fn check(&self) {
        assert!(self.sessions.is_disjoint(&self.old), "a label is of this stream or of before");
        assert!(!self.settled || self.old.is_empty(), "nothing is left of before once that is settled");
    }

    /// The sessions that are gone for good, if the stream is complete up to here.
    pub(super) fn settle(&mut self, standing: &Standing) -> BTreeSet<u32> {
        let complete = standing.settled && standing.stream == self.stream && self.applied >= standing.head;
        if !complete || self.settled {
            return BTreeSet::new();
        }
        self.settled = true;
        core::mem::take(&mut self.old)
    }
}
