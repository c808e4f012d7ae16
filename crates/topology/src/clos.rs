//! A multi-rooted Clos network: pods of leaf-spine, joined by cores (Orca, section 3.2).
//!
//! Every leaf of a pod is wired to every spine of that pod. Spine number j of each pod is wired to the
//! same `cores_per_spine` cores; without cores there is one pod, a leaf-spine network. Numbers: all hosts
//! pod by pod and leaf by leaf, then all leafs, all spines, all cores. Ports: down first, then up.

use crate::error::{TopologyError, checked_nodes};
use crate::graph::{Graph, Link, Node, Port};

/// A Clos network of two or three layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clos {
    pods: u32,
    leafs_per_pod: u32,
    spines_per_pod: u32,
    hosts_per_leaf: u32,
    cores_per_spine: u32,
}

impl Clos {
    /// `pods` pods of `leafs` leafs and `spines` spines each, `hosts` hosts a leaf, `cores` cores a spine.
    ///
    /// # Errors
    /// If a size is zero, if there are several pods without cores, or if the network is too large.
    pub fn new(pods: u32, leafs: u32, spines: u32, hosts: u32, cores: u32) -> Result<Self, TopologyError> {
        let network = "Clos network";
        let sizes = [("pods", pods), ("leafs", leafs), ("spines", spines), ("hosts", hosts)];
        for (what, value) in sizes {
            if value == 0 {
                return Err(TopologyError::Size { network, what, value: 0, range: "at least 1" });
            }
        }
        if pods > 1 && cores == 0 {
            let range = "at least 1 core a spine to join several pods";
            return Err(TopologyError::Size { network, what: "cores", value: 0, range });
        }
        let (p, l, s) = (u64::from(pods), u64::from(leafs), u64::from(spines));
        let hosts_total = p.checked_mul(l).and_then(|leafs| leafs.checked_mul(hosts.into()));
        let switches = p.checked_mul(l + s).and_then(|n| n.checked_add(s * u64::from(cores)));
        checked_nodes(network, hosts_total.zip(switches).and_then(|(a, b)| a.checked_add(b)))?;
        // The wires grow faster than the nodes: they too must stay countable.
        let wires = p.checked_mul(l).and_then(|leafs| leafs.checked_mul(s));
        let wires_up = p.checked_mul(s).and_then(|spines| spines.checked_mul(cores.into()));
        if wires.zip(wires_up).is_none_or(|(a, b)| a.max(b) >= 1 << 28) {
            return Err(TopologyError::TooLarge { network, limit: crate::error::NODE_LIMIT });
        }
        Ok(Clos {
            pods,
            leafs_per_pod: leafs,
            spines_per_pod: spines,
            hosts_per_leaf: hosts,
            cores_per_spine: cores,
        })
    }

    /// A leaf-spine network: one pod, no cores.
    ///
    /// # Errors
    /// As [`Clos::new`].
    pub fn leaf_spine(leafs: u32, spines: u32, hosts: u32) -> Result<Self, TopologyError> {
        Clos::new(1, leafs, spines, hosts, 0)
    }

    /// Returns the number of pods.
    #[must_use]
    pub fn pods(&self) -> u32 {
        self.pods
    }

    /// Returns the number of leafs in a pod: a spine's ports down.
    #[must_use]
    pub fn leafs_per_pod(&self) -> u32 {
        self.leafs_per_pod
    }

    /// Returns the number of spines in a pod: a leaf's ports up.
    #[must_use]
    pub fn spines_per_pod(&self) -> u32 {
        self.spines_per_pod
    }

    /// Returns the number of hosts at a leaf: a leaf's ports down.
    #[must_use]
    pub fn hosts_per_leaf(&self) -> u32 {
        self.hosts_per_leaf
    }

    /// Returns the number of cores that a spine is wired to: a spine's ports up.
    #[must_use]
    pub fn cores_per_spine(&self) -> u32 {
        self.cores_per_spine
    }

    /// Returns the number of hosts.
    #[must_use]
    pub fn hosts(&self) -> u32 {
        self.leafs() * self.hosts_per_leaf
    }

    /// Returns the number of leafs.
    #[must_use]
    pub fn leafs(&self) -> u32 {
        self.pods * self.leafs_per_pod
    }

    /// Returns the number of spines.
    #[must_use]
    pub fn spines(&self) -> u32 {
        self.pods * self.spines_per_pod
    }

    /// Returns the number of cores.
    #[must_use]
    pub fn cores(&self) -> u32 {
        self.spines_per_pod * self.cores_per_spine
    }

