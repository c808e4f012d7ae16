//! Number of connections to a candidate, its lanes.
//!
//! Some networks limit the rate of each flow, and not that of a host: there several connections bring several
//! times as much. Elsewhere they bring no more, or take from others on the path. A receiver tells the two
//! apart by what it gets: it tries more lanes for a moment, and keeps them only if each brings about as much
//! as one alone did. So flows beside it, which share a path with it, never lose more than a tenth by that.

use super::super::mix;
use super::{Lane, Output, State, Upstream, UpstreamId, Upstreams};
use alloc::vec;
use alloc::vec::Vec;
use polycast_types::{Duration, Time};
use polycast_wire::control::Fault;

/// Most lanes to one candidate, and to all together. Clouds limit flows to a tenth or a twentieth of what a
/// host has; a source with eight takers serves 64 connections.
const LANES_MAX: usize = 16;
const ALL_LANES_MAX: usize = 64;
/// Bytes are counted over so long: many round trips inside a data center, and some groups at 100 Mbit/s.
const WINDOW: Duration = Duration::from_millis(100);
/// A trial ends after so many windows: new connections begin slowly, and a limit lets the first bytes pass.
const TRIAL_WINDOWS: u32 = 5;
/// It ends after so many of them if no more comes than so many twentieths of what came before it: the path is
/// full.
const FULL: (u32, u64) = (2, 21);
/// Number of windows whose mean counts if the rate changes from one to the next: a flow that has lost much at
/// a limit stands still for 200 ms, TCP's shortest timeout.
const ROUGH_WINDOWS: u32 = 8;
/// Each lane has to bring so many tenths of what one alone brought; the second if the rate changes from
/// window to window, and a mean is that much off.
const KEPT_TENTHS: (u64, u64) = (9, 8);
/// Lanes are given up if each brings less than so many tenths of that in the mean of [`ROUGH_WINDOWS`]: other
/// traffic has come, or a trial was wrong.
const HELD_TENTHS: (u64, u64) = (8, 7);
/// Something is requested all the time if it is for so many tenths of it.
const BUSY_TENTHS: u64 = 9;
/// The next trial after one that did not help comes so much later, and twice as late each time.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// The next one may come after the first pause if less than so many tenths come of what came during one that
/// did not help: what was full then is not what holds this end now.
const HUNGRY_TENTHS: u64 = 9;
/// Lanes are for receivers that know so few other ones. With more of them a receiver has five connections,
/// and each brings more or less as the others do, so that trials go wrong (`tests/overlay`, if all receivers
/// try: half as long again beside one that stops, 1.4 times as long if none can be reached).
const MEMBERS_MAX: usize = 2;
/// None begins so soon after this end has said that groups lack.
const AFTER_LACKING: Duration = Duration::from_millis(500);
/// None begins if all that is missing comes within so long.
const REST_MIN: Duration = Duration::from_secs(1);

/// Bytes that have come from a candidate, and the time in which something was requested, summed over its
/// lanes.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    bytes: u64,
    busy: Duration,
}

impl Sums {
    /// Bytes a second while something was requested.
    fn rate(self) -> u64 {
        let rate = u128::from(self.bytes) * 1_000_000_000 / u128::from(self.busy.0.max(1));
        u64::try_from(rate).unwrap_or(u64::MAX)
    }
}

/// Windows in a row in which something was requested all the time.
#[derive(Clone, Copy, Debug, Default)]
struct Row {
    windows: u32,
    sums: Sums,
}

impl Row {
    fn add(&mut self, sums: Sums) {
        self.windows += 1;
        self.sums.bytes += sums.bytes;
        self.sums.busy = self.sums.busy + sums.busy;
    }
}

/// Finding of one window about a candidate.
#[derive(Clone, Copy, Debug)]
struct Seen {
    /// Bytes a second of each lane while something was requested of it.
    each: u64,
    /// Set if something was requested all the time, of all lanes.
    is_busy: bool,
}

