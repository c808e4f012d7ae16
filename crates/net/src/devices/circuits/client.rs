//! A circuit switch on a socket: the connection is kept, and made again with its login after a loss, and many
//! callers have commands under way at the same time.

use super::{Circuit, Command, Dialect, Framing, Held};
use crate::devices::conversation::{
    Ask, Asker, Broken, Codec, Conversation, Heard, NoAnswer, Stream, Times, seal, tcp,
};
use crate::devices::tl1::{self, Answer, Event, Failure, Severity};
use crate::devices::{Pauses, said, scpi};
use crate::tls::Security;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{broadcast, mpsc, watch};
use tokio::time::{Instant, sleep, timeout};

/// Limit on the standing alarms that are returned.
const ALARMS_MAX: usize = 1_000;
/// Reports that a slow listener may be behind by.
const REPORTS_MAX: usize = 256;

/// The user as whom we log in.
#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    /// The user's name.
    pub user: String,
    /// The password.
    pub password: String,
}

impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Login").field("user", &self.user).finish_non_exhaustive()
    }
}

/// Options of a connection to a circuit switch.
#[derive(Clone, Debug)]
pub struct CircuitOptions {
    /// Its dialect.
    pub dialect: Arc<dyn Dialect>,
    /// The login, if the switch asks for one.
    pub login: Option<Login>,
    /// Security of the connection, if it is sealed.
    pub security: Option<Security>,
    /// Time limit for connecting and logging in together.
    pub connect_timeout: Duration,
    /// Time limit for a command.
    pub command_timeout: Duration,
    /// After this long without a word the switch is asked whether it lives.
    pub keepalive: Duration,
    /// Pause before the first new connection after a loss; it doubles up to `retry_most`, and is this one
    /// again after a connection that has lasted so long.
    pub retry_first: Duration,
    /// The longest pause between attempts to connect.
    pub retry_most: Duration,
}

impl CircuitOptions {
    /// A switch of this dialect, and the usual times.
    #[must_use]
    pub fn new(dialect: Arc<dyn Dialect>) -> Self {
        CircuitOptions {
            dialect,
            login: None,
            security: None,
            connect_timeout: Duration::from_secs(3),
            command_timeout: Duration::from_secs(5),
            keepalive: Duration::from_secs(10),
            retry_first: Duration::from_millis(20),
            retry_most: Duration::from_secs(1),
        }
    }
}

/// Reason that a command was not done, or is not known to have been done.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CircuitError {
    /// No connection could be made.
    #[error("the circuit switch at {address} cannot be reached: {reason}")]
    Unreachable {
        /// Address of the switch.
        address: SocketAddr,
        /// Reason for the failure.
        reason: String,
    },
    /// It does not let us in.
    #[error("the circuit switch at {address} refuses the login of '{user}': {reason}")]
    Login {
        /// Address of the switch.
        address: SocketAddr,
        /// The user that was refused.
        user: String,
        /// Reason that the switch gives.
        reason: String,
    },
    /// It refused a command; nothing has changed.
    #[error("the circuit switch refuses {command}: {text} ({code})")]
    Denied {
        /// The command.
        command: String,
        /// TL1's error code.
        code: String,
        /// Text of the switch's answer.
        text: String,
    },
    /// No answer in time: whether it was done is not known.
    #[error("the circuit switch did not answer {command} within {millis} ms: retrieve the circuits to see")]
    TimedOut {
        /// The command.
        command: String,
        /// Time limit that has passed.
        millis: u64,
    },
    /// The connection went while the command was under way: whether it was done is not known.
    #[error("the connection to the circuit switch was lost during {command}: retrieve the circuits to see")]
    Lost {
        /// The command.
        command: String,
    },
    /// There is no connection now; the command was not sent.
    #[error("there is no connection to the circuit switch at {address} now; it is being made again")]
    Disconnected {
        /// Address of the switch.
        address: SocketAddr,
    },
    /// More commands under way than anyone needs.
    #[error("too many commands are under way at the circuit switch: wait for answers")]
    Busy,
    /// An answer that cannot be read.
    #[error(
        "the circuit switch answers '{line}' where {wanted} of the dialect {dialect} was expected: is that its dialect?"
    )]
    Answer {
        /// The line.
        line: String,
        /// Item that was expected.
        wanted: &'static str,
        /// In which dialect.
        dialect: &'static str,
    },
}

