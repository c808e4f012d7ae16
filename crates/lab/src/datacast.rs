//! A Datacast fabric: servers and switches that run caching forwarders, on the links of a BCube, torus or fat-tree
//! (Datacast, sections 3, 4 and 7).
//!
//! Every node is a namespace, and every link of the network a cable with addresses of its own. A host runs its
//! node in a process of its own, all switches share one. The packet network beside the fabric carries only control.
//!
//! This module is also the fabric manager and the master of the lab: it plans the trees of a group, tells source and
//! receivers, hears from the nodes which links change, and tells those receivers whose way has changed.

use crate::cast::ControlStep;
use crate::daemons::{Daemons, Places};
use crate::error::LabError;
use crate::layout::{Cable, End, Host, Layout};
use crate::spec::{Network as Kind, Spec};
use crate::system::Space;
use polycast_agent::forwarder::daemon::{Change, Fetch, Order, Serve, ServeReceiver};
use polycast_agent::forwarder::{ForwarderConfig, NodeConfig, PortConfig};
use polycast_planning::trees::{TreePlan, TreePlanner};
use polycast_protocol::pull::{Route, plan_routes};
use polycast_topology::{CompactGraph, Failures, Network, Node};
use polycast_wire::pull::payload_len_for_mtu;
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// w: packets that a receiver may ask for at a time in each tree (section 7).
const CREDITS: u32 = 16;
/// The UDP port of all nodes.
const UDP_PORT: u16 = 7_402;
/// A receiver to whom nothing comes for so long has failed.
const STALL_MS: u64 = 10_000;
/// A link must have changed for so long before it is reported.
const DAMPING_MS: u32 = 100;
/// How long to wait for further reports of links before trees are repaired.
const GATHER: Duration = Duration::from_millis(10);
/// The name of the process with all switches.
const SWITCHES: &str = "switches";

/// A node's name, and that of its namespace: `h3`, `s17`.
#[must_use]
pub(crate) fn node_name(network: &Network, node: Node) -> String {
    use polycast_topology::Graph;
    if node < network.server_count() { format!("h{node}") } else { format!("s{node}") }
}

/// The node of a name.
fn node_of(name: &str) -> Option<Node> {
    name.strip_prefix(['h', 's'])?.parse().ok()
}

/// The interface at a port of a node.
fn interface(port: u32) -> String {
    format!("f{port}")
}

/// Whether an interface is one of the fabric's.
pub(crate) fn is_fabric(interface: &str) -> bool {
    interface.strip_prefix('f').is_some_and(|number| number.parse::<u32>().is_ok())
}

/// The cables of the fabric, each once.
pub(crate) fn cables(network: &Network) -> Vec<Cable> {
    let graph = CompactGraph::new(network);
    let end = |node: Node, port: u32| {
        let name = node_name(network, node);
        End { space: Space::named(&name), node: name, interface: interface(port) }
    };
    let mut cables = Vec::new();
    for (arc, node, port) in arcs(&graph) {
        let far = graph.reverse(arc);
        if arc < far {
            let other = graph.target(arc);
            let far_port = far - graph.arcs(other).start;
            cables.push(Cable { a: end(node, port), b: end(other, far_port) });
        }
    }
    cables
}

/// All arcs with the node and port where they begin.
fn arcs(graph: &CompactGraph) -> impl Iterator<Item = (u32, Node, u32)> + '_ {
    (0..graph.node_count()).flat_map(|node| {
        let arcs = graph.arcs(node);
        let first = arcs.start;
        arcs.map(move |arc| (arc, node, arc - first))
    })
}

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
        store_packets: match spec.network {
            Kind::Datacast { store, .. } => store,
            _ => 0,
        },
        pending_interests: 1 << 16,
        interest_ms: drained_ms.clamp(20, 10_000) as u32,
        greeting_ms: 50,
        damping_ms: DAMPING_MS,
        ports: graph.arcs(node).map(port).collect(),
    }
}

/// The fabric manager and master.
pub(crate) struct Control {
    network: Network,
    payload_len: u16,
    link_bps: u64,
    planner: TreePlanner,
    /// No group gets more trees than this.
    trees_max: usize,
    failures: Failures,
    places: Places,
    /// Links that have changed, and when that was heard.
    links: mpsc::Receiver<(Node, u32, bool, Instant)>,
}

