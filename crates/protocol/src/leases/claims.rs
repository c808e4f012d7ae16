//! Claims of holders to leases, and how far they are believed.
//!
//! A manager that has just started without records has to learn from agents which paths are in use. A manager
//! that knows all leases believes no agent that names another one: otherwise one agent could take every
//! address by naming it. A lease that has ended here because its holder was away is remembered for a while,
//! so that the holder can continue with it.

use super::words::{AgentKey, Grant, HeldLease, Output, ReleaseReason, RequestKey};
use super::{Claims, Lease, Leases, PLANS_END, RecordKey, service_time};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;
use polycast_planning::{Channel, Group, Plan, PlanId};
use polycast_types::{Duration, Time};

/// Agents may take so long to come back, however short leases are.
const RETURN: Duration = Duration::from_secs(10);

/// Knowledge about the paths that holders may name.
#[derive(Debug, Default)]
pub(super) struct Claimed {
    /// Until when holders may name what is not known here; `None` before anything has happened.
    learns_until: Option<Time>,
    /// Until when paths may be in use that no agent has named yet: nothing new is lent.
    in_doubt_until: Option<Time>,
    /// Paths that have ended because their holders were away, and until when each is remembered.
    pub(super) ended: BTreeMap<PlanId, Ended>,
}

/// A path whose holder was away for too long.
#[derive(Debug)]
pub(super) struct Ended {
    key: RequestKey,
    channel: Channel,
    /// It is forgotten then.
    until: Time,
}

impl Claimed {
    /// Returns the time when the state changes without an input.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.in_doubt_until
    }
}

impl Leases {
    /// Notes when it all begins.
    pub(super) fn begin(&mut self, now: Time) {
        if self.claimed.learns_until.is_none() {
            // What an earlier manager has lent has been named by then, or has expired.
            self.claimed.learns_until = Some(now + self.config.lease.max(RETURN));
            self.early.expect_until(now + self.config.patience);
        }
    }

    /// Everything that was lent is known, unless `in_doubt`: then holders have a while to name what is not,
    /// and nothing is lent meanwhile that could be theirs.
    pub(super) fn knows_all(&mut self, now: Time, in_doubt: bool) {
        let until = if in_doubt { now + self.config.patience } else { now };
        self.claimed.learns_until = Some(until);
        self.early.expect_until(now + self.config.patience);
        if in_doubt {
            self.claimed.in_doubt_until = Some(until);
            self.network.set_uses_known(false);
        }
    }

    /// Paths may be in use that are not known: their holders have a while to come and name them.
    pub fn await_holders(&mut self, now: Time) {
        self.knows_all(now, true);
    }

    /// No agent could be heard until now: none is taken for dead because it was silent.
    pub fn excuse(&mut self, now: Time) {
        self.members.excuse(now);
        let all: Vec<PlanId> = self.leases.keys().copied().collect();
        all.into_iter().for_each(|id| self.renew(now, id));
        self.early.expect_until(now + self.config.patience);
    }

    pub(super) fn end_claims(&mut self, now: Time) {
        if self.claimed.in_doubt_until.take_if(|until| *until <= now).is_some() {
            self.network.set_uses_known(true);
            self.undecided = true;
        }
        self.claimed.ended.retain(|_, ended| ended.until > now);
    }

    /// Notes a path that has ended though its holder may come back to it.
    pub(super) fn remember(&mut self, lease: &Lease, reason: ReleaseReason) {
        if !matches!(reason, ReleaseReason::Expired | ReleaseReason::HolderGone) {
            return;
        }
        let (key, channel) = (lease.key.clone(), lease.grant.plan.channel.clone());
        let until = lease.expires_at + self.config.lease;
        self.claimed.ended.insert(lease.grant.plan_id, Ended { key, channel, until });
        while self.claimed.ended.len() > self.config.leases_max {
            self.claimed.ended.pop_first();
        }
    }

    /// Returns true if a path that is not leased as far as known here can be leased to the agent that names
    /// it.
    fn can_be_lent(&self, now: Time, key: &RequestKey, held: &HeldLease) -> bool {
        let learns = self.claimed.learns_until.is_none_or(|until| now < until);
        let ended = self.claimed.ended.get(&held.plan);
        let is_its = |ended: &Ended| ended.key.is_continued_by(key);
        learns || ended.is_some_and(|ended| is_its(ended) && ended.channel.is_heard_like(&held.channel))
    }

    /// A holder comes back with a lease that is known here.
    fn take_up(&mut self, now: Time, held: &HeldLease) {
        if self.leases[&held.plan].grant.plan.channel.is_heard_like(&held.channel) {
            self.renew(now, held.plan);
        } else {
            // Its holder has not heard that the path goes another way, and uses what may be another one's by
            // now. The answer to its next heartbeat says that the path is lost.
            self.end(held.plan, ReleaseReason::Failed);
        }
    }

    /// Gives a group to the run of its agent that goes on with it.
    fn hand_on(&mut self, id: PlanId, key: RequestKey) {
        let Some(lease) = self.leases.get_mut(&id).filter(|lease| lease.key != key) else { return };
        self.by_request.remove(&lease.key);
        self.by_request.insert(key.clone(), id);
        self.places.let_go(&lease.key.agent);
        self.places.hold(&key.agent);
        lease.key = key.clone();
        let grant = lease.grant.clone();
        // Where settings do not say its number, it has come back with another one.
        if let Some(member) = self.members.get(&key.agent.name)
            && self.network.get(id).is_some_and(|running| running.group.source != member.host)
        {
            self.network.renumber_source(id, member.host);
        }
        self.touch(RecordKey::Lease(id));
        self.answer_waiting(&key, grant);
    }

