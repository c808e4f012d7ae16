//! Pruning, repair and release (Datacast, figure 3).

use alloc::vec;
use alloc::vec::Vec;
use core::mem;

use polycast_topology::{Arc, CompactGraph, Failures, Node};

use super::{SteinerTree, TreeError, TreeNode, TreePlan, TreePlanner};

/// No tree uses the arc, and it works.
const FREE: u8 = 0;
/// The arc has failed.
const FAILED: u8 = u8::MAX;
/// Levels of nodes that the search has not reached, receivers that it looks for and others.
const UNSEEN: u16 = u16::MAX;
const UNSEEN_WANTED: u16 = u16::MAX - 1;

/// Room to work in, kept from one group to the next.
#[derive(Clone, Debug)]
pub(super) struct Workspace {
    /// User of each arc: `FREE`, `FAILED`, or a tree's number plus one.
    owner: Vec<u8>,
    /// A node is in the tree at hand if its mark is the current stamp.
    mark: Vec<u32>,
    stamp: u32,
    /// Depth of marked nodes; breadth-first level while searching.
    level: Vec<u16>,
    /// The arc by which the old tree entered a node; valid where `old_mark` is the current stamp.
    old_arc: Vec<Arc>,
    old_mark: Vec<u32>,
    queue: Vec<Node>,
    /// While a branch is being attached again: the search that has seen a node last, and the arc by which
    /// that node would feed the branch.
    seen: Vec<u32>,
    search: u32,
    feeds_by: Vec<Arc>,
    /// Nodes that nothing attached can reach while the tree at hand is mended: equal to the current stamp.
    lost: Vec<u32>,
    /// Nodes below this number have one port and so never forward.
    dead_ends: Node,
}

impl Workspace {
    pub(super) fn new(graph: &CompactGraph) -> Self {
        let nodes = graph.node_count() as usize;
        let forwards = (0..graph.server_count()).any(|server| graph.arcs(server).len() > 1);
        Workspace {
            dead_ends: if forwards { 0 } else { graph.server_count() },
            owner: vec![FREE; graph.arc_count() as usize],
            mark: vec![0; nodes],
            stamp: 0,
            level: vec![UNSEEN; nodes],
            old_arc: vec![0; nodes],
            old_mark: vec![0; nodes],
            queue: vec![0; nodes + 1],
            seen: vec![0; nodes],
            search: 0,
            feeds_by: vec![0; nodes],
            lost: vec![0; nodes],
        }
    }

    fn next_stamp(&mut self) -> u32 {
        if self.stamp == u32::MAX {
            // Once in four thousand million trees the old marks have to be wiped.
            self.mark.fill(0);
            self.old_mark.fill(0);
            self.lost.fill(0);
            self.stamp = 0;
        }
        self.stamp += 1;
        self.stamp
    }

    fn load_failures(&mut self, graph: &CompactGraph, failures: &Failures) {
        self.owner.fill(FREE);
        for link in failures.links().iter().take_while(|&link| link < graph.link_count()) {
            let arc = graph.arc_of_link(link);
            self.owner[arc as usize] = FAILED;
            self.owner[graph.reverse(arc) as usize] = FAILED;
        }
        for node in failures.nodes().iter().take_while(|&node| node < graph.node_count()) {
            for arc in graph.arcs(node) {
                self.owner[arc as usize] = FAILED;
                self.owner[graph.reverse(arc) as usize] = FAILED;
            }
        }
    }

    /// The arcs that trees use, as (arc, number of the tree).
    #[cfg(test)]
    pub(super) fn used_arcs(&self) -> impl Iterator<Item = (Arc, u32)> {
        let owners = (0..).zip(self.owner.iter().copied());
        owners
            .filter(|(_, owner)| ![FREE, FAILED].contains(owner))
            .map(|(arc, owner)| (arc, u32::from(owner) - 1))
    }

    fn working_in(&self, graph: &CompactGraph, node: Node) -> u32 {
        graph.arcs(node).filter(|&arc| self.owner[graph.reverse(arc) as usize] != FAILED).count() as u32
    }

    fn working_out(&self, graph: &CompactGraph, node: Node) -> u32 {
        graph.arcs(node).filter(|&arc| self.owner[arc as usize] != FAILED).count() as u32
    }
}

/// A tree while it is being planned.
struct Draft {
    tree: SteinerTree,
    broken: bool,
}

