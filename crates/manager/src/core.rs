//! The manager's machine behind one lock, and the sessions that it answers.
//!
//! A session's own task hands its messages in; what the machine wants said goes into the sessions' bounded queues at
//! once. A task of its own looks after deadlines and after agents whose sessions have ended.

use crate::config::{ConfigError, ManagerConfig};
use crate::convert;
use crate::devices::{Devices, News, Step};
use crate::fabrics::{self, Health, Verdict};
use polycast_api::error::{Kind, Refusal};
use polycast_api::manager::manager_message::Message;
use polycast_api::manager::{self as api, ManagerMessage};
use polycast_planning::{DeviceCommand, PlanId};
use polycast_protocol::leases::{
    AgentKey, Grant, Input, Join, JoinRefusal, Leases, LeasesConfig, Member, NotMember, Output, PathState,
    ReleaseReason, RequestKey, Wait,
};
use polycast_types::{Duration, ObjectId, Time};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::{Notify, mpsc, watch};
use tonic::Status;

/// The timer looks at least this often, so that a deadline that has come nearer is seen without a signal.
const TICK: std::time::Duration = std::time::Duration::from_millis(20);

/// Messages on their way to an agent.
pub type Outbox = mpsc::Sender<Result<ManagerMessage, Status>>;

/// The manager's state at one moment.
#[derive(Debug)]
pub struct Snapshot {
    pub agents: Vec<(String, Member)>,
    pub leases: Vec<LeaseSnapshot>,
    pub pending: Vec<PendingSnapshot>,
    pub fabrics: Vec<&'static str>,
    pub scheduler: &'static str,
    pub now: Time,
}

/// A lease at one moment.
#[derive(Debug)]
pub struct LeaseSnapshot {
    pub source: String,
    pub object: ObjectId,
    pub grant: Grant,
    pub expires_in: Duration,
    pub ends_in: Option<Duration>,
}

/// A request that waits at one moment.
#[derive(Debug)]
pub struct PendingSnapshot {
    pub key: RequestKey,
    pub object: ObjectId,
    pub bytes: u64,
    pub receivers: usize,
    pub waited: Duration,
    pub wait: Wait,
}

/// The machine and those whom it answers.
#[derive(Debug)]
pub struct Core {
    inner: Mutex<Inner>,
    changed: Notify,
    stopped: watch::Sender<bool>,
}

#[derive(Debug)]
struct Inner {
    machine: Leases,
    devices: Devices,
    health: Vec<Box<dyn Health>>,
    /// What devices keep all the time.
    standing: Vec<DeviceCommand>,
    /// What has just failed, in a sentence.
    failure: Option<String>,
    sessions: BTreeMap<AgentKey, Session>,
    /// Agents whose sessions have ended without a farewell, and until when they may come back.
    missing: BTreeMap<AgentKey, Time>,
    next_session: u64,
    reconnect: Duration,
    start: Instant,
    stopped: bool,
    /// The answer to the join that is being handled.
    joined: Option<Result<(), JoinRefusal>>,
}

#[derive(Debug)]
struct Session {
    number: u64,
    outbox: Outbox,
}

/// An agent's place in the core; gone when dropped.
#[derive(Debug)]
pub struct Seat {
    core: Arc<Core>,
    agent: AgentKey,
    number: u64,
}

