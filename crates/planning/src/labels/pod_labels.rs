//! Labels without switch state: a spine that does not find its leafs in the label asks a server of its pod.
//!
//! Orca's filter says yes to nearly every link once a session is spread over many racks, and spines must then
//! remember what to leave out. Here the same bytes are laid out differently. The label holds exact bitmaps of
//! leafs for the first few pods: the source's, then the others in rising order, so that a spine finds its own
//! by counting the core-down bits before its pod. A spine beyond those hands the packet to one leaf of its
//! pod, which the label names for all pods; the agent there puts a spine label in, an exact bitmap of the
//! pod's leafs, and sends it back up. It is Orca's own idea one layer higher: labels that are not needed
//! before the pod wait on servers of the pod.
//!
//! No switch keeps state of sessions, no link carries a redundant copy to a host, and the label's size is
//! Orca's. The price is four more link crossings and one round trip to a rack in every pod beyond the slots.
//!
//! Which label a packet has stands beside it ([`LabelKind`]). All begin with leafStatus and leaf-up, where
//! Orca's have them; a source label goes on with spine-up, core-down, the leaf to ask, and the slots, a spine
//! label with the pod's leafs. A leaf label is Orca's own.

use alloc::vec;
use alloc::vec::Vec;

use polycast_topology::{Clos, Node};
use polycast_types::LabelKind;

use super::format::{check_ports, low_bits, mix, number_bits, ones};
use super::switches::{Delivery, Ingress};
use super::{Label, LabelError, LabelPlan, PodLeafs, SpineTree};

/// Bits of the status, with which all labels begin.
const STATUS_BITS: u32 = 1;

/// The most bytes of a spine label that are not zero.
pub const SPINE_LABEL_LEN_MAX: usize = 20;

/// Layout of the fields, for labels of a given size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodLabelFormat {
    leaf_up_bits: u32,
    spine_up_bits: u32,
    leafs: u32,
    pods: u32,
    asks_bits: u32,
    slots: u32,
    bytes: u32,
}

impl PodLabelFormat {
    /// As many slots as labels of `bytes` bytes hold. Labels with a filter are never shorter than these have
    /// to be.
    ///
    /// # Errors
    /// If a switch has too many ports for a label.
    pub fn new(clos: &Clos, bytes: u32) -> Result<Self, LabelError> {
        check_ports(clos)?;
        let pods = if clos.cores_per_spine() == 0 { 0 } else { clos.pods() };
        let leaf_up_bits = number_bits(clos.spines_per_pod());
        let spine_up_bits = number_bits(clos.cores_per_spine());
        let leafs = clos.leafs_per_pod();
        let asks_bits = number_bits(leafs);
        let fixed = STATUS_BITS + leaf_up_bits + spine_up_bits + pods + asks_bits;
        let of_leaf = STATUS_BITS + clos.hosts_per_leaf();
        let needed = fixed.max(STATUS_BITS + leaf_up_bits + leafs).max(of_leaf).div_ceil(8);
        let bytes = bytes.max(needed);
        let slots = (8 * bytes - fixed) / leafs;
        Ok(PodLabelFormat { leaf_up_bits, spine_up_bits, leafs, pods, asks_bits, slots, bytes })
    }

    /// The bytes of every label.
    #[must_use]
    pub fn bytes(&self) -> u32 {
        self.bytes
    }

    /// The pods whose leafs a source label names exactly.
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// Returns the offset of the core's ports down, in bits.
    #[must_use]
    pub fn cores_down_at(&self) -> u32 {
        STATUS_BITS + self.leaf_up_bits + self.spine_up_bits
    }

    /// Returns the offset of the number of the leaf to ask, in bits, and the number of its bits.
    #[must_use]
    pub fn asks_at(&self) -> (u32, u32) {
        (self.cores_down_at() + self.pods, self.asks_bits)
    }

    /// Returns the offset of the leafs of a slot, in bits.
    #[must_use]
    pub fn slot_at(&self, slot: u32) -> u32 {
        self.cores_down_at() + self.pods + self.asks_bits + slot * self.leafs
    }

    /// Returns the offset of the leafs of a spine label, in bits.
    #[must_use]
    pub fn leafs_at(&self) -> u32 {
        STATUS_BITS + self.leaf_up_bits
    }

    /// The spine's port up.
    #[must_use]
    pub fn spine_up(&self, label: &Label) -> u32 {
        label.field(STATUS_BITS + self.leaf_up_bits, self.spine_up_bits) as u32
    }

    /// The core's ports down.
    #[must_use]
    pub fn cores_down(&self, label: &Label) -> u128 {
        label.bitmap(self.cores_down_at(), self.pods)
    }

    /// The leafs of a spine label.
    #[must_use]
    pub fn leafs_of(&self, label: &Label) -> u128 {
        label.bitmap(self.leafs_at(), self.leafs)
    }

    /// A spine label.
    #[must_use]
    pub fn spine_label(&self, plane: u32, leafs: u128) -> Label {
        let mut label = Label(vec![0; self.bytes as usize]);
        label.set_field(STATUS_BITS, self.leaf_up_bits, plane.into());
        label.set_bitmap(self.leafs_at(), leafs);
        label
    }

    /// The leaf, counted in its pod, that the spines ask which do not find theirs in the label.
    #[must_use]
    pub fn asks(&self, label: &Label) -> u32 {
        let (at, bits) = self.asks_at();
        label.field(at, bits) as u32
    }

    /// A leaf for a session to ask, the same in all pods: the first that works from where the session's
    /// number points to.
    #[must_use]
    pub fn asked_leaf(&self, session: u64, works: impl Fn(u32) -> bool) -> Option<u32> {
        let first = (mix(session) % u64::from(self.leafs)) as u32;
        (0..self.leafs).map(|step| (first + step) % self.leafs).find(|leaf| works(*leaf))
    }

