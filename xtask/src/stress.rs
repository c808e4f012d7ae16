//! `cargo xtask stress`: all tests many times, some of them on a busy machine, and the names of those that do
//! not always pass.
//!
//! A test may depend on order and on facts, and not on how fast the machine is. One that waits 50 ms and asks
//! whether less than 60 ms have gone by passes on a quiet machine, always. So the loaded runs have a busy
//! thread on each core and a writer to the disk beside them, and as root moments in which nothing else runs
//! at all, as on a machine whose hypervisor gives its processors away for a while.

use crate::suite::{self, Packages, Program, Suite};
use crate::workspace;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

pub(crate) const USAGE: &str = "\
Runs the tests many times, and names those that do not always pass

Usage: cargo xtask stress [OPTION].. [CRATE]..

Options:
  --runs N    How many runs [default: 10]
  --loaded N  How many of them are beside busy cores and a busy disk [default: half of them]

A loaded run takes quick programs several times.";

/// The task that stops all else for moments. A person has no use for it.
pub(crate) const PAUSES: &str = "pauses";
/// Bytes that the writer to the disk writes at a time, and chunks before it starts the file again.
const CHUNK_BYTES: usize = 1 << 20;
const FILE_CHUNKS: usize = 64;
/// Time that nothing else runs, and time that all runs in between. A pause is longer than the 10 ms by which
/// a test is off that takes 50 ms for less than 60, and shorter than the time that a machine in use stands
/// still for.
const PAUSE_MS: std::ops::Range<u64> = 20..60;
const BETWEEN_MS: std::ops::Range<u64> = 60..300;
/// A loaded run takes programs again that are quicker than this, in seconds, as often as they fit and at most
/// so many times: what one pass of a short test misses, twenty find.
const SHORT_S: f64 = 2.0;
const PASSES_MAX: f64 = 20.0;
/// The golden ratio's part behind the point, in units of 2^-64: its multiples are spread evenly.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Options of the command line.
#[derive(Debug, PartialEq, Eq)]
struct Options {
    runs: u32,
    loaded: u32,
    crates: Vec<String>,
}

impl Options {
    fn read(arguments: &[String]) -> Result<Self, String> {
        let (mut runs, mut loaded, mut crates) = (10, None, Vec::new());
        let mut rest = arguments.iter();
        let number = |name: &str, text: Option<&String>| {
            let number = text.and_then(|text| text.parse::<u32>().ok());
            number.ok_or_else(|| format!("{name} needs a number behind it"))
        };
        while let Some(argument) = rest.next() {
            match argument.as_str() {
                "--runs" => runs = number(argument, rest.next())?,
                "--loaded" => loaded = Some(number(argument, rest.next())?),
                name if name.starts_with('-') => return Err(format!("there is no option {name}\n\n{USAGE}")),
                name => crates.push(name.to_string()),
            }
        }
        let loaded = loaded.unwrap_or(runs / 2);
        if runs == 0 || loaded > runs {
            return Err(format!(
                "--runs has to be from 1 on, and --loaded at most as many: they are {runs} and {loaded}"
            ));
        }
        Ok(Options { runs, loaded, crates })
    }
}

/// Runs the task.
pub(crate) fn run(arguments: &[String]) -> ExitCode {
    if arguments.iter().any(|argument| matches!(argument.as_str(), "--help" | "-h")) {
        println!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    match Options::read(arguments).and_then(|options| perform(&options)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::FAILURE
        }
    }
}

fn perform(options: &Options) -> Result<bool, String> {
    let packages = match options.crates.as_slice() {
        [] => Packages::All,
        names => Packages::Named(crate::changed::names(names)?),
    };
    let programs = suite::build_all(&packages)?;
    let suite = Suite::new();
    let (mut failures, mut seconds) = (Failures::default(), BTreeMap::new());
    for run in 1..=options.runs {
        // Quiet and loaded runs take turns, the quiet ones first.
        let is_loaded = run * options.loaded / options.runs > (run - 1) * options.loaded / options.runs;
        let ran = one_run(&suite, &programs, is_loaded, &mut seconds);
        let (word, took) = (if is_loaded { "loaded" } else { "quiet" }, ran.took.as_secs_f64());
        println!("==> run {run} of {} ({word}): {} after {took:.0} s", options.runs, ran.counts);
        failures.add(&ran.failures, is_loaded);
    }
    failures.lines(options).iter().for_each(|line| println!("{line}"));
    Ok(failures.counts.is_empty())
}

