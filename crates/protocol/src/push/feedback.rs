//! One voice of a rack's receivers towards a source: NACKs and acknowledgements of many hosts become one
//! (Orca appendix A.4).
//!
//! One receiver of the rack speaks for all of it, and this machine is what it has for that. A fragment that
//! several receivers have lost is asked for once: requests are gathered for a short time, and what has been
//! asked for is not asked for again before its answer can have come. The rack has what its slowest receiver
//! has, and the rack's reports say so. A receiver that keeps the rack back for too long is put out: it speaks
//! for itself from then on, and the source serves it as it serves any slow receiver.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::ops::Range;
use polycast_types::{Duration, RangeSet, Time};
use polycast_wire::control::{Control, MEMBERS_MAX, RANGES_MAX};

/// Times of a rack's feedback.
#[derive(Clone, Copy, Debug)]
pub struct FeedbackConfig {
    /// The speaker's own number.
    pub own: u32,
    /// Time for which requests are gathered, and reports where not every receiver has reported.
    pub gather: Duration,
    /// Time that the answer to a request may take: before that it is not repeated.
    pub hold: Duration,
    /// The rack's report is said again after this long, while its receivers live.
    pub heartbeat: Duration,
    /// For this long a receiver may lag behind the others.
    pub patience: Duration,
    /// Number of ranges that may wait; requests that do not fit are dropped, and come again from the hosts.
    pub ranges_max: usize,
}

impl FeedbackConfig {
    /// Returns the shipped settings, for the speaker with the number `own`.
    #[must_use]
    pub fn new(own: u32) -> Self {
        FeedbackConfig {
            own,
            gather: Duration::from_millis(1),
            // A receiver repeats a request later than that, and by itself.
            hold: Duration::from_millis(30),
            // As a receiver's own report.
            heartbeat: Duration::from_millis(50),
            patience: Duration::from_millis(100),
            ranges_max: 4_096,
        }
    }
}

/// Events in a rack's feedback on one transfer.
#[derive(Clone, Debug)]
pub enum FeedbackInput<'a> {
    /// A receiver of the rack, the speaker itself among them, has something for the source. One whose first
    /// PROGRESS this is is a member from then on.
    Said {
        /// Its number.
        member: u32,
        /// PROGRESS, or PTCH_REQ.
        control: &'a Control<'a>,
    },
    /// A receiver speaks for itself again, or is gone.
    Left {
        /// Its number.
        member: u32,
    },
}

/// Actions for the driver.
#[expect(clippy::large_enum_variant, reason = "each is moved once, and a box would be made for each frame")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FeedbackOutput {
    /// Send this to the source.
    ToSource(Control<'static>),
    /// Let this receiver speak for itself.
    PutOut {
        /// Its number.
        member: u32,
    },
}

/// Values of a receiver's last report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Row {
    position: u64,
    received: u64,
    lost: u64,
    verified_bytes: u64,
    arrived_ns: u64,
    waited_ns: u64,
}

/// A receiver of the rack.
#[derive(Debug)]
struct Member {
    row: Row,
    /// Since when it lacks what others have.
    behind_since: Option<Time>,
}

/// The feedback of one rack on one transfer.
#[derive(Debug)]
pub struct Feedback {
    config: FeedbackConfig,
    members: BTreeMap<u32, Member>,
    /// Position that was reported last, and the time when it is reported again.
    reported: u64,
    report_at: Option<Time>,
    /// Members that have said something since then.
    said: BTreeSet<u32>,
    gathered: RangeSet,
    ask_at: Option<Time>,
    /// Ranges that were requested, each with the time until which its request holds.
    asked: VecDeque<(Time, RangeSet)>,
    foreign: u64,
    outputs: VecDeque<FeedbackOutput>,
}

