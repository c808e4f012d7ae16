//! Topics: what is published here, and which processes here have subscribed.

use super::super::catalog::Snapshot;
use super::super::convert;
use super::super::manager_link::{LinkState, Unpublished, object_ref, refusal};
use super::super::users::User;
use super::fetch::UNSERVED;
use super::{Objects, announce, object_of};
use polycast_api::agent::{MissingSubscriber, PublishRequest, PublishResponse, TopicEvent};
use polycast_api::error::{Kind, Refusal};
use polycast_api::manager;
use polycast_api::report::Report;
use polycast_types::{AppId, ObjectId};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tonic::Status;

/// Topics that processes here may subscribe to.
const TOPICS_MAX: usize = 1_024;
/// Time that a publisher waits for a manager.
const PATIENCE: Duration = Duration::from_secs(15);
/// Time until a publisher that has named no number checks again whether the version before its own is
/// committed.
const BUSY_FOR: Duration = Duration::from_millis(100);
/// Reports of a version's transfers come within this, or are not waited for.
const REPORTS_WITHIN: Duration = Duration::from_millis(500);

/// The topics that processes here have subscribed to.
#[derive(Default)]
pub(super) struct Topics {
    topics: BTreeMap<String, Topic>,
}

struct Topic {
    app: AppId,
    callers: usize,
    standing: watch::Sender<TopicStanding>,
}

impl Topics {
    /// Returns true if an object is a version of any topic that is about to come, the last one, or the one
    /// before.
    fn need(&self, object: ObjectId) -> bool {
        self.topics.values().any(|topic| {
            let TopicStanding { staged, committed, previous, .. } = &*topic.standing.borrow();
            [staged, committed, previous].into_iter().flatten().any(|(_, id)| *id == object)
        })
    }
}

/// State of a topic: the version that is about to come, and the last that is committed.
#[derive(Clone, Default, Debug)]
struct TopicStanding {
    staged: Option<(u64, ObjectId)>,
    committed: Option<(u64, ObjectId)>,
    /// The one before the last.
    previous: Option<(u64, ObjectId)>,
    refused: Option<Refusal>,
    /// The manager knows of the subscription.
    is_known: bool,
}

/// A process that has subscribed.
struct Subscription {
    objects: Arc<Objects>,
    topic: String,
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut topics = self.objects.topics();
        let Some(topic) = topics.topics.get_mut(&self.topic) else { return };
        topic.callers -= 1;
        if topic.callers == 0 {
            topics.topics.remove(&self.topic);
            self.objects.shared.link.unsubscribe(&self.topic);
        }
    }
}

/// A version that is being published; when this is dropped, the caller has stopped waiting for it.
struct Publication<'a> {
    objects: &'a Objects,
    topic: &'a str,
    object: ObjectId,
}

impl Drop for Publication<'_> {
    fn drop(&mut self) {
        self.objects.shared.link.forget_publishing(self.topic);
        self.objects.published().remove(&self.object);
    }
}

/// The lengths of the deltas of some transfers; those of one object, to different subscribers, had the same
/// one.
fn coded_bytes<'a>(transfers: impl Iterator<Item = &'a Arc<Report>>) -> u64 {
    let mut lens: BTreeMap<ObjectId, u64> = BTreeMap::new();
    for report in transfers {
        let len = lens.entry(report.object).or_default();
        *len = report.coded_bytes.max(*len);
    }
    lens.into_values().sum()
}

impl Objects {
    /// The number of an object as a version of a topic where the caller names none.
    fn next_version(&self, topic: &str, object: ObjectId) -> Result<u64, Refusal> {
        let link = &self.shared.link;
        let again = object_ref(object).and_then(|object| link.abandoned_version(topic, &object));
        match (again, link.last_version(topic)) {
            (Some(again), _) => Ok(again),
            (None, Some(last)) => last.checked_add(1).ok_or_else(|| {
                Refusal::new(
                    Kind::Invalid,
                    format!("version {last} of '{topic}' is the last that there can be: take another topic"),
                )
            }),
            (None, None) => Ok(1),
        }
    }

