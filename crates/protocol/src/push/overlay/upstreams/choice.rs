//! Choice of the upstream that each group is requested from.

use super::super::mix;
use super::{
    AHEAD, ASK_MAX, ASK_MIN, GROUP_TIME_UNKNOWN, Lane, Output, SOONER_BY, SOONER_TIMES, STALLED_MOST,
    Upstream, UpstreamId, Upstreams, word_of,
};
use crate::bits::Bits;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use polycast_types::{Duration, Time};

/// Number of groups to choose from: the rarest of them is taken, or the first one that none of the others
/// has.
const LOOKED_MAX: usize = 128;
/// An upstream is late when nothing has come for so many times a group takes, and for so long.
const LATE_TIMES: u64 = 4;
const LATE_AFTER: Duration = Duration::from_millis(50);

/// One that has nothing to bring of its share for this part of the transfer so far may bring what is not in
/// it: those that share alike have theirs at about the same time.
const IDLE_PART: u64 = 4;

impl Upstreams {
    /// Asks each upstream for as much as comes from it in [`AHEAD`].
    pub(super) fn ask(&mut self, now: Time) {
        let open: Vec<UpstreamId> = self.open_ones().map(|(id, _)| *id).collect();
        let mut batches: BTreeMap<UpstreamId, Vec<u64>> = BTreeMap::new();
        let mut with_places = open.clone();
        // One group each in turn: what is rare is shared among them.
        while !with_places.is_empty() {
            with_places.retain(|id| {
                let next = self.has_place(*id).then(|| self.rarest(*id)).flatten();
                if let Some(group) = next {
                    self.note_asked(now, *id, group);
                    batches.entry(*id).or_default().push(group);
                }
                next.is_some()
            });
        }
        let has_share = |id: &UpstreamId| {
            let upstream = &self.upstreams[id];
            matches!(upstream.lane, Lane::First(_)) && !upstream.candidate.share.is_all()
        };
        let with_share: Vec<UpstreamId> = open.iter().copied().filter(has_share).collect();
        for id in open {
            while self.has_place(id)
                && let Some(group) = self.late_elsewhere(now, id)
            {
                self.note_asked(now, id, group);
                batches.entry(id).or_default().push(group);
            }
        }
        for id in with_share {
            while let Some(group) = self.beyond_share(now, id) {
                self.note_asked(now, id, group);
                batches.entry(id).or_default().push(group);
            }
        }
        self.outputs.extend(batches.into_iter().map(|(id, groups)| Output::Ask(id, groups)));
    }

    fn note_asked(&mut self, now: Time, id: UpstreamId, group: u64) {
        let upstream = self.upstreams.get_mut(&id).expect("looked up by the caller");
        if upstream.asked.is_empty() {
            upstream.is_heard(now);
            upstream.rate.begin(now);
        }
        if upstream.candidate.share.contains(group) {
            upstream.asked_at = now;
        }
        upstream.asked.push_back((group, now));
        self.pending.set(group, true);
    }

    fn has_place(&self, id: UpstreamId) -> bool {
        let upstream = &self.upstreams[&id];
        if upstream.is_ending {
            return false;
        }
        let bytes = upstream.rate.bytes_per_s().unwrap_or(0);
        let ahead = u128::from(bytes) * u128::from(AHEAD.0) / 1_000_000_000;
        let groups = ahead / u128::from(self.config.group_len.max(1)) + 1;
        let most = usize::try_from(groups).unwrap_or(ASK_MAX).clamp(ASK_MIN, ASK_MAX);
        upstream.asked.len() < most
    }

    /// Returns the group of an upstream that fewest of the others have, of those that are neither here nor
    /// requested.
    fn rarest(&self, id: UpstreamId) -> Option<u64> {
        let own = &self.upstreams[&id].has;
        let share = self.upstreams[&id].candidate.share;
        let candidate = &self.upstreams[&id].candidate;
        let others = self
            .open_ones()
            .filter(|(_, other)| matches!(other.lane, Lane::First(_)) && other.candidate != *candidate);
        let others: Vec<&Bits> = others.map(|(_, other)| &other.has).collect();
        if !share.is_all() {
            return self.first_of_share(id);
        }
        let words = own.words.len();
        let drawn = mix(self.config.seed, self.verified.count, u64::from(id.0));
        let (start, turn) = (drawn as usize % words, (drawn >> 32) as u32 % 64);
        let (mut best, mut looked): (Option<(usize, u64)>, usize) = (None, 0);
        for at in (start..words).chain(0..start) {
            let free = own.words[at] & !(self.verified.words[at] | self.pending.words[at]);
            // From another bit on at each receiver.
            let mut turned = free.rotate_right(turn);
            while turned != 0 {
                let bit = (turned.trailing_zeros() + turn) % 64;
                turned &= turned - 1;
                let have = others.iter().filter(|has| has.words[at] >> bit & 1 == 1).count();
                if best.is_none_or(|(fewest, _)| have < fewest) {
                    best = Some((have, at as u64 * 64 + u64::from(bit)));
                }
                looked += 1;
            }
            if looked >= LOOKED_MAX || best.is_some_and(|(have, _)| have == 0) {
                break;
            }
        }
        best.map(|(_, group)| group)
    }

