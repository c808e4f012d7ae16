//! The optical circuit switch as a device, in whatever dialect it speaks (Blast section IV-B, Republic
//! section IV).
//!
//! What the switch says it has done is not taken on trust: after every change its circuits are retrieved, and
//! one that is missing, without light, or beside another one at the same port, has failed. Changes that share
//! no port go on at the same time, so that a late answer holds up no other change. Circuits that touch no
//! port of ours are other people's: they are neither looked at nor taken down, and none is made. What the
//! switch holds is told once it says it; until then the core lends none of it.

use super::{Change, Device, DeviceError, JOBS_MAX, Job, News, PAUSES, until};
use futures_util::future::join_all;
use polycast_net::devices::Remarks;
use polycast_net::devices::circuits::{
    Circuit, CircuitClient, CircuitError, CircuitOptions, Held, Link, Report,
};
use polycast_net::devices::tl1::Severity;
use polycast_planning::DeviceCommand;
use polycast_topology::PortTable;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{broadcast, mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Jobs that are done together: whatever has come meanwhile and needs other ports.
const TOGETHER_MAX: usize = 256;
/// However many alarms the switch raises, its circuits are looked at so often.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// The circuits that the switch lists, each with why it carries no light, if the switch says so.
type Listed = BTreeMap<Circuit, Option<String>>;

/// The switch, before its task runs.
#[derive(Debug)]
pub(crate) struct CircuitSwitch {
    address: SocketAddr,
    options: CircuitOptions,
    ports: PortTable,
}

impl CircuitSwitch {
    /// The one that listens here, and what is at its ports.
    pub(crate) fn new(address: SocketAddr, options: CircuitOptions, ports: PortTable) -> Self {
        CircuitSwitch { address, options, ports }
    }
}

impl Device for CircuitSwitch {
    fn run(
        self: Box<Self>,
        jobs: mpsc::Receiver<Job>,
        news: mpsc::Sender<News>,
    ) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(async move {
            let CircuitSwitch { address, options, ports } = *self;
            let task = Task {
                address,
                options,
                ports: Arc::new(ports),
                client: None,
                there: None,
                wanted: BTreeMap::new(),
                waiting: VecDeque::new(),
                busy: BTreeSet::new(),
                running: JoinSet::new(),
                news: Some(news),
                refusal: None,
                alarms: Remarks::default(),
                looked_at: None,
                look_at: None,
            };
            task.run(jobs).await;
        })
    }
}

struct Task {
    address: SocketAddr,
    options: CircuitOptions,
    ports: Arc<PortTable>,
    client: Option<CircuitClient>,
    /// The circuits that the switch has listed last and that have been made and taken down since; `None`
    /// where that is not known.
    there: Option<Listed>,
    /// The circuits that plans need, by the port where light enters.
    wanted: BTreeMap<u32, u32>,
    /// Jobs that need a port of one that is being done, or of one that waits before them.
    waiting: VecDeque<Work>,
    /// The ports of jobs that are being done.
    busy: BTreeSet<u32>,
    running: JoinSet<Done>,
    /// Channel for the circuits that exist at the beginning, until they have been reported.
    news: Option<mpsc::Sender<News>>,
    /// Reason why they cannot be reported yet.
    refusal: Option<String>,
    alarms: Remarks,
    /// Time of the last check of the circuits because of an alarm, and of the next one.
    looked_at: Option<Instant>,
    look_at: Option<Instant>,
}

/// A job in this device's words.
struct Work {
    clear: Vec<Circuit>,
    set: Vec<Circuit>,
    reply: oneshot::Sender<Result<(), DeviceError>>,
}

impl Work {
    /// The ports that it is about, those where light enters and those where it leaves.
    fn ports(&self) -> impl Iterator<Item = u32> + '_ {
        // A port is a fibre in and a fibre out, but two plans never share one.
        self.clear.iter().chain(&self.set).flat_map(|circuit| [circuit.from, circuit.to])
    }
}

/// Jobs that were done together.
struct Done {
    jobs: Vec<Work>,
    results: Vec<Result<(), DeviceError>>,
    /// Circuits that have gone and that have come; `None` if not known.
    changed: Option<(Vec<Circuit>, Vec<Circuit>)>,
    /// Circuits that existed before, if the switch was asked.
    before: Option<Listed>,
}

