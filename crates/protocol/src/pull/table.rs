//! A bounded table of things by name, in an order of which the oldest is known: the ground of the pending
//! interest table and of the content store.
//!
//! Entries live in slots of one array; a hash table leads from names to slots, and links between slots hold
//! the order. Everything takes constant time, and nothing is allocated once the table has its size.

use alloc::vec::Vec;

use hashbrown::HashTable;

use super::packet::Name;

const NONE: u32 = u32::MAX;

#[derive(Clone, Debug)]
struct Slot<V> {
    name: Name,
    value: V,
    older: u32,
    newer: u32,
}

/// A bounded table of values by name.
#[derive(Clone, Debug)]
pub(super) struct NameTable<V> {
    capacity: u32,
    /// Keeps strangers from choosing names that all fall on one place.
    secret: u64,
    index: HashTable<u32>,
    slots: Vec<Slot<V>>,
    free: Vec<u32>,
    oldest: u32,
    newest: u32,
}

impl<V: Copy> NameTable<V> {
    /// A table for at most `capacity` names.
    pub(super) fn new(capacity: u32, secret: u64) -> Self {
        assert!(capacity < NONE, "slots are numbered by 32 bits");
        NameTable {
            capacity,
            secret: secret | 1,
            index: HashTable::new(),
            slots: Vec::new(),
            free: Vec::new(),
            oldest: NONE,
            newest: NONE,
        }
    }

    pub(super) fn len(&self) -> u32 {
        (self.slots.len() - self.free.len()) as u32
    }

    pub(super) fn is_full(&self) -> bool {
        self.len() == self.capacity
    }

    /// See [`super::Forwarder::check`].
    pub(super) fn check(&self) {
        assert!(self.len() <= self.capacity, "{} names in room for {}", self.len(), self.capacity);
        assert_eq!(self.index.len(), self.len() as usize, "every name is in the index, and nothing else");
        assert_eq!(self.oldest == NONE, self.len() == 0, "the order knows as many names as the table");
        assert_eq!(self.newest == NONE, self.len() == 0, "the order knows as many names as the table");
    }

    #[inline]
    pub(super) fn find(&self, name: Name) -> Option<u32> {
        let slots = &self.slots;
        self.index.find(hash(self.secret, name), |&slot| slots[slot as usize].name == name).copied()
    }

    #[cfg(test)]
    fn name(&self, slot: u32) -> Name {
        self.slots[slot as usize].name
    }

    pub(super) fn value(&self, slot: u32) -> &V {
        &self.slots[slot as usize].value
    }

    pub(super) fn value_mut(&mut self, slot: u32) -> &mut V {
        &mut self.slots[slot as usize].value
    }

    /// The slot that was entered or renewed the longest ago.
    pub(super) fn oldest(&self) -> Option<u32> {
        (self.oldest != NONE).then_some(self.oldest)
    }

    /// Enters a name that is not there, as the newest; there must be room.
    pub(super) fn insert(&mut self, name: Name, value: V) -> u32 {
        assert!(!self.is_full(), "the caller has made room for a name");
        let entry = Slot { name, value, older: NONE, newer: NONE };
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = entry;
                slot
            }
            None => {
                self.slots.push(entry);
                self.slots.len() as u32 - 1
            }
        };
        let (slots, secret) = (&self.slots, self.secret);
        self.index.insert_unique(hash(secret, name), slot, |&other| hash(secret, slots[other as usize].name));
        self.link_newest(slot);
        slot
    }

    /// Takes a slot's entry out.
    pub(super) fn remove(&mut self, slot: u32) -> V {
        let name = self.slots[slot as usize].name;
        match self.index.find_entry(hash(self.secret, name), |&other| other == slot) {
            Ok(entry) => drop(entry.remove()),
            Err(_) => unreachable!("every slot in use is in the index"),
        }
        self.unlink(slot);
        self.free.push(slot);
        self.slots[slot as usize].value
    }

    /// Makes a slot the newest.
    pub(super) fn renew(&mut self, slot: u32) {
        if self.newest != slot {
            self.unlink(slot);
            self.link_newest(slot);
        }
    }

    fn link_newest(&mut self, slot: u32) {
        let before = self.newest;
        self.slots[slot as usize].older = before;
        self.slots[slot as usize].newer = NONE;
        match before {
            NONE => self.oldest = slot,
            _ => self.slots[before as usize].newer = slot,
        }
        self.newest = slot;
    }

    fn unlink(&mut self, slot: u32) {
        let (older, newer) = (self.slots[slot as usize].older, self.slots[slot as usize].newer);
        match older {
            NONE => self.oldest = newer,
            _ => self.slots[older as usize].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            _ => self.slots[newer as usize].older = older,
        }
    }
}

