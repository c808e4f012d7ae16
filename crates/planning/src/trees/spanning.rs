//! Arc-disjoint spanning trees of BCube and torus, and the spanning tree of a fat-tree
//! (Datacast, appendix A.1 to A.3).
//!
//! BCube and torus look the same from every server, so their trees are built once for the root 0 and
//! shifted, digit by digit, to any other root. The trees share no arc; links are full duplex, and no set
//! of that many trees could avoid sharing links in opposite directions.

use alloc::vec;
use alloc::vec::Vec;

use polycast_topology::{BCube, Clos, CompactGraph, FatTree, Graph, Network, Node, Port};

/// Stands for "not in this tree" among ports.
const NONE: u16 = u16::MAX;

/// The spanning trees of a network, for any root.
#[derive(Clone, Debug)]
pub(super) struct SpanningTrees {
    shape: Shape,
    tree_count: u32,
    depth: u32,
}

#[derive(Clone, Debug)]
enum Shape {
    /// Trees for root 0, shifted to the root in use.
    Shifted(Shifted),
    FatTree(FatTree),
    Clos(Clos),
}

#[derive(Clone, Debug)]
struct Shifted {
    network: Network,
    /// Port towards the parent in tree `t` of node `v` seen from the root: `[t * nodes + v]`.
    parent_port: Vec<u16>,
    nodes: usize,
    root: Node,
    /// Each node's number as seen from the root.
    seen_as: Vec<Node>,
}

impl SpanningTrees {
    pub(super) fn new(network: &Network) -> Self {
        let shape = match network {
            Network::BCube(bcube) => Shape::Shifted(Shifted::new(*network, bcube_trees(bcube))),
            Network::Torus(torus) => {
                let trees = torus_trees(torus.side(), torus.dimensions());
                Shape::Shifted(Shifted::new(*network, trees))
            }
            Network::FatTree(tree) => Shape::FatTree(*tree),
            Network::Clos(clos) => Shape::Clos(*clos),
        };
        let tree_count = match network {
            Network::BCube(bcube) => bcube.levels(),
            Network::Torus(torus) => 2 * torus.dimensions(),
            Network::FatTree(_) | Network::Clos(_) => 1,
        };
        let depth = match network {
            Network::BCube(bcube) => 2 * (bcube.levels() + 1),
            Network::Torus(torus) => torus.side() - 1 + (torus.dimensions() - 1) * (torus.side() / 2),
            Network::FatTree(tree) => 2 * tree.layers(),
            Network::Clos(clos) => {
                if clos.cores_per_spine() == 0 {
                    4
                } else {
                    6
                }
            }
        };
        SpanningTrees { shape, tree_count, depth }
    }

    pub(super) fn tree_count(&self) -> u32 {
        self.tree_count
    }

    /// The depth of every tree, in links.
    pub(super) fn depth(&self) -> u32 {
        self.depth
    }

    /// Makes `root` the root of the trees.
    pub(super) fn set_root(&mut self, root: Node) {
        if let Shape::Shifted(shifted) = &mut self.shape {
            shifted.set_root(root);
        }
    }

    /// The port of `node` towards its parent in a tree; `None` where the tree does not have the node.
    ///
    /// Not to be asked for the root itself.
    #[inline]
    pub(super) fn parent_port(
        &self,
        graph: &CompactGraph,
        root: Node,
        tree: u32,
        node: Node,
    ) -> Option<Port> {
        match &self.shape {
            Shape::Shifted(shifted) => shifted.parent_port(tree, node),
            Shape::FatTree(fat_tree) => fat_tree_parent_port(fat_tree, root, node),
            Shape::Clos(clos) => clos_parent_port(clos, graph, root, node),
        }
    }
}

impl Shifted {
    fn new(network: Network, parent_port: Vec<u16>) -> Self {
        let nodes = network.node_count();
        let seen_as = (0..nodes).collect();
        Shifted { network, parent_port, nodes: nodes as usize, root: 0, seen_as }
    }

