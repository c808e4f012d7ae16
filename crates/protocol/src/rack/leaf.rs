//! The controller of a leaf: hands updates on to the rack's agents, and replaces those that fall silent.
//!
//! An agent is heard by its heartbeats, and an active one by the packets that it relabels, too: the leaf
//! switch sees them. A suspicion that is wrong costs nothing: an agent that is replaced may name hosts for a
//! while, so that what it was handed arrives; it has its place again as soon as it is heard; and where no
//! agent can take its place it goes on being handed packets, which would be lost in any case.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use polycast_types::{Duration, Time};
use polycast_wire::rack::{Heartbeat, Name, Rack, Standing, Updates};

use super::follower::Follower;
use super::log::{Feed, Log};
use super::{FeedConfig, slower};

/// The packets that an agent relabels count for so many T after its last heartbeat, and for [`VOUCH_MIN`] at
/// least. The kernel may go on with packets when the agent itself hangs, and new labels do not get through
/// then.
const VOUCH: u64 = 8;
/// The least time that packets count without heartbeats.
const VOUCH_MIN: Duration = Duration::from_millis(100);
/// An agent that was replaced may name hosts for so long: what it was handed is on its way, or it is only
/// late.
const LINGER: Duration = Duration::from_millis(1_000);

/// A controller that comes this part of T too late to a time-out was held up.
const LATE_PART: u64 = 4;

/// A leaf's place, its agents, and times.
#[derive(Clone, Debug)]
pub struct LeafConfig {
    /// The leaf, counted over all pods.
    pub rack: u32,
    /// Its ports down.
    pub ports: u32,
    /// Number of this run: larger than any before, by more than the streams that a run begins. Nanoseconds
    /// since an epoch will do.
    pub incarnation: u64,
    /// Number of agents that are active at a time (N).
    pub active: usize,
    /// Number of further agents that stand by (M).
    pub standby: usize,
    /// An active agent that has been silent for this long has failed (T). One that stands by has four times
    /// as long, and where there is no session all have sixteen times.
    pub timeout: Duration,
    /// Time between heartbeats to the central controller.
    pub period: Duration,
    /// Number of sessions that the rack may have.
    pub labels_max: usize,
    /// Settings for sending updates to agents.
    pub feed: FeedConfig,
}

/// Events that a leaf controller handles.
#[derive(Clone, Debug)]
pub enum LeafInput<'a> {
    /// A message came in by a port of the leaf.
    FromAgent {
        /// The port.
        port: u32,
        /// The message.
        message: Rack<'a>,
    },
    /// A message of the central controller.
    FromCentral(Rack<'a>),
    /// The answer to [`LeafOutput::Look`]: the agent at a port sent a relabelled packet then. If it never did
    /// there is no answer.
    Relabelled {
        /// The port.
        port: u32,
        /// Time when its last packet came to the switch.
        at: Time,
    },
}

/// Actions for the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeafOutput {
    /// Send this to the agent at a port.
    ToAgent {
        /// The port.
        port: u32,
        /// The message.
        datagram: Vec<u8>,
    },
    /// Send this to the central controller.
    ToCentral(Vec<u8>),
    /// Agents that the leaf switch has to know.
    Agents {
        /// It hands packets to the agents at these ports, in turn.
        active: Vec<u32>,
        /// Ports whose agents may name hosts: bit n stands for port n.
        rack: u128,
    },
    /// An active agent has not said anything for T: when did the switch have a packet of its? To be answered
    /// before the next `poll`, by which it is lost otherwise.
    Look {
        /// Its port.
        port: u32,
    },
    /// An agent has been silent for T, or has started anew.
    Lost {
        /// Its port.
        port: u32,
        /// Set if it was active.
        active: bool,
    },
    /// An agent that was lost is heard again in the same run: it was only late.
    Returned {
        /// Its port.
        port: u32,
    },
    /// The first message of this kind that was refused from this port, for the log.
    Refused {
        /// The port.
        port: u32,
        /// Reason.
        why: Refusal,
    },
    /// The rack has as many sessions as it may have: newer ones are not taken, nor confirmed. Said once.
    Full,
}

