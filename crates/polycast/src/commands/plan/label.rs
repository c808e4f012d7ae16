//! `polycast plan label`: the label of a session and the state of switches (Orca, sections 3 and 4).

use super::{Damage, PlanError, receivers, timed};
use clap::Args;
use polycast_planning::labels::pod_labels::{self, PodLabelFormat};
use polycast_planning::labels::{LabelPlan, LabelPlanner, switches};
use polycast_topology::{Clos, Network, Node};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

/// Arguments of `plan label`.
#[derive(Args, Clone, Debug)]
pub struct LabelArgs {
    /// fat-tree:n,3 or leaf-spine:leafs,spines,hosts or clos:pods,leafs,spines,hosts,cores
    #[arg(long)]
    pub topology: String,
    /// The host that sends
    #[arg(long, value_name = "HOST")]
    pub source: u64,
    /// The hosts that receive, or all
    #[arg(long, value_name = "HOST,HOST|all")]
    pub receivers: String,
    /// Size of the filter
    #[arg(long, value_name = "BITS", default_value_t = 69)]
    pub filter_bits: u32,
    /// The session's number: it picks the spine and the core
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    pub session: u64,
    #[command(flatten)]
    damage: Damage,
}

pub(super) fn plan(args: &LabelArgs) -> Result<Value, PlanError> {
    let network: Network = args.topology.parse()?;
    let clos = network.as_clos().ok_or_else(|| PlanError::NotClos(args.topology.clone()))?;
    let failures = args.damage.on(&network)?;
    let source = network.checked_node(args.source)?;
    let receivers = receivers(&network, source, &args.receivers)?;
    let mut planner = LabelPlanner::new(clos, args.filter_bits)?;
    let (plan, micros) = timed(|| planner.plan(args.session, source, &receivers, &failures));
    let plan = plan?;
    let format = planner.format();
    let wanted: BTreeSet<Node> =
        receivers.iter().copied().filter(|host| !plan.left_out.contains(host)).collect();
    let delivery = switches::deliver(&clos, format, planner.filter(), source, &plan);
    let leaf_labels: Map<String, Value> = plan
        .leaf_hosts
        .iter()
        .map(|entry| {
            let label = format.leaf_label(entry.hosts).to_hex();
            (clos.leaf(entry.leaf).to_string(), json!(label))
        })
        .collect();
    let state: Vec<[Node; 2]> = plan.spine_state.iter().map(|entry| [entry.spine, entry.leaf]).collect();
    Ok(json!({
        "label_hex": plan.label.to_hex(),
        "label_bits": format.bits(),
        "label_bytes": format.bytes(),
        "spine_state": state,
        "leaf_labels": leaf_labels,
        "delivered": delivery.hosts.keys().collect::<Vec<_>>(),
        "redundant": delivery.redundant(&clos, &wanted),
        "left_out": plan.left_out,
        "links": delivery.links,
        "pod_labels": by_pod_labels(&clos, format.bytes(), args.session, source, &plan, &wanted)?,
        "micros": micros,
    }))
}

/// The same session with labels that need no switch state.
fn by_pod_labels(
    clos: &Clos,
    bytes: u32,
    session: u64,
    source: Node,
    plan: &LabelPlan,
    wanted: &BTreeSet<Node>,
) -> Result<Value, PlanError> {
    let format = PodLabelFormat::new(clos, bytes)?;
    let pods = pod_labels::encode(&format, plan);
    let delivery = pod_labels::deliver(clos, &format, session, source, plan, &pods);
    Ok(json!({
        "label_hex": pods.label.to_hex(),
        "label_bytes": format.bytes(),
        "asking_pods": pods.spine_labels.iter().map(|pod| pod.pod).collect::<Vec<_>>(),
        "delivered": delivery.hosts.keys().collect::<Vec<_>>(),
        "redundant": delivery.redundant(clos, wanted),
        "links": delivery.links,
    }))
}
