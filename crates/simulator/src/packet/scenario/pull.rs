//! A scenario over the pull transport (Datacast): every node is a caching forwarder.

use super::report::{LinkReport, Probe, ReceiverReport, ReceiverSample, Report};
use super::{Failed, Layout, Problem, Scenario, Transport};
use crate::packet::pull::{Datagram, FlowConfig, Group, PullWorld};
use crate::packet::world::routes::Distances;
use crate::packet::{LinkId, Network, NodeId, Outcome};
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::ops::Range;
use polycast_planning::trees::TreePlanner;
use polycast_protocol::pull::{Blocks, ForwarderConfig, ReceiverInput, Replacement, RetryTime, plan_routes};
use polycast_topology::{Failures, Graph, Network as Topology};
use polycast_types::{Duration, Handle, Rate, Time};

/// Bytes of a hash group of agents.
const GROUP_BYTES: u32 = 1 << 18;

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
    /// The rate of each tree at first; the paper's for the slowest link if `None`.
    pub initial_rate: Option<Rate>,
    /// δ: what is added to the rate after each interval without a duplicate interest.
    pub increase: Option<Rate>,
    /// T: that interval.
    pub interval: Option<Duration>,
    /// σ: how much may be sent at once after a pause, in bytes.
    pub burst_bytes: Option<u32>,
    /// After how long a receiver asks again: the paper's retransmission time-out.
    pub retry: Option<Duration>,
    /// How many packets that were asked for later come before one that counts as lost; 0 as in the paper: none is counted.
    pub overtaken: u32,
    /// Whether the source takes single losses for chance while it sees no queue; not in the paper.
    pub chance: bool,
    /// Whether receivers pull the lists of packets' names too, as agents do; the paper's names need no list.
    pub lists: bool,
    /// Interests that may be pending at a node.
    pub pending_interests: u32,
    /// Which packet a full content store forgets.
    pub replacement: Replacement,
    /// No more trees than this.
    pub trees_max: Option<u32>,
    /// Bytes of a packet beside its payload.
    pub header_bytes: Option<u16>,
}

impl Default for PullConfig {
    fn default() -> Self {
        PullConfig {
            payload_bytes: 1_428,
            block_bytes: 100_000_000,
            credits: 32,
            store_packets: 2_048,
            initial_rate: None,
            increase: None,
            interval: None,
            burst_bytes: None,
            retry: None,
            overtaken: 3,
            chance: true,
            lists: false,
            pending_interests: 1 << 16,
            replacement: Replacement::default(),
            trees_max: None,
            header_bytes: None,
        }
    }
}

impl PullConfig {
    /// The settings of a node.
    fn node(&self, ports: u8) -> ForwarderConfig {
        ForwarderConfig {
            store_packets: self.store_packets,
            pending_interests: self.pending_interests,
            replacement: self.replacement,
            ..ForwarderConfig::for_ports(ports)
        }
    }
}

/// What happens in the course of a run.
enum Action {
    Start,
    Links(Vec<LinkId>, bool),
    /// The trees are planned anew around what is down.
    Replan,
    Flow(usize),
    /// A receiver by its place in the group; whether it comes back.
    Crash(usize, bool),
    Restart(usize),
}

/// A run, and what it needs to bring about what was planned.
struct Run<'a, 'p> {
    scenario: &'a Scenario,
    topology: Topology,
    planner: TreePlanner,
    net: Network<Datagram>,
    world: PullWorld,
    group: Group,
    config: PullConfig,
    /// What receivers that have crashed had stored.
    stored: BTreeMap<usize, Vec<Range<u64>>>,
    probe: Option<Probe<'p>>,
}

