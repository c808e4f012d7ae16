//! Errors in the description of a network.

use alloc::string::String;

/// A network that cannot be built, or a node or link that it does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    /// A size lies outside what the network's construction allows.
    #[error("{network} cannot have {what} = {value}: choose {range}")]
    Size {
        /// The kind of network.
        network: &'static str,
        /// Name of the size.
        what: &'static str,
        /// The refused value.
        value: u64,
        /// The values that are possible.
        range: &'static str,
    },
    /// The network would have more nodes than ids.
    #[error("{network} of that size has more than {limit} nodes: choose smaller sizes")]
    TooLarge {
        /// The kind of network.
        network: &'static str,
        /// The largest number of nodes.
        limit: u64,
    },
    /// A node's number is too high.
    #[error("node {node} is out of range: {network} has nodes 0 to {last}")]
    NodeRange {
        /// The refused node.
        node: u64,
        /// The network, as it is written on the command line.
        network: String,
        /// Its last node.
        last: u32,
    },
    /// Two nodes without a link between them.
    #[error("there is no link {from}-{to} in {network}: node {from} has {neighbors}")]
    NoLink {
        /// One end.
        from: u32,
        /// The other end.
        to: u32,
        /// The network, as it is written on the command line.
        network: String,
        /// The links that exist, in words.
        neighbors: String,
    },
    /// A text that describes no network.
    #[error(
        "'{text}' is not a topology: write bcube:n,k or torus:n,k or fat-tree:n,k or \
         leaf-spine:leafs,spines,hosts or clos:pods,leafs,spines,hosts,cores"
    )]
    Unknown {
        /// The refused text.
        text: String,
    },
}

/// The largest number of nodes of any network here.
///
/// Leaves room in 32 bits for the numbers of arcs.
pub(crate) const NODE_LIMIT: u64 = 1 << 24;

/// The number of nodes, if it is not too large and no product overflowed.
pub(crate) fn checked_nodes(network: &'static str, nodes: Option<u64>) -> Result<u32, TopologyError> {
    match nodes {
        Some(nodes) if nodes <= NODE_LIMIT => Ok(nodes as u32),
        _ => Err(TopologyError::TooLarge { network, limit: NODE_LIMIT }),
    }
}
