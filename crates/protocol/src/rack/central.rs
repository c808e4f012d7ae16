//! The central controller's part: numbers the changes of every rack's labels and learns when all agents have
//! them.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use polycast_types::{Duration, Time};
use polycast_wire::rack::{Heartbeat, LABELS_LEN_MAX, Name, Rack, Standing};

use super::FeedConfig;
use super::log::{Feed, Log};

/// Limits and times of a central controller.
#[derive(Clone, Debug)]
pub struct CentralConfig {
    /// Number of leafs.
    pub leafs: u32,
    /// Number of this run: larger than any before, by more than the streams that a run begins. Nanoseconds
    /// since an epoch will do.
    pub incarnation: u64,
    /// A leaf controller that has been silent for this long is reported.
    pub silence: Duration,
    /// Until when it may not know all sessions yet: before that no leaf forgets what an earlier run has said.
    pub settles_at: Time,
    /// Number of sets of changes that may wait for confirmation.
    pub tickets_max: usize,
    /// Number of sessions that a rack may have.
    pub labels_max: usize,
    /// Settings for sending updates to leaf controllers.
    pub feed: FeedConfig,
}

/// New labels of one session in one rack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The leaf, counted over all pods.
    pub leaf: u32,
    /// The session.
    pub session: u32,
    /// The labels that its agents keep; empty if the session needs none there any more.
    pub label: Vec<u8>,
}

/// Events that the central controller handles.
#[derive(Clone, Debug)]
pub enum CentralInput<'a> {
    /// Labels change. Answered by [`CentralOutput::Confirmed`] or [`CentralOutput::Refused`].
    Set {
        /// A number that the caller gives it; not one that waits.
        ticket: u64,
        /// The changes.
        changes: Vec<Change>,
    },
    /// The caller does not wait for these changes to be confirmed any more; they stay made.
    Forget {
        /// Ticket of the changes.
        ticket: u64,
    },
    /// A message of a leaf controller.
    FromLeaf {
        /// The leaf that it came from.
        leaf: u32,
        /// The message.
        message: Rack<'a>,
    },
}

/// Actions for the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CentralOutput {
    /// Send this to a leaf controller.
    ToLeaf {
        /// The leaf.
        leaf: u32,
        /// The message.
        datagram: Vec<u8>,
    },
    /// All agents of the racks concerned have the changes, or newer ones.
    Confirmed {
        /// Ticket of the changes.
        ticket: u64,
    },
    /// None of the changes is made.
    Refused {
        /// Ticket of the changes.
        ticket: u64,
        /// Reason.
        why: SetRefusal,
    },
    /// A leaf controller has been silent for too long, or is back.
    Silent {
        /// The leaf.
        leaf: u32,
        /// Set if it is silent now.
        silent: bool,
    },
}

/// Reasons for refusing changes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SetRefusal {
    /// No such leaf.
    #[error("there is no leaf {leaf}: the leafs are 0 to {last}")]
    NoLeaf {
        /// The one asked for.
        leaf: u32,
        /// The last one.
        last: u32,
    },
    /// A label that is too long.
    #[error("labels of {0} bytes are too long: {LABELS_LEN_MAX} are the most")]
    LabelLength(usize),
    /// A ticket that waits already.
    #[error("ticket {0} waits already: take another number")]
    TicketTaken(u64),
    /// A limit is reached.
    #[error("{0} sets of changes wait for confirmation, which is the limit: try again later")]
    TooMany(usize),
    /// A limit is reached.
    #[error("the rack of leaf {leaf} has {sessions} sessions, which is the limit: end one of them")]
    RackFull {
        /// The leaf.
        leaf: u32,
        /// Its sessions.
        sessions: usize,
    },
}

/// State of a rack.
#[derive(Debug)]
struct RackState {
    log: Log,
    feed: Feed,
    incarnation: u64,
    heard_at: Option<Time>,
    /// Up to which number all its agents have the updates.
    confirmed: u64,
    /// The tickets that wait for a number.
    waiting: BTreeMap<u64, Waiting>,
}

