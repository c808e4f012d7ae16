//! The one table of the agents that there are: which run of each, whether it has a session, and which have
//! not come back.
//!
//! An agent is here with a session, away since its session ended without a farewell, or lost. Whatever
//! depends on a run of an agent ends with it: leases and requests here, and everything else by
//! [`Output::Gone`](super::Output::Gone), which comes once for every run that ends, for whatever reason.

use super::words::{AgentKey, Denial, JoinRefusal, NotMember};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::net::IpAddr;
use polycast_planning::{Group, HostId};
use polycast_types::{Duration, Time};

/// Longest name of an agent, in bytes.
const NAME_LEN_MAX: usize = 255;

/// Agents that have not come back, or have left, and are remembered.
const LOST_MAX: usize = 1_024;

/// Times and limits of agents' sessions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SessionsConfig {
    /// Time that an agent may take to return when its session has ended without a farewell.
    pub reconnect: Duration,
    /// A session that was heard of so lately is alive: no other run of its agent takes its place.
    pub alive: Duration,
    /// Maximum number of agents from one address.
    pub of_address_max: usize,
}

impl Default for SessionsConfig {
    fn default() -> Self {
        // Two heartbeats of a second, and half of one for the way.
        SessionsConfig {
            reconnect: Duration::from_millis(2_000),
            alive: Duration::from_millis(2_500),
            of_address_max: 1_024,
        }
    }
}

/// Presence of an agent, as far as its manager knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Presence {
    /// It has a session.
    Here {
        /// The session's number; the manager gives each only once.
        session: u64,
        /// The address that its connection comes from, whatever the agent says of itself.
        from: IpAddr,
    },
    /// It has none, and may come back.
    Away {
        /// Until then.
        until: Time,
        /// Address that its last session came from; unknown if that was another manager's.
        from: Option<IpAddr>,
    },
}

/// An agent that has joined.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member {
    /// Its number in plans.
    pub host: HostId,
    /// Number of its run.
    pub incarnation: u64,
    /// Address at which other agents reach it.
    pub address: (IpAddr, u16),
    /// Time of the last message from it.
    pub heard_at: Time,
    /// State of its session.
    pub presence: Presence,
}

impl Member {
    pub(super) fn key(&self, name: &str) -> AgentKey {
        AgentKey { name: name.to_string(), incarnation: self.incarnation }
    }

    /// Returns the address that its sessions come from.
    fn home(&self) -> IpAddr {
        match self.presence {
            Presence::Here { from, .. } | Presence::Away { from: Some(from), .. } => from,
            Presence::Away { from: None, .. } => self.address.0,
        }
    }

    fn is_here(&self) -> bool {
        matches!(self.presence, Presence::Here { .. })
    }
}

/// Report that an agent cannot be reached at the address that it announces, though its session stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unreachable {
    /// The agent that has said so last.
    pub by: String,
    /// Time of the report.
    pub said_at: Time,
}

/// Arrival of an agent, and the number of its session.
#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) session: u64,
    /// Another run of it that was here before.
    pub(super) before: Option<u64>,
    /// It was here in the same run and place: nothing has changed that is recorded.
    pub(super) is_again: bool,
}

#[derive(Debug)]
pub(super) struct Members {
    pub(super) by_name: BTreeMap<String, Member>,
    pub(super) names: BTreeMap<HostId, String>,
    /// Numbers that belong to names for good, whether or not their agents are here.
    pub(super) known: BTreeMap<String, HostId>,
    /// Time of the last message from each member, oldest first.
    pub(super) heard: BTreeSet<(Time, HostId)>,
    /// Until when those may come back that are away.
    pub(super) away: BTreeSet<(Time, HostId)>,
    /// Members that others could not reach.
    pub(super) unreachable: BTreeMap<String, Unreachable>,
    /// Agents that have not come back, and when they were heard of last.
    lost: BTreeMap<String, Time>,
    /// Agents that have left in good order, and when.
    left: BTreeMap<String, Time>,
    pub(super) next_host: u32,
    last_session: u64,
    pub(super) most: usize,
    silence: Duration,
    sessions: SessionsConfig,
}

