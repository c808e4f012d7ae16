//! Invitations from sources, and the transfers that follow.

use super::Shared;
use super::catalog::{Confirm, Receive};
use super::store::Description;
use crate::transfer::{
    Held, Invitation, Received, ReceiverProgress, ReceiverSpec, Rendezvous, Sink, TransferError,
    accept_invite,
};
use polycast_api::error::{Kind, Refusal};
use polycast_net::hash::parse_hex;
use polycast_net::store::StoreError;
use polycast_types::ObjectId;
use polycast_wire::control::Hash;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

/// Connections on which nothing has been read yet.
const STRANGERS_MAX: usize = 32;
/// How long an earlier transfer of the same object may take to end,
const ENDING_WITHIN: Duration = Duration::from_millis(1_500);
/// and how often it is looked whether it has.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// The agent's control listener.
pub struct Invitations {
    shared: Arc<Shared>,
    listener: TcpListener,
    strangers: Arc<Semaphore>,
}

impl Invitations {
    pub fn new(shared: Arc<Shared>, listener: TcpListener) -> Self {
        Invitations { shared, listener, strangers: Arc::new(Semaphore::new(STRANGERS_MAX)) }
    }

    /// Takes invitations until told to end.
    pub async fn run(self, mut ending: watch::Receiver<bool>) {
        tokio::select! {
            () = self.accept() => {}
            _ = ending.wait_for(|ends| *ends) => {}
        }
    }

