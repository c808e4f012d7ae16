//! The machines of the push transport, which hear whatever peers may say.

use crate::words::{HANDLE, INPUTS_MAX, Words, drain, emitted, hear};
use polycast_protocol::push::coded::Coded;
use polycast_protocol::push::{
    FullRate, Geometry, PeerId, Receiver, ReceiverConfig, ReceiverInput, ReceiverOutput, Sender,
    SenderConfig, SenderInput, SenderOutput, SlowPolicy,
};
use polycast_protocol::session::Why;
use polycast_types::{Duration, RangeSet, Rate, Time};
use polycast_wire::control::{Control, RANGES_MAX};
use polycast_wire::data::{CODED_FRAGMENTS_MAX, CodedHeader, Header};
use std::collections::BTreeSet;

const PEERS: u32 = 6;

/// A division as WELCOME may have it, of an object that is not too large for a short run.
fn geometry(words: &mut Words<'_>) -> Geometry {
    let fragment_len = 1 + words.below(65_535) as u32;
    let fragments = words.below(300);
    let object_len =
        (fragments * u64::from(fragment_len)).saturating_sub(words.below(u64::from(fragment_len)));
    Geometry { object_len, fragment_len, group_len: 1 << (16 + words.below(5)) }
}

fn rate(words: &mut Words<'_>) -> Option<Rate> {
    words.flip().then(|| Rate(1 + words.below(400_000_000_000)))
}

/// A sender, and what it has said.
struct Heard {
    sender: Sender,
    fragments: u64,
    joined: BTreeSet<PeerId>,
    settled: BTreeSet<PeerId>,
    started: bool,
    position: u64,
}

impl Heard {
    fn new(words: &mut Words<'_>) -> Self {
        let geometry = geometry(words);
        let sender = Sender::new(SenderConfig {
            handle: HANDLE,
            geometry,
            batch: 1 + words.below(64) as u32,
            rate: rate(words),
            multicast: words.below(4) > 0,
            allowance: words.flip().then(|| words.below(1 << 20)),
            attempt_interval: Duration::from_micros(500).into(),
            path_timeout: Duration::from_millis(500),
            stall_timeout: Duration::from_secs(5),
            progress_timeout: Duration::from_secs(30),
            deadline: words.flip().then(|| words.span()),
            slow: SlowPolicy::CatchUp { after: Duration::from_millis(400) },
            full_rate: FullRate::Settled,
            patch_delay: Duration::from_millis(5),
            sealed: false,
            first: words.below(geometry.fragments().max(1)),
            location: words.location(),
        });
        Heard {
            sender,
            fragments: geometry.fragments(),
            joined: BTreeSet::new(),
            settled: BTreeSet::new(),
            started: false,
            position: 0,
        }
    }

    fn input(&mut self, now: Time, words: &mut Words<'_>) {
        let peer = PeerId(words.below(PEERS.into()) as u32);
        let near = if words.flip() { self.fragments } else { self.position };
        let sender = &mut self.sender;
        match words.below(20) {
            0 | 1 if self.joined.insert(peer) => {
                let (have, window_bytes) = (words.range_set(self.fragments), words.number(1 << 20));
                sender
                    .handle(now, SenderInput::Ready { peer, window_bytes, have, location: words.location() });
            }
            2 if !std::mem::replace(&mut self.started, true) => sender.handle(now, SenderInput::Start),
            3 => sender.handle(now, SenderInput::Left { peer, why: Why::WentAway }),
            4 => {
                let members = words.members(PEERS).into_iter().map(PeerId).filter(|member| *member != peer);
                sender.handle(now, SenderInput::Rack { speaker: peer, members: members.collect() });
            }
            5 => sender.handle(now, SenderInput::PathLost),
            6 => sender.handle(now, SenderInput::PathWaits(words.flip())),
            7 => {
                let (rate, allowance) = (rate(words), words.flip().then(|| words.below(50)));
                let attempt_interval = Duration::from_micros(500).into();
                sender.handle(now, SenderInput::Path { rate, attempt_interval, allowance });
            }
            9 => {
                let (candidate, for_good) = (PeerId(words.below(PEERS.into()) as u32), words.flip());
                sender.handle(now, SenderInput::Useless { peer, candidate, for_good });
            }
            8 => sender.handle(now, if words.flip() { SenderInput::Close } else { SenderInput::Open }),
            _ => {
                let frame = words.frame_to_source(near, PEERS);
                hear(&frame, |control| sender.handle(now, SenderInput::Control { peer, control }));
            }
        }
    }

