//! Names of a network's parts, as operators type them and status lists them: `splitter:0`, `port:4`, `tor:3`.

use crate::fabric_name::FabricName;
use crate::part::Part;
use crate::plan::{Failure, Resource};
use alloc::string::String;
use core::fmt;
use core::str::FromStr;
use serde::{Deserialize, Serialize};

/// A part of a network that can be taken out of use.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum PartName {
    /// A port of the circuit switch; its ports count from 1.
    Port(u32),
    /// A splitter; they count from 0. In a Shufflecast that of the logical ToR of this number, which is its
    /// rack's where no rack stands for several.
    Splitter(u32),
    /// The switch of a rack; racks count from 0.
    Tor(u32),
    /// The circuit switch, whole.
    CircuitSwitch,
}

/// A text that names no part.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "'{0}' is no part: write port:4 for a port of the circuit switch, splitter:0, tor:3 for the switch of a rack, or ocs for \
     the circuit switch; a host is drained by the name of its agent"
)]
pub struct PartNameError(pub String);

impl PartName {
    /// The name of what has failed, where it has one.
    #[must_use]
    pub fn of(failure: &Failure) -> Option<Self> {
        match *failure {
            Failure::Resource(Resource::CircuitPort { port }) => Some(PartName::Port(port.saturating_add(1))),
            Failure::Resource(Resource::Splitter { splitter }) => Some(PartName::Splitter(splitter)),
            Failure::Part(Part::Node { fabric, node }) if fabric == FabricName::SHUFFLECAST => {
                Some(PartName::Splitter(node))
            }
            _ => None,
        }
    }
}

impl FromStr for PartName {
    type Err = PartNameError;

    fn from_str(text: &str) -> Result<Self, PartNameError> {
        let wrong = || PartNameError(text.chars().take(64).collect());
        if text == "ocs" {
            return Ok(PartName::CircuitSwitch);
        }
        let digits = text.find(|letter: char| letter.is_ascii_digit()).ok_or_else(wrong)?;
        let number: u32 = text[digits..].parse().map_err(|_| wrong())?;
        match &text[..digits] {
            "port:" | "ocs:" if number > 0 => Ok(PartName::Port(number)),
            "splitter:" | "splitter" => Ok(PartName::Splitter(number)),
            "tor:" | "tor" | "switch:" | "rack:" => Ok(PartName::Tor(number)),
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for PartName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PartName::Port(number) => write!(f, "port:{number}"),
            PartName::Splitter(number) => write!(f, "splitter:{number}"),
            PartName::Tor(number) => write!(f, "tor:{number}"),
            PartName::CircuitSwitch => f.write_str("ocs"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn names_are_read_and_written() {
        for text in ["port:1", "port:320", "splitter:0", "tor:7", "ocs"] {
            assert_eq!(text.parse::<PartName>().unwrap().to_string(), text);
        }
        assert_eq!("splitter3".parse(), Ok(PartName::Splitter(3)));
        assert_eq!("switch:3".parse(), Ok(PartName::Tor(3)));
        assert_eq!("ocs:4".parse(), Ok(PartName::Port(4)));
        for text in
            ["", "port", "port:0", "splitter:-1", "splitter:x", "port:99999999999", "lamp:3", "tor:3x"]
        {
            let error = text.parse::<PartName>().unwrap_err().to_string();
            assert!(error.starts_with(&alloc::format!("'{text}' is no part: write port:4")), "{error}");
        }
    }
}
