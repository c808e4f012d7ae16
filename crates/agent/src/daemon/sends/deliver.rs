//! The driver of one delivery (`protocol::delivery`): it asks the manager, runs the engine, and tells each of
//! the other.

use super::delta::{self, Coded};
use super::{Cancel, Granted, Sends, Standing, Waiting, Wish, open};
use crate::daemon::catalog;
use crate::daemon::manager_link::{Lease, Wanted};
use crate::transfer::{
    Change, NextPath, Options, ReceiverReport, Receivers as Invited, Report, Rest, SourceSpec, Steering,
    TransferError,
};
use polycast_api::client::Receivers;
use polycast_api::error::{Kind, Refusal};
use polycast_api::manager;
use polycast_api::report::PassedOver;
use polycast_net::hash::parse_hex;
use polycast_net::object::ObjectSource;
use polycast_protocol::delivery::{self, Delivery, DeliveryConfig, Ended, Form, Input, Outcome, Output, To};
use polycast_types::{Duration, Time};
use polycast_wire::control::Hash;
use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use tokio::sync::{SemaphorePermit, mpsc, watch};
use tokio::task::{JoinError, JoinHandle};

/// Result of an engine, and the time that it took from the grant of its first path.
type Delivered = (Result<Report, TransferError>, std::time::Duration);
/// A request at the manager.
type Asking<'a> = Pin<Box<dyn Future<Output = Result<Lease, Refusal>> + Send + 'a>>;
/// Preconditions of a delivery: its turn, and the sources that it is sent from.
type Prepared<'a> = Result<(SemaphorePermit<'a>, Arc<dyn ObjectSource>, Option<Arc<Coded>>), Refusal>;

/// An engine that runs.
struct Carrier {
    form: Form,
    delivered: JoinHandle<Delivered>,
    steering: Arc<Steering>,
    rests: watch::Receiver<Option<Rest>>,
    granted_at: Instant,
    /// Reports on receivers that the engine does not know, to be added to its report.
    missed: Vec<ReceiverReport>,
    passed_over: Vec<PassedOver>,
    estimate_s: Option<f64>,
    /// The fabric whose speed the time of the transfer may tell: it was granted for the whole object.
    estimated: Option<String>,
}

/// A delivery that runs.
pub(super) struct Delivering<'a> {
    sends: &'a Sends,
    send: &'a catalog::Send,
    wish: &'a Wish,
    cancel: &'a Cancel,
    standing: &'a watch::Sender<Standing>,
    began: Instant,
    machine: Delivery,
    source: Option<Arc<dyn ObjectSource>>,
    /// Delta that is sent first in its place.
    coded: Option<Arc<Coded>>,
    /// The object's root hash, as its delta had it.
    known_root: Option<Hash>,
    /// Form that the previous carrier has brought.
    brought: Form,
    /// Receivers to which the object goes because its delta was of no use to them, and since when.
    undeltaed: Option<(f64, Vec<String>)>,
    /// Receivers that were taken out.
    removed: BTreeSet<String>,
    asking: Option<Asking<'a>>,
    /// The path that was granted; it goes back when it is dropped.
    lease: Option<Lease>,
    carrier: Option<Carrier>,
    /// Start of the first carrier, and the report of all that have ended.
    started: Option<Instant>,
    report: Option<Report>,
    /// Reason why the last request was refused, or the engine has failed.
    refusal: Option<Refusal>,
    /// Changes that the machine knows by their numbers.
    changes: BTreeMap<u64, Change>,
    next_change: u64,
}

/// Events that the driver waits for.
enum Event {
    Answered(Result<Lease, Refusal>),
    Ended(Result<Delivered, JoinError>),
    UsedUp,
    Changed(Change),
    Cancelled,
    Late,
}

