//! The Polycast agent: moves objects on one host (Republic section III).
//!
//! The agent only connects the machines of `polycast-protocol` to sockets, stores and clocks.
pub mod daemon;
pub mod forwarder;
pub mod label_switch;
pub mod rack;
pub mod stream;
pub mod transfer;
