//! The manager's directory: which agents have which object, which ask for one, and which version of a topic
//! is the last.
//!
//! Agents that ask for the same object at nearly the same time are served together, by one that has it. For
//! one that no agent has, exactly one of them is told to get it from its origin; when it dies or cannot,
//! another one is. A version of a topic is committed when all subscribers have it that live and can. Nothing
//! of this is written down: agents say again in every session what they have and what they ask for, and a
//! manager that has just begun waits until they have.
//!
//! `objects` decides which agent gets what from which, `editions` which bytes count where agents have
//! different ones, `topics` what is published.

mod check;
mod drained;
mod editions;
mod objects;
#[cfg(test)]
mod tests;
mod topics;
mod words;

pub use drained::OnlyThere;
pub use words::{
    DirectoryConfig, DirectoryInput, DirectoryOutput, Missed, Root, TopicRefusal, Version, Wish, WishRefusal,
};

use crate::leases::AgentKey;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::string::String;
use editions::Edition;
use objects::{Entry, Serve, WantState};
use polycast_types::{ObjectId, Time};
use topics::Topic;

/// State that an agent has reported; the `stale` fields hold entries that it has to report again in this
/// session.
#[derive(Debug, Default)]
struct Member {
    holds: BTreeSet<ObjectId>,
    wants: BTreeSet<ObjectId>,
    topics: BTreeSet<String>,
    stale_holds: BTreeSet<ObjectId>,
    stale_wants: BTreeSet<ObjectId>,
    stale_topics: BTreeSet<String>,
    stale_serves: BTreeSet<u64>,
}

impl Member {
    fn is_empty(&self) -> bool {
        self.holds.is_empty() && self.wants.is_empty() && self.topics.is_empty()
    }
}

/// Something to look at again.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Look {
    /// It is decided which agents are served.
    Object(ObjectId),
    /// Check whether a receiver has reported that it has the object.
    Arrival(ObjectId, AgentKey),
    /// Check whether a version can be committed.
    Topic(String),
}

/// The directory.
#[derive(Debug)]
pub struct Directory {
    config: DirectoryConfig,
    settles_at: Time,
    entries: BTreeMap<ObjectId, Entry>,
    members: BTreeMap<AgentKey, Member>,
    topics: BTreeMap<String, Topic>,
    /// Numbers of the last versions of topics that take no place.
    numbers: BTreeMap<String, u64>,
    /// Topics by the objects of their versions.
    versions: BTreeMap<ObjectId, BTreeSet<String>>,
    serves: BTreeMap<u64, Serve>,
    /// Agents that have a session and have not said everything yet, and until when that is waited for.
    untold: BTreeMap<AgentKey, Time>,
    /// Objects that no agent is told to get before they have.
    held_back: BTreeSet<ObjectId>,
    /// Names of the hosts that are drained.
    drained: BTreeSet<String>,
    last_serve: u64,
    last_wish: u64,
    holds: usize,
    wishes: usize,
    looks: BTreeSet<(Time, Look)>,
    outputs: VecDeque<DirectoryOutput>,
}

impl Directory {
    /// An empty directory of a manager that begins now. Numbers of serves begin above `first`, so that those
    /// of an earlier manager are not meant.
    #[must_use]
    pub fn new(config: DirectoryConfig, now: Time, first: u64) -> Self {
        Directory {
            config,
            settles_at: now + config.settle,
            entries: BTreeMap::new(),
            members: BTreeMap::new(),
            topics: BTreeMap::new(),
            numbers: BTreeMap::new(),
            versions: BTreeMap::new(),
            serves: BTreeMap::new(),
            untold: BTreeMap::new(),
            held_back: BTreeSet::new(),
            drained: BTreeSet::new(),
            last_serve: first,
            last_wish: 0,
            holds: 0,
            wishes: 0,
            looks: BTreeSet::new(),
            outputs: VecDeque::new(),
        }
    }

    /// Takes in what happened.
    pub fn handle(&mut self, now: Time, input: DirectoryInput) {
        match input {
            DirectoryInput::Arrived { agent } => self.arrived(now, &agent),
            DirectoryInput::Told { agent } => self.told(now, &agent),
            DirectoryInput::Gone { agent } => self.gone(now, &agent),
            DirectoryInput::Have { agent, object, length, root, age } => {
                self.have(now, agent, object, Edition { length, root }, age);
            }
            DirectoryInput::Lost { agent, object } => self.lost(now, &agent, object),
            DirectoryInput::Want { agent, object, wish } => self.want(now, agent, object, wish),
            DirectoryInput::Unwant { agent, object } => self.unwant(now, &agent, object),
            DirectoryInput::Unserved { agent, object, waits } => self.unserved(now, &agent, object, waits),
            DirectoryInput::FillFailed { agent, object, reason } => {
                self.fill_failed(now, &agent, object, reason);
            }
            DirectoryInput::Serving { agent, serves } => {
                if let Some(member) = self.members.get_mut(&agent) {
                    member.stale_serves.retain(|serve| !serves.contains(serve));
                }
            }
            DirectoryInput::Drained { hosts } => self.drain(now, hosts),
            DirectoryInput::Served { agent, serve, outcomes } => self.served(now, &agent, serve, outcomes),
            DirectoryInput::Subscribe { agent, app, topic } => self.subscribe(now, agent, app, topic),
            DirectoryInput::Unsubscribe { agent, topic } => self.unsubscribe(now, &agent, &topic),
            DirectoryInput::Publish { agent, app, topic, version, patience } => {
                let number = Some(version.number);
                if let Err(why) = self.publish(now, &agent, app, &topic, version, patience) {
                    self.outputs.push_back(DirectoryOutput::TopicRefused { agent, topic, number, why });
                }
            }
            DirectoryInput::Committed { agent, app, topic, version } => {
                self.was_committed(now, &agent, app, topic, version);
            }
        }
        if cfg!(debug_assertions) {
            self.check();
        }
    }

