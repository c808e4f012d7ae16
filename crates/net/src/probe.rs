//! Probes of a switch's neighbours as Ethernet frames: sent by a port of choice, and their answers with the
//! port that they came in by. Data paths answer them (`bpf/orca_switch.c`); answers pass the data path and
//! end here.

use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};
use polycast_wire::label::{PROBE, PROBE_LEN, Probe};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

const ETHERNET_LEN: usize = 14;
const IP_LEN: usize = 20;
const UDP_LEN: usize = 8;
const UDP_AT: usize = ETHERNET_LEN + IP_LEN;
const PROBE_AT: usize = UDP_AT + UDP_LEN;
const FRAME_LEN: usize = PROBE_AT + PROBE_LEN;
/// All hosts of a link (RFC 1112): no router forwards it further.
const GROUP: [u8; 4] = [224, 0, 0, 1];
const GROUP_MAC: [u8; 6] = [1, 0, 0x5e, 0, 0, 1];
/// A locally administered address that stands for no interface.
const OWN_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
/// Network control goes first, probes among it.
const TOS: u8 = crate::priority::CONTROL_TOS as u8;

/// Sends probes by any interface of the network namespace where it was opened, and receives answers by those
/// that lead to neighbours.
#[derive(Debug)]
pub struct ProbeSocket {
    socket: OwnedFd,
    udp_port: u16,
}

impl ProbeSocket {
    /// Opens it; probes are recognised by the UDP port of the network's labelled packets, and count at
    /// interfaces with these indices alone. What comes by another one takes no room here: any host could send
    /// so many there that a neighbour's answers are lost.
    ///
    /// # Errors
    /// The kernel refuses: it takes root.
    pub fn open(udp_port: u16, interfaces: &[u32]) -> io::Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        // Nothing comes in before the filter is there: so the protocol is none at first.
        let socket = socket(AddressFamily::Packet, SockType::Raw, flags, None::<SockProtocol>)?;
        filter(&socket, udp_port, interfaces)?;
        let own = ProbeSocket { socket, udp_port };
        own.bind()?;
        Ok(own)
    }

    /// From now on IPv4 packets come in, as far as the filter lets them.
    fn bind(&self) -> io::Result<()> {
        let address = link_address(0);
        // SAFETY: the address is a `sockaddr_ll` of this length, which the kernel only reads during the call.
        #[allow(unsafe_code)]
        let failed = unsafe {
            libc::bind(
                self.socket.as_raw_fd(),
                (&raw const address).cast(),
                size_of::<libc::sockaddr_ll>() as libc::socklen_t,
            )
        };
        if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Sends a probe by an interface, which is named by its index.
    ///
    /// # Errors
    /// The interface is down, or there is no such interface.
    pub fn send(&self, interface: u32, probe: Probe) -> io::Result<()> {
        let frame = frame(self.udp_port, probe);
        let address = link_address(interface);
        // SAFETY: frame and address are valid for the lengths given, and the kernel only reads them during
        // the call.
        #[allow(unsafe_code)]
        let sent = unsafe {
            libc::sendto(
                self.socket.as_raw_fd(),
                frame.as_ptr().cast(),
                frame.len(),
                0,
                (&raw const address).cast(),
                size_of::<libc::sockaddr_ll>() as libc::socklen_t,
            )
        };
        if sent >= 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// The next probe that came in, with the index of its interface, if there is one.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn receive(&self) -> io::Result<Option<(u32, Probe)>> {
        let mut buffer = [0u8; FRAME_LEN];
        loop {
            let mut address = link_address(0);
            let mut len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
            // SAFETY: buffer and address are valid for the lengths given; the kernel writes no further.
            #[allow(unsafe_code)]
            let received = unsafe {
                libc::recvfrom(
                    self.socket.as_raw_fd(),
                    buffer.as_mut_ptr().cast(),
                    buffer.len(),
                    0,
                    (&raw mut address).cast(),
                    &raw mut len,
                )
            };
            if received < 0 {
                return match io::Error::last_os_error() {
                    error if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
                    error if error.kind() == io::ErrorKind::Interrupted => continue,
                    // An interface that went down is said once on every socket; its probes are not answered.
                    error if error.raw_os_error() == Some(libc::ENETDOWN) => continue,
                    error => Err(error),
                };
            }
            if received as usize == FRAME_LEN
                && let Ok(probe) = Probe::parse(&buffer[PROBE_AT..])
            {
                return Ok(Some((address.sll_ifindex as u32, probe)));
            }
        }
    }
}

impl AsFd for ProbeSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The address of an interface, for IPv4 packets; 0 stands for all of them.
fn link_address(interface: u32) -> libc::sockaddr_ll {
    libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: (libc::ETH_P_IP as u16).to_be(),
        sll_ifindex: interface as i32,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    }
}

