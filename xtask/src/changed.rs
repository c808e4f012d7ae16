//! `cargo xtask test`: builds and runs the tests of what a change touches, and says what it leaves out.

use crate::arrows;
use crate::suite::{self, Packages, Suite};
use crate::workspace;
use std::collections::BTreeSet;
use std::process::{Command, ExitCode};
use std::sync::mpsc;
use std::thread;
use std::time::Instant;
use toml::Table;

/// The branch that changes land on, here and at its origin.
const MAIN: [&str; 2] = ["main", "origin/main"];
/// Files outside of crates, and the packages whose tests read them.
const READ_BY: &[(&str, &[&str])] = &[
    (
        "docs/",
        &[
            "polycast",
            "polycast-agent",
            "polycast-experiments",
            "polycast-manager",
            "polycast-research",
            "xtask",
        ],
    ),
    ("README.md", &["polycast-research", "xtask"]),
    ("CONTRIBUTING.md", &["polycast-research", "xtask"]),
    ("bpf/", &["polycast-net"]),
    ("p4/", &["polycast-planning"]),
    ("rtl/", &["polycast-planning"]),
    ("packaging/", &["polycast-net", "xtask"]),
    ("examples/", &["polycast-experiments", "xtask"]),
];
/// Whatever changes here may change every build.
const ALL_READ: [&str; 4] = ["Cargo.toml", "Cargo.lock", "rust-toolchain.toml", ".cargo/"];
/// Folders that no test of the workspace covers, and the step that does.
const OTHER_STEPS: [(&str, &str); 4] =
    [("python/", "python"), ("packaging/", "packaging"), ("spark/", "spark"), ("verify/fuzz/", "fuzz")];

