//! Managers that begin: with records that do not fit, with other settings, or while agents are still on their
//! way.

use super::circuits::circuits;
use super::{
    HOME, LEASE, SILENCE, agent, apply, ask, config, drain, held_lease, join, manager, request, response,
    with_config, with_three_agents,
};
use polycast_planning::datacast::{Datacast, DatacastConfig};
use polycast_planning::ip_multicast::AddressPool;
use polycast_planning::ocs::Ocs;
use polycast_planning::{DeviceCommand, Fabrics, Failure, Fcfs, HostId, PlanId, RackPort};
use polycast_protocol::leases::{
    AgentKey, HeldLease, Input, Join, Leases, LeasesConfig, Output, PathRequest, Receivers, Record,
    RecordKey, ReleaseReason, STREAMS_FROM, host_numbers, known_hosts,
};
use polycast_topology::{Graph, Network};
use polycast_types::{Duration, Time};
use std::collections::BTreeMap;

const PATIENCE: Duration = Duration::from_secs(4);

/// A manager of racks of one host each, in this order.
fn of_racks(names: &[&str], records: &[Record]) -> Leases {
    let pool = AddressPool::new([239, 255, 64, 0].into(), 4, 7410).unwrap();
    let numbers = host_numbers(names.iter().copied(), records);
    let places: Vec<_> = names.iter().map(|name| numbers[*name]).zip(0..).collect();
    let ocs = Ocs::new(circuits(names.len() as u32), places, pool).unwrap();
    let mut manager = Leases::new(config(), Fabrics::new(vec![Box::new(ocs)]), Box::new(Fcfs));
    for (name, number) in &numbers {
        manager.know_host_as(name, *number).unwrap();
    }
    manager
}

/// Applies the manager's changes to a store.
fn write(store: &mut BTreeMap<String, Record>, manager: &mut Leases) {
    for (key, record) in manager.changes() {
        match record {
            Some(record) => drop(store.insert(key.to_string(), record)),
            None => drop(store.remove(&key.to_string())),
        }
    }
}

fn records(store: &BTreeMap<String, Record>) -> Vec<Record> {
    store.values().cloned().collect()
}

/// The hosts that rules of racks name.
fn hosts_of(manager: &Leases) -> Vec<String> {
    let commands = manager.leases().flat_map(|lease| &lease.grant.plan.commands);
    let ports = commands.filter_map(|command| match command {
        DeviceCommand::RackRule { from, to, .. } => Some(to.iter().chain([from])),
        _ => None,
    });
    let name = |port: &RackPort| match port {
        RackPort::Host(host) => manager.name_of(*host).map(String::from),
        _ => None,
    };
    ports.flatten().filter_map(name).collect()
}

#[test]
fn numbers_stay_when_settings_name_hosts_in_another_order() {
    let names = ["host-0", "host-1", "host-2"];
    let mut first = of_racks(&names, &[]);
    (0..3).for_each(|number| drop(apply(&mut first, Time(0), join(number, 1))));
    ask(&mut first, Time(1), request(agent(0, 1), 1, &["host-2"])).unwrap();
    let mut store = BTreeMap::new();
    write(&mut store, &mut first);
    for names in [&["host-2", "host-1", "host-0"][..], &["a-new-one", "host-0", "host-1", "host-2"]] {
        let mut next = of_racks(names, &records(&store));
        assert_eq!(next.restore(Time(2), records(&store)), []);
        assert_eq!(hosts_of(&next), ["host-0", "host-2"], "{names:?}");
        assert_eq!(next.leases().count(), 1);
    }
    // Without records the order does not matter either.
    let reversed = host_numbers(names.iter().rev().copied(), &[]);
    assert_eq!(host_numbers(names, &[]), reversed);
}

