//! Pairing of two ends: both see that the other knows the code of an offer, and the receiver learns its
//! secret (`net::pake`).
//!
//! The receiver opens a connection of its own, which is not sealed. PAIR has its share of a key, SHARE the
//! source's, PROVE shows that the receiver has the key, and PAIRED has under that key the offer's secret, the
//! public key of its source, and the number by which a drawn code was made of it. Nothing of that tells a
//! third host anything on which it could try codes. All other connections are sealed with the secret; the
//! source shows its own key there. On connections that are not sealed (`--insecure`), JOIN proves that the
//! receiver has the secret.

use super::code::{Code, OfferCode};
use super::discovery::{Patience, question};
use super::error::TransferError;
use super::fresh::fresh_salt;
use super::link::connect;
use polycast_net::frames::FrameStream;
use polycast_net::hash::keyed_hash;
use polycast_net::pake::{End, Meeting};
use polycast_net::seal::Secret;
use polycast_net::tls::{Expected, Offerer, Security};
use polycast_protocol::session::Why;
use polycast_types::{Duration, Handle, Time};
use polycast_wire::control::{Control, Hash, Salt, Sealed};
use polycast_wire::discovery::CodeSign;
use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// Time for which wrong codes are counted.
const WRONG_FOR: Duration = Duration::from_secs(10);
/// Numbers of wrong codes from one address, and from all, at which no other one is checked until then. The
/// receivers of an offer know its code: one that mistypes it, or that tries it with another offer, does so
/// once in ten seconds.
pub(super) const WRONG_OF_ONE_MAX: u32 = 10;
const WRONG_MAX: u32 = 640;
/// Wrong codes are spoken of this often at most.
const SAY_INTERVAL: Duration = Duration::from_secs(1);
/// Bytes of PAIRED: the secret, and the public key behind it.
const SECRET_END: usize = 32;
const PUBLIC_END: usize = 64;

/// Secret and key that both ends of an offer have once they are paired.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Pairing {
    secret: Secret,
    offerer: Offerer,
}

/// It must not get into a log.
impl fmt::Debug for Pairing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pairing(..)")
    }
}

impl Pairing {
    /// Returns the proof that the source has the offer's secret.
    pub(super) fn of_source(&self, handle: Handle, nonce: &Hash) -> Hash {
        self.prove(b"from", handle, nonce)
    }

    /// Returns the proof that the receiver of this name has it.
    pub(super) fn of_receiver(&self, handle: Handle, challenge: &Hash, name: &str) -> Hash {
        self.prove(b"join", handle, &[challenge, name.as_bytes()].concat())
    }

    /// The connections of those who have it.
    pub(super) fn security(&self) -> Security {
        Security::offered(&self.secret, &self.offerer)
    }

    fn prove(&self, what: &[u8; 4], handle: Handle, of: &[u8]) -> Hash {
        keyed_hash(self.secret.reveal(), &[&what[..], &handle.0.to_be_bytes(), of].concat())
    }
}

/// The source's end of its pairings.
#[derive(Debug)]
pub(super) struct Host {
    code: OfferCode,
    pairing: Pairing,
    /// Salt that its shares are made of.
    salt: Salt,
    wrong: Wrong,
}

impl Host {
    /// Draws the offer's secret.
    pub(super) fn new(code: &OfferCode) -> Self {
        let pairing = Pairing { secret: Secret::fresh(), offerer: Offerer::Own(code.key().clone()) };
        Host { code: code.clone(), pairing, salt: fresh_salt(), wrong: Wrong::default() }
    }

    pub(super) fn pairing(&self) -> &Pairing {
        &self.pairing
    }

    /// Returns the sign that the offer shows of its code.
    pub(super) fn sign(&self) -> CodeSign {
        self.code.code().sign()
    }

    /// This end of the pairing with one that has said this share on a connection with this challenge. It is
    /// made anew each time: nothing is kept for those who pair.
    fn end(&self, handle: Handle, challenge: &Hash, theirs: &Hash) -> End {
        let words = [&challenge[..], theirs].concat();
        let half = |which: u8| keyed_hash(&self.salt, &[&[which], &words[..]].concat());
        let mut entropy = [0; 64];
        entropy[..32].copy_from_slice(&half(0));
        entropy[32..].copy_from_slice(&half(1));
        meet(self.code.code(), handle, &entropy)
    }

    /// The share for one that has said this one.
    ///
    /// # Errors
    /// Too many wrong codes have come.
    pub(super) fn share(
        &mut self,
        now: Time,
        from: Option<IpAddr>,
        (handle, challenge): (Handle, &Hash),
        theirs: &Hash,
    ) -> Result<Hash, Why> {
        let may_come = self.wrong.may_come(now, from);
        may_come.then(|| *self.end(handle, challenge, theirs).share()).ok_or(Why::TooManyCodes)
    }

