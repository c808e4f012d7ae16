//! Door for incoming connections: it limits their number in all and from one address, and closes those that
//! send nothing.
//!
//! A manager that has no descriptors left waits a while before it tries again, and logs that: open
//! connections are served meanwhile. Sealing is done in the visitor's own task: one that dawdles
//! delays no other.

use crate::config::ManagerConfig;
use crate::guard::{Guard, Refused};
use polycast_net::tls::{Answering, Binding, PeerNames, Remark, Security, Shown, Talk};
use serde_json::json;
use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Sleep, sleep};
use tokio_stream::Stream;
use tonic::transport::server::Connected;

/// Connections beyond those of agents, for those who ask how things stand.
const OTHERS_MAX: usize = 1_024;
/// The same from one address.
const OTHERS_OF_ADDRESS_MAX: usize = 64;
/// A connection on which nothing was said by then is closed.
const FIRST_WORD: Duration = Duration::from_secs(10);
/// A connection whose other end has not shown its key by then is closed.
const HANDSHAKE: Duration = Duration::from_secs(2);
/// Time that a refused client may take to receive the reason, and bytes that it may send meanwhile.
const REFUSAL: (Duration, usize) = (Duration::from_secs(1), 64 << 10);
/// Pause in accepting connections after one could not be accepted.
const PAUSE: Duration = Duration::from_millis(100);

/// The connections that are open: all of them, and how many from each address.
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
pub(crate) struct Door {
    listener: TcpListener,
    house: Arc<Mutex<House>>,
    security: Option<Security>,
    pause: Option<Pin<Box<Sleep>>>,
    guard: Arc<Guard>,
}

/// Says that a connection could not be taken.
fn refuse(guard: &Guard, why: &str) {
    guard.refuse(Refused::Connection, json!({ "reason": why }));
}

/// Takes connections at this listener; with `security` only from those that have the same.
pub(crate) fn open(
    listener: TcpListener,
    config: &ManagerConfig,
    security: Option<Security>,
    guard: &Arc<Guard>,
) -> Door {
    let house = House {
        all: 0,
        of_address: BTreeMap::new(),
        all_max: config.agents_max.saturating_add(OTHERS_MAX),
        of_address_max: config.address_agents_max.saturating_add(OTHERS_OF_ADDRESS_MAX),
    };
    Door { listener, house: Arc::new(Mutex::new(house)), security, pause: None, guard: Arc::clone(guard) }
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
                        // Without it small messages would wait for each other, which costs time and nothing
                        // else.
                        let _ = stream.set_nodelay(true);
                        let visitor = Visitor::new(stream, place, self.security.as_ref(), &self.guard);
                        return Poll::Ready(Some(Ok(visitor)));
                    }
                    Err(why) => refuse(&self.guard, &why),
                },
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    refuse(&self.guard, &error.to_string());
                    self.pause = Some(Box::pin(sleep(PAUSE)));
                }
            }
        }
    }
}

/// Stage of a connection.
#[derive(Debug)]
enum Stage {
    /// It is being sealed.
    Shaking(Answering),
    /// It can be used.
    In(Talk),
    /// It was refused.
    Refused,
}

/// The other end of a connection: requests have it as an extension.
#[derive(Clone, Debug)]
pub(crate) struct Guest {
    /// Its address.
    pub from: Option<SocketAddr>,
    /// Facts about the other end that a sealed connection provides.
    known: Arc<OnceLock<Known>>,
}

/// Facts about the other end of a connection, known once that is sealed.
#[derive(Debug)]
struct Known {
    names: PeerNames,
    /// Proof that it has shown for them.
    shown: Shown,
    /// Binding that tells the connection from all others.
    binding: Option<Binding>,
}

impl Guest {
    /// Returns the names that it may use.
    pub(crate) fn names(&self) -> PeerNames {
        self.known.get().map_or(PeerNames::Any, |known| known.names.clone())
    }

    /// Returns true if it was asked to show something and has shown nothing.
    pub(crate) fn is_stranger(&self) -> bool {
        self.known.get().is_some_and(|known| known.names == PeerNames::Nobody)
    }

