//! Connections to servers of other programs, whose names are in their certificates: etcd.

use crate::tls::files::{certificates, private_key, store_of};
use crate::tls::{SealError, TlsFilesError};
use rustls::ClientConfig;
use rustls::crypto::ring;
use rustls::pki_types::ServerName;
use rustls::version::TLS13;
use std::future::poll_fn;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Time that a server has to send its first bytes, to give a ticket, or to report that it does not accept our
/// certificate.
const FIRST_WORD: Duration = Duration::from_millis(600);
/// Limit on the first bytes of a server that are read.
const FIRST_LEN: usize = 1_024;

/// Settings of connections to a server of another program. The files are read for each connection: what was
/// renewed is used from then on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignServer {
    /// Certificates of the authorities whose servers are trusted.
    pub ca: PathBuf,
    /// Own certificate and its private key, where the server asks to see one.
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
        // A server that does not take our certificate says so after the handshake, and what it is told before
        // then may cost us its words; any other gives a ticket, or begins to speak.
        let first = match tokio::time::timeout(FIRST_WORD, poll_fn(|cx| first_word(&mut stream, cx))).await {
            Ok(first) => first.map_err(|error| named(error, has_own))?,
            Err(_) => Vec::new(),
        };
        Ok(ForeignStream { stream, has_own, first })
    }
}

/// Returns the first bytes of a server, or nothing where it has given a ticket: then it has let us in.
fn first_word(stream: &mut TlsStream<TcpStream>, context: &mut Context<'_>) -> Poll<io::Result<Vec<u8>>> {
    let mut first = [0; FIRST_LEN];
    let mut buffer = ReadBuf::new(&mut first);
    match Pin::new(&mut *stream).poll_read(context, &mut buffer) {
        Poll::Ready(read) => Poll::Ready(read.map(|()| buffer.filled().to_vec())),
        Poll::Pending if stream.get_ref().1.tls13_tickets_received() > 0 => Poll::Ready(Ok(Vec::new())),
        Poll::Pending => Poll::Pending,
    }
}

/// A connection to one.
#[derive(Debug)]
pub struct ForeignStream {
    stream: TlsStream<TcpStream>,
    /// Set if we have shown a certificate: that it is none for the server shows after the handshake.
    has_own: bool,
    /// Bytes of the stream that were read already.
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

/// Describes the problem with a connection, about a server that is none of ours.
fn why(error: rustls::Error, has_own: bool) -> String {
    match SealError::from(error) {
        SealError::ForeignCertificate => {
            "no authority in the setting 'ca' has issued its certificate".to_string()
        }
        SealError::Certificate(what) => format!("its certificate is not accepted: {what}"),
        SealError::AsksForOne | SealError::Refused | SealError::RefusedCertificate(_) if !has_own => {
            "it asks to see a certificate: the settings 'cert' and 'key' name one".to_string()
        }
        SealError::Refused | SealError::RefusedCertificate(_) => {
            "it does not accept the certificate in the setting 'cert'".to_string()
        }
        SealError::PeerIsPlain => "it does not speak TLS, which the setting 'ca' asks for".to_string(),
        error => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::server::WebPkiClientVerifier;
    use rustls::{ServerConfig, ServerConnection};
    use std::io::{Read as _, Write as _};
    use std::sync::mpsc;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    /// An authority's certificate, and certificates and keys that it has issued, as files of a folder.
    fn issue(folder: &std::path::Path) {
        use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
        let write = |name: &str, text: String| {
            let path = folder.join(name);
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        };
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        write("ca.pem", params.self_signed(&key).unwrap().pem());
        let issuer = Issuer::new(params, key);
        for name in ["server", "client"] {
            let mut params = CertificateParams::new(vec!["127.0.0.1".to_string()]).unwrap();
            params.extended_key_usages =
                vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
            let key = KeyPair::generate().unwrap();
            write(&format!("{name}.pem"), params.signed_by(&key, &issuer).unwrap().pem());
            write(&format!("{name}.key"), key.serialize_pem());
        }
    }

    /// A server that asks to see a certificate, and looks at it when it is told to; then it says again what
    /// it hears.
    fn server(folder: &std::path::Path, look: mpsc::Receiver<()>) -> String {
        let provider = Arc::new(ring::default_provider());
        let roots = Arc::new(store_of(&folder.join("ca.pem")).unwrap());
        let verifier =
            WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider)).build().unwrap();
        let own = certificates(&folder.join("server.pem"), "a certificate").unwrap();
        let key = private_key(&folder.join("server.key")).unwrap();
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .unwrap()
            .with_client_cert_verifier(verifier)
            .with_single_cert(own, key)
            .unwrap();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        std::thread::spawn(move || {
            let mut stream = listener.accept().unwrap().0;
            let mut ours = ServerConnection::new(Arc::new(config)).unwrap();
            while !ours.wants_write() {
                ours.read_tls(&mut stream).unwrap();
                ours.process_new_packets().unwrap();
            }
            while ours.wants_write() {
                ours.write_tls(&mut stream).unwrap();
            }
            look.recv().unwrap();
            if ours.complete_io(&mut stream).is_err() {
                // It has said why. The client ends the connection.
                let _ = stream.read_to_end(&mut Vec::new());
                return;
            }
            let mut word = [0; 5];
            let mut talk = rustls::StreamOwned::new(ours, stream);
            talk.read_exact(&mut word).unwrap();
            talk.write_all(&word).unwrap();
            let _ = talk.read_to_end(&mut Vec::new());
        });
        address
    }

    fn with_own(folder: &std::path::Path, has_own: bool) -> ForeignServer {
        let own = has_own.then(|| (folder.join("client.pem"), folder.join("client.key")));
        ForeignServer { ca: folder.join("ca.pem"), own }
    }

    #[tokio::test]
    async fn a_server_that_takes_the_certificate_is_talked_with() {
        let folder = tempfile::tempdir().unwrap();
        issue(folder.path());
        // It says nothing of itself, early or late.
        for is_early in [true, false] {
            let (tell, look) = mpsc::channel();
            let address = server(folder.path(), look);
            if is_early {
                tell.send(()).unwrap();
            }
            let mut stream = with_own(folder.path(), true).connect(&address).await.unwrap();
            if !is_early {
                tell.send(()).unwrap();
            }
            stream.write_all(b"hello").await.unwrap();
            stream.flush().await.unwrap();
            let mut word = [0; 5];
            stream.read_exact(&mut word).await.unwrap();
            assert_eq!(&word, b"hello");
        }
    }

    #[tokio::test]
    async fn a_server_that_asks_for_a_certificate_is_named_early_and_late() {
        let folder = tempfile::tempdir().unwrap();
        issue(folder.path());
        for is_early in [true, false] {
            let (tell, look) = mpsc::channel();
            let address = server(folder.path(), look);
            if is_early {
                tell.send(()).unwrap();
            }
            let error = match with_own(folder.path(), false).connect(&address).await {
                Err(error) => error,
                Ok(mut stream) => {
                    // On a machine that is busy the early one may be late too.
                    let _ = tell.send(());
                    stream.read(&mut [0]).await.unwrap_err()
                }
            };
            assert_eq!(
                error.to_string(),
                "it asks to see a certificate: the settings 'cert' and 'key' name one"
            );
        }
    }
}
