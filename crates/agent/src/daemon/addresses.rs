//! Addresses of an agent.

use std::net::{IpAddr, SocketAddr};

/// Addresses of an agent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    /// Address of the interface that carries the transfers.
    pub interface: IpAddr,
    /// Address that other agents reach it at.
    pub control: SocketAddr,
}
