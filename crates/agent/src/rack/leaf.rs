//! The controller of a leaf on a socket (Orca section 3.4): between the manager and the agents of its rack.
//! It tells the leaf switch which of them get packets.

use super::RackError;
use crate::transfer::clock::{Clock, wait};
use polycast_net::priority::{control_socket, raise_thread};
use polycast_net::words::{Words, WordsKey};
use polycast_protocol::rack::{Leaf, LeafConfig, LeafCounts, LeafInput, LeafOutput};
use polycast_types::{Duration, Time};
use polycast_wire::rack::{MESSAGE_LEN_MAX, Name, Rack, SPINE_LABEL_LEN_MAX, name_in};
use polycast_wire::words::{TRAILER_LEN, Way};
use rustix::event::{PollFd, PollFlags};
use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Interval between checks whether to stop.
const LOOK_AGAIN: Duration = Duration::from_millis(200);
/// Messages that are handled before others get their turn.
const BURST_MAX: usize = 64;

/// A leaf controller's place.
#[derive(Clone, Debug)]
pub struct LeafOptions {
    /// The machine's settings.
    pub config: LeafConfig,
    /// Address that it listens on.
    pub listen: SocketAddrV4,
    /// The central controller.
    pub central: SocketAddrV4,
    /// The addresses of the servers at the leaf's ports: the sender is known by it, whatever a message
    /// claims.
    pub servers: Vec<Ipv4Addr>,
    /// Key that messages are sealed with.
    pub key: WordsKey,
}

/// Shortest interval at which agents that fall silent are named in the log.
const NAMED_EVERY: Duration = Duration::from_millis(1_000);

/// The leaf's switch.
pub trait LeafSwitch {
    /// Hands packets to the agents at these ports, in turn; those at the ports of `rack`, as bits, may name
    /// hosts.
    fn set_agents(&mut self, active: &[u32], rack: u128);

    /// Returns the time since the agent at a port last sent a relabelled packet; `None` if it never did, or
    /// that is not known.
    fn since_relabelled(&mut self, port: u32) -> Option<Duration>;
}

/// No switch: only labels are handed on.
impl LeafSwitch for () {
    fn set_agents(&mut self, _active: &[u32], _rack: u128) {}

    fn since_relabelled(&mut self, _port: u32) -> Option<Duration> {
        None
    }
}

/// Agents that were lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Number of times that an agent was taken out.
    pub lost: u64,
    /// Number of times that an agent sent a message again in the same run: it was only late.
    pub returned: u64,
}

/// Counts of the labels that the agents of a rack keep, to be read while the controller runs.
#[derive(Debug, Default)]
pub struct Held {
    sessions: AtomicUsize,
    bytes: AtomicUsize,
}

impl Held {
    /// Returns the number of sessions that have labels of this many bytes, and the number that have a spine
    /// label, too.
    #[must_use]
    pub fn labels(&self, label_len: usize) -> (u64, u64) {
        let (sessions, bytes) = (self.sessions.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed));
        let of_spines = bytes.saturating_sub(sessions * label_len);
        let each = label_len.clamp(1, SPINE_LABEL_LEN_MAX);
        (sessions as u64, (of_spines / each) as u64)
    }

    fn note(&self, (sessions, bytes): (usize, usize)) {
        self.sessions.store(sessions, Ordering::Relaxed);
        self.bytes.store(bytes, Ordering::Relaxed);
    }
}

/// The controller of a leaf.
#[derive(Debug)]
pub struct LeafController {
    machine: Leaf,
    /// The leaf, counted over all pods.
    rack: u32,
    socket: UdpSocket,
    clock: Clock,
    central: SocketAddrV4,
    ports: BTreeMap<Ipv4Addr, u32>,
    /// Address of the agent of each port.
    agents: BTreeMap<u32, SocketAddrV4>,
    words: Words,
    /// Datagrams that are no messages, or come from nowhere in the rack.
    foreign: u64,
    losses: Arc<Mutex<Losses>>,
    held: Arc<Held>,
    /// Losses that the log has reported, and the time from which it may report more.
    named: (Losses, Time),
}

impl LeafController {
    /// A controller in the calling thread's network namespace that knows no agent yet.
    ///
    /// # Errors
    /// The address cannot be used.
    pub fn open(options: LeafOptions) -> Result<Self, RackError> {
        let LeafOptions { config, listen, central, servers, key } = options;
        let socket = control_socket(listen.into()).map_err(RackError::Controller)?;
        let clock = Clock::start();
        let rack = config.rack;
        let machine = Leaf::new(config, clock.now());
        let ports = servers.into_iter().zip(0..).collect();
        let agents = BTreeMap::new();
        let (losses, named) = (Arc::default(), (Losses::default(), Time::ZERO));
        let words = Words::new(&key);
        Ok(LeafController {
            machine,
            rack,
            socket,
            clock,
            central,
            ports,
            agents,
            words,
            foreign: 0,
            losses,
            held: Arc::default(),
            named,
        })
    }

    /// Agents that were lost, to be read while the controller runs.
    #[must_use]
    pub fn losses(&self) -> Arc<Mutex<Losses>> {
        Arc::clone(&self.losses)
    }

