//! The agent's side of the manager's service (Republic Table II; Blast section IV-A): joining, heartbeats,
//! paths.
//!
//! The manager may die and come back at any time, or another one may take its place. Transfers that run do
//! not notice; the link joins again, with growing pauses, at whichever manager leads, names the leases that
//! are in use, and asks again for what it waits for. What is owed to the manager (releases, withdrawals) is
//! said until a heartbeat confirms it.

mod channel;
mod directory;
mod groups;
mod lease;
mod permits;
mod removals;
mod removing;
mod streaming;
mod streams;
mod table;

pub(super) use channel::addresses;
pub(super) use directory::{HeldObject, Unpublished, Wish as ObjectWish, object_ref, refusal};
pub(super) use groups::{GroupPath, GroupWanted};
pub(super) use lease::{FabricWish, Lease, Peer, Wanted};
pub(super) use streaming::{Listening, Published};
pub(super) use streams::{Audience, Other, Sends, Whereabouts};

use super::addresses::Place;
use super::error::AgentError;
use hyper_util::rt::TokioIo;
use polycast_api::PROTOCOL_VERSION;
use polycast_api::error::{Kind, Refusal, check_version, innermost};
use polycast_api::manager::agent_message::Message as Said;
use polycast_api::manager::manager_client::ManagerClient;
use polycast_api::manager::manager_message::Message as Told;
use polycast_api::manager::{self as api, AgentId, AgentMessage, ManagerMessage};
use polycast_api::settings::SettingsError;
use polycast_net::tls::{Expected, Remark, SealError, Security, Talk};
use polycast_protocol::joining::{Ended, Joining, PATIENCE_MAX};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use table::Table;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Status, Streaming};

/// Time that the manager may take to answer a request that it answers at once.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
/// Time that a request continues while no manager can be reached.
const PATIENCE: Duration = Duration::from_secs(3);
/// The same where other managers may take over: they have to notice that the leader is dead.
const PATIENCE_FOR_OTHERS: Duration = Duration::from_secs(15);
/// Another agent's session may be taken for alive so long after that agent has died, or this agent's own
/// before a restart.
const NAME_PATIENCE: Duration = Duration::from_secs(4);
/// Without traffic for this long, the connection is probed; without an answer for as long, it is dead.
const KEEPALIVE: Duration = Duration::from_secs(5);
/// Messages that may wait for the connection.
const MESSAGES_MAX: usize = 4_096;
/// The longest message of a manager, in bytes: twice what it takes from an agent, since it may repeat that.
const ANSWER_LEN_MAX: usize = 32 << 20;

/// Identity of this agent to the others.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub name: String,
    /// Its addresses, which change with the machine's address.
    pub place: watch::Sender<Place>,
}

/// State of the link to the manager.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum LinkState {
    /// It does.
    Joined,
    /// None can be reached, or has let us in yet.
    Away { since: Instant, reason: String },
}

/// The connection to the manager.
#[derive(Clone)]
pub(crate) struct ManagerLink(Arc<Inner>);

struct Inner {
    managers: Vec<(String, Endpoint)>,
    security: Option<Security>,
    /// Expected other end of a sealed connection: a manager, by its name.
    expected: Expected,
    me: Identity,
    incarnation: u64,
    next_request: AtomicU64,
    table: Mutex<Table>,
    state: watch::Sender<LinkState>,
    /// Gives the account of this host, for the join and for heartbeats.
    account: OnceLock<Account>,
}

/// Account of this host; none once its agent ends.
type Account = Box<dyn Fn() -> Option<api::NodeReport> + Send + Sync>;

/// The end of a try to join.
struct Tried {
    fault: Fault,
    ended: Ended,
    /// Time that the session lasted, if the agent was let in.
    lasted: Option<polycast_types::Duration>,
}

/// Time of the last message that the manager is away: at once, and then once a minute. More would hide other
/// messages.
#[derive(Default)]
struct Remarks {
    said_at: Option<Instant>,
}

