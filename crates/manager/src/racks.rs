//! Orca's central controller on a socket (section 3.4): leaf labels go to the leaf controllers of the racks,
//! and a change is confirmed when all agents of its racks have it.

use polycast_net::priority::control_socket;
use polycast_net::words::{Words, WordsKey};
use polycast_protocol::rack::{
    Central, CentralConfig, CentralInput, CentralOutput, Change, FeedConfig, SetRefusal,
};
use polycast_types::{Duration, Time};
use polycast_wire::rack::{MESSAGE_LEN_MAX, Name, Rack, name_in};
use polycast_wire::words::{TRAILER_LEN, Way};
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use tokio::net::UdpSocket;
use tokio::sync::{mpsc, oneshot};

/// Changes that may wait to be handed on.
const ASKS_MAX: usize = 1_024;
/// Sets of changes that may wait for confirmation.
const TICKETS_MAX: usize = 65_536;
/// Sessions of a rack.
const LABELS_MAX: usize = 1 << 20;
/// A leaf controller that says nothing for this long is named in the log.
const SILENCE: Duration = Duration::from_millis(2_000);
/// Sources have told a new manager by then which sessions they use.
const SETTLES_AFTER: Duration = Duration::from_millis(10_000);
/// Datagrams that are handled before others get their turn.
const BURST_MAX: usize = 256;

/// Counters of the controllers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RackCounts {
    /// Changes that all agents of their racks have confirmed.
    pub confirmed_updates: u64,
    /// Messages that were refused: from nowhere, of another leaf or of an earlier run, or without a right
    /// tag.
    pub refused: u64,
    /// Sets of changes that wait for confirmation.
    pub waiting: usize,
}

/// Reason why racks have not taken changes of labels.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RacksError {
    /// Too many wait.
    #[error("{ASKS_MAX} changes wait for the controllers of racks already")]
    Busy,
    /// The central controller takes none of them.
    #[error(transparent)]
    Refused(#[from] SetRefusal),
    /// The outcome of the changes is not known.
    #[error("the central controller has ended")]
    Ended,
}

/// Channel for the result of a set of changes.
type Done = oneshot::Sender<Result<(), RacksError>>;

enum Ask {
    Set { changes: Vec<Change>, done: Done },
    Counts(oneshot::Sender<RackCounts>),
}

/// The central controller; it ends when this and all its copies are dropped.
#[derive(Clone, Debug)]
pub struct Racks {
    asks: mpsc::Sender<Ask>,
    address: SocketAddr,
}

impl Racks {
    /// Begins to listen for leaf controllers, whose addresses are given in the order of their leafs, and with
    /// words that are sealed with this. Needs a tokio runtime around it.
    ///
    /// # Errors
    /// The address cannot be used.
    pub fn start(listen: SocketAddr, leafs: Vec<SocketAddr>, key: &WordsKey) -> io::Result<Self> {
        let socket = UdpSocket::from_std(control_socket(listen)?)?;
        let address = socket.local_addr()?;
        let (asks, inbox) = mpsc::channel(ASKS_MAX);
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let config = CentralConfig {
            leafs: u32::try_from(leafs.len()).map_err(io::Error::other)?,
            incarnation: u64::try_from(since_epoch.as_nanos()).unwrap_or(u64::MAX >> 1),
            silence: SILENCE,
            settles_at: Time::ZERO + SETTLES_AFTER,
            tickets_max: TICKETS_MAX,
            labels_max: LABELS_MAX,
            feed: FeedConfig::default(),
        };
        let numbers = leafs.iter().copied().zip(0..).collect();
        let task = Task {
            machine: Central::new(config),
            socket,
            leafs,
            numbers,
            start: Instant::now(),
            waiting: BTreeMap::new(),
            ticket: 0,
            words: Words::new(key),
            foreign: 0,
        };
        tokio::spawn(task.run(inbox));
        Ok(Racks { asks, address })
    }

    /// Returns the address where leaf controllers call; with the port that the system chose if it was to.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Hands changes of labels on, in the order of the calls; what is given resolves when all agents have
    /// them, or to the reason why not. A caller that drops it before does not wait any more.
    ///
    /// # Errors
    /// Too many changes wait.
    pub fn set(&self, changes: Vec<Change>) -> Result<oneshot::Receiver<Result<(), RacksError>>, RacksError> {
        let (done, confirmed) = oneshot::channel();
        self.asks.try_send(Ask::Set { changes, done }).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => RacksError::Busy,
            mpsc::error::TrySendError::Closed(_) => RacksError::Ended,
        })?;
        Ok(confirmed)
    }

    /// Returns the counters of the controllers so far.
    pub async fn counts(&self) -> RackCounts {
        let (answer, counts) = oneshot::channel();
        // The task may be ending.
        let _ = self.asks.send(Ask::Counts(answer)).await;
        counts.await.unwrap_or_default()
    }
}

