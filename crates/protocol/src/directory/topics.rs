//! Topics: a version is staged at all subscribers, and committed when all have it that live and can.

use super::{Directory, DirectoryOutput, Look, Missed, TopicRefusal, Version};
use crate::leases::AgentKey;
use crate::share::has_room;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use polycast_types::{AppId, Duration, ObjectId, Time};

/// The longest name of a topic, in bytes.
const NAME_LEN_MAX: usize = 255;
/// Maximum number of remembered subscribers that leave while a version is on its way, or cannot get it:
/// agents may come and go as often as they like.
const MISSING_MAX: usize = 10_000;
/// So many agents at most may say the same version, and are answered when it is committed: each answer names
/// all subscribers.
const PUBLISHERS_MAX: usize = 256;

/// A topic.
#[derive(Debug)]
pub(super) struct Topic {
    pub app: AppId,
    /// The name of the agent that has named it first.
    pub entered_by: String,
    pub subscribers: BTreeSet<AgentKey>,
    pub committed: Option<Version>,
    /// The number of the last version, also where no agent has that any more.
    pub last: u64,
    pub staging: Option<Staging>,
}

/// A version that is on its way.
#[derive(Debug)]
pub(super) struct Staging {
    pub version: Version,
    /// Agents that have published it: all are answered.
    pub publishers: BTreeSet<AgentKey>,
    /// Subscribers that are waited for.
    pub awaited: BTreeSet<AgentKey>,
    /// Subscribers that are not waited for, each with the reason.
    pub missing: BTreeMap<String, Missed>,
    /// No subscriber is waited for after this.
    pub until: Option<Time>,
}

fn check_name(topic: &str) -> Result<(), TopicRefusal> {
    let odd = |c: char| c.is_whitespace() || c.is_control() || matches!(c, ',' | '/');
    if topic.is_empty() || topic.len() > NAME_LEN_MAX || topic.contains(odd) {
        return Err(TopicRefusal::BadName(topic.chars().take(NAME_LEN_MAX).collect()));
    }
    Ok(())
}

impl Directory {
    fn topic_of(&mut self, agent: &AgentKey, app: AppId, topic: &str) -> Result<&mut Topic, TopicRefusal> {
        check_name(topic)?;
        if !self.topics.contains_key(topic) {
            let own = self.topics.values().filter(|found| found.entered_by == agent.name).count();
            if !has_room(self.topics.len(), own, self.config.topics_max) {
                return Err(TopicRefusal::Full(self.config.topics_max));
            }
            let (entered_by, subscribers) = (agent.name.clone(), BTreeSet::new());
            let last = self.numbers.remove(topic).unwrap_or(0);
            let new = Topic { app, entered_by, subscribers, committed: None, last, staging: None };
            self.topics.insert(topic.to_string(), new);
        }
        match self.topics.get_mut(topic) {
            Some(found) if found.app == app => Ok(found),
            _ => Err(TopicRefusal::OtherApplication(topic.to_string())),
        }
    }

    pub(super) fn subscribe(&mut self, now: Time, agent: AgentKey, app: AppId, topic: String) {
        let full = !self.has_room_for_wish(&agent);
        let entered = self.topic_of(&agent, app, &topic).map(|found| found.subscribers.insert(agent.clone()));
        let why = match entered {
            Err(why) => why,
            Ok(true) if full => {
                if let Some(found) = self.topics.get_mut(&topic) {
                    found.subscribers.remove(&agent);
                }
                self.tidy_topic(&topic);
                TopicRefusal::Full(self.config.wishes_max)
            }
            Ok(is_new) => {
                self.wishes += usize::from(is_new);
                let member = self.members.entry(agent.clone()).or_default();
                member.topics.insert(topic.clone());
                member.stale_topics.remove(&topic);
                let told = self.outputs.len();
                self.stage_at(now, &agent, &topic);
                if self.outputs.len() == told {
                    self.news(&agent, &topic, None, false);
                }
                return;
            }
        };
        self.outputs.push_back(DirectoryOutput::TopicRefused { agent, topic, number: None, why });
    }

