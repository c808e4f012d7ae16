//! The hub itself, as it is asked here.

use crate::asked::Asked;
use crate::origin::{Answer, Proxies, Servers, answered, is_same_server, length_of, sent_on};
use crate::place::{FilePlace, is_commit};
use crate::trouble::{ERROR_CODE, ERROR_MESSAGE, Trouble};
use crate::xet::is_hash;
use axum::body::Bytes;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Uri, header};
use std::io::{self, Read};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

/// Questions on their way at a time. Each has a thread.
const ASKED_MAX: usize = 32;
/// The longest answer to a question, in bytes: a page of a listing has 1,000 files in some 400 kB.
const ANSWER_LEN_MAX: u64 = 32 << 20;
/// A server that says nothing for so long is asked again. The agent waits for 30 s.
const SILENCE: Duration = Duration::from_secs(20);
/// A question may be sent on so often.
const HOPS_MAX: usize = 5;
/// A file's download may break off so often without bringing another MiB.
const TRIES_MAX: u32 = 3;
/// The pause before another try.
const TRY_AGAIN: Duration = Duration::from_secs(1);
/// Bytes that are read at a time.
const PIECE_LEN: usize = 1 << 20;

const COMMIT: HeaderName = HeaderName::from_static("x-repo-commit");
const XET_HASH: HeaderName = HeaderName::from_static("x-xet-hash");
const LINKED_ETAG: HeaderName = HeaderName::from_static("x-linked-etag");
const LINKED_SIZE: HeaderName = HeaderName::from_static("x-linked-size");
/// Headers of the hub that are passed on where it gives nothing.
const OF_TROUBLE: [HeaderName; 8] = [
    COMMIT,
    ERROR_CODE,
    ERROR_MESSAGE,
    header::RETRY_AFTER,
    header::WWW_AUTHENTICATE,
    HeaderName::from_static("ratelimit"),
    HeaderName::from_static("ratelimit-policy"),
    HeaderName::from_static("x-request-id"),
];

/// Digest by which a file is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Digest {
    /// SHA-256 of the bytes: large files.
    Sha256,
    /// SHA-1 of the bytes as a blob of git.
    Git,
}

/// Digest, size and revision of a file, as the hub tells them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Meta {
    pub digest: Digest,
    /// The digest in hex: the file's ETag.
    pub hex: String,
    pub size: u64,
    pub commit: Option<String>,
    /// The hub's name of the file in Xet.
    pub xet: Option<String>,
}

impl Meta {
    /// The digest of a large file.
    pub(crate) fn sha256(&self) -> Option<&str> {
        (self.digest == Digest::Sha256).then_some(&*self.hex)
    }

    /// The key by which agents know the file.
    pub(crate) fn key(&self) -> String {
        match self.digest {
            Digest::Sha256 => format!("sha256:{}", self.hex),
            Digest::Git => format!("git:{}", self.hex),
        }
    }

    /// Headers of the file, for clients.
    pub(crate) fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        let mut set = |name, value: &str| {
            if let Ok(value) = HeaderValue::from_str(value) {
                headers.insert(name, value);
            }
        };
        set(header::ETAG, &format!("\"{}\"", self.hex));
        set(header::ACCEPT_RANGES, "bytes");
        set(header::CONTENT_TYPE, "application/octet-stream");
        if let Some(commit) = &self.commit {
            set(COMMIT, commit);
        }
        if self.digest == Digest::Sha256 {
            set(LINKED_ETAG, &format!("\"{}\"", self.hex));
            set(LINKED_SIZE, &self.size.to_string());
        }
        headers
    }
}

/// An answer of the hub to a question.
#[derive(Clone, Debug)]
pub(crate) struct Said {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Said {
    /// The same as an answer to one that has asked for something else.
    pub(crate) fn into_trouble(self) -> Trouble {
        refused_with(self.status, &self.headers)
    }
}

/// A hub.
pub(crate) struct Upstream {
    base: String,
    /// The hub for questions, which are short and many.
    asked: Arc<Servers>,
    places: Arc<Semaphore>,
}

impl Upstream {
    pub(crate) fn new(base: &str) -> Self {
        let asked = Servers::new(Proxies::of_environment()).silent_at_most(SILENCE).kept();
        let places = Arc::new(Semaphore::new(ASKED_MAX));
        Upstream { base: base.to_string(), asked: Arc::new(asked), places }
    }

    /// Its address.
    pub(crate) fn base(&self) -> &str {
        &self.base
    }

    /// The path of a list's next page.
    pub(crate) fn next_page(&self, headers: &HeaderMap) -> Option<String> {
        let link = headers.get(header::LINK)?.to_str().ok()?;
        let next = link.split(',').find(|link| link.contains("rel=\"next\""))?;
        let next = next[next.find('<')? + 1..].split('>').next()?;
        Some(next.strip_prefix(self.base()).unwrap_or(next).to_string()).filter(|next| next.starts_with('/'))
    }

    /// The way to it for questions.
    pub(crate) fn way(&self) -> &Servers {
        &self.asked
    }

