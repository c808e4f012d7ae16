//! The manager and the agents of a lab: real processes, each in the namespace of its host.

use crate::error::LabError;
use crate::layout::{Host, Layout, MANAGER_PORT};
use crate::processor_time::ProcessorTime;
use crate::system::{Space, run};
use polycast_api::client::AgentClient;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A daemon that does nothing for this long hangs. One that uses the processor gets on, if slowly: the
/// kernel's check of what switches run takes half a minute where many others want the processor, as two labs
/// of a loaded run of the tests have shown.
const READY_WITHIN: Duration = Duration::from_secs(30);
/// Time within which a daemon must be ready, whatever it does.
const READY_MAX: Duration = Duration::from_secs(300);
/// Interval between checks of whether a daemon that is not ready makes progress.
const GETS_ON: Duration = Duration::from_secs(1);
/// Interval between checks of whether all agents have joined.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// The folders of a lab.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    /// The program that runs as manager and agent.
    pub(crate) program: PathBuf,
    /// In memory, and seen by the lab alone.
    pub(crate) inside: PathBuf,
    /// Folder of the daemons' logs.
    pub(crate) logs: PathBuf,
}

impl Places {
    /// The socket of a host's agent.
    pub(crate) fn socket(&self, host: &str) -> PathBuf {
        self.inside.join(format!("{host}.sock"))
    }

    /// The key of the lab's cluster, where it has one.
    pub(crate) fn key_file(&self) -> PathBuf {
        self.inside.join("cluster.key")
    }

    /// The same where it is there, as an argument.
    pub(crate) fn key_if_any(&self) -> Option<String> {
        let key = self.key_file();
        key.exists().then(|| key.to_string_lossy().into_owned())
    }

    /// Settings of a host's agent, if it has any beside those on its command line.
    pub(crate) fn agent_settings(&self, host: &str) -> PathBuf {
        self.inside.join(format!("{host}.agent.toml"))
    }
}

/// Difference between the nice values of hosts and devices.
const PREFERENCE: i32 = 10;

/// Real-time priority of devices that get the processor before hosts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rank {
    /// Devices that forward packets.
    Switch = 1,
    /// Controllers, which set the ways of packets: they have little to do, and all switches wait for them.
    Control = 2,
}

/// Ticks per second in the kernel's times of processes, whatever its own clock.
const TICKS_PER_SECOND: f64 = 100.0;

/// A process that runs as long as the lab.
struct Daemon {
    child: Child,
    /// Kept open: a daemon must be able to print.
    _stdout: Option<ChildStdout>,
}

/// All processes of a lab, by name.
#[derive(Default)]
pub(crate) struct Daemons {
    running: BTreeMap<String, Daemon>,
}

/// Gives a process the processor before hosts' agents. Switches, the circuit switch and the manager have
/// processors of their own in a data center; here all share a few, and a group's agents all begin at the
/// moment when devices are told.
fn prefer(child: &Child) {
    let process = Some(rustix::process::Pid::from_child(child));
    let preferred = rustix::process::getpriority_process(None).map(|nice| (nice - PREFERENCE).max(-20));
    // Without it times of devices are those of a busy machine.
    if let Err(error) = preferred.and_then(|nice| rustix::process::setpriority_process(process, nice)) {
        tracing::info!(%error, "a device has no priority over hosts");
    }
}

impl Daemons {
    /// Starts a program that says in a line of JSON when it is ready.
    pub(crate) fn start(
        &mut self,
        name: &str,
        space: &Space,
        places: &Places,
        arguments: &[&str],
    ) -> Result<Ready, LabError> {
        let program = places.program.to_string_lossy();
        let log = log_file(places, name)?;
        let mut command = space.command(&program);
        command.args(arguments).arg("--json").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        // Whatever the caller's surroundings say, a lab's daemons have their own settings.
        command.env_remove("POLYCAST_SOCKET");
        let failed = |error: std::io::Error| LabError::system(format!("start {name}"), error);
        let mut child = command.spawn().map_err(failed)?;
        let stdout = child.stdout.take();
        self.running.insert(name.to_string(), Daemon { child, _stdout: None });
        let (sender, line) = mpsc::channel();
        std::thread::spawn(move || {
            let Some(stdout) = stdout else { return };
            let (mut reader, mut text) = (BufReader::new(stdout), String::new());
            // An end without a line is told apart by the empty text.
            let _ = reader.read_line(&mut text);
            let _ = sender.send((text, reader.into_inner()));
        });
        Ok(Ready { name: name.to_string(), line, log: places.logs.join(format!("{name}.log")) })
    }