impl Core {
    /// A core with these settings, and what its devices say, for [`Core::keep_time`]. Needs a tokio runtime around it.
    pub fn new(config: &ManagerConfig) -> Result<(Self, mpsc::UnboundedReceiver<News>), ConfigError> {
        // Numbers of leases differ from those of an earlier run: they begin with the time in microseconds.
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let millis = |millis: u64| Duration::from_nanos(millis.saturating_mul(1_000_000));
        let leases = LeasesConfig {
            lease: millis(config.lease_ms),
            silence: millis(config.silence_ms),
            pending_max: config.pending_max,
            leases_max: config.leases_max,
            agents_max: config.agents_max,
            on_device_failure: config.on_device_failure.into(),
            kept_max: config.kept_paths_max,
            first_plan: PlanId(u64::try_from(since_epoch.as_micros()).unwrap_or(1)),
        };
        let mut machine = Leases::new(leases, fabrics::fabrics(config)?, fabrics::scheduler(config)?);
        // Fabrics that know the hosts' places have these numbers in their plans.
        for name in config.host_names() {
            machine.know_host(name);
        }
        let (devices, news) = Devices::start(fabrics::devices(config)?);
        let (health, standing) = (fabrics::health(config)?, machine.standing_commands());
        devices.change(None, &[], &standing);
        let inner = Inner {
            machine,
            devices,
            health,
            standing,
            failure: None,
            sessions: BTreeMap::new(),
            missing: BTreeMap::new(),
            next_session: 0,
            reconnect: millis(config.reconnect_ms),
            start: Instant::now(),
            stopped: false,
            joined: None,
        };
        let core =
            Core { inner: Mutex::new(inner), changed: Notify::new(), stopped: watch::Sender::new(false) };
        Ok((core, news))
    }

    /// Looks after deadlines and devices, for ever.
    pub async fn keep_time(&self, mut news: mpsc::UnboundedReceiver<News>) {
        loop {
            let wait = {
                let mut inner = self.lock();
                inner.drain();
                inner.bury();
                inner.next_look()
            };
            tokio::select! {
                () = tokio::time::sleep(wait.max(TICK)) => {}
                () = self.changed.notified() => {}
                // The core holds the other end as long as it lives.
                Some(news) = news.recv() => self.lock().hear(news),
            }
        }
    }

    /// Ends all sessions; nobody can join any more.
    pub fn stop(&self) {
        let mut inner = self.lock();
        inner.stopped = true;
        inner.sessions.clear();
        self.stopped.send_replace(true);
    }

    /// Lets an agent in, if that can be; its answers go to `outbox` from then on, the first is `joined`.
    pub fn join(self: &Arc<Self>, join: Join, outbox: Outbox, joined: Message) -> Result<Seat, Refusal> {
        let mut inner = self.lock();
        if inner.stopped {
            return Err(Refusal::new(Kind::ManagerUnreachable, "the manager is shutting down"));
        }
        let agent = join.agent.clone();
        inner.apply(Input::Join(join));
        match inner.joined.take() {
            Some(Ok(())) => tracing::info!(agent = %agent.name, "joined"),
            Some(Err(refusal)) => {
                tracing::warn!(agent = %agent.name, %refusal, "turned down");
                return Err(convert::join_refusal(&refusal));
            }
            None => unreachable!("every join is answered at once"),
        }
        inner.supersede(&agent);
        inner.next_session += 1;
        let number = inner.next_session;
        let session = Session { number, outbox };
        // It is empty: there is room.
        let _ = session.outbox.try_send(Ok(ManagerMessage { message: Some(joined) }));
        inner.sessions.insert(agent.clone(), session);
        drop(inner);
        self.changed.notify_one();
        Ok(Seat { core: Arc::clone(self), agent, number })
    }