impl Scenario {
    /// Runs a transfer by pull.
    pub(super) fn run_pull(
        &self,
        config: &PullConfig,
        seed: u64,
        probe: Option<Probe<'_>>,
    ) -> Result<Report, Problem> {
        let Layout::Topology(topology) = self.layout else {
            let message = "pull needs a topology by name, such as bcube:4,2, for its trees";
            return Err(Problem::new("transfer.transport", message));
        };
        self.refuse_what_pull_has_not()?;
        let net: Network<Datagram> = self.layout.build(self.links, &self.changes, seed)?;
        let receivers: Vec<u32> = self.check_transfer()?.into_iter().map(|node| node.0).collect();
        let plan = &self.transfer;
        let blocks = Blocks::new(plan.bytes, config.payload_bytes, config.block_bytes)
            .ok_or_else(|| Problem::new("pull", "a payload and a block hold at least one byte"))?;
        let lists = if config.lists { blocks.with_lists(GROUP_BYTES) } else { Some(blocks) };
        let blocks = lists.ok_or_else(|| {
            Problem::new("pull.payload", "packets that carry lists of names hold at least 64 bytes")
        })?;
        let mut planner = TreePlanner::new(topology);
        let slowest = (0..net.link_count()).map(|link| net.rate(LinkId(link)).0).min().unwrap_or(1);
        let group = Group::plan(&mut planner, plan.source, &receivers, blocks, slowest);
        let mut group = group.map_err(|error| Problem::new("transfer", error.to_string()))?;
        group.credits = config.credits.max(1);
        group.rate.initial_bps = config.initial_rate.map_or(group.rate.initial_bps, |rate| rate.0);
        group.rate.increase_bps = config.increase.map_or(group.rate.increase_bps, |rate| rate.0);
        group.rate.interval = config.interval.unwrap_or(group.rate.interval);
        group.rate.depth_bytes = config.burst_bytes.unwrap_or(group.rate.depth_bytes);
        group.retry = config.retry.map_or(group.retry, RetryTime::Fixed);
        group.chance = config.chance;
        group.overtaken = (config.overtaken > 0).then_some(config.overtaken);
        group.header_bytes = config.header_bytes.unwrap_or(group.header_bytes);
        if let Some(most) = config.trees_max {
            group.routes.iter_mut().for_each(|routes| routes.truncate(most as usize));
        }
        let world = PullWorld::new(&topology, group.header_bytes, |_, ports| config.node(ports));
        let mut actions = self.pull_failures(&net)?;
        actions.push((plan.start, Action::Start));
        self.check_flows()?;
        actions.extend(self.flows.iter().enumerate().map(|(index, flow)| (flow.start, Action::Flow(index))));
        self.pull_receivers(&group, &mut actions)?;
        actions.sort_by_key(|&(at, ..)| at);
        let stored = BTreeMap::new();
        let mut run =
            Run { scenario: self, topology, planner, net, world, group, config: *config, stored, probe };
        run.until_the_end(actions);
        Ok(report(&run.net, &run.world, &run.group))
    }

    /// What happens to receivers.
    fn pull_receivers(&self, group: &Group, actions: &mut Vec<(Time, Action)>) -> Result<(), Problem> {
        for (index, plan) in self.receivers.iter().enumerate() {
            let key = |name: &str| format!("receiver[{index}].{name}");
            let Some(at) = group.receivers.iter().position(|&node| node == plan.node) else {
                let message = format!("host {} is no receiver of this transfer", plan.node);
                return Err(Problem::new(key("node"), message));
            };
            if plan.service.is_some() {
                let message = "this goes with the transport push only: take it out, or change the transport";
                return Err(Problem::new(key("service"), message));
            }
            if let (None, Some(_)) = (plan.crash, plan.restart) {
                return Err(Problem::new(
                    key("restart"),
                    "a receiver that comes back has crashed before: write `crash` too",
                ));
            }
            if plan.restart.is_some_and(|restart| Some(restart) <= plan.crash) {
                return Err(Problem::new(key("restart"), "name a later time than `crash`"));
            }
            actions.extend(plan.crash.map(|time| (time, Action::Crash(at, plan.restart.is_some()))));
            actions.extend(plan.restart.map(|time| (time, Action::Restart(at))));
        }
        Ok(())
    }

    fn refuse_what_pull_has_not(&self) -> Result<(), Problem> {
        if self.optical.is_empty() {
            return Ok(());
        }
        Err(Problem::new(
            "optical",
            "this goes with the transports push and tcp only: take it out, or change the transport",
        ))
    }

    fn pull_failures(&self, net: &Network<Datagram>) -> Result<Vec<(Time, Action)>, Problem> {
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
            let changes = [(Some(failure.at), false), (failure.until, true)];
            for (at, up) in changes.into_iter().filter_map(|(at, up)| at.map(|at| (at, up))) {
                planned.push((at, Action::Links(links.clone(), up)));
                planned.extend(failure.reroute_after.map(|after| (at + after, Action::Replan)));
            }
        }
        Ok(planned)
    }
}

impl Run<'_, '_> {
    /// A world of pull nodes plans nothing: the run is cut where something happens.
    fn until_the_end(&mut self, actions: Vec<(Time, Action)>) {
        self.through(actions);
        if let Some(probe) = &mut self.probe {
            probe.end(&self.net, delivered(&self.world, &self.group));
        }
    }