    /// A request for a path of the hub's.
    pub(crate) fn request(
        &self,
        method: Method,
        path: &str,
        token: Option<&HeaderValue>,
    ) -> Result<Request<Vec<u8>>, Trouble> {
        let uri: Uri = format!("{}{path}", self.base)
            .parse()
            .map_err(|_| Trouble::new(StatusCode::BAD_REQUEST, "that path is no address at the hub"))?;
        let mut request = Request::new(Vec::new());
        (*request.method_mut(), *request.uri_mut()) = (method, uri);
        let headers = request.headers_mut();
        headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        if let Some(token) = token {
            let mut token = token.clone();
            token.set_sensitive(true);
            headers.insert(header::AUTHORIZATION, token);
        }
        Ok(request)
    }

    /// A file of the hub's, as the agent is asked for it.
    pub(crate) fn asked(
        &self,
        place: &FilePlace,
        path: &str,
        meta: &Meta,
        token: Option<&HeaderValue>,
    ) -> Result<Asked, Trouble> {
        Ok(Asked {
            shown: format!("{} {}", place.repository, place.path),
            name: path.rsplit('/').next().unwrap_or_default().to_string(),
            key: meta.key(),
            size: meta.size,
            request: self.request(Method::GET, path, token)?,
        })
    }

    /// Asks in a thread of its own.
    pub(crate) async fn in_thread<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Servers) -> Result<T, Trouble> + Send + 'static,
    ) -> Result<T, Trouble> {
        // The semaphore is never closed.
        let _place = Arc::clone(&self.places).acquire_owned().await;
        let servers = Arc::clone(&self.asked);
        let done = tokio::task::spawn_blocking(move || work(&servers)).await;
        done.map_err(|error| Trouble::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?
    }

    /// Asks a question, and gives what is answered, whatever it is.
    pub(crate) async fn ask(&self, request: Request<Vec<u8>>) -> Result<Said, Trouble> {
        self.in_thread(move |servers| said(servers, &request)).await
    }

    /// The same in this thread.
    pub(crate) fn ask_here(&self, request: &Request<Vec<u8>>) -> Result<Said, Trouble> {
        said(&self.asked, request)
    }

    /// Asks for the headers of a file, with the token of the client.
    pub(crate) async fn meta(&self, place: &FilePlace, token: Option<&HeaderValue>) -> Result<Meta, Trouble> {
        let request = self.request(Method::HEAD, &place.at(&place.revision), token)?;
        self.in_thread(move |servers| meta(servers, request)).await
    }

    /// The same in this thread.
    pub(crate) fn meta_here(&self, place: &FilePlace, token: Option<&HeaderValue>) -> Result<Meta, Trouble> {
        meta(&self.asked, self.request(Method::HEAD, &place.at(&place.revision), token)?)
    }
}

fn said(servers: &Servers, request: &Request<Vec<u8>>) -> Result<Said, Trouble> {
    let response = servers.ask(request).map_err(not_reached)?;
    let (status, headers) = (response.status(), response.headers().clone());
    let mut body = Vec::new();
    let mut reader = response.into_body().into_reader().take(ANSWER_LEN_MAX + 1);
    reader.read_to_end(&mut body).map_err(|error| not_reached(error.to_string()))?;
    if body.len() as u64 > ANSWER_LEN_MAX {
        let long = format!("the hub's answer is longer than {} MiB", ANSWER_LEN_MAX >> 20);
        return Err(Trouble::upstream(long));
    }
    Ok(Said { status, headers, body: body.into() })
}

/// Reads a file's bytes, in this thread: each piece is given to `take`, until that returns false.
pub(crate) fn read(
    request: &Request<Vec<u8>>,
    size: u64,
    take: impl FnMut(Vec<u8>) -> bool,
) -> Result<(), Trouble> {
    let proxies = Proxies::of_environment();
    let servers = || Servers::new(proxies.clone()).silent_at_most(SILENCE);
    Download { request, size, at: 0, take }.run(&servers)
}

pub(crate) fn not_reached(why: String) -> Trouble {
    Trouble::upstream(format!("the server behind this one cannot be asked: {why}"))
}

/// A status of the hub's that is none of success.
pub(crate) fn refused(response: &Answer) -> Trouble {
    refused_with(response.status(), response.headers())
}

fn refused_with(status: StatusCode, headers: &HeaderMap) -> Trouble {
    let header = |name: &HeaderName| headers.get(name).cloned();
    let message = header(&ERROR_MESSAGE).and_then(|text| text.to_str().map(str::to_string).ok());
    let mut trouble = Trouble::new(status, message.unwrap_or_else(|| answered(status)));
    for name in OF_TROUBLE {
        if let Some(value) = header(&name) {
            trouble.headers.push((name, value));
        }
    }
    trouble
}

