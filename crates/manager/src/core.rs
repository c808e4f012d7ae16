//! The task that owns the manager's machine: one command after the other, no locks.

use crate::config::{ConfigError, ManagerConfig};
use crate::devices::{Devices, News};
use crate::fabrics::{self, Health, Verdict};
use polycast_planning::{DeviceCommand, PlanId};
use polycast_protocol::leases::{AgentKey, Member};
use polycast_protocol::leases::{
    Denial, Grant, Input, Join, JoinRefusal, Leases, LeasesConfig, NotMember, Output, PathRequest, RequestKey,
};
use polycast_types::{Duration, ObjectId, Time};
use std::collections::BTreeMap;
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::{mpsc, oneshot};
use tokio::time::MissedTickBehavior;

/// Commands that may wait for the task.
const COMMANDS_MAX: usize = 1_024;
/// How often requests whose callers have gone are looked for.
const SWEEP: std::time::Duration = std::time::Duration::from_millis(250);

/// What the service asks of the core.
#[derive(Debug)]
pub enum Command {
    Join { join: Join, reply: oneshot::Sender<Result<(), JoinRefusal>> },
    Heartbeat { agent: AgentKey, leases: Vec<PlanId>, reply: oneshot::Sender<Result<Vec<PlanId>, NotMember>> },
    Leave { agent: AgentKey, reply: oneshot::Sender<()> },
    Request { request: PathRequest, reply: oneshot::Sender<Result<Grant, Denial>> },
    Release { request: RequestKey, plan: PlanId, reply: oneshot::Sender<()> },
    Status { reply: oneshot::Sender<Snapshot> },
}

/// The manager's state at one moment.
#[derive(Debug)]
pub struct Snapshot {
    pub agents: Vec<(String, Member)>,
    pub leases: Vec<LeaseSnapshot>,
    pub pending: usize,
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
}

/// The machine and those who wait for its answers.
pub struct Core {
    machine: Leases,
    commands: mpsc::Receiver<Command>,
    /// A request that was asked twice has two callers.
    callers: BTreeMap<RequestKey, Vec<oneshot::Sender<Result<Grant, Denial>>>>,
    start: Instant,
    devices: Devices,
    news: mpsc::UnboundedReceiver<News>,
    health: Vec<Box<dyn Health>>,
    /// What devices keep all the time.
    standing: Vec<DeviceCommand>,
}

/// Answers that come at once.
#[derive(Default)]
struct Answers {
    join: Option<Result<(), JoinRefusal>>,
    heartbeat: Option<Result<Vec<PlanId>, NotMember>>,
}

