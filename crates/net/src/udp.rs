//! The data channel's sockets: UDP multicast with segmentation (GSO) and coalescing (GRO).
//!
//! One system call moves up to 64 KiB: the sender hands over many datagrams as one buffer list, the
//! kernel cuts them as late as possible, and the receiver gets them back whole, scattered to where the
//! caller expects them.

mod membership;
mod only;

pub(crate) use membership::join_group;
pub use only::{Only, Outer};

use membership::{join_source, other_family};

use crate::interface::index_of;
use crate::priority::Dscp;
use nix::errno::Errno;
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, MultiHeaders, SockaddrStorage, recvmsg, sendmmsg, sendmsg,
    setsockopt, sockopt,
};
use socket2::{Domain, Protocol, Socket, Type};
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Longest UDP payload over IPv4; IPv6 has 20 bytes more.
pub const DATAGRAM_LEN_MAX: usize = 65_507;
/// Most datagrams in one segmented send (the kernel's `UDP_MAX_SEGMENTS` where it is lowest).
pub const SEGMENTS_MAX: usize = 64;
/// Multicast packets cross at most this many routers.
pub(crate) const MULTICAST_TTL: u32 = 16;
/// Bytes that may wait between the socket and the wire unless the caller sets another limit.
const SEND_BUFFER_LEN: usize = 256 << 10;
/// Receive buffer that a receiver asks for; the kernel gives at most its `rmem_max`.
pub const RECEIVE_BUFFER_LEN: usize = 8 << 20;

/// The sending end.
#[derive(Debug)]
pub struct DataSender {
    socket: Socket,
    group: SockaddrStorage,
    /// Stands before every datagram.
    outer: Vec<Vec<u8>>,
    /// Counter that chooses them in turn.
    turn: usize,
    /// Set if the kernel segments for us; found out at the first send.
    segmentation: bool,
    /// Bytes that may wait between the socket and the wire.
    queue_len: usize,
}

/// A UDP socket of the family of this address.
pub(crate) fn socket_of(address: IpAddr) -> io::Result<Socket> {
    match address {
        IpAddr::V4(_) => Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP)),
        IpAddr::V6(_) => {
            let socket = Socket::new(Domain::IPV6, Type::DGRAM, Some(Protocol::UDP))?;
            socket.set_only_v6(true)?;
            Ok(socket)
        }
    }
}

/// Opens a UDP socket that sends multicast through the interface with this address.
pub(crate) fn multicast_sender(interface: IpAddr) -> io::Result<Socket> {
    let socket = socket_of(interface)?;
    match interface {
        IpAddr::V4(address) => {
            socket.set_multicast_if_v4(&address)?;
            socket.set_multicast_ttl_v4(MULTICAST_TTL)?;
        }
        IpAddr::V6(_) => {
            socket.set_multicast_if_v6(index_of(interface)?)?;
            socket.set_multicast_hops_v6(MULTICAST_TTL)?;
        }
    }
    Ok(socket)
}

/// Tells the kernel that the socket hears only what comes through an interface that it has joined.
pub(crate) fn hear_joined_only(socket: &Socket, address: IpAddr) -> io::Result<()> {
    match address {
        IpAddr::V4(_) => socket.set_multicast_all_v4(false),
        IpAddr::V6(_) => socket.set_multicast_all_v6(false),
    }
}

/// Binds a socket to a multicast group. Others on this host may be bound to the same one.
fn bind(socket: &Socket, group: SocketAddr) -> io::Result<()> {
    socket.set_reuse_address(true)?;
    hear_joined_only(socket, group.ip())?;
    socket.bind(&group.into())
}

impl DataSender {
    /// Opens a socket that sends to `group` through the interface with this address.
    ///
    /// # Errors
    /// The interface cannot send multicast, its address is of another family, or no socket can be had.
    pub fn open(interface: IpAddr, group: SocketAddr) -> io::Result<Self> {
        if interface.is_ipv4() != group.is_ipv4() {
            return Err(other_family(interface, group.ip()));
        }
        let socket = multicast_sender(interface)?;
        socket.set_nonblocking(true)?;
        socket.set_send_buffer_size(SEND_BUFFER_LEN)?;
        Ok(DataSender {
            socket,
            group: group.into(),
            outer: Vec::new(),
            turn: 0,
            segmentation: true,
            queue_len: SEND_BUFFER_LEN,
        })
    }

