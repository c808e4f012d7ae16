//! Sealed content: what a transfer's packets carry is a stream cipher's, and each packet has a tag.
//!
//! The source of a transfer draws a [`Secret`] and tells it to receivers on their sealed connections.
//! Everything else follows from it and the transfer's handle:
//!
//! - **Content.** A fragment is sealed with AES-128-GCM, and its number is the nonce: one number never has
//!   two contents. The sealed fragment is as long as before, so sizes, offsets and coded patches stay. Its
//!   tag travels in the packet's header, and opening it checks it in the same pass.
//! - **Packets.** A tag over what a header says: POLYVAL, and then AES-128 of its sum (the authenticator of
//!   AES-GCM-SIV, RFC 8452). It has no nonce, so that nothing breaks where a packet is sent again, in another
//!   round or with other flags. Of coded patches and messages it covers the payload too. A member that has
//!   the secret can make tags; without it nothing can make or change packet.
//!
//! Only members with the secret can read the object; two objects may never be sealed with the same secret.

use crate::object::ObjectSource;
use crate::tls::binding::Binding;
use aes::Aes128;
use ctr::cipher::{
    BlockCipherEncrypt, InnerIvInit, KeyInit, StreamCipher, StreamCipherCoreWrapper, StreamCipherSeek,
};
use ctr::{CtrCore, flavors};
use polycast_types::{Handle, ModificationTime};
use polycast_wire::data::{ContentTag, HEADER_TAG_LEN};
use polycast_wire::seal::{NONCE_LEN, PacketKeys, nonce};
use polyval::Polyval;
use polyval::universal_hash::UniversalHash;
use ring::aead::{AES_128_GCM, AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use std::io;
use std::sync::Arc;
use zeroize::Zeroizing;

/// Context from which tickets are derived.
const TICKET: &str = "polycast 2026-11-28 ticket of a transfer";
/// Context from which the keys are derived that secrets are kept under.
const KEPT: &str = "polycast 2026-11-28 secret that is kept";
/// Bytes of a block of the cipher.
const BLOCK_LEN: usize = 16;
/// A header of at most so many bytes gets its tag in one step.
const SHORT_LEN: usize = 3 * BLOCK_LEN;

/// Secret that the keys of a transfer are made of. It is wiped from memory when it is dropped, and never
/// printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Zeroizing<[u8; 32]>);

impl Secret {
    /// These bytes.
    #[must_use]
    pub fn new(bytes: [u8; 32]) -> Self {
        Secret(Zeroizing::new(bytes))
    }

    /// Bytes that cannot be foreseen.
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

    /// Returns the ticket that shows on a connection that its end has this secret of a transfer: for the
    /// connection with this binding alone.
    #[must_use]
    pub fn ticket(&self, binding: &Binding) -> [u8; 32] {
        *self.derive(TICKET, &binding.0).reveal()
    }

    /// This secret as it may lie where others read and write: only with `key` it is had back, and nothing
    /// else is taken for one.
    ///
    /// # Panics
    /// Never, as 32 bytes can be sealed.
    #[must_use]
    pub fn sealed(&self, key: &Secret) -> Vec<u8> {
        // Each has a key of its own, so that one nonce does for all.
        let salt = Secret::fresh();
        let mut sealed = Zeroizing::new(Vec::with_capacity(64));
        sealed.extend_from_slice(&self.0[..]);
        let done = kept_key(key, &salt.0).seal_in_place_append_tag(kept_nonce(), Aad::empty(), &mut *sealed);
        done.expect("32 bytes can be sealed");
        [&salt.0[..], &sealed[..]].concat()
    }

    /// The secret that was sealed with this key; `None` where these bytes are something else.
    #[must_use]
    pub fn unsealed(bytes: &[u8], key: &Secret) -> Option<Secret> {
        let (salt, sealed) = bytes.split_first_chunk::<32>()?;
        let mut opened = Zeroizing::new(sealed.to_vec());
        let opened = kept_key(key, salt).open_in_place(kept_nonce(), Aad::empty(), &mut opened).ok()?;
        <[u8; 32]>::try_from(&*opened).ok().map(Secret::new)
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

fn kept_key(key: &Secret, salt: &[u8; 32]) -> LessSafeKey {
    let key = UnboundKey::new(&AES_256_GCM, key.derive(KEPT, salt).reveal()).expect("a key has 32 bytes");
    LessSafeKey::new(key)
}

fn kept_nonce() -> Nonce {
    Nonce::assume_unique_for_key([0; 12])
}

/// The keys of one transfer.
#[derive(Clone)]
pub struct Seal {
    content: LessSafeKey,
    /// The same key, for parts of fragments.
    stream: Aes128,
    sum: Polyval,
    finish: Aes128,
}

/// It must not get into a log.
impl std::fmt::Debug for Seal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Seal(..)")
    }
}

/// GCM's key stream begins with the block of this number.
const FIRST_BLOCK: u32 = 2;

impl Seal {
    /// The keys that follow from a secret, for the transfer with this handle.
    #[must_use]
    pub fn new(secret: &Secret, handle: Handle) -> Self {
        let key = |purpose: &str| {
            let key = secret.derive(purpose, &handle.0.to_be_bytes());
            Zeroizing::new(*key.reveal().first_chunk::<BLOCK_LEN>().expect("a secret is longer"))
        };
        let content = key("polycast 3 content");
        let unbound = UnboundKey::new(&AES_128_GCM, &content[..]).expect("a key has 16 bytes");
        Seal {
            content: LessSafeKey::new(unbound),
            stream: Aes128::new(&(*content).into()),
            sum: Polyval::new(&(*key("polycast 3 packet sums")).into()),
            finish: Aes128::new(&(*key("polycast 3 packet tags")).into()),
        }
    }

    /// Seals a fragment, and gives the tag of its content.
    ///
    /// # Panics
    /// It is longer than 64 GiB.
    pub fn seal(&self, sn: u64, bytes: &mut [u8]) -> ContentTag {
        let nonce = Nonce::assume_unique_for_key(nonce(sn));
        let tag = self.content.seal_in_place_separate_tag(nonce, Aad::empty(), bytes);
        let tag = tag.expect("a fragment is not too long");
        *tag.as_ref().first_chunk().expect("a tag of GCM has 16 bytes")
    }

    /// Opens a fragment where its bytes are what was sealed; otherwise they are worth nothing.
    #[must_use]
    pub fn open(&self, sn: u64, bytes: &mut [u8], tag: &ContentTag) -> bool {
        let nonce = Nonce::assume_unique_for_key(nonce(sn));
        self.content.open_in_place_separate_tag(nonce, Aad::empty(), (*tag).into(), bytes, 0..).is_ok()
    }

    /// Returns a digest of a tag, to add up those of many: nothing that can be done to fragments without the
    /// key leaves their sum as it was, and tags themselves could be changed together so that it does.
    #[must_use]
    pub fn digest(&self, tag: &ContentTag) -> u128 {
        let mut block = (*tag).into();
        self.finish.encrypt_block(&mut block);
        u128::from_be_bytes(block.into())
    }

    /// Seals or opens bytes of a fragment that begin `offset` bytes behind its beginning, and looks at no
    /// tag.
    ///
    /// # Panics
    /// The bytes reach beyond 64 GiB of a fragment.
    pub fn turn(&self, sn: u64, offset: u64, bytes: &mut [u8]) {
        let mut first = [0; BLOCK_LEN];
        first[..NONCE_LEN].copy_from_slice(&nonce(sn));
        first[NONCE_LEN..].copy_from_slice(&FIRST_BLOCK.to_be_bytes());
        let mut cipher = StreamCipherCoreWrapper::from_core(
            CtrCore::<&Aes128, flavors::Ctr32BE>::inner_iv_init(&self.stream, &first.into()),
        );
        cipher.seek(offset);
        cipher.apply_keystream(bytes);
    }

    /// Seals or opens bytes of an object that begin at `offset`; its fragments have `fragment_len` bytes.
    pub fn turn_object(&self, fragment_len: u32, offset: u64, bytes: &mut [u8]) {
        let fragment_len = u64::from(fragment_len);
        let (mut sn, mut within) = (offset / fragment_len, offset % fragment_len);
        let mut rest = bytes;
        while !rest.is_empty() {
            let len = usize::try_from(fragment_len - within).map_or(rest.len(), |len| len.min(rest.len()));
            let (piece, more) = rest.split_at_mut(len);
            self.turn(sn, within, piece);
            (sn, within, rest) = (sn + 1, 0, more);
        }
    }

    /// Begins the tag of a packet.
    #[must_use]
    pub fn tag(&self) -> TagOf<'_> {
        TagOf { seal: self, sum: self.sum.clone(), rest: [0; BLOCK_LEN], rest_len: 0, lens: [0; 2] }
    }

    /// The tag of a packet with this header and this payload; only its beginning may be sent.
    #[must_use]
    pub fn tag_of(&self, header: &[u8], payload: &[u8]) -> [u8; BLOCK_LEN] {
        if payload.is_empty() && header.len() <= SHORT_LEN {
            return self.tag_of_short(header);
        }
        let mut tag = self.tag();
        tag.header(header);
        tag.payload(payload);
        tag.finish()
    }

    /// The tag of a header alone, which every fragment has. The sum takes four blocks at once in less than
    /// half of the time of one after the other, and blocks of zeros before all others change nothing in it.
    fn tag_of_short(&self, header: &[u8]) -> [u8; BLOCK_LEN] {
        let mut bytes = [0; SHORT_LEN + BLOCK_LEN];
        let (padded, lens) = bytes.split_at_mut(SHORT_LEN);
        let start = SHORT_LEN - header.len().next_multiple_of(BLOCK_LEN);
        padded[start..start + header.len()].copy_from_slice(header);
        lens[..8].copy_from_slice(&(header.len() as u64).to_be_bytes());
        let mut sum = self.sum.clone();
        sum.update_padded(&bytes);
        self.finish(sum)
    }

    fn finish(&self, sum: Polyval) -> [u8; BLOCK_LEN] {
        let mut block = sum.finalize();
        self.finish.encrypt_block(&mut block);
        block.into()
    }
}

