//! Limits on what a device can bring about: connections with it, lines of the log, and other paths.

use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// A line of one kind is written at most once in this time.
const SAY: Duration = Duration::from_secs(1);
/// Limit on the changes of one thing that are reported in `CHANGES_IN`. One that breaks then works again at
/// the end of it.
const CHANGES_MAX: u32 = 8;
const CHANGES_IN: Duration = Duration::from_secs(10);

/// Pauses between tries to connect. Each is twice as long as the one before, and they begin anew only after a
/// connection that has lasted: a device that takes connections and ends them at once is called no more often
/// than one that takes none.
#[derive(Clone, Debug)]
pub struct Pauses {
    first: Duration,
    most: Duration,
    next: Duration,
}

impl Pauses {
    /// Pauses from the first to the longest one.
    #[must_use]
    pub fn new(first: Duration, most: Duration) -> Self {
        Pauses { first, most, next: first }
    }

    /// The pause before the next try.
    pub fn take(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(self.most);
        pause
    }

    /// A connection has ended that has lasted so long.
    pub fn ended(&mut self, lasted: Duration) {
        if lasted >= self.most {
            self.next = self.first;
        }
    }
}

/// Lines of the log of one kind, of which a device or a stranger can bring about as many as it likes.
#[derive(Debug, Default)]
pub struct Remarks {
    said_at: Option<Instant>,
    times: u64,
}

impl Remarks {
    /// Counts what there is to say; gives how many times that was since the last line, if this one may be
    /// written.
    pub fn count(&mut self) -> Option<u64> {
        self.times += 1;
        let is_due = self.said_at.is_none_or(|at| at.elapsed() >= SAY);
        is_due.then(|| {
            self.said_at = Some(Instant::now());
            std::mem::take(&mut self.times)
        })
    }
}

/// State of things that work or not, as it is passed on: one that breaks again and again is broken, and works
/// only after it has had ten seconds. All are taken to work at first.
#[derive(Debug)]
pub struct Damped<K>(BTreeMap<K, Changes>);

/// State of one thing, and number of times that it was reported.
#[derive(Debug)]
struct Changes {
    works: bool,
    told: bool,
    since: Instant,
    count: u32,
}

impl<K> Default for Damped<K> {
    fn default() -> Self {
        Damped(BTreeMap::new())
    }
}

impl<K: Ord + Copy> Damped<K> {
    /// Takes in whether something works; gives whether that is to be told now.
    pub fn hear(&mut self, what: K, works: bool) -> bool {
        let now = Instant::now();
        let fresh = || Changes { works: true, told: true, since: now, count: 0 };
        let changes = self.0.entry(what).or_insert_with(fresh);
        changes.works = works;
        changes.tell(now)
    }

    /// Returns the time at which a change that waits has to be reported.
    #[must_use]
    pub fn due_at(&self) -> Option<Instant> {
        let waiting = self.0.values().filter(|changes| changes.works != changes.told);
        waiting.map(|changes| changes.since + CHANGES_IN).min()
    }

    /// Returns the waiting changes that are to be reported now.
    pub fn due(&mut self) -> Vec<(K, bool)> {
        let now = Instant::now();
        let due = self
            .0
            .iter_mut()
            .filter_map(|(what, changes)| changes.tell(now).then_some((*what, changes.works)));
        due.collect()
    }
}

impl Changes {
    /// Counts a change that is told now, if there is one and it may be told.
    fn tell(&mut self, now: Instant) -> bool {
        if now - self.since >= CHANGES_IN {
            (self.since, self.count) = (now, 0);
        }
        let is_told = self.works != self.told && (self.count < CHANGES_MAX || !self.works);
        if is_told {
            (self.told, self.count) = (self.works, self.count + 1);
        }
        is_told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_begin_anew_after_a_connection_that_has_lasted() {
        let [first, most] = [20, 1_000].map(Duration::from_millis);
        let mut pauses = Pauses::new(first, most);
        let mut taken: Vec<u128> = Vec::new();
        for _ in 0..8 {
            taken.push(pauses.take().as_millis());
            // It is let in, and turned out at once.
            pauses.ended(Duration::from_millis(999));
        }
        assert_eq!(taken, [20, 40, 80, 160, 320, 640, 1_000, 1_000]);
        pauses.ended(most);
        assert_eq!(pauses.take(), first);
    }

    /// Only a few changes are reported of a link that never rests. Then it is broken for a while.
    #[tokio::test(start_paused = true)]
    async fn what_changes_again_and_again_is_told_now_and_then() {
        let mut links = Damped::default();
        assert!(!links.hear(1, true), "it was taken to work");
        let told = (0..1_002).filter(|at| links.hear(1, at % 2 == 1)).count();
        assert_eq!((told, links.due()), (9, vec![]));
        assert!(links.hear(2, false), "others are told of");
        let at = links.due_at().expect("the last change waits");
        tokio::time::sleep_until(at).await;
        assert_eq!((links.due(), links.due_at()), (vec![(1, true)], None));
        assert!(links.hear(1, false) && links.hear(2, true));
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_is_one_line_a_second() {
        let mut remarks = Remarks::default();
        assert_eq!(remarks.count(), Some(1));
        let said = (0..1_000).filter_map(|_| remarks.count()).count();
        assert_eq!(said, 0);
        tokio::time::advance(SAY).await;
        assert_eq!(remarks.count(), Some(1_001));
        assert_eq!(remarks.count(), None);
    }
}
