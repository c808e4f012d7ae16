//! Programs at hosts of a lab: servers at one end, and at the other one program for every receiver that makes
//! its copy.

use super::{Done, Job, LOOK_AGAIN, STALLED_AFTER};
use crate::error::LabError;
use crate::layout::Host;
use crate::processor_time::ProcessorTime;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;
use polycast_net::bpf::in_namespace;
use std::fs::{self, File};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Time within which a server must accept connections.
const READY_WITHIN: Duration = Duration::from_secs(20);
/// Name of a receiver's copy: names of objects may mean something to a shell.
const COPY: &str = "object";

/// Programs that end with this.
pub(super) struct Programs(pub(super) Vec<Child>);

impl Drop for Programs {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The folder in which a host's programs write, made now.
pub(super) fn folder_of(job: &Job<'_>, host: &Host) -> Result<PathBuf, LabError> {
    let folder = job.folder.join(&host.name);
    fs::create_dir_all(&folder).map_err(|error| LabError::path("make", &folder, &error))?;
    Ok(folder)
}

/// Returns the path of a receiver's copy, in its folder, which is created here.
pub(super) fn copy_of(job: &Job<'_>, host: &Host) -> Result<PathBuf, LabError> {
    Ok(folder_of(job, host)?.join(COPY))
}

/// Returns the path of the log of a host's program.
fn log_of(job: &Job<'_>, host: &Host) -> PathBuf {
    job.folder.join(format!("{}.log", host.name))
}

/// Starts a program for a host; what it says goes into the host's log.
pub(super) fn start(job: &Job<'_>, host: &Host, command: &mut Command) -> Result<Child, LabError> {
    let path = log_of(job, host);
    let log = File::options().create(true).append(true).open(&path);
    let log = log.map_err(|error| LabError::path("write", &path, &error))?;
    let both = log.try_clone().map_err(|error| LabError::path("write", &path, &error))?;
    let spawned = command.stdin(Stdio::null()).stdout(both).stderr(log).spawn();
    spawned
        .map_err(|error| LabError::system(format!("run {}", command.get_program().to_string_lossy()), error))
}

/// Waits until a server at `host` takes connections that come from `from`.
pub(super) fn await_server(
    job: &Job<'_>,
    (host, port): (&Host, u16),
    from: &Host,
    server: &mut Child,
) -> Result<(), LabError> {
    let begun = Instant::now();
    let to = SocketAddr::new(job.address(host), port);
    let failed = |why: String| {
        let said = last_line(&log_of(job, host)).map(|line| format!("; it said: {line}")).unwrap_or_default();
        LabError::system(format!("reach the server at {} port {port}", host.name), why + &said)
    };
    loop {
        let connect = || TcpStream::connect_timeout(&to, READY_WITHIN);
        if in_namespace(&job.place(from), connect).and_then(|made| made).is_ok() {
            return Ok(());
        }
        if let Ok(Some(status)) = server.try_wait() {
            return Err(failed(format!("it has ended, {status}")));
        }
        if begun.elapsed() > READY_WITHIN {
            let seconds = READY_WITHIN.as_secs();
            return Err(failed(format!("it takes no connection within {seconds} seconds")));
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}

/// Runs one program for every receiver, all at the same time, until all have ended or no receiver gets
/// anything more.
pub(super) fn copy_to_all(job: &Job<'_>, commands: Vec<Command>) -> Result<Vec<Done>, LabError> {
    let folders: Vec<PathBuf> = job.receivers.iter().map(|host| job.folder.join(&host.name)).collect();
    let begun = Instant::now();
    let mut programs = Programs(Vec::new());
    for (host, mut command) in job.receivers.iter().zip(commands) {
        programs.0.push(start(job, host, &mut command)?);
    }
    let mut ended = vec![None; job.receivers.len()];
    let (mut held, mut moved_at) = (0, begun);
    while ended.contains(&None) && moved_at.elapsed() < STALLED_AFTER {
        std::thread::sleep(LOOK_AGAIN);
        for (child, ended) in programs.0.iter_mut().zip(&mut ended).filter(|(_, ended)| ended.is_none()) {
            // It is our child: there is no error of which more could be learned.
            *ended = child.try_wait().ok().flatten().map(|status| (begun.elapsed().as_secs_f64(), status));
        }
        let now_held: u64 = folders.iter().map(|folder| blocks_in(folder)).sum();
        if now_held > held {
            (held, moved_at) = (now_held, Instant::now());
        }
    }
    let gave_up_s = begun.elapsed().as_secs_f64();
    let done = job.receivers.iter().zip(ended).map(|(host, ended)| {
        let (seconds, error) = match ended {
            Some((seconds, status)) if status.success() => (seconds, None),
            Some((seconds, status)) => {
                (seconds, Some(last_line(&log_of(job, host)).unwrap_or_else(|| status.to_string())))
            }
            None => (gave_up_s, Some(format!("it got no byte more for {} s", STALLED_AFTER.as_secs()))),
        };
        Done { seconds, error, copy: job.folder.join(&host.name).join(COPY) }
    });
    Ok(done.collect())
}

/// Blocks on the disk of all files of a folder: programs may write under a name of their own first.
fn blocks_in(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.metadata().ok()).map(|metadata| metadata.blocks()).sum()
}

/// The last line of a log that says anything.
fn last_line(path: &Path) -> Option<String> {
    let text = fs::read(path).ok()?;
    let text = String::from_utf8_lossy(&text);
    text.lines().rev().map(str::trim).find(|line| !line.is_empty()).map(ToString::to_string)
}

/// Processor time of all programs of this process that have ended, and of theirs.
pub(super) fn used_by_ended() -> ProcessorTime {
    getrusage(UsageWho::RUSAGE_CHILDREN).map_or_else(
        |_| ProcessorTime::default(),
        |usage| ProcessorTime {
            user_s: usage.user_time().num_microseconds() as f64 / 1e6,
            system_s: usage.system_time().num_microseconds() as f64 / 1e6,
        },
    )
}
