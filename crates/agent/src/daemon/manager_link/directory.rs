//! Reports from this agent to the manager's directory, and the directory's news. All reports are repeated in
//! every session.

use super::ManagerLink;
use super::table::Table;
use polycast_api::error::{Kind, Refusal};
use polycast_api::manager as api;
use polycast_api::manager::agent_message::Message as Said;
use polycast_api::manager::directory_news::News;
use polycast_api::manager::directory_word::Word;
use polycast_types::{AppId, ObjectId};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::time::SystemTime;
use tokio::sync::{mpsc, oneshot};

/// Objects that one message names.
const BATCH_MAX: usize = 1_024;
/// News that were not read yet.
const NEWS_MAX: usize = 4_096;
/// Versions without a publisher that are remembered until it is known what has become of them.
const ABANDONED_MAX: usize = 1_024;

/// An object that is here: its length, its root hash where that is known, and since when it is here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct HeldObject {
    pub length: u64,
    pub root: Option<[u8; 32]>,
    pub since: SystemTime,
}

/// Properties of a request for an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Wish {
    pub can_fill: bool,
    pub waits: bool,
    pub fills: bool,
}

/// Outcome of the publication of a version.
pub(super) type Publication = Result<api::Published, Unpublished>;

/// Reason why a version cannot be published.
#[derive(Debug)]
pub(crate) struct Unpublished {
    pub refusal: Refusal,
    /// The number that it may have in place of its own: at once, or when the one that is on its way is
    /// committed.
    pub next_number: Option<u64>,
}

struct Publishing {
    word: api::PublishTopic,
    answer: oneshot::Sender<Publication>,
    /// Set once a manager may have received it.
    said: bool,
}

/// A version whose publisher waits no more. The manager goes on with it all the same.
struct Abandoned {
    word: api::PublishTopic,
    /// It was said in this session: then an answer comes.
    answered: bool,
}

fn number_of(word: &api::PublishTopic) -> u64 {
    word.version.as_ref().map_or(0, |version| version.number)
}

/// State that is reported to the directory.
#[derive(Default)]
pub(super) struct Directory {
    held: BTreeMap<ObjectId, HeldObject>,
    wants: BTreeMap<ObjectId, Wish>,
    /// Serves, and how many transfers each has.
    serving: BTreeMap<u64, usize>,
    subscribed: BTreeMap<String, AppId>,
    /// Versions of topics that are committed.
    known: BTreeMap<String, (AppId, api::TopicVersion)>,
    publishing: BTreeMap<String, Publishing>,
    /// The oldest first.
    abandoned: VecDeque<Abandoned>,
    news: Option<mpsc::Sender<News>>,
}

pub(crate) fn object_ref(object: ObjectId) -> Option<api::ObjectRef> {
    Some(api::ObjectRef { app_id: object.app.0.to_vec(), data_id: object.data.0 })
}

fn said(word: Word) -> Said {
    Said::Directory(api::DirectoryWord { word: Some(word) })
}

fn want(object: ObjectId, wish: Wish) -> Word {
    let Wish { can_fill, waits, fills } = wish;
    Word::Want(api::Want { object: object_ref(object), can_fill, waits, fills })
}

fn subscribe(topic: &str, app: AppId) -> Word {
    Word::Subscribe(api::SubscribeTopic { app_id: app.0.to_vec(), topic: topic.to_string() })
}

fn have<'a>(held: impl Iterator<Item = (&'a ObjectId, &'a HeldObject)>) -> Vec<Word> {
    let object = |(id, held): (&ObjectId, &HeldObject)| api::HeldObject {
        object: object_ref(*id),
        length: held.length,
        root: held.root.map_or_else(Vec::new, |root| root.to_vec()),
        // One from the future is no younger than one that has come now.
        age_ms: held.since.elapsed().map_or(0, |age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX)),
    };
    let objects: Vec<api::HeldObject> = held.map(object).collect();
    objects.chunks(BATCH_MAX).map(|batch| Word::Have(api::Have { objects: batch.to_vec() })).collect()
}

