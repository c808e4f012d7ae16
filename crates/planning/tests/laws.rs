//! Laws of plans and of what stands around them: kept plans, drafts, what a fabric vouches for, what a plan
//! says that it uses, and sums that a second count agrees with.

use core::net::IpAddr;
use std::collections::{BTreeMap, BTreeSet};

use polycast_planning::datacast::{Datacast, DatacastConfig};
use polycast_planning::economics::{self, Bill, Catalogue, LineRate};
use polycast_planning::ip_multicast::{AddressPool, IpMulticast};
use polycast_planning::labels::Encoding;
use polycast_planning::labels::{LabelOptions, LabelPlanner, Session, switches};
use polycast_planning::ocs::{Ocs, OcsConfig};
use polycast_planning::orca::{Orca, OrcaConfig};
use polycast_planning::relays;
use polycast_planning::shufflecast::{Shufflecast, ShufflecastConfig};
use polycast_planning::tcp_chain::TcpChain;
use polycast_planning::{
    Channel, Decision, DeviceCommand, Draft, Fabric, Fabrics, Failure, Fcfs, GreedyMatching, Group, HostId,
    NetworkState, Part, PartitionFcfs, Pending, Plan, PlanId, RackPort, RequestId, Resource, Running,
    Scheduler,
};
use polycast_topology::optics::PowerBudget;
use polycast_topology::{Clos, Failures, Graph, Hybrid, Network, Shufflecast as Splitters};
use polycast_types::{Duration, Rate, Time};
use proptest::prelude::*;

const HYBRID: Hybrid =
    Hybrid { racks: 6, servers_per_rack: 3, ports_per_rack: 2, splitters: 4, splitter_fanout: 3 };

fn pool() -> AddressPool {
    AddressPool::new([239, 1, 0, 0].into(), 64, 7410).unwrap()
}

fn hosts(count: u32) -> impl Iterator<Item = (HostId, u32)> {
    (0..count).map(|server| (HostId(100 + server), server))
}

fn group(source: u32, receivers: &[u32]) -> Group {
    let host = |server: u32| HostId(100 + server);
    Group::of_one(host(source), receivers.iter().map(|&server| host(server)).collect())
}

fn ocs() -> Ocs {
    let budget =
        PowerBudget { budget_db: 90.0, switch_loss_db: 1.0, splitter_loss_db: 6.0, amplifier_gain_db: 0.0 };
    let attempt_interval = Duration::from_millis(1);
    let config = OcsConfig { hybrid: HYBRID, cascade_max: 3, budget, rate: Rate(1_000), attempt_interval };
    Ocs::new(config, hosts(18), pool()).unwrap()
}

fn shufflecast() -> Shufflecast {
    let network = Splitters::new(2, 2).unwrap().into();
    let attempt_interval = Duration::from_millis(1);
    let config =
        ShufflecastConfig { network, servers_per_rack: 2, rate: Rate(1_000), shares: 1, attempt_interval };
    Shufflecast::new(config, hosts(16), pool()).unwrap()
}

fn clos() -> Clos {
    Clos::new(3, 3, 2, 4, 2).unwrap()
}

fn orca(trees: u32) -> Orca {
    let config = OrcaConfig {
        clos: clos(),
        labels: LabelOptions::new(7),
        encoding: Some(Encoding::Filter),
        entries_max: 100,
        trees,
        rack_feedback: true,
        rate: None,
    };
    Orca::new(config, hosts(36), pool()).unwrap()
}

fn datacast() -> Datacast {
    Datacast::new("bcube:4,2".parse().unwrap(), DatacastConfig::default(), hosts(16)).unwrap()
}

/// Every fabric with what can fail under its plans.
fn fabrics() -> Vec<(Box<dyn Fabric>, Group)> {
    vec![
        (Box::new(ocs()), group(0, &[3, 6, 9])),
        (Box::new(shufflecast()), group(0, &[5, 9])),
        (Box::new(orca(2)), group(0, &[5, 17, 30])),
        (Box::new(datacast()), group(0, &[5, 9, 15])),
        (Box::new(IpMulticast::new(pool())), group(0, &[1, 2])),
        (Box::new(TcpChain), group(0, &[1, 2])),
    ]
}

