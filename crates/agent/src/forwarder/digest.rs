//! Digests in the names of packets.

use polycast_types::Handle;
use polycast_wire::pull as wire;

/// The digest by which a packet with this payload is named, of which `len` bytes are used.
pub(crate) fn digest_of(handle: Handle, sn: u64, payload: &[u8], len: usize) -> wire::Digest {
    wire::Digest::of_hash(&hash_of(handle, sn, payload), len)
}

pub(super) fn hash_of(handle: Handle, sn: u64, payload: &[u8]) -> [u8; 32] {
    blake3::keyed_hash(&wire::digest_key(handle, sn), payload).into()
}
