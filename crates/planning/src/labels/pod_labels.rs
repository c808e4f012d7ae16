//! Labels without switch state: a spine that does not find its leafs in the label asks a server of its pod.
//!
//! Orca's filter says yes to nearly every link once a session is spread over many racks, and spines must
//! then remember what to leave out. Here the same bytes are laid out differently. The label holds exact
//! bitmaps of leafs for the first few pods: the source's, then the others in rising order, so that a
//! spine finds its own by counting the core-down bits before its pod. A spine beyond those hands the
//! packet to one leaf of its pod, picked by the session id; the agent there puts a spine label in, an exact
//! bitmap of the pod's leafs, and sends it back up. It is Orca's own idea one layer higher: labels that are
//! not needed before the pod wait on servers of the pod.
//!
//! No switch keeps state of sessions, no link carries a redundant copy to a host, and the label's size is
//! Orca's. The price is four more link crossings and one round trip to a rack in every pod beyond the slots.
//!
//! Status (2 bits): 0 source label, 1 leaf label, 2 source label on its way to a pod's agent, 3 spine label.
//! A source label goes on with leaf-up, spine-up, core-down, and the slots; a spine label with leaf-up and
//! the pod's leafs; a leaf label with the hosts.

use alloc::vec;
use alloc::vec::Vec;

use polycast_topology::{Clos, Node};

use super::format::{check_ports, mix, number_bits, ones};
use super::switches::{Delivery, Ingress};
use super::{Label, LabelError, LabelPlan, PodLeafs};

const SOURCE: u128 = 0;
const LEAF: u128 = 1;
const ASKS: u128 = 2;
const SPINE: u128 = 3;
const STATUS_BITS: u32 = 2;

/// Where the fields lie, for labels of a given size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodLabelFormat {
    leaf_up_bits: u32,
    spine_up_bits: u32,
    leafs: u32,
    hosts: u32,
    pods: u32,
    slots: u32,
    bytes: u32,
}

impl PodLabelFormat {
    /// As many slots as labels of `bytes` bytes hold.
    ///
    /// # Errors
    /// If a switch has too many ports for a label.
    pub fn new(clos: &Clos, bytes: u32) -> Result<Self, LabelError> {
        check_ports(clos)?;
        let pods = if clos.cores_per_spine() == 0 { 0 } else { clos.pods() };
        let leaf_up_bits = number_bits(clos.spines_per_pod());
        let spine_up_bits = number_bits(clos.cores_per_spine());
        let fixed = STATUS_BITS + leaf_up_bits + spine_up_bits + pods;
        let (leafs, hosts) = (clos.leafs_per_pod(), clos.hosts_per_leaf());
        let needed = fixed.max(STATUS_BITS + leaf_up_bits + leafs).max(STATUS_BITS + hosts).div_ceil(8);
        let bytes = bytes.max(needed);
        let slots = (8 * bytes - fixed) / leafs;
        Ok(PodLabelFormat { leaf_up_bits, spine_up_bits, leafs, hosts, pods, slots, bytes })
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

    fn status(&self, label: &Label) -> u128 {
        label.field(0, STATUS_BITS)
    }

    fn with_status(&self, label: &Label, status: u128) -> Label {
        let mut label = label.clone();
        label.0[0] = label.0[0] & 0x3f | (status as u8) << 6;
        label
    }

    fn leaf_up(&self, label: &Label) -> u32 {
        label.field(STATUS_BITS, self.leaf_up_bits) as u32
    }

    fn spine_up(&self, label: &Label) -> u32 {
        label.field(STATUS_BITS + self.leaf_up_bits, self.spine_up_bits) as u32
    }

    fn cores_down_at(&self) -> u32 {
        STATUS_BITS + self.leaf_up_bits + self.spine_up_bits
    }

    fn cores_down(&self, label: &Label) -> u128 {
        label.bitmap(self.cores_down_at(), self.pods)
    }

    fn slot_at(&self, slot: u32) -> u32 {
        self.cores_down_at() + self.pods + slot * self.leafs
    }

    fn hosts_of(&self, label: &Label) -> u128 {
        label.bitmap(STATUS_BITS, self.hosts)
    }

    fn leafs_of(&self, label: &Label) -> u128 {
        label.bitmap(STATUS_BITS + self.leaf_up_bits, self.leafs)
    }

    /// A leaf label.
    #[must_use]
    pub fn leaf_label(&self, hosts: u128) -> Label {
        let mut label = Label(vec![0; self.bytes as usize]);
        label.set_field(0, STATUS_BITS, LEAF);
        label.set_bitmap(STATUS_BITS, hosts);
        label
    }

    /// A spine label.
    #[must_use]
    pub fn spine_label(&self, plane: u32, leafs: u128) -> Label {
        let mut label = Label(vec![0; self.bytes as usize]);
        label.set_field(0, STATUS_BITS, SPINE);
        label.set_field(STATUS_BITS, self.leaf_up_bits, plane.into());
        label.set_bitmap(STATUS_BITS + self.leaf_up_bits, leafs);
        label
    }

    /// The leaf of a pod whose agent keeps the spine label of a session, among the leafs that work.
    #[must_use]
    pub fn asked_leaf(&self, session: u64, working: u128) -> Option<u32> {
        let count = working.count_ones();
        if count == 0 {
            return None;
        }
        ones(working).nth((mix(session) % u64::from(count)) as usize)
    }
}

/// The forwarding state of one session: all of it on servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodLabelPlan {
    /// The source label.
    pub label: Label,
    /// The spine labels that agents of these pods keep.
    pub spine_labels: Vec<PodLeafs>,
}

