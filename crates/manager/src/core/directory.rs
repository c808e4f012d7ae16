//! Objects that are asked for, and topics: what agents say of them goes to the directory, and what it says
//! goes to agents.

use super::Inner;
use super::obey::Message;
use crate::config::ManagerConfig;
use crate::convert;
use polycast_api::convert::{app_id, object_id};
use polycast_api::error::{Kind, Refusal};
use polycast_api::manager::{self as api, directory_news::News, directory_word::Word};
use polycast_protocol::directory::{
    DirectoryConfig, DirectoryInput, DirectoryOutput, Missed, TopicRefusal, Version, Wish, WishRefusal,
};
use polycast_protocol::leases::AgentKey;
use polycast_types::{Duration, ObjectId, Time};

/// Objects, or receivers, that one message may name.
const NAMED_MAX: usize = 65_536;
/// The longest reason of an agent's that is passed on, in bytes.
const REASON_LEN_MAX: usize = 1_024;

/// The directory's settings.
pub(super) fn config(config: &ManagerConfig) -> DirectoryConfig {
    let patience = u64::try_from(config.patience().as_millis()).unwrap_or(u64::MAX);
    DirectoryConfig {
        window: super::millis(config.objects.window_ms),
        settle: super::millis(config.objects.settle_ms.unwrap_or(patience)),
        holds_max: config.objects.holds_max,
        ..DirectoryConfig::default()
    }
}

fn invalid(what: impl Into<String>) -> Refusal {
    Refusal::new(Kind::Invalid, what)
}

fn object(object: Option<api::ObjectRef>) -> Result<ObjectId, Refusal> {
    let object = object.ok_or_else(|| invalid("the message does not say which object"))?;
    object_id(&object.app_id, object.data_id)
}

fn object_ref(object: ObjectId) -> Option<api::ObjectRef> {
    Some(convert::object_ref(object))
}

fn version(version: Option<api::TopicVersion>) -> Result<Version, Refusal> {
    let version = version.ok_or_else(|| invalid("the message does not say which version"))?;
    Ok(Version { number: version.number, object: object(version.object)? })
}

fn topic_version(version: &Version) -> Option<api::TopicVersion> {
    Some(api::TopicVersion { number: version.number, object: object_ref(version.object) })
}

/// An agent's words, cut to a length that others can be told.
fn cut(mut reason: String) -> String {
    reason.truncate(reason.floor_char_boundary(REASON_LEN_MAX));
    reason
}

fn bounded<T>(entries: Vec<T>) -> Result<Vec<T>, Refusal> {
    let count = entries.len();
    if count > NAMED_MAX {
        return Err(invalid(format!("{count} objects or receivers in a message are more than {NAMED_MAX}")));
    }
    Ok(entries)
}

/// Converts a message into one input or several.
fn inputs(agent: &AgentKey, word: Word) -> Result<Vec<DirectoryInput>, Refusal> {
    let agent = agent.clone();
    let input = match word {
        Word::Have(have) => {
            let held = |held: api::HeldObject| {
                let root = held.root.as_slice().try_into().ok();
                let (object, length) = (object(held.object)?, held.length);
                let age = Duration(held.age_ms.saturating_mul(1_000_000));
                Ok(DirectoryInput::Have { agent: agent.clone(), object, length, root, age })
            };
            return bounded(have.objects)?.into_iter().map(held).collect();
        }
        Word::Lost(lost) => {
            let gone = |gone| Ok(DirectoryInput::Lost { agent: agent.clone(), object: object(Some(gone))? });
            return bounded(lost.objects)?.into_iter().map(gone).collect();
        }
        Word::Want(want) => {
            let wish = Wish { can_fill: want.can_fill, waits: want.waits, fills: want.fills };
            DirectoryInput::Want { agent, object: object(want.object)?, wish }
        }
        Word::Unserved(unserved) => {
            DirectoryInput::Unserved { agent, object: object(unserved.object)?, waits: false }
        }
        Word::Unwant(unwant) => DirectoryInput::Unwant { agent, object: object(unwant.object)? },
        Word::FillFailed(failed) => {
            let reason = cut(failed.reason);
            DirectoryInput::FillFailed { agent, object: object(failed.object)?, reason }
        }
        Word::Serving(serving) => DirectoryInput::Serving { agent, serves: bounded(serving.serve_ids)? },
        Word::Served(served) => {
            let outcome = |receiver: api::ServedReceiver| {
                let failed = !receiver.error.is_empty();
                (receiver.name, if failed { Err(cut(receiver.error)) } else { Ok(()) })
            };
            let outcomes = bounded(served.receivers)?.into_iter().map(outcome).collect();
            DirectoryInput::Served { agent, serve: served.serve_id, outcomes }
        }
        Word::Subscribe(subscribe) => {
            let app = app_id(&subscribe.app_id)?;
            DirectoryInput::Subscribe { agent, app, topic: subscribe.topic }
        }
        Word::Unsubscribe(unsubscribe) => DirectoryInput::Unsubscribe { agent, topic: unsubscribe.topic },
        Word::Publish(publish) => DirectoryInput::Publish {
            agent,
            app: app_id(&publish.app_id)?,
            topic: publish.topic,
            version: version(publish.version)?,
            patience: publish
                .patience_ms
                .map(|millis| Duration::from_nanos(millis.saturating_mul(1_000_000))),
        },
        Word::Known(known) => DirectoryInput::Committed {
            agent,
            app: app_id(&known.app_id)?,
            topic: known.topic,
            version: version(known.version)?,
        },
        Word::ToldAll(_) => DirectoryInput::Told { agent },
    };
    Ok(vec![input])
}

