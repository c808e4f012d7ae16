use super::*;
use alloc::string::ToString;
use polycast_types::Rate;

fn scenario(network: &str, transport: Transport) -> Scenario {
    let layout: Layout = network.parse().unwrap();
    Scenario {
        seed: 1,
        layout,
        links: LinkConfig::new(Rate(10_000_000_000), Duration::from_micros(1)),
        changes: Vec::new(),
        transfers: alloc::vec![TransferPlan {
            transport,
            routing: Routing::Natural,
            source: 1,
            receivers: None,
            bytes: 1_000_000,
            start: Time::ZERO,
        }],
        tcp: TcpConfig::default(),
        flows: Vec::new(),
        failures: Vec::new(),
        detection: None,
        receivers: Vec::new(),
        optical: Vec::new(),
        time_limit: Time(20_000_000_000),
    }
}

fn push() -> Transport {
    Transport::Push(PushConfig { group_bytes: 64 << 10, ..PushConfig::default() })
}

#[test]
fn every_network_delivers() {
    for network in [
        "leaf-spine:3,2,3",
        "fat-tree:4,3",
        "bcube:4,2",
        "torus:3,2",
        "clos:2,2,2,2,1",
        "shufflecast:2,2,2",
        "blast:racks=3,hosts=2",
    ] {
        for transport in [push(), Transport::Tcp] {
            let report = scenario(network, transport).run(3).unwrap();
            assert!(report.finished_at.is_some(), "{network}: {:?}", report.receivers);
            assert_eq!(report.breaches, Vec::<String>::new());
            assert_eq!(report.links.iter().map(|link| link.bytes).sum::<u64>(), report.bytes_on_links);
        }
    }
}

/// The words of labs, for the same networks.
#[test]
fn labs_and_scenarios_say_the_same_words() {
    for (lab, own) in [
        ("shufflecast:2,2,hosts=4", "shufflecast:2,2,4"),
        ("orca:4", "fat-tree:4,3"),
        ("datacast:bcube:4,2", "bcube:4,2"),
        ("bridge:8", "leaf-spine:1,1,8"),
        ("blast:hosts=2,racks=3", "blast:racks=3,hosts=2"),
    ] {
        assert_eq!(lab.parse::<Layout>().unwrap().to_string(), own);
    }
    for text in ["blast:8", "blast:hosts=2", "blast:racks=0", "blast:racks=2,lamps=3"] {
        assert!(text.parse::<Layout>().unwrap_err().contains("blast:racks=R,hosts=H"), "{text}");
    }
    assert!("blast:racks=4000000,hosts=4000".parse::<Layout>().unwrap_err().contains("too large"));
}

/// One copy goes up to the circuit switch, and none of the data through the packet switch.
#[test]
fn circuits_carry_what_racks_of_a_group_get() {
    let report = scenario("blast:racks=3,hosts=2", push()).run(1).unwrap();
    assert!(report.finished_at.is_some(), "{:?}", report.receivers);
    let bytes = |from: u32, to: u32| {
        let link = report.links.iter().find(|link| (link.from, link.to) == (from, to));
        link.map_or(0, |link| link.bytes)
    };
    // Hosts 0 to 5, of which 1 is the source, ToRs 6 to 8, the circuit switch 9 and the packet switch 10.
    let object = bytes(1, 6);
    assert!(object > 1_000_000, "{object}");
    for (from, to) in [(6, 9), (9, 7), (9, 8)] {
        assert!(bytes(from, to) * 100 > object * 95, "{from} to {to}: {} of {object}", bytes(from, to));
    }
    assert_eq!(bytes(9, 6), 0, "the source's rack has it already");
    assert!(bytes(6, 10) * 5 < object, "only control goes by the packet switch");
}

#[test]
fn push_sends_less_than_tcp() {
    let bytes = |transport| scenario("leaf-spine:2,1,8", transport).run(1).unwrap().bytes_on_links;
    assert!(bytes(push()) * 2 < bytes(Transport::Tcp));
}

