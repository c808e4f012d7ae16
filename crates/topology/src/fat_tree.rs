//! Topology fat-tree(n, k): n-port switches in k layers, 2 (n/2)^k servers (Datacast, appendix A.1).
//!
//! With h = n/2, a server reads as a pod digit below n and k - 1 digits below h. The switches of layer l < k
//! have the server's digits without the last l, and then l - 1 digits below h that tell apart the switches
//! above the same servers. Numbers: all servers, then all switches of layer 1 (leaf), then of layer 2
//! (spine), and so on, each in the order of their digits.
//!
//! Ports of a switch: down first, in the order of the nodes below, then up.

use crate::clos::Clos;
use crate::error::{TopologyError, checked_nodes};
use crate::graph::{Graph, Link, Node, Port};

/// A fat-tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FatTree {
    ports: u32,
    layers: u32,
    /// Servers, and also up-links of every layer: 2 (n/2)^k.
    servers: u32,
}

impl FatTree {
    /// Creates fat-tree(n, k) of n-port switches in k layers.
    ///
    /// # Errors
    /// If n is odd or below 4, k < 2 or the network is too large.
    pub fn new(ports: u32, layers: u32) -> Result<Self, TopologyError> {
        let network = "fat-tree";
        let size =
            |what, value: u32, range| TopologyError::Size { network, what, value: value.into(), range };
        if ports < 4 || ports % 2 == 1 {
            return Err(size("n", ports, "an even n of at least 4 ports a switch"));
        }
        if layers < 2 {
            return Err(size("k", layers, "k of at least 2 layers"));
        }
        let half = u64::from(ports / 2);
        let nodes = half
            .checked_pow(layers - 1)
            .and_then(|top| top.checked_mul(2 * half + 2 * u64::from(layers - 1) + 1));
        checked_nodes(network, nodes)?;
        Ok(FatTree { ports, layers, servers: 2 * (ports / 2).pow(layers) })
    }

    /// Returns the number of ports of a switch (n).
    #[must_use]
    pub fn ports(&self) -> u32 {
        self.ports
    }

    /// Returns the number of layers of switches (k).
    #[must_use]
    pub fn layers(&self) -> u32 {
        self.layers
    }

    /// Returns the number of ports of a switch that lead one way (n/2).
    #[must_use]
    pub fn half(&self) -> u32 {
        self.ports / 2
    }

    /// The switches of each layer but the top one.
    #[must_use]
    pub fn switches_per_layer(&self) -> u32 {
        self.servers / self.half()
    }

    /// A node's layer (0 for servers) and its number within the layer.
    #[must_use]
    pub fn position(&self, node: Node) -> (u32, u32) {
        if node < self.servers {
            return (0, node);
        }
        let index = node - self.servers;
        (1 + index / self.switches_per_layer(), index % self.switches_per_layer())
    }

    /// The node with a number within a layer.
    #[must_use]
    pub fn node_at(&self, layer: u32, index: u32) -> Node {
        if layer == 0 { index } else { self.servers + (layer - 1) * self.switches_per_layer() + index }
    }

    /// The same network with three layers, seen as pods of leaf-spine under cores: same node numbers.
    #[must_use]
    pub fn as_clos(&self) -> Option<Clos> {
        let half = self.half();
        if self.layers == 3 { Clos::new(self.ports, half, half, half, half).ok() } else { None }
    }

    /// Returns the number of switches of `layer` that stand above the same servers.
    fn parallel(&self, layer: u32) -> u32 {
        if layer == 0 { 1 } else { self.half().pow(layer - 1) }
    }

    /// The parent of the node at (`layer`, `index`) by up-port `up`, as the number within its layer.
    fn above(&self, layer: u32, index: u32, up: u32) -> u32 {
        if layer == 0 {
            return index / self.half();
        }
        let parallel = self.parallel(layer);
        let (subtree, which) = (index / parallel, index % parallel);
        // The layer above drops one digit of the subtree and gains the up-port as its last digit.
        let wider = if layer + 1 == self.layers { 0 } else { subtree / self.half() };
        (wider * parallel + which) * self.half() + up
    }

    /// The child of the switch at (`layer`, `index`) by down-port `down`, within its layer.
    fn below(&self, layer: u32, index: u32, down: u32) -> u32 {
        if layer == 1 {
            return index * self.half() + down;
        }
        let parallel = self.parallel(layer - 1);
        let which = index % (parallel * self.half()) / self.half();
        let subtree = index / (parallel * self.half()) * self.half() + down;
        subtree * parallel + which
    }

    /// Returns the number of ports of a node of this layer that lead down.
    #[must_use]
    pub fn down_ports(&self, layer: u32) -> u32 {
        match layer {
            0 => 0,
            layer if layer == self.layers => self.ports,
            _ => self.half(),
        }
    }
}

impl Graph for FatTree {
    fn node_count(&self) -> u32 {
        self.servers + (self.layers - 1) * self.switches_per_layer() + self.switches_per_layer() / 2
    }

    fn server_count(&self) -> u32 {
        self.servers
    }

    fn link_count(&self) -> u32 {
        self.servers * self.layers
    }

    fn port_count(&self, node: Node) -> u32 {
        if node < self.servers { 1 } else { self.ports }
    }

    fn neighbor(&self, node: Node, port: Port) -> Node {
        let (layer, index) = self.position(node);
        let down = self.down_ports(layer);
        if port < down {
            self.node_at(layer - 1, self.below(layer, index, port))
        } else {
            self.node_at(layer + 1, self.above(layer, index, port - down))
        }
    }

    fn link(&self, node: Node, port: Port) -> Link {
        // A link belongs to its lower end, which has one (server) or n/2 (switch) of them.
        let (layer, index) = self.position(node);
        let down = self.down_ports(layer);
        let (lower_layer, lower, up) = if port >= down {
            (layer, index, port - down)
        } else {
            let up = if layer == 1 { 0 } else { index % self.half() };
            (layer - 1, self.below(layer, index, port), up)
        };
        if lower_layer == 0 { lower } else { lower_layer * self.servers + lower * self.half() + up }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::tests::check;

    #[test]
    fn links_are_consistent() {
        for (n, k) in [(4, 2), (4, 3), (6, 3), (8, 3), (4, 4), (4, 5), (6, 2)] {
            check(&FatTree::new(n, k).unwrap());
        }
        assert!(FatTree::new(5, 3).is_err());
        assert!(FatTree::new(2, 3).is_err());
        assert!(FatTree::new(4, 1).is_err());
        assert!(FatTree::new(65_536, 3).is_err());
    }

    #[test]
    fn sizes_are_the_papers() {
        let tree = FatTree::new(48, 3).unwrap();
        assert_eq!((tree.server_count(), tree.node_count()), (27_648, 27_648 + 2880));
        assert_eq!(FatTree::new(96, 3).unwrap().server_count(), 221_184);
    }

    #[test]
    fn three_layers_are_a_clos() {
        let tree = FatTree::new(6, 3).unwrap();
        let clos = tree.as_clos().unwrap();
        assert_eq!(clos.node_count(), tree.node_count());
        for node in 0..tree.node_count() {
            for port in 0..tree.port_count(node) {
                assert_eq!(clos.neighbor(node, port), tree.neighbor(node, port), "{node} port {port}");
            }
        }
    }
}
