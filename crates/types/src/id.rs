//! Names of applications, objects and transfers (Republic section III, Table I).

use alloc::string::{String, ToString};
use core::fmt;
use core::str::FromStr;
use serde::{Deserialize, Serialize};

/// An application's name: a 16-byte UUID that all of its processes know (Republic `appID`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct AppId(pub [u8; 16]);

/// An object's name within its application: 8 bytes (Republic `dataID`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize)]
pub struct DataId(pub u64);

/// An object's full name.
///
/// Written as `UUID/NUMBER`; an object of the default application (all-zero UUID) is written as its
/// number alone.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize)]
pub struct ObjectId {
    /// The application that owns the object.
    pub app: AppId,
    /// The object's number within the application.
    pub data: DataId,
}

/// The compact name of one transfer on the wire, agreed on the control channel.
///
/// Data packets carry these 8 bytes instead of the 24 bytes of application and data id.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Handle(pub u64);

/// A text that is not an id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is not an object id: write a number such as 42, or UUID/NUMBER")]
pub struct ParseIdError {
    text: String,
}

impl fmt::Display for AppId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, byte) in self.0.iter().enumerate() {
            if matches!(i, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for AppId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for AppId {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        let wrong = || ParseIdError { text: text.to_string() };
        let mut bytes = [0u8; 16];
        let mut digits = 0usize;
        for c in text.chars().filter(|c| *c != '-') {
            let digit = c.to_digit(16).ok_or_else(wrong)?;
            if digits == 32 {
                return Err(wrong());
            }
            bytes[digits / 2] = bytes[digits / 2] << 4 | digit as u8;
            digits += 1;
        }
        if digits == 32 { Ok(AppId(bytes)) } else { Err(wrong()) }
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.app == AppId::default() {
            write!(f, "{}", self.data.0)
        } else {
            write!(f, "{}/{}", self.app, self.data.0)
        }
    }
}

impl FromStr for ObjectId {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        let wrong = || ParseIdError { text: text.to_string() };
        let (app, data) = match text.split_once('/') {
            Some((app, data)) => (app.parse().map_err(|_| wrong())?, data),
            None => (AppId::default(), text),
        };
        let data = DataId(data.parse().map_err(|_| wrong())?);
        Ok(ObjectId { app, data })
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Display for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;

    #[test]
    fn object_ids_round_trip_through_text() {
        let short = ObjectId { app: AppId::default(), data: DataId(42) };
        assert_eq!(short.to_string(), "42");
        assert_eq!("42".parse(), Ok(short));
        let long = ObjectId { app: AppId(*b"0123456789abcdef"), data: DataId(u64::MAX) };
        assert_eq!(format!("{long}").parse(), Ok(long));
    }

    #[test]
    fn texts_that_are_no_ids_are_named() {
        for text in ["", "x", "1/2", "00/1", "-1", "18446744073709551616"] {
            let error = text.parse::<ObjectId>().unwrap_err();
            assert!(error.to_string().contains(text), "{error}");
        }
    }
}
