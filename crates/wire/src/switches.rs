//! Words between a manager and label switches (Orca sections 3.3 and 3.4).
//!
//! ```text
//! manager -> switches   SET_ENTRY, CLEAR_ENTRY, SET_DOOR, CLEAR_DOOR     each with a number
//! switches -> manager   SWITCH for each that is there, first; DONE or FAILED with that number; LINK whenever one breaks or is
//!                       mended
//! ```
//!
//! A door is what a leaf knows of a session to whose address programs send packets without labels: the label
//! that it puts before them, and the hosts whose packets it takes. It hands them to hosts without the label.
//!
//! A frame is a 2-byte length (of what follows), a 1-byte kind, and a body, over TCP. Nodes are the network's
//! numbers.

use crate::WireError;
use crate::cursor::{Put, Reader};
use crate::label::{LABEL_LEN_MAX, LabelKind};
use alloc::vec::Vec;

/// The longest frame with its length.
pub const FRAME_LEN_MAX: usize = 1_024;
/// The longest reason of a failure that is sent, in bytes.
const REASON_LEN_MAX: u16 = 512;

/// A word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Word<'a> {
    /// Change this, and say DONE or FAILED with this number.
    Change {
        /// The number.
        number: u32,
        /// Change to make.
        change: Change<'a>,
    },
    /// It is done.
    Done {
        /// Number of the change.
        number: u32,
    },
    /// It cannot be done.
    Failed {
        /// Number of the change.
        number: u32,
        /// Reason, in a sentence of at most 512 bytes.
        reason: &'a str,
    },
    /// A link of the network has broken, or works again.
    Link {
        /// The nodes that it joins.
        ends: (u32, u32),
        /// True if it works.
        works: bool,
    },
    /// A switch that takes changes over this connection.
    Switch {
        /// Its node.
        node: u32,
        /// The network that it takes itself to be in.
        network: Network,
        /// The encodings of labels that it forwards by: [`Network::FILTER`] and others, added.
        encodings: u8,
    },
}

/// Network as a switch was configured for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    /// Pods.
    pub pods: u32,
    /// Leafs of a pod.
    pub leafs: u32,
    /// Spines of a pod.
    pub spines: u32,
    /// Servers of a leaf.
    pub servers: u32,
    /// Cores above a spine.
    pub cores: u32,
    /// Bits of the label's filter.
    pub filter_bits: u32,
}

impl Network {
    /// Labels with a filter.
    pub const FILTER: u8 = 1;
    /// Labels with the leafs of pods.
    pub const PODS: u8 = 2;
    /// No encoding: the switch has doors for packets without labels.
    pub const DOORS: u8 = 4;
}

/// Change to a switch. (Labels of racks go by [`crate::rack`].)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<'a> {
    /// A spine leaves a leaf out for a session.
    SetEntry {
        /// The spine.
        spine: u32,
        /// The session.
        session: u32,
        /// The leaf.
        leaf: u32,
    },
    /// It does not any more.
    ClearEntry {
        /// The spine.
        spine: u32,
        /// The session.
        session: u32,
        /// The leaf.
        leaf: u32,
    },
    /// A leaf takes packets without labels for a session; it forgets what it knew of this door.
    SetDoor {
        /// The leaf.
        leaf: u32,
        /// The session, whose number is its address.
        session: u32,
        /// The ports of the hosts whose packets it takes, as bits.
        hosts: u128,
        /// Kind of the label.
        kind: LabelKind,
        /// The label that it puts before them, of at most [`LABEL_LEN_MAX`] bytes; empty where it takes no
        /// packets.
        label: &'a [u8],
    },
    /// It does not any more.
    ClearDoor {
        /// The leaf.
        leaf: u32,
        /// The session.
        session: u32,
    },
}

