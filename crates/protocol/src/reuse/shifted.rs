//! Groups that an older version has at another place.
//!
//! What is put in or taken out moves all that follows, so that no group is at its place any more. The source
//! tells a sum of every group, which can be rolled over other bytes one by one; the driver rolls it over the
//! version and stops where the sum is that of a group which lacks ([`Seek`]). What follows such a place is
//! looked at without rolling, since the groups behind it have mostly moved as far. A sum proves nothing: a
//! group counts when its bytes have its hash, as everywhere.
//!
//! Rolling takes some seven times as long as hashing, and needs the sums of the whole object before a
//! receiver begins. So it begins where the first group lacks, and a version whose next groups have next to
//! nothing is left alone.

use super::act::{Act, Look, Seek, WORTH};
use crate::push::Geometry;
use polycast_types::RangeSet;

/// Groups that must have lacked in a row: what is changed here and there has not moved.
const LACK_IN_A_ROW: u64 = 16;
/// Number of groups of the version that are tried.
const TRIAL: u64 = 32;
/// Number of the object's groups whose sums the trial uses, so that what is put in may be as long as the rest
/// of them.
const TRIAL_SUMS: u64 = 64;
/// Places that are rolled over at a time.
pub(super) const SEEK_BYTES: u64 = 2 << 20;
/// Places with the sum of a group and other bytes, after which the sums are not believed any more.
const MISTAKES_MAX: u32 = 16;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// It is seen whether there is anything.
    Trial,
    Whole,
    Over,
}

/// The search in one version.
#[derive(Clone, Debug)]
pub(super) struct Shifted {
    version: usize,
    /// The version's length.
    len: u64,
    geometry: Geometry,
    stage: Stage,
    asked: bool,
    /// Sums that are known, from the first group on.
    sums: u64,
    /// The first group that lacks, and where the search began.
    first: u64,
    /// Place in the version before which the search is done.
    at: u64,
    /// The group that is looked at there next, without rolling.
    next: Option<u64>,
    /// Set if that was found by its sum.
    by_sum: bool,
    found: u64,
    mistakes: u32,
}

/// Returns true if a version is worth a search, as this many of its groups in a row were lacking.
pub(super) fn is_worth(lacked_in_a_row: u64, groups: u64) -> bool {
    lacked_in_a_row >= LACK_IN_A_ROW.min(groups / 4).max(1)
}

