//! The schedulers of Blast and Shufflecast, over their fabrics: constraints hold, order is the papers'.

use std::collections::{BTreeMap, BTreeSet};

use polycast_planning::circuits::{self, CircuitGroup, CircuitNetwork};
use polycast_planning::ip_multicast::{AddressPool, IpMulticast};
use polycast_planning::ocs::{Ocs, OcsConfig};
use polycast_planning::shufflecast::{Shufflecast, ShufflecastConfig};
use polycast_planning::{
    Decision, Draft, Fabrics, GreedyMatching, Group, HostId, NetworkState, PartitionFcfs, Pending, PlanId,
    RequestId, Resource, Scheduler, Wish,
};
use polycast_topology::optics::PowerBudget;
use polycast_topology::{Hybrid, Shufflecast as Splitters};
use polycast_types::{Duration, Rate, Time};
use proptest::prelude::*;

const RACKS: u32 = 10;
const HYBRID: Hybrid =
    Hybrid { racks: RACKS, servers_per_rack: 4, ports_per_rack: 1, splitters: 3, splitter_fanout: 3 };

fn pool() -> AddressPool {
    AddressPool::new([239, 1, 0, 0].into(), 256, 7410).unwrap()
}

fn circuit_fabrics() -> Fabrics {
    let budget =
        PowerBudget { budget_db: 90.0, switch_loss_db: 1.0, splitter_loss_db: 6.0, amplifier_gain_db: 0.0 };
    let config = OcsConfig {
        hybrid: HYBRID,
        cascade_max: 2,
        budget,
        rate: Rate(10_000_000_000),
        attempt_interval: Duration::from_millis(1),
    };
    let hosts = (0..RACKS * 4).map(|server| (HostId(server), server));
    Fabrics::new(vec![Box::new(Ocs::new(config, hosts, pool()).unwrap())])
}

fn splitters() -> Shufflecast {
    let config = ShufflecastConfig {
        network: Splitters::new(2, 2).unwrap().into(),
        servers_per_rack: 1,
        rate: Rate(10_000_000_000),
        shares: 1,
        attempt_interval: Duration::from_millis(1),
    };
    let hosts = (0..8).map(|server| (HostId(server), server));
    Shufflecast::new(config, hosts, pool()).unwrap()
}

fn relay_fabrics() -> Fabrics {
    Fabrics::new(vec![Box::new(splitters())])
}

fn request(id: u64, source: u32, receivers: &[u32], bytes: u64) -> Pending {
    Pending {
        id: RequestId(id),
        group: Group::of_one(HostId(source), receivers.iter().map(|&host| HostId(host)).collect()),
        object_bytes: bytes,
        remaining_bytes: bytes,
        divisible: false,
        since: Time(id),
        wish: Default::default(),
    }
}

fn granted(decisions: &[Decision]) -> Vec<u64> {
    let accepted = decisions.iter().filter_map(|decision| match decision {
        Decision::Accept { request, .. } => Some(request.0),
        _ => None,
    });
    accepted.collect()
}

fn refs(pending: &[Pending]) -> Vec<&Pending> {
    pending.iter().collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]
    /// Through the manager's interface the greedy scheduler grants what the planner of section III-C
    /// does, with the same search.
    #[test]
    fn the_plug_in_is_the_planner(
        drawn in proptest::collection::vec((proptest::collection::btree_set(0u32..40, 2..9), 1u64..1000), 1..12),
        running in 0usize..4,
    ) {
        let fabrics = circuit_fabrics();
        let mut scheduler = GreedyMatching::new((0..40).map(|server| (HostId(server), server / 4)));
        let pending: Vec<Pending> = drawn
            .iter()
            .zip(0..)
            .map(|((members, bytes), id)| {
                let members: Vec<u32> = members.iter().copied().collect();
                request(id, members[0], &members[1..], *bytes)
            })
            .collect();
        let groups: Vec<CircuitGroup> = pending
            .iter()
            .map(|request| {
                let group = &request.group;
                let racks: BTreeSet<u32> =
                    group.receivers.iter().chain([&group.source]).map(|host| host.0 / 4).collect();
                CircuitGroup {
                    id: request.id.0,
                    racks: racks.into_iter().collect(),
                    bytes: request.remaining_bytes,
                    receivers: group.receivers.len() as u32,
                }
            })
            .collect();
        // Some run already: their circuits stay.
        let mut network = NetworkState::default();
        let mut pinned = BTreeSet::new();
        for request in pending.iter().take(running) {
            if let Ok(plan) = fabrics.plan(&network, &request.group) {
                prop_assert!(network.hold(PlanId(request.id.0), request.group.clone(), plan));
                pinned.insert(request.id.0);
            }
        }
        let waiting: Vec<Pending> =
            pending.into_iter().filter(|request| !pinned.contains(&request.id.0)).collect();
        let decisions = scheduler.decide(Time(99), &refs(&waiting), Draft::new(&mut network), &fabrics);
        let of_network = CircuitNetwork {
            racks: RACKS, ports_per_rack: 1, splitters: 3, splitter_fanout: 3, cascade_max: 2,
        };
        let steps = circuits::SEARCH_STEPS;
        let expected = circuits::schedule_with_search(&of_network, &groups, &pinned, steps).unwrap();
        prop_assert_eq!(granted(&decisions), expected.granted);
        let rejected: BTreeSet<u64> = decisions
            .iter()
            .filter_map(|decision| match decision {
                Decision::Reject { request, .. } => Some(request.0),
                _ => None,
            })
            .collect();
        prop_assert_eq!(rejected, expected.rejected.iter().map(|(id, _)| *id).collect::<BTreeSet<_>>());
        prop_assert_eq!(decisions.len(), waiting.len());
    }

    /// A request that goes has no older one before it that needs one of its partitions; one that waits has a
    /// reason.
    #[test]
    fn no_request_overtakes_at_a_partition(
        sources in proptest::collection::vec(0u32..8, 1..10),
        busy in proptest::collection::btree_set(0u32..8, 0..3),
    ) {
        let fabrics = relay_fabrics();
        let far = |source: u32| [(source + 3) % 8, (source + 6) % 8];
        let mut network = NetworkState::default();
        for source in busy {
            let group = request(0, source, &far(source), 1).group;
            if let Ok(plan) = fabrics.plan(&network, &group) {
                prop_assert!(network.hold(PlanId(source.into()), group, plan));
            }
        }
        let pending: Vec<Pending> =
            sources.iter().zip(0..).map(|(&source, id)| request(id, source, &far(source), 5)).collect();
        let wants: BTreeMap<u64, BTreeSet<Resource>> = pending
            .iter()
            .map(|request| {
                let plan = fabrics.plan(&network.idle(), &request.group).unwrap();
                let is_relay = |resource: &Resource| matches!(resource, Resource::RelayPartition { .. });
                (request.id.0, plan.resources.into_iter().filter(is_relay).collect())
            })
            .collect();
        let decisions = PartitionFcfs.decide(Time(9), &refs(&pending), Draft::new(&mut network), &fabrics);
        let goes: BTreeSet<u64> = granted(&decisions).into_iter().collect();
        for request in &pending {
            let wanted = &wants[&request.id.0];
            let older = pending.iter().take_while(|other| other.id != request.id);
            let behind = older.clone().any(|other| !wants[&other.id.0].is_disjoint(wanted));
            let held = wanted.iter().any(|resource| !network.is_free(resource));
            prop_assert_eq!(goes.contains(&request.id.0), !behind && !held);
        }
    }
}

