//! Whatever agents and devices say, in whatever order: the manager's core does not panic, and keeps to its
//! bounds.

use super::circuits::circuits;
use super::{HOME, config};
use polycast_planning::ip_multicast::{AddressPool, IpMulticast};
use polycast_planning::ocs::Ocs;
use polycast_planning::tcp_chain::TcpChain;
use polycast_planning::{
    Channel, DeviceCommand, FabricName, Fabrics, Failure, Fcfs, HostId, PartName, Plan, PlanId, Pulling,
    RackPort, Resource, Wish,
};
use polycast_protocol::leases::{
    AgentKey, GROUPS_FROM, HeldLease, Input, Join, Leases, LeasesConfig, OnDeviceFailure, PathRequest,
    Receivers, STREAMS_FROM, known_hosts,
};
use polycast_types::{AppId, DataId, Duration, ObjectId, Rate, Time};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

const NAMES: [&str; 5] = ["host-0", "host-1", "host-2", "host-3", "host-4"];

/// Four racks of one host and one fibre, then addresses, then a chain.
fn manager(on_device_failure: OnDeviceFailure) -> Leases {
    let pool = |third| AddressPool::new([239, 255, third, 0].into(), 2, 7410).unwrap();
    let places: Vec<_> = known_hosts(NAMES).map(|(_, host)| host).zip(0..4).collect();
    let ocs = Ocs::new(circuits(4), places, pool(64)).unwrap();
    let config = LeasesConfig {
        pending_max: 4,
        leases_max: 5,
        agents_max: 4,
        kept_max: 2,
        grant_bytes_max: 500,
        claims: Some(Duration::from_secs(4)),
        on_device_failure,
        first_plan: PlanId(1),
        ..config()
    };
    let fabrics = Fabrics::new(vec![Box::new(ocs), Box::new(IpMulticast::new(pool(65))), Box::new(TcpChain)])
        .choosing_by_time(true);
    let mut manager = Leases::new(config, fabrics, Box::new(Fcfs));
    for name in NAMES {
        manager.know_host(name);
    }
    manager
}

/// Small numbers, which meet, and the largest ones.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![12 => 0u64..8, 1 => any::<u64>(), 1 => (0u64..3).prop_map(|n| u64::MAX - n)]
}

fn small() -> impl Strategy<Value = u32> {
    prop_oneof![12 => 0u32..7, 1 => any::<u32>()]
}

fn request_number() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => 0u64..4,
        1 => (0u64..3).prop_map(|n| STREAMS_FROM + n),
        2 => (0u64..3).prop_map(|n| GROUPS_FROM + n),
    ]
}

fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        20 => (0usize..5).prop_map(|n| NAMES[n].to_string()),
        1 => any::<String>(),
        1 => Just("all".to_string()),
    ]
}

fn names() -> impl Strategy<Value = Vec<String>> {
    vec(name(), 0..4)
}

fn key() -> impl Strategy<Value = AgentKey> {
    let incarnation = prop_oneof![12 => Just(1u64), 1 => number()];
    (name(), incarnation).prop_map(|(name, incarnation)| AgentKey { name, incarnation })
}

fn span() -> impl Strategy<Value = Option<Duration>> {
    option::of(prop_oneof![Just(0u64), 0u64..20_000_000_000, any::<u64>()].prop_map(Duration))
}

fn resource() -> impl Strategy<Value = Resource> {
    prop_oneof![
        small().prop_map(|port| Resource::CircuitPort { port }),
        (0u32..2).prop_map(|splitter| Resource::Splitter { splitter }),
        (64u8..66, 0u8..2).prop_map(|(third, last)| {
            Resource::MulticastAddress { address: [239, 255, third, last].into(), port: 7410 }
        }),
    ]
}

