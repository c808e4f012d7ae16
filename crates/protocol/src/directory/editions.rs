//! Copies of one object that differ between agents: the object was replaced while one of them was away, or
//! was read again from an origin that has changed.
//!
//! The youngest edition counts, and only agents that have it are holders. An edition is as old as its oldest
//! copy: a copy of an old one may have reached a host just now. Agents report how long they have had theirs,
//! so that no clocks have to agree.

use super::Root;
use crate::leases::AgentKey;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use polycast_types::{Duration, Time};

/// Number of editions of an object whose ages are kept.
const BIRTHS_MAX: usize = 16;

/// The bytes of an object, as far as agents tell them apart.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(super) struct Edition {
    pub length: u64,
    /// Unknown where it has not been computed.
    pub root: Option<Root>,
}

impl Edition {
    /// Returns true if two editions may be the same bytes.
    fn matches(self, other: Edition) -> bool {
        self.length == other.length && self.root.zip(other.root).is_none_or(|(one, two)| one == two)
    }
}

#[derive(Clone, Copy, Debug)]
struct Birth {
    /// Time when an edition first existed anywhere, in nanoseconds since the directory's origin: negative
    /// where agents have had it for longer.
    born_ns: i128,
    /// Time when an agent last had it that no longer has it.
    left_at: Time,
}

/// Agents that have an object, and agents that have another edition of it.
#[derive(Debug, Default)]
pub(super) struct Copies {
    /// Agents that have the edition that counts.
    holders: BTreeMap<AgentKey, Edition>,
    edition: Edition,
    /// Agents that have another one.
    outdated: BTreeMap<AgentKey, Edition>,
    births: BTreeMap<Edition, Birth>,
}

/// Change of the holders.
#[derive(PartialEq, Eq, Debug, Default)]
pub(super) struct Change {
    /// Agents that are holders now, and were not, or have said so again.
    pub gained: Vec<AgentKey>,
    /// Set if other agents are no longer holders.
    pub outdated: bool,
}

impl Copies {
    /// Agents that have the edition that counts.
    pub(super) fn holders(&self) -> impl Iterator<Item = &AgentKey> {
        self.holders.keys()
    }

    pub(super) fn has(&self, agent: &AgentKey) -> bool {
        self.holders.contains_key(agent)
    }

    /// Returns true if no agent has it: where an agent has any edition, one counts.
    pub(super) fn is_empty(&self) -> bool {
        self.holders.is_empty()
    }

    /// Agents that have any edition.
    pub(super) fn all(&self) -> impl Iterator<Item = &AgentKey> {
        self.holders.keys().chain(self.outdated.keys())
    }

    pub(super) fn has_any(&self, agent: &AgentKey) -> bool {
        self.holders.contains_key(agent) || self.outdated.contains_key(agent)
    }

    /// An agent has an edition, for so long. Words may be `late` by so much: an edition that all have given
    /// up may be one that is yet to be heard of; later than that it was brought anew.
    pub(super) fn put(
        &mut self,
        now: Time,
        agent: AgentKey,
        edition: Edition,
        age: Duration,
        late: Duration,
    ) -> Change {
        self.take_out(now, &agent);
        let has = |known: &Edition| self.editions().any(|held| held == known);
        let forgotten = self.births.iter().filter(|(known, birth)| birth.left_at + late < now && !has(known));
        for edition in forgotten.map(|(known, _)| *known).collect::<Vec<_>>() {
            self.births.remove(&edition);
        }
        if self.holders.is_empty() && self.outdated.is_empty() {
            self.edition = edition;
        }
        let born_ns = i128::from(now.0) - i128::from(age.0);
        self.note_birth(edition, Birth { born_ns, left_at: now });
        let mut change = Change::default();
        if edition.matches(self.edition) {
            if self.edition.root.is_none() && edition.root.is_some() {
                let birth = self.births.remove(&self.edition);
                self.edition = edition;
                birth.into_iter().for_each(|birth| self.note_birth(edition, birth));
            }
            self.holders.insert(agent.clone(), edition);
        } else {
            self.outdated.insert(agent.clone(), edition);
        }
        self.settle(&mut change);
        if self.has(&agent) && !change.gained.contains(&agent) {
            change.gained.push(agent);
        }
        change
    }

    /// An agent has nothing of it; gives nothing where it had nothing.
    pub(super) fn remove(&mut self, now: Time, agent: &AgentKey) -> Option<Change> {
        let mut change = Change::default();
        self.take_out(now, agent).then(|| {
            self.settle(&mut change);
            change
        })
    }

    fn editions(&self) -> impl Iterator<Item = &Edition> {
        self.holders.values().chain(self.outdated.values())
    }

    fn take_out(&mut self, now: Time, agent: &AgentKey) -> bool {
        let had = self.holders.remove(agent).or_else(|| self.outdated.remove(agent));
        if let Some(birth) = had.and_then(|edition| self.births.get_mut(&edition)) {
            birth.left_at = now;
        }
        had.is_some()
    }

    fn note_birth(&mut self, edition: Edition, birth: Birth) {
        let known = self.births.entry(edition).or_insert(birth);
        known.born_ns = known.born_ns.min(birth.born_ns);
        known.left_at = known.left_at.max(birth.left_at);
        while self.births.len() > BIRTHS_MAX {
            let oldest =
                self.births.iter().min_by_key(|(_, birth)| birth.born_ns).map(|(edition, _)| *edition);
            oldest.map(|edition| self.births.remove(&edition));
        }
    }

    fn born(&self, edition: Edition) -> i128 {
        self.births.get(&edition).map_or(i128::MIN, |birth| birth.born_ns)
    }

