//! Time of an event in a transfer: some time after the transfer was requested, or the moment when a given
//! part of the object has arrived, however long that takes.

use polycast_api::agent::transfer::Direction;
use polycast_api::client::AgentClient;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::time::{Duration, Instant};

/// The latest time, in seconds.
const SECONDS_MAX: f64 = 3_600.0;
/// Interval between requests to the source for its progress.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Time of an event.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub enum At {
    /// So many seconds after the transfer was asked for; at 0 just before.
    Seconds(f64),
    /// Once a receiver has verified this percentage of the object.
    Percent(u32),
}

impl FromStr for At {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let at = match text.strip_suffix('%') {
            Some(percent) => At::Percent(percent.parse().map_err(|_| ())?),
            None => At::Seconds(text.parse().map_err(|_| ())?),
        };
        match at {
            At::Seconds(seconds) if (0.0..=SECONDS_MAX).contains(&seconds) => Ok(at),
            At::Percent(1..=99) => Ok(at),
            _ => Err(()),
        }
    }
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            At::Seconds(seconds) => write!(f, "{seconds}"),
            At::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

impl At {
    /// Returns true if the event happens just before the transfer.
    pub(crate) fn is_before(self) -> bool {
        matches!(self, At::Seconds(seconds) if seconds <= 0.0)
    }

    /// Waits until then; gives whether it has come. `begun` is when the transfer was asked for, and `source`
    /// the socket of its source's agent.
    pub(crate) fn wait(self, begun: Instant, source: &Path) -> bool {
        match self {
            At::Seconds(seconds) => {
                std::thread::sleep(Duration::from_secs_f64(seconds).saturating_sub(begun.elapsed()));
                true
            }
            At::Percent(percent) => {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                runtime.is_ok_and(|runtime| runtime.block_on(has_come(percent, begun, source)))
            }
        }
    }
}

/// Waits until a receiver has so much. Not any longer when the source's agent has ended, or an hour is over.
async fn has_come(percent: u32, begun: Instant, source: &Path) -> bool {
    let Ok(agent) = AgentClient::connect(source).await else { return false };
    while begun.elapsed().as_secs_f64() < SECONDS_MAX {
        let Ok(status) = agent.status().await else { return false };
        let sent = status.transfers.iter().filter(|transfer| transfer.direction() == Direction::Sending);
        let part = |bytes: u64, of: u64| bytes.saturating_mul(100) >= of.saturating_mul(percent.into());
        let mut reports = sent.filter_map(|transfer| transfer.report.as_ref());
        if reports
            .any(|report| report.receivers.iter().any(|one| one.bytes > 0 && part(one.bytes, report.length)))
        {
            return true;
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
    false
}
