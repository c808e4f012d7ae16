//! Permits of the manager that leads: signed by it, and checked by the agents that a source calls with one.
//!
//! A permit names its receivers by the top of a tree of hashes over their names, in the shape of RFC 6962's:
//! each receiver is shown the way from its own name to the top, and learns of no other.

use crate::seal::Secret;
use crate::tls::Utc;
use polycast_wire::permit::{
    self, Authority, HASH_LEN, NameHashes, NameTree, Permit, Refusal, SIGNATURE_LEN, ShownPermit,
};
pub use polycast_wire::permit::{CLOCKS_DIFFER_S, PERMIT_LIFE_MAX_S};
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use std::collections::BTreeSet;
use std::fmt;

/// Bytes of the key that permits are checked with.
pub const PUBLIC_LEN: usize = 32;
/// Prefix of the bytes that are signed, so that a signature is of use for nothing else.
const SIGNED_FOR: &[u8] = b"polycast 3 permit\0";

type Hash = [u8; HASH_LEN];

/// Reason that a permit is not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PermitError {
    /// The bytes are none.
    #[error("what the source shows is no permit of this version: install the same version on all machines")]
    Malformed,
    /// No manager that is trusted has signed it.
    #[error(
        "its permit is not signed by this agent's manager: both agents have to join the same managers, and to be joined when it sends"
    )]
    Signature,
    /// Its time has not come.
    #[error(
        "its permit is good from {from} on, and at this agent's manager it is {now}: set the clocks of the managers"
    )]
    NotYet {
        /// From when on.
        from: Utc,
        /// The time now.
        now: Utc,
    },
    /// Its time is over.
    #[error(
        "its permit was good until {until}, and it is {now}: the source's agent has to join the manager again"
    )]
    Over {
        /// Until when.
        until: Utc,
        /// The time now.
        now: Utc,
    },
    /// It is for others.
    #[error(
        "the permit of '{source_name}' is not for '{name}': the manager's policy does not allow it, or it was taken out"
    )]
    OtherReceivers {
        /// Name of the source whose permit it is.
        source_name: String,
        /// The receiver that was called.
        name: String,
    },
}

/// The key that a manager signs permits with.
pub struct PermitKey(Ed25519KeyPair);

impl PermitKey {
    /// The one that follows from these bytes.
    #[must_use]
    pub fn new(seed: &Secret) -> Self {
        let pair = Ed25519KeyPair::from_seed_unchecked(seed.reveal());
        PermitKey(pair.expect("any 32 bytes are a key"))
    }

    /// Returns the public key, with which its permits are checked.
    #[must_use]
    pub fn public(&self) -> [u8; PUBLIC_LEN] {
        *self.0.public_key().as_ref().first_chunk().expect("a public key of Ed25519 has 32 bytes")
    }

    /// Signs a permit.
    #[must_use]
    pub fn sign(&self, permit: &Permit<'_>) -> SignedPermit {
        let mut bytes = Vec::new();
        permit.emit(&mut bytes);
        let signature = self.0.sign(&signed(&bytes));
        let signature = *signature.as_ref().first_chunk().expect("a signature of Ed25519 has 64 bytes");
        SignedPermit { bytes, signature }
    }
}

/// It must not get into a log.
impl fmt::Debug for PermitKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PermitKey(..)")
    }
}

fn signed(permit: &[u8]) -> Vec<u8> {
    [SIGNED_FOR, permit].concat()
}

/// A permit as its manager gives it away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedPermit {
    /// The permit.
    pub bytes: Vec<u8>,
    /// The manager's signature.
    pub signature: [u8; SIGNATURE_LEN],
}

/// A permit that was shown, to keep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptPermit {
    permit: Vec<u8>,
    signature: [u8; SIGNATURE_LEN],
    index: u32,
    way: Vec<Hash>,
}

