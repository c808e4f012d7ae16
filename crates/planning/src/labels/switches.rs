//! Actions of leafs, spines, cores and agents on a labelled packet (Orca, section 3.5 and Algorithm 3).
//!
//! These functions see what the device sees: the label, the port that the packet came in by, and the device's
//! own state. [`deliver`] sends one packet through a whole network of them.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use polycast_topology::{Clos, Node};
use polycast_types::LabelKind;

use super::format::ones;
use super::{Filter, Label, LabelFormat, LabelPlan, TreePath};

/// The side of a switch that a packet came in by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ingress {
    /// From a port that leads down, to servers.
    Below,
    /// From a port that leads up, to cores.
    Above,
}

/// Action of a leaf on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeafAction {
    /// Sends it up by this port.
    Up(u32),
    /// Hands it to an active agent of its rack.
    ToAgent,
    /// Copies it to these hosts.
    ToHosts(u128),
}

/// A leaf switch: no state of sessions.
#[must_use]
pub fn leaf(format: &LabelFormat, label: &Label, ingress: Ingress) -> LeafAction {
    match (ingress, format.leaf_status(label)) {
        (Ingress::Above, _) => LeafAction::ToAgent,
        (Ingress::Below, false) => LeafAction::Up(format.leaf_up(label)),
        (Ingress::Below, true) => LeafAction::ToHosts(format.hosts(label)),
    }
}

/// Reason why a leaf drops a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeafRefusal {
    /// Only agents of the rack send such labels.
    NotAnAgent,
    /// No server sends such labels.
    Kind,
}

/// The same for a leaf that knows its rack, and labels of all kinds: only from a port with an agent of the
/// rack, active or not, are hosts named, or the leafs of a pod.
///
/// # Errors
/// The packet is dropped.
pub fn guarded_leaf(
    format: &LabelFormat,
    (kind, label): (LabelKind, &Label),
    ingress: Ingress,
    is_from_agent: bool,
) -> Result<LeafAction, LeafRefusal> {
    let action = leaf(format, label, ingress);
    match (action, kind) {
        (LeafAction::ToAgent, _) => Ok(action),
        (LeafAction::ToHosts(_), _) | (LeafAction::Up(_), LabelKind::Spine) if !is_from_agent => {
            Err(LeafRefusal::NotAnAgent)
        }
        (LeafAction::Up(_), LabelKind::Asks) => Err(LeafRefusal::Kind),
        _ => Ok(action),
    }
}

/// Action of a spine on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpineAction {
    /// The port up, for a packet from below.
    pub up: Option<u32>,
    /// The ports down.
    pub down: u128,
}

/// A spine switch. `blocked` are the links that its state names for the packet's session.
#[must_use]
pub fn spine(
    clos: &Clos,
    format: &LabelFormat,
    filter: &Filter,
    label: &Label,
    position: (u32, u32),
    blocked: u128,
    ingress: Ingress,
) -> SpineAction {
    let (pod, plane) = position;
    let common = format.common(label);
    let path = TreePath { plane, core: format.spine_up(label) };
    let down = (0..clos.leafs_per_pod())
        .filter(|&leaf| {
            common >> leaf & 1 == 1
                || (format.filter_has(label, filter.bucket(pod, path, leaf)) && blocked >> leaf & 1 == 0)
        })
        .fold(0u128, |ports, leaf| ports | 1 << leaf);
    let goes_up = ingress == Ingress::Below && clos.cores_per_spine() > 0;
    SpineAction { up: goes_up.then(|| format.spine_up(label)), down }
}

/// A core switch: no state of sessions.
#[must_use]
pub fn core(format: &LabelFormat, label: &Label) -> u128 {
    format.cores_down(label)
}

/// An agent that was handed a packet: the leaf label in place of the source label. `None` if it has none
/// for the session, and drops the packet.
#[must_use]
pub fn agent(format: &LabelFormat, label: &Label, hosts: Option<u128>) -> Option<Label> {
    debug_assert!(!format.leaf_status(label), "leafs hand over packets with source labels");
    hosts.map(|hosts| format.leaf_label(hosts))
}

