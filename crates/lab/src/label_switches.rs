//! The devices of a lab with labels: every switch a namespace with a program in the kernel, and agents of racks on hosts
//! (Orca sections 3.4 and 3.5). One process loads all programs and takes changes from the manager.
//!
//! A leaf has also a Linux bridge to the packet core, for all that has no label: connections between hosts, and to the
//! manager. Labelled packets never reach it.

use crate::error::LabError;
use crate::label_links::Links;
use crate::layout::{self, CONTROL_ADDRESS, GROUPS, LEAF_BRIDGE, LEAF_TO_CORE, Layout};
use crate::spec::{Network, Spec};
use crate::system::Space;
use polycast_agent::rack::{
    Controller, ControllerOptions, LeafController, LeafOptions, LeafSwitch, Losses, RackAgent, RackOptions,
    incarnation,
};
use polycast_net::bpf::orca::{KernelSwitch, Layer, Packets, SwitchSettings};
use polycast_net::bpf::{BpfError, in_namespace};
use polycast_planning::labels::{LabelFormat, LabelOptions, LabelPlanner, TreePath};
use polycast_protocol::rack::{FeedConfig, LeafConfig};
use polycast_topology::{Clos, Graph as _, Kind, Node};
use polycast_types::Rate;
use polycast_wire::label::Fault;
use polycast_wire::switches::{Change, FRAME_LEN_MAX, Word};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Where the device takes changes.
pub(crate) const CHANGES: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(CONTROL_ADDRESS), 7_475);
/// Where it is told what to break.
const FAULTS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(CONTROL_ADDRESS), 7_477);
/// The line that asks how many agents were lost.
const LOSSES: &str = "losses";
/// The longest such line.
const FAULT_LEN_MAX: u64 = 64;
/// UDP port of labelled packets.
const UDP_PORT: u16 = 7_474;
/// The paper's filter (section 6.1).
const FILTER_BITS: u32 = 69;
/// Sessions that a spine has entries for, and that an agent has labels for.
const SESSIONS_MAX: u32 = 65_536;
/// Sessions that the kernel's part of an agent knows.
const SESSIONS_ACTIVE_MAX: u32 = 4_096;
/// Time between heartbeats of a leaf controller to the manager.
const LEAF_PERIOD: polycast_types::Duration = polycast_types::Duration::from_millis(50);
/// How often new faults are looked for.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// A manager that takes no words for this long is hung up on.
const WRITES_WITHIN: Duration = Duration::from_secs(1);

/// The central controller, in the manager.
const CENTRAL: SocketAddrV4 = SocketAddrV4::new(layout::MANAGER_ADDRESS, CONTROL_PORT);
/// UDP port of controllers.
const CONTROL_PORT: u16 = 7_476;
/// Heartbeats of an agent within T.
const HEARTBEATS: u64 = 3;

/// The controller of a leaf.
fn leaf_controller(rack: u32) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::new(10, 77, rack as u8, 250), CONTROL_PORT)
}

/// The address of a host.
fn host_address(rack: u32, place: u32) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, rack as u8, place as u8 + 1)
}

/// Gives the leafs their bridges.
pub(crate) fn bridges(clos: &Clos) -> Result<(), LabError> {
    for rack in 0..clos.leafs() {
        let name = layout::label_switch(clos, clos.leaf(rack));
        let mut lines = vec![format!("link add {LEAF_BRIDGE} type bridge mcast_snooping 0 stp_state 0")];
        let hosts = (0..clos.hosts_per_leaf()).map(layout::label_port);
        lines.extend(
            hosts
                .chain([LEAF_TO_CORE.to_string()])
                .map(|port| format!("link set {port} master {LEAF_BRIDGE}")),
        );
        // What is sent to a group has a label, or goes nowhere.
        lines.push(format!("link set {LEAF_TO_CORE} type bridge_slave mcast_flood off"));
        lines.push(format!("link set {LEAF_BRIDGE} addrgenmode none up"));
        lines.push(format!("addr add {}/16 dev {LEAF_BRIDGE}", leaf_controller(rack).ip()));
        Space::named(&name).batch("ip", &lines)?;
    }
    Ok(())
}