impl Shifted {
    /// A search from the first group that lacks.
    pub(super) fn new(version: usize, len: u64, geometry: Geometry, first: u64) -> Self {
        let small = geometry.groups() - first <= TRIAL_SUMS;
        Shifted {
            version,
            len,
            geometry,
            stage: if small { Stage::Whole } else { Stage::Trial },
            asked: false,
            sums: 0,
            first,
            at: first * u64::from(geometry.group_len),
            next: None,
            by_sum: false,
            found: 0,
            mistakes: 0,
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.stage == Stage::Over
    }

    pub(super) fn found(&self) -> u64 {
        self.found
    }

    /// The sums of so many groups are known.
    pub(super) fn knows(&mut self, sums: u64) {
        self.sums = self.sums.max(sums.min(self.geometry.groups()));
    }

    fn len_of(&self, group: u64) -> u64 {
        let bytes = self.geometry.group_bytes(group);
        bytes.end - bytes.start
    }

    /// Behind the last place that is rolled over in this stage.
    fn end(&self) -> u64 {
        let group_len = u64::from(self.geometry.group_len);
        let last = (self.len + 1).saturating_sub(group_len);
        match self.stage {
            Stage::Trial => last.min((self.first + TRIAL) * group_len),
            Stage::Whole => last,
            Stage::Over => 0,
        }
    }

    fn sums_needed(&self) -> u64 {
        match self.stage {
            Stage::Trial => self.first + TRIAL_SUMS,
            Stage::Whole | Stage::Over => self.geometry.groups(),
        }
    }

    /// Returns the next action, given the number of known hashes and the groups that are here; `None` until
    /// more hashes or sums are known, or when it is over.
    pub(super) fn poll(&mut self, known: u64, held: &RangeSet) -> Option<Act> {
        if held.len() == self.geometry.groups() {
            self.stage = Stage::Over;
        }
        if !self.asked && !self.is_over() {
            self.asked = true;
            return Some(Act::AskSums);
        }
        while !self.is_over() && self.sums.min(known) >= self.sums_needed() {
            let lacks = |group: &u64| *group < self.geometry.groups() && !held.contains(*group);
            if let Some(group) = self.next.filter(lacks).filter(|group| *group < known)
                && self.at + self.len_of(group) <= self.len
            {
                return Some(Act::Look(Look { version: self.version, group, at: self.at }));
            }
            (self.next, self.by_sum) = (None, false);
            let end = self.end();
            if self.at < end {
                let to = end.min(self.at + SEEK_BYTES);
                return Some(Act::Seek(Seek { version: self.version, from: self.at, to }));
            }
            let goes_on = self.stage == Stage::Trial && self.found * WORTH >= TRIAL;
            self.stage = if goes_on { Stage::Whole } else { Stage::Over };
        }
        None
    }

    /// The first place of those asked for where the sum of a group is that lacks, and which.
    pub(super) fn sought(&mut self, seek: Seek, found: Option<(u64, u64)>) {
        match found {
            None => self.at = seek.to,
            Some((at, group)) => {
                assert!(seek.from <= at && at < seek.to, "a place that was not asked for");
                (self.at, self.next, self.by_sum) = (at, Some(group), true);
            }
        }
    }

    /// A group was looked at.
    pub(super) fn looked(&mut self, look: Look, same: bool) {
        let by_sum = core::mem::replace(&mut self.by_sum, false);
        if same {
            self.found += 1;
            self.at += self.len_of(look.group);
            self.next = Some(look.group + 1);
            return;
        }
        self.next = None;
        if by_sum {
            self.at += 1;
            self.mistakes += 1;
            if self.mistakes >= MISTAKES_MAX {
                self.stage = Stage::Over;
            }
        }
    }

    /// Holds the search against itself.
    pub(super) fn check(&self) {
        assert!(self.mistakes <= MISTAKES_MAX, "sums that are wrong are believed");
        assert!(self.sums <= self.geometry.groups(), "sums of groups that there are not");
        assert!(self.found <= self.geometry.groups(), "a group was taken twice");
        assert!(self.next.is_none_or(|_| self.asked), "a group was found without sums");
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Input, Reuse, Version};
    use super::*;
    use alloc::collections::BTreeSet;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    const GROUP: usize = 1_024;

    /// A source and a receiver that has an older version.
    struct Case {
        object: Vec<u8>,
        older: Vec<u8>,
        /// Number of sums that become known at a time.
        step: u64,
        /// Sums that are those of other bytes, too.
        lies: bool,
    }

    #[derive(Default)]
    struct Outcome {
        held: BTreeSet<u64>,
        looks: u64,
        places: u64,
        seeks: u64,
        asked: u64,
        /// Hashes and sums that had to be known.
        known: u64,
        sums: u64,
    }

    impl Case {
        fn geometry(&self) -> Geometry {
            Geometry { object_len: self.object.len() as u64, fragment_len: 100, group_len: GROUP as u32 }
        }

        fn group(&self, group: u64) -> &[u8] {
            let bytes = self.geometry().group_bytes(group);
            &self.object[bytes.start as usize..bytes.end as usize]
        }

        /// The first place with the bytes of a whole group that is not here, as the driver finds it by sums.
        fn seek(&self, seek: Seek, sums: u64, held: &BTreeSet<u64>) -> Option<(u64, u64)> {
            (seek.from..seek.to).find_map(|at| {
                let bytes = &self.older[at as usize..][..GROUP];
                let is_sum =
                    |group: &u64| !held.contains(group) && (self.lies || self.group(*group) == bytes);
                (0..sums)
                    .filter(|group| self.group(*group).len() == GROUP)
                    .find(is_sum)
                    .map(|group| (at, group))
            })
        }

        fn run(&self) -> Outcome {
            let geometry = self.geometry();
            let version = Version { len: self.older.len() as u64, whole: false, shifts: true };
            let mut reuse = Reuse::new(geometry, &[version]);
            let mut out = Outcome::default();
            while !reuse.is_done() {
                assert!(
                    out.known < geometry.groups() || out.sums < geometry.groups(),
                    "all is known, and it waits"
                );
                out.known = (out.known + self.step).min(geometry.groups());
                reuse.handle(Input::Known(out.known));
                if out.asked > 0 {
                    out.sums = (out.sums + self.step).min(out.known);
                    reuse.handle(Input::Sums(out.sums));
                }
                while let Some(act) = reuse.poll() {
                    self.act(act, &mut reuse, &mut out);
                }
            }
            assert_eq!(reuse.held(), out.held.len() as u64);
            out
        }

        fn act(&self, act: Act, reuse: &mut Reuse, out: &mut Outcome) {
            match act {
                Act::AskSums => out.asked += 1,
                Act::Seek(seek) => {
                    assert!(seek.from < seek.to && seek.to - seek.from <= SEEK_BYTES, "{seek:?}");
                    out.seeks += 1;
                    let found = self.seek(seek, out.sums, &out.held);
                    out.places += found.map_or(seek.to, |(at, _)| at + 1) - seek.from;
                    reuse.handle(Input::Sought { seek, found });
                }
                Act::Look(look) => {
                    out.looks += 1;
                    assert!(look.group < out.known, "{look:?} has no hash yet");
                    let wanted = self.group(look.group);
                    let same = &self.older[look.at as usize..][..wanted.len()] == wanted;
                    assert!(!same || out.held.insert(look.group), "{look:?} is here already");
                    reuse.handle(Input::Looked { look, same });
                }
            }
        }
    }

    /// Bytes of which no group is another one.
    fn bytes(len: usize, seed: u64) -> Vec<u8> {
        let mut state = seed | 1;
        let next = |_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        };
        (0..len).map(next).collect()
    }

