//! The manager's table of streams: which agent sends, which ask to hear, and what is asked of the leases for
//! it.
//!
//! A stream's path is a lease of its source's agent. It is asked for when the first receiver joins, changes
//! with every join and leave, and goes back when no receiver listens. At most one change of a lease is under
//! way at a time; what comes meanwhile goes with the next. Agents say again what they ask for whenever a
//! session begins, so a manager that knows nothing learns it.
//!
//! A receiver that joins is told which number the source's next message has, so that it takes nothing older,
//! which a host on the network may have recorded. The source answers to a number that the receiver has drawn:
//! what it says is no older than the question.
//!
//! In a shared stream every member sends: its path leads from each of them to all others. Each sender has a
//! handle and numbers of its own, so each pair of a receiver and a sender has a question and an answer. That
//! is why such a stream has few members.

use super::members::{Asked, Lent, Member, Stream};
use super::words::{StreamRefusal, StreamSender};
use crate::leases::{AgentKey, Denial, Grant, Input, RequestKey, STREAMS_FROM};
use crate::share::has_room;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::string::{String, ToString};

use alloc::vec::Vec;
use polycast_planning::{Channel, FabricName, Plan};
use polycast_types::{Duration, Handle, Time};

/// The longest name of a stream, in bytes.
const NAME_LEN_MAX: usize = 255;

/// Bounds and times.
#[derive(Clone, Copy, Debug)]
pub struct StreamsConfig {
    /// Number of streams that there may be.
    pub streams_max: usize,
    /// Number of members that a shared stream may have.
    pub senders_max: usize,
    /// Number of receivers that may wait for streams that are not there yet.
    pub parked_max: usize,
    /// Time that a manager may take after its beginning to know all streams, and that an agent whose session
    /// begins again may take to repeat its requests.
    pub settle: Duration,
    /// Time after a failure until a path is requested again.
    pub retry: Duration,
}

impl Default for StreamsConfig {
    fn default() -> Self {
        StreamsConfig {
            streams_max: 4_096,
            senders_max: 64,
            parked_max: 4_096,
            settle: Duration::from_millis(5_000),
            retry: Duration::from_millis(1_000),
        }
    }
}

/// Events that the table handles.
#[derive(Clone, Debug)]
pub enum StreamsInput {
    /// A session of an agent has begun. It says again what it asks for; what it does not name is not asked
    /// for any more.
    Arrived {
        /// The agent.
        agent: AgentKey,
    },
    /// An agent has left or died.
    Gone {
        /// The agent.
        agent: AgentKey,
    },
    /// An agent makes a stream. Answered by [`StreamWord::Created`] or [`StreamWord::Refused`].
    Create {
        /// The source.
        agent: AgentKey,
        /// The stream's name.
        name: String,
        /// The number of its request for a path, from [`STREAMS_FROM`] on.
        request: u64,
        /// Handle that its packets carry.
        handle: Handle,
        /// True if every member may send.
        shared: bool,
        /// Contents of the source's lease, if it holds one already: the plan, and all receivers, also those
        /// whose agents are not here.
        held: Option<(Plan, Vec<String>)>,
    },
    /// The source ends its stream.
    End {
        /// The source.
        agent: AgentKey,
        /// The stream.
        name: String,
    },
    /// An agent asks to hear a stream. Answered by [`StreamWord::Joined`] or [`StreamWord::Refused`].
    Join {
        /// The receiver.
        agent: AgentKey,
        /// The stream.
        name: String,
        /// A number that it has drawn for this.
        ask: u64,
        /// Handle with which it sends itself, where every member may.
        sends: Option<Handle>,
    },
    /// A sender says where it is, as [`StreamWord::Where`] has asked.
    At {
        /// The sender.
        agent: AgentKey,
        /// The stream.
        name: String,
        /// For whom it was asked.
        receiver: String,
        /// Number that this receiver has drawn.
        ask: u64,
        /// The number of its next message.
        next: u64,
    },
    /// An agent does not listen any more.
    Leave {
        /// The receiver.
        agent: AgentKey,
        /// The stream.
        name: String,
    },
    /// The leases have answered a request.
    Response {
        /// The request.
        request: RequestKey,
        /// The answer.
        response: Result<Grant, Denial>,
    },
    /// The leases have answered a change.
    Changed {
        /// The request.
        request: RequestKey,
        /// The answer.
        result: Result<Option<Grant>, Denial>,
    },
    /// A path goes another way.
    Replanned {
        /// The request.
        request: RequestKey,
        /// The path now.
        plan: Plan,
    },
    /// A lease has ended.
    Ended {
        /// The request.
        request: RequestKey,
    },
}

