//! An ordered set of `u64`, kept as maximal half-open ranges.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;

/// An ordered set of numbers, stored as disjoint, non-adjacent half-open ranges.
///
/// Used for the fragments that a receiver has and the ones that it misses: losses come in runs, so
/// the number of ranges stays small. All operations take `O(log n + k)` where `k` ranges are touched.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct RangeSet {
    /// Ends (exclusive) by start; no two ranges touch.
    ranges: BTreeMap<u64, u64>,
    /// Sum of all ranges' lengths.
    len: u64,
}

impl RangeSet {
    /// The empty set.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the number of values in the set.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns true if the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the number of maximal ranges in the set.
    #[must_use]
    pub fn range_count(&self) -> usize {
        self.ranges.len()
    }

    /// Returns true if `value` is in the set.
    #[must_use]
    pub fn contains(&self, value: u64) -> bool {
        self.run_at(value).is_some()
    }

    /// Returns true if the whole of `range` is in the set; an empty range always is.
    #[must_use]
    pub fn covers(&self, range: Range<u64>) -> bool {
        range.is_empty() || self.run_at(range.start).is_some_and(|run| run.end >= range.end)
    }

    /// The maximal range of the set that holds `value`.
    #[must_use]
    pub fn run_at(&self, value: u64) -> Option<Range<u64>> {
        let (&start, &end) = self.ranges.range(..=value).next_back()?;
        (value < end).then_some(start..end)
    }

    /// Adds `range` and returns how many numbers were new.
    pub fn insert(&mut self, range: Range<u64>) -> u64 {
        if range.is_empty() {
            return 0;
        }
        let before = self.len;
        let (mut start, mut end) = (range.start, range.end);
        if let Some((&s, &e)) = self.ranges.range(..=start).next_back()
            && e >= start
        {
            if e >= end {
                return 0;
            }
            // The common case of a receiver in order: the last range grows.
            start = s;
            self.len -= e - s;
            self.ranges.remove(&s);
        }
        while let Some((&s, &e)) = self.ranges.range(start..=end).next() {
            end = end.max(e);
            self.len -= e - s;
            self.ranges.remove(&s);
        }
        self.ranges.insert(start, end);
        self.len += end - start;
        self.len - before
    }

    /// Takes `range` out and returns how many numbers were in the set.
    pub fn remove(&mut self, range: Range<u64>) -> u64 {
        if range.is_empty() {
            return 0;
        }
        let before = self.len;
        if let Some((&s, &e)) = self.ranges.range(..range.start).next_back()
            && e > range.start
        {
            self.ranges.insert(s, range.start);
            self.len -= e - range.start;
            if e > range.end {
                self.ranges.insert(range.end, e);
                self.len += e - range.end;
                return before - self.len;
            }
        }
        while let Some((&s, &e)) = self.ranges.range(range.clone()).next() {
            self.ranges.remove(&s);
            self.len -= e - s;
            if e > range.end {
                self.ranges.insert(range.end, e);
                self.len += e - range.end;
            }
        }
        before - self.len
    }

    /// The maximal ranges in rising order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Range<u64>> + '_ {
        self.ranges.iter().map(|(&s, &e)| s..e)
    }

    /// The parts of the set that lie inside `within`, in rising order.
    pub fn iter_within(&self, within: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let first = self.ranges.range(..=within.start).next_back().map_or(within.start, |(&s, _)| s);
        let (start, end) = (within.start, within.end);
        self.ranges
            .range(first..end.max(first))
            .map(move |(&s, &e)| s.max(start)..e.min(end))
            .filter(|r| !r.is_empty())
    }

    /// The parts of `within` that the set lacks, in rising order.
    #[must_use]
    pub fn gaps(&self, within: Range<u64>) -> Vec<Range<u64>> {
        let mut gaps = Vec::new();
        let mut at = within.start;
        for run in self.iter_within(within.clone()) {
            if run.start > at {
                gaps.push(at..run.start);
            }
            at = run.end;
        }
        if at < within.end {
            gaps.push(at..within.end);
        }
        gaps
    }

    /// The first number at or after `from` that the set lacks.
    #[must_use]
    pub fn first_missing(&self, from: u64) -> u64 {
        self.run_at(from).map_or(from, |run| run.end)
    }

    /// The first number at or after `from` that is in the set.
    #[must_use]
    pub fn first_present(&self, from: u64) -> Option<u64> {
        if self.contains(from) {
            return Some(from);
        }
        self.ranges.range(from..).next().map(|(&s, _)| s)
    }

    /// The smallest range's start.
    #[must_use]
    pub fn first(&self) -> Option<u64> {
        self.ranges.keys().next().copied()
    }

    /// Takes all numbers out.
    pub fn clear(&mut self) {
        self.ranges.clear();
        self.len = 0;
    }
}

impl fmt::Debug for RangeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

impl FromIterator<Range<u64>> for RangeSet {
    fn from_iter<I: IntoIterator<Item = Range<u64>>>(ranges: I) -> Self {
        let mut set = RangeSet::new();
        for range in ranges {
            set.insert(range);
        }
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;
    use alloc::vec;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Insert(Range<u64>),
        Remove(Range<u64>),
    }

    fn range() -> impl Strategy<Value = Range<u64>> {
        (0u64..60, 0u64..12).prop_map(|(s, n)| s..s + n)
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![range().prop_map(Step::Insert), range().prop_map(Step::Remove)]
    }

    proptest! {
        /// Any sequence of operations agrees with a plain set of numbers.
        #[test]
        fn agrees_with_a_plain_set(steps in proptest::collection::vec(step(), 0..60), probe in range()) {
            let mut set = RangeSet::new();
            let mut model = BTreeSet::new();
            for step in steps {
                match step {
                    Step::Insert(r) => {
                        let new = r.clone().filter(|v| model.insert(*v)).count() as u64;
                        prop_assert_eq!(set.insert(r), new);
                    }
                    Step::Remove(r) => {
                        let gone = r.clone().filter(|v| model.remove(v)).count() as u64;
                        prop_assert_eq!(set.remove(r), gone);
                    }
                }
                prop_assert_eq!(set.len(), model.len() as u64);
            }
            let flat: Vec<u64> = set.iter().flatten().collect();
            prop_assert_eq!(flat, model.iter().copied().collect::<Vec<_>>());
            let runs: Vec<_> = set.iter().collect();
            prop_assert!(runs.windows(2).all(|w| w[0].end < w[1].start), "ranges touch: {:?}", runs);
            prop_assert_eq!(set.covers(probe.clone()), probe.clone().all(|v| model.contains(&v)));
            let inside: Vec<u64> = set.iter_within(probe.clone()).flatten().collect();
            prop_assert_eq!(inside, probe.clone().filter(|v| model.contains(v)).collect::<Vec<_>>());
            let gaps: Vec<u64> = set.gaps(probe.clone()).into_iter().flatten().collect();
            prop_assert_eq!(gaps, probe.clone().filter(|v| !model.contains(v)).collect::<Vec<_>>());
            let missing = (probe.start..).find(|v| !model.contains(v)).unwrap();
            prop_assert_eq!(set.first_missing(probe.start), missing);
            prop_assert_eq!(set.first_present(probe.start), model.range(probe.start..).next().copied());
        }
    }

    #[test]
    fn neighbours_merge() {
        let mut set: RangeSet = [0..2, 4..6].into_iter().collect();
        assert_eq!(set.insert(2..4), 2);
        assert_eq!(set.iter().collect::<Vec<_>>(), vec![0..6]);
    }
}
