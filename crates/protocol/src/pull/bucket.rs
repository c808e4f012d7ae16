//! The rate of one tree: additive increase, multiplicative decrease, and a token bucket (Datacast, section
//! 5.1).

use polycast_types::{Duration, Time};

/// Settings for the rate of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateConfig {
    /// The rate at first, in bits a second: one that maps well to the credits.
    pub initial_bps: u64,
    /// The rate never falls below this.
    pub least_bps: u64,
    /// The rate never rises above this, such as that of the source's link.
    pub most_bps: u64,
    /// Amount that is added after every interval without a duplicate interest (δ).
    pub increase_bps: u64,
    /// Length of the interval (T).
    pub interval: Duration,
    /// Number of bytes that may be sent at once after a pause (σ).
    pub depth_bytes: u32,
}

impl RateConfig {
    /// The paper's δ = 50 Mb/s and T = 1 ms, from 500 Mb/s on, for a link of `most_bps`.
    #[must_use]
    pub fn for_link(most_bps: u64) -> Self {
        RateConfig {
            initial_bps: 500_000_000.min(most_bps),
            least_bps: 1_000_000.min(most_bps),
            most_bps,
            increase_bps: 50_000_000,
            interval: Duration::from_millis(1),
            depth_bytes: 6000,
        }
    }

    /// For real links of any rate, with packets of `packet_bytes`: what the paper's testbed has at 1 Gbit/s
    /// and 8 KiB, δ = 5 Mb/s and T = 1 ms, in proportion to the link and to the time that packets take on it.
    ///
    /// It begins at the rate of the link, not at half of it: credits keep what is under way small from the
    /// start.
    #[must_use]
    pub fn in_proportion(link_bps: u64, packet_bytes: u32) -> Self {
        let link_bps = link_bps.max(1_000);
        let two_ms = u32::try_from(link_bps / 8 / 500).unwrap_or(u32::MAX);
        let sixteen_packets = u64::from(packet_bytes) * 16 * 8 * 1_000_000_000 / link_bps;
        RateConfig {
            initial_bps: link_bps,
            least_bps: link_bps / 1_000,
            most_bps: link_bps,
            increase_bps: link_bps / 200,
            interval: Duration::from_millis(1).max(Duration(sixteen_packets)),
            depth_bytes: two_ms.clamp(packet_bytes.saturating_mul(4), 1 << 20),
        }
    }
}

impl RateConfig {
    /// Returns the time that this number of bytes takes at the highest rate.
    pub(super) fn time_of(&self, bytes: u16) -> Duration {
        Duration(u64::from(bytes) * 8 * 1_000_000_000 / self.most_bps.max(1))
    }
}

/// The rate r of a tree.
#[derive(Clone, Debug)]
pub(super) struct TreeRate {
    config: RateConfig,
    bps: u64,
    /// The end of the last interval, or the last duplicate interest.
    quiet_since: Time,
    /// Packets have waited for tokens since then.
    limiting: bool,
}

impl TreeRate {
    pub(super) fn new(config: RateConfig) -> Self {
        assert!(config.interval > Duration::ZERO && config.least_bps > 0, "a rate needs an interval");
        let bps = config.initial_bps.clamp(config.least_bps, config.most_bps.max(config.least_bps));
        TreeRate { config, bps, quiet_since: Time::ZERO, limiting: false }
    }

    pub(super) fn bps(&self) -> u64 {
        self.bps
    }

    pub(super) fn depth_bytes(&self) -> u32 {
        self.config.depth_bytes
    }

    /// Packets wait for tokens. A rate that limits nothing tells nothing about the network, and is not
    /// raised.
    pub(super) fn limits(&mut self) {
        self.limiting = true;
    }

    /// Raises the rate if an interval has passed without a duplicate.
    #[inline]
    pub(super) fn advance(&mut self, now: Time) {
        let passed = now.since(self.quiet_since).0 / self.config.interval.0;
        if passed == 0 {
            return;
        }
        self.quiet_since = Time(self.quiet_since.0 + passed * self.config.interval.0);
        if self.limiting {
            self.limiting = false;
            self.bps =
                self.bps.saturating_add(self.config.increase_bps).min(self.config.most_bps).max(self.bps);
        }
    }

    /// Returns the time when `advance` will raise the rate, if no duplicate arrives and packets wait.
    pub(super) fn next_advance(&self) -> Time {
        self.quiet_since + self.config.interval
    }

    /// A duplicate interest has come: the interval begins anew.
    pub(super) fn duplicate(&mut self, now: Time) {
        self.quiet_since = now;
    }

    /// A congestion signal: halves the rate.
    pub(super) fn halve(&mut self) {
        self.bps = (self.bps / 2).max(self.config.least_bps);
    }
}

/// Tokens for one port, which come at the rate of the tree. They are counted in bits times nanoseconds, so
/// that no rounding adds up.
#[derive(Clone, Debug)]
pub(super) struct Bucket {
    tokens: u128,
    at: Time,
}

const NANOS: u128 = 1_000_000_000;

impl Bucket {
    /// A full bucket.
    pub(super) fn new(now: Time, depth_bytes: u32) -> Self {
        Bucket { tokens: u128::from(depth_bytes) * 8 * NANOS, at: now }
    }

    /// Adds what has come in since, at this rate.
    #[inline]
    pub(super) fn fill(&mut self, now: Time, bps: u64, depth_bytes: u32) {
        let passed = now.since(self.at);
        if passed > Duration::ZERO {
            let most = u128::from(depth_bytes) * 8 * NANOS;
            self.tokens = (self.tokens + u128::from(bps) * u128::from(passed.0)).min(most.max(self.tokens));
            self.at = now;
        }
    }

