//! The optical circuit switch as a device: TL1 over telnet (Blast section IV-B, Republic section IV).
//!
//! What the switch says it has done is not taken on trust: after every change its circuits are retrieved, and one that
//! is missing has failed.

use super::{Change, Device, Job, News, PAUSES, join_all};
use polycast_net::devices::tl1::{Circuit, Link, Tl1Client, Tl1Error, Tl1Options};
use polycast_planning::DeviceCommand;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;
use tokio::sync::mpsc;

/// Jobs that are done together: whatever has come meanwhile.
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
        _news: mpsc::UnboundedSender<News>,
    ) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(async move {
            let CircuitSwitch { address, options } = *self;
            let task = Task { address, options, client: None, wanted: BTreeMap::new() };
            task.run(jobs).await;
        })
    }
}

struct Task {
    address: SocketAddr,
    options: Tl1Options,
    client: Option<Tl1Client>,
    /// The circuits that plans need, by the port where light enters.
    wanted: BTreeMap<u32, u32>,
}

impl Task {
    async fn run(mut self, mut jobs: mpsc::Receiver<Job>) {
        let mut pause = PAUSES.0;
        let mut link = None;
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
                job = jobs.recv() => {
                    let Some(job) = job else { return };
                    let mut together = vec![job];
                    while together.len() < TOGETHER_MAX && let Ok(job) = jobs.try_recv() {
                        together.push(job);
                    }
                    self.perform(together).await;
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

    async fn connect(&mut self) -> Result<Tl1Client, String> {
        if let Some(client) = &self.client {
            return Ok(client.clone());
        }
        let client = Tl1Client::connect(self.address, self.options.clone()).await;
        let client = client.map_err(|error| error.to_string())?;
        tracing::info!(address = %self.address, "connected to the circuit switch");
        self.client = Some(client.clone());
        Ok(client)
    }

    /// After a loss of the connection: whatever plans need and is not there any more is made again.
    async fn mend(&mut self) {
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

    /// Does several jobs at a time; what goes is gone before anything comes.
    async fn perform(&mut self, jobs: Vec<Job>) {
        let mut results: Vec<Result<(), String>> = vec![Ok(()); jobs.len()];
        if let Err(reason) = self.perform_all(&jobs, &mut results).await {
            results = jobs.iter().map(|_| Err(reason.clone())).collect();
        }
        for (job, result) in jobs.into_iter().zip(results) {
            if result.is_err() {
                // What has failed is not wanted; what of it is there goes when its port is needed.
                circuits(&job.change.set).for_each(|circuit| self.forget(circuit));
            }
            // Whoever asked may be ending.
            let _ = job.reply.send(result);
        }
    }

    fn forget(&mut self, circuit: Circuit) {
        if self.wanted.get(&circuit.from) == Some(&circuit.to) {
            self.wanted.remove(&circuit.from);
        }
    }

    async fn perform_all(&mut self, jobs: &[Job], results: &mut [Result<(), String>]) -> Result<(), String> {
        for Job { change: Change { clear, .. }, .. } in jobs {
            circuits(clear).for_each(|circuit| self.forget(circuit));
        }
        let setting: Vec<Circuit> = jobs.iter().flat_map(|job| circuits(&job.change.set)).collect();
        let cleared: Vec<Circuit> = jobs.iter().flat_map(|job| circuits(&job.change.clear)).collect();
        let client = self.connect().await?;
        let there = client.retrieve().await.map_err(|error| error.to_string())?;
        // Beside what is not needed any more, whatever stands in the way: left by failures, or by a manager before.
        let from: BTreeSet<u32> = setting.iter().map(|circuit| circuit.from).collect();
        let to: BTreeSet<u32> = setting.iter().map(|circuit| circuit.to).collect();
        let goes = |circuit: &&Circuit| {
            let in_the_way = from.contains(&circuit.from) || to.contains(&circuit.to);
            !setting.contains(circuit) && (in_the_way || cleared.contains(circuit))
        };
        let going: Vec<Circuit> = there.iter().filter(goes).copied().collect();
        let mut wrong: BTreeMap<Circuit, String> = BTreeMap::new();
        for (circuit, result) in each(&client, &going, false).await {
            if let Err(error) = result {
                tracing::warn!(circuit = %circuit.aid(), %error, "a circuit cannot be taken down");
            }
        }
        let coming: Vec<Circuit> =
            setting.iter().filter(|circuit| !there.contains(circuit)).copied().collect();
        for (circuit, result) in each(&client, &coming, true).await {
            if let Err(error) = result {
                wrong.insert(circuit, error.to_string());
            }
        }
        if !coming.is_empty() && wrong.is_empty() {
            let there = client.retrieve().await.map_err(|error| error.to_string())?;
            for circuit in coming.iter().filter(|circuit| !there.contains(circuit)) {
                let reason = format!("it says that circuit {} is made, and does not list it", circuit.aid());
                wrong.insert(*circuit, reason);
            }
        }
        for (job, result) in jobs.iter().zip(results) {
            match circuits(&job.change.set).find_map(|circuit| wrong.get(&circuit)) {
                Some(reason) => *result = Err(reason.clone()),
                None => {
                    self.wanted.extend(circuits(&job.change.set).map(|circuit| (circuit.from, circuit.to)))
                }
            }
        }
        Ok(())
    }
}

fn circuits(commands: &[DeviceCommand]) -> impl Iterator<Item = Circuit> + '_ {
    commands.iter().filter_map(|command| match *command {
        DeviceCommand::CrossConnect { from, to } => Some(Circuit { from, to }),
        _ => None,
    })
}

/// Makes circuits or takes them down, all at the same time.
async fn each(client: &Tl1Client, circuits: &[Circuit], enter: bool) -> Vec<(Circuit, Result<(), Tl1Error>)> {
    let one = |circuit: &Circuit| {
        let (client, circuit) = (client.clone(), *circuit);
        async move {
            let done = if enter { client.enter(circuit).await } else { client.delete(circuit).await };
            (circuit, done)
        }
    };
    join_all(circuits.iter().map(one).collect::<Vec<_>>()).await
}