fn topic_refusal(why: &TopicRefusal) -> Refusal {
    let kind = match why {
        TopicRefusal::BadName(_) | TopicRefusal::NotAbove { .. } => Kind::Invalid,
        TopicRefusal::OtherApplication(_) => Kind::TopicTaken,
        TopicRefusal::Staging { .. } => Kind::ObjectBusy,
        TopicRefusal::NotHeld(_) | TopicRefusal::Vanished { .. } => Kind::ObjectUnknown,
        TopicRefusal::Full(_) => Kind::Full,
    };
    Refusal::new(kind, why.to_string())
}

fn wish_refusal(why: &WishRefusal) -> Refusal {
    let kind = match why {
        WishRefusal::Nobody => Kind::ObjectUnknown,
        WishRefusal::Origin(_) => Kind::OriginFailed,
        WishRefusal::Failed(_) => Kind::TransferFailed,
        WishRefusal::Full(_) => Kind::Full,
        WishRefusal::Draining(_) => Kind::Denied,
    };
    Refusal::new(kind, why.to_string())
}

/// Returns the kind of the failure of a subscriber that has not got a version.
fn missed_kind(why: &Missed) -> Kind {
    match why {
        Missed::Object(why) => wish_refusal(why).kind,
        Missed::Topic(why) => topic_refusal(why).kind,
        Missed::Unsubscribed => Kind::Cancelled,
        Missed::Gone => Kind::NotJoined,
        Missed::Late => Kind::TimedOut,
        Missed::NotKept | Missed::Earlier => Kind::ObjectUnknown,
    }
}

/// Converts an output into the news and the agent that it is for.
fn news(output: DirectoryOutput) -> (AgentKey, News) {
    match output {
        DirectoryOutput::Serve { holder, serve, object, receivers } => {
            (holder, News::Serve(api::Serve { serve_id: serve, object: object_ref(object), receivers }))
        }
        DirectoryOutput::Fill { agent, object } => {
            (agent, News::Fill(api::FillWanted { object: object_ref(object) }))
        }
        DirectoryOutput::Denied { agent, object, why } => {
            let Refusal { kind, message: reason, .. } = wish_refusal(&why);
            let kind = kind.name().to_string();
            (agent, News::Denied(api::WishDenied { object: object_ref(object), kind, reason }))
        }
        DirectoryOutput::News { agent, topic, version, committed } => {
            let version = version.as_ref().and_then(topic_version);
            (agent, News::Topic(api::TopicNews { topic, version, committed }))
        }
        DirectoryOutput::Published { agent, topic, number, have, missing } => {
            let missing = missing.into_iter();
            let missing = missing.map(|(name, why)| api::MissingSubscriber {
                name,
                reason: why.to_string(),
                kind: missed_kind(&why).name().to_string(),
            });
            let missing = missing.collect();
            (agent, News::Published(api::Published { topic, number, have, missing }))
        }
        DirectoryOutput::TopicRefused { agent, topic, number, why } => {
            let Refusal { kind, message: reason, .. } = topic_refusal(&why);
            let (kind, next_number) = (kind.name().to_string(), why.next_number());
            (agent, News::Refused(api::TopicRefused { topic, number, kind, reason, next_number }))
        }
    }
}

impl Inner {
    /// An agent says something of objects. What makes no sense ends its session.
    pub(super) fn hear_word(&mut self, agent: &AgentKey, word: api::DirectoryWord) -> Result<(), Refusal> {
        // A word that a later version has added says nothing to us.
        let Some(word) = word.word else { return Ok(()) };
        let now = self.now();
        for mut input in inputs(agent, word)? {
            if let DirectoryInput::Unserved { agent, object, waits } = &mut input {
                let Some(holder) = self.directory.server(agent, *object) else { continue };
                let since = Time(now.0.saturating_sub(DirectoryConfig::default().begin.0));
                // It has its path only now, and a while to begin. The receiver says again that nothing comes.
                if self.machine.has_begun(holder, *object, &agent.name, since) {
                    continue;
                }
                *waits = self.machine.waits(holder, *object, &agent.name);
            }
            self.directory.handle(now, input);
        }
        self.drain();
        Ok(())
    }

