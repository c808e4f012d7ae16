//! Congestion control of a multicast channel on a shared network.
//!
//! One window for the group: the sender keeps at most [`Congestion::window`] fragments in flight to the
//! receiver that is furthest behind, so reports clock it as acknowledgements clock TCP. Congestion is
//! judged a receiver at a time, and the worst one rules: otherwise sixteen receivers with 1 % random loss
//! each would look like one path that loses 15 %. Random loss is told from congestion by its evenness:
//! a full queue drops in bursts between rounds without any loss, so a round counts as congested when a
//! receiver lost more than [`LOSS_TOLERATED`] and more than three times what it usually loses.

use alloc::vec::Vec;
use polycast_types::{Duration, Time};

/// Loss within a round up to which the window stays, in parts of 1,024 (2 %).
pub const LOSS_TOLERATED: u64 = 20;
/// Fragments that a round must hold before its loss says anything.
const ROUND_FRAGMENTS_MIN: u64 = 48;
/// How many past rounds tell what a receiver usually loses.
const ROUNDS_KEPT: usize = 9;

/// What is known of one receiver's loss.
#[derive(Clone, Debug, Default)]
pub struct LossHistory {
    received: u64,
    lost: u64,
    since: Time,
    /// Loss of past rounds in parts of 1,024; newest last.
    rounds: Vec<u64>,
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
        let loss = history.lost * 1_024 / counted;
        let usual = history.usual();
        let congested = history.lost >= 4 && loss > LOSS_TOLERATED.max(3 * usual);
        history.end_round(now, loss);
        if congested && now.since(self.cut_at) >= round_trip {
            self.slow_start = false;
            self.cut_at = now;
            self.cuts += 1;
            self.credit = 0;
            self.window = (self.window * 7 / 10).max(self.window_min);
        }
    }
}

impl LossHistory {
    /// The median loss of past rounds; zero while there are fewer than three.
    fn usual(&self) -> u64 {
        if self.rounds.len() < 3 {
            return 0;
        }
        let mut sorted = self.rounds.clone();
        sorted.sort_unstable();
        sorted[sorted.len() / 2]
    }

    fn end_round(&mut self, now: Time, loss: u64) {
        if self.rounds.len() == ROUNDS_KEPT {
            self.rounds.remove(0);
        }
        self.rounds.push(loss);
        self.received = 0;
        self.lost = 0;
        self.since = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        rounds(&mut control, &[10, 12, 9, 11, 10, 8, 14, 10, 9, 11, 13, 12]);
        assert_eq!(control.cuts(), 0);
    }

    #[test]
    fn heavy_but_even_loss_cuts_until_it_is_known_as_usual() {
        let mut control = Congestion::new(1_000, 10, 10_000, 8);
        rounds(&mut control, &[50; 30]);
        assert!((1..=4).contains(&control.cuts()), "{} cuts", control.cuts());
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
        assert_eq!(control.window(), 140);
        control.acknowledged(140);
        assert_eq!(control.window(), 148);
    }
}
