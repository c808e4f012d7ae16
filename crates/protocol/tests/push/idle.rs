//! Receivers that live and get nothing done are given up; those that wait for good reasons are not.

use crate::settings::config;
use crate::{geometry, seconds};
use polycast_protocol::push::{PeerId, Sender, SenderConfig, SenderInput, SenderOutput, SlowPolicy};
use polycast_protocol::session::Why;
use polycast_types::{Duration, Location, RangeSet, Time};
use polycast_wire::control::Control;
use std::collections::BTreeMap;

const PATIENCE: Duration = Duration::from_secs(30);
const STEP: Duration = Duration::from_millis(20);
const FRAGMENTS: u64 = 200;

/// A sender, what it has sent, and when and how its receivers were settled.
struct Bench {
    sender: Sender,
    now: Time,
    position: u64,
    settled: BTreeMap<u32, (Time, Option<Why>)>,
    alone: Vec<u32>,
}

fn ready(config: SenderConfig, receivers: u32) -> Bench {
    let mut sender =
        Sender::new(SenderConfig { progress_timeout: PATIENCE, slow: SlowPolicy::Wait, ..config });
    for peer in (0..receivers).map(PeerId) {
        sender.handle(
            Time(1),
            SenderInput::Ready {
                peer,
                window_bytes: 1 << 24,
                have: RangeSet::new(),
                location: Location::default(),
            },
        );
    }
    Bench { sender, now: Time(1), position: 0, settled: BTreeMap::new(), alone: Vec::new() }
}

fn start(config: SenderConfig, receivers: u32) -> Bench {
    let mut bench = ready(config, receivers);
    bench.sender.handle(Time(1), SenderInput::Start);
    bench.sender.handle(Time(1), SenderInput::Close);
    bench
}

fn progress(position: u64, verified_bytes: u64) -> Control<'static> {
    Control::Progress { position, received: position, lost: 0, verified_bytes, arrived_ns: 1, waited_ns: 0 }
}

impl Bench {
    fn say(&mut self, peer: u32, control: &Control<'_>) {
        self.sender.handle(self.now, SenderInput::Control { peer: PeerId(peer), control });
    }

    fn drain(&mut self) {
        while let Some(output) = self.sender.poll(self.now) {
            match output {
                SenderOutput::Send { round, sn, count, .. } => {
                    self.position = u64::from(round) * FRAGMENTS + sn + u64::from(count);
                }
                SenderOutput::Settled { peer, failure } => {
                    self.settled.insert(peer.0, (self.now, failure));
                }
                SenderOutput::Control { peer, control: Control::Speaker { port: 0, .. } } => {
                    self.alone.push(peer.0);
                }
                _ => {}
            }
        }
    }

    /// Goes on until then; `say` is what receivers say each time.
    fn run(&mut self, until: Time, mut say: impl FnMut(&mut Bench)) {
        while self.now < until {
            self.now += STEP;
            say(self);
            self.drain();
        }
    }

    fn assert_idle(&self, peer: u32) {
        let (at, why) = self.settled.get(&peer).unwrap_or_else(|| panic!("{peer} holds the transfer"));
        assert_eq!(*why, Some(Why::NoProgress(PATIENCE)), "{peer}");
        assert!((seconds(29)..seconds(60)).contains(at), "{peer} at {at:?}");
    }
}

/// Whatever else it says: that it lives, that it gets on, that it lacks something, or that it has everything.
#[test]
fn who_lives_and_gets_nothing_done_has_failed() {
    for multicast in [true, false] {
        let mut bench = start(SenderConfig { multicast, ..config(geometry(FRAGMENTS)) }, 5);
        bench.run(seconds(90), |bench| {
            let position = bench.position;
            bench.say(0, &Control::Alive);
            for peer in 1..5 {
                bench.say(peer, &Control::IntlSeq { position: 0 });
            }
            bench.say(1, &progress(position, 0));
            bench.say(2, &progress(position, 0));
            bench.say(2, &Control::PtchReq(vec![3..5, 9..20]));
            bench.say(3, &progress(position, u64::MAX));
            bench.say(4, &progress(position, 70_000));
            if bench.now >= seconds(1) {
                bench.say(4, &Control::DataRcvd { patched_bytes: 0, proof: [0; 32] });
            }
        });
        assert_eq!(bench.settled.get(&4).map(|(_, why)| why), Some(&None), "it is done");
        (0..4).for_each(|peer| bench.assert_idle(peer));
    }
}

/// Its reports trickle, so that the stream does: it must not take the transfer as long as it likes.
#[test]
fn who_trickles_has_failed() {
    let mut bench = start(config(geometry(20_000)), 1);
    bench.drain();
    let mut said = 0;
    bench.run(seconds(60), |bench| {
        bench.say(0, &Control::IntlSeq { position: 0 });
        if bench.now >= Time(1) + Duration::from_millis(800) * said {
            said += 1;
            bench.say(0, &progress(said, 0));
        }
    });
    bench.assert_idle(0);
}