/// Actions for the driver.
#[derive(Clone, Debug)]
pub enum StreamsOutput {
    /// For the leases; what they answer comes back.
    Lease(Input),
    /// For an agent.
    Tell {
        /// The agent.
        agent: AgentKey,
        /// The stream.
        name: String,
        /// The message.
        word: StreamWord,
    },
}

/// Message to an agent about a stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StreamWord {
    /// The source: receivers can join.
    Created,
    /// A sender: it is to say which number its next message has. Answered by [`StreamsInput::At`].
    Where {
        /// The receiver that asks.
        receiver: String,
        /// Number that it has drawn.
        ask: u64,
    },
    /// A receiver: this is where it comes. Again when that has changed.
    Joined {
        /// Channel to listen to.
        channel: Channel,
        /// The fabric's name.
        fabric: FabricName,
        /// The source's name.
        source: String,
        /// Handle that packets carry.
        handle: Handle,
        /// Number that it drew when it asked.
        ask: u64,
        /// The number of the source's next message after that: what has a lower one is old, even if it comes
        /// only now.
        from: u64,
        /// All senders but the source and this receiver, where every member sends; none elsewhere.
        others: Option<Vec<StreamSender>>,
    },
    /// Refusal of its request.
    Refused(StreamRefusal),
    /// A receiver: the stream has ended.
    Ended,
}

/// A stream, to be shown.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StreamView {
    /// Its name.
    pub name: String,
    /// The source's name.
    pub source: String,
    /// The agents that receive, and those that wait for it.
    pub receivers: Vec<String>,
    /// True if every member may send.
    pub shared: bool,
    /// The fabric that carries it; none while no receiver listens, or there is no path.
    pub fabric: Option<FabricName>,
}

/// Role that an agent has to report again.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Unsure {
    Source(String),
    Member(String, String),
}

/// Contents of a request to join that waits.
#[derive(Clone, Copy, Debug)]
struct Parked {
    ask: u64,
    sends: Option<Handle>,
}

/// The table.
#[derive(Debug)]
pub struct Streams {
    config: StreamsConfig,
    settles_at: Time,
    streams: BTreeMap<String, Stream>,
    names: BTreeMap<RequestKey, String>,
    /// Agents that wait for a stream that is not there yet, with what they have drawn.
    parked: BTreeMap<(String, AgentKey), Parked>,
    unsure: BTreeSet<(Time, Unsure)>,
    outputs: VecDeque<StreamsOutput>,
}

impl Streams {
    /// An empty table of a manager that begins now.
    #[must_use]
    pub fn new(config: StreamsConfig, now: Time) -> Self {
        Streams {
            config,
            settles_at: now + config.settle,
            streams: BTreeMap::new(),
            names: BTreeMap::new(),
            parked: BTreeMap::new(),
            unsure: BTreeSet::new(),
            outputs: VecDeque::new(),
        }
    }

