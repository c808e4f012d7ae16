//! An external scheduler, which the manager asks over gRPC: its settings, and the calls.

use crate::devices::News;
use hyper_util::rt::TokioIo;
use polycast_api::error::{innermost, plain};
use polycast_api::scheduler as api;
use polycast_api::scheduler::scheduler_client::SchedulerClient;
use polycast_api::settings::SettingsError;
use polycast_net::tls::ForeignServer;
use polycast_planning::{Fcfs, RequestId, Ruling};
use polycast_protocol::leases::{Advice, AskedLease, AskedRequest, NoAdvice, Question};
use polycast_types::{Duration, Printable};
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor, value::MapAccessDeserializer};
use std::error::Error as _;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use tokio::sync::mpsc;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

/// Bytes of an answer. One about all requests of a question, with a reason each, is shorter.
const ANSWER_LEN_MAX: usize = 4 << 20;
/// Letters of a sentence of the scheduler's.
const WORDS_MAX: usize = 512;
/// A scheduler is asked again after this time at the earliest: it is what the manager's timer rests.
const AGAIN_MIN_MS: u64 = 20;
/// The longest deadline: requests wait for so long where the scheduler does not answer.
const DEADLINE_MAX_MS: u64 = 60_000;

/// Setting of the scheduler: `scheduler = "NAME"`, or the section `[scheduler]`.
#[derive(Clone, Debug)]
pub struct SchedulerSettings {
    /// Name of the built-in scheduler; one that there is not is refused with the list of all.
    pub name: String,
    /// Address of an external scheduler, which decides before it: `http://HOST:PORT` on this machine,
    /// `https://HOST:PORT` anywhere.
    pub address: Option<String>,
    /// Time that it may take to answer, in milliseconds.
    pub deadline_ms: u64,
    /// Certificates (PEM) of the authorities that may have issued its certificate, for https.
    pub ca: Option<PathBuf>,
    /// The manager's own certificate, where the scheduler asks to see one.
    pub cert: Option<PathBuf>,
    /// Private key of that certificate.
    pub key: Option<PathBuf>,
}

/// The section as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
struct Section {
    name: String,
    address: Option<String>,
    deadline_ms: u64,
    ca: Option<PathBuf>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
}

impl Default for Section {
    fn default() -> Self {
        // Three times the longest answer of a scheduler in Python about 1,024 requests and leases that was
        // seen on a busy machine, 61 ms (docs/howto/scheduler.md).
        Section { name: Fcfs::NAME.into(), address: None, deadline_ms: 200, ca: None, cert: None, key: None }
    }
}

impl From<Section> for SchedulerSettings {
    fn from(Section { name, address, deadline_ms, ca, cert, key }: Section) -> Self {
        SchedulerSettings { name, address, deadline_ms, ca, cert, key }
    }
}

impl Default for SchedulerSettings {
    fn default() -> Self {
        Section::default().into()
    }
}

impl<'de> Deserialize<'de> for SchedulerSettings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NameOrSection;
        impl<'de> Visitor<'de> for NameOrSection {
            type Value = Section;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a scheduler's name, or a section [scheduler]")
            }

            fn visit_str<E>(self, name: &str) -> Result<Section, E> {
                Ok(Section { name: name.into(), ..Section::default() })
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Section, A::Error> {
                Section::deserialize(MapAccessDeserializer::new(map))
            }
        }
        deserializer.deserialize_any(NameOrSection).map(Self::from)
    }
}

fn wrong<T>(setting: &'static str, reason: impl Into<String>) -> Result<T, SettingsError> {
    Err(SettingsError::Value { setting, reason: reason.into() })
}

/// A way to an external scheduler.
#[derive(Clone, Debug)]
pub(crate) struct External {
    /// As the settings have it.
    pub(crate) address: String,
    pub(crate) deadline: Duration,
    endpoint: Endpoint,
    /// `HOST:PORT` and its authorities, over TLS.
    server: Option<(String, ForeignServer)>,
}

