//! The bytes of one connection, sealed or plain, without blocking.

use super::binding::EXPORTER;
use super::records::{HEAD_LEN, Records};
use super::watch::Watch;
use super::{BINDING_LEN, Binding, Expected, PeerNames, SealError, Security, TLS_HANDSHAKE};
use crate::frames::FrameError;
use crate::store::Held;
use rustix::net::{SendFlags, send};
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, Connection, Error, PeerMisbehaved, ServerConnection};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};

/// A handshake is read in pieces of this length.
const READ_LEN: usize = 4 << 10;
/// Bytes that the head of a record may begin with, and the longest record that rustls takes.
const KINDS: std::ops::RangeInclusive<u8> = 20..=24;
const RUSTLS_LEN_MAX: usize = (16 << 10) + 2_047;

#[derive(Debug)]
enum Layer {
    /// Bytes as they are.
    Plain,
    /// The other end speaks first: sealed if it begins so.
    Undecided(Option<Security>),
    /// In TLS, whose two ends are about to show who they are.
    Shaking(Box<Shaking>),
    /// In TLS.
    Sealed(Box<Sealed>),
    /// It has failed: nothing goes over it any more.
    Broken,
}

/// A handshake.
#[derive(Debug)]
struct Shaking {
    tls: Connection,
    /// Bytes that have come and were not processed. None behind the handshake are.
    incoming: Vec<u8>,
}

/// State of a connection behind the handshake.
#[derive(Debug)]
struct Sealed {
    records: Records,
    names: PeerNames,
    binding: Option<Binding>,
}

/// A TCP connection, and what seals it.
#[derive(Debug)]
pub(crate) struct Pipe {
    stream: TcpStream,
    layer: Layer,
    watch: Option<Watch>,
}

impl Pipe {
    /// As it is.
    pub(crate) fn plain(stream: TcpStream) -> Self {
        Pipe { stream, layer: Layer::Plain, watch: None }
    }

    /// The other end decides, which has opened the connection.
    pub(crate) fn accepted(stream: TcpStream, security: Option<Security>) -> Self {
        Pipe { stream, layer: Layer::Undecided(security), watch: None }
    }