    fn until(&mut self, at: Time) -> Outcome {
        let Run { net, world, group, probe, .. } = self;
        match probe {
            Some(probe) => probe.run(net, world, at, |world| delivered(world, group)),
            None => net.run(world, at),
        }
    }

    fn through(&mut self, actions: Vec<(Time, Action)>) {
        let mut started = false;
        for (at, action) in actions.into_iter().filter(|&(at, ..)| at < self.scenario.time_limit) {
            if self.until(at) == Outcome::Stopped && started {
                return;
            }
            started |= matches!(action, Action::Start);
            self.act(action);
            if started && self.world.missing() == 0 {
                return;
            }
        }
        if self.world.missing() > 0 {
            self.until(self.scenario.time_limit);
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Start => self.world.start(&mut self.net, &self.group),
            Action::Links(links, up) => links.into_iter().for_each(|link| self.net.set_up(link, up)),
            Action::Replan => self.replan(),
            Action::Flow(index) => self.begin_flow(index),
            Action::Crash(at, comes_back) => {
                let node = self.group.receivers[at];
                let ports = self.topology.port_count(node).min(255) as u8;
                let config = self.config.node(ports);
                let stored = self.world.crash_receiver(&self.group, at, config, comes_back);
                self.stored.insert(at, stored.unwrap_or_default());
            }
            Action::Restart(at) => {
                let stored = self.stored.remove(&at).unwrap_or_default();
                self.world.rejoin_receiver(&mut self.net, &self.group, at, &stored);
            }
        }
    }

    /// A connection along a shortest path over what is up.
    fn begin_flow(&mut self, index: usize) {
        let plan = &self.scenario.flows[index];
        let (from, to) = (NodeId(plan.from), NodeId(plan.to));
        // A flow without a way sends nothing.
        let Some(links) = Distances::from(&self.net, from).path(&self.net, to, index as u64) else { return };
        let nodes =
            core::iter::once(from).chain(links.into_iter().map(|link| self.net.ends(link).1)).collect();
        let bytes = plan.bytes.unwrap_or(u64::MAX);
        let config = FlowConfig { nodes, tcp: self.scenario.tcp, header_bytes: 52, bytes };
        self.world.open_flow(&mut self.net, &config);
    }

    /// Plans the trees around the links that are down and tells the receivers whose way has changed. Where no receiver
    /// can be reached the old ways stay.
    fn replan(&mut self) {
        let mut failures = Failures::none();
        for link in (0..self.net.link_count()).map(LinkId).filter(|&link| !self.net.is_up(link)) {
            let (from, to) = self.net.ends(link);
            if let Some(port) = self.topology.port_to(from.0, to.0) {
                failures.fail_link(self.topology.link(from.0, port));
            }
        }
        let Ok(plan) = self.planner.plan(self.group.source, &self.group.receivers, &failures) else { return };
        let Ok(routes) = plan_routes(&plan, self.planner.graph()) else { return };
        for (receiver, routes) in plan.receivers.iter().zip(routes) {
            let Some(at) = self.group.receivers.iter().position(|node| node == receiver) else { continue };
            for tree in 0..self.group.routes[at].len() {
                let route = routes.get(tree).copied();
                if self.group.routes[at][tree] != route {
                    self.group.routes[at][tree] = route;
                    let input = ReceiverInput::Rerouted { tree: tree as u8, route };
                    self.world.tell(&mut self.net, *receiver, self.group.transfer, input);
                }
            }
        }
    }
}

fn delivered(world: &PullWorld, group: &Group) -> Vec<ReceiverSample> {
    let bytes = |node| {
        let packets = world.node(node).receiver(group.transfer).map_or(0, |(machine, _)| machine.packets());
        (packets * u64::from(group.blocks.length_of(0))).min(group.blocks.object_bytes())
    };
    group.receivers.iter().map(|&node| ReceiverSample { id: node, bytes: bytes(node) }).collect()
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
            let breach = found.and_then(|(machine, log)| log.breach(machine));
            breaches.extend(breach.map(|breach| format!("receiver {node}: {breach}")));
            let failure = finished_at.is_none().then(|| "not done when the run ended".to_string());
            ReceiverReport { id: node, finished_at, failure }
        })
        .collect();
    let source = world.node(group.source).source(transfer);
    let duplicates = source
        .map_or(0, |source| (0..group.trees()).map(|tree| source.counters(tree as u8).duplicates).sum());
    let links: Vec<LinkReport> = super::report::links(net);
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