/// Asks for a file's headers. A file may be elsewhere, which is none of ours to tell; the hub says what it is
/// before it sends on.
fn meta(servers: &Servers, mut request: Request<Vec<u8>>) -> Result<Meta, Trouble> {
    let (mut commit, mut xet) = (None, None);
    for _ in 0..HOPS_MAX {
        let response = servers.ask(&request).map_err(not_reached)?;
        let headers = response.headers();
        let text = |name: &HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
        commit = text(&COMMIT).filter(|text| is_commit(text)).map(str::to_string).or(commit);
        xet = text(&XET_HASH).filter(|text| is_hash(text)).map(str::to_string).or(xet);
        let (linked, linked_size) = (text(&LINKED_ETAG), text(&LINKED_SIZE));
        let is_known = linked.is_some() && linked_size.is_some();
        if response.status().is_redirection() && !is_known {
            let from = request.uri().clone();
            let to = sent_on(&from, &response).map_err(Trouble::upstream)?;
            if !is_same_server(&from, &to) {
                request.headers_mut().remove(header::AUTHORIZATION);
            }
            *request.uri_mut() = to;
            continue;
        }
        if !response.status().is_success() && !is_known || response.status().as_u16() >= 400 {
            return Err(refused(&response));
        }
        let size = linked_size.and_then(|size| size.parse().ok()).or_else(|| length_of(&response));
        let etag = linked.or_else(|| text(&header::ETAG)).unwrap_or_default();
        let hex = etag.trim_start_matches("W/").trim_matches('"').to_ascii_lowercase();
        let digest = match hex.len() {
            _ if !hex.bytes().all(|byte| byte.is_ascii_hexdigit()) => None,
            64 => Some(Digest::Sha256),
            40 => Some(Digest::Git),
            _ => None,
        };
        let (Some(digest), Some(size)) = (digest, size) else {
            return Err(Trouble::upstream("the hub names neither digest nor length of that file"));
        };
        return Ok(Meta { digest, hex, size, commit, xet });
    }
    Err(Trouble::upstream(format!("the hub has sent on {HOPS_MAX} times")))
}

/// A file that is being read.
struct Download<'a, T> {
    request: &'a Request<Vec<u8>>,
    size: u64,
    at: u64,
    take: T,
}

/// Reason why a try has ended.
enum Broken {
    /// Another one may bring more.
    Off(String),
    /// None will.
    For(Trouble),
}

impl<T: FnMut(Vec<u8>) -> bool> Download<'_, T> {
    /// Reads to the end; what breaks off goes on from there.
    fn run(&mut self, servers: &dyn Fn() -> Servers) -> Result<(), Trouble> {
        let mut tries = 0;
        loop {
            let began = self.at;
            let why = match self.once(&servers()) {
                Ok(()) => return Ok(()),
                Err(Broken::For(trouble)) => return Err(trouble),
                Err(Broken::Off(why)) => why,
            };
            tries = if self.at - began >= PIECE_LEN as u64 { 1 } else { tries + 1 };
            if tries > TRIES_MAX {
                return Err(Trouble::upstream(format!("after {} of {} bytes {why}", self.at, self.size)));
            }
            tracing::info!(bytes = self.at, size = self.size, why, "a download has broken off, and goes on");
            std::thread::sleep(TRY_AGAIN);
        }
    }

    fn once(&mut self, servers: &Servers) -> Result<(), Broken> {
        let mut request = self.request.clone();
        if self.at > 0 {
            let range = HeaderValue::from_str(&format!("bytes={}-", self.at));
            request.headers_mut().extend(range.ok().map(|range| (header::RANGE, range)));
        }
        let response = servers
            .ask_on(request)
            .map_err(|why| Broken::Off(format!("the server behind this one cannot be asked: {why}")))?;
        let status = response.status();
        if status.is_server_error() {
            return Err(Broken::Off(answered(status)));
        }
        if !status.is_success() {
            return Err(Broken::For(refused(&response)));
        }
        let begins = if status == StatusCode::PARTIAL_CONTENT { self.at } else { 0 };
        let length = length_of(&response);
        if length.is_some_and(|length| begins + length != self.size) {
            let why = format!(
                "the server sends {} bytes of the {} that it has named",
                length.unwrap_or(0),
                self.size
            );
            return Err(Broken::For(Trouble::upstream(why)));
        }
        self.take_all(response.into_body().into_reader(), begins)
    }

    /// Takes what comes, from `begins` on; what is here already is read once more, and left out.
    fn take_all(&mut self, mut reader: impl Read, begins: u64) -> Result<(), Broken> {
        let broken = |error: io::Error| Broken::Off(error.to_string());
        let known = self.at - begins;
        let skipped = io::copy(&mut reader.by_ref().take(known), &mut io::sink()).map_err(broken)?;
        if skipped < known {
            return Err(Broken::Off("the bytes end".into()));
        }
        loop {
            let mut piece = Vec::with_capacity(PIECE_LEN);
            let read = reader.by_ref().take(PIECE_LEN as u64).read_to_end(&mut piece);
            // What has come before the fault counts.
            let is_over = piece.is_empty();
            self.at += piece.len() as u64;
            if !is_over && !(self.take)(piece) {
                return Ok(());
            }
            read.map_err(broken)?;
            if is_over && self.at < self.size {
                return Err(Broken::Off("the bytes end".into()));
            }
            if is_over {
                return Ok(());
            }
        }
    }
}
