//! The objects of this host: added ones, received ones, and those that are on their way.

mod ending;
mod place;
mod sets;
mod state;
mod table;
mod versions;

pub(super) use ending::Ending;
pub(super) use sets::{Following, Lacking, Part, Set, part_id, printable};
pub(super) use state::{Available, Progress};

use super::store::{Description, Found};
use super::users::{Holder, User};
use ending::Endings;
use polycast_api::error::{Kind, Refusal};
use polycast_net::object::Stamp;
use polycast_types::{AppId, DataId, ObjectId, format_bytes};
use state::State;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};
use table::Table;
use tokio::sync::watch;

/// Failures that are remembered, to be told to those who ask for the object.
const FAILURES_MAX: usize = 256;
/// Shortest time between two notes on the disk of when an object was used.
const NOTE_INTERVAL: Duration = Duration::from_secs(60);

/// A received object that is not being sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Idle {
    pub id: ObjectId,
    pub length: u64,
    pub since: SystemTime,
    pub used: SystemTime,
    pub superseded: bool,
    /// It goes before the files that it lists.
    pub is_set: bool,
}

/// An object and its state at one moment.
#[derive(Debug)]
pub(crate) enum Snapshot {
    Available(Available),
    Receiving { name: String, bytes: u64, spared: u64, total: u64, holder: Option<Holder> },
}

impl Snapshot {
    /// Returns true if this user may read it, or see it arrive.
    pub(crate) fn is_for(&self, user: User) -> bool {
        match self {
            Snapshot::Available(object) => object.is_for(user),
            Snapshot::Receiving { holder, .. } => user.may_see(*holder, false),
        }
    }

    /// The user of this host who has brought it.
    pub(crate) fn holder(&self) -> Option<Holder> {
        match self {
            Snapshot::Available(object) => object.holder,
            Snapshot::Receiving { holder, .. } => *holder,
        }
    }
}

/// An object that is here, or how it comes.
#[derive(Debug)]
pub(crate) enum Coming {
    Here(Available),
    OnItsWay(Arc<Progress>),
}

/// The table of objects.
#[derive(Debug)]
pub(crate) struct Catalog {
    inner: Mutex<Inner>,
    /// Counts what readers may wait for: objects that became available, and tries that failed. `None` when
    /// there is no more to wait for.
    changes: watch::Sender<Option<u64>>,
    endings: Arc<Endings>,
    objects_max: usize,
    receives_max: usize,
}

#[derive(Debug, Default)]
struct Inner {
    objects: Table,
    receiving: usize,
    /// Sets whose files are waited for, by the source of each list.
    gathering: BTreeMap<Option<IpAddr>, usize>,
    /// Objects that have come or gone since the last look.
    journal: BTreeSet<ObjectId>,
    /// Contents of the sets that are here, or whose files are on their way.
    sets: BTreeMap<ObjectId, Arc<Set>>,
    /// Files that are here because a set was added, and that no user has added by themselves.
    entered: BTreeSet<ObjectId>,
    /// The last tries to receive that failed, oldest first.
    failures: VecDeque<(ObjectId, Refusal)>,
}

impl Catalog {
    /// A catalog with what lies in the store already.
    pub(crate) fn new(objects_max: usize, receives_max: usize, found: Vec<Found>) -> Self {
        let journal = found.iter().map(|found| found.id).collect();
        let objects = found.into_iter().map(|Found { id, description, since, used }| {
            let object = Available { since, used, ..Available::received(description) };
            (id, State::Available { object, sends: 0 })
        });
        let inner = Inner { objects: objects.collect(), journal, ..Inner::default() };
        let (inner, changes) = (Mutex::new(inner), watch::Sender::new(Some(0)));
        let endings = Arc::new(Endings::new(2 * receives_max));
        Catalog { inner, changes, endings, objects_max, receives_max }
    }

