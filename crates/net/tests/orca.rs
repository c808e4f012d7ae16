//! Orca's programs in a network namespace of the test's own, with interfaces that the test reads and writes.
//! Skipped without root.

use polycast_net::bpf::BpfError;
use polycast_net::bpf::orca::{KernelAgent, KernelSwitch, Layer, Packets, SwitchSettings};
use polycast_net::tap::Tap;
use polycast_wire::VERSION;
use polycast_wire::label::{Fault, Header, LabelKind};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::{Duration, Instant};

#[path = "common/frame.rs"]
mod common;

const PACKETS: Packets = Packets { udp_port: 7_474, label_len: 3 };
const HEADER_AT: usize = 42;

/// Runs a test in a namespace of its own, which ends with it.
fn isolated(test: impl FnOnce() -> Result<(), BpfError> + Send) {
    match polycast_testing::isolated(test) {
        None | Some(Ok(())) => {}
        Some(Err(error @ BpfError::NotBuilt { .. })) => polycast_testing::skip(&error.to_string()),
        Some(Err(error)) => panic!("{error}"),
    }
}

fn taps(names: &[&str]) -> Vec<Tap> {
    names.iter().map(|name| Tap::open(name).unwrap()).collect()
}

fn frame(port: u16, payload: &[u8]) -> Vec<u8> {
    let (from, to) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(239, 1, 1, 9));
    common::udp(SocketAddrV4::new(from, 40_000), SocketAddrV4::new(to, port), payload)
}

fn labelled(session: u32, label: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    Header { kind: LabelKind::Filter, session, label }.emit(&mut bytes);
    bytes.extend(payload);
    frame(PACKETS.udp_port, &bytes)
}

/// The next frame to our port; others are the kernel's own business.
fn next(tap: &Tap, within: Duration) -> Option<Vec<u8>> {
    let begun = Instant::now();
    let mut buffer = vec![0; 70_000];
    loop {
        match tap.receive(&mut buffer).unwrap() {
            Some(frame)
                if frame.len() > HEADER_AT && frame[23] == 17 && frame[36..38] == 7_474u16.to_be_bytes() =>
            {
                return Some(frame.to_vec());
            }
            Some(_) => {}
            None if begun.elapsed() > within => return None,
            None => std::thread::sleep(Duration::from_micros(50)),
        }
    }
}

const SOON: Duration = polycast_testing::HANG;
const NOTHING: Duration = Duration::from_millis(3);

/// A leaf of three hosts and two spines: the port up at bits 1 and 2, or the hosts at bits 1 to 3.
fn leaf() -> Result<KernelSwitch, BpfError> {
    KernelSwitch::load(SwitchSettings {
        packets: PACKETS,
        layer: Layer::Leaf { up_bits: 2 },
        down_ports: 3,
        up_ports: 2,
        entries_max: 4,
    })
}

