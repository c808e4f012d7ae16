//! Groups for packets that applications send themselves: leases without an end, which outlive runs of agents.

use super::*;
use polycast_planning::{FabricName, Wish};
use polycast_protocol::leases::GROUPS_FROM;

fn without_agents(config: LeasesConfig) -> Leases {
    let pool = AddressPool::new([239, 255, 64, 0].into(), 4, 7410).unwrap();
    let fabrics: Vec<Box<dyn Fabric>> = vec![Box::new(TcpChain), Box::new(IpMulticast::new(pool))];
    Leases::new(config, Fabrics::new(fabrics), Box::new(Fcfs))
}

/// A manager whose first fabric is the chain, which carries no packets of others. It knows all that is lent,
/// and believes no agent that names more.
fn chain_first(config: LeasesConfig) -> Leases {
    let before = with_three_agents(without_agents(config.clone()));
    let mut manager = without_agents(config);
    assert_eq!(manager.restore(Time(0), before.records()), []);
    with_three_agents(manager)
}

/// A request for a group; the transfer of the same agent has this number without [`GROUPS_FROM`].
fn group(run: u64, receivers: &[&str]) -> PathRequest {
    let bytes = 1 << 40;
    PathRequest {
        object_bytes: bytes,
        remaining_bytes: bytes,
        ..request(agent(0, run), GROUPS_FROM + 7, receivers)
    }
}

/// The run of an agent comes, with what it has kept of a group.
fn comes(run: u64, held: &HeldLease) -> Input {
    let address = ([10, 0, 0, 0].into(), 7401);
    let from = [10, 0, 0, 0].into();
    Input::Join(Join { agent: agent(0, run), address, from, leases: vec![held.clone()] })
}

fn ends(outputs: &[Output]) -> Vec<ReleaseReason> {
    let ends = outputs.iter().filter_map(|output| match output {
        Output::Released { reason, .. } => Some(*reason),
        _ => None,
    });
    ends.collect()
}

fn lent(manager: &Leases) -> Vec<(AgentKey, PlanId)> {
    manager.leases().map(|lease| (lease.key.agent.clone(), lease.grant.plan_id)).collect()
}

#[test]
fn a_group_goes_over_a_fabric_that_carries_any_packets() {
    let mut manager = chain_first(config());
    let chain = ask(&mut manager, Time(1), request(agent(0, 1), 7, &["host-1"])).unwrap();
    assert_eq!(chain.plan.fabric, "tcp-chain");
    let grant = ask(&mut manager, Time(2), group(1, &["host-1", "host-2"])).unwrap();
    assert_eq!((&*grant.plan.fabric, grant.service, grant.estimate), ("ip-multicast", None, None));
    let names = |fabric| Wish { fabric: Some(FabricName::new(fabric)), or_fail: true, ..Wish::default() };
    for (fabric, why) in [
        ("tcp-chain", "tcp-chain carries no packets that an application sends itself, only ip-multicast can"),
        ("wormhole", "there is no fabric 'wormhole' here, only tcp-chain, ip-multicast"),
    ] {
        let wished = PathRequest { request: GROUPS_FROM, wish: names(fabric), ..group(1, &["host-1"]) };
        let denial = ask(&mut manager, Time(3), wished).unwrap_err();
        assert_eq!(denial.to_string(), format!("the manager lends no path: {why}"));
    }
    let fabrics: Vec<Box<dyn Fabric>> = vec![Box::new(TcpChain)];
    let mut manager = with_three_agents(Leases::new(config(), Fabrics::new(fabrics), Box::new(Fcfs)));
    let denial = ask(&mut manager, Time(1), group(1, &["host-1"])).unwrap_err();
    assert!(denial.to_string().contains("no fabric of this network (tcp-chain) carries"), "{denial}");
}

/// Nothing of a group stays at devices when it is given back; of a transfer's path it does.
#[test]
fn a_group_that_is_given_back_is_gone() {
    for number in [7, GROUPS_FROM + 7] {
        let names = ["host-0", "host-1", "host-2"];
        let places: Vec<_> = known_hosts(names).map(|(_, host)| host).zip(0..).collect();
        let pool = AddressPool::new([239, 255, 64, 0].into(), 4, 7410).unwrap();
        let ocs = Ocs::new(circuits(3), places, pool).unwrap();
        let config = LeasesConfig { kept_max: 4, ..config() };
        let mut manager = Leases::new(config, Fabrics::new(vec![Box::new(ocs)]), Box::new(Fcfs));
        for name in names {
            manager.know_host(name);
        }
        let mut manager = with_three_agents(manager);
        let grant = ask(&mut manager, Time(1), request(agent(0, 1), number, &["host-1", "host-2"])).unwrap();
        let release = Input::Release { request: agent(0, 1).request(number), plan: grant.plan_id };
        let outputs = apply(&mut manager, Time(2), release);
        let kept = outputs.iter().find_map(|output| match output {
            Output::Released { kept, .. } => Some(*kept),
            _ => None,
        });
        assert_eq!(kept, Some(number < GROUPS_FROM), "{outputs:?}");
    }
}

