//! The switch in the kernel and the switch machine send the same packets to the same ports and drop the same
//! ones, for random labels, sessions and ports. Each kernel switch is in a namespace of the test's own, and
//! every port an interface that the test reads and writes. Skipped without root.

use polycast_agent::label_switch;
use polycast_agent::rack::{LabelMap as _, RackAgent, RackError, RackOptions};
use polycast_net::bpf::BpfError;
use polycast_net::bpf::orca::{KernelAgent, Packets};
use polycast_net::tap::Tap;
use polycast_planning::labels::{LabelOptions, LabelPlanner};
use polycast_protocol::switch::{AGENTS_MAX, Input, Output, RackLabels, Switch};
use polycast_testing::{HANG, until};
use polycast_topology::{Clos, Graph as _, Kind};
use polycast_types::Time;
use polycast_wire::label::{Fault, Header, KIND_AT, LabelKind, Probe};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

#[path = "../../../crates/net/tests/common/frame.rs"]
mod common;

const UDP_PORT: u16 = 7_474;
const HEADER_AT: usize = 42;
const PACKETS: u32 = 400;

/// The same numbers every time (xorshift).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, n: u32) -> u32 {
        (self.next() >> 16) as u32 % n
    }
}

/// A frame; switches do not look at check sums.
fn frame(payload: &[u8]) -> Vec<u8> {
    let (from, to) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(239, 1, 1, 9));
    common::without_udp_sum(SocketAddrV4::new(from, 257), SocketAddrV4::new(to, UDP_PORT), payload)
}

/// Returns true if the frame arrives in time; frames other than ours are the kernel's own.
fn comes(tap: &Tap, expected: &[u8], within: Duration) -> bool {
    let begun = Instant::now();
    let mut buffer = vec![0; 2_000];
    loop {
        match tap.receive(&mut buffer).unwrap() {
            Some(got) if got.len() > HEADER_AT && got[23] == 17 && got[36..38] == UDP_PORT.to_be_bytes() => {
                assert_eq!(got, expected);
                return true;
            }
            Some(_) => {}
            None if begun.elapsed() >= within => return false,
            None => std::thread::yield_now(),
        }
    }
}

/// A payload that is right most of the time, and sometimes a probe.
fn payload(random: &mut Random, label_len: usize) -> Vec<u8> {
    if random.below(12) == 0 {
        let mut bytes =
            Probe { is_answer: random.below(3) == 0, number: random.next() as u32 }.emit().to_vec();
        bytes.resize(bytes.len() + random.below(20) as usize, 0xbb);
        return bytes;
    }
    let thin = random.below(3) != 0;
    let one = |random: &mut Random| (random.next() & if thin { random.next() } else { u64::MAX }) as u8;
    let len = if random.below(20) == 0 { label_len + 1 } else { label_len };
    let label: Vec<u8> = (0..len).map(|_| one(random)).collect();
    let mut bytes = Vec::new();
    let kind = LabelKind::ALL[[0, 0, 1, 1, 1, 2, 3, 3][random.below(8) as usize]];
    Header { kind, session: random.below(6), label: &label }.emit(&mut bytes);
    match random.below(30) {
        0 => bytes[0] = 3,
        1 => bytes[2 + random.below(2) as usize] = 4,
        2 => bytes.truncate(random.below(bytes.len() as u32) as usize),
        _ => {}
    }
    bytes.extend_from_slice(&[0xaa; 30][..random.below(30) as usize]);
    bytes
}