#[test]
fn labels_and_given_trees_carry_too() {
    let mut labels = scenario("leaf-spine:3,2,3", push());
    labels.transfers[0].routing = Routing::Labels { filter_bits: 16 };
    assert!(labels.run(1).unwrap().finished_at.is_some());
    let mut tree = scenario("leaf-spine:2,1,2", push());
    tree.transfers[0].receivers = Some(alloc::vec![0, 2]);
    tree.transfers[0].routing = Routing::Tree(alloc::vec![(1, 4), (4, 0), (4, 6), (6, 5), (5, 2)]);
    assert!(tree.run(1).unwrap().finished_at.is_some());
    for (arcs, said) in [
        (
            alloc::vec![(1, 4), (4, 0), (4, 6), (6, 4)],
            "transfer.tree[3]: node 4 is reached already: this would be a loop",
        ),
        (alloc::vec![(1, 4), (4, 0)], "transfer.tree: it does not reach receiver 2"),
        (alloc::vec![(4, 0)], "transfer.tree[0]: node 4 is not reached yet: begin at the source, 1"),
        (alloc::vec![(1, 5)], "transfer.tree[0]: no link leads from 1 to 5"),
    ] {
        tree.transfers[0].routing = Routing::Tree(arcs);
        assert_eq!(tree.run(1).unwrap_err().to_string(), said);
    }
}

#[test]
fn what_makes_no_sense_is_named() {
    let check = |change: &dyn Fn(&mut Scenario), said: &str| {
        let mut wrong = scenario("leaf-spine:2,2,2", push());
        change(&mut wrong);
        assert_eq!(wrong.run(1).unwrap_err().to_string(), said);
    };
    let config = LinkConfig::new(Rate(1), Duration::ZERO);
    check(
        &|s| s.transfers[0].receivers = Some(alloc::vec![0, 9]),
        "transfer.receivers: host 9 is not there: leaf-spine:2,2,2 has hosts 0 to 3",
    );
    check(
        &|s| s.transfers[0].receivers = Some(alloc::vec![1]),
        "transfer.receivers: host 1 is the source: name other hosts",
    );
    check(
        &|s| s.transfers[0].receivers = Some(alloc::vec![0, 0]),
        "transfer.receivers: host 0 is there twice: name it once",
    );
    check(
        &|s| s.transfers[0].source = 4,
        "transfer.source: host 4 is not there: leaf-spine:2,2,2 has hosts 0 to 3",
    );
    check(
        &|s| s.changes.push(Change { from: 4, to: 4, config, one_way: false }),
        "link[0].to: a link from node 4 to itself is a loop: name another node",
    );
    check(
        &|s| s.changes.push(Change { from: 0, to: 1, config, one_way: false }),
        "link[0]: leaf-spine:2,2,2 has no link from 0 to 1",
    );
    let failure = |what| FailurePlan { at: Time(1), what, until: None, reroute_after: None };
    check(
        &|s| s.failures.push(failure(Failed::Link { from: 0, to: 2, one_way: false })),
        "failure[0].link: no link leads from 0 to 2",
    );
    check(
        &|s| s.failures.push(failure(Failed::Node(99))),
        "failure[0].node: node 99 is not there: leaf-spine:2,2,2 has nodes 0 to 7",
    );
    check(
        &|s| s.flows.push(FlowPlan { from: 0, to: 0, bytes: None, start: Time::ZERO }),
        "flow[0].to: host 0 would send to itself: name another host",
    );
    let receiver = ReceiverPlan { node: 0, service: None, crash: None, restart: Some(Time(1)) };
    check(
        &|s| s.receivers.push(receiver),
        "receiver[0].restart: a receiver restarts after its `crash`: name a later time",
    );
}

