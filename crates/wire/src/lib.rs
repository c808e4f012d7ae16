//! Every packet format of Polycast.
//!
//! - [`data`]: the datagrams of the data channel (Republic section III-A): fragments and coded patches.
//! - [`control`]: the frames of the control channel (Republic Table III and the hand-shake around it).
//! - [`label`]: labelled packets of a network whose switches forward by labels (Orca).
//! - [`rack`]: what the controllers of such a network say to each other.
//! - [`stream`]: the messages of a stream (Orca section 4).
//! - [`words`]: what stands behind a word between controllers where it is sealed.
//! - [`switches`]: what a manager tells such switches and the agents of racks.
//! - [`discovery`]: announcements by which sources and receivers find each other without a manager.
//! - [`seal`]: what of a sealed packet is under which key, and what is checked first.
//! - [`reach`]: whether multicast gets from one host to others.
//! - [`permit`]: what the manager has allowed a transfer.
//! - [`pull`]: interests and data of the pull transport (Datacast section 6).
//!
//! A packet has two faces: bytes, and a validated value. `parse` either gives the value or one opaque
//! [`WireError`]; after it no accessor can panic. `emit` writes what `parse` reads: a value that can be
//! built can be emitted and comes back equal. All integers are big-endian.
#![no_std]
#![warn(missing_docs)]

extern crate alloc;

pub mod control;
pub mod cursor;
pub mod data;
pub mod discovery;
pub mod label;
pub mod permit;
pub mod pull;
pub mod rack;
pub mod reach;
pub mod seal;
pub mod stream;
pub mod switches;
pub mod words;

/// Version of all formats; both ends of a conversation must have the same.
pub const VERSION: u8 = 3;

/// The bytes are not a packet of this format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// Too short, a count or kind out of range, or left-over bytes.
    #[error("malformed packet")]
    Malformed,
    /// A packet of another protocol version.
    #[error("the peer speaks protocol version {0}, this program version {VERSION}: install the same on both")]
    Version(u8),
}
