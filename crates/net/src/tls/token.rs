//! Words by which a machine is let in once, to get a certificate.
//!
//! A token is never said to the other end: what an agent shows is a proof that it has the token, for one
//! connection (RFC 9266), one name and one request. One that hears it can do nothing with it, not even over
//! another connection to the same manager.

use super::binding::Binding;
use crate::hash::{hex, parse_hex};
use polycast_wire::control::Hash;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use std::fmt;
use std::str::FromStr;
use zeroize::Zeroizing;

/// Prefix of a token.
const MARK: &str = "polycast";
/// Hexadecimal digits of its three parts.
const ID_LEN: usize = 8;
const SECRET_LEN: usize = 32;
const PIN_LEN: usize = 32;

/// Claim that a token is shown for.
#[derive(Clone, Copy, Debug)]
pub struct Claim<'a> {
    /// The connection.
    pub binding: &'a Binding,
    /// The agent's name.
    pub name: &'a str,
    /// Its certificate request.
    pub request: &'a [u8],
}

impl Claim<'_> {
    /// The proof of one that has a token of which this is kept.
    fn proof(&self, kept: &Hash) -> blake3::Hash {
        let mut words = blake3::Hasher::new_keyed(kept);
        words.update(b"polycast 3 token on a connection\0").update(&self.binding.0);
        words.update(&(self.name.len() as u64).to_be_bytes()).update(self.name.as_bytes());
        words.update(self.request);
        words.finalize()
    }
}

/// A token as it is shown: which it is, and the proof.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShownToken {
    id: String,
    proof: Hash,
}

impl ShownToken {
    /// As it came.
    ///
    /// # Errors
    /// That is none.
    pub fn new(id: &str, proof: &[u8]) -> Result<Self, NoToken> {
        let proof = proof.try_into().map_err(|_| NoToken)?;
        if is_hex(id, ID_LEN) { Ok(ShownToken { id: id.to_string(), proof }) } else { Err(NoToken) }
    }

    /// Returns the ID of the token.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the proof that its holder has it.
    #[must_use]
    pub fn proof(&self) -> &[u8] {
        &self.proof
    }

    /// Returns true if the end that shows it has the token of which the authority keeps `kept`, and shows it
    /// for this claim.
    #[must_use]
    pub fn is_proven(&self, kept: &str, claim: &Claim<'_>) -> bool {
        // Hashes of this kind are compared in a time that does not depend on where they differ.
        parse_hex(kept).is_some_and(|kept| claim.proof(&kept) == blake3::Hash::from_bytes(self.proof))
    }
}

fn is_hex(part: &str, len: usize) -> bool {
    part.len() == len && part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// A token: `polycast-ID-SECRET-PIN`.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinToken {
    /// ID of the token.
    pub id: String,
    /// Secret that only the token's holder knows.
    pub secret: Zeroizing<String>,
    /// Pin of its authority.
    pub pin: String,
}

/// A word that is no token.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("that is no token: one is a line polycast-ID-SECRET-PIN, as 'polycast token new' prints it")]
pub struct NoToken;

/// By what an authority is known in tokens.
#[must_use]
pub(super) fn pin_of(authority: &CertificateDer<'_>) -> String {
    hex(&blake3::derive_key("polycast 3 authority", authority))[..PIN_LEN].to_string()
}

/// The pin of an authority whose certificate this is, in PEM, and no other one beside it.
#[must_use]
pub fn pin_of_pem(authority: &str) -> Option<String> {
    let mut all = CertificateDer::pem_slice_iter(authority.as_bytes());
    let first = all.next()?.ok()?;
    all.next().is_none().then(|| pin_of(&first))
}

impl JoinToken {
    /// A new one of this authority.
    #[must_use]
    pub fn fresh(pin: &str) -> Self {
        let random = crate::seal::Secret::fresh().to_line();
        let (id, rest) = random.split_at(ID_LEN);
        let secret = Zeroizing::new(rest[..SECRET_LEN].to_string());
        JoinToken { id: id.to_string(), secret, pin: pin.to_string() }
    }

    /// Returns the hash of its secret that the authority keeps.
    #[must_use]
    pub fn kept(&self) -> String {
        hex(&self.key())
    }

    /// Returns the token's ID and proof, which are shown in its place.
    #[must_use]
    pub fn show(&self, claim: &Claim<'_>) -> ShownToken {
        ShownToken { id: self.id.clone(), proof: *claim.proof(&self.key()).as_bytes() }
    }

    fn key(&self) -> Hash {
        let mut words = blake3::Hasher::new_derive_key("polycast 3 token");
        words.update(self.id.as_bytes()).update(self.secret.as_bytes());
        *words.finalize().as_bytes()
    }
}

impl fmt::Display for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{MARK}-{}-{}-{}", self.id, *self.secret, self.pin)
    }
}

/// Its secret must not get into a log.
impl fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{MARK}-{}-..", self.id)
    }
}

impl FromStr for JoinToken {
    type Err = NoToken;

    fn from_str(text: &str) -> Result<Self, NoToken> {
        let parts: Vec<&str> = text.trim().split('-').collect();
        let [MARK, id, secret, pin] = parts[..] else { return Err(NoToken) };
        if !(is_hex(id, ID_LEN) && is_hex(secret, SECRET_LEN) && is_hex(pin, PIN_LEN)) {
            return Err(NoToken);
        }
        Ok(JoinToken { id: id.into(), secret: Zeroizing::new(secret.into()), pin: pin.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::super::binding::BINDING_LEN;
    use super::*;

    #[test]
    fn a_token_is_read_as_it_is_written_and_nothing_else_is() {
        let token = JoinToken::fresh(&"a".repeat(PIN_LEN));
        let text = token.to_string();
        assert_eq!(text.parse(), Ok(token.clone()));
        assert!(!format!("{token:?}").contains(&*token.secret));
        for other in ["", "x", &text[1..], &format!("{text}0"), &text.replace('-', "_"), &text.to_uppercase()]
        {
            assert_eq!(other.parse::<JoinToken>(), Err(NoToken), "{other}");
        }
    }

    /// A proof that one connection has shown is of no use on another one, nor for another name or key.
    #[test]
    fn a_token_is_proven_for_one_connection_one_name_and_one_request() {
        let token = JoinToken::fresh(&"a".repeat(PIN_LEN));
        let [here, there] = [Binding([1; BINDING_LEN]), Binding([2; BINDING_LEN])];
        let claim = Claim { binding: &here, name: "b", request: b"key" };
        let shown = token.show(&claim);
        assert!(shown.is_proven(&token.kept(), &claim));
        assert!(!shown.is_proven(&JoinToken::fresh(&token.pin).kept(), &claim), "another token's");
        for other in [
            Claim { binding: &there, ..claim },
            Claim { name: "c", ..claim },
            Claim { request: b"other", ..claim },
            // The same bytes in a row.
            Claim { name: "bk", request: b"ey", ..claim },
        ] {
            assert!(!shown.is_proven(&token.kept(), &other), "{other:?}");
        }
        assert_eq!(ShownToken::new(shown.id(), shown.proof()), Ok(shown.clone()));
        assert_eq!(ShownToken::new("../../ab", shown.proof()), Err(NoToken));
        assert_eq!(ShownToken::new(shown.id(), b"short"), Err(NoToken));
    }
}
