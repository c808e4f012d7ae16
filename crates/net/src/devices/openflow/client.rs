//! The OpenFlow controller's end on a socket.

use super::session::{Event, Reply, Session};
use super::{CodecError, FlowMod, GroupMod, Message, Port, PortChange, PortStats};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until, timeout};

/// Transactions that wait to be sent.
const ASKS_MAX: usize = 1_024;
/// Changes of ports that a slow listener may be behind by.
const EVENTS_MAX: usize = 1_024;
/// What one read asks for, in bytes.
const READ_LEN: usize = 64 << 10;

/// Where a switch listens for its controller.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Endpoint {
    /// A TCP address.
    Tcp(SocketAddr),
    /// A Unix socket, as Open vSwitch has one for each bridge.
    Unix(PathBuf),
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Tcp(address) => write!(f, "{address}"),
            Endpoint::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

/// How a switch is spoken to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SwitchOptions {
    /// How long connecting and the hand-shake may take together.
    pub connect_timeout: Duration,
    /// How long a transaction may take.
    pub command_timeout: Duration,
    /// After this long without a word the switch is asked whether it lives; after twice as long it is given
    /// up.
    pub keepalive: Duration,
}

impl Default for SwitchOptions {
    fn default() -> Self {
        SwitchOptions {
            connect_timeout: Duration::from_secs(3),
            command_timeout: Duration::from_secs(5),
            keepalive: Duration::from_secs(5),
        }
    }
}

/// Why something was not done, or is not known to have been done.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SwitchError {
    /// No connection could be made.
    #[error("the switch at {endpoint} cannot be reached: {reason}")]
    Unreachable {
        /// Where.
        endpoint: String,
        /// Why.
        reason: String,
    },
    /// It refused a change. What came before it in the same transaction was done.
    #[error("the switch refuses change {number} of {of}: {reason} (OpenFlow error {kind}, {code})")]
    Refused {
        /// The first refused change, from 1.
        number: usize,
        /// How many changes there were.
        of: usize,
        /// In words.
        reason: &'static str,
        /// OpenFlow's kind of error.
        kind: u16,
        /// OpenFlow's code within the kind.
        code: u16,
    },
    /// No answer in time: whether it was done is not known.
    #[error("the switch did not answer within {millis} ms")]
    TimedOut {
        /// How long it had.
        millis: u64,
    },
    /// The connection is gone: whether what was under way was done is not known.
    #[error("the connection to the switch is gone: connect again")]
    Gone,
    /// More under way than anyone needs.
    #[error("too much is under way at the switch: wait for answers")]
    Busy,
    /// An answer to another question.
    #[error("the switch answered something else than it was asked")]
    Answer,
}

/// The kinds of refusals in words (ONF TS-006, section A.4.4).
fn in_words(kind: u16, code: u16) -> &'static str {
    match (kind, code) {
        (1, 5) => "it does not let us do that",
        (1, _) => "it does not know this request",
        (2, 4) => "an action names a port that it does not have",
        (2, 9) => "an action names a group that it does not have",
        (2, 13) => "an action names a queue that it does not have",
        (2, _) => "it cannot do one of the actions",
        (3, _) => "it cannot do one of the instructions",
        (4, 9) => "a field is matched without what it needs, such as UDP ports without the protocol",
        (4, _) => "it cannot match these fields",
        (5, 1) => "its table is full",
        (5, _) => "it cannot change the flow",
        (6, 0) => "there is a group of this number already",
        (6, 3) => "it has no room for more groups",
        (6, 8) => "there is no group of this number",
        (6, _) => "it cannot change the group",
        _ => "it gives no reason in words",
    }
}

/// A change of a port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortEvent {
    /// What happened.
    pub change: PortChange,
    /// The port as it is now.
    pub port: Port,
}

/// Whether the connection lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Link {
    /// It does.
    Up,
    /// It is gone for good: connect again.
    Gone,
}

enum Question {
    Apply(Vec<Message>),
    Ports,
    PortStats,
}

