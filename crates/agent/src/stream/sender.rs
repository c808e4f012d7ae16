//! The sending end: messages as numbered datagrams, several in one system call.

use super::StreamError;
use crate::transfer::Path;
use polycast_net::priority::Dscp;
use polycast_net::seal::Seal;
use polycast_net::udp::{DATAGRAM_LEN_MAX, DataSender, SEGMENTS_MAX};
use polycast_types::Handle;
use polycast_wire::data::{IP_UDP_LEN, TAG_LEN, Tag};
use polycast_wire::stream::{HEADER_LEN, Header, MESSAGE_LEN_MAX};
use std::collections::VecDeque;
use std::io::IoSlice;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The shortest piece of a message, whatever the interface says.
const PIECE_LEN_MIN: usize = 256;
/// Bytes that switches may put before a packet of ours: a label, and a UDP header.
const LABEL_LEN_MAX: usize = 300;

/// Counters of a source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Messages that were taken; the number of the next one.
    pub messages: u64,
    /// Messages among them that no receiver listened to.
    pub unheard: u64,
    /// Messages among them that the network would not take.
    pub failed: u64,
}

/// A datagram that waits: its header, and where its payload lies.
struct Waiting {
    header: [u8; HEADER_LEN],
    /// Behind the payload, where the stream is sealed.
    tag: Option<Tag>,
    message: u64,
    payload: std::ops::Range<usize>,
}

struct Open {
    socket: DataSender,
    group: SocketAddr,
    /// Bytes of a piece.
    piece_len: usize,
}

/// The sending end of a stream.
pub struct Sender {
    interface: IpAddr,
    mtu: u32,
    stream: Handle,
    /// Seal of the stream.
    seal: Option<Seal>,
    /// The class of service that its packets are marked with.
    dscp: Option<Dscp>,
    /// True if switches put labels before its packets, which they do with one packet at a time.
    labelled_on_the_way: bool,
    path: Option<Open>,
    /// Payloads of messages that wait, one after the other.
    bytes: Vec<u8>,
    queue: VecDeque<Waiting>,
    sent: Sent,
    /// The number of the next message, for those that ask. It is counted before any byte of a message is
    /// sent.
    next: Arc<AtomicU64>,
}

impl Sender {
    /// A stream without a way yet, through the interface with this address and MTU; sealed where there is a
    /// `seal`, which must be of this stream alone.
    #[must_use]
    pub fn new(interface: IpAddr, mtu: u32, stream: Handle, seal: Option<Seal>) -> Self {
        let (bytes, queue) = (Vec::new(), VecDeque::new());
        let (sent, next) = (Sent::default(), Arc::default());
        let (dscp, labelled_on_the_way, path) = (None, false, None);
        Sender { interface, mtu, stream, seal, dscp, labelled_on_the_way, path, bytes, queue, sent, next }
    }

    /// The same, with packets marked with a class of service, where there is one.
    #[must_use]
    pub fn with_class(self, dscp: Option<Dscp>) -> Self {
        Sender { dscp, ..self }
    }

    /// The same, with packets that switches can put labels before: each is short enough, and sent by itself.
    #[must_use]
    pub fn with_room_for_labels(self) -> Self {
        Sender { labelled_on_the_way: true, ..self }
    }

    /// Seals what is sent from now on. A seal stays when it is given again.
    pub fn set_seal(&mut self, seal: Option<Seal>) {
        if self.seal.is_none() && seal.is_some() {
            // Its pieces are shorter.
            (self.seal, self.path) = (seal, None);
        }
    }