    /// Puts in an added object, and gives what is there then. To add the same once more changes nothing: a
    /// caller that does not know whether it was heard may say it again.
    pub(crate) fn add(&self, id: ObjectId, object: Available) -> Result<Available, Refusal> {
        let mut inner = self.lock();
        if let Some(State::Available { object: there, .. }) = inner.objects.get(&id)
            && there.added_from.is_some()
            && there.added_from == object.added_from
            && there.choice == object.choice
        {
            if (there.kind, there.length, there.stamp) == (object.kind, object.length, object.stamp) {
                let there = there.clone();
                inner.entered.remove(&id);
                return Ok(there);
            }
            let message =
                format!("there is an object {id} already, and its file has changed since it was added");
            return Err(Refusal::new(Kind::ObjectTaken, message));
        }
        inner.admit(id, self.objects_max)?;
        inner.objects.insert(id, State::Available { object: object.clone(), sends: 0 });
        inner.journal.insert(id);
        drop(inner);
        self.changed();
        Ok(object)
    }

    /// Checks that the data at this path could be added under this id now.
    pub(crate) fn check_free(&self, id: ObjectId, path: &Path) -> Result<(), Refusal> {
        let inner = self.lock();
        match inner.objects.get(&id) {
            Some(State::Available { object, .. }) if object.added_from.as_deref() == Some(path) => Ok(()),
            _ => inner.admit(id, self.objects_max),
        }
    }

    /// Begins to receive an object; ends with the guard.
    pub(crate) fn begin_receive(self: &Arc<Self>, id: ObjectId) -> Result<Receive, Refusal> {
        self.begin(id, Progress::default(), |_| Ok(()))
    }

    /// The same for an object that a user of this host brings, who has no more than a part of the agent.
    pub(crate) fn begin_bring(
        self: &Arc<Self>,
        id: ObjectId,
        user: User,
        holder: Holder,
    ) -> Result<Receive, Refusal> {
        let progress = Progress { holder: Some(holder), ..Progress::default() };
        self.begin(id, progress, |inner| {
            let own = || inner.objects.values().filter(|state| state.is_of(user));
            let objects = own().count();
            if user.is_other() && objects >= user.share(self.objects_max) {
                return Err(user.too_many(objects, "objects"));
            }
            let coming = own().filter(|state| matches!(state, State::Receiving(_))).count();
            if user.is_other() && coming >= user.share(self.receives_max) {
                return Err(user.too_many(coming, "objects on their way"));
            }
            Ok(())
        })
    }

    fn begin(
        self: &Arc<Self>,
        id: ObjectId,
        progress: Progress,
        check: impl FnOnce(&Inner) -> Result<(), Refusal>,
    ) -> Result<Receive, Refusal> {
        let mut inner = self.lock();
        inner.admit(id, self.objects_max)?;
        check(&inner)?;
        inner.admit_receive(self.receives_max)?;
        let ending = self.endings.receive(Arc::clone(&progress.cancel))?;
        let progress = Arc::new(progress);
        inner.receiving += 1;
        inner.failures.retain(|(failed, _)| *failed != id);
        inner.objects.insert(id, State::Receiving(Arc::clone(&progress)));
        drop(inner);
        // Some wait for parts of it.
        self.changed();
        Ok(Receive {
            catalog: Arc::clone(self),
            id,
            progress,
            outcome: None,
            published: false,
            gathers: None,
            _ending: ending,
        })
    }

    /// Begins to confirm to a source that an object is here; it cannot be deleted while the guard lives.
    pub(crate) fn begin_confirm(self: &Arc<Self>, id: ObjectId) -> Result<Confirm, Refusal> {
        self.lock().admit_receive(self.receives_max)?;
        let send = self.begin_send(id)?;
        self.lock().receiving += 1;
        Ok(Confirm { send })
    }

    /// Begins to send an object; it cannot be deleted while the guard lives.
    pub(crate) fn begin_send(self: &Arc<Self>, id: ObjectId) -> Result<Send, Refusal> {
        let mut inner = self.lock();
        match inner.objects.get_mut(&id) {
            Some(State::Available { object, sends }) => {
                *sends += 1;
                Ok(Send { catalog: Arc::clone(self), id, object: object.clone() })
            }
            Some(State::Receiving(_)) => Err(being_received(id)),
            None => Err(unknown(id)),
        }
    }

    /// Takes an object out if `remove` has removed what is stored of it, or what a try to receive it has
    /// left; `remove` gives whether there was anything. No other one of this id can take its place meanwhile.
    /// A user who must not see an object learns of none.
    pub(crate) fn delete(
        &self,
        id: ObjectId,
        user: User,
        remove: impl FnOnce() -> io::Result<bool>,
    ) -> Result<(), Refusal> {
        self.delete_if(id, user, |_| Ok(()), remove)
    }