/// A time over which bytes were counted.
#[derive(Clone, Copy, Debug)]
struct Window {
    since: Time,
    /// Set if it, or the one before, is far longer than it should be: this end has stood still, and then
    /// taken what waited.
    is_late: bool,
    /// Bytes a second that came from all candidates, and in the mean of the last windows.
    all: u64,
    mean: u64,
    /// Time until all that is missing is here, at this rate.
    rest: Duration,
    /// Set if far more has come before, in a trial that did not help.
    is_hungry: bool,
    /// Set if this end has just said that groups lack: what it gets is not what its connections could bring.
    is_lacking: bool,
}

/// Result of a look at the lanes of a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Looked {
    /// There is nothing to do.
    Nothing,
    /// More lanes may be tried.
    MayTry,
    /// A trial has not helped.
    Failed,
}

/// Time of the next trial.
#[derive(Clone, Copy, Debug)]
struct Next {
    at: Time,
    /// Time of it where too little comes.
    soon: Time,
    pause: Duration,
    /// Number that differs between receivers, and candidates: those that try at the same time disturb each
    /// other.
    seed: u64,
}

impl Next {
    fn new(seed: u64) -> Self {
        Next { at: Time::ZERO, soon: Time::ZERO, pause: PAUSE.0, seed }
    }

    /// Puts it off: by half of the pause up to one and a half.
    fn put_off(&mut self, now: Time) {
        self.seed = mix(self.seed, 1, 1);
        self.at = now + self.pause / 2 + Duration(self.seed % self.pause.0);
        self.soon = now + PAUSE.0 / 2 + Duration(self.seed % PAUSE.0.0);
        self.pause = (self.pause * 2).min(PAUSE.1);
    }

    fn is_due(&self, now: Time, is_hungry: bool) -> bool {
        now >= self.at || (is_hungry && now >= self.soon)
    }
}

/// Counts of what comes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counting {
    /// Bytes that have come from all candidates.
    pub(super) came: u64,
    /// Most candidates beside the source that there were at a time.
    pub(super) members: usize,
    /// Set if groups were here before the first candidates: by the data channel, which has left this end
    /// behind. Its path is narrow, and more lanes would only bring late what lacks then.
    pub(super) had_channel: bool,
    /// End of the last window, and the bytes that had come by then.
    window: (Time, u64),
    /// Set if that was late.
    was_late: bool,
    /// Bytes a second in the mean of the last windows.
    mean: u64,
    /// Most bytes a second that came at the end of a trial that did not help.
    ceiling: u64,
    seed: u64,
}

impl Counting {
    /// Nothing has come.
    pub(super) fn new(seed: u64) -> Self {
        Counting {
            came: 0,
            members: 0,
            had_channel: false,
            window: (Time::ZERO, 0),
            was_late: true,
            mean: 0,
            ceiling: 0,
            seed,
        }
    }
}

/// A trial of more lanes.
#[derive(Clone, Copy, Debug)]
struct Trial {
    /// Number of lanes before it.
    from: usize,
    /// Windows since it began.
    windows: u32,
    /// Bytes a second that came from all candidates before it, and the sum of those in its windows.
    before: u64,
    all: u64,
}

/// The lanes of one candidate: their number, and what is known of more of them.
#[derive(Clone, Debug)]
pub(super) struct Lanes {
    /// Number of lanes that there are to be.
    wanted: usize,
    /// Bytes a second of one lane alone.
    alone: Option<u64>,
    /// Set if that is the mean of many windows that differ.
    is_rough: bool,
    row: Row,
    trial: Option<Trial>,
    /// So many lanes, or more, have not helped.
    too_many: usize,
    next: Next,
    /// Sums at the end of the last window, and when that was.
    counted_at: Option<Time>,
    counted: Sums,
    /// Sums of lanes that are closed.
    past: Sums,
    /// Finding of the window before.
    before: Option<Seen>,
    /// Set if this end took nothing in for a while since the window began.
    is_held_up: bool,
}

impl Lanes {
    /// One lane.
    pub(super) fn new(seed: u64) -> Self {
        Lanes {
            wanted: 1,
            alone: None,
            is_rough: false,
            row: Row::default(),
            trial: None,
            too_many: LANES_MAX + 1,
            next: Next::new(seed),
            counted_at: None,
            counted: Sums::default(),
            past: Sums::default(),
            before: None,
            is_held_up: false,
        }
    }

