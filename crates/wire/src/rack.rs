//! Messages between Orca's controllers (Orca section 3.4): central controller, leaf controllers, agents.
//!
//! Every message is one datagram. Updates are numbered by the central controller, one row of numbers for each
//! rack; the same numbers go on from the leaf controller to its agents. Confirmations come back as
//! heartbeats: one says up to which number everything is done.
//!
//! ```text
//! heartbeat  up    version 1 | kind 1 | flags | rack | agent | incarnation | stream | applied | confirmed
//! standing   down  version 1 | kind 2 | flags | rack | agent | incarnation | stream | head
//! updates    down  version 1 | kind 3 | rack | agent | stream | after | (number | session | length | label)...
//! ```
//!
//! An agent is named by its port at the leaf; all ones mean the rack's leaf controller itself. A label of
//! length 0 takes the session's label away. A label is the leaf label of the network's length, all zero where
//! the rack has no receivers; behind it come the first 20 bytes of the pod's spine label, where the rack
//! keeps that and it is as long: what follows them is zero.

use crate::cursor::{Put, Reader};
use crate::label::LABEL_LEN_MAX;
use crate::{VERSION, WireError};
use alloc::vec::Vec;

/// The most bytes of a message: it fits a frame of 1,500 bytes with the headers before it.
pub const MESSAGE_LEN_MAX: usize = 1_440;
const UPDATES_FIXED_LEN: usize = 2 + 4 + 4 + 8 + 8;
const UPDATE_FIXED_LEN: usize = 8 + 4 + 1;
/// The most bytes of a spine label that are not zero.
pub const SPINE_LABEL_LEN_MAX: usize = 20;
/// The longest labels of a session in a rack.
pub const LABELS_LEN_MAX: usize = LABEL_LEN_MAX + SPINE_LABEL_LEN_MAX;
const CONTROLLER: u32 = u32::MAX;
const FLAG_ACTIVE: u8 = 1;
const FLAG_SETTLED: u8 = 2;

/// Subject of a message: a rack's leaf controller, or one of its agents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name {
    /// The leaf, counted over all pods.
    pub rack: u32,
    /// The agent's port at the leaf; `None` is the leaf controller.
    pub agent: Option<u32>,
}

/// Up: it lives, and how far it is. Also the confirmation of updates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    /// The one that says so.
    pub from: Name,
    /// Run of the sender: a restarted one has another number.
    pub incarnation: u64,
    /// The stream of updates that it follows; 0 before the first.
    pub stream: u64,
    /// The number of the last update that it has.
    pub applied: u64,
    /// Up to which number all below it have the updates; an agent says `applied`.
    pub confirmed: u64,
    /// An agent: it takes itself for active.
    pub active: bool,
    /// Nothing is left of what it knew before this stream.
    pub settled: bool,
}

/// Down: what the one above takes the other for, and how far the stream goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The one that this is for.
    pub to: Name,
    /// Run of the receiver.
    pub incarnation: u64,
    /// The stream to follow.
    pub stream: u64,
    /// The number of the newest update.
    pub head: u64,
    /// An agent: it gets packets.
    pub active: bool,
    /// The stream up to `head` is all that there is: what is older can go.
    pub settled: bool,
}

/// One change of a rack's labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Update<'a> {
    /// Its number.
    pub number: u64,
    /// The session.
    pub session: u32,
    /// The leaf label and the spine label; empty if the session has none in this rack any more.
    pub label: &'a [u8],
}

/// Down: changes in the order of their numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Updates<'a> {
    /// The one that this is for.
    pub to: Name,
    /// The stream.
    pub stream: u64,
    /// Between this number and the first update there is nothing: one that is so far may go on.
    pub after: u64,
    /// The changes: rising numbers behind `after`, at least one.
    pub updates: Vec<Update<'a>>,
}

/// Any message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rack<'a> {
    /// Agent to leaf controller, leaf controller to central controller.
    Heartbeat(Heartbeat),
    /// The other way.
    Standing(Standing),
    /// The other way.
    Updates(Updates<'a>),
}

impl<'a> Updates<'a> {
    /// No updates yet.
    #[must_use]
    pub fn new(to: Name, stream: u64, after: u64) -> Self {
        Updates { to, stream, after, updates: Vec::new() }
    }

