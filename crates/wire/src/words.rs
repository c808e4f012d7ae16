//! Trailer of a sealed message between controllers: the run of its sender, its number, and a tag.
//!
//! ```text
//! message | run 8 | number 8 | tag 12
//! ```
//!
//! The tag covers 13 bytes that name sender and receiver ([`Way::covered`]), and all before it. No cipher is
//! here.

use crate::data::TAG_LEN;

/// Bytes behind a message.
pub const TRAILER_LEN: usize = 8 + 8 + TAG_LEN;
/// A word that is so many numbers behind the newest is not taken any more.
pub const WINDOW: u64 = 128;

/// Sender and receiver of a message: a message of one kind never passes for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// An agent of a rack to its leaf controller.
    AgentToLeaf,
    /// A leaf controller to an agent.
    LeafToAgent,
    /// A leaf controller to the central one.
    LeafToCentral,
    /// The central controller to a leaf's.
    CentralToLeaf,
    /// A forwarder greets a neighbour.
    Greeting {
        /// Address and port of the end that greets.
        from: ([u8; 4], u16),
        /// Address and port of the other end.
        to: ([u8; 4], u16),
    },
}

/// Bytes that say which way a word goes.
pub const WAY_LEN: usize = 13;

impl Way {
    /// Returns the bytes of it that the tag covers.
    #[must_use]
    pub fn covered(self) -> [u8; WAY_LEN] {
        let mut bytes = [0; WAY_LEN];
        bytes[0] = match self {
            Way::AgentToLeaf => 1,
            Way::LeafToAgent => 2,
            Way::LeafToCentral => 3,
            Way::CentralToLeaf => 4,
            Way::Greeting { from, to } => {
                for (end, (address, port)) in [from, to].into_iter().enumerate() {
                    let at = 1 + 6 * end;
                    bytes[at..at + 4].copy_from_slice(&address);
                    bytes[at + 4..at + 6].copy_from_slice(&port.to_be_bytes());
                }
                5
            }
        };
        bytes
    }
}

/// A word as it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SealedWord<'a> {
    /// Message without its trailer.
    pub message: &'a [u8],
    /// The run of its speaker: later ones are larger.
    pub run: u64,
    /// Number of the message in the run.
    pub number: u64,
    /// Bytes that the tag covers.
    pub before: &'a [u8],
    /// The tag.
    pub tag: &'a [u8],
}

impl<'a> SealedWord<'a> {
    /// Reads a datagram; `None` where it is too short.
    #[must_use]
    pub fn parse(datagram: &'a [u8]) -> Option<Self> {
        let (before, tag) = datagram.split_last_chunk::<TAG_LEN>()?;
        let (rest, number) = before.split_last_chunk::<8>()?;
        let (message, run) = rest.split_last_chunk::<8>()?;
        let (run, number) = (u64::from_be_bytes(*run), u64::from_be_bytes(*number));
        Some(SealedWord { message, run, number, before, tag })
    }
}

/// Messages of a sender that have arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heard {
    run: u64,
    newest: u64,
    /// Bit `n` is the word that is `n` numbers before the newest.
    seen: u128,
}

impl Heard {
    /// Returns true if a message with a right tag is new: of no earlier run, not received before, and not too
    /// far behind.
    pub fn is_new(&mut self, run: u64, number: u64) -> bool {
        if run < self.run {
            return false;
        }
        if run > self.run || self.seen == 0 {
            *self = Heard { run, newest: number, seen: 1 };
            return true;
        }
        if number > self.newest {
            let ahead = number - self.newest;
            self.seen =
                u32::try_from(ahead).ok().and_then(|ahead| self.seen.checked_shl(ahead)).unwrap_or(0) | 1;
            self.newest = number;
            return true;
        }
        let behind = self.newest - number;
        let bit = u32::try_from(behind).ok().and_then(|behind| 1u128.checked_shl(behind));
        bit.is_some_and(|bit| {
            let is_new = self.seen & bit == 0;
            self.seen |= bit;
            is_new
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;
    use proptest::prelude::*;

    proptest! {
        /// Each word counts once; none is lost that is not far behind, and none of an earlier run counts.
        #[test]
        fn a_word_counts_once(numbers in proptest::collection::vec((0u64..3, 0u64..400), 1..300)) {
            let (mut heard, mut before) = (Heard::default(), BTreeSet::new());
            let (mut latest, mut newest) = (0, 0);
            for (run, number) in numbers {
                let is_new = heard.is_new(run, number);
                if run > latest || before.is_empty() {
                    (latest, newest) = (run, number);
                    before.clear();
                }
                let is_near = run == latest && number + WINDOW > newest;
                prop_assert_eq!(is_new, is_near && !before.contains(&number), "{} of run {}", number, run);
                if run == latest {
                    newest = newest.max(number);
                    before.insert(number);
                }
            }
        }
    }

    /// A tag that was made for one way is none for another: each byte of a way counts.
    #[test]
    fn ways_differ_in_their_bytes() {
        let simple = [Way::AgentToLeaf, Way::LeafToAgent, Way::LeafToCentral, Way::CentralToLeaf];
        for (way, first) in simple.into_iter().zip(1..) {
            let mut bytes = [0; WAY_LEN];
            bytes[0] = first;
            assert_eq!(way.covered(), bytes);
        }
        let greeting = Way::Greeting { from: ([10, 1, 2, 3], 0x0405), to: ([10, 6, 7, 8], 0x090b) };
        assert_eq!(greeting.covered(), [5, 10, 1, 2, 3, 4, 5, 10, 6, 7, 8, 9, 11]);
    }

    #[test]
    fn a_word_is_what_stands_before_its_trailer() {
        let mut datagram = alloc::vec![7; 5];
        datagram.extend(3u64.to_be_bytes());
        datagram.extend(4u64.to_be_bytes());
        datagram.extend([9; TAG_LEN]);
        let word = SealedWord::parse(&datagram).expect("it is long enough");
        assert_eq!((word.message, word.run, word.number), (&[7; 5][..], 3, 4));
        assert_eq!((word.before.len(), word.tag), (21, &[9; TAG_LEN][..]));
        assert_eq!(SealedWord::parse(&datagram[..TRAILER_LEN - 1]), None);
    }
}
