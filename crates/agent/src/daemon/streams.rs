//! Streams of messages on this host (Orca section 4): those that applications here send, and those that they
//! hear.

mod pen;

use super::manager_link::{Audience, Listening, Other, Published, Sends, Whereabouts};
use super::shared::Shared;
use super::users::User;
use crate::stream::{Heard, Inbox, Message, Receiver, ReceiverOptions, Sender, Sent, Voice, Way};
use crate::transfer::Path;
use polycast_api::agent::{self as api, ReceiveMessagesResponse};
use polycast_api::error::{Kind, Refusal};
use polycast_net::interface;
use polycast_net::seal::{Seal, Secret};
use polycast_types::{AppId, Duration as Span, Handle};
use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{mpsc, watch};
use tonic::Status;

/// The fabric in which switches put labels before packets.
const LABELS: &str = "orca";
/// Purpose of the key of streams, if members share one.
const STREAMS: &str = "polycast 3 streams";
/// Time that a message waits for the ones before it unless the caller states another.
const HOLD: Span = Span::from_micros(1_000);
/// The longest time that can be asked for.
const HOLD_MAX: Span = Span::from_millis(10_000);
/// Messages, and bytes of them, in one response.
const BATCH_MAX: usize = 256;
const BATCH_BYTES_MAX: usize = 1 << 20;
/// Responses that wait for a caller.
const RESPONSES_MAX: usize = 4;

/// A stream that was made here.
struct Source {
    app: AppId,
    user: User,
    /// True if every member may send.
    shared: bool,
    /// Nothing once the stream has ended.
    published: Mutex<Option<Published>>,
    audience: watch::Receiver<Audience>,
    mouth: Arc<Mouth>,
}

/// The end of a stream by which this host sends.
struct Mouth {
    handle: u64,
    sender: tokio::sync::Mutex<Sender>,
    sent: Mutex<Sent>,
}

/// A stream that is heard here.
struct Ear {
    listening: Listening,
    /// For messages of this host, where every member sends.
    mouth: Arc<Mouth>,
    hold: Span,
    /// Begins when the manager has said where the stream comes.
    receiver: Mutex<Option<(u64, Receiver)>>,
    /// Becomes true when a user of this host leaves the stream for all.
    left: watch::Sender<bool>,
}

/// The streams of this host.
pub(super) struct Streams {
    shared: Arc<Shared>,
    table: Mutex<Table>,
    most: usize,
}

#[derive(Default)]
struct Table {
    sources: BTreeMap<String, Arc<Source>>,
    ears: BTreeMap<String, Arc<Ear>>,
}

/// The secret of a stream: its source has drawn it, and the manager has told it. Two streams may have the
/// same handle, which would repeat a key stream if they had the same secret, too. Sources of earlier versions
/// draw none where members share a key.
fn secret_of(told: Option<&Secret>, shared: impl FnOnce() -> Option<Secret>) -> Option<Secret> {
    told.cloned().or_else(shared)
}

/// The path of a shared stream's packets. Label switches take what goes to their own port for labelled
/// already, so these go to the one beside it.
fn path_of_all(fabric: &str, path: &Path) -> Path {
    let mut path = path.clone();
    if let Path::Multicast { group, .. } = &mut path
        && fabric == LABELS
    {
        group.set_port(group.port() ^ 1);
    }
    path
}

fn internal(error: impl std::fmt::Display) -> Refusal {
    Refusal::new(Kind::Internal, error.to_string())
}

impl Streams {
    pub(super) fn new(shared: Arc<Shared>, most: usize) -> Self {
        Streams { shared, table: Mutex::default(), most }
    }

    /// Makes a stream that processes of this application can send to.
    pub(super) async fn create(
        &self,
        (app, user): (AppId, User),
        name: &str,
        shared: bool,
    ) -> Result<(), Refusal> {
        self.check_room(&self.lock())?;
        let own = self.lock().sources.values().filter(|source| source.user == user).count();
        if user.is_other() && own >= user.share(self.most) {
            return Err(user.too_many(own, "streams"));
        }
        let secret = self.shared.sealing.security().map(|_| Secret::fresh());
        let (mouth, sends) = self.mouth(name, secret.as_ref(), shared)?;
        let published = self.shared.link.create_stream(name, sends, secret, shared).await?;
        let audience = published.audience.clone();
        let source = Source { app, user, shared, published: Some(published).into(), audience, mouth };
        tracing::info!(stream = name, "created");
        self.lock().sources.insert(name.to_string(), Arc::new(source));
        Ok(())
    }

