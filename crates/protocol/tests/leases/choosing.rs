//! Choice among several fabrics for a request: circuits of 10 Gbit/s that take 25 ms, multicast over hosts'
//! links of 1 Gbit/s, or the chain.

use super::circuits::circuits;
use super::{agent, apply, config, join, object, response};
use polycast_planning::estimate::{Assumed, Estimator, Learned};
use polycast_planning::ip_multicast::{AddressPool, IpMulticast};
use polycast_planning::ocs::Ocs;
use polycast_planning::tcp_chain::TcpChain;
use polycast_planning::{Fabric, FabricName, Fabrics, GreedyMatching, PartitionFcfs, Scheduler, Wish};
use polycast_protocol::leases::{
    Grant, Input, Join, Leases, Output, PathRequest, Receivers, Record, RecordKey, STREAMS_FROM, SetAside,
    Wait, known_hosts,
};
use polycast_types::{Duration, Rate, Time};

const NAMES: [&str; 6] = ["host-0", "host-1", "host-2", "host-3", "host-4", "host-5"];
const SMALL: u64 = 100_000;
const LARGE: u64 = 100_000_000;
/// Sum of the parts of the estimates: 6 ms of session with two receivers, 25 ms of circuits, 80 ms at 10
/// Gbit/s.
const LARGE_OVER_CIRCUITS: Duration = Duration::from_millis(105);

/// Six hosts in racks of their own; one splitter, so that one group has circuits at a time.
fn manager_of(choose: impl FnOnce(Fabrics) -> Fabrics, scheduler: Box<dyn Scheduler>) -> Leases {
    let mut manager = empty_manager_of(choose, scheduler);
    for number in 0..6 {
        apply(&mut manager, Time(0), join(number, 1));
    }
    manager
}

/// The same before an agent has joined.
fn empty_manager_of(choose: impl FnOnce(Fabrics) -> Fabrics, scheduler: Box<dyn Scheduler>) -> Leases {
    let pool = |third| AddressPool::new([239, 255, third, 0].into(), 4, 7410).unwrap();
    let places = known_hosts(NAMES).map(|(_, host)| host).zip(0..);
    let circuits = polycast_planning::ocs::OcsConfig { rate: Rate(10_000_000_000), ..circuits(6) };
    let ocs = Ocs::new(circuits, places, pool(64)).unwrap();
    let fabrics: Vec<Box<dyn Fabric>> =
        vec![Box::new(ocs), Box::new(IpMulticast::new(pool(65))), Box::new(TcpChain)];
    let fabrics = Fabrics::new(fabrics).estimating(Estimator::new(Assumed::default()));
    let mut manager = Leases::new(config(), choose(fabrics), scheduler);
    for (name, host) in known_hosts(NAMES) {
        assert_eq!(manager.know_host(name), host);
    }
    manager
}

fn by_time() -> Leases {
    manager_of(|fabrics| fabrics.choosing_by_time(true), Box::new(GreedyMatching::default()))
}

fn millis(millis: u64) -> Time {
    Time(millis * 1_000_000)
}

/// From `source` to the two hosts after it.
fn wanted(source: u8, bytes: u64, wish: Wish) -> PathRequest {
    let receivers = [1, 2].map(|step| NAMES[(usize::from(source) + step) % 6].to_string());
    PathRequest {
        agent: agent(source, 1),
        request: u64::from(source),
        object: object(u64::from(source)),
        object_bytes: bytes,
        remaining_bytes: bytes,
        further_sources: Vec::new(),
        receivers: Receivers::Named(receivers.into()),
        divisible: false,
        lease: None,
        wish,
    }
}

fn ask(manager: &mut Leases, now: Time, source: u8, bytes: u64) -> Grant {
    let request = Input::Request(wanted(source, bytes, Wish::default()));
    response(&apply(manager, now, request)).unwrap()
}

fn give_back(manager: &mut Leases, now: Time, source: u8, grant: &Grant) -> Vec<Output> {
    let request = agent(source, 1).request(u64::from(source));
    apply(manager, now, Input::Release { request, plan: grant.plan_id })
}

fn passed(grant: &Grant) -> Vec<(&str, &str)> {
    grant.passed_over.iter().map(|passed| (passed.fabric.as_str(), passed.why.as_str())).collect()
}

