//! Search for the bytes that an object has in common with versions of it that are here already.
//!
//! A receiver need not be sent the groups that it has: in the rest that an earlier try has left, or at the
//! same place of an older version. [`Reuse`] is given the number of known hashes of the object, and returns
//! which group of which version to check; the driver reads its bytes and hashes them, and reports whether
//! they are the object's. Nothing else makes a group count, so that a version that was mistaken for another
//! one costs time and no byte.
//!
//! A receiver that checks groups does not take packets yet, and its source has to hash ahead of sending. So
//! an older version that has next to nothing of the object's first eighth is left alone, and the receiver
//! begins. The rest of an earlier try is checked as a whole.
//!
//! Where many groups in a row are lacking, they may have moved: then an older version is searched for them
//! (`shifted`).

mod act;
mod shifted;

pub use act::{Act, Look, Seek};

use crate::push::Geometry;
use act::WORTH;
use alloc::vec::Vec;
use polycast_types::RangeSet;
use shifted::Shifted;

/// So many versions are looked at; others are left alone.
pub const VERSIONS_MAX: usize = 4;
/// Part of the object, and minimum number of groups, after which a version may be left alone.
const TRIAL_PART: u64 = 8;
const TRIAL_LEAST: u64 = 64;

/// Something that may have groups of the object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Version {
    /// Its length in bytes.
    pub len: u64,
    /// It is looked at as a whole, however little it has: what an earlier try has left.
    pub whole: bool,
    /// It may have groups of the object at other places.
    pub shifts: bool,
}

/// Events that the search handles.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Input {
    /// The hashes of so many groups are known, from the first one on.
    Known(u64),
    /// A group was looked at.
    Looked {
        /// The group.
        look: Look,
        /// Set if its bytes have the hash of the object's group.
        same: bool,
    },
    /// The sums of so many groups are known, from the first one on.
    Sums(u64),
    /// Places were searched.
    Sought {
        /// The places.
        seek: Seek,
        /// The first place with the sum of a group that is not here, and the group.
        found: Option<(u64, u64)>,
    },
}

#[derive(Clone, Debug)]
struct Candidate {
    whole: bool,
    shifts: bool,
    len: u64,
    /// Groups of the object that it is long enough for.
    groups: u64,
    looked: u64,
    same: u64,
    left_alone: bool,
    /// Groups in a row that it has not, up to the last one that was looked at, and at most.
    lacked: u64,
    lacked_most: u64,
}

impl Candidate {
    fn may_have(&self, group: u64) -> bool {
        !self.left_alone && group < self.groups
    }
}

/// Decides what to look at: `poll` says which group, `handle` hears how it is.
#[derive(Clone, Debug)]
pub struct Reuse {
    geometry: Geometry,
    groups: u64,
    known: u64,
    candidates: Vec<Candidate>,
    held: RangeSet,
    /// The group that is looked for, and in which version next.
    group: u64,
    version: usize,
    /// The search for what has moved, once it is known whether there is one.
    shifted: Option<Option<Shifted>>,
    pending: Option<Act>,
}

impl Reuse {
    /// For an object of this division; the versions that are most like it come first.
    #[must_use]
    pub fn new(geometry: Geometry, versions: &[Version]) -> Self {
        let groups = geometry.groups();
        let covered = |len: u64| match len >= geometry.object_len {
            true => groups,
            false => len / u64::from(geometry.group_len),
        };
        let candidates = versions.iter().take(VERSIONS_MAX).map(|version| Candidate {
            whole: version.whole,
            shifts: version.shifts,
            len: version.len,
            groups: covered(version.len),
            looked: 0,
            same: 0,
            left_alone: false,
            lacked: 0,
            lacked_most: 0,
        });
        Reuse {
            geometry,
            groups,
            known: 0,
            candidates: candidates.collect(),
            held: RangeSet::new(),
            group: 0,
            version: 0,
            shifted: None,
            pending: None,
        }
    }

    /// Takes in what happened.
    pub fn handle(&mut self, input: Input) {
        match input {
            Input::Known(groups) => self.known = self.known.max(groups.min(self.groups)),
            Input::Looked { look, same } => {
                assert_eq!(self.pending.take(), Some(Act::Look(look)), "what was asked for is looked at");
                self.looked(look, same);
            }
            Input::Sums(sums) => {
                if let Some(Some(shifted)) = &mut self.shifted {
                    shifted.knows(sums);
                }
            }
            Input::Sought { seek, found } => {
                assert_eq!(self.pending.take(), Some(Act::Seek(seek)), "what was asked for is searched");
                let lacks = |(_, group): (u64, u64)| group < self.known && !self.held.contains(group);
                assert!(found.is_none_or(lacks), "a group was found that does not lack, or has no hash");
                let shifted = self.shifted.as_mut().and_then(Option::as_mut);
                shifted.expect("only a search asks for that").sought(seek, found);
            }
        }
        if cfg!(debug_assertions) {
            self.check();
        }
    }