impl TreePlanner {
    pub(super) fn plan_checked(
        &mut self,
        source: Node,
        receivers: Vec<Node>,
        failures: &Failures,
    ) -> Result<TreePlan, TreeError> {
        self.work.load_failures(&self.graph, failures);
        self.plan_free(source, receivers, Vec::new())
    }

    /// One tree of shortest ways, which share as many links as they can.
    pub(super) fn plan_shortest_checked(
        &mut self,
        source: Node,
        receivers: Vec<Node>,
        failures: &Failures,
    ) -> Result<TreePlan, TreeError> {
        self.work.load_failures(&self.graph, failures);
        let (reached, left_out) = self.reachable(source, &receivers);
        if reached.is_empty() {
            return Err(TreeError::Disconnected { source_node: source, receivers: receivers.len() });
        }
        let mut tree = SteinerTree { spanning_tree: 0, repaired: false, nodes: Vec::new() };
        tree.nodes = self.select(source, &reached, &tree);
        Ok(TreePlan { source, receivers: reached, left_out, trees: vec![tree], released: 0, bound: 1 })
    }

    /// Plans while no tree uses any arc.
    fn plan_free(
        &mut self,
        source: Node,
        receivers: Vec<Node>,
        left_out: Vec<Node>,
    ) -> Result<TreePlan, TreeError> {
        let trees = 0..self.spanning.tree_count();
        let drafts = trees.map(|tree| self.prune(tree, source, &receivers)).collect();
        self.finish(source, receivers, left_out, drafts, 0)
    }

    pub(super) fn repair_plan(&mut self, plan: TreePlan, failures: &Failures) -> Result<TreePlan, TreeError> {
        self.work.load_failures(&self.graph, failures);
        let drafts = self.drafts_of(plan.trees);
        self.finish(plan.source, plan.receivers, plan.left_out, drafts, plan.released)
    }

    pub(super) fn regain_plan(&mut self, plan: TreePlan, failures: &Failures) -> Result<TreePlan, TreeError> {
        self.work.load_failures(&self.graph, failures);
        let running: Vec<u32> = plan.trees.iter().map(|tree| tree.spanning_tree).collect();
        let mut drafts = self.drafts_of(plan.trees);
        for tree in (0..self.spanning.tree_count()).filter(|tree| !running.contains(tree)) {
            let draft = self.prune(tree, plan.source, &plan.receivers);
            drafts.push(draft);
        }
        self.finish(plan.source, plan.receivers, plan.left_out, drafts, 0)
    }

    /// Running trees, which take their arcs as far as these work.
    fn drafts_of(&mut self, trees: Vec<SteinerTree>) -> Vec<Draft> {
        let take = |tree: SteinerTree| {
            let owner = tree.spanning_tree as u8 + 1;
            let mut broken = false;
            for node in &tree.nodes {
                let slot = &mut self.work.owner[node.arc as usize];
                broken |= *slot == FAILED;
                if *slot == FREE {
                    *slot = owner;
                }
            }
            Draft { tree, broken }
        };
        trees.into_iter().map(take).collect()
    }

    /// The part of a spanning tree that lies between the source and the receivers.
    fn prune(&mut self, tree: u32, source: Node, receivers: &[Node]) -> Draft {
        let stamp = self.work.next_stamp();
        let work = &mut self.work;
        work.mark[source as usize] = stamp;
        work.level[source as usize] = 0;
        let mut nodes: Vec<TreeNode> = Vec::with_capacity(4 * receivers.len());
        let mut broken = false;
        for &receiver in receivers {
            let start = nodes.len();
            let mut node = receiver;
            while work.mark[node as usize] != stamp {
                work.mark[node as usize] = stamp;
                let port = self.spanning.parent_port(&self.graph, source, tree, node);
                let up = self.graph.arcs(node).start + port.expect("a way up from every server");
                let (parent, arc) = (self.graph.target(up), self.graph.reverse(up));
                let owner = &mut work.owner[arc as usize];
                // An arc that has failed, or that a tree uses which had to be mended.
                broken |= *owner != FREE;
                if *owner == FREE {
                    *owner = tree as u8 + 1;
                }
                nodes.push(TreeNode { node, parent, arc, depth: 0 });
                node = parent;
            }
            // The way back down: now the depth of every new node is known.
            let mut depth = work.level[node as usize];
            for entry in nodes[start..].iter_mut().rev() {
                depth += 1;
                entry.depth = depth.into();
                work.level[entry.node as usize] = depth;
            }
        }
        Draft { tree: SteinerTree { spanning_tree: tree, repaired: false, nodes }, broken }
    }