    /// Adds an update where it fits into the datagram; whether it did.
    ///
    /// # Panics
    /// If its number does not rise, or its label is longer than any network's.
    pub fn push(&mut self, update: Update<'a>) -> bool {
        assert!(update.number > self.last(), "updates rise");
        assert!(update.label.len() <= LABELS_LEN_MAX, "labels have up to {LABELS_LEN_MAX} bytes");
        let taken: usize = self.updates.iter().map(|other| UPDATE_FIXED_LEN + other.label.len()).sum();
        let fits = UPDATES_FIXED_LEN + taken + UPDATE_FIXED_LEN + update.label.len() <= MESSAGE_LEN_MAX;
        if fits {
            self.updates.push(update);
        }
        fits
    }

    /// The number of the last update, or `after`.
    #[must_use]
    pub fn last(&self) -> u64 {
        self.updates.last().map_or(self.after, |update| update.number)
    }
}

/// Returns the name in a datagram, if it is long enough and of a known kind: that of its sender, or of its
/// receiver. The rest may be wrong.
#[must_use]
pub fn name_in(datagram: &[u8]) -> Option<Name> {
    let mut r = Reader(datagram);
    let _version = r.u8().ok()?;
    match r.u8().ok()? {
        // Flags stand before the name.
        1 | 2 => drop(r.u8().ok()?),
        3 => {}
        _ => return None,
    }
    take_name(&mut r).ok()
}

impl<'a> Rack<'a> {
    /// Reads a datagram.
    ///
    /// # Errors
    /// Not a message of this format, or one of another version.
    pub fn parse(datagram: &'a [u8]) -> Result<Self, WireError> {
        let mut r = Reader(datagram);
        let version = r.u8()?;
        if version != VERSION {
            return Err(WireError::Version(version));
        }
        if datagram.len() > MESSAGE_LEN_MAX {
            return Err(WireError::Malformed);
        }
        let message = match r.u8()? {
            1 => Rack::Heartbeat(parse_heartbeat(&mut r)?),
            2 => Rack::Standing(parse_standing(&mut r)?),
            3 => Rack::Updates(parse_updates(&mut r)?),
            _ => return Err(WireError::Malformed),
        };
        r.end()?;
        Ok(message)
    }

    /// Appends the datagram to `out`.
    ///
    /// # Panics
    /// If there are no updates or ranges, or too many.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.u8(VERSION);
        match self {
            Rack::Heartbeat(h) => {
                out.extend_from_slice(&[1, flags(h.active, h.settled)]);
                put_name(h.from, out);
                [h.incarnation, h.stream, h.applied, h.confirmed].into_iter().for_each(|v| out.u64(v));
            }
            Rack::Standing(s) => {
                out.extend_from_slice(&[2, flags(s.active, s.settled)]);
                put_name(s.to, out);
                [s.incarnation, s.stream, s.head].into_iter().for_each(|v| out.u64(v));
            }
            Rack::Updates(u) => {
                assert!(!u.updates.is_empty(), "a message has at least one update");
                out.u8(3);
                put_name(u.to, out);
                out.u64(u.stream);
                out.u64(u.after);
                for update in &u.updates {
                    out.u64(update.number);
                    out.u32(update.session);
                    out.u8(update.label.len() as u8);
                    out.extend_from_slice(update.label);
                }
            }
        }
        debug_assert!(out.len() - start <= MESSAGE_LEN_MAX, "a message fits one frame");
    }
}

fn flags(active: bool, settled: bool) -> u8 {
    (u8::from(active) * FLAG_ACTIVE) | (u8::from(settled) * FLAG_SETTLED)
}

fn take_flags(r: &mut Reader<'_>) -> Result<(bool, bool), WireError> {
    let flags = r.u8()?;
    if flags & !(FLAG_ACTIVE | FLAG_SETTLED) != 0 {
        return Err(WireError::Malformed);
    }
    Ok((flags & FLAG_ACTIVE != 0, flags & FLAG_SETTLED != 0))
}

fn put_name(name: Name, out: &mut Vec<u8>) {
    assert!(name.agent != Some(CONTROLLER), "no leaf has that many ports");
    out.u32(name.rack);
    out.u32(name.agent.unwrap_or(CONTROLLER));
}

