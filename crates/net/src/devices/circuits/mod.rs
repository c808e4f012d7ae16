//! Optical circuit switches (Blast section IV-B, Republic section IV), each in its own dialect.
//!
//! A [`Dialect`] says how circuits are made, taken down and listed, and how ports are called:
//! [`Glimmerglass`] (the one that Blast used), [`Calient`], [`Polatis`] in TL1 and in SCPI, and [`Plain`]. It
//! knows both ends of a conversation, so that an emulated switch can speak it too. [`CircuitClient`] is the
//! manager's end on a socket.
//!
//! In this program ports are numbers without a meaning; [`Dialect::port_name`] is what the switch calls them.
//! Where each of its ports has a fibre in and a fibre out, one number stands for both.

mod calient;
mod client;
mod dialogue;
mod glimmerglass;
mod plain;
mod polatis;
mod record;

use super::tl1::Output;
use std::fmt;
use std::sync::Arc;

pub use calient::Calient;
pub use client::{CircuitClient, CircuitError, CircuitOptions, Link, Login, Report};
pub use dialogue::{Dialogue, DialogueError, Turn};
pub use glimmerglass::Glimmerglass;
pub use plain::Plain;
pub use polatis::{Polatis, Protocol};
pub use record::{RecordError, RecordOptions, record};

/// Numbers in texts of switches have at most this many digits: no switch has a million ports.
const DIGITS_MAX: usize = 6;

/// A circuit of an optical switch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Circuit {
    /// The port where light enters.
    pub from: u32,
    /// The port where it leaves.
    pub to: u32,
}

/// A circuit that a switch lists.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Held {
    /// The circuit.
    pub circuit: Circuit,
    /// Reason that no light gets through, if the switch gives one.
    pub fault: Option<String>,
}

impl From<Circuit> for Held {
    fn from(circuit: Circuit) -> Self {
        Held { circuit, fault: None }
    }
}

/// Request to a switch, whatever its dialect.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// Logs in.
    Login {
        /// The user.
        user: String,
        /// Password of the user.
        password: String,
    },
    /// Logs out.
    Logout {
        /// The user.
        user: String,
    },
    /// Notes a circuit that is not to be lit yet.
    Prepare(Circuit),
    /// Makes a circuit.
    Enter(Circuit),
    /// Takes a circuit down.
    Delete(Circuit),
    /// Takes down whatever circuit light from this port takes.
    DeleteFrom(u32),
    /// Forgets a circuit that has been taken down.
    Dispose(Circuit),
    /// Lists the circuits.
    Retrieve,
    /// Lists the alarms that stand.
    Alarms,
    /// Says what it is.
    Identity,
    /// Says how many ports it has.
    Size,
    /// Says what has gone wrong since it was asked last.
    LastError,
    /// Nothing, to hear that the switch lives.
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
    /// Description of the error.
    pub text: String,
}

/// One command in a dialect's words: what stands before and after its tag.
#[derive(Clone, PartialEq, Eq)]
pub struct Command {
    before: String,
    after: String,
    /// The command without what is secret in it.
    described: String,
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.described)
    }
}

impl Command {
    /// TL1: `verb::aid:TAG:after;`, where `after` may be empty.
    pub(super) fn tl1(verb: &str, aid: &str, after: &str) -> Self {
        let after = if after.is_empty() { ";".to_string() } else { format!(":{after};") };
        Command { before: format!("{verb}::{aid}:"), after, described: format!("{verb}::{aid}") }
    }

    /// TL1's login, in which the password is secret.
    pub(super) fn tl1_login(login: &Login) -> Self {
        let (user, password) = (&login.user, &login.password);
        Command { after: format!("::{password};"), ..Command::tl1("ACT-USER", user, "") }
    }

    /// A line of SCPI, which has no tag.
    pub(super) fn scpi(line: &str) -> Self {
        Command { before: line.into(), after: String::new(), described: line.into() }
    }

    /// The text on the wire with this tag.
    #[must_use]
    pub fn emit(&self, tag: u32) -> String {
        self.with_tag(&tag.to_string())
    }