#[test]
fn a_leaf_forwards_by_labels_and_drops_what_is_wrong() {
    isolated(|| {
        let mut switch = leaf()?;
        let names = ["p0", "p1", "p2", "p3", "p4"];
        let ports = taps(&names);
        for (port, name) in names.iter().enumerate() {
            switch.attach(port as u32, name)?;
        }
        switch.set_agents(&[2, 1], 0b110)?;
        assert_eq!(switch.since_relabelled(1)?, None);
        let expect = |from: usize, packet: &[u8], to: &[usize]| {
            ports[from].send(packet).unwrap();
            for (port, tap) in ports.iter().enumerate() {
                let wait = if to.contains(&port) { SOON } else { NOTHING };
                let got = next(tap, wait);
                assert_eq!(got.as_deref(), to.contains(&port).then_some(packet), "port {port}");
            }
        };
        // From a host by the port up that the label names.
        expect(0, &labelled(5, &[0b0010_0000, 0, 0], b"x"), &[4]);
        expect(0, &labelled(5, &[0b0000_0000, 0, 0], b"x"), &[3]);
        // From above to the agents in turn.
        for agent in [2, 1, 2] {
            expect(3, &labelled(5, &[0; 3], b"x"), &[agent]);
        }
        // From an agent to the hosts, itself among them.
        expect(1, &labelled(5, &[0b1110_0000, 0, 0], b"x"), &[0, 1]);
        assert!(switch.since_relabelled(1)?.is_some_and(|ago| ago < SOON));
        assert_eq!(switch.since_relabelled(2)?, None);
        // An agent of the rack may do so though it is handed nothing any more.
        switch.set_agents(&[2], 0b110)?;
        expect(3, &labelled(5, &[0; 3], b"x"), &[2]);
        expect(1, &labelled(5, &[0b1110_0000, 0, 0], b"y"), &[0, 1]);
        // Not from others; not to a port that is not there; not of another length, version or kind.
        expect(0, &labelled(5, &[0b1110_0000, 0, 0], b"x"), &[]);
        expect(0, &labelled(5, &[0b0110_0000, 0, 0], b"x"), &[]);
        expect(0, &labelled(5, &[0; 4], b"x"), &[]);
        let mut wrong = labelled(5, &[0; 3], b"x");
        wrong[HEADER_AT] = 9;
        expect(0, &wrong, &[]);
        wrong[HEADER_AT] = VERSION;
        wrong[HEADER_AT + 3] = 1;
        expect(0, &wrong, &[]);
        (wrong[HEADER_AT + 2], wrong[HEADER_AT + 3]) = (LabelKind::Asks as u8, 0);
        expect(0, &wrong, &[]);
        expect(0, &frame(PACKETS.udp_port, &[VERSION, 3, 0, 0]), &[]);
        switch.set_agents(&[], 0b001)?;
        expect(4, &labelled(5, &[0; 3], b"x"), &[]);
        let counts = switch.counts()?;
        let faults: Vec<u64> = Fault::ALL.iter().map(|fault| counts.fault(*fault)).collect();
        assert_eq!(faults, [2, 1, 1, 1, 1, 1, 0, 0, 1, 0]);
        assert_eq!((counts.packets(), counts.copies()), (12, 10));
        Ok(())
    });
}

/// A frame to a port as a program has sent it, and as it goes between leafs: with a UDP header and a label
/// before its own.
fn sent(port: u16, session: u32, label: &[u8], payload: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let (from, to) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::from(session));
    let plain = common::udp(SocketAddrV4::new(from, 40_000), SocketAddrV4::new(to, port), payload);
    let mut bytes = Vec::new();
    Header { kind: LabelKind::Filter, session, label }.emit(&mut bytes);
    bytes.extend(&plain[34..]);
    let mut wrapped =
        common::udp(SocketAddrV4::new(from, 40_000), SocketAddrV4::new(to, PACKETS.udp_port), &bytes);
    wrapped[40..42].fill(0);
    (plain, wrapped)
}

/// The next UDP frame to a session's address.
fn next_to(tap: &Tap, within: Duration, session: u32) -> Option<Vec<u8>> {
    let (mut buffer, begun, to) = (vec![0; 70_000], Instant::now(), session.to_be_bytes());
    loop {
        match tap.receive(&mut buffer).unwrap() {
            Some(frame) if frame.len() > 34 && frame[23] == 17 && frame[30..34] == to => {
                return Some(frame.to_vec());
            }
            Some(_) => {}
            None if begun.elapsed() > within => return None,
            None => std::thread::sleep(Duration::from_micros(50)),
        }
    }
}

