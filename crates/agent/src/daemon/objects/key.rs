//! Keys, and the ids that they stand for.

use polycast_api::error::{Kind, Refusal};
use polycast_net::hash::id_of_key;
use polycast_types::{ObjectId, Printable, without_secrets};

/// The longest key, in bytes.
const KEY_LEN_MAX: usize = 4_096;
/// The longest kind, in bytes.
const KIND_LEN_MAX: usize = 32;

/// Digest that the bytes of an object must have.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Digest {
    /// Whatever they are.
    None,
    /// Their SHA-256.
    Sha256(String),
    /// Their SHA-1 as a blob of git.
    Git(String),
}

/// A key by which an object is asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Key {
    pub text: String,
    pub object: ObjectId,
    pub digest: Digest,
}

impl Key {
    /// Reads a key: KIND:TEXT.
    pub(crate) fn parse(text: &str) -> Result<Self, Refusal> {
        let shown = without_secrets(text);
        let shown = Printable(&shown);
        let invalid = |why: String| Refusal::new(Kind::Invalid, why);
        if text.len() > KEY_LEN_MAX {
            return Err(invalid(format!("a key of {} bytes is longer than {KEY_LEN_MAX}", text.len())));
        }
        let odd = |c: char| !(c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
        let (kind, name) = match text.split_once(':') {
            Some((kind, name)) if !kind.is_empty() && kind.len() <= KIND_LEN_MAX && !name.is_empty() => {
                (kind, name)
            }
            _ => {
                let why = format!("'{shown}' is no key: write sha256:HEX, git:HEX, or KIND:TEXT");
                return Err(invalid(why));
            }
        };
        if kind.contains(odd) {
            let why =
                format!("'{shown}' is a key of no kind: a kind has lower-case letters, digits and dashes");
            return Err(invalid(why));
        }
        let hex = |digits: usize| {
            let is_hex = name.len() == digits && name.chars().all(|c| c.is_ascii_hexdigit());
            let why = || format!("'{shown}' is no {kind} key: {digits} hexadecimal digits follow the colon");
            if is_hex { Ok(name.to_ascii_lowercase()) } else { Err(invalid(why())) }
        };
        let (digest, name) = match kind {
            "sha256" => hex(64).map(|hex| (Digest::Sha256(hex.clone()), hex))?,
            "git" => hex(40).map(|hex| (Digest::Git(hex.clone()), hex))?,
            _ => (Digest::None, name.to_string()),
        };
        Ok(Key { text: text.to_string(), object: id_of_key(kind, &name), digest })
    }

    /// The name that a copy of the object gets where no other is chosen: the end of the key.
    pub(crate) fn name(&self) -> String {
        let end = self.text.rsplit(['/', ':']).find(|part| !part.is_empty()).unwrap_or("object");
        let end = end.split(['?', '#']).next().unwrap_or_default();
        if polycast_net::store::check_name(end).is_ok() { end.to_string() } else { "object".into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_always_stand_for_the_same_ids() {
        // blake3("polycast:name\0model"), by another implementation.
        let key = Key::parse("name:model").unwrap();
        let hash = blake3::hash(b"polycast:name\0model");
        assert_eq!(key.object.app.0, hash.as_bytes()[..16]);
        assert_eq!(key.object.data.0.to_be_bytes(), hash.as_bytes()[16..24]);
        let digits = "AB".repeat(32);
        let (upper, lower) = (format!("sha256:{digits}"), format!("sha256:{}", digits.to_lowercase()));
        assert_eq!(Key::parse(&upper).unwrap().object, Key::parse(&lower).unwrap().object);
        assert_eq!(Key::parse("url:http://a/b/model.bin?x=1").unwrap().name(), "model.bin");
    }

    #[test]
    fn what_is_no_key_is_named() {
        for (text, says) in [
            ("model", "is no key"),
            ("name:", "is no key"),
            ("No:x", "of no kind"),
            ("sha256:12", "64 hexadecimal digits"),
            ("git:xyz", "40 hexadecimal digits"),
        ] {
            let refusal = Key::parse(text).unwrap_err();
            assert!(refusal.message.contains(says) && refusal.message.contains(text), "{refusal}");
        }
        let refusal = Key::parse("URL:https://me:secret@host/x?sig=secret").unwrap_err();
        assert!(!refusal.message.contains("secret"), "{refusal}");
    }
}
