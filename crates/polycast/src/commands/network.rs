//! Names and addresses that users need not choose, and those that they have chosen.

use crate::args::values::NetworkArgs;
use crate::exit::Failure;
use polycast_net::interface::{self, Interface};
use polycast_net::seal::Secret;
use polycast_net::tls::Security;
use polycast_types::{AppId, DataId, Location, ObjectId, check_location_name};
use polycast_wire::discovery;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::path::Path;
use std::str::FromStr;

/// TCP port of an offer, unless the user names another one.
pub(crate) const OFFER_PORT: u16 = discovery::PORT;
/// TCP port where a receiver serves others, unless the user names another one. Another one than an offer's:
/// both may run on one machine.
pub(crate) const ACCEPT_PORT: u16 = OFFER_PORT + 1;

/// The interface that the user named, or the default one.
pub(crate) fn interface(args: &NetworkArgs) -> Result<Interface, Failure> {
    interface::resolve(args.interface.as_deref()).map_err(|error| Failure::input(error.to_string()))
}

/// The connections of those that have the key in this file.
pub(crate) fn security(path: &Path) -> Result<Security, Failure> {
    let key = Secret::read(path).map_err(|error| Failure::input(error.to_string()))?;
    Ok(Security::shared(&key))
}

/// The interface that the user named, or the one from which this machine reaches the source. Of an interface
/// with several addresses it is the one that the source will see, unless the user named an address.
pub(crate) fn interface_towards(
    args: &NetworkArgs,
    source: Option<&SocketAddr>,
) -> Result<Interface, Failure> {
    let own = source.and_then(own_address_towards);
    let towards = own.map(interface::of_address);
    match (&args.interface, towards) {
        (None, Some(towards)) => towards.map_err(|error| Failure::input(error.to_string())),
        (Some(name), Some(Ok(towards))) if *name == towards.name => Ok(towards),
        _ => interface(args),
    }
}

/// The place of this machine, if its zone has a name.
pub(crate) fn location(zone: Option<&str>) -> Result<Location, Failure> {
    let Some(zone) = zone.filter(|zone| !zone.is_empty()) else { return Ok(Location::default()) };
    let wrong = |reason| Failure::input(format!("the zone is wrong: {reason}"));
    check_location_name(zone).map(|()| Location::of([zone, ""])).map_err(wrong)
}

