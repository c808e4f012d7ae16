//! Paxos by plain UDP (Shufflecast section VI-D, figure 8(d)): a proposer has values of a client accepted one
//! after the other. Phase 2a goes to each acceptor in a datagram of its own, or to all in one datagram to a
//! group whose path is leased and which no agent is in the way of; all else is the same.
//!
//! Client, proposer and learner are one program at the first host. Phase 1 runs once, for all values: no
//! other proposer ever comes. Datagrams may be lost, so the proposer says again what is not answered.

use super::replication::Replicated;
use super::{PATIENCE, Stage, failed, nanos};
use crate::error::LabError;
use crate::layout::Host;
use polycast_api::client::AgentClient;
use polycast_net::bpf::in_namespace;
use socket2::{Domain, Protocol, Socket, Type};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Values before those that count: neighbours are known and rules are set then.
const WARM: u64 = 20;
/// Time without an answer after which the proposer says the same again; acceptors look as often whether it
/// has ended.
const AGAIN: Duration = Duration::from_millis(200);
/// UDP port of the acceptors.
const PORT: u16 = 5_001;
/// Bytes of a message before its value: the kind, the ballot and the instance.
const HEAD_LEN: usize = 17;
/// Bytes of the longest message.
const MESSAGE_LEN_MAX: usize = 65_507;
/// The one ballot.
const BALLOT: u64 = 1;
/// Name of the leased group.
const GROUP: &str = "paxos";

/// A message of the protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Message<'a> {
    /// Phase 1a: acceptors are to take nothing of lower ballots any more.
    Prepare { ballot: u64 },
    /// Phase 1b, of an acceptor that has accepted nothing yet.
    Promise { ballot: u64 },
    /// Phase 2a: a value for an instance.
    Accept { ballot: u64, instance: u64, value: &'a [u8] },
    /// Phase 2b.
    Accepted { ballot: u64, instance: u64 },
}

impl<'a> Message<'a> {
    fn emit(self) -> Vec<u8> {
        let (kind, ballot, instance, value): (u8, u64, u64, &[u8]) = match self {
            Message::Prepare { ballot } => (1, ballot, 0, &[]),
            Message::Promise { ballot } => (2, ballot, 0, &[]),
            Message::Accept { ballot, instance, value } => (3, ballot, instance, value),
            Message::Accepted { ballot, instance } => (4, ballot, instance, &[]),
        };
        let mut bytes = vec![kind];
        bytes.extend(ballot.to_le_bytes());
        bytes.extend(instance.to_le_bytes());
        bytes.extend(value);
        bytes
    }

    fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (head, value) = bytes.split_at_checked(HEAD_LEN)?;
        let ballot = u64::from_le_bytes(head[1..9].try_into().ok()?);
        let instance = u64::from_le_bytes(head[9..].try_into().ok()?);
        Some(match head[0] {
            1 => Message::Prepare { ballot },
            2 => Message::Promise { ballot },
            3 => Message::Accept { ballot, instance, value },
            4 => Message::Accepted { ballot, instance },
            _ => return None,
        })
    }
}

/// An acceptor's memory.
#[derive(Debug, Default)]
struct Acceptor {
    promised: u64,
    /// Ballot and value of each instance.
    accepted: BTreeMap<u64, (u64, Vec<u8>)>,
}

