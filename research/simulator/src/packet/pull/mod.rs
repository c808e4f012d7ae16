//! Nodes of the pull transport: the very forwarders, receivers and sources of `protocol::pull`, on the
//! engine.
//!
//! A switch is a forwarder; a server is a forwarder with receivers and sources behind its local face, so that
//! a server of BCube forwards and receives at the same time. In place of a payload a packet carries a number
//! that stands for its bytes; a receiver compares it as a real one compares hashes.

mod flow;
mod group;
mod node;
mod watch;
mod world;

pub use flow::{Flow, FlowConfig, Segment};
pub use group::{Group, GroupError};
pub use node::{PullNode, ReceiverLog};
pub use watch::LinkNews;
pub use world::PullWorld;
pub use world::port_of;

use super::Packet;
use flow::SegmentKind;
use polycast_protocol::pull;
use polycast_types::Handle;

/// A packet of the pull transport with a number in place of its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PullPacket {
    /// Everything but the payload.
    pub packet: pull::Packet,
    /// Stands for the payload; of no meaning in an interest.
    pub content: u32,
}

impl Packet for PullPacket {
    fn digest(&self) -> u64 {
        match &self.packet {
            pull::Packet::Interest(interest) => {
                interest.name.sn << 8 | u64::from(interest.tree) << 1 | u64::from(interest.fresh) << 4
            }
            pull::Packet::Data(data) => {
                data.name.sn << 40 ^ u64::from(self.content) << 8 ^ u64::from(data.tree) << 1 ^ 1
            }
        }
    }

    /// A bit of the payload flips; headers have a checksum, and a node that finds it wrong drops the packet.
    fn corrupt(&mut self, draw: u64) {
        self.content ^= 1 << (draw % 32);
    }
}

/// Datagram in a [`PullWorld`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Datagram {
    /// An interest or data.
    Pull(PullPacket),
    /// A segment of a TCP connection.
    Segment(Segment),
    /// A greeting of a neighbour, who hears the other end or does not; it is in order, or was damaged on its
    /// way.
    Greeting {
        /// Set if the neighbour receives from the other end.
        heard: bool,
        /// Set if the greeting can be read.
        whole: bool,
    },
}

impl From<PullPacket> for Datagram {
    fn from(packet: PullPacket) -> Self {
        Datagram::Pull(packet)
    }
}

impl Packet for Datagram {
    fn digest(&self) -> u64 {
        match self {
            Datagram::Pull(packet) => packet.digest(),
            Datagram::Greeting { heard, whole } => 3 << 62 | u64::from(*heard) << 1 | u64::from(*whole),
            Datagram::Segment(segment) => {
                let what = match segment.kind {
                    SegmentKind::Data { start, len } => start << 16 ^ u64::from(len) << 1 | 1,
                    SegmentKind::Acknowledgement { next } => next << 16,
                    SegmentKind::Corrupt => 7,
                };
                what.wrapping_mul(0x9e37_79b9_7f4a_7c15)
                    ^ u64::from(segment.flow) << 8
                    ^ u64::from(segment.hop)
            }
        }
    }

    fn corrupt(&mut self, draw: u64) {
        match self {
            Datagram::Pull(packet) => packet.corrupt(draw),
            Datagram::Segment(segment) => segment.kind = SegmentKind::Corrupt,
            Datagram::Greeting { whole, .. } => *whole = false,
        }
    }
}

/// Returns a number that stands for the payload of a packet of a transfer.
#[must_use]
pub fn content_of(transfer: Handle, sn: u64) -> u32 {
    let mixed = (transfer.0 ^ sn.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    (mixed >> 32) as u32
}
