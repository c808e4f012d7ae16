//! The records of a connection whose two ends have shaken hands (RFC 8446, section 5): sealed and opened in buffers of our own.
//!
//! rustls shakes hands, and hands over what the records are sealed with, as it does for a kernel that seals them. Its own records are read in
//! pieces of 4 KiB and copied twice. Groups of hundreds of kilobytes go over these connections, and their bytes are copied once here. Neither end
//! has sessions to take up again or updates its keys: a connection ends long before a key has sealed too much.

use crate::frames::FrameError;
use ring::aead::{
    AES_128_GCM, AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey,
};
use rustls::{AlertDescription, ConnectionTrafficSecrets, Error, ExtractedSecrets, PeerMisbehaved};
use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::ops::Range;

/// Kind, version and length come before what is sealed.
pub(super) const HEAD_LEN: usize = 5;
const TAG_LEN: usize = 16;
/// Most bytes of a record, and of what is sealed in it.
const PLAIN_LEN_MAX: usize = 16 << 10;
const SEALED_LEN_MAX: usize = PLAIN_LEN_MAX + 256;
/// What a record adds to its bytes: its head, one byte for what it is, and the tag.
const ADDED_LEN: usize = HEAD_LEN + 1 + TAG_LEN;
const VERSION: [u8; 2] = [3, 3];
const ALERT: u8 = 21;
const APPLICATION_DATA: u8 = 23;
const WARNING: u8 = 1;
const FATAL: u8 = 2;
/// A key of AES-GCM seals no more records: RFC 8446, section 5.5, says 2^24.5 of full length. They are 256 GiB.
const RECORDS_MAX: u64 = 1 << 24;
/// One read asks for no more.
const READ_LEN_MAX: usize = 288 << 10;
/// So much is sealed at a time.
const WRITE_LEN_MAX: usize = 64 << 10;
/// One that sends so many records without a byte, one after the other, only takes our time.
const EMPTY_MAX: u32 = 32;

/// One direction: its key, and how many records it has sealed.
struct Direction {
    key: LessSafeKey,
    iv: [u8; NONCE_LEN],
    next: u64,
}

impl Direction {
    fn new((next, secrets): &(u64, ConnectionTrafficSecrets)) -> Result<Self, Error> {
        let (algorithm, key, iv) = match secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (&AES_128_GCM, key, iv),
            ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (&AES_256_GCM, key, iv),
            ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (&CHACHA20_POLY1305, key, iv),
            _ => {
                return Err(Error::General(
                    "the two ends agree on a cipher that this one does not know".into(),
                ));
            }
        };
        let unbound = UnboundKey::new(algorithm, key.as_ref()).map_err(|_| Error::EncryptError)?;
        let iv = iv.as_ref().try_into().map_err(|_| Error::EncryptError)?;
        Ok(Direction { key: LessSafeKey::new(unbound), iv, next: *next })
    }

    /// What the next record is sealed with beside the key.
    fn nonce(&mut self) -> Nonce {
        let mut nonce = self.iv;
        for (byte, number) in nonce[NONCE_LEN - 8..].iter_mut().zip(self.next.to_be_bytes()) {
            *byte ^= number;
        }
        self.next += 1;
        Nonce::assume_unique_for_key(nonce)
    }

    /// Opens what a record holds where it is; gives how long it is.
    fn open(&mut self, head: [u8; HEAD_LEN], sealed: &mut [u8]) -> Result<usize, Error> {
        let nonce = self.nonce();
        let opened = self.key.open_in_place(nonce, Aad::from(head), sealed);
        opened.map(|plain| plain.len()).map_err(|_| Error::DecryptError)
    }

    /// Seals a record behind what is there.
    fn seal(&mut self, kind: u8, bytes: &[u8], to: &mut Vec<u8>) -> Result<(), Error> {
        let [high, low] = u16::try_from(bytes.len() + 1 + TAG_LEN).expect("a record is short").to_be_bytes();
        let head = [APPLICATION_DATA, VERSION[0], VERSION[1], high, low];
        to.extend_from_slice(&head);
        let start = to.len();
        to.extend_from_slice(bytes);
        to.push(kind);
        let nonce = self.nonce();
        let tag = self.key.seal_in_place_separate_tag(nonce, Aad::from(head), &mut to[start..]);
        to.extend_from_slice(tag.map_err(|_| Error::EncryptError)?.as_ref());
        Ok(())
    }
}

