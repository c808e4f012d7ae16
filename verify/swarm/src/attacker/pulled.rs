//! Cases by pull with an attacker: sealed transfers through nodes that keep packets.
//!
//! What must hold is what must hold by push (see [`super`]), as far as there is such a thing. Interests and
//! the headers of data are open to all: nodes answer every asker, and believe where a packet goes, its tree,
//! and what follows in it. So a stranger's packet gets to forwarders, and what holds is: no store and no
//! receiver takes bytes that are not what the source has given that name.

mod attack;
mod node;
mod receiver;
mod world;

use super::{LIVENESS, MOMENT, Verdict};
use crate::draw::{self, Random};
use crate::{Coverage, Plant, coverage as named};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use attack::Attacker;
use node::Node;
use polycast_planning::trees::TreePlanner;
use polycast_protocol::pull::{Blocks, ForwarderConfig, RetryTime};
use polycast_protocol::push::Geometry;
use polycast_simulator::packet::pull::Group;
use polycast_simulator::packet::world::Attack;
use polycast_simulator::packet::{Builder, Faults, LinkConfig, LinkId, Network, Outcome};
use polycast_topology::{Graph, Network as Topology};
use polycast_types::{Duration, Rate, Time};
use world::{Datagram, Later, World};

const NETWORKS: [&str; 6] = ["bcube:2,2", "bcube:3,2", "bcube:4,2", "bcube:2,3", "torus:3,2", "fat-tree:4,3"];
/// One in this number of cases is about time.
const TIMED_ONE_IN: u64 = 8;
/// Bytes of a packet's header.
const HEADER_BYTES: u16 = 84;

/// Transfer of a case, and its network.
struct Case {
    seed: u64,
    topology: Topology,
    group: Group,
    geometry: Geometry,
    link: LinkConfig,
    store_packets: u32,
}

pub(super) fn run(seed: u64, random: &mut Random, plant: Option<Plant>) -> Verdict {
    let times = random.one_in(TIMED_ONE_IN);
    let (name, topology) = draw::topology(random, &NETWORKS);
    let mut coverage = Coverage::default();
    let mut trace = (0, 0);
    let mut summary = format!("attacked{} by pull on {name}", if times { " in time" } else { "" });
    let failure = match Case::draw((seed, times), random, topology) {
        Ok(case) => {
            let (receivers, bytes) = (case.group.receivers.len(), case.geometry.object_len);
            summary.push_str(&format!(", {receivers} receivers, {bytes} bytes"));
            let all = (&mut coverage, &mut trace, &mut summary);
            if times { case.compare(random, plant, all) } else { case.live(random, plant, all) }
        }
        Err(error) => Err(error),
    };
    Verdict { seed, case: summary, failure: failure.err(), trace_hash: trace.0, events: trace.1, coverage }
}

type Seen<'a> = (&'a mut Coverage, &'a mut (u64, u64), &'a mut String);

/// Forged packets that an attacker sends in a transfer without faults.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Forgeries {
    None,
    One,
    AsMany,
}

impl Case {
    fn draw((seed, times): (u64, bool), random: &mut Random, topology: Topology) -> Result<Self, String> {
        let mut hosts = draw::hosts(random, topology.server_count(), 6);
        let source = hosts.remove(0);
        let object_len = random.magnitude(1_000..=if times { 400_000 } else { 200_000 });
        let fragment_len = random.magnitude(200..=6_000) as u32;
        let group_len = 1 << random.within(10..=15);
        let block_bytes = random.magnitude(2_000..=100_000);
        let blocks = Blocks::new(object_len, fragment_len as u16, block_bytes);
        let blocks = blocks.and_then(|blocks| blocks.with_lists(group_len)).expect("there is room for names");
        let faults = if times { Faults::NONE } else { draw::faults(random) };
        let drawn = draw::link(random, faults);
        let rate = if times { Rate(random.magnitude(300_000_000..=10_000_000_000)) } else { drawn.rate };
        let link = LinkConfig { rate, ..drawn };
        let mut planner = TreePlanner::new(topology);
        let group = Group::plan(&mut planner, source, &hosts, blocks, link.rate.0);
        let mut group = group.map_err(|error| error.to_string())?;
        group.header_bytes = HEADER_BYTES;
        group.credits = random.within(1..=64) as u32;
        if random.one_in(2) {
            let (initial, least) = (Duration::from_millis(100), Duration::from_millis(20));
            group.retry = RetryTime::Adaptive { initial, least };
            group.overtaken = Some(3);
        }
        let geometry = Geometry { object_len, fragment_len, group_len };
        let store_packets = random.magnitude(1..=1_024) as u32;
        Ok(Case { seed, topology, group, geometry, link, store_packets })
    }