    /// Notes that this end takes nothing in for now.
    pub(super) fn hold_up(&mut self) {
        self.is_held_up = true;
    }

    /// Looks at what has come by `open` lanes in a window.
    fn look(&mut self, now: Time, open: usize, sums: Sums, window: Window) -> Looked {
        let span = now.since(window.since);
        let busy = Duration(sums.busy.0.saturating_sub(self.counted.busy.0));
        let came = Sums { bytes: sums.bytes.saturating_sub(self.counted.bytes), busy };
        let is_held_up = core::mem::take(&mut self.is_held_up) || window.is_late;
        let is_whole = self.counted_at == Some(window.since) && !is_held_up;
        (self.counted_at, self.counted) = (Some(now), sums);
        let is_busy = is_whole && busy.0 * 10 >= span.0 * open as u64 * BUSY_TENTHS;
        let seen = Seen { each: came.rate(), is_busy };
        match is_busy {
            true => self.row.add(came),
            false => self.row = Row::default(),
        }
        let before = self.before.replace(seen);
        if let Some(trial) = self.trial {
            let trial =
                Trial { windows: trial.windows + 1, all: trial.all.saturating_add(window.all), ..trial };
            if !self.judge(now, trial, open, (seen, window)) {
                return Looked::Failed;
            }
        } else if self.wanted > 1 {
            self.hold(now);
        } else {
            self.learn(before, seen);
        }
        let is_due = window.rest >= REST_MIN && self.next.is_due(now, window.is_hungry);
        let is_due = is_due && !window.is_lacking;
        let is_known = is_busy && self.alone.is_some_and(|rate| rate > 0);
        match self.trial.is_none() && is_due && is_known && self.brings_enough(seen) {
            true => Looked::MayTry,
            false => Looked::Nothing,
        }
    }

    /// Returns true if each of several lanes brings what one alone did: those that do not may have to be
    /// given up before more are tried.
    fn brings_enough(&self, seen: Seen) -> bool {
        match self.is_rough {
            _ if self.wanted == 1 => true,
            // They have just been judged.
            true => self.row.windows == 0,
            false => is_tenths(seen.each, self.alone.unwrap_or(0), KEPT_TENTHS.0),
        }
    }

    /// Learns how much one lane alone brings: from two windows that are alike, or from many. A connection
    /// that still becomes faster says nothing of others.
    fn learn(&mut self, before: Option<Seen>, seen: Seen) {
        let is_like = |before: &Seen| before.is_busy && before.each.abs_diff(seen.each) <= before.each / 8;
        let like = before.filter(|before| seen.is_busy && is_like(before));
        self.is_rough = like.is_none();
        self.alone = match like {
            Some(before) => Some((before.each + seen.each) / 2),
            None => (self.row.windows >= ROUGH_WINDOWS).then(|| self.row.sums.rate()),
        };
        if self.row.windows >= 2 * ROUGH_WINDOWS {
            let Sums { bytes, busy } = self.row.sums;
            self.row = Row { windows: ROUGH_WINDOWS, sums: Sums { bytes: bytes / 2, busy: busy / 2 } };
        }
    }

    /// Begins a trial of more lanes, if more may help: twice as many, or half the way to what did not help.
    fn begin(&mut self, window: Window) {
        let twice = self.wanted * 2;
        let next = if twice < self.too_many { twice } else { usize::midpoint(self.wanted, self.too_many) };
        let next = next.min(LANES_MAX);
        if next > self.wanted {
            let before = if self.is_rough { window.mean } else { window.all };
            self.trial = Some(Trial { from: self.wanted, windows: 0, before, all: 0 });
            (self.wanted, self.row) = (next, Row::default());
        }
    }

