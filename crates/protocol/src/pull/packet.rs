//! Messages between the machines: interests and data (Datacast, section 6).

use polycast_types::Handle;
pub use polycast_wire::pull::Digest;
use polycast_wire::pull::{Follows, Header, Kind};

use super::Route;

/// A packet's name: the transfer, the packet's number in the object, and what its payload hashes to.
///
/// The paper's names are paths of any length in a trie. Numbers say the same in 32 bytes. With the digest in
/// the name, a forwarder can tell whether a payload belongs to what was asked for, and keeps nothing else: a
/// host that forges a packet would have to be asked for it by that very digest. The machines only compare
/// digests; drivers, which see the payload, put them in and check them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name {
    /// The transfer.
    pub transfer: Handle,
    /// The packet's number in the object, from 0.
    pub sn: u64,
    /// The digest of the payload; zero as long as no driver has put it in.
    pub digest: Digest,
}

impl Name {
    /// A name without a digest.
    #[must_use]
    pub fn new(transfer: Handle, sn: u64) -> Self {
        Name { transfer, sn, digest: Digest::default() }
    }

    /// The same name with a digest.
    #[must_use]
    pub fn with_digest(self, digest: Digest) -> Self {
        Name { digest, ..self }
    }
}

/// Block that follows in a tree: the source's decision, piggybacked on the last packets of a block (section
/// 5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The packet does not say.
    Open,
    /// The tree goes on with this block.
    Next(u32),
    /// The tree has no further block.
    End,
    /// The tree has come to this packet of the object: the source's answer to an interest past all stores.
    /// Not in the paper, whose receivers ask for all that they have missed before they go on.
    At(u32),
}

/// A request for one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interest {
    /// Name of the requested packet.
    pub name: Name,
    /// The way to the source; behind the packet it has become the way back.
    pub route: Route,
    /// The tree that the route belongs to.
    pub tree: u8,
    /// Only the source may answer: what caches hold has turned out to be corrupt, or the receiver was cut off
    /// and does not know where the tree is.
    pub fresh: bool,
}

/// One packet of the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Data {
    /// Name of the packet.
    pub name: Name,
    /// The way to the next node that keeps packets.
    pub route: Route,
    /// Block that follows in the tree.
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

impl Packet {
    /// The header of the packet on the wire.
    #[must_use]
    pub fn to_wire(&self) -> Header {
        let (name, route, tree, kind) = match self {
            Packet::Interest(interest) => {
                let kind = Kind::Interest { fresh: interest.fresh };
                (interest.name, interest.route, interest.tree, kind)
            }
            Packet::Data(data) => {
                let follows = match data.decision {
                    Decision::Open => Follows::Open,
                    Decision::Next(block) => Follows::Next(block),
                    Decision::End => Follows::End,
                    Decision::At(packet) => Follows::At(packet),
                };
                (data.name, data.route, data.tree, Kind::Data { again: data.again, follows })
            }
        };
        Header { kind, tree, hops: route.to_wire(), handle: name.transfer, sn: name.sn, digest: name.digest }
    }

    /// The packet of a header on the wire with a payload of this length.
    #[must_use]
    pub fn from_wire(header: &Header, length: u16) -> Self {
        let name = Name { transfer: header.handle, sn: header.sn, digest: header.digest };
        let (route, tree) = (Route::from_wire(&header.hops), header.tree);
        match header.kind {
            Kind::Interest { fresh } => Packet::Interest(Interest { name, route, tree, fresh }),
            Kind::Data { again, follows } => {
                let decision = match follows {
                    Follows::Open => Decision::Open,
                    Follows::Next(block) => Decision::Next(block),
                    Follows::End => Decision::End,
                    Follows::At(packet) => Decision::At(packet),
                };
                Packet::Data(Data { name, route, decision, length, tree, again })
            }
        }
    }
}

/// Origin or destination of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Face {
    /// The receiver or source at the same node.
    Local,
    /// A port of the node.
    Port(u8),
}

/// Location of the payload of a packet that the driver is to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload {
    /// There is none: the packet is an interest.
    None,
    /// It came with the packet of the last input.
    Arrived,
    /// It lies in this slot of the content store.
    Slot(u32),
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The wire carries packets as the machines sent them.
        #[test]
        fn packets_cross_the_wire_unchanged(
            hops in prop::collection::vec(any::<u8>(), 1..=14), position in 0u8..=14,
            handle: u64, sn: u64, digest: [u8; 16], tree: u8, bits: u8, block: u32, length: u16,
        ) {
            let route = Route::from_bytes(&hops, position.min(hops.len() as u8)).unwrap();
            let name = Name::new(Handle(handle), sn).with_digest(Digest(digest));
            let interest = Packet::Interest(Interest { name, route, tree, fresh: bits & 1 == 0 });
            let decisions = [Decision::Open, Decision::Next(block), Decision::End, Decision::At(block)];
            let decision = decisions[usize::from(bits >> 4 & 3)];
            let data = Packet::Data(Data { name, route, decision, length, tree, again: bits & 8 == 0 });
            prop_assert_eq!(Packet::from_wire(&interest.to_wire(), 0), interest);
            prop_assert_eq!(Packet::from_wire(&data.to_wire(), length), data);
        }
    }
}
