//! The TL1 client on a socket: it keeps the connection, logs in again after a loss, and lets many callers
//! have commands under way at the same time.

use super::session::{Answer, Event, Failure, Session};
use super::{Circuit, FrameError, Request, Severity};
use crate::devices::conversation::{Ask, Asker, Broken, Codec, Conversation, Heard, NoAnswer, Times, tcp};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::sync::{broadcast, mpsc, watch};
use tokio::time::{sleep, timeout};

/// Reports that a slow listener may be behind by.
const REPORTS_MAX: usize = 1_024;

/// Who we say we are.
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

/// How a switch is spoken to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tl1Options {
    /// The login, if the switch wants one.
    pub login: Option<Login>,
    /// How long connecting and logging in may take together.
    pub connect_timeout: Duration,
    /// How long a command may take.
    pub command_timeout: Duration,
    /// After this long without a word the switch is asked whether it lives.
    pub keepalive: Duration,
    /// Pause before the first new connection after a loss; it doubles up to `retry_most`.
    pub retry_first: Duration,
    /// The longest pause between attempts to connect.
    pub retry_most: Duration,
}

impl Default for Tl1Options {
    fn default() -> Self {
        Tl1Options {
            login: None,
            connect_timeout: Duration::from_secs(3),
            command_timeout: Duration::from_secs(5),
            keepalive: Duration::from_secs(10),
            retry_first: Duration::from_millis(20),
            retry_most: Duration::from_secs(1),
        }
    }
}

/// Why a command was not done, or is not known to have been done.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Tl1Error {
    /// No connection could be made.
    #[error("the circuit switch at {address} cannot be reached: {reason}")]
    Unreachable {
        /// Where.
        address: SocketAddr,
        /// Why.
        reason: String,
    },
    /// It does not let us in.
    #[error("the circuit switch at {address} refuses the login of '{user}': {reason}")]
    Login {
        /// Where.
        address: SocketAddr,
        /// Who was refused.
        user: String,
        /// Why.
        reason: String,
    },
    /// It refused a command; nothing has changed.
    #[error("the circuit switch refuses {command}: {text} ({code})")]
    Denied {
        /// The command.
        command: String,
        /// TL1's error code.
        code: String,
        /// What it said.
        text: String,
    },
    /// No answer in time: whether it was done is not known.
    #[error("the circuit switch did not answer {command} within {millis} ms: retrieve the circuits to see")]
    TimedOut {
        /// The command.
        command: String,
        /// How long it had.
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
        /// Where.
        address: SocketAddr,
    },
    /// More commands under way than anyone needs.
    #[error("too many commands are under way at the circuit switch: wait for answers")]
    Busy,
    /// An answer that cannot be read.
    #[error("the circuit switch answers '{line}' where a circuit, such as 1,121, was expected")]
    Answer {
        /// The line.
        line: String,
    },
}

/// Whether there is a connection.
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
    /// How bad it is.
    pub severity: Severity,
    /// What it is, such as `REPT ALM CRS`.
    pub verb: String,
    /// The details.
    pub lines: Vec<String>,
}

impl Codec for Session {
    type Question = Request;
    type Answer = Result<Answer, Failure>;
    type Word = Report;
    type Fault = FrameError;

    fn ask(&mut self, request: &Request) -> Option<u32> {
        self.request(request)
    }

    fn probe(&mut self) -> Option<u32> {
        self.request(&Request::Header)
    }

    fn forget(&mut self, tag: u32) {
        Session::forget(self, tag);
    }

    fn receive(&mut self, bytes: &[u8]) -> Result<(), FrameError> {
        Session::receive(self, bytes)
    }

    fn outgoing(&mut self) -> Vec<u8> {
        Session::outgoing(self)
    }

    fn poll(&mut self) -> Option<Heard<Result<Answer, Failure>, Report>> {
        Some(match Session::poll(self)? {
            Event::Done { tag, result } => Heard::Answer(tag, result),
            Event::Report { severity, verb, lines } => Heard::Word(Report { severity, verb, lines }),
        })
    }
}

/// A circuit switch that speaks TL1. Clones share the connection; the last one's end closes it.
#[derive(Clone, Debug)]
pub struct Tl1Client {
    address: SocketAddr,
    asker: Asker<Session>,
    reports: broadcast::Sender<Report>,
    link: watch::Receiver<Link>,
}

impl Tl1Client {
    /// Connects and logs in. Needs a tokio runtime around it.
    ///
    /// # Errors
    /// The switch cannot be reached or refuses the login. Later losses are mended without a word.
    pub async fn connect(address: SocketAddr, options: Tl1Options) -> Result<Self, Tl1Error> {
        let (asker, asks) = Asker::new();
        let (reports, _) = broadcast::channel(REPORTS_MAX);
        let conversation = open(address, &options).await?;
        let (up, link) = watch::channel(Link::Up(1));
        let keeper = Keeper { address, options, asks, reports: reports.clone(), link: up, count: 1 };
        tokio::spawn(keeper.run(conversation));
        Ok(Tl1Client { address, asker, reports, link })
    }

    /// Makes a circuit.
    ///
    /// # Errors
    /// It was refused, or it is not known whether it was made.
    pub async fn enter(&self, circuit: Circuit) -> Result<(), Tl1Error> {
        self.ask(Request::Enter(circuit)).await.map(drop)
    }

