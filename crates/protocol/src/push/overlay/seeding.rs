//! Choice of the hash groups that a source gives to each member that takes from it: each group once.
//!
//! A group that the source has given to one member comes to all others from that member. So the source sends
//! about one object, whatever their number, and the next group is always one that none has: the rarest. Those
//! that take fast get more, since each takes when its connection has room. A group is given again where a
//! member reports that it lacks it, and to that member: then the one that had it has ended, or keeps it back.
//! One that has kept several back gets no more of those that no other has. A member that stands apart, as
//! none may fetch from it, gets all groups beside the others.

use super::super::words::PeerId;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;
use polycast_types::{Duration, RangeSet, Time};

/// Number of members that may take at a time: each has a connection to the source.
pub const TAKERS_MAX: usize = 16;
/// A group that was given again comes to the others within this time, or is given to the next one that lacks
/// it. Twice the time after which members say what they lack.
const AGAIN_AFTER: Duration = Duration::from_millis(600);
/// One that has kept so many groups back gets no new ones. A connection that breaks at the wrong moment costs
/// one or two.
const KEPT_BACK_MAX: u32 = 8;
/// .. if so many others have said that they lack them.
const LACKED_BY: usize = 2;
/// A group is with the others when so many times has passed what it takes to one of them: down its path, up
/// again, and to the rest.
const PASSED_ON_AFTER: u64 = 4;
/// Number of groups of a message for which those that keep them back are sought: a member can report that it
/// lacks millions.
const BLAMED_MAX: usize = 64;
/// One that takes a group in so many times what the fastest takes, or more, is not given what none has: all
/// would wait for its path up, and it gets all from the others.
const TOO_SLOW_TIMES: u64 = 4;
/// A group is on its way for so many times what its taker takes for one, and for so long at least and at
/// most: until then it lacks nowhere.
const ON_ITS_WAY_TIMES: u64 = 4;
const ON_ITS_WAY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));
/// So many groups are remembered as given lately: those of 10 s at 100 Gbit/s are half of them.
const LATELY_MAX: usize = 1 << 20;
/// Stands for no place in the table of those that were given groups.
const NONE: u8 = 0;

/// A member that takes.
#[derive(Clone, Debug)]
struct Taker {
    /// Its number in the table of those that were given groups, from 1 on.
    place: u8,
    /// Number of connections by which it takes, its lanes.
    lanes: u32,
    /// Groups that it had when it came.
    had: RangeSet,
    /// Number of groups given to it that others lack, and the members that reported so.
    kept_back: u32,
    lacked_by: BTreeSet<PeerId>,
    /// Time when it last took a group, and the interval at which it takes them.
    took_at: Option<Time>,
    interval: Option<Duration>,
    /// There was nothing for it when it last had room.
    is_idle: bool,
}

impl Taker {
    fn new(place: u8, had: RangeSet) -> Self {
        let lacked_by = BTreeSet::new();
        Taker { place, lanes: 1, had, kept_back: 0, lacked_by, took_at: None, interval: None, is_idle: false }
    }

    /// Notes that it takes a group.
    fn takes(&mut self, now: Time) {
        // Time in which there was nothing to take says nothing of how long a group is on its way.
        let is_idle = core::mem::take(&mut self.is_idle);
        let since = self.took_at.replace(now).map(|at| now.since(at)).filter(|_| !is_idle);
        // The mean of the last few.
        self.interval =
            since.map(|since| self.interval.map_or(since, |mean| (mean * 3 + since) / 4)).or(self.interval);
    }

    /// Time that a group takes to it, by one of its lanes.
    fn group_time(&self) -> Option<Duration> {
        self.interval.map(|interval| interval * u64::from(self.lanes))
    }

    /// Another member says that it keeps groups back.
    fn is_blamed(&mut self, by: PeerId) {
        self.kept_back = self.kept_back.saturating_add(1);
        if self.lacked_by.len() < LACKED_BY {
            self.lacked_by.insert(by);
        }
    }
}

/// A member that gets all groups, and none fetches from it.
#[derive(Clone, Debug)]
struct Apart {
    peer: PeerId,
    /// Number of connections by which it takes.
    lanes: u32,
    /// Groups that it has neither said that it has nor been given.
    left: RangeSet,
}

