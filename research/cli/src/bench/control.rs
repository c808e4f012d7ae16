//! Time until devices have a path, step by step (Blast section V-B, Table II).

use super::streams::{Spread, measure};
use crate::args::bench::BenchControlArgs;
use polycast::exit::{Exit, Failure};
use polycast::output::{self, Format};
use polycast::table::Table;
use polycast_api::report::ControlStep;
use polycast_api::{REQUEST_TO_PATH, REQUEST_TO_PATH_AT_SOURCE, SCHEDULING};
use polycast_lab::measure::{Measured, Measurement, PathMade};
use polycast_lab::spec::{Network, Spec};
use serde_json::{Value, json};

/// A step of Table II: its name, how long it took in a report, and in the paper, in milliseconds.
struct Step {
    name: &'static str,
    of: fn(&[ControlStep]) -> Option<u64>,
    paper_ms: Option<f64>,
}

fn named(steps: &[ControlStep], is: impl Fn(&str) -> bool) -> Option<u64> {
    steps.iter().filter(|step| is(&step.step)).map(|step| step.micros).max()
}

const STEPS: [Step; 6] = [
    Step { name: "messages", of: |steps| named(steps, |step| step == "messages"), paper_ms: Some(1.747) },
    Step { name: "scheduling", of: |steps| named(steps, |step| step == SCHEDULING), paper_ms: Some(8.553) },
    Step {
        name: "rules, the last rack",
        of: |steps| named(steps, |step| step.starts_with("rules of rack ")),
        paper_ms: Some(8.711),
    },
    Step {
        name: "circuits",
        of: |steps| named(steps, |step| step.ends_with(" circuits")),
        paper_ms: Some(14.172),
    },
    Step { name: REQUEST_TO_PATH, of: |steps| named(steps, |step| step == REQUEST_TO_PATH), paper_ms: None },
    Step {
        name: REQUEST_TO_PATH_AT_SOURCE,
        of: |steps| named(steps, |step| step == REQUEST_TO_PATH_AT_SOURCE),
        paper_ms: Some(33.183),
    },
];

/// `polycast bench control`
pub(super) fn run(args: &BenchControlArgs, format: Format) -> Result<Exit, Failure> {
    let (spec, requests) = (&args.spec, args.requests);
    let fabric = fabric(spec)?;
    output::say(&format!("asking for {requests} paths in {spec}"));
    let made = paths(spec, requests)?;
    let (rows, text) = rows(&made, fabric);
    let others = made.iter().filter(|path| path.fabric != fabric).count();
    let document =
        json!({ "lab": spec.to_string(), "requests": requests, "other_fabric": others, "steps": rows });
    let mut text = format!("{spec}: {requests} requests, times in ms\n{text}");
    if others > 0 {
        text += &format!("{others} went over another fabric than {fabric}, and are left out\n");
    }
    output::result(format, &document, &text)?;
    Ok(Exit::Done)
}

/// The fabric of a lab whose devices are told of paths.
fn fabric(spec: &Spec) -> Result<&'static str, Failure> {
    match spec.network {
        Network::Blast { .. } => Ok("ocs"),
        Network::Shufflecast { .. } => Ok("shufflecast"),
        _ => Err(Failure::input(
            "only labs such as blast:racks=3,hosts=2 and shufflecast:2,2,hosts=2 have switches that are told of paths",
        )),
    }
}

fn paths(spec: &Spec, requests: u32) -> Result<Vec<PathMade>, Failure> {
    match measure(spec, &Measurement::Paths { requests })? {
        Measured::Paths(made) => Ok(made),
        _ => Err(Failure::unexpected("the lab has measured something else")),
    }
}

/// Measures the steps of Table II in a lab, in milliseconds, a value per request: messages, scheduling,
/// rules, circuits, and the whole.
pub(crate) fn table_2(spec: &Spec, requests: u32) -> Result<[Vec<f64>; 5], Failure> {
    let (fabric, made) = (fabric(spec)?, paths(spec, requests)?);
    let of_table = STEPS.iter().filter(|step| step.paper_ms.is_some());
    let mut steps: [Vec<f64>; 5] = Default::default();
    for (times, Step { of, .. }) in steps.iter_mut().zip(of_table) {
        let micros = made.iter().filter(|path| path.fabric == fabric).filter_map(|path| of(&path.steps));
        times.extend(micros.map(|micros| micros as f64 / 1e3));
    }
    Ok(steps)
}

/// Measures the time from a grant until a rack's switch has its rules, in milliseconds, a value a rack and
/// request.
pub(crate) fn rule_times(spec: &Spec, requests: u32) -> Result<Vec<f64>, Failure> {
    let (fabric, made) = (fabric(spec)?, paths(spec, requests)?);
    let steps = made.iter().filter(|path| path.fabric == fabric).flat_map(|path| &path.steps);
    let of_racks = steps.filter(|step| step.step.starts_with("rules of rack "));
    Ok(of_racks.map(|step| step.micros as f64 / 1e3).collect())
}

/// Returns the measurements of every step, beside the paper's.
fn rows(made: &[PathMade], fabric: &str) -> (Vec<Value>, String) {
    let paths: Vec<&PathMade> = made.iter().filter(|path| path.fabric == fabric).collect();
    let mut table = Table::new(&["step", ">Table II", ">min", ">median", ">p99", ">max"]);
    let mut rows = Vec::new();
    for Step { name, of, paper_ms } in &STEPS {
        let micros = paths.iter().filter_map(|path| of(&path.steps));
        let Some(ms) = Spread::of(micros.map(|micros| micros as f64 / 1e3)) else { continue };
        let paper = paper_ms.map_or_else(String::new, |ms| format!("{ms:.3}"));
        let cells = [ms.min, ms.median, ms.p99, ms.max].map(|value| format!("{value:.3}"));
        table.row([vec![(*name).to_string(), paper], cells.to_vec()].concat());
        rows.push(json!({ "step": name, "paper_ms": paper_ms, "ms": ms }));
    }
    (rows, table.text())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_those_of_the_fabric_and_the_slowest_rack_counts() {
        let step = |step: &str, micros| ControlStep { step: step.into(), micros };
        let path = |fabric: &str, rules| PathMade {
            fabric: fabric.into(),
            steps: vec![step(SCHEDULING, 100), step("rules of rack 0", 900), step("rules of rack 1", rules)],
        };
        let made = [path("ocs", 2_000), path("tcp-chain", 90_000), path("ocs", 500)];
        let (rows, text) = rows(&made, "ocs");
        assert_eq!(rows.len(), 2, "nothing is said of steps that there were not");
        assert_eq!((&rows[1]["paper_ms"], &rows[1]["ms"]["max"]), (&json!(8.711), &json!(2.0)));
        assert_eq!(rows[1]["ms"]["min"], 0.9);
        assert!(text.contains("rules, the last rack"), "{text}");
    }
}