#[test]
fn small_objects_take_what_is_there_soon_and_large_ones_what_is_fast() {
    let mut manager = by_time();
    let small = ask(&mut manager, millis(0), 0, SMALL);
    assert_eq!(small.plan.fabric, "ip-multicast");
    assert_eq!(passed(&small), [("ocs", "estimated 25.0 ms, ip-multicast 6.8 ms")]);
    assert_eq!(small.estimate, Some(Duration::from_micros(6_800)));
    let large = ask(&mut manager, millis(0), 3, LARGE);
    assert_eq!((large.plan.fabric, passed(&large)), (Ocs::NAME, vec![]));
    assert_eq!(large.estimate, Some(LARGE_OVER_CIRCUITS));
}

#[test]
fn by_order_the_first_that_can_has_it_whatever_the_size() {
    for bytes in [SMALL, LARGE] {
        let mut manager = manager_of(|fabrics| fabrics, Box::new(GreedyMatching::default()));
        let grant = ask(&mut manager, millis(0), 0, bytes);
        assert_eq!((grant.plan.fabric, passed(&grant)), (Ocs::NAME, vec![]), "{bytes}");
        // Estimated all the same.
        assert!(grant.estimate.is_some());
        let next = ask(&mut manager, millis(0), 3, bytes);
        assert_eq!(next.plan.fabric, IpMulticast::NAME);
        assert_eq!(next.passed_over[0].fabric, Ocs::NAME, "{next:?}");
    }
}

#[test]
fn a_wish_goes_before_any_estimate() {
    for (name, or_fail) in [(TcpChain::NAME, false), (IpMulticast::NAME, true), (Ocs::NAME, false)] {
        for bytes in [SMALL, LARGE] {
            let mut manager = by_time();
            let wish = Wish { fabric: Some(name), or_fail, ..Wish::default() };
            let outputs = apply(&mut manager, millis(0), Input::Request(wanted(0, bytes, wish)));
            let grant = response(&outputs).unwrap();
            assert_eq!((grant.plan.fabric, passed(&grant)), (name, vec![]), "{bytes}");
        }
    }
    // One that cannot leaves the choice to the estimates, or is the answer.
    let mut manager = by_time();
    let first = ask(&mut manager, millis(0), 0, LARGE);
    assert_eq!(first.plan.fabric, Ocs::NAME);
    let wish = Wish { fabric: Some(Ocs::NAME), or_fail: false, ..Wish::default() };
    let grant = response(&apply(&mut manager, millis(0), Input::Request(wanted(3, SMALL, wish)))).unwrap();
    assert_eq!((grant.plan.fabric, grant.passed_over[0].fabric), (IpMulticast::NAME, Ocs::NAME));
    let wish = Wish { fabric: Some(Ocs::NAME), or_fail: true, ..Wish::default() };
    let outputs = apply(&mut manager, millis(0), Input::Request(wanted(4, SMALL, wish)));
    assert!(matches!(outputs[..], [Output::Waiting { .. }]), "{outputs:?}");
    let none = Wish { fabric: Some(FabricName::new("wormhole")), or_fail: false, ..Wish::default() };
    let outputs = apply(&mut manager, millis(0), Input::Request(wanted(5, SMALL, none)));
    assert!(response(&outputs).unwrap_err().to_string().contains("no fabric 'wormhole'"), "{outputs:?}");
}

/// The wait for circuits counts as the transfer that has them was estimated, and a quarter more.
#[test]
fn a_request_waits_where_that_gains_time_and_is_told() {
    let mut manager = by_time();
    let first = ask(&mut manager, millis(0), 0, LARGE);
    // A small one does not wait for circuits.
    let small = ask(&mut manager, millis(1), 1, SMALL);
    assert_eq!(small.plan.fabric, IpMulticast::NAME);
    give_back(&mut manager, millis(2), 1, &small);
    let outputs = apply(&mut manager, millis(50), Input::Request(wanted(3, LARGE, Wish::default())));
    let [Output::Waiting { wait, .. }] = &outputs[..] else { panic!("{outputs:?}") };
    // 105 ms, of which 50 ms are over.
    assert_eq!(*wait, Wait { before: 0, estimate: Some(Duration::from_millis(55)) });
    let second = response(&give_back(&mut manager, millis(110), 0, &first)).unwrap();
    assert_eq!((second.plan.fabric, passed(&second)), (Ocs::NAME, vec![]));
}

