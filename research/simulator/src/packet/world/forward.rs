//! Forwarding of a multicast packet at a node: trees, Orca's labels, Shufflecast's relays.

use crate::packet::{LinkId, Network, NodeId, Packet};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec;
use alloc::vec::Vec;
use polycast_planning::labels::switches::{self, Ingress, LeafAction};
use polycast_planning::labels::{Label, LabelPlan, LabelPlanner};

/// A packet still carries what its source put in.
pub const FRESH: u8 = 0;
/// An agent has put the leaf label in (Orca).
pub const RELABELLED: u8 = 1;

/// Method by which the network forwards the packets of one transfer.
#[derive(Debug)]
pub enum Forwarding {
    /// Copies along a tree of links.
    Tree(Tree),
    /// By label (Orca): the switches' own code.
    Labels(Box<LabelSwitches>),
    /// By the static rules of ToRs and through splitters (Shufflecast).
    Relays(Relays),
}

impl Forwarding {
    /// Finds the links on which a packet goes on from `node`, as (link, stage), and whether this node may
    /// keep a copy.
    ///
    /// `from` is the link that it came over, `None` at its source.
    pub fn next<P: Packet>(
        &self,
        net: &Network<P>,
        node: NodeId,
        from: Option<LinkId>,
        stage: u8,
        out: &mut Vec<(LinkId, u8)>,
    ) -> bool {
        match self {
            Forwarding::Tree(tree) => {
                out.extend(tree.links(node).iter().map(|&link| (link, stage)));
                true
            }
            Forwarding::Labels(labels) => labels.next(net, node, from, stage, out),
            Forwarding::Relays(relays) => relays.next(net, node, from, out),
        }
    }
}

/// The links of a tree by the node that they leave.
#[derive(Debug)]
pub struct Tree {
    first: Vec<u32>,
    links: Vec<LinkId>,
}

impl Tree {
    /// A tree of these links.
    #[must_use]
    pub fn new<P: Packet>(net: &Network<P>, links: &[LinkId]) -> Self {
        let mut first = vec![0; net.node_count() as usize + 1];
        let mut links = links.to_vec();
        links.sort_by_key(|link| net.ends(*link).0);
        for link in &links {
            first[net.ends(*link).0.index() + 1] += 1;
        }
        for node in 1..first.len() {
            first[node] += first[node - 1];
        }
        Tree { first, links }
    }

    /// The links on which a node sends copies.
    #[must_use]
    pub fn links(&self, node: NodeId) -> &[LinkId] {
        &self.links[self.first[node.index()] as usize..self.first[node.index() + 1] as usize]
    }
}

/// The switches and agents of one session of Orca.
#[derive(Debug)]
pub struct LabelSwitches {
    planner: LabelPlanner,
    label: Label,
    /// Leaf labels by leaf, counted over all pods: what the racks' agents keep.
    leaf_labels: BTreeMap<u32, Label>,
    /// The host of each such rack on which its active agent runs.
    agents: BTreeMap<u32, NodeId>,
    /// Leafs of its pod that a spine must not send to, by the spine's node.
    blocked: BTreeMap<u32, u128>,
}

impl LabelSwitches {
    /// Sets up the session's state; the agent of a rack runs on its first receiver.
    #[must_use]
    pub fn new(planner: LabelPlanner, plan: &LabelPlan) -> Self {
        let clos = *planner.clos();
        let mut blocked: BTreeMap<u32, u128> = BTreeMap::new();
        for state in &plan.spine_state {
            let index = (state.leaf - clos.hosts()) % clos.leafs_per_pod();
            *blocked.entry(state.spine).or_default() |= 1 << index;
        }
        let hosts = &plan.leaf_hosts;
        let leaf_labels = hosts.iter().map(|l| (l.leaf, planner.format().leaf_label(l.hosts))).collect();
        let first = |leaf: u32, hosts: u128| NodeId(leaf * clos.hosts_per_leaf() + hosts.trailing_zeros());
        let agents = hosts.iter().map(|l| (l.leaf, first(l.leaf, l.hosts))).collect();
        LabelSwitches { label: plan.label.clone(), planner, leaf_labels, agents, blocked }
    }

    fn next<P: Packet>(
        &self,
        net: &Network<P>,
        node: NodeId,
        from: Option<LinkId>,
        stage: u8,
        out: &mut Vec<(LinkId, u8)>,
    ) -> bool {
        let clos = self.planner.clos();
        let (leafs, spines) = (clos.hosts(), clos.hosts() + clos.leafs());
        let ports = net.links_from(node);
        let from = from.map(|link| net.ends(link).0.0);
        if node.0 < leafs {
            let leaf = node.0 / clos.hosts_per_leaf();
            let is_agent = from.is_some() && stage == FRESH && self.agents.get(&leaf) == Some(&node);
            if from.is_none() {
                out.push((ports[0], FRESH));
            } else if is_agent && self.leaf_labels.contains_key(&leaf) {
                out.push((ports[0], RELABELLED));
            }
            return stage == RELABELLED;
        }
        if node.0 < spines {
            self.leaf(node.0 - leafs, from.is_some_and(|from| from < leafs), stage, ports, out);
        } else if node.0 < spines + clos.spines() {
            self.spine(node.0, from.is_some_and(|from| from < spines), ports, out);
        } else {
            let down = switches::core(self.planner.format(), &self.label);
            out.extend(ones(down).map(|pod| (ports[pod], stage)));
        }
        false
    }

