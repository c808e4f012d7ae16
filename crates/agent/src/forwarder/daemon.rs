//! The process around nodes, `polycast forwarder` or a host's agent: what can be asked of it.
//!
//! A connection, over the Unix socket or TCP, carries one order as a line of JSON; answers are lines of JSON.
//!
//! - `{"do":"status"}`: the counters of all nodes, and how many clients watch.
//! - `{"do":"watch"}`: the links of all nodes, then every link that changes, until the connection ends
//!   (`polycast_api::forwarder`). The manager asks for this.
//!
//! Nothing can be changed here. In a cluster with a key or certificates the TCP address is for members: its
//! connections are sealed, and a client that begins in plain is told so.

use super::{ForwarderConfig, NodeHandle, NodeStatus, PortStatus, start};
use crate::callers::{Caller, Callers, CallersMax};
use polycast_api::forwarder::{LinkChange, NodeLinks, Word};
use polycast_net::tls::{Blocking, Security};
use polycast_net::words::WordsKey;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// Clients at a time over the Unix socket, and as many over TCP.
const CLIENTS_MAX: usize = 256;
/// Limits on TCP clients that have not shown their key or certificate yet, or not sent their request.
const CALLERS_MAX: CallersMax = CallersMax { of_one: 8, all: 64 };
/// The longest line that is read.
const LINE_LEN_MAX: u64 = 4 << 10;

/// A client that comes over TCP shows its key or certificate, and says what it asks for, within this time.
const FIRST_WITHIN: Duration = Duration::from_secs(2);
/// A client that watches hears all links again after so long without news: so an end of the connection is
/// noticed.
const SAY_AGAIN: Duration = Duration::from_secs(5);
/// A client that takes no words for so long is hung up on: what it is to hear would only become more.
const HEARD_WITHIN: Duration = Duration::from_secs(10);

/// An order to the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Order {
    /// Tell the counters.
    Status,
    /// Tell which links change.
    Watch,
}

/// The nodes of a process, which run as long as this lives.
pub struct Nodes {
    by_name: BTreeMap<String, NodeHandle>,
    numbers: BTreeMap<String, u32>,
    /// TCP address at which the links are reported, if the settings name one.
    control: Option<SocketAddr>,
    /// Clients that have been told all links, and hear what changes.
    watchers: Arc<AtomicUsize>,
}

impl Nodes {
    /// Starts the nodes, and answers orders in threads of its own; over TCP those of members where there is
    /// `security`.
    ///
    /// # Errors
    /// A node cannot be started, or a socket cannot be made.
    pub fn start(config: &ForwarderConfig, security: Option<&Security>) -> io::Result<Arc<Self>> {
        let key = WordsKey::of(security);
        let named =
            |name: &str, error: io::Error| io::Error::new(error.kind(), format!("node '{name}': {error}"));
        let begin = |node: &super::NodeConfig| {
            Ok((node.name.clone(), start(node, &key).map_err(|error| named(&node.name, error))?))
        };
        let by_name = config.nodes.iter().map(begin).collect::<io::Result<_>>()?;
        let numbers =
            config.nodes.iter().filter_map(|node| Some((node.name.clone(), node.number?))).collect();
        let tcp = config.control.map(|address| {
            let failed = |error: io::Error| io::Error::new(error.kind(), format!("{address}: {error}"));
            TcpListener::bind(address).map_err(failed)
        });
        let tcp = tcp.transpose()?;
        let control = tcp.as_ref().and_then(|listener| listener.local_addr().ok());
        let nodes = Arc::new(Nodes { by_name, numbers, control, watchers: Arc::default() });
        if let Some(path) = &config.socket {
            let (listener, clients) = (listen(path)?, Arc::default());
            let take = move |mut stream: UnixStream, nodes| match Counted::within(CLIENTS_MAX, &clients) {
                Some(_counted) => {
                    let order = order(&mut stream)?;
                    fulfil(&mut stream, nodes, &order)
                }
                None => Ok(()),
            };
            answer(&nodes, move || listener.accept().map(|(stream, _)| stream), take);
        }
        if let Some(listener) = tcp {
            let (security, callers) = (security.cloned(), Callers::new(CALLERS_MAX));
            let clients = Arc::default();
            let accept = move || {
                let (stream, from) = listener.accept()?;
                let caller = callers.enter(from.ip(), &stream)?;
                Ok::<_, io::Error>((stream, caller))
            };
            answer(&nodes, accept, move |caller, nodes| admit(caller, security.as_ref(), &clients, nodes));
        }
        Ok(nodes)
    }

    /// Returns the number of nodes.
    #[must_use]
    pub fn count(&self) -> usize {
        self.by_name.len()
    }