impl<'a> Delivering<'a> {
    pub(super) fn new(
        sends: &'a Sends,
        send: &'a catalog::Send,
        wish: &'a Wish,
        cancel: &'a Cancel,
        standing: &'a watch::Sender<Standing>,
    ) -> Self {
        let to = match &wish.receivers {
            Receivers::All => To::All,
            Receivers::Named(names) => To::Named(names.clone()),
        };
        let machine = Delivery::new(DeliveryConfig {
            object_len: send.object.length,
            to,
            lease: wish.lease,
            deadline: wish.options.deadline.map(|deadline| Time::ZERO + deadline),
        });
        Delivering {
            sends,
            send,
            wish,
            cancel,
            standing,
            began: Instant::now(),
            machine,
            source: None,
            coded: None,
            known_root: None,
            brought: Form::Object,
            undeltaed: None,
            removed: BTreeSet::new(),
            asking: None,
            lease: None,
            carrier: None,
            started: None,
            report: None,
            refusal: None,
            changes: BTreeMap::new(),
            next_change: 0,
        }
    }

    /// Runs it from its turn to the release of its last path.
    pub(super) async fn run(mut self, mut changes: mpsc::Receiver<Change>) -> Result<Arc<Report>, Refusal> {
        // The place is kept until the transfer has ended.
        let _place = match self.begin().await? {
            Some(place) => place,
            None => return self.result(),
        };
        let mut cancelled = self.cancel.early.subscribe();
        let mut is_cancelled = false;
        loop {
            self.obey();
            if self.machine.is_over() {
                return self.result();
            }
            let due = self.due();
            let event = tokio::select! {
                answer = answer(&mut self.asking) => Event::Answered(answer),
                event = carried(&mut self.carrier) => event,
                Some(change) = changes.recv() => Event::Changed(change),
                () = told(&mut cancelled), if !is_cancelled => Event::Cancelled,
                () = sleep_until(due) => Event::Late,
            };
            is_cancelled |= matches!(event, Event::Cancelled);
            self.happen(event);
        }
    }