    /// Judges a trial: it has helped if each lane brings what one alone did, and that has come in more. Gives
    /// false where it has not.
    fn judge(&mut self, now: Time, trial: Trial, open: usize, (seen, window): (Seen, Window)) -> bool {
        let (most, is_enough, each, all) = match self.is_rough {
            false => (TRIAL_WINDOWS, !window.is_lacking, seen.each, window.all),
            true => {
                let is_enough = self.row.windows >= ROUGH_WINDOWS;
                let all = trial.all / u64::from(trial.windows);
                (ROUGH_WINDOWS + TRIAL_WINDOWS, is_enough, self.row.sums.rate(), all)
            }
        };
        let alone = self.alone.unwrap_or(u64::MAX);
        let kept = if self.is_rough { KEPT_TENTHS.1 } else { KEPT_TENTHS.0 };
        // With so much by each of twice as many lanes.
        let hoped = alone.saturating_mul((self.wanted - trial.from) as u64) / 10 * (2 * kept - 10);
        let has_more = all >= trial.before.saturating_add(hoped);
        let helps = open == self.wanted && seen.is_busy && has_more && is_tenths(each, alone, kept);
        let is_whole = open == self.wanted && !self.is_rough;
        let is_full = is_whole && trial.windows >= FULL.0 && all / FULL.1 < trial.before / 20;
        if is_enough && helps {
            if self.wanted + 1 >= self.too_many {
                self.too_many = LANES_MAX + 1;
            }
            (self.trial, self.row) = (None, Row::default());
        } else if trial.windows >= most || is_full || (is_enough && self.is_rough) {
            (self.trial, self.too_many, self.wanted) = (None, self.wanted, trial.from);
            self.row = Row::default();
            self.end_search(now);
            return false;
        } else {
            self.trial = Some(trial);
        }
        true
    }

    /// Puts further trials off where the next number is one that did not help: then comes one more.
    fn end_search(&mut self, now: Time) {
        if self.too_many <= self.wanted + 1 {
            self.too_many = self.wanted + 2;
            self.next.put_off(now);
        }
    }

    /// Returns true if more lanes than one have helped.
    fn have_helped(&self) -> bool {
        self.trial.map_or(self.wanted, |trial| trial.from) > 1
    }

    /// Gives lanes up that bring too little, and looks anew how much one brings.
    fn hold(&mut self, now: Time) {
        if self.row.windows < ROUGH_WINDOWS {
            return;
        }
        let row = core::mem::take(&mut self.row);
        let held = if self.is_rough { HELD_TENTHS.1 } else { HELD_TENTHS.0 };
        if !is_tenths(row.sums.rate(), self.alone.unwrap_or(0), held) {
            (self.wanted, self.alone, self.before) = (1, None, None);
            self.too_many = LANES_MAX + 1;
            self.next.put_off(now);
        }
    }

    /// A lane could not be opened, or has ended: there are no more than those that are left.
    fn lost_one(&mut self, now: Time, left: usize) {
        if self.wanted > left {
            (self.wanted, self.too_many, self.trial) = (left.max(1), left.max(1) + 1, None);
            self.end_search(now);
        }
    }
}

/// Returns true if a rate is at least so many tenths of another one.
fn is_tenths(rate: u64, of: u64, tenths: u64) -> bool {
    u128::from(rate) * 10 >= u128::from(of) * u128::from(tenths)
}

impl Upstreams {
    /// Looks how many lanes each candidate is to have, and opens or ends some.
    pub(super) fn look_at_lanes(&mut self, now: Time) {
        // Not before: the group that has just come by one is still to be taken in.
        let has_ended =
            |lane: &Upstream| lane.is_ending && lane.asked.is_empty() && !lane.candidate.is_source;
        let ended = self.upstreams.iter().filter(|(_, lane)| has_ended(lane)).map(|(id, _)| *id);
        let ended: Vec<UpstreamId> = ended.collect();
        ended.into_iter().for_each(|id| drop(self.drop_upstream(id)));
        if self.counting.members > MEMBERS_MAX || self.counting.had_channel {
            return;
        }
        let Some(window) = self.next_window(now) else { return };
        let first: Vec<UpstreamId> = self.first_ones().map(|(id, _)| id).collect();
        let (mut may_try, mut has_failed) = (Vec::new(), false);
        for id in &first {
            let (open, sums) = self.sums_of(now, *id);
            let first = self.upstreams.get_mut(id).expect("its number was just read");
            if first.state == State::Open {
                match first.lanes_mut().look(now, open, sums, window) {
                    Looked::Nothing => {}
                    Looked::MayTry => may_try.push(*id),
                    Looked::Failed => has_failed = true,
                }
            }
        }
        self.begin_trials(&may_try, has_failed, window);
        for id in first {
            self.fit_lanes(id);
        }
    }

