//! State of the agent for its view: what any user of this host may know.

use super::{Page, VERSION};
use crate::daemon::sends::Past;
use crate::daemon::status;
use crate::daemon::users::User;
use crate::transfer::ReceiverReport;
use polycast_api::agent::Transfer;
use polycast_api::agent::transfer::Direction;
use polycast_api::convert::object_id;
use polycast_api::documents;
use polycast_types::ObjectId;
use serde_json::{Value, json};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Receivers that are told of, of all transfers together: about 300 bytes each.
const RECEIVERS_MAX: usize = 1_024;
/// Receivers of one transfer that are told of in any case.
const RECEIVERS_MIN: usize = 8;
/// Objects that are told of, the youngest.
const OBJECTS_MAX: usize = 256;

/// The agent's state. Those who have shown no token are told what any user of this host is: of transfers of
/// other objects they see how far they are, and neither what is sent nor what is said of it.
pub(super) fn view(page: &Page, is_shown: bool) -> Value {
    let (shared, own) = (&page.shared, User::agent());
    let user = if is_shown { own } else { User::anyone() };
    let mut status = status::status(shared, &page.sends, own);
    // They are told with names and receivers.
    let transfers = std::mem::take(&mut status.transfers);
    let mut objects = status::objects(shared, None, user);
    let names: BTreeMap<ObjectId, String> =
        objects.iter().filter_map(|object| Some((object.id().ok()?, object.name.clone()))).collect();
    let past = page.sends.past();
    let share = (RECEIVERS_MAX / (transfers.len() + past.len()).max(1)).max(RECEIVERS_MIN);
    let may_see = |id: ObjectId| status::is_visible(shared, id, user);
    let transfers = transfers.iter().filter_map(|transfer| running(transfer, &names, share, may_see));
    let past = past.iter().map(|past| ended(past, share, user.may_see(past.holder, past.in_place)));
    let all_objects = objects.len();
    objects.sort_by_key(|object| Reverse(object.since_unix_ms));
    let waits = page.objects.waits().into_iter();
    let mut document = json!({
        "daemon": "agent", "program_version": VERSION,
        "status": documents::status_of_agent(&status, &status.manager_error),
        "transfers": transfers.collect::<Vec<_>>(),
        "past": past.collect::<Vec<_>>(),
        "objects": objects.iter().take(OBJECTS_MAX).map(documents::object).collect::<Vec<Value>>(),
        "objects_all": all_objects,
        "waits": waits.map(|(object, processes)| json!({
            "object": object.to_string(), "processes": processes,
        })).collect::<Vec<_>>(),
    });
    if let Some(status) = document["status"].as_object_mut() {
        // Empty here, or told above.
        for other in ["transfers", "peers", "lost", "rests"] {
            status.remove(other);
        }
    }
    document
}

fn running(
    transfer: &Transfer,
    names: &BTreeMap<ObjectId, String>,
    share: usize,
    may_see: impl Fn(ObjectId) -> bool,
) -> Option<Value> {
    let id = object_id(&transfer.app_id, transfer.data_id).ok()?;
    let is_seen = may_see(id);
    if !is_seen && transfer.direction() != Direction::Sending {
        return None;
    }
    let receivers = documents::receivers_of(transfer);
    let name = names.get(&id).map(String::as_str);
    let mut document = documents::transfer(transfer, name, &receivers, None);
    document["receiver_reports"] = told(&receivers, transfer.length, share, is_seen);
    if !is_seen {
        document["object"] = Value::Null;
    }
    Some(document)
}

fn ended(past: &Past, share: usize, is_seen: bool) -> Value {
    let mut document =
        json!({ "number": past.number, "ago_ms": u64::try_from(past.at.elapsed().as_millis()).ok() });
    if is_seen {
        document["object"] = past.object.to_string().into();
        document["name"] = past.name.clone().into();
    }
    match &past.outcome {
        Ok(report) => {
            let done = report.receivers.iter().filter(|receiver| receiver.verified).count();
            document["bytes"] = report.bytes.into();
            document["seconds"] = report.seconds.into();
            document["fabric"] = report.fabric.clone().into();
            document["receivers"] = report.receivers.len().into();
            document["done"] = done.into();
            document["path_lost"] = report.path_lost.clone().into();
            document["receiver_reports"] = told(&report.receivers, report.bytes, share, is_seen);
        }
        Err(refusal) if is_seen => document["error"] = refusal.message.clone().into(),
        Err(refusal) => document["error"] = refusal.kind.name().into(),
    }
    document
}

/// Tells of the receivers, first of those that someone has to look after.
fn told(receivers: &[ReceiverReport], whole: u64, share: usize, is_seen: bool) -> Value {
    let rank = |receiver: &&ReceiverReport| match receiver {
        receiver if receiver.error.is_some() => 0,
        receiver if receiver.slow && !receiver.verified => 1,
        receiver if !receiver.verified => 2,
        _ => 3,
    };
    let mut order: Vec<&ReceiverReport> = receivers.iter().collect();
    order.sort_by_key(rank);
    order.truncate(share);
    let document = |receiver: &ReceiverReport| {
        let mut document = documents::receiver(receiver, whole);
        if !is_seen {
            // A sentence may name the object.
            document["error"] = receiver.error.as_ref().map(|_| document["kind"].clone()).into();
            document["reason"] = Value::Null;
        }
        document
    };
    order.into_iter().map(document).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receivers_that_have_failed_are_told_of_first() {
        let receiver = |name: &str, bytes, error: Option<&str>, verified| ReceiverReport {
            name: name.into(),
            bytes,
            error: error.map(str::to_string),
            kind: error.map(|_| "internal".to_string()),
            verified,
            ..ReceiverReport::default()
        };
        let receivers = [
            receiver("a", 0, None, true),
            receiver("b", 30, None, false),
            receiver("<script>", 10, Some("gone"), false),
        ];
        let hidden = &told(&receivers, 60, 2, false)[0];
        assert_eq!((&hidden["name"], &hidden["error"]), (&json!("<script>"), &json!("internal")));
        let told = told(&receivers, 60, 2, true);
        let names: Vec<&Value> = told.as_array().unwrap().iter().map(|one| &one["name"]).collect();
        assert_eq!(names, ["<script>", "b"]);
        assert_eq!((&told[0]["error"], &told[1]["percent"]), (&json!("gone"), &json!(50)));
    }
}
