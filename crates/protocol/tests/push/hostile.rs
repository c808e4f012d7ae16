//! Machines that hear anything at all: they neither panic nor go beyond their bounds, and what they say makes
//! sense. Honest receivers beside a liar get everything.

use crate::liar::Liar;
use crate::settings::{config, receiver};
use crate::world::{Faults, World};
use crate::{geometry, seconds};
use polycast_protocol::push::{
    PeerId, Receiver, ReceiverInput, ReceiverOutput, Sender, SenderConfig, SenderInput, SenderOutput,
};
use polycast_protocol::session::Why;
use polycast_types::{Duration, Location, RangeSet, Rate, Time};
use polycast_wire::control::{Control, Overlay, RANGES_MAX};
use polycast_wire::data::{CODED_FRAGMENTS_MAX, FLAG_ATTEMPT, FLAG_PATCH, FLAG_REPORT};
use proptest::prelude::*;
use std::collections::BTreeSet;

/// A machine that is drained says at most so much at one time.
const OUTPUTS_MAX: usize = 50_000;
const PEERS: u64 = 6;

/// Advances the time between two inputs: mostly a little, at times for years.
fn pass(now: Time, liar: &mut Liar) -> Time {
    now + match liar.below(12) {
        0..=3 => Duration::ZERO,
        4..=8 => Duration(liar.below(2_000_000)),
        9 | 10 => Duration(liar.below(700_000_000)),
        _ => Duration(liar.below(1 << 52)),
    }
}

/// A sender, and what it has said.
struct Heard {
    sender: Sender,
    fragments: u64,
    joined: BTreeSet<PeerId>,
    settled: BTreeSet<PeerId>,
    chained: BTreeSet<PeerId>,
    started: bool,
    position: u64,
}

impl Heard {
    fn input(&mut self, now: Time, liar: &mut Liar) {
        let peer = PeerId(liar.below(PEERS) as u32);
        let near = if liar.below(2) == 0 { self.fragments } else { self.position };
        let multicast = Duration::from_micros(500).into();
        match liar.below(40) {
            0..=3 if self.joined.insert(peer) => {
                let have: RangeSet = liar.ranges(self.fragments).into_iter().collect();
                let window_bytes = liar.number(1 << 20);
                self.sender.handle(
                    now,
                    SenderInput::Ready { peer, window_bytes, have, location: Location::default() },
                );
            }
            4 | 5 if !std::mem::replace(&mut self.started, true) => {
                self.sender.handle(now, SenderInput::Start)
            }
            6 => {
                self.sender.handle(now, SenderInput::Left { peer, why: Why::WentAway });
                if liar.below(4) == 0 {
                    // Of one that is done more is needed.
                    self.sender.handle(now, SenderInput::Forget { peer });
                } else if liar.below(4) == 0 {
                    self.sender.handle(now, SenderInput::Unawaited { peer });
                }
            }
            7 => {
                let members = (0..PEERS as u32).map(PeerId).filter(|member| *member > peer);
                let members = members.filter(|_| liar.below(2) == 0).collect();
                self.sender.handle(now, SenderInput::Rack { speaker: peer, members });
            }
            8 => self.sender.handle(now, SenderInput::PathLost),
            9 => self.sender.handle(now, SenderInput::PathWaits(liar.below(2) == 0)),
            10 => {
                let rate = (liar.below(2) == 0).then_some(Rate(1_000_000_000));
                let allowance = (liar.below(2) == 0).then_some(liar.below(50));
                let attempt_interval = multicast;
                self.sender.handle(now, SenderInput::Path { rate, attempt_interval, allowance });
            }
            11 => self.sender.handle(now, SenderInput::Close),
            12 => self.sender.handle(now, SenderInput::Open),
            14 | 15 => {
                let candidate = PeerId(liar.below(PEERS) as u32);
                let for_good = liar.below(2) == 0;
                self.sender.handle(now, SenderInput::Useless { peer, candidate, for_good });
            }
            16 => {
                let control = &Control::Overlay(Overlay::Lacks(liar.ranges(self.fragments)));
                self.sender.handle(now, SenderInput::Control { peer, control });
            }
            13 => {
                let control = &Control::DataRcvd { patched_bytes: liar.number(near), proof: [0; 32] };
                self.sender.handle(now, SenderInput::Control { peer, control });
            }
            _ => {
                let frame = liar.word_to_source(near, PEERS);
                let control = &Control::parse(&frame).expect("it keeps to the format");
                self.sender.handle(now, SenderInput::Control { peer, control });
            }
        }
    }

    fn drain(&mut self, now: Time) {
        for _ in 0..OUTPUTS_MAX {
            let Some(output) = self.sender.poll(now) else {
                assert!(self.sender.deadline().is_none_or(|at| at > now), "drained, yet due at {now:?}");
                return;
            };
            self.sender.check();
            self.judge(output);
        }
        panic!("it never ends at {now:?}");
    }

