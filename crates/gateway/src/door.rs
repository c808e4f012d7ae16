//! Connections of clients of the hub.
//!
//! A client that hears nothing for 10 s gives up, while of a file of many gigabytes no byte is verified
//! before the last one has come. So one that waits is told `100 Continue` now and then: HTTP allows any
//! number of these before an answer, and clients skip them.

use crate::trouble::Trouble;
use axum::extract::connect_info::Connected;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::serve::{IncomingStream, Listener};
use polycast_api::http::is_own_name;
use polycast_api::settings::Network;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep};

/// Connections at a time.
const CONNECTIONS_MAX: usize = 1_024;
/// A client is told that it is not forgotten so often: clients give up after 10 s.
const NUDGE_INTERVAL: Duration = Duration::from_secs(4);
const NUDGE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
/// The pause after an error of the listener, such as too many open files.
const PAUSE: Duration = Duration::from_millis(500);

/// Listener for clients.
pub(crate) struct Door {
    listener: TcpListener,
    places: Arc<Semaphore>,
}

impl Door {
    pub(crate) fn new(listener: TcpListener) -> Self {
        Door { listener, places: Arc::new(Semaphore::new(CONNECTIONS_MAX)) }
    }
}

impl Listener for Door {
    type Io = Line;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Line, SocketAddr) {
        // The semaphore is never closed.
        let Ok(place) = Arc::clone(&self.places).acquire_owned().await else {
            return std::future::pending().await;
        };
        loop {
            match self.listener.accept().await {
                Ok((stream, from)) => {
                    // Without it heads wait for bodies.
                    let _ = stream.set_nodelay(true);
                    return (Line { stream: Arc::new(stream), _place: place }, from);
                }
                Err(_) => sleep(PAUSE).await,
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A client's connection.
pub(crate) struct Line {
    stream: Arc<TcpStream>,
    _place: OwnedSemaphorePermit,
}

/// A client that asks.
#[derive(Clone)]
pub(crate) struct Visitor {
    pub from: SocketAddr,
    stream: Arc<TcpStream>,
}

impl Connected<IncomingStream<'_, Door>> for Visitor {
    fn connect_info(incoming: IncomingStream<'_, Door>) -> Self {
        Visitor { from: *incoming.remote_addr(), stream: Arc::clone(&incoming.io().stream) }
    }
}

impl Visitor {
    /// Waits for an answer; until it is there, and nothing of it has been written, the client hears that.
    pub(crate) async fn while_told<T>(&self, answer: impl Future<Output = T>) -> T {
        let mut answer = std::pin::pin!(answer);
        let mut ticks = interval_at(Instant::now() + NUDGE_INTERVAL, NUDGE_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                answer = &mut answer => return answer,
                _ = ticks.tick() => self.nudge(),
            }
        }
    }

    fn nudge(&self) {
        match self.stream.try_write(NUDGE) {
            Ok(len) if len < NUDGE.len() => {
                // A part of it would begin the answer.
                let _ = rustix::net::shutdown(&*self.stream, rustix::net::Shutdown::Both);
            }
            // One that has gone, or takes nothing, is found when it is answered.
            _ => {}
        }
    }
}

/// Machines that may ask.
pub(crate) struct Admission {
    pub allow: Vec<Network>,
    /// The setting that names them.
    pub setting: &'static str,
}

impl Admission {
    /// Lets in those of this host and of the networks that may ask, by an address or as localhost: a browser
    /// here that was led to this one by another site's name is turned away.
    pub(crate) fn check(&self, from: IpAddr, headers: &HeaderMap) -> Result<(), Trouble> {
        let from = from.to_canonical();
        if !from.is_loopback() && !self.allow.iter().any(|network| network.contains(from)) {
            let why = format!("{from} may not ask here: its address is not in {}", self.setting);
            return Err(Trouble::new(StatusCode::FORBIDDEN, why));
        }
        let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or("");
        if !is_own_name(host) {
            let why = "this endpoint is asked for by the address of this machine, or as localhost";
            return Err(Trouble::new(StatusCode::FORBIDDEN, why));
        }
        Ok(())
    }
}

/// The range that is asked for, if one is: several, and one of another state of the file, are all of it.
pub(crate) fn asked_range(headers: &HeaderMap, etag: &str, size: u64) -> Result<Option<Range<u64>>, Trouble> {
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    if text(header::IF_RANGE).is_some_and(|state| state.trim_matches('"') != etag) {
        return Ok(None);
    }
    let range = text(header::RANGE).and_then(|range| range.strip_prefix("bytes="));
    let Some((first, last)) = range.and_then(|range| range.trim().split_once('-')) else { return Ok(None) };
    let range = match (first.parse::<u64>(), last.parse::<u64>()) {
        (Ok(first), Ok(last)) if first <= last => first..last.saturating_add(1).min(size),
        (Ok(first), Err(_)) if last.is_empty() => first..size,
        (Err(_), Ok(last)) if first.is_empty() => size.saturating_sub(last)..size,
        _ => return Ok(None),
    };
    if range.is_empty() {
        let mut trouble = Trouble::new(StatusCode::RANGE_NOT_SATISFIABLE, "the file ends before that range");
        let value = format!("bytes */{size}");
        trouble.headers.extend(value.parse().map(|value| (header::CONTENT_RANGE, value)));
        return Err(trouble);
    }
    Ok(Some(range))
}

/// Returns true if a client goes on from what it has.
pub(crate) fn goes_on(headers: &HeaderMap) -> bool {
    let range = headers.get(header::RANGE).and_then(|value| value.to_str().ok());
    range.is_some_and(|range| range.trim().ends_with('-'))
}

impl AsyncRead for Line {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.stream.poll_read_ready(cx))?;
            match self.stream.try_read(buffer.initialize_unfilled()) {
                Ok(len) => {
                    buffer.advance(len);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for Line {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.stream.poll_write_ready(cx))?;
            match self.stream.try_write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let ended = rustix::net::shutdown(&*self.stream, rustix::net::Shutdown::Write);
        Poll::Ready(ended.map_err(io::Error::from))
    }
}