impl KeptPermit {
    /// A copy of what was shown.
    #[must_use]
    pub fn of(shown: &ShownPermit<'_>) -> Self {
        let ShownPermit { permit, signature, index, way } = shown;
        KeptPermit { permit: permit.to_vec(), signature: *signature, index: *index, way: way.clone() }
    }

    /// As it was shown.
    #[must_use]
    pub fn shown(&self) -> ShownPermit<'_> {
        let KeptPermit { permit, signature, index, way } = self;
        ShownPermit { permit, signature: *signature, index: *index, way: way.clone() }
    }
}

/// The names of a permit's receivers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    names: Vec<String>,
    hashes: NameTree,
}

/// The hashes of production.
struct Blake3;

impl NameHashes for Blake3 {
    fn leaf(&self, name: &str) -> Hash {
        blake3::derive_key("polycast 3 permit receiver", name.as_bytes())
    }

    fn node(&self, left: &Hash, right: &Hash) -> Hash {
        blake3::derive_key("polycast 3 permit receivers", [*left, *right].as_flattened())
    }
}

impl Group {
    /// Creates the group of these names, in whatever order.
    #[must_use]
    pub fn new(names: impl IntoIterator<Item = String>) -> Self {
        let names: Vec<String> = names.into_iter().collect::<BTreeSet<_>>().into_iter().collect();
        let hashes = NameTree::new(&Blake3, names.iter().map(String::as_str));
        Group { names, hashes }
    }

    /// Returns the number of names.
    #[must_use]
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Returns true if there are no names.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// The hash of all of them; zeros where there is none.
    #[must_use]
    pub fn hash(&self) -> Hash {
        self.hashes.top()
    }

    /// The place of a name, and the hashes beside its way to the top.
    fn way(&self, name: &str) -> Option<(u32, Vec<Hash>)> {
        let index = self.names.binary_search_by(|own| own.as_str().cmp(name)).ok()?;
        Some((u32::try_from(index).ok()?, self.hashes.way(index)))
    }
}

impl SignedPermit {
    /// As this receiver is shown it; `None` where it is not one of the group.
    #[must_use]
    pub fn show(&self, group: &Group, name: &str) -> Option<ShownPermit<'_>> {
        let (index, way) = group.way(name)?;
        Some(ShownPermit { permit: &self.bytes, signature: self.signature, index, way })
    }
}

/// The keys of managers that are trusted.
struct Keys<'k>(&'k [[u8; PUBLIC_LEN]]);

impl NameHashes for Keys<'_> {
    fn leaf(&self, name: &str) -> Hash {
        Blake3.leaf(name)
    }

    fn node(&self, left: &Hash, right: &Hash) -> Hash {
        Blake3.node(left, right)
    }
}

impl Authority for Keys<'_> {
    fn has_signed(&self, permit: &[u8], signature: &[u8; SIGNATURE_LEN]) -> bool {
        let message = signed(permit);
        self.0.iter().any(|key| UnparsedPublicKey::new(&ED25519, key).verify(&message, signature).is_ok())
    }
}

