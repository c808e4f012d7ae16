//! Membership of a socket in multicast groups, for all sources or for one.

use crate::interface::index_of;
use socket2::{SockAddr, Socket};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;

/// Takes part in a multicast group on the interface with this address.
pub(crate) fn join_group(socket: &Socket, interface: IpAddr, group: IpAddr) -> io::Result<()> {
    match (interface, group) {
        (IpAddr::V4(interface), IpAddr::V4(group)) => socket.join_multicast_v4(&group, &interface),
        (IpAddr::V6(_), IpAddr::V6(group)) => socket.join_multicast_v6(&group, index_of(interface)?),
        _ => Err(other_family(interface, group)),
    }
}

pub(super) fn other_family(interface: IpAddr, group: IpAddr) -> io::Error {
    let own = if interface.is_ipv4() { "IPv4" } else { "IPv6" };
    let message = format!("this end is at {interface}, and an end with {own} cannot take part in {group}");
    io::Error::new(io::ErrorKind::Unsupported, message)
}

/// Takes part in a multicast group on the interface with this address for packets of one source only
/// (source-specific multicast). The network hears so by IGMPv3 or MLDv2; by an older version, which has no
/// sources, it hears of the group alone.
pub(super) fn join_source(
    socket: &Socket,
    interface: IpAddr,
    group: IpAddr,
    source: IpAddr,
) -> io::Result<()> {
    match (interface, group, source) {
        (IpAddr::V4(interface), IpAddr::V4(group), IpAddr::V4(source)) => {
            socket.join_ssm_v4(&source, &group, &interface)
        }
        (IpAddr::V6(_), IpAddr::V6(_), IpAddr::V6(_)) => join_source_v6(socket, interface, group, source),
        (_, _, source) if source.is_ipv4() != group.is_ipv4() => Err(other_family(source, group)),
        _ => Err(other_family(interface, group)),
    }
}

fn join_source_v6(socket: &Socket, interface: IpAddr, group: IpAddr, source: IpAddr) -> io::Result<()> {
    let request = libc::group_source_req {
        gsr_interface: index_of(interface)?,
        gsr_group: storage_of(group),
        gsr_source: storage_of(source),
    };
    // SAFETY: the kernel reads the request, which outlives the call, and writes nothing.
    #[allow(unsafe_code, reason = "no safe wrapper for this option in the libraries at hand")]
    let failed = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_IPV6,
            libc::MCAST_JOIN_SOURCE_GROUP,
            (&raw const request).cast(),
            size_of::<libc::group_source_req>() as libc::socklen_t,
        )
    };
    if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn storage_of(address: IpAddr) -> libc::sockaddr_storage {
    let mut storage = SockAddr::from(SocketAddr::new(address, 0)).as_storage();
    // SAFETY: it is a storage, of which all bits are valid, and is not longer than one.
    #[allow(unsafe_code, reason = "the only way to what the library holds")]
    unsafe {
        *storage.view_as()
    }
}
