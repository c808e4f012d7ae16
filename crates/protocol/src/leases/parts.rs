//! Parts of networks that are not lent: what is suspected to be dead, because transfers over it reached no
//! receiver, and what an operator has taken out.
//!
//! A source that did not reach receivers says so, and so do the ports of racks that should have light and
//! have none. What the ways to those receivers have in common, and the ways to the others do not, is
//! suspected. The most suspected part rests: it is not lent, and the next transfer takes another one. The
//! others are doubtful: they are taken last. A rest ends by itself, and grows each time that the part is
//! found dead again; then the part is doubtful, so that only those try it who have nothing else. A transfer
//! that reaches all receivers over a part acquits it.

use super::words::{Drained, Output, ReleaseReason, RequestKey, Suspect};
use super::{Leases, RecordKey};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use polycast_planning::estimate::Learned;
use polycast_planning::{Cause, Failure, HostId, PartName, PlanId, Running};
use polycast_types::{Duration, Time};

/// Time that a part rests at first, and the longest.
const REST: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(600));
/// A part whose rest ended this long ago, and of which nothing was heard since, is as good as any other.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(3_600);
/// Maximum number of listed splitters.
const SPLITTERS_MAX: u32 = 4_096;
/// Maximum number of parts that are suspected at the same time.
pub(super) const SUSPECTED_MAX: usize = 4_096;
/// Maximum number of parts that are taken out by name, and of hosts that are drained.
pub(super) const DRAINED_MAX: usize = 4_096;

/// Report of a source on its path.
#[derive(Clone, Debug)]
pub(super) struct Fared {
    /// Receivers that it has not reached.
    pub(super) unreached: BTreeSet<HostId>,
    /// Set if it has reached all receivers, with everything.
    reached_all: bool,
    /// Duration, if it says something about the fabric.
    took: Option<Duration>,
}

/// Parts that are suspected, and parts that are taken out.
#[derive(Debug, Default)]
pub(super) struct Parts {
    suspects: BTreeMap<Failure, Suspect>,
    drained: BTreeSet<PartName>,
    /// Names of the hosts that are drained.
    pub(super) hosts: BTreeSet<String>,
    /// Earliest time when a suspect ends its rest or is forgotten.
    look_at: Option<Time>,
}

impl Parts {
    pub(super) fn deadline(&self) -> Option<Time> {
        self.look_at
    }

    pub(super) fn is_empty(&self) -> bool {
        self.suspects.is_empty() && self.drained.is_empty() && self.hosts.is_empty()
    }

    pub(super) fn list(&self) -> (Vec<PartName>, Vec<Suspect>) {
        (self.drained.iter().copied().collect(), self.suspects.values().cloned().collect())
    }

    fn look_again(&mut self) {
        let due = |suspect: &Suspect| {
            if suspect.is_resting { suspect.until } else { suspect.until + FORGOTTEN_AFTER }
        };
        self.look_at = self.suspects.values().map(due).min();
    }

    pub(super) fn check(&self) {
        assert!(self.suspects.len() <= SUSPECTED_MAX, "{} parts are suspected", self.suspects.len());
        assert!(self.drained.len() <= DRAINED_MAX, "{} parts are taken out", self.drained.len());
        assert!(self.hosts.len() <= DRAINED_MAX, "{} hosts are drained", self.hosts.len());
        for (what, suspect) in &self.suspects {
            assert_eq!(*what, suspect.what, "a suspect is known by its own name");
            assert!(self.look_at.is_some(), "a suspect is never looked at again");
            assert!(!suspect.is_resting || suspect.rests > 0, "{what:?} rests for no reason");
        }
    }
}

impl Leases {
    /// Names of the parts that are taken out, and the parts that are suspected.
    #[must_use]
    pub fn parts(&self) -> (Vec<PartName>, Vec<Suspect>) {
        self.parts.list()
    }

    /// The splitters, how each stands, and which path has it.
    #[must_use]
    pub fn splitters(&self) -> Vec<(u32, &'static str, Option<PlanId>)> {
        let numbers =
            (0..SPLITTERS_MAX).map(|number| (number, self.fabrics.part(PartName::Splitter(number))));
        let there = numbers.map_while(|(number, found)| Some((number, found.ok()?)));
        there.map(|(number, what)| self.splitter(number, &what)).collect()
    }

    fn splitter(&self, number: u32, what: &[Failure]) -> (u32, &'static str, Option<PlanId>) {
        let holder = what.iter().find_map(|what| match what {
            Failure::Resource(resource) => self.network.holder(resource),
            Failure::Part(part) => {
                let mut leases = self.leases.iter();
                leases.find(|(_, lease)| lease.grant.plan.uses.contains(part)).map(|(id, _)| *id)
            }
            _ => None,
        });
        let causes: BTreeSet<Cause> =
            self.network.out().filter(|(out, _)| what.contains(out)).map(|(_, cause)| cause).collect();
        let state = match (causes.last(), holder) {
            (Some(Cause::Drained), _) => "drained",
            (Some(Cause::Rests), _) => "rests",
            (Some(Cause::Broken), _) => "broken",
            (None, Some(_)) => "lent",
            (None, None) => "free",
        };
        (number, state, holder)
    }

