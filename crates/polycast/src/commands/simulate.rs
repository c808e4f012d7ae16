//! `polycast simulate`: one transfer at packet level, in virtual time.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use polycast_api::settings;
use polycast_experiments::scenario::{self, ScenarioError};
use polycast_simulator::packet::scenario::Report;
use polycast_types::{Duration, Time, format_bytes};
use serde_json::{Value, json};

use crate::exit::{Exit, Failure};
use crate::output::{self, Format};

/// `polycast simulate`
#[derive(Args, Clone, Debug)]
pub struct SimulateArgs {
    /// The scenario
    #[arg(value_name = "SCENARIO.toml")]
    pub scenario: PathBuf,
    /// In place of the scenario's seed
    #[arg(long, value_name = "S")]
    pub seed: Option<u64>,
}

/// Reads the scenario, runs it and prints what it has shown.
pub fn run(args: &SimulateArgs, format: Format) -> Result<Exit, Failure> {
    let named = |error: ScenarioError| match error {
        ScenarioError::Read { path, error } => Failure::path("read", &path, &error),
        line => Failure::input(format!("{} {line}", args.scenario.display())),
    };
    let path = &args.scenario;
    let text = settings::read_text(path).map_err(|error| Failure::path("read", path, &error))?;
    let scenario = scenario::parse(&text).map_err(named)?;
    let seed = args.seed.unwrap_or(scenario.seed);
    let begun = Instant::now();
    let report = scenario.run(seed).map_err(|problem| named(scenario::locate(&text, &problem)))?;
    let wall_s = begun.elapsed().as_secs_f64();
    if let Some(breach) = report.breaches.first() {
        return Err(Failure::unexpected(format!("seed {seed}: {breach}")));
    }
    output::result(format, &document(&report, seed, wall_s), &people(&report, wall_s))?;
    Ok(if report.finished_at.is_some() { Exit::Done } else { Exit::Failed })
}

fn seconds(at: Option<Time>) -> Option<f64> {
    at.map(|at| at.since(Time::ZERO).as_secs_f64())
}

fn document(report: &Report, seed: u64, wall_s: f64) -> Value {
    let receivers: Vec<Value> = report
        .receivers
        .iter()
        .map(|receiver| {
            let mut document = json!({ "id": receiver.id, "finish_s": seconds(receiver.finished_at) });
            if let Some(failure) = &receiver.failure {
                document["failure"] = failure.as_str().into();
            }
            document
        })
        .collect();
    let links: Vec<Value> = report
        .links
        .iter()
        .map(|link| json!({ "from": link.from, "to": link.to, "bytes": link.bytes }))
        .collect();
    json!({
        "finish_s": seconds(report.finished_at),
        "receivers": receivers,
        "bytes_on_links": report.bytes_on_links,
        "links": links,
        "drops": report.drops,
        "duplicates": report.duplicates,
        "events": report.events,
        "packet_hops": report.packet_hops,
        "trace_hash": format!("{:016x}", report.trace_hash),
        "seed": seed,
        "wall_s": wall_s,
    })
}

fn people(report: &Report, wall_s: f64) -> String {
    let mut text = String::new();
    let done = report.receivers.iter().filter(|receiver| receiver.finished_at.is_some()).count();
    let _ = write!(text, "{done} of {} receivers have the object", report.receivers.len());
    let times: Vec<Time> = report.receivers.iter().filter_map(|receiver| receiver.finished_at).collect();
    if let (Some(first), Some(last)) = (times.iter().min(), times.iter().max()) {
        let since = |at: &Time| at.since(Time::ZERO);
        let _ = write!(text, ", the first after {}, the last after {}", since(first), since(last));
    }
    let _ = writeln!(text);
    for receiver in report.receivers.iter().filter(|receiver| receiver.failure.is_some()) {
        let failure = receiver.failure.as_deref().unwrap_or_default();
        let _ = writeln!(text, "receiver {}: {failure}", receiver.id);
    }
    let _ = writeln!(
        text,
        "{} on {} links, {} packets dropped, {} duplicates",
        format_bytes(report.bytes_on_links),
        report.links.len(),
        report.drops,
        report.duplicates
    );
    let wall = Duration::from(std::time::Duration::from_secs_f64(wall_s));
    let _ = writeln!(text, "{} events in {wall}; trace {:016x}", report.events, report.trace_hash);
    text
}
