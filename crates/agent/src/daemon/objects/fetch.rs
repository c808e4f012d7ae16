//! Processes on this host that request objects. The manager receives one request for each object, however
//! many ask.

use super::super::catalog::Snapshot;
use super::super::convert;
use super::super::manager_link::{LinkState, ObjectWish};
use super::super::opened::check_here;
use super::super::users::User;
use super::Objects;
use super::key::Digest;
use polycast_api::agent::fetch_event::Event;
use polycast_api::agent::{FetchEvent, FetchProgress, FetchWaiting, FillOrder};
use polycast_api::error::{Kind, Refusal};
use polycast_types::{AppId, ObjectId, without_secrets};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tonic::Status;

/// Calls that may wait for objects.
const WAITERS_MAX: usize = 4_096;
/// Words to a caller that it has not taken yet.
const WORDS_MAX: usize = 4;
/// Interval of the progress reports to a caller.
const PROGRESS: Duration = Duration::from_millis(100);
/// Time without any bytes of an object after which the manager is notified, each time.
pub(super) const UNSERVED: Duration = Duration::from_secs(30);
/// Time that a process that has to get an object may take to begin, or to bring the next bytes.
pub(super) const FILL_PATIENCE: Duration = Duration::from_secs(30);

/// A process.
pub(super) type Process = (AppId, u64);

/// Processes that wait for objects.
#[derive(Default)]
pub(super) struct Fetches {
    objects: BTreeMap<ObjectId, Fetch>,
    waiters: usize,
    last_number: u64,
}

#[derive(Default)]
struct Fetch {
    waiters: BTreeMap<u64, Waiter>,
    filling: Option<Filling>,
    /// The manager has denied it while it comes: it is asked for again if it does not come.
    comes: bool,
}

struct Waiter {
    process: Process,
    can_fill: bool,
    waits: bool,
    /// It was told to get the object, and could not.
    failed: bool,
    words: mpsc::Sender<Word>,
}

/// The process that gets an object from its origin.
struct Filling {
    waiter: u64,
    process: Process,
    /// Set once it brings bytes.
    active: bool,
}

/// Message to a caller.
enum Word {
    Fill,
    Denied(Refusal),
}

/// Request of a process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asks {
    pub process: Process,
    pub user: User,
    pub can_fill: bool,
    pub deadline: Option<Duration>,
}

/// The place of one wait among all that wait for an object; the wish ends with the last of them.
struct Place {
    objects: Arc<Objects>,
    object: ObjectId,
    number: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.objects.leave(self.object, self.number);
    }
}

type Events = mpsc::Sender<Result<FetchEvent, Status>>;

impl Objects {
    /// The objects that processes on this host wait for, with the number of those.
    pub(crate) fn waits(&self) -> Vec<(ObjectId, usize)> {
        let fetches = self.fetches();
        fetches.objects.iter().map(|(object, fetch)| (*object, fetch.waiters.len())).collect()
    }

    /// Waits for an object, and tells the caller how it goes.
    pub(crate) async fn fetch(
        self: Arc<Self>,
        (object, digest): (ObjectId, Digest),
        asks: Asks,
        events: Events,
    ) {
        if let Err(refusal) = Arc::clone(&self).follow((object, digest), asks, &events).await {
            // A caller that has gone need not hear it.
            let _ = events.send(Err(refusal.into())).await;
        }
    }

