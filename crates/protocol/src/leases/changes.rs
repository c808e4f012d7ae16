//! Paths in use that change: after failures, and when their holders ask for it (Blast section IV-A).

use super::words::{Denial, Grant, Output, ReleaseReason, RequestKey};
use super::{Lease, Leases, RecordKey};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use polycast_planning::{
    FabricName, Failure, Group, HostId, Plan, PlanId, Refusal, ReplanOutcome, RequestId,
};
use polycast_types::{Duration, Time};

impl Leases {
    /// Takes what has failed out of use, and plans the paths anew that it touches. A path that its own fabric
    /// cannot save may go over another one; what nothing can save ends.
    pub(super) fn fail(&mut self, failures: &[Failure]) {
        for failure in failures {
            match failure {
                Failure::Resource(resource) => self.network.fail(*resource),
                Failure::Part(part) => self.network.fail_part(*part),
                _ => {}
            }
        }
        self.replan(failures);
    }

    /// Plans the paths anew that these touch; gives how many have another plan now, and how many have none.
    pub(super) fn replan(&mut self, failures: &[Failure]) -> (usize, usize) {
        let (mut moved, mut ended) = (0, 0);
        for failure in failures {
            for replan in self.fabrics.replan(&self.network, failure) {
                match replan.outcome {
                    ReplanOutcome::Replaced(plan) if self.may_carry(replan.id, plan.fabric) => {
                        moved += 1;
                        self.replace(replan.id, plan, None);
                    }
                    ReplanOutcome::Replaced(_) | ReplanOutcome::Lost(_) => {
                        ended += 1;
                        self.end(replan.id, ReleaseReason::Failed);
                    }
                }
            }
        }
        self.undecided = true;
        (moved, ended)
    }

    /// Returns true if a path may go on over this fabric: a request may have ruled out all but its own.
    fn may_carry(&self, id: PlanId, fabric: FabricName) -> bool {
        self.leases.get(&id).is_none_or(|lease| !lease.only || lease.grant.plan.fabric == fabric)
    }

    /// Puts another plan in a path's place; `reason` says which device failed, if one did.
    pub(super) fn replace(&mut self, id: PlanId, plan: Plan, reason: Option<String>) {
        let Some(lease) = self.leases.get_mut(&id) else { return };
        let Some(running) = self.network.release(id) else { return };
        if !self.network.hold(id, running.group.clone(), plan.clone()) {
            // A fabric has planned with what is not free: the lease cannot stay.
            self.places.lead(&lease.key, &running.group, false);
            return self.end(id, ReleaseReason::Failed);
        }
        let before = core::mem::replace(&mut lease.grant.plan, plan.clone());
        lease.moved = true;
        if lease.key.is_stream() {
            self.network.set_quiet(id);
        }
        let request = lease.key.clone();
        let displaced = self.displace(&plan);
        self.note_over(id);
        self.touch(RecordKey::Lease(id));
        self.outputs.push_back(Output::Replanned { plan_id: id, request, before, plan, displaced, reason });
    }

    pub(super) fn repair(&mut self, failures: &[Failure]) {
        for failure in failures {
            match failure {
                Failure::Resource(resource) => self.network.repair(resource),
                Failure::Part(part) => self.network.repair_part(part),
                _ => {}
            }
        }
        self.acquit(failures);
        for (id, plan) in self.fabrics.improve(&self.network) {
            self.replace(id, plan, None);
        }
        self.undecided = true;
    }

    /// Changes the time or the group of a request.
    pub(super) fn extend(
        &mut self,
        now: Time,
        request: RequestKey,
        time: Option<Duration>,
        change: GroupChange<'_>,
    ) {
        let result = if !request.is_stream()
            && let Err(denial) = self.check_drained(change.add)
        {
            Err(denial)
        } else if !change.sources.is_empty() && request.is_transfer() {
            Err(several_sources())
        } else if let Some(id) = self.by_request.get(&request).copied() {
            self.change_lease(now, id, time, change).map(Some)
        } else if let Some(id) = self.pending_by_key.get(&request).copied() {
            self.change_pending(id, time, change).map(|()| None)
        } else {
            Err(Denial::NotHeld(request.request))
        };
        self.outputs.push_back(Output::Extended { request, result });
    }

    fn change_pending(
        &mut self,
        id: RequestId,
        time: Option<Duration>,
        change: GroupChange<'_>,
    ) -> Result<(), Denial> {
        let (pending, waiting) = self.pending.get(&id).expect("indexed by its key");
        let group = self.changed_group(&pending.group, (&BTreeMap::new(), &waiting.missed), change)?;
        let (pending, waiting) = self.pending.get_mut(&id).expect("looked up above");
        pending.group = group;
        waiting.missed.retain(|name| !change.names(name));
        waiting.lease = time.or(waiting.lease);
        self.touch(RecordKey::Pending(id));
        self.undecided = true;
        Ok(())
    }

    /// Holds a plan for another group in place of one that was lifted.
    fn regroup(&mut self, id: PlanId, old: &Plan, group: Group) -> Result<Plan, Refusal> {
        let plan = self.fabrics.regroup(&self.network, old, &group)?;
        if self.network.hold(id, group, plan.clone()) {
            return Ok(plan);
        }
        // A fabric may take what the path had, and settings or records may have taken that out of use since.
        Err(Refusal::Busy("what the path holds is out of use".into()))
    }