/// A host that is in use and that settings name no more keeps its number, which no other one gets.
#[test]
fn settings_may_drop_a_host_that_is_in_use() {
    let mut first = of_racks(&["host-0", "host-1", "host-2"], &[]);
    (0..3).for_each(|number| drop(apply(&mut first, Time(0), join(number, 1))));
    let grant = ask(&mut first, Time(1), request(agent(0, 1), 1, &["host-2"])).unwrap();
    // Its agent is away.
    apply(&mut first, Time(2), Input::Leave { agent: agent(2, 1), keeps: false });
    let mut store = BTreeMap::new();
    write(&mut store, &mut first);
    let mut next = of_racks(&["host-0", "host-1", "host-9"], &records(&store));
    assert_eq!(next.restore(Time(3), records(&store)), []);
    assert_eq!(next.leases().map(|lease| lease.grant.plan.clone()).collect::<Vec<_>>(), [grant.plan]);
    apply(&mut next, Time(4), join(9, 1));
    let number = |name: &str| next.members().find(|(other, _)| *other == name).unwrap().1.host;
    assert_eq!(number("host-9"), HostId(3), "number 2 is that of host-2");
    write(&mut store, &mut next);
    assert!(store.contains_key("host/host-2"), "{:?}", store.keys());
    // When it is not needed any more its number goes.
    let release = Input::Release { request: agent(0, 1).request(1), plan: PlanId(1_000) };
    apply(&mut next, Time(5), release);
    write(&mut store, &mut next);
    let mut last = of_racks(&["host-0", "host-1", "host-9"], &records(&store));
    assert_eq!(last.restore(Time(6), records(&store)), []);
    write(&mut store, &mut last);
    assert!(!store.contains_key("host/host-2"), "{:?}", store.keys());
}

/// An agent that settings do not name has gone, and a path is planned for it still: no other one gets its
/// number.
#[test]
fn a_number_that_is_in_use_is_given_to_no_other() {
    let mut first = with_three_agents(manager(1, false));
    ask(&mut first, Time(1), request(agent(0, 1), 1, &["host-1", "host-2"])).unwrap();
    apply(&mut first, Time(2), Input::Leave { agent: agent(2, 1), keeps: false });
    let mut next = manager(1, false);
    assert_eq!(next.restore(Time(3), first.records()), []);
    apply(&mut next, Time(4), join(4, 1));
    let number = next.members().find(|(name, _)| *name == "host-4").map(|(_, member)| member.host);
    assert_eq!(number, Some(HostId(3)), "number 2 was host-2's");
}

/// The record of a path is not there any more: what its holder uses is not lent until it has had the time to
/// say so.
#[test]
fn a_path_whose_record_is_lost_is_not_lent_again() {
    let patient = || with_config(LeasesConfig { patience: PATIENCE, ..config() }, 1, false, Box::new(Fcfs));
    let mut first = with_three_agents(patient());
    let grant = ask(&mut first, Time(1), request(agent(0, 1), 1, &["host-1"])).unwrap();
    let without_lease = |record: &Record| !matches!(record, Record::Lease { .. });
    let held: Vec<Record> = first.records().into_iter().filter(without_lease).collect();
    for comes_back in [true, false] {
        let mut next = patient();
        assert_eq!(next.restore(Time(2), held.clone()), []);
        next.await_holders(Time(2));
        let wanted = Input::Request(request(agent(2, 1), 2, &["host-1"]));
        let outputs = apply(&mut next, Time(3), wanted);
        assert!(matches!(outputs[..], [Output::Waiting { .. }]), "{outputs:?}");
        if comes_back {
            let leases = vec![held_lease(1, &grant, grant.plan_id)];
            let address = ([10, 0, 0, 0].into(), 7401);
            apply(&mut next, Time(4), Input::Join(Join { agent: agent(0, 1), address, from: HOME, leases }));
            let beat = Input::Heartbeat { agent: agent(0, 1), leases: vec![grant.plan_id] };
            let outputs = apply(&mut next, Time(5), beat);
            assert_eq!(outputs, [Output::Heartbeat { agent: agent(0, 1), result: Ok(vec![]) }]);
        }
        // The deadline wakes those that wait.
        assert!(next.deadline().is_some_and(|at| at <= Time(2) + PATIENCE));
        (1..3).for_each(|number| drop(apply(&mut next, Time(2) + SILENCE / 2, join(number, 1))));
        let outputs = drain(&mut next, Time(2) + PATIENCE);
        assert_eq!(outputs.iter().any(|o| matches!(o, Output::Granted { .. })), !comes_back, "{outputs:?}");
        assert_eq!(next.leases().count(), 1);
    }
}

