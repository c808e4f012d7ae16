//! Failures made on purpose, and their times: `agent:h3@2.5`, `link:h3@20%`, `rate:h3=20mbit@0`,
//! `manager@0.5`, `ocs:late=500@0`.

mod at;

pub use at::At;

use crate::error::LabError;
use crate::ocs::Fault;
use polycast_types::Rate;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The least rate of a link.
const RATE_MIN_BPS: u64 = 100_000;

/// One failure.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Failure {
    /// Part that breaks.
    pub what: What,
    /// Time of the failure.
    pub at: At,
}

/// Part that breaks, and how.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum What {
    /// A host's agent is killed.
    Agent(String),
    /// A host's agent of its rack is killed (Orca).
    RackAgent(String),
    /// All cables of a host, a switch or a splitter are cut; or the one between two nodes, such as `s19-h14`.
    Link(String),
    /// A label switch forwards nothing any more, and all its links stay up.
    Silent(String),
    /// The manager is killed.
    Manager,
    /// The circuit switch misbehaves from then on.
    Ocs(Fault),
    /// All links of a host get another rate, both ways; or one between two nodes, such as `s23-h11`.
    Rate {
        /// The host, or the two nodes with `-` between them.
        link: String,
        /// The rate in bits a second.
        rate_bps: u64,
    },
}

/// Notation of the circuit switch's faults.
const FAULTS: [(&str, Fault); 5] = [
    ("refuse", Fault::Refuse),
    ("hangup", Fault::HangUp),
    ("lie", Fault::Lie),
    ("dark", Fault::Dark),
    ("none", Fault::None),
];

fn fault(text: &str) -> Option<Fault> {
    let known = FAULTS.iter().find(|(name, _)| *name == text).map(|(_, fault)| *fault);
    let number = |name: &str| text.strip_prefix(name)?.parse().ok();
    known.or_else(|| number("dark=").map(Fault::DarkAt)).or_else(|| number("late=").map(Fault::Late))
}

impl FromStr for Failure {
    type Err = LabError;

    fn from_str(text: &str) -> Result<Self, LabError> {
        let wrong = |reason: &str| LabError::Failure { text: text.into(), reason: reason.into() };
        let form = "write WHAT@SECONDS, such as agent:h3@2.5, link:tor1@1, manager@0.5, ocs:refuse@0 or ocs:late=500@0";
        let (what, at) = text.rsplit_once('@').ok_or_else(|| wrong(form))?;
        let time =
            "the time must be 0 to 3600 seconds, or 1% to 99% of the object that a receiver has verified";
        let at: At = at.parse().map_err(|()| wrong(time))?;
        let what = match what.split_once(':') {
            Some(("agent", name)) if !name.is_empty() => What::Agent(name.into()),
            Some(("rack-agent", name)) if !name.is_empty() => What::RackAgent(name.into()),
            Some(("silent", name)) if !name.is_empty() => What::Silent(name.into()),
            Some(("link", name)) if !name.is_empty() => What::Link(name.into()),
            Some(("ocs", text)) => What::Ocs(fault(text).ok_or_else(|| {
                wrong("the circuit switch can refuse, hangup, lie, dark, dark=PORT, late=MILLISECONDS, and none of it again")
            })?),
            Some(("rate", setting)) => {
                let form = "write rate:HOST=RATE@SECONDS or rate:NODE-NODE=RATE@SECONDS with at least 100kbit, such as \
                            rate:h3=20mbit@0 or rate:s23-h11=20mbit@0";
                let (link, rate) = setting.split_once('=').ok_or_else(|| wrong(form))?;
                let rate: Rate = rate.parse().map_err(|_| wrong(form))?;
                if rate.0 < RATE_MIN_BPS || link.is_empty() {
                    return Err(wrong(form));
                }
                What::Rate { link: link.into(), rate_bps: rate.0 }
            }
            None if what == "manager" => What::Manager,
            _ => return Err(wrong(form)),
        };
        Ok(Failure { what, at })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.what {
            What::Agent(name) => write!(f, "agent:{name}@{}", self.at),
            What::RackAgent(name) => write!(f, "rack-agent:{name}@{}", self.at),
            What::Link(name) => write!(f, "link:{name}@{}", self.at),
            What::Silent(name) => write!(f, "silent:{name}@{}", self.at),
            What::Manager => write!(f, "manager@{}", self.at),
            What::Ocs(Fault::Late(millis)) => write!(f, "ocs:late={millis}@{}", self.at),
            What::Ocs(Fault::DarkAt(port)) => write!(f, "ocs:dark={port}@{}", self.at),
            What::Ocs(fault) => {
                let name = FAULTS.iter().find(|(_, known)| known == fault).map_or("none", |(name, _)| name);
                write!(f, "ocs:{name}@{}", self.at)
            }
            What::Rate { link, rate_bps } => write!(f, "rate:{link}={rate_bps}@{}", self.at),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_read_and_written() {
        for text in [
            "agent:h3@2.5",
            "rack-agent:h4@0.5",
            "link:tor1@1",
            "silent:core2@1",
            "link:ocs:4@0",
            "link:s19-h14@2",
            "rate:s23-h11=20000000@0",
            "rate:h3=20000000@0.5",
            "manager@0.5",
            "ocs:lie@0",
            "ocs:late=500@1.5",
            "ocs:dark=5@0",
            "link:spine0@20%",
        ] {
            let failure: Failure = text.parse().unwrap();
            assert_eq!(failure.to_string(), text);
        }
        for text in [
            "",
            "agent:h3",
            "agent@1",
            "agent:@1",
            "manager:x@1",
            "link:h1@-1",
            "link:h1@soon",
            "x@1",
            "ocs:x@1",
            "rate:h1=5@1",
            "rate:=20mbit@1",
            "rate:h1@1",
            "link:h1@0%",
            "link:h1@100%",
        ] {
            let message = text.parse::<Failure>().unwrap_err().to_string();
            assert!(message.starts_with(&format!("'{text}' is no failure")), "{message}");
        }
    }
}