/// Outcome of a run.
struct Ran {
    failures: BTreeSet<String>,
    counts: String,
    took: Duration,
}

fn one_run(suite: &Suite, programs: &[Program], is_loaded: bool, seconds: &mut BTreeMap<String, f64>) -> Ran {
    let passes = |program: &Program| {
        let known = seconds.get(&program.name).filter(|_| is_loaded);
        known.map_or(1, |seconds| (SHORT_S / seconds.max(0.01)).clamp(1.0, PASSES_MAX) as usize)
    };
    let repeated: Vec<Program> =
        programs.iter().flat_map(|program| std::iter::repeat_n(program.clone(), passes(program))).collect();
    let load = is_loaded.then(Load::begin);
    let begun = Instant::now();
    let summary = suite.run_all(&repeated, seconds);
    let took = begun.elapsed();
    drop(load);
    let known =
        summary.outcomes.iter().map(|outcome| (outcome.program.clone(), outcome.cost.took.as_secs_f64()));
    if !is_loaded {
        seconds.extend(known);
    }
    let mut failures: BTreeSet<String> = summary.failures().into_iter().collect();
    if failures.is_empty() && !summary.is_fine() {
        failures.insert("a test that was skipped, and has to run".to_string());
    }
    Ran { failures, counts: summary.lines().pop().unwrap_or_default(), took }
}

/// Number of failures of each test, in quiet and in loaded runs.
#[derive(Default)]
struct Failures {
    counts: BTreeMap<String, (u32, u32)>,
}

impl Failures {
    fn add(&mut self, failures: &BTreeSet<String>, is_loaded: bool) {
        for test in failures {
            let (quiet, loaded) = self.counts.entry(test.clone()).or_default();
            *(if is_loaded { loaded } else { quiet }) += 1;
        }
    }

    fn lines(&self, options: &Options) -> Vec<String> {
        let (all_quiet, all_loaded) = (options.runs - options.loaded, options.loaded);
        if self.counts.is_empty() {
            return vec![format!("==> no test failed in {all_quiet} quiet and {all_loaded} loaded runs")];
        }
        let line = |(test, (quiet, loaded)): (&String, &(u32, u32))| {
            format!(
                "==> {test} failed in {quiet} of {all_quiet} quiet and {loaded} of {all_loaded} loaded runs"
            )
        };
        self.counts.iter().map(line).collect()
    }
}

/// Load that keeps a machine busy, until it is dropped.
struct Load {
    ended: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    pauses: Option<Child>,
    file: PathBuf,
}

impl Load {
    fn begin() -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let file = workspace::target().join("stress.load");
        let spin = {
            let ended = Arc::clone(&ended);
            move || {
                while !ended.load(Ordering::Relaxed) {
                    std::hint::spin_loop()
                }
            }
        };
        let write = {
            let (ended, file) = (Arc::clone(&ended), file.clone());
            move || {
                while !ended.load(Ordering::Relaxed) {
                    if let Err(error) = write_once(&file, &ended) {
                        println!("==> the writer to the disk has ended: {}: {error}", file.display());
                        return;
                    }
                }
            }
        };
        let mut threads: Vec<_> = (0..cores()).map(|_| thread::spawn(spin.clone())).collect();
        threads.push(thread::spawn(write));
        Load { ended, threads, pauses: pauses_beside(), file }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
        if let Some(pauses) = &mut self.pauses {
            // It ends with its input.
            drop(pauses.stdin.take());
            let _ = pauses.wait();
        }
        let _ = fs::remove_file(&self.file);
    }
}

fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// Writes a file down to the disk.
fn write_once(path: &Path, ended: &AtomicBool) -> std::io::Result<()> {
    let chunk = vec![0x5a; CHUNK_BYTES];
    let mut file = File::create(path)?;
    for _ in 0..FILE_CHUNKS {
        if ended.load(Ordering::Relaxed) {
            return Ok(());
        }
        file.write_all(&chunk)?;
        file.sync_data()?;
    }
    Ok(())
}

