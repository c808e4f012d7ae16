//! BLAKE3 by hash groups: every group can be verified by itself, and together they give the root hash.

use crate::object::ObjectSource;
use blake3::Hasher;
use blake3::hazmat::{HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root};
use polycast_types::{AppId, DataId, ObjectId};
use polycast_wire::control::Hash;
use std::io;

/// Bytes of a hash group: large enough for the vector units, small enough for the second-level cache.
pub const GROUP_LEN: u32 = 256 << 10;

/// The hash of a group: a chaining value of the object's tree, or the root hash where the object is one
/// group.
#[must_use]
pub fn group_hash(bytes: &[u8], group: u64, group_len: u32, groups: u64) -> Hash {
    if groups == 1 {
        return *blake3::hash(bytes).as_bytes();
    }
    let mut hasher = Hasher::new();
    hasher.set_input_offset(group * u64::from(group_len));
    hasher.update(bytes);
    hasher.finalize_non_root()
}

/// The root hash of the object whose groups have these hashes; the same as `blake3::hash` of all its bytes.
///
/// # Panics
/// There are no hashes.
#[must_use]
pub fn root_hash(groups: &[Hash]) -> Hash {
    match groups {
        [] => panic!("an object has at least one hash group"),
        [only] => *only,
        _ => {
            let (left, right) = groups.split_at(left_len(groups.len()));
            *merge_subtrees_root(&subtree(left), &subtree(right), Mode::Hash).as_bytes()
        }
    }
}

fn subtree(groups: &[Hash]) -> Hash {
    if let [only] = groups {
        return *only;
    }
    let (left, right) = groups.split_at(left_len(groups.len()));
    merge_subtrees_non_root(&subtree(left), &subtree(right), Mode::Hash)
}

/// The left side of a BLAKE3 tree is the largest power of two that leaves something for the right.
fn left_len(len: usize) -> usize {
    len.next_power_of_two() / 2
}

/// The hash of these bytes.
#[must_use]
pub fn bytes_hash(bytes: &[u8]) -> Hash {
    *blake3::hash(bytes).as_bytes()
}

/// A hash from hex; `None` where it is none.
#[must_use]
pub fn parse_hex(text: &str) -> Option<Hash> {
    blake3::Hash::from_hex(text).ok().map(|hash| *hash.as_bytes())
}

/// The root hash of all bytes of an object.
///
/// # Errors
/// They cannot be read.
pub fn hash_of(source: &dyn ObjectSource) -> io::Result<Hash> {
    let mut hasher = Hasher::new();
    let mut buffer = vec![0; 4 * GROUP_LEN as usize];
    let (len, mut at) = (source.len(), 0);
    while at < len {
        let piece = &mut buffer[..(len - at).min(4 * u64::from(GROUP_LEN)) as usize];
        source.read_exact_at(piece, at)?;
        hasher.update(piece);
        at += piece.len() as u64;
    }
    Ok(*hasher.finalize().as_bytes())
}

/// Computes a hash that only an end with these bytes and the key can give.
#[must_use]
pub fn keyed_hash(key: &[u8; 32], bytes: &[u8]) -> Hash {
    *blake3::keyed_hash(key, bytes).as_bytes()
}

/// The id that a key `kind:name` stands for, the same on every host.
///
/// # Panics
/// It does not: a hash is longer than an id.
#[must_use]
pub fn id_of_key(kind: &str, name: &str) -> ObjectId {
    let mut hasher = Hasher::new();
    hasher.update(b"polycast:").update(kind.as_bytes()).update(&[0]).update(name.as_bytes());
    let hash = *hasher.finalize().as_bytes();
    let (app, rest) = hash.split_at(16);
    let app = AppId(app.try_into().expect("16 bytes"));
    ObjectId { app, data: DataId(u64::from_be_bytes(rest[..8].try_into().expect("8 bytes"))) }
}

/// A hash in hex.
#[must_use]
pub fn hex(hash: &Hash) -> String {
    blake3::Hash::from_bytes(*hash).to_hex().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_together_give_the_hash_of_the_whole() {
        let group_len = 1u32 << 16;
        for len in [0usize, 1, 1_024, 65_535, 65_536, 65_537, 131_072, 200_000, 327_680, 1_000_000] {
            let bytes: Vec<u8> = (0..len).map(|i| (i * 7 + i / 251) as u8).collect();
            let groups = len.div_ceil(group_len as usize).max(1) as u64;
            let chunk = |g: u64| {
                let start = g as usize * group_len as usize;
                &bytes[start..len.min(start + group_len as usize)]
            };
            let hashes: Vec<Hash> = (0..groups).map(|g| group_hash(chunk(g), g, group_len, groups)).collect();
            assert_eq!(root_hash(&hashes), *blake3::hash(&bytes).as_bytes(), "{len} bytes");
        }
    }

    #[test]
    fn the_same_bytes_in_another_place_have_another_hash() {
        let bytes = vec![1u8; 1 << 16];
        assert_ne!(group_hash(&bytes, 1, 1 << 16, 4), group_hash(&bytes, 2, 1 << 16, 4));
    }
}
