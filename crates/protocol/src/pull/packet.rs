//! What the machines say to each other: interests and data (Datacast, section 6).

use polycast_types::Handle;

use super::route::Route;

/// A packet's name: the transfer, and the packet's number in the object.
///
/// The paper's names are paths of any length in a trie. Numbers say the same in 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name {
    /// The transfer.
    pub transfer: Handle,
    /// The packet's number in the object, from 0.
    pub sn: u64,
}

/// Which block follows in a tree: the source's decision, piggybacked on the last packets of a block
/// (section 5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The packet does not say.
    Open,
    /// The tree goes on with this block.
    Next(u32),
    /// The tree has no further block.
    End,
}

/// A request for one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interest {
    /// What is asked for.
    pub name: Name,
    /// The way to the source; behind the packet it has become the way back.
    pub route: Route,
    /// The tree that the route belongs to.
    pub tree: u8,
    /// Only the source may answer: what caches hold has turned out to be corrupt.
    pub fresh: bool,
}

/// One packet of the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Data {
    /// Which packet it is.
    pub name: Name,
    /// The way to the next node that keeps packets.
    pub route: Route,
    /// Which block follows in the tree.
    pub decision: Decision,
    /// Bytes of payload.
    pub length: u16,
    /// The tree that it was sent in.
    pub tree: u8,
    /// The source sends it again: it goes to the part of content stores that is for retransmissions.
    pub again: bool,
}

/// A packet of the pull transport, without payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packet {
    /// A request.
    Interest(Interest),
    /// An answer.
    Data(Data),
}

/// Where a packet came from, or goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Face {
    /// The receiver or source at the same node.
    Local,
    /// A port of the node.
    Port(u8),
}

/// Where the driver finds the payload of a packet that it is to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload {
    /// There is none: the packet is an interest.
    None,
    /// It came with the packet of the last input.
    Arrived,
    /// It lies in this slot of the content store.
    Slot(u32),
}
