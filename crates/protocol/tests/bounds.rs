//! The bounds of ARCHITECTURE.md that the transports' machines keep: each is filled, and what is one more is
//! refused, split, or takes the place of the oldest.

use polycast_protocol::pull::{
    self, Blocks, Data, Decision, Face, Forwarder, ForwarderConfig, ForwarderInput, ForwarderOutput, Hop,
    Interest, Name, Packet, RateConfig, RetryTime, Route, Source, SourceConfig, SourceInput,
};
use polycast_protocol::push::{
    FullRate, Geometry, PeerId, Receiver, ReceiverConfig, ReceiverInput, ReceiverOutput, Sender,
    SenderConfig, SenderInput, SenderOutput, SlowPolicy,
};
use polycast_types::{Duration, Handle, Location, RangeSet, Rate, Time};
use polycast_wire::control::{Control, RANGES_MAX};
use polycast_wire::data::CODED_FRAGMENTS_MAX;
use std::collections::BTreeMap;

/// A bound: what it is of, how many there may be, and how many there were after one more had been asked for.
struct Bound(&'static str, u64, u64);

#[test]
fn every_bound_is_kept_and_can_be_reached() {
    let bounds = [
        ranges_of_a_request(),
        ranges_of_a_have(),
        sent_batches(),
        fragments_of_a_patch(),
        wait_before_a_request_is_repeated(),
        packets_of_a_store(),
        pending_interests(),
        waiters(),
        interests_that_wait_at_a_source(),
        open_interests_of_a_receiver(),
        wait_before_a_packet_is_asked_for_again(),
    ];
    for Bound(what, bound, seen) in bounds {
        assert_eq!(seen, bound, "{what}");
    }
}

fn geometry(fragments: u64, fragment_len: u32) -> Geometry {
    Geometry { object_len: fragments * u64::from(fragment_len), fragment_len, group_len: 1 << 10 }
}

fn receiver(geometry: Geometry) -> Receiver {
    Receiver::new(ReceiverConfig {
        geometry,
        reorder_packets: 40,
        reorder_delay: Duration::from_millis(1),
        gather_delay: Duration::from_millis(2),
        retry_delay: Duration::from_millis(20),
        reach_packets: 300,
        report_packets: 100,
        heartbeat: Duration::from_millis(50),
    })
}

/// Every other fragment is lost: one range each, and one more than fits into a frame.
fn ranges_of_a_request() -> Bound {
    // The last few may be late packets, and are asked for later.
    let lost = RANGES_MAX as u64 + 30;
    let fragments = 2 * lost + 1;
    let mut machine = receiver(geometry(fragments, 1_024));
    machine.handle(Time(1), ReceiverInput::Begin);
    for sn in (0..fragments).step_by(2) {
        let (round, count, flags, arrived) = (0, 1, 0, Time(1));
        machine.handle(Time(1), ReceiverInput::Data { round, sn, count, flags, arrived });
    }
    let mut sizes = Vec::new();
    for now in [Time(1), Time(1) + Duration::from_millis(1), Time(1) + Duration::from_millis(10)] {
        while let Some(output) = machine.poll(now) {
            if let ReceiverOutput::Control(Control::PtchReq(ranges)) = output {
                sizes.push(ranges.len() as u64);
            }
        }
    }
    assert_eq!(sizes.iter().sum::<u64>(), lost, "all are asked for: {sizes:?}");
    Bound("ranges of PTCH_REQ", RANGES_MAX as u64, sizes.into_iter().max().unwrap())
}

/// Groups that do not fit are reported as lacking, and sent once more than needed.
fn ranges_of_a_have() -> Bound {
    let mut machine = receiver(geometry(2 * RANGES_MAX as u64 + 3, 1_024));
    for group in (0..2 * RANGES_MAX as u64 + 3).step_by(2) {
        machine.handle(Time(1), ReceiverInput::Held { group });
    }
    machine.handle(Time(1), ReceiverInput::Begin);
    let Some(ReceiverOutput::Control(Control::Have(ranges))) = machine.poll(Time(1)) else {
        panic!("no HAVE")
    };
    Bound("ranges of HAVE", RANGES_MAX as u64, ranges.len() as u64)
}

fn sender(geometry: Geometry, batch: u32, rate: Option<Rate>) -> Sender {
    Sender::new(SenderConfig {
        handle: Handle(7),
        geometry,
        batch,
        rate,
        multicast: true,
        allowance: None,
        attempt_interval: Duration::from_micros(500).into(),
        full_rate: FullRate::default(),
        path_timeout: Duration::from_secs(500),
        stall_timeout: Duration::from_secs(500),
        progress_timeout: Duration::from_secs(500),
        deadline: None,
        slow: SlowPolicy::Wait,
        patch_delay: Duration::from_millis(5),
        sealed: false,
        first: 0,
        location: Location::default(),
    })
}

fn say(sender: &mut Sender, now: Time, peer: u32, control: &Control<'_>) {
    sender.handle(now, SenderInput::Control { peer: PeerId(peer), control });
}

/// A sender of which so many receivers take the stream, with all of their laps offered.
fn streamed(mut sender: Sender, peers: u32) -> (Sender, Time, u64) {
    for peer in (0..peers).map(PeerId) {
        sender.handle(
            Time(1),
            SenderInput::Ready {
                peer,
                window_bytes: 1 << 40,
                have: RangeSet::new(),
                location: Location::default(),
            },
        );
    }
    sender.handle(Time(1), SenderInput::Start);
    let (mut now, mut sent) = (Time(1), 0);
    for step in 0.. {
        while let Some(output) = sender.poll(now) {
            sent += u64::from(matches!(output, SenderOutput::Send { .. }));
        }
        if step == 0 {
            (0..peers).for_each(|peer| say(&mut sender, now, peer, &Control::IntlSeq { position: 0 }));
        }
        let before = sent;
        now += Duration::from_millis(2);
        while let Some(output) = sender.poll(now) {
            sent += u64::from(matches!(output, SenderOutput::Send { .. }));
        }
        if step > 0 && sent == before {
            break;
        }
    }
    (sender, now, sent)
}

/// Without reports the oldest batches are forgotten. `check` holds how many there may be; a late report does
/// no harm.
fn sent_batches() -> Bound {
    let fragments = (1 << 16) + 200;
    let (mut sender, now, sent) =
        streamed(sender(geometry(fragments, 1_024), 1, Some(Rate(100_000_000_000))), 1);
    assert_eq!(sent, fragments, "one batch a fragment");
    sender.check();
    let report = |position| Control::Progress {
        position,
        received: position,
        lost: 0,
        verified_bytes: 0,
        arrived_ns: 1,
        waited_ns: 0,
    };
    for position in [1, 100, 300, fragments] {
        say(&mut sender, now, 0, &report(position));
    }
    Bound("fragments that were sent", fragments, sender.pace().packets)
}

/// Twenty receivers have each lost another fragment.
fn fragments_of_a_patch() -> Bound {
    let (mut sender, now, _) = streamed(sender(geometry(40, 1_024), 7, Some(Rate(1_000_000_000))), 20);
    for peer in 0..20u64 {
        let progress = Control::Progress {
            position: 40,
            received: 39,
            lost: 1,
            verified_bytes: 0,
            arrived_ns: 1,
            waited_ns: 0,
        };
        say(&mut sender, now, peer as u32, &progress);
        say(
            &mut sender,
            now,
            peer as u32,
            &Control::PtchReq(std::iter::once(2 * peer..2 * peer + 1).collect()),
        );
    }
    let mut patches = Vec::new();
    while let Some(output) = sender.poll(now + Duration::from_millis(6)) {
        if let SenderOutput::SendPatch(sns) = output {
            patches.push(sns.len());
        }
    }
    assert_eq!(patches.iter().sum::<usize>(), 20, "{patches:?}");
    Bound("fragments of a coded patch", CODED_FRAGMENTS_MAX as u64, patches.into_iter().max().unwrap() as u64)
}

/// A source that does not answer is asked ever more seldom: at last the time between two requests stays.
fn wait_before_a_request_is_repeated() -> Bound {
    let mut machine = receiver(geometry(40, 1_024));
    machine.handle(Time(1), ReceiverInput::Begin);
    for sn in [0, 39] {
        let (round, count, flags, arrived) = (0, 1, 0, Time(1));
        machine.handle(Time(1), ReceiverInput::Data { round, sn, count, flags, arrived });
    }
    let (mut now, mut asked) = (Time(1), Vec::new());
    while now < Time(20_000_000_000) {
        while let Some(output) = machine.poll(now) {
            if let ReceiverOutput::Repeat(_) = output {
                asked.push(now);
            }
        }
        now = machine.deadline().expect("it goes on asking");
    }
    assert!(asked.is_sorted() && asked.len() < 40, "{} requests in 20 s", asked.len());
    let waits = asked.windows(2).map(|pair| pair[1].since(pair[0]));
    let longest = waits.max().unwrap();
    assert!(longest <= Duration::from_secs(1), "{longest}");
    Bound("milliseconds between two requests", 640, longest.as_millis())
}

fn route(port: u8) -> Route {
    let hop = |port| Hop { port, non_branching: false };
    Route::new(&[hop(0), hop(port)]).unwrap()
}

fn ask(node: &mut Forwarder, from: Face, sn: u64) -> Vec<ForwarderOutput> {
    let interest = Interest { name: Name::new(Handle(1), sn), route: route(1), tree: 0, fresh: false };
    // It comes to its second node.
    let mut first = Forwarder::new(ForwarderConfig::for_ports(8));
    first.handle(Time(1), ForwarderInput::Packet { from: Face::Local, packet: Packet::Interest(interest) });
    let Some(ForwarderOutput::Send { packet, .. }) = first.poll(Time(1)) else { panic!("it is sent on") };
    node.handle(Time(1), ForwarderInput::Packet { from, packet });
    std::iter::from_fn(|| node.poll(Time(1))).collect()
}

fn packets_of_a_store() -> Bound {
    let mut node = Forwarder::new(ForwarderConfig::for_ports(8));
    let again = |sn| sn % 9 == 0;
    for sn in 0..4_096 {
        ask(&mut node, Face::Port(2), sn);
        let route = Route::from_bytes(&[0], 1).unwrap();
        let (name, decision) = (Name::new(Handle(1), sn), Decision::Open);
        let data = Data { name, route, decision, length: 100, tree: 0, again: again(sn) };
        node.handle(Time(1), ForwarderInput::Packet { from: Face::Port(1), packet: Packet::Data(data) });
        while node.poll(Time(1)).is_some() {}
    }
    Bound("packets of a content store", 2_048, node.kept().into())
}

fn pending_interests() -> Bound {
    let mut node = Forwarder::new(ForwarderConfig::for_ports(8));
    (0..=1 << 16).for_each(|sn| drop(ask(&mut node, Face::Port(2), sn)));
    assert_eq!(node.counters().full, 1, "one was dropped, and counted");
    Bound("pending interests", 1 << 16, node.pending().into())
}

/// Four may wait for each name: of a table with room for two names, eight.
fn waiters() -> Bound {
    let mut node = Forwarder::new(ForwarderConfig { pending_interests: 2, ..ForwarderConfig::for_ports(32) });
    for port in 2..14 {
        ask(&mut node, Face::Port(port), 7);
    }
    assert_eq!(node.counters().full, 4);
    let route = Route::from_bytes(&[0], 1).unwrap();
    let (name, decision) = (Name::new(Handle(1), 7), Decision::Open);
    let data = Data { name, route, decision, length: 100, tree: 0, again: false };
    node.handle(Time(2), ForwarderInput::Packet { from: Face::Port(1), packet: Packet::Data(data) });
    let served = std::iter::from_fn(|| node.poll(Time(2)));
    Bound(
        "who waits for an answer",
        8,
        served.filter(|out| matches!(out, ForwarderOutput::Send { .. })).count() as u64,
    )
}

fn interests_that_wait_at_a_source() -> Bound {
    let waiting_max = 50;
    let mut source = Source::new(SourceConfig {
        transfer: Handle(1),
        blocks: Blocks::new(1_000_000, 1_000, 100_000).unwrap(),
        trees: 1,
        credits: 4,
        rate: RateConfig::for_link(1_000_000_000),
        header_bytes: 72,
        decide_ahead: 4,
        waiting_max,
        chance: true,
    });
    for sn in 0..=u64::from(waiting_max) {
        let interest = Interest { name: Name::new(Handle(1), sn), route: route(1), tree: 0, fresh: false };
        source.handle(Time(1), SourceInput::Interest { port: 0, interest });
    }
    assert_eq!(source.refused(), 1);
    Bound("interests that wait at a source", waiting_max.into(), source.counters(0).interests)
}

fn pulling(retry: RetryTime) -> pull::Receiver {
    let mut receiver = pull::Receiver::new(pull::ReceiverConfig {
        transfer: Handle(1),
        blocks: Blocks::new(1_000_000, 1_000, 100_000).unwrap(),
        routes: vec![Some(route(1)); 3],
        credits: 16,
        retry,
        overtaken: Some(3),
        stalled_after: Duration::from_secs(1),
    });
    receiver.handle(Time(1), pull::ReceiverInput::Begin);
    receiver
}

fn open_interests_of_a_receiver() -> Bound {
    let mut receiver = pulling(RetryTime::Fixed(Duration::from_millis(20)));
    let asked = std::iter::from_fn(|| receiver.poll(Time(1))).count();
    Bound("open interests in three trees", 3 * 16, asked as u64)
}

/// A network that is dead is asked ever more seldom, and never less often than once a second.
fn wait_before_a_packet_is_asked_for_again() -> Bound {
    let retry = RetryTime::Adaptive { initial: Duration::from_millis(20), least: Duration::from_millis(5) };
    let mut receiver = pulling(retry);
    let (mut now, mut longest) = (Time(1), Duration::ZERO);
    let mut asked = BTreeMap::new();
    while now < Time(30_000_000_000) {
        while let Some(output) = receiver.poll(now) {
            if let pull::ReceiverOutput::Ask(interest) = output {
                let before = asked.insert(interest.name.sn, now);
                longest = longest.max(before.map_or(Duration::ZERO, |before| now.since(before)));
            }
        }
        now = receiver.deadline().expect("it goes on asking");
    }
    Bound("milliseconds between two interests for a packet", 1_000, longest.as_millis())
}
