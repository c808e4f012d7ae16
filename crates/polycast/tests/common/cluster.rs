//! A manager and agents as processes of their own, on the loopback interface.

use super::{Place, Ran, begin, command, end};
use polycast_testing::{HANG, folder_in_memory, wait_for};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Interval at which a daemon is polled.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Settings that a manager has where a test does not say them: an agent that gets no processor for a while is
/// not taken for one that is gone. One whose process ends is, as its connection ends.
const PATIENT: [(&str, &str); 2] = [("silence-ms", "60000"), ("lease-ms", "600000")];
/// Time that requested objects wait, which by default follows from that, unless it is set.
const SETTLES: &str = "\n[objects]\nsettle-ms = 4000\n";

/// Words by which an agent listens where no other one has listened or will: the usual port of one that ends
/// is taken by another test's agent, perhaps one of the same name, which is then called by those that wait
/// for the first.
pub(crate) const OWN_PORT: &[&str] = &["--port", "0"];

/// A daemon that ends with the test.
pub(crate) struct Daemon {
    child: Child,
    /// Document that it printed when it was ready.
    pub ready: Value,
    _settings: Option<TempDir>,
}

/// A manager's settings, and what makes it patient.
fn patient(text: &str) -> String {
    let missing = PATIENT.iter().filter(|(name, _)| !text.contains(name));
    let lines: String = missing.map(|(name, value)| format!("{name} = {value}\n")).collect();
    let settles = if text.contains("[objects]") { "" } else { SETTLES };
    format!("{lines}{text}{settles}")
}

