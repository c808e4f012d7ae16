//! The gRPC service: reads messages, hands them to the core, writes messages.

use crate::authority::{Authority, RENEW_AFTER};
use crate::config::ManagerConfig;
use crate::convert;
use crate::core::{
    Around, Core, Drainable, DrainedHost, ExternalSnapshot, LeaseSnapshot, NetworkSnapshot, PendingSnapshot,
    Seat, Snapshot,
};
use crate::door::Guest;
use crate::guard::{Guard, Refused};
use crate::leader::Role;
use crate::leader::standbys::Standing;
use crate::store::{EtcdServer, Present};
use polycast_api::PROTOCOL_VERSION;
use polycast_api::error::{Kind, Refusal, check_version};
use polycast_api::manager::manager_server::Manager;
use polycast_api::manager::{
    self as api, AgentMessage, AgentStatus, LeaseStatus, ManagerMessage, PendingStatus, StatusRequest,
    StatusResponse, StreamStatus,
};
use polycast_net::tls::{Claim, NoToken, PeerNames, SealError, Security, Shown, ShownToken};
use polycast_planning::{PartNameError, PlanId};
use polycast_protocol::directory::OnlyThere;
use polycast_protocol::leases::Suspect;
use polycast_protocol::stream::StreamView;
use polycast_types::{Duration, Printable};
use serde_json::json;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

/// Messages that may wait for a session's connection. An agent that does not read its answers loses its
/// session.
const MESSAGES_MAX: usize = 4_096;

/// So many objects, or topics, are named that only one drained host has.
const ONLY_THERE_MAX: usize = 1_024;

/// Interval at which the service checks whether an agent's certificate has been revoked.
const REVOKED_LOOK: std::time::Duration = std::time::Duration::from_secs(1);

/// The service over the core.
#[derive(Debug)]
pub(crate) struct Service {
    role: watch::Receiver<Role>,
    around: Around,
    joined: api::Joined,
    /// Address where agents reach this manager.
    address: String,
    /// Name of managers in certificates.
    manager_name: String,
}

impl Service {
    pub(crate) fn new(role: watch::Receiver<Role>, config: &ManagerConfig, around: Around) -> Self {
        let joined = api::Joined {
            protocol_version: PROTOCOL_VERSION,
            heartbeat_ms: config.heartbeat_ms,
            lease_ms: config.lease_ms,
            reconnect_ms: config.reconnect_ms,
            ..Default::default()
        };
        let address = config.etcd.advertise.clone().unwrap_or_else(|| config.listen.to_string());
        Service { role, around, joined, address, manager_name: config.manager_name.clone() }
    }

    /// Returns the answer to an agent that is let in.
    fn joined(&self) -> api::Joined {
        let key = self.around.guard().signer().map(|key| key.public().to_vec());
        let now_unix_s = self.around.wall_ns() / 1_000_000_000;
        api::Joined { permit_keys: key.into_iter().collect(), now_unix_s, ..self.joined.clone() }
    }

    /// Checks that an agent may join by this name: it is one in its certificate, which is none of a manager,
    /// as which it could take the place of this one.
    fn check_name(&self, guest: &Guest, name: &str) -> Result<(), String> {
        let names = guest.names();
        names.check(name).map_err(|error| error.to_string())?;
        match names {
            PeerNames::Only(own) if own.contains(&self.manager_name) => Err(format!(
                "the certificate of '{}' is a manager's too, since it is for '{}': give the agent one of its own",
                Printable(name),
                self.manager_name
            )),
            _ => Ok(()),
        }
    }

    /// Checks that the guest may still ask: connections outlive certificates that are revoked.
    fn known_still(&self, guest: &Guest) -> Result<(), Refusal> {
        let (Some(shown), Some(security)) = (guest.shown(), self.around.security()) else { return Ok(()) };
        let revoked = |error: SealError| Refusal::new(Kind::NotAllowed, error.to_string());
        security.check_again(&shown).map_err(revoked)
    }

