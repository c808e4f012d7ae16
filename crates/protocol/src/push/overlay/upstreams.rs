//! Choice of the groups that a receiver fetches from each of its candidates.
//!
//! A receiver alone sees, on its own connections, what each upstream has and what it gives. So it decides: it
//! requests from each of its candidates as much as comes from it in [`AHEAD`], the rarest group first, and
//! takes back from one that is late what another one has too. One that stalls, or gives wrong bytes, is
//! dropped, and the source is notified of it. Only groups that none of them has after a while are requested
//! from the source.

mod choice;
mod lanes;
mod rate;

use super::mix;
use crate::bits::Bits;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::net::IpAddr;
use core::ops::Range;
use lanes::{Counting, Lanes};
use polycast_types::{Duration, RangeSet, Time};
use polycast_wire::control::{Fault, OVERLAY_RANGES_MAX, Share};
use rate::RateMeter;

/// Requests are out for what comes from an upstream in so long: longer than a round trip inside a data center
/// with its queues, and short beside a transfer. What is asked for cannot be asked of another one meanwhile.
const AHEAD: Duration = Duration::from_millis(10);
/// Fewest and most groups that are asked of an upstream at a time. With two there is always one on its way;
/// 16 are 4 MiB.
const ASK_MIN: usize = 2;
const ASK_MAX: usize = 16;
/// A group is asked of a second upstream, too, where that one gives it so many times sooner, and so much
/// sooner.
const SOONER_TIMES: u64 = 3;
const SOONER_BY: Duration = Duration::from_millis(20);
/// An upstream that was asked, and of which nothing has come for so many times what a group takes of the
/// others, is dropped; the least time where it has given something, and where it never has, and the most.
/// With three upstreams in the place of four a receiver falls behind the others; it costs one that only stood
/// still a connection. One of which bytes come, and in so many times that no whole group, is dropped, too,
/// however long that is: it could say that it has what none has, and keep it back.
const STALLED_TIMES: u64 = 16;
const STALLED_AFTER: Duration = Duration::from_millis(500);
const NEVER_GAVE_AFTER: Duration = Duration::from_millis(150);
/// The least time where a head brings the bytes: many share a path between racks or zones.
const STALLED_OUTSIDE: Duration = Duration::from_secs(2);
const STALLED_MOST: Duration = Duration::from_secs(10);
/// Time that a group takes from an upstream from which nothing has come yet.
const GROUP_TIME_UNKNOWN: Duration = Duration::from_millis(50);
/// A group that comes before one that was here so long ago, and that no upstream has, is lacking: so long as
/// so many groups take at the rate of this end, between these times. Several times what a group takes through
/// the mesh.
const LACKING_GROUPS: u64 = 32;
const LACKING_AFTER: (Duration, Duration) = (Duration::from_millis(125), Duration::from_secs(10));
/// The least where heads bring the bytes: what the source gives instead crosses the path to the rack or zone
/// once more, and a processor that stands still for a quarter of a second is no reason for that.
const LACKING_BEHIND: Duration = Duration::from_millis(500);
/// The same where nothing has come yet, the most where no member is open, and what a group may take of the
/// only one that has it.
const LACKING_UNKNOWN: Duration = Duration::from_secs(1);
/// Groups that upstreams have and that are neither here nor asked for: what is behind them takes longer, at
/// this receiver and at as many before it, since all have the same rest to fetch where their processors or
/// paths are slower than the source.
const QUEUES: u64 = 4;
/// The source is told so often what is lacking, in times of that.
const LACK_TIMES: u64 = 2;
/// A receiver that has done nothing for so long has stood still itself, and says nothing of others for that.
const OWN_PAUSE: Duration = Duration::from_millis(500);
/// The highest group is noted so often.
const NOTE_INTERVAL: Duration = Duration::from_millis(50);

