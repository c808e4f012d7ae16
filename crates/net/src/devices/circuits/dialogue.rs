//! Dialogues with circuit switches as files: what was asked, what was sent and answered, and what follows
//! from it. A recorded one is played to the same machines that talk to switches, and has to lead to the same.
//!
//! Lines begin with a mark: `#` a note, `?` a question, `>` a command as it was sent, `<` and `<.` around an
//! answer, `=` what follows. TL1's tags are written as `{tag}`. A note `# dialect NAME, N ports` says how to
//! read the rest.

use super::{Circuit, Command, Dialect, Framing, Held, Login, UnknownDialect, dialect};
use crate::devices::tl1::{self, Answer, Event, Failure};
use crate::devices::{said, scpi};
use std::fmt::Write as _;
use std::sync::Arc;

/// Password in a dialogue, in place of the true one.
pub(super) const PASSWORD: &str = "secret";
/// Words before the name of a dialogue's dialect.
const DIALECT: &str = "# dialect ";

/// A question, and what became of it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Turn {
    /// The question: `login USER PASSWORD`, `identity`, `size`, `retrieve`, `alarms`, `enter IN OUT` or
    /// `delete IN OUT`.
    pub question: String,
    /// Commands as they were sent.
    pub commands: Vec<String>,
    /// Answers as they came, one for each command of TL1, and one in all in SCPI.
    pub answers: Vec<String>,
    /// Lines that follow from them.
    pub found: Vec<String>,
}

/// A dialogue with a switch.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Dialogue {
    /// Notes at its beginning, without their marks.
    pub notes: Vec<String>,
    /// Name of the dialect and the number of ports, where a note says so.
    pub dialect: Option<(String, u32)>,
    /// The questions in their order.
    pub turns: Vec<Turn>,
}

/// A dialogue that cannot be read, or does not lead to what it says.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DialogueError {
    /// A line has no mark, or stands where it cannot.
    #[error(
        "line {0} of the dialogue is neither a note (#), a question (?), a command (>), an answer (<) nor a result (=)"
    )]
    Line(usize),
    /// A question is none.
    #[error(
        "the dialogue asks '{0}', which is none of login, identity, size, retrieve, alarms, enter and delete"
    )]
    Question(String),
    /// The driver sends something else.
    #[error("the driver sends '{sent}' where the dialogue has '{recorded}'")]
    Sent {
        /// Text that the driver sends.
        sent: String,
        /// Text in the dialogue.
        recorded: String,
    },
    /// An answer has no end.
    #[error("the answer to '{0}' is not whole")]
    NoEnd(String),
    /// An answer is in no words of the dialect.
    #[error("the answer to '{question}' has '{line}', which is none of the dialect {dialect}")]
    Unread {
        /// The question.
        question: String,
        /// Line of the answer.
        line: String,
        /// The dialect.
        dialect: &'static str,
    },
    /// The driver finds something else.
    #[error("the driver finds {found:?} in the answer to '{question}' where the dialogue says {recorded:?}")]
    Found {
        /// The question.
        question: String,
        /// Lines that the driver finds.
        found: Vec<String>,
        /// Lines in the dialogue.
        recorded: Vec<String>,
    },
    /// It names no dialect, and none was given.
    #[error("the dialogue does not say its dialect: begin it with '# dialect NAME, N ports'")]
    NoDialect,
    /// It names one that there is not.
    #[error(transparent)]
    Dialect(#[from] UnknownDialect),
}

