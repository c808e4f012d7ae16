//! The kernel's fast path against the machine, on packets of all kinds. Skipped without root, or where there
//! was no clang to compile the program.

use polycast_net::bpf::BpfError;
use polycast_net::bpf::datacast::{KernelNode, REDIRECTED, TO_SOCKET};
use polycast_protocol::pull::{
    Face, Forwarder, ForwarderConfig, ForwarderInput, ForwarderOutput, Packet, Payload,
};
use polycast_testing::{Need, needs};
use polycast_types::{Handle, Time};
use polycast_wire::pull as wire;
use proptest::prelude::*;
use std::cell::{Cell, RefCell};
use std::net::{Ipv4Addr, SocketAddrV4};

use self::common::{is_right, udp as frame};

#[path = "../../../net/tests/common/frame.rs"]
mod common;

const PORTS: u8 = 5;

fn local(port: u8) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::new(10, 128, port, 0), 7_402)
}

fn peer(port: u8) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::new(10, 128, port, 1), 7_500 + u16::from(port))
}

/// Returns the port and the packet as it leaves, if the machine passes it on.
fn passed_on(came_by: u8, bytes: &[u8]) -> Option<(u8, Vec<u8>)> {
    let Ok(wire::Packet::Transfer(header, payload)) = wire::Packet::parse(bytes) else { return None };
    if header.hops.bytes().len() > wire::HOPS_USUAL {
        return None;
    }
    let mut machine = Forwarder::new(ForwarderConfig::for_ports(PORTS));
    let packet = Packet::from_wire(&header, payload.len() as u16);
    machine.handle(Time(0), ForwarderInput::Packet { from: Face::Port(came_by), packet });
    let output = machine.poll(Time(0))?;
    if machine.counters().passed == 0 {
        return None;
    }
    let ForwarderOutput::Send { port, packet, payload: kept } = output else { panic!("{output:?}") };
    assert!(!matches!(kept, Payload::Slot(_)), "what is passed on comes from no store");
    Some((port, [&packet.to_wire().emit()[..], payload].concat()))
}

fn node(came_by: u8) -> Option<KernelNode> {
    let load = || {
        let mut node = KernelNode::load(PORTS.into(), wire::HOPS_USUAL as u32)?;
        for port in 0..PORTS {
            // Frames that are tried come in by interface 1.
            let interface = if port == came_by { 1 } else { 100 + u32::from(port) };
            node.set_port(port.into(), interface, local(port), peer(port))?;
        }
        Ok(node)
    };
    if !needs(&[Need::Root]) {
        return None;
    }
    match load() {
        Ok(node) => Some(node),
        Err(error @ BpfError::NotBuilt { .. }) => {
            polycast_testing::skip(&error.to_string());
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn kinds() -> impl Strategy<Value = wire::Kind> {
    let follows = prop_oneof![
        Just(wire::Follows::Open),
        any::<u32>().prop_map(wire::Follows::Next),
        Just(wire::Follows::End)
    ];
    prop_oneof![
        any::<bool>().prop_map(|fresh| wire::Kind::Interest { fresh }),
        (any::<bool>(), follows).prop_map(|(again, follows)| wire::Kind::Data { again, follows }),
    ]
}

#[test]
fn the_kernel_passes_on_what_the_machine_does_and_nothing_else() {
    let came_by = 2;
    let Some(node) = node(came_by) else { return };
    let (node, passed) = (RefCell::new(node), Cell::new(0u64));
    let hop =
        prop_oneof![0..PORTS + 1, (0..PORTS + 1).prop_map(|port| port | wire::NON_BRANCHING), any::<u8>()];
    let packets = (
        kinds(),
        // A few longer ones than the node takes.
        proptest::collection::vec(hop, 1..=wire::HOPS_USUAL + 2),
        0..wire::HOPS_USUAL,
        any::<(u8, u64, u64, [u8; 16])>(),
        proptest::collection::vec(any::<u8>(), 0..60),
        proptest::collection::vec((0..wire::HEADER_LEN, any::<u8>()), 0..3),
        proptest::bool::weighted(0.3),
    );
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(3_000));
    let outcome =
        runner.run(&packets, |(kind, hops, at, (tree, handle, sn, digest), payload, damage, damaged)| {
            let hops = wire::Hops::new(&hops, at.min(hops.len()) as u8).unwrap();
            let (handle, digest) = (Handle(handle), wire::Digest(digest));
            let header = wire::Header { kind, tree, hops, handle, sn, digest };
            let payload =
                if matches!(kind, wire::Kind::Interest { .. }) && !damaged { Vec::new() } else { payload };
            let mut bytes = [&header.emit()[..], &payload].concat();
            if damaged {
                damage.iter().for_each(|&(at, byte)| bytes[at] = byte);
            }
            let before = frame(peer(came_by), local(came_by), &bytes);
            let (action, after) = node.borrow_mut().try_on(&before).unwrap();
            match passed_on(came_by, &bytes) {
                None => {
                    prop_assert_eq!(action, TO_SOCKET);
                    prop_assert!(after == before, "it is as it was");
                }
                Some((port, bytes)) => {
                    passed.set(passed.get() + 1);
                    prop_assert_eq!(action, REDIRECTED);
                    prop_assert!(is_right(&after), "its sums are right");
                    let expected = frame(local(port), peer(port), &bytes);
                    prop_assert_eq!(&after[14..], &expected[14..]);
                }
            }
            Ok(())
        });
    outcome.unwrap();
    assert!(passed.get() > 200, "only {} were passed on", passed.get());
    assert_eq!(node.borrow_mut().passed().unwrap(), passed.get());
}

#[test]
fn strangers_and_other_packets_go_to_the_socket() {
    let Some(mut node) = node(0) else { return };
    let hops = wire::Hops::new(&[0, 1 | wire::NON_BRANCHING], 1).unwrap();
    let kind = wire::Kind::Interest { fresh: false };
    let digest = wire::Digest::default();
    let bytes = wire::Header { kind, tree: 0, hops, handle: Handle(1), sn: 0, digest }.emit();
    let good = frame(peer(0), local(0), &bytes);
    assert_eq!(node.try_on(&good).unwrap().0, REDIRECTED);
    let other = |port| SocketAddrV4::new(*peer(0).ip(), port);
    let mut fragment = good.clone();
    fragment[20] = 0x20;
    for frame in [
        frame(other(1), local(0), &bytes),
        frame(peer(1), local(0), &bytes),
        frame(peer(0), local(1), &bytes),
        frame(peer(0), local(0), &wire::greeting(true)),
        frame(peer(0), local(0), b"noise"),
        fragment,
        [&good[..], &[0]].concat(),
    ] {
        let (action, after) = node.try_on(&frame).unwrap();
        assert_eq!((action, after == frame), (TO_SOCKET, true), "{frame:?}");
    }
}
