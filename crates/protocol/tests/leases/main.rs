//! The manager's core in virtual time.

mod beginnings;
mod choosing;
mod circuits;
mod crowds;
mod draining;
mod external;
mod groups;
mod histories;
mod hostile;

use circuits::circuits;
use polycast_planning::ip_multicast::{AddressPool, IpMulticast};
use polycast_planning::ocs::Ocs;
use polycast_planning::tcp_chain::TcpChain;
use polycast_planning::{
    Channel, Decision, DeviceCommand, Draft, Fabric, Fabrics, Failure, Fcfs, GreedyMatching, Pending, PlanId,
    Scheduler,
};
use polycast_protocol::leases::{
    AgentKey, Denial, Going, Grant, HeldLease, Input, Join, JoinRefusal, Leases, LeasesConfig, NotMember,
    OnDeviceFailure, Output, PathRequest, Receivers, Record, ReleaseReason, RequestKey, SessionsConfig, Wait,
    known_hosts,
};
use polycast_types::{AppId, DataId, Duration, ObjectId, Time};

const HOME: core::net::IpAddr = core::net::IpAddr::V4(core::net::Ipv4Addr::LOCALHOST);
const SESSIONS: SessionsConfig =
    SessionsConfig { reconnect: Duration::from_secs(3_600), alive: Duration::ZERO, of_address_max: 1_024 };
const LEASE: Duration = Duration::from_secs(30);
const SILENCE: Duration = Duration::from_secs(3);

fn config() -> LeasesConfig {
    LeasesConfig {
        lease: LEASE,
        silence: SILENCE,
        sessions: SESSIONS,
        pending_max: 8,
        leases_max: 100,
        agent_leases_max: 100,
        receiver_leases_max: 1_000,
        grant_bytes_max: u64::MAX,
        agents_max: 6,
        on_device_failure: OnDeviceFailure::Fallback,
        kept_max: 0,
        patience: Duration::ZERO,
        claims: None,
        recorded: true,
        first_plan: PlanId(1_000),
    }
}

/// A manager with `addresses` multicast addresses, and the chain behind them if asked for.
fn manager(addresses: u32, chain: bool) -> Leases {
    with_scheduler(addresses, chain, Box::new(Fcfs))
}

fn with_scheduler(addresses: u32, chain: bool, scheduler: Box<dyn Scheduler>) -> Leases {
    with_config(config(), addresses, chain, scheduler)
}

fn with_config(config: LeasesConfig, addresses: u32, chain: bool, scheduler: Box<dyn Scheduler>) -> Leases {
    let pool = AddressPool::new([239, 255, 64, 0].into(), addresses, 7410).unwrap();
    let mut fabrics: Vec<Box<dyn Fabric>> = vec![Box::new(IpMulticast::new(pool))];
    if chain {
        fabrics.push(Box::new(TcpChain));
    }
    Leases::new(config, Fabrics::new(fabrics), scheduler)
}

fn agent(number: u8, incarnation: u64) -> AgentKey {
    AgentKey { name: format!("host-{number}"), incarnation }
}

fn join(number: u8, incarnation: u64) -> Input {
    Input::Join(Join {
        agent: agent(number, incarnation),
        address: ([10, 0, 0, number].into(), 7401),
        from: [10, 0, 0, number].into(),
        leases: Vec::new(),
    })
}

fn object(data: u64) -> ObjectId {
    ObjectId { app: AppId::default(), data: DataId(data) }
}

fn request(source: AgentKey, number: u64, receivers: &[&str]) -> PathRequest {
    PathRequest {
        agent: source,
        request: number,
        object: object(number),
        object_bytes: 1_000,
        remaining_bytes: 1_000,
        further_sources: Vec::new(),
        receivers: Receivers::Named(receivers.iter().map(|name| (*name).to_string()).collect()),
        divisible: false,
        lease: None,
        wish: Default::default(),
    }
}

fn drain(manager: &mut Leases, now: Time) -> Vec<Output> {
    std::iter::from_fn(|| manager.poll(now)).collect()
}

fn apply(manager: &mut Leases, now: Time, input: Input) -> Vec<Output> {
    manager.handle(now, input);
    drain(manager, now)
}

/// The one response among `outputs`.
fn response(outputs: &[Output]) -> Result<Grant, Denial> {
    let responses: Vec<_> = outputs
        .iter()
        .filter_map(|output| match output {
            Output::Response { response, .. } => Some(response.clone()),
            _ => None,
        })
        .collect();
    assert_eq!(responses.len(), 1, "{outputs:?}");
    responses[0].clone()
}

fn ask(manager: &mut Leases, now: Time, request: PathRequest) -> Result<Grant, Denial> {
    response(&apply(manager, now, Input::Request(request)))
}

fn with_three_agents(mut manager: Leases) -> Leases {
    for number in 0..3 {
        apply(&mut manager, Time(0), join(number, 1));
    }
    manager
}