    #[inline]
    fn parent_port(&self, tree: u32, node: Node) -> Option<Port> {
        let port = self.parent_port[tree as usize * self.nodes + self.seen_as[node as usize] as usize];
        if port == NONE {
            return None;
        }
        match &self.network {
            // A switch's port is the digit that it tells apart, and digits are shifted.
            Network::BCube(bcube) if node >= bcube.server_count() => {
                let level = bcube.switch_position(node).0;
                Some((Port::from(port) + bcube.digit(self.root, level)) % bcube.ports())
            }
            _ => Some(port.into()),
        }
    }

    fn set_root(&mut self, root: Node) {
        if root == self.root {
            return;
        }
        self.root = root;
        let (base, digits) = match &self.network {
            Network::BCube(bcube) => (bcube.ports(), bcube.levels()),
            Network::Torus(torus) => (torus.side(), torus.dimensions()),
            Network::FatTree(_) | Network::Clos(_) => return,
        };
        let root_digits: Vec<u32> = (0..digits).map(|j| root / base.pow(j) % base).collect();
        let mut filled = 0;
        fill_shifted(&mut self.seen_as, &mut filled, 0, base, root_digits.iter().copied());
        if matches!(self.network, Network::BCube(_)) {
            // A switch has all digits but that of its level.
            for level in 0..digits as usize {
                let offset = filled as u32;
                let others = (0..digits as usize).filter(|&j| j != level).map(|j| root_digits[j]);
                fill_shifted(&mut self.seen_as, &mut filled, offset, base, others);
            }
        }
    }
}

/// Appends, for every number of the given digits in rising order, `offset` plus that number with each
/// digit lowered by the root's, cyclically. The root's digits come least significant first.
fn fill_shifted(
    out: &mut [Node],
    filled: &mut usize,
    offset: u32,
    base: u32,
    root_digits: impl Iterator<Item = u32>,
) {
    let start = *filled;
    out[start] = offset;
    let mut size = 1usize;
    for root_digit in root_digits {
        // The numbers of one more digit are `base` copies of those before, each raised by that digit.
        // The copy for digit 0 stands in place and is raised last.
        for digit in (0..base).rev() {
            let raise = (digit + base - root_digit) % base * size as u32;
            for low in 0..size {
                out[start + digit as usize * size + low] = out[start + low] + raise;
            }
        }
        size *= base as usize;
    }
    *filled = start + size;
}

/// The k trees of BCube(n, k) for root 0.
///
/// Tree i enters server v at level i if digit i of v is 0, and else at the last level, in the cyclic
/// order i, i+1, .., whose digit is not 0. It comes from the server with that digit 0 or, where digit i
/// is 0, from the one whose digit i is n-1.
fn bcube_trees(bcube: &BCube) -> Vec<u16> {
    let (n, k) = (bcube.ports(), bcube.levels());
    let nodes = bcube.node_count() as usize;
    let mut ports = vec![NONE; nodes * k as usize];
    for tree in 0..k {
        let offset = tree as usize * nodes;
        for server in 1..bcube.server_count() {
            let digit = |level: u32| bcube.digit(server, level % k);
            let (entry, feeder) = if digit(tree) == 0 {
                (tree, n - 1)
            } else {
                let last = (tree..tree + k).rev().find(|&level| digit(level) != 0);
                (last.map_or(tree, |level| level % k), 0)
            };
            ports[offset + server as usize] = entry as u16;
            ports[offset + bcube.switch_of(server, entry) as usize] = feeder as u16;
        }
    }
    ports
}

/// The 2k trees of torus(n, k) for root 0.
fn torus_trees(n: u32, k: u32) -> Vec<u16> {
    // The ring: one tree goes up and so enters from below, the other goes down.
    let mut trees: Vec<Vec<u16>> = vec![vec![1; n as usize], vec![0; n as usize]];
    for tree in &mut trees {
        tree[0] = NONE;
    }
    for dimensions in 2..=k {
        trees = torus_product(n, dimensions - 1, &trees);
    }
    trees.concat()
}

