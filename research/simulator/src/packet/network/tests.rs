use super::*;
use crate::packet::LinkConfig;
use alloc::vec;
use polycast_topology::BCube;
use proptest::prelude::*;

#[derive(Clone, Copy, Debug, PartialEq)]
struct Numbered(u64);

impl Packet for Numbered {
    fn digest(&self) -> u64 {
        self.0
    }
    fn corrupt(&mut self, _: u64) {
        self.0 |= 1 << 63;
    }
}

#[derive(Default)]
struct Log {
    arrivals: Vec<(u64, u64)>,
    drops: Vec<(u64, DropCause)>,
    idle: Vec<u64>,
    /// Packets that are sent one by one, each when the link is idle.
    to_send: Vec<u64>,
}

impl World for Log {
    type Packet = Numbered;
    fn arrive(&mut self, net: &mut Network<Numbered>, _: NodeId, _: LinkId, packet: Numbered) {
        self.arrivals.push((net.now().0, packet.0));
    }
    fn timer(&mut self, net: &mut Network<Numbered>, _: NodeId, token: u64) {
        net.set_up(LinkId(0), token == 1);
    }
    fn idle(&mut self, net: &mut Network<Numbered>, _: NodeId, link: LinkId) {
        self.idle.push(net.now().0);
        if let Some(number) = self.to_send.pop() {
            net.send(link, Numbered(number), 125, 0);
            net.notify_idle(link);
        }
    }
    fn dropped(&mut self, net: &mut Network<Numbered>, _: LinkId, cause: DropCause) {
        self.drops.push((net.now().0, cause));
    }
}

/// 1 Gbit/s: 125 bytes take a microsecond.
fn one_link(change: impl FnOnce(&mut LinkConfig)) -> Network<Numbered> {
    let mut config = LinkConfig::new(Rate(1_000_000_000), Duration(500));
    change(&mut config);
    let mut builder = Builder::new(2);
    builder.add_link(NodeId(0), NodeId(1), config);
    builder.build(3)
}

const FOREVER: Time = Time(u64::MAX);

#[test]
fn packets_leave_one_after_the_other_and_arrive_after_the_delay() {
    for priorities in [1, 2] {
        let mut net = one_link(|c| c.priorities = priorities);
        for number in 0..3 {
            assert!(net.send(LinkId(0), Numbered(number), 125, 0));
        }
        assert_eq!(net.queued_bytes(LinkId(0)), 375);
        let mut log = Log::default();
        assert_eq!(net.run(&mut log, Time(1_600)), Outcome::Until);
        assert_eq!((net.now(), log.arrivals.len()), (Time(1_600), 1));
        assert_eq!(net.run(&mut log, FOREVER), Outcome::Quiet);
        assert_eq!(log.arrivals, [(1_500, 0), (2_500, 1), (3_500, 2)]);
        assert_eq!((net.counters(LinkId(0)).bytes, net.packet_hops()), (375, 3));
    }
}

#[test]
fn a_full_queue_drops_its_tail() {
    for priorities in [1, 2] {
        let mut net = one_link(|c| (c.queue_bytes, c.priorities) = (300, priorities));
        let taken: Vec<bool> = (0..4).map(|n| net.send(LinkId(0), Numbered(n), 125, 0)).collect();
        assert_eq!(taken, [true, true, false, false]);
        let mut log = Log::default();
        net.run(&mut log, Time(1_000));
        assert!(net.send(LinkId(0), Numbered(9), 125, 0), "the first has left");
        net.run(&mut log, FOREVER);
        assert_eq!(log.arrivals.iter().map(|a| a.1).collect::<Vec<_>>(), [0, 1, 9]);
        assert_eq!(log.drops, [(0, DropCause::Queue), (0, DropCause::Queue)]);
        assert_eq!(net.counters(LinkId(0)).queue_drops, 2);
    }
}

#[test]
fn a_first_priority_overtakes_what_waits_but_not_what_is_being_sent() {
    let mut net = one_link(|c| c.priorities = 2);
    for (number, priority) in [(0, 1), (1, 1), (2, 0), (3, 0)] {
        net.send(LinkId(0), Numbered(number), 125, priority);
    }
    let mut log = Log::default();
    net.run(&mut log, FOREVER);
    assert_eq!(log.arrivals.iter().map(|a| a.1).collect::<Vec<_>>(), [0, 2, 3, 1]);
}

#[test]
fn a_link_that_goes_down_loses_what_it_holds() {
    for priorities in [1, 2] {
        let mut net = one_link(|c| c.priorities = priorities);
        for number in 0..4 {
            net.send(LinkId(0), Numbered(number), 125, 0);
        }
        net.set_timer(NodeId::CONTROL, Time(1_600), 0);
        net.set_timer(NodeId::CONTROL, Time(9_000), 1);
        let mut log = Log::default();
        net.run(&mut log, Time(5_000));
        assert!(!net.send(LinkId(0), Numbered(8), 125, 0));
        net.run(&mut log, Time(9_000));
        assert!(net.send(LinkId(0), Numbered(9), 125, 0));
        net.run(&mut log, FOREVER);
        assert_eq!(log.arrivals, [(1_500, 0), (10_500, 9)]);
        assert_eq!(net.counters(LinkId(0)).down_drops, 4);
        assert!(log.drops.iter().all(|drop| drop.1 == DropCause::Down));
    }
}

