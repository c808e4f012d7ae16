//! The bytes of one connection, sealed or plain, without blocking.

use super::token::EXPORTER;
use super::watch::Watch;
use super::{BINDING_LEN, Binding, Expected, PeerNames, SealError, Security, TLS_HANDSHAKE};
use crate::frames::FrameError;
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, Connection, Error, ServerConnection};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};

#[derive(Debug)]
enum Layer {
    /// Bytes as they are.
    Plain,
    /// The other end speaks first: sealed if it begins so.
    Undecided(Option<Security>),
    /// In TLS.
    Sealed(Box<Connection>),
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
        let layer = Layer::Sealed(Box::new(Connection::Client(connection)));
        Ok(Pipe { stream, layer, watch: Some(watch) })
    }

    pub(crate) fn is_sealed(&self) -> bool {
        matches!(self.layer, Layer::Sealed(_))
    }

    /// What the other end may call itself.
    pub(crate) fn peer_names(&self) -> PeerNames {
        match &self.layer {
            Layer::Sealed(tls) => PeerNames::of(tls.peer_certificates().and_then(<[_]>::first)),
            Layer::Plain | Layer::Undecided(_) => PeerNames::Any,
        }
    }

    /// What stands for this connection, and for no other: the two ends have it when their hands are shaken, and no third one.
    pub(crate) fn binding(&self) -> Option<Binding> {
        let Layer::Sealed(tls) = &self.layer else { return None };
        tls.export_keying_material([0; BINDING_LEN], EXPORTER, None).ok().map(Binding)
    }

    /// Whether the two ends are still about to show who they are.
    pub(crate) fn is_shaking(&self) -> bool {
        match &self.layer {
            Layer::Plain => false,
            Layer::Undecided(_) => true,
            Layer::Sealed(tls) => tls.is_handshaking(),
        }
    }

    pub(crate) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Whether bytes that were taken to be sent are still here.
    pub(crate) fn has_pending(&self) -> bool {
        matches!(&self.layer, Layer::Sealed(tls) if tls.wants_write())
    }

    /// Reads what has come; an error of kind `WouldBlock` where nothing has, 0 at the end.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> Result<usize, FrameError> {
        if let Layer::Undecided(security) = &self.layer {
            let mut first = [0];
            let sealed = match self.stream.peek(&mut first)? {
                0 => return Ok(0),
                _ => first[0] == TLS_HANDSHAKE,
            };
            self.layer = match (sealed, security) {
                (false, _) => Layer::Plain,
                (true, None) => return Err(SealError::PeerSeals.into()),
                (true, Some(security)) => {
                    self.watch = Some(Watch::new(security));
                    let connection = ServerConnection::new(security.server()).map_err(seal_error)?;
                    Layer::Sealed(Box::new(Connection::Server(connection)))
                }
            };
        }
        let Layer::Sealed(tls) = &mut self.layer else { return Ok(self.stream.read(buffer)?) };
        if let Some(watch) = &mut self.watch {
            watch.look(tls)?;
        }
        loop {
            match tls.reader().read(buffer) {
                Ok(len) => return Ok(len),
                // Frames say how long they are: an end that is cut off is noticed there.
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(0),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
            let was_shaking = tls.is_handshaking();
            if tls.read_tls(&mut self.stream)? == 0 && was_shaking {
                return Ok(0);
            }
            let processed = tls.process_new_packets();
            // The handshake goes on, or the other end hears what was wrong.
            let written = write_out(tls, &mut self.stream);
            processed.map_err(seal_error)?;
            written?;
        }
    }

    /// Bytes that have been unsealed and not been read.
    pub(crate) fn unread(&mut self) -> Result<usize, FrameError> {
        match &mut self.layer {
            Layer::Sealed(tls) => {
                Ok(tls.process_new_packets().map_err(seal_error)?.plaintext_bytes_to_read())
            }
            Layer::Plain | Layer::Undecided(_) => Ok(0),
        }
    }

    /// Takes bytes to be sent; an error of kind `WouldBlock` where there is no room for any.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<usize, FrameError> {
        let Layer::Sealed(tls) = &mut self.layer else { return Ok(self.stream.write(bytes)?) };
        write_out(tls, &mut self.stream)?;
        let taken = tls.writer().write(bytes)?;
        write_out(tls, &mut self.stream)?;
        if taken == 0 && !bytes.is_empty() {
            return Err(io::Error::from(ErrorKind::WouldBlock).into());
        }
        Ok(taken)
    }

    /// Sends what was taken, as far as the connection takes it now.
    pub(crate) fn flush(&mut self) -> Result<(), FrameError> {
        if let Layer::Sealed(tls) = &mut self.layer {
            write_out(tls, &mut self.stream)?;
        }
        Ok(())
    }

    /// Says that nothing more will be sent.
    pub(crate) fn finish(&mut self) {
        if let Layer::Sealed(tls) = &mut self.layer {
            tls.send_close_notify();
            // An end that is gone already needs no word of ours.
            let _ = write_out(tls, &mut self.stream);
        }
        let _ = self.stream.shutdown(Shutdown::Write);
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
