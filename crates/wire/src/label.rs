//! Labelled packets: Orca's label and the session's number before a datagram (Orca sections 3.2 and 3.5,
//! appendix A.4).
//!
//! ```text
//!  0       1       2               4               8
//! +-------+-------+---------------+---------------+-------------------+---------+
//! |version| length| kind  | 0     | session       | label, to 4 bytes | payload |
//! +-------+-------+---------------+---------------+-------------------+---------+
//! ```
//!
//! The whole is the payload of a UDP datagram to the session's multicast address, whose number is the
//! session's, and to a UDP port that a network has for all its sessions: by the port switches know labelled
//! packets. Legacy switches on the way see IP multicast of an address of its own for every session, and
//! forward it as they are told to, or everywhere. All labels of a network have the same length; a switch
//! drops others. The label's bits are the business of `polycast_planning::labels`, and the kind says which of
//! them it is. A zero byte keeps it aligned, and takes what a later version needs.
//!
//! On the same port a switch asks a neighbour whether it still forwards, by a [`Probe`], which the
//! neighbour's data path sends back by the port that it came in by (as the echo function of BFD does, RFC
//! 5880, section 6.4).

use crate::{VERSION, WireError};
use alloc::vec::Vec;
use core::fmt;

pub use polycast_types::LabelKind;

/// Bytes before the label.
pub const FIXED_LEN: usize = 8;
/// Offset of the kind.
pub const KIND_AT: usize = 2;
/// The longest label.
pub const LABEL_LEN_MAX: usize = 164;

/// The bytes before the payload in a network with labels of this length.
#[must_use]
pub const fn header_len(label_len: usize) -> usize {
    FIXED_LEN + label_len.next_multiple_of(4)
}

/// A label and the session that it belongs to; the label's bytes stay where they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header<'a> {
    /// Kind of the label.
    pub kind: LabelKind,
    /// The session.
    pub session: u32,
    /// The label: 1 to [`LABEL_LEN_MAX`] bytes.
    pub label: &'a [u8],
}

impl<'a> Header<'a> {
    /// Reads the header at the front of a datagram; gives it and its length, so that the payload begins
    /// there.
    ///
    /// # Errors
    /// Not a labelled packet, or one of another version.
    pub fn parse(datagram: &'a [u8]) -> Result<(Header<'a>, usize), WireError> {
        let (fixed, rest) = datagram.split_first_chunk::<FIXED_LEN>().ok_or(WireError::Malformed)?;
        let [version, length, kind, zero, a, b, c, d] = *fixed;
        if version != VERSION {
            return Err(WireError::Version(version));
        }
        let length = usize::from(length);
        let padded = rest.get(..length.next_multiple_of(4)).ok_or(WireError::Malformed)?;
        let (label, padding) = padded.split_at(length);
        if !(1..=LABEL_LEN_MAX).contains(&length) || zero != 0 || padding.iter().any(|byte| *byte != 0) {
            return Err(WireError::Malformed);
        }
        let kind = LabelKind::from_number(kind).ok_or(WireError::Malformed)?;
        Ok((Header { kind, session: u32::from_be_bytes([a, b, c, d]), label }, header_len(length)))
    }

    /// Reads the header of a packet in a network whose labels have `label_len` bytes, as its switches do.
    ///
    /// # Errors
    /// Why a switch drops the packet.
    pub fn parse_for(datagram: &'a [u8], label_len: usize) -> Result<(Header<'a>, usize), Fault> {
        let (fixed, _) = datagram.split_first_chunk::<FIXED_LEN>().ok_or(Fault::Malformed)?;
        if fixed[0] == VERSION && usize::from(fixed[1]) != label_len {
            return Err(Fault::LabelLength);
        }
        Header::parse(datagram).map_err(|error| match error {
            WireError::Version(_) => Fault::Version,
            WireError::Malformed => Fault::Malformed,
        })
    }

    /// Appends the header.
    ///
    /// # Panics
    /// If the label is empty or longer than [`LABEL_LEN_MAX`].
    pub fn emit(&self, out: &mut Vec<u8>) {
        assert!((1..=LABEL_LEN_MAX).contains(&self.label.len()), "a label has 1 to {LABEL_LEN_MAX} bytes");
        out.extend_from_slice(&[VERSION, self.label.len() as u8, self.kind as u8, 0]);
        out.extend_from_slice(&self.session.to_be_bytes());
        out.extend_from_slice(self.label);
        out.resize(out.len().next_multiple_of(4), 0);
    }
}

/// The first byte of a probe, where labelled packets have their version.
pub const PROBE: u8 = 0x80 | VERSION;
/// Bytes of a probe.
pub const PROBE_LEN: usize = 8;

/// A question whether a switch still forwards, or its answer.
///
/// ```text
///  0       1         2               4               8
/// +-------+---------+---------------+---------------+
/// | 0x83  | answer? | 0             | number        |
/// +-------+---------+---------------+---------------+
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// True once the probe has been at the neighbour.
    pub is_answer: bool,
    /// Number of the probe at the asking switch.
    pub number: u32,
}

impl Probe {
    /// Reads the probe at the front of a datagram; a data path looks at no more than this either.
    ///
    /// # Errors
    /// It is too short, or something else.
    pub fn parse(datagram: &[u8]) -> Result<Probe, WireError> {
        match datagram.first_chunk::<PROBE_LEN>() {
            Some([PROBE, answer, _, _, number @ ..]) => {
                Ok(Probe { is_answer: *answer != 0, number: u32::from_be_bytes(*number) })
            }
            _ => Err(WireError::Malformed),
        }
    }

