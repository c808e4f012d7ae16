//! Recording of a switch's true answers, as a dialogue that tests play to the driver.
//!
//! Nothing is changed at the switch unless circuits to make and take down again are given. The password is in
//! none of what is kept; names, serial numbers and circuits are.

use super::dialogue::{self, Dialogue, DialogueError, PASSWORD, Turn};
use super::{Circuit, Command, Dialect, Framing, Login, UnknownDialect, dialect};
use crate::devices::telnet::Telnet;
use crate::devices::tl1::{self, Answer, Event, Failure};
use crate::devices::{said, scpi};
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The longest answer that is kept, in bytes.
const ANSWER_LEN_MAX: usize = 4 << 20;
const BUFFER_LEN: usize = 16 << 10;

/// Options of a recording.
#[derive(Clone, Debug)]
pub struct RecordOptions {
    /// The switch.
    pub address: SocketAddr,
    /// Name of its dialect.
    pub dialect: String,
    /// Number of its ports; none where it can be asked, or does not matter.
    pub ports: Option<u32>,
    /// The login, if the switch asks for one.
    pub login: Option<Login>,
    /// Circuits that are made and taken down again, by the switch's names of their ports.
    pub changes: Vec<(String, String)>,
    /// Time limit for an answer.
    pub timeout: Duration,
}

/// A recording that came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// No connection could be made.
    #[error("there is no circuit switch at {address}: {reason}")]
    Unreachable {
        /// Address of the switch.
        address: SocketAddr,
        /// Reason for the failure.
        reason: io::Error,
    },
    /// It does not answer.
    #[error(
        "the circuit switch did not answer {command} within {millis} ms in words of the dialect {dialect}: is that its dialect?"
    )]
    NoAnswer {
        /// The command.
        command: String,
        /// Time limit that has passed.
        millis: u128,
        /// Name of the dialect.
        dialect: &'static str,
    },
    /// It closed the connection.
    #[error("the circuit switch closed the connection at {command}: {reason}")]
    HungUp {
        /// The command.
        command: String,
        /// Reason for the end.
        reason: String,
    },
    /// It answers in no words of the dialect.
    #[error("the circuit switch answers {command} with '{line}', which is none of the dialect {dialect}")]
    Nonsense {
        /// The command.
        command: String,
        /// Beginning of its answer.
        line: String,
        /// Name of the dialect.
        dialect: &'static str,
    },
    /// It does not let us in.
    #[error("the circuit switch refuses the login of '{user}': {reason}")]
    Login {
        /// The user that was refused.
        user: String,
        /// Reason that the switch gives.
        reason: String,
    },
    /// It does not list its circuits.
    #[error("the circuit switch does not list its circuits ({reason}): does it ask for a login?")]
    Silent {
        /// Reason that the switch gives.
        reason: String,
    },
    /// There is no such port.
    #[error("'{name}' is no port of the dialect {dialect}, which calls them as in {example}")]
    Port {
        /// Name that was given.
        name: String,
        /// Name of the dialect.
        dialect: &'static str,
        /// Name of a port.
        example: String,
    },
    /// A circuit is there already that would be in the way.
    #[error("the circuit switch has the circuit {held}: record a change only between ports that are dark")]
    Taken {
        /// The circuit.
        held: String,
    },
    /// A change that the switch made was not taken back.
    #[error("the circuit switch made the circuit {circuit} and does not take it down: {reason}")]
    Stays {
        /// The circuit.
        circuit: String,
        /// Reason that the switch gives.
        reason: String,
    },
    /// The driver does not read the recording as it read the switch.
    #[error("what was recorded does not lead to what the driver found, so it is not kept: {0}")]
    Differs(DialogueError),
    /// There is no such dialect.
    #[error(transparent)]
    Dialect(#[from] UnknownDialect),
    /// The question is none of the dialect.
    #[error(transparent)]
    Question(DialogueError),
}

/// The machine of the dialect's language.
enum Machine {
    Tl1(tl1::Session),
    Scpi(scpi::Session),
}

impl Machine {
    fn request(&mut self, command: &Command) -> Option<u32> {
        match self {
            Machine::Tl1(session) => session.request(command),
            Machine::Scpi(session) => session.request(command),
        }
    }

    fn outgoing(&mut self) -> Vec<u8> {
        match self {
            Machine::Tl1(session) => session.outgoing(),
            Machine::Scpi(session) => session.outgoing(),
        }
    }

