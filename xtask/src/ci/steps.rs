//! The steps of `cargo xtask ci`, in the order in which the lane that builds takes them.

use crate::{limit, workspace};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// A check.
pub(crate) struct Step {
    pub(crate) name: &'static str,
    /// The arguments of cargo, or of this program for a step that waits.
    pub(crate) arguments: &'static [&'static str],
    environment: &'static [(&'static str, &'static str)],
    /// Minutes until it is given up: several times the time that it takes on two cores from nothing.
    pub(crate) minutes_max: u64,
    pub(crate) kind: Kind,
    /// Set if it runs where no step is named; others are jobs of the workflow.
    pub(crate) is_usual: bool,
}

/// Work that a step does most of the time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// It builds, and takes all cores.
    Builds,
    /// The tests: their programs run as they are built.
    Tests,
    /// It waits. These tasks of this program are done for it before: `fetch` at once, and `build` in the lane
    /// that builds. What fetches runs with the program that the tests build, and uses the machine's network.
    Waits { fetch: Option<&'static str>, build: Option<&'static str> },
}

const fn builds(name: &'static str, arguments: &'static [&'static str], minutes_max: u64) -> Step {
    Step { name, arguments, environment: &[], minutes_max, kind: Kind::Builds, is_usual: true }
}

/// The task that fetches and builds what a step needs.
pub(crate) const PREPARE: &str = "prepare";
const PREPARES: Option<&str> = Some(PREPARE);

/// The step that makes documentation out of what clippy has checked.
const DOC: &str = "doc";

const CLUSTER: &[&str] = &[
    "clippy",
    "--locked",
    "--package",
    "polycast",
    "--no-default-features",
    "--features",
    "cluster",
    "--",
    "-D",
    "warnings",
];

const OTEL: &[&str] = &[
    "test",
    "--locked",
    "--package",
    "polycast",
    "--no-default-features",
    "--features",
    "cluster,otel",
    "--bin",
    "polycast",
    "--test",
    "otel",
];

pub(crate) const STEPS: &[Step] = &[
    builds("fmt", &["fmt", "--all", "--", "--check"], 5),
    Step { kind: Kind::Tests, ..builds("test", &[], 60) },
    builds("clippy", &["clippy", "--locked", "--workspace", "--all-targets", "--", "-D", "warnings"], 30),
    Step {
        environment: &[("RUSTDOCFLAGS", "-D warnings")],
        ..builds(DOC, &["doc", "--locked", "--workspace", "--no-deps"], 20)
    },
    // What a newcomer builds first, and what runs on a cluster.
    builds(
        "small",
        &["clippy", "--locked", "--package", "polycast", "--no-default-features", "--", "-D", "warnings"],
        30,
    ),
    builds("cluster", CLUSTER, 30),
    builds("examples", &["test", "--locked", "--workspace", "--doc"], 20),
    // The Python package, with the program that the tests have built.
    Step { kind: Kind::Waits { fetch: PREPARES, build: None }, ..builds("python", &["python"], 30) },
    // Rules, chart and role for operators, with the programs that read them.
    Step { kind: Kind::Waits { fetch: PREPARES, build: None }, ..builds("packaging", &["packaging"], 20) },
    // The jar for Spark, with short jobs of one version of it; most of the first run is to download that.
    Step {
        kind: Kind::Waits { fetch: PREPARES, build: None },
        ..builds("spark", &["spark", crate::spark::SHORT], 30)
    },
    // With a build of its own. The tests run every target on its corpus and on damaged copies; this finds
    // what coverage leads to, with the same seed each time.
    Step {
        kind: Kind::Waits { fetch: None, build: PREPARES },
        is_usual: false,
        ..builds("fuzz", &["fuzz", "--seconds", "2", "--seed", "1", "--jobs", "2"], 40)
    },
    // Traces are in no usual build, and bring crates of their own.
    Step { is_usual: false, ..builds("otel", OTEL, 30) },
    // These need a toolchain, a target or a program that most machines lack.
    Step {
        is_usual: false,
        ..builds("oldest", &["run", "--locked", "--package", "xtask", "--", "oldest"], 60)
    },
    Step {
        is_usual: false,
        ..builds("no-std", &["run", "--locked", "--package", "xtask", "--", "no-std"], 20)
    },
    Step { is_usual: false, ..builds("deny", &["deny", "--locked", "--workspace", "check"], 20) },
    Step { kind: Kind::Waits { fetch: None, build: None }, is_usual: false, ..builds("site", &["site"], 5) },
];

impl Step {
    /// Returns the command that runs it.
    pub(crate) fn command(&self) -> Command {
        let mut command = match self.kind {
            Kind::Waits { .. } => self.task(self.arguments),
            Kind::Builds | Kind::Tests => {
                let mut command = Command::new(cargo());
                command.args(self.arguments);
                command
            }
        };
        command.envs(self.environment.iter().copied()).current_dir(workspace::root());
        if self.name == DOC {
            command.envs(clippy_compiler());
        }
        command
    }

    /// This program with other arguments, for this step.
    pub(crate) fn task(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap_or_default());
        command.args(arguments).current_dir(workspace::root());
        command
    }

    pub(crate) fn limit(&self) -> Duration {
        Duration::from_secs(self.minutes_max * 60).mul_f64(limit::patience())
    }
}