    /// The same, with all packets marked with a class of service, where there is one.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn with_class(self, dscp: Option<Dscp>) -> io::Result<Self> {
        dscp.map_or(Ok(()), |dscp| dscp.mark(&self.socket))?;
        Ok(self)
    }

    /// Says how many bytes may wait between the socket and the wire. One segmented send always fits.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn limit_queue(&mut self, bytes: usize) -> io::Result<()> {
        // Not for every small change: it is a system call.
        if bytes.abs_diff(self.queue_len) > self.queue_len / 8 {
            self.socket.set_send_buffer_size(bytes)?;
            self.queue_len = bytes;
        }
        Ok(())
    }

    /// The same, with a header of the network's own before every datagram. Of several, all of one length,
    /// each send takes the next one.
    ///
    /// # Panics
    /// If they differ in length.
    #[must_use]
    pub fn with_outer(mut self, outer: Vec<Vec<u8>>) -> Self {
        self.set_outer(outer);
        self
    }

    /// Other headers from now on.
    ///
    /// # Panics
    /// If they differ in length from each other or from those before.
    pub fn set_outer(&mut self, outer: Vec<Vec<u8>>) {
        let len = self.outer.first().or(outer.first()).map_or(0, Vec::len);
        let alike = outer.iter().all(|header| header.len() == len);
        assert!(alike && (self.outer.is_empty() || !outer.is_empty()), "headers keep their length");
        self.outer = outer;
    }

    /// The length of such a header.
    #[must_use]
    pub fn outer_len(&self) -> usize {
        self.outer.first().map_or(0, Vec::len)
    }

    /// Sends datagrams of `segment_len` bytes each (the last may be shorter). `parts` are their pieces, the
    /// same number `parts_each` for every datagram. Gives `false`, with nothing sent, where the socket is
    /// full.
    ///
    /// # Errors
    /// The network refuses the datagrams.
    pub fn send(&mut self, parts: &[IoSlice<'_>], parts_each: usize, segment_len: usize) -> io::Result<bool> {
        assert!(
            !parts.is_empty() && parts.len().is_multiple_of(parts_each),
            "every datagram has all its parts"
        );
        let header = match self.outer.len() {
            0 => Vec::new(),
            headers => self.outer[self.turn % headers].clone(),
        };
        let (with_outer, parts_each, segment_len) = if header.is_empty() {
            (Vec::new(), parts_each, segment_len)
        } else {
            let outer = || std::iter::once(IoSlice::new(&header));
            let each = parts.chunks(parts_each);
            let all = each.flat_map(|datagram| outer().chain(datagram.iter().copied())).collect();
            (all, parts_each + 1, segment_len + header.len())
        };
        let parts = if with_outer.is_empty() { parts } else { &with_outer[..] };
        let datagrams = parts.len() / parts_each;
        let sent = self.send_all(parts, parts_each, datagrams, segment_len);
        if matches!(sent, Ok(true)) {
            self.turn = self.turn.wrapping_add(1);
        }
        sent
    }

    fn send_all(
        &mut self,
        parts: &[IoSlice<'_>],
        parts_each: usize,
        datagrams: usize,
        segment_len: usize,
    ) -> io::Result<bool> {
        if datagrams == 1 {
            return self.send_once(parts, &[]);
        }
        if self.segmentation {
            let segment_len = u16::try_from(segment_len).expect("a datagram is shorter than 64 KiB");
            let result = self.send_once(parts, &[ControlMessage::UdpGsoSegments(&segment_len)]);
            match result.as_ref().map_err(io::Error::raw_os_error) {
                // The interface cannot do checksums for segments, or the kernel is too old.
                Err(Some(libc::EIO | libc::EINVAL | libc::ENOPROTOOPT | libc::EMSGSIZE)) => {
                    tracing::info!("no segmentation offload on this path: sending datagram by datagram");
                    self.segmentation = false;
                }
                _ => return result,
            }
        }
        self.send_each(parts, parts_each)
    }

    fn send_once(&self, parts: &[IoSlice<'_>], control: &[ControlMessage<'_>]) -> io::Result<bool> {
        match sendmsg(self.socket.as_raw_fd(), parts, control, MsgFlags::empty(), Some(&self.group)) {
            Ok(_) => Ok(true),
            Err(Errno::EAGAIN | Errno::ENOBUFS) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn send_each(&self, parts: &[IoSlice<'_>], parts_each: usize) -> io::Result<bool> {
        let datagrams: Vec<&[IoSlice<'_>]> = parts.chunks(parts_each).collect();
        let mut sent = 0;
        while sent < datagrams.len() {
            let rest = &datagrams[sent..];
            let mut headers = MultiHeaders::<SockaddrStorage>::preallocate(rest.len(), None);
            let addresses = vec![Some(self.group); rest.len()];
            let fd = self.socket.as_raw_fd();
            match sendmmsg(fd, &mut headers, rest, &addresses, [], MsgFlags::empty()) {
                Ok(results) => sent += results.count(),
                // Once some are out the rest has to follow: the caller counts all or none.
                Err(Errno::EAGAIN | Errno::ENOBUFS) if sent == 0 => return Ok(false),
                Err(Errno::EAGAIN | Errno::ENOBUFS) => wait_writable(self.socket.as_fd())?,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }
}

fn wait_writable(fd: BorrowedFd<'_>) -> io::Result<()> {
    let mut fds = [rustix::event::PollFd::from_borrowed_fd(fd, rustix::event::PollFlags::OUT)];
    rustix::event::poll(&mut fds, Some(&rustix::time::Timespec { tv_sec: 0, tv_nsec: 10_000_000 }))?;
    Ok(())
}

impl AsFd for DataSender {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The receiving end.
#[derive(Debug)]
pub struct DataReceiver {
    socket: Socket,
    window_bytes: u64,
    control: Vec<u8>,
}

/// Datagrams that one receive call brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Bytes in all.
    pub len: usize,
    /// Bytes of each datagram; the last may be shorter.
    pub segment_len: usize,
    /// Time that they waited in the socket; zero where the kernel does not report it.
    pub waited: Duration,
    /// The sender, where the socket hears several.
    pub from: Option<SocketAddr>,
}

impl DataReceiver {
    /// Opens a socket for groups of the family of this group, with as large a buffer as the kernel grants; it
    /// hears nothing before [`Self::join`].
    ///
    /// # Errors
    /// No socket can be had.
    pub fn open(group: IpAddr) -> io::Result<Self> {
        let socket = socket_of(group)?;
        socket.set_recv_buffer_size(RECEIVE_BUFFER_LEN)?;
        socket.set_nonblocking(true)?;
        // Without coalescing every datagram comes by itself: slower, not wrong.
        if let Err(error) = setsockopt(&socket, sockopt::UdpGroSegment, &true) {
            tracing::info!(%error, "no receive offload");
        }
        // Without it congestion cannot be told from a receiver that is late.
        if let Err(error) = setsockopt(&socket, sockopt::ReceiveTimestampns, &true) {
            tracing::info!(%error, "no arrival times");
        }
        // The kernel counts whole buffers, not payload, holds a quarter back, and small datagrams waste half.
        let window_bytes = socket.recv_buffer_size()? as u64 * 2 / 5;
        let control = vec![0; 128];
        Ok(DataReceiver { socket, window_bytes, control })
    }

    /// Begins to hear `group` on the interface with this address: what is wanted of it. Where the source is
    /// known, the network is asked for its packets only (source-specific multicast), and where it refuses
    /// that, for all.
    ///
    /// # Errors
    /// The port is taken by another kind of program, or the interface cannot take part in multicast.
    pub fn join(&self, interface: IpAddr, group: SocketAddr, only: Only) -> io::Result<()> {
        // Before anything can come.
        only.attach(&self.socket)?;
        bind(&self.socket, group)?;
        if let Some(source) = only.source {
            match join_source(&self.socket, interface, group.ip(), source) {
                Ok(()) => return Ok(()),
                Err(error) => tracing::info!(%error, "no source-specific multicast: the filter alone holds"),
            }
        }
        join_group(&self.socket, interface, group.ip())
    }

    /// Returns the number of bytes of datagrams that may be in flight without overflow.
    #[must_use]
    pub fn window_bytes(&self) -> u64 {
        self.window_bytes
    }

    /// Takes the next datagrams, if there are any, into `parts`, which should hold 64 KiB in all.
    ///
    /// # Errors
    /// The socket failed.
    pub fn receive(&mut self, parts: &mut [IoSliceMut<'_>]) -> io::Result<Option<Arrival>> {
        receive_coalesced(&self.socket, parts, &mut self.control)
    }
}

/// Takes what the kernel hands over at once: one datagram, or several of one length in a row.
pub(crate) fn receive_coalesced(
    socket: &Socket,
    parts: &mut [IoSliceMut<'_>],
    control: &mut [u8],
) -> io::Result<Option<Arrival>> {
    let message =
        match recvmsg::<SockaddrStorage>(socket.as_raw_fd(), parts, Some(control), MsgFlags::MSG_DONTWAIT) {
            Ok(message) => message,
            Err(Errno::EAGAIN | Errno::EINTR) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
    let len = message.bytes;
    let from = message.address.and_then(|at| socket_addr(&at));
    let (mut segment_len, mut waited) = (len, Duration::ZERO);
    for control in message.cmsgs()? {
        match control {
            ControlMessageOwned::UdpGroSegments(size) => segment_len = usize::try_from(size).unwrap_or(len),
            ControlMessageOwned::ScmTimestampns(at) => waited = since(at.into()),
            _ => {}
        }
    }
    Ok(Some(Arrival { len, segment_len: segment_len.clamp(1, len.max(1)), waited, from }))
}

fn socket_addr(at: &SockaddrStorage) -> Option<SocketAddr> {
    let v4 = || at.as_sockaddr_in().map(|at| SocketAddr::from((at.ip(), at.port())));
    v4().or_else(|| at.as_sockaddr_in6().map(|at| SocketAddr::from((at.ip(), at.port()))))
}

/// Returns the time since the kernel took in a packet; zero if the system's clock was set back since.
fn since(arrived: Duration) -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH + arrived).unwrap_or_default()
}

impl AsFd for DataReceiver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A socket for announcements: hears and sends small datagrams of one multicast group.
#[derive(Debug)]
pub struct Beacon {
    socket: UdpSocket,
    group: SocketAddr,
}

impl Beacon {
    /// Joins `group` on the interface with this address.
    ///
    /// # Errors
    /// The port is taken by another kind of program, or the interface cannot take part in multicast.
    pub fn open(interface: IpAddr, group: SocketAddr) -> io::Result<Self> {
        let socket = multicast_sender(interface)?;
        socket.set_nonblocking(true)?;
        bind(&socket, group)?;
        join_group(&socket, interface, group.ip())?;
        Ok(Beacon { socket: socket.into(), group })
    }

    /// Sends one datagram to the group.
    ///
    /// # Errors
    /// There is no multicast route through the interface, or it is down.
    pub fn send(&self, datagram: &[u8]) -> io::Result<()> {
        self.socket.send_to(datagram, self.group).map(drop)
    }

    /// Takes the next datagram, if there is one, and its sender.
    pub fn receive<'a>(&self, buffer: &'a mut [u8]) -> Option<(&'a [u8], SocketAddr)> {
        let (len, from) = self.socket.recv_from(buffer).ok()?;
        Some((&buffer[..len], from))
    }
}

impl AsFd for Beacon {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polycast_testing::{HANG, until, wait_for};
    use polycast_types::Handle;
    use polycast_wire::VERSION;
    use polycast_wire::label;
    use std::net::Ipv4Addr;

    const LO: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    const HANDLE: Handle = Handle(0x0102_0304_0506_0708);

    fn only(outer: u8) -> Only {
        Only { source: Some(LO), handle: Some(HANDLE), outer: Outer::Bytes(outer) }
    }

    /// The header of a datagram of this transfer, with zeros for what no filter looks at.
    fn header(handle: Handle) -> [u8; 24] {
        let mut header = [0; 24];
        header[0] = VERSION;
        header[8..16].copy_from_slice(&handle.0.to_be_bytes());
        header
    }

    fn receive_all(receiver: &mut DataReceiver, want: usize) -> Vec<Vec<u8>> {
        let (mut got, mut buffer) = (Vec::new(), vec![0; 65_536]);
        until("all are there", || {
            while let Some(arrival) = receiver.receive(&mut [IoSliceMut::new(&mut buffer)]).unwrap() {
                got.extend(buffer[..arrival.len].chunks(arrival.segment_len).map(<[u8]>::to_vec));
            }
            got.len() >= want
        });
        got
    }

    fn segments_arrive(segmentation: bool, outer: &[u8], group: SocketAddr) {
        let mut receivers = [DataReceiver::open(LO).unwrap(), DataReceiver::open(LO).unwrap()];
        receivers.iter().for_each(|r| r.join(LO, group, only(outer.len() as u8)).unwrap());
        let mut sender = DataSender::open(LO, group).unwrap().with_outer(if outer.is_empty() {
            vec![]
        } else {
            vec![outer.to_vec()]
        });
        sender.segmentation = segmentation;
        let (header, payload, last) = (header(HANDLE), [8u8; 1_400], [9u8; 100]);
        let mut parts = Vec::new();
        for i in 0..10 {
            parts.push(IoSlice::new(&header));
            parts.push(IoSlice::new(if i < 9 { &payload[..] } else { &last[..] }));
        }
        assert!(sender.send(&parts, 2, 1_424).unwrap());
        for receiver in &mut receivers {
            let got = receive_all(receiver, 10);
            let lens: Vec<usize> = got.iter().map(Vec::len).collect();
            let more = outer.len();
            let expected: Vec<usize> = (0..10).map(|i| more + if i < 9 { 1_424 } else { 124 }).collect();
            assert_eq!(lens, expected);
            assert!(got.iter().all(|d| d[..more] == *outer && d[more..more + 24] == header));
        }
    }

    #[test]
    fn a_queue_can_be_limited_and_still_takes_a_whole_segmented_send() {
        let group = SocketAddr::new(IpAddr::from([239, 255, 1, 4]), 29_105);
        let mut receiver = DataReceiver::open(LO).unwrap();
        receiver.join(LO, group, only(0)).unwrap();
        let mut sender = DataSender::open(LO, group).unwrap();
        let buffer_len = |sender: &DataSender| sender.socket.send_buffer_size().unwrap();
        sender.limit_queue(30_000).unwrap();
        let limited = buffer_len(&sender);
        assert!((30_000..=60_000).contains(&limited), "the kernel may double it: {limited}");
        sender.limit_queue(31_000).unwrap();
        assert_eq!(buffer_len(&sender), limited, "a small change is not worth a system call");
        let mut payload = [5u8; 1_400];
        payload[..24].copy_from_slice(&header(HANDLE));
        let parts: Vec<_> = (0..40).map(|_| IoSlice::new(&payload)).collect();
        assert!(sender.send(&parts, 1, 1_400).unwrap(), "56 kB at once");
        assert_eq!(receive_all(&mut receiver, 40).len(), 40);
        sender.limit_queue(60_000).unwrap();
        assert!(buffer_len(&sender) > limited);
    }

    #[test]
    fn segmented_sends_reach_every_receiver() {
        segments_arrive(true, &[], SocketAddr::new(IpAddr::from([239, 255, 1, 1]), 29_101));
    }

    #[test]
    fn without_segmentation_the_same_datagrams_arrive() {
        segments_arrive(false, &[], SocketAddr::new(IpAddr::from([239, 255, 1, 2]), 29_102));
    }

    /// With and without a class, whole segmented sends and single datagrams.
    #[test]
    fn datagrams_have_the_class_that_was_asked_for() {
        for (dscp, segmentation, port) in
            [(None, true, 29_109), (Some(34), true, 29_110), (Some(63), false, 29_111)]
        {
            let group = SocketAddr::new(IpAddr::from([239, 255, 1, 8]), port);
            let receiver = Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();
            bind(&receiver, group).unwrap();
            join_group(&receiver, LO, group.ip()).unwrap();
            setsockopt(&receiver, sockopt::IpRecvTos, &true).unwrap();
            receiver.set_read_timeout(Some(HANG)).unwrap();
            let class = dscp.map(|dscp| Dscp::try_from(dscp).unwrap());
            let mut sender = DataSender::open(LO, group).unwrap().with_class(class).unwrap();
            sender.segmentation = segmentation;
            let payload = [8; 1_000];
            assert!(sender.send(&[IoSlice::new(&payload); 10], 1, 1_000).unwrap());
            for _ in 0..10 {
                let (mut bytes, mut control) = ([0; 1_500], vec![0; 128]);
                let mut parts = [IoSliceMut::new(&mut bytes)];
                let fd = receiver.as_raw_fd();
                let came = recvmsg::<SockaddrStorage>(fd, &mut parts, Some(&mut control), MsgFlags::empty());
                let classes: Vec<u8> = came.unwrap().cmsgs().unwrap().filter_map(class_of).collect();
                assert_eq!(classes, [dscp.unwrap_or(0) as u8], "without the bits of congestion");
            }
        }
    }

    fn class_of(control: ControlMessageOwned) -> Option<u8> {
        match control {
            ControlMessageOwned::Ipv4Tos(tos) => Some(tos >> 2),
            _ => None,
        }
    }

    #[test]
    fn every_datagram_has_the_networks_own_header_first() {
        for (segmentation, port) in [(true, 29_103), (false, 29_104)] {
            let group = SocketAddr::new(IpAddr::from([239, 255, 1, 3]), port);
            segments_arrive(segmentation, &[3; 28], group);
        }
    }

    #[test]
    fn the_window_is_within_the_buffer() {
        let receiver = DataReceiver::open(LO).unwrap();
        let buffer = receiver.socket.recv_buffer_size().unwrap() as u64;
        assert!(receiver.window_bytes() > 50_000 && receiver.window_bytes() < buffer);
    }

    /// A socket of this host with an address of its own: all of 127.0.0.0/8 is.
    fn stranger(address: IpAddr) -> std::net::UdpSocket {
        let socket = std::net::UdpSocket::bind((address, 0)).unwrap();
        let socket2 = Socket::from(socket);
        let IpAddr::V4(address) = address else { unreachable!("strangers are of IPv4") };
        socket2.set_multicast_if_v4(&address).unwrap();
        socket2.into()
    }

    /// Each of several receivers of one group gets its own datagrams: they ask for different sources, or
    /// different handles of one.
    #[test]
    fn receivers_of_one_group_get_what_each_of_them_wants() {
        let group = SocketAddr::new(IpAddr::from([239, 255, 1, 5]), 29_106);
        let other = IpAddr::from([127, 0, 0, 2]);
        let wants = [
            Only { source: Some(LO), handle: Some(HANDLE), outer: Outer::Bytes(0) },
            Only { source: Some(other), handle: Some(HANDLE), outer: Outer::Bytes(0) },
            Only { source: None, handle: Some(Handle(9)), outer: Outer::Bytes(0) },
        ];
        let mut receivers = wants.map(|want| {
            let receiver = DataReceiver::open(LO).unwrap();
            receiver.join(LO, group, want).unwrap();
            receiver
        });
        let datagram = |handle, who: u8| [&header(handle)[..], &[who]].concat();
        let mut old = datagram(HANDLE, 0);
        old[0] = VERSION ^ 3;
        let senders = [stranger(LO), stranger(other)];
        for (who, sender) in senders.iter().enumerate() {
            let sent = [old.clone(), vec![VERSION; 23], datagram(Handle(8), 0), datagram(HANDLE, who as u8)];
            assert!(sent.iter().all(|datagram| sender.send_to(datagram, group).is_ok()));
        }
        senders[1].send_to(&datagram(Handle(9), 7), group).unwrap();
        for (receiver, who) in receivers.iter_mut().zip([0, 1, 7]) {
            let got = receive_all(receiver, 1);
            assert_eq!(got.len(), 1);
            assert_eq!(got[0][24..], [who]);
            let more = receiver.receive(&mut [IoSliceMut::new(&mut [0; 100])]).unwrap();
            assert_eq!(more, None, "the kernel drops what is not wanted");
        }
    }

    #[test]
    fn the_filter_looks_behind_a_label_of_any_length() {
        let group = SocketAddr::new(IpAddr::from([239, 255, 1, 6]), 29_107);
        let mut receiver = DataReceiver::open(LO).unwrap();
        receiver
            .join(LO, group, Only { source: Some(LO), handle: Some(HANDLE), outer: Outer::Label })
            .unwrap();
        let sender = stranger(LO);
        let mut sent = Vec::new();
        for (len, handle) in [(1, HANDLE), (5, Handle(1)), (8, HANDLE), (23, HANDLE), (164, HANDLE)] {
            let mut datagram = Vec::new();
            label::Header { kind: label::LabelKind::Filter, session: 5, label: &vec![0xff; len] }
                .emit(&mut datagram);
            datagram.extend_from_slice(&header(handle));
            sender.send_to(&datagram, group).unwrap();
            sent.extend((handle == HANDLE).then_some(datagram));
        }
        // The kernel cuts datagrams of one flow out of what it coalesced by length: all of these differ.
        assert_eq!(receive_all(&mut receiver, sent.len()), sent);
        assert_eq!(receiver.receive(&mut [IoSliceMut::new(&mut [0; 300])]).unwrap(), None);
    }

    #[test]
    fn arrivals_say_who_sent_them() {
        let group = SocketAddr::new(IpAddr::from([239, 255, 1, 7]), 29_108);
        let mut receiver = DataReceiver::open(LO).unwrap();
        receiver.join(LO, group, only(0)).unwrap();
        let sender = stranger(LO);
        sender.send_to(&header(HANDLE), group).unwrap();
        let mut buffer = [0; 100];
        let arrival =
            wait_for("it is there", || receiver.receive(&mut [IoSliceMut::new(&mut buffer)]).unwrap());
        assert_eq!(arrival.from, Some(sender.local_addr().unwrap()));
    }
}
