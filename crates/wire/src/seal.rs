//! Keys for the bytes of a sealed packet, and the checks that it has to pass before anything else processes
//! it.
//!
//! No cipher is here: [`PacketKeys`] are AES in production and ideal ones in the simulator, whose attacker so
//! meets the rules of production.

use crate::data::{CONTENT_TAG_LEN, ContentTag, HEADER_TAG_LEN, Header, TAG_LEN};

/// Bytes of a nonce.
pub const NONCE_LEN: usize = 12;
/// Bytes that keys give for a packet; a packet carries only their beginning.
pub const FULL_TAG_LEN: usize = 16;

/// The nonce of a fragment: its number, whichever round and patch it is in. So one nonce has one content for
/// as long as the object stays what it is, and a source that seals it a second time compares it with what it
/// sealed at first.
#[must_use]
pub fn nonce(sn: u64) -> [u8; NONCE_LEN] {
    let mut nonce = [0; NONCE_LEN];
    nonce[NONCE_LEN - 8..].copy_from_slice(&sn.to_be_bytes());
    nonce
}

/// Operations of a receiver with the keys of a transfer.
pub trait PacketKeys {
    /// Opens a fragment where its bytes are what was sealed under this number; otherwise they are worth
    /// nothing.
    fn open(&self, sn: u64, payload: &mut [u8], tag: &ContentTag) -> bool;

    /// Returns true if `tag`, which has at least [`HEADER_TAG_LEN`] bytes, is the beginning of the tag of
    /// this header and payload.
    fn vouch(&self, header: &[u8], payload: &[u8], tag: &[u8]) -> bool;
}

/// Returns true if the header of a fragment is the source's: its last tag covers all before it, the tag of
/// the content too. Of another packet the header alone proves nothing.
pub fn vouches(keys: &impl PacketKeys, header: &Header, datagram: &[u8], header_len: usize) -> bool {
    match (header, header.tag_in(datagram, header_len)) {
        (Header::Fragment(_), Some((before, tag))) => keys.vouch(before, &[], tag),
        _ => false,
    }
}

/// Returns true if a datagram is the source's: nothing else processes one that is not. The payload of a
/// fragment is open then; of a coded patch the tag covers header and payload, which stays sealed.
pub fn admit(keys: &impl PacketKeys, header: &Header, datagram: &mut [u8], header_len: usize) -> bool {
    match header {
        Header::Fragment(fragment) => {
            let Some(content) = header.content_tag_in(datagram, header_len) else { return false };
            // A position is believed for its header's tag: it comes first.
            vouches(keys, header, datagram, header_len)
                && datagram
                    .get_mut(header_len..)
                    .is_some_and(|payload| keys.open(fragment.sn, payload, &content))
        }
        Header::Coded(_) => match (header.tag_in(datagram, header_len), datagram.get(header_len..)) {
            (Some((before, tag)), Some(payload)) => keys.vouch(before, payload, tag),
            _ => false,
        },
    }
}

/// Puts the tags of a fragment at the end of its header: that of its content, and behind it that of all
/// before.
///
/// # Panics
/// The header has no room for them.
pub fn put_fragment_tags(
    header: &mut [u8],
    content: &ContentTag,
    tag_of: impl Fn(&[u8], &[u8]) -> [u8; FULL_TAG_LEN],
) {
    let (before, tag) = header.split_last_chunk_mut::<HEADER_TAG_LEN>().expect("there is room for it");
    let (_, room) = before.split_last_chunk_mut::<CONTENT_TAG_LEN>().expect("there is room for it");
    *room = *content;
    tag.copy_from_slice(&tag_of(before, &[])[..HEADER_TAG_LEN]);
}

/// Puts the tag of a coded patch, header and payload, at the end of its header.
///
/// # Panics
/// The header has no room for it.
pub fn put_patch_tag(header: &mut [u8], payload: &[u8], tag_of: impl Fn(&[u8], &[u8]) -> [u8; FULL_TAG_LEN]) {
    let (before, tag) = header.split_last_chunk_mut::<TAG_LEN>().expect("there is room for it");
    tag.copy_from_slice(&tag_of(before, payload)[..TAG_LEN]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{EXTENSION_LEN_MAX, FragmentHeader, HEADER_LEN};
    use polycast_types::Handle;
    use proptest::prelude::*;

    /// Keys whose tags are sums: enough to tell bytes that were changed in one place.
    struct Sums;

    fn tag_of(header: &[u8], payload: &[u8]) -> [u8; FULL_TAG_LEN] {
        let mut sum = 17u64;
        for byte in header.iter().chain(payload) {
            sum = sum.wrapping_mul(0x0100_0000_01b3).rotate_left(9) ^ u64::from(*byte);
        }
        // Each bit of the sum changes about half of the tag.
        let mixed = (sum ^ sum >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        let mixed = (mixed ^ mixed >> 31).to_be_bytes();
        core::array::from_fn(|at| mixed[at % 8])
    }

    impl PacketKeys for Sums {
        fn open(&self, sn: u64, payload: &mut [u8], tag: &ContentTag) -> bool {
            tag_of(&sn.to_be_bytes(), payload).starts_with(tag)
        }

        fn vouch(&self, header: &[u8], payload: &[u8], tag: &[u8]) -> bool {
            tag_of(header, payload).starts_with(tag)
        }
    }

    proptest! {
        /// A fragment whose header was changed anywhere is not its source's, and one whose payload was
        /// changed is not opened.
        #[test]
        fn what_was_changed_on_the_way_is_not_its_sources(
            sn in 1u64..1_000, round: u32, at: proptest::sample::Index, bit in 0u8..8,
        ) {
            let fragment = FragmentHeader { flags: 0, round, handle: Handle(5), sn, object_len: None, sealed: true };
            let header = Header::Fragment(fragment);
            let mut buffer = [0; HEADER_LEN + EXTENSION_LEN_MAX];
            let len = header.emit(&mut buffer);
            let payload = [7u8; 40];
            let content: ContentTag = core::array::from_fn(|at| tag_of(&sn.to_be_bytes(), &payload)[at]);
            put_fragment_tags(&mut buffer[..len], &content, tag_of);
            let mut datagram = [&buffer[..len], &payload].concat();
            prop_assert!(vouches(&Sums, &header, &datagram, len) && admit(&Sums, &header, &mut datagram, len));
            let at = at.index(datagram.len());
            datagram[at] ^= 1 << bit;
            prop_assert_eq!(vouches(&Sums, &header, &datagram, len), at >= len, "byte {} of {}", at, len);
            prop_assert!(!admit(&Sums, &header, &mut datagram, len), "byte {} of {}", at, len);
        }
    }
}
