//! The pull transport on the engine: loss, reordering, duplication, corruption, crashes, small stores.

use polycast_planning::trees::TreePlanner;
use polycast_protocol::pull::{
    Blocks, Data, Decision, ForwarderConfig, Hop, Interest, Name, Packet, ReceiverInput, Replacement,
    RetryTime, Route, SourceInput,
};
use polycast_simulator::packet::pull::{Datagram, FlowConfig, Group, PullPacket, PullWorld};
use polycast_simulator::packet::tcp::TcpConfig;
use polycast_simulator::packet::{Builder, Faults, LinkConfig, LinkId, Network, NodeId, Outcome};
use polycast_topology::Network as Topology;
use polycast_types::{Duration, Handle, Rate, Time};
use proptest::prelude::*;

const GIGABIT: u64 = 1_000_000_000;
/// Figure 4's receivers: 02, 10, 21, 23, 31, 33.
const RECEIVERS: [u32; 6] = [2, 4, 9, 11, 13, 15];

struct Setting {
    bytes: u64,
    block_bytes: u64,
    trees: usize,
    store: u32,
    replacement: Replacement,
    faults: Faults,
    queue_bytes: u64,
    seed: u64,
}

impl Default for Setting {
    fn default() -> Self {
        Setting {
            bytes: 2_000_000,
            block_bytes: 200_000,
            trees: 2,
            store: 2048,
            replacement: Replacement::Oldest,
            faults: Faults::NONE,
            queue_bytes: 256 << 10,
            seed: 1,
        }
    }
}

struct Run {
    net: Network<Datagram>,
    world: PullWorld,
    group: Group,
}

fn forwarder(setting: &Setting, ports: u8) -> ForwarderConfig {
    ForwarderConfig {
        store_packets: setting.store,
        replacement: setting.replacement,
        ..ForwarderConfig::for_ports(ports)
    }
}

/// Figure 4's group in BCube(4, 2).
fn figure_4(setting: &Setting) -> Run {
    let topology: Topology = "bcube:4,2".parse().unwrap();
    let blocks = Blocks::new(setting.bytes, 1428, setting.block_bytes).unwrap();
    let mut planner = TreePlanner::new(topology);
    let mut group = Group::plan(&mut planner, 0, &RECEIVERS, blocks, GIGABIT).unwrap();
    if setting.trees == 1 {
        group = group.with_tree(0);
    }
    let usual = LinkConfig::new(Rate(GIGABIT), Duration::from_micros(10));
    let link = LinkConfig { faults: setting.faults, queue_bytes: setting.queue_bytes, ..usual };
    let net = Builder::from_graph(&topology, |_, _| link).build(setting.seed);
    let world = PullWorld::new(&topology, 72, |_, ports| forwarder(setting, ports));
    Run { net, world, group }
}

impl Run {
    fn until_done(&mut self, seconds: u64) {
        let outcome = self.net.run(&mut self.world, Time(seconds * 1_000_000_000));
        assert_eq!((outcome, self.world.missing()), (Outcome::Stopped, 0));
        for &receiver in &self.group.receivers {
            let (machine, _) = self.world.node(receiver).receiver(self.group.transfer).unwrap();
            assert!(machine.is_complete());
        }
    }

    fn bytes_on_links(&self) -> u64 {
        (0..self.net.link_count()).map(|link| self.net.counters(LinkId(link)).bytes).sum()
    }

    fn link(&self, from: u32, to: u32) -> LinkId {
        self.net.link_between(NodeId(from), NodeId(to)).unwrap()
    }

    fn duplicates(&self) -> u64 {
        let source = self.world.node(self.group.source).source(self.group.transfer).unwrap();
        (0..self.group.trees()).map(|tree| source.counters(tree as u8).duplicates).sum()
    }
}

#[test]
fn without_faults_every_link_of_a_tree_carries_every_packet_once() {
    for trees in [1, 2] {
        let mut run = figure_4(&Setting { trees, bytes: 1428 * 1400, ..Setting::default() });
        run.group.rate.initial_bps = GIGABIT;
        run.world.start(&mut run.net, &run.group);
        run.until_done(1);
        assert_eq!(run.bytes_on_links(), 13 * 1400 * 1572, "{trees} trees");
        assert_eq!(run.duplicates(), 0);
        let ideal = 1400 * 1500 * 8 / trees as u64;
        assert!(run.net.now().0 < ideal + 600_000, "{:?} against {ideal} ns", run.net.now());
    }
}

