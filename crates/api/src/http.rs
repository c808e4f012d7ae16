//! The page that a daemon has for those who watch it: whether it lives, whether it can serve, and its
//! counters in the text format of Prometheus; and a view of its state for people ([`Access`]). Read only;
//! nothing of a transfer's bytes is there.
//!
//! A connection lives for a minute at most and there are few places; where all are taken the oldest makes
//! room, so that those who hold theirs without a word keep out no other. However often the metrics are asked
//! for, the daemon looks at them some times a second.

mod token;
mod view;

pub use token::Token;
pub use view::Access;

use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Router, serve::Listener};
use polycast_types::Printable;
use std::collections::VecDeque;
use std::fmt::Write;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant, SystemTime};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{Sleep, sleep};

/// Connections at a time.
const CONNECTIONS_MAX: usize = 32;
/// The longest life of one.
const CONNECTION_MAX: Duration = Duration::from_secs(60);
/// Metrics are told again for so long: to look at them takes locks that the daemon's work needs.
const KEPT: Duration = Duration::from_millis(100);
/// The pause after an error of the listener, such as too many open files.
const PAUSE: Duration = Duration::from_millis(500);

/// Kind of a metric: a count, or a value at the moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Only rises while the daemon lives.
    Counter,
    /// Rises and falls.
    Gauge,
    /// Counts of observations up to bounds, with their number and sum.
    Histogram,
}

/// Label of a histogram's bounds, and the one that stands for the end of its name.
const BELOW: &str = "le";
const PART: &str = "";

/// One metric with its values.
#[derive(Clone, PartialEq, Debug)]
pub struct Metric {
    /// Its name, with its unit at the end.
    pub name: &'static str,
    /// One sentence.
    pub help: &'static str,
    /// Kind: whether it only rises.
    pub kind: Kind,
    /// Values by their labels.
    pub values: Vec<(Vec<(&'static str, String)>, f64)>,
}

impl Metric {
    /// A metric with one value.
    #[must_use]
    pub fn one(name: &'static str, kind: Kind, help: &'static str, value: f64) -> Self {
        Metric { name, help, kind, values: vec![(Vec::new(), value)] }
    }

    /// A metric with a value for each value of one label.
    #[must_use]
    pub fn by(
        name: &'static str,
        kind: Kind,
        help: &'static str,
        label: &'static str,
        values: impl IntoIterator<Item = (String, f64)>,
    ) -> Self {
        let values = values.into_iter().map(|(text, value)| (vec![(label, text)], value)).collect();
        Metric { name, help, kind, values }
    }

    /// The time that a daemon's own certificate is still valid, where it shows one, by its last second since
    /// 1970.
    #[must_use]
    pub fn certificate(ends_unix_s: Option<u64>) -> Self {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Metric {
            name: "polycast_certificate_seconds",
            help: "Time until the daemon's own certificate ends; negative where it has ended.",
            kind: Kind::Gauge,
            values: ends_unix_s
                .map(|ends| (Vec::new(), ends as f64 - now.as_secs_f64()))
                .into_iter()
                .collect(),
        }
    }

    /// A histogram: the bounds, how many observations lie between each and the one before it, the last entry
    /// how many lie above all, and the sum of all.
    ///
    /// # Panics
    /// There is not one count more than bounds.
    #[must_use]
    pub fn histogram(
        name: &'static str,
        help: &'static str,
        bounds: &[f64],
        counts: &[u64],
        sum: f64,
    ) -> Self {
        assert_eq!(counts.len(), bounds.len() + 1, "each observation is below a bound or above all");
        let mut below = 0;
        let mut values = Vec::new();
        let bounds = bounds.iter().map(ToString::to_string).chain(["+Inf".to_string()]);
        for (bound, count) in bounds.zip(counts) {
            below += count;
            values.push((vec![(BELOW, bound)], below as f64));
        }
        values.push((vec![(PART, "_sum".to_string())], sum));
        values.push((vec![(PART, "_count".to_string())], below as f64));
        Metric { name, help, kind: Kind::Histogram, values }
    }
}

/// Daemon with a monitoring page.
pub trait Watched: Send + Sync + 'static {
    /// Checks that it can serve; otherwise returns the reason, in a sentence.
    ///
    /// # Errors
    /// It cannot.
    fn ready(&self) -> Result<(), String>;

    /// Its metrics.
    fn metrics(&self) -> Vec<Metric>;

    /// Its state for the view, in the words of [`crate::documents`]. With `is_shown` the viewer has shown the
    /// token, which only the daemon's user gives away.
    fn view(&self, is_shown: bool) -> serde_json::Value;
}

/// Serves a daemon's page until `shutdown` is ready.
pub async fn serve(
    listener: TcpListener,
    watched: Arc<dyn Watched>,
    access: Access,
    shutdown: impl Future<Output = ()> + Send + 'static,
) {
    let door = view::Door::new(access, listener.local_addr().ok());
    let is_local = door.is_local();
    let page = Arc::new(Page { watched, told: Mutex::default(), door });
    let views = Router::new()
        .route("/", get(view::show))
        .route("/view", get(view::show))
        .route("/view/events", get(view::events))
        .route_layer(middleware::from_fn_with_state(Arc::clone(&page), view::guard));
    let pages = Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(async || "alive\n"))
        .route("/readyz", get(ready))
        .merge(views)
        .fallback(async || (StatusCode::NOT_FOUND, "there are /view, /metrics, /healthz and /readyz here\n"))
        .layer(middleware::from_fn_with_state(is_local, only_by_its_own_name))
        .with_state(page);
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let listener = Bounded { listener, places, held: VecDeque::new() };
    let served = axum::serve(listener, pages).with_graceful_shutdown(shutdown).await;
    if let Err(error) = served {
        tracing::warn!(%error, "the page for metrics has ended");
    }
}

