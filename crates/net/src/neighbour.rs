//! The socket between two neighbours of a pull network (Datacast, section 6): connected UDP, with
//! segmentation (GSO) and coalescing (GRO), so that one system call moves up to 64 KiB of packets.

use crate::priority::Dscp;
use crate::udp::{Arrival, DATAGRAM_LEN_MAX, SEGMENTS_MAX, receive_coalesced};
use nix::errno::Errno;
use nix::sched::{CloneFlags, setns};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg, setsockopt, sockopt};
use rustix::net::sockopt::{Ipv4PathMtuDiscovery, set_ip_mtu_discover};
use socket2::{Domain, Protocol, Socket, Type};
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddrV4;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;

/// Receive buffer that a socket asks for; the kernel gives at most its `rmem_max`.
const RECEIVE_BUFFER_LEN: usize = 4 << 20;
/// Bytes that may wait between the socket and the wire. More would only be older on arrival.
const SEND_BUFFER_LEN: usize = 256 << 10;

/// Outcome of sending packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// They are on their way.
    Yes,
    /// The socket is full: try again when it can be written to.
    Full,
    /// The link is down, or no process listens at its other end.
    Lost,
}

/// One end of a link.
#[derive(Debug)]
pub struct NeighbourSocket {
    socket: Socket,
    /// Set if the kernel segments for us; found out when it does not.
    segmentation: bool,
    control: Vec<u8>,
}

impl NeighbourSocket {
    /// Opens the end of a link with these addresses; `namespace` is the file of the network namespace that it
    /// is in, without one that of this process.
    ///
    /// # Errors
    /// There is no such namespace, or the local address is not there or taken.
    pub fn open(local: SocketAddrV4, peer: SocketAddrV4, namespace: Option<&Path>) -> io::Result<Self> {
        let Some(path) = namespace else { return Self::open_here(local, peer) };
        let file = File::open(path)?;
        // A socket stays in the namespace where it was made; the thread that enters it is gone afterwards.
        let opened = std::thread::spawn(move || {
            setns(file, CloneFlags::CLONE_NEWNET)?;
            Self::open_here(local, peer)
        });
        opened.join().map_err(|_| io::Error::other("the thread that opens a socket broke down"))?
    }

