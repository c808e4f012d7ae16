use super::forward::{LabelSwitches, Relays};
use super::*;
use crate::packet::hooks::{Event, Observer};
use crate::packet::{Builder, Faults, LinkConfig, Outcome};
use alloc::collections::BTreeSet;
use alloc::format;
use alloc::rc::Rc;
use core::cell::Cell;
use polycast_planning::labels::LabelPlanner;
use polycast_planning::relays::relay_set;
use polycast_protocol::push::SenderInput;
use polycast_protocol::session::GuestInput;
use polycast_topology::{Clos, Failures, Network as Topology, Shufflecast};
use polycast_types::Rate;

fn config() -> LinkConfig {
    LinkConfig::new(Rate(10_000_000_000), Duration::from_micros(2))
}

fn small_objects() -> PushConfig {
    PushConfig { group_bytes: 16 << 10, ..PushConfig::default() }
}

fn network(topology: &str, config: LinkConfig, seed: u64) -> Network<Datagram> {
    let topology: Topology = topology.parse().unwrap();
    Builder::from_graph(&topology, |_, _| config).build(seed)
}

/// Starts the only transfer and runs it to its end.
fn run(net: &mut Network<Datagram>, cluster: &mut Cluster) -> Time {
    cluster.plan(net, Time::ZERO, Happening::StartTransfer { transfer: 0 });
    let outcome = net.run(cluster, Time(60_000_000_000));
    assert_eq!(cluster.breaches(), Vec::<String>::new());
    assert_eq!(outcome, Outcome::Stopped, "not over at {:?}", net.now());
    net.now()
}

fn nodes(nodes: impl IntoIterator<Item = u32>) -> Vec<NodeId> {
    nodes.into_iter().map(NodeId).collect()
}

fn all_done(cluster: &Cluster) -> bool {
    cluster.push(0).receivers().iter().all(|receiver| receiver.phase() == Phase::Done)
}

