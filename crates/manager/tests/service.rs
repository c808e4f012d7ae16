//! The manager's service over real connections.

use polycast_api::PROTOCOL_VERSION;
use polycast_api::error::{Kind, Refusal};
use polycast_api::manager::manager_client::ManagerClient;
use polycast_api::manager::{
    AgentId, HeartbeatRequest, JoinRequest, Lease, LeaveRequest, PathRequest, PathResponse, ReleaseRequest,
    StatusRequest, StatusResponse, channel,
};
use polycast_manager::{Manager, ManagerConfig, ManagerError};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::Status;
use tonic::transport::Channel;

struct Running {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), ManagerError>>,
}

impl Running {
    async fn start(settings: &str) -> Self {
        let mut config = ManagerConfig::from_toml(settings).unwrap();
        config.listen.set_ip([127, 0, 0, 1].into());
        if config.listen.port() == 7400 {
            config.listen.set_port(0);
        }
        let manager = Manager::bind(config).await.unwrap();
        let address = manager.address();
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(manager.serve(async {
            let _ = stopped.await;
        }));
        Running { address, stop, task }
    }

    async fn client(&self) -> ManagerClient<Channel> {
        ManagerClient::connect(format!("http://{}", self.address)).await.unwrap()
    }

    async fn stop(self) {
        self.stop.send(()).unwrap();
        tokio::time::timeout(Duration::from_secs(5), self.task).await.unwrap().unwrap().unwrap();
    }
}

fn id(name: &str) -> Option<AgentId> {
    Some(AgentId { name: name.into(), incarnation: 1 })
}

fn join_request(name: &str) -> JoinRequest {
    JoinRequest {
        protocol_version: PROTOCOL_VERSION,
        agent: id(name),
        address: "10.0.0.1".into(),
        control_port: 7401,
        leases: Vec::new(),
    }
}

async fn join(client: &mut ManagerClient<Channel>, names: &[&str]) {
    for name in names {
        client.join(join_request(name)).await.unwrap();
    }
}

fn path_request(source: &str, request_id: u64, receivers: &[&str]) -> PathRequest {
    PathRequest {
        agent: id(source),
        request_id,
        app_id: vec![0; 16],
        data_id: request_id,
        data_size: 1_000,
        remaining_size: 1_000,
        receivers: receivers.iter().map(|name| (*name).to_string()).collect(),
        all: false,
        divisible: false,
    }
}

fn group_of(response: &PathResponse) -> String {
    match &response.channel.as_ref().unwrap().channel {
        Some(channel::Channel::Multicast(multicast)) => multicast.address.clone(),
        other => panic!("{other:?}"),
    }
}

fn refusal(result: Result<impl std::fmt::Debug, Status>) -> Refusal {
    Refusal::from_status(&result.unwrap_err()).unwrap()
}

async fn status(client: &mut ManagerClient<Channel>) -> StatusResponse {
    let request = StatusRequest { protocol_version: PROTOCOL_VERSION };
    client.status(request).await.unwrap().into_inner()
}

