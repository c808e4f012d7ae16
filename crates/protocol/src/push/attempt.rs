//! When to probe a path that is being set up (attempt sending, Republic section III-A1).
//!
//! Attempts too far apart find a finished path late; attempts too close together are lost while circuits
//! settle, and each loss is a patch. Republic sets the interval to 1 to 3 % of the time that the path takes,
//! which somebody must know in advance. Here the interval is [`ELAPSED_PARTS`]th of the time already waited:
//! when the path comes up, that is 2 % of what it took, whatever it took.

use polycast_types::{Duration, Time};

/// The adaptive interval is the time waited, divided by this.
const ELAPSED_PARTS: u64 = 50;
/// Attempts are never closer together: a path that is up is found by the first one anyway.
const LEAST: Duration = Duration::from_micros(100);
/// Attempts are never further apart, however long the path takes.
const MOST: Duration = Duration::from_millis(50);

/// The time between attempts (`i_a`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptInterval {
    /// Always the same.
    Fixed(Duration),
    /// In proportion to the time already waited.
    Adaptive,
}

impl From<Duration> for AttemptInterval {
    fn from(interval: Duration) -> Self {
        AttemptInterval::Fixed(interval)
    }
}

impl AttemptInterval {
    /// How long to wait after an attempt at `now`, where the last receiver began to listen at `since`.
    #[must_use]
    pub fn after(self, now: Time, since: Time) -> Duration {
        match self {
            AttemptInterval::Fixed(interval) => interval,
            AttemptInterval::Adaptive => (now.since(since) / ELAPSED_PARTS).clamp(LEAST, MOST),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The attempts until a path comes up after `setup`, and how much later the first one arrives.
    fn probe(interval: AttemptInterval, setup: Duration) -> (u64, Duration) {
        let (start, mut now, mut attempts) = (Time(7), Time(7), 0);
        while now.since(start) < setup {
            attempts += 1;
            now += interval.after(now, start);
        }
        (attempts, now.since(start) - setup)
    }

    #[test]
    fn the_delay_is_a_fiftieth_of_the_set_up_whatever_that_is() {
        for millis in [1, 10, 60, 300, 1_000] {
            let setup = Duration::from_millis(millis);
            let (attempts, late) = probe(AttemptInterval::Adaptive, setup);
            assert!(late <= (setup / ELAPSED_PARTS).max(LEAST), "{late} late after {setup}");
            // Logarithmic in the set-up time, where a fixed interval of 1 % of 1 ms would need thousands.
            assert!(attempts <= 400, "{attempts} attempts in {setup}");
        }
        assert_eq!(probe(AttemptInterval::Adaptive, Duration::ZERO), (0, Duration::ZERO));
    }

    #[test]
    fn a_fixed_interval_stays() {
        let fixed = AttemptInterval::from(Duration::from_millis(2));
        assert_eq!(probe(fixed, Duration::from_millis(60)), (30, Duration::ZERO));
        assert_eq!(fixed.after(Time(1 << 40), Time(0)), Duration::from_millis(2));
    }

    #[test]
    fn the_interval_has_bounds() {
        let after = |nanos| AttemptInterval::Adaptive.after(Time(nanos), Time(0));
        assert_eq!(after(0), LEAST);
        assert_eq!(after(u64::MAX), MOST);
        assert_eq!(AttemptInterval::Adaptive.after(Time(0), Time(5)), LEAST);
    }
}