    /// Begins trials. Until one has helped there is one at a time: many would disturb the others, and this
    /// end itself, for nothing where no flow has a limit.
    fn begin_trials(&mut self, may_try: &[UpstreamId], has_failed: bool, window: Window) {
        let have_helped = self.first_ones().any(|(_, first)| first.lanes().have_helped());
        let is_trying = self.first_ones().any(|(_, first)| first.lanes().trial.is_some());
        let Counting { ceiling, seed, .. } = &mut self.counting;
        if has_failed {
            *ceiling = window.all.max(*ceiling);
        }
        let begin: Vec<UpstreamId> = if have_helped {
            may_try.to_vec()
        } else if is_trying || may_try.is_empty() {
            Vec::new()
        } else {
            let drawn = mix(*seed, 2, self.verified.count) % may_try.len() as u64;
            vec![may_try[drawn as usize]]
        };
        for id in begin {
            self.upstreams.get_mut(&id).expect("just looked at").lanes_mut().begin(window);
        }
    }

    /// The window that ends now, if one does.
    fn next_window(&mut self, now: Time) -> Option<Window> {
        let (came, (since, counted)) = (self.counting.came, self.counting.window);
        let span = now.since(since);
        if span < WINDOW {
            return None;
        }
        self.counting.window = (now, came);
        let is_late = span >= WINDOW * 2;
        let was_late = core::mem::replace(&mut self.counting.was_late, is_late);
        let all = u128::from(came - counted) * 1_000_000_000 / u128::from(span.0);
        let missing =
            u128::from(self.config.groups - self.verified.count) * u128::from(self.config.group_len);
        let rest = Duration(u64::try_from(missing * 1_000_000_000 / all.max(1)).unwrap_or(u64::MAX));
        let all = u64::try_from(all).unwrap_or(u64::MAX);
        let mean = (self.counting.mean / 8).saturating_mul(7).saturating_add(all / 8);
        self.counting.mean = mean;
        let is_lacking = self.lacked_at.is_some_and(|at| now.since(at) < AFTER_LACKING);
        let is_hungry = !is_tenths(all, self.counting.ceiling, HUNGRY_TENTHS);
        Some(Window { since, is_late: is_late || was_late, all, mean, rest, is_hungry, is_lacking })
    }

    /// Returns the number of open lanes of a candidate, and the sums of all that there were.
    fn sums_of(&self, now: Time, first: UpstreamId) -> (usize, Sums) {
        let (mut open, mut sums) = (0, self.upstreams[&first].lanes().past);
        for (_, lane) in self.lanes_of(first) {
            sums.bytes += lane.rate.total();
            sums.busy = sums.busy + lane.rate.busy_until(now);
            open += usize::from(lane.state == State::Open && !lane.is_ending);
        }
        (open, sums)
    }

    /// The first lane of each candidate.
    fn first_ones(&self) -> impl Iterator<Item = (UpstreamId, &Upstream)> {
        let is_first = |upstream: &Upstream| matches!(upstream.lane, Lane::First(_));
        self.upstreams.iter().map(|(id, upstream)| (*id, upstream)).filter(move |(_, own)| is_first(own))
    }

    /// All lanes of the candidate with this first one, in the order in which they were opened.
    fn lanes_of(&self, first: UpstreamId) -> impl Iterator<Item = (UpstreamId, &Upstream)> {
        let is_its = move |id: UpstreamId, upstream: &Upstream| match upstream.lane {
            Lane::First(_) => id == first,
            Lane::Further(of) => of == first,
        };
        self.upstreams.iter().map(|(id, upstream)| (*id, upstream)).filter(move |(id, own)| is_its(*id, own))
    }