    /// The same, where `check` allows it.
    fn delete_if(
        &self,
        id: ObjectId,
        user: User,
        check: impl FnOnce(&Inner) -> Result<(), Refusal>,
        remove: impl FnOnce() -> io::Result<bool>,
    ) -> Result<(), Refusal> {
        let mut inner = self.lock();
        check(&inner)?;
        match inner.objects.get(&id) {
            Some(state) if !snapshot(state).is_for(user) => return Err(unknown(id)),
            Some(state) => user.check_change(id, state.holder())?,
            None if user.is_other() => return Err(unknown(id)),
            None => {}
        }
        inner.check_unlisted(id)?;
        let known = match inner.objects.get(&id) {
            Some(State::Available { sends: 0, .. }) => true,
            None => false,
            Some(State::Available { .. }) => {
                return Err(Refusal::new(Kind::ObjectBusy, format!("object {id} is being sent")));
            }
            Some(State::Receiving(_)) => return Err(being_received(id)),
        };
        let failed = |error| Refusal::new(Kind::Internal, format!("object {id} cannot be removed: {error}"));
        let removed = remove().map_err(failed)?;
        inner.objects.remove(&id);
        inner.sets.remove(&id);
        inner.entered.remove(&id);
        inner.journal.insert(id);
        drop(inner);
        self.changed();
        if known || removed { Ok(()) } else { Err(unknown(id)) }
    }

    /// Waits until an object can be read. With `known_only`, an object that is not even on its way is an
    /// error at once, and so is a try to receive it that fails.
    pub(crate) async fn wait(
        &self,
        id: ObjectId,
        user: User,
        timeout: Option<Duration>,
        known_only: bool,
    ) -> Result<Available, Refusal> {
        let mut changes = self.changes.subscribe();
        let ready = async {
            loop {
                // Seen before looking, so that a change in between is not missed.
                if changes.borrow_and_update().is_none() {
                    return Err(Refusal::new(Kind::Cancelled, "the agent is shutting down"));
                }
                match self.get(id) {
                    Some(there) if !there.is_for(user) => return Err(unknown(id)),
                    Some(Snapshot::Available(object)) => return Ok(object),
                    None if known_only => return Err(self.absent(id)),
                    _ => {}
                }
                if changes.changed().await.is_err() {
                    return Err(unknown(id));
                }
            }
        };
        let Some(timeout) = timeout else { return ready.await };
        match tokio::time::timeout(timeout, ready).await {
            Ok(outcome) => outcome,
            Err(_) => Err(match self.get(id) {
                Some(Snapshot::Receiving { bytes, total, .. }) => Refusal::new(
                    Kind::TimedOut,
                    format!(
                        "object {id} is not complete yet: {} of {}",
                        format_bytes(bytes),
                        format_bytes(total)
                    ),
                ),
                // It was only looked for.
                _ if known_only || timeout.is_zero() => self.absent(id),
                _ => self.late(id),
            }),
        }
    }

    /// Returns the refusal for an object that did not arrive in time.
    fn late(&self, id: ObjectId) -> Refusal {
        let inner = self.lock();
        let why = match inner.failures.iter().rfind(|(failed, _)| *failed == id) {
            Some((_, why)) => format!("it could not be received: {why}"),
            None => "no source has begun to send it".to_string(),
        };
        Refusal::new(Kind::TimedOut, format!("object {id} did not come in time: {why}"))
    }

    /// Returns the reason why an object is not here.
    pub(crate) fn absent(&self, id: ObjectId) -> Refusal {
        let inner = self.lock();
        match inner.failures.iter().rfind(|(failed, _)| *failed == id) {
            Some((_, why)) => Refusal::new(why.kind, format!("object {id} could not be received: {why}")),
            None => unknown(id),
        }
    }

    pub(crate) fn get(&self, id: ObjectId) -> Option<Snapshot> {
        self.lock().objects.get(&id).map(snapshot)
    }

    /// An object, or how it comes.
    pub(crate) fn coming(&self, id: ObjectId) -> Option<Coming> {
        Some(match self.lock().objects.get(&id)? {
            State::Available { object, .. } => Coming::Here(object.clone()),
            State::Receiving(progress) => Coming::OnItsWay(Arc::clone(progress)),
        })
    }