impl Dialogue {
    /// Reads a dialogue.
    ///
    /// # Errors
    /// A line is none of a dialogue.
    pub fn read(text: &str) -> Result<Self, DialogueError> {
        let mut dialogue = Dialogue::default();
        let mut lines = text.lines().zip(1..);
        while let Some((line, number)) = lines.next() {
            let wrong = || DialogueError::Line(number);
            let (mark, rest) = line.split_at_checked(1).ok_or_else(wrong)?;
            match (mark, dialogue.turns.last_mut()) {
                ("#", _) => {
                    if let Some((name, ports)) = line.strip_prefix(DIALECT).and_then(|of| of.split_once(", "))
                    {
                        let ports = ports.strip_suffix(" ports").and_then(|ports| ports.parse().ok());
                        dialogue.dialect = Some((name.to_string(), ports.ok_or_else(wrong)?));
                    } else {
                        dialogue.notes.push(rest.trim().to_string());
                    }
                }
                ("?", _) => {
                    dialogue.turns.push(Turn { question: rest.trim().to_string(), ..Turn::default() });
                }
                (">", Some(turn)) => turn.commands.push(rest.trim().to_string()),
                ("=", Some(turn)) => turn.found.push(rest.trim().to_string()),
                ("<", Some(turn)) => {
                    let answer = lines.by_ref().map(|(line, _)| line).take_while(|line| *line != "<.");
                    turn.answers.push(answer.collect::<Vec<_>>().join("\r\n") + "\r\n");
                }
                _ => return Err(wrong()),
            }
        }
        Ok(dialogue)
    }

    /// The text of a file with this dialogue.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        for note in &self.notes {
            let _ = writeln!(text, "# {note}");
        }
        if let Some((name, ports)) = &self.dialect {
            let _ = writeln!(text, "{DIALECT}{name}, {ports} ports");
        }
        for turn in &self.turns {
            let _ = writeln!(text, "? {}", turn.question);
            // In SCPI several lines have one answer.
            let mut answers = turn.answers.iter();
            let each = turn.commands.len() == turn.answers.len();
            for command in &turn.commands {
                let _ = writeln!(text, "> {command}");
                if let Some(answer) = answers.next_if_some(each) {
                    text += &marked(answer);
                }
            }
            answers.for_each(|answer| text += &marked(answer));
            for found in &turn.found {
                let _ = writeln!(text, "= {found}");
            }
        }
        text
    }

    /// The dialect that it names.
    ///
    /// # Errors
    /// It names none, or one that there is not.
    pub fn of_dialect(&self) -> Result<Arc<dyn Dialect>, DialogueError> {
        let (name, ports) = self.dialect.as_ref().ok_or(DialogueError::NoDialect)?;
        Ok(dialect(name, *ports)?)
    }

    /// Plays it to the driver.
    ///
    /// # Errors
    /// The driver sends something else, or finds something else in the answers.
    pub fn play(&self, dialect: &dyn Dialect) -> Result<(), DialogueError> {
        for turn in &self.turns {
            let commands = commands(dialect, &turn.question)?;
            let result = hold(dialect, &commands, turn)?;
            let found = found(dialect, &turn.question, result)?;
            if found != turn.found {
                let (question, recorded) = (turn.question.clone(), turn.found.clone());
                return Err(DialogueError::Found { question, found, recorded });
            }
        }
        Ok(())
    }
}

/// Takes the next one if it is meant.
trait NextIf: Iterator {
    fn next_if_some(&mut self, is_meant: bool) -> Option<Self::Item> {
        if is_meant { self.next() } else { None }
    }
}

impl<I: Iterator> NextIf for I {}

fn marked(answer: &str) -> String {
    let lines = answer.trim_end_matches(['\r', '\n']).split('\n').map(|line| line.trim_end_matches('\r'));
    let mut text = String::from("<\n");
    for line in lines {
        text += line;
        text.push('\n');
    }
    text + "<.\n"
}

/// Returns the circuit of a question's words.
fn circuit(dialect: &dyn Dialect, words: &[&str]) -> Option<Circuit> {
    let [from, to] = words else { return None };
    Some(Circuit { from: dialect.port(from)?, to: dialect.port(to)? })
}