/// A kept plan is lent again as long as all of it is free and works: not while one of its resources is held,
/// reserved or out of use, and not while a part that it uses has failed.
#[test]
fn a_kept_plan_is_lent_only_whole() {
    for (fabric, group) in fabrics() {
        let fabrics = Fabrics::new(vec![fabric]);
        let plan = fabrics.plan(&NetworkState::new(9), &group).unwrap();
        let mut network = NetworkState::new(33);
        network.keep(Running { group: group.clone(), plan: plan.clone() });
        let lends = |network: &NetworkState| fabrics.plan(network, &group).as_ref() == Ok(&plan);
        assert!(lends(&network), "{}", plan.fabric);
        for resource in &plan.resources {
            network.fail(*resource);
            assert!(!lends(&network), "{resource} has failed");
            network.repair(resource);
            network.reserve([*resource]);
            assert!(!lends(&network), "{resource} is reserved");
            network.end_reservations();
            assert!(lends(&network));
        }
        for part in plan.uses.iter() {
            network.fail_part(part);
            assert!(!lends(&network), "{part:?} has failed");
            network.repair_part(&part);
            assert!(lends(&network));
        }
        // It is this group's plan alone, and the one that was kept last.
        let smaller = Group { receivers: group.receivers.iter().copied().skip(1).collect(), ..group.clone() };
        assert_ne!(fabrics.plan(&network, &smaller).as_ref(), Ok(&plan), "{}", plan.fabric);
        assert_eq!(network.kept().count(), 1);
        assert_eq!(network.forget_oldest().map(|running| running.plan), Some(plan.clone()));
        assert!(network.forget_oldest().is_none() && (plan.resources.is_empty() || !lends(&network)));
    }
}

#[test]
fn kept_plans_give_way_to_what_is_set_up() {
    let fabric = ocs();
    let mut network = NetworkState::default();
    let (one, other) = (group(0, &[3]), group(6, &[9]));
    let plan = fabric.plan(&network, &one).unwrap();
    assert!(network.hold(PlanId(1), one.clone(), plan.clone()));
    let apart = fabric.plan(&network, &other).unwrap();
    network.release(PlanId(1)).unwrap();
    network.keep(Running { group: one, plan: plan.clone() });
    network.keep(Running { group: other, plan: apart.clone() });
    let displaced = network.displace(&plan);
    assert_eq!(displaced.iter().map(|running| &running.plan).collect::<Vec<_>>(), [&plan]);
    assert_eq!(network.kept().map(|running| &running.plan).collect::<Vec<_>>(), [&apart]);
}

#[test]
fn what_is_reserved_is_only_for_those_who_claim_it() {
    let fabric = ocs();
    let mut network = NetworkState::default();
    let wanted = group(0, &[3]);
    let plan = fabric.plan(&network, &wanted).unwrap();
    network.reserve(plan.resources.iter().copied());
    assert!(!network.hold(PlanId(1), wanted.clone(), plan.clone()));
    // Where one of them has failed, nothing is held, and all of them stay reserved.
    network.fail(plan.resources[1]);
    assert!(!network.hold_reserved(PlanId(1), wanted.clone(), plan.clone()));
    network.repair(&plan.resources[1]);
    assert!(plan.resources.iter().all(|resource| !network.is_free(resource)));
    assert!(network.hold_reserved(PlanId(1), wanted.clone(), plan.clone()));
    assert!(plan.resources.iter().all(|resource| network.holder(resource) == Some(PlanId(1))));
    assert!(plan.resources.iter().all(|resource| !network.is_free(resource)));
    // A network without plans has the same failures and begins at the same place.
    network.fail(Resource::Splitter { splitter: 2 });
    network.fail_part(Orca::node(3));
    let idle = network.idle();
    assert!(plan.resources.iter().all(|resource| idle.is_free(resource)) && idle.running().next().is_none());
    assert!(idle.has_failed(&Resource::Splitter { splitter: 2 }) && idle.turn() == network.turn());
    assert_eq!(idle.failed_parts(Orca::NAME).collect::<Vec<_>>(), [Orca::node(3)]);
    assert_eq!(idle.failed_parts(Ocs::NAME).count(), 0);
}

