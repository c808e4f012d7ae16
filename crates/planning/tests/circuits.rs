//! The fabric `ocs` on switches that were not cabled in the program's own order: splitters of different
//! fan-outs, losses and amplifiers, circuits that are there already, and groups that one cascade does not
//! reach.

use polycast_planning::ip_multicast::AddressPool;
use polycast_planning::ocs::{Ocs, OcsConfig};
use polycast_planning::{
    DeviceCommand, Fabric, Group, HostId, NetworkState, Plan, RackPort, Refusal, Running,
};
use polycast_topology::optics::{PowerBudget, splitter_loss_db};
use polycast_topology::{Hybrid, PortTable, SplitterPorts};
use polycast_types::{Duration, Rate};
use std::collections::{BTreeMap, BTreeSet};

const RACKS: u32 = 16;

/// A splitter with these ports.
fn splitter(input: u32, outputs: &[u32]) -> SplitterPorts {
    let loss_db = Some(splitter_loss_db(outputs.len() as u32));
    SplitterPorts { input, outputs: outputs.to_vec(), loss_db, gain_db: None }
}

/// Racks of a host each whose fibres are at the ports 1,000 and up, some apart.
fn table(fibres: u32, splitters: Vec<SplitterPorts>) -> PortTable {
    let racks = (0..RACKS).map(|rack| (0..fibres).map(|fibre| 1_000 + 7 * rack + fibre).collect()).collect();
    PortTable::new(racks, splitters).unwrap()
}

fn ocs(table: &PortTable, cascade_max: u32, budget_db: f64) -> Ocs {
    let fanout = table.splitters().iter().map(SplitterPorts::fanout).max().unwrap();
    fabric(table, cascade_max, budget_db, fanout)
}

fn fabric(table: &PortTable, cascade_max: u32, budget_db: f64, fanout: u32) -> Ocs {
    let hybrid = Hybrid {
        racks: RACKS,
        servers_per_rack: 1,
        ports_per_rack: table.of_rack(0).len() as u32,
        splitters: table.splitters().len() as u32,
        splitter_fanout: fanout,
    };
    let budget =
        PowerBudget { budget_db, switch_loss_db: 1.5, splitter_loss_db: 9.9, amplifier_gain_db: 0.0 };
    let (rate, attempt_interval) = (Rate(1_000), Duration::from_millis(1));
    let config = OcsConfig { hybrid, cascade_max, budget, rate, attempt_interval };
    let hosts = (0..RACKS).map(|rack| (HostId(rack), rack));
    Ocs::new(config, hosts, AddressPool::parse("239.0.0.0/24", 7_410).unwrap())
        .unwrap()
        .with_ports(table.clone())
}

fn group(source: u32, receivers: impl IntoIterator<Item = u32>) -> Group {
    Group::of_one(HostId(source), receivers.into_iter().map(HostId).collect())
}

fn circuits(plan: &Plan) -> BTreeSet<(u32, u32)> {
    let circuit = |command: &DeviceCommand| match *command {
        DeviceCommand::CrossConnect { from, to } => Some((from, to)),
        _ => None,
    };
    plan.commands.iter().filter_map(circuit).collect()
}

/// The racks that light from the fibres which the source's rule feeds gets to; asserts that none gets it
/// twice.
fn lit(table: &PortTable, plan: &Plan, source: u32) -> BTreeSet<u32> {
    let circuits: BTreeMap<u32, u32> = circuits(plan).into_iter().collect();
    let fed = plan.commands.iter().find_map(|command| match command {
        DeviceCommand::RackRule { rack, to, .. } if *rack == source => Some(to.clone()),
        _ => None,
    });
    let fibre = |port: &RackPort| match port {
        RackPort::Circuit(uplink) => Some(table.of_rack(source)[*uplink as usize]),
        _ => None,
    };
    let mut light: Vec<u32> = fed.unwrap().iter().filter_map(fibre).collect();
    let mut racks = BTreeSet::new();
    while let Some(port) = light.pop() {
        let Some(&to) = circuits.get(&port) else { continue };
        if let Some(splitter) = table.splitters().iter().find(|splitter| splitter.input == to) {
            light.extend(&splitter.outputs);
        } else {
            let rack = (0..RACKS).find(|rack| table.of_rack(*rack).contains(&to)).expect("a dark end");
            assert!(racks.insert(rack), "rack {rack} gets the light twice");
        }
    }
    racks
}