/// Changes that wait for the confirmation of a number.
#[derive(Debug, Default)]
struct Waiting {
    /// Number of changes: this one, and those that it has replaced.
    changes: u64,
    /// Tickets of the changes, one for each, as far as they are waited for.
    tickets: Vec<u64>,
}

/// The central controller.
#[derive(Debug)]
pub struct Central {
    config: CentralConfig,
    racks: Vec<RackState>,
    next_stream: u64,
    /// Racks that something may have to be sent to.
    stirred: BTreeSet<u32>,
    /// Times when racks have to be checked again.
    resends: BTreeSet<(Time, u32)>,
    silences: BTreeSet<(Time, u32)>,
    /// Number of changes of each set that still wait for confirmation.
    tickets: BTreeMap<u64, usize>,
    refused: u64,
    confirmed_updates: u64,
    outputs: VecDeque<CentralOutput>,
}

impl Central {
    /// A central controller before any leaf has called.
    #[must_use]
    pub fn new(config: CentralConfig) -> Self {
        let rack = |leaf: u32| RackState {
            log: Log::default(),
            feed: Feed::new(config.incarnation + u64::from(leaf), 0),
            incarnation: 0,
            heard_at: None,
            confirmed: 0,
            waiting: BTreeMap::new(),
        };
        Central {
            racks: (0..config.leafs).map(rack).collect(),
            next_stream: config.incarnation + u64::from(config.leafs),
            config,
            stirred: BTreeSet::new(),
            resends: BTreeSet::new(),
            silences: BTreeSet::new(),
            tickets: BTreeMap::new(),
            refused: 0,
            confirmed_updates: 0,
            outputs: VecDeque::new(),
        }
    }

    /// Takes in what happened.
    pub fn handle(&mut self, now: Time, input: CentralInput<'_>) {
        match input {
            CentralInput::Set { ticket, changes } => match self.admit(ticket, &changes) {
                Ok(()) => self.set(ticket, &changes),
                Err(why) => self.outputs.push_back(CentralOutput::Refused { ticket, why }),
            },
            CentralInput::Forget { ticket } => self.forget(ticket),
            CentralInput::FromLeaf { leaf, message } => {
                if !self.take_from_leaf(now, leaf, &message) {
                    self.refused += 1;
                }
            }
        }
        if cfg!(debug_assertions) {
            self.check();
        }
    }

    /// The next thing to do, until there is none.
    pub fn poll(&mut self, now: Time) -> Option<CentralOutput> {
        if let Some(output) = self.outputs.pop_front() {
            return Some(output);
        }
        while let Some(&(at, leaf)) = self.resends.first()
            && at <= now
        {
            self.resends.pop_first();
            self.stirred.insert(leaf);
        }
        while let Some(&leaf) = self.stirred.first() {
            if let Some(datagram) = self.feed(now, leaf) {
                return Some(CentralOutput::ToLeaf { leaf, datagram });
            }
            self.stirred.remove(&leaf);
        }
        let &(at, leaf) = self.silences.first()?;
        if at > now {
            return None;
        }
        self.silences.pop_first();
        self.racks[leaf as usize].heard_at = None;
        Some(CentralOutput::Silent { leaf, silent: true })
    }