    fn leaf(&self, leaf: u32, below: bool, stage: u8, ports: &[LinkId], out: &mut Vec<(LinkId, u8)>) {
        let label = match stage {
            RELABELLED => self.leaf_labels.get(&leaf),
            _ => Some(&self.label),
        };
        let Some(label) = label else { return };
        let clos = self.planner.clos();
        let ingress = if below { Ingress::Below } else { Ingress::Above };
        match switches::leaf(self.planner.format(), label, ingress) {
            LeafAction::Up(plane) => out.push((ports[(clos.hosts_per_leaf() + plane) as usize], stage)),
            LeafAction::ToAgent => {
                // A rack without an agent for the session drops what it got in vain.
                if let Some(agent) = self.agents.get(&leaf) {
                    out.push((ports[(agent.0 % clos.hosts_per_leaf()) as usize], stage));
                }
            }
            LeafAction::ToHosts(hosts) => out.extend(ones(hosts).map(|host| (ports[host], stage))),
        }
    }

    fn spine(&self, node: u32, below: bool, ports: &[LinkId], out: &mut Vec<(LinkId, u8)>) {
        let clos = self.planner.clos();
        let index = node - clos.hosts() - clos.leafs();
        let position = (index / clos.spines_per_pod(), index % clos.spines_per_pod());
        let blocked = self.blocked.get(&node).copied().unwrap_or(0);
        let ingress = if below { Ingress::Below } else { Ingress::Above };
        let (format, filter) = (self.planner.format(), self.planner.filter());
        let action = switches::spine(clos, format, filter, &self.label, position, blocked, ingress);
        if let Some(up) = action.up {
            out.push((ports[(clos.leafs_per_pod() + up) as usize], FRESH));
        }
        out.extend(ones(action.down).map(|leaf| (ports[leaf], FRESH)));
    }
}

/// The bits that are set, as indices.
fn ones(bits: u128) -> impl Iterator<Item = usize> {
    core::iter::successors((bits != 0).then_some(bits), |bits| {
        let rest = bits & (bits - 1);
        (rest != 0).then_some(rest)
    })
    .map(|bits| bits.trailing_zeros() as usize)
}

/// Shufflecast's rules for one source: hosts below ToRs, and one splitter a ToR.
///
/// Nodes: hosts rack by rack, then ToRs, then splitters, each in order of the ToRs, then others. A ToR's
/// first ports are its hosts and its last one is its splitter; a splitter's are the ToRs that it feeds.
#[derive(Debug)]
pub struct Relays {
    /// Number of hosts in a rack.
    pub hosts_per_tor: u32,
    /// Number of ToRs.
    pub tors: u32,
    /// The source's ToR.
    pub source_tor: u32,
    /// The ToRs that relay for it.
    pub relays: BTreeSet<u32>,
    /// The hosts that take the packets.
    pub members: BTreeSet<NodeId>,
}

impl Relays {
    fn next<P: Packet>(
        &self,
        net: &Network<P>,
        node: NodeId,
        from: Option<LinkId>,
        out: &mut Vec<(LinkId, u8)>,
    ) -> bool {
        let hosts = self.hosts_per_tor * self.tors;
        let ports = net.links_from(node);
        if node.0 < hosts {
            if from.is_none() {
                out.push((ports[0], FRESH));
            }
            return true;
        }
        if node.0 >= hosts + self.tors {
            out.extend(ports.iter().map(|&link| (link, FRESH)));
            return false;
        }
        let tor = node.0 - hosts;
        let from_below = from.is_some_and(|link| net.ends(link).0.0 < hosts);
        // What comes back to its source after k hops would loop: the source's rule matches at its hosts only.
        if tor == self.source_tor && !from_below {
            return false;
        }
        let sender = from.map(|link| net.ends(link).0);
        for host in 0..self.hosts_per_tor {
            let host_node = NodeId(tor * self.hosts_per_tor + host);
            if self.members.contains(&host_node) && Some(host_node) != sender {
                out.push((ports[host as usize], FRESH));
            }
        }
        if tor == self.source_tor || self.relays.contains(&tor) {
            out.push((ports[ports.len() - 1], FRESH));
        }
        false
    }
}
