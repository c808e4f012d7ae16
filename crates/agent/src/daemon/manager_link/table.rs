//! State of the link: open requests, paths leased to this agent, and releases owed to the manager.

use super::channel::{self, route};
use super::directory::Directory;
use super::permits::{Claim, Permits};
use super::removals::Removals;
use super::streams::Streams;
use crate::transfer::{ControlStep, Fared, NextPath, Path, PathNews, RouteChange, Steering};
use polycast_api::error::{Kind, Refusal};
use polycast_api::manager::agent_message::Message as Said;
use polycast_api::manager::manager_client::ManagerClient;
use polycast_api::manager::manager_message::Message as Told;
use polycast_api::manager::{self as api, AgentMessage, NodeReport};
use polycast_api::{REQUEST_TO_PATH_AT_SOURCE, SCHEDULING};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot, watch};
use tonic::transport::Channel;

/// State of a request so far.
#[derive(Clone, Debug)]
pub(super) enum Answer {
    /// Nothing is known yet.
    Asked,
    /// It waits.
    Waiting(api::Waiting),
    /// It has its path.
    Granted(Box<api::Granted>),
    /// It will have none.
    Denied(Refusal),
}

/// A request that has no answer yet.
pub(super) struct Asked {
    pub request: api::PathRequest,
    pub answer: watch::Sender<Answer>,
    pub since: Instant,
    /// Steering of the transfer.
    pub steering: Arc<Steering>,
}

/// A lease that is in use.
pub(super) struct Held {
    pub lease: api::Lease,
    pub ends_at: Option<Instant>,
    /// Time that the answer took, if the request did not have to wait.
    pub answered_after: Option<Duration>,
    /// Time of the request, until all devices are known to have the path.
    pub asked_at: Option<Instant>,
    pub steering: Arc<Steering>,
    /// Data that its permit is requested with; none without permits.
    pub claim: Option<Claim>,
}

/// Something given back, by its request: a lease of this number, or a request that had none.
#[derive(Clone)]
struct Owed {
    response: Option<u64>,
    /// Record of the path's results.
    fared: Fared,
    /// The heartbeat whose answer will confirm it; `None` while it was not said on this connection.
    confirmed_by: Option<u64>,
}

/// The table.
#[derive(Default)]
pub(super) struct Table {
    /// Index of the manager, modulo the number of managers.
    pub manager: usize,
    /// By response ids.
    pub held: BTreeMap<u64, Held>,
    /// By request ids.
    pub asked: BTreeMap<u64, Asked>,
    owed: BTreeMap<u64, Owed>,
    /// Names of the agents of which the manager was told that they cannot be reached.
    unreachable: BTreeSet<String>,
    /// Streams of messages that we send or hear.
    pub streams: Streams,
    /// Wishes to remove objects at other agents.
    pub removals: Removals,
    /// Keys and clock that permits are checked with.
    pub permits: Permits,
    /// Objects here, wishes for others, and topics.
    pub directory: Directory,
    extending: BTreeMap<u64, oneshot::Sender<Result<Option<api::Granted>, Refusal>>>,
    outbox: Option<mpsc::Sender<AgentMessage>>,
    pub client: Option<ManagerClient<Channel>>,
    /// Turns whenever the manager has said something.
    pub turns: watch::Sender<()>,
    /// Heartbeats so far, and the last one that was answered.
    pub beats: u64,
    pub answered: u64,
    /// Time of the first heartbeat that has no answer.
    unanswered_since: Option<Instant>,
    /// The agent says goodbye: the session is not to begin again.
    pub leaving: bool,
}

impl Table {
    /// A session has begun: says again what may have been lost with the one before.
    pub(super) fn connect(&mut self, outbox: mpsc::Sender<AgentMessage>, client: ManagerClient<Channel>) {
        (self.outbox, self.client) = (Some(outbox), Some(client));
        (self.answered, self.unanswered_since) = (self.beats, None);
        for (request, owed) in self.owed.clone() {
            self.say_owed(request, owed.response, owed.fared);
        }
        let asked: Vec<api::PathRequest> = self.asked.values().map(|asked| asked.request.clone()).collect();
        for request in asked {
            self.say(Said::Request(request));
        }
        for message in self.streams.all().into_iter().chain(self.directory.all()) {
            self.say(message);
        }
        // Another manager may sign with another key.
        for response in self.held.keys().copied().collect::<Vec<_>>() {
            self.ask_permit(response);
        }
    }

    /// The session has ended.
    pub(super) fn hang_up(&mut self) {
        (self.outbox, self.client) = (None, None);
        self.extending.clear();
        // The manager cannot tell any more when a path is there: from here on it has to reach everyone.
        for held in self.held.values() {
            held.steering.tell(PathNews { waits: Some(false), ..PathNews::default() });
        }
        self.owed.values_mut().for_each(|owed| owed.confirmed_by = None);
    }

