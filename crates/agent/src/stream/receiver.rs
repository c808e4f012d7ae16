//! The receiving end: a thread that hears a stream's group and gives its messages in order to all that
//! listen.

use super::StreamError;
use super::sender::seal_piece;
use crate::transfer::Path;
use crate::transfer::clock::{Clock, wait};
use polycast_net::seal::Seal;
use polycast_net::udp::{DataReceiver, Only, Outer};
use polycast_protocol::stream::{Order, OrderConfig, OrderInput, OrderOutput};
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

/// Messages that may wait for others before them.
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
    /// Stream that packets carry.
    pub stream: Handle,
    /// The address that they come from, where that is known.
    pub source: Option<IpAddr>,
    /// Time that a message waits for those before it.
    pub hold: Duration,
    /// The number of the source's next message when this receiver had joined: what has a lower one was sent
    /// before, and any host may have recorded it.
    pub from: u64,
    /// Seal of the stream; with it nothing else is accepted.
    pub seal: Option<Seal>,
}

/// A message that has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Its number.
    pub number: u64,
    /// Number of messages lost right before it.
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
    /// Messages that it had no room for since the last one that it got.
    missed: u64,
}

impl Listener {
    /// Hands a message over; gives whether the listener is still there.
    fn hand(&mut self, message: &Message) -> bool {
        let (len, lost) = (message.payload.len(), message.lost + self.missed);
        let room = self.queued_bytes.load(Ordering::Relaxed) + len <= QUEUE_BYTES_MAX;
        let sent = match room {
            true => self.outbox.try_send(Message { lost, ..message.clone() }),
            false => Err(mpsc::error::TrySendError::Full(message.clone())),
        };
        match sent {
            Ok(()) => {
                self.queued_bytes.fetch_add(len, Ordering::Relaxed);
                self.missed = 0;
                true
            }
            Err(mpsc::error::TrySendError::Full(_)) => {
                self.missed = lost + 1;
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
    pub fn start(options: ReceiverOptions, way: Way) -> Result<Self, StreamError> {
        let socket = open(&options, way)?;
        let (woken, wake) = io::pipe()?;
        let orders = Mutex::new(Orders { way: Some(way), joining: Vec::new() });
        let shared = Arc::new(Shared { orders, counts: Default::default() });
        let order = Order::new(OrderConfig {
            hold: options.hold,
            messages_max: MESSAGES_MAX,
            bytes_max: WAITING_BYTES_MAX,
        });
        let order = order.not_before(options.from);
        let task = Task {
            options,
            way,
            socket: Some(socket),
            woken,
            order,
            clock: Clock::start(),
            kept: BTreeMap::new(),
            listeners: Vec::new(),
            foreign: 0,
            shared: Arc::clone(&shared),
        };
        std::thread::Builder::new().name("stream".into()).spawn(move || task.run())?;
        Ok(Receiver { shared, wake })
    }

    /// The stream comes another way from now on.
    pub fn set_way(&self, way: Way) {
        self.order(|orders| orders.way = Some(way));
    }

    /// One more listener from now on.
    #[must_use]
    pub fn listen(&self) -> Inbox {
        let (outbox, inbox) = mpsc::channel(QUEUE_MAX);
        let queued_bytes = Arc::new(AtomicUsize::new(0));
        let listener = Listener { outbox, queued_bytes: Arc::clone(&queued_bytes), missed: 0 };
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

fn open(options: &ReceiverOptions, way: Way) -> io::Result<DataReceiver> {
    let socket = DataReceiver::open(way.group.ip())?;
    let outer = if way.labelled { Outer::Label } else { Outer::Bytes(0) };
    let only = Only { source: options.source, handle: options.stream, outer };
    socket.join(options.interface, way.group, only)?;
    Ok(socket)
}

/// The pieces of a message that are here.
type Pieces = BTreeMap<u16, Vec<u8>>;

struct Task {
    options: ReceiverOptions,
    way: Way,
    /// None where the group could not be joined.
    socket: Option<DataReceiver>,
    woken: PipeReader,
    order: Order,
    clock: Clock,
    /// With the time when the last piece came.
    kept: BTreeMap<u64, (Pieces, u64)>,
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
            if let Err(error) = wait(&mut fds, self.clock.now(), self.order.deadline(), LOOK_AGAIN) {
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
        let (way, joining) = {
            let mut orders = self.shared.orders();
            (orders.way, std::mem::take(&mut orders.joining))
        };
        self.listeners.extend(joining);
        let Some(way) = way else { return false };
        if way != self.way {
            let opened = open(&self.options, way);
            if let Err(error) = &opened {
                tracing::warn!(group = %way.group, %error, "a stream's group cannot be joined");
            }
            (self.socket, self.way) = (opened.ok(), way);
        }
        true
    }

    fn receive(&mut self, buffer: &mut [u8]) {
        for _ in 0..BURST_MAX {
            let Some(socket) = &mut self.socket else { return };
            match socket.receive(&mut [IoSliceMut::new(buffer)]) {
                Ok(Some(arrival)) => {
                    let arrived = SystemTime::now().checked_sub(arrival.waited).unwrap_or(UNIX_EPOCH);
                    let since = arrived.duration_since(UNIX_EPOCH).unwrap_or_default();
                    let arrived = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
                    for datagram in buffer[..arrival.len].chunks(arrival.segment_len.max(1)) {
                        self.take(datagram, arrived);
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

    fn take(&mut self, datagram: &[u8], arrived: u64) {
        let inner = match self.way.labelled {
            true => label::Header::parse(datagram).map(|(_, len)| &datagram[len..]),
            false => Ok(datagram),
        };
        let parsed = inner.and_then(Header::parse);
        let Ok((header, payload)) = parsed else { return self.foreign += 1 };
        if header.stream != self.options.stream {
            return self.foreign += 1;
        }
        let Some(payload) = self.open(datagram, header, payload) else { return self.foreign += 1 };
        let Header { number, piece, pieces, .. } = header;
        let input = OrderInput::Piece { number, piece, pieces, len: payload.len() };
        if self.order.handle(self.clock.now(), input) {
            let (kept, last) = self.kept.entry(number).or_default();
            kept.insert(piece, payload.into_owned());
            *last = arrived;
        }
        // Before more comes: what is whole needs no room.
        self.deliver();
    }

    /// Returns the content of a datagram, opened where the stream is sealed; `None` where it is not of its
    /// source.
    fn open<'a>(&self, datagram: &[u8], header: Header, payload: &'a [u8]) -> Option<Cow<'a, [u8]>> {
        let Some(seal) = &self.options.seal else {
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

    fn deliver(&mut self) {
        while let Some(output) = self.order.poll(self.clock.now()) {
            match output {
                OrderOutput::Forget { number } => drop(self.kept.remove(&number)),
                OrderOutput::Deliver { number, lost } => {
                    let Some((mut pieces, arrived_unix_ns)) = self.kept.remove(&number) else { continue };
                    let payload = match (pieces.len(), pieces.pop_first()) {
                        (1, Some((_, only))) => only,
                        (_, Some((_, first))) => pieces.into_values().fold(first, |mut all, piece| {
                            all.extend_from_slice(&piece);
                            all
                        }),
                        (_, None) => Vec::new(),
                    };
                    let message = Message { number, lost, arrived_unix_ns, payload: Arc::new(payload) };
                    // A listener that has the message sees it counted.
                    self.count();
                    self.listeners.retain_mut(|listener| listener.hand(&message));
                }
            }
        }
    }

    fn count(&self) {
        let counts = self.order.counts();
        let counted = [counts.delivered, counts.lost, counts.late, counts.refused + self.foreign];
        for (place, count) in self.shared.counts.iter().zip(counted) {
            place.store(count, Ordering::Relaxed);
        }
    }
}