    /// The same, with all packets marked with a class of service, where there is one.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn with_class(self, dscp: Option<Dscp>) -> io::Result<Self> {
        dscp.map_or(Ok(()), |dscp| dscp.mark(&self.socket))?;
        Ok(self)
    }

    fn open_here(local: SocketAddrV4, peer: SocketAddrV4) -> io::Result<Self> {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
        socket.set_nonblocking(true)?;
        socket.set_recv_buffer_size(RECEIVE_BUFFER_LEN)?;
        socket.set_send_buffer_size(SEND_BUFFER_LEN)?;
        // Without coalescing every packet comes by itself: slower, not wrong.
        if let Err(error) = setsockopt(&socket, sockopt::UdpGroSegment, &true) {
            tracing::info!(%error, "no receive offload");
        }
        // A neighbour is one link away: what is said of packets that were too long for some router is not
        // believed.
        set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::OMIT)?;
        socket.bind(&local.into())?;
        socket.connect(&peer.into())?;
        Ok(NeighbourSocket { socket, segmentation: true, control: vec![0; 128] })
    }

    /// Takes the next packets, if there are any, into `buffer`, which should hold 64 KiB.
    ///
    /// # Errors
    /// The socket failed.
    pub fn receive(&mut self, buffer: &mut [u8]) -> io::Result<Option<Arrival>> {
        let received = receive_coalesced(&self.socket, &mut [IoSliceMut::new(buffer)], &mut self.control);
        match received {
            // Greetings tell whether the neighbour is there.
            Err(error) if error.raw_os_error().is_some_and(|code| is_hearsay(Errno::from_raw(code))) => {
                Ok(None)
            }
            other => other,
        }
    }

    /// Sends packets of `segment_len` bytes each that lie one behind the other; the last may be shorter. At
    /// most 64 of them, and 64 KiB.
    ///
    /// # Errors
    /// The socket failed.
    pub fn send(&mut self, packets: &[u8], segment_len: usize) -> io::Result<Sent> {
        assert!(segment_len > 0 && packets.len() <= DATAGRAM_LEN_MAX, "packets have a length");
        assert!(packets.len().div_ceil(segment_len) <= SEGMENTS_MAX, "too many packets at once");
        if packets.len() > segment_len && self.segmentation {
            let segment = u16::try_from(segment_len).expect("a packet is shorter than 64 KiB");
            let once = || self.send_once(packets, &[ControlMessage::UdpGsoSegments(&segment)]);
            let first = once();
            // Hearsay is told once. Only what this end's own kernel says, it says again.
            let sent = if first.is_err_and(is_hearsay) { once() } else { first };
            match sent {
                // The interface cannot do checksums for segments, or the kernel is too old.
                Err(Errno::EIO | Errno::EINVAL | Errno::ENOPROTOOPT | Errno::EMSGSIZE) => {
                    tracing::info!("no segmentation offload on this link: sending packet by packet");
                    self.segmentation = false;
                }
                other => return outcome(other),
            }
        }
        let mut sent = Sent::Yes;
        for packet in packets.chunks(segment_len) {
            // What does not fit any more is lost, as on a full link: the receiver that needs it asks again.
            match outcome(self.send_once(packet, &[]))? {
                Sent::Yes => {}
                Sent::Full if packet.as_ptr() == packets.as_ptr() => return Ok(Sent::Full),
                Sent::Full | Sent::Lost => sent = Sent::Lost,
            }
        }
        Ok(sent)
    }

    fn send_once(&self, bytes: &[u8], control: &[ControlMessage<'_>]) -> nix::Result<usize> {
        sendmsg::<()>(self.socket.as_raw_fd(), &[IoSlice::new(bytes)], control, MsgFlags::MSG_DONTWAIT, None)
    }
}

/// Returns true if an error can be what a host or a router reports of a packet (ICMP). A connected socket
/// gets it at its next call, whatever that is, and any host can forge such reports: they are never taken for
/// a failure of the socket.
fn is_hearsay(error: Errno) -> bool {
    matches!(
        error,
        Errno::ECONNREFUSED
            | Errno::ENETUNREACH
            | Errno::EHOSTUNREACH
            | Errno::EHOSTDOWN
            | Errno::ENONET
            | Errno::ENOPROTOOPT
            | Errno::EOPNOTSUPP
            | Errno::EMSGSIZE
            | Errno::EPROTO
    )
}

fn outcome(result: nix::Result<usize>) -> io::Result<Sent> {
    match result {
        Ok(_) => Ok(Sent::Yes),
        Err(Errno::EAGAIN | Errno::ENOBUFS) => Ok(Sent::Full),
        Err(Errno::ENETDOWN | Errno::ENODEV | Errno::EPERM | Errno::EINTR) => Ok(Sent::Lost),
        Err(error) if is_hearsay(error) => Ok(Sent::Lost),
        Err(error) => Err(error.into()),
    }
}