#[test]
fn explicit_links_make_a_network() {
    let mut line = scenario("leaf-spine:2,2,2", push());
    line.layout = Layout::Nodes(4);
    let config = line.links;
    line.changes =
        [(0, 1), (1, 2), (2, 3)].map(|(from, to)| Change { from, to, config, one_way: false }).to_vec();
    let report = line.run(1).unwrap();
    assert!(report.finished_at.is_some());
    line.changes.pop();
    let said = |line: &Scenario| line.run(1).unwrap_err().to_string();
    let lacks = |from, to| {
        format!("transfer.receivers: no links lead from host {from} to host {to}: add a [[link]] on the way")
    };
    assert_eq!(said(&line), lacks(1, 3), "node 3 has no link");
    line.changes.push(Change { from: 2, to: 3, config, one_way: true });
    assert_eq!(said(&line), lacks(3, 1), "and none back");
}

#[test]
fn failures_and_crashes_are_survived() {
    let mut storm = scenario("leaf-spine:2,2,4", push());
    storm.transfers[0].bytes = 20_000_000;
    let what = Failed::Node(10);
    let (at, until) = (Time(4_000_000), Some(Time(40_000_000)));
    storm.failures.push(FailurePlan { at, what, until, reroute_after: Some(Duration::from_millis(2)) });
    storm.flows.push(FlowPlan { from: 2, to: 6, bytes: Some(2_000_000), start: Time(1_000_000) });
    storm.receivers.push(ReceiverPlan { node: 3, service: Some(Duration(500)), crash: None, restart: None });
    let (first, second) = (storm.run(9).unwrap(), storm.run(9).unwrap());
    assert_eq!(first, second);
    assert!(first.finished_at.is_some() && first.breaches.is_empty(), "{:?}", first.receivers);
    assert_ne!(first.trace_hash, storm.run(10).unwrap().trace_hash);
}

#[test]
fn pull_runs_where_it_has_trees() {
    let pull = || Transport::Pull(PullConfig { block_bytes: 100_000, ..PullConfig::default() });
    for network in ["bcube:4,2", "torus:3,2", "fat-tree:4,3"] {
        let mut run = scenario(network, pull());
        run.transfers[0].receivers = Some(alloc::vec![0, 2, 5]);
        let what = Failed::Link { from: 2, to: if network == "torus:3,2" { 5 } else { 16 }, one_way: false };
        if network != "fat-tree:4,3" {
            let (at, until) = (Time(100_000), Some(Time(9_000_000)));
            run.failures.push(FailurePlan { at, what, until, reroute_after: None });
        }
        let report = run.run(3);
        let report = report.unwrap_or_else(|problem| panic!("{network}: {problem}"));
        assert!(report.finished_at.is_some(), "{network}: {:?}", report.receivers);
        assert!(report.drops > 0 || network == "fat-tree:4,3", "{network}");
        assert_eq!(Ok(report), run.run(3));
    }
    let said = scenario("shufflecast:2,2,2", pull()).run(1).unwrap_err().to_string();
    assert!(said.contains("pull needs a topology by name"), "{said}");
    let mut optical = scenario("bcube:4,2", pull());
    optical.optical.push(OpticalPlan { node: 17, ready_at: Time(1), loss_ppm: 1 });
    assert!(optical.run(1).unwrap_err().to_string().starts_with("optical: "));
    let mut stray = scenario("bcube:4,2", pull());
    stray.receivers.push(ReceiverPlan { node: 1, service: None, crash: None, restart: None });
    assert!(stray.run(1).unwrap_err().to_string().starts_with("receiver[0].node: host 1 is no receiver"));
}

