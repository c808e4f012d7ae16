//! Groups of programs' own packets over labels: what a source sends goes in by its leaf's door, to all other
//! members, and to no host that is none, through changes of the group, failures and a manager that begins
//! anew.

use polycast_planning::ip_multicast::AddressPool;
use polycast_planning::labels::Encoding;
use polycast_planning::labels::switches::{self, Ingress, LeafAction};
use polycast_planning::labels::{Label, LabelOptions, LabelPlanner};
use polycast_planning::orca::{Orca, OrcaConfig};
use polycast_planning::{
    Cause, Channel, DeviceCommand, Fabric, Failure, Group, HostId, NetworkState, Part, Plan, PlanId, Refusal,
    ReplanOutcome,
};
use polycast_topology::{Clos, Graph as _, Node};
use proptest::prelude::*;
use std::collections::BTreeSet;

const FILTER_BITS: u32 = 4;

fn clos() -> Clos {
    Clos::new(3, 3, 2, 4, 2).unwrap()
}

fn labels() -> LabelOptions {
    LabelOptions::new(FILTER_BITS)
}

/// The number of a host is no number of its server.
fn host(server: Node) -> HostId {
    HostId(500 + server)
}

fn orca(encoding: Option<Encoding>, trees: u32, entries_max: u32) -> Orca {
    let config = OrcaConfig {
        clos: clos(),
        labels: labels(),
        encoding,
        entries_max,
        trees,
        rack_feedback: true,
        rate: None,
    };
    let hosts = (0..clos().hosts()).map(|server| (host(server), server));
    Orca::new(config, hosts, AddressPool::new([239, 255, 64, 0].into(), 4, 7474).unwrap()).unwrap()
}

fn group(sources: &[Node], receivers: &[Node]) -> Group {
    let hosts = |servers: &[Node]| servers.iter().map(|server| host(*server)).collect::<BTreeSet<_>>();
    Group { source: host(sources[0]), further_sources: hosts(&sources[1..]), receivers: hosts(receivers) }
}

/// The hosts that get what a source sends, itself among them where it is a member; none if its leaf takes
/// nothing of it.
fn heard(plan: &Plan, source: Node, failures: &BTreeSet<Part>) -> BTreeSet<HostId> {
    let clos = clos();
    let planner = LabelPlanner::with_options(clos, labels()).unwrap();
    let (format, filter) = (planner.format(), planner.filter());
    let works = |one: Node, other: Node| !failures.contains(&Orca::link(one, other));
    let door = |at: Node| {
        plan.commands.iter().find_map(|command| match command {
            DeviceCommand::LeafDoor { leaf, ports, encoding, label, .. } if *leaf == at => {
                Some((ports, *encoding, Label(label.clone())))
            }
            _ => None,
        })
    };
    let (leaf, port) = (clos.leaf(clos.leaf_index_of(source)), source % clos.hosts_per_leaf());
    let mut got = BTreeSet::new();
    let Some((_, encoding, label)) = door(leaf).filter(|(ports, ..)| ports.contains(&port)) else {
        return got;
    };
    assert_eq!(encoding, Encoding::Filter);
    let LeafAction::Up(plane) = switches::leaf(format, &label, Ingress::Below) else { panic!("{label:?}") };
    let mut at_spine = |pod: u32, ingress| {
        let spine = clos.spine(pod, plane);
        let blocked = plan.commands.iter().fold(0u128, |ports, command| match command {
            DeviceCommand::SpineEntry { spine: at, leaf, .. } if *at == spine => {
                ports | 1 << clos.port_to(spine, *leaf).unwrap()
            }
            _ => ports,
        });
        let action = switches::spine(&clos, format, filter, &label, (pod, plane), blocked, ingress);
        for down in (0..clos.leafs_per_pod()).filter(|port| action.down >> port & 1 == 1) {
            let leaf = clos.neighbor(spine, down);
            let names = plan.commands.iter().find_map(|command| match command {
                DeviceCommand::LeafLabel { leaf: at, label, .. } if *at == leaf => Some(Label(label.clone())),
                _ => None,
            });
            let names = names.expect("no rack gets packets without a member there");
            assert!(door(leaf).is_some(), "a leaf hands packets out as the program has sent them");
            let LeafAction::ToHosts(ports) = switches::leaf(format, &names, Ingress::Below) else {
                panic!("{names:?}")
            };
            for port in (0..clos.hosts_per_leaf()).filter(|port| ports >> port & 1 == 1) {
                let server = clos.neighbor(leaf, port);
                if works(spine, leaf) && works(leaf, server) {
                    assert!(got.insert(host(server)), "one copy each");
                }
            }
        }
        action.up
    };
    let spine = clos.spine(clos.leaf_index_of(source) / clos.leafs_per_pod(), plane);
    if !works(source, leaf) || !works(leaf, spine) {
        return got;
    }
    let up = at_spine(clos.leaf_index_of(source) / clos.leafs_per_pod(), Ingress::Below);
    for pod in (0..clos.pods()).filter(|pod| switches::core(format, &label) >> pod & 1 == 1) {
        let core = clos.core(plane, up.unwrap());
        if works(spine, core) && works(core, clos.spine(pod, plane)) {
            at_spine(pod, Ingress::Above);
        }
    }
    got
}

