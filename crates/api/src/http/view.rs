//! The view: a page for people in a browser, and the state of the daemon that it shows, as server-sent
//! events.
//!
//! Read only, like the rest. The page itself holds nothing of the daemon; the events are JSON, and the page
//! puts what is in them on the screen as text. Users of this machine may look; from elsewhere it takes a
//! token, in `?token=` or in the cookie that the page then sets. There are few places for those that listen,
//! and however many there are, the daemon is looked at some times a second.

use super::token::Token;
use super::{Page, is_own_name};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{Html, IntoResponse, Response};
use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;

/// Listeners at a time: a quarter of the connections, so that they keep out no scrape.
const LISTENERS_MAX: usize = super::CONNECTIONS_MAX / 4;
/// A listener is told again after so long, where something has changed: people see no more.
const AGAIN: Duration = Duration::from_millis(500);
/// Bytes a second that one listener is told: what is longer comes less often. At this rate 1,000 nodes,
/// of 260 bytes each, come every 1.3 s.
const BYTES_PER_S_MAX: usize = 200 << 10;
/// One who listens hears something so often, if only a comment: the other end sees that we are there.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// A listener's stream ends then, and the browser asks for the next: before its connection would be cut off.
const STREAM_MAX: Duration = Duration::from_secs(50);
/// Browsers ask again after so long.
const RETRY: Duration = Duration::from_millis(500);
/// The place in the page where the nonce of one answer goes: only scripts and styles with it count.
const NONCE: &str = "NONCE";
const PAGE: &str = include_str!("view.html");

/// Conditions for those who want to see the view.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// The word that is asked for; without one only those on this machine see it.
    pub token: Option<Token>,
    /// Names by which this machine may be asked, besides its addresses.
    pub names: Vec<String>,
}

/// Conditions of one listener.
#[derive(Debug)]
pub(super) struct Door {
    access: Access,
    /// Only this machine reaches it.
    is_local: bool,
    listeners: Arc<Semaphore>,
    told: Mutex<Option<(Instant, Arc<str>)>>,
}

impl Door {
    pub(super) fn new(access: Access, address: Option<SocketAddr>) -> Self {
        let is_local = address.is_some_and(|address| address.ip().is_loopback());
        Door { access, is_local, listeners: Arc::new(Semaphore::new(LISTENERS_MAX)), told: Mutex::default() }
    }

    pub(super) fn is_local(&self) -> bool {
        self.is_local
    }

    /// Turns away those who may not see the view, with a sentence.
    fn check(&self, request: &Request) -> Result<(), &'static str> {
        let host = header_of(request.headers(), header::HOST).unwrap_or_default();
        let is_called = |name: &String| name_of(host).eq_ignore_ascii_case(name);
        if !is_own_name(host) && !self.access.names.iter().any(is_called) {
            return Err("this page is asked for by the address or the name of this machine");
        }
        let Some(token) = &self.access.token else {
            let why =
                "this page is for this machine alone: for others it takes view-token-file in the settings";
            return if self.is_local { Ok(()) } else { Err(why) };
        };
        let shown = [token_in_query(request), token_in_cookie(request.headers(), host)];
        if shown.into_iter().flatten().any(|shown| token.is(shown)) {
            return Ok(());
        }
        Err("this page takes its token, /view?token=.., from the file that view-token-file names")
    }
}

fn refused(why: &str) -> Response {
    (StatusCode::FORBIDDEN, format!("{why}\n")).into_response()
}

fn header_of(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// The name in a `Host` header, without its port.
fn name_of(host: &str) -> &str {
    host.rsplit_once(':').map_or(host, |(name, _)| name)
}

fn token_in_query(request: &Request) -> Option<&str> {
    request.uri().query()?.split('&').find_map(|part| part.strip_prefix("token="))
}

/// The cookie's name has the port as the browser sees it: cookies of all ports of a machine are in one jar.
fn cookie_of(host: &str) -> String {
    let port = host.rsplit_once(':').map_or("", |(_, port)| port);
    let port = if port.bytes().all(|byte| byte.is_ascii_digit()) { port } else { "" };
    format!("polycast-view-{port}")
}

fn token_in_cookie<'a>(headers: &'a HeaderMap, host: &str) -> Option<&'a str> {
    let name = cookie_of(host);
    let cookies = headers.get_all(header::COOKIE).into_iter().filter_map(|value| value.to_str().ok());
    let mut pairs = cookies.flat_map(|cookies| cookies.split(';')).map(str::trim);
    pairs.find_map(|pair| pair.strip_prefix(name.as_str())?.strip_prefix('='))
}

