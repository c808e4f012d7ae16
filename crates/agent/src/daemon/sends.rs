//! Objects that are being sent. Several processes that send the same object to the same receivers share
//! one transfer.

use super::Shared;
use super::catalog::{self, Available};
use super::manager_link::{FabricWish, Lease, Wanted, addresses};
use super::users::User;
use crate::transfer::{
    Change, NextPath, Options, ReceiverReport, Receivers as Invited, Report, Rest, SourceSpec, Steering,
    TransferError,
};
use polycast_api::client::Receivers;
use polycast_api::error::{Kind, Refusal};
use polycast_api::manager;
use polycast_api::report::PassedOver;
use polycast_net::hash::parse_hex;
use polycast_net::object::{FileSource, ObjectKind, ObjectSource};
use polycast_types::{Duration, ObjectId};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::sync::{Semaphore, watch};

/// Transfers that may wait until fewer run.
const WAITING_MAX: usize = 1_024;
/// Other paths that are tried for receivers whom the first one could not reach.
const PATHS_MAX: usize = 3;

/// How a transfer stands; what is known only grows.
#[derive(Clone, Default, Debug)]
pub(super) struct Standing {
    /// The request's number at the manager, once it has one.
    pub request: Option<u64>,
    /// How the request stands, while it waits.
    pub waiting: Option<Waiting>,
    pub granted: Option<Granted>,
    pub report: Option<Arc<Report>>,
    pub outcome: Option<Result<Arc<Report>, Refusal>>,
}

/// How a request for a path stands.
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
    /// How long the transfer will take, as the manager estimates it.
    pub estimate: Option<Duration>,
    /// How the transfer is told of changes.
    pub steering: Arc<Steering>,
}

/// Someone's wish to send.
#[derive(Clone, Debug)]
pub(super) struct Wish {
    pub object: ObjectId,
    pub receivers: Receivers,
    pub options: Options,
    /// How long the path is wanted.
    pub lease: Option<Duration>,
    /// Which fabric is to carry it.
    pub fabric: FabricWish,
    pub detached: bool,
    /// The user who wishes it.
    pub user: User,
}

/// What is sent, and to whom.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Key {
    object: ObjectId,
    /// Sorted; `None` is all.
    receivers: Option<Vec<String>>,
}

struct Sending {
    /// Which of several transfers with the same key, one after the other.
    number: u64,
    standing: watch::Receiver<Standing>,
    cancel: Cancel,
    watchers: usize,
    detached: bool,
    /// The user who has begun it.
    user: User,
}

impl Sending {
    /// Whether it is one of this object that this user may change and end.
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
    /// A place for each transfer that may run at the same time; those that wait have theirs in the order in which they came.
    places: Semaphore,
    /// How many run or wait at most.
    most: usize,
    ended: watch::Sender<u64>,
}

