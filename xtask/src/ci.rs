//! What has to pass before a change lands.

use crate::workspace;
use std::process::{Command, ExitCode};
use std::time::Instant;

/// A check: its name, cargo's arguments, and variables of its environment.
struct Step {
    name: &'static str,
    arguments: &'static [&'static str],
    environment: &'static [(&'static str, &'static str)],
}

const STEPS: &[Step] = &[
    Step { name: "fmt", arguments: &["fmt", "--all", "--", "--check"], environment: &[] },
    Step {
        name: "fmt",
        arguments: &["fmt", "--manifest-path", "fuzz/Cargo.toml", "--", "--check"],
        environment: &[],
    },
    Step {
        name: "clippy",
        arguments: &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"],
        environment: &[],
    },
    Step {
        name: "doc",
        arguments: &["doc", "--workspace", "--no-deps"],
        environment: &[("RUSTDOCFLAGS", "-D warnings")],
    },
    Step { name: "test", arguments: &["test", "--workspace"], environment: &[] },
    // The fuzz targets' bodies, on seeds and noise: so that they still build and hold.
    Step {
        name: "fuzz",
        arguments: &[
            "test",
            "--manifest-path",
            "fuzz/Cargo.toml",
            "--no-default-features",
            "--target-dir",
            "target/fuzz",
        ],
        environment: &[],
    },
];

/// Runs the steps named, or all of them; each runs even if one before it failed.
pub fn run(names: &[String]) -> ExitCode {
    if let Some(unknown) = names.iter().find(|name| STEPS.iter().all(|step| step.name != name.as_str())) {
        let mut known: Vec<_> = STEPS.iter().map(|step| step.name).collect();
        known.dedup();
        eprintln!("there is no step '{unknown}': choose from {}", known.join(", "));
        return ExitCode::FAILURE;
    }
    let mut failed = Vec::new();
    for step in STEPS.iter().filter(|step| names.is_empty() || names.iter().any(|name| name == step.name)) {
        println!("==> {}: cargo {}", step.name, step.arguments.join(" "));
        let start = Instant::now();
        let passed = run_step(step);
        let outcome = if passed { "ok" } else { "FAILED" };
        println!("==> {}: {outcome} after {:.0} s", step.name, start.elapsed().as_secs_f64());
        if !passed && !failed.contains(&step.name) {
            failed.push(step.name);
        }
    }
    if failed.is_empty() {
        println!("==> everything is fine");
        ExitCode::SUCCESS
    } else {
        println!("==> failed: {}", failed.join(", "));
        ExitCode::FAILURE
    }
}

fn run_step(step: &Step) -> bool {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(step.arguments).envs(step.environment.iter().copied()).current_dir(workspace::root());
    match command.status() {
        Ok(status) => status.success(),
        Err(error) => {
            println!("cargo cannot be run: {error}");
            false
        }
    }
}

/// Runs seeds of the swarm, optimised: the arguments are those of its program.
pub fn swarm(arguments: &[String]) -> ExitCode {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args([
        "run",
        "--release",
        "--quiet",
        "--package",
        "polycast-experiments",
        "--bin",
        "swarm",
        "--",
    ]);
    match command.args(arguments).current_dir(workspace::root()).status() {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            println!("cargo cannot be run: {error}");
            ExitCode::FAILURE
        }
    }
}
