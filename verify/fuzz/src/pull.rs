//! The machines of the pull transport: source, nodes on the way, receiver.

use crate::words::{HANDLE, INPUTS_MAX, Words, drain, hear};
use polycast_protocol::pull::{
    Blocks, Data, Decision, Digest, Face, Forwarder, ForwarderConfig, ForwarderInput, ForwarderOutput,
    HOPS_MAX, Interest, Name, Packet, Payload, RateConfig, Receiver, ReceiverConfig, ReceiverInput,
    ReceiverOutput, Replacement, RetryTime, Route, Source, SourceConfig, SourceInput, SourceOutput,
};
use polycast_types::{Duration, Handle, Time};
use polycast_wire::control::Control;
use polycast_wire::pull;

const TREES: u8 = 3;
const PORTS: u8 = 4;
const PAYLOAD_BYTES: u16 = 100;

fn blocks(words: &mut Words<'_>) -> Blocks {
    let (object_bytes, block_bytes) = (words.below(30_000), 1 + words.below(2_000));
    let plain = Blocks::new(object_bytes, PAYLOAD_BYTES, block_bytes).expect("sizes that can be");
    // A node on the way knows nothing of lists; their packets are asked for and sent like others.
    if object_bytes.is_multiple_of(2) { plain.with_lists(512).expect("room for names") } else { plain }
}

fn route(words: &mut Words<'_>) -> Route {
    let hops: Vec<u8> = (0..=words.below(3)).map(|_| words.small(PORTS.into()) as u8).collect();
    let at = words.below(hops.len() as u64 + 1) as u8;
    Route::from_bytes(&hops, at).expect("a route of a few hops")
}

fn name(words: &mut Words<'_>, packets: u64) -> Name {
    let transfer = if words.below(16) == 0 { Handle(words.number(7)) } else { HANDLE };
    Name::new(transfer, words.number(packets)).with_digest(Digest([words.below(3) as u8; 16]))
}

fn interest(words: &mut Words<'_>, packets: u64) -> Interest {
    let (tree, fresh) = (words.small(TREES.into()) as u8, words.flip());
    Interest { name: name(words, packets), route: route(words), tree, fresh }
}

fn data(words: &mut Words<'_>, packets: u64) -> Data {
    let decision = match words.below(4) {
        0 => Decision::Open,
        1 => Decision::At(words.number(packets) as u32),
        2 => Decision::Next(words.small(9)),
        _ => Decision::End,
    };
    let (length, tree) = (words.number(PAYLOAD_BYTES.into()) as u16, words.small(TREES.into()) as u8);
    Data { name: name(words, packets), route: route(words), decision, length, tree, again: words.flip() }
}

/// A packet as it comes out of a datagram.
fn packet(words: &mut Words<'_>, packets: u64) -> Option<Packet> {
    match words.below(8) {
        0 => match pull::Packet::parse(words.bytes(120)) {
            Ok(pull::Packet::Transfer(header, payload)) => {
                Some(Packet::from_wire(&header, payload.len().min(usize::from(u16::MAX)) as u16))
            }
            _ => None,
        },
        1..=4 => Some(Packet::Interest(interest(words, packets))),
        _ => Some(Packet::Data(data(words, packets))),
    }
}

/// Checks that a machine's packet can be written, and is read as the same.
fn sent(packet: &Packet, length: u16) {
    let header = packet.to_wire();
    let datagram = header.emit();
    match pull::Packet::parse(&datagram) {
        Ok(pull::Packet::Transfer(read, _)) => assert_eq!(Packet::from_wire(&read, length), *packet),
        // Data without payload is none, and the payload is the driver's.
        read => assert!(matches!(packet, Packet::Data(_)), "{packet:?} is read as {read:?}"),
    }
}

/// A source survives all interests, and sends only what there is.
pub fn pull_source(bytes: &[u8]) {
    let mut words = Words::new(bytes);
    let (blocks, mut now) = (blocks(&mut words), Time(1));
    let mut node = Forwarder::new(ForwarderConfig::for_ports(PORTS));
    let mut source = Source::new(SourceConfig {
        transfer: HANDLE,
        blocks,
        trees: TREES,
        credits: 1 + words.below(16) as u32,
        rate: RateConfig::in_proportion(words.number(1_000_000_000), PAYLOAD_BYTES.into()),
        header_bytes: 56,
        decide_ahead: 1 + words.below(16) as u32,
        waiting_max: 1 + words.below(16) as u32,
        chance: words.flip(),
    });
    for _ in 0..INPUTS_MAX {
        if words.is_empty() {
            break;
        }
        words.pass(&mut now);
        let tree = words.small(TREES.into()) as u8;
        match words.below(8) {
            0 => source.handle(now, SourceInput::TreeGone { tree }),
            1 => source.handle(now, SourceInput::TreeBack { tree }),
            2 => {
                let (port, open) = (words.below(PORTS.into()) as u8, words.flip());
                source.handle(now, SourceInput::Port { port, open });
            }
            _ => {
                let from = Face::Port(words.below(PORTS.into()) as u8);
                let Some(packet) = packet(&mut words, blocks.numbers()) else { continue };
                node.handle(now, ForwarderInput::Packet { from, packet });
            }
        }
        // Interests come through the node in front of it.
        drain(
            &mut node,
            |node| node.poll(now),
            |_, output| {
                if let ForwarderOutput::Serve { port, interest } = output {
                    source.handle(now, SourceInput::Interest { port, interest });
                }
            },
        );
        source.check();
        drain(
            &mut source,
            |source| source.poll(now),
            |_, SourceOutput::Send { port, data }| {
                assert!(port < PORTS && blocks.exists(data.name.sn), "{data:?}");
                assert_eq!(data.length, blocks.length_of(data.name.sn));
                sent(&Packet::Data(data), data.length);
            },
        );
        assert!(source.deadline().is_none_or(|at| at > now), "drained, yet due at {now:?}");
    }
}