/// Compares both switches on the same packets. Returns the number of packets that asked an agent.
fn compare(planner: &Arc<LabelPlanner>, node: u32, random: &mut Random) -> Result<u32, BpfError> {
    let clos = planner.clos();
    let ports = clos.port_count(node);
    let label_len = planner.format().bytes();
    let mut kernel = label_switch::load(planner, Packets { udp_port: UDP_PORT, label_len }, node, 100)?;
    let mut machine = Switch::new(Arc::clone(planner), node, 100);
    let tap = |port: u32| Tap::open(&format!("n{node}p{port}")).unwrap();
    let taps: Vec<Tap> = (0..ports).map(tap).collect();
    for port in 0..ports {
        kernel.attach(port, &format!("n{node}p{port}"))?;
    }
    let tell = |machine: &mut Switch, input: Input<'_>| {
        machine.handle(Time::ZERO, input);
        std::iter::from_fn(|| machine.poll(Time::ZERO)).collect::<Vec<Output>>()
    };
    let (mut answers, mut asked, mut of_pods) = (0, 0, 0);
    let (leaf, spine) = (clos.kind(node).0 == Kind::Leaf, clos.kind(node).0 == Kind::Spine);
    for round in 0..PACKETS {
        if round % 50 == 0 {
            let (session, blocked) =
                (random.below(6), u128::from(random.next()) & ((1 << clos.leafs_per_pod()) - 1));
            if spine {
                kernel.set_blocked(session, blocked)?;
                tell(&mut machine, Input::Block { session, ports: blocked });
            }
            let mut some = || -> Vec<u32> {
                (0..clos.hosts_per_leaf())
                    .filter(|_| leaf && round > 0 && random.below(2) == 0)
                    .take(AGENTS_MAX)
                    .collect()
            };
            // Neither are all agents active, nor need the active ones be known as agents.
            let (active, rack) = (some(), some().into_iter().fold(0, |rack, port| rack | 1 << port));
            kernel.set_agents(&active, rack)?;
            tell(&mut machine, Input::Agents { active, rack });
        }
        let (from, payload) = (random.below(ports), payload(random, label_len as usize));
        let outputs = tell(&mut machine, Input::Packet { port: from, header: &payload });
        let sent = frame(&payload);
        taps[from as usize].send(&sent).unwrap();
        let changed = |at: usize, to: u8| {
            let mut changed = sent.clone();
            changed[HEADER_AT + at] = to;
            changed
        };
        let mut copies: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
        for output in &outputs {
            let (port, frame) = match output {
                Output::Copy { port } => (port, sent.clone()),
                Output::Ask { port } => (port, changed(KIND_AT, LabelKind::Asks as u8)),
                Output::Answer { port } => (port, changed(1, 1)),
                _ => continue,
            };
            answers += u32::from(matches!(output, Output::Answer { .. }));
            asked += u32::from(matches!(output, Output::Ask { .. }));
            of_pods += u32::from(payload[0] == polycast_wire::VERSION && payload[KIND_AT] > 0);
            copies.insert(*port, frame);
        }
        // What has to come first: when it is there, the switch is done with the packet.
        for (port, expected) in &copies {
            let came = comes(&taps[*port as usize], expected, HANG);
            assert!(
                came,
                "node {node}, round {round}: nothing at port {port} of {copies:?} for {payload:02x?}"
            );
        }
        for (port, tap) in (0..).zip(&taps) {
            assert!(
                !comes(tap, &sent, Duration::ZERO),
                "node {node}, round {round}: port {port}, {payload:02x?}"
            );
        }
    }
    let counts = kernel.counts()?;
    for fault in Fault::ALL {
        assert_eq!(counts.fault(fault), machine.dropped(fault), "node {node}: {fault}");
    }
    if leaf {
        for port in 0..clos.hosts_per_leaf() {
            let alive = kernel.since_relabelled(port)?.is_some();
            assert_eq!(alive, machine.relabelled_at(port).is_some(), "node {node}: port {port}");
        }
    }
    assert!(answers > PACKETS / 40, "node {node} answered too few probes to compare");
    assert!(counts.copies() > u64::from(PACKETS) / 8, "node {node} forwarded too little to compare");
    assert!(of_pods > PACKETS / 8, "node {node} forwarded too few labels with pods");
    Ok(asked)
}

/// A large switch, one without cores, and numbers of ports that leave numbers over which no port has.
fn networks() -> Vec<(Clos, LabelOptions)> {
    vec![
        (Clos::new(4, 2, 2, 2, 2).unwrap(), LabelOptions::new(69)),
        (Clos::leaf_spine(5, 3, 7).unwrap(), LabelOptions::plain(11)),
        (Clos::new(7, 6, 5, 3, 3).unwrap(), LabelOptions::new(33)),
        (Clos::new(24, 24, 3, 24, 24).unwrap(), LabelOptions::plain(69)),
    ]
}

/// Runs a test in a namespace of its own, which ends with it.
fn isolated(test: impl FnOnce() -> Result<(), BpfError> + Send) {
    match polycast_testing::isolated(test) {
        None | Some(Ok(())) => {}
        Some(Err(error @ BpfError::NotBuilt { .. })) => polycast_testing::skip(&error.to_string()),
        Some(Err(error)) => panic!("{error}"),
    }
}

#[test]
fn the_kernel_forwards_as_the_machine_does() {
    isolated(|| {
        let (mut random, mut asked) = (Random(0x1234_5678_9abc_def1), 0);
        for (clos, options) in networks() {
            let planner = Arc::new(LabelPlanner::with_options(clos, options).unwrap());
            let mut nodes = vec![clos.leaf(1), clos.spine(clos.pods() - 1, 1)];
            nodes.extend((clos.cores() > 0).then(|| clos.core(1, 0)));
            for node in nodes {
                asked += compare(&planner, node, &mut random)?;
            }
        }
        assert!(asked > 20, "{asked} packets asked an agent, too few to compare");
        Ok(())
    });
}