/// Circuits and the greedy matching behind the manager's core: hosts are known by name before they join.
#[test]
fn circuits_are_lent_to_hosts_by_their_places() {
    let names = ["host-2", "host-0", "host-1", "host-4"];
    // One server a rack: host-2 in rack 0, host-0 in rack 1, and so on.
    let places: Vec<_> = known_hosts(names).map(|(_, host)| host).zip(0..).collect();
    let pool = AddressPool::new([239, 255, 64, 0].into(), 4, 7410).unwrap();
    let ocs = Ocs::new(circuits(4), places.clone(), pool).unwrap();
    let mut manager =
        Leases::new(config(), Fabrics::new(vec![Box::new(ocs)]), Box::new(GreedyMatching::new(places)));
    for (name, host) in known_hosts(names) {
        assert_eq!(manager.know_host(name), host);
    }
    for number in [0, 1, 2, 4, 5] {
        apply(&mut manager, Time(0), join(number, 1));
    }
    let grant = ask(&mut manager, Time(1), request(agent(2, 1), 1, &["host-0", "host-1"])).unwrap();
    assert_eq!(grant.plan.fabric, "ocs");
    let from_rack_0 =
        |command: &DeviceCommand| matches!(command, DeviceCommand::CrossConnect { from: 0, to: 4 });
    assert!(grant.plan.commands.iter().any(from_rack_0), "{:?}", grant.plan.commands);
    // host-0's only fibre is in use; a place that the manager does not know is no place.
    let outputs = apply(&mut manager, Time(2), Input::Request(request(agent(4, 1), 2, &["host-0"])));
    let [Output::Waiting { wait, .. }] = &outputs[..] else { panic!("{outputs:?}") };
    // 1,000 bytes at 1 Gbit/s take 8 us, of which 1 ns is over.
    assert_eq!(*wait, Wait { before: 0, estimate: Some(Duration(7_999)) });
    let denial = ask(&mut manager, Time(3), request(agent(5, 1), 3, &["host-0"])).unwrap_err();
    assert!(denial.to_string().contains("do not say where"), "{denial}");
    let key = agent(2, 1).request(1);
    let outputs = apply(&mut manager, Time(4), Input::Release { request: key, plan: grant.plan_id });
    assert_eq!(response(&outputs).unwrap().plan.fabric, "ocs");
}

#[test]
fn a_path_is_lent_and_given_back() {
    let mut manager = with_three_agents(manager(1, false));
    let grant = ask(&mut manager, Time(1), request(agent(0, 1), 7, &["host-1", "host-2"])).unwrap();
    assert_eq!(grant.accepted_bytes, 1_000);
    assert_eq!(grant.plan.fabric, "ip-multicast");
    let receivers = [
        ("host-1".to_string(), ([10, 0, 0, 1].into(), 7401)),
        ("host-2".to_string(), ([10, 0, 0, 2].into(), 7401)),
    ];
    assert_eq!(grant.receivers, receivers);
    // The only address is taken: the next one waits, and gets it when it is released.
    let waits = apply(&mut manager, Time(2), Input::Request(request(agent(1, 1), 3, &["host-0"])));
    let wait = Wait { before: 0, estimate: None };
    assert_eq!(waits, [Output::Waiting { request: agent(1, 1).request(3), wait }]);
    assert_eq!(manager.pending().len(), 1);
    let release = Input::Release { request: agent(0, 1).request(7), plan: grant.plan_id };
    let outputs = apply(&mut manager, Time(3), release.clone());
    assert!(matches!(outputs[0], Output::Released { reason: ReleaseReason::Released, .. }), "{outputs:?}");
    let second = response(&outputs).unwrap();
    assert_eq!(second.plan.resources, grant.plan.resources);
    assert_ne!(second.plan_id, grant.plan_id);
    // A release that comes twice does not take the path from the next holder.
    assert_eq!(apply(&mut manager, Time(4), release), []);
    assert_eq!(manager.leases().count(), 1);
}

#[test]
fn wrong_requests_are_denied_by_name() {
    let mut manager = with_three_agents(manager(1, true));
    let mut denial = |receivers: &[&str]| {
        ask(&mut manager, Time(1), request(agent(0, 1), 1, receivers)).unwrap_err().to_string()
    };
    assert_eq!(denial(&["host-1", "absent"]), "there is no agent 'absent'");
    assert_eq!(denial(&["host-1", "host-2", "host-1"]), "the receiver 'host-1' is named twice");
    assert_eq!(denial(&["host-0"]), "'host-0' is the source and cannot be a receiver");
    assert_eq!(denial(&[]), "no receiver is named");
    let stranger = ask(&mut manager, Time(1), request(agent(9, 1), 1, &["host-1"])).unwrap_err();
    assert_eq!(stranger.to_string(), "the manager does not know the agent 'host-9'");
    let mut sizes = request(agent(0, 1), 1, &["host-1"]);
    sizes.remaining_bytes = 1_001;
    assert!(matches!(ask(&mut manager, Time(1), sizes), Err(Denial::Sizes { .. })));
}

#[test]
fn all_means_everybody_else() {
    let mut manager = with_three_agents(manager(1, true));
    let mut to_all = request(agent(1, 1), 1, &[]);
    to_all.receivers = Receivers::All;
    let grant = ask(&mut manager, Time(1), to_all.clone()).unwrap();
    let names: Vec<_> = grant.receivers.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["host-0", "host-2"]);
    for number in [0, 2] {
        apply(&mut manager, Time(2), Input::Leave { agent: agent(number, 1), keeps: false });
    }
    to_all.request = 2;
    assert_eq!(ask(&mut manager, Time(3), to_all), Err(Denial::NobodyElse));
}