    /// Takes a circuit down.
    ///
    /// # Errors
    /// It was refused, or it is not known whether it was taken down.
    pub async fn delete(&self, circuit: Circuit) -> Result<(), Tl1Error> {
        self.ask(Request::Delete(circuit)).await.map(drop)
    }

    /// The circuits that the switch says it has, in rising order.
    ///
    /// # Errors
    /// The switch does not answer, or not in words that we know.
    pub async fn retrieve(&self) -> Result<Vec<Circuit>, Tl1Error> {
        let answer = self.ask(Request::Retrieve).await?;
        let read =
            |line: &String| Circuit::parse(line).ok_or_else(|| Tl1Error::Answer { line: line.clone() });
        let mut circuits = answer.lines.iter().map(read).collect::<Result<Vec<_>, _>>()?;
        circuits.sort_unstable();
        Ok(circuits)
    }

    /// The alarms that stand, one line each in the switch's words.
    ///
    /// # Errors
    /// The switch does not answer.
    pub async fn alarms(&self) -> Result<Vec<String>, Tl1Error> {
        Ok(self.ask(Request::Alarms).await?.lines)
    }

    /// Sends any command.
    ///
    /// # Errors
    /// It was refused, or it is not known what became of it.
    pub async fn ask(&self, request: Request) -> Result<Answer, Tl1Error> {
        let (address, command) = (self.address, request.describe());
        match self.asker.ask(request).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(Failure { code, text })) => Err(Tl1Error::Denied { command, code, text }),
            Err(NoAnswer::Busy) => Err(Tl1Error::Busy),
            Err(NoAnswer::Disconnected) => Err(Tl1Error::Disconnected { address }),
            Err(NoAnswer::TimedOut(millis)) => Err(Tl1Error::TimedOut { command, millis }),
            Err(NoAnswer::Lost) => Err(Tl1Error::Lost { command }),
        }
    }

    /// What the switch says of its own accord, from now on.
    #[must_use]
    pub fn reports(&self) -> broadcast::Receiver<Report> {
        self.reports.subscribe()
    }

    /// Whether there is a connection, now and later. After a loss, compare [`Tl1Client::retrieve`] with what
    /// should be there.
    #[must_use]
    pub fn link(&self) -> watch::Receiver<Link> {
        self.link.clone()
    }
}

/// Connects and logs in.
async fn open(address: SocketAddr, options: &Tl1Options) -> Result<Conversation<Session>, Tl1Error> {
    let unreachable = |reason: String| Tl1Error::Unreachable { address, reason };
    let opening = async {
        let stream = tcp(address).await.map_err(|error| unreachable(error.to_string()))?;
        let mut conversation = Conversation::new(Box::new(stream), Session::new());
        if let Some(login) = &options.login {
            let answer = log_in(&mut conversation, login).await;
            answer.map_err(|broken| unreachable(broken.to_string()))?.map_err(|failure| {
                let reason = format!("{} ({})", failure.text, failure.code);
                Tl1Error::Login { address, user: login.user.clone(), reason }
            })?;
        }
        Ok(conversation)
    };
    let late = || unreachable(format!("no answer within {} ms", options.connect_timeout.as_millis()));
    timeout(options.connect_timeout, opening).await.unwrap_or_else(|_| Err(late()))
}

/// The login is the first question: no other answer can come.
async fn log_in(
    conversation: &mut Conversation<Session>,
    login: &Login,
) -> Result<<Session as Codec>::Answer, Broken> {
    let request = Request::Login { user: login.user.clone(), password: login.password.clone() };
    let answer = |heard| match heard {
        Heard::Answer(_, answer) => Some(answer),
        Heard::Word(_) => None,
    };
    conversation.greet(Some(&request), answer).await
}

/// Keeps the connection as long as there is a client.
struct Keeper {
    address: SocketAddr,
    options: Tl1Options,
    asks: mpsc::Receiver<Ask<Session>>,
    reports: broadcast::Sender<Report>,
    link: watch::Sender<Link>,
    count: u64,
}

impl Keeper {
    async fn run(mut self, mut conversation: Conversation<Session>) {
        // Any word is a sign of life, and the answer to our own question comes as late as any other.
        let (answer, keepalive) = (self.options.command_timeout, self.options.keepalive);
        let times = Times { answer, keepalive, grace: answer };
        loop {
            let reports = self.reports.clone();
            // There may be no listener.
            let report = |report| drop(reports.send(report));
            let Err(broken) = conversation.serve(&mut self.asks, times, report).await else { return };
            tracing::warn!(address = %self.address, %broken, "lost the connection to the circuit switch");
            self.link.send_replace(Link::Down);
            drop(conversation);
            match self.reconnect().await {
                Some(next) => conversation = next,
                None => return,
            }
            self.count += 1;
            self.link.send_replace(Link::Up(self.count));
        }
    }

    /// A new connection, or `None` if nobody wants one any more.
    async fn reconnect(&mut self) -> Option<Conversation<Session>> {
        let mut pause = self.options.retry_first;
        loop {
            // Who asks now hears at once that there is nobody to ask.
            let pausing = sleep(pause);
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
            pause = (pause * 2).min(self.options.retry_most);
        }
    }
}
