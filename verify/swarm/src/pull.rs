//! Cases by pull: caching forwarders with small stores, cuts, TCP beside it, crashes of receivers, of
//! forwarders and of the source.

use super::draw::{self, Random};
use super::{Coverage, Plant, Verdict, coverage};
use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use polycast_planning::trees::TreePlanner;
use polycast_protocol::pull::{Blocks, ForwarderConfig, Packet, ReceiverInput, SourceInput};
use polycast_simulator::packet::pull::{Datagram, FlowConfig, Group, PullPacket, PullWorld};
use polycast_simulator::packet::tcp::TcpConfig;
use polycast_simulator::packet::world::routes::Distances;
use polycast_simulator::packet::{Builder, Faults, LinkId, Network, NodeId, Outcome, World};
use polycast_topology::{Graph, Network as Topology};
use polycast_types::{Duration, Time};

const NETWORKS: [&str; 7] =
    ["bcube:2,2", "bcube:3,2", "bcube:4,2", "bcube:2,3", "torus:3,2", "torus:4,2", "fat-tree:4,3"];
/// After healing a transfer is over within this time.
const LIVENESS: Duration = Duration::from_secs(60);

/// The world, with a planted bug around it.
struct Tampered {
    inner: PullWorld,
    topology: Topology,
    skips_credits: bool,
    forgets_source: bool,
}

impl Tampered {
    /// Returns true if a planted bug drops an interest that a host sends by a link that leaves it.
    fn is_skipped(&self, net: &Network<Datagram>, link: LinkId, packet: &Datagram) -> bool {
        let from = net.ends(link).0;
        let asks = |interest: &polycast_protocol::pull::Interest| interest.name.sn % 16 == 5;
        self.skips_credits
            && from.0 < self.topology.server_count()
            && matches!(packet, Datagram::Pull(PullPacket { packet: Packet::Interest(interest), .. }) if asks(interest))
    }
}

impl World for Tampered {
    type Packet = Datagram;
    fn arrive(&mut self, net: &mut Network<Datagram>, node: NodeId, link: LinkId, packet: Datagram) {
        if !self.is_skipped(net, link, &packet) {
            self.inner.arrive(net, node, link, packet);
        }
    }
    fn timer(&mut self, net: &mut Network<Datagram>, node: NodeId, token: u64) {
        self.inner.timer(net, node, token);
    }
}

pub(super) fn run(seed: u64, random: &mut Random, plant: Option<Plant>) -> Verdict {
    let (name, topology) = draw::topology(random, &NETWORKS);
    let mut hosts = draw::hosts(random, topology.server_count(), 7);
    let source = hosts.remove(0);
    let bytes = random.magnitude(1_000..=1_000_000);
    let payload = random.magnitude(200..=8_000) as u16;
    let plain = Blocks::new(bytes, payload, random.magnitude(2_000..=200_000)).expect("sizes are above zero");
    // In every other case names travel in lists, of small sections.
    let lists = bytes.is_multiple_of(2).then(|| plain.with_lists(4_096).expect("there is room for names"));
    let blocks = lists.unwrap_or(plain);
    let mut coverage = Coverage::default();
    let faults = draw::faults(random);
    coverage.faults(&faults);
    let link = draw::link(random, faults);
    let mut planner = TreePlanner::new(topology);
    let summary = format!("pull on {name}, {} receivers, {bytes} bytes", hosts.len());
    let group = Group::plan(&mut planner, source, &hosts, blocks, link.rate.0);
    let mut net: Network<Datagram> = Builder::from_graph(&topology, |_, _| link).build(seed);
    let failure = match group {
        Ok(mut group) => {
            group.credits = random.within(1..=64) as u32;
            let store_packets = random.magnitude(1..=4_096) as u32;
            let forwarder = |_, ports| ForwarderConfig { store_packets, ..ForwarderConfig::for_ports(ports) };
            let mut inner = PullWorld::new(&topology, group.header_bytes, forwarder);
            let (seen, hooks) = crate::hooks(None);
            inner.set_hooks(&hooks);
            let skips_credits = plant == Some(Plant::SkipCredit);
            let forgets_source = plant == Some(Plant::ForgetSource);
            let mut world = Tampered { inner, topology, skips_credits, forgets_source };
            begin_flows(random, &mut net, &mut world);
            Trees::begin(random, &mut net, &mut world, &group);
            world.inner.start(&mut net, &group);
            let failure = live(random, &mut net, &mut world, &group, store_packets, &mut coverage).err();
            coverage.merge(&seen.coverage());
            failure
        }
        Err(error) => Some(format!("no trees were planned though nothing failed: {error}")),
    };
    Verdict { seed, case: summary, failure, trace_hash: net.trace_hash(), events: net.events(), coverage }
}

/// TCP between servers, in one case of three.
fn begin_flows(random: &mut Random, net: &mut Network<Datagram>, world: &mut Tampered) {
    if !random.one_in(3) {
        return;
    }
    let servers = u64::from(world.topology.server_count());
    for _ in 0..random.within(1..=2) {
        let from = random.below(servers);
        let to = (from + 1 + random.below(servers - 1)) % servers;
        let (from, to) = (NodeId(from as u32), NodeId(to as u32));
        let links = Distances::from(net, from).path(net, to, 1).unwrap_or_default();
        let nodes = core::iter::once(from).chain(links.into_iter().map(|link| net.ends(link).1)).collect();
        let bytes = random.magnitude(10_000..=2_000_000);
        let config = FlowConfig { nodes, tcp: TcpConfig::default(), header_bytes: 52, bytes };
        world.inner.open_flow(net, &config);
    }
}

