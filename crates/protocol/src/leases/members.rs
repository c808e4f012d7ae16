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

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    const SILENCE: Duration = Duration::from_secs(10);

    fn members(most: usize) -> Members {
        Members::new(most, SILENCE)
    }

    fn agent(name: &str, incarnation: u64) -> AgentKey {
        AgentKey { name: name.to_string(), incarnation }
    }

    fn at(seconds: u64) -> Time {
        Time(seconds * 1_000_000_000)
    }

    fn join(members: &mut Members, now: Time, name: &str) -> HostId {
        let came = members.join(now, &agent(name, 1), ([10, 0, 0, 1], 7));
        assert!(matches!(came, Ok(Arrival::Here)));
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

    #[test]
    fn another_host_does_not_take_a_name_and_another_run_does() {
        let mut members = members(2);
        let host = join(&mut members, at(0), "a");
        let come = |members: &mut Members, incarnation, ip: [u8; 4]| {
            members.join(at(1), &agent("a", incarnation), (ip, 8))
        };
        assert!(matches!(come(&mut members, 1, [10, 0, 0, 2]), Ok(Arrival::Here)), "the same run has moved");
        let taken = come(&mut members, 2, [10, 0, 0, 3]).err();
        assert_eq!(taken, Some(JoinRefusal::NameTaken { name: "a".into(), address: [10, 0, 0, 2] }));
        assert!(matches!(come(&mut members, 2, [10, 0, 0, 2]), Ok(Arrival::Restarted { before: 1 })));
        let member = members.get("a").unwrap();
        assert_eq!((member.host, member.incarnation, member.address), (host, 2, ([10, 0, 0, 2], 8)));
        assert_eq!(members.entry("a").map(|(name, member)| member.key(name)), Some(agent("a", 2)));
        assert_eq!(members.address_of(host), Some(("a".into(), ([10, 0, 0, 2], 8))));
        assert_eq!(
            (members.name_of(host), members.name_of(HostId(9)), members.address_of(HostId(9))),
            (Some("a"), None, None)
        );
        join(&mut members, at(1), "b");
        assert_eq!(members.join(at(1), &agent("c", 1), ([1; 4], 1)).err(), Some(JoinRefusal::Full(2)));
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
        assert_eq!(members.away(&all), vec!["x".to_string(), "z".to_string()], "known, and not here");
    }

    #[test]
    fn what_an_earlier_manager_knew_is_taken_over() {
        let mut members = members(9);
        let member =
            |host| Member { host: HostId(host), incarnation: 3, address: ([1; 4], 1), heard_at: at(5) };
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

    /// A request to all means those that were heard of within half of the time after which one is taken for dead.
    #[test]
    fn all_are_those_that_were_heard_of_lately() {
        let mut members = members(9);
        let hosts: Vec<HostId> =
            ["a", "b", "c"].iter().zip(0..).map(|(name, s)| join(&mut members, at(s), name)).collect();
        let group = |members: &Members, seconds| {
            members
                .all_but(at(seconds), "a")
                .map(|group| group.receivers.into_iter().collect::<Vec<HostId>>())
        };
        assert_eq!(group(&members, 6), Ok(vec![hosts[1], hosts[2]]));
        assert_eq!(group(&members, 7), Ok(vec![hosts[2]]));
        assert_eq!(group(&members, 8), Err(Denial::NobodyElse));
        let unknown = members.all_but(at(0), "d").err();
        assert_eq!(unknown, Some(Denial::NotMember(NotMember::Unknown("d".into()))));
    }
}
