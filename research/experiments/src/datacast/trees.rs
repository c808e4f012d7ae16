//! Datacast, section 4.3 and appendix A: number, size and speed of Steiner trees.

use std::time::Instant;

use polycast_planning::trees::{TreeError, TreePlan, TreePlanner};
use polycast_topology::{Failures, Graph, Network, Node};

use crate::Row;
use crate::random::Random;
use crate::report::{Axis, Figure, Options, Outcome, Series};

/// A drawn group and what has failed around it.
#[derive(Clone, Debug)]
pub struct Draw {
    /// The source.
    pub source: Node,
    /// The receivers.
    pub receivers: Vec<Node>,
    /// The failed links.
    pub failures: Failures,
}

/// Draws a group of `size` members, the source among them, and failed links.
///
/// A fat-tree's server has one link, and with five in a hundred of those failed no group of 280 would be
/// whole; the paper leaves networks that are not connected out. There links between switches fail.
pub fn draw(network: &Network, size: u32, failed_fraction: f64, random: &mut Random) -> Draw {
    let mut servers: Vec<Node> = (0..network.server_count()).collect();
    random.choose_first(&mut servers, size as usize);
    let single = network.port_count(0) == 1;
    let first = if single { network.server_count() } else { 0 };
    let mut failures = Failures::none();
    for link in first..network.link_count() {
        if random.fraction() < failed_fraction {
            failures.fail_link(link);
        }
    }
    Draw { source: servers[0], receivers: servers[1..size as usize].to_vec(), failures }
}

/// Plans drawn groups and gives each plan with its time in milliseconds, the best of three, so that other
/// programs on the machine are not measured. Groups that are not connected are drawn again.
pub fn plans(
    network: &Network,
    size: u32,
    failed_fraction: f64,
    runs: u32,
    seed: u64,
) -> Vec<(TreePlan, f64)> {
    let mut planner = TreePlanner::new(*network);
    let mut random = Random::new(seed);
    let mut plans = Vec::with_capacity(runs as usize);
    while (plans.len() as u32) < runs {
        let draw = draw(network, size, failed_fraction, &mut random);
        let mut timed = || {
            let start = Instant::now();
            let plan = planner.plan(draw.source, &draw.receivers, &draw.failures);
            (start.elapsed().as_secs_f64() * 1e3, plan)
        };
        let (first, plan) = timed();
        let milliseconds = (0..2).map(|_| timed().0).fold(first, f64::min);
        match plan {
            Ok(plan) if plan.left_out.is_empty() => plans.push((plan, milliseconds)),
            Ok(_) | Err(TreeError::Disconnected { .. }) => {}
            Err(error) => unreachable!("drawn groups are right: {error}"),
        }
    }
    plans
}

fn network(text: &str) -> Network {
    text.parse().expect("the papers' networks exist")
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0u32), |(sum, count), value| (sum + value, count + 1));
    if count == 0 { 0.0 } else { sum / f64::from(count) }
}

/// Figure 9 and section 4.3: worst time of 100 groups of 280 with 5 % failed links.
#[must_use]
pub fn speed(runs: u32, seed: u64) -> Vec<Row> {
    let papers = [
        ("bcube:8,4", Some(4.4)),
        ("torus:16,3", Some(4.1)),
        ("fat-tree:48,3", Some(3.3)),
        ("bcube:20,4", Some(1000.0)),
        ("fat-tree:96,3", Some(1000.0)),
    ];
    papers
        .into_iter()
        .map(|(text, paper)| {
            let plans = plans(&network(text), 280, 0.05, runs, seed);
            let worst = plans.iter().map(|plan| plan.1).fold(0.0, f64::max);
            let average = mean(plans.iter().map(|plan| plan.1));
            let name = format!("{text}: worst of {runs} groups of 280, 5 % failed links");
            let row = Row::new(name, paper, worst, "ms").note(format!("mean {average:.3} ms"));
            match paper {
                Some(1000.0) => row.at_most(1000.0).place("appendix A.5, less than one second"),
                Some(milliseconds) => row.at_most(milliseconds),
                None => row,
            }
        })
        .collect()
}

