//! The fabrics of one network, in their order of preference. What fabrics there are, and by which names plans
//! mean them, is said here and nowhere else.

use crate::circuits::{Claim, Room};
use crate::estimate::{Estimate, Estimator, Learned};
use crate::fabric::{Asked, Fabric, Replan, ReplanOutcome};
use crate::fabric_name::FabricName;
use crate::network_state::{Cause, NetworkState, Running};
use crate::part_name::PartName;
use crate::plan::{Channel, DeviceCommand, Failure, Group, HostId, Plan, PlanId, Refusal, Resource};
use crate::request::{Pending, Wish};
use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use polycast_types::{Duration, Time};
use serde::{Deserialize, Serialize};

/// A fabric that was better, and why it does not carry a transfer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PassedOver {
    /// Fabric that was passed over.
    pub fabric: FabricName,
    /// Reason, in a sentence.
    pub why: String,
}

/// Parts that are tried one by one, and that are named in one sentence.
const DRAINED_TRIED_MAX: usize = 16;
const DRAINED_NAMED_MAX: usize = 8;

/// A refusal with the parts that an operator has taken out, where a plan is missing because of them.
pub(crate) fn explained(
    refusal: Refusal,
    fabric: &dyn Fabric,
    network: &NetworkState,
    asked: Asked<'_>,
) -> Refusal {
    match (refusal, drained_in_the_way(fabric, network, asked)) {
        (Refusal::Busy(why), Some(parts)) => Refusal::Busy(format!("{why} ({parts})")),
        (Refusal::Impossible(why), Some(parts)) => Refusal::Impossible(format!("{why} ({parts})")),
        (other, _) => other,
    }
}

/// Names the parts that have to come back for a plan, where operators have taken some out.
fn drained_in_the_way(fabric: &dyn Fabric, network: &NetworkState, asked: Asked<'_>) -> Option<String> {
    let drained: Vec<Failure> =
        network.out().filter(|(_, cause)| *cause == Cause::Drained).map(|(what, _)| what).collect();
    let can_with = |parts: &[Failure]| {
        let mut network = network.clone();
        parts.iter().for_each(|part| network.take_back(*part, Cause::Drained));
        asked.plan(fabric, &network).is_ok()
    };
    if drained.is_empty() || !can_with(&drained) {
        return None;
    }
    let tried = drained.iter().take(DRAINED_TRIED_MAX).filter(|part| can_with(&[**part]));
    let enough: Vec<Failure> = tried.copied().collect();
    let (parts, how) = match &enough[..] {
        [] => (&drained, "are drained, and all of them are needed"),
        [_] => (&enough, "is drained, and would do"),
        _ => (&enough, "are drained, and any of them would do"),
    };
    let mut names: Vec<String> =
        parts.iter().filter_map(PartName::of).map(|name| format!("{name}")).collect();
    let more = names.len().saturating_sub(DRAINED_NAMED_MAX);
    names.truncate(DRAINED_NAMED_MAX);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    (!names.is_empty()).then(|| format!("{}{more} {how}", names.join(", ")))
}

/// The fabrics of a network.
#[derive(Debug)]
pub struct Fabrics {
    /// Best first.
    fabrics: Vec<Box<dyn Fabric>>,
    /// Rule for groups that wait for a fabric that is in use.
    patience: Patience,
    /// True if the fabric by which the object arrives earliest is chosen, and not the first in their order.
    by_time: bool,
    /// Estimator of transfers' times, where those are requested.
    estimator: Option<Estimator>,
}

/// Rule by which a group waits for a fabric that is in use though another one is free.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Patience {
    /// Never.
    #[default]
    Never,
    /// For one by which the object arrives earlier, as far as is known.
    Gains,
    /// For the first in the order of preference that could carry it.
    Best,
}

impl Fabrics {
    /// These fabrics, in this order of preference.
    #[must_use]
    pub fn new(fabrics: Vec<Box<dyn Fabric>>) -> Self {
        Fabrics { fabrics, patience: Patience::default(), by_time: false, estimator: None }
    }

    /// A group waits for the best fabric that could carry it, instead of taking the next one that is free.
    #[must_use]
    pub fn waiting_for_the_best(self) -> Self {
        Fabrics { patience: Patience::Best, ..self }
    }