    /// Sealed; this end has opened the connection to the one that it expects.
    pub(crate) fn connected(
        stream: TcpStream,
        security: &Security,
        expected: &Expected,
    ) -> Result<Self, SealError> {
        // What looks at certificates knows whom it expects: the name is a placeholder, and is not sent.
        let name = ServerName::from(std::net::IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        let watch = Watch::new(security);
        let connection = ClientConnection::new(security.client(expected), name);
        let connection = connection.map_err(|error| SealError::Other(error.to_string()))?;
        Ok(Pipe { stream, layer: Layer::shaking(Connection::Client(connection)), watch: Some(watch) })
    }

    pub(crate) fn is_sealed(&self) -> bool {
        matches!(self.layer, Layer::Shaking(_) | Layer::Sealed(_) | Layer::Broken)
    }

    /// Returns the names that the other end may use.
    pub(crate) fn peer_names(&self) -> PeerNames {
        match &self.layer {
            Layer::Shaking(shaking) => shaking.names(),
            Layer::Sealed(sealed) => sealed.names.clone(),
            Layer::Plain | Layer::Undecided(_) => PeerNames::Any,
            Layer::Broken => PeerNames::Nobody,
        }
    }

    /// Returns the binding, which stands for this connection and for no other: the two ends have it after
    /// their handshake, and no third one has it.
    pub(crate) fn binding(&self) -> Option<Binding> {
        match &self.layer {
            Layer::Shaking(shaking) => shaking.binding(),
            Layer::Sealed(sealed) => sealed.binding,
            Layer::Plain | Layer::Undecided(_) | Layer::Broken => None,
        }
    }

    /// Returns true if the two ends are still about to show who they are.
    pub(crate) fn is_shaking(&self) -> bool {
        match &self.layer {
            Layer::Plain | Layer::Sealed(_) | Layer::Broken => false,
            Layer::Undecided(_) => true,
            Layer::Shaking(shaking) => shaking.tls.is_handshaking(),
        }
    }

    pub(crate) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Returns true if bytes that were taken to be sent are still here.
    pub(crate) fn has_pending(&self) -> bool {
        match &self.layer {
            Layer::Plain | Layer::Undecided(_) | Layer::Broken => false,
            Layer::Shaking(shaking) => shaking.tls.wants_write(),
            Layer::Sealed(sealed) => sealed.records.has_pending(),
        }
    }

    /// Reads at most so many bytes of what has come to the beginning of `room`, which is as long as
    /// [`room_for`] says; an error of kind `WouldBlock` where nothing has, 0 at the end.
    pub(crate) fn read(&mut self, room: &mut [u8], wanted: usize) -> Result<usize, FrameError> {
        if !self.decide()? {
            return Ok(0);
        }
        loop {
            match &mut self.layer {
                Layer::Plain | Layer::Undecided(_) => return Ok(self.stream.read(&mut room[..wanted])?),
                Layer::Sealed(sealed) => {
                    self.watch.as_mut().map_or(Ok(()), Watch::look)?;
                    let read = sealed.records.read(&mut self.stream, room, wanted);
                    if matches!(read, Err(FrameError::Seal(_))) {
                        // The other end hears what was wrong.
                        sealed.records.finish(&mut self.stream);
                    }
                    return read;
                }
                Layer::Broken => return Err(FrameError::Closed),
                Layer::Shaking(shaking) => {
                    // What there was no room for goes before the other end says more.
                    write_out(&mut shaking.tls, &mut self.stream)?;
                    if !shaking.is_done() && !shaking.go_on(&mut self.stream)? {
                        return Ok(0);
                    }
                    self.settle()?;
                }
            }
        }
    }

    /// Looks at the first byte of a connection whose other end decides; gives whether there is one.
    fn decide(&mut self) -> Result<bool, FrameError> {
        let Layer::Undecided(security) = &self.layer else { return Ok(true) };
        let mut first = [0];
        let sealed = match self.stream.peek(&mut first)? {
            0 => return Ok(false),
            _ => first[0] == TLS_HANDSHAKE,
        };
        self.layer = match (sealed, security) {
            (false, _) => Layer::Plain,
            (true, None) => return Err(SealError::PeerSeals.into()),
            (true, Some(security)) => {
                self.watch = Some(Watch::new(security));
                let connection = ServerConnection::new(security.server()).map_err(seal_error)?;
                Layer::shaking(Connection::Server(connection))
            }
        };
        Ok(true)
    }

    /// Goes on with records of our own where hands are shaken.
    fn settle(&mut self) -> Result<(), FrameError> {
        if !matches!(&self.layer, Layer::Shaking(shaking) if shaking.is_done()) {
            return Ok(());
        }
        let Layer::Shaking(shaking) = std::mem::replace(&mut self.layer, Layer::Broken) else {
            unreachable!("just looked at")
        };
        if let Some(watch) = &mut self.watch {
            watch.show(&shaking.tls);
        }
        let (names, binding) = (shaking.names(), shaking.binding());
        let Shaking { mut tls, incoming } = *shaking;
        // What the connection did not take yet goes before all that is sealed from here on.
        let mut outgoing = Vec::new();
        while tls.wants_write() {
            tls.write_tls(&mut outgoing)?;
        }
        let secrets = tls.dangerous_extract_secrets().map_err(seal_error)?;
        let records = Records::new(&secrets, incoming, outgoing).map_err(seal_error)?;
        self.layer = Layer::Sealed(Box::new(Sealed { records, names, binding }));
        Ok(())
    }

    /// Bytes that have been unsealed, or can be, and not been read.
    pub(crate) fn unread(&self) -> usize {
        match &self.layer {
            Layer::Sealed(sealed) => sealed.records.unread(),
            Layer::Plain | Layer::Undecided(_) | Layer::Shaking(_) | Layer::Broken => 0,
        }
    }

    /// Reads what [`Pipe::unread`] counts, as [`Pipe::read`], and nothing that comes meanwhile.
    pub(crate) fn read_here(&mut self, room: &mut [u8], wanted: usize) -> Result<usize, FrameError> {
        let Layer::Sealed(sealed) = &mut self.layer else { return Ok(0) };
        let read = sealed.records.read(&mut io::empty(), room, wanted);
        if matches!(read, Err(FrameError::Seal(_))) {
            sealed.records.finish(&mut self.stream);
        }
        read
    }

    /// Returns the number of bytes that have to come at least before `bytes` can be read.
    pub(crate) fn to_come(&self, bytes: usize) -> usize {
        match &self.layer {
            Layer::Plain | Layer::Undecided(_) => bytes,
            Layer::Shaking(_) | Layer::Broken => 0,
            Layer::Sealed(sealed) => sealed.records.to_come(bytes),
        }
    }

    /// Takes bytes to be sent; an error of kind `WouldBlock` where there is no room for any.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<usize, FrameError> {
        self.settle()?;
        let shaking = match &mut self.layer {
            Layer::Plain | Layer::Undecided(_) => return Ok(self.stream.write(bytes)?),
            Layer::Sealed(sealed) => return sealed.records.write(&mut self.stream, bytes),
            Layer::Broken => return Err(FrameError::Closed),
            Layer::Shaking(shaking) => shaking,
        };
        write_out(&mut shaking.tls, &mut self.stream)?;
        let taken = shaking.tls.writer().write(bytes)?;
        write_out(&mut shaking.tls, &mut self.stream)?;
        if taken == 0 && !bytes.is_empty() {
            return Err(io::Error::from(ErrorKind::WouldBlock).into());
        }
        Ok(taken)
    }