    fn receive(&mut self, bytes: &[u8]) -> Result<(), String> {
        match self {
            Machine::Tl1(session) => session.receive(bytes).map_err(|error| error.to_string()),
            Machine::Scpi(session) => session.receive(bytes).map_err(|error| error.to_string()),
        }
    }

    /// The next answer; what a switch says of its own accord is passed over.
    fn poll(&mut self) -> Option<(u32, Result<Answer, Failure>)> {
        match self {
            Machine::Scpi(session) => session.poll(),
            Machine::Tl1(session) => loop {
                if let Event::Done { tag, result } = session.poll()? {
                    return Some((tag, result));
                }
            },
        }
    }
}

/// A conversation that is kept.
struct Talk {
    stream: TcpStream,
    machine: Machine,
    dialect: Arc<dyn Dialect>,
    telnet: Telnet,
    timeout: Duration,
    password: Option<String>,
    turns: Vec<Turn>,
}

/// Asks a switch what there is to be asked, and makes and takes down the circuits that are given.
///
/// # Errors
/// There is no switch, it speaks another dialect, or a change would touch a circuit that it has.
pub fn record(options: &RecordOptions) -> Result<Dialogue, RecordError> {
    let RecordOptions { address, timeout, .. } = options;
    let mut dialect_now = dialect(&options.dialect, options.ports.unwrap_or(0))?;
    // Before the switch hears a word.
    let changes: Vec<_> =
        options.changes.iter().map(|names| change(&*dialect_now, names)).collect::<Result<_, _>>()?;
    let unreachable = |reason| RecordError::Unreachable { address: *address, reason };
    let stream = TcpStream::connect_timeout(address, *timeout).map_err(unreachable)?;
    stream.set_nodelay(true).map_err(unreachable)?;
    let machine = match dialect_now.framing() {
        Framing::Tl1 => Machine::Tl1(tl1::Session::new()),
        Framing::Scpi => Machine::Scpi(scpi::Session::new()),
    };
    let password = options.login.as_ref().map(|login| login.password.clone());
    let password = password.filter(|password| !password.is_empty());
    let dialect_first = Arc::clone(&dialect_now);
    let mut talk = Talk {
        stream,
        machine,
        dialect: dialect_first,
        telnet: Telnet::new(),
        timeout: *timeout,
        password,
        turns: Vec::new(),
    };
    talk.log_in(options.login.as_ref())?;
    for question in ["identity", "size"] {
        if dialogue::commands(&*dialect_now, question).is_ok() {
            let found = talk.ask(question)?;
            let inputs = found.first().and_then(|size| size.split(' ').next()?.parse().ok());
            if let (Some(inputs), "size", None) = (inputs, question, options.ports) {
                dialect_now = dialect(&options.dialect, inputs)?;
                talk.dialect = Arc::clone(&dialect_now);
            }
        }
    }
    let held = talk.ask("retrieve")?;
    if let Some(reason) = held.first().and_then(|line| line.strip_prefix("denied ")) {
        return Err(RecordError::Silent { reason: said(reason) });
    }
    if dialect_now.alarms().is_some() {
        talk.ask("alarms")?;
    }
    for (names, circuit) in options.changes.iter().zip(changes) {
        talk.change(names, circuit, &held)?;
    }
    let ports = options.ports.or_else(|| ports_of(&talk.turns)).unwrap_or(0);
    let dialogue = Dialogue {
        notes: vec![
            "Recorded from a switch with `polycast bench ocs-record`; the password is left out.".into(),
        ],
        dialect: Some((options.dialect.clone(), ports)),
        turns: talk.turns,
    };
    // What is kept is what was found, also without the password.
    let again = Dialogue::read(&dialogue.text()).and_then(|again| again.play(&*dialect_now));
    again.map_err(RecordError::Differs)?;
    Ok(dialogue)
}

fn ports_of(turns: &[Turn]) -> Option<u32> {
    let size = turns.iter().find(|turn| turn.question == "size")?;
    size.found.first()?.split(' ').next()?.parse().ok()
}