/// Both directions of a connection.
pub(super) struct Records {
    opens: Direction,
    seals: Direction,
    /// What has come and is not opened yet lies in `from..until`; what is opened and not read in `opened`, before that.
    incoming: Vec<u8>,
    from: usize,
    until: usize,
    opened: Range<usize>,
    empty: u32,
    /// The other end says no more; and the last word of this one is said.
    is_over: bool,
    is_finished: bool,
    failed: Option<Error>,
    outgoing: Vec<u8>,
    written: usize,
}

impl fmt::Debug for Records {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Records")
            .field("opened", &self.opens.next)
            .field("sealed", &self.seals.next)
            .finish_non_exhaustive()
    }
}

impl Records {
    /// Goes on where the handshake has ended: what has come behind it is here already, and the end of what this one has to say in it may be.
    pub(super) fn new(secrets: &ExtractedSecrets, come: Vec<u8>, outgoing: Vec<u8>) -> Result<Self, Error> {
        Ok(Records {
            opens: Direction::new(&secrets.rx)?,
            seals: Direction::new(&secrets.tx)?,
            until: come.len(),
            incoming: come,
            from: 0,
            opened: 0..0,
            empty: 0,
            is_over: false,
            is_finished: false,
            failed: None,
            outgoing,
            written: 0,
        })
    }

    /// Reads what has come; an error of kind `WouldBlock` where nothing has, 0 at the end.
    pub(super) fn read(&mut self, from: &mut impl Read, buffer: &mut [u8]) -> Result<usize, FrameError> {
        let mut read = 0;
        loop {
            let len = self.opened.len().min(buffer.len() - read);
            buffer[read..read + len]
                .copy_from_slice(&self.incoming[self.opened.start..self.opened.start + len]);
            self.opened.start += len;
            read += len;
            if read == buffer.len() || (self.opened.is_empty() && self.is_over) {
                return Ok(read);
            }
            match self.open_next() {
                Ok(true) => {}
                Ok(false) if read > 0 => return Ok(read),
                Ok(false) => {
                    if self.fill(from, buffer.len())? == 0 {
                        return Ok(0);
                    }
                }
                // What came before it still counts.
                Err(error) if read > 0 => {
                    self.failed = Some(error);
                    return Ok(read);
                }
                Err(error) => {
                    self.failed = Some(error.clone());
                    return Err(FrameError::Seal(error.into()));
                }
            }
        }
    }

    /// Bytes that can be read though nothing comes: those of the records that are here. What is wrong with one is there to be read, too.
    pub(super) fn unread(&self) -> usize {
        if !self.opened.is_empty() {
            return self.opened.len();
        }
        let next = self.next_len().filter(|_| !self.is_over);
        if self.failed.is_some() { 1 } else { next.map_or(0, |len| (len - TAG_LEN).max(1)) }
    }

    /// How many bytes have to come at least before so many can be read.
    pub(super) fn to_come(&self, bytes: usize) -> usize {
        let here = self.opened.len() + self.until - self.from;
        (bytes + bytes.div_ceil(PLAIN_LEN_MAX) * ADDED_LEN).saturating_sub(here)
    }

    /// How long what is sealed in the next record is, if that is here whole, or cannot be one.
    fn next_len(&self) -> Option<usize> {
        let here = &self.incoming[self.from..self.until];
        let [.., high, low] = *here.first_chunk::<HEAD_LEN>()?;
        let len = usize::from(u16::from_be_bytes([high, low]));
        let is_whole = here.len() >= HEAD_LEN + len || !(TAG_LEN + 1..=SEALED_LEN_MAX).contains(&len);
        is_whole.then_some(len.max(TAG_LEN))
    }