    fn network(&self) -> Network<Datagram> {
        Builder::from_graph(&self.topology, |_, _| self.link).build(self.seed)
    }

    fn world(&self, attack: Attack, plant: Option<Plant>) -> World {
        let node = |node| {
            let ports = self.topology.port_count(node).min(255) as u8;
            let store_packets = self.store_packets;
            Node::new(ForwarderConfig { store_packets, ..ForwarderConfig::for_ports(ports) })
        };
        let nodes = (0..self.topology.node_count()).map(node).collect();
        let attacker = Attacker::new(self.seed, attack);
        World::new((self.seed, self.group.clone(), self.geometry), nodes, attacker, plant)
    }

    /// A transfer with an attacker, beside whom all that fails by itself fails.
    fn live(&self, random: &mut Random, plant: Option<Plant>, seen: Seen<'_>) -> Result<(), String> {
        let (coverage, trace, summary) = seen;
        let span = self.link.rate.time_for(self.geometry.object_len) * 3 + Duration::from_millis(2);
        let until = Time(random.magnitude(200_000..=span.0.max(50_000_000)));
        let receivers = self.group.receivers.len() as u64;
        let insider = random.one_in(2).then(|| random.below(receivers) as u32);
        let mut share = |most: u64| if random.one_in(2) { random.magnitude(100..=most) } else { 0 };
        let shares_ppm = [share(50_000), share(100_000), share(50_000), share(100_000)];
        let acts = random.magnitude(1..=200) as u32;
        let floods = random.one_in(8);
        let mut net = self.network();
        let mut world = self.world(Attack { until, insider, shares_ppm, acts, floods }, plant);
        world.damages_one_in = if random.one_in(3) { random.within(50..=500) } else { 0 };
        if insider.is_some() {
            summary.push_str(", from inside");
            world.coverage.hit(named::ATTACK_INSIDE);
        }
        let sections = self.group.blocks.sections();
        world.begin(&mut net, random.below(sections + 1));
        world.begin_attack(&mut net);
        for _ in 0..sections {
            let at = random.time_below(until);
            world.plan(&mut net, at, Later::Listed { run: 0 });
        }
        if let Some(receiver) = insider.filter(|_| random.one_in(2)) {
            let at = Time(random.magnitude(10_000..=until.0));
            world.plan(&mut net, at, Later::Remove { receiver: receiver as usize });
        }
        let result = self.play(random, &mut net, &mut world, until);
        coverage.merge(&world.coverage);
        *trace = (net.trace_hash(), net.events());
        result
    }

    fn play(
        &self,
        random: &mut Random,
        net: &mut Network<Datagram>,
        world: &mut World,
        until: Time,
    ) -> Result<(), String> {
        let mut times: Vec<Time> = (0..random.below(5)).map(|_| random.time_below(until)).collect();
        times.sort_unstable();
        for at in times {
            // A world that has everything stops; what fails later finds nothing to disturb.
            if net.run(world, at) == Outcome::Stopped || net.now() < at {
                break;
            }
            if random.one_in(2) {
                let link = LinkId(random.below(net.link_count().into()) as u32);
                net.set_up(link, random.one_in(3));
            } else {
                let node = random.below(net.node_count().into()) as u32;
                world.node_mut(node).crash();
            }
            world.breach()?;
        }
        if !world.is_done() {
            net.run(world, until);
        }
        for link in (0..net.link_count()).map(LinkId) {
            net.set_up(link, true);
            net.set_faults(link, Faults::NONE);
        }
        world.damages_one_in = 0;
        world.know_all(net);
        let end = net.now() + LIVENESS;
        if !world.is_done() {
            net.run(world, end);
        }
        world.breach()?;
        world.check_objects()?;
        if let Some(receiver) = world.late() {
            return Err(format!(
                "receiver {receiver} did not get the object within {LIVENESS} of the attack: {}",
                world.state_of(receiver)
            ));
        }
        if !world.is_done() {
            return Err(format!("the source does not know within {LIVENESS} that all have the object"));
        }
        Ok(())
    }

