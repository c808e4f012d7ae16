//! An external scheduler over a real connection: one that decides otherwise than the built-in one, that is
//! not there yet, that is late, that talks nonsense and that goes away.

use polycast_api::PROTOCOL_VERSION;
use polycast_api::manager::agent_message::Message as Said;
use polycast_api::manager::manager_client::ManagerClient;
use polycast_api::manager::manager_message::Message as Told;
use polycast_api::manager::{
    AgentId, AgentMessage, ExternalScheduler, Join, ManagerMessage, PathRequest, Release, StatusRequest,
};
use polycast_api::scheduler::scheduler_server::{Scheduler, SchedulerServer};
use polycast_api::scheduler::{Accept, Answer, Decision, Question, decision};
use polycast_manager::check::check;
use polycast_manager::{Manager, ManagerConfig};
use polycast_testing::{HANG, free_port};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Request, Response, Status, Streaming};

/// As the settings below say.
const DEADLINE: Duration = Duration::from_millis(250);

/// Ways to answer.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Way {
    /// The youngest gets the path.
    Youngest,
    /// After the deadline.
    Late,
    /// All get a path, though there is one.
    More,
}

#[derive(Clone)]
struct External {
    way: Arc<Mutex<Way>>,
    asked: Arc<AtomicUsize>,
}

#[tonic::async_trait]
impl Scheduler for External {
    async fn decide(&self, request: Request<Question>) -> Result<Response<Answer>, Status> {
        let (question, way) = (request.into_inner(), *self.way.lock().unwrap());
        self.asked.fetch_add(1, Ordering::SeqCst);
        if way == Way::Late {
            tokio::time::sleep(DEADLINE * 2).await;
        }
        let accept = |id| Decision {
            id,
            what: Some(decision::What::Accept(Accept { if_free: way == Way::Youngest, ..Accept::default() })),
        };
        let youngest_first = question.requests.iter().rev().map(|request| accept(request.id));
        Ok(Response::new(Answer { decisions: youngest_first.collect(), ask_again_ms: Some(60_000) }))
    }
}

/// Serves until the runtime is shut down, as a process that is killed does: its connections end, too.
fn serve(port: u16, way: Way) -> (External, Runtime) {
    let external = External { way: Arc::new(Mutex::new(way)), asked: Arc::default() };
    let server = tonic::transport::Server::builder().add_service(SchedulerServer::new(external.clone()));
    let runtime = Runtime::new().unwrap();
    runtime.spawn(server.serve(([127, 0, 0, 1], port).into()));
    (external, runtime)
}

/// An agent's session, and the manager that it is with.
struct Agent {
    client: ManagerClient<Channel>,
    outbox: mpsc::Sender<AgentMessage>,
    messages: Streaming<ManagerMessage>,
    requests: u64,
}

impl Agent {
    async fn join(address: std::net::SocketAddr, name: &str) -> Self {
        let mut client = ManagerClient::connect(format!("http://{address}")).await.unwrap();
        let (outbox, stream) = mpsc::channel(64);
        let join = Join {
            protocol_version: PROTOCOL_VERSION,
            agent: Some(AgentId { name: name.into(), incarnation: 1 }),
            address: "127.0.0.1".into(),
            control_port: 7401,
            leases: Vec::new(),
            node: None,
        };
        outbox.send(AgentMessage { message: Some(Said::Join(join)) }).await.unwrap();
        let messages = client.session(ReceiverStream::new(stream)).await.unwrap().into_inner();
        let mut agent = Agent { client, outbox, messages, requests: 0 };
        assert!(matches!(agent.next().await, Told::Joined(_)));
        agent
    }

    async fn say(&self, message: Said) {
        self.outbox.send(AgentMessage { message: Some(message) }).await.unwrap();
    }

    async fn next(&mut self) -> Told {
        let next = tokio::time::timeout(HANG, self.messages.message()).await.unwrap();
        next.unwrap().unwrap().message.unwrap()
    }

    async fn ask(&mut self) -> u64 {
        self.requests += 1;
        let request = PathRequest {
            request_id: self.requests,
            app_id: vec![7; 16],
            data_id: self.requests,
            data_size: 1_000,
            remaining_size: 1_000,
            receivers: vec!["b".into()],
            ..PathRequest::default()
        };
        self.say(Said::Request(request)).await;
        self.requests
    }

    /// The next request that gets a path, which goes back at once.
    async fn served(&mut self) -> u64 {
        let release = self.granted().await;
        let request = release.request_id;
        self.say(Said::Release(release)).await;
        request
    }

