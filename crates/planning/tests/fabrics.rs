//! The fabrics of the four papers behind the one planning interface: nothing is held twice, every receiver is
//! reached by what devices are told, and refusals say what is in the way. Reach is found by following the
//! light, the relays, the labels and the routes, not by asking the planners.

use std::collections::{BTreeMap, BTreeSet};

use polycast_planning::datacast::{Datacast, DatacastConfig};
use polycast_planning::ip_multicast::AddressPool;
use polycast_planning::labels::Encoding;
use polycast_planning::labels::pod_labels::{self, PodLabelFormat};
use polycast_planning::labels::switches::{self, Ingress, LeafAction};
use polycast_planning::labels::{Label, LabelOptions, LabelPlanner};
use polycast_planning::ocs::{Ocs, OcsConfig};
use polycast_planning::orca::{Orca, OrcaConfig};
use polycast_planning::shufflecast::{Shufflecast, ShufflecastConfig};
use polycast_planning::{
    Channel, DeviceCommand, Fabric, Fabrics, Failure, Group, HostId, NetworkState, Part, Plan, PlanId,
    RackPort, Refusal, ReplanOutcome, Resource, Running, TreeRoutes,
};
use polycast_topology::optics::{PowerBudget, splitter_loss_db};
use polycast_topology::{Clos, Graph, Hybrid, Network, Shufflecast as Splitters};
use polycast_types::{Duration, LabelKind, Rate};
use proptest::prelude::*;

const RATE: Rate = Rate(10_000_000_000);

fn pool(addresses: u32) -> AddressPool {
    AddressPool::new([239, 1, 0, 0].into(), addresses, 7410).unwrap()
}

/// Hosts are numbered backwards, so that a host's number is never its server's by accident.
fn hosts(servers: u32) -> impl Iterator<Item = (HostId, u32)> {
    (0..servers).map(move |server| (HostId(1000 + servers - server), server))
}

fn host_at(servers: u32, server: u32) -> HostId {
    HostId(1000 + servers - server)
}

fn hybrid() -> Hybrid {
    Hybrid { racks: 8, servers_per_rack: 3, ports_per_rack: 2, splitters: 6, splitter_fanout: 3 }
}

fn ocs() -> Ocs {
    ocs_with(20.0)
}

fn ocs_with(budget_db: f64) -> Ocs {
    let budget = PowerBudget {
        budget_db,
        switch_loss_db: 1.0,
        splitter_loss_db: splitter_loss_db(3),
        amplifier_gain_db: 0.0,
    };
    let attempt_interval = Duration::from_millis(1);
    let config = OcsConfig { hybrid: hybrid(), cascade_max: 3, budget, rate: RATE, attempt_interval };
    Ocs::new(config, hosts(24), pool(8)).unwrap()
}

fn splitters() -> Splitters {
    Splitters::new(2, 3).unwrap()
}

fn shufflecast(shares: u32) -> Shufflecast {
    let config = ShufflecastConfig {
        network: splitters().into(),
        servers_per_rack: 2,
        rate: RATE,
        shares,
        attempt_interval: Duration::from_millis(1),
    };
    Shufflecast::new(config, hosts(48), pool(16)).unwrap()
}

fn clos() -> Clos {
    Clos::new(4, 3, 3, 3, 2).unwrap()
}

fn labels() -> LabelOptions {
    LabelOptions::new(5)
}

fn orca(encoding: Encoding, entries_max: u32) -> Orca {
    orca_with(Some(encoding), entries_max, if encoding == Encoding::Pods { 1 } else { 2 })
}

fn orca_with(encoding: Option<Encoding>, entries_max: u32, trees: u32) -> Orca {
    let config = OrcaConfig {
        clos: clos(),
        labels: labels(),
        encoding,
        entries_max,
        trees,
        rack_feedback: true,
        rate: None,
    };
    Orca::new(config, hosts(36), pool(64)).unwrap()
}

fn bcube() -> Network {
    "bcube:4,2".parse().unwrap()
}

/// The hosts to which the rules of racks copy what comes from a port; circuits and splitters are followed by
/// `on`.
fn copied(rules: &[DeviceCommand], at: u32, port: RackPort) -> Vec<RackPort> {
    let matches = rules.iter().filter_map(|rule| match rule {
        DeviceCommand::RackRule { rack, from, to, .. } if (*rack, *from) == (at, port) => Some(to.clone()),
        _ => None,
    });
    matches.flatten().collect()
}

fn walk_circuits(group: &Group, plan: &Plan, rack_of: impl Fn(HostId) -> u32) -> BTreeSet<HostId> {
    let hybrid = hybrid();
    let lit: BTreeMap<u32, u32> = plan
        .commands
        .iter()
        .filter_map(|command| match command {
            DeviceCommand::CrossConnect { from, to } => Some((*from, *to)),
            _ => None,
        })
        .collect();
    let mut got = BTreeSet::new();
    let source_rack = rack_of(group.source);
    let mut work: Vec<(u32, RackPort)> = copied(&plan.commands, source_rack, RackPort::Host(group.source))
        .into_iter()
        .map(|port| (source_rack, port))
        .collect();
    while let Some((rack, port)) = work.pop() {
        let mut entering = match port {
            RackPort::Host(host) => {
                assert!(got.insert(host), "one copy each");
                assert_eq!(rack_of(host), rack, "a switch feeds the hosts of its own rack");
                continue;
            }
            RackPort::Circuit(uplink) => vec![hybrid.rack_port(rack, uplink)],
            RackPort::Splitter(_) | RackPort::FromSplitters => panic!("racks have no splitters here"),
        };
        while let Some(from) = entering.pop() {
            let Some(&to) = lit.get(&from) else { continue };
            match (0..hybrid.splitters).find(|&splitter| hybrid.splitter_input(splitter) == to) {
                Some(splitter) => {
                    entering
                        .extend((0..hybrid.splitter_fanout).map(|out| hybrid.splitter_output(splitter, out)));
                }
                None => {
                    let (rack, uplink) = (to / hybrid.ports_per_rack, to % hybrid.ports_per_rack);
                    let next = copied(&plan.commands, rack, RackPort::Circuit(uplink));
                    work.extend(next.into_iter().map(|port| (rack, port)));
                }
            }
        }
    }
    got
}

