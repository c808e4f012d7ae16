//! Invariants of a manager's core: counts agree, bounds hold, and nothing is in two states.

use super::members::{Members, Presence};
use super::places::Places;
use super::{Lease, Leases, PLANS_END, RecordKey};
use alloc::collections::BTreeSet;
use polycast_planning::Resource;
use polycast_planning::estimate::Learned;

impl Leases {
    /// Looks whether the state agrees with itself. It takes time in proportion to all that there is, so only
    /// debug builds do it after every input.
    ///
    /// # Panics
    /// If it does not, which is our own mistake.
    pub fn check(&self) {
        self.members.check_sound(self.restored.members);
        self.check_requests();
        self.check_leases();
        self.check_resources();
        self.parts.check();
        self.schedulers.check(self.next_request);
        let is_within = self.fabrics.learned().all(Learned::is_within_bounds);
        assert!(is_within, "no fabric is believed to take less than a quarter or more than four times");
        if self.config.recorded {
            let is_mine = |key: &RecordKey| match key {
                RecordKey::Pending(id) => id.0 < self.next_request,
                _ => true,
            };
            assert!(self.changed.iter().all(is_mine), "a request changed that was never made");
        } else {
            assert!(self.changed.is_empty(), "changes are noted that are not asked for");
        }
    }

    fn check_requests(&self) {
        let most = self.config.pending_max.max(self.restored.pending);
        assert!(self.pending.len() <= most, "{} requests wait, {most} may", self.pending.len());
        assert!(
            self.early.len() <= self.config.pending_max,
            "{} requests wait for receivers",
            self.early.len()
        );
        assert_eq!(self.pending.len(), self.pending_by_key.len(), "each request that waits has one name");
        for (id, (pending, waiting)) in &self.pending {
            assert_eq!(self.pending_by_key.get(&waiting.key), Some(id), "{:?} waits elsewhere", waiting.key);
            assert_eq!(pending.id, *id, "a request has one number");
            assert!(id.0 < self.next_request, "request {} will be given out again", id.0);
            assert!(!self.by_request.contains_key(&waiting.key), "{:?} waits and has a path", waiting.key);
            assert!(!pending.group.receivers.is_empty(), "{:?} waits for no receiver", waiting.key);
        }
    }

    fn check_leases(&self) {
        let most = self.config.leases_max.max(self.restored.leases);
        assert!(self.leases.len() <= most, "{} paths are lent, {most} may be", self.leases.len());
        assert_eq!(self.leases.len(), self.by_request.len(), "each lease has one request");
        assert_eq!(self.leases.len(), self.expiries.len(), "each lease ends once");
        assert_eq!(self.leases.len(), self.network.running().count(), "what is lent is held");
        let over = self.leases.values().filter(|lease| lease.over.is_some()).count();
        assert_eq!(self.overs.len(), over, "nothing is waited for that is not lent");
        self.check_places();
        for (id, lease) in &self.leases {
            let Lease { key, grant, .. } = lease;
            assert!(grant.plan_id == *id && id.0 < PLANS_END, "a lease has one number that leases have");
            assert_eq!(self.by_request.get(key), Some(id), "{key:?} has another path");
            assert!(self.expiries.contains(&(lease.due_at(), *id)), "{id:?} does not end when it is due");
            let over = lease.over_at().filter(|_| !grant.plan.resources.is_empty());
            assert_eq!(lease.over, over, "{id:?} is said to be over at another time");
            assert!(over.is_none_or(|at| self.overs.contains(&(at, *id))), "{id:?} is waited for in vain");
            let running = self.network.get(*id).expect("every lease is held");
            assert_eq!(running.plan, grant.plan, "{id:?} holds what was not granted");
            let mut gone = lease.gone.keys();
            assert!(
                gone.all(|host| running.group.receivers.contains(host)),
                "{id:?} names some that it does not lead to"
            );
        }
    }

    fn check_places(&self) {
        let mut counted = Places::default();
        for (id, lease) in &self.leases {
            counted.hold(&lease.key.agent);
            let running = self.network.get(*id).expect("every lease is held");
            counted.lead(&lease.key, &running.group, true);
        }
        assert_eq!(self.places, counted, "places are taken by what is lent, and by nothing else");
    }

    fn check_resources(&self) {
        let mut held: BTreeSet<Resource> = BTreeSet::new();
        for (id, running) in self.network.running() {
            let own: BTreeSet<Resource> = running.plan.resources.iter().copied().collect();
            for resource in own {
                assert_eq!(self.network.holder(&resource), Some(id), "{resource} has another holder");
                assert!(held.insert(resource), "{resource} is lent twice");
            }
        }
        let kept = self.network.kept().count();
        assert!(kept <= self.config.kept_max, "{kept} paths are kept, {} may be", self.config.kept_max);
        for resource in self.network.kept().flat_map(|kept| &kept.plan.resources) {
            let holder = self.network.holder(resource).and_then(|id| self.network.get(id));
            let displaces = holder.is_some_and(|running| !running.plan.commands.is_empty());
            assert!(!displaces, "{resource} is kept ready and lent");
        }
    }
}

impl Members {
    /// The same of the members; `restored` of them an earlier manager may have let in.
    fn check_sound(&self, restored: usize) {
        let most = self.most.max(restored);
        assert!(self.by_name.len() <= most, "{} agents are here, {most} may be", self.by_name.len());
        assert_eq!(self.by_name.len(), self.names.len(), "each agent has a number of its own");
        assert_eq!(self.by_name.len(), self.heard.len(), "each agent was heard of last at one time");
        let away = self.by_name.values().filter(|member| matches!(member.presence, Presence::Away { .. }));
        assert_eq!(self.away.len(), away.count(), "each agent that is away is waited for once");
        for (name, member) in &self.by_name {
            let host = member.host;
            if let Presence::Away { until, .. } = member.presence {
                assert!(self.away.contains(&(until, host)), "'{name}' is waited for until another time");
            }
            assert_eq!(self.names.get(&host), Some(name), "number {} is another one's", host.0);
            assert!(self.heard.contains(&(member.heard_at, host)), "'{name}' was heard of at another time");
            let known = self.known.get(name);
            assert!(known.is_none_or(|known| *known == host), "'{name}' is known by another number");
        }
        let mut unreachable = self.unreachable.keys();
        assert!(
            unreachable.all(|name| self.by_name.contains_key(name)),
            "one that is not here is not reached"
        );
        let mut numbers = BTreeSet::new();
        for (name, host) in &self.known {
            assert!(numbers.insert(host), "number {} is known by two names", host.0);
            assert!(
                self.names.get(host).is_none_or(|other| other == name),
                "number {} has two names",
                host.0
            );
        }
    }
}
