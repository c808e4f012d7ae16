//! SCPI, the language of instruments, as circuit switches speak it: commands and answers are lines, in the
//! same order. What only tells the switch something has no answer, and is followed by the question what went
//! wrong.

use super::circuits::Command;
use super::said;
use super::tl1::{Answer, Failure};
use std::collections::VecDeque;

/// Asks what went wrong, and is answered by `0,"No error"`.
const LAST_ERROR: &str = ":syst:err?";
/// Questions that wait for their answers.
const PENDING_MAX: usize = 4_096;
/// The longest line, in bytes: more than the list of all circuits of the largest switches has.
const LINE_MAX: usize = 1 << 20;

/// The other end does not speak SCPI, or not to us.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LineError {
    /// No end in sight.
    #[error("a line is longer than {LINE_MAX} bytes: the other end does not speak SCPI")]
    TooLong,
    /// Answers have no numbers: after one that is missing it is not known to which question the next one
    /// belongs.
    #[error("an answer is missing, so that the next ones cannot be told apart")]
    Missing,
}

/// Reply that is waited for.
#[derive(Clone, Copy, Debug)]
struct Pending {
    number: u32,
    /// Set if it is an answer, and not a report of errors.
    is_answer: bool,
}

/// One connection to a switch.
#[derive(Clone, Debug, Default)]
pub struct Session {
    incoming: Vec<u8>,
    /// So much of it has no end of a line.
    scanned: usize,
    outgoing: Vec<u8>,
    last: u32,
    pending: VecDeque<Pending>,
    has_lost_one: bool,
    events: VecDeque<(u32, Result<Answer, Failure>)>,
}

impl Session {
    /// A fresh connection.
    #[must_use]
    pub fn new() -> Self {
        Session::default()
    }

    /// Sends a command and gives its number, or `None` if too many are under way.
    pub fn request(&mut self, command: &Command) -> Option<u32> {
        if self.pending.len() >= PENDING_MAX {
            return None;
        }
        self.last = self.last.wrapping_add(1);
        let is_answer = command.line().ends_with('?');
        self.pending.push_back(Pending { number: self.last, is_answer });
        self.outgoing.extend_from_slice(command.line().as_bytes());
        self.outgoing.push(b'\n');
        if !is_answer {
            self.outgoing.extend_from_slice(LAST_ERROR.as_bytes());
            self.outgoing.push(b'\n');
        }
        Some(self.last)
    }

    /// Gives a command up.
    pub fn forget(&mut self, number: u32) {
        self.has_lost_one |= self.pending.iter().any(|pending| pending.number == number);
    }

    /// Takes bytes from the switch.
    ///
    /// # Errors
    /// The other end does not speak SCPI, or an answer is missing: the connection is of no more use.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<(), LineError> {
        if self.has_lost_one {
            return Err(LineError::Missing);
        }
        self.incoming.extend_from_slice(bytes);
        let mut taken = 0;
        while let Some(len) = self.incoming[self.scanned..].iter().position(|byte| *byte == b'\n') {
            let end = self.scanned + len;
            let line = String::from_utf8_lossy(&self.incoming[taken..end]).trim().to_string();
            (taken, self.scanned) = (end + 1, end + 1);
            // A line that answers no question is a greeting.
            if !line.is_empty()
                && let Some(pending) = self.pending.pop_front()
            {
                self.events.push_back((pending.number, read(line, pending.is_answer)));
            }
        }
        // Once for all lines: moving the rest for each would take time in the square of their number.
        self.incoming.drain(..taken);
        self.scanned = self.incoming.len();
        if self.incoming.len() > LINE_MAX { Err(LineError::TooLong) } else { Ok(()) }
    }

    /// Bytes for the switch, taken out.
    pub fn outgoing(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.outgoing)
    }

    /// The next command that has ended, by its number.
    pub fn poll(&mut self) -> Option<(u32, Result<Answer, Failure>)> {
        self.events.pop_front()
    }
}

fn read(line: String, is_answer: bool) -> Result<Answer, Failure> {
    let comment = String::new();
    if is_answer {
        return Ok(Answer { lines: vec![line], comment });
    }
    let (code, text) = line.split_once(',').unwrap_or((&line, ""));
    match code.trim().parse::<i32>() {
        Ok(0) => Ok(Answer { lines: Vec::new(), comment }),
        _ => Err(Failure { code: said(code.trim()), text: said(text.trim().trim_matches('"')) }),
    }
}
