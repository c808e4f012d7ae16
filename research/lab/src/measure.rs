//! Measurements of a stream of messages in a lab (Orca section 5.3): how long it stops when the active agent
//! of a rack is killed, and how soon a receiver that joins gets it; and how soon small requests to acceptors
//! are answered by a majority.
//!
//! The lab itself sends and receives, by the sockets of its hosts' agents, as applications do. Times are
//! those of one machine: every host has the same clock.

mod paxos;
mod replication;

pub use replication::Replicated;

use crate::daemons::{Daemons, Places, lock};
use crate::error::LabError;
use crate::label_switches;
use crate::layout::{Host, Layout};
use crate::spec::{Network, Spec};
use crate::world;
use polycast_api::client::{AgentClient, MessageReceiver, Received, Session};
use polycast_api::report::ControlStep;
use polycast_types::{AppId, Duration as Span};
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The stream's name.
const STREAM: &str = "measured";
/// Longest and shortest time between messages to the agent: a quarter of T where that is between these.
const TICK: Duration = Duration::from_millis(1);
const TICK_MIN: Duration = Duration::from_micros(250);
/// Messages that the sender has not been given yet, in ticks.
const TICKS_MAX: usize = 64;
/// Quiet time before a kill, in which the stream's own unevenness is seen.
const QUIET: Duration = Duration::from_millis(400);
/// Time that the stream is watched after a kill: at least this, and some T.
const WATCHED: Duration = Duration::from_millis(500);
/// Time that packets of agents are counted to find the active one.
const COUNTED: Duration = Duration::from_millis(30);
/// Messages that are late by less than this are not lost: the agent that takes over may overtake the one
/// before.
const HOLD: Span = Span::from_millis(2);
/// After an agent has begun anew: time to get its labels.
const SETTLES: Duration = Duration::from_millis(400);
/// A receiver that has not heard anything for this long has failed.
const PATIENCE: Duration = Duration::from_secs(10);
/// Kills beyond four times those asked for that may cost nothing.
const IDLE_MAX: u32 = 10;
/// Between two receivers that join.
const BETWEEN: Duration = Duration::from_millis(20);

/// Measurement to be made.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Measurement {
    /// The active agent of a rack is killed, again and again.
    Kills {
        /// Number of kills.
        kills: u32,
        /// The stream.
        load: Load,
    },
    /// Hosts of one rack after the other ask for paths to all others.
    Paths {
        /// Number of requests.
        requests: u32,
    },
    /// Hosts join and leave.
    Joins {
        /// Number of joins.
        joins: u32,
        /// The stream.
        load: Load,
    },
    /// A leader sends requests to acceptors, by unicast and as a stream, and by Paxos over UDP.
    Replication {
        /// Numbers of acceptors, measured one after the other.
        acceptors: Vec<u32>,
        /// Number of requests.
        requests: u64,
        /// Bytes of a request's value.
        bytes: usize,
    },
}

/// A path that was made.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct PathMade {
    /// Fabric that carried the object.
    pub fabric: String,
    /// Steps of its set-up.
    pub steps: Vec<ControlStep>,
}

/// The stream that is measured.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Load {
    /// Messages a second.
    pub rate: f64,
    /// Bytes of a message.
    pub bytes: usize,
}

/// Results of a measurement.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Measured {
    /// Kills, with the messages that were sent in all.
    Kills {
        /// One for each kill and receiver.
        gaps: Vec<Gap>,
        /// Kills that cost nothing: the agent was not active, or another one took over while the kernel still
        /// took apart its process, and went on with its packets.
        idle: u32,
        /// Number of times that leafs of the whole lab took living agents for dead.
        wrongly_lost: u64,
        /// The stream.
        flow: Flow,
    },
    /// Paths, one for each request.
    Paths(Vec<PathMade>),
    /// Requests to acceptors: for each number of them by unicast, and then as a stream; then Paxos by unicast
    /// and over a group, where the fabric carries groups.
    Replication(Vec<Replicated>),
    /// Joins.
    Joins {
        /// One for each.
        joins: Vec<Joining>,
        /// The stream.
        flow: Flow,
    },
}

