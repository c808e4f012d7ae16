//! Choice of the fabric that serves a group, and the refusal where none does: checked on all short
//! lists of fabrics with all their answers.

use core::net::IpAddr;
use polycast_planning::estimate::{Estimator, Learned};
use polycast_planning::ip_multicast::{AddressPool, IpMulticast};
use polycast_planning::ocs::{Ocs, OcsConfig};
use polycast_planning::tcp_chain::TcpChain;
use polycast_planning::{
    Cause, Channel, Decision, DeviceCommand, Draft, Fabric, FabricName, Fabrics, Failure, Fcfs,
    GreedyMatching, Group, HostId, NetworkState, Passed, PassedWhy, Pending, Places, Plan, PlanId, Pulling,
    Refusal, Replan, ReplanOutcome, RequestId, Resource, Scheduler, Shared, TreeRoutes, Uses, Wish,
};
use polycast_topology::Hybrid;
use polycast_topology::optics::PowerBudget;
use polycast_types::{Duration, Rate, Time};
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Answer of a stub to a request for a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Says {
    Plan,
    Busy,
    Never,
}

/// A fabric that says the same to everyone. Its plans hold the splitter of its number.
#[derive(Clone, Debug)]
struct Stub {
    name: FabricName,
    number: u32,
    says: Says,
    is_shared: bool,
}

const NAMES: [FabricName; 3] = [FabricName::new("ocs"), FabricName::new("orca"), FabricName::new("datacast")];

impl Stub {
    fn new(number: u32, says: Says) -> Self {
        Stub { name: NAMES[number as usize], number, says, is_shared: false }
    }

    fn made(&self) -> Plan {
        Plan {
            fabric: self.name,
            resources: vec![Resource::Splitter { splitter: self.number }],
            uses: Uses::default(),
            commands: Shared::default(),
            channel: Channel::Chain { order: vec![HostId(self.number)] },
        }
    }
}

impl Fabric for Stub {
    fn name(&self) -> FabricName {
        self.name
    }

    fn plan(&self, _network: &NetworkState, _group: &Group) -> Result<Plan, Refusal> {
        match self.says {
            Says::Plan => Ok(self.made()),
            Says::Busy => Err(Refusal::Busy(format!("busy {}", self.number))),
            Says::Never => Err(Refusal::Impossible(format!("never {}", self.number))),
        }
    }

    fn replan(&self, network: &NetworkState, failure: &Failure) -> Vec<Replan> {
        let touched =
            network.running().filter(|(_, running)| running.plan.is_touched(&running.group, failure));
        let outcome = match self.says {
            Says::Plan => ReplanOutcome::Replaced(self.made()),
            _ => ReplanOutcome::Lost(Refusal::Impossible("lost".into())),
        };
        touched.map(|(id, _)| Replan { id, outcome: outcome.clone() }).collect()
    }

    fn adopt(&self, _network: &NetworkState, _group: &Group, channel: &Channel) -> Option<Plan> {
        (self.says == Says::Plan).then(|| Plan { channel: channel.clone(), ..self.made() })
    }

    fn is_shared(&self) -> bool {
        self.is_shared
    }
}

fn group(source: u32, receivers: &[u32]) -> Group {
    Group::of_one(HostId(source), receivers.iter().map(|&host| HostId(host)).collect())
}

fn list(answers: &[Says], is_shared: impl Fn(usize) -> bool) -> Fabrics {
    let stubs = answers.iter().enumerate().map(|(at, says)| {
        let stub = Stub { is_shared: is_shared(at), ..Stub::new(at as u32, *says) };
        Box::new(stub) as Box<dyn Fabric>
    });
    Fabrics::new(stubs.collect())
}

/// All answers of up to three fabrics.
fn all_answers() -> Vec<Vec<Says>> {
    let mut all = vec![vec![]];
    for _ in 0..3 {
        let longer: Vec<Vec<Says>> = all
            .iter()
            .flat_map(|before: &Vec<Says>| {
                [Says::Plan, Says::Busy, Says::Never].map(|says| [&before[..], &[says]].concat())
            })
            .collect();
        all.extend(longer);
        all.sort_by_key(Vec::len);
        all.dedup();
    }
    all
}

/// Returns the refusal where these fabrics, by their numbers, were asked and none has a plan.
fn refusal(asked: &[(usize, Says)]) -> Refusal {
    let busy = asked.iter().find(|(_, says)| *says == Says::Busy);
    let never = asked.iter().rev().find(|(_, says)| *says == Says::Never);
    match (busy, never) {
        (Some((at, _)), _) => Refusal::Busy(format!("busy {at}")),
        (None, Some((at, _))) => Refusal::Impossible(format!("never {at}")),
        (None, None) => Refusal::Impossible("the manager has no fabric to carry it".into()),
    }
}