    /// Repairs the broken trees one after the other and releases those that cannot be repaired.
    fn finish(
        &mut self,
        source: Node,
        receivers: Vec<Node>,
        mut left_out: Vec<Node>,
        drafts: Vec<Draft>,
        mut released: u32,
    ) -> Result<TreePlan, TreeError> {
        let mut trees = Vec::with_capacity(drafts.len());
        let mut broken = Vec::new();
        for draft in drafts {
            if draft.broken { broken.push(draft.tree) } else { trees.push(draft.tree) }
        }
        for tree in broken {
            match self.repair(source, &receivers, &tree) {
                Some(nodes) => trees.push(SteinerTree { repaired: true, nodes, ..tree }),
                None => released += 1,
            }
        }
        if trees.is_empty() {
            // Every arc is free by now: a receiver is cut off. Serve the others; they have a tree at least.
            let (reached, cut_off) = self.reachable(source, &receivers);
            if reached.is_empty() {
                return Err(TreeError::Disconnected { source_node: source, receivers: receivers.len() });
            }
            debug_assert!(!cut_off.is_empty(), "a connected receiver is served");
            left_out.extend(cut_off);
            left_out.sort_unstable();
            return self.plan_free(source, reached, left_out);
        }
        trees.sort_unstable_by_key(|tree| tree.spanning_tree);
        let bound = self.bound(source, &receivers);
        debug_assert!(!trees.is_empty() && trees.len() as u32 <= bound);
        Ok(TreePlan { source, receivers, left_out, trees, released, bound })
    }

    /// The fewest working ports at the source or a receiver.
    fn bound(&self, source: Node, receivers: &[Node]) -> u32 {
        let ins = receivers.iter().map(|&receiver| self.work.working_in(&self.graph, receiver));
        ins.fold(self.work.working_out(&self.graph, source), u32::min)
    }

    /// Splits the receivers into those that working links reach and the others.
    fn reachable(&mut self, source: Node, receivers: &[Node]) -> (Vec<Node>, Vec<Node>) {
        self.search(source, receivers);
        receivers.iter().partition(|&&receiver| self.work.level[receiver as usize] < UNSEEN_WANTED)
    }

    /// Mends a broken tree; `None` if some receiver cannot be reached, and then its arcs are free.
    ///
    /// First only the branches that have come off are attached again. Where that makes the tree too deep
    /// the whole of it is built anew by breadth-first search.
    fn repair(&mut self, source: Node, receivers: &[Node], old: &SteinerTree) -> Option<Vec<TreeNode>> {
        let owner = old.spanning_tree as u8 + 1;
        // A receiver whose every arc is taken or has failed needs no search.
        let enterable = |&receiver: &Node| {
            self.graph.arcs(receiver).any(|up| {
                let slot = self.work.owner[self.graph.reverse(up) as usize];
                slot == FREE || slot == owner
            })
        };
        if !receivers.iter().all(enterable) {
            self.free(owner, old.nodes.iter().map(|node| node.arc));
            return None;
        }
        let nodes = self.attach_branches(source, receivers, old)?;
        let deepest = nodes.iter().map(|node| node.depth).max().unwrap_or(0);
        // Up to half as deep again as a whole tree; a search would not save links, only depth.
        if 2 * deepest <= 3 * self.spanning.depth() && deepest <= self.depth_max {
            return Some(nodes);
        }
        self.free(owner, nodes.iter().map(|node| node.arc));
        let found = self.search(source, receivers);
        debug_assert!(found, "what was attached can be reached");
        let nodes = self.select(source, receivers, old);
        for node in &nodes {
            self.work.owner[node.arc as usize] = owner;
        }
        Some(nodes)
    }

    fn free(&mut self, owner: u8, arcs: impl Iterator<Item = Arc>) {
        for arc in arcs {
            let slot = &mut self.work.owner[arc as usize];
            if *slot == owner {
                *slot = FREE;
            }
        }
    }