/// Totals of the stream.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Flow {
    /// Messages that the source's agent has taken.
    pub messages: u64,
    /// Time that this took, in seconds.
    pub seconds: f64,
    /// Messages among them that the network did not take.
    pub failed: u64,
    /// Messages that a receiver got which had joined all the time.
    pub received: u64,
    /// Messages that it did not get.
    pub lost: u64,
}

/// Effect of one kill on one receiver.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Gap {
    /// The kill, counted from 0.
    pub kill: u32,
    /// The agent's host.
    pub killed: String,
    /// The receiver.
    pub receiver: String,
    /// From the last message before those that were lost to the first one after, as they came to the host.
    pub gap_ns: u64,
    /// Messages since the kill that did not come.
    pub lost: u64,
    /// Messages that came or were lost while the stream was watched, gap and all.
    pub watched: u64,
    /// The longest time between two messages in the quiet time before.
    pub quiet_ns: u64,
    /// Messages that did not come in the quiet time before.
    pub quiet_lost: u64,
}

/// Delays of a receiver that joined.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Joining {
    /// The host.
    pub host: String,
    /// True if its rack had receivers already.
    pub known_rack: bool,
    /// From the call to the agent's word that it has joined.
    pub joined_ns: u64,
    /// From the call to the first message in the application's hands.
    pub heard_ns: u64,
    /// From the call to the arrival of the first message at the host.
    pub arrived_ns: u64,
}

fn failed(what: &str, error: impl std::fmt::Display) -> LabError {
    LabError::system(what, error)
}

fn unix_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// A lab in which something is measured.
pub(crate) struct Stage<'a> {
    pub(crate) spec: &'a Spec,
    pub(crate) layout: &'a Layout,
    pub(crate) places: &'a Places,
    pub(crate) daemons: &'a Mutex<Daemons>,
}

/// A message that has come: when, its number, and how many before it are lost.
type Arrived = (u64, u64, u64);

/// A receiver that hears the stream all the time.
struct Ear {
    host: String,
    arrived: Arc<Mutex<Vec<Arrived>>>,
    task: tokio::task::JoinHandle<Result<(u64, u64), String>>,
}

