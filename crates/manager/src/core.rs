//! The manager's machine behind one lock, and the sessions that it answers.
//!
//! A session's own task hands its messages in; what the machine says goes into the sessions' bounded queues
//! at once. A task of its own looks after deadlines and after agents whose sessions have ended.
//!
//! `seats` has the queues of the agents' sessions and what they say, `obey` carries out the machine's orders,
//! one function for each of its outputs, `hear` takes in what devices say, and `fail_over` keeps another
//! manager able to go on from here.

mod around;
mod directory;
mod fail_over;
mod hear;
mod obey;
mod permits;
mod readiness;
mod removal;
mod seats;
mod snapshot;
mod streams;
mod waits;

pub(crate) use around::Around;
pub(crate) use fail_over::Commit;
pub(crate) use obey::part_words;
pub(crate) use seats::Seat;
pub(crate) use snapshot::{
    DrainedHost, ExternalSnapshot, LeaseSnapshot, NetworkSnapshot, PendingSnapshot, Snapshot,
};
pub(crate) use waits::SECONDS_UP_TO;

use crate::config::ManagerConfig;
use crate::devices::{DeviceId, Devices, News};
use crate::fabrics;
use crate::guard::Guard;
use fail_over::Outgoing;
use hear::Networks;
use obey::{Answer, SetUps};
use permits::Permitted;
use polycast_api::error::{Kind, Refusal};
use polycast_api::settings::SettingsError;
use polycast_planning::{PartName, PlanId};
use polycast_protocol::directory::Directory;
use polycast_protocol::leases::{
    Drained, ExternalConfig, Input, Leases, LeasesConfig, Question, Record, SessionsConfig,
};
use polycast_protocol::stream::{Streams, StreamsConfig};
use polycast_types::{Duration, Time};
use readiness::Readiness;
use seats::Seats;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::Instant;

/// The timer rests for at least this long: deadlines that are close together are looked after together.
const TICK: std::time::Duration = std::time::Duration::from_millis(20);

/// A manager that is later than this was stopped, and has not only been busy.
const PAUSE: Duration = Duration::from_millis(500);

/// The machine and those whom it answers.
#[derive(Debug)]
pub(crate) struct Core {
    inner: Mutex<Inner>,
    changed: Notify,
    stopped: watch::Sender<bool>,
}

/// Things that an operator takes out of use by name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Drainable {
    /// Part of the network.
    Part(PartName),
    /// Host, by the name of its agent.
    Host(String),
}

/// State behind the lock.
#[derive(Debug)]
struct Inner {
    machine: Leases,
    streams: Streams,
    directory: Directory,
    stream_secrets: streams::Secrets,
    networks: Networks,
    seats: Seats,
    clock: Clock,
    outgoing: Outgoing,
    set_ups: SetUps,
    readiness: Readiness,
    /// The time of day, and what is allowed.
    around: Around,
    guard: Arc<Guard>,
    permits: Permitted,
    /// The answer to what is being handled, where the machine owes one at once.
    answer: Option<Answer>,
    /// Set once the core has ended: no agent can join, and nothing is sent any longer.
    stopped: bool,
    /// Time when the timer polls the machines, as far as they had reported before it began to rest.
    looks_at: Option<Time>,
    /// Address of the external scheduler, and the way of questions to it.
    external: Option<(String, mpsc::Sender<Question>)>,
}

/// The machine's time: that of the wall clock for managers that go on from each other's records, otherwise
/// since the start.
#[derive(Debug)]
struct Clock {
    start: Instant,
    /// Time at the start, in nanoseconds.
    base: u64,
}