/// Reasons for refusing a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum Refusal {
    /// Its sender names another rack.
    #[error("an agent claims to be of rack {0}: give it the number of its own rack")]
    OtherRack(u32),
    /// Its sender names another port.
    #[error("an agent claims port {0}, which is not the one it is at")]
    OtherPort(u32),
    /// The leaf has no such port.
    #[error("the leaf has no such port")]
    NoPort,
    /// An agent's run that has been replaced by a newer one.
    #[error(
        "an agent of an earlier run still speaks: let one rack agent run on its host, and stop the other"
    )]
    OldRun,
    /// N + M agents are there already.
    #[error("the rack has all its active and standby agents: this one waits until one is lost")]
    NoPlace,
    /// Not a message that goes up, or numbers that there are not.
    #[error("a message that makes no sense here")]
    Senseless,
}

/// Numbers of refused messages and updates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeafCounts {
    /// Messages of agents, by reason; agents that claim another rack or port among them.
    pub refused: BTreeMap<&'static str, u64>,
    /// Messages of the central controller for another rack or run.
    pub misdirected: u64,
    /// Updates whose sequence numbers were not new.
    pub stale: u64,
    /// Messages that came before others which they follow.
    pub gaps: u64,
}

/// An agent to look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AgentView {
    /// Its port.
    pub port: u32,
    /// Set if it gets packets.
    pub active: bool,
    /// The number of the last update that it confirmed.
    pub confirmed: u64,
    /// Time when it was last heard.
    pub heard_at: Time,
}

/// An agent of the rack.
#[derive(Debug)]
struct Member {
    incarnation: u64,
    feed: Feed,
    heard_at: Time,
    /// Time when the switch last had a packet from it, as far as the switch was asked.
    relabelled_at: Time,
    /// Set once the switch has been asked since it counts as silent.
    looked: bool,
    /// Time that it has beyond T, because this controller was late itself.
    grace: Duration,
    active: bool,
}

impl Member {
    /// Returns the time when it counts as silent.
    fn silent_at(&self, timeout: Duration, has_sessions: bool) -> Time {
        let vouched = (timeout * VOUCH).max(VOUCH_MIN);
        let alive_at = match self.active {
            true => self.heard_at.max(self.relabelled_at.min(self.heard_at + vouched)),
            false => self.heard_at,
        };
        alive_at + timeout * slower(self.active, has_sessions) + self.grace
    }
}

/// An agent that was lost.
#[derive(Debug)]
struct Gone {
    incarnation: u64,
    /// Its stream and the last number that it can have of it, so that one that was only late goes on where it
    /// was; `None` if that is over.
    stream: Option<(u64, u64)>,
    /// Until when it may name hosts; `None` when that is over.
    trusted_until: Option<Time>,
}

/// The controller of a leaf.
#[derive(Debug)]
pub struct Leaf {
    config: LeafConfig,
    follower: Follower,
    log: Log,
    next_stream: u64,
    members: BTreeMap<u32, Member>,
    /// Agent that each port had last.
    before: BTreeMap<u32, Gone>,
    /// The active agent that was lost last, if no other was there to take its place.
    last_hope: Option<u32>,
    /// The port whose turn it is to be sent something.
    turn: u32,
    next_heartbeat: Time,
    /// Numbers in the last heartbeat.
    reported: (u64, u64),
    full: bool,
    /// State that the switch knows: the active agents, and all.
    told: (Vec<u32>, u128),
    refused: BTreeMap<&'static str, u64>,
    named: BTreeSet<(u32, &'static str)>,
    misdirected: u64,
    outputs: VecDeque<LeafOutput>,
}

impl Leaf {
    /// A leaf controller that knows no agent yet; its first heartbeat is due at once.
    ///
    /// # Panics
    /// If no agent is to be active, so that packets would go nowhere, if there is no time between heartbeats,
    /// or if there are more ports than a label has room for.
    #[must_use]
    pub fn new(config: LeafConfig, now: Time) -> Self {
        assert!(config.active > 0, "a rack needs at least one active agent");
        assert!(config.period > Duration::ZERO, "heartbeats need time between them");
        assert!(config.ports <= u128::BITS, "a leaf has at most {} ports down", u128::BITS);
        Leaf {
            next_stream: config.incarnation,
            config,
            follower: Follower::new(),
            log: Log::default(),
            members: BTreeMap::new(),
            before: BTreeMap::new(),
            last_hope: None,
            turn: 0,
            next_heartbeat: now,
            reported: (0, 0),
            full: false,
            told: (Vec::new(), 0),
            refused: BTreeMap::new(),
            named: BTreeSet::new(),
            misdirected: 0,
            outputs: VecDeque::new(),
        }
    }