fn change(dialect: &dyn Dialect, (from, to): &(String, String)) -> Result<Circuit, RecordError> {
    let port = |name: &String| {
        let example = dialect.port_name(dialect.nth_port(0));
        let unknown = || RecordError::Port { name: said(name), dialect: dialect.name(), example };
        dialect.port(name).ok_or_else(unknown)
    };
    Ok(Circuit { from: port(from)?, to: port(to)? })
}

impl Talk {
    fn log_in(&mut self, login: Option<&Login>) -> Result<(), RecordError> {
        let Some(command) = self.dialect.login(login) else { return Ok(()) };
        let shown = login.map(|login| Login { password: PASSWORD.into(), ..login.clone() });
        let question =
            shown.as_ref().map_or("login".into(), |shown| format!("login {} {PASSWORD}", shown.user));
        let mut turn = Turn { question, ..Turn::default() };
        let result = self.exchange(&command, self.dialect.login(shown.as_ref()).as_ref(), &mut turn)?;
        if let Err(Failure { code, text }) = result {
            let Some(user) = login.map(|login| login.user.clone()) else {
                return Err(self.nonsense(command.describe(), format!("{code} {text}").trim().as_bytes()));
            };
            return Err(RecordError::Login {
                user,
                reason: said(&self.without_secret(&format!("{text} ({code})"))),
            });
        }
        turn.found = vec!["done".into()];
        self.turns.push(turn);
        Ok(())
    }

    /// Asks a question, and keeps it; gives what follows.
    fn ask(&mut self, question: &str) -> Result<Vec<String>, RecordError> {
        let commands = dialogue::commands(&*self.dialect, question).map_err(RecordError::Question)?;
        let mut turn = Turn { question: question.to_string(), ..Turn::default() };
        let mut last = None;
        for command in &commands {
            let result = self.exchange(command, None, &mut turn)?;
            let denied = result.is_err();
            last = Some(result);
            if denied {
                break;
            }
        }
        let Some(result) = last else { return Ok(Vec::new()) };
        let found = dialogue::found(&*self.dialect, question, result);
        let found = found.map_err(|error| match error {
            DialogueError::Unread { line, dialect, .. } => {
                RecordError::Nonsense { command: question.to_string(), line, dialect }
            }
            other => RecordError::Question(other),
        })?;
        turn.found = found.iter().map(|line| self.without_secret(line).trim().to_string()).collect();
        self.turns.push(turn);
        Ok(found)
    }

    /// Makes a circuit between ports that are dark, and takes it down again.
    fn change(
        &mut self,
        (from, to): &(String, String),
        circuit: Circuit,
        held: &[String],
    ) -> Result<(), RecordError> {
        let name = self.dialect.circuit_name(circuit);
        let ends = |circuit: &str| -> Vec<String> {
            let circuit = circuit.split(' ').next().unwrap_or_default();
            circuit.split([',', '>']).map(str::to_string).collect()
        };
        let (own, uses) = (ends(&name), |other: &&String| ends(other));
        if let Some(taken) = held.iter().find(|other| uses(other).iter().any(|end| own.contains(end))) {
            return Err(RecordError::Taken { held: said(taken) });
        }
        let entered = self.ask(&format!("enter {from} {to}"))?;
        let listed = self.ask("retrieve")?;
        let is_there = listed.iter().any(|line| line.split(' ').next() == Some(name.as_str()));
        if entered != ["done"] && !is_there {
            return Ok(());
        }
        let deleted = self.ask(&format!("delete {from} {to}"))?;
        let left = self.ask("retrieve")?;
        match left.iter().any(|line| line.split(' ').next() == Some(name.as_str())) {
            true => Err(RecordError::Stays { circuit: name, reason: said(&deleted.join(" ")) }),
            false => Ok(()),
        }
    }