    fn looked(&mut self, look: Look, same: bool) {
        if same {
            self.held.insert(look.group..look.group + 1);
        }
        if let Some(Some(shifted)) = &mut self.shifted {
            return shifted.looked(look, same);
        }
        let trial = TRIAL_LEAST.max(self.groups / TRIAL_PART);
        let candidate = &mut self.candidates[look.version];
        candidate.looked += 1;
        candidate.same += u64::from(same);
        candidate.lacked = if same { 0 } else { candidate.lacked + 1 };
        candidate.lacked_most = candidate.lacked_most.max(candidate.lacked);
        let worthless = candidate.looked >= trial && candidate.same * WORTH < candidate.looked;
        candidate.left_alone |= worthless && !candidate.whole;
        if same {
            (self.group, self.version) = (look.group + 1, 0);
        }
    }

    /// Returns the next action; `None` until more hashes or sums are known, or for good when
    /// [`Reuse::is_done`].
    pub fn poll(&mut self) -> Option<Act> {
        assert!(self.pending.is_none(), "one thing is done at a time");
        let act = match self.look_in_place() {
            Some(look) => Some(Act::Look(look)),
            None if self.is_looked_at() => self.search(),
            None => None,
        };
        // The answer to a question for sums is that they become known.
        self.pending = act.filter(|act| *act != Act::AskSums);
        act
    }

    /// The next group that a version may have at its own place.
    fn look_in_place(&mut self) -> Option<Look> {
        while self.group < self.known && !self.is_looked_at() {
            let group = self.group;
            let next = (self.version..self.candidates.len()).find(|at| self.candidates[*at].may_have(group));
            if let Some(version) = next {
                self.version = version + 1;
                return Some(Look { version, group, at: self.geometry.group_bytes(group).start });
            }
            (self.group, self.version) = (group + 1, 0);
        }
        None
    }

    /// Returns true if no version has more at its own place, whatever becomes known.
    fn is_looked_at(&self) -> bool {
        let group = self.group;
        // Nothing that is still looked at reaches so far.
        !self.candidates.iter().any(|candidate| candidate.may_have(group))
    }

    fn search(&mut self) -> Option<Act> {
        if self.shifted.is_none() {
            self.shifted = Some(self.begin_search());
        }
        self.shifted.as_mut()?.as_mut()?.poll(self.known, &self.held)
    }

    /// A search in the version that is most like the object, where so much lacks in a row that it may have
    /// moved.
    fn begin_search(&self) -> Option<Shifted> {
        let version = self.candidates.iter().position(|candidate| candidate.shifts)?;
        let candidate = &self.candidates[version];
        let first = self.held.first_missing(0);
        let reaches =
            first < self.groups && (first + 1) * u64::from(self.geometry.group_len) <= candidate.len;
        let is_worth = reaches && shifted::is_worth(candidate.lacked_most, self.groups);
        is_worth.then(|| Shifted::new(version, candidate.len, self.geometry, first))
    }

    /// Returns true if there is nothing more to do, whatever becomes known.
    #[must_use]
    pub fn is_done(&self) -> bool {
        let searches = match &self.shifted {
            None => self.begin_search().is_some(),
            Some(shifted) => shifted.as_ref().is_some_and(|shifted| !shifted.is_over()),
        };
        self.is_looked_at() && !searches
    }

