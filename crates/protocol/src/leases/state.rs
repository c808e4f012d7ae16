//! The manager's state as records: what another manager has to know to go on where this one has ended.
//!
//! A record says which agent is a member, what waits, or what is lent. [`Leases::changes`] gives those that
//! have changed since the last call, [`Leases::restore`] makes a new machine of them. What a manager learns
//! again by itself is not in them: heartbeats, and failures of devices. What is suspected or taken out of use
//! is in them: no device tells of it. So is how far off the estimates of fabrics are, which it takes many
//! transfers to learn.

use super::members::{Member, Presence};
use super::words::{AgentKey, Grant, RequestKey, Suspect};
use super::{Lease, Leases, PLANS_END, Waiting};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use core::net::IpAddr;
use polycast_planning::estimate::Learned;
use polycast_planning::{DeviceCommand, Group, HostId, PartName, Pending, Plan, PlanId, RequestId, Running};
use polycast_types::{Duration, ObjectId, Time};
use serde::{Deserialize, Serialize};

/// Key of a record.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum RecordKey {
    /// The member of this name.
    Member(String),
    /// The lease of this number.
    Lease(PlanId),
    /// The request that waits, by its place in the queue.
    Pending(RequestId),
    /// The paths that devices hold ready for no request yet; all in one record, as there are few.
    Kept,
    /// Parts that are out of use or suspected, and hosts that are drained; all in one record too.
    Parts,
    /// Correction factors of the fabrics' estimates; all in one record, as there are few.
    Learned,
    /// The number of a host that settings name.
    Host(String),
}

impl RecordKey {
    /// The key that reads so.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (kind, rest) = text.split_once('/').unwrap_or((text, ""));
        let key = match kind {
            "member" => RecordKey::Member(String::from(rest)),
            "lease" => RecordKey::Lease(PlanId(rest.parse().ok()?)),
            "pending" => RecordKey::Pending(RequestId(rest.parse().ok()?)),
            "kept" => RecordKey::Kept,
            "parts" => RecordKey::Parts,
            "learned" => RecordKey::Learned,
            "host" => RecordKey::Host(String::from(rest)),
            _ => return None,
        };
        (key.to_string() == text).then_some(key)
    }
}

impl fmt::Display for RecordKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RecordKey::Member(name) => write!(f, "member/{name}"),
            RecordKey::Lease(id) => write!(f, "lease/{:020}", id.0),
            RecordKey::Pending(id) => write!(f, "pending/{:020}", id.0),
            RecordKey::Kept => f.write_str("kept"),
            RecordKey::Parts => f.write_str("parts"),
            RecordKey::Learned => f.write_str("learned"),
            RecordKey::Host(name) => write!(f, "host/{name}"),
        }
    }
}

/// Content of a record.
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
        /// Address at which other agents reach it.
        #[serde(with = "polycast_planning::kept_address::with_port")]
        address: (IpAddr, u16),
    },
    /// A path that is lent.
    Lease {
        /// The request that it was lent for.
        key: RequestKey,
        /// The object.
        object: ObjectId,
        /// Source and receivers that it serves.
        group: Group,
        /// The grant.
        grant: Grant,
        /// Time of the grant.
        granted_at: Time,
        /// Time when it ends in any case.
        ends_at: Option<Time>,
        /// Set if no other fabric may carry it.
        #[serde(default)]
        only: bool,
        /// Names of its receivers whose agents have gone, by their numbers.
        #[serde(default)]
        gone: BTreeMap<HostId, String>,
    },
    /// A request that waits.
    Pending {
        /// The request.
        key: RequestKey,
        /// The object.
        object: ObjectId,
        /// The request as the scheduler sees it.
        pending: Pending,
        /// Set if it is for all agents present.
        all: bool,
        /// Time that the path is requested for.
        lease: Option<Duration>,
        /// Receivers that are lost or silent.
        #[serde(default)]
        missed: Vec<String>,
    },
    /// Paths that were given back and that devices hold ready, oldest first.
    Kept {
        /// Each with the group that it serves.
        paths: Vec<(Group, Plan)>,
    },
    /// Parts of networks that are taken out, or are suspected to be dead, and hosts that are drained.
    Parts {
        /// Names of those that are taken out.
        drained: Vec<PartName>,
        /// Parts that are suspected.
        suspects: Vec<Suspect>,
        /// Names of the hosts that are drained.
        #[serde(default)]
        hosts: BTreeSet<String>,
    },
    /// Correction factors of the fabrics' estimates.
    Learned {
        /// Entries of the fabrics that something is known about.
        fabrics: Vec<Learned>,
    },
    /// A host that settings name: its number stays when they change.
    Host {
        /// Its name.
        name: String,
        /// Its number in plans.
        host: HostId,
    },
}

