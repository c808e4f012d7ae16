//! The devices of a lab with labels: every switch a namespace with a program in the kernel, and agents of
//! racks on hosts (Orca sections 3.4 and 3.5). They are the daemons that users run too, with settings that
//! the lab writes: one process with all switches, `polycast label-switch`, and one for each agent of a rack,
//! `polycast rack-agent`.
//!
//! A leaf has also a Linux bridge to the packet core, for all that has no label: connections between hosts,
//! and to the manager. Labelled packets never reach it.

use crate::daemons::{Daemons, Places, Ready};
use crate::error::LabError;
use crate::layout::{self, CONTROL_ADDRESS, GROUPS, LEAF_BRIDGE, LEAF_TO_CORE, Layout};
use crate::spec::{Network, Spec};
use crate::system::Space;
use polycast_agent::label_switch::{
    LabelSwitchConfig, Layer, LeafSettings, Order, RackAgentConfig, SwitchConfig, SwitchStatus,
};
use polycast_agent::rack::Losses;
use polycast_topology::{Clos, Graph as _, Kind, Node};
use polycast_types::Rate;
use serde::Serialize;
use serde_json::{Value, json};
use std::fs;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Address on which the switches accept changes.
pub(crate) const CHANGES: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(CONTROL_ADDRESS), 7_475);
/// The name of the process with all switches.
const SWITCHES: &str = "labels";
/// UDP port of labelled packets.
const UDP_PORT: u16 = 7_474;
/// Sessions that a spine has entries for, and that an agent has labels for.
const SESSIONS_MAX: u32 = 65_536;
/// Sessions that the kernel's part of an agent knows.
const SESSIONS_ACTIVE_MAX: u32 = 4_096;
/// Time within which the switches must answer.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);

/// The central controller, in the manager.
const CENTRAL: SocketAddrV4 = SocketAddrV4::new(layout::MANAGER_ADDRESS, CONTROL_PORT);
/// UDP port of controllers.
const CONTROL_PORT: u16 = 7_476;
/// Heartbeats of an agent within T.
const HEARTBEATS: u32 = 3;

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
pub(crate) fn manager_settings(spec: &Spec, clos: &Clos, layout: &Layout) -> String {
    let Network::Orca { agents, trees, feedback, encoding, filter_bits, .. } = spec.network else {
        return String::new();
    };
    let [a, b] = GROUPS;
    let leafs: Vec<String> = (0..clos.leafs()).map(|rack| format!("\"{}\"", leaf_controller(rack))).collect();
    let hosts: Vec<String> = layout.hosts.iter().map(|host| format!("\"{}\"", host.name)).collect();
    // The link of an agent that is a receiver too carries every packet once for it and once for the rack, in
    // turn with the other agents. The rest is for repairs.
    let share = |rate: Rate| rate.0 / 100 * 95 * u64::from(agents) / u64::from(agents + 1);
    let rate = spec.rate.map(|rate| format!("rate = \"{}\"\n", share(rate))).unwrap_or_default();
    format!(
        "fabrics = [\"orca\", \"tcp-chain\"]\n[orca]\nswitches = \"{CHANGES}\"\n\
         controller = \"{CENTRAL}\"\nleaf-controllers = [{}]\npods = {}\nleafs = {}\nspines = {}\n\
         cores = {}\nservers = {}\nhosts = [{}]\nencoding = \"{}\"\nfilter-bits = {filter_bits}\nentries-max = {SESSIONS_MAX}\ntrees = {trees}\n{rate}\
         rack-feedback = {feedback}\n\
         pool = \"{a}.{b}.64.0/24\"\nport = {UDP_PORT}\n",
        leafs.join(", "),
        clos.pods(),
        clos.leafs_per_pod(),
        clos.spines_per_pod(),
        clos.cores_per_spine(),
        clos.hosts_per_leaf(),
        hosts.join(", "),
        encoding.text(),
    )
}

/// Requested settings of a lab with label switches.
struct OrcaSpec {
    clos: Clos,
    agents: u32,
    standby: u32,
    timeout_us: u32,
    probe_ms: u32,
    filter_bits: u32,
}

fn network_of(spec: &Spec) -> Result<OrcaSpec, LabError> {
    match spec.network {
        Network::Orca { clos, agents, standby, timeout_us, probe_ms, filter_bits, .. } => {
            Ok(OrcaSpec { clos, agents, standby, timeout_us, probe_ms, filter_bits })
        }
        _ => {
            let reason = "only a lab such as orca:4 has label switches";
            Err(LabError::Spec { text: spec.to_string(), reason: reason.into() })
        }
    }
}

fn topology(clos: &Clos) -> String {
    polycast_topology::Network::Clos(*clos).to_string()
}