fn walk_relays(group: &Group, plan: &Plan, standing: &[DeviceCommand]) -> BTreeSet<HostId> {
    let network = splitters();
    let rack_of = |host: HostId| (1000 + 48 - host.0) / 2;
    let source = rack_of(group.source);
    let relays: BTreeSet<u32> = standing
        .iter()
        .filter_map(|command| match command {
            DeviceCommand::RelayRule { rack, source: of, .. } if *of == source => Some(*rack),
            _ => None,
        })
        .collect();
    let mut reached = BTreeSet::from([source]);
    let mut got = BTreeSet::new();
    let mut add = |rack: u32, ports: Vec<RackPort>| {
        for port in ports {
            if let RackPort::Host(host) = port {
                assert!(got.insert(host) && rack_of(host) == rack);
            }
        }
    };
    let first = copied(&plan.commands, source, RackPort::Host(group.source));
    let mut work = if first.contains(&RackPort::Splitter(0)) { vec![source] } else { Vec::new() };
    add(source, first);
    while let Some(rack) = work.pop() {
        if !relays.contains(&rack) {
            continue;
        }
        for child in network.children(rack) {
            if reached.insert(child) {
                add(child, copied(&plan.commands, child, RackPort::FromSplitters));
                work.push(child);
            }
        }
    }
    got
}

/// Every label of a session leads to the same receivers.
fn walk_label(group: &Group, plan: &Plan, network: &NetworkState) -> BTreeSet<HostId> {
    let Channel::Label { label, further, encoding, .. } = &plan.channel else { panic!("{plan:?}") };
    if *encoding == Encoding::Pods {
        return walk_pods(group, plan, label, network);
    }
    let mut reached = further.iter().chain([label]).map(|label| walk_one_label(group, plan, label));
    let got = reached.next().unwrap();
    assert!(reached.all(|other| other == got) && !further.contains(label), "{plan:?}");
    got
}

fn walk_one_label(group: &Group, plan: &Plan, label: &[u8]) -> BTreeSet<HostId> {
    let clos = clos();
    let planner = LabelPlanner::with_options(clos, labels()).unwrap();
    let (format, filter) = (planner.format(), planner.filter());
    let Channel::Label { session, .. } = &plan.channel else { panic!("{plan:?}") };
    let label = Label(label.to_vec());
    let mut got = BTreeSet::new();
    let mut at_leaf = |leaf: u32| {
        let found = plan.commands.iter().find_map(|command| match command {
            DeviceCommand::LeafLabel { leaf: at, session: of, label } if (*at, of) == (leaf, session) => {
                Some(Label(label.clone()))
            }
            _ => None,
        });
        let label = found.expect("no leaf gets packets without a receiver there");
        let LeafAction::ToHosts(ports) = switches::leaf(format, &label, Ingress::Below) else {
            panic!("a leaf label")
        };
        for port in (0..clos.hosts_per_leaf()).filter(|port| ports >> port & 1 == 1) {
            let server = clos.neighbor(leaf, port);
            assert!(got.insert(host_at(36, server)));
        }
    };
    let mut at_spine = |pod: u32, plane: u32, ingress| {
        let node = clos.spine(pod, plane);
        let blocked = plan.commands.iter().fold(0u128, |ports, command| match command {
            DeviceCommand::SpineEntry { spine, leaf, .. } if *spine == node => {
                ports | 1 << clos.port_to(node, *leaf).unwrap()
            }
            _ => ports,
        });
        let action = switches::spine(&clos, format, filter, &label, (pod, plane), blocked, ingress);
        for port in (0..clos.leafs_per_pod()).filter(|port| action.down >> port & 1 == 1) {
            at_leaf(clos.neighbor(node, port));
        }
        action.up
    };
    let server = 1000 + 36 - group.source.0;
    let LeafAction::Up(plane) = switches::leaf(format, &label, Ingress::Below) else {
        panic!("a source label")
    };
    let pod = clos.leaf_index_of(server) / clos.leafs_per_pod();
    at_spine(pod, plane, Ingress::Below);
    for other in (0..clos.pods()).filter(|pod| switches::core(format, &label) >> pod & 1 == 1) {
        at_spine(other, plane, Ingress::Above);
    }
    got
}

/// By the labels that racks keep: from spine to spine, and where a spine asks, by the label that it is given.
fn walk_pods(group: &Group, plan: &Plan, label: &[u8], network: &NetworkState) -> BTreeSet<HostId> {
    let clos = clos();
    let planner = LabelPlanner::with_options(clos, labels()).unwrap();
    let format = planner.format();
    let pods = PodLabelFormat::new(&clos, format.bytes()).unwrap();
    let kept = |leaf: u32| {
        plan.commands.iter().find_map(|command| match command {
            DeviceCommand::LeafLabel { leaf: at, label, .. } if *at == leaf => {
                Some(label.split_at(format.bytes() as usize))
            }
            DeviceCommand::SpineEntry { .. } => panic!("an entry of a label with pods"),
            _ => None,
        })
    };
    let label = Label(label.to_vec());
    let LeafAction::Up(plane) = switches::leaf(format, &label, Ingress::Below) else {
        panic!("a source label")
    };
    let failed: BTreeSet<Part> = network.failed_parts(Orca::NAME).collect();
    let source = clos.leaf_index_of(1000 + 36 - group.source.0) / clos.leafs_per_pod();
    let others = (0..clos.pods()).filter(|pod| pods.cores_down(&label) >> pod & 1 == 1);
    let mut got = BTreeSet::new();
    for (pod, ingress) in
        [(source, Ingress::Below)].into_iter().chain(others.map(|pod| (pod, Ingress::Above)))
    {
        let spine = clos.spine(pod, plane);
        let mut action = pod_labels::spine(&pods, (LabelKind::Pods, &label), pod, ingress).unwrap();
        if let Some(asked) = action.asks {
            let leaf = clos.neighbor(spine, asked);
            assert!(!failed.contains(&Orca::link(spine, leaf)), "the spine {spine} cannot ask {leaf}");
            let (_, spine_label) = kept(leaf).expect("a leaf that is asked has a label");
            let mut spine_label = spine_label.to_vec();
            assert!(!spine_label.is_empty(), "a leaf that is asked has a spine label");
            spine_label.resize(format.bytes() as usize, 0);
            let spine_label = (LabelKind::Spine, &Label(spine_label));
            let back = switches::guarded_leaf(format, spine_label, Ingress::Below, true);
            assert_eq!(back, Ok(LeafAction::Up(plane)));
            action = pod_labels::spine(&pods, spine_label, pod, Ingress::Below).unwrap();
        }
        for port in (0..clos.leafs_per_pod()).filter(|port| action.down >> port & 1 == 1) {
            let leaf = clos.neighbor(spine, port);
            let (leaf_label, _) = kept(leaf).expect("no leaf gets packets without a receiver there");
            let leaf_label = Label(leaf_label.to_vec());
            let LeafAction::ToHosts(ports) = switches::leaf(format, &leaf_label, Ingress::Below) else {
                panic!("a leaf label")
            };
            for port in (0..clos.hosts_per_leaf()).filter(|port| ports >> port & 1 == 1) {
                assert!(got.insert(host_at(36, clos.neighbor(leaf, port))));
            }
        }
    }
    got
}

