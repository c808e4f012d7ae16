//! Congestion control of a multicast channel on a shared network.
//!
//! One window for the group: the sender keeps at most [`Congestion::window`] fragments in flight to the
//! receiver that is furthest behind, so reports clock it as acknowledgements clock TCP. Congestion is judged
//! a receiver at a time, and the worst one rules: otherwise sixteen receivers with 1 % random loss each would
//! look like one path that loses 15 %. Random loss is told from congestion by its evenness: a full queue
//! drops in bursts between rounds without any loss. So a round counts as congested when a receiver lost more
//! than chance explains at the rate at which it usually loses: more than the mean and three standard
//! deviations.
//!
//! Before anything is lost, queues grow, and a flow that minds its round trip (BBR) gives way to one that
//! does not. So where a path is shared, the window is held where the queue on the worst path lasts a few
//! milliseconds, as long as that helps; where no other flow is seen, it is held there for a moment every
//! second, to see whether another one takes what is left. A short queue would leave a link idle whenever one
//! end is late. Where the queue stays long however far the window falls, others fill it (CUBIC, Reno): then
//! only loss counts, for a while. That is Copa's choice between two modes, with Swift's proportional cut. In
//! both modes, a flow with more than a share of a path that others fill too gives way until it has no more
//! than that: a short queue drops whole bursts, and TCP needs a while to come back from that.

use super::delay::PathDelay;
use polycast_types::{Duration, Time};

/// Loss above this, in parts of a million, is congestion however even it is (8 %).
const USUAL_LOSS_MAX: u64 = 80_000;
/// Fragments that a round must hold before its loss says anything.
const ROUND_FRAGMENTS_MIN: u64 = 32;

/// The queue that is worth having, beside a batch: it keeps a link busy while the sender waits for its turn.
const QUEUE_TARGET: Duration = Duration::from_millis(4);
/// Lower bound of the target, which is half of what queues hold where they overflow earlier: a burst has to
/// fit.
const QUEUE_TARGET_MIN: Duration = Duration::from_millis(1);
/// For so long it is remembered where queues overflow.
const OVERFLOW_SPAN: Duration = Duration::from_secs(10);
/// Other flows that were seen on a path count as present for so long: they need time to take what they are
/// given.
pub(super) const OTHERS_SPAN: Duration = Duration::from_secs(5);
/// Time that a batch may add at most on slow paths.
const BATCH_TIME_MAX: Duration = Duration::from_millis(5);
/// The window gives way to a queue at least this long before it is concluded that others fill it ..
const PATIENCE: Duration = Duration::from_millis(100);
/// .. and this many rounds.
const PATIENCE_ROUNDS: u32 = 8;
/// Every so often the queue is kept short ..
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// .. for at least this long and so many round trips, even if no other flow is seen.
const PROBE: Duration = Duration::from_millis(50);
const PROBE_ROUNDS: u32 = 4;
/// First span for which only loss counts: doubled every time, up to the longest.
const HOLD: Duration = Duration::from_secs(2);
const HOLD_MAX: Duration = Duration::from_secs(32);
/// A queue that was under control for this long makes the next hold short again.
const CALM: Duration = Duration::from_secs(5);

/// Part of the window that a cut leaves, in percent: as much as CUBIC keeps ..
const KEPT: u64 = 70;
/// .. and more for a flow with less than a share beside others: it does not grow as fast as they do.
const KEPT_OF_LESS: u64 = 85;

/// A flow with more than a share gives up one part in so many a round.
const SHARE_DECAY: u64 = 32;

/// Signal that the window follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// The queue on the worst path.
    Queue {
        /// Since when.
        since: Time,
        /// Since when the queue is too long, the window at that time, and rounds since.
        excess: Option<(Time, u64, u32)>,
    },
    /// Loss alone.
    Loss {
        /// Until then.
        until: Time,
    },
}