/// Until the circuit switch has said what it holds, none of its ports and splitters is lent; other things
/// are.
#[test]
fn unknown_circuits_are_not_lent() {
    let (circuits, chain) = (ocs(), TcpChain);
    let wanted = group(0, &[3, 6]);
    let mut network = NetworkState::default();
    let plan = circuits.plan(&network, &wanted).unwrap();
    network.set_circuits_known(false);
    let refusal = circuits.plan(&network, &wanted).unwrap_err().to_string();
    assert!(
        refusal.contains("has not said which circuits it holds") && !refusal.contains("in use"),
        "{refusal}"
    );
    assert!(chain.plan(&network, &wanted).is_ok());
    for resource in &plan.resources {
        let of_circuits = matches!(resource, Resource::CircuitPort { .. } | Resource::Splitter { .. });
        assert_eq!(network.is_free(resource), !of_circuits, "{resource}");
    }
    // A path that runs already keeps what it has.
    assert!(network.hold(PlanId(1), wanted.clone(), plan));
    network.release(PlanId(1));
    network.set_circuits_known(true);
    assert!(circuits.plan(&network, &wanted).is_ok());
}

#[test]
fn resources_are_named_by_their_numbers() {
    for (resource, text) in [
        (Resource::MulticastAddress { address: [239, 1, 2, 3].into(), port: 7410 }, "239.1.2.3:7410"),
        (Resource::CircuitPort { port: 7 }, "port 7 of the circuit switch"),
        (Resource::Splitter { splitter: 5 }, "splitter 5"),
        (
            Resource::RelayPartition { column: 1, partition: 2, share: 3 },
            "share 3 of partition 2 of column 1",
        ),
        (Resource::SpineEntry { spine: 4, slot: 6 }, "entry 6 of spine 4"),
    ] {
        assert_eq!(resource.to_string(), text);
    }
}

fn pending(id: u64, group: Group) -> Pending {
    Pending {
        id: RequestId(id),
        group,
        object_bytes: 9,
        remaining_bytes: 5,
        divisible: false,
        since: Time(id),
        wish: Default::default(),
    }
}

/// A scheduler decides in a draft: when it has answered, the network is as before, its turn included.
#[test]
fn deciding_changes_nothing() {
    let requests = [pending(1, group(0, &[5])), pending(2, group(2, &[9])), pending(3, group(0, &[7]))];
    let schedulers: [Box<dyn Scheduler>; 3] = [
        Box::new(Fcfs),
        Box::new(PartitionFcfs),
        Box::new(GreedyMatching::new(hosts(16).map(|(host, at)| (host, at / 2)))),
    ];
    for mut scheduler in schedulers {
        let fabrics = Fabrics::new(vec![Box::new(shufflecast())]);
        let mut network = NetworkState::new(41);
        let before = format!("{network:?}");
        let decisions = scheduler.decide(
            Time(9),
            &requests.iter().collect::<Vec<_>>(),
            Draft::new(&mut network),
            &fabrics,
        );
        assert_eq!(format!("{network:?}"), before, "{}", scheduler.name());
        assert_eq!(network.turn(), 41);
        // What is granted can be held at the same time, for all bytes that are left.
        for decision in &decisions {
            if let Decision::Accept { request, bytes, plan, .. } = decision {
                assert_eq!(*bytes, 5);
                let group = requests.iter().find(|pending| pending.id == *request).unwrap().group.clone();
                assert!(network.hold(PlanId(request.0), group, plan.clone()), "{}", scheduler.name());
            }
        }
        assert!(network.running().next().is_some(), "{}", scheduler.name());
    }
}

/// Change of a rule's rack, group address, and the ports that packets come from and go to.
type ChangeOfRule<'a> = &'a dyn Fn(&mut u32, &mut IpAddr, &mut RackPort, &mut Vec<RackPort>);

