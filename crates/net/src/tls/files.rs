//! Ends that show certificates. A certification authority has to vouch for either end, and an end that
//! connects looks besides whether the other one is the one that it expects; see [`Expected`].
//!
//! The address that one connects to is not looked at: agents move. What a member that connects may call
//! itself is looked at where it says its name; see [`PeerNames`].

use super::error::{REVOKED, SealError};
use super::peer::{Expected, OtherEnd, PeerNames, Shown};
use super::{Ends, Strangers};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{CryptoProvider, ring, verify_tls13_signature};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, InvalidMessage,
    OtherError, PeerIncompatible, RootCertStore, ServerConfig, SignatureScheme,
};
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use webpki::{
    CertRevocationList, EndEntityCert, KeyUsage, OwnedCertRevocationList, RevocationOptionsBuilder,
};
use zeroize::Zeroizing;

/// A longer file is none of certificates.
const LEN_MAX: u64 = 1 << 20;
/// Certificates between one and its authority: a path has no more. Of many with one name the library would
/// try each order, for any host that connects and before a signature is looked at.
const BETWEEN_MAX: usize = 6;
/// Bytes of the message in a handshake that has a chain, and of what stands in it before all and beside each
/// certificate.
const CHAIN_LEN_MAX: usize = (1 << 16) - 1;
const CHAIN_HEAD_LEN: usize = 4;
const CHAIN_ITEM_LEN: usize = 5;

/// Files in PEM: what this end shows of itself, and which authorities it trusts. They are read again when
/// they change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificates of the authorities that are trusted.
    pub ca: PathBuf,
    /// The own certificate, and those between it and its authority.
    pub cert: PathBuf,
    /// The own private key.
    pub key: PathBuf,
    /// Lists of certificates that the authorities have revoked; without them none is.
    pub crl: Option<PathBuf>,
}

/// Certificates that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsFilesError {
    /// A file cannot be read.
    #[error("the file {} cannot be read: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Reason for the failure.
        source: io::Error,
    },
    /// Others can read the private key.
    #[error("others can read the private key {} (its mode is {mode:o}): chmod 600 {}", path.display(), path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// It holds something else.
    #[error("{} is not {wanted} in PEM: {reason}", path.display())]
    Other {
        /// The file.
        path: PathBuf,
        /// Contents that were expected.
        wanted: &'static str,
        /// Problem with the contents.
        reason: String,
    },
    /// The key is not the certificate's.
    #[error("{} is not the private key of the certificate in {}", key.display(), cert.display())]
    OtherKey {
        /// The key.
        key: PathBuf,
        /// The certificate.
        cert: PathBuf,
    },
    /// Other ends would not accept the certificate.
    #[error("no other end accepts the certificate in {}: {}", cert.display(), own(error))]
    Unusable {
        /// The certificate.
        cert: PathBuf,
        /// Reason that it is not accepted.
        error: SealError,
    },
}

/// The same words about this end.
fn own(error: &SealError) -> String {
    match error {
        SealError::ForeignCertificate => {
            "it was not issued by an authority in --tls-ca; name the one that issued it there".to_string()
        }
        SealError::Certificate(what) => what.clone(),
        SealError::Revoked => REVOKED.to_string(),
        other => other.to_string(),
    }
}

/// By which it is noticed that a file has changed.
pub(super) type Stamp = [(u64, u64, i64, i64); 4];

impl TlsFiles {
    pub(super) fn stamp(&self) -> Result<Stamp, TlsFilesError> {
        let of = |path: &Path| {
            std::fs::metadata(path)
                .map(|file: Metadata| (file.ino(), file.len(), file.mtime(), file.mtime_nsec()))
                .map_err(|source| TlsFilesError::Read { path: path.into(), source })
        };
        let crl = self.crl.as_deref().map_or(Ok(Default::default()), of)?;
        Ok([of(&self.ca)?, of(&self.cert)?, of(&self.key)?, crl])
    }

    /// Reads them, and looks whether others would accept them now.
    pub(super) fn read(&self, strangers: Strangers) -> Result<Ends, TlsFilesError> {
        let store = store_of(&self.ca)?;
        let chain = certificates(&self.cert, "a certificate")?;
        let key = private_key(&self.key)?;
        let unusable =
            |error: Error| TlsFilesError::Unusable { cert: self.cert.clone(), error: error.into() };
        let store = Arc::new(store);
        let lists = self.crl.as_deref().map_or(Ok(Vec::new()), lists_of)?;
        let verifiers = Verifiers::new(&store, lists, strangers).map_err(unusable)?;
        verifiers.accept(&chain).map_err(unusable)?;
        verifiers.ends(chain, key).map_err(|error| match error {
            Error::InconsistentKeys(_) => {
                TlsFilesError::OtherKey { key: self.key.clone(), cert: self.cert.clone() }
            }
            error => other(&self.key, "a private key", error),
        })
    }

