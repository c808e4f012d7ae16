//! Objects that go: `polycast rm`, and those that `send --replace` takes the place of.

use super::names::Which;
use super::{connect, in_session, receivers, runtime};
use crate::args::cluster::{LocalArgs, RmArgs};
use crate::exit::{Exit, Failure};
use crate::output::{self, Format};
use polycast_api::agent::{Object, ObjectKind, RemoveResponse};
use polycast_api::client::{ClientError, Receivers, Session};
use polycast_api::error::Kind;
use polycast_api::report::Report;
use polycast_types::{AppId, DataId, ObjectId, Printable};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// `polycast rm`
pub(super) fn rm(args: &RmArgs, format: Format) -> Result<Exit, Failure> {
    if let Some(to) = &args.to {
        return rm_elsewhere(args, &receivers(to), format);
    }
    let outcomes = runtime()?.block_on(async {
        let listed = connect(&args.local).await?.list(None).await?;
        let mut outcomes = Vec::new();
        for which in &args.which {
            match which.among(&listed) {
                Ok(ids) => {
                    // Of several that have one name, each by its number.
                    let is_one = ids.len() == 1;
                    for id in ids {
                        let called = if is_one { which.to_string() } else { id.to_string() };
                        outcomes.push(Removed {
                            object: id.to_string(),
                            called,
                            outcome: remove(&args.local, id).await,
                        });
                    }
                }
                Err(failure) => outcomes.push(Removed {
                    object: which.to_string(),
                    called: which.to_string(),
                    outcome: Err(failure),
                }),
            }
        }
        Ok::<_, Failure>(outcomes)
    })?;
    match <[_; 1]>::try_from(outcomes) {
        Ok([Removed { object, called, outcome }]) => {
            outcome?;
            let document = json!({ "object": object, "removed": true });
            output::result(format, &document, &format!("removed {called}"))?;
            Ok(Exit::Done)
        }
        Err(outcomes) => removed(&outcomes, format),
    }
}

async fn remove(local: &LocalArgs, id: ObjectId) -> Result<(), Failure> {
    in_session(local, id.app, async |session| Ok(session.delete(id.data).await?)).await
}

/// An object that was to be removed, and what people call it.
struct Removed {
    object: String,
    called: String,
    outcome: Result<(), Failure>,
}

/// Says what has become of several objects.
fn removed(outcomes: &[Removed], format: Format) -> Result<Exit, Failure> {
    let error = |outcome: &Result<(), Failure>| outcome.as_ref().err().map(|failure| failure.message.clone());
    let objects: Vec<Value> = outcomes
        .iter()
        .map(|Removed { object, outcome, .. }| {
            let kind = outcome.as_ref().err().map(|failure| failure.kind);
            json!({ "object": object, "removed": outcome.is_ok(), "error": error(outcome), "kind": kind })
        })
        .collect();
    let all = outcomes.iter().all(|one| one.outcome.is_ok());
    let mut text = String::new();
    for Removed { called, outcome, .. } in outcomes {
        match error(outcome) {
            None => drop(writeln!(text, "removed {called}")),
            Some(error) => output::say(&format!("error: {error}")),
        }
    }
    output::result(format, &json!({ "removed": all, "objects": objects }), &text)?;
    Ok(if all { Exit::Done } else { Exit::Failed })
}