#[test]
fn the_next_run_of_an_agent_goes_on_with_its_group_and_with_nothing_else() {
    for leaves in [false, true] {
        let mut manager = chain_first(config());
        let grant = ask(&mut manager, Time(1), group(1, &["host-1"])).unwrap();
        let transfer = ask(&mut manager, Time(1), request(agent(0, 1), 7, &["host-1"])).unwrap();
        let held = held_lease(GROUPS_FROM + 7, &grant, grant.plan_id);
        let mut outputs = Vec::new();
        if leaves {
            outputs = apply(&mut manager, Time(2), Input::Leave { agent: agent(0, 1), keeps: true });
            // Another agent may have the number of the one that is away.
            apply(&mut manager, Time(2), join(3, 1));
        }
        outputs.extend(apply(&mut manager, Time(3), comes(2, &held)));
        assert_eq!(ends(&outputs), [ReleaseReason::HolderGone], "the transfer's path: {outputs:?}");
        assert_eq!(lent(&manager), [(agent(0, 2), grant.plan_id)]);
        let own = held_lease(7, &transfer, transfer.plan_id);
        assert_eq!(ends(&apply(&mut manager, Time(4), comes(2, &own))), []);
        let beat = Input::Heartbeat { agent: agent(0, 2), leases: vec![grant.plan_id, transfer.plan_id] };
        let outputs = apply(&mut manager, Time(5), beat);
        let lost = Ok(vec![transfer.plan_id]);
        assert_eq!(outputs, [Output::Heartbeat { agent: agent(0, 2), result: lost }]);
        // What the run before says counts no more.
        let release =
            |run| Input::Release { request: agent(0, run).request(GROUPS_FROM + 7), plan: grant.plan_id };
        assert_eq!(ends(&apply(&mut manager, Time(6), release(1))), []);
        assert_eq!(ends(&apply(&mut manager, Time(7), release(2))), [ReleaseReason::Released]);
    }
}

#[test]
fn nobody_else_goes_on_with_a_group() {
    let mut manager = chain_first(config());
    let grant = ask(&mut manager, Time(1), group(1, &["host-1"])).unwrap();
    let held = held_lease(GROUPS_FROM + 7, &grant, grant.plan_id);
    let address = ([10, 0, 0, 2].into(), 7401);
    let other = Join { agent: agent(2, 2), address, from: address.0, leases: vec![held.clone()] };
    apply(&mut manager, Time(2), Input::Join(other));
    assert_eq!(lent(&manager), [(agent(0, 1), grant.plan_id)]);
    // Nor its own agent with another address than it has.
    let mut elsewhere = held;
    let Channel::Multicast { group, .. } = &mut elsewhere.channel else { panic!() };
    group.1 += 1;
    assert_eq!(ends(&apply(&mut manager, Time(3), comes(2, &elsewhere))), [ReleaseReason::Failed]);
}

#[test]
fn a_group_that_nobody_names_ends_and_can_be_had_again_for_a_while() {
    let mut manager = chain_first(config());
    let grant = ask(&mut manager, Time(0), group(1, &["host-1"])).unwrap();
    let held = held_lease(GROUPS_FROM + 7, &grant, grant.plan_id);
    apply(&mut manager, Time(1), Input::Leave { agent: agent(0, 1), keeps: true });
    let over = Time(0) + LEASE;
    assert_eq!(ends(&drain(&mut manager, Time(over.0 - 1))), []);
    assert_eq!(ends(&drain(&mut manager, over)), [ReleaseReason::Expired]);
    apply(&mut manager, over + Duration(1), comes(2, &held));
    assert_eq!(lent(&manager), [(agent(0, 2), grant.plan_id)], "the address is free still");
    apply(&mut manager, over + Duration(2), Input::Leave { agent: agent(0, 2), keeps: true });
    assert_eq!(ends(&drain(&mut manager, over + LEASE + LEASE)), [ReleaseReason::Expired]);
    let late = over + LEASE + LEASE + LEASE;
    drain(&mut manager, late);
    apply(&mut manager, late, comes(3, &held));
    assert_eq!(lent(&manager), [], "after so long it is asked for anew");
}

