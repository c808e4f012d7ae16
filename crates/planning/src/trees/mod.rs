//! Several arc-disjoint Steiner trees for one group (Datacast, section 4 and appendix A).
//!
//! Spanning trees come from the network's construction and are pruned to the group. In a tree that a
//! failure breaks, the branches that have come off are attached again to the nearest part of the tree, over
//! arcs that no other tree uses; if that makes the tree more than half as deep again as a whole one, it is
//! built anew by breadth-first search, with preference to its old arcs. A tree that cannot be mended is
//! released, and its arcs serve the trees after it. As long as the group is connected, at least one tree
//! remains.
//!
//! The paper always builds broken trees anew, which gives them the least depth. Mending takes a third of
//! the time, keeps more of the old tree, whose caches hold data, and needs no more links.

mod planner;
mod routes;
mod spanning;

use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use polycast_topology::{Arc, CompactGraph, Failures, Network, Node, Port, TopologyError};

pub use routes::TreeHop;
use spanning::SpanningTrees;

/// A node of a Steiner tree and the node that feeds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TreeNode {
    /// The node.
    pub node: Node,
    /// Its parent, one step nearer to the source.
    pub parent: Node,
    /// The arc from the parent to the node.
    pub arc: Arc,
    /// Number of links between the source and the node.
    pub depth: u32,
}

/// One Steiner tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SteinerTree {
    /// Number of the spanning tree of the network that it came from.
    pub spanning_tree: u32,
    /// True if it had to be rebuilt because of failures.
    pub repaired: bool,
    /// All nodes but the source.
    pub nodes: Vec<TreeNode>,
}

/// Cost of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeShape {
    /// The links on the longest way from the source to a receiver.
    pub depth: u32,
    /// The links of the tree: the arcs, each of which carries every packet once.
    pub links: u32,
    /// The nodes that are neither the source nor a receiver.
    pub steiner_nodes: u32,
    /// The Steiner nodes that feed more than one node.
    pub branching: u32,
}

impl SteinerTree {
    /// Counts the tree; `is_receiver` tells which nodes are members of the group.
    pub fn shape(&self, is_receiver: impl Fn(Node) -> bool) -> TreeShape {
        let mut parents: Vec<Node> = self.nodes.iter().map(|node| node.parent).collect();
        parents.sort_unstable();
        let source = self.nodes.iter().find(|node| node.depth == 1).map(|node| node.parent);
        let branching = parents
            .chunk_by(|a, b| a == b)
            .filter(|children| children.len() > 1 && Some(children[0]) != source && !is_receiver(children[0]))
            .count();
        TreeShape {
            depth: self.nodes.iter().map(|node| node.depth).max().unwrap_or(0),
            links: self.nodes.len() as u32,
            steiner_nodes: self.nodes.iter().filter(|node| !is_receiver(node.node)).count() as u32,
            branching: branching as u32,
        }
    }

    /// The source route from `receiver` to the source: the port to leave by at every node on the way.
    ///
    /// An interest carries it, so that forwarders need no routing table. `None` if the tree does not
    /// have the receiver.
    #[must_use]
    pub fn source_route(&self, graph: &CompactGraph, receiver: Node) -> Option<Vec<Port>> {
        let mut sorted: Vec<&TreeNode> = self.nodes.iter().collect();
        sorted.sort_unstable_by_key(|node| node.node);
        let find = |node| sorted.binary_search_by_key(&node, |entry| entry.node).ok().map(|at| sorted[at]);
        let mut at = find(receiver)?;
        let mut ports = Vec::with_capacity(at.depth as usize);
        loop {
            ports.push(graph.reverse(at.arc) - graph.arcs(at.node).start);
            match find(at.parent) {
                Some(parent) => at = parent,
                None => return Some(ports),
            }
        }
    }
}

/// The trees of one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreePlan {
    /// The source.
    pub source: Node,
    /// The receivers that every tree reaches, in rising order.
    pub receivers: Vec<Node>,
    /// The receivers that failures cut off from the source, in rising order.
    pub left_out: Vec<Node>,
    /// The trees.
    pub trees: Vec<SteinerTree>,
    /// Number of trees that were broken and could not be rebuilt.
    pub released: u32,
    /// No set of trees can be larger than this: the fewest working ports at the source or a receiver.
    pub bound: u32,
}

impl TreePlan {
    /// Returns true if a node is a receiver of this plan.
    #[must_use]
    pub fn is_receiver(&self, node: Node) -> bool {
        self.receivers.binary_search(&node).is_ok()
    }
}