#[test]
fn pull_shares_links_with_tcp_and_its_trees_follow_failures() {
    let transport = Transport::Pull(PullConfig { block_bytes: 100_000, ..PullConfig::default() });
    let alone = scenario("bcube:4,2", transport);
    let finish = |run: &Scenario| run.run(3).unwrap().finished_at.expect("all receivers get it");
    let mut beside = alone.clone();
    let source = alone.transfers[0].source;
    let other = if source == 1 { 2 } else { 1 };
    beside.flows.push(FlowPlan { from: source, to: other, bytes: None, start: Time::ZERO });
    assert!(finish(&beside) > finish(&alone), "TCP takes nothing");
    // A server's first link dies for good: only trees that go round it can serve.
    let receiver = alone.transfers[0].receivers.clone().map_or(other, |hosts| hosts[0]);
    let mut cut = alone.clone();
    let what = Failed::Link { from: receiver, to: 16 + receiver / 4, one_way: false };
    cut.failures.push(FailurePlan { at: Time(100_000), what, until: None, reroute_after: None });
    let mut mended = cut.clone();
    mended.failures[0].reroute_after = Some(Duration::from_millis(1));
    let (left, mended) = (cut.run(3).unwrap(), mended.run(3).unwrap());
    assert!(mended.finished_at.is_some(), "{:?}", mended.receivers);
    assert!(left.finished_at.is_none_or(|at| Some(at) > mended.finished_at), "the repair did nothing");
}

#[test]
fn a_receiver_by_pull_crashes_and_comes_back_with_what_it_had() {
    let transport = Transport::Pull(PullConfig { block_bytes: 100_000, ..PullConfig::default() });
    let mut run = scenario("bcube:4,2", transport);
    let whole = run.run(3).unwrap();
    let node = whole.receivers[0].id;
    let middle = Time(whole.finished_at.unwrap().0 / 2);
    run.receivers.push(ReceiverPlan { node, service: None, crash: Some(middle), restart: None });
    let gone = run.run(3).unwrap();
    let failed: Vec<u32> = gone.receivers.iter().filter(|r| r.failure.is_some()).map(|r| r.id).collect();
    assert_eq!(failed, [node]);
    run.receivers[0].restart = Some(middle + Duration::from_millis(2));
    assert!(run.run(3).unwrap().finished_at.is_some());
}

/// Without new labels and rules a spine or a relay that fails cuts receivers off, which are then served over
/// TCP.
#[test]
fn labels_and_relays_are_planned_around_failures() {
    let fabric = polycast_topology::Shufflecast::new(2, 2).unwrap();
    let relay = polycast_planning::relays::relay_set(&fabric, 1).into_iter().find(|&tor| tor != 1).unwrap();
    // Nodes of shufflecast:2,2,1: eight hosts, eight ToRs, eight splitters, and the packet switch.
    let splitter = Some(16 + relay);
    let cases = [
        ("leaf-spine:3,2,3", Routing::Labels { filter_bits: 69 }, None),
        ("shufflecast:2,2,1", Routing::Natural, splitter),
    ];
    for (network, routing, node) in cases {
        let mut run = scenario(network, Transport::Push(PushConfig::default()));
        run.transfers[0].routing = routing;
        run.transfers[0].bytes = 20_000_000;
        let busy = run.run(5).unwrap();
        // The spine that carries it, or a ToR that relays.
        let spine = |link: &&LinkReport| link.bytes > 10_000_000 && link.to >= 12 && link.from >= 9;
        let node =
            node.or_else(|| busy.links.iter().find(spine).map(|link| link.to)).expect("one carries it");
        let what = Failed::Node(node);
        run.failures.push(FailurePlan { at: Time(3_000_000), what, until: None, reroute_after: None });
        let stale = run.run(5).unwrap();
        run.failures[0].reroute_after = Some(Duration::from_millis(1));
        let planned = run.run(5).unwrap();
        let done = |report: &Report| report.receivers.iter().filter(|r| r.finished_at.is_some()).count();
        assert!(done(&planned) >= done(&stale), "{network}");
        assert!(planned.breaches.is_empty(), "{network}: {:?}", planned.breaches);
        let last = |report: &Report| report.receivers.iter().filter_map(|r| r.finished_at).max();
        assert!(last(&planned) < last(&stale), "{network}: {:?} {:?}", last(&planned), last(&stale));
    }
}