impl Remarks {
    const EVERY: Duration = Duration::from_secs(60);

    /// Returns true if the message is due now.
    fn is_due(&mut self) -> bool {
        let is_due = self.said_at.is_none_or(|at| at.elapsed() >= Self::EVERY);
        if is_due {
            self.said_at = Some(Instant::now());
        }
        is_due
    }
}

impl ManagerLink {
    /// A link to the managers at `HOST:PORT,HOST:PORT`, sealed where there is `security`, and then to those
    /// of this name; nothing is sent yet.
    pub(crate) fn new(
        managers: &str,
        me: Identity,
        (security, name): (Option<Security>, &str),
    ) -> Result<Self, AgentError> {
        let endpoint = |manager: &str| {
            let wrong = |error: tonic::transport::Error| SettingsError::Value {
                setting: "manager",
                reason: format!("'{manager}': {}", innermost(&error)),
            };
            let endpoint = Endpoint::from_shared(format!("http://{manager}"))
                .map_err(wrong)?
                // The wait for a connection is that of the try, which is shorter.
                .connect_timeout(PATIENCE_MAX.into())
                .http2_keep_alive_interval(KEEPALIVE)
                .keep_alive_timeout(KEEPALIVE)
                .keep_alive_while_idle(true);
            Ok::<_, AgentError>((manager.to_string(), endpoint))
        };
        // Another run of this agent must not have the same number: the hasher's keys are random.
        let incarnation = RandomState::new().hash_one(std::process::id());
        let away = LinkState::Away { since: Instant::now(), reason: "not joined yet".into() };
        let mut table = Table::default();
        table.permits.wanted = security.is_some();
        Ok(ManagerLink(Arc::new(Inner {
            managers: managers
                .split(',')
                .map(|manager| endpoint(manager.trim()))
                .collect::<Result<_, _>>()?,
            security,
            expected: Expected::Manager(name.to_string()),
            me,
            incarnation,
            next_request: AtomicU64::new(1),
            table: Mutex::new(table),
            state: watch::Sender::new(away),
            account: OnceLock::new(),
        })))
    }

    /// Gives what heartbeats say of this host.
    pub(super) fn account_by(&self, account: impl Fn() -> Option<api::NodeReport> + Send + Sync + 'static) {
        // A second one is that of the same agent.
        let _ = self.0.account.set(Box::new(account));
    }

    /// The manager that we are joined to, or the one that is tried.
    pub(crate) fn manager(&self) -> String {
        let at = self.table().manager;
        self.0.managers[at % self.0.managers.len()].0.clone()
    }

    /// Returns the addresses of this agent.
    pub(crate) fn place(&self) -> Place {
        *self.0.me.place.borrow()
    }

    /// This agent is somewhere else: its manager hears of it in a new session.
    pub(crate) fn move_to(&self, place: Place) {
        self.0.me.place.send_replace(place);
    }

    pub(crate) fn state(&self) -> LinkState {
        self.0.state.borrow().clone()
    }

    fn patience(&self) -> Duration {
        if self.0.managers.len() > 1 { PATIENCE_FOR_OTHERS } else { PATIENCE }
    }

    /// Keeps this agent a member until told to end; gives why if the manager refuses it.
    pub(crate) async fn run(self, mut ending: watch::Receiver<bool>) -> Result<(), AgentError> {
        tokio::select! {
            wrong = self.stay_joined() => Err(wrong),
            _ = ending.wait_for(|ends| *ends) => Ok(()),
        }
    }

