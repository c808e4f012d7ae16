//! The connection to one process of label switches.

use super::super::{DeviceError, PAUSES};
use polycast_net::devices::{Pauses, Remarks};
use polycast_types::{LabelKind, Printable};
use polycast_wire::switches::{Change as WireChange, FRAME_LEN_MAX, Word};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::Instant;

/// Words that are kept while a process is asked: more than it has switches and links.
const WORDS_MAX: usize = 1 << 16;

/// An entry of a switch.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Entry {
    /// A spine leaves a leaf out.
    Block { spine: u32, session: u32, leaf: u32 },
    /// A leaf takes packets without labels.
    Door { leaf: u32, session: u32, hosts: u128, kind: LabelKind, label: Vec<u8> },
}

impl Entry {
    /// The switch that it is for.
    pub(super) fn switch(&self) -> u32 {
        match self {
            Entry::Block { spine, .. } => *spine,
            Entry::Door { leaf, .. } => *leaf,
        }
    }

    /// The leaf and session of a door: it has one of each.
    pub(super) fn door(&self) -> Option<(u32, u32)> {
        match self {
            Entry::Block { .. } => None,
            Entry::Door { leaf, session, .. } => Some((*leaf, *session)),
        }
    }

    fn set(&self) -> WireChange<'_> {
        match self {
            Entry::Block { spine, session, leaf } => {
                WireChange::SetEntry { spine: *spine, session: *session, leaf: *leaf }
            }
            Entry::Door { leaf, session, hosts, kind, label } => {
                WireChange::SetDoor { leaf: *leaf, session: *session, hosts: *hosts, kind: *kind, label }
            }
        }
    }

    fn clear(&self) -> WireChange<'_> {
        match self {
            Entry::Block { spine, session, leaf } => {
                WireChange::ClearEntry { spine: *spine, session: *session, leaf: *leaf }
            }
            Entry::Door { leaf, session, .. } => WireChange::ClearDoor { leaf: *leaf, session: *session },
        }
    }
}

pub(super) fn broken(reason: impl ToString) -> DeviceError {
    DeviceError::Broken(reason.to_string())
}

/// A process of label switches.
pub(super) struct Peer {
    pub(super) address: SocketAddr,
    /// The switches that it has, as it said over the connection that there is.
    pub(super) nodes: BTreeSet<u32>,
    /// Switches among them that have no doors for packets without labels.
    pub(super) doorless: BTreeSet<u32>,
    /// Its switches that lack an encoding, and what to do about each: until then nothing is set up. As it
    /// said over the connection that there is.
    pub(super) lacking: BTreeMap<u32, String>,
    /// Reason why it could not be reached the last time.
    pub(super) unreachable: Option<DeviceError>,
    connection: Option<Connection>,
    /// The pauses before tries to connect, and when the next one is.
    pauses: Pauses,
    again_at: Instant,
    /// Log lines about connections that have ended.
    ends: Remarks,
    /// Number of the last change.
    number: u32,
}

struct Connection {
    stream: TcpStream,
    since: Instant,
    inbox: Vec<u8>,
}

impl Peer {
    pub(super) fn new(address: SocketAddr) -> Self {
        Peer {
            address,
            nodes: BTreeSet::new(),
            doorless: BTreeSet::new(),
            lacking: BTreeMap::new(),
            unreachable: None,
            connection: None,
            pauses: Pauses::new(PAUSES.0, PAUSES.1),
            again_at: Instant::now(),
            ends: Remarks::default(),
            number: 0,
        }
    }

    /// Tries to connect now, if there is no connection.
    pub(super) fn hurry(&mut self) {
        self.again_at = self.again_at.min(Instant::now() + PAUSES.0);
    }