/// A moment of a short queue.
#[derive(Clone, Copy, Debug)]
struct Probe {
    since: Time,
    rounds: u32,
    /// The window before it.
    window: u64,
}

/// Signs of other flows on the paths in one round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Others {
    /// They are seen on some path.
    pub shared: bool,
    /// Every path gives us more than our share if there is one other.
    pub has_share: bool,
    /// Fragments that a flow with half of the slowest path keeps in flight while the queue is as long as now.
    pub share: u64,
}

/// Loss record of one receiver.
#[derive(Clone, Debug, Default)]
pub struct LossHistory {
    received: u64,
    lost: u64,
    since: Time,
    /// Usual loss, in parts of a million: a mean over about sixteen rounds.
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
    mode: Mode,
    hold: Duration,
    probe: Option<Probe>,
    next_probe: Time,
    round_at: Time,
    /// The shortest queue that overflowed lately, and when the first of these did.
    overflow: Option<(Time, Duration)>,
    /// Set while other flows leave enough.
    has_share: bool,
    /// Others were seen on a path lately: they count as present until then.
    others_until: Time,
    /// They counted as present in the last round.
    crowded: bool,
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
            mode: Mode::Queue { since: Time::ZERO, excess: None },
            hold: HOLD,
            probe: None,
            next_probe: Time::ZERO,
            round_at: Time::ZERO,
            overflow: None,
            has_share: false,
            others_until: Time::ZERO,
            crowded: false,
        }
    }

    /// Fragments that may be in flight.
    #[must_use]
    pub fn window(&self) -> u64 {
        self.window
    }

    /// Returns true once the window has found the capacity of the path.
    #[must_use]
    pub fn has_found(&self) -> bool {
        !self.slow_start
    }

    /// The receiver that the window was made for is not waited for now: what the others take has to be found
    /// anew.
    pub fn seek(&mut self) {
        self.slow_start = true;
        self.mode = Mode::Queue { since: Time::ZERO, excess: None };
        self.has_share = false;
        self.crowded = false;
    }

    /// Goes back to a window that was right.
    pub fn resume(&mut self, window: u64) {
        self.slow_start = false;
        self.window = self.window.min(window).max(self.window_min);
    }

    /// Returns the number of times that the window was cut.
    #[must_use]
    pub fn cuts(&self) -> u64 {
        self.cuts
    }

    /// The slowest receiver has acknowledged `fragments` more while the window was in use.
    pub fn acknowledged(&mut self, fragments: u64) {
        let enough = self.has_share && (self.crowded || self.follows_loss());
        if enough || matches!(self.mode, Mode::Queue { excess: Some(_), .. }) {
            return;
        }
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

    /// Returns true while only loss counts.
    #[must_use]
    pub fn follows_loss(&self) -> bool {
        matches!(self.mode, Mode::Loss { .. })
    }

    /// Returns true if a round trip has passed since the last round.
    #[must_use]
    pub fn is_round_over(&self, now: Time, round_trip: Duration) -> bool {
        now.since(self.round_at) >= round_trip
    }

    /// A round is over, in which the queue on the worst path was never shorter than `queue`, and a batch took
    /// `batch_time` to pass.
    pub fn round(&mut self, now: Time, queue: Duration, batch_time: Duration, others: Others) {
        let Others { shared, has_share, share } = others;
        if shared {
            self.others_until = now + OTHERS_SPAN;
        }
        self.crowded = now < self.others_until;
        let polite = self.probe(now, shared) || self.crowded;
        self.round_at = now;
        self.has_share = has_share;
        let target = self.target(now, batch_time);
        let is_short = target < usual_target(batch_time);
        if has_share && (shared || self.crowded && is_short) {
            // A flow that lost much (a whole segmented send in a short queue) needs room to come back; where
            // queues are short, they are empty at times although others lack room.
            self.slow_start = false;
            self.window = (self.window - self.window / SHARE_DECAY).max(self.window_min);
        }
        match self.mode {
            Mode::Loss { until } if now >= until => self.mode = Mode::Queue { since: now, excess: None },
            Mode::Loss { .. } => {}
            Mode::Queue { since, .. } if queue <= target || !polite => {
                self.mode = Mode::Queue { since, excess: None };
            }
            Mode::Queue { since, excess } => {
                let (begun, window, rounds) = excess.unwrap_or((now, self.window, 0));
                let room = self.window * 2 > window && self.window > self.window_min;
                let helps = room || queue <= target + target / 4;
                if !helps && rounds >= PATIENCE_ROUNDS && now.since(begun) >= PATIENCE {
                    self.hold = if begun.since(since) >= CALM { HOLD } else { self.hold };
                    self.mode = Mode::Loss { until: now + self.hold };
                    self.hold = (self.hold * 2).min(HOLD_MAX);
                    // A window for the short queue that we kept is nothing in the long one that they keep.
                    self.window = window.max(share).min(self.window_max);
                    return;
                }
                self.mode = Mode::Queue { since, excess: Some((begun, window, rounds + 1)) };
                self.give_way(queue, target);
            }
        }
    }

    /// The queue worth having, where a batch takes `batch_time` and queues overflow where they lately did.
    fn target(&mut self, now: Time, batch_time: Duration) -> Duration {
        self.overflow = self.overflow.filter(|(since, _)| now.since(*since) < OVERFLOW_SPAN);
        let usual = usual_target(batch_time);
        let half = self.overflow.map_or(usual, |(_, queue)| queue / 2);
        half.clamp(QUEUE_TARGET_MIN, usual)
    }

    /// Begins and ends probes; gives whether one is under way.
    fn probe(&mut self, now: Time, shared: bool) -> bool {
        match &mut self.probe {
            Some(probe) if now.since(probe.since) >= PROBE && probe.rounds >= PROBE_ROUNDS => {
                if !shared {
                    self.window = self.window.max(probe.window);
                }
                self.probe = None;
                self.next_probe = now + PROBE_INTERVAL;
            }
            Some(probe) => probe.rounds += 1,
            None if now >= self.next_probe && !self.slow_start => {
                self.probe = Some(Probe { since: now, rounds: 0, window: self.window });
            }
            None => {}
        }
        self.probe.is_some()
    }

    /// Shrinks the window by half of what it has too much for the target, or by all of it at the first time.
    fn give_way(&mut self, queue: Duration, target: Duration) {
        let too_much = (self.window as u128 * u128::from((queue - target).0) / u128::from(queue.0)) as u64;
        let cut = if self.slow_start { too_much } else { too_much / 2 };
        self.slow_start = false;
        self.credit = 0;
        self.window = (self.window - cut).max(self.window_min);
    }

    /// A receiver reported `received` and `lost` more fragments that came over `path`; cuts the window once a
    /// round trip.
    pub fn reported(
        &mut self,
        now: Time,
        history: &mut LossHistory,
        received: u64,
        lost: u64,
        path: &mut PathDelay,
        round_trip: Duration,
    ) {
        history.received = history.received.saturating_add(received);
        history.lost = history.lost.saturating_add(lost);
        let counted = history.received.saturating_add(history.lost);
        if counted < ROUND_FRAGMENTS_MIN || now.since(history.since) < round_trip {
            return;
        }
        let competing = self.follows_loss() || now < self.others_until;
        let longest = path.longest();
        let quiet = path.take_quiet();
        // Others that are known to fill the queue take every loss for congestion; so does a flow with more
        // than a share.
        let strict = competing && self.has_share && !quiet;
        let congested = history.is_burst(counted, if strict { 1.0 } else { 3.0 });
        if congested && longest > Duration::ZERO {
            let (since, least) = self.overflow.unwrap_or((now, longest));
            self.overflow = Some((since, least.min(longest)));
        }
        history.end_round(now, counted, quiet);
        if congested && now.since(self.cut_at) >= round_trip {
            self.slow_start = false;
            self.cut_at = now;
            self.cuts += 1;
            self.credit = 0;
            let less_than_share = competing && !self.has_share;
            let kept = if less_than_share { KEPT_OF_LESS } else { KEPT };
            self.window = (self.window * kept / 100).max(self.window_min);
        }
    }
}