impl<'a> Word<'a> {
    /// Returns the length of the frame at the front of `bytes`, length field included; `None` while it is not
    /// known yet.
    ///
    /// # Errors
    /// It is longer than any frame.
    pub fn frame_len(bytes: &[u8]) -> Result<Option<usize>, WireError> {
        let Some(length) = bytes.first_chunk::<2>() else { return Ok(None) };
        let len = 2 + usize::from(u16::from_be_bytes(*length));
        if len <= FRAME_LEN_MAX { Ok(Some(len)) } else { Err(WireError::Malformed) }
    }

    /// Reads one whole frame.
    ///
    /// # Errors
    /// Not a frame of this format.
    pub fn parse(frame: &'a [u8]) -> Result<Self, WireError> {
        let mut reader = Reader(frame);
        let len = usize::from(reader.u16()?);
        if len != reader.0.len() || frame.len() > FRAME_LEN_MAX {
            return Err(WireError::Malformed);
        }
        let kind = reader.u8()?;
        let word = match kind {
            3..=4 | 9..=10 => Word::Change { number: reader.u32()?, change: change(kind, &mut reader)? },
            5 => Word::Done { number: reader.u32()? },
            6 => Word::Failed { number: reader.u32()?, reason: reader.text(REASON_LEN_MAX)? },
            7 => {
                let ends = (reader.u32()?, reader.u32()?);
                match reader.u8()? {
                    works @ 0..=1 => Word::Link { ends, works: works == 1 },
                    _ => return Err(WireError::Malformed),
                }
            }
            8 => {
                let node = reader.u32()?;
                let (pods, leafs, spines) = (reader.u32()?, reader.u32()?, reader.u32()?);
                let (servers, cores, filter_bits) = (reader.u32()?, reader.u32()?, reader.u32()?);
                let network = Network { pods, leafs, spines, servers, cores, filter_bits };
                Word::Switch { node, network, encodings: reader.u8()? }
            }
            _ => return Err(WireError::Malformed),
        };
        reader.end()?;
        Ok(word)
    }

    /// Appends the frame. A reason that is too long loses its end.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.u16(0);
        match self {
            Word::Change { number, change } => emit_change(*number, *change, out),
            Word::Done { number } => {
                out.u8(5);
                out.u32(*number);
            }
            Word::Failed { number, reason } => {
                out.u8(6);
                out.u32(*number);
                out.text(reason, REASON_LEN_MAX);
            }
            Word::Link { ends: (one, other), works } => {
                out.u8(7);
                out.u32(*one);
                out.u32(*other);
                out.u8((*works).into());
            }
            Word::Switch { node, network, encodings } => {
                let Network { pods, leafs, spines, servers, cores, filter_bits } = *network;
                out.u8(8);
                let numbers = [*node, pods, leafs, spines, servers, cores, filter_bits];
                numbers.into_iter().for_each(|number| out.u32(number));
                out.u8(*encodings);
            }
        }
        let len = (out.len() - start - 2) as u16;
        out[start..start + 2].copy_from_slice(&len.to_be_bytes());
    }
}

fn change<'a>(kind: u8, reader: &mut Reader<'a>) -> Result<Change<'a>, WireError> {
    let (node, session) = (reader.u32()?, reader.u32()?);
    Ok(match kind {
        3 => Change::SetEntry { spine: node, session, leaf: reader.u32()? },
        4 => Change::ClearEntry { spine: node, session, leaf: reader.u32()? },
        9 => {
            let hosts = u128::from(reader.u64()?) << 64 | u128::from(reader.u64()?);
            let kind = LabelKind::from_number(reader.u8()?).ok_or(WireError::Malformed)?;
            let len = usize::from(reader.u8()?);
            if len > LABEL_LEN_MAX || len == 0 && hosts != 0 {
                return Err(WireError::Malformed);
            }
            Change::SetDoor { leaf: node, session, hosts, kind, label: reader.take(len)? }
        }
        _ => Change::ClearDoor { leaf: node, session },
    })
}