#[test]
fn the_first_that_can_does_and_the_first_that_may_is_waited_for() {
    let (network, group) = (NetworkState::default(), group(1, &[2]));
    let name = |result: Result<Plan, Refusal>| result.map(|plan| plan.fabric);
    for answers in all_answers() {
        let numbered: Vec<(usize, Says)> = answers.iter().copied().enumerate().collect();
        let fabrics = list(&answers, |_| false);
        assert_eq!(fabrics.names().collect::<Vec<_>>(), NAMES[..answers.len()]);
        for without in ["absent", "ocs", "orca", "datacast"].map(FabricName::new) {
            let asked: Vec<(usize, Says)> =
                numbered.iter().copied().filter(|(at, _)| NAMES[*at] != without).collect();
            let can = asked.iter().find(|(_, says)| *says == Says::Plan);
            let expected = can.map(|(at, _)| NAMES[*at]).ok_or_else(|| refusal(&asked));
            assert_eq!(
                name(fabrics.plan_without(&network, &group, without)),
                expected,
                "{answers:?} but {without}"
            );
        }
        // One that waits for the best asks no fabric behind the first that may have a path later.
        let waits = list(&answers, |_| false).waiting_for_the_best();
        let first = numbered.iter().find(|(_, says)| *says != Says::Never);
        let expected = match first {
            Some((at, Says::Plan)) => Ok(NAMES[*at]),
            _ => Err(refusal(&numbered)),
        };
        assert_eq!(name(waits.plan(&network, &group)), expected, "{answers:?}");
    }
}

#[test]
fn only_shared_fabrics_serve_streams() {
    let (network, group) = (NetworkState::default(), group(1, &[2]));
    for answers in all_answers() {
        for shared in 0..8usize {
            let fabrics = list(&answers, |at| shared >> at & 1 == 1);
            let asked: Vec<(usize, Says)> =
                answers.iter().copied().enumerate().filter(|(at, _)| shared >> at & 1 == 1).collect();
            let found = fabrics.plan_shared(&network, &group, false).map(|plan| plan.fabric);
            match asked.iter().find(|(_, says)| *says == Says::Plan) {
                Some((at, _)) => assert_eq!(found, Ok(NAMES[*at])),
                None if asked.is_empty() => {
                    assert!(found.unwrap_err().to_string().contains("as a stream needs"))
                }
                None => assert!(found.is_err()),
            }
        }
    }
}

#[test]
fn a_refusal_names_the_drained_parts_that_stand_in_the_way() {
    let servers = (0..8).map(|server| (HostId(server), server));
    let hybrid =
        Hybrid { racks: 4, servers_per_rack: 2, ports_per_rack: 1, splitters: 2, splitter_fanout: 2 };
    let budget =
        PowerBudget { budget_db: 40.0, switch_loss_db: 1.0, splitter_loss_db: 4.0, amplifier_gain_db: 0.0 };
    let attempt_interval = Duration::from_millis(1);
    let config = OcsConfig { hybrid, cascade_max: 3, budget, rate: Rate(1_000_000), attempt_interval };
    let pool = AddressPool::parse("239.255.64.0/24", 7410).unwrap();
    let fabrics = || {
        let ocs = Ocs::new(config, servers.clone(), pool).unwrap();
        Fabrics::new(vec![Box::new(ocs) as Box<dyn Fabric>, Box::new(TcpChain)])
    };
    let part = |splitter| Failure::Resource(Resource::Splitter { splitter });
    let all = group(0, &[2, 4, 6]);
    let why = |network: &NetworkState, group: &Group| {
        let decide = |wish| {
            let mut network = network.clone();
            let request = Pending { wish, ..pending(1, group.clone(), 9) };
            Fcfs.decide(Time::ZERO, &[&request], Draft::new(&mut network), &fabrics()).remove(0)
        };
        let Decision::Accept { passed_over, .. } = decide(Wish::default()) else {
            panic!("a chain serves all")
        };
        let [Passed { fabric: Ocs::NAME, why: PassedWhy::Refused(why) }] = &passed_over[..] else {
            panic!("{passed_over:?}")
        };
        let alone = Wish { fabric: Some(Ocs::NAME), or_fail: true, ..Wish::default() };
        if let Decision::Reject { refusal, .. } = decide(alone) {
            assert_eq!(refusal, *why);
        }
        why.to_string()
    };
    let mut network = NetworkState::default();
    network.take_out(part(0), Cause::Broken);
    assert!(!why(&network, &all).contains("drained"), "what is broken is no operator's doing");
    let mut network = NetworkState::default();
    network.take_out(part(1), Cause::Drained);
    assert!(
        why(&network, &all).ends_with(" (splitter:1 is drained, and would do)"),
        "{}",
        why(&network, &all)
    );
    network.take_out(part(0), Cause::Drained);
    assert!(
        why(&network, &all).ends_with(" (splitter:0, splitter:1 are drained, and all of them are needed)")
    );
    let two = group(0, &[2, 4]);
    assert!(why(&network, &two).ends_with(" (splitter:0, splitter:1 are drained, and any of them would do)"));
    // What keeps the group from circuits is something else.
    network.take_out(Failure::Resource(Resource::CircuitPort { port: 1 }), Cause::Broken);
    assert!(!why(&network, &all).contains("drained"), "{}", why(&network, &all));
}