    /// The names in the own certificate.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn names(&self) -> Result<PeerNames, TlsFilesError> {
        Ok(PeerNames::of(certificates(&self.cert, "a certificate")?.first()))
    }

    /// Returns true if those who expect this end accept its own certificate.
    ///
    /// # Errors
    /// It cannot be read.
    pub(super) fn is(&self, expected: &Expected) -> Result<bool, TlsFilesError> {
        let chain = certificates(&self.cert, "a certificate")?;
        Ok(chain.first().is_some_and(|own| expected.check(own).is_ok()))
    }
}

fn other(path: &Path, wanted: &'static str, reason: impl ToString) -> TlsFilesError {
    TlsFilesError::Other { path: path.into(), wanted, reason: reason.to_string() }
}

fn bytes(path: &Path, wanted: &'static str, is_secret: bool) -> Result<Zeroizing<Vec<u8>>, TlsFilesError> {
    let failed = |source| TlsFilesError::Read { path: path.into(), source };
    let file = File::open(path).map_err(failed)?;
    let mode = file.metadata().map_err(failed)?.mode() & 0o777;
    // The group may: what keeps certificates fresh is often another user.
    if is_secret && mode & 0o037 != 0 {
        return Err(TlsFilesError::Open { path: path.into(), mode });
    }
    let mut bytes = Zeroizing::new(Vec::new());
    file.take(LEN_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > LEN_MAX {
        return Err(other(path, wanted, format!("it has more than {LEN_MAX} bytes")));
    }
    Ok(bytes)
}

/// The authorities whose certificates are in a file.
pub(super) fn store_of(path: &Path) -> Result<RootCertStore, TlsFilesError> {
    const WANTED: &str = "a list of certificates";
    let mut store = RootCertStore::empty();
    for root in certificates(path, WANTED)? {
        store.add(root).map_err(|error| other(path, WANTED, error))?;
    }
    Ok(store)
}

fn reason(error: &pem::Error) -> String {
    match error {
        pem::Error::NoItemsFound => "there is none in it".to_string(),
        error => error.to_string(),
    }
}

pub(super) fn certificates(
    path: &Path,
    wanted: &'static str,
) -> Result<Vec<CertificateDer<'static>>, TlsFilesError> {
    let bytes = bytes(path, wanted, false)?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    match all {
        Ok(all) if all.is_empty() => Err(other(path, wanted, "there is none in it")),
        Ok(all) => Ok(all),
        Err(error) => Err(other(path, wanted, reason(&error))),
    }
}

/// The lists of revoked certificates in a file.
fn lists_of(path: &Path) -> Result<Vec<CertificateRevocationListDer<'static>>, TlsFilesError> {
    const WANTED: &str = "a list of revoked certificates";
    let bytes = bytes(path, WANTED, false)?;
    let lists: Result<Vec<_>, _> = CertificateRevocationListDer::pem_slice_iter(&bytes).collect();
    match lists {
        Ok(lists) if lists.is_empty() => Err(other(path, WANTED, "there is none in it")),
        Ok(lists) => {
            // Looked at here, where it is known which file is wrong.
            for list in &lists {
                OwnedCertRevocationList::from_der(list).map_err(|error| other(path, WANTED, error))?;
            }
            Ok(lists)
        }
        Err(error) => Err(other(path, WANTED, reason(&error))),
    }
}

pub(super) fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsFilesError> {
    let bytes = bytes(path, "a private key", true)?;
    PrivateKeyDer::from_pem_slice(&bytes).map_err(|error| other(path, "a private key", reason(&error)))
}

/// Looks at certificates of both kinds of ends.
pub(super) struct Verifiers {
    provider: Arc<CryptoProvider>,
    of_clients: Arc<Clients>,
    of_servers: Arc<Authorities>,
}