    /// Joins, again and again; ends only if that is no use.
    async fn stay_joined(&self) -> AgentError {
        let has_others = self.0.managers.len() > 1;
        let mut joining = Joining::new(has_others, RandomState::new().hash_one(self.0.incarnation));
        let (begun, mut was_joined) = (Instant::now(), false);
        let mut remarks = Remarks::default();
        let mut place = self.0.me.place.subscribe();
        loop {
            let Tried { fault, ended, lasted } = self.try_once(joining.patience(), &mut place).await;
            was_joined |= lasted.is_some();
            let is_settled = lasted.is_some_and(|lasted| joining.left(lasted));
            if is_settled {
                remarks = Remarks::default();
            }
            self.table().hang_up();
            if self.table().leaving {
                self.away("the agent is leaving");
                std::future::pending::<()>().await;
            }
            match fault {
                Fault::Refused(refusal) if matches!(refusal.kind, Kind::Version | Kind::Invalid) => {
                    return AgentError::TurnedDown { manager: self.manager(), refusal };
                }
                // Once a key was right, it is the manager or a stranger that has another one: it may change
                // back.
                Fault::Seal(error) if !was_joined && begun.elapsed() >= NAME_PATIENCE => {
                    return AgentError::Seal { manager: self.manager(), error };
                }
                // A name that was ours once stays ours: an agent that has taken it may be a mistake, or a
                // stranger.
                Fault::Refused(refusal)
                    if refusal.kind == Kind::NameTaken && !was_joined && begun.elapsed() >= NAME_PATIENCE =>
                {
                    return AgentError::TurnedDown { manager: self.manager(), refusal };
                }
                Fault::Refused(refusal) if refusal.kind == Kind::NameTaken => {
                    if remarks.is_due() {
                        tracing::warn!(manager = %self.manager(), %refusal, "not let in: tries again");
                    }
                    self.away(&refusal.message);
                }
                Fault::Moved => continue,
                // The manager has forgotten us: it is there, and only has to be told.
                Fault::Refused(refusal) if refusal.kind == Kind::NotJoined => {
                    if is_settled {
                        continue;
                    }
                }
                Fault::Refused(refusal) if refusal.kind == Kind::NotLeader => {
                    self.away(&refusal.message);
                    self.turn_to(refusal.leader.as_deref());
                }
                other => {
                    let reason = other.to_string();
                    if remarks.is_due() {
                        tracing::warn!(manager = %self.manager(), %reason, "the manager is away");
                    }
                    self.away(&reason);
                    self.table().manager += 1;
                }
            }
            tokio::time::sleep(joining.next(ended).into()).await;
        }
    }

    /// Tries to join, and stays in the session while it lasts.
    async fn try_once(
        &self,
        patience: polycast_types::Duration,
        place: &mut watch::Receiver<Place>,
    ) -> Tried {
        let at = *place.borrow_and_update();
        match self.join(at, patience.into()).await {
            Ok((session, heartbeat, remark)) => {
                let joined_at = Instant::now();
                let fault = self.talk(session, heartbeat, place).await;
                // It may be the connection alone: whether the manager has time for us is not known.
                let fault = self.explained(fault, remark.take());
                Tried { fault, ended: Ended::Away, lasted: Some(joined_at.elapsed().into()) }
            }
            Err(fault @ Fault::Unanswered(_)) => Tried { fault, ended: Ended::Slow, lasted: None },
            Err(fault) => Tried { fault, ended: Ended::Away, lasted: None },
        }
    }

    /// Notes that no manager knows us, and since when.
    fn away(&self, reason: &str) {
        self.0.state.send_modify(|state| {
            let since = match state {
                LinkState::Away { since, .. } => *since,
                LinkState::Joined => Instant::now(),
            };
            *state = LinkState::Away { since, reason: reason.to_string() };
        });
    }

    /// The next manager to try: the leader that is named, if it is one of ours; otherwise the one after this.
    fn turn_to(&self, leader: Option<&str>) {
        let named =
            leader.and_then(|leader| self.0.managers.iter().position(|(manager, _)| manager == leader));
        let mut table = self.table();
        table.manager = named.unwrap_or(table.manager + 1);
    }

