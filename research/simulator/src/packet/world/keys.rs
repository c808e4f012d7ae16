//! Ideal cryptography: what is sealed tells nothing to those who lack its secret, and they cannot make it.
//!
//! A secret is a number, and ciphers are functions of it that mix well. They are as good as perfect, because
//! a host that was not told a secret does not calculate with it: the attacker has only the [`Keyring`] of a
//! receiver that is its own. Which bytes are under which key, with which nonce, and what is looked at first,
//! is `wire::seal` as in production.

use alloc::sync::Arc;
use alloc::vec::Vec;
use polycast_types::{Handle, RangeSet};
use polycast_wire::control::{Hash, Salt, SealSecret};
use polycast_wire::data::{ContentTag, EXTENSION_LEN_MAX, HEADER_LEN, Header};
use polycast_wire::pull::digest_key;
use polycast_wire::seal::{FULL_TAG_LEN, PacketKeys, nonce, put_fragment_tags, put_patch_tag};

/// Bytes that stand for those of a fragment: its content id.
pub const CONTENT_LEN: usize = 8;
/// Offset of the number of the first fragment in a header.
const SN_AT: usize = 16;

/// Secret from which the keys of fragments are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Secret(pub u64);

impl Secret {
    /// Returns the ticket that a holder of the secret shows on the connection with this number.
    pub fn ticket(self, connection: u32) -> Hash {
        hash(&mix(mix(self.0, 14), connection.into()).to_be_bytes())
    }

    /// As SEAL carries it.
    pub fn frame(self) -> SealSecret {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&self.0.to_be_bytes());
        SealSecret(bytes)
    }

    /// Returns the secret in a SEAL frame.
    pub fn in_frame(SealSecret(bytes): &SealSecret) -> Secret {
        Secret(number(&bytes[..8]))
    }
}

