//! Drawing a case from a seed: whole numbers only.

use crate::packet::{Faults, LinkConfig};
use alloc::string::String;
use alloc::vec::Vec;
use polycast_topology::Network as Topology;
use polycast_types::{Duration, Rate, Time};
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

/// A topology with few nodes.
pub(super) fn topology(random: &mut Random, names: &[&str]) -> (String, Topology) {
    let name = String::from(*random.pick(names));
    let topology = name.parse().expect("the names are those of topologies");
    (name, topology)
}

/// Some hosts, at most `most`, of them the first as the source.
pub(super) fn hosts(random: &mut Random, count: u32, most: u64) -> Vec<u32> {
    let mut all: Vec<u32> = (0..count).collect();
    let chosen = random.within(2..=most.min(u64::from(count))) as usize;
    for at in 0..chosen {
        let other = at + random.below((all.len() - at) as u64) as usize;
        all.swap(at, other);
    }
    all.truncate(chosen);
    all
}

/// Settings of all links.
pub(super) fn link(random: &mut Random, faults: Faults) -> LinkConfig {
    LinkConfig {
        queue_bytes: random.magnitude(32 << 10..=1 << 20),
        faults,
        ..LinkConfig::new(
            Rate(random.magnitude(200_000_000..=20_000_000_000)),
            Duration(random.magnitude(100..=100_000)),
        )
    }
}

/// Draws the faults of packets; each kind in about half of all cases.
pub(super) fn faults(random: &mut Random) -> Faults {
    let mut share = |most: u64| if random.one_in(2) { random.magnitude(100..=most) as u32 } else { 0 };
    Faults {
        loss_ppm: share(150_000),
        corruption_ppm: share(10_000),
        duplication_ppm: share(50_000),
        reordering_ppm: share(50_000),
        reordering_delay: Duration(random.magnitude(1_000..=2_000_000)),
    }
}
