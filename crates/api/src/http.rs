//! The page that a daemon has for those who watch it: whether it lives, whether it can serve, and its counters in the text format
//! of Prometheus. Read only; nothing of a transfer's bytes is there.
//!
//! A connection lives for a minute at most and there are few places, so that those who hold theirs without a word delay others
//! for a short time only.

use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Router, serve::Listener};
use std::fmt::Write;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Sleep, sleep};

/// Connections at a time.
const CONNECTIONS_MAX: usize = 32;
/// The longest life of one.
const CONNECTION_MAX: Duration = Duration::from_secs(60);
/// The pause after an error of the listener, such as too many open files.
const PAUSE: Duration = Duration::from_millis(500);

/// What a counter counts, or what a value is at the moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Only rises while the daemon lives.
    Counter,
    /// Rises and falls.
    Gauge,
}

/// One metric with its values.
#[derive(Clone, PartialEq, Debug)]
pub struct Metric {
    /// Its name, with its unit at the end.
    pub name: &'static str,
    /// One sentence.
    pub help: &'static str,
    /// Whether it only rises.
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
}

/// What a daemon shows.
pub trait Watched: Send + Sync + 'static {
    /// Whether it can serve; otherwise why not, in a sentence.
    ///
    /// # Errors
    /// It cannot.
    fn ready(&self) -> Result<(), String>;

    /// Its metrics.
    fn metrics(&self) -> Vec<Metric>;
}

/// Serves a daemon's page until `shutdown` is ready.
pub async fn serve(
    listener: TcpListener,
    watched: Arc<dyn Watched>,
    shutdown: impl Future<Output = ()> + Send + 'static,
) {
    let is_local = listener.local_addr().is_ok_and(|address| address.ip().is_loopback());
    let pages = Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(async || "alive\n"))
        .route("/readyz", get(ready))
        .fallback(async || (StatusCode::NOT_FOUND, "there are /metrics, /healthz and /readyz here\n"))
        .layer(middleware::from_fn_with_state(is_local, only_by_its_own_name))
        .with_state(watched);
    let listener = Bounded { listener, places: Arc::new(Semaphore::new(CONNECTIONS_MAX)) };
    let served = axum::serve(listener, pages).with_graceful_shutdown(shutdown).await;
    if let Err(error) = served {
        tracing::warn!(%error, "the page for metrics has ended");
    }
}

async fn metrics(State(watched): State<Arc<dyn Watched>>) -> Response {
    let text = render(&watched.metrics());
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

async fn ready(State(watched): State<Arc<dyn Watched>>) -> Response {
    match watched.ready() {
        Ok(()) => "ready\n".into_response(),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response(),
    }
}

/// A page on loopback is for this machine: a browser here that was led to it by another site's name is turned away.
async fn only_by_its_own_name(State(is_local): State<bool>, request: Request, next: Next) -> Response {
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or("");
    if is_local && !is_own_name(host) {
        let said = "this page is asked for by the address of this machine, or as localhost\n";
        return (StatusCode::FORBIDDEN, said).into_response();
    }
    next.run(request).await
}

/// Whether this names the machine itself: an address, or localhost.
fn is_own_name(host: &str) -> bool {
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
        };
        // Writing to a String does not fail.
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (labels, value) in values {
            let labels: Vec<_> =
                labels.iter().map(|(label, value)| format!("{label}=\"{}\"", escaped(value))).collect();
            let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
            let _ = writeln!(text, "{name}{labels} {value}");
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
}

impl Listener for Bounded {
    type Io = Held;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Held, SocketAddr) {
        loop {
            // The semaphore is never closed.
            let Ok(place) = Arc::clone(&self.places).acquire_owned().await else {
                return std::future::pending().await;
            };
            match self.listener.accept().await {
                Ok((stream, from)) => {
                    return (Held { stream, ends: Box::pin(sleep(CONNECTION_MAX)), _place: place }, from);
                }
                Err(_) => sleep(PAUSE).await,
            }
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
    _place: OwnedSemaphorePermit,
}

impl AsyncRead for Held {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.ends.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Held {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.ends.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
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
    use std::sync::atomic::{AtomicBool, Ordering};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    struct Daemon(AtomicBool);

    impl Watched for Daemon {
        fn ready(&self) -> Result<(), String> {
            if self.0.load(Ordering::Relaxed) { Ok(()) } else { Err("the manager cannot be reached".into()) }
        }

        fn metrics(&self) -> Vec<Metric> {
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
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let daemon = Arc::new(Daemon(AtomicBool::new(false)));
        tokio::spawn(serve(listener, Arc::clone(&daemon) as Arc<dyn Watched>, std::future::pending()));
        (address, daemon)
    }

    #[tokio::test]
    async fn it_says_how_things_stand() {
        let (address, daemon) = page().await;
        assert!(ask(address, "/healthz", "localhost:1").await.starts_with("HTTP/1.1 200"));
        let not_ready = ask(address, "/readyz", "127.0.0.1").await;
        assert!(not_ready.starts_with("HTTP/1.1 503"), "{not_ready}");
        assert!(not_ready.ends_with("the manager cannot be reached\n"), "{not_ready}");
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
        assert!(ask(address, "/", "localhost").await.starts_with("HTTP/1.1 404"));
    }

    #[tokio::test]
    async fn a_page_on_loopback_has_no_other_name() {
        let (address, _daemon) = page().await;
        for host in
            ["evil.example", "evil.example:7480", "", "localhost.evil.example", "1.2.3.4.evil.example"]
        {
            let answer = ask(address, "/metrics", host).await;
            assert!(answer.starts_with("HTTP/1.1 403"), "{host}: {answer}");
        }
    }

    #[tokio::test]
    async fn who_says_nothing_takes_a_place_and_no_more() {
        let (address, _daemon) = page().await;
        let mut idle = Vec::new();
        for _ in 0..CONNECTIONS_MAX - 1 {
            idle.push(TcpStream::connect(address).await.unwrap());
        }
        assert!(ask(address, "/healthz", "localhost").await.starts_with("HTTP/1.1 200"));
        idle.push(TcpStream::connect(address).await.unwrap());
        let waits =
            tokio::time::timeout(Duration::from_millis(300), ask(address, "/healthz", "localhost")).await;
        assert!(waits.is_err(), "all places are taken");
        drop(idle);
        assert!(ask(address, "/healthz", "localhost").await.starts_with("HTTP/1.1 200"));
    }
}
