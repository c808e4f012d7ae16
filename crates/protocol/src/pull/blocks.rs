//! Division of an object into packets and blocks (Datacast, section 5.2), and a set of packets.

use alloc::vec::Vec;
use core::ops::Range;

/// Division of an object's lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) group_bytes: u32,
    pub(super) groups: u64,
    pub(super) sections: u64,
    /// Numbers that each section has for its packets.
    pub(super) stride: u64,
}

/// The division of an object into packets, and of packets into the blocks that trees carry as wholes.
///
/// Packet `sn` holds the bytes from `sn * payload_bytes` on; only the last one is shorter. An empty object
/// has one empty packet, so that the protocol is the same for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    object_bytes: u64,
    payload_bytes: u16,
    block_packets: u64,
    pub(super) lists: Option<Shape>,
}

impl Blocks {
    /// Divides an object of `object_bytes` into packets of `payload_bytes`, and these into blocks of at least
    /// `block_bytes`; the paper's blocks have 100 MB. `None` if a size is zero or there would be 2^32 blocks.
    #[must_use]
    pub fn new(object_bytes: u64, payload_bytes: u16, block_bytes: u64) -> Option<Self> {
        if payload_bytes == 0 || block_bytes == 0 {
            return None;
        }
        let block_packets = block_bytes.div_ceil(payload_bytes.into());
        let blocks = Blocks { object_bytes, payload_bytes, block_packets, lists: None };
        (blocks.packets().div_ceil(block_packets) < u64::from(u32::MAX)).then_some(blocks)
    }

    /// The size of blocks for an object over so many trees, in bytes: the paper's 100 MB, or less where that
    /// would leave trees idle. 32 blocks for every tree keep the end, where trees finish one after the other,
    /// below a few percent; a block of fewer packets than a receiver may ask for at a time would make trees
    /// wait for decisions.
    #[must_use]
    pub fn bytes_for(object_bytes: u64, payload_bytes: u16, trees: u8, credits: u32) -> u64 {
        let least = u64::from(payload_bytes.max(1)) * u64::from(credits.max(1)) * 4;
        (object_bytes / (u64::from(trees.max(1)) * 32)).min(100_000_000).max(least)
    }

    /// Bytes of the object.
    #[must_use]
    pub fn object_bytes(&self) -> u64 {
        self.object_bytes
    }

    /// Bytes of payload in all packets but the last.
    #[must_use]
    pub fn payload_bytes(&self) -> u16 {
        self.payload_bytes
    }

    /// Returns the number of packets of the object; at least one.
    #[must_use]
    pub fn packets(&self) -> u64 {
        self.object_bytes.div_ceil(self.payload_bytes.into()).max(1)
    }

    /// Returns the number of blocks; at least one.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.packets().div_ceil(self.block_packets) as u32
    }

    /// The block that holds packet `sn`.
    #[must_use]
    pub fn block_of(&self, sn: u64) -> u32 {
        (sn / self.block_packets) as u32
    }

    /// The packets of a block.
    #[must_use]
    pub fn packets_of(&self, block: u32) -> Range<u64> {
        let start = (u64::from(block) * self.block_packets).min(self.packets());
        start..(start + self.block_packets).min(self.packets())
    }

    /// Bytes of payload in packet `sn`.
    #[must_use]
    pub fn length_of(&self, sn: u64) -> u16 {
        if let Some(place) = self.list_place(sn) {
            let span = self.list_span(place);
            return (span.end - span.start) as u16;
        }
        let size = u64::from(self.payload_bytes);
        self.object_bytes.saturating_sub(sn * size).min(size) as u16
    }
}

/// A set of packets, a bit each.
#[derive(Clone, Debug)]
pub(super) struct Bits {
    words: Vec<u64>,
    set: u64,
}

impl Bits {
    /// The empty set of packets below `len`.
    pub(super) fn new(len: u64) -> Self {
        Bits { words: alloc::vec![0; len.div_ceil(64) as usize], set: 0 }
    }

    pub(super) fn count(&self) -> u64 {
        self.set
    }