/// Up to eight bytes as a number.
pub fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Another number, of which neither the first nor the second can be told.
pub fn mix(sum: u64, next: u64) -> u64 {
    let mixed = (sum.rotate_left(23) ^ next).wrapping_mul(0xd6e8_feb8_6659_fd93);
    let mixed = (mixed ^ mixed >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ mixed >> 29
}

/// A number that stands for bytes.
pub fn digest(begin: u64, bytes: &[u8]) -> u64 {
    bytes.chunks(8).fold(mix(begin, bytes.len() as u64), |sum, chunk| mix(sum, number(chunk)))
}

fn wide(sum: u64) -> [u8; FULL_TAG_LEN] {
    let mut tag = [0; FULL_TAG_LEN];
    tag[..8].copy_from_slice(&sum.to_be_bytes());
    tag[8..].copy_from_slice(&mix(sum, 1).to_be_bytes());
    tag
}

/// The proof that one has the contents of a group, for this salt.
pub fn proof_of(salt: &Salt, contents: impl Iterator<Item = u64>) -> Hash {
    let sum = contents.fold(digest(2, salt), mix);
    let mut proof = [0; 32];
    proof.chunks_mut(8).zip(0u64..).for_each(|(part, at)| part.copy_from_slice(&mix(sum, at).to_be_bytes()));
    proof
}

/// The hash of bytes.
pub fn hash(bytes: &[u8]) -> Hash {
    let (sum, mut hash) = (digest(9, bytes), [0; 32]);
    hash.chunks_mut(8).zip(0u64..).for_each(|(part, at)| part.copy_from_slice(&mix(sum, at).to_be_bytes()));
    hash
}

/// The keyed hash of a payload, by which a packet is named.
pub fn hash_of(handle: Handle, sn: u64, payload: &[u8]) -> Hash {
    let key = number(&hash(&digest_key(handle, sn)));
    hash(&mix(key, digest(10, payload)).to_be_bytes())
}

/// A salt that was never there before.
pub fn salt_of(draw: u64) -> Salt {
    let mut salt = [0; 32];
    salt.chunks_mut(8).zip(0u64..).for_each(|(part, at)| part.copy_from_slice(&mix(draw, at).to_be_bytes()));
    salt
}

/// The secrets of a transfer that one knows. A later one is for fragments that had not been sent when it was
/// made.
#[derive(Clone, Debug, Default)]
pub struct Keyring {
    epochs: Vec<(Arc<RangeSet>, Secret)>,
    /// Set if two fragments share a nonce, which no check may let pass.
    pub reuses_nonces: bool,
}

impl Keyring {
    /// From now on these fragments are sealed with this.
    pub fn learn(&mut self, sns: Arc<RangeSet>, secret: Secret) {
        if !self.epochs.iter().any(|(_, known)| *known == secret) {
            self.epochs.push((sns, secret));
        }
    }

    /// All secrets, with what they are for.
    pub fn epochs(&self) -> &[(Arc<RangeSet>, Secret)] {
        &self.epochs
    }

    /// The last secret that it was told, of which tickets are made.
    pub fn newest(&self) -> Option<Secret> {
        self.epochs.last().map(|(_, secret)| *secret)
    }

    /// Returns the secret that a fragment is sealed with.
    pub fn secret_of(&self, sn: u64) -> Option<Secret> {
        self.epochs.iter().rev().find(|(sns, _)| sns.contains(sn)).map(|(_, secret)| *secret)
    }

    /// The nonce of a fragment.
    pub fn nonce_of(&self, sn: u64) -> [u8; 12] {
        nonce(if self.reuses_nonces { sn & !1 } else { sn })
    }

    /// Returns the number that a fragment's content is combined with.
    pub fn stream(&self, sn: u64) -> Option<u64> {
        Some(digest(mix(self.secret_of(sn)?.0, 3), &self.nonce_of(sn)))
    }

    /// Seals what a packet by pull carries, or opens it: any bytes of it alone, without a tag. Nothing where
    /// its secret is not known.
    pub fn turn(&self, sn: u64, payload: &mut [u8]) {
        let Some(stream) = self.stream(sn) else { return };
        for (part, at) in payload.chunks_mut(8).zip(0u64..) {
            part.iter_mut().zip(mix(stream, at).to_be_bytes()).for_each(|(byte, key)| *byte ^= key);
        }
    }

    fn content_tag(&self, sn: u64, sealed: &[u8]) -> Option<ContentTag> {
        let begin = digest(mix(self.secret_of(sn)?.0, 4), &self.nonce_of(sn));
        Some(wide(digest(begin, sealed)))
    }

    fn tag_of(&self, header: &[u8], payload: &[u8]) -> Option<[u8; FULL_TAG_LEN]> {
        let secret = self.secret_of(number(header.get(SN_AT..HEADER_LEN)?))?;
        Some(wide(digest(digest(mix(secret.0, 5), header), payload)))
    }

    /// A packet with this header, of a fragment with this content or of several with the XOR of theirs;
    /// `None` where a secret is not known.
    pub fn packet(&self, header: &Header, sns: &[u64], content: u64) -> Option<Arc<[u8]>> {
        let mut sealed = content;
        for sn in sns {
            sealed ^= self.stream(*sn)?;
        }
        let payload = sealed.to_be_bytes();
        let mut buffer = [0; HEADER_LEN + EXTENSION_LEN_MAX];
        let len = header.emit(&mut buffer);
        let head = &mut buffer[..len];
        self.secret_of(sns[0])?;
        let tag_of = |header: &[u8], payload: &[u8]| self.tag_of(header, payload).expect("just looked at");
        match header {
            Header::Fragment(_) => put_fragment_tags(head, &self.content_tag(sns[0], &payload)?, tag_of),
            Header::Coded(_) => put_patch_tag(head, &payload, tag_of),
        }
        Some(head.iter().copied().chain(payload).collect())
    }
}

impl PacketKeys for Keyring {
    fn open(&self, sn: u64, payload: &mut [u8], tag: &ContentTag) -> bool {
        let (Some(right), Some(stream)) = (self.content_tag(sn, payload), self.stream(sn)) else {
            return false;
        };
        let opened = number(payload) ^ stream;
        if payload.len() != CONTENT_LEN || right != *tag {
            return false;
        }
        payload.copy_from_slice(&opened.to_be_bytes());
        true
    }

    fn vouch(&self, header: &[u8], payload: &[u8], tag: &[u8]) -> bool {
        self.tag_of(header, payload).is_some_and(|right| right.starts_with(tag))
    }
}
