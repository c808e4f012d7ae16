//! A TCP connection that shares links with pull traffic (Datacast, section 7 and appendix B.3).

use super::Datagram;
use crate::packet::tcp::{TcpConfig, TcpReceiver, TcpSender};
use crate::packet::{LinkId, Network, NodeId};
use alloc::vec::Vec;
use polycast_types::Time;

/// A segment on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    pub(super) flow: u16,
    /// The link of the path that it is on.
    pub(super) hop: u16,
    pub(super) kind: SegmentKind,
}

/// Content of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SegmentKind {
    /// Bytes of the stream.
    Data { start: u64, len: u32 },
    /// Everything before this byte is there.
    Acknowledgement { next: u64 },
    /// Changed on the way; the checksum says so.
    Corrupt,
}

/// A connection that is to be opened.
#[derive(Clone, Debug)]
pub struct FlowConfig {
    /// The nodes of its path, from the sender to the receiver; acknowledgements go the same way back.
    pub nodes: Vec<NodeId>,
    /// Settings of TCP.
    pub tcp: TcpConfig,
    /// Bytes of a segment beside its data, and of an acknowledgement.
    pub header_bytes: u32,
    /// Number of bytes to send; `u64::MAX` is without an end.
    pub bytes: u64,
}

/// A TCP connection along a fixed path.
#[derive(Debug)]
pub struct Flow {
    number: u16,
    header_bytes: u32,
    there: Vec<LinkId>,
    back: Vec<LinkId>,
    sender: TcpSender,
    receiver: TcpReceiver,
    from: NodeId,
    bytes: u64,
    armed: Time,
    finished_at: Option<Time>,
}

impl Flow {
    /// A connection that has sent nothing; `None` if two nodes of its path are not joined by a link.
    pub(super) fn new(net: &Network<Datagram>, number: u16, config: &FlowConfig) -> Option<Self> {
        let link = |pair: &[NodeId]| net.link_between(pair[0], pair[1]);
        let there: Vec<LinkId> = config.nodes.windows(2).map(link).collect::<Option<_>>()?;
        let back = there.iter().rev().map(|&link| net.reverse(link)).collect::<Option<_>>()?;
        let mut sender = TcpSender::new(config.tcp);
        sender.write(config.bytes);
        Some(Flow {
            number,
            header_bytes: config.header_bytes,
            from: *config.nodes.first()?,
            there,
            back,
            sender,
            receiver: TcpReceiver::default(),
            bytes: config.bytes,
            armed: Time(u64::MAX),
            finished_at: None,
        })
    }

    /// Bytes that have arrived in order.
    #[must_use]
    pub fn received(&self) -> u64 {
        self.receiver.next()
    }

    /// Segments that were sent again.
    #[must_use]
    pub fn retransmissions(&self) -> u64 {
        self.sender.retransmissions()
    }

    /// Returns the time at which everything had arrived.
    #[must_use]
    pub fn finished_at(&self) -> Option<Time> {
        self.finished_at
    }

    /// The application has nothing more to send after what is out already.
    pub(super) fn end(&mut self) {
        self.bytes = 0;
    }

    pub(super) fn arrive(&mut self, net: &mut Network<Datagram>, segment: Segment) {
        let path = match segment.kind {
            SegmentKind::Acknowledgement { .. } => &self.back,
            _ => &self.there,
        };
        let hop = segment.hop + 1;
        if let Some(&link) = path.get(usize::from(hop)) {
            self.send(net, link, Segment { hop, ..segment });
            return;
        }
        match segment.kind {
            SegmentKind::Data { start, len } => {
                self.receiver.segment(start..start + u64::from(len));
                if self.receiver.next() >= self.bytes && self.finished_at.is_none() {
                    self.finished_at = Some(net.now());
                }
                let kind = SegmentKind::Acknowledgement { next: self.receiver.next() };
                self.send(net, self.back[0], Segment { flow: self.number, hop: 0, kind });
            }
            SegmentKind::Acknowledgement { next } => {
                self.sender.acknowledge(net.now(), next);
                self.drive(net);
            }
            SegmentKind::Corrupt => {}
        }
    }

    pub(super) fn timer(&mut self, net: &mut Network<Datagram>) {
        if net.now() >= self.armed {
            self.armed = Time(u64::MAX);
            self.drive(net);
        }
    }

    /// Sends what the window allows.
    pub(super) fn drive(&mut self, net: &mut Network<Datagram>) {
        if self.bytes == 0 {
            return;
        }
        while let Some(range) = self.sender.poll(net.now()) {
            let kind = SegmentKind::Data { start: range.start, len: (range.end - range.start) as u32 };
            self.send(net, self.there[0], Segment { flow: self.number, hop: 0, kind });
        }
        if let Some(at) = self.sender.deadline()
            && at < self.armed
        {
            self.armed = at.max(net.now());
            net.set_timer(self.from, at, 1 + u64::from(self.number));
        }
    }

    fn send(&self, net: &mut Network<Datagram>, link: LinkId, segment: Segment) {
        let payload = if let SegmentKind::Data { len, .. } = segment.kind { len } else { 0 };
        net.send(link, Datagram::Segment(segment), payload + self.header_bytes, 0);
    }
}
