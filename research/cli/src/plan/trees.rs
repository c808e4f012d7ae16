//! `polycast plan trees`: arc-disjoint Steiner trees (Datacast, section 4).

use super::dot::{DotArgs, Picture, Role};
use super::{Answer, Damage, PlanError, names, receivers, span, timed};
use clap::Args;
use polycast::output::counted;
use polycast::table::{Table, paragraph};
use polycast_planning::trees::{SteinerTree, TreePlan, TreePlanner};
use polycast_topology::{Network, Node};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

pub(super) const EXAMPLES: &str = "\
Examples:
  polycast plan trees --topology bcube:4,2 --source 0 --receivers 2,4,9
  polycast plan trees --topology torus:4,2 --source 0 --receivers all --failed-nodes 5
  polycast plan trees --topology fat-tree:4,3 --source 0 --receivers 5,9 --failed-links 0-16

Servers have the numbers from 0 on, switches those behind them; the answer says which.";

/// The most feeding nodes of a tree that are listed for people.
const LISTED_MAX: usize = 64;

/// Arguments of `plan trees`.
#[derive(Args, Clone, Debug)]
pub(crate) struct TreesArgs {
    /// bcube:n,k or torus:n,k or fat-tree:n,k
    #[arg(long)]
    pub topology: String,
    /// The server that sends
    #[arg(long, value_name = "SERVER")]
    pub source: u64,
    /// The servers that receive, or all
    #[arg(long, value_name = "SERVER,SERVER|all")]
    pub receivers: String,
    #[command(flatten)]
    damage: Damage,
    #[command(flatten)]
    picture: DotArgs,
}

pub(super) fn plan(args: &TreesArgs) -> Result<Answer, PlanError> {
    let network: Network = args.topology.parse()?;
    let failures = args.damage.on(&network)?;
    let source = network.checked_node(args.source)?;
    let receivers = receivers(&network, source, &args.receivers)?;
    let mut planner = TreePlanner::new(network);
    let (plan, micros) = timed(|| planner.plan(source, &receivers, &failures));
    let plan = plan?;
    if let Some(path) = &args.picture.dot {
        picture(&network, &plan).write(path)?;
    }
    let trees: Vec<Value> = plan
        .trees
        .iter()
        .map(|tree| {
            let shape = tree.shape(|node| plan.is_receiver(node));
            let parent: Map<String, Value> =
                tree.nodes.iter().map(|entry| (entry.node.to_string(), json!(entry.parent))).collect();
            json!({
                "parent": parent,
                "depth": shape.depth,
                "links": shape.links,
                "steiner_nodes": shape.steiner_nodes,
                "branching": shape.branching,
                "non_branching": shape.steiner_nodes - shape.branching,
                "repaired": tree.repaired,
            })
        })
        .collect();
    let document = json!({
        "trees": trees,
        "bound": plan.bound,
        "released": plan.released,
        "left_out": plan.left_out,
        "micros": micros,
    });
    Ok(Answer { document, text: people(&network, &plan, micros) })
}

/// The trees, each in a colour of its own.
fn picture(network: &Network, plan: &TreePlan) -> Picture {
    let name = |node: Node| names::node(network, node);
    let mut picture =
        Picture::new(&format!("{network}, {} trees from {}", plan.trees.len(), name(plan.source)));
    picture.node(&name(plan.source), Role::Source);
    plan.receivers.iter().for_each(|&node| picture.node(&name(node), Role::Receiver));
    plan.left_out.iter().for_each(|&node| picture.node(&name(node), Role::Broken));
    for (number, tree) in plan.trees.iter().enumerate() {
        for entry in &tree.nodes {
            picture.arc(&name(entry.parent), &name(entry.node), number, &(number + 1).to_string());
        }
    }
    picture
}

fn people(network: &Network, plan: &TreePlan, micros: f64) -> String {
    let name = |node: Node| names::node(network, node);
    let head = format!(
        "{network}: {} to {} by {}, of at most {}",
        name(plan.source),
        counted(plan.receivers.len(), "receiver"),
        counted(plan.trees.len(), "tree"),
        plan.bound,
    );
    let mut text = paragraph(&head, 0) + &format!("planned in {}\n", span(micros));
    if !plan.left_out.is_empty() {
        let cut_off = names::list(plan.left_out.iter().copied().map(name));
        text += &paragraph(&format!("cut off by what has failed: {cut_off}"), 2);
    }
    let mut table = Table::new(&["tree", ">links", ">hops", ">relays", ">branching", "changed by failures"]);
    for (number, tree) in (1..).zip(&plan.trees) {
        let shape = tree.shape(|node| plan.is_receiver(node));
        let numbers = [shape.links, shape.depth, shape.steiner_nodes, shape.branching];
        let mut cells = vec![format!("{number}")];
        cells.extend(numbers.iter().map(u32::to_string));
        cells.push(if tree.repaired { "yes" } else { "no" }.into());
        table.row(cells);
    }
    text += &table.text();
    for (number, tree) in (1..).zip(&plan.trees) {
        text += &format!("\nTree {number} (* receives)\n{}", branches(network, plan, tree));
    }
    text + "\n" + &paragraph(&names::numbers(network), 0)
}

/// Lists the nodes that each node feeds in a tree, from the source outwards.
fn branches(network: &Network, plan: &TreePlan, tree: &SteinerTree) -> String {
    let name = |node: Node| {
        let mark = if plan.is_receiver(node) { "*" } else { "" };
        format!("{}{mark}", names::node(network, node))
    };
    let mut fed: BTreeMap<(u32, Node), Vec<Node>> = BTreeMap::new();
    for entry in &tree.nodes {
        fed.entry((entry.depth - 1, entry.parent)).or_default().push(entry.node);
    }
    let mut table = Table::new(&[">hop", "from", "to"]).at_most(LISTED_MAX);
    for ((depth, parent), children) in fed {
        let mut children = children;
        children.sort_unstable();
        let children = names::list(children.into_iter().map(name));
        table.row([(depth + 1).to_string(), name(parent), children]);
    }
    table.text()
}
