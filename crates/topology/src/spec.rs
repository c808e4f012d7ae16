//! Networks written as text: `bcube:4,2`, `torus:16,3`, `fat-tree:48,3`, `leaf-spine:8,4,16`; and as labs
//! write them: `orca:4`, `datacast:bcube:4,2`, `bridge:8`.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;

use crate::error::TopologyError;
use crate::graph::{Graph, Link, Node, Port};
use crate::{BCube, Clos, FatTree, Torus};

/// Any network with nodes, ports and links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// BCube(n, k).
    BCube(BCube),
    /// Torus (n, k).
    Torus(Torus),
    /// Fat-tree (n, k).
    FatTree(FatTree),
    /// Leaf-spine, or pods of it under cores.
    Clos(Clos),
}

/// Runs an expression on whichever network it is.
macro_rules! each {
    ($network:expr, $graph:ident => $value:expr) => {
        match $network {
            Network::BCube($graph) => $value,
            Network::Torus($graph) => $value,
            Network::FatTree($graph) => $value,
            Network::Clos($graph) => $value,
        }
    };
}

impl Graph for Network {
    fn node_count(&self) -> u32 {
        each!(self, graph => graph.node_count())
    }
    fn server_count(&self) -> u32 {
        each!(self, graph => graph.server_count())
    }
    fn link_count(&self) -> u32 {
        each!(self, graph => graph.link_count())
    }
    fn port_count(&self, node: Node) -> u32 {
        each!(self, graph => graph.port_count(node))
    }
    fn neighbor(&self, node: Node, port: Port) -> Node {
        each!(self, graph => graph.neighbor(node, port))
    }
    fn link(&self, node: Node, port: Port) -> Link {
        each!(self, graph => graph.link(node, port))
    }
}

impl Network {
    /// This network as a Clos network, where it is one.
    #[must_use]
    pub fn as_clos(&self) -> Option<Clos> {
        match self {
            Network::Clos(clos) => Some(*clos),
            Network::FatTree(tree) => tree.as_clos(),
            _ => None,
        }
    }

    /// The link between two nodes that the user named.
    ///
    /// # Errors
    /// If one of them does not exist or they are not neighbours.
    pub fn link_between(&self, from: u64, to: u64) -> Result<Link, TopologyError> {
        let (from, to) = (self.checked_node(from)?, self.checked_node(to)?);
        if let Some(port) = self.port_to(from, to) {
            return Ok(self.link(from, port));
        }
        let shown = self.port_count(from).min(8);
        let mut neighbors: Vec<String> =
            (0..shown).map(|port| self.neighbor(from, port).to_string()).collect();
        if self.port_count(from) > shown {
            neighbors.push(format!("{} more", self.port_count(from) - shown));
        }
        let neighbors = format!("links to {}", neighbors.join(", "));
        Err(TopologyError::NoLink { from, to, network: self.to_string(), neighbors })
    }

    /// A node's number, if the network has it.
    ///
    /// # Errors
    /// If the number is too high.
    pub fn checked_node(&self, node: u64) -> Result<Node, TopologyError> {
        if node < self.node_count().into() {
            return Ok(node as Node);
        }
        Err(TopologyError::NodeRange { node, network: self.to_string(), last: self.node_count() - 1 })
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Network::BCube(g) => write!(f, "bcube:{},{}", g.ports(), g.levels()),
            Network::Torus(g) => write!(f, "torus:{},{}", g.side(), g.dimensions()),
            Network::FatTree(g) => write!(f, "fat-tree:{},{}", g.ports(), g.layers()),
            Network::Clos(g) if g.pods() == 1 && g.cores_per_spine() == 0 => {
                write!(f, "leaf-spine:{},{},{}", g.leafs_per_pod(), g.spines_per_pod(), g.hosts_per_leaf())
            }
            Network::Clos(g) => write!(
                f,
                "clos:{},{},{},{},{}",
                g.pods(),
                g.leafs_per_pod(),
                g.spines_per_pod(),
                g.hosts_per_leaf(),
                g.cores_per_spine()
            ),
        }
    }
}

impl FromStr for Network {
    type Err = TopologyError;

    fn from_str(text: &str) -> Result<Self, TopologyError> {
        let unknown = || TopologyError::Unknown { text: text.to_string() };
        // Labs name a network of caching nodes by what runs on it.
        let network = text.strip_prefix("datacast:").unwrap_or(text);
        let (kind, sizes) = network.split_once(':').ok_or_else(unknown)?;
        let sizes: Vec<u32> = sizes
            .split(',')
            .map(|size| size.trim().parse().map_err(|_| unknown()))
            .collect::<Result<_, _>>()?;
        match (kind.trim(), sizes.as_slice()) {
            ("bcube", &[n, k]) => BCube::new(n, k).map(Network::BCube),
            ("torus", &[n, k]) => Torus::new(n, k).map(Network::Torus),
            ("fat-tree", &[n, k]) => FatTree::new(n, k).map(Network::FatTree),
            ("fat-tree" | "orca", &[n]) => FatTree::new(n, 3).map(Network::FatTree),
            ("bridge", &[hosts]) => Clos::leaf_spine(1, 1, hosts).map(Network::Clos),
            ("leaf-spine", &[leafs, spines, hosts]) => {
                Clos::leaf_spine(leafs, spines, hosts).map(Network::Clos)
            }
            ("clos", &[pods, leafs, spines, hosts, cores]) => {
                Clos::new(pods, leafs, spines, hosts, cores).map(Network::Clos)
            }
            _ => Err(unknown()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_round_trip() {
        for text in ["bcube:4,2", "torus:16,3", "fat-tree:48,3", "leaf-spine:8,4,16", "clos:12,48,4,48,1"] {
            assert_eq!(text.parse::<Network>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn labs_words_are_read_too() {
        for (lab, own) in [
            ("orca:4", "fat-tree:4,3"),
            ("datacast:torus:4,2", "torus:4,2"),
            ("bridge:8", "leaf-spine:1,1,8"),
        ] {
            assert_eq!(lab.parse::<Network>().unwrap().to_string(), own);
        }
        for text in ["orca:4,3", "datacast:", "datacast:datacast:bcube:4,2", "bridge:2,2"] {
            assert!(text.parse::<Network>().is_err(), "{text}");
        }
    }

    #[test]
    fn wrong_texts_and_nodes_are_named() {
        for text in ["", "bcube", "bcube:", "bcube:4", "bcube:4,2,1", "ring:8", "torus:a,b", "bcube:-1,2"] {
            assert!(text.parse::<Network>().unwrap_err().to_string().contains("bcube:n,k"), "{text}");
        }
        let bcube: Network = "bcube:4,2".parse().unwrap();
        assert!(bcube.checked_node(24).unwrap_err().to_string().contains("0 to 23"));
        assert_eq!(bcube.link_between(0, 16), Ok(0));
        assert!(bcube.link_between(0, 1).unwrap_err().to_string().contains("16, 20"));
    }
}
