//! Reading and writing of integers and strings, with bounds always checked.

use crate::WireError;
use alloc::vec::Vec;

/// Reads from the front of a byte slice.
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn take(&mut self, n: usize) -> Result<&'a [u8], WireError> {
        let (head, tail) = self.0.split_at_checked(n).ok_or(WireError::Malformed)?;
        self.0 = tail;
        Ok(head)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        self.take(N)?.try_into().map_err(|_| WireError::Malformed)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, WireError> {
        Ok(self.array::<1>()?[0])
    }

    pub(crate) fn u16(&mut self) -> Result<u16, WireError> {
        Ok(u16::from_be_bytes(self.array()?))
    }

    pub(crate) fn u32(&mut self) -> Result<u32, WireError> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64, WireError> {
        Ok(u64::from_be_bytes(self.array()?))
    }

    /// A string with a 2-byte length before it.
    pub(crate) fn text(&mut self) -> Result<&'a str, WireError> {
        let len = self.u16()?;
        core::str::from_utf8(self.take(usize::from(len))?).map_err(|_| WireError::Malformed)
    }

    pub(crate) fn end(self) -> Result<(), WireError> {
        if self.0.is_empty() { Ok(()) } else { Err(WireError::Malformed) }
    }
}

/// Appends to a byte vector.
pub(crate) trait Put {
    fn u8(&mut self, v: u8);
    fn u16(&mut self, v: u16);
    fn u32(&mut self, v: u32);
    fn u64(&mut self, v: u64);
    fn text(&mut self, v: &str);
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
    fn text(&mut self, v: &str) {
        // A name longer than this is our own caller's mistake; names come from file names and host names.
        let len = u16::try_from(v.len()).expect("texts on the wire are shorter than 64 KiB");
        self.u16(len);
        self.extend_from_slice(v.as_bytes());
    }
}
