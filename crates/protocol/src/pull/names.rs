//! The names of packets at both ends: the source makes lists of them, and a receiver learns them from the
//! lists' packets ([`super::lists`] says how these divide).
//!
//! No cipher and no hash is here: drivers give them, real ones in production and ideal ones in the simulator.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use polycast_wire::pull::{DIGEST_LEN, Digest, digest_len};

use super::blocks::Blocks;
use super::lists::ListPlace;

/// Bytes of a hash of a group.
const HASH_LEN: usize = 32;

/// The list of a section at the source.
#[derive(Clone, Debug)]
pub struct NameList {
    /// The bytes of each level, the list itself first, as they are before they are sealed.
    levels: Vec<Vec<u8>>,
    root: Digest,
}

impl NameList {
    /// Creates it from the list of a section: the hashes of its groups, then the digests of its packets.
    /// `digest_of` seals a packet of this number and returns the digest of the result.
    ///
    /// # Panics If the list does not have the length of this section's list.
    pub fn new(
        blocks: &Blocks,
        section: u64,
        list: Vec<u8>,
        mut digest_of: impl FnMut(u64, &mut Vec<u8>) -> Digest,
    ) -> Self {
        assert_eq!(list.len() as u64, blocks.list_bytes(section, 0), "all of the section is known");
        let mut levels = Vec::from([list]);
        let mut root = Digest::default();
        let mut packet = Vec::new();
        for level in 0..blocks.list_levels(section) {
            let first = blocks.list_sn(ListPlace { section, level, index: 0 });
            let mut above = Vec::new();
            for index in 0.. {
                let span = blocks.list_span(ListPlace { section, level, index });
                if span.is_empty() {
                    break;
                }
                packet.clear();
                packet.extend_from_slice(&levels[level][span.start as usize..span.end as usize]);
                root = digest_of(first + index, &mut packet);
                above.extend_from_slice(&root.0);
            }
            levels.push(above);
        }
        // What is left is the root's own digest.
        levels.pop();
        NameList { levels, root }
    }

    /// The digest of its first packet, which the source says itself.
    #[must_use]
    pub fn root(&self) -> Digest {
        self.root
    }

    /// Returns the content of the packet at a place of this section, before it is sealed.
    #[must_use]
    pub fn packet(&self, blocks: &Blocks, place: ListPlace) -> &[u8] {
        let span = blocks.list_span(place);
        &self.levels[place.level][span.start as usize..span.end as usize]
    }

    /// The digest of the packet at a place of this section.
    #[must_use]
    pub fn digest(&self, place: ListPlace) -> Option<Digest> {
        let Some(above) = self.levels.get(place.level + 1) else { return Some(self.root) };
        above.as_chunks::<DIGEST_LEN>().0.get(place.index as usize).map(|bytes| Digest(*bytes))
    }
}

/// The names that a receiver knows.
#[derive(Clone, Debug)]
pub struct Names {
    blocks: Blocks,
    /// Digests of the object's packets, as far as they are known.
    digests: Vec<Digest>,
    /// Digests of packets of lists of sections that are not whole.
    named: BTreeMap<u64, Digest>,
    /// Number of known roots.
    roots: u64,
    /// Received parts of the lists of sections that are not whole.
    lists: BTreeMap<u64, Vec<u8>>,
}

impl Names {
    /// None yet.
    #[must_use]
    pub fn new(blocks: Blocks) -> Self {
        let (named, lists) = (BTreeMap::new(), BTreeMap::new());
        Names { blocks, digests: Vec::new(), named, roots: 0, lists }
    }

    /// The roots of the lists of further sections have become known. Gives how many sections that are.
    pub fn learn(&mut self, roots: &[Digest]) -> u64 {
        for (section, root) in (self.roots..self.blocks.sections()).zip(roots) {
            self.named.insert(self.blocks.list_root(section), *root);
            self.roots = section + 1;
        }
        self.roots
    }

    /// A packet of a list has come, and is open: it names others, or is a part of the list itself.
    pub fn keep(&mut self, place: ListPlace, opened: &[u8]) {
        if place.level > 0 {
            let digests = opened.as_chunks().0.iter().map(|bytes| Digest(*bytes));
            self.named.extend(self.blocks.list_children(place).zip(digests));
            return;
        }
        let len = self.blocks.list_bytes(place.section, 0) as usize;
        let list = self.lists.entry(place.section).or_insert_with(|| alloc::vec![0; len]);
        let span = self.blocks.list_span(place);
        list[span.start as usize..span.end as usize].copy_from_slice(opened);
    }

