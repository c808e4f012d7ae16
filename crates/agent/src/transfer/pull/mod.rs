//! Running one pull transfer: the set-up of a group and its end, around the machines at the nodes (Datacast,
//! sections 3.1 and 5).
//!
//! The source's side, [`deliver_pull`], tells every receiver over the control channel the object, its hashes
//! and the digests of its packets as they become known, and the way to the source in every tree once
//! receivers are ready; then they begin to pull. A receiver that comes later begins with the blocks that
//! travel just then, and asks for the earlier ones in the end. Receivers say how far they are and when they
//! have everything. When trees are repaired, only those receivers hear of it whose way has changed. The data
//! itself goes from node to node (`forwarder`).

mod receiver;
mod source;
pub(crate) mod sums;

pub use receiver::fetch;
pub use source::{PreparedPull, deliver_pull, prepare_pull};
