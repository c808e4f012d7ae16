//! Random whole numbers from a seed.

use polycast_types::Time;
use rand_core::Rng;
use rand_pcg::Pcg64Mcg;

/// Random whole numbers from a seed.
pub struct Random(Pcg64Mcg);

impl Random {
    /// The numbers of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Random(Pcg64Mcg::new(u128::from(seed) << 64 | 0x5851_f42d_4c95_7f2d << 1 | 1))
    }

    /// A number below `limit`, which is at least 1.
    pub fn below(&mut self, limit: u64) -> u64 {
        ((u128::from(self.0.next_u64()) * u128::from(limit)) >> 64) as u64
    }

    /// A number of this range.
    pub fn within(&mut self, range: core::ops::RangeInclusive<u64>) -> u64 {
        range.start() + self.below(range.end() - range.start() + 1)
    }

    /// A number of this range whose magnitude is drawn first: small ones are as likely as large ones.
    pub fn magnitude(&mut self, range: core::ops::RangeInclusive<u64>) -> u64 {
        let (low, high) = (*range.start(), *range.end());
        let doublings = u64::from((high / low.max(1)).max(1).ilog2());
        let scale = low.max(1) << self.within(0..=doublings);
        self.within(low..=(scale * 2).min(high).max(low))
    }

    /// True once in so many times.
    pub fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// One of these.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len() as u64) as usize]
    }

    /// A time of the safety phase.
    pub fn time_below(&mut self, end: Time) -> Time {
        Time(self.below(end.0.max(1)))
    }
}
