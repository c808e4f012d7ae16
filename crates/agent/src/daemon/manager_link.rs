//! The agent's side of the manager's service (Republic Table II): joining, heartbeats, paths.
//!
//! The manager may die and come back at any time. Transfers that run do not notice; the link joins again,
//! with growing pauses, and names the leases that are in use, so that the new manager takes them over.
//! Paths are given back as soon as the manager can be told.

use super::error::AgentError;
use crate::transfer::Path;
use polycast_api::PROTOCOL_VERSION;
use polycast_api::client::Receivers;
use polycast_api::error::{Kind, Refusal, check_version, innermost};
use polycast_api::manager::manager_client::ManagerClient;
use polycast_api::manager::{
    self as api, AgentId, HeartbeatRequest, JoinRequest, LeaveRequest, PathRequest, PathResponse,
    ReleaseRequest, StatusRequest,
};
use polycast_types::{ObjectId, Rate};
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, watch};
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

/// How long the manager may take to answer what it answers at once.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a request goes on while the manager cannot be reached.
const PATIENCE: Duration = Duration::from_secs(3);
/// Pauses between two tries to join: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(3));
/// Without traffic for this long, the connection is probed; without an answer for as long, it is dead.
const KEEPALIVE: Duration = Duration::from_secs(5);

/// Who we are to the others.
#[derive(Clone, Debug)]
pub struct Identity {
    pub name: String,
    pub address: Ipv4Addr,
    pub control_port: u16,
}

/// Whether the manager knows us.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LinkState {
    /// It does.
    Joined,
    /// It cannot be reached, or has not let us in yet.
    Away(String),
}

/// The connection to the manager.
#[derive(Clone)]
pub struct ManagerLink(Arc<Inner>);

struct Inner {
    client: ManagerClient<Channel>,
    manager: String,
    me: Identity,
    incarnation: u64,
    next_request: AtomicU64,
    table: Mutex<Table>,
    /// Something in the table, or about our membership, wants attention.
    wake: Notify,
    state: watch::Sender<LinkState>,
}

/// What is lent to us, and what is to be given back.
#[derive(Default)]
struct Table {
    held: BTreeMap<u64, api::Lease>,
    /// Request ids by response ids.
    returning: BTreeMap<u64, u64>,
}

/// A path that is lent to us; given back when dropped.
pub struct Lease {
    link: ManagerLink,
    pub response_id: u64,
    pub fabric: String,
    pub receivers: Vec<(String, SocketAddr)>,
    pub path: Path,
}

/// An agent that the manager knows.
pub struct Peer {
    pub name: String,
    pub control_address: String,
    pub silent_ms: u64,
}

impl ManagerLink {
    /// A link to the manager at `HOST:PORT`; nothing is sent yet.
    pub fn new(manager: &str, me: Identity) -> Result<Self, AgentError> {
        let wrong = |error: tonic::transport::Error| super::ConfigError::Value {
            setting: "manager",
            reason: format!("'{manager}': {}", innermost(&error)),
        };
        let endpoint = Endpoint::from_shared(format!("http://{manager}"))
            .map_err(wrong)?
            .connect_timeout(ANSWER_TIMEOUT)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(KEEPALIVE)
            .keep_alive_timeout(KEEPALIVE)
            .keep_alive_while_idle(true);
        // Another run of this agent must not have the same number: the hasher's keys are random.
        let incarnation = RandomState::new().hash_one(std::process::id());
        Ok(ManagerLink(Arc::new(Inner {
            client: ManagerClient::new(endpoint.connect_lazy()),
            manager: manager.to_string(),
            me,
            incarnation,
            next_request: AtomicU64::new(1),
            table: Mutex::new(Table::default()),
            wake: Notify::new(),
            state: watch::Sender::new(LinkState::Away("not joined yet".into())),
        })))
    }

    pub fn manager(&self) -> &str {
        &self.0.manager
    }

    pub fn state(&self) -> LinkState {
        self.0.state.borrow().clone()
    }

    /// Keeps this agent a member until told to end; gives why if the manager does not want it.
    pub async fn run(&self, mut ending: watch::Receiver<bool>) -> Result<(), AgentError> {
        tokio::select! {
            refusal = self.stay_joined() => {
                Err(AgentError::TurnedDown { manager: self.0.manager.clone(), refusal })
            }
            _ = ending.wait_for(|ends| *ends) => Ok(()),
        }
    }

