//! The directory held against itself.

use super::Directory;
use super::objects::WantState;

impl Directory {
    /// Asserts that counts agree, that bounds hold, and that what is noted twice is the same.
    ///
    /// # Panics
    /// It is not so.
    pub fn check(&self) {
        let holds: usize = self.entries.values().map(|entry| entry.copies.all().count()).sum();
        assert_eq!(holds, self.holds, "who has what is counted");
        let wants: usize = self.entries.values().map(|entry| entry.wants.len()).sum();
        let subscribers: usize = self.topics.values().map(|topic| topic.subscribers.len()).sum();
        assert_eq!(wants + subscribers, self.wishes, "wishes are counted");
        assert!(self.holds <= self.config.holds_max && self.wishes <= self.config.wishes_max);
        assert!(self.topics.len() <= self.config.topics_max);
        assert!(self.numbers.len() <= self.config.topics_max);
        assert!(self.numbers.keys().all(|topic| !self.topics.contains_key(topic)), "a number is noted once");
        for (object, entry) in &self.entries {
            assert!(!entry.copies.is_empty() || !entry.wants.is_empty(), "an empty entry has gone");
            for agent in entry.copies.all() {
                assert!(self.members[agent].holds.contains(object));
            }
            for agent in entry.copies.holders() {
                assert!(!entry.wants.contains_key(agent), "no agent asks for what it has");
            }
            for (agent, want) in &entry.wants {
                assert!(self.members[agent].wants.contains(object));
                assert!(want.asked || !want.topics.is_empty(), "a wish has an agent");
                if let WantState::Served(serve) = want.state {
                    assert!(self.serves[&serve].receivers.contains(agent));
                }
            }
            if let Some(filler) = &entry.filling {
                assert!(entry.wants.contains_key(filler), "an agent that gets an object asks for it");
            }
        }
        for serve in self.serves.values() {
            assert!(!serve.receivers.is_empty());
            let wants = &self.entries[&serve.object].wants;
            assert!(serve.receivers.iter().all(|agent| wants.contains_key(agent)));
        }
        let marked: usize = self.members.values().map(|member| member.holds.len()).sum();
        assert_eq!(marked, self.holds, "members' objects are those of the entries");
        for (name, topic) in &self.topics {
            let staged = topic.staging.as_ref().map(|staging| &staging.version);
            for version in topic.committed.iter().chain(staged) {
                assert!(self.versions[&version.object].contains(name));
            }
            assert!(topic.committed.as_ref().is_none_or(|known| known.number <= topic.last));
            if let Some(staging) = &topic.staging {
                assert!(staging.awaited.is_subset(&topic.subscribers));
                assert!(topic.committed.as_ref().is_none_or(|known| known.number < staging.version.number));
                let is_held = self.holders(staging.version.object).next().is_some();
                assert!(is_held, "a version that is to be committed is somewhere");
            }
        }
    }
}
