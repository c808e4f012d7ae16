//! The pull machines, which hear anything at all: they neither panic nor go beyond their bounds, what they
//! say makes sense, and when the truth comes at last it still helps.

use polycast_protocol::pull::{
    Blocks, Data, Decision, Digest, Face, Forwarder, ForwarderConfig, ForwarderInput, ForwarderOutput, Hop,
    Interest, Name, Packet, Payload, RateConfig, Receiver, ReceiverConfig, ReceiverInput, ReceiverOutput,
    RetryTime, Route, Source, SourceConfig, SourceInput, SourceOutput,
};
use polycast_types::{Duration, Handle, Time};
use proptest::prelude::*;
use rand_core::Rng;
use rand_pcg::Pcg64Mcg;
use std::collections::BTreeSet;

const HANDLE: Handle = Handle(5);
/// A machine that is drained says at most so much at one time.
const OUTPUTS_MAX: usize = 50_000;

/// Draws what keeps to the format and to nothing else.
struct Liar(Pcg64Mcg);

impl Liar {
    fn new(seed: u64) -> Self {
        Liar(Pcg64Mcg::new(u128::from(seed) << 1 | 1))
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.0.next_u64() % limit.max(1)
    }

    fn number(&mut self, near: u64) -> u64 {
        match self.below(10) {
            0 => 0,
            1..=5 => self.below(near.saturating_mul(2).saturating_add(2)),
            6 | 7 => near.saturating_add(self.below(3)).saturating_sub(1),
            8 => u64::MAX - self.below(3),
            _ => self.0.next_u64(),
        }
    }

    fn name(&mut self, near: u64) -> Name {
        let transfer = if self.below(8) == 0 { Handle(self.number(5)) } else { HANDLE };
        Name::new(transfer, self.number(near)).with_digest(Digest([self.below(2) as u8; 16]))
    }

    /// Any route that a packet can carry.
    fn route(&mut self) -> Route {
        let hops: Vec<u8> =
            (0..1 + self.below(14)).map(|_| (self.below(5) | self.below(2) << 7) as u8).collect();
        let at = self.below(hops.len() as u64 + 1) as u8;
        Route::from_bytes(&hops, at).expect("it is within bounds")
    }

    fn interest(&mut self, near: u64) -> Interest {
        let (name, route) = (self.name(near), self.route());
        Interest { name, route, tree: self.number(3) as u8, fresh: self.below(4) == 0 }
    }

    fn data(&mut self, near: u64, length: u16) -> Data {
        let decision = match self.below(5) {
            0 => Decision::Next(self.number(6) as u32),
            1 => Decision::End,
            2 => Decision::At(self.number(near) as u32),
            _ => Decision::Open,
        };
        let length = if self.below(8) == 0 { self.number(u64::from(length)) as u16 } else { length };
        let (name, route, tree) = (self.name(near), self.route(), self.number(3) as u8);
        Data { name, route, decision, length, tree, again: self.below(4) == 0 }
    }

    /// Advances the time: mostly a little, at times for years.
    fn pass(&mut self, now: Time) -> Time {
        now + match self.below(12) {
            0..=3 => Duration::ZERO,
            4..=8 => Duration(self.below(2_000_000)),
            9 | 10 => Duration(self.below(700_000_000)),
            _ => Duration(self.below(1 << 52)),
        }
    }
}

fn way() -> Route {
    Route::new(&[Hop { port: 1, non_branching: false }]).expect("one hop is a route")
}

fn source(blocks: Blocks, trees: u8) -> Source {
    Source::new(SourceConfig {
        transfer: HANDLE,
        blocks,
        trees,
        credits: 4,
        rate: RateConfig::for_link(1_000_000_000),
        header_bytes: 72,
        decide_ahead: 4,
        waiting_max: 20,
        chance: blocks.packets().is_multiple_of(3),
    })
}

