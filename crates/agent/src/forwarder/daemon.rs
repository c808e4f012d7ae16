//! The process `polycast forwarder`: several nodes, and a Unix socket where it can be spoken to.
//!
//! A connection carries one order as a line of JSON; answers are lines of JSON.
//!
//! - `{"do":"status"}`: the counters of all nodes.
//! - `{"do":"watch"}`: the links that are down, then every link that changes, until the connection ends.
//! - `{"do":"serve", ..}`: a node becomes the source of an object. The first answer holds the control channel's address
//!   and the transfer's handle, the last one the report. Meanwhile lines with [`Change`]s repair trees.
//! - `{"do":"fetch", ..}`: a node becomes a receiver. The answer comes when the object is there.
//!
//! Whoever may open the socket may do all of this: it belongs to the user of the process.

use super::{ForwarderConfig, NodeHandle, NodeStatus, start};
use crate::transfer::{
    Options, PullOutcome, PullReceiver, PullSettings, PullSpec, ReceiverSpec, Rendezvous, RouteChange, Sink,
    fetch, prepare_pull,
};
use polycast_net::archive::TreeSource;
use polycast_net::object::{FileSource, ObjectKind, ObjectSource};
use polycast_protocol::pull::Route;
use polycast_types::{AppId, DataId, Duration, Handle, ObjectId};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};

/// Connections at a time.
const CONNECTIONS_MAX: usize = 1_024;
/// The longest line that is read.
const LINE_LEN_MAX: u64 = 16 << 20;

/// An order to the process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Order {
    /// Tell the counters.
    Status,
    /// Tell which links change.
    Watch,
    /// Be the source of an object.
    Serve(Serve),
    /// Be a receiver of an object.
    Fetch(Fetch),
}

/// What a source is told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Serve {
    /// The node.
    pub node: String,
    /// The file or directory.
    pub path: PathBuf,
    /// Address of the interface where receivers reach the control channel.
    pub interface: Ipv4Addr,
    /// Bytes of payload in a packet.
    pub payload_len: u16,
    /// Packets that may be asked for at a time in each tree.
    pub credits: u32,
    /// The rate of the source's links, in bits a second.
    pub link_bps: u64,
    /// A receiver without news for so many milliseconds has failed.
    pub stall_ms: u64,
    /// The receivers.
    pub receivers: Vec<ServeReceiver>,
}

/// A receiver of a source.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServeReceiver {
    /// Its name.
    pub name: String,
    /// The hops to the source in each tree.
    pub routes: Vec<Option<Vec<u8>>>,
}

/// A way that has changed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// The receiver.
    pub receiver: String,
    /// The tree.
    pub tree: u8,
    /// The hops to the source; none if the tree does not reach it any more.
    pub route: Option<Vec<u8>>,
}

/// What a receiver is told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fetch {
    /// The node.
    pub node: String,
    /// The receiver's name.
    pub name: String,
    /// Where the source's control channel is.
    pub address: SocketAddr,
    /// The transfer.
    pub handle: u64,
    /// Where the object goes.
    pub out: PathBuf,
}

