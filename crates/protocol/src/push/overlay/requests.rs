//! Requests of one connection of the overlay, and when it is notified of the groups here, at the end that
//! serves it.

use crate::bits::Bits;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::ops::Range;
use polycast_types::{Duration, RangeSet, Time};
use polycast_wire::control::WANT_MAX;

/// Number of groups that a connection may wait for at a time: as many as one WANT may request. A receiver
/// requests a quarter of that at most.
const ASKED_MAX: usize = WANT_MAX;
/// Number of ranges of groups in one message at most.
const TOLD_MAX: usize = 1_024;

/// A connection that waits for nothing is told no more often what is here: each time wakes both ends. One
/// that waits for a group is told with that group, and woken for neither alone.
const NEWS_AFTER: Duration = Duration::from_millis(2);
/// One that asks for none of what it is told gets it elsewhere: it is told half as often. More seldom, and
/// groups take so long from member to member that a thousand say that they lack them (`tests/overlay`).
const NEWS_AFTER_IDLE: Duration = Duration::from_millis(4);

/// Requests that a connection must not make; it ends with this sentence.
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
    /// Number of the groups here that it was notified of, in the order in which they came.
    told: usize,
    asked: Bits,
    waiting: VecDeque<u64>,
    /// Time when it may be notified again, where it waits for nothing, and the delay until the time after
    /// that.
    news_at: Time,
    news_after: Duration,
}

impl Requests {
    /// A connection that has asked for nothing yet, for an object of so many groups.
    #[must_use]
    pub fn new(groups: u64) -> Self {
        Requests {
            groups,
            told: 0,
            asked: Bits::new(groups),
            waiting: VecDeque::new(),
            news_at: Time::ZERO,
            news_after: NEWS_AFTER,
        }
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
            self.news_after = NEWS_AFTER;
        }
        Ok(())
    }

    /// The next group to serve.
    pub fn take(&mut self) -> Option<u64> {
        self.waiting.pop_front()
    }

    /// Returns true if it waits for nothing.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Returns true if it was not notified of all `here` groups that this end has.
    #[must_use]
    pub fn has_news(&self, here: usize) -> bool {
        self.told < here
    }

    /// Returns the time when it may be notified of the groups here, where it waits for nothing.
    #[must_use]
    pub fn news_at(&self) -> Time {
        self.news_at
    }

    /// Returns the groups to notify it of now: those that have come since the last time, of all that are here
    /// in the order in which they came. Nothing where it waits for no group and [`Requests::news_at`] has not
    /// come.
    pub fn news(&mut self, now: Time, order: &[u64]) -> Vec<Range<u64>> {
        if (self.is_idle() && now < self.news_at) || !self.has_news(order.len()) {
            return Vec::new();
        }
        self.news_at = now + self.news_after;
        self.news_after = NEWS_AFTER_IDLE;
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
        /// However groups come, and are asked for, what is told in all is what is there, each once, and none
        /// is kept back for longer than the longest time.
        #[test]
        fn each_group_is_told_once(
            steps in proptest::collection::vec((0u64..50, any::<bool>(), any::<bool>(), 0u64..50), 0..80),
        ) {
            let (mut requests, mut order, mut told) = (Requests::new(50), vec![], vec![]);
            let mut now = Time(1);
            for (group, asks, takes, ms) in steps {
                if !order.contains(&group) {
                    order.push(group);
                }
                if asks {
                    let _ = requests.ask(&[group], |group| told.contains(&group));
                }
                now += Duration::from_millis(ms);
                let (waits, at) = (!requests.is_idle(), requests.news_at());
                told.extend(requests.news(now, &order).into_iter().flatten());
                prop_assert!(at <= now + NEWS_AFTER_IDLE);
                if waits || now >= at {
                    let (mut all, mut here) = (told.clone(), order.clone());
                    all.sort_unstable();
                    here.sort_unstable();
                    prop_assert_eq!(all, here);
                }
                if takes {
                    requests.take();
                }
            }
        }

        /// One that asks for nothing is told seldom, and at once again when it has asked.
        #[test]
        fn one_that_asks_for_nothing_is_told_seldom(asks_at in 10u64..40) {
            let (mut requests, mut now, mut times) = (Requests::new(10_000), Time(1), 0);
            let told = |requests: &mut Requests, now: Time, count: u64| {
                let order: Vec<u64> = (0..count).collect();
                !requests.news(now, &order).is_empty()
            };
            for ms in 1..=1_000 {
                now = Time(ms * 1_000_000);
                times += u32::from(told(&mut requests, now, ms));
            }
            prop_assert!((240..=260).contains(&times), "{times} times in a second");
            requests.ask(&[asks_at], |_| true).unwrap();
            prop_assert!(told(&mut requests, now, 1_001), "with the group that it waits for");
            requests.take();
            prop_assert!(!told(&mut requests, now + Duration::from_millis(1), 1_002));
            prop_assert!(told(&mut requests, now + NEWS_AFTER, 1_002));
        }
    }
}