/// Removes objects at other agents.
fn rm_elsewhere(args: &RmArgs, at: &Receivers, format: Format) -> Result<Exit, Failure> {
    // A call is of one application.
    let mut choices: BTreeMap<AppId, (Vec<DataId>, Vec<String>)> = BTreeMap::new();
    for which in &args.which {
        let (numbers, names) = choices.entry(which.app()).or_default();
        match which {
            Which::Id(id) => numbers.push(id.data),
            Which::Name(name) => names.push(name.clone()),
        }
    }
    let (mut objects, mut failed) = (Vec::new(), false);
    let mut removed_at: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let answers = runtime()?.block_on(async {
        let mut answers = Vec::new();
        for (app, (numbers, names)) in choices {
            let asked = in_session(&args.local, app, async |session| {
                Ok(session.remove(at, &numbers, &names, None).await?)
            });
            answers.push((app, asked.await?));
        }
        Ok::<_, Failure>(answers)
    })?;
    for (app, answer) in &answers {
        for one in &answer.removed {
            let id = ObjectId { app: *app, data: DataId(one.data_id) };
            let error = (!one.error.is_empty()).then_some(&one.error);
            // An agent of an earlier version names no kind.
            let kind = if one.kind.is_empty() { Kind::TransferFailed.name() } else { &one.kind };
            objects.push(json!({
                "object": id.to_string(), "agent": one.agent, "removed": error.is_none(), "error": error,
                "kind": error.map(|_| kind),
            }));
            let agent = Printable(&one.agent);
            match error {
                // An agent may have several of a name.
                None => removed_at.entry(called(&args.which, id)).or_default().push(agent.to_string()),
                Some(error) => output::say(&format!("error: {agent}: {}", Printable(error))),
            }
            failed |= error.is_some();
        }
        failed |= !say_missed(answer);
    }
    if objects.is_empty() && !failed {
        return Err(Failure::of(Kind::ObjectUnknown, "no agent that was asked has such an object"));
    }
    removed_at.values_mut().for_each(|agents| agents.sort());
    let text: String = removed_at
        .iter()
        .map(|(object, agents)| format!("removed {object} at {}\n", agents.join(", ")))
        .collect();
    output::result(format, &json!({ "removed": !failed, "objects": objects }), &text)?;
    Ok(if failed { Exit::Failed } else { Exit::Done })
}

/// An object as the user has called it: by the name if that is all that was asked for.
fn called(which: &[Which], id: ObjectId) -> String {
    match which {
        [Which::Name(name)] => Printable(name).to_string(),
        _ => id.to_string(),
    }
}

/// Names the agents that did not do what was asked of them; gives whether there is none.
fn say_missed(answer: &RemoveResponse) -> bool {
    for name in &answer.absent {
        output::say(&format!("error: {} is not at the manager now", Printable(name)));
    }
    for name in &answer.silent {
        output::say(&format!("error: {} did not answer", Printable(name)));
    }
    answer.absent.is_empty() && answer.silent.is_empty()
}

/// Adds an object in place of what has its id, here and at the receivers. Where the same file is known by it
/// already nothing has to go.
pub(super) async fn add_instead(
    session: &Session,
    data: DataId,
    add: impl AsyncFn() -> Result<Object, ClientError>,
    chosen: bool,
    at: &Receivers,
) -> Result<Object, Failure> {
    let object = match add().await {
        Err(error) if error.kind() == Some(Kind::ObjectTaken) => {
            session.delete(data).await?;
            add().await?
        }
        added => added?,
    };
    // One that was sent already has its hash; a set has it from the beginning. An id that was not chosen
    // belongs to this file alone.
    if chosen && (object.root.is_empty() || object.kind() == ObjectKind::Set) {
        let answer = session.make_way(at, data).await?;
        if let Some(one) = answer.removed.iter().find(|one| !one.error.is_empty()) {
            return Err(Failure::input(format!("{}: {}", one.agent, one.error)));
        }
        // All agents are this one, too.
        return Ok(add().await?);
    }
    Ok(object)
}

/// Removes older objects of a name, here and where the new one has arrived.
pub(super) async fn retire(
    session: &Session,
    data: DataId,
    name: &str,
    report: &Report,
) -> Result<(), Failure> {
    let verified = report.receivers.iter().filter(|receiver| receiver.verified);
    let mut at: Vec<String> = verified.map(|receiver| receiver.name.clone()).collect();
    if at.is_empty() {
        return Ok(());
    }
    at.push(session.agent_name().to_string());
    let answer = session.remove(&Receivers::Named(at), &[], &[name.to_string()], Some(data)).await?;
    for one in &answer.removed {
        let agent = Printable(&one.agent);
        match one.error.as_str() {
            "" => output::say(&format!("replaces object {} at {agent}", one.data_id)),
            error => output::say(&format!("object {} stays at {agent}: {}", one.data_id, Printable(error))),
        }
    }
    say_missed(&answer);
    Ok(())
}