    #[inline]
    pub(super) fn has(&self, sn: u64) -> bool {
        self.words[(sn / 64) as usize] >> (sn % 64) & 1 == 1
    }

    /// Adds a packet; false if it was there.
    #[inline]
    pub(super) fn insert(&mut self, sn: u64) -> bool {
        let new = !self.has(sn);
        self.words[(sn / 64) as usize] |= 1 << (sn % 64);
        self.set += u64::from(new);
        new
    }

    /// Takes a packet out; false if it was not there.
    pub(super) fn remove(&mut self, sn: u64) -> bool {
        let there = self.has(sn);
        self.words[(sn / 64) as usize] &= !(1 << (sn % 64));
        self.set -= u64::from(there);
        there
    }

    /// The first packet of `within` that is not in the set.
    pub(super) fn first_missing(&self, within: Range<u64>) -> Option<u64> {
        let mut sn = within.start;
        while sn < within.end {
            let missing = !self.words[(sn / 64) as usize] >> (sn % 64);
            if missing != 0 {
                let found = sn + u64::from(missing.trailing_zeros());
                return (found < within.end).then_some(found);
            }
            sn = (sn / 64 + 1) * 64;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;
    use proptest::prelude::*;

    #[test]
    fn blocks_are_whole_packets() {
        let blocks = Blocks::new(1_000_000_000, 1428, 100_000_000).unwrap();
        assert_eq!((blocks.packets(), blocks.count()), (700_281, 10));
        assert_eq!(blocks.packets_of(9).end, 700_281);
        assert_eq!((blocks.length_of(0), blocks.length_of(700_280)), (1428, 160));
        assert_eq!((blocks.block_of(70_028), blocks.block_of(70_029)), (0, 1));
        let empty = Blocks::new(0, 10, 100).unwrap();
        assert_eq!((empty.packets(), empty.count(), empty.length_of(0)), (1, 1, 0));
        assert!(Blocks::new(1, 0, 1).is_none() && Blocks::new(1, 1, 0).is_none());
        assert!(Blocks::new(u64::MAX, 1, 1).is_none());
    }

    #[test]
    fn small_objects_use_all_trees_and_large_ones_have_the_papers_blocks() {
        assert_eq!(Blocks::bytes_for(100 << 30, 8192, 2, 16), 100_000_000);
        for object in [8 << 20, 99_000_000, 1 << 30] {
            let blocks = Blocks::new(object, 8192, Blocks::bytes_for(object, 8192, 4, 16)).unwrap();
            assert!(blocks.count() >= 4, "{object}: {}", blocks.count());
        }
        assert_eq!(Blocks::bytes_for(1000, 8192, 2, 16), 8192 * 64);
    }

    /// Whole words of packets, and their borders.
    #[test]
    fn the_first_missing_packet_is_found_over_words() {
        for held in [0u64, 1, 63, 64, 65, 127, 128, 129, 190] {
            let mut bits = Bits::new(200);
            (0..held).for_each(|sn| assert!(bits.insert(sn)));
            assert!((0..200).all(|sn| bits.has(sn) == (sn < held)));
            for from in 0..200 {
                let missing = (held.max(from) < 195).then_some(held.max(from));
                assert_eq!(bits.first_missing(from..195), missing, "{held} are there, from {from}");
            }
            assert_eq!(bits.first_missing(0..held), None);
        }
    }

    proptest! {
        #[test]
        fn bits_are_a_set(len in 1u64..200, steps in prop::collection::vec((any::<bool>(), 0u64..200), 0..200)) {
            let (mut bits, mut set) = (Bits::new(len), BTreeSet::new());
            for (add, sn) in steps {
                let sn = sn % len;
                if add {
                    prop_assert_eq!(bits.insert(sn), set.insert(sn));
                } else {
                    prop_assert_eq!(bits.remove(sn), set.remove(&sn));
                }
                prop_assert_eq!(bits.count(), set.len() as u64);
                let missing = (sn..len).find(|other| !set.contains(other));
                prop_assert_eq!(bits.first_missing(sn..len), missing);
            }
        }
    }
}
