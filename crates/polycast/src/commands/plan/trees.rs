//! `polycast plan trees`: arc-disjoint Steiner trees (Datacast, section 4).

use super::{Damage, PlanError, receivers, timed};
use clap::Args;
use polycast_planning::trees::TreePlanner;
use polycast_topology::Network;
use serde_json::{Map, Value, json};

/// Arguments of `plan trees`.
#[derive(Args, Clone, Debug)]
pub struct TreesArgs {
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
}

pub(super) fn plan(args: &TreesArgs) -> Result<Value, PlanError> {
    let network: Network = args.topology.parse()?;
    let failures = args.damage.on(&network)?;
    let source = network.checked_node(args.source)?;
    let receivers = receivers(&network, source, &args.receivers)?;
    let mut planner = TreePlanner::new(network);
    let (plan, micros) = timed(|| planner.plan(source, &receivers, &failures));
    let plan = plan?;
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
    Ok(json!({
        "trees": trees,
        "bound": plan.bound,
        "released": plan.released,
        "left_out": plan.left_out,
        "micros": micros,
    }))
}