#[test]
fn asking_twice_gives_one_path() {
    let mut manager = with_three_agents(manager(4, false));
    let first = ask(&mut manager, Time(1), request(agent(0, 1), 7, &["host-1"])).unwrap();
    let again = ask(&mut manager, Time(2), request(agent(0, 1), 7, &["host-1"])).unwrap();
    assert_eq!(first, again);
    assert_eq!(manager.leases().count(), 1);
    let mut other = request(agent(0, 1), 7, &["host-1"]);
    other.object = object(99);
    assert_eq!(ask(&mut manager, Time(3), other), Err(Denial::RequestTaken(7)));
    // The same number of another agent, or of another run, is another request.
    assert_ne!(
        ask(&mut manager, Time(4), request(agent(1, 1), 7, &["host-2"])).unwrap().plan_id,
        first.plan_id
    );
}

/// An agent that did not hear of its path asks again, long after that was lent: it has all of its time.
#[test]
fn a_path_that_is_told_again_is_lent_anew() {
    let mut manager = with_three_agents(manager(1, false));
    let asked = request(agent(0, 1), 1, &["host-1"]);
    let grant = ask(&mut manager, Time(0), asked.clone()).unwrap();
    let (second, mut now) = (Duration::from_secs(1), Time(0));
    let beat = |manager: &mut Leases, now: Time| {
        let alive = |number| Input::Heartbeat { agent: agent(number, 1), leases: Vec::new() };
        (0..3).for_each(|number| drop(apply(manager, now, alive(number))));
        manager.leases().count()
    };
    while now + second < Time(0) + LEASE {
        now += second;
        assert_eq!(beat(&mut manager, now), 1);
    }
    assert_eq!(ask(&mut manager, now, asked).unwrap(), grant);
    let end = now + LEASE;
    while now + second < end {
        now += second;
        assert_eq!(beat(&mut manager, now), 1, "it is lent until {end:?}, and it is {now:?}");
    }
    assert_eq!(beat(&mut manager, end), 0);
}

#[test]
fn a_lease_lives_as_long_as_heartbeats_name_it() {
    let mut manager = with_three_agents(manager(1, false));
    let grant = ask(&mut manager, Time(0), request(agent(0, 1), 1, &["host-1"])).unwrap();
    let mut now = Time(0);
    for _ in 0..60 {
        now += Duration::from_secs(1);
        for number in 0..3 {
            let leases = if number == 0 { vec![grant.plan_id] } else { Vec::new() };
            let beat = Input::Heartbeat { agent: agent(number, 1), leases };
            let outputs = apply(&mut manager, now, beat);
            assert_eq!(outputs, [Output::Heartbeat { agent: agent(number, 1), result: Ok(Vec::new()) }]);
        }
    }
    assert_eq!(manager.leases().count(), 1);
    // From now on the source lives, but does not name the lease.
    let end = now + LEASE;
    while now < end {
        assert_eq!(manager.leases().count(), 1);
        now += Duration::from_secs(1);
        apply(&mut manager, now, Input::Heartbeat { agent: agent(0, 1), leases: Vec::new() });
    }
    assert_eq!(manager.leases().count(), 0);
    let beat = Input::Heartbeat { agent: agent(0, 1), leases: vec![grant.plan_id] };
    let outputs = apply(&mut manager, now, beat);
    assert_eq!(outputs, [Output::Heartbeat { agent: agent(0, 1), result: Ok(vec![grant.plan_id]) }]);
}

#[test]
fn the_deadline_is_when_something_ends() {
    let mut manager = manager(1, false);
    assert_eq!(manager.deadline(), None);
    apply(&mut manager, Time(5), join(0, 1));
    assert_eq!(manager.deadline(), Some(Time(5) + SILENCE));
    let gone = drain(&mut manager, Time(5) + SILENCE);
    assert_eq!(gone, [Output::Gone { agent: agent(0, 1), how: Going::Silent }]);
    assert_eq!(manager.deadline(), None);
}

#[test]
fn a_silent_agent_is_gone_but_its_leases_stay_until_they_expire() {
    let mut manager = with_three_agents(manager(1, false));
    let grant = ask(&mut manager, Time(0), request(agent(0, 1), 1, &["host-1"])).unwrap();
    let outputs = drain(&mut manager, Time(0) + SILENCE);
    assert_eq!(outputs.len(), 3, "{outputs:?}");
    assert_eq!(manager.leases().count(), 1);
    let beat = Input::Heartbeat { agent: agent(0, 1), leases: vec![grant.plan_id] };
    let outputs = apply(&mut manager, Time(0) + SILENCE, beat);
    let unknown = NotMember::Unknown("host-0".into());
    assert_eq!(outputs, [Output::Heartbeat { agent: agent(0, 1), result: Err(unknown) }]);
    let outputs = drain(&mut manager, Time(0) + LEASE);
    assert!(matches!(outputs[..], [Output::Released { reason: ReleaseReason::Expired, .. }]), "{outputs:?}");
}

#[test]
fn a_restart_gives_back_what_the_run_before_held() {
    let mut manager = with_three_agents(manager(1, false));
    let grant = ask(&mut manager, Time(0), request(agent(0, 1), 1, &["host-1"])).unwrap();
    apply(&mut manager, Time(1), Input::Request(request(agent(0, 1), 2, &["host-2"])));
    assert_eq!(manager.pending().len(), 1);
    let outputs = apply(&mut manager, Time(2), join(0, 2));
    assert!(matches!(outputs[0], Output::Released { plan_id, reason: ReleaseReason::HolderGone, .. }
        if plan_id == grant.plan_id));
    let gone = Output::Gone { agent: agent(0, 1), how: Going::Restarted };
    assert!(outputs.contains(&gone), "all that depends on the run before hears of it: {outputs:?}");
    assert_eq!((manager.leases().count(), manager.pending().len()), (0, 0));
    let beat = Input::Heartbeat { agent: agent(0, 1), leases: Vec::new() };
    let superseded = NotMember::Superseded("host-0".into());
    assert_eq!(
        apply(&mut manager, Time(3), beat),
        [Output::Heartbeat { agent: agent(0, 1), result: Err(superseded) }]
    );
}

