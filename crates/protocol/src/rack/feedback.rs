//! One voice of a rack's receivers towards a source: NACKs and acknowledgements of many hosts become one (appendix A.4).
//!
//! A fragment that several hosts of the rack have lost is asked for once: requests are gathered for a short time, and what
//! has been asked for is not asked for again before its answer can have come. The rack has what its slowest receiver has.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::ops::Range;
use polycast_types::{Duration, Handle, RangeSet, Time};
use polycast_wire::rack::{RANGES_MAX, Rack};

/// Times of a rack's feedback.
#[derive(Clone, Copy, Debug)]
pub struct FeedbackConfig {
    /// The leaf, counted over all pods.
    pub rack: u32,
    /// How long requests are gathered.
    pub gather: Duration,
    /// How long the answer to a request may take: before that it is not repeated.
    pub hold: Duration,
    /// How many ranges may wait; requests that do not fit are dropped, and come again from the hosts.
    pub ranges_max: usize,
}

/// What happens to a rack's feedback on one transfer.
#[derive(Clone, Debug)]
pub enum FeedbackInput {
    /// The rack's receivers, by port. A host that is new has nothing yet.
    Members(Vec<u32>),
    /// A host has lost these fragments.
    Nack {
        /// Its port.
        port: u32,
        /// The fragments, half-open.
        ranges: Vec<Range<u64>>,
    },
    /// A host has everything before this position.
    Ack {
        /// Its port.
        port: u32,
        /// The position.
        position: u64,
    },
}

/// The feedback of one rack on one transfer.
#[derive(Debug)]
pub struct Feedback {
    config: FeedbackConfig,
    handle: Handle,
    /// What each receiver has.
    positions: BTreeMap<u32, u64>,
    acked: u64,
    gathered: RangeSet,
    ask_at: Option<Time>,
    /// What was asked for, and until when that holds.
    asked: VecDeque<(Time, RangeSet)>,
    foreign: u64,
    heard: u64,
    sent: u64,
    outputs: VecDeque<Rack<'static>>,
}

impl Feedback {
    /// Of a transfer, before any receiver is known.
    #[must_use]
    pub fn new(config: FeedbackConfig, handle: Handle) -> Self {
        Feedback {
            config,
            handle,
            positions: BTreeMap::new(),
            acked: 0,
            gathered: RangeSet::new(),
            ask_at: None,
            asked: VecDeque::new(),
            foreign: 0,
            heard: 0,
            sent: 0,
            outputs: VecDeque::new(),
        }
    }

    /// Takes in what happened.
    pub fn handle(&mut self, now: Time, input: FeedbackInput) {
        match input {
            FeedbackInput::Members(ports) => {
                let before = core::mem::take(&mut self.positions);
                let known = |port: u32| (port, before.get(&port).copied().unwrap_or(0));
                self.positions = ports.into_iter().map(known).collect();
                self.acknowledge();
            }
            FeedbackInput::Nack { port, ranges } => self.nack(now, port, ranges),
            FeedbackInput::Ack { port, position } => {
                self.heard += 1;
                let Some(known) = self.positions.get_mut(&port) else {
                    self.foreign += 1;
                    return;
                };
                *known = position.max(*known);
                self.acknowledge();
            }
        }
    }

