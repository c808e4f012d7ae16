#![no_std]
//! A data center in virtual time.
//!
//! [`packet`] moves single packets between the very machines that run in production; [`flow`] computes
//! max-min fair rates where packets would be too many; [`overlay`] moves pieces between receivers that serve
//! each other. Nothing here knows a clock, a thread or a global: one seed gives one run, and many runs can go
//! side by side.
#![warn(missing_docs)]

extern crate alloc;

mod agenda;
pub mod flow;
pub mod overlay;
pub mod packet;

pub use agenda::{Agenda, Wakes};