impl Daemon {
    /// Starts a daemon and waits until it is ready.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::begin(command(arguments))
    }

    /// The same of a command that is made already.
    pub(crate) fn begin(command: Command) -> Self {
        Self::begin_saying(command, Stdio::null())
    }

    /// The same; what it says goes there.
    pub(crate) fn begin_saying(mut command: Command, said: Stdio) -> Self {
        let mut child = command.arg("--json").stderr(said).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let ready = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: '{line}'"));
        Daemon { child, ready, _settings: None }
    }

    /// A manager with these arguments besides its address. It has the patience that tests need, unless its
    /// settings say otherwise.
    pub(crate) fn manager(listen: &str, arguments: &[&str]) -> Self {
        let at = arguments.iter().position(|word| *word == "--config");
        let given = at.map_or_else(String::new, |at| fs::read_to_string(arguments[at + 1]).unwrap());
        let folder = folder_in_memory();
        let settings = folder.path().join("manager.toml");
        fs::write(&settings, patient(&given)).unwrap();
        let is_others = |place: usize| at.is_none_or(|at| place != at && place != at + 1);
        let others =
            arguments.iter().enumerate().filter(|(place, _)| is_others(*place)).map(|(_, word)| *word);
        let own = ["manager", "--listen", listen, "--config", settings.to_str().unwrap()];
        let mut daemon = Self::start(&own.into_iter().chain(others).collect::<Vec<_>>());
        daemon._settings = Some(folder);
        daemon
    }

    /// An agent that keeps its store and its socket in this place.
    pub(crate) fn agent(place: &Place, manager: &str, name: &str) -> Self {
        Self::agent_with(place, manager, name, &[])
    }

    /// The same, with more arguments.
    pub(crate) fn agent_with(place: &Place, manager: &str, name: &str, more: &[&str]) -> Self {
        let (store, socket) = (place.path(&format!("store-{name}")), socket(place, name));
        let local = ["--interface", "lo", "--store", &store, "--socket", &socket];
        let port: &[&str] = if more.contains(&"--port") { &[] } else { OWN_PORT };
        Self::start(&[&["agent", "--manager", manager, "--name", name], &local[..], port, more].concat())
    }

    /// Returns the address that a manager listens on.
    pub(crate) fn address(&self) -> &str {
        self.ready["listening"].as_str().unwrap()
    }

    /// Returns the port at which other agents reach an agent.
    #[allow(dead_code, reason = "not every test starts an agent again")]
    pub(crate) fn control_port(&self) -> String {
        self.ready["control_address"].as_str().unwrap().rsplit(':').next().unwrap().to_string()
    }

    /// The number of its process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits until it ends by itself; gives its exit status.
    pub(crate) fn ended(&mut self) -> Option<i32> {
        wait_for("its end", || self.child.try_wait().unwrap()).code()
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        super::signal(&self.child, signal);
    }

    /// Asks it to end, and gives its exit status.
    pub(crate) fn stop(&mut self, signal: rustix::process::Signal) -> Option<i32> {
        super::signal(&self.child, signal);
        self.child.wait().unwrap().code()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn socket(place: &Place, agent: &str) -> String {
    place.path(&format!("{agent}.sock"))
}

/// Agents that know each other, and their managers.
pub(crate) struct Cluster {
    pub managers: Vec<Daemon>,
    pub agents: Vec<Daemon>,
    /// Last, so that daemons end before it goes.
    pub place: Place,
}

impl Cluster {
    /// A manager as it comes, and agents of these names.
    pub(crate) fn start(names: &[&str]) -> Self {
        Self::of(Place::new(), vec![Daemon::manager("127.0.0.1:0", &[])], names)
    }

    /// A manager with these settings.
    pub(crate) fn with(settings: &str, names: &[&str]) -> Self {
        let place = Place::new();
        let config = place.file("manager.toml", settings.as_bytes());
        Self::of(place, vec![Daemon::manager("127.0.0.1:0", &["--config", &config])], names)
    }

    /// Agents of managers that run already.
    pub(crate) fn of(place: Place, managers: Vec<Daemon>, names: &[&str]) -> Self {
        Self::of_with(place, managers, names, &[])
    }

    /// The same; each agent has these arguments besides.
    pub(crate) fn of_with(place: Place, managers: Vec<Daemon>, names: &[&str], more: &[&str]) -> Self {
        let addresses: Vec<&str> = managers.iter().map(Daemon::address).collect();
        let addresses = addresses.join(",");
        let agents = names.iter().map(|name| Daemon::agent_with(&place, &addresses, name, more)).collect();
        let cluster = Cluster { managers, agents, place };
        cluster.await_status(names[0], |s| s["peers"].as_array().is_some_and(|p| p.len() == names.len()));
        cluster
    }

    /// Runs a command at an agent, to its end.
    pub(crate) fn at(&self, agent: &str, arguments: &[&str]) -> Ran {
        end(self.begin(agent, arguments))
    }

    /// Begins a command at an agent.
    pub(crate) fn begin(&self, agent: &str, arguments: &[&str]) -> Child {
        begin(&[arguments, &["--socket", &socket(&self.place, agent), "--json"]].concat())
    }

    /// Asks an agent for its status until it is right.
    #[track_caller]
    pub(crate) fn await_status(&self, agent: &str, is: impl FnMut(&Value) -> bool) -> Value {
        self.await_answer(agent, &["status"], is)
    }

    /// Runs a command at an agent until it gives the right document.
    #[track_caller]
    pub(crate) fn await_answer(
        &self,
        agent: &str,
        arguments: &[&str],
        mut is: impl FnMut(&Value) -> bool,
    ) -> Value {
        let begun = Instant::now();
        loop {
            let ran = self.at(agent, arguments);
            let document: Value = serde_json::from_str(&ran.stdout).unwrap_or_default();
            if is(&document) {
                return document;
            }
            assert!(begun.elapsed() < HANG, "{document} {}", ran.stderr);
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    /// A file without contents on the disk, but not without bytes to move.
    pub(crate) fn big(&self, bytes: u64) -> String {
        let path = self.place.path("big");
        fs::File::create(&path).unwrap().set_len(bytes).unwrap();
        path
    }
}
