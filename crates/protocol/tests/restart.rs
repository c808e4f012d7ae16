//! A manager that restarts without the state of the one before: devices say what they hold, agents say what
//! they use.

#[path = "leases/circuits.rs"]
mod circuits;

use circuits::circuits;
use polycast_planning::ip_multicast::{AddressPool, IpMulticast};
use polycast_planning::ocs::Ocs;
use polycast_planning::tcp_chain::TcpChain;
use polycast_planning::{DeviceCommand, Fabric, Fabrics, Failure, GreedyMatching, PlanId, Resource};
use polycast_protocol::leases::{
    AgentKey, Grant, HeldLease, Input, Join, Leases, LeasesConfig, OnDeviceFailure, Output, PathRequest,
    Receivers, STREAMS_FROM, SessionsConfig, known_hosts,
};
use polycast_types::{AppId, DataId, Duration, ObjectId, Time};

const HOME: core::net::IpAddr = core::net::IpAddr::V4(core::net::Ipv4Addr::LOCALHOST);
const SESSIONS: SessionsConfig =
    SessionsConfig { reconnect: Duration::from_secs(3_600), alive: Duration::ZERO, of_address_max: 1_024 };
const NAMES: [&str; 4] = ["host-0", "host-1", "host-2", "host-3"];
const CLAIMS: Duration = Duration::from_secs(4);

/// Four racks of one host and one fibre.
fn manager(first_plan: u64) -> Leases {
    manager_with(first_plan, vec![])
}

/// The same with more fabrics behind the circuits.
fn manager_with(first_plan: u64, more: Vec<Box<dyn Fabric>>) -> Leases {
    let pool = AddressPool::new([239, 255, 64, 0].into(), 16, 7410).unwrap();
    let places: Vec<_> = known_hosts(NAMES).map(|(_, host)| host).zip(0..).collect();
    let ocs = Ocs::new(circuits(4), places.clone(), pool).unwrap();
    let config = LeasesConfig {
        lease: Duration::from_secs(30),
        silence: Duration::from_secs(3_600),
        sessions: SESSIONS,
        pending_max: 8,
        leases_max: 100,
        agent_leases_max: 100,
        receiver_leases_max: 1_000,
        grant_bytes_max: u64::MAX,
        agents_max: 8,
        on_device_failure: OnDeviceFailure::Fallback,
        kept_max: 0,
        patience: Duration::ZERO,
        claims: Some(CLAIMS),
        recorded: false,
        first_plan: PlanId(first_plan),
    };
    let mut fabrics: Vec<Box<dyn Fabric>> = vec![Box::new(ocs)];
    fabrics.extend(more);
    let mut leases = Leases::new(config, Fabrics::new(fabrics), Box::new(GreedyMatching::new(places)));
    for name in NAMES {
        leases.know_host(name);
    }
    leases
}

fn apply(manager: &mut Leases, now: Time, input: Input) -> Vec<Output> {
    manager.handle(now, input);
    std::iter::from_fn(|| manager.poll(now)).collect()
}

fn agent(host: usize) -> AgentKey {
    AgentKey { name: NAMES[host].into(), incarnation: 1 }
}

fn join(manager: &mut Leases, now: Time, host: usize, leases: Vec<HeldLease>) -> Vec<Output> {
    let address = ([10, 0, 0, host as u8].into(), 7401);
    apply(manager, now, Input::Join(Join { agent: agent(host), address, from: HOME, leases }))
}

fn object(data: u64) -> ObjectId {
    ObjectId { app: AppId::default(), data: DataId(data) }
}

fn ask(manager: &mut Leases, now: Time, source: usize, receiver: usize) -> Vec<Output> {
    ask_as(manager, now, 1, source, receiver)
}

/// The same with another number: those from [`STREAMS_FROM`] on are for streams of messages.
fn ask_as(manager: &mut Leases, now: Time, number: u64, source: usize, receiver: usize) -> Vec<Output> {
    apply(manager, now, Input::Request(request(number, source, NAMES[receiver])))
}

fn request(number: u64, source: usize, receiver: &str) -> PathRequest {
    PathRequest {
        agent: agent(source),
        request: number,
        object: object(source as u64),
        object_bytes: 1_000,
        remaining_bytes: 1_000,
        further_sources: Vec::new(),
        receivers: Receivers::Named(vec![receiver.into()]),
        divisible: false,
        lease: None,
        wish: Default::default(),
    }
}

fn granted(outputs: &[Output]) -> Option<Grant> {
    outputs.iter().find_map(|output| match output {
        Output::Response { response: Ok(grant), .. } => Some(grant.clone()),
        _ => None,
    })
}