    /// Sees to it that a subscriber gets what the topic has, and is told.
    pub(super) fn stage_at(&mut self, now: Time, agent: &AgentKey, topic: &str) {
        let Some(found) = self.topics.get_mut(topic) else { return };
        let staged = found.staging.as_ref().map(|staging| staging.version.clone());
        let committed = found.committed.clone();
        if let Some(version) = committed {
            if self.has(agent, version.object) {
                self.news(agent, topic, Some(version), true);
            } else if staged.is_none() {
                // It hears what it waits for, so that it can say when nothing of it comes.
                let object = version.object;
                self.news(agent, topic, Some(version), false);
                self.want_for(now, agent, topic, object);
            }
        }
        if let Some(version) = staged {
            let object = version.object;
            self.news(agent, topic, Some(version), false);
            if !self.has(agent, object) {
                if let Some(staging) = self.topics.get_mut(topic).and_then(|found| found.staging.as_mut()) {
                    staging.awaited.insert(agent.clone());
                }
                self.want_for(now, agent, topic, object);
            }
        }
    }

    fn has(&self, agent: &AgentKey, object: ObjectId) -> bool {
        self.entries.get(&object).is_some_and(|entry| entry.copies.has(agent))
    }

    fn news(&mut self, agent: &AgentKey, topic: &str, version: Option<Version>, committed: bool) {
        let (agent, topic) = (agent.clone(), topic.to_string());
        self.outputs.push_back(DirectoryOutput::News { agent, topic, version, committed });
    }

    /// Asks for an object for a subscriber.
    fn want_for(&mut self, now: Time, agent: &AgentKey, topic: &str, object: ObjectId) {
        if !self.enter_want(agent, object) {
            let why = Missed::Topic(TopicRefusal::Full(self.config.wishes_max));
            return self.version_missed(now, agent, topic, object, why);
        }
        if let Some(want) = self.entries.get_mut(&object).and_then(|entry| entry.wants.get_mut(agent)) {
            want.topics.insert(topic.to_string());
        }
        self.look_soon(now, object, now);
    }

    pub(super) fn publish(
        &mut self,
        now: Time,
        agent: &AgentKey,
        app: AppId,
        topic: &str,
        version: Version,
        patience: Option<Duration>,
    ) -> Result<(), TopicRefusal> {
        let has = self.has(agent, version.object);
        let found = self.topic_of(agent, app, topic)?;
        let outcome = admit(found, topic, agent, &version, has);
        match outcome {
            Ok(Admitted::New) => {}
            Ok(Admitted::Again) => return Ok(()),
            Ok(Admitted::Committed) => {
                let have = self.subscribers_with(topic, version.object);
                let (agent, topic, number) = (agent.clone(), topic.to_string(), version.number);
                let found = self.topics.get(&topic).into_iter().flat_map(|found| &found.subscribers);
                let without = found.filter(|one| !self.has(one, version.object));
                let missing = without.map(|one| (one.name.clone(), Missed::Earlier)).collect();
                self.outputs.push_back(DirectoryOutput::Published { agent, topic, number, have, missing });
                return Ok(());
            }
            Err(why) => {
                self.tidy_topic(topic);
                return Err(why);
            }
        }
        let (object, until) = (version.object, patience.map(|patience| now + patience));
        let Some(found) = self.topics.get_mut(topic) else { return Ok(()) };
        found.staging = Some(Staging {
            version,
            publishers: BTreeSet::from([agent.clone()]),
            awaited: BTreeSet::new(),
            missing: BTreeMap::new(),
            until,
        });
        let subscribers: Vec<AgentKey> = found.subscribers.iter().cloned().collect();
        self.versions.entry(object).or_default().insert(topic.to_string());
        subscribers.iter().for_each(|agent| self.stage_at(now, agent, topic));
        let look_at = until.into_iter().chain([self.settles_at.max(now)]);
        self.looks.extend(look_at.map(|at| (at, Look::Topic(topic.to_string()))));
        Ok(())
    }

    fn subscribers_with(&self, topic: &str, object: ObjectId) -> Vec<String> {
        let Some(found) = self.topics.get(topic) else { return Vec::new() };
        let have = found.subscribers.iter().filter(|agent| self.has(agent, object));
        have.map(|agent| agent.name.clone()).collect()
    }

