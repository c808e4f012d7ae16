#![no_std]
//! Graphs of data-center networks, as arithmetic on dense node ids.
//!
//! A topology is a few numbers: neighbours, links and ports are computed, not stored, so a network of
//! 221,184 servers costs nothing until a planner asks for a [`CompactGraph`] of it (a few MiB). What has
//! failed lies in an overlay, [`Failures`], beside the topology; the topology itself is never copied.
//!
//! | module | network | paper |
//! | --- | --- | --- |
//! | [`bcube`] | BCube(n, k) | Datacast, appendix A.2 |
//! | [`torus`] | torus(n, k) | Datacast, appendix A.3 |
//! | [`fat_tree`] | fat-tree(n, k) | Datacast, appendix A.1 |
//! | [`clos`] | leaf-spine and pods of leaf-spine under cores | Orca, section 3.2 |
//! | [`shufflecast`] | p, k-Shufflecast, any number of racks | Shufflecast, section III-A |
//! | [`hybrid`] | packet core beside an optical circuit switch with splitters | Blast, sections II and V |
//! | [`optics`] | splitter loss, amplifiers, power budget | Blast, section II; Shufflecast, table I |
#![warn(missing_docs)]

extern crate alloc;

pub mod bcube;
pub mod clos;
mod error;
mod failures;
pub mod fat_tree;
mod graph;
pub mod hybrid;
pub mod optics;
mod port_table;
pub mod shufflecast;
mod spec;
pub mod torus;

pub use bcube::BCube;
pub use clos::{Clos, Kind};
pub use error::TopologyError;
pub use failures::{BitSet, Failures};
pub use fat_tree::FatTree;
pub use graph::{Arc, CompactGraph, Graph, Link, Node, Port};
pub use hybrid::Hybrid;
pub use port_table::{PortOwner, PortTable, SplitterPorts};
pub use shufflecast::{Shufflecast, Wiring};
pub use spec::Network;
pub use torus::Torus;