/// The trees of G x H from those of G = torus(n, k) and the ring H of n, all with root 0.
///
/// At a neighbour of the root the tree that cannot use its own arc takes the shortest-path arc, and the
/// tree that is robbed of it takes the arc from the root's column that has become free.
fn torus_product(n: u32, k: u32, inner: &[Vec<u16>]) -> Vec<Vec<u16>> {
    let size = inner[0].len() as u32;
    let (up, down) = (2 * k as u16, 2 * k as u16 + 1);
    // The ring's parents: bfs is the shorter way home, tree 0 goes up and tree 1 down.
    let ring_bfs = |y: u32| if y <= n / 2 { down } else { up };
    let ring_tree = |tree: usize| if tree == 0 { down } else { up };
    let ring_child = [1, n - 1];
    let inner_bfs: Vec<u16> = (0..size).map(|x| shortest_path_port(n, x)).collect();
    let towards_root = |x: u32| neighbor_in_torus(n, x, inner_bfs[x as usize]) == 0;
    let mut trees = Vec::with_capacity(inner.len() + 2);
    for tree in inner {
        let child = (1..size).find(|&x| neighbor_in_torus(n, x, tree[x as usize]) == 0);
        let child = child.expect("a spanning tree leaves its root");
        let to_child = tree[child as usize] ^ 1;
        let parent = |x: u32, y: u32| {
            let own = tree[x as usize];
            if y == 0 {
                own
            } else if x == 0 {
                to_child
            } else if x == child || (ring_child.contains(&y) && inner_bfs[x as usize] == own) {
                ring_bfs(y)
            } else {
                own
            }
        };
        trees.push(lay_out(n, size, parent));
    }
    for (tree, &child) in ring_child.iter().enumerate() {
        let own = ring_tree(tree);
        let parent = |x: u32, y: u32| {
            if x == 0 {
                own
            } else if y == 0 {
                own ^ 1
            } else if y == child || (towards_root(x) && ring_bfs(y) == own) {
                inner_bfs[x as usize]
            } else {
                own
            }
        };
        trees.push(lay_out(n, size, parent));
    }
    trees
}

fn lay_out(n: u32, size: u32, parent: impl Fn(u32, u32) -> u16) -> Vec<u16> {
    let mut ports: Vec<u16> =
        (0..n).flat_map(|y| (0..size).map(move |x| (x, y))).map(|(x, y)| parent(x, y)).collect();
    ports[0] = NONE;
    ports
}

/// The port of a torus node on a shortest path to node 0, dimension by dimension.
fn shortest_path_port(n: u32, node: u32) -> u16 {
    let (mut rest, mut dimension) = (node, 0);
    while rest != 0 {
        match rest % n {
            0 => {}
            digit if digit <= n / 2 => return 2 * dimension + 1,
            _ => return 2 * dimension,
        }
        rest /= n;
        dimension += 1;
    }
    NONE
}

fn neighbor_in_torus(n: u32, node: u32, port: u16) -> u32 {
    let weight = n.pow(u32::from(port) / 2);
    let digit = node / weight % n;
    let next = if port.is_multiple_of(2) { (digit + 1) % n } else { (digit + n - 1) % n };
    node - digit * weight + next * weight
}

/// The up-port that the tree of `root` takes at layer `layer` of a fat-tree.
///
/// The digits of the root pick it, so that the trees of a pod's servers use different cores.
fn up_choice(tree: &FatTree, root: Node, layer: u32) -> u32 {
    root / tree.half().pow(layer.saturating_sub(1)) % tree.half()
}

fn fat_tree_parent_port(tree: &FatTree, root: Node, node: Node) -> Option<Port> {
    let (layer, index) = tree.position(node);
    let half = tree.half();
    // The switch digits must be the up-ports that the root's path takes.
    let mut rest = index;
    for below in (1..layer).rev() {
        if rest % half != up_choice(tree, root, below) {
            return None;
        }
        rest /= half;
    }
    let above_root = if layer == tree.layers() { 0 } else { root / half.pow(layer) };
    if rest == above_root && layer > 0 {
        // On the root's own way up: the parent lies below.
        let span = half.pow(layer - 1);
        return Some(if layer == tree.layers() { root / span } else { root / span % half });
    }
    let up = if layer == 0 { 0 } else { up_choice(tree, root, layer) };
    Some(tree.down_ports(layer) + up)
}