#[test]
fn a_name_belongs_to_one_host_at_a_time() {
    let mut manager = manager(1, false);
    apply(&mut manager, Time(0), join(0, 1));
    let elsewhere =
        Join { agent: agent(0, 2), address: ([10, 0, 0, 99].into(), 7401), from: HOME, leases: Vec::new() };
    let outputs = apply(&mut manager, Time(1), Input::Join(elsewhere.clone()));
    let [Output::Join { result: Err(refusal), .. }] = &outputs[..] else { panic!("{outputs:?}") };
    assert_eq!(
        refusal.to_string(),
        "the name 'host-0' is taken by the agent at 10.0.0.0: stop that one first, or take another name"
    );
    // When the first is gone, the other may have it.
    let later = Time(1) + SILENCE;
    let outputs = apply(&mut manager, later, Input::Join(elsewhere));
    assert!(outputs.iter().any(|o| matches!(o, Output::Join { result: Ok(_), .. })), "{outputs:?}");
}

#[test]
fn names_and_numbers_of_agents_have_bounds() {
    let mut manager = manager(1, false);
    for name in ["", "all", "a b", "a,b", "a\n", &"x".repeat(256)] {
        let agent = AgentKey { name: name.to_string(), incarnation: 1 };
        let join = Join { agent, address: ([10, 0, 0, 1].into(), 1), from: HOME, leases: Vec::new() };
        let outputs = apply(&mut manager, Time(0), Input::Join(join));
        assert!(matches!(outputs[..], [Output::Join { result: Err(JoinRefusal::BadName(_)), .. }]), "{name}");
    }
    for number in 0..7 {
        let outputs = apply(&mut manager, Time(0), join(number, 1));
        let [Output::Join { result, .. }] = &outputs[..] else { panic!("{outputs:?}") };
        let result = result.clone().map(drop);
        assert_eq!(result, if number < 6 { Ok(()) } else { Err(JoinRefusal::Full(6)) });
    }
}

#[test]
fn the_queue_has_an_end() {
    let mut manager = with_three_agents(manager(1, false));
    ask(&mut manager, Time(0), request(agent(0, 1), 0, &["host-1"])).unwrap();
    for number in 1..=8 {
        let outputs = apply(&mut manager, Time(1), Input::Request(request(agent(0, 1), number, &["host-1"])));
        let [Output::Waiting { wait, .. }] = &outputs[..] else { panic!("{outputs:?}") };
        assert_eq!(wait.before as u64, number - 1);
    }
    let denial = ask(&mut manager, Time(1), request(agent(0, 1), 9, &["host-1"])).unwrap_err();
    assert_eq!(denial, Denial::QueueFull(8));
    apply(&mut manager, Time(2), Input::Withdraw { request: agent(0, 1).request(4) });
    assert_eq!(manager.pending().len(), 7);
}

#[test]
fn requests_learn_that_a_receiver_has_left() {
    let mut manager = with_three_agents(manager(1, false));
    ask(&mut manager, Time(0), request(agent(0, 1), 0, &["host-1"])).unwrap();
    let mut to_all = request(agent(0, 1), 1, &[]);
    to_all.receivers = Receivers::All;
    apply(&mut manager, Time(1), Input::Request(to_all));
    apply(&mut manager, Time(1), Input::Request(request(agent(0, 1), 2, &["host-2"])));
    let outputs = apply(&mut manager, Time(2), Input::Leave { agent: agent(2, 1), keeps: false });
    assert_eq!(response(&outputs), Err(Denial::Lost("host-2".into())));
    // The one for all goes on without it.
    assert_eq!(manager.pending().len(), 1);
    let outputs = apply(&mut manager, Time(3), Input::Leave { agent: agent(1, 1), keeps: false });
    assert_eq!(response(&outputs), Err(Denial::NobodyElse));
}

#[test]
fn a_new_manager_takes_running_leases_over() {
    let mut before = with_three_agents(manager(4, false));
    let grant = ask(&mut before, Time(0), request(agent(0, 1), 1, &["host-1"])).unwrap();
    let held = HeldLease {
        request: 1,
        plan: grant.plan_id,
        object: object(1),
        further_sources: Vec::new(),
        receivers: vec!["host-1".into()],
        bytes: 1_000,
        fabric: grant.plan.fabric.into(),
        channel: grant.plan.channel.clone(),
        left: None,
        kept: None,
        only: false,
    };
    let mut after = manager(4, false);
    apply(&mut after, Time(0), join(1, 1));
    let mut again =
        Join { agent: agent(0, 1), address: ([10, 0, 0, 0].into(), 7401), from: HOME, leases: vec![held] };
    apply(&mut after, Time(0), Input::Join(again.clone()));
    assert_eq!(after.leases().next().unwrap().grant.plan_id, grant.plan_id);
    for number in 2..5 {
        let other = ask(&mut after, Time(1), request(agent(1, 1), number, &["host-0"])).unwrap();
        assert_ne!(other.plan.resources, grant.plan.resources);
        assert_ne!(other.plan_id, grant.plan_id);
    }
    // One whose address another agent has by now is lost.
    again.leases[0].plan = PlanId(5_000);
    again.leases[0].request = 77;
    apply(&mut after, Time(2), Input::Join(again));
    let beat = Input::Heartbeat { agent: agent(0, 1), leases: vec![grant.plan_id, PlanId(5_000)] };
    let outputs = apply(&mut after, Time(3), beat);
    let lost = vec![PlanId(5_000)];
    assert_eq!(outputs, [Output::Heartbeat { agent: agent(0, 1), result: Ok(lost) }]);
}