    /// Returns the counts of the labels that the rack's agents keep, to be read while the controller runs.
    #[must_use]
    pub fn held(&self) -> Arc<Held> {
        Arc::clone(&self.held)
    }

    /// Returns the counts of all that was refused so far, and the number of datagrams that were no message,
    /// from nowhere in the rack, or without a right tag.
    #[must_use]
    pub fn counts(&self) -> (LeafCounts, u64) {
        (self.machine.counts(), self.foreign + self.words.forged())
    }

    /// Runs until `stop` is set.
    ///
    /// # Errors
    /// The socket is gone.
    pub fn run(&mut self, stop: &AtomicBool, switch: &mut impl LeafSwitch) -> Result<(), RackError> {
        tracing::info!(scheduling = %raise_thread(), "the thread of a leaf's controller");
        while !stop.load(Ordering::Relaxed) {
            self.drain(switch);
            self.held.note(self.machine.held());
            self.name_losses();
            let mut fds = [PollFd::from_borrowed_fd(self.socket.as_fd(), PollFlags::IN)];
            wait(&mut fds, self.clock.now(), self.machine.deadline(), LOOK_AGAIN)
                .map_err(RackError::Controller)?;
            if !fds[0].revents().is_empty() {
                self.receive();
            }
        }
        Ok(())
    }

    fn receive(&mut self) {
        let mut buffer = [0; MESSAGE_LEN_MAX + TRAILER_LEN + 1];
        for _ in 0..BURST_MAX {
            match self.socket.recv_from(&mut buffer) {
                Ok((len, SocketAddr::V4(from))) => self.take(from, &buffer[..len]),
                Ok(_) => self.foreign += 1,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // About an earlier message to an agent that has gone.
                Err(_) => {}
            }
        }
    }

    fn take(&mut self, from: SocketAddrV4, datagram: &[u8]) {
        let now = self.clock.now();
        let port = self.ports.get(from.ip()).copied();
        let names = |agent| {
            let name = Name { rack: self.rack, agent };
            move |message: &[u8]| name_in(message) == Some(name)
        };
        let heard = match port {
            _ if from == self.central => self.words.hear_named(Way::CentralToLeaf, 0, datagram, names(None)),
            Some(port) => self.words.hear_named(Way::AgentToLeaf, port, datagram, names(Some(port))),
            // It is refused in any case.
            None => Some(datagram),
        };
        let Some(message) = heard else { return };
        match (port, Rack::parse(message)) {
            (_, Ok(message)) if from == self.central => {
                self.machine.handle(now, LeafInput::FromCentral(message));
            }
            (Some(port), Ok(message)) => {
                let refused = self.machine.refused();
                self.machine.handle(now, LeafInput::FromAgent { port, message });
                // What is said to an agent does not go to another one of its host that is refused.
                if self.machine.refused() == refused {
                    self.agents.insert(port, from);
                }
            }
            (port, message) => {
                self.foreign += 1;
                if self.foreign == 1 {
                    let error = message.err().map(|error| error.to_string());
                    tracing::warn!(%from, ?port, error, "dropped a datagram that is no message of this rack");
                }
            }
        }
    }

    fn lock_losses(&self) -> MutexGuard<'_, Losses> {
        // A thread that panicked while it read has changed nothing.
        self.losses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says in the log which agents have been lost: at most once in a while, as late agents are lost again
    /// and again.
    fn name_losses(&mut self) {
        let (losses, now) = (*self.lock_losses(), self.clock.now());
        if losses != self.named.0 && now >= self.named.1 {
            self.named = (losses, now + NAMED_EVERY);
            let Losses { lost, returned } = losses;
            tracing::warn!(lost, returned, "agents have fallen silent; those that returned were only late");
        }
    }

    fn drain(&mut self, switch: &mut impl LeafSwitch) {
        while let Some(output) = self.machine.poll(self.clock.now()) {
            match output {
                LeafOutput::ToAgent { port, datagram } => {
                    if let Some(agent) = self.agents.get(&port) {
                        // What is lost is sent again.
                        let _ = self.socket.send_to(&self.words.say(Way::LeafToAgent, &datagram), agent);
                    }
                }
                LeafOutput::ToCentral(message) => {
                    let word = self.words.say(Way::LeafToCentral, &message);
                    drop(self.socket.send_to(&word, self.central));
                }
                LeafOutput::Agents { active, rack } => {
                    switch.set_agents(&active, rack);
                    tracing::debug!(?active, rack, "agents");
                }
                LeafOutput::Look { port } => {
                    if let Some(ago) = switch.since_relabelled(port) {
                        let now = self.clock.now();
                        let at = Time(now.0.saturating_sub(ago.0));
                        self.machine.handle(now, LeafInput::Relabelled { port, at });
                    }
                }
                LeafOutput::Lost { port, active } => {
                    self.lock_losses().lost += 1;
                    tracing::debug!(port, active, "an agent has fallen silent");
                }
                LeafOutput::Returned { port } => {
                    self.lock_losses().returned += 1;
                    tracing::debug!(port, "an agent is heard again");
                }
                LeafOutput::Refused { port, why } => tracing::warn!(port, "refused: {why}"),
                LeafOutput::Full => tracing::warn!("the rack is full: newer sessions get no label here"),
            }
        }
    }
}
