//! Real I/O: UDP multicast with segmentation offload, TCP control, the object store, hashing, programs in the
//! kernel.
//!
//! The only crate with unsafe code; each block says why it is sound. What single transfers do without
//! (drivers of devices, programs in the kernel, links of nodes, connections that wait in tokio) comes with
//! the feature `cluster`.

pub mod archive;
pub mod audit_key;
#[cfg(feature = "cluster")]
pub mod bpf;
#[cfg(feature = "cluster")]
pub mod delta;
#[cfg(feature = "cluster")]
pub mod devices;
pub mod file_system;
mod file_time;
pub mod frames;
pub mod hash;
pub mod heap;
mod holes;
pub mod interface;
pub mod lease;
#[cfg(feature = "cluster")]
pub mod link_watch;
#[cfg(feature = "cluster")]
pub mod neighbour;
pub mod object;
pub mod pake;
pub mod permit;
pub mod port_in_use;
pub mod priority;
#[cfg(feature = "cluster")]
pub mod probe;
pub mod reach;
pub mod rolling;
pub mod scratch;
pub mod seal;
pub mod store;
#[cfg(feature = "cluster")]
pub mod tap;
pub mod tls;
pub mod udp;
#[cfg(feature = "cluster")]
pub mod words;
