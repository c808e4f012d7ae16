//! Places of hosts: the server's number of each in a fabric's network.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::fabric_name::FabricName;
use crate::plan::{Group, HostId, Refusal};

/// The server's number of every host that a fabric reaches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Places {
    by_host: BTreeMap<HostId, u32>,
}

/// Places that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlaceError {
    /// A server that the network does not have.
    #[error("host {host} is said to be server {server}: the servers of this network are 0 to {last}")]
    Range {
        /// The host.
        host: u32,
        /// The refused server.
        server: u32,
        /// The last server.
        last: u32,
    },
    /// Two hosts on one server.
    #[error("hosts {one} and {other} are both said to be server {server}: give every host its own")]
    Taken {
        /// A host.
        one: u32,
        /// Another one.
        other: u32,
        /// The server.
        server: u32,
    },
}

/// Hosts, each with its server.
pub(crate) type Servers = Vec<(HostId, u32)>;

impl Places {
    /// These hosts on these servers of a network of `servers` servers.
    ///
    /// # Errors
    /// If there is no such server, or two hosts are on the same.
    pub fn new(servers: u32, places: impl IntoIterator<Item = (HostId, u32)>) -> Result<Self, PlaceError> {
        let mut by_host = BTreeMap::new();
        let mut by_server: BTreeMap<u32, HostId> = BTreeMap::new();
        for (host, server) in places {
            if server >= servers {
                return Err(PlaceError::Range { host: host.0, server, last: servers.saturating_sub(1) });
            }
            if let Some(one) = by_server.insert(server, host).filter(|one| *one != host) {
                return Err(PlaceError::Taken { one: one.0, other: host.0, server });
            }
            if let Some(before) = by_host.insert(host, server).filter(|before| *before != server) {
                by_server.remove(&before);
            }
        }
        Ok(Places { by_host })
    }

    /// The server of a host.
    #[must_use]
    pub fn get(&self, host: HostId) -> Option<u32> {
        self.by_host.get(&host).copied()
    }

    /// The servers of a group with one source: the source's, and the receivers' in the order of the hosts.
    pub(crate) fn of_group(
        &self,
        fabric: FabricName,
        group: &Group,
    ) -> Result<(u32, Vec<(HostId, u32)>), Refusal> {
        let (sources, receivers) = self.of_sources(fabric, group)?;
        Ok((sources[0].1, receivers))
    }

    /// The same with all sources, of which there is one at least.
    pub(crate) fn of_sources(
        &self,
        fabric: FabricName,
        group: &Group,
    ) -> Result<(Servers, Servers), Refusal> {
        if group.receivers.is_empty() {
            return Err(Refusal::Impossible("there is no receiver".into()));
        }
        let find = |host: HostId| match self.get(host) {
            Some(server) => Ok((host, server)),
            None => Err(Refusal::NoPlace { host, fabric: fabric.into() }),
        };
        let sources = group.sources().map(find).collect::<Result<_, _>>()?;
        Ok((sources, group.receivers.iter().copied().map(find).collect::<Result<_, _>>()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn places_are_checked() {
        let places = Places::new(4, [(HostId(7), 0), (HostId(9), 3)]).unwrap();
        assert_eq!((places.get(HostId(9)), places.get(HostId(1))), (Some(3), None));
        let error = Places::new(4, [(HostId(7), 4)]).unwrap_err().to_string();
        assert!(error.contains("host 7") && error.contains("0 to 3"), "{error}");
        let error = Places::new(4, [(HostId(7), 1), (HostId(8), 1)]).unwrap_err().to_string();
        assert!(error.contains("7 and 8"), "{error}");
    }
}
