//! An agent's certificate from the manager's own authority: the first one for a token, the others in place of one that still holds.

use super::error::AgentError;
use hyper_util::rt::TokioIo;
use polycast_api::PROTOCOL_VERSION;
use polycast_api::error::{Refusal, innermost};
use polycast_api::manager::authority_client::AuthorityClient;
use polycast_api::manager::{EnrollRequest, EnrollResponse};
use polycast_net::tls::{Expected, IdentityFiles, JoinToken, Remark, SealError, Security, Talk, pin_of_pem};
use rcgen::{CertificateParams, KeyPair};
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tonic::transport::{Channel, Endpoint};

/// How long a manager may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// How often it is looked whether the certificate is to be renewed.
const LOOK_INTERVAL: Duration = Duration::from_secs(60);

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum EnrolError {
    /// The folder for it cannot be used.
    #[error("the folder {} for the agent's certificate cannot be used: {source}", folder.display())]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// No manager gives one.
    #[error("no manager gives a certificate: {0}")]
    Refused(String),
    /// There is nothing to ask with.
    #[error(
        "there is no certificate that holds in {} ({reason}): start the agent with --token, which 'polycast token new' prints", folder.display()
    )]
    NoToken {
        /// The folder.
        folder: PathBuf,
        /// What is wrong with what is there.
        reason: String,
    },
}

/// Where the certificate is kept, and whom to ask for it.
#[derive(Clone, Debug)]
pub(super) struct Enrolment {
    pub folder: PathBuf,
    pub managers: Vec<String>,
    pub name: String,
    /// What managers are called in certificates.
    pub manager: String,
}

impl Enrolment {
    fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn files(&self) -> IdentityFiles {
        IdentityFiles {
            key_file: None,
            tls_ca: Some(self.file("ca.pem")),
            tls_cert: Some(self.file("cert.pem")),
            tls_key: Some(self.file("key.pem")),
            tls_crl: None,
        }
    }

    /// The agent's certificate: the one that is there, where it holds, or one for the token.
    pub(super) async fn enrol(&self, token: Option<&JoinToken>) -> Result<Security, AgentError> {
        let wrong = match self.files().security_of(&self.name, &self.manager) {
            Ok(Some(security)) => return Ok(security),
            Ok(None) => String::new(),
            Err(error) => error.to_string(),
        };
        let Some(token) = token else {
            return Err(EnrolError::NoToken { folder: self.folder.clone(), reason: wrong }.into());
        };
        self.ask(Asking::Token(token)).await?;
        let security = self.files().security_of(&self.name, &self.manager)?;
        Ok(security.expect("all files are named"))
    }

    /// Renews the certificate each time when that is due, as long as the agent runs.
    pub(super) async fn renew(&self, security: &Security) {
        loop {
            tokio::time::sleep(LOOK_INTERVAL).await;
            let due =
                fs::read_to_string(self.file("renew-at")).ok().and_then(|text| text.trim().parse().ok());
            if due.is_some_and(|due: u64| now() < due) {
                continue;
            }
            match self.ask(Asking::Certificate(security)).await {
                Ok(()) => tracing::info!("the certificate is renewed"),
                Err(error) => tracing::warn!(%error, "the certificate is not renewed: tries again"),
            }
        }
    }

    /// Asks the managers in turn, and keeps what the first one gives that answers.
    async fn ask(&self, asking: Asking<'_>) -> Result<(), EnrolError> {
        let wrong = |error: rcgen::Error| EnrolError::Refused(error.to_string());
        let key = KeyPair::generate().map_err(wrong)?;
        let params = CertificateParams::new(vec![self.name.clone()]).map_err(wrong)?;
        let request = params.serialize_request(&key).map_err(wrong)?;
        let request = EnrollRequest {
            protocol_version: PROTOCOL_VERSION,
            name: self.name.clone(),
            request: request.der().to_vec(),
            token: asking.token(),
        };
        let mut reason = String::new();
        for manager in &self.managers {
            match asking.ask((manager, &self.manager), request.clone()).await {
                Ok(response) => return self.keep(&response, &key.serialize_pem()),
                Err(Silence::Refused(why)) => return Err(EnrolError::Refused(why)),
                Err(Silence::Away(why)) => reason = format!("{manager}: {why}"),
            }
        }
        Err(EnrolError::Refused(reason))
    }

