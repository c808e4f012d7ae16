//! Ends that share a secret: one pair of keys, made of it, which either end shows. The source of an offer
//! shows a pair of its own, which the others know by its public key: who has the secret is no source for
//! that.

use super::offerer::{Offerer, spki_of};
use crate::seal::Secret;
use rustls::client::AlwaysResolvesClientRawPublicKeys;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring;
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::AlwaysResolvesServerRawPublicKeys;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, PeerIncompatible,
    ServerConfig, SignatureScheme,
};
use std::sync::Arc;
use zeroize::Zeroizing;

/// Bytes before the 32 bytes of an Ed25519 key in PKCS #8 (RFC 8410).
const ED25519_PKCS8: [u8; 16] = [0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];

/// Takes an end that shows one of these public keys, and no other.
#[derive(Debug)]
struct Same {
    publics: Vec<Vec<u8>>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Same {
    fn is(&self, shown: &CertificateDer<'_>) -> Result<(), Error> {
        // A public key is no secret: no matter how long the comparison takes.
        if self.publics.iter().any(|public| shown.as_ref() == public) {
            Ok(())
        } else {
            Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure))
        }
    }

    fn signed(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let key = SubjectPublicKeyInfoDer::from(key.as_ref());
        verify_tls13_signature_with_raw_key(message, &key, signature, &self.algorithms)
    }
}

/// There is TLS 1.3 only.
fn never() -> Result<HandshakeSignatureValid, Error> {
    Err(Error::PeerIncompatible(PeerIncompatible::Tls12NotOffered))
}

impl ServerCertVerifier for Same {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.is(end_entity).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        never()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signed(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

impl ClientCertVerifier for Same {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.is(end_entity).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        never()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signed(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

/// Configurations with which those who share a secret connect and are answered.
pub(super) struct Configs {
    pub(super) server: ServerConfig,
    /// To any of them.
    pub(super) client: ClientConfig,
    /// To the one whose offer it is, where there is one.
    pub(super) to_offerer: Option<ClientConfig>,
}

/// Creates the configurations of those who share this secret, which may be an offer's.
pub(super) fn configs(secret: &Secret, offerer: Option<&Offerer>) -> Configs {
    let provider = Arc::new(ring::default_provider());
    let members = certified(&secret.derive("polycast 3 connections", &[]));
    let public = members.end_entity_cert().expect("a raw key is shown as a certificate").to_vec();
    let offerers = offerer.map(|offerer| spki_of(&offerer.public()).to_vec());
    let shown = match offerer {
        Some(Offerer::Own(key)) => certified(key.seed()),
        Some(Offerer::Other(_)) | None => Arc::clone(&members),
    };
    let algorithms = provider.signature_verification_algorithms;
    let same = |publics: Vec<Vec<u8>>| Arc::new(Same { publics, algorithms });
    let mut server = server(&provider)
        .with_client_cert_verifier(same(vec![public.clone()]))
        .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(shown)));
    // No client comes back to a session that has ended.
    server.send_tls13_tickets = 0;
    // Connections of frames go on with records of our own: see `records`.
    server.enable_secret_extraction = true;
    let client = |publics: Vec<Vec<u8>>| {
        let mut client = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13])
            .expect("the provider has TLS 1.3")
            .dangerous()
            .with_custom_certificate_verifier(same(publics))
            .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(Arc::clone(
                &members,
            ))));
        client.resumption = rustls::client::Resumption::disabled();
        client.enable_secret_extraction = true;
        client
    };
    let to_offerer = offerers.clone().map(|public| client(vec![public]));
    Configs { server, client: client([vec![public], Vec::from_iter(offerers)].concat()), to_offerer }
}

/// The pair of keys of which this is the secret, as ends show it.
fn certified(seed: &Secret) -> Arc<CertifiedKey> {
    let private = Zeroizing::new([&ED25519_PKCS8[..], &seed.reveal()[..]].concat());
    let key =
        ring::sign::any_eddsa_type(&PrivatePkcs8KeyDer::from(&private[..])).expect("any 32 bytes are a key");
    let public = key.public_key().expect("an Ed25519 key has a public one").to_vec();
    Arc::new(CertifiedKey::new(vec![CertificateDer::from(public)], key))
}

fn server(provider: &Arc<CryptoProvider>) -> rustls::ConfigBuilder<ServerConfig, rustls::WantsVerifier> {
    ServerConfig::builder_with_provider(Arc::clone(provider))
        .with_protocol_versions(&[&TLS13])
        .expect("the provider has TLS 1.3")
}
