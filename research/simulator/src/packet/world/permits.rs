//! Permits, looked at as in production (`wire::permit`); signatures and hashes are ideal.

use super::keys::{digest, mix};
use crate::packet::Random;
use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::vec::Vec;
use core::net::IpAddr;
use polycast_types::{DataId, ObjectId, Time};
use polycast_wire::control::NOWHERE;
use polycast_wire::permit::{
    self, Authority, CLOCKS_DIFFER_S, Call, HASH_LEN, NameHashes, NameTree, PERMIT_LIFE_MAX_S, Permit,
    SIGNATURE_LEN, ShownPermit,
};

type Hash = [u8; HASH_LEN];

/// Time on the manager's clock when a run begins.
const BEGUN_UNIX_S: u64 = 1_800_000_000;
/// Permits are good for so long.
const GOOD_FOR_S: u64 = PERMIT_LIFE_MAX_S;
/// The attacker, by the name that the manager knows.
const ATTACKER: &str = "one of its own";

fn long<const N: usize>(sum: u64) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.chunks_mut(8).zip(0u64..).for_each(|(part, at)| part.copy_from_slice(&mix(sum, at).to_be_bytes()));
    bytes
}

/// The time at the manager.
pub fn unix_s(now: Time) -> u64 {
    BEGUN_UNIX_S + now.0 / 1_000_000_000
}

/// The manager that leads. A host that does not calculate with its secret cannot sign.
#[derive(Clone, Copy, Debug)]
pub struct Manager(pub u64);

impl NameHashes for Manager {
    fn leaf(&self, name: &str) -> Hash {
        long(digest(11, name.as_bytes()))
    }

    fn node(&self, left: &Hash, right: &Hash) -> Hash {
        long(digest(12, [*left, *right].as_flattened()))
    }
}

impl Authority for Manager {
    fn has_signed(&self, permit: &[u8], signature: &[u8; SIGNATURE_LEN]) -> bool {
        *signature == self.sign(permit)
    }
}

/// A transfer that the manager allows.
#[derive(Clone, Debug)]
pub struct Allowed {
    /// The name of its source.
    pub source: String,
    /// The address from which the source sends.
    pub address: IpAddr,
    /// The object.
    pub object: ObjectId,
    /// Its length in bytes.
    pub object_len: u64,
    /// The hash at the root of its groups, where that is known.
    pub root: Option<Hash>,
    /// True for a transfer by pull.
    pub pulled: bool,
    /// The names of its receivers.
    pub receivers: Vec<String>,
    /// The time from which the permit holds.
    pub from_unix_s: u64,
}

impl Allowed {
    /// Returns the call of the source to receivers.
    pub fn call(&self) -> Call {
        let Allowed { object, object_len, root, address, pulled, .. } = *self;
        Call { object, object_len, root, address, pulled }
    }
}

/// A permit as a receiver is shown it.
#[derive(Clone, Debug)]
pub struct Shown {
    bytes: Vec<u8>,
    signature: [u8; SIGNATURE_LEN],
    index: u32,
    way: Vec<Hash>,
}

impl Manager {
    fn sign(&self, permit: &[u8]) -> [u8; SIGNATURE_LEN] {
        long(digest(mix(self.0, 13), permit))
    }

    /// The permit of a transfer, as this receiver is shown it; `None` where it is not one of the group.
    pub fn permit(&self, allowed: &Allowed, name: &str) -> Option<Shown> {
        let index = allowed.receivers.iter().position(|other| other == name)?;
        let tree = NameTree::new(self, allowed.receivers.iter().map(String::as_str));
        let permit = Permit {
            lease: 1,
            source: &allowed.source,
            address: allowed.address,
            object: allowed.object,
            object_len: allowed.object_len,
            root: allowed.root,
            name: "an object",
            fabric: if allowed.pulled { "datacast" } else { "ip-multicast" },
            channel: NOWHERE,
            pulled: allowed.pulled,
            receivers: allowed.receivers.len() as u32,
            group: tree.top(),
            from_unix_s: allowed.from_unix_s,
            until_unix_s: allowed.from_unix_s + GOOD_FOR_S,
        };
        let mut bytes = Vec::new();
        permit.emit(&mut bytes);
        Some(Shown { signature: self.sign(&bytes), bytes, index: index as u32, way: tree.way(index) })
    }

