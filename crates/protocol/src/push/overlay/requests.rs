//! What one connection of the overlay asks for, at the end that serves it.

use crate::bits::Bits;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::ops::Range;
use polycast_types::RangeSet;
use polycast_wire::control::WANT_MAX;

/// How many groups a connection may wait for at a time: as many as one WANT may ask for. A receiver asks for a quarter of that at most.
const ASKED_MAX: usize = WANT_MAX;
/// How many ranges of groups one message tells at most.
const TOLD_MAX: usize = 1_024;

/// What a connection must not ask for; it ends with this sentence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misuse {
    /// The object has fewer groups.
    #[error("it asked for group {0}, and the object has {1}: groups are counted from 0 on")]
    NoSuchGroup(u64, u64),
    /// This end has not said that it has the group.
    #[error("it asked for group {0}, which this end does not say it has")]
    NotHere(u64),
    /// It has asked for the group before.
    #[error("it asked for group {0} again: a connection brings each group once")]
    Twice(u64),
    /// It waits for too many.
    #[error("it waits for more than {ASKED_MAX} groups: ask for the next one when one has come")]
    TooMany,
}

/// The requests of one connection, in order.
#[derive(Clone, Debug)]
pub struct Requests {
    groups: u64,
    /// How many of the groups that are here it was told of, in the order in which they came.
    told: usize,
    asked: Bits,
    waiting: VecDeque<u64>,
}

impl Requests {
    /// A connection that has asked for nothing yet, for an object of so many groups.
    #[must_use]
    pub fn new(groups: u64) -> Self {
        Requests { groups, told: 0, asked: Bits::new(groups), waiting: VecDeque::new() }
    }

    /// Takes in what the other end asks for; `is_here` says which groups it was told of.
    ///
    /// # Errors
    /// It asks for what it must not: the connection ends.
    pub fn ask(&mut self, groups: &[u64], is_here: impl Fn(u64) -> bool) -> Result<(), Misuse> {
        for &group in groups {
            if group >= self.groups {
                return Err(Misuse::NoSuchGroup(group, self.groups));
            }
            if !is_here(group) {
                return Err(Misuse::NotHere(group));
            }
            if self.waiting.len() >= ASKED_MAX {
                return Err(Misuse::TooMany);
            }
            if !self.asked.set(group, true) {
                return Err(Misuse::Twice(group));
            }
            self.waiting.push_back(group);
        }
        Ok(())
    }

    /// The next group to serve.
    pub fn take(&mut self) -> Option<u64> {
        self.waiting.pop_front()
    }

    /// Whether it waits for nothing.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty()
    }

    /// What it is to be told: groups that have come since the last call, of all that are here in the order in which they came.
    pub fn news(&mut self, order: &[u64]) -> Vec<Range<u64>> {
        let mut news = RangeSet::new();
        while let Some(&group) = order.get(self.told)
            && news.range_count() < TOLD_MAX
        {
            news.insert(group..group + 1);
            self.told += 1;
        }
        news.iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use proptest::prelude::*;

    #[test]
    fn what_must_not_be_asked_ends_the_connection() {
        let mut requests = Requests::new(100);
        let is_here = |group| group != 7;
        assert_eq!(requests.ask(&[100], is_here), Err(Misuse::NoSuchGroup(100, 100)));
        assert_eq!(requests.ask(&[7], is_here), Err(Misuse::NotHere(7)));
        assert_eq!(requests.ask(&[3, 3], is_here), Err(Misuse::Twice(3)));
        assert_eq!(requests.take(), Some(3));
        assert_eq!(requests.ask(&[3], is_here), Err(Misuse::Twice(3)), "a thousand requests for one group");
        let all: Vec<u64> = (8..100).collect();
        assert_eq!(requests.ask(&all, is_here), Err(Misuse::TooMany));
        let served: Vec<u64> = core::iter::from_fn(|| requests.take()).collect();
        assert_eq!(served, (8..8 + ASKED_MAX as u64).collect::<Vec<_>>(), "in order, and no more");
    }

    proptest! {
        /// However groups come, what is told in all is what is there, each once.
        #[test]
        fn each_group_is_told_once(steps in proptest::collection::vec((0u64..50, any::<bool>()), 0..80)) {
            let (mut requests, mut order, mut told) = (Requests::new(50), vec![], vec![]);
            for (group, tells) in steps {
                if !order.contains(&group) {
                    order.push(group);
                }
                if tells {
                    told.extend(requests.news(&order).into_iter().flatten());
                    let (mut all, mut here) = (told.clone(), order.clone());
                    all.sort_unstable();
                    here.sort_unstable();
                    prop_assert_eq!(all, here);
                }
            }
        }
    }
}