impl Members {
    pub(super) fn new(most: usize, silence: Duration, sessions: SessionsConfig) -> Self {
        Members {
            by_name: BTreeMap::new(),
            names: BTreeMap::new(),
            known: BTreeMap::new(),
            heard: BTreeSet::new(),
            away: BTreeSet::new(),
            unreachable: BTreeMap::new(),
            lost: BTreeMap::new(),
            left: BTreeMap::new(),
            next_host: 0,
            last_session: 0,
            most,
            silence,
            sessions,
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

    /// Checks whether a name can have this number.
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
        self.enter(name, member);
        Ok(())
    }

    fn enter(&mut self, name: String, member: Member) {
        self.heard.insert((member.heard_at, member.host));
        if let Presence::Away { until, .. } = member.presence {
            self.away.insert((until, member.host));
        }
        self.lost.remove(&name);
        self.left.remove(&name);
        self.names.insert(member.host, name.clone());
        self.by_name.insert(name, member);
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

    /// No agent could be heard until now.
    pub(super) fn excuse(&mut self, now: Time) {
        let again = now + self.sessions.reconnect;
        for member in self.by_name.values_mut() {
            member.heard_at = now;
            if let Presence::Away { until, .. } = &mut member.presence {
                *until = again.max(*until);
            }
        }
        self.heard = self.by_name.values().map(|member| (now, member.host)).collect();
        let until = |member: &Member| match member.presence {
            Presence::Away { until, .. } => Some((until, member.host)),
            Presence::Here { .. } => None,
        };
        self.away = self.by_name.values().filter_map(until).collect();
    }

    /// Lets an agent in whose connection comes from there, and gives it a session.
    pub(super) fn join(
        &mut self,
        now: Time,
        agent: &AgentKey,
        address: (IpAddr, u16),
        from: IpAddr,
    ) -> Result<Arrival, JoinRefusal> {
        let name = &agent.name;
        if !is_name(name) {
            return Err(JoinRefusal::BadName(name.chars().take(NAME_LEN_MAX).collect()));
        }
        let before = self.by_name.get(name);
        if let Some(member) = before.filter(|member| member.incarnation != agent.incarnation) {
            self.may_replace(now, name, member, address, from)?;
        }
        let of_address =
            self.by_name.iter().filter(|(other, member)| *other != name && member.home() == from);
        let count = of_address.count();
        if count >= self.sessions.of_address_max {
            return Err(JoinRefusal::AddressFull { from, count });
        }
        if before.is_none() && self.by_name.len() >= self.most {
            return Err(JoinRefusal::Full(self.most));
        }
        let before = self.remove(name);
        let host = match (&before, self.known.get(name)) {
            (Some(member), _) => member.host,
            (None, Some(host)) => *host,
            (None, None) => self.next_number(),
        };
        self.last_session += 1;
        let session = self.last_session;
        let presence = Presence::Here { session, from };
        let member = Member { host, incarnation: agent.incarnation, address, heard_at: now, presence };
        self.enter(name.clone(), member);
        let is_again = before
            .as_ref()
            .is_some_and(|before| (before.incarnation, before.address) == (agent.incarnation, address));
        let before = before.map(|member| member.incarnation).filter(|before| *before != agent.incarnation);
        Ok(Arrival { session, before, is_again })
    }

    /// Checks whether another run of an agent may take its place: not while the agent is alive. A restart on
    /// the same host may at once; another host has to wait until the agent is gone.
    fn may_replace(
        &self,
        now: Time,
        name: &str,
        member: &Member,
        address: (IpAddr, u16),
        from: IpAddr,
    ) -> Result<(), JoinRefusal> {
        let is_alive = member.is_here() && now.since(member.heard_at) < self.sessions.alive;
        if is_alive || member.home() != from || member.address.0 != address.0 {
            return Err(JoinRefusal::NameTaken { name: name.to_string(), address: member.home() });
        }
        Ok(())
    }

    /// Ends a session without a farewell: the agent may come back. Gives whether there was one of this
    /// number.
    pub(super) fn part(&mut self, now: Time, agent: &AgentKey, number: u64) -> bool {
        let Some(member) = self.by_name.get_mut(&agent.name) else { return false };
        let Presence::Here { session, from } = member.presence else { return false };
        if session != number || member.incarnation != agent.incarnation {
            return false;
        }
        let until = now + self.sessions.reconnect;
        member.presence = Presence::Away { until, from: Some(from) };
        self.away.insert((until, member.host));
        true
    }

    /// The number of an agent's session, if it has one.
    pub(super) fn session_of(&self, agent: &AgentKey) -> Option<u64> {
        let member =
            self.by_name.get(&agent.name).filter(|member| member.incarnation == agent.incarnation)?;
        match member.presence {
            Presence::Here { session, .. } => Some(session),
            Presence::Away { .. } => None,
        }
    }

    /// Checks that this run of the agent has joined.
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
        if let Presence::Away { until, .. } = member.presence {
            self.away.remove(&(until, member.host));
        }
        self.names.remove(&member.host);
        self.unreachable.remove(name);
        Some(member)
    }

    /// An agent says which members it could not reach, and which it has reached again. What is said of one is
    /// forgotten when it comes anew: it may be somewhere else.
    pub(super) fn note_reached(
        &mut self,
        now: Time,
        agent: &AgentKey,
        unreachable: &[String],
        reachable: &[String],
    ) {
        if self.check(agent).is_err() {
            return;
        }
        for name in unreachable.iter().filter(|name| self.by_name.contains_key(*name)) {
            self.unreachable.insert(name.clone(), Unreachable { by: agent.name.clone(), said_at: now });
        }
        for name in reachable {
            // Others may still not reach it.
            if self.unreachable.get(name).is_some_and(|said| said.by == agent.name) {
                self.unreachable.remove(name);
            }
        }
    }

    /// Returns the report of another agent that it cannot reach this member.
    pub(super) fn unreachable(&self, name: &str) -> Option<&Unreachable> {
        self.unreachable.get(name)
    }

    /// Remembers one that has not come back.
    pub(super) fn lose(&mut self, name: &str, heard_at: Time) {
        remember(&mut self.lost, name, heard_at);
    }

    /// Remembers one that has left in good order: what is in its store may come back with it.
    pub(super) fn let_go(&mut self, now: Time, name: &str) {
        remember(&mut self.left, name, now);
    }

    /// Agents that have left in good order.
    pub(super) fn left(&self) -> impl Iterator<Item = &str> {
        self.left.keys().map(String::as_str)
    }

    /// Agents that have not come back, and when they were heard of last.
    pub(super) fn lost(&self) -> impl Iterator<Item = (&str, Time)> {
        self.lost.iter().map(|(name, heard_at)| (name.as_str(), *heard_at))
    }

    /// Name of an agent that has been silent for too long.
    pub(super) fn overdue(&self, now: Time) -> Option<String> {
        let (heard_at, host) = self.heard.first()?;
        if *heard_at + self.silence > now {
            return None;
        }
        self.names.get(host).cloned()
    }

    /// Name of an agent that has not come back in time.
    pub(super) fn dead(&self, now: Time) -> Option<String> {
        let (until, host) = self.away.first()?;
        if *until > now {
            return None;
        }
        self.names.get(host).cloned()
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        let silent = self.heard.first().map(|(heard_at, _)| *heard_at + self.silence);
        let dead = self.away.first().map(|(until, _)| *until);
        silent.into_iter().chain(dead).min()
    }

    /// Returns true if an agent of this name is here, or is remembered, or settings name it.
    pub(super) fn has_heard_of(&self, name: &str) -> bool {
        let remembered = self.lost.contains_key(name) || self.left.contains_key(name);
        remembered || self.by_name.contains_key(name) || self.known.contains_key(name)
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

    pub(super) fn address_of(&self, host: HostId) -> Option<(String, (IpAddr, u16))> {
        let name = self.names.get(&host)?;
        Some((name.clone(), self.by_name.get(name)?.address))
    }

    /// The names that are known for good of those among these hosts that are not here.
    pub(super) fn absent(&self, hosts: &BTreeSet<HostId>) -> Vec<String> {
        let known = self.known.iter().filter(|(_, host)| hosts.contains(host));
        known.filter(|(_, host)| !self.names.contains_key(host)).map(|(name, _)| name.clone()).collect()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &Member)> {
        self.by_name.iter().map(|(name, member)| (name.as_str(), member))
    }

    /// The group of `source` and all others that were heard of lately, and the names of those that were not,
    /// of those that have no session and of the lost: one that no request has named is not waited for.
    pub(super) fn all_but(&self, now: Time, source: &str) -> Result<(Group, Vec<String>), Denial> {
        let source = self.get(source).ok_or_else(|| NotMember::Unknown(source.to_string()))?.host;
        let mut receivers = BTreeSet::new();
        let mut missed: Vec<String> = self.lost.keys().cloned().collect();
        for (name, member) in self.by_name.iter().filter(|(_, member)| member.host != source) {
            if self.is_quiet(now, member) {
                missed.push(name.clone());
            } else {
                receivers.insert(member.host);
            }
        }
        missed.sort();
        if receivers.is_empty() {
            Err(Denial::NobodyElse)
        } else {
            Ok((Group::of_one(source, receivers), missed))
        }
    }

    /// Returns true if a member has sent nothing for a while: it may be frozen, or cut off.
    fn is_quiet(&self, now: Time, member: &Member) -> bool {
        now.since(member.heard_at) > self.silence / 2
    }

    /// The group of `source`, of `further` sources and of the agents of these names, and the names among
    /// these of those that are lost: they hold no other. A source is a receiver only beside another source.
    pub(super) fn group(
        &self,
        source: &str,
        further: &[String],
        names: &[String],
    ) -> Result<(Group, Vec<String>), Denial> {
        let host = self.get(source).ok_or_else(|| NotMember::Unknown(source.to_string()))?.host;
        let mut sources = BTreeSet::new();
        for name in further {
            match self.get(name) {
                Some(member) if member.host != host && sources.insert(member.host) => {}
                Some(_) => return Err(Denial::NamedTwice(name.clone())),
                None if self.lost.contains_key(name) => return Err(Denial::Lost(name.clone())),
                None => return Err(Denial::UnknownReceiver(name.clone())),
            }
        }
        let (mut receivers, mut missed) = (BTreeSet::new(), BTreeSet::new());
        for name in names {
            let is_new = match self.get(name) {
                Some(member) if member.host == host && sources.is_empty() => {
                    return Err(Denial::SourceItself(name.clone()));
                }
                Some(member) => receivers.insert(member.host),
                None if self.lost.contains_key(name) => missed.insert(name.clone()),
                None => return Err(Denial::UnknownReceiver(name.clone())),
            };
            if !is_new {
                return Err(Denial::NamedTwice(name.clone()));
            }
        }
        match missed.first() {
            Some(name) if receivers.is_empty() => Err(Denial::Lost(name.clone())),
            None if receivers.is_empty() => Err(Denial::NoReceivers),
            _ => {
                let group = Group { source: host, further_sources: sources, receivers };
                Ok((group, missed.into_iter().collect()))
            }
        }
    }
}

/// Enters one more; of too many the one goes that was heard of first.
fn remember(names: &mut BTreeMap<String, Time>, name: &str, at: Time) {
    names.insert(name.to_string(), at);
    if names.len() > LOST_MAX
        && let Some(oldest) = names.iter().min_by_key(|(_, at)| **at)
    {
        let oldest = oldest.0.clone();
        names.remove(&oldest);
    }
}

/// Returns true if an agent can be given this name on a command line.
fn is_name(name: &str) -> bool {
    let odd = |c: char| c.is_whitespace() || c.is_control() || c == ',';
    !name.is_empty() && name.len() <= NAME_LEN_MAX && name != "all" && !name.contains(odd)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    const SILENCE: Duration = Duration::from_secs(10);

    const HOME: IpAddr = IpAddr::V4(core::net::Ipv4Addr::LOCALHOST);

    fn members(most: usize) -> Members {
        let sessions = SessionsConfig { alive: Duration::ZERO, ..SessionsConfig::default() };
        Members::new(most, SILENCE, sessions)
    }

    fn agent(name: &str, incarnation: u64) -> AgentKey {
        AgentKey { name: name.to_string(), incarnation }
    }

    fn at(seconds: u64) -> Time {
        Time(seconds * 1_000_000_000)
    }

    fn join(members: &mut Members, now: Time, name: &str) -> HostId {
        let came = members.join(now, &agent(name, 1), ([10, 0, 0, 1].into(), 7), HOME);
        assert!(matches!(came, Ok(Arrival { before: None, .. })));
        members.get(name).unwrap().host
    }

    /// One that is silent for ten seconds is overdue, the one that was heard of longest ago first.
    #[test]
    fn one_that_is_silent_is_overdue() {
        let mut members = members(9);
        assert_eq!((members.deadline(), members.overdue(at(99))), (None, None));
        join(&mut members, at(0), "a");
        join(&mut members, at(1), "b");
        assert_eq!(members.deadline(), Some(at(10)));
        assert_eq!(members.overdue(Time(at(10).0 - 1)), None);
        assert_eq!(members.overdue(at(10)).as_deref(), Some("a"));
        assert_eq!(members.heard(at(3), &agent("a", 1)), Ok(()));
        assert_eq!(members.overdue(at(11)).as_deref(), Some("b"));
        let (unknown, another_run) = (agent("c", 1), agent("b", 2));
        assert_eq!(members.heard(at(9), &unknown), Err(NotMember::Unknown("c".into())));
        assert_eq!(members.heard(at(9), &another_run), Err(NotMember::Superseded("b".into())));
        assert_eq!(members.deadline(), Some(at(11)), "neither counts");
        members.excuse(at(20));
        assert_eq!((members.deadline(), members.overdue(at(29))), (Some(at(30)), None));
        assert_eq!(members.remove("b").map(|member| member.heard_at), Some(at(20)));
        assert_eq!(members.remove("b"), None);
        assert_eq!(members.overdue(at(30)).as_deref(), Some("a"));
        members.remove("a");
        assert_eq!(members.deadline(), None);
    }

    /// A report on another agent counts until its sender withdraws it, or the other agent joins again.
    #[test]
    fn one_that_cannot_be_reached_is_remembered_until_it_can() {
        let mut members = members(9);
        for name in ["a", "b", "c"] {
            join(&mut members, at(0), name);
        }
        let by = |members: &Members| members.unreachable("b").map(|said| (said.by.clone(), said.said_at));
        let names = |all: &[&str]| all.iter().map(ToString::to_string).collect::<Vec<_>>();
        members.note_reached(at(1), &agent("a", 1), &names(&["b", "x"]), &[]);
        assert_eq!((by(&members), members.unreachable("x")), (Some(("a".into(), at(1))), None));
        members.note_reached(at(2), &agent("c", 1), &[], &names(&["b"]));
        members.note_reached(at(2), &agent("a", 2), &[], &names(&["b"]));
        assert_eq!(by(&members), Some(("a".into(), at(1))), "a has not taken it back");
        members.note_reached(at(3), &agent("c", 1), &names(&["b"]), &[]);
        assert_eq!(by(&members), Some(("c".into(), at(3))));
        members.note_reached(at(4), &agent("c", 1), &[], &names(&["b"]));
        assert_eq!(by(&members), None);
        members.note_reached(at(5), &agent("c", 1), &names(&["b"]), &[]);
        join(&mut members, at(6), "b");
        assert_eq!(by(&members), None, "it may be somewhere else");
    }

    #[test]
    fn another_host_does_not_take_a_name_and_another_run_does() {
        let mut members = members(2);
        let host = join(&mut members, at(0), "a");
        let come = |members: &mut Members, incarnation, ip: IpAddr| {
            members.join(at(1), &agent("a", incarnation), (ip, 8), HOME)
        };
        let moved = come(&mut members, 1, [10, 0, 0, 2].into());
        assert!(
            matches!(moved, Ok(Arrival { before: None, session: 2, is_again: false })),
            "the same run has moved"
        );
        let taken = come(&mut members, 2, [10, 0, 0, 3].into()).err();
        assert_eq!(taken, Some(JoinRefusal::NameTaken { name: "a".into(), address: HOME }));
        let again = come(&mut members, 2, [10, 0, 0, 2].into());
        assert!(matches!(again, Ok(Arrival { before: Some(1), session: 3, .. })));
        let member = members.get("a").unwrap();
        assert_eq!((member.host, member.incarnation, member.address), (host, 2, ([10, 0, 0, 2].into(), 8)));
        assert_eq!(members.entry("a").map(|(name, member)| member.key(name)), Some(agent("a", 2)));
        assert_eq!(members.address_of(host), Some(("a".into(), ([10, 0, 0, 2].into(), 8))));
        assert_eq!(
            (members.name_of(host), members.name_of(HostId(9)), members.address_of(HostId(9))),
            (Some("a"), None, None)
        );
        join(&mut members, at(1), "b");
        let full = members.join(at(1), &agent("c", 1), ([1; 4].into(), 1), HOME).err();
        assert_eq!(full, Some(JoinRefusal::Full(2)));
        assert_eq!(members.iter().map(|(name, _)| name).collect::<Vec<_>>(), ["a", "b"]);
    }

    /// Numbers belong to one name each, also where they were given before; the largest belongs to none.
    #[test]
    fn no_number_belongs_to_two_names() {
        let mut members = members(9);
        assert_eq!(
            (members.know("x"), members.know("y"), members.know("x")),
            (HostId(0), HostId(1), HostId(0))
        );
        assert_eq!((join(&mut members, at(0), "a"), join(&mut members, at(0), "y")), (HostId(2), HostId(1)));
        assert_eq!(members.know("a"), HostId(2));
        assert_eq!(
            (members.number("x"), members.number("a"), members.number("b")),
            (Some(HostId(0)), Some(HostId(2)), None)
        );
        assert_eq!(members.know_as("x", HostId(0)), Ok(()));
        for (name, host, why) in [
            ("x", 5, "'x' has number 5, and 0 before"),
            ("a", 5, "'a' has number 5, and 2 before"),
            ("z", 2, "'z' has number 2, which is another one's"),
            ("z", 0, "'z' has number 0, which is another one's"),
            ("z", u32::MAX, "'z' has number 4294967295, which no manager gives"),
        ] {
            assert_eq!(members.know_as(name, HostId(host)), Err(why.to_string()));
        }
        assert_eq!(members.know_as("z", HostId(7)), Ok(()));
        assert_eq!(join(&mut members, at(0), "b"), HostId(8), "above all that are known");
        assert_eq!(members.know_as("w", HostId(u32::MAX - 1)), Ok(()));
        assert_eq!(
            join(&mut members, at(0), "c"),
            HostId(3),
            "after the last it begins anew with those that are free"
        );
        let all = [0, 1, 2, 7, 8].map(HostId).into();
        assert_eq!(members.absent(&all), vec!["x".to_string(), "z".to_string()], "known, and not here");
    }

    #[test]
    fn what_an_earlier_manager_knew_is_taken_over() {
        let mut members = members(9);
        let presence = Presence::Away { until: at(99), from: None };
        let member = |host| Member {
            host: HostId(host),
            incarnation: 3,
            address: ([1; 4].into(), 1),
            heard_at: at(5),
            presence,
        };
        assert_eq!(members.restore("a".into(), member(4)), Ok(()));
        assert_eq!(members.check(&agent("a", 3)), Ok(()));
        assert_eq!(members.deadline(), Some(at(15)));
        for (name, host, why) in [
            ("a", 4, "'a' is there twice"),
            ("b", 4, "'b' has number 4, which is another one's"),
            ("", 6, "its name cannot be an agent's"),
            ("all", 6, "its name cannot be an agent's"),
        ] {
            assert_eq!(members.restore(name.into(), member(host)), Err(why.to_string()));
        }
        assert_eq!(join(&mut members, at(6), "b"), HostId(5), "above those that were taken over");
    }

    /// A request to all means those that were heard of within half of the time after which one is taken for
    /// dead.
    #[test]
    fn all_are_those_that_were_heard_of_lately() {
        let mut members = members(9);
        let hosts: Vec<HostId> =
            ["a", "b", "c"].iter().zip(0..).map(|(name, s)| join(&mut members, at(s), name)).collect();
        let group = |members: &Members, seconds| {
            members
                .all_but(at(seconds), "a")
                .map(|(group, missed)| (group.receivers.into_iter().collect::<Vec<HostId>>(), missed))
        };
        assert_eq!(group(&members, 6), Ok((vec![hosts[1], hosts[2]], vec![])));
        assert_eq!(group(&members, 7), Ok((vec![hosts[2]], vec!["b".to_string()])));
        assert_eq!(group(&members, 8), Err(Denial::NobodyElse));
        let unknown = members.all_but(at(0), "d").err();
        assert_eq!(unknown, Some(Denial::NotMember(NotMember::Unknown("d".into()))));
    }

    /// One whose session ends may come back for a while, to its own address; then it is dead, and remembered.
    #[test]
    fn one_without_a_session_is_away_and_then_dead() {
        let sessions = SessionsConfig { of_address_max: 2, ..SessionsConfig::default() };
        let mut members = Members::new(9, SILENCE, sessions);
        let elsewhere = IpAddr::V4(core::net::Ipv4Addr::new(10, 0, 0, 9));
        let come = |members: &mut Members, now, name: &str, run, from| {
            members
                .join(now, &agent(name, run), ([10, 0, 0, 1].into(), 7), from)
                .map(|arrival| arrival.session)
        };
        let taken = |address| Err(JoinRefusal::NameTaken { name: "a".into(), address });
        assert_eq!(come(&mut members, at(0), "a", 1, HOME), Ok(1));
        assert_eq!(come(&mut members, at(1), "a", 2, HOME), taken(HOME), "it was heard of a second ago");
        assert_eq!(come(&mut members, at(3), "a", 2, elsewhere), taken(HOME), "from another address");
        assert!(!members.part(at(3), &agent("a", 1), 9) && !members.part(at(3), &agent("a", 2), 1));
        assert!(members.part(at(3), &agent("a", 1), 1));
        assert!(!members.part(at(3), &agent("a", 1), 1), "once");
        assert_eq!((members.session_of(&agent("a", 1)), members.deadline()), (None, Some(at(5))));
        assert_eq!(come(&mut members, at(4), "a", 2, elsewhere), taken(HOME));
        assert_eq!((members.dead(at(4)), members.dead(at(5))), (None, Some("a".into())));
        assert_eq!(come(&mut members, at(4), "a", 2, HOME), Ok(2), "at once");
        assert_eq!((members.session_of(&agent("a", 2)), members.dead(at(9))), (Some(2), None));
        assert_eq!(come(&mut members, at(4), "b", 1, HOME), Ok(3));
        let full = JoinRefusal::AddressFull { from: HOME, count: 2 };
        assert_eq!(come(&mut members, at(4), "c", 1, HOME), Err(full));
        members.part(at(5), &agent("b", 1), 3);
        members.excuse(at(6));
        assert_eq!((members.dead(at(7)), members.dead(at(8))), (None, Some("b".into())));
        let heard_at = members.remove("b").map(|member| member.heard_at).unwrap();
        members.lose("b", heard_at);
        assert_eq!(members.lost().collect::<Vec<_>>(), [("b", at(6))]);
        let named = |members: &Members, names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| name.to_string()).collect();
            members.group("a", &[], &names).map(|(group, missed)| (group.receivers.len(), missed))
        };
        assert_eq!(named(&members, &["b"]), Err(Denial::Lost("b".into())));
        assert_eq!(named(&members, &["b", "c"]), Err(Denial::UnknownReceiver("c".into())));
        assert_eq!(come(&mut members, at(8), "c", 1, HOME), Ok(4));
        assert_eq!(named(&members, &["b", "c"]), Ok((1, vec!["b".into()])), "it holds no other");
        assert_eq!(named(&members, &["b", "b", "c"]), Err(Denial::NamedTwice("b".into())));
        let all = members.all_but(at(8), "a").map(|(group, missed)| (group.receivers.len(), missed));
        assert_eq!(all, Ok((1, vec!["b".into()])));
        members.remove("c");
        assert_eq!(come(&mut members, at(9), "b", 2, HOME), Ok(5));
        assert_eq!(members.lost().count(), 0);
    }
}