    /// Takes in what happened. Everything that has come should be handed over before the next `poll`, which
    /// judges by it which agents are silent.
    pub fn handle(&mut self, now: Time, input: LeafInput<'_>) {
        match input {
            LeafInput::FromAgent { port, message } => {
                if let Err(why) = self.take_from_agent(now, port, &message) {
                    self.refuse(port, why);
                }
            }
            LeafInput::FromCentral(message) => self.take_from_central(now, &message),
            LeafInput::Relabelled { port, at } => {
                let has_sessions = self.has_sessions();
                if let Some(member) = self.members.get_mut(&port) {
                    member.relabelled_at = member.relabelled_at.max(at.min(now));
                    member.looked = member.silent_at(self.config.timeout, has_sessions) <= now;
                }
            }
        }
        if cfg!(debug_assertions) {
            self.check();
        }
    }

    /// The next thing to do, until there is none.
    pub fn poll(&mut self, now: Time) -> Option<LeafOutput> {
        self.expire(now);
        // The switch comes first: packets are being lost until it knows.
        let agents = self.switch_agents();
        if agents != self.told {
            self.told = agents.clone();
            return Some(LeafOutput::Agents { active: agents.0, rack: agents.1 });
        }
        if let Some(output) = self.outputs.pop_front() {
            return Some(output);
        }
        if let Some(output) = self.feed(now) {
            return Some(output);
        }
        let progress = (self.follower.applied(), self.confirmed());
        if now < self.next_heartbeat && progress == self.reported {
            return None;
        }
        self.next_heartbeat = now + self.config.period;
        self.reported = progress;
        let heartbeat = Heartbeat {
            from: Name { rack: self.config.rack, agent: None },
            incarnation: self.config.incarnation,
            stream: self.follower.stream(),
            applied: progress.0,
            confirmed: progress.1,
            active: false,
            settled: self.follower.settled(),
        };
        let mut datagram = Vec::new();
        Rack::Heartbeat(heartbeat).emit(&mut datagram);
        Some(LeafOutput::ToCentral(datagram))
    }

    /// Returns the time to poll again even if nothing happens.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        let silent =
            self.members.values().map(|member| member.silent_at(self.config.timeout, self.has_sessions()));
        let resend = self.members.values().filter_map(|member| member.feed.deadline());
        let trusted = self.before.values().filter_map(|gone| gone.trusted_until);
        silent.chain(resend).chain(trusted).chain([self.next_heartbeat]).min()
    }

    /// The active agents, and the ports of all that may name hosts.
    fn switch_agents(&self) -> (Vec<u32>, u128) {
        let mut active: Vec<u32> =
            self.members.iter().filter(|(_, member)| member.active).map(|(port, _)| *port).collect();
        if active.is_empty() {
            active.extend(self.last_hope);
        }
        let lingering = self.before.iter().filter(|(_, gone)| gone.trusted_until.is_some());
        let ports = self.members.keys().chain(lingering.map(|(port, _)| port)).chain(&active);
        let rack = ports.fold(0, |rack, port| rack | 1 << port);
        (active, rack)
    }