fn clos_parent_port(clos: &Clos, graph: &CompactGraph, root: Node, node: Node) -> Option<Port> {
    use polycast_topology::clos::Kind;
    let root_leaf = clos.leaf_index_of(root);
    let root_pod = root_leaf / clos.leafs_per_pod();
    let plane = root % clos.spines_per_pod();
    let core = if clos.cores_per_spine() == 0 { 0 } else { root_leaf % clos.cores_per_spine() };
    debug_assert!(node < graph.node_count());
    match clos.kind(node) {
        (Kind::Host, _) => Some(0),
        (Kind::Leaf, leaf) if leaf == root_leaf => Some(root % clos.hosts_per_leaf()),
        (Kind::Leaf, _) => Some(clos.hosts_per_leaf() + plane),
        (Kind::Spine, spine) if spine % clos.spines_per_pod() != plane => None,
        (Kind::Spine, spine) if spine / clos.spines_per_pod() == root_pod => {
            Some(root_leaf % clos.leafs_per_pod())
        }
        (Kind::Spine, _) => Some(clos.leafs_per_pod() + core),
        (Kind::Core, index) if index == plane * clos.cores_per_spine() + core => Some(root_pod),
        (Kind::Core, _) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;
    use alloc::format;

    /// Checks that the trees of `root` span all servers and share no arc; returns the largest depth.
    fn check(text: &str, root: Node) -> u32 {
        let network: Network = text.parse().unwrap();
        let graph = CompactGraph::new(&network);
        let mut spanning = SpanningTrees::new(&network);
        spanning.set_root(root);
        let mut used = BTreeSet::new();
        let mut deepest = 0;
        for tree in 0..spanning.tree_count() {
            for server in (0..network.server_count()).filter(|&server| server != root) {
                let (mut node, mut depth) = (server, 0);
                while node != root {
                    let port = spanning.parent_port(&graph, root, tree, node).expect("the tree goes up");
                    let arc = graph.reverse(graph.arcs(node).start + port);
                    used.insert((arc, tree));
                    node = graph.target(graph.arcs(node).start + port);
                    depth += 1;
                    assert!(depth <= 4 * network.node_count(), "{text}: tree {tree} loops at {server}");
                }
                deepest = deepest.max(depth);
            }
        }
        let arcs: BTreeSet<_> = used.iter().map(|&(arc, _)| arc).collect();
        assert_eq!(arcs.len(), used.len(), "{text}: two trees share an arc");
        deepest
    }

    #[test]
    fn bcube_trees_are_disjoint_and_of_depth_two_k_plus_two() {
        let sizes =
            [(4, 2), (4, 3), (8, 2), (3, 3), (2, 3), (2, 4), (5, 4), (2, 2), (3, 2), (6, 3), (3, 5), (2, 7)];
        for (n, k) in sizes {
            let servers = u32::pow(n, k);
            for root in [0, 1, servers / 2, servers - 1] {
                assert_eq!(
                    check(&format!("bcube:{n},{k}"), root),
                    2 * (k + 1),
                    "BCube({n}, {k}) root {root}"
                );
            }
        }
        assert_eq!(check("bcube:8,4", 1234), 10);
    }

    #[test]
    fn torus_trees_are_disjoint_and_as_deep_as_computed() {
        let sizes = [
            (3, 1),
            (5, 1),
            (3, 2),
            (4, 2),
            (5, 2),
            (6, 2),
            (7, 2),
            (16, 2),
            (3, 3),
            (4, 3),
            (5, 3),
            (6, 3),
            (3, 4),
            (4, 4),
            (8, 3),
        ];
        for (n, k) in sizes {
            let servers = u32::pow(n, k);
            for root in [0, 1, servers / 2, servers - 1] {
                let expected = (n - 1) + (k - 1) * (n / 2);
                assert_eq!(check(&format!("torus:{n},{k}"), root), expected, "torus({n}, {k}) root {root}");
            }
        }
        assert_eq!(check("torus:16,3", 77), 31);
    }

    #[test]
    fn fat_tree_is_spanned_at_depth_two_k() {
        for (n, k) in [(4, 2), (4, 3), (6, 3), (8, 3), (4, 4), (6, 4), (4, 5), (10, 2), (10, 3), (12, 3)] {
            for root in [0, 1, 5, n + 1] {
                assert_eq!(check(&format!("fat-tree:{n},{k}"), root), 2 * k);
            }
        }
        assert_eq!(check("leaf-spine:5,3,4", 9), 4);
        assert_eq!(check("clos:3,4,2,3,2", 20), 6);
    }
}