/// Settings.
#[derive(Clone, Copy, Debug)]
pub struct UpstreamsConfig {
    /// Number of hash groups of the object.
    pub groups: u64,
    /// Bytes of each, but for the last one.
    pub group_len: u32,
    /// Start of the choice among groups that are equally rare: it has to differ between receivers.
    pub seed: u64,
}

/// An upstream, numbered in the order in which the source has named them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UpstreamId(pub u32);

/// Address of a candidate.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Candidate {
    /// Its address.
    pub address: IpAddr,
    /// TCP port.
    pub port: u16,
    /// The name in its certificate, where ends show certificates.
    pub name: Option<alloc::string::String>,
    /// Set for the source: it chooses what it gives, and gets no requests.
    pub is_source: bool,
    /// Groups that may be requested from it.
    pub share: Share,
}

/// Reason not to connect to a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The source cannot have seen a receiver come from there.
    #[error("no receiver can have come to the source from there")]
    Elsewhere,
    /// It is this end.
    #[error("that is this end itself")]
    Oneself,
}

impl Candidate {
    /// Checks that a receiver that listens at `own` may connect to it, where its source is at `source`: a
    /// source has learned where receivers are as they came to it, and none comes from a group address, or
    /// from a loopback address to a source that has another one.
    ///
    /// # Errors
    /// The reason, if it may not.
    pub fn check(&self, own: (IpAddr, u16), source: IpAddr) -> Result<(), Refused> {
        let is_host = self.port != 0 && is_host(self.address);
        if !is_host || (self.address.is_loopback() && !source.is_loopback()) {
            Err(Refused::Elsewhere)
        } else if (self.address, self.port) == own {
            Err(Refused::Oneself)
        } else {
            Ok(())
        }
    }
}

/// Returns true if packets can come from the address.
fn is_host(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => {
            // 0.0.0.0/8 is this host, and 224.0.0.0 and above are groups and what is reserved.
            let [first, ..] = address.octets();
            first != 0 && first < 224
        }
        IpAddr::V6(address) => !address.is_unspecified() && !address.is_multicast(),
    }
}

/// Events that the receiver's end handles.
#[derive(Clone, Debug)]
pub enum Input<'a> {
    /// The source names the candidates; those that were named before and are not now are no members any more.
    Candidates {
        /// All of them.
        all: &'a [Candidate],
        /// Set if the bytes come into this end's rack or zone by one member, in no order.
        is_behind_head: bool,
    },
    /// A connection is there.
    Opened(UpstreamId),
    /// A connection could not be made, or has ended.
    Closed(UpstreamId, Fault),
    /// Bytes have come from it.
    Heard(UpstreamId, u64),
    /// It has these groups, too.
    Has(UpstreamId, &'a [Range<u64>]),
    /// A group has come whole.
    Came(UpstreamId, u64),
    /// A group that has come from it is not what it should be.
    Wrong(UpstreamId, u64),
    /// A group is verified and stored, wherever it came from.
    Verified(u64),
    /// This end takes nothing in for now: what it has waits for hashes.
    HeldUp,
    /// Time has gone by.
    Tick,
}

/// Actions to take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Connect to this candidate.
    Open(UpstreamId, Candidate),
    /// Ask it for these groups.
    Ask(UpstreamId, Vec<u64>),
    /// Close the connection to it.
    Close(UpstreamId),
    /// Say to the source that it is to give nothing more by this connection, and read what it has sent.
    Finish(UpstreamId),
    /// Tell the source that it was of no use.
    Lost(Candidate, Fault),
    /// Tell the source that none of the candidates has these groups; all that are missing where there is no
    /// candidate left.
    Lacks(Vec<Range<u64>>),
}

/// State of the connection to a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Closed,
    Opening,
    Open,
}

/// Place of a connection among those to the same candidate.
#[derive(Clone, Debug)]
enum Lane {
    /// The one that stands for the candidate.
    First(Lanes),
    /// Another one beside that.
    Further(UpstreamId),
}