#[test]
fn who_waits_for_a_path_or_for_the_source_is_not_idle() {
    // A path that is being set up.
    let mut waiting = ready(config(geometry(FRAGMENTS)), 1);
    waiting.sender.handle(Time(1), SenderInput::PathWaits(true));
    waiting.sender.handle(Time(1), SenderInput::Start);
    waiting.run(seconds(100), |bench| bench.say(0, &Control::Alive));
    assert!(waiting.settled.is_empty(), "{:?}", waiting.settled);
    // One whose allowance is used up.
    let mut paused = start(SenderConfig { allowance: Some(20), ..config(geometry(FRAGMENTS)) }, 1);
    paused.run(seconds(100), |bench| {
        let position = bench.position;
        bench.say(0, &Control::IntlSeq { position: 0 });
        bench.say(0, &progress(position, 9_000));
    });
    assert!(paused.settled.is_empty(), "{:?}", paused.settled);
    // A source that was stopped, and hears a sign of life when it goes on.
    let patient = Duration::from_secs(1_000);
    let mut stopped = start(SenderConfig { stall_timeout: patient, ..config(geometry(FRAGMENTS)) }, 1);
    stopped.run(seconds(5), |bench| bench.say(0, &Control::Alive));
    for hour in 1..5 {
        stopped.now = seconds(hour * 100);
        stopped.drain();
    }
    assert!(stopped.settled.is_empty(), "{:?}", stopped.settled);
}

/// A slow disk verifies something now and then.
#[test]
fn who_is_slow_is_not_idle() {
    for multicast in [true, false] {
        let mut bench = start(SenderConfig { multicast, ..config(geometry(FRAGMENTS)) }, 1);
        bench.run(seconds(200), |bench| {
            let (position, verified) = (bench.position, 1 + bench.now.0 / 25_000_000_000);
            bench.say(0, &Control::IntlSeq { position: 0 });
            bench.say(0, &progress(position, verified));
        });
        assert!(bench.settled.is_empty(), "{:?}", bench.settled);
    }
}

/// A rack's reports tell of the slowest: when that one gets nothing done, the others speak for themselves
/// before any fails. What a speaker makes up of its rack costs no member of it a place: the members say how
/// far they are when they speak again.
#[test]
fn a_speaker_that_says_too_much_fails_no_member_of_its_rack() {
    let mut bench = start(config(geometry(FRAGMENTS)), 3);
    let members = [1, 2].map(PeerId).into();
    bench.sender.handle(Time(1), SenderInput::Rack { speaker: PeerId(0), members });
    bench.run(seconds(200), |bench| {
        let (position, bytes) = (bench.position, 1 + bench.now.0 / 10_000_000_000);
        (0..3).for_each(|peer| bench.say(peer, &Control::IntlSeq { position: 0 }));
        if bench.alone.is_empty() {
            bench.say(0, &Control::Rack(vec![1, 2]));
        } else {
            bench.say(1, &progress(position, bytes));
            bench.say(2, &progress(position, bytes));
        }
        bench.say(0, &progress(position, u64::MAX));
    });
    assert_eq!(bench.alone, [1, 2]);
    let failed: Vec<_> = bench.settled.keys().filter(|peer| **peer != 0).collect();
    assert!(failed.is_empty(), "{failed:?}");
}

#[test]
fn one_idle_receiver_does_not_fail_its_rack() {
    let mut bench = start(config(geometry(FRAGMENTS)), 3);
    let members = [1, 2].map(PeerId).into();
    bench.sender.handle(Time(1), SenderInput::Rack { speaker: PeerId(0), members });
    bench.run(seconds(100), |bench| {
        let (position, bytes) = (bench.position, 1 + bench.now.0 / 10_000_000_000);
        (0..3).for_each(|peer| bench.say(peer, &Control::IntlSeq { position: 0 }));
        if bench.alone.is_empty() {
            bench.say(0, &Control::Rack(vec![1, 2]));
            bench.say(0, &progress(position, 0));
        } else {
            bench.say(0, &progress(position, bytes));
            bench.say(1, &progress(position, bytes));
            bench.say(2, &progress(position, 0));
        }
    });
    assert_eq!(bench.alone, [1, 2]);
    let failed: Vec<_> = bench.settled.iter().map(|(peer, (at, why))| (*peer, *at, why.clone())).collect();
    let [(2, at, Some(Why::NoProgress(_)))] = failed[..] else { panic!("{failed:?}") };
    assert!((seconds(60)..seconds(80)).contains(&at), "{at:?}");
}