/// The manager's settings.
pub(crate) fn manager_settings(
    spec: &Spec,
    (clos, agents, trees, feedback): (&Clos, u32, u32, bool),
    layout: &Layout,
) -> String {
    let [a, b] = GROUPS;
    let leafs: Vec<String> = (0..clos.leafs()).map(|rack| format!("\"{}\"", leaf_controller(rack))).collect();
    let hosts: Vec<String> = layout.hosts.iter().map(|host| format!("\"{}\"", host.name)).collect();
    // The link of an agent that is a receiver too carries every packet once for it and once for the rack, in turn with the
    // other agents. The rest is for repairs.
    let share = |rate: Rate| rate.0 / 100 * 95 * u64::from(agents) / u64::from(agents + 1);
    let rate = spec.rate.map(|rate| format!("rate = \"{}\"\n", share(rate))).unwrap_or_default();
    format!(
        "fabrics = [\"orca\", \"tcp-chain\"]\n[orca]\nswitches = \"{CHANGES}\"\n\
         controller = \"{CENTRAL}\"\nleaf-controllers = [{}]\npods = {}\nleafs = {}\nspines = {}\n\
         cores = {}\nservers = {}\nhosts = [{}]\nfilter-bits = {FILTER_BITS}\nentries-max = {SESSIONS_MAX}\ntrees = {trees}\n{rate}\
         rack-feedback = {feedback}\n\
         pool = \"{a}.{b}.64.0/24\"\nport = {UDP_PORT}\n",
        leafs.join(", "),
        clos.pods(),
        clos.leafs_per_pod(),
        clos.spines_per_pod(),
        clos.cores_per_spine(),
        clos.hosts_per_leaf(),
        hosts.join(", "),
    )
}

/// Settings of the kernel's switch for a node.
#[must_use]
pub fn settings(clos: &Clos, format: &LabelFormat, packets: Packets, node: Node) -> SwitchSettings {
    let (layer, down_ports) = match clos.kind(node).0 {
        Kind::Leaf => (Layer::Leaf { up_bits: format.leaf_up_bits }, clos.hosts_per_leaf()),
        Kind::Spine => {
            let (up_at, up_bits) = (format.spine_up_at(), format.spine_up_bits);
            let (common_at, filter_at) = (format.common_at(), format.filter_at());
            (Layer::Spine { up_at, up_bits, common_at, filter_at }, clos.leafs_per_pod())
        }
        Kind::Core | Kind::Host => (Layer::Core { down_at: format.core_at() }, clos.pods()),
    };
    let up_ports = clos.port_count(node) - down_ports;
    let entries_max = if matches!(layer, Layer::Spine { .. }) { SESSIONS_MAX } else { 0 };
    SwitchSettings { packets, layer, down_ports, up_ports, entries_max }
}

/// Loads the switch of a node, without ports. A spine knows its buckets of the filter.
///
/// # Errors
/// The kernel refuses it.
pub fn load(planner: &LabelPlanner, packets: Packets, node: Node) -> Result<KernelSwitch, BpfError> {
    let clos = planner.clos();
    let mut switch = KernelSwitch::load(settings(clos, planner.format(), packets, node))?;
    if let (Kind::Spine, index) = clos.kind(node) {
        let (pod, plane) = (index / clos.spines_per_pod(), index % clos.spines_per_pod());
        for core in 0..clos.cores_per_spine().max(1) {
            let path = TreePath { plane, core };
            let buckets: Vec<u32> =
                (0..clos.leafs_per_pod()).map(|leaf| planner.filter().bucket(pod, path, leaf)).collect();
            switch.set_buckets(core, &buckets)?;
        }
    }
    Ok(switch)
}

