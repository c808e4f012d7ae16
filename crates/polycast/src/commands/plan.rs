//! `polycast plan`: what the planners answer, without a network and without root.
//!
//! [`run`] gives the JSON document of shared form; text for people is made from it.

use clap::{Args, Subcommand};
use polycast_experiments::exact::{self, ExactError};
use polycast_planning::circuits::{self, CircuitError, CircuitGroup, CircuitNetwork, Connection, PortPool};
use polycast_planning::economics::{
    self, Catalogue, EconomicsError, LineRate, ParseRateError, RateParts, SplitterPart,
};
use polycast_planning::labels::pod_labels::{self, PodLabelFormat};
use polycast_planning::labels::{LabelError, LabelPlanner, switches};
use polycast_planning::relays::{self, RelayError};
use polycast_planning::trees::{TreeError, TreePlanner};
use polycast_topology::optics::{Cascade, PowerBudget, splitter_loss_db};
use polycast_topology::{Failures, Hybrid, Network, Node, Shufflecast, TopologyError};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long the exact scheduler may think.
const EXACT_TIME_LIMIT: Duration = Duration::from_secs(60);

/// The most ports of a circuit switch whose circuits are listed.
const CIRCUIT_PORTS_MAX: u32 = 1 << 20;

/// Where a file says nothing of power, all groups get enough light.
const UNLIMITED_POWER: PowerBudget =
    PowerBudget { budget_db: 1e9, switch_loss_db: 0.0, splitter_loss_db: 0.0, amplifier_gain_db: 0.0 };

/// The most ToRs whose relays are all listed: the list grows with the square of it.
const LISTED_TORS_MAX: u32 = 2048;

/// Ask a planner.
#[derive(Args, Clone, Debug)]
pub struct PlanArgs {
    /// What to plan.
    #[command(subcommand)]
    pub what: PlanWhat,
}

/// The planners.
#[derive(Subcommand, Clone, Debug)]
pub enum PlanWhat {
    /// Relays of a p, k-Shufflecast, and its rules after relays have failed
    Shufflecast(ShufflecastArgs),
    /// Arc-disjoint Steiner trees in BCube, torus or fat-tree (Datacast)
    Trees(TreesArgs),
    /// Label and switch state of a session in a Clos network (Orca)
    Label(LabelArgs),
    /// Groups that get optical circuits and splitters now (Blast)
    Circuits(CircuitsArgs),
    /// Ports, power and price of fabrics that reach every rack
    Cost(CostArgs),
}

/// Arguments of `plan shufflecast`.
#[derive(Args, Clone, Debug)]
pub struct ShufflecastArgs {
    /// Outputs of a splitter
    #[arg(long)]
    pub p: u32,
    /// Columns
    #[arg(long)]
    pub k: u32,
    /// The ToR that sends; without it all are listed
    #[arg(long, value_name = "TOR")]
    pub source: Option<u64>,
    /// ToRs that cannot relay
    #[arg(long, value_name = "TOR,TOR", value_delimiter = ',')]
    pub failed: Vec<u64>,
}

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
    /// Links that have failed, by their two ends
    #[arg(long, value_name = "NODE-NODE,NODE-NODE", value_delimiter = ',')]
    pub failed_links: Vec<String>,
    /// Nodes that have failed
    #[arg(long, value_name = "NODE,NODE", value_delimiter = ',')]
    pub failed_nodes: Vec<u64>,
}

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
    /// Links that have failed, by their two ends
    #[arg(long, value_name = "NODE-NODE,NODE-NODE", value_delimiter = ',')]
    pub failed_links: Vec<String>,
    /// Nodes that have failed
    #[arg(long, value_name = "NODE,NODE", value_delimiter = ',')]
    pub failed_nodes: Vec<u64>,
}

/// Arguments of `plan circuits`.
#[derive(Args, Clone, Debug)]
pub struct CircuitsArgs {
    /// The network and the groups, as JSON
    #[arg(value_name = "FILE.json")]
    pub file: PathBuf,
    /// Also find the best possible choice, by integer programming
    #[arg(long)]
    pub exact: bool,
}