impl Verifiers {
    fn new(
        roots: &Arc<RootCertStore>,
        lists: Vec<CertificateRevocationListDer<'static>>,
        strangers: Strangers,
    ) -> Result<Self, Error> {
        let owned = lists.iter().map(|list| OwnedCertRevocationList::from_der(list).map(Into::into));
        let owned: Result<Vec<CertRevocationList<'static>>, webpki::Error> = owned.collect();
        let lists = owned.map_err(|error| Error::General(error.to_string()))?;
        let provider = Arc::new(ring::default_provider());
        let of_clients =
            WebPkiClientVerifier::builder_with_provider(Arc::clone(roots), Arc::clone(&provider));
        let of_clients = match strangers {
            Strangers::Refused => of_clients,
            Strangers::Heard => of_clients.allow_unauthenticated(),
        };
        let of_clients = of_clients.build().map_err(|error| Error::General(error.to_string()))?;
        let (roots, orders) = (Arc::clone(roots), orders(&lists));
        let of_servers = Arc::new(Authorities { roots, lists, orders, provider: Arc::clone(&provider) });
        let of_clients = Arc::new(Clients { vouched: of_clients, authorities: Arc::clone(&of_servers) });
        Ok(Verifiers { provider, of_clients, of_servers })
    }

    /// Checks that others that trust the same authorities accept this chain, of a client and of a server.
    fn accept(&self, chain: &[CertificateDer<'_>]) -> Result<(), Error> {
        let Some((own, between)) = chain.split_first() else { return Err(Error::NoCertificatesPresented) };
        if chain.iter().fold(CHAIN_HEAD_LEN, |len, one| len + CHAIN_ITEM_LEN + one.len()) > CHAIN_LEN_MAX {
            return Err(InvalidMessage::CertificatePayloadTooLarge.into());
        }
        self.of_clients.verify_client_cert(own, between, UnixTime::now())?;
        self.of_servers.verify(own, between, UnixTime::now())
    }

    /// Returns true if the certificate of an accepted end has been revoked meanwhile, be it for clients or
    /// for servers.
    pub(super) fn has_revoked(&self, shown: &Shown) -> bool {
        let Some((own, between)) = shown.chain.split_first() else { return false };
        [KeyUsage::server_auth(), KeyUsage::client_auth()].into_iter().any(|usage| {
            let checked = self.of_servers.check_lists((own, between), shown.at, usage);
            checked == Err(CertificateError::Revoked.into())
        })
    }

    /// Takes the end that is expected, and no other.
    pub(super) fn expecting(&self, expected: &Expected) -> Arc<dyn ServerCertVerifier> {
        Arc::new(One { authorities: Arc::clone(&self.of_servers), expected: expected.clone() })
    }

    fn ends(self, chain: Vec<CertificateDer<'static>>, key: PrivateKeyDer<'static>) -> Result<Ends, Error> {
        let mut server = ServerConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(Arc::<Clients>::clone(&self.of_clients))
            .with_single_cert(chain.clone(), key.clone_key())?;
        // No client comes back to a session that has ended.
        server.send_tls13_tickets = 0;
        // Connections of frames go on with records of our own: see `records`.
        server.enable_secret_extraction = true;
        let mut client = ClientConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_protocol_versions(&[&TLS13])?
            .dangerous()
            // It takes no end that shows a certificate: each connection puts the end that it expects in its
            // place.
            .with_custom_certificate_verifier(self.expecting(&Expected::Sharer))
            .with_client_auth_cert(chain, key)?;
        client.resumption = rustls::client::Resumption::disabled();
        client.enable_secret_extraction = true;
        let (server, client) = (Arc::new(server), Arc::new(client));
        Ok(Ends { members: None, server, client, to_offerer: None, verifiers: Some(Arc::new(self)) })
    }
}

/// Authorities and their lists: the certificates that they vouch for, and those that they have revoked.
#[derive(Debug)]
struct Authorities {
    roots: Arc<RootCertStore>,
    lists: Vec<CertRevocationList<'static>>,
    /// Orders in which the library is to look at the lists.
    orders: Vec<Vec<usize>>,
    provider: Arc<CryptoProvider>,
}

/// Orders of lists in which each is the first of those of its authority's name once: the library looks at no
/// other, and an authority can have several lists, or the name of another one.
fn orders(lists: &[CertRevocationList<'_>]) -> Vec<Vec<usize>> {
    let namesakes = |at: usize| lists[..at].iter().filter(|list| list.issuer() == lists[at].issuer()).count();
    let ranks: Vec<usize> = (0..lists.len()).map(namesakes).collect();
    let most = ranks.iter().max().map_or(0, |most| most + 1);
    let order = |first: usize| {
        let mut order: Vec<usize> = (0..lists.len()).collect();
        order.sort_by_key(|at| ranks[*at] != first);
        order
    };
    (0..most).map(order).collect()
}

impl Authorities {
    fn verify(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), Error> {
        bounded(intermediates)?;
        let certificate = ParsedCertificate::try_from(end_entity)?;
        let algorithms = self.provider.signature_verification_algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&certificate, &self.roots, intermediates, now, algorithms)?;
        self.check_lists((end_entity, intermediates), now, KeyUsage::server_auth())
    }

    /// Checks that no authority has revoked what it, or one below it, has issued. Where there are lists, each
    /// certificate has to be in the domain of one; what one of them has revoked, no other one makes valid
    /// again.
    fn check_lists(
        &self,
        (end_entity, intermediates): (&CertificateDer<'_>, &[CertificateDer<'_>]),
        at: UnixTime,
        usage: KeyUsage,
    ) -> Result<(), Error> {
        let certificate =
            EndEntityCert::try_from(end_entity).map_err(|_| Error::from(CertificateError::BadEncoding))?;
        let (roots, algorithms) = (&self.roots.roots, self.provider.signature_verification_algorithms.all);
        let mut outcome = Ok(());
        for (tried, order) in self.orders.iter().enumerate() {
            let lists: Vec<&CertRevocationList<'_>> = order.iter().map(|at| &self.lists[*at]).collect();
            let Ok(options) = RevocationOptionsBuilder::new(&lists) else { return Ok(()) };
            let options = Some(options.build());
            match certificate.verify_for_usage(algorithms, roots, intermediates, at, usage, options, None) {
                Err(webpki::Error::CertRevoked) => return Err(CertificateError::Revoked.into()),
                Ok(_) => outcome = Ok(()),
                Err(error) if tried == 0 || outcome.is_err() => outcome = Err(error),
                Err(_) => {}
            }
        }
        outcome.map_err(|error| match error {
            // It, or its list, is of another authority than the one of this name that was looked at.
            webpki::Error::UnknownRevocationStatus
            | webpki::Error::InvalidCrlSignatureForPublicKey
            | webpki::Error::InvalidSignatureForPublicKey => CertificateError::UnknownRevocationStatus.into(),
            _ => UnusableList.into(),
        })
    }
}

