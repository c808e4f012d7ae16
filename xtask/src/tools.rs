//! Tasks that are short: what a person starts by name, and what a job of the workflow starts.

use crate::ci::cargo;
use crate::{fuzz, packaging, python, spark, workspace};
use std::process::{Command, ExitCode, Stdio};
use toml::Table;

/// A target without a system: nothing of the standard library can be had there.
const BARE_TARGET: &str = "x86_64-unknown-none";
/// The crates that `cargo xtask mutants` takes in turn: those whose decisions no socket or clock is in the
/// way of.
const MUTATED: [&str; 5] = ["types", "wire", "topology", "planning", "protocol"];

/// Fetches and builds what a step needs: `python`, `packaging`, `spark` or `fuzz`.
pub(crate) fn prepare(names: &[String]) -> ExitCode {
    let known = [
        ("python", python::prepare as fn() -> Result<(), String>),
        ("packaging", packaging::prepare),
        ("spark", spark::prepare),
        ("fuzz", fuzz::prepare),
    ];
    for name in names {
        let Some((_, task)) = known.iter().find(|(known, _)| known == name) else {
            let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
            eprintln!("error: there is nothing to prepare for '{name}': choose from {}", names.join(", "));
            return ExitCode::FAILURE;
        };
        if let Err(error) = task() {
            eprintln!("error: {error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// Checks everything with the oldest Rust that the workspace's manifest names.
pub(crate) fn oldest() -> ExitCode {
    let manifest = workspace::load_manifest();
    let Some(version) = rust_version(&manifest) else {
        eprintln!("error: Cargo.toml names no rust-version below [workspace.package]");
        return ExitCode::FAILURE;
    };
    let toolchain = format!("+{version}");
    let quiet = Command::new("cargo")
        .args([&toolchain, "--version"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    if !quiet.is_ok_and(|status| status.success()) {
        eprintln!(
            "error: Rust {version} is not installed: rustup toolchain install {version} --profile minimal"
        );
        return ExitCode::FAILURE;
    }
    let mut cargo = Command::new("cargo");
    cargo.args([&toolchain, "check", "--locked", "--workspace", "--all-targets", "--target-dir"]);
    // Another version's files would be built anew each time beside those of the newest.
    cargo
        .arg(workspace::target().join("oldest"))
        .env_remove("RUSTUP_TOOLCHAIN")
        .current_dir(workspace::root());
    ends(&mut cargo)
}

fn rust_version(manifest: &Table) -> Option<String> {
    manifest.get("workspace")?.get("package")?.get("rust-version")?.as_str().map(String::from)
}

/// Builds the pure crates for a target that has no standard library.
pub(crate) fn no_std() -> ExitCode {
    let folders = Command::new("rustc").args(["--print", "target-libdir", "--target", BARE_TARGET]).output();
    let folder = folders.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_string());
    if !folder.is_ok_and(|folder| std::path::Path::new(&folder).is_dir()) {
        eprintln!("error: the target {BARE_TARGET} is not installed: rustup target add {BARE_TARGET}");
        return ExitCode::FAILURE;
    }
    let mut cargo = Command::new(cargo());
    cargo.args(["build", "--locked", "--target", BARE_TARGET]).current_dir(workspace::root());
    for folder in crate::purity::PURE {
        cargo.args(["--package", &format!("polycast-{folder}")]);
    }
    ends(&mut cargo)
}

/// Looks for changes of one crate that no test finds. A week's number chooses the crate, and a name on the
/// command line does.
pub(crate) fn mutants(arguments: &[String]) -> ExitCode {
    let chosen = match arguments {
        [] => week().map(|week| MUTATED[week % MUTATED.len()].to_string()),
        [name] if MUTATED.contains(&name.as_str()) => Ok(name.clone()),
        _ => Err(format!("mutants takes one crate: choose from {}", MUTATED.join(", "))),
    };
    let chosen = match chosen {
        Ok(chosen) => chosen,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::FAILURE;
        }
    };
    println!("mutants of {chosen}");
    let mut command = Command::new(cargo());
    let package = format!("polycast-{chosen}");
    command.args(["mutants", "--package", &package, "--no-shuffle"]);
    // Some crates have the most of their tests in a package beside.
    let beside = format!("{package}-tests");
    let tests = [package, beside];
    let known = workspace::packages();
    let is_known =
        |name: &&String| known.iter().any(|(_, manifest)| manifest["package"]["name"].as_str() == Some(name));
    command.args(tests.iter().filter(is_known).flat_map(|name| ["--test-package", name]));
    command.arg("--output").arg(workspace::target().join("mutants")).current_dir(workspace::root());
    ends(&mut command)
}

/// The number of this week since 1970.
fn week() -> Result<usize, String> {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let seconds =
        since.map_err(|error| format!("the clock of this machine is before 1970: {error}"))?.as_secs();
    usize::try_from(seconds / (7 * 24 * 3_600)).map_err(|error| error.to_string())
}

/// Runs seeds of the swarm, optimised: the arguments are those of its program, which uses all cores.
pub(crate) fn swarm(arguments: &[String]) -> ExitCode {
    let mut command = Command::new(cargo());
    command.args([
        "run",
        "--locked",
        "--release",
        "--quiet",
        "--package",
        "polycast-swarm",
        "--bin",
        "swarm",
        "--",
    ]);
    ends(command.args(arguments).current_dir(workspace::root()))
}

/// Kills leaders among managers with a real etcd, and stops them for a while, so many times.
pub(crate) fn leaders(arguments: &[String]) -> ExitCode {
    let rounds = match arguments {
        [] => 100,
        [rounds] => match rounds.parse::<u32>() {
            Ok(rounds) => rounds,
            Err(_) => {
                println!("'{rounds}' is no number of rounds: write for example cargo xtask leaders 100");
                return ExitCode::FAILURE;
            }
        },
        _ => {
            println!("leaders takes one argument, the number of rounds");
            return ExitCode::FAILURE;
        }
    };
    let mut command = Command::new(cargo());
    command.args(["test", "--locked", "--package", "polycast", "--test", "failover", "--", "--nocapture"]);
    ends(command.env("POLYCAST_RUNS", rounds.to_string()).current_dir(workspace::root()))
}

/// Four agents ask for five times what their stores have room for: for so many seconds, with stores of so
/// many MiB.
pub(crate) fn eviction(arguments: &[String]) -> ExitCode {
    let numbers: Result<Vec<u64>, _> = arguments.iter().map(|argument| argument.parse::<u64>()).collect();
    let (seconds, store) = match numbers.as_deref() {
        Ok([]) => (300, 1_024),
        Ok([seconds]) => (*seconds, 1_024),
        Ok([seconds, store]) if (1..1 << 20).contains(store) => (*seconds, *store),
        _ => {
            println!(
                "eviction takes seconds and MiB of a store: write for example cargo xtask eviction 300 1024"
            );
            return ExitCode::FAILURE;
        }
    };
    let mut command = Command::new(cargo());
    command.args([
        "test",
        "--locked",
        "--package",
        "polycast-agent",
        "--test",
        "daemon",
        "--",
        "--nocapture",
        "eviction",
    ]);
    command.env("POLYCAST_EVICTION_SECONDS", seconds.to_string()).current_dir(workspace::root());
    ends(command.env("POLYCAST_EVICTION_STORE", (store << 20).to_string()))
}

fn ends(command: &mut Command) -> ExitCode {
    match command.status() {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            println!("{} cannot be run: {error}", command.get_program().to_string_lossy());
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_rust_is_named_once() {
        let version = rust_version(&workspace::load_manifest()).unwrap();
        assert!(version.split('.').all(|part| part.parse::<u32>().is_ok()), "{version}");
    }

    #[test]
    fn each_crate_that_is_mutated_is_there() {
        let root = workspace::root().join("crates");
        MUTATED.iter().for_each(|folder| assert!(root.join(folder).is_dir(), "{folder}"));
    }
}
