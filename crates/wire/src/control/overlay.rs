//! Frames of the overlay, by which receivers bring an object to each other over TCP.
//!
//! ```text
//! source -> receiver     CANDIDATES                 on its control connection, whenever they change
//! receiver -> source     LACKS, FAULT               on the same
//!
//! receiver -> candidate  ENTER                      the first frame of a connection of its own
//! candidate -> receiver  HOLDS .., GROUP ..
//! receiver -> candidate  WANT ..
//! ```
//!
//! Where the candidate is the source, that says no HOLDS and is asked for nothing: it chooses the groups that
//! it gives.

use super::{Hash, put_end, put_ranges, take_ranges, version};
use crate::cursor::{NAME_LEN_MAX, Put, Reader};
use crate::{VERSION, WireError};
use alloc::vec::Vec;
use core::net::IpAddr;
use core::ops::Range;
use polycast_types::Handle;

/// Maximum number of ends in one CANDIDATES.
pub const CANDIDATES_MAX: usize = 4;
/// Maximum number of ranges in one ENTER: it is the first frame of its connection.
pub const ENTER_RANGES_MAX: usize = 4_092;
/// Maximum number of ranges in one HOLDS or LACKS.
pub const OVERLAY_RANGES_MAX: usize = 4_096;
/// Maximum number of groups that one WANT may request.
pub const WANT_MAX: usize = 64;
/// The kinds of these frames.
pub(super) const KINDS: core::ops::RangeInclusive<u8> = 47..=52;

/// Address at which another receiver serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End<'a> {
    /// Its address.
    pub address: IpAddr,
    /// TCP port.
    pub port: u16,
    /// Name of the receiver there, where ends show certificates.
    pub name: Option<&'a str>,
}

/// Reason why a candidate is of no use to a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum Fault {
    /// It could not be reached.
    #[error("it cannot be reached")]
    Unreachable,
    /// Its connection has ended.
    #[error("its connection has ended")]
    Ended,
    /// Nothing comes from it any more.
    #[error("it has stopped giving what it was asked for")]
    Stalled,
    /// Nothing has ever come from it.
    #[error("it gives nothing of what it says it has")]
    NeverGave,
    /// A group has come that is not what the source says it is.
    #[error("it gave wrong bytes")]
    WrongBytes,
    /// It has said or given what it was not asked for, or what there is not.
    #[error("it breaks the rules of the exchange")]
    Foreign,
}

impl Fault {
    const ALL: [Fault; 6] = [
        Fault::Unreachable,
        Fault::Ended,
        Fault::Stalled,
        Fault::NeverGave,
        Fault::WrongBytes,
        Fault::Foreign,
    ];

    /// Returns true if the candidate is of no use to the receiver for good.
    #[must_use]
    pub fn is_for_good(self) -> bool {
        matches!(self, Fault::WrongBytes | Fault::Foreign)
    }

    /// Returns true if the source is to give the candidate no more groups that no other receiver has, once
    /// others report the same. One that is far slower than the others may seem to give nothing, too.
    #[must_use]
    pub fn is_a_complaint(self) -> bool {
        self.is_for_good() || self == Fault::NeverGave
    }
}

/// A frame of the overlay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Overlay<'a> {
    /// Source: fetch what you lack from these, and from no other.
    Candidates {
        /// Number that the receiver shows the source itself in ENTER, where it is to take the source's
        /// groups; 0 where it is not.
        entry: u64,
        /// At most [`CANDIDATES_MAX`].
        ends: Vec<End<'a>>,
    },
    /// Receiver to a candidate: it takes part.
    Enter {
        /// The transfer.
        handle: Handle,
        /// Proof that the source lets it take part, for this connection alone; zeros where connections are
        /// not sealed.
        ticket: Hash,
        /// Number from CANDIDATES; 0 where the candidate is a receiver.
        entry: u64,
        /// Groups that it holds already.
        have: Vec<Range<u64>>,
    },
    /// Candidate: these groups are here, too.
    Holds(Vec<Range<u64>>),
    /// Receiver to a candidate: send these groups, in this order.
    Want(Vec<u64>),
    /// Receiver: none of its candidates has these groups.
    Lacks(Vec<Range<u64>>),
    /// Receiver: this candidate was of no use.
    Fault {
        /// Address of the candidate.
        address: IpAddr,
        /// Its port.
        port: u16,
        /// Reason.
        why: Fault,
    },
}