/// Groups that a member reports as lacking.
#[derive(Clone, Debug)]
struct Lacking {
    groups: RangeSet,
    /// Groups that it was given for this, and that may be on their way to it.
    given: RangeSet,
    /// Number of groups that it may still get for this: as many as the object has, and once more as many
    /// where it says that they were lost, too. Where its connections break again and again that is not
    /// enough: then it gets one now and then.
    left: u64,
    forgiven_left: u64,
    got_at: Time,
}

impl Lacking {
    /// Takes note that so many groups that it was given were lost.
    fn forgive(&mut self, lost: u64, most: u64) {
        let forgiven = lost.min(self.forgiven_left);
        self.forgiven_left -= forgiven;
        self.left = (self.left + forgiven).min(most);
    }
}

/// The groups of an object, and who has got which.
#[derive(Clone, Debug)]
pub struct Seeding {
    groups: u64,
    /// Groups that may be given, and that none was given.
    fresh: RangeSet,
    /// Groups that may not be given yet.
    unready: RangeSet,
    /// To whom each was given.
    given_to: Vec<u8>,
    takers: BTreeMap<PeerId, Taker>,
    apart: Option<Apart>,
    lacking: BTreeMap<PeerId, Lacking>,
    /// Times when groups were last given again.
    again: BTreeMap<u64, Time>,
    /// Groups that may be on their way to those that take, in the order in which they were given.
    lately: VecDeque<(Time, u64)>,
    given: u64,
    /// Of these to one that stood apart, but for what it lacked.
    given_apart: u64,
}

impl Seeding {
    /// The groups of an object, none of which may be given yet.
    #[must_use]
    pub fn new(groups: u64) -> Self {
        Seeding {
            groups,
            fresh: RangeSet::new(),
            unready: core::iter::once(0..groups).collect(),
            given_to: vec![NONE; usize::try_from(groups).expect("an object's groups are counted in memory")],
            takers: BTreeMap::new(),
            apart: None,
            lacking: BTreeMap::new(),
            again: BTreeMap::new(),
            lately: VecDeque::new(),
            given: 0,
            given_apart: 0,
        }
    }

    /// Lets a group be given, as its hash is known.
    pub fn make_ready(&mut self, group: u64) {
        if self.unready.remove(group..group + 1) > 0 {
            self.fresh.insert(group..group + 1);
        }
    }

    /// Takes a member in that takes by one more connection, and has these groups; gives whether there was
    /// room.
    pub fn come(&mut self, peer: PeerId, had: RangeSet) -> bool {
        self.take_back(peer, &had);
        if let Some(apart) = self.apart.as_mut().filter(|apart| apart.peer == peer) {
            apart.lanes = apart.lanes.saturating_add(1);
            take_out(&mut apart.left, &had);
            return true;
        }
        if let Some(taker) = self.takers.get_mut(&peer) {
            // Where it has come again, what it was given and has not got is in neither.
            taker.had = had;
            taker.lanes = taker.lanes.saturating_add(1);
            return true;
        }
        let is_free = |place: &u8| self.takers.values().all(|taker| taker.place != *place);
        let Some(place) = (1..=TAKERS_MAX as u8).find(is_free) else { return false };
        self.takers.insert(peer, Taker::new(place, had));
        true
    }

    /// Takes back what a member was given as it lacked it, and has not got: it may be on a connection that
    /// has ended. A member drops a silent connection and says what it lacks in the same moment, and what it
    /// says may come here before the end of the connection.
    fn take_back(&mut self, peer: PeerId, had: &RangeSet) {
        let is_apart = self.is_apart(peer);
        let Some(lacking) = self.lacking.get_mut(&peer) else { return };
        let mut lost = core::mem::take(&mut lacking.given);
        take_out(&mut lost, had);
        if !is_apart {
            // It is given as the others are what none has.
            take_out(&mut lost, &self.fresh);
        }
        lacking.forgive(lost.len(), self.groups);
        for range in lost.iter() {
            for group in range.clone() {
                self.again.remove(&group);
                self.given_to[group as usize] = NONE;
            }
            lacking.groups.insert(range);
        }
    }

