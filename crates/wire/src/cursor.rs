//! Reading and writing of integers and strings in network byte order, with bounds always checked: for our own
//! packets and for other languages of bytes.

use crate::{VERSION, WireError};
use alloc::vec::Vec;
use core::net::IpAddr;

/// The longest name in a packet, in bytes: no file or host has a longer one.
pub const NAME_LEN_MAX: u16 = 255;
/// The longest sentence in a packet, in bytes.
pub const SENTENCE_LEN_MAX: u16 = 1_024;

/// Reads from the front of a byte slice. Where that is too short, it is [`WireError::Malformed`].
pub struct Reader<'a>(
    /// Bytes that have not been read yet.
    pub &'a [u8],
);

impl<'a> Reader<'a> {
    /// The next `n` bytes.
    ///
    /// # Errors
    /// There are fewer.
    pub fn take(&mut self, n: usize) -> Result<&'a [u8], WireError> {
        let (head, tail) = self.0.split_at_checked(n).ok_or(WireError::Malformed)?;
        self.0 = tail;
        Ok(head)
    }

    /// Passes over `n` bytes.
    ///
    /// # Errors
    /// There are fewer.
    pub fn skip(&mut self, n: usize) -> Result<(), WireError> {
        self.take(n).map(drop)
    }

    /// All that is left.
    pub fn rest(&mut self) -> &'a [u8] {
        core::mem::take(&mut self.0)
    }

    /// The next `N` bytes.
    ///
    /// # Errors
    /// There are fewer.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        self.take(N)?.try_into().map_err(|_| WireError::Malformed)
    }

    /// The next byte.
    ///
    /// # Errors
    /// There are fewer.
    pub fn u8(&mut self) -> Result<u8, WireError> {
        Ok(self.array::<1>()?[0])
    }

    /// The next two bytes.
    ///
    /// # Errors
    /// There are fewer.
    pub fn u16(&mut self) -> Result<u16, WireError> {
        Ok(u16::from_be_bytes(self.array()?))
    }

    /// The next four bytes.
    ///
    /// # Errors
    /// There are fewer.
    pub fn u32(&mut self) -> Result<u32, WireError> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    /// The next eight bytes.
    ///
    /// # Errors
    /// There are fewer.
    pub fn u64(&mut self) -> Result<u64, WireError> {
        Ok(u64::from_be_bytes(self.array()?))
    }

    /// An IP address behind the number of its family, 4 or 6.
    ///
    /// # Errors
    /// There are fewer bytes, another number, or an IPv4 address that is written as one of IPv6: each address
    /// has one form.
    pub fn ip(&mut self) -> Result<IpAddr, WireError> {
        let address = match self.u8()? {
            4 => IpAddr::from(self.array::<4>()?),
            6 => IpAddr::from(self.array::<16>()?),
            _ => return Err(WireError::Malformed),
        };
        if address.to_canonical() == address { Ok(address) } else { Err(WireError::Malformed) }
    }

    /// A string of at most `most` bytes with a 2-byte length before it.
    ///
    /// # Errors
    /// It is longer, there are fewer bytes, or they are no text.
    pub fn text(&mut self, most: u16) -> Result<&'a str, WireError> {
        let len = self.u16()?;
        if len > most {
            return Err(WireError::Malformed);
        }
        core::str::from_utf8(self.take(usize::from(len))?).map_err(|_| WireError::Malformed)
    }

    /// There must be nothing left.
    ///
    /// # Errors
    /// There is.
    pub fn end(self) -> Result<(), WireError> {
        if self.0.is_empty() { Ok(()) } else { Err(WireError::Malformed) }
    }
}

/// Appends to a byte vector.
pub trait Put {
    /// One byte.
    fn u8(&mut self, v: u8);
    /// Two bytes.
    fn u16(&mut self, v: u16);
    /// Four bytes.
    fn u32(&mut self, v: u32);
    /// Eight bytes.
    fn u64(&mut self, v: u64);
    /// An IP address behind the number of its family, 4 or 6.
    fn ip(&mut self, v: IpAddr);
    /// A string behind its 2-byte length. One of more than `most` bytes loses its end: it may have been made
    /// of a peer's words, and whatever a peer says can be passed on.
    fn text(&mut self, v: &str, most: u16);
    /// As many zeros.
    fn zeros(&mut self, count: usize);
}

impl Put for Vec<u8> {
    fn u8(&mut self, v: u8) {
        self.push(v);
    }
    fn u16(&mut self, v: u16) {
        self.extend_from_slice(&v.to_be_bytes());
    }
    fn u32(&mut self, v: u32) {
        self.extend_from_slice(&v.to_be_bytes());
    }
    fn u64(&mut self, v: u64) {
        self.extend_from_slice(&v.to_be_bytes());
    }
    fn ip(&mut self, v: IpAddr) {
        match v.to_canonical() {
            IpAddr::V4(address) => {
                self.u8(4);
                self.extend_from_slice(&address.octets());
            }
            IpAddr::V6(address) => {
                self.u8(6);
                self.extend_from_slice(&address.octets());
            }
        }
    }
    fn zeros(&mut self, count: usize) {
        self.resize(self.len() + count, 0);
    }
    fn text(&mut self, v: &str, most: u16) {
        let text = &v[..v.floor_char_boundary(usize::from(most))];
        self.u16(text.len() as u16);
        self.extend_from_slice(text.as_bytes());
    }
}

/// The head of a datagram outside of a transfer: four bytes that say what it is, and our version.
pub(crate) fn head(magic: [u8; 4]) -> Vec<u8> {
    let mut out = magic.to_vec();
    out.u8(VERSION);
    out
}

/// Returns a reader of the bytes behind such a head.
///
/// # Errors
/// The datagram is something else, or of a peer of another version.
pub(crate) fn after_head(datagram: &[u8], magic: [u8; 4]) -> Result<Reader<'_>, WireError> {
    let mut reader = Reader(datagram);
    if reader.array()? != magic {
        return Err(WireError::Malformed);
    }
    match reader.u8()? {
        VERSION => Ok(reader),
        version => Err(WireError::Version(version)),
    }
}