impl Control {
    /// Starts the nodes.
    pub(crate) fn start(
        network: Network,
        spec: &Spec,
        layout: &Layout,
        places: &Places,
        daemons: &mut Daemons,
    ) -> Result<Self, LabError> {
        let graph = CompactGraph::new(&network);
        let mut processes: Vec<(String, Space, Vec<NodeConfig>)> = layout
            .hosts
            .iter()
            .zip(0..)
            .map(|(host, node)| {
                let config = node_config(&network, &graph, node, spec);
                (host.name.clone(), Space::named(&host.name), vec![config])
            })
            .collect();
        let switches: Vec<NodeConfig> = (graph.server_count()..graph.node_count())
            .map(|node| node_config(&network, &graph, node, spec))
            .collect();
        if !switches.is_empty() {
            processes.push((SWITCHES.into(), Space::Network, switches));
        }
        let mut waiting = Vec::new();
        for (name, space, nodes) in &processes {
            let config = ForwarderConfig { socket: socket(places, name), nodes: nodes.clone() };
            let text = toml::to_string(&config).map_err(|error| LabError::system("write settings", error))?;
            let path = places.inside.join(format!("{name}.forwarder.toml"));
            fs::write(&path, text).map_err(|error| LabError::path("write", &path, &error))?;
            let arguments = ["forwarder", "--config", &path.to_string_lossy()].map(str::to_string);
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            waiting.push(daemons.start(&format!("forwarder-{name}"), space, places, &arguments)?);
        }
        waiting.iter().try_for_each(|ready| daemons.await_ready(ready))?;
        let (sender, links) = mpsc::channel();
        for (name, ..) in &processes {
            watch(&socket(places, name), sender.clone())?;
        }
        let planner = TreePlanner::new(network);
        let payload_len = payload_len_for_mtu(spec.mtu);
        let link_bps = spec.rate.map_or(10_000_000_000, |rate| rate.0);
        let trees_max = match spec.network {
            Kind::Datacast { trees: Some(trees), .. } => trees as usize,
            _ => usize::MAX,
        };
        let (places, failures) = (places.clone(), Failures::none());
        Ok(Control { network, payload_len, link_bps, planner, trees_max, failures, places, links })
    }

    /// Delivers an object; gives the report, and how long the steps of control took.
    pub(crate) fn cast(
        &mut self,
        path: &Path,
        source: &Host,
        receivers: &[Host],
    ) -> Result<(Value, Vec<ControlStep>), LabError> {
        let mut control = Vec::new();
        self.note_links();
        let begun = Instant::now();
        let servers: Vec<Node> = receivers.iter().filter_map(|host| node_of(&host.name)).collect();
        let root = node_of(&source.name).unwrap_or_default();
        let planned = self.planner.plan(root, &servers, &self.failures);
        let mut plan = planned.map_err(|error| LabError::Said(error.to_string()))?;
        plan.trees.truncate(self.trees_max);
        let mut group = Group::new(plan);
        let routes = group.routes(&self.planner)?;
        control.push(step(format!("plan {} trees", group.trees.len()), begun));
        let of = |host: &Host| ServeReceiver {
            name: host.name.clone(),
            routes: group.routes_of(&routes, node_of(&host.name).unwrap_or_default()),
        };
        let order = Order::Serve(Serve {
            node: source.name.clone(),
            path: path.to_path_buf(),
            interface: source.address,
            payload_len: self.payload_len,
            credits: CREDITS,
            link_bps: self.link_bps,
            stall_ms: STALL_MS,
            receivers: receivers.iter().map(of).collect(),
        });
        let begun = Instant::now();
        let mut serving = Talk::open(&socket(&self.places, &source.name), &order)?;
        let told = serving.answer()?;
        let address: SocketAddr = serde_json::from_value(told["address"].clone())
            .map_err(|error| LabError::Said(format!("the source gives no address: {error}")))?;
        let handle = told["handle"].as_u64().unwrap_or_default();
        let mut fetching = Vec::new();
        for host in receivers {
            let out = self.places.inside.join("received").join(&host.name);
            // What an earlier delivery left is not what this one gives.
            let _ = fs::remove_dir_all(&out);
            fs::create_dir_all(&out).map_err(|error| LabError::path("make", &out, &error))?;
            let order = Fetch { node: host.name.clone(), name: host.name.clone(), address, handle, out };
            fetching.push(Talk::open(&socket(&self.places, &host.name), &Order::Fetch(order))?);
        }
        control.push(step("tell source and receivers", begun));
        let report = self.attend(&mut group, &mut serving, &mut control)?;
        drop(fetching);
        Ok((report, control))
    }