    /// Takes note that a member gets all groups beside the others, or no more so. One that takes already goes
    /// on by the same connections.
    pub fn set_apart(&mut self, peer: PeerId, is_apart: bool) {
        if is_apart == self.is_apart(peer) {
            return;
        }
        let groups = self.groups;
        let all = || core::iter::once(0..groups).collect::<RangeSet>();
        if is_apart {
            if let Some(other) = self.apart.as_ref().map(|apart| apart.peer) {
                self.set_apart(other, false);
            }
            let (mut left, mut lanes) = (all(), 0);
            if let Some(taker) = self.takers.get(&peer) {
                lanes = taker.lanes;
                let given = (0..self.groups).zip(&self.given_to).filter(|(_, to)| **to == taker.place);
                for (group, _) in given {
                    left.remove(group..group + 1);
                }
                take_out(&mut left, &taker.had);
            }
            self.remove(peer);
            self.apart = Some(Apart { peer, lanes, left });
            return;
        }
        let Some(was) = self.apart.take() else { return };
        let mut had = all();
        take_out(&mut had, &was.left);
        if was.lanes > 0 && self.come(peer, had) {
            self.takers.get_mut(&peer).expect("it has just come").lanes = was.lanes;
        }
        if let Some(lacking) = self.lacking.get_mut(&peer) {
            // It is given as the others are what none has.
            take_out(&mut lacking.groups, &self.fresh);
        }
    }

    fn is_apart(&self, peer: PeerId) -> bool {
        self.apart.as_ref().is_some_and(|apart| apart.peer == peer)
    }

    /// Takes note that a member is gone, and comes no more.
    pub fn forget(&mut self, peer: PeerId) {
        self.remove(peer);
        self.apart.take_if(|apart| apart.peer == peer);
        self.lacking.remove(&peer);
    }

    /// Takes note that a member takes no more by one of its connections. It may come again.
    pub fn leave(&mut self, peer: PeerId) {
        if let Some(apart) = self.apart.as_mut().filter(|apart| apart.peer == peer) {
            apart.lanes = apart.lanes.saturating_sub(1);
            return;
        }
        match self.takers.get_mut(&peer) {
            Some(taker) if taker.lanes > 1 => taker.lanes -= 1,
            _ => self.remove(peer),
        }
    }

    fn remove(&mut self, peer: PeerId) {
        let Some(taker) = self.takers.remove(&peer) else { return };
        // The next one in its place has not got what this one was given.
        self.given_to.iter_mut().filter(|to| **to == taker.place).for_each(|to| *to = NONE);
    }

    /// Takes note that a member lacks these groups, and that none that it may fetch from has them. What has
    /// not been given yet is on its way.
    pub fn lack(&mut self, now: Time, peer: PeerId, ranges: &[Range<u64>]) {
        self.again.retain(|_, at| now.since(*at) < AGAIN_AFTER);
        let within = ranges.iter().map(|range| range.start.min(self.groups)..range.end.min(self.groups));
        let mut groups: RangeSet = within.filter(|range| !range.is_empty()).collect();
        if let Some(taker) = self.takers.get_mut(&peer) {
            // It was given them while it stood apart, and they did not come.
            take_out(&mut taker.had, &groups);
        }
        take_out(&mut groups, &self.unready);
        let mut given = RangeSet::new();
        match self.apart.as_ref().filter(|apart| apart.peer == peer) {
            // It gets from none of the others, and what they were not given may be lost on its way to it.
            Some(apart) => take_out(&mut groups, &apart.left),
            None => {
                take_out(&mut groups, &self.fresh);
                for group in self.on_their_way(now) {
                    if groups.remove(group..group + 1) > 0 {
                        given.insert(group..group + 1);
                    }
                }
                self.blame(peer, &groups);
            }
        }
        let all = self.groups;
        let (none, left) = (RangeSet::new(), all);
        let new = || Lacking { groups: none.clone(), given: none, left, forgiven_left: left, got_at: now };
        let lacking = self.lacking.entry(peer).or_insert_with(new);
        let lost = lacking.given.iter().flatten().filter(|group| groups.contains(*group)).count();
        lacking.forgive(lost as u64, all);
        (lacking.groups, lacking.given) = (groups, given);
    }

