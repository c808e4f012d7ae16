//! Sealed content: what a transfer's packets carry is a stream cipher's, and each packet has a tag.
//!
//! The source of a transfer draws a [`Secret`] and tells it to receivers on their sealed connections. Everything else follows
//! from it and the transfer's handle:
//!
//! - **Content.** A hash group is combined with AES-128 in counter mode; the group's number is the nonce. Content is as long
//!   as before, so sizes, offsets and coded patches stay. It needs no tag of its own: the group's hash, which comes over the
//!   sealed connection, is the stronger check.
//! - **Packets.** A tag of 12 bytes over header and payload: POLYVAL, and then AES-128 of its sum (the authenticator of
//!   AES-GCM-SIV, RFC 8452). It has no nonce, so that nothing breaks where one is used twice. Who has the secret can make
//!   tags; who has not can neither make nor change a packet.
//!
//! Nobody who lacks the secret reads the object; nobody may seal two objects with one.

use crate::object::ObjectSource;
use aes::Aes128;
use ctr::cipher::{
    BlockCipherEncrypt, InnerIvInit, KeyInit, StreamCipher, StreamCipherCoreWrapper, StreamCipherSeek,
};
use ctr::{CtrCore, flavors};
use polycast_types::Handle;
use polycast_wire::data::{TAG_LEN, Tag};
use polyval::Polyval;
use polyval::universal_hash::UniversalHash;
use std::io;
use std::sync::Arc;
use zeroize::Zeroizing;

/// Bytes of a block of the cipher.
const BLOCK_LEN: usize = 16;

/// What the keys of a transfer are made of. It is wiped from memory when it is dropped, and never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Zeroizing<[u8; 32]>);

impl Secret {
    /// These bytes.
    #[must_use]
    pub fn new(bytes: [u8; 32]) -> Self {
        Secret(Zeroizing::new(bytes))
    }

    /// Bytes that nobody can foresee.
    #[must_use]
    pub fn fresh() -> Self {
        let mut bytes = [0; 32];
        // The system's generator is there since it was started, and gives so few bytes whole.
        let got = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
        assert_eq!(got, Ok(bytes.len()), "the system gives random bytes");
        Secret::new(bytes)
    }

    /// The bytes, for those who may have them.
    #[must_use]
    pub fn reveal(&self) -> &[u8; 32] {
        &self.0
    }

    /// Another secret, for this purpose, that tells nothing of this one.
    #[must_use]
    pub fn derive(&self, purpose: &str, context: &[u8]) -> Secret {
        let material = Zeroizing::new([&self.0[..], context].concat());
        Secret::new(blake3::derive_key(purpose, &material))
    }
}

/// It must not get into a log.
impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// The keys of one transfer.
#[derive(Clone)]
pub struct Seal {
    content: Aes128,
    sum: Polyval,
    finish: Aes128,
}

/// It must not get into a log.
impl std::fmt::Debug for Seal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Seal(..)")
    }
}

impl Seal {
    /// The keys that follow from a secret, for the transfer with this handle.
    #[must_use]
    pub fn new(secret: &Secret, handle: Handle) -> Self {
        let key = |purpose: &str| {
            let key = secret.derive(purpose, &handle.0.to_be_bytes());
            *key.reveal().first_chunk::<BLOCK_LEN>().expect("a secret is longer")
        };
        Seal {
            content: Aes128::new(&key("polycast 3 content").into()),
            sum: Polyval::new(&key("polycast 3 packet sums").into()),
            finish: Aes128::new(&key("polycast 3 packet tags").into()),
        }
    }

    /// Seals or opens bytes of a hash group that begin `offset` bytes behind its beginning.
    ///
    /// # Panics
    /// The bytes reach beyond 64 GiB of a group.
    pub fn turn(&self, group: u64, offset: u64, bytes: &mut [u8]) {
        let mut nonce = [0; BLOCK_LEN];
        nonce[..8].copy_from_slice(&group.to_be_bytes());
        let mut cipher = StreamCipherCoreWrapper::from_core(
            CtrCore::<&Aes128, flavors::Ctr32BE>::inner_iv_init(&self.content, &nonce.into()),
        );
        cipher.seek(offset);
        cipher.apply_keystream(bytes);
    }

