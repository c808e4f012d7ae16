//! Connections to servers of other programs, whose names are in their certificates: etcd.

use super::files::{certificates, private_key, store_of};
use super::{SealError, TlsFilesError};
use rustls::ClientConfig;
use rustls::crypto::ring;
use rustls::pki_types::ServerName;
use rustls::version::TLS13;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// How long a server may take to say its first word, or that it does not take our certificate,
const FIRST_WORD: Duration = Duration::from_millis(300);
/// and how much of that is read.
const FIRST_LEN: usize = 1_024;

/// How one connects to a server of another program. The files are read for each connection: what was renewed is used from then on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignServer {
    /// Certificates of the authorities whose servers are trusted.
    pub ca: PathBuf,
    /// Where the server asks to see one: the own certificate, and its private key.
    pub own: Option<(PathBuf, PathBuf)>,
}

impl ForeignServer {
    /// Reads the files.
    ///
    /// # Errors
    /// One cannot be read, or holds something else.
    pub fn config(&self) -> Result<ClientConfig, TlsFilesError> {
        let wanted = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[&TLS13])
            .expect("the provider has TLS 1.3")
            .with_root_certificates(store_of(&self.ca)?);
        let mut config = match &self.own {
            None => wanted.with_no_client_auth(),
            Some((cert, key)) => wanted
                .with_client_auth_cert(certificates(cert, "a certificate")?, private_key(key)?)
                .map_err(|_| TlsFilesError::OtherKey { key: key.clone(), cert: cert.clone() })?,
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(config)
    }

    /// Connects to `HOST:PORT`, which has to have a certificate for that host.
    ///
    /// # Errors
    /// It cannot be reached, or is another one.
    pub async fn connect(&self, address: &str) -> io::Result<ForeignStream> {
        let config = self.config().map_err(io::Error::other)?;
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']').to_string();
        let name = ServerName::try_from(host).map_err(io::Error::other)?;
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let connected = TlsConnector::from(Arc::new(config)).connect(name, stream).await;
        let has_own = self.own.is_some();
        let mut stream = connected.map_err(|error| named(error, has_own))?;
        // A server that does not take our certificate says so after the handshake; any other begins to speak.
        let mut first = vec![0; FIRST_LEN];
        let len = match tokio::time::timeout(FIRST_WORD, stream.read(&mut first)).await {
            Ok(read) => read.map_err(|error| named(error, has_own))?,
            Err(_) => 0,
        };
        first.truncate(len);
        Ok(ForeignStream { stream, has_own, first })
    }
}

/// A connection to one.
#[derive(Debug)]
pub struct ForeignStream {
    stream: TlsStream<TcpStream>,
    /// Whether we have shown a certificate: that it is none for the server shows after the handshake.
    has_own: bool,
    /// What was read of it already.
    first: Vec<u8>,
}

impl AsyncRead for ForeignStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.first.is_empty() {
            let len = self.first.len().min(buffer.remaining());
            buffer.put_slice(&self.first[..len]);
            self.first.drain(..len);
            return Poll::Ready(Ok(()));
        }
        let has_own = self.has_own;
        Pin::new(&mut self.stream).poll_read(context, buffer).map_err(|error| named(error, has_own))
    }
}

impl AsyncWrite for ForeignStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let has_own = self.has_own;
        Pin::new(&mut self.stream).poll_write(context, bytes).map_err(|error| named(error, has_own))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// An error in words of what settings are wrong.
fn named(error: io::Error, has_own: bool) -> io::Error {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()).cloned();
    inner.map_or(error, |inner| io::Error::other(why(inner, has_own)))
}

/// What is wrong with a connection, about a server that is none of ours.
fn why(error: rustls::Error, has_own: bool) -> String {
    match SealError::from(error) {
        SealError::ForeignCertificate => "no authority in etcd.ca has issued its certificate".to_string(),
        SealError::Certificate(what) => format!("its certificate is not accepted: {what}"),
        SealError::Refused | SealError::RefusedCertificate(_) if !has_own => {
            "it asks to see a certificate: name etcd.cert and etcd.key".to_string()
        }
        SealError::Refused | SealError::RefusedCertificate(_) => {
            "it does not accept the certificate in etcd.cert".to_string()
        }
        SealError::PeerIsPlain => "it does not speak TLS: leave etcd.ca out".to_string(),
        error => error.to_string(),
    }
}