impl Core {
    /// A core with these settings, and the way to it. Needs a tokio runtime around it.
    pub fn new(config: &ManagerConfig) -> Result<(Self, mpsc::Sender<Command>), ConfigError> {
        // Numbers of leases differ from those of an earlier run: they begin with the time in microseconds.
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let leases = LeasesConfig {
            lease: Duration::from_nanos(config.lease_ms.saturating_mul(1_000_000)),
            silence: Duration::from_nanos(config.silence_ms.saturating_mul(1_000_000)),
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
        let (sender, commands) = mpsc::channel(COMMANDS_MAX);
        let (callers, start) = (BTreeMap::new(), Instant::now());
        Ok((Core { machine, commands, callers, start, devices, news, health, standing }, sender))
    }

    /// Runs until told to stop; whoever waits then gets no answer.
    pub async fn run(mut self, mut stop: oneshot::Receiver<()>) {
        let mut sweep = tokio::time::interval(SWEEP);
        sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let deadline = self.machine.deadline();
            let wake = deadline.map(|at| self.start + std::time::Duration::from_nanos(at.0));
            let sleep = async {
                match wake {
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                _ = &mut stop => return,
                command = self.commands.recv() => match command {
                    Some(command) => self.obey(command),
                    None => return,
                },
                Some(news) = self.news.recv() => self.hear(news),
                () = sleep => { self.drain(); }
                _ = sweep.tick(), if !self.callers.is_empty() => self.sweep(),
            }
        }
    }

    fn now(&self) -> Time {
        Time(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Does what a command says. A caller that does not wait for its answer any more misses it.
    fn obey(&mut self, command: Command) {
        match command {
            Command::Join { join, reply } => {
                let name = join.agent.name.clone();
                if let Some(result) = self.apply(Input::Join(join)).join {
                    match &result {
                        Ok(()) => tracing::info!(agent = %name, "joined"),
                        Err(refusal) => tracing::warn!(agent = %name, %refusal, "turned down"),
                    }
                    let _ = reply.send(result);
                }
            }
            Command::Heartbeat { agent, leases, reply } => {
                if let Some(result) = self.apply(Input::Heartbeat { agent, leases }).heartbeat {
                    let _ = reply.send(result);
                }
            }
            Command::Leave { agent, reply } => {
                self.apply(Input::Leave { agent });
                let _ = reply.send(());
            }
            Command::Request { request, reply } => {
                let key = request.agent.request(request.request);
                self.callers.entry(key).or_default().push(reply);
                self.apply(Input::Request(request));
            }
            Command::Release { request, plan, reply } => {
                self.apply(Input::Release { request, plan });
                let _ = reply.send(());
            }
            Command::Status { reply } => {
                let _ = reply.send(self.snapshot());
            }
        }
    }

    fn apply(&mut self, input: Input) -> Answers {
        let now = self.now();
        self.machine.handle(now, input);
        self.drain()
    }

    fn drain(&mut self) -> Answers {
        let mut answers = Answers::default();
        while let Some(output) = self.machine.poll(self.now()) {
            match output {
                Output::Join { result, .. } => answers.join = Some(result),
                Output::Heartbeat { result, .. } => answers.heartbeat = Some(result),
                Output::Response { request, response } => self.respond(request, &response),
                Output::Granted { plan_id, plan, instead_of } => {
                    tracing::info!(response = plan_id.0, fabric = plan.fabric, "granted");
                    self.devices.change(Some(plan_id), &instead_of, &plan.commands);
                }
                Output::Again { plan_id, plan } => {
                    self.devices.change(Some(plan_id), &[], &plan.commands);
                }
                Output::Forgotten { plan } => self.devices.change(None, &plan.commands, &[]),
                Output::Path { plan_id, request, state } => {
                    tracing::info!(response = plan_id.0, source = %request.agent.name, ?state, "path");
                }
                Output::Replanned { plan_id, request, before, plan, displaced } => {
                    tracing::warn!(response = plan_id.0, source = %request.agent.name, before = before.fabric,
                        fabric = plan.fabric, "planned anew after a failure");
                    let old: Vec<_> = before.commands.into_iter().chain(displaced).collect();
                    self.devices.change(Some(plan_id), &old, &plan.commands);
                }
                Output::Released { plan_id, request, plan, reason, kept } => {
                    if !kept {
                        self.devices.change(None, &plan.commands, &[]);
                    }
                    tracing::info!(response = plan_id.0, source = %request.agent.name, ?reason, "released");
                }
                Output::Gone { agent } => tracing::info!(agent = %agent.name, "gone"),
            }
        }
        answers
    }

    /// Takes in what devices say.
    fn hear(&mut self, news: News) {
        tracing::debug!(?news, "a device says");
        match news {
            News::SetUp { plan, result, steps: _ } => drop(self.apply(Input::SetUp { plan, result })),
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

    /// Acts on what has failed and what works again.
    fn judge(&mut self, verdicts: Vec<Verdict>) {
        for Verdict { failed, repaired, words } in verdicts {
            if failed.is_empty() && repaired.is_empty() {
                continue;
            }
            tracing::warn!("{words}");
            if !repaired.is_empty() {
                self.apply(Input::Repaired { failures: repaired });
            }
            if !failed.is_empty() {
                self.apply(Input::Failed { failures: failed });
            }
            let standing = self.machine.standing_commands();
            self.devices.change(None, &self.standing, &standing);
            self.standing = standing;
        }
    }

    /// Answers all who asked; a grant that reaches nobody goes back at once.
    fn respond(&mut self, request: RequestKey, response: &Result<Grant, Denial>) {
        if let Err(denial) = response {
            tracing::info!(source = %request.agent.name, request = request.request, %denial, "denied");
        }
        let callers = self.callers.remove(&request).unwrap_or_default();
        let told = callers.into_iter().filter_map(|caller| caller.send(response.clone()).ok()).count();
        if told == 0 && response.is_ok() {
            let now = self.now();
            self.machine.handle(now, Input::Withdraw { request });
        }
    }

    /// Withdraws requests whose callers have all gone.
    fn sweep(&mut self) {
        let mut gone = Vec::new();
        self.callers.retain(|request, callers| {
            callers.retain(|caller| !caller.is_closed());
            if callers.is_empty() {
                gone.push(request.clone());
            }
            !callers.is_empty()
        });
        for request in gone {
            tracing::info!(source = %request.agent.name, request = request.request, "withdrawn");
            self.apply(Input::Withdraw { request });
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
                })
                .collect(),
            pending: self.machine.pending(),
            fabrics: self.machine.fabrics().collect(),
            scheduler: self.machine.scheduler(),
            now,
        }
    }
}
