//! Queueing time of packets on the way to a receiver.
//!
//! The receiver reports when a packet reached its host, in its own clock; the sender knows when it left, in
//! its own. The difference of the two clocks is not known, but it hardly changes: the smallest difference of
//! the last seconds is that of an empty path, and what exceeds it is time spent in queues. It does not matter
//! if the receiver or the sender was late to read the packet.

use polycast_types::{Duration, Time};

/// The smallest difference is forgotten after one to two of these, so that drifting clocks do no harm.
const BASE_SPAN: Duration = Duration::from_secs(10);

/// Rates are counted over at least this.
const RATE_SPAN: Duration = Duration::from_millis(20);
/// A queue shorter than this is none.
const QUIET: Duration = Duration::from_micros(500);

/// Queueing on the path to one receiver.
#[derive(Clone, Debug, Default)]
pub struct PathDelay {
    /// Smallest differences of the present and the last span, in nanoseconds.
    base: [Option<i64>; 2],
    since: Time,
    queue: Duration,
    /// The shortest queue since it was last asked for.
    standing: Option<Duration>,
    /// Time of arrival and packets received when the rate was last counted.
    counted: Option<(Time, u64)>,
    /// Packets a second that reached the host lately, and the most that ever did; 0 as long as that is not
    /// known.
    rate: u64,
    best_rate: u64,
    /// Shortest queue since the rate was last counted.
    least: Option<Duration>,
    shared: bool,
    /// Longest queues of the present and the last span, and of the present round.
    peak: [Duration; 2],
    longest: Duration,
}

impl PathDelay {
    /// A packet left at `sent` by our clock and reached the host at `arrived` by its own.
    pub fn observe(&mut self, now: Time, sent: Time, arrived: Time) {
        let difference = (arrived.0 as i64).wrapping_sub(sent.0 as i64);
        if now.since(self.since) >= BASE_SPAN {
            self.base = [None, self.base[0]];
            self.peak = [Duration::ZERO, self.peak[0]];
            self.since = now;
        }
        let young = self.base[0].map_or(difference, |base| base.min(difference));
        self.base[0] = Some(young);
        let base = self.base[1].map_or(young, |old| old.min(young));
        self.queue = Duration(difference.saturating_sub(base).max(0) as u64);
        self.longest = self.longest.max(self.queue);
        self.least = Some(self.least.map_or(self.queue, |least| least.min(self.queue)));
        self.peak[0] = self.peak[0].max(self.queue);
        self.standing = Some(self.standing.map_or(self.queue, |least| least.min(self.queue)));
    }

    /// `received` packets in all had come when one arrived at `arrived`, by the receiver's clock.
    pub fn count(&mut self, arrived: Time, received: u64) {
        let Some((at, before)) = self.counted else {
            self.counted = Some((arrived, received));
            return;
        };
        let span = arrived.since(at);
        if span >= RATE_SPAN {
            self.rate = received.saturating_sub(before).saturating_mul(1_000_000_000) / span.0;
            self.best_rate = self.best_rate.max(self.rate);
            let busy = self.least.take().is_some_and(|least| least > QUIET);
            self.shared = busy && self.rate.saturating_mul(20) < self.best_rate.saturating_mul(17);
            self.counted = Some((arrived, received));
        }
    }

