//! Congestion control of a multicast channel on a shared network.
//!
//! One window for the group: the sender keeps at most [`Congestion::window`] fragments in flight to the
//! receiver that is furthest behind, so reports clock it as acknowledgements clock TCP. Congestion is
//! judged a receiver at a time, and the worst one rules: otherwise sixteen receivers with 1 % random loss
//! each would look like one path that loses 15 %. Random loss is told from congestion by its evenness: a
//! full queue drops in bursts between rounds without any loss. So a round counts as congested when a
//! receiver lost more than chance explains at the rate at which it usually loses: more than the mean and
//! three standard deviations.

use polycast_types::{Duration, Time};

/// Loss above this, in parts of a million, is congestion however even it is (8 %).
const USUAL_LOSS_MAX: u64 = 80_000;
/// Fragments that a round must hold before its loss says anything.
const ROUND_FRAGMENTS_MIN: u64 = 32;

/// What is known of one receiver's loss.
#[derive(Clone, Debug, Default)]
pub struct LossHistory {
    received: u64,
    lost: u64,
    since: Time,
    /// What it usually loses, in parts of a million: a mean over about sixteen rounds.
    usual: u64,
}

/// The window of one channel.
#[derive(Clone, Debug)]
pub struct Congestion {
    window: u64,
    window_min: u64,
    window_max: u64,
    slow_start: bool,
    /// Acknowledged fragments since the window last grew.
    credit: u64,
    /// Fragments by which the window grows a round trip.
    step: u64,
    cut_at: Time,
    cuts: u64,
}

impl Congestion {
    /// A window that starts at `initial` fragments and moves in `min..=max`, growing by `step` a round trip.
    #[must_use]
    pub fn new(initial: u64, min: u64, max: u64, step: u64) -> Self {
        assert!(min > 0 && min <= max && step > 0, "a window needs room to move");
        Congestion {
            window: initial.clamp(min, max),
            window_min: min,
            window_max: max,
            slow_start: true,
            credit: 0,
            step,
            cut_at: Time::ZERO,
            cuts: 0,
        }
    }

    /// Fragments that may be in flight.
    #[must_use]
    pub fn window(&self) -> u64 {
        self.window
    }

    /// How often the window was cut.
    #[must_use]
    pub fn cuts(&self) -> u64 {
        self.cuts
    }

    /// The slowest receiver has acknowledged `fragments` more while the window was in use.
    pub fn acknowledged(&mut self, fragments: u64) {
        if self.slow_start {
            self.window = (self.window + fragments).min(self.window_max);
            return;
        }
        self.credit += fragments;
        if self.credit >= self.window {
            self.credit = 0;
            self.window = (self.window + self.step).min(self.window_max);
        }
    }

    /// A receiver reported `received` and `lost` more fragments; cuts the window once a round trip.
    pub fn reported(
        &mut self,
        now: Time,
        history: &mut LossHistory,
        received: u64,
        lost: u64,
        round_trip: Duration,
    ) {
        history.received += received;
        history.lost += lost;
        let counted = history.received + history.lost;
        if counted < ROUND_FRAGMENTS_MIN || now.since(history.since) < round_trip {
            return;
        }
        let congested = history.is_burst(counted);
        history.end_round(now, counted);
        if congested && now.since(self.cut_at) >= round_trip {
            self.slow_start = false;
            self.cut_at = now;
            self.cuts += 1;
            self.credit = 0;
            self.window = (self.window / 2).max(self.window_min);
        }
    }
}

impl LossHistory {
    /// Whether more was lost than chance explains.
    fn is_burst(&self, counted: u64) -> bool {
        let mean = self.usual as f64 * counted as f64 / 1e6;
        self.lost as f64 > mean + 3.0 * libm::sqrt(mean) + 1.5
    }

    fn end_round(&mut self, now: Time, counted: u64) {
        let loss = self.lost * 1_000_000 / counted;
        self.usual = ((self.usual * 15 + loss) / 16).min(USUAL_LOSS_MAX);
        self.received = 0;
        self.lost = 0;
        self.since = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    const TRIP: Duration = Duration::from_millis(1);

    fn rounds(control: &mut Congestion, losses: &[u64]) {
        let mut history = LossHistory::default();
        for (i, lost) in losses.iter().enumerate() {
            let now = Time(1_000_000_000) + TRIP * (2 * i as u64 + 1);
            control.reported(now, &mut history, 1_000 - lost, *lost, TRIP);
        }
    }

    #[test]
    fn even_random_loss_does_not_cut_for_long() {
        let mut control = Congestion::new(1_000, 10, 10_000, 8);
        let even: Vec<u64> = [10, 12, 9, 11, 10, 8, 14, 10, 9, 11, 13, 12].repeat(20);
        rounds(&mut control, &even);
        assert!(control.cuts() <= 12, "{} cuts while it was learned", control.cuts());
        let learned = control.cuts();
        let mut history = LossHistory { usual: 10_000, ..LossHistory::default() };
        for (i, lost) in even.iter().enumerate() {
            let now = Time(2_000_000_000) + TRIP * (2 * i as u64 + 1);
            control.reported(now, &mut history, 1_000 - lost, *lost, TRIP);
        }
        assert_eq!(control.cuts(), learned, "loss at the usual rate is no congestion");
    }

    #[test]
    fn loss_beyond_all_measure_always_cuts() {
        let mut control = Congestion::new(1_000_000, 10, 1_000_000, 8);
        rounds(&mut control, &[300; 30]);
        assert_eq!(control.cuts(), 30);
    }

    #[test]
    fn bursts_between_clean_rounds_cut_every_time() {
        let mut control = Congestion::new(100_000, 10, 100_000, 8);
        rounds(&mut control, &[0, 0, 0, 60, 0, 0, 0, 0, 60, 0, 0, 0, 0, 60]);
        assert_eq!(control.cuts(), 3);
    }

    #[test]
    fn growth_is_exponential_first_and_linear_after_a_cut() {
        let mut control = Congestion::new(100, 10, 100_000, 8);
        control.acknowledged(100);
        assert_eq!(control.window(), 200);
        rounds(&mut control, &[100]);
        assert_eq!(control.window(), 100);
        control.acknowledged(100);
        assert_eq!(control.window(), 108);
    }
}
