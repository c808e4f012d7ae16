//! From planned trees to the ways of interests: which port an interest leaves every node by, and which nodes
//! keep what passes (Datacast, sections 3.3 and 6).

use alloc::vec;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use polycast_topology::{CompactGraph, Node, Port};

use super::{SteinerTree, TreePlan};

/// One node on the way from a receiver to the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TreeHop {
    /// The port by which interests leave the node.
    pub port: Port,
    /// The node feeds a single other node and is no receiver: it only passes packets on.
    pub non_branching: bool,
}

impl TreePlan {
    /// The ways of the plan's receivers, in their order; of each receiver, one for every tree.
    #[must_use]
    pub fn ways(&self, graph: &CompactGraph) -> Vec<Vec<Vec<TreeHop>>> {
        let trees: Vec<Marked> = self.trees.iter().map(|tree| Marked::new(tree, self, graph)).collect();
        let of = |&receiver: &Node| trees.iter().map(|tree| tree.way(receiver, self.source)).collect();
        self.receivers.iter().map(of).collect()
    }
}

/// A tree as arrays: which node feeds a node, by which port it asks, and what it is.
struct Marked {
    parent: Vec<Node>,
    port: Vec<Port>,
    non_branching: Vec<bool>,
}

impl Marked {
    fn new(tree: &SteinerTree, plan: &TreePlan, graph: &CompactGraph) -> Self {
        let nodes = graph.node_count() as usize;
        let mut marked = Marked {
            parent: vec![Node::MAX; nodes],
            port: vec![0; nodes],
            non_branching: vec![false; nodes],
        };
        let mut children = vec![0u32; nodes];
        for entry in &tree.nodes {
            let node = entry.node as usize;
            marked.parent[node] = entry.parent;
            marked.port[node] = graph.reverse(entry.arc) - graph.arcs(entry.node).start;
            children[entry.parent as usize] += 1;
        }
        for entry in &tree.nodes {
            let node = entry.node as usize;
            marked.non_branching[node] = children[node] == 1 && !plan.is_receiver(entry.node);
        }
        marked
    }

    fn way(&self, receiver: Node, source: Node) -> Vec<TreeHop> {
        let mut hops = Vec::new();
        let mut node = receiver;
        while node != source {
            let at = node as usize;
            hops.push(TreeHop { port: self.port[at], non_branching: self.non_branching[at] });
            node = self.parent[at];
        }
        hops
    }
}