    /// Returns true if others use the path too: lately its queue was never empty, and yet less reached the
    /// host than at other times (below 85 %).
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.shared
    }

    /// The most packets a second that ever reached the host.
    #[must_use]
    pub fn best_rate(&self) -> u64 {
        self.best_rate
    }

    /// Returns true while more than half of that rate reaches the host.
    #[must_use]
    pub fn has_share(&self) -> bool {
        self.rate > self.best_rate / 2
    }

    /// The longest queue since [`PathDelay::take_quiet`] was last asked.
    #[must_use]
    pub fn longest(&self) -> Duration {
        self.longest
    }

    /// Returns true if the queue stayed far below its recent peak since the last call: losses in that time
    /// were not due to a full queue.
    pub fn take_quiet(&mut self) -> bool {
        let peak = self.peak[0].max(self.peak[1]);
        core::mem::take(&mut self.longest) <= (peak / 2).max(QUIET)
    }

    /// The shortest queue since the last call: what stands there, without bursts.
    pub fn take_standing(&mut self) -> Option<Duration> {
        self.standing.take()
    }

    /// Returns the queueing time of the last packet that was reported.
    #[must_use]
    pub fn queue(&self) -> Duration {
        self.queue
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Time {
        Time(1) + Duration::from_millis(n)
    }

    #[test]
    fn what_exceeds_the_smallest_difference_has_queued() {
        let mut path = PathDelay::default();
        // The receiver's clock is 500 s behind or ahead of ours: it does not matter.
        for skew in [0, 500_000] {
            let mut path = PathDelay::default();
            path.observe(ms(600_010), ms(600_000), ms(100_003 + skew));
            assert_eq!(path.queue(), Duration::ZERO);
            path.observe(ms(600_030), ms(600_020), ms(100_028 + skew));
            assert_eq!(path.queue(), Duration::from_millis(5));
        }
        // However late the report comes.
        path.observe(ms(900), ms(10), ms(11));
        path.observe(ms(990), ms(20), ms(23));
        assert_eq!(path.queue(), Duration::from_millis(2));
    }

    #[test]
    fn clocks_may_drift() {
        let mut path = PathDelay::default();
        for second in 0..100 {
            // One gains 100 microseconds a second.
            let sent = ms(1_000 * second);
            path.observe(sent, sent, Time(sent.0 + 100_000 * second));
        }
        assert!(path.queue() <= Duration::from_millis(2), "{}", path.queue());
    }

    /// A path that has carried 100 packets a millisecond, and then 20 ms of fewer, behind a queue of so many
    /// microseconds.
    fn after_best(packets: u64, queue_us: u64) -> PathDelay {
        let mut path = PathDelay::default();
        path.count(ms(0), 500);
        path.observe(ms(1), ms(0), ms(0));
        // What comes too soon after the last count is counted with what follows.
        path.count(ms(19), 2_300);
        assert_eq!(path.best_rate(), 0);
        path.count(ms(20), 2_500);
        assert!(path.best_rate() == 100_000 && path.has_share() && !path.is_shared());
        path.observe(ms(30), ms(29), ms(29) + Duration::from_micros(queue_us));
        path.observe(ms(31), ms(30), ms(30) + Duration::from_micros(queue_us + 700));
        path.count(ms(40), 2_500 + packets);
        assert_eq!(path.best_rate(), 100_000);
        path
    }

    #[test]
    fn others_are_seen_where_less_comes_through_a_queue_that_is_never_empty() {
        assert!(after_best(1_699, 501).is_shared());
        assert!(!after_best(1_700, 501).is_shared(), "85 % are as much as ever");
        assert!(!after_best(1_699, 500).is_shared(), "there was room");
        let mut path = after_best(100, 5_000);
        path.count(ms(60), 2_700);
        assert!(!path.is_shared(), "nothing is known of the queue since");
    }

    #[test]
    fn more_than_half_of_what_a_path_carries_is_a_share() {
        assert!(after_best(1_001, 0).has_share());
        assert!(!after_best(1_000, 0).has_share());
    }

    #[test]
    fn what_stands_is_the_shortest_queue_and_a_round_is_quiet_far_from_the_longest() {
        let mut path = PathDelay::default();
        let queues = |path: &mut PathDelay, at: u64, queues_us: &[u64]| {
            let arrived = |us: &u64| ms(at) + Duration::from_micros(*us);
            queues_us.iter().for_each(|us| path.observe(ms(at), ms(at), arrived(us)));
            let stands = path.take_standing().map(|queue| queue.0 / 1_000);
            (stands, path.longest().0 / 1_000, path.take_quiet())
        };
        assert_eq!(queues(&mut path, 1, &[0, 400]), (Some(0), 400, true), "hardly a queue");
        assert_eq!(queues(&mut path, 2, &[3_000, 8_000, 5_000]), (Some(3_000), 8_000, false));
        assert_eq!(queues(&mut path, 3, &[4_001]), (Some(4_001), 4_001, false));
        assert_eq!(queues(&mut path, 4, &[4_000]), (Some(4_000), 4_000, true), "half of the longest");
        assert_eq!(queues(&mut path, 5, &[]), (None, 0, true));
        // The longest and the shortest way are remembered for one to two spans.
        assert_eq!(queues(&mut path, 10_001, &[4_001]), (Some(4_001), 4_001, false));
        assert_eq!(queues(&mut path, 20_001, &[4_500]), (Some(499), 499, true));
    }
}