    /// Takes over a version that an earlier manager has committed.
    pub(super) fn was_committed(
        &mut self,
        now: Time,
        agent: &AgentKey,
        app: AppId,
        topic: String,
        version: Version,
    ) {
        let Ok(found) = self.topic_of(agent, app, &topic) else { return };
        if found.committed.as_ref().is_some_and(|known| known.number >= version.number) {
            return;
        }
        let before = found.committed.replace(version.clone());
        found.last = found.last.max(version.number);
        let last = found.last;
        let staged = found.staging.as_ref().map(|staging| staging.version.clone());
        let subscribers: Vec<AgentKey> = found.subscribers.iter().cloned().collect();
        self.versions.entry(version.object).or_default().insert(topic.clone());
        self.forget_version(&topic, before);
        match staged {
            Some(staged) if staged == version => self.commit(now, &topic),
            // Its publisher did not know of this one, and takes another number.
            Some(Version { number, .. }) if number <= version.number => {
                let why = TopicRefusal::NotAbove { topic: topic.clone(), number, last };
                self.give_up(now, &topic, why);
            }
            _ => {}
        }
        subscribers.iter().for_each(|agent| self.stage_at(now, agent, &topic));
        if self.topics.contains_key(&topic) {
            // Until then agents may say that they have it, or subscribe.
            let at = self.in_doubt_until().max(now);
            self.looks.insert((at, Look::Topic(topic)));
        }
    }

    /// An agent has an object that may be a version.
    pub(super) fn version_arrived(&mut self, now: Time, agent: &AgentKey, object: ObjectId) {
        let topics: Vec<String> = self.versions.get(&object).into_iter().flatten().cloned().collect();
        for topic in topics {
            let Some(found) = self.topics.get_mut(&topic) else { continue };
            if !found.subscribers.contains(agent) {
                continue;
            }
            let committed = found.committed.clone().filter(|version| version.object == object);
            if let Some(staging) = &mut found.staging
                && staging.version.object == object
            {
                staging.awaited.remove(agent);
                staging.missing.remove(&agent.name);
            }
            if let Some(version) = committed {
                self.news(agent, &topic, Some(version), true);
            }
            self.look_at_topic(now, &topic);
        }
    }

    /// An agent has lost an object that may be a version.
    pub(super) fn version_lost(&mut self, now: Time, object: ObjectId) {
        let topics: Vec<String> = self.versions.get(&object).into_iter().flatten().cloned().collect();
        for topic in topics {
            self.look_at_topic(now, &topic);
            self.tidy_topic(&topic);
        }
    }

    /// A subscriber does not get a version.
    pub(super) fn version_missed(
        &mut self,
        now: Time,
        agent: &AgentKey,
        topic: &str,
        object: ObjectId,
        why: Missed,
    ) {
        let Some(found) = self.topics.get_mut(topic) else { return };
        if let Some(staging) = &mut found.staging
            && staging.version.object == object
            && staging.awaited.remove(agent)
        {
            note_missing(staging, &agent.name, why);
        }
        self.look_at_topic(now, topic);
    }

    pub(super) fn unsubscribe(&mut self, now: Time, agent: &AgentKey, topic: &str) {
        self.leave(now, agent, topic, Missed::Unsubscribed);
    }

    /// A subscriber is one no more.
    pub(super) fn leave(&mut self, now: Time, agent: &AgentKey, topic: &str, why: Missed) {
        let Some(found) = self.topics.get_mut(topic) else { return };
        if !found.subscribers.remove(agent) {
            return;
        }
        self.wishes -= 1;
        if let Some(member) = self.members.get_mut(agent) {
            member.topics.remove(topic);
            member.stale_topics.remove(topic);
        }
        let mut objects: Vec<ObjectId> = found.committed.iter().map(|version| version.object).collect();
        if let Some(staging) = &mut found.staging {
            objects.push(staging.version.object);
            if staging.awaited.remove(agent) {
                note_missing(staging, &agent.name, why);
            }
        }
        objects.into_iter().for_each(|object| self.lose_interest(now, agent, topic, object));
        self.forget_member(agent);
        self.look_at_topic(now, topic);
        self.tidy_topic(topic);
    }