impl Directory {
    /// All that the manager has to know.
    pub(super) fn all(&mut self) -> Vec<Said> {
        self.publishing.values_mut().for_each(|one| one.said = true);
        // What was said of these in an earlier session this manager may not know; an answer to it may have
        // been lost.
        self.abandoned.iter_mut().for_each(|one| one.answered = false);
        let serving = Word::Serving(api::Serving { serve_ids: self.serving.keys().copied().collect() });
        let wants = self.wants.iter().filter(|(object, _)| !self.held.contains_key(object));
        let wants = wants.map(|(object, wish)| want(*object, *wish));
        let known = self.known.iter().map(|(topic, (app, version))| {
            let version = Some(version.clone());
            Word::Known(api::KnownVersion { app_id: app.0.to_vec(), topic: topic.clone(), version })
        });
        let subscribed = self.subscribed.iter().map(|(topic, app)| subscribe(topic, *app));
        let publishing = self.publishing.values().map(|publishing| Word::Publish(publishing.word.clone()));
        let words = have(self.held.iter()).into_iter().chain([serving]).chain(wants).chain(known);
        let words = words.chain(subscribed).chain(publishing);
        words.chain([Word::ToldAll(api::ToldAll {})]).map(said).collect()
    }

    /// Takes in what the manager has said; gives whether it was heard.
    pub(super) fn take_in(&mut self, news: api::DirectoryNews) -> bool {
        let Some(news) = news.news else { return true };
        match news {
            News::Published(published) => {
                let number = published.number;
                if let Some(publishing) = self.take_publishing(&published.topic, number) {
                    self.know(&published.topic, &publishing.word.app_id, publishing.word.version);
                    // The publisher may have gone.
                    let _ = publishing.answer.send(Ok(published));
                } else if let Some(word) = self.take_abandoned(&published.topic, number)
                    && self.known.get(&published.topic).is_none_or(|(_, known)| known.number < number)
                {
                    self.know(&published.topic, &word.app_id, word.version);
                }
                true
            }
            News::Refused(refused) => match refused.number {
                Some(number) => {
                    if let Some(publishing) = self.take_publishing(&refused.topic, number) {
                        let (refusal, next_number) =
                            (refusal(&refused.kind, refused.reason), refused.next_number);
                        let _ = publishing.answer.send(Err(Unpublished { refusal, next_number }));
                    } else {
                        self.take_abandoned(&refused.topic, number);
                    }
                    true
                }
                None => {
                    self.subscribed.remove(&refused.topic);
                    self.pass_on(News::Refused(refused))
                }
            },
            News::Topic(topic) => {
                if topic.committed
                    && let Some(app) = self.subscribed.get(&topic.topic).copied()
                {
                    self.know(&topic.topic, &app.0, topic.version.clone());
                }
                self.pass_on(News::Topic(topic))
            }
            News::Denied(denied) => self.pass_on(News::Denied(denied)),
            other => self.pass_on(other),
        }
    }

    /// Takes out what is being published of a topic, if it is this version.
    fn take_publishing(&mut self, topic: &str, number: u64) -> Option<Publishing> {
        let is_it = self.publishing.get(topic).is_some_and(|one| number_of(&one.word) == number);
        if is_it { self.publishing.remove(topic) } else { None }
    }

    /// Takes out this version if its publisher has gone.
    fn take_abandoned(&mut self, topic: &str, number: u64) -> Option<api::PublishTopic> {
        let is_it = |one: &Abandoned| one.word.topic == topic && number_of(&one.word) == number;
        let at = self.abandoned.iter().position(is_it)?;
        self.abandoned.remove(at).map(|one| one.word)
    }

    fn known_number(&self, topic: &str) -> Option<u64> {
        self.known.get(topic).map(|(_, version)| version.number)
    }

    fn know(&mut self, topic: &str, app: &[u8], version: Option<api::TopicVersion>) {
        if let (Ok(app), Some(version)) = (app.try_into(), version) {
            // An answer to what is not above it changes nothing.
            self.abandoned.retain(|one| one.word.topic != topic || number_of(&one.word) > version.number);
            self.known.insert(topic.to_string(), (AppId(app), version));
        }
    }

    fn pass_on(&self, news: News) -> bool {
        self.news.as_ref().is_none_or(|listener| listener.try_send(news).is_ok())
    }
}

/// A refusal as the manager tells it.
pub(crate) fn refusal(kind: &str, reason: String) -> Refusal {
    Refusal::new(Kind::from_name(kind).unwrap_or(Kind::Internal), reason)
}

impl Table {
    fn word(&mut self, word: Word) -> bool {
        self.say(said(word))
    }
}

impl ManagerLink {
    /// Returns the news of the manager's directory, from now on.
    pub(crate) fn directory_news(&self) -> mpsc::Receiver<News> {
        let (sender, news) = mpsc::channel(NEWS_MAX);
        self.table().directory.news = Some(sender);
        news
    }

