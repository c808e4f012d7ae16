//! The agents that a manager knows.

use super::words::{AgentKey, Denial, JoinRefusal, NotMember};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use polycast_planning::{Group, HostId};
use polycast_types::{Duration, Time};

/// Longest name of an agent, in bytes.
const NAME_LEN_MAX: usize = 255;

/// An agent that has joined.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member {
    /// Its number in plans.
    pub host: HostId,
    /// Which run of it.
    pub incarnation: u64,
    /// Where other agents reach it.
    pub address: ([u8; 4], u16),
    /// When it was heard of last.
    pub heard_at: Time,
}

impl Member {
    pub(super) fn key(&self, name: &str) -> AgentKey {
        AgentKey { name: name.to_string(), incarnation: self.incarnation }
    }
}

/// How an agent came.
pub(super) enum Arrival {
    /// It is new, or was here in the same run.
    Here,
    /// Another run of it was here before.
    Restarted { before: u64 },
}

#[derive(Debug)]
pub(super) struct Members {
    pub(super) by_name: BTreeMap<String, Member>,
    pub(super) names: BTreeMap<HostId, String>,
    /// Numbers that belong to names for good, whether or not their agents are here.
    pub(super) known: BTreeMap<String, HostId>,
    /// When each was heard of last, longest ago first.
    pub(super) heard: BTreeSet<(Time, HostId)>,
    pub(super) next_host: u32,
    pub(super) most: usize,
    silence: Duration,
}

impl Members {
    pub(super) fn new(most: usize, silence: Duration) -> Self {
        Members {
            by_name: BTreeMap::new(),
            names: BTreeMap::new(),
            known: BTreeMap::new(),
            heard: BTreeSet::new(),
            next_host: 0,
            most,
            silence,
        }
    }

    /// The number of a name, before and after its agent is here.
    pub(super) fn know(&mut self, name: &str) -> HostId {
        if let Some(host) = self.known.get(name) {
            return *host;
        }
        let host = match self.by_name.get(name) {
            Some(member) => member.host,
            None => self.next_number(),
        };
        self.known.insert(name.to_string(), host);
        host
    }

    /// The number of a name, where it was chosen before.
    pub(super) fn know_as(&mut self, name: &str, host: HostId) -> Result<(), String> {
        self.check_number(name, host)?;
        self.known.insert(name.to_string(), host);
        self.note_number(host);
        Ok(())
    }

    /// Whether a name can have this number.
    fn check_number(&self, name: &str, host: HostId) -> Result<(), String> {
        if host.0 == u32::MAX {
            return Err(format!("'{name}' has number {}, which no manager gives", host.0));
        }
        let other = self.number(name).filter(|number| *number != host);
        if let Some(other) = other {
            return Err(format!("'{name}' has number {}, and {} before", host.0, other.0));
        }
        let is_taken = self.known.iter().any(|(owner, number)| *number == host && owner != name)
            || self.names.get(&host).is_some_and(|owner| owner != name);
        if is_taken {
            return Err(format!("'{name}' has number {}, which is another one's", host.0));
        }
        Ok(())
    }

    /// A number is in use: it is given to no other.
    pub(super) fn note_number(&mut self, host: HostId) {
        self.next_host = self.next_host.max(host.0.saturating_add(1));
    }

    /// Takes over a member from an earlier manager.
    pub(super) fn restore(&mut self, name: String, member: Member) -> Result<(), String> {
        if !is_name(&name) {
            return Err(String::from("its name cannot be an agent's"));
        }
        if self.by_name.contains_key(&name) {
            return Err(format!("'{name}' is there twice"));
        }
        self.check_number(&name, member.host)?;
        self.note_number(member.host);
        self.heard.insert((member.heard_at, member.host));
        self.names.insert(member.host, name.clone());
        self.by_name.insert(name, member);
        Ok(())
    }

    fn next_number(&mut self) -> HostId {
        loop {
            let host = HostId(self.next_host);
            // After all of them it begins anew: the largest belongs to no host.
            self.next_host = self.next_host.checked_add(1).unwrap_or(0);
            let is_taken =
                self.names.contains_key(&host) || self.known.values().any(|number| *number == host);
            if host.0 < u32::MAX && !is_taken {
                return host;
            }
        }
    }

    /// All were heard of now.
    pub(super) fn excuse(&mut self, now: Time) {
        self.heard = self.by_name.values().map(|member| (now, member.host)).collect();
        self.by_name.values_mut().for_each(|member| member.heard_at = now);
    }

    pub(super) fn join(
        &mut self,
        now: Time,
        agent: &AgentKey,
        address: ([u8; 4], u16),
    ) -> Result<Arrival, JoinRefusal> {
        let name = &agent.name;
        if !is_name(name) {
            return Err(JoinRefusal::BadName(name.chars().take(NAME_LEN_MAX).collect()));
        }
        let Some(member) = self.by_name.get_mut(name) else {
            if self.by_name.len() >= self.most {
                return Err(JoinRefusal::Full(self.most));
            }
            let host = match self.known.get(name) {
                Some(host) => *host,
                None => self.next_number(),
            };
            self.heard.insert((now, host));
            self.names.insert(host, name.clone());
            let member = Member { host, incarnation: agent.incarnation, address, heard_at: now };
            self.by_name.insert(name.clone(), member);
            return Ok(Arrival::Here);
        };
        let before = member.incarnation;
        // A restart on the same host takes its place at once; another host has to wait until it is gone.
        if before != agent.incarnation && member.address.0 != address.0 {
            return Err(JoinRefusal::NameTaken { name: name.clone(), address: member.address.0 });
        }
        (member.incarnation, member.address) = (agent.incarnation, address);
        self.touch(now, name);
        Ok(if before == agent.incarnation { Arrival::Here } else { Arrival::Restarted { before } })
    }

