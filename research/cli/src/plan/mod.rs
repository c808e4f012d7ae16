//! `polycast plan`: what the planners answer, without a network and without root.
//!
//! One module a planner: its arguments, and what answers them: a JSON document for programs, tables for
//! people.

mod advise;
mod circuits;
mod cost;
mod dot;
mod label;
pub(crate) mod names;
pub(crate) mod parts;
mod shufflecast;
mod topology;
mod trees;

use clap::{Args, Subcommand};
use polycast::exit::{Exit, Failure};
use polycast::output::{self, Format};
use polycast::report;
use polycast_api::settings;
use polycast_experiments::advice::{SiteError, WAYS};
use polycast_experiments::exact::ExactError;
use polycast_planning::circuits::CircuitError;
use polycast_planning::economics::{EconomicsError, ParseRateError};
use polycast_planning::labels::LabelError;
use polycast_planning::relays::RelayError;
use polycast_planning::trees::TreeError;
use polycast_topology::{Failures, Graph, Network, Node, TopologyError};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Ask a planner.
#[derive(Args, Clone, Debug)]
pub(crate) struct PlanArgs {
    /// Planner to ask.
    #[command(subcommand)]
    pub what: PlanWhat,
}

/// The planners.
#[derive(Subcommand, Clone, Debug)]
pub(crate) enum PlanWhat {
    /// Which way to deliver: time, cost, power and load of each in your data center, and the one to take
    #[command(after_help = advise::EXAMPLES)]
    Advise(advise::AdviseArgs),
    /// Relays of a p, k-Shufflecast, and its rules after relays have failed
    #[command(after_help = shufflecast::EXAMPLES)]
    Shufflecast(shufflecast::ShufflecastArgs),
    /// Size and picture of a network
    #[command(after_help = topology::EXAMPLES)]
    Topology(topology::TopologyArgs),
    /// Arc-disjoint Steiner trees in BCube, torus or fat-tree (Datacast)
    #[command(after_help = trees::EXAMPLES)]
    Trees(trees::TreesArgs),
    /// Label and switch state of a session in a Clos network (Orca)
    #[command(after_help = label::EXAMPLES)]
    Label(label::LabelArgs),
    /// Groups that get optical circuits and splitters now (Blast)
    #[command(after_help = circuits::EXAMPLES)]
    Circuits(circuits::CircuitsArgs),
    /// Ports, power and price of fabrics that reach every rack
    #[command(after_help = cost::EXAMPLES)]
    Cost(cost::CostArgs),
}

/// Failures in a network.
#[derive(Args, Clone, Debug)]
pub(crate) struct Damage {
    /// Links that have failed, by their two ends
    #[arg(long, value_name = "NODE-NODE,NODE-NODE", value_delimiter = ',')]
    pub failed_links: Vec<String>,
    /// Nodes that have failed
    #[arg(long, value_name = "NODE,NODE", value_delimiter = ',')]
    pub failed_nodes: Vec<u64>,
}

/// Reason why there is no plan: one sentence that states what was wrong and what would be right.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PlanError {
    /// About the network.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// A text that names no Shufflecast.
    #[error("'{0}' is no Shufflecast: write shufflecast:p,k, such as shufflecast:2,3")]
    NotShufflecast(String),
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
    #[error("{0}, or name the prices of others with --parts FILE")]
    Rate(#[from] ParseRateError),
    /// About a data center.
    #[error(transparent)]
    Site(#[from] SiteError),
    /// A way that there is not.
    #[error("'{0}' is no way to deliver: choose from {ways}", ways = WAYS.join(", "))]
    UnknownWay(String),
    /// A picture that cannot be drawn.
    #[error("{0}")]
    Picture(String),
    /// A picture that nothing can draw in time.
    #[error(
        "a picture of {arcs} arcs is too large for Graphviz: draw one of {limit} at most, with fewer receivers"
    )]
    PictureSize {
        /// Arcs of the picture.
        arcs: usize,
        /// The most.
        limit: usize,
    },
    /// A file that cannot be written.
    #[error("cannot write {path}: {error}")]
    Written {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        error: std::io::Error,
    },
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
        /// Error of the system.
        error: std::io::Error,
    },
    /// A file with wrong contents.
    #[error("{path} is not right: {error}")]
    Contents {
        /// The file.
        path: PathBuf,
        /// Mistake in the file and its place.
        error: String,
    },
}

impl From<PlanError> for Failure {
    fn from(error: PlanError) -> Self {
        Failure::input(error.to_string())
    }
}

/// Asks the planner, and prints what it answers.
pub(crate) fn run(args: &PlanArgs, format: Format) -> Result<Exit, Failure> {
    let answer = answer(&args.what)?;
    output::result(format, &answer.document, &answer.text)?;
    Ok(Exit::Done)
}

/// Answer of a planner.
struct Answer {
    /// For programs.
    document: Value,
    /// For people.
    text: String,
}

fn answer(what: &PlanWhat) -> Result<Answer, PlanError> {
    match what {
        PlanWhat::Advise(args) => advise::plan(args),
        PlanWhat::Shufflecast(args) => shufflecast::plan(args),
        PlanWhat::Topology(args) => topology::plan(args),
        PlanWhat::Trees(args) => trees::plan(args),
        PlanWhat::Label(args) => label::plan(args),
        PlanWhat::Circuits(args) => circuits::plan(args),
        PlanWhat::Cost(args) => cost::plan(args),
    }
}