/// The driver's commands for a question.
pub(super) fn commands(dialect: &dyn Dialect, question: &str) -> Result<Vec<Command>, DialogueError> {
    let words: Vec<&str> = question.split(' ').collect();
    let (operation, words) = words.split_first().unwrap_or((&"", &[]));
    let login = || match words {
        [user, password] => Some(Login { user: (*user).into(), password: (*password).into() }),
        _ => None,
    };
    let commands = match *operation {
        "login" => dialect.login(login().as_ref()).map(|command| vec![command]),
        "identity" => dialect.identity().map(|command| vec![command]),
        "size" => dialect.size().map(|command| vec![command]),
        "retrieve" => Some(vec![dialect.retrieve()]),
        "alarms" => dialect.alarms().map(|command| vec![command]),
        "enter" => circuit(dialect, words).map(|circuit| dialect.enter(circuit)),
        "delete" => circuit(dialect, words).map(|circuit| dialect.delete(circuit)),
        _ => None,
    };
    commands.ok_or_else(|| DialogueError::Question(question.to_string()))
}

/// Runs the machine on these commands and answers.
fn hold(
    dialect: &dyn Dialect,
    commands: &[Command],
    turn: &Turn,
) -> Result<Result<Answer, Failure>, DialogueError> {
    let no_end = || DialogueError::NoEnd(turn.question.clone());
    let differs = |sent: String, recorded: String| match sent == recorded {
        true => Ok(()),
        false => Err(DialogueError::Sent { sent, recorded }),
    };
    if dialect.framing() == Framing::Scpi {
        let mut session = scpi::Session::new();
        session.request(commands.first().ok_or_else(no_end)?);
        let sent = String::from_utf8_lossy(&session.outgoing()).into_owned();
        differs(sent.lines().collect::<Vec<_>>().join("\n"), turn.commands.join("\n"))?;
        for answer in &turn.answers {
            session.receive(answer.as_bytes()).map_err(|_| no_end())?;
        }
        return session.poll().map(|(_, result)| result).ok_or_else(no_end);
    }
    let mut session = tl1::Session::new();
    let mut last = None;
    for ((command, recorded), answer) in commands.iter().zip(&turn.commands).zip(&turn.answers) {
        let Some(tag) = session.request(command) else { return Err(no_end()) };
        let tagged = |text: &str| text.replace("{tag}", &tag.to_string());
        differs(String::from_utf8_lossy(&session.outgoing()).into_owned(), tagged(recorded))?;
        session.receive(tagged(answer).as_bytes()).map_err(|_| no_end())?;
        last = None;
        while let Some(event) = session.poll() {
            // What it says of its own accord may stand between.
            if let Event::Done { result, .. } = event {
                last = Some(result);
            }
        }
    }
    last.ok_or_else(no_end)
}

/// Lines that follow from the last answer to a question.
pub(super) fn found(
    dialect: &dyn Dialect,
    question: &str,
    result: Result<Answer, Failure>,
) -> Result<Vec<String>, DialogueError> {
    let operation = question.split(' ').next().unwrap_or_default();
    let unread = |line: &str| DialogueError::Unread {
        question: question.to_string(),
        line: said(line),
        dialect: dialect.name(),
    };
    Ok(match (operation, result) {
        (_, Err(Failure { code, text })) => {
            vec![format!("denied {code} {text}").trim_end().to_string()]
        }
        ("retrieve", Ok(Answer { lines, .. })) => {
            let mut held: Vec<Held> = Vec::new();
            for line in &lines {
                held.extend(dialect.circuits(line).ok_or_else(|| unread(line))?);
            }
            held.sort_unstable();
            let fault =
                |held: &Held| held.fault.as_ref().map(|fault| format!(" fault={fault}")).unwrap_or_default();
            held.iter().map(|held| dialect.circuit_name(held.circuit) + &fault(held)).collect()
        }
        ("identity" | "alarms", Ok(answer)) => answer.lines,
        ("size", Ok(answer)) => {
            let size = dialect.read_size(&answer.lines);
            let (inputs, outputs) = size.ok_or_else(|| unread(&answer.lines.join(" ")))?;
            vec![format!("{inputs} {outputs}")]
        }
        (_, Ok(_)) => vec!["done".into()],
    })
}
