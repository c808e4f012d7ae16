//! The controller of an agent on a socket (Orca section 3.4): it says to the rack's leaf controller that it
//! lives, and keeps the labels that it is told.

use super::RackError;
use crate::transfer::clock::{Clock, wait};
use polycast_net::priority::{Scheduling, control_socket, raise_thread};
use polycast_net::words::{Words, WordsKey};
use polycast_protocol::rack::{Agent, AgentConfig, AgentCounts, AgentInput, AgentOutput};
use polycast_protocol::switch::RackLabels;
use polycast_types::Duration;
use polycast_wire::rack::{MESSAGE_LEN_MAX, Name, Rack, name_in};
use polycast_wire::words::{TRAILER_LEN, Way};
use rustix::event::{PollFd, PollFlags};
use std::net::{SocketAddrV4, UdpSocket};
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Interval between checks whether to stop, and whether something new has been dropped.
const LOOK_AGAIN: Duration = Duration::from_millis(200);
/// Heartbeats that are less than this apart are late where other threads come first.
const SHORT_PERIOD: Duration = Duration::from_millis(10);
/// Messages that are handled before heartbeats get their turn.
const BURST_MAX: usize = 64;

/// Store for the labels of an agent.
pub trait LabelMap {
    /// Keeps a session's leaf label, in place of an earlier one.
    ///
    /// # Errors
    /// It is no leaf label, there are too many sessions, or the kernel refuses it.
    fn set_label(&mut self, session: u32, label: &[u8]) -> Result<(), RackError>;

    /// Forgets a session.
    ///
    /// # Errors
    /// The kernel refuses it.
    fn remove_label(&mut self, session: u32) -> Result<(), RackError>;

    /// Says in the log what has been dropped, each kind once.
    fn name_faults(&mut self) {}
}

/// Labels in memory alone.
impl LabelMap for RackLabels {
    fn set_label(&mut self, session: u32, label: &[u8]) -> Result<(), RackError> {
        Ok(self.set(session, label)?)
    }

    fn remove_label(&mut self, session: u32) -> Result<(), RackError> {
        self.remove(session);
        Ok(())
    }
}

/// An agent's place and times.
#[derive(Clone, Debug)]
pub struct ControllerOptions {
    /// The leaf, counted over all pods.
    pub rack: u32,
    /// The agent's port at the leaf.
    pub port: u32,
    /// Its own address; port 0 lets the system choose.
    pub listen: SocketAddrV4,
    /// The leaf controller.
    pub leaf: SocketAddrV4,
    /// Time between heartbeats: a third of the leaf controller's T or less.
    pub period: Duration,
    /// Sessions that it keeps labels for.
    pub labels_max: usize,
    /// Key that messages are sealed with.
    pub key: WordsKey,
}

/// A number for a run of a controller: later runs have larger ones, if the machine's clock does not go back.
#[must_use]
pub fn incarnation() -> u64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_epoch.as_nanos()).unwrap_or(u64::MAX >> 1)
}

/// The controller of an agent.
#[derive(Debug)]
pub struct Controller<L> {
    machine: Agent,
    name: Name,
    labels: L,
    socket: UdpSocket,
    clock: Clock,
    period: Duration,
    words: Words,
    malformed: u64,
}

impl<L: LabelMap> Controller<L> {
    /// A controller that has not said anything yet.
    ///
    /// # Errors
    /// The address cannot be used.
    pub fn open(options: ControllerOptions, labels: L) -> Result<Self, RackError> {
        let socket = control_socket(options.listen.into()).map_err(RackError::Controller)?;
        socket.connect(options.leaf).map_err(RackError::Controller)?;
        let ControllerOptions { rack, port, period, labels_max, key, .. } = options;
        let config = AgentConfig { rack, port, incarnation: incarnation(), period, labels_max };
        let clock = Clock::start();
        let machine = Agent::new(config, clock.now());
        let (name, words) = (Name { rack, agent: Some(port) }, Words::new(&key));
        Ok(Controller { machine, name, labels, socket, clock, period, words, malformed: 0 })
    }

    /// Returns the counts of all that was refused so far, and the number of datagrams that were no message at
    /// all, or had no right tag.
    #[must_use]
    pub fn counts(&self) -> (AgentCounts, u64) {
        (self.machine.counts(), self.malformed + self.words.forged())
    }

    /// Runs until `stop` is set. Heartbeats must not wait: the calling thread comes before others where the
    /// system allows it, and does nothing else.
    ///
    /// # Errors
    /// The kernel refuses a label: the leaf controller notices that this agent is gone, and puts another in
    /// its place.
    pub fn run(&mut self, stop: &AtomicBool) -> Result<(), RackError> {
        let scheduling = raise_thread();
        tracing::info!(%scheduling, "the thread of heartbeats");
        if scheduling != Scheduling::RealTime && self.period < SHORT_PERIOD {
            tracing::warn!(
                %scheduling,
                "heartbeats {} apart need a real-time thread (CAP_SYS_NICE): without it this agent will be taken for \
                 dead when its machine is busy",
                self.period
            );
        }
        let mut look_at = self.clock.now() + LOOK_AGAIN;
        while !stop.load(Ordering::Relaxed) {
            self.drain()?;
            let now = self.clock.now();
            if now >= look_at {
                look_at = now + LOOK_AGAIN;
                self.labels.name_faults();
            }
            let until = self.machine.deadline().map_or(look_at, |at| at.min(look_at));
            let mut fds = [PollFd::from_borrowed_fd(self.socket.as_fd(), PollFlags::IN)];
            wait(&mut fds, now, Some(until), LOOK_AGAIN).map_err(RackError::Controller)?;
            if !fds[0].revents().is_empty() {
                self.receive();
            }
        }
        Ok(())
    }

    fn receive(&mut self) {
        let mut buffer = [0; MESSAGE_LEN_MAX + TRAILER_LEN + 1];
        for _ in 0..BURST_MAX {
            // An error is about an earlier heartbeat that was not received: the leaf controller may be
            // starting.
            let Ok(len) = self.socket.recv(&mut buffer) else { return };
            // Its socket hears its leaf controller's address only.
            let is_ours = |message: &[u8]| name_in(message) == Some(self.name);
            let heard = self.words.hear_named(Way::LeafToAgent, 0, &buffer[..len], is_ours);
            let Some(message) = heard else { continue };
            match Rack::parse(message) {
                Ok(message) => self.machine.handle(self.clock.now(), AgentInput::Message(message)),
                Err(error) => {
                    self.malformed += 1;
                    if self.malformed == 1 {
                        tracing::warn!(%error, "a datagram that is no message of a leaf controller");
                    }
                }
            }
        }
    }

    fn drain(&mut self) -> Result<(), RackError> {
        while let Some(output) = self.machine.poll(self.clock.now()) {
            match output {
                // A heartbeat that is lost is followed by others.
                AgentOutput::Send(message) => {
                    drop(self.socket.send(&self.words.say(Way::AgentToLeaf, &message)));
                }
                AgentOutput::Set { session, label } => match self.labels.set_label(session, &label) {
                    Err(RackError::Label(error)) => tracing::warn!(session, %error, "a label cannot be kept"),
                    other => other?,
                },
                AgentOutput::Remove { session } => self.labels.remove_label(session)?,
                AgentOutput::Active(active) => tracing::info!(active, "the leaf controller says what it is"),
                AgentOutput::Full => tracing::warn!("the map is full: newer sessions get no label here"),
            }
        }
        Ok(())
    }
}