    /// Publishes a version, and waits until it is committed.
    pub(crate) async fn publish(
        &self,
        (app, user): (AppId, User),
        request: PublishRequest,
    ) -> Result<PublishResponse, Refusal> {
        let PublishRequest { topic, version, data_id, deadline_ms, .. } = request;
        let object = ObjectId { app, data: polycast_types::DataId(data_id) };
        let shared = &self.shared;
        // It stays while it is published.
        let held = shared.catalog.begin_send(object)?;
        if !held.object.is_for(user) {
            return Err(Refusal::new(Kind::ObjectUnknown, format!("there is no object {object} here")));
        }
        if held.object.is_private() {
            let why = format!("object {object} is private: a version of a topic is for all");
            return Err(Refusal::new(Kind::Invalid, why));
        }
        announce(&shared.catalog, &shared.link);
        let mut number = version.map_or_else(|| self.next_version(&topic, object), Ok)?;
        let begun = tokio::time::Instant::now();
        loop {
            let patience = deadline_ms.map(Duration::from_millis);
            let patience = patience.map(|patience| patience.saturating_sub(begun.elapsed()));
            let why = match self.publish_as(&topic, number, object, patience).await {
                Ok(published) => return Ok(published),
                Err(why) => why,
            };
            // One that names no number has the next one, whichever other publishers there are.
            let next = why.next_number.filter(|_| version.is_none());
            let Some(next) = next.filter(|_| patience.is_none_or(|patience| !patience.is_zero())) else {
                return Err(why.refusal);
            };
            if next <= number || why.refusal.kind == Kind::ObjectBusy {
                tokio::time::sleep(BUSY_FOR).await;
            }
            number = next;
        }
    }

    /// Publishes an object as the version of this number, and waits until it is committed.
    async fn publish_as(
        &self,
        topic: &str,
        number: u64,
        object: ObjectId,
        patience: Option<Duration>,
    ) -> Result<PublishResponse, Unpublished> {
        let shared = &self.shared;
        let word = manager::PublishTopic {
            app_id: object.app.0.to_vec(),
            topic: topic.to_string(),
            version: Some(manager::TopicVersion { number, object: object_ref(object) }),
            patience_ms: patience.map(|patience| patience.as_millis() as u64),
        };
        let answer = shared.link.publish(word)?;
        self.published().insert(object, BTreeMap::new());
        let publication = Publication { objects: self, topic, object };
        // It goes before the publication does, where the caller goes: the topic is free again by that.
        let mut answer = answer;
        let unpublished =
            |kind, why: String| Unpublished { refusal: Refusal::new(kind, why), next_number: None };
        let published = loop {
            tokio::select! {
                published = &mut answer => {
                    break published.map_err(|_| unpublished(Kind::Internal, "no answer".into()))??;
                }
                () = tokio::time::sleep(PATIENCE / 4) => {
                    if let LinkState::Away { since, reason } = shared.link.state()
                        && since.elapsed() >= PATIENCE
                    {
                        let why = format!("the manager at {} cannot be reached: {reason}", shared.link.manager());
                        drop(answer);
                        return Err(unpublished(Kind::ManagerUnreachable, why));
                    }
                }
            }
        };
        if published.have.iter().any(|name| *name != shared.name) {
            self.await_reports(object).await;
        }
        let transfers = self.published().get(&object).cloned().unwrap_or_default();
        drop(publication);
        let missing = published.missing.into_iter();
        let missing =
            missing.map(|one| MissingSubscriber { name: one.name, reason: one.reason, kind: one.kind });
        let missing = missing.collect();
        Ok(PublishResponse {
            version: published.number,
            have: published.have,
            missing,
            sent_bytes: transfers.values().map(|report| report.sent_bytes).sum(),
            spared_bytes: transfers.values().map(|report| report.spared_bytes).sum(),
            coded_bytes: coded_bytes(transfers.values()),
        })
    }

