//! The manager's state as records: what another manager has to know to go on where this one has ended.
//!
//! A record says who is a member, what waits, or what is lent. [`Leases::changes`] gives those that have changed since
//! the last call, [`Leases::restore`] makes a new machine of them. What a manager learns again by itself is not in
//! them: heartbeats, and failures of devices.

use super::members::Member;
use super::words::{AgentKey, Grant, RequestKey};
use super::{Lease, Leases, PLANS_END, Waiting};
use alloc::collections::BTreeSet;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use polycast_planning::{DeviceCommand, Group, HostId, Pending, Plan, PlanId, RequestId, Running};
use polycast_types::{Duration, ObjectId, Time};
use serde::{Deserialize, Serialize};

/// Which record.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum RecordKey {
    /// The member of this name.
    Member(String),
    /// The lease of this number.
    Lease(PlanId),
    /// The request that waits, by its place in the queue.
    Pending(RequestId),
    /// The paths that devices hold ready for nobody; all in one record, as there are few.
    Kept,
}

impl fmt::Display for RecordKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RecordKey::Member(name) => write!(f, "member/{name}"),
            RecordKey::Lease(id) => write!(f, "lease/{:020}", id.0),
            RecordKey::Pending(id) => write!(f, "pending/{:020}", id.0),
            RecordKey::Kept => f.write_str("kept"),
        }
    }
}

/// What is known under a key.
#[allow(
    clippy::large_enum_variant,
    reason = "one is made for each change and written at once: there are never many of them"
)]
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Record {
    /// A member.
    Member {
        /// Its name and run.
        agent: AgentKey,
        /// Its number in plans.
        host: HostId,
        /// Where other agents reach it.
        address: ([u8; 4], u16),
    },
    /// A path that is lent.
    Lease {
        /// The request that it was lent for.
        key: RequestKey,
        /// The object.
        object: ObjectId,
        /// Whom it serves.
        group: Group,
        /// What was granted.
        grant: Grant,
        /// When.
        granted_at: Time,
        /// When it ends in any case.
        ends_at: Option<Time>,
    },
    /// A request that waits.
    Pending {
        /// The request.
        key: RequestKey,
        /// The object.
        object: ObjectId,
        /// What the scheduler sees.
        pending: Pending,
        /// Whether it is for all who are there.
        all: bool,
        /// How long the path is wanted.
        lease: Option<Duration>,
    },
    /// Paths that were given back and that devices hold ready, oldest first.
    Kept {
        /// Each with the group that it serves.
        paths: Vec<(Group, Plan)>,
    },
}

/// How much an earlier manager has handed down: its limits may have been wider.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Restored {
    pub(super) members: usize,
    pub(super) leases: usize,
    pub(super) pending: usize,
}

/// Records that contradict each other.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the records of the manager's state contradict each other: {0}")]
pub struct StateError(String);

impl Leases {
    /// Notes that a record has changed, if anybody wants to know.
    pub(super) fn touch(&mut self, key: RecordKey) {
        if self.config.recorded {
            self.changed.insert(key);
        }
    }

    /// The records that have changed since the last call, each with what it is now or `None` where it is gone.
    pub fn changes(&mut self) -> Vec<(RecordKey, Option<Record>)> {
        let changed: BTreeSet<RecordKey> = core::mem::take(&mut self.changed);
        changed.into_iter().map(|key| (key.clone(), self.record(&key))).collect()
    }

    /// All records.
    #[must_use]
    pub fn records(&self) -> Vec<Record> {
        let members = self.members.iter().map(|(name, _)| RecordKey::Member(String::from(name)));
        let leases = self.leases.keys().map(|id| RecordKey::Lease(*id));
        let pending = self.pending.keys().map(|id| RecordKey::Pending(*id));
        let all = members.chain(leases).chain(pending).chain([RecordKey::Kept]);
        all.filter_map(|key| self.record(&key)).collect()
    }

    /// What devices hold for paths that are kept ready.
    pub fn kept_commands(&self) -> impl Iterator<Item = &DeviceCommand> {
        self.network.kept().flat_map(|running| &running.plan.commands)
    }

