//! A scenario: a network, a transfer over it, other traffic and what fails when; and its run.
//!
//! The command `polycast simulate` reads one from a file; experiments and the swarm make them. The checks
//! are here, so that a scenario that makes no sense cannot be run: a [`Problem`] names the key that a
//! file would have and says what would be right.

mod layout;
mod pull;
mod report;

pub use layout::{Change, Layout};
pub use pull::PullConfig;
pub use report::{LinkReport, LinkSample, Probe, ReceiverReport, ReceiverSample, Report, Sample};

use super::tcp::TcpConfig;
use super::world::forward::{Forwarding, LabelSwitches, Relays, Tree};
use super::world::routes::Distances;
use super::world::{Cluster, Datagram, Flow, Happening, PushConfig};
use super::{LinkConfig, LinkId, Network, NodeId, Packet};
use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use polycast_planning::labels::LabelPlanner;
use polycast_planning::relays::recover_source;
use polycast_topology::{Failures, Graph};
use polycast_types::{Duration, Time};

/// What is wrong with a scenario.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {message}")]
pub struct Problem {
    /// The key, such as `transfer.receivers` or `link[2].to`; the first of a list is 0.
    pub key: String,
    /// What is wrong and what would be right.
    pub message: String,
}

impl Problem {
    fn new(key: impl Into<String>, message: impl Into<String>) -> Self {
        Problem { key: key.into(), message: message.into() }
    }
}

/// How the transfer is carried.
#[derive(Clone, Debug)]
pub enum Transport {
    /// Republic's push.
    Push(PushConfig),
    /// Datacast's pull.
    Pull(PullConfig),
    /// One TCP connection a receiver.
    Tcp,
}

/// Packets of an object times those who keep account of them, at most: a bit each is half a GiB.
const MARKS_MAX: u64 = 1 << 32;

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

/// How the packets of a push transfer are forwarded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Routing {
    /// A tree of shortest paths; on Shufflecast the static rules of its relays.
    Natural,
    /// These links as (from, to).
    Tree(Vec<(u32, u32)>),
    /// Orca's labels with a filter of so many bits.
    Labels {
        /// Size of the filter.
        filter_bits: u32,
    },
}

/// The transfer.
#[derive(Clone, Debug)]
pub struct TransferPlan {
    /// How it is carried.
    pub transport: Transport,
    /// Forwarding of a push transfer.
    pub routing: Routing,
    /// The source's host.
    pub source: u32,
    /// The receivers' hosts; all but the source if `None`.
    pub receivers: Option<Vec<u32>>,
    /// Size of the object in bytes.
    pub bytes: u64,
    /// When it starts.
    pub start: Time,
}

/// A background flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowPlan {
    /// The sender.
    pub from: u32,
    /// The receiver.
    pub to: u32,
    /// How much; without end if `None`.
    pub bytes: Option<u64>,
    /// When it starts.
    pub start: Time,
}

/// What fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failed {
    /// A node with all of its links.
    Node(u32),
    /// A link.
    Link {
        /// One end.
        from: u32,
        /// The other.
        to: u32,
        /// Only in this direction.
        one_way: bool,
    },
}

/// A failure at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailurePlan {
    /// When.
    pub at: Time,
    /// What.
    pub what: Failed,
    /// When it works again.
    pub until: Option<Time>,
    /// How long after each change paths and trees follow it.
    pub reroute_after: Option<Duration>,
}

/// What is special about a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiverPlan {
    /// Its host.
    pub node: u32,
    /// Time that it takes for one packet.
    pub service: Option<Duration>,
    /// When it crashes.
    pub crash: Option<Time>,
    /// When it comes back.
    pub restart: Option<Time>,
}

/// An optical switch that turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpticalPlan {
    /// Its node.
    pub node: u32,
    /// When its circuits are ready.
    pub ready_at: Time,
    /// What it loses until then, in parts of a million.
    pub loss_ppm: u32,
}