    /// The groups that may not have got to those whom they were given to.
    fn on_their_way(&mut self, now: Time) -> Vec<u64> {
        while self.lately.front().is_some_and(|(at, _)| now.since(*at) >= ON_ITS_WAY.1) {
            self.lately.pop_front();
        }
        let is_on_its_way = |(at, group): &&(Time, u64)| {
            let place = self.given_to[*group as usize];
            let taker = self.takers.values().find(|taker| taker.place == place);
            let takes = |taker: &Taker| {
                let span = taker.interval.unwrap_or(Duration::ZERO) * ON_ITS_WAY_TIMES;
                span.clamp(ON_ITS_WAY.0, ON_ITS_WAY.1)
            };
            taker.is_some_and(|taker| now.since(*at) < takes(taker))
        };
        self.lately.iter().filter(is_on_its_way).map(|(_, group)| *group).collect()
    }

    /// Takes note that a member has got wrong bytes from another one. If a second one says so, that gets no
    /// more groups.
    pub fn complain(&mut self, by: PeerId, about: PeerId) {
        if let Some(taker) = self.takers.get_mut(&about).filter(|_| by != about) {
            taker.is_blamed(by);
            taker.kept_back = taker.kept_back.max(KEPT_BACK_MAX);
        }
    }

    /// Notes who was given what another one lacks. What it lacks itself it has kept from none.
    fn blame(&mut self, by: PeerId, groups: &RangeSet) {
        for group in groups.iter().flatten().take(BLAMED_MAX) {
            let place = core::mem::replace(&mut self.given_to[group as usize], NONE);
            let taker = self.takers.iter_mut().find(|(peer, taker)| taker.place == place && **peer != by);
            if let Some((_, taker)) = taker {
                taker.is_blamed(by);
            }
        }
    }

    /// The next group for a member that has room for one.
    pub fn take(&mut self, now: Time, peer: PeerId) -> Option<u64> {
        if self.is_apart(peer) {
            return self.take_apart(now, peer);
        }
        let place = self.takers.get(&peer)?.place;
        let group = match self.next_lacking(now, peer) {
            Some(group) => {
                // One that keeps groups back brings it to none of the others.
                if !self.keeps_back(&self.takers[&peer]) {
                    self.again.insert(group, now);
                }
                group
            }
            None => {
                let Some(group) = self.next_fresh(now, peer) else {
                    self.takers.get_mut(&peer).expect("looked up above").is_idle = true;
                    return None;
                };
                self.fresh.remove(group..group + 1);
                group
            }
        };
        self.takers.get_mut(&peer).expect("looked up above").takes(now);
        self.given_to[group as usize] = place;
        if self.lately.len() == LATELY_MAX {
            self.lately.pop_front();
        }
        self.lately.push_back((now, group));
        self.given += 1;
        Some(group)
    }

    /// The next group for the member that stands apart. The others are given the same one for themselves.
    fn take_apart(&mut self, now: Time, peer: PeerId) -> Option<u64> {
        let group = self.next_lacking(now, peer).or_else(|| {
            let left = &mut self.apart.as_mut()?.left;
            let ready = |range: Range<u64>| {
                let group = self.unready.first_missing(range.start);
                (group < range.end).then_some(group)
            };
            let group = left.iter().find_map(ready)?;
            left.remove(group..group + 1);
            self.given_apart += 1;
            Some(group)
        })?;
        self.given += 1;
        Some(group)
    }

    /// The first group that it lacks, and that no other one was given again just now.
    fn next_lacking(&mut self, now: Time, peer: PeerId) -> Option<u64> {
        let may = |lacking: &&mut Lacking| lacking.left > 0 || now.since(lacking.got_at) >= AGAIN_AFTER;
        let lacking = self.lacking.get_mut(&peer).filter(may)?;
        let is_due = |group: &u64| self.again.get(group).is_none_or(|at| now.since(*at) >= AGAIN_AFTER);
        let group = lacking.groups.iter().flatten().find(is_due)?;
        lacking.groups.remove(group..group + 1);
        lacking.given.insert(group..group + 1);
        (lacking.left, lacking.got_at) = (lacking.left.saturating_sub(1), now);
        Some(group)
    }

    /// The first group that none has, unless this one keeps groups back, and others do not.
    fn next_fresh(&self, now: Time, peer: PeerId) -> Option<u64> {
        let taker = &self.takers[&peer];
        if self.keeps_back(taker) && self.takers.values().any(|other| !self.keeps_back(other)) {
            return None;
        }
        if self.is_too_slow(now, taker) {
            return None;
        }
        self.fresh.iter().find_map(|range| {
            let first = taker.had.first_missing(range.start);
            (first < range.end).then_some(first)
        })
    }