    /// Waits until a daemon is ready.
    pub(crate) fn await_ready(&mut self, ready: &Ready) -> Result<(), LabError> {
        let (text, stdout) = self.first_line(ready).ok_or_else(|| {
            let why = format!("it said nothing; see {}", ready.log.display());
            LabError::system(format!("start {}", ready.name), why)
        })?;
        let document: Value = serde_json::from_str(&text).unwrap_or_default();
        if let Some(why) = document["error"].as_str() {
            return Err(LabError::system(format!("start {}", ready.name), why));
        }
        if !document.is_object() {
            let said = fs::read_to_string(&ready.log).unwrap_or_default();
            let why = said.lines().last().unwrap_or("it ended without a word").to_string();
            return Err(LabError::system(format!("start {}", ready.name), why));
        }
        if let Some(daemon) = self.running.get_mut(&ready.name) {
            daemon._stdout = Some(stdout);
        }
        Ok(())
    }

    /// Returns the first line that a daemon prints, as long as it makes progress.
    fn first_line(&self, ready: &Ready) -> Option<(String, ChildStdout)> {
        let used = || self.cpu(&ready.name).map(|time| time.user_s + time.system_s);
        let begun = Instant::now();
        let (mut idle_since, mut before) = (begun, used());
        loop {
            match ready.line.recv_timeout(GETS_ON) {
                Ok(said) => return Some(said),
                Err(mpsc::RecvTimeoutError::Disconnected) => return None,
                Err(mpsc::RecvTimeoutError::Timeout) => {}
            }
            let now = used();
            if now != before {
                (idle_since, before) = (Instant::now(), now);
            }
            if idle_since.elapsed() >= READY_WITHIN || begun.elapsed() >= READY_MAX {
                return None;
            }
        }
    }

    /// Starts a program that says nothing when it is ready.
    pub(crate) fn start_silent(
        &mut self,
        name: &str,
        mut command: std::process::Command,
        places: &Places,
    ) -> Result<(), LabError> {
        let log = log_file(places, name)?;
        let spawned = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn();
        let child = spawned.map_err(|error| LabError::system(format!("start {name}"), error))?;
        prefer(&child);
        self.running.insert(name.to_string(), Daemon { child, _stdout: None });
        Ok(())
    }

    /// Starts a device that says in a line of JSON when it is ready, in the lab's own namespace, and waits
    /// for it.
    pub(crate) fn start_device(
        &mut self,
        name: &str,
        places: &Places,
        arguments: &[&str],
    ) -> Result<(), LabError> {
        let ready = self.start(name, &Space::Network, places, arguments)?;
        self.await_ready(&ready)
    }

    /// Starts the manager.
    fn start_manager(&mut self, layout: &Layout, places: &Places, settings: &Path) -> Result<(), LabError> {
        let address = SocketAddr::new(layout.manager.address, MANAGER_PORT).to_string();
        let settings = settings.to_string_lossy();
        let space = Space::named(&layout.manager.name);
        let key = places.key_if_any();
        let mut arguments = vec!["manager", "--listen", &address, "--config", &settings];
        match &key {
            Some(key) => arguments.extend(["--key-file", key]),
            None => arguments.push("--insecure"),
        }
        let ready = self.start("manager", &space, places, &arguments)?;
        self.await_ready(&ready)?;
        self.put_first("manager", Rank::Control);
        Ok(())
    }

    /// Starts the manager anew, with other settings; agents come back to it.
    pub(crate) fn restart_manager(
        &mut self,
        layout: &Layout,
        places: &Places,
        settings: &Path,
    ) -> Result<(), LabError> {
        self.kill("manager");
        self.start_manager(layout, places, settings)?;
        self.await_joined(layout, places)
    }

    /// Starts the manager, and then all agents at the same time.
    pub(crate) fn start_all(
        &mut self,
        layout: &Layout,
        places: &Places,
        settings: &Path,
    ) -> Result<(), LabError> {
        let address = SocketAddr::new(layout.manager.address, MANAGER_PORT).to_string();
        self.start_manager(layout, places, settings)?;
        let key = places.key_if_any();
        let start = |host: &Host| {
            let (store, socket) = (places.inside.join("stores").join(&host.name), places.socket(&host.name));
            let (store, socket) =
                (store.to_string_lossy().into_owned(), socket.to_string_lossy().into_owned());
            let settings = places.agent_settings(&host.name);
            let mut arguments = vec![
                "agent",
                "--manager",
                &address,
                "--name",
                &host.name,
                "--interface",
                "eth0",
                "--store",
                &store,
                "--socket",
                &socket,
            ];
            match &key {
                Some(key) => arguments.extend(["--key-file", key]),
                None => arguments.push("--insecure"),
            }
            let settings = settings.exists().then(|| settings.to_string_lossy().into_owned());
            if let Some(settings) = &settings {
                arguments.extend(["--config", settings]);
            }
            self.start(&host.name, &Space::named(&host.name), places, &arguments)
        };
        let ready: Vec<Ready> = layout.hosts.iter().map(start).collect::<Result<_, _>>()?;
        ready.iter().try_for_each(|ready| self.await_ready(ready))?;
        self.await_joined(layout, places)
    }