    /// Sends a command, kept as `shown`, and waits for its answer.
    fn exchange(
        &mut self,
        command: &Command,
        shown: Option<&Command>,
        turn: &mut Turn,
    ) -> Result<Result<Answer, Failure>, RecordError> {
        let what = command.describe().to_string();
        let hung_up = |reason: &dyn std::fmt::Display| RecordError::HungUp {
            command: what.clone(),
            reason: reason.to_string(),
        };
        let Some(number) = self.machine.request(command) else { return Err(hung_up(&"too many commands")) };
        let sent = self.machine.outgoing();
        self.stream.write_all(&sent).map_err(|error| hung_up(&error))?;
        let (begun, mut wire, mut buffer) = (Instant::now(), Vec::new(), vec![0; BUFFER_LEN]);
        let result = loop {
            if let Some((_, result)) = self.machine.poll().filter(|(answered, _)| *answered == number) {
                break result;
            }
            let left = self.timeout.saturating_sub(begun.elapsed());
            let len = self.read(&mut buffer, left).map_err(|error| hung_up(&error))?;
            match len {
                None => return Err(self.no_answer(&what, &wire)),
                Some(0) => return Err(hung_up(&"it has said nothing more")),
                Some(len) => wire.extend_from_slice(&buffer[..len]),
            }
            let fresh = &wire[wire.len() - len.unwrap_or(0)..];
            let received = self.machine.receive(fresh);
            if received.is_err() || wire.len() > ANSWER_LEN_MAX {
                return Err(self.nonsense(&what, &wire));
            }
            // Telnet's questions have answers of their own.
            let answers = self.machine.outgoing();
            self.stream.write_all(&answers).map_err(|error| hung_up(&error))?;
        };
        self.keep(number, (&sent, shown.unwrap_or(command)), &wire, turn);
        Ok(result)
    }

    /// Reads what comes within a time; none if that passes.
    fn read(&mut self, buffer: &mut [u8], left: Duration) -> io::Result<Option<usize>> {
        if left.is_zero() {
            return Ok(None);
        }
        self.stream.set_read_timeout(Some(left))?;
        match self.stream.read(buffer) {
            Ok(len) => Ok(Some(len)),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                Ok(None)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => self.read(buffer, left),
            Err(error) => Err(error),
        }
    }

    /// Keeps a command and its answer, without what is secret and without the tag.
    fn keep(&mut self, number: u32, (sent, shown): (&[u8], &Command), wire: &[u8], turn: &mut Turn) {
        let (mut text, mut answers) = (Vec::new(), Vec::new());
        self.telnet.receive(wire, &mut text, &mut answers);
        let answer = self.without_secret(&String::from_utf8_lossy(&text));
        if self.dialect.framing() == Framing::Scpi {
            let sent = String::from_utf8_lossy(sent);
            turn.commands.extend(sent.lines().map(str::to_string));
            turn.answers.push(lines_of(&answer, |line| line.to_string()));
            return;
        }
        let (tag, command) = (number.to_string(), shown.emit(number));
        turn.commands.push(shown.with_tag("{tag}"));
        let command = command.trim_end_matches(';').to_string();
        turn.answers.push(lines_of(&answer, |line| {
            let mut words = line.split_whitespace();
            if words.next() == Some("M") && words.next() == Some(tag.as_str()) {
                return line.replacen(&tag, "{tag}", 1);
            }
            // Some repeat what they were sent.
            let at = line.to_ascii_lowercase().find(&command.to_ascii_lowercase());
            match at.and_then(|at| Some((at, line.get(at..at + command.len())?))) {
                Some((at, echo)) => {
                    let tag_at = echo.rfind(&format!(":{tag}")).unwrap_or(echo.len());
                    let (before, after) = line.split_at(at + tag_at);
                    format!("{before}{}", after.replacen(&format!(":{tag}"), ":{tag}", 1))
                }
                None => line.to_string(),
            }
        }));
    }

    fn without_secret(&self, text: &str) -> String {
        match &self.password {
            Some(password) => text.replace(password.as_str(), PASSWORD),
            None => text.to_string(),
        }
    }

    fn no_answer(&self, command: &str, wire: &[u8]) -> RecordError {
        if !wire.is_empty() {
            return self.nonsense(command, wire);
        }
        let (command, millis) = (command.to_string(), self.timeout.as_millis());
        RecordError::NoAnswer { command, millis, dialect: self.dialect.name() }
    }

    fn nonsense(&self, command: &str, wire: &[u8]) -> RecordError {
        let line = said(&self.without_secret(&String::from_utf8_lossy(wire)));
        RecordError::Nonsense { command: command.to_string(), line, dialect: self.dialect.name() }
    }
}

/// The lines of an answer, each changed, without those that are empty around it.
fn lines_of(answer: &str, change: impl Fn(&str) -> String) -> String {
    let lines: Vec<String> = answer
        .trim_matches(['\r', '\n'])
        .split('\n')
        .map(|line| change(line.trim_end_matches('\r')))
        .collect();
    lines.join("\r\n") + "\r\n"
}
