//! The switches of a process: programs in the kernel, and what the manager and leaf controllers tell them.

use super::links::Links;
use super::orders::{self, SwitchStatus};
use super::space::in_space;
use super::{LabelSwitchConfig, LeafSettings};
use crate::callers::{Caller, Callers, CallersMax};
use crate::rack::{Held, LeafController, LeafOptions, LeafSwitch, Losses, incarnation};
use polycast_net::bpf::BpfError;
use polycast_net::bpf::orca::{KernelSwitch, Layer, Packets, PodFields, SwitchSettings};
use polycast_net::words::WordsKey;
use polycast_planning::labels::pod_labels::PodLabelFormat;
use polycast_planning::labels::{LabelFormat, LabelPlanner, TreePath};
use polycast_protocol::rack::{FeedConfig, LeafConfig};
use polycast_topology::{Clos, Graph as _, Kind, Node};
use polycast_wire::label::{Fault, Header};
use polycast_wire::switches::{Change, FRAME_LEN_MAX, Network, Word};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time between heartbeats of a leaf controller to the manager.
const LEAF_PERIOD: polycast_types::Duration = polycast_types::Duration::from_millis(50);
/// Interval between checks for new faults.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// A manager that takes no words for this long is hung up on.
const WRITES_WITHIN: Duration = Duration::from_secs(1);
/// Connections of managers, and of others that reach the port: each takes a thread.
const MANAGERS_MAX: CallersMax = CallersMax { of_one: 4, all: 32 };
/// Their ends are spoken of this often at most.
const SAY_AGAIN: Duration = Duration::from_secs(1);
/// Time after which a connection is accepted again where none could be.
const PAUSE: Duration = Duration::from_secs(1);

/// Switches that cannot be set up, in one sentence.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("cannot {action}: {reason}")]
pub struct LabelSwitchError {
    action: String,
    reason: String,
}

impl LabelSwitchError {
    pub(super) fn new(action: impl Into<String>, reason: impl Display) -> Self {
        LabelSwitchError { action: action.into(), reason: reason.to_string() }
    }
}

/// Returns the number of ports of a switch that lead down.
pub(super) fn down_ports(clos: &Clos, node: Node) -> u32 {
    match clos.kind(node).0 {
        Kind::Leaf => clos.hosts_per_leaf(),
        Kind::Spine => clos.leafs_per_pod(),
        Kind::Core | Kind::Host => clos.pods(),
    }
}

/// Settings of the kernel's switch for a node, with room for so many entries.
///
/// # Panics
/// If the format is of another network.
#[must_use]
pub fn settings(
    clos: &Clos,
    format: &LabelFormat,
    packets: Packets,
    node: Node,
    entries: u32,
) -> SwitchSettings {
    let pods = PodLabelFormat::new(clos, format.bytes()).expect("the network has labels");
    let (kind, index) = clos.kind(node);
    let layer = match kind {
        Kind::Leaf => Layer::Leaf { up_bits: format.leaf_up_bits },
        Kind::Spine => {
            let (up_at, up_bits) = (format.spine_up_at(), format.spine_up_bits);
            let (common_at, filter_at) = (format.common_at(), format.filter_at());
            let pods = PodFields {
                pod: index / clos.spines_per_pod(),
                core_at: pods.cores_down_at(),
                asks: pods.asks_at(),
                slots_at: pods.slot_at(0),
                slots: pods.slots(),
                leafs_at: pods.leafs_at(),
            };
            Layer::Spine { up_at, up_bits, common_at, filter_at, pods }
        }
        Kind::Core | Kind::Host => {
            Layer::Core { down_at: format.core_at(), pods_down_at: pods.cores_down_at() }
        }
    };
    let down_ports = down_ports(clos, node);
    let up_ports = clos.port_count(node) - down_ports;
    SwitchSettings { packets, layer, down_ports, up_ports, entries_max: entries }
}