/// Everything in the kernel.
struct Devices {
    clos: Clos,
    switches: BTreeMap<Node, Arc<Mutex<KernelSwitch>>>,
    /// Ports that spines leave out, by spine and session.
    blocked: BTreeMap<(Node, u32), u128>,
    /// What has been named in the log.
    named: BTreeSet<(Node, Fault)>,
    /// Whether links work, of those that once did not.
    links: BTreeMap<(Node, Node), bool>,
    manager: Option<TcpStream>,
}

/// Runs the devices of a lab until the process ends; says `ready` when changes are taken.
///
/// # Errors
/// The kernel refuses a program, or the address is taken.
pub fn run(spec: &Spec, ready: impl FnOnce(SocketAddr)) -> Result<(), LabError> {
    let Network::Orca { clos, agents, standby, timeout_us, probe_ms, .. } = spec.network else {
        return Err(no_labels(spec));
    };
    let failed = |action: &'static str| move |error: &dyn std::fmt::Display| LabError::system(action, error);
    let planner = LabelPlanner::with_options(clos, LabelOptions::new(FILTER_BITS))
        .map_err(|error| failed("lay out labels")(&error))?;
    let devices = Devices::load(&planner)?;
    let timeout = Duration::from_micros(timeout_us.into());
    let mut losses = Vec::new();
    for rack in 0..clos.leafs() {
        let switch = devices.switches.get(&clos.leaf(rack)).map(Arc::clone);
        let switch = switch.ok_or_else(|| LabError::system("set up leafs", "a leaf is missing"))?;
        losses.push(control_leaf(&clos, rack, (agents, standby), timeout, switch)?);
    }
    let listener = TcpListener::bind(CHANGES).map_err(|error| failed("take changes")(&error))?;
    let devices = Arc::new(Mutex::new(devices));
    let looked_at = Arc::clone(&devices);
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(LOOK_AGAIN);
            lock(&looked_at).name_faults();
        }
    });
    let probe_period = polycast_types::Duration::from_millis(probe_ms.into());
    let links = Links::open(&clos, UDP_PORT, (probe_ms > 0).then_some(probe_period))?;
    let seen = Arc::clone(&devices);
    std::thread::spawn(move || {
        if let Err(error) = links.run(|ends, works| lock(&seen).link(ends, works)) {
            tracing::error!(%error, "links that break are not noticed any more");
        }
    });
    let faults = TcpListener::bind(FAULTS).map_err(|error| failed("take faults")(&error))?;
    let silenced = Arc::clone(&devices);
    std::thread::spawn(move || {
        for stream in faults.incoming().map_while(Result::ok) {
            if let Err(error) = answer(stream, &silenced, &losses) {
                tracing::warn!(%error, "a fault was not understood");
            }
        }
    });
    ready(CHANGES);
    // One manager at a time: a new one takes the place of the old one when that has gone.
    for stream in listener.incoming() {
        if let Err(error) = stream.and_then(|stream| serve(stream, &devices)) {
            tracing::warn!(%error, "the connection to the manager has ended");
        }
    }
    Ok(())
}

fn no_labels(spec: &Spec) -> LabError {
    let reason = "only a lab such as orca:4 has label switches";
    LabError::Spec { text: spec.to_string(), reason: reason.into() }
}

/// Runs the controller of a leaf in a thread.
fn control_leaf(
    clos: &Clos,
    rack: u32,
    (active, standby): (u32, u32),
    timeout: Duration,
    switch: Arc<Mutex<KernelSwitch>>,
) -> Result<Arc<Mutex<Losses>>, LabError> {
    let options = LeafOptions {
        config: LeafConfig {
            rack,
            ports: clos.hosts_per_leaf(),
            incarnation: incarnation(),
            active: active as usize,
            standby: standby as usize,
            timeout: timeout.into(),
            period: LEAF_PERIOD,
            labels_max: SESSIONS_MAX as usize,
            feed: FeedConfig::default(),
        },
        listen: leaf_controller(rack),
        central: CENTRAL,
        servers: (0..clos.hosts_per_leaf()).map(|place| host_address(rack, place)).collect(),
    };
    let mut controller = in_space(clos, clos.leaf(rack), || LeafController::open(options))?;
    let losses = controller.losses();
    std::thread::spawn(move || {
        let ended = controller.run(&AtomicBool::new(false), &mut OwnSwitch { rack, switch });
        tracing::error!(rack, ?ended, "the controller of a leaf has ended");
    });
    Ok(losses)
}

