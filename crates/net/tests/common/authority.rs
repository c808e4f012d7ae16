//! An authority that vouches for ends, and revokes what it has given them.
#![allow(dead_code, reason = "each test program uses its part")]

use polycast_net::tls::TlsFiles;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, RevokedCertParams, SerialNumber,
    date_time_ymd,
};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use tempfile::TempDir;

pub(crate) struct Authority {
    pub(crate) issuer: Issuer<'static, KeyPair>,
    pub(crate) pem: String,
}

impl Authority {
    /// One that has the name of all others that are made so.
    pub(crate) fn new() -> Self {
        Self::of(CertificateParams::default(), KeyPair::generate().unwrap())
    }

    /// One of this name.
    pub(crate) fn called(name: &str, key: KeyPair) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name = called(name);
        Self::of(params, key)
    }

    fn of(mut params: CertificateParams, key: KeyPair) -> Self {
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        Authority { issuer: Issuer::new(params, key), pem }
    }

    /// Writes a certificate and its key, with the certificates that are trusted beside it.
    pub(crate) fn issue(&self, folder: &Path, params: CertificateParams) -> TlsFiles {
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        write(folder, &self.pem, &certificate.pem(), &key)
    }

    /// The list of these numbers.
    pub(crate) fn list(&self, numbers: &[u64]) -> rcgen::CertificateRevocationList {
        let revoked = |number: &u64| RevokedCertParams {
            serial_number: SerialNumber::from(*number),
            revocation_time: date_time_ymd(2024, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2024, 1, 1),
            next_update: date_time_ymd(2124, 1, 1),
            crl_number: SerialNumber::from(numbers.len() as u64 + 1),
            issuing_distribution_point: None,
            revoked_certs: numbers.iter().map(revoked).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        list.signed_by(&self.issuer).unwrap()
    }

    /// Writes it in place of the one before.
    pub(crate) fn revoke(&self, path: &Path, numbers: &[u64]) {
        let new = path.with_extension("new");
        fs::write(&new, self.list(numbers).pem().unwrap()).unwrap();
        fs::rename(new, path).unwrap();
    }

    pub(crate) fn member(&self, name: &str) -> (TempDir, TlsFiles) {
        let folder = tempfile::tempdir().unwrap();
        let files = self.issue(folder.path(), params(name));
        (folder, files)
    }
}

/// Writes a chain and its key, with the certificates that are trusted beside it.
pub(crate) fn write(folder: &Path, ca: &str, cert: &str, key: &KeyPair) -> TlsFiles {
    let files = TlsFiles {
        ca: folder.join("ca.pem"),
        cert: folder.join("cert.pem"),
        key: folder.join("key.pem"),
        crl: None,
    };
    fs::write(&files.ca, ca).unwrap();
    fs::write(&files.key, key.serialize_pem()).unwrap();
    fs::set_permissions(&files.key, Permissions::from_mode(0o600)).unwrap();
    fs::write(&files.cert, cert).unwrap();
    files
}

/// The name of an authority.
pub(crate) fn called(name: &str) -> DistinguishedName {
    let mut own = DistinguishedName::new();
    own.push(DnType::CommonName, name);
    own
}

/// A certificate for this name, as members have it.
pub(crate) fn params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::new(vec![name.to_string()]).unwrap();
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params
}
