//! A store in memory, as managers use etcd: a leader's key that lives as long as it is kept alive, and
//! records that only the leader may write, in the same step in which it is seen to lead. It has every version
//! that a record ever had until leaders tell it up to which revision it may forget, and for a while it may be
//! full: then it takes no record, and a record can only be removed.

use crate::draw::Random;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use polycast_planning::PlanId;
use polycast_protocol::leases::{Record, RecordKey};
use polycast_types::{Duration, Time};

/// Changes that go into one transaction, by the key of each record.
pub(super) type Changes = BTreeMap<RecordKey, Option<Record>>;

/// The leader.
#[derive(Debug)]
struct Leader {
    term: u64,
    manager: usize,
    expires_at: Time,
}

/// A transaction on its way.
#[derive(Debug)]
struct Write {
    apply_at: Time,
    term: u64,
    changes: Changes,
}

/// Outcome of a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    /// It was made.
    Made,
    /// The one that asked leads no more.
    Superseded,
    /// There is no room for it.
    Refused,
}

/// Time for which a leader keeps earlier revisions.
const HISTORY: Duration = Duration::from_secs(3);

/// Contents of the store.
#[derive(Debug, Default)]
pub(super) struct Store {
    /// Value of each record from each revision on; `None`: it was removed.
    versions: BTreeMap<RecordKey, Vec<(u64, Option<Record>)>>,
    revision: u64,
    /// A revision that leaders have seen, and when; what was before is forgotten after [`HISTORY`].
    noted: Option<(Time, u64)>,
    leader: Option<Leader>,
    terms: u64,
    in_flight: Vec<Write>,
    /// Outcome of the last write of a term.
    outcomes: BTreeMap<u64, Outcome>,
    /// It answers no manager until then.
    pub(super) silent_until: Time,
    /// It has no room until then.
    pub(super) full_until: Time,
    /// Every lease that was ever written.
    written: BTreeSet<PlanId>,
    /// Records that no manager can read.
    spoilt: BTreeSet<RecordKey>,
    /// Leases whose records could not be read at some time.
    pub(super) lost: BTreeSet<PlanId>,
    /// Number of writes.
    pub(super) writes: u64,
}

impl Store {
    fn leads(&self, now: Time, term: u64) -> bool {
        self.leader.as_ref().is_some_and(|leader| leader.term == term && leader.expires_at > now)
    }

    /// Returns true while the store has no room.
    pub(super) fn is_full(&self, now: Time) -> bool {
        now < self.full_until
    }

    /// The manager that leads.
    pub(super) fn leader(&self, now: Time) -> Option<usize> {
        self.leader.as_ref().filter(|leader| leader.expires_at > now).map(|leader| leader.manager)
    }

    /// Makes a manager the leader, if there is none; gives its term.
    pub(super) fn campaign(&mut self, now: Time, manager: usize, ttl: Duration) -> Option<u64> {
        if self.leader(now).is_some() || self.is_full(now) {
            return None;
        }
        self.terms += 1;
        self.leader = Some(Leader { term: self.terms, manager, expires_at: now + ttl });
        Some(self.terms)
    }

    /// Keeps a leader's key alive; gives whether it still leads.
    pub(super) fn keep(&mut self, now: Time, term: u64, ttl: Duration) -> bool {
        let leads = self.leads(now, term);
        if let Some(leader) = self.leader.as_mut().filter(|_| leads) {
            leader.expires_at = now + ttl;
        }
        leads
    }

    /// Ends a leadership.
    pub(super) fn revoke(&mut self, term: u64) {
        self.leader.take_if(|leader| leader.term == term);
    }

    /// A leader's transaction comes in at `apply_at`.
    pub(super) fn submit(&mut self, apply_at: Time, term: u64, changes: Changes) {
        self.in_flight.push(Write { apply_at, term, changes });
    }

