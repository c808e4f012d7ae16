//! The interfaces of this host: which one to use, its address and its MTU.

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use socket2::{Domain, Protocol, Socket, Type};
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsRawFd;

/// One interface with an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its name, such as `eth0`.
    pub name: String,
    /// The address that was asked for, or its first one: those of IPv4 come first.
    pub address: IpAddr,
    /// Its MTU in bytes.
    pub mtu: u32,
}

/// An interface that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum InterfaceError {
    /// No such name or address here.
    #[error("no interface {wanted} with an address here; there is {}", there.join(", "))]
    Unknown {
        /// Name or address that was requested.
        wanted: String,
        /// Usable interfaces of this host.
        there: Vec<String>,
    },
    /// Only the loopback has an address, and the user has not asked for it.
    #[error(
        "no interface here has an address, except {loopback}{}; say --interface {loopback} to stay on this machine",
        others(there)
    )]
    OnlyLoopback {
        /// The loopback's name.
        loopback: String,
        /// Other interfaces of this host.
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
    /// Its addresses, in the order in which the kernel tells of them: those of IPv4, and then those of IPv6
    /// that hosts of other links can reach, too.
    pub addresses: Vec<IpAddr>,
    /// Set if it is switched on.
    pub is_up: bool,
    /// Set if it has a carrier: a cable with a device at its other end.
    pub has_carrier: bool,
    /// Set if it takes multicast.
    pub takes_multicast: bool,
    /// Set if it is the loopback.
    pub is_loopback: bool,
}

impl Link {
    /// Returns true if the interface is switched on and has an address.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        self.is_up && !self.addresses.is_empty()
    }

    /// Its addresses, for a sentence.
    #[must_use]
    pub fn addresses_text(&self) -> String {
        self.addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    }
}

/// Shows the problem of the interface, or its addresses.
impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        match (self.is_up, self.has_carrier, self.addresses.is_empty()) {
            (false, ..) => f.write_str(" is down"),
            (_, false, _) => f.write_str(" has no link (cable, switch port)"),
            (.., false) => write!(f, " ({})", self.addresses_text()),
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
                addresses: Vec::new(),
                is_up: has(InterfaceFlags::IFF_UP),
                // The kernel says that an interface runs up to a second after its carrier is there.
                has_carrier: has(InterfaceFlags::IFF_RUNNING)
                    || has(InterfaceFlags::IFF_LOWER_UP) && !has(InterfaceFlags::IFF_DORMANT),
                takes_multicast: has(InterfaceFlags::IFF_MULTICAST) || has(InterfaceFlags::IFF_LOOPBACK),
                is_loopback: has(InterfaceFlags::IFF_LOOPBACK),
            });
            all.len() - 1
        });
        if let Some(address) = entry.address.as_ref() {
            if let Some(address) = address.as_sockaddr_in() {
                all[at].addresses.push(address.ip().into());
            }
            let ipv6 = address.as_sockaddr_in6().map(|address| address.ip());
            all[at].addresses.extend(ipv6.filter(|ip| !ip.is_unicast_link_local()).map(IpAddr::from));
        }
    }
    // The order of each family stays.
    all.iter_mut().for_each(|link| link.addresses.sort_by_key(IpAddr::is_ipv6));
    Ok(all)
}

/// The interface of this name, with its first address, or of this address. Without either the one that
/// other hosts are most likely behind: that of the default route if it has a link, else the first with a link
/// that is not the loopback. Where none has a link: that of the default route, else the first. The loopback
/// is taken only if it is named.
///
/// # Errors
/// There is no such interface with an address.
pub fn resolve(wanted: Option<&str>) -> Result<Interface, InterfaceError> {
    let all = survey()?;
    let found = find(&all, wanted);
    match (found, all.iter().find(|link| link.is_loopback && link.is_usable())) {
        (Some((link, address)), _) => {
            Ok(Interface { name: link.name.clone(), address, mtu: mtu(&link.name)? })
        }
        (None, Some(loopback)) if wanted.is_none() => {
            let loopback = loopback.name.clone();
            let there = all.into_iter().filter(|link| !link.is_loopback).collect();
            Err(InterfaceError::OnlyLoopback { loopback, there })
        }
        (None, _) => {
            let usable = all.iter().filter(|link| link.is_usable());
            let there = usable.map(|link| format!("{} ({})", link.name, link.addresses_text())).collect();
            Err(InterfaceError::Unknown { wanted: wanted.unwrap_or("at all").to_string(), there })
        }
    }
}