    /// Returns the time to poll again even if nothing happens.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        let first = |times: &BTreeSet<(Time, u32)>| times.first().map(|(at, _)| *at);
        first(&self.resends).into_iter().chain(first(&self.silences)).min()
    }

    /// Messages of leaf controllers that were refused: of another leaf, of an earlier run, or senseless.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Changes of labels that all agents of their racks have confirmed.
    #[must_use]
    pub fn confirmed_updates(&self) -> u64 {
        self.confirmed_updates
    }

    /// Sets of changes that wait for confirmation.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.tickets.len()
    }

    fn admit(&self, ticket: u64, changes: &[Change]) -> Result<(), SetRefusal> {
        if self.tickets.contains_key(&ticket) {
            return Err(SetRefusal::TicketTaken(ticket));
        }
        if self.tickets.len() >= self.config.tickets_max {
            return Err(SetRefusal::TooMany(self.config.tickets_max));
        }
        let mut more: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
        for change in changes {
            let last = self.config.leafs.saturating_sub(1);
            let Some(rack) = self.racks.get(change.leaf as usize) else {
                return Err(SetRefusal::NoLeaf { leaf: change.leaf, last });
            };
            if change.label.len() > LABELS_LEN_MAX {
                return Err(SetRefusal::LabelLength(change.label.len()));
            }
            if !rack.log.has(change.session) {
                let new = more.entry(change.leaf).or_default();
                new.insert(change.session);
                let sessions = rack.log.len();
                if sessions + new.len() > self.config.labels_max {
                    return Err(SetRefusal::RackFull { leaf: change.leaf, sessions });
                }
            }
        }
        Ok(())
    }

    fn set(&mut self, ticket: u64, changes: &[Change]) {
        for change in changes {
            let rack = &mut self.racks[change.leaf as usize];
            let number = rack.log.head() + 1;
            let before = rack.log.set(number, change.session, &change.label);
            // A ticket that waits for the change that this one replaces has to wait for this one: the other
            // is not sent any more.
            let mut waiting = before.and_then(|before| rack.waiting.remove(&before)).unwrap_or_default();
            waiting.changes = waiting.changes.saturating_add(1);
            waiting.tickets.push(ticket);
            rack.waiting.insert(number, waiting);
            self.stirred.insert(change.leaf);
        }
        if changes.is_empty() {
            self.outputs.push_back(CentralOutput::Confirmed { ticket });
        } else {
            self.tickets.insert(ticket, changes.len());
        }
    }

    fn forget(&mut self, ticket: u64) {
        if self.tickets.remove(&ticket).is_none() {
            return;
        }
        // The number may be given to other changes, which these have nothing to do with.
        for waiting in self.racks.iter_mut().flat_map(|rack| rack.waiting.values_mut()) {
            waiting.tickets.retain(|other| *other != ticket);
        }
    }

    /// Looks whether the state agrees with itself: counts, bounds, and that numbers are in order. It takes
    /// time in proportion to all that there is, so only debug builds do it after every input.
    ///
    /// # Panics
    /// If it does not, which is our own mistake.
    pub fn check(&self) {
        let (tickets, most) = (self.tickets.len(), self.config.tickets_max);
        assert!(tickets <= most, "{tickets} sets of changes wait, {most} may");
        let mut left: BTreeMap<u64, usize> = BTreeMap::new();
        let mut streams = BTreeSet::new();
        for (leaf, rack) in (0u32..).zip(&self.racks) {
            rack.log.check();
            rack.feed.check(&rack.log, &self.config.feed);
            let (sessions, most) = (rack.log.len(), self.config.labels_max);
            assert!(sessions <= most, "rack {leaf} has {sessions} sessions, {most} it may have");
            assert!(rack.confirmed <= rack.log.head(), "rack {leaf} has confirmed what there is not");
            assert!(rack.log.floor() <= rack.confirmed, "what rack {leaf} had confirmed is open again");
            assert!(streams.insert(rack.feed.stream()), "two racks follow one stream");
            assert!(rack.feed.stream() <= self.next_stream, "a stream will be given out again");
            for (number, waiting) in &rack.waiting {
                assert!(*number > rack.confirmed, "change {number} is confirmed and waited for");
                assert!(rack.log.keeps(*number), "change {number} will never be sent");
                waiting.tickets.iter().for_each(|ticket| *left.entry(*ticket).or_default() += 1);
            }
            let silent_at = rack.heard_at.map(|at| (at + self.config.silence, leaf));
            assert!(silent_at.is_none_or(|at| self.silences.contains(&at)), "leaf {leaf} is never silent");
        }
        assert_eq!(left, self.tickets, "each set of changes waits for as many numbers as there are");
        let heard = self.racks.iter().filter(|rack| rack.heard_at.is_some()).count();
        assert_eq!(heard, self.silences.len(), "each leaf that was heard falls silent once");
    }

    /// Processes a message of a leaf controller; returns false if it makes no sense.
    fn take_from_leaf(&mut self, now: Time, leaf: u32, message: &Rack<'_>) -> bool {
        let Rack::Heartbeat(heartbeat) = message else { return false };
        let Some(rack) = self.racks.get_mut(leaf as usize) else { return false };
        if heartbeat.from != (Name { rack: leaf, agent: None }) || heartbeat.incarnation < rack.incarnation {
            return false;
        }
        if heartbeat.incarnation > rack.incarnation {
            rack.incarnation = heartbeat.incarnation;
            self.next_stream += 1;
            rack.feed = Feed::new(self.next_stream, 0);
        }
        if let Some(before) = rack.heard_at.replace(now) {
            self.silences.remove(&(before + self.config.silence, leaf));
        } else {
            self.outputs.push_back(CentralOutput::Silent { leaf, silent: false });
        }
        self.silences.insert((now + self.config.silence, leaf));
        self.stirred.insert(leaf);
        let rack = &mut self.racks[leaf as usize];
        let same = heartbeat.stream == rack.feed.stream();
        if same {
            // No agent has what its leaf controller has not.
            let known = heartbeat.confirmed <= heartbeat.applied;
            if !known || !rack.feed.confirm(now, heartbeat.applied, &self.config.feed) {
                return false;
            }
        }
        if !same || !heartbeat.settled {
            let settled = now >= self.config.settles_at;
            self.outputs.push_back(standing(leaf, rack, heartbeat, settled));
        }
        if same {
            self.confirm(leaf, heartbeat.confirmed);
        }
        true
    }

    /// All agents of a rack have the updates up to this number.
    fn confirm(&mut self, leaf: u32, confirmed: u64) {
        let rack = &mut self.racks[leaf as usize];
        rack.confirmed = rack.confirmed.max(rack.log.reached(confirmed));
        rack.log.forget_removed(rack.confirmed);
        while let Some(entry) = rack.waiting.first_entry()
            && *entry.key() <= rack.confirmed
        {
            let Waiting { changes, tickets } = entry.remove();
            self.confirmed_updates += changes;
            for ticket in tickets {
                let Some(left) = self.tickets.get_mut(&ticket) else { continue };
                *left -= 1;
                if *left == 0 {
                    self.tickets.remove(&ticket);
                    self.outputs.push_back(CentralOutput::Confirmed { ticket });
                }
            }
        }
    }

    fn feed(&mut self, now: Time, leaf: u32) -> Option<Vec<u8>> {
        let rack = &mut self.racks[leaf as usize];
        let to = Name { rack: leaf, agent: None };
        // There is nothing to send to before the leaf has called.
        rack.heard_at?;
        let before = rack.feed.deadline();
        let datagram = rack.feed.next(now, &rack.log, to, &self.config.feed);
        if let Some(at) = before {
            self.resends.remove(&(at, leaf));
        }
        self.resends.extend(rack.feed.deadline().map(|at| (at, leaf)));
        datagram
    }
}

fn standing(leaf: u32, rack: &RackState, heartbeat: &Heartbeat, settled: bool) -> CentralOutput {
    let standing = Standing {
        to: heartbeat.from,
        incarnation: rack.incarnation,
        stream: rack.feed.stream(),
        head: rack.log.last(),
        active: false,
        settled,
    };
    let mut datagram = Vec::new();
    Rack::Standing(standing).emit(&mut datagram);
    CentralOutput::ToLeaf { leaf, datagram }
}