/// Destinations of the copies of one packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Delivery {
    /// Number of copies that each host got.
    pub hosts: BTreeMap<Node, u32>,
    /// The leafs that got the packet without having a receiver.
    pub redundant_leafs: BTreeSet<u32>,
    /// Number of links that the packet crossed, copies counted, with those to agents and back.
    pub links: u32,
}

impl Delivery {
    pub(super) fn hand_out(&mut self, clos: &Clos, leaf: u32, hosts: u128) {
        for host in ones(hosts) {
            *self.hosts.entry(leaf * clos.hosts_per_leaf() + host).or_default() += 1;
            self.links += 1;
        }
    }

    /// The hosts that got the packet though they are no receivers, or got it twice; where a leaf got it in
    /// vain, its first host stands for it.
    #[must_use]
    pub fn redundant(&self, clos: &Clos, receivers: &BTreeSet<Node>) -> Vec<Node> {
        let unwanted = self.hosts.iter().filter(|(host, copies)| **copies > 1 || !receivers.contains(host));
        let leafs = self.redundant_leafs.iter().map(|leaf| leaf * clos.hosts_per_leaf());
        unwanted.map(|(&host, _)| host).chain(leafs).collect()
    }
}

/// Sends one packet of the source through the network's switches.
#[must_use]
pub fn deliver(
    clos: &Clos,
    format: &LabelFormat,
    filter: &Filter,
    source: Node,
    plan: &LabelPlan,
) -> Delivery {
    let mut walk = Walk { clos, format, filter, plan, delivery: Delivery::default() };
    let source_leaf = clos.leaf_index_of(source);
    walk.delivery.links += 1;
    if let LeafAction::Up(plane) = leaf(format, &plan.label, Ingress::Below) {
        let pod = source_leaf / clos.leafs_per_pod();
        walk.delivery.links += 1;
        if let Some(_core) = walk.spine(pod, plane, Ingress::Below) {
            walk.delivery.links += 1;
            for other in ones(core(format, &plan.label)) {
                walk.delivery.links += 1;
                walk.spine(other, plane, Ingress::Above);
            }
        }
    }
    walk.delivery
}

struct Walk<'a> {
    clos: &'a Clos,
    format: &'a LabelFormat,
    filter: &'a Filter,
    plan: &'a LabelPlan,
    delivery: Delivery,
}

impl Walk<'_> {
    /// The packet at a spine; the port up if it goes there.
    fn spine(&mut self, pod: u32, plane: u32, ingress: Ingress) -> Option<u32> {
        let node = self.clos.spine(pod, plane);
        let entries = self.plan.spine_state.iter().filter(|entry| entry.spine == node);
        let first_leaf = self.clos.leaf(pod * self.clos.leafs_per_pod());
        let blocked = entries.fold(0u128, |ports, entry| ports | 1 << (entry.leaf - first_leaf));
        let label = &self.plan.label;
        let action = spine(self.clos, self.format, self.filter, label, (pod, plane), blocked, ingress);
        for port in ones(action.down) {
            self.delivery.links += 1;
            self.leaf(pod * self.clos.leafs_per_pod() + port);
        }
        action.up
    }

    /// The packet at a leaf, from above.
    fn leaf(&mut self, index: u32) {
        if leaf(self.format, &self.plan.label, Ingress::Above) != LeafAction::ToAgent {
            return;
        }
        self.delivery.links += 1;
        let known = self.plan.leaf_hosts.iter().find(|entry| entry.leaf == index);
        match agent(self.format, &self.plan.label, known.map(|entry| entry.hosts)) {
            Some(label) => {
                self.delivery.links += 1;
                if let LeafAction::ToHosts(hosts) = leaf(self.format, &label, Ingress::Below) {
                    self.delivery.hand_out(self.clos, index, hosts);
                }
            }
            None => {
                self.delivery.redundant_leafs.insert(index);
            }
        }
    }
}