    /// Seals or opens bytes of an object that begin at `offset`; its hash groups have `group_len` bytes.
    pub fn turn_object(&self, group_len: u32, offset: u64, bytes: &mut [u8]) {
        let group_len = u64::from(group_len);
        let (mut group, mut within) = (offset / group_len, offset % group_len);
        let mut rest = bytes;
        while !rest.is_empty() {
            let len = usize::try_from(group_len - within).map_or(rest.len(), |len| len.min(rest.len()));
            let (piece, more) = rest.split_at_mut(len);
            self.turn(group, within, piece);
            (group, within, rest) = (group + 1, 0, more);
        }
    }

    /// Begins the tag of a packet.
    #[must_use]
    pub fn tag(&self) -> TagOf<'_> {
        TagOf { seal: self, sum: self.sum.clone(), rest: [0; BLOCK_LEN], rest_len: 0, lens: [0; 2] }
    }

    /// The tag of a packet with this header and this payload.
    #[must_use]
    pub fn tag_of(&self, header: &[u8], payload: &[u8]) -> Tag {
        let mut tag = self.tag();
        tag.header(header);
        tag.payload(payload);
        tag.finish()
    }
}

/// An object as packets carry it.
pub struct SealedObject {
    object: Arc<dyn ObjectSource>,
    seal: Seal,
    group_len: u32,
}

impl SealedObject {
    /// This object, sealed by groups of `group_len` bytes.
    #[must_use]
    pub fn new(object: Arc<dyn ObjectSource>, seal: Seal, group_len: u32) -> Self {
        SealedObject { object, seal, group_len }
    }
}

impl ObjectSource for SealedObject {
    fn len(&self) -> u64 {
        self.object.len()
    }

    fn mode(&self) -> u16 {
        self.object.mode()
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.object.read_exact_at(buffer, offset)?;
        self.seal.turn_object(self.group_len, offset, buffer);
        Ok(())
    }
}

/// The tag of a packet whose bytes come in pieces: first the header, then its payload.
pub struct TagOf<'a> {
    seal: &'a Seal,
    sum: Polyval,
    /// The beginning of a block.
    rest: [u8; BLOCK_LEN],
    rest_len: usize,
    /// Bytes of the header and of the payload so far.
    lens: [u64; 2],
}

