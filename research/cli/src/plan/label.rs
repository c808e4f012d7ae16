//! `polycast plan label`: the label of a session and the state of switches (Orca, sections 3 and 4).

use super::dot::{DotArgs, Picture, Role};
use super::{Answer, Damage, PlanError, names, receivers, span, timed};
use clap::Args;
use polycast::table::{Table, paragraph};
use polycast_planning::labels::pod_labels::{self, PodLabelFormat};
use polycast_planning::labels::switches::{self, Delivery};
use polycast_planning::labels::{LabelPlan, LabelPlanner};
use polycast_topology::{Clos, Network, Node};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

pub(super) const EXAMPLES: &str = "\
Examples:
  polycast plan label --topology fat-tree:48,3 --source 0 --receivers 5,600,27000
  polycast plan label --topology leaf-spine:4,2,4 --source 0 --receivers all --session 3
  polycast plan label --topology leaf-spine:4,2,4 --source 0 --receivers 5,9 --failed-links 16-20

Hosts have the numbers from 0 on, switches those behind them; the answer says which.";

/// The most leafs that are listed for people.
const LISTED_MAX: usize = 32;

/// Arguments of `plan label`.
#[derive(Args, Clone, Debug)]
pub(crate) struct LabelArgs {
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
    #[command(flatten)]
    picture: DotArgs,
}

pub(super) fn plan(args: &LabelArgs) -> Result<Answer, PlanError> {
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
    if let Some(path) = &args.picture.dot {
        picture(&network, &clos, source, &plan, &delivery).write(path)?;
    }
    let leaf_labels: Map<String, Value> = plan
        .leaf_hosts
        .iter()
        .map(|entry| {
            let label = format.leaf_label(entry.hosts).to_hex();
            (clos.leaf(entry.leaf).to_string(), json!(label))
        })
        .collect();
    let state: Vec<[Node; 2]> = plan.spine_state.iter().map(|entry| [entry.spine, entry.leaf]).collect();
    let document = json!({
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
    });
    let text = people(&network, source, &plan, &document, micros);
    Ok(Answer { document, text })
}

/// The way of a packet, and the links that spines must not use.
fn picture(network: &Network, clos: &Clos, source: Node, plan: &LabelPlan, delivery: &Delivery) -> Picture {
    let name = |node: Node| names::node(network, node);
    let mut picture = Picture::new(&format!("{network}, label {}", plan.label.to_hex()));
    let (tree, source_leaf) = (&plan.tree, clos.leaf(clos.leaf_index_of(source)));
    let spine = |pod: u32| clos.spine(pod, tree.path.plane);
    picture.node(&name(source), Role::Source);
    picture.arc(&name(source), &name(source_leaf), 0, "");
    picture.arc(&name(source_leaf), &name(spine(tree.source_pod)), 0, "");
    for pod in tree.pods.iter().map(|pod| pod.pod).filter(|pod| *pod != tree.source_pod) {
        let core = name(clos.core(tree.path.plane, tree.path.core));
        picture.arc(&core, &name(spine(pod)), 0, "");
    }
    if tree.pods.iter().any(|pod| pod.pod != tree.source_pod) {
        let core = name(clos.core(tree.path.plane, tree.path.core));
        picture.arc(&name(spine(tree.source_pod)), &core, 0, "");
    }
    let leafs = delivery.hosts.keys().map(|host| clos.leaf_index_of(*host));
    let leafs: BTreeSet<u32> = leafs.chain(delivery.redundant_leafs.iter().copied()).collect();
    for leaf in leafs {
        picture.arc(&name(spine(leaf / clos.leafs_per_pod())), &name(clos.leaf(leaf)), 0, "");
        if delivery.redundant_leafs.contains(&leaf) {
            picture.node(&name(clos.leaf(leaf)), Role::Broken);
        }
    }
    for &host in delivery.hosts.keys() {
        picture.node(&name(host), Role::Receiver);
        picture.arc(&name(clos.leaf(clos.leaf_index_of(host))), &name(host), 0, "");
    }
    plan.spine_state.iter().for_each(|entry| picture.barred(&name(entry.spine), &name(entry.leaf)));
    picture
}

fn people(network: &Network, source: Node, plan: &LabelPlan, document: &Value, micros: f64) -> String {
    let name = |node: Node| names::node(network, node);
    let nodes = |value: &Value| {
        let nodes = value.as_array().into_iter().flatten();
        names::list(nodes.filter_map(Value::as_u64).map(|node| name(node as Node)))
    };
    let word = |value: &Value| value.as_str().unwrap_or_default().to_string();
    let pods = &document["pod_labels"];
    let mut table = Table::new(&["", ""]);
    let mut row = |what: &str, value: String| table.row([what.to_string(), value]);
    row("source", name(source));
    row("label", word(&document["label_hex"]));
    row("length", format!("{} bits in {} bytes", document["label_bits"], document["label_bytes"]));
    row("reaches", nodes(&document["delivered"]));
    row("reaches in vain", nodes(&document["redundant"]));
    if !plan.left_out.is_empty() {
        row("cut off by failures", names::list(plan.left_out.iter().copied().map(name)));
    }
    row("links crossed", document["links"].to_string());
    row("spines keep", format!("{} entries", plan.spine_state.len()));
    row("pod label instead", word(&pods["label_hex"]));
    let asking = pods["asking_pods"].as_array().map_or(0, Vec::len);
    row("", format!("{} links crossed, {asking} pods ask an agent, spines keep nothing", pods["links"]));
    let mut text = format!("{network}\nplanned in {}\n{}", span(micros), table.text().trim_start());
    if !plan.spine_state.is_empty() {
        let mut state = Table::new(&["spine", "does not send to"]).at_most(LISTED_MAX);
        for entries in plan.spine_state.chunk_by(|a, b| a.spine == b.spine) {
            state.row([name(entries[0].spine), names::list(entries.iter().map(|entry| name(entry.leaf)))]);
        }
        text += &format!("\nWhat spines keep\n{}", state.text());
    }
    let mut leafs = Table::new(&["leaf", "label in the rack"]).at_most(LISTED_MAX);
    for (leaf, label) in document["leaf_labels"].as_object().into_iter().flatten() {
        leafs.row([name(leaf.parse().unwrap_or_default()), word(label)]);
    }
    text += &format!("\nWhat agents of racks keep\n{}", leafs.text());
    text + "\n" + &paragraph(&names::numbers(network), 0)
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
    let asks = format.asked_leaf(session, |_| true).unwrap_or_default();
    let pods = pod_labels::encode(&format, plan, asks);
    let delivery = pod_labels::deliver(clos, &format, source, plan, &pods);
    Ok(json!({
        "label_hex": pods.label.to_hex(),
        "label_bytes": format.bytes(),
        "asking_pods": pods.spine_labels.iter().map(|pod| pod.pod).collect::<Vec<_>>(),
        "delivered": delivery.hosts.keys().collect::<Vec<_>>(),
        "redundant": delivery.redundant(clos, wanted),
        "links": delivery.links,
    }))
}