#[test]
fn a_path_is_its_own_fabrics() {
    let (network, group) = (NetworkState::default(), group(1, &[2]));
    let fabrics = list(&[Says::Never, Says::Plan], |_| false);
    let channel = Channel::Chain { order: vec![HostId(1)] };
    let adopted = |name| fabrics.adopt(name, &network, &group, &channel).map(|plan| plan.fabric);
    assert_eq!(
        (adopted("ocs"), adopted("orca"), adopted("datacast")),
        (None, Some(FabricName::new("orca")), None)
    );
    let old = Plan { fabric: FabricName::new("orca"), ..Stub::new(1, Says::Plan).made() };
    assert_eq!(fabrics.regroup(&network, &old, &group).map(|plan| plan.fabric), Ok(FabricName::new("orca")));
    let other = Plan { fabric: FabricName::new("ocs"), ..old.clone() };
    assert!(
        fabrics
            .regroup(&network, &other, &group)
            .unwrap_err()
            .to_string()
            .contains("cannot change its group")
    );
    let unknown = Plan { fabric: FabricName::new("datacast"), ..old.clone() };
    assert!(
        fabrics.regroup(&network, &unknown, &group).unwrap_err().to_string().contains("no fabric 'datacast'")
    );
    // What a fabric says nothing about, it does not do.
    let stub = Stub::new(1, Says::Plan);
    assert!(!stub.vouches(&group, &old) && !fabrics.vouches(&group, &old));
    assert!(stub.improve(&network).is_empty() && fabrics.improve(&network).is_empty());
    assert!(stub.standing_commands(&network).is_empty() && fabrics.standing_commands(&network).is_empty());
    let command = DeviceCommand::CrossConnect { from: 1, to: 2 };
    assert!(stub.resources_of(&command).is_empty() && fabrics.resources_of(&command).is_empty());
}

/// A fabric that answers a change of the group with another channel is refused: receivers are not told.
#[test]
fn a_channel_that_changes_is_no_change_of_the_group() {
    #[derive(Debug)]
    struct Turns;
    impl Fabric for Turns {
        fn name(&self) -> FabricName {
            FabricName::new("ocs")
        }
        fn plan(&self, _: &NetworkState, _: &Group) -> Result<Plan, Refusal> {
            Ok(Stub::new(0, Says::Plan).made())
        }
        fn replan(&self, _: &NetworkState, _: &Failure) -> Vec<Replan> {
            Vec::new()
        }
        fn adopt(&self, _: &NetworkState, _: &Group, _: &Channel) -> Option<Plan> {
            None
        }
        fn regroup(&self, _: &NetworkState, _: &Plan, _: &Group) -> Result<Plan, Refusal> {
            Ok(Plan {
                channel: Channel::Chain { order: vec![HostId(77)] },
                ..Stub::new(0, Says::Plan).made()
            })
        }
    }
    let fabrics = Fabrics::new(vec![Box::new(Turns)]);
    let old = Stub::new(0, Says::Plan).made();
    let refused = fabrics.regroup(&NetworkState::default(), &old, &group(1, &[2])).unwrap_err();
    assert!(refused.to_string().contains("channel would change"), "{refused}");
}

