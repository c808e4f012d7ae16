//! The manager's machine behind one lock, and the sessions that it answers.
//!
//! A session's own task hands its messages in; what the machine wants said goes into the sessions' bounded queues at
//! once. A task of its own looks after deadlines and after agents whose sessions have ended.

mod streams;

use crate::config::ManagerConfig;
use crate::convert;
use crate::devices::{self, DeviceId, Devices, News, Step};
use crate::fabrics::{self, Health, Verdict};
use polycast_api::error::{Kind, Refusal};
use polycast_api::manager::manager_message::Message;
use polycast_api::manager::{self as api, ManagerMessage};
use polycast_api::settings::SettingsError;
use polycast_planning::{DeviceCommand, FabricName, HostId, Plan, PlanId};
use polycast_protocol::leases::{
    AgentKey, Grant, Input, Join, JoinRefusal, Leases, LeasesConfig, Member, NotMember, Output, PathState,
    Record, RecordKey, ReleaseReason, RequestKey, StateError, Wait,
};
use polycast_protocol::stream::{StreamView, Streams, StreamsConfig, StreamsInput};
use polycast_types::{Duration, ObjectId, Time};
use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::{Notify, mpsc, watch};
use tonic::Status;

/// The timer looks at least this often, so that a deadline that has come nearer is seen without a signal.
const TICK: std::time::Duration = std::time::Duration::from_millis(20);

/// Changes of the state that may wait to be written.
const COMMITS_MAX: usize = 16_384;

/// Messages on their way to an agent.
pub type Outbox = mpsc::Sender<Result<ManagerMessage, Status>>;

/// The manager's state at one moment.
#[derive(Debug)]
pub struct Snapshot {
    pub agents: Vec<(String, Member)>,
    pub leases: Vec<LeaseSnapshot>,
    pub pending: Vec<PendingSnapshot>,
    pub streams: Vec<StreamView>,
    pub fabrics: Vec<FabricName>,
    pub scheduler: &'static str,
    pub now: Time,
    pub uptime: std::time::Duration,
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
    streams: Streams,
    devices: Devices,
    health: Vec<Box<dyn Health>>,
    /// What devices keep all the time.
    standing: Vec<DeviceCommand>,
    /// What has just failed or works again, in a sentence, and when that was heard.
    failure: Option<(String, Instant)>,
    sessions: BTreeMap<AgentKey, Session>,
    /// Agents whose sessions have ended without a farewell, and until when they may come back.
    missing: BTreeMap<AgentKey, Time>,
    next_session: u64,
    reconnect: Duration,
    start: Instant,
    /// Time at the start.
    base: u64,
    /// Where changes of the state go to be written, if they are.
    commits: Option<mpsc::Sender<Commit>>,
    /// What is to be done when they are.
    waiting: Vec<Act>,
    stopped: bool,
    overrun: bool,
    /// The request that is being handled, and since when.
    asked: Option<(RequestKey, Instant)>,
    /// When requests came whose paths devices are being told of, by plan: a plan's set-up ends, so none stays.
    setting_up: BTreeMap<PlanId, Instant>,
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

/// The core while it is locked. What has changed goes out when the lock is given back.
struct Guard<'a> {
    inner: MutexGuard<'a, Inner>,
    core: &'a Core,
}

impl Deref for Guard<'_> {
    type Target = Inner;
    fn deref(&self) -> &Inner {
        &self.inner
    }
}

impl DerefMut for Guard<'_> {
    fn deref_mut(&mut self) -> &mut Inner {
        &mut self.inner
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.inner.flush();
        if self.inner.overrun && !self.inner.stopped {
            self.inner.stopped = true;
            self.inner.sessions.clear();
            self.inner.devices.stop();
            self.core.stopped.send_replace(true);
        }
    }
}

/// Something that another manager must not learn of before the change of state behind it is written.
#[derive(Debug)]
pub enum Act {
    /// A message to an agent, in its session of this number.
    Say { agent: AgentKey, session: u64, message: Box<ManagerMessage> },
    /// Devices go from what they hold to something else.
    Change { plan: Option<PlanId>, old: Vec<DeviceCommand>, new: Vec<DeviceCommand> },
}

