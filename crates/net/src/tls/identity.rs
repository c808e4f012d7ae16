//! Settings by which this end proves its name.

use super::{Expected, KeyFileError, OtherName, PeerNames, Security, TlsFiles, TlsFilesError};
use crate::seal::Secret;
use std::path::PathBuf;

/// Files that settings name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdentityFiles {
    /// `key-file`
    pub key_file: Option<PathBuf>,
    /// `tls-ca`
    pub tls_ca: Option<PathBuf>,
    /// `tls-cert`
    pub tls_cert: Option<PathBuf>,
    /// `tls-key`
    pub tls_key: Option<PathBuf>,
    /// `tls-crl`
    pub tls_crl: Option<PathBuf>,
}

/// Reason that this end cannot prove its name.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The key file cannot be used.
    #[error(transparent)]
    Key(#[from] KeyFileError),
    /// The certificates cannot be used.
    #[error(transparent)]
    Files(#[from] TlsFilesError),
    /// The certificate is another one's.
    #[error(transparent)]
    Name(#[from] OtherName),
    /// It is a manager's.
    #[error(
        "the certificate of '{name}' is a manager's too, since it is for '{manager}' (--manager-name): give the agent one of its own"
    )]
    Managers {
        /// The agent's name.
        name: String,
        /// The name of managers.
        manager: String,
    },
    /// It is none of a manager.
    #[error(
        "the certificate of this manager is for {names}, and agents take a manager by the DNS name '{manager}' only: issue one with that \
         name, or say --manager-name here and at all agents"
    )]
    NoManager {
        /// The name of managers.
        manager: String,
        /// Names that the certificate is for.
        names: PeerNames,
    },
    /// There is more than one.
    #[error(
        "there is a key file and a certificate: name either --key-file, or --tls-ca, --tls-cert and --tls-key"
    )]
    Both,
    /// There is nothing that could be revoked.
    #[error(
        "--tls-crl lists revoked certificates, and there are none here: name --tls-ca, --tls-cert and --tls-key too"
    )]
    ListAlone,
    /// There is only a part.
    #[error("there is no {0}: a certificate needs all of --tls-ca, --tls-cert and --tls-key")]
    Missing(&'static str),
}

impl IdentityFiles {
    /// These where they are named, and otherwise those.
    #[must_use]
    pub fn or(self, others: IdentityFiles) -> Self {
        // Half of one and half of the other would be neither's identity.
        if self == IdentityFiles::default() { others } else { self }
    }

    fn certificate(&self) -> Result<Option<TlsFiles>, IdentityError> {
        let all = [("--tls-ca", &self.tls_ca), ("--tls-cert", &self.tls_cert), ("--tls-key", &self.tls_key)];
        if all.iter().all(|(_, file)| file.is_none()) {
            return if self.tls_crl.is_some() { Err(IdentityError::ListAlone) } else { Ok(None) };
        }
        if self.key_file.is_some() {
            return Err(IdentityError::Both);
        }
        let [ca, cert, key] = all.map(|(flag, file)| file.clone().ok_or(IdentityError::Missing(flag)));
        Ok(Some(TlsFiles { ca: ca?, cert: cert?, key: key?, crl: self.tls_crl.clone() }))
    }

    /// Returns the security of connections; `None` where nothing is named.
    ///
    /// # Errors
    /// Too much is named or too little, or the files cannot be used.
    pub fn security(&self) -> Result<Option<Security>, IdentityError> {
        if let Some(files) = self.certificate()? {
            return Ok(Some(Security::files(files)?));
        }
        Ok(match &self.key_file {
            Some(path) => Some(Security::shared(&Secret::read(path)?)),
            None => None,
        })
    }

    /// The same for an agent of this name, which its certificate has to be for. One that is for `manager` as
    /// well is none: with it the agent could be a manager to all others.
    ///
    /// # Errors
    /// As there, or the certificate is for another name.
    pub fn security_of(&self, name: &str, manager: &str) -> Result<Option<Security>, IdentityError> {
        let security = self.security()?;
        if let Some(files) = self.certificate()? {
            let names = files.names()?;
            names.check(name)?;
            if names.allow(manager) {
                return Err(IdentityError::Managers { name: name.into(), manager: manager.into() });
            }
        }
        Ok(security)
    }

    /// The same for a manager, whose certificate has to have this DNS name.
    ///
    /// # Errors
    /// As there, or agents that expect a manager of this name would not take the certificate.
    pub fn security_of_manager(&self, manager: &str) -> Result<Option<Security>, IdentityError> {
        let security = self.security()?;
        if let Some(files) = self.certificate()?
            && !files.is(&Expected::Manager(manager.into()))?
        {
            return Err(IdentityError::NoManager { manager: manager.into(), names: files.names()? });
        }
        Ok(security)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_is_whole_and_one() {
        let some = || Some(PathBuf::from("/no/such"));
        let key = IdentityFiles { key_file: some(), ..IdentityFiles::default() };
        let half = IdentityFiles { tls_ca: some(), tls_cert: some(), ..IdentityFiles::default() };
        let said = |files: &IdentityFiles| files.security().unwrap_err().to_string();
        assert!(said(&half).contains("there is no --tls-key"));
        let both = IdentityFiles { key_file: some(), ..half.clone() };
        assert!(said(&both).contains("name either --key-file"));
        assert!(said(&key).contains("cannot be read"));
        let list = IdentityFiles { tls_crl: some(), ..IdentityFiles::default() };
        assert!(said(&list).contains("lists revoked certificates"));
        assert!(IdentityFiles::default().security().unwrap().is_none());
        assert_eq!(key.clone().or(half.clone()), key, "what is said last holds as a whole");
        assert_eq!(IdentityFiles::default().or(half.clone()), half);
    }
}