    fn judge(&mut self, output: SenderOutput) {
        match output {
            SenderOutput::Send { round, sn, count, .. } => {
                let position = u64::from(round) * self.fragments + sn;
                assert!(position >= self.position, "position {position} after {}", self.position);
                assert!(count > 0 && sn + u64::from(count) <= self.fragments);
                self.position = position + u64::from(count);
            }
            SenderOutput::SendPatch(sns) => {
                assert!(sns.iter().all(|sn| *sn < self.fragments), "{sns:?}");
                assert!((1..=CODED_FRAGMENTS_MAX).contains(&sns.len()), "{} in a patch", sns.len());
                assert!(sns.len() == 1 || CodedHeader::new(HANDLE, &sns).is_some(), "{sns:?} is no header");
            }
            SenderOutput::Patch { sns, .. } => {
                assert!(!sns.is_empty() && sns.end <= self.fragments, "{sns:?}")
            }
            SenderOutput::Settled { peer, failure } => {
                assert!(self.joined.contains(&peer) && self.settled.insert(peer), "{peer:?} settled twice");
                if let Some(why) = failure {
                    emitted(&Control::Refuse(&why.to_string()));
                }
            }
            SenderOutput::Candidates(told) => {
                assert!(
                    !self.settled.contains(&told.peer)
                        && told.from.iter().all(|(from, _)| *from != told.peer),
                    "{told:?}"
                );
            }
            SenderOutput::AllowanceUsed { remaining_bytes } => assert!(remaining_bytes > 0),
            SenderOutput::Control { peer, control } => {
                assert!(self.joined.contains(&peer));
                emitted(&control);
            }
            SenderOutput::Finished => {}
        }
    }
}

/// A sender survives whatever receivers say, and what it says makes sense.
pub fn push_sender(bytes: &[u8]) {
    let mut words = Words::new(bytes);
    let (mut heard, mut now) = (Heard::new(&mut words), Time(1));
    for _ in 0..INPUTS_MAX {
        if words.is_empty() {
            break;
        }
        words.pass(&mut now);
        heard.input(now, &mut words);
        heard.sender.check();
        if words.below(4) > 0 {
            drain(&mut heard, |heard| heard.sender.poll(now), |heard, output| heard.judge(output));
            heard.sender.check();
            assert!(heard.sender.deadline().is_none_or(|at| at > now), "drained, yet due at {now:?}");
        }
    }
}

/// A receiver, and what it has said.
struct Told {
    machine: Receiver,
    coded: Coded<()>,
    fragments: u64,
    groups: u64,
    kept: RangeSet,
    begun: bool,
    complete: bool,
}

impl Told {
    fn new(words: &mut Words<'_>) -> Self {
        let geometry = geometry(words);
        let window_bytes = words.number(1 << 20);
        Told {
            machine: Receiver::new(ReceiverConfig::new(geometry, window_bytes, 0)),
            coded: Coded::default(),
            fragments: geometry.fragments(),
            groups: geometry.groups(),
            kept: RangeSet::new(),
            begun: false,
            complete: false,
        }
    }

