//! Rate at which an upstream gives.

use polycast_types::{Duration, Time};

/// Approximate age at which bytes count half: long beside one group, short beside a transfer.
const WINDOW: Duration = Duration::from_millis(200);
/// Shortest time that shows a rate: a read brings many bytes at once.
const SPAN_MIN: Duration = Duration::from_millis(1);

/// Bytes, and the time in which they came. Time in which nothing was asked for does not count.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RateMeter {
    counted_to: Option<Time>,
    bytes: u64,
    busy: Duration,
    total: u64,
    total_busy: Duration,
}

impl RateMeter {
    /// Something was asked for: time counts from now on.
    pub(super) fn begin(&mut self, now: Time) {
        self.counted_to.get_or_insert(now);
    }

    /// So many bytes have come.
    pub(super) fn came(&mut self, now: Time, bytes: u64) {
        self.count(now);
        self.total = self.total.saturating_add(bytes);
        self.bytes = self.bytes.saturating_add(bytes);
        if self.busy >= WINDOW {
            (self.bytes, self.busy) = (self.bytes / 2, self.busy / 2);
        }
    }

    /// Nothing is asked for any more.
    pub(super) fn rest(&mut self, now: Time) {
        self.count(now);
        self.counted_to = None;
    }

    fn count(&mut self, now: Time) {
        if let Some(to) = &mut self.counted_to {
            self.busy = self.busy + now.since(*to);
            self.total_busy = self.total_busy + now.since(*to);
            *to = (*to).max(now);
        }
    }

    /// Bytes a second; `None` where too little is known.
    pub(super) fn bytes_per_s(&self) -> Option<u64> {
        let is_known = self.busy >= SPAN_MIN && self.bytes > 0;
        let rate = || u128::from(self.bytes) * 1_000_000_000 / u128::from(self.busy.0);
        is_known.then(|| u64::try_from(rate()).unwrap_or(u64::MAX).max(1))
    }

    /// Returns the time that `bytes` bytes take; `None` where that is not known.
    pub(super) fn time_of(&self, bytes: u64) -> Option<Duration> {
        let rate = self.bytes_per_s()?;
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(rate);
        Some(Duration(u64::try_from(nanos).unwrap_or(u64::MAX)))
    }

    /// All bytes that have come.
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// Time in which something was asked for, in all, as far as it is counted.
    pub(super) fn total_busy(&self) -> Duration {
        self.total_busy
    }

    /// The same up to now.
    pub(super) fn busy_until(&self, now: Time) -> Duration {
        self.total_busy + self.counted_to.map_or(Duration::ZERO, |to| now.since(to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Time {
        Time(ms * 1_000_000)
    }

    #[test]
    fn time_without_requests_does_not_count() {
        let mut rate = RateMeter::default();
        rate.begin(at(0));
        assert_eq!(rate.bytes_per_s(), None);
        rate.came(at(10), 1_000_000);
        assert_eq!(rate.bytes_per_s(), Some(100_000_000));
        rate.rest(at(10));
        rate.begin(at(5_000));
        rate.came(at(5_010), 1_000_000);
        assert_eq!(rate.bytes_per_s(), Some(100_000_000));
        assert_eq!(rate.time_of(50_000_000), Some(Duration::from_millis(500)));
    }

    #[test]
    fn a_path_that_becomes_slow_is_slow_soon() {
        let mut rate = RateMeter::default();
        rate.begin(at(0));
        (1..=1_000).for_each(|ms| rate.came(at(ms), 100_000));
        assert_eq!(rate.bytes_per_s(), Some(100_000_000));
        (1_001..=1_400).for_each(|ms| rate.came(at(ms), 10_000));
        assert!(rate.bytes_per_s() < Some(35_000_000), "{:?}", rate.bytes_per_s());
        assert_eq!(rate.total(), 104_000_000);
    }
}