    /// Connects, sealed where this agent has a key; what is wrong with the seal is remarked.
    async fn connect(&self, remark: &Remark, patience: Duration) -> Result<Channel, Fault> {
        let at = self.table().manager % self.0.managers.len();
        let (manager, endpoint) = self.0.managers[at].clone();
        let (ends, remark) = ((self.0.security.clone(), self.0.expected.clone()), remark.clone());
        let connector = tower::service_fn(move |_| {
            let (manager, (security, expected), remark) = (manager.clone(), ends.clone(), remark.clone());
            async move { Talk::connect(&manager, security.as_ref(), &expected, &remark).await.map(TokioIo::new) }
        });
        let connecting = tokio::time::timeout(patience, endpoint.connect_with_connector(connector));
        match connecting.await {
            Ok(channel) => channel.map_err(|error| Fault::unreachable(&error)),
            Err(_) => Err(Fault::Unanswered(patience)),
        }
    }

    /// Begins a session; gives what the manager says in it, how often to send a heartbeat, and where it is
    /// remarked what becomes wrong with the seal.
    async fn join(
        &self,
        at: Place,
        patience: Duration,
    ) -> Result<(Streaming<ManagerMessage>, Duration, Remark), Fault> {
        let remark = Remark::default();
        // A connection that ends because its seal is wrong looks like any other that ends, except for the
        // remark.
        let joined = self.join_over(&remark, at, patience).await;
        let (session, heartbeat) = joined.map_err(|fault| remark.take().map_or(fault, Fault::Seal))?;
        Ok((session, heartbeat, remark))
    }

    /// Returns the reason why a session has ended, in which a sealing error may have been noted.
    fn explained(&self, fault: Fault, remarked: Option<SealError>) -> Fault {
        if remarked == Some(SealError::Revoked) {
            // What has been signed by such a manager says nothing any more.
            self.table().permits.forget();
        }
        match (fault, remarked) {
            (Fault::Unreachable(_) | Fault::Unanswered(_), Some(error)) => Fault::Seal(error),
            (fault, _) => fault,
        }
    }

    async fn join_over(
        &self,
        remark: &Remark,
        at: Place,
        patience: Duration,
    ) -> Result<(Streaming<ManagerMessage>, Duration), Fault> {
        let client = ManagerClient::new(self.connect(remark, patience).await?);
        let mut client = client.max_decoding_message_size(ANSWER_LEN_MAX);
        let (outbox, messages) = mpsc::channel(MESSAGES_MAX);
        let leases = self.table().leases();
        let join = api::Join {
            protocol_version: PROTOCOL_VERSION,
            agent: Some(AgentId { name: self.0.me.name.clone(), incarnation: self.0.incarnation }),
            address: at.interface.to_string(),
            control_port: u32::from(at.control.port()),
            leases,
            node: self.0.account.get().and_then(|account| account()),
        };
        // It is empty: there is room.
        let _ = outbox.try_send(AgentMessage { message: Some(Said::Join(join)) });
        let mut session = within(patience, client.session(ReceiverStream::new(messages))).await?;
        let first = within(patience, async { Ok(tonic::Response::new(session.message().await?)) }).await?;
        let first = first.and_then(|message| message.message);
        let Some(Told::Joined(joined)) = first else {
            return Err(Fault::Refused(Refusal::new(Kind::Version, "it is not a manager of this version")));
        };
        check_version(joined.protocol_version).map_err(Fault::Refused)?;
        tracing::info!(manager = %self.manager(), "joined");
        let mut table = self.table();
        table.permits.learn(&joined);
        table.connect(outbox, client);
        drop(table);
        self.0.state.send_replace(LinkState::Joined);
        Ok((session, Duration::from_millis(joined.heartbeat_ms.max(10))))
    }