/// Returns a lease that an earlier manager has granted host 0 to send to host 1, and its commands at the
/// switch.
fn in_use() -> (HeldLease, Vec<DeviceCommand>) {
    let mut before = manager(1);
    apply(&mut before, Time(0), Input::Found { commands: vec![] });
    join(&mut before, Time(0), 0, vec![]);
    join(&mut before, Time(0), 1, vec![]);
    let grant = granted(&ask(&mut before, Time(0), 0, 1)).unwrap();
    let held = HeldLease {
        request: 1,
        plan: grant.plan_id,
        object: object(0),
        further_sources: Vec::new(),
        receivers: vec![NAMES[1].into()],
        bytes: 1_000,
        fabric: grant.plan.fabric.into(),
        channel: grant.plan.channel.clone(),
        left: None,
        kept: Some(grant.plan.clone()),
        only: false,
    };
    let at_the_switch = |command: &&DeviceCommand| matches!(command, DeviceCommand::CrossConnect { .. });
    (held, grant.plan.commands.iter().filter(at_the_switch).cloned().collect())
}

#[test]
fn circuits_in_use_are_lent_to_no_other() {
    let (held, commands) = in_use();
    assert!(!commands.is_empty());
    let mut after = manager(1_000);
    join(&mut after, Time(1), 2, vec![]);
    join(&mut after, Time(1), 1, vec![]);
    // It is not known yet which circuits there are; then the fibre of rack 1 is in one.
    assert_eq!(granted(&ask(&mut after, Time(2), 2, 1)), None);
    assert_eq!(granted(&apply(&mut after, Time(3), Input::Found { commands })), None);
    // The holder is back before the receiver's place in the queue would matter.
    let plan = held.kept.clone().unwrap();
    let outputs = join(&mut after, Time(4), 0, vec![held.clone()]);
    let told = Output::Again { plan_id: held.plan, plan: plan.clone() };
    assert!(outputs.contains(&told), "{outputs:?}");
    assert_eq!(after.leases().map(|lease| lease.grant.plan.clone()).collect::<Vec<_>>(), [plan]);
    let late = Time(4) + CLAIMS + CLAIMS;
    assert_eq!(granted(&std::iter::from_fn(|| after.poll(late)).collect::<Vec<_>>()), None);
    // Given back, it is the other's.
    let release = Input::Release { request: agent(0).request(1), plan: held.plan };
    assert!(granted(&apply(&mut after, late, release)).is_some());
}

/// A path is planned for all of its receivers: its source names also those whose agents its manager did not
/// see.
#[test]
fn a_path_is_named_with_receivers_that_are_gone() {
    let mut before = manager(1);
    apply(&mut before, Time(0), Input::Found { commands: vec![] });
    (0..3).for_each(|host| drop(join(&mut before, Time(0), host, vec![])));
    let receivers = Receivers::Named(vec![NAMES[1].into(), NAMES[2].into()]);
    let wanted = PathRequest { receivers, ..request(1, 0, NAMES[1]) };
    let first = granted(&apply(&mut before, Time(0), Input::Request(wanted))).unwrap();
    apply(&mut before, Time(1), Input::Leave { agent: agent(1), keeps: false });
    let request = agent(0).request(1);
    let smaller = Input::Extend {
        request,
        time: None,
        add: vec![],
        remove: vec![NAMES[2].into()],
        sources: Vec::new(),
    };
    let outputs = apply(&mut before, Time(2), smaller);
    let grant = outputs.iter().find_map(|output| match output {
        Output::Extended { result: Ok(grant), .. } => grant.clone(),
        _ => None,
    });
    let grant = grant.expect("it is smaller now");
    assert_ne!(grant.plan, first.plan);
    assert_eq!(grant.receiver_names().collect::<Vec<_>>(), [NAMES[1]]);
    let held = HeldLease {
        request: 1,
        plan: grant.plan_id,
        object: object(0),
        further_sources: Vec::new(),
        receivers: grant.receiver_names().cloned().collect(),
        bytes: 1_000,
        fabric: grant.plan.fabric.into(),
        channel: grant.plan.channel.clone(),
        left: None,
        kept: Some(grant.plan.clone()),
        only: false,
    };
    let mut after = manager(1_000);
    apply(&mut after, Time(3), Input::Found { commands: grant.plan.commands.to_vec() });
    join(&mut after, Time(4), 0, vec![held]);
    assert_eq!(after.leases().map(|lease| lease.grant.plan.clone()).collect::<Vec<_>>(), [grant.plan]);
}

/// A path that cannot go on because a part of it has failed is still used until its holder hears that:
/// nothing of it is lent before.
#[test]
fn circuits_of_a_path_that_cannot_go_on_rest() {
    let (held, commands) = in_use();
    let plan = held.kept.clone().unwrap();
    let holder = plan.resources.iter().find(|resource| **resource == Resource::CircuitPort { port: 0 });
    let failure = Failure::Resource(*holder.expect("the holder's fibre is in its path"));
    let mut after = manager(1_000);
    apply(&mut after, Time(2), Input::Found { commands });
    apply(&mut after, Time(2), Input::Failed { failures: vec![failure] });
    join(&mut after, Time(3), 1, vec![]);
    join(&mut after, Time(3), 2, vec![]);
    join(&mut after, Time(4), 0, vec![held]);
    assert_eq!(after.leases().count(), 0, "its fibre has failed");
    assert_eq!(granted(&ask(&mut after, Time(5), 2, 1)), None, "the receiver's fibre is in a circuit");
    let over = Time(2) + CLAIMS;
    assert!(granted(&std::iter::from_fn(|| after.poll(over)).collect::<Vec<_>>()).is_some());
}