fn read(path: &Path) -> Result<String, PlanError> {
    settings::read_text(path).map_err(|error| PlanError::File { path: path.into(), error })
}

impl Damage {
    fn on(&self, network: &Network) -> Result<Failures, PlanError> {
        let mut failures = Failures::none();
        for text in self.failed_links.iter().filter(|text| !text.trim().is_empty()) {
            let wrong = || PlanError::LinkText(text.clone());
            let (from, to) = text.split_once('-').ok_or_else(wrong)?;
            let end = |text: &str| text.trim().parse::<u64>().map_err(|_| wrong());
            failures.fail_link(network.link_between(end(from)?, end(to)?)?);
        }
        for &node in &self.failed_nodes {
            failures.fail_node(network.checked_node(node)?);
        }
        Ok(failures)
    }
}

/// The servers that a list names; `all` are all but the source.
fn receivers(network: &Network, source: Node, text: &str) -> Result<Vec<Node>, PlanError> {
    if text.trim() == "all" {
        return Ok((0..network.server_count()).filter(|&server| server != source).collect());
    }
    let number = |part: &str| part.trim().parse::<u64>().map_err(|_| PlanError::NodeList(text.into()));
    text.split(',').map(|part| Ok(network.checked_node(number(part)?)?)).collect()
}

/// A time for people.
fn span(micros: f64) -> String {
    report::seconds(micros / 1e6)
}

/// Returns the result of a planner, and the microseconds that it took.
fn timed<T>(work: impl FnOnce() -> T) -> (T, f64) {
    let start = Instant::now();
    let done = work();
    (done, start.elapsed().as_nanos() as f64 / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use serde_json::json;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        plan: PlanArgs,
    }

    fn plan(line: &str) -> Result<Value, PlanError> {
        let words = std::iter::once("plan").chain(line.split_whitespace());
        answer(&Line::try_parse_from(words).expect("arguments parse").plan.what).map(|answer| answer.document)
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
    fn advice_compares_seven_ways() {
        let line = "advise --hosts 512 --rack 32 --rate 100g --object 140GB --groups 4 --times-a-day 50";
        let answer = plan(line).unwrap();
        let ways = answer["ways"].as_array().unwrap();
        assert_eq!(ways.len(), 7);
        for way in ways {
            assert!(way["seconds"].as_f64().is_some_and(|seconds| seconds > 11.2), "{way}");
            assert!(way["extra_cost_usd"].is_number() && way["power_w"].is_number(), "{way}");
            assert!(way["core_copies"].is_number() && way["needs"].is_string(), "{way}");
        }
        assert_eq!((&answer["recommended"], &answer["receivers"]), (&json!("ip-multicast"), &json!(127)));
        assert!(answer["saved_hours_a_day"].as_f64().unwrap() > 70.0, "{answer}");
        let parts = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/parts.toml");
        let priced =
            plan(&format!("{line} --rate 400g --parts {parts}").replace("--rate 100g ", "")).unwrap();
        assert!(priced["ways"][5]["extra_cost_usd"].as_f64().unwrap() > 0.0, "{priced}");
        let refused = priced["ways"][4]["refused"].as_str().unwrap();
        assert!(refused.contains("no splitter with 3 outputs"), "{refused}");
        for (more, words) in [
            ("--without ring", "choose from file-server, ip-multicast"),
            ("--oversubscription 0", "oversubscription of 0"),
            ("--mtu 100", "1500 or 9000"),
        ] {
            assert!(plan(&format!("{line} {more}")).unwrap_err().to_string().contains(words), "{more}");
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("advice.svg");
        plan(&format!("{line} --svg {}", path.display())).unwrap();
        let svg = std::fs::read_to_string(&path).unwrap();
        assert!(svg.starts_with("<svg") && svg.contains("shufflecast") && svg.contains("USD"), "{svg}");
    }

    #[test]
    fn answers_are_drawn() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("picture.dot");
        for (line, arcs, words) in [
            ("trees --topology bcube:4,2 --source 0 --receivers 2,4,9,11,13,15", 26, "\"h0\" -> \"s16\""),
            ("label --topology leaf-spine:4,2,4 --source 0 --receivers 5,9", 6, "\"leaf1\" -> \"h5\""),
            ("shufflecast --p 2 --k 2 --source 0", 8, "\"tor0\" -> \"tor4\""),
            ("shufflecast --p 2 --k 2", 16, "\"tor7\" -> \"tor3\""),
        ] {
            plan(&format!("{line} --dot {}", path.display())).unwrap();
            let text = std::fs::read_to_string(&path).unwrap();
            assert_eq!(text.matches(" -> ").count(), arcs, "{line}: {text}");
            assert!(text.starts_with("digraph {") && text.contains(words), "{line}: {text}");
        }
    }

    #[test]
    fn cost_compares_four_fabrics() {
        let answer = plan("cost --tors 8 --rate 10g --switch-ports 4").unwrap();
        let ports: Vec<_> =
            answer["fabrics"].as_array().unwrap().iter().map(|f| f["ports"].clone()).collect();
        assert_eq!(ports, [json!(12), json!(22), json!(16), json!(8)]);
        assert!(plan("cost --tors 8 --rate 40g").unwrap_err().to_string().contains("10g, 25g or 100g"));
    }
}