    /// The same with another text in the tag's place.
    pub(super) fn with_tag(&self, tag: &str) -> String {
        format!("{}{tag}{}", self.before, self.after)
    }

    /// The line, where there is no tag.
    pub(super) fn line(&self) -> &str {
        &self.before
    }

    /// The command without what is secret in it, for messages.
    #[must_use]
    pub fn describe(&self) -> &str {
        &self.described
    }
}

/// Way in which texts are found in a stream of bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Framing {
    /// TL1 over telnet: commands end with a semicolon and have tags.
    Tl1,
    /// SCPI: commands and answers are lines, in the same order.
    Scpi,
}

/// Language of a kind of circuit switch.
pub trait Dialect: fmt::Debug + Send + Sync {
    /// Its name in the settings.
    fn name(&self) -> &'static str;

    /// Returns the way in which its texts are found in a stream.
    fn framing(&self) -> Framing {
        Framing::Tl1
    }

    /// Returns true if switches of this kind ask for a user and a password.
    fn has_login(&self) -> bool {
        true
    }

    /// Returns the switch's name for a port.
    fn port_name(&self, port: u32) -> String;

    /// The port of this name.
    fn port(&self, name: &str) -> Option<u32>;

    /// The name of the port that comes at this place where ports are counted from 0.
    fn nth_port(&self, place: u32) -> u32 {
        place
    }

    /// Returns the name of a circuit in messages.
    fn circuit_name(&self, circuit: Circuit) -> String {
        format!("{},{}", self.port_name(circuit.from), self.port_name(circuit.to))
    }

    /// Returns the command that is sent first.
    fn login(&self, login: Option<&Login>) -> Option<Command> {
        login.map(Command::tl1_login)
    }

    /// The commands that make a circuit, in their order.
    fn enter(&self, circuit: Circuit) -> Vec<Command>;

    /// The commands that take a circuit down, in their order.
    fn delete(&self, circuit: Circuit) -> Vec<Command>;

    /// The command that lists the circuits.
    fn retrieve(&self) -> Command;

    /// The circuits in a line of that list; `None` where it is none of this dialect.
    fn circuits(&self, line: &str) -> Option<Vec<Held>>;

    /// The command that lists the alarms that stand, where there is one.
    fn alarms(&self) -> Option<Command> {
        Some(Command::tl1("RTRV-ALM-ALL", "", ""))
    }

    /// The command that asks what the switch is, where there is one.
    fn identity(&self) -> Option<Command> {
        None
    }

    /// The command that asks how many ports the switch has, where there is one.
    fn size(&self) -> Option<Command> {
        None
    }

    /// Reads the number of ports from the answer to that command: those where light enters, and those where
    /// it leaves.
    fn read_size(&self, _lines: &[String]) -> Option<(u32, u32)> {
        None
    }

    /// A command that changes nothing, to hear that the switch lives.
    fn probe(&self) -> Command {
        Command::tl1("RTRV-HDR", "", "")
    }

    /// The other end: reads a command without its end; gives its tag too.
    ///
    /// # Errors
    /// It is none of this dialect, or its parts are wrong.
    fn parse(&self, text: &str) -> Result<(Request, String), RequestError>;

    /// The other end: the lines that list these circuits on a switch of so many ports.
    fn list(&self, circuits: &[Circuit], ports: u32) -> Vec<String>;

    /// The other end: the lines that say what a switch of so many ports is (`Identity`), and how many it has
    /// (`Size`).
    fn introduce(&self, _request: &Request, _ports: u32) -> Vec<String> {
        Vec::new()
    }
}

/// The dialects by their names in the settings.
pub const DIALECTS: [&str; 5] = ["glimmerglass", "calient", "polatis-tl1", "polatis-scpi", "plain"];

/// A dialect that there is not.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("there is no dialect '{name}', only {}", DIALECTS.join(", "))]
pub struct UnknownDialect {
    /// Name that was asked for.
    pub name: String,
}

