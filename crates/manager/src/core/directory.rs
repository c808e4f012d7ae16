//! Objects that are asked for, and topics: what agents say of them goes to the directory, and what it says goes to agents.

use super::Inner;
use super::obey::Message;
use crate::config::ManagerConfig;
use polycast_api::convert::{app_id, object_id};
use polycast_api::error::{Kind, Refusal};
use polycast_api::manager::{self as api, directory_news::News, directory_word::Word};
use polycast_protocol::directory::{
    DirectoryConfig, DirectoryInput, DirectoryOutput, TopicRefusal, Version, Wish, WishRefusal,
};
use polycast_protocol::leases::AgentKey;
use polycast_types::{Duration, ObjectId};

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
    Some(api::ObjectRef { app_id: object.app.0.to_vec(), data_id: object.data.0 })
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

/// What a message means, one input or several.
fn inputs(agent: &AgentKey, word: Word) -> Result<Vec<DirectoryInput>, Refusal> {
    let agent = agent.clone();
    let input = match word {
        Word::Have(have) => {
            let held = |held: api::HeldObject| {
                let root = held.root.as_slice().try_into().ok();
                let object = object(held.object)?;
                Ok(DirectoryInput::Have { agent: agent.clone(), object, length: held.length, root })
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
        Word::Unserved(unserved) => DirectoryInput::Unserved { agent, object: object(unserved.object)? },
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
    };
    Refusal::new(kind, why.to_string())
}

/// What is said, and to whom.
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
            let version = topic_version(&version);
            (agent, News::Topic(api::TopicNews { topic, version, committed }))
        }
        DirectoryOutput::Published { agent, topic, number, have, missing } => {
            let missing = missing.into_iter();
            let missing = missing.map(|(name, reason)| api::MissingSubscriber { name, reason }).collect();
            (agent, News::Published(api::Published { topic, number, have, missing }))
        }
        DirectoryOutput::TopicRefused { agent, topic, number, why } => {
            let Refusal { kind, message: reason, .. } = topic_refusal(&why);
            let kind = kind.name().to_string();
            (agent, News::Refused(api::TopicRefused { topic, number, kind, reason }))
        }
    }
}

impl Inner {
    /// An agent says something of objects. What makes no sense ends its session.
    pub(super) fn hear_word(&mut self, agent: &AgentKey, word: api::DirectoryWord) -> Result<(), Refusal> {
        // A word that a later version has added says nothing to us.
        let Some(word) = word.word else { return Ok(()) };
        let now = self.now();
        inputs(agent, word)?.into_iter().for_each(|input| self.directory.handle(now, input));
        self.drain();
        Ok(())
    }

    /// Tells an agent what the directory has for it.
    pub(super) fn tell_news(&mut self, output: DirectoryOutput) {
        let (agent, news) = news(output);
        tracing::debug!(agent = %agent.name, ?news, "objects");
        self.tell(&agent, Message::Directory(api::DirectoryNews { news: Some(news) }));
    }

    /// An agent has left or died.
    pub(super) fn forget_objects_of(&mut self, agent: AgentKey) {
        let now = self.now();
        self.directory.handle(now, DirectoryInput::Gone { agent });
    }
}
