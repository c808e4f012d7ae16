//! The manager's state at one moment, for those who ask how it stands.

use super::Inner;
use polycast_planning::FabricName;
use polycast_protocol::leases::{Grant, Member, RequestKey, Wait};
use polycast_protocol::stream::StreamView;
use polycast_types::{Duration, ObjectId, Time};

/// The manager's state at one moment.
#[derive(Debug)]
pub struct Snapshot {
    pub agents: Vec<(String, Member)>,
    /// Those that have not come back, and when they were heard of last.
    pub lost: Vec<(String, Time)>,
    pub leases: Vec<LeaseSnapshot>,
    pub pending: Vec<PendingSnapshot>,
    pub streams: Vec<StreamView>,
    pub fabrics: Vec<FabricName>,
    pub scheduler: &'static str,
    pub now: Time,
    pub uptime: std::time::Duration,
}

/// A lease at one moment.
#[derive(Debug)]
pub struct LeaseSnapshot {
    pub source: String,
    pub object: ObjectId,
    pub grant: Grant,
    pub expires_in: Duration,
    pub ends_in: Option<Duration>,
}

/// A request that waits at one moment.
#[derive(Debug)]
pub struct PendingSnapshot {
    pub key: RequestKey,
    pub object: ObjectId,
    pub bytes: u64,
    pub receivers: usize,
    pub waited: Duration,
    pub wait: Wait,
}

impl Inner {
    pub(super) fn snapshot(&self) -> Snapshot {
        let now = self.now();
        Snapshot {
            agents: self.machine.members().map(|(name, member)| (name.to_string(), member.clone())).collect(),
            lost: self.seats.lost().map(|(name, heard_at)| (name.clone(), heard_at)).collect(),
            leases: self
                .machine
                .leases()
                .map(|lease| LeaseSnapshot {
                    source: lease.key.agent.name.clone(),
                    object: lease.object,
                    grant: lease.grant.clone(),
                    expires_in: lease.expires_at.since(now),
                    ends_in: lease.ends_at.map(|at| at.since(now)),
                })
                .collect(),
            pending: self
                .machine
                .pending()
                .map(|pending| PendingSnapshot {
                    key: pending.key.clone(),
                    object: pending.object,
                    bytes: pending.bytes,
                    receivers: pending.receivers,
                    waited: now.since(pending.since),
                    wait: pending.wait,
                })
                .collect(),
            streams: self.streams.streams().collect(),
            fabrics: self.machine.fabrics().collect(),
            scheduler: self.machine.scheduler(),
            now,
            uptime: self.clock.start.elapsed(),
        }
    }
}
