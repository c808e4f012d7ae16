//! The service with the real engine, over the loopback interface.

use super::world::{AgentTask, ManagerTask, SOON, World, events, manager, serve, stopped, until};
use polycast_agent::daemon::{Agent, AgentConfig};
use polycast_agent::forwarder::daemon::Nodes;
use polycast_agent::forwarder::{ForwarderConfig, NodeConfig, PortConfig, Replacement};
use polycast_api::agent::send_event::Event;
use polycast_api::agent::{ObjectKind, PathForm, TransferReport};
use polycast_api::client::{Receivers, SendOptions};
use polycast_topology::{CompactGraph, Network};
use polycast_types::{AppId, DataId};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::unix::fs::PermissionsExt;

/// Sends a file and a directory from one agent to two, and gives which fabric carried the file.
async fn deliver(settings: &str) -> String {
    let manager = manager(0, settings).await;
    let world = World::new(manager.address);
    let mut agents = Vec::new();
    for name in ["a", "b", "c"] {
        agents.push(world.real_agent(world.config(name)).await);
    }
    let client = agents[0].client().await;
    until("all agents have joined", async || client.status().await.unwrap().peers.len() == 3).await;
    let bytes: Vec<u8> = (0..3_000_017u32).map(|i| ((i * 31) >> 3) as u8).collect();
    let source = agents[0].session(1).await;
    source.add(DataId(1), &world.file("model.bin", &bytes)).await.unwrap();
    let tree = world.folder.path().join("tree");
    std::fs::create_dir_all(tree.join("empty")).unwrap();
    std::fs::write(tree.join("leaf"), b"leaf").unwrap();
    source.add(DataId(2), &tree).await.unwrap();
    let mut fabric = String::new();
    for number in [1, 2] {
        let sending = source.send(DataId(number), &Receivers::All, &SendOptions::default()).await.unwrap();
        let (events, error) = events(sending).await;
        assert!(error.is_none(), "{error:?}");
        let Some(Event::Finished(report)) = events.last() else { panic!("{events:?}") };
        assert!(report.is_complete(), "{report:?}");
        assert_eq!(report.receivers.len(), 2);
        if number == 1 {
            fabric.clone_from(&report.fabric);
        }
        assert_eq!(source.read(DataId(number), SOON).await.unwrap().root, report.root);
    }
    for agent in &agents[1..] {
        let session = agent.session(1).await;
        let file = session.read(DataId(1), SOON).await.unwrap();
        assert_eq!((file.kind(), file.name.as_str()), (ObjectKind::File, "model.bin"));
        assert!(std::fs::read(&file.path).unwrap() == bytes);
        let directory = session.read(DataId(2), SOON).await.unwrap();
        assert_eq!((directory.kind(), directory.form()), (ObjectKind::Directory, PathForm::Bytes));
        let target = world.folder.path().join("out");
        let mut stream = std::fs::File::open(&directory.path).unwrap();
        polycast_net::archive::unpack(&mut stream, &target, false).unwrap();
        assert_eq!(std::fs::read(target.join("leaf")).unwrap(), b"leaf");
        assert!(target.join("empty").is_dir());
        std::fs::remove_dir_all(target).unwrap();
    }
    stopped(agents, manager).await;
    fabric
}

#[tokio::test(flavor = "multi_thread")]
async fn over_multicast() {
    // Groups of the loopback interface are this machine's: other tests use other ones.
    assert_eq!(deliver("[ip-multicast]\npool = '239.255.66.0/24'\nport = 17411").await, "ip-multicast");
}

