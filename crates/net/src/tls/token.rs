//! Words by which a machine is let in once, to get a certificate.

use crate::hash::{hex, parse_hex};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use std::fmt;
use std::str::FromStr;
use zeroize::Zeroizing;

/// What a token begins with.
const MARK: &str = "polycast";
/// Hexadecimal digits of its three parts.
const ID_LEN: usize = 8;
const SECRET_LEN: usize = 32;
const PIN_LEN: usize = 32;

/// A token: `polycast-ID-SECRET-PIN`.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinToken {
    /// Which it is.
    pub id: String,
    /// What only the token's holder knows.
    pub secret: Zeroizing<String>,
    /// Which authority it is of.
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

/// The pin of an authority whose certificate this is, in PEM.
#[must_use]
pub fn pin_of_pem(authority: &str) -> Option<String> {
    CertificateDer::from_pem_slice(authority.as_bytes()).ok().map(|authority| pin_of(&authority))
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

    /// What the authority keeps of its secret.
    #[must_use]
    pub fn proof(&self) -> String {
        let mut words = blake3::Hasher::new_derive_key("polycast 3 token");
        words.update(self.id.as_bytes()).update(self.secret.as_bytes());
        words.finalize().to_hex().to_string()
    }

    /// Whether this is what the authority keeps of it.
    #[must_use]
    pub fn proves(&self, kept: &str) -> bool {
        // Hashes of this kind are compared in a time that does not depend on where they differ.
        parse_hex(kept).is_some_and(|kept| blake3::Hash::from_bytes(kept).to_string() == self.proof())
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
        let is = |part: &str, len: usize| {
            part.len() == len && part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
        };
        if !(is(id, ID_LEN) && is(secret, SECRET_LEN) && is(pin, PIN_LEN)) {
            return Err(NoToken);
        }
        Ok(JoinToken { id: id.into(), secret: Zeroizing::new(secret.into()), pin: pin.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_as_it_is_written_and_nothing_else_is() {
        let token = JoinToken::fresh(&"a".repeat(PIN_LEN));
        let text = token.to_string();
        assert_eq!(text.parse(), Ok(token.clone()));
        assert!(token.proves(&token.proof()));
        assert!(!token.proves(&JoinToken::fresh(&token.pin).proof()));
        assert!(!format!("{token:?}").contains(&*token.secret));
        for other in ["", "x", &text[1..], &format!("{text}0"), &text.replace('-', "_"), &text.to_uppercase()]
        {
            assert_eq!(other.parse::<JoinToken>(), Err(NoToken), "{other}");
        }
    }
}
