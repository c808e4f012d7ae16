//! Packets of the pull transport (Datacast, section 6): interests, data, and the greeting of neighbours.
//!
//! ```text
//!  0       1       2       3       4        5       6              20           24       32      40       56
//! +-------+-------+-------+-------+--------+-------+--------------+------------+--------+-------+--------+---------+
//! |version| kind  | flags | tree  |position| hops  | source route | next block | handle |  sn   | digest | payload |
//! +-------+-------+-------+-------+--------+-------+--------------+------------+--------+-------+--------+---------+
//! ```
//!
//! All packets have the same header, with every field at a fixed place, so that a node that only passes
//! packets on reads and writes two bytes of it: the hop at `position`, and `position` itself. The route has a
//! byte a hop, as in the paper: the port, and in the highest bit whether the node is a non-branching one. The
//! paper has room for 8 hops, and nodes take no more unless their settings say so; the format has room for
//! 14, as the trees of BCube(8, 4) need 10.
//!
//! The name of a packet is (handle, sn, digest). The digest is that of the payload which the receiver asks
//! for, so that a node that keeps packets can tell what belongs under a name without knowing the transfer. It
//! is a keyed hash, with handle and sn as the key: bytes that fit one name fit no other. Of the object's
//! packets in short payloads only the first bytes of it are used ([`digest_len`]); the rest of the field is
//! zero.

use crate::{VERSION, WireError};
use polycast_types::Handle;

/// Length of every header, and of a whole interest.
pub const HEADER_LEN: usize = 56;
/// The longest source route that a packet has room for, in hops.
pub const HOPS_MAX: usize = 14;
/// The longest source route that nodes take where nothing else is set, in hops: the paper's (section 6.1).
pub const HOPS_USUAL: usize = 8;
/// Offset of the position in the route.
pub const POSITION_AT: usize = 4;
/// Offset of the route.
pub const ROUTE_AT: usize = 6;
/// In a hop: the node feeds a single other one and keeps nothing.
pub const NON_BRANCHING: u8 = 0x80;
/// Bytes of a digest.
pub const DIGEST_LEN: usize = 16;
/// Bytes that are used of the digests of packets with short payloads.
pub const DIGEST_SHORT_LEN: usize = 6;
/// From this payload on digests are used whole.
pub const PAYLOAD_LONG: u16 = 4_096;

/// Number of bytes that are used of the digests of an object's packets with such payloads: names cost the
/// source less than 0.45 % of an object in frames of 1,500 bytes, and 0.22 % in frames of 9,000.
#[must_use]
pub fn digest_len(payload_bytes: u16) -> usize {
    if payload_bytes < PAYLOAD_LONG { DIGEST_SHORT_LEN } else { DIGEST_LEN }
}

const KIND_INTEREST: u8 = 1;
const KIND_DATA: u8 = 2;
const KIND_GREETING: u8 = 3;

const FLAG_FRESH: u8 = 1;
const FLAG_AGAIN: u8 = 2;
const FLAG_NEXT: u8 = 4;
const FLAG_END: u8 = 8;
/// Both of them: the field holds a packet of the object in place of a block.
const FLAG_AT: u8 = FLAG_NEXT | FLAG_END;

/// The first bytes of the keyed BLAKE3 hash of a packet's payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub [u8; DIGEST_LEN]);

impl Digest {
    /// The digest that a packet's hash gives, of which so many bytes are used.
    #[must_use]
    pub fn of_hash(hash: &[u8; 32], len: usize) -> Self {
        let mut digest = Digest::default();
        digest.0[..len].copy_from_slice(&hash[..len]);
        digest
    }

    /// Returns true if a payload with this hash belongs under the digest. A digest that is zero where short
    /// digests end is short.
    #[must_use]
    pub fn fits(&self, hash: &[u8; 32]) -> bool {
        let is_short = self.0[DIGEST_SHORT_LEN..].iter().all(|byte| *byte == 0);
        *self == Digest::of_hash(hash, if is_short { DIGEST_SHORT_LEN } else { DIGEST_LEN })
    }
}

/// Returns the key for the hash of a packet's payload.
#[must_use]
pub fn digest_key(handle: Handle, sn: u64) -> [u8; 32] {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&handle.0.to_be_bytes());
    key[8..16].copy_from_slice(&sn.to_be_bytes());
    key
}

/// A source route, and how far the packet has come on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hops {
    bytes: [u8; HOPS_MAX],
    len: u8,
    position: u8,
}