    /// Hears of objects that come and go; `None` when there is no more to wait for.
    pub(crate) fn changes(&self) -> watch::Receiver<Option<u64>> {
        self.changes.subscribe()
    }

    /// Returns true if an object of this id is here, or is being received.
    pub(crate) fn is_known(&self, id: ObjectId) -> bool {
        self.lock().objects.contains_key(&id)
    }

    /// The objects of an application that have this name.
    pub(crate) fn of_name(&self, app: AppId, name: &str) -> Vec<ObjectId> {
        let list = self.list(Some(app)).into_iter();
        let is_called =
            |snapshot: &Snapshot| matches!(snapshot, Snapshot::Available(object) if object.name == name);
        list.filter(|(_, snapshot)| is_called(snapshot)).map(|(id, _)| id).collect()
    }

    /// Bytes that received objects have in the store, and that those will have that come; `except` does not
    /// count.
    pub(crate) fn stored_bytes(&self, except: Option<ObjectId>) -> u64 {
        self.lock().objects.stored_bytes(except)
    }

    /// Objects that are on their way, and how many bytes each will have.
    pub(crate) fn under_way(&self) -> Vec<(ObjectId, u64)> {
        self.lock().objects.under_way().map(|(id, state)| (id, state.stored_bytes())).collect()
    }

    /// Bytes in the store of those objects that this user has brought; `except` does not count.
    pub(crate) fn brought_bytes(&self, user: User, except: ObjectId) -> u64 {
        let inner = self.lock();
        let own = inner.objects.iter().filter(|(id, state)| **id != except && state.is_of(user));
        own.map(|(_, state)| state.stored_bytes()).fold(0, u64::saturating_add)
    }

    /// Returns the number of times that an object was removed or failed to arrive.
    pub(crate) fn gone(&self) -> u64 {
        self.lock().objects.gone()
    }

    /// Returns true if a newer version has replaced an object of this length.
    pub(crate) fn has_superseded(&self, length: u64) -> bool {
        self.lock().objects.has_superseded(length)
    }

    /// Received objects that may go: none that is pinned or being sent. Those whose place a newer version has
    /// taken come first, then those that have not been asked for for the longest time.
    pub(crate) fn idle(&self) -> Vec<Idle> {
        let inner = self.lock();
        let bound = inner.bound();
        let may_go = |(id, state): (&ObjectId, &State)| match state {
            State::Available { object, sends: 0 } if object.added_from.is_none() && !object.pinned => {
                let Available { length, since, used, superseded, .. } = *object;
                let is_set = inner.sets.contains_key(id);
                let (used, superseded) = match bound.get(id) {
                    // With a set that stays its files do.
                    Some(None) => return None,
                    Some(Some(_)) if is_set => (used, superseded),
                    Some(Some(set_used)) => (used.max(*set_used), false),
                    None => (used, superseded),
                };
                Some(Idle { id: *id, length, since, used, superseded, is_set })
            }
            _ => None,
        };
        let mut idle: Vec<Idle> = inner.objects.iter().filter_map(may_go).collect();
        idle.sort_by_key(|idle| (!idle.superseded, idle.used, !idle.is_set, idle.id));
        idle
    }

    /// An object was asked for; gives whether that is worth a note on the disk.
    pub(crate) fn touch(&self, id: ObjectId) -> bool {
        let now = SystemTime::now();
        let mut inner = self.lock();
        let Some(State::Available { object, .. }) = inner.objects.get_mut(&id) else { return false };
        let before = std::mem::replace(&mut object.used, now);
        object.added_from.is_none() && now.duration_since(before).is_ok_and(|span| span >= NOTE_INTERVAL)
    }

    /// A newer version has taken the place of an object.
    pub(crate) fn supersede(&self, id: ObjectId) {
        self.lock().objects.supersede(id);
    }

    /// An object has taken the place of an older version.
    pub(crate) fn renew(&self, id: ObjectId) {
        self.lock().objects.renew(id);
    }

