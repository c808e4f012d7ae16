//! A Datacast fabric: servers and switches that run caching forwarders, on the links of a BCube, torus or
//! fat-tree (Datacast, sections 3, 4 and 7).
//!
//! Every node is a namespace, and every link of the network a cable with addresses of its own. A host's agent
//! runs its node, all switches share one process. The packet network beside the fabric carries only control.
//! The manager knows the network, hears of its links from all of these processes, and plans the trees.

use crate::daemons::{Daemons, Places, Ready};
use crate::datacast_nodes::{arcs, interface, node_name};
use crate::error::LabError;
use crate::layout::{CONTROL_ADDRESS, Layout};
use crate::spec::{Network as Kind, Spec};
use crate::system::Space;
use polycast_agent::forwarder::daemon::Order;
use polycast_agent::forwarder::{ForwarderConfig, NodeConfig, PortConfig, Replacement};
use polycast_planning::trees::TreePlanner;
use polycast_topology::{CompactGraph, Network, Node};
use polycast_wire::pull::{HOPS_USUAL, payload_len_for_mtu};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Packets that a receiver may request at a time in each tree (w, section 7).
const CREDITS: u32 = 16;
/// The UDP port of all nodes.
const UDP_PORT: u16 = 7_402;
/// The TCP port where the manager hears of links.
const CONTROL_PORT: u16 = 7_403;
/// A link must have changed for so long before it is reported.
const DAMPING_MS: u32 = 100;
/// Time to wait for further reports of links before trees are repaired.
const GATHER_MS: u64 = 10;
/// The rate of links that are not shaped, as far as sources are concerned, in bits a second.
const UNSHAPED_BPS: u64 = 10_000_000_000;
/// The name of the process with all switches.
pub(crate) const SWITCHES: &str = "switches";
/// Time within which neighbours must receive from each other.
const LINKED_WITHIN: Duration = Duration::from_secs(30);
/// Interval between checks of whether they do.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// The address at the beginning of an arc; both ends of a link have a network of their own.
fn arc_address(graph: &CompactGraph, arc: u32) -> Ipv4Addr {
    let far = graph.reverse(arc);
    let number = 2 * arc.min(far) + u32::from(arc > far);
    Ipv4Addr::from_bits(u32::from_be_bytes([10, 128, 0, 0]) + number)
}

/// The address of a server on the fabric, whichever port it is reached by.
pub(crate) fn server_address(server: Node) -> Ipv4Addr {
    Ipv4Addr::from_bits(u32::from_be_bytes([10, 127, 0, 0]) + server)
}

/// Gives the fabric its addresses, and IP routes along shortest ways, for other traffic than ours.
pub(crate) fn address(network: &Network) -> Result<(), LabError> {
    let graph = CompactGraph::new(network);
    let mut lines: BTreeMap<Node, Vec<String>> = BTreeMap::new();
    for (arc, node, port) in arcs(&graph) {
        let (name, address) = (interface(port), arc_address(&graph, arc));
        let of_node = lines.entry(node).or_default();
        of_node.push(format!("addr add {address}/31 dev {name}"));
        of_node.push(format!("link set {name} addrgenmode none up"));
    }
    for server in 0..graph.server_count() {
        let own = lines.entry(server).or_default();
        own.push(format!("addr add {}/32 dev lo", server_address(server)));
    }
    for server in 0..graph.server_count() {
        for (node, arc) in ways_to(&graph, server) {
            let via = arc_address(&graph, graph.reverse(arc));
            let to = server_address(server);
            let from = if node < graph.server_count() {
                format!(" src {}", server_address(node))
            } else {
                String::new()
            };
            lines.entry(node).or_default().push(format!("route add {to} via {via}{from}"));
        }
    }
    for (node, lines) in lines {
        let space = Space::named(node_name(network, node));
        space.batch("ip", &lines)?;
        let mut forwarding = space.command("sh");
        forwarding.args(["-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"]);
        crate::system::run(&mut forwarding, None)?;
    }
    Ok(())
}

/// The first arc of a shortest way from every other node to a server.
fn ways_to(graph: &CompactGraph, server: Node) -> Vec<(Node, u32)> {
    let mut ways: BTreeMap<Node, u32> = BTreeMap::new();
    let mut queue = VecDeque::from([server]);
    while let Some(node) = queue.pop_front() {
        for arc in graph.arcs(node) {
            let other = graph.target(arc);
            if other != server && !ways.contains_key(&other) {
                ways.insert(other, graph.reverse(arc));
                queue.push_back(other);
            }
        }
    }
    ways.into_iter().collect()
}

/// The longest source route: the usual one, unless the network's trees need more.
fn hops_max(network: &Network) -> u32 {
    TreePlanner::new(*network).whole_depth().max(HOPS_USUAL as u32)
}

