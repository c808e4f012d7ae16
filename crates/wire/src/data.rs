//! Datagrams of the data channel (Republic section III-A).
//!
//! ```text
//!  0       1       2       3       4               8                16               24
//! +-------+-------+-------+-------+---------------+----------------+----------------+------------+---------+
//! |version| kind  | flags | length| round         | handle         | sn             | extension  | payload |
//! +-------+-------+-------+-------+---------------+----------------+----------------+------------+---------+
//! ```
//!
//! `length` is the header's own length with its extension. `round` counts how often the sender has wrapped
//! round, so that `round * fragments + sn` rises without end and a late or repeated packet cannot be mistaken
//! for a new round. The extension holds, for a fragment with sn 0, the object's size (8 bytes, where Republic
//! puts it), and for a coded patch the distances of the other fragments in it. 32 bytes are set aside for the
//! extension in every fragment's size, so that fragments of sealed packets are as long as those of plain
//! ones. A sealed fragment's header ends with the tag of its content (16 bytes) and one of the header before
//! (8 bytes), a sealed coded patch's with one tag of header and payload (12 bytes).

use crate::{VERSION, WireError};
use polycast_types::Handle;

/// Length of the header without extension.
pub const HEADER_LEN: usize = 24;
/// Room for the extension that every fragment leaves.
pub const EXTENSION_LEN_MAX: usize = 32;
/// Maximum number of fragments that one coded patch can combine: the one in the header and 16 distances.
pub const CODED_FRAGMENTS_MAX: usize = 1 + EXTENSION_LEN_MAX / 2;
/// Bytes of the tag of a sealed coded patch, and of a piece of a message.
pub const TAG_LEN: usize = 12;
/// Bytes of the tag of a sealed fragment's content.
pub const CONTENT_TAG_LEN: usize = 16;
/// Bytes of the tag of a sealed fragment's header.
pub const HEADER_TAG_LEN: usize = 8;
/// Both.
pub const FRAGMENT_TAGS_LEN: usize = CONTENT_TAG_LEN + HEADER_TAG_LEN;
/// Maximum number of fragments that one sealed coded patch can combine.
pub const SEALED_FRAGMENTS_MAX: usize = 1 + (EXTENSION_LEN_MAX - TAG_LEN) / 2;
/// Bytes of IPv4 and UDP header before ours.
pub const IP_UDP_LEN: usize = 28;

const KIND_FRAGMENT: u8 = 1;
const KIND_CODED: u8 = 2;

/// The packet carries the object's size.
pub const FLAG_SIZE: u8 = 1;
/// A patch sent on the data channel: it does not move the receiver's position.
pub const FLAG_PATCH: u8 = 2;
/// The sender asks for a progress report now.
pub const FLAG_REPORT: u8 = 4;
/// Sent while the path is being probed (attempt sending).
pub const FLAG_ATTEMPT: u8 = 8;
/// The extension ends with a tag.
pub const FLAG_SEALED: u8 = 16;
const FLAGS_KNOWN: u8 = FLAG_SIZE | FLAG_PATCH | FLAG_REPORT | FLAG_ATTEMPT | FLAG_SEALED;

/// Tag that shows that a packet is its source's.
pub type Tag = [u8; TAG_LEN];
/// Tag that shows that a fragment's bytes are.
pub type ContentTag = [u8; CONTENT_TAG_LEN];

/// Ciphers take blocks of so many bytes; a part of one costs as much as several.
const CIPHER_BLOCK_LEN: u32 = 16;

/// The largest fragment of whole blocks of a cipher that fits into one frame of an interface with this MTU,
/// at most 65,535 bytes.
#[must_use]
pub fn fragment_len_for_mtu(mtu: u32) -> u32 {
    let overhead = (IP_UDP_LEN + HEADER_LEN + EXTENSION_LEN_MAX) as u32;
    let room = mtu.min(65_535).saturating_sub(overhead);
    (room - room % CIPHER_BLOCK_LEN).max(256)
}