/// Appendix A.6 and A.7: number, size and branching of trees.
#[must_use]
pub fn quality(runs: u32, seed: u64) -> Vec<Row> {
    let mut rows = Vec::new();
    let bcube = network("bcube:8,4");
    let shapes = |plans: &[(TreePlan, f64)]| -> Vec<_> {
        plans
            .iter()
            .flat_map(|(plan, _)| plan.trees.iter().map(|tree| tree.shape(|node| plan.is_receiver(node))))
            .collect()
    };
    let whole = shapes(&plans(&bcube, 280, 0.0, runs, seed));
    let steiner = mean(whole.iter().map(|shape| shape.steiner_nodes.into()));
    rows.push(
        Row::new("Steiner nodes of a tree, BCube(8,4), 280 members", Some(525.0), steiner, "nodes")
            .within(DRAWN),
    );
    rows.push(search_only(&bcube, runs, seed));
    let failing = shapes(&plans(&bcube, 280, 0.01, runs, seed));
    let steiner = mean(failing.iter().map(|shape| shape.steiner_nodes.into()));
    let single = mean(failing.iter().map(|shape| f64::from(shape.steiner_nodes - shape.branching)));
    rows.push(Row::new("Steiner nodes, 1 % failed links", Some(543.0), steiner, "nodes").within(DRAWN));
    rows.push(Row::new("of these non-branching", Some(407.0), single, "nodes").within(DRAWN));
    rows.extend(counts(runs, seed));
    rows.extend(depths());
    rows.extend(["bcube:8,4", "torus:16,3"].into_iter().flat_map(|text| mended_depths(text, runs, seed)));
    rows
}

/// Measures the depth of trees after repair, beside the least that any tree around the failures could have.
fn mended_depths(text: &str, runs: u32, seed: u64) -> Vec<Row> {
    let network = network(text);
    let mut planner = TreePlanner::new(network);
    let mut random = Random::new(seed);
    let (mut mended, mut least) = (Vec::new(), Vec::new());
    for _ in 0..runs {
        let draw = draw(&network, 280, 0.05, &mut random);
        let Ok(plan) = planner.plan(draw.source, &draw.receivers, &draw.failures) else { continue };
        let repaired = plan.trees.iter().filter(|tree| tree.repaired);
        mended.extend(repaired.map(|tree| f64::from(tree.shape(|node| plan.is_receiver(node)).depth)));
        least.push(f64::from(farthest(&network, draw.source, &plan.receivers, &draw.failures)));
    }
    let deepest = mended.iter().copied().fold(0.0, f64::max);
    let name = format!("{text}: depth of a mended tree, 280 members, 5 % failed links");
    let bound = format!("{text}: links to the farthest member of such a group by breadth-first search alone");
    vec![
        Row::new(name, None, mean(mended.iter().copied()), "links")
            .note(format!("mean of {} trees, deepest {deepest:.0}", mended.len())),
        Row::new(bound, None, mean(least.into_iter()), "links")
            .note("no tree is less deep; one that shares no arc with others may have to be deeper"),
    ]
}

/// Links between the source and the farthest receiver, over working links.
fn farthest(network: &Network, source: Node, receivers: &[Node], failures: &Failures) -> u32 {
    let mut hops = vec![u32::MAX; network.node_count() as usize];
    hops[source as usize] = 0;
    let mut queue = vec![source];
    let mut head = 0;
    while head < queue.len() {
        let node = queue[head];
        head += 1;
        for port in 0..network.port_count(node) {
            let next = network.neighbor(node, port);
            if hops[next as usize] == u32::MAX && failures.link_works(network, node, port) {
                hops[next as usize] = hops[node as usize] + 1;
                queue.push(next);
            }
        }
    }
    receivers.iter().map(|&receiver| hops[receiver as usize]).max().unwrap_or(0)
}

/// One tree by breadth-first search alone, without arc-disjoint others.
fn search_only(network: &Network, runs: u32, seed: u64) -> Row {
    let mut random = Random::new(seed);
    let sizes = (0..runs).map(|_| {
        let draw = draw(network, 280, 0.0, &mut random);
        f64::from(bfs_steiner_nodes(network, &draw))
    });
    let name = "Steiner nodes by breadth-first search alone";
    Row::new(name, Some(493.0), mean(sizes), "nodes").within(DRAWN)
}