impl Stage<'_> {
    /// Measures.
    pub(crate) fn run(&self, what: &Measurement) -> Result<Measured, LabError> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.map_err(|error| failed("measure", error))?;
        runtime.block_on(async {
            match what {
                Measurement::Kills { kills, load } => self.kills(*kills, *load).await,
                Measurement::Joins { joins, load } => self.joins(*joins, *load).await,
                Measurement::Replication { acceptors, requests, bytes } => {
                    let ways = self.replication(acceptors, *requests, *bytes).await?;
                    Ok(Measured::Replication(ways))
                }
                Measurement::Paths { .. } => unreachable!("the lab measures them by deliveries"),
            }
        })
    }

    async fn session(&self, host: &Host) -> Result<Session, LabError> {
        let client = AgentClient::connect(&self.places.socket(&host.name)).await;
        let client = client.map_err(|error| failed("reach an agent", error))?;
        let session = client.register(AppId::default(), u64::from(std::process::id())).await;
        session.map_err(|error| failed("register", error))
    }

    /// Listens at a host until the stream ends.
    async fn listen(&self, host: &Host, hold: Span) -> Result<Ear, LabError> {
        let session = self.session(host).await?;
        let receiver = session.receive_messages(STREAM, Some(hold)).await;
        let mut receiver = receiver.map_err(|error| failed("join the stream", error))?;
        await_joined(&mut receiver).await?;
        let arrived: Arc<Mutex<Vec<Arrived>>> = Arc::default();
        let noted = Arc::clone(&arrived);
        let task = tokio::spawn(async move {
            // Its session lives as long as this.
            let _session = session;
            let (mut received, mut lost) = (0, 0);
            loop {
                match receiver.next().await {
                    Ok(Some(Received::Messages(messages))) => {
                        let mut noted = noted.lock().unwrap_or_else(PoisonError::into_inner);
                        for message in messages {
                            (received, lost) = (received + 1, lost + message.lost);
                            noted.push((message.arrived_unix_ns, message.number, message.lost));
                        }
                    }
                    Ok(Some(Received::Joined(_))) => {}
                    // The source ends it.
                    Ok(None) | Err(_) => return Ok((received, lost)),
                }
            }
        });
        Ok(Ear { host: host.name.clone(), arrived, task })
    }

    /// Packets overtake each other only where several agents or trees take turns.
    fn hold(&self) -> Span {
        match self.spec.network {
            Network::Orca { agents: 1, trees: 1, .. } => Span::ZERO,
            _ => Span::from_millis(1),
        }
    }

    async fn kills(&self, kills: u32, load: Load) -> Result<Measured, LabError> {
        let Network::Orca { clos, agents, standby, timeout_us, .. } = self.spec.network else {
            return Err(failed("kill agents of racks", "only a lab such as orca:4 has them"));
        };
        if standby == 0 {
            return Err(failed("kill agents of racks", "no agent stands by: leave standby=0 out"));
        }
        let hosts = &self.layout.hosts;
        let source = &hosts[0];
        // The rack furthest away. All its hosts receive, agents' hosts too: with four-port switches it has no
        // others.
        let per_leaf = clos.hosts_per_leaf() as usize;
        let rack = &hosts[hosts.len() - per_leaf..];
        let agents = &rack[..((agents + standby) as usize).min(per_leaf)];
        let session = self.session(source).await?;
        session.create_stream(STREAM, false).await.map_err(|error| failed("make a stream", error))?;
        let mut ears = Vec::new();
        for host in rack {
            ears.push(self.listen(host, HOLD).await?);
        }
        let timeout = Duration::from_micros(timeout_us.into());
        let sender = Sending::start(session.clone(), load, timeout / 4);
        let watched = WATCHED + 4 * timeout;
        let (mut gaps, mut idle, mut kill) = (Vec::new(), 0, 0);
        tokio::time::sleep(SETTLES).await;
        let late_before = label_switches::losses(self.places)?.returned;
        while kill < kills {
            ears.iter().for_each(|ear| ear.lock().clear());
            tokio::time::sleep(QUIET).await;
            let active = self.busiest(agents).await?;
            let killed_at = unix_ns();
            lock(self.daemons).kill(&format!("rack-{}", active.name));
            tokio::time::sleep(watched).await;
            // At the dead agent's own host nothing takes packets away any more that the leaf sends there to
            // be relabelled: a receiver there goes on hearing them as they are.
            let others = ears.iter().filter(|ear| ear.host != active.name);
            let seen: Vec<Option<Gap>> =
                others.map(|ear| gap(kill, active, ear, killed_at, nanos(QUIET))).collect();
            self.restart(active)?;
            tokio::time::sleep(SETTLES).await;
            if seen.iter().flatten().all(|gap| gap.lost == 0) {
                idle += 1;
                if idle > kills * 4 + IDLE_MAX {
                    return Err(failed(
                        "kill agents of racks",
                        "no receiver missed a message: the agents that died were not active",
                    ));
                }
                continue;
            }
            gaps.extend(seen.into_iter().flatten());
            kill += 1;
        }
        let wrongly_lost = label_switches::losses(self.places)?.returned - late_before;
        let flow = finish(sender, &session, ears).await?;
        Ok(Measured::Kills { gaps, idle, wrongly_lost, flow })
    }

    /// The agent's host that sends most: an active agent sends all packets of its rack back to the leaf.
    async fn busiest<'h>(&self, agents: &'h [Host]) -> Result<&'h Host, LabError> {
        let sent = || -> Result<Vec<u64>, LabError> { agents.iter().map(world::sent_bytes).collect() };
        let before = sent()?;
        tokio::time::sleep(COUNTED).await;
        let after = sent()?;
        let grown = agents.iter().zip(before.iter().zip(&after).map(|(before, after)| after - before));
        let busiest = grown.max_by_key(|(_, grown)| *grown).map(|(host, _)| host);
        busiest.ok_or_else(|| failed("kill agents of racks", "the rack has none"))
    }

    fn restart(&self, host: &Host) -> Result<(), LabError> {
        start_rack_agent(&mut lock(self.daemons), self.places, self.spec, host)
    }

    async fn joins(&self, joins: u32, load: Load) -> Result<Measured, LabError> {
        let hosts = &self.layout.hosts;
        if hosts.len() < 4 {
            return Err(failed("join a stream", "it takes at least four hosts"));
        }
        let session = self.session(&hosts[0]).await?;
        session.create_stream(STREAM, false).await.map_err(|error| failed("make a stream", error))?;
        // So that some join in the source's rack, some in one with a receiver, and most elsewhere.
        let stays = &hosts[2];
        let ears = vec![self.listen(stays, self.hold()).await?];
        let sender = Sending::start(session.clone(), load, TICK);
        tokio::time::sleep(SETTLES).await;
        let mut sessions = Vec::new();
        for host in hosts.iter().skip(1).filter(|host| *host != stays) {
            sessions.push((host, self.session(host).await?));
        }
        let mut all = Vec::new();
        for number in 0..joins as usize {
            let (host, session) = &sessions[number % sessions.len()];
            all.push(self.join(host, host.rack == stays.rack, session).await?);
            ears[0].lock().clear();
            tokio::time::sleep(BETWEEN).await;
        }
        let flow = finish(sender, &session, ears).await?;
        Ok(Measured::Joins { joins: all, flow })
    }

    /// Joins, hears one message, and leaves.
    async fn join(&self, host: &Host, known_rack: bool, session: &Session) -> Result<Joining, LabError> {
        let (called, called_at) = (unix_ns(), Instant::now());
        let join = async {
            let receiver = session.receive_messages(STREAM, Some(self.hold())).await;
            let mut receiver = receiver.map_err(|error| failed("join the stream", error))?;
            await_joined(&mut receiver).await?;
            let joined_ns = nanos(called_at.elapsed());
            loop {
                let received = receiver.next().await.map_err(|error| failed("hear the stream", error))?;
                if let Some(Received::Messages(messages)) = received {
                    let heard_ns = nanos(called_at.elapsed());
                    let arrived = messages.first().map_or(0, |message| message.arrived_unix_ns);
                    let arrived_ns = arrived.saturating_sub(called);
                    let host = host.name.clone();
                    return Ok(Joining { host, known_rack, joined_ns, heard_ns, arrived_ns });
                }
            }
        };
        let silent = |_| failed("hear the stream", format!("nothing came to {} in 10 s", host.name));
        tokio::time::timeout(PATIENCE, join).await.map_err(silent)?
    }
}

