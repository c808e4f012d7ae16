//! The bytes of one connection, sealed or plain, without blocking.

use super::records::{HEAD_LEN, Records, SEALED_LEN_MAX};
use super::token::EXPORTER;
use super::watch::Watch;
use super::{BINDING_LEN, Binding, Expected, PeerNames, SealError, Security, TLS_HANDSHAKE};
use crate::frames::FrameError;
use crate::store::Held;
use rustix::net::{SendFlags, send};
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, Connection, Error, ServerConnection};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};

/// A handshake is read in pieces of this length.
const READ_LEN: usize = 4 << 10;
/// What the head of a record begins with.
const KINDS: std::ops::RangeInclusive<u8> = 20..=24;
const VERSION_MAJOR: u8 = 3;

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
}

/// A handshake.
#[derive(Debug)]
struct Shaking {
    tls: Connection,
    /// What has come and was not looked at. Nothing behind the handshake is.
    incoming: Vec<u8>,
}

/// What there is behind it.
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
        matches!(self.layer, Layer::Shaking(_) | Layer::Sealed(_))
    }

    /// What the other end may call itself.
    pub(crate) fn peer_names(&self) -> PeerNames {
        match &self.layer {
            Layer::Shaking(shaking) => shaking.names(),
            Layer::Sealed(sealed) => sealed.names.clone(),
            Layer::Plain | Layer::Undecided(_) => PeerNames::Any,
        }
    }

    /// What stands for this connection, and for no other: the two ends have it when their hands are shaken, and no third one.
    pub(crate) fn binding(&self) -> Option<Binding> {
        match &self.layer {
            Layer::Shaking(shaking) => shaking.binding(),
            Layer::Sealed(sealed) => sealed.binding,
            Layer::Plain | Layer::Undecided(_) => None,
        }
    }

    /// Whether the two ends are still about to show who they are.
    pub(crate) fn is_shaking(&self) -> bool {
        match &self.layer {
            Layer::Plain | Layer::Sealed(_) => false,
            Layer::Undecided(_) => true,
            Layer::Shaking(shaking) => shaking.tls.is_handshaking(),
        }
    }

    pub(crate) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Whether bytes that were taken to be sent are still here.
    pub(crate) fn has_pending(&self) -> bool {
        match &self.layer {
            Layer::Plain | Layer::Undecided(_) => false,
            Layer::Shaking(shaking) => shaking.tls.wants_write(),
            Layer::Sealed(sealed) => sealed.records.has_pending(),
        }
    }

    /// Reads what has come; an error of kind `WouldBlock` where nothing has, 0 at the end.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> Result<usize, FrameError> {
        if !self.decide()? {
            return Ok(0);
        }
        loop {
            match &mut self.layer {
                Layer::Plain | Layer::Undecided(_) => return Ok(self.stream.read(buffer)?),
                Layer::Sealed(sealed) => {
                    self.watch.as_mut().map_or(Ok(()), Watch::look)?;
                    let read = sealed.records.read(&mut self.stream, buffer);
                    if matches!(read, Err(FrameError::Seal(_))) {
                        // The other end hears what was wrong.
                        sealed.records.finish(&mut self.stream);
                    }
                    return read;
                }
                Layer::Shaking(shaking) => {
                    let is_open = !shaking.is_done() && shaking.go_on(&mut self.stream)?;
                    let has_ended = !is_open && !shaking.is_done();
                    write_out(&mut shaking.tls, &mut self.stream)?;
                    self.settle()?;
                    if has_ended {
                        return Ok(0);
                    }
                    if !is_open && matches!(self.layer, Layer::Shaking(_)) {
                        // It is over when its last word is sent.
                        return Err(io::Error::from(ErrorKind::WouldBlock).into());
                    }
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

    /// Goes on with records of our own where hands are shaken and all that belongs to that is sent.
    fn settle(&mut self) -> Result<(), FrameError> {
        let is_over = |shaking: &Shaking| shaking.is_done() && !shaking.tls.wants_write();
        if !matches!(&self.layer, Layer::Shaking(shaking) if is_over(shaking)) {
            return Ok(());
        }
        let Layer::Shaking(shaking) = std::mem::replace(&mut self.layer, Layer::Plain) else {
            unreachable!("just looked at")
        };
        if let Some(watch) = &mut self.watch {
            watch.show(&shaking.tls);
        }
        let (names, binding) = (shaking.names(), shaking.binding());
        let Shaking { tls, incoming } = *shaking;
        let secrets = tls.dangerous_extract_secrets().map_err(seal_error)?;
        let records = Records::new(&secrets, incoming).map_err(seal_error)?;
        self.layer = Layer::Sealed(Box::new(Sealed { records, names, binding }));
        Ok(())
    }

    /// Bytes that have been unsealed, or can be, and not been read.
    pub(crate) fn unread(&self) -> usize {
        match &self.layer {
            Layer::Sealed(sealed) => sealed.records.unread(),
            Layer::Plain | Layer::Undecided(_) | Layer::Shaking(_) => 0,
        }
    }

    /// How many bytes have to come at least before so many can be read.
    pub(crate) fn to_come(&self, bytes: usize) -> usize {
        match &self.layer {
            Layer::Plain | Layer::Undecided(_) => bytes,
            Layer::Shaking(_) => 0,
            Layer::Sealed(sealed) => sealed.records.to_come(bytes),
        }
    }

    /// Takes bytes to be sent; an error of kind `WouldBlock` where there is no room for any.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<usize, FrameError> {
        self.settle()?;
        let shaking = match &mut self.layer {
            Layer::Plain | Layer::Undecided(_) => return Ok(self.stream.write(bytes)?),
            Layer::Sealed(sealed) => return sealed.records.write(&mut self.stream, bytes),
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

    /// Takes bytes to be sent of a connection that is not sealed, with which more will come at once.
    pub(crate) fn write_more(&mut self, bytes: &[u8]) -> Result<usize, FrameError> {
        assert!(!self.is_sealed(), "what is sealed goes out in records");
        Ok(send(&self.stream, bytes, SendFlags::MORE | SendFlags::NOSIGNAL).map_err(io::Error::from)?)
    }

    /// Sends bytes of a file over a connection that is not sealed; as [`Pipe::write`].
    pub(crate) fn write_from(&mut self, held: &Held, at: u64, len: usize) -> Result<usize, FrameError> {
        assert!(!self.is_sealed(), "what is sealed passes through the processor");
        match held.send_to(&self.stream, at, len)? {
            0 => Err(io::Error::from(ErrorKind::UnexpectedEof).into()),
            sent => Ok(sent),
        }
    }

    /// Sends what was taken, as far as the connection takes it now.
    pub(crate) fn flush(&mut self) -> Result<(), FrameError> {
        match &mut self.layer {
            Layer::Plain | Layer::Undecided(_) => Ok(()),
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
            Layer::Plain | Layer::Undecided(_) => {}
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
    /// Whether hands are shaken; this end may still have to say so.
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
        while !record.is_empty() {
            self.tls.read_tls(&mut record)?;
        }
        let processed = self.tls.process_new_packets();
        self.incoming.drain(..len);
        // The handshake goes on, or the other end hears what was wrong.
        let written = write_out(&mut self.tls, stream);
        processed.map_err(seal_error)?;
        written?;
        Ok(true)
    }

    /// How long the next record is, if it is here whole. What cannot be one is handed over as it is: the handshake says what is wrong with it.
    fn next_len(&self) -> Option<usize> {
        let [kind, major, _, high, low] = *self.incoming.first_chunk::<HEAD_LEN>()?;
        let len = usize::from(u16::from_be_bytes([high, low]));
        let is_record = KINDS.contains(&kind) && major == VERSION_MAJOR && len <= SEALED_LEN_MAX;
        if !is_record {
            return Some(self.incoming.len());
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
