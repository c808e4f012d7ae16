//! The optical circuit switch as a device: TL1 over telnet (Blast section IV-B, Republic section IV).
//!
//! What the switch says it has done is not taken on trust: after every change its circuits are retrieved, and one that
//! is missing has failed. Changes that share no port go on at the same time, so that a late answer holds up no other change.

use super::{Change, Device, DeviceError, JOBS_MAX, Job, News, PAUSES};
use futures_util::future::join_all;
use polycast_net::devices::tl1::{Circuit, Link, Tl1Client, Tl1Error, Tl1Options};
use polycast_planning::DeviceCommand;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

/// Jobs that are done together: whatever has come meanwhile and needs other ports.
const TOGETHER_MAX: usize = 256;

/// The switch, before its task runs.
#[derive(Debug)]
pub(crate) struct CircuitSwitch {
    address: SocketAddr,
    options: Tl1Options,
}

impl CircuitSwitch {
    /// The one that listens for TL1 here; a command may take as long.
    pub(crate) fn new(address: SocketAddr, answers_within: Duration) -> Self {
        let (connect_timeout, command_timeout) = (answers_within, answers_within);
        CircuitSwitch {
            address,
            options: Tl1Options { connect_timeout, command_timeout, ..Tl1Options::default() },
        }
    }
}

impl Device for CircuitSwitch {
    fn run(
        self: Box<Self>,
        jobs: mpsc::Receiver<Job>,
        news: mpsc::Sender<News>,
    ) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(async move {
            let CircuitSwitch { address, options } = *self;
            let task = Task {
                address,
                options,
                client: None,
                there: None,
                wanted: BTreeMap::new(),
                waiting: VecDeque::new(),
                busy: BTreeSet::new(),
                running: JoinSet::new(),
                news: Some(news),
            };
            task.run(jobs).await;
        })
    }
}

struct Task {
    address: SocketAddr,
    options: Tl1Options,
    client: Option<Tl1Client>,
    /// The circuits that the switch has listed last and that have been made and taken down since; `None` where that is
    /// not known.
    there: Option<BTreeSet<Circuit>>,
    /// The circuits that plans need, by the port where light enters.
    wanted: BTreeMap<u32, u32>,
    /// Jobs that need a port of one that is being done, or of one that waits before them.
    waiting: VecDeque<Work>,
    /// The ports of jobs that are being done.
    busy: BTreeSet<u32>,
    running: JoinSet<Done>,
    /// Where the circuits go that are there at the beginning, until they have been told.
    news: Option<mpsc::Sender<News>>,
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
    /// What has gone and what has come; `None` if that is not known.
    changed: Option<(Vec<Circuit>, Vec<Circuit>)>,
    /// What there was before, if the switch was asked.
    before: Option<BTreeSet<Circuit>>,
}

impl Task {
    async fn run(mut self, mut jobs: mpsc::Receiver<Job>) {
        let mut pause = PAUSES.0;
        let mut link = None;
        self.introduce().await;
        loop {
            if link.is_none() {
                link = self.client.as_ref().map(Tl1Client::link);
            }
            let connecting = link.is_none();
            let changed = async {
                match &mut link {
                    Some(link) => drop(link.changed().await),
                    None => tokio::time::sleep(pause).await,
                }
            };
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
                () = changed => {
                    if connecting {
                        // Ahead of the first job, so that it does not have to wait for it.
                        if self.connect().await.is_err() {
                            pause = (pause * 2).min(PAUSES.1);
                        }
                    } else {
                        self.mend().await;
                    }
                }
            }
        }
    }

    /// Puts a job into the queue, if it is for this device.
    fn take(&mut self, Job { change: Change { clear, set }, reply }: Job) {
        match (circuits(&clear), circuits(&set)) {
            (Ok(clear), Ok(set)) => self.waiting.push_back(Work { clear, set, reply }),
            // The core may be ending.
            (Err(error), _) | (_, Err(error)) => drop(reply.send(Err(error))),
        }
    }

    /// Tells which circuits there are before anything is asked for; none where the switch does not say.
    async fn introduce(&mut self) {
        let there = match self.connect().await {
            Ok(client) => client.retrieve().await,
            Err(error) => Err(error),
        };
        self.there = there.as_ref().ok().map(|there| there.iter().copied().collect());
        let there = there.unwrap_or_else(|error| {
            tracing::warn!(address = %self.address, %error, "the circuit switch does not say what it holds");
            Vec::new()
        });
        let commands =
            there.iter().map(|circuit| DeviceCommand::CrossConnect { from: circuit.from, to: circuit.to });
        if let Some(news) = self.news.take() {
            // The core may be ending.
            let _ = news.send(News::Found { commands: commands.collect() }).await;
        }
    }

    async fn connect(&mut self) -> Result<Tl1Client, Tl1Error> {
        if let Some(client) = &self.client {
            return Ok(client.clone());
        }
        let client = Tl1Client::connect(self.address, self.options.clone()).await?;
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
        let wanted = self.wanted.iter().map(|(&from, &to)| Circuit { from, to });
        let missing: Vec<Circuit> = wanted.filter(|circuit| !there.contains(circuit)).collect();
        if missing.is_empty() {
            return;
        }
        tracing::warn!(circuits = missing.len(), "the circuit switch has lost circuits: making them again");
        for (circuit, result) in each(&client, &missing, true).await {
            if let Err(error) = result {
                tracing::warn!(circuit = %circuit.aid(), %error, "a circuit cannot be made again");
            }
        }
    }

    /// Begins the jobs that need no port of an earlier one that is not done, all together. Others do not wait for them.
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
        self.running.spawn(perform(client, now, self.there.clone()));
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
                there.extend(come);
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