fn walk_routes(group: &Group, plan: &Plan, network: &NetworkState) -> BTreeSet<HostId> {
    let Channel::SourceRoutes { trees, .. } = &plan.channel else { panic!("{plan:?}") };
    assert!(!trees.is_empty());
    let graph = bcube();
    let server = |host: HostId| 1000 + 16 - host.0;
    let failed: BTreeSet<Part> = network.failed_parts(Datacast::NAME).collect();
    let mut arcs = BTreeMap::new();
    let mut got = BTreeSet::new();
    for (index, tree) in trees.iter().enumerate() {
        let mut reached = BTreeSet::new();
        for (host, hops) in &tree.routes {
            let mut at = server(*host);
            for hop in hops {
                let next = graph.neighbor(at, hop.port);
                assert!(
                    !failed.contains(&Datacast::link(at, next)) && !failed.contains(&Datacast::node(next))
                );
                assert_eq!(*arcs.entry((next, at)).or_insert(index), index, "trees share no arc");
                at = next;
            }
            assert_eq!(at, server(group.source));
            reached.insert(*host);
        }
        assert!(index == 0 || got == reached, "every tree reaches the same");
        got = reached;
    }
    got
}

/// Checks that a receiver that is left out of trees is cut off, or was at an earlier failure: the trees of a
/// transfer that runs go on without it.
fn only_who_was_cut_off_is_left_out(
    running: &Running,
    got: &BTreeSet<HostId>,
    network: &NetworkState,
    lost: &mut BTreeSet<HostId>,
) {
    let server = |host: HostId| 1000 + 16 - host.0;
    let linked = linked(server(running.group.source), &network.failed_parts(Datacast::NAME).collect());
    for host in running.group.receivers.difference(got) {
        assert!(!linked.contains(&server(*host)) || lost.contains(host), "{host:?} is linked and left out");
        lost.insert(*host);
    }
}

/// The nodes that working links join to a node.
fn linked(from: u32, failed: &BTreeSet<Part>) -> BTreeSet<u32> {
    let graph = bcube();
    let (mut linked, mut open) = (BTreeSet::from([from]), vec![from]);
    while let Some(node) = open.pop() {
        for port in 0..graph.port_count(node) {
            let next = graph.neighbor(node, port);
            if !failed.contains(&Datacast::link(node, next)) && linked.insert(next) {
                open.push(next);
            }
        }
    }
    linked
}

fn reached(fabrics: &Fabrics, network: &NetworkState, group: &Group, plan: &Plan) -> BTreeSet<HostId> {
    match plan.fabric {
        Ocs::NAME => walk_circuits(group, plan, |host| (1000 + 24 - host.0) / 3),
        Shufflecast::NAME => walk_relays(group, plan, &fabrics.standing_commands(network)),
        Orca::NAME => walk_label(group, plan, network),
        Datacast::NAME => walk_routes(group, plan, network),
        other => panic!("{other}"),
    }
}

fn servers(which: usize) -> u32 {
    [24, 48, 36, 16][which % 4]
}

fn fabric(which: usize, option: u32) -> Box<dyn Fabric> {
    match (which % 4, option) {
        (0, _) => Box::new(ocs()),
        (1, _) => Box::new(shufflecast(1 + option.min(1))),
        (2, 0) => Box::new(orca(Encoding::Filter, 100)),
        (2, 1) => Box::new(orca_with(None, 1, 1)),
        // Labels are too short for the leafs of all pods: spines ask.
        (2, _) => Box::new(orca(Encoding::Pods, 0)),
        _ => Box::new(Datacast::new(bcube(), DatacastConfig::default(), hosts(16)).unwrap()),
    }
}

/// Something that fails, by a drawn number.
fn failure(which: usize, network: &NetworkState, number: u32) -> Failure {
    match which % 4 {
        0 if number.is_multiple_of(2) => Failure::Resource(Resource::Splitter { splitter: number / 2 % 6 }),
        0 => Failure::Resource(Resource::CircuitPort { port: number / 2 % 16 }),
        1 => Failure::Part(Shufflecast::part(number % 24)),
        2 => {
            let spine = clos().spine(number % 4, number / 4 % 3);
            match number % 3 {
                0 => Failure::Part(Orca::node(spine)),
                1 => Failure::Part(Orca::node(clos().core(number % 3, number / 3 % 2))),
                _ => Failure::Part(Orca::link(spine, clos().leaf(number % 4 * 3 + number / 12 % 3))),
            }
        }
        _ => {
            let server = number % 16;
            let held = network.running().next().map(|(_, running)| running.group.source);
            // The last way out of a source may fail as well.
            let server = held.filter(|_| number.is_multiple_of(5)).map_or(server, |host| 1000 + 16 - host.0);
            Failure::Part(Datacast::link(server, bcube().neighbor(server, number / 16 % 2)))
        }
    }
}

