//! The lists of names: what has to be known of packets before they may be asked for, in packets that are
//! pulled themselves.
//!
//! A receiver may ask for a packet when it knows its digest. To tell every receiver all digests would cost
//! the source more than the object, once there are enough receivers. So they travel like the object: an
//! object divides into *sections*, and the list of a section (the hashes of its groups, then the digests of
//! the packets that begin in it) is cut into packets. The digests of these fill packets of the next level,
//! and so on, until one packet is left: the section's *root*. Only its digest comes from the source itself.
//! Sections grow, so that the first packets may travel while the source still reads the object.
//!
//! Packets of lists have numbers behind those of the object, the same count for each section, the root first.

use alloc::collections::BTreeMap;
use core::ops::Range;

use polycast_wire::pull::{DIGEST_LEN, digest_len};

use super::blocks::{Blocks, Shape};

/// Groups of the first section; the next ones have twice as many as the one before.
pub const SECTION_GROUPS: u64 = 8;
/// From the section of this number on all have the same size.
const GROWS_UNTIL: u64 = 5;
/// Bytes of a hash of a group.
const HASH_LEN: u64 = 32;
/// Packets that carry lists hold at least so much: four digests.
const PAYLOAD_LEAST: u16 = 64;
/// Levels of a list; with the least payload there are ten.
const LEVELS_MAX: usize = 12;
/// So many sections are asked for at a time.
const SECTIONS_AT_ONCE: u64 = 3;

/// Position of a packet of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListPlace {
    /// The section.
    pub section: u64,
    /// 0 for the list itself; each packet above names those of the level below.
    pub level: usize,
    /// Its place in the level.
    pub index: u64,
}

/// The bytes of each level of a section's list, the list itself first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Levels {
    bytes: [u64; LEVELS_MAX],
    count: usize,
    payload: u64,
}

impl Levels {
    fn of(list_bytes: u64, payload: u64) -> Self {
        let mut levels = Levels { bytes: [0; LEVELS_MAX], count: 1, payload };
        levels.bytes[0] = list_bytes;
        while levels.packets(levels.count - 1) > 1 {
            levels.bytes[levels.count] = levels.packets(levels.count - 1) * DIGEST_LEN as u64;
            levels.count += 1;
        }
        levels
    }

    /// Bytes of a full packet. A digest lies in one packet, and the list itself is put together before it is
    /// read.
    fn room(&self, level: usize) -> u64 {
        if level == 0 { self.payload } else { self.payload / DIGEST_LEN as u64 * DIGEST_LEN as u64 }
    }

    fn packets(&self, level: usize) -> u64 {
        self.bytes[level].div_ceil(self.room(level))
    }

    /// Packets of the levels above this one.
    fn above(&self, level: usize) -> u64 {
        (level + 1..self.count).map(|above| self.packets(above)).sum()
    }

    fn total(&self) -> u64 {
        (0..self.count).map(|level| self.packets(level)).sum()
    }
}

impl Blocks {
    /// The same division, with lists of names for hash groups of `group_bytes`. `None` if the payload is too
    /// short to carry them.
    #[must_use]
    pub fn with_lists(mut self, group_bytes: u32) -> Option<Self> {
        if self.payload_bytes() < PAYLOAD_LEAST || group_bytes == 0 {
            return None;
        }
        let groups = self.object_bytes().div_ceil(group_bytes.into()).max(1);
        let sections = section_of(groups - 1) + 1;
        let most = (SECTION_GROUPS << GROWS_UNTIL).min(groups);
        // One packet more may begin in it than its bytes fill.
        let packets = (most * u64::from(group_bytes)).div_ceil(self.payload_bytes().into()) + 1;
        let list = most * HASH_LEN + packets * digest_len(self.payload_bytes()) as u64;
        let stride = Levels::of(list, self.payload_bytes().into()).total();
        self.lists = Some(Shape { group_bytes, groups, sections, stride });
        Some(self)
    }

    /// Returns the number of sections; zero where names do not travel in lists.
    #[must_use]
    pub fn sections(&self) -> u64 {
        self.lists.map_or(0, |shape| shape.sections)
    }

    /// One more than the largest number of a packet, of the object or of a list.
    #[must_use]
    pub fn numbers(&self) -> u64 {
        self.packets() + self.lists.map_or(0, |shape| shape.sections * shape.stride)
    }

    /// Returns true if there is a packet of this number.
    #[must_use]
    pub fn exists(&self, sn: u64) -> bool {
        sn < self.packets() || self.list_place(sn).is_some()
    }

    /// The hash groups of a section.
    #[must_use]
    pub fn section_groups(&self, section: u64) -> Range<u64> {
        let groups = self.lists.map_or(0, |shape| shape.groups);
        first_group(section).min(groups)..first_group(section + 1).min(groups)
    }

    /// The packets whose names the list of a section holds.
    #[must_use]
    pub fn section_packets(&self, section: u64) -> Range<u64> {
        let Some(shape) = self.lists else { return 0..0 };
        let groups = self.section_groups(section);
        let first = |group: u64| {
            if group == shape.groups {
                return self.packets();
            }
            (group * u64::from(shape.group_bytes)).div_ceil(self.payload_bytes().into())
        };
        first(groups.start)..first(groups.end)
    }