/// A fabric vouches for its own plans and for none that was changed to reach further.
#[test]
fn circuits_are_vouched_for_only_as_planned() {
    let fabric = ocs();
    let network = NetworkState::default();
    let ours = group(0, &[1, 3, 6, 9, 12]);
    let plan = fabric.plan(&network, &ours).unwrap();
    let fabrics = Fabrics::new(vec![Box::new(ocs())]);
    assert!(fabrics.vouches(&ours, &plan));
    let rule_at =
        plan.commands.iter().position(|command| matches!(command, DeviceCommand::RackRule { .. })).unwrap();
    let with = |change: &dyn Fn(&mut Plan)| {
        let mut plan = plan.clone();
        change(&mut plan);
        fabrics.vouches(&ours, &plan)
    };
    let with_rule = |change: ChangeOfRule<'_>| {
        with(&|plan| {
            plan.commands.change(|all| match &mut all[rule_at] {
                DeviceCommand::RackRule { rack, group, from, to } => change(rack, group, from, to),
                other => panic!("{other:?}"),
            })
        })
    };
    assert!(with_rule(&|_, _, _, _| {}), "a rule as it was");
    assert!(!with_rule(&|rack, _, _, _| *rack = 5), "a rack without members");
    assert!(!with_rule(&|_, address, _, _| *address = [239, 1, 0, 99].into()), "another group address");
    assert!(!with_rule(&|_, _, _, to| to.push(RackPort::Host(HostId(117)))), "a host that is no member");
    assert!(
        !with_rule(&|_, _, from, _| *from = RackPort::Host(HostId(117))),
        "from a host that is no member"
    );
    assert!(!with_rule(&|_, _, _, to| to.push(RackPort::Circuit(1))), "a fibre that it does not hold");
    assert!(!with_rule(&|_, _, _, to| to.push(RackPort::Circuit(2))), "a fibre of the next rack");
    assert!(!with_rule(&|_, _, _, to| to.push(RackPort::Splitter(0))), "racks have no splitters here");
    assert!(
        !with(&|plan| plan.commands.change(|all| all.push(DeviceCommand::RelayRule {
            rack: 0,
            source: 0,
            from: None,
            to: vec![0]
        }))),
        "relays"
    );
    assert!(
        !with(&|plan| plan.uses = [Orca::node(1)].into_iter().collect()),
        "it uses nothing beside others"
    );
    assert!(!with(&|plan| plan.channel = Channel::Chain { order: Vec::new() }), "another channel");
    assert!(!with(&|plan| plan.fabric = TcpChain::NAME), "another fabric's");
    for held in plan.resources.iter().copied() {
        let without = |plan: &mut Plan| plan.resources.retain(|resource| *resource != held);
        assert!(!with(&without), "without {held}");
    }
    assert!(!fabrics.vouches(&group(0, &[1, 3, 6, 9]), &plan), "a rack too many");
    for (other, _) in self::fabrics().into_iter().skip(1) {
        assert!(!other.vouches(&ours, &plan), "{} tells by its channel", other.name());
    }
}

/// Every port of the circuit switch belongs to a fibre or a splitter of the fabric, or to no one.
#[test]
fn ports_of_circuits_are_what_the_network_says() {
    let fabrics = Fabrics::new(vec![Box::new(ocs())]);
    let mut owner: BTreeMap<u32, Resource> = BTreeMap::new();
    for rack in 0..HYBRID.racks {
        for uplink in 0..HYBRID.ports_per_rack {
            let port = HYBRID.rack_port(rack, uplink);
            owner.insert(port, Resource::CircuitPort { port });
        }
    }
    for splitter in 0..HYBRID.splitters {
        owner.insert(HYBRID.splitter_input(splitter), Resource::Splitter { splitter });
        for output in 0..HYBRID.splitter_fanout {
            owner.insert(HYBRID.splitter_output(splitter, output), Resource::Splitter { splitter });
        }
    }
    for from in 0..HYBRID.ports_needed() as u32 + 9 {
        for to in [0, HYBRID.ports_needed() as u32 - 1, 1_000] {
            let expected: Vec<Resource> =
                [from, to].iter().filter_map(|port| owner.get(port).copied()).collect();
            assert_eq!(
                fabrics.resources_of(&DeviceCommand::CrossConnect { from, to }),
                expected,
                "{from} to {to}"
            );
        }
    }
    let rule = DeviceCommand::RelayRule { rack: 1, source: 1, from: None, to: vec![0] };
    assert_eq!(fabrics.resources_of(&rule), []);
}