    /// The next thing to say, until there is none.
    pub fn poll(&mut self, now: Time) -> Option<DirectoryOutput> {
        loop {
            if let Some(output) = self.outputs.pop_front() {
                return Some(output);
            }
            if self.looks.first().is_none_or(|(at, _)| *at > now) {
                return None;
            }
            match self.looks.pop_first() {
                Some((at, Look::Object(object))) => self.look_at_object(now, at, object),
                Some((_, Look::Arrival(object, agent))) => self.look_for_arrival(now, object, &agent),
                Some((_, Look::Topic(topic))) => self.topic_due(now, &topic),
                None => {}
            }
        }
    }

    /// Returns the time to poll again if nothing happens.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        if !self.outputs.is_empty() {
            return Some(Time::ZERO);
        }
        self.looks.first().map(|(at, _)| *at)
    }

    /// Returns the time by which agents have had time to join a new manager and report their objects.
    #[must_use]
    pub fn settles_at(&self) -> Time {
        self.settles_at
    }

    /// The agents that have an object.
    pub fn holders(&self, object: ObjectId) -> impl Iterator<Item = &AgentKey> {
        self.entries.get(&object).into_iter().flat_map(|entry| entry.copies.holders())
    }

    /// The agent that gets an object from its origin.
    #[must_use]
    pub fn filler(&self, object: ObjectId) -> Option<&AgentKey> {
        self.entries.get(&object)?.filling.as_ref()
    }

    /// The agent that was told to send an object to this one, and has not said yet how that went.
    #[must_use]
    pub fn server(&self, agent: &AgentKey, object: ObjectId) -> Option<&AgentKey> {
        match self.entries.get(&object)?.wants.get(agent)?.state {
            WantState::Served(serve) => Some(&self.serves.get(&serve)?.holder),
            WantState::Waiting | WantState::Arriving(_) => None,
        }
    }

    /// The last version of a topic that is committed.
    #[must_use]
    pub fn committed(&self, topic: &str) -> Option<&Version> {
        self.topics.get(topic)?.committed.as_ref()
    }

    fn arrived(&mut self, now: Time, agent: &AgentKey) {
        self.untold.insert(agent.clone(), now + self.config.settle);
        if let Some(member) = self.members.get_mut(agent) {
            member.stale_holds.clone_from(&member.holds);
            member.stale_wants.clone_from(&member.wants);
            member.stale_topics.clone_from(&member.topics);
            let served = self.serves.iter().filter(|(_, serve)| serve.holder == *agent);
            member.stale_serves = served.map(|(number, _)| *number).collect();
        }
    }

    fn told(&mut self, now: Time, agent: &AgentKey) {
        self.untold.remove(agent);
        let held_back = core::mem::take(&mut self.held_back);
        held_back.into_iter().for_each(|object| self.look_soon(now, object, now));
        let Some(member) = self.members.get_mut(agent) else { return };
        let holds = core::mem::take(&mut member.stale_holds);
        let wants = core::mem::take(&mut member.stale_wants);
        let topics = core::mem::take(&mut member.stale_topics);
        let serves = core::mem::take(&mut member.stale_serves);
        // The word to serve, or the one that it was over, was lost with the session before.
        serves.into_iter().for_each(|serve| self.break_off(now, serve));
        holds.into_iter().for_each(|object| self.lost(now, agent, object));
        wants.into_iter().for_each(|object| self.unwant(now, agent, object));
        topics.iter().for_each(|topic| self.unsubscribe(now, agent, topic));
    }

    /// Until when it is not known what every agent has.
    fn in_doubt_until(&self) -> Time {
        self.untold.values().copied().chain([self.settles_at]).max().unwrap_or(Time::ZERO)
    }

    fn gone(&mut self, now: Time, agent: &AgentKey) {
        self.untold.remove(agent);
        let Some(member) = self.members.get(agent) else { return };
        let (topics, wants, holds) = (member.topics.clone(), member.wants.clone(), member.holds.clone());
        topics.iter().for_each(|topic| self.leave(now, agent, topic, Missed::Gone));
        wants.into_iter().for_each(|object| self.drop_want(now, agent, object));
        holds.into_iter().for_each(|object| self.lost(now, agent, object));
        let served: alloc::vec::Vec<u64> =
            self.serves.iter().filter(|(_, serve)| serve.holder == *agent).map(|(id, _)| *id).collect();
        served.into_iter().for_each(|serve| self.break_off(now, serve));
        self.forget_member(agent);
    }

    /// A member of whom nothing is known takes no place.
    fn forget_member(&mut self, agent: &AgentKey) {
        if self.members.get(agent).is_some_and(Member::is_empty) {
            self.members.remove(agent);
        }
    }
}
