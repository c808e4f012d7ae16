//! Parts by themselves: which are suspected where light does not arrive, which are taken last, and which have
//! names. Light is followed through circuits and rules, not asked of the planners.

use polycast_planning::ip_multicast::AddressPool;
use polycast_planning::ocs::{Ocs, OcsConfig};
use polycast_planning::shufflecast::{Shufflecast, ShufflecastConfig};
use polycast_planning::{
    DeviceCommand, Fabric, Fabrics, Failure, Group, HostId, NetworkState, PartName, Plan, RackPort, Resource,
};
use polycast_topology::optics::PowerBudget;
use polycast_topology::{Hybrid, Shufflecast as Splitters};
use polycast_types::{Duration, Rate};
use proptest::prelude::*;
use std::collections::BTreeSet;

const HYBRID: Hybrid =
    Hybrid { racks: 7, servers_per_rack: 3, ports_per_rack: 2, splitters: 4, splitter_fanout: 3 };

fn pool() -> AddressPool {
    AddressPool::new([239, 1, 0, 0].into(), 64, 7410).unwrap()
}

fn ocs() -> Ocs {
    let budget =
        PowerBudget { budget_db: 90.0, switch_loss_db: 1.0, splitter_loss_db: 6.0, amplifier_gain_db: 0.0 };
    let attempt_interval = Duration::from_millis(1);
    let config = OcsConfig { hybrid: HYBRID, cascade_max: 3, budget, rate: Rate(1_000), attempt_interval };
    Ocs::new(config, (0..21).map(|server| (HostId(server), server)), pool()).unwrap()
}

fn rack(host: HostId) -> u32 {
    host.0 / HYBRID.servers_per_rack
}

/// The ports that a host's packets are copied to in a rack.
fn copied(plan: &Plan, at: u32, port: RackPort) -> impl Iterator<Item = RackPort> {
    let rules = plan.commands.iter().filter_map(move |command| match command {
        DeviceCommand::RackRule { rack, from, to, .. } if (*rack, *from) == (at, port) => Some(to),
        _ => None,
    });
    rules.flatten().copied()
}

/// The receivers that get nothing while one resource of a plan is dark.
fn dark(fabrics: &Fabrics, group: &Group, plan: &Plan, dead: Resource) -> BTreeSet<HostId> {
    let fed_by = |port: u32| {
        plan.commands.iter().filter_map(move |command| match command {
            DeviceCommand::CrossConnect { from, to } if *from == port => Some((command, *to)),
            _ => None,
        })
    };
    let mut got = BTreeSet::new();
    let source = rack(group.source);
    let mut work: Vec<(u32, RackPort)> =
        copied(plan, source, RackPort::Host(group.source)).map(|port| (source, port)).collect();
    while let Some((at, port)) = work.pop() {
        let RackPort::Circuit(uplink) = port else {
            got.extend(if let RackPort::Host(host) = port { Some(host) } else { None });
            continue;
        };
        let mut from = vec![HYBRID.rack_port(at, uplink)];
        while let Some(port) = from.pop() {
            for (command, to) in fed_by(port) {
                if fabrics.resources_of(command).contains(&dead) {
                    continue;
                }
                match (0..HYBRID.splitters).find(|splitter| HYBRID.splitter_input(*splitter) == to) {
                    Some(splitter) => from
                        .extend((0..HYBRID.splitter_fanout).map(|out| HYBRID.splitter_output(splitter, out))),
                    None => {
                        let (next, uplink) = (to / HYBRID.ports_per_rack, to % HYBRID.ports_per_rack);
                        work.extend(copied(plan, next, RackPort::Circuit(uplink)).map(|port| (next, port)));
                    }
                }
            }
        }
    }
    group.receivers.difference(&got).copied().collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    /// One part of a plan over circuits is dark: it is suspected, and with it exactly those in whose place
    /// the same receivers would get nothing. A host that gets nothing beside another one of its rack is no
    /// fault of the path.
    #[test]
    fn what_explains_the_dark_is_suspected_and_nothing_else(
        members in proptest::collection::btree_set(0u32..21, 2..14), first: usize,
    ) {
        let fabrics = Fabrics::new(vec![Box::new(ocs())]);
        let network = NetworkState::default();
        let source = HostId(*members.iter().nth(first % members.len()).unwrap());
        let receivers = members.into_iter().map(HostId).filter(|host| *host != source).collect();
        let group = Group::of_one(source, receivers);
        // Light that a single port gives may be too few for so many racks.
        let Ok(plan) = fabrics.plan(&network, &group) else { return Ok(()) };
        let circuits = plan.resources.iter().copied().filter(|held| !matches!(held, Resource::MulticastAddress { .. }));
        let all: Vec<(Resource, BTreeSet<HostId>)> =
            circuits.map(|held| (held, dark(&fabrics, &group, &plan, held))).collect();
        for (held, unreached) in &all {
            prop_assert!(!unreached.is_empty(), "{} is held in vain", held);
            let expected: BTreeSet<Failure> =
                all.iter().filter(|(_, dark)| dark == unreached).map(|(held, _)| Failure::Resource(*held)).collect();
            let found: BTreeSet<Failure> = fabrics.suspects(&network, &group, &plan, unreached).into_iter().collect();
            prop_assert_eq!(found, expected, "{} is dark", held);
        }
        for host in &group.receivers {
            let beside = group.receivers.iter().any(|other| other != host && rack(*other) == rack(*host));
            if beside || rack(*host) == rack(source) {
                let found = fabrics.suspects(&network, &group, &plan, &BTreeSet::from([*host]));
                prop_assert_eq!(found, vec![]);
            }
        }
    }
}