/// The parts of a plan over labels are the nodes and links from the source up to the spines and cores of its
/// trees and down to the receivers: where one of them fails the plan is touched, and where another one fails
/// it is not.
#[test]
fn plans_over_labels_name_all_that_they_use() {
    let clos = clos();
    for (seed, receivers) in
        [(1, vec![1]), (2, vec![5]), (3, vec![13, 14, 30]), (4, (1..36).step_by(3).collect())]
    {
        let fabric = orca(1);
        let wanted = group(0, &receivers);
        let plan = fabric.plan(&NetworkState::new(seed), &wanted).unwrap();
        let Channel::Label { label, session, .. } = &plan.channel else { panic!("{plan:?}") };
        let planner = LabelPlanner::with_options(clos, LabelOptions::new(7)).unwrap();
        let label = polycast_planning::labels::Label(label.clone());
        let (plane, core) = (planner.format().leaf_up(&label), planner.format().spine_up(&label));
        let mut expected = BTreeSet::new();
        let mut way = |nodes: &[u32]| {
            expected.extend(nodes.iter().map(|&node| Orca::node(node)));
            expected.extend(nodes.windows(2).map(|pair| Orca::link(pair[0], pair[1])));
        };
        let (first_leaf, first_spine) = (clos.leaf(0), clos.spine(0, plane));
        way(&[0, first_leaf, first_spine]);
        for &server in &receivers {
            let leaf = clos.leaf_index_of(server);
            let pod = leaf / clos.leafs_per_pod();
            if pod != 0 {
                way(&[first_spine, clos.core(plane, core), clos.spine(pod, plane)]);
            }
            way(&[clos.spine(pod, plane), clos.leaf(leaf), server]);
        }
        assert_eq!(plan.uses.iter().collect::<BTreeSet<Part>>(), expected, "session {session}");
        assert!(plan.uses.iter().is_sorted());
        for node in 0..clos.node_count() {
            let part = Orca::node(node);
            assert_eq!(plan.is_touched(&wanted, &Failure::Part(part)), expected.contains(&part), "{node}");
        }
    }
    let (ours, other) = (group(0, &[1]), HostId(101));
    let plan = orca(1).plan(&NetworkState::default(), &ours).unwrap();
    assert!(
        plan.is_touched(&ours, &Failure::Host(HostId(100))) && !plan.is_touched(&ours, &Failure::Host(other))
    );
    assert!(plan.is_touched(&ours, &Failure::Resource(plan.resources[0])));
    assert!(!plan.is_touched(&ours, &Failure::Resource(Resource::Splitter { splitter: 1 })));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// The links of a session are those of its tree and of its members' hosts, found by walking the network.
    #[test]
    fn sessions_use_the_links_of_their_tree(
        source in 0u32..36, members in proptest::collection::btree_set(0u32..36, 1..9), session: u64,
    ) {
        let clos = clos();
        let receivers: Vec<u32> = members.into_iter().filter(|host| *host != source).collect();
        prop_assume!(!receivers.is_empty());
        let mut planner = LabelPlanner::new(clos, 7).unwrap();
        let plan = planner.plan(session, source, &receivers, &Failures::none()).unwrap();
        let path = plan.tree.path;
        let running = Session::new(source, plan.clone());
        prop_assert_eq!((running.source(), running.plan()), (source, &plan));
        let mut links = BTreeSet::new();
        let mut way = |nodes: &[u32]| {
            let link = |pair: &[u32]| clos.link(pair[0], clos.port_to(pair[0], pair[1]).unwrap());
            links.extend(nodes.windows(2).map(link));
        };
        let pod_of = |host: u32| clos.leaf_index_of(host) / clos.leafs_per_pod();
        way(&[source, clos.leaf(clos.leaf_index_of(source)), clos.spine(pod_of(source), path.plane)]);
        // The packet goes to the core in any case.
        way(&[clos.spine(pod_of(source), path.plane), clos.core(path.plane, path.core)]);
        for &host in &receivers {
            let leaf = clos.leaf(clos.leaf_index_of(host));
            way(&[clos.core(path.plane, path.core), clos.spine(pod_of(host), path.plane), leaf, host]);
        }
        for link in 0..clos.link_count() {
            prop_assert_eq!(running.uses_link(&planner, link), links.contains(&link), "link {}", link);
        }
        for host in 0..36 {
            prop_assert_eq!(running.is_receiver(&planner, host), receivers.contains(&host));
        }
    }
}

/// The hosts that got something in vain: each once that is no receiver or got two copies, and the first host
/// of each leaf in vain.
#[test]
fn copies_in_vain_are_found() {
    let clos = clos();
    let delivery = switches::Delivery {
        hosts: BTreeMap::from([(1, 1), (2, 2), (3, 1)]),
        redundant_leafs: BTreeSet::from([2, 5]),
        ..switches::Delivery::default()
    };
    let found: BTreeSet<u32> = delivery.redundant(&clos, &BTreeSet::from([1, 2])).into_iter().collect();
    assert_eq!(found, BTreeSet::from([2, 3, 8, 20]));
}