    /// The leases in use, for a manager that may not know them.
    pub(super) fn leases(&self) -> Vec<api::Lease> {
        let now = Instant::now();
        let lease = |held: &Held| {
            let left = held.ends_at.map(|at| at.saturating_duration_since(now));
            api::Lease { left_ms: left.map(|left| left.as_millis() as u64), ..held.lease.clone() }
        };
        self.held.values().map(lease).collect()
    }

    /// Puts a message on its way; gives whether there is one.
    pub(super) fn say(&mut self, message: Said) -> bool {
        let Some(outbox) = &self.outbox else { return false };
        let said = outbox.try_send(AgentMessage { message: Some(message) }).is_ok();
        if !said {
            // Too much waits, or the connection is gone: the next session begins with what was not said.
            self.outbox = None;
        }
        said
    }

    /// Sends a heartbeat; gives whether there is a way.
    pub(super) fn beat(&mut self, node: Option<NodeReport>) -> bool {
        self.beats += 1;
        self.unanswered_since.get_or_insert_with(Instant::now);
        self.renew_permits();
        let leases = self.held.keys().copied().collect();
        self.say(Said::Heartbeat(api::Heartbeat { number: self.beats, leases, node }))
    }

    /// For how long the manager has owed us an answer.
    pub(super) fn unanswered_for(&self) -> Duration {
        self.unanswered_since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Gives back a lease, or a request that has none.
    pub(super) fn give_back(&mut self, request: u64, response: Option<u64>, mut fared: Fared) {
        // Of those of whom nothing bad was said nothing needs to be taken back.
        fared.reachable.retain(|name| self.unreachable.remove(name));
        self.unreachable.extend(fared.unreachable.iter().cloned());
        self.owed.insert(request, Owed { response, fared: fared.clone(), confirmed_by: None });
        self.say_owed(request, response, fared);
    }

    fn say_owed(&mut self, request_id: u64, response: Option<u64>, fared: Fared) {
        let Fared { unreached, reached_all, took, unreachable, reachable } = fared;
        let took_us = took.map(|took| u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
        let said = match response {
            Some(response_id) => self.say(Said::Release(api::Release {
                request_id,
                response_id,
                unreached,
                reached_all,
                took_us,
                unreachable: unreachable.into_iter().collect(),
                reachable: reachable.into_iter().collect(),
            })),
            None => self.say(Said::Withdraw(api::Withdraw { request_id })),
        };
        let next = self.beats + 1;
        if let Some(owed) = self.owed.get_mut(&request_id).filter(|_| said) {
            owed.confirmed_by = Some(next);
        }
    }

    /// Asks for a change of a request; one at a time.
    pub(super) fn extend(
        &mut self,
        extend: api::Extend,
    ) -> Result<oneshot::Receiver<Result<Option<api::Granted>, Refusal>>, Refusal> {
        if self.extending.contains_key(&extend.request_id) {
            return Err(Refusal::new(Kind::Full, "the transfer is being changed already"));
        }
        let (answer, answered) = oneshot::channel();
        let request = extend.request_id;
        if !self.say(Said::Extend(extend)) {
            return Err(Refusal::new(Kind::ManagerUnreachable, "the manager cannot be reached now"));
        }
        self.extending.insert(request, answer);
        Ok(answered)
    }

    /// Forgets a change that was not answered in time.
    pub(super) fn give_up_extending(&mut self, request: u64) {
        self.extending.remove(&request);
    }

    /// Takes in what the manager has said.
    pub(super) fn take_in(&mut self, message: Told) {
        self.heed(message);
        self.turns.send_replace(());
    }

    fn heed(&mut self, message: Told) {
        match message {
            Told::Joined(_) => {}
            Told::Heartbeat(answer) => self.heartbeat(answer),
            Told::Waiting(waiting) => {
                if let Some(asked) = self.asked.get(&waiting.request_id) {
                    asked.answer.send_replace(Answer::Waiting(waiting));
                }
            }
            Told::Granted(granted) => self.granted(granted),
            Told::Denied(denied) => {
                if let Some(asked) = self.asked.remove(&denied.request_id) {
                    let refusal = refusal(denied);
                    // The manager has restarted in between, or we were silent: it is asked again.
                    if refusal.kind == Kind::NotJoined {
                        self.asked.insert(asked.request.request_id, asked);
                    } else {
                        asked.answer.send_replace(Answer::Denied(refusal));
                    }
                }
            }
            Told::Extended(extended) => self.extended(extended),
            Told::Remove(wish) => self.removals.wished(wish),
            Told::Removed(answer) => self.removals.answered(answer),
            Told::Permitted(permitted) => self.permitted(permitted),
            Told::Banned(banned) => self.banned(banned),
            Told::Directory(news) => self.news_of_objects(news),
            Told::Stream(news) => {
                if let Some(answer) = self.streams.take_in(news) {
                    self.say(answer);
                }
            }
            Told::Ended(ended) => {
                if self.streams.path(ended.request_id, None) {
                    // No receiver listens any more; or a new path follows.
                    self.held.remove(&ended.response_id);
                } else if let Some(held) = self.held.remove(&ended.response_id) {
                    tracing::warn!(response = ended.response_id, reason = %ended.reason, "the path has ended");
                    held.steering.lose_path(&ended.reason);
                }
            }
            Told::Path(news) => self.path(news),
            Told::Rerouted(rerouted) => self.rerouted(rerouted),
            Told::Replanned(replanned) => self.replanned(replanned),
        }
    }

    fn replanned(&mut self, replanned: api::Replanned) {
        let response_id = replanned.response_id;
        self.follow_plan(replanned);
        // The permit names the data channel of the path before.
        self.ask_permit(response_id);
    }

    fn follow_plan(&mut self, replanned: api::Replanned) {
        if let Some(held) = self.held.get_mut(&replanned.response_id) {
            tracing::warn!(response = replanned.response_id, reason = %replanned.reason, "another path");
            let before = held.lease.channel.take();
            if held.lease.fabric != replanned.fabric {
                held.steering.pass_over(&held.lease.fabric, &replanned.reason);
            }
            (held.lease.fabric, held.lease.channel) = (replanned.fabric, replanned.channel);
            held.lease.plan = replanned.plan;
            if self.streams.path(replanned.request_id, Some((&held.lease.fabric, &held.lease.channel))) {
                return;
            }
            let left_out = channel::left_out(held.lease.channel.as_ref());
            if let Some(outer) = channel::rerouted(before, held.lease.channel.clone()) {
                held.steering.reroute(outer, &replanned.reason);
                held.steering.cut_off(left_out);
                return;
            }
            match channel::path(held.lease.channel.clone()) {
                Ok(path @ Path::Multicast { .. }) => {
                    let (fabric, lost) = (held.lease.fabric.clone(), Some(replanned.reason));
                    held.steering.take_path(NextPath { fabric, path, bytes: None, lost });
                }
                Ok(Path::Chain | Path::Trees(_)) | Err(_) => held.steering.lose_path(&replanned.reason),
            }
        }
    }

    fn news_of_objects(&mut self, news: api::DirectoryNews) {
        if !self.directory.take_in(news) {
            tracing::warn!("news of objects is not heard: the session begins again");
            self.outbox = None;
        }
    }

    fn path(&mut self, mut news: api::PathNews) {
        use api::path_news::State;
        let Some(held) = self.held.get_mut(&news.response_id) else { return };
        if !news.plan.is_empty() {
            held.lease.plan = std::mem::take(&mut news.plan);
        }
        let waits = match news.state() {
            State::SettingUp | State::Waits => Some(true),
            State::Ready => Some(false),
            State::Replanned | State::Steps => None,
        };
        let event = match news.state() {
            State::Waits => Some(format!("the path waits: {}", news.reason)),
            State::Replanned => Some(format!("the path was planned anew: {}", news.reason)),
            _ => None,
        };
        let mut steps: Vec<ControlStep> =
            news.steps.into_iter().map(|step| ControlStep { step: step.what, micros: step.micros }).collect();
        let scheduling = steps.iter().find(|step| step.step == SCHEDULING).map(|step| step.micros);
        if let Some((scheduling, took)) = scheduling.zip(held.answered_after) {
            // The rest of the time between the request and its answer.
            let micros = (took.as_micros() as u64).saturating_sub(scheduling);
            steps.insert(0, ControlStep { step: "messages".into(), micros });
        }
        if news.state == State::Ready as i32
            && let Some(asked_at) = held.asked_at.take()
        {
            let micros = asked_at.elapsed().as_micros() as u64;
            steps.push(ControlStep { step: REQUEST_TO_PATH_AT_SOURCE.into(), micros });
        }
        held.steering.tell(PathNews { waits, event, steps });
    }

    fn rerouted(&mut self, rerouted: api::Rerouted) {
        let Some(held) = self.held.get(&rerouted.response_id) else { return };
        tracing::info!(response = rerouted.response_id, reason = %rerouted.reason, "other ways");
        let change = |change: api::RouteChange| {
            let tree = u8::try_from(change.tree).map_err(|error| error.to_string())?;
            Ok(RouteChange { receiver: change.receiver, tree, route: route(&change.hops)? })
        };
        let changes: Result<Vec<_>, String> = rerouted.changes.into_iter().map(change).collect();
        match changes {
            Ok(changes) => held.steering.change_routes(changes),
            Err(reason) => held.steering.lose_path(&format!("the manager's routes make no sense: {reason}")),
        }
        let steps = rerouted.steps.into_iter();
        let steps = steps.map(|step| ControlStep { step: step.what, micros: step.micros }).collect();
        held.steering.tell(PathNews { waits: None, event: Some(rerouted.reason), steps });
    }

    fn heartbeat(&mut self, answer: api::HeartbeatAnswer) {
        self.answered = self.answered.max(answer.number);
        if self.answered >= self.beats {
            self.unanswered_since = None;
        }
        self.owed.retain(|_, owed| owed.confirmed_by.is_none_or(|number| number > answer.number));
        for lost in answer.lost_leases {
            // The transfer goes on: at worst it shares its group address, and packets tell whose they are.
            if self.held.remove(&lost).is_some() {
                tracing::warn!(response = lost, "the manager has lent a path in use to another transfer");
            }
        }
    }

    fn granted(&mut self, granted: api::Granted) {
        if self.streams.path(granted.request_id, Some((&granted.fabric, &granted.channel))) {
            let lease = lease_of(&granted, Vec::new(), self.streams.handle(granted.request_id), false);
            let held = Held {
                lease,
                ends_at: None,
                answered_after: None,
                asked_at: None,
                steering: Arc::default(),
                claim: None,
            };
            self.held.insert(granted.response_id, held);
            return;
        }
        let Some(asked) = self.asked.remove(&granted.request_id) else {
            let known = self.held.contains_key(&granted.response_id);
            if !known && !self.owed.contains_key(&granted.request_id) {
                // No transfer needs it any more.
                self.give_back(granted.request_id, Some(granted.response_id), Fared::default());
            }
            return;
        };
        let claim = self.permits.wanted.then(|| Claim::of(&asked.request));
        let or_fail = asked.request.or_fail && !asked.request.fabric.is_empty();
        let lease = lease_of(&granted, asked.request.app_id, asked.request.data_id, or_fail);
        let ends_at = end_of(&granted);
        let at_once = !matches!(*asked.answer.borrow(), Answer::Waiting(_));
        let answered_after = at_once.then(|| asked.since.elapsed());
        let asked_at = at_once.then_some(asked.since);
        let held = Held { lease, ends_at, answered_after, asked_at, steering: asked.steering, claim };
        self.held.insert(granted.response_id, held);
        self.ask_permit(granted.response_id);
        asked.answer.send_replace(Answer::Granted(Box::new(granted)));
    }

    fn extended(&mut self, extended: api::Extended) {
        if let Some(granted) = &extended.granted
            && let Some(held) = self.held.get_mut(&granted.response_id)
        {
            held.lease.receivers = receiver_names(granted);
            held.lease.further_sources.clone_from(&granted.further_sources);
            held.lease.plan.clone_from(&granted.plan);
            held.ends_at = end_of(granted);
            // Its receivers are others.
            self.ask_permit(granted.response_id);
        }
        let Some(answer) = self.extending.remove(&extended.request_id) else { return };
        // The caller may have gone.
        let _ = answer.send(match extended.denied {
            Some(denied) => Err(refusal(denied)),
            None => Ok(extended.granted),
        });
    }
}

/// All receivers that a path has, also those whose agents the manager does not know now: it is planned for
/// them.
fn receiver_names(granted: &api::Granted) -> Vec<String> {
    let here = granted.receivers.iter().map(|receiver| &receiver.name);
    here.chain(&granted.absent).cloned().collect()
}

/// A granted path as it is named to a manager that does not know it.
fn lease_of(granted: &api::Granted, app_id: Vec<u8>, data_id: u64, or_fail: bool) -> api::Lease {
    api::Lease {
        request_id: granted.request_id,
        response_id: granted.response_id,
        receivers: receiver_names(granted),
        further_sources: granted.further_sources.clone(),
        accepted_size: granted.accepted_size,
        fabric: granted.fabric.clone(),
        channel: granted.channel.clone(),
        app_id,
        data_id,
        left_ms: None,
        plan: granted.plan.clone(),
        or_fail,
    }
}

/// Returns the end of the lease that was granted just now.
pub(super) fn end_of(granted: &api::Granted) -> Option<Instant> {
    Instant::now().checked_add(Duration::from_millis(granted.lease_ms?))
}

pub(super) fn refusal(denied: api::Denied) -> Refusal {
    Refusal::new(Kind::from_name(&denied.kind).unwrap_or(Kind::Internal), denied.reason)
}