    /// The agents, by port.
    pub fn agents(&self) -> impl Iterator<Item = AgentView> + '_ {
        self.members.iter().map(|(&port, member)| AgentView {
            port,
            active: member.active,
            confirmed: member.feed.confirmed(),
            heard_at: member.heard_at,
        })
    }

    /// Returns the number of sessions that the rack has labels or recent removals of.
    #[must_use]
    pub fn labels(&self) -> usize {
        self.log.len()
    }

    /// Returns the number of sessions that the rack's agents have labels for, and the bytes that these take.
    #[must_use]
    pub fn held(&self) -> (usize, usize) {
        (self.log.labelled(), self.log.label_bytes())
    }

    /// Returns the number of refused messages of agents.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused.values().sum()
    }

    /// Returns the numbers of refusals so far.
    #[must_use]
    pub fn counts(&self) -> LeafCounts {
        LeafCounts {
            refused: self.refused.clone(),
            misdirected: self.misdirected,
            stale: self.follower.stale,
            gaps: self.follower.gaps,
        }
    }

    /// Looks whether the state agrees with itself: counts, bounds, and that no port is in two states. It
    /// takes time in proportion to all that there is, so only debug builds do it after every input.
    ///
    /// # Panics
    /// If it does not, which is our own mistake.
    pub fn check(&self) {
        self.follower.check();
        self.log.check();
        let (labels, most) = (self.log.len().max(self.follower.len()), self.config.labels_max);
        assert!(labels <= most, "a rack has {labels} sessions, {most} it may have");
        assert_eq!(self.log.head(), self.follower.applied(), "what is taken is handed on");
        assert_eq!(self.log.labelled(), self.follower.named(), "every label that is taken is handed on");
        let (members, active) = (self.members.len(), self.active_count());
        assert!(members <= self.config.active + self.config.standby, "a rack has {members} agents");
        assert_eq!(active, members.min(self.config.active), "of {members} agents the active ones");
        let mut streams = BTreeSet::new();
        for (port, member) in &self.members {
            assert!(*port < self.config.ports, "there is no port {port}");
            assert!(!self.before.contains_key(port), "the agent at port {port} is there and lost");
            member.feed.check(&self.log, &self.config.feed);
            assert!(streams.insert(member.feed.stream()), "two agents follow one stream");
            assert!(member.feed.stream() <= self.next_stream, "a stream will be given out again");
        }
        assert!(self.before.keys().all(|port| *port < self.config.ports), "what was lost was at a port");
        assert!(self.last_hope.is_none() || active == 0, "there is more than a last hope");
        let kinds = 6 * (self.config.ports as usize + 1);
        assert!(self.named.len() <= kinds, "each kind of refusal is named once a port");
    }

    /// Up to which number all agents have the updates; without an agent none is confirmed.
    fn confirmed(&self) -> u64 {
        let all = self.members.values().map(|member| self.log.reached(member.feed.confirmed())).min();
        all.unwrap_or(0)
    }

    fn refuse(&mut self, port: u32, why: Refusal) {
        let kind = match why {
            Refusal::OtherRack(_) => "another rack",
            Refusal::OtherPort(_) => "another port",
            Refusal::NoPort => "no such port",
            Refusal::OldRun => "earlier run",
            Refusal::NoPlace => "no place",
            Refusal::Senseless => "senseless",
        };
        *self.refused.entry(kind).or_default() += 1;
        // Ports that there are not all count as one.
        if self.named.insert((port.min(self.config.ports), kind)) {
            self.outputs.push_back(LeafOutput::Refused { port, why });
        }
    }

    fn take_from_agent(&mut self, now: Time, port: u32, message: &Rack<'_>) -> Result<(), Refusal> {
        let Rack::Heartbeat(heartbeat) = message else { return Err(Refusal::Senseless) };
        if port >= self.config.ports {
            return Err(Refusal::NoPort);
        }
        if heartbeat.from.rack != self.config.rack {
            return Err(Refusal::OtherRack(heartbeat.from.rack));
        }
        match heartbeat.from.agent {
            Some(claimed) if claimed == port => {}
            Some(claimed) => return Err(Refusal::OtherPort(claimed)),
            None => return Err(Refusal::Senseless),
        }
        let known = self.members.get(&port).map(|member| member.incarnation);
        let last = known.or(self.before.get(&port).map(|gone| gone.incarnation));
        if last.is_some_and(|incarnation| heartbeat.incarnation < incarnation) {
            return Err(Refusal::OldRun);
        }
        if known.is_some_and(|incarnation| heartbeat.incarnation > incarnation) {
            // It has crashed and come back before T was over.
            self.lose(now, port);
        }
        if !self.members.contains_key(&port) {
            self.admit(now, port, heartbeat)?;
        }
        self.heard(now, port, heartbeat)
    }

    /// Gives an agent a place: an active one if there is one.
    fn admit(&mut self, now: Time, port: u32, heartbeat: &Heartbeat) -> Result<(), Refusal> {
        if self.members.len() >= self.config.active + self.config.standby {
            return Err(Refusal::NoPlace);
        }
        let gone = self.before.remove(&port).filter(|gone| gone.incarnation == heartbeat.incarnation);
        if gone.is_some() {
            self.outputs.push_back(LeafOutput::Returned { port });
        }
        let before = gone.and_then(|gone| gone.stream).filter(|(stream, _)| *stream == heartbeat.stream);
        let resumed =
            before.and_then(|(stream, reached)| Feed::resumed(stream, reached, heartbeat.applied, &self.log));
        let feed = resumed.unwrap_or_else(|| self.begin_stream());
        let active = self.active_count() < self.config.active;
        let member = Member {
            incarnation: heartbeat.incarnation,
            feed,
            heard_at: now,
            relabelled_at: Time::ZERO,
            looked: false,
            grace: Duration::ZERO,
            active,
        };
        self.members.insert(port, member);
        if active {
            self.last_hope = None;
        }
        Ok(())
    }

    fn begin_stream(&mut self) -> Feed {
        self.next_stream += 1;
        Feed::new(self.next_stream, 0)
    }

    fn heard(&mut self, now: Time, port: u32, heartbeat: &Heartbeat) -> Result<(), Refusal> {
        let settled = self.is_settled();
        let Some(member) = self.members.get_mut(&port) else { return Ok(()) };
        (member.heard_at, member.grace, member.looked) = (now, Duration::ZERO, false);
        let same = heartbeat.stream == member.feed.stream();
        if same && !member.feed.confirm(now, heartbeat.applied, &self.config.feed) {
            return Err(Refusal::Senseless);
        }
        if !same || heartbeat.active != member.active || (settled && !heartbeat.settled) {
            self.tell_standing(port);
        }
        let known_to_all = self.members.values().map(|member| member.feed.confirmed()).min();
        self.log.forget_removed(known_to_all.unwrap_or(0));
        Ok(())
    }

    /// Tells an agent how it stands.
    fn tell_standing(&mut self, port: u32) {
        let Some(member) = self.members.get(&port) else { return };
        let standing = Standing {
            to: Name { rack: self.config.rack, agent: Some(port) },
            incarnation: member.incarnation,
            stream: member.feed.stream(),
            head: self.log.last(),
            active: member.active,
            settled: self.is_settled(),
        };
        let mut datagram = Vec::new();
        Rack::Standing(standing).emit(&mut datagram);
        self.outputs.push_back(LeafOutput::ToAgent { port, datagram });
    }

    fn take_from_central(&mut self, now: Time, message: &Rack<'_>) {
        let own = Name { rack: self.config.rack, agent: None };
        match message {
            Rack::Standing(standing)
                if standing.to == own && standing.incarnation == self.config.incarnation =>
            {
                let before = (self.follower.stream(), self.follower.settled());
                self.begin(standing.stream);
                // The agents forget what is gone by themselves.
                self.follower.settle(standing);
                // Nothing new needs no answer: a central controller that is not settled answers every
                // heartbeat.
                if before != (self.follower.stream(), self.follower.settled()) {
                    self.next_heartbeat = now;
                }
            }
            Rack::Updates(updates) if updates.to == own => {
                // The confirmation, or a question for a stream that is not known yet.
                self.next_heartbeat = now;
                if self.follower.follows(updates) {
                    self.updates(now, updates);
                }
            }
            _ => self.misdirected += 1,
        }
    }

    /// A new stream from above: the rack's row begins anew, and so do its agents' streams.
    fn begin(&mut self, stream: u64) {
        if !self.follower.begin(stream) {
            return;
        }
        self.log = Log::default();
        let ports: Vec<u32> = self.members.keys().copied().collect();
        for port in ports {
            let feed = self.begin_stream();
            if let Some(member) = self.members.get_mut(&port) {
                member.feed = feed;
            }
            // Only this names the run that the stream is for.
            self.tell_standing(port);
        }
        self.before.values_mut().for_each(|gone| gone.stream = None);
    }

    /// Returns true if the rack's row is complete. It is not before the central controller has sent anything.
    fn is_settled(&self) -> bool {
        self.follower.stream() > 0 && self.follower.settled()
    }

    fn has_sessions(&self) -> bool {
        self.follower.len() > 0
    }

    fn updates(&mut self, now: Time, message: &Updates<'_>) {
        let had_sessions = self.has_sessions();
        for update in self.follower.fresh(message) {
            if !self.log.has(update.session) && self.log.len() >= self.config.labels_max {
                if !core::mem::replace(&mut self.full, true) {
                    self.outputs.push_back(LeafOutput::Full);
                }
                break;
            }
            if self.follower.grows(update) && self.follower.len() >= self.config.labels_max {
                self.follower.make_room();
            }
            self.follower.apply(update);
            self.log.set(update.number, update.session, update.label);
        }
        if !had_sessions && self.has_sessions() {
            // From now on agents have to say more often that they live.
            self.members.values_mut().for_each(|member| member.grace = now.since(member.heard_at));
        }
    }

    /// The next datagram for some agent; they take turns.
    fn feed(&mut self, now: Time) -> Option<LeafOutput> {
        let config = self.config.feed;
        let ports = self.members.range(self.turn..).chain(self.members.range(..self.turn));
        let ports: Vec<u32> = ports.map(|(port, _)| *port).collect();
        for port in ports {
            let to = Name { rack: self.config.rack, agent: Some(port) };
            let member = self.members.get_mut(&port)?;
            if let Some(datagram) = member.feed.next(now, &self.log, to, &config) {
                self.turn = port + 1;
                return Some(LeafOutput::ToAgent { port, datagram });
            }
        }
        None
    }

    /// Takes out agents that have been silent for T, after a look at the packets that an active one relabels.
    /// A controller that comes late to this moment was held up itself, and what held it up may have held up
    /// the agents' words: it looks once more, half of T later.
    fn expire(&mut self, now: Time) {
        let (timeout, has_sessions) = (self.config.timeout, self.has_sessions());
        let mut silent = Vec::new();
        for (&port, member) in &mut self.members {
            let silent_at = member.silent_at(timeout, has_sessions);
            if silent_at > now {
                continue;
            }
            let late = now.since(silent_at);
            if member.active && !member.looked {
                member.looked = true;
                self.outputs.push_front(LeafOutput::Look { port });
            } else if late >= timeout / LATE_PART && member.grace == Duration::ZERO {
                (member.grace, member.looked) = (late + timeout / 2, false);
            } else {
                silent.push(port);
            }
        }
        silent.into_iter().for_each(|port| self.lose(now, port));
        for gone in self.before.values_mut() {
            gone.trusted_until = gone.trusted_until.filter(|until| *until > now);
        }
    }

    /// Takes an agent out. If it was active, the standby that is most up to date takes its place.
    fn lose(&mut self, now: Time, port: u32) {
        let Some(member) = self.members.remove(&port) else { return };
        let mut promoted = None;
        let (incarnation, stream) = (member.incarnation, Some((member.feed.stream(), member.feed.reached())));
        self.before.insert(port, Gone { incarnation, stream, trusted_until: Some(now + LINGER) });
        if member.active {
            let standby = self.members.iter_mut().filter(|(_, other)| !other.active);
            let best =
                standby.max_by_key(|(port, other)| (other.feed.confirmed(), core::cmp::Reverse(**port)));
            if let Some((port, other)) = best {
                other.active = true;
                // From now on it has to say more often that it lives, and is told so at once.
                other.grace = now.since(other.heard_at);
                promoted = Some(*port);
            } else if self.active_count() == 0 {
                self.last_hope = Some(port);
            }
        }
        self.outputs.push_back(LeafOutput::Lost { port, active: member.active });
        promoted.into_iter().for_each(|port| self.tell_standing(port));
    }

    fn active_count(&self) -> usize {
        self.members.values().filter(|member| member.active).count()
    }
}
