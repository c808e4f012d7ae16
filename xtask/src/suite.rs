//! The tests of the workspace: cargo builds their programs, and several run at a time while it builds others.
//!
//! As root each program has a network of its own, so that no two of them meet on a port or in a multicast
//! group. Without root they share the machine's, and run one at a time. Programs that build networks of many
//! hosts run one at a time as well: their switches have the processors before all others, as switches have.

mod build;
mod report;
mod runner;

pub(crate) use build::{Packages, Program, build};
pub(crate) use report::{Outcome, Summary};
pub(crate) use runner::{ALL, REQUIRE, all_required, alone};

use runner::Runner;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::mpsc::{self, Receiver};
use std::thread;

/// Test programs that run at a time, for each core. Most tests wait: in turn they took 261 s of processors in
/// 558 s.
const PROGRAMS_PER_CORE: usize = 3;

/// Runner of test programs.
pub(crate) struct Suite {
    runner: Runner,
    jobs: usize,
    /// Held by the program that uses the network which the machine has.
    network: Mutex<()>,
}

impl Suite {
    /// Looks at what this machine allows.
    pub(crate) fn new() -> Self {
        let runner = Runner::new();
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let jobs = if runner.is_isolated() { cores * PROGRAMS_PER_CORE } else { 1 };
        Suite { runner, jobs, network: Mutex::new(()) }
    }

    /// Returns true if each program has a network of its own.
    pub(crate) fn is_isolated(&self) -> bool {
        self.runner.is_isolated()
    }

    /// Runs programs as they come, until no more can come.
    pub(crate) fn run(&self, programs: Receiver<Program>) -> Vec<Outcome> {
        let outcomes = Mutex::new(Vec::new());
        let (network, networks) = mpsc::channel();
        let (other, others) = mpsc::channel();
        let (networks, others) = (Mutex::new(networks), Mutex::new(others));
        thread::scope(|scope| {
            scope.spawn(move || {
                // Nothing is lost where a worker has gone: it panicked, and so does this run.
                programs.iter().for_each(|program| {
                    drop(if program.builds_networks() { &network } else { &other }.send(program))
                });
            });
            for _ in 0..self.jobs {
                scope.spawn(|| self.work(&others, &outcomes));
            }
            scope.spawn(|| self.work(&networks, &outcomes));
        });
        outcomes.into_inner().expect("no worker panics")
    }

    /// Runs one program after the other.
    fn work(&self, programs: &Mutex<Receiver<Program>>, outcomes: &Mutex<Vec<Outcome>>) {
        loop {
            // The lock is held while a worker waits for a program: there is one to come for each.
            let next = programs.lock().expect("no worker panics").recv();
            let Ok(program) = next else { return };
            let _alone = (!self.is_isolated()).then(|| self.network.lock());
            if program.over_ipv6.is_some() && !self.runner.is_isolated() {
                // Such a network has to be made.
                continue;
            }
            let outcome = self.runner.run(&program);
            println!("{}", outcome.line());
            outcomes.lock().expect("no worker panics").push(outcome);
        }
    }

    /// Runs programs that are there, those first that took longest before.
    pub(crate) fn run_all(&self, programs: &[Program], seconds: &BTreeMap<String, f64>) -> Summary {
        let mut programs = programs.to_vec();
        let known = |program: &Program| seconds.get(&program.name).copied().unwrap_or(f64::MAX);
        programs.sort_by(|one, other| known(other).total_cmp(&known(one)));
        let (to_run, waiting) = mpsc::channel();
        programs.into_iter().for_each(|program| to_run.send(program).expect("the other end is here"));
        drop(to_run);
        self.summary(self.run(waiting), true)
    }

    /// Returns the results of programs that were run; `built` is set if all could be built.
    pub(crate) fn summary(&self, outcomes: Vec<Outcome>, built: bool) -> Summary {
        Summary::new(outcomes, self.runner.skips(), built)
    }
}

/// Builds the tests of `packages` and runs none.
///
/// # Errors
/// They cannot be built; what is wrong was printed.
pub(crate) fn build_all(packages: &Packages) -> Result<Vec<Program>, String> {
    let (to_run, programs) = mpsc::channel();
    let built = build(packages, &to_run, &|| ()).0;
    drop(to_run);
    if built { Ok(programs.into_iter().collect()) } else { Err("the tests cannot be built".to_string()) }
}

/// The program `polycast` that the build of the tests leaves.
pub(crate) fn program() -> PathBuf {
    crate::workspace::target().join("debug/polycast")
}