/// Starts this program so that it stops all else for moments; says so where that needs rights that are not
/// there.
fn pauses_beside() -> Option<Child> {
    let mut command = Command::new("chrt");
    command.args(["--fifo", "1"]).arg(std::env::current_exe().ok()?).arg(PAUSES);
    let probe = Command::new("chrt")
        .args(["--fifo", "1", "true"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    if !probe.is_ok_and(|status| status.success()) {
        println!(
            "==> note: without the rights of root, and `chrt`, nothing makes the machine stand still for moments"
        );
        return None;
    }
    command.stdin(Stdio::piped()).spawn().ok()
}

/// Uses all cores for moments, until its input ends. It is meant for a class of the scheduler above all
/// others.
pub(crate) fn pauses() -> ExitCode {
    let begun = Instant::now();
    for _ in 0..cores() {
        thread::spawn(move || {
            let mut at = Duration::ZERO;
            for (between, pause) in schedule() {
                at += between;
                thread::sleep(at.saturating_sub(begun.elapsed()));
                at += pause;
                while begun.elapsed() < at {
                    std::hint::spin_loop();
                }
            }
        });
    }
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    ExitCode::SUCCESS
}

/// Times between pauses, and their lengths: the same on each core.
fn schedule() -> impl Iterator<Item = (Duration, Duration)> {
    let within = |range: std::ops::Range<u64>, at: u64| {
        let part = at.wrapping_mul(GOLDEN) >> 32;
        Duration::from_millis(range.start + (((range.end - range.start) * part) >> 32))
    };
    (1..).map(move |at| (within(BETWEEN_MS, 2 * at), within(PAUSE_MS, 2 * at + 1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Options, String> {
        Options::read(&text.split_whitespace().map(String::from).collect::<Vec<_>>())
    }

    #[test]
    fn options_are_read_or_refused_with_a_reason() {
        let options = read("--runs 4 net").unwrap();
        assert_eq!((options.runs, options.loaded, options.crates.len()), (4, 2, 1));
        assert_eq!(read("--runs 4 --loaded 4").unwrap().loaded, 4);
        for (text, part) in [
            ("--runs", "a number"),
            ("--runs 0", "from 1 on"),
            ("--loaded 11", "at most as many"),
            ("--fast", "there is no option --fast"),
        ] {
            assert!(read(text).unwrap_err().contains(part), "{text}");
        }
    }

    #[test]
    fn who_failed_is_named_with_the_runs_it_failed_in() {
        let options = read("--runs 4").unwrap();
        let mut failures = Failures::default();
        assert_eq!(failures.lines(&options), ["==> no test failed in 2 quiet and 2 loaded runs"]);
        failures.add(&BTreeSet::from(["net a".to_string()]), true);
        failures.add(&BTreeSet::from(["net a".to_string()]), true);
        assert_eq!(failures.lines(&options), ["==> net a failed in 0 of 2 quiet and 2 of 2 loaded runs"]);
    }

    #[test]
    fn pauses_are_of_all_lengths() {
        let pauses: Vec<(Duration, Duration)> = schedule().take(200).collect();
        let all = |range: std::ops::Range<u64>, of: &dyn Fn(&(Duration, Duration)) -> Duration| {
            let mut lengths: Vec<u64> = pauses.iter().map(|pause| of(pause).as_millis() as u64).collect();
            lengths.sort_unstable();
            assert!(lengths.iter().all(|length| range.contains(length)), "{lengths:?}");
            let tenth = (range.end - range.start) / 10;
            assert!(
                lengths[0] <= range.start + tenth && lengths[199] >= range.end - tenth - 1,
                "{lengths:?}"
            );
        };
        all(BETWEEN_MS, &|pause| pause.0);
        all(PAUSE_MS, &|pause| pause.1);
    }

    #[test]
    fn a_load_ends() {
        let load = Load::begin();
        let file = load.file.clone();
        drop(load);
        assert!(!file.exists());
    }
}
