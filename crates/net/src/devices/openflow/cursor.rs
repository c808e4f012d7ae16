//! Reading and writing of integers, with bounds always checked.

use super::CodecError;

/// Reads from the front of a byte slice.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn take(&mut self, n: usize) -> Result<&'a [u8], CodecError> {
        let (head, tail) = self.0.split_at_checked(n).ok_or(CodecError::Malformed)?;
        self.0 = tail;
        Ok(head)
    }

    pub(super) fn skip(&mut self, n: usize) -> Result<(), CodecError> {
        self.take(n).map(drop)
    }

    pub(super) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], CodecError> {
        self.take(N)?.try_into().map_err(|_| CodecError::Malformed)
    }

    pub(super) fn u8(&mut self) -> Result<u8, CodecError> {
        Ok(self.array::<1>()?[0])
    }

    pub(super) fn u16(&mut self) -> Result<u16, CodecError> {
        Ok(u16::from_be_bytes(self.array()?))
    }

    pub(super) fn u32(&mut self) -> Result<u32, CodecError> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64, CodecError> {
        Ok(u64::from_be_bytes(self.array()?))
    }
}

/// Appends to a byte vector.
pub(super) trait Put {
    fn u8(&mut self, value: u8);
    fn u16(&mut self, value: u16);
    fn u32(&mut self, value: u32);
    fn u64(&mut self, value: u64);
    fn zeros(&mut self, count: usize);
}

impl Put for Vec<u8> {
    fn u8(&mut self, value: u8) {
        self.push(value);
    }
    fn u16(&mut self, value: u16) {
        self.extend_from_slice(&value.to_be_bytes());
    }
    fn u32(&mut self, value: u32) {
        self.extend_from_slice(&value.to_be_bytes());
    }
    fn u64(&mut self, value: u64) {
        self.extend_from_slice(&value.to_be_bytes());
    }
    fn zeros(&mut self, count: usize) {
        self.resize(self.len() + count, 0);
    }
}

/// Writes the number of bytes from `start` to the end as the 16-bit length at `at`.
pub(super) fn set_len(wire: &mut [u8], start: usize, at: usize) {
    let len = u16::try_from(wire.len() - start).expect("an OpenFlow structure is shorter than 64 KiB");
    wire[at..at + 2].copy_from_slice(&len.to_be_bytes());
}