    /// Answers a request that waits with a path that its agent has had all the time: it did not know that it
    /// may go on with that one.
    fn answer_waiting(&mut self, key: &RequestKey, grant: Grant) {
        if let Some(id) = self.pending_by_key.get(key).copied() {
            self.take_pending(id);
            let response = Ok(grant);
            self.outputs.push_back(Output::Response { request: key.clone(), response });
        }
    }

    /// Takes a lease over that an earlier run of the manager has granted, or that had expired here.
    pub(super) fn take_over(&mut self, now: Time, agent: &AgentKey, held: HeldLease) {
        let key = agent.request(held.request);
        let has_one = self.by_request.get(&key);
        let is_its = |lease: &Lease| match has_one {
            Some(own) => *own == held.plan,
            None => lease.key.is_continued_by(&key),
        };
        if self.leases.get(&held.plan).is_some_and(is_its) {
            self.hand_on(held.plan, key);
            return self.take_up(now, &held);
        }
        let Some(source) = self.members.get(&agent.name) else { return };
        let is_full = self.leases.len() >= self.config.leases_max
            || self.places.held_by(agent) >= self.config.agent_leases_max;
        if self.by_request.contains_key(&key) || is_full || held.plan.0 >= PLANS_END {
            return;
        }
        if !self.can_be_lent(now, &key, &held) {
            return;
        }
        let receivers: Vec<_> = held.receivers.iter().filter_map(|name| self.members.entry(name)).collect();
        // Not all of them need have come back yet.
        let numbers = |names: &[String]| names.iter().filter_map(|name| self.members.number(name)).collect();
        let group = Group {
            source: source.host,
            further_sources: numbers(&held.further_sources),
            receivers: numbers(&held.receivers),
        };
        let kept =
            held.kept.filter(|plan| plan.channel == held.channel && self.fabrics.vouches(&group, plan));
        let plan = kept.or_else(|| self.fabrics.adopt(&held.fabric, &self.network, &group, &held.channel));
        // Without a plan it is lost; the next heartbeat's answer says so.
        let Some(plan) = plan else { return };
        let receivers =
            receivers.into_iter().map(|(name, member)| (String::from(name), member.address)).collect();
        let absent = self.members.absent(&group.receivers);
        let service = if key.is_group() { None } else { service_time(&plan, held.bytes) };
        let grant = Grant {
            plan_id: held.plan,
            accepted_bytes: held.bytes,
            receivers,
            further_sources: held.further_sources,
            absent,
            missed: Vec::new(),
            passed_over: Vec::new(),
            estimate: None,
            plan,
            service,
            lease: held.left,
        };
        // A path that has been lent to another agent since, or has failed, is lost; the next heartbeat's
        // answer says so.
        if self.network.hold_reserved(held.plan, group, grant.plan.clone()) {
            self.claimed.ended.remove(&held.plan);
            self.make_way(&grant.plan);
            if !grant.plan.commands.is_empty() {
                // Devices hold it already, unless they have lost it; from here on they know that it is
                // needed.
                self.outputs.push_back(Output::Again { plan_id: held.plan, plan: grant.plan.clone() });
            }
            if let Channel::SourceRoutes { .. } = held.channel {
                self.tell_ways(key.clone(), held.plan, held.channel, grant.plan.clone());
            }
            self.answer_waiting(&key, grant.clone());
            self.keep(now, key, held.object, grant);
            if let Some(lease) = self.leases.get_mut(&held.plan) {
                lease.only = held.only || lease.key.is_group();
            }
        }
    }

    /// The trees of a path were planned anew: failures that the source knows of may be over, and others
    /// there.
    fn tell_ways(&mut self, request: RequestKey, plan_id: PlanId, channel: Channel, plan: Plan) {
        let before = Plan { channel, ..plan.clone() };
        let (displaced, reason) = (Vec::new(), None);
        self.outputs.push_back(Output::Replanned { plan_id, request, before, plan, displaced, reason });
    }

    /// Devices have said what they hold: it is not lent until the agents that use it have had the time to say
    /// so.
    pub(super) fn found(&mut self, now: Time, commands: &[polycast_planning::DeviceCommand]) {
        if self.claims != Claims::Unknown {
            return;
        }
        let held: BTreeSet<_> =
            self.leases.values().flat_map(|lease| lease.grant.plan.commands.iter()).collect();
        let unclaimed = commands.iter().filter(|command| !held.contains(command));
        // What a lease holds is its holder's, whatever else its device keeps there.
        let resources: Vec<_> = unclaimed
            .flat_map(|command| self.fabrics.resources_of(command))
            .filter(|resource| self.network.holder(resource).is_none())
            .collect();
        self.claims = match self.config.claims {
            Some(wait) if !resources.is_empty() => Claims::Until(now + wait),
            _ => Claims::Known,
        };
        self.network.reserve(resources);
        self.network.set_circuits_known(true);
        self.undecided = true;
    }
}