/// The settings of a node's ports.
fn node_config(network: &Network, graph: &CompactGraph, node: Node, spec: &Spec) -> NodeConfig {
    let name = node_name(network, node);
    let is_switch = node >= graph.server_count();
    let rate = spec.rate.map(|rate| format!("{}bit", rate.0));
    let at = |arc| SocketAddrV4::new(arc_address(graph, arc), UDP_PORT);
    let port = |arc| PortConfig { local: at(arc), peer: at(graph.reverse(arc)), rate: rate.clone() };
    // Until the packets that a receiver has asked for have passed the slowest link.
    let window_bits = u64::from(CREDITS) * u64::from(spec.mtu) * 8;
    let drained_ms = spec.rate.map_or(0, |rate| 4_000 * window_bits / rate.0.max(1));
    NodeConfig {
        namespace: is_switch.then(|| PathBuf::from(format!("/run/netns/{name}"))),
        name,
        number: Some(node),
        store_packets: match spec.network {
            Kind::Datacast { store, .. } => store,
            _ => 0,
        },
        replacement: Replacement::Oldest,
        pending_interests: 1 << 16,
        interest_ms: drained_ms.clamp(20, 10_000) as u32,
        // A link that breaks loses its carrier. On a busy machine a neighbour may be silent for long and be
        // there.
        greeting_ms: 250,
        damping_ms: DAMPING_MS,
        hops_max: hops_max(network),
        kernel: matches!(spec.network, Kind::Datacast { kernel: true, .. }),
        dscp: None,
        ports: graph.arcs(node).map(port).collect(),
    }
}

/// The settings of a process with nodes.
fn process_config(places: &Places, name: &str, control: IpAddr, nodes: Vec<NodeConfig>) -> ForwarderConfig {
    let control = Some(SocketAddr::new(control, CONTROL_PORT));
    ForwarderConfig { socket: Some(socket(places, name)), control, nodes }
}

fn write_settings(path: &Path, settings: &impl Serialize) -> Result<(), LabError> {
    let text = toml::to_string(settings).map_err(|error| LabError::system("write settings", error))?;
    fs::write(path, text).map_err(|error| LabError::path("write", path, &error))
}

/// Writes the settings of every host's agent.
pub(crate) fn write_agents(
    network: &Network,
    spec: &Spec,
    layout: &Layout,
    places: &Places,
) -> Result<(), LabError> {
    #[derive(Serialize)]
    struct AgentSettings {
        forwarder: ForwarderConfig,
    }
    let graph = CompactGraph::new(network);
    for (host, node) in layout.hosts.iter().zip(0..) {
        let nodes = vec![node_config(network, &graph, node, spec)];
        let forwarder = process_config(places, &host.name, host.address, nodes);
        write_settings(&places.agent_settings(&host.name), &AgentSettings { forwarder })?;
    }
    Ok(())
}

/// Starts the process with all switches, if there are any; it is ready soon after.
pub(crate) fn start_switches(
    network: &Network,
    spec: &Spec,
    places: &Places,
    daemons: &mut Daemons,
) -> Result<Option<Ready>, LabError> {
    let graph = CompactGraph::new(network);
    let switches: Vec<NodeConfig> = (graph.server_count()..graph.node_count())
        .map(|node| node_config(network, &graph, node, spec))
        .collect();
    if switches.is_empty() {
        return Ok(None);
    }
    let config = process_config(places, SWITCHES, CONTROL_ADDRESS.into(), switches);
    let path = places.inside.join(format!("{SWITCHES}.toml"));
    write_settings(&path, &config)?;
    let (path, key) = (path.to_string_lossy().into_owned(), places.key_if_any());
    let mut arguments = vec!["forwarder", "--config", &path];
    if let Some(key) = &key {
        arguments.extend(["--key-file", key]);
    }
    daemons.start(SWITCHES, &Space::Network, places, &arguments).map(Some)
}

/// The manager's settings.
pub(crate) fn manager_settings(network: &Network, spec: &Spec, layout: &Layout) -> String {
    use polycast_topology::Graph;
    let quoted =
        |items: Vec<String>| items.into_iter().map(|item| format!("{item:?}")).collect::<Vec<_>>().join(", ");
    let hosts = quoted(layout.hosts.iter().map(|host| host.name.clone()).collect());
    let at = |address: IpAddr| SocketAddr::new(address, CONTROL_PORT).to_string();
    let mut forwarders: Vec<String> = layout.hosts.iter().map(|host| at(host.address)).collect();
    if network.node_count() > network.server_count() {
        forwarders.push(at(CONTROL_ADDRESS.into()));
    }
    let link_bps = spec.rate.map_or(UNSHAPED_BPS, |rate| rate.0);
    let mut text = format!(
        "fabrics = [\"datacast\"]\n[datacast]\nnetwork = \"{network}\"\nhosts = [{hosts}]\n\
         forwarders = [{}]\nlink-rate = \"{link_bps}bit\"\npayload-bytes = {}\ncredits = {CREDITS}\n\
         gather-ms = {GATHER_MS}\nhops-max = {}\n",
        quoted(forwarders),
        payload_len_for_mtu(spec.mtu),
        hops_max(network),
    );
    if let Kind::Datacast { trees: Some(trees), .. } = spec.network {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "trees-max = {trees}");
    }
    text
}

