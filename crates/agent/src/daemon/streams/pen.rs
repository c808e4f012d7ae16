//! Processes of this host that send to a stream.

use super::{Ear, HOLD, Mouth, Source, Streams};
use crate::daemon::manager_link::{Audience, Whereabouts};
use crate::daemon::users::User;
use crate::stream::Sender;
use polycast_api::agent::SendMessagesResponse;
use polycast_api::error::{Kind, Refusal};
use polycast_types::AppId;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Pause before a full socket is tried again.
const BLOCKED: Duration = Duration::from_millis(1);
/// Time until a member that has joined has to be told where it sends.
const JOINED_IN: Duration = Duration::from_secs(10);

/// A process that sends to a stream.
pub(in crate::daemon) struct Pen {
    from: From,
    totals: SendMessagesResponse,
}

/// The end by which it sends.
enum From {
    /// That of the stream's source.
    Source { source: Arc<Source>, audience: watch::Receiver<Audience> },
    /// That of a member of a shared stream. The refusal is for one that turns out not to be shared.
    Member { guest: Guest, whereabouts: watch::Receiver<Whereabouts>, refusal: Refusal },
}

/// Membership in a stream, which ends with the last process of the host.
struct Guest {
    streams: Arc<Streams>,
    name: String,
    mouth: Arc<Mouth>,
    /// Taken when it ends.
    ear: Option<Arc<Ear>>,
}

impl Streams {
    /// Begins to send to a stream: one of this application, or a shared one, which it joins for that.
    pub(in crate::daemon) async fn pen(
        self: &Arc<Self>,
        caller: (AppId, User),
        name: &str,
    ) -> Result<Pen, Refusal> {
        let shared = self.lock().sources.get(name).filter(|source| source.shared).cloned();
        let source = shared.map_or_else(|| self.source(caller, name), Ok);
        let totals = SendMessagesResponse::default();
        let refusal = match source {
            Ok(source) => {
                let mut audience = source.audience.clone();
                // At first what is known counts as news.
                audience.mark_changed();
                return Ok(Pen { from: From::Source { source, audience }, totals });
            }
            Err(refusal) => refusal,
        };
        if !self.lock().ears.contains_key(name) {
            let known = self.shared.link.streams().await?;
            if !known.iter().any(|stream| stream.name == name && stream.shared) {
                let message = format!("{}, and there is no shared one of this name", refusal.message);
                return Err(Refusal::new(Kind::StreamUnknown, message));
            }
        }
        let ear = self.ear(name, HOLD)?;
        let mut whereabouts = ear.listening.whereabouts.clone();
        whereabouts.mark_changed();
        let (streams, mouth) = (Arc::clone(self), Arc::clone(&ear.mouth));
        let guest = Guest { streams, name: name.to_string(), mouth, ear: Some(ear) };
        Ok(Pen { from: From::Member { guest, whereabouts, refusal }, totals })
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        if let Some(ear) = self.ear.take() {
            self.streams.forget(&self.name, ear);
        }
    }
}

impl From {
    /// Waits until it is known where a member sends, or why it cannot.
    async fn known(&mut self) -> Result<(), Refusal> {
        match self {
            From::Source { source, audience } => {
                if let Some(Err(refusal)) = &audience.borrow().made {
                    return Err(refusal.clone());
                }
                if source.published().is_none() {
                    return Err(Refusal::new(Kind::StreamUnknown, "the stream has ended"));
                }
                Ok(())
            }
            From::Member { whereabouts, refusal, .. } => {
                // What a wait has seen is news to the turn still.
                let mut whereabouts = whereabouts.clone();
                let known = whereabouts.wait_for(|now| *now != Whereabouts::Unknown);
                let Ok(known) = tokio::time::timeout(JOINED_IN, known).await else {
                    let message = "the manager has not said within 10 s where this stream goes";
                    return Err(Refusal::new(Kind::ManagerUnreachable, message));
                };
                match &*known.map_err(super::internal)? {
                    Whereabouts::Gone(refusal) => Err(refusal.clone()),
                    Whereabouts::Here { others: None, .. } => Err(refusal.clone()),
                    _ => Ok(()),
                }
            }
        }
    }

    /// The end of the stream by which it sends.
    fn mouth(&self) -> Arc<Mouth> {
        match self {
            From::Source { source, .. } => Arc::clone(&source.mouth),
            From::Member { guest, .. } => Arc::clone(&guest.mouth),
        }
    }

    /// Turns to those who listen now.
    fn turn(&mut self, sender: &mut Sender) -> Result<(), Refusal> {
        let path = match self {
            From::Source { source, audience } if audience.has_changed().unwrap_or(false) => {
                let now = audience.borrow_and_update();
                now.path.as_ref().map(|(fabric, path)| match source.shared {
                    true => super::path_of_all(fabric, path),
                    false => path.clone(),
                })
            }
            From::Member { guest, whereabouts, .. } if whereabouts.has_changed().unwrap_or(false) => {
                match &*whereabouts.borrow_and_update() {
                    Whereabouts::Here { path, fabric, secret, .. } => {
                        sender.set_seal(guest.streams.seal(guest.mouth.handle, secret.as_ref())?);
                        Some(super::path_of_all(fabric, path))
                    }
                    _ => None,
                }
            }
            _ => return Ok(()),
        };
        if let Err(error) = sender.set_path(path.as_ref()) {
            tracing::warn!(%error, "a stream has no path");
        }
        Ok(())
    }
}

impl Pen {
    /// Sends messages; returns when the socket has taken all of them.
    pub(in crate::daemon) async fn write(&mut self, messages: &[Vec<u8>]) -> Result<(), Refusal> {
        let Pen { from, totals } = self;
        from.known().await?;
        let mouth = from.mouth();
        let mut sender = mouth.sender.lock().await;
        from.turn(&mut sender)?;
        let before = sender.sent();
        let mut wrong = None;
        for message in messages {
            if let Err(error) = sender.push(message) {
                wrong = Some(Refusal::new(Kind::Invalid, error.to_string()));
                break;
            }
            totals.messages += 1;
            totals.bytes += message.len() as u64;
        }
        loop {
            // A label that has changed counts from the next packet on.
            from.turn(&mut sender)?;
            if sender.flush() {
                break;
            }
            tokio::time::sleep(BLOCKED).await;
        }
        let now = sender.sent();
        totals.unheard += now.unheard - before.unheard;
        totals.failed += now.failed - before.failed;
        *mouth.counted() = now;
        match wrong {
            Some(refusal) => Err(refusal),
            None => Ok(()),
        }
    }

    /// Returns the totals of the messages taken from this caller.
    pub(in crate::daemon) fn totals(&self) -> SendMessagesResponse {
        self.totals
    }
}
