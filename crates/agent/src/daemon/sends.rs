//! Objects that are being sent. Several processes that send the same object to the same receivers share
//! one transfer.

mod deliver;
mod delta;

use super::catalog::{self};
use super::manager_link::{FabricWish, addresses};
pub(super) use super::opened::open;
use super::shared::Shared;
use super::users::{Holder, User};
use crate::transfer::{Change, Options, Report, Steering};
use deliver::Delivering;
use polycast_api::client::Receivers;
use polycast_api::error::{Kind, Refusal};
use polycast_api::manager;
use polycast_api::report::PassedOver;
use polycast_protocol::delivery::CHANGES_MAX;
use polycast_types::{Duration, ObjectId};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::sync::{Semaphore, mpsc, watch};

/// Transfers that may wait until fewer run.
const WAITING_MAX: usize = 1_024;

/// Transfers that have ended and are still told of: as many as the page shows at once.
const ENDED_MAX: usize = 16;

/// A transfer that has ended.
#[derive(Clone, Debug)]
pub(super) struct Past {
    /// Number of the transfer at this agent.
    pub number: u64,
    pub object: ObjectId,
    pub name: String,
    /// User who had brought the object, and whether it lay where that one has it.
    pub holder: Option<Holder>,
    pub in_place: bool,
    pub at: Instant,
    pub outcome: Result<Arc<Report>, Refusal>,
}

/// State of a transfer; it only gains information.
#[derive(Clone, Default, Debug)]
pub(super) struct Standing {
    /// The request's number at the manager, once it has one.
    pub request: Option<u64>,
    /// State of the request, while it waits.
    pub waiting: Option<Waiting>,
    pub granted: Option<Granted>,
    pub report: Option<Arc<Report>>,
    pub outcome: Option<Result<Arc<Report>, Refusal>>,
}

/// State of a request for a path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Waiting {
    pub before: u32,
    pub estimate_ms: Option<u64>,
}

/// The path of a transfer.
#[derive(Clone, Debug)]
pub(super) struct Granted {
    pub fabric: String,
    pub response_id: u64,
    pub receivers: Vec<String>,
    pub service_ms: Option<u64>,
    pub lease_ms: Option<u64>,
    /// The fabrics that come before it in the manager's settings or would have been faster.
    pub passed_over: Vec<PassedOver>,
    /// Duration of the transfer, as the manager estimates it.
    pub estimate: Option<Duration>,
    /// Steering that holds the manager's permission for the transfer.
    pub steering: Arc<Steering>,
}

/// Someone's wish to send.
#[derive(Clone, Debug)]
pub(super) struct Wish {
    pub object: ObjectId,
    pub receivers: Receivers,
    pub options: Options,
    /// Time that the path is requested for.
    pub lease: Option<Duration>,
    /// Fabric that is to carry it.
    pub fabric: FabricWish,
    pub detached: bool,
    /// The user who wishes it.
    pub user: User,
}

/// Object that is sent, and its receivers.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Key {
    object: ObjectId,
    /// Sorted; `None` is all.
    receivers: Option<Vec<String>>,
}

struct Sending {
    /// Number among transfers with the same key, one after the other.
    number: u64,
    standing: watch::Receiver<Standing>,
    /// Changes of its receivers.
    changes: mpsc::Sender<Change>,
    cancel: Cancel,
    watchers: usize,
    detached: bool,
    /// The user who has begun it.
    user: User,
}

impl Sending {
    /// Returns true for a transfer of this object that this user may change and end.
    fn is_for(&self, key: &Key, object: ObjectId, user: User) -> bool {
        key.object == object && user.may_end(Some(self.user.uid()))
    }
}

/// Ends a transfer, before it has its path and after.
#[derive(Clone)]
struct Cancel {
    engine: Arc<AtomicBool>,
    early: watch::Sender<bool>,
    withdrawn: Arc<AtomicBool>,
}

impl Cancel {
    fn set(&self) {
        self.engine.store(true, Ordering::Relaxed);
        self.early.send_replace(true);
    }

    /// Ends a transfer because a user has withdrawn it.
    fn withdraw(&self) {
        self.withdrawn.store(true, Ordering::Relaxed);
        self.set();
    }

    fn refusal(&self) -> Refusal {
        let what = if self.withdrawn.load(Ordering::Relaxed) { "withdrawn" } else { "cancelled" };
        Refusal::new(Kind::Cancelled, format!("the transfer was {what}"))
    }
}

/// The table of transfers that run, and of those that wait until fewer do.
pub(super) struct Sends {
    shared: Arc<Shared>,
    table: Mutex<Table>,
    /// A place for each transfer that may run at the same time; those that wait have theirs in the order in
    /// which they came.
    places: Semaphore,
    /// Largest number of transfers that run or wait.
    most: usize,
    ended: watch::Sender<u64>,
}

#[derive(Default)]
struct Table {
    sendings: BTreeMap<Key, Sending>,
    /// Transfers whose tasks have not ended, those that are out of the table too.
    running: usize,
    next_number: u64,
    /// The agent ends: a transfer that began now would outlive it.
    is_over: bool,
    /// The last transfers that have ended, the youngest first.
    past: VecDeque<Past>,
}