/// Lets those through who may see the view, and keeps what they see out of caches and other sites' frames.
pub(super) async fn guard(State(page): State<Arc<Page>>, request: Request, next: Next) -> Response {
    let mut response = match page.door.check(&request) {
        Ok(()) => next.run(request).await,
        Err(why) => refused(why),
    };
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CACHE_CONTROL, "no-store"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        // Every connection is for one answer: that of a listener is as young as its stream.
        (header::CONNECTION, "close"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

/// The page. A token in the address becomes a cookie: it stays in no history.
pub(super) async fn show(State(page): State<Arc<Page>>, request: Request) -> Response {
    if let (Some(token), Some(_)) = (&page.door.access.token, token_in_query(&request)) {
        let host = header_of(request.headers(), header::HOST).unwrap_or_default();
        let cookie = format!("{}={}; Path=/; HttpOnly; SameSite=Lax", cookie_of(host), token.text());
        return (
            [(header::LOCATION, "/view".to_string()), (header::SET_COOKIE, cookie)],
            StatusCode::SEE_OTHER,
        )
            .into_response();
    }
    let Ok(nonce) = nonce() else { return StatusCode::SERVICE_UNAVAILABLE.into_response() };
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; \
         img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
         require-trusted-types-for 'script'; trusted-types 'none'"
    );
    ([(header::CONTENT_SECURITY_POLICY, policy)], Html(PAGE.replace(NONCE, &nonce))).into_response()
}

fn nonce() -> Result<String, rustix::io::Errno> {
    let mut bytes = [0; 16];
    let mut filled = 0;
    while filled < bytes.len() {
        filled += rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a String does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    }))
}

/// The daemon's state, now and whenever it changes.
pub(super) async fn events(State(page): State<Arc<Page>>, request: Request) -> Response {
    if !is_of_this_page(request.headers()) {
        return refused("these events are for the page of this daemon alone");
    }
    let Ok(place) = Arc::clone(&page.door.listeners).try_acquire_owned() else {
        let why = format!("{LISTENERS_MAX} watch already, which is the most: close one of their pages\n");
        return (StatusCode::SERVICE_UNAVAILABLE, why).into_response();
    };
    let (sender, states) = mpsc::channel(1);
    tokio::spawn(tell(page, sender, place));
    let told = ReceiverStream::new(states)
        .map(|state: Arc<str>| Ok::<_, axum::Error>(Event::default().retry(RETRY).data(&*state)));
    Sse::new(told).keep_alive(KeepAlive::new().interval(HEARTBEAT).text("alive")).into_response()
}

/// Returns false where a browser says that another site asks: such a site would get nothing to read, but it
/// would hold a place.
fn is_of_this_page(headers: &HeaderMap) -> bool {
    let site = header_of(headers, HeaderName::from_static("sec-fetch-site"));
    let host = header_of(headers, header::HOST).unwrap_or_default();
    let origin = header_of(headers, header::ORIGIN);
    site.is_none_or(|site| matches!(site, "same-origin" | "none"))
        && origin.is_none_or(|origin| origin.strip_prefix("http://") == Some(host))
}

async fn tell(page: Arc<Page>, listener: mpsc::Sender<Arc<str>>, _place: OwnedSemaphorePermit) {
    let until = Instant::now() + STREAM_MAX;
    let mut last: Option<Arc<str>> = None;
    while Instant::now() < until {
        let looked = Arc::clone(&page);
        // What the daemon says may take locks and look at files.
        let Ok(state) = tokio::task::spawn_blocking(move || looked.view()).await else { return };
        let pause = AGAIN.max(Duration::from_secs_f64(state.len() as f64 / BYTES_PER_S_MAX as f64));
        if last.as_ref() != Some(&state) {
            last = Some(Arc::clone(&state));
            let sent = listener.send_timeout(state, STREAM_MAX);
            if sent.await.is_err() {
                return;
            }
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = listener.closed() => return,
        }
    }
}

impl Page {
    /// The daemon's state as JSON; those who ask at about the same time get the same.
    fn view(&self) -> Arc<str> {
        let mut told = self.door.told.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, text)) = told.as_ref().filter(|(at, _)| at.elapsed() < AGAIN / 2) {
            return Arc::clone(text);
        }
        let text: Arc<str> = self.watched.view(self.door.access.token.is_some()).to_string().into();
        *told = Some((Instant::now(), Arc::clone(&text)));
        text
    }
}

#[cfg(test)]
mod tests;
