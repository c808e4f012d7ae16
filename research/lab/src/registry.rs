//! The labs that there are. Each has a folder in `/run/polycast-lab` that describes it. If a lab has ended,
//! however it did, the next command that looks takes its folder away.

use crate::cast::{CastOptions, CastOutcome};
use crate::compare::Way;
use crate::error::LabError;
use crate::measure::{Measured, Measurement};
use crate::soak::{SoakOptions, SoakOutcome};
use crate::spec::Spec;
use crate::supervisor::{INSIDE, LOGS, Request, Word};
use crate::system::require;
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use polycast_api::report::ControlStep;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Folder of the labs' notes.
const ROOT: &str = "/run/polycast-lab";
/// Time within which the kernel must end a lab's processes.
const END_WITHIN: Duration = Duration::from_secs(10);

/// A lab as it is noted.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Note {
    /// Its name.
    pub name: String,
    /// Specification of the lab.
    pub spec: String,
    /// Number of its hosts.
    pub hosts: u32,
    /// Its first process.
    pub pid: i32,
    /// Start of that process, in clock ticks of the machine: process numbers are used again.
    pub started_ticks: u64,
}

/// A lab that was just made.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Made {
    /// Its name.
    pub name: String,
    /// Specification of the lab.
    pub spec: String,
    /// Its hosts.
    pub hosts: Vec<String>,
    /// Time that the set-up took, in seconds.
    pub setup_s: f64,
    /// Steps of setting up its devices.
    pub control: Vec<ControlStep>,
}

fn check_name(name: &str) -> Result<(), LabError> {
    let good = |letter: char| letter.is_ascii_alphanumeric() || letter == '-';
    if (1..=32).contains(&name.len()) && name.chars().all(good) {
        Ok(())
    } else {
        Err(LabError::Name { name: name.into() })
    }
}

fn check_root() -> Result<(), LabError> {
    if nix::unistd::geteuid().is_root() { Ok(()) } else { Err(LabError::NotRoot) }
}

/// Says whether labs can be made here at all.
///
/// # Errors
/// Root or a program is missing.
pub fn check(spec: &Spec) -> Result<(), LabError> {
    check_root()?;
    require(&[("ip", "iproute2"), ("tc", "iproute2")])?;
    if matches!(spec.network.kind(), "blast" | "shufflecast") {
        require(&[
            ("ovs-vswitchd", "openvswitch-switch"),
            ("ovsdb-server", "openvswitch-switch"),
            ("ovs-vsctl", "openvswitch-common"),
            ("ethtool", "ethtool"),
        ])?;
    }
    Ok(())
}

/// Returns the start time of a process, in clock ticks; `None` if there is none of this number.
fn started_ticks(pid: i32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in brackets may hold anything; the 20th field after it is the start.
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    // A zombie has no namespaces and no memory left.
    if state == "Z" { None } else { fields.nth(18)?.parse().ok() }
}

impl Note {
    fn lives(&self) -> bool {
        started_ticks(self.pid) == Some(self.started_ticks)
    }

    fn folder(&self) -> PathBuf {
        Path::new(ROOT).join(&self.name)
    }
}

/// All labs that live, by name. The folders of others are taken away.
///
/// # Errors
/// The folder of labs cannot be read.
pub fn list() -> Result<Vec<Note>, LabError> {
    let entries = match fs::read_dir(ROOT) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(LabError::path("read", ROOT, &error)),
    };
    let mut notes = Vec::new();
    for entry in entries.flatten() {
        let folder = entry.path();
        let note = fs::read_to_string(folder.join("note.json")).ok();
        let note = note.and_then(|text| serde_json::from_str::<Note>(&text).ok());
        match note {
            Some(note) if note.lives() => notes.push(note),
            _ => {
                // One that is just being made has no note yet, but the process that makes it holds its lock.
                let _root = lock_root()?;
                if !is_locked(&folder) {
                    forget(&folder);
                }
            }
        }
    }
    notes.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(notes)
}

