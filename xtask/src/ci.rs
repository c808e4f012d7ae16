//! What has to pass before a change lands.

use crate::beside;
use crate::limit::{self, Ended};
use crate::tests_run::{self, Records};
use crate::workspace;
use std::io;
use std::process::{Command, ExitCode};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How many of the slowest steps and test programs are named at the end.
const SLOWEST: usize = 5;

/// A check: its name, cargo's arguments, variables of its environment, when it is given up, and when it runs.
pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) arguments: &'static [&'static str],
    pub(crate) environment: &'static [(&'static str, &'static str)],
    pub(crate) minutes_max: u64,
    order: Order,
}

/// When a step runs, where all do.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    /// One after the other.
    InTurn,
    /// Beside those: no other step needs it.
    Beside,
    /// When what runs beside has ended, which has prepared this one.
    Prepared,
}

/// Limits are several times what the steps take on two cores from nothing.
const STEPS: &[Step] = &[
    Step {
        name: "fmt",
        arguments: &["fmt", "--all", "--", "--check"],
        environment: &[],
        minutes_max: 5,
        order: Order::InTurn,
    },
    Step {
        name: "clippy",
        arguments: &["clippy", "--locked", "--workspace", "--all-targets", "--", "-D", "warnings"],
        environment: &[],
        minutes_max: 20,
        order: Order::InTurn,
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
        order: Order::Beside,
    },
    Step {
        name: "doc",
        arguments: &["doc", "--locked", "--workspace", "--no-deps"],
        environment: &[("RUSTDOCFLAGS", "-D warnings")],
        minutes_max: 10,
        order: Order::Beside,
    },
    Step {
        name: "test",
        arguments: &["test", "--locked", "--workspace", "--no-fail-fast"],
        environment: &[],
        minutes_max: 50,
        order: Order::InTurn,
    },
    // The Python package, with the program that the tests have built.
    Step {
        name: "python",
        arguments: &["run", "--locked", "--package", "xtask", "--", "python"],
        environment: &[(crate::python::BUILT, "1")],
        minutes_max: 20,
        order: Order::Prepared,
    },
    // The jar for Spark, with jobs of one version of it; most of the first run is to download that.
    Step {
        name: "spark",
        arguments: &["run", "--locked", "--package", "xtask", "--", "spark"],
        environment: &[(crate::python::BUILT, "1")],
        minutes_max: 15,
        order: Order::Prepared,
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
        order: Order::Prepared,
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
    let mut outcome = Outcome::default();
    // Those that are named run as they would alone.
    let in_turn = |step: &&Step| {
        names.is_empty() && step.order != Order::Beside || names.iter().any(|name| name == step.name)
    };
    let mut beside = names.is_empty().then(|| thread::spawn(|| beside::run(&steps_beside())));
    for step in STEPS.iter().filter(in_turn) {
        if step.order == Order::Prepared {
            outcome.take_beside(beside.take());
        }
        println!("==> {}: cargo {}", step.name, step.arguments.join(" "));
        let mut cargo = cargo();
        if step.name == "test" {
            outcome.all_required = records.ask(&mut cargo);
        }
        cargo.args(step.arguments).envs(step.environment.iter().copied());
        let start = Instant::now();
        let passed = run_step(step, &mut cargo);
        outcome.note(step.name, passed, start.elapsed());
    }
    outcome.take_beside(beside);
    outcome.end(&records, begun.elapsed())
}

fn steps_beside() -> Vec<&'static Step> {
    STEPS.iter().filter(|step| step.order == Order::Beside).collect()
}

/// What came of the steps.
#[derive(Default)]
struct Outcome {
    failed: Vec<&'static str>,
    times: Vec<(f64, String)>,
    all_required: bool,
}

impl Outcome {
    fn note(&mut self, name: &'static str, passed: bool, took: Duration) {
        let seconds = took.as_secs_f64();
        println!("==> {name}: {} after {seconds:.0} s", if passed { "ok" } else { "FAILED" });
        self.times.push((seconds, format!("step {name}")));
        if !passed {
            self.failed.push(name);
        }
    }

    /// Waits for what runs beside, and says what came of it.
    fn take_beside(&mut self, running: Option<JoinHandle<Vec<beside::Ran>>>) {
        for ran in
            running.into_iter().flat_map(|running| running.join().expect("what runs beside does not panic"))
        {
            println!("==> {}, beside the others: {}", ran.name, ran.line);
            print!("{}", ran.said);
            self.note(ran.name, ran.passed, ran.took);
        }
    }

    fn end(mut self, records: &Records, took: Duration) -> ExitCode {
        self.times.extend(records.times());
        println!("==> slowest: {}", slowest(self.times));
        if !report_skips(&records.skips(), self.all_required) && !self.failed.contains(&"test") {
            self.failed.push("test");
        }
        let seconds = took.as_secs_f64();
        if self.failed.is_empty() {
            println!("==> everything is fine after {seconds:.0} s");
            ExitCode::SUCCESS
        } else {
            println!("==> failed: {} after {seconds:.0} s", self.failed.join(", "));
            ExitCode::FAILURE
        }
    }
}

fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(workspace::root());
    command
}

fn run_step(step: &Step, cargo: &mut Command) -> bool {
    let limit = Duration::from_secs(step.minutes_max * 60).mul_f64(limit::patience());
    let (passed, why) = ended_well(limit::run(cargo, limit), step.name, limit);
    print!("{why}");
    passed
}

/// Whether a step ended as it should, and lines that say why not where the step itself cannot.
pub(crate) fn ended_well(ended: io::Result<Ended>, name: &str, limit: Duration) -> (bool, String) {
    match ended {
        Ok(Ended::Exited(status)) => (status.success(), String::new()),
        Ok(Ended::Killed(running)) => {
            let killed: String = running.iter().map(|line| format!("    killed {line}\n")).collect();
            (false, format!("step {name} was still running after {:.0} s\n{killed}", limit.as_secs_f64()))
        }
        Err(error) => (false, format!("it cannot be run: {error}\n")),
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

    /// A step that failed beside the others fails the whole.
    #[test]
    fn what_ran_beside_counts() {
        let ran = |name, passed| beside::Ran {
            name,
            line: String::new(),
            said: String::new(),
            passed,
            took: Duration::from_secs(1),
        };
        let mut outcome = Outcome::default();
        outcome.take_beside(Some(thread::spawn(move || vec![ran("small", false), ran("doc", true)])));
        outcome.take_beside(None);
        assert_eq!((outcome.failed, outcome.times.len()), (vec!["small"], 2));
    }

    #[test]
    fn skips_fail_only_where_all_is_required() {
        assert!(report_skips("", true));
        assert!(report_skips("lab: a\tneeds root\n", false));
        assert!(!report_skips("lab: a\tneeds root\n", true));
    }

    #[test]
    fn steps_that_hang_are_ended() {
        let step =
            Step { name: "sleep", arguments: &[], environment: &[], minutes_max: 0, order: Order::InTurn };
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
