//! Invitations from sources, and the transfers that follow.

mod delta;
mod keep;

use self::delta::Base;
use self::keep::{description, keep, more_room};
use super::catalog::{Coming, Confirm, Ending, Receive, Send};
use super::opened::Guarded;
use super::sets;
use super::shared::Shared;
use super::store::Description;
use super::users::User;
use crate::transfer::clock::wait;
use crate::transfer::door::{Visit, Visitor};
use crate::transfer::strangers::Strangers;
use crate::transfer::{
    ANSWER_WITHIN, Called, Held, Invitation, Keeper, OlderVersions, Permitted, Received, ReceiverProgress,
    ReceiverSpec, Rendezvous, Sink, Verified, answer, kind_of, permit_of,
};
use polycast_api::error::{Kind, Refusal};
use polycast_net::frames::FrameStream;
use polycast_net::hash::{hash_of, parse_hex};
use polycast_net::object::{FileSource, ObjectKind, ObjectSource};
use polycast_net::permit::{self, KeptPermit};
use polycast_net::store::{MoreRoom, PartFile};
use polycast_net::tls::PeerNames;
use polycast_protocol::session::Why;
use polycast_types::{ObjectId, Printable, Time};
use polycast_wire::control::Control;
use polycast_wire::permit::Call;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::{IpAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

/// Invitations that are being decided on; each has a thread.
const DECISIONS_MAX: usize = 32;
/// One source may take this part of the places of receives.
const PART_OF_ONE: usize = 4;
/// The longest time without a look at whether the agent ends.
const LOOK_INTERVAL: polycast_types::Duration = polycast_types::Duration::from_millis(200);
/// Time that an earlier transfer of the same object may take to end: as long as the source listens, less the
/// time that a message takes to reach it.
const ENDING_WITHIN: Duration = ANSWER_WITHIN.saturating_sub(Duration::from_secs(1));
/// The same where that was the same source's: all of the object may be here, and on its way to a slow disk,
/// when its path is lost. The source hears meanwhile that it will be answered.
const STORED_WITHIN: Duration = Duration::from_secs(60);
const SIGN_INTERVAL: Duration = Duration::from_secs(1);
/// Invitations that are turned down are spoken of this often at most: any host that an agent hears can bring
/// many.
const SAY_INTERVAL: Duration = Duration::from_secs(1);
/// Interval of the checks whether it has ended.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// The agent's control listener.
pub(super) struct Invitations {
    shared: Arc<Shared>,
    strangers: Strangers,
    decisions: Arc<Semaphore>,
    sources: Arc<Sources>,
}

/// Tells a thread to end when this is dropped, also where no task waits for the end: a runtime that is
/// dropped waits for its threads.
struct Ends(Arc<AtomicBool>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Invitations {
    /// # Errors
    /// The listener cannot be used.
    pub(super) fn new(
        shared: Arc<Shared>,
        listener: TcpListener,
        receives_max: usize,
    ) -> std::io::Result<Self> {
        listener.set_nonblocking(true)?;
        Ok(Invitations {
            strangers: Strangers::new(listener, shared.sealing.security()),
            shared,
            decisions: Arc::new(Semaphore::new(DECISIONS_MAX)),
            sources: Arc::new(Sources {
                most: (receives_max / PART_OF_ONE).max(1),
                receives: Mutex::default(),
                turned_down: Mutex::default(),
            }),
        })
    }

    /// Takes invitations until told to end.
    pub(super) async fn run(mut self, mut ending: watch::Receiver<bool>) {
        let ends = Ends(Arc::new(AtomicBool::new(false)));
        let told = Arc::clone(&ends.0);
        // One thread for all connections on which no wish has been said yet.
        let listening = tokio::task::spawn_blocking(move || {
            while !told.load(Ordering::Relaxed) {
                self.turn();
            }
        });
        let _ = ending.wait_for(|ends| *ends).await;
        drop(ends);
        let _ = listening.await;
    }

    fn turn(&mut self) {
        if let Some(listener) = self.shared.moved.take() {
            self.strangers = Strangers::new(listener, self.shared.sealing.security());
        }
        let mut fds = Vec::new();
        self.strangers.descriptors(&mut fds);
        if let Err(error) = wait(&mut fds, Time::ZERO, None, LOOK_INTERVAL) {
            tracing::warn!(%error, "cannot wait for invitations");
            std::thread::sleep(LOOK_AGAIN);
        }
        drop(fds);
        for (stream, wish) in self.strangers.meet(|frame, _| Wish::of(frame)) {
            match wish {
                Wish::Invite(invitation, permit) => self.decide(stream, *invitation, permit),
                Wish::Visit(visit, first) => self.pass(visit, Visitor { stream, first }),
            }
        }
    }

    /// A connection is for a transfer that runs here.
    fn pass(&self, visit: Visit, visitor: Visitor) {
        if let Err(mut stream) = self.shared.door.pass(visit, visitor) {
            tracing::debug!(peer = ?stream.peer(), "comes for a transfer that does not run here");
            // One that does not hear this notices that the connection ends.
            let _ = answer(&mut stream, Err(&Why::UnknownHandle.to_string()));
        }
    }

    fn decide(&self, mut stream: FrameStream, invitation: Invitation, shown: Option<KeptPermit>) {
        let address = stream.peer().map(|peer| peer.ip());
        let place = self.sources.place(address);
        let permit = Arc::clone(&self.decisions).try_acquire_owned();
        match (place, permit) {
            (Ok(place), Ok(permit)) => {
                let shared = Arc::clone(&self.shared);
                tokio::task::spawn_blocking(move || {
                    join(&shared, stream, &invitation, shown.as_ref(), place, permit)
                });
            }
            (place, _) => {
                let busy = || "it has too many invitations to answer at the moment".to_string();
                let reason = place.err().unwrap_or_else(busy);
                self.sources.note_turned_down(&invitation, &reason);
                // One that does not hear this notices that the connection ends.
                let _ = answer(&mut stream, Err(&reason));
            }
        }
    }
}

/// Purpose of a connection to the control port.
enum Wish {
    /// This agent is to join a transfer; with the permit that is shown.
    Invite(Box<Invitation>, Option<KeptPermit>),
    /// To a transfer that runs here; its first frame goes with it.
    Visit(Visit, Vec<u8>),
}

impl Wish {
    fn of(frame: &Control<'_>) -> Option<Self> {
        if let Some(invitation) = Invitation::of(frame) {
            return Some(Wish::Invite(Box::new(invitation), permit_of(frame)));
        }
        let visit = Visit::of(frame)?;
        let mut first = Vec::new();
        frame.emit(&mut first);
        Some(Wish::Visit(visit, first))
    }
}

/// Outcome of an invitation.
enum Answer {
    /// The object comes, perhaps into the pages of one that was here.
    Receive(Admitted),
    /// It is here, or is a set whose list is: the source is told so.
    Confirm(Option<Confirm>, Held, Ending),
}

/// An object that may come.
struct Admitted {
    receive: Receive,
    /// It takes the pages of one that was here.
    recycled: bool,
    /// Bytes that the incoming delta is against.
    base: Option<Base>,
}

/// Number of objects that each source sends to this agent.
struct Sources {
    most: usize,
    receives: Mutex<BTreeMap<Option<IpAddr>, usize>>,
    turned_down: Mutex<Remarks>,
}

/// Count of a remark that many hosts may cause, and the time when it was last logged.
#[derive(Default)]
struct Remarks {
    said_at: Option<Instant>,
    so_far: u64,
}

impl Remarks {
    /// It has happened once more: gives how often so far, where it is to be said.
    fn count(&mut self, now: Instant) -> Option<u64> {
        self.so_far += 1;
        if self.said_at.is_some_and(|at| now.saturating_duration_since(at) < SAY_INTERVAL) {
            return None;
        }
        self.said_at = Some(now);
        Some(self.so_far)
    }
}

impl Sources {
    /// Says now and then that invitations are turned down.
    fn note_turned_down(&self, invitation: &Invitation, reason: &str) {
        if invitation.delta.is_some() {
            // The object itself follows.
            tracing::info!(object = %invitation.object, %reason, "a delta is of no use here");
            return;
        }
        let mut remarks = self.turned_down.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(so_far) = remarks.count(Instant::now()) {
            let (object, source) = (invitation.object, invitation.source);
            tracing::warn!(%object, %source, %reason, so_far, "an invitation is turned down");
        }
    }

    /// A place for one more of this source.
    fn place(self: &Arc<Self>, address: Option<IpAddr>) -> Result<Place, String> {
        let mut receives = self.receives.lock().unwrap_or_else(PoisonError::into_inner);
        let count = receives.entry(address).or_default();
        if *count >= self.most {
            return Err(format!("it is receiving {count} objects of this source already"));
        }
        *count += 1;
        Ok(Place { sources: Arc::clone(self), address })
    }
}

/// A source's place, until it is dropped.
struct Place {
    sources: Arc<Sources>,
    address: Option<IpAddr>,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut receives = self.sources.receives.lock().unwrap_or_else(PoisonError::into_inner);
        if let Entry::Occupied(mut entry) = receives.entry(self.address) {
            *entry.get_mut() -= 1;
            if *entry.get() == 0 {
                entry.remove();
            }
        }
    }
}

/// Answers an invitation, and receives the object if it can be taken.
fn join(
    shared: &Arc<Shared>,
    mut stream: FrameStream,
    invitation: &Invitation,
    shown: Option<&KeptPermit>,
    place: Place,
    permit: OwnedSemaphorePermit,
) {
    let allowed = allowed(shared, &stream.peer_names(), invitation, shown);
    let permitted = allowed.as_ref().ok().cloned().flatten();
    let admitted = allowed.and_then(|_| admit(shared, invitation, &mut stream));
    if let Err(reason) = &admitted {
        place.sources.note_turned_down(invitation, reason);
    }
    let told = answer(&mut stream, admitted.as_ref().map(drop).map_err(String::as_str));
    drop((stream, permit));
    match (admitted, told) {
        (Ok(Answer::Receive(admitted)), Ok(())) => {
            run(shared, invitation, (permitted, place.address), admitted);
        }
        (Ok(Answer::Confirm(guard, held, ending)), Ok(())) => {
            confirm(shared, invitation, permitted, (guard, &held, &ending));
        }
        (Ok(_), Err(error)) => tracing::warn!(%error, "an invitation failed"),
        (Err(_), _) => {}
    }
    drop(place);
}

/// Checks that the manager allows the transfer that a source invites to: the permit that it shows is of our
/// manager, is valid, is for this agent, and for this very transfer. Returns the other contents of the
/// permit; none without permits.
fn allowed(
    shared: &Shared,
    caller: &PeerNames,
    invitation: &Invitation,
    shown: Option<&KeptPermit>,
) -> Result<Option<Permitted>, String> {
    if shared.sealing.security().is_none() {
        return Ok(None);
    }
    let Some(shown) = shown.map(KeptPermit::shown) else {
        return Err("the call shows no permit of the manager: the source has to join the manager, and to send through its agent".into());
    };
    let Some(authority) = shared.link.authority() else {
        return Err("it has not joined a manager yet, and cannot check permits".into());
    };
    let permit = permit::check(&shown, &authority.keys, authority.now_unix_s, &shared.name)
        .map_err(|error| error.to_string())?;
    caller.check(permit.source).map_err(|error| error.to_string())?;
    let call = Call {
        object: invitation.object,
        object_len: invitation.object_len,
        root: invitation.root,
        address: invitation.source.ip().to_canonical(),
        pulled: invitation.pulled,
    };
    if !permit.covers(&call) {
        return Err(format!(
            "its permit is for another transfer: of object {} with {} bytes, from {} at {}",
            permit.object,
            permit.object_len,
            Printable(permit.source),
            permit.address
        ));
    }
    let (source, name) = (permit.source.to_string(), permit.name.to_string());
    Ok(Some(Permitted { source, name, channel: permit.channel }))
}

/// Checks that there is a place for the object, and room. Data that others than this store put there
/// meanwhile is noticed before the first byte arrives.
fn admit(shared: &Shared, invitation: &Invitation, stream: &mut FrameStream) -> Result<Answer, String> {
    if invitation.pulled && !shared.engine.can_pull() {
        return Err("its agent has no node of a Datacast fabric".into());
    }
    let base = invitation.delta.map(|delta| Base::of(shared, invitation, &delta)).transpose()?;
    let (begun, mut signed) = (Instant::now(), Instant::now());
    let receive = loop {
        let receive = begin(shared, invitation.object);
        if let Some(answer) = gathered(shared, invitation) {
            tracing::info!(set = %invitation.object, source = %invitation.source, "invited: its list is here");
            return Ok(answer);
        }
        // A transfer whose path was lost goes on over another one: the end of the first is about to be
        // noticed.
        let busy = receive.as_ref().is_err_and(|refusal| refusal.kind == Kind::ObjectBusy);
        let is_its_own = busy && end_earlier(shared, invitation);
        if !busy || begun.elapsed() > if is_its_own { STORED_WITHIN } else { ENDING_WITHIN } {
            break receive;
        }
        if is_its_own && signed.elapsed() >= SIGN_INTERVAL {
            signed = Instant::now();
            if stream.send(&Control::Alive).is_err() {
                break receive;
            }
        }
        std::thread::sleep(LOOK_AGAIN);
    };
    let answer = match receive {
        Ok(receive) => promise(shared, invitation, receive)
            .map(|(receive, recycled)| Answer::Receive(Admitted { receive, recycled, base })),
        Err(refusal) if refusal.kind == Kind::ObjectTaken => held(shared, invitation).ok_or(refusal),
        Err(refusal) => Err(refusal),
    };
    if answer.is_ok() {
        tracing::info!(object = %invitation.object, source = %invitation.source, "invited");
    }
    answer.map_err(|refusal| refusal.to_string())
}

/// A source that calls again has given up what it called for before: it need not be waited for until that is
/// noticed here. Gives whether what comes is of the same source.
fn end_earlier(shared: &Shared, invitation: &Invitation) -> bool {
    let Some(Coming::OnItsWay(progress)) = shared.catalog.coming(invitation.object) else { return false };
    let Some((source, handle)) = progress.called_by.get() else { return false };
    if (*source, *handle) == (invitation.source, invitation.handle) {
        progress.cancel.store(true, Ordering::Relaxed);
    }
    *source == invitation.source
}

/// Begins to receive an object; one whose bytes were in the memory of a process that has ended is not in the
/// way.
fn begin(shared: &Shared, id: ObjectId) -> Result<Receive, Refusal> {
    match shared.catalog.begin_receive(id) {
        Err(refusal)
            if refusal.kind == Kind::ObjectTaken && sets::forget_what_has_gone(shared, id, User::agent()) =>
        {
            tracing::info!(object = %id, "the process that had it has ended");
            shared.catalog.begin_receive(id)
        }
        receive => receive,
    }
}

/// Makes room in the store for what comes.
fn promise(shared: &Shared, invitation: &Invitation, receive: Receive) -> Result<(Receive, bool), Refusal> {
    let bytes = invitation.delta.map_or(invitation.object_len, |delta| delta.len);
    let (id, beside) = (receive.id(), invitation.delta.map_or(0, |_| invitation.object_len));
    // Before room is made for others that come at the same time. A delta is there beside what is made of it.
    receive.progress().total.store(bytes.saturating_add(beside), Ordering::Relaxed);
    // It was made just now.
    let _ = receive.progress().called_by.set((invitation.source, invitation.handle));
    match shared.limits.make_room_or_recycle(&shared.catalog, &shared.store, id, bytes) {
        Ok(recycled) => Ok((receive, recycled)),
        Err(refusal) => {
            receive.fail(refusal.clone());
            Err(refusal)
        }
    }
}

/// Returns the answer if the data under the object's id here can be the source's object.
fn held(shared: &Shared, invitation: &Invitation) -> Option<Answer> {
    // Of a delta it has nothing to show: the source calls again with the object itself.
    if invitation.delta.is_some() {
        return None;
    }
    let guard = shared.catalog.begin_confirm(invitation.object).ok()?;
    let root = parse_hex(&guard.object().root)?;
    let length = guard.object().length;
    if length != invitation.object_len || invitation.root.is_some_and(|known| known != root) {
        return None;
    }
    let path = guard.object().added_from.clone().unwrap_or_else(|| shared.store.path(invitation.object));
    let bytes = super::opened::open(guard.object(), &path).ok()?;
    let held = Held { object: invitation.object, length, root, bytes };
    Some(Answer::Confirm(Some(guard), held, shared.catalog.ending().ok()?))
}

/// Returns the answer if the list of a set is here whose files are on their way: another source continues
/// with these.
fn gathered(shared: &Shared, invitation: &Invitation) -> Option<Answer> {
    let set = shared.catalog.set(invitation.object).filter(|_| invitation.delta.is_none())?;
    let Some(Coming::OnItsWay(progress)) = shared.catalog.coming(invitation.object) else { return None };
    let bytes = FileSource::open(&shared.store.path(invitation.object)).ok()?;
    let (length, root) = (bytes.len(), hash_of(&bytes).ok()?);
    let is_it = length == invitation.object_len && invitation.root.is_none_or(|known| known == root);
    let comes = shared.catalog.lacking(&set).is_ok_and(|lacking| lacking.comes());
    if !is_it && !comes {
        // No source sends what the other list names: this one takes its place.
        progress.cancel.store(true, Ordering::Relaxed);
    }
    let bytes: Arc<dyn ObjectSource> = Arc::new(bytes);
    let held = Held { object: invitation.object, length, root, bytes };
    if is_it { Some(Answer::Confirm(None, held, shared.catalog.ending().ok()?)) } else { None }
}

/// Tells a source that the object is here.
fn confirm(
    shared: &Arc<Shared>,
    invitation: &Invitation,
    permitted: Option<Permitted>,
    (guard, held, ending): (Option<Confirm>, &Held, &Ending),
) {
    let spec = receiver(shared, invitation, (ending.flag(), permitted));
    match shared.engine.confirm(&spec, held) {
        Ok(()) => tracing::info!(object = %invitation.object, "it is here already, and the source knows"),
        Err(error) => tracing::warn!(object = %invitation.object, %error, "not confirmed"),
    }
    drop(guard);
}

/// Objects that are here of which the one that comes may be a newer version. They stay as long as they are
/// looked at.
fn older_versions(shared: &Arc<Shared>) -> OlderVersions {
    let shared = Arc::clone(shared);
    OlderVersions::found_by(move |offer| {
        let found =
            shared.catalog.older(offer.object, &offer.name, kind_of(offer), offer.geometry.object_len);
        let open = |guard: Send| Some(Arc::new(Guarded::open(&shared, guard).ok()?) as Arc<dyn ObjectSource>);
        found.into_iter().filter_map(open).collect()
    })
}

/// Builds the receiver for the object of an invitation.
fn receiver(
    shared: &Arc<Shared>,
    invitation: &Invitation,
    (cancel, permitted): (Arc<AtomicBool>, Option<Permitted>),
) -> ReceiverSpec {
    let Invitation { object, object_len, root, .. } = *invitation;
    let path = shared.store.path(invitation.object);
    ReceiverSpec {
        name: shared.name.clone(),
        rendezvous: if invitation.pulled {
            Rendezvous::Pull(invitation.source, invitation.handle)
        } else {
            Rendezvous::At(invitation.source, invitation.handle)
        },
        called: Some(Called { object, object_len, root, permitted }),
        location: shared.location.clone(),
        interface: shared.interface(),
        sink: Sink::Kept { path, keeper: keeper(shared, invitation) },
        options: shared.default_options(),
        cancel,
    }
}

/// Keeps the object of an invitation. The transfer has looked whether it is that.
fn keeper(shared: &Arc<Shared>, invitation: &Invitation) -> Keeper {
    let (id, bytes) = (invitation.object, invitation.object_len);
    let (here, also_here) = (Arc::clone(shared), Arc::clone(shared));
    let keep = move |part: PartFile, object: &Verified| {
        assert_eq!((object.object, object.len_bytes), (id, bytes), "what was called for comes, or nothing");
        keep(&here, part, object)
    };
    Keeper::by(keep, MoreRoom::by(move || more_room(&also_here, id, bytes)))
}

/// The list of a set is here: its files are waited for.
fn gather(shared: &Arc<Shared>, mut receive: Receive, list: Description, caller: Option<IpAddr>) {
    if let Err(refusal) = receive.gather(caller) {
        let id = receive.id();
        tracing::warn!(set = %id, %refusal, "not received");
        shared.counters.not_received();
        remove(shared, id);
        return receive.fail(refusal);
    }
    // The wait for the files holds no thread.
    tokio::runtime::Handle::current().spawn(sets::gather(Arc::clone(shared), receive, list));
}

/// Receives an object and puts it into the catalog.
fn run(
    shared: &Arc<Shared>,
    invitation: &Invitation,
    (permitted, caller): (Option<Permitted>, Option<IpAddr>),
    Admitted { receive, recycled, base }: Admitted,
) {
    let id = receive.id();
    let mut spec = receiver(shared, invitation, (Arc::clone(&receive.progress().cancel), permitted));
    let is_delta = base.is_some();
    if let Some(base) = base {
        spec.sink = delta::sink(shared, id, base, receive.shared_progress());
    } else {
        spec.options.older = older_versions(shared).in_recycled_part(recycled);
        spec.options.arrivals = Some(Arc::clone(&receive.progress().arrivals));
    }
    shared.limits.sweep(&shared.store);
    let receive = std::cell::RefCell::new(receive);
    // What has come with wrong bytes counts when it has come: a transfer may fail by it.
    let mut count_corrupt = shared.counters.corrupt();
    let mut on_event = |progress: &ReceiverProgress| {
        count_corrupt(progress.corrupt_groups);
        let mut receive = receive.borrow_mut();
        receive.progress().name.get_or_init(|| progress.name.clone());
        // Of what is made of a delta nothing is here before the delta is.
        if !is_delta {
            receive.progress().bytes.store(progress.bytes, Ordering::Relaxed);
            receive.progress().spared.store(progress.spared_bytes, Ordering::Relaxed);
            receive.progress().total.store(progress.total, Ordering::Relaxed);
        }
        // Where others fetch from this end the transfer goes on for them; readers need not wait for that.
        if let Some(received) = &progress.received
            && received.kind != ObjectKind::Set
        {
            receive.publish(entered(shared, invitation, received));
        }
    };
    let outcome = shared.engine.receive(spec, &mut on_event);
    if let Ok(received) = &outcome {
        count_corrupt(received.corrupt_groups);
    }
    if is_delta {
        // Another try is against whatever is here then.
        shared.store.forget_delta(id);
    }
    let receive = receive.into_inner();
    if receive.is_published() {
        return;
    }
    match outcome.map(|received| entered(shared, invitation, &received)) {
        Ok(description) if description.kind == ObjectKind::Set => {
            gather(shared, receive, description, caller)
        }
        Ok(description) => {
            receive.complete(description);
        }
        Err(error) => {
            tracing::warn!(object = %id, %error, "not received");
            shared.counters.not_received();
            let kind = match error.kind() {
                kind @ (Kind::StoreFull | Kind::Cancelled) => kind,
                // What is wrong with a place here is not the caller's to mend.
                _ => Kind::TransferFailed,
            };
            receive.fail(Refusal::new(kind, error.to_string()));
        }
    }
}

/// Returns the description of a received object that is now stored.
fn entered(shared: &Shared, invitation: &Invitation, received: &Received) -> Description {
    let Received { name, kind, bytes, mode, modified, root, .. } = received.clone();
    let id = invitation.object;
    tracing::info!(object = %id, bytes, is_delta = invitation.delta.is_some(), "received");
    shared.counters.received(bytes);
    let came = Verified { object: id, name, kind, len_bytes: bytes, mode, modified, root };
    description(&invitation.delta.map_or(came.clone(), |delta| delta::made(&came, &delta)))
}

fn remove(shared: &Shared, id: ObjectId) {
    if let Err(error) = shared.store.remove(id) {
        tracing::warn!(object = %id, %error, "cannot be removed from the store");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_source_takes_a_part_of_the_places_only() {
        let sources =
            Arc::new(Sources { most: 2, receives: Mutex::default(), turned_down: Mutex::default() });
        let [one, other] = [1, 2].map(|last| Some(IpAddr::from([10, 0, 0, last])));
        let first = sources.place(one).expect("a place");
        let _second = sources.place(one).expect("a place");
        let refused = sources.place(one).err();
        assert_eq!(refused.as_deref(), Some("it is receiving 2 objects of this source already"));
        assert!(sources.place(other).is_ok(), "others have places of their own");
        drop(first);
        assert!(sources.place(one).is_ok());
        assert_eq!(sources.receives.lock().unwrap().len(), 1, "who has gone leaves nothing behind");
    }

    /// However many invitations are turned down, there is a line a second.
    #[test]
    fn what_many_bring_about_is_said_once_a_second() {
        let (mut remarks, begun) = (Remarks::default(), Instant::now());
        let at = |thousandths: u64| begun + Duration::from_millis(thousandths);
        let said: Vec<u64> = (0..2_500).filter_map(|now| remarks.count(at(now))).collect();
        assert_eq!(said, [1, 1_001, 2_001]);
    }
}
