//! The records of a connection whose two ends have shaken hands (RFC 8446, section 5): sealed and opened in
//! buffers of our own.
//!
//! rustls shakes hands, and hands over what the records are sealed with, as it does for a kernel that seals
//! them. Its own records are read in pieces of 4 KiB and copied twice. Groups of hundreds of kilobytes go
//! over these connections: what comes is opened where it is read to, and what is sent is read into the record
//! in which it is sealed. Neither end has sessions to take up again or updates its keys: a connection ends
//! long before a key has sealed too much.

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
/// Bytes that a record adds to its contents: its head, one byte for its kind, and the tag.
const ADDED_LEN: usize = HEAD_LEN + 1 + TAG_LEN;
const VERSION: [u8; 2] = [3, 3];
const ALERT: u8 = 21;
const APPLICATION_DATA: u8 = 23;
const WARNING: u8 = 1;
const FATAL: u8 = 2;
/// A key of AES-GCM seals no more records: RFC 8446, section 5.5, says 2^24.5 of full length. They are 256
/// GiB.
const RECORDS_MAX: u64 = 1 << 24;
/// One read asks for no more.
const READ_LEN_MAX: usize = 288 << 10;
/// So much is sealed at a time.
const WRITE_LEN_MAX: usize = 64 << 10;
/// One that sends so many records without a byte, one after the other, only takes our time.
const EMPTY_MAX: u32 = 32;

/// Room in which so many bytes can be read: where they fill records, those come to lie in it first.
pub(crate) fn room_for(bytes: usize) -> usize {
    if bytes < PLAIN_LEN_MAX { bytes } else { sealed_len(bytes).max(HEAD_LEN + SEALED_LEN_MAX) }
}

/// Returns the most bytes that this number of bytes takes when sealed, in records of full length.
fn sealed_len(bytes: usize) -> usize {
    bytes + (bytes / PLAIN_LEN_MAX + 2) * ADDED_LEN
}

/// Returns the length of what is sealed in the next record, if that is here whole, or cannot be one.
fn whole_len(here: &[u8]) -> Option<usize> {
    let [.., high, low] = *here.first_chunk::<HEAD_LEN>()?;
    let len = usize::from(u16::from_be_bytes([high, low]));
    let is_whole = here.len() >= HEAD_LEN + len || !(TAG_LEN + 1..=SEALED_LEN_MAX).contains(&len);
    is_whole.then_some(len.max(TAG_LEN))
}

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

    /// Returns the nonce of the next record, with which it is sealed or opened beside the key.
    fn nonce(&mut self) -> Nonce {
        let mut nonce = self.iv;
        for (byte, number) in nonce[NONCE_LEN - 8..].iter_mut().zip(self.next.to_be_bytes()) {
            *byte ^= number;
        }
        self.next += 1;
        Nonce::assume_unique_for_key(nonce)
    }

    /// Opens what is sealed from `from` on to the beginning of these bytes; gives what that is.
    fn open<'a>(
        &mut self,
        head: [u8; HEAD_LEN],
        bytes: &'a mut [u8],
        from: usize,
    ) -> Result<&'a mut [u8], Error> {
        let nonce = self.nonce();
        self.key.open_within(nonce, Aad::from(head), bytes, from..).map_err(|_| Error::DecryptError)
    }

    /// Seals the bytes that lie in a record, which is as long as it adds to them.
    fn seal(&mut self, kind: u8, record: &mut [u8]) -> Result<(), Error> {
        let (head, body) = record.split_at_mut(HEAD_LEN);
        let [high, low] = u16::try_from(body.len()).expect("a record is short").to_be_bytes();
        head.copy_from_slice(&[APPLICATION_DATA, VERSION[0], VERSION[1], high, low]);
        let (sealed, tag) = body.split_at_mut(body.len() - TAG_LEN);
        *sealed.last_mut().expect("a record says what it is") = kind;
        let nonce = self.nonce();
        let made = self.key.seal_in_place_separate_tag(nonce, Aad::from(&*head), sealed);
        tag.copy_from_slice(made.map_err(|_| Error::EncryptError)?.as_ref());
        Ok(())
    }
}