impl Hops {
    /// A route of these hops, of which `position` lie behind the packet. `None` if there are none or too
    /// many, or if the position lies beyond the end.
    #[must_use]
    pub fn new(hops: &[u8], position: u8) -> Option<Self> {
        if hops.is_empty() || hops.len() > HOPS_MAX || usize::from(position) > hops.len() {
            return None;
        }
        let mut bytes = [0; HOPS_MAX];
        bytes[..hops.len()].copy_from_slice(hops);
        Some(Hops { bytes, len: hops.len() as u8, position })
    }

    /// The hops.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// Returns the number of hops that lie behind the packet.
    #[must_use]
    pub fn position(&self) -> u8 {
        self.position
    }
}

/// Block that follows in the tree (section 5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follows {
    /// The packet does not say.
    Open,
    /// The tree goes on with this block.
    Next(u32),
    /// The tree has no further block.
    End,
    /// The tree has come to this packet of the object. Said to a receiver that asks past all stores: it may
    /// have missed much.
    At(u32),
}

/// Kind of a packet of the transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A request for the packet of this name.
    Interest {
        /// Only the source may answer.
        fresh: bool,
    },
    /// The packet of this name.
    Data {
        /// The source has sent it before.
        again: bool,
        /// Block that follows.
        follows: Follows,
    },
}

/// The header of an interest or of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Kind of the packet.
    pub kind: Kind,
    /// The tree.
    pub tree: u8,
    /// The route.
    pub hops: Hops,
    /// The transfer.
    pub handle: Handle,
    /// The number of the packet in the object.
    pub sn: u64,
    /// Digest of its payload.
    pub digest: Digest,
}

/// A packet between neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packet<'a> {
    /// An interest, or data with its payload.
    Transfer(Header, &'a [u8]),
    /// A neighbour is there.
    Greeting {
        /// True if the neighbour has heard from us lately: a link counts only if it works both ways.
        heard: bool,
    },
}

impl<'a> Packet<'a> {
    /// Reads a packet.
    ///
    /// # Errors
    /// Not a packet of this format or of this version.
    pub fn parse(datagram: &'a [u8]) -> Result<Self, WireError> {
        let (fixed, payload) = datagram.split_first_chunk::<HEADER_LEN>().ok_or(WireError::Malformed)?;
        let [version, kind, flags, tree, position, hops, ..] = *fixed;
        if version != VERSION {
            return Err(WireError::Version(version));
        }
        if kind == KIND_GREETING {
            let rest_is_zero = flags <= 1 && fixed[3..].iter().all(|byte| *byte == 0) && payload.is_empty();
            return if rest_is_zero {
                Ok(Packet::Greeting { heard: flags == 1 })
            } else {
                Err(WireError::Malformed)
            };
        }
        let route = &fixed[ROUTE_AT..ROUTE_AT + HOPS_MAX];
        let (used, unused) = route.split_at_checked(usize::from(hops)).ok_or(WireError::Malformed)?;
        let hops = Hops::new(used, position).ok_or(WireError::Malformed)?;
        let next = u32::from_be_bytes([fixed[20], fixed[21], fixed[22], fixed[23]]);
        if unused.iter().any(|byte| *byte != 0) || (flags & FLAG_NEXT == 0 && next != 0) {
            return Err(WireError::Malformed);
        }
        let kind = match (kind, flags) {
            (KIND_INTEREST, 0 | FLAG_FRESH) if payload.is_empty() => {
                Kind::Interest { fresh: flags == FLAG_FRESH }
            }
            (KIND_DATA, _) => {
                let follows = match flags & !FLAG_AGAIN {
                    0 => Follows::Open,
                    FLAG_NEXT => Follows::Next(next),
                    FLAG_END => Follows::End,
                    FLAG_AT => Follows::At(next),
                    _ => return Err(WireError::Malformed),
                };
                Kind::Data { again: flags & FLAG_AGAIN != 0, follows }
            }
            _ => return Err(WireError::Malformed),
        };
        let mut digest = Digest::default();
        digest.0.copy_from_slice(&fixed[40..]);
        let header =
            Header { kind, tree, hops, handle: Handle(be64(fixed, 24)), sn: be64(fixed, 32), digest };
        Ok(Packet::Transfer(header, payload))
    }
}

