//! Parts of the object that a receiver has.

use polycast_types::RangeSet;

/// Fragments and bytes that a receiver has.
#[derive(Clone, Debug, Default)]
pub(in crate::push) struct Has {
    /// Fragments that it held when it joined, and how many those are.
    pub(in crate::push) have: RangeSet,
    pub(in crate::push) held_count: u64,
    pub(in crate::push) verified_bytes: u64,
    /// The same as it has said itself, and no other receiver for it.
    pub(in crate::push) own_bytes: u64,
    pub(in crate::push) patched_bytes: u64,
}

impl Has {
    /// One that held these fragments when it joined.
    pub(in crate::push) fn new(have: RangeSet) -> Self {
        let held_count = have.iter().map(|range| range.end - range.start).sum();
        Has { have, held_count, ..Has::default() }
    }

    /// Checks it against the object's length.
    ///
    /// # Panics
    /// It does not fit.
    pub(in crate::push) fn check(&self, object_len: u64) {
        assert!(self.verified_bytes <= object_len, "it has more than there is");
        assert!(self.own_bytes <= object_len, "it has said that it has more than there is");
    }
}
