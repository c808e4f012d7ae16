//! Sealed connections for what waits in tokio: those of a manager.

mod foreign;
mod pinned;

pub use foreign::ForeignServer;

use super::binding::EXPORTER;
use super::watch::Watch;
use super::{BINDING_LEN, Binding, Expected, PeerNames, SealError, Security, Shown, TLS_HANDSHAKE};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::FallibleAccept;
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

/// The first byte of an answer that refuses a connection that is not sealed.
const TLS_ALERT: u8 = 0x15;

/// Reason that a connection cannot be sealed, for those who only learn that it has ended.
#[derive(Clone, Debug, Default)]
pub struct Remark(Arc<Mutex<Option<SealError>>>);

impl Remark {
    /// Takes out the reason, if there is one.
    #[must_use]
    pub fn take(&self) -> Option<SealError> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Notes it, where it is that; what was noted first stays.
    fn note(&self, error: io::Error) -> io::Error {
        let wrong = match error.get_ref() {
            Some(inner) => match inner.downcast_ref::<rustls::Error>() {
                Some(error) => SealError::from(error.clone()),
                None => match inner.downcast_ref::<SealError>() {
                    Some(error) => error.clone(),
                    None => return error,
                },
            },
            None => return error,
        };
        let mut noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        noted.get_or_insert_with(|| wrong.clone());
        io::Error::new(error.kind(), wrong)
    }
}

#[derive(Debug)]
enum Layer {
    /// Bytes as they are, and whether any have come.
    Plain(TcpStream, bool),
    /// In TLS.
    Sealed(Box<TlsStream<TcpStream>>),
}

/// A TCP connection, sealed or plain.
#[derive(Debug)]
pub struct Talk {
    layer: Layer,
    remark: Remark,
    /// Looks at the end that this one has connected to. Those who connect are looked at where they are let
    /// in.
    watch: Option<Watch>,
}

impl Talk {
    /// Connects to `HOST:PORT`; where there is `security`, sealed, and to the end that is expected. What is
    /// wrong with the seal is remarked, also later: the other end looks at our key when this end takes the
    /// connection for open, and its own certificate may be revoked while the connection is.
    ///
    /// # Errors
    /// No process listens there, another end does, or the connection cannot be sealed.
    pub async fn connect(
        address: &str,
        security: Option<&Security>,
        expected: &Expected,
        remark: &Remark,
    ) -> io::Result<Self> {
        let watch = security.map(Watch::new);
        let talk = Self::over(address, security.map(|security| security.client(expected)), remark).await?;
        Ok(Talk { watch, ..talk })
    }

    /// The same without a certificate, to the expected end of an authority with this pin.
    ///
    /// # Errors
    /// As there.
    pub async fn connect_pinned(
        address: &str,
        pin: &str,
        expected: &Expected,
        remark: &Remark,
    ) -> io::Result<Self> {
        Self::over(address, Some(Arc::new(pinned::config(pin, expected))), remark).await
    }

    async fn over(address: &str, client: Option<Arc<ClientConfig>>, remark: &Remark) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let Some(client) = client else { return Ok(Self::plain(stream, remark)) };
        // What looks at certificates knows whom it expects: the name is a placeholder, and is not sent.
        let unused = ServerName::from(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        let sealed = TlsConnector::from(client).connect(unused, stream).await;
        let sealed = sealed.map_err(|error| remark.note(error))?;
        Ok(Talk { layer: Layer::Sealed(Box::new(sealed.into())), remark: remark.clone(), watch: None })
    }

    /// A connection as it is.
    #[must_use]
    pub fn plain(stream: TcpStream, remark: &Remark) -> Self {
        Talk { layer: Layer::Plain(stream, false), remark: remark.clone(), watch: None }
    }

    /// Begins to seal a connection that a client has opened.
    #[must_use]
    pub fn accept(stream: TcpStream, security: &Security) -> Answering {
        Answering(Box::new(TlsAcceptor::from(security.server()).accept(stream).into_fallible()))
    }