    /// The pods of a tree whose leafs have no place in its source label, in rising order.
    pub fn beyond<'a>(&self, tree: &'a SpineTree) -> impl Iterator<Item = &'a PodLeafs> {
        let slots = self.slots as usize;
        ranked(tree).skip(slots)
    }
}

/// The pods of a tree in the order of their slots.
fn ranked(tree: &SpineTree) -> impl Iterator<Item = &PodLeafs> {
    let is_source = |pod: &&PodLeafs| pod.pod == tree.source_pod;
    tree.pods.iter().filter(is_source).chain(tree.pods.iter().filter(move |pod| !is_source(pod)))
}

/// The forwarding state of one session: all of it on servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodLabelPlan {
    /// The source label.
    pub label: Label,
    /// The spine labels that agents of these pods keep.
    pub spine_labels: Vec<PodLeafs>,
}

/// The labels for the tree of an Orca plan, which keeps its leaf labels; spines that need one ask this leaf
/// of their pod.
#[must_use]
pub fn encode(format: &PodLabelFormat, plan: &LabelPlan, asks: u32) -> PodLabelPlan {
    let tree = &plan.tree;
    let mut label = Label(vec![0; format.bytes as usize]);
    label.set_field(STATUS_BITS, format.leaf_up_bits, tree.path.plane.into());
    label.set_field(STATUS_BITS + format.leaf_up_bits, format.spine_up_bits, tree.path.core.into());
    let (at, bits) = format.asks_at();
    label.set_field(at, bits, asks.into());
    for pod in tree.pods.iter().filter(|pod| pod.pod != tree.source_pod) {
        label.set_bit(format.cores_down_at() + pod.pod);
    }
    for (slot, pod) in (0..format.slots).zip(ranked(tree)) {
        label.set_bitmap(format.slot_at(slot), pod.leafs);
    }
    PodLabelPlan { label, spine_labels: format.beyond(tree).copied().collect() }
}

/// Action of a spine on a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpineAction {
    /// The port up.
    pub up: Option<u32>,
    /// The ports down.
    pub down: u128,
    /// The port down by which it asks an agent for the pod's spine label.
    pub asks: Option<u32>,
}

/// A spine switch: no state of sessions. `None`: such a packet does not come here, and is dropped.
#[must_use]
pub fn spine(
    format: &PodLabelFormat,
    (kind, label): (LabelKind, &Label),
    pod: u32,
    ingress: Ingress,
) -> Option<SpineAction> {
    let rank = match (kind, ingress) {
        (LabelKind::Spine, Ingress::Below) => {
            return Some(SpineAction { up: None, down: format.leafs_of(label), asks: None });
        }
        (LabelKind::Pods, Ingress::Below) => 0,
        (LabelKind::Pods, Ingress::Above) => 1 + (format.cores_down(label) & low_bits(pod)).count_ones(),
        _ => return None,
    };
    let up = (ingress == Ingress::Below && format.pods > 0).then(|| format.spine_up(label));
    Some(if rank < format.slots {
        let down = label.bitmap(format.slot_at(rank), format.leafs);
        SpineAction { up, down, asks: None }
    } else {
        SpineAction { up, down: 0, asks: Some(format.asks(label)) }
    })
}

/// Sends one packet of the source through a network of these switches; all links work.
#[must_use]
pub fn deliver(
    clos: &Clos,
    format: &PodLabelFormat,
    source: Node,
    plan: &LabelPlan,
    pods: &PodLabelPlan,
) -> Delivery {
    let mut walk = Walk { clos, format, plan, pods, delivery: Delivery::default() };
    // To the leaf, and up to the spine.
    walk.delivery.links += 2;
    let (pod, label) = (clos.leaf_index_of(source) / clos.leafs_per_pod(), &pods.label);
    if walk.spine((LabelKind::Pods, label), pod, Ingress::Below).is_some() {
        walk.delivery.links += 1;
        for other in ones(format.cores_down(label)) {
            walk.delivery.links += 1;
            walk.spine((LabelKind::Pods, label), other, Ingress::Above);
        }
    }
    walk.delivery
}

struct Walk<'a> {
    clos: &'a Clos,
    format: &'a PodLabelFormat,
    plan: &'a LabelPlan,
    pods: &'a PodLabelPlan,
    delivery: Delivery,
}

impl Walk<'_> {
    fn spine(&mut self, label: (LabelKind, &Label), pod: u32, ingress: Ingress) -> Option<u32> {
        let action = spine(self.format, label, pod, ingress)?;
        for port in ones(action.down) {
            self.leaf(pod, port);
        }
        if action.asks.is_some() {
            // Down to the leaf, on to an agent, and both ways back.
            self.delivery.links += 4;
            let leafs = self.pods.spine_labels.iter().find(|entry| entry.pod == pod).map(|entry| entry.leafs);
            if let Some(leafs) = leafs {
                let label = self.format.spine_label(self.plan.tree.path.plane, leafs);
                self.spine((LabelKind::Spine, &label), pod, Ingress::Below);
            }
        }
        action.up
    }

    /// Down to a leaf, on to an agent, back with the leaf label, and out.
    fn leaf(&mut self, pod: u32, port: u32) {
        let index = pod * self.clos.leafs_per_pod() + port;
        self.delivery.links += 2;
        match self.plan.leaf_hosts.iter().find(|entry| entry.leaf == index) {
            Some(entry) => {
                self.delivery.links += 1;
                self.delivery.hand_out(self.clos, index, entry.hosts);
            }
            None => {
                self.delivery.redundant_leafs.insert(index);
            }
        }
    }
}