    /// Waits until the first host's agent knows all others.
    fn await_joined(&mut self, layout: &Layout, places: &Places) -> Result<(), LabError> {
        let Some(first) = layout.hosts.first() else { return Ok(()) };
        let failed = |reason: String| LabError::system("bring all agents together", reason);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| failed(error.to_string()))?;
        runtime.block_on(async {
            let client =
                AgentClient::connect(&places.socket(&first.name)).await.map_err(|e| failed(e.to_string()))?;
            let begun = Instant::now();
            loop {
                let status = client.status().await.map_err(|error| failed(error.to_string()))?;
                if status.peers.len() >= layout.hosts.len() {
                    return Ok(());
                }
                if begun.elapsed() > READY_WITHIN {
                    let known = status.peers.len();
                    let reason =
                        format!("{known} of {} have joined: {}", layout.hosts.len(), status.manager_error);
                    return Err(failed(reason));
                }
                tokio::time::sleep(LOOK_AGAIN).await;
            }
        })
    }

    /// The process of a daemon that has not ended.
    pub(crate) fn pid(&self, name: &str) -> Option<rustix::process::Pid> {
        self.running.get(name).map(|daemon| rustix::process::Pid::from_child(&daemon.child))
    }

    /// Processor time that a process has used so far.
    pub(crate) fn cpu(&self, name: &str) -> Option<ProcessorTime> {
        cpu(self.running.get(name)?.child.id())
    }

    /// Memory of a process that is in use now, in bytes.
    pub(crate) fn resident_bytes(&self, name: &str) -> Option<u64> {
        let pid = self.running.get(name)?.child.id();
        let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        Some(1_024 * line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?)
    }

    /// A device gets the processor whenever it has work, before all hosts and before devices of a lower rank.
    /// By niceness alone switches that are told something at the same time would take turns with each other's
    /// less urgent threads.
    pub(crate) fn put_first(&self, name: &str, rank: Rank) {
        let Some(daemon) = self.running.get(name) else { return };
        let mut command = Command::new("chrt");
        command.args(["--all-tasks", "--rr", "--pid", &(rank as i32).to_string()]);
        // Without it times of devices are those of a busy machine.
        if let Err(error) = run(command.arg(daemon.child.id().to_string()), None) {
            tracing::info!(%error, name, "no priority over hosts");
            prefer(&daemon.child);
        }
    }

    /// Kills a process at once; gives whether there was one.
    pub(crate) fn kill(&mut self, name: &str) -> bool {
        let Some(mut daemon) = self.running.remove(name) else { return false };
        // It may have ended by itself.
        let _ = daemon.child.kill();
        let _ = daemon.child.wait();
        true
    }

    /// The names of the daemons that ended by themselves.
    pub(crate) fn ended(&mut self) -> Vec<String> {
        let mut ended = Vec::new();
        for (name, daemon) in &mut self.running {
            if matches!(daemon.child.try_wait(), Ok(Some(_))) {
                ended.push(name.clone());
            }
        }
        ended
    }
}

/// Processor time of a process so far.
pub(crate) fn cpu(pid: u32) -> Option<ProcessorTime> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in brackets may hold anything; the 12th and 13th fields after it are the times.
    let mut fields = text.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut seconds = || Some(fields.next()?.parse::<u64>().ok()? as f64 / TICKS_PER_SECOND);
    Some(ProcessorTime { user_s: seconds()?, system_s: seconds()? })
}

/// First line that a daemon prints, still to come.
pub(crate) struct Ready {
    name: String,
    line: mpsc::Receiver<(String, ChildStdout)>,
    log: PathBuf,
}

fn log_file(places: &Places, name: &str) -> Result<File, LabError> {
    let path = places.logs.join(format!("{name}.log"));
    File::create(&path).map_err(|error| LabError::path("write", &path, &error))
}

pub(crate) fn lock(daemons: &Mutex<Daemons>) -> MutexGuard<'_, Daemons> {
    // A thread that broke down while it killed something leaves the table whole.
    daemons.lock().unwrap_or_else(PoisonError::into_inner)
}
