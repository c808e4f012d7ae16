//! Sessions in which every member sends: what one of them sends reaches all others and no other host,
//! whatever the switches know of the session, through joins, leaves and failures.

use polycast_planning::labels::switches::{self, Ingress, LeafAction};
use polycast_planning::labels::{
    LabelError, LabelOptions, LabelPlan, LabelPlanner, ManySession, Session, SpineState, TreePath,
};
use polycast_topology::{Clos, Failures, Graph, Network, Node};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// Networks and filters: roomy ones, and such small filters that most of them say yes to strangers.
const NETWORKS: [(&str, u32); 5] = [
    ("fat-tree:8,3", 69),
    ("fat-tree:8,3", 7),
    ("leaf-spine:9,3,4", 9),
    ("clos:6,5,3,4,2", 12),
    ("clos:12,8,4,9,1", 24),
];

fn planner(at: usize) -> LabelPlanner {
    let (network, filter_bits) = NETWORKS[at % NETWORKS.len()];
    let clos = network.parse::<Network>().unwrap().as_clos().unwrap();
    let options = LabelOptions { filter_bits, ..LabelOptions::new(filter_bits) };
    LabelPlanner::with_options(clos, options).unwrap()
}

/// A network of switches with what a session has put there, some parts of which do not work.
struct World<'a> {
    planner: &'a LabelPlanner,
    failures: &'a Failures,
    /// Entries of spines, and hosts of leafs.
    blocked: BTreeMap<Node, u128>,
    hosts: BTreeMap<u32, u128>,
    /// Number of copies that each host got.
    got: BTreeMap<Node, u32>,
    /// Racks that got a packet in vain.
    in_vain: u32,
}

impl<'a> World<'a> {
    fn new(
        planner: &'a LabelPlanner,
        failures: &'a Failures,
        entries: &[SpineState],
        hosts: BTreeMap<u32, u128>,
    ) -> Self {
        let mut blocked: BTreeMap<Node, u128> = BTreeMap::new();
        for entry in entries {
            let leaf = planner.clos().kind(entry.leaf).1 % planner.clos().leafs_per_pod();
            *blocked.entry(entry.spine).or_default() |= 1 << leaf;
        }
        World { planner, failures, blocked, hosts, got: BTreeMap::new(), in_vain: 0 }
    }

    fn clos(&self) -> &'a Clos {
        self.planner.clos()
    }

    fn works(&self, node: Node, port: u32) -> bool {
        self.failures.link_works(self.clos(), node, port)
    }

    /// A packet of this host with its label.
    fn send(&mut self, host: Node, plan: &LabelPlan) {
        let clos = self.clos();
        let (leaf, format) = (clos.leaf_index_of(host), self.planner.format());
        let LeafAction::Up(plane) = switches::leaf(format, &plan.label, Ingress::Below) else {
            panic!("members send source labels");
        };
        let pod = leaf / clos.leafs_per_pod();
        if self.works(host, 0) && self.works(clos.leaf(leaf), clos.hosts_per_leaf() + plane) {
            self.spine(pod, plane, Ingress::Below, plan);
        }
    }

    fn spine(&mut self, pod: u32, plane: u32, ingress: Ingress, plan: &LabelPlan) {
        let (clos, format, filter) = (self.clos(), self.planner.format(), self.planner.filter());
        let spine = clos.spine(pod, plane);
        let blocked = self.blocked.get(&spine).copied().unwrap_or(0);
        let action = switches::spine(clos, format, filter, &plan.label, (pod, plane), blocked, ingress);
        for port in (0..clos.leafs_per_pod()).filter(|port| action.down >> port & 1 == 1) {
            if self.works(spine, port) {
                self.leaf(pod * clos.leafs_per_pod() + port);
            }
        }
        let Some(up) = action.up.filter(|up| self.works(spine, clos.leafs_per_pod() + up)) else { return };
        let down = switches::core(format, &plan.label);
        for other in (0..clos.pods()).filter(|pod| down >> pod & 1 == 1) {
            if self.works(clos.core(plane, up), other) {
                self.spine(other, plane, Ingress::Above, plan);
            }
        }
    }

    fn leaf(&mut self, leaf: u32) {
        let clos = self.clos();
        let Some(&hosts) = self.hosts.get(&leaf) else {
            self.in_vain += 1;
            return;
        };
        for port in (0..clos.hosts_per_leaf()).filter(|port| hosts >> port & 1 == 1) {
            if self.works(clos.leaf(leaf), port) {
                *self.got.entry(leaf * clos.hosts_per_leaf() + port).or_default() += 1;
            }
        }
    }
}