/// Does several jobs at a time that have no port in common. What the switch has is asked for only where `there` does not
/// say it, or is wrong.
async fn perform(
    client: Result<Tl1Client, Tl1Error>,
    jobs: Vec<Work>,
    there: Option<BTreeSet<Circuit>>,
) -> Done {
    let all_failed = |error: Tl1Error| -> Vec<Result<(), DeviceError>> {
        jobs.iter().map(|_| Err(error.clone().into())).collect()
    };
    let client = match client {
        Ok(client) => client,
        Err(error) => return Done { results: all_failed(error), jobs, changed: None, before: None },
    };
    let mut first = None;
    if let Some(there) = there {
        match perform_all(&client, &jobs, &there).await {
            Ok((results, changed)) if results.iter().all(Result::is_ok) => {
                return Done { jobs, results, changed: Some(changed), before: None };
            }
            Ok((results, _)) => first = Some(results),
            Err(error) => first = Some(all_failed(error)),
        }
    }
    let listed: Result<BTreeSet<Circuit>, _> =
        client.retrieve().await.map(|there| there.into_iter().collect());
    let performed = match &listed {
        Ok(there) => perform_all(&client, &jobs, there).await,
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

/// What became of each job; and the circuits that have gone and come.
type Performed = (Vec<Result<(), DeviceError>>, (Vec<Circuit>, Vec<Circuit>));

async fn perform_all(
    client: &Tl1Client,
    jobs: &[Work],
    there: &BTreeSet<Circuit>,
) -> Result<Performed, Tl1Error> {
    let setting: Vec<Circuit> = jobs.iter().flat_map(|job| &job.set).copied().collect();
    let cleared: Vec<Circuit> = jobs.iter().flat_map(|job| &job.clear).copied().collect();
    // Beside what is not needed any more, whatever stands in the way: left by failures, or by a manager before.
    let from: BTreeSet<u32> = setting.iter().map(|circuit| circuit.from).collect();
    let to: BTreeSet<u32> = setting.iter().map(|circuit| circuit.to).collect();
    let goes = |circuit: &&Circuit| {
        let in_the_way = from.contains(&circuit.from) || to.contains(&circuit.to);
        !setting.contains(circuit) && (in_the_way || cleared.contains(circuit))
    };
    let going: Vec<Circuit> = there.iter().filter(goes).copied().collect();
    let mut wrong: BTreeMap<Circuit, DeviceError> = BTreeMap::new();
    for (circuit, result) in each(client, &going, false).await {
        if let Err(error) = result {
            tracing::warn!(circuit = %circuit.aid(), %error, "a circuit cannot be taken down");
        }
    }
    let coming: Vec<Circuit> = setting.iter().filter(|circuit| !there.contains(circuit)).copied().collect();
    for (circuit, result) in each(client, &coming, true).await {
        if let Err(error) = result {
            wrong.insert(circuit, error.into());
        }
    }
    if wrong.len() < coming.len() {
        let there = client.retrieve().await?;
        for circuit in setting.iter().filter(|circuit| !there.contains(circuit)) {
            wrong.entry(*circuit).or_insert_with(|| DeviceError::NotListed(circuit.aid()));
        }
    }
    let of_job = |job: &Work| match job.set.iter().find_map(|circuit| wrong.get(circuit)) {
        Some(error) => Err(error.clone()),
        None => Ok(()),
    };
    Ok((jobs.iter().map(of_job).collect(), (going, coming)))
}

fn circuits(commands: &[DeviceCommand]) -> Result<Vec<Circuit>, DeviceError> {
    let circuit = |command: &DeviceCommand| match *command {
        DeviceCommand::CrossConnect { from, to } => Ok(Circuit { from, to }),
        ref other => Err(DeviceError::foreign(other)),
    };
    commands.iter().map(circuit).collect()
}

/// Makes circuits or takes them down, all at the same time. All are asked for before any answer is waited for, so that
/// they go out in one packet.
async fn each(client: &Tl1Client, circuits: &[Circuit], enter: bool) -> Vec<(Circuit, Result<(), Tl1Error>)> {
    let one = |circuit: &Circuit| {
        let (client, circuit) = (client.clone(), *circuit);
        async move {
            let done = if enter { client.enter(circuit).await } else { client.delete(circuit).await };
            (circuit, done)
        }
    };
    join_all(circuits.iter().map(one)).await
}
