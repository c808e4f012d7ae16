//! Addresses in what is written down: those of IPv4 as four numbers, as managers wrote them that knew no
//! others, and those of IPv6 as a text. So either manager can go on with what the other one has written.

use core::net::IpAddr;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// One address as it is written.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Written {
    V4([u8; 4]),
    Text(IpAddr),
}

impl From<IpAddr> for Written {
    fn from(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => Written::V4(address.octets()),
            IpAddr::V6(_) => Written::Text(address),
        }
    }
}

impl From<Written> for IpAddr {
    fn from(written: Written) -> Self {
        match written {
            Written::V4(octets) => octets.into(),
            Written::Text(address) => address.to_canonical(),
        }
    }
}

/// Writes it.
///
/// # Errors
/// The serializer's.
pub fn serialize<S: Serializer>(address: &IpAddr, serializer: S) -> Result<S::Ok, S::Error> {
    Written::from(*address).serialize(serializer)
}

/// Reads it.
///
/// # Errors
/// It is no address.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<IpAddr, D::Error> {
    Written::deserialize(deserializer).map(IpAddr::from)
}

/// The same of addresses that have a port behind them.
pub mod with_port {
    use super::{Deserialize, Deserializer, IpAddr, Serialize, Serializer, Written};

    /// Writes it.
    ///
    /// # Errors
    /// The serializer's.
    pub fn serialize<S: Serializer>(
        (address, port): &(IpAddr, u16),
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        (Written::from(*address), port).serialize(serializer)
    }

    /// Reads it.
    ///
    /// # Errors
    /// It is no address.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<(IpAddr, u16), D::Error> {
        let (written, port) = <(Written, u16)>::deserialize(deserializer)?;
        Ok((written.into(), port))
    }
}

/// The same of those with names before them.
pub mod named {
    use super::{Deserialize, Deserializer, IpAddr, Serialize, Serializer, Written};
    use alloc::string::String;
    use alloc::vec::Vec;

    /// Addresses with their ports, each after the name of its owner.
    type Named = Vec<(String, (IpAddr, u16))>;

    /// Writes them.
    ///
    /// # Errors
    /// The serializer's.
    pub fn serialize<S: Serializer>(
        all: &[(String, (IpAddr, u16))],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let written = all.iter().map(|(name, (address, port))| (name, (Written::from(*address), *port)));
        written.collect::<Vec<_>>().serialize(serializer)
    }

    /// Reads them.
    ///
    /// # Errors
    /// One is no address.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Named, D::Error> {
        let written = <Vec<(String, (Written, u16))>>::deserialize(deserializer)?;
        Ok(written.into_iter().map(|(name, (address, port))| (name, (address.into(), port))).collect())
    }
}
