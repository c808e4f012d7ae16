//! Fabrics: a fabric is a kind of network that makes plans for groups (Republic section III-B: fabrics are
//! plug-ins).
//!
//! A fabric is a pure function of the network's state. It never changes the state: the caller that accepts a
//! plan does, with [`NetworkState::hold`] and [`NetworkState::release`]. docs/howto/fabric.md describes how
//! to add one.

use crate::circuits::{Claim, Room};
use crate::fabric_name::FabricName;
use crate::network_state::{NetworkState, Running};
use crate::part_name::PartName;
use crate::plan::{Channel, DeviceCommand, Failure, Group, HostId, Plan, PlanId, Refusal, Resource};
use crate::request::Pending;
use alloc::collections::BTreeSet;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

/// Number up to which free things are counted: pools of addresses can have millions.
pub const COUNTED_MAX: u64 = 4_096;

/// Outcome for a running plan that a failure touched.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Replan {
    /// The plan.
    pub id: PlanId,
    /// Outcome for the plan.
    pub outcome: ReplanOutcome,
}

/// Consequence of a failure for a plan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ReplanOutcome {
    /// This plan takes its place.
    Replaced(Plan),
    /// There is no other plan.
    Lost(Refusal),
}

/// A kind of network that can carry transfers.
pub trait Fabric: fmt::Debug + Send {
    /// Its name in plans, settings and reports.
    fn name(&self) -> FabricName;

    /// Makes a plan that serves `group` from the free resources in `network`.
    ///
    /// # Errors
    /// It cannot: not now, or not ever.
    fn plan(&self, network: &NetworkState, group: &Group) -> Result<Plan, Refusal>;

    /// Returns what is free of the things that few of this fabric's paths can have at the same time, and what
    /// each of these groups would take of them; nothing for one that it cannot carry. A scheduler weighs the
    /// groups against each other with it, and asks for plans afterwards. The claims' volumes are 0.
    fn contest(&self, _network: &NetworkState, _groups: &[&Group]) -> Option<(Room, Vec<Option<Claim>>)> {
        None
    }

    /// Returns how much is free of each kind of thing that few of this fabric's paths can hold at the same
    /// time, by the name of the kind ([`Fabric::kind_of`]); of one kind at most [`COUNTED_MAX`].
    fn free(&self, _network: &NetworkState) -> Vec<(String, u64)> {
        Vec::new()
    }

    /// Returns the name of a resource's kind: any of one kind does for a path as well as another.
    fn kind_of(&self, resource: &Resource) -> String {
        resource.kind()
    }

    /// The running plans of this fabric that `failure` touches, in the order of their numbers, and what
    /// becomes of each. `network` knows of the failure already; new plans do not collide with each other.
    fn replan(&self, network: &NetworkState, failure: &Failure) -> Vec<Replan>;

    /// The running plans of this fabric that can be better now that something works again, and those better
    /// plans.
    fn improve(&self, _network: &NetworkState) -> Vec<(PlanId, Plan)> {
        Vec::new()
    }

    /// The plan of a transfer that runs already, from the channel that its source knows, for a manager that
    /// has restarted. `None` if the channel does not tell what the plan holds: then the transfer loses its
    /// path.
    fn adopt(&self, network: &NetworkState, group: &Group, channel: &Channel) -> Option<Plan>;

    /// Returns true if a plan that a transfer's source has kept for a manager that restarted can be this
    /// fabric's plan for the group: it uses the resources that it claims to hold, and nothing else. `false`
    /// where [`Fabric::adopt`] tells as much.
    fn vouches(&self, _group: &Group, _plan: &Plan) -> bool {
        false
    }

    /// Returns the resources that a device with this command has in use, no matter which manager sent it.
    fn resources_of(&self, _command: &DeviceCommand) -> Vec<Resource> {
        Vec::new()
    }

    /// Returns true if any number of its paths can be there at the same time, so that one may be granted for
    /// any length of time, without waiting for others.
    fn is_shared(&self) -> bool {
        false
    }

    /// Returns true if it has paths that carry any packets to their group address, and not those of transfers
    /// alone.
    fn carries_any_packets(&self) -> bool {
        false
    }