/// Checks that one of these keys has signed the permit, that it holds at this time, and that it is for the
/// receiver of this name; gives what it allows.
///
/// # Errors
/// One of these is not so.
pub fn check<'a>(
    shown: &ShownPermit<'a>,
    keys: &[[u8; PUBLIC_LEN]],
    now_unix_s: u64,
    name: &str,
) -> Result<Permit<'a>, PermitError> {
    let now = Utc(now_unix_s);
    permit::check(shown, &Keys(keys), now_unix_s, name).map_err(|refusal| match refusal {
        Refusal::Signature => PermitError::Signature,
        Refusal::Malformed => PermitError::Malformed,
        Refusal::NotYet { from_unix_s } => PermitError::NotYet { from: Utc(from_unix_s), now },
        Refusal::Over { until_unix_s } => PermitError::Over { until: Utc(until_unix_s), now },
        Refusal::OtherReceivers { source } => {
            PermitError::OtherReceivers { source_name: source.to_string(), name: name.to_string() }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use polycast_types::ObjectId;
    use proptest::prelude::*;

    fn permit(group: &Group) -> Permit<'static> {
        Permit {
            lease: 7,
            source: "train",
            address: [10, 0, 0, 1].into(),
            object: ObjectId::default(),
            object_len: 5,
            root: None,
            name: "model",
            fabric: "ip-multicast",
            channel: ([239, 1, 2, 3].into(), 7_410),
            pulled: false,
            receivers: group.len() as u32,
            group: group.hash(),
            from_unix_s: 19_400,
            until_unix_s: 20_000,
        }
    }

    proptest! {
        /// Every receiver finds itself in the permit, and no other name is in it by any way that was shown.
        #[test]
        fn a_permit_is_for_its_receivers_alone(count in 1usize..70, other in 0usize..70) {
            let names: Vec<String> = (0..count).map(|i| format!("gpu-{i}")).collect();
            let group = Group::new(names.clone());
            let key = PermitKey::new(&Secret::new([3; 32]));
            let signed = key.sign(&permit(&group));
            let keys = [[9; 32], key.public()];
            for name in &names {
                let shown = signed.show(&group, name).unwrap();
                prop_assert_eq!(check(&shown, &keys, 19_700, name).map(|permit| permit.lease), Ok(7));
                let stranger = format!("gpu-{}", count + other);
                let refused = check(&shown, &keys, 19_700, &stranger);
                prop_assert!(matches!(refused, Err(PermitError::OtherReceivers { .. })), "{:?}", refused);
                if let Some(neighbour) = names.iter().find(|neighbour| *neighbour != name) {
                    prop_assert!(check(&shown, &keys, 19_700, neighbour).is_err());
                }
            }
            prop_assert_eq!(signed.show(&group, "absent"), None);
        }
    }

    #[test]
    fn what_is_wrong_with_a_permit_is_said() {
        let group = Group::new(["b".to_string(), "c".to_string()]);
        let key = PermitKey::new(&Secret::new([3; 32]));
        let signed = key.sign(&permit(&group));
        let keys = [key.public()];
        let shown = signed.show(&group, "b").unwrap();
        assert!(check(&shown, &keys, 19_400 - CLOCKS_DIFFER_S, "b").is_ok(), "clocks may differ");
        assert!(check(&shown, &keys, 20_000 + CLOCKS_DIFFER_S, "b").is_ok());
        let said = |shown: &ShownPermit<'_>, keys: &[[u8; 32]], at| {
            check(shown, keys, at, "b").map(drop).unwrap_err().to_string()
        };
        assert!(said(&shown, &keys, 19_399 - CLOCKS_DIFFER_S).contains("good from 1970-01-01 05:23 UTC"));
        assert!(
            said(&shown, &keys, 20_001 + CLOCKS_DIFFER_S).contains("was good until 1970-01-01 05:33 UTC")
        );
        assert!(said(&shown, &[[1; 32]], 19_700).contains("not signed by this agent's manager"));
        assert!(said(&shown, &[], 19_700).contains("not signed"));
        // Any byte of it that is another one.
        for at in 0..signed.bytes.len() {
            let mut other = signed.clone();
            other.bytes[at] ^= 1;
            let shown = other.show(&group, "b").unwrap();
            assert_eq!(check(&shown, &keys, 19_700, "b"), Err(PermitError::Signature), "byte {at}");
        }
        // What is signed, and is none of this version.
        let mut odd = signed.clone();
        odd.bytes[0] = 9;
        odd.signature = *key.0.sign(&super::signed(&odd.bytes)).as_ref().first_chunk().unwrap();
        assert_eq!(check(&odd.show(&group, "b").unwrap(), &keys, 19_700, "b"), Err(PermitError::Malformed));
    }
}
