//! The process in which a lab lives. It is the first process of its own process namespace: when it ends, the
//! kernel ends all other processes of the lab, and with the last of them go the namespaces, interfaces and
//! temporary files.
//!
//! The command that starts it talks to it in lines of JSON over its standard input and output. Until it is
//! told to stay, it ends when its standard input does: so a killed `lab cast` leaves nothing behind.

use crate::baselines::{self, Job};
use crate::cast::{CastOptions, CastOutcome, UNEXPECTED};
use crate::compare::Way;
use crate::daemons::{Daemons, Places, lock};
use crate::error::LabError;
use crate::failure::{At, Failure, What};
use crate::layout::{self, Host, Layout};
use crate::measure::{Measured, Measurement, PathMade, Stage};
use crate::soak::{Ground, SoakOptions, SoakOutcome};
use crate::spec::{Network, Spec};
use crate::system::Space;
use crate::traffic::{Flow, Placed};
use crate::{datacast, datacast_nodes, label_switches, optical, traffic, world};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use polycast_api::report::ControlStep;
use polycast_net::seal::Secret;
use polycast_topology::Node;
use polycast_types::ObjectId;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::{self, BufRead, Write};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

/// Request to a supervisor.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Request {
    /// Deliver something.
    Cast(CastOptions),
    /// Measure something.
    Measure(Measurement),
    /// Deliver something small many times.
    Soak(SoakOptions),
    /// Live on when the standard input ends.
    Stay,
}

/// Message from a supervisor.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Word {
    /// The lab is there.
    Ready {
        /// Time that the set-up took, in seconds.
        setup_s: f64,
        /// Steps of setting up its devices.
        control: Vec<ControlStep>,
    },
    /// Outcome of a delivery.
    Cast(Box<CastOutcome>),
    /// Results of a measurement.
    Measured(Measured),
    /// Outcome of many deliveries.
    Soak(SoakOutcome),
    /// Error that occurred.
    Error(String),
}

/// The number of the next object that is delivered.
static DELIVERIES: AtomicU64 = AtomicU64::new(1);

/// Folders of a lab below its own.
pub(crate) const INSIDE: &str = "inside";
pub(crate) const LOGS: &str = "log";

/// Builds the lab and serves it to the end of this process. Must be called before the process has threads,
/// as the first process of a process namespace. `program` is run as manager and agent.
pub fn run(folder: &Path, spec: &Spec, program: &Path) -> ! {
    let begun = Instant::now();
    let built = separate(folder).and_then(|()| Lab::build(folder, spec, program));
    let exit = match built {
        Ok(lab) => {
            say(&Word::Ready { setup_s: begun.elapsed().as_secs_f64(), control: lab.control.clone() });
            serve(lab);
            0
        }
        Err(error) => {
            say(&Word::Error(error.to_string()));
            1
        }
    };
    std::process::exit(exit)
}

/// Takes this process into namespaces of its own.
fn separate(folder: &Path) -> Result<(), LabError> {
    let failed = |action: &str| {
        let action = action.to_string();
        move |error: nix::Error| LabError::system(action, error.desc())
    };
    if !nix::unistd::Pid::this().eq(&nix::unistd::Pid::from_raw(1)) {
        return Err(LabError::system("become a lab", "this command is only for 'polycast lab' itself"));
    }
    unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWNET).map_err(failed("make namespaces"))?;
    let none = None::<&str>;
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(none, "/", none, private, none).map_err(failed("keep mounts to the lab"))?;
    mount(Some("proc"), "/proc", Some("proc"), MsFlags::empty(), none).map_err(failed("mount /proc"))?;
    for place in [Path::new("/run/netns"), &folder.join(INSIDE)] {
        fs::create_dir_all(place).map_err(|error| LabError::path("make", place, &error))?;
        mount(Some("tmpfs"), place, Some("tmpfs"), MsFlags::empty(), none)
            .map_err(failed("mount a tmpfs"))?;
    }
    let logs = folder.join(LOGS);
    fs::create_dir_all(&logs).map_err(|error| LabError::path("make", &logs, &error))
}

fn say(word: &Word) {
    let Ok(text) = serde_json::to_string(word) else { return };
    let mut stdout = io::stdout().lock();
    // The command that started the lab may have ended, and the lab may have been told to stay.
    let _ = writeln!(stdout, "{text}").and_then(|()| stdout.flush());
}