impl<'a> Overlay<'a> {
    pub(super) fn emit_body(&self, out: &mut Vec<u8>) {
        match self {
            Overlay::Candidates { entry, ends } => {
                assert!(ends.len() <= CANDIDATES_MAX, "{} candidates are too many", ends.len());
                out.u8(47);
                out.u64(*entry);
                for end in ends {
                    put_end(end.address, end.port, None, out);
                    out.u8(u8::from(end.name.is_some()));
                    if let Some(name) = end.name {
                        out.text(name, NAME_LEN_MAX);
                    }
                }
            }
            Overlay::Enter { handle, ticket, entry, have } => {
                out.extend_from_slice(&[48, VERSION]);
                out.u64(handle.0);
                out.extend_from_slice(ticket);
                out.u64(*entry);
                put_ranges(have, ENTER_RANGES_MAX, out);
            }
            Overlay::Holds(ranges) => {
                out.u8(49);
                put_ranges(ranges, OVERLAY_RANGES_MAX, out);
            }
            Overlay::Want(groups) => {
                assert!(groups.len() <= WANT_MAX, "{} groups are too many to ask for", groups.len());
                out.u8(50);
                groups.iter().for_each(|group| out.u64(*group));
            }
            Overlay::Lacks(ranges) => {
                out.u8(51);
                put_ranges(ranges, OVERLAY_RANGES_MAX, out);
            }
            Overlay::Fault { address, port, why } => {
                out.u8(52);
                out.ip(*address);
                out.u16(*port);
                let number = Fault::ALL.iter().position(|other| other == why);
                out.u8(number.expect("all are listed") as u8);
            }
        }
    }

    pub(super) fn parse_body(kind: u8, r: &mut Reader<'a>) -> Result<Self, WireError> {
        Ok(match kind {
            47 => Overlay::Candidates { entry: r.u64()?, ends: take_ends(r)? },
            48 => {
                version(r)?;
                let (handle, ticket, entry) = (Handle(r.u64()?), r.array()?, r.u64()?);
                Overlay::Enter { handle, ticket, entry, have: take_ranges(r, ENTER_RANGES_MAX)? }
            }
            49 => Overlay::Holds(take_ranges(r, OVERLAY_RANGES_MAX)?),
            50 => {
                let (groups, rest) = r.rest().as_chunks::<8>();
                if groups.is_empty() || groups.len() > WANT_MAX || !rest.is_empty() {
                    return Err(WireError::Malformed);
                }
                Overlay::Want(groups.iter().map(|bytes| u64::from_be_bytes(*bytes)).collect())
            }
            51 => Overlay::Lacks(take_ranges(r, OVERLAY_RANGES_MAX)?),
            52 => {
                let (address, port, why) = (r.ip()?, r.u16()?, r.u8()?);
                let why = Fault::ALL.get(usize::from(why)).copied().ok_or(WireError::Malformed)?;
                Overlay::Fault { address, port, why }
            }
            _ => return Err(WireError::Malformed),
        })
    }
}

/// Ends to the end of the frame, no two of them alike.
fn take_ends<'a>(r: &mut Reader<'a>) -> Result<Vec<End<'a>>, WireError> {
    let mut ends: Vec<End<'a>> = Vec::new();
    while !r.0.is_empty() {
        let (address, port) = (r.ip()?, r.u16()?);
        let name = match r.u8()? {
            0 => None,
            1 => Some(r.text(NAME_LEN_MAX)?),
            _ => return Err(WireError::Malformed),
        };
        let is_new = !ends.iter().any(|end| (end.address, end.port) == (address, port));
        if ends.len() == CANDIDATES_MAX || !is_new {
            return Err(WireError::Malformed);
        }
        ends.push(End { address, port, name });
    }
    Ok(ends)
}