    fn input(&mut self, now: Time, words: &mut Words<'_>) {
        let near = self.fragments;
        let machine = &mut self.machine;
        match words.below(16) {
            0 if !self.begun => machine.handle(now, ReceiverInput::Held { group: words.number(self.groups) }),
            1 if !std::mem::replace(&mut self.begun, true) => machine.handle(now, ReceiverInput::Begin),
            2 => machine.handle(now, ReceiverInput::Fetched { group: words.number(self.groups) }),
            3 if words.below(8) == 0 => machine.handle(now, ReceiverInput::Chained),
            4 | 5 => {
                let frame = words.frame_to_receiver(near);
                hear(&frame, |control| machine.handle(now, ReceiverInput::Control(control)));
            }
            6 | 7 => {
                let (sn, count) = (words.number(near), 1 + words.small(7) % 70_000);
                machine.handle(now, ReceiverInput::Patched { sn, count });
            }
            8 => {
                let sns: Vec<u64> = (0..words.below(17)).map(|_| words.number(near)).collect();
                self.patch(now, &sns);
            }
            9 | 10 => {
                let datagram = words.bytes(120);
                let arrived = Time(words.number(now.0));
                match Header::parse(datagram) {
                    Ok((Header::Fragment(header), _)) => {
                        let (round, sn, flags) = (header.round, header.sn, header.flags);
                        machine.handle(now, ReceiverInput::Data { round, sn, count: 1, flags, arrived });
                    }
                    Ok((Header::Coded(header), _)) => self.patch(now, header.sns()),
                    Err(_) => {}
                }
            }
            _ => {
                let round = if words.below(8) == 0 { words.small(3) } else { words.below(2) as u32 };
                let count = if words.below(4) == 0 { words.small(9) } else { 1 + words.below(64) as u32 };
                let (sn, flags) = (words.number(near), words.below(16) as u8);
                let arrived = Time(words.number(now.0));
                machine.handle(now, ReceiverInput::Data { round, sn, count, flags, arrived });
            }
        }
    }

    /// A coded patch has come: what can be taken out of it, and of those that wait for it, is.
    fn patch(&mut self, now: Time, sns: &[u64]) {
        assert!(self.machine.missing_of(sns) <= sns.len());
        let mut sn = self.coded.came(&self.machine, sns, || ());
        while let Some(found) = sn {
            assert!(self.machine.missing_run(found, 1) == 1, "{found} is not missing");
            self.machine.handle(now, ReceiverInput::Patched { sn: found, count: 1 });
            sn = self.coded.next_decodable(&self.machine).map(|decodable| decodable.sn);
        }
        assert!(self.coded.len() <= polycast_protocol::push::coded::UNDECODED_MAX);
    }

    fn judge(&mut self, now: Time, output: ReceiverOutput, intact: bool) {
        match output {
            ReceiverOutput::Keep { sn, count } => {
                assert!(count > 0 && sn + u64::from(count) <= self.fragments, "{count} from {sn}");
                self.kept.insert(sn..sn + u64::from(count));
            }
            ReceiverOutput::Check { group } => {
                assert!(group < self.groups);
                self.machine.handle(now, ReceiverInput::Checked { group, intact });
            }
            ReceiverOutput::Control(control) | ReceiverOutput::Repeat(control) => {
                emitted(&control);
                if let Control::PtchReq(ranges) | Control::Have(ranges) = control {
                    assert!(ranges.len() <= RANGES_MAX && ranges.iter().all(|range| !range.is_empty()));
                    assert!(ranges.iter().all(|range| range.end <= self.fragments), "{ranges:?}");
                }
            }
            ReceiverOutput::Complete => {
                assert!(!std::mem::replace(&mut self.complete, true), "complete twice");
                self.machine.handle(now, ReceiverInput::Committed { proof: [7; 32] });
            }
        }
    }

    fn drain(&mut self, now: Time, intact: bool) {
        drain(self, |told| told.machine.poll(now), |told, output| told.judge(now, output, intact));
        self.machine.check();
        assert!(self.machine.deadline().is_none_or(|at| at > now), "drained, yet due at {now:?}");
    }

    /// Whatever was said to it: when everything comes at last, it is done.
    fn finish(mut self, now: Time) {
        self.drain(now, true);
        if !self.begun {
            self.machine.handle(now, ReceiverInput::Begin);
        }
        // At the source itself: a group that was spoiled twice is taken from no other member.
        for sn in 0..self.fragments {
            self.machine.handle(now, ReceiverInput::Sent { sn, count: 1 });
        }
        self.drain(now, true);
        let verified = self.machine.verified_bytes();
        assert!(self.complete, "{verified} bytes of {} fragments", self.fragments);
    }
}

/// A receiver survives whatever a source and strangers say, and is done when everything has come.
pub fn push_receiver(bytes: &[u8]) {
    let mut words = Words::new(bytes);
    let (mut told, mut now) = (Told::new(&mut words), Time(1));
    for _ in 0..INPUTS_MAX {
        if words.is_empty() {
            break;
        }
        words.pass(&mut now);
        told.input(now, &mut words);
        told.machine.check();
        if words.below(4) > 0 {
            let intact = words.below(8) > 0;
            told.drain(now, intact);
        }
    }
    told.finish(now);
}
