//! TL1, the language in which optical circuit switches are told about their circuits (Blast section IV-B,
//! Republic section IV; Telcordia GR-831).
//!
//! A command is `VERB-MODIFIERS:TARGET:AID:TAG:BLOCK:PAYLOAD;`. The switch answers with the same tag, or
//! speaks of its own accord (alarms). Which words there are is told by the switch's
//! [dialect](super::circuits).
//!
//! [`Output`] is what a switch says, [`Framer`] finds outputs in a stream, and [`Session`] is the client's
//! machine.

mod session;

use std::fmt::Write as _;

pub use session::{Answer, Event, Failure, Session};

/// The longest output of a switch, in bytes. The cross connections of the largest switches fit in many times.
pub const OUTPUT_MAX: usize = 1 << 20;

/// Outcome of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Completion {
    /// Done.
    Completed,
    /// Refused.
    Denied,
    /// Some of it was done.
    Partial,
    /// It will be done later.
    Delayed,
    /// A part of an answer that was asked for again.
    Retrieved,
}

impl Completion {
    const WORDS: [(Completion, &'static str); 5] = [
        (Completion::Completed, "COMPLD"),
        (Completion::Denied, "DENY"),
        (Completion::Partial, "PRTL"),
        (Completion::Delayed, "DELAY"),
        (Completion::Retrieved, "RTRV"),
    ];

    fn parse(word: &str) -> Option<Self> {
        Self::WORDS.iter().find(|(_, known)| *known == word).map(|(completion, _)| *completion)
    }

    fn word(self) -> &'static str {
        Self::WORDS.iter().find(|(completion, _)| *completion == self).map_or("", |(_, word)| word)
    }
}

/// Severity of what a switch reports of its own accord.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Severity {
    /// `A`: a message.
    Message,
    /// `*`: a minor alarm.
    Minor,
    /// `**`: a major alarm.
    Major,
    /// `*C`: a critical alarm.
    Critical,
}

impl Severity {
    const WORDS: [(Severity, &'static str); 4] = [
        (Severity::Message, "A"),
        (Severity::Minor, "*"),
        (Severity::Major, "**"),
        (Severity::Critical, "*C"),
    ];
}

/// Message from a switch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Output {
    /// It has read a command and works on it.
    Acknowledged {
        /// `IP` in progress, `PF` printout follows, `OK` done, `NA` lost, `NG` not good, `RL` repeat later.
        code: String,
        /// The command's tag.
        tag: String,
    },
    /// The answer to a command, or a part of it.
    Response {
        /// The command's tag.
        tag: String,
        /// Outcome of the command.
        completion: Completion,
        /// Error code of a refusal, such as `IIAC`.
        code: Option<String>,
        /// The quoted lines.
        lines: Vec<String>,
        /// Text in comments.
        comment: String,
        /// Set if another part follows.
        more: bool,
    },
    /// Something that the client did not ask for.
    Autonomous {
        /// Severity of the message.
        severity: Severity,
        /// The switch's own tag.
        tag: String,
        /// Type of the message, such as `REPT ALM CRS`.
        verb: String,
        /// The quoted lines.
        lines: Vec<String>,
    },
}

/// The other end does not speak TL1.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FrameError {
    /// No end in sight.
    #[error(
        "an output is longer than {OUTPUT_MAX} bytes: the other end does not speak TL1, or has lost its place"
    )]
    TooLong,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Within {
    #[default]
    Text,
    Quotes,
    /// After a backslash in quotes.
    Escape,
    Comment,
}

/// Cuts a stream of text into outputs. Prompts, echoes and greetings between them are skipped.
#[derive(Clone, Debug, Default)]
pub struct Framer {
    buffer: Vec<u8>,
    /// Start of the bytes that have not been taken out.
    start: usize,
    scanned: usize,
    within: Within,
}

impl Framer {
    /// A stream at its beginning.
    #[must_use]
    pub fn new() -> Self {
        Framer::default()
    }

    /// Takes text as it came.
    pub fn push(&mut self, text: &[u8]) {
        // Once for all outputs: moving the rest for each would take time in the square of their number.
        self.buffer.drain(..self.start);
        self.scanned -= self.start;
        self.start = 0;
        self.buffer.extend_from_slice(text);
    }

    /// The next whole output.
    ///
    /// # Errors
    /// There is more text than the longest output has, and no end of it.
    pub fn next_output(&mut self) -> Result<Option<Output>, FrameError> {
        while let Some(end) = self.find_end()? {
            let (text, terminator) = (self.start..end, self.buffer[end]);
            self.start = end + 1;
            if let Some(output) = parse(&String::from_utf8_lossy(&self.buffer[text]), terminator) {
                return Ok(Some(output));
            }
        }
        Ok(None)
    }

