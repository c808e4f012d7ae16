//! Names and addresses that nobody has to choose.

use crate::args::NetworkArgs;
use crate::exit::Failure;
use polycast_net::interface;
use polycast_types::{AppId, DataId, ObjectId};
use std::net::{Ipv4Addr, SocketAddrV4};

/// Group addresses come from 239.255.0.0/16, which no router lets out of the site.
const GROUP_PREFIX: [u8; 2] = [239, 255];
/// Ports of data channels come from the range that nobody registers.
const DATA_PORT_FIRST: u16 = 49_152;

/// The address of the interface that the user named, or of the default one.
pub fn interface(args: &NetworkArgs) -> Result<Ipv4Addr, Failure> {
    let found = interface::resolve(args.interface.as_deref());
    found.map(|interface| interface.address).map_err(|error| Failure::input(error.to_string()))
}

/// A number for an object that nobody named: no two transfers are likely to get the same.
pub fn fresh_object() -> ObjectId {
    let (_, number) = uuid::Uuid::new_v4().as_u64_pair();
    // Kept short enough for programs that read JSON numbers as floating-point ones.
    ObjectId { app: AppId::default(), data: DataId(number & ((1 << 53) - 1)) }
}

/// A group address and port for a data channel. Two transfers that draw the same one still tell
/// their packets apart; they only get in each other's way.
pub fn fresh_group() -> SocketAddrV4 {
    let (high, low) = uuid::Uuid::new_v4().as_u64_pair();
    let host = [(high >> 8) as u8, high as u8];
    // The first and last address of the range have special uses in some networks.
    let address = Ipv4Addr::new(GROUP_PREFIX[0], GROUP_PREFIX[1], host[0].clamp(1, 254), host[1]);
    let port = DATA_PORT_FIRST + (low % u64::from(u16::MAX - DATA_PORT_FIRST)) as u16;
    SocketAddrV4::new(address, port)
}

/// This machine's name, as other machines would call it.
pub fn machine_name() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    if name.is_empty() { "receiver".to_string() } else { name }
}