/// After a failure: what the own fabric saves stays there, what it loses another one may save, unless the
/// source is down; and two new plans never hold the same.
#[test]
fn plans_after_failures_do_not_collide() {
    let touched = |fabrics: &Fabrics, network: &NetworkState, failure| fabrics.replan(network, &failure);
    let splitter = Resource::Splitter { splitter: 9 };
    let running = |count: u64| {
        let mut network = NetworkState::default();
        for id in 0..count {
            let resources = vec![if id == 0 { splitter } else { Resource::CircuitPort { port: id as u32 } }];
            let uses = [polycast_planning::Part::Node { fabric: FabricName::new("ocs"), node: 1 }];
            let uses = uses.into_iter().collect();
            let plan = Plan { resources, uses, ..Stub::new(0, Says::Plan).made() };
            assert!(network.hold(PlanId(id), group(id as u32, &[50]), plan));
        }
        network
    };
    let part = Failure::Part(polycast_planning::Part::Node { fabric: FabricName::new("ocs"), node: 1 });
    let replaced = |replan: &Replan| match &replan.outcome {
        ReplanOutcome::Replaced(plan) => Some(plan.fabric.as_str().to_string()),
        ReplanOutcome::Lost(_) => None,
    };
    // Saved by its own fabric, lost and saved by the next, or lost.
    for (answers, expected) in [(vec![Says::Plan], Some("ocs")), (vec![Says::Never], None)] {
        let found = touched(&list(&answers, |_| false), &running(1), part);
        assert_eq!(found.iter().map(replaced).collect::<Vec<_>>(), [expected.map(str::to_string)]);
    }
    // A chain serves those whose own fabric has nothing left, but not those whose source is down.
    let pair = || Fabrics::new(vec![Box::new(Stub::new(0, Says::Never)), Box::new(TcpChain)]);
    assert_eq!(
        touched(&pair(), &running(1), part).iter().map(replaced).collect::<Vec<_>>(),
        [Some("tcp-chain".to_string())]
    );
    let down = touched(&pair(), &running(1), Failure::Host(HostId(0)));
    assert_eq!(down.iter().map(replaced).collect::<Vec<_>>(), [None]);
    // Both are given the same splitter: the second one loses its path.
    let found = touched(&list(&[Says::Plan], |_| false), &running(2), part);
    assert_eq!(found.iter().map(replaced).collect::<Vec<_>>(), [Some("ocs".to_string()), None]);
    assert!(
        matches!(&found[1].outcome, ReplanOutcome::Lost(Refusal::Busy(why)) if why.contains("took its place"))
    );
}

/// Receivers hear on as long as nothing changes that they were told.
#[test]
fn channels_are_heard_like_each_other() {
    let multicast = |rate: u64, port: u16| Channel::Multicast {
        group: ([239, 1, 2, 3].into(), port),
        rate: Some(Rate(rate)),
        attempt_interval: Duration(1),
    };
    let label = |session: u32, label: &[u8], port: u16, racks: &[u32]| Channel::Label {
        group: ([239, 1, 2, 3].into(), port),
        session,
        encoding: polycast_planning::labels::Encoding::Filter,
        label: label.to_vec(),
        further: Vec::new(),
        racks: racks.iter().map(|&rack| (HostId(rack), rack)).collect(),
        left_out: Vec::new(),
        rate: None,
    };
    let routes = |tree_count: u32, credits: u32, trees: Vec<TreeRoutes>| Channel::SourceRoutes {
        tree_count,
        pulling: Pulling { payload_bytes: 9, credits, link_rate: Rate(1), tuning: Default::default() },
        trees,
    };
    let tree = TreeRoutes {
        tree: polycast_planning::trees::SteinerTree { spanning_tree: 0, repaired: false, nodes: Vec::new() },
        routes: Vec::new(),
    };
    let chain = |order: &[u32]| Channel::Chain { order: order.iter().map(|&host| HostId(host)).collect() };
    // Channels of one class are heard like each other.
    let classes = [
        vec![multicast(1, 5)],
        vec![multicast(2, 5)],
        vec![multicast(1, 6)],
        vec![label(1, &[1, 2], 5, &[]), label(1, &[3, 4], 5, &[7])],
        vec![label(1, &[1, 2, 3], 5, &[])],
        vec![label(2, &[1, 2], 5, &[])],
        vec![label(1, &[1, 2], 6, &[])],
        vec![routes(2, 5, vec![]), routes(2, 5, vec![tree])],
        vec![routes(3, 5, vec![])],
        vec![routes(2, 6, vec![])],
        vec![chain(&[1, 2])],
        vec![chain(&[2, 1])],
    ];
    for (at, class) in classes.iter().enumerate() {
        for (other_at, other) in classes.iter().enumerate() {
            for (one, two) in class.iter().flat_map(|one| other.iter().map(move |two| (one, two))) {
                assert_eq!(one.is_heard_like(two), at == other_at, "{one:?} and {two:?}");
            }
        }
    }
}

/// Plans are written down and read again; what cannot be the name of a fabric is refused.
#[test]
fn plans_come_back_from_text() {
    for name in ["ip-multicast", "tcp-chain", "ocs", "shufflecast", "orca", "datacast"] {
        let plan = Plan { fabric: FabricName::new(name), ..Stub::new(0, Says::Plan).made() };
        let text = serde_json::to_string(&plan).unwrap();
        assert!(text.contains(&format!("\"{name}\"")), "{text}");
        assert_eq!(serde_json::from_str::<Plan>(&text).unwrap(), plan);
        let refused = serde_json::from_str::<Plan>(&text.replace(name, "Carrier Pigeon")).unwrap_err();
        assert!(refused.to_string().contains("a fabric's name has 1 to 32"), "{refused}");
    }
}