/// The queue worth having where nothing is known of overflows.
fn usual_target(batch_time: Duration) -> Duration {
    QUEUE_TARGET + batch_time.min(BATCH_TIME_MAX)
}

impl LossHistory {
    /// Returns true if more was lost than chance explains: chance may exceed the mean by `deviations`
    /// standard deviations and half a fragment for each.
    fn is_burst(&self, counted: u64, deviations: f64) -> bool {
        let mean = self.usual as f64 * counted as f64 / 1e6;
        self.lost as f64 > mean + deviations * (libm::sqrt(mean) + 0.5)
    }

    /// Ends a round of `counted` fragments; losses in a `quiet` round were due to chance.
    fn end_round(&mut self, now: Time, counted: u64, quiet: bool) {
        let loss = (u128::from(self.lost) * 1_000_000 / u128::from(counted)) as u64;
        if quiet || loss < self.usual {
            self.usual = ((self.usual * 15 + loss) / 16).min(USUAL_LOSS_MAX);
        }
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
            control.reported(now, &mut history, 1_000 - lost, *lost, &mut PathDelay::default(), TRIP);
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
            control.reported(now, &mut history, 1_000 - lost, *lost, &mut PathDelay::default(), TRIP);
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

    /// Rounds of a queue whose length in milliseconds is that of others and ours, at `per_ms` fragments a ms.
    fn queues(control: &mut Congestion, others_ms: u64, per_ms: u64, rounds: u64, shared: bool) -> Vec<u64> {
        (0..rounds)
            .map(|i| {
                let queue =
                    Duration::from_millis(others_ms) + Duration(control.window() * 1_000_000 / per_ms);
                let now = Time(1_000_000_000) + Duration::from_millis(10) * i;
                control.round(now, queue, Duration::ZERO, Others { shared, ..Others::default() });
                control.acknowledged(control.window());
                control.window()
            })
            .collect()
    }

    fn grown(window: u64) -> Congestion {
        let mut control = Congestion::new(window, 4, 10_000, 1);
        control.slow_start = false;
        control.next_probe = Time(u64::MAX);
        control
    }

    #[test]
    fn a_shared_queue_is_kept_short() {
        let mut control = grown(400);
        let windows = queues(&mut control, 0, 10, 100, true);
        assert!(windows[30..].iter().all(|w| (30..=45).contains(w)), "4 ms hold 40: {windows:?}");
        assert!(!control.follows_loss());
    }

    #[test]
    fn a_queue_of_our_own_may_be_long() {
        let mut control = grown(400);
        queues(&mut control, 0, 10, 100, false);
        assert!(control.window() >= 400);
    }

    #[test]
    fn where_others_fill_the_queue_only_loss_counts() {
        let mut control = grown(400);
        queues(&mut control, 30, 10, 30, true);
        assert!(control.follows_loss());
        assert!(control.window() >= 400, "what was given away is taken back: {}", control.window());
    }

    /// A quarter more than the 4 ms that are worth having is near enough; twice as much is not.
    #[test]
    fn a_queue_that_is_nearly_short_enough_is_no_reason_to_follow_loss() {
        let mut control = grown(12);
        queues(&mut control, 4, 10, 100, true);
        assert!(!control.follows_loss(), "a window of {}", control.window());
        let mut control = grown(12);
        queues(&mut control, 8, 10, 100, true);
        assert!(control.follows_loss(), "a window of {}", control.window());
    }

    #[test]
    fn the_window_for_a_long_queue_starts_at_a_share_of_it() {
        let mut control = grown(40);
        let others = Others { shared: true, has_share: false, share: 330 };
        for i in 0..30 {
            let now = Time(1_000_000_000) + Duration::from_millis(10) * i;
            control.round(now, Duration::from_millis(40), Duration::ZERO, others);
        }
        assert!(control.follows_loss());
        assert_eq!(control.window(), 330);
    }

    #[test]
    fn where_queues_overflow_early_less_is_worth_having() {
        let mut control = grown(400);
        let mut path = PathDelay::default();
        // A queue of 3 ms, and a burst is lost.
        path.observe(Time(1), Time(0), Time(0));
        path.observe(Time(2), Time(0), Time(3_000_000));
        control.reported(Time(1_000_000_000), &mut LossHistory::default(), 900, 100, &mut path, TRIP);
        let windows = queues(&mut control, 0, 10, 100, true);
        assert!(windows[30..].iter().all(|w| (10..=20).contains(w)), "1.5 ms hold 15: {windows:?}");
        let later = Time(1_000_000_000) + OVERFLOW_SPAN;
        assert_eq!(control.target(later, Duration::ZERO), QUEUE_TARGET, "forgotten after a while");
    }

    #[test]
    fn who_fills_the_queue_with_others_does_not_take_more_than_a_share() {
        let mut control = grown(400);
        queues(&mut control, 30, 10, 30, true);
        assert!(control.follows_loss());
        for has_share in [true, false] {
            let window = control.window();
            let others = Others { shared: true, has_share, share: 0 };
            control.round(Time(1_400_000_000), Duration::from_millis(30), Duration::ZERO, others);
            control.acknowledged(window);
            assert_eq!(control.window() > window, !has_share);
        }
    }

    #[test]
    fn who_has_more_than_a_share_gives_way_until_the_queue_is_empty_at_times() {
        let round = |control: &mut Congestion, i: u64, shared, has_share| {
            let now = Time(1_000_000_000) + Duration::from_millis(10) * i;
            control.round(
                now,
                Duration::from_millis(1),
                Duration::ZERO,
                Others { shared, has_share, share: 0 },
            );
            control.acknowledged(control.window() * 2);
        };
        let mut control = grown(400);
        (0..22).for_each(|i| round(&mut control, i, true, true));
        let given = control.window();
        assert!((180..=220).contains(&given), "half in 22 rounds: {given}");
        round(&mut control, 23, false, true);
        assert_eq!(control.window(), given, "they may come back");
        round(&mut control, 24, false, false);
        assert!(control.window() > given, "less than a share is not enough");
        let later = OTHERS_SPAN.0 / 10_000_000 + 25;
        let before = control.window();
        round(&mut control, later, false, true);
        assert!(control.window() > before, "no other flow was seen for a while");
    }

    #[test]
    fn who_has_more_than_a_share_of_a_short_queue_gives_way_even_if_it_is_empty_at_times() {
        for overflow in [None, Some(Duration::from_millis(2))] {
            let mut control = grown(400);
            control.overflow = overflow.map(|queue| (Time(1_000_000_000), queue));
            // They were seen a while ago, not now.
            control.others_until = Time(u64::MAX);
            for i in 0..22 {
                let now = Time(1_000_000_000) + Duration::from_millis(10) * i;
                let others = Others { shared: false, has_share: true, share: 0 };
                control.round(now, Duration::ZERO, Duration::ZERO, others);
            }
            assert_eq!(control.window() <= 220, overflow.is_some(), "{overflow:?}: {}", control.window());
        }
    }

    /// The window after a report of `lost` of 100 fragments, once others are known or not.
    fn after_loss(lost: u64, known: bool, has_share: bool) -> u64 {
        after_loss_beside(lost, if known { Time(u64::MAX) } else { Time::ZERO }, has_share)
    }

    /// The same where others count as present until then. The report comes after a second.
    fn after_loss_beside(lost: u64, others_until: Time, has_share: bool) -> u64 {
        let mut control = grown(400);
        control.others_until = others_until;
        control.has_share = has_share;
        let mut path = PathDelay::default();
        path.observe(Time(1), Time(0), Time(0));
        path.observe(Time(2), Time(0), Time(3_000_000));
        let mut history = LossHistory::default();
        control.reported(Time(1_000_000_000), &mut history, 100 - lost, lost, &mut path, TRIP);
        control.window()
    }

    #[test]
    fn single_losses_count_for_who_has_a_share_beside_others() {
        assert_eq!(after_loss(1, true, true), 280);
        assert_eq!(after_loss(1, true, false), 400, "a flow with less lets single ones pass");
        assert_eq!(after_loss(1, false, true), 400, "no other flow is there");
        let (until_then, for_longer) = (Time(1_000_000_000), Time(1_000_000_001));
        assert_eq!(after_loss_beside(1, until_then, true), 400, "their time is over");
        assert_eq!(after_loss_beside(1, for_longer, true), 280);
    }

    #[test]
    fn who_has_less_than_a_share_beside_others_keeps_more_after_a_burst() {
        assert_eq!(after_loss(20, true, true), 280);
        assert_eq!(after_loss(20, true, false), 340);
        assert_eq!(after_loss(20, false, false), 280, "a queue that is ours alone");
    }

    #[test]
    fn a_probe_ends_where_it_began_unless_another_flow_was_seen() {
        for seen in [false, true] {
            let mut control = grown(400);
            control.next_probe = Time::ZERO;
            let windows = queues(&mut control, 0, 10, 12, seen);
            assert!(*windows.iter().min().unwrap() < 120, "the queue is short for a moment: {windows:?}");
            assert_eq!(control.window() >= 400, !seen, "{windows:?}");
        }
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

    /// Usual loss is a mean over sixteen rounds that were quiet, or lost less than usual, and at most 8 %.
    #[test]
    fn the_usual_loss_is_learned_in_quiet_rounds() {
        for (usual, lost, quiet, expected) in [
            (0, 16, true, 1_000),
            (0, 16, false, 0),
            (16_000, 0, true, 15_000),
            (16_000, 0, false, 15_000),
            (16_000, 16, false, 16_000),
            (16_000, 15, false, 15_937),
            (16_000, 32, true, 17_000),
            (80_000, 900, true, 80_000),
        ] {
            let mut history = LossHistory { usual, lost, received: 5, ..LossHistory::default() };
            history.end_round(Time(7), 1_000, quiet);
            assert_eq!(history.usual, expected, "{lost} of 1,000 where {usual} of a million are usual");
            assert_eq!((history.lost, history.received, history.since), (0, 0, Time(7)));
        }
    }

    /// A burst is more than the mean and so many standard deviations, to each of which chance may add half a
    /// fragment.
    #[test]
    fn a_burst_is_more_than_chance_explains() {
        for (usual, counted, deviations, most) in [
            (10_000, 10_000, 3.0, 131),
            (10_000, 10_000, 1.0, 110),
            (0, 500, 3.0, 1),
            (0, 500, 1.0, 0),
            (40_000, 100, 3.0, 11),
        ] {
            for lost in [most, most + 1] {
                let history = LossHistory { usual, lost, ..LossHistory::default() };
                assert_eq!(history.is_burst(counted, deviations), lost > most, "{lost} of {counted}");
            }
        }
    }

    /// A round's loss is judged when 32 fragments have been heard of and a round trip is over; the window is
    /// cut once a round trip, and not below the least.
    #[test]
    fn a_window_is_cut_once_a_round_trip() {
        let second = Time(1_000_000_000);
        for (fragments, later, cuts) in [(31, TRIP, 0), (32, TRIP, 1), (32, Duration(TRIP.0 - 1), 0)] {
            let mut control = grown(400);
            let mut history = LossHistory { since: second, ..LossHistory::default() };
            control.reported(
                second + later,
                &mut history,
                fragments - 20,
                20,
                &mut PathDelay::default(),
                TRIP,
            );
            assert_eq!(control.cuts(), cuts, "{fragments} fragments after {later}");
            assert_eq!(control.window(), if cuts == 1 { 280 } else { 400 });
        }
        let mut control = grown(6);
        // Several receivers report the same loss.
        for (at_us, cuts, window) in [(0, 1, 4), (999, 1, 4), (1_000, 2, 4), (1_999, 2, 4)] {
            let now = second + Duration::from_micros(at_us);
            control.reported(now, &mut LossHistory::default(), 50, 50, &mut PathDelay::default(), TRIP);
            assert_eq!((control.cuts(), control.window()), (cuts, window), "after {at_us} us");
        }
    }

    /// Every second the queue is kept short for 50 ms and four rounds.
    #[test]
    fn a_queue_is_kept_short_every_second() {
        for (round_ms, lasts_ms) in [(1, 50), (10, 50), (20, 100), (50, 250)] {
            let mut control = grown(400);
            control.next_probe = Time::ZERO;
            let mut probing = Vec::new();
            for round in 0..=1_400 / round_ms {
                let at_ms = round * round_ms;
                let now = Time(5_000_000_000) + Duration::from_millis(at_ms);
                control.round(now, Duration::from_millis(40), Duration::ZERO, Others::default());
                if control.probe.is_some() {
                    probing.push(at_ms);
                }
            }
            let first: Vec<u64> = probing.iter().copied().take_while(|at| *at < 500).collect();
            let second = probing.iter().copied().find(|at| *at >= 500).unwrap();
            assert_eq!(
                (first[0], first[first.len() - 1]),
                (0, lasts_ms - round_ms),
                "rounds of {round_ms} ms"
            );
            assert_eq!(second, lasts_ms + 1_000, "rounds of {round_ms} ms");
        }
    }

    /// The window gives way by half of what it has too much for the queue, and the first time by all of it.
    #[test]
    fn a_window_gives_way_to_the_queue() {
        for (window, queue_ms, first, expected) in [
            (400, 8, false, 300),
            (400, 8, true, 200),
            (400, 5, false, 360),
            (12, 400, false, 7),
            (5, 400, true, 4),
        ] {
            let mut control = grown(window);
            control.slow_start = first;
            control.give_way(Duration::from_millis(queue_ms), QUEUE_TARGET);
            assert_eq!(
                (control.window(), control.has_found()),
                (expected, true),
                "{window} of {queue_ms} ms"
            );
        }
    }

    /// Loss alone counts where others fill the queue, for 2 s at first, then for twice as long, up to 32 s; a
    /// queue that was under control for 5 s makes the time short again.
    #[test]
    fn a_hold_doubles_until_the_queue_has_been_calm() {
        let mut control = grown(8);
        let mut now = Time(1_000_000_000);
        let mut holds = Vec::new();
        let mut held_from = None;
        // Rounds of 10 ms; the queue is long, but for 5 s after the eighth hold.
        let (mut calm_until, mut rounds) = (Time::ZERO, 0);
        while holds.len() < 10 && rounds < 40_000 {
            rounds += 1;
            now += Duration::from_millis(10);
            let queue = Duration::from_millis(if now < calm_until { 1 } else { 30 });
            control.round(now, queue, Duration::ZERO, Others { shared: true, ..Others::default() });
            match (held_from, control.follows_loss()) {
                (None, true) => held_from = Some(now),
                (Some(at), false) => {
                    holds.push(now.since(at).as_millis() / 1_000);
                    held_from = None;
                    if holds.len() == 8 {
                        calm_until = now + CALM;
                    }
                }
                _ => {}
            }
        }
        assert_eq!(holds, [2, 4, 8, 16, 32, 32, 32, 32, 2, 4]);
    }
}
