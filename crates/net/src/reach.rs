//! Sockets of `polycast doctor`: one that asks which hosts are there, by multicast or of one host, and one
//! that answers.

use crate::udp::{hear_joined_only, join_group, multicast_sender, socket_of};
use polycast_wire::reach::{PORT, Reach, group_for, question_of};
use socket2::{Domain, Protocol, Socket, Type};
use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

/// Answers in one second at most, to all hosts together.
const ANSWERS_MAX: u32 = 200;
/// Questions of which it is known that they were heard before.
const HEARD_MAX: usize = 256;
/// A look at whether the caller has asked to end it.
const LOOK: Duration = Duration::from_millis(200);

/// A host that answered: where from, under which name, and how long the question was that came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    /// The address that the answer came from.
    pub from: SocketAddr,
    /// The host's name.
    pub name: String,
    /// Bytes of the question as it came.
    pub len: u16,
}

/// A socket that asks.
#[derive(Debug)]
pub struct Asker {
    socket: UdpSocket,
    group: IpAddr,
}

impl Asker {
    /// Opens it on the interface with this address. The kernel sends nothing in fragments that fits into the
    /// interface's MTU.
    ///
    /// # Errors
    /// No socket can be had, or the interface cannot send multicast.
    pub fn open(interface: IpAddr) -> io::Result<Self> {
        let socket = multicast_sender(interface)?;
        socket.bind(&SocketAddr::new(interface, 0).into())?;
        Ok(Asker { socket: socket.into(), group: group_for(interface) })
    }

    /// Asks all hosts of the group, or one.
    ///
    /// # Errors
    /// There is no route, or the interface does not take packets of this length.
    pub fn ask(&self, to: Option<SocketAddr>, number: u64, len: usize) -> io::Result<()> {
        let to = to.unwrap_or(SocketAddr::new(self.group, PORT));
        self.socket.send_to(&Reach::Ask { number, len }.emit(), to).map(drop)
    }

    /// The next answer to this question, if one comes in time.
    pub fn answer(&self, number: u64, within: Duration) -> Option<Answered> {
        let until = Instant::now() + within;
        let mut buffer = [0; 2_048];
        loop {
            let left = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())?;
            self.socket.set_read_timeout(Some(left)).ok()?;
            // An error here is a host that says that no process listens there: others may.
            let Ok((read, from)) = self.socket.recv_from(&mut buffer) else { continue };
            match Reach::parse(&buffer[..read]) {
                Ok(Reach::Answer { number: of, len, name }) if of == number => {
                    return Some(Answered { from, name, len });
                }
                _ => {}
            }
        }
    }
}

/// A socket that answers.
#[derive(Debug)]
pub struct Answerer {
    socket: UdpSocket,
    name: String,
}

impl Answerer {
    /// Opens it on the interface with this address; several programs of a host can have one.
    ///
    /// # Errors
    /// The port is taken by another kind of program, or the interface cannot take part in multicast.
    pub fn open(interface: IpAddr, name: &str) -> io::Result<Self> {
        let socket = socket_of(interface)?;
        socket.set_reuse_address(true)?;
        hear_joined_only(&socket, interface)?;
        let all = match interface {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        socket.bind(&SocketAddr::new(all, PORT).into())?;
        join_group(&socket, interface, group_for(interface))?;
        socket.set_read_timeout(Some(LOOK))?;
        Ok(Answerer { socket: socket.into(), name: name.to_string() })
    }

    /// Answers until `ends` says so; `on_ask` hears of every question once, however often it is sent.
    pub fn run(&self, ends: &dyn Fn() -> bool, on_ask: &mut dyn FnMut(SocketAddr, usize)) {
        let mut buffer = vec![0; crate::udp::DATAGRAM_LEN_MAX];
        let (mut second, mut count) = (Instant::now(), 0);
        let mut heard = VecDeque::new();
        while !ends() {
            let Ok((read, from)) = self.socket.recv_from(&mut buffer) else {
                continue;
            };
            let Ok(Reach::Ask { number, len }) = Reach::parse(&buffer[..read]) else { continue };
            if second.elapsed() >= Duration::from_secs(1) {
                (second, count) = (Instant::now(), 0);
            }
            count += 1;
            if count > ANSWERS_MAX {
                continue;
            }
            let question = (from, question_of(number));
            if !heard.contains(&question) {
                heard.truncate(HEARD_MAX - 1);
                heard.push_front(question);
                on_ask(from, len);
            }
            let len = u16::try_from(len).unwrap_or(u16::MAX);
            let answer = Reach::Answer { number, len, name: self.name.clone() };
            // The host that asked may be gone.
            let _ = self.socket.send_to(&answer.emit(), from);
        }
    }
}

/// Waits for a query of IGMP, by which a switch or router shows that it looks after multicast; gives its
/// sender, and the version of the query.
///
/// # Errors
/// It takes root.
pub fn querier(within: Duration) -> io::Result<Option<(Ipv4Addr, u8)>> {
    const IGMP: i32 = 2;
    const QUERY: u8 = 0x11;
    let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::from(IGMP)))?;
    let until = Instant::now() + within;
    let mut buffer = [0; 2_048];
    while let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
        socket.set_read_timeout(Some(left))?;
        let Ok(read) = io::Read::read(&mut &socket, &mut buffer) else { continue };
        let packet = &buffer[..read];
        let Some(header_len) = packet.first().map(|first| usize::from(first & 15) * 4) else { continue };
        if packet.get(header_len) == Some(&QUERY)
            && let Some(from) = packet.get(12..16)
        {
            let from = Ipv4Addr::new(from[0], from[1], from[2], from[3]);
            return Ok(Some((from, query_version(&packet[header_len..]))));
        }
    }
    Ok(None)
}