    /// Returns the names that the other end may use.
    #[must_use]
    pub fn peer_names(&self) -> PeerNames {
        match &self.layer {
            Layer::Plain(..) => PeerNames::Any,
            Layer::Sealed(stream) => {
                PeerNames::of(stream.get_ref().1.peer_certificates().and_then(<[_]>::first))
            }
        }
    }

    /// Returns the certificates that the other end has shown.
    #[must_use]
    pub fn shown(&self) -> Shown {
        match &self.layer {
            Layer::Plain(..) => Shown::now(None),
            Layer::Sealed(stream) => Shown::now(stream.get_ref().1.peer_certificates()),
        }
    }

    /// Returns the binding, which no other connection has; `None` where this one is plain.
    #[must_use]
    pub fn binding(&self) -> Option<Binding> {
        let Layer::Sealed(stream) = &self.layer else { return None };
        let out = [0; BINDING_LEN];
        let exported = match &**stream {
            TlsStream::Client(stream) => stream.get_ref().1.export_keying_material(out, EXPORTER, None),
            TlsStream::Server(stream) => stream.get_ref().1.export_keying_material(out, EXPORTER, None),
        };
        exported.ok().map(Binding)
    }

    fn noted<T>(&self, poll: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        poll.map(|outcome| outcome.map_err(|error| self.remark.note(error)))
    }
}

/// A connection that is being sealed.
pub struct Answering(Box<FallibleAccept<TcpStream>>);

impl std::fmt::Debug for Answering {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Answering(..)")
    }
}

impl Future for Answering {
    /// The connection, or what is wrong with it.
    type Output = Result<Talk, (io::Error, TcpStream)>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let remark = Remark::default();
        Poll::Ready(match ready!(Pin::new(&mut self.0).poll(context)) {
            Ok(sealed) => Ok(Talk { layer: Layer::Sealed(Box::new(sealed.into())), remark, watch: None }),
            Err((error, stream)) => Err((remark.note(error), stream)),
        })
    }
}

impl AsyncRead for Talk {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let talk = &mut *self;
        if let (Some(watch), Layer::Sealed(stream)) = (&mut talk.watch, &talk.layer) {
            watch.show(stream.get_ref().1);
            if let Err(error) = watch.look() {
                return self.noted(Poll::Ready(Err(io::Error::new(io::ErrorKind::PermissionDenied, error))));
            }
        }
        let read = match &mut self.layer {
            Layer::Sealed(stream) => Pin::new(stream).poll_read(context, buffer),
            Layer::Plain(stream, has_heard) => {
                let read = ready!(Pin::new(stream).poll_read(context, buffer));
                // What is said in plain never begins with these.
                match buffer.filled().get(before) {
                    Some(&(TLS_HANDSHAKE | TLS_ALERT)) if !*has_heard => {
                        Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, SealError::PeerSeals)))
                    }
                    first => {
                        *has_heard |= first.is_some();
                        Poll::Ready(read)
                    }
                }
            }
        };
        self.noted(read)
    }
}

impl AsyncWrite for Talk {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = match &mut self.layer {
            Layer::Plain(stream, _) => Pin::new(stream).poll_write(context, bytes),
            Layer::Sealed(stream) => Pin::new(stream).poll_write(context, bytes),
        };
        self.noted(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = match &mut self.layer {
            Layer::Plain(stream, _) => Pin::new(stream).poll_write_vectored(context, slices),
            Layer::Sealed(stream) => Pin::new(stream).poll_write_vectored(context, slices),
        };
        self.noted(written)
    }

    fn is_write_vectored(&self) -> bool {
        match &self.layer {
            Layer::Plain(stream, _) => stream.is_write_vectored(),
            Layer::Sealed(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = match &mut self.layer {
            Layer::Plain(stream, _) => Pin::new(stream).poll_flush(context),
            Layer::Sealed(stream) => Pin::new(stream).poll_flush(context),
        };
        self.noted(flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = match &mut self.layer {
            Layer::Plain(stream, _) => Pin::new(stream).poll_shutdown(context),
            Layer::Sealed(stream) => Pin::new(stream).poll_shutdown(context),
        };
        self.noted(shut)
    }
}