    /// Waits for the report, and repairs trees meanwhile.
    fn attend(
        &mut self,
        group: &mut Group,
        serving: &mut Talk,
        control: &mut Vec<ControlStep>,
    ) -> Result<Value, LabError> {
        let report = serving.await_answer();
        loop {
            match self.links.recv_timeout(Duration::from_millis(2)) {
                Ok((node, port, up, heard)) => {
                    // Links that fail together are reported one after the other.
                    std::thread::sleep(GATHER);
                    let mut what: Vec<String> = self.note(node, port, up).into_iter().collect();
                    what.extend(self.note_links());
                    if !what.is_empty() {
                        let what = what.join(" and ");
                        let changes = group.repair(&mut self.planner, &self.failures)?;
                        for change in &changes {
                            serving.say(&json!(change))?;
                        }
                        let told =
                            format!("{what} down, trees repaired and told: {} ways changed", changes.len());
                        control.push(step(told, heard));
                    }
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => std::thread::sleep(Duration::from_millis(2)),
            }
            match report.try_recv() {
                Ok(report) => return report,
                Err(mpsc::TryRecvError::Empty) => {}
                Err(mpsc::TryRecvError::Disconnected) => {
                    return Err(LabError::Said("the source's process has ended".into()));
                }
            }
        }
    }

    /// Takes in what was heard of links meanwhile; says what is new.
    fn note_links(&mut self) -> Vec<String> {
        let heard: Vec<_> = self.links.try_iter().collect();
        heard.into_iter().filter_map(|(node, port, up, _)| self.note(node, port, up)).collect()
    }

    /// Takes in what was heard of a link; says what is new about it.
    fn note(&mut self, node: Node, port: u32, up: bool) -> Option<String> {
        use polycast_topology::Graph;
        if node >= self.network.node_count() || port >= self.network.port_count(node) {
            return None;
        }
        let link = self.network.link(node, port);
        let other = self.network.neighbor(node, port);
        let name = |node| node_name(&self.network, node);
        let ends = format!("{}-{}", name(node), name(other));
        if up {
            // Trees that were repaired stay as they are; the next group may use the link again.
            self.failures.repair_link(link);
            return None;
        }
        self.failures.fail_link(link).then(|| format!("link {ends}"))
    }

    /// The counters of all nodes, by name.
    pub(crate) fn status(&self, layout: &Layout) -> Result<Value, LabError> {
        let names = layout.hosts.iter().map(|host| host.name.as_str()).chain([SWITCHES]);
        let mut nodes = Vec::new();
        for path in names.map(|name| socket(&self.places, name)).filter(|path| path.exists()) {
            let answer = Talk::open(&path, &Order::Status)?.answer()?;
            nodes.extend(answer["nodes"].as_array().cloned().unwrap_or_default());
        }
        Ok(Value::Array(nodes))
    }
}

fn step(what: impl Into<String>, begun: Instant) -> ControlStep {
    ControlStep { step: what.into(), micros: begun.elapsed().as_micros() as u64 }
}

fn socket(places: &Places, process: &str) -> PathBuf {
    places.inside.join(format!("{process}.forwarder.sock"))
}

/// The trees of a group, by the numbers that its members know.
struct Group {
    plan: TreePlan,
    /// The spanning tree behind each.
    trees: Vec<u32>,
    members: Vec<Node>,
    told: BTreeMap<Node, Vec<Option<Vec<u8>>>>,
}

/// The ways of the receivers that a plan reaches.
type Ways = BTreeMap<Node, Vec<Route>>;

impl Group {
    fn new(plan: TreePlan) -> Self {
        let trees = plan.trees.iter().map(|tree| tree.spanning_tree).collect();
        let members = plan.receivers.iter().chain(&plan.left_out).copied().collect();
        Group { plan, trees, members, told: BTreeMap::new() }
    }

    fn routes(&mut self, planner: &TreePlanner) -> Result<Ways, LabError> {
        let routes = plan_routes(&self.plan, planner.graph());
        let routes = routes.map_err(|error| LabError::Said(error.to_string()))?;
        let ways: Ways = self.plan.receivers.iter().copied().zip(routes).collect();
        for &member in &self.members {
            self.told.insert(member, self.routes_of(&ways, member));
        }
        Ok(ways)
    }

    /// The hops of a receiver in each tree, as it knows them.
    fn routes_of(&self, ways: &Ways, receiver: Node) -> Vec<Option<Vec<u8>>> {
        let way = |spanning: &u32| {
            let at = self.plan.trees.iter().position(|tree| tree.spanning_tree == *spanning)?;
            Some(ways.get(&receiver)?.get(at)?.bytes().to_vec())
        };
        self.trees.iter().map(way).collect()
    }