    /// An end of a stream by which this host sends, and its position; sealed where the secret is known.
    fn mouth(
        &self,
        name: &str,
        secret: Option<&Secret>,
        shared: bool,
    ) -> Result<(Arc<Mouth>, Sends), Refusal> {
        // Another run of the stream has another one: the hasher's keys are random.
        let handle = RandomState::new().hash_one(name);
        let interface = interface::of_address(self.shared.interface()).map_err(internal)?;
        let seal = secret.map(|secret| Seal::new(secret, Handle(handle)));
        let sender =
            Sender::new(interface.address, interface.mtu, Handle(handle), seal).with_class(self.shared.dscp);
        let sender = if shared { sender.with_room_for_labels() } else { sender };
        let sends = Sends { handle, next: sender.next_number() };
        Ok((Arc::new(Mouth { handle, sender: sender.into(), sent: Mutex::default() }), sends))
    }

    /// Ends a stream of this application.
    pub(super) fn end(&self, caller: (AppId, User), name: &str) -> Result<(), Refusal> {
        // A process that is sending is told with the next message.
        self.source(caller, name)?.published().take();
        self.lock().sources.remove(name);
        tracing::info!(stream = name, "ended");
        Ok(())
    }

    /// Returns the seal of a stream if agents show a key or a certificate.
    fn seal(&self, handle: u64, told: Option<&Secret>) -> Result<Option<Seal>, Refusal> {
        let Some(security) = self.shared.sealing.security() else { return Ok(None) };
        let Some(secret) = secret_of(told, || security.members_secret(STREAMS)) else {
            let message = "this agent was not told what this stream is sealed with: its agent and the manager must be of this version";
            return Err(Refusal::new(Kind::Invalid, message));
        };
        Ok(Some(Seal::new(&secret, Handle(handle))))
    }

    fn check_room(&self, table: &Table) -> Result<(), Refusal> {
        if table.sources.len() + table.ears.len() < self.most {
            return Ok(());
        }
        let message = format!("this agent has {} streams, which is its limit", self.most);
        Err(Refusal::new(Kind::Full, message))
    }

    fn source(&self, (app, user): (AppId, User), name: &str) -> Result<Arc<Source>, Refusal> {
        let source = self.lock().sources.get(name).cloned();
        let is_own = |source: &Arc<Source>| source.app == app && user.may_end(Some(source.user.uid()));
        source.filter(is_own).ok_or_else(|| {
            let message = format!("this application has created no stream '{name}' on this host");
            Refusal::new(Kind::StreamUnknown, message)
        })
    }

    /// A stream that is heard here, joined if it was not yet.
    fn ear(&self, name: &str, hold: Span) -> Result<Arc<Ear>, Refusal> {
        let mut table = self.lock();
        if let Some(ear) = table.ears.get(name) {
            return Ok(Arc::clone(ear));
        }
        self.check_room(&table)?;
        let (mouth, sends) = self.mouth(name, None, true)?;
        let (listening, left) = (self.shared.link.join_stream(name, sends)?, watch::Sender::new(false));
        let ear = Arc::new(Ear { listening, mouth, hold, receiver: Mutex::default(), left });
        table.ears.insert(name.to_string(), Arc::clone(&ear));
        Ok(ear)
    }

    /// Begins to hear a stream, and tells the caller until it goes.
    pub(super) fn hear(
        self: &Arc<Self>,
        name: &str,
        hold_us: Option<u64>,
    ) -> Result<mpsc::Receiver<Result<ReceiveMessagesResponse, Status>>, Refusal> {
        let hold = hold_us.map_or(HOLD, |micros| Span::from_nanos(micros.saturating_mul(1_000)));
        if hold > HOLD_MAX {
            let message = format!("a message can wait for others at most {} s", HOLD_MAX.as_millis() / 1_000);
            return Err(Refusal::new(Kind::Invalid, message));
        }
        let ear = self.ear(name, hold)?;
        let (responses, stream) = mpsc::channel(RESPONSES_MAX);
        let (streams, name) = (Arc::clone(self), name.to_string());
        tokio::spawn(async move {
            let end = streams.tell(&ear, &responses).await;
            streams.forget(&name, ear);
            if let Err(refusal) = end {
                // The caller may have gone.
                let _ = responses.send(Err(refusal.into())).await;
            }
        });
        Ok(stream)
    }

