//! Checks that have to pass before a change lands.
//!
//! One lane builds, one thing after the other. Tests run beside it as they are built, and so do the steps
//! that wait for downloads and for other processes. The output of a step is shown when it has ended.
//!
//! Builds have their full share of the processors: when they gave way to the tests, the lane that builds was
//! the last to end, with processors that had nothing else to do.

mod gate;
mod parts;
mod steps;

pub(crate) use steps::{PREPARE, STEPS, Step, cargo};

use crate::limit::Cost;
use crate::machine;
use crate::python::BUILT;
use crate::suite::{self, Packages, Suite};
use gate::Gate;
use parts::Parts;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::Instant;
use steps::Kind;

/// Runs the steps named, or all that the usual machine has what they need for; each runs even if one before
/// it failed.
pub(crate) fn run(names: &[String]) -> ExitCode {
    if let Some(unknown) = names.iter().find(|name| STEPS.iter().all(|step| step.name != name.as_str())) {
        let known: Vec<_> = STEPS.iter().map(|step| step.name).collect();
        eprintln!("there is no step '{unknown}': choose from {}", known.join(", "));
        return ExitCode::FAILURE;
    }
    let is_chosen = |step: &&Step| match names {
        [] => step.is_usual,
        names => names.iter().any(|name| name == step.name),
    };
    let chosen: Vec<&'static Step> = STEPS.iter().filter(is_chosen).collect();
    let begun = Instant::now();
    let found = machine::look(&chosen);
    found.notes.iter().for_each(|note| println!("==> note: {note}"));
    if !found.errors.is_empty() {
        found.errors.iter().for_each(|error| eprintln!("error: {error}"));
        return ExitCode::FAILURE;
    }
    let parts = Parts::default();
    Lanes::new(&chosen).run(&parts);
    parts.end(begun.elapsed())
}

/// Gates and turns that steps of different lanes wait for.
struct Lanes<'a> {
    chosen: &'a [&'static Step],
    suite: Suite,
    /// Opens when the tests' build has left the program `polycast`.
    program: Gate,
    /// Opens when no test uses the network that the machine has.
    quiet: Gate,
    /// Steps take turns where all use that network, since none can have one of its own.
    network: Option<Mutex<()>>,
}

impl<'a> Lanes<'a> {
    fn new(chosen: &'a [&'static Step]) -> Self {
        let (program, quiet) = (Gate::default(), Gate::default());
        let suite = Suite::new();
        let network = (!suite.is_isolated()).then(Mutex::default);
        let lanes = Lanes { chosen, suite, program, quiet, network };
        if !lanes.has_tests() {
            lanes.program.open(true);
        }
        if !lanes.has_tests() || lanes.suite.is_isolated() {
            lanes.quiet.open(true);
        }
        lanes
    }

    fn has_tests(&self) -> bool {
        self.chosen.iter().any(|step| step.kind == Kind::Tests)
    }

    fn run(&self, parts: &Parts) {
        let (to_run, programs) = mpsc::channel();
        let gates: Vec<Gate> = self.chosen.iter().map(|_| Gate::default()).collect();
        thread::scope(|scope| {
            let gates = &gates;
            scope.spawn(move || self.build(to_run, gates, parts));
            for (step, built) in self.chosen.iter().zip(gates) {
                if let Kind::Waits { .. } = step.kind {
                    scope.spawn(move || self.wait(step, built, parts));
                }
            }
            let outcomes = self.suite.run(programs);
            self.quiet.open(true);
            if self.has_tests() {
                parts.tests(self.suite.summary(outcomes, self.program.wait()));
            }
        });
    }

    /// Builds, one thing after the other: each takes all cores.
    fn build(&self, to_run: Sender<suite::Program>, gates: &[Gate], parts: &Parts) {
        let mut to_run = Some(to_run);
        for (step, built) in self.chosen.iter().zip(gates) {
            match step.kind {
                Kind::Builds => drop(parts.run(step.name, &mut step.command(), step.limit())),
                Kind::Tests => {
                    if let Some(to_run) = to_run.take() {
                        let (all, cost) = suite::build(&Packages::All, &to_run, &|| self.program.open(true));
                        parts.note("build of the tests", all, cost, "");
                        self.program.open(all);
                    }
                }
                Kind::Waits { build, .. } => built.open(build.is_none_or(|task| {
                    parts.run(
                        &format!("{task} for {}", step.name),
                        &mut step.task(&[task, step.name]),
                        step.limit(),
                    )
                })),
            }
        }
    }

    /// Runs a step that waits for what others fetch or build.
    fn wait(&self, step: &Step, built: &Gate, parts: &Parts) {
        let Kind::Waits { fetch, .. } = step.kind else { return };
        let fetched = fetch.is_none_or(|task| {
            parts.run(&format!("{task} for {}", step.name), &mut step.task(&[task, step.name]), step.limit())
        });
        let ready = if fetch.is_some() { self.program.wait() && self.quiet.wait() } else { built.wait() };
        if !fetched || !ready {
            return parts.note(
                step.name,
                false,
                Cost::default(),
                "what it needs could not be fetched or built\n",
            );
        }
        let mut command = step.command();
        if self.has_tests() {
            // What the tests have just built is not built again: for itself it has other features.
            command.env(BUILT, "1");
        }
        let _turn = fetch.and(self.network.as_ref()).map(Mutex::lock);
        parts.run(step.name, &mut command, step.limit());
    }
}