/// Looking at a run does not change it; what is seen rises to the whole object, and ends with what the report
/// says.
#[test]
fn samples_show_a_run_and_leave_it_as_it_is() {
    let pull = Transport::Pull(PullConfig { block_bytes: 100_000, ..PullConfig::default() });
    for transport in [push(), Transport::Tcp, pull] {
        let run = scenario("fat-tree:4,3", transport);
        let mut samples: Vec<Sample> = Vec::new();
        let mut look = |sample: &Sample| samples.push(sample.clone());
        let report = run.run_with(3, Some(Probe::new(Duration::from_micros(100), &mut look))).unwrap();
        assert_eq!(Ok(&report), run.run(3).as_ref());
        assert!(samples.len() > 8, "{}", samples.len());
        let (last, before) = samples.split_last().unwrap();
        assert!(last.receivers.iter().all(|receiver| receiver.bytes == run.transfers[0].bytes), "{last:?}");
        assert!(before.iter().zip(1..).all(|(sample, step)| sample.at == Time(step * 100_000)));
        assert!(
            before.iter().any(|s| s.receivers.iter().any(|r| (1..run.transfers[0].bytes).contains(&r.bytes)))
        );
        let seen = last.links.iter().map(|link| (link.from, link.to, link.bytes, link.drops));
        let said = report.links.iter().map(|link| (link.from, link.to, link.bytes, link.drops()));
        assert!(seen.eq(said));
        assert!(report.links.iter().all(|link| link.queue_peak_bytes > 0 || link.bytes == 0));
    }
}

fn transfer(transport: Transport, source: u32, receivers: &[u32], bytes: u64) -> TransferPlan {
    let receivers = Some(receivers.to_vec());
    TransferPlan { transport, routing: Routing::Natural, source, receivers, bytes, start: Time::ZERO }
}

/// Several transfers of several kinds share a network; each has its own receivers and its own end.
#[test]
fn transfers_share_a_network() {
    let mut run = scenario("leaf-spine:2,2,4", push());
    let alone = {
        let mut alone = run.clone();
        alone.transfers = alloc::vec![transfer(push(), 0, &[4, 5, 6], 8_000_000)];
        alone.run(1).unwrap().finished_at.unwrap()
    };
    run.transfers = alloc::vec![
        transfer(push(), 0, &[4, 5, 6], 8_000_000),
        transfer(push(), 0, &[4, 5, 7], 8_000_000),
        transfer(Transport::Tcp, 2, &[6], 1_000_000),
    ];
    run.transfers[2].start = Time(3_000_000);
    let report = run.run(1).unwrap();
    assert_eq!((report.breaches.len(), report.receivers.len()), (0, 7), "{:?}", report.breaches);
    let of = |number: u32| report.receivers.iter().filter(move |r| r.transfer == number);
    for (transfer, number) in report.transfers.iter().zip(0..) {
        let last = of(number).map(|r| r.finished_at.expect("all have it")).max();
        assert_eq!(transfer.finished_at, last);
    }
    assert_eq!(report.finished_at, report.transfers.iter().filter_map(|t| t.finished_at).max());
    assert_eq!(report.transfers[2].started_at, Time(3_000_000));
    // Two from one host have half of its link each.
    let [first, second] = [0, 1].map(|number| report.transfers[number].finished_at.unwrap().0 as f64);
    assert!(first > 1.4 * alone.0 as f64 && second > 1.4 * alone.0 as f64, "{first} {second} {alone:?}");
    assert!((first / second - 1.0).abs() < 0.25, "{first} {second}");
    assert_eq!(Ok(report), run.run(1));
}