/// The Steiner nodes of a shortest-path tree in which every node takes its first parent.
fn bfs_steiner_nodes(network: &Network, draw: &Draw) -> u32 {
    let mut parent = vec![Node::MAX; network.node_count() as usize];
    parent[draw.source as usize] = draw.source;
    let mut queue = std::collections::VecDeque::from([draw.source]);
    while let Some(node) = queue.pop_front() {
        for port in 0..network.port_count(node) {
            let next = network.neighbor(node, port);
            if parent[next as usize] == Node::MAX {
                parent[next as usize] = node;
                queue.push_back(next);
            }
        }
    }
    let mut in_tree = std::collections::BTreeSet::new();
    for &receiver in &draw.receivers {
        let mut node = receiver;
        while node != draw.source && in_tree.insert(node) {
            node = parent[node as usize];
        }
    }
    in_tree.len() as u32 - draw.receivers.len() as u32
}

/// Figure 10 (a): how many trees there are, in proportion to the bound.
fn counts(runs: u32, seed: u64) -> Vec<Row> {
    let (mut all_trees, mut all_bounds) = (0.0, 0.0);
    let mut rows = Vec::new();
    for text in ["bcube:8,4", "torus:16,3"] {
        for (size, failed) in [(10, 0.01), (10, 0.05), (280, 0.01), (280, 0.05), (2000, 0.01), (2000, 0.05)] {
            let plans = plans(&network(text), size, failed, runs, seed);
            let trees: f64 = plans.iter().map(|(plan, _)| plan.trees.len() as f64).sum();
            let bound: f64 = plans.iter().map(|(plan, _)| f64::from(plan.bound)).sum();
            all_trees += trees;
            all_bounds += bound;
            let name = format!("{text}: trees for {size} members, {} % failed links", 100.0 * failed);
            let note = format!("bound {:.2}", bound / f64::from(runs));
            rows.push(Row::new(name, None, trees / f64::from(runs), "trees").note(note));
        }
    }
    let less = 100.0 * (1.0 - all_trees / all_bounds);
    rows.push(Row::new("trees below the bound, over all of these", Some(0.8), less, "%").at_most(0.8));
    rows
}

fn depths() -> Vec<Row> {
    [("bcube:8,4", 10.0), ("torus:16,3", 32.0), ("fat-tree:48,3", 6.0)]
        .into_iter()
        .map(|(text, paper)| {
            let network = network(text);
            let receivers: Vec<Node> = (1..network.server_count()).collect();
            let plan = TreePlanner::new(network).plan(0, &receivers, &Failures::none());
            let trees = plan.expect("nothing has failed").trees;
            let deepest = trees.iter().map(|tree| tree.shape(|_| true).depth).max().unwrap_or(0);
            Row::new(format!("{text}: depth of spanning trees"), Some(paper), deepest.into(), "links")
                .at_most(paper)
                .note("our construction for a torus is one less deep where n is even")
        })
        .collect()
}

/// Groups and failures are drawn by lot.
const DRAWN: f64 = 0.05;

/// The sizes of groups, the source counted.
const SIZES: [u32; 6] = [10, 32, 100, 280, 1000, 3000];
/// Figure 9: the worst time of all groups, by size and failed links.
#[must_use]
pub fn figure_9(options: &Options) -> Outcome {
    let runs = if options.quick { 5 } else { 100 };
    let mut outcome = Outcome::default();
    for (name, title, networks) in [
        ("fig-9a", "Worst time to plan a group's trees", &["bcube:8,4", "torus:16,3", "fat-tree:48,3"][..]),
        ("fig-9b", "Worst time in larger networks", &["bcube:20,4", "fat-tree:96,3"][..]),
    ] {
        let mut series = Vec::new();
        for text in networks {
            for failed in [0.0, 0.05] {
                let points: Vec<(f64, f64)> = SIZES
                    .into_iter()
                    .map(|size| {
                        let plans = plans(&network(text), size, failed, runs, options.seed);
                        (f64::from(size), plans.iter().map(|plan| plan.1).fold(0.0, f64::max))
                    })
                    .collect();
                let label = format!("{text}, {} % failed", 100.0 * failed);
                let worst = points.iter().map(|point| point.1).fold(0.0, f64::max);
                let paper = if name == "fig-9a" { 20.0 } else { 1000.0 };
                let row = format!("{label}: worst of all sizes");
                let row = Row::new(row, Some(paper), worst, "ms").at_most(paper);
                outcome.rows.push(row.note("paper: an upper bound"));
                series.push(Series::ours(&label, points));
            }
        }
        let (x, y) = (Axis::log("members of the group", ""), Axis::log("worst time", "ms"));
        outcome.figures.push(Figure::lines(name, title, x, y, series));
    }
    outcome
}