#[test]
fn pools_hold_only_addresses_that_hosts_may_use() {
    let pool = |first: [u8; 4], count, port| AddressPool::new(first.into(), count, port).is_ok();
    assert!(pool([224, 0, 1, 0], 1, 1) && !pool([224, 0, 0, 255], 1, 1) && !pool([224, 0, 0, 255], 2, 1));
    assert!(
        pool([239, 255, 255, 255], 1, 1) && !pool([239, 255, 255, 255], 2, 1) && !pool([240, 0, 0, 0], 1, 1)
    );
    assert!(pool([239, 255, 255, 0], 256, 65_535) && !pool([239, 255, 255, 0], 257, 1));
    assert!(!pool([239, 1, 1, 1], 0, 1) && !pool([239, 1, 1, 1], 1, 0) && !pool([239, 1, 1, 1], u32::MAX, 1));
    let parse = |text: &str| AddressPool::parse(text, 9).map(|pool| (pool.count(), pool.to_string()));
    assert_eq!(parse("239.1.1.1/32"), Ok((1, "239.1.1.1 to 239.1.1.1, port 9".into())));
    assert_eq!(parse("232.0.0.0/5").map(|pool| pool.0), Ok(1 << 27));
    assert!(parse("224.0.0.0/4").unwrap_err().to_string().contains("268435456 addresses from 224.0.0.0"));
    assert!(
        parse("224.0.0.0/3").is_err() && parse("239.1.1.1/33").is_err() && parse("239.1.1.1/31").is_err()
    );
    // The pool is lent round, each address once, from the turn on.
    let fabric = IpMulticast::new(AddressPool::new([239, 1, 1, 254].into(), 5, 9).unwrap())
        .with_rate(Some(Rate(7)))
        .with_attempt_interval(Duration(3));
    assert!(fabric.is_shared() && !TcpChain.is_shared());
    for turn in [0, 1, 4, 5, 13] {
        let mut network = NetworkState::new(turn);
        let mut lent = Vec::new();
        while let Ok(plan) = fabric.plan(&network, &group(1, &[2])) {
            let Channel::Multicast {
                group: (address, 9),
                rate: Some(Rate(7)),
                attempt_interval: Duration(3),
            } = plan.channel
            else {
                panic!("{plan:?}")
            };
            let IpAddr::V4(address) = address else { panic!("{address} is of no pool") };
            lent.push(address.to_bits());
            assert!(network.hold(PlanId(lent.len() as u64), group(1, &[2]), plan));
        }
        // The turn goes on with each plan, so every second address is passed over and comes later.
        let (first, mut sorted) = (u32::from_be_bytes([239, 1, 1, 254]), lent.clone());
        sorted.sort_unstable();
        assert_eq!(sorted, (first..first + 5).collect::<Vec<_>>());
        assert_eq!(lent[0], first + (turn % 5) as u32);
    }
    let empty = Group::of_one(HostId(1), [].into());
    assert!(
        fabric.plan(&NetworkState::default(), &empty).is_err()
            && TcpChain.plan(&NetworkState::default(), &empty).is_err()
    );
    let adopted =
        fabric.adopt(&NetworkState::default(), &group(1, &[2]), &Channel::Chain { order: Vec::new() });
    assert_eq!(adopted, None);
}

#[test]
fn a_host_has_one_place_and_a_place_one_host() {
    // A host that is named again has moved; where it was is free for another one.
    let places = Places::new(4, [(HostId(7), 0), (HostId(7), 3), (HostId(8), 0), (HostId(8), 0)]).unwrap();
    assert_eq!([7, 8, 9].map(|host| places.get(HostId(host))), [Some(3), Some(0), None]);
    assert!(Places::new(4, [(HostId(7), 0), (HostId(8), 1), (HostId(7), 1)]).is_err());
    assert!(Places::new(4, [(HostId(7), 3)]).is_ok() && Places::new(4, [(HostId(7), 4)]).is_err());
    assert!(Places::new(0, []).is_ok() && Places::new(0, [(HostId(1), 0)]).is_err());
}

fn pending(id: u64, group: Group, bytes: u64) -> Pending {
    Pending {
        id: RequestId(id),
        group,
        object_bytes: bytes,
        remaining_bytes: bytes,
        divisible: true,
        since: Time(id),
        wish: Default::default(),
    }
}

