//! State of the daemons as JSON: the documents that commands print with `--json` and that the page of a
//! daemon shows. `docs/reference/json.md` has their fields.

mod manager;

pub use manager::{Node, drain, drained, drained_host, nodes, objects_only_at, place, status_of_manager};

use crate::agent::transfer::Direction;
use crate::agent::{
    EndpointUse, Granted, Group, Object, ObjectKind, ObjectState, Rest, StatusResponse, Transfer, Waiting,
};
use crate::convert::object_id;
use crate::report::{ReceiverReport, Report};
use serde_json::{Value, json};

/// The object's id as users type it.
fn id(app: &[u8], data: u64) -> String {
    object_id(app, data).map_or_else(|_| data.to_string(), |id| id.to_string())
}

/// Returns how many of a hundred parts are there, where the whole is known.
#[must_use]
pub fn percent_of(bytes: u64, whole: u64) -> Option<u64> {
    (whole > 0).then(|| (u128::from(bytes.min(whole)) * 100 / u128::from(whole)) as u64)
}

/// Returns the percentage of an incoming object that is here, for people.
#[must_use]
pub fn percent(object: &Object) -> Option<u64> {
    (object.state() == ObjectState::Receiving)
        .then(|| percent_of(object.verified_bytes, object.length).unwrap_or(0))
}

/// `file`, `directory` or `set`.
#[must_use]
pub fn kind(object: &Object) -> &'static str {
    match object.kind() {
        ObjectKind::Directory => "directory",
        ObjectKind::Set => "set",
        ObjectKind::File | ObjectKind::Unspecified => "file",
    }
}

/// An object, as `polycast ls` tells it.
#[must_use]
pub fn object(object: &Object) -> Value {
    let state = match object.state() {
        ObjectState::Added => "added",
        ObjectState::Receiving => "receiving",
        ObjectState::Received => "received",
        ObjectState::Unspecified => "unknown",
    };
    json!({
        "object": id(&object.app_id, object.data_id), "name": object.name, "kind": kind(object), "state": state,
        "bytes": object.length, "verified_bytes": object.verified_bytes, "root": object.root,
        "path": object.path, "percent": percent(object), "since_unix_ms": object.since_unix_ms,
        "brought_by": object.brought_by, "private": object.private, "pinned": object.pinned,
    })
}

/// A path.
#[must_use]
pub fn path(granted: &Granted) -> Value {
    json!({
        "fabric": granted.fabric, "receivers": granted.receivers, "service_ms": granted.service_ms,
        "lease_ms": granted.lease_ms, "estimate_s": granted.estimate_s,
        "passed_over": granted.passed_over.iter()
            .map(|passed| json!({ "fabric": passed.fabric, "why": passed.why })).collect::<Vec<_>>(),
    })
}

/// `sending` or `receiving`.
#[must_use]
pub fn direction(transfer: &Transfer) -> &'static str {
    match transfer.direction() {
        Direction::Sending => "sending",
        Direction::Receiving => "receiving",
        Direction::Unspecified => "unknown",
    }
}

fn waiting(waiting: &Waiting) -> Value {
    json!({ "before": waiting.before, "estimate_ms": waiting.estimate_ms })
}

fn transfer_in_status(transfer: &Transfer) -> Value {
    json!({
        "object": id(&transfer.app_id, transfer.data_id), "direction": direction(transfer),
        "bytes": transfer.length, "verified_bytes": transfer.bytes,
        "waiting": transfer.waiting.as_ref().map(waiting), "path": transfer.granted.as_ref().map(path),
    })
}

/// The receiver that is least far of those that are on their way.
#[must_use]
pub fn slowest(receivers: &[ReceiverReport]) -> Option<&ReceiverReport> {
    let running = receivers.iter().filter(|receiver| !receiver.verified && receiver.error.is_none());
    running.min_by_key(|receiver| receiver.bytes)
}

/// The receivers of a transfer, as far as its source knows them.
#[must_use]
pub fn receivers_of(transfer: &Transfer) -> Vec<ReceiverReport> {
    let report = transfer.report.clone().and_then(|report| Report::try_from(report).ok());
    report.map_or_else(Vec::new, |report| report.receivers)
}