    fn change_lease(
        &mut self,
        now: Time,
        id: PlanId,
        time: Option<Duration>,
        change: GroupChange<'_>,
    ) -> Result<Grant, Denial> {
        let old = self.network.get(id).expect("every lease is held").clone();
        let Lease { gone, grant, .. } = self.leases.get(&id).expect("every lease is known");
        let group = self.changed_group(&old.group, (gone, &grant.missed), change)?;
        if group != old.group {
            self.lead(id, false);
            let lifted = self.network.lift(id).expect("every lease is held");
            let plan = match self.regroup(id, &old.plan, group) {
                Ok(plan) => plan,
                Err(refusal) => {
                    // It goes on as it was, also with what is out of use by now.
                    self.network.put_back(lifted);
                    self.lead(id, true);
                    return Err(Denial::Unchangeable(refusal.to_string()));
                }
            };
            self.lead(id, true);
            self.note_end(id);
            if plan != old.plan {
                let request = self.leases.get(&id).expect("looked up above").key.clone();
                let (before, plan, displaced) = (old.plan, plan.clone(), self.displace(&plan));
                let reason = None;
                self.outputs.push_back(Output::Replanned {
                    plan_id: id,
                    request,
                    before,
                    plan,
                    displaced,
                    reason,
                });
            }
            // Fibres of racks that have gone are free now.
            self.undecided = true;
            self.enter_group(id, plan);
        }
        self.touch(RecordKey::Lease(id));
        let lease = self.leases.get_mut(&id).expect("looked up above");
        lease.grant.missed.retain(|name| !change.names(name));
        lease.grant.further_sources.retain(|name| !change.remove.contains(name));
        lease.grant.further_sources.extend(change.sources.iter().cloned());
        if let Some(time) = time {
            self.expiries.remove(&(lease.due_at(), id));
            lease.grant.lease = Some(time);
            lease.ends_at = Some(now + time);
            self.expiries.insert((lease.due_at(), id));
            self.note_end(id);
        }
        self.note_over(id);
        let lease = self.leases.get(&id).expect("looked up above");
        Ok(lease.grant.clone())
    }

    /// Enters the receivers that a path has now into its lease, and the plan that leads to them.
    fn enter_group(&mut self, id: PlanId, plan: Plan) {
        let group = &self.network.get(id).expect("held just now").group;
        let address_of = |host: &HostId| self.members.address_of(*host);
        let mut receivers: Vec<_> = group.receivers.iter().filter_map(address_of).collect();
        receivers.sort();
        let mut absent: BTreeSet<String> = self.members.absent(&group.receivers).into_iter().collect();
        let lease = self.leases.get_mut(&id).expect("every lease is known");
        lease.gone.retain(|host, _| group.receivers.contains(host));
        absent.extend(lease.gone.values().cloned());
        lease.moved |= lease.grant.plan != plan;
        // What was assumed is of another group.
        lease.assumed = None;
        (lease.grant.receivers, lease.grant.plan) = (receivers, plan);
        lease.grant.absent = absent.into_iter().collect();
    }

    /// The group with some hosts more and some fewer. Of its receivers some may be `gone`, which have
    /// their names there; further ones that were requested are `missed`, and are not in it.
    fn changed_group(
        &self,
        old: &Group,
        (gone, missed): (&BTreeMap<HostId, String>, &[String]),
        GroupChange { add, remove, sources }: GroupChange<'_>,
    ) -> Result<Group, Denial> {
        let mut receivers: BTreeSet<HostId> = old.receivers.clone();
        let mut further_sources = old.further_sources.clone();
        // One that has died meanwhile is taken out too; if it has come back, it has another number by now.
        let take_out = |receivers: &mut BTreeSet<HostId>, name: &String| {
            let before = gone.iter().filter(|(_, other)| *other == name).map(|(host, _)| *host);
            before.chain(self.members.number(name)).filter(|host| receivers.remove(host)).count() > 0
        };
        for name in remove {
            // One that has died is no member, and has its number still, or had the one that is noted here.
            let number = self.members.number(name);
            let is_its = |host: &HostId| number == Some(*host) || gone.get(host) == Some(name);
            let before = further_sources.len();
            further_sources.retain(|host| !is_its(host));
            let sent = further_sources.len() < before;
            if !take_out(&mut receivers, name) && !sent && !missed.contains(name) {
                return Err(Denial::NotReceiver(name.clone()));
            }
        }
        for name in sources {
            let member = self.members.get(name).ok_or_else(|| Denial::UnknownReceiver(name.clone()))?;
            if member.host == old.source || !further_sources.insert(member.host) {
                return Err(Denial::AlreadySource(name.clone()));
            }
        }
        for name in add {
            let member = self.members.get(name).ok_or_else(|| Denial::UnknownReceiver(name.clone()))?;
            if member.host == old.source && further_sources.is_empty() {
                return Err(Denial::SourceItself(name.clone()));
            }
            if receivers.contains(&member.host) {
                return Err(Denial::AlreadyReceiver(name.clone()));
            }
            // It takes the place that it had under another number.
            take_out(&mut receivers, name);
            receivers.insert(member.host);
        }
        if receivers.contains(&old.source) && further_sources.is_empty() {
            // What no other host sends, this one need not hear.
            receivers.remove(&old.source);
        }
        match receivers.is_empty() {
            true => Err(Denial::NoReceivers),
            false => Ok(Group { source: old.source, further_sources, receivers }),
        }
    }
}

/// The names of hosts by which a group changes.
#[derive(Clone, Copy)]
pub(super) struct GroupChange<'a> {
    pub(super) add: &'a [String],
    pub(super) remove: &'a [String],
    pub(super) sources: &'a [String],
}

impl GroupChange<'_> {
    /// Returns true if a receiver comes or goes.
    fn names(&self, name: &String) -> bool {
        self.add.contains(name) || self.remove.contains(name)
    }
}

pub(super) fn several_sources() -> Denial {
    Denial::Rejected("only a group of an application's own packets has several sources".into())
}