    /// Sends heartbeats and takes in what the manager says, until something goes wrong.
    async fn talk(
        &self,
        mut session: Streaming<ManagerMessage>,
        interval: Duration,
        place: &mut watch::Receiver<Place>,
    ) -> Fault {
        let mut beats = tokio::time::interval(interval);
        beats.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = beats.tick() => {
                    let node = self.0.account.get().and_then(|account| account());
                    if !self.table().beat(node) {
                        return Fault::Unreachable("it does not read what it is told".into());
                    }
                    if self.table().unanswered_for() > ANSWER_TIMEOUT {
                        return Fault::unanswered();
                    }
                }
                // The sender lives as long as this link.
                _ = place.changed() => return Fault::Moved,
                message = session.message() => match message {
                    Ok(Some(ManagerMessage { message: Some(message) })) => self.table().take_in(message),
                    // A message that a later version has added says nothing to us.
                    Ok(Some(ManagerMessage { message: None })) => {}
                    Ok(None) => return Fault::Unreachable("it has ended the session".into()),
                    Err(status) => return Fault::from(status),
                },
            }
        }
    }

    /// The agents that the manager knows, and those that have not come back; none if it cannot be reached
    /// now.
    pub(crate) async fn peers(&self) -> (Vec<Peer>, Vec<Peer>) {
        let Some(mut client) = self.table().client.clone() else { return Default::default() };
        let request = api::StatusRequest { protocol_version: PROTOCOL_VERSION };
        let Ok(status) = in_time(client.status(request)).await else { return Default::default() };
        let peer = |agent: api::AgentStatus| Peer {
            name: agent.name,
            control_address: agent.control_address,
            silent_ms: agent.silent_ms,
            unreachable_by: agent.unreachable_by,
            unreachable_ms: agent.unreachable_ms,
        };
        (status.agents.into_iter().map(peer).collect(), status.lost.into_iter().map(peer).collect())
    }

    fn client(&self) -> Result<ManagerClient<Channel>, Refusal> {
        let client = self.table().client.clone();
        client.ok_or_else(|| {
            let reason = match self.state() {
                LinkState::Away { reason, .. } => reason,
                LinkState::Joined => "not joined".into(),
            };
            let message = format!("the manager at {} cannot be reached: {reason}", self.manager());
            Refusal::new(Kind::ManagerUnreachable, message)
        })
    }

    /// Returns the refusal that a caller gets for a failed call.
    fn refused(&self, fault: Fault) -> Refusal {
        match fault {
            Fault::Refused(refusal) => refusal,
            other => {
                let message = format!("the manager at {} cannot be reached: {other}", self.manager());
                Refusal::new(Kind::ManagerUnreachable, message)
            }
        }
    }

    /// Requests the manager's status.
    pub(crate) async fn manager_status(&self) -> Result<api::StatusResponse, Refusal> {
        let request = api::StatusRequest { protocol_version: PROTOCOL_VERSION };
        let mut client = self.client()?;
        in_time(client.status(request)).await.map_err(|fault| self.refused(fault))
    }

    /// Has the manager take a part of the network out of use, or back.
    pub(crate) async fn drain(&self, part: String, back: bool) -> Result<api::DrainResponse, Refusal> {
        let request = api::DrainRequest { protocol_version: PROTOCOL_VERSION, part, back };
        let mut client = self.client()?;
        in_time(client.drain(request)).await.map_err(|fault| self.refused(fault))
    }

    /// The streams that the manager knows.
    pub(crate) async fn streams(&self) -> Result<Vec<api::StreamStatus>, Refusal> {
        let unreachable = |why: String| {
            let message = format!("the manager at {} cannot be reached: {why}", self.manager());
            Refusal::new(Kind::ManagerUnreachable, message)
        };
        let mut client = self.client()?;
        let request = api::StatusRequest { protocol_version: PROTOCOL_VERSION };
        let status = in_time(client.status(request)).await.map_err(|fault| unreachable(fault.to_string()))?;
        Ok(status.streams)
    }

    /// Gives everything back and says goodbye, if the manager can be reached, and whether this agent keeps
    /// what it has received; [`ManagerLink::run`] goes on meanwhile.
    pub(crate) async fn leave(&self, keeps: bool) {
        let mut state = self.0.state.subscribe();
        {
            let mut table = self.table();
            table.leaving = true;
            if !table.say(Said::Leave(api::Leave { keeps })) {
                return;
            }
        }
        let gone = state.wait_for(|state| *state != LinkState::Joined);
        if tokio::time::timeout(Duration::from_secs(1), gone).await.is_err() {
            tracing::debug!("the manager did not hear the farewell");
        }
    }

    fn fresh_request(&self) -> u64 {
        self.0.next_request.fetch_add(1, Ordering::Relaxed)
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // Nothing here panics between two changes that belong together.
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reason why the manager did not carry out a request.
#[derive(Debug, thiserror::Error)]
enum Fault {
    #[error("{0}")]
    Refused(Refusal),
    #[error("{0}")]
    Unreachable(String),
    #[error("no answer within {} seconds", .0.as_secs())]
    Unanswered(Duration),
    #[error("{0}")]
    Seal(SealError),
    /// This agent has another address now.
    #[error("this agent has moved")]
    Moved,
}

impl Fault {
    fn unanswered() -> Self {
        Fault::Unanswered(ANSWER_TIMEOUT)
    }

    /// Explains why it cannot be reached, not in the words of a library.
    fn unreachable(error: &(dyn std::error::Error + 'static)) -> Self {
        match innermost(error) {
            why if why == "deadline has elapsed" => Self::unanswered(),
            why => Fault::Unreachable(why),
        }
    }
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
            None => Fault::unreachable(&status),
        }
    }
}