/// Loads the switch of a node, without ports. A spine knows its buckets of the filter.
///
/// # Errors
/// The kernel refuses it.
pub fn load(
    planner: &LabelPlanner,
    packets: Packets,
    node: Node,
    entries: u32,
) -> Result<KernelSwitch, BpfError> {
    let clos = planner.clos();
    let mut switch = KernelSwitch::load(settings(clos, planner.format(), packets, node, entries))?;
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

/// State of a switch beside its program.
struct Device {
    name: String,
    kernel: Arc<Mutex<KernelSwitch>>,
    /// View of a leaf's agents.
    rack: Option<RackView>,
}

/// View of a leaf's agents that its controller gives.
struct RackView {
    /// Counts of the agents that it has lost.
    losses: Arc<Mutex<Losses>>,
    /// Counts of the labels that they keep.
    held: Arc<Held>,
}

/// Everything in the kernel.
pub(super) struct Devices {
    clos: Clos,
    filter_bits: u32,
    /// Bytes of every label.
    label_len: u32,
    switches: BTreeMap<Node, Device>,
    /// Ports that spines leave out, by spine and session.
    blocked: BTreeMap<(Node, u32), u128>,
    /// Doors, by leaf and session.
    doors: BTreeSet<(Node, u32)>,
    /// Faults that have been named in the log.
    named: BTreeSet<(Node, Fault)>,
    /// Links that once did not work, and whether they work now.
    links: BTreeMap<(Node, Node), bool>,
    /// The connections over which changes are taken, and links told.
    managers: BTreeMap<u64, TcpStream>,
    /// Time at which the log last reported the end of a connection, and the number of ends since.
    ended: (Option<Instant>, u64),
}

/// The switches of a process.
pub struct LabelSwitches {
    devices: Arc<Mutex<Devices>>,
    listener: TcpListener,
}

pub(super) fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    // A thread that panicked while it held the lock has changed one entry at most.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LabelSwitches {
    /// Loads the programs and attaches them to their interfaces, and begins to control leafs, with words that
    /// are sealed with this, and to watch links.
    ///
    /// # Errors
    /// The settings cannot be, the kernel refuses a program, or an address is taken.
    pub fn start(config: &LabelSwitchConfig, key: &WordsKey) -> Result<Self, LabelSwitchError> {
        let planner = config.planner().map_err(|error| LabelSwitchError::new("read the settings", error))?;
        let devices = Devices::load(config, &planner, key)?;
        let failed = |what: &str, error: io::Error| LabelSwitchError::new(format!("listen at {what}"), error);
        let listener =
            TcpListener::bind(config.listen).map_err(|error| failed(&config.listen.to_string(), error))?;
        let devices = Arc::new(Mutex::new(devices));
        if let Some(path) = &config.socket {
            orders::answer(path, &devices)
                .map_err(|error| LabelSwitchError::new("listen at the socket", error))?;
        }
        let looked_at = Arc::clone(&devices);
        std::thread::spawn(move || {
            loop {
                std::thread::sleep(LOOK_AGAIN);
                lock(&looked_at).name_faults();
            }
        });
        let period = polycast_types::Duration::from_millis(config.probe_ms.into());
        let clos = planner.clos();
        let watched: Vec<(Node, Option<PathBuf>, Vec<String>)> = config
            .switches
            .iter()
            .filter_map(|switch| Some((switch.node(clos)?, switch.namespace.clone(), switch.ports.clone())))
            .collect();
        let links = Links::open(clos, &watched, config.port, (config.probe_ms > 0).then_some(period))?;
        let seen = Arc::clone(&devices);
        std::thread::spawn(move || {
            if let Err(error) = links.run(|ends, works| lock(&seen).link(ends, works)) {
                tracing::error!(%error, "links that break are not noticed any more");
            }
        });
        Ok(LabelSwitches { devices, listener })
    }

    /// Returns the address at which changes are taken.
    #[must_use]
    pub fn listening(&self) -> Option<SocketAddr> {
        self.listener.local_addr().ok()
    }

    /// Takes changes until the process ends. Several may be connected at a time: the manager that leads does
    /// not wait for one that has lost its power, nor for a host that says nothing.
    pub fn run(self) {
        let callers = Callers::new(MANAGERS_MAX);
        loop {
            let taken = self.listener.accept().and_then(|(stream, from)| {
                let caller = callers.enter(from.ip(), &stream)?;
                Ok((stream, caller))
            });
            match taken {
                Ok((stream, caller)) => {
                    let devices = Arc::clone(&self.devices);
                    std::thread::spawn(move || serve(stream, &caller, &devices));
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot take a connection");
                    // Out of descriptors, most likely: some will be free again.
                    std::thread::sleep(PAUSE);
                }
            }
        }
    }
}