    /// Attaches every branch that has come off to the nearest part of the tree that has not.
    fn attach_branches(
        &mut self,
        source: Node,
        receivers: &[Node],
        old: &SteinerTree,
    ) -> Option<Vec<TreeNode>> {
        let owner = old.spanning_tree as u8 + 1;
        let stamp = self.work.next_stamp();
        let top_down = top_down(&old.nodes);
        self.work.mark[source as usize] = stamp;
        self.work.level[source as usize] = 0;
        let mut off = Vec::new();
        for &at in &top_down {
            let entry = &old.nodes[at as usize];
            let work = &mut self.work;
            work.old_arc[entry.node as usize] = entry.arc;
            work.old_mark[entry.node as usize] = stamp;
            if work.mark[entry.parent as usize] == stamp && work.owner[entry.arc as usize] == owner {
                work.mark[entry.node as usize] = stamp;
                work.level[entry.node as usize] = entry.depth as u16;
            } else {
                off.push(entry.node);
            }
        }
        let mut taken = Vec::new();
        for node in off {
            if self.work.mark[node as usize] == stamp {
                continue;
            }
            let arc = self.work.old_arc[node as usize];
            let parent = self.graph.target(self.graph.reverse(arc));
            if self.work.owner[arc as usize] == owner && self.work.mark[parent as usize] == stamp {
                // Its own parent is attached again by now.
                self.work.mark[node as usize] = stamp;
                self.work.level[node as usize] = self.work.level[parent as usize] + 1;
            } else if !self.attach(source, node, owner, stamp, &mut taken)
                && receivers.binary_search(&node).is_ok()
            {
                // A node that is no receiver may have lost its reason to be in the tree.
                self.free(owner, old.nodes.iter().map(|node| node.arc).chain(taken));
                return None;
            }
        }
        self.free(owner, old.nodes.iter().map(|node| node.arc).chain(taken));
        Some(self.collect(source, receivers, owner))
    }

    /// Looks backwards from a node for an attached one, of the nearest the one with the least depth, and
    /// takes the arcs between them; false if there is none.
    fn attach(&mut self, source: Node, node: Node, owner: u8, stamp: u32, taken: &mut Vec<Arc>) -> bool {
        let work = &mut self.work;
        if work.search == u32::MAX {
            work.seen.fill(0);
            work.search = 0;
        }
        if work.lost[node as usize] == stamp {
            return false;
        }
        work.search += 1;
        work.seen[node as usize] = work.search;
        work.queue[0] = node;
        let (mut head, mut tail) = (0, 1);
        let mut best: Option<Node> = None;
        while head < tail && best.is_none() {
            let same_distance = tail;
            while head < same_distance {
                let fed = work.queue[head];
                head += 1;
                for up in self.graph.arcs(fed) {
                    let (feeder, arc) = (self.graph.target(up), self.graph.reverse(up));
                    let slot = work.owner[arc as usize];
                    let usable =
                        (slot == FREE || slot == owner) && (feeder >= work.dead_ends || feeder == source);
                    let seen = work.seen[feeder as usize] == work.search;
                    if !usable || seen || work.lost[feeder as usize] == stamp {
                        continue;
                    }
                    work.seen[feeder as usize] = work.search;
                    work.feeds_by[feeder as usize] = arc;
                    work.queue[tail] = feeder;
                    tail += 1;
                    let attached = work.mark[feeder as usize] == stamp;
                    let depth = |node: Node| work.level[node as usize];
                    if attached && best.is_none_or(|best| depth(feeder) < depth(best)) {
                        best = Some(feeder);
                    }
                }
            }
        }
        let Some(from) = best else {
            // Mending only moves arcs within what the search may use, so these stay out of reach.
            work.queue[..tail].iter().for_each(|&node| work.lost[node as usize] = stamp);
            return false;
        };
        self.take_way(from, node, owner, stamp, taken);
        true
    }

    /// Makes the way that a search has found from `from` to `to` part of the tree. An arc that a node was
    /// entered by before stays the tree's until all branches are attached: then those that are left over are
    /// freed together.
    fn take_way(&mut self, from: Node, to: Node, owner: u8, stamp: u32, taken: &mut Vec<Arc>) {
        let work = &mut self.work;
        let mut at = from;
        while at != to {
            let arc = work.feeds_by[at as usize];
            let depth = work.level[at as usize] + 1;
            at = self.graph.target(arc);
            work.level[at as usize] = depth;
            work.old_mark[at as usize] = stamp;
            work.old_arc[at as usize] = arc;
            work.owner[arc as usize] = owner;
            work.mark[at as usize] = stamp;
            taken.push(arc);
        }
    }