/// Takes away the folder of a lab that has ended. Its mounts went with it.
fn forget(folder: &Path) {
    // Another command may do the same at this moment.
    let _ = fs::remove_dir_all(folder);
}

/// Held while a folder is made and locked, or looked at and taken away.
fn lock_root() -> Result<File, LabError> {
    let wrong = |error: io::Error| LabError::path("use", ROOT, &error);
    fs::create_dir_all(ROOT).map_err(wrong)?;
    let root = File::open(ROOT).map_err(wrong)?;
    root.lock().map_err(wrong)?;
    Ok(root)
}

fn lock_file(folder: &Path) -> io::Result<File> {
    File::options().create(true).append(true).open(folder.join("lock"))
}

fn is_locked(folder: &Path) -> bool {
    let Ok(file) = File::open(folder.join("lock")) else { return false };
    file.try_lock().is_err()
}

/// A lab whose supervisor listens to us.
struct Running {
    note: Note,
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    /// Held until the note is written.
    _lock: File,
}

/// Makes a lab. `program` must understand `lab supervise FOLDER SPEC`, and `manager`, `agent` and `send`.
fn start(name: &str, spec: &Spec, program: &Path) -> Result<(Running, f64, Vec<ControlStep>), LabError> {
    check_name(name)?;
    check(spec)?;
    // Takes away what a lab of this name may have left.
    list()?;
    let folder = Path::new(ROOT).join(name);
    let root = lock_root()?;
    fs::create_dir(&folder).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => LabError::Exists { name: name.into() },
        _ => LabError::path("make", &folder, &error),
    })?;
    let wrong = |error: io::Error| LabError::path("use", &folder, &error);
    let lock = lock_file(&folder).map_err(wrong)?;
    lock.lock().map_err(wrong)?;
    drop(root);
    let outcome = start_in(&folder, name, spec, program, lock);
    if outcome.is_err() {
        forget(&folder);
    }
    outcome
}

fn start_in(
    folder: &Path,
    name: &str,
    spec: &Spec,
    program: &Path,
    lock: File,
) -> Result<(Running, f64, Vec<ControlStep>), LabError> {
    let wrong = |error: io::Error| LabError::path("use", folder, &error);
    for part in [INSIDE, LOGS] {
        fs::create_dir(folder.join(part)).map_err(wrong)?;
    }
    let log = File::create(folder.join(LOGS).join("lab.log")).map_err(wrong)?;
    let mut command = Command::new(program);
    command.args(["lab", "supervise"]).arg(folder).arg(spec.to_string());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log).process_group(0);
    let mut child = spawn_first(command)?;
    let pid = child.id() as i32;
    let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(LabError::system("start a lab", "it has no pipes"));
    };
    let note = Note {
        name: name.into(),
        spec: spec.to_string(),
        hosts: spec.network.hosts(),
        pid,
        started_ticks: started_ticks(pid).unwrap_or(0),
    };
    let text = serde_json::to_string(&note).map_err(|error| LabError::system("note the lab", error))?;
    fs::write(folder.join("note.json"), text).map_err(wrong)?;
    let mut running = Running { note, child, stdin, stdout: BufReader::new(stdout), _lock: lock };
    match running.hear()? {
        Word::Ready { setup_s, control } => Ok((running, setup_s, control)),
        Word::Error(said) => Err(running.end_with(LabError::Said(said))),
        Word::Cast(_) | Word::Measured(_) | Word::Soak(_) => {
            Err(running.end_with(LabError::system("start a lab", "it reported out of turn")))
        }
    }
}

/// Starts a program as the first process of a new process namespace.
fn spawn_first(mut command: Command) -> Result<Child, LabError> {
    // Only children of the thread that asks for it come into the namespace: so a thread does, and ends.
    let spawned = std::thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWPID).map_err(io::Error::from)?;
        command.spawn()
    });
    let failed = |reason: String| LabError::System { action: "start a lab".into(), reason };
    match spawned.join() {
        Ok(outcome) => outcome.map_err(|error| failed(error.to_string())),
        Err(_) => Err(failed("a thread broke down".into())),
    }
}

