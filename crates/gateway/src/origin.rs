//! Bytes from where an object is from at first: a server of http or https, perhaps by way of a proxy, of S3,
//! the Hugging Face Hub, a registry, or a file.

mod address;
mod found;
mod proxy;
mod reach;
pub(crate) mod repository;
pub(crate) mod resumed;
mod s3;

pub use address::Headers;
pub use found::{Found, Origin, Part, SCHEMES};
pub use repository::{hub_home, hub_token};

use polycast_api::error::plain;
use polycast_net::object::{FileSource, ObjectSource};
pub(crate) use proxy::Proxies;
use proxy::ViaProxy;
use reach::Reach;
use std::io::{self, Read};
use std::sync::OnceLock;
use std::time::Duration;
use ureq::config::Config;
use ureq::http::uri::Scheme;
use ureq::http::{HeaderMap, HeaderName, Request, Response, StatusCode, Uri, header};
use ureq::unversioned::transport::{Connector, DefaultConnector, TcpConnector};

/// Time that a server may take to accept a connection, and to answer.
const SERVER_WITHIN: Duration = Duration::from_secs(30);
/// Connections that are kept, and for how long: servers end theirs after some 60 s.
const KEPT_MAX: usize = 16;
const KEPT_FOR: Duration = Duration::from_secs(15);
/// A server that says nothing for so long while it sends has failed. The agent waits for 30 s.
const SILENCE: Duration = Duration::from_secs(20);
/// A server may send on so often.
const HOPS_MAX: usize = 10;

/// An origin's bytes.
pub type Reader = Box<dyn Read + Send>;

/// A file from its beginning to its end, which is all of it as it was at one moment.
struct Whole {
    file: FileSource,
    at: u64,
}

impl Read for Whole {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.file.len() - self.at).unwrap_or(usize::MAX);
        let len = left.min(buffer.len());
        self.file.read_exact_at(&mut buffer[..len], self.at)?;
        self.at += len as u64;
        // Before the last bytes are told to be all.
        if len > 0 && self.at == self.file.len() {
            self.file.check()?;
        }
        Ok(len)
    }
}

/// Describes an answer that is none, as the end of a sentence.
pub(crate) fn answered(status: StatusCode) -> String {
    let words = status.canonical_reason().unwrap_or("no known status");
    format!("the server answers {}, {words}", status.as_u16())
}

/// The length of what comes, where it is known.
pub(crate) fn length_of(response: &Answer) -> Option<u64> {
    let header = |name| response.headers().get(name).and_then(|value| value.to_str().ok());
    let length = header(header::CONTENT_LENGTH).and_then(|length| length.parse().ok());
    // What was packed for the way comes out longer.
    let packed = response.headers().contains_key(header::CONTENT_ENCODING);
    length.filter(|_| !packed)
}

/// An answer of a server, whatever its status.
pub(crate) type Answer = Response<ureq::Body>;

/// Servers, and the way to them.
pub(crate) struct Servers {
    proxies: Proxies,
    reach: Reach,
    silence: Option<Duration>,
    /// Connections that are kept for more requests.
    kept: Option<OnceLock<ureq::Agent>>,
}

impl Servers {
    pub(crate) fn new(proxies: Proxies) -> Self {
        Servers { proxies, reach: Reach::default(), silence: None, kept: None }
    }

    /// A server that says nothing for so long has failed.
    pub(crate) fn silent_at_most(mut self, silence: Duration) -> Self {
        self.silence = Some(silence);
        self
    }

    /// Keeps connections for more requests, which all have to begin at the same server.
    pub(crate) fn kept(mut self) -> Self {
        self.kept = Some(OnceLock::new());
        self
    }

    /// Asks a server, and those that it sends on to. A token is for the first one alone.
    pub(crate) fn ask_on(&self, mut request: Request<Vec<u8>>) -> Result<Answer, String> {
        for _ in 0..HOPS_MAX {
            let response = self.ask(&request)?;
            if !response.status().is_redirection() {
                return Ok(response);
            }
            let from = request.uri().clone();
            let to = sent_on(&from, &response)?;
            if !is_same_server(&from, &to) {
                take_out_secrets(request.headers_mut());
            }
            *request.uri_mut() = to;
        }
        Err(format!("the server has sent on {HOPS_MAX} times"))
    }