/// Runs the nodes and serves the socket until the process ends. `ready` is called once both are there.
///
/// # Errors
/// A node cannot be started, or the socket cannot be made.
pub fn run(config: &ForwarderConfig, ready: impl FnOnce(usize)) -> io::Result<()> {
    let named =
        |name: &str, error: io::Error| io::Error::new(error.kind(), format!("node '{name}': {error}"));
    let nodes: BTreeMap<String, NodeHandle> = config
        .nodes
        .iter()
        .map(|node| Ok((node.name.clone(), start(node).map_err(|error| named(&node.name, error))?)))
        .collect::<io::Result<_>>()?;
    let nodes = Arc::new(nodes);
    let listener = listen(&config.socket)?;
    ready(nodes.len());
    let connections = Arc::new(AtomicUsize::new(0));
    for stream in listener.incoming() {
        let stream = match stream {
            Ok(stream) => stream,
            Err(error) => {
                tracing::warn!(%error, "cannot take a connection");
                // Out of descriptors, most likely: some will be free again.
                std::thread::sleep(std::time::Duration::from_millis(100));
                continue;
            }
        };
        let (nodes, connections) = (Arc::clone(&nodes), Arc::clone(&connections));
        if connections.fetch_add(1, Ordering::Relaxed) >= CONNECTIONS_MAX {
            connections.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        std::thread::spawn(move || {
            if let Err(error) = serve_connection(stream, &nodes) {
                tracing::debug!(%error, "a connection has ended");
            }
            connections.fetch_sub(1, Ordering::Relaxed);
        });
    }
    Ok(())
}

/// The socket of an earlier process that has ended is taken over; one that is alive is not.
fn listen(path: &Path) -> io::Result<UnixListener> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    if UnixStream::connect(path).is_ok() {
        let taken = io::Error::new(io::ErrorKind::AddrInUse, "another process listens there");
        return Err(named(taken));
    }
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(named(error)),
        _ => {}
    }
    UnixListener::bind(path).map_err(named)
}

fn read_line(reader: &mut impl BufRead) -> io::Result<Option<String>> {
    let mut line = String::new();
    let read = io::Read::take(reader, LINE_LEN_MAX).read_line(&mut line)?;
    Ok((read > 0).then_some(line))
}

fn say(stream: &UnixStream, value: &Value) -> io::Result<()> {
    let mut stream = stream;
    stream.write_all(format!("{value}\n").as_bytes())
}

fn serve_connection(stream: UnixStream, nodes: &BTreeMap<String, NodeHandle>) -> io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let Some(line) = read_line(&mut reader)? else { return Ok(()) };
    let node = |name: &str| nodes.get(name).ok_or_else(|| format!("there is no node '{name}' here"));
    let answer = match serde_json::from_str(&line) {
        Err(error) => Err(format!("that is no order: {error}")),
        Ok(Order::Status) => {
            let status: Vec<NodeStatus> = nodes.values().filter_map(NodeHandle::status).collect();
            Ok(json!({ "nodes": status }))
        }
        Ok(Order::Watch) => return watch(&stream, nodes),
        Ok(Order::Serve(order)) => node(&order.node).and_then(|node| serve(&order, node, &stream, reader)),
        Ok(Order::Fetch(order)) => node(&order.node).and_then(|node| receive(&order, node, &stream)),
    };
    say(&stream, &answer.unwrap_or_else(|error| json!({ "error": error })))
}

fn watch(stream: &UnixStream, nodes: &BTreeMap<String, NodeHandle>) -> io::Result<()> {
    let (sender, events) = mpsc::channel();
    nodes.values().for_each(|node| node.watch(sender.clone()));
    drop(sender);
    for event in events {
        say(stream, &json!({ "node": &*event.node, "port": event.port, "up": event.up }))?;
    }
    Ok(())
}

fn open(path: &Path) -> io::Result<(Arc<dyn ObjectSource>, ObjectKind)> {
    if path.is_dir() {
        let tree = TreeSource::open(path).map_err(|error| io::Error::other(error.to_string()))?;
        return Ok((Arc::new(tree), ObjectKind::Directory));
    }
    Ok((Arc::new(FileSource::open(path)?), ObjectKind::File))
}

fn read_hops(hops: Option<&Vec<u8>>) -> Result<Option<Route>, String> {
    hops.map(|hops| Route::from_bytes(hops, 0).map_err(|error| error.to_string())).transpose()
}

