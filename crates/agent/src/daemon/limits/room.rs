//! Amount to remove so that an object has room: the limit of a store, the space left in its file system, and
//! for one in memory the memory left in its control group, each less the amount promised to other objects on
//! their way.

/// Bytes that an object takes besides its contents: its description, and the rounding of file systems.
const BESIDE_BYTES: u64 = 64 << 10;

/// The room that there is when an object is about to come.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Room {
    /// Bytes of the object.
    pub coming_bytes: u64,
    /// Bytes of the object that an earlier try has left, which take up room already.
    pub written_bytes: u64,
    /// Lengths of the other objects that are here or come, and of what tries to receive others have left.
    pub used_bytes: u64,
    /// Bytes of others on their way that are still to be written.
    pub promised_bytes: u64,
    /// The store may hold so much (store-max).
    pub most_bytes: Option<u64>,
    /// Its file system has so much left.
    pub free_bytes: Option<u64>,
    /// The memory that it lies in has so much left.
    pub memory_bytes: Option<u64>,
}

/// Amount to remove.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Lack {
    /// Lengths, as `store-max` counts them.
    pub length_bytes: u64,
    /// Bytes as they lie there, as file systems and memory count them.
    pub written_bytes: u64,
}

impl Room {
    /// Returns the space or memory left, whichever is less, after the promises to others.
    pub(super) fn left_bytes(&self) -> Option<u64> {
        let left = self.free_bytes.into_iter().chain(self.memory_bytes).min()?;
        Some(left.saturating_sub(self.promised_bytes))
    }

    /// Returns true if memory is scarcer than space.
    pub(super) fn is_short_of_memory(&self) -> bool {
        self.memory_bytes.is_some_and(|memory| self.free_bytes.is_none_or(|free| memory < free))
    }

    /// Returns the amount to remove so that the object has room.
    pub(super) fn lack(&self) -> Lack {
        let total = self.used_bytes.saturating_add(self.coming_bytes);
        let to_write = self.coming_bytes.saturating_sub(self.written_bytes).saturating_add(BESIDE_BYTES);
        Lack {
            length_bytes: self.most_bytes.map_or(0, |most| total.saturating_sub(most)),
            written_bytes: self.left_bytes().map_or(0, |left| to_write.saturating_sub(left)),
        }
    }
}

impl Lack {
    pub(super) fn is_met(&self) -> bool {
        *self == Lack::default()
    }

    /// Returns true if it helps to remove something that frees this amount.
    pub(super) fn is_helped_by(&self, gives: Lack) -> bool {
        self.length_bytes > 0 && gives.length_bytes > 0 || self.written_bytes > 0 && gives.written_bytes > 0
    }

    /// Returns the remaining lack once this amount is freed, too.
    pub(super) fn less(&self, gives: Lack) -> Lack {
        Lack {
            length_bytes: self.length_bytes.saturating_sub(gives.length_bytes),
            written_bytes: self.written_bytes.saturating_sub(gives.written_bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_short_decides() {
        let room = Room { coming_bytes: 10 << 20, ..Room::default() };
        assert!(room.lack().is_met(), "nothing is known to be short");
        let most = Room { used_bytes: 95, coming_bytes: 10, most_bytes: Some(100), ..Room::default() };
        assert_eq!(most.lack(), Lack { length_bytes: 5, written_bytes: 0 });
        // On a file system the object needs a little more than its length, and what is promised is not free.
        let free = Room { free_bytes: Some(12 << 20), promised_bytes: 1 << 20, ..room };
        assert!(free.lack().is_met() && !free.is_short_of_memory());
        let free = Room { promised_bytes: 2 << 20, ..free };
        assert_eq!(free.lack(), Lack { length_bytes: 0, written_bytes: BESIDE_BYTES });
        // What is there of it already takes no more room.
        assert!(Room { written_bytes: 1 << 20, ..free }.lack().is_met());
        let memory = Room { memory_bytes: Some(4 << 20), promised_bytes: 0, ..free };
        assert_eq!(memory.lack().written_bytes, (6 << 20) + BESIDE_BYTES);
        assert!(memory.is_short_of_memory() && memory.left_bytes() == Some(4 << 20));
        assert!(Room { free_bytes: None, ..memory }.is_short_of_memory());
    }

    proptest! {
        /// Room exists once the lack is freed, and not with anything less.
        #[test]
        fn no_more_goes_than_has_to(
            coming in 0u64..1 << 40, written in 0u64..1 << 40, used in 0u64..1 << 40, promised in 0u64..1 << 40,
            most in proptest::option::of(0u64..1 << 41), free in proptest::option::of(0u64..1 << 41),
            memory in proptest::option::of(0u64..1 << 41),
        ) {
            let room = Room {
                coming_bytes: coming, written_bytes: written, used_bytes: used, promised_bytes: promised,
                most_bytes: most, free_bytes: free, memory_bytes: memory,
            };
            let lack = room.lack();
            // What is promised may be more than there is already: then that has to go, too.
            let gone = |lengths: u64, bytes: u64| Room {
                used_bytes: used.saturating_sub(lengths),
                free_bytes: room.left_bytes().map(|left| left + bytes),
                promised_bytes: 0,
                memory_bytes: None,
                ..room
            };
            if lack.length_bytes <= used {
                prop_assert!(gone(lack.length_bytes, lack.written_bytes).lack().is_met());
            }
            if lack.length_bytes > 0 {
                prop_assert!(!gone(lack.length_bytes - 1, lack.written_bytes).lack().is_met());
            }
            if lack.written_bytes > 0 {
                prop_assert!(!gone(lack.length_bytes, lack.written_bytes - 1).lack().is_met());
            }
            // More of anything that is free never makes more go.
            let wider = Room { free_bytes: free.map(|free| free + 1), memory_bytes: memory.map(|left| left + 1), ..room };
            prop_assert!(wider.lack().written_bytes <= lack.written_bytes);
        }

        /// Objects that help, removed in order, are enough as soon as nothing is lacking.
        #[test]
        fn what_helps_is_taken_and_no_more(
            lengths in 0u64..1_000, bytes in 0u64..1_000,
            there in proptest::collection::vec((0u64..300, 0u64..300), 0..12),
        ) {
            let all = Lack { length_bytes: lengths, written_bytes: bytes };
            let (mut lack, mut gone) = (all, Vec::new());
            for (length_bytes, written_bytes) in there {
                let gives = Lack { length_bytes, written_bytes };
                if lack.is_helped_by(gives) {
                    prop_assert!(!lack.is_met());
                    lack = lack.less(gives);
                    gone.push(gives);
                }
            }
            let given = |of: fn(&Lack) -> u64| gone.iter().map(of).sum::<u64>();
            let enough = given(|gone| gone.length_bytes) >= lengths && given(|gone| gone.written_bytes) >= bytes;
            prop_assert_eq!(lack.is_met(), enough);
        }
    }
}
