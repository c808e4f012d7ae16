//! Outcomes of test programs.

use super::build::Program;
use super::runner::{ALL, REQUIRE, all_required};
use crate::limit::Cost;
use std::collections::BTreeMap;

/// Outcome of one program.
pub(crate) struct Outcome {
    pub(crate) program: String,
    pub(crate) passed: u64,
    /// The tests that failed, by name.
    pub(crate) failed: Vec<String>,
    pub(crate) cost: Cost,
    /// All that it printed.
    pub(crate) printed: String,
    ended_well: bool,
}

impl Outcome {
    /// Reads what a program of the test harness printed.
    pub(super) fn new(program: &Program, ended_well: bool, cost: Cost, printed: String) -> Self {
        let failed = printed.lines().filter_map(failed).map(String::from).collect();
        let passed = printed.lines().filter_map(passed).sum();
        Outcome { program: program.name.clone(), passed, failed, cost, printed, ended_well }
    }

    /// A program that was not run.
    pub(super) fn broken(program: &Program, why: String) -> Self {
        Outcome::new(program, false, Cost::default(), why)
    }

    /// Returns true if it ended as it should.
    pub(crate) fn is_fine(&self) -> bool {
        self.ended_well && self.failed.is_empty()
    }

    /// Returns the names of failed tests; the program itself where none of its tests reports it.
    pub(crate) fn failures(&self) -> Vec<String> {
        match self.failed.as_slice() {
            [] if self.is_fine() => Vec::new(),
            [] => vec![self.program.clone()],
            tests => tests.iter().map(|test| format!("{} {test}", self.program)).collect(),
        }
    }

    /// One line; behind it all that was printed, where something is wrong.
    pub(crate) fn line(&self) -> String {
        let (name, seconds) = (&self.program, self.cost.took.as_secs_f64());
        let processor = self.cost.processor.as_secs_f64();
        let line = format!("{name}: {} passed, {seconds:.1} s, processor {processor:.1} s", self.passed);
        if self.is_fine() {
            return line;
        }
        let tests = if self.failed.is_empty() { "the program" } else { &self.failed.join(", ") };
        format!("{line}, FAILED: {tests}\n{}---- end of {name}", self.printed)
    }
}

/// The test that a line of the harness names as failed.
fn failed(line: &str) -> Option<&str> {
    let test = line.strip_prefix("test ")?.strip_suffix(" ... FAILED")?;
    // One that should have panicked says so behind its name.
    Some(test.strip_suffix(" - should panic").unwrap_or(test))
}

/// Returns the number of tests that passed, by the harness's last line.
fn passed(line: &str) -> Option<u64> {
    let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
    counts.split_once(" passed;")?.0.parse().ok()
}

/// Outcome of a run of test programs.
pub(crate) struct Summary {
    pub(crate) outcomes: Vec<Outcome>,
    skips: String,
    built: bool,
}

impl Summary {
    pub(super) fn new(outcomes: Vec<Outcome>, skips: String, built: bool) -> Self {
        Summary { outcomes, skips, built }
    }

    /// All that failed, by program and test.
    pub(crate) fn failures(&self) -> Vec<String> {
        self.outcomes.iter().flat_map(Outcome::failures).collect()
    }

    /// Returns true if all was built and has passed, and nothing was skipped that had to run.
    pub(crate) fn is_fine(&self) -> bool {
        self.built && self.failures().is_empty() && (self.skips.is_empty() || !all_required())
    }

    /// Lines that say what failed and what was skipped, and last what is counted.
    pub(crate) fn lines(&self) -> Vec<String> {
        let mut lines: Vec<String> = self.failures().iter().map(|test| format!("failed: {test}")).collect();
        if !self.built {
            lines.push("failed: not all tests could be built".to_string());
        }
        let skipped = self.skips.lines().count();
        if skipped > 0 {
            lines.extend(describe_skips(&self.skips));
            if all_required() {
                lines.push(format!(
                    "as root every test has to run: .ci/run installs what is missing, and {REQUIRE}=none lets them be ({REQUIRE}={ALL} \
                     is the default of root)"
                ));
            }
        }
        let passed: u64 = self.outcomes.iter().map(|outcome| outcome.passed).sum();
        let passed = passed.saturating_sub(skipped as u64);
        lines.push(format!("{passed} passed, {} failed, {skipped} skipped", self.failures().len()));
        lines
    }
}

/// Lines that say how many tests were skipped and why, from lines of `test<TAB>reason`.
fn describe_skips(skips: &str) -> Vec<String> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(ended_well: bool, printed: &str) -> Outcome {
        let program = Program {
            name: "polycast::lab".to_string(),
            package: "polycast".to_string(),
            path: "/p".into(),
            folder: "/".into(),
            over_ipv6: None,
        };
        Outcome::new(&program, ended_well, Cost::default(), printed.to_string())
    }

    #[test]
    fn what_the_harness_prints_is_read() {
        let printed = "test a ... ok\ntest b - should panic ... FAILED\ntest c::d ... FAILED\n\n\
                       test result: FAILED. 11 passed; 2 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s\n";
        let outcome = outcome(false, printed);
        assert_eq!(outcome.passed, 11);
        assert_eq!(outcome.failures(), ["polycast::lab b", "polycast::lab c::d"]);
        assert!(outcome.line().contains("FAILED: b, c::d\ntest a ... ok"), "{}", outcome.line());
    }

    #[test]
    fn a_program_that_breaks_has_failed_itself() {
        let broken = outcome(false, "test result: ok. 3 passed; 0 failed; 0 ignored");
        assert_eq!(broken.failures(), ["polycast::lab"]);
        assert!(broken.line().contains("FAILED: the program"), "{}", broken.line());
    }

    #[test]
    fn what_counts_is_said_last() {
        let fine = || vec![outcome(true, "test result: ok. 3 passed; 0 failed; 0 ignored")];
        let lines = |skips: &str, built| Summary::new(fine(), skips.to_string(), built).lines();
        assert_eq!(lines("", true), ["3 passed, 0 failed, 0 skipped"]);
        let skipped = lines("lab: a\tneeds root\n", true);
        assert_eq!(skipped.last().unwrap(), "2 passed, 0 failed, 1 skipped");
        assert!(Summary::new(fine(), String::new(), true).is_fine());
        assert!(!Summary::new(fine(), String::new(), false).is_fine());
        assert_eq!(Summary::new(fine(), "lab: a\tneeds root\n".to_string(), true).is_fine(), !all_required());
    }

    #[test]
    fn skips_are_counted_by_reason() {
        let lines = describe_skips("lab: b\tneeds root\nrtl: c\tneeds the program vvp\nlab: a\tneeds root\n");
        assert_eq!(
            lines,
            ["skipped: 3 tests", "2, needs root: lab: a, lab: b", "1, needs the program vvp: rtl: c"]
        );
    }
}
