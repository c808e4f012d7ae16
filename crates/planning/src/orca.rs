//! The fabric `orca`: a Clos network whose switches forward by labels (Orca, section 3).
//!
//! A group holds a multicast address, whose number is the session's, and the entries that spines need for it.
//! Servers keep the leaf labels. With pod labels no switch keeps anything.

use alloc::collections::BTreeSet;
use alloc::format;
use alloc::vec;
use alloc::vec::Vec;
use core::cell::RefCell;

use polycast_topology::{Clos, Failures, Graph, Node};
use polycast_types::Rate;

use crate::fabric::{Fabric, Replan, replan_each};
use crate::fabric_name::FabricName;
use crate::ip_multicast::{AddressPool, resource};
use crate::labels::pod_labels::{self, PodLabelFormat};
use crate::labels::{LabelError, LabelOptions, LabelPlan, LabelPlanner, SpineState};
use crate::network_state::NetworkState;
use crate::places::{PlaceError, Places};
use crate::plan::{Channel, DeviceCommand, Failure, Group, HostId, Part, Plan, Refusal, Resource};

/// How labels name leafs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Encoding {
    /// The paper's filter, with entries at spines.
    #[default]
    Filter,
    /// Exact bitmaps of pods, without entries.
    Pods,
}

/// What the fabric is made of.
#[derive(Clone, Copy, Debug)]
pub struct OrcaConfig {
    /// The network.
    pub clos: Clos,
    /// How labels are made.
    pub labels: LabelOptions,
    /// How labels name leafs.
    pub encoding: Encoding,
    /// How many entries a spine's table holds.
    pub entries_max: u32,
    /// How many trees through different cores a session has, at most (appendix A.4); pod labels have one.
    pub trees: u32,
    /// Whether the source hears racks and not hosts (appendix A.4).
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
    /// About the places.
    #[error(transparent)]
    Place(#[from] PlaceError),
}

/// Whom a label has to reach.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reach {
    All,
    /// Those that failures have not cut off from everybody.
    Connected,
}