struct Task {
    machine: Central,
    socket: UdpSocket,
    leafs: Vec<SocketAddr>,
    numbers: BTreeMap<SocketAddr, u32>,
    start: Instant,
    waiting: BTreeMap<u64, Done>,
    /// Number of the last set of changes.
    ticket: u64,
    words: Words,
    /// Datagrams that were no message, or from nowhere.
    foreign: u64,
}

impl Task {
    fn now(&self) -> Time {
        Time(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    async fn run(mut self, mut inbox: mpsc::Receiver<Ask>) {
        let mut tidy = tokio::time::interval(std::time::Duration::from_secs(1));
        loop {
            self.drain();
            let deadline = self.machine.deadline();
            let timer = async {
                match deadline {
                    Some(at) => tokio::time::sleep(at.since(self.now()).into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                ask = inbox.recv() => {
                    let Some(ask) = ask else { return };
                    self.take(ask);
                    // What has come with it goes out with it.
                    while let Ok(ask) = inbox.try_recv() {
                        self.take(ask);
                    }
                }
                readable = self.socket.readable() => {
                    if let Err(error) = readable {
                        tracing::error!(%error, "leaf controllers cannot be heard any more");
                        return;
                    }
                    self.receive();
                }
                _ = tidy.tick() => self.forget(),
                () = timer => {}
            }
        }
    }

    fn take(&mut self, ask: Ask) {
        match ask {
            Ask::Set { changes, done } => {
                self.ticket += 1;
                let (now, ticket) = (self.now(), self.ticket);
                self.waiting.insert(ticket, done);
                self.machine.handle(now, CentralInput::Set { ticket, changes });
            }
            Ask::Counts(answer) => {
                let counts = RackCounts {
                    confirmed_updates: self.machine.confirmed_updates(),
                    refused: self.machine.refused() + self.foreign + self.words.forged(),
                    waiting: self.machine.waiting(),
                };
                // The caller may have gone.
                let _ = answer.send(counts);
            }
        }
    }

    /// Forgets tickets that no caller waits for any more.
    fn forget(&mut self) {
        let left: Vec<u64> =
            self.waiting.iter().filter(|(_, done)| done.is_closed()).map(|(ticket, _)| *ticket).collect();
        for ticket in left {
            self.waiting.remove(&ticket);
            let now = self.now();
            self.machine.handle(now, CentralInput::Forget { ticket });
        }
    }

    fn receive(&mut self) {
        let mut buffer = [0; MESSAGE_LEN_MAX + TRAILER_LEN + 1];
        for _ in 0..BURST_MAX {
            let (len, from) = match self.socket.try_recv_from(&mut buffer) {
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // About an earlier message to a leaf controller that has gone.
                Err(_) => continue,
            };
            let heard = match self.numbers.get(&from) {
                Some(&rack) => {
                    let is_its = |said: &[u8]| name_in(said) == Some(Name { rack, agent: None });
                    self.words.hear_named(Way::LeafToCentral, rack, &buffer[..len], is_its)
                }
                // It is refused in any case.
                None => Some(&buffer[..len]),
            };
            let Some(message) = heard else { continue };
            match (self.numbers.get(&from), Rack::parse(message)) {
                (Some(&leaf), Ok(message)) => {
                    let now = self.now();
                    self.machine.handle(now, CentralInput::FromLeaf { leaf, message });
                }
                (leaf, message) => {
                    self.foreign += 1;
                    if self.foreign == 1 {
                        let error = message.err().map(|error| error.to_string());
                        tracing::warn!(%from, ?leaf, error, "dropped a datagram that is no leaf controller's message");
                    }
                }
            }
        }
    }

    fn drain(&mut self) {
        while let Some(output) = self.machine.poll(self.now()) {
            let (ticket, result) = match output {
                CentralOutput::ToLeaf { leaf, datagram } => {
                    let word = self.words.say(Way::CentralToLeaf, &datagram);
                    // What is lost is sent again.
                    let _ = self.socket.try_send_to(&word, self.leafs[leaf as usize]);
                    continue;
                }
                CentralOutput::Silent { leaf, silent } => {
                    tracing::info!(leaf, silent, "a leaf controller");
                    continue;
                }
                CentralOutput::Confirmed { ticket } => (ticket, Ok(())),
                CentralOutput::Refused { ticket, why } => (ticket, Err(why.into())),
            };
            if let Some(done) = self.waiting.remove(&ticket) {
                // The caller may have given up.
                let _ = done.send(result);
            }
        }
    }
}