/// The labels for the tree of an Orca plan, which keeps its leaf labels.
#[must_use]
pub fn encode(format: &PodLabelFormat, plan: &LabelPlan) -> PodLabelPlan {
    let tree = &plan.tree;
    let mut label = Label(vec![0; format.bytes as usize]);
    label.set_field(STATUS_BITS, format.leaf_up_bits, tree.path.plane.into());
    label.set_field(STATUS_BITS + format.leaf_up_bits, format.spine_up_bits, tree.path.core.into());
    let is_source = |pod: &&PodLeafs| pod.pod == tree.source_pod;
    let others = tree.pods.iter().filter(|pod| !is_source(pod));
    let mut spine_labels = Vec::new();
    for (rank, pod) in tree.pods.iter().filter(is_source).chain(others).enumerate() {
        if pod.pod != tree.source_pod {
            label.set_bit(format.cores_down_at() + pod.pod);
        }
        if (rank as u32) < format.slots {
            label.set_bitmap(format.slot_at(rank as u32), pod.leafs);
        } else {
            spine_labels.push(*pod);
        }
    }
    PodLabelPlan { label, spine_labels }
}

/// What a spine does with a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpineAction {
    /// The port up.
    pub up: Option<u32>,
    /// The ports down.
    pub down: u128,
    /// The port down by which it asks an agent for the pod's spine label.
    pub asks: Option<u32>,
}

/// A spine switch: no state of sessions. The session id picks the leaf that it asks.
#[must_use]
pub fn spine(
    format: &PodLabelFormat,
    label: &Label,
    pod: u32,
    session: u64,
    working: u128,
    ingress: Ingress,
) -> SpineAction {
    if format.status(label) == SPINE {
        return SpineAction { up: None, down: format.leafs_of(label), asks: None };
    }
    let rank = match ingress {
        Ingress::Below => 0,
        Ingress::Above => 1 + (format.cores_down(label) & ((1 << pod) - 1)).count_ones(),
    };
    let up = (ingress == Ingress::Below && format.pods > 0).then(|| format.spine_up(label));
    if rank < format.slots {
        let down = label.bitmap(format.slot_at(rank), format.leafs);
        SpineAction { up, down, asks: None }
    } else {
        SpineAction { up, down: 0, asks: format.asked_leaf(session, working) }
    }
}

