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
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use polycast_agent::rack::{RackAgent, RackError, RackOptions};
use polycast_net::bpf::orca::{KernelSwitch, Layer, Packets, SwitchSettings};
use polycast_net::bpf::{BpfError, in_namespace};
use polycast_planning::labels::{LabelFormat, LabelOptions, LabelPlanner, TreePath};
use polycast_topology::{Clos, Graph as _, Kind, Node};
use polycast_types::Rate;
use polycast_wire::label::Fault;
use polycast_wire::switches::{Change, FRAME_LEN_MAX, Word};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Where the device takes changes.
pub(crate) const CHANGES: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(CONTROL_ADDRESS), 7_475);
/// UDP port of labelled packets.
const UDP_PORT: u16 = 7_474;
/// The paper's filter (section 6.1).
const FILTER_BITS: u32 = 69;
/// Sessions that a spine has entries for, and that an agent has labels for.
const SESSIONS_MAX: u32 = 65_536;
/// Sessions that the kernel's part of an agent knows.
const SESSIONS_ACTIVE_MAX: u32 = 4_096;
/// How often new faults are looked for.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// A manager that takes no words for this long is hung up on.
const WRITES_WITHIN: Duration = Duration::from_secs(1);

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
        Space::named(&name).batch("ip", &lines)?;
    }
    Ok(())
}