/// The switch of a leaf's controller.
struct OwnSwitch {
    rack: u32,
    switch: Arc<Mutex<KernelSwitch>>,
}

impl LeafSwitch for OwnSwitch {
    fn set_agents(&mut self, active: &[u32], rack: u128) {
        if let Err(error) = lock(&self.switch).set_agents(active, rack) {
            tracing::error!(rack = self.rack, %error, "the leaf does not know its agents");
        }
    }

    fn since_relabelled(&mut self, port: u32) -> Option<polycast_types::Duration> {
        // A switch that does not tell has not seen anything.
        let ago = lock(&self.switch).since_relabelled(port).ok().flatten()?;
        Some(polycast_types::Duration(u64::try_from(ago.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// Runs the agent of a rack at a host until the process ends; to be called in the host's namespace.
///
/// # Errors
/// The kernel refuses its program, or an address is taken.
pub fn run_agent(spec: &Spec, host: Node, ready: impl FnOnce(SocketAddrV4)) -> Result<(), LabError> {
    let Network::Orca { clos, timeout_us, .. } = spec.network else { return Err(no_labels(spec)) };
    let failed = |error: &dyn std::fmt::Display| LabError::system("run an agent of a rack", error);
    let planner =
        LabelPlanner::with_options(clos, LabelOptions::new(FILTER_BITS)).map_err(|error| failed(&error))?;
    let format = planner.format();
    let options = RackOptions {
        packets: Packets { udp_port: UDP_PORT, label_len: format.bytes() },
        sessions_max: SESSIONS_MAX as usize,
        active_max: SESSIONS_ACTIVE_MAX,
    };
    let (mut agent, mut slow) = RackAgent::attach(options, "eth0").map_err(|error| failed(&error))?;
    agent.set_active(true).map_err(|error| failed(&error))?;
    std::thread::spawn(move || {
        let ended = slow.run(&AtomicBool::new(false));
        tracing::error!(?ended, "packets of new sessions are not relabelled any more");
    });
    let (rack, port) = (host / clos.hosts_per_leaf(), host % clos.hosts_per_leaf());
    let options = ControllerOptions {
        rack,
        port,
        listen: SocketAddrV4::new(host_address(rack, port), CONTROL_PORT),
        leaf: leaf_controller(rack),
        period: polycast_types::Duration::from_nanos(u64::from(timeout_us) * 1_000 / HEARTBEATS),
        labels_max: SESSIONS_MAX as usize,
    };
    let mut controller = Controller::open(options, agent).map_err(|error| failed(&error))?;
    ready(options.listen);
    controller.run(&AtomicBool::new(false)).map_err(|error| failed(&error))
}

/// The hosts of a lab that run agents of their racks.
pub(crate) fn agent_hosts(clos: &Clos, agents: u32, standby: u32) -> impl Iterator<Item = Node> {
    let per_leaf = clos.hosts_per_leaf();
    (0..clos.hosts()).filter(move |host| host % per_leaf < agents + standby)
}

fn lock<T>(devices: &Mutex<T>) -> MutexGuard<'_, T> {
    devices.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Devices {
    fn load(planner: &LabelPlanner) -> Result<Self, LabError> {
        let clos = *planner.clos();
        let packets = Packets { udp_port: UDP_PORT, label_len: planner.format().bytes() };
        let mut devices = Devices {
            clos,
            switches: BTreeMap::new(),
            blocked: BTreeMap::new(),
            named: BTreeSet::new(),
            links: BTreeMap::new(),
            manager: None,
        };
        for node in clos.hosts()..clos.node_count() {
            let switch = in_space(&clos, node, || {
                let mut switch = load(planner, packets, node)?;
                for port in 0..clos.port_count(node) {
                    switch.attach(port, &layout::label_port(port))?;
                }
                Ok::<_, BpfError>(switch)
            })?;
            devices.switches.insert(node, Arc::new(Mutex::new(switch)));
        }
        Ok(devices)
    }

    /// Does what a manager asks, or says why not.
    fn change(&mut self, change: Change) -> Result<(), String> {
        match change {
            Change::SetEntry { spine, session, leaf } => self.block(spine, session, leaf, true),
            Change::ClearEntry { spine, session, leaf } => self.block(spine, session, leaf, false),
        }
    }

    fn block(&mut self, spine: Node, session: u32, leaf: Node, blocked: bool) -> Result<(), String> {
        let is_spine = spine < self.clos.node_count() && self.clos.kind(spine).0 == Kind::Spine;
        let port = is_spine.then(|| self.clos.port_to(spine, leaf)).flatten();
        let port = port.filter(|port| *port < self.clos.leafs_per_pod());
        let port = port.ok_or_else(|| format!("node {spine} is no spine above the leaf {leaf}"))?;
        let ports = self.blocked.entry((spine, session)).or_default();
        *ports = if blocked { *ports | 1 << port } else { *ports & !(1 << port) };
        let ports = *ports;
        if ports == 0 {
            self.blocked.remove(&(spine, session));
        }
        let switch = self.switches.get(&spine).ok_or("the spine is gone")?;
        lock(switch).set_blocked(session, ports).map_err(|error| error.to_string())
    }

    /// Notes that a link has broken or works again, and tells the manager.
    fn link(&mut self, ends: (Node, Node), works: bool) {
        tracing::info!(?ends, works, "a link");
        self.links.insert(ends, works);
        let mut word = Vec::new();
        Word::Link { ends, works }.emit(&mut word);
        self.say(&word);
    }

    /// A new manager is told of all links that are not as they were at first.
    fn greet(&mut self, manager: TcpStream) {
        self.manager = Some(manager);
        let mut words = Vec::new();
        for (&ends, &works) in &self.links {
            Word::Link { ends, works }.emit(&mut words);
        }
        self.say(&words);
    }

    /// Tells the manager, if there is one; one that does not read is hung up on.
    fn say(&mut self, words: &[u8]) {
        if let Some(manager) = &mut self.manager
            && let Err(error) = manager.write_all(words)
        {
            tracing::warn!(%error, "the manager cannot be told");
            let _ = manager.shutdown(std::net::Shutdown::Both);
            self.manager = None;
        }
    }

    /// Names every kind of fault of every device once.
    fn name_faults(&mut self) {
        let clos = self.clos;
        let mut dropped: Vec<(Node, Fault, u64)> = Vec::new();
        for (node, switch) in &self.switches {
            let Ok(counts) = lock(switch).counts() else { continue };
            dropped.extend(Fault::ALL.into_iter().map(|fault| (*node, fault, counts.fault(fault))));
        }
        for (node, fault, count) in dropped.into_iter().filter(|(_, _, count)| *count > 0) {
            if self.named.insert((node, fault)) {
                tracing::warn!(device = %layout::label_switch(&clos, node), count, "dropped {fault}");
            }
        }
    }
}

/// Answers a line with a line: breaks the switch that it names, or counts the agents that leafs have lost.
fn answer(mut stream: TcpStream, devices: &Mutex<Devices>, losses: &[Arc<Mutex<Losses>>]) -> io::Result<()> {
    stream.set_read_timeout(Some(WRITES_WITHIN))?;
    let mut name = String::new();
    BufReader::new(stream.try_clone()?).take(FAULT_LEN_MAX).read_line(&mut name)?;
    if name.trim() == LOSSES {
        let all = losses.iter().map(|losses| *lock(losses));
        let all = all.fold(Losses::default(), |sum, of_leaf| Losses {
            lost: sum.lost + of_leaf.lost,
            returned: sum.returned + of_leaf.returned,
        });
        return writeln!(stream, "{} {}", all.lost, all.returned);
    }
    let devices = lock(devices);
    let node = layout::find_label_switch(&devices.clos, name.trim());
    let stopped = match node.and_then(|node| devices.switches.get(&node)) {
        Some(switch) => lock(switch).stop().map_err(|error| error.to_string()),
        None => Err(format!("there is no switch '{}'", name.trim())),
    };
    tracing::info!(switch = name.trim(), ?stopped, "silenced");
    writeln!(stream, "{}", stopped.err().unwrap_or_else(|| "ok".into()))
}

/// Has a switch forward nothing any more, while all its links stay up.
pub(crate) fn silence(name: &str) -> Result<(), LabError> {
    let failed = |error: &dyn std::fmt::Display| LabError::system(format!("silence {name}"), error);
    match ask(name).map_err(|error| failed(&error))?.trim() {
        "ok" => Ok(()),
        other => Err(failed(&other)),
    }
}

/// How often leafs have lost an agent so far, and how often one was only late.
pub(crate) fn losses() -> Result<Losses, LabError> {
    let failed = |error: &dyn std::fmt::Display| LabError::system("count lost agents", error);
    let answer = ask(LOSSES).map_err(|error| failed(&error))?;
    let counts = answer.trim().split_once(' ');
    let counts = counts.and_then(|(lost, returned)| Some((lost.parse().ok()?, returned.parse().ok()?)));
    let (lost, returned) = counts.ok_or_else(|| failed(&format!("the switches say '{}'", answer.trim())))?;
    Ok(Losses { lost, returned })
}

/// What the switches answer to a line.
fn ask(line: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(FAULTS)?;
    stream.set_read_timeout(Some(WRITES_WITHIN))?;
    writeln!(stream, "{line}")?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer)?;
    Ok(answer)
}

/// Runs something in the namespace of a switch or host.
fn in_space<T: Send, E: std::fmt::Display + Send>(
    clos: &Clos,
    node: Node,
    work: impl FnOnce() -> Result<T, E> + Send,
) -> Result<T, LabError> {
    let name = layout::label_switch(clos, node);
    let failed = |error: &dyn std::fmt::Display| LabError::system(format!("set up {name}"), error);
    let done = in_namespace(&Path::new("/run/netns").join(&name), work).map_err(|error| failed(&error))?;
    done.map_err(|error| failed(&error))
}

/// Takes changes until the connection ends.
fn serve(mut stream: TcpStream, devices: &Mutex<Devices>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(WRITES_WITHIN))?;
    lock(devices).greet(stream.try_clone()?);
    let mut inbox = Vec::new();
    let mut piece = [0; 16 * FRAME_LEN_MAX];
    loop {
        let len = stream.read(&mut piece)?;
        if len == 0 {
            return Ok(());
        }
        inbox.extend_from_slice(&piece[..len]);
        let mut answers = Vec::new();
        let mut used = 0;
        let wrong =
            |error: polycast_wire::WireError| io::Error::new(io::ErrorKind::InvalidData, error.to_string());
        while let Some(len) = Word::frame_len(&inbox[used..]).map_err(wrong)? {
            let Some(frame) = inbox.get(used..used + len) else { break };
            let Word::Change { number, change } = Word::parse(frame).map_err(wrong)? else {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "a manager only asks for changes"));
            };
            match lock(devices).change(change) {
                Ok(()) => Word::Done { number }.emit(&mut answers),
                Err(reason) => Word::Failed { number, reason: &reason }.emit(&mut answers),
            }
            used += len;
        }
        inbox.drain(..used);
        lock(devices).say(&answers);
    }
}
