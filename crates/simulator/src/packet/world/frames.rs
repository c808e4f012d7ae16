//! What the control connections and the TCP chain carry.

use alloc::vec::Vec;
use core::ops::Range;
use polycast_protocol::push::Geometry;
use polycast_wire::control::Control;

/// A frame on a connection. Frames that machines make travel as their real bytes.
#[derive(Clone, Debug)]
pub enum Frame {
    /// A receiver opens its control connection.
    Hello,
    /// The source answers, with the hashes of all groups.
    Welcome,
    /// A frame of a machine.
    Control(Vec<u8>),
    /// Fragments as PTCH_DATA.
    PatchData(Range<u64>),
    /// The source says from whom to fetch: a receiver, or itself where that is `None`.
    Upstream(Option<u32>),
    /// A receiver asks its upstream for all groups but these.
    Fetch(Vec<Range<u64>>),
    /// A verified hash group.
    Group(u64),
    /// The transfer is over for all.
    Finished,
}

/// Bytes of a frame without variable parts, roughly those of HELLO and WELCOME with their names.
const SMALL_LEN: u64 = 64;
const HASH_LEN: u64 = 32;

impl Frame {
    /// Bytes on the connection.
    pub(super) fn len(&self, geometry: &Geometry) -> u64 {
        let bytes = |range: Range<u64>| range.end - range.start;
        match self {
            Frame::Hello | Frame::Upstream(_) | Frame::Fetch(_) | Frame::Finished => SMALL_LEN,
            Frame::Welcome => SMALL_LEN + geometry.groups() * HASH_LEN,
            Frame::Control(frame) => frame.len() as u64,
            Frame::PatchData(sns) => {
                let last = geometry.fragment_bytes(sns.end - 1).end;
                13 + last - geometry.fragment_bytes(sns.start).start
            }
            Frame::Group(group) => 13 + bytes(geometry.group_bytes(*group)),
        }
    }

    /// A machine's frame.
    pub(super) fn of(control: &Control<'_>) -> Frame {
        let mut frame = Vec::new();
        control.emit(&mut frame);
        Frame::Control(frame)
    }
}