/// Every member sends once; each packet comes to all members once that are not said to be left out.
fn all_hear_all(planner: &LabelPlanner, many: &ManySession, failures: &Failures) {
    let hosts: BTreeMap<u32, u128> =
        many.leaf_hosts().iter().map(|entry| (entry.leaf, entry.hosts)).collect();
    let members: BTreeSet<Node> = many.members(planner).collect();
    for &member in &members {
        let mut world = World::new(planner, failures, many.spine_state(), hosts.clone());
        let left_out: BTreeSet<Node> = many.left_out(planner, member).into_iter().collect();
        match many.plan_of(planner, member) {
            Some(plan) => {
                assert_eq!(many.label(planner, member), Some(&plan.label));
                world.send(member, &plan);
                let expected: BTreeMap<Node, u32> = members
                    .iter()
                    .filter(|member| !left_out.contains(member))
                    .map(|&host| (host, 1))
                    .collect();
                assert_eq!(world.got, expected, "what host {member} sends");
                assert_eq!(world.in_vain, 0, "host {member} reaches racks without members");
            }
            None => assert_eq!(left_out.len(), members.len() - 1, "host {member} is cut off"),
        }
        assert_eq!(many.labels() > 0, !members.is_empty());
    }
}

/// Switches and links of switches that fail, out of numbers.
fn failed(clos: &Clos, numbers: &[u32]) -> Failures {
    let mut failures = Failures::none();
    for number in numbers {
        let node = clos.hosts() + number / 16 % (clos.node_count() - clos.hosts());
        if number % 16 == 0 {
            failures.fail_node(node);
        } else {
            failures.fail_link(clos.link(node, number / 64 % clos.port_count(node)));
        }
    }
    failures
}

#[test]
fn entries_of_sessions_with_one_source_each_would_stop_each_other() {
    let (mut lost, mut sent) = (0, 0);
    for seed in 0..40u64 {
        let mut planner = planner(1);
        let none = Failures::none();
        let members: Vec<Node> = (0..6).map(|at| ((seed * 37 + at * 23) % 128) as Node).collect();
        let members: BTreeSet<Node> = members.into_iter().collect();
        let others = |host: Node| members.iter().copied().filter(|&other| other != host).collect::<Vec<_>>();
        let plans: BTreeMap<Node, LabelPlan> = members
            .iter()
            .map(|&host| (host, planner.plan(seed, host, &others(host), &none).unwrap()))
            .collect();
        // One number: each switch has what any of the plans put there.
        let entries: Vec<SpineState> =
            plans.values().flat_map(|plan| plan.spine_state.iter().copied()).collect();
        let mut hosts: BTreeMap<u32, u128> = BTreeMap::new();
        for entry in plans.values().flat_map(|plan| &plan.leaf_hosts) {
            *hosts.entry(entry.leaf).or_default() |= entry.hosts;
        }
        for (&host, plan) in &plans {
            let mut world = World::new(&planner, &none, &entries, hosts.clone());
            world.send(host, plan);
            sent += members.len() - 1;
            lost += others(host).iter().filter(|other| !world.got.contains_key(other)).count();
        }
        let session: Vec<Node> = members.iter().copied().collect();
        all_hear_all(&planner, &ManySession::new(&planner, seed, &session, &none).unwrap(), &none);
    }
    assert!(lost > 0, "{lost} of {sent} copies would be lost");
    println!("{lost} of {sent} copies would be lost");
}