    /// Returns the parts that are out of use, with the cause.
    pub fn out_of_use(&self) -> impl Iterator<Item = (Failure, Cause)> {
        self.network.out()
    }

    /// Returns the correction factors of the fabrics' estimates.
    pub fn learned(&self) -> impl Iterator<Item = &Learned> {
        self.fabrics.learned()
    }

    /// A source says how its path has fared. What follows from it follows when the path comes back.
    pub(super) fn fared(
        &mut self,
        request: &RequestKey,
        plan: PlanId,
        unreached: &[String],
        reached_all: bool,
        took: Option<Duration>,
    ) {
        if self.by_request.get(request) != Some(&plan) {
            return;
        }
        let group = self.network.get(plan).map(|running| &running.group);
        let is_ours = |host: &HostId| group.is_some_and(|group| group.receivers.contains(host));
        let hosts = unreached.iter().filter_map(|name| self.members.number(name)).filter(is_ours);
        let fared = Fared { unreached: hosts.collect(), reached_all, took };
        if let Some(lease) = self.leases.get_mut(&plan) {
            lease.fared = Some(fared);
        }
    }

    pub(super) fn release(&mut self, now: Time, request: &RequestKey, plan: PlanId) {
        // One that is not known was released before, or has expired.
        if self.by_request.get(request) != Some(&plan) {
            return;
        }
        // Whom a path has lost that has moved since tells nothing of what it is now.
        let lease = self.leases.get(&plan).filter(|lease| !lease.moved);
        let judged = lease.and_then(|lease| lease.fared.clone()).zip(self.network.get(plan).cloned());
        self.learn(now, plan);
        self.end(plan, ReleaseReason::Released);
        let Some((Fared { unreached, reached_all, .. }, Running { group, plan })) = judged else { return };
        if !unreached.is_empty() {
            let suspects = self.fabrics.suspects(&self.network, &group, &plan, &unreached);
            let (lost, all) = (unreached.len(), group.receivers.len());
            self.suspect(
                now,
                suspects,
                &format!("a transfer over it did not reach {lost} of {all} receivers"),
            );
        } else if reached_all && !self.parts.suspects.is_empty() {
            let resources = plan.resources.iter().copied().map(Failure::Resource);
            let used: Vec<Failure> = resources.chain(plan.uses.iter().map(Failure::Part)).collect();
            self.acquit(&used);
        }
    }

    /// A path that goes back tells how good its estimate was.
    fn learn(&mut self, now: Time, plan: PlanId) {
        let Some(lease) = self.leases.get(&plan).filter(|lease| !lease.moved) else { return };
        let fared = lease.fared.as_ref().filter(|fared| fared.unreached.is_empty());
        let Some((took, assumed)) = fared.and_then(|fared| fared.took).zip(lease.assumed) else { return };
        // Whatever its holder says: it cannot have taken longer than it was lent.
        let took = took.min(now.since(lease.granted_at));
        if self.fabrics.learn(now, lease.grant.plan.fabric, assumed, took) {
            self.touch(RecordKey::Learned);
        }
    }

    /// Receivers of a path in use have no light: it moves, without what that may be due to.
    pub(super) fn unlit(&mut self, now: Time, plan: PlanId, hosts: &BTreeSet<HostId>) {
        let Some(Running { group, plan }) = self.network.get(plan).cloned() else { return };
        let suspects = self.fabrics.suspects(&self.network, &group, &plan, hosts);
        let why =
            format!("no light came through it to {} of {} receivers", hosts.len(), group.receivers.len());
        self.suspect(now, suspects, &why);
    }

    /// The most suspected of these rests, and the others are doubtful.
    fn suspect(&mut self, now: Time, suspects: Vec<Failure>, why: &str) {
        let times = |what: &Failure| self.parts.suspects.get(what).map_or(0, |suspect| suspect.times);
        // Of equals the first, which is the likeliest.
        let Some(worst) = suspects.iter().rev().max_by_key(|what| times(what)).copied() else { return };
        for what in suspects {
            if !self.parts.suspects.contains_key(&what) && self.parts.suspects.len() >= SUSPECTED_MAX {
                continue;
            }
            let fresh =
                || Suspect { what, times: 0, rests: 0, until: now, is_resting: false, why: why.into() };
            let suspect = self.parts.suspects.entry(what).or_insert_with(fresh);
            suspect.times = suspect.times.saturating_add(1);
            suspect.why = why.into();
            if what == worst {
                let rest = Duration(REST.0.0 << suspect.rests.min(8)).min(REST.1);
                suspect.rests = suspect.rests.saturating_add(1);
                (suspect.until, suspect.is_resting) = (now + rest, true);
                self.outputs.push_back(Output::Suspected { suspect: suspect.clone() });
            } else if !suspect.is_resting {
                suspect.until = now;
            }
            self.network.set_doubtful(what, true);
        }
        self.touch(RecordKey::Parts);
        self.parts.look_again();
        if self.parts.suspects.contains_key(&worst) {
            self.leave_out(&[worst], Cause::Rests);
        }
    }