/// The dialect of this name, for a switch of so many ports.
///
/// # Errors
/// There is none.
pub fn dialect(name: &str, ports: u32) -> Result<Arc<dyn Dialect>, UnknownDialect> {
    Ok(match name {
        "glimmerglass" => Arc::new(Glimmerglass),
        "calient" => Arc::new(Calient),
        "polatis-tl1" => Arc::new(Polatis { protocol: Protocol::Tl1, inputs: ports }),
        "polatis-scpi" => Arc::new(Polatis { protocol: Protocol::Scpi, inputs: ports }),
        "plain" => Arc::new(Plain),
        _ => return Err(UnknownDialect { name: name.to_string() }),
    })
}

/// A number that counts from 1 in the text, and from 0 here.
fn counted(text: &str) -> Option<u32> {
    let text = text.trim();
    if text.len() > DIGITS_MAX || !text.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    text.parse::<u32>().ok()?.checked_sub(1)
}

/// The value of `KEY=value` in a list of such that commas divide.
fn value_of<'a>(list: &'a str, key: &str) -> Option<&'a str> {
    list.split(',').find_map(|part| part.trim().strip_prefix(key)?.strip_prefix('='))
}

/// The blocks of a TL1 command: its verb, what it is about, its tag, and what follows.
struct Blocks {
    verb: String,
    aid: String,
    tag: String,
    rest: String,
}

impl Blocks {
    fn read(text: &str) -> Result<Self, RequestError> {
        let mut blocks = text.trim().split(':');
        let mut next = || blocks.next().unwrap_or_default().trim().to_string();
        let (verb, _target, aid, tag, _block) = (next().to_ascii_uppercase(), next(), next(), next(), next());
        let rest = blocks.collect::<Vec<_>>().join(":");
        let blocks = Blocks { verb, aid, tag, rest };
        let tag = &blocks.tag;
        if tag.is_empty() || tag.len() > 6 || !tag.bytes().all(|letter| letter.is_ascii_alphanumeric()) {
            return Err(blocks.wrong("IICT", "the tag must be 1 to 6 letters and digits"));
        }
        Ok(blocks)
    }

    fn wrong(&self, code: &'static str, text: impl Into<String>) -> RequestError {
        RequestError { tag: self.tag.clone(), code, text: text.into() }
    }

    /// Reads the commands that the dialects of TL1 have in common.
    fn common(self) -> Result<(Request, String), RequestError> {
        let Blocks { verb, aid, tag, rest } = self;
        let request = match verb.as_str() {
            "ACT-USER" => Request::Login { user: aid, password: rest },
            "CANC-USER" => Request::Logout { user: aid },
            "RTRV-ALM-ALL" => Request::Alarms,
            "RTRV-HDR" => Request::Header,
            other => {
                let text = format!("'{other}' is no command of this switch");
                return Err(RequestError { tag, code: "IICM", text });
            }
        };
        Ok((request, tag))
    }

    /// Two ports, as the dialect calls them.
    fn circuit(
        &self,
        from: impl Fn(&str) -> Option<u32>,
        to: impl Fn(&str) -> Option<u32>,
        example: &str,
    ) -> Result<Circuit, RequestError> {
        let ports = self.aid.split_once(',').and_then(|(one, other)| Some((from(one)?, to(other)?)));
        let wrong = || {
            self.wrong("IIAC", format!("'{}' is no circuit: write two ports, such as {example}", self.aid))
        };
        ports.map(|(from, to)| Circuit { from, to }).ok_or_else(wrong)
    }
}

/// A switch's answer in TL1's words, for those who emulate one.
#[must_use]
pub fn tl1_answer(
    tag: &str,
    outcome: Result<Vec<String>, (&str, String)>,
    source: &str,
    when: &str,
) -> String {
    use super::tl1::Completion;
    let (completion, code, lines, comment) = match outcome {
        Ok(lines) => (Completion::Completed, None, lines, String::new()),
        Err((code, text)) => (Completion::Denied, Some(code.to_string()), vec![], text),
    };
    let output = Output::Response { tag: tag.into(), completion, code, lines, comment, more: false };
    output.emit(source, when)
}

#[cfg(test)]
mod tests;
