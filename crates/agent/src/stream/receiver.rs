//! The receiving end: a thread that hears a stream's group and gives its messages in order to all that
//! listen.

use super::StreamError;
use super::sender::seal_piece;
use crate::transfer::Path;
use crate::transfer::clock::{Clock, wait};
use polycast_net::seal::Seal;
use polycast_net::udp::{DataReceiver, Only, Outer};
use polycast_protocol::stream::{
    OrderConfig, OrderCounts, OrderInput, OrderOutput, Senders, SendersConfig, SendersOutput,
};
use polycast_types::{Duration, Handle};
use polycast_wire::data::TAG_LEN;
use polycast_wire::label;
use polycast_wire::stream::{HEADER_LEN, Header};
use rustix::event::{PollFd, PollFlags};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{self, IoSliceMut, PipeReader, PipeWriter, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::mpsc;

/// Senders that are kept apart; a manager lets no more into a stream.
const SENDERS_MAX: usize = 64;
/// Messages of a sender that may wait for others before them.
const MESSAGES_MAX: usize = 256;
/// The memory that they may take, in bytes.
const WAITING_BYTES_MAX: usize = 16 << 20;
/// Messages, and bytes of them, that may wait for a listener.
const QUEUE_MAX: usize = 8_192;
const QUEUE_BYTES_MAX: usize = 16 << 20;
/// System calls before others get their turn.
const BURST_MAX: usize = 64;
const LOOK_AGAIN: Duration = Duration::from_millis(1_000);
const BUFFER_LEN: usize = 65_536;

/// Way by which a stream comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// Its group.
    pub group: SocketAddr,
    /// Set if packets have a label before them.
    pub labelled: bool,
}

impl Way {
    /// The way that a path's packets come.
    ///
    /// # Errors
    /// The path is no multicast.
    pub fn of(path: &Path) -> Result<Self, StreamError> {
        match path {
            Path::Multicast { group, outer, .. } => Ok(Way { group: *group, labelled: !outer.is_empty() }),
            Path::Chain | Path::Trees(_) => Err(StreamError::Path),
        }
    }
}

/// Settings of a receiver.
#[derive(Clone, Debug)]
pub struct ReceiverOptions {
    /// The interface that it listens on.
    pub interface: IpAddr,
    /// The handle with which this host sends itself, where several hosts do, which come and go.
    pub own: Option<Handle>,
    /// Time that a message waits for those before it.
    pub hold: Duration,
}

/// A sender that is heard.
#[derive(Clone, Debug)]
pub struct Voice {
    /// Its name.
    pub name: Arc<str>,
    /// Handle that its packets carry; with none it is heard as before.
    pub handle: Option<Handle>,
    /// The address that they come from, where that is known.
    pub address: Option<IpAddr>,
    /// The number of its next message when this receiver had joined: what has a lower one was sent before,
    /// and any host may have recorded it. With none it is not heard yet, unless it was before.
    pub from: Option<u64>,
    /// Seal of its messages; with it nothing else is accepted.
    pub seal: Option<Seal>,
}

/// A message that has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The name of its sender.
    pub sender: Arc<str>,
    /// Its number.
    pub number: u64,
    /// Number of messages of this sender lost right before it.
    pub lost: u64,
    /// Arrival time of its last piece, in nanoseconds since 1970.
    pub arrived_unix_ns: u64,
    /// Bytes that were sent.
    pub payload: Arc<Vec<u8>>,
}

/// Counters of a receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heard {
    /// Messages that were delivered.
    pub messages: u64,
    /// Messages between delivered ones that were not.
    pub lost: u64,
    /// Pieces that came too late.
    pub late: u64,
    /// Datagrams that are no pieces of this stream, as far as the kernel has not dropped them, or were there
    /// already.
    pub refused: u64,
}

/// A process that listens.
#[derive(Debug)]
struct Listener {
    outbox: mpsc::Sender<Message>,
    queued_bytes: Arc<AtomicUsize>,
    /// Messages that it had no room for since the last one that it got, by sender.
    missed: BTreeMap<Arc<str>, u64>,
}

