//! Managers that do not lead: an agent goes straight to the one that they name.

use super::world::{World, manager, serve, until};
use polycast_agent::daemon::Agent;
use polycast_api::error::Refusal;
use polycast_api::manager::manager_server::{Manager, ManagerServer};
use polycast_api::manager::{
    AgentMessage, DrainRequest, DrainResponse, ManagerMessage, StatusRequest, StatusResponse,
};
use polycast_testing::own_address;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status, Streaming};

/// A manager that does not lead, and counts calls.
struct Follower {
    leader: Option<String>,
    calls: Arc<AtomicUsize>,
}

#[tonic::async_trait]
impl Manager for Follower {
    type SessionStream = ReceiverStream<Result<ManagerMessage, Status>>;

    async fn session(
        &self,
        _messages: Request<Streaming<AgentMessage>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        Err(Refusal::not_leader(self.leader.as_deref()).into())
    }

    async fn status(&self, _request: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        Err(Refusal::not_leader(self.leader.as_deref()).into())
    }

    async fn drain(&self, _request: Request<DrainRequest>) -> Result<Response<DrainResponse>, Status> {
        Err(Refusal::not_leader(self.leader.as_deref()).into())
    }
}

/// Starts a manager that does not lead; gives where it is, and its count of calls.
async fn follower(leader: Option<String>) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = tokio::net::TcpListener::bind((own_address(), 0)).await.unwrap();
    let (address, calls) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
    let service = ManagerServer::new(Follower { leader, calls: Arc::clone(&calls) });
    let server = tonic::transport::Server::builder().add_service(service);
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
    (address, calls)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_goes_to_the_leader_that_a_follower_names() {
    let leader = manager(0, "").await;
    let (first, asked) = follower(Some(leader.address.to_string())).await;
    let (second, not_asked) = follower(None).await;
    let world = World::new(leader.address);
    let mut config = world.config("a");
    config.manager = format!("{first},{second},{}", leader.address);
    let agent = serve(Agent::start(config).await.unwrap());
    let client = agent.client().await;
    until("it has joined", async || client.status().await.unwrap().manager_connected).await;
    assert_eq!(client.status().await.unwrap().manager_address, leader.address.to_string());
    assert_eq!((asked.load(Ordering::SeqCst), not_asked.load(Ordering::SeqCst)), (1, 0));
    agent.task.stop().await;
    leader.task.stop().await;
}
