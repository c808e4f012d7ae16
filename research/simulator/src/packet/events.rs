//! The queue of events, in exact order of (time, sequence of scheduling).
//!
//! A wheel of buckets holds the near future and a heap what lies beyond it. A bucket is filled in the
//! order of scheduling, so a stable sort by time alone, done when the bucket becomes the current one,
//! gives the exact order without a sequence number in each entry. What is scheduled into the current
//! bucket goes to a small heap; it comes after what has the same time and was there before.

use alloc::collections::BinaryHeap;
use alloc::vec::Vec;
use core::cmp::Ordering;
use polycast_types::Time;

/// A bucket spans 2^8 ns.
const BUCKET_SHIFT: u32 = 8;
/// Buckets of the wheel: 1 ms ahead. 64 words of 64 bits say which hold something.
const BUCKETS: u64 = 4_096;
const WORDS: usize = 64;
/// Above this many entries a bucket is sorted by counting.
const COUNTING_FROM: usize = 24;
/// Emptied buckets whose room is kept.
const SPARE_MAX: usize = 1_024;

/// An entry of a heap; the heap gives the earliest first.
struct Waiting<E> {
    time: u64,
    sequence: u64,
    event: E,
}

impl<E> PartialEq for Waiting<E> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl<E> Eq for Waiting<E> {}
impl<E> PartialOrd for Waiting<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl<E> Ord for Waiting<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.time, other.sequence).cmp(&(self.time, self.sequence))
    }
}

type Bucket<E> = Vec<(u64, Option<E>)>;

/// Events by time; those of one time in the order in which they were scheduled.
pub(super) struct EventQueue<E> {
    wheel: Vec<Bucket<E>>,
    /// Bits of the wheel's buckets that hold something, and of the words that do.
    occupied: [u64; WORDS],
    occupied_words: u64,
    /// Number of the current bucket since time zero.
    cursor: u64,
    current: Bucket<E>,
    /// Indices into `current` in order of time; those before `taken` are done.
    order: Vec<u32>,
    taken: usize,
    late: BinaryHeap<Waiting<E>>,
    beyond: BinaryHeap<Waiting<E>>,
    spare: Vec<Bucket<E>>,
    sequence: u64,
    len: usize,
}

impl<E> EventQueue<E> {
    pub(super) fn new() -> Self {
        EventQueue {
            wheel: (0..BUCKETS).map(|_| Vec::new()).collect(),
            occupied: [0; WORDS],
            occupied_words: 0,
            cursor: 0,
            current: Vec::new(),
            order: Vec::new(),
            taken: 0,
            late: BinaryHeap::new(),
            beyond: BinaryHeap::new(),
            spare: Vec::new(),
            sequence: 0,
            len: 0,
        }
    }

    /// Returns the number of events that wait.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Schedules an event. The time must not lie before that of the last event taken.
    #[inline]
    pub(super) fn push(&mut self, time: Time, event: E) {
        self.len += 1;
        let bucket = time.0 >> BUCKET_SHIFT;
        if bucket > self.cursor && bucket - self.cursor < BUCKETS {
            self.put(bucket, time.0, event);
            return;
        }
        assert!(bucket >= self.cursor, "an event at {time:?} lies in the past");
        self.sequence += 1;
        let waiting = Waiting { time: time.0, sequence: self.sequence, event };
        if bucket == self.cursor { self.late.push(waiting) } else { self.beyond.push(waiting) }
    }

    #[inline]
    fn put(&mut self, bucket: u64, time: u64, event: E) {
        let index = (bucket % BUCKETS) as usize;
        let entries = &mut self.wheel[index];
        if entries.is_empty() {
            self.occupied[index / 64] |= 1 << (index % 64);
            self.occupied_words |= 1 << (index / 64);
            if entries.capacity() == 0
                && let Some(spare) = self.spare.pop()
            {
                *entries = spare;
            }
        }
        entries.push((time, Some(event)));
    }

    /// Takes the next event, unless it lies after `until`.
    #[inline]
    pub(super) fn pop(&mut self, until: Time) -> Option<(Time, E)> {
        loop {
            if let Some(&index) = self.order.get(self.taken) {
                let (time, event) = &mut self.current[index as usize];
                let time = *time;
                if self.late.peek().is_none_or(|late| time <= late.time) {
                    if time > until.0 {
                        return None;
                    }
                    self.taken += 1;
                    self.len -= 1;
                    return Some((Time(time), event.take().expect("an entry is taken once")));
                }
            }
            if let Some(late) = self.late.peek() {
                if late.time > until.0 {
                    return None;
                }
                let late = self.late.pop().expect("looked at above");
                self.len -= 1;
                return Some((Time(late.time), late.event));
            }
            let next = self.next_bucket()?;
            if next << BUCKET_SHIFT > until.0 {
                return None;
            }
            self.open(next);
        }
    }