/// Returns true if a server of a network with labels no longer has a way up: its label goes on for the
/// others.
fn is_cut_off(which: usize, network: &NetworkState, host: HostId) -> bool {
    if which != 2 {
        return false;
    }
    let (clos, count) = (clos(), servers(which));
    let failed: Vec<Part> = network.failed_parts(Orca::NAME).collect();
    let node = |node: u32| failed.contains(&Orca::node(node));
    let link = |one: u32, other: u32| failed.contains(&Orca::link(one, other)) || node(one) || node(other);
    let server = (0..clos.hosts()).find(|server| host_at(count, *server) == host).unwrap();
    let leaf = clos.leaf(clos.leaf_index_of(server));
    let mut spines = (clos.hosts_per_leaf()..clos.port_count(leaf)).map(|port| clos.neighbor(leaf, port));
    link(server, leaf) || spines.all(|spine| link(leaf, spine))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120))]
    /// Groups come and go and things fail: what is in force never collides and always reaches exactly its
    /// receivers.
    #[test]
    fn plans_are_disjoint_and_reach_everybody(
        which in 0usize..4,
        option in 0u32..3,
        steps in proptest::collection::vec((0u8..8, any::<u32>(), proptest::collection::btree_set(0u32..1000, 2..9)), 1..40),
    ) {
        let fabrics = Fabrics::new(vec![fabric(which, option)]);
        let count = servers(which);
        let mut network = NetworkState::new(3);
        let mut lost: BTreeMap<PlanId, BTreeSet<HostId>> = BTreeMap::new();
        let mut next = 0;
        for (kind, number, members) in steps {
            match kind {
                0..4 => {
                    let members: BTreeSet<HostId> = members.iter().map(|m| host_at(count, m % count)).collect();
                    let source = *members.iter().nth(number as usize % members.len()).unwrap();
                    let receivers: BTreeSet<HostId> = members.into_iter().filter(|host| *host != source).collect();
                    let group = Group::of_one(source, receivers);
                    match fabrics.plan(&network, &group) {
                        Ok(plan) => {
                            prop_assert_eq!(&reached(&fabrics, &network, &group, &plan), &group.receivers);
                            prop_assert!(plan.uses.iter().is_sorted());
                            next += 1;
                            prop_assert!(network.hold(PlanId(next), group, plan), "a plan with what is not free");
                        }
                        Err(Refusal::Busy(why)) => {
                            prop_assert!(!why.is_empty() && network.running().next().is_some(), "{}", why);
                        }
                        Err(never) => prop_assert!(!never.to_string().is_empty()),
                    }
                }
                4 | 5 => {
                    let ids: Vec<PlanId> = network.running().map(|(id, _)| id).collect();
                    if let Some(id) = ids.get(number as usize % ids.len().max(1)) {
                        network.release(*id).unwrap();
                    }
                }
                6 if number.is_multiple_of(3) => {
                    let failed: Vec<Part> = network.failed_parts(fabrics.names().next().unwrap()).collect();
                    let Some(part) = failed.get(number as usize % failed.len().max(1)) else { continue };
                    network.repair_part(part);
                    for (id, plan) in fabrics.improve(&network) {
                        let old = network.release(id).unwrap();
                        let (before, after) = (tree_numbers(&old.plan), tree_numbers(&plan));
                        prop_assert!(after.len() > before.len(), "{:?} is no better than {:?}", after, before);
                        for (number, tree) in &before {
                            prop_assert_eq!(after.get(number), Some(tree), "trees that run stay");
                        }
                        let got = walk_routes(&old.group, &plan, &network);
                        prop_assert_eq!(got, walk_routes(&old.group, &old.plan, &network));
                        prop_assert!(network.hold(id, old.group, plan));
                    }
                }
                _ => {
                    let failure = failure(which, &network, number);
                    match failure {
                        Failure::Resource(resource) => network.fail(resource),
                        Failure::Part(part) => network.fail_part(part),
                        Failure::Host(_) => {}
                    }
                    let touched = fabrics.replan(&network, &failure);
                    let olds: Vec<_> = touched.iter().map(|replan| network.release(replan.id).unwrap()).collect();
                    for (replan, old) in touched.into_iter().zip(olds) {
                        prop_assert!(old.plan.is_touched(&old.group, &failure));
                        if let ReplanOutcome::Replaced(plan) = replan.outcome {
                            prop_assert!(!plan.is_touched(&old.group, &failure), "it goes around");
                            prop_assert!(network.hold(replan.id, old.group, plan), "new plans do not collide");
                        }
                    }
                    for (id, running) in network.running() {
                        let got = reached(&fabrics, &network, &running.group, &running.plan);
                        if running.plan.fabric == Datacast::NAME {
                            only_who_was_cut_off_is_left_out(running, &got, &network, lost.entry(id).or_default());
                        }
                        let is_left_out = |host: &&HostId| !got.contains(host);
                        prop_assert!(got.is_subset(&running.group.receivers));
                        for host in running.group.receivers.iter().filter(is_left_out) {
                            let cut_off = running.plan.fabric == Datacast::NAME || is_cut_off(which, &network, *host);
                            prop_assert!(cut_off, "{:?} misses {host:?}", running.plan);
                        }
                    }
                }
            }
        }
    }
}

/// The trees of a plan, by their numbers.
fn tree_numbers(plan: &Plan) -> BTreeMap<u32, &polycast_planning::TreeRoutes> {
    let Channel::SourceRoutes { trees, .. } = &plan.channel else { return BTreeMap::new() };
    trees.iter().map(|tree| (tree.tree.spanning_tree, tree)).collect()
}

fn group(count: u32, source: u32, receivers: &[u32]) -> Group {
    let receivers = receivers.iter().map(|&server| host_at(count, server)).collect();
    Group::of_one(host_at(count, source), receivers)
}

fn refusal(fabric: &dyn Fabric, network: &NetworkState, group: &Group) -> (bool, String) {
    match fabric.plan(network, group).unwrap_err() {
        Refusal::Busy(why) => (true, why),
        never => (false, never.to_string()),
    }
}

