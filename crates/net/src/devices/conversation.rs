//! One connection to one device: questions under way, time limits, and signs of life, whatever the language.
//!
//! A [`Codec`] is a language's machine without I/O. A [`Conversation`] is such a machine on a stream, and
//! [`Asker`] is what callers have of it. Many questions can be under way at the same time.

use crate::tls::{Expected, SealError, Security};
use rustls::pki_types::ServerName;
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Display;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// Questions that wait to be sent.
const ASKS_MAX: usize = 1_024;
/// Bytes that one read asks for.
const READ_LEN: usize = 64 << 10;

/// A language's machine, as a conversation needs it.
pub(super) trait Codec {
    /// Question that callers ask.
    type Question: Send;
    /// Answer from the device.
    type Answer: Send;
    /// Message that is no answer.
    type Word;
    /// The other end speaks another language.
    type Fault: Display;

    /// Sends a question; gives its number, or `None` if too many are under way.
    fn ask(&mut self, question: &Self::Question) -> Option<u32>;
    /// Asks the device whether it lives; gives a number if the answer will come with one.
    fn probe(&mut self) -> Option<u32>;
    /// Gives a question up: an answer that still comes is not heard.
    fn forget(&mut self, number: u32);
    /// Takes bytes from the device.
    fn receive(&mut self, bytes: &[u8]) -> Result<(), Self::Fault>;
    /// Bytes for the device, taken out.
    fn outgoing(&mut self) -> Vec<u8>;
    /// Takes the next message from the device.
    fn poll(&mut self) -> Option<Heard<Self::Answer, Self::Word>>;
}

/// Message from a device.
pub(super) enum Heard<A, W> {
    /// The answer to the question of this number.
    Answer(u32, A),
    /// Something else.
    Word(W),
}

/// Reason that there is no answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NoAnswer {
    /// Too many questions are under way.
    Busy,
    /// There is no connection; the question was not sent.
    Disconnected,
    /// None came in time, in milliseconds.
    TimedOut(u64),
    /// The connection went while the question was under way.
    Lost,
}

/// Reason that a connection ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum Broken {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("the other end closed it")]
    Closed,
    #[error("{0}")]
    Language(String),
    #[error("no sign of life")]
    Silent,
}

/// Time limits of a conversation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    /// An answer.
    pub(super) answer: Duration,
    /// Silence, until the device is asked whether it lives.
    pub(super) keepalive: Duration,
    /// Silence after that, until it is given up.
    pub(super) grace: Duration,
}

/// Channel on which a caller waits.
type Reply<C> = oneshot::Sender<Result<<C as Codec>::Answer, NoAnswer>>;

/// A question and where its answer goes.
pub(super) struct Ask<C: Codec> {
    question: C::Question,
    reply: Reply<C>,
}

impl<C: Codec> Ask<C> {
    /// Answers without the device. A caller that has gone away needs no answer.
    pub(super) fn refuse(self, why: NoAnswer) {
        let _ = self.reply.send(Err(why));
    }
}

/// The callers' end. Clones share the connection.
#[derive(Clone, Debug)]
pub(super) struct Asker<C: Codec>(mpsc::Sender<Ask<C>>);

impl<C: Codec> Asker<C> {
    /// The callers' end, and what they ask.
    pub(super) fn new() -> (Self, mpsc::Receiver<Ask<C>>) {
        let (asks, taken) = mpsc::channel(ASKS_MAX);
        (Asker(asks), taken)
    }

    /// Asks, and waits for the answer.
    pub(super) async fn ask(&self, question: C::Question) -> Result<C::Answer, NoAnswer> {
        let (reply, answer) = oneshot::channel();
        self.0.try_send(Ask { question, reply }).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => NoAnswer::Busy,
            mpsc::error::TrySendError::Closed(_) => NoAnswer::Disconnected,
        })?;
        answer.await.unwrap_or(Err(NoAnswer::Lost))
    }
}