    fn record(&self, key: &RecordKey) -> Option<Record> {
        Some(match key {
            RecordKey::Member(name) => {
                let member = self.members.get(name)?;
                Record::Member { agent: member.key(name), host: member.host, address: member.address }
            }
            RecordKey::Lease(id) => {
                let Lease { key, object, grant, granted_at, ends_at, .. } = self.leases.get(id)?;
                Record::Lease {
                    key: key.clone(),
                    object: *object,
                    group: self.network.get(*id)?.group.clone(),
                    grant: grant.clone(),
                    granted_at: *granted_at,
                    ends_at: *ends_at,
                }
            }
            RecordKey::Pending(id) => {
                let (pending, Waiting { key, object, all, lease, .. }) = self.pending.get(id)?;
                Record::Pending {
                    key: key.clone(),
                    object: *object,
                    pending: pending.clone(),
                    all: *all,
                    lease: *lease,
                }
            }
            RecordKey::Kept => {
                let kept = self.network.kept();
                let paths: Vec<_> = kept.map(|kept| (kept.group.clone(), kept.plan.clone())).collect();
                return (!paths.is_empty()).then_some(Record::Kept { paths });
            }
        })
    }

    /// Takes over what an earlier manager has recorded, into a machine that knows nobody yet. Members count as heard
    /// of now, and leases as renewed.
    ///
    /// # Errors
    /// The records contradict each other: they are not those of one manager.
    pub fn restore(
        &mut self,
        now: Time,
        records: impl IntoIterator<Item = Record>,
    ) -> Result<(), StateError> {
        for record in records {
            match record {
                Record::Member { agent, host, address } => {
                    let member = Member { host, incarnation: agent.incarnation, address, heard_at: now };
                    self.members.restore(agent.name, member).map_err(StateError)?;
                }
                Record::Lease { key, object, group, grant, granted_at, ends_at } => {
                    let id = grant.plan_id;
                    if id.0 >= PLANS_END {
                        return Err(StateError(alloc::format!("no manager gives a path number {}", id.0)));
                    }
                    if self.by_request.contains_key(&key) {
                        return Err(StateError(alloc::format!("path {} is the second of one request", id.0)));
                    }
                    if !self.network.hold(id, group, grant.plan.clone()) {
                        return Err(StateError(alloc::format!("what path {} holds is held already", id.0)));
                    }
                    let expires_at = now + self.config.lease;
                    let lease = Lease { key, object, grant, granted_at, expires_at, ends_at, tries: 0 };
                    self.next_plan = self.next_plan.max(id.0.wrapping_add(1));
                    self.enter(id, lease);
                }
                Record::Pending { key, object, pending, all, lease } => {
                    let id = pending.id.0;
                    let Some(after) = id.checked_add(1) else {
                        return Err(StateError(alloc::format!("no request has number {id}")));
                    };
                    let twice =
                        self.pending.contains_key(&pending.id) || self.pending_by_key.contains_key(&key);
                    if twice || pending.group.receivers.is_empty() {
                        return Err(StateError(alloc::format!(
                            "request {id} waits twice or for no receiver"
                        )));
                    }
                    self.next_request = self.next_request.max(after);
                    self.pending_by_key.insert(key.clone(), pending.id);
                    let waiting = Waiting { key, object, all, lease, told: None };
                    self.pending.insert(pending.id, (pending, waiting));
                }
                Record::Kept { paths } => {
                    for (group, plan) in paths {
                        self.network.keep(Running { group, plan });
                    }
                    self.forget_surplus();
                }
            }
        }
        self.settle_restored();
        self.undecided = true;
        if cfg!(debug_assertions) {
            self.check();
        }
        Ok(())
    }

    /// What one change of the state has written and taken away may have been cut in the middle: what is newer counts.
    fn settle_restored(&mut self) {
        let granted: Vec<RequestId> =
            self.by_request.keys().filter_map(|key| self.pending_by_key.get(key)).copied().collect();
        granted.into_iter().for_each(|id| drop(self.take_pending(id)));
        let lent: Vec<Plan> = self.leases.values().map(|lease| lease.grant.plan.clone()).collect();
        lent.iter().for_each(|plan| drop(self.displace(plan)));
        self.restored = Restored {
            members: self.members.iter().count(),
            leases: self.leases.len(),
            pending: self.pending.len(),
        };
    }
}