/// A connection to a candidate.
#[derive(Clone, Debug)]
struct Upstream {
    candidate: Candidate,
    lane: Lane,
    state: State,
    /// Nothing more is to come by it than what it was asked for.
    is_ending: bool,
    has: Bits,
    /// Groups that were requested from it, in order: it serves in that order.
    asked: VecDeque<(u64, Time)>,
    rate: RateMeter,
    /// Time when something last came from it, or it got a request after a time without any; and when a whole
    /// group did.
    heard_at: Time,
    gave_at: Time,
    /// Time of the last request for a group of its share.
    asked_at: Time,
}

/// State of a receiver whose bytes a head brings.
#[derive(Clone, Copy, Debug)]
struct Behind {
    /// Time at which a head was first to bring them, and the number of groups here then.
    since: Time,
    had: u64,
    /// Number of times that this end has said what it lacks since a group came from a member.
    unheeded: u32,
}

impl Behind {
    /// Number of groups that it says it lacks: no more than what ought to have come by now. Where the source
    /// alone gives anything, twice as many each time, or its waits for a head would grow with the object.
    fn lacking_most(self) -> u64 {
        LACKING_GROUPS << self.unheeded.min(32)
    }
}

impl Upstream {
    /// A group has come from it, or what has not come is not its fault.
    fn is_heard(&mut self, now: Time) {
        (self.heard_at, self.gave_at) = (now, now);
    }

    fn lanes(&self) -> &Lanes {
        let Lane::First(lanes) = &self.lane else { unreachable!("a first lane is asked for its number") };
        lanes
    }

    fn lanes_mut(&mut self) -> &mut Lanes {
        let Lane::First(lanes) = &mut self.lane else { unreachable!("a first lane is asked for its number") };
        lanes
    }
}

/// The receiver's end of the overlay: `handle` what happens, then `poll` until `None`, and again at
/// `deadline`.
#[derive(Debug)]
pub struct Upstreams {
    config: UpstreamsConfig,
    upstreams: BTreeMap<UpstreamId, Upstream>,
    next_id: u32,
    verified: Bits,
    /// Groups that were asked of some upstream, and are not verified; and those of them that have come.
    pending: Bits,
    unverified: Bits,
    /// Number of groups that upstreams have had lately that were neither here nor requested.
    backlog: u64,
    /// One more than the highest group that is here, and what it was at earlier times.
    highest: u64,
    noted: VecDeque<(Time, u64)>,
    lacked_at: Option<Time>,
    /// Set if a head is to bring the bytes.
    behind_head: Option<Behind>,
    counting: Counting,
    /// Time of the last event, and of the last group that was verified.
    active_at: Time,
    progress_at: Time,
    outputs: VecDeque<Output>,
}

impl Upstreams {
    /// A receiver that has nothing, and knows no candidate.
    #[must_use]
    pub fn new(config: UpstreamsConfig) -> Self {
        Upstreams {
            upstreams: BTreeMap::new(),
            next_id: 0,
            verified: Bits::new(config.groups),
            pending: Bits::new(config.groups),
            unverified: Bits::new(config.groups),
            backlog: 0,
            highest: 0,
            noted: VecDeque::new(),
            lacked_at: None,
            behind_head: None,
            counting: Counting::new(mix(config.seed, 3, 3)),
            active_at: Time::ZERO,
            progress_at: Time::ZERO,
            outputs: VecDeque::new(),
            config,
        }
    }

