//! The fabric `orca`: a Clos network whose switches forward by labels (Orca, section 3).
//!
//! A group holds a multicast address, whose number is the session's, and the entries that spines need for it.
//! Servers keep the leaf labels. With pod labels no switch keeps anything, and some servers keep a spine
//! label more.

mod packets;

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::net::IpAddr;

use polycast_topology::{Clos, Failures, Graph, Node};
use polycast_types::{Duration, Rate};

use crate::fabric::{Fabric, Replan, replan_each};
use crate::fabric_name::FabricName;
use crate::held::{Network, Row};
use crate::ip_multicast::{AddressPool, resource};
use crate::labels::pod_labels::{self, PodLabelFormat, SPINE_LABEL_LEN_MAX};
use crate::labels::{
    Encoding, Label, LabelError, LabelFormat, LabelOptions, LabelPlan, LabelPlanner, PodLeafs, SpineState,
};
use crate::network_state::NetworkState;
use crate::part::Part;
use crate::places::{PlaceError, Places};
use crate::plan::{Channel, DeviceCommand, Failure, Group, HostId, Plan, PlanId, Refusal, Resource};
use crate::shared::Uses;

/// Configuration of the fabric.
#[derive(Clone, Copy, Debug)]
pub struct OrcaConfig {
    /// The network.
    pub clos: Clos,
    /// Options of the labels.
    pub labels: LabelOptions,
    /// Way in which labels name leafs; `None` chooses for each session: pod labels where they name all its
    /// pods, else the filter, and pod labels again where spines have no room for the entries that the filter
    /// needs.
    pub encoding: Option<Encoding>,
    /// Number of entries that a spine's table holds.
    pub entries_max: u32,
    /// Maximum number of trees of a session through different cores (appendix A.4); pod labels have one.
    pub trees: u32,
    /// True if the source gets reports from racks and not from hosts (appendix A.4).
    pub rack_feedback: bool,
    /// Rate of a transfer on a network that is ours alone; without it transfers share the network and adapt.
    pub rate: Option<Rate>,
}

/// A network that this fabric cannot use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OrcaError {
    /// About the labels.
    #[error(transparent)]
    Label(#[from] LabelError),
    /// A source label names not even the leafs of the source's own pod.
    #[error(
        "a label of {0} bytes has no place for the leafs of a pod: set a larger orca.filter-bits, or \
         orca.encoding = \"filter\""
    )]
    NoPlaceForPods(u32),
    /// About the places.
    #[error(transparent)]
    Place(#[from] PlaceError),
}

/// The group of a session, its address, and the server of its source.
type To<'a> = (&'a Group, (IpAddr, u16), Node);

/// Receivers that a label has to reach.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reach {
    All,
    /// Receivers that failures have not cut off from all others.
    Connected,
}

/// The fabric.
#[derive(Clone, Debug)]
pub struct Orca {
    config: OrcaConfig,
    places: Places,
    pool: AddressPool,
    format: LabelFormat,
    pods: PodLabelFormat,
    /// Room to work in: plans depend on the network's state alone.
    planner: RefCell<LabelPlanner>,
}

impl Orca {
    /// Its name.
    pub const NAME: FabricName = FabricName::new("orca");

    /// The fabric, with the server of every host.
    ///
    /// # Errors
    /// If labels are not for such a network, or places are wrong.
    pub fn new(
        config: OrcaConfig,
        hosts: impl IntoIterator<Item = (HostId, u32)>,
        pool: AddressPool,
    ) -> Result<Self, OrcaError> {
        let planner = LabelPlanner::with_options(config.clos, config.labels)?;
        let pods = PodLabelFormat::new(&config.clos, planner.format().bytes())?;
        if pods.slots() == 0 && config.encoding != Some(Encoding::Filter) {
            return Err(OrcaError::NoPlaceForPods(pods.bytes()));
        }
        let places = Places::new(config.clos.hosts(), hosts)?;
        let format = *planner.format();
        Ok(Orca { config, places, pool, format, pods, planner: RefCell::new(planner) })
    }

    /// A node of the network, for failures.
    #[must_use]
    pub fn node(node: Node) -> Part {
        Part::Node { fabric: Self::NAME, node }
    }

    /// A link of the network, for failures.
    #[must_use]
    pub fn link(one: Node, other: Node) -> Part {
        Part::link(Self::NAME, one, other)
    }

