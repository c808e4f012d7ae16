//! The key with which a manager signs how far its audit log goes.

use crate::hash::{hex, parse_hex};
use crate::seal::Secret;
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use std::fmt;

/// Prefix of the bytes that are signed, so that a signature is of use for nothing else.
const SIGNED_FOR: &[u8] = b"polycast 3 audit log\0";
/// Bytes of half a signature, which are written like a hash.
const HALF: usize = 32;

/// The key of an audit log.
pub struct AuditKey(Ed25519KeyPair);

impl AuditKey {
    /// The one that follows from these bytes.
    #[must_use]
    pub fn new(seed: &Secret) -> Self {
        let pair = Ed25519KeyPair::from_seed_unchecked(seed.reveal());
        AuditKey(pair.expect("any 32 bytes are a key"))
    }

    /// Returns the public key, with which its signatures are checked, in hexadecimal digits.
    #[must_use]
    pub fn public(&self) -> String {
        hex(self.0.public_key().as_ref().first_chunk().expect("a public key of Ed25519 has 32 bytes"))
    }

    /// Its signature under a text, in hexadecimal digits.
    #[must_use]
    pub fn sign(&self, text: &[u8]) -> String {
        let signature = self.0.sign(&signed(text));
        let halves = signature.as_ref().chunks_exact(HALF);
        halves.map(|half| hex(half.try_into().expect("a chunk has its length"))).collect()
    }
}

/// It must not get into a log.
impl fmt::Debug for AuditKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AuditKey(..)")
    }
}

/// Returns true if the key that is checked with `public` has signed this text.
#[must_use]
pub fn has_signed(public: &str, text: &[u8], signature: &str) -> bool {
    let Some((one, other)) = signature.split_at_checked(2 * HALF) else { return false };
    let (Some(public), Some(one), Some(other)) = (parse_hex(public), parse_hex(one), parse_hex(other)) else {
        return false;
    };
    let signature = [one, other];
    UnparsedPublicKey::new(&ED25519, public).verify(&signed(text), signature.as_flattened()).is_ok()
}

fn signed(text: &[u8]) -> Vec<u8> {
    [SIGNED_FOR, text].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_of_one_key_and_for_one_text() {
        let (key, other) = (AuditKey::new(&Secret::new([3; 32])), AuditKey::new(&Secret::new([4; 32])));
        let signature = key.sign(b"1 7");
        assert_eq!((signature.len(), key.public().len()), (128, 64));
        assert!(has_signed(&key.public(), b"1 7", &signature));
        assert!(!has_signed(&key.public(), b"1 8", &signature));
        assert!(!has_signed(&other.public(), b"1 7", &signature));
        for odd in ["", "00", &signature[..127], &format!("{signature}0"), &"ä".repeat(64)] {
            assert!(!has_signed(&key.public(), b"1 7", odd), "{odd}");
        }
        assert!(!has_signed("", b"1 7", &signature));
    }
}