    /// Takes in what has happened.
    pub fn handle(&mut self, now: Time, input: Input<'_>) {
        if now.since(self.active_at) >= OWN_PAUSE {
            self.upstreams.values_mut().for_each(|upstream| upstream.is_heard(now));
            self.noted.clear();
            self.progress_at = now;
        }
        self.active_at = now;
        match input {
            Input::Candidates { all, is_behind_head } => {
                if !is_behind_head {
                    self.behind_head = None;
                } else if self.behind_head.is_none() {
                    self.behind_head = Some(Behind { since: now, had: self.verified.count, unheeded: 0 });
                    self.progress_at = now;
                }
                self.take_candidates(all);
            }
            Input::Opened(id) => self.opened(now, id),
            Input::Closed(id, fault) => self.lose(now, id, fault),
            Input::Heard(id, bytes) => {
                if let Some(upstream) = self.upstreams.get_mut(&id) {
                    upstream.heard_at = now;
                    upstream.rate.came(now, bytes);
                    self.counting.came = self.counting.came.saturating_add(bytes);
                }
                // A part of a group changes nothing.
                return;
            }
            Input::Has(id, ranges) => self.has(now, id, ranges),
            Input::Came(id, group) => self.came(now, id, group),
            Input::Wrong(id, group) => {
                if group < self.config.groups {
                    self.unverified.set(group, false);
                    self.release(group);
                }
                self.lose(now, id, Fault::WrongBytes);
            }
            Input::Verified(group) => {
                assert!(group < self.config.groups, "group {group} is none of the object's");
                // The source gives them in their order. What others say of groups is no sign of that.
                self.highest = self.highest.max(group + 1);
                self.progress_at = now;
                self.verified.set(group, true);
                self.pending.set(group, false);
                self.unverified.set(group, false);
            }
            Input::HeldUp => {
                for upstream in self.upstreams.values_mut() {
                    upstream.is_heard(now);
                    if let Lane::First(lanes) = &mut upstream.lane {
                        lanes.hold_up();
                    }
                }
                return;
            }
            Input::Tick => self.look_at_lanes(now),
        }
        self.look(now);
        if cfg!(debug_assertions) {
            self.check();
        }
    }

    /// Returns the next action.
    pub fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Returns the time when [`Input::Tick`] is due, if nothing else happens before.
    #[must_use]
    pub fn deadline(&self, now: Time) -> Option<Time> {
        let is_over = self.verified.count == self.config.groups || self.upstreams.is_empty();
        (!is_over).then(|| now + NOTE_INTERVAL)
    }

    /// Returns true if there is a connection to it, or is to be one.
    #[must_use]
    pub fn is_open(&self, id: UpstreamId) -> bool {
        self.upstreams.get(&id).is_some_and(|upstream| upstream.state != State::Closed)
    }

    fn take_candidates(&mut self, candidates: &[Candidate]) {
        let members = candidates.iter().filter(|candidate| !candidate.is_source).count();
        self.counting.members = self.counting.members.max(members);
        if self.next_id == 0 {
            self.counting.had_channel = self.verified.count > 0;
        }
        let gone = |upstream: &Upstream| !candidates.contains(&upstream.candidate);
        let gone: Vec<UpstreamId> =
            self.upstreams.iter().filter(|(_, upstream)| gone(upstream)).map(|(id, _)| *id).collect();
        for id in gone {
            self.drop_upstream(id);
        }
        for candidate in candidates {
            if self.upstreams.values().any(|upstream| upstream.candidate == *candidate) {
                continue;
            }
            let lanes = Lanes::new(mix(self.config.seed, u64::from(self.next_id), 0));
            self.add_upstream(candidate.clone(), Lane::First(lanes), State::Closed);
        }
    }

    /// Adds a connection of which nothing is known yet.
    fn add_upstream(&mut self, candidate: Candidate, lane: Lane, state: State) -> UpstreamId {
        let id = UpstreamId(self.next_id);
        self.next_id += 1;
        let upstream = Upstream {
            candidate,
            lane,
            state,
            is_ending: false,
            has: Bits::new(self.config.groups),
            asked: VecDeque::new(),
            rate: RateMeter::default(),
            heard_at: Time::ZERO,
            gave_at: Time::ZERO,
            asked_at: Time::ZERO,
        };
        self.upstreams.insert(id, upstream);
        id
    }