    #[test]
    fn what_is_put_in_moves_the_rest_and_spares_it() {
        let older = bytes(300 * GROUP + 77, 1);
        for at in [0, 5, 40 * GROUP + 9, 200 * GROUP, 280 * GROUP] {
            let mut object = older.clone();
            object.splice(at..at, bytes(1_000, 2));
            let out = Case { object, older: older.clone(), step: 8, lies: false }.run();
            // All but those that it was put into, also the last one, which is short.
            assert!(out.held.len() >= 302 - 2, "{} at {at}", out.held.len());
            // Rolled over once, to where the rest has moved; what follows is looked at.
            assert!(out.places <= 3 * GROUP as u64 && out.seeks <= 3, "{} seeks at {at}", out.seeks);
            assert!(out.looks <= 2 * 302, "{} looks at {at}", out.looks);
            // Taken out again.
            let mut object = older.clone();
            object.drain(at..(at + 1_000).min(older.len()));
            let out = Case { object, older: older.clone(), step: 8, lies: false }.run();
            assert!(out.held.len() >= 300 - 3, "{} at {at}, taken out", out.held.len());
        }
    }

    #[test]
    fn what_has_changed_in_place_or_altogether_costs_little() {
        let older = bytes(2_000 * GROUP, 1);
        let mut object = older.clone();
        (0..2_000).step_by(10).for_each(|group| object[group * GROUP + 3] ^= 1);
        let out = Case { object, older: older.clone(), step: 8, lies: false }.run();
        assert_eq!((out.held.len(), out.asked, out.places), (1_800, 0, 0));
        // Another object: its sums are asked for, and it is left alone after a trial.
        let out = Case { object: bytes(1_990 * GROUP, 3), older, step: 8, lies: false }.run();
        assert_eq!((out.held.len(), out.asked, out.places), (0, 1, TRIAL * GROUP as u64));
        assert!(out.sums <= TRIAL_SUMS + 8, "it waits for {} sums", out.sums);
    }

    /// A group may begin at the last place where it fits, and no later.
    #[test]
    fn the_last_place_of_a_version_is_searched_too() {
        let object = bytes(20 * GROUP, 1);
        for (missing, found) in [(0, true), (1, false)] {
            let mut older = bytes(20 * GROUP + 5, 2);
            older.extend(&object[..GROUP - missing]);
            let out = Case { object: object.clone(), older, step: 8, lies: false }.run();
            assert_eq!(out.held.len(), usize::from(found), "{missing} bytes are missing");
        }
    }

    #[test]
    fn sums_that_lie_are_soon_not_believed() {
        let (object, older) = (bytes(300 * GROUP, 1), bytes(310 * GROUP, 2));
        let out = Case { object, older, step: 500, lies: true }.run();
        assert_eq!((out.held.len(), out.places), (0, u64::from(MISTAKES_MAX)));
    }

    proptest! {
        /// Whatever was put in and taken out: nothing counts that is not the same, it ends, and no place is
        /// rolled over twice.
        #[test]
        fn nothing_counts_that_is_not_the_same(
            groups in 0usize..90, rest in 0usize..GROUP, step in 1u64..60,
            edits in proptest::collection::vec((any::<prop::sample::Index>(), 0usize..3_000, any::<bool>()), 0..4),
        ) {
            let older = bytes(groups * GROUP + rest, 9);
            let mut object = older.clone();
            for (number, (at, len, takes)) in (10..).zip(edits) {
                let at = at.index(object.len() + 1);
                let until = if takes { (at + len).min(object.len()) } else { at };
                object.splice(at..until, if takes { Vec::new() } else { bytes(len, number) });
            }
            let places = older.len() as u64;
            let out = Case { object, older, step, lies: false }.run();
            prop_assert!(out.asked <= 1);
            prop_assert!(out.places <= places, "{} of {places} places", out.places);
        }
    }
}
