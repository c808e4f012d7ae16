//! The Polycast agent: moves objects on one host (Republic section III).
//!
//! The agent only connects the machines of `polycast-protocol` to sockets, stores and clocks. Without the
//! feature `cluster` there are single transfers ([`transfer`]), and no daemon.
#[cfg(feature = "cluster")]
mod callers;
#[cfg(feature = "cluster")]
pub mod daemon;
#[cfg(feature = "cluster")]
pub mod forwarder;
#[cfg(feature = "cluster")]
pub mod label_switch;
#[cfg(feature = "cluster")]
pub mod rack;
#[cfg(feature = "cluster")]
pub mod stream;
pub mod transfer;