fn waits(decisions: &[Decision]) -> Vec<u64> {
    let waiting = decisions.iter().filter_map(|decision| match decision {
        Decision::Wait { request, .. } => Some(request.0),
        _ => None,
    });
    waiting.collect()
}

/// First come, first served: with some addresses left, the oldest requests get them, and the others wait.
#[test]
fn no_request_overtakes_the_oldest() {
    let fabrics = Fabrics::new(vec![Box::new(IpMulticast::new(
        AddressPool::new([239, 1, 1, 0].into(), 2, 9).unwrap(),
    ))]);
    let requests: Vec<Pending> = (0..5).map(|id| pending(id, group(id as u32, &[50]), 9)).collect();
    let decisions = Fcfs.decide(
        Time(0),
        &requests.iter().collect::<Vec<_>>(),
        Draft::new(&mut NetworkState::default()),
        &fabrics,
    );
    let granted: Vec<u64> = decisions
        .iter()
        .filter_map(|decision| match decision {
            Decision::Accept { request, bytes: 9, .. } => Some(request.0),
            _ => None,
        })
        .collect();
    assert_eq!(granted, [0, 1]);
    assert!(waits(&decisions).iter().all(|id| *id >= 2));
}

proptest! {
    /// The order of the greedy matching is that of bytes times receivers over racks, as fractions; of equals
    /// the older goes first. A host without a rack is one for itself.
    #[test]
    fn the_most_bytes_for_a_rack_go_first(
        requests in proptest::collection::vec((0u64..40, proptest::collection::btree_set(0u32..9, 2..5)), 1..7),
    ) {
        let fabrics = Fabrics::new(vec![Box::new(TcpChain)]);
        // Hosts 0 to 5 are in the racks 0 to 2; 6 to 8 have none that is known.
        let rack = |host: u32| if host < 6 { host / 2 } else { 100 + host };
        let mut scheduler = GreedyMatching::new((0..6).map(|host| (HostId(host), rack(host))));
        let pending: Vec<Pending> = requests
            .iter()
            .zip(0..)
            .map(|((bytes, members), id)| {
                let members: Vec<u32> = members.iter().copied().collect();
                pending(id, group(members[0], &members[1..]), *bytes)
            })
            .collect();
        let decisions = scheduler.decide(
            Time(0), &pending.iter().collect::<Vec<_>>(), Draft::new(&mut NetworkState::default()), &fabrics,
        );
        let order: Vec<u64> = decisions
            .iter()
            .map(|decision| match decision {
                Decision::Accept { request, .. } => request.0,
                other => panic!("{other:?}"),
            })
            .collect();
        // Over 2520 = lcm(1 .. 9) the fractions are whole numbers.
        let worth = |id: u64| {
            let (bytes, members) = &requests[id as usize];
            let racks: std::collections::BTreeSet<u32> = members.iter().map(|&host| rack(host)).collect();
            bytes * (members.len() as u64 - 1) * 2520 / racks.len() as u64
        };
        let mut expected: Vec<u64> = (0..pending.len() as u64).collect();
        expected.sort_by_key(|&id| (std::cmp::Reverse(worth(id)), id));
        prop_assert_eq!(order, expected);
    }
}

/// A fabric whose paths have a rate of their own, and circuits that take their time; it counts how often it
/// is asked.
#[derive(Clone, Debug)]
struct Paced {
    stub: Stub,
    rate: Rate,
    has_circuits: bool,
    asked: Arc<AtomicUsize>,
}

impl Paced {
    fn made(&self) -> Plan {
        let commands =
            if self.has_circuits { vec![DeviceCommand::CrossConnect { from: 1, to: 2 }] } else { vec![] };
        let group = ([239, 1, 1, self.stub.number as u8].into(), 7410);
        let channel = Channel::Multicast { group, rate: Some(self.rate), attempt_interval: Duration::ZERO };
        Plan { commands: commands.into(), channel, ..self.stub.made() }
    }
}

impl Fabric for Paced {
    fn name(&self) -> FabricName {
        self.stub.name
    }

    fn plan(&self, network: &NetworkState, group: &Group) -> Result<Plan, Refusal> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let made = self.stub.plan(network, group).map(|_| self.made())?;
        if made.resources.iter().all(|resource| network.is_free(resource)) {
            Ok(made)
        } else {
            Err(Refusal::Busy(format!("busy {}", self.stub.number)))
        }
    }

    fn replan(&self, _: &NetworkState, _: &Failure) -> Vec<Replan> {
        Vec::new()
    }

    fn adopt(&self, _: &NetworkState, _: &Group, _: &Channel) -> Option<Plan> {
        None
    }
}