    /// The next bucket that holds something, in the wheel or beyond it.
    fn next_bucket(&self) -> Option<u64> {
        if self.occupied_words == 0 {
            return self.beyond.peek().map(|waiting| waiting.time >> BUCKET_SHIFT);
        }
        let start = ((self.cursor + 1) % BUCKETS) as usize;
        let index = self.first_occupied(start);
        let ahead = (index + BUCKETS as usize - start) % BUCKETS as usize;
        Some(self.cursor + 1 + ahead as u64)
    }

    /// The first occupied index from `start` on, round the wheel; there is one.
    fn first_occupied(&self, start: usize) -> usize {
        let word = start / 64;
        let rest = self.occupied[word] & (u64::MAX << (start % 64));
        if rest != 0 {
            return word * 64 + rest.trailing_zeros() as usize;
        }
        let above = if word == 63 { 0 } else { self.occupied_words & (u64::MAX << (word + 1)) };
        let words = if above != 0 { above } else { self.occupied_words };
        let word = words.trailing_zeros() as usize;
        word * 64 + self.occupied[word].trailing_zeros() as usize
    }

    /// Makes `bucket` the current one, and moves into the wheel what now lies within its reach.
    fn open(&mut self, bucket: u64) {
        self.cursor = bucket;
        while self.beyond.peek().is_some_and(|w| (w.time >> BUCKET_SHIFT) - bucket < BUCKETS) {
            let waiting = self.beyond.pop().expect("looked at above");
            self.put(waiting.time >> BUCKET_SHIFT, waiting.time, waiting.event);
        }
        let index = (bucket % BUCKETS) as usize;
        self.occupied[index / 64] &= !(1 << (index % 64));
        if self.occupied[index / 64] == 0 {
            self.occupied_words &= !(1 << (index / 64));
        }
        let mut done = core::mem::replace(&mut self.current, core::mem::take(&mut self.wheel[index]));
        done.clear();
        if done.capacity() > 0 && self.spare.len() < SPARE_MAX {
            self.spare.push(done);
        }
        self.taken = 0;
        sort(&self.current, &mut self.order);
    }
}

/// The indices of the entries in order of time; entries of one time keep their order.
fn sort<E>(entries: &Bucket<E>, order: &mut Vec<u32>) {
    order.clear();
    if entries.len() < COUNTING_FROM {
        order.extend(0..entries.len() as u32);
        for at in 1..order.len() {
            let mut to = at;
            while to > 0 && entries[order[to - 1] as usize].0 > entries[order[to] as usize].0 {
                order.swap(to - 1, to);
                to -= 1;
            }
        }
        return;
    }
    let offset = |time: u64| (time & ((1 << BUCKET_SHIFT) - 1)) as usize;
    let mut starts = [0u32; (1 << BUCKET_SHIFT) + 1];
    for (time, _) in entries {
        starts[offset(*time) + 1] += 1;
    }
    for at in 1..starts.len() {
        starts[at] += starts[at - 1];
    }
    *order = {
        let mut sorted = core::mem::take(order);
        sorted.resize(entries.len(), 0);
        for (index, (time, _)) in entries.iter().enumerate() {
            let at = &mut starts[offset(*time)];
            sorted[*at as usize] = index as u32;
            *at += 1;
        }
        sorted
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;
    use proptest::prelude::*;

    /// Steps of a run: schedule so many events that far ahead, or take so many.
    #[derive(Clone, Debug)]
    enum Step {
        Push(u64, u32),
        Pop(u32),
        Until(u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let ahead = prop_oneof![0u64..4, 0u64..600, 0u64..100_000, 1_000_000u64..1_100_000, 0u64..40_000_000];
        let step = prop_oneof![
            3 => (ahead.clone(), 1u32..60).prop_map(|(at, count)| Step::Push(at, count)),
            2 => (1u32..90).prop_map(Step::Pop),
            1 => ahead.prop_map(Step::Until),
        ];
        proptest::collection::vec(step, 1..60)
    }

    proptest! {
        #[test]
        fn order_is_that_of_time_and_sequence(steps in steps(), spread in 1u64..50) {
            let mut queue = EventQueue::new();
            let mut model: BTreeMap<(u64, u64), u64> = BTreeMap::new();
            let (mut now, mut sequence) = (0u64, 0u64);
            for step in steps {
                match step {
                    Step::Push(ahead, count) => for i in 0..u64::from(count) {
                        let time = now + ahead + i * i % spread;
                        sequence += 1;
                        model.insert((time, sequence), sequence);
                        queue.push(Time(time), sequence);
                    },
                    Step::Pop(count) => for _ in 0..count {
                        let expected = model.pop_first().map(|((time, _), event)| (Time(time), event));
                        prop_assert_eq!(queue.pop(Time(u64::MAX)), expected);
                        now = expected.map_or(now, |(time, _)| time.0);
                    },
                    Step::Until(ahead) => {
                        let until = now + ahead;
                        while let Some((time, event)) = queue.pop(Time(until)) {
                            let expected = model.pop_first().map(|((time, _), event)| (Time(time), event));
                            prop_assert_eq!(Some((time, event)), expected);
                        }
                        prop_assert!(model.first_key_value().is_none_or(|((time, _), _)| *time > until));
                        now = until;
                    }
                }
                prop_assert_eq!(queue.len(), model.len());
            }
        }
    }
}