    fn plan_at(
        &self,
        network: &NetworkState,
        group: &Group,
        address: (IpAddr, u16),
        reach: Reach,
        (encoding, asks, keep): (Option<Encoding>, Option<u32>, impl Fn(&LabelPlan) -> bool),
    ) -> Result<Plan, Refusal> {
        let (source, receivers) = self.places.of_group(Self::NAME, group)?;
        let servers: Vec<Node> = receivers.iter().map(|(_, server)| *server).collect();
        let failures = failures_of(Self::NAME, network, &self.config.clos);
        let session = session_of(address.0);
        let mut planner = self.planner.borrow_mut();
        planner.count_anew(network.entries_held());
        let impossible = |error: LabelError| Refusal::Impossible(format!("{error}"));
        let best = planner.plan(session.into(), source, &servers, &failures).map_err(impossible)?;
        let is_missed = |server: &Node| {
            best.left_out.contains(server) && (reach == Reach::All || !self.is_cut_off(*server, &failures))
        };
        if servers.iter().any(is_missed) {
            let out = |(host, server): &(HostId, u32)| is_missed(server).then_some(host.0);
            let hosts: Vec<u32> = receivers.iter().filter_map(out).collect();
            return Err(Refusal::Impossible(format!(
                "failures leave no label that reaches the hosts {hosts:?} together with the others"
            )));
        }
        let trees = self.config.trees.max(1);
        let all = self.config.clos.spines_per_pod() * self.config.clos.cores_per_spine().max(1);
        let mut others =
            || planner.plan_trees(session.into(), source, &servers, &failures, all).map_err(impossible);
        let to = (group, address, source);
        let names_all = trees == 1 && self.pods.beyond(&best.tree).next().is_none();
        if encoding == Some(Encoding::Pods) || encoding.is_none() && names_all {
            return self.by_pods(to, best, &mut others, (asks, keep), &failures);
        }
        let slots = if keep(&best) { self.slots(network, &best.spine_state) } else { None };
        if let (Some(slots), 1) = (&slots, trees) {
            return Ok(self.by_filter(to, &[best], slots.clone()));
        }
        // The tables on the best way are full, another way is asked for, or several are: the others may do.
        let left_out = best.left_out.clone();
        let mut chosen: Vec<LabelPlan> = if slots.is_some() { vec![best.clone()] } else { Vec::new() };
        let mut slots = slots.unwrap_or_default();
        for other in others()? {
            let is_new = chosen.iter().all(|plan| plan.tree.path != other.tree.path);
            let is_wanted = is_new && other.left_out == left_out && (!chosen.is_empty() || keep(&other));
            if is_wanted && chosen.len() < trees as usize {
                // An entry keeps packets off a leaf that no tree of the session has: it does for all of them.
                let states = chosen.iter().chain([&other]).flat_map(|plan| plan.spine_state.iter().copied());
                let state: Vec<SpineState> = states.collect::<BTreeSet<_>>().into_iter().collect();
                if let Some(enough) = self.slots(network, &state) {
                    slots = enough;
                    chosen.push(other);
                }
            }
        }
        if chosen.is_empty() {
            let full = self.full(network, &best.spine_state);
            let by_pods = || self.by_pods(to, best, &mut others, (asks, keep), &failures);
            return if encoding.is_none() { by_pods().map_err(|_| full) } else { Err(full) };
        }
        Ok(self.by_filter(to, &chosen, slots))
    }

    fn by_filter(&self, to: To<'_>, plans: &[LabelPlan], slots: Vec<Resource>) -> Plan {
        let session = session_of(to.1.0);
        let states: BTreeSet<_> = plans.iter().flat_map(|plan| &plan.spine_state).collect();
        let entry =
            |entry: &SpineState| DeviceCommand::SpineEntry { spine: entry.spine, session, leaf: entry.leaf };
        let commands = states.into_iter().map(entry).collect();
        let labels = plans.iter().map(|plan| plan.label.clone()).collect();
        self.with(to, plans, (Encoding::Filter, labels), (slots, commands, Vec::new()))
    }

