//! A leader sends small requests to acceptors and goes on when a majority has answered: what costs in
//! consensus (Shufflecast section VI-D, figure 8(d)). Requests go to each acceptor over a TCP connection of
//! its own, or to all as one message of a stream; answers come back over the connections in both cases.
//!
//! A stream repairs nothing, and a leader of Paxos says again what is not answered: so does this one.

use super::{STREAM, Stage, await_joined, failed, nanos};
use crate::error::LabError;
use crate::layout::Host;
use crate::spec::Network;
use polycast_api::client::{MessageReceiver, MessageSender, Received, Session};
use polycast_net::bpf::in_namespace;
use serde::{Deserialize, Serialize};
use std::net::{SocketAddr, TcpListener, TcpStream as Connection};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Requests before those that count: connections and paths are warm then.
const WARM: u64 = 20;
/// Time without an answer after which requests are repeated.
const AGAIN: Duration = Duration::from_millis(200);
/// Requests that are said again at a time.
const AGAIN_MAX: u64 = 64;
/// Without any progress for so long the measurement has failed.
const PATIENCE: Duration = Duration::from_secs(20);
/// Answers that the leader has not looked at yet.
const ANSWERS_MAX: usize = 1_024;
/// A request's number goes before its value.
const NUMBER_LEN: usize = 8;

/// Results of the requests of one way.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Replicated {
    /// `unicast`, or the fabric of the stream; of Paxos `udp unicast`, or `udp group over` its fabric.
    pub way: String,
    /// Number of acceptors.
    pub acceptors: u32,
    /// From each request to the answers of a majority, in the order of the requests.
    pub latency_ns: Vec<u64>,
    /// From the first request to the last majority.
    pub seconds: f64,
    /// For how many requests each acceptor has answered, in their order: each for all in the end, but in
    /// Paxos, which waits for a majority alone.
    pub answered: Vec<u64>,
    /// Requests that were said again.
    pub again: u64,
}

/// An acceptor: it takes requests in the order of their numbers, and answers each with how many it has.
#[derive(Debug, Default)]
struct Acceptor {
    taken: u64,
}

impl Acceptor {
    /// A request has come; gives the answer. One that is ahead of others waits until they are said again.
    fn take(&mut self, number: u64) -> u64 {
        self.taken += u64::from(number == self.taken);
        self.taken
    }
}

fn number(request: &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(request.get(..NUMBER_LEN)?.try_into().ok()?))
}

/// Both ends of the connection between the leader and an acceptor, each made in its host's namespace.
fn connect(leader: &Host, acceptor: &Host) -> std::io::Result<(TcpStream, TcpStream)> {
    let place = |host: &Host| -> PathBuf { Path::new("/run/netns").join(&host.name) };
    let at = SocketAddr::new(leader.address, 0);
    let listener = in_namespace(&place(leader), || TcpListener::bind(at))??;
    let to = listener.local_addr()?;
    let far = in_namespace(&place(acceptor), || Connection::connect_timeout(&to, PATIENCE))??;
    let (near, _) = listener.accept()?;
    for end in [&near, &far] {
        end.set_nodelay(true)?;
        end.set_nonblocking(true)?;
    }
    Ok((TcpStream::from_std(near)?, TcpStream::from_std(far)?))
}

/// Way in which requests reach the acceptors.
enum Way {
    Unicast(Vec<OwnedWriteHalf>),
    Stream(MessageSender),
}

impl Way {
    async fn send(&mut self, request: &[u8]) -> Result<(), LabError> {
        match self {
            Way::Unicast(acceptors) => {
                for acceptor in acceptors {
                    let sent = acceptor.write_all(request).await;
                    sent.map_err(|error| failed("send a request", error))?;
                }
                Ok(())
            }
            Way::Stream(sender) => match sender.send(vec![request.to_vec()]).await {
                true => Ok(()),
                false => Err(failed("send a request", "the agent has ended the stream")),
            },
        }
    }
}

/// The leader's end of one way.
struct Leader {
    way: Way,
    value_len: usize,
    /// Answers: the acceptor, and the number of requests that it has.
    answers: mpsc::Receiver<(usize, u64)>,
    taken: Vec<u64>,
    again: u64,
}

