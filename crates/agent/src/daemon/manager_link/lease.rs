//! Paths that are asked for, lent, changed and given back.

use super::channel::{addresses, path, racks};
use super::table::{Answer, Asked, end_of};
use super::{ANSWER_TIMEOUT, LinkState, ManagerLink};
use crate::transfer::{Fared, Path, Steering};
use polycast_api::client::Receivers;
use polycast_api::error::{Kind, Refusal};
use polycast_api::manager as api;
use polycast_api::report::PassedOver;
use polycast_types::{Duration as Span, ObjectId};
use polycast_wire::control::Hash;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Purpose of a requested path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'a> {
    pub object: ObjectId,
    /// The object's file or directory name, and its root hash where that is known.
    pub name: &'a str,
    pub root: Option<Hash>,
    pub length: u64,
    /// Bytes that are still to be sent.
    pub remaining: u64,
    pub receivers: &'a Receivers,
    /// Time that it is requested for; `None` until it is released.
    pub lease: Option<Span>,
    /// The transfer that it is for, if that runs already.
    pub steering: Option<&'a Arc<Steering>>,
    /// Fabric that is to carry it.
    pub fabric: &'a FabricWish,
}

/// Fabric that is to carry a transfer.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct FabricWish {
    /// Its name; empty for the best one.
    pub name: String,
    /// Set if no other fabric may carry it.
    pub or_fail: bool,
}

/// A path that is lent to us; given back when dropped.
pub(crate) struct Lease {
    link: ManagerLink,
    pub request_id: u64,
    pub response_id: u64,
    pub fabric: String,
    pub receivers: Vec<(String, SocketAddr)>,
    /// Hosts that send over it beside this one.
    pub further_sources: Vec<String>,
    /// Receivers that were named and that it does not lead to, as the manager has lost them.
    pub missed: Vec<String>,
    pub path: Path,
    /// Bytes that may be sent over it; `None` for all that remain.
    pub bytes: Option<u64>,
    /// Steering that notifies the transfer of changes.
    pub steering: Arc<Steering>,
    pub service_ms: Option<u64>,
    pub lease_ms: Option<u64>,
    /// The fabrics that come before it in the manager's settings or would have been faster.
    pub passed_over: Vec<PassedOver>,
    /// Remaining time of the transfer, as the manager estimates it.
    pub estimate: Option<Span>,
    pub granted_at: Instant,
    /// End of the lease as it was granted.
    ends_at: Option<Instant>,
    /// Set if it stays when this is dropped.
    stays: bool,
}

impl Lease {
    /// Returns the remaining time of the lease, if it has an end.
    pub(crate) fn left(&self) -> Option<Duration> {
        // The table knows if that was changed meanwhile, unless the lease has ended.
        let held = self.link.table().held.get(&self.response_id).map(|held| held.ends_at);
        held.unwrap_or(self.ends_at).map(|at| at.saturating_duration_since(Instant::now()))
    }

    /// Leaves the lease in the link's table, which renews it until it is given back; gives its number.
    pub(super) fn into_held(mut self) -> u64 {
        self.stays = true;
        self.response_id
    }
}

/// An agent that the manager knows.
pub(crate) struct Peer {
    pub name: String,
    pub control_address: String,
    pub silent_ms: u64,
    /// Agent that could not reach it at that address, and how long ago; empty if there has been no report.
    pub unreachable_by: String,
    pub unreachable_ms: u64,
}

/// A request; given up when dropped, unless its path has become a [`Lease`].
struct Asking<'a> {
    link: &'a ManagerLink,
    request: u64,
}

impl ManagerLink {
    /// Asks for a path for what remains of an object, or for part of that, and waits until there is one.
    /// `on_wait` hears the request's number and how it stands.
    pub(crate) async fn request(
        &self,
        wanted: Wanted<'_>,
        on_wait: impl FnMut(u64, &api::Waiting),
    ) -> Result<Lease, Refusal> {
        let steering = wanted.steering.map_or_else(Arc::default, Arc::clone);
        self.ask(self.path_request(&wanted), steering, on_wait).await
    }

