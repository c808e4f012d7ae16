//! The pull transport: receivers ask for every packet by name, and forwarders remember what passes (Datacast,
//! sections 3, 5 and 6).
//!
//! Three machines make a network. A [`Receiver`] sends an *interest* for every packet that it lacks, along
//! the source route of a tree, and holds at most w of them open in every tree. A [`Forwarder`] answers an
//! interest from its content store, or joins it to one that is pending already, or sends it on. A [`Source`]
//! answers what no forwarder could, at a rate that falls when the same packet is asked for twice. A switch is
//! a forwarder alone; a server is a forwarder with a receiver or a source behind its local face.
//!
//! Receivers learn the names of packets from lists that are pulled like the object ([`Blocks::with_lists`]).
//!
//! No machine sees payload. A forwarder names the slot of its store where the driver puts a payload or finds
//! it.

mod blocks;
mod bucket;
mod forwarder;
mod groups;
mod lists;
mod names;
mod neighbour;
mod packet;
mod pending;
mod plan;
mod receiver;
mod source;
mod store;
mod table;
mod turns;

pub use crate::route::{HOPS_MAX, HOPS_USUAL, Hop, PORTS_MAX, Route, RouteError};
pub use blocks::Blocks;
pub use bucket::RateConfig;
pub use forwarder::{
    Counters as ForwarderCounters, Forwarder, ForwarderConfig, Input as ForwarderInput,
    Output as ForwarderOutput,
};
pub use groups::Groups;
pub use lists::{ListPlace, SECTION_GROUPS};
pub use names::{NameList, Names};
pub use neighbour::{Neighbour, NeighbourConfig, NeighbourOutput};
pub use packet::{Data, Decision, Digest, Face, Interest, Name, Packet, Payload};
pub use plan::{plan_routes, route_of};
pub use receiver::{
    Counters as ReceiverCounters, Input as ReceiverInput, Output as ReceiverOutput, Receiver, ReceiverConfig,
    RetryTime,
};
pub use source::{
    Counters as SourceCounters, Input as SourceInput, Output as SourceOutput, Source, SourceConfig,
};
pub use store::Replacement;