    /// A topic is to be looked at: one of which an agent has told, and no more than that, takes no place.
    pub(super) fn topic_due(&mut self, now: Time, topic: &str) {
        self.look_at_topic(now, topic);
        let is_idle = self.topics.get(topic).is_some_and(|found| found.staging.is_none());
        let in_doubt_until = self.in_doubt_until();
        if is_idle && now < in_doubt_until {
            self.looks.insert((in_doubt_until, Look::Topic(topic.to_string())));
        } else if is_idle {
            self.tidy_topic(topic);
        }
    }

    /// Commits what is staged, if that can be.
    pub(super) fn look_at_topic(&mut self, now: Time, topic: &str) {
        let Some(staging) = self.topics.get(topic).and_then(|found| found.staging.as_ref()) else { return };
        let is_held = self.holders(staging.version.object).next().is_some();
        if !is_held {
            let (topic_name, number) = (topic.to_string(), staging.version.number);
            return self.give_up(now, topic, TopicRefusal::Vanished { topic: topic_name, number });
        }
        let in_time = staging.until.is_none_or(|until| now < until);
        if now < self.settles_at || (in_time && !staging.awaited.is_empty()) {
            return;
        }
        self.commit(now, topic);
    }

    fn commit(&mut self, now: Time, topic: &str) {
        let Some(found) = self.topics.get_mut(topic) else { return };
        let Some(Staging { version, publishers, awaited, mut missing, until }) = found.staging.take() else {
            return;
        };
        self.forget_patience(topic, until);
        let Some(found) = self.topics.get_mut(topic) else { return };
        let newer = found.committed.as_ref().is_none_or(|known| known.number < version.number);
        let before = if newer { found.committed.replace(version.clone()) } else { None };
        found.last = found.last.max(version.number);
        let subscribers: Vec<AgentKey> = found.subscribers.iter().cloned().collect();
        for agent in awaited {
            missing.entry(agent.name).or_insert(Missed::Late);
        }
        if let Some(old) = before.as_ref().filter(|old| old.object != version.object) {
            self.drop_interest(now, topic, old.object);
        }
        self.forget_version(topic, if newer { before } else { Some(version.clone()) });
        let have = self.subscribers_with(topic, version.object);
        for agent in &subscribers {
            if self.has(agent, version.object) {
                self.news(agent, topic, Some(version.clone()), true);
            } else {
                // One that had it is not waited for; here it has lost it again.
                missing.entry(agent.name.clone()).or_insert(Missed::NotKept);
            }
        }
        let (topic, number) = (topic.to_string(), version.number);
        // A run of an agent that has ended does not have it, and the next one may.
        missing.retain(|name, _| !have.contains(name));
        let missing: Vec<(String, Missed)> = missing.into_iter().collect();
        for agent in publishers {
            let (topic, have, missing) = (topic.clone(), have.clone(), missing.clone());
            self.outputs.push_back(DirectoryOutput::Published { agent, topic, number, have, missing });
        }
    }

    /// Gives up a version that cannot be committed: no agent has it, or it is not above the last one.
    fn give_up(&mut self, now: Time, topic: &str, why: TopicRefusal) {
        let Some(found) = self.topics.get_mut(topic) else { return };
        let Some(Staging { version, publishers, until, .. }) = found.staging.take() else { return };
        self.forget_patience(topic, until);
        let number = Some(version.number);
        for agent in publishers {
            let (topic, why) = (topic.to_string(), why.clone());
            self.outputs.push_back(DirectoryOutput::TopicRefused { agent, topic, number, why });
        }
        self.forget_version(topic, Some(version.clone()));
        self.drop_interest(now, topic, version.object);
        let subscribers: Vec<AgentKey> =
            self.topics.get(topic).into_iter().flat_map(|found| &found.subscribers).cloned().collect();
        subscribers.iter().for_each(|agent| self.stage_at(now, agent, topic));
        self.tidy_topic(topic);
    }

    /// A version is not on its way any more: its topic need not be looked at when its patience is over. Until
    /// all have said what they have a topic is looked at for other reasons, at times that may be the same.
    fn forget_patience(&mut self, topic: &str, until: Option<Time>) {
        if let Some(until) = until.filter(|until| *until > self.in_doubt_until()) {
            self.looks.remove(&(until, Look::Topic(topic.to_string())));
        }
    }

