//! The state of a network: which plans are in force, what they hold, what has failed, and what is kept ready
//! (Republic section III-B).

use crate::fabric_name::FabricName;
use crate::held::{Held, Row};
use crate::part::Part;
use crate::plan::{Failure, Group, HostId, Plan, PlanId, Resource};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use polycast_types::Time;

/// A plan in force and the group that it serves.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Running {
    /// Group that the plan serves.
    pub group: Group,
    /// The plan.
    pub plan: Plan,
}

/// Reason why something is out of use. One thing can be so for several reasons, and is back when none is
/// left.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Cause {
    /// A device says that it has failed.
    Broken,
    /// It is suspected to be why transfers did not reach receivers, and rests.
    Rests,
    /// An operator has taken it out.
    Drained,
}

/// Resources that are held, and those that have failed.
#[derive(Clone, Default, Debug)]
pub struct NetworkState {
    running: BTreeMap<PlanId, Running>,
    holders: BTreeMap<Resource, PlanId>,
    /// The same by number, of what there is much of.
    numbers: Held,
    /// Resources and parts that are out of use, and why.
    out: BTreeSet<(Failure, Cause)>,
    /// Resources and parts that may have failed, taken only where nothing else is free.
    doubtful: BTreeSet<Failure>,
    /// Resources that may be in use by transfers that have not reported yet.
    reserved: BTreeSet<Resource>,
    /// True while the circuit switch has yet to report its circuits.
    circuits_unknown: bool,
    /// True while transfers may use resources that are not known to be held, whichever they are.
    uses_unknown: bool,
    /// Place where fabrics begin to search for free resources, so that those that were just released rest for
    /// a while.
    turn: u64,
    /// Plans that no transfer holds any more and that devices still do, oldest first.
    kept: Vec<Running>,
    /// Times when plans end, as far as estimated, and the same in their order, fabric by fabric.
    ends: BTreeMap<PlanId, Time>,
    by_end: BTreeSet<(FabricName, Time, PlanId)>,
    /// In how many plans without a rate of their own each host is: they share its link.
    company: BTreeMap<HostId, u32>,
    /// Plans that are held and carry next to nothing.
    quiet: BTreeSet<PlanId>,
    /// Hosts whose address is of IPv6.
    of_ipv6: BTreeSet<HostId>,
}

/// A plan that was taken out for a moment, to see what would be free without it.
#[derive(Debug)]
pub struct Lifted {
    id: PlanId,
    running: Running,
    end: Option<Time>,
}

impl NetworkState {
    /// A network where nothing is held. Fabrics with many equal resources begin to look at the one of this
    /// number, so that two managers, one after the other, are unlikely to begin with the same.
    #[must_use]
    pub fn new(first_turn: u64) -> Self {
        NetworkState { turn: first_turn, ..NetworkState::default() }
    }

    /// Returns true if `resource` can be allocated now.
    #[must_use]
    pub fn is_free(&self, resource: &Resource) -> bool {
        let unknown = self.uses_unknown || self.circuits_unknown && resource.is_of_circuits();
        self.can_be_held(resource) && !self.reserved.contains(resource) && !unknown
    }

    /// Returns true if a plan that uses it already can go on with it, as far as is known.
    fn can_be_held(&self, resource: &Resource) -> bool {
        !self.holders.contains_key(resource) && !self.has_failed(resource)
    }

    /// Records whether the circuits that the circuit switch holds are known. Until then none of its ports and
    /// splitters is allocated to a new request, and other fabrics serve those that do not wait.
    pub fn set_circuits_known(&mut self, known: bool) {
        self.circuits_unknown = !known;
    }

