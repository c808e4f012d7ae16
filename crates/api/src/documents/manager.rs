//! The documents about what the manager knows.

use super::id;
use crate::manager::{AgentStatus, DrainedHost, LeaseStatus, NodeReport, PendingStatus, StatusResponse};
use serde_json::{Value, json};

/// An agent that has been silent for longer than this is late: heartbeats come every second or two.
const LATE_MS: u64 = 5_000;

/// A machine as its manager knows it.
pub struct Node {
    /// The account of its agent.
    pub agent: AgentStatus,
    /// `ready`, `draining`, `drained`, `silent`, `unreachable` or `lost`.
    pub state: &'static str,
    /// State of the drain, if it is drained.
    pub drain: Option<&'static str>,
}

/// The entry of a host that is drained.
#[must_use]
pub fn drained<'a>(status: &'a StatusResponse, name: &str) -> Option<&'a DrainedHost> {
    status.drained_hosts.iter().find(|host| host.name == name)
}

/// State of a host that is drained: whether something still runs there, as its manager knows or as its agent
/// has said last.
#[must_use]
pub fn drain(status: &StatusResponse, name: &str) -> Option<&'static str> {
    let host = drained(status, name)?;
    let node = status.agents.iter().find(|agent| agent.name == name).and_then(|agent| agent.node.as_ref());
    let is_busy = host.transfers > 0 || node.is_some_and(|node| node.sending + node.receiving > 0);
    Some(if is_busy { "draining" } else { "drained" })
}

/// Objects that only a drained host has.
pub fn objects_only_at(host: &DrainedHost) -> impl Iterator<Item = String> {
    host.objects.iter().map(|one| id(&one.app_id, one.data_id))
}

/// A host that is drained, as `polycast drain` tells it.
#[must_use]
pub fn drained_host(host: &DrainedHost) -> Value {
    json!({
        "name": host.name, "transfers": host.transfers, "objects": objects_only_at(host).collect::<Vec<_>>(),
        "objects_count": host.objects_count, "topics": host.topics,
    })
}

/// A rack or a zone, where the settings of a machine name it.
#[must_use]
pub fn place(name: &str) -> Option<&str> {
    Some(name).filter(|name| !name.is_empty())
}

/// All machines, by their names.
#[must_use]
pub fn nodes(status: &StatusResponse) -> Vec<Node> {
    let state = |agent: &AgentStatus| match agent {
        agent if !agent.unreachable_by.is_empty() => "unreachable",
        agent if agent.silent_ms > LATE_MS => "silent",
        _ => "ready",
    };
    let node = |agent: &AgentStatus, state| {
        let drain = drain(status, &agent.name);
        Node { agent: agent.clone(), state: drain.filter(|_| state == "ready").unwrap_or(state), drain }
    };
    let here = status.agents.iter().map(|agent| node(agent, state(agent)));
    let lost = status.lost.iter().map(|agent| node(agent, "lost"));
    let mut all: Vec<Node> = here.chain(lost).collect();
    all.sort_by(|a, b| a.agent.name.cmp(&b.agent.name));
    all
}

impl Node {
    /// The machine, as `polycast nodes` tells it.
    #[must_use]
    pub fn document(&self) -> Value {
        let AgentStatus { name, control_address, silent_ms, unreachable_by, node, .. } = &self.agent;
        let by = (!unreachable_by.is_empty()).then_some(unreachable_by);
        let address = (!control_address.is_empty()).then_some(control_address);
        let of = |value: fn(&NodeReport) -> Value| node.as_ref().map(value);
        json!({
            "name": name, "state": self.state, "drain": self.drain, "control_address": address,
            "silent_ms": silent_ms, "unreachable_by": by,
            "rack": node.as_ref().and_then(|node| place(&node.rack)),
            "zone": node.as_ref().and_then(|node| place(&node.zone)),
            "node_version": of(|node| json!(node.version)),
            "uptime_seconds": of(|node| json!(node.uptime_seconds)),
            "store_used_bytes": of(|node| json!(node.store_used_bytes)),
            "store_max_bytes": of(|node| json!(node.store_max_bytes)).filter(|most| !most.is_null()),
            "store_free_bytes": of(|node| json!(node.store_free_bytes)),
            "objects": of(|node| json!(node.objects)), "sending": of(|node| json!(node.sending)),
            "receiving": of(|node| json!(node.receiving)),
        })
    }
}

fn lease(lease: &LeaseStatus) -> Value {
    let passed = lease.passed_over.iter().map(|passed| json!({ "fabric": passed.fabric, "why": passed.why }));
    json!({
        "lease": lease.response_id, "source": lease.source, "receivers": lease.receivers,
        "object": id(&lease.app_id, lease.data_id), "bytes": lease.accepted_size, "fabric": lease.fabric,
        "expires_in_ms": lease.expires_in_ms, "ends_in_ms": lease.ends_in_ms,
        "passed_over": passed.collect::<Vec<_>>(),
    })
}

fn pending(pending: &PendingStatus) -> Value {
    json!({
        "source": pending.source, "object": id(&pending.app_id, pending.data_id), "bytes": pending.size,
        "receivers": pending.receivers, "waited_ms": pending.waited_ms, "estimate_ms": pending.estimate_ms,
    })
}

/// A manager, as `polycast status --manager` tells it.
#[must_use]
pub fn status_of_manager(address: &str, status: &StatusResponse) -> Value {
    let list = |values: Vec<Value>| Value::Array(values);
    json!({
        "manager": address,
        "leader": status.leader,
        "scheduler": status.scheduler,
        "external_scheduler": status.external_scheduler.as_ref().map(|external| json!({
            "address": external.address, "trouble": external.trouble, "followed": external.followed,
            "late": external.late, "wrong": external.wrong, "unreached": external.unreached,
        })),
        "standbys": list(status.standbys.iter().map(|standby| json!({
            "address": standby.address, "program_version": standby.program_version,
        })).collect()),
        "etcd": list(status.etcd.iter().map(|server| json!({
            "address": server.address, "reached": server.trouble.is_empty(),
            "version": server.version, "trouble": server.trouble,
        })).collect()),
        "fabrics": status.fabrics,
        "uptime_seconds": status.uptime_seconds,
        "agents": status.agents.len(),
        "leases": list(status.leases.iter().map(lease).collect()),
        "queue": list(status.pending.iter().map(pending).collect()),
        "devices": list(status.devices.iter().map(|device| json!({
            "name": device.name, "state": device.state, "error": device.error,
        })).collect()),
        "circuits": list(status.circuits.iter().map(|circuit| json!({
            "from": circuit.from, "to": circuit.to, "lease": circuit.response_id,
        })).collect()),
        "splitters": list(status.splitters.iter().map(|splitter| json!({
            "splitter": splitter.number, "state": splitter.state, "lease": splitter.response_id,
        })).collect()),
        "dark": status.dark,
        "drained": status.drained,
        "drained_hosts": status.drained_hosts.iter().map(drained_host).collect::<Vec<_>>(),
        "suspected": list(status.suspected.iter().map(|suspect| json!({
            "part": suspect.part, "why": suspect.why, "times": suspect.times, "rests_ms": suspect.rests_ms,
        })).collect()),
    })
}