impl Acceptor {
    /// Takes a message; gives the answer. An older ballot gets none, and nor does a new proposer that would
    /// have to go on with what was accepted before: there is none here.
    fn take(&mut self, message: Message<'_>) -> Option<Message<'static>> {
        match message {
            Message::Prepare { ballot } if ballot >= self.promised && self.accepted.is_empty() => {
                self.promised = ballot;
                Some(Message::Promise { ballot })
            }
            Message::Accept { ballot, instance, value } if ballot >= self.promised => {
                self.promised = ballot;
                self.accepted.insert(instance, (ballot, value.to_vec()));
                Some(Message::Accepted { ballot, instance })
            }
            _ => None,
        }
    }
}

/// Way in which the proposer's messages reach the acceptors.
#[derive(Clone, Copy, Debug)]
enum Way {
    Unicast,
    Group(Ipv4Addr),
}

/// A socket of a host, in the host's namespace.
fn socket_at(host: &Host, open: impl FnOnce() -> io::Result<UdpSocket> + Send) -> io::Result<UdpSocket> {
    let socket = in_namespace(&Path::new("/run/netns").join(&host.name), open)??;
    socket.set_read_timeout(Some(AGAIN))?;
    Ok(socket)
}

/// A host's address; groups of this measurement are of IPv4.
fn address(host: &Host) -> io::Result<Ipv4Addr> {
    match host.address {
        IpAddr::V4(address) => Ok(address),
        IpAddr::V6(_) => Err(io::Error::other("Paxos is measured over IPv4: leave ip=6 out")),
    }
}

/// The proposer's socket: what it sends to groups leaves by its host's own interface.
fn proposer_socket(host: &Host) -> io::Result<UdpSocket> {
    socket_at(host, || {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
        socket.set_multicast_if_v4(&address(host)?)?;
        socket.bind(&SocketAddr::from((host.address, 0)).into())?;
        Ok(socket.into())
    })
}

fn acceptor_socket(host: &Host, way: Way) -> io::Result<UdpSocket> {
    socket_at(host, || match way {
        Way::Unicast => UdpSocket::bind((host.address, PORT)),
        Way::Group(group) => {
            let socket = UdpSocket::bind((group, PORT))?;
            socket.join_multicast_v4(&group, &address(host)?)?;
            Ok(socket)
        }
    })
}

/// Answers until the measurement has ended; gives the number of values that were accepted.
fn accept(socket: &UdpSocket, ended: &AtomicBool) -> io::Result<u64> {
    let (mut acceptor, mut buffer) = (Acceptor::default(), vec![0; MESSAGE_LEN_MAX]);
    while !ended.load(Ordering::Relaxed) {
        let (length, from) = match socket.recv_from(&mut buffer) {
            Ok(received) => received,
            Err(error) if is_silence(&error) => continue,
            Err(error) => return Err(error),
        };
        let answer = Message::parse(&buffer[..length]).and_then(|message| acceptor.take(message));
        if let Some(answer) = answer {
            socket.send_to(&answer.emit(), from)?;
        }
    }
    Ok(acceptor.accepted.len() as u64)
}

fn is_silence(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// The proposer, which is the client and the learner, too.
struct Proposer {
    socket: UdpSocket,
    /// Addresses that its messages go to.
    to: Vec<SocketAddr>,
    acceptors: usize,
    again: u64,
}

impl Proposer {
    /// Says this until so many acceptors have given this answer.
    fn ask(&mut self, message: Message<'_>, answer: Message<'_>, enough: usize) -> io::Result<()> {
        let (bytes, begun) = (message.emit(), Instant::now());
        let mut answered: BTreeSet<SocketAddr> = BTreeSet::new();
        let mut buffer = [0; HEAD_LEN];
        loop {
            for to in &self.to {
                self.socket.send_to(&bytes, to)?;
            }
            loop {
                match self.socket.recv_from(&mut buffer) {
                    // Late answers to values before are nothing new.
                    Ok((length, from)) if Message::parse(&buffer[..length]) == Some(answer) => {
                        answered.insert(from);
                        if answered.len() >= enough {
                            return Ok(());
                        }
                    }
                    Ok(_) => {}
                    Err(error) if is_silence(&error) => break,
                    Err(error) => return Err(error),
                }
            }
            if begun.elapsed() > PATIENCE {
                let reason = format!("{} of {enough} acceptors have answered {message:?}", answered.len());
                return Err(io::Error::new(ErrorKind::TimedOut, reason));
            }
            self.again += 1;
        }
    }

    /// All values, one after the other: latencies, and the time that all took.
    fn run(&mut self, requests: u64, value: &[u8]) -> io::Result<(Vec<u64>, f64)> {
        let promise = Message::Promise { ballot: BALLOT };
        self.ask(Message::Prepare { ballot: BALLOT }, promise, self.acceptors)?;
        let majority = self.acceptors / 2 + 1;
        let (mut latency_ns, mut begun) = (Vec::new(), Instant::now());
        for instance in 0..WARM + requests {
            let sent_at = Instant::now();
            if instance == WARM {
                (begun, self.again) = (sent_at, 0);
            }
            let accept = Message::Accept { ballot: BALLOT, instance, value };
            self.ask(accept, Message::Accepted { ballot: BALLOT, instance }, majority)?;
            if instance >= WARM {
                latency_ns.push(nanos(sent_at.elapsed()));
            }
        }
        let seconds = begun.elapsed().as_secs_f64();
        Ok((latency_ns, seconds))
    }
}

/// The values by one way.
fn measure(
    name: String,
    way: Way,
    (proposer, acceptors): (&Host, &[&Host]),
    (requests, value_len): (u64, usize),
) -> io::Result<Replicated> {
    let sockets: Vec<UdpSocket> =
        acceptors.iter().map(|host| acceptor_socket(host, way)).collect::<io::Result<_>>()?;
    let to = match way {
        Way::Unicast => acceptors.iter().map(|host| SocketAddr::new(host.address, PORT)).collect(),
        Way::Group(group) => vec![SocketAddrV4::new(group, PORT).into()],
    };
    let socket = proposer_socket(proposer)?;
    let mut proposer = Proposer { socket, to, acceptors: acceptors.len(), again: 0 };
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let tasks: Vec<_> = sockets.iter().map(|socket| scope.spawn(|| accept(socket, &ended))).collect();
        let measured = proposer.run(requests, &vec![1; value_len]);
        ended.store(true, Ordering::Relaxed);
        let accepted = tasks.into_iter().map(|task| task.join().expect("an acceptor does not panic"));
        let accepted: Vec<u64> = accepted.collect::<io::Result<_>>()?;
        let (latency_ns, seconds) = measured?;
        // What was lost on its way to an acceptor that no majority needed is said to it no more.
        let answered = accepted.into_iter().map(|all| all.saturating_sub(WARM)).collect();
        let count = acceptors.len() as u32;
        Ok(Replicated { way: name, acceptors: count, latency_ns, seconds, answered, again: proposer.again })
    })
}