/// Waits until the manager's state is as wanted.
async fn until(client: &mut ManagerClient<Channel>, wanted: impl Fn(&StatusResponse) -> bool) {
    let start = Instant::now();
    loop {
        let status = status(client).await;
        if wanted(&status) {
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(5), "still {status:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

const ONE_ADDRESS: &str = "fabrics = ['ip-multicast']\n[ip-multicast]\npool = '239.255.64.0/32'";

#[tokio::test]
async fn a_path_is_lent_released_and_lent_again() {
    let manager = Running::start(ONE_ADDRESS).await;
    let mut client = manager.client().await;
    join(&mut client, &["a", "b", "c"]).await;
    let first = client.request(path_request("a", 1, &["b", "c"])).await.unwrap().into_inner();
    assert_eq!(first.accepted_size, 1_000);
    assert_eq!(first.fabric, "ip-multicast");
    assert_eq!(group_of(&first), "239.255.64.0");
    let names: Vec<_> = first.receivers.iter().map(|receiver| receiver.name.as_str()).collect();
    assert_eq!(names, ["b", "c"]);
    assert_eq!(first.receivers[0].control_address, "10.0.0.1:7401");
    // Asking again gives the same answer.
    let again = client.request(path_request("a", 1, &["b", "c"])).await.unwrap().into_inner();
    assert_eq!(first, again);
    // The next one waits until the address is free.
    let mut other = client.clone();
    let waiting =
        tokio::spawn(async move { other.request(path_request("b", 1, &["a"])).await.unwrap().into_inner() });
    until(&mut client, |status| status.pending_requests == 1).await;
    let release = ReleaseRequest { agent: id("a"), request_id: 1, response_id: first.response_id };
    client.release(release.clone()).await.unwrap();
    let second = waiting.await.unwrap();
    assert_ne!(second.response_id, first.response_id);
    client.release(release).await.unwrap();
    let status = status(&mut client).await;
    assert_eq!(status.leases.len(), 1);
    assert_eq!(status.leases[0].source, "b");
    assert_eq!(status.scheduler, "fcfs");
    manager.stop().await;
}

#[tokio::test]
async fn refusals_are_sentences_with_a_kind() {
    let manager = Running::start("").await;
    let mut client = manager.client().await;
    join(&mut client, &["a", "b"]).await;
    let unknown = refusal(client.request(path_request("a", 1, &["b", "x"])).await);
    assert_eq!(unknown, Refusal::new(Kind::ReceiverUnknown, "there is no agent 'x'"));
    let twice = refusal(client.request(path_request("a", 1, &["b", "b"])).await);
    assert_eq!(twice, Refusal::new(Kind::ReceiverTwice, "the receiver 'b' is named twice"));
    assert_eq!(refusal(client.request(path_request("c", 1, &["b"])).await).kind, Kind::NotJoined);
    let mut both = path_request("a", 1, &["b"]);
    both.all = true;
    assert_eq!(refusal(client.request(both).await).kind, Kind::Invalid);
    let mut other = join_request("d");
    other.protocol_version = 9;
    let version = refusal(client.join(other).await);
    assert_eq!(version.kind, Kind::Version);
    assert!(version.message.contains("version 9"), "{version}");
    let mut elsewhere = join_request("a");
    elsewhere.agent.as_mut().unwrap().incarnation = 2;
    elsewhere.address = "10.0.0.2".into();
    assert_eq!(refusal(client.join(elsewhere).await).kind, Kind::NameTaken);
    let mut nowhere = join_request("e");
    nowhere.address = "localhost".into();
    assert_eq!(refusal(client.join(nowhere).await).message, "'localhost' is not an IPv4 address");
    manager.stop().await;
}

#[tokio::test]
async fn a_caller_that_goes_away_withdraws_its_request() {
    let manager = Running::start(ONE_ADDRESS).await;
    let mut client = manager.client().await;
    join(&mut client, &["a", "b"]).await;
    client.request(path_request("a", 1, &["b"])).await.unwrap();
    let mut other = client.clone();
    let waiting = tokio::spawn(async move { other.request(path_request("a", 2, &["b"])).await });
    until(&mut client, |status| status.pending_requests == 1).await;
    waiting.abort();
    until(&mut client, |status| status.pending_requests == 0).await;
    manager.stop().await;
}

#[tokio::test]
async fn what_is_not_renewed_comes_back() {
    let settings = format!("heartbeat-ms = 50\nsilence-ms = 150\nlease-ms = 300\n{ONE_ADDRESS}");
    let manager = Running::start(&settings).await;
    let mut client = manager.client().await;
    join(&mut client, &["a", "b"]).await;
    let first = client.request(path_request("a", 1, &["b"])).await.unwrap().into_inner();
    let beat = HeartbeatRequest { agent: id("a"), leases: vec![first.response_id] };
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(client.heartbeat(beat.clone()).await.unwrap().into_inner().lost_leases.is_empty());
    }
    assert_eq!(status(&mut client).await.leases.len(), 1);
    // Nothing is heard of `a` any more (and never was of `b`).
    until(&mut client, |status| status.leases.is_empty() && status.agents.is_empty()).await;
    assert_eq!(refusal(client.heartbeat(beat).await).kind, Kind::NotJoined);
    manager.stop().await;
}

#[tokio::test]
async fn a_restarted_manager_takes_over_what_runs() {
    let manager = Running::start(ONE_ADDRESS).await;
    let mut client = manager.client().await;
    join(&mut client, &["a", "b"]).await;
    let first = client.request(path_request("a", 1, &["b"])).await.unwrap().into_inner();
    let address = manager.address;
    manager.stop().await;

    let manager = Running::start(&format!("listen = '{address}'\n{ONE_ADDRESS}")).await;
    let mut client = manager.client().await;
    join(&mut client, &["b"]).await;
    let mut again = join_request("a");
    again.leases.push(Lease {
        request_id: 1,
        response_id: first.response_id,
        receivers: vec!["b".into()],
        accepted_size: 1_000,
        fabric: first.fabric,
        channel: first.channel,
        app_id: Vec::new(),
        data_id: 1,
    });
    client.join(again).await.unwrap();
    let now = status(&mut client).await;
    assert_eq!(now.leases[0].response_id, first.response_id);
    // Its address is not lent a second time.
    let mut other = client.clone();
    let waiting = tokio::spawn(async move { other.request(path_request("b", 1, &["a"])).await });
    until(&mut client, |status| status.pending_requests == 1).await;
    client.leave(LeaveRequest { agent: id("a") }).await.unwrap();
    // Its receiver has left too, so it cannot have the address that is free now.
    assert_eq!(refusal(waiting.await.unwrap()).kind, Kind::ReceiverUnknown);
    manager.stop().await;
}

#[tokio::test]
async fn requests_that_wait_end_with_the_manager() {
    let manager = Running::start(ONE_ADDRESS).await;
    let mut client = manager.client().await;
    join(&mut client, &["a", "b"]).await;
    client.request(path_request("a", 1, &["b"])).await.unwrap();
    let mut other = client.clone();
    let waiting = tokio::spawn(async move { other.request(path_request("a", 2, &["b"])).await });
    until(&mut client, |status| status.pending_requests == 1).await;
    manager.stop().await;
    assert!(waiting.await.unwrap().is_err());
}

#[tokio::test]
async fn a_port_in_use_is_named() {
    let manager = Running::start("").await;
    let config = ManagerConfig { listen: manager.address, ..ManagerConfig::default() };
    let error = Manager::bind(config).await.unwrap_err().to_string();
    assert_eq!(error, format!("the manager cannot listen on {}: the port is in use", manager.address));
    manager.stop().await;
}