    /// Leaves a stream for all who hear it here.
    pub(super) fn leave(&self, name: &str) -> Result<(), Refusal> {
        let Some(ear) = self.lock().ears.remove(name) else {
            let message = format!("no process on this host hears the stream '{name}'");
            return Err(Refusal::new(Kind::StreamUnknown, message));
        };
        ear.left.send_replace(true);
        Ok(())
    }

    /// One caller less; the last one leaves the stream.
    fn forget(&self, name: &str, ear: Arc<Ear>) {
        let mut table = self.lock();
        let is_ours = table.ears.get(name).is_some_and(|other| Arc::ptr_eq(other, &ear));
        // The table's and ours: no other process listens.
        if is_ours && Arc::strong_count(&ear) <= 2 {
            table.ears.remove(name);
        }
        // Within the lock: of two who go at the same time one has to be the last.
        drop(ear);
        drop(table);
    }

    /// Tells a caller what comes, until it goes or the stream ends.
    async fn tell(
        &self,
        ear: &Ear,
        responses: &mpsc::Sender<Result<ReceiveMessagesResponse, Status>>,
    ) -> Result<(), Refusal> {
        let (mut whereabouts, mut left) = (ear.listening.whereabouts.clone(), ear.left.subscribe());
        let mut inbox: Option<(u64, Inbox)> = None;
        // At first what is known counts as news.
        whereabouts.mark_changed();
        loop {
            let next = async {
                match &mut inbox {
                    Some((_, inbox)) => inbox.next().await,
                    None => std::future::pending().await,
                }
            };
            let response = tokio::select! {
                biased;
                changed = whereabouts.changed() => {
                    changed.map_err(internal)?;
                    let now = whereabouts.borrow_and_update().clone();
                    match self.turn(ear, now, &mut inbox)? {
                        Some(joined) => ReceiveMessagesResponse { joined: Some(joined), messages: Vec::new() },
                        None => continue,
                    }
                }
                message = next => match (message, &mut inbox) {
                    (Some(message), Some((_, inbox))) => batch(message, inbox),
                    // Its receiver has ended.
                    _ => { inbox = None; continue }
                },
                () = responses.closed() => return Ok(()),
                _ = left.wait_for(|left| *left) => {
                    return Err(Refusal::new(Kind::Cancelled, "a user of this host has left the stream"));
                }
            };
            if responses.send(Ok(response)).await.is_err() {
                return Ok(());
            }
        }
    }

    /// Turns to where the stream comes now.
    fn turn(
        &self,
        ear: &Ear,
        whereabouts: Whereabouts,
        inbox: &mut Option<(u64, Inbox)>,
    ) -> Result<Option<api::Joined>, Refusal> {
        let (path, handle, fabric, source, others) = match &whereabouts {
            Whereabouts::Unknown => return Ok(None),
            Whereabouts::Gone(refusal) => return Err(refusal.clone()),
            Whereabouts::Here { path, handle, fabric, source, others, .. } => {
                (path, *handle, fabric.clone(), source.clone(), others)
            }
        };
        let (shared, voices) = (others.is_some(), self.voices(&whereabouts)?);
        let is_ours = shared && source == self.shared.name;
        let own = shared.then_some(Handle(if is_ours { handle } else { ear.mouth.handle }));
        let failed =
            |error: crate::stream::StreamError| Refusal::new(Kind::TransferFailed, error.to_string());
        let way = Way::of(&if shared { path_of_all(&fabric, path) } else { path.clone() }).map_err(failed)?;
        let mut receiver = ear.receiver.lock().unwrap_or_else(PoisonError::into_inner);
        let receiver = match &mut *receiver {
            Some((known, receiver)) if *known == handle => {
                receiver.set_way(way, voices);
                receiver
            }
            other => {
                let options = ReceiverOptions { interface: self.shared.interface(), own, hold: ear.hold };
                &mut other.insert((handle, Receiver::start(options, way, voices).map_err(failed)?)).1
            }
        };
        if inbox.as_ref().is_none_or(|(heard, _)| *heard != handle) {
            *inbox = Some((handle, receiver.listen()));
        }
        Ok(Some(api::Joined { fabric, source }))
    }