impl Task {
    async fn run(mut self, mut jobs: mpsc::Receiver<Job>) {
        let mut pause = PAUSES.0;
        let (mut link, mut reports) = (None, None);
        self.introduce().await;
        loop {
            if link.is_none() {
                link = self.client.as_ref().map(CircuitClient::link);
                reports = self.client.as_ref().map(CircuitClient::reports);
            }
            // What it holds is asked for until it says so.
            let connecting = link.is_none() || self.news.is_some();
            let changed = async {
                match &mut link {
                    Some(link) if !connecting => drop(link.changed().await),
                    _ => tokio::time::sleep(pause).await,
                }
            };
            let look_at = self.look_at;
            tokio::select! {
                // As many may wait here as in the inbox.
                job = jobs.recv(), if self.waiting.len() < JOBS_MAX => {
                    let Some(job) = job else { return };
                    self.take(job);
                    while self.waiting.len() < JOBS_MAX && let Ok(job) = jobs.try_recv() {
                        self.take(job);
                    }
                    self.begin().await;
                }
                Some(done) = self.running.join_next() => {
                    // A task ends early only when the runtime does.
                    if let Ok(done) = done {
                        self.end(done);
                    }
                    self.begin().await;
                }
                report = heard(&mut reports), if look_at.is_none() => self.hear(&report),
                () = until(look_at) => {
                    // What was said meanwhile is seen with this look.
                    reports = self.client.as_ref().map(CircuitClient::reports);
                    (self.look_at, self.looked_at) = (None, Some(Instant::now()));
                    self.mend().await;
                }
                () = changed => {
                    if connecting {
                        // Ahead of the first job, so that it does not have to wait for it.
                        self.introduce().await;
                        pause = (pause * 2).min(PAUSES.1);
                    } else {
                        self.mend().await;
                    }
                }
            }
        }
    }

    /// Puts a job into the queue, if it is for this device.
    fn take(&mut self, Job { change: Change { clear, set }, reply }: Job) {
        let own = |set: Vec<Circuit>| match set.iter().find(|circuit| !is_whole(&self.ports, circuit)) {
            None => Ok(set),
            Some(Circuit { from, to }) => {
                let [from, to] = [from, to].map(|port| self.options.dialect.port_name(*port));
                Err(DeviceError::ForeignPorts { from, to })
            }
        };
        match (circuits(&clear), circuits(&set).and_then(own)) {
            (Ok(clear), Ok(set)) => self.waiting.push_back(Work { clear, set, reply }),
            // The core may be ending.
            (Err(error), _) | (_, Err(error)) => drop(reply.send(Err(error))),
        }
    }

    /// Tells which circuits there are before anything is asked for, as soon as the switch says it.
    async fn introduce(&mut self) {
        let there = match self.connect().await {
            Ok(client) => client.retrieve().await,
            Err(error) => Err(error),
        };
        let there = match there {
            Ok(there) => there,
            Err(error) => {
                let said = error.to_string();
                if self.refusal.as_ref() != Some(&said) {
                    tracing::warn!(address = %self.address, %error, "the circuit switch does not say what it holds, and lends nothing");
                }
                self.refusal = Some(said);
                return;
            }
        };
        let mut there = listed(there);
        there.retain(|circuit, _| is_ours(&self.ports, circuit));
        let commands =
            there.keys().map(|circuit| DeviceCommand::CrossConnect { from: circuit.from, to: circuit.to });
        if let Some(news) = self.news.take() {
            // The core may be ending.
            let _ = news.send(News::Found { commands: commands.collect() }).await;
        }
        self.there = Some(there);
        self.refusal = None;
    }

    /// Handles a report that the switch sends unasked: if something is wrong, circuits may have gone, and are
    /// checked.
    fn hear(&mut self, report: &Report) {
        let (verb, lines) = (&report.verb, report.lines.join("; "));
        if report.severity == Severity::Message {
            tracing::debug!(verb, lines, "the circuit switch reports");
            return;
        }
        if let Some(times) = self.alarms.count() {
            tracing::warn!(severity = ?report.severity, verb, lines, times, "the circuit switch raises an alarm");
        }
        let now = Instant::now();
        self.look_at = Some(self.looked_at.map_or(now, |at| now.max(at + LOOK_EVERY)));
    }

