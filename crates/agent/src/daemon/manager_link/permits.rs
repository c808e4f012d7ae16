//! Permits: ours, which the manager gives for each path that it lends, and what those of others are checked
//! with.

use super::table::{Table, refusal};
use super::{ANSWER_TIMEOUT, ManagerLink};
use crate::transfer::{Change, PathNews, Permission, Steering};
use polycast_api::error::{Kind, Refusal};
use polycast_api::manager as api;
use polycast_api::manager::agent_message::Message as Said;
use polycast_net::permit::{Group, PERMIT_LIFE_MAX_S, PUBLIC_LEN, SignedPermit};
use polycast_protocol::leases::GROUPS_FROM;
use polycast_wire::permit::Permit;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// So many keys of one answer are taken: managers that agree in etcd have one.
const KEYS_MAX: usize = 4;
/// Time that the manager may take to issue a permit before it is requested again.
const ASK_AGAIN: Duration = Duration::from_secs(60);

/// Keys and clock that permits are checked with.
#[derive(Debug, Default)]
pub(crate) struct Permits {
    /// Set if agents show certificates: without that a permit proves nothing.
    pub wanted: bool,
    /// Keys of the manager that last admitted this agent, and of no other.
    keys: Vec<[u8; PUBLIC_LEN]>,
    /// The manager's time of day, and when it said so.
    clock: Option<(u64, Instant)>,
}

impl Permits {
    /// The manager that has let us in says what it signs with, and what time it is. What one before it has
    /// signed with is of no use any more: sources get another permit when they join it, too.
    pub(super) fn learn(&mut self, joined: &api::Joined) {
        let keys = joined.permit_keys.iter().filter_map(|key| key.as_slice().try_into().ok());
        self.keys = keys.take(KEYS_MAX).collect();
        self.clock = Some((joined.now_unix_s, Instant::now()));
    }

    /// No manager is believed any more that has let us in.
    pub(super) fn forget(&mut self) {
        (self.keys, self.clock) = (Vec::new(), None);
    }

    /// The time of day at the manager, in seconds since 1970.
    fn now_unix_s(&self) -> Option<u64> {
        self.clock.map(|(said_s, at)| said_s.saturating_add(at.elapsed().as_secs()))
    }
}

/// Keys and time that the permits of others are checked with.
#[derive(Clone, Debug)]
pub(crate) struct Authority {
    /// Keys of managers.
    pub keys: Vec<[u8; PUBLIC_LEN]>,
    /// The time of day at the manager, in seconds since 1970.
    pub now_unix_s: u64,
}

/// Data that the permit of a path is requested with.
#[derive(Clone, Debug)]
pub(super) struct Claim {
    name: String,
    data_size: u64,
    root: Vec<u8>,
    /// Time of the next request for it.
    renew_at: Instant,
}

impl Claim {
    pub(super) fn of(request: &api::PathRequest) -> Self {
        let api::PathRequest { name, data_size, root, .. } = request.clone();
        Claim { name, data_size, root, renew_at: Instant::now() }
    }
}

impl Table {
    /// Asks for the permit of a path, where there are permits.
    pub(super) fn ask_permit(&mut self, response_id: u64) {
        let Some(claim) = self.held.get_mut(&response_id).and_then(|held| held.claim.as_mut()) else {
            return;
        };
        claim.renew_at = Instant::now() + ASK_AGAIN;
        let Claim { name, data_size, root, .. } = claim.clone();
        self.say(Said::AskPermit(api::AskPermit { response_id, name, data_size, root }));
    }

    /// Asks for permits again whose time is half over.
    pub(super) fn renew_permits(&mut self) {
        let now = Instant::now();
        let is_due = |claim: &Claim| claim.renew_at <= now;
        let due = self.held.iter().filter(|(_, held)| held.claim.as_ref().is_some_and(is_due));
        let due: Vec<u64> = due.map(|(response, _)| *response).collect();
        due.into_iter().for_each(|response| self.ask_permit(response));
    }

    /// The manager has judged about a path.
    pub(super) fn permitted(&mut self, permitted: api::Permitted) {
        let Some(held) = self.held.get_mut(&permitted.response_id) else { return };
        let permission = match permitted.denied {
            Some(denied) => Err(refusal(denied)),
            None => permission(&held.lease.receivers, permitted).map(|(permission, lifetime)| {
                if let Some(claim) = &mut held.claim {
                    claim.renew_at = Instant::now() + lifetime / 2;
                }
                permission
            }),
        };
        if let Err(refusal) = &permission {
            tracing::warn!(response = held.lease.response_id, %refusal, "not permitted");
        }
        held.steering.permit(permission);
    }

