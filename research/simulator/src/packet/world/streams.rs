//! Connections: two directions of TCP between two hosts, over paths of the network.

use super::frames::Frame;
use super::{Alarm, Datagram, Token};
use crate::packet::tcp::{SEGMENT_HEADER_LEN, TcpConfig, TcpReceiver, TcpSender};
use crate::packet::{LinkId, Network, NodeId};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

/// A connection of a [`super::Cluster`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StreamId(pub u32);

/// One of a connection's two ends: the one that opened it is 0, the other 1.
pub type End = u8;

/// Effect of a segment at a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// Nothing for the host there.
    Nothing,
    /// Data came to its end: [`Streams::next_frame`] is worth a look.
    Data,
    /// An acknowledgement came: there may be room to write.
    Room,
}

/// A segment on its way.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    pub(super) stream: StreamId,
    /// The end that it goes to.
    pub(super) to: End,
    /// The path's link that it is on.
    pub(super) hop: u16,
    /// Data from here on, `len` bytes; with none it is an acknowledgement of all before `at`.
    pub(super) at: u64,
    pub(super) len: u32,
    /// Changed on the way: the checksum will say so.
    pub(super) corrupt: bool,
}

impl Segment {
    /// Its connection.
    pub(super) fn stream(&self) -> StreamId {
        self.stream
    }

    pub(super) fn digest(&self) -> u64 {
        let place = u64::from(self.stream.0) << 32 | u64::from(self.hop) << 2 | u64::from(self.to) << 1;
        self.at.wrapping_mul(0x9e37_79b9_7f4a_7c15)
            ^ u64::from(self.len) << 48
            ^ place
            ^ u64::from(self.corrupt)
    }
}

/// Data that one end sends, and the part of it that the other has.
struct Direction {
    sender: TcpSender,
    receiver: TcpReceiver,
    /// Frames that the other end has not got, with the byte after each.
    frames: VecDeque<(u64, Frame)>,
    /// Links from the sending end to the other; empty while there is no way.
    path: Vec<LinkId>,
    alarm: Alarm,
    /// Set while it waits for room in the queue of its host's link.
    waits: bool,
}

struct Stream {
    ends: [NodeId; 2],
    directions: [Direction; 2],
    hash: u64,
    open: bool,
}

/// Bytes that connections that waited may hand over together when their link is idle, where data channels
/// have filled the queue just before: half of a segmented datagram, beside the three that those have handed
/// over.
const TURN_BYTES: u64 = 32 << 10;

impl Direction {
    /// Sends the next segment, if there is one: how many bytes it has on the link.
    fn send(&mut self, net: &mut Network<Datagram>, id: StreamId, from: End) -> Option<u32> {
        let range = self.sender.poll(net.now())?;
        let len = (range.end - range.start) as u32;
        let segment = Segment { stream: id, to: 1 - from, hop: 0, at: range.start, len, corrupt: false };
        if let Some(&link) = self.path.first() {
            net.send_own(link, Datagram::Segment(segment), len + SEGMENT_HEADER_LEN, 0);
        }
        Some(len + SEGMENT_HEADER_LEN)
    }
}

/// All connections.
///
/// A host's own connections fill at most half of the queue of its link and then wait, as the kernel has them
/// do: it does not drop what its own TCP sends, it lets it send later. Those that wait are served in turn, a
/// segment each.
pub struct Streams {
    config: TcpConfig,
    streams: Vec<Stream>,
    /// The connections that wait for room on a link, in the order in which they are served.
    waiting: BTreeMap<LinkId, VecDeque<(StreamId, End)>>,
}

impl Streams {
    pub(super) fn new(config: TcpConfig) -> Self {
        Streams { config, streams: Vec::new(), waiting: BTreeMap::new() }
    }