/// Mixes a name with the table's secret: all of the name, since strangers choose every part of it. Each word
/// meets what only the table knows, so that none can be chosen that makes a product zero and the others count
/// for nothing.
#[inline]
fn hash(secret: u64, name: Name) -> u64 {
    let factor = (secret ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(0xd6e8_feb8_6659_fd93) | 1;
    let (front, back) = name.digest.0.split_at(8);
    let word = |bytes: &[u8]| bytes.iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
    // The last round spreads the last word.
    [name.transfer.0, name.sn, word(front), word(back), 0].into_iter().fold(secret, |state, word| {
        let product = u128::from(state ^ word) * u128::from(factor);
        product as u64 ^ (product >> 64) as u64
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pull::Digest;
    use alloc::collections::VecDeque;
    use polycast_types::Handle;
    use proptest::prelude::*;

    fn name(sn: u64) -> Name {
        Name::new(Handle(7), sn)
    }

    /// Names that fall on one place are looked through one by one. So neither do many packets of one
    /// transfer, nor many transfers, nor what a stranger asks for that chooses every byte of names: digests
    /// alone, or a part that makes others count for nothing.
    #[test]
    fn names_are_spread() {
        let digest = |byte: usize, number: u64| {
            let mut digest = Digest::default();
            digest.0[byte] = number as u8;
            name(3).with_digest(digest)
        };
        type Named = fn(u64) -> Name;
        let rows: [(&str, Named); 4] = [
            ("transfers", |number| Name::new(Handle(number), 3)),
            ("packets", name),
            ("a transfer that is no factor", |number| Name::new(Handle(0x9e37_79b9_7f4a_7c15), number << 24)),
            ("the transfer of all zeros", |number| Name::new(Handle(0), number << 56)),
        ];
        let rows = rows.into_iter().map(|(what, row)| (what, (0..256).map(row).collect::<Vec<_>>()));
        let digests = (0..16).map(|byte| ("digests", (0..256).map(|number| digest(byte, number)).collect()));
        let rows: Vec<(&str, Vec<Name>)> = rows.chain(digests).collect();
        for secret in [0x5bd1_e995_97f4_a7c5, 0x1f83_d9ab_fb41_bd6b, 0x9b05_688c_2b3e_6c1f, 1] {
            for (what, names) in &rows {
                let places: alloc::collections::BTreeSet<u64> =
                    names.iter().map(|name| hash(secret, *name)).collect();
                assert!(places.len() >= 255, "{} places for 256 {what}", places.len());
                for bit in 0..64 {
                    let set = places.iter().filter(|place| *place >> bit & 1 == 1).count();
                    assert!((64..=192).contains(&set), "bit {bit} is set in {set} of 256 places of {what}");
                }
            }
        }
    }

    proptest! {
        /// Against a list in order.
        #[test]
        fn does_what_a_list_does(
            capacity in 1u32..6,
            secret: u64,
            steps in prop::collection::vec((0u8..3, 0u64..9), 0..200),
        ) {
            let mut table = NameTable::new(capacity, secret);
            let mut list: VecDeque<(u64, usize)> = VecDeque::new();
            for (step, (what, sn)) in steps.into_iter().enumerate() {
                let place = list.iter().position(|entry| entry.0 == sn);
                let slot = table.find(name(sn));
                prop_assert_eq!(place.is_some(), slot.is_some());
                match (what, slot) {
                    (0, None) => {
                        if table.is_full() {
                            let oldest = table.oldest().unwrap();
                            prop_assert_eq!(table.name(oldest).sn, list[0].0);
                            prop_assert_eq!(table.remove(oldest), list.pop_front().unwrap().1);
                        }
                        table.insert(name(sn), step);
                        list.push_back((sn, step));
                    }
                    (1, Some(slot)) => {
                        prop_assert_eq!(table.remove(slot), list.remove(place.unwrap()).unwrap().1);
                    }
                    (2, Some(slot)) => {
                        table.renew(slot);
                        let entry = list.remove(place.unwrap()).unwrap();
                        list.push_back(entry);
                    }
                    _ => {}
                }
                prop_assert_eq!(table.len() as usize, list.len());
                prop_assert_eq!(table.oldest().map(|slot| table.name(slot).sn), list.front().map(|e| e.0));
            }
        }
    }
}
