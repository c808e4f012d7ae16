//! A whole network of switch machines delivers what the plan says, and nothing else.

use super::*;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec;
use polycast_planning::labels::{LabelOptions, LabelPlan, ManySession};
use polycast_topology::{Clos, Failures};
use proptest::prelude::*;

fn planner(clos: Clos, filter_bits: u32) -> Arc<LabelPlanner> {
    Arc::new(LabelPlanner::with_options(clos, LabelOptions::plain(filter_bits)).unwrap())
}

fn packet(session: u32, label: &[u8]) -> Vec<u8> {
    packet_of(LabelKind::Filter, session, label)
}

fn packet_of(kind: LabelKind, session: u32, label: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    Header { kind, session, label }.emit(&mut bytes);
    bytes
}

fn outputs(switch: &mut Switch, input: Input<'_>) -> Vec<Output> {
    switch.handle(Time::ZERO, input);
    core::iter::from_fn(|| switch.poll(Time::ZERO)).collect()
}

fn ports(outputs: &[Output]) -> Vec<u32> {
    outputs
        .iter()
        .filter_map(|output| if let Output::Copy { port } = output { Some(*port) } else { None })
        .collect()
}

/// The kind and bytes of a session's source label, and what the agents of each leaf put in, spine labels
/// behind leaf labels.
fn labelled(
    planner: &LabelPlanner,
    plan: &LabelPlan,
    session: u32,
    by_pods: bool,
) -> (LabelKind, Vec<u8>, BTreeMap<u32, Vec<u8>>) {
    let (clos, len) = (planner.clos(), planner.format().bytes());
    let mut kept: BTreeMap<u32, Vec<u8>> = plan
        .leaf_hosts
        .iter()
        .map(|entry| (entry.leaf, planner.format().leaf_label(entry.hosts).0))
        .collect();
    if !by_pods {
        return (LabelKind::Filter, plan.label.0.clone(), kept);
    }
    let format = PodLabelFormat::new(clos, len).unwrap();
    let asks = format.asked_leaf(session.into(), |_| true).unwrap();
    let pods = pod_labels::encode(&format, plan, asks);
    for pod in pods.spine_labels {
        let labels = kept.entry(pod.pod * clos.leafs_per_pod() + asks).or_insert(vec![0; len as usize]);
        labels.extend(format.spine_label(plan.tree.path.plane, pod.leafs).0.iter().take(20));
    }
    (LabelKind::Pods, pods.label.0, kept)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn packets_reach_the_receivers_and_no_other_host(
        shape in (2u32..5, 1u32..4, 1u32..4, 1u32..4, 1u32..3), picks in proptest::collection::vec(any::<u16>(), 1..20),
        filter_bits in 2u32..40, session: u32, by_pods: bool,
    ) {
        let clos = Clos::new(shape.0, shape.1, shape.2, shape.3, shape.4).unwrap();
        let planner = planner(clos, filter_bits);
        let host = |pick: u16| u32::from(pick) % clos.hosts();
        let source = host(picks[0]);
        let receivers: BTreeSet<u32> = picks.iter().map(|pick| host(*pick)).filter(|host| *host != source).collect();
        prop_assume!(!receivers.is_empty());
        let named: Vec<u32> = receivers.iter().copied().collect();
        let mut plans = LabelPlanner::clone(&planner);
        let plan = plans.plan(session.into(), source, &named, &Failures::none()).unwrap();
        let mut switches: BTreeMap<Node, Switch> =
            (clos.hosts()..clos.node_count()).map(|node| (node, Switch::new(Arc::clone(&planner), node, 10))).collect();
        for state in plan.spine_state.chunk_by(|a, b| a.spine == b.spine) {
            let port = |leaf: Node| clos.port_to(state[0].spine, leaf).unwrap();
            let ports = state.iter().fold(0, |ports, state| ports | 1 << port(state.leaf));
            outputs(switches.get_mut(&state[0].spine).unwrap(), Input::Block { session, ports });
        }
        let mut racks: BTreeMap<u32, RackLabels> = BTreeMap::new();
        for leaf in 0..clos.leafs() {
            let active = (0..clos.hosts_per_leaf()).collect();
            let agents = Input::Agents { active, rack: u128::MAX };
            outputs(switches.get_mut(&clos.leaf(leaf)).unwrap(), agents);
        }
        let len = planner.format().bytes();
        let (kind, label, kept) = labelled(&planner, &plan, session, by_pods);
        for (leaf, labels_of) in kept {
            let mut labels = RackLabels::new(len as usize, 4);
            labels.set(session, &labels_of).unwrap();
            racks.insert(leaf, labels);
        }
        // Node, port it comes in by, packet.
        let mut under_way = vec![(clos.neighbor(source, 0), source % clos.hosts_per_leaf(), packet_of(kind, session, &label))];
        let mut got: BTreeMap<Node, u32> = BTreeMap::new();
        while let Some((node, port, bytes)) = under_way.pop() {
            let copies = outputs(switches.get_mut(&node).unwrap(), Input::Packet { port, header: &bytes });
            let before = bytes;
            for output in copies {
                let mut bytes = before.clone();
                let out = match output {
                    Output::Copy { port } => port,
                    Output::Ask { port } => {
                        bytes[2] = LabelKind::Asks as u8;
                        port
                    }
                    other => panic!("{other:?}"),
                };
                let next = clos.neighbor(node, out);
                if next >= clos.hosts() {
                    under_way.push((next, clos.port_to(next, node).unwrap(), bytes.clone()));
                } else if bytes[8] & 0x80 != 0 {
                    *got.entry(next).or_default() += 1;
                } else {
                    let mut relabelled = bytes.clone();
                    let leaf = clos.leaf_index_of(next);
                    prop_assert!(racks.contains_key(&leaf), "a rack without receivers");
                    prop_assert_eq!(racks[&leaf].relabel(&mut relabelled), Ok(()), "a rack without receivers");
                    under_way.push((node, next % clos.hosts_per_leaf(), relabelled));
                }
            }
        }
        prop_assert_eq!(got, receivers.iter().map(|host| (*host, 1)).collect::<BTreeMap<_, _>>());
        for switch in switches.values() {
            prop_assert!(Fault::ALL.iter().all(|fault| switch.dropped(*fault) == 0));
        }
    }
}

