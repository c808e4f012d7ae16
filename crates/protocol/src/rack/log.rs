//! A row of numbered changes of which only the newest of each session is kept, and its way to a follower.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::ops::Bound;
use polycast_types::Time;
use polycast_wire::rack::{Name, Rack, Update, Updates};

use super::FeedConfig;

/// The newest change of a session.
#[derive(Debug)]
struct Entry {
    session: u32,
    /// Empty: the session has no label any more.
    label: Box<[u8]>,
}

/// A row of changes.
#[derive(Debug, Default)]
pub(super) struct Log {
    entries: BTreeMap<u64, Entry>,
    numbers: BTreeMap<u32, u64>,
    /// Numbers of the entries without a label.
    removed: BTreeSet<u64>,
    /// Bytes of all labels.
    label_bytes: usize,
    head: u64,
    /// The last number of those that were forgotten: a receiver that is not so far cannot go on from where it
    /// is.
    floor: u64,
}

impl Log {
    /// Appends a change; the number of the session's change before, which it replaces.
    pub(super) fn set(&mut self, number: u64, session: u32, label: &[u8]) -> Option<u64> {
        assert!(number > self.head, "numbers rise");
        self.head = number;
        let before = self.numbers.insert(session, number);
        if let Some(before) = before {
            let replaced = self.entries.remove(&before);
            self.label_bytes -= replaced.map_or(0, |entry| entry.label.len());
            self.removed.remove(&before);
        }
        if label.is_empty() {
            self.removed.insert(number);
        }
        self.label_bytes += label.len();
        self.entries.insert(number, Entry { session, label: label.into() });
        before
    }

    /// The number of the newest change.
    pub(super) fn head(&self) -> u64 {
        self.head
    }

    /// The number of the last change that is kept: a receiver that has it has everything.
    pub(super) fn last(&self) -> u64 {
        self.entries.last_key_value().map_or(0, |(number, _)| *number)
    }

    /// Returns true if a follower that has applied this number can continue.
    fn can_resume(&self, applied: u64) -> bool {
        (self.floor..=self.head).contains(&applied)
    }

    /// Returns the number of sessions that it holds.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns true if it holds a change for the session.
    pub(super) fn has(&self, session: u32) -> bool {
        self.numbers.contains_key(&session)
    }

    /// A follower's number, where one that has all that is kept counts as being at the head.
    pub(super) fn reached(&self, applied: u64) -> u64 {
        if applied >= self.last() { self.head } else { applied }
    }

    /// Returns the number of sessions that have a label.
    pub(super) fn labelled(&self) -> usize {
        self.entries.len() - self.removed.len()
    }

    /// Returns the number of bytes that these take.
    pub(super) fn label_bytes(&self) -> usize {
        self.label_bytes
    }

    /// Returns true if the newest change of some session has this number.
    pub(super) fn keeps(&self, number: u64) -> bool {
        self.entries.contains_key(&number)
    }

    /// The last number of those that were forgotten.
    pub(super) fn floor(&self) -> u64 {
        self.floor
    }

    /// Looks whether all of it agrees.
    pub(super) fn check(&self) {
        assert_eq!(self.entries.len(), self.numbers.len(), "each session has one newest change");
        assert!(self.last() <= self.head && self.floor <= self.head, "the head is the newest number");
        assert!(self.removed.first().is_none_or(|first| *first > self.floor), "what is forgotten is gone");
        let bytes: usize = self.entries.values().map(|entry| entry.label.len()).sum();
        assert_eq!(bytes, self.label_bytes, "the bytes of all labels are counted");
        let removed = self.entries.values().filter(|entry| entry.label.is_empty()).count();
        assert_eq!(removed, self.removed.len(), "every change without a label is known as one");
        for (session, number) in &self.numbers {
            let entry = self.entries.get(number).expect("the newest change of a session is kept");
            assert_eq!(entry.session, *session, "change {number} is of one session");
            let is_removed = self.removed.contains(number);
            assert_eq!(entry.label.is_empty(), is_removed, "change {number} takes a label away or does not");
        }
    }

    /// Forgets what was taken away, once all followers know.
    pub(super) fn forget_removed(&mut self, upto: u64) {
        while let Some(&number) = self.removed.first()
            && number <= upto
        {
            self.removed.pop_first();
            if let Some(entry) = self.entries.remove(&number) {
                self.numbers.remove(&entry.session);
            }
            self.floor = number;
        }
    }
}

