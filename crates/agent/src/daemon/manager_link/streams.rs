//! Streams of messages at the manager (Orca section 4): create, join and leave, said again whenever a session
//! begins.

use super::channel;
use crate::transfer::Path;
use polycast_api::error::{Kind, Refusal};
use polycast_api::manager::agent_message::Message as Said;
use polycast_api::manager::stream_news::News;
use polycast_api::manager::{self as api, Channel, StreamNews};
use polycast_net::seal::Secret;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::watch;

/// A source's view of its stream.
#[derive(Clone, Debug, Default)]
pub(crate) struct Audience {
    /// Manager's answer about it; none before it arrives.
    pub made: Option<Result<(), Refusal>>,
    /// The way to the stream's receivers; none while there are none.
    pub path: Option<(String, Path)>,
}

/// A receiver's view of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "there is one for each stream, and most of them come")]
pub(crate) enum Whereabouts {
    /// Nothing is known yet.
    Unknown,
    /// It comes here.
    Here {
        /// The way that it comes.
        path: Path,
        /// Handle that packets carry.
        handle: u64,
        /// The fabric's name.
        fabric: String,
        /// The source's name.
        source: String,
        /// The address that packets come from, where that is known.
        address: Option<IpAddr>,
        /// Secret from its source that messages are sealed with, if members share no key.
        secret: Option<Secret>,
        /// The number of its source's next message when we had joined; what has a lower one is old.
        from: u64,
        /// All that send beside the source and us, where every member does.
        others: Option<Vec<Other>>,
    },
    /// It has ended, or cannot be heard.
    Gone(Refusal),
}

/// Sender of a shared stream beside its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Other {
    /// Its name.
    pub name: String,
    /// Handle that its packets carry; with none it goes on as it was.
    pub handle: Option<u64>,
    /// The address that they come from, where that is known.
    pub address: Option<IpAddr>,
    /// The number of its next message when we had joined, once it has said so.
    pub from: Option<u64>,
}

/// The position of a host that sends: its handle, and the number of its next message.
#[derive(Clone, Debug)]
pub(crate) struct Sends {
    /// Handle that its packets carry.
    pub handle: u64,
    /// The number of its next message.
    pub next: Arc<AtomicU64>,
}

/// State of the link's streams.
#[derive(Default)]
pub(super) struct Streams {
    pub created: BTreeMap<String, Created>,
    pub joined: BTreeMap<String, Joined>,
}

/// A stream that we send, as the manager is told of it.
pub(super) struct Created {
    pub request: u64,
    pub sends: Sends,
    pub secret: Option<Secret>,
    pub shared: bool,
    pub audience: watch::Sender<Audience>,
}

/// A stream that we hear, as the manager is told of it.
pub(super) struct Joined {
    /// Drawn for this: what answers another number was said for an earlier listener, and may be old.
    pub ask: u64,
    /// Our own messages, where every member sends.
    pub sends: Sends,
    pub whereabouts: watch::Sender<Whereabouts>,
}

impl Created {
    pub(super) fn word(&self, name: &str) -> Said {
        let (name, request_id, handle) = (name.to_string(), self.request, self.sends.handle);
        let secret = self.secret.as_ref().map(|secret| secret.reveal().to_vec()).unwrap_or_default();
        Said::CreateStream(api::CreateStream { name, request_id, handle, secret, shared: self.shared })
    }
}

impl Joined {
    pub(super) fn word(&self, name: &str) -> Said {
        let (name, sends) = (name.to_string(), Some(self.sends.handle));
        Said::JoinStream(api::JoinStream { name, ask: self.ask, sends })
    }
}

impl Streams {
    /// All that the manager has to know.
    pub(super) fn all(&self) -> Vec<Said> {
        let created = self.created.iter().map(|(name, created)| created.word(name));
        created.chain(self.joined.iter().map(|(name, joined)| joined.word(name))).collect()
    }

    /// The handle of the stream with this request.
    pub(super) fn handle(&self, request: u64) -> u64 {
        self.of(request).map_or(0, |created| created.sends.handle)
    }

    fn of(&self, request: u64) -> Option<&Created> {
        self.created.values().find(|created| created.request == request)
    }

    /// The path of a request has changed; gives whether it is one of a stream here.
    pub(super) fn path(&self, request: u64, path: Option<(&str, &Option<Channel>)>) -> bool {
        let Some(created) = self.of(request) else { return false };
        let path = path.and_then(|(fabric, channel)| {
            let path = channel::path(channel.clone());
            if let Err(refusal) = &path {
                tracing::warn!(%refusal, "the path of a stream cannot be used");
            }
            Some((fabric.to_string(), path.ok()?))
        });
        created.audience.send_modify(|audience| audience.path = path);
        true
    }

    /// Takes in what the manager says of a stream; gives what it is to be told.
    pub(super) fn take_in(&mut self, news: StreamNews) -> Option<Said> {
        let StreamNews { name, news } = news;
        let gone = |refusal| Whereabouts::Gone(refusal);
        match news {
            Some(News::Created(_)) => {
                if let Some(created) = self.created.get(&name) {
                    created.audience.send_modify(|audience| audience.made = Some(Ok(())));
                }
            }
            Some(News::Where(api::StreamWhere { receiver, ask })) => {
                // The path that has this receiver in it is told after this: what goes that way has this
                // number or a higher one.
                let created = self.created.get(&name).map(|created| &created.sends);
                let sends = created.or_else(|| Some(&self.joined.get(&name)?.sends))?;
                let next = sends.next.load(Ordering::SeqCst);
                return Some(Said::StreamAt(api::StreamAt { name, receiver, ask, next }));
            }
            Some(News::Joined(joined)) => {
                let Joined { ask, whereabouts, .. } = self.joined.get(&name)?;
                if joined.ask != *ask {
                    return None;
                }
                whereabouts.send_replace(here(joined).unwrap_or_else(gone));
            }
            Some(News::Refused(denied)) => {
                let kind = Kind::from_name(&denied.kind).unwrap_or(Kind::Internal);
                let refusal = Refusal::new(kind, denied.reason);
                // An agent hears only a shared stream that it has made, and that is its own by then.
                let is_made = kind == Kind::StreamTaken && self.created.contains_key(&name);
                if let Some(joined) = self.joined.get(&name).filter(|_| !is_made) {
                    joined.whereabouts.send_replace(gone(refusal));
                } else if let Some(created) = self.created.get(&name) {
                    created.audience.send_modify(|audience| audience.made = Some(Err(refusal)));
                }
            }
            Some(News::Ended(_)) => {
                if let Some(joined) = self.joined.get(&name) {
                    let message = format!("the stream '{name}' has ended");
                    joined.whereabouts.send_replace(gone(Refusal::new(Kind::StreamUnknown, message)));
                }
            }
            None => {}
        }
        None
    }
}

/// The view of a stream that comes.
fn here(joined: api::StreamJoined) -> Result<Whereabouts, Refusal> {
    let api::StreamJoined {
        channel,
        fabric,
        source,
        handle,
        source_address,
        secret,
        from,
        shared,
        senders,
        ..
    } = joined;
    let address = source_address.parse().ok();
    let secret = secret.try_into().ok().map(Secret::new);
    let other = |api::StreamSender { name, handle, address, from }| Other {
        name,
        handle,
        address: address.parse().ok(),
        from,
    };
    let others = shared.then(|| senders.into_iter().map(other).collect());
    let path = channel::path(channel)?;
    Ok(Whereabouts::Here { path, handle, fabric, source, address, secret, from, others })
}
