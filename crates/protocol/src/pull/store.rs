//! The content store: the packets that a forwarder keeps (Datacast, section 6.1).
//!
//! Two parts, each of which forgets what was used the longest ago: nine tenths for packets that the source sent
//! for the first time, and one tenth for retransmissions, so that a receiver that lags behind does not push out
//! what the others are about to ask for.

use super::packet::{Data, Decision, Name};
use super::table::NameTable;

/// What is kept of a packet beside its name; the payload lies with the driver.
#[derive(Clone, Copy, Debug)]
struct Kept {
    decision: Decision,
    length: u16,
}

/// A packet that was found in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) decision: Decision,
    pub(super) length: u16,
    pub(super) again: bool,
}

/// A bounded set of packets.
#[derive(Clone, Debug)]
pub(super) struct ContentStore {
    first: NameTable<Kept>,
    again: NameTable<Kept>,
    first_capacity: u32,
    again_capacity: u32,
}

impl ContentStore {
    /// A store for `packets` packets: a tenth, rounded down, is for retransmissions.
    pub(super) fn new(packets: u32, secret: u64) -> Self {
        let again_capacity = packets / 10;
        let first_capacity = packets - again_capacity;
        ContentStore {
            first: NameTable::new(first_capacity, secret),
            again: NameTable::new(again_capacity, secret),
            first_capacity,
            again_capacity,
        }
    }

    /// How many packets are kept.
    pub(super) fn len(&self) -> u32 {
        self.first.len() + self.again.len()
    }

    /// The packet of that name, without its route, and the slot of its payload.
    pub(super) fn get(&mut self, name: Name) -> Option<(Held, u32)> {
        if let Some(slot) = self.first.find(name) {
            self.first.renew(slot);
            let kept = *self.first.value(slot);
            return Some((Held { decision: kept.decision, length: kept.length, again: false }, slot));
        }
        let slot = self.again.find(name)?;
        self.again.renew(slot);
        let kept = *self.again.value(slot);
        let kept = Held { decision: kept.decision, length: kept.length, again: true };
        Some((kept, self.first_capacity + slot))
    }

    /// Keeps a packet and gives the slot for its payload; `None` if that part of the store has no room at all.
    pub(super) fn put(&mut self, data: &Data) -> Option<u32> {
        let kept = Kept { decision: data.decision, length: data.length };
        if let Some(slot) = self.first.find(data.name) {
            *self.first.value_mut(slot) = kept;
            self.first.renew(slot);
            return Some(slot);
        }
        if let Some(slot) = self.again.find(data.name) {
            *self.again.value_mut(slot) = kept;
            self.again.renew(slot);
            return Some(self.first_capacity + slot);
        }
        let (part, capacity, base) = if data.again {
            (&mut self.again, self.again_capacity, self.first_capacity)
        } else {
            (&mut self.first, self.first_capacity, 0)
        };
        if capacity == 0 {
            return None;
        }
        if part.is_full() {
            let oldest = part.oldest().expect("a full table is not empty");
            part.remove(oldest);
        }
        Some(base + part.insert(data.name, kept))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pull::{Hop, Route};
    use polycast_types::Handle;

    fn data(sn: u64, again: bool) -> Data {
        Data {
            name: Name { transfer: Handle(1), sn },
            route: Route::new(&[Hop { port: 0, non_branching: false }]).unwrap(),
            decision: Decision::Open,
            length: 1428,
            tree: 0,
            again,
        }
    }

    fn has(store: &mut ContentStore, sn: u64) -> bool {
        store.get(data(sn, false).name).is_some()
    }

    #[test]
    fn the_packet_used_the_longest_ago_goes_first() {
        let mut store = ContentStore::new(3, 5);
        for sn in 0..3 {
            store.put(&data(sn, false)).unwrap();
        }
        assert!(has(&mut store, 0));
        store.put(&data(3, false)).unwrap();
        assert!(has(&mut store, 0) && !has(&mut store, 1) && has(&mut store, 2) && has(&mut store, 3));
        assert_eq!(store.len(), 3);
    }

    #[test]
    fn retransmissions_have_a_tenth_of_their_own() {
        let mut store = ContentStore::new(20, 5);
        let slots: alloc::collections::BTreeSet<_> =
            (0..18).map(|sn| store.put(&data(sn, false)).unwrap()).collect();
        for sn in 100..110 {
            let slot = store.put(&data(sn, true)).unwrap();
            assert!((18..20).contains(&slot) && !slots.contains(&slot));
        }
        assert!((0..18).all(|sn| has(&mut store, sn)), "retransmissions push out only each other");
        assert!(has(&mut store, 108) && has(&mut store, 109) && !has(&mut store, 107));
        assert_eq!(store.len(), 20);
    }

    #[test]
    fn small_stores_have_no_room_for_retransmissions() {
        let mut none = ContentStore::new(0, 5);
        assert_eq!(none.put(&data(0, false)), None);
        let mut one = ContentStore::new(1, 5);
        assert_eq!((one.put(&data(0, false)), one.put(&data(1, true))), (Some(0), None));
        assert_eq!(one.put(&data(2, false)), Some(0));
        assert!(!has(&mut one, 0) && has(&mut one, 2));
    }
}