impl Feedback {
    /// Creates the feedback on a transfer, before any receiver has reported.
    #[must_use]
    pub fn new(config: FeedbackConfig) -> Self {
        Feedback {
            config,
            // What the rack has is at most what the speaker has, also before it has said anything.
            members: BTreeMap::from([(config.own, Member { row: Row::default(), behind_since: None })]),
            reported: 0,
            report_at: None,
            said: BTreeSet::new(),
            gathered: RangeSet::new(),
            ask_at: None,
            asked: VecDeque::new(),
            foreign: 0,
            outputs: VecDeque::new(),
        }
    }

    /// Takes in what happened.
    pub fn handle(&mut self, now: Time, input: FeedbackInput<'_>) {
        match input {
            FeedbackInput::Said { member, control } => match control {
                Control::Progress { position, received, lost, verified_bytes, arrived_ns, waited_ns } => {
                    let row = Row {
                        position: *position,
                        received: *received,
                        lost: *lost,
                        verified_bytes: *verified_bytes,
                        arrived_ns: *arrived_ns,
                        waited_ns: *waited_ns,
                    };
                    self.progress(now, member, row);
                }
                Control::PtchReq(ranges) if member == self.config.own && self.is_alone() => {
                    let control = Control::PtchReq(ranges.clone());
                    self.outputs.push_back(FeedbackOutput::ToSource(control));
                }
                Control::PtchReq(ranges) if self.members.contains_key(&member) => self.nack(now, ranges),
                _ => self.foreign += 1,
            },
            FeedbackInput::Left { member } => self.leave(now, member),
        }
        if cfg!(debug_assertions) {
            self.check();
        }
    }

    /// The next thing to do, until there is none.
    pub fn poll(&mut self, now: Time) -> Option<FeedbackOutput> {
        if self.ask_at.is_some_and(|at| at <= now) {
            self.ask_at = None;
            self.ask(now);
        }
        if self.report_at.is_some_and(|at| at <= now) {
            self.put_out(now);
            self.report(now);
        }
        self.outputs.pop_front()
    }