    /// No agent has to have an object for a topic any more.
    fn drop_interest(&mut self, now: Time, topic: &str, object: ObjectId) {
        let wanting: Vec<AgentKey> =
            self.entries.get(&object).into_iter().flat_map(|entry| entry.wants.keys()).cloned().collect();
        wanting.iter().for_each(|agent| self.lose_interest(now, agent, topic, object));
    }

    fn lose_interest(&mut self, now: Time, agent: &AgentKey, topic: &str, object: ObjectId) {
        let want = self.entries.get_mut(&object).and_then(|entry| entry.wants.get_mut(agent));
        if let Some(want) = want
            && want.topics.remove(topic)
            && want.topics.is_empty()
            && !want.asked
        {
            self.drop_want(now, agent, object);
        }
    }

    /// A version that a topic has no more.
    fn forget_version(&mut self, topic: &str, version: Option<Version>) {
        let Some(version) = version else { return };
        let found = self.topics.get(topic);
        let is_meant = found.is_some_and(|found| {
            let staged = found.staging.as_ref().map(|staging| &staging.version);
            found.committed.iter().chain(staged).any(|other| other.object == version.object)
        });
        if !is_meant && let Some(topics) = self.versions.get_mut(&version.object) {
            topics.remove(topic);
            if topics.is_empty() {
                self.versions.remove(&version.object);
            }
        }
    }

    /// Versions only rise, also those of a topic that takes no place for a while.
    fn remember_number(&mut self, topic: &str, last: u64) {
        if last == 0 {
            return;
        }
        self.numbers.insert(topic.to_string(), last);
        while self.numbers.len() > self.config.topics_max {
            self.numbers.pop_first();
        }
    }

    /// A topic without subscribers, of which no agent has anything, takes no place.
    fn tidy_topic(&mut self, topic: &str) {
        let Some(found) = self.topics.get(topic) else { return };
        let is_held =
            |version: &Version| self.entries.get(&version.object).is_some_and(|e| !e.copies.is_empty());
        let is_empty = found.subscribers.is_empty()
            && found.staging.is_none()
            && !found.committed.as_ref().is_some_and(is_held);
        if is_empty && let Some(gone) = self.topics.remove(topic) {
            self.forget_version(topic, gone.committed);
            self.remember_number(topic, gone.last);
        }
    }
}

fn note_missing(staging: &mut Staging, name: &str, why: Missed) {
    if staging.missing.len() < MISSING_MAX {
        staging.missing.insert(name.to_string(), why);
    }
}

/// Kind of a request to publish.
enum Admitted {
    New,
    /// The same as before: the answer comes when it is committed.
    Again,
    /// It is committed already.
    Committed,
}

/// Checks whether a version can be published now.
fn admit(
    found: &mut Topic,
    topic: &str,
    agent: &AgentKey,
    version: &Version,
    has: bool,
) -> Result<Admitted, TopicRefusal> {
    if found.committed.as_ref() == Some(version) {
        return Ok(Admitted::Committed);
    }
    if found.last >= version.number {
        let (topic, number, last) = (topic.to_string(), version.number, found.last);
        return Err(TopicRefusal::NotAbove { topic, number, last });
    }
    if let Some(staging) = &mut found.staging {
        let has_room = staging.publishers.len() < PUBLISHERS_MAX || staging.publishers.contains(agent);
        if staging.version == *version && has_room {
            staging.publishers.insert(agent.clone());
            return Ok(Admitted::Again);
        }
        let (topic, staging) = (topic.to_string(), staging.version.number);
        return Err(TopicRefusal::Staging { topic, staging });
    }
    if has { Ok(Admitted::New) } else { Err(TopicRefusal::NotHeld(topic.to_string())) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use polycast_types::DataId;

    #[test]
    fn of_those_who_leave_so_many_are_remembered() {
        let mut staging = Staging {
            version: Version { number: 1, object: ObjectId { app: AppId::default(), data: DataId(1) } },
            publishers: BTreeSet::from([AgentKey { name: "p".into(), incarnation: 1 }]),
            awaited: BTreeSet::new(),
            missing: BTreeMap::new(),
            until: None,
        };
        for number in 0..MISSING_MAX + 3 {
            assert_eq!(staging.missing.len(), number.min(MISSING_MAX));
            note_missing(&mut staging, &format!("h{number}"), Missed::Gone);
        }
        assert_eq!(staging.missing.len(), MISSING_MAX);
    }
}
