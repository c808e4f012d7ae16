//! Looks whether the source's bytes are still what they were: beside the transfer, where a large directory's
//! files take a while.

use super::bell::Bell;
use super::error::TransferError;
use polycast_net::object::ObjectSource;
use polycast_protocol::session::{Telling, TellingInput as Input, TellingOutput as Output};
use polycast_types::Time;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// A [`Telling`] and the looks that it asks for.
pub(super) struct Unchanged {
    machine: Telling,
    object: Arc<dyn ObjectSource>,
    /// Result of the check that is over.
    found: Arc<Mutex<Option<io::Result<()>>>>,
    /// Reason why the object is not the same as before.
    changed: Option<io::Error>,
    /// Rings when a look is over.
    bell: Bell,
}

impl Unchanged {
    pub(super) fn new(object: Arc<dyn ObjectSource>, groups: u64, bell: Bell, now: Time) -> Self {
        Unchanged { machine: Telling::new(now, groups), object, found: Arc::default(), changed: None, bell }
    }

    /// So many of the first hashes are known.
    pub(super) fn hashed(&mut self, now: Time, groups: u64) {
        self.machine.handle(now, Input::Hashed(groups));
    }

    /// Returns the number of first hashes that may be sent.
    pub(super) fn may_tell(&self) -> u64 {
        self.machine.may_tell()
    }

    /// Returns true once all hashes may be sent, and the root hash.
    pub(super) fn is_sure(&self) -> bool {
        self.machine.is_sure()
    }

    /// Does what is due; gives the hashes that may be told since then.
    ///
    /// # Errors
    /// The object is not what it was, or that cannot be seen any more.
    pub(super) fn turn(&mut self, now: Time) -> Result<Range<u64>, TransferError> {
        let mut told: Option<Range<u64>> = None;
        self.take_in(now);
        while let Some(output) = self.machine.poll(now) {
            match output {
                Output::Look => {
                    self.look();
                    self.take_in(now);
                }
                Output::Tell(groups) => told = Some(told.map_or(groups.start, |told| told.start)..groups.end),
                Output::Changed => {
                    let why = self.changed.take().unwrap_or_else(|| io::Error::other("it was changed"));
                    return Err(TransferError::reading(why));
                }
            }
        }
        Ok(told.unwrap_or_default())
    }

    /// Takes in what a look has found that is over.
    fn take_in(&mut self, now: Time) {
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(found) = found {
            self.machine.handle(now, Input::Looked { same: found.is_ok() });
            self.changed = found.err().or(self.changed.take());
        }
    }

    fn look(&self) {
        let (object, found, bell) = (Arc::clone(&self.object), Arc::clone(&self.found), self.bell.clone());
        let look = move || {
            let outcome = object.check();
            *found.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
            bell.ring();
        };
        let beside = || std::thread::Builder::new().name("unchanged".into()).spawn(look.clone());
        if self.object.is_checked_quickly() || beside().is_err() {
            look();
        }
    }
}
