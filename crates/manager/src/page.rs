//! Page of the manager for monitoring, which the setting `http` switches on.

use crate::core::Snapshot;
use crate::leader::Role;
use polycast_api::http::{Kind, Metric, Watched};
use std::collections::BTreeMap;
use std::time::Instant;
use tokio::sync::watch;

/// The manager's page.
pub(crate) struct Page {
    pub role: watch::Receiver<Role>,
    pub started: Instant,
}

impl Watched for Page {
    fn ready(&self) -> Result<(), String> {
        match &*self.role.borrow() {
            // One that follows serves too: it says which manager leads, and takes over.
            Role::Leader(_) | Role::Follower(Some(_)) => Ok(()),
            Role::Follower(None) => Err("no manager leads".into()),
            Role::Leaderless(why) => Err(format!("no manager leads: {why}")),
        }
    }

    fn metrics(&self) -> Vec<Metric> {
        let snapshot = match &*self.role.borrow() {
            Role::Leader(core) => Some(core.snapshot()),
            Role::Follower(_) | Role::Leaderless(_) => None,
        };
        let mut metrics = vec![
            gauge(
                "polycast_uptime_seconds",
                "Time since the manager began.",
                self.started.elapsed().as_secs_f64(),
            ),
            gauge(
                "polycast_manager_leads",
                "Whether this manager leads; one that does not has no counts of agents and paths.",
                f64::from(u8::from(snapshot.is_some())),
            ),
        ];
        metrics.extend(snapshot.iter().flat_map(counts));
        metrics
    }
}

/// Returns the metrics of the manager that leads.
fn counts(snapshot: &Snapshot) -> [Metric; 5] {
    let mut leases = BTreeMap::new();
    for lease in &snapshot.leases {
        *leases.entry(lease.grant.plan.fabric.to_string()).or_insert(0.0) += 1.0;
    }
    [
        gauge("polycast_agents", "Agents that are here.", snapshot.agents.len() as f64),
        gauge("polycast_agents_lost", "Agents that have not come back.", snapshot.lost.len() as f64),
        Metric::by("polycast_leases", Kind::Gauge, "Paths that are lent.", "fabric", leases),
        gauge("polycast_requests_waiting", "Requests that wait for a path.", snapshot.pending.len() as f64),
        gauge("polycast_streams", "Streams of messages.", snapshot.streams.len() as f64),
    ]
}

fn gauge(name: &'static str, help: &'static str, value: f64) -> Metric {
    Metric::one(name, Kind::Gauge, help, value)
}
