//! A Shufflecast among any number of ToRs: packets are followed through the rules as switches would apply
//! them, splitter by splitter.

use polycast_planning::ip_multicast::AddressPool;
use polycast_planning::shufflecast::{Shufflecast, ShufflecastConfig};
use polycast_planning::{DeviceCommand, Fabric, Failure, Group, HostId, NetworkState, Part, RackPort};
use polycast_topology::{Shufflecast as Splitters, Wiring};
use polycast_types::{Duration, Rate};
use std::collections::{BTreeMap, BTreeSet};

fn wiring(p: u32, k: u32, tors: u32) -> Wiring {
    Wiring::new(Splitters::new(p, k).unwrap(), tors).unwrap()
}

/// A host a rack, of the rack's number.
fn fabric(network: Wiring) -> Shufflecast {
    let config = ShufflecastConfig {
        network,
        servers_per_rack: 1,
        rate: Rate(1_000),
        shares: 1,
        attempt_interval: Duration::from_millis(1),
    };
    let pool = AddressPool::new([239, 255, 64, 0].into(), 16, 7410).unwrap();
    Shufflecast::new(config, (0..network.tors()).map(|tor| (HostId(tor), tor)), pool).unwrap()
}

/// Deliveries and lit splitters of one packet.
struct Spread {
    /// Copies that went to receivers, by rack.
    delivered: BTreeMap<u32, u32>,
    /// Number of times that each splitter was lit.
    lit: BTreeMap<u32, u32>,
}

/// Lets a packet of a rack's host go, while some splitters and fibres, from splitters to logical ToRs, are
/// dark.
fn spread(
    wiring: &Wiring,
    source: u32,
    rules: &[DeviceCommand],
    dead: &BTreeSet<u32>,
    dark: &BTreeSet<(u32, u32)>,
) -> Spread {
    let mut spread = Spread { delivered: BTreeMap::new(), lit: BTreeMap::new() };
    let first = rules.iter().find_map(|rule| match rule {
        DeviceCommand::RackRule { rack, from: RackPort::Host(_), to, .. } if *rack == source => Some(to),
        _ => None,
    });
    let mut entering: Vec<u32> = first
        .expect("a rule of the source")
        .iter()
        .filter_map(|port| match port {
            RackPort::Splitter(nth) => wiring.logical_at(source, *nth),
            _ => None,
        })
        .collect();
    while let Some(splitter) = entering.pop() {
        let lit = spread.lit.entry(splitter).or_default();
        *lit += 1;
        assert!(*lit < 3, "packets of rack {source} circle through splitter {splitter}");
        if dead.contains(&splitter) {
            continue;
        }
        for child in wiring.logical().children(splitter) {
            let (rack, fibre) = (wiring.physical(child), wiring.fibre(splitter, child));
            if rack == source || dark.contains(&(splitter, child)) {
                continue;
            }
            let rule = rules.iter().find_map(|rule| match rule {
                DeviceCommand::RelayRule { rack: at, source: of, from, to }
                    if (*at, *of) == (rack, source) =>
                {
                    Some((*from, to.clone()))
                }
                _ => None,
            });
            let several = wiring.logical_of(rack).len() > 1;
            let to = match rule {
                Some((Some(from), _)) if from != fibre => continue,
                Some((from, to)) => {
                    assert_eq!(from.is_some(), several, "rack {rack} tells fibres apart where it has copies");
                    to
                }
                // One copy, for all that ask for it; of several none is taken that was not chosen.
                None if several => continue,
                None => Vec::new(),
            };
            *spread.delivered.entry(rack).or_default() += 1;
            entering.extend(to.iter().map(|nth| wiring.logical_at(rack, *nth).unwrap()));
        }
    }
    spread
}

/// Checks that each source reaches all other racks, once each, while these splitters are dead; returns how
/// many could not send.
fn all_are_reached_once(wiring: Wiring, dead: &BTreeSet<u32>) -> usize {
    let fabric = fabric(wiring);
    let mut network = NetworkState::default();
    dead.iter().for_each(|splitter| network.fail_part(Shufflecast::part(*splitter)));
    let standing = fabric.standing_commands(&network);
    let tors = wiring.tors();
    let mut refused = 0;
    for source in 0..tors {
        let receivers = (0..tors).filter(|tor| *tor != source).map(HostId).collect();
        let Ok(plan) = fabric.plan(&network, &Group::of_one(HostId(source), receivers)) else {
            refused += 1;
            continue;
        };
        let rules = [plan.commands.to_vec(), standing.clone()].concat();
        let Spread { delivered, lit } = spread(&wiring, source, &rules, dead, &BTreeSet::new());
        let expected: BTreeMap<u32, u32> =
            (0..tors).filter(|tor| *tor != source).map(|tor| (tor, 1)).collect();
        assert_eq!(delivered, expected, "{tors} racks, rack {source} sends, dead: {dead:?}");
        assert!(lit.values().all(|times| *times == 1), "{tors} racks, rack {source} sends: {lit:?}");
        let uses: BTreeSet<_> = lit.keys().map(|splitter| Shufflecast::part(*splitter)).collect();
        assert_eq!(uses, plan.uses.iter().collect(), "a plan names the splitters that it lights");
    }
    refused
}

#[test]
fn any_number_of_racks_is_reached_once() {
    for (p, k) in [(2u32, 2), (3, 2), (2, 3)] {
        for tors in p..=k * p.pow(k) {
            assert_eq!(all_are_reached_once(wiring(p, k, tors), &BTreeSet::new()), 0, "{p},{k} of {tors}");
        }
    }
}

