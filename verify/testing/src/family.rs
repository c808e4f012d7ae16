//! Addresses of tests that run in a network of either family: those of IPv4, or, where the variable says so,
//! those of IPv6 in a network that has no other.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Has the value `6` where the network that a test runs in has IPv6 alone.
const FAMILY: &str = "POLYCAST_TEST_FAMILY";

/// Returns true if the network has IPv6 alone.
#[must_use]
pub fn is_ipv6() -> bool {
    std::env::var_os(FAMILY).is_some_and(|family| family == "6")
}

/// The address that all ends of a test have. In a network with IPv6 alone it is that of an interface without
/// cable: the loopback interface carries no multicast there.
#[must_use]
pub fn own_address() -> IpAddr {
    if is_ipv6() { Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1).into() } else { Ipv4Addr::LOCALHOST.into() }
}

/// The multicast group with this address of IPv4, or one of IPv6 that has its number.
#[must_use]
pub fn multicast_group(address: [u8; 4]) -> IpAddr {
    let [_, b, c, d] = address.map(u16::from);
    match is_ipv6() {
        true => Ipv6Addr::new(0xff15, 0, 0, 0, 0, 0, 0x8000 | b, c << 8 | d).into(),
        false => IpAddr::from(address),
    }
}