/// Stream that carries the bytes.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A TCP connection on which small questions leave at once.
pub(super) async fn tcp(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// The same connection sealed; an error is a sentence.
pub(super) async fn seal(stream: TcpStream, security: &Security) -> Result<Box<dyn Stream>, String> {
    // The other end shows that it is a device by its certificate and the authority that issued it: the name
    // is a placeholder.
    let name = ServerName::from(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    let sealed = TlsConnector::from(security.client(&Expected::Device)).connect(name, stream).await;
    sealed.map(|stream| Box::new(stream) as Box<dyn Stream>).map_err(unsealed)
}

/// The same connection sealed, where the other end has opened it.
pub(super) async fn seal_accepted(stream: TcpStream, security: &Security) -> Result<Box<dyn Stream>, String> {
    let sealed = TlsAcceptor::from(security.server()).accept(stream).await;
    sealed.map(|stream| Box::new(stream) as Box<dyn Stream>).map_err(unsealed)
}

fn unsealed(error: io::Error) -> String {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        // Devices have certificates of their own.
        Some(reason) => SealError::from(reason.clone()).to_string().replace("--tls-ca", "ca of [device-tls]"),
        None => error.to_string(),
    }
}

/// A stream and the machine on it. Callers that still wait when it ends hear that it is lost.
pub(super) struct Conversation<C: Codec> {
    stream: Box<dyn Stream>,
    codec: C,
    /// Questions under way; those without a caller are our own.
    waiting: BTreeMap<u32, Option<Reply<C>>>,
    /// Deadline of each question, in the order of sending.
    deadlines: VecDeque<(Instant, u32)>,
    buffer: Vec<u8>,
}

impl<C: Codec> Conversation<C> {
    /// A machine on a stream.
    pub(super) fn new(stream: Box<dyn Stream>, codec: C) -> Self {
        let (waiting, deadlines) = (BTreeMap::new(), VecDeque::new());
        Conversation { stream, codec, waiting, deadlines, buffer: vec![0; READ_LEN] }
    }

    /// Waits, before anything is asked, for something that a hand-shake needs. `first` is our own question,
    /// if there is one.
    pub(super) async fn greet<T>(
        &mut self,
        first: Option<&C::Question>,
        mut wanted: impl FnMut(Heard<C::Answer, C::Word>) -> Option<T>,
    ) -> Result<T, Broken> {
        first.map(|question| self.codec.ask(question));
        loop {
            self.flush().await?;
            self.read().await?;
            while let Some(heard) = self.codec.poll() {
                if let Some(found) = wanted(heard) {
                    return Ok(found);
                }
            }
        }
    }

    /// Serves until the last caller is gone, or the connection breaks.
    pub(super) async fn serve(
        &mut self,
        asks: &mut mpsc::Receiver<Ask<C>>,
        times: Times,
        mut word: impl FnMut(C::Word),
    ) -> Result<(), Broken> {
        let mut heard = Instant::now();
        let mut asked = false;
        loop {
            // A device that does not even read is as good as gone.
            let flushed = timeout(times.answer, self.flush()).await;
            flushed.map_err(|_| Broken::Silent)??;
            let quiet = heard + times.keepalive + if asked { times.grace } else { Duration::ZERO };
            let wake = self.deadline().map_or(quiet, |deadline| deadline.min(quiet));
            tokio::select! {
                ask = asks.recv() => {
                    let Some(ask) = ask else { return Ok(()) };
                    let by = Instant::now() + times.answer;
                    self.send(ask, by);
                    // What is asked at the same time goes out together.
                    while let Ok(ask) = asks.try_recv() {
                        self.send(ask, by);
                    }
                }
                read = self.read() => {
                    read?;
                    (heard, asked) = (Instant::now(), false);
                    self.settle(&mut word);
                }
                () = sleep_until(wake) => {
                    let now = Instant::now();
                    self.expire(now, times.answer);
                    if now >= quiet {
                        if asked {
                            return Err(Broken::Silent);
                        }
                        asked = true;
                        self.probe(now + times.answer);
                    }
                }
            }
        }
    }

    /// Reads once and lets the machine have it. Can be cancelled without loss.
    async fn read(&mut self) -> Result<(), Broken> {
        match self.stream.read(&mut self.buffer).await? {
            0 => Err(Broken::Closed),
            len => {
                self.codec.receive(&self.buffer[..len]).map_err(|fault| Broken::Language(fault.to_string()))
            }
        }
    }

    async fn flush(&mut self) -> io::Result<()> {
        let bytes = self.codec.outgoing();
        if bytes.is_empty() { Ok(()) } else { self.stream.write_all(&bytes).await }
    }

    fn send(&mut self, ask: Ask<C>, by: Instant) {
        match self.codec.ask(&ask.question) {
            Some(number) => self.wait(number, Some(ask.reply), by),
            None => ask.refuse(NoAnswer::Busy),
        }
    }

    fn probe(&mut self, by: Instant) {
        if let Some(number) = self.codec.probe() {
            self.wait(number, None, by);
        }
    }

    fn wait(&mut self, number: u32, reply: Option<Reply<C>>, by: Instant) {
        self.waiting.insert(number, reply);
        self.deadlines.push_back((by, number));
    }

    /// Returns the deadline of the next question that still waits.
    fn deadline(&mut self) -> Option<Instant> {
        while let Some((at, number)) = self.deadlines.front() {
            if self.waiting.contains_key(number) {
                return Some(*at);
            }
            self.deadlines.pop_front();
        }
        None
    }

    /// Gives up what has run out.
    fn expire(&mut self, now: Instant, allowed: Duration) {
        while self.deadline().is_some_and(|at| at <= now) {
            let Some((_, number)) = self.deadlines.pop_front() else { return };
            self.codec.forget(number);
            self.answer(number, Err(NoAnswer::TimedOut(allowed.as_millis() as u64)));
        }
    }

    fn settle(&mut self, word: &mut impl FnMut(C::Word)) {
        while let Some(heard) = self.codec.poll() {
            match heard {
                Heard::Answer(number, answer) => self.answer(number, Ok(answer)),
                Heard::Word(said) => word(said),
            }
        }
    }

    /// A caller that has gone away needs no answer.
    fn answer(&mut self, number: u32, answer: Result<C::Answer, NoAnswer>) {
        if let Some(Some(reply)) = self.waiting.remove(&number) {
            let _ = reply.send(answer);
        }
    }
}
