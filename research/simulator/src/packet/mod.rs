//! The packet level: single packets in virtual time, between the machines that run in production.
//!
//! [`Network`] is the engine: directed links with a rate, a delay, a byte-bounded drop-tail queue for each
//! priority and faults; timers; and one queue of events in exact order of (time, sequence). A [`World`]
//! is what stands at the nodes: it is told of arrivals and timers, and sends. The engine is monomorphised
//! over the world's packet, so a hop costs no allocation and no indirect call.
//!
//! ```
//! use polycast_simulator::packet::{Builder, LinkConfig, LinkId, Network, NodeId, Packet, World};
//! use polycast_types::{Duration, Rate, Time};
//!
//! #[derive(Clone, Copy)]
//! struct Ping(u64);
//! impl Packet for Ping {
//!     fn digest(&self) -> u64 { self.0 }
//!     fn corrupt(&mut self, draw: u64) { self.0 ^= draw | 1; }
//! }
//!
//! struct Echo { answers: u32 }
//! impl World for Echo {
//!     type Packet = Ping;
//!     fn arrive(&mut self, net: &mut Network<Ping>, node: NodeId, link: LinkId, packet: Ping) {
//!         if node == NodeId(1) {
//!             let back = net.reverse(link).expect("links go both ways");
//!             net.send(back, packet, 100, 0);
//!         } else {
//!             self.answers += 1;
//!         }
//!     }
//!     fn timer(&mut self, _: &mut Network<Ping>, _: NodeId, _: u64) {}
//! }
//!
//! let mut builder = Builder::new(2);
//! let config = LinkConfig::new(Rate(1_000_000_000), Duration::from_micros(10));
//! let (there, _) = builder.add_both_ways(NodeId(0), NodeId(1), config);
//! let mut net = builder.build(1);
//! net.send(there, Ping(7), 1_250, 0);
//! let mut world = Echo { answers: 0 };
//! net.run(&mut world, Time(u64::MAX));
//! assert_eq!((world.answers, net.now()), (1, Time(10_000 + 10_000 + 800 + 10_000)));
//! ```

mod events;
pub mod hooks;
mod link;
mod network;
pub mod pull;
mod random;
pub mod scenario;
pub mod tcp;
pub mod world;

pub use link::{DropCause, Faults, LinkConfig, LinkCounters};
pub use network::{Builder, Network, Outcome, Packet, World};
pub use random::Random;

/// A node of the simulated network: dense, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u32);

/// One direction of a link: dense, from 0.
///
/// In a network made by [`Builder::from_graph`] it is the graph's arc: the links that leave a node have
/// consecutive numbers in the order of its ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u32);

impl NodeId {
    /// No node of the network: for timers of the world itself, such as planned failures.
    pub const CONTROL: NodeId = NodeId(u32::MAX);

    /// As an index.
    #[must_use]
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl LinkId {
    /// As an index.
    #[must_use]
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}
