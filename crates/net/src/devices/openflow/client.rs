//! The OpenFlow controller's end on a socket.

use super::session::{Event, Reply, Session};
use super::{CodecError, FlowMod, GroupMod, Message, Port, PortChange, PortStats};
use crate::devices::Remarks;
use crate::devices::conversation::{
    Asker, Broken, Codec, Conversation, Heard, NoAnswer, Stream, Times, seal, seal_accepted, tcp,
};
use crate::tls::Security;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::{broadcast, watch};
use tokio::time::timeout;

/// Changes of ports that a slow listener may be behind by.
const EVENTS_MAX: usize = 1_024;

/// Address at which a switch listens for its controller.
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

/// Options of a connection to a switch.
#[derive(Clone, Debug)]
pub struct SwitchOptions {
    /// Security of connections over TCP, if they are sealed.
    pub security: Option<Security>,
    /// Time limit for connecting and the handshake together.
    pub connect_timeout: Duration,
    /// Time limit for a transaction.
    pub command_timeout: Duration,
    /// After this long without a word the switch is asked whether it lives; after twice as long it is given
    /// up.
    pub keepalive: Duration,
}

impl Default for SwitchOptions {
    fn default() -> Self {
        SwitchOptions {
            security: None,
            connect_timeout: Duration::from_secs(3),
            command_timeout: Duration::from_secs(5),
            keepalive: Duration::from_secs(5),
        }
    }
}

/// Reason that something was not done, or is not known to have been done.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SwitchError {
    /// No connection could be made.
    #[error("the switch at {endpoint} cannot be reached: {reason}")]
    Unreachable {
        /// Endpoint of the switch.
        endpoint: String,
        /// Reason for the failure.
        reason: String,
    },
    /// It refused a change. What came before it in the same transaction was done.
    #[error("the switch refuses change {number} of {of}: {reason} (OpenFlow error {kind}, {code})")]
    Refused {
        /// The first refused change, from 1.
        number: usize,
        /// Number of changes.
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
        /// Time limit that has passed.
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
    /// Kind of change.
    pub change: PortChange,
    /// The port as it is now.
    pub port: Port,
}

/// State of the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Link {
    /// The connection lives.
    Up,
    /// It is gone for good: connect again.
    Gone,
}

/// Question that callers ask.
pub(in crate::devices) enum Question {
    Apply(Vec<Message>),
    Ports,
    PortStats,
    Groups,
}

impl Codec for Session {
    type Question = Question;
    type Answer = Reply;
    type Word = Event;
    type Fault = CodecError;

    fn ask(&mut self, question: &Question) -> Option<u32> {
        match question {
            Question::Apply(changes) => self.apply(changes),
            Question::Ports => self.ask_ports(),
            Question::PortStats => self.ask_port_stats(),
            Question::Groups => self.ask_groups(),
        }
    }

    fn probe(&mut self) -> Option<u32> {
        self.echo();
        None
    }

    fn forget(&mut self, transaction: u32) {
        Session::forget(self, transaction);
    }

    fn receive(&mut self, bytes: &[u8]) -> Result<(), CodecError> {
        Session::receive(self, bytes)
    }

    fn outgoing(&mut self) -> Vec<u8> {
        Session::outgoing(self)
    }

    fn poll(&mut self) -> Option<Heard<Reply, Event>> {
        Some(match Session::poll(self)? {
            Event::Done { transaction, reply } => Heard::Answer(transaction, reply),
            event => Heard::Word(event),
        })
    }
}

/// Log lines about lost connections. Switches that come to one place share them: any host can come and go
/// there.
type Losses = Arc<Mutex<Remarks>>;

/// A switch that speaks OpenFlow 1.3. Clones share the connection; the last one's end closes it.
#[derive(Clone, Debug)]
pub struct Switch {
    datapath_id: u64,
    tables: u8,
    asker: Asker<Session>,
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
                Endpoint::Tcp(address) => {
                    let stream = tcp(*address).await.map_err(wrong)?;
                    match &options.security {
                        Some(security) => {
                            let sealed = seal(stream, security).await;
                            sealed.map_err(|reason| unreachable(endpoint, reason))?
                        }
                        None => Box::new(stream),
                    }
                }
                Endpoint::Unix(path) => Box::new(UnixStream::connect(path).await.map_err(wrong)?),
            };
            greet(stream).await.map_err(|broken| unreachable(endpoint, broken.to_string()))
        };
        let late =
            || unreachable(endpoint, format!("no answer within {} ms", options.connect_timeout.as_millis()));
        let (conversation, known) =
            timeout(options.connect_timeout, connecting).await.unwrap_or_else(|_| Err(late()))?;
        Ok(Self::over(conversation, known, &options, Losses::default()))
    }

    fn over(
        mut conversation: Conversation<Session>,
        (datapath_id, tables): (u64, u8),
        options: &SwitchOptions,
        losses: Losses,
    ) -> Self {
        let (asker, mut asks) = Asker::new();
        let (events, _) = broadcast::channel(EVENTS_MAX);
        let (up, link) = watch::channel(Link::Up);
        let (answer, keepalive) = (options.command_timeout, options.keepalive);
        let times = Times { answer, keepalive, grace: keepalive };
        let listeners = events.clone();
        tokio::spawn(async move {
            let mut strays = Remarks::default();
            let word = |event| tell(&listeners, datapath_id, event, &mut strays);
            if let Err(broken) = conversation.serve(&mut asks, times, word).await
                && let Some(times) = losses.lock().unwrap_or_else(PoisonError::into_inner).count()
            {
                tracing::warn!(switch = datapath_id, %broken, times, "lost the connection to the switch");
            }
            // Callers still waiting hear of it, because their senders go with the conversation.
            drop(conversation);
            up.send_replace(Link::Gone);
        });
        Switch { datapath_id, tables, asker, events, link }
    }

    /// The switch's number.
    #[must_use]
    pub fn datapath_id(&self) -> u64 {
        self.datapath_id
    }

    /// Returns the number of flow tables of the switch.
    #[must_use]
    pub fn tables(&self) -> u8 {
        self.tables
    }

    /// Returns the state of the connection, now and later.
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

    /// Returns the counters of all ports.
    ///
    /// # Errors
    /// The switch does not answer.
    pub async fn port_stats(&self) -> Result<Vec<PortStats>, SwitchError> {
        match self.ask(Question::PortStats).await? {
            Reply::PortStats(stats) => Ok(stats),
            _ => Err(SwitchError::Answer),
        }
    }

    /// Returns true if the switch can copy packets: if it has groups of type ALL.
    ///
    /// # Errors
    /// The switch does not answer.
    pub async fn has_groups(&self) -> Result<bool, SwitchError> {
        match self.ask(Question::Groups).await? {
            Reply::Groups(types) => Ok(types & 1 == 1),
            // One that does not even know the question has none.
            Reply::Refused { .. } => Ok(false),
            _ => Err(SwitchError::Answer),
        }
    }

    async fn ask(&self, question: Question) -> Result<Reply, SwitchError> {
        self.asker.ask(question).await.map_err(|why| match why {
            NoAnswer::Busy => SwitchError::Busy,
            NoAnswer::TimedOut(millis) => SwitchError::TimedOut { millis },
            NoAnswer::Disconnected | NoAnswer::Lost => SwitchError::Gone,
        })
    }
}