/// The address that the kernel would send from. Connecting a UDP socket sends nothing.
fn own_address_towards(other: &SocketAddr) -> Option<IpAddr> {
    let any: IpAddr = match other {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect(other).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// The addresses of `HOST[:PORT]`, in the order in which the system would try them (RFC 6724). An address of
/// IPv6 stands in brackets.
pub(crate) fn addresses(text: &str) -> Result<Vec<SocketAddr>, Failure> {
    addresses_at(text, OFFER_PORT)
}

/// Refuses an address of IPv6 without brackets: it is not seen where it ends, and where a port begins.
pub(crate) fn refuse_without_brackets(text: &str) -> Result<(), Failure> {
    if text.split('%').next().is_some_and(|address| address.parse::<Ipv6Addr>().is_ok()) {
        address_v6(text)?;
        return Err(Failure::input(format!("an IPv6 address needs brackets: write [{text}]")));
    }
    Ok(())
}

/// The same addresses, with this port where none is named.
pub(crate) fn addresses_at(text: &str, usual: u16) -> Result<Vec<SocketAddr>, Failure> {
    let wrong = || {
        Failure::input(format!(
            "'{text}' is not HOST[:PORT], such as 10.0.0.1, source.example:{usual} or [fd00::1]:{usual}"
        ))
    };
    refuse_without_brackets(text)?;
    let (host, port) = match text.strip_prefix('[').map(|rest| rest.split_once(']').ok_or_else(wrong)) {
        Some(split) => {
            let (address, behind) = split?;
            let port =
                if behind.is_empty() { None } else { Some(behind.strip_prefix(':').ok_or_else(wrong)?) };
            (address, port)
        }
        None => match text.rsplit_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let port = port.map_or(Some(usual), |port| port.parse().ok().filter(|port: &u16| *port > 0));
    let port = port.ok_or_else(wrong)?;
    if text.starts_with('[') {
        return Ok(vec![SocketAddr::from((address_v6(host)?, port))]);
    }
    if host.is_empty() || host.contains(':') {
        return Err(wrong());
    }
    let found = (host, port).to_socket_addrs();
    let found = found.map_err(|error| Failure::input(format!("cannot find the host '{host}': {error}")))?;
    Ok(found.collect())
}

/// An address of IPv6 without its brackets.
fn address_v6(text: &str) -> Result<Ipv6Addr, Failure> {
    let address = text.split_once('%').map_or(text, |(address, _)| address);
    let address: Ipv6Addr =
        address.parse().map_err(|_| Failure::input(format!("'{address}' is not an IPv6 address")))?;
    if address.is_unicast_link_local() {
        return Err(Failure::input(format!(
            "{address} is an address of one link, at which no source listens: take another address of that host"
        )));
    }
    Ok(address)
}

/// A number for an object that the user has not named: no two transfers are likely to get the same.
pub(crate) fn fresh_object() -> ObjectId {
    let (_, number) = uuid::Uuid::new_v4().as_u64_pair();
    // Kept short enough for programs that read JSON numbers as floating-point ones.
    ObjectId { app: AppId::default(), data: DataId(number & ((1 << 53) - 1)) }
}

/// A group address and port for a data channel that stays on this machine.
pub(crate) fn fresh_group(own: IpAddr) -> SocketAddr {
    Pool::usual(own).draw(OFFER_PORT)
}

/// The pool that the user named, or the usual one of an end with this interface.
pub(crate) fn group_of(pool: Option<Pool>, own: &Interface) -> Result<Pool, Failure> {
    let pool = pool.unwrap_or_else(|| Pool::usual(own.address));
    if pool.first.is_ipv4() == own.address.is_ipv4() {
        return Ok(pool);
    }
    Err(Failure::input(format!(
        "--pool has groups of another family than this machine's address {}: leave it out, or name an address with \
         --interface",
        own.address
    )))
}

/// Group addresses of which each offer takes one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pool {
    first: IpAddr,
    /// Bits at the end of an address in which they differ, at most 32.
    bits: u32,
}

impl FromStr for Pool {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || "write a range of multicast addresses, such as 239.255.0.0/16 or ff15::8000:0/112".to_string();
        let (address, prefix) = text.split_once('/').map_or((text, None), |(of, prefix)| (of, Some(prefix)));
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let all = if address.is_ipv4() { 32 } else { 128 };
        let prefix: u32 = prefix.map_or(Ok(all), str::parse).map_err(|_| wrong())?;
        let bits = all.checked_sub(prefix).filter(|bits| *bits <= if address.is_ipv4() { 28 } else { 32 });
        let bits = bits.filter(|_| address.is_multicast()).ok_or_else(wrong)?;
        Ok(Pool {
            first: with_end(address, |end| end.checked_shr(bits).unwrap_or(0).checked_shl(bits).unwrap_or(0)),
            bits,
        })
    }
}

/// The address with another last four bytes.
fn with_end(address: IpAddr, change: impl Fn(u32) -> u32) -> IpAddr {
    match address {
        IpAddr::V4(address) => Ipv4Addr::from(change(address.to_bits())).into(),
        IpAddr::V6(address) => {
            let bits = address.to_bits();
            let end = change(bits as u32);
            Ipv6Addr::from((bits >> 32 << 32) | u128::from(end)).into()
        }
    }
}

impl Pool {
    /// 239.255.0.0/16, which no router lets out of the site, or the same of IPv6, with numbers that RFC 3307
    /// leaves to hosts.
    fn usual(own: IpAddr) -> Self {
        match own {
            IpAddr::V4(_) => Pool { first: IpAddr::from([239, 255, 0, 0]), bits: 16 },
            IpAddr::V6(_) => Pool { first: Ipv6Addr::new(0xff15, 0, 0, 0, 0, 0, 0x8000, 0).into(), bits: 16 },
        }
    }

    /// A group for a data channel. Two transfers that draw the same one still tell their packets apart; they
    /// only get in each other's way.
    pub(crate) fn draw(self, port: u16) -> SocketAddr {
        let (number, _) = uuid::Uuid::new_v4().as_u64_pair();
        self.at((number >> 32) as u32, port)
    }

    fn at(self, number: u32, port: u16) -> SocketAddr {
        let count = 1u64 << self.bits;
        let at = |number: u64| with_end(self.first, |end| end.wrapping_add((number % count) as u32));
        // The first address of a range has special uses in some networks, and announcements have a group of
        // their own.
        let special = |address: &IpAddr| {
            count > 2 && *address == self.first || *address == discovery::group_for(*address)
        };
        let drawn = (u64::from(number)..).map(at).take(4).find(|address| !special(address));
        SocketAddr::new(drawn.unwrap_or_else(|| at(number.into())), port)
    }
}

/// This machine's name, as other machines would call it.
pub(crate) fn machine_name() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    if name.is_empty() { "receiver".to_string() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_come_from_their_pool() {
        let pool: Pool = "239.255.0.0/16".parse().unwrap();
        assert_eq!(pool.at(0, 7), "239.255.0.1:7".parse().unwrap());
        assert_eq!(pool.at(0x5_5043, 7), "239.255.80.68:7".parse().unwrap(), "announcements have their own");
        assert_eq!("239.1.2.3".parse::<Pool>().unwrap().draw(9), "239.1.2.3:9".parse().unwrap());
        let drawn = pool.draw(1);
        assert!(drawn.ip().to_string().starts_with("239.255."), "{drawn}");
        let usual = Pool::usual(Ipv6Addr::LOCALHOST.into());
        assert_eq!(usual, "ff15::8000:0/112".parse().unwrap());
        assert_eq!(usual.at(7, 9), "[ff15::8000:7]:9".parse().unwrap());
        for text in ["", "10.0.0.0/8", "239.0.0.0/33", "239.0.0.0/3", "239/8", "fd00::/120", "ff15::/64"] {
            assert!(text.parse::<Pool>().is_err(), "{text}");
        }
    }

    #[test]
    fn sources_are_named_by_host_and_port() {
        assert_eq!(addresses("127.0.0.1").unwrap(), ["127.0.0.1:18067".parse().unwrap()]);
        assert_eq!(addresses("127.0.0.1:9").unwrap(), ["127.0.0.1:9".parse().unwrap()]);
        assert_eq!(addresses("[::1]").unwrap(), ["[::1]:18067".parse().unwrap()]);
        assert_eq!(addresses("[::1]:9").unwrap(), ["[::1]:9".parse().unwrap()]);
        for (text, words) in [
            ("fd00::1", "[fd00::1]"),
            ("fe80::1", "one link"),
            ("fe80::1%eth0", "one link"),
            ("[fe80::1]", "one link"),
            ("[fe80::1%eth0]:9", "one link"),
            ("[10.0.0.1]", "not an IPv6 address"),
        ] {
            let failure = addresses(text).unwrap_err();
            assert!(failure.message.contains(words), "{text}: {}", failure.message);
        }
        for text in ["", ":9", "host:", "host:0", "host:70000", "[::1]9", "[::1", "[::1]:"] {
            let failure = addresses(text).unwrap_err();
            assert!(failure.message.contains("HOST[:PORT]"), "{text}: {}", failure.message);
        }
    }
}
