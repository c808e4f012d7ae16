//! Nothing dead is lent twice: parts that are suspected rest, and parts that operators take out are not lent.

use polycast_planning::ip_multicast::AddressPool;
use polycast_planning::ocs::{Ocs, OcsConfig};
use polycast_planning::tcp_chain::TcpChain;
use polycast_planning::{
    Cause, FabricName, Fabrics, Failure, Fcfs, HostId, PartName, Plan, PlanId, RequestId, Resource, Wish,
};
use polycast_protocol::leases::{
    AgentKey, Grant, Input, Join, Leases, LeasesConfig, OnDeviceFailure, Output, PathRequest, Receivers,
    Record, RecordKey, SessionsConfig, Suspect,
};
use polycast_topology::Hybrid;
use polycast_topology::optics::{PowerBudget, splitter_loss_db};
use polycast_types::{AppId, DataId, Duration, ObjectId, Rate, Time};
use proptest::prelude::*;
use std::collections::BTreeSet;

const HOME: core::net::IpAddr = core::net::IpAddr::V4(core::net::Ipv4Addr::LOCALHOST);
const SESSIONS: SessionsConfig =
    SessionsConfig { reconnect: Duration::from_secs(3_600), alive: Duration::ZERO, of_address_max: 1_024 };
const RACKS: u32 = 5;

fn empty_manager() -> Leases {
    let config = LeasesConfig {
        lease: Duration::from_secs(1 << 30),
        silence: Duration::from_secs(1 << 30),
        sessions: SESSIONS,
        pending_max: 10,
        leases_max: 10,
        agent_leases_max: 10,
        receiver_leases_max: 1_000,
        grant_bytes_max: u64::MAX,
        agents_max: 10,
        on_device_failure: OnDeviceFailure::Fallback,
        kept_max: 4,
        patience: Duration::ZERO,
        claims: None,
        recorded: true,
        first_plan: PlanId(1),
    };
    let hybrid =
        Hybrid { racks: RACKS, servers_per_rack: 1, ports_per_rack: 1, splitters: 4, splitter_fanout: 2 };
    let budget = PowerBudget {
        budget_db: 30.0,
        switch_loss_db: 1.0,
        splitter_loss_db: splitter_loss_db(2),
        amplifier_gain_db: 0.0,
    };
    let rate = Rate(1_000_000_000);
    let ocs = OcsConfig { hybrid, cascade_max: 3, budget, rate, attempt_interval: Duration::from_millis(1) };
    let pool = AddressPool::new([239, 255, 64, 0].into(), 64, 7410).unwrap();
    let ocs = Ocs::new(ocs, (0..RACKS).map(|host| (HostId(host), host)), pool).unwrap();
    Leases::new(config, Fabrics::new(vec![Box::new(ocs), Box::new(TcpChain)]), Box::new(Fcfs))
}

/// A host in each of the racks, four splitters of two outputs.
fn manager() -> Leases {
    let mut manager = empty_manager();
    for host in 0..RACKS {
        let join = Join {
            agent: agent(host),
            address: ([10, 0, 0, host as u8].into(), 7401),
            from: HOME,
            leases: Vec::new(),
        };
        apply(&mut manager, Time(0), Input::Join(join));
    }
    manager
}

fn agent(host: u32) -> AgentKey {
    AgentKey { name: format!("host-{host}"), incarnation: 1 }
}

fn names(hosts: &[u32]) -> Vec<String> {
    hosts.iter().map(|host| format!("host-{host}")).collect()
}

fn seconds(seconds: u64) -> Time {
    Time(seconds * 1_000_000_000)
}

fn apply(manager: &mut Leases, now: Time, input: Input) -> Vec<Output> {
    manager.handle(now, input);
    std::iter::from_fn(|| manager.poll(now)).collect()
}