    /// Tells an agent what the directory has for it.
    pub(super) fn tell_news(&mut self, output: DirectoryOutput) {
        let (agent, news) = news(output);
        tracing::debug!(agent = %agent.name, ?news, "objects");
        self.tell(&agent, Message::Directory(api::DirectoryNews { news: Some(news) }));
    }

    /// The directory goes by the hosts that are drained now.
    pub(super) fn tell_drained(&mut self) {
        let now = self.now();
        let hosts = self.machine.drained_hosts().into_iter().map(|(name, _)| name.to_string()).collect();
        self.directory.handle(now, DirectoryInput::Drained { hosts });
        self.drain();
    }

    /// An agent has left or died.
    pub(super) fn forget_objects_of(&mut self, agent: AgentKey) {
        let now = self.now();
        self.directory.handle(now, DirectoryInput::Gone { agent });
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Around, Core};
    use super::*;
    use polycast_protocol::leases::{Input, Join, PathRequest, Receivers};
    use polycast_types::{AppId, DataId};
    use std::sync::Arc;
    use tokio::sync::mpsc;

    fn agent(name: &str) -> AgentKey {
        AgentKey { name: name.into(), incarnation: 1 }
    }

    type Messages = mpsc::Receiver<Result<api::ManagerMessage, tonic::Status>>;

    fn join(core: &Arc<Core>, name: &str) -> (super::super::Seat, Messages) {
        let (outbox, messages) = mpsc::channel(64);
        let from = std::net::Ipv4Addr::LOCALHOST.into();
        let join = Join { agent: agent(name), address: ([10, 0, 0, 1].into(), 1), from, leases: Vec::new() };
        (core.join(join, outbox, Message::Joined(api::Joined::default())).unwrap(), messages)
    }

    fn path(source: &str, request: u64, data: u64, receiver: &str) -> Input {
        Input::Request(PathRequest {
            agent: agent(source),
            request,
            object: ObjectId { app: AppId::default(), data: DataId(data) },
            object_bytes: 7,
            remaining_bytes: 7,
            further_sources: Vec::new(),
            receivers: Receivers::Named(vec![receiver.into()]),
            divisible: false,
            lease: None,
            wish: Default::default(),
        })
    }

    /// A transfer may wait in the queue for paths for longer than a receiver waits before it says that
    /// nothing comes: as long as it does its source is not passed over, and no origin is read. One that does
    /// not ask for a path is.
    #[tokio::test(start_paused = true)]
    async fn one_that_waits_for_its_path_is_not_passed_over() {
        let settings = "fabrics = ['ip-multicast']\nsilence-ms = 600000\nlease-ms = 600000\n\
            [ip-multicast]\npool = '239.1.0.0/32'\n[objects]\nsettle-ms = 100";
        let config = ManagerConfig::from_toml(settings).unwrap();
        for asks in [true, false] {
            let (core, _news) = Core::new(&config, &Around::default()).unwrap();
            let core = Arc::new(core);
            let seats: Vec<_> = ["holder", "receiver", "other"].map(|name| join(&core, name)).into();
            let object = ObjectId { app: AppId::default(), data: DataId(1) };
            let says = |name: &str, word: Word| {
                let word = api::DirectoryWord { word: Some(word) };
                core.with(|inner| inner.hear_word(&agent(name), word)).unwrap();
            };
            // Another transfer has the one address that there is.
            core.with(|inner| inner.apply(path("other", 1, 2, "receiver")));
            let held =
                api::HeldObject { object: object_ref(object), length: 7, root: vec![3; 32], age_ms: 0 };
            says("holder", Word::Have(api::Have { objects: vec![held] }));
            let want = api::Want { object: object_ref(object), can_fill: true, waits: true, fills: false };
            tokio::time::advance(std::time::Duration::from_secs(1)).await;
            says("receiver", Word::Want(want));
            tokio::time::advance(std::time::Duration::from_secs(1)).await;
            core.with(Inner::drain);
            let told = core.with(|inner| inner.directory.server(&agent("receiver"), object).cloned());
            assert_eq!(told, Some(agent("holder")));
            if asks {
                core.with(|inner| inner.apply(path("holder", 1, 1, "receiver")));
            }
            let unserved = || Word::Unserved(api::Unserved { object: object_ref(object) });
            let filler = || core.with(|inner| inner.directory.filler(object).cloned());
            tokio::time::advance(std::time::Duration::from_secs(30)).await;
            says("receiver", unserved());
            assert_eq!(filler(), (!asks).then(|| agent("receiver")), "the holder waits: {asks}");
            if asks {
                // It has its path by now, and a while to begin.
                let request = agent("other").request(1);
                core.with(|inner| inner.apply(Input::Withdraw { request }));
                tokio::time::advance(std::time::Duration::from_secs(19)).await;
                says("receiver", unserved());
                assert_eq!(filler(), None);
                tokio::time::advance(std::time::Duration::from_secs(2)).await;
                says("receiver", unserved());
                assert_eq!(filler(), Some(agent("receiver")), "it has its path, and sends nothing");
            }
            drop(seats);
        }
    }
}
