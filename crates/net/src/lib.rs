//! Real I/O: UDP multicast with segmentation offload, TCP control, the object store, hashing.
//!
//! The only crate with unsafe code; each block says why it is sound.

pub mod archive;
pub mod devices;
pub mod frames;
pub mod hash;
pub mod interface;
pub mod object;
pub mod store;
pub mod udp;