    /// The core, where this manager leads.
    fn core(&self) -> Result<Arc<Core>, Refusal> {
        match &*self.role.borrow() {
            Role::Leader(core) => Ok(Arc::clone(core)),
            Role::Follower(leader) => Err(Refusal::not_leader(leader.as_deref())),
            Role::Leaderless(why) => Err(Refusal::no_leader(why)),
        }
    }
}

#[tonic::async_trait]
impl Manager for Service {
    type SessionStream = ReceiverStream<Result<ManagerMessage, Status>>;

    async fn session(
        &self,
        request: Request<Streaming<AgentMessage>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let guest = request.extensions().get::<Guest>().cloned();
        let from = guest.as_ref().and_then(|guest| guest.from);
        let from = from.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |from| from.ip().to_canonical());
        let mut messages = request.into_inner();
        let first = messages.message().await?.and_then(|message| message.message);
        let Some(api::agent_message::Message::Join(join)) = first else {
            return Err(Refusal::new(Kind::Invalid, "a session begins with a Join").into());
        };
        check_version(join.protocol_version)?;
        let node = join.node.clone();
        let join = convert::join(join, from)?;
        if let Some(guest) = &guest {
            self.check_name(guest, &join.agent.name).map_err(|reason| {
                self.around.guard().refuse(
                    Refused::Join,
                    json!({ "agent": join.agent.name, "from": from, "reason": reason }),
                );
                Refusal::new(Kind::Invalid, reason)
            })?;
        }
        let member = Member {
            name: join.agent.name.clone(),
            shown: guest.and_then(|guest| guest.shown()),
            changes: self.around.security().map_or(0, Security::changes),
            around: self.around.clone(),
            core: self.core()?,
        };
        member.check()?;
        // One that comes with a certificate that holds has got another one, if one was revoked.
        self.around.guard().revoke(&member.name, false);
        let (outbox, stream) = mpsc::channel(MESSAGES_MAX);
        let joined = api::manager_message::Message::Joined(self.joined());
        let ours = outbox.downgrade();
        let seat = member.core.join(join, outbox, joined)?;
        node.into_iter().for_each(|node| seat.note(node));
        tokio::spawn(listen(seat, member, messages, ours));
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    async fn drain(
        &self,
        request: Request<api::DrainRequest>,
    ) -> Result<Response<api::DrainResponse>, Status> {
        if let Some(guest) = request.extensions().get::<Guest>() {
            self.known_still(guest)?;
        }
        let api::DrainRequest { protocol_version, part, back } = request.into_inner();
        check_version(protocol_version)?;
        let (what, no_part) = match part.parse() {
            Ok(part) => (Drainable::Part(part), None),
            Err(error) => (Drainable::Host(part.clone()), Some::<PartNameError>(error)),
        };
        let done = self.core()?.drain(&what, !back).await.map_err(|refusal| match &no_part {
            // What was meant is not known.
            Some(error) if refusal.kind == Kind::ReceiverUnknown => {
                Refusal::new(refusal.kind, format!("{}, and {error}", refusal.message))
            }
            _ => refusal,
        })?;
        let count = |paths: usize| u32::try_from(paths).unwrap_or(u32::MAX);
        let part = match what {
            Drainable::Part(part) => part.to_string(),
            Drainable::Host(name) => name,
        };
        Ok(Response::new(api::DrainResponse {
            part,
            changed: done.is_new,
            moved: count(done.moved),
            ended: count(done.ended),
        }))
    }

    async fn status(&self, request: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        if let Some(guest) = request.extensions().get::<Guest>() {
            self.known_still(guest)?;
        }
        check_version(request.into_inner().protocol_version)?;
        let standing = self.around.lookout().standing();
        Ok(Response::new(status_response(self.core()?.snapshot(), self.address.clone(), standing)))
    }
}

