//! Connections that come in at the socket: how many there may be in all and of one user, and what becomes of
//! one that cannot be taken.
//!
//! Calls hold descriptors only as long as their connection does. An agent that has none left waits a while
//! before it looks again, and says so: those that are connected are served meanwhile.

use super::super::users::User;
use rustix::process::{Resource, getrlimit};
use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::{Instant, Sleep, sleep};
use tokio_stream::Stream;
use tonic::transport::server::{Connected, UdsConnectInfo};

/// Connections at a time; fewer where the process may have few descriptors, of which the agent itself needs
/// half.
const CONNECTIONS_MAX: u64 = 4_096;
/// Pause after a connection that could not be accepted.
const PAUSE: Duration = Duration::from_millis(100);
/// Shortest time between two log messages about connections that could not be accepted.
const SAY: Duration = Duration::from_secs(1);

/// The connections that are open, of each user.
type House = Arc<Mutex<BTreeMap<u32, usize>>>;

fn lock(house: &House) -> MutexGuard<'_, BTreeMap<u32, usize>> {
    // Nothing here panics between two changes that belong together.
    house.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One place among them, given back when dropped.
#[derive(Debug)]
struct Place {
    house: House,
    uid: u32,
}

impl Place {
    /// A place for this user's connection, or why there is none.
    fn take(house: &House, user: User, most: usize) -> Result<Self, String> {
        let mut inner = lock(house);
        let all: usize = inner.values().sum();
        if all >= most {
            return Err(format!("there are {all} connections, which is the limit"));
        }
        let count = inner.entry(user.uid()).or_insert(0);
        if *count >= user.share(most) {
            return Err(format!("user {} has {count} connections, which is its limit", user.uid()));
        }
        *count += 1;
        Ok(Place { house: Arc::clone(house), uid: user.uid() })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut house = lock(&self.house);
        if let Some(count) = house.get_mut(&self.uid) {
            *count -= 1;
            if *count == 0 {
                house.remove(&self.uid);
            }
        }
    }
}

/// Connections as they come in.
#[derive(Debug)]
pub(crate) struct Door {
    listener: UnixListener,
    house: House,
    most: usize,
    pause: Option<Pin<Box<Sleep>>>,
    /// Time of the last message about a failed connection, and the number of failures since.
    said: (Option<Instant>, u64),
}

impl Door {
    /// Takes connections at this listener.
    pub(crate) fn new(listener: UnixListener) -> Self {
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let most = CONNECTIONS_MAX.min(descriptors / 2).max(1);
        Self::with_limit(listener, usize::try_from(most).unwrap_or(usize::MAX))
    }

    fn with_limit(listener: UnixListener, most: usize) -> Self {
        Door { listener, house: House::default(), most, pause: None, said: (None, 0) }
    }

    fn say(&mut self, why: &str) {
        self.said.1 += 1;
        if self.said.0.is_none_or(|at| at.elapsed() >= SAY) {
            tracing::warn!(times = self.said.1, "a connection to the socket cannot be taken: {why}");
            self.said = (Some(Instant::now()), 0);
        }
    }

    fn let_in(&self, stream: UnixStream) -> Result<Guest, String> {
        let credentials = stream.peer_cred().map_err(|error| error.to_string())?;
        let place = Place::take(&self.house, User::numbered(credentials.uid()), self.most)?;
        Ok(Guest { stream, _place: place })
    }
}

impl Stream for Door {
    type Item = io::Result<Guest>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(pause) = &mut self.pause {
                ready!(pause.as_mut().poll(context));
                self.pause = None;
            }
            match ready!(self.listener.poll_accept(context)) {
                Ok((stream, _)) => match self.let_in(stream) {
                    Ok(guest) => return Poll::Ready(Some(Ok(guest))),
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
pub(crate) struct Guest {
    stream: UnixStream,
    _place: Place,
}

impl Connected for Guest {
    type ConnectInfo = UdsConnectInfo;

    fn connect_info(&self) -> UdsConnectInfo {
        self.stream.connect_info()
    }
}

impl AsyncRead for Guest {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Guest {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt;
    use tokio_stream::StreamExt;

    #[test]
    fn a_user_has_a_part_of_the_places_and_gives_them_back() {
        let house = House::default();
        let (own, other) = (User::agent(), User::numbered(User::agent().uid() + 54_321));
        let others: Vec<_> = (0..2).map(|_| Place::take(&house, other, 8).unwrap()).collect();
        assert!(Place::take(&house, other, 8).unwrap_err().contains("which is its limit"));
        let ours: Vec<_> = (0..6).map(|_| Place::take(&house, own, 8).unwrap()).collect();
        assert_eq!(Place::take(&house, own, 8).unwrap_err(), "there are 8 connections, which is the limit");
        drop(others);
        Place::take(&house, other, 8).unwrap();
        drop(ours);
        assert!(lock(&house).is_empty());
    }

    #[tokio::test]
    async fn those_for_whom_there_is_no_place_are_sent_away_and_later_ones_come_in() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let mut door = Door::with_limit(UnixListener::bind(&path).unwrap(), 2);
        let mut visitors = Vec::new();
        for _ in 0..3 {
            visitors.push(UnixStream::connect(&path).await.unwrap());
        }
        let first = door.next().await.unwrap().unwrap();
        let second = door.next().await.unwrap().unwrap();
        assert!(
            tokio::time::timeout(Duration::from_millis(50), door.next()).await.is_err(),
            "the third stays out"
        );
        assert_eq!(visitors[2].read(&mut [0]).await.unwrap(), 0, "and is told so");
        drop((first, second));
        let _fourth = UnixStream::connect(&path).await.unwrap();
        door.next().await.unwrap().unwrap();
    }
}
