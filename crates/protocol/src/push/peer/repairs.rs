//! Losses of a receiver, and their repair.

use polycast_types::RangeSet;

/// Fragments that a receiver has lost.
#[derive(Clone, Debug, Default)]
pub(in crate::push) struct Repairs {
    /// Fragments that wait for a patch.
    pub(in crate::push) missing: RangeSet,
    /// Fragments that a multicast patch has repeated; a second request for one goes by unicast.
    pub(in crate::push) patched: RangeSet,
    /// Fragments sent by unicast lately, in two generations, so that TCP's delay causes no repetition.
    pub(in crate::push) unicast: [RangeSet; 2],
    /// Fragments that it has requested and gets when the others do not need the time, and the number of
    /// packets of the stream after which it last got some.
    pub(in crate::push) later: RangeSet,
    pub(in crate::push) later_from: u64,
}

impl Repairs {
    /// Checks them against the object's number of fragments. One that does not take the stream gets none.
    ///
    /// # Panics
    /// They do not fit.
    pub(in crate::push) fn check(&self, fragments: u64, takes: bool) {
        assert!(takes || self.missing.is_empty(), "patches wait for one that does not take the stream");
        assert!(
            takes || self.later.is_empty(),
            "one that does not take the stream is to get something later"
        );
        for set in [&self.missing, &self.later, &self.patched, &self.unicast[0], &self.unicast[1]] {
            let end = set.iter().next_back().map_or(0, |range| range.end);
            assert!(end <= fragments, "it was promised fragments that there are not");
        }
    }
}