/// The manager's state in the service's words; it is reached at `leader`.
pub(crate) fn status_response(snapshot: Snapshot, leader: String, standing: Standing) -> StatusResponse {
    let (now, unreachable, mut nodes) = (snapshot.now, snapshot.unreachable, snapshot.nodes);
    StatusResponse {
        protocol_version: PROTOCOL_VERSION,
        scheduler: snapshot.scheduler.to_string(),
        external_scheduler: snapshot.external.map(external_scheduler),
        fabrics: snapshot.fabrics.into_iter().map(String::from).collect(),
        agents: snapshot
            .agents
            .into_iter()
            .map(|(name, member)| {
                let unreachable = unreachable.get(&name);
                AgentStatus {
                    control_address: convert::address(member.address),
                    silent_ms: now.since(member.heard_at).as_millis(),
                    unreachable_by: unreachable.map_or_else(String::new, |said| said.by.clone()),
                    unreachable_ms: unreachable.map_or(0, |said| now.since(said.said_at).as_millis()),
                    node: nodes.remove(&name),
                    name,
                }
            })
            .collect(),
        leases: snapshot.leases.into_iter().map(lease_status).collect(),
        pending: snapshot.pending.into_iter().map(pending_status).collect(),
        uptime_seconds: snapshot.uptime.as_secs(),
        streams: snapshot.streams.into_iter().map(stream_status).collect(),
        leader,
        devices: devices(&snapshot.network),
        circuits: circuits(&snapshot.network),
        splitters: splitters(&snapshot.network),
        dark: snapshot.network.dark,
        drained_hosts: snapshot.drained.into_iter().map(drained_host).collect(),
        drained: snapshot.network.drained.iter().map(ToString::to_string).collect(),
        suspected: snapshot.network.suspected.into_iter().map(suspect_status).collect(),
        standbys: standing.standbys.into_iter().map(standby).collect(),
        etcd: standing.servers.into_iter().map(etcd_server).collect(),
        lost: snapshot
            .lost
            .into_iter()
            .map(|(name, heard_at)| AgentStatus {
                name,
                silent_ms: now.since(heard_at).as_millis(),
                ..AgentStatus::default()
            })
            .collect(),
    }
}

fn standby(shown: Present) -> api::Standby {
    api::Standby { address: shown.address, program_version: shown.version }
}

fn etcd_server(server: EtcdServer) -> api::EtcdServer {
    let (version, trouble) = match server.answer {
        Ok(version) => (version, String::new()),
        Err(error) => (String::new(), error),
    };
    api::EtcdServer { address: server.address, version, trouble }
}

fn external_scheduler(external: ExternalSnapshot) -> api::ExternalScheduler {
    let ExternalSnapshot { address, asked, trouble } = external;
    api::ExternalScheduler {
        address,
        trouble: trouble.unwrap_or_default(),
        followed: asked.followed,
        late: asked.late,
        wrong: asked.wrong,
        unreached: asked.unreached,
    }
}

fn devices(network: &NetworkSnapshot) -> Vec<api::DeviceStatus> {
    let device = |(name, state, error): &(String, &str, String)| api::DeviceStatus {
        name: name.clone(),
        state: (*state).to_string(),
        error: error.clone(),
    };
    network.devices.iter().map(device).collect()
}

fn circuits(network: &NetworkSnapshot) -> Vec<api::CircuitStatus> {
    let circuit = |&(from, to, plan): &(u32, u32, Option<PlanId>)| api::CircuitStatus {
        from,
        to,
        response_id: plan.map(|plan| plan.0),
    };
    network.circuits.iter().map(circuit).collect()
}

fn splitters(network: &NetworkSnapshot) -> Vec<api::SplitterStatus> {
    let splitter = |&(number, state, plan): &(u32, &str, Option<PlanId>)| api::SplitterStatus {
        number,
        state: state.to_string(),
        response_id: plan.map(|plan| plan.0),
    };
    network.splitters.iter().map(splitter).collect()
}

