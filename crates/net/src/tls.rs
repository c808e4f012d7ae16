//! Sealed connections: TLS 1.3 in which both ends show a key or a certificate.
//!
//! Ends that share a secret (the key of a cluster, or what is made of an offer's code) make the same pair of
//! keys of it, and each shows the other that it has the private one (raw public keys, RFC 7250). Ends with
//! certificates show these, and the one that connects says which end it expects. What goes over the
//! connection stays sealed even if the secret is found out later.

pub(crate) mod binding;
mod blocking;
mod date;
mod error;
mod files;
mod identity;
mod key_file;
mod offerer;
mod peer;
mod records;
mod sentences;
mod shared;
mod stream;
#[cfg(feature = "cluster")]
mod talk;
mod token;
mod validity;
mod watch;

pub use binding::{BINDING_LEN, Binding};
pub use blocking::Blocking;
pub use date::Utc;
pub use error::SealError;
pub use files::{TlsFiles, TlsFilesError};
pub use identity::{IdentityError, IdentityFiles};
pub use key_file::KeyFileError;
pub use offerer::{Offerer, OffererKey};
pub use peer::{Expected, MANAGER, OtherEnd, OtherName, PeerNames, Shown};
pub(crate) use records::room_for;
pub(crate) use stream::Pipe;
#[cfg(feature = "cluster")]
pub use talk::{Answering, ForeignServer, Remark, Talk};
pub use token::{Claim, JoinToken, NoToken, ShownToken, pin_of_pem};

use crate::seal::Secret;
use files::{Stamp, Verifiers};
use rustls::{ClientConfig, ServerConfig};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The first byte of a connection that is sealed; frames begin with 0.
const TLS_HANDSHAKE: u8 = 0x16;

/// Configuration of sealed connections, and of the ends that this one takes for members.
#[derive(Clone)]
pub struct Security(Arc<Source>);

/// Configurations with which connections are opened and answered.
#[derive(Clone)]
struct Ends {
    /// Secret that all members share.
    members: Option<Secret>,
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
    /// To the source of an offer, where it has a key of its own.
    to_offerer: Option<Arc<ClientConfig>>,
    /// Verifiers of certificates, where they are shown.
    verifiers: Option<Arc<Verifiers>>,
}

/// Source of the configurations.
enum Source {
    /// A secret, which does not change.
    Shared(Ends),
    /// Files, which change.
    Files(TlsFiles, Strangers, Box<Mutex<Read>>),
}

/// Treatment of those who connect and show nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Strangers {
    /// They are refused.
    Refused,
    /// They are heard, and have no name.
    Heard,
}

/// Configurations that were read, and state of their files.
struct Read {
    ends: Ends,
    stamp: Stamp,
    /// Number of times that the files have changed.
    changes: u64,
    /// Set if a file is missing, which has been reported.
    is_lacking: bool,
}

impl Security {
    /// Creates the security of all who have this secret.
    #[must_use]
    pub fn shared(secret: &Secret) -> Self {
        Self::of_secret(secret, None)
    }

    /// Creates the security of all who have the secret of an offer, and of its source, which has a key of its
    /// own beside it.
    #[must_use]
    pub fn offered(secret: &Secret, offerer: &Offerer) -> Self {
        Self::of_secret(secret, Some(offerer))
    }

    fn of_secret(secret: &Secret, offerer: Option<&Offerer>) -> Self {
        let configs = shared::configs(secret, offerer);
        let members = Some(secret.derive("polycast 3 members", &[]));
        let (server, client) = (Arc::new(configs.server), Arc::new(configs.client));
        let to_offerer = configs.to_offerer.map(Arc::new);
        let ends = Ends { members, server, client, to_offerer, verifiers: None };
        Security(Arc::new(Source::Shared(ends)))
    }

    /// A secret for this purpose that only members can make, and all of them can; `None` where members share
    /// nothing.
    #[must_use]
    pub fn members_secret(&self, purpose: &str) -> Option<Secret> {
        match &*self.0 {
            Source::Shared(ends) => ends.members.as_ref().map(|members| members.derive(purpose, &[])),
            Source::Files(..) => None,
        }
    }

    /// Returns the last second, since 1970, at which the own certificate is valid, as the file has it now;
    /// `None` where there is none.
    #[must_use]
    pub fn certificate_ends_unix_s(&self) -> Option<u64> {
        match &*self.0 {
            Source::Shared(_) => None,
            Source::Files(files, ..) => {
                validity::ends_unix_s(files::certificates(&files.cert, "a certificate").ok()?.first()?)
            }
        }
    }

