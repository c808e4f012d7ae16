//! The content store: the packets that a forwarder keeps (Datacast, section 6.1).
//!
//! Two parts: nine tenths for packets that the source sent for the first time, and one tenth for
//! retransmissions, so that a receiver that lags behind does not push out what the others are about to ask
//! for.

use super::packet::{Data, Decision, Name};
use super::table::NameTable;

/// Choice of the packet that a full store forgets.
///
/// The paper forgets the packet that was used the longest ago. A receiver that lags behind then keeps alive,
/// by using them, packets that it has and that no receiver requests any longer, at the cost of those that it
/// will request next; stores that few pass on their way to the source keep more than those nearby, and the
/// receiver is served from far. To forget the packet that came the longest ago costs nothing else, so
/// [`Replacement::default`] does that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Replacement {
    /// The packet that came the longest ago.
    #[default]
    Oldest,
    /// The packet that was used the longest ago (LRU), as in the paper.
    LeastRecentlyUsed,
}

/// Data kept of a packet beside its name; the payload lies with the driver.
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
    replacement: Replacement,
}

impl ContentStore {
    /// A store for `packets` packets: a tenth, rounded down, is for retransmissions.
    pub(super) fn new(packets: u32, replacement: Replacement, secret: u64) -> Self {
        let again_capacity = packets / 10;
        let first_capacity = packets - again_capacity;
        ContentStore {
            first: NameTable::new(first_capacity, secret),
            again: NameTable::new(again_capacity, secret),
            first_capacity,
            again_capacity,
            replacement,
        }
    }

    /// Returns the number of packets kept.
    pub(super) fn len(&self) -> u32 {
        self.first.len() + self.again.len()
    }

    /// See [`super::Forwarder::check`].
    pub(super) fn check(&self) {
        self.first.check();
        self.again.check();
    }

    /// The packet of that name, without its route, and the slot of its payload.
    pub(super) fn get(&mut self, name: Name) -> Option<(Held, u32)> {
        let renews = self.replacement == Replacement::LeastRecentlyUsed;
        if let Some(slot) = self.first.find(name) {
            let kept = *self.first.value(slot);
            if renews {
                self.first.renew(slot);
            }
            return Some((Held { decision: kept.decision, length: kept.length, again: false }, slot));
        }
        let slot = self.again.find(name)?;
        let kept = *self.again.value(slot);
        if renews {
            self.again.renew(slot);
        }
        let kept = Held { decision: kept.decision, length: kept.length, again: true };
        Some((kept, self.first_capacity + slot))
    }

    /// Keeps a packet and gives the slot for its payload; `None` if that part of the store has no room at
    /// all.
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
            name: Name::new(Handle(1), sn),
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
    fn the_oldest_packet_goes_first_or_the_one_used_the_longest_ago() {
        for (replacement, gone) in [(Replacement::Oldest, 0), (Replacement::LeastRecentlyUsed, 1)] {
            let mut store = ContentStore::new(3, replacement, 5);
            for sn in 0..3 {
                store.put(&data(sn, false)).unwrap();
            }
            assert!(has(&mut store, 0));
            store.put(&data(3, false)).unwrap();
            for sn in 0..4 {
                assert_eq!(has(&mut store, sn), sn != gone);
            }
            assert_eq!(store.len(), 3);
        }
    }

    #[test]
    fn retransmissions_have_a_tenth_of_their_own() {
        let mut store = ContentStore::new(20, Replacement::Oldest, 5);
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
        let mut none = ContentStore::new(0, Replacement::Oldest, 5);
        assert_eq!(none.put(&data(0, false)), None);
        let mut one = ContentStore::new(1, Replacement::Oldest, 5);
        assert_eq!((one.put(&data(0, false)), one.put(&data(1, true))), (Some(0), None));
        assert_eq!(one.put(&data(2, false)), Some(0));
        assert!(!has(&mut one, 0) && has(&mut one, 2));
    }
}
