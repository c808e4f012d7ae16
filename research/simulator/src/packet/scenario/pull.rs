//! A scenario over the pull transport (Datacast): every node is a caching forwarder.

use super::detection::failures;
use super::report::{LinkReport, Probe, ReceiverReport, ReceiverSample, Report, Trees, last_of, transfers};
use super::{Failed, Layout, Problem, Scenario, Transport};
use crate::Agenda;
use crate::packet::pull::{Datagram, FlowConfig, Group, GroupError, LinkNews, PullWorld};
use crate::packet::world::routes::Distances;
use crate::packet::{LinkId, Network, NodeId, Outcome};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::ops::Range;
use polycast_planning::trees::{SteinerTree, TreePlanner};
use polycast_protocol::pull::{
    Blocks, ForwarderConfig, ReceiverInput, Replacement, RetryTime, Route, plan_routes,
};
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
    /// Interests that a receiver has out in each tree (w).
    pub credits: u32,
    /// Packets that a node's content store holds.
    pub store_packets: u32,
    /// The rate of each tree at first; the paper's for the slowest link if `None`.
    pub initial_rate: Option<Rate>,
    /// Amount that is added to the rate after each interval without a duplicate interest (δ).
    pub increase: Option<Rate>,
    /// Length of that interval (T).
    pub interval: Option<Duration>,
    /// Number of bytes that may be sent at once after a pause (σ).
    pub burst_bytes: Option<u32>,
    /// Time after which a receiver requests again: the paper's retransmission timeout.
    pub retry: Option<Duration>,
    /// Packets requested later that come before one that counts as lost; 0 as in the paper: none is counted.
    pub overtaken: u32,
    /// Set for the source to take single losses for chance while it sees no queue; not in the paper.
    pub chance: bool,
    /// Set for receivers to pull lists of packets' names too, as agents do; the paper's names need no list.
    pub lists: bool,
    /// Interests that may be pending at a node.
    pub pending_interests: u32,
    /// Rule for the packet that a full content store forgets.
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

/// Action in the course of a run.
enum Action {
    /// A transfer starts, by its number.
    Start(usize),
    Links(Vec<LinkId>, bool),
    /// The trees are planned anew around what is down.
    Replan,
    /// The manager hears what one end says of its link.
    Report(LinkNews),
    /// A receiver hears of its new routes.
    Reroute {
        group: usize,
        receiver: usize,
        routes: Vec<Option<Route>>,
    },
    Flow(usize),
    /// A host by its number; whether it comes back.
    Crash(u32, bool),
    Restart(u32),
}

/// Returns the rate of the slowest link of a tree, in bits a second.
fn slowest_in(tree: &SteinerTree, net: &Network<Datagram>) -> u64 {
    let links = tree.nodes.iter().filter_map(|to| net.link_between(NodeId(to.parent), NodeId(to.node)));
    links.map(|link| net.rate(link).0).min().unwrap_or(0)
}

/// A run, and what it needs to bring about what was planned.
struct Run<'a, 'p> {
    scenario: &'a Scenario,
    topology: Topology,
    planner: TreePlanner,
    net: Network<Datagram>,
    world: PullWorld,
    groups: Vec<Group>,
    /// Number of transfers that have not begun.
    to_start: usize,
    actions: Agenda<Action>,
    /// By transfer and place in its group, what receivers that have crashed had stored.
    stored: BTreeMap<(usize, usize), Vec<Range<u64>>>,
    /// Links that the manager takes for down: both directions of each, by who has said so.
    down: BTreeSet<LinkId>,
    probe: Option<Probe<'p>>,
}