fn ask(manager: &mut Leases, now: Time, source: u32, number: u64, receivers: &[u32]) -> Grant {
    let request = PathRequest {
        agent: agent(source),
        request: number,
        object: ObjectId { app: AppId([0; 16]), data: DataId(number) },
        object_bytes: 1_000,
        remaining_bytes: 1_000,
        further_sources: Vec::new(),
        receivers: Receivers::Named(names(receivers)),
        divisible: false,
        lease: None,
        wish: Default::default(),
    };
    let outputs = apply(manager, now, Input::Request(request));
    let grant = outputs.into_iter().find_map(|output| match output {
        Output::Response { response: Ok(grant), .. } => Some(grant),
        _ => None,
    });
    grant.expect("granted at once")
}

/// Gives a path back whose transfer has not reached these; gives what is suspected then.
fn release(
    manager: &mut Leases,
    now: Time,
    (source, number): (u32, u64),
    grant: &Grant,
    unreached: &[u32],
) -> Vec<Failure> {
    let (request, plan) = (agent(source).request(number), grant.plan_id);
    let fared = Input::Fared {
        request: request.clone(),
        plan,
        unreached: names(unreached),
        reached_all: unreached.is_empty(),
        took: None,
    };
    apply(manager, now, fared);
    let outputs = apply(manager, now, Input::Release { request, plan });
    let suspects = outputs.into_iter().filter_map(|output| match output {
        Output::Suspected { suspect } => Some(suspect.what),
        _ => None,
    });
    suspects.collect()
}

fn splitters(plan: &Plan) -> Vec<u32> {
    let splitter = |resource: &Resource| match resource {
        Resource::Splitter { splitter } => Some(*splitter),
        _ => None,
    };
    plan.resources.iter().filter_map(splitter).collect()
}

fn splitter(splitter: u32) -> Failure {
    Failure::Resource(Resource::Splitter { splitter })
}

#[test]
fn a_splitter_that_reached_no_receiver_is_not_lent_again() {
    let mut manager = manager();
    let grant = ask(&mut manager, seconds(0), 0, 1, &[1, 2]);
    let dead = splitters(&grant.plan)[0];
    assert_eq!(release(&mut manager, seconds(1), (0, 1), &grant, &[1, 2]), [splitter(dead)]);
    // While it rests and when it is only doubtful; by its own source and by others, over kept paths and new
    // ones.
    for number in 2..80 {
        let source = (number % 2) as u32 * 3;
        let grant = ask(&mut manager, seconds(number), source, number, &[1, 2]);
        assert_eq!(grant.plan.fabric, "ocs", "transfer {number}");
        assert!(!splitters(&grant.plan).contains(&dead), "transfer {number} was lent splitter {dead} again");
        release(&mut manager, seconds(number), (source, number), &grant, &[]);
    }
}

#[test]
fn who_has_nothing_else_tries_a_doubtful_part_and_acquits_it() {
    let mut manager = manager();
    let grant = ask(&mut manager, seconds(0), 0, 1, &[1, 2]);
    let dead = splitters(&grant.plan)[0];
    release(&mut manager, seconds(0), (0, 1), &grant, &[1, 2]);
    for splitter in (0..4).filter(|splitter| *splitter != dead) {
        let input = Input::Drain { part: PartName::Splitter(splitter), is_out: true };
        apply(&mut manager, seconds(1), input);
    }
    assert_eq!(ask(&mut manager, seconds(2), 0, 2, &[1, 2]).plan.fabric, "tcp-chain", "it rests");
    let grant = ask(&mut manager, seconds(40), 0, 3, &[1, 2]);
    assert_eq!(splitters(&grant.plan), [dead], "its rest is over, and there is no other");
    // Found dead again it rests longer.
    assert_eq!(release(&mut manager, seconds(41), (0, 3), &grant, &[1, 2]), [splitter(dead)]);
    assert_eq!(ask(&mut manager, seconds(80), 0, 4, &[1, 2]).plan.fabric, "tcp-chain");
    let grant = ask(&mut manager, seconds(110), 0, 5, &[1, 2]);
    assert_eq!(splitters(&grant.plan), [dead]);
    release(&mut manager, seconds(111), (0, 5), &grant, &[]);
    assert_eq!(manager.parts().1, [], "it has reached all");
}