/// Figure 10: number of trees, Steiner nodes of a tree and the part of these that does not branch.
#[must_use]
pub fn figure_10(options: &Options) -> Outcome {
    let runs = if options.quick { 4 } else { 50 };
    let mut lines: [Vec<Series>; 3] = [Vec::new(), Vec::new(), Vec::new()];
    let mut rows = Vec::new();
    // A fat-tree has one tree, whatever fails between its switches.
    for (text, failures) in
        [("bcube:8,4", &[0.0, 0.01, 0.05][..]), ("torus:16,3", &[0.0, 0.01, 0.05]), ("fat-tree:48,3", &[0.0])]
    {
        for &failed in failures {
            let mut points: [Vec<(f64, f64)>; 3] = [Vec::new(), Vec::new(), Vec::new()];
            for size in SIZES {
                let quality = tree_quality(&network(text), size, failed, runs, options.seed);
                for (points, value) in points.iter_mut().zip(quality) {
                    points.push((f64::from(size), value));
                }
                if text == "bcube:8,4" && size == 280 && failed == 0.01 {
                    let name = "BCube(8,4), 280 members, 1 % failed links: non-branching nodes";
                    rows.push(Row::new(name, Some(75.0), quality[2], "%").within(DRAWN));
                }
            }
            let label = format!("{text}, {} % failed", 100.0 * failed);
            for (lines, points) in lines.iter_mut().zip(points) {
                lines.push(Series::ours(&label, points));
            }
        }
    }
    let small = tree_quality(&network("bcube:8,4"), 16, 0.01, runs, options.seed);
    let name = "BCube(8,4), 16 members, 1 % failed links: non-branching nodes";
    rows.push(Row::new(name, Some(88.0), small[2], "%").within(DRAWN));
    let x = || Axis::log("members of the group", "");
    let [count, nodes, single] = lines;
    let count = Figure::lines("fig-10a", "Steiner trees of a group", x(), Axis::linear("trees", ""), count);
    let nodes = Figure::lines("fig-10b", "Steiner nodes of a tree", x(), Axis::log("nodes", ""), nodes);
    let y = Axis::linear("non-branching", "%").range(0.0, 100.0);
    let single = Figure::lines("fig-10c", "Non-branching part of the Steiner nodes", x(), y, single);
    Outcome { rows, figures: vec![count, nodes, single], notes: Vec::new() }
}

/// Mean number of trees, of Steiner nodes a tree, and of non-branching ones in percent of these.
fn tree_quality(network: &Network, size: u32, failed: f64, runs: u32, seed: u64) -> [f64; 3] {
    let plans = plans(network, size, failed, runs, seed);
    let shapes: Vec<_> = plans
        .iter()
        .flat_map(|(plan, _)| plan.trees.iter().map(|tree| tree.shape(|node| plan.is_receiver(node))))
        .collect();
    let nodes: f64 = shapes.iter().map(|shape| f64::from(shape.steiner_nodes)).sum();
    let branching: f64 = shapes.iter().map(|shape| f64::from(shape.branching)).sum();
    let trees = shapes.len() as f64;
    let single = if nodes > 0.0 { 100.0 * (1.0 - branching / nodes) } else { 0.0 };
    [trees / f64::from(runs), nodes / trees, single]
}
