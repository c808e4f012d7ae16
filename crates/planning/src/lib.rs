//! Fabric planners and schedulers: which request gets which path, as pure functions.
//!
//! A [`Fabric`] says how a group can be served on a network in a given state; a [`Scheduler`] says which
//! of the requests that wait are served now. Neither knows a socket or a clock: the same state and the
//! same requests give the same answers.
#![no_std]
#![warn(missing_docs)]

extern crate alloc;

mod choice;
pub mod circuits;
pub mod datacast;
pub mod economics;
pub mod elmo;
pub mod estimate;
mod fabric;
mod fabric_name;
mod held;
pub mod ip_multicast;
pub mod kept_address;
pub mod labels;
mod network_state;
pub mod ocs;
pub mod orca;
mod part;
mod part_name;
mod places;
mod plan;
mod registry;
pub mod relays;
mod request;
mod scheduler;
mod shared;
pub mod shufflecast;
mod suspects;
pub mod tcp_chain;
pub mod trees;

pub use choice::{Passed, PassedWhy};
pub use fabric::{COUNTED_MAX, Fabric, Replan, ReplanOutcome};
pub use fabric_name::{FabricName, FabricNameError};
pub use network_state::{Cause, Lifted, NetworkState, Running};
pub use part::Part;
pub use part_name::{PartName, PartNameError};
pub use places::{PlaceError, Places};
pub use plan::{
    Channel, DeviceCommand, Failure, Group, HostId, Plan, PlanId, Pulling, RackPort, Refusal, Resource,
    TreeRoutes,
};
pub use polycast_types::PullTuning;
pub use registry::{Fabrics, PassedOver, Patience};
pub use request::{Pending, RequestId, Wish};
pub use scheduler::{
    Decision, Draft, Fcfs, GreedyMatching, Needs, PartitionFcfs, Ruling, Scheduler, decide_as_ruled,
};
pub use shared::{Shared, Uses};