    /// Tells what is here, and what is not any more.
    pub(crate) fn tell_held(&self, changes: Vec<(ObjectId, Option<HeldObject>)>) {
        let mut table = self.table();
        let (mut here, mut gone) = (BTreeMap::new(), Vec::new());
        for (id, held) in changes {
            let before = match &held {
                Some(held) => table.directory.held.insert(id, held.clone()),
                None => table.directory.held.remove(&id),
            };
            match held {
                Some(held) if before.as_ref() != Some(&held) => {
                    table.directory.wants.remove(&id);
                    here.insert(id, held);
                }
                None if before.is_some() => gone.push(id),
                _ => {}
            }
        }
        for word in have(here.iter()) {
            table.word(word);
        }
        for batch in gone.chunks(BATCH_MAX) {
            let objects = batch.iter().filter_map(|id| object_ref(*id)).collect();
            table.word(Word::Lost(api::Lost { objects }));
        }
        for id in gone {
            if let Some(wish) = table.directory.wants.get(&id).copied() {
                table.word(want(id, wish));
            }
        }
    }

    /// Asks for an object, in this way from now on.
    pub(crate) fn want(&self, object: ObjectId, wish: Wish) {
        let mut table = self.table();
        let is_new = table.directory.wants.insert(object, wish) != Some(wish);
        // Of what the manager takes to be here it hears first that it has gone.
        if is_new && !table.directory.held.contains_key(&object) {
            table.word(want(object, wish));
        }
    }

    /// Has been told to get an object from its origin, or has it said that it does not: nothing new to the
    /// manager.
    pub(crate) fn note_filling(&self, object: ObjectId, fills: bool) {
        if let Some(wish) = self.table().directory.wants.get_mut(&object) {
            wish.fills = fills;
        }
    }

    /// The manager has denied a wish: it is over.
    pub(crate) fn forget_want(&self, object: ObjectId) {
        self.table().directory.wants.remove(&object);
    }

    /// Nothing of an object comes that a process here, or a topic, waits for.
    pub(crate) fn unserved(&self, object: ObjectId) {
        self.table().word(Word::Unserved(api::Unserved { object: object_ref(object) }));
    }

    pub(crate) fn unwant(&self, object: ObjectId) {
        let mut table = self.table();
        if table.directory.wants.remove(&object).is_some() {
            table.word(Word::Unwant(api::Unwant { object: object_ref(object) }));
        }
    }

    pub(crate) fn fill_failed(&self, object: ObjectId, reason: String) {
        self.note_filling(object, false);
        self.table().word(Word::FillFailed(api::FillFailed { object: object_ref(object), reason }));
    }

    /// A serve has begun.
    pub(crate) fn serving(&self, serve: u64) {
        *self.table().directory.serving.entry(serve).or_default() += 1;
    }

    /// Reports the outcome of one transfer of a serve.
    pub(crate) fn served(&self, serve: u64, outcomes: Vec<(String, Result<(), String>)>) {
        let receiver = |(name, outcome): (String, Result<(), String>)| api::ServedReceiver {
            name,
            error: outcome.err().unwrap_or_default(),
        };
        let receivers = outcomes.into_iter().map(receiver).collect();
        let mut table = self.table();
        table.word(Word::Served(api::Served { serve_id: serve, receivers }));
        if let Entry::Occupied(mut entry) = table.directory.serving.entry(serve) {
            *entry.get_mut() -= 1;
            if *entry.get() == 0 {
                entry.remove();
            }
        }
    }

    pub(crate) fn subscribe(&self, topic: &str, app: AppId) {
        let mut table = self.table();
        if table.directory.subscribed.insert(topic.to_string(), app).is_none() {
            table.word(subscribe(topic, app));
        }
    }

    pub(crate) fn unsubscribe(&self, topic: &str) {
        let mut table = self.table();
        if table.directory.subscribed.remove(topic).is_some() {
            table.word(Word::Unsubscribe(api::UnsubscribeTopic { topic: topic.to_string() }));
        }
    }

    /// The last version of a topic that this agent knows to be committed, or that may be by now: its
    /// publisher has not waited.
    pub(crate) fn last_version(&self, topic: &str) -> Option<u64> {
        let table = self.table();
        let abandoned = table.directory.abandoned.iter().filter(|one| one.word.topic == topic);
        abandoned.map(|one| number_of(&one.word)).chain(table.directory.known_number(topic)).max()
    }