    /// Gives the next path that is granted back, once it is said.
    async fn granted(&mut self) -> Release {
        loop {
            match self.next().await {
                Told::Granted(granted) => {
                    let (request_id, response_id) = (granted.request_id, granted.response_id);
                    return Release { request_id, response_id, ..Release::default() };
                }
                Told::Waiting(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// Comes back when it is said of a request that it waits.
    async fn waits(&mut self, request: u64) {
        loop {
            match self.next().await {
                Told::Waiting(waiting) if waiting.request_id == request => return,
                Told::Waiting(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    async fn status(&mut self) -> ExternalScheduler {
        let status = self.client.status(StatusRequest { protocol_version: PROTOCOL_VERSION }).await;
        status.unwrap().into_inner().external_scheduler.expect("there is one")
    }

    async fn until(&mut self, what: &str, is_so: impl Fn(&ExternalScheduler) -> bool) -> ExternalScheduler {
        let begun = Instant::now();
        loop {
            let external = self.status().await;
            if is_so(&external) {
                return external;
            }
            assert!(begun.elapsed() < HANG, "{what}: {external:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

fn settings(port: u16) -> ManagerConfig {
    let text = format!(
        "listen = '127.0.0.1:0'\nfabrics = ['ip-multicast']\nheartbeat-ms = 60000\nsilence-ms = 240000\nlease-ms = 240000\n\
         [scheduler]\naddress = 'http://127.0.0.1:{port}'\ndeadline-ms = 250\n[ip-multicast]\npool = '239.255.64.0/32'\n"
    );
    ManagerConfig::from_toml(&text).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_external_one_decides_as_long_as_it_does_so_rightly() {
    let port = free_port();
    let manager = Manager::bind(settings(port)).await.unwrap();
    let address = manager.address();
    let (stop, stopped) = oneshot::channel::<()>();
    let running = tokio::spawn(manager.serve(async { drop(stopped.await) }));
    let (mut agent, _other) = (Agent::join(address, "a").await, Agent::join(address, "b").await);

    // It is not there yet: that is known before anything waits, and delays nothing.
    let external = agent.until("it is missed", |external| external.unreached > 0).await;
    assert!(external.trouble.starts_with("it cannot be reached: "), "{external:?}");
    assert_eq!(external.address, format!("http://127.0.0.1:{port}"));
    let first = agent.ask().await;
    assert_eq!(agent.served().await, first);

    // It comes, and is asked without being told of.
    let (external, process) = serve(port, Way::Late);
    agent
        .until("it is late", |external| external.late > 0 && external.trouble.contains("within 250 ms"))
        .await;
    let late = agent.ask().await;
    assert_eq!(agent.served().await, late);
    *external.way.lock().unwrap() = Way::More;
    agent.until("it is followed", |external| external.trouble.is_empty()).await;

    // More than there is.
    let (one, other) = (agent.ask().await, agent.ask().await);
    let mut served = [agent.served().await, agent.served().await];
    served.sort_unstable();
    assert_eq!(served, [one, other]);
    *external.way.lock().unwrap() = Way::Youngest;
    agent.until("it is followed again", |external| external.trouble.is_empty()).await;

    // The youngest of those that wait behind the first one.
    agent.ask().await;
    let first = agent.granted().await;
    let all = [agent.ask().await, agent.ask().await, agent.ask().await];
    // An answer that is on its way then may be about the older ones alone, and counts.
    agent.waits(all[2]).await;
    agent.say(Said::Release(first)).await;
    let order = [agent.served().await, agent.served().await, agent.served().await];
    assert_eq!(order, [all[2], all[1], all[0]]);
    assert!(agent.status().await.followed >= 3, "{:?}", agent.status().await);
    assert!(external.asked.load(Ordering::SeqCst) >= 6);

    // It goes, and takes no request with it.
    process.shutdown_background();
    let last = agent.ask().await;
    assert_eq!(agent.served().await, last);
    agent.until("it is missed again", |external| !external.trouble.is_empty()).await;
    stop.send(()).unwrap();
    tokio::time::timeout(HANG, running).await.unwrap().unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_check_says_whether_it_is_there() {
    let port = free_port();
    let missing = check(&settings(port)).await.unwrap();
    assert!(!missing.ok && !missing.scheduler.as_ref().unwrap().reached);
    let fault = &missing.faults[0];
    assert!(
        fault.starts_with(&format!(
            "fcfs would decide in place of the scheduler at http://127.0.0.1:{port}: it cannot be"
        )),
        "{fault}"
    );
    let (_, process) = serve(port, Way::Youngest);
    let begun = Instant::now();
    while !check(&settings(port)).await.unwrap().ok {
        assert!(begun.elapsed() < HANG, "it is never found");
    }
    assert!(check(&settings(port)).await.unwrap().text().contains(" answers\n"));
    process.shutdown_background();
}