    /// Takes `head` to be sent, and behind it bytes of a file, which lie there from `at` on; as
    /// [`Pipe::write`].
    pub(crate) fn write_from(
        &mut self,
        head: &[u8],
        (held, at): (&Held, u64),
        len: usize,
    ) -> Result<usize, FrameError> {
        self.settle()?;
        match &mut self.layer {
            // More comes at once, in the same packet.
            Layer::Plain | Layer::Undecided(_) if !head.is_empty() => {
                let more = SendFlags::MORE | SendFlags::NOSIGNAL;
                Ok(send(&self.stream, head, more).map_err(io::Error::from)?)
            }
            Layer::Plain | Layer::Undecided(_) => match held.send_to(&self.stream, at, len)? {
                0 => Err(io::Error::from(ErrorKind::UnexpectedEof).into()),
                sent => Ok(sent),
            },
            Layer::Sealed(sealed) => {
                sealed.records.write_with(&mut self.stream, head.len() + len, |from, room| {
                    let of_head = head.get(from..).unwrap_or_default();
                    let (first, rest) = room.split_at_mut(of_head.len().min(room.len()));
                    first.copy_from_slice(&of_head[..first.len()]);
                    let of_file = (from + first.len()).saturating_sub(head.len());
                    held.read_exact_at(rest, at + of_file as u64)
                })
            }
            Layer::Shaking(_) => unreachable!("groups are sent when hands are shaken"),
            Layer::Broken => Err(FrameError::Closed),
        }
    }

    /// Sends what was taken, as far as the connection takes it now.
    pub(crate) fn flush(&mut self) -> Result<(), FrameError> {
        match &mut self.layer {
            Layer::Plain | Layer::Undecided(_) => Ok(()),
            Layer::Broken => Err(FrameError::Closed),
            Layer::Sealed(sealed) => Ok(sealed.records.flush(&mut self.stream)?),
            Layer::Shaking(shaking) => {
                write_out(&mut shaking.tls, &mut self.stream)?;
                self.settle()
            }
        }
    }

    /// Says that nothing more will be sent.
    pub(crate) fn finish(&mut self) {
        match &mut self.layer {
            Layer::Plain | Layer::Undecided(_) | Layer::Broken => {}
            Layer::Sealed(sealed) => sealed.records.finish(&mut self.stream),
            Layer::Shaking(shaking) => {
                shaking.tls.send_close_notify();
                // An end that is gone already needs no word of ours.
                let _ = write_out(&mut shaking.tls, &mut self.stream);
            }
        }
        let _ = self.stream.shutdown(Shutdown::Write);
    }
}