impl Clock {
    fn now(&self) -> Time {
        Time(self.base.saturating_add(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Core {
    /// A core with these settings that knows nothing, and what its devices say, for [`Core::keep_time`].
    /// Needs a tokio runtime around it.
    pub(crate) fn new(
        config: &ManagerConfig,
        around: &Around,
    ) -> Result<(Self, mpsc::Receiver<News>), SettingsError> {
        Self::with_hosts(config, around, 0, &fabrics::Hosts::new(config, &[]))
    }

    /// The same with the numbers of hosts that records give, and a clock that begins at `base`.
    fn with_records(
        config: &ManagerConfig,
        around: &Around,
        records: &[Record],
    ) -> Result<(Self, mpsc::Receiver<News>), SettingsError> {
        Self::with_hosts(config, around, around.wall_ns(), &fabrics::Hosts::new(config, records))
    }

    fn with_hosts(
        config: &ManagerConfig,
        around: &Around,
        base: u64,
        hosts: &fabrics::Hosts,
    ) -> Result<(Self, mpsc::Receiver<News>), SettingsError> {
        let devices = around.devices(config, hosts)?;
        // The state of the leader before tells whose circuits there are; without it the switch does, and
        // agents.
        let asks = config.etcd.endpoints.is_empty() && devices.contains_key(&DeviceId::CircuitSwitch);
        // Numbers of leases differ from those of an earlier run: they begin with the time in microseconds.
        let leases = leases_config(config, asks, PlanId((around.wall_ns() / 1_000).max(1)));
        let mut machine =
            Leases::new(leases, fabrics::fabrics(config, hosts)?, fabrics::scheduler(config, hosts)?);
        // Fabrics that know the hosts' places have these numbers in their plans.
        for (name, number) in hosts.numbers() {
            machine.know_host_as(name, number).expect("each host of the settings has a number of its own");
        }
        let (devices, news) = Devices::start(devices);
        let external = config.scheduler.external()?;
        if let Some(external) = &external {
            machine = machine.asking(Time(base), ExternalConfig { deadline: external.deadline });
        }
        let external = external.map(|external| (external.address.clone(), external.start(devices.news())));
        let (health, standing) = (fabrics::health(config)?, machine.standing_commands());
        devices.change(None, &[], &standing);
        let inner = Inner {
            machine,
            streams: Streams::new(StreamsConfig::default(), Time(base)),
            directory: Directory::new(directory::config(config), Time(base), around.wall_ns() / 1_000),
            networks: Networks { devices, health, standing, failure: None, reached: BTreeMap::new() },
            stream_secrets: streams::Secrets::default(),
            seats: Seats::default(),
            clock: Clock { start: Instant::now(), base },
            outgoing: Outgoing::default(),
            set_ups: SetUps::default(),
            readiness: Readiness::default(),
            around: around.clone(),
            guard: around.guard(),
            permits: Permitted::default(),
            answer: None,
            stopped: false,
            looks_at: None,
            external,
        };
        let core =
            Core { inner: Mutex::new(inner), changed: Notify::new(), stopped: watch::Sender::new(false) };
        Ok((core, news))
    }

    /// Looks after deadlines and devices until it is dropped.
    pub(crate) async fn keep_time(&self, mut news: mpsc::Receiver<News>) {
        loop {
            let wait = self.with(|inner| {
                inner.drain();
                inner.look_at_health();
                inner.next_look()
            });
            tokio::select! {
                biased;
                () = tokio::time::sleep(wait.max(TICK)) => {}
                () = self.changed.notified() => {}
                // The core holds the other end as long as it lives.
                Some(news) = news.recv() => self.with(|inner| inner.hear(news)),
            }
        }
    }

    /// Ends all sessions; no agent can join any more.
    pub(crate) fn stop(&self) {
        self.with(|inner| self.end(inner));
    }

    /// The same where that is not this manager's choice: agents are told why, and so are their users.
    pub(crate) fn stop_for(&self, why: &Refusal) {
        self.with(|inner| {
            inner.seats.tell_all(why);
            self.end(inner);
        });
    }

    fn end(&self, inner: &mut Inner) {
        inner.stopped = true;
        inner.seats.clear();
        // The next leader talks to the devices; two at a time would undo each other's work.
        inner.networks.devices.stop();
        self.stopped.send_replace(true);
    }

    /// Goes by the policy as it is now.
    pub(crate) fn enforce(&self) {
        self.with(Inner::enforce);
    }

    /// Takes a part of the network or a host out of use, or back. Answers when that is written: the next
    /// leader goes by it, too.
    ///
    /// # Errors
    /// There is no such part or host; or the manager has ended before that was written.
    pub(crate) async fn drain(&self, what: &Drainable, is_out: bool) -> Result<Drained, Refusal> {
        let (call, answer) = oneshot::channel();
        self.with(|inner| {
            match what {
                Drainable::Part(part) => inner.drain_part(*part, is_out),
                Drainable::Host(name) => {
                    inner.apply(Input::DrainHost { name: name.clone(), is_out });
                    inner.tell_drained();
                }
            }
            let Some(Answer::Drained(answer)) = inner.answer.take() else {
                unreachable!("all that is named is answered for at once")
            };
            inner.answer_drain(call, answer);
        });
        let unwritten = |_| {
            let message = "the manager stopped leading before the change was written: run the command again";
            Refusal::new(Kind::ManagerUnreachable, message)
        };
        // All that a host can lack is that there is one.
        let kind = match what {
            Drainable::Part(_) => Kind::Invalid,
            Drainable::Host(_) => Kind::ReceiverUnknown,
        };
        answer.await.map_err(unwritten)?.map_err(|reason| Refusal::new(kind, reason))
    }

    /// The state at this moment.
    pub(crate) fn snapshot(&self) -> Snapshot {
        self.with(|inner| inner.snapshot())
    }

    /// Locks the state, and notices first of all that the manager was stopped: to the machine that time is
    /// silence of the agents, whatever it is handed next.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic is a bug of the machine's: what it has left is not to be trusted less than a restart.
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.notice_pause();
        inner
    }

    /// Does something with the state, and hands over what has changed. A core whose changes cannot be written
    /// ends: without what was lost its state is not whole, and another manager has to begin with what is
    /// written.
    fn with<T>(&self, act: impl FnOnce(&mut Inner) -> T) -> T {
        let mut inner = self.lock();
        let result = act(&mut inner);
        if inner.is_due_sooner() {
            self.changed.notify_one();
        }
        if let Err(error) = inner.flush()
            && !inner.stopped
        {
            tracing::error!(%error, "the manager ends");
            self.end(&mut inner);
        }
        result
    }

    /// Waits until the core has ended.
    pub(crate) async fn stopped(&self) {
        let mut stopped = self.stopped.subscribe();
        // The sender lives as long as we do.
        let _ = stopped.wait_for(|stopped| *stopped).await;
    }
}

fn millis(millis: u64) -> Duration {
    Duration::from_nanos(millis.saturating_mul(1_000_000))
}

/// The machine's settings; `asks` is whether the circuit switch and agents have to say what is in use
/// already.
fn leases_config(config: &ManagerConfig, asks: bool, first_plan: PlanId) -> LeasesConfig {
    let patience = Duration::from_nanos(u64::try_from(config.patience().as_nanos()).unwrap_or(u64::MAX));
    LeasesConfig {
        lease: millis(config.lease_ms),
        silence: millis(config.silence_ms),
        sessions: SessionsConfig {
            reconnect: millis(config.reconnect_ms),
            // Two heartbeats, and half of one for the way.
            alive: millis(config.heartbeat_ms.saturating_mul(5) / 2),
            of_address_max: config.address_agents_max,
        },
        pending_max: config.pending_max,
        leases_max: config.leases_max,
        agent_leases_max: config.agent_leases_max,
        receiver_leases_max: config.receiver_leases_max,
        grant_bytes_max: config.grant_max.unwrap_or(u64::MAX),
        agents_max: config.agents_max,
        on_device_failure: config.on_device_failure.into(),
        kept_max: config.kept_paths_max,
        patience,
        claims: asks.then_some(patience),
        recorded: !config.etcd.endpoints.is_empty(),
        first_plan,
    }
}

impl Inner {
    fn now(&self) -> Time {
        self.clock.now()
    }

    /// A manager that was stopped for a while, or ran on a machine that was, has heard no agent meanwhile: it
    /// does not take any for dead because of that.
    fn notice_pause(&mut self) {
        let now = self.now();
        if let Some(late) = self.machine.deadline().map(|at| now.since(at)).filter(|late| *late >= PAUSE)
            && !self.stopped
        {
            tracing::warn!(late_ms = late.as_millis(), "this manager was stopped for a while");
            self.machine.excuse(now);
        }
    }

    /// Returns the time when a machine has to be polled if nothing happens.
    fn due_at(&self) -> Option<Time> {
        let machines = self.machine.deadline().into_iter().chain(self.streams.deadline());
        machines.chain(self.directory.deadline()).min()
    }

    /// Returns true if that time has come nearer since the timer began to rest.
    fn is_due_sooner(&self) -> bool {
        self.due_at().is_some_and(|at| self.looks_at.is_none_or(|looks_at| at < looks_at))
    }

    /// Returns the time during which nothing has to be done if nothing happens.
    fn next_look(&mut self) -> std::time::Duration {
        self.looks_at = self.due_at();
        let wait = self.looks_at.map_or(std::time::Duration::from_secs(60), |at| at.since(self.now()).into());
        self.networks
            .next_look()
            .map_or(wait, |at| wait.min(at.saturating_duration_since(std::time::Instant::now())))
    }

    fn drain_part(&mut self, part: PartName, is_out: bool) {
        let (done, heard) = (if is_out { "taken out" } else { "taken back" }, std::time::Instant::now());
        self.networks.failure = Some((format!("an operator has {done} {part}"), heard));
        self.apply(Input::Drain { part, is_out });
        self.networks.failure = None;
        self.keep_standing();
    }

    /// Hands something to the machine, and does what follows from it.
    fn apply(&mut self, input: Input) {
        let now = self.now();
        self.machine.handle(now, input);
        self.drain();
    }
}