    /// Pins an object, or lets it go again, once `write` has written that down; gives what it is then.
    pub(crate) fn pin(
        &self,
        id: ObjectId,
        user: User,
        pinned: bool,
        write: impl FnOnce(&Description) -> io::Result<()>,
    ) -> Result<Available, Refusal> {
        let mut inner = self.lock();
        let object = match inner.objects.get_mut(&id) {
            Some(State::Available { object, .. }) => object,
            Some(State::Receiving(_)) => return Err(being_received(id)),
            None => return Err(unknown(id)),
        };
        // What is pinned takes others' room.
        user.check_change(id, object.holder)?;
        if object.pinned != pinned && object.added_from.is_none() {
            let failed =
                |error| Refusal::new(Kind::Internal, format!("object {id} cannot be pinned: {error}"));
            write(&object.description(pinned)).map_err(failed)?;
        }
        object.pinned = pinned;
        Ok(object.clone())
    }

    /// All objects, or those of one application, in the order of their names.
    pub(crate) fn list(&self, app: Option<AppId>) -> Vec<(ObjectId, Snapshot)> {
        self.lock().objects.range(of_app(app)).map(|(id, state)| (*id, snapshot(state))).collect()
    }

    /// Number of objects that are here, and of those that come.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let inner = self.lock();
        let here = inner.objects.values().filter(|state| matches!(state, State::Available { .. })).count();
        (here, inner.objects.len() - here)
    }

    /// The root hash of an object has become known.
    pub(crate) fn set_root(&self, id: ObjectId, root: &str) {
        if let Some(State::Available { object, .. }) = self.lock().objects.get_mut(&id)
            && object.root.is_empty()
        {
            object.root = root.to_string();
        }
    }

    /// Objects that have come or gone since the last look; `None` for those that are not here.
    pub(crate) fn take_journal(&self) -> Vec<(ObjectId, Option<Available>)> {
        let mut inner = self.lock();
        let journal = std::mem::take(&mut inner.journal);
        let state = |id: &ObjectId| match inner.objects.get(id) {
            // Other hosts are told of what is for all.
            Some(State::Available { object, .. }) if !object.is_private() => Some(object.clone()),
            _ => None,
        };
        journal.into_iter().map(|id| (id, state(&id))).collect()
    }

    /// Waits until something has come or gone that [`Catalog::take_journal`] did not name yet; gives whether
    /// there is more to wait for.
    pub(crate) async fn await_journal(&self) -> bool {
        let mut changes = self.changes.subscribe();
        loop {
            if changes.borrow_and_update().is_none() {
                return false;
            }
            if !self.lock().journal.is_empty() {
                return true;
            }
            if changes.changed().await.is_err() {
                return false;
            }
        }
    }

    /// Sends away all who wait for an object.
    pub(crate) fn close(&self) {
        self.changes.send_replace(None);
    }

    fn changed(&self) {
        self.changes.send_modify(|count| *count = count.map(|count| count + 1));
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nothing here panics between two changes that belong together.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A flag for a confirmation that begins now.
    ///
    /// # Errors
    /// The agent ends, or too much runs.
    pub(crate) fn ending(&self) -> Result<Ending, Refusal> {
        self.endings.confirm()
    }

    /// Ends all receives and confirmations; none begins from now on.
    pub(crate) fn cancel_receives(&self) {
        self.endings.set_all();
    }

    /// Waits until nothing is being received.
    pub(crate) async fn receives_ended(&self) {
        let mut changes = self.changes.subscribe();
        let runs = || {
            let inner = self.lock();
            inner.receiving > 0 || !inner.gathering.is_empty()
        };
        while runs() && changes.changed().await.is_ok() {}
    }
}

impl Inner {
    /// Checks that there is a place to receive from another source.
    fn admit_receive(&self, most: usize) -> Result<(), Refusal> {
        if self.receiving < most {
            return Ok(());
        }
        let message = format!("it is receiving {} objects already, which is its limit", self.receiving);
        Err(Refusal::new(Kind::Full, message))
    }

    /// Checks that there is a place for a new object of this id.
    fn admit(&self, id: ObjectId, most: usize) -> Result<(), Refusal> {
        match self.objects.get(&id) {
            Some(State::Available { .. }) => {
                Err(Refusal::new(Kind::ObjectTaken, format!("there is an object {id} already")))
            }
            Some(State::Receiving(_)) => Err(being_received(id)),
            None if self.objects.len() >= most => {
                Err(Refusal::new(Kind::Full, format!("there are {most} objects already, which is the limit")))
            }
            None => Ok(()),
        }
    }
}