#[test]
fn a_group_stays_without_a_member() {
    let mut manager = chain_first(config());
    let grant = ask(&mut manager, Time(0), group(1, &["host-1", "host-2"])).unwrap();
    for number in [1, 2] {
        let outputs = apply(&mut manager, Time(1), Input::Leave { agent: agent(number, 1), keeps: false });
        assert_eq!(ends(&outputs), []);
    }
    let lease = manager.leases().next().unwrap();
    assert_eq!(lease.grant.plan, grant.plan);
    assert_eq!(lease.grant.receiver_names().collect::<Vec<_>>(), ["host-1", "host-2"]);
}

#[test]
fn another_manager_goes_on_with_a_group_and_so_does_the_next_run() {
    let mut before = chain_first(config());
    let grant = ask(&mut before, Time(0), group(1, &["host-1"])).unwrap();
    let held = held_lease(GROUPS_FROM + 7, &grant, grant.plan_id);
    let records = before.records();
    let written = serde_json::to_vec(&records).unwrap();
    let (mut after, mut empty) = (with_three_agents(without_agents(config())), without_agents(config()));
    let read: Vec<Record> = serde_json::from_slice(&written).unwrap();
    assert_eq!(empty.restore(Time(1), read), []);
    for (manager, what) in [(&mut after, "without records"), (&mut empty, "with records")] {
        apply(manager, Time(2), comes(2, &held));
        assert_eq!(lent(manager), [(agent(0, 2), grant.plan_id)], "{what}");
        let beat = Input::Heartbeat { agent: agent(0, 2), leases: vec![grant.plan_id] };
        let outputs = apply(manager, Time(3), beat);
        assert_eq!(outputs, [Output::Heartbeat { agent: agent(0, 2), result: Ok(vec![]) }], "{what}");
    }
}

/// An agent that has asked anew for its group, not knowing that it may go on, gets one path.
#[test]
fn a_run_that_has_asked_anew_has_one_path() {
    let mut manager = chain_first(config());
    let grant = ask(&mut manager, Time(1), group(1, &["host-1"])).unwrap();
    let held = held_lease(GROUPS_FROM + 7, &grant, grant.plan_id);
    for number in 1..4 {
        ask(&mut manager, Time(1), PathRequest { request: GROUPS_FROM + number, ..group(1, &["host-1"]) })
            .unwrap();
    }
    let mut comes_without = held.clone();
    comes_without.plan = PlanId(1);
    apply(&mut manager, Time(2), comes(2, &comes_without));
    // All addresses are taken: it waits, and then names what it has.
    let outputs = apply(&mut manager, Time(3), Input::Request(group(2, &["host-1"])));
    assert!(matches!(outputs[..], [Output::Waiting { .. }]), "{outputs:?}");
    let outputs = apply(&mut manager, Time(4), comes(2, &held));
    assert_eq!(response(&outputs).unwrap().plan_id, grant.plan_id);
    assert_eq!(manager.pending().len(), 0);
    // One that has another path by now does not get a second one.
    let other = manager.leases().find(|lease| lease.key.request == GROUPS_FROM + 1).unwrap();
    let other = (other.grant.clone(), other.expires_at);
    let second = held_lease(GROUPS_FROM + 7, &other.0, other.0.plan_id);
    apply(&mut manager, Time(6), comes(2, &second));
    let still = manager.leases().find(|lease| lease.grant.plan_id == other.0.plan_id).unwrap();
    assert_eq!((still.key.agent.incarnation, still.expires_at), (1, other.1));
}