impl SchedulerSettings {
    /// Returns the way to the external scheduler, if there is one.
    ///
    /// # Errors
    /// The settings are wrong, or files that they name cannot be used.
    pub(crate) fn external(&self) -> Result<Option<External>, SettingsError> {
        let Some(address) = &self.address else {
            let only_external = [("ca", &self.ca), ("cert", &self.cert), ("key", &self.key)]
                .into_iter()
                .find(|(_, file)| file.is_some());
            return match only_external {
                Some((name, _)) => {
                    wrong("scheduler", format!("'{name}' is for an external scheduler: say its 'address'"))
                }
                None => Ok(None),
            };
        };
        if !(1..=DEADLINE_MAX_MS).contains(&self.deadline_ms) {
            return wrong("scheduler.deadline-ms", format!("it must be 1 to {DEADLINE_MAX_MS}"));
        }
        let Some((host, port, is_tls)) = parts(address) else {
            let reason = format!(
                "'{address}' is not http://HOST:PORT or https://HOST:PORT, such as http://127.0.0.1:7500"
            );
            return wrong("scheduler.address", reason);
        };
        let server = match (is_tls, self.server()?) {
            (true, Some(server)) => Some((format!("{host}:{port}"), server)),
            (true, None) => {
                return wrong(
                    "scheduler.ca",
                    "name the authority of the certificate of a scheduler with https",
                );
            }
            (false, Some(_)) => {
                return wrong(
                    "scheduler.ca",
                    "'ca', 'cert' and 'key' are for TLS: write https in the address",
                );
            }
            (false, None) if !is_this_machine(host) => {
                let reason = "without TLS a scheduler has to be on this machine: any machine on the way could decide; write https, and name its 'ca'";
                return wrong("scheduler.address", reason);
            }
            (false, None) => None,
        };
        // With TLS too: the connection is made beneath.
        let endpoint = Endpoint::from_shared(format!("http://{host}:{port}"));
        let endpoint = match endpoint {
            Ok(endpoint) => {
                endpoint.tcp_nodelay(true).connect_timeout(std::time::Duration::from_millis(self.deadline_ms))
            }
            Err(error) => return wrong("scheduler.address", format!("'{address}': {}", innermost(&error))),
        };
        let deadline = Duration::from_millis(self.deadline_ms);
        Ok(Some(External { address: address.clone(), deadline, endpoint, server }))
    }

    fn server(&self) -> Result<Option<ForeignServer>, SettingsError> {
        let own = match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => Some((cert.clone(), key.clone())),
            (None, None) => None,
            (Some(_), None) => return wrong("scheduler.key", "scheduler.cert needs its private key"),
            (None, Some(_)) => return wrong("scheduler.cert", "scheduler.key needs its certificate"),
        };
        let Some(ca) = self.ca.clone() else {
            return match own {
                Some(_) => wrong(
                    "scheduler.ca",
                    "scheduler.cert and scheduler.key are for TLS: name the scheduler's authority here",
                ),
                None => Ok(None),
            };
        };
        let server = ForeignServer { ca, own };
        match server.config() {
            Ok(_) => Ok(Some(server)),
            Err(error) => wrong("scheduler.ca", error.to_string()),
        }
    }
}

/// Host, port and whether it is TLS.
fn parts(address: &str) -> Option<(&str, u16, bool)> {
    let (scheme, rest) = address.split_once("://")?;
    let is_tls = match scheme {
        "http" => false,
        "https" => true,
        _ => return None,
    };
    let (host, port) = rest.trim_end_matches('/').rsplit_once(':')?;
    let is_host = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '.' | '-' | '_');
    let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let fits = match bare {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => !host.is_empty() && host.chars().all(is_host),
    };
    let port = port.parse::<u16>().ok().filter(|port| *port > 0)?;
    fits.then_some((host, port, is_tls))
}