/// Grants half of what is asked for, and once more than there is to lend.
#[derive(Debug)]
struct Halves;

impl Scheduler for Halves {
    fn name(&self) -> &'static str {
        "halves"
    }

    fn decide(
        &mut self,
        _now: Time,
        pending: &[&Pending],
        draft: Draft<'_>,
        fabrics: &Fabrics,
    ) -> Vec<Decision> {
        let accept = |p: &&Pending| {
            let plan = fabrics.plan(draft.network(), &p.group).ok()?;
            Some(Decision::Accept {
                request: p.id,
                bytes: p.remaining_bytes.div_ceil(2),
                plan,
                passed_over: Vec::new(),
            })
        };
        pending.iter().filter_map(accept).collect()
    }
}

#[test]
fn part_of_a_request_can_be_granted_where_the_source_can_use_it() {
    let mut manager = with_three_agents(with_scheduler(3, false, Box::new(Halves)));
    assert_eq!(manager.scheduler(), "halves");
    let mut part = request(agent(0, 1), 1, &["host-1"]);
    part.divisible = true;
    let first = ask(&mut manager, Time(0), part.clone()).unwrap();
    assert_eq!(first.accepted_bytes, 500);
    part.request = 2;
    part.remaining_bytes = 500;
    assert_eq!(ask(&mut manager, Time(1), part).unwrap().accepted_bytes, 250);
    // Half an indivisible object is of no use, though a third address is free.
    let whole = apply(&mut manager, Time(2), Input::Request(request(agent(1, 1), 1, &["host-2"])));
    assert!(matches!(whole[..], [Output::Waiting { .. }]), "{whole:?}");
}

#[test]
fn a_scheduler_that_lends_twice_is_not_obeyed() {
    let mut manager = with_three_agents(with_scheduler(1, false, Box::new(Halves)));
    for number in 0..2 {
        let mut part = request(agent(number, 1), 1, &["host-2"]);
        part.divisible = true;
        manager.handle(Time(0), Input::Request(part));
    }
    // Both plans of its answer are for the one address.
    let outputs = drain(&mut manager, Time(0));
    assert!(response(&outputs).is_ok());
    assert_eq!((manager.leases().count(), manager.pending().len()), (1, 1));
}

/// Has all wait, for a path that should be back so long from now, or before.
#[derive(Debug)]
struct Patient(i64);

impl Scheduler for Patient {
    fn name(&self) -> &'static str {
        "patient"
    }

    fn decide(&mut self, now: Time, pending: &[&Pending], _: Draft<'_>, _: &Fabrics) -> Vec<Decision> {
        let until = Some(Time(now.0.saturating_add_signed(self.0)));
        pending.iter().map(|p| Decision::Wait { request: p.id, until }).collect()
    }
}

/// It is decided anew when a path should be back; one that should be back by now is not waited for over and
/// over.
#[test]
fn what_should_be_back_by_now_is_no_reason_to_look_again() {
    let now = Time(1_000_000_000);
    for (ahead, looks) in [(-7, false), (0, false), (1, true), (7, true)] {
        let mut manager = with_three_agents(with_scheduler(1, false, Box::new(Patient(ahead))));
        let outputs = apply(&mut manager, now, Input::Request(request(agent(0, 1), 1, &["host-1"])));
        let estimate = Some(Duration(ahead.max(0) as u64));
        let wait = Wait { before: 0, estimate };
        assert_eq!(outputs, [Output::Waiting { request: agent(0, 1).request(1), wait }]);
        let at = Time(now.0.saturating_add_signed(ahead));
        assert_eq!(manager.deadline(), Some(if looks { at } else { Time(0) + SILENCE }), "{ahead}");
    }
}

#[test]
fn a_path_ends_when_its_time_is_over_unless_it_is_extended() {
    let mut manager = with_three_agents(manager(1, false));
    let mut short = request(agent(0, 1), 1, &["host-1"]);
    short.lease = Some(Duration::from_secs(2));
    let grant = ask(&mut manager, Time(0), short).unwrap();
    assert_eq!(grant.lease, Some(Duration::from_secs(2)));
    // Heartbeats do not keep it longer; one that waits is told when its turn comes.
    let second = Time(1_000_000_000);
    apply(&mut manager, second, Input::Heartbeat { agent: agent(0, 1), leases: vec![grant.plan_id] });
    let outputs = apply(&mut manager, second, Input::Request(request(agent(1, 1), 1, &["host-2"])));
    let wait = Wait { before: 0, estimate: Some(Duration::from_secs(1)) };
    assert_eq!(outputs, [Output::Waiting { request: agent(1, 1).request(1), wait }]);
    let extend = |millis: u64| Input::Extend {
        request: agent(0, 1).request(1),
        time: Some(Duration::from_millis(millis)),
        add: Vec::new(),
        remove: Vec::new(),
        sources: Vec::new(),
    };
    let outputs = apply(&mut manager, second, extend(1_500));
    let [Output::Extended { result: Ok(Some(grant)), .. }] = &outputs[..] else { panic!("{outputs:?}") };
    assert_eq!(grant.lease, Some(Duration::from_millis(1_500)));
    assert_eq!(drain(&mut manager, Time(2_499_999_999)), []);
    let outputs = drain(&mut manager, Time(2_500_000_000));
    assert!(matches!(outputs[0], Output::Released { reason: ReleaseReason::TimeOver, .. }), "{outputs:?}");
    assert!(response(&outputs).is_ok(), "the next one has it");
    let outputs = apply(&mut manager, Time(2_500_000_001), extend(1));
    assert_eq!(outputs.len(), 1);
    let [Output::Extended { result: Err(denial), .. }] = &outputs[..] else { panic!("{outputs:?}") };
    assert_eq!(denial.to_string(), "there is no request 1 that waits or has a path");
}