/// Header of a datagram that carries one fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FragmentHeader {
    /// The transfer.
    pub handle: Handle,
    /// Number of times that the sender has wrapped round.
    pub round: u32,
    /// Sequence number of the fragment.
    pub sn: u64,
    /// `FLAG_PATCH`, `FLAG_REPORT`, `FLAG_ATTEMPT`; `FLAG_SIZE` follows from `object_len`, `FLAG_SEALED` from
    /// `sealed`.
    pub flags: u8,
    /// The object's size in bytes; only with sn 0.
    pub object_len: Option<u64>,
    /// True if tags end the header.
    pub sealed: bool,
}

/// Header of a datagram that carries the XOR of several fragments.
///
/// A receiver that lacks exactly one of them gets it by XOR with the others, which it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodedHeader {
    /// The transfer.
    pub handle: Handle,
    sns: [u64; CODED_FRAGMENTS_MAX],
    count: usize,
    sealed: bool,
}

/// Any datagram of the data channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// One fragment.
    Fragment(FragmentHeader),
    /// The XOR of several.
    Coded(CodedHeader),
}

impl CodedHeader {
    /// A patch for these fragments: 2 to [`CODED_FRAGMENTS_MAX`], rising, each at most 65,535 after the
    /// first. `None` where they do not fit into one header.
    #[must_use]
    pub fn new(handle: Handle, fragments: &[u64]) -> Option<Self> {
        let fits = (2..=CODED_FRAGMENTS_MAX).contains(&fragments.len())
            && fragments.windows(2).all(|w| w[0] < w[1])
            && fragments[fragments.len() - 1] - fragments[0] <= u64::from(u16::MAX);
        if !fits {
            return None;
        }
        let mut sns = [0; CODED_FRAGMENTS_MAX];
        sns[..fragments.len()].copy_from_slice(fragments);
        Some(CodedHeader { handle, sns, count: fragments.len(), sealed: false })
    }

    /// The same with a tag at its end; `None` for more than [`SEALED_FRAGMENTS_MAX`] fragments.
    #[must_use]
    pub fn sealed(self) -> Option<Self> {
        (self.count <= SEALED_FRAGMENTS_MAX).then_some(CodedHeader { sealed: true, ..self })
    }

    /// The fragments in it, rising.
    #[must_use]
    pub fn sns(&self) -> &[u64] {
        &self.sns[..self.count]
    }
}

impl Header {
    /// Reads the header at the front of a datagram; gives it and its length, so that the payload begins
    /// there.
    ///
    /// # Errors
    /// Not a datagram of this format or of this version.
    pub fn parse(datagram: &[u8]) -> Result<(Header, usize), WireError> {
        let fixed: &[u8; HEADER_LEN] = datagram.first_chunk().ok_or(WireError::Malformed)?;
        let [version, kind, flags, length, ..] = *fixed;
        if version != VERSION {
            return Err(WireError::Version(version));
        }
        let length = usize::from(length);
        let in_range = (HEADER_LEN..=HEADER_LEN + EXTENSION_LEN_MAX).contains(&length);
        if !in_range || datagram.len() < length || flags & !FLAGS_KNOWN != 0 {
            return Err(WireError::Malformed);
        }
        let sealed = flags & FLAG_SEALED != 0;
        let tags_len = if !sealed {
            0
        } else if kind == KIND_CODED {
            TAG_LEN
        } else {
            FRAGMENT_TAGS_LEN
        };
        let end = length.checked_sub(tags_len).filter(|end| *end >= HEADER_LEN);
        let extension = &datagram[HEADER_LEN..end.ok_or(WireError::Malformed)?];
        let round = u32::from_be_bytes([fixed[4], fixed[5], fixed[6], fixed[7]]);
        let handle = Handle(be64(&fixed[8..16]));
        let sn = be64(&fixed[16..24]);
        let header = match kind {
            KIND_FRAGMENT => {
                let sized = flags & FLAG_SIZE != 0;
                if extension.len() != if sized { 8 } else { 0 } || (sized && sn != 0) {
                    return Err(WireError::Malformed);
                }
                let object_len = sized.then(|| be64(extension));
                let flags = flags & !(FLAG_SIZE | FLAG_SEALED);
                Header::Fragment(FragmentHeader { handle, round, sn, flags, object_len, sealed })
            }
            KIND_CODED if flags & !FLAG_SEALED == FLAG_PATCH && round == 0 => {
                Header::Coded(CodedHeader { sealed, ..parse_coded(handle, sn, extension)? })
            }
            _ => return Err(WireError::Malformed),
        };
        Ok((header, length))
    }

