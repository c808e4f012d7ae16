//! The client's machine: commands with their tags, and what comes back.

use super::{Completion, FrameError, Framer, Output, Severity};
use crate::devices::circuits::Command;
use crate::devices::said;
use crate::devices::telnet::Telnet;
use std::collections::{BTreeMap, VecDeque};

/// Tags have up to six digits.
const TAG_MAX: u32 = 999_999;
/// Commands that wait for their answers.
const PENDING_MAX: usize = 4_096;
/// Lines of one answer: more than any switch has ports.
const LINES_MAX: usize = 100_000;
/// Bytes that all answers take which are not at their end: more than any switch has to say.
const UNFINISHED_MAX: usize = 32 << 20;
/// Bytes that a line takes beside its text.
const LINE_COST: usize = 40;
/// Lines of a report: whatever else it says, the circuits are asked for.
const REPORT_LINES_MAX: usize = 8;
/// Events that wait to be taken; older alarms make room.
const EVENTS_MAX: usize = 8_192;

/// Answer from a switch.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Answer {
    /// The quoted lines of all parts.
    pub lines: Vec<String>,
    /// Text in comments.
    pub comment: String,
}

/// A refusal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// Error code, such as `IIAC`; empty if there was none.
    pub code: String,
    /// Text of the refusal.
    pub text: String,
}

/// Output of the machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A command has ended.
    Done {
        /// Its tag.
        tag: u32,
        /// Outcome of the command.
        result: Result<Answer, Failure>,
    },
    /// The switch reports something.
    Report {
        /// Severity of the report.
        severity: Severity,
        /// Type of the report, such as `REPT ALM CRS`.
        verb: String,
        /// The details.
        lines: Vec<String>,
    },
}

/// One connection to a switch. Many commands can be under way at a time.
#[derive(Clone, Debug, Default)]
pub struct Session {
    telnet: Telnet,
    framer: Framer,
    last_tag: u32,
    pending: BTreeMap<u32, Unfinished>,
    /// Bytes that unfinished answers take.
    unfinished_len: usize,
    outgoing: Vec<u8>,
    events: VecDeque<Event>,
}

/// An answer that is not at its end.
#[derive(Clone, Debug, Default)]
struct Unfinished {
    lines: Vec<String>,
    len: usize,
}

impl Session {
    /// A fresh connection.
    #[must_use]
    pub fn new() -> Self {
        Session::default()
    }

    /// Sends a command and gives its tag, or `None` if too many are under way.
    pub fn request(&mut self, command: &Command) -> Option<u32> {
        if self.pending.len() >= PENDING_MAX {
            return None;
        }
        let tag = loop {
            self.last_tag = self.last_tag % TAG_MAX + 1;
            if !self.pending.contains_key(&self.last_tag) {
                break self.last_tag;
            }
        };
        self.pending.insert(tag, Unfinished::default());
        Telnet::send(command.emit(tag).as_bytes(), &mut self.outgoing);
        Some(tag)
    }

    /// Gives a command up: an answer that still comes is not heard.
    pub fn forget(&mut self, tag: u32) {
        self.take_out(tag);
    }

    fn take_out(&mut self, tag: u32) -> Option<Unfinished> {
        let unfinished = self.pending.remove(&tag)?;
        self.unfinished_len -= unfinished.len;
        Some(unfinished)
    }

    /// Returns the number of commands that wait for their answers.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Takes bytes from the switch.
    ///
    /// # Errors
    /// The other end does not speak TL1: the connection is of no more use.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<(), FrameError> {
        let mut text = Vec::new();
        self.telnet.receive(bytes, &mut text, &mut self.outgoing);
        self.framer.push(&text);
        while let Some(output) = self.framer.next_output()? {
            self.take(output);
            if self.unfinished_len > UNFINISHED_MAX {
                return Err(FrameError::TooLong);
            }
        }
        Ok(())
    }

    /// Bytes for the switch, taken out.
    pub fn outgoing(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.outgoing)
    }

    /// The next event.
    pub fn poll(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn take(&mut self, output: Output) {
        match output {
            Output::Response { tag, completion, code, lines, comment, more } => {
                self.respond(&tag, completion, code, lines, comment, more);
            }
            Output::Acknowledged { code, tag } if matches!(code.as_str(), "NA" | "NG" | "RL") => {
                let text = "the switch lost the command or is too busy for it".to_string();
                self.end(&tag, Err(Failure { code, text }));
            }
            Output::Acknowledged { .. } => {}
            Output::Autonomous { severity, verb, lines, .. } => {
                let lines = lines.iter().take(REPORT_LINES_MAX).map(|line| said(line)).collect();
                self.event(Event::Report { severity, verb: said(&verb), lines });
            }
        }
    }

    fn respond(
        &mut self,
        tag: &str,
        completion: Completion,
        code: Option<String>,
        mut lines: Vec<String>,
        comment: String,
        more: bool,
    ) {
        // An answer to no command, or to one that was given up.
        let Some(answer) = tag.parse().ok().and_then(|tag| self.pending.get_mut(&tag)) else { return };
        let room = LINES_MAX.saturating_sub(answer.lines.len());
        lines.truncate(room);
        let len: usize = lines.iter().map(|line| line.len() + LINE_COST).sum();
        answer.len += len;
        self.unfinished_len += len;
        answer.lines.append(&mut lines);
        if more || completion == Completion::Delayed {
            return;
        }
        let result = match completion {
            Completion::Completed | Completion::Retrieved | Completion::Delayed => {
                Ok(Answer { lines: std::mem::take(&mut answer.lines), comment })
            }
            Completion::Denied | Completion::Partial => {
                let code = code.unwrap_or_else(|| completion.word().to_string());
                let text = if comment.is_empty() { answer.lines.join(" ") } else { comment };
                Err(Failure { code: said(&code), text: said(&text) })
            }
        };
        self.end(tag, result);
    }

    fn end(&mut self, tag: &str, result: Result<Answer, Failure>) {
        if let Ok(tag) = tag.parse()
            && self.take_out(tag).is_some()
        {
            self.event(Event::Done { tag, result });
        }
    }

    fn event(&mut self, event: Event) {
        if self.events.len() >= EVENTS_MAX
            && let Some(oldest) = self.events.iter().position(|event| matches!(event, Event::Report { .. }))
        {
            self.events.remove(oldest);
        }
        self.events.push_back(event);
    }
}