    /// Whether this run of the agent has joined.
    pub(super) fn check(&self, agent: &AgentKey) -> Result<(), NotMember> {
        match self.by_name.get(&agent.name) {
            Some(member) if member.incarnation == agent.incarnation => Ok(()),
            Some(_) => Err(NotMember::Superseded(agent.name.clone())),
            None => Err(NotMember::Unknown(agent.name.clone())),
        }
    }

    /// An agent has been heard of.
    pub(super) fn heard(&mut self, now: Time, agent: &AgentKey) -> Result<(), NotMember> {
        self.check(agent)?;
        self.touch(now, &agent.name);
        Ok(())
    }

    fn touch(&mut self, now: Time, name: &str) {
        if let Some(member) = self.by_name.get_mut(name) {
            self.heard.remove(&(member.heard_at, member.host));
            member.heard_at = now;
            self.heard.insert((now, member.host));
        }
    }

    pub(super) fn remove(&mut self, name: &str) -> Option<Member> {
        let member = self.by_name.remove(name)?;
        self.heard.remove(&(member.heard_at, member.host));
        self.names.remove(&member.host);
        Some(member)
    }

    /// Name of an agent that has been silent for too long.
    pub(super) fn overdue(&self, now: Time) -> Option<String> {
        let (heard_at, host) = self.heard.first()?;
        if *heard_at + self.silence > now {
            return None;
        }
        self.names.get(host).cloned()
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        self.heard.first().map(|(heard_at, _)| *heard_at + self.silence)
    }

    pub(super) fn get(&self, name: &str) -> Option<&Member> {
        self.by_name.get(name)
    }

    /// The number of a member, or of a name that is known for good.
    pub(super) fn number(&self, name: &str) -> Option<HostId> {
        self.by_name.get(name).map(|member| member.host).or_else(|| self.known.get(name).copied())
    }

    /// A member with its name as we keep it.
    pub(super) fn entry(&self, name: &str) -> Option<(&str, &Member)> {
        self.by_name.get_key_value(name).map(|(name, member)| (name.as_str(), member))
    }

    pub(super) fn name_of(&self, host: HostId) -> Option<&str> {
        self.names.get(&host).map(String::as_str)
    }

    pub(super) fn address_of(&self, host: HostId) -> Option<(String, ([u8; 4], u16))> {
        let name = self.names.get(&host)?;
        Some((name.clone(), self.by_name.get(name)?.address))
    }

    /// The names that are known for good of those among these hosts that are not here.
    pub(super) fn away(&self, hosts: &BTreeSet<HostId>) -> Vec<String> {
        let known = self.known.iter().filter(|(_, host)| hosts.contains(host));
        known.filter(|(_, host)| !self.names.contains_key(host)).map(|(name, _)| name.clone()).collect()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &Member)> {
        self.by_name.iter().map(|(name, member)| (name.as_str(), member))
    }

    /// The group of `source` and all others that were heard of lately: one that no request has named is not waited for.
    pub(super) fn all_but(&self, now: Time, source: &str) -> Result<Group, Denial> {
        let source = self.get(source).ok_or_else(|| NotMember::Unknown(source.to_string()))?.host;
        let lately = self.heard.iter().rev().take_while(|(at, _)| now.since(*at) <= self.silence / 2);
        let receivers: BTreeSet<HostId> =
            lately.map(|(_, host)| *host).filter(|host| *host != source).collect();
        if receivers.is_empty() { Err(Denial::NobodyElse) } else { Ok(Group { source, receivers }) }
    }

    /// The group of `source` and the agents of these names.
    pub(super) fn group(&self, source: &str, names: &[String]) -> Result<Group, Denial> {
        let host = self.get(source).ok_or_else(|| NotMember::Unknown(source.to_string()))?.host;
        let mut receivers = BTreeSet::new();
        for name in names {
            let member = self.get(name).ok_or_else(|| Denial::UnknownReceiver(name.clone()))?;
            if member.host == host {
                return Err(Denial::SourceItself(name.clone()));
            }
            if !receivers.insert(member.host) {
                return Err(Denial::NamedTwice(name.clone()));
            }
        }
        if receivers.is_empty() { Err(Denial::NoReceivers) } else { Ok(Group { source: host, receivers }) }
    }
}

/// Whether people can name an agent so on a command line.
fn is_name(name: &str) -> bool {
    let odd = |c: char| c.is_whitespace() || c.is_control() || c == ',';
    !name.is_empty() && name.len() <= NAME_LEN_MAX && name != "all" && !name.contains(odd)
}