impl Stage<'_> {
    /// Paxos by unicast, and over a group.
    pub(super) async fn paxos(
        &self,
        (proposer, acceptors): (&Host, &[&Host]),
        of: (u64, usize),
    ) -> Result<[Replicated; 2], LabError> {
        let unicast = measure("udp unicast".into(), Way::Unicast, (proposer, acceptors), of);
        let unicast = unicast.map_err(|error| failed("run Paxos by unicast", error))?;
        let client = AgentClient::connect(&self.places.socket(&proposer.name)).await;
        let client = client.map_err(|error| failed("reach an agent", error))?;
        let members = acceptors.iter().map(|host| host.name.clone()).collect();
        let group = client.create_group(GROUP, members, Vec::new(), "", None).await;
        let group = group.map_err(|error| failed("make a group", error))?;
        let address = group.address.parse().map_err(|error| failed("make a group", error))?;
        let name = format!("udp group over {}", group.fabric);
        let over_group = measure(name, Way::Group(address), (proposer, acceptors), of);
        client.remove_group(GROUP).await.map_err(|error| failed("remove a group", error))?;
        let over_group = over_group.map_err(|error| failed("run Paxos over a group", error))?;
        Ok([unicast, over_group])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_acceptor_keeps_its_promise() {
        let mut acceptor = Acceptor::default();
        let accept = |ballot, instance| Message::Accept { ballot, instance, value: &[7] };
        assert_eq!(acceptor.take(Message::Prepare { ballot: 3 }), Some(Message::Promise { ballot: 3 }));
        assert_eq!(acceptor.take(Message::Prepare { ballot: 2 }), None);
        assert_eq!(acceptor.take(accept(2, 0)), None);
        let accepted = Some(Message::Accepted { ballot: 3, instance: 9 });
        assert_eq!(acceptor.take(accept(3, 9)), accepted);
        assert_eq!(acceptor.take(accept(3, 9)), accepted, "it was said again");
        assert_eq!(acceptor.accepted, BTreeMap::from([(9, (3, vec![7]))]));
        assert_eq!(acceptor.take(Message::Prepare { ballot: 4 }), None, "it has a value already");
        assert_eq!(acceptor.take(Message::Promise { ballot: 9 }), None);
    }

    proptest! {
        #[test]
        fn messages_are_read_as_they_were_written(ballot: u64, instance: u64, value: Vec<u8>) {
            let all = [
                Message::Prepare { ballot },
                Message::Promise { ballot },
                Message::Accept { ballot, instance, value: &value },
                Message::Accepted { ballot, instance },
            ];
            for message in all {
                let written = message.emit();
                prop_assert_eq!(Message::parse(&written), Some(message));
            }
        }

        #[test]
        fn no_bytes_are_read_wrongly(bytes: Vec<u8>) {
            if let Some(message) = Message::parse(&bytes) {
                prop_assert_eq!(&message.emit()[..9], &bytes[..9]);
            }
        }
    }
}
