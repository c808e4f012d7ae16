//! A password-authenticated key exchange: two ends that know the same code agree on a key, and a third one
//! learns nothing on which it could try codes. Each guess at a code takes a connection to an end that knows
//! it.
//!
//! This is CPace with ristretto255 and SHA-512, for an initiator and a responder (draft-irtf-cfrg-cpace,
//! CPACE-RISTR255-SHA512). The group is that of curve25519-dalek, the hash that of ring. What is said beyond
//! the two shares is ours: the initiator proves that it has the key before the responder says anything that
//! depends on it, so that an initiator that guesses is noticed.

use crate::seal::Secret;
use curve25519_dalek::ristretto::{CompressedRistretto, RistrettoPoint};
use curve25519_dalek::scalar::Scalar;
use curve25519_dalek::traits::IsIdentity;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::digest::{SHA512, digest};
use zeroize::Zeroizing;

/// The group's name in what is hashed.
const GROUP: &[u8] = b"CPaceRistretto255";
/// The same where the key is made.
const GROUP_KEY: &[u8] = b"CPaceRistretto255_ISK";
/// Bytes that SHA-512 takes at a time.
const BLOCK_LEN: usize = 128;
/// Bytes of a tag.
const TAG_LEN: usize = 16;

/// Share that one end sends to the other one.
pub type Share = [u8; 32];

/// Input of both ends.
#[derive(Clone, Copy)]
pub struct Meeting<'a> {
    /// Code that they share, which may be guessed.
    pub code: &'a [u8],
    /// Context that both know: who they are to each other, and of what.
    pub context: &'a [u8],
}

/// One end of an exchange.
pub struct End {
    secret: Scalar,
    share: Share,
}

/// The key on which both ends have agreed, if they know the same code.
pub struct Agreed(Secret);

impl End {
    /// Begins. `entropy` is drawn for this exchange alone.
    #[must_use]
    pub fn new(meeting: Meeting<'_>, entropy: &[u8; 64]) -> Self {
        Self::with(generator(meeting, &[]), Scalar::from_bytes_mod_order_wide(entropy))
    }

    fn with(generator: RistrettoPoint, secret: Scalar) -> Self {
        End { secret, share: (generator * secret).compress().to_bytes() }
    }

    /// Returns the share that the other end has to receive.
    #[must_use]
    pub fn share(&self) -> &Share {
        &self.share
    }

    /// The key, of the end that speaks first; `None` where the other one's share is none.
    #[must_use]
    pub fn agree_first(&self, theirs: &Share) -> Option<Agreed> {
        self.key(theirs, [(&self.share, &[]), (theirs, &[])], &[]).map(Agreed::of)
    }

    /// The same, of the end that answers.
    #[must_use]
    pub fn agree_second(&self, theirs: &Share) -> Option<Agreed> {
        self.key(theirs, [(theirs, &[]), (&self.share, &[])], &[]).map(Agreed::of)
    }

    /// The key as the draft has it: of both shares and of what was said with each, in the order in which they
    /// were said.
    fn key(&self, theirs: &Share, said: [(&Share, &[u8]); 2], session: &[u8]) -> Option<Zeroizing<[u8; 64]>> {
        let theirs = CompressedRistretto(*theirs).decompress()?;
        let point = theirs * self.secret;
        // Of the neutral element every end could make the key.
        if point.is_identity() {
            return None;
        }
        let mut words = Zeroizing::new(Vec::new());
        let point = Zeroizing::new(point.compress().to_bytes());
        for part in [GROUP_KEY, session, &point[..]] {
            put(&mut words, part);
        }
        for (share, beside) in said {
            put(&mut words, share);
            put(&mut words, beside);
        }
        Some(hash(&words))
    }
}

impl Agreed {
    fn of(key: Zeroizing<[u8; 64]>) -> Self {
        Agreed(Secret::new(blake3::derive_key("polycast 2026-11-28 pairing by a code", &key[..])))
    }

    /// Returns the proof that the end which sends first has the key.
    #[must_use]
    pub fn proof(&self) -> [u8; 32] {
        *self.0.derive("polycast 2026-11-28 the first end of a pairing has the key", &[]).reveal()
    }

    /// Returns true if this is that proof, in a time that does not depend on where it is wrong.
    #[must_use]
    pub fn is_proven(&self, proof: &[u8; 32]) -> bool {
        blake3::Hash::from_bytes(self.proof()) == blake3::Hash::from_bytes(*proof)
    }

    /// Seals the one message of the end that answers.
    #[must_use]
    pub fn seal(&self, message: &[u8]) -> Vec<u8> {
        let mut sealed = message.to_vec();
        let (key, nonce) = self.cipher();
        key.seal_in_place_append_tag(nonce, Aad::empty(), &mut sealed).expect("a message is not too long");
        sealed
    }