/// Trees without a way, ports of the source without room, and lists of names whose roots are not known yet.
#[derive(Default)]
struct Trees {
    gone: BTreeSet<u8>,
    full: BTreeSet<u8>,
}

impl Trees {
    /// In some cases not all names are known at once.
    fn begin(random: &mut Random, net: &mut Network<Datagram>, world: &mut Tampered, group: &Group) {
        if random.one_in(4) {
            let until = random.below(group.blocks.packets() + 1) % (group.blocks.sections() + 1);
            world.inner.know_roots(net, group, until);
        }
    }

    fn tell_source(
        &self,
        net: &mut Network<Datagram>,
        world: &mut Tampered,
        group: &Group,
        input: SourceInput,
    ) {
        let node = NodeId(group.source);
        world.inner.node_mut(group.source).tell_source(net, node, group.transfer, input);
    }

    /// A tree loses its way or has one again, or a port of the source has no room, or has it again.
    fn change(
        &mut self,
        random: &mut Random,
        net: &mut Network<Datagram>,
        world: &mut Tampered,
        group: &Group,
    ) {
        if random.one_in(3) {
            let ports = world.topology.port_count(group.source).clamp(1, 255);
            let port = random.below(ports.into()) as u8;
            let open = self.full.remove(&port) || !self.full.insert(port);
            return self.tell_source(net, world, group, SourceInput::Port { port, open });
        }
        let tree = random.below(group.trees() as u64) as u8;
        if self.gone.remove(&tree) {
            return self.regain(net, world, group, tree);
        }
        if self.gone.len() + 1 < group.trees() {
            self.gone.insert(tree);
            self.tell_source(net, world, group, SourceInput::TreeGone { tree });
            for &receiver in &group.receivers {
                let input = ReceiverInput::Rerouted { tree, route: None };
                world.inner.tell(net, receiver, group.transfer, input);
            }
        }
    }

    fn regain(&self, net: &mut Network<Datagram>, world: &mut Tampered, group: &Group, tree: u8) {
        self.tell_source(net, world, group, SourceInput::TreeBack { tree });
        let source = world.inner.node(group.source).source(group.transfer);
        let block = source.and_then(|source| source.block(tree));
        for (&receiver, routes) in group.receivers.iter().zip(&group.routes) {
            let Some(&route) = routes.get(usize::from(tree)) else { continue };
            let input = match (route, block) {
                (Some(route), Some(block)) => ReceiverInput::Regained { tree, route, block },
                _ => ReceiverInput::Rerouted { tree, route },
            };
            world.inner.tell(net, receiver, group.transfer, input);
        }
    }

    fn heal(&mut self, net: &mut Network<Datagram>, world: &mut Tampered, group: &Group) {
        for port in core::mem::take(&mut self.full) {
            self.tell_source(net, world, group, SourceInput::Port { port, open: true });
        }
        for tree in core::mem::take(&mut self.gone) {
            self.regain(net, world, group, tree);
        }
        world.inner.know_roots(net, group, u64::MAX);
    }
}

fn live(
    random: &mut Random,
    net: &mut Network<Datagram>,
    world: &mut Tampered,
    group: &Group,
    store_packets: u32,
    coverage: &mut Coverage,
) -> Result<(), String> {
    let mut trees = Trees::default();
    let span = net.rate(LinkId(0)).time_for(group.blocks.object_bytes()) * 3 + Duration::from_millis(2);
    let heal_at = Time(random.magnitude(200_000..=span.0));
    let mut times: Vec<Time> = (0..random.below(5)).map(|_| random.time_below(heal_at)).collect();
    times.sort_unstable();
    for at in times {
        // A world that has everything stops; what fails later finds nothing to disturb.
        if net.run(world, at) == Outcome::Stopped || net.now() < at {
            break;
        }
        if random.one_in(3) {
            trees.change(random, net, world, group);
        } else if random.one_in(2) {
            coverage.hit(coverage::PULL_CRASH);
            // Any node may crash, those that have a part in it more often than others.
            let node = match random.below(3) {
                0 => *random.pick(&group.receivers),
                1 => group.source,
                _ => random.below(net.node_count().into()) as u32,
            };
            let ports = world.topology.port_count(node).min(255) as u8;
            let config = ForwarderConfig { store_packets, ..ForwarderConfig::for_ports(ports) };
            match group.receivers.iter().position(|&receiver| receiver == node) {
                Some(receiver) => world.inner.restart_receiver(net, group, receiver, config, 0..0),
                None if node == group.source && !world.forgets_source => {
                    world.inner.restart_source(group, config);
                }
                None => world.inner.node_mut(node).crash(config),
            }
        } else {
            coverage.hit(coverage::PULL_LINK);
            let link = LinkId(random.below(net.link_count().into()) as u32);
            net.set_up(link, random.one_in(3));
        }
    }
    if world.inner.missing() > 0 {
        net.run(world, heal_at);
    }
    for link in (0..net.link_count()).map(LinkId) {
        net.set_up(link, true);
        net.set_faults(link, Faults::NONE);
    }
    trees.heal(net, world, group);
    let end = net.now() + LIVENESS;
    if world.inner.missing() > 0 {
        net.run(world, end);
    }
    for &receiver in &group.receivers {
        let found = world.inner.node(receiver).receiver(group.transfer);
        let Some((machine, log)) = found else { return Err(format!("receiver {receiver} is not there")) };
        if let Some(breach) = log.breach(machine) {
            return Err(format!("receiver {receiver}: {breach}"));
        }
        if !machine.is_complete() || log.finished_at.is_none() {
            return Err(format!("receiver {receiver} did not get the object within {LIVENESS} of healing"));
        }
    }
    Ok(())
}