    /// A node by its name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&NodeHandle> {
        self.by_name.get(name)
    }

    /// Returns the TCP address at which the links are reported.
    #[must_use]
    pub fn control(&self) -> Option<SocketAddr> {
        self.control
    }

    /// The links of all nodes that have a number.
    fn links(&self) -> Word {
        let links = self.status().into_iter().filter_map(|node| {
            let is_down = |(_, port): &(u32, &PortStatus)| port.known && !port.up;
            let down = (0u32..).zip(&node.ports).filter(is_down).map(|(number, _)| number);
            Some(NodeLinks { number: *self.numbers.get(&node.name)?, down: down.collect(), name: node.name })
        });
        Word::Nodes(links.collect())
    }

    /// The counters of all nodes.
    #[must_use]
    pub fn status(&self) -> Vec<NodeStatus> {
        self.by_name.values().filter_map(NodeHandle::status).collect()
    }
}

/// Takes connections in a thread, as long as the process runs, and does something with each in a thread of
/// its own.
fn answer<C: Send + 'static>(
    nodes: &Arc<Nodes>,
    accept: impl Fn() -> io::Result<C> + Send + 'static,
    take: impl Fn(C, Arc<Nodes>) -> io::Result<()> + Clone + Send + 'static,
) {
    // The nodes end when their process lets go of them.
    let nodes = Arc::downgrade(nodes);
    std::thread::spawn(move || {
        loop {
            let connection = match accept() {
                Ok(connection) => connection,
                Err(error) => {
                    tracing::warn!(%error, "cannot take a connection");
                    // Out of descriptors, most likely: some will be free again.
                    std::thread::sleep(Duration::from_millis(100));
                    continue;
                }
            };
            let Some(nodes) = nodes.upgrade() else { return };
            let take = take.clone();
            std::thread::spawn(move || {
                if let Err(error) = take(connection, nodes) {
                    tracing::debug!(%error, "a connection has ended");
                }
            });
        }
    });
}

/// The socket of an earlier process that has ended is taken over; one that is alive is not.
pub(crate) fn listen(path: &Path) -> io::Result<UnixListener> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    if UnixStream::connect(path).is_ok() {
        let taken = io::Error::new(io::ErrorKind::AddrInUse, "another process listens there");
        return Err(named(taken));
    }
    match std::fs::symlink_metadata(path) {
        Ok(metadata) if metadata.file_type().is_socket() => std::fs::remove_file(path).map_err(named)?,
        Ok(_) => return Err(named(io::Error::other("something that is not a socket is there"))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(named(error)),
    }
    UnixListener::bind(path).map_err(named)
}

fn say(stream: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    stream.write_all(format!("{}\n", serde_json::to_string(value)?).as_bytes())
}

/// Answers one that came over TCP: a member, where there is `security`.
fn admit(
    (mut stream, caller): (TcpStream, Caller),
    security: Option<&Security>,
    clients: &Arc<AtomicUsize>,
    nodes: Arc<Nodes>,
) -> io::Result<()> {
    stream.set_write_timeout(Some(HEARD_WITHIN))?;
    stream.set_read_timeout(Some(FIRST_WITHIN))?;
    let Some(security) = security else {
        let order = order(&mut stream)?;
        drop(caller);
        let Some(_counted) = Counted::within(CLIENTS_MAX, clients) else { return Ok(()) };
        return fulfil(&mut stream, nodes, &order);
    };
    match Blocking::answer(stream.try_clone()?, security, FIRST_WITHIN)? {
        Ok(mut sealed) => {
            // A member. It has as long for its order as it has had for that.
            drop(caller);
            let Some(_counted) = Counted::within(CLIENTS_MAX, clients) else { return Ok(()) };
            stream.set_read_timeout(Some(FIRST_WITHIN))?;
            let order = order(&mut sealed)?;
            fulfil(&mut sealed, nodes, &order)
        }
        Err(_) => say(
            &mut stream,
            &json!({ "error": "this end takes sealed connections only: use the cluster's key" }),
        ),
    }
}

/// The line that says what one asks for.
fn order(stream: &mut impl Read) -> io::Result<String> {
    let mut line = String::new();
    match BufReader::new(Read::take(stream, LINE_LEN_MAX)).read_line(&mut line)? {
        // It has gone, or was closed for others.
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(line),
    }
}

fn fulfil(stream: &mut impl Write, nodes: Arc<Nodes>, order: &str) -> io::Result<()> {
    let answer: Value = match serde_json::from_str(order) {
        Err(error) => json!({ "error": format!("that is no order: {error}") }),
        Ok(Order::Status) => {
            json!({ "nodes": nodes.status(), "watchers": nodes.watchers.load(Ordering::Relaxed) })
        }
        Ok(Order::Watch) => return watch(stream, nodes),
    };
    say(stream, &answer)
}