/// A group that cannot be served, or was described wrongly.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TreeError {
    /// A node that the network does not have.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// A switch where only a server can be.
    #[error("node {node} is a switch: the servers of {network} are 0 to {last}")]
    NotAServer {
        /// The refused node.
        node: Node,
        /// The network.
        network: Network,
        /// Its last server.
        last: Node,
    },
    /// The source cannot send to itself.
    #[error("server {source_node} is the source and also among the receivers: leave it out of the receivers")]
    SourceIsReceiver {
        /// The source.
        source_node: Node,
    },
    /// There is no receiver.
    #[error("the group of source {source_node} has no receivers: name at least one other server")]
    NoReceivers {
        /// The source.
        source_node: Node,
    },
    /// All receivers are cut off.
    #[error(
        "none of the {receivers} receivers can be reached from source {source_node} over working links: \
         repair a link of the source or of a receiver"
    )]
    Disconnected {
        /// The source.
        source_node: Node,
        /// Number of receivers requested.
        receivers: usize,
    },
}

/// Plans the trees of groups in one network.
///
/// Holds the network as arrays and room to work in, so that planning one group after the other allocates
/// only the answers.
#[derive(Clone, Debug)]
pub struct TreePlanner {
    network: Network,
    graph: CompactGraph,
    spanning: SpanningTrees,
    work: planner::Workspace,
    /// Mended trees that are deeper are built anew.
    depth_max: u32,
}

impl TreePlanner {
    /// Lays the network out and builds its spanning trees.
    #[must_use]
    pub fn new(network: Network) -> Self {
        let graph = CompactGraph::new(&network);
        let work = planner::Workspace::new(&graph);
        TreePlanner { network, spanning: SpanningTrees::new(&network), graph, work, depth_max: u32::MAX }
    }

    /// The network.
    #[must_use]
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// The depth of trees where nothing has failed, in links: as many hops have the longest routes.
    #[must_use]
    pub fn whole_depth(&self) -> u32 {
        self.spanning.depth()
    }

    /// Broken trees are to be mended with no more than so many links from the source, where that can be.
    pub fn limit_depth(&mut self, links: u32) {
        self.depth_max = links;
    }

    /// The network as arrays; tree nodes name its arcs.
    #[must_use]
    pub fn graph(&self) -> &CompactGraph {
        &self.graph
    }

    /// Returns the number of trees without failures.
    #[must_use]
    pub fn tree_count(&self) -> u32 {
        self.spanning.tree_count()
    }

    /// The trees for one source and its receivers, around the failures.
    ///
    /// # Errors
    /// If a member is no server, if the source is among the receivers, or if no receiver can be reached. If
    /// only some receivers can be reached, the plan names the others.
    pub fn plan(
        &mut self,
        source: Node,
        receivers: &[Node],
        failures: &Failures,
    ) -> Result<TreePlan, TreeError> {
        let receivers = self.check_group(source, receivers)?;
        self.spanning.set_root(source);
        self.plan_checked(source, receivers, failures)
    }

    /// One tree of shortest ways: what content centric networking without several trees comes to, where every
    /// receiver asks along its own shortest way (section 7, the comparison study).
    ///
    /// # Errors
    /// As [`TreePlanner::plan`].
    pub fn plan_shortest(
        &mut self,
        source: Node,
        receivers: &[Node],
        failures: &Failures,
    ) -> Result<TreePlan, TreeError> {
        let receivers = self.check_group(source, receivers)?;
        self.plan_shortest_checked(source, receivers, failures)
    }

    /// A running plan after further failures: trees that still work stay as they are.
    ///
    /// # Errors
    /// If no receiver can be reached any more.
    pub fn replan(&mut self, plan: TreePlan, failures: &Failures) -> Result<TreePlan, TreeError> {
        // Where a receiver is cut off, the others get new trees.
        self.spanning.set_root(plan.source);
        self.repair_plan(plan, failures)
    }

    /// A running plan after repairs: trees that run stay as they are, and those that were released come back
    /// where there is room for them again.
    ///
    /// # Errors
    /// If no receiver can be reached any more.
    pub fn regain(&mut self, plan: TreePlan, failures: &Failures) -> Result<TreePlan, TreeError> {
        self.spanning.set_root(plan.source);
        self.regain_plan(plan, failures)
    }

    fn check_group(&self, source: Node, receivers: &[Node]) -> Result<Vec<Node>, TreeError> {
        let mut sorted = receivers.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        for &node in sorted.iter().chain([&source]) {
            self.network.checked_node(node.into())?;
            if node >= self.graph.server_count() {
                let last = self.graph.server_count() - 1;
                return Err(TreeError::NotAServer { node, network: self.network, last });
            }
        }
        if sorted.binary_search(&source).is_ok() {
            return Err(TreeError::SourceIsReceiver { source_node: source });
        }
        if sorted.is_empty() {
            return Err(TreeError::NoReceivers { source_node: source });
        }
        Ok(sorted)
    }
}

#[cfg(test)]
mod tests;
