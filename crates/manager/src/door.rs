//! Where connections come in: how many there may be in all and from one address, and what becomes of one that says nothing.
//!
//! A manager that has no descriptors left waits a while before it looks again, and says so: whoever is connected is served
//! meanwhile.

use crate::config::ManagerConfig;
use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, Sleep, sleep};
use tokio_stream::Stream;
use tonic::transport::server::{Connected, TcpConnectInfo};

/// Connections beyond those of agents, for those who ask how things stand.
const OTHERS_MAX: usize = 1_024;
/// The same from one address.
const OTHERS_OF_ADDRESS_MAX: usize = 64;
/// Whoever has said nothing by then is not waited for.
const FIRST_WORD: Duration = Duration::from_secs(10);
/// How long nobody is let in after that was not possible.
const PAUSE: Duration = Duration::from_millis(100);
/// How often it is said that somebody could not come in.
const SAY: Duration = Duration::from_secs(1);

/// Who is in.
#[derive(Debug)]
struct House {
    all: usize,
    of_address: BTreeMap<IpAddr, usize>,
    all_max: usize,
    of_address_max: usize,
}

/// One place in it, given back when dropped.
#[derive(Debug)]
struct Place {
    house: Arc<Mutex<House>>,
    from: IpAddr,
}

fn lock(house: &Mutex<House>) -> MutexGuard<'_, House> {
    // Nothing here panics between two changes that belong together.
    house.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Place {
    /// A place for one from this address, or why there is none.
    fn take(house: &Arc<Mutex<House>>, from: IpAddr) -> Result<Self, String> {
        let mut inner = lock(house);
        if inner.all >= inner.all_max {
            return Err(format!("there are {} connections, which is the limit", inner.all));
        }
        let (most, count) = (inner.of_address_max, inner.of_address.entry(from).or_insert(0));
        if *count >= most {
            return Err(format!(
                "there are {count} connections from {from}, which is the limit of one address"
            ));
        }
        *count += 1;
        inner.all += 1;
        Ok(Place { house: Arc::clone(house), from })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut house = lock(&self.house);
        house.all -= 1;
        if let Some(count) = house.of_address.get_mut(&self.from) {
            *count -= 1;
            if *count == 0 {
                house.of_address.remove(&self.from);
            }
        }
    }
}

/// Connections as they come in.
#[derive(Debug)]
pub struct Door {
    listener: TcpListener,
    house: Arc<Mutex<House>>,
    pause: Option<Pin<Box<Sleep>>>,
    /// When it was last said that somebody could not come in, and how many could not since.
    said: Option<Instant>,
    unsaid: u64,
}

/// Lets in whoever comes to this listener.
pub fn open(listener: TcpListener, config: &ManagerConfig) -> Door {
    let house = House {
        all: 0,
        of_address: BTreeMap::new(),
        all_max: config.agents_max.saturating_add(OTHERS_MAX),
        of_address_max: config.address_agents_max.saturating_add(OTHERS_OF_ADDRESS_MAX),
    };
    Door { listener, house: Arc::new(Mutex::new(house)), pause: None, said: None, unsaid: 0 }
}

impl Door {
    fn say(&mut self, why: &str) {
        self.unsaid += 1;
        if self.said.is_none_or(|at| at.elapsed() >= SAY) {
            tracing::warn!(times = self.unsaid, "a connection cannot be taken: {why}");
            (self.said, self.unsaid) = (Some(Instant::now()), 0);
        }
    }
}

impl Stream for Door {
    type Item = io::Result<Visitor>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(pause) = &mut self.pause {
                ready!(pause.as_mut().poll(context));
                self.pause = None;
            }
            match ready!(self.listener.poll_accept(context)) {
                Ok((stream, from)) => match Place::take(&self.house, from.ip().to_canonical()) {
                    Ok(place) => {
                        // Without it small messages would wait for each other, which costs time and nothing else.
                        let _ = stream.set_nodelay(true);
                        let silent = Some(Box::pin(sleep(FIRST_WORD)));
                        return Poll::Ready(Some(Ok(Visitor { stream, silent, _place: place })));
                    }
                    Err(why) => self.say(&why),
                },
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    self.say(&error.to_string());
                    self.pause = Some(Box::pin(sleep(PAUSE)));
                }
            }
        }
    }
}

/// A connection that was let in.
#[derive(Debug)]
pub struct Visitor {
    stream: TcpStream,
    /// Ends the wait for the first word, until there was one.
    silent: Option<Pin<Box<Sleep>>>,
    _place: Place,
}

impl Connected for Visitor {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        self.stream.connect_info()
    }
}

impl AsyncRead for Visitor {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if read.is_ready() {
            self.silent = None;
        } else if let Some(silent) = &mut self.silent {
            ready!(silent.as_mut().poll(context));
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        read
    }
}

impl AsyncWrite for Visitor {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt;
    use tokio_stream::StreamExt;

    async fn door(agents_max: usize, address_agents_max: usize) -> (Door, std::net::SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let config = ManagerConfig { agents_max, address_agents_max, ..ManagerConfig::default() };
        (open(listener, &config), address)
    }

    #[tokio::test]
    async fn one_address_takes_no_more_than_its_places() {
        let (mut door, address) = door(10_000, 1).await;
        let mut calls = Vec::new();
        for _ in 0..OTHERS_OF_ADDRESS_MAX + 2 {
            calls.push(TcpStream::connect(address).await.unwrap());
        }
        let mut inside = Vec::new();
        for _ in 0..=OTHERS_OF_ADDRESS_MAX {
            inside.push(door.next().await.unwrap().unwrap());
        }
        // The next one is closed, and one that leaves makes room.
        let more = tokio::time::timeout(Duration::from_millis(300), door.next()).await;
        assert!(more.is_err(), "nobody else is let in");
        let last = calls.last_mut().unwrap();
        assert_eq!(last.read(&mut [0]).await.unwrap_or(0), 0, "its connection is closed");
        inside.pop();
        let _next = TcpStream::connect(address).await.unwrap();
        door.next().await.unwrap().unwrap();
    }

    /// Without descriptors nobody can come in: it looks again after a while, and does not turn round and round meanwhile.
    #[tokio::test]
    async fn after_an_error_it_waits() {
        let (mut door, address) = door(4, 4).await;
        door.say("too many open files");
        door.pause = Some(Box::pin(sleep(PAUSE)));
        let begun = Instant::now();
        let _call = TcpStream::connect(address).await.unwrap();
        door.next().await.unwrap().unwrap();
        assert!(begun.elapsed() >= PAUSE);
        // It is said once a second.
        (0..9).for_each(|_| door.say("too many open files"));
        assert_eq!(door.unsaid, 9);
    }

    #[tokio::test]
    async fn who_says_nothing_is_not_waited_for() {
        let (mut door, address) = door(4, 4).await;
        let _call = TcpStream::connect(address).await.unwrap();
        let mut visitor = door.next().await.unwrap().unwrap();
        visitor.silent = Some(Box::pin(sleep(Duration::from_millis(50))));
        let error = visitor.read(&mut [0]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