fn drained_host(host: DrainedHost) -> api::DrainedHost {
    let OnlyThere { objects, topics } = host.only_there;
    api::DrainedHost {
        name: host.name,
        transfers: u32::try_from(host.transfers).unwrap_or(u32::MAX),
        objects_count: objects.len() as u64,
        objects: objects.into_iter().take(ONLY_THERE_MAX).map(convert::object_ref).collect(),
        topics: topics.into_iter().take(ONLY_THERE_MAX).collect(),
    }
}

fn suspect_status((suspect, rests): (Suspect, Duration)) -> api::SuspectStatus {
    api::SuspectStatus {
        part: crate::core::part_words(&suspect.what),
        why: suspect.why,
        times: suspect.times,
        rests_ms: rests.as_millis(),
    }
}

/// Turns away those who have shown no certificate, before anything of what they ask is read: they may only
/// ask for one.
pub(crate) fn known(request: Request<()>) -> Result<Request<()>, Status> {
    match request.extensions().get::<Guest>() {
        Some(guest) if guest.is_stranger() => {
            let message = "the manager asks for a certificate: start the agent with --token, or with --tls-ca, --tls-cert and --tls-key";
            Err(Refusal::new(Kind::Invalid, message).into())
        }
        _ => Ok(request),
    }
}

/// The service of the manager's own authority.
#[derive(Debug)]
pub(crate) struct Enrolment(pub Arc<Authority>, pub Arc<Guard>);

#[tonic::async_trait]
impl api::authority_server::Authority for Enrolment {
    async fn enroll(
        &self,
        request: Request<api::EnrollRequest>,
    ) -> Result<Response<api::EnrollResponse>, Status> {
        let guest = request.extensions().get::<Guest>().cloned();
        let api::EnrollRequest { protocol_version, name, request, token_id, proof } = request.into_inner();
        check_version(protocol_version)?;
        let invalid = |reason: String| Refusal::new(Kind::Invalid, reason);
        // Before anything is written: any host can say any name.
        convert::check_name(&name)?;
        let from = guest.as_ref().and_then(|guest| guest.from).map(|from| from.ip().to_canonical());
        let token_id = Some(token_id).filter(|id| !id.is_empty());
        let certificate = match &token_id {
            None => {
                let names = guest.map_or(PeerNames::Nobody, |guest| guest.names());
                names.check(&name).map_err(|error| invalid(error.to_string()))?;
                self.0.certify(&name, &request)
            }
            Some(id) => {
                let shown =
                    ShownToken::new(id, &proof).map_err(|error: NoToken| invalid(error.to_string()))?;
                // Over a connection that is not sealed nothing can be shown.
                let binding =
                    guest.and_then(|guest| guest.binding()).ok_or_else(|| invalid(NoToken.to_string()))?;
                let claim = Claim { binding: &binding, name: &name, request: &request };
                self.0.certify_for_token(&shown, &claim)
            }
        };
        let certificate = certificate.map_err(|error| {
            self.1.refuse(
                Refused::Certificate,
                json!({ "agent": name, "from": from, "token": token_id, "reason": error.to_string() }),
            );
            invalid(error.to_string())
        })?;
        tracing::info!(name = %Printable(&name), "gives a certificate");
        self.1.note("certificate", || json!({ "agent": name, "from": from, "token": token_id }));
        Ok(Response::new(api::EnrollResponse {
            protocol_version: PROTOCOL_VERSION,
            certificate,
            authority: self.0.pem().to_string(),
            renew_after_s: RENEW_AFTER.as_secs(),
        }))
    }
}

/// One that has joined, and what it has shown for that.
struct Member {
    name: String,
    shown: Option<Shown>,
    /// Number of changes of the revocation lists before its own certificate was last checked against them.
    changes: u64,
    around: Around,
    core: Arc<Core>,
}