impl Header {
    /// The bytes of the header; the payload follows them.
    #[must_use]
    pub fn emit(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        let (kind, flags, next) = match self.kind {
            Kind::Interest { fresh } => (KIND_INTEREST, if fresh { FLAG_FRESH } else { 0 }, 0),
            Kind::Data { again, follows } => {
                let again = if again { FLAG_AGAIN } else { 0 };
                match follows {
                    Follows::Open => (KIND_DATA, again, 0),
                    Follows::Next(block) => (KIND_DATA, again | FLAG_NEXT, block),
                    Follows::End => (KIND_DATA, again | FLAG_END, 0),
                    Follows::At(packet) => (KIND_DATA, again | FLAG_AT, packet),
                }
            }
        };
        bytes[..6].copy_from_slice(&[VERSION, kind, flags, self.tree, self.hops.position, self.hops.len]);
        bytes[ROUTE_AT..ROUTE_AT + HOPS_MAX].copy_from_slice(&self.hops.bytes);
        bytes[20..24].copy_from_slice(&next.to_be_bytes());
        bytes[24..32].copy_from_slice(&self.handle.0.to_be_bytes());
        bytes[32..40].copy_from_slice(&self.sn.to_be_bytes());
        bytes[40..].copy_from_slice(&self.digest.0);
        bytes
    }
}

/// Reason why a node stops processing a packet of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// Its route is longer than the node's settings allow.
    TooFar,
    /// Content that does not match its name.
    Poisoned,
}

/// Checks whether a node takes in a packet, before its forwarder gets it: a packet that is not taken in
/// answers no interest and gets into no store. `hash` is the keyed hash of its payload ([`digest_key`]). A
/// node that only passes data on does not check the payload.
///
/// # Errors
/// The node does not take it in.
pub fn admit(header: &Header, hops_max: usize, hash: impl FnOnce() -> [u8; 32]) -> Result<(), Doubt> {
    let hops = header.hops.bytes().len();
    if hops > hops_max {
        return Err(Doubt::TooFar);
    }
    let is_here = usize::from(header.hops.position()) == hops;
    match header.kind {
        Kind::Data { .. } if is_here && !header.digest.fits(&hash()) => Err(Doubt::Poisoned),
        _ => Ok(()),
    }
}

/// The bytes of a greeting.
#[must_use]
pub fn greeting(heard: bool) -> [u8; HEADER_LEN] {
    let mut bytes = [0; HEADER_LEN];
    bytes[..3].copy_from_slice(&[VERSION, KIND_GREETING, u8::from(heard)]);
    bytes
}

/// Returns true if a datagram is a greeting, or looks like one; with a trailer it is sealed
/// ([`crate::words`]).
#[must_use]
pub fn is_greeting(datagram: &[u8]) -> bool {
    datagram.get(1) == Some(&KIND_GREETING)
}

/// The largest payload that fits into one frame of an interface with this MTU: a whole number of KiB where it
/// is more than one, because pages and caches like it.
#[must_use]
pub fn payload_len_for_mtu(mtu: u32) -> u16 {
    let room = mtu.min(9_216).saturating_sub((crate::data::IP_UDP_LEN + HEADER_LEN) as u32);
    let whole = if room >= 2_048 { room / 1_024 * 1_024 } else { room.max(256) };
    whole as u16
}