impl Listener {
    /// Hands a message over; gives whether the listener is still there.
    fn hand(&mut self, message: &Message) -> bool {
        let missed = self.missed.get(&message.sender).copied().unwrap_or(0);
        let (len, lost) = (message.payload.len(), message.lost + missed);
        let room = self.queued_bytes.load(Ordering::Relaxed) + len <= QUEUE_BYTES_MAX;
        let sent = match room {
            true => self.outbox.try_send(Message { lost, ..message.clone() }),
            false => Err(mpsc::error::TrySendError::Full(message.clone())),
        };
        match sent {
            Ok(()) => {
                self.queued_bytes.fetch_add(len, Ordering::Relaxed);
                self.missed.remove(&message.sender);
                true
            }
            Err(mpsc::error::TrySendError::Full(_)) => {
                // One whose sender has left is told of it no more.
                if self.missed.len() >= SENDERS_MAX && !self.missed.contains_key(&message.sender) {
                    self.missed.pop_first();
                }
                self.missed.insert(Arc::clone(&message.sender), lost + 1);
                true
            }
            Err(mpsc::error::TrySendError::Closed(_)) => false,
        }
    }
}

/// Messages on their way to a listener.
#[derive(Debug)]
pub struct Inbox {
    inbox: mpsc::Receiver<Message>,
    queued_bytes: Arc<AtomicUsize>,
}

impl Inbox {
    /// The next message; `None` when the stream has ended.
    pub async fn next(&mut self) -> Option<Message> {
        let message = self.inbox.recv().await?;
        self.taken(&message);
        Some(message)
    }

    /// The next message, if it is here already.
    pub fn try_next(&mut self) -> Option<Message> {
        let message = self.inbox.try_recv().ok()?;
        self.taken(&message);
        Some(message)
    }

    fn taken(&self, message: &Message) {
        self.queued_bytes.fetch_sub(message.payload.len(), Ordering::Relaxed);
    }
}

#[derive(Debug, Default)]
struct Orders {
    /// `None` ends the thread.
    way: Option<Way>,
    /// All that send, where that has changed.
    voices: Option<Vec<Voice>>,
    joining: Vec<Listener>,
}

#[derive(Debug)]
struct Shared {
    orders: Mutex<Orders>,
    counts: [AtomicU64; 4],
}

impl Shared {
    fn orders(&self) -> MutexGuard<'_, Orders> {
        // Nothing here panics between two changes that belong together.
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The receiving end of a stream on this host; it ends when this is dropped.
#[derive(Debug)]
pub struct Receiver {
    shared: Arc<Shared>,
    wake: PipeWriter,
}

impl Receiver {
    /// Begins to hear a stream.
    ///
    /// # Errors
    /// The group cannot be joined.
    pub fn start(options: ReceiverOptions, way: Way, voices: Vec<Voice>) -> Result<Self, StreamError> {
        let senders = Senders::new(SendersConfig {
            order: OrderConfig {
                hold: options.hold,
                messages_max: MESSAGES_MAX,
                bytes_max: WAITING_BYTES_MAX,
            },
            senders_max: SENDERS_MAX,
            own: options.own,
        });
        let only = only(&options, &voices);
        let socket = open(&options, way, only)?;
        let (woken, wake) = io::pipe()?;
        let orders = Mutex::new(Orders { way: Some(way), voices: None, joining: Vec::new() });
        let shared = Arc::new(Shared { orders, counts: Default::default() });
        let mut task = Task {
            options,
            way,
            only,
            socket: Some(socket),
            woken,
            senders,
            voices: BTreeMap::new(),
            left: OrderCounts::default(),
            clock: Clock::start(),
            kept: BTreeMap::new(),
            listeners: Vec::new(),
            foreign: 0,
            shared: Arc::clone(&shared),
        };
        task.set_voices(voices);
        std::thread::Builder::new().name("stream".into()).spawn(move || task.run())?;
        Ok(Receiver { shared, wake })
    }

    /// The stream comes another way from now on, and these are all that send.
    pub fn set_way(&self, way: Way, voices: Vec<Voice>) {
        self.order(|orders| (orders.way, orders.voices) = (Some(way), Some(voices)));
    }

    /// One more listener from now on.
    #[must_use]
    pub fn listen(&self) -> Inbox {
        let (outbox, inbox) = mpsc::channel(QUEUE_MAX);
        let queued_bytes = Arc::new(AtomicUsize::new(0));
        let listener = Listener { outbox, queued_bytes: Arc::clone(&queued_bytes), missed: BTreeMap::new() };
        self.order(|orders| orders.joining.push(listener));
        Inbox { inbox, queued_bytes }
    }

    /// Returns the counters so far.
    #[must_use]
    pub fn heard(&self) -> Heard {
        let [messages, lost, late, refused] =
            self.shared.counts.each_ref().map(|count| count.load(Ordering::Relaxed));
        Heard { messages, lost, late, refused }
    }