    /// Waits a moment for the reports of an object's transfers: receivers tell the manager that they have it
    /// before these are made.
    async fn await_reports(&self, object: ObjectId) {
        let until = tokio::time::Instant::now() + REPORTS_WITHIN;
        let set = self.shared.catalog.set(object);
        let is_of =
            |id: ObjectId| id == object || set.iter().flat_map(|set| set.parts()).any(|part| part.id == id);
        let are_missing = || {
            let runs = self.sends.list().iter().any(|(id, _)| is_of(*id));
            runs || self.published().get(&object).is_none_or(|reports| reports.is_empty())
        };
        while are_missing() && tokio::time::Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Tells a caller of every version from the last one on, until it goes. `known` is dropped once the
    /// manager knows of the subscription, or cannot.
    pub(crate) async fn subscribe(
        self: Arc<Self>,
        caller: (AppId, User),
        topic: String,
        events: mpsc::Sender<Result<TopicEvent, Status>>,
        known: oneshot::Sender<()>,
    ) {
        let told = Arc::clone(&self).follow_topic(caller, topic, &events, known).await;
        if let Err(refusal) = told {
            // A caller that has gone need not hear it.
            let _ = events.send(Err(refusal.into())).await;
        }
    }

    async fn follow_topic(
        self: Arc<Self>,
        (app, user): (AppId, User),
        topic: String,
        events: &mpsc::Sender<Result<TopicEvent, Status>>,
        known: oneshot::Sender<()>,
    ) -> Result<(), Refusal> {
        let (_subscription, mut standing) = self.enter_topic(app, topic)?;
        let (mut staged, mut committed, mut known) = (None, None, Some(known));
        loop {
            let now = standing.borrow_and_update().clone();
            if now.is_known || self.shared.link.state() != LinkState::Joined {
                drop(known.take());
            }
            if let Some(refusal) = now.refused {
                return Err(refusal);
            }
            let mut news = Vec::new();
            if now.staged != staged {
                staged = now.staged;
                news.extend(self.staged_event(now.staged, user));
            }
            if now.committed != committed {
                committed = now.committed;
                news.extend(self.committed_event(now.committed, user));
            }
            // The lower one first: a caller may go by rising numbers.
            news.sort_by_key(|event| (event.version, event.committed));
            for event in news {
                if events.send(Ok(event)).await.is_err() {
                    return Ok(());
                }
            }
            tokio::select! {
                changed = standing.changed() => {
                    changed.map_err(|_| Refusal::new(Kind::Cancelled, "the subscription is over"))?;
                }
                () = events.closed() => return Ok(()),
                () = tokio::time::sleep(UNSERVED) => {
                    if let Some((_, id)) = now.staged.filter(|(_, id)| self.shared.catalog.get(*id).is_none()) {
                        self.say_unserved(id);
                    }
                }
            }
        }
    }

    /// A version that is about to come.
    fn staged_event(&self, staged: Option<(u64, ObjectId)>, user: User) -> Option<TopicEvent> {
        let (version, id) = staged?;
        let none = Snapshot::Receiving { name: String::new(), bytes: 0, spared: 0, total: 0, holder: None };
        let object = convert::object(id, none, &self.shared.store.path(id), user);
        Some(TopicEvent { version, committed: false, object: Some(object) })
    }

    /// A version that all have; none where it has made room for others meanwhile: it is followed by another
    /// one.
    fn committed_event(&self, committed: Option<(u64, ObjectId)>, user: User) -> Option<TopicEvent> {
        let (version, id) = committed?;
        self.shared.used(id);
        let Some(Snapshot::Available(object)) = self.shared.catalog.get(id) else { return None };
        if !object.is_for(user) {
            return None;
        }
        let object = convert::available(id, object, &self.shared.store.path(id), user);
        Some(TopicEvent { version, committed: true, object: Some(object) })
    }

    fn enter_topic(
        self: &Arc<Self>,
        app: AppId,
        name: String,
    ) -> Result<(Subscription, watch::Receiver<TopicStanding>), Refusal> {
        let mut topics = self.topics();
        if topics.topics.len() >= TOPICS_MAX && !topics.topics.contains_key(&name) {
            let message = format!("there are subscriptions to {TOPICS_MAX} topics here, which is the limit");
            return Err(Refusal::new(Kind::Full, message));
        }
        let topic = topics.topics.entry(name.clone()).or_insert_with(|| Topic {
            app,
            callers: 0,
            standing: watch::Sender::default(),
        });
        if topic.app != app {
            let message = format!("the topic '{name}' belongs to another application");
            return Err(Refusal::new(Kind::TopicTaken, message));
        }
        topic.callers += 1;
        let standing = topic.standing.subscribe();
        self.shared.link.subscribe(&name, app);
        Ok((Subscription { objects: Arc::clone(self), topic: name }, standing))
    }

    /// The manager has news of a topic.
    pub(super) fn topic_news(&self, news: manager::TopicNews) {
        let topics = self.topics();
        let Some(topic) = topics.topics.get(&news.topic) else { return };
        topic.standing.send_if_modified(|standing| !std::mem::replace(&mut standing.is_known, true));
        let Some(version) = news.version else { return };
        let Some(object) = object_of(version.object) else { return };
        let new = (version.number, object);
        let mut followed = None;
        let is_news = topic.standing.send_if_modified(|standing| {
            let known = standing.committed.map_or(0, |(number, _)| number);
            // A manager says again in every session what is the last.
            let is_news = standing.committed.is_none() || version.number > known;
            match (news.committed, is_news) {
                (true, true) => {
                    // The one before is still being read by those who have not heard of this one.
                    followed = standing.previous;
                    (standing.previous, standing.committed, standing.staged) = (
                        standing.committed,
                        Some(new),
                        standing.staged.filter(|(number, _)| *number > new.0),
                    );
                }
                (false, true) => standing.staged = Some(new),
                (_, false) => return false,
            }
            true
        });
        if is_news {
            // It may be one that had been followed by others, and has come back.
            self.shared.catalog.renew(object);
        }
        if let Some((_, before)) = followed.filter(|(_, before)| !topics.need(*before)) {
            self.shared.catalog.supersede(before);
        }
    }

    pub(super) fn topic_refused(&self, refused: manager::TopicRefused) {
        let topics = self.topics();
        let Some(topic) = topics.topics.get(&refused.topic) else { return };
        let refusal = refusal(&refused.kind, refused.reason);
        topic.standing.send_modify(|standing| standing.refused = Some(refusal));
    }
}
