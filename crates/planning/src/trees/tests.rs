use super::*;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::ToString;
use alloc::vec;
use proptest::prelude::*;

/// A small generator for tests that fix a seed.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

fn draw(state: &mut u64, count: usize, below: u32, but: Node) -> Vec<Node> {
    let mut set = BTreeSet::new();
    while set.len() < count {
        let node = (next(state) % u64::from(below)) as Node;
        if node != but {
            set.insert(node);
        }
    }
    set.into_iter().collect()
}

/// Every tree reaches every receiver over working arcs that no other tree uses.
fn check(planner: &TreePlanner, plan: &TreePlan, failures: &Failures) {
    let graph = planner.graph();
    let mut used = BTreeSet::new();
    for tree in &plan.trees {
        let parents: BTreeMap<Node, &TreeNode> = tree.nodes.iter().map(|node| (node.node, node)).collect();
        assert_eq!(parents.len(), tree.nodes.len(), "one parent a node");
        for node in &tree.nodes {
            assert!(used.insert(node.arc), "two trees share an arc");
            let up = graph.reverse(node.arc);
            assert_eq!((graph.target(node.arc), graph.target(up)), (node.node, node.parent));
            let port = up - graph.arcs(node.node).start;
            assert!(failures.link_works(planner.network(), node.node, port), "a failed link in a tree");
        }
        let mut leaves: BTreeSet<Node> = parents.keys().copied().collect();
        for &receiver in &plan.receivers {
            let (mut node, mut steps) = (receiver, 0);
            while node != plan.source {
                let entry = parents[&node];
                leaves.remove(&entry.parent);
                node = entry.parent;
                steps += 1;
                assert!(steps <= tree.nodes.len(), "a loop");
            }
            assert_eq!(steps as u32, parents[&receiver].depth);
            assert_eq!(tree.source_route(graph, receiver).unwrap().len(), steps);
        }
        assert!(leaves.iter().all(|&leaf| plan.is_receiver(leaf)), "a branch without a receiver");
        // What it costs, counted once more, node by node.
        let is_steiner = |node: &Node| *node != plan.source && !plan.is_receiver(*node);
        let children = |of: Node| tree.nodes.iter().filter(|entry| entry.parent == of).count();
        let steiner = || parents.keys().copied().filter(is_steiner);
        let expected = TreeShape {
            depth: plan.receivers.iter().map(|receiver| parents[receiver].depth).max().unwrap(),
            links: tree.nodes.len() as u32,
            steiner_nodes: steiner().count() as u32,
            branching: steiner().filter(|node| children(*node) > 1).count() as u32,
        };
        assert_eq!(tree.shape(|node| plan.is_receiver(node)), expected);
    }
    assert!(!plan.trees.is_empty() && plan.trees.len() as u32 <= plan.bound);
    // An arc that the planner keeps for a tree is in this tree: others could use it.
    for (arc, number) in planner.work.used_arcs() {
        let tree = plan.trees.iter().find(|tree| tree.spanning_tree == number);
        assert!(
            tree.is_some_and(|tree| tree.nodes.iter().any(|node| node.arc == arc)),
            "arc {arc} is kept in vain"
        );
    }
}

#[test]
fn a_refusal_says_which_servers_there_are() {
    // 16 servers, and switches behind them.
    let mut planner = TreePlanner::new("bcube:4,2".parse().unwrap());
    for (source, receivers) in [(0, [16, 1]), (20, [1, 2]), (0, [1, 23])] {
        let why = planner.plan(source, &receivers, &Failures::none()).unwrap_err();
        assert!(matches!(why, TreeError::NotAServer { node: 16.., last: 15, .. }), "{why}");
    }
}

#[test]
fn figure_4_prunes_to_thirteen_links() {
    let mut planner = TreePlanner::new("bcube:4,2".parse().unwrap());
    let receivers = [2, 4, 9, 11, 13, 15];
    let plan = planner.plan(0, &receivers, &Failures::none()).unwrap();
    check(&planner, &plan, &Failures::none());
    assert_eq!(plan.trees.iter().map(|tree| tree.nodes.len()).collect::<Vec<_>>(), [13, 13]);
    let parent = |tree: usize, node| plan.trees[tree].nodes.iter().find(|n| n.node == node).unwrap().parent;
    // <1,3> -> 23 in tree A; 32 -> <1,2> -> 02 in tree B.
    assert_eq!(parent(0, 11), 16 + 4 + 3);
    assert_eq!((parent(1, 2), parent(1, 16 + 4 + 2)), (16 + 4 + 2, 14));
}