/// Does what it is told until the standard input ends. If it is to stay, it does nothing after that, but does
/// not end. The input is read by a thread of its own, so that its end is seen in the middle of a delivery
/// too.
fn serve(lab: Lab) {
    let (sender, requests) = mpsc::channel();
    std::thread::spawn(move || {
        let mut stays = false;
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            match serde_json::from_str(&line) {
                Ok(Request::Stay) => stays = true,
                // The other end is the loop below, which lives as long as the process.
                Ok(request) => drop(sender.send(request)),
                Err(error) => say(&Word::Error(format!("'{line}' is no request: {error}"))),
            }
        }
        if !stays {
            std::process::exit(0);
        }
        // Without this the loop below would end.
        loop {
            std::thread::park();
        }
    });
    for request in requests {
        let answer = match request {
            Request::Cast(options) => lab.cast(&options).map(|outcome| Word::Cast(Box::new(outcome))),
            Request::Measure(what) => lab.measure(&what).map(Word::Measured),
            Request::Soak(options) => lab.soak(&options).map(Word::Soak),
            Request::Stay => continue,
        };
        let word = answer.unwrap_or_else(|error| Word::Error(error.to_string()));
        say(&word);
        if let Word::Cast(outcome) = &word {
            lab.forget(outcome);
        }
    }
}

/// Name under which the daemons run.
const DAEMON: &str = "polycast";
/// Size of the object that is sent to measure the time until a path is there.
const MEASURED_BYTES: usize = 100_000;

/// A lab that is up.
struct Lab {
    spec: Spec,
    layout: Layout,
    places: Places,
    daemons: Arc<Mutex<Daemons>>,
    control: Vec<ControlStep>,
}

impl Lab {
    /// Sends something small from one rack after the other to all hosts, so that every request changes
    /// devices.
    fn measure_paths(&self, requests: u32) -> Result<Measured, LabError> {
        let path = self.places.inside.join("measured");
        fs::write(&path, vec![0x5a; MEASURED_BYTES])
            .map_err(|error| LabError::path("write", &path, &error))?;
        let racks: Vec<&Host> = self.layout.hosts.iter().filter(|host| host.place == 0).collect();
        let mut made = Vec::new();
        for source in racks.into_iter().cycle().take(requests as usize) {
            let options = CastOptions {
                path: path.clone(),
                source: Some(source.name.clone()),
                receivers: None,
                failures: Vec::new(),
                way: Way::Polycast,
                joins: Vec::new(),
                flows: Vec::new(),
                sample_ms: None,
            };
            let outcome = self.cast(&options)?;
            self.forget(&outcome);
            let delivery = outcome.delivery.map_err(|why| LabError::Said(why.error))?;
            made.push(PathMade { fabric: delivery.report.fabric, steps: delivery.report.control });
        }
        Ok(Measured::Paths(made))
    }

    fn measure(&self, what: &Measurement) -> Result<Measured, LabError> {
        if let Measurement::Paths { requests } = what {
            return self.measure_paths(*requests);
        }
        let Lab { spec, layout, places, daemons, .. } = self;
        Stage { spec, layout, places, daemons }.run(what)
    }

    fn build(folder: &Path, spec: &Spec, program: &Path) -> Result<Self, LabError> {
        let layout = Layout::new(spec);
        let (inside, logs) = (folder.join(INSIDE), folder.join(LOGS));
        // Daemons have their usual name among the processes, whichever program runs them.
        let link = inside.join(DAEMON);
        symlink(program, &link).map_err(|error| LabError::path("make", &link, &error))?;
        let places = Places { program: link, inside, logs };
        let mut control = Vec::new();
        let mut timed = |step: &str, begun: Instant| {
            control.push(ControlStep { step: step.into(), micros: begun.elapsed().as_micros() as u64 });
        };
        // The command that started the lab may be killed meanwhile; then no process reads what is printed.
        let begun = Instant::now();
        world::build(spec, &layout)?;
        timed("namespaces and cables", begun);
        if spec.sealed {
            let key = places.key_file();
            Secret::fresh().write_new(&key).map_err(|error| LabError::path("write", &key, &error))?;
        }
        let mut daemons = Daemons::default();
        let begun = Instant::now();
        match spec.network {
            Network::Bridge { .. } | Network::Datacast { .. } => {}
            Network::Orca { clos, agents, standby, .. } => {
                label_switches::start_switches(spec, &places, &mut daemons)?;
                let start = |host: Node| label_switches::start_rack_agent(spec, host, &places, &mut daemons);
                let hosts = label_switches::agent_hosts(&clos, agents, standby);
                let ready: Vec<_> = hosts.map(start).collect::<Result<_, _>>()?;
                ready.iter().try_for_each(|ready| daemons.await_ready(ready))?;
                timed("switches and agents of racks", begun);
            }
            Network::Blast { .. } | Network::Shufflecast { .. } => {
                optical::start(spec, &layout, &places, &mut daemons)?;
                timed("switches and optics", begun);
            }
        }
        let begun = Instant::now();
        let mut switches = None;
        if let Some(network) = datacast::network_of(spec) {
            datacast::write_agents(&network, spec, &layout, &places)?;
            switches = datacast::start_switches(&network, spec, &places, &mut daemons)?;
        }
        let settings = places.inside.join("manager.toml");
        fs::write(&settings, manager_settings(spec, &layout, &places))
            .map_err(|error| LabError::path("write", &settings, &error))?;
        daemons.start_all(&layout, &places, &settings)?;
        switches.iter().try_for_each(|ready| daemons.await_ready(ready))?;
        if let Network::Blast { .. } | Network::Shufflecast { .. } = spec.network {
            optical::make_ready(spec, &layout, &daemons)?;
        }
        timed("manager and agents", begun);
        if datacast::network_of(spec).is_some() {
            let begun = Instant::now();
            datacast::await_links(&layout, &places)?;
            timed("links between forwarders", begun);
        }
        let daemons = Arc::new(Mutex::new(daemons));
        Ok(Lab { spec: spec.clone(), layout, places, daemons, control })
    }