/// Returns the interface to move to for one that uses this address of the interface that was `wanted`, as
/// [`resolve`] has found it, if it is to move: the address is gone, or the one is `at_large`, so that it may
/// as well have the place that is the best now.
///
/// # Errors
/// The kernel does not report the interfaces.
pub fn elsewhere(wanted: Option<&str>, address: IpAddr, at_large: bool) -> io::Result<Option<Interface>> {
    let all = survey()?;
    let Some((link, address)) = move_from(&all, find(&all, wanted), address, at_large) else {
        return Ok(None);
    };
    Ok(Some(Interface { name: link.name.clone(), address, mtu: mtu(&link.name)? }))
}

/// The same of these interfaces; `best` is what one that begins now takes.
fn move_from<'a>(
    all: &[Link],
    best: Option<(&'a Link, IpAddr)>,
    address: IpAddr,
    at_large: bool,
) -> Option<(&'a Link, IpAddr)> {
    let now = all.iter().find(|link| link.addresses.contains(&address));
    best.filter(|(best, _)| now.is_none_or(|now| at_large && now.name != best.name))
}

/// Finds the interface that is requested, or the best one where none is.
fn find<'a>(all: &'a [Link], wanted: Option<&str>) -> Option<(&'a Link, IpAddr)> {
    match wanted {
        Some(text) => named(all, text),
        None => choose(all, &default_routes()).map(|link| (link, link.addresses[0])),
    }
}

/// The interface of this name or address, and which of its addresses is meant.
fn named<'a>(all: &'a [Link], text: &str) -> Option<(&'a Link, IpAddr)> {
    let mut usable = all.iter().filter(|link| link.is_usable());
    match text.parse() {
        Ok(address) => usable.find(|link| link.addresses.contains(&address)).map(|link| (link, address)),
        Err(_) => usable.find(|link| link.name == text).map(|link| (link, link.addresses[0])),
    }
}

/// The interface to use where none is named; `default_routes` are those of the default routes, the best
/// first.
fn choose<'a>(all: &'a [Link], default_routes: &[String]) -> Option<&'a Link> {
    let usable: Vec<&Link> = all.iter().filter(|link| link.is_usable() && !link.is_loopback).collect();
    let by_route = default_routes.iter().filter_map(|name| usable.iter().find(|link| link.name == *name));
    let by_likelihood: Vec<&Link> = by_route.chain(&usable).copied().collect();
    by_likelihood.iter().find(|link| link.has_carrier).or(by_likelihood.first()).copied()
}

/// Returns true if an interface of this host has this address, be it switched on or not; also where the
/// kernel does not report the addresses.
#[must_use]
pub fn is_here(address: IpAddr) -> bool {
    survey().map_or(true, |all| all.iter().any(|link| link.addresses.contains(&address)))
}

/// The number of an interface of the calling thread's network namespace.
///
/// # Errors
/// There is no such interface.
pub fn index(name: &str) -> io::Result<u32> {
    let named = |error: nix::errno::Errno| io::Error::other(format!("the interface {name}: {error}"));
    nix::net::if_::if_nametoindex(name).map_err(named)
}

/// The number of the interface that has this address.
pub(crate) fn index_of(address: IpAddr) -> io::Result<u32> {
    let interface = of_address(address).map_err(io::Error::other)?;
    index(&interface.name)
}

/// The MTU of the interface that has this address.
///
/// # Errors
/// No interface has it.
pub fn of_address(address: IpAddr) -> Result<Interface, InterfaceError> {
    resolve(Some(&address.to_string()))
}

/// Names of the interfaces with a default route, the best first, from the kernel's table of this network
/// namespace.
fn default_routes() -> Vec<String> {
    let read = |table: &str| std::fs::read_to_string(format!("/proc/thread-self/net/{table}"));
    let mut names = default_routes_in(&read("route").unwrap_or_default());
    names.extend(default_routes_v6_in(&read("ipv6_route").unwrap_or_default()));
    names
}

