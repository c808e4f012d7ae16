//! A label switch, the labels of a rack's agents, and the probes between neighbours.

use crate::words::{INPUTS_MAX, Words, drain};
use polycast_planning::labels::{Label, LabelOptions, LabelPlanner};
use polycast_protocol::switch::{Door, Input, Output, ProbeConfig, ProbeOutput, Probes, RackLabels, Switch};
use polycast_topology::{Clos, Graph};
use polycast_types::{Duration, Time};
use polycast_wire::label::{Header, LabelKind, Probe};
use polycast_wire::rack::SPINE_LABEL_LEN_MAX;
use std::sync::{Arc, OnceLock};

const ENTRIES_MAX: usize = 4;

fn planner() -> &'static Arc<LabelPlanner> {
    static PLANNER: OnceLock<Arc<LabelPlanner>> = OnceLock::new();
    PLANNER.get_or_init(|| {
        let clos = Clos::new(2, 2, 2, 2, 1).expect("a small network");
        Arc::new(LabelPlanner::with_options(clos, LabelOptions::plain(8)).expect("its labels have room"))
    })
}

/// A labelled packet, or something that is none.
fn packet(words: &mut Words<'_>, label_len: usize) -> Vec<u8> {
    match words.below(4) {
        0 => words.bytes(100).to_vec(),
        1 => Probe { is_answer: words.flip(), number: words.small(9) }.emit().to_vec(),
        _ => {
            let mut label = words.bytes(label_len as u16).to_vec();
            label.resize(label_len, 0);
            let mut packet = Vec::new();
            let kind = LabelKind::ALL[words.below(4) as usize];
            Header { kind, session: words.small(4), label: &label }.emit(&mut packet);
            packet
        }
    }
}

/// Any switch of a network survives all packets, and copies them only to ports that it has.
pub fn label_switch(bytes: &[u8]) {
    let mut words = Words::new(bytes);
    let clos = planner().clos();
    let label_len = planner().format().bytes() as usize;
    let node = clos.hosts() + words.below((clos.node_count() - clos.hosts()).into()) as u32;
    let mut switch = Switch::new(Arc::clone(planner()), node, ENTRIES_MAX);
    let mut labels = RackLabels::new(label_len, ENTRIES_MAX);
    let mut now = Time(1);
    for _ in 0..INPUTS_MAX {
        if words.is_empty() {
            break;
        }
        words.pass(&mut now);
        let ports = u128::from(words.number(8));
        match words.below(10) {
            8 | 9 => doors(&mut switch, now, &mut words, label_len),
            0 => switch.handle(now, Input::Block { session: words.small(4), ports }),
            1 => {
                let mut active = words.members(3);
                active.retain(|port| *port < clos.port_count(node));
                switch.handle(now, Input::Agents { active, rack: ports });
            }
            2 => {
                let spine_len = label_len.min(SPINE_LABEL_LEN_MAX);
                let longest = (label_len + spine_len + 1) as u16;
                let (session, mut label) = (words.small(4), words.bytes(longest).to_vec());
                match words.below(3) {
                    0 => label.resize(label_len, 0),
                    1 => label.resize(label_len + spine_len, 0),
                    _ => {}
                }
                let kept = labels.set(session, &label).is_ok();
                let spine_label = label.get(label_len..).filter(|_| kept).unwrap_or_default();
                assert!(!kept || labels.get(session).is_none_or(|kept| label.starts_with(kept)));
                assert!(!kept || labels.spine_label(session).unwrap_or_default() == spine_label);
                assert!(!kept || labels.get(session).or(labels.spine_label(session)).is_some());
                assert!(labels.len() <= ENTRIES_MAX);
            }
            3 => drop(labels.remove(words.small(4))),
            _ => {
                let mut packet = packet(&mut words, label_len);
                switch.handle(now, Input::Packet { port: words.small(4), header: &packet });
                let len = packet.len();
                if labels.relabel(&mut packet).is_ok() {
                    assert_eq!(packet.len(), len);
                    assert!(Header::parse_for(&packet, label_len).is_ok(), "what is relabelled is a packet");
                }
            }
        }
        drain(
            &mut switch,
            |switch| switch.poll(now),
            |_, output| match output {
                Output::Copy { port }
                | Output::Wrapped { port }
                | Output::Unwrapped { port }
                | Output::Ask { port }
                | Output::Answer { port }
                | Output::Answered { port } => {
                    assert!(port < clos.port_count(node), "there is no port {port}");
                }
                Output::Dropped(_) | Output::Full { .. } | Output::Pass => {}
            },
        );
    }
}

/// A leaf's doors, and packets without labels.
fn doors(switch: &mut Switch, now: Time, words: &mut Words<'_>, label_len: usize) {
    let (session, is_open) = (words.small(4), words.below(2) == 1);
    if words.below(2) == 0 {
        let (port, is_odd) = (words.small(4), words.below(4) == 0);
        return switch.handle(now, Input::Plain { port, session, is_odd });
    }
    let hosts = u128::from(words.number(8));
    let mut label = words.bytes(label_len as u16).to_vec();
    label.resize(label_len, 0);
    let door = Door { hosts, kind: LabelKind::Filter, label: Label(label) };
    switch.handle(now, Input::Door { session, door: is_open.then_some(door) });
}

/// Probes are what they are read as, and whatever neighbours answer, each port is asked once in a period.
pub fn label_probe(bytes: &[u8]) {
    if let Ok(probe) = Probe::parse(bytes) {
        assert_eq!(Probe::parse(&probe.emit()), Ok(probe));
        assert!(Header::parse(bytes).is_err(), "a probe is no labelled packet");
    }
    let mut words = Words::new(bytes);
    let ports = words.members(6);
    let mut now = Time(1);
    let config = ProbeConfig { period: Duration::from_millis(10), in_a_row: 1 + words.below(4) as u32 };
    let mut probes = Probes::new(config, ports.iter().copied(), now);
    let mut last = 0;
    for _ in 0..INPUTS_MAX {
        if words.is_empty() {
            break;
        }
        words.pass(&mut now);
        match Probe::parse(words.bytes(12)) {
            Ok(probe) => probes.answered(words.small(6), probe),
            Err(_) => probes.answered(words.small(6), Probe { is_answer: true, number: last }),
        }
        let mut outputs = 0;
        drain(
            &mut probes,
            |probes| probes.poll(now),
            |_, output| {
                outputs += 1;
                match output {
                    ProbeOutput::Send { port, probe } => {
                        assert!(ports.contains(&port) && Probe::parse(&probe.emit()) == Ok(probe));
                        last = probe.number;
                    }
                    ProbeOutput::Neighbour { port, .. } => assert!(ports.contains(&port)),
                }
            },
        );
        assert!(outputs <= 2 * ports.len(), "{outputs} words about {} ports", ports.len());
        assert!(probes.deadline().is_none_or(|at| at > now), "drained, yet due at {now:?}");
    }
}