fn take_name(r: &mut Reader<'_>) -> Result<Name, WireError> {
    let rack = r.u32()?;
    let agent = r.u32()?;
    Ok(Name { rack, agent: (agent != CONTROLLER).then_some(agent) })
}

fn parse_heartbeat(r: &mut Reader<'_>) -> Result<Heartbeat, WireError> {
    let (active, settled) = take_flags(r)?;
    Ok(Heartbeat {
        active,
        settled,
        from: take_name(r)?,
        incarnation: r.u64()?,
        stream: r.u64()?,
        applied: r.u64()?,
        confirmed: r.u64()?,
    })
}

fn parse_standing(r: &mut Reader<'_>) -> Result<Standing, WireError> {
    let (active, settled) = take_flags(r)?;
    let to = take_name(r)?;
    Ok(Standing { active, settled, to, incarnation: r.u64()?, stream: r.u64()?, head: r.u64()? })
}

fn parse_updates<'a>(r: &mut Reader<'a>) -> Result<Updates<'a>, WireError> {
    let mut message = Updates::new(take_name(r)?, r.u64()?, r.u64()?);
    while !r.0.is_empty() {
        let (number, session, len) = (r.u64()?, r.u32()?, usize::from(r.u8()?));
        if number <= message.last() || len > LABELS_LEN_MAX {
            return Err(WireError::Malformed);
        }
        message.updates.push(Update { number, session, label: r.take(len)? });
    }
    if message.updates.is_empty() { Err(WireError::Malformed) } else { Ok(message) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn assert_round_trip(message: &Rack<'_>) {
        let mut bytes = Vec::new();
        message.emit(&mut bytes);
        assert!(bytes.len() <= MESSAGE_LEN_MAX);
        assert_eq!(Rack::parse(&bytes).as_ref(), Ok(message));
        let name = match message {
            Rack::Heartbeat(heartbeat) => heartbeat.from,
            Rack::Standing(standing) => standing.to,
            Rack::Updates(updates) => updates.to,
        };
        assert_eq!(name_in(&bytes), Some(name));
        for cut in 0..bytes.len() {
            // A shorter datagram is another message at most where whole updates were cut off.
            if let Ok(shorter) = Rack::parse(&bytes[..cut]) {
                assert_ne!(&shorter, message);
                assert!(matches!(shorter, Rack::Updates(_)));
            }
        }
    }

    proptest! {
        #[test]
        fn messages_come_back_equal(
            rack: u32, port in 0..CONTROLLER, numbers: [u64; 4], active: bool, settled: bool, controller: bool,
            labels in proptest::collection::vec((1u64..99, any::<u32>(),
                proptest::collection::vec(any::<u8>(), 0..=LABELS_LEN_MAX)), 1..40),
        ) {
            let name = Name { rack, agent: (!controller).then_some(port) };
            let [incarnation, stream, applied, confirmed] = numbers;
            let heartbeat = Heartbeat { from: name, incarnation, stream, applied, confirmed, active, settled };
            assert_round_trip(&Rack::Heartbeat(heartbeat));
            let standing = Standing { to: name, incarnation, stream, head: applied, active, settled };
            assert_round_trip(&Rack::Standing(standing));
            let mut updates = Updates::new(name, stream, applied >> 8);
            for (step, session, label) in &labels {
                let number = updates.last() + step;
                if !updates.push(Update { number, session: *session, label }) {
                    break;
                }
            }
            assert_round_trip(&Rack::Updates(updates));
        }

        #[test]
        fn no_bytes_make_the_parser_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..120), kind in 0u8..5) {
            if let Some(head) = bytes.first_chunk_mut() {
                *head = [VERSION, kind];
            }
            if let Ok(message) = Rack::parse(&bytes) {
                let mut again = Vec::new();
                message.emit(&mut again);
                prop_assert_eq!(again, bytes);
            }
        }
    }

    #[test]
    fn another_version_is_named() {
        assert_eq!(Rack::parse(&[9, 1]), Err(WireError::Version(9)));
        assert_eq!(Rack::parse(&[]), Err(WireError::Malformed));
        assert_eq!(
            (name_in(&[VERSION, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0]), name_in(&[VERSION, 1, 0, 0])),
            (None, None)
        );
    }
}