    /// Returns true if a member is far slower than the fastest, or the others have taken the rest before this
    /// one has taken a group, and passed it on.
    fn is_too_slow(&self, now: Time, taker: &Taker) -> bool {
        let trusted = self.takers.values().filter(|other| !self.keeps_back(other));
        // One that takes no more, as it says that it has all, is not fast: none fetches the rest from it.
        let pace = |other: &Taker| {
            let idle = now.since(other.took_at?);
            Some((other.interval?.max(idle), other.group_time()?.max(idle)))
        };
        let known: Vec<(Duration, Duration)> = trusted.filter_map(pace).collect();
        let own = taker.group_time().or(taker.took_at.map(|at| now.since(at)));
        let fastest = known.iter().map(|(_, time)| *time).min();
        let (Some(fastest), Some(own)) = (fastest, own) else { return false };
        if own > fastest * TOO_SLOW_TIMES {
            return true;
        }
        let in_a_second: u64 = known.iter().map(|(interval, _)| 1_000_000_000 / interval.0.max(1)).sum();
        let rest = Duration(self.fresh.len().saturating_mul(1_000_000_000) / in_a_second.max(1));
        rest < (own - fastest) * PASSED_ON_AFTER
    }

    /// Returns the number of groups given in all.
    #[must_use]
    pub fn given(&self) -> u64 {
        self.given
    }

    /// Returns the number of those groups that one which stood apart got beside the others.
    #[must_use]
    pub fn given_apart(&self) -> u64 {
        self.given_apart
    }

    /// Returns the members that have kept back groups given to them.
    pub fn keepers(&self) -> impl Iterator<Item = PeerId> + '_ {
        self.takers.iter().filter(|(_, taker)| self.keeps_back(taker)).map(|(peer, _)| *peer)
    }

    /// Returns true if a member keeps groups back: more than one other reports it, where there is more than
    /// one other. One that stood still lacks what all had.
    fn keeps_back(&self, taker: &Taker) -> bool {
        let others = self.takers.len().saturating_sub(1);
        taker.kept_back >= KEPT_BACK_MAX && taker.lacked_by.len() >= LACKED_BY.min(others)
    }

    /// Checks what always holds.
    ///
    /// # Panics
    /// It does not hold.
    pub fn check(&self) {
        assert!(self.takers.len() <= TAKERS_MAX, "too many take");
        let apart = self.apart.as_ref().map(|apart| apart.peer);
        assert!(apart.is_none_or(|peer| !self.takers.contains_key(&peer)), "one takes twice");
        let fresh = self.fresh.iter().flatten();
        assert!({ fresh }.all(|group| !self.unready.contains(group)), "a group may be given, and may not");
        let mut places: Vec<u8> = self.takers.values().map(|taker| taker.place).collect();
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len(), self.takers.len(), "two have one place");
        let known = |to: &u8| *to == NONE || places.contains(to);
        assert!(self.given_to.iter().all(known), "a group was given to one that does not take");
        for (peer, lacking) in &self.lacking {
            let is_fresh = |group| apart != Some(*peer) && self.fresh.contains(group);
            let of_these = |group| !is_fresh(group) && !self.unready.contains(group);
            // What has become ready since was not given either.
            assert!(lacking.left <= self.groups && lacking.groups.iter().flatten().all(of_these));
        }
    }
}