/// A caller that watches a transfer; it is cancelled when the last one goes.
pub(super) struct Watcher {
    sends: Arc<Sends>,
    key: Key,
    number: u64,
    pub standing: watch::Receiver<Standing>,
}

impl Sends {
    pub(super) fn new(shared: Arc<Shared>, most: usize) -> Self {
        Sends {
            shared,
            table: Mutex::new(Table::default()),
            places: Semaphore::new(most),
            most: most + WAITING_MAX,
            ended: watch::Sender::new(0),
        }
    }

    /// Begins to send an object, or joins those who watch it being sent.
    pub(super) fn start(self: &Arc<Self>, wish: Wish) -> Result<Watcher, Refusal> {
        let Wish { object, ref receivers, detached, user, .. } = wish;
        let key = Key { object, receivers: sorted(receivers) };
        let mut table = self.lock();
        if table.is_over {
            return Err(Refusal::new(Kind::Cancelled, "the agent is shutting down"));
        }
        if let Some(sending) = table.sendings.get_mut(&key) {
            sending.watchers += 1;
            sending.detached |= detached;
            return Ok(self.watcher(key.clone(), sending));
        }
        if table.running >= self.most {
            let message = format!(
                "{} transfers run or wait at this agent, which is its limit: send again when some have ended",
                table.running
            );
            return Err(Refusal::new(Kind::Full, message));
        }
        let own = table.sendings.values().filter(|sending| sending.user == user).count();
        if user.is_other() && own >= user.share(self.most) {
            return Err(user.too_many(own, "transfers"));
        }
        let send = self.shared.catalog.begin_send(object)?;
        let (sender, standing) = watch::channel(Standing::default());
        let (changes, changed) = mpsc::channel(CHANGES_MAX);
        let cancel =
            Cancel { engine: Arc::default(), early: watch::Sender::new(false), withdrawn: Arc::default() };
        table.next_number += 1;
        table.running += 1;
        let number = table.next_number;
        let sending =
            Sending { number, standing, changes, cancel: cancel.clone(), watchers: 1, detached, user };
        let watcher = self.watcher(key.clone(), &sending);
        table.sendings.insert(key.clone(), sending);
        drop(table);
        let sends = Arc::clone(self);
        tokio::spawn(async move {
            let outcome = Delivering::new(&sends, &send, &wish, &cancel, &sender).run(changed).await;
            let past = Past {
                number,
                object,
                name: send.object.name.clone(),
                holder: send.object.holder,
                in_place: send.object.added_from.is_some(),
                at: Instant::now(),
                outcome: outcome.clone(),
            };
            drop(send);
            sends.remember(past);
            match &outcome {
                Err(refusal) if refusal.kind == Kind::Cancelled => {
                    tracing::info!(%object, %refusal, "not sent")
                }
                Err(refusal) => tracing::warn!(%object, %refusal, "not sent"),
                Ok(_) => {}
            }
            // Out of the table first: a caller that sends again from now on gets a transfer of its own.
            sends.remove(&key, number);
            sender.send_modify(|standing| standing.outcome = Some(outcome));
            sends.lock().running -= 1;
            sends.ended.send_modify(|count| *count += 1);
        });
        Ok(watcher)
    }

    fn watcher(self: &Arc<Self>, key: Key, sending: &Sending) -> Watcher {
        let standing = sending.standing.clone();
        Watcher { sends: Arc::clone(self), key, number: sending.number, standing }
    }

    fn path_of(&self, send: &catalog::Send) -> std::path::PathBuf {
        send.object.added_from.clone().unwrap_or_else(|| self.shared.store.path(send.id()))
    }

    /// Number of transfers that wait or run.
    pub(super) fn count(&self) -> usize {
        self.lock().sendings.len()
    }

    /// The transfers that wait or run.
    pub(super) fn list(&self) -> Vec<(ObjectId, Standing)> {
        let table = self.lock();
        let sendings = table.sendings.iter();
        sendings.map(|(key, sending)| (key.object, sending.standing.borrow().clone())).collect()
    }

    /// The last transfers that have ended, the youngest first.
    pub(super) fn past(&self) -> Vec<Past> {
        self.lock().past.iter().cloned().collect()
    }

    fn remember(&self, past: Past) {
        let mut table = self.lock();
        table.past.truncate(ENDED_MAX - 1);
        table.past.push_front(past);
    }