/// Waits until all neighbours hear each other, and the manager hears every process of forwarders: it tries
/// again after up to a second where one came later than itself, and knows no name of a node that it has not
/// heard.
pub(crate) fn await_links(layout: &Layout, places: &Places) -> Result<(), LabError> {
    let begun = Instant::now();
    loop {
        let answers = answers(layout, places)?;
        let Some(reason) = answers.iter().find_map(|(process, answer)| lacks(process, answer)) else { break };
        if begun.elapsed() > LINKED_WITHIN {
            return Err(LabError::system("bring all links up", reason));
        }
        std::thread::sleep(LOOK_AGAIN);
    }
    // What was said last is on its way, and gathered there.
    std::thread::sleep(Duration::from_millis(5 * GATHER_MS));
    Ok(())
}

/// Returns the reason why a process of forwarders is not ready, if there is one.
fn lacks(process: &str, answer: &Value) -> Option<String> {
    let down = |node: &&Value| {
        node["ports"].as_array().is_some_and(|ports| ports.iter().any(|port| port["up"] != true))
    };
    if let Some(node) = answer["nodes"].as_array().into_iter().flatten().find(down) {
        return Some(format!("a link of {} is down", node["name"].as_str().unwrap_or_default()));
    }
    (answer["watchers"].as_u64() == Some(0))
        .then(|| format!("the manager does not hear the forwarders of {process}"))
}

/// The counters of all nodes that run.
pub(crate) fn status(layout: &Layout, places: &Places) -> Result<Value, LabError> {
    let answers = answers(layout, places)?;
    let nodes =
        answers.iter().flat_map(|(_, answer)| answer["nodes"].as_array().cloned().unwrap_or_default());
    Ok(Value::Array(nodes.collect()))
}

/// Returns the status of the nodes of all running processes, by the processes' names.
fn answers(layout: &Layout, places: &Places) -> Result<Vec<(String, Value)>, LabError> {
    let names = layout.hosts.iter().map(|host| host.name.as_str()).chain([SWITCHES]);
    let mut answers = Vec::new();
    for (name, path) in names.map(|name| (name, socket(places, name))).filter(|(_, path)| path.exists()) {
        match ask(&path) {
            Ok(answer) => answers.push((name.to_string(), answer)),
            // Its process was killed.
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {}
            Err(error) => return Err(LabError::path("speak to the forwarder at", &path, &error)),
        }
    }
    Ok(answers)
}

fn ask(path: &Path) -> std::io::Result<Value> {
    let mut stream = UnixStream::connect(path)?;
    stream.write_all(format!("{}\n", json!(Order::Status)).as_bytes())?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    Ok(serde_json::from_str(&line)?)
}

fn socket(places: &Places, process: &str) -> PathBuf {
    places.inside.join(format!("{process}.forwarder.sock"))
}

/// The network of a specification, if it is one of ours.
pub(crate) fn network_of(spec: &Spec) -> Option<Network> {
    match spec.network {
        Kind::Datacast { network, .. } => Some(network),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::cables_of;
    use polycast_topology::Graph;
    use std::collections::BTreeSet;

    #[test]
    fn every_link_has_a_cable_and_two_addresses_and_every_server_can_be_reached() {
        for text in ["bcube:4,2", "torus:4,2", "fat-tree:4,3"] {
            let network: Network = text.parse().unwrap();
            let graph = CompactGraph::new(&network);
            assert_eq!(cables_of(&network).len(), network.link_count() as usize, "{text}");
            let addresses: BTreeSet<_> = arcs(&graph).map(|(arc, ..)| arc_address(&graph, arc)).collect();
            assert_eq!(addresses.len(), 2 * network.link_count() as usize, "{text}");
            for server in 0..network.server_count() {
                let ways: BTreeMap<_, _> = ways_to(&graph, server).into_iter().collect();
                assert_eq!(ways.len() as u32, network.node_count() - 1, "{text}");
                for from in (0..network.node_count()).filter(|node| *node != server) {
                    let mut at = from;
                    let mut hops = 0;
                    while at != server {
                        at = graph.target(ways[&at]);
                        hops += 1;
                        assert!(hops < 20, "{text}: from {from} to {server}");
                    }
                }
            }
        }
    }
}