    fn keep(&self, response: &EnrollResponse, key: &str) -> Result<(), EnrolError> {
        let kept = DirBuilder::new().recursive(true).mode(0o700).create(&self.folder);
        let kept = kept.and_then(|()| {
            let renew_at = now().saturating_add(response.renew_after_s);
            write(&self.file("ca.pem"), &response.authority)?;
            write(&self.file("key.pem"), key)?;
            write(&self.file("cert.pem"), &response.certificate)?;
            write(&self.file("renew-at"), &renew_at.to_string())
        });
        kept.map_err(|source| EnrolError::Folder { folder: self.folder.clone(), source })
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs())
}

/// Writes a file that only its owner can read, whole or not at all.
fn write(path: &Path, text: &str) -> io::Result<()> {
    let other = path.with_extension("new");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&other)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&other, path)
}

/// By what an agent asks.
enum Asking<'a> {
    Token(&'a JoinToken),
    Certificate(&'a Security),
}

/// Why a manager has not given a certificate.
enum Silence {
    /// It refuses.
    Refused(String),
    /// Another one may.
    Away(String),
}

impl Asking<'_> {
    fn token(&self) -> String {
        match self {
            Asking::Token(token) => token.to_string(),
            Asking::Certificate(_) => String::new(),
        }
    }

    /// Asks the manager at this address, which has to have this name.
    async fn ask(
        &self,
        (manager, name): (&str, &str),
        request: EnrollRequest,
    ) -> Result<EnrollResponse, Silence> {
        let remark = Remark::default();
        let asked = tokio::time::timeout(ANSWER_TIMEOUT, async {
            let channel = self.connect((manager, name), &remark).await?;
            let answer = AuthorityClient::new(channel).enroll(request).await;
            let answer = answer.map_err(|status| match Refusal::from_status(&status) {
                Some(refusal) => Silence::Refused(refusal.message),
                None if status.code() == tonic::Code::Unimplemented => {
                    Silence::Refused("it has no authority of its own: start it with --ca DIR".into())
                }
                None => Silence::Away(innermost(&status)),
            });
            Ok(answer?.into_inner())
        });
        let asked = asked.await.unwrap_or_else(|_| {
            Err(Silence::Away(format!("no answer within {} seconds", ANSWER_TIMEOUT.as_secs())))
        });
        // A connection that ends because its seal is wrong looks like any other that ends, except for the remark.
        let response = asked.map_err(|silence| match remark.take() {
            Some(SealError::ForeignCertificate) if matches!(self, Asking::Token(_)) => {
                Silence::Away("its authority is another one than the token's".into())
            }
            Some(error) => Silence::Away(error.to_string()),
            None => silence,
        })?;
        match self {
            // The manager's own chain was right, and this is what all others are measured by from now on.
            Asking::Token(token) if pin_of_pem(&response.authority).as_ref() != Some(&token.pin) => {
                Err(Silence::Refused("it gives a certificate of another authority than the token's".into()))
            }
            _ => Ok(response),
        }
    }

    async fn connect(&self, (manager, name): (&str, &str), remark: &Remark) -> Result<Channel, Silence> {
        let away = |error: tonic::transport::Error| Silence::Away(innermost(&error));
        let endpoint = Endpoint::from_shared(format!("http://{manager}")).map_err(away)?;
        let (manager, remark) = (manager.to_string(), remark.clone());
        let expected = Expected::Manager(name.to_string());
        let (security, pin) = match self {
            Asking::Token(token) => (None, Some(token.pin.clone())),
            Asking::Certificate(security) => (Some((*security).clone()), None),
        };
        let connector = tower::service_fn(move |_| {
            let (manager, remark, expected) = (manager.clone(), remark.clone(), expected.clone());
            let (security, pin) = (security.clone(), pin.clone());
            async move {
                let talk = match &pin {
                    Some(pin) => Talk::connect_pinned(&manager, pin, &expected, &remark).await,
                    None => Talk::connect(&manager, security.as_ref(), &expected, &remark).await,
                };
                talk.map(TokioIo::new)
            }
        });
        endpoint.connect_with_connector(connector).await.map_err(away)
    }
}