    /// Transfers are estimated.
    #[must_use]
    pub fn estimating(self, estimator: Estimator) -> Self {
        Fabrics { estimator: Some(estimator), ..self }
    }

    /// A request goes to the fabric by which the object is there earliest, as far as is estimated; of those
    /// that are about equal to the first. It waits for one that is in use where that gains time, if `waits`.
    #[must_use]
    pub fn choosing_by_time(self, waits: bool) -> Self {
        let patience = if waits { Patience::Gains } else { Patience::Never };
        let estimator = Some(self.estimator.unwrap_or_default());
        Fabrics { patience, by_time: true, estimator, ..self }
    }

    /// Returns true if fabrics are chosen by time.
    #[must_use]
    pub fn chooses_by_time(&self) -> bool {
        self.by_time
    }

    /// Returns the assumed time that `bytes` bytes take over a plan that `network` does not hold yet, and the
    /// expected time until they are there.
    #[must_use]
    pub fn estimate(
        &self,
        now: Option<Time>,
        network: &NetworkState,
        plan: &Plan,
        group: &Group,
        bytes: u64,
    ) -> Option<(Estimate, Duration)> {
        let estimator = self.estimator.as_ref()?;
        let is_ready = [false, true]
            .into_iter()
            .any(|any_packets| network.ready(plan.fabric, group, any_packets) == Some(plan));
        let assumed = estimator.assume(network, plan, group, bytes, is_ready);
        Some((assumed, estimator.expect(now, plan.fabric, assumed)))
    }

    /// The least that any plan of one of these takes for a group ([`Estimator::least`]); nothing where there
    /// is none.
    pub(crate) fn least_of(
        &self,
        now: Option<Time>,
        fabrics: &[&dyn Fabric],
        group: &Group,
    ) -> Option<Duration> {
        let estimator = self.estimator.as_ref()?;
        fabrics.iter().map(|fabric| estimator.least(now, fabric.name(), group)).min()
    }

    /// A transfer over a fabric has taken so long from its grant to its end ([`Estimator::learn`]).
    pub fn learn(&mut self, now: Time, fabric: FabricName, assumed: Estimate, took: Duration) -> bool {
        self.named(&fabric).is_some()
            && self.estimator.as_mut().is_some_and(|estimator| estimator.learn(now, fabric, assumed, took))
    }

    /// Returns the learned factors, fabric by fabric.
    pub fn learned(&self) -> impl Iterator<Item = &Learned> {
        self.estimator.iter().flat_map(Estimator::learned)
    }

    /// Goes on with what an earlier manager has learned of the fabrics that this network has.
    ///
    /// # Errors
    /// As [`Estimator::resume`].
    pub fn resume(&mut self, now: Time, mut learned: Vec<Learned>) -> Result<(), String> {
        learned.retain(|learned| self.named(&learned.fabric).is_some());
        self.estimator.as_mut().map_or(Ok(()), |estimator| estimator.resume(now, learned))
    }

    /// Their names, best first.
    pub fn names(&self) -> impl Iterator<Item = FabricName> {
        self.fabrics.iter().map(|fabric| fabric.name())
    }

    /// The fabric of a name, if this network has one. Names come from plans and settings: there may be none.
    pub(crate) fn named(&self, name: &str) -> Option<&dyn Fabric> {
        self.fabrics.iter().map(AsRef::as_ref).find(|fabric| fabric.name() == name)
    }

    /// The plan of the first fabric that has one, whatever its estimate.
    ///
    /// # Errors
    /// None has: [`Refusal::Busy`] if one of them may have later.
    pub fn plan(&self, network: &NetworkState, group: &Group) -> Result<Plan, Refusal> {
        self.plan_among(network, group, self.fabrics.iter().map(AsRef::as_ref))
    }