#[test]
fn a_path_that_is_not_back_in_time_is_waited_for_no_more() {
    let mut manager = by_time();
    ask(&mut manager, millis(0), 0, LARGE);
    let outputs = apply(&mut manager, millis(50), Input::Request(wanted(3, LARGE, Wish::default())));
    assert!(matches!(outputs[..], [Output::Waiting { .. }]), "{outputs:?}");
    let due = manager.deadline().unwrap();
    assert_eq!(due, Time(131_250_000));
    let outputs: Vec<Output> = std::iter::from_fn(|| manager.poll(due)).collect();
    let grant = response(&outputs).unwrap();
    assert_eq!(grant.plan.fabric, IpMulticast::NAME);
    assert_eq!(grant.passed_over[0].fabric, Ocs::NAME);
    // Nor by those who come later: nothing is known of when it is back.
    let later = ask(&mut manager, millis(200), 4, LARGE);
    assert_eq!(later.plan.fabric, IpMulticast::NAME, "{later:?}");
}

/// A request that waits for circuits has them for a while too. Multicast takes 806 ms; circuits are back
/// after 130 ms, and each of those that wait takes 105 ms.
#[test]
fn those_who_wait_before_count() {
    let mut manager = by_time();
    ask(&mut manager, millis(0), 0, LARGE);
    let mut waits = Vec::new();
    for number in 0..7 {
        let request = PathRequest { request: 100 + number, ..wanted(3, LARGE, Wish::default()) };
        let outputs = apply(&mut manager, millis(1), Input::Request(request));
        waits.push(outputs.iter().any(|output| matches!(output, Output::Waiting { .. })));
    }
    assert_eq!(waits, [true, true, true, true, true, true, false]);
}

#[test]
fn where_no_request_is_to_wait_the_fastest_that_is_free_has_it() {
    let mut manager =
        manager_of(|fabrics| fabrics.choosing_by_time(false), Box::new(GreedyMatching::default()));
    assert_eq!(ask(&mut manager, millis(0), 0, LARGE).plan.fabric, Ocs::NAME);
    let next = ask(&mut manager, millis(1), 3, LARGE);
    assert_eq!(next.plan.fabric, IpMulticast::NAME);
    let why = passed(&next)[0].1;
    assert!(why.contains("with the wait estimated 235 ms, ip-multicast 806 ms"), "{why}");
}

#[test]
fn the_scheduler_of_partitions_chooses_by_time_too() {
    let mut manager = manager_of(|fabrics| fabrics.choosing_by_time(true), Box::new(PartitionFcfs));
    assert_eq!(ask(&mut manager, millis(0), 0, SMALL).plan.fabric, IpMulticast::NAME);
    assert_eq!(ask(&mut manager, millis(0), 3, LARGE).plan.fabric, Ocs::NAME);
}

/// Transfers over multicast that were said to take so long, each held for as long.
fn tell(manager: &mut Leases, begin: u64, took: Duration, unreached: &[&str], held_ms: u64) -> u64 {
    let wish = Wish { fabric: Some(IpMulticast::NAME), or_fail: true, ..Wish::default() };
    let mut now = begin;
    for _ in 0..40 {
        let grant = response(&apply(manager, millis(now), Input::Request(wanted(0, LARGE, wish)))).unwrap();
        // All live meanwhile.
        for _ in 0..held_ms / 500 {
            now += 500;
            for number in 0..6 {
                let leases = if number == 0 { vec![grant.plan_id] } else { Vec::new() };
                apply(manager, millis(now), Input::Heartbeat { agent: agent(number, 1), leases });
            }
        }
        let fared = Input::Fared {
            request: agent(0, 1).request(0),
            plan: grant.plan_id,
            unreached: unreached.iter().map(|name| (*name).to_string()).collect(),
            reached_all: unreached.is_empty(),
            took: Some(took),
        };
        apply(manager, millis(now), fared);
        give_back(manager, millis(now), 0, &grant);
    }
    now
}

#[test]
fn estimates_learn_of_transfers_and_no_lie_moves_them_far() {
    // What is said, for how long the path was held, and what is estimated at last for 800 ms of carrying and
    // 6 ms of session.
    for (took, unreached, held_ms, expected) in [
        (Duration::from_millis(406), &[][..], 500, 406),
        (Duration::ZERO, &[], 500, 206),
        (Duration(u64::MAX), &[], 500, 500),
        (Duration(u64::MAX), &[], 3_500, 3_206),
        // Of one that has not reached all, nothing is learned.
        (Duration::ZERO, &["host-1"], 500, 806),
    ] {
        let mut manager = by_time();
        let now = tell(&mut manager, 0, took, unreached, held_ms);
        let wish = Wish { fabric: Some(IpMulticast::NAME), or_fail: true, ..Wish::default() };
        let outputs = apply(&mut manager, millis(now), Input::Request(wanted(0, LARGE, wish)));
        let estimate = response(&outputs).unwrap().estimate.unwrap().as_millis();
        assert!((expected - 2..=expected + 2).contains(&estimate), "{took:?} {held_ms}: {estimate}");
    }
}