    /// Bytes of the tags at the end of the header.
    #[must_use]
    pub fn tags_len(&self) -> usize {
        match self {
            Header::Fragment(FragmentHeader { sealed: true, .. }) => FRAGMENT_TAGS_LEN,
            Header::Coded(CodedHeader { sealed: true, .. }) => TAG_LEN,
            _ => 0,
        }
    }

    /// The last tag in the packet whose header this is, which is `length` bytes long, and what stands before
    /// it; `None` where it is not sealed. Of a fragment it is the tag of the header, of a coded patch that of
    /// header and payload.
    #[must_use]
    pub fn tag_in<'a>(&self, datagram: &'a [u8], length: usize) -> Option<(&'a [u8], &'a [u8])> {
        let last = match self {
            _ if self.tags_len() == 0 => return None,
            Header::Fragment(_) => HEADER_TAG_LEN,
            Header::Coded(_) => TAG_LEN,
        };
        let header = datagram.get(..length)?;
        header.split_at_checked(length.checked_sub(last)?)
    }

    /// The tag of a sealed fragment's content.
    #[must_use]
    pub fn content_tag_in(&self, datagram: &[u8], length: usize) -> Option<ContentTag> {
        let Header::Fragment(FragmentHeader { sealed: true, .. }) = self else { return None };
        let before = length.checked_sub(HEADER_TAG_LEN)?;
        datagram.get(..before)?.last_chunk().copied()
    }

    /// Writes the header to the front of `buffer` and gives its length, at most
    /// `HEADER_LEN + EXTENSION_LEN_MAX`. Of a sealed one the bytes of its tags are left as they are.
    pub fn emit(&self, buffer: &mut [u8; HEADER_LEN + EXTENSION_LEN_MAX]) -> usize {
        let (kind, flags, round, handle, sn, length, sealed) = match self {
            Header::Fragment(f) => {
                assert!(f.object_len.is_none() || f.sn == 0, "only fragment 0 carries the size");
                let sized = f.object_len.is_some();
                let flags = f.flags & !(FLAG_SIZE | FLAG_SEALED) | if sized { FLAG_SIZE } else { 0 };
                if let Some(len) = f.object_len {
                    buffer[HEADER_LEN..HEADER_LEN + 8].copy_from_slice(&len.to_be_bytes());
                }
                let length = HEADER_LEN + if sized { 8 } else { 0 };
                (KIND_FRAGMENT, flags, f.round, f.handle, f.sn, length, f.sealed)
            }
            Header::Coded(c) => {
                let first = c.sns[0];
                for (i, sn) in c.sns()[1..].iter().enumerate() {
                    let distance = (sn - first) as u16;
                    buffer[HEADER_LEN + 2 * i..][..2].copy_from_slice(&distance.to_be_bytes());
                }
                (KIND_CODED, FLAG_PATCH, 0, c.handle, first, HEADER_LEN + 2 * (c.count - 1), c.sealed)
            }
        };
        let flags = if sealed { flags | FLAG_SEALED } else { flags };
        let length = length + self.tags_len();
        buffer[..4].copy_from_slice(&[VERSION, kind, flags, length as u8]);
        buffer[4..8].copy_from_slice(&round.to_be_bytes());
        buffer[8..16].copy_from_slice(&handle.0.to_be_bytes());
        buffer[16..24].copy_from_slice(&sn.to_be_bytes());
        length
    }
}

fn parse_coded(handle: Handle, first: u64, extension: &[u8]) -> Result<CodedHeader, WireError> {
    let (distances, rest) = extension.as_chunks::<2>();
    if distances.is_empty() || !rest.is_empty() {
        return Err(WireError::Malformed);
    }
    let mut sns = [0; CODED_FRAGMENTS_MAX];
    sns[0] = first;
    for (i, distance) in distances.iter().enumerate() {
        let sn = first.checked_add(u64::from(u16::from_be_bytes(*distance))).ok_or(WireError::Malformed)?;
        if sn <= sns[i] {
            return Err(WireError::Malformed);
        }
        sns[i + 1] = sn;
    }
    Ok(CodedHeader { handle, sns, count: distances.len() + 1, sealed: false })
}

