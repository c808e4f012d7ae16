//! The transfers of a scenario: what is checked of them, and how their packets are forwarded.

use super::{Failed, FailurePlan, Layout, Problem, Routing, Scenario, TransferPlan, Transport};
use crate::packet::world::forward::{Forwarding, LabelSwitches, Relays, Tree};
use crate::packet::world::routes::Distances;
use crate::packet::world::{Cluster, Datagram, Happening};
use crate::packet::{LinkId, Network, NodeId};
use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use polycast_planning::labels::LabelPlanner;
use polycast_planning::relays::recover_source;
use polycast_topology::{Failures, Graph};
use polycast_types::Time;

/// Packets of all objects times those who keep account of them, at most: a bit each is half a GiB.
const MARKS_MAX: u64 = 1 << 32;
/// The most transfers of a run.
const TRANSFERS_MAX: usize = 4_096;

/// Broken parts that planners lead packets around.
#[derive(Clone, Debug, Default)]
pub(super) struct Broken {
    /// Links and nodes of a topology.
    pub(super) links: Failures,
    /// ToRs of a Shufflecast that cannot relay.
    tors: BTreeSet<u32>,
}

impl Broken {
    /// Links and nodes of a topology alone.
    pub(super) fn of_links(links: Failures) -> Self {
        Broken { links, tors: BTreeSet::new() }
    }
}

impl Transport {
    /// Bytes of the object in a packet.
    fn packet_bytes(&self) -> u64 {
        match self {
            Transport::Push(config) => config.fragment_bytes.into(),
            Transport::Pull(config) => config.payload_bytes.into(),
            Transport::Tcp => u64::MAX,
        }
    }
}

impl Scenario {
    /// Returns the name of a key of a transfer in a file.
    pub(super) fn transfer_key(&self, index: usize, name: &str) -> String {
        match self.transfers.len() {
            1 => format!("transfer.{name}"),
            _ => format!("transfer[{index}].{name}"),
        }
    }

    /// Returns true if the transfers are by pull: they have a world of their own, in which nothing else is
    /// sent but TCP flows.
    pub(super) fn is_by_pull(&self) -> Result<bool, Problem> {
        let pulls = |plan: &TransferPlan| matches!(plan.transport, Transport::Pull(_));
        let Some(first) = self.transfers.first() else {
            return Err(Problem::new("transfer", "there is no transfer: write one at least"));
        };
        if let Some(other) = self.transfers.iter().position(|plan| pulls(plan) != pulls(first)) {
            let message = "with pull every node is a caching forwarder, which knows no other transport: let all \
                           transfers be by pull, or none";
            return Err(Problem::new(self.transfer_key(other, "transport"), message));
        }
        Ok(pulls(first))
    }

    /// The receivers of every transfer.
    pub(super) fn check_transfers(&self) -> Result<Vec<Vec<NodeId>>, Problem> {
        let transfers = self.transfers.len();
        if transfers > TRANSFERS_MAX {
            let message =
                format!("{transfers} transfers are too many for a run: write at most {TRANSFERS_MAX}");
            return Err(Problem::new("transfer", message));
        }
        let mut marks = 0;
        (0..transfers).map(|index| self.check_transfer(index, &mut marks)).collect()
    }

    fn check_transfer(&self, index: usize, marks: &mut u64) -> Result<Vec<NodeId>, Problem> {
        let plan = &self.transfers[index];
        let wrong = |name: &str, message: String| Problem::new(self.transfer_key(index, name), message);
        self.layout.check_host(&self.transfer_key(index, "source"), plan.source)?;
        let all = || (0..self.layout.hosts()).filter(|&host| host != plan.source).collect();
        let receivers: Vec<u32> = plan.receivers.clone().unwrap_or_else(all);
        let mut seen = BTreeSet::new();
        for &receiver in &receivers {
            self.layout.check_host(&self.transfer_key(index, "receivers"), receiver)?;
            if receiver == plan.source {
                return Err(wrong("receivers", format!("host {receiver} is the source: name other hosts")));
            }
            if !seen.insert(receiver) {
                return Err(wrong("receivers", format!("host {receiver} is there twice: name it once")));
            }
        }
        if receivers.is_empty() {
            return Err(wrong("receivers", "there is no receiver: name at least one host".into()));
        }
        let packet_bytes = plan.transport.packet_bytes().max(1);
        let (packets, keepers) = (plan.bytes.div_ceil(packet_bytes), receivers.len() as u64 + 1);
        let room = MARKS_MAX - *marks;
        *marks = marks.saturating_add(packets.saturating_mul(keepers));
        if *marks > MARKS_MAX {
            let most = (room / keepers).saturating_mul(packet_bytes);
            let before = if index == 0 { "" } else { " beside the transfers before it" };
            let message = format!(
                "{} bytes are {packets} packets, of which every receiver has to keep account{before}: write at most {most}",
                plan.bytes
            );
            return Err(wrong("bytes", message));
        }
        Ok(receivers.into_iter().map(NodeId).collect())
    }