    /// Contest of these requests for the first fabric that has one ([`Fabric::contest`]). Those that may not
    /// go there have no part in it.
    pub(crate) fn contest(
        &self,
        network: &NetworkState,
        requests: &[&Pending],
    ) -> Option<(Room, Vec<Option<Claim>>)> {
        let groups: Vec<&Group> = requests.iter().map(|request| &request.group).collect();
        let contest = |fabric: &dyn Fabric| Some((fabric.name(), fabric.contest(network, &groups)?));
        let (name, (room, claims)) = self.fabrics.iter().map(AsRef::as_ref).find_map(contest)?;
        let claims = requests.iter().zip(claims).map(|(request, claim)| {
            let volume = u128::from(request.remaining_bytes) * request.group.receivers.len() as u128;
            let wish = request.wish;
            let is_elsewhere = wish.fabric.is_some_and(|fabric| fabric != name)
                || wish.any_packets && !self.named(&name).is_some_and(Fabric::carries_any_packets);
            claim.filter(|_| !is_elsewhere).map(|claim| Claim { volume, ..claim })
        });
        Some((room, claims.collect()))
    }

    pub(crate) fn patience(&self) -> Patience {
        self.patience
    }

    /// The fabrics that are asked for a plan, one after the other.
    pub(crate) fn in_order(&self, wish: Wish) -> impl Iterator<Item = &dyn Fabric> {
        let is_wished = move |fabric: &dyn Fabric| Some(fabric.name()) == wish.fabric;
        let can = move |fabric: &&dyn Fabric| !wish.any_packets || fabric.carries_any_packets();
        let all = move || self.fabrics.iter().map(AsRef::as_ref).filter(can);
        let others =
            all().filter(move |fabric| !(is_wished(*fabric) || wish.or_fail && wish.fabric.is_some()));
        all().filter(move |fabric| is_wished(*fabric)).chain(others)
    }

    /// Returns the refusal for a name that no fabric of this network has.
    #[must_use]
    pub fn no_fabric(&self, name: FabricName) -> Refusal {
        let names = self.names().map(String::from).collect::<Vec<_>>().join(", ");
        Refusal::Impossible(format!("there is no fabric '{name}' here, only {names}"))
    }

    /// Checks that a fabric of this network can be what a request wishes for.
    ///
    /// # Errors
    /// There is none of the name, or it does not carry such packets.
    pub fn check_wish(&self, wish: Wish) -> Result<(), Refusal> {
        if let Some(name) = wish.fabric.filter(|name| !self.has(*name)) {
            return Err(self.no_fabric(name));
        }
        if !wish.any_packets {
            return Ok(());
        }
        let others = self.in_order(Wish { fabric: None, ..wish });
        let can: Vec<FabricName> = others.map(Fabric::name).collect();
        let listed = |names: &mut dyn Iterator<Item = FabricName>| {
            names.map(String::from).collect::<Vec<_>>().join(", ")
        };
        match wish.fabric {
            _ if can.is_empty() => {
                let names = listed(&mut self.names());
                Err(Refusal::Impossible(format!(
                    "no fabric of this network ({names}) carries packets that an application sends itself"
                )))
            }
            Some(name) if !can.contains(&name) => Err(Refusal::Impossible(format!(
                "{name} carries no packets that an application sends itself, only {} can",
                listed(&mut can.iter().copied())
            ))),
            _ => Ok(()),
        }
    }

    /// Returns true if this network has a fabric of this name.
    #[must_use]
    pub fn has(&self, name: FabricName) -> bool {
        self.named(&name).is_some()
    }

    /// The same, without the fabric of this name.
    ///
    /// # Errors
    /// As [`Fabrics::plan`].
    pub fn plan_without(
        &self,
        network: &NetworkState,
        group: &Group,
        without: FabricName,
    ) -> Result<Plan, Refusal> {
        let others = self.fabrics.iter().map(AsRef::as_ref).filter(|fabric| fabric.name() != without);
        self.plan_among(network, group, others)
    }