#[test]
fn what_led_to_a_receiver_is_not_suspected() {
    let mut manager = manager();
    // Two outputs: the root has rack 1 and the second splitter, which has racks 2 and 3.
    let grant = ask(&mut manager, seconds(0), 0, 1, &[1, 2, 3]);
    let both = splitters(&grant.plan);
    assert_eq!(release(&mut manager, seconds(1), (0, 1), &grant, &[2, 3]), [splitter(both[1])]);
    let grant = ask(&mut manager, seconds(2), 0, 2, &[1, 2, 3]);
    let port = Failure::Resource(Resource::CircuitPort { port: 2 });
    assert_eq!(release(&mut manager, seconds(3), (0, 2), &grant, &[2]), [port], "only that rack's fibre");
    // A port that the source shares with all its paths is what they have in common at the second time.
    let grant = ask(&mut manager, seconds(100), 4, 3, &[1, 3]);
    assert!(matches!(
        release(&mut manager, seconds(100), (4, 3), &grant, &[1, 3])[..],
        [Failure::Resource(Resource::Splitter { .. })]
    ));
    let grant = ask(&mut manager, seconds(101), 4, 4, &[1, 3]);
    let port = Failure::Resource(Resource::CircuitPort { port: 4 });
    assert_eq!(release(&mut manager, seconds(102), (4, 4), &grant, &[1, 3]), [port]);
}

#[test]
fn a_path_without_light_moves_and_its_source_is_not_believed_afterwards() {
    let mut manager = manager();
    let grant = ask(&mut manager, seconds(0), 0, 1, &[1, 2]);
    let receivers = BTreeSet::from([HostId(1), HostId(2)]);
    let outputs = apply(&mut manager, seconds(1), Input::Unlit { plan: grant.plan_id, receivers });
    let [Output::Suspected { suspect }, Output::Replanned { before, plan, .. }] = &outputs[..] else {
        panic!("{outputs:?}")
    };
    assert_eq!((suspect.what, before), (splitter(splitters(&grant.plan)[0]), &grant.plan));
    assert_ne!(splitters(plan), splitters(before));
    assert_eq!(plan.channel, before.channel, "its source and receivers notice nothing");
    // Whom it lost meanwhile it lost over the old way.
    assert_eq!(release(&mut manager, seconds(2), (0, 1), &grant, &[1, 2]), []);
}

#[test]
fn a_path_in_use_leaves_what_is_drained() {
    let mut manager = manager();
    let grant = ask(&mut manager, seconds(0), 0, 1, &[1, 2]);
    let used = splitters(&grant.plan)[0];
    let part = PartName::Splitter(used);
    let outputs = apply(&mut manager, seconds(1), Input::Drain { part, is_out: true });
    let moved = outputs.iter().find_map(|output| match output {
        Output::Replanned { plan, .. } => Some(splitters(plan)),
        _ => None,
    });
    assert!(!moved.expect("it moves").contains(&used));
    let Some(Output::Drained { result: Ok(drained), .. }) = outputs.last() else { panic!("{outputs:?}") };
    assert_eq!((drained.is_new, drained.moved, drained.ended), (true, 1, 0));
    for number in 2..10 {
        let grant = ask(&mut manager, seconds(number), 3, number, &[4]);
        assert!(!splitters(&grant.plan).contains(&used));
        release(&mut manager, seconds(number), (3, number), &grant, &[]);
    }
    // Drained with its rack: what cannot move goes over another fabric.
    let outputs = apply(&mut manager, seconds(20), Input::Drain { part: PartName::Tor(1), is_out: true });
    assert!(
        outputs
            .iter()
            .any(|output| matches!(output, Output::Replanned { plan, .. } if plan.fabric == "tcp-chain"))
    );
    for part in [PartName::Tor(1), part] {
        apply(&mut manager, seconds(21), Input::Drain { part, is_out: false });
    }
    assert_eq!(manager.out_of_use().count(), 0);
    let outputs = apply(&mut manager, seconds(22), Input::Drain { part, is_out: false });
    assert!(matches!(&outputs[..], [Output::Drained { result: Ok(done), .. }] if !done.is_new));
    let outputs =
        apply(&mut manager, seconds(23), Input::Drain { part: PartName::Splitter(9), is_out: true });
    let [Output::Drained { result: Err(reason), .. }] = &outputs[..] else { panic!("{outputs:?}") };
    let expected = "the manager has no splitter:9: it has port:1 to port:17, splitter:0 to splitter:3, tor:0 to tor:4 and ocs";
    assert_eq!(reason, expected);
}