    /// Has the youngest edition count of those that an agent has.
    fn settle(&mut self, change: &mut Change) {
        let current = Some(self.edition).filter(|_| !self.holders.is_empty());
        let others = self.outdated.values().copied();
        let Some(best) = others.chain(current).max_by_key(|edition| (self.born(*edition), *edition)) else {
            return;
        };
        if current != Some(best) {
            change.outdated |= !self.holders.is_empty();
            self.outdated.append(&mut self.holders);
            self.edition = best;
        }
        // What is not known yet may be any other, and is not all of them.
        let counts = |edition: &Edition| *edition == best || (best.root.is_some() && edition.matches(best));
        let gained = self.outdated.iter().filter(|(_, edition)| counts(edition));
        let gained: BTreeMap<AgentKey, Edition> =
            gained.map(|(agent, edition)| (agent.clone(), *edition)).collect();
        self.outdated.retain(|agent, _| !gained.contains_key(agent));
        change.gained.extend(gained.keys().cloned());
        self.holders.extend(gained);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;
    use alloc::format;
    use alloc::vec;
    use proptest::prelude::*;

    fn agent(number: u64) -> AgentKey {
        AgentKey { name: format!("h{number}"), incarnation: 1 }
    }

    fn edition(root: u8) -> Edition {
        Edition { length: 7, root: Some([root; 32]) }
    }

    const SECOND: u64 = 1_000_000_000;
    const LATE: Duration = Duration(10 * SECOND);

    /// One that comes back with what all others have given up has what counts until the first of them has the
    /// new one.
    #[test]
    fn what_is_replaced_counts_no_more() {
        let mut copies = Copies::default();
        let old = Duration(100 * SECOND);
        let put = |copies: &mut Copies, at, who, what, age| {
            copies.put(Time(at * SECOND), agent(who), edition(what), age, LATE)
        };
        assert_eq!(put(&mut copies, 50, 5, 1, old), Change { gained: vec![agent(5)], outdated: false });
        assert_eq!(
            put(&mut copies, 51, 1, 2, Duration::ZERO),
            Change { gained: vec![agent(1)], outdated: true }
        );
        assert_eq!(put(&mut copies, 52, 5, 1, old).gained, []);
        // A copy of the old one that has come just now is as old as that.
        assert_eq!(put(&mut copies, 53, 6, 1, Duration::ZERO).gained, []);
        copies.remove(Time(54 * SECOND), &agent(5));
        assert_eq!(copies.holders().collect::<Vec<_>>(), [&agent(1)]);
        // Only old ones are left: they are better than nothing.
        let change = copies.remove(Time(55 * SECOND), &agent(1)).unwrap();
        assert_eq!(change, Change { gained: vec![agent(6)], outdated: false });
        assert_eq!(copies.remove(Time(55 * SECOND), &agent(1)), None);
    }

    /// One that is found to be older than what counts makes way for it.
    #[test]
    fn an_edition_is_as_old_as_its_oldest_copy() {
        let mut copies = Copies::default();
        let at = Time(10 * SECOND);
        copies.put(at, agent(1), edition(1), Duration(SECOND), LATE);
        copies.put(at, agent(2), edition(2), Duration(2 * SECOND), LATE);
        assert!(!copies.has(&agent(2)));
        let change = copies.put(at, agent(3), edition(1), Duration(30 * SECOND), LATE);
        assert_eq!(change, Change { gained: vec![agent(2)], outdated: true });
    }

    /// An edition that returns long after all agents had given it up is young again; one that is reported a
    /// little late is not.
    #[test]
    fn what_comes_again_is_new() {
        for (at, counts) in [(5, false), (20, true)] {
            let mut copies = Copies::default();
            let put = |copies: &mut Copies, at, who, what| {
                copies.put(Time(at * SECOND), agent(who), edition(what), Duration::ZERO, LATE)
            };
            put(&mut copies, 1, 1, 1);
            copies.remove(Time(2 * SECOND), &agent(1));
            put(&mut copies, 3, 2, 2);
            put(&mut copies, at, 3, 1);
            assert_eq!(copies.has(&agent(3)), counts, "at {at} s");
        }
    }

    proptest! {
        /// Whatever is said, holders have one edition, no one else has a younger one, and no agent is lost.
        #[test]
        fn the_youngest_counts(words in prop::collection::vec((0..6_u64, 0..5_u8, 0..50_u64, 0..4_u8), 0..60)) {
            let mut copies = Copies::default();
            let mut model: BTreeMap<AgentKey, Edition> = BTreeMap::new();
            let mut born: BTreeMap<Edition, i128> = BTreeMap::new();
            for (now, (who, root, age, what)) in words.into_iter().enumerate() {
                if what == 0 {
                    let removed = copies.remove(Time(now as u64), &agent(who));
                    prop_assert_eq!(removed.is_some(), model.remove(&agent(who)).is_some());
                } else {
                    model.insert(agent(who), edition(root));
                    let at = now as i128 - i128::from(age);
                    born.entry(edition(root)).and_modify(|known| *known = at.min(*known)).or_insert(at);
                    copies.put(Time(now as u64), agent(who), edition(root), Duration(age), LATE);
                }
                let best = model.values().max_by_key(|edition| (born[edition], **edition));
                let have = |agent: &&AgentKey| Some(&model[*agent]) == best;
                let expected: Vec<&AgentKey> = model.keys().filter(have).collect();
                prop_assert_eq!(copies.holders().collect::<Vec<_>>(), expected);
                prop_assert_eq!(copies.all().collect::<BTreeSet<_>>(), model.keys().collect());
            }
        }
    }
}