/// Records of another cluster, or changed by hand: each that does not fit is named.
#[test]
fn records_that_do_not_fit_are_named() {
    let mut first = with_three_agents(manager(2, false));
    ask(&mut first, Time(1), request(agent(0, 1), 1, &["host-1"])).unwrap();
    ask(&mut first, Time(1), request(agent(1, 1), 2, &["host-2"])).unwrap();
    apply(&mut first, Time(1), Input::Request(request(agent(2, 1), 3, &["host-1"])));
    let good = first.records();
    let aside = |change: &dyn Fn(&mut Record)| {
        let mut records = good.clone();
        records.iter_mut().for_each(change);
        let mut next = manager(2, false);
        let aside = next.restore(Time(2), records);
        // It leads whatever they say.
        let unknown = Input::Request(request(agent(9, 1), 1, &["host-0"]));
        let denied = |output: &Output| matches!(output, Output::Response { response: Err(_), .. });
        assert!(apply(&mut next, Time(3), unknown).iter().any(denied));
        aside.into_iter().map(|record| (record.key.to_string(), record.reason)).collect::<Vec<_>>()
    };
    let first_address = first.leases().next().unwrap().grant.plan.clone();
    let named = aside(&|record| {
        if let Record::Lease { grant, .. } = record {
            grant.plan = first_address.clone();
        }
    });
    assert_eq!(named, [("lease/00000000000000001001".into(), "what it holds is held already".into())]);
    let named = aside(&|record| {
        if let Record::Member { agent, host, .. } = record
            && agent.name == "host-2"
        {
            *host = HostId(1);
        }
    });
    assert_eq!(named, [("member/host-2".into(), "'host-2' has number 1, which is another one's".into())]);
    let named = aside(&|record| {
        if let Record::Pending { pending, .. } = record {
            pending.group.receivers.clear();
        }
    });
    assert_eq!(named, [("pending/00000000000000000002".into(), "it has no receiver".into())]);
}

/// A number stands for one request, and a request has one number: what comes second is set aside.
#[test]
fn a_request_that_is_recorded_twice_waits_once() {
    let mut first = with_three_agents(manager(1, false));
    ask(&mut first, Time(1), request(agent(0, 1), 1, &["host-1"])).unwrap();
    apply(&mut first, Time(1), Input::Request(request(agent(2, 1), 3, &["host-1"])));
    let good = first.records();
    let is_pending = |record: &&Record| matches!(record, Record::Pending { .. });
    let recorded = good.iter().find(is_pending).unwrap();
    for same_number in [true, false] {
        let mut second = recorded.clone();
        let Record::Pending { key, pending, .. } = &mut second else { panic!() };
        if same_number {
            key.request += 1
        } else {
            pending.id.0 += 1
        }
        let mut next = manager(1, false);
        let aside = next.restore(Time(2), good.iter().cloned().chain([second]));
        assert_eq!(aside.into_iter().map(|record| record.reason).collect::<Vec<_>>(), ["it is there twice"]);
        assert_eq!(next.pending().map(|waits| waits.key.request).collect::<Vec<_>>(), [3]);
    }
}

#[test]
fn keys_are_read_as_they_are_written() {
    let keys = [
        RecordKey::Member("a/b".into()),
        RecordKey::Lease(PlanId(7)),
        RecordKey::Pending(polycast_planning::RequestId(8)),
        RecordKey::Kept,
        RecordKey::Host("c".into()),
    ];
    for key in keys {
        assert_eq!(RecordKey::parse(&key.to_string()), Some(key));
    }
    for text in ["", "lease/7", "lease/x", "kept/x", "leader", "registry/pods"] {
        assert_eq!(RecordKey::parse(text), None, "{text}");
    }
}