#[test]
fn the_group_of_a_request_can_change() {
    let mut manager = with_three_agents(manager(1, false));
    let held = ask(&mut manager, Time(0), request(agent(0, 1), 1, &["host-1"])).unwrap();
    apply(&mut manager, Time(1), Input::Request(request(agent(1, 1), 1, &["host-2"])));
    let mut change = |request: RequestKey, add: &[&str], remove: &[&str]| {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_string()).collect();
        let extend = Input::Extend {
            request,
            time: None,
            add: names(add),
            remove: names(remove),
            sources: Vec::new(),
        };
        let outputs = apply(&mut manager, Time(2), extend);
        let moves = outputs.iter().any(|output| matches!(output, Output::Replanned { .. }));
        assert!(!moves, "those who join hear the same address");
        let found = outputs.into_iter().find_map(|output| match output {
            Output::Extended { result, .. } => Some(result),
            _ => None,
        });
        found.unwrap()
    };
    let first = agent(0, 1).request(1);
    let grant = change(first.clone(), &["host-2"], &[]).unwrap().unwrap();
    let names: Vec<_> = grant.receivers.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["host-1", "host-2"]);
    assert_eq!(grant.plan.channel, held.plan.channel);
    let grant = change(first.clone(), &[], &["host-1"]).unwrap().unwrap();
    assert_eq!(grant.receivers.len(), 1);
    for (add, remove, why) in [
        ("host-2", "", "'host-2' is a receiver of this transfer already"),
        ("host-9", "", "there is no agent 'host-9'"),
        ("host-0", "", "'host-0' is the source and cannot be a receiver"),
        ("", "host-1", "'host-1' is not a receiver of this transfer"),
        ("", "host-2", "no receiver is named"),
    ] {
        let one = |name: &'static str| if name.is_empty() { Vec::new() } else { vec![name] };
        assert_eq!(change(first.clone(), &one(add), &one(remove)).unwrap_err().to_string(), why);
    }
    // One that waits changes too, and is granted as it is then.
    assert_eq!(change(agent(1, 1).request(1), &["host-0"], &["host-2"]), Ok(None));
    let outputs = apply(&mut manager, Time(3), Input::Withdraw { request: first });
    let names: Vec<_> = response(&outputs).unwrap().receivers.into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["host-0"]);
}

/// A path, or a request that waits, for hosts 1, 2 and 3, of which the first has died since. Gives the
/// manager and the request.
fn with_a_dead_receiver(waits: bool) -> (Leases, RequestKey) {
    let sessions = SessionsConfig { reconnect: Duration::from_secs(1), ..SESSIONS };
    let begun = with_config(LeasesConfig { sessions, ..config() }, 1, false, Box::new(Fcfs));
    let mut manager = with_three_agents(begun);
    apply(&mut manager, Time(0), join(3, 1));
    if waits {
        ask(&mut manager, Time(0), request(agent(2, 1), 9, &["host-3"])).unwrap();
    }
    let wanted = request(agent(0, 1), 1, &["host-1", "host-2", "host-3"]);
    apply(&mut manager, Time(0), Input::Request(wanted));
    let session = manager.session_of(&agent(1, 1)).unwrap();
    apply(&mut manager, Time(0), Input::Parted { agent: agent(1, 1), session });
    let outputs = drain(&mut manager, Time(0) + sessions.reconnect);
    assert!(outputs.contains(&Output::Gone { agent: agent(1, 1), how: Going::Died }), "{outputs:?}");
    assert_eq!(manager.pending().len(), usize::from(waits));
    (manager, agent(0, 1).request(1))
}

/// Changes a request; gives the names of its receivers, if it has a path, or why it stays.
fn change(
    manager: &mut Leases,
    request: &RequestKey,
    add: &[&str],
    remove: &[&str],
) -> Result<Vec<String>, String> {
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_string()).collect();
    let (request, add, remove) = (request.clone(), names(add), names(remove));
    let extend = Input::Extend { request, time: None, add, remove, sources: Vec::new() };
    let outputs = apply(manager, Time(0) + Duration::from_secs(1), extend);
    let result = outputs.into_iter().find_map(|output| match output {
        Output::Extended { result, .. } => Some(result),
        _ => None,
    });
    let grant = result.unwrap().map_err(|denial| denial.to_string())?;
    Ok(grant.iter().flat_map(Grant::receiver_names).cloned().collect())
}

/// Returns how many receivers the path is planned for.
fn planned_for(manager: &Leases) -> usize {
    let group = |record| match record {
        Record::Lease { group, .. } => Some(group.receivers.len()),
        _ => None,
    };
    manager.records().into_iter().filter_map(group).sum()
}

