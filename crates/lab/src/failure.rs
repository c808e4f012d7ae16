//! What can be broken on purpose, and when: `agent:h3@2.5`, `link:h3@1`, `manager@0.5`.

use crate::error::LabError;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The latest time of a failure, in seconds.
const SECONDS_MAX: f64 = 3_600.0;

/// One failure.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Failure {
    /// What breaks.
    pub what: What,
    /// When, in seconds after the transfer was asked for.
    pub at_s: f64,
}

/// What breaks.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum What {
    /// A host's agent is killed.
    Agent(String),
    /// All cables of a host, a switch or a splitter are cut.
    Link(String),
    /// The manager is killed.
    Manager,
}

impl FromStr for Failure {
    type Err = LabError;

    fn from_str(text: &str) -> Result<Self, LabError> {
        let wrong = |reason: &str| LabError::Failure { text: text.into(), reason: reason.into() };
        let form = "write WHAT@SECONDS, such as agent:h3@2.5, link:tor1@1 or manager@0.5";
        let (what, seconds) = text.rsplit_once('@').ok_or_else(|| wrong(form))?;
        let at_s: f64 = seconds.parse().map_err(|_| wrong(form))?;
        if !(0.0..=SECONDS_MAX).contains(&at_s) {
            return Err(wrong("the time must be 0 to 3600 seconds"));
        }
        let what = match what.split_once(':') {
            Some(("agent", name)) if !name.is_empty() => What::Agent(name.into()),
            Some(("link", name)) if !name.is_empty() => What::Link(name.into()),
            None if what == "manager" => What::Manager,
            _ => return Err(wrong(form)),
        };
        Ok(Failure { what, at_s })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.what {
            What::Agent(name) => write!(f, "agent:{name}@{}", self.at_s),
            What::Link(name) => write!(f, "link:{name}@{}", self.at_s),
            What::Manager => write!(f, "manager@{}", self.at_s),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_read_and_written() {
        for text in ["agent:h3@2.5", "link:tor1@1", "link:ocs:4@0", "manager@0.5"] {
            let failure: Failure = text.parse().unwrap();
            assert_eq!(failure.to_string(), text);
        }
        for text in
            ["", "agent:h3", "agent@1", "agent:@1", "manager:x@1", "link:h1@-1", "link:h1@soon", "x@1"]
        {
            let message = text.parse::<Failure>().unwrap_err().to_string();
            assert!(message.starts_with(&format!("'{text}' is no failure")), "{message}");
        }
    }
}
