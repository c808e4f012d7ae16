//! Listening of a transfer: at a port of its own, or at the port of an agent, which all its transfers share.

use super::door::{Door, Side};
use super::error::TransferError;
use super::strangers::Strangers;
use polycast_net::tls::Security;
use polycast_types::Handle;
use std::net::{IpAddr, SocketAddr, TcpListener};

/// Place where a transfer listens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Listen {
    /// At a port that the system chooses.
    #[default]
    Anywhere,
    /// At this port, or not at all.
    At(u16),
    /// At this port, or at one that the system chooses where another program has it.
    Rather(u16),
    /// At the port of the agent, which passes on what comes for the transfer.
    Shared(Door),
}

impl Listen {
    /// Begins to listen on this interface.
    pub(super) fn open(
        &self,
        interface: IpAddr,
        handle: Handle,
        side: Side,
        security: Option<Security>,
    ) -> Result<(Strangers, SocketAddr), TransferError> {
        let at = |port: u16| {
            let address = SocketAddr::from((interface, port));
            TcpListener::bind(address).map_err(|source| TransferError::Listen { address, source })
        };
        let listener = match self {
            Listen::Anywhere => at(0),
            Listen::At(port) => at(*port),
            Listen::Rather(port) => at(*port).or_else(|_| at(0)),
            Listen::Shared(door) => {
                let desk = door.desk(handle, side)?;
                return Ok((Strangers::at_desk(desk, security.is_some()), door.address()));
            }
        }?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        Ok((Strangers::new(listener, security), address))
    }
}