    fn host(&self, name: &str) -> Result<&Host, LabError> {
        let last = self.layout.hosts.len() as u32 - 1;
        self.layout.host(name).ok_or_else(|| LabError::Host { host: name.into(), last })
    }

    fn cast(&self, options: &CastOptions) -> Result<CastOutcome, LabError> {
        let source = self.host(options.source.as_deref().unwrap_or("0"))?.clone();
        let receivers = match &options.receivers {
            None => self.layout.hosts.iter().filter(|host| **host != source).cloned().collect(),
            Some(names) => {
                names.iter().map(|name| self.host(name).cloned()).collect::<Result<Vec<_>, _>>()?
            }
        };
        self.check_failures(&options.failures)?;
        options.joins.iter().try_for_each(|join| self.host(&join.host).map(drop))?;
        let (early, later): (Vec<Failure>, Vec<Failure>) =
            options.failures.iter().cloned().partition(|failure| failure.at.is_before());
        early.iter().for_each(|failure| {
            strike(&failure.what, &self.daemons, &self.layout, (&self.spec, &self.places))
        });
        options.way.check(&self.spec)?;
        if options.way == Way::SingleTree {
            self.restart_manager(true)?;
        }
        let flows = options.flows.iter().map(|flow| self.place(flow)).collect::<Result<Vec<_>, _>>()?;
        let before = world::counters(&self.layout)?;
        let begun = Instant::now();
        self.arm(later, &source);
        let deliver = || match options.way {
            Way::Polycast | Way::SingleTree => self.send(options, &source, &receivers),
            _ => self.deliver_otherwise(options, &source, &receivers),
        };
        let carries = |interface: &str| {
            datacast::network_of(&self.spec).is_none() || datacast_nodes::is_fabric(interface)
        };
        let links = traffic::links_of(&self.layout, &source.name, carries);
        let interval = options.sample_ms.map(|ms| Duration::from_millis(ms.into()));
        let (outcome, readings) = traffic::beside(&source.name, &links, &flows, interval, deliver);
        let mut outcome = outcome?;
        outcome.readings = readings;
        outcome.wall_s = begun.elapsed().as_secs_f64();
        outcome.links = world::crossed(&self.layout, &before, &world::counters(&self.layout)?);
        for name in lock(&self.daemons).ended() {
            outcome.said.push_str(&format!("{name} has ended by itself: see its log\n"));
        }
        tracing::info!(spec = %self.spec, way = %options.way, "delivered");
        if datacast::network_of(&self.spec).is_some() {
            outcome.nodes = datacast::status(&self.layout, &self.places)?;
        }
        if options.way == Way::SingleTree {
            self.restart_manager(false)?;
        }
        Ok(outcome)
    }

    /// Finds the namespaces and the address of a flow.
    fn place(&self, flow: &Flow) -> Result<Placed, LabError> {
        let (from, to) = (self.host(&flow.from)?, self.host(&flow.to)?);
        let address = baselines::address(&self.spec, &self.layout, to);
        Ok(Placed { flow: flow.clone(), from: from.name.clone(), to: to.name.clone(), address })
    }