impl Layer {
    fn shaking(tls: Connection) -> Self {
        Layer::Shaking(Box::new(Shaking { tls, incoming: Vec::new() }))
    }
}

impl Shaking {
    /// Returns true once the handshake is done; this end may still have to report it.
    fn is_done(&self) -> bool {
        !self.tls.is_handshaking()
    }

    fn names(&self) -> PeerNames {
        PeerNames::of(self.tls.peer_certificates().and_then(<[_]>::first))
    }

    fn binding(&self) -> Option<Binding> {
        self.tls.export_keying_material([0; BINDING_LEN], EXPORTER, None).ok().map(Binding)
    }

    /// Takes in the next record; gives whether the connection is still there.
    fn go_on(&mut self, stream: &mut TcpStream) -> Result<bool, FrameError> {
        let len = loop {
            if let Some(len) = self.next_len() {
                break len;
            }
            let mut come = [0; READ_LEN];
            let len = stream.read(&mut come)?;
            if len == 0 {
                return Ok(false);
            }
            self.incoming.extend_from_slice(&come[..len]);
        };
        let mut record = &self.incoming[..len];
        let mut processed = Ok(false);
        while !record.is_empty() && processed.is_ok() {
            self.tls.read_tls(&mut record)?;
            let state = self.tls.process_new_packets();
            processed = state.map(|state| state.plaintext_bytes_to_read() > 0 || state.peer_has_closed());
        }
        self.incoming.drain(..len);
        // The handshake goes on, or the other end hears what was wrong.
        let written = write_out(&mut self.tls, stream);
        if processed.map_err(seal_error)? {
            // What is not of the handshake would be lost here.
            return Err(seal_error(PeerMisbehaved::KeyEpochWithPendingFragment.into()));
        }
        written?;
        Ok(true)
    }

    /// Returns the length of the next record, if it is here whole. Of bytes that cannot be a record the head
    /// is handed over: rustls reports the error. Nothing behind a record is, whatever its head says: rustls
    /// would open what follows, and it would be lost.
    fn next_len(&self) -> Option<usize> {
        let [kind, _, _, high, low] = *self.incoming.first_chunk::<HEAD_LEN>()?;
        let len = usize::from(u16::from_be_bytes([high, low]));
        if !KINDS.contains(&kind) || len > RUSTLS_LEN_MAX {
            return Some(HEAD_LEN);
        }
        (self.incoming.len() >= HEAD_LEN + len).then_some(HEAD_LEN + len)
    }
}

