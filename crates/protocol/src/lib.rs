#![no_std]
//! Sans-I/O protocol machines.
//!
//! Every machine has one shape: `handle(now, Input)`, then `poll(now) -> Option<Output>` until `None`,
//! and again at `deadline()`. The same inputs give the same outputs; no machine sees payload bytes.
#![warn(missing_docs)]

extern crate alloc;

pub mod directory;
pub mod leases;
pub mod pull;
pub mod push;
pub mod rack;
pub mod reuse;
pub mod session;
pub mod sets;
pub mod stream;
pub mod switch;