#[test]
fn members_of_a_pod_share_a_label_and_entries_are_as_for_one() {
    let planner = planner(0);
    let none = Failures::none();
    let members: Vec<Node> = (0..64).map(|at| at * 2).collect();
    let many = ManySession::new(&planner, 5, &members, &none).unwrap();
    assert_eq!(many.labels(), 8, "one for each of 8 pods");
    let one = Session::new(1, many.plan_of(&planner, 0).unwrap());
    assert_eq!(one.plan().spine_state, many.spine_state());
    let (near, far) = (many.label(&planner, 0), many.label(&planner, 127));
    assert!(near.is_some() && far.is_none(), "a host that is no member has no label");
    assert_eq!(near, many.label(&planner, 2));
    assert_ne!(near, many.label(&planner, 126));
}

/// Members in one tenth of the pods, or all over the network: what the session takes at switches and members.
#[test]
fn a_session_of_thousands_takes_a_label_a_pod() {
    let clos = "fat-tree:48,3".parse::<Network>().unwrap().as_clos().unwrap();
    let mut planner = LabelPlanner::new(clos, 69).unwrap();
    let none = Failures::none();
    for (count, hosts) in [(100, 2_880), (1_000, 2_880), (100, 27_648), (1_000, 27_648), (10_000, 27_648)] {
        let members: BTreeSet<Node> = (0..count).map(|at| at * 7_919 % hosts).collect();
        let members: Vec<Node> = members.into_iter().collect();
        let many = ManySession::new(&planner, 3, &members, &none).unwrap();
        let one = planner.plan(3, members[0], &members[1..], &none).unwrap();
        let pods: BTreeSet<Node> = members.iter().map(|host| host / 576).collect();
        assert_eq!(many.labels(), pods.len());
        println!(
            "{} members in {} pods: {} labels, {} entries, {} with one source, {} leaf labels",
            members.len(),
            pods.len(),
            many.labels(),
            many.spine_state().len(),
            one.spine_state.len(),
            many.leaf_hosts().len(),
        );
    }
}

#[test]
fn a_member_in_a_known_rack_costs_two_messages() {
    let planner = planner(0);
    let none = Failures::none();
    let mut many = ManySession::new(&planner, 9, &[0, 17, 40], &none).unwrap();
    let update = many.join(&planner, 9, 1, &none).unwrap();
    assert_eq!((update.senders, update.leafs), (vec![1], vec![0]));
    assert!(update.added.is_empty() && update.removed.is_empty() && update.silenced.is_empty());
    // A new rack is in the labels of all.
    let update = many.join(&planner, 9, 100, &none).unwrap();
    assert_eq!(update.senders, [0, 1, 17, 40, 100]);
    let update = many.leave(&planner, 9, 1, &none).unwrap();
    assert_eq!((update.messages(), update.silenced), (2, vec![1]));
    assert_eq!(many.join(&planner, 9, 100, &none).unwrap().messages(), 0, "it is a member already");
    assert_eq!(many.leave(&planner, 9, 5, &none).unwrap().messages(), 0, "it is none");
}

#[test]
fn refusals_leave_the_session_as_it_was() {
    let planner = planner(0);
    let none = Failures::none();
    let alone = ManySession::new(&planner, 1, &[3], &none);
    assert_eq!(alone, Err(LabelError::NoReceivers { host: 3 }));
    assert!(matches!(ManySession::new(&planner, 1, &[], &none), Err(LabelError::NoReceivers { .. })));
    assert_eq!(
        ManySession::new(&planner, 1, &[3, 128], &none),
        Err(LabelError::NotAHost { node: 128, last: 127 })
    );
    let mut many = ManySession::new(&planner, 1, &[3, 90], &none).unwrap();
    let before = many.clone();
    assert_eq!(many.leave(&planner, 1, 90, &none), Err(LabelError::NoReceivers { host: 3 }));
    let mut cut = Failures::none();
    cut.fail_link(planner.clos().link(90, 0));
    assert_eq!(many.replan(&planner, 1, &cut), Err(LabelError::Disconnected { host: 3 }));
    assert_eq!(many, before);
}