/// Experience with a fabric changes which request gets it.
#[test]
fn a_fabric_that_turns_out_fast_is_chosen_next() {
    let mut manager = by_time();
    let bytes = 2_000_000;
    // 25 + 1.6 ms of circuits, 6 + 16 of multicast, which is about as good.
    let first = ask(&mut manager, millis(0), 0, bytes);
    assert_eq!(first.plan.fabric, Ocs::NAME);
    give_back(&mut manager, millis(30), 0, &first);
    let now = tell(&mut manager, 30, Duration::from_millis(406), &[], 500);
    let next = ask(&mut manager, millis(now), 0, bytes);
    assert_eq!(next.plan.fabric, IpMulticast::NAME);
    assert_eq!(passed(&next), [("ocs", "estimated 26.6 ms, ip-multicast 14.0 ms")]);
}

/// Parts of a large object go over the fabric that is the best for the whole.
#[test]
fn the_last_part_goes_where_the_first_went() {
    let mut manager = by_time();
    let request = PathRequest { remaining_bytes: SMALL, ..wanted(0, LARGE, Wish::default()) };
    let grant = response(&apply(&mut manager, millis(0), Input::Request(request))).unwrap();
    assert_eq!((grant.plan.fabric, grant.accepted_bytes), (Ocs::NAME, SMALL));
}

/// One that leads after another one, with its records.
fn successor() -> Leases {
    empty_manager_of(|fabrics| fabrics.choosing_by_time(true), Box::new(GreedyMatching::default()))
}

fn is_learned(record: &Record) -> bool {
    matches!(record, Record::Learned { .. })
}

#[test]
fn a_new_leader_goes_on_with_what_was_learned() {
    let mut before = by_time();
    before.changes();
    let now = tell(&mut before, 0, Duration::from_millis(406), &[], 500);
    let changes = before.changes();
    let written =
        changes.into_iter().find(|(key, _)| *key == RecordKey::Learned).and_then(|(_, record)| record);
    let records = before.records();
    assert!(written.is_some_and(|written| records.contains(&written)));
    let bytes = 2_000_000;
    let chosen = |manager: &mut Leases, now: u64| {
        let grant = ask(manager, millis(now), 0, bytes);
        (grant.plan.fabric, grant.estimate)
    };
    // What is written goes through the records' own form.
    let read = |records: &[Record]| -> Vec<Record> {
        serde_json::from_str(&serde_json::to_string(records).unwrap()).unwrap()
    };
    let mut after = successor();
    assert_eq!(after.restore(millis(now), read(&records)), []);
    assert_eq!(after.records(), records);
    assert!(after.changes().iter().all(|(key, _)| *key != RecordKey::Learned), "it is written already");
    let knows = chosen(&mut after, now + 1);
    assert_eq!(knows, chosen(&mut before, now + 1));
    assert_eq!(knows.0, IpMulticast::NAME);
    // One of an earlier version has written nothing of it, and what was not confirmed for an hour does not
    // count.
    let old: Vec<Record> = records.iter().filter(|record| !is_learned(record)).cloned().collect();
    for (records, at) in [(old, now), (records, now + 3_700_000)] {
        let mut after = successor();
        assert_eq!(after.restore(millis(at), records), []);
        assert_eq!(chosen(&mut after, at + 1).0, Ocs::NAME);
    }
}

