//! Sealed connections: TLS 1.3 in which both ends show who they are.
//!
//! Ends that share a secret (the key of a cluster, or what is made of an offer's code) make the same pair of keys of it, and
//! each shows the other that it has the private one (raw public keys, RFC 7250). What goes over the connection stays sealed
//! even if the secret is found out later.

mod key_file;
mod shared;
mod stream;

pub use key_file::KeyFileError;
pub(crate) use stream::Pipe;

use crate::seal::Secret;
use rustls::{ClientConfig, ServerConfig};
use std::fmt;
use std::sync::Arc;

/// A connection that cannot be sealed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// It has shown another key.
    #[error("the other end has another key or code: both need the same one")]
    OtherKey,
    /// It has refused ours.
    #[error("the other end does not take this end's key or code: both need the same one")]
    Refused,
    /// It has answered without TLS.
    #[error(
        "the other end does not seal its connections: start both ends with the same key, or both with --insecure"
    )]
    PeerIsPlain,
    /// It begins TLS, and this end has no key.
    #[error(
        "the other end seals its connections, and this end has no key: start both ends with the same key, or both with --insecure"
    )]
    PeerSeals,
    /// Anything else.
    #[error("the connection cannot be sealed: {0}")]
    Other(String),
}

/// How this end seals connections, and whom it takes for a member.
#[derive(Clone)]
pub struct Security(Arc<Ends>);

struct Ends {
    /// What all members share.
    members: Option<Secret>,
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
}

impl Security {
    /// Of all who have this secret.
    #[must_use]
    pub fn shared(secret: &Secret) -> Self {
        let (server, client) = shared::configs(secret);
        let members = Some(secret.derive("polycast 3 members", &[]));
        Security(Arc::new(Ends { members, server: Arc::new(server), client: Arc::new(client) }))
    }

    /// A secret for this purpose that all members can make, and nobody else; `None` where members share nothing.
    #[must_use]
    pub fn members_secret(&self, purpose: &str) -> Option<Secret> {
        self.0.members.as_ref().map(|members| members.derive(purpose, &[]))
    }

    /// How this end answers those who connect.
    #[must_use]
    pub fn server(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.0.server)
    }

    /// How this end connects.
    #[must_use]
    pub fn client(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.0.client)
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