    fn order(&self, change: impl FnOnce(&mut Orders)) {
        change(&mut self.shared.orders());
        // One byte wakes the thread; if the write fails, the thread has ended.
        let _ = (&self.wake).write_all(&[1]);
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.order(|orders| orders.way = None);
    }
}

/// The address and handle that the kernel lets through: those of the one source. Of several it knows none, as
/// they come and go.
fn only(options: &ReceiverOptions, voices: &[Voice]) -> (Option<IpAddr>, Option<Handle>) {
    match voices {
        [voice] if options.own.is_none() => (voice.address, voice.handle),
        _ => (None, None),
    }
}

fn open(
    options: &ReceiverOptions,
    way: Way,
    (source, handle): (Option<IpAddr>, Option<Handle>),
) -> io::Result<DataReceiver> {
    let socket = DataReceiver::open(way.group.ip())?;
    let outer = if way.labelled { Outer::Label } else { Outer::Bytes(0) };
    let only = Only { source, handle, outer };
    socket.join(options.interface, way.group, only)?;
    Ok(socket)
}

/// The pieces of a message that are here.
type Pieces = BTreeMap<u16, Vec<u8>>;

struct Task {
    options: ReceiverOptions,
    way: Way,
    /// The address and handle that the kernel lets through.
    only: (Option<IpAddr>, Option<Handle>),
    /// None where the group could not be joined.
    socket: Option<DataReceiver>,
    woken: PipeReader,
    senders: Senders,
    /// Senders that are heard.
    voices: BTreeMap<Handle, Voice>,
    /// Counters of those that were.
    left: OrderCounts,
    clock: Clock,
    /// By sender and number, with the time when the last piece came.
    kept: BTreeMap<(Handle, u64), (Pieces, u64)>,
    listeners: Vec<Listener>,
    /// Datagrams that are no pieces of this stream.
    foreign: u64,
    shared: Arc<Shared>,
}

impl Task {
    fn run(mut self) {
        let mut buffer = vec![0; BUFFER_LEN];
        loop {
            let mut fds = vec![PollFd::from_borrowed_fd(self.woken.as_fd(), PollFlags::IN)];
            fds.extend(
                self.socket.iter().map(|socket| PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN)),
            );
            if let Err(error) = wait(&mut fds, self.clock.now(), self.senders.deadline(), LOOK_AGAIN) {
                tracing::error!(%error, "a stream cannot be heard any more");
                return;
            }
            let woken = !fds[0].revents().is_empty();
            if woken && !self.take_orders() {
                return;
            }
            self.receive(&mut buffer);
            self.deliver();
            self.count();
        }
    }

    /// Takes in which processes listen now, and where the stream comes; gives whether to go on.
    fn take_orders(&mut self) -> bool {
        let mut bytes = [0; 64];
        if !matches!(self.woken.read(&mut bytes), Ok(len) if len > 0) {
            return false;
        }
        let (way, voices, joining) = {
            let mut orders = self.shared.orders();
            (orders.way, orders.voices.take(), std::mem::take(&mut orders.joining))
        };
        self.listeners.extend(joining);
        let Some(way) = way else { return false };
        if let Some(voices) = voices {
            self.set_voices(voices);
        }
        if way != self.way {
            let opened = open(&self.options, way, self.only);
            if let Err(error) = &opened {
                tracing::warn!(group = %way.group, %error, "a stream's group cannot be joined");
            }
            (self.socket, self.way) = (opened.ok(), way);
        }
        true
    }

    /// These are all that send now; each that was heard before goes on as it was.
    fn set_voices(&mut self, voices: Vec<Voice>) {
        let goes_on = |known: &Voice| {
            let now = voices.iter().find(|voice| voice.name == known.name);
            now.is_some_and(|now| now.handle.is_none() || now.handle == known.handle)
        };
        let gone: Vec<Handle> =
            self.voices.iter().filter(|(_, known)| !goes_on(known)).map(|(handle, _)| *handle).collect();
        for handle in gone {
            self.voices.remove(&handle);
            let counts = self.senders.leave(handle).unwrap_or_default();
            add(&mut self.left, counts);
        }
        // What waited of them is forgotten.
        self.deliver();
        for voice in voices {
            let (Some(handle), Some(from)) = (voice.handle, voice.from) else { continue };
            match self.senders.join(handle, from) {
                Ok(()) => drop(self.voices.insert(handle, voice)),
                Err(error) => tracing::warn!(sender = %voice.name, %error, "a sender is not heard"),
            }
        }
    }

