//! Values that go to Python: plain ones, as the JSON documents of the command line have them, and errors by
//! kind.

use polycast_api::agent::send_event::Event;
use polycast_api::agent::{
    FilesEvent, Object, ObjectKind, ObjectState, PathForm, PublishResponse, StatusResponse, TopicEvent,
    WatchEvent, fetch_event,
};
use polycast_api::client::ClientError;
use polycast_api::report::{Delivery, Report};
use pyo3::prelude::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// An error as the exception of its kind: `polycast.errors` has the classes.
pub fn error(py: Python<'_>, error: &ClientError) -> PyErr {
    let kind = match error {
        ClientError::Refused(refusal) => refusal.kind.name(),
        ClientError::Unreachable { .. } => "agent-unreachable",
        ClientError::Forbidden { .. } | ClientError::Stranger { .. } => "socket-permission",
        ClientError::Lost(_) => "agent-lost",
        ClientError::Path { .. } => "path",
    };
    raise(py, kind, &error.to_string())
}

/// The exception of a kind.
pub fn raise(py: Python<'_>, kind: &str, message: &str) -> PyErr {
    let made =
        py.import("polycast.errors").and_then(|errors| errors.call_method1("of_kind", (kind, message)));
    match made {
        Ok(exception) => PyErr::from_value(exception),
        Err(error) => error,
    }
}

/// An object.
pub fn object(object: &Object) -> Value {
    let kind = match object.kind() {
        ObjectKind::Directory => "directory",
        ObjectKind::Set => "set",
        ObjectKind::File | ObjectKind::Unspecified => "file",
    };
    let state = match object.state() {
        ObjectState::Added => "added",
        ObjectState::Receiving => "receiving",
        ObjectState::Received | ObjectState::Unspecified => "received",
    };
    let form = match object.form() {
        PathForm::Bytes => "bytes",
        PathForm::Directory => "directory",
        PathForm::Unspecified => "",
    };
    json!({
        "app": hex(&object.app_id), "data_id": object.data_id, "name": object.name, "kind": kind, "state": state,
        "length": object.length, "verified_bytes": object.verified_bytes, "root": object.root, "path": object.path,
        "form": form, "mode": object.mode,
    })
}

/// An event of a transfer.
pub fn event(event: Event, name: &str) -> Result<Value, ClientError> {
    Ok(match event {
        Event::Waiting(waiting) => json!({
            "event": "waiting", "before": waiting.before, "estimate_ms": waiting.estimate_ms,
        }),
        Event::Granted(granted) => json!({
            "event": "granted", "fabric": granted.fabric, "receivers": granted.receivers,
        }),
        Event::Progress(report) => {
            let receivers: Vec<Value> = report
                .receivers
                .iter()
                .map(|receiver| json!({"name": receiver.name, "bytes": receiver.bytes, "verified": receiver.verified}))
                .collect();
            json!({
                "event": "progress", "bytes": report.length, "seconds": report.seconds, "receivers": receivers,
            })
        }
        Event::Finished(report) => {
            let report = Delivery::new(name, Report::try_from(report)?);
            json!({ "event": "finished", "report": report })
        }
    })
}

/// An event of an object that was asked for.
pub fn fetched(event: &fetch_event::Event) -> Value {
    match event {
        fetch_event::Event::Waiting(_) => json!({ "event": "waiting" }),
        fetch_event::Event::Fill(_) => json!({ "event": "fill" }),
        fetch_event::Event::Progress(progress) => {
            json!({ "event": "progress", "bytes": progress.bytes, "total": progress.total })
        }
        fetch_event::Event::Object(here) => json!({ "event": "object", "object": object(here) }),
    }
}

/// Outcome of a version that was published.
pub fn published(published: &PublishResponse) -> Value {
    let missing: BTreeMap<&str, &str> =
        published.missing.iter().map(|one| (one.name.as_str(), one.reason.as_str())).collect();
    let kinds: BTreeMap<&str, &str> =
        published.missing.iter().map(|one| (one.name.as_str(), one.kind.as_str())).collect();
    json!({
        "version": published.version, "have": published.have, "missing": missing,
        "kinds": kinds,
        "sent_bytes": published.sent_bytes, "spared_bytes": published.spared_bytes,
        "coded_bytes": published.coded_bytes,
    })
}

/// A version of a topic.
pub fn version(event: &TopicEvent) -> Value {
    json!({
        "version": event.version, "committed": event.committed, "object": event.object.as_ref().map(object),
    })
}

/// Bytes of an object that are verified.
pub fn watched(event: &WatchEvent) -> Value {
    let verified: Vec<(u64, u64)> = event.verified.iter().map(|range| (range.offset, range.length)).collect();
    json!({ "path": event.path, "length": event.length, "verified": verified, "complete": event.complete })
}

/// Files of a set. Their names are bytes of any kind: in hex.
pub fn files(event: &FilesEvent) -> Value {
    let file = |file: &polycast_api::agent::SetFile| {
        json!({
            "name": hex(&file.name), "data_id": file.data_id, "length": file.length, "root": file.root,
            "mode": file.mode, "here": file.here, "path": file.path,
        })
    };
    let files: Vec<Value> = event.files.iter().map(file).collect();
    json!({ "files": files, "total_bytes": event.total_bytes, "complete": event.complete })
}

/// The agent.
pub fn status(status: &StatusResponse) -> Value {
    let names =
        |peers: &[polycast_api::agent::Peer]| peers.iter().map(|peer| peer.name.clone()).collect::<Vec<_>>();
    json!({
        "name": status.agent_name, "control_address": status.control_address, "manager": status.manager_address,
        "manager_connected": status.manager_connected, "manager_error": status.manager_error,
        "store": status.store, "store_used_bytes": status.store_used_bytes,
        "peers": names(&status.peers), "lost": names(&status.lost),
    })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