impl Member {
    /// Checks that its certificate is still valid.
    fn check(&self) -> Result<(), Refusal> {
        let (Some(shown), Some(security)) = (&self.shown, self.around.security()) else { return Ok(()) };
        let Err(error) = security.check_again(shown) else { return Ok(()) };
        Err(Refusal::new(Kind::NotAllowed, format!("the agent '{}' is let in no more: {error}", self.name)))
    }

    /// Waits until it is to be let in no more: then it is taken out of what runs, too.
    async fn revoked(&self) -> Refusal {
        let Some(security) = self.around.security().filter(|_| self.shown.is_some()) else {
            return std::future::pending().await;
        };
        let mut changes = self.changes;
        loop {
            tokio::time::sleep(REVOKED_LOOK).await;
            let now = security.changes();
            if std::mem::replace(&mut changes, now) == now {
                continue;
            }
            if let Err(refusal) = self.check() {
                tracing::warn!(agent = %Printable(&self.name), %refusal, "its certificate is revoked");
                let guard = self.around.guard();
                guard.note("revoked", || json!({ "agent": self.name, "reason": refusal.message }));
                guard.revoke(&self.name, true);
                self.core.enforce();
                return refusal;
            }
        }
    }
}

/// Hands an agent's messages to the core until the session ends. A connection that breaks is an end too.
async fn listen(
    seat: Seat,
    member: Member,
    mut messages: Streaming<AgentMessage>,
    outbox: mpsc::WeakSender<Result<ManagerMessage, Status>>,
) {
    let mut stopped = std::pin::pin!(seat.stopped());
    let mut revoked = std::pin::pin!(member.revoked());
    loop {
        let next = tokio::select! {
            next = messages.message() => next,
            () = &mut stopped => return,
            refusal = &mut revoked => {
                if let Some(outbox) = outbox.upgrade() {
                    let _ = outbox.try_send(Err(refusal.into()));
                }
                return;
            }
        };
        let Ok(Some(AgentMessage { message })) = next else { return };
        // A message that a later version has added says nothing to us.
        let Some(message) = message else { continue };
        if let Err(refusal) = seat.handle(message) {
            if let Some(outbox) = outbox.upgrade() {
                // An agent that reads nothing does not read this either.
                let _ = outbox.try_send(Err(refusal.into()));
            }
            return;
        }
    }
}

fn lease_status(lease: LeaseSnapshot) -> LeaseStatus {
    LeaseStatus {
        response_id: lease.grant.plan_id.0,
        source: lease.source,
        receivers: lease.grant.receivers.into_iter().map(|(name, _)| name).collect(),
        app_id: lease.object.app.0.to_vec(),
        data_id: lease.object.data.0,
        accepted_size: lease.grant.accepted_bytes,
        fabric: lease.grant.plan.fabric.to_string(),
        expires_in_ms: lease.expires_in.as_millis(),
        ends_in_ms: lease.ends_in.map(Duration::as_millis),
        passed_over: convert::passed_over(lease.grant.passed_over),
    }
}

fn stream_status(stream: StreamView) -> StreamStatus {
    StreamStatus {
        name: stream.name,
        source: stream.source,
        receivers: stream.receivers,
        fabric: stream.fabric.map(String::from).unwrap_or_default(),
        shared: stream.shared,
    }
}

fn pending_status(pending: PendingSnapshot) -> PendingStatus {
    PendingStatus {
        source: pending.key.agent.name,
        request_id: pending.key.request,
        app_id: pending.object.app.0.to_vec(),
        data_id: pending.object.data.0,
        size: pending.bytes,
        receivers: u32::try_from(pending.receivers).unwrap_or(u32::MAX),
        waited_ms: pending.waited.as_millis(),
        estimate_ms: pending.wait.estimate.map(Duration::as_millis),
    }
}