fn command() -> impl Strategy<Value = DeviceCommand> {
    let port = prop_oneof![
        small().prop_map(|host| RackPort::Host(HostId(host))),
        small().prop_map(RackPort::Circuit),
        Just(RackPort::FromSplitters),
        (0u32..3).prop_map(RackPort::Splitter),
    ];
    prop_oneof![
        4 => (small(), small()).prop_map(|(from, to)| DeviceCommand::CrossConnect { from, to }),
        1 => (small(), 0u8..2, port).prop_map(|(rack, last, from)| {
            DeviceCommand::RackRule { rack, group: [239, 255, 64, last].into(), from, to: vec![from] }
        }),
    ]
}

fn channel() -> impl Strategy<Value = Channel> {
    let pulling = Pulling { payload_bytes: 0, credits: 0, link_rate: Rate(0), tuning: Default::default() };
    let rate = option::of(prop_oneof![Just(0u64), any::<u64>()].prop_map(Rate));
    prop_oneof![
        6 => (64u8..66, 0u8..2, rate, any::<u64>()).prop_map(|(third, last, rate, interval)| {
            let attempt_interval = Duration(interval);
            Channel::Multicast { group: ([239, 255, third, last].into(), 7410), rate, attempt_interval }
        }),
        3 => vec(small().prop_map(HostId), 0..4).prop_map(|order| Channel::Chain { order }),
        1 => small().prop_map(move |tree_count| Channel::SourceRoutes { tree_count, pulling, trees: vec![] }),
    ]
}

fn plan() -> impl Strategy<Value = Plan> {
    let fabric = prop_oneof![Just("ocs"), Just("ip-multicast"), Just("tcp-chain"), Just("orca")];
    (fabric, vec(resource(), 0..4), vec(command(), 0..3), channel()).prop_map(
        |(fabric, resources, commands, channel)| Plan {
            fabric: FabricName::new(fabric),
            resources,
            uses: Default::default(),
            commands: commands.into(),
            channel,
        },
    )
}

fn object(data: u64) -> ObjectId {
    ObjectId { app: AppId::default(), data: DataId(data) }
}

fn held() -> impl Strategy<Value = HeldLease> {
    let fabric = prop_oneof![Just("ocs"), Just("ip-multicast"), Just("tcp-chain"), Just("elsewhere")];
    (request_number(), number(), names(), number(), fabric, channel(), span(), option::of(plan())).prop_map(
        |(request, plan, receivers, bytes, fabric, channel, left, kept)| {
            // Some plans are told as a whole.
            let channel =
                kept.as_ref().filter(|_| bytes % 4 > 0).map_or(channel, |plan| plan.channel.clone());
            let (plan, fabric, object) = (PlanId(plan), fabric.to_string(), object(request));
            HeldLease {
                request,
                plan,
                object,
                further_sources: Vec::new(),
                receivers,
                bytes,
                fabric,
                channel,
                left,
                kept,
                only: bytes % 3 == 0,
            }
        },
    )
}

fn failures() -> impl Strategy<Value = Vec<Failure>> {
    let failure = prop_oneof![
        4 => resource().prop_map(Failure::Resource),
        1 => small().prop_map(|host| Failure::Host(HostId(host))),
    ];
    vec(failure, 0..3)
}

/// The wish of a request of this number.
fn wish(request: u64) -> Wish {
    let fabric = [None, Some(Ocs::NAME), Some(TcpChain::NAME), Some(FabricName::new("none"))];
    Wish { fabric: fabric[(request % 4) as usize], or_fail: request.is_multiple_of(3), ..Wish::default() }
}