    fn receive(&mut self, buffer: &mut [u8]) {
        for _ in 0..BURST_MAX {
            let Some(socket) = &mut self.socket else { return };
            match socket.receive(&mut [IoSliceMut::new(buffer)]) {
                Ok(Some(arrival)) => {
                    let arrived = SystemTime::now().checked_sub(arrival.waited).unwrap_or(UNIX_EPOCH);
                    let since = arrived.duration_since(UNIX_EPOCH).unwrap_or_default();
                    let (arrived, from) = (u64::try_from(since.as_nanos()).unwrap_or(u64::MAX), arrival.from);
                    let from = from.map(|from| from.ip());
                    for datagram in buffer[..arrival.len].chunks(arrival.segment_len.max(1)) {
                        self.take(datagram, arrived, from);
                    }
                }
                Ok(None) => return,
                Err(error) => {
                    tracing::warn!(%error, "a stream's socket has failed");
                    self.socket = None;
                }
            }
        }
    }

    fn take(&mut self, datagram: &[u8], arrived: u64, from: Option<IpAddr>) {
        let inner = match self.way.labelled {
            true => label::Header::parse(datagram).map(|(_, len)| &datagram[len..]),
            false => Ok(datagram),
        };
        let parsed = inner.and_then(Header::parse);
        let Ok((header, payload)) = parsed else { return self.foreign += 1 };
        if self.options.own == Some(header.stream) {
            return;
        }
        let Some(voice) = self.voices.get(&header.stream) else { return self.foreign += 1 };
        let is_its = voice.address.is_none_or(|address| from.is_none_or(|from| from == address));
        let opened = if is_its { opened(voice, datagram, header, payload) } else { None };
        let Some(payload) = opened else { return self.foreign += 1 };
        let Header { stream, number, piece, pieces, .. } = header;
        let input = OrderInput::Piece { number, piece, pieces, len: payload.len() };
        if self.senders.handle(self.clock.now(), stream, input) {
            let (kept, last) = self.kept.entry((stream, number)).or_default();
            kept.insert(piece, payload.into_owned());
            *last = arrived;
        }
        // Before more comes: what is whole needs no room.
        self.deliver();
    }

    fn deliver(&mut self) {
        while let Some(SendersOutput { sender, output }) = self.senders.poll(self.clock.now()) {
            match output {
                OrderOutput::Forget { number } => drop(self.kept.remove(&(sender, number))),
                OrderOutput::Deliver { number, lost } => {
                    let kept = self.kept.remove(&(sender, number));
                    let Some((mut pieces, arrived_unix_ns)) = kept else { continue };
                    let payload = match (pieces.len(), pieces.pop_first()) {
                        (1, Some((_, only))) => only,
                        (_, Some((_, first))) => pieces.into_values().fold(first, |mut all, piece| {
                            all.extend_from_slice(&piece);
                            all
                        }),
                        (_, None) => Vec::new(),
                    };
                    // One that has just left has brought this before.
                    let Some(voice) = self.voices.get(&sender) else { continue };
                    let (sender, payload) = (Arc::clone(&voice.name), Arc::new(payload));
                    let message = Message { sender, number, lost, arrived_unix_ns, payload };
                    // A listener that has the message sees it counted.
                    self.count();
                    self.listeners.retain_mut(|listener| listener.hand(&message));
                }
            }
        }
    }

    fn count(&self) {
        let mut counts = self.left;
        self.voices
            .keys()
            .filter_map(|handle| self.senders.counts_of(*handle))
            .for_each(|of| add(&mut counts, of));
        let counted = [counts.delivered, counts.lost, counts.late, counts.refused + self.foreign];
        for (place, count) in self.shared.counts.iter().zip(counted) {
            place.store(count, Ordering::Relaxed);
        }
    }
}

/// Returns the content of a datagram, opened where the stream is sealed; `None` where it is not of its
/// sender.
fn opened<'a>(voice: &Voice, datagram: &[u8], header: Header, payload: &'a [u8]) -> Option<Cow<'a, [u8]>> {
    let Some(seal) = &voice.seal else {
        return (!header.sealed).then_some(Cow::Borrowed(payload));
    };
    let (sealed, tag) = payload.split_last_chunk::<TAG_LEN>().filter(|_| header.sealed)?;
    let before = &datagram[..datagram.len() - payload.len()];
    let before = &before[before.len() - HEADER_LEN..];
    let mut sum = seal.tag();
    sum.header(before);
    sum.payload(sealed);
    let mut opened = sum.is(tag).then(|| sealed.to_vec())?;
    seal_piece(seal, header.number, header.piece, &mut opened);
    Some(Cow::Owned(opened))
}

fn add(sum: &mut OrderCounts, counts: OrderCounts) {
    sum.delivered += counts.delivered;
    sum.lost += counts.lost;
    sum.late += counts.late;
    sum.refused += counts.refused;
}