    /// Changes the time or the receivers of the transfer of an object; gives its path, `None` while it waits.
    pub(super) async fn extend(
        &self,
        (object, user): (ObjectId, User),
        time: Option<u64>,
        add: Vec<String>,
        remove: Vec<String>,
    ) -> Result<Option<Granted>, Refusal> {
        let (standing, changes) = {
            let table = self.lock();
            let mut sendings =
                table.sendings.iter().filter(|(key, sending)| sending.is_for(key, object, user));
            let Some((_, sending)) = sendings.next() else { return Err(not_sent(object)) };
            if sendings.next().is_some() {
                let message =
                    format!("object {object} is being sent to several groups: withdraw all but one");
                return Err(Refusal::new(Kind::Invalid, message));
            }
            (sending.standing.clone(), sending.changes.clone())
        };
        let request = standing.borrow().request;
        let Some(request_id) = request else {
            return Err(Refusal::new(
                Kind::ManagerUnreachable,
                "the manager has not answered the request yet",
            ));
        };
        let (added, removed) = (add.clone(), remove.clone());
        let extend = manager::Extend { request_id, time_ms: time, add, remove, further_sources: Vec::new() };
        let Some(changed) = self.shared.link.extend(extend).await? else { return Ok(None) };
        // What has been granted meanwhile is known by now, or is on its way: the answer came after it.
        let mut standing = standing;
        let known =
            standing.wait_for(|standing| standing.granted.is_some() || standing.outcome.is_some()).await;
        let granted = known.ok().and_then(|standing| standing.granted.clone());
        let Some(granted) = granted else { return Err(not_sent(object)) };
        let mut names = Vec::new();
        self.shared.link.await_permit_of(&granted.steering, &added).await?;
        for (name, address) in addresses(changed.receivers)? {
            if added.contains(&name) {
                tell(&changes, object, Change::Add(name.clone(), address))?;
            }
            names.push(name);
        }
        for name in removed {
            tell(&changes, object, Change::Remove(name))?;
        }
        Ok(Some(Granted {
            receivers: names,
            service_ms: changed.service_ms,
            lease_ms: changed.lease_ms,
            ..granted
        }))
    }

    /// Watches the transfer of an object, if there is just one.
    pub(super) fn watch(self: &Arc<Self>, object: ObjectId) -> Option<Watcher> {
        let mut table = self.lock();
        let mut sendings = table.sendings.iter_mut().filter(|(key, _)| key.object == object);
        let (key, sending) = sendings.next()?;
        if sendings.next().is_some() {
            return None;
        }
        sending.watchers += 1;
        Some(self.watcher(key.clone(), sending))
    }

    /// Ends the transfers of an object.
    pub(super) fn withdraw(&self, object: ObjectId, user: User) -> Result<(), Refusal> {
        let mut table = self.lock();
        let own = table.sendings.iter().filter(|(key, sending)| sending.is_for(key, object, user));
        let keys: Vec<Key> = own.map(|(key, _)| key.clone()).collect();
        if keys.is_empty() {
            return Err(not_sent(object));
        }
        for key in keys {
            // A caller that comes now must not join a transfer that is being withdrawn.
            if let Some(sending) = table.sendings.remove(&key) {
                sending.cancel.withdraw();
            }
        }
        Ok(())
    }

    /// Ends all transfers; none begins from now on.
    pub(super) fn cancel_all(&self) {
        let mut table = self.lock();
        table.is_over = true;
        table.sendings.values().for_each(|sending| sending.cancel.set());
    }

    /// Waits until no transfer runs.
    pub(super) async fn ended(&self) {
        let mut ended = self.ended.subscribe();
        while self.lock().running > 0 && ended.changed().await.is_ok() {}
    }

    fn remove(&self, key: &Key, number: u64) -> Option<Sending> {
        let mut table = self.lock();
        if table.sendings.get(key).is_some_and(|sending| sending.number == number) {
            table.sendings.remove(key)
        } else {
            None
        }
    }

    fn unwatch(&self, key: &Key, number: u64) {
        let mut table = self.lock();
        let Some(sending) = table.sendings.get_mut(key).filter(|sending| sending.number == number) else {
            return;
        };
        sending.watchers -= 1;
        if sending.watchers == 0 && !sending.detached {
            sending.cancel.set();
            // A caller that comes now must not join a transfer that is being cancelled.
            table.sendings.remove(key);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        // Nothing here panics between two changes that belong together.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watcher {
    /// Returns the transfer's number at this agent.
    pub(super) fn number(&self) -> u64 {
        self.number
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.sends.unwatch(&self.key, self.number);
    }
}

/// Tells the delivery of an object of a change.
fn tell(changes: &mpsc::Sender<Change>, object: ObjectId, change: Change) -> Result<(), Refusal> {
    changes.try_send(change).map_err(|error| match error {
        mpsc::error::TrySendError::Closed(_) => not_sent(object),
        mpsc::error::TrySendError::Full(_) => {
            let message =
                format!("{CHANGES_MAX} changes of the receivers wait already: change them more slowly");
            Refusal::new(Kind::Full, message)
        }
    })
}

fn not_sent(object: ObjectId) -> Refusal {
    Refusal::new(Kind::RequestUnknown, format!("object {object} is not being sent"))
}

fn sorted(receivers: &Receivers) -> Option<Vec<String>> {
    match receivers {
        Receivers::All => None,
        Receivers::Named(names) => {
            let mut names = names.clone();
            names.sort();
            Some(names)
        }
    }
}
