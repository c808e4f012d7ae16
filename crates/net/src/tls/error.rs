//! Connections that cannot be sealed.

use super::peer::OtherEnd;

/// Sentence of a certificate that its authority has revoked.
pub(super) const REVOKED: &str =
    "its authority has revoked it (--tls-crl): give the machine another one, if it is to take part";

/// A connection that cannot be sealed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// It has shown another key.
    #[error("the other end has another key or code: both need the same one")]
    OtherKey,
    /// It has refused ours.
    #[error("the other end does not take this end's key or code: both need the same one")]
    Refused,
    /// No authority that this end trusts has issued its certificate.
    #[error(
        "the other end's certificate was not issued by an authority that this end trusts: name its authority in --tls-ca"
    )]
    ForeignCertificate,
    /// Its certificate is of no use.
    #[error("the other end's certificate is not accepted: {0}")]
    Certificate(String),
    /// It has been revoked.
    #[error("the other end's certificate is not accepted: {}", REVOKED)]
    Revoked,
    /// It is another one than this end connects to.
    #[error(transparent)]
    OtherEnd(#[from] OtherEnd),
    /// It has refused our certificate.
    #[error("the other end does not accept this end's certificate: {0}")]
    RefusedCertificate(&'static str),
    /// It asks to see a certificate, and this end has none.
    #[error(
        "the other end asks to see a certificate, and this end has none: name --tls-ca, --tls-cert and --tls-key"
    )]
    AsksForOne,
    /// It has none, where one is asked for.
    #[error("the other end shows no certificate: start it with --tls-ca, --tls-cert and --tls-key")]
    ShowsNone,
    /// One end has a key, the other one a certificate.
    #[error("one end has a key file and the other one a certificate: give both the same")]
    OtherKind,
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