/// A transfer, as `polycast transfers` tells it.
#[must_use]
pub fn transfer(
    transfer: &Transfer,
    name: Option<&str>,
    receivers: &[ReceiverReport],
    rate_bps: Option<f64>,
) -> Value {
    let done = receivers.iter().filter(|receiver| receiver.verified).count();
    let slowest = slowest(receivers);
    json!({
        "object": id(&transfer.app_id, transfer.data_id), "name": name, "direction": direction(transfer),
        "bytes": transfer.length, "verified_bytes": transfer.bytes,
        "spared_bytes": transfer.spared_bytes,
        "percent": percent_of(transfer.bytes, transfer.length), "rate_bps": rate_bps,
        "receivers": receivers.len(), "done": done, "slowest": slowest.map(|receiver| &receiver.name),
        "slowest_percent": slowest.and_then(|receiver| percent_of(receiver.bytes, transfer.length)),
        "fabric": transfer.granted.as_ref().map(|granted| &granted.fabric),
        "waiting": transfer.waiting.as_ref().map(waiting), "path": transfer.granted.as_ref().map(path),
    })
}

/// A receiver of a transfer, with how far it is: of what has ended reports tell that no more.
#[must_use]
pub fn receiver(receiver: &ReceiverReport, whole: u64) -> Value {
    let bytes = if receiver.verified { whole } else { receiver.bytes };
    json!({
        "name": receiver.name, "verified": receiver.verified, "seconds": receiver.seconds, "bytes": bytes,
        "percent": percent_of(bytes, whole), "fabric": receiver.fabric, "slow": receiver.slow,
        "rate_bps": receiver.rate_bps, "reason": receiver.reason, "error": receiver.error,
        "kind": receiver.kind,
    })
}

/// The remains of a transfer that was cut off.
#[must_use]
pub fn rest(rest: &Rest) -> Value {
    json!({
        "object": id(&rest.app_id, rest.data_id), "bytes": rest.length, "stored_bytes": rest.stored_bytes,
        "since_unix_ms": rest.since_unix_ms,
    })
}

/// An agent, as `polycast status` tells it.
#[must_use]
pub fn status_of_agent(status: &StatusResponse, manager_error: &str) -> Value {
    let peers = status.peers.iter().map(|peer| {
        let unreachable = (!peer.unreachable_by.is_empty())
            .then(|| json!({ "by": peer.unreachable_by, "since_ms": peer.unreachable_ms }));
        json!({
            "name": peer.name, "control_address": peer.control_address, "silent_ms": peer.silent_ms,
            "unreachable": unreachable,
        })
    });
    let lost = status.lost.iter().map(|peer| json!({ "name": peer.name, "silent_ms": peer.silent_ms }));
    json!({
        "name": status.agent_name, "interface": status.interface_address,
        "control_address": status.control_address, "manager": status.manager_address,
        "manager_connected": status.manager_connected, "manager_error": manager_error,
        "store": status.store, "store_free_bytes": status.store_free_bytes,
        "store_used_bytes": status.store_used_bytes, "store_max_bytes": status.store_max_bytes,
        "descriptors_max": status.descriptors_max,
        "uptime_seconds": status.uptime_seconds, "processes": status.registered_processes,
        "transfers": status.transfers.iter().map(transfer_in_status).collect::<Vec<_>>(),
        "rests": status.rests.iter().map(rest).collect::<Vec<_>>(),
        "peers": peers.collect::<Vec<_>>(), "lost": lost.collect::<Vec<_>>(),
        "groups": status.groups.iter().map(group_here).collect::<Vec<_>>(),
        "endpoints": status.uses.iter().map(endpoint_use).collect::<Vec<_>>(),
    })
}

/// A group for packets that applications send themselves.
#[must_use]
pub fn group(group: &Group) -> Value {
    let mut document = group_here(group);
    let away = group.members.iter().chain(&group.sources).filter(|member| member.away);
    let names: std::collections::BTreeSet<&str> = away.map(|member| member.name.as_str()).collect();
    document["away"] = names.into_iter().collect::<Vec<_>>().into();
    document
}

/// The same where it is not known which hosts are away.
fn group_here(group: &Group) -> Value {
    let has_path = !group.address.is_empty();
    json!({
        "name": group.name, "source": group.source,
        "fabric": has_path.then_some(&group.fabric), "address": has_path.then_some(&group.address),
        "port": has_path.then_some(group.port), "rate_bps": group.rate_bps,
        "members": group.members.iter().map(|member| member.name.as_str()).collect::<Vec<_>>(),
        "sources": group.sources.iter().map(|source| source.name.as_str()).collect::<Vec<_>>(),
        "trouble": (!group.trouble.is_empty()).then_some(&group.trouble),
    })
}

/// Counts of a repository's or an image's files by where their bytes were.
#[must_use]
pub fn endpoint_use(one: &EndpointUse) -> Value {
    json!({
        "kind": one.kind, "name": one.name, "store": one.store, "peers": one.peers, "origin": one.origin,
        "failed": one.failed,
    })
}