/// Counts the events of one kind.
struct Counter {
    is_wanted: fn(Event<'_>) -> bool,
    count: Cell<u64>,
}

impl Observer for Counter {
    fn see(&self, event: Event<'_>) {
        self.count.set(self.count.get() + u64::from((self.is_wanted)(event)));
    }
}

fn count(cluster: &mut Cluster, is_wanted: fn(Event<'_>) -> bool) -> Rc<Counter> {
    let counter = Rc::new(Counter { is_wanted, count: Cell::new(0) });
    cluster.set_hooks(Hooks::observed(counter.clone()));
    counter
}

/// An observer changes nothing, and sees the receivers that were there before it as well as those after it;
/// a step that is left out is not done.
#[test]
fn a_world_is_seen_as_it_is_and_leaves_out_only_what_it_is_told_to() {
    let play = |hooks: Option<Hooks>| {
        let mut net = network("leaf-spine:2,1,2", LinkConfig { faults: lossy(), ..config() }, 3);
        let mut cluster = Cluster::new(3, TcpConfig::default());
        cluster.add_push(&net, NodeId(0), &nodes([1, 2, 3]), 2_000_000, small_objects(), None);
        hooks.into_iter().for_each(|hooks| cluster.set_hooks(hooks));
        cluster.plan(&mut net, Time::ZERO, Happening::StartTransfer { transfer: 0 });
        let outcome = net.run(&mut cluster, Time(20_000_000_000));
        (outcome, net.trace_hash(), net.events())
    };
    let is_data = |event: Event<'_>| matches!(event, Event::Receiver(_));
    let seen = Rc::new(Counter { is_wanted: is_data, count: Cell::new(0) });
    let alone = play(None);
    assert_eq!(alone.0, Outcome::Stopped);
    assert_eq!(play(Some(Hooks::observed(seen.clone()))), alone);
    assert!(seen.count.get() > 0);
    let leave_out = |step: Step| play(Some(Hooks::observed(seen.clone()).tampered(Rc::new(step))));
    assert_eq!(leave_out(Step::CheckPermit), alone, "none is called without a permit here");
    assert_ne!(leave_out(Step::SendPatch).1, alone.1);
}

fn lossy() -> Faults {
    Faults { loss_ppm: 20_000, ..Faults::NONE }
}

#[test]
fn push_runs_at_the_links_rate_and_crosses_every_link_once() {
    let mut net = network("leaf-spine:2,2,4", config(), 1);
    let mut cluster = Cluster::new(1, TcpConfig::default());
    let object_len = 20_000_000;
    cluster.add_push(&net, NodeId(0), &nodes(1..8), object_len, small_objects(), None);
    let end = run(&mut net, &mut cluster);
    assert!(all_done(&cluster));
    let wire = Rate(10_000_000_000).time_for(object_len * 1_500 / 1_448);
    assert!(end.0 > wire.0 && end.0 < 2 * wire.0, "{end:?} for {wire:?} of packets");
    let (sent, _, _) = cluster.push(0).source().sent();
    let first = net.link_between(NodeId(0), NodeId(8)).unwrap();
    assert!(net.counters(first).bytes < sent * 1_500 + object_len / 10);
    // What links have brought of the data channel is all of it, and what they counted less what is not of it.
    for (receiver, host) in cluster.push(0).receivers().iter().zip(1..) {
        let leaf = if host < 4 { NodeId(8) } else { NodeId(9) };
        let counted = net.counters(net.link_between(leaf, NodeId(host)).unwrap()).bytes;
        let carried = receiver.carried_bytes();
        assert!(carried >= object_len && carried <= counted && counted - carried < object_len / 10);
    }
}

#[test]
fn loss_corruption_duplicates_and_disorder_are_repaired() {
    let faults = Faults {
        loss_ppm: 10_000,
        corruption_ppm: 500,
        duplication_ppm: 5_000,
        reordering_ppm: 5_000,
        reordering_delay: Duration::from_micros(100),
    };
    for seed in 0..5 {
        let mut net = network("fat-tree:4,3", LinkConfig { faults, ..config() }, seed);
        let mut cluster = Cluster::new(seed, TcpConfig::default());
        cluster.add_push(&net, NodeId(5), &nodes([0, 3, 7, 15]), 1_000_000, small_objects(), None);
        run(&mut net, &mut cluster);
        assert!(all_done(&cluster), "seed {seed}");
        assert!(cluster.push(0).receivers().iter().any(|r| r.duplicates > 0));
    }
}

#[test]
fn a_receiver_that_crashes_resumes_with_what_it_has() {
    let mut net = network("leaf-spine:2,1,2", config(), 3);
    let mut cluster = Cluster::new(3, TcpConfig::default());
    cluster.add_push(&net, NodeId(0), &nodes([1, 2, 3]), 20_000_000, small_objects(), None);
    let seen =
        count(&mut cluster, |event| matches!(event, Event::Guest(GuestInput::Stored { resumes: true })));
    let crashed = Happening::CrashReceiver { transfer: 0, receiver: 1 };
    cluster.plan(&mut net, Time(5_000_000), crashed);
    let back = Happening::JoinReceiver { transfer: 0, receiver: 1 };
    cluster.plan(&mut net, Time(12_000_000), back);
    run(&mut net, &mut cluster);
    assert!(all_done(&cluster));
    let done_at = |receiver: usize| cluster.push(0).receivers()[receiver].finished_at().unwrap();
    assert!(done_at(1) > done_at(0));
    assert_eq!(seen.count.get(), 1);
}

/// 20,000 groups, of which 200 have changed since the last version, and 600 since the one before: five
/// receivers have the last one, two the one before, one has nothing, or the last one too. What travels is
/// what some receiver lacks, once.
#[test]
fn of_a_new_version_only_what_has_changed_is_sent() {
    for (bare, needed) in [(false, 600), (true, 20_000)] {
        let mut net = network("leaf-spine:2,2,5", config(), 11);
        let mut cluster = Cluster::new(11, TcpConfig::default());
        let settings = PushConfig { group_bytes: 1 << 10, fragment_bytes: 1 << 10, ..PushConfig::default() };
        cluster.add_push(&net, NodeId(0), &nodes(1..9), 20_000 << 10, settings, None);
        for receiver in 0..8 {
            let since = if receiver < 2 { 3 } else { 1 };
            if receiver != 7 || !bare {
                cluster.give_older(0, receiver, |group| group % 100 < since);
            }
        }
        run(&mut net, &mut cluster);
        assert!(all_done(&cluster));
        assert!(cluster.push(0).receivers().iter().all(|host| host.check_object().is_ok()));
        let (stream, patches, unicast) = cluster.push(0).source().sent();
        let sent = stream + patches + unicast;
        // Single attempts before the path is known to be there are not needed by all.
        assert!(
            (needed..needed + needed / 50 + 100).contains(&sent),
            "{sent} groups for {needed}: {stream}, {patches}, {unicast}"
        );
    }
}

#[test]
fn a_source_that_restarts_serves_those_who_lack_something() {
    let mut net = network("leaf-spine:2,1,2", config(), 3);
    let mut cluster = Cluster::new(3, TcpConfig::default());
    cluster.add_push(&net, NodeId(0), &nodes([1, 2, 3]), 10_000_000, small_objects(), None);
    cluster.plan(&mut net, Time(5_000_000), Happening::CrashSource { transfer: 0 });
    cluster.plan(&mut net, Time(25_000_000), Happening::StartTransfer { transfer: 0 });
    run(&mut net, &mut cluster);
    assert!(all_done(&cluster));
    let (sent, _, _) = cluster.push(0).source().sent();
    assert!(sent < 12_000_000 / 1_448 + 500, "what is stored is not sent again: {sent}");
}

#[test]
fn one_of_another_version_is_told_so_and_the_others_finish() {
    let mut net = network("leaf-spine:2,1,2", config(), 3);
    let mut cluster = Cluster::new(3, TcpConfig::default());
    let settings = PushConfig { join_timeout: Duration::from_secs(2), ..small_objects() };
    cluster.add_push(&net, NodeId(0), &nodes([1, 2, 3]), 1_000_000, settings, None);
    let mood = Some(Mood::Foreign);
    cluster.plan(&mut net, Time::ZERO, Happening::Mood { transfer: 0, receiver: 1, mood });
    run(&mut net, &mut cluster);
    let push = cluster.push(0);
    let done: Vec<bool> = push.receivers().iter().map(|host| host.phase() == Phase::Done).collect();
    assert_eq!(done, [true, false, true]);
    let said = push.receivers()[1].refusal().unwrap();
    assert!(said.contains("version") && push.receivers()[1].ends().len() == 1, "{said}");
    assert_eq!(push.failure_of(1).as_deref(), Some("never joined"));
}

#[test]
fn the_group_changes_in_mid_transfer() {
    let mut net = network("leaf-spine:2,1,2", config(), 3);
    let mut cluster = Cluster::new(3, TcpConfig::default());
    cluster.add_push(&net, NodeId(0), &nodes([1, 2, 3]), 10_000_000, small_objects(), None);
    cluster.leave_out(0, 1);
    let at = Time(3_000_000);
    cluster.plan(&mut net, at, Happening::AddReceiver { transfer: 0, receiver: 1 });
    cluster.plan(&mut net, at, Happening::RemoveReceiver { transfer: 0, receiver: 2 });
    let end = run(&mut net, &mut cluster);
    let push = cluster.push(0);
    let failures: Vec<Option<String>> = (0..3).map(|receiver| push.failure_of(receiver)).collect();
    assert_eq!(failures, [None, None, Some("taken out of the transfer".into())]);
    assert_eq!(push.receivers()[2].refusal().as_deref(), Some("taken out of the transfer"));
    assert_eq!((push.receivers()[0].phase(), push.receivers()[1].phase()), (Phase::Done, Phase::Done));
    assert!(end < Time(500_000_000), "{end:?}");
}

#[test]
fn a_rack_speaks_with_one_voice_until_its_speaker_crashes() {
    let heard = |rack: u32, crashes: bool| {
        let faults = Faults { loss_ppm: 5_000, ..Faults::NONE };
        let mut net = network("leaf-spine:2,1,5", LinkConfig { faults, ..config() }, 3);
        let mut cluster = Cluster::new(3, TcpConfig::default());
        let settings = PushConfig { rack, ..small_objects() };
        cluster.add_push(&net, NodeId(0), &nodes(1..9), 20_000_000, settings, None);
        let seen = count(&mut cluster, |event| matches!(event, Event::Sender(SenderInput::Control { .. })));
        if crashes {
            let at = Time(4_000_000);
            cluster.plan(&mut net, at, Happening::CrashReceiver { transfer: 0, receiver: 0 });
        }
        run(&mut net, &mut cluster);
        let lacking: Vec<u32> = cluster.push(0).lacking().collect();
        assert_eq!(lacking, if crashes { [0].to_vec() } else { Vec::new() });
        seen.count.get()
    };
    let (alone, together) = (heard(0, false), heard(4, false));
    assert!(together * 3 < alone * 2, "{together} frames of racks, {alone} of receivers");
    heard(4, true);
}

#[test]
fn a_path_that_is_granted_in_parts_is_followed_by_others() {
    let mut net = network("leaf-spine:2,1,2", config(), 3);
    let mut cluster = Cluster::new(3, TcpConfig::default());
    let (allowance, next_path) = (Some(3_000_000), Duration::from_millis(7));
    let settings = PushConfig { allowance, next_path, ..small_objects() };
    cluster.add_push(&net, NodeId(0), &nodes([1, 2, 3]), 10_000_000, settings, None);
    let switched =
        count(&mut cluster, |event| matches!(event, Event::Happening(Happening::SwitchPath { .. })));
    let end = run(&mut net, &mut cluster);
    assert!(all_done(&cluster) && end > Time(3 * 7_000_000), "{end:?}");
    assert_eq!(switched.count.get(), 3);
}

#[test]
fn without_a_data_channel_everybody_is_served_over_tcp() {
    let mut net = network("leaf-spine:2,1,2", config(), 3);
    let mut cluster = Cluster::new(3, TcpConfig::default());
    let settings = PushConfig { multicast: false, ..small_objects() };
    cluster.add_push(&net, NodeId(0), &nodes([1, 2, 3]), 5_000_000, settings, None);
    run(&mut net, &mut cluster);
    assert!(all_done(&cluster));
    assert_eq!(cluster.push(0).source().sent().0, 0);
    // The source sends the object once.
    let out = net.link_between(NodeId(0), NodeId(4)).unwrap();
    assert!(net.counters(out).bytes < 6_000_000, "{:?}", net.counters(out));
}

#[test]
fn a_tree_is_found_anew_when_a_link_fails() {
    let mut net = network("leaf-spine:2,2,2", config(), 3);
    let mut cluster = Cluster::new(3, TcpConfig::default());
    cluster.add_push(&net, NodeId(0), &nodes([2, 3]), 20_000_000, small_objects(), None);
    cluster.plan(&mut net, Time(3_000_000), Happening::Node { node: NodeId(6), up: false });
    cluster.plan(&mut net, Time(6_000_000), Happening::Reroute);
    let end = run(&mut net, &mut cluster);
    assert!(all_done(&cluster));
    assert!(end < Time(200_000_000), "{end:?}");
}

#[test]
fn labels_deliver_what_their_planner_says() {
    for (clos, source, receivers) in [
        (Clos::leaf_spine(4, 2, 4).unwrap(), 0, nodes([1, 5, 6, 15])),
        (Clos::new(4, 2, 2, 2, 2).unwrap(), 3, nodes([0, 2, 6, 9, 12, 13])),
    ] {
        let mut planner = LabelPlanner::new(clos, 16).unwrap();
        let hosts: Vec<u32> = receivers.iter().map(|node| node.0).collect();
        let plan = planner.plan(1, source, &hosts, &Failures::none()).unwrap();
        let labels = Forwarding::Labels(Box::new(LabelSwitches::new(planner, &plan)));
        let mut net = Builder::from_graph(&clos, |_, _| config()).build(4);
        let mut cluster = Cluster::new(4, TcpConfig::default());
        // An agent sends on its host's link what it took from it: at full rate its queue would overflow.
        let settings = PushConfig { rate: Some(Rate(5_000_000_000)), ..small_objects() };
        cluster.add_push(&net, NodeId(source), &receivers, 3_000_000, settings, Some(labels));
        run(&mut net, &mut cluster);
        assert!(all_done(&cluster));
        let push = cluster.push(0);
        assert_eq!((push.source().sent().1, push.source().sent().2), (0, 0), "nothing was lost");
        assert!(push.receivers().iter().all(|receiver| receiver.duplicates == 0));
    }
}

#[test]
fn relays_reach_every_rack_once() {
    for (p, k) in [(2, 2), (3, 2), (2, 3)] {
        let fabric = Shufflecast::new(p, k).unwrap();
        let (tors, hosts_per_tor) = (fabric.tors(), 2);
        let hosts = tors * hosts_per_tor;
        let mut builder = Builder::new(hosts + 2 * tors);
        for tor in 0..tors {
            for host in 0..hosts_per_tor {
                builder.add_both_ways(NodeId(hosts + tor), NodeId(tor * hosts_per_tor + host), config());
            }
        }
        // The packet network beside it, which carries the control connections.
        for tor in 1..tors {
            builder.add_both_ways(NodeId(hosts), NodeId(hosts + tor), config());
        }
        let light = LinkConfig::new(Rate(u64::MAX), Duration::from_micros(1));
        for tor in 0..tors {
            builder.add_link(NodeId(hosts + tor), NodeId(hosts + tors + tor), config());
            for child in fabric.children(tor) {
                builder.add_link(NodeId(hosts + tors + tor), NodeId(hosts + child), light);
            }
        }
        let source = 1;
        let members: BTreeSet<NodeId> = (0..tors).map(|tor| NodeId(tor * hosts_per_tor)).collect();
        let relays = Forwarding::Relays(Relays {
            hosts_per_tor,
            tors,
            source_tor: 0,
            relays: relay_set(&fabric, 0).into_iter().collect(),
            members: members.clone(),
        });
        let mut net = builder.build(5);
        let mut cluster = Cluster::new(5, TcpConfig::default());
        let receivers: Vec<NodeId> = members.into_iter().collect();
        cluster.add_push(&net, NodeId(source), &receivers, 1_000_000, small_objects(), Some(relays));
        run(&mut net, &mut cluster);
        assert!(all_done(&cluster), "{p}, {k}");
        let push = cluster.push(0);
        assert_eq!(push.source().sent().2, 0, "nothing was lost");
        assert!(push.receivers().iter().all(|r| r.duplicates == 0), "{p}, {k}");
    }
}

#[test]
fn an_optical_switch_loses_packets_until_it_is_ready() {
    let mut net = network("leaf-spine:2,1,2", config(), 3);
    let mut cluster = Cluster::new(3, TcpConfig::default());
    cluster.add_push(&net, NodeId(0), &nodes([2, 3]), 5_000_000, small_objects(), None);
    // Connections are not told from the data channel here, so the spine stands for the optical switch.
    cluster.set_turning(NodeId(6), Time(25_000_000), 700_000);
    let end = run(&mut net, &mut cluster);
    assert!(all_done(&cluster) && cluster.optical_drops() > 0);
    assert!(end > Time(4_000_000));
}

#[test]
fn tcp_flows_share_a_link() {
    let mut net = network("leaf-spine:1,1,4", config(), 3);
    let mut cluster = Cluster::new(3, TcpConfig::default());
    cluster.add_tcp(NodeId(0), &nodes([1]), 10_000_000);
    for host in [2, 3] {
        let flow = cluster.add_flow(Flow::new(NodeId(host), NodeId(1), u64::MAX));
        cluster.plan(&mut net, Time::ZERO, Happening::StartFlow { flow });
    }
    let end = run(&mut net, &mut cluster);
    // Alone it would take about 8.3 ms.
    assert!(end > Time(15_000_000) && end < Time(100_000_000), "{end:?}");
}

#[test]
fn one_seed_gives_one_run() {
    let trace = |seed: u64| {
        let faults = Faults { loss_ppm: 5_000, ..Faults::NONE };
        let mut net = network("bcube:4,2", LinkConfig { faults, ..config() }, seed);
        let mut cluster = Cluster::new(seed, TcpConfig::default());
        cluster.add_push(&net, NodeId(0), &nodes([2, 5, 9]), 500_000, small_objects(), None);
        let end = run(&mut net, &mut cluster);
        format!("{end:?} {:x} {}", net.trace_hash(), net.events())
    };
    assert_eq!(trace(1), trace(1));
    assert_ne!(trace(1), trace(2));
}

/// The frames of many connections do not fit into the queue of the source's link: they wait, so that the
/// receivers do not learn by a time-out that they were dropped.
#[test]
fn a_source_drops_nothing_of_its_own() {
    let finish = |hosts: u32, queue_bytes: u64| {
        let config = LinkConfig { queue_bytes, ..config() };
        let mut net = network(&format!("leaf-spine:4,2,{}", hosts / 4), config, 1);
        let mut cluster = Cluster::new(1, TcpConfig::default());
        cluster.add_push(&net, NodeId(0), &nodes(1..hosts), 8_000_000, small_objects(), None);
        let end = run(&mut net, &mut cluster);
        let own = net.links_from(NodeId(0))[0];
        assert_eq!(net.counters(own).drops(), 0, "{hosts} hosts, a queue of {queue_bytes}");
        assert!(all_done(&cluster));
        end.0
    };
    let (few, many) = (finish(32, 256 << 10), finish(64, 256 << 10));
    assert!(many * 10 < few * 13, "{many} ns, and {few} ns for half of the receivers");
    // Also where the queue holds less than the source keeps waiting.
    finish(8, 32 << 10);
}