/// The same of a text such as that of `/proc/net/ipv6_route`.
fn default_routes_v6_in(table: &str) -> Vec<String> {
    /// A route that is in use, and one that turns packets away.
    const UP: u32 = 1;
    const REJECT: u32 = 0x200;
    const ALL: &str = "00000000000000000000000000000000";
    let mut found: Vec<(u32, String)> = Vec::new();
    for line in table.lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [to, "00", _, _, _, metric, _, _, flags, name] = fields[..] else { continue };
        let number = |text| u32::from_str_radix(text, 16);
        if to == ALL && number(flags).is_ok_and(|flags| flags & (UP | REJECT) == UP) {
            found.push((number(metric).unwrap_or(u32::MAX), name.to_string()));
        }
    }
    found.sort_by_key(|(metric, _)| *metric);
    found.into_iter().map(|(_, name)| name).collect()
}

/// The same of a text such as that of `/proc/net/route`.
fn default_routes_in(table: &str) -> Vec<String> {
    /// A route that is in use, and one that turns packets away.
    const UP: u32 = 1;
    const REJECT: u32 = 0x200;
    let mut found: Vec<(u32, String)> = Vec::new();
    for line in table.lines().skip(1) {
        let fields: Vec<&str> = line.split_whitespace().collect();
        // A VPN's halves of all addresses, 0.0.0.0/1 and 128.0.0.0/1, are told from the whole by the mask.
        let [name, "00000000", _, flags, _, _, metric, "00000000", ..] = fields[..] else { continue };
        let flags = u32::from_str_radix(flags, 16).unwrap_or(0);
        if flags & (UP | REJECT) == UP {
            found.push((metric.parse().unwrap_or(u32::MAX), name.to_string()));
        }
    }
    // Of equal ones the first counts.
    found.sort_by_key(|(metric, _)| *metric);
    found.into_iter().map(|(_, name)| name).collect()
}