    /// The numbers that the packets of a section's list have; there may be fewer of these.
    #[must_use]
    pub fn list_numbers(&self, section: u64) -> Range<u64> {
        let stride = self.lists.map_or(0, |shape| shape.stride);
        let first = self.packets() + section * stride;
        first..first + stride
    }

    /// Returns the number of levels of a section's list; the packet of the highest one is its root.
    #[must_use]
    pub fn list_levels(&self, section: u64) -> usize {
        self.levels(section).count
    }

    /// Bytes of a level of a section's list.
    #[must_use]
    pub fn list_bytes(&self, section: u64, level: usize) -> u64 {
        self.levels(section).bytes[level]
    }

    fn levels(&self, section: u64) -> Levels {
        let (groups, packets) = (self.section_groups(section), self.section_packets(section));
        let digests = (packets.end - packets.start) * digest_len(self.payload_bytes()) as u64;
        Levels::of((groups.end - groups.start) * HASH_LEN + digests, self.payload_bytes().into())
    }

    /// The number of a packet of a list.
    #[must_use]
    pub fn list_sn(&self, place: ListPlace) -> u64 {
        let stride = self.lists.map_or(0, |shape| shape.stride);
        self.packets() + place.section * stride + self.levels(place.section).above(place.level) + place.index
    }

    /// The number of a section's root.
    #[must_use]
    pub fn list_root(&self, section: u64) -> u64 {
        self.list_sn(ListPlace { section, level: self.list_levels(section) - 1, index: 0 })
    }

    /// Returns the position of the packet of this number, if it belongs to a list.
    #[must_use]
    pub fn list_place(&self, sn: u64) -> Option<ListPlace> {
        let shape = self.lists?;
        let at = sn.checked_sub(self.packets())?;
        let (section, mut index) = (at / shape.stride, at % shape.stride);
        if section >= shape.sections {
            return None;
        }
        let levels = self.levels(section);
        for level in (0..levels.count).rev() {
            let packets = levels.packets(level);
            if index < packets {
                return Some(ListPlace { section, level, index });
            }
            index -= packets;
        }
        None
    }

    /// The numbers of the packets that this one names; none for one of the list itself.
    #[must_use]
    pub fn list_children(&self, place: ListPlace) -> Range<u64> {
        let Some(below) = place.level.checked_sub(1) else { return 0..0 };
        let levels = self.levels(place.section);
        let each = self.list_fan_out();
        let whole = self.list_sn(ListPlace { section: place.section, level: below, index: 0 });
        let children = place.index * each..((place.index + 1) * each).min(levels.packets(below));
        whole + children.start..whole + children.end
    }

    /// Returns the maximum number of packets that a packet of a list names.
    #[must_use]
    pub fn list_fan_out(&self) -> u64 {
        u64::from(self.payload_bytes()) / DIGEST_LEN as u64
    }

    /// The bytes of its level that a packet of a list carries.
    #[must_use]
    pub fn list_span(&self, place: ListPlace) -> Range<u64> {
        let levels = self.levels(place.section);
        let start = place.index * levels.room(place.level);
        start..(start + levels.room(place.level)).min(levels.bytes[place.level])
    }
}

fn first_group(section: u64) -> u64 {
    let units = match section.checked_sub(GROWS_UNTIL) {
        None => (1 << section) - 1,
        Some(more) => (1 << GROWS_UNTIL) - 1 + (more << GROWS_UNTIL),
    };
    units * SECTION_GROUPS
}

fn section_of(group: u64) -> u64 {
    let unit = group / SECTION_GROUPS;
    match unit.checked_sub((1 << GROWS_UNTIL) - 1) {
        None => u64::from((unit + 1).ilog2()),
        Some(more) => GROWS_UNTIL + (more >> GROWS_UNTIL),
    }
}

/// State of the lists at a receiver.
#[derive(Clone, Debug, Default)]
pub(super) struct Lists {
    /// Sections whose roots have been told.
    told: u64,
    /// Sections that are asked for, or were.
    begun: u64,
    /// Sections, from the first one on, whose names are all known.
    done: u64,
    /// Number of packets that each requested section still lacks.
    left: BTreeMap<u64, u64>,
    /// Packets of lists that are there.
    packets: u64,
}

impl Lists {
    pub(super) fn packets(&self) -> u64 {
        self.packets
    }

    pub(super) fn told(&mut self, blocks: &Blocks, until: u64) {
        self.told = self.told.max(until.min(blocks.sections()));
    }

    /// The root of the next section, if it is to be asked for now.
    pub(super) fn begin(&mut self, blocks: &Blocks) -> Option<u64> {
        if self.begun >= self.told || self.begun - self.done >= SECTIONS_AT_ONCE {
            return None;
        }
        let section = self.begun;
        self.begun += 1;
        self.left.insert(section, blocks.levels(section).total());
        Some(blocks.list_root(section))
    }

