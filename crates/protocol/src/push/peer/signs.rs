//! Times of a receiver's signs of life and progress.

use polycast_types::Time;

/// Signs of a receiver.
#[derive(Clone, Copy, Debug)]
pub(in crate::push) struct Signs {
    /// Time when it joined.
    pub(in crate::push) joined_at: Time,
    /// Last sign of life, last report, last progress on the data channel, last progress at all.
    pub(in crate::push) heard_at: Time,
    pub(in crate::push) reported_at: Time,
    pub(in crate::push) advanced_at: Time,
    pub(in crate::push) verified_at: Time,
}

impl Signs {
    /// One that joins now.
    pub(in crate::push) fn new(now: Time) -> Self {
        Signs { joined_at: now, heard_at: now, reported_at: now, advanced_at: now, verified_at: now }
    }
}