    /// Returns the sealed secret for an end that has shown that it knows the code.
    ///
    /// # Errors
    /// It does not, or too many have not.
    pub(super) fn pair(
        &mut self,
        now: Time,
        from: Option<IpAddr>,
        (handle, challenge): (Handle, &Hash),
        (theirs, proof): (&Hash, &Hash),
    ) -> Result<Sealed, Why> {
        if !self.wrong.may_come(now, from) {
            return Err(Why::TooManyCodes);
        }
        let agreed = self.end(handle, challenge, theirs).agree_second(theirs);
        let Some(agreed) = agreed.filter(|agreed| agreed.is_proven(proof)) else {
            self.wrong.came(now, from);
            return Err(Why::WrongCode);
        };
        let public = self.pairing.offerer.public();
        let told = [&self.pairing.secret.reveal()[..], &public, self.code.number()].concat();
        let sealed = agreed.seal(&told);
        Ok(*sealed.first_chunk().expect("PAIRED has room for what it has"))
    }
}

/// Wrong codes that have come of late.
#[derive(Debug, Default)]
struct Wrong {
    since: Time,
    of: BTreeMap<Option<IpAddr>, u32>,
    so_far: u64,
    said_at: Option<Time>,
}

impl Wrong {
    /// Returns true if another code from there is checked.
    fn may_come(&mut self, now: Time, from: Option<IpAddr>) -> bool {
        if now.since(self.since) >= WRONG_FOR {
            self.since = now;
            self.of.clear();
        }
        let all: u32 = self.of.values().sum();
        all < WRONG_MAX && self.of.get(&from).is_none_or(|of_one| *of_one < WRONG_OF_ONE_MAX)
    }

    /// One has come.
    fn came(&mut self, now: Time, from: Option<IpAddr>) {
        *self.of.entry(from).or_default() += 1;
        self.so_far += 1;
        if self.said_at.is_none_or(|at| now.since(at) >= SAY_INTERVAL) {
            self.said_at = Some(now);
            let (peer, so_far) = (from.map_or_else(String::new, |from| from.to_string()), self.so_far);
            tracing::warn!(%peer, so_far, "comes with a wrong code");
        }
    }
}

/// Reason why a receiver is not paired.
#[derive(Debug)]
pub(super) enum NotPaired {
    /// The offer has another code.
    OtherCode,
    /// The source cannot be asked, or is not whose offer the code is for.
    Failed(TransferError),
}

/// An end of the pairing for this offer.
fn meet(code: &Code, handle: Handle, entropy: &[u8; 64]) -> End {
    let context = [&b"polycast accept\0polycast offer\0"[..], &handle.0.to_be_bytes()].concat();
    End::new(Meeting { code: code.bytes(), context: &context }, entropy)
}

/// Shows the source of an offer that this end knows the code, and sees that the source does, and that its
/// code is this one's.
pub(super) fn pair(
    (address, handle): (SocketAddr, Handle),
    code: &Code,
    patience: Patience<'_>,
) -> Result<Pairing, NotPaired> {
    let failed = NotPaired::Failed;
    let mut entropy = [0; 64];
    entropy[..32].copy_from_slice(&fresh_salt());
    entropy[32..].copy_from_slice(&fresh_salt());
    let end = meet(code, handle, &entropy);
    let share = *end.share();
    let mut stream = connect(address, patience.0, (None, &Expected::Sharer), patience.1).map_err(failed)?;
    let theirs = question(&mut stream, &Control::Pair { handle, share }, patience, |answer| match answer {
        Control::Share(share) => Some(*share),
        _ => None,
    });
    let wrong = |what: &str| failed(TransferError::Contradiction(what.into()));
    let agreed = end.agree_first(&theirs.map_err(failed)?);
    let agreed = agreed.ok_or_else(|| wrong("its share of a key is none"))?;
    let words = Control::Prove { share, proof: agreed.proof() };
    let paired = question(&mut stream, &words, patience, |answer| match answer {
        Control::Paired(sealed) => Some(*sealed),
        _ => None,
    });
    let sealed = match paired {
        Err(TransferError::Refused(why)) if why == Why::WrongCode.to_string() => {
            return Err(NotPaired::OtherCode);
        }
        paired => paired.map_err(failed)?,
    };
    let told = agreed.open(&sealed).ok_or_else(|| wrong("it says that it knows this code, and does not"))?;
    let part = |from: usize| told[from..].first_chunk::<32>().copied().expect("PAIRED has all parts");
    let number = told[PUBLIC_END..].first_chunk().expect("PAIRED has all parts");
    let public = part(SECRET_END);
    if !code.is_of(&public, number) {
        return Err(wrong("it knows this code, and is not the source for which it was drawn"));
    }
    Ok(Pairing { secret: Secret::new(part(0)), offerer: Offerer::Other(public) })
}

/// Returns true if two hashes are equal, in a time that does not reveal where they differ.
pub(super) fn same(one: &Hash, other: &Hash) -> bool {
    one.iter().zip(other).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
}

/// The challenge for a connection: no other connection has it, and nothing has to be kept for it. The kernel
/// numbers sockets, so that not even a later one between the same addresses has the same.
pub(super) fn challenge(secret: &Salt, stream: &FrameStream) -> Hash {
    // Where a sandbox has no such numbers, it is that of the other end's address.
    let number = rustix::net::sockopt::socket_cookie(stream).unwrap_or_default();
    keyed_hash(secret, format!("{number} {:?}", stream.peer()).as_bytes())
}