/// One follower's way through a log.
#[derive(Debug)]
pub(super) struct Feed {
    stream: u64,
    sent: u64,
    /// The last number that was ever sent in this stream, or that the follower had at its beginning.
    reached: u64,
    confirmed: u64,
    /// The last numbers of the datagrams on their way.
    in_flight: VecDeque<u64>,
    resend_at: Option<Time>,
    tries: u32,
}

impl Feed {
    /// From where the follower is in this stream.
    pub(super) fn new(stream: u64, confirmed: u64) -> Self {
        let in_flight = VecDeque::new();
        Feed { stream, sent: confirmed, reached: confirmed, confirmed, in_flight, resend_at: None, tries: 0 }
    }

    /// The same way of a follower that was away, from where it is. Whether that is possible.
    pub(super) fn resumed(stream: u64, reached: u64, applied: u64, log: &Log) -> Option<Self> {
        let possible = applied <= reached && log.can_resume(applied);
        possible.then(|| Feed { reached, ..Feed::new(stream, applied) })
    }

    pub(super) fn stream(&self) -> u64 {
        self.stream
    }

    /// The last number that the follower can have.
    pub(super) fn reached(&self) -> u64 {
        self.reached
    }

    pub(super) fn confirmed(&self) -> u64 {
        self.confirmed
    }

    /// The follower is so far. Whether that is possible.
    pub(super) fn confirm(&mut self, now: Time, applied: u64, config: &FeedConfig) -> bool {
        if applied > self.reached {
            return false;
        }
        if applied > self.confirmed {
            self.confirmed = applied;
            self.sent = self.sent.max(applied);
            self.tries = 0;
            while self.in_flight.front().is_some_and(|last| *last <= applied) {
                self.in_flight.pop_front();
            }
            self.resend_at = (!self.in_flight.is_empty()).then(|| now + config.retry);
        }
        true
    }

    /// The next datagram of updates, while the window is open.
    pub(super) fn next(&mut self, now: Time, log: &Log, to: Name, config: &FeedConfig) -> Option<Vec<u8>> {
        if self.resend_at.is_some_and(|at| at <= now) {
            // What is on its way is lost, or its confirmation: from the start.
            self.sent = self.confirmed;
            self.in_flight.clear();
            self.resend_at = None;
            self.tries = self.tries.saturating_add(1);
        }
        if self.in_flight.len() >= config.window.max(1) {
            return None;
        }
        let mut message = Updates::new(to, self.stream, self.sent);
        for (&number, entry) in log.entries.range((Bound::Excluded(self.sent), Bound::Unbounded)) {
            if !message.push(Update { number, session: entry.session, label: &entry.label }) {
                break;
            }
        }
        if message.updates.is_empty() {
            return None;
        }
        self.sent = message.last();
        self.reached = self.reached.max(self.sent);
        self.in_flight.push_back(self.sent);
        if self.resend_at.is_none() {
            self.resend_at = Some(now + config.retry * (1 << self.tries.min(6)));
        }
        let mut datagram = Vec::new();
        Rack::Updates(message).emit(&mut datagram);
        Some(datagram)
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        self.resend_at
    }

