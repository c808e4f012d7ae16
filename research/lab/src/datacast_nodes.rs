//! Names of the nodes of a Datacast fabric and of their interfaces, and the arcs between them.

use polycast_topology::{CompactGraph, Network, Node};

/// A node's name, and that of its namespace: `h3`, `s17`.
#[must_use]
pub(crate) fn node_name(network: &Network, node: Node) -> String {
    use polycast_topology::Graph;
    if node < network.server_count() { format!("h{node}") } else { format!("s{node}") }
}

/// The interface at a port of a node.
pub(crate) fn interface(port: u32) -> String {
    format!("f{port}")
}

/// Returns true if an interface belongs to the fabric.
pub(crate) fn is_fabric(interface: &str) -> bool {
    interface.strip_prefix('f').is_some_and(|number| number.parse::<u32>().is_ok())
}

/// All arcs with the node and port where they begin.
pub(crate) fn arcs(graph: &CompactGraph) -> impl Iterator<Item = (u32, Node, u32)> + '_ {
    (0..graph.node_count()).flat_map(|node| {
        let arcs = graph.arcs(node);
        let first = arcs.start;
        arcs.map(move |arc| (arc, node, arc - first))
    })
}