/// Section 7's comparison: 12 links, 6 of whose nodes are no members, and both links of the source are in
/// use.
#[test]
fn a_single_tree_has_shortest_ways_alone() {
    use polycast_topology::Graph;
    let network: Network = "bcube:4,2".parse().unwrap();
    let mut planner = TreePlanner::new(network);
    let receivers = [2, 4, 9, 11, 13, 15];
    let plan = planner.plan_shortest(0, &receivers, &Failures::none()).unwrap();
    let [tree] = &plan.trees[..] else { panic!("{plan:?}") };
    let depth = |node| tree.nodes.iter().find(|entry| entry.node == node).unwrap().depth;
    // Two links a digit that differs.
    assert_eq!(receivers.map(depth), [2, 2, 4, 4, 4, 4]);
    let shape = tree.shape(|node| plan.is_receiver(node));
    assert_eq!((shape.links, shape.steiner_nodes), (12, 6));
    // Counted once more, node by node.
    let children = |of: Node| tree.nodes.iter().filter(|entry| entry.parent == of).count();
    let branches = |node: &&TreeNode| !plan.is_receiver(node.node) && children(node.node) > 1;
    assert_eq!(shape.branching as usize, tree.nodes.iter().filter(branches).count());
    assert!(shape.branching > 0 && children(0) > 1, "the source is no branch");
    // A link of it fails: its receiver is reached another way, or none at all.
    let mut failures = Failures::none();
    failures.fail_link(network.link_between(2, network.neighbor(2, 0).into()).unwrap());
    let around = planner.plan_shortest(0, &receivers, &failures).unwrap();
    assert_eq!(around.receivers, receivers);
    failures.fail_link(network.link_between(2, network.neighbor(2, 1).into()).unwrap());
    let without = planner.plan_shortest(0, &receivers, &failures).unwrap();
    assert_eq!((without.left_out, without.receivers.len()), (vec![2], 5));
    failures.fail_node(0);
    assert!(matches!(planner.plan_shortest(0, &[4], &failures), Err(TreeError::Disconnected { .. })));
}

#[test]
fn the_four_links_that_break_torus_4_2_do_not_end_service() {
    let network: Network = "torus:4,2".parse().unwrap();
    let mut failures = Failures::none();
    for (from, to) in [(1, 2), (4, 8), (12, 13), (3, 7)] {
        failures.fail_link(network.link_between(from, to).unwrap());
    }
    let mut planner = TreePlanner::new(network);
    let receivers: Vec<Node> = (1..16).collect();
    let plan = planner.plan(0, &receivers, &failures).unwrap();
    check(&planner, &plan, &failures);
    assert!(plan.trees.len() >= 2);
}

#[test]
fn wrong_groups_are_named() {
    let mut planner = TreePlanner::new("bcube:4,2".parse().unwrap());
    let mut refuse = |source, receivers: &[Node]| {
        planner.plan(source, receivers, &Failures::none()).unwrap_err().to_string()
    };
    assert!(refuse(0, &[1, 99]).contains("node 99 is out of range"));
    assert!(refuse(0, &[1, 17]).contains("node 17 is a switch"));
    assert!(refuse(3, &[1, 3]).contains("server 3 is the source"));
    assert!(refuse(3, &[]).contains("no receivers"));
}

#[test]
fn receivers_that_are_cut_off_are_left_out() {
    let network: Network = "fat-tree:4,3".parse().unwrap();
    let mut failures = Failures::none();
    failures.fail_link(network.link_between(5, 16 + 2).unwrap());
    let mut planner = TreePlanner::new(network);
    let plan = planner.plan(0, &[4, 5, 6], &failures).unwrap();
    check(&planner, &plan, &failures);
    assert_eq!((plan.left_out, plan.receivers), (vec![5], vec![4, 6]));
    failures.fail_node(0);
    assert!(matches!(planner.plan(0, &[4], &failures), Err(TreeError::Disconnected { .. })));
}

#[test]
fn a_running_plan_keeps_the_trees_that_still_work() {
    let mut planner = TreePlanner::new("bcube:8,3".parse().unwrap());
    let receivers: Vec<Node> = (1..60).collect();
    let plan = planner.plan(0, &receivers, &Failures::none()).unwrap();
    let hit = plan.trees[1].nodes[10];
    let network = *planner.network();
    let link = network.link_between(hit.node.into(), hit.parent.into()).unwrap();
    let mut failures = Failures::none();
    failures.fail_link(link);
    let after = planner.replan(plan.clone(), &failures).unwrap();
    check(&planner, &after, &failures);
    assert!(after.trees.iter().any(|tree| plan.trees.contains(tree)));
    let old: BTreeSet<Arc> = plan.trees[1].nodes.iter().map(|node| node.arc).collect();
    if let Some(new) = after.trees.iter().find(|tree| tree.repaired) {
        let kept = new.nodes.iter().filter(|node| old.contains(&node.arc)).count();
        assert!(2 * kept > new.nodes.len(), "a repaired tree is similar to the old one");
    }
}

