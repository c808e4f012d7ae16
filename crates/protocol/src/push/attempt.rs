//! When to probe a path that is being set up (attempt sending, Republic section III-A1).
//!
//! Attempts too far apart find a finished path late; attempts too close together are lost while circuits
//! settle, and each loss is a patch. Republic sets the interval to 1 to 3 % of the time that the path takes,
//! which somebody must know in advance. Here the interval is [`ELAPSED_PARTS`]th of the time already waited:
//! when the path comes up, that is 2 % of what it took, whatever it took.
//!
//! A circuit that has let one packet through may still be settling, and most of what is sent at full rate then
//! would be lost. So the adaptive sender goes on with attempts, closer together, for another fiftieth of the
//! time, and again while a receiver misses more than a quarter of them ([`Settling`]).

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

/// Attempts while the path is watched, in each span.
const WATCHING_ATTEMPTS: u64 = 8;
/// Watching ends after the time waited, divided by this: a path that always loses must not wait for ever.
const WATCHED_PARTS: u64 = 10;

/// Whether a path that has come up is watched before full rate begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Settling {
    /// Not every receiver has been reached yet.
    #[default]
    Dark,
    /// All have been reached; what they get until `until` decides.
    Watched { until: Time, span: Duration, give_up: Time },
    /// Full rate may begin.
    Settled,
}

impl Settling {
    /// Every receiver has been reached, `waited` after the start. A path that was there at once, and a fixed
    /// interval as in the paper, are not watched.
    pub(super) fn begin(
        &mut self,
        now: Time,
        waited: Duration,
        round_trip: Duration,
        interval: AttemptInterval,
    ) {
        let fiftieth = waited / ELAPSED_PARTS;
        *self = if interval == AttemptInterval::Adaptive && fiftieth >= LEAST {
            let span = fiftieth.max(round_trip + round_trip / 2).min(waited / WATCHED_PARTS);
            Settling::Watched { until: now + span, span, give_up: now + waited / WATCHED_PARTS }
        } else {
            Settling::Settled
        };
    }

    /// A span is over; `lossy` says whether a receiver missed too much in it.
    pub(super) fn judge(&mut self, now: Time, lossy: bool) {
        if let Settling::Watched { until, span, give_up } = *self
            && now >= until
        {
            *self = if lossy && now < give_up {
                Settling::Watched { until: now + span, span, give_up }
            } else {
                Settling::Settled
            };
        }
    }

    /// The time between attempts while the path is watched.
    pub(super) fn interval(self) -> Option<Duration> {
        match self {
            Settling::Watched { span, .. } => Some((span / WATCHING_ATTEMPTS).max(LEAST)),
            _ => None,
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
    fn a_path_is_watched_until_it_loses_little_or_for_a_tenth_of_the_time() {
        let (waited, trip) = (Duration::from_millis(50), Duration::from_micros(200));
        let mut settling = Settling::default();
        let mut now = Time(50_000_000);
        settling.begin(now, waited, trip, AttemptInterval::Adaptive);
        assert_eq!(settling.interval(), Some(Duration::from_micros(125)));
        settling.judge(now, false);
        assert_ne!(settling, Settling::Settled, "the span is not over");
        now += Duration::from_millis(1);
        settling.judge(now, true);
        assert_ne!(settling, Settling::Settled, "it lost");
        now += Duration::from_millis(1);
        settling.judge(now, false);
        assert_eq!((settling, settling.interval()), (Settling::Settled, None));
        settling.begin(now, waited, trip, AttemptInterval::Adaptive);
        settling.judge(now + Duration::from_millis(5), true);
        assert_eq!(settling, Settling::Settled, "enough of it");
        settling.begin(now, Duration::from_millis(1), trip, AttemptInterval::Adaptive);
        assert_eq!(settling, Settling::Settled, "it was there at once");
        settling.begin(now, waited, trip, Duration::from_millis(1).into());
        assert_eq!(settling, Settling::Settled, "the paper's way");
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