    /// Checks the cost of forged packets.
    fn compare(&self, random: &mut Random, plant: Option<Plant>, seen: Seen<'_>) -> Result<(), String> {
        let (coverage, trace, _) = seen;
        let packet = u64::from(self.geometry.fragment_len) + u64::from(HEADER_BYTES);
        // A node takes packets as fast as all its ports bring them, or up to four times as fast: data, as
        // much that is forged, and an interest for each. A slower one loses honest packets for lack of time,
        // and what forged ones cost cannot be told from that.
        let ports = (0..self.topology.node_count()).map(|node| u64::from(self.topology.port_count(node)));
        let most = 3 * ports.max().unwrap_or(1);
        let service = self.link.rate.time_for(packet) / random.within(most..=4 * most);
        let mut play = |forgeries, service, limit| {
            let (took, ran) = self.time((forgeries, limit), service, plant, coverage)?;
            *trace = (trace.0 ^ ran.0, trace.1 + ran.1);
            Ok::<_, String>(took)
        };
        // Beside as many others a node has half of its time for honest ones: where that alone makes other
        // packets meet in a queue, and one is lost and waited for, it is no dearer than a slower node.
        let usually =
            play(Forgeries::None, service, LIVENESS)?.max(play(Forgeries::None, service * 2, LIVENESS)?);
        let bound = usually + usually * 3 / 10 + MOMENT;
        let many = play(Forgeries::AsMany, service, bound * 2)?;
        if many > bound {
            return Err(format!("it takes {many} beside as many forged packets, and {usually} without"));
        }
        // Where packets take a node no time, one that is forged changes nothing at all.
        let usually = play(Forgeries::None, Duration::ZERO, LIVENESS)?;
        let one = play(Forgeries::One, Duration::ZERO, bound * 2)?;
        if one != usually {
            return Err(format!("it takes {one} beside one forged packet, and {usually} without"));
        }
        Ok(())
    }

    /// Returns the duration of the transfer; the limit where it takes longer.
    fn time(
        &self,
        (forgeries, limit): (Forgeries, Duration),
        service: Duration,
        plant: Option<Plant>,
        coverage: &mut Coverage,
    ) -> Result<(Duration, (u64, u64)), String> {
        let mut net = self.network();
        let until = if forgeries == Forgeries::None { Time::ZERO } else { Time::ZERO + LIVENESS };
        let floods = forgeries == Forgeries::AsMany;
        let attack = Attack { until, insider: None, shares_ppm: [0; 4], acts: 0, floods };
        let mut world = self.world(attack, plant);
        world.service = service;
        world.begin(&mut net, u64::MAX);
        if forgeries == Forgeries::One {
            let half = self.link.rate.time_for(self.geometry.object_len) / 2;
            world.plan(&mut net, Time::ZERO + half, Later::One);
        }
        net.run(&mut world, Time::ZERO + limit);
        coverage.merge(&world.coverage);
        world.breach()?;
        world.check_objects()?;
        let took = world.finished_at().map_or(limit, |at| at.since(Time::ZERO));
        if forgeries == Forgeries::None && took >= LIVENESS {
            return Err(format!("the transfer was not over within {LIVENESS}"));
        }
        Ok((took, (net.trace_hash(), net.events())))
    }
}