    /// Finds the first terminator that is neither quoted nor in a comment.
    fn find_end(&mut self) -> Result<Option<usize>, FrameError> {
        while let Some(&byte) = self.buffer.get(self.scanned) {
            let next = self.buffer.get(self.scanned + 1).copied();
            let at = self.scanned;
            match (self.within, byte) {
                // What a slash begins is known only with the next byte.
                (Within::Text, b'/') | (Within::Comment, b'*') if next.is_none() => break,
                (Within::Text, b'"') => self.within = Within::Quotes,
                (Within::Text, b'/') if next == Some(b'*') => {
                    self.within = Within::Comment;
                    self.scanned += 1;
                }
                (Within::Text, b';' | b'<' | b'>') => {
                    self.scanned += 1;
                    return Ok(Some(at));
                }
                (Within::Quotes, b'"') => self.within = Within::Text,
                (Within::Quotes, b'\\') => self.within = Within::Escape,
                (Within::Escape, _) => self.within = Within::Quotes,
                (Within::Comment, b'*') if next == Some(b'/') => {
                    self.within = Within::Text;
                    self.scanned += 1;
                }
                _ => {}
            }
            self.scanned += 1;
        }
        if self.buffer.len() - self.start > OUTPUT_MAX { Err(FrameError::TooLong) } else { Ok(None) }
    }
}

/// Reads one output, or nothing where it is no output: a prompt, or the echo of a command.
fn parse(text: &str, terminator: u8) -> Option<Output> {
    let mut lines = text.lines().map(str::trim);
    if terminator == b'<' {
        let last = lines.rfind(|line| !line.is_empty())?;
        let (code, tag) = last.split_once(' ')?;
        let known = ["IP", "PF", "OK", "NA", "NG", "RL"].contains(&code);
        return known.then(|| Output::Acknowledged { code: code.into(), tag: tag.trim().into() });
    }
    let more = terminator == b'>';
    while let Some(line) = lines.next() {
        let mut words = line.split_whitespace();
        let (Some(mark), Some(tag), Some(third)) = (words.next(), words.next(), words.next()) else {
            continue;
        };
        if mark == "M"
            && let Some(completion) = Completion::parse(third)
        {
            let body = Body::read(lines);
            let code = (completion == Completion::Denied).then_some(body.code).flatten();
            let (tag, lines, comment) = (tag.to_string(), body.lines, body.comment);
            return Some(Output::Response { tag, completion, code, lines, comment, more });
        }
        if let Some((severity, _)) = Severity::WORDS.iter().find(|(_, word)| *word == mark) {
            let verb = words.fold(third.to_string(), |text, word| text + " " + word);
            let (severity, lines) = (*severity, Body::read(lines).lines);
            return Some(Output::Autonomous { severity, tag: tag.to_string(), verb, lines });
        }
    }
    None
}

/// Lines that follow the one with the tag.
#[derive(Default)]
struct Body {
    code: Option<String>,
    lines: Vec<String>,
    comment: String,
}

impl Body {
    fn read<'a>(lines: impl Iterator<Item = &'a str>) -> Self {
        let mut body = Body::default();
        for line in lines {
            if let Some(quoted) = line.strip_prefix('"') {
                body.lines.push(unquote(quoted));
            } else if let Some(comment) = line.strip_prefix("/*") {
                let comment = comment.trim_end_matches("*/").trim();
                if !body.comment.is_empty() {
                    body.comment.push(' ');
                }
                body.comment.push_str(comment);
            } else if body.code.is_none()
                && line.len() == 4
                && line.chars().all(|c| c.is_ascii_alphanumeric())
            {
                body.code = Some(line.to_string());
            }
        }
        body
    }
}

/// The text after an opening quote, up to the closing one.
fn unquote(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '"' => break,
            '\\' => plain.extend(letters.next()),
            letter => plain.push(letter),
        }
    }
    plain
}

impl Output {
    /// The text on the wire. `source` is the switch's own name and `when` the time in its words,
    /// `26-11-21 09:30:00`.
    #[must_use]
    pub fn emit(&self, source: &str, when: &str) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = match self {
            Output::Acknowledged { code, tag } => write!(text, "{code} {tag}\r\n<"),
            Output::Response { tag, completion, code, lines, comment, more } => {
                let _ = write!(text, "\r\n\n   {source} {when}\r\nM  {tag} {}\r\n", completion.word());
                if let Some(code) = code {
                    let _ = write!(text, "   {code}\r\n");
                }
                emit_lines(lines, &mut text);
                if !comment.is_empty() {
                    let _ = write!(text, "   /* {comment} */\r\n");
                }
                write!(text, "{}", if *more { '>' } else { ';' })
            }
            Output::Autonomous { severity, tag, verb, lines } => {
                let mark =
                    Severity::WORDS.iter().find(|(known, _)| known == severity).map_or("A", |(_, w)| w);
                let _ = write!(text, "\r\n\n   {source} {when}\r\n{mark:2} {tag} {verb}\r\n");
                emit_lines(lines, &mut text);
                write!(text, ";")
            }
        };
        text
    }
}

fn emit_lines(lines: &[String], text: &mut String) {
    for line in lines {
        text.push_str("   \"");
        for letter in line.chars() {
            if matches!(letter, '"' | '\\') {
                text.push('\\');
            }
            text.push(letter);
        }
        text.push_str("\"\r\n");
    }
}

#[cfg(test)]
mod tests;