/// State of the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Link {
    /// There is one; the number counts connections from 1.
    Up(u64),
    /// There is none; a new one is being made.
    Down,
}

/// Something that a switch said of its own accord.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// Severity of the report.
    pub severity: Severity,
    /// Type of the report, such as `REPT ALM CRS`.
    pub verb: String,
    /// The details.
    pub lines: Vec<String>,
}

/// The machine of a dialect's language.
#[derive(Clone, Debug)]
pub(super) enum Language {
    Tl1(tl1::Session, Command),
    Scpi(scpi::Session, Command),
}

impl Language {
    fn new(dialect: &dyn Dialect) -> Self {
        match dialect.framing() {
            Framing::Tl1 => Language::Tl1(tl1::Session::new(), dialect.probe()),
            Framing::Scpi => Language::Scpi(scpi::Session::new(), dialect.probe()),
        }
    }
}

impl Codec for Language {
    type Question = Command;
    type Answer = Result<Answer, Failure>;
    type Word = Report;
    type Fault = String;

    fn ask(&mut self, command: &Command) -> Option<u32> {
        match self {
            Language::Tl1(session, _) => session.request(command),
            Language::Scpi(session, _) => session.request(command),
        }
    }

    fn probe(&mut self) -> Option<u32> {
        match self {
            Language::Tl1(session, probe) => session.request(probe),
            Language::Scpi(session, probe) => session.request(probe),
        }
    }

    fn forget(&mut self, number: u32) {
        match self {
            Language::Tl1(session, _) => session.forget(number),
            Language::Scpi(session, _) => session.forget(number),
        }
    }

    fn receive(&mut self, bytes: &[u8]) -> Result<(), String> {
        match self {
            Language::Tl1(session, _) => session.receive(bytes).map_err(|error| error.to_string()),
            Language::Scpi(session, _) => session.receive(bytes).map_err(|error| error.to_string()),
        }
    }

    fn outgoing(&mut self) -> Vec<u8> {
        match self {
            Language::Tl1(session, _) => session.outgoing(),
            Language::Scpi(session, _) => session.outgoing(),
        }
    }

    fn poll(&mut self) -> Option<Heard<Result<Answer, Failure>, Report>> {
        Some(match self {
            Language::Tl1(session, _) => match session.poll()? {
                Event::Done { tag, result } => Heard::Answer(tag, result),
                Event::Report { severity, verb, lines } => Heard::Word(Report { severity, verb, lines }),
            },
            Language::Scpi(session, _) => {
                let (number, result) = session.poll()?;
                Heard::Answer(number, result)
            }
        })
    }
}

/// A circuit switch. Clones share the connection; the last one's end closes it.
#[derive(Clone, Debug)]
pub struct CircuitClient {
    address: SocketAddr,
    dialect: Arc<dyn Dialect>,
    asker: Asker<Language>,
    reports: broadcast::Sender<Report>,
    link: watch::Receiver<Link>,
}

impl CircuitClient {
    /// Connects and logs in. Needs a tokio runtime around it.
    ///
    /// # Errors
    /// The switch cannot be reached or refuses the login. Later losses are mended without a word.
    pub async fn connect(address: SocketAddr, options: CircuitOptions) -> Result<Self, CircuitError> {
        let (asker, asks) = Asker::new();
        let (reports, _) = broadcast::channel(REPORTS_MAX);
        let conversation = open(address, &options).await?;
        let (up, link) = watch::channel(Link::Up(1));
        let dialect = Arc::clone(&options.dialect);
        let keeper = Keeper { address, options, asks, reports: reports.clone(), link: up, count: 1 };
        tokio::spawn(keeper.run(conversation));
        Ok(CircuitClient { address, dialect, asker, reports, link })
    }

    /// The dialect in which it is spoken to.
    #[must_use]
    pub fn dialect(&self) -> &dyn Dialect {
        &*self.dialect
    }