#[test]
fn a_new_leader_knows_what_is_out_of_use() {
    let mut before = manager();
    let grant = ask(&mut before, seconds(0), 0, 1, &[1, 2]);
    let dead = splitters(&grant.plan)[0];
    release(&mut before, seconds(1), (0, 1), &grant, &[1, 2]);
    let drained = PartName::Splitter((dead + 1) % 4);
    apply(&mut before, seconds(2), Input::Drain { part: drained, is_out: true });
    assert!(before.changes().iter().any(|(key, record)| *key == RecordKey::Parts && record.is_some()));
    let records = before.records();
    let mut after = empty_manager();
    assert_eq!(after.restore(seconds(3), records.clone()), []);
    assert_eq!((after.parts(), after.records()), (before.parts(), records.clone()));
    let lent = ask(&mut after, seconds(4), 0, 2, &[1, 2]).plan;
    let out = [dead, (dead + 1) % 4];
    assert!(splitters(&lent).iter().all(|splitter| !out.contains(splitter)), "{lent:?}");
    // Records of before this was known.
    let old = records.into_iter().filter(|record| !matches!(record, Record::Parts { .. }));
    let mut after = empty_manager();
    assert_eq!(after.restore(seconds(3), old), []);
    assert_eq!((after.parts().0, after.out_of_use().count()), (vec![], 0));
}

#[test]
fn a_grant_says_which_fabrics_were_better_and_a_wish_for_one_can_be_turned_down() {
    let mut manager = manager();
    let mut number = 0;
    let mut wish = |manager: &mut Leases, wish: Wish| {
        number += 1;
        let request = PathRequest {
            agent: agent(0),
            request: number,
            object: ObjectId { app: AppId([0; 16]), data: DataId(number) },
            object_bytes: 1_000,
            remaining_bytes: 1_000,
            further_sources: Vec::new(),
            receivers: Receivers::Named(names(&[1, 2])),
            divisible: false,
            lease: None,
            wish,
        };
        let outputs = apply(manager, seconds(number), Input::Request(request));
        let response = outputs.into_iter().find_map(|output| match output {
            Output::Response { response, .. } => Some(response),
            _ => None,
        });
        let response = response.expect("answered at once").map_err(|denial| denial.to_string());
        if let Ok(grant) = &response {
            release(manager, seconds(number), (0, number), grant, &[]);
        }
        response
    };
    let only = |name| Wish { fabric: Some(name), or_fail: true, ..Wish::default() };
    let grant = wish(&mut manager, only(Ocs::NAME)).unwrap();
    assert_eq!((grant.plan.fabric, grant.passed_over), (Ocs::NAME, vec![]));
    let grant =
        wish(&mut manager, Wish { fabric: Some(TcpChain::NAME), or_fail: false, ..Wish::default() }).unwrap();
    assert_eq!((grant.plan.fabric, grant.passed_over), (TcpChain::NAME, vec![]));
    for number in 0..4 {
        let part = PartName::Splitter(number);
        apply(&mut manager, seconds(2), Input::Drain { part, is_out: true });
    }
    let why = "for circuits";
    let grant = wish(&mut manager, Wish::default()).unwrap();
    assert_eq!((grant.plan.fabric, grant.passed_over.len()), (TcpChain::NAME, 1));
    assert!(
        grant.passed_over[0].fabric == Ocs::NAME && grant.passed_over[0].why.starts_with(why),
        "{grant:?}"
    );
    let denial = wish(&mut manager, only(Ocs::NAME)).unwrap_err();
    assert!(denial.starts_with(&format!("the manager lends no path: {why}")), "{denial}");
    let denial = wish(&mut manager, only(FabricName::new("osc"))).unwrap_err();
    assert_eq!(denial, "the manager lends no path: there is no fabric 'osc' here, only ocs, tcp-chain");
}