    /// Takes in what happened.
    pub fn handle(&mut self, now: Time, input: StreamsInput) {
        match input {
            StreamsInput::Arrived { agent } => self.arrived(now, &agent),
            StreamsInput::Gone { agent } => self.gone(now, &agent),
            StreamsInput::Create { agent, name, request, handle, shared, held } => {
                let made = Made { request, handle, shared };
                if let Err(refusal) = self.create(now, &agent, &name, made, held) {
                    self.tell(&agent, &name, StreamWord::Refused(refusal));
                }
            }
            StreamsInput::End { agent, name } => {
                if self.streams.get(&name).is_some_and(|stream| stream.source == agent) {
                    self.close(&name);
                }
            }
            StreamsInput::Join { agent, name, ask, sends } => {
                self.join(now, agent, &name, Parked { ask, sends });
            }
            StreamsInput::At { agent, name, receiver, ask, next } => {
                self.is_at(&agent, &name, &receiver, ask, next);
            }
            StreamsInput::Leave { agent, name } => {
                self.parked.remove(&(name.clone(), agent.clone()));
                self.leave(now, &name, &agent);
            }
            StreamsInput::Response { request, response } => self.response(now, &request, response),
            StreamsInput::Changed { request, result } => self.changed(now, &request, result),
            StreamsInput::Replanned { request, plan } => self.replanned(now, &request, plan),
            StreamsInput::Ended { request } => self.ended(now, &request),
        }
        if cfg!(debug_assertions) {
            self.check();
        }
    }

    /// The next thing to do, until there is none.
    pub fn poll(&mut self, now: Time) -> Option<StreamsOutput> {
        if let Some(output) = self.outputs.pop_front() {
            return Some(output);
        }
        while self.unsure.first().is_some_and(|(at, _)| *at <= now) {
            match self.unsure.pop_first().map(|(_, unsure)| unsure) {
                Some(Unsure::Source(name)) => self.close(&name),
                Some(Unsure::Member(name, member)) => {
                    let member = self.streams.get(&name).and_then(|stream| stream.members.get(&member));
                    match member.map(|member| member.agent.clone()) {
                        Some(agent) => self.leave(now, &name, &agent),
                        // Only its lease knows it.
                        None => self.reconcile(now, &name),
                    }
                }
                None => {}
            }
        }
        if now >= self.settles_at {
            for (name, agent) in core::mem::take(&mut self.parked).into_keys() {
                let refusal = StreamRefusal::Unknown(name.clone());
                self.tell(&agent, &name, StreamWord::Refused(refusal));
            }
        }
        let due = |stream: &Stream| stream.retry_at.is_some_and(|at| at <= now);
        let names: Vec<String> =
            self.streams.iter().filter(|(_, stream)| due(stream)).map(|(name, _)| name.clone()).collect();
        for name in names {
            if let Some(stream) = self.streams.get_mut(&name) {
                stream.retry_at = None;
            }
            self.reconcile(now, &name);
        }
        self.outputs.pop_front()
    }

