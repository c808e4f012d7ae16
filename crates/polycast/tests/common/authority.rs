//! An authority that vouches for machines, and revokes what it has given them.

use super::Place;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyIdMethod, KeyPair, RevokedCertParams, SerialNumber, date_time_ymd,
};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

/// One that vouches for machines.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Authority { issuer: Issuer::new(params, key), pem }
    }

    /// Writes a certificate for this name into a folder; gives the arguments that name its files.
    pub(crate) fn issue(&self, place: &Place, folder: &str, name: &str) -> Vec<String> {
        self.issue_with(place, folder, CertificateParams::new(vec![name.to_string()]).unwrap())
    }

    /// The same with this number, by which it can be revoked. What is there is replaced, the certificate
    /// last.
    pub(crate) fn issue_numbered(&self, place: &Place, folder: &str, name: &str, number: u64) -> Vec<String> {
        let mut params = CertificateParams::new(vec![name.to_string()]).unwrap();
        params.serial_number = Some(SerialNumber::from(number));
        self.issue_with(place, folder, params)
    }

    /// The same of these.
    pub(crate) fn issue_with(
        &self,
        place: &Place,
        folder: &str,
        mut params: CertificateParams,
    ) -> Vec<String> {
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap().pem();
        let replace = |name: &str, text: &str| {
            let new = place.file(&format!("{folder}/{name}.new"), text.as_bytes());
            fs::set_permissions(&new, Permissions::from_mode(0o600)).unwrap();
            let path = place.path(&format!("{folder}/{name}"));
            fs::rename(new, &path).unwrap();
            path
        };
        let (ca, key, cert) = (
            replace("ca.pem", &self.pem),
            replace("key.pem", &key.serialize_pem()),
            replace("cert.pem", &certificate),
        );
        ["--tls-ca", &ca, "--tls-cert", &cert, "--tls-key", &key].map(str::to_string).to_vec()
    }

    /// Writes the list of the certificates with these numbers as revoked ones, in place of the list before;
    /// gives its path.
    pub(crate) fn revoke(&self, place: &Place, numbers: &[u64]) -> String {
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
        let pem = list.signed_by(&self.issuer).unwrap().pem().unwrap();
        let (new, path) = (place.file("crl.new", pem.as_bytes()), place.path("crl.pem"));
        fs::rename(new, &path).unwrap();
        path
    }
}

/// Arguments as commands take them.
pub(crate) fn words(arguments: &[String]) -> Vec<&str> {
    arguments.iter().map(String::as_str).collect()
}