fn is_of_pods(command: &DeviceCommand) -> bool {
    matches!(command, DeviceCommand::LeafDoor { encoding: Encoding::Pods, .. })
}

/// Checks a plan: each source that failures have not cut off reaches all other members that they have not,
/// hosts that are none hear nothing, and no other host is let in.
fn check(plan: &Plan, group: &Group, failures: &BTreeSet<Part>) {
    if plan.commands.iter().any(is_of_pods) {
        // One source may have labels of pods, which other tests walk.
        assert_eq!(group.sources().count(), 1);
        return;
    }
    let clos = clos();
    let is_on = |of: &HostId| {
        let server = of.0 - 500;
        !failures.contains(&Orca::link(server, clos.leaf(clos.leaf_index_of(server))))
    };
    let members: BTreeSet<HostId> = group.hosts().collect();
    for server in 0..clos.hosts() {
        let from = host(server);
        let heard = heard(plan, server, failures);
        if !group.sources().any(|source| source == from) {
            assert!(heard.is_empty(), "{from:?} is no source");
            continue;
        }
        assert!(heard.is_subset(&members), "from {from:?}");
        let others = |hosts: BTreeSet<HostId>| -> BTreeSet<HostId> {
            hosts.into_iter().filter(|host| *host != from && group.receivers.contains(host)).collect()
        };
        let expected = if is_on(&from) {
            others(members.iter().copied().filter(is_on).collect())
        } else {
            BTreeSet::new()
        };
        assert_eq!(others(heard), expected, "from {from:?}");
    }
    let text = serde_json::to_string(plan).unwrap();
    assert_eq!(serde_json::from_str::<Plan>(&text).unwrap(), *plan, "as records have it");
    assert!(matches!(plan.channel, Channel::Multicast { .. }), "programs see an address");
    assert!(plan.uses.iter().is_sorted(), "failures are looked up");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn sources_reach_all_members_whatever_happens(
        sources in prop::collection::btree_set(0u32..36, 1..8),
        receivers in prop::collection::btree_set(0u32..36, 2..12),
        comes in 0u32..36, goes in 0usize..12,
        down in prop::collection::vec((0u32..9, 0u32..6), 0..2),
        auto: bool, trees in 1u32..3,
    ) {
        let fabric = orca(if auto && trees == 1 { None } else { Some(Encoding::Filter) }, trees, 64);
        let sources: Vec<Node> = sources.into_iter().collect();
        let mut receivers: Vec<Node> = receivers.into_iter().collect();
        if sources.len() == 1 {
            receivers.retain(|receiver| *receiver != sources[0]);
        }
        let mut network = NetworkState::default();
        let first = group(&sources, &receivers);
        let plan = fabric.plan_packets(&network, &first).unwrap();
        let none = BTreeSet::new();
        check(&plan, &first, &none);
        prop_assert_eq!(fabric.adopt(&network, &first, &plan.channel), Some(plan.clone()), "as before");
        // One comes, one goes: the address stays.
        let mut changed = receivers.clone();
        changed.remove(goes % changed.len());
        let is_in = changed.contains(&comes) || sources.len() == 1 && comes == sources[0];
        changed.extend((!is_in).then_some(comes));
        if changed.is_empty() {
            return Ok(());
        }
        let second = group(&sources, &changed);
        let regrouped = fabric.regroup(&network, &plan, &second).unwrap();
        prop_assert_eq!(&regrouped.channel, &plan.channel);
        check(&regrouped, &second, &none);
        // Links break, one after the other.
        prop_assert!(network.hold(PlanId(1), second.clone(), regrouped));
        let mut broken = BTreeSet::new();
        for (leaf, port) in down {
            let leaf = clos().leaf(leaf);
            let part = Orca::link(leaf, clos().neighbor(leaf, port));
            network.fail_part(part);
            broken.insert(part);
            for replan in fabric.replan(&network, &Failure::Part(part)) {
                network.release(replan.id);
                match replan.outcome {
                    ReplanOutcome::Replaced(plan) => {
                        prop_assert!(network.hold(replan.id, second.clone(), plan));
                    }
                    ReplanOutcome::Lost(_) => return Ok(()),
                }
            }
            let now = network.get(PlanId(1)).unwrap().plan.clone();
            check(&now, &second, &broken);
        }
    }
}