/// Arguments of `plan cost`.
#[derive(Args, Clone, Debug)]
pub struct CostArgs {
    /// Racks to reach
    #[arg(long)]
    pub tors: u32,
    /// Line rate: 10g, 25g or 100g
    #[arg(long)]
    pub rate: String,
    /// Prices and powers of parts, instead of the built-in ones
    #[arg(long, value_name = "FILE.toml")]
    pub parts: Option<PathBuf>,
    /// Ports of a switch of the packet core
    #[arg(long, value_name = "PORTS")]
    pub switch_ports: Option<u32>,
}

/// Why there is no plan: one sentence that says what was wrong and what would be right.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// About the network.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// About a ToR.
    #[error(transparent)]
    Relay(#[from] RelayError),
    /// About a group of trees.
    #[error(transparent)]
    Tree(#[from] TreeError),
    /// About a session.
    #[error(transparent)]
    Label(#[from] LabelError),
    /// About circuits.
    #[error(transparent)]
    Circuit(#[from] CircuitError),
    /// From the exact scheduler.
    #[error(transparent)]
    Exact(#[from] ExactError),
    /// About costs.
    #[error(transparent)]
    Economics(#[from] EconomicsError),
    /// About a rate.
    #[error(transparent)]
    Rate(#[from] ParseRateError),
    /// A list that would be too long.
    #[error("relays of all {0} ToRs would be too long a list: choose one with --source")]
    TooManySources(u32),
    /// A network without leafs and spines.
    #[error("labels need leafs and spines and '{0}' has none: choose fat-tree:n,3, leaf-spine:.. or clos:..")]
    NotClos(String),
    /// A text that is no list of nodes.
    #[error("'{0}' is not a list of nodes: write numbers with commas between them, such as 1,5,9, or all")]
    NodeList(String),
    /// A text that is no link.
    #[error("'{0}' is not a link: write its two ends with a dash between them, such as 3-17")]
    LinkText(String),
    /// A file that cannot be read.
    #[error("cannot read {path}: {error}")]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// A file with wrong contents.
    #[error("{path} is not right: {error}")]
    Contents {
        /// The file.
        path: PathBuf,
        /// What is wrong and where.
        error: String,
    },
}

/// Answers with the JSON document.
///
/// # Errors
/// If the question is wrong, or nobody can be served.
pub fn run(args: PlanArgs) -> Result<Value, PlanError> {
    match args.what {
        PlanWhat::Shufflecast(args) => shufflecast(&args),
        PlanWhat::Trees(args) => trees(&args),
        PlanWhat::Label(args) => label(&args),
        PlanWhat::Circuits(args) => plan_circuits(&args),
        PlanWhat::Cost(args) => cost(&args),
    }
}

fn shufflecast(args: &ShufflecastArgs) -> Result<Value, PlanError> {
    let network = Shufflecast::new(args.p, args.k)?;
    let tor = |tor: &u64| relays::checked_tor(&network, *tor);
    let failed: BTreeSet<u32> = args.failed.iter().map(tor).collect::<Result<_, _>>()?;
    let source = args.source.as_ref().map(tor).transpose()?;
    let recovery = relays::recover(&network, &failed);
    let of = |source: u32| {
        let reach = recovery.reach(&network, source);
        let before = relays::reach_before_recovery(&network, source, &failed);
        json!({
            "source": source,
            "tors": network.tors(),
            "max_hops": reach.max_hops(),
            "relays": recovery.relay_set(&network, source),
            "unreachable": reach.unreachable(),
            "unreachable_before_recovery": before.unreachable(),
        })
    };
    let Some(source) = source else {
        if network.tors() > LISTED_TORS_MAX {
            return Err(PlanError::TooManySources(network.tors()));
        }
        return Ok((0..network.tors()).map(of).collect());
    };
    let rules = |set: &BTreeSet<(u32, u32)>| -> Vec<Value> {
        set.iter().map(|&(relay, source)| json!({ "relay": relay, "source": source })).collect()
    };
    let mut document = of(source);
    document["rules_per_tor_max"] = json!(recovery.rules_per_tor_max(&network));
    document["activated"] = json!(rules(&recovery.activated));
    document["deactivated"] = json!(rules(&recovery.deactivated));
    Ok(document)
}

fn trees(args: &TreesArgs) -> Result<Value, PlanError> {
    let network: Network = args.topology.parse()?;
    let failures = failures(&network, &args.failed_links, &args.failed_nodes)?;
    let source = network.checked_node(args.source)?;
    let receivers = receivers(&network, source, &args.receivers)?;
    let mut planner = TreePlanner::new(network);
    let start = Instant::now();
    let plan = planner.plan(source, &receivers, &failures)?;
    let micros = micros_since(start);
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

fn label(args: &LabelArgs) -> Result<Value, PlanError> {
    let network: Network = args.topology.parse()?;
    let clos = network.as_clos().ok_or_else(|| PlanError::NotClos(args.topology.clone()))?;
    let failures = failures(&network, &args.failed_links, &args.failed_nodes)?;
    let source = network.checked_node(args.source)?;
    let receivers = receivers(&network, source, &args.receivers)?;
    let mut planner = LabelPlanner::new(clos, args.filter_bits)?;
    let start = Instant::now();
    let plan = planner.plan(args.session, source, &receivers, &failures)?;
    let micros = micros_since(start);
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
    clos: &polycast_topology::Clos,
    bytes: u32,
    session: u64,
    source: Node,
    plan: &polycast_planning::labels::LabelPlan,
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

/// The contents of a circuits file.
#[derive(Deserialize)]
struct CircuitsFile {
    racks: u32,
    ports_per_rack: u32,
    splitters: u32,
    splitter_fanout: u32,
    cascade_max: u32,
    groups: Vec<GroupEntry>,
    #[serde(default)]
    running: Vec<Value>,
    /// With it, groups that would be too dark are rejected too.
    power: Option<PowerEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PowerEntry {
    /// From the transmitter's power to the receiver's sensitivity.
    budget_db: f64,
    /// One pass through the circuit switch.
    switch_loss_db: f64,
    /// One splitter; computed from its outputs where it is not given.
    splitter_loss_db: Option<f64>,
    /// One amplifier; 0 without amplifiers.
    #[serde(default)]
    amplifier_gain_db: f64,
}

#[derive(Deserialize)]
struct GroupEntry {
    id: Value,
    /// The rack of the source; it counts among the racks whether or not it is listed there.
    source: Option<u32>,
    racks: Vec<u32>,
    bytes: u64,
    receivers: u32,
}

fn plan_circuits(args: &CircuitsArgs) -> Result<Value, PlanError> {
    let wrong = |error: String| PlanError::Contents { path: args.file.clone(), error };
    let file: CircuitsFile =
        serde_json::from_str(&read(&args.file)?).map_err(|error| wrong(error.to_string()))?;
    let network = CircuitNetwork {
        racks: file.racks,
        ports_per_rack: file.ports_per_rack,
        splitters: file.splitters,
        splitter_fanout: file.splitter_fanout,
        cascade_max: file.cascade_max,
    };
    // Ids may be any JSON value; inside, numbers stand for themselves where all ids are numbers.
    let names: Vec<Value> = file.groups.iter().map(|group| group.id.clone()).collect();
    let numbers: Option<Vec<u64>> = names.iter().map(Value::as_u64).collect();
    let ids = numbers.unwrap_or_else(|| (0..names.len() as u64).collect());
    if let Some(twice) = names.iter().enumerate().find(|(at, name)| names[..*at].contains(name)) {
        return Err(wrong(format!("two groups are called {}: give every group its own id", twice.1)));
    }
    let name_of =
        |id: u64| ids.iter().position(|&other| other == id).map_or(json!(id), |at| names[at].clone());
    let id_of = |name: &Value| {
        let at = names.iter().position(|other| other == name);
        at.map(|at| ids[at]).ok_or_else(|| wrong(format!("running group {name} is not among the groups")))
    };
    let running: BTreeSet<u64> = file.running.iter().map(id_of).collect::<Result<_, _>>()?;
    let groups: Vec<CircuitGroup> =
        file.groups.iter().zip(&ids).map(|(group, &id)| group.checked(id)).collect();
    let (groups, dark) = within_power(&file, &running, groups).map_err(wrong)?;
    let start = Instant::now();
    let schedule = circuits::schedule(&network, &groups, &running)?;
    let micros = micros_since(start);
    let named = |list: &[u64]| -> Vec<Value> { list.iter().map(|&id| name_of(id)).collect() };
    let reasons = schedule.rejected.iter().map(|(id, why)| (*id, why.to_string())).chain(dark);
    let rejected: Vec<Value> = reasons.map(|(id, why)| json!({ "id": name_of(id), "reason": why })).collect();
    let mut document = json!({
        "granted": named(&schedule.granted),
        "waiting": named(&schedule.waiting),
        "rejected": rejected,
        "volume": number(schedule.volume),
        "splitters_used": schedule.splitters_used,
        "micros": micros,
    });
    let found = circuit_lists(&file, &groups, &ids, &running, &schedule.granted);
    match found {
        Ok(lists) => {
            let entry = |(id, list): (u64, Value)| {
                let mut entry = list;
                entry["id"] = name_of(id);
                entry
            };
            document["circuits"] = lists.into_iter().map(entry).collect();
        }
        Err(why) => document["circuits_left_out"] = json!(why),
    }
    if args.exact {
        let best = exact::schedule(&network, &groups, &running, EXACT_TIME_LIMIT)?;
        document["optimal_proven"] = json!(best.proven);
        if best.proven {
            document["optimal_volume"] = number(best.schedule.volume);
            document["optimal_granted"] = json!(named(&best.schedule.granted));
        } else {
            document["best_known_volume"] = number(best.schedule.volume);
            document["best_known_granted"] = json!(named(&best.schedule.granted));
        }
    }
    Ok(document)
}

/// The cross connections and TL1 commands of every granted group. Groups that run already are taken to hold the
/// first free fibres and splitters, in the order in which they are listed.
fn circuit_lists(
    file: &CircuitsFile,
    groups: &[CircuitGroup],
    ids: &[u64],
    running: &BTreeSet<u64>,
    granted: &[u64],
) -> Result<Vec<(u64, Value)>, String> {
    let hybrid = Hybrid {
        racks: file.racks,
        servers_per_rack: 1,
        ports_per_rack: file.ports_per_rack,
        splitters: file.splitters,
        splitter_fanout: file.splitter_fanout,
    };
    let hybrid = hybrid.checked(CIRCUIT_PORTS_MAX).map_err(|error| error.to_string())?;
    let mut pool = PortPool::new(hybrid);
    let budget = file.power.as_ref().map_or(UNLIMITED_POWER, |power| power.budget(file.splitter_fanout));
    let mut lists = Vec::with_capacity(granted.len());
    let mut tag = 1;
    for id in
        groups.iter().map(|group| group.id).filter(|id| running.contains(id)).chain(granted.iter().copied())
    {
        let Some(group) = groups.iter().find(|group| group.id == id) else { continue };
        let entry = ids.iter().zip(&file.groups).find(|(other, _)| **other == id);
        let source = entry.and_then(|(_, entry)| entry.source).unwrap_or(group.racks[0]);
        let others: Vec<u32> = group.racks.iter().copied().filter(|rack| *rack != source).collect();
        let circuits = circuits::setup(&mut pool, source, &others, &budget)
            .map_err(|error| format!("group {id}: {error}"))?;
        if running.contains(&id) {
            continue;
        }
        let tags = tag..tag + circuits.connections.len() as u32;
        tag = tags.end;
        let command = |what: fn(&Connection, u32) -> String| -> Vec<String> {
            circuits
                .connections
                .iter()
                .zip(tags.clone())
                .map(|(connection, tag)| what(connection, tag))
                .collect()
        };
        let pairs: Vec<[u32; 2]> = circuits.connections.iter().map(|c| [c.from, c.to]).collect();
        lists.push((
            id,
            json!({
                "connections": pairs,
                "splitters": circuits.splitters,
                "amplified_splitters": circuits.power.amplified,
                "tl1_enter": command(Connection::tl1_enter),
                "tl1_delete": command(Connection::tl1_delete),
            }),
        ));
    }
    Ok(lists)
}

impl GroupEntry {
    fn checked(&self, id: u64) -> CircuitGroup {
        let mut racks = self.racks.clone();
        racks.extend(self.source.filter(|source| !self.racks.contains(source)));
        CircuitGroup { id, racks, bytes: self.bytes, receivers: self.receivers }
    }
}

impl PowerEntry {
    fn budget(&self, splitter_fanout: u32) -> PowerBudget {
        PowerBudget {
            budget_db: self.budget_db,
            switch_loss_db: self.switch_loss_db,
            splitter_loss_db: self.splitter_loss_db.unwrap_or_else(|| splitter_loss_db(splitter_fanout)),
            amplifier_gain_db: self.amplifier_gain_db,
        }
    }

    fn check(&self) -> Result<(), String> {
        let values = [
            ("budget_db", self.budget_db),
            ("switch_loss_db", self.switch_loss_db),
            ("splitter_loss_db", self.splitter_loss_db.unwrap_or(0.0)),
            ("amplifier_gain_db", self.amplifier_gain_db),
        ];
        match values.into_iter().find(|(_, value)| !value.is_finite() || *value < 0.0) {
            Some((name, value)) => Err(format!("{name} cannot be {value}: write decibels of at least 0")),
            None => Ok(()),
        }
    }
}

/// The groups whose receivers get enough light, and why the others do not. What runs already does get enough.
type Lit = (Vec<CircuitGroup>, Vec<(u64, String)>);

fn within_power(
    file: &CircuitsFile,
    running: &BTreeSet<u64>,
    groups: Vec<CircuitGroup>,
) -> Result<Lit, String> {
    let Some(power) = &file.power else { return Ok((groups, Vec::new())) };
    power.check()?;
    let budget = power.budget(file.splitter_fanout);
    let mut dark = Vec::new();
    let bright = groups.into_iter().filter(|group| {
        // Groups that name no other rack, or one that does not exist, are refused for that.
        if running.contains(&group.id) || group.racks.len() < 2 {
            return true;
        }
        let receivers = group.racks.len().saturating_sub(1) as u32;
        let plan = budget.plan(&Cascade::new(receivers, file.splitter_fanout));
        dark.extend(plan.err().map(|error| (group.id, error.to_string())));
        dark.last().is_none_or(|(id, _)| *id != group.id)
    });
    Ok((bright.collect(), dark))
}

/// The contents of a parts file: every table that it has takes the place of the built-in one.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PartsFile {
    rate: Option<Vec<RateEntry>>,
    splitter: Option<Vec<SplitterEntry>>,
    duplex_fibre_cost_usd: Option<f64>,
    switch_ports: Option<u32>,
    forwarding_ns: Option<f64>,
    propagation_ns: Option<f64>,
    packet_bytes: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RateEntry {
    gbps: u32,
    port_power_w: f64,
    port_cost_usd: f64,
    transceiver_power_w: f64,
    transceiver_cost_usd: f64,
    transceiver_budget_db: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SplitterEntry {
    fanout: u32,
    loss_db: f64,
    cost_usd: f64,
}

impl PartsFile {
    fn apply(self, catalogue: &mut Catalogue) {
        if let Some(rates) = self.rate {
            let part = |entry: RateEntry| RateParts {
                gbps: entry.gbps,
                port_power_w: entry.port_power_w,
                port_cost_usd: entry.port_cost_usd,
                transceiver_power_w: entry.transceiver_power_w,
                transceiver_cost_usd: entry.transceiver_cost_usd,
                transceiver_budget_db: entry.transceiver_budget_db,
            };
            catalogue.rates = rates.into_iter().map(part).collect();
        }
        if let Some(splitters) = self.splitter {
            let part = |entry: SplitterEntry| SplitterPart {
                fanout: entry.fanout,
                loss_db: entry.loss_db,
                cost_usd: entry.cost_usd,
            };
            catalogue.splitters = splitters.into_iter().map(part).collect();
        }
        let set = |slot: &mut f64, value: Option<f64>| *slot = value.unwrap_or(*slot);
        set(&mut catalogue.duplex_fibre_cost_usd, self.duplex_fibre_cost_usd);
        set(&mut catalogue.forwarding_ns, self.forwarding_ns);
        set(&mut catalogue.propagation_ns, self.propagation_ns);
        catalogue.switch_ports = self.switch_ports.unwrap_or(catalogue.switch_ports);
        catalogue.packet_bytes = self.packet_bytes.unwrap_or(catalogue.packet_bytes);
    }
}

fn cost(args: &CostArgs) -> Result<Value, PlanError> {
    let mut catalogue = Catalogue::default();
    let gbps = match &args.parts {
        Some(path) => {
            let wrong = |error: String| PlanError::Contents { path: path.clone(), error };
            let parts: PartsFile =
                toml::from_str(&read(path)?).map_err(|error| wrong(error.message().to_string()))?;
            parts.apply(&mut catalogue);
            // With parts of one's own, any line rate that they list will do.
            let number = args.rate.trim_end_matches(|c: char| c.is_ascii_alphabetic());
            number.parse().map_or_else(|_| args.rate.parse().map(LineRate::gbps), Ok)?
        }
        None => args.rate.parse::<LineRate>()?.gbps(),
    };
    if let Some(ports) = args.switch_ports {
        catalogue.switch_ports = ports;
    }
    let fabrics: Vec<Value> = economics::compare(&catalogue, args.tors, gbps)?
        .into_iter()
        .map(|bill| {
            json!({
                "name": bill.name,
                "instance": bill.instance,
                "ports": bill.ports,
                "transceivers": bill.transceivers,
                "splitters": bill.splitters,
                "duplex_fibres": bill.duplex_fibres,
                "power_w": bill.power_w,
                "cost_usd": bill.cost_usd,
                "latency_ns": bill.latency_ns,
            })
        })
        .collect();
    let mut document = json!({ "fabrics": fabrics });
    if let Some(network) = economics::instance(args.tors) {
        let per_tor = economics::deployment_cost_per_tor_usd(&catalogue, &network, gbps)?;
        document["shufflecast_deployment_usd_per_tor"] = json!(per_tor);
    }
    Ok(document)
}

fn read(path: &Path) -> Result<String, PlanError> {
    std::fs::read_to_string(path).map_err(|error| PlanError::File { path: path.into(), error })
}

fn failures(network: &Network, links: &[String], nodes: &[u64]) -> Result<Failures, PlanError> {
    let mut failures = Failures::none();
    for text in links.iter().filter(|text| !text.trim().is_empty()) {
        let wrong = || PlanError::LinkText(text.clone());
        let (from, to) = text.split_once('-').ok_or_else(wrong)?;
        let end = |text: &str| text.trim().parse::<u64>().map_err(|_| wrong());
        failures.fail_link(network.link_between(end(from)?, end(to)?)?);
    }
    for &node in nodes {
        failures.fail_node(network.checked_node(node)?);
    }
    Ok(failures)
}

/// The servers that a list names; `all` are all but the source.
fn receivers(network: &Network, source: Node, text: &str) -> Result<Vec<Node>, PlanError> {
    use polycast_topology::Graph;
    if text.trim() == "all" {
        return Ok((0..network.server_count()).filter(|&server| server != source).collect());
    }
    let number = |part: &str| part.trim().parse::<u64>().map_err(|_| PlanError::NodeList(text.into()));
    text.split(',').map(|part| Ok(network.checked_node(number(part)?)?)).collect()
}

/// A whole number as JSON, rounded where JSON numbers end.
fn number(value: u128) -> Value {
    u64::try_from(value).map_or_else(|_| json!(value as f64), |value| json!(value))
}

fn micros_since(start: Instant) -> f64 {
    start.elapsed().as_nanos() as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        plan: PlanArgs,
    }

    fn plan(line: &str) -> Result<Value, PlanError> {
        let words = std::iter::once("plan").chain(line.split_whitespace());
        run(Line::try_parse_from(words).expect("arguments parse").plan)
    }

    #[test]
    fn shufflecast_answers_for_one_and_for_all_sources() {
        let one = plan("shufflecast --p 2 --k 3 --source 0 --failed 8").unwrap();
        assert_eq!((&one["tors"], &one["unreachable"]), (&json!(24), &json!([])));
        assert_eq!(one["unreachable_before_recovery"].as_array().unwrap().len(), 15);
        assert!(one["activated"].as_array().unwrap().contains(&json!({ "relay": 6, "source": 16 })));
        let all = plan("shufflecast --p 2 --k 2").unwrap();
        assert_eq!(all.as_array().unwrap().len(), 8);
        assert!(plan("shufflecast --p 2 --k 2 --source 8").unwrap_err().to_string().contains("ToR 8"));
    }

    #[test]
    fn trees_prune_to_thirteen_links() {
        let answer = plan("trees --topology bcube:4,2 --source 0 --receivers 2,4,9,11,13,15").unwrap();
        let links: Vec<_> = answer["trees"].as_array().unwrap().iter().map(|tree| &tree["links"]).collect();
        assert_eq!(links, [&json!(13), &json!(13)]);
        let cut = "trees --topology bcube:4,2 --source 0 --receivers 2,4 --failed-links 2-16,2-22";
        assert_eq!(plan(cut).unwrap()["left_out"], json!([2]));
        for (line, words) in [
            ("trees --topology ring:4 --source 0 --receivers 1", "bcube:n,k"),
            ("trees --topology bcube:4,2 --source 99 --receivers 1", "0 to 23"),
            ("trees --topology bcube:4,2 --source 0 --receivers 0,1", "source"),
            ("trees --topology bcube:4,2 --source 0 --receivers x", "'x'"),
            ("trees --topology bcube:4,2 --source 0 --receivers 1 --failed-links 0-1", "no link 0-1"),
        ] {
            assert!(plan(line).unwrap_err().to_string().contains(words), "{line}");
        }
    }

    #[test]
    fn a_label_delivers_to_its_receivers_alone() {
        let answer = plan("label --topology fat-tree:48,3 --source 0 --receivers 5,600,27000").unwrap();
        assert_eq!(answer["label_bytes"], json!(19));
        assert_eq!(answer["label_hex"].as_str().unwrap().len(), 38);
        assert_eq!((&answer["delivered"], &answer["redundant"]), (&json!([5, 600, 27000]), &json!([])));
        assert_eq!(answer["pod_labels"]["delivered"], json!([5, 600, 27000]));
        let wrong = plan("label --topology bcube:4,2 --source 0 --receivers 1").unwrap_err();
        assert!(wrong.to_string().contains("fat-tree:n,3"));
    }

    #[test]
    fn circuits_are_granted_and_measured() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("groups.json");
        let text = r#"{"racks": 6, "ports_per_rack": 1, "splitters": 2, "splitter_fanout": 4, "cascade_max": 2,
            "groups": [{"id": 1, "source": 0, "racks": [0, 1, 2], "bytes": 100, "receivers": 10},
                       {"id": 2, "source": 2, "racks": [2, 3], "bytes": 1, "receivers": 1},
                       {"id": 3, "source": 4, "racks": [5], "bytes": 7, "receivers": 1}], "running": []}"#;
        std::fs::write(&file, text).unwrap();
        let answer = plan(&format!("circuits {} --exact", file.display())).unwrap();
        assert_eq!((&answer["granted"], &answer["waiting"]), (&json!([1, 3]), &json!([2])));
        assert_eq!((&answer["volume"], &answer["optimal_volume"]), (&json!(1007), &json!(1007)));
        // Racks have ports 0 to 5; the first splitter is fed by port 6. TL1 counts ports from 1.
        let first = &answer["circuits"][0];
        assert_eq!((&first["id"], &first["connections"]), (&json!(1), &json!([[0, 6], [7, 1], [8, 2]])));
        assert_eq!(first["tl1_enter"][1], json!("ENT-CRS-FIBER::8,2:2;"));
        assert_eq!(answer["circuits"][1]["tl1_delete"], json!(["DLT-CRS-FIBER::5,6:4;"]));
        let large = text.replace("\"racks\": 6", "\"racks\": 4000000000");
        std::fs::write(&file, large).unwrap();
        let error = plan(&format!("circuits {}", file.display())).unwrap_err().to_string();
        assert!(error.contains("4000000000 racks"), "{error}");
        let negative =
            text.replace("\"running\"", r#""power": {"budget_db": 9.0, "switch_loss_db": -1.0}, "running""#);
        std::fs::write(&file, negative).unwrap();
        let error = plan(&format!("circuits {}", file.display())).unwrap_err().to_string();
        assert!(error.contains("switch_loss_db cannot be -1"), "{error}");
        let dark =
            text.replace("\"running\"", r#""power": {"budget_db": 3.0, "switch_loss_db": 1.0}, "running""#);
        std::fs::write(&file, dark).unwrap();
        let answer = plan(&format!("circuits {}", file.display())).unwrap();
        assert_eq!((&answer["granted"], &answer["rejected"][0]["id"]), (&json!([3, 2]), &json!(1)));
        assert!(answer["rejected"][0]["reason"].as_str().unwrap().contains("3.0 dB"), "{answer}");
        std::fs::write(&file, "{").unwrap();
        assert!(plan(&format!("circuits {}", file.display())).is_err());
    }

    #[test]
    fn cost_compares_three_fabrics() {
        let answer = plan("cost --tors 8 --rate 10g --switch-ports 4").unwrap();
        let ports: Vec<_> =
            answer["fabrics"].as_array().unwrap().iter().map(|f| f["ports"].clone()).collect();
        assert_eq!(ports, [json!(12), json!(22), json!(16)]);
        assert!(plan("cost --tors 8 --rate 40g").unwrap_err().to_string().contains("10g, 25g or 100g"));
    }
}