fn receiver(blocks: Blocks, trees: u8, retry: RetryTime) -> Receiver {
    Receiver::new(ReceiverConfig {
        transfer: HANDLE,
        blocks,
        routes: vec![Some(way()); usize::from(trees)],
        credits: 5,
        retry,
        overtaken: blocks.packets().is_multiple_of(2).then_some(3),
        stalled_after: Duration::from_secs(1),
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_forwarder_survives_whatever_comes(
        seed: u64, steps in 1usize..400, store_packets in 0u32..12, pending_interests in 1u32..8,
    ) {
        let config = ForwarderConfig { store_packets, pending_interests, ..ForwarderConfig::for_ports(4) };
        let mut node = Forwarder::new(config);
        let (mut liar, mut now) = (Liar::new(seed), Time(1));
        for _ in 0..steps {
            now = liar.pass(now);
            let from = if liar.below(5) == 0 { Face::Local } else { Face::Port(liar.below(4) as u8) };
            let interest = liar.below(2) == 0;
            let packet = match interest {
                true => Packet::Interest(liar.interest(6)),
                false => Packet::Data(liar.data(6, 100)),
            };
            node.handle(now, ForwarderInput::Packet { from, packet });
            let mut outputs = 0;
            while let Some(output) = node.poll(now) {
                outputs += 1;
                match output {
                    ForwarderOutput::Send { port, packet, payload } => {
                        prop_assert!(port < 4, "port {}", port);
                        // Whatever it was made of, it can be written.
                        let _ = packet.to_wire();
                        prop_assert!(!matches!(payload, Payload::Slot(slot) if slot >= store_packets));
                        prop_assert!(!interest || matches!(packet, Packet::Data(_)) || from != Face::Port(port));
                    }
                    ForwarderOutput::Keep { slot } => prop_assert!(slot < store_packets && !interest),
                    ForwarderOutput::Deliver { .. } => {}
                    ForwarderOutput::Serve { port, interest } => {
                        prop_assert!(from == Face::Port(port) && interest.route.port() == Some(port));
                    }
                }
            }
            // One for each port, one for its own receiver, one for the store.
            prop_assert!(outputs <= 6, "{} outputs for one packet", outputs);
            prop_assert!(node.kept() <= store_packets && node.pending() <= pending_interests);
        }
        node.forget_pending_before(Time(u64::MAX));
        prop_assert_eq!(node.pending(), 0);
        node.check();
    }

    #[test]
    fn a_source_survives_whatever_comes(seed: u64, steps in 1usize..400, packets in 1u64..120, trees in 1u8..4) {
        let blocks = Blocks::new(packets * 1_000, 1_000, 10_000).unwrap();
        let mut source = source(blocks, trees);
        prop_assert_eq!(source.trees(), trees);
        let (mut liar, mut now) = (Liar::new(seed), Time(1));
        let (mut interests, mut left) = (0, Vec::new());
        for _ in 0..steps {
            now = liar.pass(now);
            let number = liar.number(u64::from(trees)) as u8;
            let input = match liar.below(20) {
                0 => SourceInput::TreeGone { tree: number },
                1 => SourceInput::TreeBack { tree: number },
                2 => SourceInput::Port { port: liar.below(4) as u8, open: liar.below(2) == 0 },
                _ => {
                    // What a forwarder gives it: the way back, which begins here.
                    let route = Route::from_bytes(liar.route().bytes(), 0).unwrap();
                    let interest = Interest { route, ..liar.interest(packets) };
                    interests += 1;
                    SourceInput::Interest { port: liar.below(4) as u8, interest }
                }
            };
            source.handle(now, input);
            left.extend(sent(&mut source, now, &blocks));
        }
        (0..trees).for_each(|tree| source.handle(now, SourceInput::TreeBack { tree }));
        (0..4).for_each(|port| source.handle(now, SourceInput::Port { port, open: true }));
        // An honest receiver, at a port of its own.
        let mut missing: BTreeSet<u64> = (0..packets).collect();
        for round in 0..2_000 {
            now += Duration::from_millis(1);
            for &sn in missing.iter().take(4) {
                let name = Name::new(HANDLE, sn);
                let interest = Interest { name, route: way(), tree: (round % trees as usize) as u8, fresh: false };
                source.handle(now, SourceInput::Interest { port: 9, interest });
                interests += 1;
            }
            for (port, data) in sent(&mut source, now, &blocks) {
                if port == 9 {
                    missing.remove(&data.name.sn);
                }
                left.push((port, data));
            }
        }
        prop_assert!(missing.is_empty(), "{} of {} packets are missing", missing.len(), packets);
        // All that came and all that was sent was counted, once.
        let all: u64 = (0..trees).map(|tree| source.counters(tree).interests).sum();
        prop_assert_eq!(all + source.refused(), interests);
        for tree in 0..trees {
            let own = || left.iter().map(|(_, data)| data).filter(|data| data.tree == tree);
            let first = own().filter(|data| !data.again).map(|data| u64::from(data.length)).sum::<u64>();
            let bytes = own().map(|data| u64::from(data.length)).sum::<u64>();
            let counted = source.counters(tree);
            prop_assert_eq!(counted.packets, own().count() as u64);
            prop_assert_eq!((counted.sent_bytes, counted.first_bytes), (bytes, first));
        }
    }

    #[test]
    fn a_receiver_survives_whatever_comes(
        seed: u64, steps in 1usize..400, packets in 1u64..120, trees in 1u8..4, adaptive: bool, lists: bool,
    ) {
        let plain = Blocks::new(packets * 1_000, 1_000, 10_000).unwrap();
        let blocks = if lists { plain.with_lists(512).unwrap() } else { plain };
        let numbers = blocks.numbers();
        let retry = match adaptive {
            true => RetryTime::Adaptive { initial: Duration::from_millis(50), least: Duration::from_millis(5) },
            false => RetryTime::Fixed(Duration::from_millis(20)),
        };
        let mut receiver = receiver(blocks, trees, retry);
        let (mut liar, mut now) = (Liar::new(seed), Time(1));
        let mut begun = false;
        let mut asked: Vec<Interest> = Vec::new();
        let mut interests = 0;
        for _ in 0..steps {
            now = liar.pass(now);
            let tree = liar.number(u64::from(trees)) as u8;
            let sns = liar.number(packets)..liar.number(packets);
            let input = match liar.below(30) {
                0 if !begun => ReceiverInput::Held { sns },
                1 | 2 if !std::mem::replace(&mut begun, true) => ReceiverInput::Begin,
                3 => ReceiverInput::Roots { until: liar.below(packets) },
                4 => ReceiverInput::Corrupt { sns },
                5 => ReceiverInput::Rerouted { tree, route: (liar.below(2) == 0).then(way) },
                6 => ReceiverInput::Regained { tree, route: way(), block: liar.number(12) as u32 },
                7..=15 if !asked.is_empty() => {
                    // An answer, with a decision that leads anywhere.
                    let interest = asked.swap_remove(liar.below(asked.len() as u64) as usize);
                    let forged = liar.data(numbers, blocks.length_of(interest.name.sn));
                    ReceiverInput::Data(Data { name: interest.name, tree: interest.tree, ..forged })
                }
                _ => ReceiverInput::Data(liar.data(numbers, 1_000)),
            };
            receiver.handle(now, input);
            let news = asks(&mut receiver, now, &blocks);
            interests += news.len() as u64;
            asked.extend(news);
            prop_assert_eq!(receiver.counters().interests, interests);
        }
        if !begun {
            receiver.handle(now, ReceiverInput::Begin);
        }
        receiver.handle(now, ReceiverInput::Roots { until: u64::MAX });
        (0..trees).for_each(|tree| receiver.handle(now, ReceiverInput::Rerouted { tree, route: Some(way()) }));
        // Whatever was said to it: now every interest is answered.
        for _ in 0..5_000 {
            if receiver.is_complete() {
                break;
            }
            let interests = asks(&mut receiver, now, &blocks);
            for interest in &interests {
                let Name { sn, .. } = interest.name;
                let (name, length) = (Name::new(HANDLE, sn), blocks.length_of(sn));
                let (decision, tree) = (Decision::Open, interest.tree);
                let data = Data { name, route: way(), decision, length, tree, again: false };
                receiver.handle(now, ReceiverInput::Data(data));
            }
            if interests.is_empty() {
                now = now.max(receiver.deadline().unwrap_or(now));
            }
        }
        prop_assert!(receiver.is_complete(), "{} of {} packets", receiver.packets(), packets);
    }
}

/// Everything that a source sends now.
fn sent(source: &mut Source, now: Time, blocks: &Blocks) -> Vec<(u8, Data)> {
    let mut sent = Vec::new();
    while let Some(SourceOutput::Send { port, data }) = source.poll(now) {
        assert!(blocks.exists(data.name.sn) && data.length == blocks.length_of(data.name.sn), "{data:?}");
        assert!(!matches!(data.decision, Decision::Next(block) if block >= blocks.count()), "{data:?}");
        let _ = Packet::Data(data).to_wire();
        sent.push((port, data));
        assert!(sent.len() < OUTPUTS_MAX, "it never ends");
    }
    source.check();
    sent
}

/// Everything that a receiver asks for now.
fn asks(receiver: &mut Receiver, now: Time, blocks: &Blocks) -> Vec<Interest> {
    let mut asked = Vec::new();
    for _ in 0..OUTPUTS_MAX {
        let Some(output) = receiver.poll(now) else {
            assert!(receiver.deadline().is_none_or(|at| at > now), "drained, yet due at {now:?}");
            receiver.check();
            return asked;
        };
        match output {
            ReceiverOutput::Ask(interest) => {
                assert!(blocks.exists(interest.name.sn), "{interest:?}");
                asked.push(interest);
            }
            ReceiverOutput::Keep { sn, .. } => assert!(blocks.exists(sn)),
            ReceiverOutput::Listed { section } => assert!(section < blocks.sections()),
            ReceiverOutput::Complete | ReceiverOutput::Stalled { .. } => {}
        }
    }
    panic!("it never ends at {now:?}");
}