fn serve(
    order: &Serve,
    node: &NodeHandle,
    stream: &UnixStream,
    mut reader: BufReader<UnixStream>,
) -> Result<Value, String> {
    let failed = |error: &dyn std::fmt::Display| error.to_string();
    let (source, kind) = open(&order.path).map_err(|error| format!("{}: {error}", order.path.display()))?;
    let receiver = |receiver: &ServeReceiver| {
        let routes = receiver.routes.iter().map(|hops| read_hops(hops.as_ref())).collect::<Result<_, _>>()?;
        Ok(PullReceiver { name: receiver.name.clone(), routes })
    };
    if order.payload_len == 0 || order.credits == 0 || order.link_bps == 0 {
        return Err("payload_len, credits and link_bps must be above 0".into());
    }
    let cancel = Arc::new(AtomicBool::new(false));
    let name = order.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let prepared = prepare_pull(PullSpec {
        object: ObjectId { app: AppId(*uuid::Uuid::new_v4().as_bytes()), data: DataId(0) },
        name: name.clone(),
        kind,
        source,
        receivers: order.receivers.iter().map(receiver).collect::<Result<_, String>>()?,
        interface: order.interface,
        node: node.clone(),
        settings: PullSettings {
            payload_len: order.payload_len,
            credits: order.credits,
            link_bps: order.link_bps,
        },
        options: Options { stall_timeout: Duration::from_millis(order.stall_ms), ..Options::default() },
        cancel: Arc::clone(&cancel),
    })
    .map_err(|error| failed(&error))?;
    let (address, handle) = (prepared.control_address(), prepared.handle());
    say(stream, &json!({ "address": address, "handle": handle.0 })).map_err(|error| failed(&error))?;
    let (sender, changes) = mpsc::channel();
    std::thread::spawn(move || {
        while let Ok(Some(line)) = read_line(&mut reader) {
            let Ok(Change { receiver, tree, route }) = serde_json::from_str(&line) else { break };
            let Ok(route) = read_hops(route.as_ref()) else { break };
            if sender.send(RouteChange { receiver, tree, route }).is_err() {
                return;
            }
        }
        // Whoever gave the order has gone, or says what nobody understands.
        cancel.store(true, Ordering::Relaxed);
    });
    let outcome = prepared.run(&changes, &mut |_| {}).map_err(|error| failed(&error))?;
    Ok(report_json(&name, &outcome))
}

fn report_json(name: &str, outcome: &PullOutcome) -> Value {
    let report = &outcome.report;
    let receivers: Vec<Value> = report
        .receivers
        .iter()
        .map(|receiver| {
            let mut value = json!({
                "name": receiver.name,
                "verified": receiver.verified,
                "seconds": receiver.seconds,
                "patched_bytes": receiver.patched_bytes,
                "fabric": receiver.fabric,
            });
            if let Some(error) = &receiver.error {
                value["error"] = error.as_str().into();
            }
            value
        })
        .collect();
    let goodput = if report.seconds > 0.0 { report.bytes as f64 * 8.0 / report.seconds } else { 0.0 };
    json!({
        "object": uuid::Uuid::from_bytes(report.object.app.0).to_string(),
        "name": name,
        "bytes": report.bytes,
        "seconds": report.seconds,
        "goodput_bps": goodput,
        "fabric": report.fabric,
        "receivers": receivers,
        "sent_bytes": report.sent_bytes,
        "patched_bytes": report.patched_bytes,
        "root": report.root,
        "trees": outcome.trees,
    })
}

fn receive(order: &Fetch, node: &NodeHandle, stream: &UnixStream) -> Result<Value, String> {
    let cancel = Arc::new(AtomicBool::new(false));
    let spec = ReceiverSpec {
        name: order.name.clone(),
        rendezvous: Rendezvous::At(order.address, Handle(order.handle)),
        interface: Ipv4Addr::UNSPECIFIED,
        sink: Sink::Path(order.out.clone()),
        options: Options::default(),
        cancel: Arc::clone(&cancel),
    };
    if let Ok(mut watched) = stream.try_clone() {
        std::thread::spawn(move || {
            // Whoever gave the order says no more; the end of the connection ends the transfer.
            let _ = io::copy(&mut watched, &mut io::sink());
            cancel.store(true, Ordering::Relaxed);
        });
    }
    let received = fetch(&spec, node, &mut |_| {}).map_err(|error| error.to_string())?;
    Ok(json!({
        "path": received.path,
        "bytes": received.bytes,
        "seconds": received.seconds,
        "root": received.root,
    }))
}