impl Leader {
    async fn say(&mut self, number: u64) -> Result<(), LabError> {
        let mut request = number.to_le_bytes().to_vec();
        request.resize(NUMBER_LEN + self.value_len, 1);
        self.way.send(&request).await
    }

    /// Waits until so many acceptors have so many requests.
    async fn wait(&mut self, acceptors: usize, requests: u64) -> Result<(), LabError> {
        let mut moved_at = Instant::now();
        while self.taken.iter().filter(|taken| **taken >= requests).count() < acceptors {
            match tokio::time::timeout(AGAIN, self.answers.recv()).await {
                Ok(Some((acceptor, taken))) if taken > self.taken[acceptor] => {
                    self.taken[acceptor] = taken;
                    moved_at = Instant::now();
                }
                Ok(Some(_)) => {}
                Ok(None) => return Err(failed("wait for answers", "all acceptors have gone")),
                Err(_) if moved_at.elapsed() > PATIENCE => {
                    let reason = format!("acceptors have {:?} of {requests} requests", self.taken);
                    return Err(failed("wait for answers", reason));
                }
                Err(_) => {
                    let from = self.taken.iter().copied().min().unwrap_or(0);
                    for number in from..requests.min(from + AGAIN_MAX) {
                        self.say(number).await?;
                        self.again += 1;
                    }
                }
            }
        }
        Ok(())
    }

    /// All requests, one after the other; and then all acceptors have all of them.
    async fn run(mut self, way: String, requests: u64) -> Result<Replicated, LabError> {
        let count = self.taken.len();
        let (mut latency_ns, mut begun) = (Vec::new(), Instant::now());
        for number in 0..WARM + requests {
            let sent_at = Instant::now();
            if number == WARM {
                begun = sent_at;
            }
            self.say(number).await?;
            self.wait(count / 2 + 1, number + 1).await?;
            if number >= WARM {
                latency_ns.push(nanos(sent_at.elapsed()));
            }
        }
        let seconds = begun.elapsed().as_secs_f64();
        self.wait(count, WARM + requests).await?;
        if let Way::Stream(sender) = self.way {
            sender.finish().await.map_err(|error| failed("end the stream", error))?;
        }
        let answered = self.taken.iter().map(|taken| taken - WARM).collect();
        Ok(Replicated { way, acceptors: count as u32, latency_ns, seconds, answered, again: self.again })
    }
}

/// Passes answers of an acceptor on to the leader.
async fn hear(acceptor: usize, mut answers: OwnedReadHalf, to: mpsc::Sender<(usize, u64)>) {
    // It ends with the connection, or with the leader.
    while let Ok(taken) = answers.read_u64_le().await {
        if to.send((acceptor, taken)).await.is_err() {
            return;
        }
    }
}

/// Answers requests that come over the connection.
async fn accept(mut requests: OwnedReadHalf, mut answers: OwnedWriteHalf, value_len: usize) {
    let (mut acceptor, mut request) = (Acceptor::default(), vec![0; NUMBER_LEN + value_len]);
    while requests.read_exact(&mut request).await.is_ok() {
        let Some(number) = number(&request) else { return };
        if answers.write_u64_le(acceptor.take(number)).await.is_err() {
            return;
        }
    }
}

/// Answers requests that come as messages.
async fn accept_messages(session: Session, mut messages: MessageReceiver, mut answers: OwnedWriteHalf) {
    let mut acceptor = Acceptor::default();
    // The source ends it. Its session lives as long as this.
    let _session = session;
    while let Ok(Some(received)) = messages.next().await {
        let Received::Messages(messages) = received else { continue };
        for number in messages.iter().filter_map(|message| number(&message.payload)) {
            if answers.write_u64_le(acceptor.take(number)).await.is_err() {
                return;
            }
        }
    }
}

