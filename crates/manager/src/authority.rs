//! A small certification authority: it gives agents certificates for a day, the first one for a token.
//!
//! All that it has lies in a folder that only its owner can read: its key and certificate, the manager's own,
//! and a file a token.

mod tokens;

pub use tokens::{Standing, TokenError, TokenInfo};

use polycast_net::seal::Secret;
use polycast_net::tls::{MANAGER, TlsFiles, pin_of_pem};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DnType, ExtendedKeyUsagePurpose,
    IsCa, Issuer, KeyPair, KeyUsagePurpose, PublicKeyData,
};
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Lifetime of an agent's certificate.
const LIFETIME: Duration = Duration::from_secs(24 * 3_600);
/// An agent asks for another one when so much of that is over.
pub const RENEW_AFTER: Duration = Duration::from_secs(16 * 3_600);
/// Clocks may differ by so much.
const SKEW: Duration = Duration::from_secs(3_600);
/// Lifetime of the authority's own certificate.
const AUTHORITY_LIFETIME: Duration = Duration::from_secs(10 * 365 * 86_400);
/// The longest name of an agent.
const NAME_LEN_MAX: usize = 255;

/// Reason why the authority cannot do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// A file in its folder cannot be read or written.
    #[error("the file {} of the authority cannot be {action}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Action that was tried.
        action: &'static str,
        /// Reason for the failure.
        source: io::Error,
    },
    /// It holds something else.
    #[error("{} is not of an authority: {reason}", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// Reason why the file is wrong.
        reason: String,
    },
    /// There is none.
    #[error("there is no authority in {}: 'polycast manager --ca {}' makes one", folder.display(), folder.display())]
    Missing {
        /// The folder.
        folder: PathBuf,
    },
    /// The token cannot be used.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// No certificate can be for this name.
    #[error("'{0}' cannot be in a certificate: take letters, digits, dots and hyphens, and no address")]
    Name(String),
    /// An agent with this certificate would be a manager to all others.
    #[error(
        "'{MANAGER}' is the name of managers: no agent gets a certificate for it, give the agent another one"
    )]
    Managers,
    /// A token lets in as many agents as it has names, or fewer.
    #[error(
        "a token for {names} names cannot let in {uses}: each name comes in once, so --uses is 1 to {names}"
    )]
    Uses {
        /// Agents that it was to let in.
        uses: usize,
        /// Different names that it has.
        names: usize,
    },
    /// The certificate request is wrong.
    #[error("the certificate request is wrong: {0}")]
    Request(String),
}

/// An authority.
pub struct Authority {
    folder: PathBuf,
    issuer: Issuer<'static, KeyPair>,
    pem: String,
    pin: String,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Authority({})", self.folder.display())
    }
}

fn read(path: &Path) -> Result<String, AuthorityError> {
    fs::read_to_string(path).map_err(|source| AuthorityError::File {
        path: path.into(),
        action: "read",
        source,
    })
}

/// Writes a file that only its owner can read, whole or not at all.
fn write(path: &Path, text: &str) -> Result<(), AuthorityError> {
    let other = path.with_extension("new");
    let written = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&other);
    let written = written.and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&other, path)
    });
    written.map_err(|source| AuthorityError::File { path: path.into(), action: "written", source })
}

fn odd(path: &Path, reason: impl ToString) -> AuthorityError {
    AuthorityError::Foreign { path: path.into(), reason: reason.to_string() }
}

