//! Messages about a connection that cannot be sealed: at each end what that end can do about it.

use super::date::Utc;
use super::error::SealError;
use super::files::LongChain;
use super::peer::{OtherEnd, PeerNames};
use rustls::{AlertDescription, CertificateError, Error, InvalidMessage, OtherError, PeerIncompatible};

const PURPOSE: &str = "it is not for clients and servers of TLS: issue one with the extended key usages serverAuth and clientAuth";
const DAMAGED: &str = "it is damaged, or no certificate: issue it again";
const METHOD: &str = "it, or one between it and its authority, is signed by a method that is not taken, such as SHA-1 or MD5: issue one \
                      that is signed with SHA-256 or Ed25519";
const LONG: &str = "with those between it and its authority it has more than 64 kB, which no handshake carries: issue one with fewer names";

impl From<Error> for SealError {
    fn from(error: Error) -> Self {
        match error {
            Error::InvalidCertificate(error) => of_certificate(error),
            Error::AlertReceived(alert) => of_alert(alert),
            Error::NoCertificatesPresented => SealError::ShowsNone,
            // So long is no other message of a handshake.
            Error::InvalidMessage(
                InvalidMessage::HandshakePayloadTooLarge | InvalidMessage::CertificatePayloadTooLarge,
            ) => SealError::Certificate(LONG.into()),
            Error::InvalidMessage(_) => SealError::PeerIsPlain,
            Error::PeerIncompatible(
                PeerIncompatible::IncorrectCertificateTypeExtension
                | PeerIncompatible::UnsolicitedCertificateTypeExtension,
            ) => SealError::OtherKind,
            error => SealError::Other(error.to_string()),
        }
    }
}

/// Returns the error for the other end's certificate, where this end checks it.
fn of_certificate(error: CertificateError) -> SealError {
    SealError::Certificate(match error {
        // The end that shares a secret says so of another key.
        CertificateError::ApplicationVerificationFailure => return SealError::OtherKey,
        // An authority can have the name of another one.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => return SealError::ForeignCertificate,
        CertificateError::Revoked => return SealError::Revoked,
        CertificateError::Other(OtherError(other)) => {
            if let Some(end) = other.downcast_ref::<OtherEnd>() {
                return end.clone().into();
            }
            other.downcast_ref::<webpki::Error>().map_or_else(|| other.to_string(), |error| of_chain(error).into())
        }
        CertificateError::ExpiredContext { time, not_after } => format!(
            "it was valid until {}, and by the clock of this machine it is {}: renew it, or set the clock",
            Utc(not_after.as_secs()),
            Utc(time.as_secs())
        ),
        CertificateError::NotValidYetContext { time, not_before } => format!(
            "it is valid from {} on, and by the clock of this machine it is {}: set the clocks of both machines",
            Utc(not_before.as_secs()),
            Utc(time.as_secs())
        ),
        // Where it is said without moments.
        CertificateError::Expired => "it ends before it begins: issue another one".into(),
        CertificateError::NotValidForNameContext { expected, presented } => {
            let names = presented.iter().map(|name| bare(name).to_string()).collect();
            format!("it is for {}, and not for '{}'", PeerNames::Only(names), expected.to_str())
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => PURPOSE.into(),
        CertificateError::UnknownRevocationStatus => {
            "no list in --tls-crl says whether it is revoked: put the lists of all authorities there from which certificates come"
                .into()
        }
        CertificateError::UnsupportedSignatureAlgorithmContext { .. }
        | CertificateError::UnsupportedSignatureAlgorithmForPublicKeyContext { .. } => METHOD.into(),
        CertificateError::UnhandledCriticalExtension => {
            of_chain(&webpki::Error::UnsupportedCriticalExtension).into()
        }
        CertificateError::BadEncoding => DAMAGED.into(),
        error => error.to_string(),
    })
}

/// A name as the library shows it, without its kind: `DnsName("a")`.
fn bare(shown: &str) -> &str {
    shown.split('"').nth(1).unwrap_or(shown)
}

/// Returns the text for a certificate that is itself right, or for what is between it and its authority.
fn of_chain(error: &webpki::Error) -> &'static str {
    use webpki::Error as E;
    match error {
        E::CaUsedAsEndEntity => {
            "it is an authority's own (CA:TRUE), as one often is that has signed itself: let that authority issue one for this machine"
        }
        E::EndEntityUsedAsCa => {
            "it was issued by one that is no authority's (CA:FALSE): let an authority issue it"
        }
        E::PathLenConstraintViolated => {
            "there are more authorities between it and the one that is trusted than that one allows (pathlen): let a higher one issue it"
        }
        E::NameConstraintViolation => {
            "its authority may not issue one for its names (nameConstraints): let another one issue it, or take other names"
        }
        E::UnsupportedCertVersion => {
            "it is of a version of X.509 before 3, which has no names: issue one with a subjectAltName (openssl x509 -extfile)"
        }
        E::UnsupportedCriticalExtension => {
            "it has a critical extension that is not known here: issue one without that"
        }
        E::EmptyEkuExtension => PURPOSE,
        E::MaximumPathDepthExceeded
        | E::MaximumPathBuildCallsExceeded
        | E::MaximumSignatureChecksExceeded
        | E::MaximumNameConstraintComparisonsExceeded => LongChain::ROUND,
        _ => DAMAGED,
    }
}

/// Returns the error for this end's certificate, where the other end has checked it: it answers with one
/// byte.
fn of_alert(alert: AlertDescription) -> SealError {
    match alert {
        AlertDescription::CertificateExpired => SealError::RefusedCertificate(
            "it has expired or is not valid yet by the other machine's clock: renew it, or set the clocks of both machines",
        ),
        AlertDescription::UnknownCA => SealError::RefusedCertificate(
            "no authority that the other end trusts has issued it, or none of whose revoked ones that end has a list: name its authority \
             in the other end's --tls-ca, and the list in --tls-crl if there is one",
        ),
        AlertDescription::DecryptError => SealError::RefusedCertificate(
            "no authority that the other end trusts has issued it, or it is signed by a method that is not taken there, such as SHA-1: name \
             its authority in the other end's --tls-ca, or issue one that is signed with SHA-256 or Ed25519",
        ),
        AlertDescription::CertificateRevoked => SealError::RefusedCertificate(
            "it has been revoked: get another one from the authority, if this machine is to take part",
        ),
        AlertDescription::UnsupportedCertificate => SealError::RefusedCertificate(PURPOSE),
        AlertDescription::BadCertificate | AlertDescription::CertificateUnknown => {
            SealError::RefusedCertificate("the log of the other end says why")
        }
        AlertDescription::HandshakeFailure => SealError::OtherKind,
        AlertDescription::CertificateRequired => SealError::AsksForOne,
        AlertDescription::AccessDenied => SealError::Refused,
        alert => SealError::Other(format!("the other end says {alert:?}")),
    }
}