/// The manager's settings.
pub(crate) fn manager_settings(
    spec: &Spec,
    (clos, agents, trees): (&Clos, u32, u32),
    layout: &Layout,
) -> String {
    let [a, b] = GROUPS;
    let hosts: Vec<String> = layout.hosts.iter().map(|host| format!("\"{}\"", host.name)).collect();
    // The link of an agent that is a receiver too carries every packet once for it and once for the rack, in turn with the
    // other agents. The rest is for repairs.
    let share = |rate: Rate| rate.0 / 100 * 95 * u64::from(agents) / u64::from(agents + 1);
    let rate = spec.rate.map(|rate| format!("rate = \"{}\"\n", share(rate))).unwrap_or_default();
    format!(
        "fabrics = [\"orca\", \"tcp-chain\"]\n[orca]\nswitches = \"{CHANGES}\"\npods = {}\nleafs = {}\nspines = {}\n\
         cores = {}\nservers = {}\nhosts = [{}]\nfilter-bits = {FILTER_BITS}\nentries-max = {SESSIONS_MAX}\ntrees = {trees}\n{rate}\
         pool = \"{a}.{b}.64.0/24\"\nport = {UDP_PORT}\n",
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
    switches: BTreeMap<Node, KernelSwitch>,
    agents: BTreeMap<Node, RackAgent>,
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
    let Network::Orca { clos, agents, .. } = spec.network else {
        let reason = "only a lab such as orca:4 has label switches";
        return Err(LabError::Spec { text: spec.to_string(), reason: reason.into() });
    };
    let failed = |action: &'static str| move |error: &dyn std::fmt::Display| LabError::system(action, error);
    let planner = LabelPlanner::with_options(clos, LabelOptions::new(FILTER_BITS))
        .map_err(|error| failed("lay out labels")(&error))?;
    let devices = Devices::load(&planner, agents)?;
    let listener = TcpListener::bind(CHANGES).map_err(|error| failed("take changes")(&error))?;
    let devices = Arc::new(Mutex::new(devices));
    let looked_at = Arc::clone(&devices);
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(LOOK_AGAIN);
            lock(&looked_at).name_faults();
        }
    });
    let relabelled = Arc::clone(&devices);
    std::thread::spawn(move || {
        if let Err(error) = relabel(&relabelled) {
            tracing::error!(%error, "agents know no more than the kernel does");
        }
    });
    let links = Links::open(&clos)?;
    let seen = Arc::clone(&devices);
    std::thread::spawn(move || {
        if let Err(error) = links.run(|ends, works| lock(&seen).link(ends, works)) {
            tracing::error!(%error, "links that break are not noticed any more");
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

fn lock(devices: &Mutex<Devices>) -> MutexGuard<'_, Devices> {
    devices.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Devices {
    fn load(planner: &LabelPlanner, active: u32) -> Result<Self, LabError> {
        let clos = *planner.clos();
        let packets = Packets { udp_port: UDP_PORT, label_len: planner.format().bytes() };
        let mut devices = Devices {
            clos,
            switches: BTreeMap::new(),
            agents: BTreeMap::new(),
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
                if clos.kind(node).0 == Kind::Leaf {
                    switch.set_agents(&(0..active).collect::<Vec<u32>>())?;
                }
                Ok::<_, BpfError>(switch)
            })?;
            devices.switches.insert(node, switch);
        }
        for host in 0..clos.hosts() {
            let agent = in_space(&clos, host, || {
                let options = RackOptions {
                    packets,
                    sessions_max: SESSIONS_MAX as usize,
                    active_max: SESSIONS_ACTIVE_MAX,
                };
                let mut agent = RackAgent::attach(options, "eth0")?;
                agent.set_active(host % clos.hosts_per_leaf() < active)?;
                Ok::<_, RackError>(agent)
            })?;
            devices.agents.insert(host, agent);
        }
        Ok(devices)
    }

    /// Does what a manager asks, or says why not.
    fn change(&mut self, change: &Change<'_>) -> Result<(), String> {
        match *change {
            Change::SetLabel { leaf, session, label } => {
                self.each_agent(leaf, |agent| agent.set_label(session, label))
            }
            Change::ClearLabel { leaf, session } => {
                self.each_agent(leaf, |agent| agent.remove_label(session))
            }
            Change::SetEntry { spine, session, leaf } => self.block(spine, session, leaf, true),
            Change::ClearEntry { spine, session, leaf } => self.block(spine, session, leaf, false),
        }
    }

    /// All agents of a rack keep the same labels, also those that stand by.
    fn each_agent(
        &mut self,
        leaf: Node,
        change: impl Fn(&mut RackAgent) -> Result<(), RackError>,
    ) -> Result<(), String> {
        let leafs = self.clos.leaf(0)..self.clos.leaf(0) + self.clos.leafs();
        if !leafs.contains(&leaf) {
            return Err(format!("node {leaf} is no leaf"));
        }
        let per_leaf = self.clos.hosts_per_leaf();
        let first = (leaf - leafs.start) * per_leaf;
        for (_, agent) in self.agents.range_mut(first..first + per_leaf) {
            change(agent).map_err(|error| error.to_string())?;
        }
        Ok(())
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
        let switch = self.switches.get_mut(&spine).ok_or("the spine is gone")?;
        switch.set_blocked(session, ports).map_err(|error| error.to_string())
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
        for (node, switch) in &mut self.switches {
            let Ok(counts) = switch.counts() else { continue };
            dropped.extend(Fault::ALL.into_iter().map(|fault| (*node, fault, counts.fault(fault))));
        }
        for (node, agent) in &mut self.agents {
            let count = |fault| Some((*node, fault, agent.dropped(fault).ok()?));
            dropped.extend(Fault::ALL.into_iter().filter_map(count));
        }
        for (node, fault, count) in dropped.into_iter().filter(|(_, _, count)| *count > 0) {
            if self.named.insert((node, fault)) {
                tracing::warn!(device = %layout::label_switch(&clos, node), count, "dropped {fault}");
            }
        }
    }
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

/// Lets agents relabel what their kernels do not know.
fn relabel(devices: &Mutex<Devices>) -> Result<(), Box<dyn std::error::Error>> {
    let each = |(host, agent): (&Node, &RackAgent)| Ok((*host, agent.as_fd().try_clone_to_owned()?));
    let readable: Vec<(Node, OwnedFd)> = lock(devices).agents.iter().map(each).collect::<io::Result<_>>()?;
    loop {
        let mut fds: Vec<PollFd<'_>> =
            readable.iter().map(|(_, fd)| PollFd::new(fd.as_fd(), PollFlags::POLLIN)).collect();
        match poll(&mut fds, PollTimeout::NONE) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        let ready = fds.iter().zip(&readable).filter(|(fd, _)| fd.any().unwrap_or(false));
        let hosts: Vec<Node> = ready.map(|(_, (host, _))| *host).collect();
        let mut devices = lock(devices);
        for host in hosts {
            if let Some(agent) = devices.agents.get_mut(&host) {
                agent.serve()?;
            }
        }
    }
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
            match lock(devices).change(&change) {
                Ok(()) => Word::Done { number }.emit(&mut answers),
                Err(reason) => Word::Failed { number, reason: &reason }.emit(&mut answers),
            }
            used += len;
        }
        inbox.drain(..used);
        lock(devices).say(&answers);
    }
}