/// Runs the controller of a leaf in a thread.
fn control_leaf(
    rack: u32,
    settings: &LeafSettings,
    (central, labels_max): (SocketAddrV4, u32),
    namespace: Option<&Path>,
    (switch, key): (Arc<Mutex<KernelSwitch>>, &WordsKey),
) -> Result<RackView, String> {
    let options = LeafOptions {
        config: LeafConfig {
            rack,
            ports: settings.servers.len() as u32,
            incarnation: incarnation(),
            active: settings.active as usize,
            standby: settings.standby as usize,
            timeout: polycast_types::Duration::from_nanos(u64::from(settings.timeout_us) * 1_000),
            period: LEAF_PERIOD,
            labels_max: labels_max as usize,
            feed: FeedConfig::default(),
        },
        listen: settings.listen,
        central,
        servers: settings.servers.clone(),
        key: key.clone(),
    };
    let mut controller = in_space(namespace, || LeafController::open(options))?;
    let view = RackView { losses: controller.losses(), held: controller.held() };
    std::thread::spawn(move || {
        let ended = controller.run(&AtomicBool::new(false), &mut OwnSwitch { rack, switch });
        tracing::error!(rack, ?ended, "the controller of a leaf has ended");
    });
    Ok(view)
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

impl Devices {
    fn load(
        config: &LabelSwitchConfig,
        planner: &LabelPlanner,
        key: &WordsKey,
    ) -> Result<Self, LabelSwitchError> {
        let clos = *planner.clos();
        let packets = Packets { udp_port: config.port, label_len: planner.format().bytes() };
        let mut switches = BTreeMap::new();
        for of_switch in &config.switches {
            let (name, namespace) = (of_switch.name(), of_switch.namespace.as_deref());
            let failed = |reason: String| LabelSwitchError::new(format!("set up {name}"), reason);
            let node =
                of_switch.node(&clos).ok_or_else(|| failed("the network has no such switch".into()))?;
            let kernel = in_space(namespace, || {
                let mut switch = load(planner, packets, node, config.entries_max)?;
                for (port, interface) in (0..).zip(&of_switch.ports) {
                    switch.attach(port, interface)?;
                }
                Ok::<_, BpfError>(switch)
            });
            let kernel = Arc::new(Mutex::new(kernel.map_err(failed)?));
            let rack = match (&of_switch.leaf_controller, config.controller) {
                (Some(leaf), Some(central)) => {
                    let rack = (of_switch.number, (central, config.entries_max));
                    let switch = Arc::clone(&kernel);
                    Some(control_leaf(rack.0, leaf, rack.1, namespace, (switch, key)).map_err(failed)?)
                }
                _ => None,
            };
            switches.insert(node, Device { name: name.clone(), kernel, rack });
        }
        Ok(Devices::of(clos, config.filter_bits, packets.label_len, switches))
    }

    fn of(clos: Clos, filter_bits: u32, label_len: u32, switches: BTreeMap<Node, Device>) -> Self {
        let (blocked, doors, named, links, managers, ended) = Default::default();
        Devices { clos, filter_bits, label_len, switches, blocked, doors, named, links, managers, ended }
    }

    /// Does what a manager asks, or says why not.
    fn change(&mut self, change: Change<'_>) -> Result<(), String> {
        match change {
            Change::SetEntry { spine, session, leaf } => self.block(spine, session, leaf, true),
            Change::ClearEntry { spine, session, leaf } => self.block(spine, session, leaf, false),
            Change::SetDoor { leaf, session, hosts, kind, label } => {
                if !label.is_empty() && label.len() != self.label_len as usize {
                    let (has, needs) = (label.len(), self.label_len);
                    return Err(format!(
                        "a label of {has} bytes is not one of this network, which has {needs}"
                    ));
                }
                let switch = self.leaf(leaf)?;
                let set = lock(&switch.kernel).set_door(hosts, Header { kind, session, label });
                set.map_err(|error| error.to_string())?;
                self.doors.insert((leaf, session));
                Ok(())
            }
            Change::ClearDoor { leaf, session } => {
                let cleared = lock(&self.leaf(leaf)?.kernel).remove_door(session);
                cleared.map_err(|error| error.to_string())?;
                self.doors.remove(&(leaf, session));
                Ok(())
            }
        }
    }

    fn leaf(&self, node: Node) -> Result<&Device, String> {
        let is_leaf = node < self.clos.node_count() && self.clos.kind(node).0 == Kind::Leaf;
        if !is_leaf {
            return Err(format!("node {node} is no leaf"));
        }
        self.switches.get(&node).ok_or_else(|| format!("the leaf {node} is not here"))
    }

    fn block(&mut self, spine: Node, session: u32, leaf: Node, blocked: bool) -> Result<(), String> {
        let is_spine = spine < self.clos.node_count() && self.clos.kind(spine).0 == Kind::Spine;
        let port = is_spine.then(|| self.clos.port_to(spine, leaf)).flatten();
        let port = port.filter(|port| *port < self.clos.leafs_per_pod());
        let port = port.ok_or_else(|| format!("node {spine} is no spine above the leaf {leaf}"))?;
        let switch = self.switches.get(&spine).ok_or_else(|| format!("the spine {spine} is not here"))?;
        let before = self.blocked.get(&(spine, session)).copied().unwrap_or_default();
        let ports = if blocked { before | 1 << port } else { before & !(1 << port) };
        lock(&switch.kernel).set_blocked(session, ports).map_err(|error| error.to_string())?;
        if ports == 0 {
            self.blocked.remove(&(spine, session));
        } else {
            self.blocked.insert((spine, session), ports);
        }
        Ok(())
    }

    /// Notes that a link has broken or works again, and tells those who listen.
    fn link(&mut self, ends: (Node, Node), works: bool) {
        tracing::info!(?ends, works, "a link");
        self.links.insert(ends, works);
        let mut word = Vec::new();
        Word::Link { ends, works }.emit(&mut word);
        for number in self.managers.keys().copied().collect::<Vec<_>>() {
            self.say(number, &word);
        }
    }

    /// A new manager is told which switches are here, and of all links that are not as they were at first.
    fn greet(&mut self, number: u64, manager: TcpStream) {
        self.managers.insert(number, manager);
        let network = Network {
            pods: self.clos.pods(),
            leafs: self.clos.leafs_per_pod(),
            spines: self.clos.spines_per_pod(),
            servers: self.clos.hosts_per_leaf(),
            cores: self.clos.cores_per_spine(),
            filter_bits: self.filter_bits,
        };
        let mut words = Vec::new();
        for node in self.switches.keys() {
            let encodings = Network::FILTER | Network::PODS | Network::DOORS;
            Word::Switch { node: *node, network, encodings }.emit(&mut words);
        }
        for (&ends, &works) in &self.links {
            Word::Link { ends, works }.emit(&mut words);
        }
        self.say(number, &words);
    }

    /// Tells a manager, if it is there; one that does not read is hung up on.
    fn say(&mut self, number: u64, words: &[u8]) {
        if let Some(manager) = self.managers.get_mut(&number)
            && manager.write_all(words).is_err()
        {
            // The thread that reads from it ends.
            let _ = manager.shutdown(std::net::Shutdown::Both);
            self.managers.remove(&number);
        }
    }

    /// A manager's connection has ended. Any host can open them and break them off: the log says so once in a
    /// while.
    fn leave(&mut self, number: u64, ended: io::Result<()>) {
        self.managers.remove(&number);
        let Err(error) = ended else { return };
        self.ended.1 += 1;
        if self.ended.0.is_none_or(|at| at.elapsed() >= SAY_AGAIN) {
            tracing::warn!(%error, times = self.ended.1, "the connection to a manager has ended");
            self.ended = (Some(Instant::now()), 0);
        }
    }

    /// Names every kind of fault of every device once.
    fn name_faults(&mut self) {
        let mut dropped: Vec<(Node, Fault, u64)> = Vec::new();
        for (node, switch) in &self.switches {
            let Ok(counts) = lock(&switch.kernel).counts() else { continue };
            dropped.extend(Fault::ALL.into_iter().map(|fault| (*node, fault, counts.fault(fault))));
        }
        for (node, fault, count) in dropped.into_iter().filter(|(_, _, count)| *count > 0) {
            if self.named.insert((node, fault)) {
                tracing::warn!(device = %self.switches[&node].name, count, "dropped {fault}");
            }
        }
    }

    /// Returns the counters of the switches.
    pub(super) fn status(&self) -> Vec<SwitchStatus> {
        let of_switch = |(node, device): (&Node, &Device)| {
            let counts = lock(&device.kernel).counts().ok();
            let rack = device.rack.as_ref();
            let losses = rack.map(|rack| *lock(&rack.losses)).unwrap_or_default();
            let (labels, spine_labels) =
                rack.map(|rack| rack.held.labels(self.label_len as usize)).unwrap_or_default();
            SwitchStatus {
                name: device.name.clone(),
                node: *node,
                packets: counts.map_or(0, |counts| counts.packets()),
                copies: counts.map_or(0, |counts| counts.copies()),
                entries: self.blocked.range((*node, 0)..=(*node, u32::MAX)).count() as u64,
                groups: self.doors.range((*node, 0)..=(*node, u32::MAX)).count() as u64,
                dropped: counts.map_or(0, |counts| Fault::ALL.iter().map(|fault| counts.fault(*fault)).sum()),
                labels,
                spine_labels,
                agents_lost: losses.lost,
                agents_returned: losses.returned,
            }
        };
        self.switches.iter().map(of_switch).collect()
    }

    /// Has a switch forward nothing any more, while all its links stay up.
    pub(super) fn silence(&mut self, name: &str) -> Result<(), String> {
        let switch = self.switches.values().find(|switch| switch.name == name);
        let switch = switch.ok_or_else(|| format!("there is no switch '{name}' here"))?;
        let stopped = lock(&switch.kernel).stop().map_err(|error| error.to_string());
        tracing::info!(switch = name, ?stopped, "silenced");
        stopped
    }
}

/// Serves a manager until its connection ends.
fn serve(stream: TcpStream, caller: &Caller, devices: &Mutex<Devices>) {
    let ended = take_changes(stream, caller.number(), devices);
    lock(devices).leave(caller.number(), ended);
}

/// Takes changes until the connection ends.
fn take_changes(mut stream: TcpStream, number: u64, devices: &Mutex<Devices>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(WRITES_WITHIN))?;
    lock(devices).greet(number, stream.try_clone()?);
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
        lock(devices).say(number, &answers);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polycast_testing::HANG;
    use std::net::Ipv4Addr;

    /// The switches of a process that has none, and has seen a link break: so there is something to tell.
    fn switches() -> SocketAddr {
        let clos = Clos::new(1, 2, 1, 2, 0).unwrap();
        let mut devices = Devices::of(clos, 69, 19, BTreeMap::new());
        devices.links.insert((4, 6), false);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let own = LabelSwitches { devices: Arc::new(Mutex::new(devices)), listener };
        let address = own.listening().unwrap();
        std::thread::spawn(move || own.run());
        address
    }

    fn connect(address: SocketAddr) -> TcpStream {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(HANG)).unwrap();
        stream
    }

    /// The next frame that comes.
    fn next(stream: &mut TcpStream) -> Vec<u8> {
        let mut frame = vec![0; 2];
        stream.read_exact(&mut frame).unwrap();
        frame.resize(Word::frame_len(&frame).unwrap().unwrap(), 0);
        stream.read_exact(&mut frame[2..]).unwrap();
        frame
    }

    /// A manager that asks is answered, and hears of links, whatever others hold connections and say nothing:
    /// a manager that has lost its power, or a host that is none.
    #[test]
    fn a_manager_waits_for_no_other() {
        let address = switches();
        let mut silent = connect(address);
        let link = Word::Link { ends: (4, 6), works: false };
        assert_eq!(Word::parse(&next(&mut silent)), Ok(link.clone()));
        let mut manager = connect(address);
        assert_eq!(Word::parse(&next(&mut manager)), Ok(link));
        let mut asks = Vec::new();
        let change = Change::SetEntry { spine: 6, session: 1, leaf: 4 };
        Word::Change { number: 77, change }.emit(&mut asks);
        manager.write_all(&asks).unwrap();
        let answer = next(&mut manager);
        let Ok(Word::Failed { number: 77, reason }) = Word::parse(&answer) else { panic!("{answer:?}") };
        assert_eq!(reason, "the spine 6 is not here");
        silent.set_nonblocking(true).unwrap();
        assert!(silent.read(&mut [0]).is_err(), "the answer is for the one that has asked");
    }

    /// However many connections a host opens, each ends for a later one of its own.
    #[test]
    fn connections_are_few() {
        let address = switches();
        let mut opened: Vec<TcpStream> = (0..=MANAGERS_MAX.of_one).map(|_| connect(address)).collect();
        let link = |stream: &mut TcpStream| Word::parse(&next(stream)).is_ok();
        assert!(link(&mut opened[MANAGERS_MAX.of_one]), "the last one is heard");
        let mut left = Vec::new();
        opened[0].read_to_end(&mut left).unwrap();
    }
}