impl AsFd for Pipe {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

fn write_out(tls: &mut Connection, stream: &mut TcpStream) -> io::Result<()> {
    while tls.wants_write() {
        match tls.write_tls(stream) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn seal_error(error: Error) -> FrameError {
    FrameError::Seal(error.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seal::Secret;
    use polycast_testing::HANG;
    use std::net::TcpListener;
    use std::time::Instant;

    /// Two ends, of which the first one has said something before its hands are shaken.
    fn ends(says: &[u8]) -> (Pipe, Pipe) {
        let security = Security::shared(&Secret::new([5; 32]));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        stream.set_nonblocking(true).unwrap();
        accepted.set_nonblocking(true).unwrap();
        let mut client = Pipe::connected(stream, &security, &Expected::Sharer).unwrap();
        assert_eq!(client.write(says).unwrap(), says.len());
        (client, Pipe::accepted(accepted, Some(security)))
    }

    /// Reads from one end, while the other one goes on as well, until so much has come or there is an error.
    fn read_from(to: &mut Pipe, from: &mut Pipe, len: usize) -> Result<Vec<u8>, FrameError> {
        let (begun, mut all) = (Instant::now(), Vec::new());
        while all.len() < len {
            assert!(begun.elapsed() < HANG, "{} of {len} bytes have come", all.len());
            from.flush()?;
            let mut buffer = [0; 1_000];
            match to.read(&mut buffer, 1_000) {
                Ok(0) => return Err(FrameError::Closed),
                Ok(read) => all.extend_from_slice(&buffer[..read]),
                Err(error) if error.is_wait() => {}
                Err(error) => return Err(error),
            }
            match from.read(&mut [], 0) {
                Err(error) if !error.is_wait() => return Err(error),
                _ => {}
            }
        }
        Ok(all)
    }

    /// Bytes that are sent before the handshake, together with it, and after it arrive, in both directions
    /// and in order.
    #[test]
    fn what_is_said_around_the_handshake_comes() {
        let early: Vec<u8> = (0..40_000u32).map(|at| (at / 7) as u8).collect();
        let (mut client, mut server) = ends(&early);
        assert!(server.is_shaking() && client.is_shaking());
        assert!(read_from(&mut server, &mut client, early.len()).unwrap() == early);
        assert!(client.is_sealed() && server.is_sealed() && !client.is_shaking() && !server.is_shaking());
        assert!(client.binding().is_some() && client.binding() == server.binding());
        assert_eq!(server.write(b"back").unwrap(), 4);
        assert_eq!(read_from(&mut client, &mut server, 4).unwrap(), b"back");
        assert_eq!(client.write(b"forth").unwrap(), 5);
        assert_eq!(read_from(&mut server, &mut client, 5).unwrap(), b"forth");
    }

    /// The heads of records are not all protected: one that changes them can make this end lose nothing that
    /// was said.
    #[test]
    fn no_change_of_heads_loses_what_was_said() {
        let security = Security::shared(&Secret::new([5; 32]));
        for version in [[3, 3], [3, 1], [0xfe, 0xfd], [0, 2], [9, 9]] {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let between = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let stream = TcpStream::connect(between.local_addr().unwrap()).unwrap();
            let mut near = between.accept().unwrap().0;
            let mut far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let accepted = listener.accept().unwrap().0;
            for stream in [&stream, &near, &far, &accepted] {
                stream.set_nonblocking(true).unwrap();
            }
            let mut client = Pipe::connected(stream, &security, &Expected::Sharer).unwrap();
            client.write(&[7; 3_000]).unwrap();
            let mut server = Pipe::accepted(accepted, Some(security.clone()));
            let (begun, mut got, mut held, mut answered) = (Instant::now(), Vec::new(), Vec::new(), false);
            let ended = loop {
                assert!(begun.elapsed() < HANG, "{version:?}: {} bytes", got.len());
                let _ = (client.flush(), client.read(&mut [], 0));
                let mut piece = [0; 8_192];
                if let Ok(len) = near.read(&mut piece) {
                    held.extend_from_slice(&piece[..len]);
                }
                // The client's last flight and what it has said go on in one piece, with other versions in
                // the heads of the records.
                let is_late = answered && !client.is_shaking() && !held.is_empty();
                if (!answered || is_late) && !held.is_empty() {
                    let mut at = 0;
                    while is_late && at + HEAD_LEN <= held.len() {
                        let len = usize::from(u16::from_be_bytes([held[at + 3], held[at + 4]]));
                        // Of what is said only the last flight, sealed as all is.
                        held[at + 1..at + 3].copy_from_slice(if at < 400 { &version } else { &[3, 3] });
                        at += HEAD_LEN + len;
                    }
                    far.write_all(&held).unwrap();
                    held.clear();
                }
                if let Ok(len) = far.read(&mut piece) {
                    answered |= len > 0;
                    near.write_all(&piece[..len]).unwrap();
                }
                let mut buffer = [0; 1_000];
                match server.read(&mut buffer, 1_000) {
                    Ok(0) => break false,
                    Ok(len) => got.extend_from_slice(&buffer[..len]),
                    Err(error) if error.is_wait() => {}
                    Err(_) => break false,
                }
                if got.len() >= 3_000 {
                    break true;
                }
            };
            assert!(ended || version != [3, 3], "nothing was changed");
            assert!(ended || got.is_empty(), "{version:?}: {} bytes, and then an error", got.len());
            assert!(got.iter().all(|byte| *byte == 7));
        }
    }
}