/// The MTU of an interface, asked of the kernel (the file system may show another namespace's).
#[allow(unsafe_code, reason = "no safe wrapper for this ioctl in the libraries at hand")]
fn mtu(name: &str) -> io::Result<u32> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
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
        let by_address = of_address(IpAddr::from([127, 0, 0, 1])).unwrap();
        assert!(by_address.mtu >= 1_500);
        assert_eq!(resolve(Some(&by_address.name)).unwrap(), by_address);
    }

    fn link(name: &str, addresses: &[&str]) -> Link {
        Link {
            name: name.into(),
            addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
            is_up: true,
            has_carrier: true,
            takes_multicast: true,
            is_loopback: name == "lo",
        }
    }

    #[test]
    fn every_address_of_an_interface_is_one_of_its_addresses() {
        let all = [link("lo", &["127.0.0.1", "10.9.9.9"]), link("e0", &["192.0.2.1", "198.51.100.1"])];
        let of =
            |text: &str| named(&all, text).map(|(link, address)| (link.name.as_str(), address.to_string()));
        assert_eq!(of("e0"), Some(("e0", "192.0.2.1".into())));
        assert_eq!(of("198.51.100.1"), Some(("e0", "198.51.100.1".into())));
        assert_eq!(of("10.9.9.9"), Some(("lo", "10.9.9.9".into())));
        assert_eq!(of("192.0.2.2"), None);
        let down = Link { is_up: false, ..all[1].clone() };
        assert!(named(&[down], "198.51.100.1").is_none(), "no packet leaves by it");
        assert_eq!(all[1].to_string(), "e0 (192.0.2.1, 198.51.100.1)");
    }

    #[test]
    fn the_interface_with_a_link_is_chosen() {
        let lo = link("lo", &["127.0.0.1"]);
        let (wired, radio) = (link("wired", &["192.0.2.1"]), link("radio", &["198.51.100.1"]));
        let dark = Link { has_carrier: false, ..wired.clone() };
        let bare = Link { addresses: Vec::new(), ..wired.clone() };
        let chosen = |all: &[&Link], routes: &[&str]| {
            let all: Vec<Link> = all.iter().copied().cloned().collect();
            let routes: Vec<String> = routes.iter().map(ToString::to_string).collect();
            choose(&all, &routes).map(|link| link.name.clone()).unwrap_or_default()
        };
        assert_eq!(chosen(&[&lo, &wired, &radio], &["wired", "radio"]), "wired");
        assert_eq!(chosen(&[&lo, &wired, &radio], &["radio", "wired"]), "radio");
        assert_eq!(chosen(&[&lo, &dark, &radio], &["wired", "radio"]), "radio", "the first has no link");
        assert_eq!(chosen(&[&lo, &dark, &radio], &["wired"]), "radio", "no route, but a link");
        assert_eq!(chosen(&[&lo, &dark, &radio], &[]), "radio");
        assert_eq!(chosen(&[&lo, &bare, &radio], &["wired"]), "radio", "it has no address");
        let off = Link { has_carrier: false, ..radio.clone() };
        assert_eq!(chosen(&[&lo, &dark, &off], &["radio"]), "radio", "none has a link");
        assert_eq!(chosen(&[&lo], &["lo"]), "", "the loopback has to be named");
    }

    #[test]
    fn one_goes_elsewhere_when_its_address_is_gone_and_when_it_may() {
        let (wired, radio) = (link("wired", &["192.0.2.1", "192.0.2.9"]), link("radio", &["198.51.100.1"]));
        let all = [wired.clone(), radio];
        let own = |address: &str| address.parse().unwrap();
        let goes = |best: usize, from: &str, at_large: bool| {
            let best = Some((&all[best], all[best].addresses[0]));
            move_from(&all, best, own(from), at_large).map(|(link, _)| link.name.clone())
        };
        assert_eq!(goes(1, "192.0.2.1", false), None, "it is well where it is");
        assert_eq!(goes(1, "192.0.2.1", true).as_deref(), Some("radio"), "it may have a better place");
        assert_eq!(goes(0, "192.0.2.9", true), None, "it is there already, by another address");
        assert_eq!(goes(0, "192.0.2.2", false).as_deref(), Some("wired"), "its address is gone");
        assert!(move_from(&all, None, own("192.0.2.2"), true).is_none(), "there is nowhere to go");
    }

    /// The same of interfaces that the kernel has.
    #[test]
    fn the_interface_with_a_link_is_chosen_of_those_that_are_here() {
        polycast_testing::isolated(|| {
            let run = |line: &str| {
                let ran = std::process::Command::new("ip").args(line.split(' ')).status();
                assert!(ran.is_ok_and(|status| status.success()), "ip {line}");
            };
            // The other end of the first wire is off.
            for (name, other, address) in
                [("wired", "w1", "192.0.2.1/28"), ("radio", "r1", "198.51.100.1/24")]
            {
                run(&format!("link add {name} type veth peer name {other}"));
                run(&format!("address add {address} dev {name}"));
                run(&format!("link set {name} up"));
            }
            run("address add 203.0.113.9/24 dev radio");
            run("link set r1 up");
            run("route add default dev wired metric 100");
            let chosen = || resolve(None).unwrap().name;
            polycast_testing::until("radio has a link", || chosen() == "radio");
            run("route add default dev radio metric 600");
            assert_eq!(chosen(), "radio");
            run("link set w1 up");
            polycast_testing::until("wired has a link, and the better route", || chosen() == "wired");
            let second = IpAddr::from([203, 0, 113, 9]);
            let found = of_address(second).unwrap();
            assert_eq!((found.name.as_str(), found.address), ("radio", second));
            run("link set radio down");
            assert!(is_here(second) && of_address(second).is_err(), "it is here, and no packet leaves by it");
            run("address del 203.0.113.9/24 dev radio");
            assert!(!is_here(second));
        });
    }

    /// Default routes have no destination and no mask; the least metric is the best.
    #[test]
    fn default_routes_are_read_in_the_order_of_their_metrics() {
        let table = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n\
            tun0\t00000000\t050200C0\t0003\t0\t0\t0\t00000080\t0\t0\t0\n\
            tun0\t00000080\t050200C0\t0003\t0\t0\t0\t00000080\t0\t0\t0\n\
            radio\t00000000\t026433C6\t0003\t0\t0\t600\t00000000\t0\t0\t0\n\
            wired\t00000000\t010200C0\t0003\t0\t0\t100\t00000000\t0\t0\t0\n\
            off\t00000000\t010200C0\t0002\t0\t0\t1\t00000000\t0\t0\t0\n\
            *\t00000000\t00000000\t0201\t0\t0\t2\t00000000\t0\t0\t0\n\
            e0\t000200C0\t00000000\t0001\t0\t0\t0\tF0FFFFFF\t0\t0\t0\n";
        assert_eq!(default_routes_in(table), ["wired", "radio"]);
        assert!(default_routes_in("").is_empty());
    }

    #[test]
    fn an_unknown_interface_is_named_with_those_there_are() {
        let error = resolve(Some("nothing0")).unwrap_err().to_string();
        assert!(error.contains("nothing0") && error.contains("127.0.0.1"), "{error}");
    }
}