impl Running {
    /// The next word of the supervisor.
    fn hear(&mut self) -> Result<Word, LabError> {
        let mut line = String::new();
        let read = self.stdout.read_line(&mut line);
        let log = self.note.folder().join(LOGS).join("lab.log");
        match read {
            Ok(1..) => serde_json::from_str(&line)
                .map_err(|error| LabError::system("understand the lab", format!("{error}: {line}"))),
            _ => {
                let said = fs::read_to_string(log).unwrap_or_default();
                let last = said.lines().last().unwrap_or("it ended without a word").to_string();
                Err(LabError::system("go on with the lab", last))
            }
        }
    }

    fn tell(&mut self, request: &Request) -> Result<(), LabError> {
        let failed = |reason: String| LabError::System { action: "talk to the lab".into(), reason };
        let text = serde_json::to_string(request).map_err(|error| failed(error.to_string()))?;
        writeln!(self.stdin, "{text}").map_err(|error| failed(error.to_string()))
    }

    /// Delivers something in it.
    fn cast(&mut self, options: &CastOptions) -> Result<CastOutcome, LabError> {
        self.tell(&Request::Cast(options.clone()))?;
        match self.hear()? {
            Word::Cast(outcome) => Ok(*outcome),
            Word::Error(said) => Err(LabError::Said(said)),
            Word::Ready { .. } | Word::Measured(_) | Word::Soak(_) => {
                Err(LabError::system("go on with the lab", "it reported out of turn"))
            }
        }
    }

    /// Ends the lab and passes on why.
    fn end_with(self, error: LabError) -> LabError {
        match self.end() {
            Ok(()) => error,
            Err(other) => other,
        }
    }

    fn end(mut self) -> Result<(), LabError> {
        // The kernel ends everything in the namespace before this one is gone.
        let _ = self.child.kill();
        self.child.wait().map_err(|error| LabError::system("end the lab", error))?;
        forget(&self.note.folder());
        Ok(())
    }
}

/// Makes a lab that stays.
///
/// # Errors
/// It cannot be made; then nothing of it is left.
pub fn up(name: Option<&str>, spec: &Spec, program: &Path) -> Result<Made, LabError> {
    let (mut running, setup_s, control) = match name {
        Some(name) => start(name, spec, program)?,
        None => start_unnamed(spec, program)?,
    };
    running.tell(&Request::Stay)?;
    let hosts = (0..spec.network.hosts()).map(|number| format!("h{number}")).collect();
    Ok(Made { name: running.note.name, spec: spec.to_string(), hosts, setup_s, control })
}

/// Makes a lab of the first name that is free.
fn start_unnamed(spec: &Spec, program: &Path) -> Result<(Running, f64, Vec<ControlStep>), LabError> {
    check_root()?;
    let mut taken: BTreeSet<String> = list()?.into_iter().map(|note| note.name).collect();
    loop {
        match start(&free_name(spec.network.kind(), &taken), spec, program) {
            // Another command makes one of this name just now.
            Err(LabError::Exists { name }) => taken.insert(name),
            outcome => return outcome,
        };
    }
}

/// `bridge`, or with a number if that is taken.
fn free_name(kind: &str, taken: &BTreeSet<String>) -> String {
    let mut numbered = (2..).map(|number| format!("{kind}-{number}"));
    let first = (!taken.contains(kind)).then(|| kind.to_string());
    first.or_else(|| numbered.find(|name| !taken.contains(name))).expect("numbers do not end")
}

/// Makes a lab, delivers in it, and takes it down; gives how long it took to make, in seconds.
///
/// # Errors
/// It cannot be made, or the delivery not be tried. A receiver that fails is part of the outcome.
pub fn cast(spec: &Spec, options: &CastOptions, program: &Path) -> Result<(CastOutcome, f64), LabError> {
    let name = format!("cast-{}", std::process::id());
    let (mut running, setup_s, mut control) = start(&name, spec, program)?;
    let outcome = running.cast(options);
    running.end()?;
    let mut outcome = outcome?;
    control.append(&mut outcome.control);
    outcome.control = control;
    Ok((outcome, setup_s))
}

