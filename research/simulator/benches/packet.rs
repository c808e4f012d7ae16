//! Packet-hops a second: BCube(8, 4) with 4,096 servers and 2,048 switches, all of its links busy.
//!
//! Every server asks four others, each over a path that begins at another of its ports, and has 32
//! interests of 72 bytes out on each; the answer of 1,500 bytes comes back on the same path. Packets carry
//! their route in eight bytes as Datacast's do.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use polycast_simulator::packet::{Builder, LinkConfig, LinkId, Network, NodeId, Packet, World};
use polycast_topology::{BCube, Graph};
use polycast_types::{Duration, Rate, Time};
use std::hint::black_box;

const HOPS_PER_ITERATION: u64 = 1_000_000;
const DATA_BYTES: u32 = 1_500;
const INTEREST_BYTES: u32 = 72;

#[derive(Clone, Copy)]
struct Routed {
    /// A byte a hop: the port to leave by, and behind `hop` the port it came in by.
    route: [u8; 8],
    hop: u8,
    hops: u8,
    is_data: bool,
    sn: u32,
}

impl Packet for Routed {
    fn digest(&self) -> u64 {
        u64::from(self.sn) << 8 | u64::from(self.is_data)
    }
    fn corrupt(&mut self, draw: u64) {
        self.sn ^= draw as u32;
    }
}

struct Servers {
    servers: u32,
    stop_at: u64,
    delivered: u64,
}

fn port_at(net: &Network<Routed>, link: LinkId) -> u8 {
    let (node, _) = net.ends(link);
    (link.0 - net.links_from(node)[0].0) as u8
}

impl World for Servers {
    type Packet = Routed;

    fn arrive(&mut self, net: &mut Network<Routed>, node: NodeId, link: LinkId, mut packet: Routed) {
        if net.packet_hops() >= self.stop_at {
            net.stop();
        }
        let back = net.reverse(link).expect("links go both ways");
        packet.route[usize::from(packet.hop)] = port_at(net, back);
        packet.hop += 1;
        if packet.hop == packet.hops {
            // The other end: what came in as an interest goes back as data, and the next is asked for.
            packet.route[..usize::from(packet.hops)].reverse();
            packet.hop = 0;
            if packet.is_data {
                self.delivered += 1;
                packet.sn += 1;
            }
            packet.is_data = !packet.is_data;
            assert!(node.0 < self.servers);
        }
        let port = packet.route[usize::from(packet.hop)];
        let bytes = if packet.is_data { DATA_BYTES } else { INTEREST_BYTES };
        let first = net.links_from(node)[0].0;
        net.send(LinkId(first + u32::from(port)), packet, bytes, 0);
    }

    fn timer(&mut self, _: &mut Network<Routed>, _: NodeId, _: u64) {}
}

/// Corrects the digits of `from` to those of `to`, beginning with digit `first`.
fn route(bcube: &BCube, from: u32, to: u32, first: u32) -> Option<Routed> {
    let mut packet = Routed { route: [0; 8], hop: 0, hops: 0, is_data: false, sn: 0 };
    for level in (0..bcube.levels()).map(|i| (first + i) % bcube.levels()) {
        if bcube.digit(from, level) != bcube.digit(to, level) {
            packet.route[usize::from(packet.hops)] = level as u8;
            packet.route[usize::from(packet.hops) + 1] = bcube.digit(to, level) as u8;
            packet.hops += 2;
        }
    }
    (packet.hops > 0 && bcube.digit(from, first) != bcube.digit(to, first)).then_some(packet)
}

fn busy_bcube() -> (Network<Routed>, Servers) {
    let bcube = BCube::new(8, 4).expect("sizes are right");
    let config = LinkConfig::new(Rate(1_000_000_000), Duration::from_micros(10));
    let mut net = Builder::from_graph(&bcube, |_, _| config).build(1);
    let mut random = 1u64;
    for server in 0..bcube.server_count() {
        for level in 0..bcube.levels() {
            let packet = loop {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let peer = (random >> 40) as u32 % bcube.server_count();
                if let Some(packet) = route(&bcube, server, peer, level) {
                    break packet;
                }
            };
            let first = net.links_from(NodeId(server))[0].0;
            for _ in 0..32 {
                net.send(LinkId(first + level), packet, INTEREST_BYTES, 0);
            }
        }
    }
    let mut servers = Servers { servers: bcube.server_count(), stop_at: 0, delivered: 0 };
    // Until the load is steady.
    net.run(&mut servers, Time::ZERO);
    servers.stop_at = u64::MAX;
    net.run(&mut servers, Time(4_000_000));
    (net, servers)
}

fn packet_hops(criterion: &mut Criterion) {
    let (mut net, mut servers) = busy_bcube();
    let mut group = criterion.benchmark_group("packet");
    group.throughput(Throughput::Elements(HOPS_PER_ITERATION)).sample_size(10);
    group.bench_function("hops, bcube:8,4 busy", |bencher| {
        bencher.iter(|| {
            servers.stop_at = net.packet_hops() + HOPS_PER_ITERATION;
            net.run(&mut servers, Time(u64::MAX));
        });
    });
    group.finish();
    let span = net.now().since(Time::ZERO).as_secs_f64();
    let bits: f64 = (0..net.link_count()).map(|link| net.counters(LinkId(link)).bytes as f64 * 8.0).sum();
    let used = bits / span / 1e9 / f64::from(net.link_count());
    eprintln!("{} packets wait or fly; links are used to {used:.2}", net.pending());
    black_box(servers.delivered);
}

criterion_group!(benches, packet_hops);
criterion_main!(benches);