    /// The number of this object as the last version of a topic, whose publisher has not waited: it is the
    /// same version if it is published again.
    pub(crate) fn abandoned_version(&self, topic: &str, object: &api::ObjectRef) -> Option<u64> {
        let table = self.table();
        let known = table.directory.known_number(topic);
        let of_topic = table.directory.abandoned.iter().filter(|one| one.word.topic == topic);
        let last = of_topic.max_by_key(|one| number_of(&one.word))?;
        let version = last.word.version.as_ref()?;
        let is_it =
            version.object.as_ref() == Some(object) && known.is_none_or(|known| known < version.number);
        is_it.then_some(version.number)
    }

    /// Publishes a version; the answer comes when it is committed.
    pub(crate) fn publish(
        &self,
        word: api::PublishTopic,
    ) -> Result<oneshot::Receiver<Publication>, Unpublished> {
        let mut table = self.table();
        let busy = |number: u64| {
            let message = format!("version {number} of '{}' is on its way from here already", word.topic);
            let refusal = Refusal::new(Kind::ObjectBusy, message);
            Err(Unpublished { refusal, next_number: number.checked_add(1) })
        };
        if let Some(other) = table.directory.publishing.get(&word.topic) {
            return busy(number_of(&other.word));
        }
        let number = number_of(&word);
        // An answer names the number and not the object: of two it could not be told which is meant.
        let is_other = |one: &Abandoned| {
            let same = one.word.topic == word.topic && number_of(&one.word) == number;
            same && one.answered && one.word.version != word.version
        };
        if table.directory.abandoned.iter().any(is_other) {
            return busy(number);
        }
        // What is said again has a publisher again. Another object of the number takes nothing from it: the
        // manager may have it yet.
        let abandoned = &mut table.directory.abandoned;
        let before = abandoned.len();
        abandoned.retain(|one| one.word.topic != word.topic || one.word.version != word.version);
        let was_said = abandoned.len() < before;
        let (answer, published) = oneshot::channel();
        // The manager may have it from before, also where it is out of reach now.
        let said = table.word(Word::Publish(word.clone())) || was_said;
        table.directory.publishing.insert(word.topic.clone(), Publishing { word, answer, said });
        Ok(published)
    }