/// A delivery of a comparison.
#[derive(Clone, PartialEq, Debug)]
pub struct Compared {
    /// Way of delivery.
    pub way: Way,
    /// Number of earlier deliveries by that way.
    pub round: u32,
    /// Outcome of the delivery.
    pub outcome: CastOutcome,
}

/// Makes a lab, delivers the same in it by one way after the other, as often as there are rounds, and takes
/// it down; gives how long it took to make, in seconds. `heard` is told of each as it is done.
///
/// # Errors
/// The lab cannot be made, or a delivery not be tried. A receiver that fails is part of the outcome.
pub fn compare(
    spec: &Spec,
    options: &CastOptions,
    ways: &[Way],
    rounds: u32,
    program: &Path,
    heard: &mut dyn FnMut(&Compared),
) -> Result<(Vec<Compared>, f64), LabError> {
    ways.iter().try_for_each(|way| way.check(spec))?;
    let name = format!("compare-{}", std::process::id());
    let (mut running, setup_s, _) = start(&name, spec, program)?;
    let mut compared = Vec::new();
    for (round, way) in (0..rounds).flat_map(|round| ways.iter().map(move |way| (round, *way))) {
        match running.cast(&CastOptions { way, ..options.clone() }) {
            Ok(outcome) => {
                let done = Compared { way, round, outcome };
                heard(&done);
                compared.push(done);
            }
            Err(error) => return Err(running.end_with(error)),
        }
    }
    running.end()?;
    Ok((compared, setup_s))
}

/// Makes a lab, measures in it, and takes it down.
///
/// # Errors
/// It cannot be made, or something in it did not work.
pub fn measure(spec: &Spec, what: &Measurement, program: &Path) -> Result<Measured, LabError> {
    let name = format!("measure-{}", std::process::id());
    let (mut running, ..) = start(&name, spec, program)?;
    let heard = running.tell(&Request::Measure(what.clone())).and_then(|()| running.hear());
    running.end()?;
    match heard? {
        Word::Measured(measured) => Ok(measured),
        Word::Error(said) => Err(LabError::Said(said)),
        Word::Ready { .. } | Word::Cast(_) | Word::Soak(_) => {
            Err(LabError::system("go on with the lab", "it reported out of turn"))
        }
    }
}

/// Makes a lab, delivers something small in it many times, and takes it down; gives how long it took to make,
/// in seconds.
///
/// # Errors
/// It cannot be made, or its agents not be spoken to. Deliveries that fail are counted.
pub fn soak(spec: &Spec, options: &SoakOptions, program: &Path) -> Result<(SoakOutcome, f64), LabError> {
    let name = format!("soak-{}", std::process::id());
    let (mut running, setup_s, _) = start(&name, spec, program)?;
    let heard = running.tell(&Request::Soak(options.clone())).and_then(|()| running.hear());
    match heard {
        Ok(Word::Soak(outcome)) => running.end().map(|()| (outcome, setup_s)),
        Ok(Word::Error(said)) => Err(running.end_with(LabError::Said(said))),
        Ok(_) => Err(running.end_with(LabError::system("go on with the lab", "it reported out of turn"))),
        Err(error) => Err(running.end_with(error)),
    }
}

fn find(name: &str) -> Result<Note, LabError> {
    let notes = list()?;
    match notes.iter().find(|note| note.name == name) {
        Some(note) => Ok(note.clone()),
        None => {
            let labs = notes.into_iter().map(|note| note.name).collect();
            Err(LabError::Unknown { name: name.into(), labs })
        }
    }
}

/// Takes a lab down.
///
/// # Errors
/// There is none of this name, or it does not end.
pub fn down(name: &str) -> Result<(), LabError> {
    check_root()?;
    end(&find(name)?)
}