const LEARNED_ONE: u64 = 1 << 16;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]
    /// Not all fabrics are asked, and the choice is the same as if they were: of those within 10 ms or an
    /// eighth of the best the first.
    #[test]
    fn who_is_not_asked_would_not_have_been_chosen(
        says in proptest::collection::vec((0usize..4, 0u32..40, any::<bool>(), 16u64..256, 16u64..256), 1..4),
        receivers in 1u32..30,
        magnitude in 0u32..40,
    ) {
        let asked = Arc::new(AtomicUsize::new(0));
        let paced: Vec<Paced> = says.iter().enumerate().map(|(at, (says, rate, has_circuits, ..))| {
            let says = [Says::Plan, Says::Plan, Says::Busy, Says::Never][*says];
            let rate = Rate(1_000 << (rate % 28));
            Paced { stub: Stub::new(at as u32, says), rate, has_circuits: *has_circuits, asked: Arc::clone(&asked) }
        }).collect();
        let boxed = paced.iter().map(|one| Box::new(one.clone()) as Box<dyn Fabric>).collect();
        let mut fabrics = Fabrics::new(boxed).choosing_by_time(true);
        let now = Time(5);
        let learned = says.iter().zip(&NAMES).map(|((.., set_up, carrying), fabric)| {
            let part = LEARNED_ONE / 64;
            Learned { fabric: *fabric, set_up: set_up * part, carrying: carrying * part, at: now }
        });
        fabrics.resume(now, learned.collect()).unwrap();
        let group = group(0, &(1..=receivers).collect::<Vec<_>>());
        let mut network = NetworkState::default();
        let bytes = 1u64 << magnitude;
        let takes: Vec<(FabricName, Duration)> = paced.iter().filter(|one| one.stub.says == Says::Plan).map(|one| {
            let (_, takes) = fabrics.estimate(Some(now), &network, &one.made(), &group, bytes).unwrap();
            (one.stub.name, takes)
        }).collect();
        let best = takes.iter().map(|(_, takes)| *takes).min();
        let about = best.map(|best| best + Duration::from_millis(10).max(best / 8));
        let expected = takes.iter().find(|(_, takes)| Some(*takes) <= about).map(|(fabric, _)| *fabric);
        let request = pending(1, group, bytes);
        let decisions = Fcfs.decide(now, &[&request], Draft::new(&mut network).at(now), &fabrics);
        let chosen = decisions.iter().find_map(|decision| match decision {
            Decision::Accept { plan, .. } => Some(plan.fabric),
            _ => None,
        });
        prop_assert_eq!(chosen, expected);
        // With a session of 4 ms and 1 ms a receiver, nothing is gained of note by another one.
        let session = Duration::from_millis(4 + u64::from(receivers));
        let quickest = says.iter().map(|(.., set_up, _)| session * *set_up / 64).min().unwrap();
        let first = takes.first().filter(|(fabric, _)| *fabric == NAMES[0]);
        if first.is_some_and(|(_, takes)| *takes <= quickest + Duration::from_millis(10)) {
            prop_assert_eq!(asked.load(Ordering::Relaxed), 1, "one plan is enough");
        }
    }
}

fn paced(number: u32, says: Says, rate: Rate) -> Paced {
    let asked = Arc::new(AtomicUsize::new(0));
    Paced { stub: Stub::new(number, says), rate, has_circuits: false, asked }
}

fn fabrics_of(paced: &[Paced]) -> Fabrics {
    Fabrics::new(paced.iter().map(|one| Box::new(one.clone()) as Box<dyn Fabric>).collect())
}

fn refused((at, says): (usize, Says)) -> Passed {
    Passed { fabric: NAMES[at], why: PassedWhy::Refused(refusal(&[(at, says)])) }
}

