//! Choice of the lost fragments that go into each patch.
//!
//! Receivers lose different fragments, so one multicast packet that repeats one fragment helps few of them.
//! The XOR of several fragments helps every receiver that lacks exactly one of them: with sixteen receivers
//! that lose 1 % each, repairs cost little more than 1 % instead of 15 %.

use super::words::PeerId;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use polycast_types::RangeSet;

/// Number of a receiver's losses that are tried for a combination before it is passed over.
const CANDIDATES_MAX: usize = 4;

/// A patch and the receivers that gain from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Combination {
    /// The fragments to combine, rising; a single one is repeated as it is.
    pub sns: Vec<u64>,
    /// The receivers that get a lost fragment back, with the fragment.
    pub gains: Vec<(PeerId, u64)>,
}

/// The next patch for receivers that lack these fragments; `None` when no receiver lacks any.
///
/// No receiver lacks two fragments of a combination, so each can decode it if it has got all the others.
/// `reported` tells whether a receiver has got far enough to have reported a fragment if it had lost it. At
/// most `fragments_max` are combined.
#[must_use]
pub fn combine(
    fragments_max: usize,
    missing: &BTreeMap<PeerId, &RangeSet>,
    reported: &dyn Fn(PeerId, u64) -> bool,
) -> Option<Combination> {
    let seed = missing.values().filter_map(|set| set.first()).min()?;
    let mut combination = Combination { sns: Vec::new(), gains: Vec::new() };
    combination.add(seed, missing);
    for (peer, set) in missing {
        if combination.sns.len() >= fragments_max {
            break;
        }
        if combination.serves(*peer) {
            continue;
        }
        let fits = |sn: &u64| {
            sn - seed <= u64::from(u16::MAX)
                && !combination.disturbs(*sn, missing, reported)
                && combination.sns.iter().all(|other| reported(*peer, *other))
        };
        if let Some(sn) = set.iter().flatten().take(CANDIDATES_MAX).find(fits) {
            combination.add(sn, missing);
        }
    }
    combination.sns.sort_unstable();
    Some(combination)
}

impl Combination {
    fn serves(&self, peer: PeerId) -> bool {
        self.gains.iter().any(|(served, _)| *served == peer)
    }

    /// Returns true if some receiver that is already served lacks `sn` too, or may lack it.
    fn disturbs(
        &self,
        sn: u64,
        missing: &BTreeMap<PeerId, &RangeSet>,
        reported: &dyn Fn(PeerId, u64) -> bool,
    ) -> bool {
        self.gains.iter().any(|(peer, _)| missing[peer].contains(sn) || !reported(*peer, sn))
    }

    fn add(&mut self, sn: u64, missing: &BTreeMap<PeerId, &RangeSet>) {
        self.sns.push(sn);
        let lacking = missing.iter().filter(|(_, set)| set.contains(sn));
        self.gains.extend(lacking.map(|(peer, _)| (*peer, sn)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;
    use proptest::prelude::*;

    proptest! {
        /// Every combination is decodable by all whom it claims to serve, and repeating it serves all.
        #[test]
        fn combinations_are_decodable_and_serve_everyone(
            losses in proptest::collection::vec(proptest::collection::btree_set(0u64..200, 0..20), 1..24),
        ) {
            let mut missing: Vec<RangeSet> =
                losses.iter().map(|set| set.iter().map(|sn| *sn..*sn + 1).collect()).collect();
            let total: u64 = missing.iter().map(RangeSet::len).sum();
            let mut patches = 0;
            loop {
                let view = missing.iter().enumerate().map(|(i, set)| (PeerId(i as u32), set)).collect();
                let Some(combination) = combine(17, &view, &|_, _| true) else { break };
                patches += 1;
                prop_assert!(!combination.gains.is_empty());
                let unique: BTreeSet<_> = combination.sns.iter().collect();
                prop_assert_eq!(unique.len(), combination.sns.len());
                for (peer, sn) in &combination.gains {
                    let lacking = combination.sns.iter().filter(|s| missing[peer.0 as usize].contains(**s)).count();
                    prop_assert_eq!(lacking, 1, "{:?} cannot decode", peer);
                    prop_assert!(combination.sns.contains(sn));
                }
                for (peer, sn) in combination.gains {
                    missing[peer.0 as usize].remove(sn..sn + 1);
                }
            }
            prop_assert!(missing.iter().all(RangeSet::is_empty));
            prop_assert!(patches <= total);
        }
    }

    #[test]
    fn different_losses_share_one_patch() {
        let sets: Vec<RangeSet> =
            (0..16u64).map(|i| core::iter::once(10 * i..10 * i + 1).collect()).collect();
        let view = sets.iter().enumerate().map(|(i, set)| (PeerId(i as u32), set)).collect();
        let combination = combine(17, &view, &|_, _| true).unwrap();
        assert_eq!(combination.sns.len(), 16);
        assert_eq!(combination.gains.len(), 16);
    }

    #[test]
    fn a_patch_combines_no_more_than_it_may() {
        let sets: Vec<RangeSet> =
            (0..16u64).map(|i| core::iter::once(10 * i..10 * i + 1).collect()).collect();
        let view = sets.iter().enumerate().map(|(i, set)| (PeerId(i as u32), set)).collect();
        assert_eq!(combine(11, &view, &|_, _| true).unwrap().sns.len(), 11);
    }

    #[test]
    fn a_common_loss_is_repeated_once() {
        let set: RangeSet = core::iter::once(5..6).collect();
        let view = (0..8).map(|i| (PeerId(i), &set)).collect();
        let combination = combine(17, &view, &|_, _| true).unwrap();
        assert_eq!(combination.sns, [5]);
        assert_eq!(combination.gains.len(), 8);
    }
}