    /// The same with a request that is made already.
    pub(super) async fn ask(
        &self,
        request: api::PathRequest,
        steering: Arc<Steering>,
        mut on_wait: impl FnMut(u64, &api::Waiting),
    ) -> Result<Lease, Refusal> {
        let asking = Asking { link: self, request: request.request_id };
        let (answer, mut answers) = watch::channel(Answer::Asked);
        {
            let mut table = self.table();
            table.asked.insert(
                request.request_id,
                Asked { request: request.clone(), answer, since: Instant::now(), steering },
            );
            table.say(api::agent_message::Message::Request(request.clone()));
        }
        let (mut state, asked_at) = (self.0.state.subscribe(), Instant::now());
        loop {
            let answer = answers.borrow_and_update().clone();
            match answer {
                Answer::Asked => {}
                Answer::Waiting(waiting) => on_wait(request.request_id, &waiting),
                Answer::Denied(refusal) => return Err(refusal),
                Answer::Granted(granted) => {
                    let lease = self.take(&request, *granted);
                    // From here on the lease itself goes back.
                    std::mem::forget(asking);
                    let lease = lease?;
                    self.await_permit(&lease.steering).await?;
                    return Ok(lease);
                }
            }
            let away = match &*state.borrow_and_update() {
                LinkState::Joined => None,
                LinkState::Away { since, reason } => Some(((*since).max(asked_at), reason.clone())),
            };
            let impatient = async {
                match &away {
                    Some((since, _)) => tokio::time::sleep_until((*since + self.patience()).into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                changed = answers.changed() => changed.map_err(|_| Refusal::new(Kind::Internal, "no answer"))?,
                _ = state.changed() => {}
                () = impatient => {
                    let reason = away.map(|(_, reason)| reason).unwrap_or_default();
                    let message = format!("the manager at {} cannot be reached: {reason}", self.manager());
                    return Err(Refusal::new(Kind::ManagerUnreachable, message));
                }
            }
        }
    }

    fn path_request(&self, wanted: &Wanted<'_>) -> api::PathRequest {
        let (receivers, all) = match wanted.receivers {
            Receivers::All => (Vec::new(), true),
            Receivers::Named(names) => (names.clone(), false),
        };
        api::PathRequest {
            request_id: self.fresh_request(),
            app_id: wanted.object.app.0.to_vec(),
            data_id: wanted.object.data.0,
            data_size: wanted.length,
            remaining_size: wanted.remaining,
            receivers,
            further_sources: Vec::new(),
            all,
            divisible: true,
            lease_ms: wanted.lease.map(|lease| lease.as_millis().max(1)),
            name: wanted.name.to_string(),
            root: wanted.root.map(Vec::from).unwrap_or_default(),
            fabric: wanted.fabric.name.clone(),
            or_fail: wanted.fabric.or_fail,
        }
    }

    /// Takes a granted path.
    fn take(&self, request: &api::PathRequest, granted: api::Granted) -> Result<Lease, Refusal> {
        let steering = self.table().held.get(&granted.response_id).map(|held| Arc::clone(&held.steering));
        let ends_at = end_of(&granted);
        let mut lease = Lease {
            link: self.clone(),
            request_id: granted.request_id,
            response_id: granted.response_id,
            fabric: granted.fabric,
            receivers: Vec::new(),
            further_sources: granted.further_sources,
            missed: if request.all { Vec::new() } else { granted.missed },
            path: Path::Chain,
            steering: steering.unwrap_or_default(),
            // The path goes back even if the answer makes no sense.
            bytes: Some(granted.accepted_size).filter(|bytes| *bytes < request.remaining_size),
            service_ms: granted.service_ms,
            lease_ms: granted.lease_ms,
            passed_over: granted.passed_over.into_iter().map(passed_over).collect(),
            estimate: granted.estimate_us.map(|micros| Span(micros.saturating_mul(1_000))),
            granted_at: Instant::now(),
            ends_at,
            stays: false,
        };
        lease.steering.set_racks(racks(granted.channel.as_ref()));
        lease.path = path(granted.channel)?;
        lease.receivers = addresses(granted.receivers)?;
        Ok(lease)
    }

    /// Changes the time or the receivers of a request; gives the path as it is now, `None` while it waits.
    pub(crate) async fn extend(&self, extend: api::Extend) -> Result<Option<api::Granted>, Refusal> {
        let request = extend.request_id;
        let answered = self.table().extend(extend)?;
        match tokio::time::timeout(ANSWER_TIMEOUT, answered).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(Refusal::new(Kind::ManagerUnreachable, "the manager went away")),
            Err(_) => {
                self.table().give_up_extending(request);
                Err(Refusal::new(Kind::ManagerUnreachable, "the manager did not answer in time"))
            }
        }
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        let mut table = self.link.table();
        let waited = table.asked.remove(&self.request).is_some();
        // Granted, but no transfer has taken it.
        let held = table.held.iter().find(|(_, held)| held.lease.request_id == self.request);
        let response = held.map(|(response, _)| *response);
        if let Some(response) = response {
            table.held.remove(&response);
        }
        if waited || response.is_some() {
            table.give_back(self.request, response, Fared::default());
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.stays {
            return;
        }
        let mut table = self.link.table();
        // One that has ended needs no release.
        if table.held.remove(&self.response_id).is_some() {
            table.give_back(self.request_id, Some(self.response_id), self.steering.take_fared());
        }
    }
}

fn passed_over(passed: api::PassedOver) -> PassedOver {
    PassedOver { fabric: passed.fabric, why: passed.why }
}
