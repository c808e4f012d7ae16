//! The controller of an agent: keeps the rack's leaf labels as the leaf controller says, and says that it
//! lives.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use polycast_types::{Duration, Time};
use polycast_wire::rack::{Heartbeat, Name, Rack, Standing, Updates};

use super::follower::Follower;
use super::slower;

/// An agent's place and times.
#[derive(Clone, Debug)]
pub struct AgentConfig {
    /// The leaf, counted over all pods.
    pub rack: u32,
    /// Its port at the leaf.
    pub port: u32,
    /// Number of this run: larger than any before.
    pub incarnation: u64,
    /// Time between heartbeats while it is active: a third of the leaf controller's T or less. One that
    /// stands by takes four times as long, and one without any session sixteen times.
    pub period: Duration,
    /// Number of sessions that its map holds.
    pub labels_max: usize,
}

/// Events that an agent's controller handles.
#[derive(Clone, Debug)]
pub enum AgentInput<'a> {
    /// A message of the leaf controller.
    Message(Rack<'a>),
}

/// Actions for the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AgentOutput {
    /// Send this to the leaf controller.
    Send(Vec<u8>),
    /// Packets of the session get this label from now on.
    Set {
        /// The session.
        session: u32,
        /// The leaf label.
        label: Vec<u8>,
    },
    /// The session has no receivers in this rack any more.
    Remove {
        /// The session.
        session: u32,
    },
    /// Active state: true while the leaf switch hands it packets.
    Active(bool),
    /// The map is full: newer labels are not taken, nor confirmed. Said once.
    Full,
}

/// Numbers of refused messages and updates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AgentCounts {
    /// Messages that were not for this agent, or not for this run of it.
    pub refused: u64,
    /// Updates whose sequence numbers were not new.
    pub stale: u64,
    /// Messages that came before others which they follow.
    pub gaps: u64,
}

/// The controller of an agent.
#[derive(Debug)]
pub struct Agent {
    config: AgentConfig,
    follower: Follower,
    active: bool,
    full: bool,
    refused: u64,
    next_heartbeat: Time,
    outputs: VecDeque<AgentOutput>,
}

impl Agent {
    /// An agent that knows nothing yet; its first heartbeat is due at once.
    ///
    /// # Panics
    /// If there is no time between heartbeats.
    #[must_use]
    pub fn new(config: AgentConfig, now: Time) -> Self {
        assert!(config.period > Duration::ZERO, "heartbeats need time between them");
        Agent {
            config,
            follower: Follower::new(),
            active: false,
            full: false,
            refused: 0,
            next_heartbeat: now,
            outputs: VecDeque::new(),
        }
    }

    /// Takes in what happened.
    pub fn handle(&mut self, now: Time, input: AgentInput<'_>) {
        let AgentInput::Message(message) = input;
        match message {
            Rack::Standing(standing)
                if standing.to == self.name() && standing.incarnation == self.config.incarnation =>
            {
                self.standing(now, &standing);
            }
            Rack::Updates(updates) if updates.to == self.name() => self.updates(now, &updates),
            _ => self.refused += 1,
        }
        if cfg!(debug_assertions) {
            self.check();
        }
    }

    /// The next thing to do, until there is none.
    pub fn poll(&mut self, now: Time) -> Option<AgentOutput> {
        if let Some(output) = self.outputs.pop_front() {
            return Some(output);
        }
        if now < self.next_heartbeat {
            return None;
        }
        self.next_heartbeat = now + self.config.period * slower(self.active, self.follower.len() > 0);
        let mut datagram = Vec::new();
        let heartbeat = Heartbeat {
            from: self.name(),
            incarnation: self.config.incarnation,
            stream: self.follower.stream(),
            applied: self.follower.applied(),
            confirmed: self.follower.applied(),
            active: self.active,
            settled: self.follower.settled(),
        };
        Rack::Heartbeat(heartbeat).emit(&mut datagram);
        Some(AgentOutput::Send(datagram))
    }

    /// Returns the time to poll again even if nothing happens.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        Some(self.next_heartbeat)
    }

    /// Returns true if it has been notified that it is active.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.active
    }

    /// Returns the number of sessions that have a label here.
    #[must_use]
    pub fn labels(&self) -> usize {
        self.follower.len()
    }

    /// The number of the last update that it has.
    #[must_use]
    pub fn applied(&self) -> u64 {
        self.follower.applied()
    }

    /// Returns the numbers of refusals so far.
    #[must_use]
    pub fn counts(&self) -> AgentCounts {
        AgentCounts { refused: self.refused, stale: self.follower.stale, gaps: self.follower.gaps }
    }

    /// Looks whether the state agrees with itself, and its bound holds.
    ///
    /// # Panics
    /// If it does not, which is our own mistake.
    pub fn check(&self) {
        self.follower.check();
        let (labels, most) = (self.follower.len(), self.config.labels_max);
        assert!(labels <= most, "an agent has {labels} labels, {most} it may have");
    }

    fn name(&self) -> Name {
        Name { rack: self.config.rack, agent: Some(self.config.port) }
    }

    fn standing(&mut self, now: Time, standing: &Standing) {
        if standing.stream < self.follower.stream() {
            self.refused += 1;
            return;
        }
        if self.follower.begin(standing.stream) {
            self.next_heartbeat = now;
        }
        if self.active != standing.active {
            self.active = standing.active;
            // The leaf controller counts on more of them from now on.
            self.next_heartbeat = now;
            self.outputs.push_back(AgentOutput::Active(self.active));
        }
        let gone = self.follower.settle(standing);
        self.outputs.extend(gone.into_iter().map(|session| AgentOutput::Remove { session }));
    }

    fn updates(&mut self, now: Time, message: &Updates<'_>) {
        // The confirmation; one of an update that was had before may have been lost. One of a stream that is
        // not known yet asks for it.
        self.next_heartbeat = now;
        if !self.follower.follows(message) {
            return;
        }
        for update in self.follower.fresh(message) {
            let is_too_much = self.follower.grows(update) && self.follower.len() >= self.config.labels_max;
            // What an earlier run has named makes room, or what is new would never be complete.
            let room = if is_too_much { self.follower.make_room() } else { None };
            self.outputs.extend(room.map(|session| AgentOutput::Remove { session }));
            if is_too_much && room.is_none() {
                if !core::mem::replace(&mut self.full, true) {
                    self.outputs.push_back(AgentOutput::Full);
                }
                break;
            }
            self.follower.apply(update);
            self.outputs.push_back(if update.label.is_empty() {
                AgentOutput::Remove { session: update.session }
            } else {
                AgentOutput::Set { session: update.session, label: update.label.to_vec() }
            });
        }
    }
}
