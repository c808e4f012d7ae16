//! Trials of the sender with a receiver that holds the others.

use super::look::Look;
use crate::push::words::Slower;
use polycast_types::{Duration, Time};

/// Trials, and what they have shown.
#[derive(Clone, Debug)]
pub(in crate::push) struct Trials {
    /// For how long it alone has held the sender back.
    pub(in crate::push) held: Duration,
    /// Measurements of its path since slow receivers were last searched for.
    pub(in crate::push) look: Look,
    /// Number of failed trials of the others without it, and the time when they may be tried again.
    pub(in crate::push) tried: u32,
    pub(in crate::push) try_at: Time,
    /// Number of times that the others were faster without it while it took all that they took, and the time
    /// of the last.
    pub(in crate::push) took_all: u32,
    pub(in crate::push) took_all_at: Time,
    /// The others do not wait for it any more, as it is so much slower.
    pub(in crate::push) slower: Option<Slower>,
}

impl Trials {
    /// One of which nothing is known yet.
    pub(in crate::push) fn new(now: Time) -> Self {
        Trials {
            held: Duration::ZERO,
            look: Look::first(now),
            tried: 0,
            try_at: Time::ZERO,
            took_all: 0,
            took_all_at: Time::ZERO,
            slower: None,
        }
    }
}
