//! Running one pull transfer: the set-up of a group and its end, around the machines at the nodes (Datacast, sections
//! 3.1 and 5).
//!
//! The source's side, [`deliver_pull`], tells every receiver over the control channel the object, its hashes, the
//! digests of its packets and the way to the source in every tree; when all are ready it gives the routes, and
//! receivers begin to pull. Receivers say how far they are and when they have everything. When trees are repaired,
//! only those receivers hear of it whose way has changed. The data itself goes from node to node (`forwarder`).

mod receiver;
mod source;
mod sums;

pub use receiver::fetch;
pub use source::{PreparedPull, deliver_pull, prepare_pull};