    /// The tree that `old_arc` describes, as far as the receivers need it.
    fn collect(&mut self, source: Node, receivers: &[Node], owner: u8) -> Vec<TreeNode> {
        let stamp = self.work.next_stamp();
        let work = &mut self.work;
        work.mark[source as usize] = stamp;
        work.level[source as usize] = 0;
        let mut nodes: Vec<TreeNode> = Vec::with_capacity(4 * receivers.len());
        for &receiver in receivers {
            let start = nodes.len();
            let mut node = receiver;
            while work.mark[node as usize] != stamp {
                work.mark[node as usize] = stamp;
                let arc = work.old_arc[node as usize];
                let parent = self.graph.target(self.graph.reverse(arc));
                work.owner[arc as usize] = owner;
                nodes.push(TreeNode { node, parent, arc, depth: 0 });
                node = parent;
            }
            let mut depth = work.level[node as usize];
            for entry in nodes[start..].iter_mut().rev() {
                depth += 1;
                entry.depth = depth.into();
                let level = &mut work.level[entry.node as usize];
                debug_assert_eq!(*level, depth, "branches are attached by the depth of what they hang on");
                *level = depth;
            }
        }
        nodes
    }

    /// Breadth-first levels over free arcs, until all `wanted` receivers have one; true if they do.
    ///
    /// Whether an arc leads on is as good as random, so the loop decides it by arithmetic: it always
    /// writes the target to the end of the queue, and moves the end only if the target is new.
    fn search(&mut self, source: Node, wanted: &[Node]) -> bool {
        let Workspace { owner, level, queue, dead_ends, .. } = &mut self.work;
        level.fill(UNSEEN);
        for &receiver in wanted {
            level[receiver as usize] = UNSEEN_WANTED;
        }
        let mut missing = wanted.len();
        queue[0] = source;
        level[source as usize] = 0;
        let (mut head, mut tail) = (0, 1);
        while head < tail && missing > 0 {
            let node = queue[head];
            head += 1;
            let next = level[node as usize] + 1;
            let arcs = self.graph.arcs(node);
            let owners = &owner[arcs.start as usize..arcs.end as usize];
            for (&target, &owner) in self.graph.targets(node).iter().zip(owners) {
                let slot = &mut level[target as usize];
                let is_wanted = *slot == UNSEEN_WANTED;
                let leads_on = is_wanted | ((*slot == UNSEEN) & (target >= *dead_ends));
                let is_new = leads_on & (owner == FREE);
                *slot = if is_new { next } else { *slot };
                queue[tail] = target;
                tail += usize::from(is_new);
                missing -= usize::from(is_new & is_wanted);
            }
        }
        missing == 0
    }

    /// Chooses, from the deepest level upwards, a parent on a shortest way for every node that needs one:
    /// the old tree's if it is one, else a node that is needed anyway, else one of the old tree's nodes.
    fn select(&mut self, source: Node, receivers: &[Node], old: &SteinerTree) -> Vec<TreeNode> {
        let stamp = self.work.next_stamp();
        let work = &mut self.work;
        for node in &old.nodes {
            work.old_mark[node.node as usize] = stamp;
            work.old_arc[node.node as usize] = node.arc;
        }
        let deepest = receivers.iter().map(|&receiver| work.level[receiver as usize]).max().unwrap_or(0);
        let mut by_level: Vec<Vec<Node>> = vec![Vec::new(); usize::from(deepest) + 1];
        work.mark[source as usize] = stamp;
        for &receiver in receivers {
            work.mark[receiver as usize] = stamp;
            by_level[usize::from(work.level[receiver as usize])].push(receiver);
        }
        let mut nodes = Vec::with_capacity(old.nodes.len());
        for level in (1..=deepest).rev() {
            for node in mem::take(&mut by_level[usize::from(level)]) {
                let entry = choose_parent(work, &self.graph, stamp, node);
                if work.mark[entry.parent as usize] != stamp {
                    work.mark[entry.parent as usize] = stamp;
                    by_level[usize::from(level) - 1].push(entry.parent);
                }
                nodes.push(entry);
            }
        }
        nodes
    }
}

/// The places of a tree's nodes, those nearer to the source first.
fn top_down(nodes: &[TreeNode]) -> Vec<u32> {
    let deepest = nodes.iter().map(|node| node.depth).max().unwrap_or(0) as usize;
    let mut starts = vec![0u32; deepest + 2];
    for node in nodes {
        starts[node.depth as usize + 1] += 1;
    }
    for depth in 0..=deepest {
        starts[depth + 1] += starts[depth];
    }
    let mut order = vec![0; nodes.len()];
    for (at, node) in nodes.iter().enumerate() {
        let slot = &mut starts[node.depth as usize];
        order[*slot as usize] = at as u32;
        *slot += 1;
    }
    order
}