/// Returns the version of a query of IGMP, by RFC 3376, section 7.1: only those of version 3 are longer than
/// 8 bytes, and those of version 1 say no time to answer in.
fn query_version(query: &[u8]) -> u8 {
    match query {
        [_, time, ..] if query.len() < 12 => 1 + u8::from(*time > 0),
        _ => 3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polycast_wire::reach::{ASK_LEN_MIN, numbered};
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn queries_are_told_apart() {
        for (time, len, version) in [(0, 8, 1), (100, 8, 2), (1, 8, 2), (100, 12, 3), (0, 12, 3), (7, 16, 3)]
        {
            let mut query = vec![0; len];
            (query[0], query[1]) = (0x11, time);
            assert_eq!(query_version(&query), version, "{time} {len}");
        }
    }

    #[test]
    fn a_question_that_is_sent_again_is_heard_once_and_answered_each_time() {
        let (lo, ends) = (IpAddr::V4(Ipv4Addr::LOCALHOST), AtomicBool::new(false));
        let answerer = Answerer::open(lo, "again").unwrap();
        let asker = Asker::open(lo).unwrap();
        let own = asker.socket.local_addr().unwrap();
        let heard = std::thread::scope(|scope| {
            let listening = scope.spawn(|| {
                let mut heard = Vec::new();
                let mut on_ask = |from, len| {
                    if from == own {
                        heard.push(len)
                    }
                };
                answerer.run(&|| ends.load(Ordering::Relaxed), &mut on_ask);
                heard
            });
            for (question, len) in [(1, ASK_LEN_MIN), (2, 1_400)] {
                for attempt in 0..3 {
                    let number = numbered(question, attempt);
                    asker.ask(None, number, len).unwrap();
                    let answers = std::iter::from_fn(|| asker.answer(number, polycast_testing::HANG));
                    assert!(answers.into_iter().any(|answer| answer.name == "again"), "{question} {attempt}");
                }
            }
            ends.store(true, Ordering::Relaxed);
            listening.join().unwrap()
        });
        assert_eq!(heard, [ASK_LEN_MIN, 1_400]);
    }

    #[test]
    fn who_listens_answers_by_multicast_and_alone() {
        let (lo, ends) = (IpAddr::V4(Ipv4Addr::LOCALHOST), AtomicBool::new(false));
        let answerer = Answerer::open(lo, "one").unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| answerer.run(&|| ends.load(Ordering::Relaxed), &mut |_, _| {}));
            let asker = Asker::open(lo).unwrap();
            for (number, to, len) in
                [(1, None, ASK_LEN_MIN), (2, Some(SocketAddr::new(lo, PORT)), 1_400), (3, None, 9_000)]
            {
                asker.ask(to, number, len).unwrap();
                // Other tests of this machine may answer as well.
                let own = std::iter::from_fn(|| asker.answer(number, polycast_testing::HANG))
                    .find(|answer| answer.name == "one");
                assert_eq!(own.map(|answer| usize::from(answer.len)), Some(len), "question {number}");
            }
            assert_eq!(asker.answer(4, Duration::from_millis(50)), None, "no host was asked that");
            ends.store(true, Ordering::Relaxed);
        });
    }
}