impl Scenario {
    /// Runs transfers by pull.
    pub(super) fn run_pull(&self, seed: u64, probe: Option<Probe<'_>>) -> Result<Report, Problem> {
        let Layout::Topology(topology) = self.layout else {
            let message = "pull needs a topology by name, such as bcube:4,2, for its trees";
            return Err(Problem::new(self.transfer_key(0, "transport"), message));
        };
        self.refuse_what_pull_has_not()?;
        self.check_detection()?;
        let mut net: Network<Datagram> = self.layout.build(self.links, &self.changes, seed)?;
        let members = self.check_transfers()?;
        let mut planner = TreePlanner::new(topology);
        let planned = members.iter().enumerate();
        let planned: Vec<(Group, Trees)> = planned
            .map(|(index, members)| self.pull_group(&mut planner, &net, index, members))
            .collect::<Result<_, _>>()?;
        let (groups, trees): (Vec<Group>, Vec<Trees>) = planned.into_iter().unzip();
        let config = self.pull_config(0);
        let header_bytes = groups[0].header_bytes;
        let mut world = PullWorld::new(&topology, header_bytes, |_, ports| config.node(ports));
        let mut actions = self.pull_failures(&net)?;
        actions.extend(self.transfers.iter().enumerate().map(|(at, plan)| (plan.start, Action::Start(at))));
        self.check_flows()?;
        actions.extend(self.flows.iter().enumerate().map(|(index, flow)| (flow.start, Action::Flow(index))));
        self.pull_receivers(&members, &mut actions)?;
        if let Some(detection) = &self.detection {
            world.greet(&mut net, detection.neighbour());
        }
        let mut run = Run {
            scenario: self,
            topology,
            planner,
            net,
            world,
            to_start: groups.len(),
            groups,
            actions: actions.into_iter().collect(),
            stored: BTreeMap::new(),
            down: BTreeSet::new(),
            probe,
        };
        run.until_the_end();
        let mut report = report(self, &run.net, &run.world, &run.groups);
        report.transfers.iter_mut().zip(trees).for_each(|(transfer, trees)| transfer.trees = Some(trees));
        Ok(report)
    }

    /// A transfer's group, with its own settings, and its trees.
    fn pull_group(
        &self,
        planner: &mut TreePlanner,
        net: &Network<Datagram>,
        index: usize,
        members: &[NodeId],
    ) -> Result<(Group, Trees), Problem> {
        let (plan, config) = (&self.transfers[index], self.pull_config(index));
        let receivers: Vec<u32> = members.iter().map(|node| node.0).collect();
        let blocks = Blocks::new(plan.bytes, config.payload_bytes, config.block_bytes)
            .ok_or_else(|| Problem::new("pull", "a payload and a block hold at least one byte"))?;
        let lists = if config.lists { blocks.with_lists(GROUP_BYTES) } else { Some(blocks) };
        let blocks = lists.ok_or_else(|| {
            Problem::new("pull.payload", "packets that carry lists of names hold at least 64 bytes")
        })?;
        let key = if self.transfers.len() == 1 { "transfer".into() } else { format!("transfer[{index}]") };
        let wrong = |error: GroupError| Problem::new(key.clone(), error.to_string());
        let planned = planner.plan(plan.source, &receivers, &Failures::none());
        let planned = planned.map_err(|error| wrong(error.into()))?;
        let slowest_bps = (0..net.link_count()).map(|link| net.rate(LinkId(link)).0).min().unwrap_or(1);
        let mut group = Group::with_plan(&planned, planner, blocks, slowest_bps).map_err(wrong)?;
        group.transfer = Handle(index as u64 + 1);
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
        let used = &planned.trees[..group.trees()];
        let rate_bps = used.iter().map(|tree| slowest_in(tree, net)).sum();
        Ok((group, Trees { count: used.len() as u32, rate: Rate(rate_bps) }))
    }