    /// The connection has ended, or none came about.
    pub(super) fn lost(&mut self, error: &DeviceError) {
        if let Some(connection) = self.connection.take() {
            self.pauses.ended(connection.since.elapsed());
            if let Some(times) = self.ends.count() {
                tracing::warn!(address = %self.address, %error, times, "the connection to label switches has ended");
            }
        }
        self.nodes.clear();
        self.doorless.clear();
        self.lacking.clear();
        self.again_at = Instant::now() + self.pauses.take();
    }

    /// The next frame that it says; connects first. A call that is dropped while it waits loses nothing.
    pub(super) async fn next(&mut self, within: Duration) -> Result<Vec<u8>, DeviceError> {
        if self.connection.is_none() {
            tokio::time::sleep_until(self.again_at).await;
            let (address, millis) = (self.address, within.as_millis());
            let connected = match tokio::time::timeout(within, TcpStream::connect(address)).await {
                Err(_) => Err(DeviceError::NotInTime { millis }),
                Ok(Err(error)) => Err(DeviceError::Unreachable { address, reason: error.to_string() }),
                Ok(Ok(stream)) => Ok(stream),
            };
            let stream = connected.inspect_err(|error| self.unreachable = Some(error.clone()))?;
            // Without it small words would wait for each other, which costs time and nothing else.
            let _ = stream.set_nodelay(true);
            tracing::debug!(%address, "connected to label switches");
            self.unreachable = None;
            self.connection = Some(Connection { stream, since: Instant::now(), inbox: Vec::new() });
        }
        match &mut self.connection {
            Some(connection) => connection.next().await,
            None => Err(broken("connect again")),
        }
    }

    /// Asks for changes and waits until all are done; gives the first reason why one is not. What else is
    /// said goes to `words`.
    pub(super) async fn ask(
        &mut self,
        set: &[Entry],
        clear: &[Entry],
        within: Duration,
        words: &mut Vec<Vec<u8>>,
    ) -> Result<(), DeviceError> {
        if set.is_empty() && clear.is_empty() {
            return Ok(());
        }
        let mut bytes = Vec::new();
        let mut open = BTreeSet::new();
        for change in set.iter().map(Entry::set).chain(clear.iter().map(Entry::clear)) {
            self.number = self.number.wrapping_add(1);
            open.insert(self.number);
            Word::Change { number: self.number, change }.emit(&mut bytes);
        }
        let Some(connection) = &mut self.connection else { return Err(broken("connect again")) };
        let mut failure = None;
        let asked = async {
            connection.stream.write_all(&bytes).await.map_err(broken)?;
            while !open.is_empty() {
                let frame = connection.next().await?;
                match Word::parse(&frame).map_err(broken)? {
                    Word::Done { number } => drop(open.remove(&number)),
                    Word::Failed { number, reason } => {
                        if open.remove(&number) && failure.is_none() {
                            failure = Some(Printable(reason).to_string());
                        }
                    }
                    _ if words.len() >= WORDS_MAX => {
                        return Err(broken("it says more while it is asked than it can have to say"));
                    }
                    _ => words.push(frame),
                }
            }
            Ok(())
        };
        match tokio::time::timeout(within, asked).await {
            Ok(Ok(())) => failure.map_or(Ok(()), |reason| Err(DeviceError::Refused(reason))),
            Ok(Err(error)) => {
                self.lost(&error);
                // What was said over a connection that has ended holds no more, and comes again over the next
                // one.
                words.clear();
                Err(error)
            }
            Err(_) => Err(DeviceError::Silent { millis: within.as_millis() }),
        }
    }
}

impl Connection {
    /// The next frame. A call that is dropped while it waits loses nothing.
    async fn next(&mut self) -> Result<Vec<u8>, DeviceError> {
        loop {
            if let Some(len) = Word::frame_len(&self.inbox).map_err(broken)?
                && self.inbox.len() >= len
            {
                return Ok(self.inbox.drain(..len).collect());
            }
            self.inbox.reserve(FRAME_LEN_MAX);
            if self.stream.read_buf(&mut self.inbox).await.map_err(broken)? == 0 {
                return Err(broken("the other end has closed it"));
            }
        }
    }
}
