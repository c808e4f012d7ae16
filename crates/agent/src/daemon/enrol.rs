//! An agent's certificate from the manager's own authority: the first one for a token, the others in place of
//! one that still holds.

use super::error::{AgentError, EnrolError};
use hyper_util::rt::TokioIo;
use polycast_api::PROTOCOL_VERSION;
use polycast_api::error::{Refusal, innermost};
use polycast_api::manager::authority_client::AuthorityClient;
use polycast_api::manager::{EnrollRequest, EnrollResponse};
use polycast_net::store::sync_folder;
use polycast_net::tls::{
    Binding, Claim, Expected, IdentityError, IdentityFiles, JoinToken, Remark, SealError, Security, Talk,
    pin_of_pem,
};
use rcgen::{CertificateParams, KeyPair};
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tonic::transport::{Channel, Endpoint};

/// Time that a manager may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Files of the authority, of the agent's certificate, and of its key.
const KEPT: [&str; 3] = ["ca.pem", "cert.pem", "key.pem"];
/// The same files of a certificate that has just arrived.
const COME: [&str; 3] = ["ca.pem", "cert.come", "key.come"];
/// Interval of the checks whether the certificate has to be renewed.
const LOOK_INTERVAL: Duration = Duration::from_secs(60);

/// Folder of the certificate, and the managers to request it from.
#[derive(Clone, Debug)]
pub(super) struct Enrolment {
    pub folder: PathBuf,
    pub managers: Vec<String>,
    pub name: String,
    /// Name of managers in certificates.
    pub manager: String,
}

impl Enrolment {
    fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn files(&self, [ca, cert, key]: [&str; 3]) -> IdentityFiles {
        IdentityFiles {
            key_file: None,
            tls_ca: Some(self.file(ca)),
            tls_cert: Some(self.file(cert)),
            tls_key: Some(self.file(key)),
            tls_crl: None,
        }
    }

    /// Loads the stored certificate, if it is valid.
    fn kept(&self) -> Result<Option<Security>, IdentityError> {
        self.files(KEPT).security_of(&self.name, &self.manager)
    }

    /// Loads a certificate that has come and has not taken its place, nor perhaps its key: an earlier run of
    /// the agent ended before that.
    fn come(&self) -> Result<Option<Security>, AgentError> {
        let failed = |source| EnrolError::Folder { folder: self.folder.clone(), source };
        for last in 1..COME.len() {
            let files = std::array::from_fn(|at| if (1..=last).contains(&at) { COME[at] } else { KEPT[at] });
            if let Ok(Some(security)) = self.files(files).security_of(&self.name, &self.manager) {
                (1..=last).rev().try_for_each(|at| self.take_place(at)).map_err(failed)?;
                tracing::info!("the certificate that came before the agent ended is taken");
                return Ok(Some(security));
            }
        }
        Ok(None)
    }

    /// Gives a file that has come its place for good.
    fn take_place(&self, at: usize) -> io::Result<()> {
        fs::rename(self.file(COME[at]), self.file(KEPT[at]))?;
        sync_folder(&self.folder)
    }