    /// The policy does not allow receivers any more.
    pub(super) fn banned(&mut self, banned: api::Banned) {
        let Some(held) = self.held.get(&banned.response_id) else { return };
        let request_id = held.lease.request_id;
        let reason = banned.receivers.first().map(|left_out| left_out.reason.clone());
        for api::LeftOut { name, reason } in &banned.receivers {
            tracing::warn!(response = banned.response_id, receiver = %name, %reason, "taken out");
            held.steering.tell(PathNews { event: Some(reason.clone()), ..PathNews::default() });
            held.steering.change(Change::Remove(name.clone()));
        }
        let remove: Vec<String> = banned.receivers.into_iter().map(|left_out| left_out.name).collect();
        // A transfer without receivers ends. A group has no transfer that would.
        if let Some(reason) = reason
            && request_id >= GROUPS_FROM
            && held.lease.receivers.iter().all(|name| remove.contains(name))
        {
            return held.steering.permit(Err(Refusal::new(Kind::NotAllowed, reason)));
        }
        self.say(Said::Extend(api::Extend { request_id, remove, ..api::Extend::default() }));
    }
}

/// Returns the manager's permission for these receivers, and its lifetime.
fn permission(receivers: &[String], permitted: api::Permitted) -> Result<(Permission, Duration), Refusal> {
    let wrong =
        |what: &str| Refusal::new(Kind::Internal, format!("the manager's permit makes no sense: {what}"));
    let signature = permitted.signature.try_into().map_err(|_| wrong("it has no signature"))?;
    let permit = SignedPermit { bytes: permitted.permit, signature };
    let said = Permit::parse(&permit.bytes).map_err(|error| wrong(&error.to_string()))?;
    let left_out: std::collections::BTreeMap<String, String> =
        permitted.left_out.into_iter().map(|left_out| (left_out.name, left_out.reason)).collect();
    let group = Group::new(receivers.iter().filter(|name| !left_out.contains_key(*name)).cloned());
    if group.hash() != said.group {
        return Err(wrong("it is for other receivers"));
    }
    // Receivers take none for longer.
    let lifetime_s = said.until_unix_s.saturating_sub(said.from_unix_s).min(PERMIT_LIFE_MAX_S);
    let lifetime = Duration::from_secs(lifetime_s);
    Ok((Permission { permit, group, left_out }, lifetime))
}

impl ManagerLink {
    /// Returns the data that permits of others are checked with: keys of managers that have admitted this
    /// agent, and the time there. None before the first.
    pub(crate) fn authority(&self) -> Option<Authority> {
        let table = self.table();
        let now_unix_s = table.permits.now_unix_s()?;
        (!table.permits.keys.is_empty()).then(|| Authority { keys: table.permits.keys.clone(), now_unix_s })
    }

    /// Returns the seconds by which this machine's clock is ahead of the manager's; none before the first.
    pub(crate) fn clock_ahead_s(&self) -> Option<i64> {
        let there_s = i64::try_from(self.table().permits.now_unix_s()?).ok()?;
        let here = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).ok()?;
        Some(i64::try_from(here.as_secs()).ok()? - there_s)
    }

    /// Waits until the manager has permitted a path, where it has to.
    pub(super) async fn await_permit(&self, steering: &Arc<Steering>) -> Result<(), Refusal> {
        self.await_permit_of(steering, &[]).await
    }

    /// The same until it has judged about these receivers.
    pub(crate) async fn await_permit_of(
        &self,
        steering: &Arc<Steering>,
        receivers: &[String],
    ) -> Result<(), Refusal> {
        if self.0.security.is_none() {
            return Ok(());
        }
        let mut permissions = steering.permissions();
        let is_known = |permission: &Option<Result<Arc<Permission>, Refusal>>| match permission {
            None => false,
            Some(Err(_)) => true,
            Some(Ok(permission)) => receivers.iter().all(|name| permission.knows(name)),
        };
        let judged = async {
            // The sender lives as long as the steering that we hold.
            permissions.wait_for(is_known).await.ok().and_then(|permission| permission.clone())
        };
        match tokio::time::timeout(self.patience() + ANSWER_TIMEOUT, judged).await {
            Ok(Some(permission)) => permission.map(drop),
            Ok(None) | Err(_) => {
                let message =
                    format!("the manager at {} did not permit the transfer in time", self.manager());
                Err(Refusal::new(Kind::ManagerUnreachable, message))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The key of a manager that was left is trusted no more, and one answer brings only so many.
    #[test]
    fn only_the_keys_of_the_manager_that_was_joined_last_count() {
        let joined = |keys: &[u8]| api::Joined {
            permit_keys: keys.iter().map(|key| vec![*key; PUBLIC_LEN]).collect(),
            ..Default::default()
        };
        let mut permits = Permits::default();
        permits.learn(&joined(&[1]));
        permits.learn(&joined(&[2]));
        assert_eq!(permits.keys, [[2; PUBLIC_LEN]], "the first one was left");
        permits.learn(&joined(&[2]));
        assert_eq!(permits.keys, [[2; PUBLIC_LEN]], "managers that agree have one key");
        permits.learn(&joined(&[3, 4, 5, 6, 7, 8]));
        assert_eq!(permits.keys.len(), KEYS_MAX);
        let mut odd = joined(&[9]);
        odd.permit_keys.push(vec![9; PUBLIC_LEN - 1]);
        permits.learn(&odd);
        assert_eq!(permits.keys, [[9; PUBLIC_LEN]]);
        permits.learn(&joined(&[]));
        assert_eq!(permits.keys, [[0; PUBLIC_LEN]; 0], "one that signs nothing permits nothing");
    }
}