impl Authority {
    /// The one in this folder, or a new one.
    ///
    /// # Errors
    /// The folder cannot be used.
    pub fn open_or_new(folder: &Path) -> Result<Self, AuthorityError> {
        let tokens = folder.join("tokens");
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&tokens);
        made.map_err(|source| AuthorityError::File { path: tokens, action: "made", source })?;
        if !folder.join("ca.pem").exists() {
            let (key, params) = (pair()?, own_params());
            let pem = params.self_signed(&key).map_err(|error| odd(folder, error))?.pem();
            write(&folder.join("ca.key"), &key.serialize_pem())?;
            // Last: with it the authority is there.
            write(&folder.join("ca.pem"), &pem)?;
            tracing::warn!(folder = %folder.display(), "made a new authority");
        }
        Self::open(folder)
    }

    /// Returns the seed of the key that the authority's manager signs permits with; made if there is none.
    ///
    /// # Errors
    /// The seed cannot be read or written.
    pub fn permit_seed(&self) -> Result<Secret, AuthorityError> {
        let path = self.folder.join("permits.key");
        if !path.exists() {
            write(&path, &Secret::fresh().to_line())?;
        }
        Secret::read(&path).map_err(|error| odd(&path, error))
    }

    /// The one in this folder.
    ///
    /// # Errors
    /// There is none, or the folder cannot be used.
    pub fn open(folder: &Path) -> Result<Self, AuthorityError> {
        let (certificate, key_path) = (folder.join("ca.pem"), folder.join("ca.key"));
        if !certificate.exists() {
            return Err(AuthorityError::Missing { folder: folder.into() });
        }
        let pem = read(&certificate)?;
        let key = KeyPair::from_pem(&read(&key_path)?).map_err(|error| odd(&key_path, error))?;
        let pin = pin_of_pem(&pem).ok_or_else(|| odd(&certificate, "it is no certificate in PEM"))?;
        let issuer = Issuer::from_ca_cert_pem(&pem, key).map_err(|error| odd(&certificate, error))?;
        Ok(Authority { folder: folder.into(), issuer, pem, pin })
    }

    /// Its certificate.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// A certificate for this name and key, in PEM.
    fn certificate(&self, name: &str, key: &impl PublicKeyData) -> Result<String, AuthorityError> {
        let wrong = || AuthorityError::Name(name.to_string());
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        // What looks like an address would be in a certificate as one.
        let is_address = name.parse::<IpAddr>().is_ok();
        if name.is_empty() || name.len() > NAME_LEN_MAX || is_address || !name.chars().all(is_plain) {
            return Err(wrong());
        }
        let mut params = CertificateParams::new(vec![name.to_string()]).map_err(|_| wrong())?;
        params.distinguished_name.push(DnType::CommonName, name);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let now = SystemTime::now();
        (params.not_before, params.not_after) = ((now - SKEW).into(), (now + LIFETIME).into());
        let signed = params.signed_by(key, &self.issuer);
        Ok(signed.map_err(|error| AuthorityError::Request(error.to_string()))?.pem())
    }

    /// Checks that agents can have this name.
    fn check_agent(name: &str) -> Result<(), AuthorityError> {
        if name == MANAGER { Err(AuthorityError::Managers) } else { Ok(()) }
    }

    /// The certificate of an agent of this name that asks with this request.
    ///
    /// # Errors
    /// The name or the request is none, or the name is that of managers.
    pub fn certify(&self, name: &str, request: &[u8]) -> Result<String, AuthorityError> {
        Self::check_agent(name)?;
        let request = CertificateSigningRequestParams::from_der(&request.into());
        let request = request.map_err(|error| AuthorityError::Request(error.to_string()))?;
        // Of what it asks for only the key is taken.
        self.certificate(name, &request.public_key)
    }

    /// Writes a certificate for the manager itself; gives its files.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn certify_manager(&self) -> Result<TlsFiles, AuthorityError> {
        let file = |name: &str| self.folder.join(name);
        let files =
            TlsFiles { ca: file("ca.pem"), cert: file("manager.pem"), key: file("manager.key"), crl: None };
        let key = pair()?;
        let certificate = self.certificate(MANAGER, &key)?;
        write(&files.key, &key.serialize_pem())?;
        // Agents with a token know the authority by its pin: it comes with the chain.
        write(&files.cert, &format!("{certificate}{}", self.pem))?;
        Ok(files)
    }
}

fn pair() -> Result<KeyPair, AuthorityError> {
    KeyPair::generate().map_err(|error| AuthorityError::Request(error.to_string()))
}

fn own_params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.distinguished_name.push(DnType::CommonName, "Polycast authority");
    let now = SystemTime::now();
    (params.not_before, params.not_after) = ((now - SKEW).into(), (now + AUTHORITY_LIFETIME).into());
    params
}
