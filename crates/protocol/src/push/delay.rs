//! How long packets queue on the way to a receiver.
//!
//! The receiver says when a packet reached its host, in its own clock; the sender knows when it left, in its
//! own. The difference of the two clocks is not known, but it hardly changes: the smallest difference of the
//! last seconds is that of an empty path, and what exceeds it is time spent in queues. That the receiver or
//! the sender were late to look at the packet does not enter.

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

    /// Packets a second that reached the host lately; 0 as long as that is not known.
    #[must_use]
    pub fn rate(&self) -> u64 {
        self.rate
    }

    /// Whether others use the path too: lately its queue was never empty, and yet less reached the host than at
    /// other times (below 85 %).
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.shared
    }

    /// The most packets a second that ever reached the host.
    #[must_use]
    pub fn best_rate(&self) -> u64 {
        self.best_rate
    }

    /// The longest queue since [`PathDelay::take_quiet`] was last asked.
    #[must_use]
    pub fn longest(&self) -> Duration {
        self.longest
    }

    /// Whether the queue stayed far from where it has been lately, since the last call: what was lost then was
    /// not lost to a full queue.
    pub fn take_quiet(&mut self) -> bool {
        let peak = self.peak[0].max(self.peak[1]);
        core::mem::take(&mut self.longest) <= (peak / 2).max(QUIET)
    }

    /// The shortest queue since the last call: what stands there, without bursts.
    pub fn take_standing(&mut self) -> Option<Duration> {
        self.standing.take()
    }

    /// How long the last packet heard of has queued.
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
}