    /// Returns the number of groups that are here.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.held.len()
    }

    /// Holds the machine against itself.
    ///
    /// # Panics
    /// Two of its own records contradict each other: a bug here.
    pub fn check(&self) {
        assert!(self.candidates.len() <= VERSIONS_MAX, "more versions than are looked at");
        let shifted = self.shifted.as_ref().and_then(Option::as_ref);
        let in_place: u64 = self.candidates.iter().map(|candidate| candidate.same).sum();
        let same = in_place + shifted.map_or(0, Shifted::found);
        assert_eq!(self.held.len(), same, "a group was taken twice");
        if let Some(shifted) = shifted {
            shifted.check();
        }
        for candidate in &self.candidates {
            assert!(candidate.looked <= candidate.groups, "a group was looked at twice");
            assert!(!(candidate.whole && candidate.left_alone), "a rest is looked at as a whole");
        }
        assert!(self.group <= self.groups && self.known <= self.groups, "groups that there are not");
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use alloc::collections::BTreeSet;
    use proptest::prelude::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    /// Looks at everything, where so many hashes more become known at a time; gives the groups that are here,
    /// how many looks that took, and how many hashes it needed. `same` tells whether a group of a version is
    /// the object's.
    fn run(
        geometry: Geometry,
        versions: &[Version],
        step: u64,
        same: impl Fn(usize, u64) -> bool,
    ) -> (BTreeSet<u64>, u64, u64) {
        assert!(versions.iter().all(|version| !version.shifts));
        let mut reuse = Reuse::new(geometry, versions);
        let (mut held, mut looks, mut known) = (BTreeSet::new(), 0, 0);
        while !reuse.is_done() {
            assert!(known < geometry.groups(), "all is known, and it waits");
            known = (known + step).min(geometry.groups());
            reuse.handle(Input::Known(known));
            while let Some(act) = reuse.poll() {
                let Act::Look(look) = act else { panic!("{act:?} where nothing shifts") };
                looks += 1;
                let end = geometry.group_bytes(look.group).end;
                assert!(look.group < known && end <= versions[look.version].len, "{look:?}");
                let same = same(look.version, look.group);
                if same {
                    assert!(held.insert(look.group), "{look:?} is here already");
                }
                reuse.handle(Input::Looked { look, same });
            }
        }
        assert_eq!(reuse.held(), held.len() as u64);
        (held, looks, known)
    }

    proptest! {
        /// Nothing is taken that is not the same, and of a version that is not left alone all of it.
        #[test]
        fn all_that_is_the_same_is_found(
            object_len in 1u64..300_000,
            step in 1u64..400,
            versions in proptest::collection::vec(
                (0u64..400_000, proptest::collection::btree_set(0u64..300, 0..300), any::<bool>()), 0..4),
        ) {
            let geometry = Geometry { object_len, fragment_len: 1_000, group_len: 1_024 };
            let given: Vec<Version> = versions.iter().map(|(len, _, whole)| Version {
                len: if *whole { object_len } else { *len }, whole: *whole, shifts: false,
            }).collect();
            let is_same = |version: usize, group: u64| versions[version].1.contains(&group);
            let (held, looks, _) = run(geometry, &given, step, is_same);
            for group in &held {
                prop_assert!((0..given.len()).any(|version| is_same(version, *group)));
            }
            prop_assert!(looks <= geometry.groups() * given.len() as u64);
            for (at, version) in given.iter().enumerate().filter(|(_, version)| version.whole) {
                for group in (0..geometry.groups()).filter(|group| is_same(at, *group)) {
                    prop_assert!(held.contains(&group), "group {} of {:?} is missed", group, version);
                }
            }
        }
    }

    /// A driver that finds what is here, or what has no hash yet, is wrong.
    #[test]
    fn only_what_lacks_can_be_found() {
        let geometry = Geometry { object_len: 200 << 10, fragment_len: 1_000, group_len: 1 << 10 };
        let find = |group: Option<u64>| {
            let mut reuse = Reuse::new(geometry, &[Version { len: 150 << 10, whole: false, shifts: true }]);
            reuse.handle(Input::Known(180));
            loop {
                match reuse.poll() {
                    Some(Act::Look(look)) => reuse.handle(Input::Looked { look, same: look.group < 9 }),
                    Some(Act::AskSums) => reuse.handle(Input::Sums(180)),
                    Some(Act::Seek(seek)) => {
                        let found = group.map(|group| (seek.from, group));
                        return reuse.handle(Input::Sought { seek, found });
                    }
                    None => panic!("it looks for nothing"),
                }
            }
        };
        let is_right = |group| catch_unwind(AssertUnwindSafe(|| find(group))).is_ok();
        for (group, right) in
            [(9, true), (179, true), (0, false), (8, false), (180, false), (u64::MAX, false)]
        {
            assert_eq!(is_right(Some(group)), right, "group {group}");
        }
        assert!(is_right(None));
    }

    #[test]
    fn what_has_nothing_in_common_is_soon_left_alone() {
        let geometry = Geometry { object_len: 100_000 << 10, fragment_len: 1_000, group_len: 1 << 10 };
        let other = Version { len: geometry.object_len, whole: false, shifts: false };
        // The first group is often the same, as that of a format's header.
        let (held, looks, known) = run(geometry, &[other], 8, |_, group| group == 0);
        assert_eq!((held.len(), looks), (1, 12_500));
        assert!(known <= 12_508, "it waits for {known} hashes");
        // One group in a hundred has changed.
        let (held, looks, _) =
            run(geometry, &[other, other], 8, |version, group| version == 0 && group % 100 != 7);
        assert_eq!(held.len(), 99_000);
        assert!(looks <= 101_000, "{looks} looks");
        // Of the first 64 one in 16 is enough, and one less is too little.
        let tried = Geometry { object_len: 512 << 10, ..geometry };
        let same = |first: u64| {
            run(
                tried,
                &[Version { len: tried.object_len, whole: false, shifts: false }],
                8,
                move |_, group| group < first || group >= 64,
            )
        };
        assert_eq!((same(4).0.len(), same(4).1), (4 + 448, 512));
        assert_eq!((same(3).0.len(), same(3).1), (3, 64));
        // What an earlier try has left may be one group.
        let rest = Version { len: geometry.object_len, whole: true, shifts: false };
        assert_eq!(run(geometry, &[rest], 8, |_, group| group == 77_777).0.len(), 1);
        // A short version is done with where it ends.
        let short = Version { len: 100 << 10, whole: false, shifts: false };
        assert_eq!(run(geometry, &[short], 8, |_, _| true), ((0..100).collect(), 100, 104));
    }
}