    fn plan_among<'a>(
        &self,
        network: &NetworkState,
        group: &Group,
        fabrics: impl Iterator<Item = &'a dyn Fabric>,
    ) -> Result<Plan, Refusal> {
        let mut why = Refusal::Impossible("the manager has no fabric to carry it".into());
        for fabric in fabrics {
            if let Some(plan) = network.ready(fabric.name(), group, false) {
                return Ok(plan.clone());
            }
            match fabric.plan(network, group) {
                Ok(plan) => return Ok(plan),
                Err(busy @ Refusal::Busy(_)) if self.patience == Patience::Best => return Err(busy),
                // The first that may be free later is the best one to wait for.
                Err(busy @ Refusal::Busy(_)) if !matches!(why, Refusal::Busy(_)) => why = busy,
                Err(Refusal::Busy(_)) => {}
                Err(impossible) if !matches!(why, Refusal::Busy(_)) => {
                    why = explained(impossible, fabric, network, Asked::transfer(group));
                }
                Err(_) => {}
            }
        }
        Err(why)
    }

    /// The plan of a stream of messages by the first fabric that has one ([`Fabric::plan_stream`]); with
    /// `any_packets` one in which several hosts send ([`Fabric::plan_packets`]).
    ///
    /// # Errors
    /// None has.
    pub fn plan_shared(
        &self,
        network: &NetworkState,
        group: &Group,
        any_packets: bool,
    ) -> Result<Plan, Refusal> {
        let none = || {
            let names = self.names().map(String::from).collect::<Vec<_>>().join(", ");
            format!(
                "no fabric of this network ({names}) has paths that many can use at the same time, as a stream needs"
            )
        };
        let mut why = Refusal::Impossible(none());
        let planned = |fabric: &dyn Fabric| match any_packets {
            true => {
                let can = fabric.is_shared() && fabric.carries_any_packets();
                can.then(|| fabric.plan_packets(network, group))
            }
            false => fabric.plan_stream(network, group),
        };
        for planned in self.fabrics.iter().filter_map(|fabric| planned(fabric.as_ref())) {
            match planned {
                Ok(plan) => return Ok(plan),
                Err(refusal) => why = refusal,
            }
        }
        Err(why)
    }

    /// The plan of a transfer that runs already ([`Fabric::adopt`]), by the name of its fabric.
    #[must_use]
    pub fn adopt(
        &self,
        fabric: &str,
        network: &NetworkState,
        group: &Group,
        channel: &Channel,
    ) -> Option<Plan> {
        self.named(fabric)?.adopt(network, group, channel)
    }

    /// Returns true if the fabric that a plan names vouches for it ([`Fabric::vouches`]).
    #[must_use]
    pub fn vouches(&self, group: &Group, plan: &Plan) -> bool {
        self.named(&plan.fabric).is_some_and(|fabric| fabric.vouches(group, plan))
    }

    /// Returns the resources that devices with this command have in use ([`Fabric::resources_of`]).
    #[must_use]
    pub fn resources_of(&self, command: &DeviceCommand) -> Vec<Resource> {
        self.fabrics.iter().flat_map(|fabric| fabric.resources_of(command)).collect()
    }

    /// The plan of a running transfer with another group ([`Fabric::regroup`]).
    ///
    /// # Errors
    /// The fabric has none, or receivers would have to be told of another channel.
    pub fn regroup(&self, network: &NetworkState, old: &Plan, group: &Group) -> Result<Plan, Refusal> {
        let fabric = self.named(&old.fabric).ok_or_else(|| unknown(old.fabric))?;
        let plan = fabric.regroup(network, old, group)?;
        if !plan.channel.is_heard_like(&old.channel) {
            return Err(Refusal::Impossible(
                "the channel would change, and the transfer runs already".into(),
            ));
        }
        Ok(plan)
    }

    /// Returns the likely reasons why these receivers were not reached ([`Fabric::suspects`]).
    #[must_use]
    pub fn suspects(
        &self,
        network: &NetworkState,
        group: &Group,
        plan: &Plan,
        unreached: &BTreeSet<HostId>,
    ) -> Vec<Failure> {
        self.named(&plan.fabric)
            .map(|fabric| fabric.suspects(network, group, plan, unreached))
            .unwrap_or_default()
    }

    /// Returns everything that is out of use while the part of this name is, in all fabrics.
    ///
    /// # Errors
    /// None of them has such a part: in a sentence that lists those that there are.
    pub fn part(&self, name: PartName) -> Result<Vec<Failure>, String> {
        let found: Vec<Failure> = self.fabrics.iter().flat_map(|fabric| fabric.part(name)).collect();
        if !found.is_empty() {
            return Ok(found);
        }
        let known: Vec<String> = self.fabrics.iter().flat_map(|fabric| fabric.part_names()).collect();
        Err(match known.split_last() {
            None => {
                format!("the manager's fabrics have no parts with names, so there is no {name} to take out")
            }
            Some((last, [])) => format!("the manager has no {name}: it has {last}"),
            Some((last, others)) => {
                format!("the manager has no {name}: it has {} and {last}", others.join(", "))
            }
        })
    }

    /// Returns the commands that devices keep all the time ([`Fabric::standing_commands`]).
    #[must_use]
    pub fn standing_commands(&self, network: &NetworkState) -> Vec<DeviceCommand> {
        self.fabrics.iter().flat_map(|fabric| fabric.standing_commands(network)).collect()
    }

    /// The running plans that can be better now that something works again ([`Fabric::improve`]).
    #[must_use]
    pub fn improve(&self, network: &NetworkState) -> Vec<(PlanId, Plan)> {
        self.fabrics.iter().flat_map(|fabric| fabric.improve(network)).collect()
    }

    /// The running plans that `failure` touches. One that its own fabric cannot save may be saved by another,
    /// and so may one whose fabric this network does not have: a manager with other settings may have made
    /// it.
    pub fn replan(&self, network: &NetworkState, failure: &Failure) -> Vec<Replan> {
        let ours = self.fabrics.iter().flat_map(|fabric| fabric.replan(network, failure));
        let others = network.running().filter(|(_, running)| {
            self.named(&running.plan.fabric).is_none() && running.plan.is_touched(&running.group, failure)
        });
        let lost = |(id, running): (PlanId, &Running)| Replan {
            id,
            outcome: ReplanOutcome::Lost(unknown(running.plan.fabric)),
        };
        let mut touched: Vec<Replan> = ours.chain(others.map(lost)).collect();
        let mut draft = network.clone();
        for replan in &mut touched {
            let Some(old) = draft.release(replan.id) else { continue };
            if matches!(replan.outcome, ReplanOutcome::Lost(_))
                && *failure != Failure::Host(old.group.source)
                && let Ok(plan) = self.plan(&draft, &old.group)
            {
                replan.outcome = ReplanOutcome::Replaced(plan);
            }
            if let ReplanOutcome::Replaced(plan) = &replan.outcome {
                // Fabrics promise that their new plans do not collide; one that does loses its path.
                if !draft.hold(replan.id, old.group, plan.clone()) {
                    replan.outcome = ReplanOutcome::Lost(Refusal::Busy("another path took its place".into()));
                }
            }
        }
        touched
    }
}

