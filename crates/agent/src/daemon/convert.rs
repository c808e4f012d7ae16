//! Between the messages of `polycast.agent.v1` and the agent's words.

use super::catalog::{Available, Snapshot};
use super::limits::Rest;
use super::sends::{Granted, Waiting};
use super::users::{Holder, User};
use crate::transfer::{Options, SlowPolicy};
use polycast_api::agent::{self as api, PathForm, SlowReceivers};
use polycast_api::client::Receivers;
use polycast_api::convert::app_id;
use polycast_api::error::{Kind, Refusal};
use polycast_net::object::ObjectKind;
use polycast_types::{AppId, Duration, ObjectId};
use std::path::Path;
use std::time::SystemTime;

/// Receivers that one call may name.
const RECEIVERS_MAX: usize = 65_536;
/// The longest name, in bytes.
const NAME_LEN_MAX: usize = 255;

fn invalid(message: impl Into<String>) -> Refusal {
    Refusal::new(Kind::Invalid, message)
}

/// The application and the process that call.
pub(super) fn caller(caller: Option<&api::Caller>) -> Result<(AppId, u64), Refusal> {
    let caller = caller.ok_or_else(|| invalid("the call names no caller"))?;
    Ok((app_id(&caller.app_id)?, caller.process_id))
}

/// Refuses a name that is longer than any has to be: others repeat it in what they say of it.
pub(super) fn check_name(of: &str, name: &str) -> Result<(), Refusal> {
    if name.len() <= NAME_LEN_MAX {
        return Ok(());
    }
    Err(invalid(format!(
        "a name of {} bytes is longer than {NAME_LEN_MAX}, the most that the name of {of} may have",
        name.len()
    )))
}

pub(super) fn receivers(request: &api::SendRequest) -> Result<Receivers, Refusal> {
    request.receivers.iter().try_for_each(|name| check_name("a receiver", name))?;
    match (request.all, request.receivers.len()) {
        (true, 0) => Ok(Receivers::All),
        (true, _) => Err(invalid("a transfer is either for all or for the receivers that are named")),
        (false, 0) => Err(Refusal::new(Kind::NoReceivers, "no receiver is named")),
        (false, count) if count > RECEIVERS_MAX => {
            Err(invalid(format!("{count} receivers are more than {RECEIVERS_MAX}, the most there can be")))
        }
        (false, _) => {
            let mut names: Vec<&String> = request.receivers.iter().collect();
            names.sort();
            match names.windows(2).find(|pair| pair[0] == pair[1]) {
                Some(pair) => {
                    let message = format!("the receiver '{}' is named twice", pair[0]);
                    Err(Refusal::new(Kind::ReceiverTwice, message))
                }
                None => Ok(Receivers::Named(request.receivers.clone())),
            }
        }
    }
}

pub(super) fn options(request: &api::SendRequest, default: Options) -> Options {
    let millis = |millis: u64| Duration::from_nanos(millis.saturating_mul(1_000_000));
    let after =
        request.slow_after_ms.map(millis).or(SlowPolicy::SHIPPED.patience()).unwrap_or(Duration::ZERO);
    let slow = match request.slow_receivers() {
        SlowReceivers::Wait => SlowPolicy::Wait,
        SlowReceivers::Drop => SlowPolicy::Drop { after },
        SlowReceivers::CatchUp | SlowReceivers::Unspecified => SlowPolicy::CatchUp { after },
    };
    let first_byte = request.first_byte;
    Options { deadline: request.deadline_ms.map(millis), slow, first_byte, ..default }
}

fn kind(kind: ObjectKind) -> i32 {
    match kind {
        ObjectKind::File => api::ObjectKind::File.into(),
        ObjectKind::Directory => api::ObjectKind::Directory.into(),
        ObjectKind::Set => api::ObjectKind::Set.into(),
    }
}

/// An object that can be read; `stored` is where it is if it was received. Where its bytes lie is told only
/// whom that helps.
pub(super) fn available(id: ObjectId, object: Available, stored: &Path, user: User) -> api::Object {
    let (state, form) = match (&object.added_from, object.kind) {
        (None, _) => (api::ObjectState::Received, PathForm::Bytes),
        (Some(_), ObjectKind::File | ObjectKind::Set) => (api::ObjectState::Added, PathForm::Bytes),
        (Some(_), ObjectKind::Directory) if object.choice.is_all() => {
            (api::ObjectState::Added, PathForm::Directory)
        }
        (Some(_), ObjectKind::Directory) => (api::ObjectState::Added, PathForm::Unspecified),
    };
    let path = object.added_from.as_deref().unwrap_or(stored);
    // One that is not UTF-8 cannot be told.
    let told = path.to_str().filter(|_| user.shares_paths() || !user.is_other());
    let is_told = told.is_some();
    let form = if is_told { form } else { PathForm::Unspecified };
    api::Object {
        app_id: id.app.0.to_vec(),
        data_id: id.data.0,
        name: object.name,
        kind: kind(object.kind),
        state: state.into(),
        length: object.length,
        verified_bytes: object.length,
        root: object.root,
        path: told.unwrap_or_default().to_string(),
        form: form.into(),
        mode: object.mode.into(),
        modified_seconds: object.modified.map(|modified| modified.seconds),
        modified_nanos: object.modified.map_or(0, |modified| modified.nanos),
        since_unix_ms: unix_ms(object.since),
        brought_by: object.holder.map(|holder| holder.uid),
        private: object.holder.is_some_and(|holder| holder.private),
        pinned: object.pinned,
    }
}

/// Converts the remains of an interrupted transfer.
pub(super) fn rest(rest: Rest) -> api::Rest {
    api::Rest {
        app_id: rest.id.app.0.to_vec(),
        data_id: rest.id.data.0,
        length: rest.len_bytes,
        stored_bytes: rest.stored_bytes,
        since_unix_ms: unix_ms(rest.since),
    }
}

fn unix_ms(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

pub(super) fn object(id: ObjectId, snapshot: Snapshot, stored: &Path, user: User) -> api::Object {
    match snapshot {
        Snapshot::Available(object) => available(id, object, stored, user),
        Snapshot::Receiving { name, bytes, total, holder, .. } => api::Object {
            name,
            app_id: id.app.0.to_vec(),
            data_id: id.data.0,
            state: api::ObjectState::Receiving.into(),
            length: total,
            verified_bytes: bytes,
            brought_by: holder.map(|holder| holder.uid),
            private: holder.is_some_and(|Holder { private, .. }| private),
            ..api::Object::default()
        },
    }
}

pub(super) fn granted(granted: &Granted) -> api::Granted {
    api::Granted {
        fabric: granted.fabric.clone(),
        response_id: granted.response_id,
        receivers: granted.receivers.clone(),
        service_ms: granted.service_ms,
        lease_ms: granted.lease_ms,
        passed_over: granted.passed_over.iter().map(Into::into).collect(),
        estimate_s: granted.estimate.map(|estimate| estimate.as_secs_f64()),
    }
}

pub(super) fn waiting(waiting: Option<&Waiting>) -> api::Waiting {
    api::Waiting {
        before: waiting.map(|waiting| waiting.before),
        estimate_ms: waiting.and_then(|waiting| waiting.estimate_ms),
    }
}

pub(super) fn lease(request: &api::SendRequest) -> Option<Duration> {
    request.lease_ms.map(|millis| Duration::from_nanos(millis.saturating_mul(1_000_000)))
}