fn choose_parent(work: &Workspace, graph: &CompactGraph, stamp: u32, node: Node) -> TreeNode {
    let level = work.level[node as usize];
    let fits =
        |parent: Node, arc: Arc| work.level[parent as usize] == level - 1 && work.owner[arc as usize] == FREE;
    if work.old_mark[node as usize] == stamp {
        let arc = work.old_arc[node as usize];
        let parent = graph.target(graph.reverse(arc));
        if fits(parent, arc) {
            return TreeNode { node, parent, arc, depth: level.into() };
        }
    }
    let mut best: Option<(u8, TreeNode)> = None;
    for up in graph.arcs(node) {
        let parent = graph.target(up);
        if work.level[parent as usize] != level - 1 || !fits(parent, graph.reverse(up)) {
            continue;
        }
        let rank = if work.mark[parent as usize] == stamp {
            2
        } else {
            u8::from(work.old_mark[parent as usize] == stamp)
        };
        if best.is_none_or(|(best_rank, _)| rank > best_rank) {
            best = Some((rank, TreeNode { node, parent, arc: graph.reverse(up), depth: level.into() }));
        }
        if rank == 2 {
            break;
        }
    }
    best.expect("a node with a level was entered from the level before").1
}

#[cfg(test)]
mod tests {
    use super::*;
    use polycast_topology::Network;
    use proptest::prelude::*;

    proptest! {
        /// A branch hangs on the nearest part of the tree, and of several as near on one of the least depth,
        /// by arcs that nothing else uses; where no part of the tree can be reached it stays off.
        #[test]
        fn a_branch_hangs_on_the_nearest_and_of_these_on_the_least_deep(
            depths in proptest::collection::vec(prop_oneof![3 => Just(0u16), 1 => 1u16..9], 16),
            failed in proptest::collection::vec(any::<bool>(), 64),
            few in any::<bool>(),
        ) {
            let network: Network = "torus:4,2".parse().unwrap();
            let mut planner = TreePlanner::new(network);
            let (node, owner) = (5, 1);
            let stamp = planner.work.next_stamp();
            let source = (0..16).find(|at| *at != node && depths[*at as usize] > 0);
            for at in (0..16).filter(|at| *at != node && depths[*at as usize] > 0) {
                planner.work.mark[at as usize] = stamp;
                planner.work.level[at as usize] = depths[at as usize];
            }
            let arcs = planner.graph.arc_count();
            for arc in (0..arcs).filter(|arc| failed[*arc as usize % 64] && (!few || arc % 3 == 0)) {
                planner.work.owner[arc as usize] = FAILED;
            }
            let before = planner.work.owner.clone();
            let graph = planner.graph.clone();
            // How many free arcs lie between each node and the branch.
            let mut steps = [None::<u32>; 16];
            steps[node as usize] = Some(0);
            for _ in 0..16 {
                for to in 0..16 {
                    let Some(far) = steps[to as usize] else { continue };
                    for up in graph.arcs(to) {
                        let from = graph.target(up) as usize;
                        if before[graph.reverse(up) as usize] == FREE && steps[from].is_none_or(|old| old > far + 1) {
                            steps[from] = Some(far + 1);
                        }
                    }
                }
            }
            let attached = (0..16u32).filter(|at| *at != node && depths[*at as usize] > 0);
            let best = attached.filter_map(|at| Some((steps[at as usize]?, depths[at as usize]))).min();
            let mut taken = Vec::new();
            let found = planner.attach(source.unwrap_or(0), node, owner, stamp, &mut taken);
            prop_assert_eq!(found, best.is_some());
            let Some((far, depth)) = best else {
                prop_assert_eq!((taken, &planner.work.owner), (Vec::new(), &before));
                return Ok(());
            };
            prop_assert_eq!(taken.len() as u32, far);
            let from = graph.target(graph.reverse(taken[0]));
            prop_assert_eq!(depths[from as usize], depth, "it hangs on {}", from);
            prop_assert_eq!(u32::from(planner.work.level[node as usize]), u32::from(depth) + far);
            let mut at = from;
            for arc in taken {
                prop_assert_eq!((graph.target(graph.reverse(arc)), before[arc as usize]), (at, FREE));
                prop_assert_eq!(planner.work.owner[arc as usize], owner);
                at = graph.target(arc);
                prop_assert_eq!((planner.work.mark[at as usize], planner.work.old_arc[at as usize]), (stamp, arc));
            }
            prop_assert_eq!(at, node);
        }
    }
}
