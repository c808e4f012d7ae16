//! A stream of the table: its source, its members, and what its path has to be.

use super::words::{StreamRefusal, StreamSender};
use crate::leases::{AgentKey, PathRequest, Receivers};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;
use polycast_planning::{Channel, Plan, Wish};
use polycast_types::{AppId, DataId, Handle, ObjectId, Time};

/// Path that is leased to a stream.
#[derive(Debug)]
pub(super) struct Lent {
    pub(super) plan: Plan,
    /// The receivers of the path.
    pub(super) held: BTreeSet<String>,
}

/// Request to the leases that is under way.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Asked {
    Nothing,
    Path,
    Change { add: Vec<String> },
}

/// A receiver that has joined.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) agent: AgentKey,
    /// Number that it has drawn.
    pub(super) ask: u64,
    /// Handle with which it sends, where every member does.
    pub(super) sends: Option<Handle>,
    /// State of each sender for it, by the sender's name.
    pub(super) hears: BTreeMap<String, Hears>,
}

/// State of a sender for a receiver.
#[derive(Debug, Default)]
pub(super) struct Hears {
    /// Answer to the number that the receiver has drawn.
    pub(super) from: Option<u64>,
    /// Number that the sender was last asked about and has not answered: one question at a time, however
    /// often a receiver joins.
    pub(super) asked: Option<u64>,
}

#[derive(Debug)]
pub(super) struct Stream {
    pub(super) source: AgentKey,
    pub(super) request: u64,
    pub(super) handle: Handle,
    pub(super) shared: bool,
    pub(super) members: BTreeMap<String, Member>,
    pub(super) lent: Option<Lent>,
    pub(super) asked: Asked,
    /// Receivers join one at a time: asked for together, they were refused together.
    pub(super) singly: bool,
    /// Not to be asked for a path before.
    pub(super) retry_at: Option<Time>,
}

impl Stream {
    /// Returns true if this run of an agent has joined it.
    pub(super) fn has(&self, agent: &AgentKey) -> bool {
        self.members.get(&agent.name).is_some_and(|member| member.agent == *agent)
    }

    /// Checks that an agent can join, and send with this handle.
    pub(super) fn check_member(
        &self,
        agent: &AgentKey,
        sends: Option<Handle>,
        most: usize,
    ) -> Result<(), StreamRefusal> {
        if !self.shared {
            return match self.source.name == agent.name {
                true => Err(StreamRefusal::SourceItself(agent.name.clone())),
                false => Ok(()),
            };
        }
        if self.members.len() >= most && !self.members.contains_key(&agent.name) {
            return Err(StreamRefusal::Members(most));
        }
        let others = self.members.iter().filter(|(name, _)| **name != agent.name);
        let mut handles = others.filter_map(|(_, member)| member.sends).chain([self.handle]);
        match sends.filter(|own| handles.any(|handle| handle == *own)) {
            Some(handle) => Err(StreamRefusal::SameHandle(handle.0)),
            None => Ok(()),
        }
    }

    /// The names of all that send.
    pub(super) fn senders(&self) -> Vec<String> {
        let members = self.members.iter().filter(|(_, member)| member.sends.is_some());
        core::iter::once(&self.source.name).chain(members.map(|(name, _)| name)).cloned().collect()
    }

    /// The agent of this name, if it sends.
    pub(super) fn sender(&self, name: &str) -> Option<&AgentKey> {
        if self.source.name == name {
            return Some(&self.source);
        }
        self.members.get(name).filter(|member| member.sends.is_some()).map(|member| &member.agent)
    }

    /// Forgets what receivers know of a member that sends no more, or with another handle.
    pub(super) fn forget_sender(&mut self, name: &str) {
        if self.source.name != name {
            for member in self.members.values_mut() {
                member.hears.remove(name);
            }
        }
    }

    /// A member goes, and receivers hear it no more.
    pub(super) fn part(&mut self, name: &str) -> Option<Member> {
        self.forget_sender(name);
        self.members.remove(name)
    }

    /// The number from which on a member hears the source, once that has answered.
    pub(super) fn from(&self, member: &Member) -> Option<u64> {
        // The source hears itself nowhere.
        if member.agent.name == self.source.name {
            return Some(0);
        }
        member.hears.get(&self.source.name)?.from
    }

    /// The senders for a member beside the source.
    pub(super) fn others(&self, member: &Member, lent: &Lent) -> Vec<StreamSender> {
        let is_other = |name: &String| *name != member.agent.name && *name != self.source.name;
        let known = self.members.iter().filter(|(name, other)| is_other(name) && other.sends.is_some());
        let known = known.map(|(name, other)| StreamSender {
            name: name.clone(),
            handle: other.sends,
            from: member.hears.get(name).and_then(|heard| heard.from),
        });
        let unsure = lent.held.iter().filter(|name| is_other(name) && !self.members.contains_key(*name));
        let unsure = unsure.map(|name| StreamSender { name: name.clone(), handle: None, from: None });
        known.chain(unsure).collect()
    }

    /// Returns true if a member listens beside the source.
    pub(super) fn has_others(&self) -> bool {
        self.members.keys().any(|member| *member != self.source.name)
    }

    /// The next members of these to be asked for; the source comes last, as it hears only what others send.
    pub(super) fn next_members(&self, is_meant: impl Fn(&String) -> bool) -> Vec<String> {
        let most = if self.singly { 1 } else { usize::MAX };
        let (own, others): (Vec<_>, Vec<_>) = self
            .members
            .keys()
            .filter(|member| is_meant(member))
            .partition(|name| **name == self.source.name);
        others.into_iter().chain(own).take(most).cloned().collect()
    }

    /// Names among these from which the path has to lead beside the source.
    pub(super) fn sending(&self, names: &[String]) -> Vec<String> {
        let is_sender = |name: &&String| self.shared && **name != self.source.name;
        names.iter().filter(is_sender).cloned().collect()
    }

    /// The path that it needs; none while no other agent listens.
    pub(super) fn wanted_path(&self) -> Option<PathRequest> {
        if !self.has_others() {
            return None;
        }
        let names = self.next_members(|_| true);
        Some(PathRequest {
            agent: self.source.clone(),
            request: self.request,
            object: ObjectId { app: AppId::default(), data: DataId(self.handle.0) },
            object_bytes: 0,
            remaining_bytes: 0,
            further_sources: self.sending(&names),
            receivers: Receivers::Named(names),
            divisible: false,
            lease: None,
            wish: Wish { any_packets: self.shared, ..Wish::default() },
        })
    }

    /// Returns true if messages can go over a channel. A label is its source's alone.
    pub(super) fn goes_over(&self, channel: &Channel) -> bool {
        match channel {
            Channel::Multicast { .. } => true,
            Channel::Label { .. } => !self.shared,
            _ => false,
        }
    }

    /// Looks whether its members agree with each other.
    pub(super) fn check(&self, name: &str, most: usize) {
        let own = &self.source.name;
        assert!(self.shared || !self.members.contains_key(own), "the source of '{name}' receives it");
        assert!(!self.shared || self.members.len() <= most, "'{name}' has {} members", self.members.len());
        let senders = self.senders();
        for (member, state) in &self.members {
            assert!(state.sends.is_none() || self.shared && member != own, "'{member}' sends '{name}'");
            let is_sender = |heard: &String| senders.contains(heard) && heard != member;
            assert!(state.hears.keys().all(is_sender), "'{member}' hears of '{name}' what sends no more");
        }
    }
}