/// Counts one more as long as it lives.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Counted(Arc::clone(count))
    }

    /// The same, if there are not as many as there may be.
    fn within(most: usize, count: &Arc<AtomicUsize>) -> Option<Self> {
        let counted = Counted::new(count);
        (count.load(Ordering::Relaxed) <= most).then_some(counted)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Tells links until the other end or the nodes are gone.
fn watch(stream: &mut impl Write, nodes: Arc<Nodes>) -> io::Result<()> {
    let (sender, events) = mpsc::channel();
    // First the listener is entered, then it is told what there is: so nothing is missed in between.
    nodes.by_name.values().for_each(|node| node.watch(sender.clone()));
    drop(sender);
    say(stream, &nodes.links())?;
    let _counted = Counted::new(&nodes.watchers);
    // A client that only watches does not keep them running.
    let (numbers, watched) = (nodes.numbers.clone(), Arc::downgrade(&nodes));
    drop(nodes);
    loop {
        match events.recv_timeout(SAY_AGAIN) {
            Ok(event) => {
                let Some(number) = numbers.get(&*event.node) else { continue };
                let (name, port) = (event.node.to_string(), u32::from(event.port));
                say(stream, &Word::Link(LinkChange { name, number: *number, port, up: event.up }))?;
            }
            Err(mpsc::RecvTimeoutError::Timeout) => {
                let Some(nodes) = watched.upgrade() else { return Ok(()) };
                say(stream, &nodes.links())?;
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polycast_net::seal::Secret;
    use polycast_net::tls::Expected;
    use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _};

    #[test]
    fn only_a_socket_makes_room_for_a_socket() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("node.sock");
        drop(listen(&path).unwrap());
        assert!(path.exists());
        drop(listen(&path).unwrap());
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, b"mine").unwrap();
        let error = listen(&path).unwrap_err().to_string();
        assert!(error.ends_with("something that is not a socket is there"), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), b"mine");
    }

    /// The first line that one hears that asks over TCP.
    fn asked(address: SocketAddr, security: Option<&Security>) -> String {
        let order = "{\"do\":\"status\"}\n";
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let remark = polycast_net::tls::Remark::default();
            let heard = async {
                let name = address.to_string();
                let mut talk =
                    polycast_net::tls::Talk::connect(&name, security, &Expected::Sharer, &remark).await?;
                talk.write_all(order.as_bytes()).await?;
                let mut line = String::new();
                tokio::io::BufReader::new(talk).read_line(&mut line).await?;
                Ok::<_, io::Error>(line)
            };
            heard.await.unwrap_or_else(|error| error.to_string())
        })
    }

    #[test]
    fn with_a_key_only_members_ask_over_tcp() {
        let [ours, others] = [(); 2].map(|()| Security::shared(&Secret::fresh()));
        let config = ForwarderConfig {
            socket: None,
            control: Some("127.0.0.1:0".parse().unwrap()),
            nodes: Vec::new(),
        };
        let nodes = Nodes::start(&config, Some(&ours)).unwrap();
        let address = nodes.control().unwrap();
        assert!(asked(address, Some(&ours)).contains("\"nodes\":[]"));
        assert!(asked(address, None).contains("sealed connections only"));
        let foreign = asked(address, Some(&others));
        assert!(!foreign.contains("nodes") && foreign.contains("key"), "{foreign}");
        // Without a key it is as before.
        let plain = Nodes::start(&config, None).unwrap();
        assert!(asked(plain.control().unwrap(), None).contains("\"nodes\":[]"));
    }

    /// As many as there may be in all, of one host that says nothing and has no key, keep no member out:
    /// neither one over TCP nor a program of this machine.
    #[test]
    fn those_who_say_nothing_keep_none_out() {
        let folder = tempfile::tempdir().unwrap();
        let ours = Security::shared(&Secret::fresh());
        for security in [None, Some(&ours)] {
            let socket = folder.path().join(format!("node{}.sock", security.is_some()));
            let config = ForwarderConfig {
                socket: Some(socket.clone()),
                control: Some("127.0.0.1:0".parse().unwrap()),
                nodes: Vec::new(),
            };
            let nodes = Nodes::start(&config, security).unwrap();
            let address = nodes.control().unwrap();
            let silent: Vec<TcpStream> =
                (0..CLIENTS_MAX + 1).map(|_| TcpStream::connect(address).unwrap()).collect();
            let heard = asked(address, security);
            assert!(heard.contains("\"nodes\":[]"), "{heard}");
            let mut here = UnixStream::connect(&socket).unwrap();
            say(&mut here, &Order::Status).unwrap();
            let mut line = String::new();
            BufReader::new(here).read_line(&mut line).unwrap();
            assert!(line.contains("\"nodes\":[]"), "{line}");
            drop(silent);
        }
    }

    #[test]
    fn clients_that_watch_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("node.sock");
        let mut nodes = crate::forwarder::tests::configs(1, &[]);
        nodes[0].number = Some(7);
        let config = ForwarderConfig { socket: Some(socket.clone()), control: None, nodes };
        let nodes = Nodes::start(&config, None).unwrap();
        let order = |order: Order| {
            let mut stream = UnixStream::connect(&socket).unwrap();
            say(&mut stream, &order).unwrap();
            let mut heard = BufReader::new(stream);
            let mut line = String::new();
            heard.read_line(&mut line).unwrap();
            (line, heard)
        };
        let count = || serde_json::from_str::<Value>(&order(Order::Status).0).unwrap()["watchers"].as_u64();
        let becomes = |expected| {
            while count() != Some(expected) {
                std::thread::yield_now();
            }
        };
        assert_eq!(count(), Some(0));
        let (links, watching) = order(Order::Watch);
        assert!(links.contains("n0"), "{links}");
        becomes(1);
        let second = order(Order::Watch);
        becomes(2);
        drop((watching, second, nodes));
    }
}