    /// The number of the next message, as it is at any time.
    #[must_use]
    pub fn next_number(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.next)
    }

    /// Returns the counters.
    #[must_use]
    pub fn sent(&self) -> Sent {
        self.sent
    }

    /// The way from now on; `None` while no receiver listens.
    ///
    /// # Errors
    /// It is no multicast, or there is no socket for it. Then there is none.
    pub fn set_path(&mut self, path: Option<&Path>) -> Result<(), StreamError> {
        let before = self.path.take();
        let Some(path) = path else { return Ok(()) };
        let Path::Multicast { group, outer, .. } = path else { return Err(StreamError::Path) };
        let outer_len = outer.first().map_or(0, Vec::len);
        let open = match before {
            Some(mut open) if open.group == *group && open.socket.outer_len() == outer_len => {
                open.socket.set_outer(outer.clone());
                open
            }
            _ => {
                let socket = DataSender::open(self.interface, *group)?.with_class(self.dscp)?;
                let socket = socket.with_outer(outer.clone());
                let tag_len = self.seal.as_ref().map_or(0, |_| TAG_LEN);
                let spare = if self.labelled_on_the_way { LABEL_LEN_MAX } else { 0 };
                let room = (self.mtu.min(65_535) as usize)
                    .saturating_sub(IP_UDP_LEN + outer_len + spare + HEADER_LEN + tag_len);
                Open { socket, group: *group, piece_len: room.max(PIECE_LEN_MIN) }
            }
        };
        self.path = Some(open);
        Ok(())
    }

    /// Takes a message; [`Sender::flush`] sends it.
    ///
    /// # Errors
    /// It is too long, and gets no number.
    pub fn push(&mut self, payload: &[u8]) -> Result<(), StreamError> {
        if payload.len() > MESSAGE_LEN_MAX {
            return Err(StreamError::TooLong { len: payload.len(), most: MESSAGE_LEN_MAX });
        }
        let number = self.sent.messages;
        self.sent.messages += 1;
        self.next.store(self.sent.messages, Ordering::SeqCst);
        let Some(Open { piece_len, .. }) = &self.path else {
            self.sent.unheard += 1;
            return Ok(());
        };
        if self.queue.is_empty() {
            self.bytes.clear();
        }
        let start = self.bytes.len();
        self.bytes.extend_from_slice(payload);
        let pieces = payload.len().div_ceil(*piece_len).max(1);
        for piece in 0..pieces {
            let at = start + piece * piece_len;
            let sealed = self.seal.is_some();
            let (piece, pieces) = (piece as u16, pieces as u16);
            let header = Header { stream: self.stream, number, piece, pieces, sealed };
            let mut bytes = Vec::with_capacity(HEADER_LEN);
            header.emit(&mut bytes);
            let mut fixed = [0; HEADER_LEN];
            fixed.copy_from_slice(&bytes);
            let payload = at..(at + piece_len).min(self.bytes.len());
            let tag = self.seal.as_ref().map(|seal| {
                seal_piece(seal, number, piece, &mut self.bytes[payload.clone()]);
                let whole = seal.tag_of(&fixed, &self.bytes[payload.clone()]);
                *whole.first_chunk::<TAG_LEN>().expect("a tag is cut")
            });
            self.queue.push_back(Waiting { header: fixed, tag, message: number, payload });
        }
        Ok(())
    }

    /// Sends what waits; gives `false` where the socket is full and some of it still does.
    pub fn flush(&mut self) -> bool {
        while !self.queue.is_empty() {
            let Some(open) = &mut self.path else {
                // The last receiver that listened has gone meanwhile.
                self.drop_messages(|sent| &mut sent.unheard);
                return true;
            };
            let run = match self.labelled_on_the_way {
                true => 1,
                false => run_len(&self.queue, open.socket.outer_len()),
            };
            let mut parts = Vec::with_capacity(3 * run);
            let parts_each = if self.seal.is_some() { 3 } else { 2 };
            for waiting in self.queue.iter().take(run) {
                parts.extend([
                    IoSlice::new(&waiting.header),
                    IoSlice::new(&self.bytes[waiting.payload.clone()]),
                ]);
                parts.extend(waiting.tag.iter().map(|tag| IoSlice::new(tag)));
            }
            let tag_len = self.seal.as_ref().map_or(0, |_| TAG_LEN);
            let segment_len = HEADER_LEN + self.queue[0].payload.len() + tag_len;
            match open.socket.send(&parts, parts_each, segment_len) {
                Ok(true) => drop(self.queue.drain(..run)),
                Ok(false) => return false,
                Err(error) => {
                    tracing::warn!(stream = self.stream.0, %error, "messages cannot be sent");
                    self.drop_messages(|sent| &mut sent.failed);
                }
            }
        }
        true
    }

    /// Throws away what waits, and counts its messages.
    fn drop_messages(&mut self, count: impl Fn(&mut Sent) -> &mut u64) {
        let mut last = None;
        for waiting in self.queue.drain(..) {
            if last.replace(waiting.message) != Some(waiting.message) {
                *count(&mut self.sent) += 1;
            }
        }
    }
}

/// Seals or opens a piece of a message. Each has bytes of the key stream of its own: no piece is longer than
/// a datagram.
pub(super) fn seal_piece(seal: &Seal, number: u64, piece: u16, bytes: &mut [u8]) {
    seal.turn(number, u64::from(piece) << 16, bytes);
}

/// Returns the number of datagrams at the front that one system call takes: all of one length, the last may
/// be shorter.
fn run_len(queue: &VecDeque<Waiting>, outer_len: usize) -> usize {
    let len = queue.front().map_or(0, |first| first.payload.len());
    let most = (DATAGRAM_LEN_MAX / (outer_len + HEADER_LEN + len + TAG_LEN)).clamp(1, SEGMENTS_MAX);
    let mut run = 0;
    for waiting in queue.iter().take(most) {
        if waiting.payload.len() > len {
            break;
        }
        run += 1;
        if waiting.payload.len() < len {
            break;
        }
    }
    run
}