    /// A packet of a list that was named has come; it was not there before.
    pub(super) fn keep(&mut self, place: ListPlace) {
        self.packets += 1;
        let left =
            self.left.get_mut(&place.section).expect("what is named belongs to a section that is asked for");
        *left -= 1;
    }

    /// Returns true while the section is requested.
    pub(super) fn has_begun(&self, section: u64) -> bool {
        self.left.contains_key(&section)
    }

    /// The next section, in their order, whose names are all known now.
    pub(super) fn complete(&mut self) -> Option<u64> {
        self.left.get(&self.done).filter(|left| **left == 0)?;
        self.left.remove(&self.done);
        self.done += 1;
        Some(self.done - 1)
    }

    /// Returns true if a list is still needed when all packets are there. Its hashes are needed then: the
    /// last section may have the end of a packet that begins in the one before, and none of its own; and
    /// packets that a receiver has requested before its connection ended may arrive before the new connection
    /// has their list.
    pub(super) fn waits_for_hashes(&self, blocks: &Blocks) -> bool {
        self.done < blocks.sections()
    }

    /// Packets of the object below this number have names.
    pub(super) fn known(&self, blocks: &Blocks) -> u64 {
        if self.done == blocks.sections() {
            blocks.packets()
        } else {
            blocks.section_packets(self.done).start
        }
    }

    pub(super) fn check(&self, blocks: &Blocks) {
        assert!(self.done <= self.begun && self.begun <= self.told && self.told <= blocks.sections());
        assert!(self.begun - self.done <= SECTIONS_AT_ONCE, "too many sections are asked for");
        assert!(self.left.keys().all(|section| (self.done..self.begun).contains(section)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Every packet of the object has one name, every packet of a list one place, and each but the roots
        /// one parent.
        #[test]
        fn lists_name_every_packet_once(object in 0u64..3_000_000, payload in 64u16..9_000, shift in 8u32..19) {
            let blocks = Blocks::new(object, payload, 10_000).unwrap();
            prop_assert_eq!((blocks.sections(), blocks.numbers()), (0, blocks.packets()));
            let blocks = blocks.with_lists(1 << shift).unwrap();
            let (mut groups, mut packets, mut numbers) = (0, 0, blocks.packets());
            for section in 0..blocks.sections() {
                let (own_groups, own) = (blocks.section_groups(section), blocks.section_packets(section));
                prop_assert_eq!((own_groups.start, own.start), (groups, packets));
                prop_assert!(own_groups.end > groups);
                prop_assert!(own_groups.contains(&own_groups.start) && section_of(own_groups.end - 1) == section);
                (groups, packets) = (own_groups.end, own.end);
                let bytes = blocks.list_bytes(section, 0);
                prop_assert_eq!(
                    bytes, (own_groups.end - own_groups.start) * 32 + (own.end - own.start) * digest_len(payload) as u64
                );
                let mut next = alloc::vec![blocks.list_root(section)..blocks.list_root(section) + 1];
                prop_assert!(next[0].start >= numbers);
                let (mut seen, mut list) = (blocks.list_root(section), 0);
                while let Some(sns) = next.pop() {
                    for sn in sns {
                        let place = blocks.list_place(sn).unwrap();
                        prop_assert_eq!((blocks.list_sn(place), place.section), (sn, section));
                        prop_assert!(blocks.exists(sn) && sn < blocks.numbers());
                        let span = blocks.list_span(place);
                        prop_assert_eq!(span.end - span.start, u64::from(blocks.length_of(sn)));
                        prop_assert!(blocks.length_of(sn) > 0 && blocks.length_of(sn) <= payload);
                        list += if place.level == 0 { span.end - span.start } else { 0 };
                        let children = blocks.list_children(place);
                        if place.level > 0 {
                            prop_assert_eq!((children.end - children.start) * 16, span.end - span.start);
                        }
                        next.insert(0, children);
                        seen += 1;
                    }
                }
                prop_assert_eq!(list, bytes);
                numbers = seen;
                prop_assert!(!blocks.exists(seen) || blocks.list_root(section + 1) == seen);
            }
            prop_assert_eq!((groups, packets), (object.div_ceil(1 << shift).max(1), blocks.packets()));
            prop_assert!(numbers <= blocks.numbers() && !blocks.exists(blocks.numbers()));
            prop_assert!(!blocks.exists(u64::MAX));
        }
    }

    #[test]
    fn names_cost_less_than_half_a_percent_of_an_object() {
        for (payload, share) in [(1_416u16, 0.0045), (8_192, 0.0022)] {
            let object = 1u64 << 30;
            let blocks = Blocks::new(object, payload, 100_000_000).unwrap().with_lists(1 << 18).unwrap();
            let packets = (blocks.packets()..blocks.numbers()).filter(|sn| blocks.exists(*sn));
            let bytes: u64 = packets.map(|sn| u64::from(blocks.length_of(sn))).sum();
            assert!((bytes as f64) < object as f64 * share, "{bytes} bytes in packets of {payload}");
        }
        assert!(Blocks::new(1_000, 63, 1_000).unwrap().with_lists(1 << 18).is_none());
    }
}