    /// Returns the proof that it has shown.
    pub(crate) fn shown(&self) -> Option<Shown> {
        self.known.get().map(|known| known.shown.clone())
    }

    /// Returns the binding that tells its connection from all others; `None` if that is plain.
    pub(crate) fn binding(&self) -> Option<Binding> {
        self.known.get().and_then(|known| known.binding)
    }
}

/// A connection that was let in.
#[derive(Debug)]
pub(crate) struct Visitor {
    stage: Stage,
    guest: Guest,
    /// Ends the wait for its key, then for the first word, until there was one.
    silent: Option<Pin<Box<Sleep>>>,
    guard: Arc<Guard>,
    place: Option<Place>,
}

impl Visitor {
    fn new(stream: TcpStream, place: Place, security: Option<&Security>, guard: &Arc<Guard>) -> Self {
        let guest = Guest { from: stream.peer_addr().ok(), known: Arc::default() };
        let (stage, within) = match security {
            Some(security) => (Stage::Shaking(Talk::accept(stream, security)), HANDSHAKE),
            None => (Stage::In(Talk::plain(stream, &Remark::default())), FIRST_WORD),
        };
        Visitor {
            stage,
            guest,
            silent: Some(Box::pin(sleep(within))),
            guard: Arc::clone(guard),
            place: Some(place),
        }
    }

    /// The connection, once it can be used.
    fn poll_talk(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Pin<&mut Talk>>> {
        if let Stage::Shaking(answering) = &mut self.stage {
            match Pin::new(answering).poll(context) {
                Poll::Ready(Ok(talk)) => {
                    // It is set once: there is one handshake.
                    let (names, shown, binding) = (talk.peer_names(), talk.shown(), talk.binding());
                    let _ = self.guest.known.set(Known { names, shown, binding });
                    self.stage = Stage::In(talk);
                    self.silent = Some(Box::pin(sleep(FIRST_WORD)));
                }
                Poll::Ready(Err((error, stream))) => {
                    self.stage = Stage::Refused;
                    self.silent = None;
                    self.log_refusal(&error);
                    tokio::spawn(part(stream, self.place.take()));
                    return Poll::Ready(Err(error));
                }
                Poll::Pending => ready!(self.poll_silent(context))?,
            }
        }
        Poll::Ready(match &mut self.stage {
            Stage::In(talk) => Ok(Pin::new(talk)),
            _ => Err(io::ErrorKind::NotConnected.into()),
        })
    }

    /// Ready when it has said nothing for too long.
    fn poll_silent(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.silent {
            Some(silent) => silent.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into())),
            None => Poll::Pending,
        }
    }

    fn log_refusal(&self, error: &io::Error) {
        let from = self.guest.from.map_or_else(String::new, |from| format!("{from}: "));
        refuse(&self.guard, &format!("{from}{error}"));
    }
}

/// Lets one that was refused hear why: to close at once, with bytes unread, could destroy the word on its
/// way.
async fn part(mut stream: TcpStream, _place: Option<Place>) {
    let reading = async {
        let (mut buffer, mut most) = ([0; 4_096], REFUSAL.1);
        // A connection that is gone already needs no last word.
        let _ = stream.shutdown().await;
        while let Ok(len @ 1..) = stream.read(&mut buffer).await {
            most = most.saturating_sub(len);
            if most == 0 {
                return;
            }
        }
    };
    let _ = tokio::time::timeout(REFUSAL.0, reading).await;
}

impl Connected for Visitor {
    type ConnectInfo = Guest;

    fn connect_info(&self) -> Guest {
        self.guest.clone()
    }
}

impl AsyncRead for Visitor {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = ready!(self.poll_talk(context))?.poll_read(context, buffer);
        match &read {
            Poll::Pending => return self.poll_silent(context),
            Poll::Ready(Err(error)) if self.silent.is_some() => self.log_refusal(error),
            Poll::Ready(_) => {}
        }
        self.silent = None;
        read
    }
}