/// Runs the task, for the crates that are named or for what was changed.
pub(crate) fn run(names: &[String]) -> ExitCode {
    let house = House::load();
    let chosen = match names {
        [] => changed().map(|files| house.touched(&files)),
        names => names.iter().map(|name| house.find(name)).collect::<Result<_, _>>().map(Choice::of_packages),
    };
    match chosen.and_then(|choice| perform(&house, &choice)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The packages that a person names.
///
/// # Errors
/// There is no such crate.
pub(crate) fn names(names: &[String]) -> Result<Vec<String>, String> {
    let house = House::load();
    names.iter().map(|name| house.find(name)).collect()
}

fn perform(house: &House, choice: &Choice) -> Result<bool, String> {
    choice.lines(house).iter().for_each(|line| println!("{line}"));
    if choice.packages.is_empty() {
        return Ok(true);
    }
    let begun = Instant::now();
    let suite = Suite::new();
    let packages = Packages::Named(choice.packages.iter().cloned().collect());
    let (to_run, programs) = mpsc::channel();
    let (outcomes, built) = thread::scope(|scope| {
        let build = scope.spawn(move || suite::build(&packages, &to_run, &|| ()).0);
        let outcomes = suite.run(programs);
        build.join().map(|built| (outcomes, built)).map_err(|_| "the build broke down".to_string())
    })?;
    let summary = suite.summary(outcomes, built);
    summary.lines().iter().for_each(|line| println!("{line}"));
    println!("after {:.0} s", begun.elapsed().as_secs_f64());
    Ok(summary.is_fine())
}

/// The packages, and who uses whom.
struct House {
    /// Folder, name and what it uses, tests included.
    packages: Vec<(String, String, BTreeSet<String>)>,
}

impl House {
    fn load() -> Self {
        House::new(workspace::packages())
    }

    fn new(packages: Vec<(String, Table)>) -> Self {
        let name = |manifest: &Table| Some(manifest.get("package")?.get("name")?.as_str()?.to_string());
        let packages = packages.into_iter().filter_map(|(folder, manifest)| {
            Some((folder, name(&manifest)?, arrows::all_dependencies(&manifest)))
        });
        House { packages: packages.collect() }
    }

    fn names(&self) -> impl Iterator<Item = &String> {
        self.packages.iter().map(|(_, name, _)| name)
    }

    /// The package that a person means: by its name, with or without what all names begin with.
    fn find(&self, name: &str) -> Result<String, String> {
        let meant = |known: &&String| *known == name || known.strip_prefix("polycast-") == Some(name);
        self.names().find(meant).cloned().ok_or_else(|| {
            let known: Vec<&str> =
                self.names().map(|name| name.strip_prefix("polycast-").unwrap_or(name)).collect();
            format!("there is no crate '{name}': choose from {}", known.join(", "))
        })
    }

    /// Returns the packages and steps that a change of these files affects.
    fn touched(&self, files: &[String]) -> Choice {
        let mut choice = Choice::default();
        for file in files {
            if let Some((_, step)) = OTHER_STEPS.iter().find(|(folder, _)| file.starts_with(folder)) {
                choice.steps.insert(step);
            }
            if ALL_READ.iter().any(|all| file.starts_with(all)) {
                choice.changed.extend(self.names().cloned());
            }
            let inside = |folder: &str| file.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'));
            choice.changed.extend(
                self.packages.iter().filter(|(folder, _, _)| inside(folder)).map(|(_, name, _)| name.clone()),
            );
            for (_, readers) in READ_BY.iter().filter(|(begin, _)| file.starts_with(begin)) {
                choice.changed.extend(readers.iter().map(|name| name.to_string()));
            }
        }
        choice.packages = self.with_users(&choice.changed);
        choice
    }

    /// Packages and all that use them, directly or not.
    fn with_users(&self, packages: &BTreeSet<String>) -> BTreeSet<String> {
        let mut all = packages.clone();
        loop {
            let uses = |(_, name, uses): &&(String, String, BTreeSet<String>)| {
                !all.contains(name) && uses.iter().any(|used| all.contains(used))
            };
            let more: Vec<String> =
                self.packages.iter().filter(uses).map(|(_, name, _)| name.clone()).collect();
            if more.is_empty() {
                return all;
            }
            all.extend(more);
        }
    }
}

/// Packages and steps to be tested.
#[derive(Default, PartialEq, Eq, Debug)]
struct Choice {
    /// Packages that a person named, or that have changed.
    changed: BTreeSet<String>,
    /// These and those above them.
    packages: BTreeSet<String>,
    /// Steps of `ci` that would see the change as well.
    steps: BTreeSet<&'static str>,
}

impl Choice {
    fn of_packages(packages: BTreeSet<String>) -> Self {
        Choice { changed: packages.clone(), packages, steps: BTreeSet::new() }
    }

    /// Lines that say what is tested and what is left out.
    fn lines(&self, house: &House) -> Vec<String> {
        let join = |names: Vec<&String>| names.into_iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        let mut lines = Vec::new();
        if self.changed.is_empty() && self.steps.is_empty() {
            lines.push(
                "nothing that a test reads has changed since main: name a crate to test it".to_string(),
            );
        }
        if !self.changed.is_empty() {
            lines.push(format!("tests of {}", join(self.changed.iter().collect())));
            let above: Vec<&String> = self.packages.difference(&self.changed).collect();
            if !above.is_empty() {
                lines.push(format!("and of what is above them: {}", join(above)));
            }
            let left: Vec<&String> = house.names().filter(|name| !self.packages.contains(*name)).collect();
            let left = if left.is_empty() { String::new() } else { format!("{}; ", join(left)) };
            lines.push(format!(
                "left out: {left}examples in documentation, clippy, the fuzzers, Python and Spark, which `cargo xtask ci` runs"
            ));
        }
        if !self.steps.is_empty() {
            let steps: Vec<&str> = self.steps.iter().copied().collect();
            lines.push(format!("the change also needs: cargo xtask ci {}", steps.join(" ")));
        }
        lines
    }
}

/// The files that differ from the last commit that main and this branch share, those among them that git does
/// not know yet.
fn changed() -> Result<Vec<String>, String> {
    let base = MAIN.iter().find_map(|main| git(&["merge-base", "HEAD", main]).ok());
    let base = base.ok_or("there is no branch main to compare with: name the crates to test")?;
    let mut files = git(&["diff", "--name-only", base.trim()])?;
    files.push_str(&git(&["ls-files", "--others", "--exclude-standard"])?);
    Ok(files.lines().map(String::from).collect())
}

fn git(arguments: &[&str]) -> Result<String, String> {
    let output = Command::new("git").current_dir(workspace::root()).args(arguments).output();
    let output = output.map_err(|error| format!("git cannot be run: {error}; name the crates to test"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("git {}: {}", arguments.join(" "), said.trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn house() -> House {
        let manifest =
            |name: &str, rest: &str| format!("[package]\nname = \"{name}\"\n{rest}").parse().unwrap();
        House::new(vec![
            ("crates/types".to_string(), manifest("polycast-types", "")),
            ("crates/net".to_string(), manifest("polycast-net", "[dependencies]\npolycast-types = {}")),
            ("crates/agent".to_string(), manifest("polycast-agent", "[dependencies]\npolycast-net = {}")),
            ("research/lab".to_string(), manifest("polycast-lab", "[dev-dependencies]\npolycast-agent = {}")),
            ("xtask".to_string(), manifest("xtask", "")),
        ])
    }

    fn touched(files: &[&str]) -> Choice {
        house().touched(&files.iter().map(|file| file.to_string()).collect::<Vec<_>>())
    }

    fn names(packages: &BTreeSet<String>) -> Vec<&str> {
        packages.iter().map(String::as_str).collect()
    }

    #[test]
    fn a_change_touches_its_crate_and_those_above() {
        let choice = touched(&["crates/net/src/lib.rs"]);
        assert_eq!(names(&choice.changed), ["polycast-net"]);
        assert_eq!(names(&choice.packages), ["polycast-agent", "polycast-lab", "polycast-net"]);
        let lines = choice.lines(&house());
        assert!(lines[2].starts_with("left out: polycast-types, xtask; "), "{lines:?}");
        // A folder whose name only begins alike is another one.
        assert!(touched(&["crates/network/src/lib.rs"]).packages.is_empty());
    }

    #[test]
    fn what_every_build_reads_touches_all_and_pages_those_that_read_them() {
        assert_eq!(touched(&["Cargo.lock"]).packages.len(), 5);
        assert!(touched(&["docs/api.md"]).packages.contains("xtask"));
        let python = touched(&["python/tests/conftest.py"]);
        assert!(python.packages.is_empty());
        assert_eq!(python.lines(&house()), ["the change also needs: cargo xtask ci python"]);
        assert!(touched(&[]).lines(&house())[0].contains("name a crate"));
    }

    #[test]
    fn crates_are_named_with_and_without_what_all_begin_with() {
        assert_eq!(house().find("net").unwrap(), "polycast-net");
        assert_eq!(house().find("polycast-net").unwrap(), "polycast-net");
        assert_eq!(house().find("xtask").unwrap(), "xtask");
        let error = house().find("nets").unwrap_err();
        assert_eq!(error, "there is no crate 'nets': choose from types, net, agent, lab, xtask");
    }

    /// Paths and crates that a table names are there.
    #[test]
    fn files_that_tests_read_are_there() {
        let house = House::load();
        for (begin, readers) in READ_BY {
            assert!(workspace::root().join(begin).exists(), "{begin}");
            readers.iter().for_each(|name| assert!(house.find(name).is_ok(), "{name}"));
        }
    }
}