impl Available {
    /// Returns true if this user may read it.
    pub(crate) fn is_for(&self, user: User) -> bool {
        user.may_see(self.holder, self.added_from.is_some())
    }

    /// Returns true if only its holder may see it.
    pub(crate) fn is_private(&self) -> bool {
        self.holder.is_some_and(|holder| holder.private)
    }

    fn description(&self, pinned: bool) -> Description {
        let Available { name, kind, length, mode, modified, root, holder, .. } = self.clone();
        Description { name, kind, length, mode, modified, root, holder, pinned }
    }

    fn received(description: Description) -> Self {
        let Description { name, kind, length, mode, modified, root, holder, pinned } = description;
        let now = SystemTime::now();
        Available {
            name,
            kind,
            length,
            mode,
            modified,
            stamp: Stamp::default(),
            root,
            added_from: None,
            choice: Arc::default(),
            since: now,
            holder,
            used: now,
            pinned,
            superseded: false,
        }
    }
}

/// The ids of an application's objects, or of all.
fn of_app(app: Option<AppId>) -> RangeInclusive<ObjectId> {
    let first = ObjectId { app: app.unwrap_or_default(), data: DataId(0) };
    first..=ObjectId { app: app.unwrap_or(AppId([0xff; 16])), data: DataId(u64::MAX) }
}

fn snapshot(state: &State) -> Snapshot {
    match state {
        State::Available { object, .. } => Snapshot::Available(object.clone()),
        State::Receiving(progress) => Snapshot::Receiving {
            name: progress.name.get().cloned().unwrap_or_default(),
            bytes: progress.bytes.load(Ordering::Relaxed),
            spared: progress.spared.load(Ordering::Relaxed),
            total: progress.total.load(Ordering::Relaxed),
            holder: progress.holder,
        },
    }
}

fn unknown(id: ObjectId) -> Refusal {
    Refusal::new(Kind::ObjectUnknown, format!("there is no object {id} here"))
}

fn being_received(id: ObjectId) -> Refusal {
    Refusal::new(Kind::ObjectBusy, format!("object {id} is being received"))
}

/// An object that is being received.
#[derive(Debug)]
pub(crate) struct Receive {
    catalog: Arc<Catalog>,
    id: ObjectId,
    progress: Arc<Progress>,
    outcome: Option<Result<Description, Refusal>>,
    published: bool,
    /// It is a set whose list is here, of this source.
    gathers: Option<Option<IpAddr>>,
    _ending: Ending,
}

impl Receive {
    pub(crate) fn id(&self) -> ObjectId {
        self.id
    }

    pub(crate) fn progress(&self) -> &Progress {
        &self.progress
    }

    /// The same, for another thread.
    pub(crate) fn shared_progress(&self) -> Arc<Progress> {
        Arc::clone(&self.progress)
    }

    /// It is there, verified and stored.
    pub(crate) fn complete(mut self, description: Description) {
        self.outcome = Some(Ok(description));
    }

    /// It is there, verified and stored, while the transfer goes on for others.
    pub(crate) fn publish(&mut self, description: Description) {
        let mut inner = self.catalog.lock();
        let object = Available::received(description);
        inner.objects.insert(self.id, State::Available { object, sends: 0 });
        inner.journal.insert(self.id);
        drop(inner);
        self.published = true;
        self.catalog.changed();
    }

    /// Returns true once it can be read.
    pub(crate) fn is_published(&self) -> bool {
        self.published
    }

    /// It did not come.
    pub(crate) fn fail(mut self, why: Refusal) {
        self.outcome = Some(Err(why));
    }
}

impl Drop for Receive {
    fn drop(&mut self) {
        let mut inner = self.catalog.lock();
        match self.gathers {
            None => inner.receiving -= 1,
            Some(source) => inner.end_gathering(source),
        }
        if self.published {
            // By now it may even have been deleted.
            drop(inner);
            return self.catalog.changed();
        }
        let never = || Err(Refusal::new(Kind::TransferFailed, "the transfer did not begin"));
        match self.outcome.take().unwrap_or_else(never) {
            Ok(description) => {
                let object = Available::received(description);
                inner.objects.insert(self.id, State::Available { object, sends: 0 });
                inner.journal.insert(self.id);
            }
            Err(why) => {
                inner.objects.remove(&self.id);
                inner.sets.remove(&self.id);
                if inner.failures.len() >= FAILURES_MAX {
                    inner.failures.pop_front();
                }
                inner.failures.push_back((self.id, why));
            }
        }
        drop(inner);
        self.catalog.changed();
    }
}

