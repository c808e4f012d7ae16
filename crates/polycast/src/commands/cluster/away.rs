//! The manager out of reach, for commands that wait for what it has to say: they say so, and wait on.

use super::connect;
use crate::args::cluster::LocalArgs;
use crate::exit::Failure;
use polycast_api::client::AgentClient;
use std::time::Duration;
use tokio::time::{Interval, interval};

/// Interval at which the agent is polled.
const EVERY: Duration = Duration::from_secs(1);
/// So often in a row the manager is out of reach before that is said: an agent that has just begun is still
/// on its way to it.
const TIMES: u32 = 3;

/// Looks whether the agent's manager can be reached.
pub(super) struct Away {
    agent: AgentClient,
    ticks: Interval,
    /// Number of consecutive polls without a manager.
    times: u32,
}

impl Away {
    /// Begins to look.
    pub(super) async fn watch(local: &LocalArgs) -> Result<Self, Failure> {
        Ok(Away { agent: connect(local).await?, ticks: interval(EVERY), times: 0 })
    }

    /// Waits until there is something to say of it; gives the sentence.
    pub(super) async fn news(&mut self) -> String {
        loop {
            self.ticks.tick().await;
            // An agent that does not answer ends what waits for it.
            let Ok(status) = self.agent.status().await else { continue };
            let before = self.times;
            self.times = if status.manager_connected { 0 } else { before.saturating_add(1) };
            let manager = status.manager_address;
            if self.times == TIMES {
                let why = status.manager_error;
                return format!("the manager at {manager} cannot be reached: {why}; waiting for it");
            }
            if before >= TIMES && self.times == 0 {
                return format!("the manager at {manager} is back");
            }
        }
    }
}