    fn opened(&mut self, now: Time, id: UpstreamId) {
        let opening = self.upstreams.get_mut(&id).filter(|upstream| upstream.state == State::Opening);
        let Some(upstream) = opening else { return };
        upstream.state = State::Open;
        upstream.asked_at = now;
        upstream.is_heard(now);
        if upstream.candidate.is_source {
            upstream.rate.begin(now);
        }
    }

    /// A candidate is of no use: it is closed, and the source hears of it.
    fn lose(&mut self, now: Time, id: UpstreamId, fault: Fault) {
        let Some((first, is_its)) = self.blamed_by(id, fault) else { return };
        if !is_its {
            return self.lose_lane(now, id, first);
        }
        let id = first;
        let Some(candidate) = self.drop_upstream(id) else { return };
        self.outputs.push_back(Output::Lost(candidate, fault));
        let has_member = self.upstreams.values().any(|upstream| !upstream.candidate.is_source);
        // One that the source has no room for would come again and again.
        let is_due = self.lacked_at.is_none_or(|at| now.since(at) >= LACKING_AFTER.0 * LACK_TIMES);
        if !has_member && is_due && self.verified.count < self.config.groups {
            // The source may give it all that it lacks. What others have not been given yet comes anyway.
            self.say_lacking(now, self.config.groups, Duration::ZERO);
        }
    }

    /// Forgets a candidate. What it was asked for may be asked of others.
    fn drop_upstream(&mut self, id: UpstreamId) -> Option<Candidate> {
        let upstream = self.upstreams.remove(&id)?;
        upstream.asked.iter().for_each(|(group, _)| self.release(*group));
        if upstream.state != State::Closed {
            self.outputs.push_back(Output::Close(id));
        }
        self.settle_lanes(id, &upstream);
        Some(upstream.candidate)
    }

    /// Lets a group be asked for again, unless it has come and waits for its hash, or another upstream is to
    /// bring it.
    fn release(&mut self, group: u64) {
        if !self.unverified.get(group) && !self.is_asked(group) {
            self.pending.set(group, false);
        }
    }

    /// Returns true if some upstream is to bring this group.
    fn is_asked(&self, group: u64) -> bool {
        self.upstreams.values().any(|upstream| upstream.asked.iter().any(|(asked, _)| *asked == group))
    }

    fn has(&mut self, now: Time, id: UpstreamId, ranges: &[Range<u64>]) {
        let groups = self.config.groups;
        let Some(upstream) = self.upstreams.get_mut(&id) else { return };
        if upstream.candidate.is_source
            || ranges.iter().any(|range| range.start >= range.end || range.end > groups)
        {
            return self.lose(now, id, Fault::Foreign);
        }
        for group in ranges.iter().cloned().flatten() {
            upstream.has.set(group, true);
        }
    }

    fn came(&mut self, now: Time, id: UpstreamId, group: u64) {
        let groups = self.config.groups;
        let Some(upstream) = self.upstreams.get_mut(&id) else { return };
        upstream.is_heard(now);
        if upstream.candidate.is_source && group < groups {
            return;
        }
        // It serves in the order in which it was asked.
        if upstream.asked.front().is_none_or(|(asked, _)| *asked != group) {
            return self.lose(now, id, Fault::Foreign);
        }
        upstream.asked.pop_front();
        if upstream.asked.is_empty() {
            upstream.rate.rest(now);
        }
        if let Some(behind) = &mut self.behind_head {
            behind.unheeded = 0;
        }
        if !self.verified.get(group) {
            self.unverified.set(group, true);
        }
    }

