//! Removing objects: here, and at other agents by way of the manager.

use super::sets;
use super::shared::Shared;
use super::users::User;
use polycast_api::agent::{RemoveRequest, RemoveResponse, RemovedAt};
use polycast_api::convert::app_id;
use polycast_api::error::{Kind, Refusal};
use polycast_api::manager::{self as manager, ObjectChoice, RemovedObject};
use polycast_types::{AppId, DataId, ObjectId};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Objects that one call may name.
const CHOICES_MAX: usize = 1_024;

/// Interval of the progress reports to an agent that waits for a removal.
const SAID_EVERY: Duration = Duration::from_millis(500);

/// Does what other agents wish, until told to end.
pub(super) async fn serve(shared: Arc<Shared>, mut ending: watch::Receiver<bool>) {
    let mut wishes = shared.link.removals();
    loop {
        let wish = tokio::select! {
            wish = wishes.recv() => wish,
            _ = ending.wait_for(|ends| *ends) => None,
        };
        let Some(wish) = wish else { return };
        let here = Arc::clone(&shared);
        let manager::Remove { request_id, wished_by, objects, .. } = wish;
        let begun = manager::Removed {
            request_id,
            wished_by: wished_by.clone(),
            under_way: true,
            ..Default::default()
        };
        // Removing files may take a while.
        let mut answered = tokio::task::spawn_blocking(move || {
            let objects = objects.iter().flat_map(|choice| remove(&here, choice)).collect::<Vec<_>>();
            tracing::info!(%wished_by, objects = objects.len(), "removed for another agent");
            here.link.removed(manager::Removed { request_id, wished_by, objects, ..Default::default() });
        });
        let answered = loop {
            tokio::select! {
                answered = &mut answered => break answered,
                () = tokio::time::sleep(SAID_EVERY) => shared.link.removed(begun.clone()),
            }
        };
        if let Err(error) = answered {
            tracing::warn!(%error, "a wish to remove objects is not done");
        }
    }
}

/// Largest number of objects of one request that are set aside for their replacements; others are removed.
const ASIDE_MOST: usize = 8;

/// Removes what is meant and is here; what is not here is no error.
fn remove(shared: &Shared, choice: &ObjectChoice) -> Vec<RemovedObject> {
    let Ok(app) = app_id(&choice.app_id) else { return Vec::new() };
    let ids = match choice.data_id {
        Some(data) => vec![ObjectId { app, data: DataId(data) }],
        None => shared.catalog.of_name(app, &choice.name),
    };
    let except = choice.except_data_id.map(DataId);
    let mut removed = Vec::new();
    for id in ids.into_iter().filter(|id| Some(id.data) != except) {
        // To set one aside takes a moment, in which the table of objects is held.
        let sets_aside = choice.replaced && removed.len() < ASIDE_MOST;
        let gone = || match sets_aside {
            true => shared.limits.set_aside(&shared.store, id),
            false => shared.store.remove(id),
        };
        let deleted = check_theirs(shared, id).and_then(|()| sets::delete(shared, id, User::agent(), gone));
        let (error, kind) = match deleted {
            Ok(()) => (String::new(), String::new()),
            Err(refusal) if refusal.kind == Kind::ObjectUnknown => continue,
            Err(refusal) => (refusal.to_string(), refusal.kind.name().to_string()),
        };
        removed.push(RemovedObject { app_id: app.0.to_vec(), data_id: id.data.0, error, kind });
    }
    removed
}

/// Checks that another agent may have an object removed. It may not if a user of this host other than the
/// agent's has brought it, since the other agent does not state the user that it asks for.
fn check_theirs(shared: &Shared, id: ObjectId) -> Result<(), Refusal> {
    let holder = shared.catalog.get(id).and_then(|there| there.holder());
    match holder {
        Some(holder) if holder.uid != User::agent().uid() && holder.uid != 0 => {
            let why = format!("object {id} was brought by user {} there, who can remove it", holder.uid);
            Err(Refusal::new(Kind::NotAllowed, why))
        }
        _ => Ok(()),
    }
}

/// Has objects removed at other agents.
///
/// # Errors
/// The call makes no sense, or the manager cannot be reached.
pub(super) async fn ask(
    shared: &Shared,
    app: AppId,
    request: RemoveRequest,
) -> Result<RemoveResponse, Refusal> {
    let RemoveRequest { data_ids, names, except_data_id, agents, all, replaced, .. } = request;
    let invalid = |why: &str| Refusal::new(Kind::Invalid, why);
    if data_ids.is_empty() && names.is_empty() {
        return Err(invalid("the call does not say what to remove"));
    }
    if all != agents.is_empty() {
        return Err(invalid("objects are removed either at all agents or at those that are named"));
    }
    if data_ids.len() + names.len() > CHOICES_MAX {
        return Err(invalid("these are more objects than one call may name, 1,024"));
    }
    let choice = || ObjectChoice { app_id: app.0.to_vec(), replaced, ..ObjectChoice::default() };
    let by_id = data_ids.into_iter().map(|data| ObjectChoice { data_id: Some(data), ..choice() });
    let by_name = names.into_iter().map(|name| ObjectChoice { name, except_data_id, ..choice() });
    let removal = shared.link.remove(agents, all, by_id.chain(by_name).collect()).await?;
    let at = |answer: manager::Removed| {
        let agent = answer.agent;
        answer.objects.into_iter().map(move |object| RemovedAt {
            agent: agent.clone(),
            data_id: object.data_id,
            error: object.error,
            kind: object.kind,
        })
    };
    Ok(RemoveResponse {
        removed: removal.answers.into_iter().flat_map(at).collect(),
        absent: removal.absent,
        silent: removal.silent,
    })
}
