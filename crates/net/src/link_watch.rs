//! Interfaces that lose their carrier or get it back, as the kernel tells by netlink: how a switch knows that
//! a link has failed (Orca section 3.4 leaves the detection to the network).

use crate::interface;
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, sendto, socket,
};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// The multicast groups of changes of interfaces, of IPv4 addresses and of IPv4 routes.
const GROUP_LINK: u32 = 1;
const GROUP_ADDRESS: u32 = 0x10;
const GROUP_ROUTE: u32 = 0x40;
const HEADER_LEN: usize = 16;
/// Bytes that follow the header in a message about an interface: family, type, index, flags, mask.
const INTERFACE_LEN: usize = 16;
const BUFFER_LEN: usize = 64 << 10;
/// The driver sees a carrier; the C library's headers do not name it.
const IFF_LOWER_UP: i32 = 1 << 16;

/// Hears of all interfaces of the network namespace where it was opened.
#[derive(Debug)]
pub struct LinkWatch {
    socket: OwnedFd,
    buffer: Vec<u8>,
}

impl LinkWatch {
    /// Begins to listen, and asks how all interfaces are now.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn open() -> io::Result<Self> {
        let watch = Self::of(GROUP_LINK)?;
        watch.ask()?;
        Ok(watch)
    }

    /// Begins to listen to these groups.
    fn of(groups: u32) -> io::Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkRoute)?;
        bind(socket.as_raw_fd(), &NetlinkAddr::new(0, groups))?;
        Ok(LinkWatch { socket, buffer: vec![0; BUFFER_LEN] })
    }

    /// Asks for the state of all interfaces.
    fn ask(&self) -> io::Result<()> {
        let mut request = Vec::with_capacity(HEADER_LEN + INTERFACE_LEN);
        request.extend(((HEADER_LEN + INTERFACE_LEN) as u32).to_ne_bytes());
        request.extend(libc::RTM_GETLINK.to_ne_bytes());
        request.extend(((libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16).to_ne_bytes());
        request.resize(HEADER_LEN + INTERFACE_LEN, 0);
        let kernel = NetlinkAddr::new(0, 0);
        sendto(self.socket.as_raw_fd(), &request, &kernel, MsgFlags::empty())?;
        Ok(())
    }

    /// The interfaces that the kernel has said something about since the last call, by their index, and
    /// whether they can carry packets. The last word about one counts.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn changes(&mut self) -> io::Result<Vec<(u32, bool)>> {
        let mut changes = Vec::new();
        loop {
            match recv(self.socket.as_raw_fd(), &mut self.buffer, MsgFlags::empty()) {
                Ok(len) => changes.extend(interfaces(&self.buffer[..len])),
                Err(Errno::EAGAIN) => return Ok(changes),
                Err(Errno::EINTR) => {}
                // Words were lost: how all are now tells as much.
                Err(Errno::ENOBUFS) => self.ask()?,
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Hears that something has changed: an interface, an IPv4 address, or a route.
#[derive(Debug)]
pub struct NetworkWatch(LinkWatch);

impl NetworkWatch {
    /// Begins to listen in the network namespace of the calling thread.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn open() -> io::Result<Self> {
        LinkWatch::of(GROUP_LINK | GROUP_ADDRESS | GROUP_ROUTE).map(NetworkWatch)
    }

    /// Returns true if the kernel has reported something since the last call.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn heard(&mut self) -> io::Result<bool> {
        let mut heard = false;
        loop {
            match recv(self.0.socket.as_raw_fd(), &mut self.0.buffer, MsgFlags::empty()) {
                // Where words were lost there were some.
                Ok(_) | Err(Errno::ENOBUFS) => heard = true,
                Err(Errno::EAGAIN) => return Ok(heard),
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl AsFd for NetworkWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Hears of the interfaces that have certain addresses.
#[derive(Debug)]
pub struct Carriers {
    watch: LinkWatch,
    /// The index of the interface with each address.
    of_address: Vec<u32>,
}

impl Carriers {
    /// Begins to listen in the network namespace of the calling thread. Several addresses may be at one
    /// interface.
    ///
    /// # Errors
    /// No interface has one of the addresses, or the kernel refuses.
    pub fn open(addresses: impl IntoIterator<Item = IpAddr>) -> io::Result<Self> {
        let index = |address| {
            let interface = interface::of_address(address).map_err(io::Error::other)?;
            Ok(nix::net::if_::if_nametoindex(interface.name.as_str())?)
        };
        let of_address = addresses.into_iter().map(index).collect::<io::Result<_>>()?;
        Ok(Carriers { watch: LinkWatch::open()?, of_address })
    }

    /// The addresses of whose interfaces the kernel has said something since the last call, by their place in
    /// the order in which they were named, and whether these can carry packets.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn changes(&mut self) -> io::Result<Vec<(usize, bool)>> {
        let mut changes = Vec::new();
        for (index, runs) in self.watch.changes()? {
            let at = (0..).zip(&self.of_address).filter(|(_, of)| **of == index);
            changes.extend(at.map(|(at, _)| (at, runs)));
        }
        Ok(changes)
    }
}

impl AsFd for Carriers {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }
}

impl AsFd for LinkWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The interfaces of a datagram of messages; an interface that is gone carries nothing.
fn interfaces(mut bytes: &[u8]) -> Vec<(u32, bool)> {
    let u32_at = |bytes: &[u8], at: usize| bytes[at..at + 4].try_into().map(u32::from_ne_bytes).unwrap_or(0);
    let mut found = Vec::new();
    while bytes.len() >= HEADER_LEN {
        let len = u32_at(bytes, 0) as usize;
        if len < HEADER_LEN || len > bytes.len() {
            break;
        }
        let kind = u16::from_ne_bytes([bytes[4], bytes[5]]);
        let is_about_one = kind == libc::RTM_NEWLINK || kind == libc::RTM_DELLINK;
        if is_about_one && len >= HEADER_LEN + INTERFACE_LEN {
            let (index, flags) = (u32_at(bytes, HEADER_LEN + 4), u32_at(bytes, HEADER_LEN + 8) as i32);
            // Not IFF_RUNNING: the kernel's link watch sets that up to a second after the carrier is there.
            let needed = libc::IFF_UP | IFF_LOWER_UP;
            found.push((index, kind == libc::RTM_NEWLINK && flags & needed == needed));
        }
        bytes = &bytes[len.next_multiple_of(4).min(bytes.len())..];
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_is_heard_of() {
        let mut watch = LinkWatch::open().unwrap();
        let index = nix::net::if_::if_nametoindex("lo").unwrap();
        let mut heard = Vec::new();
        // The answer to a question of netlink is there when the question has been asked.
        heard.extend(watch.changes().unwrap());
        assert!(heard.iter().any(|(of, _)| *of == index), "{heard:?}");
    }

    #[test]
    fn a_change_of_an_address_is_heard() {
        polycast_testing::isolated(|| {
            let mut watch = NetworkWatch::open().unwrap();
            assert!(!watch.heard().unwrap(), "nothing has changed");
            let run = |line: &str| {
                let ran = std::process::Command::new("ip").args(line.split(' ')).status();
                assert!(ran.is_ok_and(|status| status.success()), "ip {line}");
            };
            for line in
                ["link set lo up", "address add 10.77.0.1/24 dev lo", "address del 10.77.0.1/24 dev lo"]
            {
                run(line);
                assert!(watch.heard().unwrap(), "{line}");
            }
        });
    }

    #[test]
    fn interfaces_are_known_by_their_addresses() {
        let mut carriers = Carriers::open([IpAddr::from([127, 0, 0, 1]); 2]).unwrap();
        let heard = carriers.changes().unwrap();
        assert_eq!(heard, [(0, true), (1, true)]);
        assert!(Carriers::open([IpAddr::from([192, 0, 2, 1])]).is_err());
    }

    #[test]
    fn what_is_no_message_is_no_interface() {
        let message = |kind: u16, index: u32, flags: i32| {
            let mut bytes = Vec::new();
            bytes.extend(32u32.to_ne_bytes());
            bytes.extend(kind.to_ne_bytes());
            bytes.extend([0; 14]);
            bytes.extend(index.to_ne_bytes());
            bytes.extend(flags.to_ne_bytes());
            bytes.extend([0; 4]);
            bytes
        };
        let up = libc::IFF_UP | IFF_LOWER_UP;
        let all = [
            message(libc::RTM_NEWLINK, 7, up),
            message(libc::RTM_NEWLINK, 8, libc::IFF_UP | libc::IFF_RUNNING),
            message(libc::RTM_DELLINK, 9, up),
            message(libc::RTM_NEWROUTE, 10, up),
        ];
        let bytes = all.concat();
        assert_eq!(interfaces(&bytes), [(7, true), (8, false), (9, false)]);
        for cut in 0..bytes.len() {
            assert!(interfaces(&bytes[..cut]).len() <= 3);
        }
        assert_eq!(interfaces(&[0; 64]), []);
        assert_eq!(interfaces(&[255; 64]), []);
    }
}