    /// Opens or ends lanes of a candidate, so that there are as many as there are to be.
    fn fit_lanes(&mut self, first: UpstreamId) {
        let Some(wanted) = self.upstreams.get(&first).map(|first| first.lanes().wanted) else { return };
        let there = self.lanes_of(first).filter(|(_, lane)| !lane.is_ending).count();
        let others = self.upstreams.len() - there;
        let wanted = wanted.min(ALL_LANES_MAX.saturating_sub(others)).max(1);
        match wanted.checked_sub(there) {
            Some(more) => self.widen(first, more),
            None => self.narrow(first, there - wanted),
        }
    }

    fn widen(&mut self, first: UpstreamId, more: usize) {
        for _ in 0..more {
            let candidate = self.upstreams[&first].candidate.clone();
            let id = self.add_upstream(candidate.clone(), Lane::Further(first), State::Opening);
            self.outputs.push_back(Output::Open(id, candidate));
        }
    }

    /// Ends the last lanes of a candidate, when what they are to bring has come.
    fn narrow(&mut self, first: UpstreamId, fewer: usize) {
        let further = self.lanes_of(first).filter(|(id, lane)| *id != first && !lane.is_ending);
        let mut further: Vec<UpstreamId> = further.map(|(id, _)| id).collect();
        for id in further.split_off(further.len().saturating_sub(fewer)) {
            let lane = self.upstreams.get_mut(&id).expect("its number was just read");
            lane.is_ending = true;
            match lane.state {
                State::Open if lane.candidate.is_source => self.outputs.push_back(Output::Finish(id)),
                State::Open => {}
                State::Opening | State::Closed => drop(self.drop_upstream(id)),
            }
        }
    }

    /// A further lane is gone: what it was to bring comes by others.
    pub(super) fn lose_lane(&mut self, now: Time, id: UpstreamId, first: UpstreamId) {
        let was_ending = self.upstreams.get(&id).is_some_and(|lane| lane.is_ending);
        self.drop_upstream(id);
        let left = self.lanes_of(first).filter(|(_, lane)| !lane.is_ending).count();
        if let Some(first) = self.upstreams.get_mut(&first).filter(|_| !was_ending) {
            first.lanes_mut().lost_one(now, left);
        }
    }

    /// Drops the further lanes of a candidate that is gone, and notes what one has brought that is.
    pub(super) fn settle_lanes(&mut self, id: UpstreamId, gone: &Upstream) {
        match gone.lane {
            Lane::First(_) => {
                let further: Vec<UpstreamId> = self.lanes_of(id).map(|(lane, _)| lane).collect();
                further.into_iter().for_each(|lane| drop(self.drop_upstream(lane)));
            }
            Lane::Further(first) => {
                if let Some(first) = self.upstreams.get_mut(&first) {
                    let past = &mut first.lanes_mut().past;
                    past.bytes += gone.rate.total();
                    past.busy = past.busy + gone.rate.total_busy();
                }
            }
        }
    }

    /// Returns the first lane of a candidate by any of its lanes, and whether a fault of this one is the
    /// candidate's.
    pub(super) fn blamed_by(&self, id: UpstreamId, fault: Fault) -> Option<(UpstreamId, bool)> {
        match self.upstreams.get(&id)?.lane {
            Lane::First(_) => Some((id, true)),
            Lane::Further(first) => Some((first, matches!(fault, Fault::WrongBytes | Fault::Foreign))),
        }
    }

    /// Checks what always holds of lanes.
    pub(super) fn check_lanes(&self) {
        for (id, upstream) in &self.upstreams {
            match &upstream.lane {
                Lane::First(lanes) => {
                    assert!((1..=LANES_MAX).contains(&lanes.wanted), "{} lanes", lanes.wanted);
                    assert!(!upstream.is_ending, "the first lane of a candidate ends with it");
                    let there = self.lanes_of(*id).filter(|(_, lane)| !lane.is_ending).count();
                    assert!(there <= LANES_MAX, "{there} lanes");
                }
                Lane::Further(first) => {
                    let is_first = |first: &Upstream| matches!(first.lane, Lane::First(_));
                    assert!(
                        self.upstreams.get(first).is_some_and(is_first),
                        "lane {id:?} is of no candidate"
                    );
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