    /// Lets the source's agent send.
    fn send(
        &self,
        options: &CastOptions,
        source: &Host,
        receivers: &[Host],
    ) -> Result<CastOutcome, LabError> {
        let to: Vec<&str> = receivers.iter().map(|host| host.name.as_str()).collect();
        let object = DELIVERIES.fetch_add(1, Ordering::Relaxed).to_string();
        let mut command = Space::named(&source.name).command(&self.places.program.to_string_lossy());
        command.arg("send").arg(&options.path).args(["--id", &object, "--to", &to.join(",")]);
        command.args(["--json", "--socket"]);
        command.arg(self.places.socket(&source.name));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let cpu = || lock(&self.daemons).cpu(&source.name).unwrap_or_default();
        let used_before = cpu();
        let failed = |error: io::Error| LabError::system("send", error);
        let child = command.spawn().map_err(failed)?;
        let joins = options.joins.iter().map(|join| Ok((self.host(&join.host)?.name.clone(), join.at)));
        for (host, at) in joins.collect::<Result<Vec<_>, LabError>>()? {
            self.join_later(host, at, object.clone(), source);
        }
        let output = child.wait_with_output().map_err(failed)?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let exit = output.status.code().unwrap_or(UNEXPECTED);
        Ok(CastOutcome::of_send(&output.stdout, said, exit, cpu().since(used_before)))
    }

    /// Lets the source's agent take another receiver in, some time from now.
    fn join_later(&self, host: String, at: At, object: String, source: &Host) {
        let (begun, socket) = (Instant::now(), self.places.socket(&source.name));
        let mut command = Space::named(&source.name).command(&self.places.program.to_string_lossy());
        command.args(["extend", &object, "--add", &host, "--socket"]).arg(&socket);
        command.stdin(Stdio::null());
        std::thread::spawn(move || {
            if !at.wait(begun, &socket) {
                return;
            }
            match command.output() {
                Ok(output) if output.status.success() => tracing::info!(host, "joins"),
                Ok(output) => {
                    tracing::error!(host, said = %String::from_utf8_lossy(&output.stderr), "cannot join")
                }
                Err(error) => tracing::error!(host, %error, "cannot join"),
            }
        });
    }

    /// Delivers without Polycast.
    fn deliver_otherwise(
        &self,
        options: &CastOptions,
        source: &Host,
        receivers: &[Host],
    ) -> Result<CastOutcome, LabError> {
        let job = Job {
            spec: &self.spec,
            layout: &self.layout,
            folder: self.places.inside.join(options.way.to_string()),
            path: &options.path,
            source: source.clone(),
            receivers: receivers.to_vec(),
        };
        let (delivery, source_cpu) = baselines::deliver(options.way, &job)?;
        let all = delivery.report.receivers.iter().all(|receiver| receiver.verified);
        Ok(CastOutcome::new(Ok(delivery), i32::from(!all), source_cpu))
    }

    /// Another manager that plans a single tree, or the usual one again.
    fn restart_manager(&self, single_tree: bool) -> Result<(), LabError> {
        let settings = self.places.inside.join("manager.toml");
        let mut text = manager_settings(&self.spec, &self.layout, &self.places);
        if single_tree {
            // The section [datacast] is the last one.
            text.push_str("single-tree = true\n");
        }
        fs::write(&settings, text).map_err(|error| LabError::path("write", &settings, &error))?;
        lock(&self.daemons).restart_manager(&self.layout, &self.places, &settings)?;
        datacast::await_links(&self.layout, &self.places)
    }

    /// Takes what was delivered away at all hosts, so that deliveries one after the other need no more memory
    /// than one.
    fn forget(&self, outcome: &CastOutcome) {
        // What went without Polycast has no number.
        let object = outcome.delivery.as_ref().map_or(ObjectId::default(), |delivery| delivery.report.object);
        if object == ObjectId::default() {
            return;
        }
        let object = object.to_string();
        for host in &self.layout.hosts {
            let mut command = std::process::Command::new(&self.places.program);
            command.args(["rm", &object, "--socket"]).arg(self.places.socket(&host.name));
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            // Most hosts have no such object.
            let _ = command.status();
        }
    }

    fn soak(&self, options: &SoakOptions) -> Result<SoakOutcome, LabError> {
        let Lab { spec, layout, places, daemons, .. } = self;
        Ground { spec, layout, places, daemons }.soak(options)
    }