    /// The agent's certificate: the one that is there, where it holds, or one for the token.
    pub(super) async fn enrol(&self, token: Option<&JoinToken>) -> Result<Security, AgentError> {
        let wrong = match self.kept() {
            Ok(Some(security)) => return Ok(security),
            Ok(None) => String::new(),
            Err(error) => error.to_string(),
        };
        if let Some(security) = self.come()? {
            return Ok(security);
        }
        let Some(token) = token else {
            return Err(EnrolError::NoToken { folder: self.folder.clone(), reason: wrong }.into());
        };
        self.ask(Asking::Token(token)).await?;
        Ok(self.kept()?.expect("all files are named"))
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
            ..EnrollRequest::default()
        };
        let mut reason = String::new();
        for manager in &self.managers {
            match asking.ask((manager, &self.manager), request.clone()).await {
                Ok(response) => return self.keep(&asking, &response, &key.serialize_pem()),
                Err(Silence::Refused(why)) => return Err(EnrolError::Refused(why)),
                Err(Silence::Away(why)) => reason = format!("{manager}: {why}"),
            }
        }
        Err(EnrolError::Refused(reason))
    }

    /// Keeps a certificate that has come, if it is one of this agent's by its authority. That one never
    /// changes: the one that the token names is kept with the first certificate.
    fn keep(&self, asking: &Asking<'_>, response: &EnrollResponse, key: &str) -> Result<(), EnrolError> {
        let failed = |source| EnrolError::Folder { folder: self.folder.clone(), source };
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder).map_err(failed)?;
        match asking {
            Asking::Token(_) => write(&self.file("ca.pem"), &response.authority).map_err(failed)?,
            Asking::Certificate(_) => {
                let path = self.file("ca.pem");
                let own = fs::read_to_string(&path).map_err(failed)?;
                if pin_of_pem(&own).is_none_or(|own| pin_of_pem(&response.authority) != Some(own)) {
                    return Err(EnrolError::OtherAuthority { path });
                }
            }
        }
        // It is judged before it takes the place of one that may still hold.
        write(&self.file(COME[2]), key).map_err(failed)?;
        write(&self.file(COME[1]), &response.certificate).map_err(failed)?;
        self.files(COME).security_of(&self.name, &self.manager).map_err(EnrolError::Unusable)?;
        let renew_at = now().saturating_add(response.renew_after_s);
        // The key first, and for good: what is left where the power fails is a case of `come`.
        let kept = (1..COME.len()).rev().try_for_each(|at| self.take_place(at));
        kept.and_then(|()| write(&self.file("renew-at"), &renew_at.to_string())).map_err(failed)
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
    fs::rename(&other, path)?;
    path.parent().map_or(Ok(()), sync_folder)
}