#[test]
fn a_host_can_be_clocked_by_its_link() {
    for priorities in [1, 2] {
        let mut net = one_link(|c| c.priorities = priorities);
        let mut log = Log { to_send: vec![2, 1, 0], ..Log::default() };
        net.notify_idle(LinkId(0));
        net.run(&mut log, FOREVER);
        assert_eq!(log.idle, [0, 1_000, 2_000, 3_000]);
        assert_eq!(log.arrivals, [(1_500, 0), (2_500, 1), (3_500, 2)]);
    }
}

#[test]
fn links_of_a_graph_are_its_ports() {
    let bcube = BCube::new(4, 2).unwrap();
    let builder = Builder::from_graph(&bcube, |_, _| LinkConfig::new(Rate(1), Duration(1)));
    let net: Network<Numbered> = builder.build(1);
    assert_eq!((net.node_count(), net.link_count()), (24, 64));
    for node in 0..24 {
        let links = net.links_from(NodeId(node));
        assert_eq!(links.len() as u32, bcube.port_count(node));
        for (port, &link) in links.iter().enumerate() {
            let peer = NodeId(bcube.neighbor(node, port as u32));
            assert_eq!(net.ends(link), (NodeId(node), peer));
            assert_eq!(net.ends(net.reverse(link).unwrap()), (peer, NodeId(node)));
            assert_eq!(net.link_between(NodeId(node), peer), Some(link));
        }
    }
}

#[test]
fn faults_come_as_often_as_they_should() {
    let faults = Faults {
        loss_ppm: 100_000,
        corruption_ppm: 50_000,
        duplication_ppm: 20_000,
        reordering_ppm: 30_000,
        reordering_delay: Duration(40_000),
    };
    let mut net = one_link(|c| (c.faults, c.queue_bytes) = (faults, u64::MAX / 16));
    for number in 0..100_000 {
        net.send(LinkId(0), Numbered(number), 125, 0);
    }
    let mut log = Log::default();
    net.run(&mut log, FOREVER);
    let counters = *net.counters(LinkId(0));
    let near = |value: u64, expected: u64| value.abs_diff(expected) < expected / 10;
    assert!(near(counters.losses, 10_000) && near(counters.corruptions, 4_500), "{counters:?}");
    assert!(near(counters.duplications, 1_800) && near(counters.reorderings, 2_700), "{counters:?}");
    assert_eq!(log.arrivals.len() as u64, 100_000 - counters.losses + counters.duplications);
    let corrupt = log.arrivals.iter().filter(|a| a.1 >> 63 == 1).count() as u64;
    assert!(corrupt >= counters.corruptions, "a corrupt packet may come twice");
    let overtaken = log.arrivals.windows(2).filter(|pair| pair[0].1 << 1 > pair[1].1 << 1).count();
    assert!(overtaken > 1_000);
}

/// Sends what arrives on to a node that depends on the packet, until it has made enough hops.
struct Wander;

impl World for Wander {
    type Packet = Numbered;
    fn arrive(&mut self, net: &mut Network<Numbered>, node: NodeId, _: LinkId, packet: Numbered) {
        if !packet.0.is_multiple_of(64) {
            let links = net.links_from(node);
            let link = links[(packet.0 >> 6) as usize % links.len()];
            net.send(link, Numbered(packet.0 - 1 + 64 * 7), 125, 0);
        }
    }
    fn timer(&mut self, _: &mut Network<Numbered>, _: NodeId, _: u64) {}
}

fn wander(seed: u64, packets: u64, loss_ppm: u32) -> (u64, u64) {
    let mut config = LinkConfig::new(Rate(1_000_000_000), Duration(500));
    config.faults.loss_ppm = loss_ppm;
    let mut net = Builder::from_graph(&BCube::new(3, 2).unwrap(), |_, _| config).build(seed);
    for packet in 0..packets {
        net.send(LinkId((packet % 36) as u32), Numbered(packet << 6 | 40), 125, 0);
    }
    net.run(&mut Wander, FOREVER);
    (net.trace_hash(), net.packet_hops())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]
    #[test]
    fn one_seed_gives_one_trace(seed in any::<u64>(), packets in 1u64..200) {
        prop_assert_eq!(wander(seed, packets, 50_000), wander(seed, packets, 50_000));
        prop_assert_ne!(wander(seed, packets, 50_000).0, wander(seed ^ 1, packets, 50_000).0);
        prop_assert_ne!(wander(seed, packets, 50_000).0, wander(seed, packets + 1, 50_000).0);
    }
}

/// Packets of a host's own are not dropped: the host is asked to wait when half of the queue is taken.
#[test]
fn a_host_waits_for_its_own_queue() {
    for priorities in [1, 2] {
        let mut builder = Builder::new(2);
        // Eight packets of 125 bytes, each of which takes 1 us.
        let config = LinkConfig {
            queue_bytes: 1_000,
            priorities,
            ..LinkConfig::new(Rate(1_000_000_000), Duration::ZERO)
        };
        let link = builder.add_link(NodeId(0), NodeId(1), config);
        let mut net: Network<Numbered> = builder.build(1);
        let taken = (0..).take_while(|&n| net.has_room(link, 0) && net.send_own(link, Numbered(n), 125, 0));
        assert_eq!(taken.count(), 4, "{priorities}");
        assert!((4..8).all(|n| net.send(link, Numbered(n), 125, 0)), "the other half is for others");
        assert!(!net.send(link, Numbered(8), 125, 0));
        assert!(net.send_own(link, Numbered(9), 125, 0));
        assert_eq!(net.queue_peak_bytes(link), 1_125);
    }
}
