//! A scenario over the pull transport (Datacast): every node is a caching forwarder.

use super::report::{LinkBytes, ReceiverReport, Report};
use super::{Failed, Layout, Problem, Scenario, Transport};
use crate::packet::pull::{Datagram, Group, PullWorld};
use crate::packet::{LinkId, Network, NodeId, Outcome};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use polycast_planning::trees::TreePlanner;
use polycast_protocol::pull::{Blocks, ForwarderConfig};
use polycast_types::{Handle, Time};

/// Settings of a pull transfer; the defaults are the paper's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PullConfig {
    /// Bytes of a packet's payload.
    pub payload_bytes: u16,
    /// The least bytes of a block.
    pub block_bytes: u64,
    /// w: interests that a receiver has out in each tree.
    pub credits: u32,
    /// Packets that a node's content store holds.
    pub store_packets: u32,
}

impl Default for PullConfig {
    fn default() -> Self {
        PullConfig { payload_bytes: 1_428, block_bytes: 100_000_000, credits: 32, store_packets: 2_048 }
    }
}

impl Scenario {
    /// Runs a transfer by pull.
    pub(super) fn run_pull(&self, config: &PullConfig, seed: u64) -> Result<Report, Problem> {
        let Layout::Topology(topology) = self.layout else {
            let message = "pull needs a topology by name, such as bcube:4,2, for its trees";
            return Err(Problem::new("transfer.transport", message));
        };
        self.refuse_what_pull_has_not()?;
        let mut net: Network<Datagram> = self.layout.build(self.links, &self.changes, seed)?;
        let receivers: Vec<u32> = self.check_transfer()?.into_iter().map(|node| node.0).collect();
        let plan = &self.transfer;
        let blocks = Blocks::new(plan.bytes, config.payload_bytes, config.block_bytes)
            .ok_or_else(|| Problem::new("pull", "a payload and a block hold at least one byte"))?;
        let mut planner = TreePlanner::new(topology);
        let slowest = (0..net.link_count()).map(|link| net.rate(LinkId(link)).0).min().unwrap_or(1);
        let group = Group::plan(&mut planner, plan.source, &receivers, blocks, slowest);
        let mut group = group.map_err(|error| Problem::new("transfer", error.to_string()))?;
        group.credits = config.credits.max(1);
        let store_packets = config.store_packets;
        let mut world = PullWorld::new(&topology, group.header_bytes, |_, ports| ForwarderConfig {
            store_packets,
            ..ForwarderConfig::for_ports(ports)
        });
        let mut failures = self.pull_failures(&net)?;
        // A world of pull nodes plans nothing: the run is cut where something happens.
        net.run(&mut world, plan.start);
        world.start(&mut net, &group);
        failures.sort_by_key(|&(at, ..)| at);
        for (at, links, up) in failures.into_iter().filter(|&(at, ..)| at < self.time_limit) {
            if net.run(&mut world, at) == Outcome::Stopped {
                break;
            }
            links.into_iter().for_each(|link| net.set_up(link, up));
        }
        if world.missing() > 0 {
            net.run(&mut world, self.time_limit);
        }
        Ok(report(&net, &world, &group))
    }

    fn refuse_what_pull_has_not(&self) -> Result<(), Problem> {
        let key = if !self.flows.is_empty() {
            "flow"
        } else if !self.receivers.is_empty() {
            "receiver"
        } else if !self.optical.is_empty() {
            "optical"
        } else if self.failures.iter().any(|failure| failure.reroute_after.is_some()) {
            "failure[0].reroute_after"
        } else {
            return Ok(());
        };
        Err(Problem::new(
            key,
            "this goes with the transports push and tcp only: take it out, or change the transport",
        ))
    }

    fn pull_failures(&self, net: &Network<Datagram>) -> Result<Vec<(Time, Vec<LinkId>, bool)>, Problem> {
        let mut planned = Vec::new();
        for (index, failure) in self.failures.iter().enumerate() {
            self.check_failure(net, index, failure)?;
            let links: Vec<LinkId> = match failure.what {
                Failed::Node(node) => {
                    let out = net.links_from(NodeId(node)).iter();
                    out.flat_map(|&link| [Some(link), net.reverse(link)]).flatten().collect()
                }
                Failed::Link { from, to, one_way } => {
                    let link = net.link_between(NodeId(from), NodeId(to));
                    let back = link.and_then(|link| net.reverse(link)).filter(|_| !one_way);
                    link.into_iter().chain(back).collect()
                }
            };
            planned.push((failure.at, links.clone(), false));
            planned.extend(failure.until.map(|until| (until, links, true)));
        }
        Ok(planned)
    }
}

fn report(net: &Network<Datagram>, world: &PullWorld, group: &Group) -> Report {
    let transfer: Handle = group.transfer;
    let mut breaches: Vec<String> = Vec::new();
    let receivers: Vec<ReceiverReport> = group
        .receivers
        .iter()
        .map(|&node| {
            let found = world.node(node).receiver(transfer);
            let finished_at = found.and_then(|(_, log)| log.finished_at);
            if finished_at.is_some() && !found.is_some_and(|(machine, _)| machine.is_complete()) {
                breaches.push(format!("receiver {node} is done, but lacks packets"));
            }
            let failure = finished_at.is_none().then(|| "not done when the run ended".to_string());
            ReceiverReport { id: node, finished_at, failure }
        })
        .collect();
    let source = world.node(group.source).source(transfer);
    let duplicates = source
        .map_or(0, |source| (0..group.trees()).map(|tree| source.counters(tree as u8).duplicates).sum());
    let links: Vec<LinkBytes> = super::report::links(net);
    let times: Option<Vec<Time>> = receivers.iter().map(|receiver| receiver.finished_at).collect();
    Report {
        finished_at: times.and_then(|times| times.into_iter().max()),
        receivers,
        bytes_on_links: links.iter().map(|link| link.bytes).sum(),
        links,
        drops: (0..net.link_count()).map(|link| net.counters(LinkId(link)).drops()).sum(),
        duplicates,
        events: net.events(),
        packet_hops: net.packet_hops(),
        trace_hash: net.trace_hash(),
        ended_at: net.now(),
        breaches,
    }
}

impl Scenario {
    /// The settings of pull, if that is the transport.
    pub(super) fn pull(&self) -> Option<PullConfig> {
        match &self.transfer.transport {
            Transport::Pull(config) => Some(*config),
            _ => None,
        }
    }
}