    async fn connect(&mut self) -> Result<CircuitClient, CircuitError> {
        if let Some(client) = &self.client {
            return Ok(client.clone());
        }
        let client = CircuitClient::connect(self.address, self.options.clone()).await?;
        tracing::info!(address = %self.address, "connected to the circuit switch");
        self.client = Some(client.clone());
        Ok(client)
    }

    /// After a loss of the connection: whatever plans need and is not there any more is made again.
    async fn mend(&mut self) {
        self.there = None;
        let Some(client) = self.client.clone() else { return };
        if !matches!(*client.link().borrow(), Link::Up(_)) {
            return;
        }
        let Ok(there) = client.retrieve().await else { return };
        let there = listed(there);
        let wanted = self.wanted.iter().map(|(&from, &to)| Circuit { from, to });
        let missing: Vec<Circuit> = wanted.filter(|circuit| !there.contains_key(circuit)).collect();
        if missing.is_empty() {
            return;
        }
        tracing::warn!(circuits = missing.len(), "the circuit switch has lost circuits: making them again");
        for (circuit, result) in each(&client, &missing, true).await {
            if let Err(error) = result {
                let circuit = client.dialect().circuit_name(circuit);
                tracing::warn!(circuit, %error, "a circuit cannot be made again");
            }
        }
    }

    /// Begins the jobs that need no port of an earlier one that is not done, all together. Others do not wait
    /// for them.
    async fn begin(&mut self) {
        let mut taken = self.busy.clone();
        let (mut now, mut later) = (Vec::new(), VecDeque::new());
        for job in std::mem::take(&mut self.waiting) {
            let ports: BTreeSet<u32> = job.ports().collect();
            let is_free = ports.is_disjoint(&taken);
            taken.extend(&ports);
            if is_free && now.len() < TOGETHER_MAX {
                self.busy.extend(ports);
                now.push(job);
            } else {
                later.push_back(job);
            }
        }
        self.waiting = later;
        if now.is_empty() {
            return;
        }
        for job in &now {
            job.clear.iter().for_each(|circuit| self.forget(*circuit));
        }
        let client = self.connect().await;
        self.running.spawn(perform(client, now, self.there.clone(), Arc::clone(&self.ports)));
    }

    fn end(&mut self, Done { jobs, results, changed, before }: Done) {
        if self.there.is_none() && self.running.is_empty() {
            self.there = before;
        }
        match (changed, &mut self.there) {
            (Some((gone, come)), Some(there)) => {
                gone.iter().for_each(|circuit| {
                    there.remove(circuit);
                });
                there.extend(come.into_iter().map(|circuit| (circuit, None)));
            }
            (Some(_), None) => {}
            (None, _) => self.there = None,
        }
        for (job, result) in jobs.into_iter().zip(results) {
            job.ports().for_each(|port| {
                self.busy.remove(&port);
            });
            match &result {
                Ok(()) => {
                    self.wanted.extend(job.set.iter().map(|circuit| (circuit.from, circuit.to)));
                }
                // What has failed is not wanted; what of it is there goes when its port is needed.
                Err(_) => job.set.iter().for_each(|circuit| self.forget(*circuit)),
            }
            // The core may be ending.
            let _ = job.reply.send(result);
        }
    }

    fn forget(&mut self, circuit: Circuit) {
        if self.wanted.get(&circuit.from) == Some(&circuit.to) {
            self.wanted.remove(&circuit.from);
        }
    }
}