#[test]
fn what_is_not_claimed_is_free_after_a_while() {
    let (_, commands) = in_use();
    let mut after = manager(1_000);
    join(&mut after, Time(1), 2, vec![]);
    join(&mut after, Time(1), 1, vec![]);
    join(&mut after, Time(1), 3, vec![]);
    apply(&mut after, Time(2), Input::Found { commands });
    // Racks without circuits need not wait.
    assert!(granted(&ask(&mut after, Time(3), 3, 2)).is_some());
    let release = after.leases().map(|lease| lease.grant.plan_id).next().unwrap();
    apply(&mut after, Time(3), Input::Release { request: agent(3).request(1), plan: release });
    assert_eq!(granted(&ask(&mut after, Time(4), 2, 1)), None);
    assert_eq!(after.deadline(), Some(Time(2) + CLAIMS));
    let over = Time(2) + CLAIMS;
    assert!(granted(&std::iter::from_fn(|| after.poll(over)).collect::<Vec<_>>()).is_some());
}

#[test]
fn a_plan_that_uses_what_it_does_not_hold_is_lost() {
    let (held, _) = in_use();
    let taken_over = |kept| {
        let mut after = manager(1_000);
        apply(&mut after, Time(1), Input::Found { commands: vec![] });
        join(&mut after, Time(1), 0, vec![HeldLease { kept, ..held.clone() }]);
        after.leases().count()
    };
    let plan = held.kept.clone().unwrap();
    assert_eq!(taken_over(Some(plan.clone())), 1);
    assert_eq!(taken_over(None), 0, "a channel does not tell the circuits");
    let mut foreign = plan.clone();
    foreign.commands.change(|all| all.push(DeviceCommand::CrossConnect { from: 2, to: 3 }));
    assert_eq!(taken_over(Some(foreign)), 0);
    let mut nowhere = plan.clone();
    nowhere.commands.change(|all| all.push(DeviceCommand::CrossConnect { from: u32::MAX, to: 0 }));
    assert_eq!(taken_over(Some(nowhere)), 0);
    let mut less = plan;
    less.resources.clear();
    assert_eq!(taken_over(Some(less)), 0);
}

/// A circuit switch that does not answer delays no transfer that can be served without it, and gives nothing
/// away.
#[test]
fn other_fabrics_do_not_wait_for_the_circuit_switch() {
    let mut manager = manager_with(1, vec![Box::new(TcpChain)]);
    for host in 0..4 {
        join(&mut manager, Time(0), host, vec![]);
    }
    let meanwhile = granted(&ask(&mut manager, Time(1), 0, 1)).expect("granted at once");
    assert_eq!(meanwhile.plan.fabric, "tcp-chain");
    apply(&mut manager, Time(2), Input::Found { commands: vec![] });
    let then = granted(&ask(&mut manager, Time(3), 2, 3)).expect("granted at once");
    assert_eq!(then.plan.fabric, "ocs");
}

#[test]
fn who_is_nowhere_in_the_network_is_named() {
    let mut manager = manager(1);
    apply(&mut manager, Time(0), Input::Found { commands: vec![] });
    join(&mut manager, Time(0), 0, vec![]);
    let stranger = AgentKey { name: "stranger".into(), incarnation: 1 };
    let address = ([10, 0, 0, 9].into(), 7401);
    apply(&mut manager, Time(0), Input::Join(Join { agent: stranger, address, from: HOME, leases: vec![] }));
    let outputs = apply(&mut manager, Time(1), Input::Request(request(1, 0, "stranger")));
    let [Output::Response { response: Err(denial), .. }] = &outputs[..] else { panic!("{outputs:?}") };
    let words = denial.to_string();
    assert!(words.contains("the fabric ocs do not say where 'stranger' is"), "{words}");
}

/// Streams of messages never use circuits.
#[test]
fn streams_do_not_wait_for_the_circuit_switch() {
    let pool = AddressPool::new([239, 255, 65, 0].into(), 16, 7411).unwrap();
    let mut manager = manager_with(1, vec![Box::new(IpMulticast::new(pool))]);
    for host in 0..4 {
        join(&mut manager, Time(0), host, vec![]);
    }
    let stream = granted(&ask_as(&mut manager, Time(1), STREAMS_FROM, 0, 1)).expect("granted at once");
    assert_eq!(stream.plan.fabric, "ip-multicast");
}

/// An agent that uses circuits has them, though the switch has not spoken yet.
#[test]
fn circuits_in_use_are_taken_over_before_the_switch_answers() {
    let (held, _) = in_use();
    let plan = held.plan;
    let mut manager = manager_with(9, vec![Box::new(TcpChain)]);
    for host in 1..4 {
        join(&mut manager, Time(0), host, vec![]);
    }
    join(&mut manager, Time(1), 0, vec![held]);
    assert_eq!(manager.leases().map(|lease| lease.grant.plan_id).collect::<Vec<_>>(), [plan]);
}