/// What a leaf does with a packet.
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
pub fn leaf(format: &PodLabelFormat, label: &Label, ingress: Ingress) -> LeafAction {
    match (ingress, format.status(label)) {
        (Ingress::Above, _) => LeafAction::ToAgent,
        (Ingress::Below, LEAF) => LeafAction::ToHosts(format.hosts_of(label)),
        (Ingress::Below, _) => LeafAction::Up(format.leaf_up(label)),
    }
}

/// An agent with its leaf label and spine label of the session: the label that goes back to the leaf.
#[must_use]
pub fn agent(
    format: &PodLabelFormat,
    label: &Label,
    hosts: Option<u128>,
    leafs: Option<u128>,
) -> Option<Label> {
    if format.status(label) == ASKS {
        leafs.map(|leafs| format.spine_label(format.leaf_up(label), leafs))
    } else {
        hosts.map(|hosts| format.leaf_label(hosts))
    }
}

/// Sends one packet of the source through a network of these switches; all links work.
#[must_use]
pub fn deliver(
    clos: &Clos,
    format: &PodLabelFormat,
    session: u64,
    source: Node,
    plan: &LabelPlan,
    pods: &PodLabelPlan,
) -> Delivery {
    let mut walk = Walk { clos, format, session, plan, pods, delivery: Delivery::default() };
    walk.delivery.links += 1;
    debug_assert_eq!(format.status(&pods.label), SOURCE);
    if let LeafAction::Up(plane) = leaf(format, &pods.label, Ingress::Below) {
        walk.delivery.links += 1;
        let pod = clos.leaf_index_of(source) / clos.leafs_per_pod();
        if walk.spine(&pods.label, pod, plane, Ingress::Below).is_some() {
            walk.delivery.links += 1;
            for other in ones(format.cores_down(&pods.label)) {
                walk.delivery.links += 1;
                walk.spine(&pods.label, other, plane, Ingress::Above);
            }
        }
    }
    walk.delivery
}

struct Walk<'a> {
    clos: &'a Clos,
    format: &'a PodLabelFormat,
    session: u64,
    plan: &'a LabelPlan,
    pods: &'a PodLabelPlan,
    delivery: Delivery,
}

impl Walk<'_> {
    fn spine(&mut self, label: &Label, pod: u32, plane: u32, ingress: Ingress) -> Option<u32> {
        let working = u128::MAX >> (128 - self.clos.leafs_per_pod());
        let action = spine(self.format, label, pod, self.session, working, ingress);
        for port in ones(action.down) {
            self.leaf(label, pod, port, plane);
        }
        if let Some(port) = action.asks {
            self.leaf(&self.format.with_status(label, ASKS), pod, port, plane);
        }
        action.up
    }

    fn leaf(&mut self, label: &Label, pod: u32, port: u32, plane: u32) {
        let index = pod * self.clos.leafs_per_pod() + port;
        // Down to the leaf and on to an agent.
        self.delivery.links += 2;
        let hosts = self.plan.leaf_hosts.iter().find(|entry| entry.leaf == index).map(|entry| entry.hosts);
        let leafs = self.pods.spine_labels.iter().find(|entry| entry.pod == pod).map(|entry| entry.leafs);
        let Some(label) = agent(self.format, label, hosts, leafs) else {
            self.delivery.redundant_leafs.insert(index);
            return;
        };
        self.delivery.links += 1;
        match leaf(self.format, &label, Ingress::Below) {
            LeafAction::ToHosts(hosts) => self.delivery.hand_out(self.clos, index, hosts),
            LeafAction::Up(up) => {
                debug_assert_eq!(up, plane, "a spine label goes back to the spine that asked");
                self.delivery.links += 1;
                self.spine(&label, pod, up, Ingress::Below);
            }
            LeafAction::ToAgent => {}
        }
    }
}
