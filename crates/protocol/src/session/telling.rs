//! Hashes of an object that its source may send.
//!
//! A receiver has the object when its bytes have the hashes that it was sent. A program may write to a file
//! while it is hashed: then some hashes are those of the old bytes and some those of the new ones, and
//! together they name a file that never was. So the last hash is sent only when a look has shown, after all
//! were known, that the object still is what it was when it was opened; and where a look shows otherwise the
//! transfer ends, before or after that.

use super::LOOK_INTERVAL;
use alloc::collections::VecDeque;
use core::ops::Range;
use polycast_types::{Duration, Time};

/// A look is not begun anew before this many times as long as the last one has taken: that of a large
/// directory takes a while.
const REST_FACTOR: u64 = 20;

/// Events at the source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Input {
    /// So many of the first hashes are known.
    Hashed(u64),
    /// The look that was asked for is over.
    Looked {
        /// Set if the object is the same as when it was opened.
        same: bool,
    },
}

/// Actions for the driver.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Output {
    /// Look whether the object is what it was when it was opened.
    Look,
    /// Tell these hashes; with the last one the root hash.
    Tell(Range<u64>),
    /// End the transfer: the object is not what it was.
    Changed,
}

/// The look that is under way.
#[derive(Clone, Copy, Debug)]
struct Looking {
    began_at: Time,
    /// Set if it began after all hashes were known.
    counts: bool,
}

/// Says when the hashes of an object may be told, and when it is to be looked at again.
#[derive(Debug)]
pub struct Telling {
    groups: u64,
    hashed: u64,
    told: u64,
    looking: Option<Looking>,
    /// Time when the next look is due, besides the one that the last hash waits for.
    due_at: Time,
    /// A look that counts has said that all is of one state.
    sure: bool,
    changed: bool,
    outputs: VecDeque<Output>,
}

impl Telling {
    /// For an object of so many hash groups, which was opened before.
    #[must_use]
    pub fn new(now: Time, groups: u64) -> Self {
        Telling {
            groups,
            hashed: 0,
            told: 0,
            looking: None,
            due_at: now + LOOK_INTERVAL,
            sure: false,
            changed: false,
            outputs: VecDeque::new(),
        }
    }

    /// Returns the number of first hashes that may be sent.
    #[must_use]
    pub fn may_tell(&self) -> u64 {
        self.told
    }

    /// Returns true if all hashes may be sent, and with them their root hash.
    #[must_use]
    pub fn is_sure(&self) -> bool {
        self.sure
    }

    /// Takes in what has happened.
    ///
    /// # Panics
    /// A look is over that was not begun, or hashes are forgotten: a mistake of the driver.
    pub fn handle(&mut self, now: Time, input: Input) {
        match input {
            Input::Hashed(hashed) => {
                assert!((self.hashed..=self.groups).contains(&hashed), "hashes become known in their order");
                self.hashed = hashed;
            }
            Input::Looked { same } => {
                let looking = self.looking.take().expect("a look that was asked for is over once");
                let took = now.since(looking.began_at);
                self.due_at = now + LOOK_INTERVAL.max(Duration(took.0.saturating_mul(REST_FACTOR)));
                if !same && !self.changed {
                    self.changed = true;
                    self.outputs.push_back(Output::Changed);
                }
                self.sure |= same && looking.counts && !self.changed;
            }
        }
        self.tell();
        if cfg!(debug_assertions) {
            self.check();
        }
    }

    /// Returns the next action, or `None` until `deadline` or the next input.
    pub fn poll(&mut self, now: Time) -> Option<Output> {
        let waits = self.hashed == self.groups && !self.sure;
        if !self.changed && self.looking.is_none() && (waits || now >= self.due_at) {
            self.looking = Some(Looking { began_at: now, counts: self.hashed == self.groups });
            self.outputs.push_back(Output::Look);
        }
        self.outputs.pop_front()
    }

    /// Returns the time of the next poll, if nothing happens before.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        (self.looking.is_none() && !self.changed).then_some(self.due_at)
    }

    fn tell(&mut self) {
        let until = if self.sure { self.groups } else { self.hashed.min(self.groups.saturating_sub(1)) };
        if until > self.told && !self.changed {
            self.outputs.push_back(Output::Tell(self.told..until));
            self.told = until;
        }
    }

    /// Holds the machine against itself.
    ///
    /// # Panics
    /// Two of its own records contradict each other: a bug here.
    pub fn check(&self) {
        assert!(self.told <= self.hashed && self.hashed <= self.groups, "it tells what is not known");
        assert!(self.sure || self.told < self.groups, "the last hash is told before the look");
        assert!(!self.sure || self.hashed == self.groups, "it is sure of what is not hashed");
        let changes = self.outputs.iter().filter(|output| **output == Output::Changed).count();
        assert!(changes <= usize::from(self.changed), "it ends twice");
    }
}
