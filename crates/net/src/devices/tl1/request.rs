//! What a switch can be asked, and how that is written.

/// Ports are written with at most this many digits: no switch has a million.
const PORT_DIGITS_MAX: usize = 6;

/// A circuit of an optical switch, by ports that count from 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Circuit {
    /// Where light enters.
    pub from: u32,
    /// Where it leaves.
    pub to: u32,
}

impl Circuit {
    /// How TL1 names it: `1,121`.
    #[must_use]
    pub fn aid(self) -> String {
        format!("{},{}", self.from + 1, self.to + 1)
    }

    /// Reads a name; what follows a colon says more and is left out.
    #[must_use]
    pub fn parse(aid: &str) -> Option<Self> {
        let names = aid.split(':').next()?;
        let (from, to) = names.split_once(',')?;
        Some(Circuit { from: port(from)?, to: port(to)? })
    }
}

/// A port that counts from 1 in the text.
fn port(text: &str) -> Option<u32> {
    let text = text.trim();
    if text.len() > PORT_DIGITS_MAX || !text.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    text.parse::<u32>().ok()?.checked_sub(1)
}

/// A command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// `ACT-USER`: logs in.
    Login {
        /// Who.
        user: String,
        /// How that is proven.
        password: String,
    },
    /// `CANC-USER`: logs out.
    Logout {
        /// Who.
        user: String,
    },
    /// `ENT-CRS-FIBER`: makes a circuit.
    Enter(Circuit),
    /// `DLT-CRS-FIBER`: takes a circuit down.
    Delete(Circuit),
    /// `RTRV-CRS-FIBER`: lists the circuits.
    Retrieve,
    /// `RTRV-ALM-ALL`: lists the alarms that stand.
    Alarms,
    /// `RTRV-HDR`: asks for nothing, to hear that the switch lives.
    Header,
}

/// A command that a switch cannot take.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{text}")]
pub struct RequestError {
    /// The command's tag, as far as it could be read.
    pub tag: String,
    /// TL1's error code.
    pub code: &'static str,
    /// What is wrong.
    pub text: String,
}

impl Request {
    /// The text on the wire.
    #[must_use]
    pub fn emit(&self, tag: u32) -> String {
        match self {
            Request::Login { user, password } => format!("ACT-USER::{user}:{tag}::{password};"),
            Request::Logout { user } => format!("CANC-USER::{user}:{tag};"),
            Request::Enter(circuit) => format!("ENT-CRS-FIBER::{}:{tag};", circuit.aid()),
            Request::Delete(circuit) => format!("DLT-CRS-FIBER::{}:{tag};", circuit.aid()),
            Request::Retrieve => format!("RTRV-CRS-FIBER::ALL:{tag};"),
            Request::Alarms => format!("RTRV-ALM-ALL:::{tag};"),
            Request::Header => format!("RTRV-HDR:::{tag};"),
        }
    }

    /// The command without what is secret in it, for messages.
    #[must_use]
    pub fn describe(&self) -> String {
        match self {
            Request::Login { user, .. } => format!("ACT-USER::{user}"),
            other => {
                let text = other.emit(0);
                text.trim_end_matches(":0;").to_string()
            }
        }
    }

    /// Reads a command without its semicolon; gives its tag too.
    ///
    /// # Errors
    /// It is not one of ours, or its parts are wrong.
    pub fn parse(text: &str) -> Result<(Self, String), RequestError> {
        let mut blocks = text.trim().split(':');
        let verb = blocks.next().unwrap_or_default().trim().to_ascii_uppercase();
        let _target = blocks.next();
        let aid = blocks.next().unwrap_or_default().trim().to_string();
        let tag = blocks.next().unwrap_or_default().trim().to_string();
        let _block = blocks.next();
        let payload = blocks.collect::<Vec<_>>().join(":");
        let wrong = |code, text: String| RequestError { tag: tag.clone(), code, text };
        if tag.is_empty() || tag.len() > 6 || !tag.bytes().all(|letter| letter.is_ascii_alphanumeric()) {
            return Err(wrong("IICT", "the tag must be 1 to 6 letters and digits".into()));
        }
        let circuit = || {
            let text = || format!("'{aid}' is no circuit: write two ports, such as 1,121");
            Circuit::parse(&aid).ok_or_else(|| wrong("IIAC", text()))
        };
        let request = match verb.as_str() {
            "ACT-USER" => Request::Login { user: aid, password: payload },
            "CANC-USER" => Request::Logout { user: aid },
            "ENT-CRS-FIBER" => Request::Enter(circuit()?),
            "DLT-CRS-FIBER" => Request::Delete(circuit()?),
            "RTRV-CRS-FIBER" => Request::Retrieve,
            "RTRV-ALM-ALL" => Request::Alarms,
            "RTRV-HDR" => Request::Header,
            other => return Err(wrong("IICM", format!("'{other}' is no command of this switch"))),
        };
        Ok((request, tag))
    }
}
