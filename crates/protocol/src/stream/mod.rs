//! Streams of messages beside objects (Orca section 4): create, join and leave at the manager, send and
//! receive at agents.
//!
//! [`Streams`] is the manager's table of streams: agents that join and leave change the receivers of the path
//! that [`crate::leases`] lends to the stream's source. [`Order`] is a receiving agent's part: it puts pieces
//! together, gives messages in the order of their numbers, and says how many are missing between two.
//! [`Senders`] is that of a receiver in a stream in which every member sends.

mod members;
mod order;
mod senders;
mod table;
mod words;

pub use order::{Order, OrderConfig, OrderCounts, OrderInput, OrderOutput, PIECE_COST};
pub use senders::{Senders, SendersConfig, SendersCounts, SendersError, SendersOutput};
pub use table::{StreamView, StreamWord, Streams, StreamsConfig, StreamsInput, StreamsOutput};
pub use words::{StreamRefusal, StreamSender};
