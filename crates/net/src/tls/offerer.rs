//! Identity of an offer's source: it has a pair of keys of its own, and all who take the offer know the
//! public one. One that has the offer's secret can take it, and cannot be its source to others.

use crate::seal::Secret;
use ring::signature::{Ed25519KeyPair, KeyPair as _};

/// Bytes before the 32 bytes of a public Ed25519 key where its kind is given (RFC 8410).
pub(super) const ED25519_SPKI: [u8; 12] = [0x30, 0x2a, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 3, 0x21, 0];

/// The pair of keys of an offer's source (Ed25519).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffererKey {
    seed: Secret,
    public: [u8; 32],
}

impl OffererKey {
    /// One that cannot be foreseen.
    #[must_use]
    pub fn fresh() -> Self {
        Self::of(Secret::fresh())
    }

    /// The one of which this is the secret.
    #[must_use]
    pub fn of(seed: Secret) -> Self {
        let pair = Ed25519KeyPair::from_seed_unchecked(seed.reveal()).expect("any 32 bytes are a key");
        let public = *pair.public_key().as_ref().first_chunk().expect("a public key has 32 bytes");
        OffererKey { seed, public }
    }

    /// The public one.
    #[must_use]
    pub fn public(&self) -> &[u8; 32] {
        &self.public
    }

    /// Returns the secret that the pair is made of, for those who may have it.
    #[must_use]
    pub fn seed(&self) -> &Secret {
        &self.seed
    }
}

/// Source of an offer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Offerer {
    /// This end, with its pair of keys.
    Own(OffererKey),
    /// The source with this public key.
    Other([u8; 32]),
}

impl Offerer {
    /// The source's public key.
    #[must_use]
    pub fn public(&self) -> [u8; 32] {
        match self {
            Offerer::Own(key) => key.public,
            Offerer::Other(public) => *public,
        }
    }
}

/// A public key as ends show it: with its kind before it.
pub(super) fn spki_of(public: &[u8; 32]) -> [u8; 44] {
    let mut spki = [0; 44];
    spki[..12].copy_from_slice(&ED25519_SPKI);
    spki[12..].copy_from_slice(public);
    spki
}