/// Returns the time that the group takes, with or without measures against losses by chance that the paper's
/// machines lack.
fn seconds(loss_ppm: u32, papers: bool, seed: u64) -> f64 {
    let faults = Faults { loss_ppm, ..Faults::NONE };
    let mut run =
        figure_4(&Setting { bytes: 60_000_000, block_bytes: 6_000_000, faults, seed, ..Setting::default() });
    (run.group.overtaken, run.group.chance) = if papers { (None, false) } else { (Some(3), true) };
    run.group.rate.initial_bps = GIGABIT;
    run.world.start(&mut run.net, &run.group);
    run.until_done(60);
    run.net.now().0 as f64 / 1e9
}

#[test]
fn losses_by_chance_cost_little() {
    let ideal = seconds(0, true, 1);
    assert_eq!(seconds(0, false, 1), ideal, "without losses nothing is different");
    for seed in 1..3 {
        let (ours, papers) = (seconds(10_000, false, seed) / ideal, seconds(10_000, true, seed) / ideal);
        println!(
            "one packet in a hundred lost: {ours:.2} of the time without losses, the paper's rules {papers:.2}"
        );
        assert!(ours < 1.35, "{ours}");
    }
}

/// Returns the part that a TCP connection over a link of the tree gets, of all that it and the group take, in
/// percent.
fn tcp_part(queue_bytes: u64, receive_window: u64, papers: bool) -> u64 {
    let setting = Setting { bytes: 100_000_000, trees: 1, queue_bytes, ..Setting::default() };
    let mut run = figure_4(&setting);
    (run.group.overtaken, run.group.chance) = if papers { (None, false) } else { (Some(3), true) };
    run.world.start(&mut run.net, &run.group);
    run.net.run(&mut run.world, Time(50_000_000));
    let path = [0, 16, 1].map(NodeId).to_vec();
    let tcp = TcpConfig { receive_window, ..TcpConfig::default() };
    let flow = FlowConfig { nodes: path, tcp, header_bytes: 52, bytes: u64::MAX };
    let flow = run.world.open_flow(&mut run.net, &flow).unwrap();
    let group = |run: &Run| run.world.node(0).source(run.group.transfer).unwrap().counters(0).first_bytes;
    let before = group(&run);
    run.net.run(&mut run.world, Time(450_000_000));
    let (tcp, group) = (run.world.flow(flow).received(), group(&run) - before);
    tcp * 100 / (tcp + group)
}

#[test]
fn tcp_beside_a_group_gets_what_the_papers_rules_leave_it() {
    for (queue_bytes, window) in
        [(64 << 10, 1 << 20), (256 << 10, 1 << 20), (256 << 10, 65_536), (1 << 20, 4 << 20)]
    {
        let (ours, papers) = (tcp_part(queue_bytes, window, false), tcp_part(queue_bytes, window, true));
        println!(
            "queue {queue_bytes}, window {window}: TCP gets {ours} %, with the paper's rules {papers} %"
        );
        assert!(ours * 5 >= papers * 4, "{ours} of {papers}");
    }
}

#[test]
fn the_same_seed_gives_the_same_events() {
    let faults = Faults { loss_ppm: 20_000, ..Faults::NONE };
    let hash = |seed| {
        let mut run = figure_4(&Setting { faults, seed, bytes: 200_000, ..Setting::default() });
        run.world.start(&mut run.net, &run.group);
        run.until_done(10);
        run.net.trace_hash()
    };
    assert_eq!(hash(7), hash(7));
    assert_ne!(hash(7), hash(8));
}

#[test]
fn a_slow_receiver_is_followed_with_any_store() {
    for store in [0, 1, 4, 16, 2048, 1 << 20] {
        let mut run = figure_4(&Setting { store, trees: 1, ..Setting::default() });
        let slow = run.link(23, 11);
        run.net.set_rate(slow, Rate(200_000_000));
        run.world.start(&mut run.net, &run.group);
        run.until_done(5);
        let ideal = 1401 * 60_000;
        let finish = run.net.now().0;
        // Without any store a packet that another receiver has asked for comes once more from the source.
        let most = if store == 0 { ideal * 105 / 100 } else { ideal * 101 / 100 };
        assert!((ideal..most).contains(&finish), "store of {store}: {finish} ns, ideal {ideal}");
    }
}

#[test]
fn a_store_that_forgets_what_was_used_long_ago_sends_the_slow_one_far() {
    let bytes = |replacement| {
        let setting = Setting { replacement, trees: 1, bytes: 20_000_000, ..Setting::default() };
        let mut run = figure_4(&setting);
        let slow = run.link(23, 11);
        run.net.set_rate(slow, Rate(200_000_000));
        run.world.start(&mut run.net, &run.group);
        run.until_done(5);
        run.bytes_on_links()
    };
    assert!(bytes(Replacement::LeastRecentlyUsed) > bytes(Replacement::Oldest) * 105 / 100);
}

