//! The fast path of a Datacast node: what it only passes on never leaves the kernel (Datacast, section 6).
//!
//! The program is `bpf/datacast.c`. Packets that are out of the ordinary, and those that the node keeps, go
//! to its socket as before.

use super::{BpfError, Object, Settings, programs};
use crate::interface::of_address;
use aya::Pod;
use std::net::SocketAddrV4;
use std::time::Duration;

/// Ports of a node.
pub const PORTS_MAX: usize = 128;
/// The action by which a packet leaves for another interface.
pub const REDIRECTED: u32 = 7;
/// The action by which a packet goes to the node's socket.
pub const TO_SOCKET: u32 = 0;

#[derive(Clone, Copy)]
#[repr(C)]
struct Link {
    interface: u32,
    local_ip: u32,
    peer_ip: u32,
    local_port: u16,
    peer_port: u16,
}

// SAFETY: only integers, without padding, as `struct link` in bpf/datacast.c.
#[allow(unsafe_code)]
unsafe impl Pod for Link {}

impl Link {
    /// In network order.
    fn new(interface: u32, local: SocketAddrV4, peer: SocketAddrV4) -> Self {
        let ip = |address: SocketAddrV4| u32::from_ne_bytes(address.ip().octets());
        Link {
            interface,
            local_ip: ip(local),
            peer_ip: ip(peer),
            local_port: local.port().to_be(),
            peer_port: peer.port().to_be(),
        }
    }
}

/// A node's fast path in the kernel. It passes nothing on any more when this is dropped.
#[derive(Debug)]
pub struct KernelNode {
    object: Object,
}

impl KernelNode {
    /// Loads the path of a node with these links, by the order of its ports, and puts it before their
    /// interfaces, which are in the calling thread's network namespace. Routes of more than `hops` hops are
    /// not passed on. `None` where ports have no interfaces of their own, as on the loopback.
    ///
    /// # Errors
    /// It was not built, or the kernel refuses it.
    ///
    /// # Panics
    /// If there are more ports than [`PORTS_MAX`].
    pub fn attach(links: &[(SocketAddrV4, SocketAddrV4)], hops: u32) -> Result<Option<Self>, BpfError> {
        let mut interfaces: Vec<String> = Vec::with_capacity(links.len());
        for (local, _) in links {
            let Ok(interface) = of_address((*local.ip()).into()) else { return Ok(None) };
            if local.ip().is_loopback() || interfaces.contains(&interface.name) {
                return Ok(None);
            }
            interfaces.push(interface.name);
        }
        let mut node = Self::load(links.len(), hops)?;
        for ((number, name), (local, peer)) in (0..).zip(&interfaces).zip(links) {
            let index = nix::net::if_::if_nametoindex(name.as_str())
                .map_err(|error| BpfError::new(format!("find the interface {name}"), error))?;
            node.set_port(number, index, *local, *peer)?;
            node.object.attach("datacast", name)?;
        }
        Ok(Some(node))
    }

    /// A node of so many ports that is nowhere yet; routes of more than `hops` hops are not passed on.
    ///
    /// # Errors
    /// It was not built, or the kernel refuses it.
    ///
    /// # Panics
    /// If there are more ports than [`PORTS_MAX`].
    pub fn load(ports: usize, hops: u32) -> Result<Self, BpfError> {
        assert!(ports <= PORTS_MAX, "a node has at most {PORTS_MAX} ports");
        let settings =
            Settings { constants: vec![("ports", ports as u32), ("hops_most", hops)], sizes: Vec::new() };
        Ok(KernelNode { object: Object::load("datacast", &programs::DATACAST, &settings)? })
    }

    /// Tells the link of a port, and the interface that it is at.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn set_port(
        &mut self,
        port: u32,
        interface: u32,
        local: SocketAddrV4,
        peer: SocketAddrV4,
    ) -> Result<(), BpfError> {
        self.object.insert("port_of", interface, port)?;
        self.object.set("links", port, Link::new(interface, local, peer))
    }

    /// Packets that it has passed on.
    ///
    /// # Errors
    /// The kernel refuses to tell.
    pub fn passed(&mut self) -> Result<u64, BpfError> {
        Ok(self.object.counters::<1>("passed")?[0])
    }

    /// Returns the number of its runs while runs were measured ([`super::measure_runs`]), and their total
    /// time.
    ///
    /// # Errors
    /// The kernel refuses to tell.
    pub fn cost(&mut self) -> Result<(u64, Duration), BpfError> {
        self.object.cost("datacast")
    }

    /// Runs it on a frame that came in by interface 1; gives the action, [`REDIRECTED`] or [`TO_SOCKET`], and
    /// the frame as it left it.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn try_on(&mut self, frame: &[u8]) -> Result<(u32, Vec<u8>), BpfError> {
        let (action, frame, _) = self.object.try_on("datacast", frame, 1)?;
        Ok((action, frame))
    }
}