/// An object that a source is told about: it is here.
#[derive(Debug)]
pub(crate) struct Confirm {
    send: Send,
}

impl Confirm {
    /// Returns the object.
    pub(crate) fn object(&self) -> &Available {
        &self.send.object
    }
}

impl Drop for Confirm {
    fn drop(&mut self) {
        self.send.catalog.lock().receiving -= 1;
        self.send.catalog.changed();
    }
}

/// An object that is being sent.
#[derive(Debug)]
pub(crate) struct Send {
    catalog: Arc<Catalog>,
    id: ObjectId,
    /// Object that is being sent.
    pub object: Available,
}

impl Send {
    pub(crate) fn id(&self) -> ObjectId {
        self.id
    }
}

impl Drop for Send {
    fn drop(&mut self) {
        if let Some(State::Available { sends, .. }) = self.catalog.lock().objects.get_mut(&self.id) {
            *sends -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polycast_net::object::ObjectKind;

    pub(super) fn id(data: u64) -> ObjectId {
        ObjectId { app: AppId::default(), data: DataId(data) }
    }

    pub(super) fn added() -> Available {
        Available {
            name: "a".into(),
            kind: ObjectKind::File,
            length: 3,
            mode: 0o644,
            modified: None,
            stamp: [1; 32],
            root: String::new(),
            added_from: Some("/a".into()),
            choice: Arc::default(),
            since: SystemTime::now(),
            holder: None,
            used: SystemTime::now(),
            pinned: false,
            superseded: false,
        }
    }

    pub(super) fn description() -> Description {
        let (name, root) = ("a".into(), "00".into());
        let kind = ObjectKind::File;
        Description { name, kind, length: 3, mode: 0o644, modified: None, root, holder: None, pinned: false }
    }

    fn failure() -> Refusal {
        Refusal::new(Kind::StoreFull, "the store is full")
    }

    fn catalog() -> Arc<Catalog> {
        Arc::new(Catalog::new(3, 2, Vec::new()))
    }

    #[test]
    fn an_id_belongs_to_one_object() {
        let catalog = catalog();
        catalog.add(id(1), added()).unwrap();
        let other = Available { added_from: Some("/b".into()), ..added() };
        assert_eq!(catalog.add(id(1), other).unwrap_err().message, "there is an object 1 already");
        // The same once more is what is there, with all that is known of it.
        catalog.set_root(id(1), "00ff");
        assert_eq!(catalog.add(id(1), added()).unwrap().root, "00ff");
        catalog.check_free(id(1), Path::new("/a")).unwrap();
        catalog.check_free(id(1), Path::new("/b")).unwrap_err();
        let changed = catalog.add(id(1), Available { stamp: [2; 32], ..added() }).unwrap_err();
        assert!(changed.message.ends_with("its file has changed since it was added"), "{changed}");
        assert_eq!(catalog.begin_receive(id(1)).unwrap_err().kind, Kind::ObjectTaken);
        let receive = catalog.begin_receive(id(2)).unwrap();
        assert_eq!(catalog.add(id(2), added()).unwrap_err().message, "object 2 is being received");
        receive.fail(failure());
        catalog.add(id(2), added()).unwrap();
    }

    #[test]
    fn there_are_bounds() {
        let catalog = catalog();
        let _first = catalog.begin_receive(id(1)).unwrap();
        let _second = catalog.begin_receive(id(2)).unwrap();
        assert_eq!(catalog.begin_receive(id(3)).unwrap_err().kind, Kind::Full);
        catalog.add(id(3), added()).unwrap();
        assert_eq!(catalog.add(id(4), added()).unwrap_err().kind, Kind::Full);
    }

    #[test]
    fn what_is_in_use_is_not_deleted() {
        let catalog = catalog();
        catalog.add(id(1), added()).unwrap();
        let first = catalog.begin_send(id(1)).unwrap();
        let second = catalog.begin_send(id(1)).unwrap();
        drop(first);
        let delete = |data| catalog.delete(id(data), User::agent(), || Ok(false));
        assert_eq!(delete(1).unwrap_err().message, "object 1 is being sent");
        drop(second);
        let denied = || Err(io::ErrorKind::PermissionDenied.into());
        let stuck = catalog.delete(id(1), User::agent(), denied).unwrap_err();
        assert_eq!(stuck.message, "object 1 cannot be removed: permission denied");
        delete(1).unwrap();
        assert_eq!(delete(1).unwrap_err().message, "there is no object 1 here");
        // What a try to receive it has left can be removed, too.
        catalog.delete(id(1), User::agent(), || Ok(true)).unwrap();
        let receive = catalog.begin_receive(id(2)).unwrap();
        assert_eq!(delete(2).unwrap_err().kind, Kind::ObjectBusy);
        drop(receive);
    }

    #[tokio::test]
    async fn readers_wait_for_what_comes() {
        let catalog = catalog();
        let reader = tokio::spawn({
            let catalog = Arc::clone(&catalog);
            async move { catalog.wait(id(1), User::agent(), None, false).await }
        });
        tokio::task::yield_now().await;
        catalog.begin_receive(id(1)).unwrap().fail(failure());
        tokio::task::yield_now().await;
        catalog.begin_receive(id(1)).unwrap().complete(description());
        assert_eq!(reader.await.unwrap().unwrap().root, "00");
    }

    #[tokio::test]
    async fn readers_of_what_is_known_learn_of_failures() {
        let catalog = catalog();
        let unknown = catalog.wait(id(1), User::agent(), None, true).await.unwrap_err();
        assert_eq!(unknown.kind, Kind::ObjectUnknown);
        let receive = catalog.begin_receive(id(1)).unwrap();
        let reader = tokio::spawn({
            let catalog = Arc::clone(&catalog);
            async move { catalog.wait(id(1), User::agent(), None, true).await }
        });
        tokio::task::yield_now().await;
        receive.fail(failure());
        let failed = reader.await.unwrap().unwrap_err();
        assert_eq!(failed.message, "object 1 could not be received: the store is full");
        assert_eq!(failed.kind, Kind::StoreFull);
    }

    #[tokio::test]
    async fn what_is_published_can_be_read_while_others_still_fetch() {
        let catalog = catalog();
        let mut receive = catalog.begin_receive(id(1)).unwrap();
        receive.publish(description());
        assert_eq!(catalog.wait(id(1), User::agent(), Some(Duration::ZERO), true).await.unwrap().root, "00");
        // It is an object like any other.
        catalog.delete(id(1), User::agent(), || Ok(true)).unwrap();
        let _another = catalog.begin_receive(id(1)).unwrap();
        drop(receive);
        assert!(matches!(catalog.get(id(1)), Some(Snapshot::Receiving { .. })));
    }

    #[tokio::test]
    async fn readers_can_give_up() {
        let catalog = catalog();
        let now = Some(Duration::ZERO);
        assert_eq!(
            catalog.wait(id(1), User::agent(), now, false).await.unwrap_err().kind,
            Kind::ObjectUnknown
        );
        let soon = Some(Duration::from_millis(20));
        let late = catalog.wait(id(1), User::agent(), soon, false).await.unwrap_err();
        assert_eq!(late.message, "object 1 did not come in time: no source has begun to send it");
        assert_eq!(late.kind, Kind::TimedOut);
        catalog.begin_receive(id(1)).unwrap().fail(failure());
        let late = catalog.wait(id(1), User::agent(), soon, false).await.unwrap_err();
        let why = "object 1 did not come in time: it could not be received: the store is full";
        assert_eq!((late.kind, late.message.as_str()), (Kind::TimedOut, why));
        let receive = catalog.begin_receive(id(1)).unwrap();
        receive.progress().bytes.store(1 << 20, Ordering::Relaxed);
        receive.progress().total.store(3 << 20, Ordering::Relaxed);
        let late = catalog.wait(id(1), User::agent(), soon, false).await.unwrap_err();
        assert_eq!(late.message, "object 1 is not complete yet: 1.00 MiB of 3.00 MiB");
        assert_eq!(late.kind, Kind::TimedOut);
    }
}