    fn judge(&mut self, output: SenderOutput) {
        match output {
            SenderOutput::Send { round, sn, count, .. } => {
                let position = u64::from(round) * self.fragments + sn;
                assert!(position >= self.position, "position {position} after {}", self.position);
                assert!((1..=7).contains(&count) && sn + u64::from(count) <= self.fragments);
                self.position = position + u64::from(count);
            }
            SenderOutput::SendPatch(sns) => {
                assert!((1..=CODED_FRAGMENTS_MAX).contains(&sns.len()), "{} in a patch", sns.len());
                assert!(sns.is_sorted() && sns.iter().all(|sn| *sn < self.fragments), "{sns:?}");
            }
            SenderOutput::Patch { peer, sns } => {
                assert!(!sns.is_empty() && sns.end <= self.fragments, "{sns:?} of {}", self.fragments);
                assert!(!self.chained.contains(&peer), "{peer:?} fetches over TCP");
            }
            SenderOutput::Settled { peer, .. } => {
                assert!(self.joined.contains(&peer) && self.settled.insert(peer), "{peer:?} settled twice");
            }
            SenderOutput::Candidates(told) => {
                assert!(self.joined.contains(&told.peer) && !self.settled.contains(&told.peer), "{told:?}");
                assert!(
                    { told.from }.iter().all(|(from, _)| *from != told.peer && self.joined.contains(from))
                );
                self.chained.insert(told.peer);
            }
            SenderOutput::AllowanceUsed { remaining_bytes } => assert!(remaining_bytes > 0),
            SenderOutput::Control { peer, .. } => assert!(self.joined.contains(&peer)),
            SenderOutput::Finished => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn a_sender_survives_whatever_it_hears(
        seed: u64, steps in 1usize..300, fragments in 0u64..300, granted: bool, multicast: bool,
    ) {
        let rate = granted.then_some(Rate(2_000_000_000));
        let config = SenderConfig { rate, multicast, ..config(geometry(fragments)) };
        let mut heard = Heard {
            fragments: config.geometry.fragments(),
            sender: Sender::new(config),
            joined: BTreeSet::new(),
            settled: BTreeSet::new(),
            chained: BTreeSet::new(),
            started: false,
            position: 0,
        };
        let (mut liar, mut now) = (Liar::new(seed), Time(1));
        for _ in 0..steps {
            now = pass(now, &mut liar);
            heard.input(now, &mut liar);
            if liar.below(3) > 0 {
                heard.drain(now);
            }
        }
    }

    #[test]
    fn a_receiver_survives_whatever_it_hears(seed: u64, steps in 1usize..300, fragments in 0u64..300) {
        let mut told = Told::new(fragments);
        let (mut liar, mut now) = (Liar::new(seed), Time(1));
        for _ in 0..steps {
            now = pass(now, &mut liar);
            told.input(now, &mut liar);
            if liar.below(3) > 0 {
                told.drain(now, |_| liar.below(10) > 0);
            }
        }
        told.finish(now);
    }
}

/// A receiver, and what it has said.
struct Told {
    machine: Receiver,
    fragments: u64,
    groups: u64,
    kept: RangeSet,
    begun: bool,
    complete: bool,
    committed: bool,
}

impl Told {
    fn new(fragments: u64) -> Self {
        let geometry = geometry(fragments);
        let machine = Receiver::new(receiver(geometry));
        Told {
            machine,
            fragments: geometry.fragments(),
            groups: geometry.groups(),
            kept: RangeSet::new(),
            begun: false,
            complete: false,
            committed: false,
        }
    }

    fn input(&mut self, now: Time, liar: &mut Liar) {
        let near = self.fragments;
        let machine = &mut self.machine;
        match liar.below(30) {
            0 if !self.begun => machine.handle(now, ReceiverInput::Held { group: liar.number(self.groups) }),
            1 | 2 if !std::mem::replace(&mut self.begun, true) => machine.handle(now, ReceiverInput::Begin),
            3 => machine.handle(now, ReceiverInput::Fetched { group: liar.number(self.groups) }),
            4 if liar.below(10) == 0 => machine.handle(now, ReceiverInput::Chained),
            5 | 6 => {
                let control = &Control::DataFnsd { position: liar.number(near) };
                machine.handle(now, ReceiverInput::Control(control));
            }
            7..=10 => {
                let count = if liar.below(4) == 0 { liar.number(near) as u32 } else { 1 };
                let (sn, sent) = (liar.number(near), liar.below(2) == 0);
                machine.handle(
                    now,
                    if sent {
                        ReceiverInput::Sent { sn, count }
                    } else {
                        ReceiverInput::Patched { sn, count }
                    },
                );
            }
            11 => {
                let sns: Vec<u64> = (0..liar.below(17)).map(|_| liar.number(near)).collect();
                assert!(machine.missing_of(&sns) <= sns.len());
                if let Some(sn) = machine.decodable(&sns) {
                    machine.handle(now, ReceiverInput::Patched { sn, count: 1 });
                }
            }
            _ => {
                let round = if liar.below(8) == 0 { liar.number(3) as u32 } else { liar.below(2) as u32 };
                let count =
                    if liar.below(4) == 0 { liar.number(near) as u32 } else { 1 + liar.below(7) as u32 };
                let flags = [0, 0, 0, FLAG_PATCH, FLAG_REPORT, FLAG_ATTEMPT][liar.below(6) as usize];
                let (sn, arrived) = (liar.number(near), Time(liar.number(now.0)));
                machine.handle(now, ReceiverInput::Data { round, sn, count, flags, arrived });
            }
        }
    }

    fn drain(&mut self, now: Time, mut intact: impl FnMut(u64) -> bool) {
        for _ in 0..OUTPUTS_MAX {
            let Some(output) = self.machine.poll(now) else {
                assert!(self.machine.deadline().is_none_or(|at| at > now), "drained, yet due at {now:?}");
                return;
            };
            match output {
                ReceiverOutput::Keep { sn, count } => {
                    assert!(count > 0 && sn + u64::from(count) <= self.fragments, "{count} from {sn}");
                    self.kept.insert(sn..sn + u64::from(count));
                }
                ReceiverOutput::Check { group } => {
                    assert!(group < self.groups);
                    let intact = intact(group);
                    self.machine.handle(now, ReceiverInput::Checked { group, intact });
                }
                ReceiverOutput::Control(control) | ReceiverOutput::Repeat(control) => {
                    let (Control::PtchReq(ranges) | Control::Have(ranges)) = control else { continue };
                    assert!(ranges.len() <= RANGES_MAX && ranges.iter().all(|range| !range.is_empty()));
                    assert!(ranges.iter().all(|range| range.end <= self.fragments), "{ranges:?}");
                }
                ReceiverOutput::Complete => {
                    assert!(!std::mem::replace(&mut self.complete, true), "complete twice");
                    self.machine.handle(now, ReceiverInput::Committed { proof: [0; 32] });
                    self.committed = true;
                }
            }
        }
        panic!("it never ends at {now:?}");
    }

    /// Whatever was said to it: when everything comes at last, it is done.
    fn finish(mut self, now: Time) {
        self.drain(now, |_| true);
        if !self.begun {
            self.machine.handle(now, ReceiverInput::Begin);
        }
        for sn in 0..self.fragments {
            self.machine.handle(now, ReceiverInput::Sent { sn, count: 1 });
        }
        self.drain(now, |_| true);
        assert!(
            self.complete && self.committed,
            "{} of {} bytes",
            self.machine.verified_bytes(),
            self.fragments
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever one of them says, the others are done while it still talks.
    #[test]
    fn honest_receivers_beside_a_liar_get_everything(
        seed: u64, receivers in 2u32..6, fragments in 1u64..400, loss in 0u64..100, granted: bool,
    ) {
        let rate = granted.then_some(Rate(5_000_000_000));
        let config = SenderConfig { rate, ..config(geometry(fragments)) };
        let mut world = World::new(seed, receivers, config, Faults { loss, ..Faults::default() });
        world.start();
        world.close();
        world.lie(0, Liar::new(seed));
        world.run(seconds(20));
        let done: Vec<bool> = (1..receivers).map(|peer| world.nodes[&peer].done).collect();
        prop_assert!(done.iter().all(|done| *done), "{:?} at {:?}", done, world.now);
        world.silence();
        world.run(seconds(60));
        world.assert_all_done();
    }
}

/// One that says, before the start, that it has everything, is done, and one that leaves is gone: neither is
/// waited for.
#[test]
fn who_is_settled_before_the_start_stays_so() {
    for multicast in [true, false] {
        let mut sender = Sender::new(SenderConfig { multicast, ..config(geometry(40)) });
        for peer in [0, 1, 2].map(PeerId) {
            let have = if peer.0 == 0 { std::iter::once(0..40).collect() } else { RangeSet::new() };
            sender.handle(
                Time(1),
                SenderInput::Ready { peer, window_bytes: 1 << 20, have, location: Location::default() },
            );
        }
        let control = |peer, control| SenderInput::Control { peer: PeerId(peer), control };
        sender.handle(Time(2), control(0, &Control::DataRcvd { patched_bytes: 0, proof: [0; 32] }));
        sender.handle(Time(2), SenderInput::Left { peer: PeerId(1), why: Why::WentAway });
        let settled = |sender: &mut Sender, now| {
            let outputs: Vec<_> = std::iter::from_fn(|| sender.poll(now)).collect();
            outputs.into_iter().filter(|output| matches!(output, SenderOutput::Settled { .. })).count()
        };
        assert_eq!(settled(&mut sender, Time(2)), 2);
        sender.handle(Time(3), SenderInput::Start);
        sender.handle(Time(3), SenderInput::Close);
        assert_eq!(settled(&mut sender, Time(3)), 0);
        sender.handle(Time(4), control(2, &Control::DataRcvd { patched_bytes: 0, proof: [0; 32] }));
        let outputs: Vec<_> = std::iter::from_fn(|| sender.poll(Time(4))).collect();
        assert_eq!(outputs.last(), Some(&SenderOutput::Finished), "no other is waited for");
    }
}