/// Removes from a set what another one contains.
fn take_out(groups: &mut RangeSet, others: &RangeSet) {
    for range in others.iter() {
        groups.remove(range);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const A: PeerId = PeerId(1);
    const B: PeerId = PeerId(2);
    const C: PeerId = PeerId(3);

    fn ready(groups: u64) -> Seeding {
        let mut seeding = Seeding::new(groups);
        (0..groups).for_each(|group| seeding.make_ready(group));
        seeding
    }

    fn one(range: Range<u64>) -> [Range<u64>; 1] {
        [range]
    }

    fn at(ms: u64) -> Time {
        Time(ms * 1_000_000)
    }

    #[test]
    fn a_group_is_given_again_to_one_that_lacks_it_and_to_one_at_a_time() {
        let mut seeding = ready(4);
        assert!(seeding.come(A, RangeSet::new()) && seeding.come(B, core::iter::once(0..1).collect()));
        assert_eq!(seeding.take(at(0), B), Some(1), "it has the first one");
        assert_eq!([0; 3].map(|_| seeding.take(at(0), A)), [Some(0), Some(2), Some(3)]);
        assert_eq!((seeding.take(at(0), A), seeding.take(at(0), B)), (None, None));
        // C, which takes nothing yet, and A lack what B was given.
        seeding.lack(at(500), C, &one(1..2));
        assert!(seeding.come(C, RangeSet::new()));
        seeding.lack(at(500), A, &one(1..2));
        assert_eq!(seeding.take(at(500), C), Some(1));
        assert_eq!(seeding.take(at(600), A), None, "it comes from C");
        assert_eq!(seeding.take(at(1_200), A), Some(1), "and does not");
        assert_eq!(seeding.given(), 6);
        seeding.check();
    }

    #[test]
    fn one_far_slower_than_the_fastest_gets_no_new_ones() {
        let mut seeding = ready(1_000);
        assert!(seeding.come(A, RangeSet::new()) && seeding.come(B, RangeSet::new()));
        assert!(seeding.take(at(1), B).is_some());
        for ms in 1..50 {
            assert!(seeding.take(at(ms), A).is_some());
        }
        assert_eq!(seeding.take(at(50), B), None, "A takes fifty meanwhile");
        assert!(seeding.take(at(1_000), B).is_some(), "A takes none any more");
        seeding.leave(A);
        assert!(seeding.take(at(1_001), B).is_some(), "none but it is left");
        seeding.check();
    }

    #[test]
    fn one_that_keeps_groups_back_gets_no_new_ones() {
        let mut seeding = ready(100);
        assert!(seeding.come(A, RangeSet::new()) && seeding.come(B, RangeSet::new()));
        for _ in 0..20 {
            assert!(seeding.take(at(0), A).is_some() && seeding.take(at(0), B).is_some());
        }
        // A was given the even ones. What it lacks itself is no fault of its.
        let lacks: Vec<Range<u64>> = (0..8).map(|n| 2 * n..2 * n + 1).collect();
        seeding.lack(at(300), A, &one(1..2));
        seeding.lack(at(300), B, &lacks);
        assert_eq!(seeding.keepers().collect::<Vec<_>>(), [A]);
        assert_eq!(seeding.take(at(300), A), Some(1), "what it lacks it gets");
        assert_eq!(seeding.take(at(300), A), None);
        seeding.leave(B);
        assert_eq!(seeding.take(at(300), A), Some(40), "none but it is left");
    }

    #[test]
    fn one_that_stands_apart_gets_all_beside_the_others() {
        let mut seeding = ready(4);
        seeding.set_apart(A, true);
        assert!(seeding.come(A, core::iter::once(0..1).collect()) && seeding.come(B, RangeSet::new()));
        assert_eq!([0; 4].map(|_| seeding.take(at(0), A)), [Some(1), Some(2), Some(3), None]);
        assert_eq!([0; 2].map(|_| seeding.take(at(1), B)), [Some(0), Some(1)]);
        seeding.lack(at(500), A, &one(0..1));
        assert_eq!([0; 2].map(|_| seeding.take(at(500), A)), [Some(0), None], "a connection broke");
        assert_eq!((seeding.keepers().count(), seeding.given(), seeding.given_apart()), (0, 6, 3));
        seeding.set_apart(A, false);
        assert_eq!(seeding.take(at(600), B), Some(2));
        assert_eq!(seeding.take(at(700), A), None, "it has all");
        seeding.set_apart(B, true);
        assert_eq!([0; 2].map(|_| seeding.take(at(800), B)), [Some(3), None]);
        seeding.forget(B);
        seeding.check();
    }

    /// A connection of one that stands apart has broken with what was on its way. The others were given none
    /// of it, as each has an older version.
    #[test]
    fn one_that_stands_apart_gets_again_what_no_other_was_given() {
        let mut seeding = ready(4);
        seeding.set_apart(A, true);
        let all = || core::iter::once(0..4).collect::<RangeSet>();
        assert!(seeding.come(A, RangeSet::new()) && seeding.come(B, all()));
        assert_eq!([0; 5].map(|_| seeding.take(at(0), A)), [Some(0), Some(1), Some(2), Some(3), None]);
        assert_eq!(seeding.take(at(0), B), None, "it has all");
        seeding.leave(A);
        assert!(seeding.come(A, core::iter::once(0..2).collect()));
        seeding.lack(at(500), A, &one(2..4));
        seeding.check();
        assert_eq!([0; 3].map(|_| seeding.take(at(500), A)), [Some(2), Some(3), None]);
        // It stands with others, and has lost some once more.
        seeding.lack(at(1_500), A, &one(3..4));
        seeding.set_apart(A, false);
        seeding.check();
        assert_eq!(seeding.take(at(1_500), A), None);
        seeding.lack(at(2_500), A, &one(3..4));
        seeding.check();
        assert_eq!([0; 2].map(|_| seeding.take(at(2_500), A)), [Some(3), None]);
    }

    /// One says that it lacks a group, and drops its connection at the same time: the group goes to the one
    /// that is just ending, and must not count as given.
    #[test]
    fn one_that_comes_anew_gets_again_what_went_to_its_old_connection() {
        for is_apart in [false, true] {
            let mut seeding = ready(4);
            seeding.set_apart(A, is_apart);
            assert!(seeding.come(A, RangeSet::new()));
            assert_eq!([0; 4].map(|_| seeding.take(at(0), A)), [Some(0), Some(1), Some(2), Some(3)]);
            assert_eq!(seeding.take(at(0), A), None);
            let mut now = 2_000;
            for ends_first in [false, true, false] {
                seeding.lack(at(now), A, &one(3..4));
                assert_eq!([0; 2].map(|_| seeding.take(at(now), A)), [Some(3), None]);
                if ends_first {
                    seeding.leave(A);
                    assert_eq!(seeding.take(at(now), A).filter(|_| !is_apart), None);
                }
                assert!(seeding.come(A, core::iter::once(0..3).collect()));
                if !ends_first {
                    seeding.leave(A);
                }
                // What it lacks has not got onto its way in the meantime.
                seeding.lack(at(now + 1), A, &one(3..4));
                assert_eq!([0; 2].map(|_| seeding.take(at(now + 2), A)), [Some(3), None]);
                seeding.check();
                now += 2_000;
            }
            // Another connection of the same, which has got it.
            assert!(seeding.come(A, core::iter::once(0..4).collect()));
            assert_eq!(seeding.take(at(now), A), None);
        }
    }

    /// Another one comes to stand apart: the one before takes with the others, by as many connections.
    #[test]
    fn one_stands_apart_at_a_time() {
        let mut seeding = ready(6);
        seeding.set_apart(A, true);
        assert!([(); 2].into_iter().all(|()| seeding.come(A, RangeSet::new())));
        assert!(seeding.come(B, RangeSet::new()));
        assert_eq!([0; 2].map(|_| seeding.take(at(0), A)), [Some(0), Some(1)]);
        seeding.set_apart(B, true);
        seeding.set_apart(A, false);
        seeding.check();
        seeding.leave(A);
        assert_eq!(seeding.take(at(0), A), Some(2), "it takes by another one");
        assert_eq!([0; 2].map(|_| seeding.take(at(0), B)), [Some(0), Some(1)]);
        seeding.leave(A);
        assert_eq!(seeding.take(at(0), A), None);
        // One that has no connection yet takes no place.
        seeding.set_apart(C, true);
        seeding.set_apart(C, false);
        assert_eq!(seeding.takers.keys().copied().collect::<Vec<_>>(), [B]);
        seeding.check();
    }

    #[test]
    fn one_that_lacks_everything_all_the_time_gets_two_objects_and_then_little() {
        let mut seeding = ready(10);
        assert!(seeding.come(A, RangeSet::new()));
        let mut got = 0;
        for second in 0..100 {
            seeding.lack(at(second * 1_000), A, &[0..10, 5..u64::MAX]);
            while seeding.take(at(second * 1_000), A).is_some() {
                got += 1;
            }
        }
        assert_eq!(got, 30 + 97, "each group once, and twice more, and then one a second");
    }

    /// A connection that breaks late takes most of an object with it, and the next one may do so as well.
    #[test]
    fn what_two_connections_lose_is_given_at_once() {
        let mut seeding = ready(10);
        for (now, lost) in [(0, 0), (1_000, 1), (2_000, 2)] {
            // It may say what it lacks before it comes, or behind that.
            let lacks = |seeding: &mut Seeding| {
                if lost > 0 {
                    seeding.lack(at(now), A, &one(0..10));
                }
            };
            if lost == 1 {
                lacks(&mut seeding);
            }
            assert!(seeding.come(A, RangeSet::new()));
            if lost == 2 {
                lacks(&mut seeding);
            }
            let given = (0..10).filter(|_| seeding.take(at(now), A).is_some()).count();
            assert_eq!(given, 10, "after {lost} that were lost");
            seeding.leave(A);
            seeding.check();
        }
    }

    proptest! {
        /// Whichever members come, go and lack: each group is given once to begin with, no group is given to
        /// one that had it or before it may be, and where all that is given arrives, one object is given.
        #[test]
        fn each_group_is_given_once(
            had in proptest::collection::vec((0u64..30, 0u64..30), 3..4),
            steps in proptest::collection::vec((0u8..6, 0u32..20, 0u64..30), 0..120),
            is_apart in any::<bool>(),
        ) {
            let mut seeding = Seeding::new(30);
            let apart = PeerId(4);
            seeding.set_apart(apart, is_apart);
            let had: Vec<RangeSet> = had.iter().map(|(one, other)| {
                core::iter::once(*one.min(other)..*one.max(other)).filter(|range| !range.is_empty()).collect()
            }).collect();
            seeding.come(apart, had[1].clone());
            let (mut ready, mut given, mut asked) = (RangeSet::new(), RangeSet::new(), RangeSet::new());
            for (now, (action, peer, group)) in steps.into_iter().enumerate() {
                let (now, id) = (at(now as u64), PeerId(peer));
                match action {
                    0 => {
                        seeding.make_ready(group);
                        ready.insert(group..group + 1);
                    }
                    1 => {
                        let _ = seeding.come(id, had[peer as usize % 3].clone());
                    }
                    2 if group == 0 => seeding.leave(id),
                    3 => {
                        seeding.lack(now, id, &one(group..group + 2));
                        asked.insert(group..group + 2);
                    }
                    _ => if let Some(group) = seeding.take(now, id) {
                        prop_assert!(ready.contains(group), "group {group} may not be given yet");
                        let is_new = is_apart && id == apart || given.insert(group..group + 1) > 0;
                        prop_assert!(is_new || asked.contains(group), "group {group} twice");
                        let had = had[peer as usize % 3].contains(group);
                        prop_assert!(!had || asked.contains(group), "it had group {group}");
                    },
                }
                seeding.check();
            }
        }

        /// Members come, go and stand apart, and groups are lost: one that stands apart in the end gets all
        /// that it says it lacks, as it gets it from none of the others.
        #[test]
        fn one_that_stands_apart_gets_all(
            steps in proptest::collection::vec((0u8..8, 0u32..3, 0u64..10, any::<bool>()), 0..60),
        ) {
            let mut seeding = ready(10);
            let mut here = vec![RangeSet::new(); 3];
            let lacks = |here: &RangeSet| here.gaps(0..10).into_iter().collect::<Vec<_>>();
            for (now, (action, peer, group, arrives)) in steps.into_iter().enumerate() {
                let (now, id, has) = (at(now as u64 * 100), PeerId(peer), &mut here[peer as usize]);
                match action {
                    0 | 1 => {
                        let _ = seeding.come(id, has.clone());
                    }
                    2 => seeding.leave(id),
                    3 => seeding.set_apart(id, arrives),
                    4 => seeding.lack(now, id, &lacks(has)),
                    // From another one.
                    5 => {
                        has.insert(group..group + 1);
                    }
                    _ => if let Some(group) = seeding.take(now, id).filter(|_| arrives) {
                        has.insert(group..group + 1);
                    },
                }
                seeding.check();
            }
            seeding.set_apart(A, true);
            let has = &mut here[A.0 as usize];
            prop_assert!(seeding.come(A, has.clone()));
            for second in 10..40 {
                seeding.lack(at(second * 1_000), A, &lacks(has));
                while let Some(group) = seeding.take(at(second * 1_000), A) {
                    has.insert(group..group + 1);
                }
                seeding.check();
            }
            prop_assert_eq!(has.len(), 10);
        }
    }
}