    /// By the best way that has a leaf to ask, where one has to be asked: this one, if a label names it
    /// already.
    fn by_pods(
        &self,
        to: To<'_>,
        best: LabelPlan,
        others: &mut impl FnMut() -> Result<Vec<LabelPlan>, Refusal>,
        (asks, keep): (Option<u32>, impl Fn(&LabelPlan) -> bool),
        failures: &Failures,
    ) -> Result<Plan, Refusal> {
        let session = session_of(to.1.0);
        let asked = |plan: &LabelPlan| {
            let asked = self.asked_leaf(session, plan, asks, failures).filter(|_| keep(plan))?;
            Some((plan.clone(), asked))
        };
        let left_out = best.left_out.clone();
        let found = match asked(&best) {
            None => others()?.iter().filter(|plan| plan.left_out == left_out).find_map(asked),
            found => found,
        };
        let (plan, asked) = found.ok_or_else(|| {
            Refusal::Impossible("failures leave no leaf that the spines of all pods can ask".into())
        })?;
        let pods = pod_labels::encode(&self.pods, &plan, asked);
        let spine_label = |pod: &PodLeafs| {
            let leaf = pod.pod * self.config.clos.leafs_per_pod() + asked;
            (leaf, self.pods.spine_label(plan.tree.path.plane, pod.leafs))
        };
        let spine_labels = pods.spine_labels.iter().map(spine_label).collect();
        let kept = (Vec::new(), Vec::new(), spine_labels);
        Ok(self.with(to, &[plan], (Encoding::Pods, vec![pods.label]), kept))
    }

    /// A leaf that the spines can ask whose pods have no place in the label; only this one, if one is given.
    fn asked_leaf(
        &self,
        session: u32,
        plan: &LabelPlan,
        only: Option<u32>,
        failures: &Failures,
    ) -> Option<u32> {
        let (clos, plane) = (&self.config.clos, plan.tree.path.plane);
        let beyond: Vec<u32> = self.pods.beyond(&plan.tree).map(|pod| pod.pod).collect();
        self.pods.asked_leaf(session.into(), |leaf| {
            only.is_none_or(|only| only == leaf)
                && beyond.iter().all(|pod| failures.link_works(clos, clos.spine(*pod, plane), leaf))
        })
    }

    /// Returns true if failures leave a server no way up.
    fn is_cut_off(&self, server: Node, failures: &Failures) -> bool {
        let clos = &self.config.clos;
        let leaf = clos.leaf(clos.leaf_index_of(server));
        let mut up = clos.hosts_per_leaf()..clos.port_count(leaf);
        !failures.link_works(clos, server, 0) || !up.any(|port| failures.link_works(clos, leaf, port))
    }

    /// A free place for every entry; `None` if a table is full.
    fn slots(&self, network: &NetworkState, state: &[SpineState]) -> Option<Vec<Resource>> {
        let mut slots = Vec::with_capacity(state.len());
        for of_one in state.chunk_by(|a, b| a.spine == b.spine) {
            let places = network.free_of(Row::Entries(of_one[0].spine), 0, self.config.entries_max);
            slots.extend(places.take(of_one.len()));
        }
        (slots.len() == state.len()).then_some(slots)
    }

    fn full(&self, network: &NetworkState, state: &[SpineState]) -> Refusal {
        let most = self.config.entries_max;
        if self.slots(&network.idle(), state).is_none() {
            let needed = state.chunk_by(|a, b| a.spine == b.spine).map(<[_]>::len).max().unwrap_or(0);
            return Refusal::Impossible(format!(
                "a spine needs {needed} entries for it and has {most}: set orca.encoding = \"auto\", or a larger filter"
            ));
        }
        Refusal::Busy(format!("on every way a spine that needs entries has all its {most} in use"))
    }

    /// The rack of every receiver, where the source is to hear racks.
    fn racks(&self, group: &Group) -> Vec<(HostId, u32)> {
        let placed = self.places.of_group(Self::NAME, group).ok().filter(|_| self.config.rack_feedback);
        let receivers = placed.into_iter().flat_map(|(_, receivers)| receivers);
        receivers.map(|(host, server)| (host, self.config.clos.leaf_index_of(server))).collect()
    }

    /// The receivers at these servers.
    fn hosts_of(&self, group: &Group, servers: &[Node]) -> Vec<HostId> {
        let placed = self.places.of_group(Self::NAME, group).ok().filter(|_| !servers.is_empty());
        let receivers = placed.into_iter().flat_map(|(_, receivers)| receivers);
        receivers.filter(|(_, server)| servers.contains(server)).map(|(host, _)| host).collect()
    }