    /// Returns true if the receiver of this name takes part in the transfer that it is called for, as agents
    /// judge.
    pub fn lets(&self, (caller, call): (&str, &Call), shown: Option<&Shown>, now: Time, name: &str) -> bool {
        let Some(Shown { bytes, signature, index, way }) = shown else { return false };
        let shown = ShownPermit { permit: bytes, signature: *signature, index: *index, way: way.clone() };
        permit::check(&shown, self, unix_s(now), name)
            .is_ok_and(|permit| permit.source == caller && permit.covers(call))
    }

    /// Returns true if a receiver takes part in a transfer that an attacker calls it for that has seen the
    /// permit of an honest source.
    pub fn lets_attacker(&self, random: &mut Random, honest: &Allowed, now: Time, name: &str) -> bool {
        let own = Allowed {
            source: ATTACKER.to_owned(),
            receivers: Vec::from([String::from("another one"), name.to_owned()]),
            from_unix_s: unix_s(now),
            ..honest.clone()
        };
        let call = own.call();
        let other = random.below(5);
        let (call, shown) = match random.below(9) {
            0 => (call, None),
            1 => (call, Manager(random.below(u64::MAX)).permit(&own, name)),
            // What it has seen of another one.
            2 => (honest.call(), self.permit(honest, name)),
            // For others.
            3 => (call, self.permit(&Allowed { receivers: others(random), ..own }, "another one")),
            // Over, or not yet good.
            4 => {
                let long_ago = own.from_unix_s - GOOD_FOR_S - CLOCKS_DIFFER_S - 1;
                (call, self.permit(&Allowed { from_unix_s: long_ago, ..own }, name))
            }
            5 => {
                let later = own.from_unix_s + CLOCKS_DIFFER_S + 1;
                (call, self.permit(&Allowed { from_unix_s: later, ..own }, name))
            }
            // Of something else.
            6 => {
                let permitted = Allowed { pulled: false, root: Some([1; HASH_LEN]), ..own };
                let call = permitted.call();
                let call = match other {
                    0 => {
                        let ObjectId { app, data } = call.object;
                        Call { object: ObjectId { app, data: DataId(data.0 ^ 1) }, ..call }
                    }
                    1 => Call { object_len: call.object_len + 1, ..call },
                    2 => Call { root: None, ..call },
                    3 => Call { address: [9; 4].into(), ..call },
                    _ => Call { pulled: true, ..call },
                };
                (call, self.permit(&permitted, name))
            }
            // A permit of its own in which it has changed something.
            7 => {
                let mut shown = self.permit(&Allowed { receivers: others(random), ..own }, "another one");
                if let Some(shown) = &mut shown {
                    let at = random.below(shown.bytes.len() as u64) as usize;
                    shown.bytes[at] ^= 1 << random.below(8);
                }
                (call, shown)
            }
            // Another place among those that it is for.
            _ => {
                let shown = self.permit(&Allowed { receivers: others(random), ..own }, "another one");
                let shown = shown.map(|shown| Shown { index: random.below(8) as u32, ..shown });
                (call, shown)
            }
        };
        self.lets((ATTACKER, &call), shown.as_ref(), now, name)
    }
}

/// Names of which none is a receiver's.
fn others(random: &mut Random) -> Vec<String> {
    let more = (0..random.below(7)).map(|at| alloc::format!("another one {at}"));
    core::iter::once(String::from("another one")).chain(more).collect()
}