async fn in_time<T>(call: impl Future<Output = Result<tonic::Response<T>, Status>>) -> Result<T, Fault> {
    within(ANSWER_TIMEOUT, call).await
}

async fn within<T>(
    patience: Duration,
    call: impl Future<Output = Result<tonic::Response<T>, Status>>,
) -> Result<T, Fault> {
    match tokio::time::timeout(patience, call).await {
        Ok(answer) => Ok(answer?.into_inner()),
        Err(_) => Err(Fault::Unanswered(patience)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn link(managers: &str) -> ManagerLink {
        let place = Place { interface: Ipv4Addr::LOCALHOST.into(), control: (Ipv4Addr::LOCALHOST, 1).into() };
        let me = Identity { name: "a".into(), place: watch::Sender::new(place) };
        ManagerLink::new(managers, me, (None, "manager")).unwrap()
    }

    /// The end of one address can be another address: only the whole one names the leader.
    #[tokio::test]
    async fn the_leader_is_the_manager_of_exactly_this_address() {
        let link = link("1.0.0.1:7000, 11.0.0.1:7000, 12.0.0.1:7000");
        link.turn_to(Some("11.0.0.1:7000"));
        assert_eq!(link.manager(), "11.0.0.1:7000");
        link.turn_to(Some("1.0.0.1:7000"));
        assert_eq!(link.manager(), "1.0.0.1:7000");
        // One that our settings do not name is not guessed at: the others are tried in turn.
        link.turn_to(Some("2.0.0.1:7000"));
        assert_eq!(link.manager(), "11.0.0.1:7000");
        link.turn_to(None);
        assert_eq!(link.manager(), "12.0.0.1:7000");
    }

    /// Permits of a manager that is only away go on; those of one whose certificate has been revoked do not.
    #[tokio::test]
    async fn what_a_revoked_manager_has_signed_says_nothing() {
        let link = link("1.0.0.1:7000");
        let joined = api::Joined { permit_keys: vec![vec![7; 32]], ..api::Joined::default() };
        link.table().permits.learn(&joined);
        let away = || Fault::Unreachable("it has ended the session".into());
        assert!(matches!(link.explained(away(), None), Fault::Unreachable(_)));
        let other = Some(SealError::Certificate("it is damaged".into()));
        assert!(matches!(link.explained(away(), other), Fault::Seal(SealError::Certificate(_))));
        assert!(link.authority().is_some());
        assert!(matches!(link.explained(away(), Some(SealError::Revoked)), Fault::Seal(SealError::Revoked)));
        assert!(link.authority().is_none());
    }
}
