//! Outcomes of the parts of a run, and the cost of each.

use crate::limit::{Cost, Ended, Running};
use crate::suite::Summary;
use crate::workspace;
use std::fs::{self, File};
use std::io;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::time::Duration;

/// Number of parts that are named at the end; the file has them all.
const SLOWEST: usize = 12;
/// File with the costs of all parts, below the target folder: lines of part, seconds of the clock and of
/// processors.
const FILE: &str = "ci/parts.tsv";

/// Parts that have ended so far.
#[derive(Default)]
pub(super) struct Parts {
    parts: Mutex<Vec<Part>>,
    /// Lines of the tests for the end.
    tests: Mutex<Vec<String>>,
}

struct Part {
    name: String,
    passed: bool,
    cost: Cost,
}

impl Parts {
    /// Runs a command, shows what it printed, and notes what came of it. Gives whether it passed.
    pub(super) fn run(&self, name: &str, command: &mut Command, limit: Duration) -> bool {
        println!("==> {name}: begins");
        let (passed, cost, printed) = quietly(name, command, limit);
        self.note(name, passed, cost, &printed);
        passed
    }

    /// Notes what came of a part, and shows what it printed.
    pub(super) fn note(&self, name: &str, passed: bool, cost: Cost, printed: &str) {
        let mut parts = self.parts.lock().expect("no step panics");
        let (clock, processor) = (cost.took.as_secs_f64(), cost.processor.as_secs_f64());
        let word = if passed { "ok" } else { "FAILED" };
        print!("{printed}");
        println!("==> {name}: {word} after {clock:.0} s, processor {processor:.0} s");
        parts.push(Part { name: name.to_string(), passed, cost });
    }

    /// Notes what came of the tests.
    pub(super) fn tests(&self, summary: Summary) {
        let mut cost = Cost::default();
        summary.outcomes.iter().for_each(|outcome| cost += outcome.cost);
        self.note("test", summary.is_fine(), cost, "");
        let programs = summary.outcomes.iter().map(|outcome| Part {
            name: format!("tests of {}", outcome.program),
            passed: true,
            cost: outcome.cost,
        });
        self.parts.lock().expect("no step panics").extend(programs);
        *self.tests.lock().expect("no step panics") = summary.lines();
    }

    /// Says what everything came to, and how long it took.
    pub(super) fn end(self, took: Duration) -> ExitCode {
        let mut parts = self.parts.into_inner().expect("no step panics");
        parts.sort_by_key(|part| std::cmp::Reverse(part.cost.processor));
        if let Err(error) = write(&parts) {
            println!("==> the costs of all parts cannot be written down: {error}");
        }
        println!(
            "==> parts that took most of the processors, of {} in {FILE} below the target folder:",
            parts.len()
        );
        parts.iter().take(SLOWEST).for_each(|part| println!("    {}", part.line()));
        self.tests.into_inner().expect("no step panics").iter().for_each(|line| println!("{line}"));
        let failed: Vec<&str> =
            parts.iter().filter(|part| !part.passed).map(|part| part.name.as_str()).collect();
        let seconds = took.as_secs_f64();
        if failed.is_empty() {
            println!("==> everything is fine after {seconds:.0} s");
            ExitCode::SUCCESS
        } else {
            println!("==> failed: {} after {seconds:.0} s", failed.join(", "));
            ExitCode::FAILURE
        }
    }
}

impl Part {
    fn line(&self) -> String {
        let (clock, processor) = (self.cost.took.as_secs_f64(), self.cost.processor.as_secs_f64());
        format!("{processor:7.1} s of processors in {clock:7.1} s: {}", self.name)
    }
}

fn write(parts: &[Part]) -> io::Result<()> {
    let file = workspace::target().join(FILE);
    file.parent().map_or(Ok(()), fs::create_dir_all)?;
    let line = |part: &Part| {
        let (clock, processor) = (part.cost.took.as_secs_f64(), part.cost.processor.as_secs_f64());
        format!("{}\t{clock:.2}\t{processor:.2}\n", part.name)
    };
    fs::write(file, parts.iter().map(line).collect::<String>())
}

/// Runs a command, and keeps what it prints.
fn quietly(name: &str, command: &mut Command, limit: Duration) -> (bool, Cost, String) {
    let file = tempfile::NamedTempFile::new().expect("the folder of temporary files can be written");
    let output =
        || File::options().append(true).open(file.path()).map_or_else(|_| Stdio::null(), Stdio::from);
    command.stdin(Stdio::null()).stdout(output()).stderr(output());
    let ended = Running::start(command).and_then(|running| running.end(limit));
    let printed = fs::read(file.path()).unwrap_or_default();
    let printed = String::from_utf8_lossy(&printed).into_owned();
    match ended {
        Ok((Ended::Exited(status), cost)) => (status.success(), cost, printed),
        Ok((Ended::Killed(running), cost)) => {
            let killed: String = running.iter().map(|line| format!("    killed {line}\n")).collect();
            let why = format!("step {name} was still running after {:.0} s\n{killed}", limit.as_secs_f64());
            (false, cost, printed + &why)
        }
        Err(error) => (false, Cost::default(), format!("it cannot be run: {error}\n")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(text: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", text]);
        command
    }

    #[test]
    fn what_a_step_prints_is_kept_and_what_hangs_is_ended() {
        let limit = Duration::from_secs(60);
        let (passed, _, printed) = quietly("a", &mut shell("echo one; echo two >&2; exit 3"), limit);
        assert_eq!((printed.as_str(), passed), ("one\ntwo\n", false));
        assert!(quietly("b", &mut shell("true"), limit).0);
        let (passed, _, printed) =
            quietly("c", &mut shell("echo begun; sleep 1000"), Duration::from_millis(500));
        assert!(!passed && printed.starts_with("begun\nstep c was still running after"), "{printed}");
        assert!(printed.contains("sleep 1000"), "{printed}");
    }

    /// One part that failed fails the whole, wherever it ran.
    #[test]
    fn each_part_counts() {
        let parts = Parts::default();
        assert!(parts.run("true", &mut shell("true"), Duration::from_secs(60)));
        parts.note("doc", false, Cost::default(), "");
        parts.note("small", true, Cost::default(), "");
        let failed: Vec<bool> = parts.parts.into_inner().unwrap().iter().map(|part| part.passed).collect();
        assert_eq!(failed, [true, false, true]);
    }
}