    /// Makes a circuit.
    ///
    /// # Errors
    /// It was refused, or it is not known whether it was made.
    pub async fn enter(&self, circuit: Circuit) -> Result<(), CircuitError> {
        let commands = self.dialect.enter(circuit);
        let several = commands.len() > 1;
        for (at, command) in commands.into_iter().enumerate() {
            let refused = self.ask(command).await.err();
            // What was noted and cannot be lit must not stay in the way.
            if several && at > 0 && matches!(refused, Some(CircuitError::Denied { .. })) {
                for command in self.dialect.delete(circuit) {
                    let _ = self.ask(command).await;
                }
            }
            if let Some(error) = refused {
                return Err(error);
            }
        }
        Ok(())
    }

    /// Takes a circuit down.
    ///
    /// # Errors
    /// It was refused, or it is not known whether it was taken down.
    pub async fn delete(&self, circuit: Circuit) -> Result<(), CircuitError> {
        let mut result = Ok(());
        // Where it is put out and then forgotten, the second counts: it may have been dark already.
        for command in self.dialect.delete(circuit) {
            result = self.ask(command).await.map(drop);
        }
        result
    }

    /// The circuits that the switch says it has, in rising order.
    ///
    /// # Errors
    /// The switch does not answer, or not in words that we know.
    pub async fn retrieve(&self) -> Result<Vec<Held>, CircuitError> {
        let answer = self.ask(self.dialect.retrieve()).await?;
        let mut circuits = Vec::new();
        for line in answer.lines {
            let Some(held) = self.dialect.circuits(&line) else {
                return Err(self.unread(&line, "a circuit"));
            };
            let shown = |held: Held| Held { fault: held.fault.as_deref().map(said), ..held };
            circuits.extend(held.into_iter().map(shown));
        }
        circuits.sort_unstable();
        Ok(circuits)
    }

    /// The alarms that stand, one line each in the switch's words; none where it has no word for them.
    ///
    /// # Errors
    /// The switch does not answer.
    pub async fn alarms(&self) -> Result<Vec<String>, CircuitError> {
        match self.dialect.alarms() {
            Some(command) => {
                let lines = self.ask(command).await?.lines;
                Ok(lines.iter().take(ALARMS_MAX).map(|line| said(line)).collect())
            }
            None => Ok(Vec::new()),
        }
    }

    /// Returns the identity that the switch reports, where it can be asked.
    ///
    /// # Errors
    /// The switch does not answer.
    pub async fn identity(&self) -> Result<Option<String>, CircuitError> {
        match self.dialect.identity() {
            Some(command) => Ok(self.ask(command).await?.lines.first().map(|line| said(line))),
            None => Ok(None),
        }
    }

    /// Returns the number of fibres where light enters and of those where it leaves, where the switch can be
    /// asked.
    ///
    /// # Errors
    /// The switch does not answer, or not in a form that we know.
    pub async fn size(&self) -> Result<Option<(u32, u32)>, CircuitError> {
        let Some(command) = self.dialect.size() else { return Ok(None) };
        let lines = self.ask(command).await?.lines;
        let size = self.dialect.read_size(&lines);
        size.map(Some).ok_or_else(|| self.unread(&lines.join(" "), "a number of ports"))
    }

    fn unread(&self, line: &str, wanted: &'static str) -> CircuitError {
        CircuitError::Answer { line: said(line), wanted, dialect: self.dialect.name() }
    }

    async fn ask(&self, command: Command) -> Result<Answer, CircuitError> {
        let (address, words) = (self.address, command.describe().to_string());
        match self.asker.ask(command).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(Failure { code, text })) => Err(CircuitError::Denied { command: words, code, text }),
            Err(NoAnswer::Busy) => Err(CircuitError::Busy),
            Err(NoAnswer::Disconnected) => Err(CircuitError::Disconnected { address }),
            Err(NoAnswer::TimedOut(millis)) => Err(CircuitError::TimedOut { command: words, millis }),
            Err(NoAnswer::Lost) => Err(CircuitError::Lost { command: words }),
        }
    }

    /// Subscribes to what the switch reports of its own accord, from now on.
    #[must_use]
    pub fn reports(&self) -> broadcast::Receiver<Report> {
        self.reports.subscribe()
    }

    /// Returns the state of the connection, now and later. After a loss, compare [`CircuitClient::retrieve`]
    /// with what should be there.
    #[must_use]
    pub fn link(&self) -> watch::Receiver<Link> {
        self.link.clone()
    }
}