#[test]
fn trees_stay_near_the_bound_at_five_percent_failed_links() {
    let mut state = 7;
    let (mut trees, mut bound) = (0, 0);
    for text in ["bcube:8,3", "torus:8,3", "torus:16,2", "bcube:4,4"] {
        let network: Network = text.parse().unwrap();
        let mut planner = TreePlanner::new(network);
        for size in [5, 20, 100] {
            for _ in 0..20 {
                use polycast_topology::Graph;
                let mut failures = Failures::none();
                for link in 0..network.link_count() {
                    if next(&mut state).is_multiple_of(20) {
                        failures.fail_link(link);
                    }
                }
                let source = (next(&mut state) % u64::from(network.server_count())) as Node;
                let receivers = draw(&mut state, size, network.server_count(), source);
                let Ok(plan) = planner.plan(source, &receivers, &failures) else { continue };
                check(&planner, &plan, &failures);
                trees += plan.trees.len() as u32;
                bound += plan.bound;
            }
        }
    }
    assert!(f64::from(trees) > 0.98 * f64::from(bound), "{trees} of {bound}");
}

#[test]
fn mended_trees_fit_into_source_routes_where_a_search_finds_shorter_ones() {
    let network: Network = "bcube:4,3".parse().unwrap();
    let mut free = TreePlanner::new(network);
    let mut limited = TreePlanner::new(network);
    assert_eq!(free.whole_depth(), 8);
    limited.limit_depth(8);
    let mut state = 3;
    let deeper = |plan: &TreePlan| {
        plan.trees.iter().filter(|tree| tree.nodes.iter().any(|node| node.depth > 8)).count()
    };
    let (mut without, mut with) = (0, 0);
    for _ in 0..200 {
        use polycast_topology::Graph;
        let mut failures = Failures::none();
        for link in 0..network.link_count() {
            if next(&mut state).is_multiple_of(12) {
                failures.fail_link(link);
            }
        }
        let receivers = draw(&mut state, 10, network.server_count(), 0);
        let (Ok(one), Ok(other)) =
            (free.plan(0, &receivers, &failures), limited.plan(0, &receivers, &failures))
        else {
            continue;
        };
        check(&limited, &other, &failures);
        assert_eq!(one.receivers, other.receivers);
        without += deeper(&one);
        with += deeper(&other);
    }
    assert!(without > 50 && 2 * with < without, "{without} trees too deep, {with} with a limit");
}

/// The nodes that can be reached at all, by the plainest search.
fn reachable(network: &Network, source: Node, failures: &Failures) -> BTreeSet<Node> {
    use polycast_topology::Graph;
    let mut seen = BTreeSet::from([source]);
    let mut queue = vec![source];
    while let Some(node) = queue.pop() {
        for port in 0..network.port_count(node) {
            if failures.link_works(network, node, port) && seen.insert(network.neighbor(node, port)) {
                queue.push(network.neighbor(node, port));
            }
        }
    }
    seen
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    /// Whatever fails, those that can be reached are in every tree and the others are named.
    #[test]
    fn everybody_connected_is_served(
        which in 0usize..6,
        seed in any::<u64>(),
        size in 1usize..12,
        percent in 0u64..40,
    ) {
        use polycast_topology::Graph;
        let texts = ["bcube:4,2", "bcube:2,4", "torus:4,2", "torus:3,3", "fat-tree:4,3", "clos:3,2,2,3,2"];
        let network: Network = texts[which].parse().unwrap();
        let mut state = seed;
        let mut failures = Failures::none();
        for link in 0..network.link_count() {
            if next(&mut state) % 100 < percent {
                failures.fail_link(link);
            }
        }
        if seed.is_multiple_of(3) {
            failures.fail_node((next(&mut state) % u64::from(network.node_count())) as Node);
        }
        let source = (next(&mut state) % u64::from(network.server_count())) as Node;
        let receivers = draw(&mut state, size, network.server_count(), source);
        let seen = reachable(&network, source, &failures);
        let (alive, dead): (Vec<Node>, Vec<Node>) = receivers.iter().partition(|r| seen.contains(r));
        let mut planner = TreePlanner::new(network);
        match planner.plan(source, &receivers, &failures) {
            Ok(plan) => {
                check(&planner, &plan, &failures);
                prop_assert_eq!(&plan.receivers, &alive);
                prop_assert_eq!(&plan.left_out, &dead);
            }
            Err(TreeError::Disconnected { .. }) => prop_assert!(alive.is_empty()),
            Err(other) => prop_assert!(false, "{other}"),
        }
    }
}