impl Record {
    /// Returns the key of the record.
    #[must_use]
    pub fn key(&self) -> RecordKey {
        match self {
            Record::Member { agent, .. } => RecordKey::Member(agent.name.clone()),
            Record::Lease { grant, .. } => RecordKey::Lease(grant.plan_id),
            Record::Pending { pending, .. } => RecordKey::Pending(pending.id),
            Record::Kept { .. } => RecordKey::Kept,
            Record::Parts { .. } => RecordKey::Parts,
            Record::Learned { .. } => RecordKey::Learned,
            Record::Host { name, .. } => RecordKey::Host(name.clone()),
        }
    }

    /// Numbers of hosts come before those who have them, and what is in use before what is not.
    fn turn(&self) -> u8 {
        match self {
            Record::Host { .. } => 0,
            Record::Member { .. } => 1,
            Record::Lease { .. } => 2,
            Record::Pending { .. } => 3,
            Record::Kept { .. } => 4,
            // Paths in use go on over what is out of use until their holders say how they fare.
            Record::Parts { .. } => 5,
            Record::Learned { .. } => 6,
        }
    }

    /// The groups that it names.
    fn groups(&self) -> impl Iterator<Item = &Group> {
        let (one, many): (Option<&Group>, &[(Group, Plan)]) = match self {
            Record::Lease { group, .. } => (Some(group), &[]),
            Record::Pending { pending, .. } => (Some(&pending.group), &[]),
            Record::Kept { paths } => (None, paths),
            Record::Member { .. } | Record::Host { .. } | Record::Parts { .. } | Record::Learned { .. } => {
                (None, &[])
            }
        };
        one.into_iter().chain(many.iter().map(|(group, _)| group))
    }
}

/// The hosts of a group.
fn hosts(group: &Group) -> impl Iterator<Item = HostId> {
    group.hosts()
}

/// The numbers of hosts that settings name: those that an earlier manager has recorded, and for the others
/// such as no host has had. In what order the settings name them does not matter.
pub fn host_numbers<'a>(
    names: impl IntoIterator<Item = &'a str>,
    records: &[Record],
) -> BTreeMap<String, HostId> {
    let names: BTreeSet<&str> = names.into_iter().collect();
    let mut owners: BTreeMap<HostId, &str> = BTreeMap::new();
    let mut numbers = BTreeMap::new();
    let hosts_first = [0, 1].into_iter().flat_map(|turn| records.iter().filter(move |r| r.turn() == turn));
    for record in hosts_first {
        let (Record::Host { name, host } | Record::Member { agent: AgentKey { name, .. }, host, .. }) =
            record
        else {
            continue;
        };
        if host.0 < u32::MAX && *owners.entry(*host).or_insert(name) == name && names.contains(name.as_str())
        {
            numbers.entry(name.clone()).or_insert(*host);
        }
    }
    let mut taken: BTreeSet<HostId> = records.iter().flat_map(Record::groups).flat_map(hosts).collect();
    taken.extend(owners.keys());
    let mut free = (0..u32::MAX).map(HostId).filter(|host| !taken.contains(host));
    for name in names {
        if !numbers.contains_key(name)
            && let Some(host) = free.next()
        {
            numbers.insert(String::from(name), host);
        }
    }
    numbers
}

/// Numbers of entries restored from an earlier manager, whose limits may have been wider.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Restored {
    pub(super) members: usize,
    pub(super) leases: usize,
    pub(super) pending: usize,
}

/// A record that does not fit with the others: it is left out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SetAside {
    /// Key of the record.
    pub key: RecordKey,
    /// Reason, in words.
    pub reason: String,
}