/// Without a choice by time, the first that has a path gets a request however much faster those behind it are
/// estimated; with patience for the best, the first that may have one later is waited for.
#[test]
fn by_order_no_estimate_counts() {
    let request = pending(1, group(0, &[1, 2]), 1_000_000);
    for answers in all_answers() {
        let numbered: Vec<(usize, Says)> = answers.iter().copied().enumerate().collect();
        let rates = [1_000, 1_000_000, 1_000_000_000];
        let paced: Vec<Paced> =
            numbered.iter().map(|(at, says)| paced(*at as u32, *says, Rate(rates[*at]))).collect();
        for is_patient in [false, true] {
            let fabrics = fabrics_of(&paced).estimating(Estimator::default());
            let fabrics = if is_patient { fabrics.waiting_for_the_best() } else { fabrics };
            assert!(!fabrics.chooses_by_time());
            let mut network = NetworkState::default();
            let decisions = Fcfs.decide(Time(5), &[&request], Draft::new(&mut network).at(Time(5)), &fabrics);
            let stops = |says: Says| says == Says::Plan || is_patient && says == Says::Busy;
            let ends = numbered.iter().position(|(_, says)| stops(*says));
            let asked = &numbered[..ends.unwrap_or(numbered.len())];
            let is_busy = |(_, says): &(usize, Says)| *says == Says::Busy;
            match (&decisions[..], ends.map(|at| answers[at])) {
                ([Decision::Accept { plan, passed_over, .. }], Some(Says::Plan)) => {
                    assert_eq!(plan.fabric, NAMES[asked.len()], "{answers:?}");
                    assert_eq!(*passed_over, asked.iter().copied().map(refused).collect::<Vec<_>>());
                }
                ([Decision::Wait { until: None, .. }], Some(Says::Busy)) => {}
                ([Decision::Wait { until: None, .. }], None) if asked.iter().any(is_busy) => {}
                ([Decision::Reject { refusal: why, .. }], None) if !asked.iter().any(is_busy) => {
                    assert_eq!(*why, refusal(asked), "{answers:?}");
                }
                other => panic!("{answers:?}, patient {is_patient}: {other:?}"),
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]
    /// One fabric is free, and another one will be: it is waited for where that gains time and patience is
    /// asked for. Else it is named beside the chosen one where it is before it, or where it would have been
    /// faster with the wait.
    #[test]
    fn one_that_is_in_use_is_waited_for_or_named_where_it_would_be_faster(
        free_rate in 0u32..20, busy_rate in 0u32..20, magnitude in 10u32..34, busy_first: bool, waits: bool,
        wait in prop_oneof![(1u64..2_000_000_000).prop_map(Ok), (-1i64..=1).prop_map(Err)],
    ) {
        let now = Time(5);
        let (free, busy) = if busy_first { (1, 0) } else { (0, 1) };
        let of = |number: u32| {
            let rate = if number == free { free_rate } else { busy_rate };
            paced(number, Says::Plan, Rate(100_000 << rate))
        };
        let paced = [of(0), of(1)];
        let fabrics = fabrics_of(&paced).choosing_by_time(waits);
        prop_assert!(fabrics.chooses_by_time());
        let (bytes, group) = (1u64 << magnitude, group(0, &[1, 2]));
        let mut network = NetworkState::default();
        let takes = |number: u32| {
            let plan = paced[number as usize].made();
            fabrics.estimate(Some(now), &network, &plan, &group, bytes).unwrap().1
        };
        let (own, other) = (takes(free), takes(busy));
        // Anything, or as long as makes the two equal, or nearly so.
        let even = |step: i64| own.0.saturating_sub(other.0).saturating_add_signed(step).max(1);
        let wait = Duration(wait.unwrap_or_else(even));
        prop_assert!(network.hold(PlanId(9), self::group(3, &[4]), paced[busy as usize].made()));
        network.expect_end(PlanId(9), now + wait);
        let request = pending(1, group, bytes);
        let decisions = Fcfs.decide(now, &[&request], Draft::new(&mut network).at(now), &fabrics);
        // One behind the free one is asked unless it could gain next to nothing.
        let is_asked = paced[busy as usize].asked.load(Ordering::Relaxed) > 0;
        prop_assert!(is_asked || own <= other + Duration::from_millis(10).max(other / 8), "{:?}, {:?}", own, other);
        let is_faster = is_asked && wait + other < own;
        match &decisions[..] {
            [Decision::Wait { until, .. }] => {
                prop_assert!(waits && is_faster, "it gains nothing: {:?} and {:?}, or {:?}", wait, other, own);
                prop_assert_eq!(*until, Some(now + wait));
            }
            [Decision::Accept { plan, passed_over, .. }] => {
                prop_assert!(!(waits && is_faster), "{:?} and {:?} are less than {:?}", wait, other, own);
                prop_assert_eq!(plan.fabric, NAMES[free as usize]);
                let named: Vec<FabricName> = passed_over.iter().map(|passed| passed.fabric).collect();
                let expected = if busy_first || is_faster { vec![NAMES[busy as usize]] } else { vec![] };
                prop_assert_eq!(named, expected, "{:?} and {:?}, or {:?}", wait, other, own);
                let says_so = |passed: &Passed| {
                    matches!(&passed.why, PassedWhy::Slower(why) if why.contains("with the wait"))
                };
                prop_assert!(passed_over.iter().all(says_so), "{:?}", passed_over);
            }
            other => prop_assert!(false, "{:?}", other),
        }
        prop_assert!(network.running().count() == 1, "what was thought away is back");
    }
}