#[test]
fn circuits_refuse_by_name() {
    let fabric = ocs_with(14.0);
    let mut network = NetworkState::default();
    let (busy, why) = refusal(&fabric, &network, &group(24, 0, &[1, 2]));
    assert!(!busy && why.contains("1 rack "), "{why}");
    // Eight racks take three splitters of three outputs: exactly the cascade; the light then is too weak.
    let all: Vec<u32> = (1..8).map(|rack| 3 * rack).collect();
    let (busy, why) = refusal(&fabric, &network, &group(24, 0, &all));
    assert!(!busy && why.contains("dB"), "{why}");
    let stranger = Group::of_one(host_at(24, 0), [HostId(5)].into());
    assert!(refusal(&fabric, &network, &stranger).1.contains("do not say where host 5 is"));
    for id in 0..2 {
        let plan = fabric.plan(&network, &group(24, 0, &[3, 6])).unwrap();
        assert_eq!(plan.resources.len(), 5, "an address, three fibres, a splitter");
        assert!(network.hold(PlanId(id), group(24, 0, &[3, 6]), plan));
    }
    let (busy, why) = refusal(&fabric, &network, &group(24, 1, &[9]));
    assert!(busy && why.contains("2 fibres of rack 0"), "{why}");
    for port in [6, 7] {
        network.fail(Resource::CircuitPort { port });
    }
    let (busy, why) = refusal(&fabric, &network, &group(24, 12, &[9]));
    assert!(!busy && why.contains("rack 3") && why.contains("failed"), "{why}");
}

#[test]
fn relays_of_different_partitions_run_side_by_side() {
    let fabric = shufflecast(1);
    let mut network = NetworkState::default();
    // ToRs 0 and 7 of 2,3-Shufflecast differ in every digit.
    let (one, other, third) = (group(48, 0, &[20, 40]), group(48, 14, &[20, 40]), group(48, 2, &[46]));
    let plan = fabric.plan(&network, &one).unwrap();
    assert_eq!(plan.resources.len(), 4);
    assert!(network.hold(PlanId(1), one.clone(), plan));
    let plan = fabric.plan(&network, &other).unwrap();
    assert!(network.hold(PlanId(2), other, plan));
    let (busy, why) = refusal(&fabric, &network, &third);
    assert!(busy && why.contains("partition"), "{why}");
    // Within a rack nothing is relayed.
    let inside = group(48, 2, &[3]);
    assert_eq!(fabric.plan(&network, &inside).unwrap().resources.len(), 1);
    let shared = shufflecast(2);
    let plan = shared.plan(&network, &third).unwrap();
    assert!(matches!(plan.channel, Channel::Multicast { rate: Some(Rate(5_000_000_000)), .. }));
    network.fail_part(Shufflecast::part(0));
    let (busy, why) = refusal(&fabric, &network, &one);
    assert!(!busy && why.contains("rack 0 has failed"), "{why}");
}

/// Over circuits and over splitters, from racks with several sources and from sources that receive.
#[test]
fn each_source_of_a_group_reaches_all_others() {
    let several = |count: u32, sources: &[u32], receivers: &[u32]| Group {
        further_sources: sources[1..].iter().map(|server| host_at(count, *server)).collect(),
        ..group(count, sources[0], receivers)
    };
    let walked = |fabrics: &Fabrics, group: &Group| {
        let network = NetworkState::default();
        let plan = fabrics.plan(&network, group).unwrap();
        for source in group.sources() {
            let mut heard = reached(fabrics, &network, &Group { source, ..group.clone() }, &plan);
            // A switch sends nothing back by the port where it came in.
            heard.remove(&source);
            let others: BTreeSet<HostId> =
                group.receivers.iter().copied().filter(|to| *to != source).collect();
            assert_eq!(heard, others, "from {source:?}");
        }
        plan
    };
    let group = several(24, &[0, 1, 9], &[9, 12, 15]);
    let plan = walked(&Fabrics::new(vec![Box::new(ocs())]), &group);
    assert!(ocs().vouches(&group, &plan) && !ocs().vouches(&several(24, &[0], &[9, 12, 15]), &plan));
    let (busy, why) = refusal(&ocs(), &NetworkState::default(), &several(24, &[0, 9, 18], &[12]));
    assert!(!busy && why.contains("rack 4 needs 3 fibres to the circuit switch and has 2"), "{why}");
    let group = several(48, &[0, 1, 14], &[1, 20, 40, 41]);
    let plan = walked(&Fabrics::new(vec![Box::new(shufflecast(1))]), &group);
    let adopted = shufflecast(1).adopt(&NetworkState::default(), &group, &plan.channel);
    assert_eq!(adopted, Some(plan), "the channel and the group tell all");
}

/// A stream takes no partition's share from transfers, nor waits for one, also when its group changes, a
/// relay fails or a manager begins anew.
#[test]
fn streams_take_relays_that_transfers_hold() {
    let fabrics = Fabrics::new(vec![Box::new(shufflecast(1))]);
    let mut network = NetworkState::default();
    let (all, few) = (group(48, 0, &[20, 40]), group(48, 2, &[20, 46]));
    let held = fabrics.plan(&network, &all).unwrap();
    assert!(network.hold(PlanId(1), all.clone(), held));
    let stream = fabrics.plan_shared(&network, &few, false).unwrap();
    assert!(matches!(stream.channel, Channel::Multicast { rate: None, .. }), "{stream:?}");
    let only_address = |plan: &Plan| matches!(plan.resources[..], [Resource::MulticastAddress { .. }]);
    assert!(only_address(&stream) && !stream.uses.is_empty() && !stream.commands.is_empty());
    assert!(network.hold(PlanId(2), few.clone(), stream.clone()));
    let again = fabrics.plan_shared(&network, &few, false).unwrap();
    assert!(only_address(&again) && again.resources != stream.resources);
    // Transfers are refused as before.
    assert!(matches!(fabrics.plan(&network, &few), Err(Refusal::Busy(_))));
    let relay = match stream.uses.iter().last() {
        Some(Part::Node { node, .. }) => node,
        _ => panic!("{:?}", stream.uses),
    };
    network.fail_part(Shufflecast::part(relay));
    let touched = fabrics.replan(&network, &Failure::Part(Shufflecast::part(relay)));
    let replaced = touched.iter().find(|touched| touched.id == PlanId(2)).unwrap();
    let ReplanOutcome::Replaced(plan) = &replaced.outcome else { panic!("{replaced:?}") };
    assert!(only_address(plan) && plan.channel == stream.channel, "{plan:?}");
    network.release(PlanId(2));
    let more = fabrics.regroup(&network, &stream, &group(48, 2, &[20, 30, 46])).unwrap();
    let adopted = fabrics.adopt("shufflecast", &network, &few, &stream.channel).unwrap();
    assert!(only_address(&more) && only_address(&adopted) && adopted.channel == stream.channel);
}