#[test]
fn a_leaf_labels_packets_of_programs_and_hands_them_out_without() {
    isolated(|| {
        let mut switch = leaf()?;
        let names = ["p0", "p1", "p2", "p3", "p4"];
        let ports = taps(&names);
        for (port, name) in names.iter().enumerate() {
            switch.attach(port as u32, name)?;
        }
        let session = u32::from(Ipv4Addr::new(239, 1, 1, 9));
        let of = |tap: usize, within: Duration, session: u32| next_to(&ports[tap], within, session);
        let expect = |from: usize, packet: &[u8], to: &[usize], expected: &[u8]| {
            ports[from].send(packet).unwrap();
            for port in 0..ports.len() {
                let got = of(port, if to.contains(&port) { SOON } else { NOTHING }, session);
                assert_eq!(got.as_deref(), to.contains(&port).then_some(expected), "port {port}");
            }
        };
        let label = [0b0010_0000, 7, 9];
        let (plain, wrapped) = sent(5_001, session, &label, b"a bid");
        expect(0, &plain, &[], &wrapped);
        let header = Header { kind: LabelKind::Filter, session, label: &label };
        switch.set_door(0b001, header)?;
        switch.set_agents(&[2], 0b100)?;
        expect(0, &plain, &[4], &wrapped);
        // A short frame has bytes behind its end, which stay there.
        let mut padded = plain.clone();
        padded.resize(plain.len() + 6, 0);
        let mut with_padding = wrapped.clone();
        with_padding.resize(wrapped.len() + 6, 0);
        expect(0, &padded, &[4], &with_padding);
        // Programs may use the port of labelled packets for all that we know, with what is none.
        expect(1, &plain, &[], &[]);
        expect(3, &plain, &[], &[]);
        let mut part = plain.clone();
        part[20] = 0x20;
        expect(0, &part, &[], &[]);
        // Back from the agent: to hosts as the program has sent it, check sums and all.
        let (_, from_agent) = sent(5_001, session, &[0b1110_0000, 0, 0], b"a bid");
        expect(2, &from_agent, &[0, 1], &plain);
        let cut = &from_agent[..HEADER_AT + 12 + 7];
        expect(2, cut, &[], &[]);
        let counts = switch.counts()?;
        let faults = [Fault::NotASource, Fault::Malformed].map(|fault| counts.fault(fault));
        assert_eq!(faults, [2, 2]);
        // Other sessions are as they were, and so is this one without its door.
        let other = session + 1;
        let (_, of_transfer) = sent(5_001, other, &[0b1100_0000, 0, 0], b"x");
        ports[2].send(&of_transfer).unwrap();
        assert_eq!(of(0, SOON, other).as_deref(), Some(&of_transfer[..]));
        // A leaf without sources only hands out.
        switch.set_door(0, Header { label: &[], ..header })?;
        expect(0, &plain, &[], &[]);
        expect(2, &from_agent, &[0, 1], &plain);
        switch.remove_door(session)?;
        expect(2, &from_agent, &[0, 1], &from_agent);
        Ok(())
    });
}

#[test]
fn an_agent_relabels_and_asks_user_space_for_what_it_does_not_know() {
    isolated(|| {
        let [wire, slow]: [Tap; 2] = taps(&["wire", "slow"]).try_into().unwrap();
        let mut agent = KernelAgent::attach(PACKETS, "wire", 4)?;
        let source = labelled(77, &[0b0010_0000, 7, 9], b"something to carry");
        wire.send(&source).unwrap();
        assert_eq!(next(&wire, NOTHING), None, "it is no agent yet");
        agent.set_agent(true)?;
        wire.send(&source).unwrap();
        assert_eq!(next(&wire, NOTHING), None, "the session is unknown");
        agent.set_label(77, &[0b1100_0000, 0, 0])?;
        wire.send(&source).unwrap();
        let relabelled = next(&wire, SOON).unwrap();
        let expected = labelled(77, &[0b1100_0000, 0, 0], b"something to carry");
        assert_eq!(relabelled, expected);
        assert!(common::udp_is_right(&relabelled));
        // What has a leaf label is for this server.
        wire.send(&expected).unwrap();
        assert_eq!(next(&wire, NOTHING), None);
        agent.remove_label(77)?;
        agent.set_slow_path("slow")?;
        wire.send(&source).unwrap();
        assert_eq!(next(&slow, SOON).as_deref(), Some(&source[..]));
        slow.send(&expected).unwrap();
        assert_eq!(next(&wire, SOON).as_deref(), Some(&expected[..]));
        let counts = agent.counts()?;
        assert_eq!(
            (counts.fault(Fault::Stray), counts.fault(Fault::UnknownSession), counts.packets()),
            (1, 1, 1)
        );
        Ok(())
    });
}