    /// Returns the number of connections, closed ones too.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.streams.len() as u32
    }

    /// Opens a connection without a path; [`Streams::set_path`] gives it one.
    pub(super) fn open(&mut self, from: NodeId, to: NodeId, hash: u64) -> StreamId {
        let direction = || Direction {
            sender: TcpSender::new(self.config),
            receiver: TcpReceiver::default(),
            frames: VecDeque::new(),
            path: Vec::new(),
            alarm: Alarm::default(),
            waits: false,
        };
        let directions = [direction(), direction()];
        self.streams.push(Stream { ends: [from, to], directions, hash, open: true });
        StreamId(self.streams.len() as u32 - 1)
    }

    /// Ends a connection; what is on the way is ignored.
    pub(super) fn close(&mut self, id: StreamId) {
        let stream = &mut self.streams[id.0 as usize];
        stream.open = false;
        for direction in &mut stream.directions {
            direction.frames = VecDeque::new();
            direction.path = Vec::new();
        }
    }

    pub(super) fn is_open(&self, id: StreamId) -> bool {
        self.streams[id.0 as usize].open
    }

    /// The hosts at both ends and the hash that chooses among equal paths; open connections only.
    pub(super) fn wants_path(&self, id: StreamId) -> Option<([NodeId; 2], u64)> {
        let stream = &self.streams[id.0 as usize];
        stream.open.then_some((stream.ends, stream.hash))
    }

    /// The links on which an end sends; none while there is no way.
    pub(super) fn set_path(&mut self, id: StreamId, from: End, path: Option<Vec<LinkId>>) {
        self.streams[id.0 as usize].directions[usize::from(from)].path = path.unwrap_or_default();
    }

    /// Returns true if there is a path from each end to the other.
    pub(super) fn has_path(&self, id: StreamId) -> bool {
        self.streams[id.0 as usize].directions.iter().all(|direction| !direction.path.is_empty())
    }

    /// Writes a frame of so many bytes at an end.
    pub(super) fn write(&mut self, id: StreamId, from: End, frame: Frame, bytes: u64) {
        let stream = &mut self.streams[id.0 as usize];
        if !stream.open {
            return;
        }
        let direction = &mut stream.directions[usize::from(from)];
        direction.sender.write(bytes);
        direction.frames.push_back((direction.sender.written(), frame));
    }

    /// Writes bytes that are no frames.
    pub(super) fn write_bytes(&mut self, id: StreamId, from: End, bytes: u64) {
        self.streams[id.0 as usize].directions[usize::from(from)].sender.write(bytes);
    }

    /// Bytes that an end has written and not sent yet.
    pub(super) fn waiting(&self, id: StreamId, from: End) -> u64 {
        self.streams[id.0 as usize].directions[usize::from(from)].sender.unsent()
    }

    /// Bytes that came from an end to the other without a gap.
    #[must_use]
    pub fn delivered(&self, id: StreamId, from: End) -> u64 {
        self.streams[id.0 as usize].directions[usize::from(from)].receiver.next()
    }

    /// Sends what an end may send now; what its host's link has no room for is sent when that is idle.
    pub(super) fn pump(&mut self, net: &mut Network<Datagram>, id: StreamId, from: End) {
        let stream = &mut self.streams[id.0 as usize];
        let direction = &mut stream.directions[usize::from(from)];
        if !stream.open || direction.waits {
            return;
        }
        loop {
            if let Some(&link) = direction.path.first()
                && (self.waiting.contains_key(&link) || !net.has_room(link, 0))
            {
                direction.waits = true;
                self.waiting.entry(link).or_default().push_back((id, from));
                net.notify_idle(link);
                // Its time-out is looked at when its turn comes.
                return;
            }
            if direction.send(net, id, from).is_none() {
                break;
            }
        }
        self.arm(net, id, from);
    }

    /// A host's link is idle: those that wait for it send in turn.
    pub(super) fn serve(&mut self, net: &mut Network<Datagram>, link: LinkId) {
        let Some(mut waiting) = self.waiting.remove(&link) else { return };
        let mut sent = 0;
        while (sent < TURN_BYTES || net.has_room(link, 0))
            && let Some((id, from)) = waiting.pop_front()
        {
            let direction = &mut self.streams[id.0 as usize].directions[usize::from(from)];
            if direction.path.first() != Some(&link) {
                direction.waits = false;
                self.pump(net, id, from);
            } else if let Some(bytes) = direction.send(net, id, from) {
                sent += u64::from(bytes);
                waiting.push_back((id, from));
            } else {
                direction.waits = false;
                self.arm(net, id, from);
            }
        }
        if !waiting.is_empty() {
            self.waiting.insert(link, waiting);
            net.notify_idle(link);
        }
    }

    fn arm(&mut self, net: &mut Network<Datagram>, id: StreamId, from: End) {
        let stream = &mut self.streams[id.0 as usize];
        let node = stream.ends[usize::from(from)];
        let direction = &mut stream.directions[usize::from(from)];
        let deadline = direction.sender.deadline();
        direction.alarm.set(net, node, Token::Stream(id, from), deadline);
    }

    pub(super) fn wake(&mut self, net: &mut Network<Datagram>, id: StreamId, from: End) {
        if self.streams[id.0 as usize].directions[usize::from(from)].alarm.rings(net.now()) {
            self.pump(net, id, from);
        }
    }

    /// A segment at `node`, the end of a link: passes it on, or takes it in.
    pub(super) fn arrive(
        &mut self,
        net: &mut Network<Datagram>,
        node: NodeId,
        mut segment: Segment,
    ) -> Arrival {
        let stream = &mut self.streams[segment.stream.0 as usize];
        let from = usize::from(1 - segment.to);
        let hop = usize::from(segment.hop) + 1;
        if !stream.open {
            return Arrival::Nothing;
        }
        if node != stream.ends[usize::from(segment.to)] {
            // A path that was changed meanwhile may not lead through this node any more: lost.
            if let Some(&link) = stream.directions[from].path.get(hop)
                && net.ends(link).0 == node
            {
                segment.hop += 1;
                net.send(link, Datagram::Segment(segment), segment.len + SEGMENT_HEADER_LEN, 0);
            }
            return Arrival::Nothing;
        }
        if segment.corrupt {
            return Arrival::Nothing;
        }
        if segment.len == 0 {
            stream.directions[usize::from(segment.to)].sender.acknowledge(net.now(), segment.at);
            self.pump(net, segment.stream, segment.to);
            return Arrival::Room;
        }
        let receiver = &mut stream.directions[from].receiver;
        receiver.segment(segment.at..segment.at + u64::from(segment.len));
        let back = Segment { to: 1 - segment.to, hop: 0, at: receiver.next(), len: 0, ..segment };
        if let Some(&link) = stream.directions[usize::from(segment.to)].path.first() {
            net.send_own(link, Datagram::Segment(back), SEGMENT_HEADER_LEN, 0);
        }
        Arrival::Data
    }

    /// The next frame that has come whole from an end to the other.
    pub(super) fn next_frame(&mut self, id: StreamId, from: End) -> Option<Frame> {
        let direction = &mut self.streams[id.0 as usize].directions[usize::from(from)];
        let (end, _) = direction.frames.front()?;
        if *end > direction.receiver.next() {
            return None;
        }
        direction.frames.pop_front().map(|(_, frame)| frame)
    }
}