    /// The publisher does not wait for the answer any more.
    pub(crate) fn forget_publishing(&self, topic: &str) {
        let mut table = self.table();
        let is_over = table.directory.publishing.get(topic).is_some_and(|one| one.answer.is_closed());
        if is_over && let Some(Publishing { word, said: true, .. }) = table.directory.publishing.remove(topic)
        {
            let abandoned = &mut table.directory.abandoned;
            if abandoned.len() >= ABANDONED_MAX {
                abandoned.pop_front();
            }
            abandoned.push_back(Abandoned { word, answered: true });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Identity;
    use super::*;
    use crate::daemon::place::Place;
    use polycast_api::manager::manager_client::ManagerClient;
    use polycast_types::DataId;
    use std::net::Ipv4Addr;
    use tonic::transport::Endpoint;

    fn version(number: u64, data: u64) -> api::TopicVersion {
        let object = object_ref(ObjectId { app: AppId::default(), data: DataId(data) });
        api::TopicVersion { number, object }
    }

    fn word(number: u64, data: u64) -> api::PublishTopic {
        api::PublishTopic {
            app_id: AppId::default().0.to_vec(),
            topic: "t".into(),
            version: Some(version(number, data)),
            patience_ms: None,
        }
    }

    fn hear(link: &ManagerLink, news: News) {
        assert!(link.table().directory.take_in(api::DirectoryNews { news: Some(news) }));
    }

    fn published(link: &ManagerLink, number: u64) {
        let (topic, have, missing) = ("t".into(), Vec::new(), Vec::new());
        hear(link, News::Published(api::Published { topic, number, have, missing }));
    }

    fn refused(link: &ManagerLink, number: u64) {
        let (topic, kind, reason) = ("t".into(), "object-busy".into(), "no".into());
        let next_number = None;
        hear(
            link,
            News::Refused(api::TopicRefused { topic, number: Some(number), kind, reason, next_number }),
        );
    }

    /// A session of a link, with what it says.
    fn connect(link: &ManagerLink) -> mpsc::Receiver<api::AgentMessage> {
        let (outbox, said) = mpsc::channel(4_096);
        let channel = Endpoint::from_static("http://127.0.0.1:1").connect_lazy();
        link.table().connect(outbox, ManagerClient::new(channel));
        said
    }

    fn link() -> ManagerLink {
        let place = Place { interface: Ipv4Addr::LOCALHOST.into(), control: (Ipv4Addr::LOCALHOST, 1).into() };
        let me = Identity { name: "a".into(), place: tokio::sync::watch::Sender::new(place) };
        ManagerLink::new("127.0.0.1:1", me, (None, "manager")).unwrap()
    }

    /// A version goes on when its publisher waits no more: the next one has a higher number, and what becomes
    /// of the first is not told to the second.
    #[tokio::test]
    async fn a_version_whose_publisher_has_gone_counts() {
        let link = link();
        // Of what no manager can have heard nothing comes.
        drop(link.publish(word(9, 9)).unwrap());
        link.forget_publishing("t");
        assert_eq!(link.last_version("t"), None);
        let _said = connect(&link);
        for (number, is_committed) in [(5, true), (7, false)] {
            drop(link.publish(word(number, number)).unwrap());
            link.forget_publishing("t");
            assert_eq!(link.last_version("t"), Some(number));
            let of = |data| object_ref(ObjectId { app: AppId::default(), data: DataId(data) }).unwrap();
            assert_eq!(
                link.abandoned_version("t", &of(number)),
                Some(number),
                "the same object is the same version"
            );
            assert_eq!(link.abandoned_version("t", &of(1)), None);
            let why = link.publish(word(number, 1)).unwrap_err();
            assert_eq!(
                why.refusal.kind,
                Kind::ObjectBusy,
                "which of the two an answer is for could not be told"
            );
            let mut next = link.publish(word(number + 1, 2)).unwrap();
            if is_committed {
                published(&link, number);
            } else {
                refused(&link, number);
            }
            assert!(next.try_recv().is_err(), "that was the answer to the first");
            refused(&link, number + 1);
            assert_eq!(next.await.unwrap().unwrap_err().refusal.kind, Kind::ObjectBusy);
            assert_eq!(link.last_version("t"), Some(5), "what was refused does not count");
            let known = link.table().directory.known["t"].1.clone();
            assert_eq!(known, version(5, 5), "the committed one is that of the first");
            assert_eq!(link.abandoned_version("t", &of(number)), None, "it has had its answer");
        }
    }

    /// A version that is sent again is answered again; one that a manager has not received does not block
    /// another one of its number.
    #[tokio::test]
    async fn a_version_that_is_said_again_has_a_publisher_again() {
        let link = link();
        let _said = connect(&link);
        drop(link.publish(word(5, 1)).unwrap());
        link.forget_publishing("t");
        let again = link.publish(word(5, 1)).unwrap();
        assert!(link.table().directory.abandoned.is_empty());
        published(&link, 5);
        assert_eq!(again.await.unwrap().unwrap().number, 5);
        drop(link.publish(word(6, 1)).unwrap());
        link.forget_publishing("t");
        let _said = connect(&link);
        let other = link.publish(word(6, 2)).unwrap();
        published(&link, 6);
        assert_eq!(other.await.unwrap().unwrap().number, 6);
        // In a new session the manager may still have the first one of two: it counts when it is committed.
        drop(link.publish(word(7, 1)).unwrap());
        link.forget_publishing("t");
        let _said = connect(&link);
        let other = link.publish(word(7, 2)).unwrap();
        refused(&link, 7);
        assert_eq!(other.await.unwrap().unwrap_err().refusal.kind, Kind::ObjectBusy);
        assert_eq!(
            link.abandoned_version(
                "t",
                &object_ref(ObjectId { app: AppId::default(), data: DataId(1) }).unwrap()
            ),
            Some(7)
        );
        published(&link, 7);
        assert_eq!(link.table().directory.known["t"].1, version(7, 1));
        for number in 0..2 * ABANDONED_MAX as u64 {
            drop(link.publish(word(10 + number, 1)).unwrap());
            link.forget_publishing("t");
        }
        assert_eq!(link.table().directory.abandoned.len(), ABANDONED_MAX);
    }

    /// A version that is sent again while the manager is out of reach may be on its way there all the same.
    #[tokio::test]
    async fn a_version_that_is_said_again_without_a_manager_counts() {
        let link = link();
        let _said = connect(&link);
        drop(link.publish(word(5, 1)).unwrap());
        link.forget_publishing("t");
        link.table().hang_up();
        drop(link.publish(word(5, 1)).unwrap());
        link.forget_publishing("t");
        assert_eq!(link.last_version("t"), Some(5));
        // Of what no manager can have heard nothing is kept.
        drop(link.publish(word(6, 2)).unwrap());
        link.forget_publishing("t");
        assert_eq!(link.last_version("t"), Some(5));
        let _said = connect(&link);
        published(&link, 5);
        assert_eq!(link.table().directory.known["t"].1, version(5, 1));
    }
}