#[test]
fn dead_splitters_are_gone_around_whatever_racks_they_are_at() {
    for (p, k, tors) in [(2, 2, 5), (2, 2, 8), (2, 3, 15), (3, 2, 11)] {
        let wiring = wiring(p, k, tors);
        for dead in 0..wiring.logical().tors() {
            // A rack that has another splitter sends by that one.
            let alone = wiring.logical_of(wiring.physical(dead)).len() == 1;
            let refused = all_are_reached_once(wiring, &BTreeSet::from([dead]));
            assert_eq!(refused, usize::from(alone), "splitter {dead} of {p},{k} of {tors}");
        }
    }
}

/// A splitter on the light's way goes dark: it is suspected, and with it exactly those in whose place the
/// same racks would get nothing.
#[test]
fn the_splitters_that_explain_the_dark_are_suspected() {
    for (p, k, tors) in [(2, 2, 5), (2, 2, 8), (2, 3, 15), (3, 2, 11)] {
        let wiring = wiring(p, k, tors);
        let fabric = fabric(wiring);
        let network = NetworkState::default();
        let standing = fabric.standing_commands(&network);
        for source in 0..tors {
            let others = || (0..tors).filter(|tor| *tor != source);
            let group = Group::of_one(HostId(source), others().map(HostId).collect());
            let plan = fabric.plan(&network, &group).unwrap();
            let rules = [plan.commands.to_vec(), standing.clone()].concat();
            let dark = |splitter: u32| {
                let got =
                    spread(&wiring, source, &rules, &BTreeSet::from([splitter]), &BTreeSet::new()).delivered;
                others().filter(|tor| !got.contains_key(tor)).map(HostId).collect::<BTreeSet<HostId>>()
            };
            let all: Vec<(Part, BTreeSet<HostId>)> = (0..wiring.logical().tors())
                .map(|splitter| (Shufflecast::part(splitter), dark(splitter)))
                .filter(|(part, _)| plan.uses.contains(part))
                .collect();
            for (part, unreached) in all.iter().filter(|(_, unreached)| !unreached.is_empty()) {
                let same = all.iter().filter(|(_, dark)| dark == unreached);
                let expected: BTreeSet<Failure> = same.map(|(part, _)| Failure::Part(*part)).collect();
                let found: BTreeSet<Failure> =
                    fabric.suspects(&network, &group, &plan, unreached).into_iter().collect();
                assert_eq!(found, expected, "{part:?} of {p},{k} of {tors} is dark, rack {source} sends");
            }
        }
    }
}

/// The logical ToR that a dark fibre leads to has failed, and its rack has another fibre wherever it stands
/// for several.
#[test]
fn a_dark_fibre_costs_no_rack_that_has_another_one() {
    for (p, k, tors) in [(2, 2, 5), (2, 2, 8), (2, 3, 15), (3, 2, 11)] {
        let wiring = wiring(p, k, tors);
        let (network, fabric) = (wiring.logical(), fabric(wiring));
        let fibres = (0..network.tors()).flat_map(|from| network.children(from).map(move |to| (from, to)));
        for (from, to) in fibres {
            let mut state = NetworkState::default();
            state.fail_part(Shufflecast::part(to));
            let (standing, at) = (fabric.standing_commands(&state), wiring.physical(to));
            let is_alone = wiring.logical_of(at).len() == 1;
            for source in (0..tors).filter(|source| !(is_alone && *source == at)) {
                let receivers = (0..tors).filter(|tor| *tor != source);
                let group = Group::of_one(HostId(source), receivers.clone().map(HostId).collect());
                let plan = fabric.plan(&state, &group).unwrap();
                let rules = [plan.commands.to_vec(), standing.clone()].concat();
                let dark = BTreeSet::from([(from, to)]);
                let delivered = spread(&wiring, source, &rules, &BTreeSet::new(), &dark).delivered;
                let mut expected: BTreeMap<u32, u32> = receivers.map(|tor| (tor, 1)).collect();
                if is_alone && !delivered.contains_key(&at) {
                    expected.remove(&at);
                }
                assert_eq!(
                    delivered, expected,
                    "fibre {from} to {to} of {p},{k} of {tors}, rack {source} sends"
                );
            }
        }
    }
}

/// A word of a splitter that there is not changes nothing.
#[test]
fn failures_outside_the_network_are_none() {
    for (p, k, tors) in [(2, 2, 5), (2, 2, 8), (2, 3, 15)] {
        let wiring = wiring(p, k, tors);
        let fabric = fabric(wiring);
        let (whole, last) = (NetworkState::default(), wiring.logical().tors() - 1);
        let receivers = (1..tors).map(HostId).collect();
        let group = Group::of_one(HostId(0), receivers);
        for outside in [last + 1, last + 2, u32::MAX] {
            let mut network = NetworkState::default();
            network.fail_part(Shufflecast::part(outside));
            assert_eq!(fabric.plan(&network, &group), fabric.plan(&whole, &group), "{outside} of {last}");
            assert_eq!(fabric.standing_commands(&network), fabric.standing_commands(&whole));
        }
    }
}

/// 15 ToRs are wired as a 2,3-Shufflecast, and nine of them have two splitters (section III-A1). Those have a
/// rule for each other rack, and those with one splitter at most k p^(k-1), as in a network without doubles.
#[test]
fn fifteen_racks_have_as_many_rules_as_their_splitters_take() {
    let wiring = Wiring::smallest(15, 2).unwrap();
    let standing = fabric(wiring).standing_commands(&NetworkState::default());
    for tor in 0..15 {
        let rules = standing
            .iter()
            .filter(|rule| matches!(rule, DeviceCommand::RelayRule { rack, .. } if *rack == tor));
        let (rules, doubled) = (rules.count(), wiring.logical_of(tor).len() == 2);
        assert_eq!(doubled, tor < 9);
        assert!(if doubled { rules == 14 } else { rules <= 12 }, "rack {tor} has {rules} rules");
    }
}