#[test]
fn labels_fill_tables_and_pod_labels_do_not() {
    let tight = orca(Encoding::Filter, 0);
    let network = NetworkState::default();
    let (mut lent, mut refused, mut asked) = (NetworkState::default(), 0, 0);
    for seed in 0..200u32 {
        let mut receivers: Vec<u32> = (0..36).filter(|server| (server * 7 + seed * 13) % 11 < 3).collect();
        let source = (0..36).find(|server| !receivers.contains(server)).unwrap();
        // At times one of the four pods has none.
        receivers.retain(|server| seed % 2 == 0 || server / 9 != 2);
        let group = group(36, source, &receivers);
        if let Err(refusal) = tight.plan(&network, &group) {
            refused += 1;
            let Refusal::Impossible(why) = refusal else { panic!("{refusal}") };
            assert!(why.contains("entries"), "{why}");
        }
        let plan = orca(Encoding::Pods, 0).plan(&lent, &group).unwrap();
        assert_eq!(plan.resources.len(), 1, "an address and no entry");
        asked += only_pods_with_receivers_keep_labels(&plan, &receivers);
        // Every session has a number of its own.
        assert!(lent.hold(PlanId(seed.into()), group, plan));
        lent.release(PlanId(u64::from(seed).wrapping_sub(40)));
    }
    assert!(refused > 0, "the filter is put to the test");
    assert!(asked > 0, "some label has no room for all pods");
}

/// A label names all pods where it can; else the filter has entries as long as there is room for them.
#[test]
fn the_encoding_is_chosen_as_it_fits() {
    let encoding_of = |entries_max, receivers: &[u32]| {
        let plan = orca_with(None, entries_max, 1).plan(&NetworkState::default(), &group(36, 0, receivers));
        let plan = plan.unwrap();
        let entries =
            plan.commands.iter().filter(|command| matches!(command, DeviceCommand::SpineEntry { .. }));
        let Channel::Label { encoding, .. } = plan.channel else { panic!("{plan:?}") };
        (encoding, entries.count())
    };
    // Leafs 0 and 1 of the source's pod; then all pods, in rows that the filter cannot tell apart.
    assert_eq!(encoding_of(100, &[1, 4]), (Encoding::Pods, 0));
    let spread = [1, 12, 21, 33];
    let (encoding, entries) = encoding_of(100, &spread);
    assert!(encoding == Encoding::Filter && entries > 0, "{encoding:?}, {entries}");
    assert_eq!(encoding_of(0, &spread), (Encoding::Pods, 0));
    let full = orca(Encoding::Filter, 0).plan(&NetworkState::default(), &group(36, 0, &spread));
    assert!(format!("{full:?}").contains("orca.encoding"), "{full:?}");
}

/// The spines of all pods ask a leaf that they reach; if its link fails, the session moves on.
#[test]
fn a_leaf_that_is_asked_is_part_of_the_plan() {
    let (fabric, group) = (orca(Encoding::Pods, 0), group(36, 0, &[1, 12, 21, 33]));
    let mut network = NetworkState::default();
    let plan = fabric.plan(&network, &group).unwrap();
    let bytes = LabelPlanner::with_options(clos(), labels()).unwrap().format().bytes() as usize;
    let asked = |plan: &Plan| -> Vec<u32> {
        let kept = plan.commands.iter().filter_map(|command| match command {
            DeviceCommand::LeafLabel { leaf, label, .. } if label.len() > bytes => Some(*leaf),
            _ => None,
        });
        kept.collect()
    };
    let leafs = asked(&plan);
    let leaf = *leafs.last().expect("a pod has no place in the label");
    assert!(plan.uses.contains(&Orca::node(leaf)));
    let links = plan.uses.iter().filter(|part| {
        matches!(part, Part::Link { ends: (one, other), .. } if (*one == leaf && *other > leaf) || (*other == leaf && *one > leaf))
    });
    let spine_link: Vec<Part> = links.collect();
    assert!(!spine_link.is_empty(), "{:?}", plan.uses);
    network.fail_part(spine_link[0]);
    let again = fabric.plan(&network, &group).unwrap();
    assert!(!again.uses.contains(&spine_link[0]));
    let everybody: BTreeSet<HostId> = group.receivers.iter().copied().collect();
    assert_eq!(walk_label(&group, &again, &network), everybody);
}

/// A failure had another leaf asked; a manager that takes the path over when it is repaired knows nothing of
/// it.
#[test]
fn a_label_that_is_held_keeps_the_leaf_that_it_names() {
    let fabric = orca(Encoding::Pods, 0);
    let bytes = LabelPlanner::with_options(clos(), labels()).unwrap().format().bytes() as usize;
    let mut moved = 0;
    for leaf in 0..3 {
        let group = group(36, 0, &[1, 9 + 3 * leaf, 18 + 3 * leaf, 27 + 3 * leaf]);
        let plan = fabric.plan(&NetworkState::default(), &group).unwrap();
        let asked = plan.commands.iter().rev().find_map(|command| match command {
            DeviceCommand::LeafLabel { leaf, label, .. } if label.len() > bytes => Some(*leaf),
            _ => None,
        });
        let asked = asked.expect("a pod has no place in the label");
        if asked == clos().leaf(clos().leaf_index_of(27 + 3 * leaf)) {
            continue;
        }
        let to_asked =
            plan.uses.iter().filter(|part| matches!(part, Part::Link { ends, .. } if ends.0 == asked));
        let mut network = NetworkState::default();
        to_asked.for_each(|link| network.fail_part(link));
        let other = fabric.plan(&network, &group).unwrap();
        assert_ne!(other.channel, plan.channel, "another leaf is asked");
        assert_eq!(fabric.adopt(&NetworkState::default(), &group, &other.channel), Some(other));
        assert_eq!(fabric.adopt(&network, &group, &plan.channel), None, "what it names cannot be asked");
        moved += 1;
    }
    assert!(moved >= 2);
}

