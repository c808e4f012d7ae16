//! Hosts that operators drain: they get nothing new, and others get from them only what no other has.

use super::Directory;
use crate::leases::AgentKey;
use alloc::collections::BTreeSet;
use alloc::string::String;
use alloc::vec::Vec;
use polycast_types::{ObjectId, Time};

/// Things that are lost with a host.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct OnlyThere {
    /// Objects that no host has that is not drained.
    pub objects: Vec<ObjectId>,
    /// Names of the topics whose last committed version is one of these.
    pub topics: Vec<String>,
}

impl Directory {
    /// These are the hosts that are drained from now on.
    pub(super) fn drain(&mut self, now: Time, hosts: BTreeSet<String>) {
        let before = core::mem::replace(&mut self.drained, hosts);
        let changed = |agent: &&AgentKey| before.contains(&agent.name) != self.drained.contains(&agent.name);
        let changed: Vec<AgentKey> = self.members.keys().filter(changed).cloned().collect();
        for agent in changed {
            let Some(member) = self.members.get(&agent) else { continue };
            let (wants, topics) = (member.wants.clone(), member.topics.clone());
            if self.drained.contains(&agent.name) {
                wants.into_iter().for_each(|object| self.look_soon(now, object, now));
            } else {
                topics.iter().for_each(|topic| self.stage_at(now, &agent, topic));
            }
        }
    }

    /// Returns what a host has that is on no other one, or only on others that are drained too.
    #[must_use]
    pub fn only_at(&self, host: &str) -> OnlyThere {
        let stays = |agent: &AgentKey| agent.name != host && !self.drained.contains(&agent.name);
        let held = self.members.iter().filter(|(agent, _)| agent.name == host);
        let is_only_there = |object: &ObjectId| {
            self.entries.get(object).is_some_and(|entry| !entry.copies.holders().any(stays))
        };
        let objects: BTreeSet<ObjectId> =
            held.flat_map(|(_, member)| &member.holds).copied().filter(is_only_there).collect();
        let topics = self.topics.iter().filter(|(_, topic)| {
            topic.committed.as_ref().is_some_and(|version| objects.contains(&version.object))
        });
        let topics = topics.map(|(name, _)| name.clone()).collect();
        OnlyThere { topics, objects: objects.into_iter().collect() }
    }
}