    /// Opens it; `None` where the other end has another key.
    #[must_use]
    pub fn open(&self, sealed: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        let mut message = Zeroizing::new(sealed.to_vec());
        let (key, nonce) = self.cipher();
        key.open_in_place(nonce, Aad::empty(), &mut message).ok()?;
        let len = message.len() - TAG_LEN;
        message.truncate(len);
        Some(message)
    }

    /// The key of that message, which is the only one under it.
    fn cipher(&self) -> (LessSafeKey, Nonce) {
        let key = self.0.derive("polycast 2026-11-28 what the second end of a pairing says", &[]);
        let key = UnboundKey::new(&AES_256_GCM, key.reveal()).expect("a key has 32 bytes");
        (LessSafeKey::new(key), Nonce::assume_unique_for_key([0; 12]))
    }
}

/// A point that follows from the code and from what else both ends know.
fn generator(Meeting { code, context }: Meeting<'_>, session: &[u8]) -> RistrettoPoint {
    RistrettoPoint::from_uniform_bytes(&hash(&generator_string(code, context, session)))
}

/// Returns the string that a generator is hashed from: its first block has the code and nothing of this
/// session, and is whole.
fn generator_string(code: &[u8], context: &[u8], session: &[u8]) -> Zeroizing<Vec<u8>> {
    let mut words = Zeroizing::new(Vec::new());
    put(&mut words, GROUP);
    put(&mut words, code);
    let padding = BLOCK_LEN.saturating_sub(words.len() + 1);
    put(&mut words, &[0; BLOCK_LEN][..padding]);
    put(&mut words, context);
    put(&mut words, session);
    words
}

fn hash(words: &[u8]) -> Zeroizing<[u8; 64]> {
    let digest = digest(&SHA512, words);
    Zeroizing::new(*digest.as_ref().first_chunk().expect("SHA-512 gives 64 bytes"))
}

/// Appends a part and, before it, how long it is, seven bits at a time from the lowest on.
fn put(words: &mut Vec<u8>, part: &[u8]) {
    let mut len = part.len();
    loop {
        let low = (len & 0x7f) as u8;
        len >>= 7;
        words.push(if len > 0 { low | 0x80 } else { low });
        if len == 0 {
            break;
        }
    }
    words.extend_from_slice(part);
}

/// It must not get into a log.
impl std::fmt::Debug for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("End(..)")
    }
}

/// It must not get into a log.
impl std::fmt::Debug for Agreed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Agreed(..)")
    }
}