    /// Joins, again and again; ends only if that is no use.
    async fn stay_joined(&self) -> Refusal {
        let mut pause = PAUSES.0;
        loop {
            let left = match self.join().await {
                Ok(heartbeat) => {
                    tracing::info!(manager = %self.0.manager, "joined");
                    self.0.state.send_replace(LinkState::Joined);
                    pause = PAUSES.0;
                    self.beat(heartbeat).await
                }
                Err(error) => error,
            };
            match left {
                Fault::Refused(refusal)
                    if matches!(refusal.kind, Kind::Version | Kind::NameTaken | Kind::Invalid) =>
                {
                    return refusal;
                }
                // The manager has restarted: it is there, and only has to be told.
                Fault::Refused(refusal) if refusal.kind == Kind::NotJoined => continue,
                other => {
                    let reason = other.to_string();
                    tracing::warn!(manager = %self.0.manager, %reason, "the manager is away");
                    self.0.state.send_replace(LinkState::Away(reason));
                }
            }
            tokio::time::sleep(self.jittered(pause)).await;
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    /// Between half of the pause and all of it, so that not all agents come at the same moment.
    fn jittered(&self, pause: Duration) -> Duration {
        let random = RandomState::new().hash_one(self.0.incarnation) >> 40;
        pause / 2 + pause.mul_f64(random as f64 / (1u64 << 25) as f64)
    }

    async fn join(&self) -> Result<Duration, Fault> {
        let request = JoinRequest {
            protocol_version: PROTOCOL_VERSION,
            agent: Some(self.id()),
            address: self.0.me.address.to_string(),
            control_port: u32::from(self.0.me.control_port),
            leases: self.table().held.values().cloned().collect(),
        };
        let mut client = self.0.client.clone();
        let response = in_time(client.join(request)).await?;
        check_version(response.protocol_version).map_err(Fault::Refused)?;
        Ok(Duration::from_millis(response.heartbeat_ms.max(10)))
    }

    /// Sends heartbeats and gives paths back, until something goes wrong.
    async fn beat(&self, interval: Duration) -> Fault {
        let mut beats = tokio::time::interval(interval);
        beats.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut client = self.0.client.clone();
        loop {
            let outcome = tokio::select! {
                _ = beats.tick() => self.heartbeat(&mut client).await,
                () = self.0.wake.notified() => self.give_back(&mut client).await,
            };
            if let Err(fault) = outcome {
                return fault;
            }
        }
    }

    async fn heartbeat(&self, client: &mut ManagerClient<Channel>) -> Result<(), Fault> {
        let leases: Vec<u64> = self.table().held.keys().copied().collect();
        let request = HeartbeatRequest { agent: Some(self.id()), leases };
        for lost in in_time(client.heartbeat(request)).await?.lost_leases {
            // The transfer goes on: at worst it shares its group address, and packets tell whose they are.
            if self.table().held.remove(&lost).is_some() {
                tracing::warn!(response = lost, "the manager has lent a path in use to somebody else");
            }
        }
        self.give_back(client).await
    }

    async fn give_back(&self, client: &mut ManagerClient<Channel>) -> Result<(), Fault> {
        loop {
            let Some((response_id, request_id)) =
                self.table().returning.first_key_value().map(|(response, request)| (*response, *request))
            else {
                return Ok(());
            };
            let request = ReleaseRequest { agent: Some(self.id()), request_id, response_id };
            in_time(client.release(request)).await?;
            self.table().returning.remove(&response_id);
        }
    }

    /// Asks for a path for a whole object, and waits until there is one.
    ///
    /// The engine sends objects whole, so the request says that part of the size is no use.
    pub async fn request(
        &self,
        object: ObjectId,
        length: u64,
        receivers: &Receivers,
    ) -> Result<Lease, Refusal> {
        let (names, all) = match receivers {
            Receivers::All => (Vec::new(), true),
            Receivers::Named(names) => (names.clone(), false),
        };
        let request = PathRequest {
            agent: Some(self.id()),
            request_id: self.0.next_request.fetch_add(1, Ordering::Relaxed),
            app_id: object.app.0.to_vec(),
            data_id: object.data.0,
            data_size: length,
            remaining_size: length,
            receivers: names,
            all,
            divisible: false,
        };
        let response = self.ask(&request).await?;
        self.take(&request, response)
    }

    /// Asks until there is an answer; the manager knows by the request's number that it is the same one.
    async fn ask(&self, request: &PathRequest) -> Result<PathResponse, Refusal> {
        let mut client = self.0.client.clone();
        let mut failing_since: Option<Instant> = None;
        loop {
            let asked_at = Instant::now();
            let fault = match client.request(request.clone()).await {
                Ok(response) => return Ok(response.into_inner()),
                Err(status) => Fault::from(status),
            };
            match &fault {
                Fault::Refused(refusal)
                    if !matches!(refusal.kind, Kind::NotJoined | Kind::ManagerUnreachable) =>
                {
                    return Err(refusal.clone());
                }
                _ => {}
            }
            // It may have been reached for hours, with the request waiting there.
            if asked_at.elapsed() > PATIENCE {
                failing_since = None;
            }
            if failing_since.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                let message = format!("the manager at {} cannot be reached: {fault}", self.0.manager);
                return Err(Refusal::new(Kind::ManagerUnreachable, message));
            }
            tokio::time::sleep(PAUSES.0).await;
        }
    }

    /// Takes a granted path.
    fn take(&self, request: &PathRequest, response: PathResponse) -> Result<Lease, Refusal> {
        let names = response.receivers.iter().map(|receiver| receiver.name.clone()).collect();
        let held = api::Lease {
            request_id: request.request_id,
            response_id: response.response_id,
            receivers: names,
            accepted_size: response.accepted_size,
            fabric: response.fabric.clone(),
            channel: response.channel.clone(),
            app_id: request.app_id.clone(),
            data_id: request.data_id,
        };
        self.table().held.insert(response.response_id, held);
        let mut lease = Lease {
            link: self.clone(),
            response_id: response.response_id,
            fabric: response.fabric,
            receivers: Vec::new(),
            path: Path::Chain,
        };
        // From here on the path goes back even if the answer makes no sense.
        if response.accepted_size < request.remaining_size {
            let message = "the manager has granted part of what can only be sent whole";
            return Err(Refusal::new(Kind::Internal, message));
        }
        lease.path = path(response.channel)?;
        for receiver in response.receivers {
            let address = receiver.control_address.parse().map_err(|_| {
                Refusal::new(Kind::Internal, format!("'{}' is no address", receiver.control_address))
            })?;
            lease.receivers.push((receiver.name, address));
        }
        Ok(lease)
    }

    /// The agents that the manager knows; none if it cannot be reached now.
    pub async fn peers(&self) -> Vec<Peer> {
        let mut client = self.0.client.clone();
        let request = StatusRequest { protocol_version: PROTOCOL_VERSION };
        let Ok(status) = in_time(client.status(request)).await else { return Vec::new() };
        let peer = |agent: api::AgentStatus| Peer {
            name: agent.name,
            control_address: agent.control_address,
            silent_ms: agent.silent_ms,
        };
        status.agents.into_iter().map(peer).collect()
    }

    /// Gives everything back and says goodbye, if the manager can be reached.
    pub async fn leave(&self) {
        let mut client = self.0.client.clone();
        let farewell = async {
            self.give_back(&mut client).await?;
            in_time(client.leave(LeaveRequest { agent: Some(self.id()) })).await
        };
        if self.state() != LinkState::Joined {
            return;
        }
        if let Ok(Err(error)) = tokio::time::timeout(Duration::from_secs(1), farewell).await {
            tracing::debug!(%error, "the manager did not hear the farewell");
        }
    }

    fn id(&self) -> AgentId {
        AgentId { name: self.0.me.name.clone(), incarnation: self.0.incarnation }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // Nothing here panics between two changes that belong together.
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut table = self.link.table();
        if let Some(held) = table.held.remove(&self.response_id) {
            table.returning.insert(self.response_id, held.request_id);
        }
        drop(table);
        self.link.0.wake.notify_one();
    }
}

/// Why the manager did not do what it was asked.
#[derive(Debug, thiserror::Error)]
enum Fault {
    #[error("{0}")]
    Refused(Refusal),
    #[error("{0}")]
    Unreachable(String),
}

impl From<Status> for Fault {
    fn from(status: Status) -> Self {
        match Refusal::from_status(&status) {
            Some(refusal) => Fault::Refused(refusal),
            None if status.code() == tonic::Code::Unimplemented => Fault::Refused(Refusal::new(
                Kind::Version,
                format!(
                    "it is not a manager of this version (protocol {PROTOCOL_VERSION}): install the same on both"
                ),
            )),
            None => Fault::Unreachable(innermost(&status)),
        }
    }
}

async fn in_time<T>(call: impl Future<Output = Result<tonic::Response<T>, Status>>) -> Result<T, Fault> {
    match tokio::time::timeout(ANSWER_TIMEOUT, call).await {
        Ok(answer) => Ok(answer?.into_inner()),
        Err(_) => Err(Fault::Unreachable(format!("no answer within {} seconds", ANSWER_TIMEOUT.as_secs()))),
    }
}

fn path(channel: Option<api::Channel>) -> Result<Path, Refusal> {
    let wrong =
        |what: String| Refusal::new(Kind::Internal, format!("the manager's path makes no sense: {what}"));
    match channel.and_then(|channel| channel.channel) {
        Some(api::channel::Channel::Chain(_)) => Ok(Path::Chain),
        Some(api::channel::Channel::Multicast(multicast)) => {
            let address: Ipv4Addr =
                multicast.address.parse().map_err(|_| wrong(multicast.address.clone()))?;
            let port =
                u16::try_from(multicast.port).map_err(|_| wrong(format!("port {}", multicast.port)))?;
            let group = SocketAddrV4::new(address, port);
            Ok(Path::Multicast { group, rate: multicast.rate_bps.map(Rate) })
        }
        None => Err(wrong("it has no channel, or one that this agent cannot use".into())),
    }
}