    /// Opens the next record, if it is here whole; gives whether it was.
    fn open_next(&mut self) -> Result<bool, Error> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let Some(len) = self.next_len() else { return Ok(false) };
        let head = *self.incoming[self.from..].first_chunk::<HEAD_LEN>().expect("a record has a head");
        let sealed = self.from + HEAD_LEN..self.from + HEAD_LEN + len;
        if head[0] != APPLICATION_DATA || sealed.end > self.until || len <= TAG_LEN {
            return Err(Error::DecryptError);
        }
        let len = self.opens.open(head, &mut self.incoming[sealed.clone()])?;
        self.from = sealed.end;
        let plain = &self.incoming[sealed.start..sealed.start + len];
        // Zeros may stand behind the byte that says what it is.
        let end = plain.iter().rposition(|byte| *byte != 0).ok_or(Error::DecryptError)?;
        if end > PLAIN_LEN_MAX || len > PLAIN_LEN_MAX + 1 {
            return Err(Error::PeerSentOversizedRecord);
        }
        let (bytes, kind) = (&plain[..end], plain[end]);
        if bytes.is_empty() {
            self.empty += 1;
            if self.empty > EMPTY_MAX {
                return Err(PeerMisbehaved::TooManyEmptyFragments.into());
            }
        } else {
            self.empty = 0;
        }
        match (kind, bytes) {
            (APPLICATION_DATA, _) => self.opened = sealed.start..sealed.start + end,
            (ALERT, [_, 0]) => self.is_over = true,
            (ALERT, [_, what]) => return Err(Error::AlertReceived(AlertDescription::from(*what))),
            _ => return Err(PeerMisbehaved::KeyEpochWithPendingFragment.into()),
        }
        Ok(true)
    }

    /// Reads on, little more than what is asked for; gives how many bytes have come, 0 at the end.
    fn fill(&mut self, from: &mut impl Read, wanted: usize) -> io::Result<usize> {
        self.incoming.copy_within(self.from..self.until, 0);
        (self.from, self.until, self.opened) = (0, self.until - self.from, 0..0);
        let sealed = wanted + (wanted / PLAIN_LEN_MAX + 2) * ADDED_LEN;
        let end = sealed.clamp(HEAD_LEN + SEALED_LEN_MAX, READ_LEN_MAX);
        if self.incoming.len() < end {
            self.incoming.resize(end, 0);
        }
        let come = from.read(&mut self.incoming[self.until..end])?;
        self.until += come;
        Ok(come)
    }

    /// Whether bytes that were taken to be sent are still here.
    pub(super) fn has_pending(&self) -> bool {
        self.written < self.outgoing.len()
    }

    /// Takes bytes to be sent; an error of kind `WouldBlock` where there is no room for any.
    pub(super) fn write(&mut self, to: &mut impl Write, bytes: &[u8]) -> Result<usize, FrameError> {
        if self.is_finished || self.failed.is_some() {
            return Err(FrameError::Closed);
        }
        self.flush(to)?;
        if self.has_pending() {
            return Err(io::Error::from(ErrorKind::WouldBlock).into());
        }
        let taken = &bytes[..bytes.len().min(WRITE_LEN_MAX)];
        for piece in taken.chunks(PLAIN_LEN_MAX) {
            self.seal(APPLICATION_DATA, piece)?;
        }
        self.flush(to)?;
        Ok(taken.len())
    }

    fn seal(&mut self, kind: u8, bytes: &[u8]) -> Result<(), FrameError> {
        if self.seals.next >= RECORDS_MAX {
            return Err(FrameError::Closed);
        }
        self.seals.seal(kind, bytes, &mut self.outgoing).map_err(|error| FrameError::Seal(error.into()))
    }

    /// Sends what was taken, as far as the connection takes it now.
    pub(super) fn flush(&mut self, to: &mut impl Write) -> io::Result<()> {
        while self.has_pending() {
            match to.write(&self.outgoing[self.written..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(n) => self.written += n,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.outgoing.clear();
        self.written = 0;
        Ok(())
    }

    /// Says that nothing more will be sent, or what was wrong with what came.
    pub(super) fn finish(&mut self, to: &mut impl Write) {
        let fatal = |what: AlertDescription| Some([FATAL, what.into()]);
        let alert = match &self.failed {
            None => Some([WARNING, 0]),
            // It has had the last word.
            Some(Error::AlertReceived(_)) => None,
            Some(Error::DecryptError) => fatal(AlertDescription::BadRecordMac),
            Some(Error::PeerSentOversizedRecord) => fatal(AlertDescription::RecordOverflow),
            Some(_) => fatal(AlertDescription::UnexpectedMessage),
        };
        if let Some(alert) = alert.filter(|_| !std::mem::replace(&mut self.is_finished, true)) {
            // Also where the key seals no more: it is one word.
            let _ = self.seals.seal(ALERT, &alert, &mut self.outgoing);
        }
        // An end that is gone already needs no word of ours.
        let _ = self.flush(to);
    }
}

#[cfg(test)]
mod tests;