/// A path that was never leased does not belong to an agent that names it, however many it names.
#[test]
fn one_join_does_not_take_all_addresses() {
    let limited = LeasesConfig { agent_leases_max: 2, ..config() };
    let begin = || with_config(limited.clone(), 8, false, Box::new(Fcfs));
    let mut lender = with_three_agents(begin());
    let grant = ask(&mut lender, Time(1), request(agent(0, 1), 1, &["host-1"])).unwrap();
    let claim = |number: u64| {
        let mut lease = held_lease(number, &grant, PlanId(5_000 + number));
        if let polycast_planning::Channel::Multicast { group, .. } = &mut lease.channel {
            group.0 = [239, 255, 64, number as u8].into();
        }
        lease
    };
    let claims: Vec<HeldLease> = (0..8).map(claim).collect();
    let stranger = |leases: Vec<HeldLease>| {
        Input::Join(Join { agent: agent(5, 1), address: ([10, 0, 0, 5].into(), 7401), from: HOME, leases })
    };
    // Just begun and without records it has to believe some of it.
    let mut young = begin();
    apply(&mut young, Time(1), stranger(claims.clone()));
    assert_eq!(young.leases().count(), 2);
    // All that could still be in use has been named by then.
    let mut old = begin();
    apply(&mut old, Time(1), join(0, 1));
    apply(&mut old, Time(1) + LEASE, stranger(claims.clone()));
    assert_eq!(old.leases().count(), 0);
    // With records it knows at once.
    let mut restored = begin();
    assert_eq!(restored.restore(Time(2), lender.records()), []);
    apply(&mut restored, Time(3), stranger(claims));
    assert_eq!(restored.leases().count(), 1, "the one that was lent");
}

/// No agent has more paths at a time than one may: the others wait.
#[test]
fn one_agent_has_so_many_paths_at_most() {
    let limited = LeasesConfig { agent_leases_max: 1, ..config() };
    let mut manager = with_three_agents(with_config(limited, 4, false, Box::new(Fcfs)));
    let first = ask(&mut manager, Time(1), request(agent(0, 1), 1, &["host-1"])).unwrap();
    let outputs = apply(&mut manager, Time(2), Input::Request(request(agent(0, 1), 2, &["host-1"])));
    assert!(matches!(outputs[..], [Output::Waiting { .. }]), "{outputs:?}");
    // Others are not held up, and a stream hears why it has none.
    ask(&mut manager, Time(3), request(agent(1, 1), 3, &["host-2"])).unwrap();
    let stream = PathRequest { request: STREAMS_FROM, ..request(agent(0, 1), 4, &["host-1"]) };
    let denial = ask(&mut manager, Time(4), stream).unwrap_err().to_string();
    assert!(denial.ends_with("the agent has 1 paths, which is the limit of one"), "{denial}");
    let release = Input::Release { request: agent(0, 1).request(1), plan: first.plan_id };
    assert!(response(&apply(&mut manager, Time(5), release)).is_ok());
}

/// Requests of one agent beyond its limit hold neither addresses nor places in the queue that others need.
#[test]
fn one_agent_that_asks_for_much_is_in_the_way_of_no_other() {
    let limited = LeasesConfig { agent_leases_max: 1, pending_max: 1_000, ..config() };
    let mut manager = with_three_agents(with_config(limited, 2, false, Box::new(Fcfs)));
    ask(&mut manager, Time(1), request(agent(0, 1), 0, &["host-1"])).unwrap();
    let more = (1..=300).map(|number| {
        apply(&mut manager, Time(2), Input::Request(request(agent(0, 1), number, &["host-1"])))
    });
    let refused =
        more.flatten().filter(|output| matches!(output, Output::Response { response: Err(_), .. })).count();
    assert_eq!(refused, 50, "a quarter of the queue is one agent's");
    // There are two addresses, of which one is left.
    ask(&mut manager, Time(3), request(agent(1, 1), 1, &["host-2"])).unwrap();
    manager.check();
}