    /// Makes a plan for packets that applications send themselves: its channel is [`Channel::Multicast`].
    /// Asked of fabrics alone that carry any packets.
    ///
    /// # Errors
    /// As [`Fabric::plan`].
    fn plan_packets(&self, network: &NetworkState, group: &Group) -> Result<Plan, Refusal> {
        self.plan(network, group)
    }

    /// The plan of a stream of messages, which no transfer waits for: it takes nothing that transfers wait
    /// for. `None` where the fabric has no such paths.
    fn plan_stream(&self, network: &NetworkState, group: &Group) -> Option<Result<Plan, Refusal>> {
        self.is_shared().then(|| self.plan(network, group))
    }

    /// The plan by which a transfer that runs goes on when its group changes. `network` does not hold the old
    /// plan any more. The channel has to stay as it is; of one with labels that may be others, which are the
    /// source's business alone, and of one over trees the ways, which receivers are told anew.
    ///
    /// # Errors
    /// What the new group needs is not free, or the channel cannot stay.
    fn regroup(&self, network: &NetworkState, old: &Plan, group: &Group) -> Result<Plan, Refusal> {
        let cannot =
            || Refusal::Impossible(alloc::format!("a path of {} cannot change its group", old.fabric));
        self.adopt(network, group, &old.channel).ok_or_else(cannot)
    }

    /// Returns the likely reasons why these receivers were not reached over a plan: parts that the ways to
    /// all of them have in common and the ways to the others do not, the likeliest first. Empty where that is
    /// not known.
    fn suspects(
        &self,
        _network: &NetworkState,
        _group: &Group,
        _plan: &Plan,
        _unreached: &BTreeSet<HostId>,
    ) -> Vec<Failure> {
        Vec::new()
    }

    /// Returns everything that is out of use while a part of this name is, if the network has one.
    fn part(&self, _name: PartName) -> Vec<Failure> {
        Vec::new()
    }

    /// The parts that have names, in words such as `splitter:0 to splitter:3`.
    fn part_names(&self) -> Vec<String> {
        Vec::new()
    }

    /// Returns the commands that devices keep all the time while the fabric is in use, as far as nothing in
    /// `network` prevents it.
    fn standing_commands(&self, _network: &NetworkState) -> Vec<DeviceCommand> {
        Vec::new()
    }
}

/// A group that a plan is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked<'a> {
    pub(crate) group: &'a Group,
    /// True for packets of applications, false for a transfer.
    pub(crate) any_packets: bool,
}

impl<'a> Asked<'a> {
    pub(crate) fn by(request: &'a Pending) -> Self {
        Asked { group: &request.group, any_packets: request.wish.any_packets }
    }

    pub(crate) fn transfer(group: &'a Group) -> Self {
        Asked { group, any_packets: false }
    }

    /// The fabric's plan for it.
    pub(crate) fn plan(self, fabric: &dyn Fabric, network: &NetworkState) -> Result<Plan, Refusal> {
        match self.any_packets {
            true => fabric.plan_packets(network, self.group),
            false => fabric.plan(network, self.group),
        }
    }
}

/// Replans the touched plans of one fabric, one after the other, each with what the others leave free.
pub(crate) fn replan_each(
    name: FabricName,
    network: &NetworkState,
    failure: &Failure,
    plan: impl Fn(&NetworkState, &Running) -> Result<Plan, Refusal>,
) -> Vec<Replan> {
    let is_touched =
        |running: &Running| running.plan.fabric == name && running.plan.is_touched(&running.group, failure);
    let touched: Vec<PlanId> =
        network.running().filter(|(_, running)| is_touched(running)).map(|(id, _)| id).collect();
    if touched.is_empty() {
        return Vec::new();
    }
    let mut draft = network.clone();
    let mut outcome_of = |id| {
        let old = draft.release(id)?;
        if matches!(failure, Failure::Host(_)) {
            return Some(ReplanOutcome::Lost(Refusal::Impossible("the source is down".into())));
        }
        Some(match plan(&draft, &old) {
            Ok(plan) => {
                let held = draft.hold(id, old.group, plan.clone());
                assert!(held, "a fabric plans with what is free");
                ReplanOutcome::Replaced(plan)
            }
            Err(refusal) => ReplanOutcome::Lost(refusal),
        })
    };
    touched.into_iter().filter_map(|id| Some(Replan { id, outcome: outcome_of(id)? })).collect()
}