/// Rules are counted tor by tor: the static ones, with what recovery adds and takes away.
#[test]
fn rules_after_recovery_are_counted() {
    for (p, k) in [(2, 2), (2, 3), (3, 2)] {
        let network = Splitters::new(p, k).unwrap();
        let whole = relays::recover(&network, &BTreeSet::new());
        assert_eq!(whole.rules_per_tor_max(&network), k * network.partition_size());
        for failed in 0..network.tors() {
            let recovery = relays::recover(&network, &BTreeSet::from([failed]));
            let rules = |tor| {
                (0..network.tors()).filter(|&source| recovery.is_relay(&network, tor, source)).count() as u32
            };
            let most = (0..network.tors()).map(rules).max().unwrap();
            assert_eq!(recovery.rules_per_tor_max(&network), most, "{p},{k}: {failed} has failed");
            assert_eq!(rules(failed), 0);
            for source in 0..network.tors() {
                let set = recovery.relay_set(&network, source);
                let expected: Vec<u32> =
                    (0..network.tors()).filter(|&tor| recovery.is_relay(&network, tor, source)).collect();
                assert_eq!(set, expected);
            }
        }
    }
}

/// Section VI-A by hand: every part of a bill is counted and priced once.
#[test]
fn bills_are_the_sum_of_their_parts() {
    let catalogue = Catalogue { switch_ports: 4, ..Catalogue::default() };
    for gbps in [10, 25, 100] {
        let rate = *catalogue.rate(gbps).unwrap();
        let bills = economics::compare(&catalogue, 8, gbps).unwrap();
        // 2,2-Shufflecast: 8 ToRs receive and 4 relay through splitters of 2; 8 ToRs on 2 layers of switches
        // with 4 ports have 8 uplinks and 14 ports of the core; a chain has two ports a ToR. Fibres in units
        // of a duplex pair.
        let parts = [(12, 4, 4.0), (22, 0, 11.0), (16, 0, 8.0)];
        for (bill, (ports, splitters, fibres)) in bills.iter().zip(parts) {
            let name = bill.name;
            assert_eq!((bill.ports, bill.transceivers, bill.splitters), (ports, ports, splitters), "{name}");
            assert_eq!(bill.duplex_fibres, fibres, "{name}");
            let power = f64::from(ports) * (rate.port_power_w + rate.transceiver_power_w);
            let cost = f64::from(ports) * (rate.port_cost_usd + rate.transceiver_cost_usd)
                + f64::from(splitters) * 7.5
                + fibres * 37.37;
            assert!((bill.power_w - power).abs() < 1e-9 && (bill.cost_usd - cost).abs() < 1e-9, "{bill:?}");
        }
        let hop = 1_500.0 + 512.0 / f64::from(gbps);
        assert!((catalogue.hop_ns(gbps) - hop).abs() < 1e-9);
        // Hops: 2 ToRs are 1 hop away and so on, by the relays' tree; under 3-port switches 2 are 2 and 5 are
        // 4 hops away; a chain of 8 has 1 to 7.
        let hops = |bill: &Bill| bill.latency_ns / hop;
        let reach = relays::walk(&Splitters::new(2, 2).unwrap(), 0, |tor| {
            relays::is_relay(&Splitters::new(2, 2).unwrap(), tor, 0)
        });
        assert!((hops(&bills[0]) - reach.mean_hops()).abs() < 1e-9);
        assert!((hops(&bills[2]) - (1..8).sum::<u32>() as f64 / 7.0).abs() < 1e-9);
        assert!(bills[0].instance.contains("2,2") && !bills[0].instance.contains("logical"));
    }
    assert!(economics::compare(&catalogue, 7, 10).unwrap()[0].instance.contains("8 logical"));
    for (text, gbps) in [("10g", 10), ("25gbit", 25), ("100G", 100)] {
        let rate: LineRate = text.parse().unwrap();
        assert_eq!((rate.gbps(), rate.to_string()), (gbps, format!("{gbps}g")));
    }
    assert_eq!([1, 2, 3, 5, 8].map(|fanout| catalogue.splitter(fanout).unwrap().fanout), [2, 2, 4, 8, 8]);
    assert!(catalogue.splitter(9).is_err() && catalogue.rate(40).is_err());
}

