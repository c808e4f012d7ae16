//! BCube(n, k): servers with k ports and k levels of n-port switches (Datacast, appendix A.2).
//!
//! A server's number reads as k digits of base n, most significant first; digit `l` has weight n^l.
//! Switch `<l, i>` joins the n servers that differ in digit `l` alone; `i` is their other digits. It has
//! the number n^k + l n^(k-1) + i, and its port `d` leads to the server whose digit `l` is `d`.

use crate::error::{TopologyError, checked_nodes};
use crate::graph::{Graph, Link, Node, Port};

/// A BCube network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BCube {
    ports: u32,
    levels: u32,
    servers: u32,
    switches_per_level: u32,
}

impl BCube {
    /// BCube(n, k) with n-port switches and k levels.
    ///
    /// # Errors
    /// If n < 2, k < 1 or the network is too large.
    pub fn new(ports: u32, levels: u32) -> Result<Self, TopologyError> {
        let network = "BCube";
        let size =
            |what, value: u32, range| TopologyError::Size { network, what, value: value.into(), range };
        if ports < 2 {
            return Err(size("n", ports, "n of at least 2 ports a switch"));
        }
        if levels < 1 {
            return Err(size("k", levels, "k of at least 1 level"));
        }
        let servers = u64::from(ports).checked_pow(levels);
        let switches = servers.and_then(|s| (s / u64::from(ports)).checked_mul(levels.into()));
        checked_nodes(network, servers.zip(switches).and_then(|(a, b)| a.checked_add(b)))?;
        let servers = ports.pow(levels);
        Ok(BCube { ports, levels, servers, switches_per_level: servers / ports })
    }

    /// Returns the number of ports of a switch (n).
    #[must_use]
    pub fn ports(&self) -> u32 {
        self.ports
    }

    /// Returns the number of levels, and of ports of a server (k).
    #[must_use]
    pub fn levels(&self) -> u32 {
        self.levels
    }

    /// Digit `level` of a server's number.
    #[must_use]
    pub fn digit(&self, server: Node, level: u32) -> u32 {
        server / self.ports.pow(level) % self.ports
    }

    /// A switch's level and its number within the level.
    #[must_use]
    pub fn switch_position(&self, switch: Node) -> (u32, u32) {
        let index = switch - self.servers;
        (index / self.switches_per_level, index % self.switches_per_level)
    }

    /// The switch of `level` that joins `server` to the servers that differ in that digit alone.
    #[must_use]
    pub fn switch_of(&self, server: Node, level: u32) -> Node {
        let weight = self.ports.pow(level);
        let index = server / (weight * self.ports) * weight + server % weight;
        self.servers + level * self.switches_per_level + index
    }

    /// The server at a switch's port.
    #[must_use]
    pub fn server_at(&self, switch: Node, port: Port) -> Node {
        let (level, index) = self.switch_position(switch);
        let weight = self.ports.pow(level);
        index / weight * weight * self.ports + port * weight + index % weight
    }
}

impl Graph for BCube {
    fn node_count(&self) -> u32 {
        self.servers + self.levels * self.switches_per_level
    }

    fn server_count(&self) -> u32 {
        self.servers
    }

    fn link_count(&self) -> u32 {
        self.servers * self.levels
    }

    fn port_count(&self, node: Node) -> u32 {
        if node < self.servers { self.levels } else { self.ports }
    }

    fn neighbor(&self, node: Node, port: Port) -> Node {
        if node < self.servers { self.switch_of(node, port) } else { self.server_at(node, port) }
    }

    fn link(&self, node: Node, port: Port) -> Link {
        if node < self.servers {
            node * self.levels + port
        } else {
            self.server_at(node, port) * self.levels + self.switch_position(node).0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::tests::check;

    #[test]
    fn links_are_consistent() {
        for (n, k) in [(2, 1), (4, 2), (4, 3), (3, 3), (2, 4), (8, 2), (5, 1)] {
            check(&BCube::new(n, k).unwrap());
        }
    }

    #[test]
    fn numbers_are_the_papers() {
        let bcube = BCube::new(4, 2).unwrap();
        // Server 32 is 3 * 4 + 2; switch <1, 2> joins 02, 12, 22 and 32.
        assert_eq!(bcube.switch_of(14, 1), 16 + 4 + 2);
        assert_eq!((0..4).map(|d| bcube.server_at(22, d)).collect::<alloc::vec::Vec<_>>(), [2, 6, 10, 14]);
        let large = BCube::new(8, 4).unwrap();
        assert_eq!((large.server_count(), large.node_count()), (4096, 4096 + 2048));
    }

    #[test]
    fn impossible_sizes_are_named() {
        use alloc::string::ToString;
        assert!(BCube::new(1, 2).unwrap_err().to_string().contains("n = 1"));
        assert!(BCube::new(4, 0).unwrap_err().to_string().contains("k = 0"));
        assert!(BCube::new(4_000_000_000, 4_000_000_000).is_err());
        assert!(BCube::new(100, 4).is_err());
    }
}
