//! Commands that end in time, or are ended with all that they have started; and what they cost.

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use std::fs;
use std::io;
use std::process::{Child, Command, ExitStatus};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Interval at which a command is polled.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// Number of times that processes are checked while all are being ended.
const ROUNDS_MAX: u32 = 50;
/// Fields of `/proc/PID/stat` behind the name: user and system time of a process, and of its children that it
/// has waited for.
const TIMES: std::ops::Range<usize> = 11..15;
/// Ticks a second of these times: the kernel's interface, and not its clock.
const TICKS: u64 = 100;

/// Way in which a command ended.
#[derive(Debug)]
pub(crate) enum Ended {
    /// By itself.
    Exited(ExitStatus),
    /// It took too long and was killed. What ran below it, one line each.
    Killed(Vec<String>),
}

impl Ended {
    /// Returns true if the command succeeded.
    pub(crate) fn is_success(&self) -> bool {
        matches!(self, Ended::Exited(status) if status.success())
    }
}

/// Time of the clock and of processors.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Cost {
    pub(crate) took: Duration,
    /// Time of the command and of all below it that was waited for.
    pub(crate) processor: Duration,
}

impl std::ops::AddAssign for Cost {
    fn add_assign(&mut self, other: Cost) {
        self.took += other.took;
        self.processor += other.processor;
    }
}

/// Runs a command for at most `limit`.
///
/// # Errors
/// It cannot be started.
pub(crate) fn run(command: &mut Command, limit: Duration) -> io::Result<Ended> {
    Ok(Running::start(command)?.end(limit)?.0)
}

/// A command that has begun.
pub(crate) struct Running {
    pub(crate) child: Child,
    begun: Instant,
}

impl Running {
    /// Starts a command.
    ///
    /// # Errors
    /// It cannot be started.
    pub(crate) fn start(command: &mut Command) -> io::Result<Self> {
        let begun = Instant::now();
        Ok(Running { child: command.spawn()?, begun })
    }

    /// Waits for the end, at most until `limit` after the start; gives what the command cost.
    ///
    /// # Errors
    /// The system does not say how it ended.
    pub(crate) fn end(mut self, limit: Duration) -> io::Result<(Ended, Cost)> {
        let pid = self.child.id();
        let ended = loop {
            if is_over(pid)? {
                break None;
            }
            if self.begun.elapsed() >= limit {
                break Some(Ended::Killed(kill(&mut self.child)));
            }
            sleep(LOOK_AGAIN);
        };
        // What has ended and was not waited for yet still says what it has used.
        let cost = Cost { took: self.begun.elapsed(), processor: processor_time(pid) };
        let ended = ended.map_or_else(|| self.child.wait().map(Ended::Exited), Ok)?;
        Ok((ended, cost))
    }
}