/// Returns the environment that `cargo clippy -- -D warnings` gives to cargo. To a cargo that is given the
/// same, crates that clippy has checked are checked; otherwise it would check every crate again before it
/// makes documentation of it.
fn clippy_compiler() -> Vec<(&'static str, OsString)> {
    let sysroot = Command::new("rustc").current_dir(workspace::root()).args(["--print", "sysroot"]).output();
    let sysroot = sysroot.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_string());
    let driver = sysroot.map(|sysroot| PathBuf::from(sysroot).join("bin/clippy-driver")).ok();
    let Some(driver) = driver.filter(|driver| driver.exists()) else { return Vec::new() };
    let arguments = "-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__";
    vec![("RUSTC_WORKSPACE_WRAPPER", driver.into()), ("CLIPPY_ARGS", arguments.into())]
}

/// The cargo that started this program.
pub(crate) fn cargo() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the words of each command that follows `before` on the lines of the workflows.
    fn commands(before: &str) -> Vec<Vec<String>> {
        let folder = workspace::root().join(".github/workflows");
        let files = ["ci.yml", "weekly.yml"].map(|file| std::fs::read_to_string(folder.join(file)).unwrap());
        let lines = files.iter().flat_map(|text| text.lines()).filter(|line| line.contains("- run: "));
        let lines = lines.filter_map(|line| line.split_once(before));
        lines.map(|(_, rest)| rest.split_whitespace().map(String::from).collect()).collect()
    }

    /// The jobs together run every step; a step that is named is there.
    #[test]
    fn the_workflow_runs_every_step() {
        let named: Vec<String> = commands(".ci/run").concat();
        for step in STEPS {
            assert!(named.iter().any(|name| name == step.name), "no job runs {}", step.name);
        }
        let is_known =
            |name: &&String| name.starts_with("--") || STEPS.iter().any(|step| step.name == name.as_str());
        assert!(named.iter().all(|name| is_known(&name)), "{named:?}");
        for command in commands("cargo xtask") {
            assert!(
                crate::USAGE.contains(&format!("\n  {} ", command[0])),
                "there is no task {}",
                command[0]
            );
        }
    }

    /// Nothing is built from other versions than those written down.
    #[test]
    fn builds_are_locked() {
        for step in STEPS.iter().filter(|step| step.kind == Kind::Builds && step.name != "fmt") {
            assert!(step.arguments.contains(&"--locked"), "{}", step.name);
        }
    }
}