/// Eight bytes as an integer; the caller gives exactly eight.
fn be64(bytes: &[u8]) -> u64 {
    let mut value = [0; 8];
    value.copy_from_slice(bytes);
    u64::from_be_bytes(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    fn emit(header: &Header) -> Vec<u8> {
        let mut buffer = [0xee; HEADER_LEN + EXTENSION_LEN_MAX];
        let length = header.emit(&mut buffer);
        buffer[..length].to_vec()
    }

    proptest! {
        #[test]
        fn fragments_come_back_equal(handle: u64, round: u32, sn: u64, flags in 0u8..8, size: Option<u64>, sealed: bool) {
            let sn = if size.is_some() { 0 } else { sn };
            let header = Header::Fragment(FragmentHeader {
                handle: Handle(handle), round, sn, flags: flags << 1 & FLAGS_KNOWN, object_len: size, sealed,
            });
            let bytes = emit(&header);
            prop_assert_eq!(Header::parse(&bytes), Ok((header, bytes.len())));
            let tag = header.tag_in(&bytes, bytes.len());
            let last = &[0xee; HEADER_TAG_LEN][..];
            prop_assert_eq!(tag.map(|(before, tag)| (before.len(), tag)), sealed.then_some((bytes.len() - HEADER_TAG_LEN, last)));
            prop_assert_eq!(header.content_tag_in(&bytes, bytes.len()), sealed.then_some([0xee; CONTENT_TAG_LEN]));
            for cut in 0..bytes.len() {
                prop_assert!(Header::parse(&bytes[..cut]).is_err());
            }
        }

        #[test]
        fn coded_patches_come_back_equal(
            handle: u64,
            first in 0..u64::MAX / 2,
            distances in proptest::collection::btree_set(1u64..=65_535, 1..=16),
        ) {
            let sns: Vec<u64> = core::iter::once(first).chain(distances.iter().map(|d| first + d)).collect();
            let header = CodedHeader::new(Handle(handle), &sns).unwrap();
            prop_assert_eq!(header.sns(), &sns[..]);
            let bytes = emit(&Header::Coded(header));
            prop_assert_eq!(Header::parse(&bytes), Ok((Header::Coded(header), bytes.len())));
            let sealed = header.sealed();
            prop_assert_eq!(sealed.is_some(), sns.len() <= SEALED_FRAGMENTS_MAX);
            if let Some(header) = sealed.map(Header::Coded) {
                let bytes = emit(&header);
                prop_assert_eq!(Header::parse(&bytes), Ok((header, bytes.len())));
                prop_assert!(header.tag_in(&bytes, bytes.len()).is_some());
            }
        }

        #[test]
        fn no_bytes_make_the_parser_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            if let Ok((header, length)) = Header::parse(&bytes) {
                let kept = length - header.tags_len();
                prop_assert_eq!(&emit(&header)[..kept], &bytes[..kept]);
            }
        }
    }

    #[test]
    fn another_version_is_named() {
        let mut bytes = emit(&Header::Fragment(FragmentHeader {
            handle: Handle(1),
            round: 0,
            sn: 5,
            flags: 0,
            object_len: None,
            sealed: false,
        }));
        bytes[0] = 9;
        assert_eq!(Header::parse(&bytes), Err(WireError::Version(9)));
    }

    #[test]
    fn fragments_that_do_not_fit_one_patch_are_refused() {
        assert!(CodedHeader::new(Handle(0), &[1]).is_none());
        assert!(CodedHeader::new(Handle(0), &[1, 1]).is_none());
        assert!(CodedHeader::new(Handle(0), &[2, 1]).is_none());
        assert!(CodedHeader::new(Handle(0), &[0, 65_536]).is_none());
        assert!(CodedHeader::new(Handle(0), &[0, 65_535]).is_some());
    }

    #[test]
    fn a_fragment_with_the_longest_header_fills_the_frame() {
        for mtu in [1_500, 9_000, 65_535] {
            let packet = fragment_len_for_mtu(mtu) as usize + HEADER_LEN + EXTENSION_LEN_MAX + IP_UDP_LEN;
            // Less than one more block of a cipher would fit.
            assert!((packet..packet + 16).contains(&(mtu as usize)), "{packet} bytes of {mtu}");
        }
        assert_eq!(fragment_len_for_mtu(65_536), fragment_len_for_mtu(65_535));
    }
}
