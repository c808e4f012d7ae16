//! Sockets of `polycast doctor`: one that asks which hosts are there, by multicast or of one host, and one
//! that answers.

use crate::interface::of_address;
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

/// A switch or router that asks which hosts are in which group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Querier {
    /// Address that it asks from.
    pub from: IpAddr,
    /// Version of its query: of IGMP, and of MLD where its address is of IPv6.
    pub version: u8,
}

/// Waits on the interface with this address for a query of IGMP, or of MLD where the address is of IPv6, by
/// which a switch or router shows that it looks after multicast.
///
/// # Errors
/// It takes root.
pub fn querier(interface: IpAddr, within: Duration) -> io::Result<Option<Querier>> {
    const IGMP: i32 = 2;
    let (domain, protocol) = match interface {
        IpAddr::V4(_) => (Domain::IPV4, Protocol::from(IGMP)),
        IpAddr::V6(_) => (Domain::IPV6, Protocol::ICMPV6),
    };
    let socket = Socket::new(domain, Type::RAW, Some(protocol))?;
    socket.bind_device(Some(of_address(interface).map_err(io::Error::other)?.name.as_bytes()))?;
    let socket = UdpSocket::from(socket);
    let until = Instant::now() + within;
    let mut buffer = [0; 2_048];
    while let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
        socket.set_read_timeout(Some(left))?;
        let Ok((read, from)) = socket.recv_from(&mut buffer) else { continue };
        let version = match interface {
            IpAddr::V4(_) => igmp_version(&buffer[..read]),
            IpAddr::V6(_) => mld_version(&buffer[..read]),
        };
        if let Some(version) = version {
            return Ok(Some(Querier { from: from.ip(), version }));
        }
    }
    Ok(None)
}

/// Returns the version of an IP packet with a query of IGMP, by RFC 3376, section 7.1: only those of version
/// 3 are longer than 8 bytes, and those of version 1 say no time to answer in.
fn igmp_version(packet: &[u8]) -> Option<u8> {
    const QUERY: u8 = 0x11;
    let header_len = usize::from(packet.first()? & 15) * 4;
    match packet.get(header_len..)? {
        query @ [QUERY, time, ..] if query.len() < 12 => Some(1 + u8::from(*time > 0)),
        [QUERY, ..] => Some(3),
        _ => None,
    }
}

/// Returns the version of an ICMPv6 packet with a query of MLD, by RFC 3810, section 8.1: those of version 1
/// have 24 bytes, and those of version 2 at least 28. The kernel hands them over without the IP header.
fn mld_version(packet: &[u8]) -> Option<u8> {
    const QUERY: u8 = 130;
    match (packet.first()?, packet.len()) {
        (&QUERY, 24) => Some(1),
        (&QUERY, 28..) => Some(2),
        _ => None,
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
            let mut packet = vec![0; 24 + len];
            (packet[0], packet[24], packet[25]) = (0x46, 0x11, time);
            assert_eq!(igmp_version(&packet), Some(version), "{time} {len}");
            packet[24] = 0x16;
            assert_eq!(igmp_version(&packet), None, "a report");
        }
        for (kind, len, version) in
            [(130, 24, Some(1)), (130, 28, Some(2)), (130, 44, Some(2)), (130, 26, None), (143, 28, None)]
        {
            let mut packet = vec![0; len];
            packet[0] = kind;
            assert_eq!(mld_version(&packet), version, "{kind} {len}");
        }
        assert_eq!((igmp_version(&[]), igmp_version(&[0x4f, 1]), mld_version(&[])), (None, None, None));
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