impl Drop for End {
    fn drop(&mut self) {
        zeroize::Zeroize::zeroize(&mut self.secret);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes(hex: &str) -> Vec<u8> {
        let digit = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
        (0..hex.len()).step_by(2).map(digit).collect()
    }

    fn array(hex: &str) -> [u8; 32] {
        bytes(hex).try_into().unwrap()
    }

    const CODE: &[u8] = b"Password";
    const CONTEXT: &[u8] = b"\x0bA_initiator\x0bB_responder";
    const SESSION: &str = "7e4b4791d6a8ef019b936c79fb7f2c57";
    const NEUTRAL: Share = [0; 32];

    /// The draft's vectors of `prepend_len` and `lv_cat`.
    #[test]
    fn parts_have_their_lengths_before_them() {
        let put_all = |parts: &[&[u8]]| {
            let mut words = Vec::new();
            parts.iter().for_each(|part| put(&mut words, part));
            words
        };
        assert_eq!(put_all(&[b""]), [0]);
        assert_eq!(put_all(&[b"1234", b"5", b"", b"678"]), bytes("043132333401350003363738"));
        let long: Vec<u8> = (0..128).collect();
        assert_eq!(put_all(&[&long[..127]]), [&[0x7f], &long[..127]].concat());
        assert_eq!(put_all(&[&long]), [&[0x80, 0x01], &long[..]].concat());
    }

    /// The draft's vectors of CPACE-RISTR255-SHA512.
    #[test]
    fn it_is_the_drafts_exchange() {
        let (session, meeting) = (bytes(SESSION), Meeting { code: CODE, context: CONTEXT });
        let words = generator_string(CODE, CONTEXT, &session);
        assert_eq!(words.len(), 170);
        let hashed = "da6d3ddc8802fca9058755ffd3ebde08a9c2c74945901a258482a288b6663af06bf645c93cd1c51512307199c80e84908916d983b34af772\
                      05f90851a657ee27";
        assert_eq!(hash(&words)[..], bytes(hashed));
        let generator = generator(meeting, &session);
        let encoded = "222b6b195fe84b1652badb6f6a3ae3d24341e7306967f0b8115b40d5698c7e56";
        assert_eq!(generator.compress().to_bytes(), array(encoded));
        let end = |secret: &str| {
            End::with(generator, Option::from(Scalar::from_canonical_bytes(array(secret))).unwrap())
        };
        let a = end("da3d23700a9e5699258aef94dc060dfda5ebb61f02a5ea77fad53f4ff0976d08");
        let b = end("d2316b454718c35362d83d69df6320f38578ed5984651435e2949762d900b80d");
        assert_eq!(a.share, array("d6bac480f2c386c394efc7c47adb9925dcd2630b64f240c50f8d0eec482b9157"));
        assert_eq!(b.share, array("3ea7e0b19560d7c0b0f5734f63b955286dfa8232b5ebe63324e2d9e7433f7258"));
        let said: [(&Share, &[u8]); 2] = [(&a.share, b"ADa"), (&b.share, b"ADb")];
        let key = "b69effbf61b51d56401c0f65601abe428de8206feaaf0e32198896dcae7b35cd2b38950a39dfd5d4a79164614c2984f7daa460b588c1e80c\
                   3fa2068af7900447";
        assert_eq!(a.key(&b.share, said, &session).unwrap()[..], bytes(key));
        assert_eq!(b.key(&a.share, said, &session).unwrap()[..], bytes(key));
    }

    /// The draft's vectors of shares that are none, and of one that is.
    #[test]
    fn shares_that_are_none_end_it() {
        let secret = array("7cd0e075fa7955ba52c02759a6c90dbbfc10e6d40aea8d283e407d88cf538a05");
        let secret: Scalar = Option::from(Scalar::from_canonical_bytes(secret)).unwrap();
        let share = array("2c3c6b8c4f3800e7aef6864025b4ed79bd599117e427c41bd47d93d654b4a51c");
        let times = CompressedRistretto(share).decompress().unwrap() * secret;
        let product = "7c13645fe790a468f62c39beb7388e541d8405d1ade69d1778c5fe3e7f6b600e";
        assert_eq!(times.compress().to_bytes(), array(product));
        let end = End::with(generator(Meeting { code: CODE, context: CONTEXT }, &[]), secret);
        let none = array("2b3c6b8c4f3800e7aef6864025b4ed79bd599117e427c41bd47d93d654b4a51c");
        for share in [none, NEUTRAL] {
            assert!(end.agree_first(&share).is_none() && end.agree_second(&share).is_none());
        }
        assert!(end.agree_first(&share).is_some());
    }

    proptest! {
        /// Whatever is different, the code, what else both know, or a share on its way: the ends have
        /// different keys.
        #[test]
        fn ends_agree_where_all_is_equal_alone(
            code in proptest::collection::vec(any::<u8>(), 0..200), other in proptest::collection::vec(any::<u8>(), 0..200),
            context in proptest::collection::vec(any::<u8>(), 0..20), a: [u8; 32], b: [u8; 32], message in proptest::collection::vec(any::<u8>(), 0..80),
            which in 0..4u8,
        ) {
            let entropy = |seed: &[u8; 32]| -> [u8; 64] { *hash(seed) };
            let meeting = Meeting { code: &code, context: &context };
            let longer = [&context[..], b"+"].concat();
            let theirs = match which {
                0 => Meeting { code: &other, ..meeting },
                1 => Meeting { context: &longer, ..meeting },
                _ => meeting,
            };
            let (first, second) = (End::new(meeting, &entropy(&a)), End::new(theirs, &entropy(&b)));
            let third = End::new(meeting, &entropy(&[a[0]; 32]));
            let heard = if which == 2 { third.share() } else { first.share() };
            let (ours, theirs) = (first.agree_first(second.share()).unwrap(), second.agree_second(heard).unwrap());
            let equal = match which { 0 => code == other, 1 => false, 2 => third.share() == first.share(), _ => true };
            prop_assert_eq!(theirs.is_proven(&ours.proof()), equal);
            let sealed = theirs.seal(&message);
            let opened = ours.open(&sealed);
            prop_assert_eq!(opened.is_some_and(|opened| opened[..] == message[..]), equal);
            prop_assert!(ours.open(&sealed[..sealed.len() - 1]).is_none());
        }

        #[test]
        fn no_share_makes_it_panic(share: [u8; 32], entropy in proptest::collection::vec(any::<u8>(), 64)) {
            let end = End::new(Meeting { code: CODE, context: b"" }, entropy[..].first_chunk().unwrap());
            let _ = (end.agree_first(&share), end.agree_second(&share));
        }
    }
}