/// The settings of the process with all switches.
fn switch_settings(spec: &Spec, places: &Places) -> Result<LabelSwitchConfig, LabError> {
    let OrcaSpec { clos, agents: active, standby, timeout_us, probe_ms, filter_bits } = network_of(spec)?;
    let switch = |node: Node| {
        let (kind, number) = clos.kind(node);
        let layer = match kind {
            Kind::Leaf => Layer::Leaf,
            Kind::Spine => Layer::Spine,
            Kind::Core | Kind::Host => Layer::Core,
        };
        let leaf_controller = (kind == Kind::Leaf).then(|| LeafSettings {
            listen: leaf_controller(number),
            servers: (0..clos.hosts_per_leaf()).map(|place| host_address(number, place)).collect(),
            active,
            standby,
            timeout_us,
        });
        SwitchConfig {
            layer,
            number,
            namespace: Some(Path::new("/run/netns").join(layout::label_switch(&clos, node))),
            ports: (0..clos.port_count(node)).map(layout::label_port).collect(),
            leaf_controller,
        }
    };
    Ok(LabelSwitchConfig {
        listen: CHANGES,
        controller: Some(CENTRAL),
        topology: topology(&clos),
        filter_bits,
        port: UDP_PORT,
        entries_max: SESSIONS_MAX,
        probe_ms,
        socket: Some(socket(places)),
        switches: (clos.hosts()..clos.node_count()).map(switch).collect(),
    })
}

fn write_settings(path: &Path, settings: &impl Serialize) -> Result<(), LabError> {
    let text = toml::to_string(settings).map_err(|error| LabError::system("write settings", error))?;
    fs::write(path, text).map_err(|error| LabError::path("write", path, &error))
}

/// Starts the process with all switches, and waits until they forward.
pub(crate) fn start_switches(spec: &Spec, places: &Places, daemons: &mut Daemons) -> Result<(), LabError> {
    let path = places.inside.join(format!("{SWITCHES}.toml"));
    write_settings(&path, &switch_settings(spec, places)?)?;
    let (path, key) = (path.to_string_lossy(), places.key_if_any());
    let mut arguments = vec!["label-switch", "--config", &path];
    key.iter().for_each(|key| arguments.extend(["--key-file", key]));
    daemons.start_device(SWITCHES, places, &arguments)
}

/// Starts the agent of a rack at a host; it is ready soon after.
pub(crate) fn start_rack_agent(
    spec: &Spec,
    host: Node,
    places: &Places,
    daemons: &mut Daemons,
) -> Result<Ready, LabError> {
    #[derive(Serialize)]
    #[serde(rename_all = "kebab-case")]
    struct AgentSettings {
        rack_agent: RackAgentConfig,
    }
    let OrcaSpec { clos, timeout_us, filter_bits, .. } = network_of(spec)?;
    let (rack, place) = (host / clos.hosts_per_leaf(), host % clos.hosts_per_leaf());
    let rack_agent = RackAgentConfig {
        interface: "eth0".into(),
        topology: topology(&clos),
        server: host,
        listen: SocketAddrV4::new(host_address(rack, place), CONTROL_PORT),
        leaf_controller: leaf_controller(rack),
        heartbeat_us: timeout_us / HEARTBEATS,
        filter_bits,
        port: UDP_PORT,
        sessions_max: SESSIONS_MAX,
        sessions_active_max: SESSIONS_ACTIVE_MAX,
    };
    let path = places.inside.join(format!("rack-h{host}.toml"));
    write_settings(&path, &AgentSettings { rack_agent })?;
    let (path, key) = (path.to_string_lossy(), places.key_if_any());
    let mut arguments = vec!["rack-agent", "--config", &path];
    key.iter().for_each(|key| arguments.extend(["--key-file", key]));
    daemons.start(&format!("rack-h{host}"), &Space::named(format!("h{host}")), places, &arguments)
}

/// The hosts of a lab that run agents of their racks.
pub(crate) fn agent_hosts(clos: &Clos, agents: u32, standby: u32) -> impl Iterator<Item = Node> {
    let per_leaf = clos.hosts_per_leaf();
    (0..clos.hosts()).filter(move |host| host % per_leaf < agents + standby)
}

fn socket(places: &Places) -> PathBuf {
    places.inside.join(format!("{SWITCHES}.sock"))
}

/// Has a switch forward nothing any more, while all its links stay up.
pub(crate) fn silence(places: &Places, name: &str) -> Result<(), LabError> {
    let failed = |error: &dyn std::fmt::Display| LabError::system(format!("silence {name}"), error);
    let answer = ask(places, &Order::Silence { switch: name.into() }).map_err(|error| failed(&error))?;
    answer["error"].as_str().map_or(Ok(()), |error| Err(failed(&error)))
}

/// Counts how often leafs have lost an agent so far, and how often an agent was only late.
pub(crate) fn losses(places: &Places) -> Result<Losses, LabError> {
    let failed = |error: &dyn std::fmt::Display| LabError::system("count lost agents", error);
    let answer = ask(places, &Order::Status).map_err(|error| failed(&error))?;
    let switches: Vec<SwitchStatus> =
        serde_json::from_value(answer["switches"].clone()).map_err(|error| failed(&error))?;
    Ok(switches.iter().fold(Losses::default(), |sum, switch| Losses {
        lost: sum.lost + switch.agents_lost,
        returned: sum.returned + switch.agents_returned,
    }))
}

/// Sends an order to the switches and returns their answer.
fn ask(places: &Places, order: &Order) -> io::Result<Value> {
    let mut stream = UnixStream::connect(socket(places))?;
    stream.set_read_timeout(Some(ANSWERS_WITHIN))?;
    writeln!(stream, "{}", json!(order))?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer)?;
    Ok(serde_json::from_str(&answer)?)
}
