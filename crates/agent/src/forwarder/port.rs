//! One port of a node: its socket, what waits to be sent by it, and whether the neighbour is there.

use super::{PortConfig, PortStatus};
use polycast_net::neighbour::{NeighbourSocket, Sent};
use polycast_net::priority::Dscp;
use polycast_net::udp::{DATAGRAM_LEN_MAX, SEGMENTS_MAX};
use polycast_net::words::{Words, WordsKey};
use polycast_protocol::pull::{Neighbour, NeighbourConfig, NeighbourOutput};
use polycast_types::{Duration, Time};
use polycast_wire::pull::{HEADER_LEN, Packet, greeting};
use polycast_wire::words::Way;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddrV4;
use std::path::Path;

/// Bytes that may wait for the socket; more is dropped, as at a switch port.
const QUEUE_LEN: usize = 512 << 10;
/// From so many waiting bytes on, a source of the same node waits.
const SOURCE_LEN: usize = 64 << 10;

/// Packets of one length that lie one behind the other.
#[derive(Default)]
struct Batch {
    segment_len: usize,
    bytes: Vec<u8>,
    /// A shorter packet is its last.
    closed: bool,
}

/// Packets in their order.
#[derive(Default)]
struct Queue {
    batches: VecDeque<Batch>,
    spare: Vec<Vec<u8>>,
}

impl Queue {
    fn push(&mut self, header: &[u8; HEADER_LEN], payload: &[u8]) {
        let len = HEADER_LEN + payload.len();
        let fits = |batch: &&mut Batch| {
            !batch.closed
                && len <= batch.segment_len
                && batch.bytes.len() + len <= DATAGRAM_LEN_MAX
                && batch.bytes.len() / batch.segment_len < SEGMENTS_MAX
        };
        if self.batches.back_mut().filter(fits).is_none() {
            let bytes = self.spare.pop().unwrap_or_default();
            self.batches.push_back(Batch { segment_len: len, bytes, closed: false });
        }
        let Some(batch) = self.batches.back_mut() else { return };
        batch.bytes.extend_from_slice(header);
        batch.bytes.extend_from_slice(payload);
        batch.closed = len < batch.segment_len;
    }

    fn pop(&mut self) {
        if let Some(mut batch) = self.batches.pop_front()
            && self.spare.len() < 4
        {
            batch.bytes.clear();
            self.spare.push(batch.bytes);
        }
    }
}

/// A port.
pub(super) struct Port {
    pub(super) socket: NeighbourSocket,
    pub(super) peer: SocketAddrV4,
    pub(super) rate_bps: Option<u64>,
    /// Interests and greetings go before data: they are small, and everything waits for them.
    interests: Queue,
    data: Queue,
    queued_len: usize,
    /// The socket has no room.
    blocked: bool,
    /// State of the neighbour.
    neighbour: Neighbour,
    status: PortStatus,
    /// Seal of the greetings, and their two ways.
    words: Words,
    ways: [Way; 2],
    malformed: u64,
}

/// From one end of a link to the other.
fn way(from: SocketAddrV4, to: SocketAddrV4) -> Way {
    let [from, to] = [from, to].map(|end| (end.ip().octets(), end.port()));
    Way::Greeting { from, to }
}

impl Port {
    pub(super) fn open(
        config: &PortConfig,
        namespace: Option<&Path>,
        greeting_interval: Duration,
        damping: Duration,
        now: Time,
        key: &WordsKey,
    ) -> io::Result<Self> {
        Ok(Port {
            socket: NeighbourSocket::open(config.local, config.peer, namespace)?,
            peer: config.peer,
            rate_bps: config.rate_bps().map_err(io::Error::other)?,
            interests: Queue::default(),
            data: Queue::default(),
            queued_len: 0,
            blocked: false,
            neighbour: Neighbour::new(NeighbourConfig { greeting: greeting_interval, damping }, now),
            status: PortStatus::default(),
            words: Words::new(key),
            ways: [way(config.local, config.peer), way(config.peer, config.local)],
            malformed: 0,
        })
    }

    /// The same, with all packets marked with a class of service, where there is one.
    pub(super) fn with_class(self, dscp: Option<Dscp>) -> io::Result<Self> {
        Ok(Port { socket: self.socket.with_class(dscp)?, ..self })
    }

    /// Queues a packet, or drops it if too much waits already.
    pub(super) fn push(&mut self, header: &[u8; HEADER_LEN], payload: &[u8]) {
        let len = HEADER_LEN + payload.len();
        if self.queued_len + len > QUEUE_LEN {
            self.status.dropped += 1;
            return;
        }
        self.queued_len += len;
        let queue = if payload.is_empty() { &mut self.interests } else { &mut self.data };
        queue.push(header, payload);
    }

    /// Returns true if a source may send more by it.
    pub(super) fn has_room(&self) -> bool {
        self.queued_len < SOURCE_LEN
    }

    /// Returns true while it waits until its socket can be written to.
    pub(super) fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// The socket has room again.
    pub(super) fn unblock(&mut self) {
        self.blocked = false;
    }