/// A daemon's page.
struct Page {
    watched: Arc<dyn Watched>,
    /// Its metrics, and when they were looked at.
    told: Mutex<Option<(Instant, Bytes)>>,
    door: view::Door,
}

impl Page {
    fn metrics(&self) -> Bytes {
        // A daemon whose metrics panic tells none, and the next one who asks looks again.
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, text)) = told.as_ref().filter(|(at, _)| at.elapsed() < KEPT) {
            return text.clone();
        }
        let text = Bytes::from(render(&self.watched.metrics()));
        *told = Some((Instant::now(), text.clone()));
        text
    }
}

async fn metrics(State(page): State<Arc<Page>>) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], page.metrics()).into_response()
}

async fn ready(State(page): State<Arc<Page>>) -> Response {
    match page.watched.ready() {
        Ok(()) => "ready\n".into_response(),
        // It can have words of another machine in it.
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{}\n", Printable(&why))).into_response(),
    }
}

/// A page on loopback is for this machine: a browser here that was led to it by another site's name is turned
/// away.
async fn only_by_its_own_name(State(is_local): State<bool>, request: Request, next: Next) -> Response {
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or("");
    if is_local && !is_own_name(host) {
        let said = "this page is asked for by the address of this machine, or as localhost\n";
        return (StatusCode::FORBIDDEN, said).into_response();
    }
    let mut response = next.run(request).await;
    // What is said is text, also where it looks like something else.
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// Returns true if the host names the machine itself: an address, or localhost.
#[must_use]
pub fn is_own_name(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or(""),
        None => host.split(':').next().unwrap_or(""),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}

/// The text format of Prometheus, version 0.0.4.
fn render(metrics: &[Metric]) -> String {
    let mut text = String::new();
    for Metric { name, help, kind, values } in metrics {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        // Writing to a String does not fail.
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (labels, value) in values {
            let end = match labels.iter().find(|(label, _)| [PART, BELOW].contains(label)) {
                Some((label, _)) if *label == BELOW && kind == "histogram" => "_bucket",
                Some((label, end)) if *label == PART => end,
                _ => "",
            };
            let shown = labels.iter().filter(|(label, _)| *label != PART);
            let shown: Vec<_> =
                shown.map(|(label, value)| format!("{label}=\"{}\"", escaped(value))).collect();
            let labels = if shown.is_empty() { String::new() } else { format!("{{{}}}", shown.join(",")) };
            let _ = writeln!(text, "{name}{end}{labels} {value}");
        }
    }
    text
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// A listener with so many places.
struct Bounded {
    listener: TcpListener,
    places: Arc<Semaphore>,
    /// Connections that have a place, the oldest first: each ends when its sender is dropped.
    held: VecDeque<oneshot::Sender<()>>,
}

impl Listener for Bounded {
    type Io = Held;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Held, SocketAddr) {
        loop {
            let Ok((stream, from)) = self.listener.accept().await else {
                sleep(PAUSE).await;
                continue;
            };
            self.held.retain(|held| !held.is_closed());
            let too_many = (self.held.len() + 1).saturating_sub(CONNECTIONS_MAX);
            self.held.drain(..too_many);
            // The semaphore is never closed.
            let Ok(place) = Arc::clone(&self.places).acquire_owned().await else {
                return std::future::pending().await;
            };
            let (word, makes_room) = oneshot::channel();
            self.held.push_back(word);
            let ends = Box::pin(sleep(CONNECTION_MAX));
            return (Held { stream, ends, makes_room, is_over: false, _place: place }, from);
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that has a place, and an end.
struct Held {
    stream: TcpStream,
    ends: Pin<Box<Sleep>>,
    makes_room: oneshot::Receiver<()>,
    is_over: bool,
    _place: OwnedSemaphorePermit,
}

impl Held {
    /// Fails where its time is over, or another one needs its place.
    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        self.is_over = self.is_over
            || self.ends.as_mut().poll(cx).is_ready()
            || Pin::new(&mut self.makes_room).poll(cx).is_ready();
        if self.is_over { Err(io::ErrorKind::TimedOut.into()) } else { Ok(()) }
    }
}

impl AsyncRead for Held {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Held {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// One that is ready or not, and counts how often it is looked at.
    #[derive(Default)]
    pub(super) struct Daemon(AtomicBool, pub(super) AtomicU64);

    impl Watched for Daemon {
        fn ready(&self) -> Result<(), String> {
            let why = "the manager cannot be reached: \u{1b}[2J<script>";
            if self.0.load(Ordering::Relaxed) { Ok(()) } else { Err(why.into()) }
        }

        fn metrics(&self) -> Vec<Metric> {
            self.1.fetch_add(1, Ordering::Relaxed);
            let odd = [("a \"b\"\\\n".to_string(), 2.0), ("c".into(), 0.5)];
            vec![
                Metric::one("polycast_up_seconds", Kind::Gauge, "Since when it lives.", 7.0),
                Metric::by(
                    "polycast_sent_bytes_total",
                    Kind::Counter,
                    "Bytes that were sent.",
                    "fabric",
                    odd,
                ),
            ]
        }

        fn view(&self, is_shown: bool) -> serde_json::Value {
            let looks = self.1.fetch_add(1, Ordering::Relaxed);
            let name = "<script>alert(1)</script>\n";
            serde_json::json!({ "name": name, "looks": looks, "is_shown": is_shown })
        }
    }

    async fn ask(address: SocketAddr, path: &str, host: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    async fn page() -> (SocketAddr, Arc<Daemon>) {
        page_at("127.0.0.1:0", Access::default()).await
    }

    pub(super) async fn page_at(listen: &str, access: Access) -> (SocketAddr, Arc<Daemon>) {
        let listener = TcpListener::bind(listen).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let daemon = Arc::new(Daemon::default());
        let watched = Arc::clone(&daemon) as Arc<dyn Watched>;
        tokio::spawn(serve(listener, watched, access, std::future::pending()));
        (SocketAddr::from(([127, 0, 0, 1], port)), daemon)
    }

    #[tokio::test]
    async fn it_says_how_things_stand() {
        let (address, daemon) = page().await;
        assert!(ask(address, "/healthz", "localhost:1").await.starts_with("HTTP/1.1 200"));
        let not_ready = ask(address, "/readyz", "127.0.0.1").await;
        assert!(not_ready.starts_with("HTTP/1.1 503"), "{not_ready}");
        // Terminals and browsers show it as it is.
        assert!(not_ready.ends_with("the manager cannot be reached: \\u{1b}[2J<script>\n"), "{not_ready}");
        for header in ["content-type: text/plain; charset=utf-8\r\n", "x-content-type-options: nosniff\r\n"] {
            assert!(not_ready.contains(header), "{not_ready}");
        }
        daemon.0.store(true, Ordering::Relaxed);
        assert!(ask(address, "/readyz", "[::1]:7480").await.starts_with("HTTP/1.1 200"));
        let metrics = ask(address, "/metrics", "localhost").await;
        for line in [
            "# TYPE polycast_up_seconds gauge\npolycast_up_seconds 7\n",
            "# HELP polycast_sent_bytes_total Bytes that were sent.\n# TYPE polycast_sent_bytes_total counter\n",
            "polycast_sent_bytes_total{fabric=\"a \\\"b\\\"\\\\\\n\"} 2\n",
            "polycast_sent_bytes_total{fabric=\"c\"} 0.5\n",
        ] {
            assert!(metrics.contains(line), "{line} in {metrics}");
        }
        assert!(ask(address, "/none", "localhost").await.starts_with("HTTP/1.1 404"));
    }

    #[tokio::test]
    async fn a_page_on_loopback_has_no_other_name() {
        let (address, _daemon) = page().await;
        for host in
            ["evil.example", "evil.example:7480", "", "localhost.evil.example", "1.2.3.4.evil.example"]
        {
            for path in ["/metrics", "/view", "/view/events"] {
                let answer = ask(address, path, host).await;
                assert!(answer.starts_with("HTTP/1.1 403"), "{host}: {answer}");
            }
        }
    }

    #[test]
    fn a_histogram_counts_what_is_below_each_bound() {
        let metric = Metric::histogram("polycast_x_seconds", "X.", &[0.5, 2.0], &[3, 0, 4], 31.5);
        let lines = [
            "# HELP polycast_x_seconds X.",
            "# TYPE polycast_x_seconds histogram",
            "polycast_x_seconds_bucket{le=\"0.5\"} 3",
            "polycast_x_seconds_bucket{le=\"2\"} 3",
            "polycast_x_seconds_bucket{le=\"+Inf\"} 7",
            "polycast_x_seconds_sum 31.5",
            "polycast_x_seconds_count 7",
        ];
        assert_eq!(render(&[metric]).lines().collect::<Vec<_>>(), lines);
    }

    /// However many say nothing, one that asks is answered: the oldest of them has made room.
    #[tokio::test]
    async fn who_says_nothing_makes_room_for_one_that_asks() {
        let (address, _daemon) = page().await;
        let mut idle = Vec::new();
        for _ in 0..3 * CONNECTIONS_MAX {
            idle.push(TcpStream::connect(address).await.unwrap());
        }
        // One says something all the time, and nothing that ends.
        let slow = idle.last_mut().unwrap();
        slow.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: ").await.unwrap();
        let asked = tokio::time::timeout(Duration::from_secs(30), ask(address, "/healthz", "localhost"));
        assert!(asked.await.expect("it is answered").starts_with("HTTP/1.1 200"));
        assert_eq!(idle[0].read(&mut [0]).await.unwrap_or(0), 0, "the oldest has been closed");
    }

    #[tokio::test]
    async fn however_often_metrics_are_asked_for_the_daemon_looks_some_times_a_second() {
        let (address, daemon) = page().await;
        let begun = Instant::now();
        let one = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(200);
        let last = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        let (mut read, mut write) = TcpStream::connect(address).await.unwrap().into_split();
        let asking = tokio::spawn(async move {
            write.write_all(&[&one[..], last].concat()).await.unwrap();
            write
        });
        let mut answers = String::new();
        read.read_to_string(&mut answers).await.unwrap();
        assert_eq!(answers.matches("polycast_up_seconds 7\n").count(), 201);
        let looks = u128::from(daemon.1.load(Ordering::Relaxed));
        assert!(looks <= begun.elapsed().as_millis() / KEPT.as_millis() + 1, "{looks}");
        asking.await.unwrap();
    }

    /// Requests that are not for a page are refused, or their connections end; the page goes on.
    #[tokio::test]
    async fn what_is_no_question_is_refused() {
        let (address, _daemon) = page().await;
        let get = |path: &str, more: &str| {
            format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{more}Connection: close\r\n\r\n")
        };
        let evil = "Origin: http://evil.example\r\n";
        for (what, request, says) in [
            ("a long path", get(&format!("/{}", "a".repeat(100_000)), ""), "414"),
            ("a long header", get("/healthz", &format!("X: {}\r\n", "a".repeat(1 << 20))), "431"),
            ("many headers", get("/healthz", &"X: y\r\n".repeat(10_000)), "431"),
            ("a way out", get("/../../etc/passwd", ""), "404"),
            ("the same escaped", get("/%2e%2e/%2e%2e/etc/passwd", ""), "404"),
            ("a form of another site", get("/metrics", evil).replace("GET", "POST"), "405"),
            ("a question before a form", get("/metrics", evil).replace("GET", "OPTIONS"), "405"),
            ("none that is HTTP", "\u{16}\u{3}\u{1}".repeat(100), "400"),
            // Its first frame is none that may come first.
            ("HTTP/2", format!("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n{}", "\0".repeat(9)), ""),
        ] {
            let (mut read, mut write) = TcpStream::connect(address).await.unwrap().into_split();
            // Of what is too long the end is not read: it may not be taken either.
            let saying =
                tokio::spawn(async move { write.write_all(request.as_bytes()).await.map(|()| write) });
            let mut answer = Vec::new();
            let _ = tokio::time::timeout(Duration::from_secs(30), read.read_to_end(&mut answer))
                .await
                .expect(what);
            let answer = String::from_utf8_lossy(&answer);
            let says = if says.is_empty() { String::new() } else { format!("HTTP/1.1 {says} ") };
            assert!(answer.is_empty() || answer.starts_with(&says), "{what}: {answer}");
            assert!(!answer.to_lowercase().contains("access-control"), "{what}: {answer}");
            assert!(!answer.contains("evil"), "{what}: {answer}");
            drop(saying.await);
        }
        assert!(ask(address, "/healthz", "localhost").await.starts_with("HTTP/1.1 200"));
    }
}