/// A receiver whose agent has died can be taken out, alone or with others, also by the next leader; none of
/// the others has to stay because of it.
#[test]
fn a_receiver_that_has_died_can_be_taken_out() {
    for is_next in [false, true] {
        for (remove, left) in [
            (&["host-1"][..], &["host-2", "host-3"][..]),
            (&["host-1", "host-2"], &["host-3"]),
            (&["host-2"], &["host-3", "host-1"]),
        ] {
            let (mut manager, request) = with_a_dead_receiver(false);
            if is_next {
                let mut next = self::manager(1, false);
                let written = serde_json::to_string(&manager.records()).unwrap();
                assert_eq!(next.restore(Time(1), serde_json::from_str::<Vec<_>>(&written).unwrap()), []);
                manager = next;
            }
            assert_eq!(change(&mut manager, &request, &[], remove), Ok(names(left)), "{remove:?}");
            assert_eq!(planned_for(&manager), left.len());
            let again = change(&mut manager, &request, &[], remove).unwrap_err();
            assert_eq!(again, format!("'{}' is not a receiver of this transfer", remove[0]));
        }
    }
}

/// A receiver that has died and come back is the same one, whichever number it has.
#[test]
fn a_receiver_that_has_come_back_is_no_second_one() {
    for adds in [false, true] {
        let (mut manager, request) = with_a_dead_receiver(false);
        apply(&mut manager, Time(0) + Duration::from_secs(1), join(1, 2));
        if adds {
            let all = names(&["host-1", "host-2", "host-3"]);
            assert_eq!(change(&mut manager, &request, &["host-1"], &[]), Ok(all));
            assert_eq!(planned_for(&manager), 3);
        }
        assert_eq!(change(&mut manager, &request, &[], &["host-1"]), Ok(names(&["host-2", "host-3"])));
        assert_eq!(planned_for(&manager), 2);
    }
}

/// A request that waits loses a receiver that has died at once; to take it out with others is no mistake.
#[test]
fn a_dead_receiver_of_a_request_that_waits_can_be_taken_out() {
    for (remove, missed) in [(&["host-1", "host-2"][..], &[][..]), (&["host-2"], &["host-1"])] {
        let (mut manager, request) = with_a_dead_receiver(true);
        assert_eq!(change(&mut manager, &request, &[], remove), Ok(vec![]));
        let other = Input::Withdraw { request: agent(2, 1).request(9) };
        let outputs = apply(&mut manager, Time(0) + Duration::from_secs(1), other);
        let grant = response(&outputs).unwrap();
        let receivers: Vec<String> = grant.receiver_names().cloned().collect();
        assert_eq!((receivers, &grant.missed), (names(&["host-3"]), &names(missed)));
        // The same of the path that it has now.
        let again = change(&mut manager, &request, &["host-2"], missed);
        assert_eq!(again, Ok(names(&["host-2", "host-3"])));
    }
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_string()).collect()
}

/// A failure moves the path to what is left, another fabric's too; without anything left it ends.
#[test]
fn a_path_that_fails_is_planned_anew_or_ends() {
    let mut manager = with_three_agents(manager(1, true));
    let grant = ask(&mut manager, Time(0), request(agent(0, 1), 1, &["host-1"])).unwrap();
    let address = grant.plan.resources[0];
    let failures = vec![Failure::Resource(address)];
    let outputs = apply(&mut manager, Time(1), Input::Failed { failures: failures.clone() });
    let [Output::Replanned { plan_id, before, plan, .. }] = &outputs[..] else { panic!("{outputs:?}") };
    assert_eq!((*plan_id, before), (grant.plan_id, &grant.plan));
    assert_eq!(plan.fabric, "tcp-chain");
    assert_eq!(manager.leases().next().unwrap().grant.plan, *plan);
    // What has failed is not lent, until it works again.
    let second = ask(&mut manager, Time(2), request(agent(0, 1), 2, &["host-1"])).unwrap();
    assert_eq!(second.plan.fabric, "tcp-chain");
    apply(&mut manager, Time(3), Input::Repaired { failures: failures.clone() });
    let third = ask(&mut manager, Time(4), request(agent(0, 1), 3, &["host-1"])).unwrap();
    assert_eq!(third.plan.resources, [address]);

    let mut alone = with_three_agents(self::manager(1, false));
    let grant = ask(&mut alone, Time(0), request(agent(0, 1), 1, &["host-1"])).unwrap();
    let outputs = apply(&mut alone, Time(1), Input::Failed { failures });
    assert!(
        matches!(&outputs[..], [Output::Released { plan_id, reason: ReleaseReason::Failed, .. }]
            if *plan_id == grant.plan_id),
        "{outputs:?}"
    );
}

#[test]
fn what_a_dead_agent_held_comes_back_at_once() {
    let mut manager = with_three_agents(manager(1, false));
    ask(&mut manager, Time(0), request(agent(0, 1), 1, &["host-1"])).unwrap();
    apply(&mut manager, Time(0), Input::Request(request(agent(1, 1), 1, &["host-2"])));
    let outputs = apply(&mut manager, Time(1), Input::Leave { agent: agent(0, 1), keeps: false });
    assert!(response(&outputs).is_ok(), "{outputs:?}");
    // Another run of it is not meant.
    apply(&mut manager, Time(2), join(0, 2));
    assert_eq!(apply(&mut manager, Time(3), Input::Leave { agent: agent(0, 1), keeps: false }), []);
    assert_eq!(manager.members().count(), 3);
}