    fn check_failures(&self, failures: &[Failure]) -> Result<(), LabError> {
        for failure in failures {
            match &failure.what {
                What::Agent(name) => drop(self.host(name)?),
                What::RackAgent(name) if matches!(self.spec.network, Network::Orca { .. }) => {
                    self.host(name)?;
                }
                What::RackAgent(_) => {
                    let reason = "the lab has no agents of racks".into();
                    return Err(LabError::Failure { text: failure.to_string(), reason });
                }
                What::Rate { link: node, .. } | What::Link(node) if node.contains('-') => {
                    let ends = node.split_once('-');
                    if ends.and_then(|(one, other)| world::between(&self.layout, one, other)).is_none() {
                        let reason = format!("the lab has no link '{node}'");
                        return Err(LabError::Failure { text: failure.to_string(), reason });
                    }
                }
                What::Rate { link: host, .. } => drop(self.host(host)?),
                What::Link(node) => {
                    let named = |cable: &crate::layout::Cable| cable.a.node == *node || cable.b.node == *node;
                    if !self.layout.cables.iter().any(named) {
                        let reason = format!("the lab has no node '{node}'");
                        return Err(LabError::Failure { text: failure.to_string(), reason });
                    }
                }
                What::Silent(name) => {
                    let Network::Orca { clos, .. } = &self.spec.network else {
                        let reason = "the lab has no label switches".into();
                        return Err(LabError::Failure { text: failure.to_string(), reason });
                    };
                    if layout::find_label_switch(clos, name).is_none() {
                        let reason = format!("the lab has no label switch '{name}'");
                        return Err(LabError::Failure { text: failure.to_string(), reason });
                    }
                }
                What::Manager => {}
                What::Ocs(_) if matches!(self.spec.network, Network::Blast { .. }) => {}
                What::Ocs(_) => {
                    let reason = "the lab has no circuit switch".into();
                    return Err(LabError::Failure { text: failure.to_string(), reason });
                }
            }
        }
        Ok(())
    }

    /// Lets each failure happen at its time.
    fn arm(&self, failures: Vec<Failure>, source: &Host) {
        let (begun, socket) = (Instant::now(), self.places.socket(&source.name));
        for failure in failures {
            let (daemons, layout) = (Arc::clone(&self.daemons), self.layout.clone());
            let (spec, places) = (self.spec.clone(), self.places.clone());
            let socket = socket.clone();
            std::thread::spawn(move || {
                if failure.at.wait(begun, &socket) {
                    strike(&failure.what, &daemons, &layout, (&spec, &places));
                }
            });
        }
    }
}

/// Breaks something now.
fn strike(what: &What, daemons: &Mutex<Daemons>, layout: &Layout, (spec, places): (&Spec, &Places)) {
    let broken = match what {
        What::Agent(name) => {
            let name = layout.host(name).map_or(name.as_str(), |host| &host.name);
            lock(daemons).kill(name);
            Ok(())
        }
        What::RackAgent(name) => {
            let name = layout.host(name).map_or(name.as_str(), |host| &host.name);
            lock(daemons).kill(&format!("rack-{name}"));
            Ok(())
        }
        What::Manager => {
            lock(daemons).kill("manager");
            Ok(())
        }
        What::Silent(name) => label_switches::silence(places, name),
        What::Link(node) => world::cut(layout, spec, node),
        What::Ocs(fault) => optical::misbehave(*fault),
        What::Rate { link, rate_bps } => world::set_rate(layout, spec, link, *rate_bps),
    };
    if let Err(error) = broken {
        tracing::error!(%error, "something could not be broken");
    }
}

/// The manager's settings.
fn manager_settings(spec: &Spec, layout: &Layout, places: &Places) -> String {
    let [a, b] = crate::layout::GROUPS;
    let mut text = format!("choose = \"{}\"\n", if spec.by_time { "time" } else { "order" });
    let core = match spec.network {
        Network::Blast { core_rate, .. } => core_rate,
        _ => None,
    };
    text.extend(core.or(spec.rate).map(|rate| format!("link-rate = \"{}\"\n", rate.0)));
    text + &match spec.network {
        Network::Datacast { network, .. } => datacast::manager_settings(&network, spec, layout),
        // The manager's own groups, which are of the family of its address.
        Network::Bridge { .. } if spec.over_ipv6 => "[ip-multicast]\n".into(),
        Network::Bridge { .. } => {
            format!("[ip-multicast]\npool = \"{a}.{b}.64.0/24\"\n")
        }
        Network::Orca { clos, .. } => label_switches::manager_settings(spec, &clos, layout),
        Network::Blast { .. } | Network::Shufflecast { .. } => {
            optical::manager_settings(spec, layout, places)
        }
    }
}
