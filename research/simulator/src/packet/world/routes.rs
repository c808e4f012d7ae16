//! Paths and trees over the links that are up.
//!
//! Among equally short ways one is chosen by a hash, as switches do for flows; the same hash and the same
//! links give the same way.

use crate::packet::{LinkId, Network, NodeId, Packet};
use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;

const FAR: u32 = u32::MAX;

/// Distances of all nodes from a root, in links that are up.
pub struct Distances {
    root: NodeId,
    hops: Vec<u32>,
}

impl Distances {
    /// Searches the network from `root`.
    #[must_use]
    pub fn from<P: Packet>(net: &Network<P>, root: NodeId) -> Self {
        let mut hops = vec![FAR; net.node_count() as usize];
        let mut queue = VecDeque::from([root]);
        hops[root.index()] = 0;
        while let Some(node) = queue.pop_front() {
            for &link in net.links_from(node) {
                let (_, to) = net.ends(link);
                if net.is_up(link) && hops[to.index()] == FAR {
                    hops[to.index()] = hops[node.index()] + 1;
                    queue.push_back(to);
                }
            }
        }
        Distances { root, hops }
    }

    /// The links that a node is away; `None` if it cannot be reached.
    #[must_use]
    pub fn hops(&self, node: NodeId) -> Option<u32> {
        let hops = self.hops[node.index()];
        (hops != FAR).then_some(hops)
    }

    /// The last link of a shortest way from the root to `node`.
    fn link_into<P: Packet>(&self, net: &Network<P>, node: NodeId, hash: u64) -> Option<LinkId> {
        let hops = self.hops[node.index()];
        if hops == 0 || hops == FAR {
            return None;
        }
        let before = |link: &LinkId| {
            let (from, _) = net.ends(*link);
            net.is_up(*link) && self.hops[from.index()] == hops - 1
        };
        let into = net.links_from(node).iter().filter_map(|&link| net.reverse(link)).filter(before);
        let count = into.clone().count();
        let chosen = spread(hash, node.0) as usize % count.max(1);
        into.into_iter().nth(chosen)
    }

    /// The links of a shortest way from the root to `node`; `None` if there is none.
    #[must_use]
    pub fn path<P: Packet>(&self, net: &Network<P>, node: NodeId, hash: u64) -> Option<Vec<LinkId>> {
        self.hops(node)?;
        let mut path = Vec::new();
        let mut at = node;
        while at != self.root {
            let link = self.link_into(net, at, hash)?;
            path.push(link);
            at = net.ends(link).0;
        }
        path.reverse();
        Some(path)
    }

    /// A tree of shortest ways from the root to all of `members` that can be reached, each link once, those
    /// nearer to the root first.
    #[must_use]
    pub fn tree<P: Packet>(&self, net: &Network<P>, members: &[NodeId], hash: u64) -> Vec<LinkId> {
        let mut reached = vec![false; self.hops.len()];
        let mut links = Vec::new();
        for &member in members {
            let mut at = member;
            while !reached[at.index()]
                && let Some(link) = self.link_into(net, at, hash)
            {
                reached[at.index()] = true;
                links.push(link);
                at = net.ends(link).0;
            }
        }
        links.sort_by_key(|link| (self.hops[net.ends(*link).1.index()], *link));
        links
    }
}

fn spread(hash: u64, node: u32) -> u64 {
    let mixed =
        (hash ^ u64::from(node).wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    mixed >> 32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{Builder, LinkConfig};
    use polycast_topology::{Graph, Network as Topology};
    use polycast_types::{Duration, Rate};
    use proptest::prelude::*;

    #[derive(Clone)]
    struct Nothing;
    impl Packet for Nothing {
        fn digest(&self) -> u64 {
            0
        }
        fn corrupt(&mut self, _: u64) {}
    }

    fn network(topology: &Topology, down: &[u32]) -> Network<Nothing> {
        let config = LinkConfig::new(Rate(1), Duration(1));
        let mut net = Builder::from_graph(topology, |_, _| config).build(1);
        for &link in down {
            let link = LinkId(link % net.link_count());
            let back = net.reverse(link).unwrap();
            net.set_up(link, false);
            net.set_up(back, false);
        }
        net
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn trees_and_paths_are_shortest_and_sound(
            which in 0usize..4, root in any::<u32>(), members in proptest::collection::vec(any::<u32>(), 1..9),
            down in proptest::collection::vec(any::<u32>(), 0..12), hash in any::<u64>(),
        ) {
            let name = ["bcube:4,2", "fat-tree:4,3", "torus:4,2", "leaf-spine:3,2,4"][which];
            let topology: Topology = name.parse().unwrap();
            let net = network(&topology, &down);
            let server = |n: u32| NodeId(n % topology.server_count());
            let members: Vec<NodeId> = members.into_iter().map(server).collect();
            let distances = Distances::from(&net, server(root));
            let tree = distances.tree(&net, &members, hash);
            let mut reached = vec![false; net.node_count() as usize];
            reached[server(root).index()] = true;
            for link in &tree {
                let (from, to) = net.ends(*link);
                prop_assert!(net.is_up(*link) && reached[from.index()] && !reached[to.index()]);
                reached[to.index()] = true;
            }
            for member in members {
                let path = distances.path(&net, member, hash);
                prop_assert_eq!(path.is_some(), reached[member.index()]);
                prop_assert_eq!(path.as_ref().map(|p| p.len() as u32), distances.hops(member));
                let mut at = server(root);
                for link in path.into_iter().flatten() {
                    prop_assert_eq!(net.ends(link).0, at);
                    at = net.ends(link).1;
                }
            }
        }
    }
}
