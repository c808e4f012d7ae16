//! Names of fabrics, as they are in plans, settings and reports.
//!
//! A name is data, and as small as a number: a plan that another manager has written down can be read by one
//! that has no such fabric. Which names have a fabric behind them, [`Fabrics`](crate::Fabrics) says.

use alloc::string::String;
use core::fmt;
use core::ops::Deref;
use core::str::FromStr;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The most letters of a name.
const LEN_MAX: usize = 32;

/// The name of a fabric, such as `ip-multicast`: 1 to 32 of the letters a to z, digits and hyphens.
// Unused bytes are 0, which is less than any letter: names have the order of their texts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FabricName([u8; LEN_MAX]);

/// A text that names no fabric.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a fabric's name has 1 to 32 of the letters a to z, digits and hyphens")]
pub struct FabricNameError;

impl FabricName {
    /// The one of Shufflecast, whose nodes have names of their own ([`PartName`](crate::PartName)).
    pub(crate) const SHUFFLECAST: Self = Self::new("shufflecast");

    /// A name that the program knows.
    ///
    /// # Panics
    /// The text is no name; in a constant that is an error of the compiler's.
    #[must_use]
    pub const fn new(name: &str) -> Self {
        match Self::read(name.as_bytes()) {
            Some(name) => name,
            None => panic!("a fabric's name has 1 to 32 of the letters a to z, digits and hyphens"),
        }
    }

    const fn read(text: &[u8]) -> Option<Self> {
        if text.is_empty() || text.len() > LEN_MAX {
            return None;
        }
        let mut bytes = [0; LEN_MAX];
        let mut at = 0;
        while at < text.len() {
            if !matches!(text[at], b'a'..=b'z' | b'0'..=b'9' | b'-') {
                return None;
            }
            bytes[at] = text[at];
            at += 1;
        }
        Some(FabricName(bytes))
    }

    /// As text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        let len = self.0.iter().position(|byte| *byte == 0).unwrap_or(LEN_MAX);
        core::str::from_utf8(&self.0[..len]).expect("a name is ASCII")
    }
}

impl FromStr for FabricName {
    type Err = FabricNameError;

    fn from_str(text: &str) -> Result<Self, FabricNameError> {
        Self::read(text.as_bytes()).ok_or(FabricNameError)
    }
}

impl Deref for FabricName {
    type Target = str;

    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl fmt::Display for FabricName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self)
    }
}

impl fmt::Debug for FabricName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl PartialEq<str> for FabricName {
    fn eq(&self, other: &str) -> bool {
        self.as_str() == other
    }
}

impl PartialEq<&str> for FabricName {
    fn eq(&self, other: &&str) -> bool {
        self.as_str() == *other
    }
}

impl From<FabricName> for String {
    fn from(name: FabricName) -> String {
        name.as_str().into()
    }
}

impl Serialize for FabricName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self)
    }
}

impl<'de> Deserialize<'de> for FabricName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::string::ToString;

    #[test]
    fn a_name_is_its_text() {
        let longest = "abcdefghijklmnopqrstuvwxyz-01234";
        for text in ["ocs", "ip-multicast", longest] {
            let name: FabricName = text.parse().unwrap();
            assert_eq!((name.as_str(), name.to_string().as_str()), (text, text));
            assert_eq!((name, format!("{name:?}")), (FabricName::new(text), format!("{text:?}")));
            assert!(name == text && name != "ocs2");
        }
        for wrong in ["", "Ocs", "a b", "a\0", "ö", &format!("{longest}5")] {
            assert_eq!(wrong.parse::<FabricName>(), Err(FabricNameError), "{wrong:?}");
        }
    }

    #[test]
    fn names_have_the_order_of_their_texts() {
        let mut texts = ["ocs", "oc", "ip-multicast", "orca", "ip", "o-z", "tcp-chain"];
        let mut names = texts.map(FabricName::new);
        texts.sort_unstable();
        names.sort_unstable();
        assert_eq!(names.map(|name| name.to_string()), texts.map(ToString::to_string));
    }
}
