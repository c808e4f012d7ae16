//! The interfaces of this host: which one to use, its address and its MTU.

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use std::fmt;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;

/// One interface with an IPv4 address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its name, such as `eth0`.
    pub name: String,
    /// Its first IPv4 address.
    pub address: Ipv4Addr,
    /// Its MTU in bytes.
    pub mtu: u32,
}

/// An interface that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum InterfaceError {
    /// No such name or address here.
    #[error("no interface {wanted} with an IPv4 address here; there is {}", there.join(", "))]
    Unknown {
        /// What was asked for.
        wanted: String,
        /// What there is.
        there: Vec<String>,
    },
    /// Only the loopback has an IPv4 address, and the user has not asked for it.
    #[error(
        "no interface here has an IPv4 address, except {loopback}{}; say --interface {loopback} to stay on this machine",
        others(there)
    )]
    OnlyLoopback {
        /// The loopback's name.
        loopback: String,
        /// What else there is.
        there: Vec<Link>,
    },
    /// The kernel does not tell.
    #[error("cannot list the interfaces: {0}")]
    System(#[from] io::Error),
}

fn others(there: &[Link]) -> String {
    there.iter().map(|link| format!("; {link}")).collect()
}

/// An interface of this host, whether it can be used or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Its name.
    pub name: String,
    /// Its first IPv4 address.
    pub address: Option<Ipv4Addr>,
    /// Whether it has an IPv6 address that others can reach.
    pub has_ipv6: bool,
    /// Whether it is switched on.
    pub is_up: bool,
    /// Whether it has a carrier: a cable with a device at its other end.
    pub has_carrier: bool,
    /// Whether it takes multicast.
    pub takes_multicast: bool,
    /// Whether it is the loopback.
    pub is_loopback: bool,
}

/// What is the matter with it, or its address.
impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        match (self.is_up, self.has_carrier, self.address) {
            (false, ..) => f.write_str(" is down"),
            (_, false, _) => f.write_str(" has no link (cable, switch port)"),
            (.., Some(address)) => write!(f, " ({address})"),
            _ if self.has_ipv6 => f.write_str(" has IPv6 only"),
            _ => f.write_str(" has no address"),
        }
    }
}

/// All interfaces of this host, in the order in which the kernel tells of them.
///
/// # Errors
/// The kernel does not tell.
pub fn survey() -> io::Result<Vec<Link>> {
    let mut all: Vec<Link> = Vec::new();
    for entry in getifaddrs().map_err(io::Error::from)? {
        let has = |flag| entry.flags.contains(flag);
        let at = all.iter().position(|link| link.name == entry.interface_name).unwrap_or_else(|| {
            all.push(Link {
                name: entry.interface_name.clone(),
                address: None,
                has_ipv6: false,
                is_up: has(InterfaceFlags::IFF_UP),
                has_carrier: has(InterfaceFlags::IFF_RUNNING),
                takes_multicast: has(InterfaceFlags::IFF_MULTICAST) || has(InterfaceFlags::IFF_LOOPBACK),
                is_loopback: has(InterfaceFlags::IFF_LOOPBACK),
            });
            all.len() - 1
        });
        if let Some(address) = entry.address.as_ref() {
            if let Some(address) = address.as_sockaddr_in() {
                all[at].address.get_or_insert(address.ip());
            }
            let ipv6 = address.as_sockaddr_in6().map(|address| address.ip());
            all[at].has_ipv6 |= ipv6.is_some_and(|address| !address.is_unicast_link_local());
        }
    }
    Ok(all)
}

/// The interface of this name or IPv4 address; without one that of the default route, else the first that is not the
/// loopback. The loopback is taken only if it is named.
///
/// # Errors
/// There is no such interface with an IPv4 address.
pub fn resolve(wanted: Option<&str>) -> Result<Interface, InterfaceError> {
    let all = list()?;
    let found = match wanted {
        Some(text) => all.iter().find(|i| i.0 == text || i.1.to_string() == text),
        None => {
            let default = default_route();
            all.iter()
                .find(|i| Some(&i.0) == default.as_ref())
                .or_else(|| all.iter().find(|i| !i.1.is_loopback()))
        }
    };
    let Some((name, address)) = found else {
        if let (None, Some((loopback, _))) = (wanted, all.first()) {
            let there = survey()?.into_iter().filter(|link| !link.is_loopback).collect();
            return Err(InterfaceError::OnlyLoopback { loopback: loopback.clone(), there });
        }
        let there = all.into_iter().map(|(name, address)| format!("{name} ({address})")).collect();
        return Err(InterfaceError::Unknown { wanted: wanted.unwrap_or("at all").to_string(), there });
    };
    Ok(Interface { name: name.clone(), address: *address, mtu: mtu(name)? })
}

/// The number of an interface of the calling thread's network namespace.
///
/// # Errors
/// There is no such interface.
pub fn index(name: &str) -> io::Result<u32> {
    let named = |error: nix::errno::Errno| io::Error::other(format!("the interface {name}: {error}"));
    nix::net::if_::if_nametoindex(name).map_err(named)
}

/// The MTU of the interface that has this address.
///
/// # Errors
/// No interface has it.
pub fn of_address(address: Ipv4Addr) -> Result<Interface, InterfaceError> {
    resolve(Some(&address.to_string()))
}

/// Names and first IPv4 addresses of all interfaces that are up.
fn list() -> io::Result<Vec<(String, Ipv4Addr)>> {
    let mut all: Vec<(String, Ipv4Addr)> = Vec::new();
    for entry in getifaddrs().map_err(io::Error::from)? {
        let up = entry.flags.contains(InterfaceFlags::IFF_UP);
        let address = entry.address.as_ref().and_then(|a| a.as_sockaddr_in()).map(|a| a.ip());
        if let Some(address) = address
            && up
            && !all.iter().any(|(name, _)| *name == entry.interface_name)
        {
            all.push((entry.interface_name, address));
        }
    }
    Ok(all)
}

/// Name of the interface with the default route, from the kernel's table of this network namespace.
fn default_route() -> Option<String> {
    let table = std::fs::read_to_string("/proc/self/net/route").ok()?;
    let mut lines = table.lines().skip(1).map(str::split_whitespace);
    lines.find_map(|mut fields| {
        let name = fields.next()?;
        (fields.next()? == "00000000").then(|| name.to_string())
    })
}

/// The MTU of an interface, asked of the kernel (the file system may show another namespace's).
#[allow(unsafe_code, reason = "no safe wrapper for this ioctl in the libraries at hand")]
fn mtu(name: &str) -> io::Result<u32> {
    let socket = std::net::UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    // SAFETY: `ifreq` is plain old data for which all zeros is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= request.ifr_name.len() {
        return Err(io::Error::other(format!("interface name {name} is too long")));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    // SAFETY: SIOCGIFMTU reads the name of, and writes the MTU into, the `ifreq` that the pointer names,
    // which lives through the call; the name ends with a zero byte because it is shorter than its field.
    let result =
        unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU as libc::Ioctl, &raw mut request) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, so the kernel has filled in this member of the union.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    u32::try_from(mtu).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_is_found_by_name_and_by_address() {
        let by_address = of_address(Ipv4Addr::LOCALHOST).unwrap();
        assert!(by_address.mtu >= 1_500);
        assert_eq!(resolve(Some(&by_address.name)).unwrap(), by_address);
    }

    #[test]
    fn an_unknown_interface_is_named_with_those_there_are() {
        let error = resolve(Some("nothing0")).unwrap_err().to_string();
        assert!(error.contains("nothing0") && error.contains("127.0.0.1"), "{error}");
    }
}