impl AsyncWrite for Visitor {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_talk(context))?.poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_talk(context))?.poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &self.stage {
            // What is not written yet waits for the seal.
            Stage::Shaking(_) => Poll::Ready(Ok(())),
            _ => ready!(self.poll_talk(context))?.poll_flush(context),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stage {
            Stage::In(talk) => Pin::new(talk).poll_shutdown(context),
            Stage::Shaking(_) | Stage::Refused => Poll::Ready(Ok(())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polycast_net::seal::Secret;
    use polycast_net::tls::{Expected, SealError};
    use polycast_testing::HANG;
    use tokio::time::Instant;
    use tokio_stream::StreamExt;

    async fn door(agents_max: usize, address_agents_max: usize) -> (Door, std::net::SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let config = ManagerConfig { agents_max, address_agents_max, ..ManagerConfig::default() };
        (open(listener, &config, None, &Arc::default()), address)
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
        assert!(more.is_err(), "no other is let in");
        let last = calls.last_mut().unwrap();
        assert_eq!(last.read(&mut [0]).await.unwrap_or(0), 0, "its connection is closed");
        inside.pop();
        let _next = TcpStream::connect(address).await.unwrap();
        door.next().await.unwrap().unwrap();
    }

    /// Without descriptors no connection can be taken: it looks again after a while, and does not turn round
    /// and round meanwhile.
    #[tokio::test(start_paused = true)]
    async fn after_an_error_it_waits() {
        let (mut door, address) = door(4, 4).await;
        door.pause = Some(Box::pin(sleep(PAUSE)));
        let begun = Instant::now();
        let _call = TcpStream::connect(address).await.unwrap();
        door.next().await.unwrap().unwrap();
        assert!(begun.elapsed() >= PAUSE);
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

    /// Reads what comes over a visitor's connection until it ends.
    async fn ends(mut visitor: Visitor) -> io::Error {
        visitor.read(&mut [0]).await.unwrap_err()
    }

    /// The next one, which may take its time.
    async fn unhurried(door: &mut Door) -> Visitor {
        let mut visitor = door.next().await.unwrap().unwrap();
        visitor.silent = Some(Box::pin(sleep(HANG)));
        visitor
    }

    /// Clients that do not seal, or dawdle, are dropped, and those that come after them are let in.
    #[tokio::test]
    async fn who_does_not_show_the_key_is_let_go_and_the_next_one_comes_in() {
        let (mut door, address) = door(4, 4).await;
        let ours = Security::shared(&Secret::fresh());
        door.security = Some(ours.clone());
        let remark = Remark::default();

        let any = Expected::Sharer;
        let mut plain = Talk::connect(&address.to_string(), None, &any, &remark).await.unwrap();
        plain.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
        let visitor = unhurried(&mut door).await;
        assert!(ends(visitor).await.to_string().contains("does not seal its connections"));
        assert!(plain.read(&mut [0]).await.is_err());
        assert_eq!(remark.take(), Some(SealError::PeerSeals));

        let _silent = TcpStream::connect(address).await.unwrap();
        let visitor = door.next().await.unwrap().unwrap();
        let error = tokio::time::timeout(HANG, ends(visitor)).await.unwrap();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);

        let text = address.to_string();
        let other = Security::shared(&Secret::fresh());
        let (refused, visitor) = tokio::join!(Talk::connect(&text, Some(&other), &any, &remark), async {
            ends(unhurried(&mut door).await).await
        });
        assert!(refused.is_err() && visitor.to_string().contains("both need the same one"), "{visitor}");
        assert_eq!(remark.take(), Some(SealError::OtherKey));

        let (talk, read) = tokio::join!(
            async {
                let mut talk = Talk::connect(&text, Some(&ours), &any, &remark).await.unwrap();
                talk.write_all(b"x").await.unwrap();
                talk.flush().await.unwrap();
                talk
            },
            async {
                let mut byte = [0];
                unhurried(&mut door).await.read_exact(&mut byte).await.map(|_| byte)
            }
        );
        assert_eq!(read.unwrap(), *b"x");
        drop(talk);
        while lock(&door.house).all > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}
