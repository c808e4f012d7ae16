//! Texts that only this process can have written: what a client is to show again, and cannot read.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::error::Unspecified;
use ring::rand::{SecureRandom, SystemRandom};

/// A key that ends with the process.
pub(crate) struct Seal {
    key: LessSafeKey,
    random: SystemRandom,
}

impl Seal {
    pub(crate) fn new() -> Result<Self, Unspecified> {
        let random = SystemRandom::new();
        let mut key = [0; 32];
        random.fill(&mut key)?;
        Ok(Seal { key: LessSafeKey::new(UnboundKey::new(&CHACHA20_POLY1305, &key)?), random })
    }

    /// Seals a text, for an address or a header.
    pub(crate) fn close(&self, text: &str) -> Result<String, Unspecified> {
        let mut nonce = [0; NONCE_LEN];
        self.random.fill(&mut nonce)?;
        let mut sealed = text.as_bytes().to_vec();
        let once = Nonce::assume_unique_for_key(nonce);
        self.key.seal_in_place_append_tag(once, Aad::empty(), &mut sealed)?;
        Ok(BASE64_URL_SAFE_NO_PAD.encode([&nonce[..], &sealed].concat()))
    }

    /// The text, where it was sealed here.
    pub(crate) fn open(&self, sealed: &str) -> Option<String> {
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(sealed).ok()?;
        let (nonce, text) = bytes.split_first_chunk::<NONCE_LEN>()?;
        let mut text = text.to_vec();
        let once = Nonce::assume_unique_for_key(*nonce);
        let opened = self.key.open_in_place(once, Aad::empty(), &mut text).ok()?;
        String::from_utf8(opened.to_vec()).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_sealed_here_is_opened() {
        let (seal, other) = (Seal::new().unwrap(), Seal::new().unwrap());
        let sealed = seal.close("org/m Bearer hf_x").unwrap();
        assert_eq!(seal.open(&sealed).as_deref(), Some("org/m Bearer hf_x"));
        assert_ne!(sealed, seal.close("org/m Bearer hf_x").unwrap(), "two are never the same");
        assert!(!sealed.contains("hf_x") && other.open(&sealed).is_none());
        for odd in ["", "AAAA", &sealed[1..], &sealed[..sealed.len() - 2], "\u{e4}"] {
            assert_eq!(seal.open(odd), None, "{odd}");
        }
        let flipped = if sealed.starts_with('A') { "B" } else { "A" };
        assert_eq!(seal.open(&format!("{flipped}{}", &sealed[1..])), None);
    }
}