    /// Links that are given one by one may leave a receiver out.
    pub(super) fn check_ways(&self, net: &Network<Datagram>, groups: &[Vec<NodeId>]) -> Result<(), Problem> {
        if !matches!(self.layout, Layout::Nodes(_)) {
            return Ok(());
        }
        for (index, receivers) in groups.iter().enumerate() {
            let source = NodeId(self.transfers[index].source);
            let ways = Distances::from(net, source);
            for &receiver in receivers {
                let back = || Distances::from(net, receiver).hops(source);
                let (from, to) = match ways.hops(receiver) {
                    None => (source, receiver),
                    Some(_) if back().is_none() => (receiver, source),
                    Some(_) => continue,
                };
                let message =
                    format!("no links lead from host {} to host {}: add a [[link]] on the way", from.0, to.0);
                return Err(Problem::new(self.transfer_key(index, "receivers"), message));
            }
        }
        Ok(())
    }

    pub(super) fn add_transfer(
        &self,
        net: &Network<Datagram>,
        cluster: &mut Cluster,
        index: usize,
        receivers: &[NodeId],
    ) -> Result<(), Problem> {
        let plan = &self.transfers[index];
        let source = NodeId(plan.source);
        match &plan.transport {
            Transport::Pull(_) => {
                return Err(Problem::new(
                    self.transfer_key(index, "transport"),
                    "pull has a world of its own",
                ));
            }
            Transport::Tcp => {
                cluster.add_tcp(source, receivers, plan.bytes);
            }
            Transport::Push(config) => {
                let forwarding = self.forwarding(net, index, receivers, &Broken::default())?;
                let room = u64::from(config.packet_bytes());
                if config.window_bytes < room {
                    let message = format!("a socket must hold at least one packet of {room} bytes");
                    return Err(Problem::new("push.window", message));
                }
                cluster.add_push(net, source, receivers, plan.bytes, config.clone(), forwarding);
            }
        }
        Ok(())
    }

    /// Plans the forwarding of packets around broken parts.
    fn forwarding(
        &self,
        net: &Network<Datagram>,
        index: usize,
        receivers: &[NodeId],
        broken: &Broken,
    ) -> Result<Option<Forwarding>, Problem> {
        let plan = &self.transfers[index];
        match &plan.routing {
            Routing::Natural if matches!(self.layout, Layout::Blast { .. }) => {
                let links = self.layout.circuits(plan.source, receivers).unwrap_or_default();
                self.tree(net, index, &links, receivers).map(Some)
            }
            Routing::Natural => Ok(self.layout.shufflecast().map(|(fabric, hosts_per_tor)| {
                let source_tor = plan.source / hosts_per_tor;
                Forwarding::Relays(Relays {
                    hosts_per_tor,
                    tors: fabric.tors(),
                    source_tor,
                    relays: recover_source(&fabric, &broken.tors, source_tor)
                        .relay_set(&fabric, source_tor)
                        .into_iter()
                        .collect(),
                    members: receivers.iter().copied().collect(),
                })
            })),
            Routing::Tree(links) => self.tree(net, index, links, receivers).map(Some),
            Routing::Labels { filter_bits } => {
                let Some(clos) = self.layout.clos() else {
                    let message = "labels need a fat-tree with 3 layers, a leaf-spine or a clos network";
                    return Err(Problem::new(self.transfer_key(index, "routing"), message));
                };
                let key = || self.transfer_key(index, "routing");
                let wrong = |error: &dyn core::fmt::Display| Problem::new(key(), error.to_string());
                let mut planner = LabelPlanner::new(clos, *filter_bits).map_err(|error| wrong(&error))?;
                let hosts: Vec<u32> = receivers.iter().map(|node| node.0).collect();
                let planned = planner.plan(1, plan.source, &hosts, &broken.links);
                let planned = planned.map_err(|error| wrong(&error))?;
                Ok(Some(Forwarding::Labels(Box::new(LabelSwitches::new(planner, &planned)))))
            }
        }
    }

