//! Runs seeds of the swarm on all cores: `swarm --seeds A..B` or `swarm --minutes N`.
//!
//! Prints each failure with the command that replays it, a table of how often what was drawn, and a line with
//! what was run. One seed gives one verdict, whatever the number of threads.

use polycast_swarm::{self as swarm, Coverage, Verdict};
use std::ops::Range;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

const USAGE: &str = "\
Runs the swarm: simulated transfers with faults drawn from seeds

Usage: swarm [--attacker] [--seeds A..B | --minutes N] [--threads T] [--verbose]

  --attacker  Sealed transfers in a network with an attacker, and a table of what it has done";

struct Options {
    seeds: Range<u64>,
    limit: Option<Duration>,
    threads: usize,
    verbose: bool,
    attacker: bool,
}

fn options() -> Result<Options, String> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut options = Options { seeds: 0..1_000, limit: None, threads, verbose: false, attacker: false };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        match argument.as_str() {
            "--seeds" => options.seeds = range(&value()?)?,
            "--minutes" => {
                let text = value()?;
                let minutes: f64 = text
                    .parse()
                    .ok()
                    .filter(|m| *m > 0.0 && *m < 1e6)
                    .ok_or_else(|| format!("'{text}' is not a number of minutes: write 10 or 0.5"))?;
                options.limit = Some(Duration::from_secs_f64(minutes * 60.0));
                // Seeds that most likely were not run before: they begin with the time of day.
                let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
                options.seeds = now.map_or(0, |now| now.as_secs() << 20)..u64::MAX;
            }
            "--threads" => {
                let text = value()?;
                options.threads = text
                    .parse()
                    .ok()
                    .filter(|t| (1..=1_024).contains(t))
                    .ok_or_else(|| format!("'{text}' is not a number of threads: write 1 to 1024"))?;
            }
            "--attacker" => options.attacker = true,
            "--verbose" => options.verbose = true,
            _ => return Err(format!("'{argument}' is unknown")),
        }
    }
    Ok(options)
}

fn range(text: &str) -> Result<Range<u64>, String> {
    let wrong = || format!("'{text}' is not a range of seeds: write 0..1000");
    let (from, to) = text.split_once("..").ok_or_else(wrong)?;
    let seeds = from.parse().map_err(|_| wrong())?..to.parse().map_err(|_| wrong())?;
    if seeds.is_empty() { Err(wrong()) } else { Ok(seeds) }
}

fn main() -> ExitCode {
    let options = match options() {
        Ok(options) => options,
        Err(error) => {
            eprintln!("error: {error}\n\n{USAGE}");
            return ExitCode::FAILURE;
        }
    };
    let begun = Instant::now();
    let next = AtomicU64::new(options.seeds.start);
    let (sender, receiver) = mpsc::channel::<Verdict>();
    let (mut runs, mut failures, mut events, mut hashes) = (0u64, 0u64, 0u64, 0u64);
    let mut coverage = Coverage::default();
    std::thread::scope(|scope| {
        for _ in 0..options.threads {
            let (sender, next, options) = (sender.clone(), &next, &options);
            scope.spawn(move || {
                while options.limit.is_none_or(|limit| begun.elapsed() < limit) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= options.seeds.end || sender.send(run(seed, options.attacker)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        for verdict in receiver {
            runs += 1;
            events += verdict.events;
            coverage.merge(&verdict.coverage);
            // A sum does not depend on the order in which threads finish.
            hashes = hashes.wrapping_add(verdict.trace_hash ^ verdict.seed);
            if let Some(failure) = &verdict.failure {
                failures += 1;
                println!("seed {} failed ({}): {failure}", verdict.seed, verdict.case);
                let command = if options.attacker { swarm::command_attacked } else { swarm::command };
                println!("  replay: {}", command(verdict.seed));
            } else if options.verbose {
                println!("seed {} ({}): {} events", verdict.seed, verdict.case, verdict.events);
            }
        }
    });
    let table = if options.attacker { coverage.attacks() } else { coverage.table() };
    for (name, count) in table {
        println!("{count:>12} {name}");
    }
    let seconds = begun.elapsed().as_secs_f64();
    println!("{runs} seeds, {failures} failures, {events} events in {seconds:.1} s; traces {hashes:016x}");
    if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs a seed; an assertion of the machines that does not hold is a failure of the seed.
fn run(seed: u64, attacker: bool) -> Verdict {
    let run = if attacker { swarm::run_attacked } else { swarm::run };
    std::panic::catch_unwind(|| run(seed, None)).unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<String>().cloned();
        let said = said.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_string()));
        Verdict {
            seed,
            case: "an assertion".to_string(),
            failure: Some(said.unwrap_or_default()),
            trace_hash: 0,
            events: 0,
            coverage: Coverage::default(),
        }
    })
}