    /// Asks one server.
    pub(crate) fn ask(&self, request: &Request<Vec<u8>>) -> Result<Answer, String> {
        let address = request.uri();
        let config = ureq::Agent::config_builder()
            .timeout_connect(Some(SERVER_WITHIN))
            .timeout_recv_response(Some(SERVER_WITHIN))
            .timeout_per_read(self.silence)
            .timeout_per_write(self.silence)
            .http_status_as_error(false)
            .max_redirects(0)
            // A connection is for one request: of the next one the server may be another.
            .max_idle_connections(0);
        let proxy = self.proxies.towards(address)?;
        if proxy.is_some() {
            self.reach.check_named(address.host().unwrap_or_default())?;
        }
        match proxy {
            // What goes over it unsealed is asked of the proxy itself, which is what all of them allow.
            Some(proxy) if address.scheme() == Some(&Scheme::HTTP) && ViaProxy::can(&proxy) => {
                let via = ViaProxy::new(proxy);
                let authorization = via.authorization();
                let connector = ().chain(TcpConnector::default()).chain(via.clone());
                let agent = ureq::Agent::with_parts(config.proxy(None).build(), connector, via);
                let mut request = request.clone();
                if let Some(authorization) = authorization {
                    let value = authorization.try_into().map_err(|_| "the proxy's password is odd")?;
                    request.headers_mut().insert(header::PROXY_AUTHORIZATION, value);
                }
                run(&agent, request)
            }
            Some(proxy) => {
                run(&ureq::Agent::new_with_config(config.proxy(Some(proxy)).build()), request.clone())
            }
            None => {
                let fresh = |config: Config| {
                    ureq::Agent::with_parts(config, DefaultConnector::default(), self.reach.clone())
                };
                let Some(kept) = &self.kept else {
                    return run(&fresh(config.proxy(None).build()), request.clone());
                };
                let config = || {
                    let config = config.proxy(None).max_idle_connections(KEPT_MAX);
                    config.max_idle_connections_per_host(KEPT_MAX).max_idle_age(KEPT_FOR).build()
                };
                let agent = kept.get_or_init(|| fresh(config()));
                // The server may have ended a connection that was kept, just now.
                let again = |_| run(agent, request.clone());
                let is_harmless = request.method().is_safe();
                run(agent, request.clone()).or_else(|why| if is_harmless { again(why) } else { Err(why) })
            }
        }
    }
}

fn run(agent: &ureq::Agent, request: Request<Vec<u8>>) -> Result<Answer, String> {
    let response = match request.body().is_empty() {
        true => agent.run(request.map(drop)),
        false => agent.run(request),
    };
    response.map_err(|error| said_by(&error))
}

/// Returns the address that an answer sends on to, unless that is less secure than its own.
pub(crate) fn sent_on(from: &Uri, response: &Answer) -> Result<Uri, String> {
    let to = response.headers().get(header::LOCATION).and_then(|to| to.to_str().ok());
    let to = to.ok_or_else(|| {
        format!("the server answers {}, and does not say where it is", response.status().as_u16())
    })?;
    next(from, to)
}

/// Returns true if both addresses are of one server, which is told the same.
pub(crate) fn is_same_server(one: &Uri, other: &Uri) -> bool {
    one.scheme() == other.scheme() && one.authority() == other.authority()
}

/// Takes out what is for the server alone that was asked first.
fn take_out_secrets(headers: &mut HeaderMap) {
    let secret = headers.iter().filter(|(_, value)| value.is_sensitive()).map(|(name, _)| name.clone());
    let secret: Vec<HeaderName> = secret.chain([header::AUTHORIZATION]).collect();
    for name in secret {
        headers.remove(name);
    }
}

/// Returns the address that a server redirects to, unless that is less secure than its own.
fn next(from: &Uri, to: &str) -> Result<Uri, String> {
    let next = join(from, to).ok_or("the server sends on to what is no address")?;
    if from.scheme() == Some(&Scheme::HTTPS) && next.scheme() != Some(&Scheme::HTTPS) {
        return Err("the server sends on from https to http, which is not sealed".into());
    }
    Ok(next)
}