/// A path that has ended because its holder was away can be taken up again, by its holder and by no other.
#[test]
fn an_agent_that_was_away_goes_on_with_its_path_if_no_other_has_it() {
    let mut manager = with_three_agents(manager(1, false));
    let late = Time(0) + LEASE + LEASE;
    (0..3).for_each(|number| drop(apply(&mut manager, late, join(number, 1))));
    let grant = ask(&mut manager, late, request(agent(0, 1), 1, &["host-1"])).unwrap();
    let outputs = apply(&mut manager, late, Input::Leave { agent: agent(0, 1), keeps: false });
    assert!(
        outputs
            .iter()
            .any(|output| matches!(output, Output::Released { reason: ReleaseReason::HolderGone, .. }))
    );
    let claim = |agent: AgentKey, number: u8| {
        let leases = vec![held_lease(1, &grant, grant.plan_id)];
        Input::Join(Join { agent, address: ([10, 0, 0, number].into(), 7401), from: HOME, leases })
    };
    apply(&mut manager, late, claim(agent(2, 1), 2));
    assert_eq!(manager.leases().count(), 0, "it was another one's");
    apply(&mut manager, late, claim(agent(0, 1), 0));
    assert_eq!(manager.leases().map(|lease| lease.grant.plan_id).collect::<Vec<_>>(), [grant.plan_id]);
}

/// Agents come back to a manager that begins one after the other: an agent that is not here yet may come.
#[test]
fn receivers_of_a_new_manager_may_yet_come() {
    let patient = LeasesConfig { patience: PATIENCE, ..config() };
    let mut manager = with_config(patient, 4, false, Box::new(Fcfs));
    apply(&mut manager, Time(1), join(0, 1));
    for number in 1..=3 {
        let names: &[&str] = if number == 2 { &["host-1", "absent"] } else { &["host-1"] };
        assert_eq!(apply(&mut manager, Time(2), Input::Request(request(agent(0, 1), number, names))), []);
    }
    apply(&mut manager, Time(3), Input::Withdraw { request: agent(0, 1).request(3) });
    let outputs = apply(&mut manager, Time(3), join(1, 1));
    assert_eq!(response(&outputs).map(|grant| grant.accepted_bytes), Ok(1_000));
    let over = Time(1) + PATIENCE;
    assert_eq!(manager.deadline().map(|at| at <= over), Some(true));
    (0..2).for_each(|number| drop(apply(&mut manager, Time(1) + SILENCE / 2, join(number, 1))));
    let denial = response(&drain(&mut manager, over)).unwrap_err();
    assert_eq!(denial.to_string(), "there is no agent 'absent'");
    // From then on the answer comes at once.
    let denial = ask(&mut manager, over, request(agent(0, 1), 4, &["absent"])).unwrap_err();
    assert_eq!(denial.to_string(), "there is no agent 'absent'");
}

/// A manager that was stopped for a while takes no agent for dead because of what it did not hear.
#[test]
fn who_could_not_be_heard_has_not_been_silent() {
    let patient = LeasesConfig { patience: PATIENCE, ..config() };
    let mut manager = with_three_agents(with_config(patient, 4, false, Box::new(Fcfs)));
    let grant = ask(&mut manager, Time(1), request(agent(0, 1), 1, &["host-1"])).unwrap();
    let later = Time(1) + LEASE + LEASE;
    manager.excuse(later);
    assert_eq!(drain(&mut manager, later), []);
    assert_eq!((manager.members().count(), manager.leases().count()), (3, 1));
    let outputs = apply(&mut manager, later, Input::Request(request(agent(0, 1), 2, &["host-4"])));
    assert_eq!(outputs, [], "it may yet come");
    // An agent that stays silent from then on is gone.
    let over = later + LEASE;
    let released =
        |output: &Output| matches!(output, Output::Released { plan_id, .. } if *plan_id == grant.plan_id);
    assert!(drain(&mut manager, over).iter().any(released));
    assert_eq!(manager.members().count(), 0);
}

/// A path for all agents does not lead to agents that have fallen silent.
#[test]
fn who_is_silent_is_not_among_all() {
    let mut manager = with_three_agents(manager(2, false));
    let later = Time(0) + SILENCE / 2 + Duration(1);
    for number in [0, 1] {
        apply(&mut manager, later, Input::Heartbeat { agent: agent(number, 1), leases: vec![] });
    }
    let wanted = PathRequest { receivers: Receivers::All, ..request(agent(0, 1), 1, &[]) };
    let grant = ask(&mut manager, later, wanted).unwrap();
    assert_eq!(grant.receivers.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["host-1"]);
}