    /// Looks at what there is to do.
    fn look(&mut self, now: Time) {
        if self.verified.count == self.config.groups {
            return;
        }
        let usual = self.group_time(false) * STALLED_TIMES;
        let usual_of_all = self.group_time(true) * STALLED_TIMES;
        let behind = self.behind_head();
        let is_stalled = |upstream: &Upstream| {
            let least = match upstream.rate.total() {
                _ if behind.is_some() => STALLED_OUTSIDE,
                0 => NEVER_GAVE_AFTER,
                _ => STALLED_AFTER,
            };
            let after = usual.clamp(least, STALLED_MOST);
            let is_silent = now.since(upstream.heard_at) >= after;
            let has_given = upstream.rate.total() > 0;
            let none_after = match behind {
                Some(_) => STALLED_MOST,
                None => usual_of_all.max(STALLED_AFTER),
            };
            let gives_none = has_given && now.since(upstream.gave_at) >= none_after;
            !upstream.asked.is_empty() && (is_silent || gives_none)
        };
        let stalled: Vec<UpstreamId> =
            self.upstreams.iter().filter(|(_, upstream)| is_stalled(upstream)).map(|(id, _)| *id).collect();
        for id in stalled {
            let never_gave = self.upstreams.get(&id).is_some_and(|upstream| upstream.rate.total() == 0);
            self.lose(now, id, if never_gave { Fault::NeverGave } else { Fault::Stalled });
        }
        self.ask(now);
        self.open();
        self.note(now);
        self.tell_lacking(now);
    }

    /// Opens the candidates, of a short object no more than it has groups. With fewer than all of them open,
    /// those that many fetch from would hold a few receivers back for all of the transfer, with two in the
    /// place of four by 40 % (`tests/overlay`).
    fn open(&mut self) {
        // Where heads bring the bytes, each candidate has other groups.
        let needed = if self.behind_head().is_some() { u64::MAX } else { self.config.groups };
        let (mut open, most) = (0, usize::try_from(needed).unwrap_or(usize::MAX));
        for (id, upstream) in &mut self.upstreams {
            open += usize::from(!upstream.candidate.is_source);
            if upstream.state == State::Closed && (upstream.candidate.is_source || open <= most) {
                upstream.state = State::Opening;
                self.outputs.push_back(Output::Open(*id, upstream.candidate.clone()));
            }
        }
    }

    /// Notes how high groups are, to know later what must have come by then.
    fn note(&mut self, now: Time) {
        if self.noted.back().is_none_or(|(at, _)| now.since(*at) >= NOTE_INTERVAL) {
            self.noted.push_back((now, self.highest));
            self.backlog = self.waiting();
        }
        // The one before the first that is too young is the one that counts.
        let after = self.lacking_after();
        while self.noted.get(1).is_some_and(|(at, _)| now.since(*at) >= after) {
            self.noted.pop_front();
        }
    }

    /// Tells the source which groups none of the candidates has, though others were told of later ones a
    /// while ago.
    fn tell_lacking(&mut self, now: Time) {
        let Some(&(at, highest)) = self.noted.front() else { return };
        let after = self.lacking_after();
        let twice = match self.behind_head() {
            Some(_) => (after * LACK_TIMES).min(LACKING_AFTER.1),
            None => after * LACK_TIMES,
        };
        let is_due = self.lacked_at.is_none_or(|at| now.since(at) >= twice);
        if now.since(at) < after || !is_due {
            return;
        }
        // Where nothing comes any more, what lacks may be the last ones.
        let stands_still = now.since(self.progress_at) >= twice;
        if stands_still && self.lacked_at.is_some_and(|at| at >= self.progress_at) {
            self.drop_silent_source(now, twice);
        }
        // Where a head brings the bytes they come in no order.
        let is_ordered = self.behind_head().is_none();
        if !stands_still && !is_ordered {
            return;
        }
        let before = if stands_still { self.config.groups } else { highest };
        self.say_lacking(now, before, after);
    }

    /// Drops a source that stays silent although this end has reported what it lacks: the connection to it
    /// may be broken without either end knowing. The source names itself again where it receives such
    /// reports.
    fn drop_silent_source(&mut self, now: Time, after: Duration) {
        let is_silent = |upstream: &Upstream| {
            upstream.candidate.is_source
                && upstream.state == State::Open
                && now.since(upstream.heard_at) >= after
        };
        let silent = self.upstreams.iter().find(|(_, upstream)| is_silent(upstream)).map(|(id, _)| *id);
        if let Some(id) = silent {
            self.drop_upstream(id);
        }
    }