    /// Creates the security of all for whom an authority vouches. When the files change, new connections go
    /// by their new contents.
    ///
    /// # Errors
    /// They cannot be read, or no other end would accept what is in them.
    pub fn files(files: TlsFiles) -> Result<Self, TlsFilesError> {
        Self::of_files(files, Strangers::Refused)
    }

    /// The same, but those who show no certificate are heard too, as [`PeerNames::Nobody`]: they may have a
    /// token.
    ///
    /// # Errors
    /// As there.
    pub fn files_or_nobody(files: TlsFiles) -> Result<Self, TlsFilesError> {
        Self::of_files(files, Strangers::Heard)
    }

    fn of_files(files: TlsFiles, strangers: Strangers) -> Result<Self, TlsFilesError> {
        // Before they are read: what changes meanwhile is read again.
        let stamp = files.stamp().unwrap_or_default();
        let read = Read { ends: files.read(strangers)?, stamp, changes: 0, is_lacking: false };
        Ok(Security(Arc::new(Source::Files(files, strangers, Box::new(Mutex::new(read))))))
    }

    fn ends(&self) -> Ends {
        self.latest().0
    }

    /// Returns the number of times that its files have changed: ends that were accepted before are worth
    /// another check then.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.latest().1
    }

    /// Checks that an end that was accepted before is still accepted: its certificate may have been revoked
    /// meanwhile.
    ///
    /// # Errors
    /// It has been.
    pub fn check_again(&self, shown: &Shown) -> Result<(), SealError> {
        // Another authority, or none of its lists, is for those who come.
        match self.ends().verifiers {
            Some(verifiers) if verifiers.has_revoked(shown) => Err(SealError::Revoked),
            _ => Ok(()),
        }
    }

    fn latest(&self) -> (Ends, u64) {
        match &*self.0 {
            Source::Shared(ends) => (ends.clone(), 0),
            Source::Files(files, strangers, read) => {
                let mut read: MutexGuard<'_, Read> = read.lock().unwrap_or_else(PoisonError::into_inner);
                read.refresh(files, *strangers);
                (read.ends.clone(), read.changes)
            }
        }
    }

    /// Returns the configuration with which this end answers those who connect.
    #[must_use]
    pub fn server(&self) -> Arc<ServerConfig> {
        self.ends().server
    }

    /// Returns the configuration with which this end connects to the one that it expects.
    #[must_use]
    pub fn client(&self, expected: &Expected) -> Arc<ClientConfig> {
        let Ends { client, to_offerer, verifiers, .. } = self.ends();
        // All that share a secret show the same key, apart from the source of an offer.
        let Some(verifiers) = verifiers else {
            return to_offerer.filter(|_| *expected == Expected::Offerer).unwrap_or(client);
        };
        let mut client = ClientConfig::clone(&client);
        client.dangerous().set_certificate_verifier(verifiers.expecting(expected));
        Arc::new(client)
    }

    /// Returns true if ends show certificates, which have names; those that share a secret have none.
    #[must_use]
    pub fn has_names(&self) -> bool {
        matches!(&*self.0, Source::Files(..))
    }
}

impl Read {
    /// Reads the files again if they have changed. While they are being written, or one lacks, what was read
    /// before holds.
    fn refresh(&mut self, files: &TlsFiles, strangers: Strangers) {
        let stamp = match files.stamp() {
            Ok(stamp) => stamp,
            Err(error) => {
                if !std::mem::replace(&mut self.is_lacking, true) {
                    tracing::warn!(%error, "a file of certificates is not there, and what was in all of them before goes on");
                }
                return;
            }
        };
        self.is_lacking = false;
        if stamp == self.stamp {
            return;
        }
        self.stamp = stamp;
        match files.read(strangers) {
            Ok(ends) => {
                tracing::info!(cert = %files.cert.display(), "the certificate, or what it is judged by, has changed");
                self.ends = ends;
                self.changes += 1;
            }
            Err(error) => {
                tracing::warn!(%error, "files of certificates have changed, and what was in them before goes on")
            }
        }
    }
}

/// Its keys must not get into a log.
impl fmt::Debug for Security {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Security(..)")
    }
}

impl PartialEq for Security {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Security {}
