//! Messages of a stream (Orca section 4), cut into pieces that fit one datagram each.
//!
//! ```text
//!  0       1       2       4       6       8               16              24
//! +-------+-------+-------+-------+-------+---------------+---------------+---------+
//! |version| kind 7| piece | pieces| sealed| stream        | number        | payload |
//! +-------+-------+-------+-------+-------+---------------+---------------+---------+
//! ```
//!
//! `sealed` is 0, or 1 where the payload is sealed and ends with a tag of [`TAG_LEN`] bytes.
//!
//! Messages are numbered from 0 on, without gaps. All pieces of a message but the last have the same length.

use crate::cursor::{Put, Reader};
use crate::data::TAG_LEN;
use crate::{VERSION, WireError};
use alloc::vec::Vec;
use polycast_types::Handle;

/// Length of the header.
pub const HEADER_LEN: usize = 24;
/// The longest message in bytes.
pub const MESSAGE_LEN_MAX: usize = 256 << 10;

const KIND: u8 = 7;

/// Header of a datagram with a piece of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The stream; another run of it has another handle.
    pub stream: Handle,
    /// The message.
    pub number: u64,
    /// Number of the piece in the message, counted from 0.
    pub piece: u16,
    /// Number of pieces of the message, at least 1.
    pub pieces: u16,
    /// True if the payload is sealed, and a tag ends it.
    pub sealed: bool,
}

impl Header {
    /// Reads the header at the front of a datagram; gives it and the payload.
    ///
    /// # Errors
    /// Not a piece of a message, or one of another version.
    pub fn parse(datagram: &[u8]) -> Result<(Header, &[u8]), WireError> {
        let mut r = Reader(datagram);
        let version = r.u8()?;
        if version != VERSION {
            return Err(WireError::Version(version));
        }
        let (kind, piece, pieces, sealed) = (r.u8()?, r.u16()?, r.u16()?, r.u16()?);
        let header =
            Header { stream: Handle(r.u64()?), number: r.u64()?, piece, pieces, sealed: sealed == 1 };
        let tag_len = if header.sealed { TAG_LEN } else { 0 };
        let fits = (tag_len..=MESSAGE_LEN_MAX + tag_len).contains(&r.0.len());
        if kind != KIND || sealed > 1 || piece >= pieces || !fits {
            return Err(WireError::Malformed);
        }
        Ok((header, r.0))
    }

    /// Appends the header.
    ///
    /// # Panics
    /// If there is no such piece.
    pub fn emit(&self, out: &mut Vec<u8>) {
        assert!(self.piece < self.pieces, "piece {} of {} pieces", self.piece, self.pieces);
        out.extend_from_slice(&[VERSION, KIND]);
        [self.piece, self.pieces, u16::from(self.sealed)].into_iter().for_each(|v| out.u16(v));
        out.u64(self.stream.0);
        out.u64(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn headers_come_back_equal(
            stream: u64, number: u64, piece in 0u16..u16::MAX, more in 1u16.., payload: Vec<u8>, sealed: bool,
        ) {
            let sealed = sealed && payload.len() >= TAG_LEN;
            let pieces = piece.saturating_add(more);
            let header = Header { stream: Handle(stream), number, piece, pieces, sealed };
            let mut bytes = Vec::new();
            header.emit(&mut bytes);
            prop_assert_eq!(bytes.len(), HEADER_LEN);
            bytes.extend_from_slice(&payload);
            prop_assert_eq!(Header::parse(&bytes), Ok((header, &payload[..])));
            for cut in 0..HEADER_LEN {
                prop_assert_eq!(Header::parse(&bytes[..cut]), Err(WireError::Malformed));
            }
        }

        #[test]
        fn what_is_no_header_is_refused(mut bytes in proptest::collection::vec(any::<u8>(), HEADER_LEN..64)) {
            bytes[..2].copy_from_slice(&[VERSION, KIND]);
            if let Ok((header, payload)) = Header::parse(&bytes) {
                let mut again = Vec::new();
                header.emit(&mut again);
                again.extend_from_slice(payload);
                prop_assert_eq!(again, bytes);
            }
        }
    }

    #[test]
    fn other_kinds_versions_and_pieces_are_refused() {
        let mut bytes = Vec::new();
        Header { stream: Handle(5), number: 6, piece: 1, pieces: 2, sealed: false }.emit(&mut bytes);
        let with = |at: usize, byte: u8| {
            let mut other = bytes.clone();
            other[at] = byte;
            Header::parse(&other).map(drop)
        };
        assert_eq!(with(0, 9), Err(WireError::Version(9)));
        assert_eq!(with(1, 1), Err(WireError::Malformed));
        assert_eq!(with(3, 2), Err(WireError::Malformed), "piece 2 of 2");
        assert_eq!(with(7, 1), Err(WireError::Malformed), "there is no tag");
        assert_eq!(with(7, 2), Err(WireError::Malformed));
        assert_eq!(with(5, 3), Ok(()));
    }
}