    async fn accept(&self) {
        loop {
            // More connections wait in the system's queue.
            let Ok(permit) = Arc::clone(&self.strangers).acquire_owned().await else { return };
            match self.listener.accept().await.and_then(|(stream, _)| stream.into_std()) {
                Ok(stream) => {
                    let shared = Arc::clone(&self.shared);
                    tokio::task::spawn_blocking(move || answer(&shared, stream, permit));
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot take an invitation");
                    // Out of descriptors, most likely: some will be free again.
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }
}

/// What an invitation leads to.
enum Answer {
    /// The object comes.
    Receive(Receive),
    /// It is here: the source is told so.
    Confirm(Confirm, Hash),
}

/// Reads an invitation, and receives the object if it can be taken.
fn answer(shared: &Shared, stream: TcpStream, permit: OwnedSemaphorePermit) {
    let mut answer = None;
    let invitation = accept_invite(stream, |invitation| {
        answer = Some(admit(shared, invitation)?);
        Ok(())
    });
    drop(permit);
    match (invitation, answer) {
        (Ok(Some(invitation)), Some(Answer::Receive(receive))) => run(shared, &invitation, receive),
        (Ok(Some(invitation)), Some(Answer::Confirm(held, root))) => {
            confirm(shared, &invitation, &held, root)
        }
        (Ok(_), _) => {}
        (Err(error), _) => tracing::warn!(%error, "an invitation failed"),
    }
}

/// Whether there is a place for the object. Its size is not known yet: whether there is room for it is seen
/// before the first byte comes.
fn admit(shared: &Shared, invitation: &Invitation) -> Result<Answer, String> {
    if invitation.pulled && !shared.engine.can_pull() {
        return Err("its agent has no node of a Datacast fabric".into());
    }
    let begun = Instant::now();
    let receive = loop {
        let receive = shared.catalog.begin_receive(invitation.object);
        // A transfer whose path was lost goes on over another one: the end of the first is about to be noticed.
        let busy = receive.as_ref().is_err_and(|refusal| refusal.kind == Kind::ObjectBusy);
        if !busy || begun.elapsed() > ENDING_WITHIN {
            break receive;
        }
        std::thread::sleep(LOOK_AGAIN);
    };
    let answer = match receive {
        Ok(receive) => Ok(Answer::Receive(receive)),
        Err(refusal) if refusal.kind == Kind::ObjectTaken => held(shared, invitation).ok_or(refusal),
        Err(refusal) => Err(refusal),
    };
    match &answer {
        Ok(_) => tracing::info!(object = %invitation.object, source = %invitation.source, "invited"),
        Err(reason) => tracing::warn!(object = %invitation.object, %reason, "an invitation is turned down"),
    }
    answer.map_err(|refusal| refusal.to_string())
}

/// Whether what is here under the object's id can be what the source has.
fn held(shared: &Shared, invitation: &Invitation) -> Option<Answer> {
    let held = shared.catalog.begin_confirm(invitation.object).ok()?;
    let root = parse_hex(&held.object().root)?;
    let same =
        held.object().length == invitation.object_len && invitation.root.is_none_or(|known| known == root);
    same.then_some(Answer::Confirm(held, root))
}

/// Tells a source that the object is here.
fn confirm(shared: &Shared, invitation: &Invitation, held: &Confirm, root: Hash) {
    let spec = receiver(shared, invitation, Arc::default());
    let length = held.object().length;
    match shared.engine.confirm(&spec, &Held { object: invitation.object, length, root }) {
        Ok(()) => tracing::info!(object = %invitation.object, "it is here already, and the source knows"),
        Err(error) => tracing::warn!(object = %invitation.object, %error, "not confirmed"),
    }
}

fn receiver(shared: &Shared, invitation: &Invitation, cancel: Arc<AtomicBool>) -> ReceiverSpec {
    ReceiverSpec {
        name: shared.name.clone(),
        rendezvous: if invitation.pulled {
            Rendezvous::Pull(invitation.source, invitation.handle)
        } else {
            Rendezvous::At(invitation.source, invitation.handle)
        },
        interface: shared.interface,
        sink: Sink::Raw(shared.store.path(invitation.object)),
        options: Shared::default_options(),
        cancel,
    }
}

/// Receives an object and puts it into the catalog.
fn run(shared: &Shared, invitation: &Invitation, receive: Receive) {
    let id = receive.id();
    let spec = receiver(shared, invitation, Arc::clone(&receive.progress().cancel));
    if let Err(error) = shared.store.sweep() {
        tracing::warn!(%error, "the store cannot be looked through");
    }
    let receive = std::cell::RefCell::new(receive);
    let mut on_event = |progress: &ReceiverProgress| {
        let mut receive = receive.borrow_mut();
        receive.progress().bytes.store(progress.bytes, Ordering::Relaxed);
        receive.progress().total.store(progress.total, Ordering::Relaxed);
        // In a chain the transfer goes on for those behind this one; readers need not wait for them.
        if let Some(received) = &progress.received
            && let Ok(description) = enter(shared, id, received)
        {
            receive.publish(description);
        }
    };
    let outcome = shared.engine.receive(spec, &mut on_event);
    let receive = receive.into_inner();
    if receive.is_published() {
        return;
    }
    let outcome = outcome.and_then(|received| enter(shared, id, &received));
    match outcome {
        Ok(description) => {
            receive.complete(description);
        }
        Err(error) => {
            tracing::warn!(object = %id, %error, "not received");
            let kind = match error {
                TransferError::Store(StoreError::Full { .. }) => Kind::StoreFull,
                TransferError::Cancelled => Kind::Cancelled,
                _ => Kind::TransferFailed,
            };
            receive.fail(Refusal::new(kind, error.to_string()));
        }
    }
}

/// Enters into the store what was received.
fn enter(shared: &Shared, id: ObjectId, received: &Received) -> Result<Description, TransferError> {
    if received.object != id {
        // The source has sent something else than it has announced.
        remove(shared, id);
        return Err(TransferError::Contradiction(format!(
            "it called for {id} and sent object {}",
            received.object
        )));
    }
    let description = Description {
        name: received.name.clone(),
        kind: received.kind,
        length: received.bytes,
        mode: received.mode,
        root: received.root.clone(),
    };
    match shared.store.describe(id, &description) {
        Ok(()) => {
            tracing::info!(object = %id, bytes = description.length, "received");
            Ok(description)
        }
        Err(error) => {
            remove(shared, id);
            Err(TransferError::System(error))
        }
    }
}

fn remove(shared: &Shared, id: ObjectId) {
    if let Err(error) = shared.store.remove(id) {
        tracing::warn!(object = %id, %error, "cannot be removed from the store");
    }
}