#[test]
fn splitters_of_different_fan_outs_are_taken_as_they_fit() {
    let table = table(
        1,
        vec![
            splitter(3, &[40, 9]),
            splitter(50, &[4, 8, 1, 2]),
            splitter(60, &[61, 70, 62, 63, 64, 65, 66, 67]),
        ],
    );
    let fabric = ocs(&table, 3, 60.0);
    let network = NetworkState::default();
    for (count, expected) in [
        (1, &[][..]),
        (2, &[0]),
        (3, &[1]),
        (4, &[1]),
        (5, &[2]),
        (8, &[2]),
        (9, &[2, 0]),
        (11, &[2, 1]),
        (12, &[2, 1, 0]),
    ] {
        let plan = fabric.plan(&network, &group(0, 1..=count)).unwrap();
        assert_eq!(lit(&table, &plan, 0), (1..=count).collect(), "{count} receivers");
        let inputs: Vec<u32> =
            expected.iter().map(|splitter| table.splitters()[*splitter as usize].input).collect();
        let fed: BTreeSet<u32> = circuits(&plan).into_iter().map(|(_, to)| to).collect();
        assert_eq!(
            inputs.iter().filter(|input| fed.contains(input)).count(),
            expected.len(),
            "{count}: {fed:?}"
        );
        assert_eq!(circuits(&plan).len(), expected.len() + count as usize);
        assert!(fabric.vouches(&group(0, 1..=count), &plan), "{count}");
    }
    let Err(Refusal::Impossible(why)) = fabric.plan(&network, &group(0, 1..=13)) else { panic!("13 fit") };
    assert!(why.contains("needs 4 splitters and the network has 3"), "{why}");
    let one = polycast_planning::circuits::Rejection::Splitters {
        needed: 1,
        splitters: 0,
        remedies: Default::default(),
    }
    .to_string();
    assert!(one.starts_with("it needs 1 splitter and the network has 0"), "{one}");
    // Ports that are not the fabric's are none of its resources.
    assert_eq!(fabric.resources_of(&DeviceCommand::CrossConnect { from: 7, to: 41 }), []);
}

/// A switch with so many splitters of these outputs, some smaller ones, and so many fibres a rack.
#[derive(Clone, Copy, Debug)]
struct Switch {
    splitters: u32,
    outputs: u32,
    small: u32,
    small_outputs: u32,
    cascade_max: u32,
    fibres: u32,
}

impl Switch {
    fn plan(&self, racks: u32) -> Result<Plan, Refusal> {
        let outputs =
            (0..self.splitters).map(|_| self.outputs).chain((0..self.small).map(|_| self.small_outputs));
        let splitters = (0..).zip(outputs).map(|(at, outputs)| {
            let first = 100_000 + 1_000 * at;
            splitter(first, &(first + 1..=first + outputs).collect::<Vec<_>>())
        });
        let racks_ports = (0..RACKS)
            .map(|rack| (0..self.fibres).map(|fibre| 1_000 * (rack + 1) + fibre).collect())
            .collect();
        let table = PortTable::new(racks_ports, splitters.collect()).unwrap();
        let fabric = fabric(&table, self.cascade_max, 1_000.0, self.outputs);
        fabric.plan(&NetworkState::default(), &group(0, 1..racks))
    }

    /// The same switch after each of the changes that a refusal names.
    fn changed(&self, why: &str) -> Vec<(String, Switch)> {
        let (_, ways) = why.rsplit_once(": split the group").unwrap();
        let ways = ways.replace(", or ", ", ").replace(" or ", ", ");
        let number = |words: &str, after: &str| -> u32 {
            let rest = words.split_once(after).unwrap().1;
            rest.split(' ').next().unwrap().parse().unwrap()
        };
        let change = |way: &str| {
            let mut switch = *self;
            if way.contains("add ") {
                switch.splitters += number(way, "add ");
            }
            if way.contains("cascades of ") {
                switch.cascade_max = number(way, "cascades of ");
            }
            if way.contains("use splitters") {
                let least = number(way, "at least ");
                switch.outputs = switch.outputs.max(least);
                switch.small_outputs = switch.small_outputs.max(least);
            }
            if way.contains("lay ") {
                switch.fibres += number(way, "lay ");
            }
            (way.to_string(), switch)
        };
        ways.split(", ").filter(|way| !way.is_empty()).map(change).collect()
    }
}

/// Every way out that a refusal names is one: by itself it lets the group have circuits. Groups that are not
/// refused do not wait on an idle switch.
#[test]
fn what_a_refusal_names_helps() {
    let mut named = BTreeMap::<String, u32>::new();
    let sizes = (0..4).flat_map(|splitters| (2..5).map(move |outputs| (splitters, outputs)));
    for (splitters, outputs) in sizes {
        for (small, cascade_max, fibres) in [
            (0, 0, 1),
            (0, 1, 1),
            (1, 1, 1),
            (0, 2, 1),
            (2, 4, 1),
            (0, 1, 2),
            (1, 2, 2),
            (0, 4, 3),
            (2, 1, 3),
        ] {
            let switch = Switch { splitters, outputs, small, small_outputs: 2, cascade_max, fibres };
            for racks in 2..=RACKS {
                let why = match switch.plan(racks) {
                    Ok(_) => continue,
                    Err(Refusal::Impossible(why)) => why,
                    Err(other) => panic!("{switch:?}, {racks} racks: {other}"),
                };
                for (way, changed) in switch.changed(&why) {
                    let tried = changed.plan(racks);
                    assert!(tried.is_ok(), "{switch:?}, {racks} racks: {why}\n{way}: {tried:?}");
                    let words = way.split(' ').filter(|word| word.parse::<u32>().is_err());
                    *named.entry(words.collect::<Vec<_>>().join(" ")).or_default() += 1;
                }
            }
        }
    }
    for word in ["allow", "add more splitters and", "add more splitters", "use", "lay"] {
        assert!(named.keys().any(|way| way.starts_with(word)), "{word}: {named:?}");
    }
}