/// By what an agent asks.
enum Asking<'a> {
    Token(&'a JoinToken),
    Certificate(&'a Security),
}

/// Reason why a manager has not issued a certificate.
enum Silence {
    /// It refuses.
    Refused(String),
    /// Another one may.
    Away(String),
}

impl Asking<'_> {
    /// Adds the proof of a token to a request: the token is not sent, but proven for this connection alone.
    fn shown(&self, request: EnrollRequest, binding: Option<&Binding>) -> Result<EnrollRequest, Silence> {
        let Asking::Token(token) = self else { return Ok(request) };
        let Some(binding) = binding else {
            return Err(Silence::Away("its connection has ended before anything was said".into()));
        };
        let shown = token.show(&Claim { binding, name: &request.name, request: &request.request });
        let (token_id, proof) = (shown.id().to_string(), shown.proof().to_vec());
        Ok(EnrollRequest { token_id, proof, ..request })
    }

    /// Asks the manager at this address, which has to have this name.
    async fn ask(
        &self,
        (manager, name): (&str, &str),
        request: EnrollRequest,
    ) -> Result<EnrollResponse, Silence> {
        let remark = Remark::default();
        let asked = tokio::time::timeout(ANSWER_TIMEOUT, async {
            let (channel, binding) = self.connect((manager, name), &remark).await?;
            let request = self.shown(request, binding.get())?;
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
        // A connection that ends because its seal is wrong looks like any other that ends, except for the
        // remark.
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

    /// Connects once; gives what the connection is told from others by, too.
    async fn connect(
        &self,
        (manager, name): (&str, &str),
        remark: &Remark,
    ) -> Result<(Channel, Arc<OnceLock<Binding>>), Silence> {
        let away = |error: tonic::transport::Error| Silence::Away(innermost(&error));
        let endpoint = Endpoint::from_shared(format!("http://{manager}")).map_err(away)?;
        let (manager, remark) = (manager.to_string(), remark.clone());
        let (expected, known) = (Expected::Manager(name.to_string()), Arc::new(OnceLock::new()));
        let (security, pin) = match self {
            Asking::Token(token) => (None, Some(token.pin.clone())),
            Asking::Certificate(security) => (Some((*security).clone()), None),
        };
        let told = Arc::clone(&known);
        let connector = tower::service_fn(move |_| {
            let (manager, remark, expected) = (manager.clone(), remark.clone(), expected.clone());
            let (security, pin, told) = (security.clone(), pin.clone(), Arc::clone(&told));
            async move {
                let talk = match &pin {
                    Some(pin) => Talk::connect_pinned(&manager, pin, &expected, &remark).await?,
                    None => Talk::connect(&manager, security.as_ref(), &expected, &remark).await?,
                };
                // What is shown on this one is of no use on another.
                let is_first = talk.binding().is_some_and(|binding| told.set(binding).is_ok());
                if is_first {
                    Ok(TokioIo::new(talk))
                } else {
                    Err(io::Error::from(io::ErrorKind::NotConnected))
                }
            }
        });
        let channel = endpoint.connect_with_connector(connector).await.map_err(away)?;
        Ok((channel, known))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polycast_net::tls::{MANAGER, TlsFiles};
    use rcgen::{BasicConstraints, ExtendedKeyUsagePurpose, IsCa, Issuer};
    use tempfile::TempDir;
    use tokio::net::TcpListener;

    struct Authority {
        issuer: Issuer<'static, KeyPair>,
        pem: String,
    }

    impl Authority {
        fn new() -> Self {
            let mut params = CertificateParams::default();
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            let key = KeyPair::generate().unwrap();
            let pem = params.self_signed(&key).unwrap().pem();
            Authority { issuer: Issuer::new(params, key), pem }
        }

        /// Returns the answer of a manager that issues a certificate for this name.
        fn answer(&self, name: &str, key: &KeyPair) -> EnrollResponse {
            let mut params = CertificateParams::new(vec![name.to_string()]).unwrap();
            params.extended_key_usages =
                vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
            EnrollResponse {
                protocol_version: PROTOCOL_VERSION,
                certificate: params.signed_by(key, &self.issuer).unwrap().pem(),
                authority: self.pem.clone(),
                renew_after_s: 60,
            }
        }

        fn token(&self) -> JoinToken {
            JoinToken::fresh(&pin_of_pem(&self.pem).unwrap())
        }
    }

    /// Returns the enrolment of the agent "b".
    fn enrolment(manager: &str) -> (TempDir, Enrolment) {
        let folder = tempfile::tempdir().unwrap();
        let enrolment = Enrolment {
            folder: folder.path().to_path_buf(),
            managers: vec![manager.to_string()],
            name: "b".into(),
            manager: MANAGER.into(),
        };
        (folder, enrolment)
    }

    /// Keeps what this authority has given for a token of its own.
    fn enrolled(authority: &Authority, enrolment: &Enrolment) -> Security {
        let key = KeyPair::generate().unwrap();
        let response = authority.answer("b", &key);
        enrolment.keep(&Asking::Token(&authority.token()), &response, &key.serialize_pem()).unwrap();
        enrolment.kept().unwrap().unwrap()
    }

    /// The agent's authority stays what its token has said, whatever comes when the certificate is renewed.
    #[test]
    fn a_renewal_changes_the_certificate_and_nothing_else() {
        let (own, evil) = (Authority::new(), Authority::new());
        let (_folder, enrolment) = enrolment("127.0.0.1:9");
        let security = enrolled(&own, &enrolment);
        let files = || KEPT.map(|file| fs::read_to_string(enrolment.file(file)).unwrap());
        let key = KeyPair::generate().unwrap();
        let renew = |response: EnrollResponse| {
            enrolment.keep(&Asking::Certificate(&security), &response, &key.serialize_pem())
        };
        let before = files();
        let both = [&own.pem[..], &evil.pem[..]].concat();
        for authority in [evil.pem.clone(), both, String::new()] {
            let refused = renew(EnrollResponse { authority, ..own.answer("b", &key) }).unwrap_err();
            assert!(matches!(refused, EnrolError::OtherAuthority { .. }), "{refused}");
        }
        for response in [
            // It says that it is of the agent's authority, and is not.
            EnrollResponse { authority: own.pem.clone(), ..evil.answer("b", &key) },
            own.answer("c", &key),
            EnrollResponse { certificate: String::new(), ..own.answer("b", &key) },
        ] {
            let refused = renew(response).unwrap_err();
            assert!(matches!(refused, EnrolError::Unusable(_)), "{refused}");
        }
        assert_eq!(files(), before, "what holds stays");
        renew(own.answer("b", &key)).unwrap();
        assert!(files()[0] == before[0] && files()[1] != before[1] && files()[2] != before[2]);
        enrolment.kept().unwrap().unwrap();
    }

    /// A kill between the two renames leaves a new key beside the old certificate, or beside none; one before
    /// them leaves both beside what may not hold any more.
    #[tokio::test]
    async fn a_certificate_that_had_come_before_a_kill_takes_its_place() {
        let (own, evil) = (Authority::new(), Authority::new());
        for (key_file, is_first) in [("key.pem", false), ("key.pem", true), ("key.come", true)] {
            let (_folder, enrolment) = enrolment("127.0.0.1:9");
            let file = |name| enrolment.file(name);
            enrolled(&own, &enrolment);
            if is_first {
                fs::remove_file(file("cert.pem")).unwrap();
                fs::remove_file(file("renew-at")).unwrap();
            }
            let key = KeyPair::generate().unwrap();
            write(&file(key_file), &key.serialize_pem()).unwrap();
            for certificate in [evil.answer("b", &key), own.answer("c", &key)] {
                write(&file("cert.come"), &certificate.certificate).unwrap();
                let refused = enrolment.enrol(None).await.expect_err("another one's certificate");
                assert!(refused.to_string().contains("start the agent with --token"), "{refused}");
            }
            let certificate = own.answer("b", &key).certificate;
            write(&file("cert.come"), &certificate).unwrap();
            assert!(enrolment.enrol(None).await.is_ok(), "{key_file}, first {is_first}");
            assert_eq!(fs::read_to_string(file("cert.pem")).unwrap(), certificate);
            assert!(!file("cert.come").exists() && !file("key.come").exists());
            enrolment.kept().unwrap().unwrap();
        }
    }

    /// A member that stands where the manager is expected hears nothing: no token, no proof, no request.
    #[tokio::test]
    async fn a_member_is_asked_for_no_certificate() {
        let authority = Authority::new();
        let place = tempfile::tempdir().unwrap();
        let [ca, cert, key] = ["ca", "cert", "key"].map(|name| place.path().join(name));
        let pair = KeyPair::generate().unwrap();
        let own = authority.answer("x", &pair).certificate;
        write(&ca, &authority.pem).unwrap();
        // Its chain ends with what the token names.
        write(&cert, &[&own[..], &authority.pem[..]].concat()).unwrap();
        write(&key, &pair.serialize_pem()).unwrap();
        let member = Security::files_or_nobody(TlsFiles { ca, cert, key, crl: None }).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (_folder, enrolment) = enrolment(&listener.local_addr().unwrap().to_string());
        let security = enrolled(&authority, &enrolment);
        let token = authority.token();
        for asking in [Asking::Token(&token), Asking::Certificate(&security)] {
            let answering = async {
                let (stream, _) = listener.accept().await.unwrap();
                Talk::accept(stream, &member).await.map(drop).map_err(|(error, _)| error)
            };
            let (asked, answered) = tokio::join!(enrolment.ask(asking), answering);
            let said = asked.unwrap_err().to_string();
            assert!(said.contains("the other end is no manager: its certificate is for 'x'"), "{said}");
            assert!(answered.is_err(), "the connection is not taken for open");
        }
    }
}