    /// The datagram.
    #[must_use]
    pub fn emit(&self) -> [u8; PROBE_LEN] {
        let [a, b, c, d] = self.number.to_be_bytes();
        [PROBE, u8::from(self.is_answer), 0, 0, a, b, c, d]
    }
}

/// Reason why a switch or an agent drops a labelled packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fault {
    /// Too short, or zeros that are none.
    Malformed,
    /// Another version.
    Version,
    /// A label that is longer or shorter than those of this network.
    LabelLength,
    /// It came in by, or should go out by, a port that the switch does not have.
    NoPort,
    /// A leaf label from a server that is no agent of this rack, active or not.
    NotAnAgent,
    /// The rack has no active agent.
    NoAgent,
    /// The agent has no such label for the session.
    UnknownSession,
    /// A source label at a server that is no agent.
    Stray,
    /// A label of a kind that does not come here.
    Kind,
    /// A packet without a label, to a session's address from a host that may not send to it.
    NotASource,
}

impl Fault {
    /// All of them, in the order of the kernel's counters.
    pub const ALL: [Fault; 10] = [
        Fault::Malformed,
        Fault::Version,
        Fault::LabelLength,
        Fault::NoPort,
        Fault::NotAnAgent,
        Fault::NoAgent,
        Fault::UnknownSession,
        Fault::Stray,
        Fault::Kind,
        Fault::NotASource,
    ];
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fault::Malformed => "a malformed labelled packet",
            Fault::Version => "a labelled packet of another version",
            Fault::LabelLength => "a label of another length than this network's",
            Fault::NoPort => "a port that the switch does not have",
            Fault::NotAnAgent => "a leaf label from a server that is no agent of this rack",
            Fault::NoAgent => "a packet for a rack without an active agent",
            Fault::UnknownSession => "a session without a label",
            Fault::Stray => "a source label at a server that is no agent",
            Fault::Kind => "a label of a kind that does not come here",
            Fault::NotASource => "a packet to a group from a host that is none of its sources",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn what_is_written_is_read_again() {
        for len in 1..=LABEL_LEN_MAX {
            let label: Vec<u8> = (0..len).map(|at| at as u8 | 1).collect();
            let kind = LabelKind::ALL[len % 4];
            let header = Header { kind, session: 0xef01_0203, label: &label };
            let mut packet = Vec::new();
            header.emit(&mut packet);
            assert_eq!(packet.len(), header_len(len));
            packet.extend_from_slice(b"payload");
            assert_eq!(Header::parse(&packet), Ok((header, packet.len() - 7)));
            assert_eq!(Header::parse_for(&packet, len), Ok((header, packet.len() - 7)));
            assert_eq!(Header::parse_for(&packet, len + 1), Err(Fault::LabelLength));
        }
    }

    #[test]
    fn what_is_wrong_is_refused() {
        let mut packet = Vec::new();
        Header { kind: LabelKind::Filter, session: 7, label: &[1, 2, 3] }.emit(&mut packet);
        for cut in 0..packet.len() {
            assert_eq!(Header::parse(&packet[..cut]), Err(WireError::Malformed), "{cut}");
        }
        let changed = |at: usize, to: u8| {
            let mut packet = packet.clone();
            packet[at] = to;
            (Header::parse(&packet).map(|_| ()), Header::parse_for(&packet, 3).map(|_| ()))
        };
        assert_eq!(changed(0, 9), (Err(WireError::Version(9)), Err(Fault::Version)));
        assert_eq!(changed(1, 0), (Err(WireError::Malformed), Err(Fault::LabelLength)));
        assert_eq!(changed(1, 165), (Err(WireError::Malformed), Err(Fault::LabelLength)));
        // Reserved bytes and the padding.
        for (at, to) in [(2, 4), (2, 255), (3, 1), (11, 1)] {
            assert_eq!(changed(at, to), (Err(WireError::Malformed), Err(Fault::Malformed)));
        }
        assert_eq!(changed(2, 3), (Ok(()), Ok(())));
        assert_eq!(changed(4, 1), (Ok(()), Ok(())));
        assert_eq!(Header::parse(&vec![VERSION; 400]), Err(WireError::Malformed));
    }

    #[test]
    fn a_probe_is_no_labelled_packet() {
        for probe in [Probe { is_answer: false, number: 0x0102_0304 }, Probe { is_answer: true, number: 0 }] {
            let bytes = probe.emit();
            assert_eq!(Probe::parse(&bytes), Ok(probe));
            assert_eq!(Probe::parse(&bytes[..7]), Err(WireError::Malformed));
            assert_eq!(Header::parse(&bytes), Err(WireError::Version(PROBE)));
        }
        let mut packet = Vec::new();
        Header { kind: LabelKind::Filter, session: 7, label: &[1, 2, 3] }.emit(&mut packet);
        assert_eq!(Probe::parse(&packet), Err(WireError::Malformed));
    }

    #[test]
    fn faults_are_numbered_in_order() {
        assert!(Fault::ALL.iter().enumerate().all(|(at, fault)| *fault as usize == at));
    }
}
