//! Paths of groups to which applications send packets themselves. They are asked for and renewed like those
//! of transfers, and held until their group is removed; another run of the agent goes on with them.

use super::lease::Lease;
use super::permits::Claim;
use super::table::Held;
use super::{ANSWER_TIMEOUT, ManagerLink};
use crate::transfer::{Fared, Path, Steering};
use polycast_api::error::{Kind, Refusal};
use polycast_api::manager as api;
use polycast_protocol::leases::GROUPS_FROM;
use polycast_types::{AppId, Rate};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::watch;

/// Time in which devices set a path up at the slowest; a group that waits for longer waits for others.
const PATIENCE: Duration = Duration::from_secs(10);
/// Length that a group counts as: as no end is known, the rate of a fabric counts, and not its set-up.
const LENGTH: u64 = 1 << 40;
/// Bits of the numbers that are drawn for groups.
const NUMBER_MASK: u64 = (1 << 53) - 1;

/// A path that is wanted for a group.
#[derive(Clone, Debug)]
pub(crate) struct GroupWanted {
    /// Number of the request, from [`ManagerLink::group_number`].
    pub request: u64,
    pub name: String,
    pub members: Vec<String>,
    /// Hosts that send to it beside this one.
    pub further_sources: Vec<String>,
    /// Fabric that has to carry it; empty for the best one.
    pub fabric: String,
    /// Rate that the path must have.
    pub rate: Option<Rate>,
}

/// A group's path in use.
pub(crate) struct GroupPath {
    /// As the next run of this agent names it.
    pub lease: api::Lease,
    /// Hears what becomes of the path.
    pub steering: Arc<Steering>,
}

impl GroupWanted {
    fn request(&self) -> api::PathRequest {
        api::PathRequest {
            request_id: self.request,
            app_id: AppId::default().0.to_vec(),
            data_id: self.request & NUMBER_MASK,
            data_size: LENGTH,
            remaining_size: LENGTH,
            receivers: self.members.clone(),
            further_sources: self.further_sources.clone(),
            name: self.name.clone(),
            fabric: self.fabric.clone(),
            or_fail: !self.fabric.is_empty(),
            ..api::PathRequest::default()
        }
    }

    /// Checks that a path is what the group needs.
    fn check(&self, lease: &Lease) -> Result<(), Refusal> {
        let wrong = |message| Err(Refusal::new(Kind::Denied, message));
        if let Some(name) = lease.missed.first() {
            let message = format!("the member '{name}' is lost: its agent has ended or is cut off");
            return Err(Refusal::new(Kind::ReceiverUnknown, message));
        }
        if let Some(name) = self.further_sources.iter().find(|name| !lease.further_sources.contains(name)) {
            return wrong(format!("the manager is of a version that gives '{name}' no way into this group"));
        }
        let fabric = &lease.fabric;
        let rate = match &lease.path {
            Path::Multicast { rate, outer, .. } if outer.is_empty() => rate,
            _ => return wrong(format!("{fabric} carries no packets that an application sends itself")),
        };
        match (rate, self.rate) {
            (Some(has), Some(wanted)) if *has < wanted => {
                wrong(format!("the path over {fabric} has {has}, less than the {wanted} that were asked for"))
            }
            _ => Ok(()),
        }
    }
}

impl ManagerLink {
    /// Draws the number of a new group: no other of this agent has it, nor has one of an earlier run.
    pub(crate) fn group_number(&self) -> u64 {
        GROUPS_FROM + (RandomState::new().hash_one(self.0.incarnation) & NUMBER_MASK)
    }

    /// Asks for the path of a group, which is held until [`ManagerLink::end_group`].
    ///
    /// # Errors
    /// There is none, or none now.
    pub(crate) async fn request_group(&self, wanted: &GroupWanted) -> Result<GroupPath, Refusal> {
        let waits = AtomicBool::new(false);
        let asking = self.ask(wanted.request(), Arc::default(), |_, _| waits.store(true, Ordering::Relaxed));
        let lease = match tokio::time::timeout(PATIENCE, asking).await {
            Ok(lease) => lease?,
            Err(_) if waits.into_inner() => {
                let message =
                    "no path is free for this group now: transfers or other groups have what it needs";
                return Err(Refusal::new(Kind::Denied, message));
            }
            Err(_) => {
                let message = format!("no path was there within {} s", PATIENCE.as_secs());
                return Err(Refusal::new(Kind::TimedOut, message));
            }
        };
        wanted.check(&lease)?;
        let response = lease.into_held();
        self.group(response).ok_or_else(|| Refusal::new(Kind::Denied, "the path has ended already"))
    }

    /// Changes the hosts of a group; its path stays.
    ///
    /// # Errors
    /// The path cannot change so, or the manager does not know of further sources.
    pub(crate) async fn change_group(&self, extend: api::Extend) -> Result<(), Refusal> {
        let sources = extend.further_sources.clone();
        let granted = self.extend(extend).await?;
        let granted = granted.ok_or_else(|| Refusal::new(Kind::Denied, "the group has no path yet"))?;
        match sources.iter().find(|name| !granted.further_sources.contains(name)) {
            Some(name) => Err(Refusal::new(
                Kind::Denied,
                format!("the manager is of a version that gives '{name}' no way into this group"),
            )),
            None => Ok(()),
        }
    }

    /// The path of a group, as long as it is lent.
    pub(crate) fn group(&self, response: u64) -> Option<GroupPath> {
        let table = self.table();
        let held = table.held.get(&response)?;
        Some(GroupPath { lease: held.lease.clone(), steering: Arc::clone(&held.steering) })
    }

    /// Gives the path of a group back.
    pub(crate) fn end_group(&self, request: u64, response: u64) {
        let mut table = self.table();
        if table.held.remove(&response).is_some() {
            table.give_back(request, Some(response), Fared::default());
        }
    }

    /// Goes on with the path of a group that an earlier run of this agent had, once a manager is joined.
    pub(crate) fn resume_group(&self, name: &str, lease: api::Lease) {
        let mut table = self.table();
        let request = api::PathRequest { name: name.into(), data_size: LENGTH, ..Default::default() };
        let claim = table.permits.wanted.then(|| Claim::of(&request));
        let held = Held {
            ends_at: None,
            answered_after: None,
            asked_at: None,
            steering: Arc::default(),
            claim,
            lease,
        };
        table.held.insert(held.lease.response_id, held);
    }

    /// Tells the manager at once what heartbeats say of this host, and waits until it has heard that.
    pub(crate) async fn report(&self) {
        let node = self.0.account.get().and_then(|account| account());
        let (mut turns, number) = {
            let mut table = self.table();
            if !table.beat(node) {
                return;
            }
            (table.turns.subscribe(), table.beats)
        };
        let heard = async { while self.table().answered < number && turns.changed().await.is_ok() {} };
        // The next heartbeat says it again.
        let _ = tokio::time::timeout(ANSWER_TIMEOUT, heard).await;
    }

    /// Returns a watch that turns whenever the manager has said something.
    pub(crate) fn turns(&self) -> watch::Receiver<()> {
        self.table().turns.subscribe()
    }
}