#[derive(Clone, Debug)]
enum Step {
    Ask(u32, Vec<u32>),
    Release(usize, Vec<u32>),
    Unlit(usize, Vec<u32>),
    Drain(PartName, bool),
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let hosts = || proptest::sample::subsequence((0..RACKS).collect::<Vec<_>>(), 0..=4);
    let part = prop_oneof![
        (0u32..6).prop_map(PartName::Splitter),
        (1u32..20).prop_map(PartName::Port),
        (0u32..6).prop_map(PartName::Tor),
        Just(PartName::CircuitSwitch),
    ];
    prop_oneof![
        4 => (0..RACKS, hosts()).prop_map(|(source, hosts)| Step::Ask(source, hosts)),
        4 => (0usize..4, hosts()).prop_map(|(at, hosts)| Step::Release(at, hosts)),
        2 => (0usize..4, hosts()).prop_map(|(at, hosts)| Step::Unlit(at, hosts)),
        2 => (part, any::<bool>()).prop_map(|(part, is_out)| Step::Drain(part, is_out)),
        1 => (1u64..200).prop_map(Step::Wait),
    ]
}

/// Nothing that is lent or moved to holds what is out of use then.
fn lends_only_what_is_in_use(manager: &Leases, outputs: &[Output]) {
    let out: BTreeSet<Failure> = manager.out_of_use().map(|(what, _)| what).collect();
    for output in outputs {
        let (Output::Granted { plan_id, plan, .. } | Output::Replanned { plan_id, plan, .. }) = output else {
            continue;
        };
        let lent = manager.leases().any(|lease| lease.grant.plan_id == *plan_id && lease.grant.plan == *plan);
        let dead =
            plan.resources.iter().find(|resource| lent && out.contains(&Failure::Resource(**resource)));
        assert!(dead.is_none(), "{dead:?} is out of use and lent");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn nothing_out_of_use_is_ever_lent_and_every_rest_ends(steps in proptest::collection::vec(step(), 1..60)) {
        let mut manager = manager();
        let (mut now, mut number) = (1, 0);
        let mut held: Vec<(u32, u64, PlanId)> = Vec::new();
        for step in steps {
            let outputs = match step {
                Step::Ask(source, hosts) => {
                    let receivers: Vec<u32> = hosts.into_iter().filter(|host| *host != source).collect();
                    if receivers.is_empty() || held.len() >= 4 {
                        continue;
                    }
                    number += 1;
                    let request = PathRequest {
                        agent: agent(source),
                        request: number,
                        object: ObjectId { app: AppId([0; 16]), data: DataId(number) },
                        object_bytes: 1_000,
                        remaining_bytes: 1_000,
                        further_sources: Vec::new(),
                        receivers: Receivers::Named(names(&receivers)),
                        divisible: false,
                        lease: None,
                        wish: Default::default(),
                    };
                    let outputs = apply(&mut manager, seconds(now), Input::Request(request));
                    held.extend(outputs.iter().filter_map(|output| match output {
                        Output::Granted { plan_id, .. } => Some((source, number, *plan_id)),
                        _ => None,
                    }));
                    outputs
                }
                Step::Release(at, hosts) if at < held.len() => {
                    let (source, number, plan) = held.remove(at);
                    let request = agent(source).request(number);
                    let (unreached, reached_all, took) = (names(&hosts), hosts.is_empty(), None);
                    let fared = Input::Fared { request: request.clone(), plan, unreached, reached_all, took };
                    let mut outputs = apply(&mut manager, seconds(now), fared);
                    outputs.extend(apply(&mut manager, seconds(now), Input::Release { request, plan }));
                    outputs
                }
                Step::Unlit(at, hosts) if at < held.len() => {
                    let receivers = hosts.into_iter().map(HostId).collect();
                    apply(&mut manager, seconds(now), Input::Unlit { plan: held[at].2, receivers })
                }
                Step::Drain(part, is_out) => apply(&mut manager, seconds(now), Input::Drain { part, is_out }),
                Step::Wait(seconds) => {
                    now += seconds;
                    continue;
                }
                Step::Release(..) | Step::Unlit(..) => continue,
            };
            lends_only_what_is_in_use(&manager, &outputs);
        }
        for part in manager.parts().0 {
            apply(&mut manager, seconds(now), Input::Drain { part, is_out: false });
        }
        manager.handle(seconds(now + 601), Input::Repaired { failures: Vec::new() });
        let resting: Vec<_> = manager.out_of_use().filter(|(_, cause)| *cause != Cause::Broken).collect();
        prop_assert_eq!(resting, vec![]);
        manager.handle(seconds(now + 601 + 3_601), Input::Repaired { failures: Vec::new() });
        prop_assert_eq!(manager.parts().1, vec![]);
        prop_assert_eq!(manager.deadline().is_some_and(|at| at <= seconds(now)), false);
    }
}

/// Records are kept under texts that read back as the same key, and no other text is one.
#[test]
fn keys_of_records_read_back() {
    let keys = [
        RecordKey::Member("h1".into()),
        RecordKey::Lease(PlanId(7)),
        RecordKey::Pending(RequestId(u64::MAX)),
        RecordKey::Kept,
        RecordKey::Parts,
        RecordKey::Learned,
        RecordKey::Host("h2/x".into()),
    ];
    for key in keys {
        assert_eq!(RecordKey::parse(&key.to_string()), Some(key));
    }
    for text in ["", "lease/7", "pending/", "kept/", "parts/1", "learned/x", "other/1"] {
        assert_eq!(RecordKey::parse(text), None, "{text}");
    }
}

/// Each time that a part is found dead again it rests for twice as long: 30 seconds first, ten minutes at
/// most. When nothing was heard of it for an hour after its rest it is as good as any other.
#[test]
fn rests_grow_and_are_forgotten() {
    let mut manager = manager();
    let look = |manager: &mut Leases, now| {
        apply(manager, now, Input::Withdraw { request: agent(0).request(999) });
    };
    let mut now = seconds(0);
    let grant = ask(&mut manager, now, 0, 1, &[1, 2]);
    let dead = splitters(&grant.plan)[0];
    release(&mut manager, now, (0, 1), &grant, &[1, 2]);
    for other in (0..4).filter(|splitter| *splitter != dead) {
        apply(&mut manager, now, Input::Drain { part: PartName::Splitter(other), is_out: true });
    }
    let suspect =
        |manager: &Leases| manager.parts().1.into_iter().find(|suspect| suspect.what == splitter(dead));
    let rests = |manager: &Leases| manager.out_of_use().any(|out| out == (splitter(dead), Cause::Rests));
    for (times, rest) in (1..).zip([30, 60, 120, 240, 480, 600, 600]) {
        let found = suspect(&manager).unwrap();
        let until = now + Duration::from_secs(rest);
        assert_eq!((found.times, found.rests, found.until, found.is_resting), (times, times, until, true));
        look(&mut manager, Time(until.0 - 1));
        assert!(rests(&manager), "{rest} s are not over");
        assert!(manager.deadline().is_some_and(|at| at <= until));
        look(&mut manager, until);
        assert!(!rests(&manager) && suspect(&manager).is_some_and(|suspect| !suspect.is_resting));
        now = until;
        if times < 7 {
            let number = u64::from(times) + 1;
            let grant = ask(&mut manager, now, 0, number, &[1, 2]);
            assert_eq!(release(&mut manager, now, (0, number), &grant, &[1, 2]), [splitter(dead)]);
        }
    }
    let hour = Duration::from_secs(3_600);
    look(&mut manager, Time((now + hour).0 - 1));
    assert!(suspect(&manager).is_some(), "an hour is not over");
    look(&mut manager, now + hour);
    assert_eq!(suspect(&manager), None);
}

/// Receivers that a path did not reach say nothing about it if the path has changed since.
#[test]
fn a_path_that_has_changed_is_not_judged() {
    for changes in [false, true] {
        let mut manager = manager();
        let mut grant = ask(&mut manager, seconds(0), 0, 1, &[1]);
        if changes {
            let (request, add) = (agent(0).request(1), names(&[2]));
            let extend = Input::Extend { request, time: None, add, remove: Vec::new(), sources: Vec::new() };
            let outputs = apply(&mut manager, seconds(1), extend);
            assert!(outputs.iter().any(|output| matches!(output, Output::Replanned { .. })), "{outputs:?}");
            let changed = outputs.into_iter().find_map(|output| match output {
                Output::Extended { result: Ok(changed), .. } => changed,
                _ => None,
            });
            let before = std::mem::replace(&mut grant, changed.expect("there are fibres for both"));
            assert_ne!(before.plan, grant.plan);
        }
        let suspects = release(&mut manager, seconds(2), (0, 1), &grant, &[1]);
        assert_eq!(suspects.is_empty(), changes, "{suspects:?}");
    }
}

/// A store may say that a part rests which a path holds: by other settings, or by the hand of an operator.
/// Its holder may ask for anything then.
#[test]
fn a_path_with_a_part_that_rests_goes_on_as_it_is() {
    let mut first = manager();
    let grant = ask(&mut first, Time(1), 0, 7, &[1, 2]);
    let mut records = first.records();
    records.retain(|record| record.key() != RecordKey::Parts);
    let held = grant.plan.resources.iter().copied();
    let suspect = |resource| Suspect {
        what: Failure::Resource(resource),
        times: 1,
        rests: 1,
        until: seconds(60),
        is_resting: true,
        why: "no light".into(),
    };
    records.push(Record::Parts {
        drained: Vec::new(),
        suspects: held.map(suspect).collect(),
        hosts: BTreeSet::new(),
    });
    let mut after = empty_manager();
    assert_eq!(after.restore(seconds(3), records), []);
    let request = agent(0).request(7);
    let add = names(&[3]);
    let extend =
        Input::Extend { request: request.clone(), time: None, add, remove: Vec::new(), sources: Vec::new() };
    let outputs = apply(&mut after, seconds(4), extend);
    let refused = outputs.iter().any(|output| matches!(output, Output::Extended { result: Err(_), .. }));
    assert!(refused, "{outputs:?}");
    after.check();
    let known: Vec<_> = after.leases().map(|lease| lease.grant.plan_id).collect();
    assert_eq!(known, [grant.plan_id], "the path is as it was");
    // A longer time is none of the parts' business.
    let time = Some(Duration::from_secs(5));
    let extend = Input::Extend { request, time, add: Vec::new(), remove: Vec::new(), sources: Vec::new() };
    let outputs = apply(&mut after, seconds(4), extend);
    assert!(
        outputs.iter().any(|output| matches!(output, Output::Extended { result: Ok(_), .. })),
        "{outputs:?}"
    );
}
