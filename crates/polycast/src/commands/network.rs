//! Names and addresses that users need not choose, and those that they have chosen.

use crate::args::NetworkArgs;
use crate::exit::Failure;
use polycast_net::interface::{self, Interface};
use polycast_net::seal::Secret;
use polycast_net::tls::Security;
use polycast_types::{AppId, DataId, ObjectId};
use polycast_wire::discovery;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, ToSocketAddrs, UdpSocket};
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

/// The address that the kernel would send from. Connecting a UDP socket sends nothing.
fn own_address_towards(other: &SocketAddr) -> Option<Ipv4Addr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    socket.connect(other).ok()?;
    match socket.local_addr().ok()? {
        SocketAddr::V4(own) => Some(*own.ip()),
        SocketAddr::V6(_) => None,
    }
}

/// The addresses of `HOST[:PORT]`.
pub(crate) fn addresses(text: &str) -> Result<Vec<SocketAddr>, Failure> {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) => (host, port.parse().ok().filter(|port: &u16| *port > 0)),
        None => (text, Some(OFFER_PORT)),
    };
    let Some(port) = port.filter(|_| !host.is_empty() && !host.contains(':')) else {
        let message = format!("'{text}' is not HOST[:PORT], such as 10.0.0.1 or source.example:{OFFER_PORT}");
        return Err(Failure::input(message));
    };
    let found = (host, port).to_socket_addrs();
    let found = found.map_err(|error| Failure::input(format!("cannot find the host '{host}': {error}")))?;
    let all: Vec<SocketAddr> = found.filter(SocketAddr::is_ipv4).collect();
    if all.is_empty() {
        return Err(Failure::input(format!("the host '{host}' has no IPv4 address, and Polycast needs one")));
    }
    Ok(all)
}

/// A number for an object that the user has not named: no two transfers are likely to get the same.
pub(crate) fn fresh_object() -> ObjectId {
    let (_, number) = uuid::Uuid::new_v4().as_u64_pair();
    // Kept short enough for programs that read JSON numbers as floating-point ones.
    ObjectId { app: AppId::default(), data: DataId(number & ((1 << 53) - 1)) }
}

/// A group address and port for a data channel that stays on this machine.
pub(crate) fn fresh_group() -> SocketAddrV4 {
    Pool::default().draw(OFFER_PORT)
}

/// Group addresses of which each offer takes one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pool {
    first: u32,
    bits: u32,
}

/// 239.255.0.0/16, which no router lets out of the site.
impl Default for Pool {
    fn default() -> Self {
        Pool { first: u32::from_be_bytes([239, 255, 0, 0]), bits: 16 }
    }
}

impl FromStr for Pool {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "write a range of multicast addresses, such as 239.255.0.0/16".to_string();
        let (address, prefix) = text.split_once('/').unwrap_or((text, "32"));
        let address: Ipv4Addr = address.parse().map_err(|_| wrong())?;
        let prefix: u32 = prefix.parse().map_err(|_| wrong())?;
        if !(4..=32).contains(&prefix) || !address.is_multicast() {
            return Err(wrong());
        }
        let bits = 32 - prefix;
        Ok(Pool { first: u32::from(address) >> bits << bits, bits })
    }
}

impl Pool {
    /// A group for a data channel. Two transfers that draw the same one still tell their packets apart; they
    /// only get in each other's way.
    pub(crate) fn draw(self, port: u16) -> SocketAddrV4 {
        let (number, _) = uuid::Uuid::new_v4().as_u64_pair();
        self.at((number >> 32) as u32, port)
    }

    fn at(self, number: u32, port: u16) -> SocketAddrV4 {
        let count = 1u64 << self.bits;
        let at = |number: u64| Ipv4Addr::from(self.first + (number % count) as u32);
        let taken = |address: &Ipv4Addr| *address == Ipv4Addr::from(discovery::GROUP);
        // The first and last address of a range have special uses in some networks, and announcements have a
        // group of their own.
        let special = |address: &Ipv4Addr| {
            count > 2 && matches!(u64::from(u32::from(*address) - self.first), 0) || taken(address)
        };
        let drawn = (u64::from(number)..).map(at).take(4).find(|address| !special(address));
        SocketAddrV4::new(drawn.unwrap_or_else(|| at(number.into())), port)
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
        assert!(drawn.ip().octets()[..2] == [239, 255], "{drawn}");
        for text in ["", "10.0.0.0/8", "239.0.0.0/33", "239.0.0.0/3", "239/8", "ff02::1"] {
            assert!(text.parse::<Pool>().is_err(), "{text}");
        }
    }

    #[test]
    fn sources_are_named_by_host_and_port() {
        assert_eq!(addresses("127.0.0.1").unwrap(), ["127.0.0.1:18067".parse().unwrap()]);
        assert_eq!(addresses("127.0.0.1:9").unwrap(), ["127.0.0.1:9".parse().unwrap()]);
        for text in ["", ":9", "host:", "host:0", "host:70000", "::1", "[::1]:9"] {
            let failure = addresses(text).unwrap_err();
            assert!(failure.message.contains("HOST[:PORT]"), "{text}: {}", failure.message);
        }
    }
}
