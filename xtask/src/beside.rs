//! What `cargo xtask ci` does beside its steps, at the lowest priority.
//!
//! Most tests wait, for timers or for other processes, and what is fetched waits for a network. So what later steps need is
//! fetched and built meanwhile, and steps that no other needs run. They get what processor time is left, and one core of it.

use crate::ci::{self, Step};
use crate::{fuzz, limit, python, spark, workspace};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// The task that fetches and builds.
pub(crate) const TASK: &str = "prepare";
/// How much longer a step may take here: it gets little of the processors, and waits for builds that have the folder.
const SLOWER: u32 = 5;
/// How long everything may be prepared.
const PREPARE_LIMIT: Duration = Duration::from_secs(60 * 60);

/// How a step ended.
pub(crate) struct Ran {
    pub(crate) name: &'static str,
    /// Its command.
    pub(crate) line: String,
    /// What it printed.
    pub(crate) said: String,
    pub(crate) passed: bool,
    pub(crate) took: Duration,
}

/// Prepares later steps, and runs these. What could not be prepared is left to the step that needs it, which says so.
pub(crate) fn run(steps: &[&'static Step]) -> Vec<Ran> {
    let this = std::env::current_exe().unwrap_or_default();
    let prepared = quietly(TASK, last(this).arg(TASK), PREPARE_LIMIT);
    if !prepared.passed {
        println!("==> not all could be prepared:\n{}", prepared.said);
    }
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let run = |step: &&'static Step| {
        let mut command = last(&cargo);
        command.args(step.arguments).envs(step.environment.iter().copied());
        let limit = Duration::from_secs(step.minutes_max * 60) * SLOWER;
        Ran { line: format!("cargo {}", step.arguments.join(" ")), ..quietly(step.name, &mut command, limit) }
    };
    steps.iter().map(run).collect()
}

/// A command of the lowest priority, whose builds take one core.
fn last(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("nice");
    command.args(["-n", "19"]).arg(program).env("CARGO_BUILD_JOBS", "1").current_dir(workspace::root());
    command
}

/// Runs a command, and keeps what it prints.
fn quietly(name: &'static str, command: &mut Command, limit: Duration) -> Ran {
    let begun = Instant::now();
    let limit = limit.mul_f64(limit::patience());
    let file = tempfile::NamedTempFile::new().expect("the folder of temporary files can be written");
    let output =
        || File::options().append(true).open(file.path()).map_or_else(|_| Stdio::null(), Stdio::from);
    let ended = limit::run(command.stdin(Stdio::null()).stdout(output()).stderr(output()), limit);
    let (passed, why) = ci::ended_well(ended, name, limit);
    let printed = fs::read(file.path()).unwrap_or_default();
    let said = String::from_utf8_lossy(&printed).into_owned() + &why;
    Ran { name, line: String::new(), said, passed, took: begun.elapsed() }
}

/// Fetches and builds what the steps python, spark and fuzz need.
pub(crate) fn prepare() -> ExitCode {
    let tasks = [python::prepare, spark::prepare, fuzz::prepare];
    // Each is tried.
    let failed: Vec<String> = tasks.iter().filter_map(|task| task().err()).collect();
    failed.iter().for_each(|error| eprintln!("error: {error}"));
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_runs_beside_says_what_came_of_it() {
        let limit = Duration::from_secs(60);
        let ran = quietly("a", last("sh").args(["-c", "echo one; nice; echo two >&2; exit 3"]), limit);
        assert_eq!((ran.said.as_str(), ran.passed), ("one\n19\ntwo\n", false));
        assert!(quietly("b", last("sh").args(["-c", "true"]), limit).passed);
        let ran = quietly("c", last("sh").args(["-c", "echo begun; sleep 1000"]), Duration::from_millis(500));
        assert!(!ran.passed && ran.said.starts_with("begun\nstep c was still running after"), "{}", ran.said);
        assert!(ran.said.contains("sleep 1000"), "{}", ran.said);
    }
}