#[test]
fn a_receiver_that_restarts_fetches_only_what_it_lacks() {
    let mut run = figure_4(&Setting { bytes: 4_000_000, ..Setting::default() });
    run.world.start(&mut run.net, &run.group);
    let outcome = run.net.run(&mut run.world, Time(8_000_000));
    assert_eq!(outcome, Outcome::Until);
    let config = ForwarderConfig::for_ports(2);
    let group = run.group.clone();
    let packets = group.blocks.packets();
    run.world.restart_receiver(&mut run.net, &group, 3, config, 0..packets / 4);
    run.until_done(5);
    let (machine, _) = run.world.node(group.receivers[3]).receiver(group.transfer).unwrap();
    let asked = machine.counters().interests - machine.counters().repeated;
    let lacked = packets - packets / 4;
    // One packet of every block that was there tells where the tree goes on.
    assert!(
        (lacked..lacked + u64::from(group.blocks.count())).contains(&asked),
        "{asked} asked, {lacked} lacked"
    );
}

#[test]
fn a_receiver_that_comes_back_after_all_others_is_served_from_the_stores() {
    let mut run = figure_4(&Setting::default());
    run.world.start(&mut run.net, &run.group);
    run.until_done(5);
    let source = |run: &Run| run.world.node(0).forwarder().counters();
    let before = source(&run);
    let group = run.group.clone();
    run.world.restart_receiver(&mut run.net, &group, 0, ForwarderConfig::for_ports(2), 0..0);
    run.until_done(5);
    assert_eq!((source(&run), run.duplicates()), (before, 0), "the source saw none of it");
}

#[test]
fn a_tree_that_is_cut_is_taken_out_and_the_others_carry_on() {
    let mut run = figure_4(&Setting::default());
    run.world.start(&mut run.net, &run.group);
    run.net.run(&mut run.world, Time(3_000_000));
    // Tree B begins with 00 -> <1,0>.
    let cut = run.link(0, 20);
    run.net.set_up(cut, false);
    run.net.run(&mut run.world, Time(50_000_000));
    assert!(run.world.missing() > 0, "the tree was in use");
    let group = run.group.clone();
    run.world.node_mut(0).tell_source(
        &mut run.net,
        NodeId(0),
        group.transfer,
        SourceInput::TreeGone { tree: 1 },
    );
    for &receiver in &group.receivers {
        let gone = ReceiverInput::Rerouted { tree: 1, route: None };
        run.world.tell(&mut run.net, receiver, group.transfer, gone);
    }
    run.until_done(1);
}

#[test]
fn a_silent_tree_is_reported_once() {
    let mut run = figure_4(&Setting::default());
    let cut = run.link(0, 20);
    run.net.set_up(cut, false);
    run.world.start(&mut run.net, &run.group);
    run.net.run(&mut run.world, Time(5_000_000_000));
    for &receiver in &run.group.receivers {
        let (machine, log) = run.world.node(receiver).receiver(run.group.transfer).unwrap();
        assert_eq!(log.stalls, 1);
        let repeated = machine.counters().repeated;
        assert!(repeated < 32 * 30, "{repeated} repeated in 5 s: a silent tree is asked ever more seldom");
    }
}

#[test]
fn corrupt_packets_come_again_from_the_source_past_the_stores() {
    let mut run = figure_4(&Setting { trees: 1, ..Setting::default() });
    // 00 -> <0,0>: what is corrupt there lies in every store.
    let first = run.link(0, 16);
    run.net.set_faults(first, Faults { corruption_ppm: 20_000, ..Faults::NONE });
    run.world.start(&mut run.net, &run.group);
    run.until_done(10);
    for &receiver in &run.group.receivers {
        let (_, log) = run.world.node(receiver).receiver(run.group.transfer).unwrap();
        assert!(log.corrupt > 0);
    }
}