    /// The list of a section is whole: it says the digests of its packets, and the hashes of its groups,
    /// which are given.
    ///
    /// # Panics
    /// The list is not here.
    pub fn listed(&mut self, section: u64) -> Vec<[u8; HASH_LEN]> {
        let list = self.lists.remove(&section).expect("a list that is whole is here");
        let groups = self.blocks.section_groups(section);
        let (hashes, digests) = list.split_at((groups.end - groups.start) as usize * HASH_LEN);
        for bytes in digests.chunks_exact(digest_len(self.blocks.payload_bytes())) {
            let mut digest = Digest::default();
            digest.0[..bytes.len()].copy_from_slice(bytes);
            self.digests.push(digest);
        }
        let numbers = self.blocks.list_numbers(section);
        self.named.retain(|sn, _| !numbers.contains(sn));
        hashes.as_chunks().0.to_vec()
    }

    /// The digest of a packet, if it is known.
    #[must_use]
    pub fn digest(&self, sn: u64) -> Option<Digest> {
        self.digests.get(usize::try_from(sn).ok()?).or_else(|| self.named.get(&sn)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polycast_wire::pull::digest_len;
    use proptest::prelude::*;

    /// Stands for a keyed hash: no two packets have one.
    fn digest(sn: u64, payload: &[u8]) -> Digest {
        let sum = payload.iter().fold(sn, |sum, byte| sum.wrapping_mul(0x100_0000_01b3) ^ u64::from(*byte));
        let mut digest = Digest::default();
        digest.0[..8].copy_from_slice(&sum.to_be_bytes());
        digest.0[8..].copy_from_slice(&sn.to_be_bytes());
        digest
    }

    proptest! {
        /// A receiver that knows the roots learns every name, each from a packet that was named before, and
        /// the hashes.
        #[test]
        fn a_receiver_learns_from_lists_what_the_source_put_in(
            object in 0u64..400_000, payload in 64u16..2_000, shift in 8u32..14,
        ) {
            let blocks = Blocks::new(object, payload, 10_000).unwrap().with_lists(1 << shift).unwrap();
            let short = digest_len(payload);
            let mut names = Names::new(blocks);
            for section in 0..blocks.sections() {
                let groups = blocks.section_groups(section);
                let hashes: Vec<[u8; 32]> = groups.map(|group| [group as u8; 32]).collect();
                let mut list: Vec<u8> = hashes.iter().flatten().copied().collect();
                let packets = blocks.section_packets(section);
                packets.clone().for_each(|sn| list.extend_from_slice(&digest(sn, b"x").0[..short]));
                let made = NameList::new(&blocks, section, list, |sn, packet| {
                    packet.iter_mut().for_each(|byte| *byte ^= 9);
                    digest(sn, packet)
                });
                prop_assert_eq!(names.learn(&[made.root()]), section + 1);
                let mut next = Vec::from([blocks.list_root(section)]);
                while let Some(sn) = next.pop() {
                    let place = blocks.list_place(sn).unwrap();
                    let opened = made.packet(&blocks, place).to_vec();
                    let sealed: Vec<u8> = opened.iter().map(|byte| byte ^ 9).collect();
                    prop_assert_eq!(opened.len(), usize::from(blocks.length_of(sn)));
                    prop_assert_eq!(names.digest(sn), Some(digest(sn, &sealed)), "named before it comes");
                    prop_assert_eq!(made.digest(place), names.digest(sn));
                    names.keep(place, &opened);
                    next.extend(blocks.list_children(place));
                }
                prop_assert_eq!(names.listed(section), hashes);
                for sn in packets {
                    let mut right = Digest::default();
                    right.0[..short].copy_from_slice(&digest(sn, b"x").0[..short]);
                    prop_assert_eq!(names.digest(sn), Some(right));
                }
                prop_assert_eq!(names.digest(blocks.list_root(section)), None, "what is read is forgotten");
            }
            prop_assert_eq!(names.learn(&[Digest::default()]), blocks.sections(), "there are no more");
            prop_assert_eq!(names.digest(blocks.packets()), None);
        }
    }
}