    /// The tree that was given, if it is one and reaches every receiver.
    fn tree(
        &self,
        net: &Network<Datagram>,
        index: usize,
        arcs: &[(u32, u32)],
        receivers: &[NodeId],
    ) -> Result<Forwarding, Problem> {
        let mut links: Vec<LinkId> = Vec::new();
        let source = self.transfers[index].source;
        let mut reached = BTreeSet::from([source]);
        for (at, &(from, to)) in arcs.iter().enumerate() {
            let key = self.transfer_key(index, &format!("tree[{at}]"));
            self.layout.check_node(&key, from)?;
            self.layout.check_node(&key, to)?;
            let Some(link) = net.link_between(NodeId(from), NodeId(to)) else {
                return Err(Problem::new(key, format!("no link leads from {from} to {to}")));
            };
            if !reached.contains(&from) {
                let message = format!("node {from} is not reached yet: begin at the source, {source}");
                return Err(Problem::new(key, message));
            }
            if !reached.insert(to) {
                return Err(Problem::new(key, format!("node {to} is reached already: this would be a loop")));
            }
            links.push(link);
        }
        match receivers.iter().find(|node| !reached.contains(&node.0)) {
            Some(node) => Err(Problem::new(
                self.transfer_key(index, "tree"),
                format!("it does not reach receiver {}", node.0),
            )),
            None => Ok(Forwarding::Tree(Tree::new(net, &links))),
        }
    }

    /// Returns the parts that are broken at a time.
    fn broken_at(&self, at: Time) -> Broken {
        let is_broken =
            |failure: &&FailurePlan| failure.at <= at && failure.until.is_none_or(|until| at < until);
        let mut broken = Broken::default();
        for failure in self.failures.iter().filter(is_broken) {
            broken.tors.extend(self.dead_tor(failure.what));
            let Layout::Topology(topology) = self.layout else { continue };
            match failure.what {
                Failed::Node(node) => {
                    broken.links.fail_node(node);
                }
                Failed::Link { from, to, .. } => {
                    if let Some(port) = topology.port_to(from, to) {
                        broken.links.fail_link(topology.link(from, port));
                    }
                }
            }
        }
        broken
    }

    /// The ToR of a Shufflecast that cannot relay any more: it is down, or its splitter, or the link between.
    fn dead_tor(&self, what: Failed) -> Option<u32> {
        let (fabric, hosts_per_tor) = self.layout.shufflecast()?;
        let (tors, hosts) = (fabric.tors(), fabric.tors() * hosts_per_tor);
        match what {
            Failed::Node(node) => {
                node.checked_sub(hosts).filter(|place| *place < 2 * tors).map(|place| place % tors)
            }
            Failed::Link { from, to, .. } => {
                from.checked_sub(hosts).filter(|tor| *tor < tors && to == from + tors)
            }
        }
    }

    /// The transfers' own forwarding is planned anew at `at` around what is broken then.
    pub(super) fn plan_relabelling(
        &self,
        net: &mut Network<Datagram>,
        cluster: &mut Cluster,
        groups: &[Vec<NodeId>],
        at: Time,
    ) {
        self.plan_around(net, cluster, groups, &self.broken_at(at), at);
    }

    /// The transfers' own forwarding changes at `at` to one around what is broken, where planners make it.
    pub(super) fn plan_around(
        &self,
        net: &mut Network<Datagram>,
        cluster: &mut Cluster,
        groups: &[Vec<NodeId>],
        broken: &Broken,
        at: Time,
    ) {
        for (index, receivers) in groups.iter().enumerate() {
            let plan = &self.transfers[index];
            let by_planner = match plan.routing {
                Routing::Natural => self.layout.shufflecast().is_some(),
                Routing::Labels { .. } => true,
                Routing::Tree(_) => false,
            };
            if !by_planner || !matches!(plan.transport, Transport::Push(_)) {
                continue;
            }
            // Where no receiver can be reached any more the old rules stay.
            if let Ok(Some(forwarding)) = self.forwarding(net, index, receivers, broken) {
                let (forwarding, members) = (forwarding.into(), receivers.clone());
                let transfer = index as u32;
                cluster.plan(net, at, Happening::Relabel { transfer, forwarding, members });
            }
        }
    }
}