impl TagOf<'_> {
    /// The header, without the tag; once.
    pub fn header(&mut self, bytes: &[u8]) {
        assert_eq!(self.lens, [0; 2], "a packet has one header, and it is first");
        self.lens[0] = bytes.len() as u64;
        self.take(bytes);
        self.pad();
    }

    /// More of the payload.
    pub fn payload(&mut self, bytes: &[u8]) {
        self.lens[1] += bytes.len() as u64;
        self.take(bytes);
    }

    fn take(&mut self, mut bytes: &[u8]) {
        if self.rest_len > 0 {
            let (head, tail) = bytes.split_at(bytes.len().min(BLOCK_LEN - self.rest_len));
            self.rest[self.rest_len..self.rest_len + head.len()].copy_from_slice(head);
            self.rest_len += head.len();
            bytes = tail;
            if self.rest_len < BLOCK_LEN {
                return;
            }
            self.sum.update(&[self.rest.into()]);
            self.rest_len = 0;
        }
        let (whole, rest) = bytes.split_at(bytes.len() / BLOCK_LEN * BLOCK_LEN);
        self.sum.update_padded(whole);
        self.rest[..rest.len()].copy_from_slice(rest);
        self.rest_len = rest.len();
    }

    /// Fills the last block with zeros.
    fn pad(&mut self) {
        if self.rest_len > 0 {
            self.rest[self.rest_len..].fill(0);
            self.sum.update(&[self.rest.into()]);
            self.rest_len = 0;
        }
    }

    /// The tag.
    #[must_use]
    pub fn finish(mut self) -> Tag {
        self.pad();
        let mut lens = [0; BLOCK_LEN];
        lens[..8].copy_from_slice(&self.lens[0].to_be_bytes());
        lens[8..].copy_from_slice(&self.lens[1].to_be_bytes());
        self.sum.update(&[lens.into()]);
        let mut block = self.sum.finalize();
        self.seal.finish.encrypt_block(&mut block);
        *block.first_chunk::<TAG_LEN>().expect("a block is longer than a tag")
    }

    /// Whether this is the tag, in a time that does not tell where it differs.
    #[must_use]
    pub fn is(self, tag: &Tag) -> bool {
        self.finish().iter().zip(tag).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn seal() -> Seal {
        Seal::new(&Secret::new([7; 32]), Handle(9))
    }

    fn bytes(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i * 31 + i / 255) as u8).collect()
    }

    proptest! {
        /// Any piece of a group is sealed alike, wherever it is cut; doing it twice gives the bytes back.
        #[test]
        fn pieces_are_sealed_like_the_whole(len in 1usize..5_000, a: prop::sample::Index, b: prop::sample::Index) {
            let (seal, plain) = (seal(), bytes(len));
            let mut whole = plain.clone();
            seal.turn(3, 0, &mut whole);
            let (a, b) = (a.index(len), b.index(len));
            let cut = a.min(b)..a.max(b);
            let mut piece = plain[cut.clone()].to_vec();
            seal.turn(3, cut.start as u64, &mut piece);
            prop_assert_eq!(&piece, &whole[cut]);
            seal.turn(3, 0, &mut whole);
            prop_assert_eq!(whole, plain);
        }

        /// Bytes of several groups are sealed like each group.
        #[test]
        fn bytes_over_groups_are_sealed_by_group(len in 1usize..700, at in 0u64..300) {
            let (seal, mut one) = (seal(), bytes(len));
            seal.turn_object(128, at, &mut one);
            for (i, (sealed, plain)) in one.into_iter().zip(bytes(len)).enumerate() {
                let (mut byte, offset) = ([plain], at + i as u64);
                seal.turn(offset / 128, offset % 128, &mut byte);
                prop_assert_eq!(sealed, byte[0]);
            }
        }

        /// A tag does not depend on how the payload comes in pieces, and on all else.
        #[test]
        fn tags_bind_every_byte(header in 1usize..40, payload in 0usize..300, cuts: Vec<prop::sample::Index>, flip: prop::sample::Index) {
            let (seal, all) = (seal(), bytes(header + payload));
            let tag = seal.tag_of(&all[..header], &all[header..]);
            let mut ends: Vec<usize> = cuts.iter().map(|cut| cut.index(payload + 1)).collect();
            ends.push(payload);
            ends.sort_unstable();
            let (mut pieces, mut at) = (seal.tag(), 0);
            pieces.header(&all[..header]);
            for end in ends {
                pieces.payload(&all[header + at..header + end]);
                at = end;
            }
            prop_assert!(pieces.is(&tag));
            let mut other = all.clone();
            other[flip.index(header + payload)] ^= 1;
            prop_assert_ne!(seal.tag_of(&other[..header], &other[header..]), tag);
            prop_assert_ne!(seal.tag_of(&all[..header - 1], &all[header - 1..]), tag);
        }
    }

    #[test]
    fn other_groups_transfers_and_secrets_give_other_bytes() {
        let sealed = |secret: u8, handle: u64, group: u64| {
            let mut bytes = vec![0; 64];
            let seal = Seal::new(&Secret::new([secret; 32]), Handle(handle));
            seal.turn(group, 0, &mut bytes);
            (bytes, seal.tag_of(b"header", b"payload"))
        };
        let base = sealed(1, 1, 1);
        for (secret, handle, group) in [(2, 1, 1), (1, 2, 1), (1, 1, 2)] {
            let other = sealed(secret, handle, group);
            assert_ne!(other.0, base.0);
            assert_eq!(other.1 == base.1, group == 2, "tags are of the transfer, not of the group");
        }
    }

    #[test]
    fn a_secret_is_not_printed() {
        assert_eq!(format!("{:?} {:?}", Secret::new([7; 32]), seal()), "Secret(..) Seal(..)");
        assert!(Secret::fresh() != Secret::fresh());
    }
}