    /// All that send to a stream but this host.
    fn voices(&self, whereabouts: &Whereabouts) -> Result<Vec<Voice>, Refusal> {
        let Whereabouts::Here { handle, source, address, secret, from, others, .. } = whereabouts else {
            return Ok(Vec::new());
        };
        let (name, handle, from) = (source.clone(), Some(*handle), Some(*from));
        let source = Other { name, handle, address: *address, from };
        let all = [&source].into_iter().chain(others.iter().flatten());
        let voice = |Other { name, handle, address, from }: &Other| {
            let seal = handle.map(|handle| self.seal(handle, secret.as_ref())).transpose()?.flatten();
            let (name, handle) = (name.as_str().into(), handle.map(Handle));
            Ok(Voice { name, handle, address: *address, from: *from, seal })
        };
        all.filter(|other| others.is_none() || other.name != self.shared.name).map(voice).collect()
    }

    /// The streams that the manager knows, with what is known here.
    pub(super) async fn list(&self) -> Result<Vec<api::Stream>, Refusal> {
        let known = self.shared.link.streams().await?;
        let table = self.lock();
        let stream = |stream: polycast_api::manager::StreamStatus| {
            let source = table.sources.get(&stream.name).map(|source| &source.mouth);
            let member = table.ears.get(&stream.name).map(|ear| &ear.mouth).filter(|_| stream.shared);
            let sent = source.or(member).map(|mouth| {
                let Sent { messages, unheard, failed } = *mouth.counted();
                api::StreamSent { messages, unheard, failed }
            });
            let heard = table.ears.get(&stream.name).map(|ear| {
                let receiver = ear.receiver.lock().unwrap_or_else(PoisonError::into_inner);
                let heard = receiver.as_ref().map(|(_, receiver)| receiver.heard());
                let Heard { messages, lost, late, refused } = heard.unwrap_or_default();
                api::StreamHeard { messages, lost, late, refused }
            });
            let polycast_api::manager::StreamStatus { name, source, receivers, fabric, shared } = stream;
            api::Stream { name, source, receivers, fabric, sent, heard, shared }
        };
        Ok(known.into_iter().map(stream).collect())
    }

    /// Ends all streams here.
    pub(super) fn close(&self) {
        let mut table = self.lock();
        for source in std::mem::take(&mut table.sources).into_values() {
            source.published().take();
        }
        for ear in std::mem::take(&mut table.ears).into_values() {
            ear.left.send_replace(true);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        // Nothing here panics between two changes that belong together.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Source {
    fn published(&self) -> MutexGuard<'_, Option<Published>> {
        self.published.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Mouth {
    fn counted(&self) -> MutexGuard<'_, Sent> {
        self.sent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A message with those that have come meanwhile.
fn batch(first: Message, inbox: &mut Inbox) -> ReceiveMessagesResponse {
    let mut response = ReceiveMessagesResponse::default();
    let (mut bytes, mut next) = (0, Some(first));
    while let Some(message) = next {
        bytes += message.payload.len();
        let Message { sender, number, lost, arrived_unix_ns, payload } = message;
        let payload = Arc::unwrap_or_clone(payload);
        let sender = sender.to_string();
        response.messages.push(api::Message { number, lost, arrived_unix_ns, payload, sender });
        let room = response.messages.len() < BATCH_MAX && bytes < BATCH_BYTES_MAX;
        next = if room { inbox.try_next() } else { None };
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_sealed_with_what_its_source_has_drawn() {
        let [told, shared] = [7, 8].map(|byte| Secret::new([byte; 32]));
        assert!(secret_of(Some(&told), || Some(shared.clone())) == Some(told.clone()));
        assert!(secret_of(None, || Some(shared.clone())) == Some(shared.clone()));
        assert!(secret_of(None, || None).is_none());
    }
}
