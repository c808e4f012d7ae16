//! Runs the fuzz targets: one program with coverage for all of them, built with a stable compiler and LLVM's
//! libFuzzer.

mod corpus;
mod report;

use crate::limit::{self, Ended};
use crate::workspace;
use report::Row;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::time::Duration;

pub(crate) const USAGE: &str = "\
Looks for bytes that break a promise of decoders, machines and records

Usage: cargo xtask fuzz [OPTION].. [TARGET]..

Options:
  --seconds N    How long each target runs [default: 60]
  --seed N       Where its random choices begin [default: another one each time]
  --jobs N       How many targets run at a time [default: 1]
  --merge        Put what adds coverage into the corpus of the repository
  --repeat FILE  Run one target on one file only, and show what happens";

/// Flags that make the compiler count edges and compared values, but not in programs that run on the way.
const FLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing";
/// Limits of one run: longer inputs say nothing new, and slower or larger ones are finds.
const INPUT_LEN_MAX: usize = 4_096;
const RUN_SECONDS_MAX: u64 = 10;
const MEMORY_MB_MAX: u64 = 1_024;
/// A build from nothing, on two cores.
const BUILD_LIMIT: Duration = Duration::from_secs(30 * 60);
/// Time that a target may take beside its own: to read its corpus, or to shrink it.
const MARGIN: Duration = Duration::from_secs(300);

/// Options of the command line.
#[derive(Debug, PartialEq, Eq)]
struct Options {
    seconds: u64,
    seed: Option<u32>,
    jobs: usize,
    merge: bool,
    repeat: Option<PathBuf>,
    targets: Vec<String>,
}

impl Options {
    fn read(arguments: &[String]) -> Result<Self, String> {
        let mut options =
            Options { seconds: 60, seed: None, jobs: 1, merge: false, repeat: None, targets: Vec::new() };
        let mut rest = arguments.iter();
        let number = |name: &str, text: Option<&String>| {
            let number = text.and_then(|text| text.parse::<u32>().ok()).filter(|number| *number > 0);
            number.ok_or_else(|| format!("{name} needs a number from 1 on behind it"))
        };
        while let Some(argument) = rest.next() {
            match argument.as_str() {
                "--seconds" => options.seconds = number(argument, rest.next())?.into(),
                "--seed" => options.seed = Some(number(argument, rest.next())?),
                "--jobs" => options.jobs = number(argument, rest.next())? as usize,
                "--merge" => options.merge = true,
                "--repeat" => {
                    options.repeat = Some(rest.next().ok_or("--repeat needs a file behind it")?.into())
                }
                name if name.starts_with('-') => return Err(format!("there is no option {name}\n\n{USAGE}")),
                name => options.targets.push(name.to_string()),
            }
        }
        if options.repeat.is_some() && options.targets.len() != 1 {
            return Err("--repeat runs one target: name it".to_string());
        }
        Ok(options)
    }
}