    async fn follow(
        self: Arc<Self>,
        (object, digest): (ObjectId, Digest),
        asks: Asks,
        events: &Events,
    ) -> Result<(), Refusal> {
        let tell = async |event| events.send(Ok(FetchEvent { event: Some(event) })).await.is_ok();
        let (place, mut words) = self.enter(object, asks)?;
        let waiting = FetchWaiting { app_id: object.app.0.to_vec(), data_id: object.data.0 };
        if !tell(Event::Waiting(waiting)).await {
            return Ok(());
        }
        let until = asks.deadline.map(|deadline| Instant::now() + deadline);
        let here = self.shared.catalog.wait(object, asks.user, None, false);
        let mut here = std::pin::pin!(here);
        let mut ticks = tokio::time::interval(PROGRESS);
        let mut told = (0, 0);
        let mut unserved_at = Instant::now() + UNSERVED;
        loop {
            let late = async {
                match until {
                    Some(until) => tokio::time::sleep_until(until).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                found = &mut here => {
                    let found = found?;
                    drop(place);
                    check_here(&self.shared.store, object, &found)?;
                    self.check_key(object, &digest, &found).await?;
                    self.shared.used(object);
                    let found = convert::available(object, found, &self.shared.store.path(object), asks.user);
                    tell(Event::Object(found)).await;
                    return Ok(());
                }
                () = events.closed() => return Ok(()),
                word = words.recv() => match word {
                    Some(Word::Fill) => {
                        let order = FillOrder { app_id: object.app.0.to_vec(), data_id: object.data.0 };
                        if !tell(Event::Fill(order)).await {
                            return Ok(());
                        }
                    }
                    Some(Word::Denied(refusal)) => return Err(refusal),
                    None => return Err(Refusal::new(Kind::Cancelled, "the wish is over")),
                },
                () = late => return Err(self.too_late(object)),
                _ = ticks.tick() => {
                    let coming = self.shared.catalog.get(object);
                    if matches!(coming, Some(Snapshot::Receiving { .. })) {
                        unserved_at = Instant::now() + UNSERVED;
                    } else if Instant::now() >= unserved_at {
                        unserved_at = Instant::now() + UNSERVED;
                        self.say_unserved(object);
                    }
                    if let Some(Snapshot::Receiving { bytes, spared: spared_bytes, total, .. }) = coming
                        && (bytes, total) != told
                    {
                        told = (bytes, total);
                        if !tell(Event::Progress(FetchProgress { bytes, total, spared_bytes })).await {
                            return Ok(());
                        }
                    }
                }
            }
        }
    }

    fn too_late(&self, object: ObjectId) -> Refusal {
        let how = match (self.shared.catalog.get(object), self.shared.link.state()) {
            (Some(Snapshot::Receiving { bytes, total, .. }), _) => {
                format!("{bytes} of {total} bytes are here")
            }
            (_, LinkState::Away { reason, .. }) => {
                format!("the manager at {} cannot be reached: {reason}", self.shared.link.manager())
            }
            (_, LinkState::Joined) => "no agent has begun to send it".into(),
        };
        Refusal::new(Kind::TimedOut, format!("object {object} did not come in time: {how}"))
    }

    /// A place for one more that waits.
    fn enter(
        self: &Arc<Self>,
        object: ObjectId,
        asks: Asks,
    ) -> Result<(Place, mpsc::Receiver<Word>), Refusal> {
        let mut fetches = self.fetches();
        if fetches.waiters >= WAITERS_MAX {
            let message = format!("{WAITERS_MAX} calls wait for objects here, which is the limit");
            return Err(Refusal::new(Kind::Full, message));
        }
        let (sender, words) = mpsc::channel(WORDS_MAX);
        fetches.last_number += 1;
        fetches.waiters += 1;
        let number = fetches.last_number;
        let fetch = fetches.objects.entry(object).or_default();
        let waits = asks.deadline.is_some();
        let waiter =
            Waiter { process: asks.process, can_fill: asks.can_fill, waits, failed: false, words: sender };
        fetch.waiters.insert(number, waiter);
        self.want(object, fetch);
        Ok((Place { objects: Arc::clone(self), object, number }, words))
    }

    fn leave(self: &Arc<Self>, object: ObjectId, number: u64) {
        let mut fetches = self.fetches();
        let Some(fetch) = fetches.objects.get_mut(&object) else { return };
        if fetch.waiters.remove(&number).is_none() {
            return;
        }
        fetches.waiters -= 1;
        let Some(fetch) = fetches.objects.get_mut(&object) else { return };
        let idle = fetch.filling.as_ref().is_some_and(|one| one.waiter == number && !one.active);
        if idle {
            self.pass_on(object, fetch, "the process that was to get it has gone");
        }
        self.tidy(&mut fetches, object);
    }

    /// Forgets an object that no process here waits for or gets.
    fn tidy(&self, fetches: &mut Fetches, object: ObjectId) {
        let Some(fetch) = fetches.objects.get(&object) else { return };
        if fetch.filling.is_none() && fetch.waiters.is_empty() {
            fetches.objects.remove(&object);
            // If it has come, the manager hears that first, which ends the wish. The other way round it would
            // have another one read the origin.
            super::announce(&self.shared.catalog, &self.shared.link);
            self.shared.link.unwant(object);
        } else if fetch.filling.is_none() {
            self.want(object, fetch);
        }
    }

    /// Tells the manager how an object is wanted that is not here.
    fn want(&self, object: ObjectId, fetch: &Fetch) {
        if !matches!(self.shared.catalog.get(object), Some(Snapshot::Available(_))) {
            self.shared.link.want(object, wish(fetch));
        }
    }

    /// The manager has chosen this agent to get an object from its origin.
    pub(super) fn told_to_fill(self: &Arc<Self>, object: ObjectId) {
        let mut fetches = self.fetches();
        let Some(fetch) = fetches.objects.get_mut(&object) else {
            return self.shared.link.fill_failed(object, "no process there asks for it any more".into());
        };
        self.shared.link.note_filling(object, true);
        if fetch.filling.is_none() {
            self.choose(object, fetch, "no process there can get it any more");
        }
        self.tidy(&mut fetches, object);
    }

    /// The next process here that is to get an object; the manager hears it where there is none.
    fn choose(self: &Arc<Self>, object: ObjectId, fetch: &mut Fetch, reason: &str) {
        let mut able = fetch.waiters.iter().filter(|(_, waiter)| waiter.can_fill && !waiter.failed);
        let told = able.find(|(_, waiter)| waiter.words.try_send(Word::Fill).is_ok());
        let Some((number, waiter)) = told else {
            fetch.filling = None;
            return self.shared.link.fill_failed(object, reason.to_string());
        };
        let (number, process) = (*number, waiter.process);
        fetch.filling = Some(Filling { waiter: number, process, active: false });
        let objects = Arc::clone(self);
        tokio::spawn(async move {
            tokio::time::sleep(FILL_PATIENCE).await;
            objects.lose_patience(object, number);
        });
    }

    fn lose_patience(self: &Arc<Self>, object: ObjectId, number: u64) {
        let mut fetches = self.fetches();
        let Some(fetch) = fetches.objects.get_mut(&object) else { return };
        if fetch.filling.as_ref().is_some_and(|one| one.waiter == number && !one.active) {
            self.pass_on(object, fetch, "the process that was to get it did nothing");
            self.tidy(&mut fetches, object);
        }
    }

    /// The process that was to get an object has not got it.
    fn pass_on(self: &Arc<Self>, object: ObjectId, fetch: &mut Fetch, reason: &str) {
        let Some(before) = fetch.filling.take() else { return };
        if let Some(waiter) = fetch.waiters.get_mut(&before.waiter) {
            waiter.failed = true;
        }
        self.choose(object, fetch, reason);
    }

    /// Returns true if the process that has to get an object still waits for it.
    pub(super) fn fill_is_awaited(&self, object: ObjectId) -> bool {
        let fetches = self.fetches();
        let fetch = fetches.objects.get(&object);
        fetch.is_some_and(|fetch| {
            fetch.filling.as_ref().is_some_and(|filling| fetch.waiters.contains_key(&filling.waiter))
        })
    }

    /// A process brings the bytes that it was told to get.
    pub(super) fn begin_fill(&self, object: ObjectId, key: &str, process: Process) -> Result<(), Refusal> {
        let mut fetches = self.fetches();
        let filling = fetches.objects.get_mut(&object).and_then(|fetch| fetch.filling.as_mut());
        match filling {
            Some(filling) if filling.process == process && !filling.active => {
                filling.active = true;
                Ok(())
            }
            _ => {
                let message = format!(
                    "this process was not told to get {}: it has to Fetch it first, and to be chosen",
                    without_secrets(key)
                );
                Err(Refusal::new(Kind::Invalid, message))
            }
        }
    }

    /// A process has brought an object, or has failed to.
    pub(super) fn end_fill(self: &Arc<Self>, object: ObjectId, outcome: Result<(), &str>) {
        let mut fetches = self.fetches();
        let Some(fetch) = fetches.objects.get_mut(&object) else { return };
        match outcome {
            Ok(()) => fetch.filling = None,
            Err(reason) => {
                if let Some(filling) = &fetch.filling
                    && let Some(waiter) = fetch.waiters.get_mut(&filling.waiter)
                {
                    waiter.failed = true;
                    let refusal = Refusal::new(Kind::OriginFailed, reason);
                    // It knows, and need not wait for others; one that has gone need not hear it.
                    let _ = waiter.words.try_send(Word::Denied(refusal));
                }
                self.pass_on(object, fetch, reason);
            }
        }
        self.tidy_filled(&mut fetches, object, outcome.is_ok());
    }

    fn tidy_filled(&self, fetches: &mut Fetches, object: ObjectId, is_here: bool) {
        if !is_here {
            self.tidy(fetches, object);
        } else if fetches.objects.get(&object).is_some_and(|fetch| fetch.waiters.is_empty()) {
            fetches.objects.remove(&object);
        }
    }

    /// Nothing of an object comes: the manager hears it once, however many wait for it.
    pub(super) fn say_unserved(&self, object: ObjectId) {
        if self.unserved().notes(object, Instant::now()) {
            self.shared.link.unserved(object);
        }
    }

    /// Asks again for an object that was denied while it came, if it has not come.
    async fn ask_again(self: Arc<Self>, object: ObjectId) {
        // The agent may end meanwhile.
        let _ = self.shared.catalog.settled(object).await;
        let mut fetches = self.fetches();
        let Some(fetch) = fetches.objects.get_mut(&object) else { return };
        fetch.comes = false;
        self.want(object, fetch);
    }

    /// The manager says that the object does not come.
    pub(super) fn denied(self: &Arc<Self>, object: ObjectId, refusal: &Refusal) {
        let mut fetches = self.fetches();
        self.shared.link.forget_want(object);
        let Some(fetch) = fetches.objects.get_mut(&object) else { return };
        let here = self.shared.catalog.get(object);
        if matches!(here, Some(Snapshot::Available(_))) {
            // It has come at this moment: those that wait see it. The manager has denied it as another agent
            // has another one.
            return;
        }
        if matches!(here, Some(Snapshot::Receiving { .. })) {
            // An agent is sending it: others were turned down meanwhile, and that is why it is denied.
            tracing::info!(%object, %refusal, "denied, and comes all the same");
            if !std::mem::replace(&mut fetch.comes, true) {
                tokio::spawn(Arc::clone(self).ask_again(object));
            }
            return;
        }
        let message = format!("object {object}: {}", refusal.message);
        let refusal = Refusal::new(refusal.kind, message);
        let mut told: usize = 0;
        fetch.waiters.retain(|_, waiter| {
            // A process that waits until an agent has the object goes on waiting.
            let goes_on = waiter.waits && refusal.kind == Kind::ObjectUnknown;
            if !goes_on {
                // There is room: it has heard next to nothing.
                let _ = waiter.words.try_send(Word::Denied(refusal.clone()));
                told += 1;
            }
            goes_on
        });
        fetches.waiters -= told;
        self.tidy(&mut fetches, object);
    }
}

/// Objects of which the manager was recently notified that no bytes of them arrive.
#[derive(Default)]
pub(super) struct Unserved(BTreeMap<ObjectId, Instant>);

impl Unserved {
    /// Notes that this is to be said of an object now, unless it was said already in the time that goes by
    /// between two such words.
    fn notes(&mut self, object: ObjectId, now: Instant) -> bool {
        self.0.retain(|_, said| now.duration_since(*said) < UNSERVED);
        // The calls that wait are bounded, and so are their objects.
        let is_new = !self.0.contains_key(&object);
        if is_new {
            self.0.insert(object, now);
        }
        is_new
    }
}

/// Returns the request to the manager for an object that several processes may ask for.
fn wish(fetch: &Fetch) -> ObjectWish {
    ObjectWish {
        can_fill: fetch.waiters.values().any(|waiter| waiter.can_fill && !waiter.failed),
        waits: fetch.waiters.values().all(|waiter| waiter.waits),
        fills: fetch.filling.is_some(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polycast_types::DataId;

    #[test]
    fn that_nothing_comes_is_said_once_of_each_object() {
        let object = |data| ObjectId { app: AppId::default(), data: DataId(data) };
        let (mut unserved, begun) = (Unserved::default(), Instant::now());
        for waiter in 0..1_000 {
            let now = begun + Duration::from_millis(waiter);
            assert_eq!(unserved.notes(object(1), now), waiter == 0);
            assert_eq!(unserved.notes(object(2), now), waiter == 0);
        }
        assert!(!unserved.notes(object(1), begun + UNSERVED - Duration::from_millis(1)));
        assert!(unserved.notes(object(1), begun + UNSERVED));
        assert_eq!(unserved.0.len(), 1, "what was said before that is forgotten");
    }
}
