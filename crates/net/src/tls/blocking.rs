//! A connection that a thread of its own answers, sealed.

use super::watch::Watch;
use super::{PeerNames, SealError, Security, TLS_HANDSHAKE};
use rustls::{ServerConnection, StreamOwned};
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// A sealed connection that a client has opened. It ends when the client's certificate is revoked.
#[derive(Debug)]
pub struct Blocking {
    stream: StreamOwned<ServerConnection, TcpStream>,
    watch: Watch,
}

impl Blocking {
    /// Seals a connection; the other end has so long to prove its name or show its key. One that begins in
    /// plain is given back.
    ///
    /// # Errors
    /// It has another key, is too slow, or goes away.
    pub fn answer(
        mut stream: TcpStream,
        security: &Security,
        within: Duration,
    ) -> io::Result<Result<Self, TcpStream>> {
        let until = Instant::now() + within;
        let mut first = [0];
        stream.set_read_timeout(Some(within))?;
        if stream.peek(&mut first)? > 0 && first[0] != TLS_HANDSHAKE {
            return Ok(Err(stream));
        }
        let watch = Watch::new(security);
        let failed = |error: rustls::Error| io::Error::new(ErrorKind::InvalidData, SealError::from(error));
        let mut tls = ServerConnection::new(security.server()).map_err(failed)?;
        while tls.is_handshaking() {
            if tls.wants_write() {
                tls.write_tls(&mut stream)?;
                continue;
            }
            // One that says a byte at a time has no more time for it.
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ErrorKind::TimedOut.into());
            }
            stream.set_read_timeout(Some(left))?;
            if tls.read_tls(&mut stream)? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            if let Err(error) = tls.process_new_packets() {
                // The other end may hear what is wrong.
                let _ = tls.write_tls(&mut stream);
                return Err(failed(error));
            }
        }
        Ok(Ok(Blocking { stream: StreamOwned::new(tls, stream), watch }))
    }

    fn look(&mut self) -> io::Result<()> {
        self.watch.show(&self.stream.conn);
        let looked = self.watch.look();
        looked.map_err(|error| io::Error::new(ErrorKind::PermissionDenied, error))
    }

    /// Returns the names that the other end may use.
    #[must_use]
    pub fn peer_names(&self) -> PeerNames {
        PeerNames::of(self.stream.conn.peer_certificates().and_then(<[_]>::first))
    }
}

impl Read for Blocking {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.look()?;
        self.stream.read(buffer)
    }
}

impl Write for Blocking {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.look()?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}
