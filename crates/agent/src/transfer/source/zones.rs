//! Bytes that cross from one zone to another over TCP, for the report.
//!
//! A receiver alone knows from which end it got how much, and only the source knows in which zone that end
//! is. So receivers whose zone has a name say the former when they have everything.

use polycast_api::report::ZoneBytes;
use polycast_protocol::push::PeerId;
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// The zone that bytes come from, and the one that they go to.
type Pair = (String, String);

/// Counts of a transfer.
#[derive(Debug, Default)]
pub(super) struct Crossings {
    /// The source's zone; empty if it has no name.
    home: String,
    /// The zones of the ends that receivers were told to fetch from.
    ends: BTreeMap<SocketAddr, String>,
    /// Bytes by what each receiver has said last.
    came: BTreeMap<PeerId, BTreeMap<Pair, u64>>,
    /// Bytes of patches that the source has sent to receivers one by one.
    patched: BTreeMap<Pair, u64>,
}

impl Crossings {
    pub(super) fn new(home: &str) -> Self {
        Crossings { home: home.into(), ..Crossings::default() }
    }

    /// Others are told to fetch from a receiver of this zone, which serves there.
    pub(super) fn serves(&mut self, at: SocketAddr, zone: &str) {
        if !zone.is_empty() {
            self.ends.insert(canonical(at), zone.into());
        }
    }

    /// A receiver of this zone says what came from where.
    pub(super) fn came(&mut self, by: PeerId, zone: &str, ends: &[(Option<SocketAddr>, u64)]) {
        let mut counts = BTreeMap::new();
        for (end, bytes) in ends {
            let from = match end {
                None => Some(&self.home),
                Some(end) => self.ends.get(&canonical(*end)),
            };
            if let Some(from) = from {
                count(&mut counts, from, zone, *bytes);
            }
        }
        self.came.insert(by, counts);
    }

    /// The source has sent a patch to a receiver of this zone.
    pub(super) fn patched(&mut self, zone: &str, bytes: u64) {
        count(&mut self.patched, &self.home, zone, bytes);
    }

    /// Returns the bytes of each pair of zones.
    pub(super) fn bytes(&self) -> Vec<ZoneBytes> {
        let mut sums: BTreeMap<&Pair, u64> = BTreeMap::new();
        for (pair, bytes) in self.came.values().chain([&self.patched]).flatten() {
            let sum = sums.entry(pair).or_default();
            *sum = sum.saturating_add(*bytes);
        }
        let named = sums.into_iter();
        named.map(|((from, to), bytes)| ZoneBytes { from: from.clone(), to: to.clone(), bytes }).collect()
    }
}

/// Counts bytes between two zones that both have names.
fn count(counts: &mut BTreeMap<Pair, u64>, from: &str, to: &str, bytes: u64) {
    if from != to && !from.is_empty() && !to.is_empty() {
        let sum = counts.entry((from.into(), to.into())).or_default();
        *sum = sum.saturating_add(bytes);
    }
}

fn canonical(end: SocketAddr) -> SocketAddr {
    SocketAddr::new(end.ip().to_canonical(), end.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_between_two_named_zones_count() {
        let end = |port: u16| SocketAddr::from(([10, 0, 0, 1], port));
        let mut crossings = Crossings::new("a");
        crossings.serves(end(1), "b");
        crossings.serves(end(2), "c");
        crossings.serves(end(3), "");
        // A strange end, one without a zone, and one of the same zone count nowhere.
        let all = [(None, 5), (Some(end(1)), 7), (Some(end(2)), 11), (Some(end(3)), 13), (Some(end(4)), 17)];
        crossings.came(PeerId(1), "b", &all);
        crossings.came(PeerId(2), "", &all);
        crossings.came(PeerId(3), "a", &all);
        crossings.patched("b", 100);
        crossings.patched("a", 1_000);
        let bytes = |from: &str, to: &str, bytes| ZoneBytes { from: from.into(), to: to.into(), bytes };
        let expected = [bytes("a", "b", 105), bytes("b", "a", 7), bytes("c", "a", 11), bytes("c", "b", 11)];
        assert_eq!(crossings.bytes(), expected);
        // The last word of a receiver counts, and no number overflows.
        crossings.came(PeerId(3), "a", &[(Some(end(1)), u64::MAX), (Some(end(1)), 2)]);
        crossings.came(PeerId(1), "b", &[]);
        assert_eq!(crossings.bytes(), [bytes("a", "b", 100), bytes("b", "a", u64::MAX)]);
    }
}