#[test]
fn nonsense_from_a_neighbour_is_dropped_and_the_transfer_goes_on() {
    let mut run = figure_4(&Setting::default());
    run.world.start(&mut run.net, &run.group);
    let route = |bytes: &[u8], at| Route::from_bytes(bytes, at).unwrap();
    let interest = |transfer, sn, tree, route| {
        Packet::Interest(Interest { name: Name::new(Handle(transfer), sn), route, tree, fresh: false })
    };
    let data = |sn, length, decision, route| {
        let name = Name::new(run.group.transfer, sn);
        Packet::Data(Data { name, route, decision, length, tree: 0, again: false })
    };
    let far = Route::new(&[Hop { port: 99, non_branching: false }]).unwrap();
    let nonsense = [
        interest(1, u64::MAX, 0, route(&[0], 1)),
        interest(1, 0, 200, route(&[0, 0x80], 2)),
        interest(77, 0, 0, route(&[0], 1)),
        interest(1, 5, 0, far),
        interest(1, 5, 0, route(&[0x81; 14], 3)),
        data(3, 9, Decision::Next(u32::MAX), route(&[0], 1)),
        data(u64::MAX, 1428, Decision::End, route(&[0], 1)),
        data(3, 1428, Decision::End, far),
    ];
    for round in 0..10 {
        for packet in nonsense {
            for link in 0..run.net.link_count() {
                run.net.send(LinkId(link), Datagram::Pull(PullPacket { packet, content: round }), 72, 0);
            }
        }
    }
    run.until_done(5);
    let source = run.world.node(0).source(run.group.transfer).unwrap();
    assert!(source.refused() > 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Whatever the network does to packets, every receiver gets all of them.
    #[test]
    fn everybody_gets_everything(
        seed: u64,
        bytes in 0u64..400_000,
        block_bytes in 1u64..200_000,
        trees in 1usize..3,
        store in prop::sample::select(vec![0u32, 1, 3, 16, 200]),
        loss_ppm in 0u32..80_000,
        corruption_ppm in 0u32..10_000,
        duplication_ppm in 0u32..100_000,
        reordering_ppm in 0u32..100_000,
        adaptive: bool,
        decide_ahead in 0u32..40,
        credits in 1u32..40,
    ) {
        let reordering_delay = Duration::from_micros(500);
        let faults = Faults { loss_ppm, corruption_ppm, duplication_ppm, reordering_ppm, reordering_delay };
        let mut run =
            figure_4(&Setting { bytes, block_bytes, trees, store, faults, seed, ..Setting::default() });
        if adaptive {
            let (initial, least) = (Duration::from_millis(20), Duration::from_millis(1));
            run.group.retry = RetryTime::Adaptive { initial, least };
        }
        (run.group.credits, run.group.decide_ahead) = (credits, decide_ahead);
        run.world.start(&mut run.net, &run.group);
        run.until_done(100);
    }
}

/// Bytes of payload that the source sends to these receivers in BCube(8, 3), in packets of 1,416 bytes, with
/// and without lists.
fn source_bytes(receivers: u32, bytes: u64, lists: bool) -> u64 {
    let topology: Topology = "bcube:8,3".parse().unwrap();
    let receivers: Vec<u32> = (1..=receivers).map(|number| number * 511 / receivers).collect();
    let plain = Blocks::new(bytes, 1_416, 100_000).unwrap();
    let blocks = if lists { plain.with_lists(1 << 18).unwrap() } else { plain };
    let link = LinkConfig::new(Rate(GIGABIT), Duration::from_micros(1));
    let mut net: Network<Datagram> = Builder::from_graph(&topology, |_, _| link).build(1);
    let mut planner = TreePlanner::new(topology);
    let group = Group::plan(&mut planner, 0, &receivers, blocks, GIGABIT).unwrap();
    let mut world =
        PullWorld::new(&topology, group.header_bytes, |_, ports| ForwarderConfig::for_ports(ports));
    world.start(&mut net, &group);
    assert_eq!(net.run(&mut world, Time(60_000_000_000)), Outcome::Stopped);
    for &receiver in &group.receivers {
        let (machine, log) = world.node(receiver).receiver(group.transfer).unwrap();
        assert!(machine.is_complete() && log.breach(machine).is_none());
    }
    let source = world.node(0).source(group.transfer).unwrap();
    (0..group.trees() as u8).map(|tree| source.counters(tree).sent_bytes).sum()
}

#[test]
fn lists_of_names_cost_the_source_the_same_for_any_number_of_receivers() {
    let bytes = 2_000_000;
    let mut alone = None;
    for receivers in [1, 6, 15, 280] {
        let (with, without) = (source_bytes(receivers, bytes, true), source_bytes(receivers, bytes, false));
        assert_eq!(without, bytes, "{receivers} receivers");
        assert!(
            (bytes + bytes / 250..bytes + bytes / 200).contains(&with),
            "{receivers} receivers: {with} bytes"
        );
        assert_eq!(*alone.get_or_insert(with), with, "{receivers} receivers");
    }
}