/// A group goes on without hosts that failures have cut off, and has them back when their links work again;
/// one that reaches all stays as it is.
#[test]
fn hosts_that_were_cut_off_come_back() {
    let fabric = orca(Some(Encoding::Filter), 1, 64);
    let leaf = clos().leaf(1);
    let links = [4, 5].map(|port| Orca::link(leaf, clos().neighbor(leaf, port)));
    for group in [group(&[5, 0, 20], &[0, 5, 9, 20]), group(&[0], &[5, 9, 20])] {
        let mut network = NetworkState::default();
        let plan = fabric.plan_packets(&network, &group).unwrap();
        assert!(network.hold(PlanId(1), group.clone(), plan));
        let mut broken = BTreeSet::new();
        for link in links {
            network.fail_part(link);
            broken.insert(link);
            for replan in fabric.replan(&network, &Failure::Part(link)) {
                network.release(replan.id);
                let ReplanOutcome::Replaced(plan) = replan.outcome else { panic!("{replan:?}") };
                assert!(network.hold(replan.id, group.clone(), plan));
            }
        }
        let plan = network.get(PlanId(1)).unwrap().plan.clone();
        assert!(!heard(&plan, 0, &broken).contains(&host(5)) && heard(&plan, 0, &broken).contains(&host(9)));
        assert!(heard(&plan, 5, &broken).is_empty());
        assert_eq!(fabric.improve(&network), [], "nothing works again");
        broken.remove(&links[1]);
        network.take_back(Failure::Part(links[1]), Cause::Broken);
        let [(PlanId(1), better)] = &fabric.improve(&network)[..] else { panic!("they are not back") };
        network.release(PlanId(1));
        assert!(network.hold(PlanId(1), group.clone(), better.clone()));
        check(better, &group, &broken);
        network.take_back(Failure::Part(links[0]), Cause::Broken);
        assert_eq!(fabric.improve(&network), [], "it reaches all");
    }
}

#[test]
fn what_cannot_be_is_said_in_a_sentence() {
    let none = NetworkState::default();
    let why = |fabric: &Orca, group: &Group| match fabric.plan_packets(&none, group) {
        Err(Refusal::Impossible(why)) => why,
        other => panic!("{other:?}"),
    };
    let several = group(&[0, 5], &[0, 5, 20]);
    let said = why(&orca(Some(Encoding::Pods), 1, 64), &several);
    assert!(said.contains("orca.encoding = \"auto\" or \"filter\""), "{said}");
    // One source has labels of either kind.
    let one = group(&[0], &[5, 20]);
    let plan = orca(Some(Encoding::Pods), 1, 64).plan_packets(&none, &one).unwrap();
    let doors = plan.commands.iter().filter(|command| matches!(command, DeviceCommand::LeafDoor { .. }));
    assert!(doors.count() >= 3, "{plan:?}");
    // A spine's table that is too small for what some group needs.
    let small = orca(Some(Encoding::Filter), 1, 0);
    let groups = (0..36).map(|at| group(&[at, (at + 13) % 36], &[at, (at + 13) % 36, (at * 5 + 7) % 36]));
    let refused = groups.filter_map(|group| small.plan_packets(&none, &group).err());
    let refused: Vec<String> = refused.map(|refusal| refusal.to_string()).collect();
    let says = |why: &String| why.contains("entries for it and has 0");
    assert!(!refused.is_empty() && refused.iter().all(says), "{refused:?}");
    // Both planes of a rack have failed.
    let mut cut = NetworkState::default();
    for plane in 0..2 {
        let leaf = clos().leaf(1);
        cut.fail_part(Orca::link(leaf, clos().neighbor(leaf, 4 + plane)));
    }
    let refusal = orca(Some(Encoding::Filter), 1, 64).plan_packets(&cut, &several).unwrap_err();
    assert!(refusal.to_string().contains("failures leave no labels by which"), "{refusal}");
}