/// A scenario.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Everything random comes from it.
    pub seed: u64,
    /// The nodes and links.
    pub layout: Layout,
    /// Settings of all links that are not changed.
    pub links: LinkConfig,
    /// Links with other settings, or the links of an explicit network.
    pub changes: Vec<Change>,
    /// The transfer.
    pub transfer: TransferPlan,
    /// Settings of all connections.
    pub tcp: TcpConfig,
    /// Other traffic.
    pub flows: Vec<FlowPlan>,
    /// What fails.
    pub failures: Vec<FailurePlan>,
    /// What is special about receivers.
    pub receivers: Vec<ReceiverPlan>,
    /// Optical switches that turn.
    pub optical: Vec<OpticalPlan>,
    /// The run ends here if it is not over before.
    pub time_limit: Time,
}

impl Scenario {
    /// Runs the scenario with this seed.
    ///
    /// # Errors
    /// If something in it makes no sense.
    pub fn run(&self, seed: u64) -> Result<Report, Problem> {
        self.run_with(seed, None)
    }

    /// The same with a look at the run while it goes on. It is the same run: the trace hash does not change.
    ///
    /// # Errors
    /// If something in it makes no sense.
    pub fn run_with(&self, seed: u64, probe: Option<Probe<'_>>) -> Result<Report, Problem> {
        if let Some(config) = self.pull() {
            return self.run_pull(&config, seed, probe);
        }
        let (mut net, mut cluster) = self.prepare(seed)?;
        match probe {
            Some(mut probe) => {
                probe.run(&mut net, &mut cluster, self.time_limit, Cluster::delivered);
                probe.end(&net, cluster.delivered());
            }
            None => drop(net.run(&mut cluster, self.time_limit)),
        }
        Ok(Report::new(&net, &cluster))
    }

    /// Makes the network and the world of a transfer by push or TCP, with everything planned; a run brings
    /// it about.
    ///
    /// # Errors
    /// If something in it makes no sense, or it is a transfer by pull.
    pub fn prepare(&self, seed: u64) -> Result<(Network<Datagram>, Cluster), Problem> {
        let mut net = self.layout.build(self.links, &self.changes, seed)?;
        let receivers = self.check_transfer()?;
        self.check_ways(&net, &receivers)?;
        let mut cluster = Cluster::new(seed, self.tcp);
        self.add_transfer(&net, &mut cluster, &receivers)?;
        cluster.plan(&mut net, self.transfer.start, Happening::StartTransfer { transfer: 0 });
        self.plan_flows(&mut net, &mut cluster)?;
        self.plan_failures(&mut net, &mut cluster, &receivers)?;
        self.plan_receivers(&mut net, &mut cluster, &receivers)?;
        for (index, optical) in self.optical.iter().enumerate() {
            self.layout.check_node(&format!("optical[{index}].node"), optical.node)?;
            cluster.set_turning(NodeId(optical.node), optical.ready_at, optical.loss_ppm);
        }
        Ok((net, cluster))
    }

    fn check_transfer(&self) -> Result<Vec<NodeId>, Problem> {
        let plan = &self.transfer;
        self.layout.check_host("transfer.source", plan.source)?;
        let all = || (0..self.layout.hosts()).filter(|&host| host != plan.source).collect();
        let receivers: Vec<u32> = plan.receivers.clone().unwrap_or_else(all);
        let mut seen = BTreeSet::new();
        for &receiver in &receivers {
            self.layout.check_host("transfer.receivers", receiver)?;
            if receiver == plan.source {
                let message = format!("host {receiver} is the source: name other hosts");
                return Err(Problem::new("transfer.receivers", message));
            }
            if !seen.insert(receiver) {
                let message = format!("host {receiver} is there twice: name it once");
                return Err(Problem::new("transfer.receivers", message));
            }
        }
        if receivers.is_empty() {
            return Err(Problem::new("transfer.receivers", "there is no receiver: name at least one host"));
        }
        let packets = plan.bytes.div_ceil(plan.transport.packet_bytes().max(1));
        let marks = packets.saturating_mul(receivers.len() as u64 + 1);
        if marks > MARKS_MAX {
            let most = MARKS_MAX / (receivers.len() as u64 + 1) * plan.transport.packet_bytes();
            let message = format!(
                "{} bytes are {packets} packets, of which every receiver has to keep account: write at most {most}",
                plan.bytes
            );
            return Err(Problem::new("transfer.bytes", message));
        }
        Ok(receivers.into_iter().map(NodeId).collect())
    }