impl Stage<'_> {
    /// The requests by unicast and as a stream, with each number of acceptors; and by the Paxos of
    /// [`super::paxos`], by unicast and over a group, where the fabric carries groups.
    pub(super) async fn replication(
        &self,
        acceptors: &[u32],
        requests: u64,
        value_len: usize,
    ) -> Result<Vec<Replicated>, LabError> {
        let (leader, others) = self.layout.hosts.split_first().expect("a lab has hosts");
        // As many racks as there are: the first host of each, then the second ones.
        let mut others: Vec<&Host> = others.iter().collect();
        others.sort_by_key(|host| (host.place, host.rack));
        let most = acceptors.iter().copied().max().unwrap_or(0) as usize;
        if most > others.len() || acceptors.contains(&0) {
            let reason =
                format!("there can be 1 to {} acceptors beside the leader in this lab", others.len());
            return Err(failed("ask acceptors", reason));
        }
        let mut all = Vec::new();
        for count in acceptors {
            let hosts = &others[..*count as usize];
            all.push(self.by_unicast(leader, hosts, requests, value_len).await?);
            all.push(self.by_stream(leader, hosts, requests, value_len).await?);
            if self.carries_groups() {
                all.extend(self.paxos((leader, hosts), (requests, value_len)).await?);
            }
        }
        Ok(all)
    }

    /// Returns true if the lab's fabric carries packets that applications send themselves.
    fn carries_groups(&self) -> bool {
        matches!(
            self.spec.network,
            Network::Bridge { .. } | Network::Blast { .. } | Network::Shufflecast { .. }
        )
    }

    async fn by_unicast(
        &self,
        leader: &Host,
        acceptors: &[&Host],
        requests: u64,
        value_len: usize,
    ) -> Result<Replicated, LabError> {
        let (to_leader, answers) = mpsc::channel(ANSWERS_MAX);
        // All of them end when this is dropped.
        let mut tasks = JoinSet::new();
        let mut writers = Vec::new();
        for (at, host) in acceptors.iter().enumerate() {
            let pair = connect(leader, host).map_err(|error| failed("connect an acceptor", error))?;
            let ((from_acceptor, to_acceptor), (from_leader, back)) =
                (pair.0.into_split(), pair.1.into_split());
            writers.push(to_acceptor);
            tasks.spawn(hear(at, from_acceptor, to_leader.clone()));
            tasks.spawn(accept(from_leader, back, value_len));
        }
        let way = Way::Unicast(writers);
        let leader = Leader { way, value_len, answers, taken: vec![0; acceptors.len()], again: 0 };
        leader.run("unicast".into(), requests).await
    }

    async fn by_stream(
        &self,
        leader: &Host,
        acceptors: &[&Host],
        requests: u64,
        value_len: usize,
    ) -> Result<Replicated, LabError> {
        let (to_leader, answers) = mpsc::channel(ANSWERS_MAX);
        let source = self.session(leader).await?;
        source.create_stream(STREAM, false).await.map_err(|error| failed("make a stream", error))?;
        let mut tasks = JoinSet::new();
        let (mut fabric, mut kept) = (String::new(), Vec::new());
        for (at, host) in acceptors.iter().enumerate() {
            let (near, far) = connect(leader, host).map_err(|error| failed("connect an acceptor", error))?;
            let (from_acceptor, to_acceptor) = near.into_split();
            // Nothing goes this way here, but a half that is dropped shuts it down.
            kept.push(to_acceptor);
            let session = self.session(host).await?;
            let messages = session.receive_messages(STREAM, Some(self.hold())).await;
            let mut messages = messages.map_err(|error| failed("join the stream", error))?;
            fabric = await_joined(&mut messages).await?;
            tasks.spawn(hear(at, from_acceptor, to_leader.clone()));
            let (unused, back) = far.into_split();
            tasks.spawn(async move {
                accept_messages(session, messages, back).await;
                drop(unused);
            });
        }
        let way = Way::Stream(source.send_messages(STREAM));
        let leader = Leader { way, value_len, answers, taken: vec![0; acceptors.len()], again: 0 };
        let outcome = leader.run(fabric, requests).await?;
        source.end_stream(STREAM).await.map_err(|error| failed("end the stream", error))?;
        Ok(outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_acceptor_takes_requests_in_their_order_and_each_once() {
        let mut acceptor = Acceptor::default();
        let answers: Vec<u64> = [0, 1, 1, 3, 4, 2, 3, 0, 4].map(|number| acceptor.take(number)).to_vec();
        assert_eq!(answers, [1, 2, 2, 2, 2, 3, 4, 4, 5]);
    }

    #[test]
    fn a_request_that_is_too_short_has_no_number() {
        assert_eq!(number(&[7, 0, 0, 0, 0, 0, 0, 0, 1]), Some(7));
        assert_eq!(number(&[7, 0, 0]), None);
    }
}
