//! The gRPC service: reads messages, asks the core, writes messages.

use crate::config::ManagerConfig;
use crate::convert;
use crate::core::{Command, LeaseSnapshot};
use polycast_api::PROTOCOL_VERSION;
use polycast_api::error::{Kind, Refusal, check_version};
use polycast_api::manager::manager_server::Manager;
use polycast_api::manager::{
    AgentStatus, HeartbeatRequest, HeartbeatResponse, JoinRequest, JoinResponse, LeaseStatus, LeaveRequest,
    LeaveResponse, PathRequest, PathResponse, ReleaseRequest, ReleaseResponse, StatusRequest, StatusResponse,
};
use polycast_planning::PlanId;
use tokio::sync::{mpsc, oneshot};
use tonic::{Request, Response, Status};

/// The service's end of the channel to the core.
#[derive(Debug)]
pub struct Service {
    commands: mpsc::Sender<Command>,
    heartbeat_ms: u64,
    lease_ms: u64,
}

impl Service {
    pub fn new(commands: mpsc::Sender<Command>, config: &ManagerConfig) -> Self {
        Service { commands, heartbeat_ms: config.heartbeat_ms, lease_ms: config.lease_ms }
    }

    /// Asks the core and waits for its answer.
    async fn ask<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command) -> Result<T, Refusal> {
        let ending = |_| Refusal::new(Kind::ManagerUnreachable, "the manager is shutting down");
        let (reply, answer) = oneshot::channel();
        self.commands.send(command(reply)).await.map_err(|_| ending(()))?;
        answer.await.map_err(|_| ending(()))
    }
}

#[tonic::async_trait]
impl Manager for Service {
    async fn join(&self, request: Request<JoinRequest>) -> Result<Response<JoinResponse>, Status> {
        let request = request.into_inner();
        check_version(request.protocol_version)?;
        let join = convert::join(request)?;
        let result = self.ask(|reply| Command::Join { join, reply }).await?;
        result.map_err(|refusal| convert::join_refusal(&refusal))?;
        Ok(Response::new(JoinResponse {
            protocol_version: PROTOCOL_VERSION,
            heartbeat_ms: self.heartbeat_ms,
            lease_ms: self.lease_ms,
        }))
    }

    async fn heartbeat(
        &self,
        request: Request<HeartbeatRequest>,
    ) -> Result<Response<HeartbeatResponse>, Status> {
        let request = request.into_inner();
        let agent = convert::agent(request.agent)?;
        let leases = convert::plan_ids(request.leases)?;
        let result = self.ask(|reply| Command::Heartbeat { agent, leases, reply }).await?;
        let lost = result.map_err(|error| convert::not_member(&error))?;
        Ok(Response::new(HeartbeatResponse { lost_leases: lost.into_iter().map(|id| id.0).collect() }))
    }

    async fn leave(&self, request: Request<LeaveRequest>) -> Result<Response<LeaveResponse>, Status> {
        let agent = convert::agent(request.into_inner().agent)?;
        self.ask(|reply| Command::Leave { agent, reply }).await?;
        Ok(Response::new(LeaveResponse {}))
    }

    async fn request(&self, request: Request<PathRequest>) -> Result<Response<PathResponse>, Status> {
        let request = convert::path_request(request.into_inner())?;
        let response = self.ask(|reply| Command::Request { request, reply }).await?;
        let grant = response.map_err(|denial| convert::denial(&denial))?;
        Ok(Response::new(convert::path_response(grant)?))
    }

    async fn release(&self, request: Request<ReleaseRequest>) -> Result<Response<ReleaseResponse>, Status> {
        let request = request.into_inner();
        let plan = PlanId(request.response_id);
        let key = convert::agent(request.agent)?.request(request.request_id);
        self.ask(|reply| Command::Release { request: key, plan, reply }).await?;
        Ok(Response::new(ReleaseResponse {}))
    }

    async fn status(&self, request: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        check_version(request.into_inner().protocol_version)?;
        let snapshot = self.ask(|reply| Command::Status { reply }).await?;
        let now = snapshot.now;
        Ok(Response::new(StatusResponse {
            protocol_version: PROTOCOL_VERSION,
            scheduler: snapshot.scheduler.to_string(),
            fabrics: snapshot.fabrics.into_iter().map(String::from).collect(),
            agents: snapshot
                .agents
                .into_iter()
                .map(|(name, member)| AgentStatus {
                    name,
                    control_address: convert::address(member.address),
                    silent_ms: now.since(member.heard_at).as_millis(),
                })
                .collect(),
            leases: snapshot.leases.into_iter().map(lease_status).collect(),
            pending_requests: u32::try_from(snapshot.pending).unwrap_or(u32::MAX),
            uptime_seconds: now.0 / 1_000_000_000,
        }))
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
    }
}