/// Lets nothing in but answers to probes from neighbours: everything else that reaches the host would be
/// copied here.
fn filter(socket: &OwnedFd, udp_port: u16, interfaces: &[u32]) -> io::Result<()> {
    const LOAD_BYTE: u16 = (libc::BPF_LD | libc::BPF_B | libc::BPF_ABS) as u16;
    const LOAD_TWO: u16 = (libc::BPF_LD | libc::BPF_H | libc::BPF_ABS) as u16;
    const LOAD_FOUR: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    const INTERFACE: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_IFINDEX) as u32;
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let drop_it = step(RETURN, 0, 0, 0);
    let is = |value: u32| [step(IF_EQUAL, 1, 0, value), drop_it];
    let mut steps = vec![step(LOAD_TWO, 0, 0, UDP_AT as u32 + 2)];
    steps.extend(is(udp_port.into()));
    steps.push(step(LOAD_BYTE, 0, 0, PROBE_AT as u32));
    steps.extend(is(PROBE.into()));
    steps.push(step(LOAD_BYTE, 0, 0, PROBE_AT as u32 + 1));
    steps.extend(is(1));
    steps.push(step(LOAD_FOUR, 0, 0, INTERFACE));
    for interface in interfaces {
        steps.extend([step(IF_EQUAL, 0, 1, *interface), step(RETURN, 0, 0, FRAME_LEN as u32)]);
    }
    steps.push(drop_it);
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_ptr().cast_mut() };
    // SAFETY: the program points to `steps`, which outlives the call; the kernel copies it and writes
    // nothing.
    #[allow(unsafe_code)]
    let failed = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const program).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    };
    if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A probe as a frame: a UDP datagram without a check sum, which crosses one link.
fn frame(udp_port: u16, probe: Probe) -> [u8; FRAME_LEN] {
    let mut frame = [0; FRAME_LEN];
    frame[..6].copy_from_slice(&GROUP_MAC);
    frame[6..12].copy_from_slice(&OWN_MAC);
    frame[12..ETHERNET_LEN].copy_from_slice(&[8, 0]);
    let len = (FRAME_LEN - ETHERNET_LEN) as u8;
    // Version and length, code point, length, "do not fragment", one hop, UDP.
    frame[ETHERNET_LEN..ETHERNET_LEN + 10].copy_from_slice(&[0x45, TOS, 0, len, 0, 0, 0x40, 0, 1, 17]);
    frame[ETHERNET_LEN + 16..UDP_AT].copy_from_slice(&GROUP);
    let words =
        frame[ETHERNET_LEN..UDP_AT].chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
    let sum: u32 = words.sum();
    let checksum = !((sum & 0xffff) + (sum >> 16)) as u16;
    frame[ETHERNET_LEN + 10..ETHERNET_LEN + 12].copy_from_slice(&checksum.to_be_bytes());
    frame[UDP_AT..UDP_AT + 2].copy_from_slice(&udp_port.to_be_bytes());
    frame[UDP_AT + 2..UDP_AT + 4].copy_from_slice(&udp_port.to_be_bytes());
    frame[UDP_AT + 5] = (UDP_LEN + PROBE_LEN) as u8;
    frame[PROBE_AT..].copy_from_slice(&probe.emit());
    frame
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tap::Tap;
    use polycast_testing::wait_for;

    #[test]
    fn probes_cross_an_interface() {
        polycast_testing::isolated(|| {
            let (tap, elsewhere) = (Tap::open("probes0").unwrap(), Tap::open("hosts0").unwrap());
            let index = nix::net::if_::if_nametoindex("probes0").unwrap();
            let socket = ProbeSocket::open(7_474, &[index + 100, index]).unwrap();
            let question = Probe { is_answer: false, number: 77 };
            socket.send(index, question).unwrap();
            let mut buffer = [0; 2_000];
            let sent = wait_for("the probe goes out", || {
                // Others are the interface's own words.
                let is_ours = |frame: &&[u8]| frame.get(23) == Some(&17) && frame.len() == FRAME_LEN;
                tap.receive(&mut buffer).unwrap().map(|frame| &*frame).filter(is_ours).map(<[u8]>::to_vec)
            });
            assert_eq!(Probe::parse(&sent[PROBE_AT..]), Ok(question));
            // Only answers in this network come in: not other datagrams to the port, nor probes to other
            // ports, nor questions, nor what comes by an interface that leads to no neighbour.
            let mut answer = sent.clone();
            answer[PROBE_AT + 1] = 1;
            let mut labelled = answer.clone();
            labelled[PROBE_AT] = 1;
            let mut other_port = answer.clone();
            other_port[UDP_AT + 3] ^= 1;
            elsewhere.send(&answer).unwrap();
            for frame in [&labelled, &other_port, &sent, &answer] {
                tap.send(frame).unwrap();
            }
            let heard = wait_for("the answer comes", || socket.receive().unwrap());
            assert_eq!(heard, (index, Probe { is_answer: true, number: 77 }));
            assert_eq!(socket.receive().unwrap(), None);
        });
    }

    #[test]
    fn a_frame_has_a_right_check_sum() {
        let frame = frame(7_474, Probe { is_answer: false, number: 1 });
        let words =
            frame[ETHERNET_LEN..UDP_AT].chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
        let sum: u32 = words.sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
    }
}
