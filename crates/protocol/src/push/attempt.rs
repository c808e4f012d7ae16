//! Timing of probes on a path that is being set up (attempt sending, Republic section III-A1).
//!
//! Attempts too far apart find a finished path late; attempts too close together are lost while circuits
//! settle, and each loss is a patch. Republic sets the interval to 1 to 3 % of the time that the path takes,
//! which has to be known in advance. Here the interval is [`ELAPSED_PARTS`]th of the time already waited:
//! when the path comes up, that is 2 % of what it took, whatever it took.
//!
//! A circuit that has let one packet through may still be settling, and lose much of what follows. To wait
//! and watch every path would cost those that are ready. So full rate begins when every receiver has been
//! reached, as in the paper, unless one of them has missed an attempt after its first: then paths do settle
//! here, and single attempts go on until all receivers have got several in a row ([`Settling`]). Their
//! reports at full rate are checked too: when one misses more than a quarter, attempts begin again. Patches
//! wait as well.

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
    /// The same, but never more than this: what the fabric knows of its set-up times.
    AdaptiveUpTo(Duration),
}

impl From<Duration> for AttemptInterval {
    fn from(interval: Duration) -> Self {
        AttemptInterval::Fixed(interval)
    }
}

impl AttemptInterval {
    /// Returns the time to wait after an attempt at `now`, where the last receiver began to listen at
    /// `since`.
    #[must_use]
    pub fn after(self, now: Time, since: Time) -> Duration {
        match self {
            AttemptInterval::Fixed(interval) => interval,
            AttemptInterval::Adaptive => (now.since(since) / ELAPSED_PARTS).clamp(LEAST, MOST),
            AttemptInterval::AdaptiveUpTo(most) => {
                (now.since(since) / ELAPSED_PARTS).clamp(LEAST, most.clamp(LEAST, MOST))
            }
        }
    }
}

/// Condition on which attempts end and the stream begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FullRate {
    /// Every receiver has been reached, and where attempts were missed all have got several in a row.
    #[default]
    Settled,
    /// Every receiver has been reached, whatever was missed: Republic's rule, to compare with.
    AllReached,
    /// One receiver has been reached: the other way that Republic's figure 8 shows, to compare with.
    FirstReached,
}

/// Attempts of a span while a path settles. A span is a fiftieth of the time waited, and at least a round
/// trip.
const SPAN_ATTEMPTS: u64 = 10;
/// A path has settled when every receiver has got so many packets in a row: one that loses half does so once
/// in 64. Each of them costs a tenth of a round trip, and full rate too early a few round trips, so that more
/// would not pay.
pub(super) const CLEAN_PACKETS: u64 = 6;
/// A path may take so long to settle, however soon its first packets came.
const SETTLING_TIME: Duration = Duration::from_millis(10);
/// Attempts while a path settles are never closer together ..
const SETTLING_LEAST: Duration = Duration::from_micros(50);
/// .. and leave room for so many packets.
const SETTLING_PACKETS: u64 = 4;
/// A shared path that was there sooner and has lost nothing has nothing that must settle.
const WAITED_MIN: Duration = Duration::from_millis(2);

/// For how long the path was waited for, and the round trip over it.
pub(super) type Waited = (Duration, Duration);

/// State of a path that has come up, which decides if it may take the full rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Settling {
    /// Not every receiver has been reached yet.
    #[default]
    Dark,
    /// Full rate, but what receivers miss is looked at; until `until`.
    Proving { until: Time, interval: Duration },
    /// Some receiver missed too much: single attempts, until all get them or until `until`.
    Waiting { until: Time, interval: Duration },
    /// Full rate, and losses are the business of patches.
    Settled,
}

