//! Paths that are asked for, lent, changed and given back.

use super::table::{Answer, Asked, end_of};
use super::{ANSWER_TIMEOUT, LinkState, ManagerLink};
use crate::transfer::{Fared, Path, Steering, TreePath};
use polycast_api::client::Receivers;
use polycast_api::error::{Kind, Refusal};
use polycast_api::manager as api;
use polycast_api::report::PassedOver;
use polycast_protocol::pull::Route;
use polycast_types::{Duration as Span, ObjectId, PullTuning, Rate};
use polycast_wire::control::Hash;
use polycast_wire::label;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
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

/// The receivers with their addresses.
pub(crate) fn addresses(receivers: Vec<api::Receiver>) -> Result<Vec<(String, SocketAddr)>, Refusal> {
    let address = |receiver: api::Receiver| {
        let address = receiver.control_address.parse().map_err(|_| {
            Refusal::new(Kind::Internal, format!("'{}' is no address", receiver.control_address))
        })?;
        Ok((receiver.name, address))
    };
    receivers.into_iter().map(address).collect()
}

/// The headers of a path that goes another way in the same network, if that is all that is new about it.
pub(super) fn rerouted(before: Option<api::Channel>, after: Option<api::Channel>) -> Option<Vec<Vec<u8>>> {
    let (Ok(before), Ok(mut after)) = (path(before), path(after)) else { return None };
    let Path::Multicast { outer: old, .. } = &before else { return None };
    let Path::Multicast { outer, .. } = &mut after else { return None };
    let new = std::mem::replace(outer, old.clone());
    let alike = !old.is_empty() && old.first().map(Vec::len) == new.first().map(Vec::len);
    (alike && before == after).then_some(new)
}

/// The receivers that failures have cut off from a labelled path.
pub(super) fn left_out(channel: Option<&api::Channel>) -> Vec<String> {
    match channel.and_then(|channel| channel.channel.as_ref()) {
        Some(api::channel::Channel::Labelled(labelled)) => labelled.left_out.clone(),
        _ => Vec::new(),
    }
}

/// The racks of receivers, as far as the manager knows them.
fn racks(channel: Option<&api::Channel>) -> BTreeMap<String, u32> {
    match channel.and_then(|channel| channel.channel.as_ref()) {
        Some(api::channel::Channel::Labelled(labelled)) => {
            labelled.racks.iter().map(|receiver| (receiver.name.clone(), receiver.rack)).collect()
        }
        _ => BTreeMap::new(),
    }
}

pub(super) fn path(channel: Option<api::Channel>) -> Result<Path, Refusal> {
    let wrong =
        |what: String| Refusal::new(Kind::Internal, format!("the manager's path makes no sense: {what}"));
    match channel.and_then(|channel| channel.channel) {
        Some(api::channel::Channel::Chain(_)) => Ok(Path::Chain),
        Some(api::channel::Channel::Multicast(multicast)) => {
            let address: IpAddr = multicast.address.parse().map_err(|_| wrong(multicast.address.clone()))?;
            let port =
                u16::try_from(multicast.port).map_err(|_| wrong(format!("port {}", multicast.port)))?;
            let group = SocketAddr::new(address, port);
            let attempts = Some(multicast.attempt_interval_ns).filter(|nanos| *nanos > 0).map(Span);
            Ok(Path::Multicast { group, rate: multicast.rate_bps.map(Rate), attempts, outer: Vec::new() })
        }
        Some(api::channel::Channel::Labelled(labelled)) => {
            let address: IpAddr = labelled.address.parse().map_err(|_| wrong(labelled.address.clone()))?;
            let port = u16::try_from(labelled.port).map_err(|_| wrong(format!("port {}", labelled.port)))?;
            let kind = u8::try_from(labelled.kind).ok().and_then(label::LabelKind::from_number);
            let is_of_source = |kind: &label::LabelKind| *kind <= label::LabelKind::Pods;
            let kind = kind
                .filter(is_of_source)
                .ok_or_else(|| wrong(format!("labels of kind {}", labelled.kind)))?;
            let mut outer = Vec::new();
            for label in std::iter::once(&labelled.label).chain(&labelled.further) {
                if !(1..=label::LABEL_LEN_MAX).contains(&label.len()) || label.len() != labelled.label.len() {
                    return Err(wrong(format!("a label of {} bytes", label.len())));
                }
                let mut header = Vec::new();
                label::Header { kind, session: labelled.session, label }.emit(&mut header);
                outer.push(header);
            }
            let group = SocketAddr::new(address, port);
            Ok(Path::Multicast { group, rate: labelled.rate_bps.map(Rate), attempts: None, outer })
        }
        Some(api::channel::Channel::SourceRoutes(routes)) => trees(routes).map(Path::Trees).map_err(wrong),
        None => Err(wrong("it has no channel, or one that this agent cannot use".into())),
    }
}

fn trees(routes: api::SourceRoutes) -> Result<TreePath, String> {
    let too_large = |what: &str| format!("{what} is too large");
    let of_receiver = |receiver: api::ReceiverRoutes| {
        let ways = receiver.trees.iter().map(|hops| route(hops)).collect::<Result<_, _>>()?;
        Ok((receiver.name, ways))
    };
    Ok(TreePath {
        trees: u8::try_from(routes.trees).map_err(|_| too_large("the number of trees"))?,
        payload_len: u16::try_from(routes.payload_bytes).map_err(|_| too_large("a packet"))?,
        credits: routes.credits,
        link_bps: routes.link_rate_bps,
        tuning: routes.tuning.map(tuning).unwrap_or_default(),
        routes: routes.receivers.into_iter().map(of_receiver).collect::<Result<_, String>>()?,
    })
}

fn tuning(tuning: api::PullTuning) -> PullTuning {
    PullTuning {
        credits: tuning.credits,
        initial_rate: tuning.initial_rate_bps.map(Rate),
        increase: tuning.increase_bps.map(Rate),
        interval_us: tuning.interval_us,
        burst_bytes: tuning.burst_bytes,
        block_bytes: tuning.block_bytes,
        rto_ms: tuning.rto_ms,
        overtaken: tuning.overtaken,
        chance: tuning.chance,
    }
}

/// Hops as packets carry them; none without any.
pub(super) fn route(hops: &[u8]) -> Result<Option<Route>, String> {
    if hops.is_empty() {
        return Ok(None);
    }
    Route::from_bytes(hops, 0).map(Some).map_err(|error| error.to_string())
}