#[test]
fn transfers_by_pull_share_nodes_and_hosts_crash_in_all_of_them() {
    let pull = || Transport::Pull(PullConfig { block_bytes: 100_000, ..PullConfig::default() });
    let mut run = scenario("bcube:4,2", pull());
    run.transfers = alloc::vec![
        transfer(pull(), 1, &[2, 6, 11], 2_000_000),
        transfer(pull(), 5, &[2, 7], 1_500_000),
        transfer(pull(), 2, &[3], 300_000),
    ];
    // The third begins when the others are over, and its source is a receiver of both.
    let alone = scenario("bcube:4,2", pull());
    assert_eq!(alone.run(3).unwrap().transfers[0].started_at, Time::ZERO);
    run.transfers[2].start = Time(900_000_000);
    let report = run.run(3).unwrap();
    assert!(report.breaches.is_empty() && report.finished_at.is_some(), "{:?}", report.receivers);
    assert!(report.transfers[2].finished_at > Some(Time(900_000_000)));
    assert!(report.transfers[1].finished_at < Some(Time(900_000_000)));
    assert_eq!(report.receivers.iter().map(|r| r.transfer).collect::<Vec<_>>(), [0, 0, 0, 1, 1, 2]);
    // A host that crashes loses what it had not stored in each; one that stays away is given up in each.
    let middle = Time(report.transfers[1].finished_at.unwrap().0 / 2);
    run.receivers.push(ReceiverPlan { node: 2, service: None, crash: Some(middle), restart: None });
    let gone = run.run(3).unwrap();
    let failed: Vec<(u32, u32)> =
        gone.receivers.iter().filter(|r| r.failure.is_some()).map(|r| (r.transfer, r.id)).collect();
    assert_eq!(failed, [(0, 2), (1, 2)], "what it sends goes on");
    run.receivers[0].restart = Some(middle + Duration::from_millis(2));
    assert!(run.run(3).unwrap().finished_at.is_some());
}

#[test]
fn several_transfers_are_checked_one_by_one() {
    let check = |change: &dyn Fn(&mut Scenario), said: &str| {
        let mut wrong = scenario("leaf-spine:2,2,2", push());
        wrong.transfers = alloc::vec![transfer(push(), 0, &[1], 1_000), transfer(push(), 1, &[2], 1_000)];
        change(&mut wrong);
        assert_eq!(wrong.run(1).unwrap_err().to_string(), said);
    };
    check(
        &|s| s.transfers[1].receivers = Some(alloc::vec![1]),
        "transfer[1].receivers: host 1 is the source: name other hosts",
    );
    check(&|s| s.transfers.clear(), "transfer: there is no transfer: write one at least");
    let pull = Transport::Pull(PullConfig::default());
    check(
        &|s| s.transfers[1].transport = pull.clone(),
        "transfer[1].transport: with pull every node is a caching forwarder, which knows no other transport: let \
         all transfers be by pull, or none",
    );
    let receiver = ReceiverPlan { node: 3, service: None, crash: None, restart: None };
    check(&|s| s.receivers.push(receiver), "receiver[0].node: host 3 is a receiver of none of the transfers");
    check(
        &|s| s.transfers.iter_mut().for_each(|plan| plan.bytes = 2_000_000_000_000),
        "transfer[1].bytes: 2000000000000 bytes are 1381215470 packets, of which every receiver has to keep account \
         beside the transfers before it: write at most 1109556321744",
    );
    check(
        &|s| s.transfers = alloc::vec![s.transfers[0].clone(); 5_000],
        "transfer: 5000 transfers are too many for a run: write at most 4096",
    );
}

const DETECTION: Detection = Detection {
    period: Duration::from_millis(5),
    damping: Duration::ZERO,
    carrier: true,
    control_delay: Duration::from_micros(200),
};