/// Builds all targets, runs those that are asked for, and says what was found.
pub(crate) fn run(arguments: &[String]) -> ExitCode {
    if arguments.iter().any(|argument| matches!(argument.as_str(), "--help" | "-h")) {
        println!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    match Options::read(arguments).and_then(|options| perform(&options)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

fn perform(options: &Options) -> Result<bool, String> {
    let known = targets(&workspace::root())?;
    if let Some(unknown) = options.targets.iter().find(|name| !known.contains(name)) {
        return Err(format!("there is no target '{unknown}': choose from {}", known.join(", ")));
    }
    let fuzzer = Fuzzer { program: build()?, folder: folder() };
    let chosen = if options.targets.is_empty() { known } else { options.targets.clone() };
    if let (Some(file), [target]) = (&options.repeat, chosen.as_slice()) {
        let status = fuzzer.command(target).arg(file).status();
        return status.map(|status| status.success()).map_err(|error| format!("it cannot run: {error}"));
    }
    let (waiting, rows) = (Mutex::new(chosen.iter()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..options.jobs {
            scope.spawn(|| {
                loop {
                    let next = waiting.lock().ok().and_then(|mut waiting| waiting.next());
                    let Some(target) = next else { return };
                    let row = fuzzer.look(target, options);
                    println!("{}", row.line());
                    rows.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(row);
                }
            });
        }
    });
    let mut rows = rows.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    rows.sort_by_key(|row| chosen.iter().position(|name| *name == row.target));
    println!("\n{}", report::table(&rows));
    rows.iter().flat_map(|row| &row.problems).for_each(|problem| eprintln!("{problem}"));
    Ok(rows.iter().all(|row| row.problems.is_empty()))
}

/// The names in the table of targets.
fn targets(root: &Path) -> Result<Vec<String>, String> {
    let path = root.join("verify/fuzz/src/lib.rs");
    let text =
        fs::read_to_string(&path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    let names = text.lines().filter_map(|line| line.trim().strip_prefix("(\"")?.split('"').next());
    Ok(names.map(String::from).collect())
}

/// Returns the folder of programs, new inputs and finds.
fn folder() -> PathBuf {
    workspace::target().join("fuzz")
}

/// Builds the program of all targets, and runs none.
pub(crate) fn prepare() -> Result<(), String> {
    build().map(|_| ())
}

/// Builds the program of all targets.
fn build() -> Result<PathBuf, String> {
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_string());
    let works = Command::new(&compiler).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !works.is_ok_and(|status| status.success()) {
        return Err(format!(
            "the fuzzers need a C++ compiler, and '{compiler}' cannot be run: install g++ or clang, or name another one in CXX"
        ));
    }
    let host = host()?;
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(workspace::root()).env("RUSTFLAGS", FLAGS).env_remove("CARGO_ENCODED_RUSTFLAGS");
    cargo.args([
        "build",
        "--locked",
        "--profile",
        "fuzz",
        "--package",
        "polycast-fuzz",
        "--features",
        "libfuzzer",
    ]);
    // The target is named, so that build scripts and macros are not instrumented.
    cargo.args(["--target", &host, "--target-dir"]).arg(folder());
    match limit::run(&mut cargo, BUILD_LIMIT.mul_f64(limit::patience())) {
        Ok(ended) if ended.is_success() => Ok(folder().join(host).join("fuzz/polycast-fuzz")),
        Ok(Ended::Killed(_)) => Err("the build of the fuzzers was ended: it took too long".to_string()),
        Ok(Ended::Exited(_)) => Err("the fuzzers cannot be built".to_string()),
        Err(error) => Err(format!("cargo cannot be run: {error}")),
    }
}

/// The machine that programs are built for.
fn host() -> Result<String, String> {
    let output =
        Command::new("rustc").arg("-vV").output().map_err(|error| format!("rustc cannot be run: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(String::from).ok_or_else(|| "rustc does not say what machine this is".to_string())
}

/// The program and its folders.
struct Fuzzer {
    program: PathBuf,
    folder: PathBuf,
}

impl Fuzzer {
    fn command(&self, target: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.env("POLYCAST_FUZZ_TARGET", target).current_dir(workspace::root());
        command
    }

    /// Runs one target for its time.
    fn look(&self, target: &str, options: &Options) -> Row {
        let row = self.try_look(target, options);
        row.unwrap_or_else(|error| Row::broken(target, format!("{target} cannot be run: {error}")))
    }

    fn try_look(&self, target: &str, options: &Options) -> io::Result<Row> {
        let place = |kind: &str| self.folder.join(kind).join(target);
        let (seeds, found, finds) = (place("seeds"), place("found"), place("finds"));
        for folder in [&seeds, &found, &finds] {
            fs::create_dir_all(folder)?;
        }
        let log = self.folder.join(format!("{target}.log"));
        let mut command = self.command(target);
        // The program itself knows its seeds, and puts them there.
        command.env("POLYCAST_FUZZ_SEEDS", &seeds).args([&found, &seeds]);
        command.args([
            format!("-max_total_time={}", options.seconds),
            format!("-max_len={INPUT_LEN_MAX}"),
            format!("-timeout={RUN_SECONDS_MAX}"),
            format!("-rss_limit_mb={MEMORY_MB_MAX}"),
            format!("-artifact_prefix={}/", finds.display()),
            "-print_final_stats=1".to_string(),
        ]);
        command.args(options.seed.map(|seed| format!("-seed={seed}")));
        let output = fs::File::create(&log)?;
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let limit = (Duration::from_secs(options.seconds) + MARGIN).mul_f64(limit::patience());
        let ended = limit::run(&mut command, limit)?;
        let text = String::from_utf8_lossy(&fs::read(&log)?).into_owned();
        let mut row = Row::read(target, &text);
        if !ended.is_success() {
            row.problems.push(describe(target, &text, &log));
        } else if options.merge {
            row.corpus = self.merge(target, &[&seeds, &found])?;
        }
        Ok(row)
    }

    /// Puts the smallest inputs that reach all that `folders` reach into the repository; gives how many there
    /// are.
    fn merge(&self, target: &str, folders: &[&PathBuf]) -> io::Result<u64> {
        let merged = self.folder.join("merged").join(target);
        let _ = fs::remove_dir_all(&merged);
        fs::create_dir_all(&merged)?;
        let mut command = self.command(target);
        command.args(["-merge=1", &format!("-max_len={INPUT_LEN_MAX}")]).arg(&merged).args(folders);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        if !limit::run(&mut command, MARGIN.mul_f64(limit::patience()))?.is_success() {
            return Err(io::Error::other("its inputs cannot be merged"));
        }
        corpus::store(&workspace::root().join("verify/fuzz/corpus").join(format!("{target}.hex")), &merged)
    }
}

/// Describes a find, and how to see it again.
fn describe(target: &str, text: &str, log: &Path) -> String {
    let line = |part: &str| text.lines().find(|line| line.contains(part));
    let file = line("Test unit written to ").and_then(|line| line.split("written to ").nth(1));
    let why =
        text.lines().skip_while(|line| !line.contains("panicked at")).take(2).collect::<Vec<_>>().join(" ");
    let why = if why.is_empty() { line("ERROR: ").unwrap_or("it ended").to_string() } else { why };
    match file {
        Some(file) => {
            format!("{target}: {why}\n    file {file}\n    again: cargo xtask fuzz --repeat {file} {target}")
        }
        None => format!("{target}: {why}\n    see {}", log.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Options, String> {
        Options::read(&text.split_whitespace().map(String::from).collect::<Vec<_>>())
    }

    #[test]
    fn options_are_read_or_refused_with_a_reason() {
        let options = read("--seconds 3 leases --merge --jobs 2 guest").unwrap();
        assert_eq!((options.seconds, options.jobs, options.merge), (3, 2, true));
        assert_eq!(options.targets, ["leases", "guest"]);
        for (text, part) in [
            ("--seconds", "a number from 1 on"),
            ("--seconds 0", "a number from 1 on"),
            ("--jobs many", "a number from 1 on"),
            ("--repeat", "a file"),
            ("--repeat file", "name it"),
            ("--fast", "there is no option --fast"),
        ] {
            assert!(read(text).unwrap_err().contains(part), "{text}");
        }
    }

    #[test]
    fn targets_are_those_of_the_table() {
        let targets = targets(&workspace::root()).unwrap();
        assert!(targets.len() > 30 && targets.contains(&"push_sender".to_string()), "{targets:?}");
    }

    #[test]
    fn a_find_is_said_with_the_way_to_see_it_again() {
        let text = "#2 INITED cov: 3 ft: 4\nthread '<unnamed>' panicked at crates/x.rs:1:2:\nit broke\n\
                    ==1== ERROR: libFuzzer: deadly signal\nartifact_prefix='f/'; Test unit written to f/crash-1\n";
        assert_eq!(
            describe("leases", text, Path::new("x.log")),
            "leases: thread '<unnamed>' panicked at crates/x.rs:1:2: it broke\n    file f/crash-1\n    again: cargo xtask \
             fuzz --repeat f/crash-1 leases"
        );
        let slow = describe("leases", "==1== ERROR: libFuzzer: timeout after 10 seconds", Path::new("x.log"));
        assert!(slow.contains("timeout") && slow.contains("x.log"), "{slow}");
    }
}