    /// The first group of its share that an upstream has and that is neither here nor requested. No other
    /// member of this end's rack or zone gets it from there: in order it comes when it is expected.
    fn first_of_share(&self, id: UpstreamId) -> Option<u64> {
        let upstream = &self.upstreams[&id];
        upstream.has.words.iter().enumerate().find_map(|(at, word)| {
            let free = word & !(self.verified.words[at] | self.pending.words[at]);
            let mine = free & word_of(upstream.candidate.share, at);
            (mine != 0).then(|| at as u64 * 64 + u64::from(mine.trailing_zeros()))
        })
    }

    /// A group that this end ought to get elsewhere, where an upstream has long been asked for all of its own
    /// share: the one that brings it there does not, or is far slower. It brings the first ones first, so the
    /// last one is taken.
    fn beyond_share(&self, now: Time, id: UpstreamId) -> Option<u64> {
        let upstream = &self.upstreams[&id];
        let began_at = self.behind_head().map_or(Time::ZERO, |behind| behind.since);
        let after = self.lacking_after().max(now.since(began_at) / IDLE_PART);
        if upstream.asked.len() >= ASK_MIN || now.since(upstream.asked_at) < after {
            return None;
        }
        upstream.has.words.iter().enumerate().rev().find_map(|(at, word)| {
            let free = word & !(self.verified.words[at] | self.pending.words[at]);
            let groups = (0..64u64).rev().filter(|bit| free >> bit & 1 == 1).map(|bit| at as u64 * 64 + bit);
            { groups }.find(|group| self.is_owed(id, *group))
        })
    }

    /// A group that another upstream was asked for, and that this one gives much sooner.
    fn late_elsewhere(&self, now: Time, id: UpstreamId) -> Option<u64> {
        let own = &self.upstreams[&id];
        let group_len = u64::from(self.config.group_len);
        let own_time = own.time_of(group_len) * (own.asked.len() as u64 + 1);
        let behind = self.behind_head();
        let waits = |upstream: &Upstream| {
            let each = upstream.time_of(group_len);
            let since = now.since(upstream.heard_at);
            // What comes from another rack or zone comes once, however long it takes.
            let after = match behind {
                Some(_) => self.lacking_after(),
                None => LATE_AFTER.max(each * LATE_TIMES),
            };
            match since >= after {
                true => (STALLED_MOST, STALLED_MOST),
                false if behind.is_some() => (Duration::ZERO, Duration::ZERO),
                false => (each, Duration::ZERO),
            }
        };
        let mut latest: Option<(Duration, u64)> = None;
        for (_, other) in self.open_ones().filter(|(other, _)| **other != id) {
            let (each, more) = waits(other);
            for (at, (group, _)) in other.asked.iter().enumerate() {
                let comes_in = more + each * (at as u64 + 1);
                // One that has come and waits for its hash is not late.
                let lacks = !self.verified.get(*group) && !self.unverified.get(*group);
                let may_ask = own.has.get(*group) && own.candidate.share.contains(*group);
                let may = lacks && may_ask && self.times_asked(*group) == 1;
                if may && latest.is_none_or(|(latest, _)| comes_in > latest) {
                    latest = Some((comes_in, *group));
                }
            }
        }
        let is_worth_it = |comes_in: Duration| comes_in >= own_time * SOONER_TIMES + SOONER_BY;
        latest.filter(|(comes_in, _)| is_worth_it(*comes_in)).map(|(_, group)| group)
    }

    /// Returns the number of upstreams that a group is requested from.
    fn times_asked(&self, group: u64) -> usize {
        let asked = self.upstreams.values().flat_map(|upstream| &upstream.asked);
        asked.filter(|(asked, _)| *asked == group).count()
    }
}

impl Upstream {
    /// Returns the time that `bytes` bytes take from it.
    fn time_of(&self, bytes: u64) -> Duration {
        self.rate.time_of(bytes).unwrap_or(GROUP_TIME_UNKNOWN)
    }
}