/// Mean hops under a minimal packet core, by walking a core that is built switch by switch.
#[test]
fn latency_of_a_core_is_that_of_its_switches() {
    for (tors, ports) in [(8, 4), (9, 4), (27, 4), (32, 32), (100, 32), (40, 5)] {
        let catalogue = Catalogue { switch_ports: ports, ..Catalogue::default() };
        let bill = &economics::compare(&catalogue, tors, 10).unwrap()[1];
        // Each switch of a lower layer has `ports - 1` nodes below it; the first ToR looks at all others.
        let (mut hops, mut at) = (0u32, vec![0u32; tors as usize]);
        let mut below: Vec<u32> = (0..tors).collect();
        let mut layers = 0;
        loop {
            let is_root = below.len() as u32 <= ports && layers_left(below.len() as u32, ports) == 1;
            let width = if is_root { below.len() as u32 } else { ports - 1 };
            hops += 2;
            layers += 1;
            for (tor, steps) in at.iter_mut().enumerate() {
                let group = |tor: u32| below_of(tor, layers - 1, ports) / width;
                if *steps == 0 && tor != 0 && group(tor as u32) == group(0) {
                    *steps = hops;
                }
            }
            if is_root {
                break;
            }
            below = (0..(below.len() as u32).div_ceil(width)).collect();
        }
        let mean = f64::from(at.iter().sum::<u32>()) / f64::from(tors - 1);
        assert!(
            (bill.latency_ns / catalogue.hop_ns(10) - mean).abs() < 1e-9,
            "{tors} ToRs, {ports} ports: {mean}"
        );
        assert!(bill.instance.contains(&format!("in {layers} layers")), "{}", bill.instance);
    }
}

/// Counts the layers of switches with `ports` ports that join `nodes` nodes.
fn layers_left(nodes: u32, ports: u32) -> u32 {
    if nodes <= ports { 1 } else { 1 + layers_left(nodes.div_ceil(ports - 1), ports) }
}

/// The switch of a layer above a ToR: of layer 0 the ToR itself.
fn below_of(tor: u32, layer: u32, ports: u32) -> u32 {
    (0..layer).fold(tor, |at, _| at / (ports - 1))
}

/// The shares of relays that wait are kept for the older request, and only they.
#[test]
fn a_group_that_waits_is_not_overtaken_at_its_partitions() {
    let fabrics = Fabrics::new(vec![Box::new(shufflecast())]);
    let mut network = NetworkState::default();
    // Rack 0 of 2,2-Shufflecast relays by the partitions 0 and 0, rack 1 by 0 and 1, rack 2 by 1 and 0, rack
    // 3 by 1 and 1.
    let running = group(0, &[9]);
    let plan = fabrics.plan(&network, &running).unwrap();
    assert!(network.hold(PlanId(1), running, plan));
    let requests = [pending(1, group(2, &[9])), pending(2, group(6, &[9]))];
    let list: Vec<&Pending> = requests.iter().collect();
    let decisions = PartitionFcfs.decide(Time(0), &list, Draft::new(&mut network), &fabrics);
    // The first waits for a partition of the one that runs; the second one needs the other that the first
    // will need.
    assert!(decisions.iter().all(|decision| matches!(decision, Decision::Wait { .. })), "{decisions:?}");
    let decisions = PartitionFcfs.decide(Time(0), &list[1..], Draft::new(&mut network), &fabrics);
    assert!(matches!(decisions[..], [Decision::Accept { .. }]), "{decisions:?}");
}

#[test]
fn networks_over_trees_use_the_links_of_their_trees() {
    let network: Network = "bcube:4,2".parse().unwrap();
    let fabric = datacast();
    let wanted = group(0, &[5, 9, 15]);
    let plan = fabric.plan(&NetworkState::default(), &wanted).unwrap();
    let Channel::SourceRoutes { trees, .. } = &plan.channel else { panic!("{plan:?}") };
    let mut expected = BTreeSet::from([Datacast::node(0)]);
    for tree in trees {
        for (host, hops) in &tree.routes {
            let mut at = host.0 - 100;
            for hop in hops {
                let next = network.neighbor(at, hop.port);
                expected.extend([Datacast::node(at), Datacast::link(at, next)]);
                at = next;
            }
            assert_eq!(at, 0, "a way ends at the source");
        }
    }
    assert_eq!(plan.uses.iter().collect::<BTreeSet<_>>(), expected);
}