/// Resources that may have failed are held only where nothing else is free, and like any others once that is
/// over.
#[test]
fn what_is_doubtful_is_taken_last() {
    let fabric = ocs();
    let mut network = NetworkState::default();
    let group = Group::of_one(HostId(0), [HostId(3), HostId(6)].into());
    let circuits = |network: &NetworkState| {
        let plan = fabric.plan(network, &group).unwrap();
        let held =
            plan.resources.into_iter().filter(|held| !matches!(held, Resource::MulticastAddress { .. }));
        held.collect::<Vec<Resource>>()
    };
    let usual = circuits(&network);
    assert_eq!(usual.len(), 4, "three fibres and a splitter");
    for held in &usual {
        assert!(!network.is_doubtful(held));
        network.set_doubtful(Failure::Resource(*held), true);
        assert!(network.is_doubtful(held));
        assert!(!circuits(&network).contains(held), "{held} is taken though others are free");
        network.set_doubtful(Failure::Resource(*held), false);
        assert_eq!(circuits(&network), usual);
    }
    for splitter in 0..HYBRID.splitters {
        network.set_doubtful(Failure::Resource(Resource::Splitter { splitter }), true);
    }
    assert!(circuits(&network).iter().any(|held| matches!(held, Resource::Splitter { .. })), "nothing else");
}

/// Parts with names lie within the network, and the refusal of other names lists those that there are.
#[test]
fn parts_have_names_as_far_as_the_network_goes() {
    let circuits = Fabrics::new(vec![Box::new(ocs())]);
    let port = |port: u32| Failure::Resource(Resource::CircuitPort { port });
    let splitter = |splitter: u32| Failure::Resource(Resource::Splitter { splitter });
    let fibres = HYBRID.racks * HYBRID.ports_per_rack;
    for number in 0..fibres {
        assert_eq!(circuits.part(PartName::Port(number + 1)), Ok(vec![port(number)]));
    }
    for rack in 0..HYBRID.racks {
        let expected: Vec<Failure> =
            (0..HYBRID.ports_per_rack).map(|uplink| port(HYBRID.rack_port(rack, uplink))).collect();
        assert_eq!(circuits.part(PartName::Tor(rack)), Ok(expected));
    }
    for number in 0..HYBRID.splitters {
        assert_eq!(circuits.part(PartName::Splitter(number)), Ok(vec![splitter(number)]));
        for at in [HYBRID.splitter_input(number), HYBRID.splitter_output(number, 0)] {
            assert_eq!(circuits.part(PartName::Port(at + 1)), Ok(vec![splitter(number)]));
        }
    }
    let whole: Vec<Failure> = (0..fibres).map(port).chain((0..HYBRID.splitters).map(splitter)).collect();
    assert_eq!(circuits.part(PartName::CircuitSwitch), Ok(whole));
    let outside = [
        PartName::Port(0),
        PartName::Port(HYBRID.ports_needed() as u32 + 1),
        PartName::Splitter(HYBRID.splitters),
        PartName::Tor(HYBRID.racks),
    ];
    for name in outside {
        let why = circuits.part(name).unwrap_err();
        assert!(why.contains("tor:0 to tor:6") && why.contains("splitter:0 to splitter:3"), "{why}");
    }
    let network = Splitters::new(2, 2).unwrap();
    let config = ShufflecastConfig {
        network: network.into(),
        servers_per_rack: 1,
        rate: Rate(1_000),
        shares: 1,
        attempt_interval: Duration::from_millis(1),
    };
    let relays = Shufflecast::new(config, (0..8).map(|rack| (HostId(rack), rack)), pool()).unwrap();
    let relays = Fabrics::new(vec![Box::new(relays)]);
    for number in 0..network.tors() {
        for name in [PartName::Tor(number), PartName::Splitter(number)] {
            assert_eq!(relays.part(name), Ok(vec![Failure::Part(Shufflecast::part(number))]));
        }
    }
    for name in [PartName::Tor(8), PartName::Splitter(8), PartName::Port(1), PartName::CircuitSwitch] {
        assert!(relays.part(name).unwrap_err().contains("tor:0 to tor:7"));
    }
}