/// A group with several sources is one path, which the agent that asks holds: of a source that dies nothing
/// is lost, and the next run of the agent, and the next manager, go on with all of them.
#[test]
fn a_group_with_several_sources_is_one_path() {
    let mut manager = chain_first(config());
    let several = |sources: &[&str], receivers: &[&str]| PathRequest {
        further_sources: sources.iter().copied().map(String::from).collect(),
        ..group(1, receivers)
    };
    let why = |manager: &mut Leases, request| ask(manager, Time(1), request).unwrap_err().to_string();
    assert!(why(&mut manager, several(&["host-9"], &["host-1"])).contains("'host-9'"));
    assert!(
        why(&mut manager, several(&["host-2", "host-2"], &["host-1"])).contains("'host-2' is named twice")
    );
    let transfer = PathRequest { request: 9, ..several(&["host-2"], &["host-1"]) };
    assert!(why(&mut manager, transfer).contains("only a group of an application's own packets"));
    // A source hears the others.
    let grant = ask(&mut manager, Time(2), several(&["host-2"], &["host-0", "host-1"])).unwrap();
    assert_eq!((&grant.further_sources[..], lent(&manager).len()), (&["host-2".to_string()][..], 1));
    let sources = |manager: &Leases| {
        let written = serde_json::to_value(manager.records()).unwrap().to_string();
        assert_eq!(written.matches("\"further_sources\":[\"host-2\"]").count(), 1, "{written}");
    };
    sources(&manager);
    let outputs = apply(&mut manager, Time(3), Input::Leave { agent: agent(2, 1), keeps: false });
    assert_eq!(ends(&outputs), [], "the others go on");
    let held = held_lease(GROUPS_FROM + 7, &grant, grant.plan_id);
    apply(&mut manager, Time(4), comes(2, &held));
    assert_eq!(lent(&manager), [(agent(0, 2), grant.plan_id)]);
    let mut empty = with_three_agents(without_agents(config()));
    apply(&mut empty, Time(5), comes(2, &held));
    assert_eq!(lent(&empty), [(agent(0, 2), grant.plan_id)]);
    sources(&empty);
}

/// Sources and members come and go, and the path stays; what cannot be changes nothing.
#[test]
fn the_sources_of_a_group_change() {
    let mut manager = chain_first(config());
    let several = PathRequest { further_sources: vec!["host-1".into()], ..group(1, &["host-0", "host-1"]) };
    let grant = ask(&mut manager, Time(1), several).unwrap();
    let names = |names: &[&str]| names.iter().copied().map(String::from).collect::<Vec<_>>();
    let key = agent(0, 1).request(GROUPS_FROM + 7);
    let mut change = |add: &[&str], remove: &[&str], sources: &[&str]| {
        let (add, remove, sources) = (names(add), names(remove), names(sources));
        let change = Input::Extend { request: key.clone(), time: None, add, remove, sources };
        let outputs = apply(&mut manager, Time(2), change);
        let result = outputs.into_iter().find_map(|output| match output {
            Output::Extended { result, .. } => Some(result),
            _ => None,
        });
        let result = result.expect("it is answered").map_err(|denial| denial.to_string());
        result.map(|grant| {
            let grant = grant.expect("it has a path");
            (grant.receiver_names().cloned().collect::<Vec<_>>(), grant.further_sources, grant.plan.channel)
        })
    };
    let channel = grant.plan.channel;
    let more = change(&["host-2"], &[], &["host-2"]).unwrap();
    assert_eq!(more, (names(&["host-0", "host-1", "host-2"]), names(&["host-1", "host-2"]), channel.clone()));
    for (add, remove, sources, why) in [
        (&[][..], &[][..], &["host-2"][..], "'host-2' is a source of this group already"),
        (&[], &[], &["host-0"], "'host-0' is a source of this group already"),
        (&[], &[], &["host-9"], "there is no agent 'host-9'"),
        (&["host-1"], &[], &[], "'host-1' is a receiver of this transfer already"),
        (&[], &["host-9"], &[], "'host-9' is not a receiver of this transfer"),
        (&[], &["host-0", "host-1", "host-2"], &[], "no receiver is named"),
    ] {
        assert_eq!(change(add, remove, sources).unwrap_err(), why);
    }
    // Without another source the holder hears none.
    let fewer = change(&[], &["host-1"], &[]).unwrap();
    assert_eq!(fewer, (names(&["host-0", "host-2"]), names(&["host-2"]), channel.clone()));
    assert_eq!(change(&["host-1"], &["host-2"], &[]), Ok((names(&["host-1"]), names(&[]), channel)));
    assert_eq!(change(&["host-0"], &[], &[]).unwrap_err(), "'host-0' is the source and cannot be a receiver");
    // A transfer has one source.
    let transfer = agent(0, 1).request(9);
    ask(&mut manager, Time(3), request(agent(0, 1), 9, &["host-1"])).unwrap();
    let (add, remove, sources) = (names(&[]), names(&[]), names(&["host-2"]));
    let change = Input::Extend { request: transfer, time: None, add, remove, sources };
    let outputs = apply(&mut manager, Time(4), change);
    let why = outputs.iter().find_map(|output| match output {
        Output::Extended { result: Err(denial), .. } => Some(denial.to_string()),
        _ => None,
    });
    assert!(why.is_some_and(|why| why.contains("only a group of an application's own packets")));
}
