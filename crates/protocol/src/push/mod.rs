//! Republic's push transport (section III-A): wrap-around multicast with patches.
//!
//! Two machines, payload-free: [`Sender`] and [`Receiver`]. The sender probes the path (attempt sending),
//! goes to full rate when the receivers have named their initial sn, wraps round until every receiver has
//! been offered every fragment once, and answers requests for lost fragments. Beyond the paper: positions
//! that make late packets harmless ([`Geometry`]), a window that never drowns a receiver, congestion control
//! ([`congestion`]), patches by multicast in which one packet repairs different losses of up to 17 receivers
//! ([`patches`]), receivers that join late or resume, a policy for slow ones, and receivers that bring the
//! object to each other over TCP where multicast does not reach them ([`overlay`]). [`feedback`] makes one
//! voice of a rack's receivers (Orca appendix A.4).

mod attempt;
pub mod coded;
pub mod congestion;
pub mod delay;
pub mod feedback;
mod geometry;
pub mod overlay;
mod pacing;
pub mod patches;
mod peer;
mod receiver;
mod sender;
mod words;

pub use attempt::{AttemptInterval, FullRate};
pub use geometry::Geometry;
pub use pacing::Pacer;
pub use receiver::{BATCH_MAX, Input as ReceiverInput, Output as ReceiverOutput, Receiver, ReceiverConfig};
pub use sender::Sender;
pub use words::{
    Input as SenderInput, Output as SenderOutput, Pace, PeerId, PeerStatus, SenderConfig, SlowPolicy, Slower,
};