/// Does several jobs at a time that have no port in common. What the switch has is asked for only where
/// `there` does not say it, or is wrong.
async fn perform(
    client: Result<CircuitClient, CircuitError>,
    jobs: Vec<Work>,
    there: Option<Listed>,
    ports: Arc<PortTable>,
) -> Done {
    let all_failed = |error: CircuitError| -> Vec<Result<(), DeviceError>> {
        jobs.iter().map(|_| Err(error.clone().into())).collect()
    };
    let client = match client {
        Ok(client) => client,
        Err(error) => return Done { results: all_failed(error), jobs, changed: None, before: None },
    };
    let mut first = None;
    if let Some(there) = there {
        match perform_all(&client, &jobs, &there, &ports).await {
            Ok((results, changed)) if results.iter().all(Result::is_ok) => {
                return Done { jobs, results, changed: Some(changed), before: None };
            }
            Ok((results, _)) => first = Some(results),
            Err(error) => first = Some(all_failed(error)),
        }
    }
    let listed = client.retrieve().await.map(listed);
    let performed = match &listed {
        Ok(there) => perform_all(&client, &jobs, there, &ports).await,
        Err(error) => Err(error.clone()),
    };
    match performed {
        // What failed has perhaps been done in part.
        Ok((results, changed)) => {
            let known = results.iter().all(Result::is_ok);
            Done { jobs, results, changed: known.then_some(changed), before: listed.ok() }
        }
        Err(error) => {
            let results = first.unwrap_or_else(|| all_failed(error));
            Done { jobs, results, changed: None, before: None }
        }
    }
}

/// Result of each job; and the circuits that have gone and come.
type Performed = (Vec<Result<(), DeviceError>>, (Vec<Circuit>, Vec<Circuit>));

async fn perform_all(
    client: &CircuitClient,
    jobs: &[Work],
    there: &Listed,
    ports: &PortTable,
) -> Result<Performed, CircuitError> {
    let setting: BTreeSet<Circuit> = jobs.iter().flat_map(|job| &job.set).copied().collect();
    let cleared: BTreeSet<Circuit> = jobs.iter().flat_map(|job| &job.clear).copied().collect();
    // Beside what is not needed any more, whatever stands in the way: left by failures, or by a manager
    // before.
    let in_the_way = Beside::of(&setting, there);
    let goes = |circuit: &&Circuit| {
        !setting.contains(circuit) && (in_the_way.what(circuit).is_some() || cleared.contains(circuit))
    };
    let going: Vec<Circuit> = there.keys().filter(goes).copied().collect();
    let mut wrong: BTreeMap<Circuit, DeviceError> = BTreeMap::new();
    // A circuit with one end at a port of ours is a mistake, of another program or of ours: it is not for us
    // to cut it.
    let (going, foreign): (Vec<Circuit>, Vec<Circuit>) =
        going.into_iter().partition(|circuit| is_whole(ports, circuit));
    for circuit in &setting {
        let in_the_way = |other: &&Circuit| other.from == circuit.from || other.to == circuit.to;
        if let Some(other) = foreign.iter().find(in_the_way) {
            wrong.insert(*circuit, DeviceError::NotOurs(client.dialect().circuit_name(*other)));
        }
    }
    for (circuit, result) in each(client, &going, false).await {
        if let Err(error) = result {
            let circuit = client.dialect().circuit_name(circuit);
            tracing::warn!(circuit, %error, "a circuit cannot be taken down");
        }
    }
    let coming =
        setting.iter().filter(|circuit| !there.contains_key(circuit) && !wrong.contains_key(circuit));
    let coming: Vec<Circuit> = coming.copied().collect();
    for (circuit, result) in each(client, &coming, true).await {
        if let Err(error) = result {
            wrong.insert(circuit, error.into());
        }
    }
    let has_changed = coming.iter().any(|circuit| !wrong.contains_key(circuit));
    // What was listed without light, or beside another circuit, may be better by now.
    let was_wrong = |circuit: &Circuit| {
        in_the_way.what(circuit).is_some() || there.get(circuit).is_some_and(Option::is_some)
    };
    if has_changed || setting.iter().any(was_wrong) {
        let there = listed(client.retrieve().await?);
        let beside = Beside::of(&setting, &there);
        for circuit in &setting {
            if let Err(error) = judge(client, *circuit, &there, &beside) {
                wrong.entry(*circuit).or_insert(error);
            }
        }
    }
    let of_job = |job: &Work| match job.set.iter().find_map(|circuit| wrong.get(circuit)) {
        Some(error) => Err(error.clone()),
        None => Ok(()),
    };
    Ok((jobs.iter().map(of_job).collect(), (going, coming)))
}