fn be64(bytes: &[u8; HEADER_LEN], at: usize) -> u64 {
    let mut value = [0; 8];
    value.copy_from_slice(&bytes[at..at + 8]);
    u64::from_be_bytes(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    fn kinds() -> impl Strategy<Value = Kind> {
        let follows = prop_oneof![
            Just(Follows::Open),
            any::<u32>().prop_map(Follows::Next),
            Just(Follows::End),
            any::<u32>().prop_map(Follows::At)
        ];
        prop_oneof![
            any::<bool>().prop_map(|fresh| Kind::Interest { fresh }),
            (any::<bool>(), follows).prop_map(|(again, follows)| Kind::Data { again, follows }),
        ]
    }

    #[test]
    fn digests_are_whole_where_payloads_are_long() {
        for (payload, len) in [(0, 6), (1_024, 6), (4_095, 6), (4_096, 16), (u16::MAX, 16)] {
            assert_eq!(digest_len(payload), len, "{payload}");
        }
    }

    #[test]
    fn greetings_are_told_from_packets() {
        for heard in [false, true] {
            let bytes = greeting(heard);
            assert!(is_greeting(&bytes) && is_greeting(&bytes[..2]) && !is_greeting(&bytes[..1]));
        }
        for kind in 0..=u8::MAX {
            assert_eq!(is_greeting(&[VERSION, kind, 0]), kind == KIND_GREETING);
        }
        assert!(!is_greeting(&[]));
    }

    /// Data that is kept or answered is checked, data that only passes is not.
    #[test]
    fn data_at_the_end_of_its_route_fits_its_digest() {
        let hash = [7; 32];
        let data = Kind::Data { again: false, follows: Follows::Open };
        let header = |kind, position, byte| Header {
            kind,
            tree: 0,
            hops: Hops::new(&[1, 2, 3], position).unwrap(),
            handle: Handle(5),
            sn: 6,
            digest: Digest([byte; DIGEST_LEN]),
        };
        assert_eq!(admit(&header(data, 3, 7), 3, || hash), Ok(()));
        assert_eq!(admit(&header(data, 3, 8), 3, || hash), Err(Doubt::Poisoned));
        for position in 0..3 {
            assert_eq!(admit(&header(data, position, 8), 3, || unreachable!()), Ok(()), "it passes");
        }
        let asks = header(Kind::Interest { fresh: false }, 3, 8);
        assert_eq!(admit(&asks, 3, || unreachable!()), Ok(()));
        assert_eq!(admit(&asks, 2, || unreachable!()), Err(Doubt::TooFar));
        assert_eq!(admit(&header(data, 3, 8), 2, || unreachable!()), Err(Doubt::TooFar));
    }

    proptest! {
        #[test]
        fn headers_come_back_equal(
            kind in kinds(), tree: u8, handle: u64, sn: u64, digest: [u8; 16],
            hops in proptest::collection::vec(any::<u8>(), 1..=HOPS_MAX),
            position in 0..=HOPS_MAX,
            payload in proptest::collection::vec(any::<u8>(), 0..50),
        ) {
            let position = position.min(hops.len()) as u8;
            let hops = Hops::new(&hops, position).unwrap();
            let header = Header { kind, tree, hops, handle: Handle(handle), sn, digest: Digest(digest) };
            let payload = if matches!(kind, Kind::Interest { .. }) { Vec::new() } else { payload };
            let bytes = [&header.emit()[..], &payload].concat();
            prop_assert_eq!(Packet::parse(&bytes), Ok(Packet::Transfer(header, &payload)));
            for cut in 0..HEADER_LEN {
                prop_assert!(Packet::parse(&bytes[..cut]).is_err());
            }
        }

        /// Accepted bytes are those that would be written: also when a good packet is damaged.
        #[test]
        fn no_bytes_mean_two_things(
            kind in kinds(),
            changes in proptest::collection::vec((0..HEADER_LEN, any::<u8>()), 0..4),
            noise in proptest::collection::vec(any::<u8>(), 0..80),
        ) {
            let hops = Hops::new(&[3, 0x81, 5], 1).unwrap();
            let header = Header { kind, tree: 1, hops, handle: Handle(7), sn: 9, digest: Digest([5; 16]) };
            let mut damaged = header.emit();
            changes.iter().for_each(|&(at, byte)| damaged[at] = byte);
            for bytes in [&damaged[..], &noise] {
                match Packet::parse(bytes) {
                    Ok(Packet::Transfer(header, payload)) => {
                        prop_assert_eq!(&[&header.emit()[..], payload].concat()[..], bytes);
                    }
                    Ok(Packet::Greeting { heard }) => prop_assert_eq!(&greeting(heard)[..], bytes),
                    Err(_) => {}
                }
            }
        }
    }

    #[test]
    fn routes_that_are_too_long_or_passed_by_are_refused() {
        assert!(Hops::new(&[], 0).is_none() && Hops::new(&[1; 15], 0).is_none());
        assert!(Hops::new(&[1, 2], 3).is_none() && Hops::new(&[1, 2], 2).is_some());
        let hops = Hops::new(&[1; 14], 0).unwrap();
        let kind = Kind::Interest { fresh: false };
        let header = Header { kind, tree: 0, hops, handle: Handle(1), sn: 0, digest: Digest::default() };
        for (at, byte) in [(5, 15), (5, 0), (POSITION_AT, 15), (0, 9), (1, 8)] {
            let mut bytes = header.emit();
            bytes[at] = byte;
            assert!(Packet::parse(&bytes).is_err(), "byte {at} as {byte}");
        }
        assert_eq!(Packet::parse(&greeting(true)), Ok(Packet::Greeting { heard: true }));
    }

    #[test]
    fn a_full_payload_fills_a_frame_and_no_more() {
        assert_eq!((payload_len_for_mtu(9_000), payload_len_for_mtu(1_500)), (8_192, 1_416));
        for mtu in 576..9_300 {
            assert!(u32::from(payload_len_for_mtu(mtu)) + 28 + HEADER_LEN as u32 <= mtu);
        }
    }
}
