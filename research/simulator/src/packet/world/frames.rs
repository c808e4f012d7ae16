//! Frames that connections carry, and the meaning of addresses.
//!
//! Frames are what [`polycast_wire::control`] makes of them, byte for byte. Only contents in bulk are counted
//! and not carried: hashes, patches and groups. The IPv4 address of a host is its number; a data channel's
//! group is the channel's number.

use super::keys::mix;
use crate::packet::NodeId;
use alloc::format;
use alloc::vec::Vec;
use core::net::IpAddr;
use core::ops::Range;
use polycast_protocol::push::Geometry;
use polycast_types::Location;
use polycast_wire::control::{Control, NOWHERE};

/// Content of a frame.
#[derive(Clone, Debug)]
pub(super) enum Body {
    /// Its bytes.
    Bytes(Vec<u8>),
    /// HASHES of these groups.
    Hashes(Range<u64>),
    /// PTCH_DATA with these fragments.
    Patch(Range<u64>),
    /// GROUP with this hash group.
    Group(u64),
    /// GROUP with the number of this hash group, and other bytes.
    Spoiled(u64),
    /// The end of what this end says.
    Fin,
}

/// A frame on a connection.
#[derive(Clone, Debug)]
pub(super) struct Frame {
    pub(super) body: Body,
    /// The data channel that its source used when it wrote this; for a check outside the machines.
    pub(super) channel: u32,
}

const HASH_LEN: u64 = 32;
/// Length, kind and one number.
const BULK_HEADER_LEN: u64 = 4 + 1 + 8;

impl Body {
    /// A frame with all its bytes.
    pub(super) fn of(control: &Control<'_>) -> Body {
        let mut frame = Vec::new();
        control.emit(&mut frame);
        Body::Bytes(frame)
    }

    /// Bytes on the connection.
    pub(super) fn len(&self, geometry: &Geometry) -> u64 {
        let bytes = |range: Range<u64>| range.end - range.start;
        match self {
            Body::Bytes(frame) => frame.len() as u64,
            Body::Hashes(groups) => BULK_HEADER_LEN + bytes(groups.clone()) * HASH_LEN,
            Body::Patch(sns) => {
                let last = geometry.fragment_bytes(sns.end - 1).end;
                BULK_HEADER_LEN + last - geometry.fragment_bytes(sns.start).start
            }
            Body::Group(group) | Body::Spoiled(group) => {
                BULK_HEADER_LEN + bytes(geometry.group_bytes(*group))
            }
            // As TCP counts it.
            Body::Fin => 1,
        }
    }

    /// Returns the control message, without its contents in bulk; `None` for the end, and for bytes that are
    /// no frame of this version.
    pub(super) fn control(&self) -> Option<Control<'_>> {
        match self {
            Body::Bytes(frame) => Control::parse(frame).ok(),
            Body::Hashes(groups) => Some(Control::Hashes { first: groups.start, hashes: Vec::new() }),
            Body::Patch(sns) => Some(Control::PtchData { sn: sns.start, payload: &[] }),
            Body::Group(index) | Body::Spoiled(index) => Some(Control::Group { index: *index, payload: &[] }),
            Body::Fin => None,
        }
    }
}

/// The port on which the source of a transfer listens.
const SOURCE_PORT: u16 = 0x4000;
/// The port on which receivers of a transfer serve others.
const RECEIVER_PORT: u16 = 0x8000;
/// The port of every data channel.
const CHANNEL_PORT: u16 = 7_410;
/// The place in HELLO of the protocol's version.
const VERSION_AT: usize = 5;

/// The address of a host.
pub(super) fn address_of(node: NodeId) -> IpAddr {
    let [zero, a, b, c] = node.0.to_be_bytes();
    assert_eq!(zero, 0, "hosts have 24 bits of an address");
    [10, a, b, c].into()
}

/// The zone and the rack of a host: in every fourth world there are two zones, of up to three racks each, and
/// in the others none is named.
pub(super) fn location_of(seed: u64, node: NodeId) -> Location {
    let drawn = mix(seed, u64::from(node.0));
    if !mix(seed, 1).is_multiple_of(4) {
        return Location::default();
    }
    Location { zone: format!("z{}", drawn % 2), rack: format!("r{}", (drawn >> 8) % 3) }
}

/// The bytes of an address: those of the world's hosts and groups are of IPv4.
fn octets(address: IpAddr) -> [u8; 4] {
    match address {
        IpAddr::V4(address) => address.octets(),
        IpAddr::V6(address) => unreachable!("no host of this world has {address}"),
    }
}

/// Returns the node that has this address.
pub(super) fn node_at(address: IpAddr) -> NodeId {
    let [_, a, b, c] = octets(address);
    NodeId(u32::from_be_bytes([0, a, b, c]))
}

fn port(base: u16, transfer: u32) -> u16 {
    assert!(transfer < u32::from(SOURCE_PORT), "transfers have 14 bits of a port");
    base + transfer as u16
}

/// Returns the port on which the source of a transfer listens.
pub(super) fn source_port(transfer: u32) -> u16 {
    port(SOURCE_PORT, transfer)
}

/// Returns the port on which receivers of a transfer serve others.
pub(super) fn receiver_port(transfer: u32) -> u16 {
    port(RECEIVER_PORT, transfer)
}

/// The address of a data channel; of none for number 0.
pub(super) fn channel_address(channel: u32) -> (IpAddr, u16) {
    let [_, a, b, c] = channel.to_be_bytes();
    if channel == 0 { NOWHERE } else { ([239, a, b, c].into(), CHANNEL_PORT) }
}

/// The number of a data channel.
pub(super) fn channel_at((address, _): (IpAddr, u16)) -> u32 {
    let [_, a, b, c] = octets(address);
    u32::from_be_bytes([0, a, b, c])
}

/// Returns the length of hash groups in WELCOME. The shortest on the wire have 64 KiB; worlds with small
/// objects have shorter ones, so that there are several.
pub(super) fn group_len_of(group_len: u32) -> u32 {
    group_len.next_power_of_two().clamp(1 << 16, 1 << 20)
}

/// Makes a HELLO that of another version.
pub(super) fn change_version(hello: &mut Body) {
    if let Body::Bytes(bytes) = hello {
        bytes[VERSION_AT] = bytes[VERSION_AT].wrapping_add(1);
    }
}