struct Ask {
    question: Question,
    reply: oneshot::Sender<Result<Reply, SwitchError>>,
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A switch that speaks OpenFlow 1.3. Clones share the connection; the last one's end closes it.
#[derive(Clone, Debug)]
pub struct Switch {
    datapath_id: u64,
    asks: mpsc::Sender<Ask>,
    events: broadcast::Sender<PortEvent>,
    link: watch::Receiver<Link>,
}

impl Switch {
    /// Connects to a switch that listens, and shakes hands. Needs a tokio runtime around it.
    ///
    /// # Errors
    /// It cannot be reached, or does not speak OpenFlow 1.3.
    pub async fn connect(endpoint: &Endpoint, options: SwitchOptions) -> Result<Self, SwitchError> {
        let wrong = |error: io::Error| unreachable(endpoint, error.to_string());
        let connecting = async {
            let stream: Box<dyn Stream> = match endpoint {
                Endpoint::Tcp(address) => Box::new(tcp(*address).await.map_err(wrong)?),
                Endpoint::Unix(path) => Box::new(UnixStream::connect(path).await.map_err(wrong)?),
            };
            Connection::greet(stream).await.map_err(|broken| unreachable(endpoint, broken.to_string()))
        };
        let late =
            || unreachable(endpoint, format!("no answer within {} ms", options.connect_timeout.as_millis()));
        let (connection, datapath_id) =
            timeout(options.connect_timeout, connecting).await.unwrap_or_else(|_| Err(late()))?;
        Ok(Self::over(connection, datapath_id, options))
    }

    fn over(connection: Connection, datapath_id: u64, options: SwitchOptions) -> Self {
        let (asks, taken) = mpsc::channel(ASKS_MAX);
        let (events, _) = broadcast::channel(EVENTS_MAX);
        let (up, link) = watch::channel(Link::Up);
        let keeper = Keeper { options, asks: taken, events: events.clone(), datapath_id };
        tokio::spawn(async move {
            keeper.run(connection).await;
            up.send_replace(Link::Gone);
        });
        Switch { datapath_id, asks, events, link }
    }

    /// The switch's number.
    #[must_use]
    pub fn datapath_id(&self) -> u64 {
        self.datapath_id
    }

    /// Whether the connection lives, now and later.
    #[must_use]
    pub fn link(&self) -> watch::Receiver<Link> {
        self.link.clone()
    }

    /// Changes of ports, from now on.
    #[must_use]
    pub fn events(&self) -> broadcast::Receiver<PortEvent> {
        self.events.subscribe()
    }

    /// Changes groups, then flows, and waits until the switch has taken all of them in.
    ///
    /// # Errors
    /// It refused one, or it is not known what was done.
    pub async fn apply(
        &self,
        groups: impl IntoIterator<Item = GroupMod>,
        flows: impl IntoIterator<Item = FlowMod>,
    ) -> Result<(), SwitchError> {
        let groups = groups.into_iter().map(Message::GroupMod);
        self.send(groups.chain(flows.into_iter().map(Message::FlowMod)).collect()).await
    }

    /// Sends changes in this order and waits until the switch has taken all of them in.
    ///
    /// # Errors
    /// It refused one, or it is not known what was done.
    pub async fn send(&self, changes: Vec<Message>) -> Result<(), SwitchError> {
        let of = changes.len();
        match self.ask(Question::Apply(changes)).await? {
            Reply::Done => Ok(()),
            Reply::Refused { kind, code, index, .. } => {
                Err(SwitchError::Refused { number: index + 1, of, reason: in_words(kind, code), kind, code })
            }
            _ => Err(SwitchError::Answer),
        }
    }

    /// All ports.
    ///
    /// # Errors
    /// The switch does not answer.
    pub async fn ports(&self) -> Result<Vec<Port>, SwitchError> {
        match self.ask(Question::Ports).await? {
            Reply::Ports(ports) => Ok(ports),
            _ => Err(SwitchError::Answer),
        }
    }

