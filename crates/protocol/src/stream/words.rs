//! Words about streams that the table and its members have in common (Orca section 4).

use crate::leases::{Denial, STREAMS_FROM};
use alloc::string::String;
use polycast_types::Handle;

/// Sender beside the source, for a receiver.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StreamSender {
    /// Its name.
    pub name: String,
    /// Handle that its packets carry; none while only the path knows it: a receiver keeps what it knows.
    pub handle: Option<Handle>,
    /// The number of its next message after this receiver has asked; none until it has answered.
    pub from: Option<u64>,
}

/// Reason why a stream cannot be made or joined.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StreamRefusal {
    /// The name cannot be one.
    #[error("'{0}' cannot be a stream's name: take 1 to 255 letters without spaces, commas or slashes")]
    BadName(String),
    /// Another agent has a stream of this name.
    #[error("the stream '{name}' is there already: the agent '{source_name}' sends it")]
    Taken {
        /// The name.
        name: String,
        /// The agent that has it.
        source_name: String,
    },
    /// There is no such stream.
    #[error("there is no stream '{0}': its source has to create it first")]
    Unknown(String),
    /// The source asks to receive.
    #[error("'{0}' is the source of this stream and cannot join it")]
    SourceItself(String),
    /// A limit is reached.
    #[error("the manager has {0} streams already, which is its limit")]
    Full(usize),
    /// The agent has its share of the table, which the other agents need too.
    #[error(
        "this agent has {0} streams already, and gets no more while half of all places are taken: end one"
    )]
    Share(usize),
    /// There is no place to wait for a stream in.
    #[error("the stream '{0}' is not there yet, and too many receivers wait for others: join again in 5 s")]
    Crowded(String),
    /// No further member may send.
    #[error("the stream has {0} members, the most that can send to one stream: make a second one")]
    Members(usize),
    /// Two members cannot be told apart.
    #[error("a member of this stream sends with the handle {0} already: join again with another one")]
    SameHandle(u64),
    /// The request's number is not a stream's.
    #[error("request number {0} is not one of a stream: they begin at {STREAMS_FROM}")]
    Number(u64),
    /// There is no path.
    #[error(transparent)]
    Denied(Denial),
}
