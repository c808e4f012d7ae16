//! The TL1 client on a socket: it keeps the connection, logs in again after a loss, and lets many callers
//! have commands under way at the same time.

use super::session::{Answer, Event, Session};
use super::{Circuit, FrameError, Request, Severity};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// Commands that wait to be sent.
const ASKS_MAX: usize = 1_024;
/// Reports that a slow listener may be behind by.
const REPORTS_MAX: usize = 1_024;
/// What one read asks for, in bytes.
const READ_LEN: usize = 16 << 10;

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

struct Ask {
    request: Request,
    reply: oneshot::Sender<Result<Answer, Tl1Error>>,
}

/// A circuit switch that speaks TL1. Clones share the connection; the last one's end closes it.
#[derive(Clone, Debug)]
pub struct Tl1Client {
    address: SocketAddr,
    asks: mpsc::Sender<Ask>,
    reports: broadcast::Sender<Report>,
    link: watch::Receiver<Link>,
}

impl Tl1Client {
    /// Connects and logs in. Needs a tokio runtime around it.
    ///
    /// # Errors
    /// The switch cannot be reached or refuses the login. Later losses are mended without a word.
    pub async fn connect(address: SocketAddr, options: Tl1Options) -> Result<Self, Tl1Error> {
        let (asks, taken) = mpsc::channel(ASKS_MAX);
        let (reports, _) = broadcast::channel(REPORTS_MAX);
        let connection = Connection::open(address, &options).await?;
        let (up, link) = watch::channel(Link::Up(1));
        let keeper = Keeper { address, options, asks: taken, reports: reports.clone(), link: up, count: 1 };
        tokio::spawn(keeper.run(connection));
        Ok(Tl1Client { address, asks, reports, link })
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
        let (reply, answer) = oneshot::channel();
        let gone = Tl1Error::Disconnected { address: self.address };
        let command = request.describe();
        self.asks.try_send(Ask { request, reply }).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => Tl1Error::Busy,
            mpsc::error::TrySendError::Closed(_) => gone,
        })?;
        answer.await.unwrap_or(Err(Tl1Error::Lost { command }))
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

/// A command under way.
struct Waiting {
    command: String,
    /// `None` for our own question whether the switch lives.
    reply: Option<oneshot::Sender<Result<Answer, Tl1Error>>>,
}

/// One TCP connection and the machine on it.
struct Connection {
    stream: TcpStream,
    session: Session,
    waiting: BTreeMap<u32, Waiting>,
    /// When each command runs out, in the order of sending.
    deadlines: VecDeque<(Instant, u32)>,
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("the other end closed it")]
    Closed,
    #[error("{0}")]
    Frame(#[from] FrameError),
    #[error("no sign of life")]
    Silent,
}

impl Connection {
    async fn open(address: SocketAddr, options: &Tl1Options) -> Result<Self, Tl1Error> {
        let unreachable = |reason: String| Tl1Error::Unreachable { address, reason };
        let opening = async {
            let stream = TcpStream::connect(address).await.map_err(|error| unreachable(error.to_string()))?;
            stream.set_nodelay(true).map_err(|error| unreachable(error.to_string()))?;
            let (waiting, deadlines) = (BTreeMap::new(), VecDeque::new());
            let mut connection = Connection { stream, session: Session::new(), waiting, deadlines };
            if let Some(login) = &options.login {
                connection.log_in(address, login).await?;
            }
            Ok(connection)
        };
        let late = || unreachable(format!("no answer within {} ms", options.connect_timeout.as_millis()));
        timeout(options.connect_timeout, opening).await.unwrap_or_else(|_| Err(late()))
    }

    async fn log_in(&mut self, address: SocketAddr, login: &Login) -> Result<(), Tl1Error> {
        let unreachable = |error: Broken| Tl1Error::Unreachable { address, reason: error.to_string() };
        let request = Request::Login { user: login.user.clone(), password: login.password.clone() };
        let ours = self.session.request(&request);
        loop {
            self.flush().await.map_err(|error| unreachable(error.into()))?;
            self.read().await.map_err(unreachable)?;
            while let Some(event) = self.session.poll() {
                match event {
                    Event::Done { tag, result: Ok(_) } if Some(tag) == ours => return Ok(()),
                    Event::Done { tag, result: Err(failure) } if Some(tag) == ours => {
                        let reason = format!("{} ({})", failure.text, failure.code);
                        return Err(Tl1Error::Login { address, user: login.user.clone(), reason });
                    }
                    _ => {}
                }
            }
        }
    }

    /// Reads once and lets the machine have it. Can be cancelled without loss.
    async fn read(&mut self) -> Result<(), Broken> {
        let mut buffer = [0; READ_LEN];
        match self.stream.read(&mut buffer).await? {
            0 => Err(Broken::Closed),
            len => Ok(self.session.receive(&buffer[..len])?),
        }
    }

    async fn flush(&mut self) -> io::Result<()> {
        let bytes = self.session.outgoing();
        if bytes.is_empty() { Ok(()) } else { self.stream.write_all(&bytes).await }
    }