    /// Waits for its turn and opens what is sent; `None` where it is over before that.
    async fn begin(&mut self) -> Result<Option<SemaphorePermit<'a>>, Refusal> {
        let (sends, path) = (self.sends, self.sends.path_of(self.send));
        let object = Arc::new(self.send.object.clone());
        let (shared, id, cancel) = (Arc::clone(&sends.shared), self.send.id(), self.cancel.clone());
        let prepared = async {
            let internal = |error: String| Refusal::new(Kind::Internal, error);
            let place = sends.places.acquire().await.map_err(|error| internal(error.to_string()))?;
            let codes = delta::is_worth_a_try(&object) && delta::reaches(&shared, &self.wish.receivers).await;
            let opened = Arc::clone(&object);
            let opened = tokio::task::spawn_blocking(move || open(&opened, &path)).await;
            let source = opened.map_err(|error| internal(error.to_string()))??;
            if !codes {
                return Ok((place, source, None));
            }
            let new = Arc::clone(&source);
            let coding = move || Coded::of(&shared, (id, &object), &*new, &cancel).map(Arc::new);
            // Whatever goes wrong with that, the object can be sent.
            let coded = tokio::task::spawn_blocking(coding).await.unwrap_or_else(|error| {
                tracing::warn!(object = %id, %error, "coding it as a delta broke down");
                None
            });
            Prepared::Ok((place, source, coded))
        };
        let mut cancelled = self.cancel.early.subscribe();
        let due = self.due();
        let input = tokio::select! {
            prepared = prepared => {
                let (place, source, coded) = prepared?;
                (self.source, self.coded) = (Some(source), coded);
                self.hear(Input::Start { delta_len: self.coded.as_ref().map(|coded| coded.len()) });
                return Ok(Some(place));
            }
            () = told(&mut cancelled) => Input::Cancel,
            () = sleep_until(due) => {
                // What still codes ends, too.
                self.cancel.engine.store(true, Ordering::Relaxed);
                Input::Tick
            }
        };
        self.hear(input);
        self.obey();
        Ok(None)
    }

    fn now(&self) -> Time {
        Time::ZERO + Duration::from(self.began.elapsed())
    }

    /// Returns the time at which the machine has to check the clock.
    fn due(&self) -> Option<Instant> {
        let at = self.machine.deadline()?;
        Some(self.began + std::time::Duration::from(at.since(Time::ZERO)))
    }

    fn hear(&mut self, input: Input) {
        let now = self.now();
        self.machine.handle(now, input);
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Answered(Ok(lease)) => {
                self.asking = None;
                let granted = Input::Granted { bytes: lease.bytes, ends_at: self.ends_at(&lease) };
                self.lease = Some(lease);
                self.hear(granted);
            }
            Event::Answered(Err(refusal)) => {
                self.asking = None;
                let why = refusal.message.clone();
                self.refusal = Some(refusal);
                self.hear(Input::Denied(why));
            }
            Event::Ended(delivered) => self.ended(delivered),
            Event::UsedUp => {
                let rest =
                    self.carrier.as_mut().and_then(|carrier| carrier.rests.borrow_and_update().clone());
                if let Some(Rest { bytes, receivers }) = rest {
                    self.tell_end();
                    self.hear(Input::UsedUp { bytes, receivers });
                }
            }
            Event::Changed(change) => self.change(change),
            Event::Cancelled => self.hear(Input::Cancel),
            Event::Late => self.hear(Input::Tick),
        }
    }

    fn change(&mut self, change: Change) {
        match &change {
            Change::Add(name, _) => drop(self.removed.remove(name)),
            Change::Remove(name) => drop(self.removed.insert(name.clone())),
            // Agents are named.
            Change::Fewer(_) => {}
        }
        let number = self.next_change;
        self.next_change += 1;
        self.changes.insert(number, change);
        self.hear(Input::Change(number));
    }

    /// Returns the time when a path has to be released, by the machine's clock.
    fn ends_at(&self, lease: &Lease) -> Option<Time> {
        lease.left().map(|left| self.now() + Duration::from(left))
    }

    /// Tells the machine how long the path is lent, which the manager may have changed.
    fn tell_end(&mut self) {
        if let Some(ends_at) = self.lease.as_ref().map(|lease| self.ends_at(lease)) {
            self.hear(Input::EndsAt(ends_at));
        }
    }

    /// Does what the machine orders.
    fn obey(&mut self) {
        while let Some(output) = self.machine.poll() {
            match output {
                Output::Ask(wanted) => self.ask(wanted),
                Output::Unask => self.asking = None,
                Output::Begin { form, bytes } => self.carry(form, bytes),
                Output::Switch { bytes } => self.switch(bytes),
                Output::GiveBack => self.lease = None,
                Output::LosePath(why) => {
                    self.refusal = None;
                    if let Some(carrier) = &self.carrier {
                        carrier.steering.lose_path(&why);
                    }
                }
                Output::Change(number) => {
                    if let (Some(change), Some(carrier)) = (self.changes.get(&number), &self.carrier) {
                        carrier.steering.change(change.clone());
                        // Where a delta's carrier fails, the next one hears of it as well.
                        if carrier.form == Form::Object {
                            self.changes.remove(&number);
                        }
                    }
                }
                Output::Stop => self.cancel.engine.store(true, Ordering::Relaxed),
                Output::Done(outcome) => self.done(outcome),
            }
        }
    }

    fn ask(&mut self, wanted: delivery::Wanted) {
        let (sends, send, wish, standing) = (self.sends, self.send, self.wish, self.standing);
        let steering = self.carrier.as_ref().map(|carrier| Arc::clone(&carrier.steering));
        let is_rest = self.brought == Form::Delta && wanted.form == Form::Object;
        let (root, length) = match (wanted.form, &self.coded) {
            (Form::Delta, Some(coded)) => (Some(coded.root), coded.len()),
            _ => (self.root(), send.object.length),
        };
        self.asking = Some(Box::pin(async move {
            let (remaining, lease) = (wanted.remaining, wanted.lease);
            let steering = steering.as_ref().filter(|_| wanted.goes_on);
            let receivers = match wanted.to {
                To::All => Receivers::All,
                To::Named(names) => Receivers::Named(names),
            };
            let asked = |receivers: Receivers| async move {
                let wanted = Wanted {
                    object: send.id(),
                    name: &send.object.name,
                    root,
                    length,
                    remaining,
                    receivers: &receivers,
                    lease,
                    steering,
                    fabric: &wish.fabric,
                };
                sends.shared.link.request(wanted, |request, waiting| wait(standing, request, waiting)).await
            };
            match (asked(receivers.clone()).await, receivers) {
                // One of them has left since the delta was sent: that is no reason for the others.
                (Err(refusal), Receivers::Named(names))
                    if is_rest && refusal.kind == Kind::ReceiverUnknown =>
                {
                    let (peers, _) = sends.shared.link.peers().await;
                    let here = |name: &String| peers.iter().any(|peer| peer.name == *name);
                    let known: Vec<String> = names.iter().filter(|name| here(name)).cloned().collect();
                    if known.is_empty() || known.len() == names.len() {
                        return Err(refusal);
                    }
                    asked(Receivers::Named(known)).await
                }
                (answer, _) => answer,
            }
        }));
    }

    /// Begins an engine over the path that was granted.
    fn carry(&mut self, form: Form, bytes: Option<u64>) {
        let lease = self.lease.as_ref().expect("a path was granted");
        let coded = self.coded.clone().filter(|_| form == Form::Delta);
        let source = match &coded {
            Some(coded) => coded.source(),
            None => Arc::clone(self.source.as_ref().expect("it was opened before a path was asked for")),
        };
        lease.steering.begin(&lease.fabric, bytes);
        self.refusal = None;
        grant(self.standing, lease);
        self.started.get_or_insert_with(Instant::now);
        if let Some(report) = &mut self.report {
            tracing::info!(fabric = %lease.fabric, receivers = report.left.len(), "going on over another path");
            let after = self.started.map_or(0.0, |started| started.elapsed().as_secs_f64());
            match self.brought {
                Form::Delta => self.undeltaed = Some((after, report.left.clone())),
                Form::Object => {
                    let left = report.left.join(", ");
                    report.events.push((after, format!("{} takes over for {left}", lease.fabric)));
                }
            }
        }
        let (sends, send) = (self.sends, self.send);
        let options = Options {
            deadline: self
                .wish
                .options
                .deadline
                .map(|deadline| deadline - Duration::from(self.began.elapsed())),
            delta: coded.as_ref().map(|coded| coded.delta),
            ..self.wish.options.clone()
        };
        let spec = SourceSpec {
            object: send.id(),
            name: send.object.name.clone(),
            kind: send.object.kind,
            source,
            root: coded.as_ref().map_or_else(|| self.root(), |coded| Some(coded.root)),
            receivers: Invited::Named(lease.receivers.clone()),
            location: sends.shared.location.clone(),
            interface: sends.shared.interface(),
            path: lease.path.clone(),
            options,
            cancel: Arc::clone(&self.cancel.engine),
            steering: Arc::clone(&lease.steering),
        };
        let (engine, events, granted_at) =
            (Arc::clone(&sends.shared.engine), self.standing.clone(), lease.granted_at);
        let delivered = tokio::task::spawn_blocking(move || {
            let told_of = |report: Report| match &coded {
                Some(coded) => coded.told_of(report),
                None => report,
            };
            let delivered = engine.deliver(spec, &mut |report: &Report| {
                events.send_modify(|standing| standing.report = Some(Arc::new(told_of(report.clone()))));
            });
            (delivered.map(told_of), granted_at.elapsed())
        });
        self.carrier = Some(Carrier {
            form,
            delivered,
            rests: lease.steering.rests(),
            steering: Arc::clone(&lease.steering),
            granted_at,
            missed: lease.missed.iter().cloned().map(lost).collect(),
            passed_over: lease.passed_over.clone(),
            estimate_s: lease.estimate.map(|span| span.as_secs_f64()),
            estimated: bytes.is_none().then(|| lease.fabric.clone()),
        });
    }

    /// The engine goes on over the path that was granted.
    fn switch(&self, bytes: Option<u64>) {
        let lease = self.lease.as_ref().expect("a path was granted");
        grant(self.standing, lease);
        let (fabric, path) = (lease.fabric.clone(), lease.path.clone());
        let bytes = Some(bytes.unwrap_or(u64::MAX));
        lease.steering.take_path(NextPath { fabric, path, bytes, lost: None });
    }

    fn ended(&mut self, delivered: Result<Delivered, JoinError>) {
        let carrier = self.carrier.take().expect("it ran");
        self.brought = carrier.form;
        if carrier.form == Form::Delta {
            // Its file goes; what it has told stays.
            self.known_root = self.coded.take().map(|coded| coded.delta.root);
        }
        self.tell_end();
        let ended = match delivered {
            Ok((Ok(report), took)) => {
                if carrier.estimated.as_deref().is_some_and(|fabric| tells_of(&report, fabric)) {
                    carrier.steering.set_took(took);
                }
                let mut report = report;
                if carrier.form == Form::Delta {
                    report.left = self.without(&report);
                }
                let left = report.left.clone();
                let ended = Ended::Finished { left, rekeyed: carrier.steering.is_rekeyed() };
                self.add_report(&carrier, report, took);
                ended
            }
            Ok((Err(error), _)) => {
                tracing::info!(object = %self.send.id(), form = ?carrier.form, %error, "a transfer has failed");
                self.refusal = Some(match error {
                    TransferError::Cancelled => self.cancel.refusal(),
                    error => Refusal::new(Kind::TransferFailed, error.to_string()),
                });
                Ended::Failed
            }
            Err(error) => {
                let message = format!("the transfer broke down: {error}");
                self.refusal = Some(Refusal::new(Kind::Internal, message));
                Ended::Failed
            }
        };
        self.hear(Input::Ended(ended));
        self.obey();
        // What it has not taken in is for the next one. The manager tells it nothing more, as its path has
        // gone back.
        carrier.steering.take().into_iter().for_each(|change| self.change(change));
    }

    /// The receivers of a delta that lack the object.
    fn without(&self, report: &Report) -> Vec<String> {
        let lack = report.receivers.iter().filter(|receiver| !receiver.verified);
        let names: BTreeSet<String> = lack.map(|receiver| receiver.name.clone()).collect();
        let has = |name: &String| report.receivers.iter().any(|one| one.verified && one.name == *name);
        names.into_iter().filter(|name| !self.removed.contains(name) && !has(name)).collect()
    }

    /// The object's root hash, where it is known.
    fn root(&self) -> Option<Hash> {
        let coded = self.coded.as_ref().map(|coded| coded.delta.root);
        parse_hex(&self.send.object.root).or(coded).or(self.known_root)
    }

    /// Says to whom the object went in place of its delta: one that had it already needed neither.
    fn say_undeltaed(&mut self, report: &Report) {
        let Some((after, names)) = self.undeltaed.take() else { return };
        let had = |name: &String| {
            let mut receivers = report.receivers.iter();
            receivers.any(|one| one.name == *name && one.verified && one.came_bytes == 0)
        };
        let lacked: Vec<String> = names.into_iter().filter(|name| !had(name)).collect();
        if let (false, Some(before)) = (lacked.is_empty(), &mut self.report) {
            let what = format!("the delta did not help {}: the object itself follows", lacked.join(", "));
            before.events.push((after, what));
        }
    }

    /// Adds the report of an engine to those of the ones before.
    fn add_report(&mut self, carrier: &Carrier, report: Report, took: std::time::Duration) {
        let sends = self.sends;
        let later = carrier.steering.passed_over();
        let passed_over = carrier.passed_over.iter().cloned().chain(later).collect();
        let receivers = report.receivers.iter().chain(&carrier.missed).cloned().collect();
        let (estimate_s, took_s) = (carrier.estimate_s, Some(took.as_secs_f64()));
        let report = Report { receivers, passed_over, estimate_s, took_s, ..report };
        if let Some(root) = &report.root {
            sends.shared.catalog.set_root(self.send.id(), root);
        }
        self.say_undeltaed(&report);
        sends.shared.counters.sent(&report);
        self.note_end(&report);
        let started = self.started.expect("it was set when the first one began");
        let after = carrier.granted_at.saturating_duration_since(started).as_secs_f64();
        self.report = Some(match self.report.take() {
            Some(before) => before.continued(report, after),
            None => report,
        });
    }

    /// Says how a carrier has ended; to those that are left another one goes.
    fn note_end(&self, report: &Report) {
        let mut receivers = report.receivers.iter().filter(|one| !report.left.contains(&one.name)).peekable();
        if receivers.peek().is_none() && !report.left.is_empty() {
            return;
        }
        let (verified, failed): (Vec<_>, Vec<_>) = receivers.partition(|receiver| receiver.verified);
        let failed: Vec<&str> = failed.iter().map(|receiver| receiver.name.as_str()).collect();
        // An operator sees this one without asking for more.
        tracing::info!(target: "polycast::done", name = %self.send.object.name, object = %report.object,
            bytes = report.bytes, seconds = report.seconds, fabric = %report.fabric,
            verified = verified.len(), receivers = verified.len() + failed.len(), ?failed, "sent");
    }

    fn done(&mut self, outcome: Outcome) {
        let refusal = match outcome {
            Outcome::Carried => {
                if let Some(refusal) = self.refusal.take() {
                    tracing::warn!(%refusal, "there is no other path");
                }
                return;
            }
            Outcome::Denied(_) | Outcome::Failed => self.refusal.take(),
            Outcome::TooLate => Some(Refusal::new(Kind::TimedOut, "no path was free before the deadline")),
            Outcome::Cancelled => Some(self.cancel.refusal()),
        };
        self.report = None;
        self.refusal = refusal;
    }

    fn result(self) -> Result<Arc<Report>, Refusal> {
        match (self.report, self.refusal) {
            (Some(report), _) => Ok(Arc::new(report)),
            (None, Some(refusal)) => Err(refusal),
            (None, None) => Err(self.cancel.refusal()),
        }
    }
}