/// With no place for a pod's leafs the source's own spine would have to ask, too.
#[test]
fn labels_without_places_for_pods_are_refused() {
    let new = |encoding, filter_bits| {
        let clos = Clos::new(6, 5, 3, 3, 2).unwrap();
        let labels = LabelOptions::new(filter_bits);
        let (entries_max, trees, rack_feedback, rate) = (0, 1, false, None);
        let config = OrcaConfig { clos, labels, encoding, entries_max, trees, rack_feedback, rate };
        Orca::new(config, hosts(90), pool(1)).map(|_| ())
    };
    for encoding in [Some(Encoding::Pods), None] {
        let why = new(encoding, 1).unwrap_err().to_string();
        assert!(why.contains("a label of 2 bytes has no place") && why.contains("orca.filter-bits"), "{why}");
        assert_eq!(new(encoding, 9), Ok(()));
    }
    assert_eq!(new(Some(Encoding::Filter), 1), Ok(()));
}

/// Labels for spines are kept by one agent of each pod that has one, and it has receivers; how many there
/// are.
fn only_pods_with_receivers_keep_labels(plan: &Plan, receivers: &[u32]) -> usize {
    let clos = clos();
    let with_receivers: BTreeSet<u32> =
        receivers.iter().map(|server| clos.leaf_index_of(*server) / clos.leafs_per_pod()).collect();
    let bytes = LabelPlanner::with_options(clos, labels()).unwrap().format().bytes() as usize;
    let leafs = plan.commands.iter().filter_map(|command| match command {
        DeviceCommand::LeafLabel { leaf, label, .. } if label.len() > bytes => Some(*leaf),
        _ => None,
    });
    let pod_of = |leaf: u32| {
        let index = (0..clos.pods() * clos.leafs_per_pod()).find(|index| clos.leaf(*index) == leaf);
        index.expect("a leaf") / clos.leafs_per_pod()
    };
    let mut pods = BTreeSet::new();
    for pod in leafs.map(pod_of) {
        assert!(with_receivers.contains(&pod), "pod {pod} keeps a label and has no receiver");
        assert!(pods.insert(pod), "pod {pod} keeps two labels");
    }
    pods.len()
}

/// A session that asks for more trees than there are ways gets one a way.
#[test]
fn a_session_may_have_a_tree_for_every_way_up() {
    let group = group(36, 0, &[4, 17, 33]);
    for (trees, ways) in [(1, 1), (4, 4), (6, 6), (20, 6)] {
        let plan =
            orca_with(Some(Encoding::Filter), 100, trees).plan(&NetworkState::default(), &group).unwrap();
        let Channel::Label { label, further, .. } = &plan.channel else { panic!("{plan:?}") };
        let labels: BTreeSet<_> = further.iter().chain([label]).collect();
        assert_eq!((labels.len(), further.len() + 1), (ways, ways), "{trees} trees");
    }
}

#[test]
fn paths_that_run_are_taken_over_where_the_channel_tells_them() {
    let cases: [(Box<dyn Fabric>, u32, bool); 6] = [
        (Box::new(ocs()), 24, false),
        (Box::new(shufflecast(1)), 48, true),
        (Box::new(orca(Encoding::Filter, 100)), 36, true),
        (Box::new(orca(Encoding::Pods, 100)), 36, true),
        (Box::new(orca_with(None, 100, 1)), 36, true),
        (Box::new(Datacast::new(bcube(), DatacastConfig::default(), hosts(16)).unwrap()), 16, true),
    ];
    for (fabric, count, can) in cases {
        let group = group(count, 1, &[4, 9, 15]);
        let network = NetworkState::new(5);
        let plan = fabric.plan(&network, &group).unwrap();
        let adopted = fabric.adopt(&NetworkState::new(9), &group, &plan.channel);
        assert_eq!(adopted, can.then_some(plan), "{}", fabric.name());
        let chain = Channel::Chain { order: Vec::new() };
        assert_eq!(fabric.adopt(&network, &group, &chain), None);
    }
}

#[test]
fn a_fabric_without_a_way_hands_over_to_the_next() {
    let fabrics = Fabrics::new(vec![Box::new(ocs()), Box::new(polycast_planning::tcp_chain::TcpChain)]);
    let mut network = NetworkState::default();
    let group = group(24, 0, &[3]);
    let plan = fabrics.plan(&network, &group).unwrap();
    assert_eq!(plan.fabric, Ocs::NAME);
    assert!(network.hold(PlanId(1), group, plan));
    for port in [2, 3] {
        network.fail(Resource::CircuitPort { port });
    }
    let touched = fabrics.replan(&network, &Failure::Resource(Resource::CircuitPort { port: 2 }));
    assert!(matches!(&touched[..], [replan] if matches!(&replan.outcome,
        ReplanOutcome::Replaced(plan) if plan.fabric == "tcp-chain")));
}

#[test]
fn a_tree_that_was_released_comes_back_after_the_repair() {
    let fabric = Datacast::new(bcube(), DatacastConfig::default(), hosts(16)).unwrap();
    let mut network = NetworkState::default();
    let group = group(16, 0, &[2, 4, 9, 11, 13, 15]);
    let whole = fabric.plan(&network, &group).unwrap();
    assert_eq!(tree_numbers(&whole).len(), 2);
    assert!(network.hold(PlanId(1), group.clone(), whole.clone()));
    // One of the two links of server 11: no two trees can reach it.
    let part = Datacast::link(11, bcube().neighbor(11, 0));
    network.fail_part(part);
    let [replan] = &fabric.replan(&network, &Failure::Part(part))[..] else { panic!("one is touched") };
    let ReplanOutcome::Replaced(narrow) = &replan.outcome else { panic!("{replan:?}") };
    assert_eq!(tree_numbers(narrow).len(), 1);
    network.release(PlanId(1)).unwrap();
    assert!(network.hold(PlanId(1), group, narrow.clone()));
    assert_eq!(fabric.improve(&network), []);
    network.repair_part(&part);
    let [(PlanId(1), better)] = &fabric.improve(&network)[..] else { panic!("it is better") };
    assert_eq!(tree_numbers(better).len(), 2);
    let (number, tree) = tree_numbers(narrow).into_iter().next().unwrap();
    assert_eq!(tree_numbers(better)[&number], tree, "what runs stays as it is");
}