    fn send(
        &mut self,
        request: &Request,
        reply: Option<oneshot::Sender<Result<Answer, Tl1Error>>>,
        by: Instant,
    ) {
        match self.session.request(request) {
            Some(tag) => {
                self.waiting.insert(tag, Waiting { command: request.describe(), reply });
                self.deadlines.push_back((by, tag));
            }
            None => answer(reply, Err(Tl1Error::Busy)),
        }
    }

    /// When the next command runs out that still waits.
    fn deadline(&mut self) -> Option<Instant> {
        while let Some((at, tag)) = self.deadlines.front() {
            if self.waiting.contains_key(tag) {
                return Some(*at);
            }
            self.deadlines.pop_front();
        }
        None
    }

    /// Gives up what has run out.
    fn expire(&mut self, now: Instant, options: &Tl1Options) -> Result<(), Broken> {
        while self.deadline().is_some_and(|at| at <= now) {
            let Some((_, tag)) = self.deadlines.pop_front() else { break };
            self.session.forget(tag);
            if let Some(Waiting { command, reply }) = self.waiting.remove(&tag) {
                if reply.is_none() {
                    return Err(Broken::Silent);
                }
                let millis = options.command_timeout.as_millis() as u64;
                answer(reply, Err(Tl1Error::TimedOut { command, millis }));
            }
        }
        Ok(())
    }

    fn settle(&mut self, reports: &broadcast::Sender<Report>) {
        while let Some(event) = self.session.poll() {
            match event {
                Event::Done { tag, result } => {
                    let Some(Waiting { command, reply }) = self.waiting.remove(&tag) else { continue };
                    let denied = |failure: super::Failure| Tl1Error::Denied {
                        command,
                        code: failure.code,
                        text: failure.text,
                    };
                    answer(reply, result.map_err(denied));
                }
                Event::Report { severity, verb, lines } => {
                    // Nobody may be listening.
                    let _ = reports.send(Report { severity, verb, lines });
                }
            }
        }
    }
}

/// A caller that has gone away needs no answer.
fn answer(reply: Option<oneshot::Sender<Result<Answer, Tl1Error>>>, result: Result<Answer, Tl1Error>) {
    if let Some(reply) = reply {
        let _ = reply.send(result);
    }
}

/// Keeps the connection as long as there is a client.
struct Keeper {
    address: SocketAddr,
    options: Tl1Options,
    asks: mpsc::Receiver<Ask>,
    reports: broadcast::Sender<Report>,
    link: watch::Sender<Link>,
    count: u64,
}

impl Keeper {
    async fn run(mut self, mut connection: Connection) {
        loop {
            let outcome = self.serve(&mut connection).await;
            for (_, Waiting { command, reply }) in std::mem::take(&mut connection.waiting) {
                answer(reply, Err(Tl1Error::Lost { command }));
            }
            let Err(broken) = outcome else { return };
            tracing::warn!(address = %self.address, %broken, "lost the connection to the circuit switch");
            self.link.send_replace(Link::Down);
            drop(connection);
            match self.reconnect().await {
                Some(next) => connection = next,
                None => return,
            }
            self.count += 1;
            self.link.send_replace(Link::Up(self.count));
        }
    }

    /// Serves until the last client is gone, or the connection breaks.
    async fn serve(&mut self, connection: &mut Connection) -> Result<(), Broken> {
        let mut heard = Instant::now();
        let mut asked = false;
        loop {
            // A switch that does not even read is as good as gone.
            let flushed = timeout(self.options.command_timeout, connection.flush()).await;
            flushed.map_err(|_| Broken::Silent)??;
            let quiet = heard + self.options.keepalive;
            let wake = connection.deadline().into_iter().chain((!asked).then_some(quiet)).min();
            tokio::select! {
                ask = self.asks.recv() => {
                    let by = Instant::now() + self.options.command_timeout;
                    let Some(Ask { request, reply }) = ask else { return Ok(()) };
                    connection.send(&request, Some(reply), by);
                    // The circuits of a path are asked for at the same time, and go out together.
                    while let Ok(Ask { request, reply }) = self.asks.try_recv() {
                        connection.send(&request, Some(reply), by);
                    }
                }
                read = connection.read() => {
                    read?;
                    (heard, asked) = (Instant::now(), false);
                    connection.settle(&self.reports);
                }
                () = sleep_until(wake.unwrap_or(quiet)) => {
                    let now = Instant::now();
                    connection.expire(now, &self.options)?;
                    if !asked && now >= quiet {
                        asked = true;
                        connection.send(&Request::Header, None, now + self.options.command_timeout);
                    }
                }
            }
        }
    }

    /// A new connection, or `None` if nobody wants one any more.
    async fn reconnect(&mut self) -> Option<Connection> {
        let mut pause = self.options.retry_first;
        loop {
            // Who asks now hears at once that there is nobody to ask.
            let pausing = sleep(pause);
            tokio::pin!(pausing);
            loop {
                tokio::select! {
                    () = &mut pausing => break,
                    ask = self.asks.recv() => {
                        answer(Some(ask?.reply), Err(Tl1Error::Disconnected { address: self.address }));
                    }
                }
            }
            match Connection::open(self.address, &self.options).await {
                Ok(connection) => return Some(connection),
                Err(error) => tracing::debug!(%error, "cannot connect yet"),
            }
            pause = (pause * 2).min(self.options.retry_most);
        }
    }
}
