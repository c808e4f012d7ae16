//! Sending to those for whom the manager has asked: by a transfer like any other.

use super::super::manager_link::FabricWish;
use super::super::sends::{Watcher, Wish};
use super::super::sets::{self, all_failed, outcomes};
use super::super::users::User;
use super::Objects;
use polycast_api::client::Receivers;
use polycast_api::error::{Kind, Refusal};
use polycast_api::report::Report;
use polycast_types::ObjectId;
use std::sync::Arc;
use std::time::Duration;

/// Time that a transfer may take until receivers can be added to it.
const ADD_WITHIN: Duration = Duration::from_millis(500);
/// Time that others may take who are added at the same moment, one after the other: each some 20 ms.
const OTHERS_WITHIN: Duration = Duration::from_secs(5);
/// Interval between the attempts to add them.
const ADD_AGAIN: Duration = Duration::from_millis(25);

/// Outcomes of receivers, by their names.
pub(crate) type Outcomes = Vec<(String, Result<(), String>)>;

impl Objects {
    /// Sends an object to these: they are added to the transfer that runs, or get one of their own. The
    /// manager hears how it went.
    pub(super) async fn serve(self: &Arc<Self>, serve: u64, object: ObjectId, receivers: Vec<String>) {
        tracing::info!(%object, serve, receivers = receivers.len(), "sends to those who asked");
        // Other users were not told of it: the manager cannot know that it is here.
        if self.shared.catalog.get(object).is_some_and(|there| there.holder().is_some_and(|one| one.private))
        {
            let refusal =
                Refusal::new(Kind::ObjectUnknown, format!("there is no object {object} for others here"));
            return self.shared.link.served(serve, all_failed(receivers, &refusal));
        }
        let (mut outcomes, report) = self.serve_one(object, receivers).await;
        let note = |object: ObjectId, report: Option<(u64, Arc<Report>)>, objects: &Self| {
            if let (Some((number, report)), Some(published)) = (report, objects.published().get_mut(&object))
            {
                published.insert(number, report);
            }
        };
        note(object, report, self);
        if let Some(set) = self.shared.catalog.set(object) {
            let has = |(name, outcome): &(String, Result<(), String>)| outcome.is_ok().then(|| name.clone());
            let have = outcomes.iter().filter_map(has).collect();
            outcomes.retain(|(_, outcome)| outcome.is_err());
            let one = |part: ObjectId, to: Vec<String>| {
                let is_file = part != object;
                let objects = Arc::clone(self);
                async move {
                    let (outcomes, report) = objects.serve_one(part, to).await;
                    note(object, report.filter(|_| is_file), &objects);
                    outcomes
                }
            };
            outcomes.extend(sets::deliver(object, &set, have, one).await);
        }
        let failed = outcomes.iter().filter(|(_, outcome)| outcome.is_err()).count();
        tracing::info!(%object, serve, receivers = outcomes.len(), failed, "sent to those who asked");
        self.shared.link.served(serve, outcomes);
    }

    /// Sends one object, and gives what the transfer with this number came to.
    async fn serve_one(
        self: &Arc<Self>,
        object: ObjectId,
        receivers: Vec<String>,
    ) -> (Outcomes, Option<(u64, Arc<Report>)>) {
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
        match watcher {
            Ok(watcher) => {
                let number = watcher.number();
                let (outcomes, report) = outcomes(watcher, receivers).await;
                (outcomes, report.map(|report| (number, report)))
            }
            Err(refusal) => (all_failed(receivers, &refusal), None),
        }
    }

    /// Adds receivers to the transfer of an object, if one runs.
    async fn add(self: &Arc<Self>, object: ObjectId, receivers: &[String]) -> Option<Watcher> {
        let watcher = self.sends.watch(object)?;
        let begun = tokio::time::Instant::now();
        loop {
            match self.sends.extend((object, User::agent()), None, receivers.to_vec(), Vec::new()).await {
                Ok(_) => return Some(watcher),
                // It has asked for its path just now, or others are being added.
                Err(refusal) if is_passing(refusal.kind, begun.elapsed()) => {
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

/// Returns true if receivers that cannot be added may be so in a moment.
fn is_passing(kind: Kind, waited: Duration) -> bool {
    match kind {
        Kind::ManagerUnreachable => waited < ADD_WITHIN,
        Kind::Full => waited < OTHERS_WITHIN,
        _ => false,
    }
}