/// Checks a circuit as the switch lists it.
fn judge(
    client: &CircuitClient,
    circuit: Circuit,
    there: &Listed,
    beside: &Beside,
) -> Result<(), DeviceError> {
    let name = |circuit| client.dialect().circuit_name(circuit);
    match (there.get(&circuit), beside.what(&circuit)) {
        (None, _) => Err(DeviceError::NotListed(name(circuit))),
        (Some(Some(fault)), _) => Err(DeviceError::NoLight { circuit: name(circuit), fault: fault.clone() }),
        (Some(None), Some(other)) => Err(DeviceError::Beside { circuit: name(circuit), other: name(other) }),
        (Some(None), None) => Ok(()),
    }
}

/// The circuits that a switch lists beside others, at the ports of these: where light enters, and where it
/// leaves.
struct Beside {
    from: BTreeMap<u32, Circuit>,
    to: BTreeMap<u32, Circuit>,
}

impl Beside {
    fn of(circuits: &BTreeSet<Circuit>, listed: &Listed) -> Self {
        let from: BTreeSet<u32> = circuits.iter().map(|circuit| circuit.from).collect();
        let to: BTreeSet<u32> = circuits.iter().map(|circuit| circuit.to).collect();
        let is_beside = |circuit: &&Circuit| {
            !circuits.contains(circuit) && (from.contains(&circuit.from) || to.contains(&circuit.to))
        };
        let others: Vec<Circuit> = listed.keys().filter(is_beside).copied().collect();
        Beside {
            from: others.iter().map(|circuit| (circuit.from, *circuit)).collect(),
            to: others.iter().map(|circuit| (circuit.to, *circuit)).collect(),
        }
    }

    /// One that has a port in common with this circuit.
    fn what(&self, circuit: &Circuit) -> Option<Circuit> {
        self.from.get(&circuit.from).or_else(|| self.to.get(&circuit.to)).copied()
    }
}

/// Collects the circuits that a switch lists; a circuit that is listed with light and without counts as
/// without.
fn listed(held: Vec<Held>) -> Listed {
    held.into_iter().map(|Held { circuit, fault }| (circuit, fault)).collect()
}

/// Returns true if one of its ports is ours.
fn is_ours(ports: &PortTable, circuit: &Circuit) -> bool {
    ports.owner(circuit.from).is_some() || ports.owner(circuit.to).is_some()
}

/// Returns true if both of its ports are ours.
fn is_whole(ports: &PortTable, circuit: &Circuit) -> bool {
    ports.owner(circuit.from).is_some() && ports.owner(circuit.to).is_some()
}

/// The next word of the switch; never, where there is no listener.
async fn heard(reports: &mut Option<broadcast::Receiver<Report>>) -> Report {
    loop {
        let Some(listener) = reports else { return std::future::pending().await };
        match listener.recv().await {
            Ok(report) => return report,
            // Later ones say as much.
            Err(broadcast::error::RecvError::Lagged(_)) => {}
            Err(broadcast::error::RecvError::Closed) => *reports = None,
        }
    }
}

fn circuits(commands: &[DeviceCommand]) -> Result<Vec<Circuit>, DeviceError> {
    let circuit = |command: &DeviceCommand| match *command {
        DeviceCommand::CrossConnect { from, to } => Ok(Circuit { from, to }),
        ref other => Err(DeviceError::foreign(other)),
    };
    commands.iter().map(circuit).collect()
}

/// Makes circuits or takes them down, all at the same time. All are asked for before any answer is waited
/// for, so that they go out in one packet.
async fn each(
    client: &CircuitClient,
    circuits: &[Circuit],
    enter: bool,
) -> Vec<(Circuit, Result<(), CircuitError>)> {
    let one = |circuit: &Circuit| {
        let (client, circuit) = (client.clone(), *circuit);
        async move {
            let done = if enter { client.enter(circuit).await } else { client.delete(circuit).await };
            (circuit, done)
        }
    };
    join_all(circuits.iter().map(one)).await
}

#[cfg(test)]
mod tests;