#[test]
fn more_traffic_per_rack_goes_first_and_a_small_group_fills_the_gap() {
    let fabrics = circuit_fabrics();
    let mut scheduler = GreedyMatching::new((0..40).map(|server| (HostId(server), server / 4)));
    // Racks 0 and 1 for 100 a rack, racks 1 and 2 for 400 a rack, racks 3 and 4 for little.
    let pending = [
        request(1, 0, &[4], 200),
        request(2, 5, &[8], 800),
        request(3, 12, &[16], 1),
        request(4, 0, &[1], 9),
    ];
    let decisions =
        scheduler.decide(Time(1), &refs(&pending), Draft::new(&mut NetworkState::default()), &fabrics);
    assert_eq!(granted(&decisions), [2, 3]);
    assert!(decisions.contains(&Decision::Wait { request: RequestId(1), until: None }));
    assert!(decisions.iter().any(|decision| matches!(decision,
        Decision::Reject { request: RequestId(4), refusal } if refusal.to_string().contains("1 rack "))));
}

/// Two groups of a little less traffic a rack are worth more than the one in their way.
#[test]
fn a_search_finds_what_is_worth_more_together() {
    let fabrics = circuit_fabrics();
    let mut scheduler = GreedyMatching::new((0..40).map(|server| (HostId(server), server / 4)));
    // Racks 1 and 2 for 100 a rack; racks 0 and 1, and 2 and 3, for 90.
    let pending = [
        request(1, 4, &[8], 200),
        request(2, 0, &[4], 180),
        request(3, 8, &[12], 180),
        request(4, 16, &[20], 1),
    ];
    let mut network = NetworkState::default();
    let decisions = scheduler.decide(Time(1), &refs(&pending), Draft::new(&mut network), &fabrics);
    assert_eq!(granted(&decisions), [2, 3, 4]);
    assert!(decisions.contains(&Decision::Wait { request: RequestId(1), until: None }));
    assert_eq!(network.running().count(), 0, "the draft gives all of it back");
}

/// Splitters, and multicast for those who wish for it; each has one path for one group.
fn relays_and_one_address() -> Fabrics {
    let one = AddressPool::new([239, 2, 0, 0].into(), 1, 7410).unwrap();
    Fabrics::new(vec![Box::new(splitters()), Box::new(IpMulticast::new(one))])
}

/// A request that waits for another fabric keeps no relays from those behind it.
#[test]
fn a_wish_for_another_fabric_keeps_no_relays() {
    let fabrics = relays_and_one_address();
    let wish = Wish { fabric: Some(IpMulticast::NAME), or_fail: true, ..Wish::default() };
    let mut network = NetworkState::default();
    let pending = [
        Pending { wish, ..request(1, 0, &[3], 9) },
        Pending { wish, ..request(2, 0, &[6], 9) },
        request(3, 0, &[5], 9),
    ];
    let decisions = PartitionFcfs.decide(Time(9), &refs(&pending), Draft::new(&mut network), &fabrics);
    assert_eq!(granted(&decisions), [1, 3], "{decisions:?}");
}

/// Nothing is free while agents have yet to say what they use: no share is looked for without end.
#[test]
fn the_search_for_shares_ends_while_uses_are_unknown() {
    let fabrics = relay_fabrics();
    let mut network = NetworkState::default();
    network.set_uses_known(false);
    let pending = [request(1, 0, &[3], 9), request(2, 1, &[4], 9)];
    let decisions = PartitionFcfs.decide(Time(9), &refs(&pending), Draft::new(&mut network), &fabrics);
    assert_eq!(granted(&decisions), []);
}
