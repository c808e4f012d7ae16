//! The paper's test bed in virtual time: a 2,2-Shufflecast of 8 ToRs with two servers each, and a packet core
//! of full bisection beside it, of 10 Gbit/s each (sections V and VI).

use polycast_planning::relays;
use polycast_protocol::push::AttemptInterval;
use polycast_simulator::packet::tcp::TcpConfig;
use polycast_simulator::packet::world::forward::{Forwarding, Tree};
use polycast_simulator::packet::world::{Cluster, Datagram, Happening, PushConfig};
use polycast_simulator::packet::{Builder, LinkConfig, LinkId, Network, NodeId, Outcome};
use polycast_topology::Shufflecast;
use polycast_types::{Duration, Rate, Time};

use super::network;
use crate::report::ItemError;

/// Rate of every link of the test bed.
pub(super) const LINE: Rate = Rate(10_000_000_000);
/// Its servers.
pub(super) const SERVERS: u32 = 16;
/// Servers below a ToR.
const PER_TOR: u32 = 2;
/// From one end of a link to the other, with what a switch takes.
const HOP: Duration = Duration::from_micros(2);
/// Bytes that a port of a switch holds.
const QUEUE_BYTES: u64 = 1 << 20;

/// Over which network a group's packets go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Over {
    /// ToRs and splitters.
    Splitters,
    /// The packet core.
    Core,
}

/// The network and its transfers.
pub(super) struct Bed {
    shape: Shufflecast,
    /// Its links and queues.
    pub net: Network<Datagram>,
    /// Its hosts.
    pub cluster: Cluster,
    up: Vec<LinkId>,
    down: Vec<LinkId>,
    to_core: Vec<(LinkId, LinkId)>,
    /// From a ToR into the fibre to its splitter, and on to the splitter.
    fibres: Vec<[LinkId; 2]>,
    /// From a ToR's splitter to each ToR that it feeds.
    outputs: Vec<Vec<(u32, LinkId)>>,
}

impl Bed {
    /// The test bed, without transfers.
    #[must_use]
    pub(super) fn new(seed: u64) -> Self {
        let shape = network(2, 2);
        let tors = shape.tors();
        let tor = |at: u32| NodeId(SERVERS + at);
        // A fibre is a node of its own: it makes the way over a splitter longer than that over the core,
        // which connections take.
        let (fibre, splitter) =
            (|at: u32| NodeId(SERVERS + tors + at), |at: u32| NodeId(SERVERS + 2 * tors + at));
        let core = NodeId(SERVERS + 3 * tors);
        let config = LinkConfig { queue_bytes: QUEUE_BYTES, ..LinkConfig::new(LINE, HOP) };
        let trunk = LinkConfig { rate: Rate(u64::from(PER_TOR) * LINE.0), ..config };
        let mut builder = Builder::new(core.0 + 1);
        let (mut up, mut down) = (Vec::new(), Vec::new());
        for server in 0..SERVERS {
            let (there, back) = builder.add_both_ways(NodeId(server), tor(server / PER_TOR), config);
            up.push(there);
            down.push(back);
        }
        let to_core = (0..tors).map(|at| builder.add_both_ways(tor(at), core, trunk)).collect();
        let fibres = (0..tors)
            .map(|at| {
                [
                    builder.add_link(tor(at), fibre(at), config),
                    builder.add_link(fibre(at), splitter(at), config),
                ]
            })
            .collect();
        let outputs = (0..tors)
            .map(|at| {
                shape
                    .children(at)
                    .map(|child| (child, builder.add_link(splitter(at), tor(child), config)))
                    .collect()
            })
            .collect();
        let (net, cluster) = (builder.build(seed), Cluster::new(seed, TcpConfig::default()));
        Bed { shape, net, cluster, up, down, to_core, fibres, outputs }
    }

    /// The links of a tree from a server to all others.
    #[must_use]
    pub(super) fn tree(&self, source: u32, over: Over) -> Vec<LinkId> {
        let own = source / PER_TOR;
        let others = (0..SERVERS).filter(|&server| server != source).map(|server| self.down[server as usize]);
        let mut links: Vec<LinkId> = others.chain([self.up[source as usize]]).collect();
        match over {
            Over::Core => {
                links.push(self.to_core[own as usize].0);
                let others = (0..self.shape.tors()).filter(|&tor| tor != own);
                links.extend(others.map(|tor| self.to_core[tor as usize].1));
            }
            Over::Splitters => {
                for relay in relays::relay_set(&self.shape, own) {
                    links.extend(self.fibres[relay as usize]);
                    // Light that comes back to the source's ToR is dropped there.
                    links.extend(
                        self.outputs[relay as usize]
                            .iter()
                            .filter(|(tor, _)| *tor != own)
                            .map(|(_, link)| *link),
                    );
                }
            }
        }
        links
    }

