//! A manager and agents as processes of their own, on the loopback interface.

use super::{Place, Ran, begin, command, end};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long daemons may take to do what a test waits for.
const WITHIN: Duration = Duration::from_secs(30);

/// A daemon that ends with the test.
pub(crate) struct Daemon {
    child: Child,
    /// What it said when it was ready.
    pub ready: Value,
}

impl Daemon {
    /// Starts a daemon and waits until it is ready.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::begin(command(arguments))
    }

    /// The same of a command that is made already.
    pub(crate) fn begin(mut command: Command) -> Self {
        let mut child = command.arg("--json").stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Daemon { ready: serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: '{line}'")), child }
    }

    /// A manager with these arguments besides its address.
    pub(crate) fn manager(listen: &str, arguments: &[&str]) -> Self {
        Self::start(&[&["manager", "--listen", listen], arguments].concat())
    }

    /// An agent that keeps its store and its socket in this place.
    pub(crate) fn agent(place: &Place, manager: &str, name: &str) -> Self {
        Self::agent_with(place, manager, name, &[])
    }

    /// The same, with more arguments.
    pub(crate) fn agent_with(place: &Place, manager: &str, name: &str, more: &[&str]) -> Self {
        let (store, socket) = (place.path(&format!("store-{name}")), socket(place, name));
        let local = ["--interface", "lo", "--store", &store, "--socket", &socket];
        Self::start(&[&["agent", "--manager", manager, "--name", name], &local[..], more].concat())
    }

    /// Where a manager listens.
    pub(crate) fn address(&self) -> &str {
        self.ready["listening"].as_str().unwrap()
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits until it ends by itself; gives its exit status.
    pub(crate) fn ended(&mut self) -> Option<i32> {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(begun.elapsed() < WITHIN, "it goes on");
            std::thread::sleep(Duration::from_millis(20));
        }
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
    pub(crate) fn await_status(&self, agent: &str, is: impl Fn(&Value) -> bool) -> Value {
        self.await_answer(agent, &["status"], is)
    }

    /// Runs a command at an agent until it gives the right document.
    pub(crate) fn await_answer(&self, agent: &str, arguments: &[&str], is: impl Fn(&Value) -> bool) -> Value {
        let begun = Instant::now();
        loop {
            let ran = self.at(agent, arguments);
            let document: Value = serde_json::from_str(&ran.stdout).unwrap_or_default();
            if is(&document) {
                return document;
            }
            assert!(begun.elapsed() < WITHIN, "{document} {}", ran.stderr);
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// A file without contents on the disk, but not without bytes to move.
    pub(crate) fn big(&self, bytes: u64) -> String {
        let path = self.place.path("big");
        fs::File::create(&path).unwrap().set_len(bytes).unwrap();
        path
    }
}