/// Both put the same labels in, and drop the same packets, for random labels of leafs and spines.
#[test]
fn the_agent_in_the_kernel_relabels_as_the_machine_does() {
    isolated(|| {
        let mut random = Random(0x1357_9bdf_0246_8ace);
        for (number, label_len) in [3u32, 10, 19, 30].into_iter().enumerate() {
            let name = format!("agent{number}");
            let _wire = Tap::open(&name).unwrap();
            let mut kernel = KernelAgent::attach(Packets { udp_port: UDP_PORT, label_len }, &name, 100)?;
            kernel.set_agent(true)?;
            let mut machine = RackLabels::new(label_len as usize, 100);
            let (mut relabelled, mut asked) = (0, 0);
            for round in 0..PACKETS {
                if round % 20 == 0 {
                    let session = random.below(6);
                    let mut some = |len: u32, first: u8| -> Vec<u8> {
                        (0..len).map(|at| if at == 0 { first } else { random.next() as u8 }).collect()
                    };
                    let mut labels = some(label_len.min(17), [0x81, 0][(round / 20 % 2) as usize]);
                    if labels[0] == 0 {
                        labels.fill(0);
                    }
                    labels.resize(label_len as usize, 0);
                    if labels[0] == 0 || round % 60 == 0 {
                        labels.extend(some(label_len.min(20), 0x11));
                    }
                    machine.set(session, &labels).unwrap();
                    kernel.set_spine_label(session, machine.spine_label(session))?;
                    match machine.get(session) {
                        Some(label) => kernel.set_label(session, label)?,
                        None => kernel.remove_leaf_label(session)?,
                    }
                }
                let payload = payload(&mut random, label_len as usize);
                let (from, to) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(239, 1, 1, 9));
                let sent =
                    common::udp(SocketAddrV4::new(from, 257), SocketAddrV4::new(to, UDP_PORT), &payload);
                let (got, _) = kernel.try_on(&sent, 1)?;
                let mut expected = payload.clone();
                match machine.relabel(&mut expected) {
                    Ok(()) => {
                        let got = got.unwrap_or_else(|| panic!("round {round}: dropped {payload:02x?}"));
                        assert_eq!(got[HEADER_AT..], expected, "round {round}: {payload:02x?}");
                        assert!(common::udp_is_right(&got), "round {round}: {payload:02x?}");
                        relabelled += 1;
                        asked += u32::from(expected[KIND_AT] == LabelKind::Spine as u8);
                    }
                    // For the receivers of this server.
                    Err(Fault::Stray) => assert_eq!(got, Some(sent), "round {round}"),
                    Err(fault) => assert_eq!(got, None, "round {round}: {fault}, {payload:02x?}"),
                }
            }
            assert!(relabelled > 50 && asked > 5, "{relabelled} relabelled, {asked} for spines: too few");
        }
        Ok(())
    });
}

/// Sets its flag when it is dropped.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The kernel has room for few sessions: what it does not know goes through user space once, and is
/// relabelled all the same.
#[test]
fn an_agent_relabels_sessions_that_the_kernel_has_no_room_for() {
    const SESSIONS: u32 = 500;
    isolated(|| {
        let wire = Tap::open("wire").unwrap();
        let packets = Packets { udp_port: UDP_PORT, label_len: 3 };
        let options = RackOptions { packets, sessions_max: SESSIONS as usize, active_max: 64 };
        let attached = RackAgent::attach(options, "wire");
        let (mut agent, mut slow) = match attached {
            Err(RackError::Kernel(error)) => return Err(error),
            other => other.unwrap(),
        };
        agent.set_active(true).unwrap();
        let label = |session: u32| [0x80 | (session as u8 & 0x70), 0, 0];
        let packet = |session: u32, label: &[u8]| {
            let mut bytes = Vec::new();
            Header { kind: LabelKind::Filter, session, label }.emit(&mut bytes);
            bytes.extend(session.to_be_bytes());
            frame(&bytes)
        };
        let pass = |wire: &Tap, session: u32| {
            wire.send(&packet(session, &[0; 3])).unwrap();
            assert!(comes(wire, &packet(session, &label(session)), HANG), "session {session}");
        };
        for session in 0..SESSIONS {
            agent.set_label(session, &label(session)).unwrap();
        }
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let runs = scope.spawn(|| slow.run(&stop));
            // Stops the thread however this ends, so that the scope can join it.
            let _stops = Stops(&stop);
            let mut sent = 0;
            for session in (0..SESSIONS).rev() {
                let (before, _) = agent.relabelled().unwrap();
                sent += 1;
                pass(&wire, session);
                // The next packet may come before the kernel is told.
                until("the kernel relabels it", || {
                    sent += 1;
                    pass(&wire, session);
                    agent.relabelled().unwrap().0 > before
                });
            }
            let (in_kernel, here) = agent.relabelled().unwrap();
            assert_eq!(in_kernel + here, sent);
            // There is room for 64 sessions.
            assert!(here >= u64::from(SESSIONS) - 64, "{in_kernel} in the kernel, {here} in user space");
            // What was told last needs no user space.
            agent.set_label(7, &label(16)).unwrap();
            wire.send(&packet(7, &[0; 3])).unwrap();
            assert!(comes(&wire, &packet(7, &label(16)), HANG));
            assert_eq!(agent.relabelled().unwrap(), (in_kernel + 1, here));
            stop.store(true, Ordering::Relaxed);
            runs.join().unwrap().unwrap();
        });
        Ok(())
    });
}
