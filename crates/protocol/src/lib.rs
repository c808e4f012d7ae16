#![no_std]
//! Sans-I/O protocol machines.
//!
//! Every machine has one shape: `handle(now, Input)`, then `poll(now) -> Option<Output>` until `None`, and
//! again at `deadline()`. The same inputs give the same outputs; no machine sees payload bytes.
//!
//! A single transfer needs [`session`] and [`push`], and [`reuse`] where receivers have older versions. The
//! rest is that of a cluster and its fabrics, and comes with the feature `cluster`.
#![warn(missing_docs)]

extern crate alloc;

mod bits;
#[cfg(feature = "cluster")]
pub mod delivery;
#[cfg(feature = "cluster")]
pub mod directory;
#[cfg(feature = "cluster")]
pub mod joining;
#[cfg(feature = "cluster")]
pub mod keeping;
#[cfg(feature = "cluster")]
pub mod leases;
#[cfg(feature = "cluster")]
pub mod pull;
pub mod push;
#[cfg(feature = "cluster")]
pub mod rack;
pub mod reuse;
pub mod route;
pub mod session;
#[cfg(feature = "cluster")]
pub mod sets;
#[cfg(feature = "cluster")]
mod share;
#[cfg(feature = "cluster")]
pub mod stream;
#[cfg(feature = "cluster")]
pub mod switch;