    /// Returns the reason why no circuit is allocated now, whatever is free: something is not known yet.
    #[must_use]
    pub fn circuits_wait_for(&self) -> Option<&'static str> {
        if self.circuits_unknown {
            return Some(
                "the circuit switch has not said which circuits it holds: the manager's log says why",
            );
        }
        self.uses_unknown
            .then_some("agents have not said yet what their transfers use: wait for them to come back")
    }

    /// Records whether the resources that transfers use are known. Until then nothing is allocated to a new
    /// request, and fabrics that hold nothing serve those that do not wait.
    pub fn set_uses_known(&mut self, known: bool) {
        self.uses_unknown = !known;
    }

    /// Records the family of a host's address: a packet of it goes to groups of the same one only.
    pub fn set_ipv6(&mut self, host: HostId, is_ipv6: bool) {
        if is_ipv6 {
            self.of_ipv6.insert(host);
        } else {
            self.of_ipv6.remove(&host);
        }
    }

    /// Returns true if a host's address is of IPv6, as far as is known.
    #[must_use]
    pub fn is_ipv6(&self, host: HostId) -> bool {
        self.of_ipv6.contains(&host)
    }

    /// The plan that holds `resource`.
    #[must_use]
    pub fn holder(&self, resource: &Resource) -> Option<PlanId> {
        self.holders.get(resource).copied()
    }

    /// Returns the place where the search among equal resources begins.
    #[must_use]
    pub fn turn(&self) -> u64 {
        self.turn
    }

    /// Sets where to begin the search, when what moved it on is undone.
    pub(crate) fn set_turn(&mut self, turn: u64) {
        self.turn = turn;
    }

    /// The plans in force, in the order of their numbers.
    pub fn running(&self) -> impl Iterator<Item = (PlanId, &Running)> {
        self.running.iter().map(|(id, running)| (*id, running))
    }

    /// The plan of this number, if it is in force.
    #[must_use]
    pub fn get(&self, id: PlanId) -> Option<&Running> {
        self.running.get(&id)
    }

    /// Puts a plan in force. Gives whether that was possible: it is not if the number is in use or a
    /// resource is not free, and then nothing has changed.
    #[must_use]
    pub fn hold(&mut self, id: PlanId, group: Group, plan: Plan) -> bool {
        !plan.resources.iter().any(|resource| self.reserved.contains(resource))
            && self.hold_reserved(id, group, plan)
    }

    /// As [`NetworkState::hold`], by the holder for whom its resources were
    /// [reserved](NetworkState::reserve): they are reserved no more. Where the plan cannot be held they stay
    /// reserved, since its holder uses them until it hears so.
    #[must_use]
    pub fn hold_reserved(&mut self, id: PlanId, group: Group, plan: Plan) -> bool {
        if self.running.contains_key(&id) || !plan.resources.iter().all(|held| self.can_be_held(held)) {
            return false;
        }
        plan.resources.iter().for_each(|resource| {
            self.reserved.remove(resource);
        });
        self.enter(id, Running { group, plan });
        self.turn = self.turn.wrapping_add(1);
        true
    }

    fn enter(&mut self, id: PlanId, running: Running) {
        for resource in &running.plan.resources {
            self.holders.insert(*resource, id);
            self.numbers.insert(resource);
        }
        if !self.quiet.contains(&id) {
            self.keep_company(&running, true);
        }
        self.running.insert(id, running);
    }

    /// Ends a plan; what it held is free again.
    pub fn release(&mut self, id: PlanId) -> Option<Running> {
        let running = self.leave(id)?;
        self.quiet.remove(&id);
        Some(running)
    }

    fn leave(&mut self, id: PlanId) -> Option<Running> {
        let running = self.running.remove(&id)?;
        for resource in &running.plan.resources {
            self.holders.remove(resource);
            self.numbers.remove(resource);
        }
        if let Some(at) = self.ends.remove(&id) {
            self.by_end.remove(&(running.plan.fabric, at, id));
        }
        if !self.quiet.contains(&id) {
            self.keep_company(&running, false);
        }
        Some(running)
    }

    /// Counts a plan at its hosts, or counts it no more.
    fn keep_company(&mut self, Running { group, plan }: &Running, comes: bool) {
        if plan.channel.own_rate().is_some() {
            return;
        }
        for host in group.hosts() {
            let plans = self.company.entry(host).or_default();
            *plans = if comes { plans.saturating_add(1) } else { plans.saturating_sub(1) };
            if *plans == 0 {
                self.company.remove(&host);
            }
        }
    }

    /// The most transfers that share the link of one of the group's hosts with one that begins now.
    #[must_use]
    pub fn company_of(&self, group: &Group) -> u32 {
        group.hosts().filter_map(|host| self.company.get(&host)).copied().max().unwrap_or(0)
    }

    /// A plan that runs carries next to nothing, such as a stream of messages: no other plan's share is less
    /// for it.
    pub fn set_quiet(&mut self, id: PlanId) {
        if let Some(running) = self.running.get(&id).cloned()
            && self.quiet.insert(id)
        {
            self.keep_company(&running, false);
        }
    }

    /// A plan that runs will end then, as far as that is estimated.
    pub fn expect_end(&mut self, id: PlanId, at: Time) {
        let Some(fabric) = self.running.get(&id).map(|running| running.plan.fabric) else { return };
        if let Some(before) = self.ends.insert(id, at) {
            self.by_end.remove(&(fabric, before, id));
        }
        self.by_end.insert((fabric, at, id));
    }

    /// The plans of a fabric that end after `now`, the first that ends first. Of one that should have ended
    /// by now nothing is known.
    pub(crate) fn ends_of(
        &self,
        fabric: FabricName,
        now: Time,
    ) -> impl Iterator<Item = (Time, PlanId)> + use<'_> {
        let from = (fabric, Time(now.0.saturating_add(1)), PlanId(0));
        let all = self.by_end.range(from..=(fabric, Time(u64::MAX), PlanId(u64::MAX)));
        all.map(|(_, at, id)| (*at, *id))
    }

    /// Takes a plan out for a moment.
    pub fn lift(&mut self, id: PlanId) -> Option<Lifted> {
        let end = self.ends.get(&id).copied();
        Some(Lifted { id, running: self.leave(id)?, end })
    }

    /// Puts a plan back, whatever has become of what it holds.
    pub fn put_back(&mut self, Lifted { id, running, end }: Lifted) {
        self.enter(id, running);
        if let Some(at) = end {
            self.expect_end(id, at);
        }
    }

    /// The source of a plan in force has another number from now on.
    pub fn renumber_source(&mut self, id: PlanId, source: HostId) {
        if let Some(mut lifted) = self.lift(id) {
            lifted.running.group.source = source;
            self.put_back(lifted);
        }
    }

    /// Remembers a plan that has ended and that devices still hold: the same group can have it again as it
    /// is.
    pub fn keep(&mut self, running: Running) {
        self.kept.push(running);
    }

    /// The plans that devices hold and no transfer does, oldest first.
    pub fn kept(&self) -> impl Iterator<Item = &Running> {
        self.kept.iter()
    }

    /// Forgets the oldest of the kept plans.
    pub fn forget_oldest(&mut self) -> Option<Running> {
        (!self.kept.is_empty()).then(|| self.kept.remove(0))
    }

    /// Forgets the kept plans that have a resource in common with `plan`, which is about to be set up.
    pub fn displace(&mut self, plan: &Plan) -> Vec<Running> {
        let shares = |running: &mut Running| {
            running.plan.resources.iter().any(|resource| plan.resources.contains(resource))
        };
        self.kept.extract_if(.., shares).collect()
    }

    /// The kept plan of a fabric for exactly this group, for packets of applications or for a transfer, if
    /// all of it is free and works.
    pub(crate) fn ready(&self, fabric: FabricName, group: &Group, any_packets: bool) -> Option<&Plan> {
        let fits = |running: &&Running| {
            running.plan.fabric == fabric
                && running.group == *group
                && running.plan.suits(any_packets)
                && running.plan.resources.iter().all(|resource| self.is_free(resource))
                && !running.plan.uses.iter().any(|part| self.is_out(&Failure::Part(part)))
        };
        self.kept.iter().rev().find(fits).map(|running| &running.plan)
    }

    /// Keeps these from being lent until [`NetworkState::hold_reserved`] or
    /// [`NetworkState::end_reservations`].
    pub fn reserve(&mut self, resources: impl IntoIterator<Item = Resource>) {
        self.reserved.extend(resources);
    }

    /// Ends all reservations that are left: their resources can be allocated.
    pub fn end_reservations(&mut self) {
        self.reserved.clear();
    }

    /// Takes a resource or part out of use; a plan that holds it keeps it until that is released.
    pub fn take_out(&mut self, what: Failure, cause: Cause) {
        self.out.insert((what, cause));
    }

    /// This is no reason any more for it to be out of use.
    pub fn take_back(&mut self, what: Failure, cause: Cause) {
        self.out.remove(&(what, cause));
    }

    /// Returns true if there is any reason for it to be out of use.
    #[must_use]
    pub fn is_out(&self, what: &Failure) -> bool {
        self.out.range((*what, Cause::Broken)..=(*what, Cause::Drained)).next().is_some()
    }

    /// All that is out of use, and for which of the reasons.
    pub fn out(&self) -> impl Iterator<Item = (Failure, Cause)> {
        self.out.iter().copied()
    }

    /// Records whether something may have failed: fabrics take it only where nothing else is free.
    pub fn set_doubtful(&mut self, what: Failure, doubtful: bool) {
        if doubtful {
            self.doubtful.insert(what);
        } else {
            self.doubtful.remove(&what);
        }
    }

    /// Returns true if a resource may have failed.
    #[must_use]
    pub fn is_doubtful(&self, resource: &Resource) -> bool {
        self.doubtful.contains(&Failure::Resource(*resource))
    }

    /// Takes out the kept plans that a failure touches.
    pub fn forget_touched(&mut self, failure: &Failure) -> Vec<Running> {
        self.kept.extract_if(.., |running| running.plan.is_touched(&running.group, failure)).collect()
    }

    /// Takes a resource that is broken out of use.
    pub fn fail(&mut self, resource: Resource) {
        self.take_out(Failure::Resource(resource), Cause::Broken);
    }

    /// Returns true if a resource is out of use.
    #[must_use]
    pub fn has_failed(&self, resource: &Resource) -> bool {
        self.is_out(&Failure::Resource(*resource))
    }

    /// The resources of a row from one number to another that can be lent now, in rising order.
    pub(crate) fn free_of(&self, row: Row, first: u32, end: u32) -> impl Iterator<Item = Resource> + use<'_> {
        self.numbers
            .free(row, first, end)
            .map(move |number| row.at(number))
            .filter(|found| self.is_free(found))
    }

    /// Counts the places of each spine's table that plans hold.
    pub(crate) fn entries_held(&self) -> impl Iterator<Item = (u32, u64)> + use<'_> {
        self.numbers.entries()
    }

    /// Takes a part of a network that is broken out of use; the plans that use it stay until they are planned
    /// anew.
    pub fn fail_part(&mut self, part: Part) {
        self.take_out(Failure::Part(part), Cause::Broken);
    }

    /// The parts of a fabric's network that are out of use, in rising order.
    pub fn failed_parts(&self, fabric: FabricName) -> impl Iterator<Item = Part> {
        let mut last = None;
        self.out.iter().filter_map(move |(what, _)| match what {
            Failure::Part(part) if part.fabric() == fabric && last.replace(*part) != Some(*part) => {
                Some(*part)
            }
            _ => None,
        })
    }

    /// The same network, with the same failures, where nothing is held.
    #[must_use]
    pub fn idle(&self) -> Self {
        NetworkState {
            out: self.out.clone(),
            doubtful: self.doubtful.clone(),
            turn: self.turn,
            ..NetworkState::default()
        }
    }

    /// A resource that was broken works again.
    pub fn repair(&mut self, resource: &Resource) {
        self.take_back(Failure::Resource(*resource), Cause::Broken);
    }

    /// A part that was broken works again.
    pub fn repair_part(&mut self, part: &Part) {
        self.take_back(Failure::Part(*part), Cause::Broken);
    }
}