fn unknown(fabric: FabricName) -> Refusal {
    Refusal::Impossible(format!("there is no fabric '{fabric}'"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ip_multicast::IpMulticast;
    use crate::plan::HostId;
    use crate::tcp_chain::TcpChain;
    use alloc::vec;

    fn group(source: u32, receivers: &[u32]) -> Group {
        Group::of_one(HostId(source), receivers.iter().map(|r| HostId(*r)).collect())
    }

    fn fabrics(addresses: u32) -> Fabrics {
        let pool = crate::ip_multicast::AddressPool::new([239, 255, 64, 0].into(), addresses, 7410).unwrap();
        Fabrics::new(vec![Box::new(IpMulticast::new(pool)), Box::new(TcpChain)])
    }

    #[test]
    fn the_best_fabric_that_is_free_carries_it() {
        let fabrics = fabrics(1);
        let mut network = NetworkState::default();
        let plan = fabrics.plan(&network, &group(0, &[1, 2])).unwrap();
        assert_eq!(plan.fabric, "ip-multicast");
        assert!(network.hold(PlanId(1), group(0, &[1, 2]), plan));
        assert_eq!(fabrics.plan(&network, &group(3, &[1])).unwrap().fabric, "tcp-chain");
        network.release(PlanId(1)).unwrap();
        assert_eq!(fabrics.plan(&network, &group(3, &[1])).unwrap().fabric, "ip-multicast");
    }

    #[test]
    fn a_group_can_wait_for_the_best_fabric() {
        let fabrics = fabrics(1).waiting_for_the_best();
        let mut network = NetworkState::default();
        let plan = fabrics.plan(&network, &group(0, &[1])).unwrap();
        assert!(network.hold(PlanId(1), group(0, &[1]), plan));
        assert!(matches!(fabrics.plan(&network, &group(2, &[1])), Err(Refusal::Busy(_))));
        network.release(PlanId(1)).unwrap();
        assert_eq!(fabrics.plan(&network, &group(2, &[1])).unwrap().fabric, "ip-multicast");
    }

    #[test]
    fn a_plan_that_is_kept_is_the_next_one_of_its_group() {
        let fabrics = fabrics(4);
        let mut network = NetworkState::default();
        let plan = fabrics.plan(&network, &group(0, &[1])).unwrap();
        network.keep(Running { group: group(0, &[1]), plan: plan.clone() });
        assert_eq!(fabrics.plan(&network, &group(0, &[1])).unwrap(), plan);
        // Not while another plan holds what it needs, and not any more when that has failed.
        assert!(network.hold(PlanId(1), group(0, &[2]), plan.clone()));
        assert_ne!(fabrics.plan(&network, &group(0, &[1])).unwrap(), plan);
        network.release(PlanId(1)).unwrap();
        network.fail(plan.resources[0]);
        assert_ne!(fabrics.plan(&network, &group(0, &[1])).unwrap(), plan);
        assert_eq!(network.displace(&plan).len(), 1);
        assert!(network.forget_oldest().is_none());
    }

    #[test]
    fn nothing_is_held_twice() {
        let fabrics = fabrics(1);
        let mut network = NetworkState::default();
        let plan = fabrics.plan(&network, &group(0, &[1])).unwrap();
        assert!(network.hold(PlanId(1), group(0, &[1]), plan.clone()));
        assert!(!network.hold(PlanId(2), group(0, &[1]), plan.clone()));
        assert!(network.get(PlanId(2)).is_none());
        assert_eq!(network.holder(&plan.resources[0]), Some(PlanId(1)));
    }

    #[test]
    fn a_path_that_fails_is_replaced_even_by_another_fabric() {
        let fabrics = fabrics(1);
        let mut network = NetworkState::default();
        let plan = fabrics.plan(&network, &group(0, &[1])).unwrap();
        let address = plan.resources[0];
        assert!(network.hold(PlanId(1), group(0, &[1]), plan));
        network.fail(address);
        let touched = fabrics.replan(&network, &Failure::Resource(address));
        assert_eq!(touched.len(), 1);
        let ReplanOutcome::Replaced(plan) = &touched[0].outcome else { panic!("{touched:?}") };
        assert_eq!(plan.fabric, "tcp-chain");
    }

    #[test]
    fn a_plan_of_a_fabric_that_is_not_there_is_replaced_by_one_that_is() {
        let (before, now) = (fabrics(1), Fabrics::new(vec![Box::new(TcpChain)]));
        let mut network = NetworkState::default();
        let plan = before.plan(&network, &group(0, &[1])).unwrap();
        let address = plan.resources[0];
        assert!(network.hold(PlanId(1), group(0, &[1]), plan.clone()));
        assert!(!now.vouches(&group(0, &[1]), &plan));
        let refusal = now.regroup(&network, &plan, &group(0, &[1, 2])).unwrap_err();
        assert_eq!(refusal, Refusal::Impossible("there is no fabric 'ip-multicast'".into()));
        assert_eq!(now.replan(&network, &Failure::Host(HostId(1))), []);
        network.fail(address);
        let touched = now.replan(&network, &Failure::Resource(address));
        let [Replan { id: PlanId(1), outcome: ReplanOutcome::Replaced(plan) }] = &touched[..] else {
            panic!("{touched:?}")
        };
        assert_eq!(plan.fabric, TcpChain::NAME);
    }

    #[test]
    fn without_fabrics_nothing_is_possible() {
        let refusal = Fabrics::new(Vec::new()).plan(&NetworkState::default(), &group(0, &[1])).unwrap_err();
        assert!(matches!(refusal, Refusal::Impossible(_)));
    }
}
