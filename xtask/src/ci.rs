//! What has to pass before a change lands.

use crate::limit::{self, Ended};
use crate::tests_run::{self, Records};
use crate::workspace;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

/// How many of the slowest steps and test programs are named at the end.
const SLOWEST: usize = 5;

/// A check: its name, cargo's arguments, variables of its environment, and when it is given up.
struct Step {
    name: &'static str,
    arguments: &'static [&'static str],
    environment: &'static [(&'static str, &'static str)],
    minutes_max: u64,
}

/// Limits are several times what the steps take on two cores from nothing.
const STEPS: &[Step] = &[
    Step { name: "fmt", arguments: &["fmt", "--all", "--", "--check"], environment: &[], minutes_max: 5 },
    Step {
        name: "clippy",
        arguments: &["clippy", "--locked", "--workspace", "--all-targets", "--", "-D", "warnings"],
        environment: &[],
        minutes_max: 20,
    },
    // What is built without planners, simulator and lab.
    Step {
        name: "small",
        arguments: &[
            "clippy",
            "--locked",
            "--package",
            "polycast",
            "--no-default-features",
            "--",
            "-D",
            "warnings",
        ],
        environment: &[],
        minutes_max: 20,
    },
    Step {
        name: "doc",
        arguments: &["doc", "--locked", "--workspace", "--no-deps"],
        environment: &[("RUSTDOCFLAGS", "-D warnings")],
        minutes_max: 10,
    },
    Step {
        name: "test",
        arguments: &["test", "--locked", "--workspace", "--no-fail-fast"],
        environment: &[],
        minutes_max: 50,
    },
    // The Python package, with the program that the tests have built.
    Step {
        name: "python",
        arguments: &["run", "--locked", "--package", "xtask", "--", "python"],
        environment: &[(crate::python::BUILT, "1")],
        minutes_max: 20,
    },
    // The jar for Spark, with jobs of one version of it; most of the first run is to download that.
    Step {
        name: "spark",
        arguments: &["run", "--locked", "--package", "xtask", "--", "spark"],
        environment: &[(crate::python::BUILT, "1")],
        minutes_max: 15,
    },
    // With a build of its own, which is most of it. The same seed each time: what a change did not bring is looked for by longer runs.
    Step {
        name: "fuzz",
        arguments: &[
            "run",
            "--locked",
            "--package",
            "xtask",
            "--",
            "fuzz",
            "--seconds",
            "3",
            "--seed",
            "1",
            "--jobs",
            "2",
        ],
        environment: &[],
        minutes_max: 40,
    },
];

/// Runs the steps named, or all of them; each runs even if one before it failed.
pub(crate) fn run(names: &[String]) -> ExitCode {
    if let Some(unknown) = names.iter().find(|name| STEPS.iter().all(|step| step.name != name.as_str())) {
        let known: Vec<_> = STEPS.iter().map(|step| step.name).collect();
        eprintln!("there is no step '{unknown}': choose from {}", known.join(", "));
        return ExitCode::FAILURE;
    }
    let begun = Instant::now();
    let records = Records::new();
    let (mut failed, mut times) = (Vec::new(), Vec::new());
    let mut all_required = false;
    for step in STEPS.iter().filter(|step| names.is_empty() || names.iter().any(|name| name == step.name)) {
        println!("==> {}: cargo {}", step.name, step.arguments.join(" "));
        let mut cargo = cargo();
        if step.name == "test" {
            all_required = records.ask(&mut cargo);
        }
        cargo.args(step.arguments).envs(step.environment.iter().copied());
        let start = Instant::now();
        let passed = run_step(step, &mut cargo);
        let seconds = start.elapsed().as_secs_f64();
        let outcome = if passed { "ok" } else { "FAILED" };
        println!("==> {}: {outcome} after {seconds:.0} s", step.name);
        times.push((seconds, format!("step {}", step.name)));
        if !passed {
            failed.push(step.name);
        }
    }
    times.extend(records.times());
    println!("==> slowest: {}", slowest(times));
    if !report_skips(&records.skips(), all_required) && !failed.contains(&"test") {
        failed.push("test");
    }
    let seconds = begun.elapsed().as_secs_f64();
    if failed.is_empty() {
        println!("==> everything is fine after {seconds:.0} s");
        ExitCode::SUCCESS
    } else {
        println!("==> failed: {} after {seconds:.0} s", failed.join(", "));
        ExitCode::FAILURE
    }
}

fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(workspace::root());
    command
}

fn run_step(step: &Step, cargo: &mut Command) -> bool {
    let limit = Duration::from_secs(step.minutes_max * 60).mul_f64(limit::patience());
    match limit::run(cargo, limit) {
        Ok(ended) => {
            if let Ended::Killed(running) = &ended {
                println!("step {} was still running after {:.0} s", step.name, limit.as_secs_f64());
                running.iter().for_each(|line| println!("    killed {line}"));
            }
            ended.is_success()
        }
        Err(error) => {
            println!("cargo cannot be run: {error}");
            false
        }
    }
}

/// The slowest steps and programs, in one line.
fn slowest(mut times: Vec<(f64, String)>) -> String {
    times.sort_by(|one, other| other.0.total_cmp(&one.0));
    let most = times.iter().take(SLOWEST).map(|(seconds, name)| format!("{name} {seconds:.0} s"));
    most.collect::<Vec<_>>().join(", ")
}

/// Says what was skipped; gives whether that may be.
fn report_skips(skips: &str, all_required: bool) -> bool {
    if skips.is_empty() {
        return true;
    }
    for line in tests_run::describe_skips(skips) {
        println!("==> {line}");
    }
    if all_required {
        println!(
            "==> as root every test has to run: .ci/run installs what is missing; POLYCAST_REQUIRE=none lets them be"
        );
    }
    !all_required
}

/// Runs seeds of the swarm, optimised: the arguments are those of its program, which uses all cores.
pub(crate) fn swarm(arguments: &[String]) -> ExitCode {
    let mut cargo = cargo();
    cargo.args([
        "run",
        "--locked",
        "--release",
        "--quiet",
        "--package",
        "polycast-experiments",
        "--bin",
        "swarm",
        "--",
    ]);
    ends(cargo.args(arguments))
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
    let mut cargo = cargo();
    cargo.args(["test", "--locked", "--package", "polycast", "--test", "failover", "--", "--nocapture"]);
    ends(cargo.env("POLYCAST_RUNS", rounds.to_string()))
}

/// Four agents ask for five times what their stores have room for: for so many seconds, with stores of so many MiB.
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
    let mut cargo = cargo();
    cargo.args([
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
    cargo.env("POLYCAST_EVICTION_SECONDS", seconds.to_string());
    ends(cargo.env("POLYCAST_EVICTION_STORE", (store << 20).to_string()))
}

fn ends(cargo: &mut Command) -> ExitCode {
    match cargo.status() {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            println!("cargo cannot be run: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_are_named_first() {
        let times = (0..9).map(|n| (f64::from(n % 7), format!("t{n}"))).collect();
        assert_eq!(slowest(times), "t6 6 s, t5 5 s, t4 4 s, t3 3 s, t2 2 s");
    }

    #[test]
    fn skips_fail_only_where_all_is_required() {
        assert!(report_skips("", true));
        assert!(report_skips("lab: a\tneeds root\n", false));
        assert!(!report_skips("lab: a\tneeds root\n", true));
    }

    #[test]
    fn steps_that_hang_are_ended() {
        let step = Step { name: "sleep", arguments: &[], environment: &[], minutes_max: 0 };
        assert!(!run_step(&step, Command::new("sleep").arg("1000")));
    }

    /// Nothing is built from other versions than those written down.
    #[test]
    fn builds_are_locked() {
        for step in STEPS.iter().filter(|step| step.name != "fmt") {
            assert!(step.arguments.contains(&"--locked"), "{}", step.name);
        }
    }
}