/// A receiver's last tree link dies: a manager finds that out by the carrier at once, by greetings after four
/// of them, and with damping later still. Without one the receiver waits for what comes over its other trees.
#[test]
fn a_manager_of_pull_finds_out_what_has_failed() {
    let transport = Transport::Pull(PullConfig { block_bytes: 100_000, ..PullConfig::default() });
    let mut run = scenario("bcube:4,2", transport);
    run.transfers[0].bytes = 20_000_000;
    let (receiver, at) = (0, Time(30_000_000));
    let what = Failed::Link { from: receiver, to: 16 + receiver / 4, one_way: false };
    run.failures.push(FailurePlan { at, what, until: None, reroute_after: None });
    let finish = |run: &Scenario| run.run(3).unwrap().finished_at;
    let left = finish(&run);
    let mut found = |detection| {
        run.detection = Some(detection);
        let report = run.run(3).unwrap();
        assert_eq!(Ok(&report), run.run(3).as_ref());
        assert!(report.finished_at.is_some(), "{:?}", report.receivers);
        report.finished_at.expect("all have it")
    };
    let by_carrier = found(DETECTION);
    let by_greetings = found(Detection { carrier: false, ..DETECTION });
    let damped = found(Detection { damping: Duration::from_millis(80), ..DETECTION });
    assert!(left.is_none_or(|left| by_carrier < left), "{left:?} {by_carrier:?}");
    assert!(by_carrier < by_greetings && by_greetings < damped, "{by_carrier:?} {by_greetings:?} {damped:?}");
    // One that comes back within the damping changes nothing; and greetings have their price on the links.
    run.failures[0].until = Some(at + Duration::from_millis(50));
    run.detection = Some(Detection { damping: Duration::from_millis(80), ..DETECTION });
    let back = run.run(3).unwrap();
    run.detection = None;
    let without = run.run(3).unwrap();
    assert!(back.finished_at.is_some() && without.finished_at.is_some());
    assert!(back.packet_hops > without.packet_hops);
}

/// The same for Orca: the spine that carries a session dies, and switches find out by light or by probes.
#[test]
fn a_manager_of_labels_finds_out_what_has_failed() {
    let mut run = scenario("leaf-spine:3,2,3", push());
    run.transfers[0].routing = Routing::Labels { filter_bits: 69 };
    run.transfers[0].bytes = 60_000_000;
    let busy = run.run(5).unwrap();
    let spine = |link: &&LinkReport| link.bytes > 10_000_000 && link.to >= 12 && link.from >= 9;
    let node = busy.links.iter().find(spine).map(|link| link.to).expect("a spine carries it");
    run.failures.push(FailurePlan {
        at: Time(3_000_000),
        what: Failed::Node(node),
        until: None,
        reroute_after: None,
    });
    let left = run.run(5).unwrap();
    let mut found = |detection| {
        run.detection = Some(detection);
        let report = run.run(5).unwrap();
        assert!(report.breaches.is_empty(), "{:?}", report.breaches);
        assert_eq!(Ok(&report), run.run(5).as_ref());
        report
    };
    let by_light = found(DETECTION);
    let by_probes = found(Detection { carrier: false, ..DETECTION });
    let last = |report: &Report| report.receivers.iter().filter_map(|r| r.finished_at).max();
    assert!(by_light.finished_at.is_some() && by_probes.finished_at.is_some());
    assert!(last(&by_light) < last(&by_probes), "{:?} {:?}", last(&by_light), last(&by_probes));
    let done = |report: &Report| report.receivers.iter().filter(|r| r.finished_at.is_some()).count();
    assert!(done(&left) < 8 || last(&by_probes) < last(&left), "{:?}", last(&left));
    let said = |run: &Scenario| run.run(1).unwrap_err().to_string();
    run.failures[0].reroute_after = Some(Duration::from_millis(1));
    assert!(said(&run).starts_with("failure[0].reroute_after: with [manager]"), "{}", said(&run));
    run.layout = "shufflecast:2,2,2".parse().unwrap();
    run.transfers[0].routing = Routing::Natural;
    assert!(said(&run).starts_with("manager: "), "{}", said(&run));
}