/// Returns true if a child has ended. It stays to be waited for.
fn is_over(pid: u32) -> io::Result<bool> {
    let pid = Pid::from_raw(pid.cast_signed()).ok_or(io::ErrorKind::NotFound)?;
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    match waitid(WaitId::Pid(pid), options) {
        Ok(status) => Ok(status.is_some()),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Returns the processor time of a process and of those that it has waited for.
fn processor_time(pid: u32) -> Duration {
    let fields = status(pid).unwrap_or_default();
    let ticks = fields.get(TIMES).unwrap_or_default().iter().filter_map(|field| field.parse::<u64>().ok());
    Duration::from_millis(ticks.sum::<u64>() * 1_000 / TICKS)
}

/// Returns the person's factor: all limits are multiplied by `POLYCAST_PATIENCE`, for machines that are slow
/// or busy.
pub(crate) fn patience() -> f64 {
    let said = std::env::var("POLYCAST_PATIENCE").ok().and_then(|text| text.parse::<f64>().ok());
    said.filter(|factor| (0.001..=1_000.0).contains(factor)).unwrap_or(1.0)
}

/// Ends a child and all that it has started; gives what was running.
fn kill(child: &mut Child) -> Vec<String> {
    // All are halted before any is ended: what is halted starts nothing, and what has lost its parent is not
    // found.
    let mut halted = Vec::new();
    for _ in 0..ROUNDS_MAX {
        let mut fresh = below(child.id());
        fresh.retain(|pid| !halted.contains(pid));
        if fresh.is_empty() {
            break;
        }
        fresh.iter().for_each(|pid| send(*pid, Signal::STOP));
        halted.extend(fresh);
    }
    let seen = halted.iter().filter_map(|pid| command_line(*pid)).collect();
    halted.iter().for_each(|pid| send(*pid, Signal::KILL));
    let _ = child.wait();
    for _ in 0..ROUNDS_MAX {
        if halted.iter().all(|pid| is_dead(*pid)) {
            break;
        }
        sleep(LOOK_AGAIN);
    }
    seen
}

fn send(pid: u32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid.cast_signed()) {
        // It may have ended by itself.
        let _ = kill_process(pid, signal);
    }
}

/// A process and those that it has started, directly or not; children behind their parents.
fn below(root: u32) -> Vec<u32> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|item| item.file_name().to_str()?.parse::<u32>().ok());
    let parents: Vec<(u32, u32)> = pids.filter_map(|pid| Some((pid, parent(pid)?))).collect();
    let mut found = vec![root];
    let mut at = 0;
    while at < found.len() {
        let above = found[at];
        found.extend(parents.iter().filter(|(_, parent)| *parent == above).map(|(pid, _)| *pid));
        at += 1;
    }
    found
}

/// The fields of a process behind its name, which may have any character in it.
fn status(pid: u32) -> Option<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = text.rsplit_once(')')?;
    Some(fields.split_whitespace().map(String::from).collect())
}

fn parent(pid: u32) -> Option<u32> {
    status(pid)?.get(1)?.parse().ok()
}

/// Gone, or only waited for.
fn is_dead(pid: u32) -> bool {
    status(pid).is_none_or(|fields| fields.first().is_none_or(|state| state == "Z"))
}

fn command_line(pid: u32) -> Option<String> {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let line = String::from_utf8_lossy(&bytes).replace('\0', " ");
    let line: String = line.trim().chars().take(120).collect();
    (!line.is_empty()).then(|| format!("{pid} {line}"))
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
    fn commands_that_end_are_left_alone() {
        let limit = Duration::from_secs(60);
        assert!(run(&mut shell("true"), limit).unwrap().is_success());
        assert!(!run(&mut shell("exit 3"), limit).unwrap().is_success());
        assert!(run(&mut Command::new("/no/such/program"), limit).is_err());
    }

    /// A child of a child counts, where it was waited for.
    #[test]
    fn what_a_command_costs_is_counted() {
        let busy = "sh -c 'i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done'; true";
        let (ended, cost) = Running::start(&mut shell(busy)).unwrap().end(Duration::from_secs(600)).unwrap();
        assert!(ended.is_success() && cost.processor > Duration::ZERO, "{cost:?}");
        let (_, idle) =
            Running::start(&mut shell("sleep 0.2")).unwrap().end(Duration::from_secs(600)).unwrap();
        assert!(
            idle.took >= Duration::from_millis(200) && idle.processor < cost.processor,
            "{idle:?} {cost:?}"
        );
    }

    #[test]
    fn what_hangs_is_ended_with_all_below_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pids");
        // A child of a child that would outlive both.
        let text = format!("sh -c 'echo $$ >> {0}; sleep 1000; true' & echo $$ >> {0}; wait", file.display());
        let ended = run(&mut shell(&text), Duration::from_secs(2)).unwrap();
        let Ended::Killed(running) = ended else { panic!("{ended:?}") };
        assert!(running.iter().any(|line| line.contains("sleep 1000")), "{running:?}");
        let pids = fs::read_to_string(file).unwrap();
        assert_eq!(pids.lines().count(), 2, "both had begun");
        assert!(pids.lines().all(|pid| is_dead(pid.parse().unwrap())), "{pids}");
        for line in running {
            let pid = line.split(' ').next().unwrap().parse().unwrap();
            assert!(is_dead(pid), "{line} runs on");
        }
    }
}
