//! Many small deliveries in one lab, and what they leave behind: no state of a group in any node, and no
//! memory (Datacast, section 2, scalable group state management).

use crate::daemons::Daemons;
use crate::datacast;
use crate::error::LabError;
use crate::layout::Layout;
use crate::{daemons::Places, spec::Spec};
use polycast_api::agent::send_event::Event;
use polycast_api::client::{AgentClient, Receivers, SendOptions, Session};
use polycast_types::{AppId, DataId};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Time that nodes may keep interests that have no answer, with room to spare.
const FORGOTTEN_WITHIN: Duration = Duration::from_secs(30);
/// Interval between checks of whether they have forgotten.
const LOOK_AGAIN: Duration = Duration::from_millis(200);
/// Number of attempts to remove an object: its transfer may just be ending.
const DELETE_TRIES: u32 = 50;
/// Failures that are told in words.
const TOLD_MAX: usize = 10;

/// Deliveries to be made, and their number.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SoakOptions {
    /// The file, by its whole path.
    pub path: PathBuf,
    /// Number of groups, one after the other, each for one delivery.
    pub groups: u32,
    /// Number of groups at the same time.
    pub parallel: u32,
    /// Number of hosts that receive in each group; the hosts, and the one that sends, are drawn.
    pub receivers: u32,
    /// From which it is drawn.
    pub seed: u64,
    /// Number of readings of memory on the way.
    pub readings: u32,
}

/// Outcome of the deliveries.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SoakOutcome {
    /// Groups whose receivers all got and verified everything.
    pub verified: u32,
    /// Reasons why other groups failed, the first few.
    pub failures: Vec<String>,
    /// Time that all groups took, in seconds.
    pub seconds: f64,
    /// Memory on the way.
    pub memory: Vec<Memory>,
    /// State of groups that the nodes of a Datacast fabric still keep in the end.
    pub left: Option<Left>,
}

/// Resident memory of the daemons, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Memory {
    /// After so many groups.
    pub groups: u32,
    /// The manager.
    pub manager_bytes: u64,
    /// All agents together.
    pub agents_bytes: u64,
    /// The largest of them.
    pub agent_most_bytes: u64,
    /// The process with all switches of a Datacast fabric.
    pub switches_bytes: u64,
    /// Share of this that the content stores of all nodes of a Datacast fabric take.
    pub stores_bytes: u64,
}

/// State that is left at all nodes together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Left {
    /// Sources and receivers.
    pub transfers: u64,
    /// Interests that have no answer yet.
    pub pending: u64,
}

/// Lab in which the deliveries run.
pub(crate) struct Ground<'a> {
    pub(crate) spec: &'a Spec,
    pub(crate) layout: &'a Layout,
    pub(crate) places: &'a Places,
    pub(crate) daemons: &'a Mutex<Daemons>,
}

/// Numbers that look drawn (xorshift64*); groups only have to differ.
struct Draw(u64);

impl Draw {
    fn below(&mut self, end: u32) -> u32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as u32 % end
    }

    /// The source and the receivers of one group, all different.
    fn group(&mut self, hosts: u32, receivers: u32) -> (usize, Vec<usize>) {
        let mut order: Vec<usize> = (0..hosts as usize).collect();
        for at in 0..=receivers.min(hosts - 1) {
            order.swap(at as usize, (at + self.below(hosts - at)) as usize);
        }
        (order[0], order[1..=receivers.min(hosts - 1) as usize].to_vec())
    }
}

