//! The services of Polycast, and the client for applications.
//!
//! - [`error`]: what refusals are.
//! - [`forwarder`]: what Datacast's forwarders say of their links.
//! - [`report`]: what a transfer came to.
//!
//! With the feature `cluster`:
//!
//! - [`agent`]: the generated code of `polycast.agent.v1`, what an agent offers to applications on its host
//!   (Republic, Table I).
//! - [`manager`]: the generated code of `polycast.manager.v1`, what the manager offers to agents (Table II).
//! - [`scheduler`]: the generated code of `polycast.scheduler.v1`, what an external scheduler offers to the
//!   manager.
//! - [`client`]: a thin client of the agent's service, over its Unix socket.
//! - [`documents`]: what the daemons tell, as the JSON that programs read.
//! - [`http`]: the page of a daemon for those who watch it.
//! - [`settings`]: the settings files of the daemons.
#![warn(missing_docs)]

#[cfg(feature = "cluster")]
pub mod client;
#[cfg(feature = "cluster")]
pub mod convert;
#[cfg(feature = "cluster")]
pub mod documents;
pub mod error;
pub mod forwarder;
#[cfg(feature = "cluster")]
pub mod http;
pub mod report;
#[cfg(feature = "cluster")]
pub mod settings;

/// The step of a path's set-up that says how long the manager took to decide: from the request's arrival to
/// its answer.
pub const SCHEDULING: &str = "scheduling";

/// The step that says when all devices had a path, on the manager's clock: from the request's arrival to the
/// word about it to the source. It is no sum of the other steps, which overlap.
pub const REQUEST_TO_PATH: &str = "request to path, at the manager";

/// The same on the source's clock: from the request on its way to the word that the path is there.
pub const REQUEST_TO_PATH_AT_SOURCE: &str = "request to path, at the source";

/// Version of both services; both ends of a conversation must have the same.
pub const PROTOCOL_VERSION: u32 = 1;

/// The agent's service as the protos have it, comments included: an encoded `FileDescriptorSet`, for
/// reflection.
#[cfg(feature = "cluster")]
pub const AGENT_DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/agent.bin"));

/// Generated code, in modules as the packages of the protos name each other.
#[cfg(feature = "cluster")]
#[allow(missing_docs, unreachable_pub, clippy::all, reason = "generated; the protos hold the documentation")]
mod generated {
    pub mod agent {
        pub mod v1 {
            tonic::include_proto!("polycast.agent.v1");
        }
    }
    pub mod manager {
        pub mod v1 {
            tonic::include_proto!("polycast.manager.v1");
        }
    }
    pub mod scheduler {
        pub mod v1 {
            tonic::include_proto!("polycast.scheduler.v1");
        }
    }
}

#[cfg(feature = "cluster")]
pub use generated::{agent::v1 as agent, manager::v1 as manager, scheduler::v1 as scheduler};
