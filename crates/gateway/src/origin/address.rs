//! Addresses of files: of http and https, with headers of the caller's, of S3, and of files on this machine.

use super::resumed;
use super::s3::{self, Account};
use super::{Proxies, Reader, SILENCE, Servers, Whole, answered};
use polycast_net::object::{FileSource, ObjectSource};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;
use ureq::http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Uri, header};

/// Headers of a caller's at most.
const HEADERS_MAX: usize = 32;
/// Headers by which a request is about something else than the whole file.
const OWN: [HeaderName; 9] = [
    header::HOST,
    header::RANGE,
    header::IF_RANGE,
    header::IF_MATCH,
    header::CONNECTION,
    header::CONTENT_LENGTH,
    header::TRANSFER_ENCODING,
    header::ACCEPT_ENCODING,
    header::PROXY_AUTHORIZATION,
];

/// Headers for a server, which no other server gets.
#[derive(Clone, Debug, Default)]
pub struct Headers {
    map: HeaderMap,
}

impl Headers {
    /// Adds a line `NAME: VALUE`.
    ///
    /// # Errors
    /// It is no header, or one that has to be the reader's own, in a sentence.
    pub fn add(&mut self, line: &str) -> Result<(), String> {
        let (name, value) = line.split_once(':').ok_or("a header has a colon: write 'NAME: VALUE'")?;
        // The value may be a secret.
        let name: HeaderName = name.trim().parse().map_err(|_| "the name of the header is none")?;
        let odd = || format!("the value of the header {name} has characters that no header has");
        let mut value = HeaderValue::from_str(value.trim()).map_err(|_| odd())?;
        if OWN.contains(&name) {
            return Err(format!("the header {name} is set by polycast itself: leave it out"));
        }
        if self.map.len() >= HEADERS_MAX {
            return Err(format!("there are more than {HEADERS_MAX} headers"));
        }
        value.set_sensitive(true);
        self.map.append(name, value);
        Ok(())
    }

    /// Returns true if there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }
}

/// An address of one file.
#[derive(Clone, Debug)]
pub(super) struct Address {
    pub text: String,
    pub headers: Arc<Headers>,
    /// The state in which the file has to be, as its server names it.
    pub etag: Option<String>,
}

impl Address {
    /// Begins to read the file; gives its length where that is known.
    pub(super) fn open(&self) -> Result<(Option<u64>, Reader), String> {
        match self.text.split_once("://") {
            Some(("file", path)) => {
                let file = FileSource::open_as_it_is(Path::new(path)).map_err(|error| error.to_string())?;
                Ok((Some(file.len()), Box::new(Whole { file, at: 0 })))
            }
            Some(("s3", place)) => {
                Account::of_environment()?.open(&s3::Place::parse(place)?, self.etag.clone())
            }
            _ => self.open_by(Proxies::of_environment()),
        }
    }

    /// The same of a server of http or https, over these proxies.
    pub(super) fn open_by(&self, proxies: Proxies) -> Result<(Option<u64>, Reader), String> {
        let (request, etag) = (self.request(Method::GET)?, self.etag.clone());
        let ask = move |at: u64| {
            let mut request = request.clone();
            if at > 0 {
                let range = HeaderValue::from_str(&format!("bytes={at}-"));
                request.headers_mut().insert(header::RANGE, range.map_err(|error| error.to_string())?);
            }
            let answer = Servers::new(proxies.clone()).silent_at_most(SILENCE).ask_on(request)?;
            let status = answer.status();
            if status.is_client_error() || status.is_server_error() {
                return Err(answered(status));
            }
            let now = answer.headers().get(header::ETAG).and_then(|now| now.to_str().ok());
            if etag.as_deref().zip(now).is_some_and(|(then, now)| then != now) {
                return Err("it has changed since it was asked for".to_string());
            }
            Ok(answer)
        };
        resumed::open(ask, false)
    }

    fn request(&self, method: Method) -> Result<Request<Vec<u8>>, String> {
        let uri: Uri = self.text.parse().map_err(|_| "it is no address".to_string())?;
        let request = Request::builder().method(method).uri(uri).body(Vec::new());
        let mut request = request.map_err(|error| error.to_string())?;
        request.headers_mut().extend(self.headers.map.clone());
        Ok(request)
    }

    /// The state that the file has now, in a word: another one where it cannot be told that it is the same.
    pub(super) fn state_now(&mut self) -> Result<String, String> {
        match self.text.split_once("://") {
            Some(("file", path)) => {
                let file = std::fs::metadata(path);
                let file = file
                    .map_err(|error| format!("cannot read {path}: {}", polycast_api::error::plain(&error)))?;
                let (seconds, nanos) = (file.mtime(), file.mtime_nsec());
                Ok(format!("{seconds}.{nanos:09}-{}-{}", file.len(), file.ino()))
            }
            Some(("s3", place)) => {
                let etag = Account::of_environment()?.etag(&s3::Place::parse(place)?)?;
                self.etag = Some(etag.clone());
                Ok(etag)
            }
            _ => {
                self.etag = self.said_now();
                Ok(self.etag.clone().map_or_else(now, |etag| etag.trim_matches('"').to_string()))
            }
        }
    }

    /// The strong ETag, if the server says one when it is asked for the headers alone.
    fn said_now(&self) -> Option<String> {
        let servers = Servers::new(Proxies::of_environment()).silent_at_most(SILENCE);
        let answer = servers.ask_on(self.request(Method::HEAD).ok()?).ok()?;
        let etag = answer.headers().get(header::ETAG)?.to_str().ok()?;
        (answer.status() == StatusCode::OK && etag.starts_with('"')).then(|| etag.to_string())
    }
}

/// A word that is said once.
fn now() -> String {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    format!("{}-{}", since.as_nanos(), std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_lines_and_none_is_the_readers_own() {
        let mut headers = Headers::default();
        headers.add("Authorization: Bearer secret").unwrap();
        headers.add("X-A:b").unwrap();
        assert!(!format!("{headers:?}").contains("secret"));
        for (line, says) in [
            ("x", "has a colon"),
            ("a b: c", "the name of the header is none"),
            ("x-a: b\nc", "characters"),
            ("Range: bytes=1-", "is set by polycast itself"),
            ("HOST: a", "is set by polycast itself"),
        ] {
            let why = headers.add(line).unwrap_err();
            assert!(why.contains(says), "{line}: {why}");
        }
    }
}
