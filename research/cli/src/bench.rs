//! Measuring the manager: sessions as agents have them, that ask for paths and give them back (Republic
//! section VI-C).

pub(super) mod control;
mod recording;
pub(super) mod replication;
pub(super) mod streams;

use crate::args::bench::{Bench, BenchArgs, BenchManagerArgs};
use polycast::exit::{Exit, Failure};
use polycast::output::{self, Format};
use polycast_api::PROTOCOL_VERSION;
use polycast_api::manager::agent_message::Message as Said;
use polycast_api::manager::manager_client::ManagerClient;
use polycast_api::manager::manager_message::Message as Told;
use polycast_api::manager::{AgentId, AgentMessage, Heartbeat, Join, PathRequest, Release};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Barrier, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Endpoint;

/// Messages of an agent that wait for its connection.
const MESSAGES_MAX: usize = 64;

/// `polycast bench`
pub(super) fn run(args: &BenchArgs, format: Format) -> Result<Exit, Failure> {
    match &args.what {
        Bench::Manager(args) => manager(args, format),
        Bench::RackKill(args) => streams::kills(args, format),
        Bench::Control(args) => control::run(args, format),
        Bench::Join(args) => streams::joins(args, format),
        Bench::Replication(args) => replication::run(args, format),
        Bench::OcsRecord(args) => recording::run(args, format),
    }
}

/// A manager that ends with the measurement.
struct Started {
    child: Child,
    address: String,
}

impl Started {
    fn start() -> Result<Self, Failure> {
        let wrong = |error: std::io::Error| Failure::unexpected(format!("cannot start a manager: {error}"));
        let mut child = Command::new(std::env::current_exe().map_err(wrong)?)
            .args(["manager", "--listen", "127.0.0.1:0", "--json"])
            // That agents go when it ends is no news.
            .env("POLYCAST_LOG", std::env::var("POLYCAST_LOG").unwrap_or_else(|_| "error".into()))
            .stdout(Stdio::piped())
            .spawn()
            .map_err(wrong)?;
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            BufReader::new(stdout).read_line(&mut line).map_err(wrong)?;
        }
        let ready: Value = serde_json::from_str(&line).unwrap_or_default();
        match ready["listening"].as_str() {
            Some(address) => Ok(Started { address: address.to_string(), child }),
            None => {
                let _ = child.kill();
                let _ = child.wait();
                Err(Failure::unexpected("the manager did not start"))
            }
        }
    }

    /// Processor time that it has taken so far, in seconds.
    fn processor_seconds(&self) -> Option<f64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).ok()?;
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let ticks: u64 = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
        Some(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn manager(args: &BenchManagerArgs, format: Format) -> Result<Exit, Failure> {
    if args.receivers == 0 || args.agents <= args.receivers {
        return Err(Failure::input("there must be more agents than receivers, and at least one receiver"));
    }
    if !(args.seconds > 0.0 && args.seconds <= 3_600.0)
        || args.rate.is_some_and(|rate| rate.is_nan() || rate <= 0.0)
    {
        return Err(Failure::input("the seconds and the rate must be more than nothing"));
    }
    let started = match &args.manager {
        Some(_) => None,
        None => Some(Started::start()?),
    };
    let address = match (&args.manager, &started) {
        (Some(address), _) => address.clone(),
        (None, Some(started)) => started.address.clone(),
        (None, None) => unreachable!("one is started where none is named"),
    };
    // The manager is to have the other processors.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::unexpected(format!("cannot start: {error}")))?;
    let before = started.as_ref().and_then(Started::processor_seconds);
    let outcome = runtime.block_on(load(&address, args))?;
    let after = started.as_ref().and_then(Started::processor_seconds);
    report(args, outcome, before.zip(after).map(|(before, after)| after - before), format)
}

/// Measurements of the agents.
struct Outcome {
    /// From the request to its answer, in seconds, rising.
    waits: Vec<f64>,
    seconds: f64,
}

async fn load(address: &str, args: &BenchManagerArgs) -> Result<Outcome, Failure> {
    let ready = Arc::new(Barrier::new(args.agents + 1));
    let mut agents = tokio::task::JoinSet::new();
    for number in 0..args.agents {
        let agent = Agent {
            number,
            agents: args.agents,
            receivers: args.receivers,
            seconds: args.seconds,
            every: args.rate.map(|rate| args.agents as f64 / rate),
        };
        agents.spawn(agent.run(address.to_string(), Arc::clone(&ready)));
    }
    // An agent that cannot join never comes to the barrier: its error is seen first.
    let mut waits = Vec::new();
    let mut begun = None;
    loop {
        tokio::select! {
            _ = ready.wait(), if begun.is_none() => begun = Some(Instant::now()),
            joined = agents.join_next() => match joined {
                Some(Ok(Ok(seen))) => waits.extend(seen),
                Some(Ok(Err(why))) => return Err(Failure::input(why)),
                Some(Err(error)) => return Err(Failure::unexpected(error.to_string())),
                None => break,
            },
        }
    }
    let seconds = begun.map_or(0.0, |begun| begun.elapsed().as_secs_f64()).min(args.seconds);
    waits.sort_by(f64::total_cmp);
    Ok(Outcome { waits, seconds })
}

/// Starts a manager and asks it for paths; gives the mean response in milliseconds and the requests a second.
pub(super) fn answers(
    agents: usize,
    receivers: usize,
    seconds: f64,
    rate: Option<f64>,
) -> Result<(f64, f64), Failure> {
    let started = Started::start()?;
    let args = BenchManagerArgs { agents, receivers, seconds, rate, manager: None };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::unexpected(format!("cannot start: {error}")))?;
    let Outcome { waits, seconds } = runtime.block_on(load(&started.address, &args))?;
    if waits.is_empty() {
        return Err(Failure::unexpected("no request was answered"));
    }
    let count = waits.len() as f64;
    Ok((1e3 * waits.iter().sum::<f64>() / count, count / seconds))
}

