//! Topology torus(n, k): servers in a k-dimensional grid that wraps round, without switches (Datacast,
//! appendix A.3).
//!
//! A server's number reads as k digits of base n, most significant first; digit `j` has weight n^j. Port 2j
//! leads one step up in dimension j, port 2j + 1 one step down.

use crate::error::{TopologyError, checked_nodes};
use crate::graph::{Graph, Link, Node, Port};

/// A torus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Torus {
    side: u32,
    dimensions: u32,
    servers: u32,
}

impl Torus {
    /// Creates torus(n, k) with n servers in each of k dimensions.
    ///
    /// # Errors
    /// If n < 3 (two servers would be joined twice), k < 1 or the network is too large.
    pub fn new(side: u32, dimensions: u32) -> Result<Self, TopologyError> {
        let network = "torus";
        let size =
            |what, value: u32, range| TopologyError::Size { network, what, value: value.into(), range };
        if side < 3 {
            return Err(size("n", side, "n of at least 3 servers in a dimension"));
        }
        if dimensions < 1 {
            return Err(size("k", dimensions, "k of at least 1 dimension"));
        }
        let servers = checked_nodes(network, u64::from(side).checked_pow(dimensions))?;
        Ok(Torus { side, dimensions, servers })
    }

    /// Returns the number of servers in one dimension (n).
    #[must_use]
    pub fn side(&self) -> u32 {
        self.side
    }

    /// Returns the number of dimensions (k).
    #[must_use]
    pub fn dimensions(&self) -> u32 {
        self.dimensions
    }

    fn step(&self, node: Node, dimension: u32, up: bool) -> Node {
        let weight = self.side.pow(dimension);
        let digit = node / weight % self.side;
        match (up, digit) {
            (true, d) if d + 1 == self.side => node - d * weight,
            (true, _) => node + weight,
            (false, 0) => node + (self.side - 1) * weight,
            (false, _) => node - weight,
        }
    }
}

impl Graph for Torus {
    fn node_count(&self) -> u32 {
        self.servers
    }

    fn server_count(&self) -> u32 {
        self.servers
    }

    fn link_count(&self) -> u32 {
        self.servers * self.dimensions
    }

    fn port_count(&self, _node: Node) -> u32 {
        2 * self.dimensions
    }

    fn neighbor(&self, node: Node, port: Port) -> Node {
        self.step(node, port / 2, port.is_multiple_of(2))
    }

    fn link(&self, node: Node, port: Port) -> Link {
        // A link belongs to the end that it leads up from.
        let lower = if port.is_multiple_of(2) { node } else { self.neighbor(node, port) };
        lower * self.dimensions + port / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::tests::check;

    #[test]
    fn links_are_consistent() {
        for (n, k) in [(3, 1), (4, 2), (3, 3), (5, 2), (4, 3)] {
            check(&Torus::new(n, k).unwrap());
        }
        assert!(Torus::new(2, 2).is_err());
        assert!(Torus::new(300, 4).is_err());
    }
}