/// One that has asked for a second path before it could name the one that it has goes on with that.
#[test]
fn who_has_a_path_does_not_wait_for_another_one() {
    let mut before = with_three_agents(manager(1, false));
    let grant = ask(&mut before, Time(0), request(agent(0, 1), 1, &["host-1"])).unwrap();
    let held = held_lease(1, &grant, PlanId(5_000));
    let mut after = with_three_agents(manager(1, false));
    ask(&mut after, Time(1), request(agent(2, 1), 1, &["host-1"])).unwrap();
    apply(&mut after, Time(1), Input::Request(request(agent(0, 1), 1, &["host-1"])));
    assert_eq!(after.pending().len(), 1);
    let address = ([10, 0, 0, 0].into(), 7401);
    let again = |held| Input::Join(Join { agent: agent(0, 1), address, from: HOME, leases: vec![held] });
    apply(&mut after, Time(2), again(held.clone()));
    assert_eq!(after.pending().len(), 1, "its address is lent to another one by now");
    let mut elsewhere = held;
    let Channel::Multicast { group, .. } = &mut elsewhere.channel else { panic!() };
    group.1 += 1;
    let outputs = apply(&mut after, Time(3), again(elsewhere));
    assert_eq!(response(&outputs).unwrap().plan_id, PlanId(5_000));
    assert_eq!((after.pending().len(), after.leases().count()), (0, 2));
}

/// A lease as its holder would name it, by this number.
fn held_lease(request: u64, grant: &Grant, plan: PlanId) -> HeldLease {
    HeldLease {
        request,
        plan,
        object: object(request),
        further_sources: grant.further_sources.clone(),
        receivers: grant.receivers.iter().map(|(name, _)| name.clone()).collect(),
        bytes: grant.accepted_bytes,
        fabric: grant.plan.fabric.into(),
        channel: grant.plan.channel.clone(),
        left: grant.lease,
        kept: Some(grant.plan.clone()),
        only: false,
    }
}

#[test]
fn a_join_renews_what_is_its_own_and_nothing_else() {
    let mut manager = with_three_agents(manager(1, false));
    let grant = ask(&mut manager, Time(0), request(agent(0, 1), 1, &["host-1"])).unwrap();
    let ends = |manager: &Leases| manager.leases().map(|lease| lease.expires_at).collect::<Vec<_>>();
    let again = |number: u8| {
        let leases = vec![held_lease(1, &grant, grant.plan_id)];
        Input::Join(Join {
            agent: agent(number, 1),
            address: ([10, 0, 0, number].into(), 7401),
            from: HOME,
            leases,
        })
    };
    let later = Time(1_000_000_000);
    apply(&mut manager, later, again(1));
    assert_eq!(ends(&manager), [Time(0) + LEASE], "it is another one's");
    apply(&mut manager, later, again(0));
    assert_eq!(ends(&manager), [later + LEASE]);
}

/// Paths that have expired while their holders were away are remembered, as many as there may be: all of
/// these continue.
#[test]
fn who_was_away_goes_on_with_all_its_paths() {
    let limited = LeasesConfig { leases_max: 2, ..config() };
    let mut manager = with_three_agents(with_config(limited, 2, false, Box::new(Fcfs)));
    let grants =
        [1, 2].map(|number| ask(&mut manager, Time(0), request(agent(0, 1), number, &["host-1"])).unwrap());
    let expired = drain(&mut manager, Time(0) + LEASE);
    let is_expired =
        |output: &&Output| matches!(output, Output::Released { reason: ReleaseReason::Expired, .. });
    assert_eq!(expired.iter().filter(is_expired).count(), 2);
    let later = Time(0) + LEASE + Duration::from_secs(1);
    apply(&mut manager, later, join(1, 1));
    let leases = (1..).zip(&grants).map(|(number, grant)| held_lease(number, grant, grant.plan_id)).collect();
    apply(
        &mut manager,
        later,
        Input::Join(Join { agent: agent(0, 1), address: ([10, 0, 0, 0].into(), 7401), from: HOME, leases }),
    );
    let there: Vec<PlanId> = manager.leases().map(|lease| lease.grant.plan_id).collect();
    assert_eq!(there, grants.map(|grant| grant.plan_id));
}

#[test]
fn no_more_leases_are_taken_over_than_there_may_be() {
    let limited = LeasesConfig { leases_max: 2, ..config() };
    let mut manager = with_three_agents(with_config(limited, 1, true, Box::new(Fcfs)));
    let first = ask(&mut manager, Time(0), request(agent(0, 1), 1, &["host-1"])).unwrap();
    let second = ask(&mut manager, Time(0), request(agent(0, 1), 2, &["host-1"])).unwrap();
    assert_eq!(second.plan.fabric, "tcp-chain");
    apply(&mut manager, Time(1), Input::Release { request: agent(0, 1).request(1), plan: first.plan_id });
    let leases = (3..6).map(|number| held_lease(number, &second, PlanId(5_000 + number))).collect();
    let again = Join { agent: agent(0, 1), address: ([10, 0, 0, 0].into(), 7401), from: HOME, leases };
    apply(&mut manager, Time(2), Input::Join(again));
    let there: Vec<_> = manager.leases().map(|lease| lease.grant.plan_id).collect();
    assert_eq!(there, [second.plan_id, PlanId(5_003)]);
}
