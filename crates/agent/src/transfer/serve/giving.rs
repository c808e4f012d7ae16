//! Groups that a source gives to the members of a mesh, and the choice of the member
//! (`protocol::push::overlay`).

use super::super::clock::Clock;
use super::super::fresh::fresh_number;
use super::Served;
use polycast_net::frames::FrameError;
use polycast_protocol::push::PeerId;
use polycast_protocol::push::overlay::Seeding;
use polycast_types::RangeSet;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// State of the groups that a source gives away.
pub(super) struct Giving {
    clock: Clock,
    seeding: Mutex<Seeding>,
    takers: Mutex<Takers>,
}

/// Receivers that may take, by the number that each shows.
#[derive(Default)]
struct Takers {
    entries: BTreeMap<u64, PeerId>,
}

impl Takers {
    fn has(&self, peer: PeerId) -> bool {
        self.entries.values().any(|known| *known == peer)
    }
}

impl Giving {
    pub(super) fn new(groups: u64) -> Self {
        Giving { clock: Clock::start(), seeding: Mutex::new(Seeding::new(groups)), takers: Mutex::default() }
    }

    pub(super) fn seeding(&self) -> MutexGuard<'_, Seeding> {
        // The machine asserts what it needs between two inputs.
        self.seeding.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn takers(&self) -> MutexGuard<'_, Takers> {
        self.takers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in a connection of the receiver that shows this: its first one, or one more lane.
    pub(super) fn come(&self, entry: u64, have: RangeSet) -> Result<PeerId, &'static str> {
        // One of the same receiver that leaves at this moment comes before or after.
        let takers = self.takers();
        let Some(peer) = takers.entries.get(&entry).copied() else {
            return Err("this source has not told it to take what it gives");
        };
        if !self.seeding().come(peer, have) {
            return Err("as many take what this source gives as there may be");
        }
        Ok(peer)
    }

    /// A receiver takes no more by one of its connections.
    pub(super) fn leave(&self, peer: PeerId) {
        let takers = self.takers();
        if takers.has(peer) {
            self.seeding().leave(peer);
        }
    }

    /// The next group for a receiver, where there is one.
    ///
    /// # Errors
    /// The receiver takes no more.
    pub(super) fn take(&self, peer: PeerId) -> Result<Option<u64>, FrameError> {
        if !self.takers().has(peer) {
            return Err(FrameError::Closed);
        }
        Ok(self.seeding().take(self.clock.now(), peer))
    }
}

impl Served {
    /// Returns the number that a receiver shows when it takes groups that this source gives.
    pub(crate) fn entry_of(&self, peer: PeerId) -> u64 {
        let Some(giving) = &self.giving else { return 0 };
        let mut takers = giving.takers();
        if let Some((entry, _)) = takers.entries.iter().find(|(_, known)| **known == peer) {
            return *entry;
        }
        let entry = fresh_number().max(1);
        takers.entries.insert(entry, peer);
        entry
    }

    /// A receiver gets all groups beside the others, or no more so.
    pub(crate) fn set_apart(&self, peer: PeerId, is_apart: bool) {
        if let Some(giving) = &self.giving {
            giving.seeding().set_apart(peer, is_apart);
            self.ring();
        }
    }

    /// A receiver lacks groups that none of its candidates has.
    pub(crate) fn lack(&self, peer: PeerId, ranges: &[Range<u64>]) {
        let Some(giving) = &self.giving else { return };
        giving.seeding().lack(giving.clock.now(), peer, ranges);
        self.ring();
    }

    /// A receiver has got wrong bytes, or nothing, from another one.
    pub(crate) fn complain(&self, by: PeerId, about: PeerId) {
        if let Some(giving) = &self.giving {
            giving.seeding().complain(by, about);
        }
    }

    /// A receiver comes no more.
    pub(crate) fn forget_taker(&self, peer: PeerId) {
        let Some(giving) = &self.giving else { return };
        giving.seeding().forget(peer);
        let mut takers = giving.takers();
        takers.entries.retain(|_, known| *known != peer);
    }
}