/// Shakes hands; gives the switch's number and how many tables it has.
async fn greet(stream: Box<dyn Stream>) -> Result<(Conversation<Session>, (u64, u8)), Broken> {
    let mut conversation = Conversation::new(stream, Session::new());
    let ready = |heard| match heard {
        Heard::Word(Event::Ready { datapath_id, tables }) => Some((datapath_id, tables)),
        _ => None,
    };
    let known = conversation.greet(None, ready).await?;
    Ok((conversation, known))
}

/// Passes on or logs what a switch sends of its own accord.
fn tell(listeners: &broadcast::Sender<PortEvent>, switch: u64, event: Event, strays: &mut Remarks) {
    match event {
        Event::Port { change, port } => {
            // There may be no listener.
            let _ = listeners.send(PortEvent { change, port });
        }
        Event::Error { kind, code } => {
            if let Some(times) = strays.count() {
                tracing::warn!(switch, kind, code, times, "an error that belongs to nothing");
            }
        }
        Event::Alive | Event::Ready { .. } | Event::Done { .. } => {}
    }
}

fn unreachable(endpoint: &Endpoint, reason: String) -> SwitchError {
    SwitchError::Unreachable { endpoint: endpoint.to_string(), reason }
}

/// Waits for switches that connect to their controller of their own accord, as most do.
#[derive(Debug)]
pub struct SwitchListener {
    listener: TcpListener,
    options: SwitchOptions,
    losses: Losses,
}

impl SwitchListener {
    /// Listens.
    ///
    /// # Errors
    /// The address is in use or not ours.
    pub async fn bind(address: SocketAddr, options: SwitchOptions) -> io::Result<Self> {
        let (listener, losses) = (TcpListener::bind(address).await?, Losses::default());
        Ok(SwitchListener { listener, options, losses })
    }

    /// Returns the address that it listens on.
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
        self.next().await?.shake_hands().await
    }

    /// The next that connects, before it has shaken hands.
    ///
    /// # Errors
    /// No more connections can be taken.
    pub async fn next(&self) -> Result<Arrival, SwitchError> {
        let ours =
            |reason: String| SwitchError::Unreachable { endpoint: "its connection to us".into(), reason };
        let (stream, address) = self.listener.accept().await.map_err(|error| ours(error.to_string()))?;
        let (options, losses) = (self.options.clone(), Arc::clone(&self.losses));
        Ok(Arrival { stream, address, options, losses })
    }
}

/// A client that has connected, and may be a switch.
#[derive(Debug)]
pub struct Arrival {
    stream: TcpStream,
    address: SocketAddr,
    options: SwitchOptions,
    losses: Losses,
}

impl Arrival {
    /// Returns the address that the switch connects from.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Shakes hands.
    ///
    /// # Errors
    /// It does not speak OpenFlow 1.3, or is not one that the certificates let in.
    pub async fn shake_hands(self) -> Result<Switch, SwitchError> {
        let Arrival { stream, address, options, losses } = self;
        let wrong = |reason: String| unreachable(&Endpoint::Tcp(address), reason);
        stream.set_nodelay(true).map_err(|error| wrong(error.to_string()))?;
        let shaking = async {
            let stream: Box<dyn Stream> = match &options.security {
                Some(security) => seal_accepted(stream, security).await.map_err(wrong)?,
                None => Box::new(stream),
            };
            greet(stream).await.map_err(|broken| wrong(broken.to_string()))
        };
        match timeout(options.connect_timeout, shaking).await {
            Ok(greeted) => {
                greeted.map(|(conversation, known)| Switch::over(conversation, known, &options, losses))
            }
            Err(_) => Err(wrong("it does not shake hands".into())),
        }
    }
}
