//! How `cargo test` runs under `cargo xtask ci`: each test program has a time limit, and what was skipped and how long
//! each took is written down.
//!
//! Cargo starts every test program through a runner, which is this program again.

use crate::limit::{self, Ended};
use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

/// The task that runs one test program.
pub(crate) const TASK: &str = "run-test";
/// How long one test program may run: the slowest takes 80 s on a machine of two cores.
const PROGRAM_LIMIT: Duration = Duration::from_secs(600);
/// Names the file to which the runner appends `seconds<TAB>program`.
const TIMES: &str = "POLYCAST_TIMES";
/// The variables of `polycast-testing`. A person may set the second one to something else than `all`, and skip tests as
/// root too.
const SKIPS: &str = "POLYCAST_SKIPS";
pub(crate) const REQUIRE: &str = "POLYCAST_REQUIRE";
/// Its value where every test has to run.
pub(crate) const ALL: &str = "all";

/// Whether every test has to run: as root, unless the variable says otherwise.
pub(crate) fn all_required() -> bool {
    let wish = std::env::var(REQUIRE).ok();
    wish.as_deref().map_or_else(|| rustix::process::geteuid().is_root(), |wish| wish == ALL)
}

/// What a run of `cargo test` leaves.
pub(crate) struct Records {
    folder: tempfile::TempDir,
}

impl Records {
    /// Room for one run.
    pub(crate) fn new() -> Self {
        Records { folder: tempfile::tempdir().expect("the folder of temporary files can be written") }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Makes a `cargo test` write them. Gives whether every test has to run.
    pub(crate) fn ask(&self, cargo: &mut Command) -> bool {
        let runner = std::env::current_exe().unwrap_or_default();
        // For whatever kind of machine this is.
        let setting =
            format!("target.\"cfg(all())\".runner = [{:?}, {TASK:?}]", runner.display().to_string());
        cargo.arg("--config").arg(setting);
        cargo.env(TIMES, self.file("times")).env(SKIPS, self.file("skips"));
        let all = all_required();
        cargo.env(REQUIRE, if all { ALL } else { "" });
        all
    }

    /// The test programs with their seconds.
    pub(crate) fn times(&self) -> Vec<(f64, String)> {
        let parse = |line: &str| {
            let (seconds, program) = line.split_once('\t')?;
            Some((seconds.parse().ok()?, program.to_string()))
        };
        read(&self.file("times")).lines().filter_map(parse).collect()
    }

    /// What was skipped.
    pub(crate) fn skips(&self) -> String {
        read(&self.file("skips"))
    }
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// Lines that say how many tests were skipped and why, from lines of `test<TAB>reason`.
pub(crate) fn describe_skips(skips: &str) -> Vec<String> {
    let mut by_reason: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (test, reason) in skips.lines().filter_map(|line| line.split_once('\t')) {
        by_reason.entry(reason).or_default().push(test);
    }
    let count: usize = by_reason.values().map(Vec::len).sum();
    let mut lines = vec![format!("skipped: {count} test{}", if count == 1 { "" } else { "s" })];
    for (reason, mut tests) in by_reason {
        tests.sort_unstable();
        lines.push(format!("{}, {reason}: {}", tests.len(), tests.join(", ")));
    }
    lines
}

/// Runs one test program, as cargo asks: its path and arguments.
pub(crate) fn run(arguments: &[String]) -> ExitCode {
    let Some((program, rest)) = arguments.split_first() else {
        eprintln!("{TASK} needs a program");
        return ExitCode::FAILURE;
    };
    let mut command = Command::new(program);
    command.args(rest).env_remove(TIMES);
    run_within(&mut command, name_of(program), PROGRAM_LIMIT.mul_f64(limit::patience()))
}

fn run_within(command: &mut Command, name: &str, limit: Duration) -> ExitCode {
    let begun = Instant::now();
    let ended = limit::run(command, limit);
    note_time(name, begun.elapsed());
    match ended {
        Ok(Ended::Exited(status)) => {
            // What a signal ended has no code of its own.
            status.code().map_or(ExitCode::FAILURE, |code| ExitCode::from(u8::try_from(code).unwrap_or(1)))
        }
        Ok(Ended::Killed(running)) => {
            println!("test program {name} FAILED: still running after {:.0} s", limit.as_secs_f64());
            running.iter().for_each(|line| println!("    killed {line}"));
            ExitCode::FAILURE
        }
        Err(error) => {
            println!("test program {name} cannot be run: {error}");
            ExitCode::FAILURE
        }
    }
}

fn note_time(name: &str, took: Duration) {
    if let Some(file) = std::env::var_os(TIMES) {
        let line = format!("{:.3}\t{name}\n", took.as_secs_f64());
        let opened = OpenOptions::new().create(true).append(true).open(file);
        if let Err(error) = opened.and_then(|mut file| file.write_all(line.as_bytes())) {
            println!("the time of {name} cannot be written down: {error}");
        }
    }
}

/// A test program's name without its folder and the number that cargo puts behind it.
fn name_of(program: &str) -> &str {
    let name = program.rsplit_once('/').map_or(program, |(_, name)| name);
    name.rsplit_once('-').map_or(name, |(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_have_names() {
        assert_eq!(name_of("/target/debug/deps/polycast_net-0123456789abcdef"), "polycast_net");
        assert_eq!(name_of("rust_out"), "rust_out");
    }

    #[test]
    fn skips_are_counted_by_reason() {
        let lines = describe_skips("lab: b\tneeds root\nrtl: c\tneeds the program vvp\nlab: a\tneeds root\n");
        assert_eq!(
            lines,
            ["skipped: 3 tests", "2, needs root: lab: a, lab: b", "1, needs the program vvp: rtl: c"]
        );
    }

    #[test]
    fn programs_that_hang_fail_and_others_keep_their_codes() {
        let sleeping = |limit| run_within(Command::new("sleep").arg("1000"), "sleep", limit);
        assert_eq!(sleeping(Duration::from_millis(100)), ExitCode::FAILURE);
        let mut exits = Command::new("sh");
        exits.args(["-c", "exit 101"]);
        assert_eq!(run_within(&mut exits, "sh", Duration::from_secs(60)), ExitCode::from(101));
        let mut kills = Command::new("sh");
        kills.args(["-c", "kill -9 $$"]);
        assert_eq!(run_within(&mut kills, "sh", Duration::from_secs(60)), ExitCode::FAILURE);
    }
}