#[derive(Default)]
struct Table {
    sendings: BTreeMap<Key, Sending>,
    /// Transfers whose tasks have not ended, those that are out of the table too.
    running: usize,
    next_number: u64,
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
        let cancel =
            Cancel { engine: Arc::default(), early: watch::Sender::new(false), withdrawn: Arc::default() };
        table.next_number += 1;
        table.running += 1;
        let number = table.next_number;
        let sending = Sending { number, standing, cancel: cancel.clone(), watchers: 1, detached, user };
        let watcher = self.watcher(key.clone(), &sending);
        table.sendings.insert(key.clone(), sending);
        drop(table);
        let sends = Arc::clone(self);
        tokio::spawn(async move {
            let outcome = sends.perform(send, &wish, &cancel, &sender).await;
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

    /// Runs a transfer from the request for a path to its release.
    async fn perform(
        &self,
        send: catalog::Send,
        wish: &Wish,
        cancel: &Cancel,
        standing: &watch::Sender<Standing>,
    ) -> Result<Arc<Report>, Refusal> {
        let options = wish.options.clone();
        let began = Instant::now();
        let mut cancelled = cancel.early.subscribe();
        let early = async {
            let place = self.places.acquire();
            let place = place.await.map_err(|error| Refusal::new(Kind::Internal, error.to_string()))?;
            let path = self.path_of(&send);
            let source = tokio::task::spawn_blocking({
                let object = send.object.clone();
                move || open(&object, &path)
            });
            let source = source.await.map_err(|error| Refusal::new(Kind::Internal, error.to_string()))??;
            let wanted = Wanted {
                object: send.id(),
                name: &send.object.name,
                root: parse_hex(&send.object.root),
                length: source.len(),
                remaining: source.len(),
                receivers: &wish.receivers,
                lease: wish.lease,
                steering: None,
                fabric: &wish.fabric,
            };
            let lease = self.shared.link.request(wanted, |request, waiting| wait(standing, request, waiting));
            Ok::<_, Refusal>((place, source, lease.await?))
        };
        let early = async {
            match options.deadline {
                Some(deadline) => tokio::time::timeout(deadline.into(), early)
                    .await
                    .map_err(|_| Refusal::new(Kind::TimedOut, "no path was free before the deadline"))?,
                None => early.await,
            }
        };
        // It is kept until the transfer has ended.
        let (_place, source, lease) = tokio::select! {
            early = early => early?,
            _ = cancelled.wait_for(|cancelled| *cancelled) => {
                return Err(cancel.refusal());
            }
        };
        lease.steering.begin(&lease.fabric, lease.bytes);
        grant(standing, &lease);
        let until = |options: &Options| {
            let deadline = options.deadline.map(|deadline| deadline - Duration::from(began.elapsed()));
            Options { deadline, ..options.clone() }
        };
        let started = Instant::now();
        let (length, first) = (source.len(), Arc::clone(&source));
        // All paths of the transfer together are lent for as long as was asked for.
        let mut lent_for = wish.lease;
        let mut steering = Arc::clone(&lease.steering);
        let mut report =
            self.deliver(&send, first, lease, until(&options), &mut lent_for, cancel, standing).await?;
        let mut paths = 0;
        loop {
            // A receiver is taken out only once, so that this comes to an end.
            paths += usize::from(!steering.is_rekeyed());
            if report.left.is_empty() || lent_for == Some(Duration::ZERO) || paths > PATHS_MAX {
                break;
            }
            // Those that the trees could not reach get the rest over another path, if the manager has one.
            let receivers = Receivers::Named(report.left.clone());
            let wanted = Wanted {
                object: send.id(),
                name: &send.object.name,
                root: parse_hex(&send.object.root),
                length,
                remaining: length,
                receivers: &receivers,
                lease: lent_for,
                steering: None,
                fabric: &wish.fabric,
            };
            let asked = tokio::select! {
                asked = self.shared.link.request(wanted, |request, waiting| wait(standing, request, waiting)) => asked,
                _ = cancelled.wait_for(|cancelled| *cancelled) => return Err(cancel.refusal()),
            };
            let lease = match asked {
                Ok(lease) => lease,
                Err(refusal) => {
                    tracing::warn!(%refusal, "there is no other path");
                    break;
                }
            };
            tracing::info!(fabric = %lease.fabric, receivers = report.left.len(), "going on over another path");
            lease.steering.begin(&lease.fabric, lease.bytes);
            grant(standing, &lease);
            let after = started.elapsed().as_secs_f64();
            let mut before = (*report).clone();
            before
                .events
                .push((after, format!("{} takes over for {}", lease.fabric, before.left.join(", "))));
            steering.hand_over(&lease.steering);
            steering = Arc::clone(&lease.steering);
            let next = Arc::clone(&source);
            let rest =
                self.deliver(&send, next, lease, until(&options), &mut lent_for, cancel, standing).await?;
            report = Arc::new(before.continued((*rest).clone(), after));
        }
        Ok(report)
    }

    /// Runs the engine, with as many paths one after the other as it takes; they go back in any case. Of `lent_for`, the
    /// time that all may be lent together, what is left remains.
    #[expect(clippy::too_many_arguments, reason = "what a transfer is made of")]
    async fn deliver(
        &self,
        send: &catalog::Send,
        source: Arc<dyn ObjectSource>,
        lease: Lease,
        options: Options,
        lent_for: &mut Option<Duration>,
        cancel: &Cancel,
        standing: &watch::Sender<Standing>,
    ) -> Result<Arc<Report>, Refusal> {
        let (steering, length) = (Arc::clone(&lease.steering), source.len());
        let (fabric, mut passed) = (lease.wish.clone(), lease.passed_over.clone());
        let missed = lease.missed.clone();
        let (granted_at, estimate) = (lease.granted_at, lease.estimate);
        let estimated = lease.bytes.is_none().then(|| lease.fabric.clone());
        let told = Arc::clone(&lease.steering);
        let spec = SourceSpec {
            object: send.id(),
            name: send.object.name.clone(),
            kind: send.object.kind,
            source,
            root: parse_hex(&send.object.root),
            receivers: Invited::Named(lease.receivers.clone()),
            interface: self.shared.interface(),
            path: lease.path.clone(),
            options,
            cancel: Arc::clone(&cancel.engine),
            steering: Arc::clone(&lease.steering),
        };
        let engine = Arc::clone(&self.shared.engine);
        let events = standing.clone();
        let held = Arc::new(Mutex::new(InUse { lease: Some(lease), left: *lent_for }));
        let engines = Arc::clone(&held);
        let mut delivered = tokio::task::spawn_blocking(move || {
            let delivered = engine.deliver(spec, &mut |report: &Report| {
                events.send_modify(|standing| standing.report = Some(Arc::new(report.clone())));
            });
            let took = granted_at.elapsed();
            if let (Ok(report), Some(fabric)) = (&delivered, &estimated)
                && tells_of(report, fabric)
            {
                told.set_took(took);
            }
            // Given back as soon as the engine has ended, however that was.
            hold(&engines, None);
            delivered.map(|report| (report, took))
        });
        let mut rests = steering.rests();
        let delivered = loop {
            tokio::select! {
                delivered = &mut delivered => break delivered,
                // The sender lives as long as the steering that we hold.
                _ = rests.changed() => {}
            }
            let Some(Rest { bytes, receivers }) = rests.borrow_and_update().clone() else { continue };
            // Others may be waiting for the path.
            let left = hold(&held, None);
            if left == Some(Duration::ZERO) {
                steering.lose_path("the time is over that its path was asked for");
                continue;
            }
            let receivers = Receivers::Named(receivers);
            let wanted = Wanted {
                object: send.id(),
                name: &send.object.name,
                root: parse_hex(&send.object.root),
                length,
                remaining: bytes.min(length),
                receivers: &receivers,
                lease: left,
                steering: Some(&steering),
                fabric: &fabric,
            };
            let lease = self.shared.link.request(wanted, |request, waiting| wait(standing, request, waiting));
            tokio::select! {
                delivered = &mut delivered => break delivered,
                lease = lease => match lease {
                    Ok(lease) => {
                        grant(standing, &lease);
                        let (fabric, path) = (lease.fabric.clone(), lease.path.clone());
                        let bytes = Some(lease.bytes.unwrap_or(u64::MAX));
                        hold(&held, Some(lease));
                        steering.take_path(NextPath { fabric, path, bytes, lost: None });
                    }
                    Err(refusal) => steering.lose_path(&refusal.message),
                },
            }
        };
        *lent_for = hold(&held, None);
        let report = match delivered {
            Ok(Ok((report, took))) => {
                passed.extend(steering.passed_over());
                let (estimate_s, took_s) =
                    (estimate.map(|span| span.as_secs_f64()), Some(took.as_secs_f64()));
                let receivers = report.receivers.into_iter().chain(missed.into_iter().map(lost)).collect();
                Report { receivers, passed_over: passed, estimate_s, took_s, ..report }
            }
            Ok(Err(TransferError::Cancelled)) => return Err(cancel.refusal()),
            Ok(Err(error)) => return Err(Refusal::new(Kind::TransferFailed, error.to_string())),
            Err(error) => {
                return Err(Refusal::new(Kind::Internal, format!("the transfer broke down: {error}")));
            }
        };
        if let Some(root) = &report.root {
            self.shared.catalog.set_root(send.id(), root);
        }
        self.shared.counters.sent(&report);
        let verified = report.receivers.iter().filter(|receiver| receiver.verified).count();
        tracing::info!(object = %report.object, bytes = report.bytes, seconds = report.seconds,
            fabric = %report.fabric, verified, receivers = report.receivers.len(), "sent");
        Ok(Arc::new(report))
    }

    fn path_of(&self, send: &catalog::Send) -> std::path::PathBuf {
        send.object.added_from.clone().unwrap_or_else(|| self.shared.store.path(send.id()))
    }

    /// The transfers that wait or run.
    pub(super) fn list(&self) -> Vec<(ObjectId, Standing)> {
        let table = self.lock();
        let sendings = table.sendings.iter();
        sendings.map(|(key, sending)| (key.object, sending.standing.borrow().clone())).collect()
    }

    /// Changes the time or the receivers of the transfer of an object; gives its path, `None` while it waits.
    pub(super) async fn extend(
        &self,
        (object, user): (ObjectId, User),
        time: Option<u64>,
        add: Vec<String>,
        remove: Vec<String>,
    ) -> Result<Option<Granted>, Refusal> {
        let standing = {
            let table = self.lock();
            let mut sendings =
                table.sendings.iter().filter(|(key, sending)| sending.is_for(key, object, user));
            let Some((_, sending)) = sendings.next() else { return Err(not_sent(object)) };
            if sendings.next().is_some() {
                let message =
                    format!("object {object} is being sent to several groups: withdraw all but one");
                return Err(Refusal::new(Kind::Invalid, message));
            }
            sending.standing.clone()
        };
        let request = standing.borrow().request;
        let Some(request_id) = request else {
            return Err(Refusal::new(
                Kind::ManagerUnreachable,
                "the manager has not answered the request yet",
            ));
        };
        let (added, removed) = (add.clone(), remove.clone());
        let extend = manager::Extend { request_id, time_ms: time, add, remove };
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
                granted.steering.change(Change::Add(name.clone(), address));
            }
            names.push(name);
        }
        removed.into_iter().for_each(|name| granted.steering.change(Change::Remove(name)));
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

    /// Ends all transfers.
    pub(super) fn cancel_all(&self) {
        self.lock().sendings.values().for_each(|sending| sending.cancel.set());
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

/// The path that a transfer holds.
struct InUse {
    lease: Option<Lease>,
    /// For how long another one may be lent after the last one went back.
    left: Option<Duration>,
}

/// Puts a lease, or none, in the place of the one that a transfer holds, which goes back; gives for how long another one
/// may be lent then.
fn hold(held: &Mutex<InUse>, lease: Option<Lease>) -> Option<Duration> {
    // Nothing panics while it is locked.
    let mut held = held.lock().unwrap_or_else(PoisonError::into_inner);
    let before = std::mem::replace(&mut held.lease, lease);
    if let Some(before) = before {
        held.left = before.left().map(Duration::from);
    }
    held.left
}

/// Whether the time of a transfer tells how fast its fabric is: it alone has brought the whole object to all receivers, and none of
/// them was slower than the path.
fn tells_of(report: &Report, fabric: &str) -> bool {
    let is_plain =
        |receiver: &ReceiverReport| receiver.verified && !receiver.slow && receiver.fabric == fabric;
    !report.receivers.is_empty()
        && report.receivers.iter().all(is_plain)
        && report.fabric == fabric
        && report.path_lost.is_none()
        && report.spared_bytes == 0
        && report.left.is_empty()
}

/// What is said of a receiver that was named, and that the manager has lost.
fn lost(name: String) -> ReceiverReport {
    let error = "its agent is lost: it has ended or is cut off, and has not come back".to_string();
    ReceiverReport { name, error: Some(error), ..ReceiverReport::default() }
}

/// Tells those who watch that the request waits.
fn wait(standing: &watch::Sender<Standing>, request: u64, waiting: &manager::Waiting) {
    let waiting = Waiting { before: waiting.before, estimate_ms: waiting.estimate_ms };
    standing.send_modify(|standing| (standing.request, standing.waiting) = (Some(request), Some(waiting)));
}

/// Tells those who watch which path the transfer has.
fn grant(standing: &watch::Sender<Standing>, lease: &Lease) {
    let granted = Granted {
        fabric: lease.fabric.clone(),
        response_id: lease.response_id,
        receivers: lease.receivers.iter().map(|(name, _)| name.clone()).collect(),
        service_ms: lease.service_ms,
        lease_ms: lease.lease_ms,
        passed_over: lease.passed_over.clone(),
        estimate: lease.estimate,
        steering: Arc::clone(&lease.steering),
    };
    standing.send_modify(|standing| {
        (standing.request, standing.waiting) = (Some(lease.request_id), None);
        standing.granted = Some(granted);
    });
}

impl Watcher {
    /// Which of this agent's transfers it is.
    pub(super) fn number(&self) -> u64 {
        self.number
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.sends.unwatch(&self.key, self.number);
    }
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

/// Opens an object's bytes, which must not have changed since it was added.
pub(super) fn open(object: &Available, path: &Path) -> Result<Arc<dyn ObjectSource>, Refusal> {
    let in_place = object.added_from.is_some();
    let wrong = |error: String| Refusal::new(Kind::Path, format!("cannot read {}: {error}", path.display()));
    let source: Arc<dyn ObjectSource> = match object.kind {
        ObjectKind::Directory if in_place => {
            let tree = object.choice.open(path);
            Arc::new(tree.map_err(|error| Refusal::new(Kind::Path, error.to_string()))?)
        }
        _ => {
            if !in_place {
                super::store::check_bytes(path)?;
            }
            let file = match in_place {
                true => FileSource::open_as_it_is(path),
                // The store notes by its times when it was used.
                false => FileSource::open(path).map(FileSource::unchanging),
            };
            let file = file.map_err(|error| wrong(error.to_string()))?;
            Arc::new(file.with_mode(object.mode).with_time(object.modified))
        }
    };
    if source.len() != object.length || (in_place && source.stamp() != object.stamp) {
        let message = format!("{} has changed since it was added", path.display());
        return Err(Refusal::new(Kind::Path, message));
    }
    Ok(source)
}