    /// Adds a group of all servers whose source sends so many bytes, and begins at `begin`. With a `rate` the
    /// path is its own.
    pub(super) fn add(
        &mut self,
        source: u32,
        over: Over,
        bytes: u64,
        rate: Option<Rate>,
        begin: Time,
    ) -> u32 {
        let settings = PushConfig {
            fragment_bytes: 8_692,
            rate,
            window_bytes: 8 << 20,
            attempt_interval: AttemptInterval::Adaptive,
            ..PushConfig::default()
        };
        let receivers: Vec<NodeId> = (0..SERVERS).filter(|&server| server != source).map(NodeId).collect();
        let forwarding = Forwarding::Tree(Tree::new(&self.net, &self.tree(source, over)));
        let transfer =
            self.cluster.add_push(&self.net, NodeId(source), &receivers, bytes, settings, Some(forwarding));
        self.cluster.plan(&mut self.net, begin, Happening::StartTransfer { transfer });
        transfer
    }

    /// Runs until then, or until all transfers are over.
    pub(super) fn until(&mut self, time: Time) -> Outcome {
        self.net.run(&mut self.cluster, time)
    }

    /// Runs until every receiver has everything, and gives the seconds until the last one had it.
    ///
    /// # Errors
    /// If that takes a minute.
    pub(super) fn finish(&mut self) -> Result<f64, ItemError> {
        if self.until(Time(60_000_000_000)) != Outcome::Stopped {
            return Err(ItemError::Refused("a transfer is not over after a minute".into()));
        }
        let transfers = 0..self.cluster.transfers().len() as u32;
        let ends = transfers.flat_map(|transfer| self.cluster.push(transfer).receivers());
        let last = ends.map(|receiver| receiver.finished_at().unwrap_or(Time(u64::MAX))).max();
        Ok(last.unwrap_or(Time::ZERO).since(Time::ZERO).as_secs_f64())
    }

    /// Bytes that the receivers of a transfer have on average.
    #[must_use]
    pub(super) fn delivered(&self, transfer: u32) -> f64 {
        let each = (SERVERS - 1) as usize;
        let samples = self.cluster.delivered();
        let of_transfer = &samples[transfer as usize * each..][..each];
        of_transfer.iter().map(|sample| sample.bytes as f64).sum::<f64>() / each as f64
    }

    /// Bytes of a transfer that the links to these servers have brought, on average over those that receive
    /// it.
    #[must_use]
    pub(super) fn carried(&self, transfer: u32, servers: &[u32]) -> f64 {
        let receivers = self.cluster.push(transfer).receivers().iter();
        let bytes =
            receivers.filter(|receiver| servers.contains(&receiver.node().0)).map(|r| r.carried_bytes());
        let (sum, count) = bytes.fold((0, 0), |(sum, count), bytes| (sum + bytes, count + 1));
        sum as f64 / f64::from(count.max(1))
    }

    /// Packets that queues had no room for, in percent of all that came to servers or were dropped.
    #[must_use]
    pub(super) fn loss_percent(&self) -> f64 {
        let drops: u64 =
            (0..self.net.link_count()).map(|link| self.net.counters(LinkId(link)).queue_drops).sum();
        let came: u64 = self.down.iter().map(|&link| self.net.counters(link).packets).sum();
        100.0 * drops as f64 / (came + drops).max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_comes_to_every_other_server_once() {
        let bed = Bed::new(1);
        for over in [Over::Splitters, Over::Core] {
            for source in 0..SERVERS {
                let mut came = vec![0u32; bed.net.node_count() as usize];
                bed.tree(source, over).iter().for_each(|&link| came[bed.net.ends(link).1.index()] += 1);
                let servers = &came[..SERVERS as usize];
                assert!(servers.iter().zip(0..).all(|(&count, server)| count == u32::from(server != source)));
                // The source's own ToR gets it from below, and every other one once.
                let tors = &came[SERVERS as usize..][..8];
                assert!(tors.iter().all(|&count| count == 1), "{over:?} {source}: {tors:?}");
            }
        }
    }
}