    /// These have shown that they work.
    pub(super) fn acquit(&mut self, what: &[Failure]) {
        let mut acquitted = false;
        for failure in what {
            if self.parts.suspects.remove(failure).is_some() {
                acquitted = true;
                self.network.set_doubtful(*failure, false);
                self.network.take_back(*failure, Cause::Rests);
                self.outputs.push_back(Output::Acquitted { what: *failure });
            }
        }
        if acquitted {
            self.touch(RecordKey::Parts);
            self.parts.look_again();
            self.undecided = true;
        }
    }

    /// Ends rests that are over.
    pub(super) fn end_rests(&mut self, now: Time) {
        if self.parts.look_at.is_none_or(|at| at > now) {
            return;
        }
        let mut back = Vec::new();
        for suspect in self.parts.suspects.values_mut().filter(|suspect| suspect.until <= now) {
            if core::mem::take(&mut suspect.is_resting) {
                back.push(suspect.what);
            }
        }
        let is_forgotten = |suspect: &Suspect| !suspect.is_resting && suspect.until + FORGOTTEN_AFTER <= now;
        let forgotten: Vec<Failure> = self
            .parts
            .suspects
            .values()
            .filter(|suspect| is_forgotten(suspect))
            .map(|suspect| suspect.what)
            .collect();
        self.acquit(&forgotten);
        self.touch(RecordKey::Parts);
        self.parts.look_again();
        self.bring_back(&back, Cause::Rests);
    }

    /// Takes a part out of use until it is taken back: paths in use that need it move. Taking it back ends
    /// its rest too.
    pub(super) fn drain(&mut self, part: PartName, is_out: bool) -> Result<Drained, String> {
        let failures = self.fabrics.part(part)?;
        if is_out && !self.parts.drained.contains(&part) && self.parts.drained.len() >= DRAINED_MAX {
            return Err(format!("{DRAINED_MAX} parts are taken out already: take some back with undrain"));
        }
        let is_new = if is_out { self.parts.drained.insert(part) } else { self.parts.drained.remove(&part) };
        self.touch(RecordKey::Parts);
        if is_out {
            let (moved, ended) = self.leave_out(&failures, Cause::Drained);
            return Ok(Drained { is_new, moved, ended });
        }
        let was_resting = failures.iter().any(|what| self.parts.suspects.contains_key(what));
        self.acquit(&failures);
        let still = self.drained_failures();
        let back: Vec<Failure> = failures.into_iter().filter(|what| !still.contains(what)).collect();
        self.bring_back(&back, Cause::Drained);
        Ok(Drained { is_new: is_new || was_resting, moved: 0, ended: 0 })
    }

    /// Returns the failures of the parts that operators have taken out of use.
    fn drained_failures(&self) -> BTreeSet<Failure> {
        // Other settings may not have such a part any more.
        self.parts.drained.iter().flat_map(|part| self.fabrics.part(*part).unwrap_or_default()).collect()
    }

    /// Takes these out of use; gives how many paths have moved and how many have ended.
    fn leave_out(&mut self, failures: &[Failure], cause: Cause) -> (usize, usize) {
        for failure in failures {
            self.network.take_out(*failure, cause);
        }
        for failure in failures {
            for Running { plan, .. } in self.network.forget_touched(failure) {
                self.touch(RecordKey::Kept);
                self.outputs.push_back(Output::Forgotten { plan });
            }
        }
        self.replan(failures)
    }

    fn bring_back(&mut self, failures: &[Failure], cause: Cause) {
        for failure in failures {
            self.network.take_back(*failure, cause);
        }
        if failures.is_empty() {
            return;
        }
        for (id, plan) in self.fabrics.improve(&self.network) {
            self.replace(id, plan, None);
        }
        self.undecided = true;
    }

    /// Takes over what an earlier manager has written of parts.
    pub(super) fn restore_parts(
        &mut self,
        drained: Vec<PartName>,
        suspects: Vec<Suspect>,
        hosts: BTreeSet<String>,
    ) {
        self.parts.hosts = hosts.into_iter().take(DRAINED_MAX).collect();
        self.parts.drained = drained.into_iter().take(DRAINED_MAX).collect();
        for suspect in suspects.into_iter().take(SUSPECTED_MAX) {
            let what = suspect.what;
            self.network.set_doubtful(what, true);
            let suspect = Suspect { rests: suspect.rests.max(u32::from(suspect.is_resting)), ..suspect };
            if suspect.is_resting {
                self.network.take_out(what, Cause::Rests);
            }
            self.parts.suspects.insert(what, suspect);
        }
        for failure in self.drained_failures() {
            self.network.take_out(failure, Cause::Drained);
        }
        self.parts.look_again();
    }
}