    fn with(
        &self,
        (group, address, source): To<'_>,
        plans: &[LabelPlan],
        (encoding, labels): (Encoding, Vec<Label>),
        (slots, mut commands, spine_labels): (Vec<Resource>, Vec<DeviceCommand>, Vec<(u32, Label)>),
    ) -> Plan {
        let session = session_of(address.0);
        let clos = &self.config.clos;
        let plan = plans.first().expect("a session has a tree");
        let asked: Vec<u32> = spine_labels.iter().map(|(leaf, _)| *leaf).collect();
        let leaf_label = |hosts| self.format.leaf_label(hosts).0;
        let mut racks: BTreeMap<u32, Vec<u8>> =
            plan.leaf_hosts.iter().map(|entry| (entry.leaf, leaf_label(entry.hosts))).collect();
        for (leaf, spine_label) in spine_labels {
            let label = racks.entry(leaf).or_insert_with(|| vec![0; self.format.bytes() as usize]);
            label.extend(spine_label.0.into_iter().take(SPINE_LABEL_LEN_MAX));
        }
        commands.extend(racks.into_iter().map(|(leaf, label)| DeviceCommand::LeafLabel {
            leaf: clos.leaf(leaf),
            session,
            label,
        }));
        let mut labels = labels.into_iter().map(|label| label.0);
        debug_assert!(!group.receivers.is_empty());
        Plan {
            fabric: Self::NAME,
            resources: core::iter::once(resource(address)).chain(slots).collect(),
            uses: used(clos, source, plans, &asked),
            commands: commands.into(),
            channel: Channel::Label {
                group: address,
                session,
                encoding,
                label: labels.next().expect("a session has a label"),
                further: labels.collect(),
                racks: self.racks(group),
                left_out: self.hosts_of(group, &plan.left_out),
                rate: self.config.rate,
            },
        }
    }
}

/// The failed nodes and links of a fabric's network.
pub(crate) fn failures_of<G: Graph>(name: FabricName, network: &NetworkState, graph: &G) -> Failures {
    let mut failures = Failures::none();
    for part in network.failed_parts(name) {
        match part {
            Part::Node { node, .. } if node < graph.node_count() => {
                failures.fail_node(node);
            }
            Part::Link { ends: (one, other), .. } if other < graph.node_count() => {
                // Two nodes that no link joins have none to fail.
                if let Some(port) = graph.port_to(one, other) {
                    failures.fail_link(graph.link(one, port));
                }
            }
            _ => {}
        }
    }
    failures
}

/// The nodes and links of trees, in rising order, with those to the leafs that spines ask.
fn used(clos: &Clos, source: Node, plans: &[LabelPlan], asked: &[u32]) -> Uses {
    let mut parts: BTreeSet<Part> = plans.iter().flat_map(|plan| used_by(clos, source, plan)).collect();
    for (leaf, plan) in asked.iter().zip(plans.iter().cycle()) {
        let spine = clos.spine(leaf / clos.leafs_per_pod(), plan.tree.path.plane);
        parts.extend([Orca::node(clos.leaf(*leaf)), Orca::link(spine, clos.leaf(*leaf))]);
    }
    parts.into_iter().collect()
}

fn used_by(clos: &Clos, source: Node, plan: &LabelPlan) -> BTreeSet<Part> {
    let mut parts = BTreeSet::new();
    let mut add = |one: Node, other: Node| {
        parts.extend([Orca::node(one), Orca::node(other), Orca::link(one, other)]);
    };
    let (path, per_pod) = (plan.tree.path, clos.leafs_per_pod());
    let source_leaf = clos.leaf_index_of(source);
    let source_spine = clos.spine(plan.tree.source_pod, path.plane);
    add(source, clos.leaf(source_leaf));
    add(clos.leaf(source_leaf), source_spine);
    for pod in plan.tree.pods.iter().filter(|pod| pod.pod != plan.tree.source_pod) {
        let core = clos.core(path.plane, path.core);
        add(source_spine, core);
        add(core, clos.spine(pod.pod, path.plane));
    }
    for entry in &plan.leaf_hosts {
        let leaf = clos.leaf(entry.leaf);
        add(clos.spine(entry.leaf / per_pod, path.plane), leaf);
        for port in (0..clos.hosts_per_leaf()).filter(|port| entry.hosts >> port & 1 == 1) {
            add(leaf, entry.leaf * clos.hosts_per_leaf() + port);
        }
    }
    parts
}

/// The session of a group: the number that switches and agents look up. The fabric's addresses are of IPv4,
/// as its settings demand; an agent may claim another one, of which the last four bytes count.
fn session_of(address: IpAddr) -> u32 {
    Network::of(address).1
}

impl Fabric for Orca {
    fn name(&self) -> FabricName {
        Self::NAME
    }