    /// The next message to the source, until there is none.
    pub fn poll(&mut self, now: Time) -> Option<Rack<'static>> {
        if self.ask_at.is_some_and(|at| at <= now) {
            self.ask_at = None;
            self.ask(now);
        }
        let message = self.outputs.pop_front()?;
        self.sent += 1;
        Some(message)
    }

    /// When to poll again even if nothing happens.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        self.ask_at
    }

    /// Messages heard of hosts, and sent to the source.
    #[must_use]
    pub fn heard_and_sent(&self) -> (u64, u64) {
        (self.heard, self.sent)
    }

    /// Messages of hosts that are no receivers in this rack.
    #[must_use]
    pub fn foreign(&self) -> u64 {
        self.foreign
    }

    fn nack(&mut self, now: Time, port: u32, ranges: Vec<Range<u64>>) {
        self.heard += 1;
        if !self.positions.contains_key(&port) {
            self.foreign += 1;
            return;
        }
        while self.asked.front().is_some_and(|(until, _)| *until <= now) {
            self.asked.pop_front();
        }
        for range in ranges {
            if self.gathered.range_count() >= self.config.ranges_max {
                break;
            }
            if range.is_empty() {
                continue;
            }
            let mut missing = RangeSet::new();
            missing.insert(range.clone());
            for (_, asked) in &self.asked {
                let covered: Vec<Range<u64>> = asked.iter_within(range.clone()).collect();
                covered.into_iter().for_each(|part| {
                    missing.remove(part);
                });
            }
            missing.iter().for_each(|part| {
                self.gathered.insert(part);
            });
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
            let (rack, handle) = (self.config.rack, self.handle);
            self.outputs.push_back(Rack::Nack { rack, handle, ranges: some.to_vec() });
        }
        self.asked.push_back((now + self.config.hold, gathered));
    }

    fn acknowledge(&mut self) {
        let position = self.positions.values().copied().min().unwrap_or(0);
        if position > self.acked {
            self.acked = position;
            let (rack, handle) = (self.config.rack, self.handle);
            self.outputs.push_back(Rack::Ack { rack, handle, position });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: Duration = Duration::from_millis(1);

    fn feedback() -> Feedback {
        let config = FeedbackConfig { rack: 3, gather: MS, hold: MS * 10, ranges_max: 1_000 };
        let mut feedback = Feedback::new(config, Handle(7));
        feedback.handle(Time::ZERO, FeedbackInput::Members((0..20).collect()));
        feedback
    }

    fn said(feedback: &mut Feedback, now: Time) -> Vec<Rack<'static>> {
        core::iter::from_fn(|| feedback.poll(now)).collect()
    }

    fn one(range: Range<u64>) -> Vec<Range<u64>> {
        core::iter::once(range).collect()
    }

    #[test]
    fn a_source_hears_racks_and_not_hosts() {
        let mut feedback = feedback();
        for port in 0..20 {
            let ranges = [10..20, 30 + u64::from(port)..40].into();
            feedback.handle(Time::ZERO, FeedbackInput::Nack { port, ranges });
        }
        assert_eq!(said(&mut feedback, Time::ZERO), []);
        let at = feedback.deadline().unwrap();
        let once = Rack::Nack { rack: 3, handle: Handle(7), ranges: [10..20, 30..40].into() };
        assert_eq!(said(&mut feedback, at), [once]);
        // Asked for already: only what is new is asked for, and all again when the answer is overdue.
        feedback.handle(at, FeedbackInput::Nack { port: 1, ranges: one(5..12) });
        let new = Rack::Nack { rack: 3, handle: Handle(7), ranges: one(5..10) };
        assert_eq!(said(&mut feedback, at + MS), [new]);
        feedback.handle(at + MS * 20, FeedbackInput::Nack { port: 1, ranges: one(5..12) });
        let again = Rack::Nack { rack: 3, handle: Handle(7), ranges: one(5..12) };
        assert_eq!(said(&mut feedback, at + MS * 21), [again]);
    }

    #[test]
    fn the_slowest_receiver_speaks_for_the_rack() {
        let mut feedback = feedback();
        for port in (0..20).rev() {
            assert_eq!(said(&mut feedback, Time::ZERO), []);
            feedback.handle(Time::ZERO, FeedbackInput::Ack { port, position: 100 + u64::from(port) });
        }
        let ack = |position| Rack::Ack { rack: 3, handle: Handle(7), position };
        assert_eq!(said(&mut feedback, Time::ZERO), [ack(100)]);
        // Nobody waits for one that has left, and a stranger is not heard.
        feedback.handle(Time::ZERO, FeedbackInput::Members((5..20).collect()));
        assert_eq!(said(&mut feedback, Time::ZERO), [ack(105)]);
        feedback.handle(Time::ZERO, FeedbackInput::Nack { port: 0, ranges: one(1..2) });
        assert_eq!((feedback.deadline(), feedback.foreign()), (None, 1));
        assert_eq!(feedback.heard_and_sent(), (21, 2));
    }

    proptest! {
        /// All that hosts have lost is asked for, and nothing else; never the same within the time that it holds.
        #[test]
        fn what_is_lost_is_asked_for(
            nacks in proptest::collection::vec((0u32..20, 0u64..300, 1u64..40, 0u64..3), 1..80),
        ) {
            let mut feedback = feedback();
            let mut now = Time::ZERO;
            let mut lost = RangeSet::new();
            let mut asked: Vec<(Time, Range<u64>)> = Vec::new();
            for (port, start, len, wait) in nacks {
                feedback.handle(now, FeedbackInput::Nack { port, ranges: one(start..start + len) });
                lost.insert(start..start + len);
                now += MS * wait;
                for message in said(&mut feedback, now) {
                    let Rack::Nack { ranges, .. } = message else { panic!("{message:?}") };
                    for range in ranges {
                        prop_assert!(lost.covers(range.clone()));
                        let twice = |(at, other): &(Time, Range<u64>)| {
                            other.start < range.end && range.start < other.end && now.since(*at) < MS * 10
                        };
                        prop_assert!(!asked.iter().any(twice), "{range:?} at {now:?} after {asked:?}");
                        asked.push((now, range));
                    }
                }
            }
            now += MS;
            for message in said(&mut feedback, now) {
                let Rack::Nack { ranges, .. } = message else { panic!("{message:?}") };
                asked.extend(ranges.into_iter().map(|range| (now, range)));
            }
            asked.into_iter().for_each(|(_, range)| { lost.remove(range); });
            prop_assert!(lost.is_empty(), "never asked for: {lost:?}");
        }
    }
}