/// A packet of a virtual machine that is still to be cut need not say into how many datagrams: all of them
/// get the label.
#[test]
fn datagrams_that_were_not_counted_are_all_relabelled() {
    isolated(|| {
        let _wire = Tap::open("wire").unwrap();
        let mut agent = KernelAgent::attach(PACKETS, "wire", 4)?;
        agent.set_agent(true)?;
        agent.set_label(77, &[0b1100_0000, 0, 0])?;
        let all = |label: &[u8]| {
            let mut bytes = Vec::new();
            for len in [500, 500, 500, 90] {
                Header { kind: LabelKind::Filter, session: 77, label }.emit(&mut bytes);
                bytes.resize(bytes.len() + len, 3);
            }
            frame(PACKETS.udp_port, &bytes)
        };
        let (_, relabelled) = agent.try_on_uncut(&all(&[0b0010_0000, 7, 9]), 12 + 500)?;
        assert_eq!(relabelled[HEADER_AT..], all(&[0b1100_0000, 0, 0])[HEADER_AT..]);
        assert_eq!(agent.counts()?.packets(), 1);
        // As many as there may be, and one more.
        let many = |label: &[u8], count: usize| {
            let mut bytes = Vec::new();
            for _ in 0..count {
                Header { kind: LabelKind::Filter, session: 77, label }.emit(&mut bytes);
                bytes.resize(bytes.len() + 8, 3);
            }
            frame(PACKETS.udp_port, &bytes)
        };
        let (_, relabelled) = agent.try_on_uncut(&many(&[0b0010_0000, 7, 9], 128), 12 + 8)?;
        assert_eq!(relabelled[HEADER_AT..], many(&[0b1100_0000, 0, 0], 128)[HEADER_AT..]);
        agent.try_on_uncut(&many(&[0b0010_0000, 7, 9], 129), 12 + 8)?;
        assert_eq!((agent.counts()?.packets(), agent.counts()?.fault(Fault::Malformed)), (2, 1));
        Ok(())
    });
}

#[test]
fn datagrams_that_the_kernel_has_not_cut_yet_are_all_relabelled() {
    use polycast_net::udp::DataSender;
    use std::io::IoSlice;
    isolated(|| {
        // What a sender hands over in one piece stays so on veth; the tap behind it shows the datagrams.
        let run = |line: &str| {
            let status = std::process::Command::new("ip").args(line.split_whitespace()).status().unwrap();
            assert!(status.success(), "ip {line}");
        };
        run("link add source type veth peer name rack");
        for line in
            ["addr add 10.9.0.1/24 dev source", "link set source up", "link set rack up", "link set lo up"]
        {
            run(line);
        }
        let out = Tap::open("out").unwrap();
        let mut agent = KernelAgent::attach(PACKETS, "rack", 4)?;
        // Back to where the packets came from; from there to the tap.
        agent.set_agent(true)?;
        agent.set_label(0xef01_0109, &[0b1010_0000, 0, 0])?;
        let mut mirror = KernelSwitch::load(SwitchSettings {
            packets: PACKETS,
            layer: Layer::Core { down_at: 0, pods_down_at: 0 },
            down_ports: 3,
            up_ports: 0,
            entries_max: 0,
        })?;
        mirror.attach(0, "source")?;
        mirror.attach(2, "out")?;
        let group = Ipv4Addr::new(239, 1, 1, 9);
        let mut sender = DataSender::open([10, 9, 0, 1].into(), (group, PACKETS.udp_port).into()).unwrap();
        let mut header = Vec::new();
        Header { kind: LabelKind::Filter, session: u32::from(group), label: &[0b0010_0000, 0, 0] }
            .emit(&mut header);
        let payload = [5; 1_000];
        let parts: Vec<IoSlice<'_>> =
            (0..30).flat_map(|_| [IoSlice::new(&header), IoSlice::new(&payload)]).collect();
        assert!(sender.send(&parts, 2, header.len() + payload.len()).unwrap());
        for datagram in 0..30 {
            let frame = next(&out, SOON).unwrap_or_else(|| panic!("datagram {datagram} is missing"));
            assert!(common::udp_is_right(&frame), "{datagram}");
            let (read, len) = Header::parse_for(&frame[HEADER_AT..], 3).unwrap();
            assert_eq!((read.label, read.session), (&[0b1010_0000, 0, 0][..], 0xef01_0109));
            assert_eq!(frame[HEADER_AT + len..], payload);
        }
        assert_eq!(next(&out, NOTHING), None);
        assert_eq!(agent.counts()?.packets(), 1, "as one packet of the kernel");
        Ok(())
    });
}