    /// Plans the crashes and restarts of receivers.
    fn pull_receivers(
        &self,
        members: &[Vec<NodeId>],
        actions: &mut Vec<(Time, Action)>,
    ) -> Result<(), Problem> {
        for (index, plan) in self.receivers.iter().enumerate() {
            self.places_of(index, plan, members)?;
            if plan.service.is_some() {
                let message = "this goes with the transport push only: take it out, or change the transport";
                return Err(Problem::new(format!("receiver[{index}].service"), message));
            }
            actions.extend(plan.crash.map(|time| (time, Action::Crash(plan.node, plan.restart.is_some()))));
            actions.extend(plan.restart.map(|time| (time, Action::Restart(plan.node))));
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
    fn until_the_end(&mut self) {
        self.through();
        if let Some(probe) = &mut self.probe {
            probe.end(&self.net, delivered(&self.world, &self.groups));
        }
    }

    fn until(&mut self, at: Time) -> Outcome {
        let Run { net, world, groups, probe, .. } = self;
        match probe {
            Some(probe) => probe.run(net, world, at, |world| delivered(world, groups)),
            None => net.run(world, at),
        }
    }

    fn is_over(&self) -> bool {
        self.to_start == 0 && self.world.missing() == 0
    }

    fn through(&mut self) {
        let limit = self.scenario.time_limit;
        while !self.is_over() {
            let next = self.actions.next_at().filter(|&at| at < limit);
            let outcome = self.until(next.unwrap_or(limit));
            self.hear_news();
            match (outcome, next) {
                // Something was found out, or the transfers that have begun are over.
                (Outcome::Stopped, _) => {}
                (_, None) => return,
                (_, Some(at)) => {
                    self.net.pass_until(at);
                    // What was found out may have put something before it.
                    while let Some((_, action)) = self.actions.next_until(at) {
                        self.act(action);
                        self.hear_news();
                        if self.is_over() {
                            return;
                        }
                    }
                }
            }
        }
    }

    /// Plans the arrival, after a while, of reports from ends of links at the manager.
    fn hear_news(&mut self) {
        let Some(detection) = &self.scenario.detection else { return };
        let at = self.net.now() + detection.control_delay;
        for news in self.world.take_news() {
            self.actions.plan(at, Action::Report(news));
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Start(index) => {
                self.to_start -= 1;
                self.world.start(&mut self.net, &self.groups[index]);
            }
            Action::Links(links, up) => self.set_links(&links, up),
            Action::Replan => {
                let down = (0..self.net.link_count()).map(LinkId).filter(|&link| !self.net.is_up(link));
                for (group, receiver, routes) in self.routes_around(&down.collect()) {
                    self.reroute(group, receiver, &routes);
                }
            }
            Action::Report(news) => self.report(news),
            Action::Reroute { group, receiver, routes } => self.reroute(group, receiver, &routes),
            Action::Flow(index) => self.begin_flow(index),
            Action::Crash(node, comes_back) => self.crash(node, comes_back),
            Action::Restart(node) => {
                for (group, at) in self.places(node) {
                    let stored = self.stored.remove(&(group, at)).unwrap_or_default();
                    self.world.rejoin_receiver(&mut self.net, &self.groups[group], at, &stored);
                }
            }
        }
    }

    fn set_links(&mut self, links: &[LinkId], up: bool) {
        for &link in links {
            self.net.set_up(link, up);
            if self.scenario.detection.is_some_and(|detection| detection.carrier) {
                self.world.set_carrier(&mut self.net, link, up);
            }
        }
    }

    /// The transfers that a host is a receiver of, and its place in each.
    fn places(&self, node: u32) -> Vec<(usize, usize)> {
        let place = |(at, group): (usize, &Group)| {
            group.receivers.iter().position(|&other| other == node).map(|place| (at, place))
        };
        self.groups.iter().enumerate().filter_map(place).collect()
    }

    /// A host crashes: its forwarder and its receivers in all transfers.
    fn crash(&mut self, node: u32, comes_back: bool) {
        let places = self.places(node);
        let ports = self.topology.port_count(node).min(255) as u8;
        let config = self.scenario.pull_config(0).node(ports);
        let held = self.world.crash_host(&self.groups, &places, config, comes_back);
        for (place, held) in places.into_iter().zip(held) {
            if let Some(held) = held {
                self.stored.insert(place, held);
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

    /// The manager hears from one end of a link. Where that changes what it takes for down, it plans anew,
    /// and receivers hear of that after a while.
    fn report(&mut self, news: LinkNews) {
        let changed = if news.up { self.down.remove(&news.link) } else { self.down.insert(news.link) };
        let Some(detection) = self.scenario.detection.filter(|_| changed) else { return };
        let at = self.net.now() + detection.control_delay;
        for (group, receiver, routes) in self.routes_around(&self.down.clone()) {
            self.actions.plan(at, Action::Reroute { group, receiver, routes });
        }
    }

    /// Plans the trees of all transfers around the links that are down: transfer, place of a receiver, and
    /// its routes. Where no receiver can be reached the old ways stay.
    fn routes_around(&mut self, down: &BTreeSet<LinkId>) -> Vec<(usize, usize, Vec<Option<Route>>)> {
        let failures = failures(&self.topology, &self.net, down);
        let mut found = Vec::new();
        for (index, group) in self.groups.iter().enumerate() {
            let Ok(plan) = self.planner.plan(group.source, &group.receivers, &failures) else { continue };
            let Ok(routes) = plan_routes(&plan, self.planner.graph()) else { continue };
            for (receiver, routes) in plan.receivers.iter().zip(routes) {
                let Some(at) = group.receivers.iter().position(|node| node == receiver) else { continue };
                found.push((index, at, routes.into_iter().map(Some).collect()));
            }
        }
        found
    }

    /// Tells a receiver the ways that have changed.
    fn reroute(&mut self, group: usize, at: usize, routes: &[Option<Route>]) {
        let (receiver, transfer) = (self.groups[group].receivers[at], self.groups[group].transfer);
        for tree in 0..self.groups[group].routes[at].len() {
            let route = routes.get(tree).copied().flatten();
            if self.groups[group].routes[at][tree] != route {
                self.groups[group].routes[at][tree] = route;
                let input = ReceiverInput::Rerouted { tree: tree as u8, route };
                self.world.tell(&mut self.net, receiver, transfer, input);
            }
        }
    }
}

fn delivered(world: &PullWorld, groups: &[Group]) -> Vec<ReceiverSample> {
    let mut samples = Vec::new();
    for (group, transfer) in groups.iter().zip(0..) {
        let bytes = |node| {
            let found = world.node(node).receiver(group.transfer);
            let packets = found.map_or(0, |(machine, _)| machine.packets());
            (packets * u64::from(group.blocks.length_of(0))).min(group.blocks.object_bytes())
        };
        let sample = |&node: &u32| ReceiverSample { transfer, id: node, bytes: bytes(node) };
        samples.extend(group.receivers.iter().map(sample));
    }
    samples
}

fn report(scenario: &Scenario, net: &Network<Datagram>, world: &PullWorld, groups: &[Group]) -> Report {
    let mut breaches: Vec<String> = Vec::new();
    let mut receivers: Vec<ReceiverReport> = Vec::new();
    let mut duplicates = 0;
    for (group, transfer) in groups.iter().zip(0..) {
        for &node in &group.receivers {
            let found = world.node(node).receiver(group.transfer);
            let finished_at = found.and_then(|(_, log)| log.finished_at);
            if finished_at.is_some() && !found.is_some_and(|(machine, _)| machine.is_complete()) {
                breaches.push(format!("receiver {node} is done, but lacks packets"));
            }
            let breach = found.and_then(|(machine, log)| log.breach(machine));
            breaches.extend(breach.map(|breach| format!("receiver {node}: {breach}")));
            let failure = finished_at.is_none().then(|| "not done when the run ended".to_string());
            receivers.push(ReceiverReport { transfer, id: node, finished_at, failure });
        }
        if let Some(source) = world.node(group.source).source(group.transfer) {
            let trees = 0..group.trees();
            duplicates += trees.map(|tree| source.counters(tree as u8).duplicates).sum::<u64>();
        }
    }
    let links: Vec<LinkReport> = super::report::links(net);
    Report {
        finished_at: last_of(&receivers),
        transfers: transfers(scenario, &receivers),
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
    /// The settings of a transfer by pull.
    fn pull_config(&self, index: usize) -> PullConfig {
        match &self.transfers[index].transport {
            Transport::Pull(config) => *config,
            _ => unreachable!("all transfers of this world are by pull"),
        }
    }
}
