//! Paths at their devices: what is told to them, what happens when they fail, and what is kept ready.

use polycast_planning::ip_multicast::AddressPool;
use polycast_planning::ocs::{Ocs, OcsConfig};
use polycast_planning::tcp_chain::TcpChain;
use polycast_planning::{DeviceCommand, Fabrics, Fcfs, HostId, PartName, PlanId, Wish};
use polycast_protocol::leases::{
    AgentKey, Grant, HeldLease, Input, Join, Leases, LeasesConfig, OnDeviceFailure, Output, PathRequest,
    PathState, Receivers, Record, RecordKey, ReleaseReason, SessionsConfig,
};
use polycast_topology::Hybrid;
use polycast_topology::optics::{PowerBudget, splitter_loss_db};
use polycast_types::{AppId, DataId, Duration, ObjectId, Rate, Time};
use std::collections::{BTreeMap, BTreeSet};

const HOME: core::net::IpAddr = core::net::IpAddr::V4(core::net::Ipv4Addr::LOCALHOST);
const SESSIONS: SessionsConfig =
    SessionsConfig { reconnect: Duration::from_secs(3_600), alive: Duration::ZERO, of_address_max: 1_024 };

/// Six racks of one host on circuits with three splitters of two outputs.
fn manager(on_device_failure: OnDeviceFailure, kept_max: usize) -> Leases {
    let mut manager = empty_manager(on_device_failure, kept_max);
    for host in 0..6 {
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

/// The same before an agent has joined.
fn empty_manager(on_device_failure: OnDeviceFailure, kept_max: usize) -> Leases {
    let config = LeasesConfig {
        lease: Duration::from_secs(30),
        silence: Duration::from_secs(1_000),
        sessions: SESSIONS,
        pending_max: 10,
        leases_max: 10,
        agent_leases_max: 10,
        receiver_leases_max: 1_000,
        grant_bytes_max: u64::MAX,
        agents_max: 10,
        on_device_failure,
        kept_max,
        patience: Duration::ZERO,
        claims: None,
        recorded: true,
        first_plan: PlanId(1),
    };
    let hybrid =
        Hybrid { racks: 6, servers_per_rack: 1, ports_per_rack: 1, splitters: 3, splitter_fanout: 2 };
    let ocs = OcsConfig {
        hybrid,
        cascade_max: 3,
        budget: PowerBudget {
            budget_db: 30.0,
            switch_loss_db: 1.0,
            splitter_loss_db: splitter_loss_db(2),
            amplifier_gain_db: 0.0,
        },
        rate: Rate(1_000_000_000),
        attempt_interval: Duration::from_millis(1),
    };
    let pool = AddressPool::new([239, 255, 64, 0].into(), 64, 7410).unwrap();
    let ocs = Ocs::new(ocs, (0..6).map(|host| (HostId(host), host)), pool).unwrap();
    let fabrics = Fabrics::new(vec![Box::new(ocs), Box::new(TcpChain)]);
    Leases::new(config, fabrics, Box::new(Fcfs))
}

fn agent(host: u32) -> AgentKey {
    AgentKey { name: format!("host-{host}"), incarnation: 1 }
}

fn apply(manager: &mut Leases, now: Time, input: Input) -> Vec<Output> {
    manager.handle(now, input);
    std::iter::from_fn(|| manager.poll(now)).collect()
}

fn ask(manager: &mut Leases, now: Time, source: u32, number: u64, receivers: &[u32]) -> (Grant, Vec<Output>) {
    ask_for(manager, now, source, number, receivers, Wish::default())
}

fn ask_for(
    manager: &mut Leases,
    now: Time,
    source: u32,
    number: u64,
    receivers: &[u32],
    wish: Wish,
) -> (Grant, Vec<Output>) {
    let request = PathRequest {
        agent: agent(source),
        request: number,
        object: ObjectId { app: AppId([0; 16]), data: DataId(number) },
        object_bytes: 1_000,
        remaining_bytes: 1_000,
        further_sources: Vec::new(),
        receivers: Receivers::Named(receivers.iter().map(|host| format!("host-{host}")).collect()),
        divisible: false,
        lease: None,
        wish,
    };
    let outputs = apply(manager, now, Input::Request(request));
    let grant = outputs.iter().find_map(|output| match output {
        Output::Response { response: Ok(grant), .. } => Some(grant.clone()),
        _ => None,
    });
    (grant.expect("granted at once"), outputs)
}

fn release(manager: &mut Leases, now: Time, source: u32, number: u64, grant: &Grant) -> Vec<Output> {
    apply(manager, now, Input::Release { request: agent(source).request(number), plan: grant.plan_id })
}

fn failed(grant: &Grant) -> Input {
    Input::SetUp { plan: grant.plan_id, result: Err("the circuit switch: no".into()) }
}

fn instead_of(outputs: &[Output]) -> &[DeviceCommand] {
    let granted = outputs.iter().find_map(|output| match output {
        Output::Granted { instead_of, .. } => Some(instead_of.as_slice()),
        _ => None,
    });
    granted.expect("granted")
}

#[test]
fn where_devices_fail_another_fabric_takes_over() {
    let mut manager = manager(OnDeviceFailure::Fallback, 4);
    let (grant, _) = ask(&mut manager, Time(0), 0, 1, &[1, 2]);
    assert_eq!(grant.plan.fabric, "ocs");
    let outputs = apply(&mut manager, Time(1), failed(&grant));
    let [Output::Replanned { before, plan, reason, .. }] = &outputs[..] else { panic!("{outputs:?}") };
    assert_eq!((before, plan.fabric.as_str()), (&grant.plan, "tcp-chain"));
    assert_eq!(reason.as_deref(), Some("the circuit switch: no"));
    // What the circuits held is free for others.
    let (second, _) = ask(&mut manager, Time(2), 0, 2, &[1, 2]);
    assert_eq!(second.plan.fabric, "ocs");
    // A word about a path that has been given back changes nothing.
    release(&mut manager, Time(3), 0, 2, &second);
    assert_eq!(apply(&mut manager, Time(4), failed(&second)), []);
}

/// Only a fabric that was wished for, or nothing, is waited for though another one could take over.
#[test]
fn another_fabric_takes_over_unless_the_wish_is_for_no_other() {
    let circuits = Some(Ocs::NAME);
    for (fabric, or_fail) in [(None, false), (None, true), (circuits, false), (circuits, true)] {
        let mut manager = manager(OnDeviceFailure::Fallback, 4);
        let (grant, _) =
            ask_for(&mut manager, Time(0), 0, 1, &[1, 2], Wish { fabric, or_fail, ..Wish::default() });
        assert_eq!(grant.plan.fabric, Ocs::NAME);
        let outputs = apply(&mut manager, Time(1), failed(&grant));
        let waits = matches!(outputs[..], [Output::Path { state: PathState::Waits { .. }, .. }]);
        assert_eq!(waits, fabric.is_some() && or_fail, "{fabric:?}, {or_fail}: {outputs:?}");
        assert_eq!(!waits, matches!(outputs[..], [Output::Replanned { .. }]), "{outputs:?}");
    }
}

/// A path for which no other fabric was to do ends where its own fabric has nothing left; any other path goes
/// on over the next one.
#[test]
fn a_path_for_no_other_fabric_ends_where_all_of_its_own_is_drained() {
    let circuits = Some(Ocs::NAME);
    for (fabric, or_fail) in [(None, false), (None, true), (circuits, false), (circuits, true)] {
        let mut manager = manager(OnDeviceFailure::Fallback, 4);
        let (grant, _) =
            ask_for(&mut manager, Time(0), 0, 1, &[1, 2], Wish { fabric, or_fail, ..Wish::default() });
        let mut outputs = Vec::new();
        for splitter in 0..3 {
            let drain = Input::Drain { part: PartName::Splitter(splitter), is_out: true };
            outputs.extend(apply(&mut manager, Time(1), drain));
        }
        let ends = outputs.iter().any(|output| {
            matches!(output, Output::Released { plan_id, reason: ReleaseReason::Failed, .. }
                if *plan_id == grant.plan_id)
        });
        assert_eq!(ends, fabric.is_some() && or_fail, "{fabric:?}, {or_fail}: {outputs:?}");
        let fabrics: BTreeSet<_> = manager.leases().map(|lease| lease.grant.plan.fabric.as_str()).collect();
        assert_eq!(fabrics, if ends { BTreeSet::new() } else { ["tcp-chain"].into() });
    }
}

/// The next leader knows for which paths no other fabric will do. In records of earlier versions that is not
/// written.
#[test]
fn the_next_leader_knows_that_no_other_fabric_will_do() {
    let mut first = manager(OnDeviceFailure::Fallback, 4);
    let wish = Wish { fabric: Some(Ocs::NAME), or_fail: true, ..Wish::default() };
    let (grant, _) = ask_for(&mut first, Time(0), 0, 1, &[1, 2], wish);
    for is_old in [false, true] {
        let mut records = serde_json::to_value(first.records()).unwrap();
        for lease in records.as_array_mut().unwrap().iter_mut().filter_map(|record| record.get_mut("Lease")) {
            let fields = lease.as_object_mut().unwrap();
            let earlier = ["key", "object", "group", "grant", "granted_at", "ends_at"];
            fields.retain(|name, _| !is_old || earlier.contains(&name.as_str()));
        }
        let records: Vec<Record> = serde_json::from_value(records).unwrap();
        let mut next = empty_manager(OnDeviceFailure::Fallback, 4);
        assert_eq!(next.restore(Time(1), records), []);
        let outputs = apply(&mut next, Time(2), failed(&grant));
        let waits = matches!(outputs[..], [Output::Path { state: PathState::Waits { .. }, .. }]);
        assert_eq!(waits, !is_old, "{outputs:?}");
    }
}

#[test]
fn where_they_shall_wait_devices_are_told_again_with_pauses() {
    let mut manager = manager(OnDeviceFailure::Wait, 4);
    let (grant, _) = ask(&mut manager, Time(0), 0, 1, &[1, 2]);
    let mut now = Time(1);
    let mut pauses = Vec::new();
    for _ in 0..6 {
        let outputs = apply(&mut manager, now, failed(&grant));
        assert!(matches!(&outputs[..], [Output::Path { state: PathState::Waits { .. }, .. }]), "{outputs:?}");
        let again = manager.deadline().unwrap();
        assert_eq!(manager.poll(Time(again.0 - 1)), None);
        let expected = Output::Again { plan_id: grant.plan_id, plan: grant.plan.clone() };
        assert_eq!(manager.poll(again), Some(expected));
        pauses.push(again.since(now).as_millis());
        now = again;
    }
    assert_eq!(pauses, [100, 200, 400, 800, 1_000, 1_000]);
    let ready = apply(&mut manager, now, Input::SetUp { plan: grant.plan_id, result: Ok(()) });
    assert!(matches!(&ready[..], [Output::Path { state: PathState::Ready, .. }]), "{ready:?}");
}

#[test]
fn the_same_hosts_get_the_same_path_again() {
    let mut manager = manager(OnDeviceFailure::Fallback, 4);
    let (first, _) = ask(&mut manager, Time(0), 0, 1, &[1, 2]);
    let released = release(&mut manager, Time(1), 0, 1, &first);
    assert!(matches!(&released[..], [Output::Released { kept: true, .. }]), "{released:?}");
    let (again, outputs) = ask(&mut manager, Time(2), 0, 2, &[1, 2]);
    assert_eq!(again.plan, first.plan);
    assert_eq!(instead_of(&outputs), &first.plan.commands[..]);
    release(&mut manager, Time(3), 0, 2, &again);
    // Other hosts that need the same fibres push it out; hosts with other fibres do not.
    let (other, outputs) = ask(&mut manager, Time(4), 3, 1, &[4, 5]);
    let displaced: BTreeSet<_> = instead_of(&outputs).iter().collect();
    assert!(displaced.iter().all(|command| first.plan.commands.contains(command)));
    release(&mut manager, Time(5), 3, 1, &other);
    let (third, outputs) = ask(&mut manager, Time(6), 1, 1, &[0, 3]);
    assert_ne!(third.plan, first.plan);
    assert!(other.plan.commands.iter().all(|command| instead_of(&outputs).contains(command)));
}

#[test]
fn no_more_paths_are_kept_than_allowed_and_none_that_failed() {
    let mut none = manager(OnDeviceFailure::Wait, 0);
    let (grant, _) = ask(&mut none, Time(0), 0, 1, &[1, 2]);
    let released = release(&mut none, Time(1), 0, 1, &grant);
    assert!(matches!(&released[..], [Output::Released { kept: false, .. }]), "{released:?}");

    let mut one = manager(OnDeviceFailure::Wait, 1);
    let (first, _) = ask(&mut one, Time(0), 0, 1, &[1]);
    let (second, _) = ask(&mut one, Time(0), 2, 1, &[3]);
    release(&mut one, Time(1), 0, 1, &first);
    let released = release(&mut one, Time(2), 2, 1, &second);
    assert!(released.contains(&Output::Forgotten { plan: first.plan }), "{released:?}");
    let (third, _) = ask(&mut one, Time(3), 4, 1, &[5]);
    apply(&mut one, Time(4), failed(&third));
    let released = release(&mut one, Time(5), 4, 1, &third);
    assert!(matches!(&released[..], [Output::Released { kept: false, .. }]), "{released:?}");
}

/// A path that did not reach all is not kept ready: what is wrong with it would be wrong again.
#[test]
fn a_path_that_did_not_reach_all_is_not_kept() {
    for unreached in [vec![], vec!["host-2".to_string()]] {
        let mut manager = manager(OnDeviceFailure::Wait, 2);
        let (grant, _) = ask(&mut manager, Time(0), 0, 1, &[1, 2]);
        let (request, plan, reaches) = (agent(0).request(1), grant.plan_id, unreached.is_empty());
        let fared = Input::Fared { request, plan, unreached, reached_all: reaches, took: None };
        assert_eq!(apply(&mut manager, Time(1), fared), []);
        let released = release(&mut manager, Time(1), 0, 1, &grant);
        let keeps = released.iter().any(|output| matches!(output, Output::Released { kept: true, .. }));
        assert_eq!(keeps, reaches, "{released:?}");
    }
}

/// Joins again, and names a path.
fn join_with(
    manager: &mut Leases,
    now: Time,
    (host, number): (u32, u64),
    grant: &Grant,
    only: bool,
) -> Vec<Output> {
    let held = HeldLease {
        request: number,
        plan: grant.plan_id,
        object: ObjectId { app: AppId([0; 16]), data: DataId(number) },
        further_sources: Vec::new(),
        receivers: grant.receiver_names().cloned().collect(),
        bytes: grant.accepted_bytes,
        fabric: grant.plan.fabric.into(),
        channel: grant.plan.channel.clone(),
        left: None,
        kept: Some(grant.plan.clone()),
        only,
    };
    let join = Join {
        agent: agent(host),
        address: ([10, 0, 0, host as u8].into(), 7401),
        from: HOME,
        leases: vec![held],
    };
    apply(manager, now, Input::Join(join))
}

/// A manager without records learns from the holder of a path that no other fabric will do.
#[test]
fn a_holder_says_that_no_other_fabric_will_do() {
    let wish = Wish { fabric: Some(Ocs::NAME), or_fail: true, ..Wish::default() };
    let mut first = manager(OnDeviceFailure::Fallback, 4);
    let (grant, _) = ask_for(&mut first, Time(0), 0, 1, &[1, 2], wish);
    for only in [false, true] {
        let mut next = manager(OnDeviceFailure::Fallback, 4);
        join_with(&mut next, Time(1), (0, 1), &grant, only);
        assert_eq!(next.leases().map(|lease| &lease.grant.plan).collect::<Vec<_>>(), [&grant.plan]);
        let outputs = apply(&mut next, Time(2), failed(&grant));
        let waits = matches!(outputs[..], [Output::Path { state: PathState::Waits { .. }, .. }]);
        assert_eq!(waits, only, "{outputs:?}");
    }
}

/// A path whose time was over is kept ready. Its holder comes back and goes on with it: from then on it is
/// not taken down.
#[test]
fn a_path_that_its_holder_comes_back_for_is_not_kept_ready_any_more() {
    let mut manager = manager(OnDeviceFailure::Fallback, 1);
    let (grant, _) = ask(&mut manager, Time(0), 0, 1, &[1, 2]);
    let late = Time(0) + Duration::from_secs(31);
    let expired: Vec<Output> = std::iter::from_fn(|| manager.poll(late)).collect();
    assert!(matches!(&expired[..], [Output::Released { kept: true, .. }]), "{expired:?}");
    let outputs = join_with(&mut manager, late, (0, 1), &grant, false);
    let again = Output::Again { plan_id: grant.plan_id, plan: grant.plan.clone() };
    assert!(outputs.contains(&again), "{outputs:?}");
    let is_taken_down = |outputs: &[Output]| outputs.iter().any(|o| matches!(o, Output::Forgotten { .. }));
    assert!(!is_taken_down(&outputs), "{outputs:?}");
    assert_eq!(manager.kept_commands().count(), 0);
    // There is room for the next one.
    let (other, _) = ask(&mut manager, late, 3, 1, &[4]);
    let released = release(&mut manager, late, 3, 1, &other);
    assert!(!is_taken_down(&released), "{released:?}");
}

/// A kept path that shares something with a path whose holder returns is dropped, but for the commands that
/// both need.
#[test]
fn a_path_that_its_holder_comes_back_for_displaces_what_is_kept_ready() {
    let mut manager = manager(OnDeviceFailure::Fallback, 4);
    let (grant, _) = ask(&mut manager, Time(0), 0, 1, &[1]);
    let late = Time(0) + Duration::from_secs(31);
    let (other, _) = ask(&mut manager, late, 3, 1, &[1]);
    release(&mut manager, late, 3, 1, &other);
    let outputs = join_with(&mut manager, late, (0, 1), &grant, false);
    let forgotten: Vec<_> = outputs
        .iter()
        .filter_map(|output| match output {
            Output::Forgotten { plan } => Some(&plan.commands),
            _ => None,
        })
        .flatten()
        .collect();
    let not_needed: Vec<_> =
        (other.plan.commands.iter()).filter(|command| !grant.plan.commands.contains(command)).collect();
    assert!(!not_needed.is_empty());
    assert_eq!(forgotten, not_needed);
    let at = |wanted: fn(&Output) -> bool| outputs.iter().position(wanted);
    let order = (
        at(|o| matches!(o, Output::Forgotten { .. })).unwrap(),
        at(|o| matches!(o, Output::Again { .. })).unwrap(),
    );
    assert!(order.0 < order.1, "devices let go of the old before they are told of the new: {outputs:?}");
    assert_eq!(manager.kept_commands().count(), 0);
}

/// A manager that takes over from a leader knows what its devices hold ready.
#[test]
fn a_path_is_kept_ready_by_the_next_leader_too() {
    let mut first = manager(OnDeviceFailure::Fallback, 4);
    let (grant, _) = ask(&mut first, Time(0), 0, 1, &[1, 2]);
    release(&mut first, Time(1), 0, 1, &grant);
    let mut written: BTreeMap<String, Record> = BTreeMap::new();
    for (key, record) in first.changes() {
        match record {
            Some(record) => written.insert(key.to_string(), record),
            None => written.remove(&key.to_string()),
        };
    }
    let mut next = empty_manager(OnDeviceFailure::Fallback, 4);
    assert_eq!(next.restore(Time(2), written.into_values()), []);
    assert_eq!(next.kept_commands().collect::<Vec<_>>(), grant.plan.commands.iter().collect::<Vec<_>>());
    let (again, outputs) = ask(&mut next, Time(3), 0, 2, &[1, 2]);
    assert_eq!((&again.plan, instead_of(&outputs)), (&grant.plan, &grant.plan.commands[..]));
    // It is in use now, and that is written too.
    let kept = next.changes().into_iter().find(|(key, _)| *key == RecordKey::Kept);
    assert_eq!(kept, Some((RecordKey::Kept, None)));
}

/// A leader whose settings allow fewer kept paths takes the oldest ones down.
#[test]
fn the_next_leader_keeps_no_more_than_it_may() {
    let mut first = manager(OnDeviceFailure::Fallback, 2);
    let (one, _) = ask(&mut first, Time(0), 0, 1, &[1]);
    let (two, _) = ask(&mut first, Time(0), 2, 1, &[3]);
    release(&mut first, Time(1), 0, 1, &one);
    release(&mut first, Time(2), 2, 1, &two);
    assert_eq!(first.kept_commands().count(), one.plan.commands.len() + two.plan.commands.len());
    let mut next = empty_manager(OnDeviceFailure::Fallback, 1);
    assert_eq!(next.restore(Time(3), first.records()), []);
    assert_eq!(next.poll(Time(3)), Some(Output::Forgotten { plan: one.plan }));
    assert_eq!(next.kept_commands().collect::<Vec<_>>(), two.plan.commands.iter().collect::<Vec<_>>());
}

/// A lease counts against a record of kept paths that names the same path, where a change was cut off.
#[test]
fn what_is_lent_is_not_kept_for_others() {
    let mut first = manager(OnDeviceFailure::Fallback, 2);
    let (grant, _) = ask(&mut first, Time(0), 0, 1, &[1]);
    let lent = first.records();
    release(&mut first, Time(1), 0, 1, &grant);
    let kept = first.records().into_iter().filter(|record| matches!(record, Record::Kept { .. }));
    let mut next = empty_manager(OnDeviceFailure::Fallback, 2);
    assert_eq!(next.restore(Time(2), lent.into_iter().chain(kept)), []);
    assert_eq!((next.kept_commands().count(), next.leases().count()), (0, 1));
}