/// A plain packet of a host that may send reaches all members but no stranger, and as it was sent; one of any
/// other host reaches none.
#[test]
fn programs_of_members_reach_all_members_and_no_other_host() {
    let clos = Clos::new(3, 2, 2, 3, 2).unwrap();
    let planner = planner(clos, 9);
    let (session, none) = (0xef00_0007, Failures::none());
    let members = [0, 1, 7, 8, 15];
    let many = ManySession::new(&planner, session.into(), &members, &none).unwrap();
    let mut switches: BTreeMap<Node, Switch> = (clos.hosts()..clos.node_count())
        .map(|node| (node, Switch::new(Arc::clone(&planner), node, 10)))
        .collect();
    for state in many.spine_state().chunk_by(|a, b| a.spine == b.spine) {
        let port = |leaf: Node| clos.port_to(state[0].spine, leaf).unwrap();
        let ports = state.iter().fold(0, |ports, state| ports | 1 << port(state.leaf));
        outputs(switches.get_mut(&state[0].spine).unwrap(), Input::Block { session, ports });
    }
    for leaf in 0..clos.leafs() {
        let agents = Input::Agents { active: vec![0], rack: 1 };
        outputs(switches.get_mut(&clos.leaf(leaf)).unwrap(), agents);
    }
    let mut labels: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
    for entry in many.leaf_hosts() {
        let first = entry.leaf * clos.hosts_per_leaf() + entry.hosts.trailing_zeros();
        let label = many.label(&planner, first).unwrap().clone();
        let door = Some(Door { hosts: entry.hosts, kind: LabelKind::Filter, label });
        outputs(switches.get_mut(&clos.leaf(entry.leaf)).unwrap(), Input::Door { session, door });
        labels.insert(entry.leaf, planner.format().leaf_label(entry.hosts).0);
    }
    for host in 0..clos.hosts() {
        let (leaf, port) = (clos.neighbor(host, 0), host % clos.hosts_per_leaf());
        let sent = outputs(switches.get_mut(&leaf).unwrap(), Input::Plain { port, session, is_odd: false });
        let is_member = members.contains(&host);
        let [Output::Wrapped { port: up }] = sent[..] else {
            let has_door = labels.contains_key(&clos.leaf_index_of(host));
            let refused = switches[&leaf].dropped(Fault::NotASource) > 0;
            assert!(!is_member && refused == has_door, "host {host}: {sent:?}");
            continue;
        };
        assert!(is_member, "host {host}");
        let label = &switches[&leaf].door(session).unwrap().label;
        let next = clos.neighbor(leaf, up);
        let mut under_way = vec![(next, clos.port_to(next, leaf).unwrap(), packet(session, &label.0))];
        let mut got: BTreeMap<Node, u32> = BTreeMap::new();
        while let Some((node, port, bytes)) = under_way.pop() {
            for output in outputs(switches.get_mut(&node).unwrap(), Input::Packet { port, header: &bytes }) {
                match output {
                    Output::Unwrapped { port } => *got.entry(clos.neighbor(node, port)).or_default() += 1,
                    Output::Copy { port } if clos.neighbor(node, port) < clos.hosts() => {
                        let leaf_label = &labels[&clos.leaf_index_of(clos.neighbor(node, port))];
                        under_way.push((node, port, packet(session, leaf_label)));
                    }
                    Output::Copy { port } => {
                        let next = clos.neighbor(node, port);
                        under_way.push((next, clos.port_to(next, node).unwrap(), bytes.clone()));
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
        assert_eq!(got, members.iter().map(|host| (*host, 1)).collect(), "what host {host} sends");
    }
}

#[test]
fn doors_are_few_and_odd_packets_are_dropped() {
    let clos = Clos::leaf_spine(2, 3, 4).unwrap();
    let planner = planner(clos, 8);
    let mut leaf = Switch::new(Arc::clone(&planner), clos.leaf(0), 1);
    let label = Label(vec![0; planner.format().bytes() as usize]);
    let door = Door { hosts: 0b10, kind: LabelKind::Filter, label };
    let plain = |port, is_odd| Input::Plain { port, session: 5, is_odd };
    assert_eq!(outputs(&mut leaf, plain(1, false)), [Output::Pass]);
    assert_eq!(outputs(&mut leaf, Input::Door { session: 5, door: Some(door.clone()) }), []);
    let full = outputs(&mut leaf, Input::Door { session: 6, door: Some(door.clone()) });
    assert_eq!(full, [Output::Full { session: 6 }]);
    assert_eq!(outputs(&mut leaf, plain(1, false)), [Output::Wrapped { port: 4 }]);
    for (port, is_odd, fault) in [
        (0, false, Fault::NotASource),
        (4, true, Fault::NotASource),
        (1, true, Fault::Malformed),
        (9, false, Fault::NoPort),
    ] {
        let before = leaf.dropped(fault);
        outputs(&mut leaf, plain(port, is_odd));
        assert_eq!(leaf.dropped(fault), before + 1, "port {port}");
    }
    assert_eq!(outputs(&mut leaf, Input::Door { session: 5, door: None }), []);
    assert_eq!(outputs(&mut leaf, plain(1, true)), [Output::Pass]);
    let mut spine = Switch::new(Arc::clone(&planner), clos.spine(0, 0), 1);
    assert_eq!(outputs(&mut spine, Input::Door { session: 5, door: Some(door) }), []);
    assert_eq!(outputs(&mut spine, plain(1, false)), [Output::Pass]);
}

#[test]
fn agents_take_turns_and_only_they_may_name_hosts() {
    let clos = Clos::leaf_spine(2, 3, 4).unwrap();
    let planner = planner(clos, 8);
    let mut leaf = Switch::new(Arc::clone(&planner), clos.leaf(0), 0);
    let source = vec![0; planner.format().bytes() as usize];
    let to_agent = |leaf: &mut Switch| outputs(leaf, Input::Packet { port: 4, header: &packet(1, &source) });
    assert_eq!(to_agent(&mut leaf), [Output::Dropped(Fault::NoAgent)]);
    assert_eq!(to_agent(&mut leaf), []);
    assert_eq!(leaf.dropped(Fault::NoAgent), 2);
    outputs(&mut leaf, Input::Agents { active: vec![3, 1], rack: 0b1010 });
    let turns: Vec<u32> = (0..4).flat_map(|_| ports(&to_agent(&mut leaf))).collect();
    assert_eq!(turns, [3, 1, 3, 1]);
    let hosts = packet(1, &planner.format().leaf_label(0b1011).0);
    assert_eq!(ports(&outputs(&mut leaf, Input::Packet { port: 1, header: &hosts })), [0, 1, 3]);
    let dropped = outputs(&mut leaf, Input::Packet { port: 0, header: &hosts });
    assert_eq!(dropped, [Output::Dropped(Fault::NotAnAgent)]);
    // An agent that was active a moment ago is handed nothing, and what it has is taken.
    outputs(&mut leaf, Input::Agents { active: vec![3], rack: 0b1010 });
    assert_eq!(ports(&to_agent(&mut leaf)), [3]);
    assert_eq!((leaf.relabelled_at(1), leaf.relabelled_at(3)), (Some(Time::ZERO), None));
    leaf.handle(Time(7), Input::Packet { port: 1, header: &hosts });
    assert_eq!(core::iter::from_fn(|| leaf.poll(Time(7))).count(), 3);
    assert_eq!(leaf.relabelled_at(1), Some(Time(7)));
    outputs(&mut leaf, Input::Agents { active: vec![3], rack: 0b1000 });
    assert_eq!(outputs(&mut leaf, Input::Packet { port: 1, header: &hosts }), []);
    assert_eq!(leaf.dropped(Fault::NotAnAgent), 2);
}

#[test]
fn what_is_wrong_is_dropped_and_named_once() {
    let clos = Clos::new(2, 2, 3, 2, 3).unwrap();
    let planner = planner(clos, 8);
    let len = planner.format().bytes() as usize;
    // Ports up are numbers of two bits, and there are three of them: 3 is no port.
    let mut label = vec![0; len];
    label[0] = 0b0110_0000;
    let mut leaf = Switch::new(Arc::clone(&planner), clos.leaf(0), 0);
    let wrong = packet(1, &label);
    let none = Output::Dropped(Fault::NoPort);
    assert_eq!(outputs(&mut leaf, Input::Packet { port: 0, header: &wrong }), [none]);
    assert_eq!(outputs(&mut leaf, Input::Packet { port: 99, header: &wrong }), []);
    label[0] = 0b0001_1000;
    let mut spine = Switch::new(Arc::clone(&planner), clos.spine(0, 0), 1);
    assert_eq!(outputs(&mut spine, Input::Packet { port: 0, header: &packet(1, &label) }), [none]);
    let longer = packet(1, &vec![0; len + 1]);
    let wrong_length = [Output::Dropped(Fault::LabelLength)];
    assert_eq!(outputs(&mut spine, Input::Packet { port: 0, header: &longer }), wrong_length);
    assert_eq!(
        outputs(&mut spine, Input::Packet { port: 0, header: &[1] }),
        [Output::Dropped(Fault::Malformed)]
    );
    let mut other = packet(1, &label);
    other[0] = polycast_wire::VERSION + 1;
    assert_eq!(
        outputs(&mut spine, Input::Packet { port: 0, header: &other }),
        [Output::Dropped(Fault::Version)]
    );
    // Its table has room for one session.
    assert_eq!(outputs(&mut spine, Input::Block { session: 1, ports: 1 }), []);
    assert_eq!(outputs(&mut spine, Input::Block { session: 2, ports: 1 }), [Output::Full { session: 2 }]);
    assert_eq!(outputs(&mut spine, Input::Block { session: 1, ports: 0 }), []);
    assert_eq!(outputs(&mut spine, Input::Block { session: 2, ports: 1 }), []);
    assert_eq!(spine.deadline(), None);
}

/// Labels for pods of kinds that do not come from there, and ports that there are not.
#[test]
fn labels_of_pods_are_taken_from_where_they_come() {
    let clos = Clos::new(3, 3, 3, 2, 3).unwrap();
    let planner = planner(clos, 1);
    let len = planner.format().bytes();
    let format = PodLabelFormat::new(&clos, len).unwrap();
    let kinds = |switch: &mut Switch, port: u32, label: &[u8]| -> Vec<Vec<Output>> {
        let kinds = [LabelKind::Pods, LabelKind::Asks, LabelKind::Spine];
        let packet = |kind| packet_of(kind, 1, label);
        kinds.map(|kind| outputs(switch, Input::Packet { port, header: &packet(kind) })).to_vec()
    };
    let wrong = vec![Output::Dropped(Fault::Kind)];
    let label = format.spine_label(1, 0b101).0;
    let mut leaf = Switch::new(Arc::clone(&planner), clos.leaf(0), 0);
    outputs(&mut leaf, Input::Agents { active: vec![0], rack: 0b01 });
    let up = vec![Output::Copy { port: 2 + 1 }];
    assert_eq!(kinds(&mut leaf, 0, &label), [up.clone(), wrong.clone(), up.clone()]);
    assert_eq!(kinds(&mut leaf, 1, &label), [up, vec![], vec![Output::Dropped(Fault::NotAnAgent)]]);
    assert_eq!(kinds(&mut leaf, 3, &label), vec![vec![Output::Copy { port: 0 }]; 3]);
    let mut spine = Switch::new(Arc::clone(&planner), clos.spine(2, 1), 0);
    let from_below = kinds(&mut spine, 0, &label);
    assert_eq!(from_below[1..], [wrong.clone(), vec![Output::Copy { port: 0 }, Output::Copy { port: 2 }]]);
    assert_eq!(kinds(&mut spine, 3, &label)[1..], [vec![], vec![]]);
    assert_eq!(spine.dropped(Fault::Kind), 3);
    let mut core = Switch::new(Arc::clone(&planner), clos.core(0, 0), 0);
    assert_eq!(kinds(&mut core, 0, &label)[1..], [wrong, vec![]]);
    // Two pods before the third one, and two slots: it asks. There is no fourth leaf.
    assert_eq!(format.slots(), 2);
    let mut asks = vec![0; len as usize];
    let ((at, _), cores) = (format.asks_at(), format.cores_down_at());
    let mut set = |bit: u32| asks[bit as usize / 8] |= 0x80 >> (bit % 8);
    set(cores + 1);
    set(cores + 2);
    set(at);
    let mut of = |port: u32, label: &[u8]| kinds(&mut spine, port, label)[0].clone();
    assert_eq!(of(3, &asks), [Output::Ask { port: 2 }]);
    asks[at as usize / 8 + usize::from(at % 8 == 7)] |= 0x80 >> ((at + 1) % 8);
    assert_eq!(of(3, &asks), [Output::Dropped(Fault::NoPort)]);
}

#[test]
fn probes_are_answered_by_the_port_that_they_came_in_by() {
    let clos = Clos::new(2, 2, 3, 2, 3).unwrap();
    let planner = planner(clos, 8);
    for node in [clos.leaf(0), clos.spine(1, 1), clos.core(0, 0)] {
        let mut switch = Switch::new(Arc::clone(&planner), node, 1);
        let question = Probe { is_answer: false, number: 7 }.emit();
        let answer = Probe { is_answer: true, number: 7 }.emit();
        for port in 0..clos.port_count(node) {
            let asked = outputs(&mut switch, Input::Packet { port, header: &question });
            assert_eq!(asked, [Output::Answer { port }]);
            let answered = outputs(&mut switch, Input::Packet { port, header: &answer });
            assert_eq!(answered, [Output::Answered { port }]);
        }
        let short = outputs(&mut switch, Input::Packet { port: 0, header: &question[..7] });
        assert_eq!(short, [Output::Dropped(Fault::Malformed)]);
        let nowhere = outputs(&mut switch, Input::Packet { port: 99, header: &question });
        assert_eq!(nowhere, [Output::Dropped(Fault::NoPort)]);
    }
}