    /// What all ports have seen.
    ///
    /// # Errors
    /// The switch does not answer.
    pub async fn port_stats(&self) -> Result<Vec<PortStats>, SwitchError> {
        match self.ask(Question::PortStats).await? {
            Reply::PortStats(stats) => Ok(stats),
            _ => Err(SwitchError::Answer),
        }
    }

    async fn ask(&self, question: Question) -> Result<Reply, SwitchError> {
        let (reply, answer) = oneshot::channel();
        self.asks.try_send(Ask { question, reply }).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => SwitchError::Busy,
            mpsc::error::TrySendError::Closed(_) => SwitchError::Gone,
        })?;
        answer.await.unwrap_or(Err(SwitchError::Gone))
    }
}

fn unreachable(endpoint: &Endpoint, reason: String) -> SwitchError {
    SwitchError::Unreachable { endpoint: endpoint.to_string(), reason }
}

async fn tcp(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Waits for switches that connect to their controller of their own accord, as most do.
#[derive(Debug)]
pub struct SwitchListener {
    listener: TcpListener,
    options: SwitchOptions,
}

impl SwitchListener {
    /// Listens.
    ///
    /// # Errors
    /// The address is in use or not ours.
    pub async fn bind(address: SocketAddr, options: SwitchOptions) -> io::Result<Self> {
        Ok(SwitchListener { listener: TcpListener::bind(address).await?, options })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// The system does not know.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// The next switch that connects and shakes hands. One that does so slowly holds up the next for the
    /// connect timeout at most.
    ///
    /// # Errors
    /// No more connections can be taken, or this one does not speak OpenFlow 1.3.
    pub async fn accept(&self) -> Result<Switch, SwitchError> {
        let ours =
            |reason: String| SwitchError::Unreachable { endpoint: "its connection to us".into(), reason };
        let (stream, address) = self.listener.accept().await.map_err(|error| ours(error.to_string()))?;
        let wrong = |reason: String| unreachable(&Endpoint::Tcp(address), reason);
        stream.set_nodelay(true).map_err(|error| wrong(error.to_string()))?;
        match timeout(self.options.connect_timeout, Connection::greet(Box::new(stream))).await {
            Ok(Ok((connection, id))) => Ok(Switch::over(connection, id, self.options.clone())),
            Ok(Err(broken)) => Err(wrong(broken.to_string())),
            Err(_) => Err(wrong("it does not shake hands".into())),
        }
    }
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("the other end closed it")]
    Closed,
    #[error("{0}")]
    Codec(#[from] CodecError),
    #[error("no sign of life")]
    Silent,
}

/// A stream and the machine on it.
struct Connection {
    stream: Box<dyn Stream>,
    session: Session,
    waiting: BTreeMap<u32, oneshot::Sender<Result<Reply, SwitchError>>>,
    /// When each transaction runs out, in the order of sending.
    deadlines: VecDeque<(Instant, u32)>,
    buffer: Vec<u8>,
}

impl Connection {
    /// Shakes hands; gives the switch's number.
    async fn greet(stream: Box<dyn Stream>) -> Result<(Self, u64), Broken> {
        let (waiting, deadlines) = (BTreeMap::new(), VecDeque::new());
        let buffer = vec![0; READ_LEN];
        let mut connection = Connection { stream, session: Session::new(), waiting, deadlines, buffer };
        loop {
            connection.flush().await?;
            connection.read().await?;
            while let Some(event) = connection.session.poll() {
                if let Event::Ready { datapath_id } = event {
                    return Ok((connection, datapath_id));
                }
            }
        }
    }

    /// Reads once and lets the machine have it. Can be cancelled without loss.
    async fn read(&mut self) -> Result<(), Broken> {
        match self.stream.read(&mut self.buffer).await? {
            0 => Err(Broken::Closed),
            len => Ok(self.session.receive(&self.buffer[..len])?),
        }
    }

    async fn flush(&mut self) -> io::Result<()> {
        let bytes = self.session.outgoing();
        if bytes.is_empty() { Ok(()) } else { self.stream.write_all(&bytes).await }
    }

    fn send(&mut self, Ask { question, reply }: Ask, by: Instant) {
        let transaction = match question {
            Question::Apply(changes) => self.session.apply(&changes),
            Question::Ports => self.session.ask_ports(),
            Question::PortStats => self.session.ask_port_stats(),
        };
        match transaction {
            Some(transaction) => {
                self.waiting.insert(transaction, reply);
                self.deadlines.push_back((by, transaction));
            }
            None => answer(reply, Err(SwitchError::Busy)),
        }
    }

    fn deadline(&mut self) -> Option<Instant> {
        while let Some((at, transaction)) = self.deadlines.front() {
            if self.waiting.contains_key(transaction) {
                return Some(*at);
            }
            self.deadlines.pop_front();
        }
        None
    }

    fn expire(&mut self, now: Instant, allowed: Duration) {
        while self.deadline().is_some_and(|at| at <= now) {
            let Some((_, transaction)) = self.deadlines.pop_front() else { return };
            self.session.forget(transaction);
            if let Some(reply) = self.waiting.remove(&transaction) {
                answer(reply, Err(SwitchError::TimedOut { millis: allowed.as_millis() as u64 }));
            }
        }
    }
}

/// A caller that has gone away needs no answer.
fn answer(reply: oneshot::Sender<Result<Reply, SwitchError>>, result: Result<Reply, SwitchError>) {
    let _ = reply.send(result);
}

struct Keeper {
    options: SwitchOptions,
    asks: mpsc::Receiver<Ask>,
    events: broadcast::Sender<PortEvent>,
    datapath_id: u64,
}

impl Keeper {
    async fn run(mut self, mut connection: Connection) {
        if let Err(broken) = self.serve(&mut connection).await {
            tracing::warn!(switch = self.datapath_id, %broken, "lost the connection to the switch");
        }
        // Callers still waiting hear of it, because their senders go with the connection.
    }

    /// Serves until the last handle is gone, or the connection breaks.
    async fn serve(&mut self, connection: &mut Connection) -> Result<(), Broken> {
        let mut heard = Instant::now();
        let mut asked = false;
        loop {
            // A switch that does not even read is as good as gone.
            let flushed = timeout(self.options.command_timeout, connection.flush()).await;
            flushed.map_err(|_| Broken::Silent)??;
            let quiet = heard + self.options.keepalive * if asked { 2 } else { 1 };
            let wake = connection.deadline().map_or(quiet, |deadline| deadline.min(quiet));
            tokio::select! {
                ask = self.asks.recv() => {
                    let Some(ask) = ask else { return Ok(()) };
                    connection.send(ask, Instant::now() + self.options.command_timeout);
                }
                read = connection.read() => {
                    read?;
                    (heard, asked) = (Instant::now(), false);
                    self.settle(connection);
                }
                () = sleep_until(wake) => {
                    let now = Instant::now();
                    connection.expire(now, self.options.command_timeout);
                    if now >= quiet {
                        if asked {
                            return Err(Broken::Silent);
                        }
                        connection.session.echo();
                        asked = true;
                    }
                }
            }
        }
    }

    fn settle(&self, connection: &mut Connection) {
        while let Some(event) = connection.session.poll() {
            match event {
                Event::Done { transaction, reply } => {
                    if let Some(waiting) = connection.waiting.remove(&transaction) {
                        answer(waiting, Ok(reply));
                    }
                }
                Event::Port { change, port } => {
                    // Nobody may be listening.
                    let _ = self.events.send(PortEvent { change, port });
                }
                Event::Error { kind, code } => {
                    tracing::warn!(switch = self.datapath_id, kind, code, "an error that belongs to nothing");
                }
                Event::Alive | Event::Ready { .. } => {}
            }
        }
    }
}
