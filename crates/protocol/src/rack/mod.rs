//! Orca's hierarchical control (Orca section 3.4): a central controller, a controller at each leaf, and
//! agents.
//!
//! The central controller numbers the changes of leaf labels, one row of numbers a rack, and hands them to
//! the rack's leaf controller, which hands them on to all agents of the rack, active and standby. Each
//! receiver takes a change only if its number is the next one that there is: none is applied out of order,
//! and none is missed. Confirmations come back up the tree in heartbeats. A leaf controller replaces an
//! active agent that has been silent for a time T by a standby.
//!
//! A row of numbers is kept short: only the newest change of a session is kept (`log`). So one that was away,
//! or starts anew, is brought up to date by what is left of the row, and there is no other kind of transfer
//! of state. One that starts anew keeps what it had until it has everything: packets flow on meanwhile.
//!
//! What makes one voice of a rack's receivers towards the source of a push transfer (appendix A.4) is
//! [`push::feedback`](crate::push::feedback).

mod agent;
mod central;
mod follower;
mod leaf;
mod log;

pub use agent::{Agent, AgentConfig, AgentCounts, AgentInput, AgentOutput};
pub use central::{Central, CentralConfig, CentralInput, CentralOutput, Change, SetRefusal};
pub use leaf::{AgentView, Leaf, LeafConfig, LeafCounts, LeafInput, LeafOutput, Refusal};

use polycast_types::Duration;

/// One that stands by says this much less often that it lives, and may be silent for this much longer:
/// nothing is lost meanwhile if it is dead, and a rack has more to do with heartbeats than with anything else
/// where T is short.
const STANDBY_SLOWER: u64 = 4;
/// The same in a rack without any session: nothing is lost there, whichever agent is dead.
const IDLE_SLOWER: u64 = 16;

/// Returns the factor by which an agent may be silent for longer than under load, and takes longer between
/// heartbeats.
fn slower(is_active: bool, has_sessions: bool) -> u64 {
    match (has_sessions, is_active) {
        (false, _) => IDLE_SLOWER,
        (true, false) => STANDBY_SLOWER,
        (true, true) => 1,
    }
}

/// Settings for sending updates, and for sending them again.
#[derive(Clone, Copy, Debug)]
pub struct FeedConfig {
    /// Number of datagrams that may be on their way to one follower.
    pub window: usize,
    /// An update that was not confirmed after this time is sent again; later ones after twice the time, up to
    /// 64 times. It should be above the round trip.
    pub retry: Duration,
}

impl Default for FeedConfig {
    /// For a data center: 16 datagrams, and 2 ms.
    fn default() -> Self {
        FeedConfig { window: 16, retry: Duration::from_millis(2) }
    }
}
