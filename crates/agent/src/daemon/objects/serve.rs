//! Sending to those for whom the manager has asked: by a transfer like any other.

use super::super::manager_link::FabricWish;
use super::super::sends::{Watcher, Wish};
use super::super::users::User;
use super::Objects;
use polycast_api::client::Receivers;
use polycast_api::error::{Kind, Refusal};
use polycast_api::report::Report;
use polycast_types::ObjectId;
use std::sync::Arc;
use std::time::Duration;

/// How long a transfer may take to be one that receivers can be added to.
const ADD_WITHIN: Duration = Duration::from_millis(500);
/// How often that is tried.
const ADD_AGAIN: Duration = Duration::from_millis(25);

type Outcomes = Vec<(String, Result<(), String>)>;

impl Objects {
    /// Sends an object to these: they are added to the transfer that runs, or get one of their own. The manager hears how it
    /// went.
    pub(super) async fn serve(self: &Arc<Self>, serve: u64, object: ObjectId, receivers: Vec<String>) {
        tracing::info!(%object, serve, receivers = receivers.len(), "sends to those who asked");
        // Nobody was told of it: the manager cannot know that it is here.
        if self.shared.catalog.get(object).is_some_and(|there| there.holder().is_some_and(|one| one.private))
        {
            let refusal =
                Refusal::new(Kind::ObjectUnknown, format!("there is no object {object} for others here"));
            return self.shared.link.served(serve, all_failed(receivers, &refusal));
        }
        let watcher = match self.add(object, &receivers).await {
            Some(watcher) => Ok(watcher),
            None => {
                let options = self.shared.default_options();
                let named = Receivers::Named(receivers.clone());
                self.sends.start(Wish {
                    object,
                    receivers: named,
                    options,
                    lease: None,
                    detached: true,
                    user: User::agent(),
                    fabric: FabricWish::default(),
                })
            }
        };
        let outcomes = match watcher {
            Ok(watcher) => {
                let number = watcher.number();
                let (outcomes, report) = outcomes(watcher, receivers).await;
                if let (Some(report), Some(published)) = (report, self.published().get_mut(&object)) {
                    published.insert(number, report);
                }
                outcomes
            }
            Err(refusal) => all_failed(receivers, &refusal),
        };
        let failed = outcomes.iter().filter(|(_, outcome)| outcome.is_err()).count();
        tracing::info!(%object, serve, receivers = outcomes.len(), failed, "sent to those who asked");
        self.shared.link.served(serve, outcomes);
    }

    /// Adds receivers to the transfer of an object, if one runs.
    async fn add(self: &Arc<Self>, object: ObjectId, receivers: &[String]) -> Option<Watcher> {
        let watcher = self.sends.watch(object)?;
        let begun = tokio::time::Instant::now();
        loop {
            match self.sends.extend((object, User::agent()), None, receivers.to_vec(), Vec::new()).await {
                Ok(_) => return Some(watcher),
                // It has asked for its path just now.
                Err(refusal) if refusal.kind == Kind::ManagerUnreachable && begun.elapsed() < ADD_WITHIN => {
                    tokio::time::sleep(ADD_AGAIN).await;
                }
                Err(refusal) => {
                    tracing::info!(%object, %refusal, "they get a transfer of their own");
                    return None;
                }
            }
        }
    }
}

fn all_failed(receivers: Vec<String>, refusal: &Refusal) -> Outcomes {
    receivers.into_iter().map(|name| (name, Err(refusal.message.clone()))).collect()
}

/// Waits for the end of a transfer, and gives what has become of these.
async fn outcomes(mut watcher: Watcher, receivers: Vec<String>) -> (Outcomes, Option<Arc<Report>>) {
    let ended = watcher.standing.wait_for(|standing| standing.outcome.is_some()).await;
    let outcome = ended.ok().and_then(|standing| standing.outcome.clone());
    let report = match outcome {
        Some(Ok(report)) => report,
        Some(Err(refusal)) => return (all_failed(receivers, &refusal), None),
        None => {
            let broken = Refusal::new(Kind::Internal, "the transfer broke down");
            return (all_failed(receivers, &broken), None);
        }
    };
    let of = |name: String| {
        let found = report.receivers.iter().find(|receiver| receiver.name == name);
        let outcome = match found {
            Some(receiver) if receiver.verified => Ok(()),
            Some(receiver) => {
                Err(receiver.error.clone().unwrap_or_else(|| "it did not get all of it".into()))
            }
            None => Err("the transfer was over before it could take part".into()),
        };
        (name, outcome)
    };
    let outcomes = receivers.into_iter().map(of).collect();
    (outcomes, Some(report))
}