impl PacketKeys for Seal {
    fn open(&self, sn: u64, payload: &mut [u8], tag: &ContentTag) -> bool {
        Seal::open(self, sn, payload, tag)
    }

    fn vouch(&self, header: &[u8], payload: &[u8], tag: &[u8]) -> bool {
        begins_so(&self.tag_of(header, payload), tag)
    }
}

/// An object as packets carry it. The sender of what this gives sees first that it is what it was.
pub struct SealedObject {
    object: Arc<dyn ObjectSource>,
    seal: Seal,
    fragment_len: u32,
}

impl SealedObject {
    /// This object, sealed by fragments of `fragment_len` bytes.
    #[must_use]
    pub fn new(object: Arc<dyn ObjectSource>, seal: Seal, fragment_len: u32) -> Self {
        SealedObject { object, seal, fragment_len }
    }
}

impl ObjectSource for SealedObject {
    fn len(&self) -> u64 {
        self.object.len()
    }

    fn is_checked_quickly(&self) -> bool {
        self.object.is_checked_quickly()
    }

    fn check(&self) -> io::Result<()> {
        self.object.check()
    }

    fn mode(&self) -> u16 {
        self.object.mode()
    }

    fn modified(&self) -> Option<ModificationTime> {
        self.object.modified()
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.object.read_exact_at(buffer, offset)?;
        self.seal.turn_object(self.fragment_len, offset, buffer);
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
    pub fn finish(mut self) -> [u8; BLOCK_LEN] {
        self.pad();
        let mut lens = [0; BLOCK_LEN];
        lens[..8].copy_from_slice(&self.lens[0].to_be_bytes());
        lens[8..].copy_from_slice(&self.lens[1].to_be_bytes());
        self.sum.update(&[lens.into()]);
        self.seal.finish(self.sum)
    }

    /// Returns true if the tag begins with these bytes.
    ///
    /// # Panics
    /// Too few bytes are compared to tell.
    #[must_use]
    pub fn is(self, tag: &[u8]) -> bool {
        begins_so(&self.finish(), tag)
    }
}

/// Returns true if a tag begins with these bytes, in a time that does not reveal where it differs.
fn begins_so(whole: &[u8; BLOCK_LEN], tag: &[u8]) -> bool {
    assert!((HEADER_TAG_LEN..=BLOCK_LEN).contains(&tag.len()), "a tag of {} bytes", tag.len());
    whole.iter().zip(tag).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
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

    #[test]
    fn a_secret_that_is_kept_is_had_back_with_its_key_alone() {
        let (secret, key) = (Secret::new([7; 32]), Secret::fresh());
        let kept = secret.sealed(&key);
        assert!(Secret::unsealed(&kept, &key) == Some(secret.clone()));
        assert!(Secret::unsealed(&kept, &Secret::fresh()).is_none());
        assert!(!kept.windows(8).any(|window| window == [7; 8]) && secret.sealed(&key) != kept);
        for at in 0..kept.len() {
            let mut other = kept.clone();
            other[at] ^= 1;
            assert!(Secret::unsealed(&other, &key).is_none(), "byte {at}");
            assert!(Secret::unsealed(&kept[..at], &key).is_none(), "the first {at}");
        }
    }

    proptest! {
        /// Any piece of a fragment is sealed alike, wherever it is cut; doing it twice gives the bytes back.
        #[test]
        fn pieces_are_sealed_like_the_whole(len in 1usize..5_000, a: prop::sample::Index, b: prop::sample::Index) {
            let (seal, plain) = (seal(), bytes(len));
            let mut whole = plain.clone();
            let tag = seal.seal(3, &mut whole);
            let mut opened = whole.clone();
            prop_assert!(seal.open(3, &mut opened, &tag) && opened == plain);
            prop_assert!(!seal.open(4, &mut whole.clone(), &tag), "it is another fragment's");
            let mut other = whole.clone();
            other[a.index(len)] ^= 1;
            prop_assert!(!seal.open(3, &mut other, &tag));
            let (a, b) = (a.index(len), b.index(len));
            let cut = a.min(b)..a.max(b);
            let mut piece = plain[cut.clone()].to_vec();
            seal.turn(3, cut.start as u64, &mut piece);
            prop_assert_eq!(&piece, &whole[cut]);
            seal.turn(3, 0, &mut whole);
            prop_assert_eq!(whole, plain);
        }

        /// Bytes of several fragments are sealed like each fragment.
        #[test]
        fn bytes_over_fragments_are_sealed_by_fragment(len in 1usize..700, at in 0u64..300) {
            let (seal, mut one) = (seal(), bytes(len));
            seal.turn_object(128, at, &mut one);
            for (i, (sealed, plain)) in one.into_iter().zip(bytes(len)).enumerate() {
                let (mut byte, offset) = ([plain], at + i as u64);
                seal.turn(offset / 128, offset % 128, &mut byte);
                prop_assert_eq!(sealed, byte[0]);
            }
        }

        /// Summing four blocks at once gives the same as summing them one by one.
        #[test]
        fn short_headers_have_the_same_tag(header in 0usize..=SHORT_LEN + 1) {
            let (seal, header) = (seal(), bytes(header));
            let mut whole = seal.tag();
            whole.header(&header);
            prop_assert_eq!(whole.finish(), seal.tag_of(&header, &[]));
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
