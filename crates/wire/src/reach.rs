//! Reachability of other hosts by multicast, and the possible length of its packets: `polycast doctor` asks,
//! and hosts with an agent or `polycast doctor --listen` answer.
//!
//! An [`Reach::Ask`] goes to the group of discovery ([`group_for`]) and [`PORT`], or to one host. An answer
//! goes to the asker alone, reports how many bytes came, and is never longer than what it answers: hosts that
//! answer cannot be used to flood a third.

use crate::WireError;
use crate::cursor::{NAME_LEN_MAX, Put, after_head, head};
use alloc::string::{String, ToString};
use alloc::vec::Vec;

pub use crate::discovery::group_for;

/// UDP port of those who answer.
pub const PORT: u16 = 18_068;
/// The shortest question: as long as the longest answer.
pub const ASK_LEN_MIN: usize = HEAD_LEN + 4 + NAME_LEN_MAX as usize;

const MAGIC: [u8; 4] = *b"PLYR";
const KIND_ASK: u8 = 1;
const KIND_ANSWER: u8 = 2;
/// Magic, version, kind, and the question's number.
const HEAD_LEN: usize = 14;

/// Bits of a number that count how often its question was sent.
const ATTEMPT_BITS: u32 = 4;

/// The number under which a question is sent for the `attempt`-th time.
pub const fn numbered(question: u64, attempt: u8) -> u64 {
    (question << ATTEMPT_BITS) | (attempt as u64 & ((1 << ATTEMPT_BITS) - 1))
}

/// The question that a number is of.
pub const fn question_of(number: u64) -> u64 {
    number >> ATTEMPT_BITS
}

/// A datagram of the check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Question for hosts that are there. The datagram is as long as this says, [`ASK_LEN_MIN`] at least.
    Ask {
        /// Chosen by the asker ([`numbered`]).
        number: u64,
        /// The length of the whole datagram in bytes.
        len: usize,
    },
    /// Answer of a host.
    Answer {
        /// Number of the question.
        number: u64,
        /// The length of the question in bytes, as it came.
        len: u16,
        /// The host's name, for people; of more than [`NAME_LEN_MAX`] bytes only the beginning is sent.
        name: String,
    },
}

impl Reach {
    /// Reads a datagram.
    ///
    /// # Errors
    /// Not a datagram of this format, or a peer of another version.
    pub fn parse(datagram: &[u8]) -> Result<Self, WireError> {
        let mut r = after_head(datagram, MAGIC)?;
        match r.u8()? {
            KIND_ASK => {
                let number = r.u64()?;
                let (rest, len) = (r.rest(), datagram.len());
                if len < ASK_LEN_MIN || rest.iter().any(|byte| *byte != 0) {
                    return Err(WireError::Malformed);
                }
                Ok(Reach::Ask { number, len })
            }
            KIND_ANSWER => {
                let (number, len) = (r.u64()?, r.u16()?);
                let name = r.text(NAME_LEN_MAX)?.to_string();
                r.end()?;
                Ok(Reach::Answer { number, len, name })
            }
            _ => Err(WireError::Malformed),
        }
    }

    /// Writes the datagram.
    ///
    /// # Panics
    /// A question is shorter than [`ASK_LEN_MIN`].
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let mut out = head(MAGIC);
        match self {
            Reach::Ask { number, len } => {
                assert!(*len >= ASK_LEN_MIN, "a question has at least {ASK_LEN_MIN} bytes");
                out.u8(KIND_ASK);
                out.u64(*number);
                out.zeros(len - HEAD_LEN);
            }
            Reach::Answer { number, len, name } => {
                out.u8(KIND_ANSWER);
                out.u64(*number);
                out.u16(*len);
                out.text(name, NAME_LEN_MAX);
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn both_come_back_equal(number: u64, len in ASK_LEN_MIN..9_000, of: u16, name in ".{0,60}") {
            let ask = Reach::Ask { number, len };
            let emitted = ask.emit();
            prop_assert_eq!(emitted.len(), len);
            prop_assert_eq!(Reach::parse(&emitted), Ok(ask));
            let answer = Reach::Answer { number, len: of, name };
            let emitted = answer.emit();
            prop_assert!(emitted.len() <= ASK_LEN_MIN, "an answer is longer than a question");
            prop_assert_eq!(Reach::parse(&emitted), Ok(answer));
        }

        #[test]
        fn no_bytes_make_the_parser_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = Reach::parse(&bytes);
        }
    }

    #[test]
    fn a_short_question_is_none() {
        let short = &Reach::Ask { number: 1, len: ASK_LEN_MIN }.emit()[..ASK_LEN_MIN - 1];
        assert_eq!(Reach::parse(short), Err(WireError::Malformed));
    }
}