/// One agent of the load.
struct Agent {
    number: usize,
    agents: usize,
    receivers: usize,
    seconds: f64,
    /// Seconds between two of its requests, where the load has a rate.
    every: Option<f64>,
}

impl Agent {
    /// Joins, and asks for paths until the time is over; gives how long each answer took.
    async fn run(self, address: String, ready: Arc<Barrier>) -> Result<Vec<f64>, String> {
        let wrong = |error: &dyn std::fmt::Display| format!("the manager at {address}: {error}");
        let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(|error| wrong(&error))?;
        let channel = endpoint.tcp_nodelay(true).connect().await.map_err(|error| wrong(&error))?;
        let (outbox, messages) = mpsc::channel(MESSAGES_MAX);
        let say = |message| {
            let said = outbox.try_send(AgentMessage { message: Some(message) });
            said.map_err(|_| "the manager does not read what it is told".to_string())
        };
        say(Said::Join(self.join()))?;
        let session = ManagerClient::new(channel).session(ReceiverStream::new(messages)).await;
        let mut session = session.map_err(|status| wrong(&status.message()))?.into_inner();
        ready.wait().await;
        let begun = tokio::time::Instant::now();
        let end = begun + Duration::from_secs_f64(self.seconds);
        // Agents with a rate do not all ask at the same moment.
        let offset = self.every.map_or(0.0, |every| every * self.number as f64 / self.agents as f64);
        let mut waits = Vec::new();
        let mut beat_at = begun;
        for number in 1.. {
            if let Some(every) = self.every {
                await_precisely(begun + Duration::from_secs_f64(offset + every * (number - 1) as f64)).await;
            }
            let now = tokio::time::Instant::now();
            if now >= end {
                break;
            }
            if now >= beat_at {
                beat_at = now + Duration::from_secs(1);
                say(Said::Heartbeat(Heartbeat { number, leases: Vec::new(), node: None }))?;
            }
            let asked_at = Instant::now();
            say(Said::Request(self.request(number)))?;
            loop {
                let message = session.message().await.map_err(|status| wrong(&status.message()))?;
                match message.ok_or_else(|| wrong(&"it has ended the session"))?.message {
                    Some(Told::Granted(granted)) => {
                        waits.push(asked_at.elapsed().as_secs_f64());
                        let release = Release {
                            request_id: number,
                            response_id: granted.response_id,
                            ..Default::default()
                        };
                        say(Said::Release(release))?;
                        break;
                    }
                    Some(Told::Denied(denied)) => return Err(wrong(&denied.reason)),
                    _ => {}
                }
            }
        }
        Ok(waits)
    }

    fn join(&self) -> Join {
        Join {
            protocol_version: PROTOCOL_VERSION,
            agent: Some(AgentId { name: format!("bench-{}", self.number), incarnation: 1 }),
            address: "127.0.0.1".into(),
            control_port: 1 + self.number as u32 % 65_535,
            leases: Vec::new(),
            node: None,
        }
    }

    fn request(&self, number: u64) -> PathRequest {
        let receiver = |step: usize| format!("bench-{}", (self.number + step) % self.agents);
        PathRequest {
            request_id: number,
            app_id: vec![0; 16],
            data_id: number,
            data_size: 1 << 30,
            remaining_size: 1 << 30,
            receivers: (1..=self.receivers).map(receiver).collect(),
            all: false,
            divisible: false,
            lease_ms: None,
            ..Default::default()
        }
    }
}

/// Waits until a time. The runtime's timers count in milliseconds: agents that rely on them alone all ask at
/// the same moment, once a millisecond.
async fn await_precisely(at: tokio::time::Instant) {
    const TIMER: Duration = Duration::from_millis(2);
    if let Some(early) = at.checked_sub(TIMER) {
        tokio::time::sleep_until(early).await;
    }
    while tokio::time::Instant::now() < at {
        tokio::task::yield_now().await;
    }
}

fn report(
    args: &BenchManagerArgs,
    outcome: Outcome,
    processor_seconds: Option<f64>,
    format: Format,
) -> Result<Exit, Failure> {
    let count = outcome.waits.len();
    if count == 0 {
        return Err(Failure::input("no request was answered"));
    }
    let mean = outcome.waits.iter().sum::<f64>() / count as f64;
    let at = |fraction: f64| outcome.waits[((count - 1) as f64 * fraction) as usize];
    let rate = count as f64 / outcome.seconds;
    let processor = processor_seconds.map(|seconds| seconds / count as f64 * 1e6);
    let document = json!({
        "agents": args.agents, "receivers": args.receivers, "requests": count, "seconds": outcome.seconds,
        "requests_per_s": rate, "mean_ms": mean * 1e3, "median_ms": at(0.5) * 1e3, "p99_ms": at(0.99) * 1e3,
        "manager_us_per_request": processor,
    });
    let mut text = format!(
        "{count} requests in {:.1} s: {rate:.0} a second, mean response {:.3} ms, median {:.3}, 99 % within {:.3}",
        outcome.seconds,
        mean * 1e3,
        at(0.5) * 1e3,
        at(0.99) * 1e3
    );
    if let Some(micros) = processor {
        text += &format!(", {micros:.1} us of the manager's processor time each");
    }
    output::result(format, &document, &text)?;
    Ok(Exit::Done)
}
