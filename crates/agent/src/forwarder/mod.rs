//! A node of a pull network on real sockets: a caching forwarder, with receivers and sources behind its local
//! face (Datacast, sections 3 and 6).
//!
//! The machines of `protocol::pull` decide; this module moves bytes. A node is one thread, and one process
//! may run many nodes. It speaks with each neighbour over a connected UDP socket, keeps the payloads of its
//! content store, and checks the digest of every payload before it hands it on. What it counts, drops and
//! keeps is bounded.
//!
//! - [`NodeConfig`]: what a node is; [`ForwarderConfig`]: the settings of the process `polycast forwarder`.
//! - [`start`] runs a node, [`NodeHandle`] speaks with it.
//! - [`daemon`]: the process around several nodes, and what can be asked of it over its Unix socket.

mod config;
pub mod daemon;
mod digest;
mod ends;
#[cfg(test)]
mod kernel_tests;
mod node;
mod port;
#[cfg(test)]
pub(crate) mod tests;

pub use config::{ForwarderConfig, ForwarderConfigError, NodeConfig, PortConfig, Replacement};
pub(crate) use digest::digest_of;
pub use ends::{ReceiverEnd, ReceiverEvent, SourceEnd};
pub(crate) use node::Place;
pub use node::{LinkEvent, NodeHandle, start};

pub use polycast_api::report::TreeStatus;
use polycast_protocol::pull::{ForwarderCounters, SourceCounters};
use serde::Serialize;

/// Counters of a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct NodeStatus {
    /// Its name.
    pub name: String,
    /// Seconds of processor time that its thread has used; what the kernel does for it later is not in it.
    pub cpu_s: f64,
    /// Packets in the content store.
    pub kept: u32,
    /// Bytes of memory that their payloads take; what has made room for others is used again.
    pub kept_bytes: u64,
    /// Names in the table of pending interests.
    pub pending: u32,
    /// Transfers whose source or receiver is behind the local face.
    pub transfers: u32,
    /// Interests answered from the store.
    pub hits: u64,
    /// Interests that joined a pending one.
    pub joined: u64,
    /// Interests sent on by a node that keeps packets.
    pub forwarded: u64,
    /// Packets passed on as a non-branching node.
    pub passed: u64,
    /// Part of `passed` that the kernel has passed on: these packets are in no count of a port.
    pub passed_in_kernel: u64,
    /// Dropped: the route leads to no port of this node, or back by the port it came by.
    pub bad_routes: u64,
    /// Dropped: data that was not asked for.
    pub unsolicited: u64,
    /// Dropped: interests for which the table had no room.
    pub table_full: u64,
    /// Dropped: no packet of our format, such as one with a longer route than the format has room for.
    pub malformed: u64,
    /// Dropped: the route has more hops than the node's settings allow.
    pub too_far: u64,
    /// Dropped: data whose payload does not have the digest of its header.
    pub poisoned: u64,
    /// Dropped: interests for a name that no source behind the local face has.
    pub unknown: u64,
    /// One entry a port.
    pub ports: Vec<PortStatus>,
}

/// Counters of a port.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PortStatus {
    /// Set while the neighbour is there and receives our greetings.
    pub up: bool,
    /// Set once `up` is known: when both have received each other's greetings, or the neighbour has not come
    /// for long.
    pub known: bool,
    /// Packets sent.
    pub sent: u64,
    /// Bytes of these, headers of IP and Ethernet not counted.
    pub sent_bytes: u64,
    /// Packets received.
    pub received: u64,
    /// Packets dropped because the queue was full or the link down.
    pub dropped: u64,
}

/// Converts the counters that the source of a transfer has for one tree.
fn tree_status(tree: u8, counters: SourceCounters, rate_bps: u64) -> TreeStatus {
    let SourceCounters { interests, duplicates, signals, packets, sent_bytes, first_bytes } = counters;
    TreeStatus { tree, interests, duplicates, halved: signals, packets, sent_bytes, first_bytes, rate_bps }
}

impl NodeStatus {
    fn add(&mut self, counters: ForwarderCounters) {
        self.hits = counters.hits;
        self.joined = counters.joined;
        self.forwarded = counters.forwarded;
        self.passed = counters.passed + self.passed_in_kernel;
        self.bad_routes = counters.bad_routes;
        self.unsolicited = counters.unsolicited;
        self.table_full = counters.full;
    }
}

/// The bytes of Ethernet, IPv4 and UDP headers around a packet.
pub(crate) const FRAME_HEADERS_LEN: usize = 14 + polycast_wire::data::IP_UDP_LEN;