/// Connects and logs in.
async fn open(address: SocketAddr, options: &CircuitOptions) -> Result<Conversation<Language>, CircuitError> {
    let unreachable = |reason: String| CircuitError::Unreachable { address, reason };
    let opening = async {
        let stream = tcp(address).await.map_err(|error| unreachable(error.to_string()))?;
        let stream: Box<dyn Stream> = match &options.security {
            Some(security) => seal(stream, security).await.map_err(unreachable)?,
            None => Box::new(stream),
        };
        let mut conversation = Conversation::new(stream, Language::new(&*options.dialect));
        let login = options.login.as_ref();
        if let Some(command) = options.dialect.login(login) {
            let answer = log_in(&mut conversation, &command).await;
            answer.map_err(|broken| unreachable(broken.to_string()))?.map_err(|failure| {
                let reason = without_password(format!("{} ({})", failure.text, failure.code), login);
                let user = login.map(|login| login.user.clone()).unwrap_or_default();
                CircuitError::Login { address, user, reason }
            })?;
        }
        Ok(conversation)
    };
    let late = || unreachable(format!("no answer within {} ms", options.connect_timeout.as_millis()));
    timeout(options.connect_timeout, opening).await.unwrap_or_else(|_| Err(late()))
}

/// Removes the password from a switch's answer to a login, so that it may be logged: some repeat what they
/// were sent.
fn without_password(reason: String, login: Option<&Login>) -> String {
    match login.map(|login| login.password.as_str()) {
        Some(password) if !password.is_empty() => reason.replace(password, "***"),
        _ => reason,
    }
}

/// The login is the first question: no other answer can come.
async fn log_in(
    conversation: &mut Conversation<Language>,
    command: &Command,
) -> Result<<Language as Codec>::Answer, Broken> {
    let answer = |heard| match heard {
        Heard::Answer(_, answer) => Some(answer),
        Heard::Word(_) => None,
    };
    conversation.greet(Some(command), answer).await
}

/// Keeps the connection as long as there is a client.
struct Keeper {
    address: SocketAddr,
    options: CircuitOptions,
    asks: mpsc::Receiver<Ask<Language>>,
    reports: broadcast::Sender<Report>,
    link: watch::Sender<Link>,
    count: u64,
}

impl Keeper {
    async fn run(mut self, mut conversation: Conversation<Language>) {
        // Any word is a sign of life, and the answer to our own question comes as late as any other.
        let (answer, keepalive) = (self.options.command_timeout, self.options.keepalive);
        let times = Times { answer, keepalive, grace: answer };
        let mut pauses = Pauses::new(self.options.retry_first, self.options.retry_most);
        loop {
            let since = Instant::now();
            let reports = self.reports.clone();
            // There may be no listener.
            let report = |report| drop(reports.send(report));
            let Err(broken) = conversation.serve(&mut self.asks, times, report).await else { return };
            tracing::warn!(address = %self.address, %broken, "lost the connection to the circuit switch");
            self.link.send_replace(Link::Down);
            drop(conversation);
            pauses.ended(since.elapsed());
            match self.reconnect(&mut pauses).await {
                Some(next) => conversation = next,
                None => return,
            }
            self.count += 1;
            self.link.send_replace(Link::Up(self.count));
        }
    }

    /// A new connection, or `None` if no task of this process asks for one any more.
    async fn reconnect(&mut self, pauses: &mut Pauses) -> Option<Conversation<Language>> {
        loop {
            // A task that asks now hears at once that there is no connection.
            let pausing = sleep(pauses.take());
            tokio::pin!(pausing);
            loop {
                tokio::select! {
                    () = &mut pausing => break,
                    ask = self.asks.recv() => {
                        ask?.refuse(NoAnswer::Disconnected);
                    }
                }
            }
            match open(self.address, &self.options).await {
                Ok(conversation) => return Some(conversation),
                Err(error) => tracing::debug!(%error, "cannot connect yet"),
            }
        }
    }
}