/// A receiver survives all packets and all words of the source, keeps each packet once, and is complete when
/// it has all.
pub fn pull_receiver(bytes: &[u8]) {
    let mut words = Words::new(bytes);
    let (blocks, mut now) = (blocks(&mut words), Time(1));
    let routes = (0..TREES).map(|_| words.flip().then(|| route(&mut words))).collect();
    let initial = Duration::from_millis(1 + words.below(50));
    let mut receiver = Receiver::new(ReceiverConfig {
        transfer: HANDLE,
        blocks,
        routes,
        credits: 1 + words.below(16) as u32,
        retry: if words.flip() {
            RetryTime::Fixed(initial)
        } else {
            RetryTime::Adaptive { initial, least: Duration::from_millis(1) }
        },
        overtaken: words.flip().then(|| words.below(4) as u32),
        stalled_after: Duration::from_millis(200),
    });
    for _ in 0..INPUTS_MAX {
        if words.is_empty() {
            break;
        }
        words.pass(&mut now);
        if let Some(input) = receiver_input(&mut words, blocks.numbers()) {
            receiver.handle(now, input);
        }
        receiver.check();
        drain(
            &mut receiver,
            |receiver| receiver.poll(now),
            |receiver, output| match output {
                ReceiverOutput::Ask(interest) => {
                    assert!(blocks.exists(interest.name.sn) && interest.tree < TREES, "{interest:?}");
                    sent(&Packet::Interest(interest), 0);
                }
                ReceiverOutput::Keep { sn, .. } => {
                    assert!(receiver.has(sn), "packet {sn} is kept, and not there")
                }
                ReceiverOutput::Listed { section } => assert!(section < blocks.sections()),
                ReceiverOutput::Complete | ReceiverOutput::Stalled { .. } => {}
            },
        );
        assert!(receiver.deadline().is_none_or(|at| at > now), "drained, yet due at {now:?}");
    }
}

fn receiver_input(words: &mut Words<'_>, packets: u64) -> Option<ReceiverInput> {
    let tree = words.small(TREES.into()) as u8;
    Some(match words.below(16) {
        0 => ReceiverInput::Held { sns: words.ranges(packets).pop()? },
        1 => ReceiverInput::Begin,
        2 => ReceiverInput::Roots { until: words.number(packets) },
        3 => ReceiverInput::Corrupt { sns: words.ranges(packets).pop()? },
        4 => ReceiverInput::Rerouted { tree, route: words.flip().then(|| route(words)) },
        // As the source says it: ROUTE, with the block that a tree goes on with.
        5 | 6 => {
            let hops = words.bytes(HOPS_MAX as u16);
            let begins = words.flip().then(|| words.small(9)).filter(|block| *block != u32::MAX);
            let mut frame = Vec::new();
            Control::Route { tree, begins, hops }.emit(&mut frame);
            let mut input = None;
            hear(&frame, |control| {
                let Control::Route { tree, begins, hops } = *control else { return };
                input = match (Route::from_bytes(hops, 0).ok(), begins) {
                    (Some(route), Some(block)) => Some(ReceiverInput::Regained { tree, route, block }),
                    (route, _) => Some(ReceiverInput::Rerouted { tree, route }),
                };
            });
            input?
        }
        _ => match packet(words, packets)? {
            Packet::Data(data) => ReceiverInput::Data(data),
            Packet::Interest(_) => return None,
        },
    })
}

/// A node on the way survives all packets, keeps to its bounds, and gives out only what it has.
pub fn pull_forwarder(bytes: &[u8]) {
    let mut words = Words::new(bytes);
    let mut now = Time(1);
    let config = ForwarderConfig {
        store_packets: words.below(12) as u32,
        replacement: if words.flip() { Replacement::Oldest } else { Replacement::LeastRecentlyUsed },
        pending_interests: 1 + words.below(8) as u32,
        interest_lifetime: words.span(),
        ..ForwarderConfig::for_ports(PORTS)
    };
    let mut node = Forwarder::new(config);
    for _ in 0..INPUTS_MAX {
        if words.is_empty() {
            break;
        }
        words.pass(&mut now);
        if words.below(16) == 0 {
            node.forget_pending_before(Time(words.number(now.0)));
        } else if let Some(packet) = packet(&mut words, 12) {
            let port = words.below(u64::from(PORTS) + 1) as u8;
            let from = if port == PORTS { Face::Local } else { Face::Port(port) };
            node.handle(now, ForwarderInput::Packet { from, packet });
        }
        node.check();
        let slots = config.store_packets;
        let held = |payload: Payload| match payload {
            Payload::Slot(slot) => assert!(slot < slots, "there is no slot {slot}"),
            Payload::None | Payload::Arrived => {}
        };
        drain(
            &mut node,
            |node| node.poll(now),
            |_, output| match output {
                ForwarderOutput::Send { port, packet, payload } => {
                    assert!(port < PORTS, "there is no port {port}");
                    held(payload);
                    let length = if let Packet::Data(data) = packet { data.length } else { 0 };
                    sent(&packet, length);
                }
                ForwarderOutput::Keep { slot } => assert!(slot < slots, "there is no slot {slot}"),
                ForwarderOutput::Deliver { payload, .. } => held(payload),
                ForwarderOutput::Serve { port, .. } => assert!(port < PORTS, "there is no port {port}"),
            },
        );
        assert!(node.kept() <= config.store_packets && node.pending() <= config.pending_interests);
    }
}