/// More certificates than any path has.
#[derive(Debug, thiserror::Error)]
#[error(
    "there are {len} certificates between it and its authority, and {} are the most: leave out those that no path needs",
    BETWEEN_MAX
)]
pub(super) struct LongChain {
    len: usize,
}

impl LongChain {
    /// Text for the case that the library has given up.
    pub(super) const ROUND: &str = "there are too many ways through the certificates between it and its authority: leave out those that no path needs";
}

/// Looks whether there are no more certificates than a path has: the library's own bounds are for paths that
/// are meant well.
pub(super) fn bounded(between: &[CertificateDer<'_>]) -> Result<(), Error> {
    match between.len() {
        ..=BETWEEN_MAX => Ok(()),
        len => Err(CertificateError::Other(OtherError(Arc::new(LongChain { len }))).into()),
    }
}

/// A list that cannot say what is revoked.
#[derive(Debug, thiserror::Error)]
#[error(
    "the list in --tls-crl that is to say whether it is revoked cannot be used: have its authority sign one, with the key usage cRLSign and \
     SHA-256 or Ed25519"
)]
struct UnusableList;

impl From<UnusableList> for Error {
    fn from(list: UnusableList) -> Self {
        CertificateError::Other(OtherError(Arc::new(list))).into()
    }
}

/// Takes a client for which an authority vouches.
#[derive(Debug)]
struct Clients {
    vouched: Arc<dyn ClientCertVerifier>,
    authorities: Arc<Authorities>,
}

impl ClientCertVerifier for Clients {
    fn offer_client_auth(&self) -> bool {
        self.vouched.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.vouched.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.vouched.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        bounded(intermediates)?;
        let verified = self.vouched.verify_client_cert(end_entity, intermediates, now)?;
        self.authorities.check_lists((end_entity, intermediates), now, KeyUsage::client_auth())?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.vouched.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.vouched.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.vouched.supported_verify_schemes()
    }
}

/// An expected end that was not there, as the library passes it on.
pub(super) fn refused(end: OtherEnd) -> Error {
    CertificateError::Other(OtherError(Arc::new(end))).into()
}

/// Takes a server for which an authority vouches, and which is the one that is expected.
#[derive(Debug)]
struct One {
    authorities: Arc<Authorities>,
    expected: Expected,
}

impl ServerCertVerifier for One {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.authorities.verify(end_entity, intermediates, now)?;
        self.expected.check(end_entity).map_err(refused)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::PeerIncompatible(PeerIncompatible::Tls12NotOffered))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.authorities.provider.signature_verification_algorithms;
        verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.authorities.provider.signature_verification_algorithms.supported_schemes()
    }
}