    /// Makes the transactions that have come in; gives whether anything has changed.
    pub(super) fn advance(&mut self, now: Time) -> bool {
        let due: Vec<Write> = self.in_flight.extract_if(.., |write| write.apply_at <= now).collect();
        let mut changed = false;
        for Write { apply_at, term, changes } in due {
            let adds = changes.values().any(Option::is_some);
            let outcome = match self.leads(apply_at, term) {
                true if adds && self.is_full(apply_at) => Outcome::Refused,
                true => Outcome::Made,
                false => Outcome::Superseded,
            };
            self.outcomes.insert(term, outcome);
            if outcome == Outcome::Made {
                changed |= !changes.is_empty();
                self.apply(changes);
            }
        }
        changed
    }

    fn apply(&mut self, changes: Changes) {
        self.writes += 1;
        self.revision += 1;
        for (key, record) in changes {
            self.spoilt.remove(&key);
            if let RecordKey::Lease(plan) = key {
                // One that is gone again before it was written was written, as far as can be seen.
                self.written.insert(plan);
            }
            self.versions.entry(key).or_default().push((self.revision, record));
        }
    }

    /// A leader, or one that believes that it leads, has the store forget what is old; gives whether there
    /// was something.
    pub(super) fn forget(&mut self, now: Time) -> bool {
        let (since, old) = *self.noted.get_or_insert((now, self.revision));
        if now.since(since) < HISTORY {
            return false;
        }
        self.noted = Some((now, self.revision));
        let mut forgotten = false;
        self.versions.retain(|_, versions| {
            // The last one that is old holds still, unless it says that there is nothing.
            let kept_from = versions.partition_point(|(revision, _)| *revision <= old).saturating_sub(1);
            forgotten |= versions.drain(..kept_from).count() > 0;
            let is_gone = matches!(versions[..], [(revision, None)] if revision <= old);
            forgotten |= is_gone;
            !is_gone
        });
        forgotten
    }

    /// Takes the outcome of a term's last write, if it has one.
    pub(super) fn outcome(&mut self, term: u64) -> Option<Outcome> {
        self.outcomes.remove(&term)
    }

    /// Returns true if a lease was ever written.
    pub(super) fn was_written(&self, plan: PlanId) -> bool {
        self.written.contains(&plan)
    }

    /// A record is lost: there is something in its place that no manager can read.
    pub(super) fn spoil(&mut self, random: &mut Random) {
        // An agent that waits or is a member comes again by itself; of a path only its holder knows.
        let leases = self.all().filter_map(|(key, _)| match key {
            RecordKey::Lease(plan) => Some(*plan),
            _ => None,
        });
        let leases: Vec<PlanId> = leases.collect();
        if leases.is_empty() || !random.one_in(3) {
            return;
        }
        let plan = *random.pick(&leases);
        self.lost.insert(plan);
        self.spoilt.insert(RecordKey::Lease(plan));
    }

    /// Returns true if there are paths of which nothing can be read.
    pub(super) fn lacks_leases(&self) -> bool {
        !self.spoilt.is_empty()
    }

    /// A leader sets aside what it cannot read.
    pub(super) fn forget_spoilt(&mut self, now: Time, term: u64) {
        if self.leads(now, term) {
            self.revision += 1;
            for key in core::mem::take(&mut self.spoilt) {
                self.versions.entry(key).or_default().push((self.revision, None));
            }
        }
    }

    /// The records as they are now.
    fn all(&self) -> impl Iterator<Item = (&RecordKey, &Record)> {
        let newest = self.versions.iter().filter_map(|(key, versions)| Some((key, versions.last()?)));
        newest.filter_map(|(key, (_, record))| Some((key, record.as_ref()?)))
    }

    fn readable(&self) -> impl Iterator<Item = (&RecordKey, &Record)> {
        self.all().filter(|(key, _)| !self.spoilt.contains(key))
    }

    /// The records in the order in which etcd gives them.
    pub(super) fn load(&self) -> Vec<Record> {
        let mut records: Vec<(String, &Record)> =
            self.readable().map(|(key, record)| (key.to_string(), record)).collect();
        records.sort_by(|(one, _), (other, _)| one.cmp(other));
        records.into_iter().map(|(_, record)| record.clone()).collect()
    }

    /// The records in the order of their keys.
    pub(super) fn records(&self) -> Vec<Record> {
        self.readable().map(|(_, record)| record.clone()).collect()
    }
}