impl Ground<'_> {
    /// Runs it.
    pub(crate) fn soak(&self, options: &SoakOptions) -> Result<SoakOutcome, LabError> {
        let failed = |error: std::io::Error| LabError::system("run many deliveries", error);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let mut outcome = runtime.block_on(self.all_groups(options))?;
        if datacast::network_of(self.spec).is_some() {
            outcome.left = Some(self.left()?);
        }
        Ok(outcome)
    }

    async fn all_groups(&self, options: &SoakOptions) -> Result<SoakOutcome, LabError> {
        let wrong = |error: polycast_api::client::ClientError| LabError::system("speak to an agent", error);
        let mut sessions = Vec::new();
        for host in &self.layout.hosts {
            let client = AgentClient::connect(&self.places.socket(&host.name)).await.map_err(wrong)?;
            sessions.push(client.register(AppId::default(), std::process::id().into()).await.map_err(wrong)?);
        }
        let begun = Instant::now();
        let (next, done) = (AtomicU64::new(0), AtomicU64::new(0));
        let (failures, memory) = (Mutex::new(Vec::new()), Mutex::new(vec![self.memory(0)]));
        let step = u64::from((options.groups / options.readings.max(1)).max(1));
        let worker = async || {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= u64::from(options.groups) {
                    return;
                }
                if let Err(why) = self.one_group(&sessions, options, number).await {
                    failures.lock().unwrap_or_else(PoisonError::into_inner).push(why);
                }
                let count = done.fetch_add(1, Ordering::Relaxed) + 1;
                if count.is_multiple_of(step) {
                    memory.lock().unwrap_or_else(PoisonError::into_inner).push(self.memory(count as u32));
                }
            }
        };
        let mut workers: Vec<_> = (0..options.parallel.max(1)).map(|_| Box::pin(worker())).collect();
        std::future::poll_fn(|context| {
            workers.retain_mut(|worker| worker.as_mut().poll(context).is_pending());
            if workers.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
        })
        .await;
        drop(workers);
        let mut failures = failures.into_inner().unwrap_or_else(PoisonError::into_inner);
        let verified = options.groups - failures.len() as u32;
        failures.truncate(TOLD_MAX);
        let memory = memory.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok(SoakOutcome { verified, failures, seconds: begun.elapsed().as_secs_f64(), memory, left: None })
    }

    /// One group: an object is added, delivered, and taken away everywhere.
    async fn one_group(
        &self,
        sessions: &[Session],
        options: &SoakOptions,
        number: u64,
    ) -> Result<(), String> {
        let mut draw = Draw(options.seed.wrapping_add(number).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let (source, receivers) = draw.group(sessions.len() as u32, options.receivers);
        let data = DataId(number + 1);
        let said = |error: polycast_api::client::ClientError| format!("group {number}: {error}");
        let session = &sessions[source];
        session.add(data, &options.path).await.map_err(said)?;
        let names = receivers.iter().map(|host| self.layout.hosts[*host].name.clone()).collect();
        let outcome = follow(session, data, names).await.map_err(|why| format!("group {number}: {why}"));
        for host in receivers.iter().chain([&source]) {
            for _ in 0..DELETE_TRIES {
                if sessions[*host].delete(data).await.is_ok() {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }
        outcome
    }

    fn memory(&self, groups: u32) -> Memory {
        let daemons = self.daemons.lock().unwrap_or_else(PoisonError::into_inner);
        let of = |name: &str| daemons.resident_bytes(name).unwrap_or(0);
        let agents = self.layout.hosts.iter().map(|host| of(&host.name));
        // A node that does not answer now does so at the next reading.
        let stores_bytes = self.sum(&["kept_bytes"]).map_or(0, |sums| sums[0]);
        Memory {
            groups,
            manager_bytes: of("manager"),
            agents_bytes: agents.clone().sum(),
            agent_most_bytes: agents.max().unwrap_or(0),
            switches_bytes: of(datacast::SWITCHES),
            stores_bytes,
        }
    }

    /// Sums up each of these numbers over the status of all nodes; zeros without a Datacast fabric.
    fn sum(&self, whats: &[&str]) -> Result<Vec<u64>, LabError> {
        if datacast::network_of(self.spec).is_none() {
            return Ok(vec![0; whats.len()]);
        }
        let nodes = datacast::status(self.layout, self.places)?;
        let nodes = nodes.as_array().map_or(&[][..], Vec::as_slice);
        Ok(whats.iter().map(|what| nodes.iter().filter_map(|node| node[what].as_u64()).sum()).collect())
    }

    /// Returns the state of groups that nodes still keep once they have had the time to forget.
    fn left(&self) -> Result<Left, LabError> {
        let begun = Instant::now();
        loop {
            let sums = self.sum(&["transfers", "pending"])?;
            let left = Left { transfers: sums[0], pending: sums[1] };
            if left == Left::default() || begun.elapsed() > FORGOTTEN_WITHIN {
                return Ok(left);
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }
}

/// Sends an object; all receivers have to verify it.
async fn follow(session: &Session, data: DataId, receivers: Vec<String>) -> Result<(), String> {
    let said = |error: polycast_api::client::ClientError| error.to_string();
    let to = Receivers::Named(receivers);
    let mut sending = session.send(data, &to, &SendOptions::default()).await.map_err(said)?;
    while let Some(event) = sending.next().await.map_err(said)? {
        if let Event::Finished(report) = event {
            let failed = report.receivers.iter().find(|receiver| !receiver.verified);
            return failed.map_or(Ok(()), |one| Err(format!("{} failed: {}", one.name, one.error)));
        }
    }
    Err("there was no report".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_have_different_members_and_all_hosts_have_their_turn() {
        let mut sources = [0u32; 16];
        for number in 0..2_000u64 {
            let mut draw = Draw(number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
            let (source, mut members) = draw.group(16, 3);
            assert_eq!(members.len(), 3);
            members.push(source);
            members.sort_unstable();
            members.dedup();
            assert_eq!(members.len(), 4);
            assert!(members.iter().all(|host| *host < 16));
            sources[source] += 1;
        }
        assert!(sources.iter().all(|count| (60..200).contains(count)), "{sources:?}");
        assert_eq!(Draw(5).group(2, 9).1.len(), 1, "not more than there are");
    }
}