fn is_this_machine(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || bare.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

impl External {
    fn client(&self) -> SchedulerClient<Channel> {
        let channel = match self.server.clone() {
            None => self.endpoint.connect_lazy(),
            Some((address, server)) => {
                let connector = tower::service_fn(move |_| {
                    let (address, server) = (address.clone(), server.clone());
                    async move { server.connect(&address).await.map(TokioIo::new) }
                });
                self.endpoint.connect_with_connector_lazy(connector)
            }
        };
        SchedulerClient::new(channel).max_decoding_message_size(ANSWER_LEN_MAX)
    }

    /// Answers questions until their sender is dropped. Needs a tokio runtime around it.
    pub(crate) fn start(self, news: mpsc::Sender<News>) -> mpsc::Sender<Question> {
        let (questions, mut asked) = mpsc::channel::<Question>(1);
        tokio::spawn(async move {
            let mut client = self.client();
            while let Some(question) = asked.recv().await {
                let number = question.number;
                // The machine knows what time it is: an answer that has not come by then it counts as late.
                if let Ok(advice) =
                    tokio::time::timeout(self.deadline.into(), ask(&mut client, question)).await
                    && news.send(News::Advised { number, advice }).await.is_err()
                {
                    return;
                }
            }
        });
        questions
    }

    /// Asks about nothing, to see whether it is there.
    ///
    /// # Errors
    /// It is not, in a sentence.
    pub(crate) async fn probe(&self, fabrics: Vec<polycast_planning::FabricName>) -> Result<(), String> {
        let question = Question {
            number: 0,
            deadline: self.deadline,
            requests: Vec::new(),
            requests_left_out: 0,
            leases: Vec::new(),
            leases_left_out: 0,
            free: Vec::new(),
            fabrics,
        };
        let within = self.deadline.into();
        match tokio::time::timeout(within, ask(&mut self.client(), question)).await {
            Ok(Ok(advice)) if advice.rulings.is_empty() => Ok(()),
            Ok(Ok(_)) => Err("it decides about requests that it was not asked about".into()),
            Ok(Err(NoAdvice::Unreached(why) | NoAdvice::Wrong(why))) => Err(why),
            Err(_) => Err(format!("it has not answered within {} ms", self.deadline.as_millis())),
        }
    }
}

async fn ask(client: &mut SchedulerClient<Channel>, asked: Question) -> Result<Advice, NoAdvice> {
    match client.decide(question(asked)).await {
        Ok(answer) => advice(answer.into_inner()),
        Err(status) => Err(NoAdvice::Unreached(why(&status))),
    }
}

/// Describes the reason why a call has failed.
fn why(status: &Status) -> String {
    let sources = || std::iter::successors(status.source(), |error| (*error).source());
    if let Some(source) = status.source() {
        let system = sources().find_map(|error| error.downcast_ref::<io::Error>());
        let reason = system.map_or_else(|| innermost(source), plain);
        return format!("it cannot be reached: {}", Printable(&reason));
    }
    match status.code() {
        Code::Unimplemented => {
            "it is no scheduler: it does not know the call polycast.scheduler.v1.Scheduler/Decide".into()
        }
        code => format!("it answers with the error {code:?}: {}", words(status.message())),
    }
}

/// A sentence of another program, safe for printing.
fn words(text: &str) -> String {
    let short: String = text.chars().take(WORDS_MAX).collect();
    Printable(&short).to_string()
}

fn things(kinds: Vec<(String, u64)>) -> Vec<api::Things> {
    kinds.into_iter().map(|(kind, count)| api::Things { kind, count }).collect()
}

fn question(question: Question) -> api::Question {
    api::Question {
        number: question.number,
        deadline_ms: question.deadline.as_millis(),
        requests: question.requests.into_iter().map(request).collect(),
        requests_left_out: question.requests_left_out as u64,
        leases: question.leases.into_iter().map(lease).collect(),
        leases_left_out: question.leases_left_out as u64,
        free: things(question.free),
        fabrics: question.fabrics.into_iter().map(String::from).collect(),
    }
}

fn request(request: AskedRequest) -> api::Request {
    let (fabric, takes, estimate) = match request.needs {
        Some(needs) => (String::from(needs.fabric), things(needs.takes), needs.estimate),
        None => Default::default(),
    };
    api::Request {
        id: request.id.0,
        source: request.source,
        receivers: request.receivers,
        object_bytes: request.object_bytes,
        remaining_bytes: request.remaining_bytes,
        divisible: request.divisible,
        waited_ms: request.waited.as_millis(),
        wished_fabric: request.wish.fabric.map(String::from).unwrap_or_default(),
        or_fail: request.wish.or_fail,
        fabric,
        takes,
        estimate_ms: estimate.map(|estimate| estimate.as_millis()),
    }
}

fn lease(lease: AskedLease) -> api::Lease {
    api::Lease {
        response_id: lease.plan.0,
        source: lease.source,
        receivers: lease.receivers,
        bytes: lease.bytes,
        fabric: lease.fabric.into(),
        holds: things(lease.holds),
        held_ms: lease.held.as_millis(),
        left_ms: lease.left.map(|left| left.as_millis()),
    }
}

fn advice(answer: api::Answer) -> Result<Advice, NoAdvice> {
    let rulings = answer.decisions.into_iter().map(ruling).collect::<Result<_, _>>()?;
    let ask_again = answer.ask_again_ms.map(|ms| Duration::from_millis(ms.max(AGAIN_MIN_MS)));
    Ok(Advice { rulings, ask_again })
}

fn ruling(decision: api::Decision) -> Result<(RequestId, Ruling), NoAdvice> {
    use api::decision::What;
    let wrong = |what: String| NoAdvice::Wrong(format!("its decision about request {} {what}", decision.id));
    let ruling = match decision.what {
        None => return Err(wrong("neither accepts it, nor has it wait, nor rejects it".into())),
        Some(What::Wait(api::Wait {})) => Ruling::Wait,
        Some(What::Reject(reject)) => Ruling::Reject { reason: words(&reject.reason) },
        Some(What::Accept(accept)) => {
            let fabric = match accept.fabric.as_str() {
                "" => None,
                name => {
                    Some(name.parse().map_err(|error| wrong(format!("names '{}': {error}", words(name))))?)
                }
            };
            Ruling::Accept { bytes: accept.bytes, fabric, if_free: accept.if_free }
        }
    };
    Ok((RequestId(decision.id), ruling))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ManagerConfig;

    fn settings(text: &str) -> Result<SchedulerSettings, String> {
        ManagerConfig::from_toml(text).map(|config| config.scheduler).map_err(|error| error.to_string())
    }

    #[test]
    fn a_name_alone_or_a_section() {
        let built_in = settings("scheduler = 'greedy-matching'").unwrap();
        assert_eq!((&*built_in.name, built_in.address), ("greedy-matching", None));
        for host in ["127.0.0.1", "127.9.9.9", "localhost", "[::1]"] {
            let text = format!("[scheduler]\naddress = 'http://{host}:7500'\ndeadline-ms = 50");
            let external = settings(&text).unwrap();
            assert_eq!((&*external.name, external.deadline_ms), ("fcfs", 50));
            assert_eq!(external.external().unwrap().unwrap().deadline, Duration::from_millis(50));
        }
    }

    #[test]
    fn wrong_settings_are_refused_in_a_sentence() {
        for (text, part) in [
            ("[scheduler]\naddress = '127.0.0.1:7500'", "is not http://HOST:PORT or https://HOST:PORT"),
            ("[scheduler]\naddress = 'ftp://127.0.0.1:7500'", "is not http://HOST:PORT"),
            ("[scheduler]\naddress = 'http://127.0.0.1'", "is not http://HOST:PORT"),
            ("[scheduler]\naddress = 'http://127.0.0.1:0'", "is not http://HOST:PORT"),
            ("[scheduler]\naddress = 'http://a b:7500'", "is not http://HOST:PORT"),
            ("[scheduler]\naddress = 'http://:7500'", "is not http://HOST:PORT"),
            (
                "[scheduler]\naddress = 'http://10.0.0.1:7500'",
                "without TLS a scheduler has to be on this machine",
            ),
            ("[scheduler]\naddress = 'https://10.0.0.1:7500'", "name the authority"),
            ("[scheduler]\naddress = 'https://10.0.0.1:7500'\nca = '/nowhere'", "'scheduler.ca' is wrong"),
            ("[scheduler]\naddress = 'http://127.0.0.1:7500'\nca = '/nowhere'", "'scheduler.ca' is wrong"),
            ("[scheduler]\naddress = 'http://127.0.0.1:7500'\ndeadline-ms = 0", "it must be 1 to 60000"),
            ("[scheduler]\nca = '/x'", "say its 'address'"),
            ("[scheduler]\nname = 'lottery'", "no scheduler 'lottery', only fcfs"),
            ("[scheduler]\nadress = 'http://127.0.0.1:7500'", "unknown field `adress`"),
            ("scheduler = 7", "a scheduler's name, or a section [scheduler]"),
        ] {
            let message = settings(text).unwrap_err();
            assert!(message.contains(part), "{text}: {message}");
        }
    }

    #[test]
    fn decisions_that_say_nothing_are_wrong() {
        let decision = |what| api::Decision { id: 7, what };
        let answer = |what| advice(api::Answer { decisions: vec![decision(what)], ask_again_ms: Some(1) });
        let why = |what| match answer(what).unwrap_err() {
            NoAdvice::Wrong(why) => why,
            NoAdvice::Unreached(why) => panic!("{why}"),
        };
        assert_eq!(
            why(None),
            "its decision about request 7 neither accepts it, nor has it wait, nor rejects it"
        );
        let accept = api::Accept { bytes: None, fabric: "A\u{1b}".into(), if_free: false };
        let why = why(Some(api::decision::What::Accept(accept)));
        assert!(why.starts_with("its decision about request 7 names 'A\\u{1b}'"), "{why}");
        let reject = api::Reject { reason: "x".repeat(10_000) };
        let Ok(Advice { rulings, ask_again }) = answer(Some(api::decision::What::Reject(reject))) else {
            panic!("a reason may have any length")
        };
        assert_eq!(ask_again, Some(Duration::from_millis(20)));
        assert!(matches!(&rulings[0].1, Ruling::Reject { reason } if reason.len() == WORDS_MAX));
    }
}