/// Changes of the state that are to be written, and what is to be done then.
#[derive(Debug)]
pub struct Commit {
    changes: BTreeMap<RecordKey, Option<Record>>,
    pub acts: Vec<Act>,
}

impl Commit {
    /// Adds a later one.
    pub fn add(&mut self, later: Commit) {
        self.changes.extend(later.changes);
        self.acts.extend(later.acts);
    }

    /// The changes, in the order of their keys.
    pub fn changes(&self) -> Vec<(RecordKey, Option<Record>)> {
        self.changes.iter().map(|(key, record)| (key.clone(), record.clone())).collect()
    }
}

/// Why a core cannot go on with what an earlier leader has left.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The settings are wrong.
    #[error(transparent)]
    Config(#[from] SettingsError),
    /// The records are.
    #[error(transparent)]
    State(#[from] StateError),
}

impl Core {
    /// A core with these settings, and what its devices say, for [`Core::keep_time`]. Needs a tokio runtime around it.
    pub fn new(config: &ManagerConfig) -> Result<(Self, mpsc::UnboundedReceiver<News>), SettingsError> {
        let (core, news) = Self::with_clock(config, 0)?;
        Ok((core, news))
    }

    /// A core that goes on with the state of an earlier leader, and whose changes have to be written down: what it says
    /// is said by [`Core::perform`] only.
    pub fn restored(
        config: &ManagerConfig,
        records: Vec<Record>,
    ) -> Result<(Self, mpsc::UnboundedReceiver<News>, mpsc::Receiver<Commit>), RestoreError> {
        // Times in the records are those of the wall clock, which managers have in common.
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let (core, news) =
            Self::with_clock(config, u64::try_from(since_epoch.as_nanos()).unwrap_or(u64::MAX))?;
        let (sender, commits) = mpsc::channel(COMMITS_MAX);
        {
            let mut inner = core.lock();
            let now = inner.now();
            inner.machine.restore(now, records)?;
            // Agents that do not come to this manager have died with the one before.
            let patience =
                inner.reconnect.max(Duration::from_nanos(config.silence_ms.saturating_mul(1_000_000)));
            let keys: Vec<AgentKey> = inner
                .machine
                .members()
                .map(|(name, member)| AgentKey { name: name.to_string(), incarnation: member.incarnation })
                .collect();
            inner.missing.extend(keys.into_iter().map(|agent| (agent, now + patience)));
            // Devices hold most of this already. What one of them has lost is noticed as with a new path.
            for lease in inner.machine.leases() {
                let plan = &lease.grant.plan;
                if !plan.commands.is_empty() {
                    inner.devices.change(Some(lease.grant.plan_id), &[], &plan.commands);
                }
            }
            let kept: Vec<DeviceCommand> = inner.machine.kept_commands().cloned().collect();
            inner.devices.change(None, &[], &kept);
            inner.commits = Some(sender);
        }
        Ok((core, news, commits))
    }

    fn with_clock(
        config: &ManagerConfig,
        base: u64,
    ) -> Result<(Self, mpsc::UnboundedReceiver<News>), SettingsError> {
        // Numbers of leases differ from those of an earlier run: they begin with the time in microseconds.
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let millis = |millis: u64| Duration::from_nanos(millis.saturating_mul(1_000_000));
        let devices = fabrics::devices(config)?;
        // The state of the leader before tells whose circuits there are; without it the switch does, and agents.
        let asks = config.etcd.endpoints.is_empty() && devices.contains_key(&DeviceId::CircuitSwitch);
        let leases = LeasesConfig {
            lease: millis(config.lease_ms),
            silence: millis(config.silence_ms),
            pending_max: config.pending_max,
            leases_max: config.leases_max,
            grant_bytes_max: config.grant_max.unwrap_or(u64::MAX),
            agents_max: config.agents_max,
            on_device_failure: config.on_device_failure.into(),
            kept_max: config.kept_paths_max,
            // Agents come back with growing pauses; whoever has not come by then is dead.
            claims: asks.then(|| millis(config.reconnect_ms.max(config.silence_ms))),
            recorded: !config.etcd.endpoints.is_empty(),
            first_plan: PlanId(u64::try_from(since_epoch.as_micros()).unwrap_or(1)),
        };
        let mut machine = Leases::new(leases, fabrics::fabrics(config)?, fabrics::scheduler(config)?);
        // Fabrics that know the hosts' places have these numbers in their plans.
        for name in config.host_names() {
            machine.know_host(name);
        }
        let (devices, news) = Devices::start(devices);
        let (health, standing) = (fabrics::health(config)?, machine.standing_commands());
        devices.change(None, &[], &standing);
        let inner = Inner {
            machine,
            streams: Streams::new(StreamsConfig::default(), Time(base)),
            devices,
            health,
            standing,
            failure: None,
            sessions: BTreeMap::new(),
            missing: BTreeMap::new(),
            next_session: 0,
            reconnect: millis(config.reconnect_ms),
            start: Instant::now(),
            base,
            commits: None,
            waiting: Vec::new(),
            stopped: false,
            overrun: false,
            asked: None,
            setting_up: BTreeMap::new(),
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
                inner.look_at_health();
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
        // Whoever leads next talks to the devices; two at a time would undo each other's work.
        inner.devices.stop();
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
        inner.stream(StreamsInput::Arrived { agent: agent.clone() });
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

    fn lock(&self) -> Guard<'_> {
        // A panic is a bug of the machine's: what it has left is not to be trusted less than a restart.
        Guard { inner: self.inner.lock().unwrap_or_else(PoisonError::into_inner), core: self }
    }

    /// Does what had to wait until a change was written.
    pub fn perform(&self, acts: Vec<Act>) {
        let mut inner = self.lock();
        // One that leads no more tells nobody anything.
        if inner.stopped {
            return;
        }
        for act in acts {
            match act {
                Act::Say { agent, session, message } => inner.post(&agent, Some(session), *message),
                Act::Change { plan, old, new } => inner.devices.change(plan, &old, &new),
            }
        }
    }

    /// Waits until the core has ended.
    pub async fn stopped(&self) {
        let mut stopped = self.stopped.subscribe();
        // The sender lives as long as we do.
        let _ = stopped.wait_for(|stopped| *stopped).await;
    }
}

impl Seat {
    /// Does what a message says. A message that makes no sense ends the session.
    pub fn handle(&self, message: api::agent_message::Message) -> Result<(), Refusal> {
        use api::agent_message::Message as Said;
        let came_at = Instant::now();
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
                    Ok(request) => {
                        inner.asked = Some((self.agent.request(id), came_at));
                        inner.apply(Input::Request(request));
                        inner.asked = None;
                    }
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
            Said::CreateStream(create) => inner.create_stream(&self.agent, create),
            Said::EndStream(end) => {
                inner.stream(StreamsInput::End { agent: self.agent.clone(), name: end.name });
            }
            Said::JoinStream(join) => {
                inner.stream(StreamsInput::Join { agent: self.agent.clone(), name: join.name });
            }
            Said::LeaveStream(leave) => {
                inner.stream(StreamsInput::Leave { agent: self.agent.clone(), name: leave.name });
            }
        }
        Ok(())
    }
}

impl Seat {
    /// Waits until the manager ends.
    pub async fn stopped(&self) {
        self.core.stopped().await;
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
        Time(self.base.saturating_add(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)))
    }

    /// Hands changes of the state over to be written, with what is to be said then.
    fn flush(&mut self) {
        let Some(commits) = &self.commits else { return };
        let (changes, acts) = (self.machine.changes(), std::mem::take(&mut self.waiting));
        if changes.is_empty() && acts.is_empty() {
            return;
        }
        let commit = Commit { changes: changes.into_iter().collect(), acts };
        if commits.try_send(commit).is_err() && !self.stopped {
            // Without what was lost here the state is not whole: another manager has to begin with what is written.
            tracing::error!("changes of the state cannot be written as fast as they come");
            self.overrun = true;
        }
    }

    /// How long nothing has to be done if nothing happens.
    fn next_look(&self) -> std::time::Duration {
        let machines = self.machine.deadline().into_iter().chain(self.streams.deadline());
        let deadline = machines.chain(self.missing.values().copied()).min();
        let wait = deadline.map_or(std::time::Duration::from_secs(60), |at| at.since(self.now()).into());
        let looks = self.health.iter().filter_map(|health| health.next_look());
        looks.min().map_or(wait, |at| wait.min(at.saturating_duration_since(Instant::now())))
    }

    /// Concludes what only time tells.
    fn look_at_health(&mut self) {
        let now = Instant::now();
        if self.health.iter().any(|health| health.next_look().is_some_and(|at| at <= now)) {
            let verdicts = self.health.iter_mut().map(|health| health.look(now)).collect();
            self.judge(verdicts, now);
        }
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
        self.drain();
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
            News::SetUp { plan, result, mut steps } => {
                if let Some(came_at) = self.setting_up.remove(&plan).filter(|_| result.is_ok()) {
                    let micros = came_at.elapsed().as_micros() as u64;
                    steps.push(Step { what: polycast_api::REQUEST_TO_PATH.into(), micros });
                }
                self.tell_steps(plan, steps);
                self.apply(Input::SetUp { plan, result });
            }
            News::Found { commands } => self.apply(Input::Found { commands }),
            News::Fibre { rack, fibre, up } => {
                let now = Instant::now();
                let verdicts = self.health.iter_mut().map(|health| health.fibre(now, rack, fibre, up));
                let verdicts = verdicts.collect();
                self.judge(verdicts, now);
            }
            News::Link { ends, up } => {
                let verdicts = self.health.iter_mut().map(|health| health.link(ends, up)).collect();
                self.judge(verdicts, Instant::now());
            }
            News::Switch { rack, up } => {
                if !up {
                    tracing::warn!(rack, "the switch of a rack cannot be reached");
                }
                let now = Instant::now();
                let verdicts = self.health.iter_mut().map(|health| health.switch(now, rack, up)).collect();
                self.judge(verdicts, now);
            }
            News::Links { words, heard } => {
                let verdicts = self.health.iter_mut().map(|health| health.links(&words)).collect();
                self.judge(verdicts, heard);
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
        let news = api::PathNews { request_id, response_id, state, reason, steps, plan: Vec::new() };
        self.tell(&request.agent, Message::Path(news));
    }

    /// Acts on what has failed and what works again.
    fn judge(&mut self, verdicts: Vec<Verdict>, heard: Instant) {
        for Verdict { failed, repaired, words } in verdicts {
            if failed.is_empty() && repaired.is_empty() {
                continue;
            }
            tracing::warn!("{words}");
            self.failure = Some((words, heard));
            if !repaired.is_empty() {
                self.apply(Input::Repaired { failures: repaired });
            }
            if !failed.is_empty() {
                self.apply(Input::Failed { failures: failed });
            }
            self.failure = None;
            let standing = self.machine.standing_commands();
            let before = std::mem::replace(&mut self.standing, standing.clone());
            self.change(None, before, standing);
        }
    }

    fn apply(&mut self, input: Input) {
        let now = self.now();
        self.machine.handle(now, input);
        self.drain();
    }

    fn drain(&mut self) {
        loop {
            while let Some(output) = self.machine.poll(self.now()) {
                self.obey(output);
            }
            // What streams want of the leases is answered by them.
            let Some(output) = self.streams.poll(self.now()) else { return };
            self.serve_stream(output);
        }
    }

    fn obey(&mut self, output: Output) {
        if let Some(input) = streams::heard(&output) {
            let now = self.now();
            self.streams.handle(now, input);
        }
        match output {
            // Those who wanted to join are told.
            Output::Response { request, response: Err(_) } if request.is_stream() => {}
            Output::Join { result, .. } => self.joined = Some(result),
            Output::Heartbeat { .. } => {}
            Output::Waiting { request, wait } => {
                self.tell(&request.agent, Message::Waiting(convert::waiting(request.request, wait)));
            }
            Output::Response { request, response } => {
                let set_up = response.as_ref().ok().filter(|grant| !grant.plan.commands.is_empty());
                let set_up = set_up.map(|grant| grant.plan_id);
                let answer = match response {
                    Ok(grant) => self.granted(request.request, grant),
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
                    // What Blast's Table II calls scheduling: from the request to the answer, queue and all.
                    let asked = self.asked.as_ref().filter(|(asked, _)| *asked == request);
                    let came_at = asked.map(|(_, came_at)| *came_at);
                    self.setting_up.extend(came_at.map(|came_at| (plan, came_at)));
                    let scheduling = came_at.map(|came_at| api::Step {
                        what: polycast_api::SCHEDULING.into(),
                        micros: came_at.elapsed().as_micros() as u64,
                    });
                    let (state, steps) = (api::path_news::State::SettingUp, scheduling.into_iter().collect());
                    self.tell_path(plan, &request, state, String::new(), steps);
                }
            }
            Output::Extended { request, result } => {
                let answer = result
                    .map_err(|denial| convert::denial(&denial))
                    .and_then(|grant| grant.map(|grant| self.granted(request.request, grant)).transpose());
                let (granted, denied) = match answer {
                    Ok(granted) => (granted, None),
                    Err(refusal) => (None, Some(convert::denied(request.request, &refusal))),
                };
                let extended = api::Extended { request_id: request.request, granted, denied };
                self.tell(&request.agent, Message::Extended(extended));
            }
            Output::Granted { plan_id, plan, instead_of } => {
                if !plan.commands.is_empty() {
                    self.change(Some(plan_id), instead_of, plan.commands);
                }
                tracing::info!(response = plan_id.0, fabric = %plan.fabric, "granted");
            }
            Output::Again { plan_id, plan } => self.change(Some(plan_id), Vec::new(), plan.commands),
            Output::Forgotten { plan } => self.change(None, plan.commands, Vec::new()),
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
                let told = devices::messages(&old, &plan.commands);
                if !(old.is_empty() && plan.commands.is_empty()) {
                    self.change(Some(plan_id), old, plan.commands.clone());
                }
                let heard = self.failure.as_ref().map(|(_, heard)| *heard);
                let why = reason.or_else(|| self.failure.as_ref().map(|(words, _)| words.clone()));
                tracing::info!(response = plan_id.0, source = %request.agent.name, before = %before.fabric,
                    fabric = %plan.fabric, why, "planned anew");
                if plan.channel == before.channel {
                    // Without a reason its group has changed, and the answer to that tells the plan.
                    if let Some(reason) = why {
                        let (request_id, response_id) = (request.request, plan_id.0);
                        let (state, kept) =
                            (api::path_news::State::Replanned.into(), convert::kept_plan(&plan));
                        let news = api::PathNews {
                            request_id,
                            response_id,
                            state,
                            reason,
                            plan: kept,
                            steps: vec![],
                        };
                        self.tell(&request.agent, Message::Path(news));
                    }
                    return;
                }
                if self.tell_routes(plan_id, &request, (&before, &plan), why.as_deref(), heard) {
                    return;
                }
                let why = why.map(|why| format!(" ({why})")).unwrap_or_default();
                let replanned = api::Replanned {
                    request_id: request.request,
                    response_id: plan_id.0,
                    fabric: plan.fabric.to_string(),
                    channel: convert::to_channel(&plan, &self.names()).ok(),
                    plan: convert::kept_plan(&plan),
                    reason: if plan.fabric == before.fabric {
                        format!(
                            "{} goes another way{why}: {told} changes at devices, 1 at the source",
                            plan.fabric
                        )
                    } else {
                        format!("after a failure {} took over{why}", plan.fabric)
                    },
                };
                self.tell(&request.agent, Message::Replanned(replanned));
                if !plan.commands.is_empty() {
                    let (state, nothing) = (api::path_news::State::SettingUp, String::new());
                    self.tell_path(plan_id, &request, state, nothing, Vec::new());
                }
            }
            Output::Released { plan_id, request, plan, reason, kept } => {
                if !kept && !plan.commands.is_empty() {
                    self.change(None, plan.commands, Vec::new());
                }
                self.released(plan_id, &request, reason);
            }
            Output::Gone { agent } => tracing::info!(agent = %agent.name, "gone"),
        }
    }

    /// Tells the source which ways have changed, where both plans are over trees; gives whether they are.
    fn tell_routes(
        &mut self,
        plan: PlanId,
        request: &RequestKey,
        (before, now): (&Plan, &Plan),
        why: Option<&str>,
        heard: Option<Instant>,
    ) -> bool {
        // Without a reason, whoever is in no tree now was taken out of the group, and not cut off.
        let changes = convert::route_changes(&before.channel, &now.channel, why.is_some(), &self.names());
        let Some(Ok(changes)) = changes else { return false };
        let reason = why.unwrap_or("the group has changed, or the manager has begun anew").to_string();
        let what = match why {
            Some(_) => format!("{reason}: trees repaired and told, {} ways changed", changes.len()),
            None => format!("{reason}: {} ways told", changes.len()),
        };
        let micros = heard.map_or(0, |heard| heard.elapsed().as_micros() as u64);
        let rerouted = api::Rerouted {
            request_id: request.request,
            response_id: plan.0,
            changes,
            reason,
            steps: vec![api::Step { what, micros }],
        };
        self.tell(&request.agent, Message::Rerouted(rerouted));
        true
    }

    fn names(&self) -> impl Fn(HostId) -> Option<String> {
        |host| self.machine.name_of(host).map(str::to_string)
    }

    fn granted(&self, request: u64, grant: Grant) -> Result<api::Granted, Refusal> {
        convert::granted(request, grant, &self.names())
    }

    fn released(&mut self, plan_id: PlanId, request: &RequestKey, reason: ReleaseReason) {
        tracing::info!(response = plan_id.0, source = %request.agent.name, ?reason, "released");
        let unheard = request.is_stream().then_some("nobody listens to the stream any more");
        if let Some(reason) = convert::end_reason(reason).or(unheard) {
            let (request_id, response_id) = (request.request, plan_id.0);
            let ended = api::Ended { request_id, response_id, reason: reason.to_string() };
            self.tell(&request.agent, Message::Ended(ended));
        }
    }

    /// Brings devices from one state to another, at once or when what is behind it is written.
    fn change(&mut self, plan: Option<PlanId>, old: Vec<DeviceCommand>, new: Vec<DeviceCommand>) {
        if self.commits.is_none() {
            self.devices.change(plan, &old, &new);
        } else {
            self.waiting.push(Act::Change { plan, old, new });
        }
    }

    /// Says something to an agent, at once or when what is behind it is written. Whoever has no session now asks again
    /// when it has one.
    fn tell(&mut self, agent: &AgentKey, message: Message) {
        let message = ManagerMessage { message: Some(message) };
        if self.commits.is_none() {
            self.post(agent, None, message);
        } else if let Some(session) = self.sessions.get(agent) {
            let (agent, session) = (agent.clone(), session.number);
            self.waiting.push(Act::Say { agent, session, message: Box::new(message) });
        }
    }

    /// Puts a message into the queue of an agent's session, if it still is the one that is meant.
    fn post(&mut self, agent: &AgentKey, number: Option<u64>, message: ManagerMessage) {
        let Some(session) = self.sessions.get(agent) else { return };
        if number.is_some_and(|number| number != session.number) {
            return;
        }
        if let Err(mpsc::error::TrySendError::Full(_)) = session.outbox.try_send(Ok(message)) {
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
            streams: self.streams.streams().collect(),
            fabrics: self.machine.fabrics().collect(),
            scheduler: self.machine.scheduler(),
            now,
            uptime: self.start.elapsed(),
        }
    }
}