#[tokio::test(flavor = "multi_thread")]
async fn over_the_chain() {
    assert_eq!(deliver("fabrics = ['tcp-chain']").await, "tcp-chain");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_send_may_be_said_again() {
    let manager = manager(0, "[ip-multicast]\npool = '239.255.67.0/24'\nport = 17412").await;
    let world = World::new(manager.address);
    let mut agents = Vec::new();
    for name in ["a", "b", "c"] {
        agents.push(world.real_agent(world.config(name)).await);
    }
    let client = agents[0].client().await;
    until("all agents have joined", async || client.status().await.unwrap().peers.len() == 3).await;
    let path = world.file("model.bin", &[7; 1_000_000]);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    let source = agents[0].session(1).await;
    let send = async || {
        source.add(DataId(5), &path).await.unwrap();
        let sending = source.send(DataId(5), &Receivers::All, &SendOptions::default()).await.unwrap();
        let (events, error) = events(sending).await;
        let Some(Event::Finished(report)) = events.last() else { panic!("{events:?} {error:?}") };
        assert!(report.is_complete(), "{report:?}");
        report.sent_bytes
    };
    assert!(send().await >= 1_000_000);
    let (b, c) = (agents[1].session(1).await, agents[2].session(1).await);
    // The end of a transfer comes to the receivers a moment after its source hears of it.
    assert_eq!(b.read(DataId(5), SOON).await.unwrap().mode, 0o640);
    c.read(DataId(5), SOON).await.unwrap();
    until("b has let it go", async || b.delete(DataId(5)).await.is_ok()).await;
    assert!(send().await >= 1_000_000, "b needs it again");
    b.read(DataId(5), SOON).await.unwrap();
    assert_eq!(send().await, 0, "both have it");
    // What a crash has left goes with it.
    until("b has let it go", async || b.delete(DataId(5)).await.is_ok()).await;
    let left =
        polycast_net::store::part_path(&agents[1].store.join(format!("{}-6.object", AppId::default())));
    std::fs::write(&left, b"a part").unwrap();
    b.delete(DataId(6)).await.unwrap();
    assert!(!left.exists());
    assert_eq!(b.delete(DataId(6)).await.unwrap_err().to_string(), "there is no object 6 here");
    stopped(agents, manager).await;
}

/// A BCube of four servers, `a` to `d`, and four switches on addresses of the loopback that belong to this
/// process.
struct Cube {
    agents: Vec<ForwarderConfig>,
    switches: ForwarderConfig,
    /// For the manager.
    settings: String,
}

/// Settings of a cube in tests of trees.
pub(super) struct Trees {
    /// Tells the tests of this process apart.
    pub(super) test: u16,
    /// Every node's store holds so many packets.
    pub(super) store_packets: u32,
    /// As the manager's settings name them.
    pub(super) fabrics: &'static str,
    pub(super) link_rate: &'static str,
    /// A link fails when its neighbour was not heard for four times as long.
    pub(super) greeting_ms: u32,
}

impl Default for Trees {
    fn default() -> Self {
        let (fabrics, link_rate) = ("'datacast', 'tcp-chain'", "80mbit");
        Trees { test: 0, store_packets: 512, fabrics, link_rate, greeting_ms: 1_000 }
    }
}

fn cube(trees: &Trees) -> Cube {
    let &Trees { test, store_packets, fabrics, link_rate, greeting_ms } = trees;
    let network: Network = "bcube:2,2".parse().unwrap();
    let graph = CompactGraph::new(&network);
    let id = std::process::id();
    let ip = Ipv4Addr::new(127, 60 + (id >> 16) as u8 % 60, (id >> 8) as u8, id as u8);
    let at = |number: u32| SocketAddrV4::new(ip, 24_000 + test * 500 + number as u16);
    let node = |number: u32| NodeConfig {
        name: format!("n{number}"),
        number: Some(number),
        namespace: None,
        store_packets,
        replacement: Replacement::default(),
        pending_interests: 4_096,
        interest_ms: 40,
        greeting_ms,
        damping_ms: 20,
        hops_max: 8,
        kernel: true,
        dscp: None,
        ports: graph
            .arcs(number)
            .map(|arc| PortConfig { local: at(arc), peer: at(graph.reverse(arc)), rate: None })
            .collect(),
    };
    let process = |number: u32, nodes: Vec<NodeConfig>| ForwarderConfig {
        socket: None,
        control: Some(at(400 + number).into()),
        nodes,
    };
    let servers = graph.server_count();
    let controls: Vec<String> = (0..=servers).map(|number| format!("'{}'", at(400 + number))).collect();
    Cube {
        agents: (0..servers).map(|server| process(server, vec![node(server)])).collect(),
        switches: process(servers, (servers..graph.node_count()).map(node).collect()),
        settings: format!(
            "fabrics = [{fabrics}]\nchoose = 'order'\n[datacast]\nnetwork = '{network}'\nlink-rate = '{link_rate}'\n\
             payload-bytes = 8192\nhosts = ['a', 'b', 'c', 'd']\nforwarders = [{}]\n",
            controls.join(", ")
        ),
    }
}

/// A manager, switches, and the agents `a` to `d` at the servers.
pub(super) struct Daemons {
    pub(super) world: World,
    pub(super) agents: Vec<AgentTask>,
    pub(super) switches: std::sync::Arc<Nodes>,
    pub(super) manager: ManagerTask,
}

impl Daemons {
    pub(super) async fn start(trees: Trees) -> Self {
        let cube = cube(&trees);
        let switches = Nodes::start(&cube.switches, None).unwrap();
        let manager = manager(0, &cube.settings).await;
        let world = World::new(manager.address);
        let mut agents = Vec::new();
        for (name, forwarder) in ["a", "b", "c", "d"].into_iter().zip(cube.agents) {
            let config = AgentConfig { forwarder: Some(forwarder), ..world.config(name) };
            agents.push(serve(Agent::start(config).await.unwrap()));
        }
        let client = agents[0].client().await;
        until("all agents have joined", async || client.status().await.unwrap().peers.len() == 4).await;
        until("all links work", async || {
            switches.status().iter().all(|node| node.ports.iter().all(|port| port.up))
        })
        .await;
        Daemons { world, agents, switches, manager }
    }
}

/// Sends 20 MB from `a` to the others over trees; gives the report. `meanwhile` may break the switches, and
/// sees the agent of `b`.
async fn pull(
    trees: Trees,
    meanwhile: impl AsyncFnOnce(&AgentTask, std::sync::Arc<Nodes>),
) -> TransferReport {
    let Daemons { world, agents, switches, manager } = Daemons::start(trees).await;
    let bytes: Vec<u8> = (0..20_000_017u32).map(|i| ((i * 31) >> 3) as u8).collect();
    let source = agents[0].session(1).await;
    source.add(DataId(1), &world.file("model.bin", &bytes)).await.unwrap();
    let sending = source.send(DataId(1), &Receivers::All, &SendOptions::default()).await.unwrap();
    let ((events, error), ()) = tokio::join!(events(sending), meanwhile(&agents[1], switches));
    assert!(error.is_none(), "{error:?}");
    let Some(Event::Finished(report)) = events.last() else { panic!("{events:?}") };
    assert!(report.is_complete(), "{report:?}");
    for agent in &agents[1..] {
        let file = agent.session(1).await.read(DataId(1), SOON).await.unwrap();
        assert!(std::fs::read(&file.path).unwrap() == bytes);
    }
    stopped(agents, manager).await;
    report.clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn over_trees() {
    let mut kept = None;
    // They run to the end.
    let trees = Trees { fabrics: "'datacast'", ..Trees::default() };
    let report = pull(trees, async |_, switches| kept = Some(switches)).await;
    assert_eq!(report.fabric, "datacast");
    assert_eq!(report.trees.len(), 2);
    assert!(report.trees.iter().all(|tree| tree.first_bytes > 0), "{:?}", report.trees);
    assert!(report.trees.iter().map(|tree| tree.first_bytes).sum::<u64>() >= report.length, "{report:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_fabric_takes_over_when_all_trees_are_lost() {
    // At this rate it is not over when they are lost, and the rest comes quickly by another fabric.
    let trees = Trees { test: 1, link_rate: "8mbit", greeting_ms: 300, ..Trees::default() };
    let report = pull(trees, async |receiver, switches| {
        let client = receiver.client().await;
        let verified = async || {
            let listed = client.list(None).await.unwrap();
            listed.first().map_or(0, |object| object.verified_bytes)
        };
        until("something is verified", async || verified().await > 0).await;
        drop(switches);
    })
    .await;
    assert_eq!(report.fabric, "datacast+tcp-chain", "{report:?}");
    assert!(report.path_lost.contains("tcp-chain took over"), "{report:?}");
}