    /// Links that are given one by one may leave a receiver out.
    fn check_ways(&self, net: &Network<Datagram>, receivers: &[NodeId]) -> Result<(), Problem> {
        if !matches!(self.layout, Layout::Nodes(_)) {
            return Ok(());
        }
        let source = NodeId(self.transfer.source);
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
            return Err(Problem::new("transfer.receivers", message));
        }
        Ok(())
    }

    fn add_transfer(
        &self,
        net: &Network<Datagram>,
        cluster: &mut Cluster,
        receivers: &[NodeId],
    ) -> Result<(), Problem> {
        let plan = &self.transfer;
        let source = NodeId(plan.source);
        match &plan.transport {
            Transport::Pull(_) => {
                return Err(Problem::new("transfer.transport", "pull has a world of its own"));
            }
            Transport::Tcp => {
                cluster.add_tcp(source, receivers, plan.bytes);
            }
            Transport::Push(config) => {
                let forwarding = self.forwarding(net, receivers, None)?;
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

    /// How packets are forwarded: where nothing has failed, or around what is broken at a time.
    fn forwarding(
        &self,
        net: &Network<Datagram>,
        receivers: &[NodeId],
        at: Option<Time>,
    ) -> Result<Option<Forwarding>, Problem> {
        let plan = &self.transfer;
        match &plan.routing {
            Routing::Natural => Ok(self.layout.shufflecast().map(|(fabric, hosts_per_tor)| {
                let source_tor = plan.source / hosts_per_tor;
                Forwarding::Relays(Relays {
                    hosts_per_tor,
                    tors: fabric.tors(),
                    source_tor,
                    relays: recover_source(&fabric, &self.dead_tors(at), source_tor)
                        .relay_set(&fabric, source_tor)
                        .into_iter()
                        .collect(),
                    members: receivers.iter().copied().collect(),
                })
            })),
            Routing::Tree(links) => self.tree(net, links, receivers).map(Some),
            Routing::Labels { filter_bits } => {
                let Some(clos) = self.layout.clos() else {
                    let message = "labels need a fat-tree with 3 layers, a leaf-spine or a clos network";
                    return Err(Problem::new("transfer.routing", message));
                };
                let wrong =
                    |error: &dyn core::fmt::Display| Problem::new("transfer.routing", error.to_string());
                let mut planner = LabelPlanner::new(clos, *filter_bits).map_err(|error| wrong(&error))?;
                let hosts: Vec<u32> = receivers.iter().map(|node| node.0).collect();
                let planned = planner.plan(1, plan.source, &hosts, &self.broken(at));
                let planned = planned.map_err(|error| wrong(&error))?;
                Ok(Some(Forwarding::Labels(Box::new(LabelSwitches::new(planner, &planned)))))
            }
        }
    }

    /// The tree that was given, if it is one and reaches every receiver.
    fn tree(
        &self,
        net: &Network<Datagram>,
        arcs: &[(u32, u32)],
        receivers: &[NodeId],
    ) -> Result<Forwarding, Problem> {
        let mut links: Vec<LinkId> = Vec::new();
        let mut reached = BTreeSet::from([self.transfer.source]);
        for (index, &(from, to)) in arcs.iter().enumerate() {
            let key = format!("transfer.tree[{index}]");
            self.layout.check_node(&key, from)?;
            self.layout.check_node(&key, to)?;
            let Some(link) = net.link_between(NodeId(from), NodeId(to)) else {
                return Err(Problem::new(key, format!("no link leads from {from} to {to}")));
            };
            if !reached.contains(&from) {
                let message =
                    format!("node {from} is not reached yet: begin at the source, {}", self.transfer.source);
                return Err(Problem::new(key, message));
            }
            if !reached.insert(to) {
                return Err(Problem::new(key, format!("node {to} is reached already: this would be a loop")));
            }
            links.push(link);
        }
        match receivers.iter().find(|node| !reached.contains(&node.0)) {
            Some(node) => {
                Err(Problem::new("transfer.tree", format!("it does not reach receiver {}", node.0)))
            }
            None => Ok(Forwarding::Tree(Tree::new(net, &links))),
        }
    }

    fn check_flows(&self) -> Result<(), Problem> {
        for (index, plan) in self.flows.iter().enumerate() {
            self.layout.check_host(&format!("flow[{index}].from"), plan.from)?;
            self.layout.check_host(&format!("flow[{index}].to"), plan.to)?;
            if plan.from == plan.to {
                let message = format!("host {} would send to itself: name another host", plan.to);
                return Err(Problem::new(format!("flow[{index}].to"), message));
            }
        }
        Ok(())
    }

    fn plan_flows(&self, net: &mut Network<Datagram>, cluster: &mut Cluster) -> Result<(), Problem> {
        self.check_flows()?;
        for plan in &self.flows {
            let bytes = plan.bytes.unwrap_or(u64::MAX);
            let flow = cluster.add_flow(Flow::new(NodeId(plan.from), NodeId(plan.to), bytes));
            cluster.plan(net, plan.start, Happening::StartFlow { flow });
        }
        Ok(())
    }

    /// What is broken at a time.
    fn broken_at(&self, at: Option<Time>) -> impl Iterator<Item = Failed> + '_ {
        let is_broken = move |failure: &&FailurePlan| {
            at.is_some_and(|at| failure.at <= at && failure.until.is_none_or(|until| at < until))
        };
        self.failures.iter().filter(is_broken).map(|failure| failure.what)
    }

    /// The same as planners of topologies know it.
    fn broken(&self, at: Option<Time>) -> Failures {
        let mut failures = Failures::none();
        let Layout::Topology(topology) = self.layout else { return failures };
        for what in self.broken_at(at) {
            match what {
                Failed::Node(node) => {
                    failures.fail_node(node);
                }
                Failed::Link { from, to, .. } => {
                    if let Some(port) = topology.port_to(from, to) {
                        failures.fail_link(topology.link(from, port));
                    }
                }
            }
        }
        failures
    }

    /// The ToRs of a Shufflecast that cannot relay: they are down, or their splitters, or the links between.
    fn dead_tors(&self, at: Option<Time>) -> BTreeSet<u32> {
        let Some((fabric, hosts_per_tor)) = self.layout.shufflecast() else { return BTreeSet::new() };
        let (tors, hosts) = (fabric.tors(), fabric.tors() * hosts_per_tor);
        let dead = |what| match what {
            Failed::Node(node) => {
                node.checked_sub(hosts).filter(|place| *place < 2 * tors).map(|place| place % tors)
            }
            Failed::Link { from, to, .. } => {
                from.checked_sub(hosts).filter(|tor| *tor < tors && to == from + tors)
            }
        };
        self.broken_at(at).filter_map(dead).collect()
    }

    /// The transfer's own forwarding is planned anew at `at`, if planners make it.
    fn plan_relabelling(
        &self,
        net: &mut Network<Datagram>,
        cluster: &mut Cluster,
        receivers: &[NodeId],
        at: Time,
    ) {
        let by_planner = match self.transfer.routing {
            Routing::Natural => self.layout.shufflecast().is_some(),
            Routing::Labels { .. } => true,
            Routing::Tree(_) => false,
        };
        if !by_planner || !matches!(self.transfer.transport, Transport::Push(_)) {
            return;
        }
        // Where no receiver can be reached any more the old rules stay.
        if let Ok(Some(forwarding)) = self.forwarding(net, receivers, Some(at)) {
            let (forwarding, members) = (forwarding.into(), receivers.to_vec());
            cluster.plan(net, at, Happening::Relabel { transfer: 0, forwarding, members });
        }
    }

    fn plan_failures(
        &self,
        net: &mut Network<Datagram>,
        cluster: &mut Cluster,
        receivers: &[NodeId],
    ) -> Result<(), Problem> {
        for (index, failure) in self.failures.iter().enumerate() {
            self.check_failure(net, index, failure)?;
            let times = [(Some(failure.at), false), (failure.until, true)];
            for (at, up) in times.into_iter().filter_map(|(at, up)| at.map(|at| (at, up))) {
                match failure.what {
                    Failed::Node(node) => cluster.plan(net, at, Happening::Node { node: NodeId(node), up }),
                    Failed::Link { from, to, one_way } => {
                        let link = net.link_between(NodeId(from), NodeId(to));
                        let back = link.and_then(|link| net.reverse(link)).filter(|_| !one_way);
                        for link in link.into_iter().chain(back) {
                            cluster.plan(net, at, Happening::Link { link, up });
                        }
                    }
                }
                if let Some(after) = failure.reroute_after {
                    cluster.plan(net, at + after, Happening::Reroute);
                    self.plan_relabelling(net, cluster, receivers, at + after);
                }
            }
        }
        Ok(())
    }

    fn check_failure<P: Packet>(
        &self,
        net: &Network<P>,
        index: usize,
        failure: &FailurePlan,
    ) -> Result<(), Problem> {
        match failure.what {
            Failed::Node(node) => self.layout.check_node(&format!("failure[{index}].node"), node)?,
            Failed::Link { from, to, .. } => {
                let key = format!("failure[{index}].link");
                self.layout.check_node(&key, from)?;
                self.layout.check_node(&key, to)?;
                if net.link_between(NodeId(from), NodeId(to)).is_none() {
                    return Err(Problem::new(key, format!("no link leads from {from} to {to}")));
                }
            }
        }
        if failure.until.is_some_and(|until| until <= failure.at) {
            let message = "what fails is repaired later: name a later time than `at`";
            return Err(Problem::new(format!("failure[{index}].until"), message));
        }
        Ok(())
    }

    fn plan_receivers(
        &self,
        net: &mut Network<Datagram>,
        cluster: &mut Cluster,
        receivers: &[NodeId],
    ) -> Result<(), Problem> {
        for (index, plan) in self.receivers.iter().enumerate() {
            let found = receivers.iter().position(|node| node.0 == plan.node);
            let Some(receiver) = found.map(|receiver| receiver as u32) else {
                let message = format!("host {} is no receiver of the transfer", plan.node);
                return Err(Problem::new(format!("receiver[{index}].node"), message));
            };
            if matches!(self.transfer.transport, Transport::Tcp) {
                let message = "only receivers of a push transfer can be slow or crash";
                return Err(Problem::new(format!("receiver[{index}].node"), message));
            }
            let transfer = 0;
            if let Some(service) = plan.service {
                cluster.plan(net, Time::ZERO, Happening::Service { transfer, receiver, service });
            }
            if let Some(at) = plan.crash {
                cluster.plan(net, at, Happening::CrashReceiver { transfer, receiver });
            }
            match (plan.crash, plan.restart) {
                (_, None) => {}
                (Some(crash), Some(restart)) if restart > crash => {
                    cluster.plan(net, restart, Happening::JoinReceiver { transfer, receiver });
                }
                _ => {
                    let message = "a receiver restarts after its `crash`: name a later time";
                    return Err(Problem::new(format!("receiver[{index}].restart"), message));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