fn emit_change(number: u32, change: Change<'_>, out: &mut Vec<u8>) {
    let (kind, numbers): (u8, &[u32]) = match &change {
        Change::SetEntry { spine, session, leaf } => (3, &[*spine, *session, *leaf]),
        Change::ClearEntry { spine, session, leaf } => (4, &[*spine, *session, *leaf]),
        Change::SetDoor { leaf, session, .. } => (9, &[*leaf, *session]),
        Change::ClearDoor { leaf, session } => (10, &[*leaf, *session]),
    };
    out.u8(kind);
    out.u32(number);
    numbers.iter().for_each(|value| out.u32(*value));
    if let Change::SetDoor { hosts, kind, label, .. } = change {
        out.u64((hosts >> 64) as u64);
        out.u64(hosts as u64);
        out.u8(kind as u8);
        let label = &label[..label.len().min(LABEL_LEN_MAX)];
        out.u8(label.len() as u8);
        out.extend_from_slice(label);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::String;
    use alloc::vec;
    use proptest::prelude::*;

    fn back(word: &Word<'_>) {
        let mut frame = vec![];
        word.emit(&mut frame);
        assert!(frame.len() <= FRAME_LEN_MAX);
        assert_eq!(Word::frame_len(&frame), Ok(Some(frame.len())));
        assert_eq!(Word::parse(&frame).as_ref(), Ok(word));
        for cut in 0..frame.len() {
            assert_eq!(Word::parse(&frame[..cut]), Err(WireError::Malformed), "{cut} of {word:?}");
        }
        // It says how long it is, and that is so.
        let said = u16::from_be_bytes([frame[0], frame[1]]);
        for wrong in [0, said - 1, said + 1, u16::MAX] {
            frame[..2].copy_from_slice(&wrong.to_be_bytes());
            assert_eq!(Word::parse(&frame), Err(WireError::Malformed), "{wrong} for {said}, {word:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(
            number: u32, node: u32, session: u32, leaf: u32, works: bool, hosts: u128,
            label in proptest::collection::vec(any::<u8>(), 1..=LABEL_LEN_MAX),
            reason in "\\PC{0,80}",
        ) {
            let changes = [
                Change::SetEntry { spine: node, session, leaf },
                Change::ClearEntry { spine: node, session, leaf },
                Change::SetDoor { leaf, session, hosts, kind: LabelKind::ALL[usize::from(works)], label: &label },
                Change::SetDoor { leaf, session, hosts: 0, kind: LabelKind::Filter, label: &[] },
                Change::ClearDoor { leaf, session },
            ];
            changes.into_iter().for_each(|change| back(&Word::Change { number, change }));
            back(&Word::Done { number });
            back(&Word::Failed { number, reason: &reason });
            back(&Word::Link { ends: (node, leaf), works });
            let network =
                Network { pods: number, leafs: leaf, spines: node, servers: session, cores: 1, filter_bits: 69 };
            back(&Word::Switch { node, network, encodings: works.into() });
        }

        #[test]
        fn noise_is_refused_or_read_as_what_it_says(mut frame in proptest::collection::vec(any::<u8>(), 0..60)) {
            if frame.len() > 3 {
                let len = frame.len() as u16 - 2;
                frame[..2].copy_from_slice(&len.to_be_bytes());
                frame[2] %= 12;
            }
            if let Ok(word) = Word::parse(&frame) {
                let mut again = vec![];
                word.emit(&mut again);
                prop_assert_eq!(again, frame);
            }
        }
    }

    #[test]
    fn long_reasons_lose_their_end() {
        let reason: String = core::iter::repeat_n('ä', 400).collect();
        let mut frame = vec![];
        Word::Failed { number: 1, reason: &reason }.emit(&mut frame);
        assert!(matches!(Word::parse(&frame), Ok(Word::Failed { reason, .. }) if reason.len() == 512));
        assert_eq!(Word::frame_len(&[9]), Ok(None));
        assert_eq!(Word::frame_len(&[0xff, 0xff]), Err(WireError::Malformed));
    }
}