#[test]
fn a_rack_that_lost_its_link_moves_the_session_and_comes_back_to_the_same_state() {
    let planner = planner(0);
    let clos = *planner.clos();
    let mut many = ManySession::new(&planner, 77, &[0, 1, 30, 77, 120], &Failures::none()).unwrap();
    let TreePath { plane, .. } = many.plan_of(&planner, 0).unwrap().tree.path;
    let mut failures = Failures::none();
    failures.fail_link(clos.link(clos.leaf(0), clos.hosts_per_leaf() + plane));
    let update = many.replan(&planner, 77, &failures).unwrap();
    assert_eq!(update.senders, [0, 1, 30, 77, 120], "all move to another plane: the rack hears all of them");
    assert_ne!(many.plan_of(&planner, 0).unwrap().tree.path.plane, plane);
    all_hear_all(&planner, &many, &failures);
    // With every plane broken somewhere, each member reaches what it can.
    for broken in 0..clos.spines_per_pod() {
        failures.fail_link(clos.link(clos.leaf(broken % 2 * 19), clos.hosts_per_leaf() + broken));
    }
    many.replan(&planner, 77, &failures).unwrap();
    all_hear_all(&planner, &many, &failures);
    many.replan(&planner, 77, &Failures::none()).unwrap();
    assert!(many.members(&planner).all(|host| many.left_out(&planner, host).is_empty()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn whatever_happens_members_hear_each_other(
        at in 0usize..5,
        session in any::<u64>(),
        members in prop::collection::vec(any::<u32>(), 2..30),
        events in prop::collection::vec((0u32..4, any::<u32>(), prop::collection::vec(any::<u32>(), 0..40)), 0..12),
    ) {
        let planner = planner(at);
        let clos = *planner.clos();
        let hosts = clos.hosts();
        let members: Vec<Node> = members.into_iter().map(|number| number % hosts).collect();
        let mut failures = Failures::none();
        let Ok(mut many) = ManySession::new(&planner, session, &members, &failures) else { return Ok(()) };
        all_hear_all(&planner, &many, &failures);
        for (what, number, numbers) in events {
            let mut known = many.clone();
            let update = match what {
                0 => many.join(&planner, session, number % hosts, &failures),
                1 => many.leave(&planner, session, members[number as usize % members.len()], &failures),
                _ => {
                    failures = failed(&clos, &numbers);
                    many.replan(&planner, session, &failures)
                }
            };
            match update {
                Ok(update) => {
                    all_hear_all(&planner, &many, &failures);
                    // What is told leads from the old state to the new one.
                    let mut entries: BTreeSet<SpineState> = known.spine_state().iter().copied().collect();
                    update.removed.iter().for_each(|entry| assert!(entries.remove(entry)));
                    update.added.iter().for_each(|entry| assert!(entries.insert(*entry)));
                    entries.retain(|entry| !failures.node_failed(entry.spine));
                    let left = many.spine_state().iter().filter(|entry| !failures.node_failed(entry.spine));
                    prop_assert_eq!(entries, left.copied().collect::<BTreeSet<_>>());
                    for member in many.members(&planner) {
                        let is_same = known.label(&planner, member) == many.label(&planner, member);
                        let is_told = update.senders.contains(&member) || update.silenced.contains(&member);
                        prop_assert_eq!(is_same, !is_told, "host {}", member);
                    }
                }
                Err(_) => known = many.clone(),
            }
            drop(known);
        }
    }
}
