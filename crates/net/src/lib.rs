//! Real I/O: UDP multicast with segmentation offload, TCP control, the object store, hashing, programs in the kernel.
//!
//! The only crate with unsafe code; each block says why it is sound.

pub mod archive;
pub mod bpf;
pub mod devices;
pub mod frames;
pub mod hash;
pub mod heap;
pub mod interface;
pub mod lease;
pub mod link_watch;
pub mod neighbour;
pub mod object;
pub mod permit;
pub mod priority;
pub mod probe;
pub mod reach;
pub mod rolling;
pub mod scratch;
pub mod seal;
pub mod store;
pub mod tap;
pub mod tls;
pub mod udp;
pub mod words;
