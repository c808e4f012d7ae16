//! Interface that every network offers to a planner, and the compact arrays that a planner may make of it.

use alloc::vec;
use alloc::vec::Vec;

/// A node's number: servers first, then switches.
pub type Node = u32;
/// An undirected link's number.
pub type Link = u32;
/// A port's number at its node.
pub type Port = u32;
/// A directed link's number in a [`CompactGraph`].
pub type Arc = u32;

/// A network as arithmetic: nothing is stored.
pub trait Graph {
    /// Returns the number of nodes, servers and switches together.
    fn node_count(&self) -> u32;
    /// Returns the number of servers among the nodes; these have the numbers below it.
    fn server_count(&self) -> u32;
    /// Returns the number of undirected links.
    fn link_count(&self) -> u32;
    /// Returns the number of wired ports of `node`; they have the numbers below it.
    fn port_count(&self, node: Node) -> u32;
    /// The node at the other end of a port's link.
    fn neighbor(&self, node: Node, port: Port) -> Node;
    /// The link at a port.
    fn link(&self, node: Node, port: Port) -> Link;

    /// The port of `node` that leads to `peer`.
    fn port_to(&self, node: Node, peer: Node) -> Option<Port> {
        (0..self.port_count(node)).find(|&port| self.neighbor(node, port) == peer)
    }
}

/// A network as arrays: for planners that visit much of it again and again.
///
/// Arc `first_arc(node) + port` leads from `node` to its neighbour at `port`. Nine bytes an arc and four
/// a link: fat-tree(96, 3) with its 221,184 servers takes 15 MiB.
#[derive(Clone, Debug)]
pub struct CompactGraph {
    server_count: u32,
    first: Vec<Arc>,
    target: Vec<Node>,
    reverse: Vec<Arc>,
    link_arc: Vec<Arc>,
}

impl CompactGraph {
    /// Lays a network out in arrays.
    #[must_use]
    pub fn new<G: Graph + ?Sized>(graph: &G) -> Self {
        const NONE: Arc = Arc::MAX;
        let nodes = graph.node_count();
        let mut first = Vec::with_capacity(nodes as usize + 1);
        let mut arcs = 0;
        for node in 0..nodes {
            first.push(arcs);
            arcs += graph.port_count(node);
        }
        first.push(arcs);
        let mut target = Vec::with_capacity(arcs as usize);
        let mut reverse = vec![NONE; arcs as usize];
        let mut link_arc = vec![NONE; graph.link_count() as usize];
        for node in 0..nodes {
            for port in 0..graph.port_count(node) {
                let arc = target.len() as Arc;
                target.push(graph.neighbor(node, port));
                let other = &mut link_arc[graph.link(node, port) as usize];
                if *other == NONE {
                    *other = arc;
                } else {
                    reverse[arc as usize] = *other;
                    reverse[*other as usize] = arc;
                }
            }
        }
        debug_assert!(reverse.iter().all(|&arc| arc != NONE), "every link has two ends");
        CompactGraph { server_count: graph.server_count(), first, target, reverse, link_arc }
    }

    /// Returns the number of nodes.
    #[must_use]
    pub fn node_count(&self) -> u32 {
        self.first.len() as u32 - 1
    }

    /// Returns the number of servers among the nodes.
    #[must_use]
    pub fn server_count(&self) -> u32 {
        self.server_count
    }

    /// Returns the number of arcs: two a link.
    #[must_use]
    pub fn arc_count(&self) -> u32 {
        self.target.len() as u32
    }

    /// Returns the number of links.
    #[must_use]
    pub fn link_count(&self) -> u32 {
        self.link_arc.len() as u32
    }

    /// The arcs that leave `node`, in the order of its ports.
    #[must_use]
    #[inline]
    pub fn arcs(&self, node: Node) -> core::ops::Range<Arc> {
        self.first[node as usize]..self.first[node as usize + 1]
    }

    /// The nodes that the arcs of `node` lead to, in the order of its ports.
    #[must_use]
    #[inline]
    pub fn targets(&self, node: Node) -> &[Node] {
        &self.target[self.first[node as usize] as usize..self.first[node as usize + 1] as usize]
    }

    /// The node that an arc leads to.
    #[must_use]
    #[inline]
    pub fn target(&self, arc: Arc) -> Node {
        self.target[arc as usize]
    }

    /// The arc in the other direction of the same link.
    #[must_use]
    #[inline]
    pub fn reverse(&self, arc: Arc) -> Arc {
        self.reverse[arc as usize]
    }

    /// One of the two arcs of a link; [`CompactGraph::reverse`] gives the other.
    #[must_use]
    #[inline]
    pub fn arc_of_link(&self, link: Link) -> Arc {
        self.link_arc[link as usize]
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Ports, neighbours and links agree with each other at every node.
    pub(crate) fn check<G: Graph>(graph: &G) {
        let mut seen = vec![0u8; graph.link_count() as usize];
        for node in 0..graph.node_count() {
            for port in 0..graph.port_count(node) {
                let peer = graph.neighbor(node, port);
                assert!(peer < graph.node_count() && peer != node);
                let link = graph.link(node, port);
                seen[link as usize] += 1;
                let back = graph.port_to(peer, node).expect("links go both ways");
                assert_eq!(graph.link(peer, back), link, "{node} port {port} -> {peer}");
                assert_eq!(graph.port_to(node, peer), Some(port));
            }
        }
        assert!(seen.iter().all(|&ends| ends == 2), "every link has two ends");
        let compact = CompactGraph::new(graph);
        assert_eq!(compact.arc_count(), 2 * graph.link_count());
        for node in 0..graph.node_count() {
            for (port, arc) in compact.arcs(node).enumerate() {
                assert_eq!(compact.target(arc), graph.neighbor(node, port as u32));
                assert_eq!(compact.target(compact.reverse(arc)), node);
            }
        }
    }
}