    /// Returns the time of the next poll even if nothing happens before.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        [self.ask_at, self.report_at].into_iter().flatten().min()
    }

    /// Messages of hosts that are no members, and messages that no receiver says here.
    #[must_use]
    pub fn foreign(&self) -> u64 {
        self.foreign
    }

    fn progress(&mut self, now: Time, number: u32, row: Row) {
        if !self.members.contains_key(&number) {
            if number != self.config.own && self.others() >= MEMBERS_MAX {
                self.foreign += 1;
                return;
            }
            self.members.insert(number, Member { row: Row::default(), behind_since: None });
            if number != self.config.own {
                self.name_members();
            }
        }
        if let Some(member) = self.members.get_mut(&number) {
            if row.position > member.row.position {
                member.behind_since = None;
            }
            member.row = row;
        }
        self.compare(now);
        self.said.insert(number);
        // Receivers report at different moments, and each moves the slowest a little: one report does for all
        // of them.
        let moves = self.position() > self.reported;
        if self.is_alone() || moves && self.members.keys().all(|member| self.said.contains(member)) {
            self.report(now);
        } else {
            let at = now + if moves { self.config.gather } else { self.config.heartbeat };
            self.report_at = Some(self.report_at.map_or(at, |before| before.min(at)));
        }
    }

    /// Finds out which members lack what others have.
    fn compare(&mut self, now: Time) {
        let best = self.best();
        for member in self.members.values_mut() {
            let behind = member.row.position < best;
            member.behind_since = behind.then(|| member.behind_since.unwrap_or(now));
        }
    }

    fn leave(&mut self, now: Time, number: u32) {
        if self.members.remove(&number).is_some() {
            self.said.remove(&number);
            self.compare(now);
            self.name_members();
            if self.position() > self.reported {
                self.report(now);
            }
        }
    }

    /// Looks whether the state agrees with itself, and its bounds hold.
    ///
    /// # Panics
    /// If it does not, which is our own mistake.
    pub fn check(&self) {
        let others = self.others();
        assert!(others <= MEMBERS_MAX, "a speaker speaks for {others} others, {MEMBERS_MAX} it may");
        assert!(self.said.iter().all(|number| self.members.contains_key(number)), "who speaks is a member");
        let (ranges, most) = (self.gathered.range_count(), self.config.ranges_max);
        assert!(ranges <= most, "{ranges} ranges are gathered, {most} may be");
        assert!(self.ask_at.is_some() || self.gathered.is_empty(), "what is gathered is asked for");
        assert!(self.asked.iter().all(|(_, asked)| asked.range_count() <= most), "all was gathered before");
        let untils = || self.asked.iter().map(|(until, _)| until);
        assert!(
            untils().zip(untils().skip(1)).all(|(one, next)| one <= next),
            "what is asked first holds first"
        );
        let best = self.best();
        let agrees = |member: &Member| (member.row.position < best) == member.behind_since.is_some();
        assert!(self.members.values().all(agrees), "who lacks nothing is not behind");
        assert!(self.is_alone() || self.report_at.is_some(), "a rack says that it lives");
    }

    /// Returns the number of receivers besides the speaker.
    fn others(&self) -> usize {
        self.members.len() - usize::from(self.members.contains_key(&self.config.own))
    }

    /// Tells the source for whom the speaker speaks.
    fn name_members(&mut self) {
        let others = self.members.keys().copied().filter(|number| *number != self.config.own).collect();
        self.outputs.push_back(FeedbackOutput::ToSource(Control::Rack(others)));
    }

    /// Puts out those that keep the rack back.
    fn put_out(&mut self, now: Time) {
        let patience = self.config.patience;
        let slow = |(number, member): (&u32, &Member)| {
            member.behind_since.is_some_and(|since| now.since(since) >= patience).then_some(*number)
        };
        let slow: Vec<u32> = self.members.iter().filter_map(slow).filter(|n| *n != self.config.own).collect();
        for number in slow {
            self.outputs.push_back(FeedbackOutput::PutOut { member: number });
            self.leave(now, number);
        }
    }

    /// Returns true if the speaker speaks for itself alone: then it does so as it would without a rack.
    fn is_alone(&self) -> bool {
        self.members.keys().all(|number| *number == self.config.own)
    }

    /// Returns the position of the fastest receiver.
    fn best(&self) -> u64 {
        self.members.values().map(|member| member.row.position).max().unwrap_or(0)
    }

    /// Returns the position of the slowest receiver.
    fn position(&self) -> u64 {
        self.members.values().map(|member| member.row.position).min().unwrap_or(0)
    }

    /// Says what the rack has. Times of arrival are the speaker's own, since every host has another clock;
    /// they are known where the speaker is where the slowest is.
    fn report(&mut self, now: Time) {
        self.report_at = None;
        self.said.clear();
        let rows = || self.members.values().map(|member| member.row);
        let position = self.position();
        let (Some(received), Some(verified_bytes)) =
            (rows().map(|row| row.received).min(), rows().map(|row| row.verified_bytes).min())
        else {
            return;
        };
        let own = self.members.get(&self.config.own).map(|member| member.row);
        let own = own.filter(|row| row.position == position).unwrap_or_default();
        // One that has come back may be further behind than the rack was: the source does not go back.
        self.reported = self.reported.max(position);
        self.report_at = (!self.is_alone()).then_some(now + self.config.heartbeat);
        self.outputs.push_back(FeedbackOutput::ToSource(Control::Progress {
            position,
            received,
            lost: rows().map(|row| row.lost).max().unwrap_or(0),
            verified_bytes,
            arrived_ns: own.arrived_ns,
            waited_ns: own.waited_ns,
        }));
    }

    fn nack(&mut self, now: Time, ranges: &[Range<u64>]) {
        while self.asked.front().is_some_and(|(until, _)| *until <= now) {
            self.asked.pop_front();
        }
        for range in ranges.iter().filter(|range| !range.is_empty()) {
            if self.gathered.range_count() >= self.config.ranges_max {
                break;
            }
            let mut missing = RangeSet::new();
            missing.insert(range.clone());
            for (_, asked) in &self.asked {
                let covered: Vec<Range<u64>> = asked.iter_within(range.clone()).collect();
                covered.into_iter().for_each(|part| {
                    missing.remove(part);
                });
            }
            for part in missing.iter() {
                // Between others it could be one more.
                if self.gathered.range_count() >= self.config.ranges_max {
                    break;
                }
                self.gathered.insert(part);
            }
        }
        if !self.gathered.is_empty() && self.ask_at.is_none() {
            self.ask_at = Some(now + self.config.gather);
        }
    }

    /// Asks for what was gathered.
    fn ask(&mut self, now: Time) {
        let gathered = core::mem::take(&mut self.gathered);
        let ranges: Vec<Range<u64>> = gathered.iter().collect();
        for some in ranges.chunks(RANGES_MAX) {
            self.outputs.push_back(FeedbackOutput::ToSource(Control::RackReq(some.to_vec())));
        }
        self.asked.push_back((now + self.config.hold, gathered));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: Duration = Duration::from_millis(1);

    fn config() -> FeedbackConfig {
        FeedbackConfig {
            own: 0,
            gather: MS,
            hold: MS * 10,
            heartbeat: MS * 50,
            patience: MS * 100,
            ranges_max: 1_000,
        }
    }

    fn progress(position: u64, received: u64, lost: u64) -> Control<'static> {
        let (arrived_ns, waited_ns) = (position * 10, 3);
        Control::Progress { position, received, lost, verified_bytes: received * 2, arrived_ns, waited_ns }
    }

    fn say(feedback: &mut Feedback, now: Time, member: u32, control: &Control<'_>) {
        feedback.handle(now, FeedbackInput::Said { member, control });
    }

    /// A rack of twenty receivers that have all been heard of.
    fn feedback() -> Feedback {
        let mut feedback = Feedback::new(config());
        (0..20).for_each(|member| say(&mut feedback, Time::ZERO, member, &progress(0, 0, 0)));
        let named = said(&mut feedback, Time::ZERO);
        assert_eq!(named.last(), Some(&FeedbackOutput::ToSource(Control::Rack((1..20).collect()))));
        feedback
    }

    fn said(feedback: &mut Feedback, now: Time) -> Vec<FeedbackOutput> {
        core::iter::from_fn(|| feedback.poll(now)).collect()
    }

    fn one(range: Range<u64>) -> Vec<Range<u64>> {
        core::iter::once(range).collect()
    }

    fn request(ranges: Vec<Range<u64>>) -> FeedbackOutput {
        FeedbackOutput::ToSource(Control::RackReq(ranges))
    }

    #[test]
    fn a_source_hears_racks_and_not_hosts() {
        let mut feedback = feedback();
        for member in 0..20 {
            let ranges = [10..20, 30 + u64::from(member)..40].into();
            say(&mut feedback, Time::ZERO, member, &Control::PtchReq(ranges));
        }
        assert_eq!(said(&mut feedback, Time::ZERO), []);
        let at = feedback.deadline().unwrap();
        assert_eq!(said(&mut feedback, at), [request([10..20, 30..40].into())]);
        // Asked for already: only what is new is asked for, and all again when the answer is overdue.
        say(&mut feedback, at, 1, &Control::PtchReq(one(5..12)));
        assert_eq!(said(&mut feedback, at + MS), [request(one(5..10))]);
        say(&mut feedback, at + MS * 20, 1, &Control::PtchReq(one(5..12)));
        assert_eq!(said(&mut feedback, at + MS * 21), [request(one(5..12))]);
    }

    #[test]
    fn the_slowest_receiver_speaks_for_the_rack() {
        let mut feedback = feedback();
        for member in (0..20).rev() {
            assert_eq!(said(&mut feedback, Time::ZERO), []);
            let ahead = u64::from(member);
            say(&mut feedback, Time::ZERO, member, &progress(100 + ahead, 90 + ahead, ahead));
        }
        // The speaker is the slowest: its times of arrival are those of the rack.
        let report = |position: u64, received: u64, lost: u64, arrived_ns: u64, waited_ns: u64| {
            let verified_bytes = received * 2;
            let report =
                Control::Progress { position, received, lost, verified_bytes, arrived_ns, waited_ns };
            FeedbackOutput::ToSource(report)
        };
        assert_eq!(said(&mut feedback, Time::ZERO), [report(100, 90, 19, 1_000, 3)]);
        // The others are given a moment to say something, too.
        say(&mut feedback, Time::ZERO, 0, &progress(130, 120, 0));
        assert_eq!(said(&mut feedback, Time::ZERO), []);
        assert_eq!(said(&mut feedback, Time::ZERO + MS), [report(101, 91, 19, 0, 0)]);
        // A member that has left is not waited for, and one that is no member is not heard.
        (1..5).for_each(|member| feedback.handle(Time::ZERO, FeedbackInput::Left { member }));
        let after = said(&mut feedback, Time::ZERO);
        assert_eq!(after.last(), Some(&report(105, 95, 19, 0, 0)));
        assert!(after.contains(&FeedbackOutput::ToSource(Control::Rack((5..20).collect()))));
        say(&mut feedback, Time::ZERO, 1, &Control::PtchReq(one(1..2)));
        assert_eq!(feedback.foreign(), 1);
        assert_eq!(said(&mut feedback, Time::ZERO + MS * 2), []);
    }

    /// Receivers that report in turn, each a little further than the one before: the source hears one of as
    /// many as there are.
    #[test]
    fn reports_at_different_moments_are_one() {
        let mut feedback = feedback();
        let mut heard = 0;
        for step in 0..2_000u64 {
            let now = Time::ZERO + Duration::from_micros(20) * step;
            say(&mut feedback, now, (step % 20) as u32, &progress(100 + step, 100 + step, 0));
            heard += said(&mut feedback, now).len();
        }
        assert!((99..=101).contains(&heard), "{heard}");
        assert_eq!(feedback.position(), feedback.reported);
    }

    #[test]
    fn who_keeps_the_rack_back_is_put_out() {
        let mut feedback = feedback();
        let mut put_out = Vec::new();
        for step in 1..40u64 {
            let now = Time::ZERO + MS * 10 * step;
            // Number 7 falls silent, number 8 is always a little late, but moves.
            for member in (0..20).filter(|member| *member != 7 && (*member != 8 || step % 2 == 0)) {
                say(&mut feedback, now, member, &progress(10 * step, 10 * step, 0));
            }
            for output in said(&mut feedback, now) {
                if let FeedbackOutput::PutOut { member } = output {
                    put_out.push((member, step));
                }
            }
        }
        assert_eq!(put_out.iter().map(|(member, _)| *member).collect::<Vec<_>>(), [7]);
        assert!((10..=17).contains(&put_out[0].1), "{put_out:?}");
        assert_eq!(feedback.position(), 380);
    }

    #[test]
    fn a_rack_that_waits_says_that_it_lives() {
        let mut feedback = feedback();
        let at = feedback.deadline().unwrap();
        assert_eq!(at, Time::ZERO + MS * 50);
        assert!(matches!(said(&mut feedback, at)[..], [FeedbackOutput::ToSource(Control::Progress { .. })]));
        assert_eq!(feedback.deadline(), Some(at + MS * 50));
    }

    proptest! {
        /// All that hosts have lost is asked for, and nothing else; never the same within the time that it
        /// holds.
        #[test]
        fn what_is_lost_is_asked_for(
            nacks in proptest::collection::vec((0u32..20, 0u64..300, 1u64..40, 0u64..3), 1..80),
        ) {
            let mut feedback = feedback();
            let mut now = Time::ZERO;
            let mut lost = RangeSet::new();
            let mut asked: Vec<(Time, Range<u64>)> = Vec::new();
            let requests = |feedback: &mut Feedback, now: Time| {
                let outputs = said(feedback, now).into_iter();
                let ranges = outputs.filter_map(|output| match output {
                    FeedbackOutput::ToSource(Control::RackReq(ranges)) => Some(ranges),
                    _ => None,
                });
                ranges.flatten().collect::<Vec<_>>()
            };
            for (member, start, len, wait) in nacks {
                say(&mut feedback, now, member, &Control::PtchReq(one(start..start + len)));
                lost.insert(start..start + len);
                now += MS * wait;
                for range in requests(&mut feedback, now) {
                    prop_assert!(lost.covers(range.clone()));
                    let twice = |(at, other): &(Time, Range<u64>)| {
                        other.start < range.end && range.start < other.end && now.since(*at) < MS * 10
                    };
                    prop_assert!(!asked.iter().any(twice), "{range:?} at {now:?} after {asked:?}");
                    asked.push((now, range));
                }
            }
            now += MS;
            asked.extend(requests(&mut feedback, now).into_iter().map(|range| (now, range)));
            asked.into_iter().for_each(|(_, range)| { lost.remove(range); });
            prop_assert!(lost.is_empty(), "never asked for: {lost:?}");
        }

        /// Whatever receivers say and whenever they leave: the last report is what the slowest of those that
        /// are left has said. A speaker that has said nothing yet has nothing.
        #[test]
        fn reports_are_the_slowest_ones(words in proptest::collection::vec((0u32..6, 0u64..50, any::<bool>()), 1..100)) {
            let mut feedback = Feedback::new(FeedbackConfig { patience: MS * 1_000_000, heartbeat: MS * 1_000_000, ..config() });
            let mut has: BTreeMap<u32, u64> = BTreeMap::from([(0, 0)]);
            let mut best = 0;
            for ((member, step, leaves), now) in words.into_iter().zip((0..).map(|step| Time::ZERO + MS * step)) {
                let leaves = leaves && member > 0;
                if leaves {
                    has.remove(&member);
                    feedback.handle(now, FeedbackInput::Left { member });
                } else {
                    let position = has.get(&member).copied().unwrap_or(0) + step;
                    has.insert(member, position);
                    say(&mut feedback, now, member, &progress(position, position, 0));
                }
                let reports: Vec<u64> = said(&mut feedback, now + MS).into_iter().filter_map(|output| match output {
                    FeedbackOutput::ToSource(Control::Progress { position, .. }) => Some(position),
                    _ => None,
                }).collect();
                let slowest = has.values().copied().min().unwrap_or(0);
                let alone = !leaves && has.keys().all(|member| *member == 0);
                prop_assert_eq!(reports.last().copied(), (slowest > best || alone).then_some(slowest));
                best = best.max(slowest);
            }
        }
    }

    /// A rack's report shows progress at once when all have reported it; a millisecond later when the last
    /// one reports it and the others did so before an earlier report of the rack; after 50 when none has made
    /// progress.
    #[test]
    fn a_rack_that_has_got_on_says_so_soon() {
        let mut feedback = feedback();
        let reports = |feedback: &mut Feedback, now| {
            let position = |output| match output {
                FeedbackOutput::ToSource(Control::Progress { position, .. }) => Some(position),
                _ => None,
            };
            said(feedback, now).into_iter().filter_map(position).collect::<Vec<u64>>()
        };
        let at = |ms: u64| Time::ZERO + MS * ms;
        reports(&mut feedback, at(60));
        for member in 0..20 {
            assert_eq!(reports(&mut feedback, at(61)), []);
            say(&mut feedback, at(61), member, &progress(5, 5, 0));
        }
        assert_eq!(reports(&mut feedback, at(61)), [5]);
        (0..19).for_each(|member| say(&mut feedback, at(62), member, &progress(9, 9, 0)));
        assert_eq!(reports(&mut feedback, at(110)), []);
        assert_eq!(reports(&mut feedback, at(111)), [5], "it lives");
        say(&mut feedback, at(112), 19, &progress(9, 9, 0));
        assert_eq!(reports(&mut feedback, at(112)), []);
        assert_eq!(feedback.deadline(), Some(at(113)));
        assert_eq!(reports(&mut feedback, at(113)), [9]);
    }
}