/// Both directions of a connection.
pub(super) struct Records {
    opens: Direction,
    seals: Direction,
    /// Bytes that have come and are not opened yet in `from..until`; those that are opened and not read in
    /// `opened`, before that.
    incoming: Vec<u8>,
    from: usize,
    until: usize,
    opened: Range<usize>,
    empty: u32,
    /// The other end says no more; and the last word of this one is said.
    is_over: bool,
    is_finished: bool,
    failed: Option<Error>,
    /// Records that are sealed and not sent yet lie in `written..sealed`.
    outgoing: Vec<u8>,
    written: usize,
    sealed: usize,
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
    /// Goes on where the handshake has ended: what has come behind it is here already, and the end of what
    /// this one has to say in it may be.
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
            sealed: outgoing.len(),
            outgoing,
            written: 0,
        })
    }

    /// Reads at most so many bytes of what has come to the beginning of `room`, which is as long as
    /// [`room_for`] says: what is behind them there is anything. An error of kind `WouldBlock` where nothing
    /// has come, 0 at the end.
    pub(super) fn read(
        &mut self,
        from: &mut impl Read,
        room: &mut [u8],
        wanted: usize,
    ) -> Result<usize, FrameError> {
        assert!(room.len() >= room_for(wanted), "{} bytes of room for {wanted}", room.len());
        let mut read = 0;
        loop {
            let len = self.opened.len().min(wanted - read);
            room[read..read + len]
                .copy_from_slice(&self.incoming[self.opened.start..self.opened.start + len]);
            self.opened.start += len;
            read += len;
            if read == wanted || (self.opened.is_empty() && self.is_over) {
                return Ok(read);
            }
            match self.open_next() {
                Ok(true) => {}
                Ok(false) if read > 0 => return Ok(read),
                Ok(false) if wanted >= PLAIN_LEN_MAX => match self.open_into(from, room, wanted)? {
                    None => return Ok(0),
                    Some(0) => {}
                    Some(len) => return Ok(len),
                },
                Ok(false) => {
                    if self.fill(from, wanted)? == 0 {
                        return Ok(0);
                    }
                }
                Err(error) => return self.fail(error, read),
            }
        }
    }

    /// There is something wrong with what has come. What came before it still counts.
    fn fail(&mut self, error: Error, read: usize) -> Result<usize, FrameError> {
        self.failed = Some(error.clone());
        if read > 0 { Ok(read) } else { Err(FrameError::Seal(error.into())) }
    }

    /// Bytes that can be read though nothing comes: those of the records that are here. What is wrong with
    /// one is there to be read, too.
    pub(super) fn unread(&self) -> usize {
        if !self.opened.is_empty() {
            return self.opened.len();
        }
        let next = whole_len(&self.incoming[self.from..self.until]).filter(|_| !self.is_over);
        if self.failed.is_some() { 1 } else { next.map_or(0, |len| (len - TAG_LEN).max(1)) }
    }

    /// Returns the number of bytes that have to come at least before `bytes` can be read.
    pub(super) fn to_come(&self, bytes: usize) -> usize {
        let here = self.opened.len() + self.until - self.from;
        (bytes + bytes.div_ceil(PLAIN_LEN_MAX) * ADDED_LEN).saturating_sub(here)
    }

    /// Opens the next record where it is kept, if it is here whole; gives whether it was.
    fn open_next(&mut self) -> Result<bool, Error> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let Some(len) = whole_len(&self.incoming[self.from..self.until]) else { return Ok(false) };
        let (at, to) = (self.from, self.from + HEAD_LEN);
        self.from = to + len;
        let mut incoming = std::mem::take(&mut self.incoming);
        let opened = self.open(&mut incoming[..self.until], at, to);
        self.incoming = incoming;
        self.opened = to..to + opened?;
        Ok(true)
    }

    /// Opens the record that lies at `at` to where `to` is, which is before what is sealed in it; gives how
    /// many bytes it holds.
    fn open(&mut self, bytes: &mut [u8], at: usize, to: usize) -> Result<usize, Error> {
        let head = *bytes[at..].first_chunk::<HEAD_LEN>().expect("a record has a head");
        let len = usize::from(u16::from_be_bytes([head[3], head[4]]));
        let sealed = at + HEAD_LEN..at + HEAD_LEN + len;
        if head[0] != APPLICATION_DATA || sealed.end > bytes.len() || len <= TAG_LEN {
            return Err(Error::DecryptError);
        }
        let plain = self.opens.open(head, &mut bytes[to..sealed.end], sealed.start - to)?;
        // Zeros may stand behind the byte that says what it is.
        let end = plain.iter().rposition(|byte| *byte != 0).ok_or(Error::DecryptError)?;
        if end > PLAIN_LEN_MAX || plain.len() > PLAIN_LEN_MAX + 1 {
            return Err(Error::PeerSentOversizedRecord);
        }
        self.empty = if end == 0 { self.empty + 1 } else { 0 };
        if self.empty > EMPTY_MAX {
            return Err(PeerMisbehaved::TooManyEmptyFragments.into());
        }
        match (plain[end], &plain[..end]) {
            (APPLICATION_DATA, _) => return Ok(end),
            (ALERT, [_, 0]) => self.is_over = true,
            (ALERT, [_, what]) => return Err(Error::AlertReceived(AlertDescription::from(*what))),
            _ => return Err(PeerMisbehaved::KeyEpochWithPendingFragment.into()),
        }
        Ok(0)
    }

    /// Reads on, little more than what is wanted, and opens the records that come one behind the other where
    /// they are read to. Gives how many bytes they hold, `None` at the end. What is left of a record, or may
    /// be more than is wanted, is kept.
    fn open_into(
        &mut self,
        from: &mut impl Read,
        room: &mut [u8],
        wanted: usize,
    ) -> Result<Option<usize>, FrameError> {
        let here = self.until - self.from;
        room[..here].copy_from_slice(&self.incoming[self.from..self.until]);
        let come = from.read(&mut room[here..self.end_of_read(wanted)])?;
        let until = here + come;
        let (mut at, mut read, mut failed) = (0, 0, None);
        while let Some(len) = whole_len(&room[at..until]).filter(|_| come > 0 && !self.is_over) {
            if (read + len).saturating_sub(TAG_LEN + 1) > wanted {
                break;
            }
            match self.open(&mut room[..until], at, read) {
                Ok(len) => read += len,
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
            at += HEAD_LEN + len;
        }
        self.keep(&room[at..until]);
        match failed {
            Some(error) => self.fail(error, read).map(Some),
            None => Ok((come > 0).then_some(read)),
        }
    }

    /// Returns the number of bytes that may be here after the next read: those that are wanted, and the whole
    /// of a record whose beginning is here. What comes behind a group would lie in its buffer.
    fn end_of_read(&self, wanted: usize) -> usize {
        let here = &self.incoming[self.from..self.until];
        let begun = here.first_chunk().map_or(HEAD_LEN, |[.., high, low]: &[u8; HEAD_LEN]| {
            HEAD_LEN + usize::from(u16::from_be_bytes([*high, *low]))
        });
        sealed_len(wanted).min(READ_LEN_MAX).max(begun)
    }

    /// Keeps what has come and is not opened yet.
    fn keep(&mut self, sealed: &[u8]) {
        if self.incoming.len() < sealed.len() {
            self.incoming.resize(sealed.len(), 0);
        }
        self.incoming[..sealed.len()].copy_from_slice(sealed);
        (self.from, self.until, self.opened) = (0, sealed.len(), 0..0);
    }

    /// Reads on, little more than what is wanted; gives how many bytes have come, 0 at the end.
    fn fill(&mut self, from: &mut impl Read, wanted: usize) -> io::Result<usize> {
        self.incoming.copy_within(self.from..self.until, 0);
        (self.from, self.until, self.opened) = (0, self.until - self.from, 0..0);
        let end = self.end_of_read(wanted);
        if self.incoming.len() < end {
            self.incoming.resize(end, 0);
        }
        let come = from.read(&mut self.incoming[self.until..end])?;
        self.until += come;
        Ok(come)
    }

    /// Returns true if bytes that were taken to be sent are still here.
    pub(super) fn has_pending(&self) -> bool {
        self.written < self.sealed
    }

    /// Takes bytes to be sent; an error of kind `WouldBlock` where there is no room for any.
    pub(super) fn write(&mut self, to: &mut impl Write, bytes: &[u8]) -> Result<usize, FrameError> {
        self.write_with(to, bytes.len(), |at, room| {
            room.copy_from_slice(&bytes[at..at + room.len()]);
            Ok(())
        })
    }

    /// Takes some of so many bytes to be sent, as [`Records::write`]; `read` puts those from a place on where
    /// they are sealed.
    pub(super) fn write_with(
        &mut self,
        to: &mut impl Write,
        len: usize,
        mut read: impl FnMut(usize, &mut [u8]) -> io::Result<()>,
    ) -> Result<usize, FrameError> {
        if self.is_finished || self.failed.is_some() {
            return Err(FrameError::Closed);
        }
        self.flush(to)?;
        if self.has_pending() {
            return Err(io::Error::from(ErrorKind::WouldBlock).into());
        }
        let len = len.min(WRITE_LEN_MAX);
        for at in (0..len).step_by(PLAIN_LEN_MAX) {
            if self.seals.next >= RECORDS_MAX {
                return Err(FrameError::Closed);
            }
            let sealed = self.seal(APPLICATION_DATA, PLAIN_LEN_MAX.min(len - at), |room| read(at, room));
            // Nothing may follow what is only there in part.
            self.is_finished = sealed.is_err();
            sealed?;
        }
        self.flush(to)?;
        Ok(len)
    }

    /// Seals a record of so many bytes, which `read` puts into it.
    fn seal(
        &mut self,
        kind: u8,
        len: usize,
        read: impl FnOnce(&mut [u8]) -> io::Result<()>,
    ) -> Result<(), FrameError> {
        let end = self.sealed + len + ADDED_LEN;
        if self.outgoing.len() < end {
            self.outgoing.resize(end, 0);
        }
        let record = &mut self.outgoing[self.sealed..end];
        read(&mut record[HEAD_LEN..HEAD_LEN + len])?;
        self.seals.seal(kind, record).map_err(|error| FrameError::Seal(error.into()))?;
        self.sealed = end;
        Ok(())
    }

    /// Sends what was taken, as far as the connection takes it now.
    pub(super) fn flush(&mut self, to: &mut impl Write) -> io::Result<()> {
        while self.has_pending() {
            match to.write(&self.outgoing[self.written..self.sealed]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(n) => self.written += n,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        (self.written, self.sealed) = (0, 0);
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
            let _ = self.seal(ALERT, alert.len(), |room| {
                room.copy_from_slice(&alert);
                Ok(())
            });
        }
        // An end that is gone already needs no word of ours.
        let _ = self.flush(to);
    }
}

#[cfg(test)]
mod tests;
