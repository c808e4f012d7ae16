//! Discovery of sources and receivers without a manager (`offer` and `accept`).
//!
//! The source multicasts an [`Announcement`] now and then; a receiver that starts asks for one with a
//! [`Discovery::Solicit`], so that neither waits for the other's next beat. Both go to [`GROUP`] and [`PORT`]
//! on the chosen interface. Where no multicast passes, ASK and OFFERED of the control channel carry the same.

use crate::WireError;
use crate::cursor::{NAME_LEN_MAX, Put, Reader, after_head, head};
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use polycast_types::Handle;

/// Multicast group of discovery (administratively scoped, RFC 2365).
pub const GROUP: Ipv4Addr = Ipv4Addr::new(239, 255, 80, 67);
/// The same over IPv6: transient, of the site's scope (RFC 4291), with a number that RFC 3307 leaves to
/// hosts.
pub const GROUP_V6: Ipv6Addr = Ipv6Addr::new(0xff15, 0, 0, 0, 0, 0, 0x8050, 0x4c43);
/// UDP port of discovery.
pub const PORT: u16 = 18_067;
/// A question of earlier versions, which has nothing behind its kind.
pub const QUESTION_LEN_MIN: usize = 6;
/// A question that any source may answer: half as long as the longest announcement, which has both names and
/// a code.
pub const QUESTION_LEN: usize = (QUESTION_LEN_MIN + 39 + 2 * (2 + NAME_LEN_MAX as usize) + 3).div_ceil(2);

/// The group of discovery for hosts that meet at addresses like this one.
#[must_use]
pub const fn group_for(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => IpAddr::V4(GROUP),
        IpAddr::V6(_) => IpAddr::V6(GROUP_V6),
    }
}

const MAGIC: [u8; 4] = *b"PLYC";
const KIND_ANNOUNCE: u8 = 1;
const KIND_SOLICIT: u8 = 2;

/// Sign that an offer shows of its code: nothing on which a guess could be tried. The pairing alone shows
/// whether the code is the right one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodeSign {
    /// It has one that a person has made up.
    Own,
    /// It has one that was drawn, whose first word stands for these bits: the offer's name plate, no part of
    /// what has to be guessed.
    Drawn(u16),
}

/// A source's offer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// The transfer.
    pub handle: Handle,
    /// Address of the source's control listener.
    pub address: IpAddr,
    /// TCP port of the source's control listener.
    pub port: u16,
    /// Number of further receivers that the source takes.
    pub places: u32,
    /// The object's length in bytes, for people.
    pub object_len: u64,
    /// Name of the file or directory, for people; of more than [`NAME_LEN_MAX`] bytes only the beginning is
    /// sent.
    pub name: String,
    /// Name of the source's machine, for people; cut in the same way.
    pub host: String,
    /// Sign of the offer's code; `None` where any host may take the offer.
    pub code: Option<CodeSign>,
}

/// A discovery datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Discovery {
    /// A source offers an object.
    Announce(Announcement),
    /// A receiver asks sources to announce at once. No source answers with more than twice the question's
    /// bytes: any host can ask in another's name.
    Solicit {
        /// The length of the whole datagram in bytes; zeros are behind its kind.
        len: usize,
    },
}

impl Discovery {
    /// Reads a datagram.
    ///
    /// # Errors
    /// Not a datagram of this format, or a peer of another version.
    pub fn parse(datagram: &[u8]) -> Result<Self, WireError> {
        let mut r = after_head(datagram, MAGIC)?;
        let message = match r.u8()? {
            KIND_ANNOUNCE => Discovery::Announce(Announcement {
                handle: Handle(r.u64()?),
                address: r.ip()?,
                port: r.u16()?,
                places: r.u32()?,
                object_len: r.u64()?,
                name: r.text(NAME_LEN_MAX)?.to_string(),
                host: r.text(NAME_LEN_MAX)?.to_string(),
                code: parse_sign(&mut r)?,
            }),
            KIND_SOLICIT => {
                if r.rest().iter().any(|byte| *byte != 0) {
                    return Err(WireError::Malformed);
                }
                Discovery::Solicit { len: datagram.len() }
            }
            _ => return Err(WireError::Malformed),
        };
        r.end()?;
        Ok(message)
    }

    /// Writes the datagram.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let mut out = head(MAGIC);
        match self {
            Discovery::Announce(a) => {
                out.u8(KIND_ANNOUNCE);
                out.u64(a.handle.0);
                out.ip(a.address);
                out.u16(a.port);
                out.u32(a.places);
                out.u64(a.object_len);
                out.text(&a.name, NAME_LEN_MAX);
                out.text(&a.host, NAME_LEN_MAX);
                emit_sign(a.code.as_ref(), &mut out);
            }
            Discovery::Solicit { len } => {
                out.u8(KIND_SOLICIT);
                out.zeros(len.saturating_sub(QUESTION_LEN_MIN));
            }
        }
        out
    }
}

/// Reads what an offer shows of its code.
pub(crate) fn parse_sign(r: &mut Reader<'_>) -> Result<Option<CodeSign>, WireError> {
    match r.u8()? {
        0 => Ok(None),
        1 => Ok(Some(CodeSign::Own)),
        2 => Ok(Some(CodeSign::Drawn(r.u16()?))),
        _ => Err(WireError::Malformed),
    }
}

/// Writes what an offer shows of its code.
pub(crate) fn emit_sign(code: Option<&CodeSign>, out: &mut Vec<u8>) {
    match code {
        None => out.u8(0),
        Some(CodeSign::Own) => out.u8(1),
        Some(CodeSign::Drawn(plate)) => {
            out.u8(2);
            out.u16(*plate);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn announcements_come_back_equal(
            handle: u64, address: IpAddr, port: u16, places: u32, object_len: u64, name in ".{0,40}",
            host in ".{0,20}", code: Option<Option<u16>>
        ) {
            let code = code.map(|plate| plate.map_or(CodeSign::Own, CodeSign::Drawn));
            let handle = Handle(handle);
            let address = address.to_canonical();
            let announcement = Announcement { handle, address, port, places, object_len, name, host, code };
            let message = Discovery::Announce(announcement);
            prop_assert_eq!(Discovery::parse(&message.emit()), Ok(message));
        }

        #[test]
        fn no_bytes_make_the_parser_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = Discovery::parse(&bytes);
        }
    }

    #[test]
    fn another_version_is_named() {
        let mut bytes = Discovery::Solicit { len: QUESTION_LEN }.emit();
        bytes[4] = 7;
        assert_eq!(Discovery::parse(&bytes), Err(WireError::Version(7)));
    }

    #[test]
    fn any_announcement_may_answer_a_question() {
        let name = "x".repeat(300);
        let code = Some(CodeSign::Drawn(1));
        let (handle, address, host) = (Handle(1), IpAddr::V6(Ipv6Addr::LOCALHOST), name.clone());
        let longest = Announcement { handle, address, port: 1, places: 1, object_len: 1, name, host, code };
        let question = Discovery::Solicit { len: QUESTION_LEN };
        assert_eq!(question.emit().len(), QUESTION_LEN);
        assert_eq!(Discovery::Announce(longest).emit().len().div_ceil(2), QUESTION_LEN);
        for len in [QUESTION_LEN_MIN, QUESTION_LEN] {
            let question = Discovery::Solicit { len };
            assert_eq!(Discovery::parse(&question.emit()), Ok(question));
        }
        let mut odd = Discovery::Solicit { len: QUESTION_LEN_MIN }.emit();
        odd.push(1);
        assert_eq!(Discovery::parse(&odd), Err(WireError::Malformed));
    }
}