impl Leases {
    /// Notes that a record has changed, if the settings ask for records.
    pub(super) fn touch(&mut self, key: RecordKey) {
        if self.config.recorded {
            self.changed.insert(key);
        }
    }

    /// The records that have changed since the last call, each with what it is now or `None` where it is
    /// gone.
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
        let hosts = self.members.known.keys().cloned().map(RecordKey::Host);
        let single = [RecordKey::Kept, RecordKey::Parts, RecordKey::Learned];
        let all = members.chain(leases).chain(pending).chain(single).chain(hosts);
        all.filter_map(|key| self.record(&key)).collect()
    }

    /// Returns the commands that devices hold for paths that are kept ready.
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
                let Lease { key, object, grant, granted_at, ends_at, only, gone, .. } =
                    self.leases.get(id)?;
                Record::Lease {
                    key: key.clone(),
                    object: *object,
                    group: self.network.get(*id)?.group.clone(),
                    grant: grant.clone(),
                    granted_at: *granted_at,
                    ends_at: *ends_at,
                    only: *only,
                    gone: gone.clone(),
                }
            }
            RecordKey::Pending(id) => {
                let (pending, Waiting { key, object, all, lease, missed, .. }) = self.pending.get(id)?;
                Record::Pending {
                    key: key.clone(),
                    object: *object,
                    pending: pending.clone(),
                    all: *all,
                    lease: *lease,
                    missed: missed.clone(),
                }
            }
            RecordKey::Kept => {
                let kept = self.network.kept();
                let paths: Vec<_> = kept.map(|kept| (kept.group.clone(), kept.plan.clone())).collect();
                return (!paths.is_empty()).then_some(Record::Kept { paths });
            }
            RecordKey::Parts => {
                let (drained, suspects) = self.parts.list();
                return (!self.parts.is_empty()).then(|| {
                    let hosts = self.parts.hosts.clone();
                    Record::Parts { drained, suspects, hosts }
                });
            }
            RecordKey::Learned => {
                let fabrics: Vec<Learned> = self.fabrics.learned().copied().collect();
                return (!fabrics.is_empty()).then_some(Record::Learned { fabrics });
            }
            RecordKey::Host(name) => {
                Record::Host { name: name.clone(), host: *self.members.known.get(name)? }
            }
        })
    }

    /// Takes over what an earlier manager has recorded, into a machine that knows no agent yet. Members count
    /// as heard of now, and leases as renewed. Gives the records that do not fit: they are left out, and if
    /// one of them is of a path, its holder has a while to name it before anything is lent.
    pub fn restore(&mut self, now: Time, records: impl IntoIterator<Item = Record>) -> Vec<SetAside> {
        let mut records: Vec<Record> = records.into_iter().collect();
        records.sort_by_key(Record::turn);
        let of_settings: BTreeSet<String> = self.members.known.keys().cloned().collect();
        let is_first = records.is_empty();
        let mut aside = Vec::new();
        for record in records {
            let key = record.key();
            record.groups().flat_map(hosts).for_each(|host| self.members.note_number(host));
            match self.take_in(now, record) {
                // It is written already.
                Ok(()) => drop(self.changed.remove(&key)),
                Err(reason) => aside.push(SetAside { key, reason }),
            }
        }
        self.settle_restored(&of_settings);
        if !is_first {
            let lost = aside.iter().any(|record| matches!(record.key, RecordKey::Lease(_)));
            self.knows_all(now, lost);
        }
        self.undecided = true;
        if cfg!(debug_assertions) {
            self.check();
        }
        aside
    }

    /// Takes in one record, if it fits with those that are there; otherwise nothing has changed.
    fn take_in(&mut self, now: Time, record: Record) -> Result<(), String> {
        match record {
            Record::Host { name, host } => self.members.know_as(&name, host),
            Record::Member { agent, host, address } => {
                // One that does not come to this manager has died with the one before.
                let patience = self.config.patience.max(self.config.sessions.reconnect);
                let presence = Presence::Away { until: now + patience, from: None };
                let member =
                    Member { host, incarnation: agent.incarnation, address, heard_at: now, presence };
                self.members.restore(agent.name, member)
            }
            Record::Lease { key, object, group, grant, granted_at, ends_at, only, mut gone } => {
                let id = grant.plan_id;
                if id.0 >= PLANS_END {
                    return Err(format!("no manager gives a path number {}", id.0));
                }
                if self.by_request.contains_key(&key) {
                    return Err(String::from("it is the second path of one request"));
                }
                self.check_group(&key.agent.name, &group)?;
                gone.retain(|host, _| group.receivers.contains(host));
                if !self.network.hold(id, group, grant.plan.clone()) {
                    return Err(String::from("what it holds is held already"));
                }
                let expires_at = now + self.config.lease;
                let (tries, moved, fared, assumed, over) = (0, false, None, None, None);
                let lease = Lease {
                    key,
                    object,
                    grant,
                    granted_at,
                    expires_at,
                    ends_at,
                    tries,
                    moved,
                    only,
                    gone,
                    fared,
                    assumed,
                    over,
                };
                self.next_plan = self.next_plan.max(id.0.wrapping_add(1));
                self.enter(id, lease);
                Ok(())
            }
            Record::Pending { key, object, pending, all, lease, missed } => {
                self.take_in_pending(pending, Waiting { key, object, all, lease, missed, told: None })
            }
            Record::Parts { drained, suspects, hosts } => {
                self.restore_parts(drained, suspects, hosts);
                Ok(())
            }
            Record::Learned { fabrics } => self.fabrics.resume(now, fabrics),
            Record::Kept { paths } => {
                paths.into_iter().for_each(|(group, plan)| self.network.keep(Running { group, plan }));
                self.forget_surplus();
                Ok(())
            }
        }
    }

    /// Takes in a request that waits.
    fn take_in_pending(&mut self, pending: Pending, waiting: Waiting) -> Result<(), String> {
        let (id, key) = (pending.id, &waiting.key);
        let after = id.0.checked_add(1).ok_or("no request has this number")?;
        if self.pending.contains_key(&id) || self.pending_by_key.contains_key(key) {
            return Err(String::from("it is there twice"));
        }
        if pending.group.receivers.is_empty() {
            return Err(String::from("it has no receiver"));
        }
        self.check_group(&key.agent.name, &pending.group)?;
        self.next_request = self.next_request.max(after);
        self.pending_by_key.insert(key.clone(), id);
        self.pending.insert(id, (pending, waiting));
        Ok(())
    }

    /// Checks that the source of a group has the permanent number of its name, where that is known.
    fn check_group(&self, source: &str, group: &Group) -> Result<(), String> {
        match self.members.known.get(source) {
            Some(number) if *number != group.source => {
                Err(format!("its source '{source}' has number {} there and is {}", group.source.0, number.0))
            }
            _ => Ok(()),
        }
    }

    /// Completes a change of the state that may have been cut off between writes and removals: the newer
    /// record counts.
    fn settle_restored(&mut self, of_settings: &BTreeSet<String>) {
        let granted: Vec<RequestId> =
            self.by_request.keys().filter_map(|key| self.pending_by_key.get(key)).copied().collect();
        granted.into_iter().for_each(|id| drop(self.take_pending(id)));
        let lent: Vec<Plan> = self.leases.values().map(|lease| lease.grant.plan.clone()).collect();
        lent.iter().for_each(|plan| drop(self.displace(plan)));
        // Hosts that settings name no more keep their numbers as long as a path or a request needs them.
        let running = self.network.running().map(|(_, running)| &running.group);
        let groups = running.chain(self.network.kept().map(|running| &running.group));
        let groups = groups.chain(self.pending.values().map(|(pending, _)| &pending.group));
        let used: BTreeSet<HostId> =
            groups.flat_map(hosts).chain(self.members.names.keys().copied()).collect();
        let is_needed = |name: &String, host: &HostId| of_settings.contains(name) || used.contains(host);
        let known = core::mem::take(&mut self.members.known);
        let (needed, surplus): (BTreeMap<_, _>, BTreeMap<_, _>) =
            known.into_iter().partition(|(name, host)| is_needed(name, host));
        self.members.known = needed;
        surplus.into_keys().for_each(|name| self.touch(RecordKey::Host(name)));
        self.restored = Restored {
            members: self.members.iter().count(),
            leases: self.leases.len(),
            pending: self.pending.len(),
        };
    }
}