    /// Returns the time of the next poll even if nothing happens before.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        let unsure = self.unsure.first().map(|(at, _)| *at);
        let parked = (!self.parked.is_empty()).then_some(self.settles_at);
        let retries = self.streams.values().filter_map(|stream| stream.retry_at).min();
        [unsure, parked, retries].into_iter().flatten().min()
    }

    /// The streams, in the order of their names.
    pub fn streams(&self) -> impl Iterator<Item = StreamView> {
        self.streams.iter().map(|(name, stream)| StreamView {
            name: name.clone(),
            source: stream.source.name.clone(),
            receivers: stream.members.keys().cloned().collect(),
            shared: stream.shared,
            fabric: stream.lent.as_ref().map(|lent| lent.plan.fabric),
        })
    }

    /// Agents that wait for a stream of this name, which is not there yet.
    pub fn waiting(&self, name: &str) -> impl Iterator<Item = &AgentKey> {
        let waiting = self.parked.keys().filter(move |(wanted, _)| wanted == name);
        waiting.map(|(_, agent)| agent)
    }

    /// Looks whether the state agrees with itself: counts, bounds, and that nothing is in two states.
    ///
    /// # Panics
    /// If it does not, which is our own mistake.
    pub fn check(&self) {
        let (streams, parked) = (self.streams.len(), self.parked.len());
        assert!(streams <= self.config.streams_max, "there are {streams} streams");
        assert!(parked <= self.config.parked_max, "{parked} receivers wait for streams");
        assert_eq!(self.names.len(), streams, "each stream has one request");
        for (name, stream) in &self.streams {
            let key = stream.source.request(stream.request);
            assert_eq!(self.names.get(&key), Some(name), "the request of '{name}' is another stream's");
            assert!(key.is_stream(), "{key:?} is no stream's");
            let is_own = |(name, member): (&String, &Member)| *name == member.agent.name;
            assert!(stream.members.iter().all(is_own), "a receiver of '{name}' has another one's name");
            stream.check(name, self.config.senders_max);
            assert!(stream.lent.is_none() || stream.asked != Asked::Path, "'{name}' asks for a second path");
        }
        let is_there = |(name, _): &(String, AgentKey)| self.streams.contains_key(name);
        assert!(!self.parked.keys().any(is_there), "a receiver waits for a stream that is there");
        let mut once = BTreeSet::new();
        for (_, unsure) in &self.unsure {
            let (Unsure::Source(name) | Unsure::Member(name, _)) = unsure;
            assert!(self.streams.contains_key(name), "'{name}' is over and may end");
            assert!(once.insert(unsure), "{unsure:?} is waited for twice");
        }
    }

    /// Waits until then for an agent to say something again; from when it was asked first.
    fn doubt(&mut self, until: Time, unsure: Unsure) {
        if !self.unsure.iter().any(|(_, other)| *other == unsure) {
            self.unsure.insert((until, unsure));
        }
    }

    fn tell(&mut self, agent: &AgentKey, name: &str, word: StreamWord) {
        self.outputs.push_back(StreamsOutput::Tell { agent: agent.clone(), name: name.to_string(), word });
    }

    /// An agent says again what it asks for, until then.
    fn arrived(&mut self, now: Time, agent: &AgentKey) {
        self.parked.retain(|(_, waiting), _| waiting.name != agent.name);
        let until = now + self.config.settle;
        let (mut gone, mut doubts) = (Vec::new(), Vec::new());
        for (name, stream) in &self.streams {
            if stream.source.name == agent.name {
                if stream.source == *agent {
                    doubts.push(Unsure::Source(name.clone()));
                } else {
                    gone.push(stream.source.clone());
                }
            }
            if let Some(member) = stream.members.get(&agent.name) {
                if member.agent == *agent {
                    doubts.push(Unsure::Member(name.clone(), agent.name.clone()));
                } else {
                    gone.push(member.agent.clone());
                }
            }
        }
        doubts.into_iter().for_each(|unsure| self.doubt(until, unsure));
        // Another run of it asks for nothing of this any more.
        gone.dedup();
        for agent in gone {
            self.gone(now, &agent);
        }
    }

    fn sure(&mut self, unsure: &Unsure) {
        self.unsure.retain(|(_, other)| other != unsure);
    }

    fn gone(&mut self, now: Time, agent: &AgentKey) {
        self.parked.retain(|(_, waiting), _| waiting != agent);
        let of = |pick: &dyn Fn(&Stream) -> bool| -> Vec<String> {
            self.streams.iter().filter(|(_, stream)| pick(stream)).map(|(name, _)| name.clone()).collect()
        };
        let (sent, heard) = (of(&|stream| stream.source == *agent), of(&|stream| stream.has(agent)));
        sent.iter().for_each(|name| self.close(name));
        heard.iter().for_each(|name| self.leave(now, name, agent));
    }

    fn create(
        &mut self,
        now: Time,
        agent: &AgentKey,
        name: &str,
        Made { request, handle, shared }: Made,
        held: Option<(Plan, Vec<String>)>,
    ) -> Result<(), StreamRefusal> {
        if !is_name(name) {
            return Err(StreamRefusal::BadName(name.chars().take(NAME_LEN_MAX).collect()));
        }
        if request < STREAMS_FROM {
            return Err(StreamRefusal::Number(request));
        }
        let lent = held.map(|(plan, receivers)| Lent { plan, held: receivers.into_iter().collect() });
        if let Some(stream) = self.streams.get(name) {
            let same = (&stream.source, stream.request, stream.handle, stream.shared);
            if same != (agent, request, handle, shared) {
                let source_name = stream.source.name.clone();
                return Err(StreamRefusal::Taken { name: name.into(), source_name });
            }
            self.create_again(now, name, lent);
            return Ok(());
        }
        let own = self.streams.values().filter(|stream| stream.source.name == agent.name).count();
        if self.streams.len() >= self.config.streams_max {
            return Err(StreamRefusal::Full(self.config.streams_max));
        }
        if !has_room(self.streams.len(), own, self.config.streams_max) {
            return Err(StreamRefusal::Share(own));
        }
        let key = agent.request(request);
        if self.names.contains_key(&key) {
            return Err(StreamRefusal::Denied(Denial::RequestTaken(request)));
        }
        // Those whom an earlier manager has let in say so again, or are taken out.
        for receiver in lent.iter().flat_map(|lent| &lent.held) {
            let until = now + self.config.settle;
            self.unsure.insert((until, Unsure::Member(name.into(), receiver.clone())));
        }
        let stream = Stream {
            source: agent.clone(),
            request,
            handle,
            shared,
            members: BTreeMap::new(),
            lent,
            asked: Asked::Nothing,
            singly: false,
            retry_at: None,
        };
        self.streams.insert(name.into(), stream);
        self.names.insert(key, name.into());
        self.tell(agent, name, StreamWord::Created);
        let here = |(wanted, _): &(String, AgentKey), _: &mut Parked| wanted == name;
        let here: Vec<_> = self.parked.extract_if(.., here).collect();
        for ((_, agent), parked) in here {
            self.join(now, agent, name, parked);
        }
        Ok(())
    }

    /// The source says again that it has a stream, as its session has begun again.
    fn create_again(&mut self, now: Time, name: &str, lent: Option<Lent>) {
        let Some(stream) = self.streams.get_mut(name) else { return };
        // Its path ended unheard, and it has named it again: no other agent would give it back.
        let is_new = stream.lent.is_none() && stream.asked == Asked::Nothing;
        if let Some(lent) = lent.filter(|_| is_new) {
            stream.lent = Some(lent);
        }
        let source = stream.source.clone();
        self.sure(&Unsure::Source(name.into()));
        self.tell(&source, name, StreamWord::Created);
        self.ask_again(name, &source.name);
        if is_new {
            self.tell_all_joined(name);
        }
        self.reconcile(now, name);
    }

    fn close(&mut self, name: &str) {
        let Some(stream) = self.streams.remove(name) else { return };
        self.unsure.retain(|(_, unsure)| match unsure {
            Unsure::Source(of) | Unsure::Member(of, _) => of != name,
        });
        let key = stream.source.request(stream.request);
        self.names.remove(&key);
        if stream.lent.is_some() || stream.asked != Asked::Nothing {
            self.outputs.push_back(StreamsOutput::Lease(Input::Withdraw { request: key }));
        }
        for member in stream.members.values() {
            self.tell(&member.agent, name, StreamWord::Ended);
        }
    }

    fn join(&mut self, now: Time, agent: AgentKey, name: &str, parked: Parked) {
        let Some(stream) = self.streams.get_mut(name) else {
            let refusal = if now >= self.settles_at || !is_name(name) {
                StreamRefusal::Unknown(name.chars().take(NAME_LEN_MAX).collect())
            } else if !self.has_room_to_wait(name, &agent) {
                StreamRefusal::Crowded(name.into())
            } else {
                self.parked.insert((name.into(), agent), parked);
                return;
            };
            return self.tell(&agent, name, StreamWord::Refused(refusal));
        };
        let Parked { ask, mut sends } = parked;
        // The source sends with the stream's own handle.
        sends = sends.filter(|_| stream.shared && stream.source.name != agent.name);
        if let Err(refusal) = stream.check_member(&agent, sends, self.config.senders_max) {
            return self.tell(&agent, name, StreamWord::Refused(refusal));
        }
        let before = stream.members.remove(&agent.name);
        // It has only said it again.
        let is_same = |before: &Member| (before.ask, &before.agent) == (ask, &agent);
        let again = before.as_ref().is_some_and(is_same);
        let is_known = before.as_ref().is_some_and(|before| (before.sends, &before.agent) == (sends, &agent));
        let mut hears = before.map(|before| before.hears).unwrap_or_default();
        if !again {
            hears.values_mut().for_each(|heard| heard.from = None);
        }
        if !is_known {
            stream.forget_sender(&agent.name);
        }
        stream.members.insert(agent.name.clone(), Member { agent: agent.clone(), ask, sends, hears });
        self.sure(&Unsure::Member(name.into(), agent.name.clone()));
        // Before the path is asked for: a sender answers before it sends a message that way.
        self.ask_where(name, &agent.name);
        self.ask_again(name, &agent.name);
        self.tell_held(name, &agent.name);
        self.reconcile(now, name);
    }

    /// Returns true if a receiver may wait for a stream that is not there yet, or does already.
    fn has_room_to_wait(&self, name: &str, agent: &AgentKey) -> bool {
        let own = || self.parked.keys().filter(|(_, waiting)| waiting.name == agent.name).count();
        self.parked.contains_key(&(name.into(), agent.clone()))
            || has_room(self.parked.len(), own(), self.config.parked_max)
    }

    /// Asks all senders where they are, for a receiver that has not been told.
    fn ask_where(&mut self, name: &str, receiver: &str) {
        let Some(stream) = self.streams.get(name) else { return };
        for sender in stream.senders() {
            self.ask_sender(name, receiver, &sender);
        }
    }

    /// Asks a sender where it is, for all receivers that have not been told: it may not have heard what it
    /// was asked in the session before.
    fn ask_again(&mut self, name: &str, sender: &str) {
        let Some(stream) = self.streams.get_mut(name) else { return };
        if stream.sender(sender).is_none() {
            return;
        }
        let heard = stream.members.values_mut().filter_map(|member| member.hears.get_mut(sender));
        heard.for_each(|heard| heard.asked = None);
        let members: Vec<String> = stream.members.keys().cloned().collect();
        members.iter().for_each(|member| self.ask_sender(name, member, sender));
    }

    /// Asks a sender where it is, for a receiver that has not been told.
    fn ask_sender(&mut self, name: &str, receiver: &str, sender: &str) {
        let Some(stream) = self.streams.get_mut(name) else { return };
        let Some(agent) = stream.sender(sender).cloned().filter(|_| sender != receiver) else { return };
        let Some(member) = stream.members.get_mut(receiver) else { return };
        let heard = member.hears.entry(sender.to_string()).or_default();
        if heard.from.is_some() || heard.asked.is_some() {
            return;
        }
        heard.asked = Some(member.ask);
        let word = StreamWord::Where { receiver: receiver.to_string(), ask: member.ask };
        self.tell(&agent, name, word);
    }

    /// A sender has said where it is.
    fn is_at(&mut self, agent: &AgentKey, name: &str, receiver: &str, ask: u64, next: u64) {
        let stream = self.streams.get_mut(name);
        let Some(stream) = stream.filter(|stream| stream.sender(&agent.name) == Some(agent)) else { return };
        let Some(member) = stream.members.get_mut(receiver) else { return };
        let Some(heard) = member.hears.get_mut(&agent.name).filter(|heard| heard.asked == Some(ask)) else {
            return;
        };
        heard.asked = None;
        if member.ask == ask {
            heard.from = Some(next);
            self.tell_held(name, receiver);
        } else {
            self.ask_sender(name, receiver, &agent.name);
        }
    }

    fn leave(&mut self, now: Time, name: &str, agent: &AgentKey) {
        let Some(stream) = self.streams.get_mut(name) else { return };
        if stream.has(agent) {
            let _member = stream.part(&agent.name);
            let is_heard = stream.shared && stream.source.name != agent.name;
            self.sure(&Unsure::Member(name.into(), agent.name.clone()));
            self.reconcile(now, name);
            if is_heard {
                self.tell_all_joined(name);
            }
        }
    }

    /// Tells a receiver where the stream comes, if the path has it.
    fn tell_held(&mut self, name: &str, member: &str) {
        let lent = self.streams.get(name).and_then(|stream| stream.lent.as_ref());
        if lent.is_some_and(|lent| lent.held.contains(member)) {
            self.tell_joined(name, member);
        }
    }

    /// Tells a receiver of the path where the stream comes; one for which the source has not answered is told
    /// when it has.
    fn tell_joined(&mut self, name: &str, member: &str) {
        let Some(stream) = self.streams.get(name) else { return };
        if let (Some(member), Some(lent)) = (stream.members.get(member), &stream.lent)
            && let Some(from) = stream.from(member)
        {
            let word = StreamWord::Joined {
                channel: lent.plan.channel.clone(),
                fabric: lent.plan.fabric,
                source: stream.source.name.clone(),
                handle: stream.handle,
                ask: member.ask,
                from,
                others: stream.shared.then(|| stream.others(member, lent)),
            };
            let agent = member.agent.clone();
            self.tell(&agent, name, word);
        }
    }

    /// Tells all members that the path has where it goes.
    fn tell_all_joined(&mut self, name: &str) {
        let lent = self.streams.get(name).and_then(|stream| stream.lent.as_ref());
        let held: Vec<String> = lent.into_iter().flat_map(|lent| &lent.held).cloned().collect();
        held.iter().for_each(|member| self.tell_joined(name, member));
    }

    /// Asks for the next change that brings the path nearer to what is wanted.
    fn reconcile(&mut self, now: Time, name: &str) {
        let unsure: BTreeSet<&String> = self
            .unsure
            .iter()
            .filter_map(|(_, unsure)| match unsure {
                Unsure::Member(of, member) if of == name => Some(member),
                _ => None,
            })
            .collect();
        let Some(stream) = self.streams.get_mut(name) else { return };
        if stream.asked != Asked::Nothing || stream.retry_at.is_some_and(|at| at > now) {
            return;
        }
        let request = stream.source.request(stream.request);
        let Some(lent) = &stream.lent else {
            if let Some(request) = stream.wanted_path() {
                stream.asked = Asked::Path;
                self.outputs.push_back(StreamsOutput::Lease(Input::Request(request)));
            }
            return;
        };
        let is_source = |held: &String| *held == stream.source.name;
        let is_wanted = |held: &String| stream.members.contains_key(held) || unsure.contains(held);
        if !lent.held.iter().any(|held| !is_source(held) && is_wanted(held)) && !stream.has_others() {
            stream.lent = None;
            return self.outputs.push_back(StreamsOutput::Lease(Input::Withdraw { request }));
        }
        let add: Vec<String> = stream.next_members(|member| !lent.held.contains(member));
        let remove: Vec<String> = lent.held.iter().filter(|held| !is_wanted(held)).cloned().collect();
        if add.is_empty() && remove.is_empty() {
            stream.singly = false;
            return;
        }
        let sources = stream.sending(&add);
        stream.asked = Asked::Change { add: add.clone() };
        let change = Input::Extend { request, time: None, add, remove, sources };
        self.outputs.push_back(StreamsOutput::Lease(change));
    }

    fn response(&mut self, now: Time, request: &RequestKey, response: Result<Grant, Denial>) {
        let Some(name) = self.names.get(request).cloned() else { return };
        let Some(stream) = self.streams.get_mut(&name) else { return };
        stream.asked = Asked::Nothing;
        match response {
            Ok(grant) => {
                let held: BTreeSet<String> = grant.receiver_names().cloned().collect();
                let new: Vec<String> = held.iter().cloned().collect();
                stream.lent = Some(Lent { plan: grant.plan, held });
                new.iter().for_each(|member| self.tell_joined(&name, member));
            }
            Err(denial) => {
                let all = stream.members.keys().cloned().collect();
                self.turn_down(&name, all, denial);
            }
        }
        self.reconcile(now, &name);
    }

    /// The receivers that were to join cannot, or have to be asked for one by one to see which.
    fn turn_down(&mut self, name: &str, add: Vec<String>, denial: Denial) {
        let Some(stream) = self.streams.get_mut(name) else { return };
        let one = if stream.singly {
            add.first().cloned()
        } else {
            add.first().filter(|_| add.len() == 1).cloned()
        };
        let Some(member) = one else {
            stream.singly = true;
            return;
        };
        if let Some(Member { agent, .. }) = stream.part(&member) {
            self.tell(&agent, name, StreamWord::Refused(StreamRefusal::Denied(denial)));
        }
    }

    fn changed(&mut self, now: Time, request: &RequestKey, result: Result<Option<Grant>, Denial>) {
        let Some(name) = self.names.get(request).cloned() else { return };
        let Some(stream) = self.streams.get_mut(&name) else { return };
        // An answer to what was asked of an earlier lease leaves what is asked now as it is.
        let Asked::Change { add } = &mut stream.asked else { return };
        let add = core::mem::take(add);
        stream.asked = Asked::Nothing;
        let Some(lent) = &mut stream.lent else { return self.reconcile(now, &name) };
        match result {
            Ok(Some(grant)) => {
                lent.held = grant.receiver_names().cloned().collect();
                lent.plan = grant.plan;
                add.iter().for_each(|member| self.tell_joined(&name, member));
            }
            // The lease knows better which agents are there: one that an earlier manager has let in, or that
            // is gone.
            Err(Denial::AlreadyReceiver(member)) => {
                lent.held.insert(member.clone());
                self.tell_joined(&name, &member);
            }
            Err(Denial::NotReceiver(member)) => drop(lent.held.remove(&member)),
            Err(Denial::NotHeld(_)) | Ok(None) => {
                stream.lent = None;
                stream.retry_at = Some(now + self.config.retry);
            }
            Err(_) if add.is_empty() => {
                // What is only to be smaller can wait.
                stream.retry_at = Some(now + self.config.retry);
            }
            Err(denial) => self.turn_down(&name, add, denial),
        }
        self.reconcile(now, &name);
    }

    fn replanned(&mut self, now: Time, request: &RequestKey, plan: Plan) {
        let Some(name) = self.names.get(request).cloned() else { return };
        let Some(stream) = self.streams.get_mut(&name) else { return };
        let fits = stream.goes_over(&plan.channel);
        let Some(lent) = &mut stream.lent else { return };
        if !fits {
            // Another fabric has taken over, one that messages cannot go over.
            stream.lent = None;
            stream.retry_at = Some(now + self.config.retry);
            let withdraw = Input::Withdraw { request: request.clone() };
            return self.outputs.push_back(StreamsOutput::Lease(withdraw));
        }
        let same = plan.channel.is_heard_like(&lent.plan.channel);
        lent.plan = plan;
        if !same {
            self.tell_all_joined(&name);
        }
    }

    fn ended(&mut self, now: Time, request: &RequestKey) {
        let Some(name) = self.names.get(request).cloned() else { return };
        let Some(stream) = self.streams.get_mut(&name) else { return };
        // What we have given back ourselves needs no other one.
        if stream.lent.take().is_some() {
            stream.asked = Asked::Nothing;
            stream.retry_at = Some(now + self.config.retry);
        }
    }
}

/// Contents of a stream as its source makes it.
struct Made {
    request: u64,
    handle: Handle,
    shared: bool,
}

/// Returns true if a stream can have this name.
fn is_name(name: &str) -> bool {
    let odd = |c: char| c.is_whitespace() || c.is_control() || matches!(c, ',' | '/');
    !name.is_empty() && name.len() <= NAME_LEN_MAX && !name.contains(odd)
}
