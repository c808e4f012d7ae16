//! Frames of the overlay, by which receivers bring an object to each other over TCP.
//!
//! ```text
//! source -> receiver     CANDIDATES                 on its control connection, whenever they change
//! source -> receiver     LACKS (no groups)          before the first of these: it lacks what CAME says
//! receiver -> source     LACKS, FAULT, CAME         on the same
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
/// Maximum number of ends in one CAME.
pub const CAME_MAX: usize = 256;
/// The kinds of these frames.
pub(super) const KINDS: core::ops::RangeInclusive<u8> = 47..=53;

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

/// Groups that a receiver may request from a candidate: every `by` groups in a row are a lot, and the lots
/// are dealt out in turn to `of`, of which it is number `at`. Receivers that bring groups into different
/// racks or zones share what they get from those that are outside, so that each group leaves there once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Share {
    of: u16,
    at: u16,
    by: u16,
}

impl Share {
    /// All groups.
    pub const ALL: Share = Share { of: 1, at: 0, by: 1 };

    /// Share `at` of `of` in lots of `by` groups; `None` if there is no such share.
    #[must_use]
    pub fn new(of: u16, at: u16, by: u16) -> Option<Self> {
        (at < of && by > 0).then_some(Share { of, at, by })
    }

    /// Returns true if a group belongs to it.
    #[must_use]
    pub fn contains(self, group: u64) -> bool {
        group / u64::from(self.by) % u64::from(self.of) == u64::from(self.at)
    }

    /// Returns true if it is all groups.
    #[must_use]
    pub fn is_all(self) -> bool {
        self.of == 1
    }
}

/// A receiver that another one may fetch from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CandidateEnd<'a> {
    /// Its address and name.
    pub end: End<'a>,
    /// Groups that may be requested there.
    pub share: Share,
}

/// Bytes that a receiver has got from one end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CameFrom {
    /// Address of the end, as CANDIDATES has it; [`super::NOWHERE`] for the source itself.
    pub address: IpAddr,
    /// Its port.
    pub port: u16,
    /// Number of bytes.
    pub bytes: u64,
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
        /// Set if the bytes come into its rack or its zone by one member, in no order.
        is_behind_head: bool,
        /// At most [`CANDIDATES_MAX`].
        ends: Vec<CandidateEnd<'a>>,
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
    /// Receiver: none of its candidates has these groups. Source, with no groups: it lacks what CAME says.
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
    /// Receiver, where the source has asked by LACKS, before DATA_RCVD: the ends that it has got bytes from,
    /// at most [`CAME_MAX`].
    Came(Vec<CameFrom>),
}

impl<'a> Overlay<'a> {
    pub(super) fn emit_body(&self, out: &mut Vec<u8>) {
        match self {
            Overlay::Candidates { entry, is_behind_head, ends } => {
                assert!(ends.len() <= CANDIDATES_MAX, "{} candidates are too many", ends.len());
                out.u8(47);
                out.u64(*entry);
                out.u8(u8::from(*is_behind_head));
                for CandidateEnd { end, share } in ends {
                    put_end(end.address, end.port, None, out);
                    [share.of, share.at, share.by].iter().for_each(|number| out.u16(*number));
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
            Overlay::Came(ends) => {
                assert!(ends.len() <= CAME_MAX, "{} ends are too many", ends.len());
                out.u8(53);
                for CameFrom { address, port, bytes } in ends {
                    out.ip(*address);
                    out.u16(*port);
                    out.u64(*bytes);
                }
            }
        }
    }

    pub(super) fn parse_body(kind: u8, r: &mut Reader<'a>) -> Result<Self, WireError> {
        Ok(match kind {
            47 => {
                let (entry, is_behind_head) = (r.u64()?, flag(r)?);
                Overlay::Candidates { entry, is_behind_head, ends: take_ends(r)? }
            }
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
            53 => {
                let mut ends = Vec::new();
                while !r.0.is_empty() {
                    if ends.len() == CAME_MAX {
                        return Err(WireError::Malformed);
                    }
                    ends.push(CameFrom { address: r.ip()?, port: r.u16()?, bytes: r.u64()? });
                }
                Overlay::Came(ends)
            }
            _ => return Err(WireError::Malformed),
        })
    }
}

/// A byte that is 0 or 1.
fn flag(r: &mut Reader<'_>) -> Result<bool, WireError> {
    match r.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(WireError::Malformed),
    }
}

/// Ends to the end of the frame, no two of them alike.
fn take_ends<'a>(r: &mut Reader<'a>) -> Result<Vec<CandidateEnd<'a>>, WireError> {
    let mut ends: Vec<CandidateEnd<'a>> = Vec::new();
    while !r.0.is_empty() {
        let (address, port) = (r.ip()?, r.u16()?);
        let share = Share::new(r.u16()?, r.u16()?, r.u16()?).ok_or(WireError::Malformed)?;
        let name = if flag(r)? { Some(r.text(NAME_LEN_MAX)?) } else { None };
        let is_new = !ends.iter().any(|known| (known.end.address, known.end.port) == (address, port));
        if ends.len() == CANDIDATES_MAX || !is_new {
            return Err(WireError::Malformed);
        }
        ends.push(CandidateEnd { end: End { address, port, name }, share });
    }
    Ok(ends)
}