fn input() -> impl Strategy<Value = Input> {
    let address = (0u8..2, 0u16..2).prop_map(|(last, port)| ([10, 0, 0, last].into(), port));
    let receivers = prop_oneof![1 => Just(Receivers::All), 3 => names().prop_map(Receivers::Named)];
    let request = (key(), request_number(), number(), number(), receivers, any::<bool>(), span()).prop_map(
        |(agent, request, object_bytes, remaining_bytes, receivers, divisible, lease)| {
            let object = object(request);
            {
                let wish = wish(request);
                PathRequest {
                    agent,
                    request,
                    object,
                    object_bytes,
                    remaining_bytes,
                    further_sources: Vec::new(),
                    receivers,
                    divisible,
                    lease,
                    wish,
                }
            }
        },
    );
    let asked = || (key(), request_number()).prop_map(|(agent, request)| agent.request(request));
    prop_oneof![
        8 => (key(), address, vec(held(), 0..3)).prop_map(|(agent, address, leases)| {
            Input::Join(Join { agent, address, from: HOME, leases })
        }),
        3 => (key(), vec(number().prop_map(PlanId), 0..6)).prop_map(|(agent, leases)| {
            Input::Heartbeat { agent, leases }
        }),
        1 => key().prop_map(|agent| Input::Leave { agent, keeps: false }),
        2 => (key(), number()).prop_map(|(agent, session)| Input::Parted { agent, session }),
        2 => (number(), any::<bool>()).prop_map(|(plan, works)| {
            Input::SetUp { plan: PlanId(plan), result: if works { Ok(()) } else { Err("no".into()) } }
        }),
        2 => failures().prop_map(|failures| Input::Failed { failures }),
        2 => failures().prop_map(|failures| Input::Repaired { failures }),
        1 => vec(command(), 0..4).prop_map(|commands| Input::Found { commands }),
        8 => request.prop_map(Input::Request),
        2 => asked().prop_map(|request| Input::Withdraw { request }),
        5 => (asked(), span(), names(), names()).prop_map(|(request, time, add, remove)| {
            Input::Extend { request, time, add, remove, sources: Vec::new() }
        }),
        2 => (asked(), number()).prop_map(|(request, plan)| Input::Release { request, plan: PlanId(plan) }),
        2 => (asked(), number(), names(), any::<bool>(), option::of(any::<u64>())).prop_map(
            |(request, plan, unreached, reached_all, took)| {
                let (plan, took) = (PlanId(plan), took.map(Duration));
                Input::Fared { request, plan, unreached, reached_all, took }
            }
        ),
        1 => (key(), names(), names()).prop_map(|(agent, unreachable, reachable)| {
            Input::Reached { agent, unreachable, reachable }
        }),
        1 => (number(), vec(small().prop_map(HostId), 0..5)).prop_map(|(plan, hosts)| {
            Input::Unlit { plan: PlanId(plan), receivers: hosts.into_iter().collect() }
        }),
        1 => (0u32..4, small(), any::<bool>()).prop_map(|(kind, number, is_out)| {
            let part = match kind {
                0 => PartName::Port(number),
                1 => PartName::Splitter(number),
                2 => PartName::Tor(number),
                _ => PartName::CircuitSwitch,
            };
            Input::Drain { part, is_out }
        }),
        1 => (key(), any::<bool>())
            .prop_map(|(agent, is_out)| Input::DrainHost { name: agent.name, is_out }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn a_manager_survives_all_words(
        inputs in vec((input(), prop_oneof![9 => 0u64..50, 1 => 0u64..40_000]), 1..100), waits: bool,
    ) {
        let mut manager = manager(if waits { OnDeviceFailure::Wait } else { OnDeviceFailure::Fallback });
        let mut now = Time(1);
        for (input, millis) in inputs {
            now += Duration::from_millis(millis);
            manager.handle(now, input);
            let outputs = std::iter::from_fn(|| manager.poll(now)).take(10_001).count();
            prop_assert!(outputs <= 10_000, "it never comes to an end");
            manager.check();
            prop_assert!(manager.leases().count() <= 5 && manager.pending().len() <= 4);
            prop_assert!(manager.members().count() <= 4);
            prop_assert!(manager.deadline().is_none_or(|at| at > now));
        }
        // What is restored of it is the same.
        let mut restored = self::manager(OnDeviceFailure::Wait);
        assert_eq!(restored.restore(now, manager.records()), []);
        prop_assert_eq!(restored.records(), manager.records());
    }
}