impl Ear {
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Arrived>> {
        self.arrived.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits for the agent's word that it has joined; gives the fabric.
async fn await_joined(receiver: &mut MessageReceiver) -> Result<String, LabError> {
    let joined = tokio::time::timeout(PATIENCE, async {
        loop {
            match receiver.next().await {
                Ok(Some(Received::Joined(joined))) => return Ok(joined.fabric),
                Ok(Some(Received::Messages(_))) => {}
                Ok(None) => return Err("the agent has ended the call".to_string()),
                Err(error) => return Err(error.to_string()),
            }
        }
    });
    let joined = joined.await.map_err(|_| failed("join the stream", "no answer in 10 s"))?;
    joined.map_err(|error| failed("join the stream", error))
}

/// Computes the effect of a kill on a receiver: the gap since then in which most messages were lost or, among
/// gaps without loss, the longest.
fn gap(kill: u32, killed: &Host, ear: &Ear, killed_at: u64, quiet: u64) -> Option<Gap> {
    let mut arrived = ear.lock().clone();
    arrived.sort_by_key(|(at, ..)| *at);
    let at = arrived.partition_point(|(at, ..)| *at < killed_at);
    let gaps = |pairs: &'_ [Arrived]| {
        pairs.windows(2).map(|pair| (pair[1].2, pair[1].0 - pair[0].0)).collect::<Vec<_>>()
    };
    let before = arrived.partition_point(|(at, ..)| *at + quiet < killed_at);
    let quiet = gaps(&arrived[before..at]);
    let quiet_ns = quiet.iter().map(|(_, ns)| *ns).max().unwrap_or(0);
    let quiet_lost = quiet.iter().map(|(lost, _)| lost).sum();
    // From the last one before the kill on.
    let since = gaps(&arrived[at.saturating_sub(1)..]);
    let gap_ns = since.iter().max()?.1;
    let lost: u64 = since.iter().map(|(lost, _)| lost).sum();
    let watched = 1 + since.len() as u64 + lost;
    let (killed, receiver) = (killed.name.clone(), ear.host.clone());
    Some(Gap { kill, killed, receiver, gap_ns, lost, watched, quiet_ns, quiet_lost })
}

/// The load.
struct Sending {
    stop: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<Result<Flow, String>>,
}

impl Sending {
    fn start(session: Session, load: Load, tick: Duration) -> Self {
        let stop: Arc<AtomicBool> = Arc::default();
        let stopped = Arc::clone(&stop);
        let (counts, mut due) = tokio::sync::mpsc::channel(TICKS_MAX);
        // The runtime's timers count in milliseconds.
        std::thread::spawn(move || {
            let (begun, tick) = (Instant::now(), tick.clamp(TICK_MIN, TICK));
            let mut sent = 0;
            while !stopped.load(Ordering::Relaxed) {
                std::thread::sleep(tick);
                let due = (begun.elapsed().as_secs_f64() * load.rate) as u64;
                // A burst after a pause of the machine is no load that was asked for.
                let most = (load.rate * 0.02) as u64 + 1;
                let count = (due - sent).min(most);
                sent = due;
                if count > 0 && counts.blocking_send(count as usize).is_err() {
                    break;
                }
            }
        });
        let task = tokio::spawn(async move {
            let begun = Instant::now();
            let mut sender = session.send_messages(STREAM);
            while let Some(count) = due.recv().await {
                if !sender.send(vec![vec![0; load.bytes]; count]).await {
                    break;
                }
            }
            let totals = sender.finish().await.map_err(|error| error.to_string())?;
            let seconds = begun.elapsed().as_secs_f64();
            Ok(Flow { messages: totals.messages, seconds, failed: totals.failed, ..Flow::default() })
        });
        Sending { stop, task }
    }
}

/// Ends the stream; gives what it was.
async fn finish(sending: Sending, session: &Session, ears: Vec<Ear>) -> Result<Flow, LabError> {
    sending.stop.store(true, Ordering::Relaxed);
    let sent = sending.task.await.map_err(|error| failed("send messages", error))?;
    let mut flow = sent.map_err(|error| failed("send messages", error))?;
    // What is on its way arrives.
    tokio::time::sleep(QUIET).await;
    session.end_stream(STREAM).await.map_err(|error| failed("end the stream", error))?;
    for ear in ears {
        let heard = tokio::time::timeout(PATIENCE, ear.task).await;
        let heard = heard.map_err(|_| failed("end the stream", "a receiver goes on"))?;
        let heard = heard.map_err(|error| failed("hear the stream", error))?;
        let (received, lost) = heard.map_err(|error| failed("hear the stream", error))?;
        (flow.received, flow.lost) = (flow.received + received, flow.lost + lost);
    }
    Ok(flow)
}

/// Starts the agent of a rack at a host, and waits until it is ready.
fn start_rack_agent(
    daemons: &mut Daemons,
    places: &Places,
    spec: &Spec,
    host: &Host,
) -> Result<(), LabError> {
    let number = host.name.trim_start_matches('h').parse();
    let number = number.map_err(|error| LabError::system("name a host", error))?;
    let ready = label_switches::start_rack_agent(spec, number, places, daemons)?;
    daemons.await_ready(&ready)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_is_where_most_was_lost_since_the_kill() {
        let host = |name: &str| {
            let layout = Layout::new(&"orca:4".parse().unwrap());
            layout.host(name).unwrap().clone()
        };
        let task =
            || tokio::runtime::Builder::new_current_thread().build().unwrap().spawn(async { Ok((0, 0)) });
        let arrived: Vec<Arrived> = vec![
            (100, 0, 0),
            (140, 3, 2),
            (200, 4, 0),
            (210, 5, 0),
            (900, 11, 5),
            (1_700, 12, 0),
            (1_750, 15, 2),
        ];
        let ear = Ear { host: "h15".into(), arrived: Arc::new(Mutex::new(arrived)), task: task() };
        let gap = gap(3, &host("h14"), &ear, 205, 1_000).unwrap();
        assert_eq!((gap.gap_ns, gap.lost, gap.watched, gap.quiet_ns), (690, 7, 12, 60));
        assert_eq!(gap.quiet_lost, 2);
        assert_eq!((gap.kill, gap.killed.as_str(), gap.receiver.as_str()), (3, "h14", "h15"));
    }
}