/// The fabric.
#[derive(Clone, Debug)]
pub struct Orca {
    config: OrcaConfig,
    places: Places,
    pool: AddressPool,
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
        let places = Places::new(config.clos.hosts(), hosts)?;
        Ok(Orca { config, places, pool, pods, planner: RefCell::new(planner) })
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
        address: ([u8; 4], u16),
        reach: Reach,
        keep: impl Fn(&LabelPlan) -> bool,
    ) -> Result<Plan, Refusal> {
        let (source, receivers) = self.places.of_group(Self::NAME, group)?;
        let servers: Vec<Node> = receivers.iter().map(|(_, server)| *server).collect();
        let failures = failures_of(Self::NAME, network, &self.config.clos);
        let session = u32::from_be_bytes(address.0);
        let mut planner = self.planner.borrow_mut();
        planner.count_anew(entries(network).map(|(spine, _)| spine));
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
        let slots = if keep(&best) { self.slots(network, &best.spine_state) } else { None };
        let trees = if self.config.encoding == Encoding::Pods { 1 } else { self.config.trees.max(1) };
        if let (Some(slots), 1) = (&slots, trees) {
            drop(planner);
            return Ok(self.with(group, address, source, &[best], slots.clone(), &failures));
        }
        // The tables on the best way are full, another way is asked for, or several are: the others may do.
        let all = self.config.clos.spines_per_pod() * self.config.clos.cores_per_spine().max(1);
        let others = planner.plan_trees(session.into(), source, &servers, &failures, all);
        drop(planner);
        let (needed, left_out) = (best.spine_state.clone(), best.left_out.clone());
        let mut chosen: Vec<LabelPlan> = if slots.is_some() { vec![best] } else { Vec::new() };
        let mut slots = slots.unwrap_or_default();
        for other in others.map_err(impossible)? {
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
            return Err(self.full(network, &needed));
        }
        Ok(self.with(group, address, source, &chosen, slots, &failures))
    }

    /// Whether failures leave a server no way up.
    fn is_cut_off(&self, server: Node, failures: &Failures) -> bool {
        let clos = &self.config.clos;
        let leaf = clos.leaf(clos.leaf_index_of(server));
        let mut up = clos.hosts_per_leaf()..clos.port_count(leaf);
        !failures.link_works(clos, server, 0) || !up.any(|port| failures.link_works(clos, leaf, port))
    }

    /// A free place for every entry; `None` if a table is full.
    fn slots(&self, network: &NetworkState, state: &[SpineState]) -> Option<Vec<Resource>> {
        if self.config.encoding == Encoding::Pods {
            return Some(Vec::new());
        }
        let mut slots = Vec::with_capacity(state.len());
        for of_one in state.chunk_by(|a, b| a.spine == b.spine) {
            let spine = of_one[0].spine;
            let places = (0..self.config.entries_max).map(|slot| Resource::SpineEntry { spine, slot });
            slots.extend(places.filter(|place| network.is_free(place)).take(of_one.len()));
        }
        (slots.len() == state.len()).then_some(slots)
    }

    fn full(&self, network: &NetworkState, state: &[SpineState]) -> Refusal {
        let most = self.config.entries_max;
        if self.slots(&network.idle(), state).is_none() {
            let needed = state.chunk_by(|a, b| a.spine == b.spine).map(<[_]>::len).max().unwrap_or(0);
            return Refusal::Impossible(format!(
                "a spine needs {needed} entries for it and has {most}: use pod labels or a larger filter"
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
        group: &Group,
        address: ([u8; 4], u16),
        source: Node,
        plans: &[LabelPlan],
        slots: Vec<Resource>,
        failures: &Failures,
    ) -> Plan {
        let session = u32::from_be_bytes(address.0);
        let clos = &self.config.clos;
        let mut commands = Vec::new();
        let (plan, others) = plans.split_first().expect("a session has a tree");
        let label = match self.config.encoding {
            Encoding::Filter => {
                let states: BTreeSet<_> = plans.iter().flat_map(|plan| &plan.spine_state).collect();
                commands.extend(states.into_iter().map(|entry| DeviceCommand::SpineEntry {
                    spine: entry.spine,
                    session,
                    leaf: entry.leaf,
                }));
                plan.label.clone()
            }
            Encoding::Pods => {
                let pods = pod_labels::encode(&self.pods, plan);
                for pod in &pods.spine_labels {
                    let spine = clos.spine(pod.pod, plan.tree.path.plane);
                    let works = |leaf: &u32| failures.link_works(clos, spine, *leaf);
                    let working =
                        (0..clos.leafs_per_pod()).filter(works).fold(0, |leafs, leaf| leafs | 1u128 << leaf);
                    let asked = self.pods.asked_leaf(session.into(), working);
                    commands.extend(asked.map(|leaf| DeviceCommand::SpineLabel {
                        leaf: clos.leaf(pod.pod * clos.leafs_per_pod() + leaf),
                        session,
                        label: self.pods.spine_label(plan.tree.path.plane, pod.leafs).0,
                    }));
                }
                pods.label
            }
        };
        let planner = self.planner.borrow();
        commands.extend(plan.leaf_hosts.iter().map(|entry| DeviceCommand::LeafLabel {
            leaf: clos.leaf(entry.leaf),
            session,
            label: match self.config.encoding {
                Encoding::Filter => planner.format().leaf_label(entry.hosts).0,
                Encoding::Pods => self.pods.leaf_label(entry.hosts).0,
            },
        }));
        debug_assert!(!group.receivers.is_empty());
        Plan {
            fabric: Self::NAME,
            resources: core::iter::once(resource(address)).chain(slots).collect(),
            uses: used(clos, source, plans),
            commands,
            channel: Channel::Label {
                group: address,
                session,
                label: label.0,
                further: others.iter().map(|plan| plan.label.0.clone()).collect(),
                racks: self.racks(group),
                left_out: self.hosts_of(group, &plan.left_out),
                rate: self.config.rate,
            },
        }
    }
}

/// The spine and place of every entry that a plan holds.
fn entries(network: &NetworkState) -> impl Iterator<Item = (u32, u32)> {
    let ends = |spine, slot| Resource::SpineEntry { spine, slot };
    network.held_between(ends(0, 0), ends(u32::MAX, u32::MAX)).filter_map(|held| match held {
        Resource::SpineEntry { spine, slot } => Some((spine, slot)),
        _ => None,
    })
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

/// The nodes and links of trees, in rising order.
fn used(clos: &Clos, source: Node, plans: &[LabelPlan]) -> Vec<Part> {
    let parts: BTreeSet<Part> = plans.iter().flat_map(|plan| used_by(clos, source, plan)).collect();
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

impl Fabric for Orca {
    fn name(&self) -> FabricName {
        Self::NAME
    }

    fn plan(&self, network: &NetworkState, group: &Group) -> Result<Plan, Refusal> {
        self.plan_at(network, group, self.pool.lend(network)?, Reach::All, |_| true)
    }

    fn replan(&self, network: &NetworkState, failure: &Failure) -> Vec<Replan> {
        replan_each(Self::NAME, network, failure, |network, old| {
            // A session keeps its number unless the address itself has failed.
            match old.plan.channel {
                Channel::Label { group: address, .. } if network.is_free(&resource(address)) => {
                    // Nothing reaches those that are cut off; the others go on.
                    self.plan_at(network, &old.group, address, Reach::Connected, |_| true)
                }
                _ => self.plan(network, &old.group),
            }
        })
    }

    /// Addresses and entries are what paths hold, and there are many.
    fn is_shared(&self) -> bool {
        true
    }

    /// The session stays, with labels for the new group; those whom failures have cut off do not keep others from it.
    fn regroup(&self, network: &NetworkState, old: &Plan, group: &Group) -> Result<Plan, Refusal> {
        let Channel::Label { group: address, .. } = old.channel else {
            return Err(Refusal::Impossible("the path has no label".into()));
        };
        if let Some(plan) = self.adopt(network, group, &old.channel) {
            return Ok(plan);
        }
        let all = self.plan_at(network, group, address, Reach::All, |_| true);
        all.or_else(|_| self.plan_at(network, group, address, Reach::Connected, |_| true))
    }

    /// The label tells the way, and with the group the entries; a group that has changed since has another label.
    fn adopt(&self, network: &NetworkState, group: &Group, channel: &Channel) -> Option<Plan> {
        let Channel::Label { group: address, label, further, .. } = channel else { return None };
        let (encoding, pods) = (self.config.encoding, &self.pods);
        let same = |plan: &LabelPlan| match encoding {
            Encoding::Filter => plan.label.0 == *label,
            Encoding::Pods => pod_labels::encode(pods, plan).label.0 == *label,
        };
        let plan = self.plan_at(network, group, *address, Reach::All, same).ok()?;
        let trees_are_same = matches!(&plan.channel, Channel::Label { further: f, .. } if f == further);
        if !trees_are_same {
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
