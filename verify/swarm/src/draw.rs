//! Drawing a case from a seed: whole numbers only.

use alloc::string::String;
use alloc::vec::Vec;
pub use polycast_simulator::packet::Random;
use polycast_simulator::packet::{Faults, LinkConfig};
use polycast_topology::Network as Topology;
use polycast_types::{Duration, Rate};

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