#[test]
fn a_group_over_trees_can_grow_and_shrink_while_it_is_served() {
    let fabric = Datacast::new(bcube(), DatacastConfig::default(), hosts(16)).unwrap();
    let fabrics = Fabrics::new(vec![Box::new(fabric)]);
    let network = NetworkState::default();
    let before = group(16, 0, &[2, 4, 9]);
    let old = fabrics.plan(&network, &before).unwrap();
    let reached = |plan: &Plan| {
        let Channel::SourceRoutes { trees, .. } = &plan.channel else { panic!("{plan:?}") };
        let of = |tree: &TreeRoutes| tree.routes.iter().map(|(host, _)| *host).collect::<BTreeSet<_>>();
        trees.iter().map(of).collect::<Vec<_>>()
    };
    for members in [&[2, 4, 9, 15][..], &[4, 9]] {
        let wanted = group(16, 0, members);
        let plan = fabrics.regroup(&network, &old, &wanted).unwrap();
        assert_eq!(reached(&plan), vec![wanted.receivers.clone(); 2]);
        assert!(plan.channel.is_heard_like(&old.channel));
    }
    assert!(!Channel::Chain { order: vec![] }.is_heard_like(&old.channel));
}

/// The last way up of a leaf fails: the hosts there are left out, and the others go on under the same label's
/// address.
#[test]
fn hosts_that_are_cut_off_cost_the_others_nothing() {
    let fabrics = Fabrics::new(vec![Box::new(orca(Encoding::Filter, 100))]);
    let mut network = NetworkState::default();
    // Nine hosts a pod, three a leaf: leaf 1 of pod 1 has the second receiver.
    let wanted = group(36, 0, &[5, 13, 30]);
    let plan = fabrics.plan(&network, &wanted).unwrap();
    assert!(network.hold(PlanId(1), wanted.clone(), plan));
    let clos = clos();
    let leaf = clos.leaf(clos.leaf_index_of(13));
    for port in clos.hosts_per_leaf()..clos.port_count(leaf) {
        let part = Orca::link(leaf, clos.neighbor(leaf, port));
        network.fail_part(part);
        for replan in fabrics.replan(&network, &Failure::Part(part)) {
            let ReplanOutcome::Replaced(plan) = replan.outcome else { panic!("{:?}", replan.outcome) };
            let old = network.release(replan.id).unwrap();
            assert!(plan.channel.is_heard_like(&old.plan.channel));
            assert!(network.hold(replan.id, old.group, plan));
        }
    }
    let plan = &network.running().next().unwrap().1.plan;
    let expected: BTreeSet<HostId> = [5, 30].map(|server| host_at(36, server)).into();
    assert_eq!(reached(&fabrics, &network, &wanted, plan), expected);
    // One that begins has to reach all.
    assert!(matches!(fabrics.plan(&network, &group(36, 1, &[13, 30])), Err(Refusal::Impossible(_))));
}

#[test]
fn content_centric_networking_has_one_tree_and_caches_at_every_node() {
    let config = DatacastConfig { single_tree: true, ..DatacastConfig::default() };
    let fabric = Datacast::new(bcube(), config, hosts(16)).unwrap();
    let plan = fabric.plan(&NetworkState::default(), &group(16, 0, &[2, 4, 9, 11, 13, 15])).unwrap();
    let Channel::SourceRoutes { trees, tree_count, .. } = &plan.channel else { panic!("{plan:?}") };
    assert_eq!((trees.len(), *tree_count, trees[0].tree.nodes.len()), (1, 1, 12));
    assert!(trees[0].routes.iter().all(|(_, way)| way.iter().all(|hop| !hop.non_branching)));
}

#[test]
fn routes_longer_than_packets_can_carry_are_refused() {
    let limits = DatacastConfig { hops_max: 3, ..DatacastConfig::default() };
    let fabric = Datacast::new(bcube(), limits, hosts(16)).unwrap();
    let why = refusal(&fabric, &NetworkState::default(), &group(16, 0, &[2, 4, 9, 11, 13, 15]));
    assert!(why.1.contains("6 hops") && why.1.contains("at most 3"), "{}", why.1);
    // No route of a whole network is longer than this, and some are as long.
    let fabric = Datacast::new(bcube(), DatacastConfig::default(), hosts(16)).unwrap();
    let all: Vec<u32> = (1..16).collect();
    let plan = fabric.plan(&NetworkState::default(), &group(16, 0, &all)).unwrap();
    let trees = tree_numbers(&plan);
    let hops = trees.values().flat_map(|tree| &tree.routes).map(|(_, way)| way.len() as u32);
    assert_eq!((hops.max(), fabric.whole_depth()), (Some(6), 6));
    let limits = DatacastConfig { trees_max: 1, ..DatacastConfig::default() };
    let fabric = Datacast::new(bcube(), limits, hosts(16)).unwrap();
    let plan = fabric.plan(&NetworkState::default(), &group(16, 0, &[2, 4])).unwrap();
    assert_eq!(tree_numbers(&plan).len(), 1);
}

proptest! {
    /// Receivers join and leave a path over labels: its session stays, and its labels reach exactly the group
    /// that it has.
    #[test]
    fn groups_of_labels_change_while_they_run(
        source in 0u32..36, steps in proptest::collection::vec(proptest::collection::btree_set(0u32..36, 1..12), 1..12),
    ) {
        let fabrics = Fabrics::new(vec![Box::new(orca(Encoding::Filter, 100))]);
        let mut network = NetworkState::default();
        let mut before: Option<Plan> = None;
        for step in steps {
            let receivers: Vec<u32> = step.into_iter().filter(|server| *server != source).collect();
            if receivers.is_empty() {
                continue;
            }
            let group = group(36, source, &receivers);
            network.release(PlanId(1));
            let plan = match &before {
                None => fabrics.plan_shared(&network, &group, false).unwrap(),
                Some(old) => fabrics.regroup(&network, old, &group).unwrap(),
            };
            if let Some(old) = &before {
                prop_assert!(plan.channel.is_heard_like(&old.channel), "receivers are told nothing");
            }
            prop_assert_eq!(walk_label(&group, &plan, &network), group.receivers.clone());
            prop_assert!(network.hold(PlanId(1), group, plan.clone()));
            before = Some(plan);
        }
    }
}