/// A manager that begins knows of a failure of which the holder of trees has not heard: it says where they
/// went and go now.
#[test]
fn who_comes_back_with_trees_hears_where_they_go_now() {
    let begin = || {
        let names = (0..3).map(|number| format!("host-{number}")).collect::<Vec<_>>();
        let places: Vec<_> =
            known_hosts(names.iter().map(String::as_str)).map(|(_, host)| host).zip([0, 2, 9]).collect();
        let trees = Datacast::new("bcube:4,2".parse().unwrap(), DatacastConfig::default(), places).unwrap();
        let mut manager = Leases::new(config(), Fabrics::new(vec![Box::new(trees)]), Box::new(Fcfs));
        for name in &names {
            manager.know_host(name);
        }
        manager
    };
    let mut first = with_three_agents(begin());
    let grant = ask(&mut first, Time(1), request(agent(0, 1), 1, &["host-1", "host-2"])).unwrap();
    let network: Network = "bcube:4,2".parse().unwrap();
    let failures = vec![Failure::Part(Datacast::link(2, network.neighbor(2, 0)))];
    let mut next = begin();
    apply(&mut next, Time(2), Input::Failed { failures });
    (1..3).for_each(|number| drop(apply(&mut next, Time(2), join(number, 1))));
    let held = HeldLease { kept: None, ..held_lease(1, &grant, grant.plan_id) };
    let back =
        Join { agent: agent(0, 1), address: ([10, 0, 0, 0].into(), 7401), from: HOME, leases: vec![held] };
    let outputs = apply(&mut next, Time(3), Input::Join(back));
    let told = outputs.iter().find_map(|output| match output {
        Output::Replanned { plan_id, before, plan, .. } if *plan_id == grant.plan_id => Some((before, plan)),
        _ => None,
    });
    let (before, plan) = told.expect("its trees are told");
    assert_eq!(before.channel, grant.plan.channel);
    assert_ne!(plan.channel, grant.plan.channel);
    assert_eq!(next.leases().next().unwrap().grant.plan, *plan);
}

/// Numbers of hosts begin anew after the largest one that may be given; those in use stay as they are.
#[test]
fn after_the_largest_number_the_free_ones_are_given() {
    let mut manager = manager(1, false);
    for (name, number) in [("host-0", 0), ("host-1", 2), ("last", u32::MAX - 1)] {
        manager.know_host_as(name, HostId(number)).unwrap();
    }
    assert_eq!(["a", "b", "host-1", "a"].map(|name| manager.know_host(name).0), [1, 3, 2, 1]);
    assert!(manager.know_host_as("c", HostId(u32::MAX)).is_err());
}

/// All agents come again to each new leader, which has their records: it writes none of them anew, but for
/// those that have moved or are another run.
#[test]
fn agents_that_come_again_write_nothing() {
    let make = || manager(1, false);
    let mut store = BTreeMap::new();
    let mut first = with_three_agents(make());
    write(&mut store, &mut first);
    let mut next = make();
    assert_eq!(next.restore(Time(5), records(&store)), []);
    assert_eq!(with_three_agents(next).changes(), []);
    let mut third = make();
    assert_eq!(third.restore(Time(5), records(&store)), []);
    let moved = Join {
        agent: agent(1, 1),
        address: ([10, 0, 0, 99].into(), 7401),
        from: [10, 0, 0, 1].into(),
        leases: Vec::new(),
    };
    for input in [join(0, 1), Input::Join(moved), join(2, 2)] {
        apply(&mut third, Time(6), input);
    }
    let changes = third.changes();
    let keys: Vec<String> = changes.iter().map(|(key, _)| key.to_string()).collect();
    assert_eq!(keys, ["member/host-1", "member/host-2"]);
    assert!(changes.iter().all(|(_, record)| record.is_some()));
}
