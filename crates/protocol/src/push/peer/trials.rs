//! What the sender tries about a receiver that holds the others.

use super::look::Look;
use crate::push::sender::Slower;
use polycast_types::{Duration, Time};

/// What was tried, and what it has shown.
#[derive(Clone, Debug)]
pub(in crate::push) struct Trials {
    /// For how long it alone has held the sender back.
    pub(in crate::push) held: Duration,
    /// What was seen of its path since slow receivers were last looked for.
    pub(in crate::push) look: Look,
    /// How often the others were tried without it in vain, and when they may be again.
    pub(in crate::push) tried: u32,
    pub(in crate::push) try_at: Time,
    /// How often the others got on faster without it while it took all that they took, and when they did last.
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