/// With one splitter of two outputs, longer cascades alone do not help six racks.
#[test]
fn splitters_are_asked_for_where_they_are_missing() {
    let switch = Switch { splitters: 1, outputs: 2, small: 0, small_outputs: 2, cascade_max: 1, fibres: 1 };
    let Err(Refusal::Impossible(why)) = switch.plan(6) else { panic!("6 racks have circuits") };
    assert_eq!(
        why,
        "for circuits it needs 4 splitters and the network has 1: split the group, add 3 more splitters and \
         allow cascades of 4, or use splitters of at least 5 outputs"
    );
}

#[test]
fn another_group_uses_the_circuits_that_are_there() {
    let table = table(1, vec![splitter(1, &[2, 3, 4, 5]), splitter(11, &[12, 13, 14, 15])]);
    let fabric = ocs(&table, 2, 60.0);
    let mut network = NetworkState::default();
    let before = fabric.plan(&network, &group(0, [2, 3])).unwrap();
    network.keep(Running { group: group(0, [2, 3]), plan: before.clone() });
    let after = fabric.plan(&network, &group(0, [1, 2, 3])).unwrap();
    assert_eq!(lit(&table, &after, 0), BTreeSet::from([1, 2, 3]));
    let (old, new) = (circuits(&before), circuits(&after));
    assert_eq!((old.difference(&new).count(), new.difference(&old).count()), (0, 1), "{old:?} {new:?}");
    // A host that joins a transfer which runs changes one circuit too, and one that leaves makes none.
    let joined = fabric.regroup(&NetworkState::default(), &after, &group(0, [1, 2, 3, 9])).unwrap();
    assert_eq!(circuits(&joined).difference(&new).count(), 1);
    let left = fabric.regroup(&NetworkState::default(), &after, &group(0, [1, 3])).unwrap();
    assert_eq!(circuits(&left).difference(&new).count(), 0);
    assert_eq!(lit(&table, &left, 0), BTreeSet::from([1, 3]));
}

#[test]
fn several_cascades_reach_what_one_does_not() {
    let splitters = |count: u32| {
        (0..count)
            .map(|at| splitter(10 * at, &[10 * at + 1, 10 * at + 2, 10 * at + 3, 10 * at + 4]))
            .collect()
    };
    let table = table(2, splitters(4));
    let fabric = ocs(&table, 1, 60.0);
    let network = NetworkState::default();
    for count in [4, 5, 7, 8] {
        let plan = fabric.plan(&network, &group(0, 1..=count)).unwrap();
        assert_eq!(lit(&table, &plan, 0), (1..=count).collect());
        assert!(fabric.vouches(&group(0, 1..=count), &plan), "{count}");
    }
    let Err(Refusal::Impossible(why)) = fabric.plan(&network, &group(0, 1..=9)) else { panic!("9 fit") };
    assert!(why.contains("spans 10 racks") && why.contains("reach 9"), "{why}");
    // Two short cascades lose less light than a long one: 1.5 + 7 + 1.5 + 7 + 1.5 dB are too many.
    let dim = ocs(&table, 4, 15.0);
    let plan = dim.plan(&network, &group(0, 1..=8)).unwrap();
    assert_eq!(lit(&table, &plan, 0), (1..=8).collect());
    let Err(Refusal::Impossible(why)) = dim.plan(&network, &group(0, 1..=9)) else { panic!("9 fit") };
    assert!(why.contains("the power budget is 15.0 dB"), "{why}");
}

#[test]
fn amplifiers_are_where_the_table_says() {
    let with = |gain| {
        let amplified =
            |at| SplitterPorts { gain_db: Some(gain), ..splitter(10 * at, &[10 * at + 1, 10 * at + 2]) };
        table(1, (0..3_u32).map(amplified).collect())
    };
    let network = NetworkState::default();
    let plan = |gain| ocs(&with(gain), 3, 11.0).plan(&network, &group(0, 1..=3));
    let Err(Refusal::Impossible(why)) = plan(0.0) else { panic!("light without end") };
    assert!(why.contains("the light loses 12.5 dB") && why.contains("amplifiers"), "{why}");
    assert_eq!(lit(&with(20.0), &plan(20.0).unwrap(), 0), BTreeSet::from([1, 2, 3]));
}