impl AsFd for NeighbourSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::socket::{
        AddressFamily, SockFlag, SockProtocol, SockType, SockaddrIn, getsockopt, sendto, socket,
    };
    use polycast_testing::{Need, needs, until, wait_for};
    use std::net::Ipv4Addr;

    /// A pair on addresses of the loopback that belong to this process.
    fn pair(port: u16) -> (NeighbourSocket, NeighbourSocket) {
        let id = std::process::id();
        let at = |last| {
            SocketAddrV4::new(
                Ipv4Addr::new(127, 90 + (id >> 16) as u8 % 100, (id >> 8) as u8, id as u8),
                last,
            )
        };
        let (a, b) = (at(port), at(port + 1));
        (NeighbourSocket::open(a, b, None).unwrap(), NeighbourSocket::open(b, a, None).unwrap())
    }

    /// An ICMP message of this type and code about a datagram from one end of a link to the other, as any
    /// host can make one.
    fn hearsay(kind: u8, code: u8, from: SocketAddrV4, to: SocketAddrV4) -> Vec<u8> {
        // The least room that a kernel believes in, for those that say how much there is.
        let mut message = vec![kind, code, 0, 0, 0, 0, 2, 40];
        message.extend([0x45, 0, 0, 84, 0, 0, 0x40, 0, 64, 17, 0, 0]);
        message.extend(from.ip().octets().into_iter().chain(to.ip().octets()));
        message.extend(from.port().to_be_bytes().into_iter().chain(to.port().to_be_bytes()));
        message.extend([0, 64, 0, 0]);
        let words = message.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
        let sum: u32 = words.sum();
        let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        message
    }

    /// Whatever hosts and routers, or those that forge their words, say of a link's packets: its ends go on,
    /// as fast as before.
    #[test]
    fn forged_words_about_packets_end_no_link() {
        if !needs(&[Need::Root]) {
            return;
        }
        let (mut here, mut there) = pair(21_005);
        let address =
            |socket: &NeighbourSocket| socket.socket.local_addr().unwrap().as_socket_ipv4().unwrap();
        let (from, to) = (address(&here), address(&there));
        let raw = socket(AddressFamily::Inet, SockType::Raw, SockFlag::empty(), SockProtocol::Icmp).unwrap();
        let (bytes, mut buffer) = (vec![7; 3_000], vec![0; 1 << 16]);
        // All that says that a packet has not arrived (3), and that its header is wrong (12).
        for (kind, code) in (0..16).map(|code| (3, code)).chain([(12, 0)]) {
            for is_heard_first in [true, false] {
                let word = hearsay(kind, code, from, to);
                sendto(raw.as_raw_fd(), &word, &SockaddrIn::from(from), MsgFlags::empty()).unwrap();
                if is_heard_first {
                    assert_eq!(here.receive(&mut buffer).unwrap(), None, "{kind} {code}");
                }
                here.send(&bytes, 1_000).unwrap();
                assert!(here.segmentation, "{kind} {code}");
            }
        }
        there.send(&bytes, 1_000).unwrap();
        let arrived = wait_for("what the neighbour says", || here.receive(&mut buffer).unwrap());
        assert_eq!(arrived.len, 3_000);
    }

    #[test]
    fn a_socket_has_its_class() {
        let (here, there) = pair(21_003);
        let here = here.with_class(Some(Dscp::try_from(10).unwrap())).unwrap();
        let tos = |socket: &NeighbourSocket| getsockopt(&socket.socket, sockopt::Ipv4Tos).unwrap();
        assert_eq!((tos(&here), tos(&there.with_class(None).unwrap())), (40, 0));
    }

    #[test]
    fn packets_pass_at_once_and_one_by_one() {
        let (mut here, mut there) = pair(21_001);
        let bytes: Vec<u8> = (0..20 * 1_000 + 300).map(|at| (at / 7) as u8).collect();
        for segmentation in [true, false] {
            here.segmentation = segmentation;
            assert_eq!(here.send(&bytes, 1_000).unwrap(), Sent::Yes);
            let (mut got, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
            // Where the machine is busy the kernel hands them over later.
            until("all are there", || {
                if let Some(arrival) = there.receive(&mut buffer).unwrap() {
                    got.extend(buffer[..arrival.len].chunks(arrival.segment_len).map(<[u8]>::to_vec));
                }
                got.len() >= 21
            });
            assert!(there.receive(&mut buffer).unwrap().is_none());
            assert_eq!(got.iter().map(Vec::len).collect::<Vec<_>>(), [vec![1_000; 20], vec![300]].concat());
            assert!(got.concat() == bytes);
        }
        drop(there);
        here.send(&bytes, 1_000).unwrap();
        // That no process listens is no failure of the socket.
        assert!(matches!(here.send(&bytes, 1_000), Ok(Sent::Yes | Sent::Lost)));
        assert_eq!(here.receive(&mut [0; 64]).unwrap(), None);
    }
}