async fn answer(asking: &mut Option<Asking<'_>>) -> Result<Lease, Refusal> {
    match asking {
        Some(asking) => asking.await,
        None => pending().await,
    }
}

/// Waits until an engine has ended, or needs a further path.
async fn carried(carrier: &mut Option<Carrier>) -> Event {
    let Some(carrier) = carrier else { return pending().await };
    tokio::select! {
        delivered = &mut carrier.delivered => Event::Ended(delivered),
        // The sender lives as long as the steering that the carrier holds.
        Ok(()) = carrier.rests.changed() => Event::UsedUp,
    }
}

async fn told(cancelled: &mut watch::Receiver<bool>) {
    // The sender lives as long as the delivery.
    let _ = cancelled.wait_for(|cancelled| *cancelled).await;
}

async fn sleep_until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due.into()).await,
        None => pending().await,
    }
}

/// Returns true if the time of a transfer shows how fast its fabric is: it alone has brought the whole object
/// to all receivers, and none of them was slower than the path.
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

/// Returns the report on a named receiver that the manager has lost.
fn lost(name: String) -> ReceiverReport {
    let error = "its agent is lost: it has ended or is cut off, and has not come back".to_string();
    ReceiverReport { name, ..ReceiverReport::default() }.failing(Some((Kind::ReceiverUnknown, error)))
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