    fn plan(&self, network: &NetworkState, group: &Group) -> Result<Plan, Refusal> {
        let any = (self.config.encoding, None, |_: &LabelPlan| true);
        self.plan_at(network, group, self.pool.lend(network)?, Reach::All, any)
    }

    fn replan(&self, network: &NetworkState, failure: &Failure) -> Vec<Replan> {
        replan_each(Self::NAME, network, failure, |network, old| {
            // A session keeps its number unless the address itself has failed.
            match old.plan.channel {
                Channel::Multicast { group: address, .. } if network.is_free(&resource(address)) => {
                    self.packets_at(network, &old.group, address, Reach::Connected)
                }
                Channel::Multicast { .. } => self.plan_packets(network, &old.group),
                Channel::Label { group: address, .. } if network.is_free(&resource(address)) => {
                    // Nothing reaches those that are cut off; the others go on.
                    let any = (self.config.encoding, None, |_: &LabelPlan| true);
                    self.plan_at(network, &old.group, address, Reach::Connected, any)
                }
                _ => self.plan(network, &old.group),
            }
        })
    }

    fn carries_any_packets(&self) -> bool {
        true
    }

    fn plan_packets(&self, network: &NetworkState, group: &Group) -> Result<Plan, Refusal> {
        self.packets_at(network, group, self.pool.lend(network)?, Reach::All)
    }

    /// A group lasts: hosts that failures have cut off come back to it.
    fn improve(&self, network: &NetworkState) -> Vec<(PlanId, Plan)> {
        self.packets_improved(network)
    }

    /// Spines have so many entries that only addresses are worth a count.
    fn free(&self, network: &NetworkState) -> Vec<(String, u64)> {
        vec![self.pool.free(network)]
    }

    /// Addresses and entries are what paths hold, and there are many.
    fn is_shared(&self) -> bool {
        true
    }

    /// The session stays, with labels for the new group; those whom failures have cut off do not keep others
    /// from it.
    fn regroup(&self, network: &NetworkState, old: &Plan, group: &Group) -> Result<Plan, Refusal> {
        let address = match old.channel {
            Channel::Label { group: address, .. } => address,
            Channel::Multicast { group: address, .. } => {
                let all = self.packets_at(network, group, address, Reach::All);
                return all.or_else(|_| self.packets_at(network, group, address, Reach::Connected));
            }
            _ => return Err(Refusal::Impossible("the path has no label".into())),
        };
        if let Some(plan) = self.adopt(network, group, &old.channel) {
            return Ok(plan);
        }
        let any = (self.config.encoding, None, |_: &LabelPlan| true);
        let all = self.plan_at(network, group, address, Reach::All, any);
        all.or_else(|_| self.plan_at(network, group, address, Reach::Connected, any))
    }

    /// The label tells the way, and with the group the entries; a group that has changed since has another
    /// label. For programs' packets leafs put the labels on, and are told them anew.
    fn adopt(&self, network: &NetworkState, group: &Group, channel: &Channel) -> Option<Plan> {
        if let Channel::Multicast { group: address, rate, .. } = channel {
            let all = self.packets_at(network, group, *address, Reach::All);
            let plan = all.or_else(|_| self.packets_at(network, group, *address, Reach::Connected)).ok()?;
            let attempt_interval = Duration::ZERO;
            let channel = Channel::Multicast { group: *address, rate: *rate, attempt_interval };
            return Some(Plan { channel, ..plan });
        }
        let Channel::Label { group: address, encoding, label, further, .. } = channel else { return None };
        if self.config.encoding.is_some_and(|only| only != *encoding) {
            return None;
        }
        // The leaf that it names stays the one to ask, whichever a new label would name.
        let asks = (*encoding == Encoding::Pods).then(|| self.pods.asks(&Label(label.clone())));
        let same = |plan: &LabelPlan| match asks {
            None => plan.label.0 == *label,
            Some(asks) => pod_labels::encode(&self.pods, plan, asks).label.0 == *label,
        };
        let plan = self.plan_at(network, group, *address, Reach::All, (Some(*encoding), asks, same)).ok()?;
        let labels_are_same = matches!(&plan.channel, Channel::Label { label: l, further: f, .. } if l == label && f == further);
        if !labels_are_same {
            return None;
        }
        // Its rate is the one that it was granted.
        let Channel::Label { rate: granted, .. } = channel else { return None };
        let mut plan = plan;
        if let Channel::Label { rate, .. } = &mut plan.channel {
            *rate = *granted;
        }
        Some(plan)
    }
}