    /// The state at this moment.
    pub fn snapshot(&self) -> Snapshot {
        self.lock().snapshot()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic is a bug of the machine's: what it has left is not to be trusted less than a restart.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seat {
    /// Does what a message says. A message that makes no sense ends the session.
    pub fn handle(&self, message: api::agent_message::Message) -> Result<(), Refusal> {
        use api::agent_message::Message as Said;
        let mut inner = self.core.lock();
        if inner.sessions.get(&self.agent).is_none_or(|session| session.number != self.number) {
            // Whoever has superseded it has told it so; a session that is only gone begins again.
            return Err(convert::not_member(&NotMember::Unknown(self.agent.name.clone())));
        }
        match message {
            Said::Join(_) => {
                return Err(Refusal::new(Kind::Invalid, "the agent has joined already"));
            }
            Said::Heartbeat(beat) => {
                let leases = convert::plan_ids(beat.leases)?;
                inner.heartbeat(&self.agent, beat.number, leases)?;
            }
            Said::Leave(_) => {
                inner.apply(Input::Leave { agent: self.agent.clone() });
                inner.sessions.remove(&self.agent);
            }
            Said::Request(request) => {
                let id = request.request_id;
                match convert::path_request(self.agent.clone(), request) {
                    Ok(request) => inner.apply(Input::Request(request)),
                    Err(refusal) => inner.tell(&self.agent, Message::Denied(convert::denied(id, &refusal))),
                }
            }
            Said::Withdraw(withdraw) => {
                inner.apply(Input::Withdraw { request: self.agent.request(withdraw.request_id) });
            }
            Said::Extend(extend) => {
                let id = extend.request_id;
                match convert::extend(&self.agent, extend) {
                    Ok(input) => inner.apply(input),
                    Err(refusal) => {
                        let denied = Some(convert::denied(id, &refusal));
                        let extended = api::Extended { request_id: id, granted: None, denied };
                        inner.tell(&self.agent, Message::Extended(extended));
                    }
                }
            }
            Said::Release(release) => {
                let request = self.agent.request(release.request_id);
                inner.apply(Input::Release { request, plan: PlanId(release.response_id) });
            }
        }
        Ok(())
    }
}

impl Seat {
    /// Waits until the manager ends.
    pub async fn stopped(&self) {
        let mut stopped = self.core.stopped.subscribe();
        // The sender lives as long as the core that we hold.
        let _ = stopped.wait_for(|stopped| *stopped).await;
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut inner = self.core.lock();
        if inner.sessions.get(&self.agent).is_none_or(|session| session.number != self.number) {
            return;
        }
        inner.sessions.remove(&self.agent);
        if !inner.stopped {
            tracing::info!(agent = %self.agent.name, "its session has ended");
            let until = inner.now() + inner.reconnect;
            inner.missing.insert(self.agent.clone(), until);
            self.core.changed.notify_one();
        }
    }
}

impl Inner {
    fn now(&self) -> Time {
        Time(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// How long nothing has to be done if nothing happens.
    fn next_look(&self) -> std::time::Duration {
        let deadline = self.machine.deadline().into_iter().chain(self.missing.values().copied()).min();
        deadline.map_or(std::time::Duration::from_secs(60), |at| at.since(self.now()).into())
    }

    /// Agents that have not come back are dead.
    fn bury(&mut self) {
        let now = self.now();
        let dead: Vec<AgentKey> =
            self.missing.iter().filter(|(_, until)| **until <= now).map(|(agent, _)| agent.clone()).collect();
        for agent in dead {
            self.missing.remove(&agent);
            tracing::warn!(agent = %agent.name, "has not come back");
            self.apply(Input::Died { agent });
        }
    }

    /// Ends earlier sessions of an agent's name. Another run of the agent is told so.
    fn supersede(&mut self, agent: &AgentKey) {
        self.missing.retain(|key, _| key.name != agent.name);
        self.sessions.retain(|key, session| {
            if key.name != agent.name {
                return true;
            }
            if key.incarnation != agent.incarnation {
                let refusal = convert::not_member(&NotMember::Superseded(agent.name.clone()));
                // It is told by its next message where there is no room for this one.
                let _ = session.outbox.try_send(Err(refusal.into()));
            }
            false
        });
    }

    fn heartbeat(&mut self, agent: &AgentKey, number: u64, leases: Vec<PlanId>) -> Result<(), Refusal> {
        let now = self.now();
        self.machine.handle(now, Input::Heartbeat { agent: agent.clone(), leases });
        let mut answer = None;
        while let Some(output) = self.machine.poll(self.now()) {
            match output {
                Output::Heartbeat { result, .. } => answer = Some(result),
                other => self.obey(other),
            }
        }
        let lost =
            answer.expect("every heartbeat is answered").map_err(|error| convert::not_member(&error))?;
        let lost_leases = lost.into_iter().map(|id| id.0).collect();
        self.tell(agent, Message::Heartbeat(api::HeartbeatAnswer { number, lost_leases }));
        Ok(())
    }

    /// Takes in what devices say.
    fn hear(&mut self, news: News) {
        tracing::debug!(?news, "a device says");
        match news {
            News::SetUp { plan, result, steps } => {
                self.tell_steps(plan, steps);
                self.apply(Input::SetUp { plan, result });
            }
            News::Fibre { rack, fibre, up } => {
                let verdicts = self.health.iter_mut().map(|health| health.fibre(rack, fibre, up)).collect();
                self.judge(verdicts);
            }
            News::Switch { rack, up } => {
                if !up {
                    tracing::warn!(rack, "the switch of a rack cannot be reached");
                }
                let verdicts = self.health.iter_mut().map(|health| health.switch(rack, up)).collect();
                self.judge(verdicts);
            }
        }
    }

    /// Tells a path's source what devices did for it, and how long that took.
    fn tell_steps(&mut self, plan: PlanId, steps: Vec<Step>) {
        let Some(request) = self.machine.leases().find(|lease| lease.grant.plan_id == plan) else { return };
        let request = request.key.clone();
        let steps =
            steps.into_iter().map(|step| api::Step { what: step.what, micros: step.micros }).collect();
        self.tell_path(plan, &request, api::path_news::State::Steps, String::new(), steps);
    }

    fn tell_path(
        &mut self,
        plan: PlanId,
        request: &RequestKey,
        state: api::path_news::State,
        reason: String,
        steps: Vec<api::Step>,
    ) {
        let (request_id, response_id, state) = (request.request, plan.0, state.into());
        let news = api::PathNews { request_id, response_id, state, reason, steps };
        self.tell(&request.agent, Message::Path(news));
    }

    /// Acts on what has failed and what works again.
    fn judge(&mut self, verdicts: Vec<Verdict>) {
        for Verdict { failed, repaired, words } in verdicts {
            if failed.is_empty() && repaired.is_empty() {
                continue;
            }
            tracing::warn!("{words}");
            self.failure = Some(words);
            if !repaired.is_empty() {
                self.apply(Input::Repaired { failures: repaired });
            }
            if !failed.is_empty() {
                self.apply(Input::Failed { failures: failed });
            }
            self.failure = None;
            let standing = self.machine.standing_commands();
            self.devices.change(None, &self.standing, &standing);
            self.standing = standing;
        }
    }

    fn apply(&mut self, input: Input) {
        let now = self.now();
        self.machine.handle(now, input);
        self.drain();
    }

    fn drain(&mut self) {
        while let Some(output) = self.machine.poll(self.now()) {
            self.obey(output);
        }
    }

    fn obey(&mut self, output: Output) {
        match output {
            Output::Join { result, .. } => self.joined = Some(result),
            Output::Heartbeat { .. } => {}
            Output::Waiting { request, wait } => {
                self.tell(&request.agent, Message::Waiting(convert::waiting(request.request, wait)));
            }
            Output::Response { request, response } => {
                let set_up = response.as_ref().ok().filter(|grant| !grant.plan.commands.is_empty());
                let set_up = set_up.map(|grant| grant.plan_id);
                let answer = match response {
                    Ok(grant) => convert::granted(request.request, grant),
                    Err(denial) => {
                        tracing::info!(source = %request.agent.name, request = request.request, %denial, "denied");
                        Err(convert::denial(&denial))
                    }
                };
                let message = match answer {
                    Ok(granted) => Message::Granted(granted),
                    Err(refusal) => Message::Denied(convert::denied(request.request, &refusal)),
                };
                self.tell(&request.agent, message);
                if let Some(plan) = set_up {
                    self.tell_path(
                        plan,
                        &request,
                        api::path_news::State::SettingUp,
                        String::new(),
                        Vec::new(),
                    );
                }
            }
            Output::Extended { request, result } => {
                let answer = result.map_err(|denial| convert::denial(&denial)).and_then(|grant| {
                    grant.map(|grant| convert::granted(request.request, grant)).transpose()
                });
                let (granted, denied) = match answer {
                    Ok(granted) => (granted, None),
                    Err(refusal) => (None, Some(convert::denied(request.request, &refusal))),
                };
                let extended = api::Extended { request_id: request.request, granted, denied };
                self.tell(&request.agent, Message::Extended(extended));
            }
            Output::Granted { plan_id, plan, instead_of } => {
                if !plan.commands.is_empty() {
                    self.devices.change(Some(plan_id), &instead_of, &plan.commands);
                }
                tracing::info!(response = plan_id.0, fabric = plan.fabric, "granted");
            }
            Output::Again { plan_id, plan } => self.devices.change(Some(plan_id), &[], &plan.commands),
            Output::Forgotten { plan } => self.devices.change(None, &plan.commands, &[]),
            Output::Path { plan_id, request, state } => {
                tracing::info!(response = plan_id.0, source = %request.agent.name, ?state, "path");
                let (state, reason) = match state {
                    PathState::Ready => (api::path_news::State::Ready, String::new()),
                    PathState::Waits { reason } => (api::path_news::State::Waits, reason),
                };
                self.tell_path(plan_id, &request, state, reason, Vec::new());
            }
            Output::Replanned { plan_id, request, before, plan, displaced, reason } => {
                let old: Vec<_> = before.commands.iter().chain(&displaced).cloned().collect();
                if !(old.is_empty() && plan.commands.is_empty()) {
                    self.devices.change(Some(plan_id), &old, &plan.commands);
                }
                let why = reason.or_else(|| self.failure.clone());
                tracing::info!(response = plan_id.0, source = %request.agent.name, before = before.fabric,
                    fabric = plan.fabric, why, "planned anew");
                if plan.channel == before.channel {
                    if let Some(why) = why {
                        self.tell_path(plan_id, &request, api::path_news::State::Replanned, why, Vec::new());
                    }
                    return;
                }
                let why = why.map(|why| format!(" ({why})")).unwrap_or_default();
                let replanned = api::Replanned {
                    request_id: request.request,
                    response_id: plan_id.0,
                    fabric: plan.fabric.to_string(),
                    channel: convert::to_channel(&plan).ok(),
                    reason: format!("after a failure {} took over{why}", plan.fabric),
                };
                self.tell(&request.agent, Message::Replanned(replanned));
            }
            Output::Released { plan_id, request, plan, reason, kept } => {
                if !kept && !plan.commands.is_empty() {
                    self.devices.change(None, &plan.commands, &[]);
                }
                self.released(plan_id, &request, reason);
            }
            Output::Gone { agent } => tracing::info!(agent = %agent.name, "gone"),
        }
    }

    fn released(&mut self, plan_id: PlanId, request: &RequestKey, reason: ReleaseReason) {
        tracing::info!(response = plan_id.0, source = %request.agent.name, ?reason, "released");
        if let Some(reason) = convert::end_reason(reason) {
            let (request_id, response_id) = (request.request, plan_id.0);
            let ended = api::Ended { request_id, response_id, reason: reason.to_string() };
            self.tell(&request.agent, Message::Ended(ended));
        }
    }

    /// Puts a message into a session's queue. Whoever has no session now asks again when it has one.
    fn tell(&mut self, agent: &AgentKey, message: Message) {
        let Some(session) = self.sessions.get(agent) else { return };
        let message = Ok(ManagerMessage { message: Some(message) });
        if let Err(mpsc::error::TrySendError::Full(_)) = session.outbox.try_send(message) {
            tracing::warn!(agent = %agent.name, "it does not read its answers: its session ends");
            self.sessions.remove(agent);
            let until = self.now() + self.reconnect;
            self.missing.insert(agent.clone(), until);
        }
    }

    fn snapshot(&self) -> Snapshot {
        let now = self.now();
        Snapshot {
            agents: self.machine.members().map(|(name, member)| (name.to_string(), member.clone())).collect(),
            leases: self
                .machine
                .leases()
                .map(|lease| LeaseSnapshot {
                    source: lease.key.agent.name.clone(),
                    object: lease.object,
                    grant: lease.grant.clone(),
                    expires_in: lease.expires_at.since(now),
                    ends_in: lease.ends_at.map(|at| at.since(now)),
                })
                .collect(),
            pending: self
                .machine
                .pending()
                .map(|pending| PendingSnapshot {
                    key: pending.key.clone(),
                    object: pending.object,
                    bytes: pending.bytes,
                    receivers: pending.receivers,
                    waited: now.since(pending.since),
                    wait: pending.wait,
                })
                .collect(),
            fabrics: self.machine.fabrics().collect(),
            scheduler: self.machine.scheduler(),
            now,
        }
    }
}