    /// The number of leaf `index`, counted over all pods.
    #[must_use]
    pub fn leaf(&self, index: u32) -> Node {
        self.hosts() + index
    }

    /// The number of spine `plane` of `pod`.
    #[must_use]
    pub fn spine(&self, pod: u32, plane: u32) -> Node {
        self.hosts() + self.leafs() + pod * self.spines_per_pod + plane
    }

    /// The number of the core at up-port `up` of the spines of `plane`.
    #[must_use]
    pub fn core(&self, plane: u32, up: u32) -> Node {
        self.hosts() + self.leafs() + self.spines() + plane * self.cores_per_spine + up
    }

    /// The leaf of a host, counted over all pods.
    #[must_use]
    #[inline]
    pub fn leaf_index_of(&self, host: Node) -> u32 {
        host / self.hosts_per_leaf
    }

    /// Returns the kind of this node, and its number among its kind.
    #[must_use]
    pub fn kind(&self, node: Node) -> (Kind, u32) {
        let mut index = node;
        for (kind, count) in
            [(Kind::Host, self.hosts()), (Kind::Leaf, self.leafs()), (Kind::Spine, self.spines())]
        {
            if index < count {
                return (kind, index);
            }
            index -= count;
        }
        (Kind::Core, index)
    }
}

/// The layers of a Clos network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A server.
    Host,
    /// A top-of-rack switch.
    Leaf,
    /// A switch that joins the leafs of a pod.
    Spine,
    /// A switch that joins the pods.
    Core,
}

impl Graph for Clos {
    fn node_count(&self) -> u32 {
        self.hosts() + self.leafs() + self.spines() + self.cores()
    }

    fn server_count(&self) -> u32 {
        self.hosts()
    }

    fn link_count(&self) -> u32 {
        self.hosts() + self.leafs() * self.spines_per_pod + self.spines() * self.cores_per_spine
    }

    fn port_count(&self, node: Node) -> u32 {
        match self.kind(node).0 {
            Kind::Host => 1,
            Kind::Leaf => self.hosts_per_leaf + self.spines_per_pod,
            Kind::Spine => self.leafs_per_pod + self.cores_per_spine,
            Kind::Core => self.pods,
        }
    }

    fn neighbor(&self, node: Node, port: Port) -> Node {
        match self.kind(node) {
            (Kind::Host, host) => self.leaf(self.leaf_index_of(host)),
            (Kind::Leaf, leaf) if port < self.hosts_per_leaf => leaf * self.hosts_per_leaf + port,
            (Kind::Leaf, leaf) => self.spine(leaf / self.leafs_per_pod, port - self.hosts_per_leaf),
            (Kind::Spine, spine) if port < self.leafs_per_pod => {
                self.leaf(spine / self.spines_per_pod * self.leafs_per_pod + port)
            }
            (Kind::Spine, spine) => self.core(spine % self.spines_per_pod, port - self.leafs_per_pod),
            (Kind::Core, core) => self.spine(port, core / self.cores_per_spine),
        }
    }

    fn link(&self, node: Node, port: Port) -> Link {
        let leaf_links = self.hosts();
        let spine_links = leaf_links + self.leafs() * self.spines_per_pod;
        match self.kind(node) {
            (Kind::Host, host) => host,
            (Kind::Leaf, leaf) if port < self.hosts_per_leaf => leaf * self.hosts_per_leaf + port,
            (Kind::Leaf, leaf) => leaf_links + leaf * self.spines_per_pod + port - self.hosts_per_leaf,
            (Kind::Spine, spine) if port < self.leafs_per_pod => {
                let leaf = spine / self.spines_per_pod * self.leafs_per_pod + port;
                leaf_links + leaf * self.spines_per_pod + spine % self.spines_per_pod
            }
            (Kind::Spine, spine) => spine_links + spine * self.cores_per_spine + port - self.leafs_per_pod,
            (Kind::Core, core) => {
                let spine = port * self.spines_per_pod + core / self.cores_per_spine;
                spine_links + spine * self.cores_per_spine + core % self.cores_per_spine
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::tests::check;

    #[test]
    fn links_are_consistent() {
        for (p, l, s, h, c) in [(1, 4, 2, 3, 0), (3, 2, 2, 4, 1), (4, 2, 3, 1, 2), (12, 4, 4, 4, 1)] {
            check(&Clos::new(p, l, s, h, c).unwrap());
        }
    }

    #[test]
    fn several_pods_need_cores() {
        assert!(Clos::new(2, 1, 1, 1, 0).is_err());
        assert!(Clos::new(1, 1, 0, 1, 0).is_err());
        assert!(Clos::new(1, 100_000, 100_000, 1, 0).is_err());
    }
}