/// A record that lies is not believed, is said to be wrong, and nothing else is lost.
#[test]
fn a_record_of_what_cannot_have_been_learned_is_refused() {
    const ONE: u64 = 1 << 16;
    let one =
        |fabric: FabricName, set_up: u64, carrying: u64| Learned { fabric, set_up, carrying, at: millis(1) };
    let many = (0..65).map(|number| one(format!("fabric-{number}").parse().unwrap(), ONE, ONE)).collect();
    let table: [(Vec<Learned>, Option<&str>); 7] = [
        (vec![one(Ocs::NAME, ONE / 4, ONE * 4), one(TcpChain::NAME, ONE * 4, ONE / 4)], None),
        (
            vec![one(IpMulticast::NAME, ONE, 0)],
            Some("'ip-multicast' takes 1.00 times what is assumed for its set-up and 0.00 times"),
        ),
        (vec![one(Ocs::NAME, ONE / 4 - 1, ONE)], Some("'ocs' takes 0.24 times")),
        (vec![one(Ocs::NAME, ONE, ONE * 4 + 1)], Some("both can only be 0.25 to 4 times")),
        (vec![one(Ocs::NAME, u64::MAX, ONE)], Some("'ocs' takes 281474976710655.99 times")),
        (vec![one(Ocs::NAME, ONE, ONE), one(Ocs::NAME, ONE, ONE * 2)], Some("of one fabric twice")),
        // Fabrics that are not here.
        (many, None),
    ];
    for (fabrics, why) in table {
        let mut manager = by_time();
        let mut records: Vec<Record> = manager.records();
        records.push(Record::Learned { fabrics });
        manager = successor();
        let aside = manager.restore(millis(2), records.clone());
        let words = why.is_none_or(|why| aside.iter().any(|SetAside { reason, .. }| reason.contains(why)));
        assert!(words, "{aside:?}");
        let expected = if why.is_some() { vec![RecordKey::Learned] } else { Vec::new() };
        assert_eq!(aside.into_iter().map(|aside| aside.key).collect::<Vec<_>>(), expected);
        assert_eq!(manager.records().iter().filter(|record| !is_learned(record)).count(), records.len() - 1);
        manager.check();
        let grant = ask(&mut manager, millis(3), 0, SMALL);
        // 6 ms of session and 0.8 ms at 1 Gbit/s, or 25 ms of circuits: a lie moves nothing.
        if why.is_some() {
            assert_eq!(
                (grant.plan.fabric, grant.estimate),
                (IpMulticast::NAME, Some(Duration::from_micros(6_800)))
            );
        }
    }
}

/// Clocks of managers differ: what was seen later than now was seen now.
#[test]
fn what_was_learned_in_the_future_is_of_now() {
    let far = Learned { fabric: IpMulticast::NAME, set_up: 1 << 16, carrying: 1 << 15, at: Time(u64::MAX) };
    let mut manager = by_time();
    let records = [manager.records(), vec![Record::Learned { fabrics: vec![far] }]].concat();
    manager = successor();
    assert_eq!(manager.restore(millis(2), records), []);
    let learned = Record::Learned { fabrics: vec![Learned { at: millis(2), ..far }] };
    assert!(manager.records().contains(&learned), "{:?}", manager.records());
}

/// A stream of messages carries next to nothing: no estimate is longer for it. What an object takes of a link
/// is missed by others.
#[test]
fn a_stream_takes_nothing_of_others_time() {
    let estimate = |before: Option<u64>| {
        let mut manager = by_time();
        if let Some(request) = before {
            let wish = Wish { fabric: Some(IpMulticast::NAME), or_fail: true, ..Wish::default() };
            let request = PathRequest { request, ..wanted(0, LARGE, wish) };
            assert!(response(&apply(&mut manager, millis(0), Input::Request(request))).is_ok());
        }
        ask(&mut manager, millis(0), 1, SMALL).estimate
    };
    assert_eq!(estimate(Some(STREAMS_FROM)), estimate(None));
    assert!(estimate(Some(7)) > estimate(None));
}

/// A manager that hears both families lends each source a group of its own: another one would be refused by
/// its socket, and the object go over TCP.
#[test]
fn a_source_is_lent_a_group_of_the_family_of_its_address() {
    let pool = |text| AddressPool::parse(text, 7410).unwrap();
    let multicast = IpMulticast::new(pool("ff15::8000:0/120"));
    let multicast = multicast.with_other_family(Some(pool("239.255.64.0/24")));
    let mut manager =
        Leases::new(config(), Fabrics::new(vec![Box::new(multicast)]), Box::new(polycast_planning::Fcfs));
    let at = |number: u8, address: core::net::IpAddr| {
        Input::Join(Join {
            agent: agent(number, 1),
            address: (address, 7401),
            from: address,
            leases: Vec::new(),
        })
    };
    let addresses = ["10.0.0.1", "fd00::2", "::ffff:10.0.0.3", "10.0.0.4"];
    for (number, address) in (0..).zip(addresses) {
        apply(&mut manager, Time(0), at(number, address.parse().unwrap()));
    }
    let mut lent = |number: u8| {
        let request = super::request(agent(number, 1), 1, &["host-3"]);
        match response(&apply(&mut manager, Time(1), Input::Request(request))).unwrap().plan.channel {
            polycast_planning::Channel::Multicast { group, .. } => group.0.is_ipv6(),
            channel => panic!("{channel:?}"),
        }
    };
    assert_eq!([0, 1, 2].map(&mut lent), [false, true, false]);
}