    /// Sends what the socket takes.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        while !self.blocked {
            let queue = if self.interests.batches.is_empty() { &mut self.data } else { &mut self.interests };
            let Some(batch) = queue.batches.front() else { return Ok(()) };
            let packets = batch.bytes.len().div_ceil(batch.segment_len) as u64;
            match self.socket.send(&batch.bytes, batch.segment_len)? {
                Sent::Full => {
                    self.blocked = true;
                    return Ok(());
                }
                Sent::Yes => {
                    self.status.sent += packets;
                    self.status.sent_bytes += batch.bytes.len() as u64;
                }
                Sent::Lost => self.status.dropped += packets,
            }
            self.queued_len -= batch.bytes.len();
            queue.pop();
        }
        Ok(())
    }

    /// So many packets have come by it.
    pub(super) fn heard(&mut self, now: Time, packets: u64) {
        self.neighbour.heard(now);
        self.status.received += packets;
    }

    /// A greeting has come by it; where they are sealed, it counts only if the neighbour has said it.
    pub(super) fn greeted(&mut self, datagram: &[u8]) {
        let message = self.words.hear(self.ways[1], 0, datagram);
        match message.map(Packet::parse) {
            Some(Ok(Packet::Greeting { heard })) => self.neighbour.greeted(heard),
            Some(_) => self.malformed += 1,
            None => {}
        }
    }

    /// Greetings that were none, or not the neighbour's.
    pub(super) fn malformed(&self) -> u64 {
        self.malformed + self.words.forged()
    }

    /// The interface can carry packets, or no longer.
    pub(super) fn set_carrier(&mut self, has_carrier: bool) {
        self.neighbour.set_carrier(has_carrier);
    }

    /// Greets when it is time; gives the new state of the link when it has changed for long enough, or is
    /// known at last.
    pub(super) fn tick(&mut self, now: Time) -> Option<bool> {
        while let Some(output) = self.neighbour.poll(now) {
            match output {
                NeighbourOutput::Greet { heard } => self.greet(heard),
                NeighbourOutput::Link { up } => return Some(up),
            }
        }
        None
    }

    fn greet(&mut self, heard: bool) {
        let greeting = greeting(heard);
        let word = self.words.say(self.ways[0], &greeting).into_owned();
        if self.queued_len + word.len() <= QUEUE_LEN {
            self.queued_len += word.len();
            self.interests.push(&greeting, &word[HEADER_LEN..]);
        }
    }

    /// Returns the time to greet again, or to report a change.
    pub(super) fn deadline(&self) -> Time {
        self.neighbour.deadline()
    }

    /// Returns true if the link is known not to work.
    pub(super) fn is_down(&self) -> bool {
        !self.neighbour.is_up() && self.neighbour.is_known()
    }

    pub(super) fn status(&self) -> PortStatus {
        PortStatus { up: self.neighbour.is_up(), known: self.neighbour.is_known(), ..self.status.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polycast_net::seal::Secret;
    use polycast_net::tls::Security;
    use std::net::{Ipv4Addr, SocketAddr, UdpSocket};

    const GREETING: Duration = Duration::from_millis(100);
    const DAMPING: Duration = Duration::from_millis(30);

    fn port() -> Port {
        // Addresses that no other socket has; the neighbour's end is not opened.
        let free = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let SocketAddr::V4(local) = free.local_addr().unwrap() else { panic!("it is an IPv4 one") };
        drop(free);
        let config = PortConfig { local, peer: "127.0.0.1:9".parse().unwrap(), rate: None };
        Port::open(&config, None, GREETING, DAMPING, Time::ZERO, &WordsKey::default()).unwrap()
    }

    fn at(ms: u64) -> Time {
        Time::ZERO + Duration::from_millis(ms)
    }

    /// Decisions of the neighbour's machine show in the port's status, and its greetings are queued.
    #[test]
    fn a_port_greets_and_tells_its_link() {
        let mut port = port();
        assert_eq!((port.tick(at(0)), port.deadline(), port.queued_len), (None, at(150), 0));
        port.heard(at(10), 1);
        assert_eq!((port.deadline(), port.tick(at(10))), (at(10), None));
        assert!(port.queued_len > 0 && !port.is_down() && !port.status().known);
        port.greeted(&greeting(true));
        assert_eq!(port.tick(at(11)), Some(true));
        assert!(port.status().up && port.status().known && port.status().received == 1);
        port.set_carrier(false);
        assert_eq!((port.tick(at(12)), port.tick(at(42))), (None, Some(false)));
        assert!(port.is_down() && !port.status().up);
    }

    /// A stranger that takes the neighbour's address does not take the link down; nor is what this end has
    /// said heard as the neighbour's.
    #[test]
    fn in_a_cluster_with_a_key_only_the_neighbour_greets() {
        let key = WordsKey::of(Some(&Security::shared(&Secret::fresh())));
        let mut port = port();
        port.words = Words::new(&key);
        let mut neighbour = Words::new(&key);
        let [here, there] = port.ways;
        let [deaf, hears] = [false, true].map(|heard| neighbour.say(there, &greeting(heard)).into_owned());
        let own = Words::new(&key).say(here, &greeting(false)).into_owned();
        port.heard(at(0), 1);
        for forged in [&greeting(false)[..], &own] {
            port.greeted(forged);
        }
        assert_eq!((port.tick(at(0)), port.tick(at(30)), port.malformed()), (None, None, 2));
        port.greeted(&deaf);
        // Whether the link works is unknown until both ends have heard each other.
        assert_eq!((port.tick(at(31)), port.tick(at(61))), (None, None));
        port.greeted(&hears);
        port.greeted(&deaf);
        assert_eq!(
            (port.tick(at(62)), port.tick(at(92)), port.malformed()),
            (Some(true), None, 3),
            "what is known at last is said at once; an old one is counted, and not believed"
        );
    }
}
