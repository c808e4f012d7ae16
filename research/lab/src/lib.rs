//! A data center on one Linux machine: hosts and switches in network namespaces, real daemons in them, and
//! links that carry real packets. It is where the fabrics of the papers run before they meet hardware (Blast
//! section V, Shufflecast section V, Republic section V).
//!
//! - [`spec`]: what can be asked for, such as `bridge:8` or `blast:racks=8,hosts=2`.
//! - [`layout`]: the nodes and links of it, as data.
//! - [`registry`]: the labs that there are: `up`, `list`, `exec`, `down`.
//! - [`compare`]: other ways to deliver the same in the same lab, and what each costs the network.
//! - [`soak`]: many small deliveries, and what they leave behind.
//! - [`traffic`]: other traffic beside a delivery, and rates while it runs.
//! - [`supervisor`]: the process in which a lab lives, and with which all of it ends.
//! - [`measure`]: what a stream of messages sees of failures and of receivers that join, and how soon
//!   requests are answered.
//! - [`leaf`]: what a leaf of labels and its rack's agent take for a packet, in the kernel alone.
//! - [`ocs`]: an optical circuit switch that speaks TL1 and moves real packets.
//!
//! A lab is one process with its own process, mount and network namespaces. Everything else in it (namespaces
//! of hosts, daemons, temporary files) lives inside these, so the kernel takes all of it away when that
//! process ends, however it ends.

mod baselines;
mod cast;
pub mod compare;
mod daemons;
mod datacast;
mod datacast_nodes;
mod error;
pub mod failure;
mod label_switches;
pub mod layout;
pub mod leaf;
pub mod light;
pub mod measure;
pub mod ocs;
mod openvswitch;
mod optical;
mod optics;
mod processor_time;
pub mod registry;
pub mod soak;
pub mod spec;
pub mod supervisor;
mod system;
pub mod traffic;
mod world;

pub use cast::{CastOptions, CastOutcome, Join, NoReport};
pub use error::LabError;
pub use layout::LinkBytes;