    /// Plans around failures, and gives the ways that have changed by that.
    fn repair(&mut self, planner: &mut TreePlanner, failures: &Failures) -> Result<Vec<Change>, LabError> {
        let before = self.told.clone();
        match planner.replan(self.plan.clone(), failures) {
            Ok(plan) => {
                self.plan = plan;
                self.routes(planner)?;
            }
            // Nobody can be reached any more.
            Err(_) => self.told.values_mut().flatten().for_each(|route| *route = None),
        }
        let mut changes = Vec::new();
        for (receiver, routes) in &self.told {
            let old = before.get(receiver).map_or(&[][..], Vec::as_slice);
            for (tree, route) in (0u8..).zip(routes) {
                if old.get(usize::from(tree)) != Some(route) {
                    changes.push(Change { receiver: format!("h{receiver}"), tree, route: route.clone() });
                }
            }
        }
        Ok(changes)
    }
}

/// A connection to a process with nodes.
struct Talk {
    stream: UnixStream,
    reader: Option<BufReader<UnixStream>>,
}

impl Talk {
    fn open(path: &Path, order: &Order) -> Result<Self, LabError> {
        let failed = |error: std::io::Error| LabError::path("speak to the forwarder at", path, &error);
        let stream = UnixStream::connect(path).map_err(failed)?;
        let reader = Some(BufReader::new(stream.try_clone().map_err(failed)?));
        let mut talk = Talk { stream, reader };
        talk.say(&json!(order))?;
        Ok(talk)
    }

    fn say(&mut self, value: &Value) -> Result<(), LabError> {
        let text = format!("{value}\n");
        self.stream
            .write_all(text.as_bytes())
            .map_err(|error| LabError::system("speak to a forwarder", error))
    }

    fn answer(&mut self) -> Result<Value, LabError> {
        let Some(reader) = &mut self.reader else { return Err(LabError::Said("nobody answers".into())) };
        read_answer(reader)
    }

    /// Waits for the next answer in a thread.
    fn await_answer(&mut self) -> mpsc::Receiver<Result<Value, LabError>> {
        let (sender, answer) = mpsc::channel();
        if let Some(mut reader) = self.reader.take() {
            // Whoever waits for it may have given up.
            std::thread::spawn(move || drop(sender.send(read_answer(&mut reader))));
        }
        answer
    }
}

fn read_answer(reader: &mut BufReader<UnixStream>) -> Result<Value, LabError> {
    let mut line = String::new();
    reader.read_line(&mut line).map_err(|error| LabError::system("hear a forwarder", error))?;
    let value: Value = serde_json::from_str(&line)
        .map_err(|_| LabError::Said("a forwarder has ended: see its log".into()))?;
    match value["error"].as_str() {
        Some(error) => Err(LabError::Said(error.to_string())),
        None => Ok(value),
    }
}

/// Hears of links from the nodes of a process, as long as it lives.
fn watch(path: &Path, sender: mpsc::Sender<(Node, u32, bool, Instant)>) -> Result<(), LabError> {
    let mut talk = Talk::open(path, &Order::Watch)?;
    std::thread::spawn(move || {
        while let Ok(event) = talk.answer() {
            let node = event["node"].as_str().and_then(node_of);
            let port = event["port"].as_u64().and_then(|port| u32::try_from(port).ok());
            if let (Some(node), Some(port), Some(up)) = (node, port, event["up"].as_bool())
                && sender.send((node, port, up, Instant::now())).is_err()
            {
                return;
            }
        }
    });
    Ok(())
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
    use polycast_topology::Graph;
    use std::collections::BTreeSet;

    #[test]
    fn every_link_has_a_cable_and_two_addresses_and_every_server_can_be_reached() {
        for text in ["bcube:4,2", "torus:4,2", "fat-tree:4,3"] {
            let network: Network = text.parse().unwrap();
            let graph = CompactGraph::new(&network);
            assert_eq!(cables(&network).len(), network.link_count() as usize, "{text}");
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

    #[test]
    fn a_repair_tells_only_those_whose_way_has_changed() {
        let network: Network = "bcube:4,2".parse().unwrap();
        let mut planner = TreePlanner::new(network);
        let plan = planner.plan(0, &[2, 4, 9, 11, 13, 15], &Failures::none()).unwrap();
        let mut group = Group::new(plan);
        group.routes(&planner).unwrap();
        let mut failures = Failures::none();
        // Section 7: the link from switch <0,3> to server 32, by which only 02 is reached.
        failures.fail_link(network.link_between(19, 14).unwrap());
        let changes = group.repair(&mut planner, &failures).unwrap();
        assert_eq!(changes.len(), 1, "{changes:?}");
        assert!(
            changes[0].receiver == "h2" && changes[0].tree == 1 && changes[0].route.is_some(),
            "{changes:?}"
        );
        assert_eq!(group.repair(&mut planner, &failures).unwrap(), []);
        // Both links of server 23.
        for switch in [18, 23] {
            failures.fail_link(network.link_between(11, switch).unwrap());
        }
        let changes = group.repair(&mut planner, &failures).unwrap();
        let lost: Vec<_> = changes.iter().filter(|change| change.route.is_none()).collect();
        assert!(lost.len() == 2 && lost.iter().all(|change| change.receiver == "h11"), "{changes:?}");
    }
}