    fn say_lacking(&mut self, now: Time, before: u64, after: Duration) {
        let mut lacking = self.lacking(now, before, after);
        if !lacking.is_empty() {
            self.lacked_at = Some(now);
            // Where a head brings the bytes, they may come yet.
            let most = self.behind_head().map_or(u64::MAX, Behind::lacking_most);
            if let Some(behind) = &mut self.behind_head {
                behind.unheeded = behind.unheeded.saturating_add(1);
            }
            let beyond = lacking.iter().flatten().nth(usize::try_from(most).unwrap_or(usize::MAX));
            if let Some(beyond) = beyond {
                lacking.remove(beyond..self.config.groups);
            }
            self.outputs.push_back(Output::Lacks(lacking.iter().take(OVERLAY_RANGES_MAX).collect()));
        }
    }

    /// Returns the time that a group takes from an upstream, or also from the source, by the mean of those
    /// that have given something.
    fn group_time(&self, with_source: bool) -> Duration {
        let counts = |upstream: &&Upstream| {
            upstream.state == State::Open && (with_source || !upstream.candidate.is_source)
        };
        let open = self.upstreams.values().filter(counts);
        let rates: Vec<u64> = open.filter_map(|upstream| upstream.rate.bytes_per_s()).collect();
        let all = rates.iter().fold(0u64, |sum, rate| sum.saturating_add(*rate));
        if all == 0 {
            return GROUP_TIME_UNKNOWN;
        }
        let nanos = u128::from(self.config.group_len) * rates.len() as u128 * 1_000_000_000 / u128::from(all);
        Duration(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// Counts the groups that upstreams have and that are neither here nor requested.
    fn waiting(&self) -> u64 {
        let open: Vec<&Bits> = self.open_ones().map(|(_, upstream)| &upstream.has).collect();
        let words = self.verified.words.iter().zip(&self.pending.words).enumerate();
        let waits = |(at, (verified, pending)): (usize, (&u64, &u64))| {
            let had = open.iter().fold(0, |word, has| word | has.words[at]);
            u64::from((had & !(verified | pending)).count_ones())
        };
        words.map(waits).sum()
    }

    /// Returns the time that a group may take to get here.
    fn lacking_after(&self) -> Duration {
        if let Some(Behind { since, had, .. }) = self.behind_head() {
            // The path to the head counts, and no upstream's rate shows that one.
            let came = self.verified.count.saturating_sub(had);
            let each = self.progress_at.since(since).0.checked_div(came);
            let after = each.map_or(LACKING_AFTER.1, |each| Duration(each.saturating_mul(LACKING_GROUPS)));
            return after.clamp(LACKING_BEHIND, LACKING_AFTER.1);
        }
        let rates = self.upstreams.values().filter_map(|upstream| upstream.rate.bytes_per_s());
        let rate = rates.fold(0u64, u64::saturating_add);
        if rate == 0 {
            return LACKING_UNKNOWN;
        }
        let groups = LACKING_GROUPS + self.backlog * QUEUES;
        let bytes = u128::from(groups) * u128::from(self.config.group_len);
        let nanos = u64::try_from(bytes * 1_000_000_000 / u128::from(rate)).unwrap_or(u64::MAX);
        // The source alone gives each group once: what has not come by then was on a connection that has
        // ended. It knows what is on its way.
        let most = if self.open_ones().next().is_none() { LACKING_UNKNOWN } else { LACKING_AFTER.1 };
        Duration(nanos.clamp(LACKING_AFTER.0.0, most.0))
    }

    /// The groups before this one that are not here, and that no open upstream has that brings it in this
    /// time.
    fn lacking(&self, now: Time, before: u64, after: Duration) -> RangeSet {
        let mut lacking = RangeSet::new();
        let gives = |upstream: &Upstream| {
            let is_heard = now.since(upstream.heard_at) < after && now.since(upstream.gave_at) < STALLED_MOST;
            // What one far slower than the others brings in the end comes sooner from the source.
            let each = upstream.rate.time_of(self.config.group_len.into());
            let is_soon = each.is_none_or(|each| each <= after.min(LACKING_UNKNOWN));
            upstream.asked.is_empty() || (is_heard && is_soon)
        };
        let open = self.open_ones().filter(|(_, upstream)| gives(upstream));
        let open: Vec<(&Bits, Share)> =
            open.map(|(_, upstream)| (&upstream.has, upstream.candidate.share)).collect();
        for (at, verified) in self.verified.words.iter().enumerate().take(before.div_ceil(64) as usize) {
            let mut word = !(verified | self.unverified.words[at]);
            open.iter().for_each(|(has, share)| word &= !(has.words[at] & word_of(*share, at)));
            while word != 0 {
                let group = at as u64 * 64 + u64::from(word.trailing_zeros());
                if group < before {
                    lacking.insert(group..group + 1);
                }
                word &= word - 1;
            }
        }
        lacking
    }

    /// Returns true if a group is in the share of an open member other than this one, and none of them has
    /// it.
    fn is_owed(&self, id: UpstreamId, group: u64) -> bool {
        let own = &self.upstreams[&id].candidate;
        let others = self.open_ones().filter(|(_, other)| other.candidate != *own);
        let others = others.filter(|(_, upstream)| upstream.candidate.share.contains(group));
        let (has, owes) = others.fold((false, false), |(has, owes), (_, upstream)| {
            (has || upstream.has.get(group), owes || !upstream.candidate.share.is_all())
        });
        owes && !has
    }

    /// Returns how a head brings the bytes, if one may: none does to an end that has lost all other members.
    fn behind_head(&self) -> Option<Behind> {
        self.behind_head.filter(|_| self.upstreams.values().any(|upstream| !upstream.candidate.is_source))
    }

    /// The members that are open.
    fn open_ones(&self) -> impl Iterator<Item = (&UpstreamId, &Upstream)> {
        let is_open = |upstream: &Upstream| upstream.state == State::Open && !upstream.candidate.is_source;
        self.upstreams.iter().filter(move |(_, upstream)| is_open(upstream))
    }

    /// Checks what always holds.
    ///
    /// # Panics
    /// It does not hold.
    pub fn check(&self) {
        let counted = self.verified.agrees() && self.pending.agrees() && self.unverified.agrees();
        assert!(counted, "groups are counted wrong");
        let words = self.verified.words.iter().zip(&self.pending.words).zip(&self.unverified.words);
        let is_right = |((verified, pending), unverified): ((&u64, &u64), &u64)| {
            verified & pending == 0 && unverified & !pending == 0
        };
        assert!({ words }.all(is_right), "a group is here and pending, or has come without being asked for");
        self.check_lanes();
        for upstream in self.upstreams.values() {
            assert!(upstream.has.agrees() && upstream.asked.len() <= ASK_MAX);
            assert!(
                upstream.asked.is_empty() || upstream.state == State::Open,
                "one is asked that is not open"
            );
            for (group, _) in &upstream.asked {
                assert!(upstream.has.get(*group), "group {group} is asked of one that does not have it");
                let is_counted = self.pending.get(*group) != self.verified.get(*group);
                assert!(is_counted, "group {group} is pending, or here, and not both");
            }
        }
        let most = (LACKING_AFTER.1.0 / NOTE_INTERVAL.0) as usize + 2;
        assert!(self.noted.len() <= most, "too much is noted");
    }
}

/// The groups of a share among those of a word of bits.
fn word_of(share: Share, at: usize) -> u64 {
    if share.is_all() {
        return u64::MAX;
    }
    (0..64).filter(|bit| share.contains(at as u64 * 64 + bit)).fold(0, |word, bit| word | 1 << bit)
}

#[cfg(test)]
mod tests;