    /// Takes the tokens of a packet, if they are there. A packet larger than the bucket needs a full one.
    #[inline]
    pub(super) fn take(&mut self, bytes: u32, depth_bytes: u32) -> bool {
        let cost = u128::from(bytes.min(depth_bytes)) * 8 * NANOS;
        let enough = self.tokens >= cost;
        if enough {
            self.tokens -= cost;
        }
        enough
    }

    /// Returns the time when the tokens of a packet will be there.
    pub(super) fn time_for(&self, bytes: u32, depth_bytes: u32, bps: u64) -> Time {
        let cost = u128::from(bytes.min(depth_bytes)) * 8 * NANOS;
        let wait = cost.saturating_sub(self.tokens).div_ceil(bps.max(1).into());
        self.at + Duration(u64::try_from(wait).unwrap_or(u64::MAX / 2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> RateConfig {
        RateConfig {
            initial_bps: 500,
            least_bps: 100,
            most_bps: 620,
            increase_bps: 50,
            interval: Duration::from_millis(1),
            depth_bytes: 3000,
        }
    }

    #[test]
    fn what_fits_the_papers_links_fits_others_in_proportion() {
        let paper = RateConfig::in_proportion(1_000_000_000, 8_290);
        assert_eq!(paper.increase_bps, 5_000_000);
        assert!((1_000_000..1_100_000).contains(&paper.interval.0), "{:?}", paper.interval);
        let slow = RateConfig::in_proportion(100_000_000, 8_290);
        assert_eq!((slow.increase_bps, slow.interval.0), (500_000, 10 * paper.interval.0));
        // A bucket holds what the link carries in two milliseconds, at least four packets, and at most 1 MiB.
        assert_eq!((paper.depth_bytes, slow.depth_bytes), (250_000, 4 * 8_290));
        assert_eq!(RateConfig::in_proportion(400_000_000_000, 8_290).depth_bytes, 1 << 20);
        let tiny = RateConfig::in_proportion(0, 1_500);
        assert!(tiny.least_bps > 0 && tiny.interval > Duration::ZERO);
    }

    #[test]
    fn packets_take_their_bits_at_the_highest_rate() {
        let rate = RateConfig { most_bps: 1_000_000_000, ..config() };
        assert_eq!((rate.time_of(1_500), rate.time_of(0)), (Duration(12_000), Duration::ZERO));
        let slow = RateConfig { most_bps: 0, ..config() };
        assert_eq!(slow.time_of(1), Duration::from_secs(8), "a link without a rate divides by nothing");
    }

    #[test]
    fn the_rate_rises_by_delta_after_a_quiet_interval_in_which_it_limits() {
        let mut rate = TreeRate::new(config());
        rate.advance(Time(999_999));
        assert_eq!(rate.bps(), 500);
        rate.advance(Time(1_000_000));
        assert_eq!(rate.bps(), 500, "nothing has waited");
        rate.limits();
        rate.advance(Time(1_999_999));
        assert_eq!(rate.bps(), 500);
        rate.advance(Time(2_000_000));
        assert_eq!(rate.bps(), 550);
        rate.limits();
        rate.advance(Time(3_000_000));
        rate.limits();
        rate.advance(Time(4_000_000));
        assert_eq!(rate.bps(), 620, "the most");
    }

    #[test]
    fn a_duplicate_begins_the_interval_anew_and_a_signal_halves() {
        let mut rate = TreeRate::new(config());
        rate.limits();
        rate.duplicate(Time(900_000));
        rate.advance(Time(1_800_000));
        assert_eq!(rate.bps(), 500);
        rate.halve();
        assert_eq!(rate.bps(), 250);
        rate.halve();
        rate.halve();
        assert_eq!(rate.bps(), 100, "the least");
        rate.advance(Time(1_900_000));
        assert_eq!(rate.bps(), 150);
    }

    #[test]
    fn tokens_come_at_the_rate_and_no_more_than_the_depth_are_kept() {
        let (rate, depth) = (12_000_000, 3000);
        let mut bucket = Bucket::new(Time::ZERO, depth);
        assert!(bucket.take(1500, depth) && bucket.take(1500, depth) && !bucket.take(1500, depth));
        // 1500 bytes at 12 Mb/s take 1 ms.
        assert_eq!(bucket.time_for(1500, depth, rate), Time(1_000_000));
        bucket.fill(Time(999_999), rate, depth);
        assert!(!bucket.take(1500, depth));
        bucket.fill(Time(1_000_000), rate, depth);
        assert!(bucket.take(1500, depth) && !bucket.take(1, depth));
        bucket.fill(Time(1_000_000_000), rate, depth);
        assert!(bucket.take(3000, depth) && !bucket.take(1, depth));
        bucket.fill(Time(2_000_000_000), rate, depth);
        assert!(bucket.take(9000, depth), "a packet larger than the bucket needs a full one");
        // Over many packets nothing is lost to rounding: a third of a second at 1 Gb/s.
        let mut sent = 0;
        let mut bucket = Bucket::new(Time::ZERO, depth);
        for nanos in (0..=333_333_333).step_by(7_001) {
            bucket.fill(Time(nanos), 1_000_000_000, depth);
            while bucket.take(1500, depth) {
                sent += 1;
            }
        }
        assert!((27_776..=27_780).contains(&sent), "{sent}");
    }

    #[test]
    fn what_a_rate_of_nothing_brings_comes_after_all_time() {
        let mut bucket = Bucket::new(Time(5), u32::MAX);
        assert!(bucket.take(u32::MAX, u32::MAX));
        assert_eq!(bucket.time_for(u32::MAX, u32::MAX, 0), Time(5 + u64::MAX / 2));
        assert_eq!(bucket.time_for(1_000, u32::MAX, 0), Time(5 + 8_000 * 1_000_000_000));
    }
}
