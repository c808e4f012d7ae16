//! Messages of streams on the wire (Orca section 4): a source's agent cuts them into datagrams, a receiver's
//! agent puts them together and keeps their order.
//!
//! Streams are not repaired and have no rate of their own, like the paper's: an application that needs that
//! puts its own protocol on top, or sends objects. A message that is lost shows as a gap in the numbers.

mod receiver;
mod sender;

pub use receiver::{Heard, Inbox, Message, Receiver, ReceiverOptions, Voice, Way};
pub use sender::{Sender, Sent};

use std::io;

/// A stream that cannot be sent or heard.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// The network refuses it.
    #[error("the stream's path cannot be used: {0}")]
    Network(#[from] io::Error),
    /// The path is not one for messages.
    #[error("messages go over multicast, and this path has none")]
    Path,
    /// A message is too long.
    #[error(
        "a message of {len} bytes is longer than {most}, the most there can be: send an object, or several messages"
    )]
    TooLong {
        /// Its length.
        len: usize,
        /// The most.
        most: usize,
    },
}

#[cfg(test)]
mod tests;