/// Takes all labs down; gives their names.
///
/// # Errors
/// One does not end.
pub fn down_all() -> Result<Vec<String>, LabError> {
    check_root()?;
    let notes = list()?;
    notes.iter().try_for_each(end)?;
    Ok(notes.into_iter().map(|note| note.name).collect())
}

fn end(note: &Note) -> Result<(), LabError> {
    if note.lives()
        && let Err(error) = kill(Pid::from_raw(note.pid), Signal::SIGKILL)
        && error != nix::Error::ESRCH
    {
        return Err(LabError::system(format!("end the lab '{}'", note.name), error.desc()));
    }
    let begun = Instant::now();
    while note.lives() {
        if begun.elapsed() > END_WITHIN {
            let reason = format!("its process {} does not end", note.pid);
            return Err(LabError::system(format!("end the lab '{}'", note.name), reason));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    forget(&note.folder());
    Ok(())
}

/// Runs a command on a host of a lab. Must be called before the process has threads.
///
/// # Errors
/// There is no such lab or host, or the command cannot be run.
pub fn exec(name: &str, host: &str, command: &[String]) -> Result<ExitStatus, LabError> {
    check_root()?;
    let note = find(name)?;
    let spec: Spec = note.spec.parse()?;
    let layout = crate::layout::Layout::new(&spec);
    let spaces = layout.spaces();
    let wanted = layout.host(host).map_or(host, |host| &host.name);
    // The lab's own namespace has the switches.
    if wanted != "network" && !spaces.iter().any(|space| space == wanted) {
        return Err(LabError::Host { host: host.into(), last: spec.network.hosts() - 1 });
    }
    let failed = |error: nix::Error| LabError::system("enter the lab", error.desc());
    let open = |path: String| File::open(&path).map_err(|error| LabError::path("open", path, &error));
    let proc = |kind: &str| open(format!("/proc/{}/ns/{kind}", note.pid));
    let (mounts, processes, network) = (proc("mnt")?, proc("pid")?, proc("net")?);
    let here = std::env::current_dir().ok();
    setns(mounts, CloneFlags::CLONE_NEWNS).map_err(failed)?;
    let network = if wanted == "network" { network } else { open(format!("/run/netns/{wanted}"))? };
    setns(network, CloneFlags::CLONE_NEWNET).map_err(failed)?;
    setns(processes, CloneFlags::CLONE_NEWPID).map_err(failed)?;
    let Some((program, arguments)) = command.split_first() else {
        return Err(LabError::system("run nothing", "name a command after --"));
    };
    let mut child = Command::new(program);
    child.args(arguments).env("POLYCAST_SOCKET", note.folder().join(INSIDE).join(format!("{wanted}.sock")));
    if let Some(here) = here {
        child.current_dir(here);
    }
    child.status().map_err(|error| LabError::system(format!("run '{program}'"), error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        for name in ["a", "bridge-2", "X9"] {
            assert_eq!(check_name(name), Ok(()));
        }
        for name in ["", "../x", "a b", &"x".repeat(33)] {
            assert!(check_name(name).is_err(), "{name}");
        }
    }

    #[test]
    fn a_lab_without_a_name_gets_the_first_that_is_free() {
        let free = |taken: &[&str]| free_name("bridge", &taken.iter().map(|name| (*name).into()).collect());
        assert_eq!(free(&["blast", "bridge-2"]), "bridge");
        assert_eq!(free(&["bridge"]), "bridge-2");
        assert_eq!(free(&["bridge", "bridge-2", "bridge-4"]), "bridge-3");
    }

    #[test]
    fn a_process_is_known_by_its_start() {
        let mine = std::process::id() as i32;
        let ticks = started_ticks(mine).unwrap();
        let mut note =
            Note { name: "x".into(), spec: "bridge:2".into(), hosts: 2, pid: mine, started_ticks: ticks };
        assert!(note.lives());
        note.started_ticks += 1;
        assert!(!note.lives());
        assert_eq!(started_ticks(i32::MAX), None);
    }
}
