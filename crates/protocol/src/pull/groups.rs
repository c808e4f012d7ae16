//! Completeness of an object's hash groups, by the packets that a receiver keeps.
//!
//! A packet at the border of two groups belongs to both. Where one of them turns out to be wrong, all of its
//! packets are requested again, and its neighbours lack those at the border too, unless they are verified. So
//! groups are counted here, at one place, and only a group that is whole is checked.

use crate::push::Geometry;
use alloc::vec::Vec;
use core::ops::Range;

/// State of each hash group at a receiver.
#[derive(Clone, Debug)]
pub struct Groups {
    geometry: Geometry,
    verified: Vec<bool>,
    /// Number of packets that each group lacks; meaningless for a verified group.
    missing: Vec<u32>,
    /// Number of groups that are not verified.
    left: u64,
}

impl Groups {
    /// Creates the state of an object of which these groups are verified.
    ///
    /// # Panics If `verified` does not have one entry for each group.
    #[must_use]
    pub fn new(geometry: Geometry, verified: Vec<bool>) -> Self {
        assert_eq!(verified.len() as u64, geometry.groups(), "each group is verified or not");
        let left = verified.iter().filter(|verified| !**verified).count() as u64;
        let mut groups = Groups { geometry, verified, missing: Vec::new(), left };
        let lacks = |group| geometry.fragments_of_group(group).filter(|&sn| !groups.holds(sn)).count() as u32;
        groups.missing = (0..geometry.groups()).map(lacks).collect();
        groups
    }

    /// Returns true if all groups that a packet belongs to are verified: then it need not be requested.
    #[must_use]
    pub fn holds(&self, sn: u64) -> bool {
        self.of_packet(sn).all(|group| self.verified[group as usize])
    }

    /// The groups that a packet belongs to.
    pub fn of_packet(&self, sn: u64) -> impl Iterator<Item = u64> + use<> {
        self.geometry.groups_of_fragments(sn..sn + 1)
    }

    /// A packet is kept that was not there. The groups of [`of_packet`](Self::of_packet) that [are
    /// whole](Self::is_whole) then are to be checked, one after the other.
    ///
    /// # Panics
    /// If it was there.
    pub fn keep(&mut self, sn: u64) {
        for group in self.of_packet(sn) {
            let at = group as usize;
            if !self.verified[at] {
                assert!(self.missing[at] > 0, "packet {sn} was there");
                self.missing[at] -= 1;
            }
        }
    }

    /// Returns true if all packets of a group are there and it is not verified.
    #[must_use]
    pub fn is_whole(&self, group: u64) -> bool {
        !self.verified[group as usize] && self.missing[group as usize] == 0
    }

    /// A group that is whole is right.
    ///
    /// # Panics
    /// If it is not whole.
    pub fn intact(&mut self, group: u64) {
        assert!(self.is_whole(group), "only what is whole is checked");
        self.verified[group as usize] = true;
        self.left -= 1;
    }

    /// A group that is whole is wrong. Gives its packets, none of which is there any more.
    ///
    /// # Panics
    /// If it is not whole.
    #[must_use]
    pub fn corrupt(&mut self, group: u64) -> Range<u64> {
        assert!(self.is_whole(group), "only what is whole is checked");
        let sns = self.geometry.fragments_of_group(group);
        for sn in sns.clone() {
            self.of_packet(sn).for_each(|other| self.missing[other as usize] += 1);
        }
        sns
    }

    /// The groups that are verified.
    #[must_use]
    pub fn verified(&self) -> &[bool] {
        &self.verified
    }

    /// Returns the number of groups that are not verified.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.left
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;
    use proptest::prelude::*;

    proptest! {
        /// Packets come in any order, and are damaged: by a set of the packets that are there, a group is
        /// whole exactly when it has all of its own, and with no damage any more everything is verified after
        /// one more round.
        #[test]
        fn groups_are_whole_when_all_of_their_packets_are_there(
            object_len in 1u64..60_000,
            fragment_len in 100u32..5_000,
            group_shift in 10u32..14,
            draws in proptest::collection::vec((any::<u32>(), any::<bool>()), 0..200),
        ) {
            let geometry = Geometry { object_len, fragment_len, group_len: 1 << group_shift };
            let mut groups = Groups::new(geometry, alloc::vec![false; geometry.groups() as usize]);
            let mut there: BTreeSet<u64> = BTreeSet::new();
            let further = (0..geometry.fragments()).map(|sn| (sn as u32, true));
            for (draw, right) in draws.into_iter().chain(further.clone()).chain(further) {
                let sn = u64::from(draw) % geometry.fragments();
                if groups.holds(sn) || !there.insert(sn) {
                    continue;
                }
                groups.keep(sn);
                for group in groups.of_packet(sn) {
                    let is_verified = groups.verified()[group as usize];
                    let all = geometry.fragments_of_group(group).all(|sn| there.contains(&sn));
                    prop_assert!(is_verified || groups.is_whole(group) == all);
                    if !groups.is_whole(group) {
                        continue;
                    }
                    if right {
                        groups.intact(group);
                    } else {
                        for again in groups.corrupt(group) {
                            there.remove(&again);
                        }
                    }
                }
            }
            prop_assert_eq!(groups.left(), 0);
            prop_assert!(groups.verified().iter().all(|verified| *verified));
        }
    }

    #[test]
    fn what_was_verified_before_is_not_asked_for() {
        // Packets of 1000 bytes at groups of 1024: packet 1 belongs to the groups 0 and 1.
        let geometry = Geometry { object_len: 3_000, fragment_len: 1_000, group_len: 1_024 };
        let mut groups = Groups::new(geometry, alloc::vec![true, false, true]);
        assert_eq!((0..3).map(|sn| groups.holds(sn)).collect::<Vec<_>>(), [true, false, false]);
        groups.keep(2);
        assert!(!groups.is_whole(1));
        groups.keep(1);
        assert!(groups.is_whole(1) && !groups.is_whole(0));
        assert_eq!(groups.corrupt(1), 1..3);
        assert!(!groups.is_whole(1) && groups.left() == 1);
    }
}