/// Returns the address that a server redirects to.
fn join(from: &Uri, to: &str) -> Option<Uri> {
    let (scheme, authority) = (from.scheme_str()?, from.authority()?);
    let whole = match to {
        to if to.starts_with("http://") || to.starts_with("https://") => to.to_string(),
        to if to.starts_with("//") => format!("{scheme}:{to}"),
        to if to.starts_with('/') => format!("{scheme}://{authority}{to}"),
        to if to.starts_with('?') => format!("{scheme}://{authority}{}{to}", from.path()),
        to if to.contains("://") || to.is_empty() => return None,
        to => {
            let folder = from.path().rfind('/').map_or("/", |end| &from.path()[..=end]);
            format!("{scheme}://{authority}{folder}{to}")
        }
    };
    // A fragment is the reader's own.
    whole.split('#').next()?.parse().ok()
}

/// Describes the error that came in place of an answer, as the end of a sentence.
fn said_by(error: &ureq::Error) -> String {
    match error {
        ureq::Error::Io(error) => without_tls(plain(error)),
        other => without_tls(other.to_string()),
    }
}

/// In place of rustls's words about an answer that is not sealed.
fn without_tls(said: String) -> String {
    match said.contains("InvalidContentType") {
        true => "the server speaks http there, and not https".to_string(),
        false => said,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polycast_testing::HANG;
    use std::io::{BufRead, BufReader, Write};
    use std::net::{SocketAddr, TcpListener};
    use std::sync::{Arc, mpsc};

    /// A server that answers each request with the next of these, and says what it was asked.
    fn server(answers: Vec<String>) -> (SocketAddr, mpsc::Receiver<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, asked) = mpsc::channel();
        std::thread::spawn(move || {
            for answer in answers {
                let (stream, _) = listener.accept().unwrap();
                stream.set_read_timeout(Some(HANG)).unwrap();
                let lines = BufReader::new(&stream).lines().map_while(Result::ok);
                sender.send(lines.take_while(|line| !line.is_empty()).collect()).unwrap();
                (&stream).write_all(answer.as_bytes()).unwrap();
            }
        });
        (address, asked)
    }

    fn answer(body: &str) -> String {
        format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len())
    }

    fn sent_on(to: &str) -> String {
        format!("HTTP/1.1 302 Found\r\nlocation: {to}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
    }

    fn read(origin: &str, proxies: &[(&str, &str)]) -> Result<String, String> {
        let get =
            |name: &str| proxies.iter().find(|(known, _)| *known == name).map(|(_, value)| value.to_string());
        let address = address::Address { text: origin.into(), headers: Arc::default(), etag: None };
        let (_, mut reader) = address.open_by(Proxies::of(get))?;
        let mut text = String::new();
        reader.read_to_string(&mut text).map_err(|error| error.to_string())?;
        Ok(text)
    }

    #[test]
    fn what_is_not_sealed_is_asked_of_the_proxy_itself() {
        let (proxy, asked) = server(vec![answer("by proxy")]);
        let proxy = format!("http://me:pass%20word@{proxy}");
        let got = read("http://origin.invalid:81/a/b?sig=1", &[("http_proxy", &proxy)]);
        assert_eq!(got.as_deref(), Ok("by proxy"));
        let asked = asked.recv_timeout(HANG).unwrap();
        assert_eq!(asked[0], "GET http://origin.invalid:81/a/b?sig=1 HTTP/1.1");
        let has = |wanted: &str| asked.iter().any(|line| line.eq_ignore_ascii_case(wanted));
        assert!(has("host: origin.invalid:81"), "{asked:?}");
        // me:pass word
        assert!(has("proxy-authorization: Basic bWU6cGFzcyB3b3Jk"), "{asked:?}");
    }

    #[test]
    fn what_is_sealed_goes_through_the_proxy() {
        let (proxy, asked) = server(vec!["HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n".into()]);
        let proxy = format!("http://{proxy}");
        let said = read(
            "https://origin.invalid/a",
            &[("https_proxy", &proxy), ("http_proxy", "http://127.0.0.1:1")],
        );
        assert!(said.is_err());
        assert_eq!(asked.recv_timeout(HANG).unwrap()[0], "CONNECT origin.invalid:443 HTTP/1.1");
    }

    #[test]
    fn a_server_without_tls_is_named_as_such() {
        let (origin, _asked) = server(vec!["HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n".into()]);
        let said = read(&format!("https://{origin}/a"), &[]).unwrap_err();
        assert!(said.ends_with("the server speaks http there, and not https"), "{said}");
    }

    #[test]
    fn hosts_that_need_no_proxy_are_asked_themselves() {
        let (origin, asked) = server(vec![answer("direct")]);
        let none = [("http_proxy", "http://127.0.0.1:1"), ("no_proxy", "example.org, 127.0.0.1")];
        assert_eq!(read(&format!("http://{origin}/a"), &none).as_deref(), Ok("direct"));
        assert_eq!(asked.recv_timeout(HANG).unwrap()[0], "GET /a HTTP/1.1");
    }

    #[test]
    fn each_server_that_one_sends_on_to_is_asked_in_its_own_way() {
        let (direct, asked_directly) = server(vec![answer("at last")]);
        let (proxy, asked) =
            server(vec![sent_on("/b?x=1"), sent_on("c"), sent_on(&format!("http://{direct}/d"))]);
        let proxies = [("http_proxy", &*format!("http://{proxy}")), ("no_proxy", "127.0.0.1")];
        // What is on this machine is sent on to by such alone.
        assert_eq!(read("http://127.0.0.2/dir/a", &proxies).as_deref(), Ok("at last"));
        let lines: Vec<String> = asked.try_iter().map(|request| request[0].clone()).collect();
        let wanted = ["dir/a", "b?x=1", "c"].map(|path| format!("GET http://127.0.0.2/{path} HTTP/1.1"));
        assert_eq!(lines, wanted);
        assert_eq!(asked_directly.recv_timeout(HANG).unwrap()[0], "GET /d HTTP/1.1");
        let (round, _asked) = server(vec![sent_on("/"); HOPS_MAX]);
        assert_eq!(read(&format!("http://{round}/"), &[]), Err("the server has sent on 10 times".into()));
    }

    /// A public server could have this machine ask what only programs here can reach.
    #[test]
    fn no_server_sends_on_to_what_is_nearer_or_not_sealed() {
        let metadata = "http://169.254.169.254/latest/meta-data/";
        let (origin, _asked) = server(vec![sent_on(metadata)]);
        let said = read(&format!("http://{origin}/a"), &[]).unwrap_err();
        assert!(said.contains("sends on to 169.254.169.254, a link-local address"), "{said}");
        let (inside, _asked) = server(vec![answer("secret")]);
        let (proxy, _asked) = server(vec![sent_on(&format!("http://{inside}/"))]);
        let proxies = [("http_proxy", &*format!("http://{proxy}")), ("no_proxy", "127.0.0.1")];
        let said = read("http://origin.invalid/a", &proxies).unwrap_err();
        assert!(said.contains("sends on to 127.0.0.1, a loopback address"), "{said}");
        let sealed: Uri = "https://origin.invalid/a".parse().unwrap();
        assert!(next(&sealed, "http://origin.invalid/a").unwrap_err().contains("from https to http"));
        assert_eq!(next(&sealed, "/b").unwrap(), "https://origin.invalid/b");
    }

    #[test]
    fn a_file_that_changes_while_it_is_read_is_no_origin() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, vec![1; 100_000]).unwrap();
        let open = || {
            let origin = Origin::parse(&format!("file://{}", path.display())).unwrap();
            let Ok(Found::One(file)) = origin.find() else { panic!("it is one file") };
            file.open().unwrap()
        };
        let (length, mut reader) = open();
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).unwrap();
        assert_eq!((length, bytes.len()), (Some(100_000), 100_000));
        let (_, mut reader) = open();
        reader.read_exact(&mut [0; 1_000]).unwrap();
        std::fs::write(&path, vec![2; 100_000]).unwrap();
        let said = reader.read_to_end(&mut bytes).unwrap_err().to_string();
        assert!(said.contains("was changed while it was being sent"), "{said}");
    }
}
