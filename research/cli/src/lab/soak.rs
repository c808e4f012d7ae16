//! `polycast lab soak`: many groups that are created, served and ended in one lab, and what they leave behind
//! (Datacast, section 2, scalable group state management).

use super::failed;
use super::{Spec, program, registry};
use crate::{object, report};
use clap::Args as Arguments;
use polycast::exit::{Exit, Failure};
use polycast::output::{self, Format};
use polycast::progress::Progress;
use polycast_lab::soak::{Left, Memory, SoakOptions, SoakOutcome};
use polycast_types::format_bytes;
use serde::Serialize;
use std::fmt::Write as _;
use std::path::PathBuf;

/// `polycast lab soak`
#[derive(Arguments, Debug)]
pub(super) struct SoakArgs {
    /// The lab, such as datacast:bcube:4,2 or bridge:8
    #[arg(value_name = "SPEC")]
    spec: Spec,
    /// The file to deliver, better a small one
    #[arg(value_name = "FILE")]
    path: PathBuf,
    /// How many groups, each for one delivery
    #[arg(long, value_name = "N", default_value = "1000", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    groups: u32,
    /// How many at the same time
    #[arg(long, value_name = "N", default_value = "4", value_parser = clap::value_parser!(u32).range(1..=64))]
    parallel: u32,
    /// How many hosts receive in each group; who that is, and who sends, is drawn
    #[arg(long, value_name = "N", default_value = "3", value_parser = clap::value_parser!(u32).range(1..=200))]
    receivers: u32,
    /// From which groups are drawn
    #[arg(long, value_name = "S", default_value = "1")]
    seed: u64,
    /// How often memory is read on the way
    #[arg(long, value_name = "N", default_value = "10", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    readings: u32,
}

#[derive(Serialize)]
struct Document {
    lab: String,
    groups: u32,
    setup_s: f64,
    #[serde(flatten)]
    outcome: SoakOutcome,
}

pub(super) fn run(args: &SoakArgs, format: Format) -> Result<Exit, Failure> {
    drop(object::open(&args.path, false, object::Reading::InPlace)?);
    let path = args.path.canonicalize().map_err(|error| Failure::path("read", &args.path, &error))?;
    let SoakArgs { groups, parallel, receivers, seed, readings, .. } = *args;
    let options = SoakOptions { path, groups, parallel, receivers, seed, readings };
    registry::check(&args.spec).map_err(failed)?;
    let progress = Progress::start(&format!("{groups} groups in {}", args.spec));
    let outcome = registry::soak(&args.spec, &options, &program()?);
    progress.finish();
    let (outcome, setup_s) = outcome.map_err(failed)?;
    let text = text_of(groups, &outcome);
    let is_clean = outcome.verified == groups && outcome.left.unwrap_or_default() == Left::default();
    let failures = outcome.failures.clone();
    output::result(format, &Document { lab: args.spec.to_string(), groups, setup_s, outcome }, &text)?;
    failures.iter().for_each(|why| output::say(&format!("error: {why}")));
    Ok(if is_clean { Exit::Done } else { Exit::Failed })
}

fn text_of(groups: u32, outcome: &SoakOutcome) -> String {
    let took = report::seconds(outcome.seconds);
    let mut text = format!("{} of {groups} groups were served in {took}\n", outcome.verified);
    text.push_str("  after    manager   all agents   largest agent   switches   content stores in these\n");
    for memory in &outcome.memory {
        let Memory { groups, manager_bytes, agents_bytes, agent_most_bytes, switches_bytes, stores_bytes } =
            *memory;
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{groups:>7} {:>10} {:>12} {:>15} {:>10} {:>25}",
            format_bytes(manager_bytes),
            format_bytes(agents_bytes),
            format_bytes(agent_most_bytes),
            format_bytes(switches_bytes),
            format_bytes(stores_bytes),
        );
    }
    if let Some(Left { transfers, pending }) = outcome.left {
        let _ = writeln!(text, "nodes know {transfers} transfers and {pending} pending interests in the end");
    }
    text
}