impl Settling {
    /// Every receiver has been reached, `waited` after the start; `lossy` if attempts have shown that the
    /// path still loses, `packet_time` is what one takes on a dedicated path. A path is given as long again
    /// to settle, and at least 10 ms: one that always loses must not wait without an end.
    pub(super) fn begin(
        &mut self,
        now: Time,
        (waited, round_trip): Waited,
        packet_time: Option<Duration>,
        lossy: bool,
    ) {
        let span = (waited / ELAPSED_PARTS).max(round_trip);
        let room = packet_time.unwrap_or_default() * SETTLING_PACKETS;
        let interval = (span / SPAN_ATTEMPTS).max(SETTLING_LEAST).max(room);
        let until = now + waited.max(SETTLING_TIME);
        // On a shared path early losses are rather those of congestion, or of a receiver that is slow to
        // begin.
        *self = match (lossy, packet_time.is_some() || waited >= WAITED_MIN) {
            (true, _) => Settling::Waiting { until, interval },
            (false, true) => Settling::Proving { until, interval },
            (false, false) => Settling::Settled,
        };
    }

    /// Another path has taken the place of one that reached every receiver: single attempts until all get
    /// them, or until `span` is over.
    pub(super) fn again(&mut self, now: Time, span: Duration, interval: Duration) {
        if *self != Settling::Dark {
            *self = Settling::Waiting { until: now + span, interval };
        }
    }

    /// A receiver misses too much, or (`false`) none does any more.
    pub(super) fn judge(&mut self, lossy: bool) {
        if let Settling::Proving { until, interval } | Settling::Waiting { until, interval } = *self {
            *self = match lossy {
                true => Settling::Waiting { until, interval },
                false => Settling::Proving { until, interval },
            };
        }
    }

    /// Ends what has lasted too long.
    pub(super) fn expire(&mut self, now: Time) {
        if let Settling::Proving { until, .. } | Settling::Waiting { until, .. } = *self
            && now >= until
        {
            *self = Settling::Settled;
        }
    }

    /// Returns true if the stream may run.
    pub(super) fn allows_full_rate(self) -> bool {
        matches!(self, Settling::Proving { .. } | Settling::Settled)
    }

    /// The time between attempts while the path settles.
    pub(super) fn interval(self) -> Option<Duration> {
        match self {
            Settling::Waiting { interval, .. } => Some(interval),
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
    fn a_path_settles_until_it_loses_little_or_for_as_long_as_it_took() {
        let (waited, trip) = (Duration::from_millis(50), Duration::from_micros(200));
        let (start, mut settling) = (Time(50_000_000), Settling::default());
        assert!(!settling.allows_full_rate());
        let packet = Some(Duration::from_micros(8));
        settling.begin(start, (waited, trip), packet, false);
        assert!(settling.allows_full_rate(), "nothing is known against it");
        settling.judge(true);
        assert_eq!(settling.interval(), Some(Duration::from_micros(100)));
        assert!(!settling.allows_full_rate());
        settling.judge(false);
        assert!(settling.allows_full_rate());
        settling.judge(true);
        settling.expire(start + Duration::from_millis(49));
        assert!(!settling.allows_full_rate(), "it may have to wait again");
        settling.expire(start + waited);
        assert_eq!(settling, Settling::Settled, "enough of it");
        settling.judge(true);
        assert_eq!(settling, Settling::Settled, "patches must do");
        let soon = (Duration::from_millis(1), trip);
        settling.begin(start, soon, None, false);
        assert_eq!(settling, Settling::Settled, "it was there at once");
        settling.begin(start, soon, packet, false);
        assert!(matches!(settling, Settling::Proving { .. }), "{settling:?}");
        settling.begin(start, soon, packet, true);
        assert_eq!(settling.interval(), Some(SETTLING_LEAST), "and yet it loses");
        settling.begin(start, soon, Some(Duration::from_micros(80)), true);
        assert_eq!(
            settling.interval(),
            Some(Duration::from_micros(320)),
            "on a slow link they are further apart"
        );
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
        let bounded = |most, nanos| AttemptInterval::AdaptiveUpTo(most).after(Time(nanos), Time(0));
        assert_eq!(bounded(Duration::from_millis(1), 10_000_000), Duration::from_micros(200));
        assert_eq!(bounded(Duration::from_millis(1), u64::MAX), Duration::from_millis(1));
        assert_eq!(bounded(Duration(1), u64::MAX), LEAST, "never closer than that");
        assert_eq!(bounded(Duration(u64::MAX), u64::MAX), MOST);
    }
}