    /// Looks whether it agrees with itself and with the row that it leads through.
    pub(super) fn check(&self, log: &Log, config: &FeedConfig) {
        let rises = self.confirmed <= self.sent && self.sent <= self.reached && self.reached <= log.head();
        assert!(rises, "{self:?} is not in order below {}", log.head());
        assert!(self.in_flight.len() <= config.window.max(1), "the window is {}", config.window);
        assert_eq!(self.in_flight.is_empty(), self.resend_at.is_none(), "what is on its way is sent again");
        let below = core::iter::once(&self.confirmed).chain(&self.in_flight);
        assert!(below.zip(&self.in_flight).all(|(before, last)| before < last), "{self:?} is not in order");
        assert!(self.in_flight.back().is_none_or(|last| *last <= self.sent), "{self:?} has sent more");
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use alloc::vec;
    use polycast_types::Duration;
    use proptest::prelude::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    /// Returns the state of a follower after these changes, by their numbers.
    fn replayed(changes: &[(u32, bool)]) -> BTreeMap<u32, u64> {
        let mut has = BTreeMap::new();
        for (number, (session, is_member)) in (1..).zip(changes) {
            if *is_member {
                has.insert(*session, number);
            } else {
                has.remove(session);
            }
        }
        has
    }

    proptest! {
        /// A follower that was away goes on from where it is if nothing that it missed was forgotten and it
        /// has no more than it can have; it then gets all that it lacks, and nothing else can be told from
        /// what it has.
        #[test]
        fn who_was_away_goes_on_where_nothing_is_forgotten(
            changes in proptest::collection::vec((0u32..6, any::<bool>()), 1..40),
            forgotten in 0u64..40,
        ) {
            let mut log = Log::default();
            for (number, (session, is_member)) in (1..).zip(&changes) {
                log.set(number, *session, if *is_member { &[0x80] } else { &[] });
                log.check();
            }
            let has = replayed(&changes).len();
            prop_assert_eq!((log.labelled(), log.label_bytes()), (has, has));
            log.forget_removed(forgotten);
            log.check();
            prop_assert_eq!((log.labelled(), log.label_bytes()), (has, has));
            let to = Name { rack: 1, agent: None };
            let config = FeedConfig::default();
            for reached in 0..=log.head() {
                for applied in 0..=log.head() + 2 {
                    let feed = Feed::resumed(7, reached, applied, &log);
                    prop_assert_eq!(feed.is_some(), applied <= reached && applied >= log.floor());
                    let Some(mut feed) = feed else { continue };
                    prop_assert_eq!((feed.stream(), feed.reached(), feed.confirmed()), (7, reached, applied));
                    let mut has = replayed(&changes[..applied as usize]);
                    let mut numbers = vec![applied];
                    while let Some(datagram) = feed.next(Time::ZERO, &log, to, &config) {
                        let Ok(Rack::Updates(updates)) = Rack::parse(&datagram) else { panic!() };
                        for update in &updates.updates {
                            numbers.push(update.number);
                            if update.label.is_empty() {
                                has.remove(&update.session);
                            } else {
                                has.insert(update.session, update.number);
                            }
                        }
                        prop_assert!(feed.confirm(Time::ZERO + Duration(1), updates.last(), &config));
                        feed.check(&log, &config);
                    }
                    prop_assert!(numbers.is_sorted() && !feed.confirm(Time::ZERO, log.head() + 1, &config));
                    prop_assert_eq!(has, replayed(&changes));
                }
            }
        }
    }

    /// Confirmed changes were sent, sent changes are in the row, and changes on their way lie between.
    #[test]
    fn a_way_that_contradicts_itself_is_noticed() {
        let config = FeedConfig { window: 3, ..FeedConfig::default() };
        let mut log = Log::default();
        for (number, session) in (1..=9).zip(0..) {
            log.set(number, session, &[0x80]);
        }
        let feed = |confirmed, sent, reached, in_flight: &[u64]| Feed {
            stream: 1,
            sent,
            reached,
            confirmed,
            in_flight: in_flight.iter().copied().collect(),
            resend_at: (!in_flight.is_empty()).then_some(Time(1)),
            tries: 0,
        };
        let agrees = |feed: Feed| catch_unwind(AssertUnwindSafe(|| feed.check(&log, &config))).is_ok();
        assert!(
            agrees(feed(2, 5, 7, &[3, 5])) && agrees(feed(9, 9, 9, &[])) && agrees(feed(1, 4, 4, &[2, 3, 4]))
        );
        for (confirmed, sent, reached, in_flight) in [
            (6, 5, 7, &[][..]),
            (2, 8, 7, &[]),
            (2, 5, 10, &[]),
            (2, 5, 7, &[2]),
            (2, 5, 7, &[4, 3]),
            (2, 5, 7, &[4, 6]),
            (1, 6, 7, &[2, 3, 4, 5]),
        ] {
            assert!(
                !agrees(feed(confirmed, sent, reached, in_flight)),
                "{confirmed} {sent} {reached} {in_flight:?}"
            );
        }
        assert!(!agrees(Feed { resend_at: Some(Time(1)), ..feed(2, 2, 2, &[]) }));
        assert!(!agrees(Feed { resend_at: None, ..feed(2, 5, 7, &[5]) }));
    }

    /// A datagram carries as many changes as it has room for.
    #[test]
    fn changes_travel_together() {
        let mut log = Log::default();
        for (number, session) in (1..=9).zip(0..) {
            log.set(number, session, &[0x80]);
        }
        let (to, config) = (Name { rack: 1, agent: None }, FeedConfig::default());
        let mut feed = Feed::new(7, 2);
        let datagram = feed.next(Time::ZERO, &log, to, &config).unwrap();
        let Ok(Rack::Updates(updates)) = Rack::parse(&datagram) else { panic!() };
        let numbers: Vec<u64> = updates.updates.iter().map(|update| update.number).collect();
        assert_eq!(numbers, [3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(feed.next(Time::ZERO, &log, to, &config), None);
    }
}
