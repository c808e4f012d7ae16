//! The manager's service over real connections.

use polycast_api::PROTOCOL_VERSION;
use polycast_api::error::{Kind, Refusal};
use polycast_api::manager::EnrollRequest;
use polycast_api::manager::agent_message::Message as Said;
use polycast_api::manager::authority_client::AuthorityClient;
use polycast_api::manager::manager_client::ManagerClient;
use polycast_api::manager::manager_message::Message as Told;
use polycast_api::manager::{
    AgentId, AgentMessage, Extend, Granted, Heartbeat, HeartbeatAnswer, Join, Lease, Leave, ManagerMessage,
    PathRequest, Release, StatusRequest, StatusResponse, Withdraw, channel,
};
use polycast_manager::authority::Authority;
use polycast_manager::{Manager, ManagerConfig, ManagerError};
use polycast_net::tls::{Binding, Claim, Expected, JoinToken, MANAGER, Remark, Security, Talk, TlsFiles};
use polycast_testing::{HANG, free_port};
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Status, Streaming};

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
        tokio::time::timeout(HANG, self.task).await.unwrap().unwrap().unwrap();
    }
}

/// The number of the heartbeats of an agent that stays.
const STAYS: u64 = u64::MAX;

/// An agent's session.
struct Session {
    outbox: mpsc::Sender<AgentMessage>,
    messages: Streaming<ManagerMessage>,
}

impl Session {
    async fn open(client: &ManagerClient<Channel>, join: Join) -> Result<Self, Status> {
        let (outbox, stream) = mpsc::channel(64);
        outbox.send(AgentMessage { message: Some(Said::Join(join)) }).await.unwrap();
        let mut client = client.clone();
        let messages = client.session(ReceiverStream::new(stream)).await?.into_inner();
        let mut session = Session { outbox, messages };
        let Told::Joined(joined) = session.next().await? else { panic!("no Joined") };
        assert_eq!(joined.protocol_version, PROTOCOL_VERSION);
        Ok(session)
    }

    async fn join(client: &ManagerClient<Channel>, name: &str) -> Self {
        Session::open(client, join(name)).await.unwrap()
    }

    async fn say(&self, message: Said) {
        self.outbox.send(AgentMessage { message: Some(message) }).await.unwrap();
    }

    async fn next(&mut self) -> Result<Told, Status> {
        loop {
            let next = tokio::time::timeout(HANG, self.messages.message()).await.unwrap();
            let told = next?.and_then(|message| message.message);
            match told.ok_or_else(|| Status::cancelled("the session has ended"))? {
                Told::Heartbeat(answer) if answer.number == STAYS => {}
                told => return Ok(told),
            }
        }
    }

    /// Says again and again that the agent is there, whatever it waits for.
    fn stay(&self) {
        let outbox = self.outbox.clone();
        tokio::spawn(async move {
            let beat = || Said::Heartbeat(Heartbeat { number: STAYS, leases: Vec::new(), node: None });
            while outbox.send(AgentMessage { message: Some(beat()) }).await.is_ok() {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        });
    }

    async fn granted(&mut self) -> Granted {
        match self.next().await.unwrap() {
            Told::Granted(granted) => granted,
            other => panic!("{other:?}"),
        }
    }

    /// The kind and the sentence of a denial.
    async fn denied(&mut self) -> (String, String) {
        match self.next().await.unwrap() {
            Told::Denied(denied) => (denied.kind, denied.reason),
            other => panic!("{other:?}"),
        }
    }

    /// Returns the number of older requests that wait.
    async fn waiting(&mut self) -> u32 {
        match self.next().await.unwrap() {
            Told::Waiting(waiting) => waiting.before,
            other => panic!("{other:?}"),
        }
    }

    async fn beat(&mut self, number: u64, leases: &[u64]) -> HeartbeatAnswer {
        self.say(Said::Heartbeat(Heartbeat { number, leases: leases.to_vec(), node: None })).await;
        match self.next().await.unwrap() {
            Told::Heartbeat(answer) => answer,
            other => panic!("{other:?}"),
        }
    }
}

/// A manager, a client of it, and agents that have joined it.
async fn with_agents<const N: usize>(
    settings: &str,
    names: [&str; N],
) -> (Running, ManagerClient<Channel>, [Session; N]) {
    let manager = Running::start(settings).await;
    let client = manager.client().await;
    let mut sessions = Vec::new();
    for name in names {
        sessions.push(Session::join(&client, name).await);
    }
    (manager, client, sessions.try_into().ok().expect("one a name"))
}

fn join(name: &str) -> Join {
    Join {
        protocol_version: PROTOCOL_VERSION,
        agent: Some(AgentId { name: name.into(), incarnation: 1 }),
        address: "10.0.0.1".into(),
        control_port: 7401,
        leases: Vec::new(),
        node: None,
    }
}

fn request(request_id: u64, receivers: &[&str]) -> Said {
    Said::Request(PathRequest {
        request_id,
        app_id: vec![0; 16],
        data_id: request_id,
        data_size: 1_000,
        remaining_size: 1_000,
        receivers: receivers.iter().map(|name| (*name).to_string()).collect(),
        ..PathRequest::default()
    })
}

fn release(granted: &Granted) -> Said {
    Said::Release(Release {
        request_id: granted.request_id,
        response_id: granted.response_id,
        ..Default::default()
    })
}

fn group_of(granted: &Granted) -> String {
    match &granted.channel.as_ref().unwrap().channel {
        Some(channel::Channel::Multicast(multicast)) => multicast.address.clone(),
        other => panic!("{other:?}"),
    }
}

async fn refusal(client: &ManagerClient<Channel>, join: Join) -> Refusal {
    match Session::open(client, join).await {
        Ok(_) => panic!("it was let in"),
        Err(status) => Refusal::from_status(&status).unwrap(),
    }
}

async fn status(client: &ManagerClient<Channel>) -> StatusResponse {
    let request = StatusRequest { protocol_version: PROTOCOL_VERSION };
    client.clone().status(request).await.unwrap().into_inner()
}

/// Waits until the manager's state is as wanted.
async fn until(client: &ManagerClient<Channel>, wanted: impl Fn(&StatusResponse) -> bool) {
    let start = Instant::now();
    loop {
        let status = status(client).await;
        if wanted(&status) {
            return;
        }
        assert!(start.elapsed() < HANG, "still {status:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A manager that takes no agent of a test for dead because it is silent, or late to come back.
const PATIENT: &str = "silence-ms = 600000\nlease-ms = 600000\nreconnect-ms = 600000\n";
const ONE_ADDRESS: &str = "fabrics = ['ip-multicast']\n[ip-multicast]\npool = '239.255.64.0/32'";

/// A patient manager with one address.
fn patient() -> String {
    format!("{PATIENT}{ONE_ADDRESS}")
}

#[tokio::test]
async fn a_path_is_lent_released_and_lent_again() {
    let (manager, client, [mut a, mut b, _c]) = with_agents(&patient(), ["a", "b", "c"]).await;
    a.say(request(1, &["b", "c"])).await;
    let first = a.granted().await;
    assert_eq!((first.accepted_size, first.fabric.as_str()), (1_000, "ip-multicast"));
    assert_eq!(group_of(&first), "239.255.64.0");
    let names: Vec<_> = first.receivers.iter().map(|receiver| receiver.name.as_str()).collect();
    assert_eq!(names, ["b", "c"]);
    assert_eq!(first.receivers[0].control_address, "10.0.0.1:7401");
    // Asking again gives the same answer.
    a.say(request(1, &["b", "c"])).await;
    assert_eq!(a.granted().await, first);
    // The next one waits until the address is free.
    b.say(request(1, &["a"])).await;
    assert_eq!(b.waiting().await, 0);
    a.say(release(&first)).await;
    let second = b.granted().await;
    assert_ne!(second.response_id, first.response_id);
    a.say(release(&first)).await;
    assert_eq!(a.beat(1, &[]).await, HeartbeatAnswer { number: 1, lost_leases: Vec::new() });
    let status = status(&client).await;
    assert_eq!(status.leases.len(), 1);
    assert_eq!(status.leases[0].source, "b");
    assert_eq!(status.scheduler, "fcfs");
    manager.stop().await;
}

/// Blast, section IV-A: what can never be is denied at once, what has to wait hears of its place, and both
/// what waits and what runs can be changed and withdrawn.
#[tokio::test]
async fn requests_wait_change_and_go() {
    let (manager, client, [mut a, mut b, _c]) = with_agents(&patient(), ["a", "b", "c"]).await;
    a.say(request(1, &["b"])).await;
    let held = a.granted().await;
    a.say(request(2, &["b"])).await;
    assert_eq!(a.waiting().await, 0);
    b.say(request(1, &["a"])).await;
    assert_eq!(b.waiting().await, 1);
    let pending = status(&client).await.pending;
    let seen: Vec<_> = pending.iter().map(|pending| (pending.source.as_str(), pending.request_id)).collect();
    assert_eq!(seen, [("a", 2), ("b", 1)]);
    // The first in the queue goes: the other one moves up.
    a.say(Said::Withdraw(Withdraw { request_id: 2 })).await;
    assert_eq!(b.waiting().await, 0);
    let extend = Extend { request_id: 1, time_ms: Some(60_000), add: vec!["c".into()], ..Extend::default() };
    a.say(Said::Extend(extend)).await;
    let Told::Extended(extended) = a.next().await.unwrap() else { panic!() };
    let granted = extended.granted.unwrap();
    assert_eq!((granted.receivers.len(), granted.lease_ms), (2, Some(60_000)));
    assert_eq!(granted.channel, held.channel);
    let extend = Extend { request_id: 9, time_ms: Some(1), add: Vec::new(), ..Extend::default() };
    a.say(Said::Extend(extend)).await;
    let Told::Extended(extended) = a.next().await.unwrap() else { panic!() };
    assert_eq!(extended.denied.unwrap().kind, "request-unknown");
    // What runs can be withdrawn too; its path goes to the next one.
    a.say(Said::Withdraw(Withdraw { request_id: 1 })).await;
    b.granted().await;
    // A path for a time ends by itself, and its holder hears that.
    b.say(Said::Extend(Extend { request_id: 1, time_ms: Some(50), add: Vec::new(), ..Extend::default() }))
        .await;
    assert!(matches!(b.next().await.unwrap(), Told::Extended(_)));
    let Told::Ended(ended) = b.next().await.unwrap() else { panic!() };
    assert!(ended.reason.starts_with("the time is over"), "{ended:?}");
    manager.stop().await;
}

#[tokio::test]
async fn refusals_are_sentences_with_a_kind() {
    let (manager, client, [mut a, b]) = with_agents("", ["a", "b"]).await;
    a.stay();
    b.stay();
    // While a manager has just begun, an agent that is not here may yet come.
    a.say(request(1, &["b", "x"])).await;
    let unknown = ("receiver-unknown".to_string(), "there is no agent 'x'".to_string());
    assert_eq!(a.denied().await, unknown);
    for (receivers, kind, sentence) in [
        (vec!["b", "x"], "receiver-unknown", "there is no agent 'x'"),
        (vec!["b", "b"], "receiver-twice", "the receiver 'b' is named twice"),
        (vec!["a"], "receiver-twice", "'a' is the source and cannot be a receiver"),
    ] {
        a.say(request(1, &receivers)).await;
        assert_eq!(a.denied().await, (kind.to_string(), sentence.to_string()));
    }
    let Said::Request(mut both) = request(1, &["b"]) else { panic!() };
    both.all = true;
    a.say(Said::Request(both)).await;
    assert_eq!(a.denied().await.0, "invalid");
    let mut other = join("d");
    other.protocol_version = 9;
    let version = refusal(&client, other).await;
    assert_eq!(version.kind, Kind::Version);
    assert!(version.message.contains("version 9"), "{version}");
    let mut elsewhere = join("a");
    elsewhere.agent.as_mut().unwrap().incarnation = 2;
    elsewhere.address = "10.0.0.2".into();
    assert_eq!(refusal(&client, elsewhere).await.kind, Kind::NameTaken);
    let mut nowhere = join("e");
    nowhere.address = "localhost".into();
    assert_eq!(refusal(&client, nowhere).await.message, "'localhost' is not an IP address");
    // A session that does not begin with a Join is none, and there is only one.
    let (outbox, stream) = mpsc::channel(1);
    outbox.send(AgentMessage { message: Some(request(1, &["b"])) }).await.unwrap();
    let status = client.clone().session(ReceiverStream::new(stream)).await.unwrap_err();
    assert_eq!(Refusal::from_status(&status).unwrap().kind, Kind::Invalid);
    a.say(Said::Join(join("a"))).await;
    assert_eq!(Refusal::from_status(&a.next().await.unwrap_err()).unwrap().kind, Kind::Invalid);
    manager.stop().await;
}

#[tokio::test]
async fn an_agent_that_comes_back_has_what_it_had() {
    let (manager, client, [mut a, mut b]) = with_agents(&patient(), ["a", "b"]).await;
    a.say(request(1, &["b"])).await;
    let held = a.granted().await;
    a.say(request(2, &["b"])).await;
    a.waiting().await;
    // Its connection breaks, and it comes back: everything is as it was.
    drop(a);
    let mut again = join("a");
    again.leases.push(lease(&held));
    let mut a = Session::open(&client, again).await.unwrap();
    a.say(request(2, &["b"])).await;
    assert_eq!(a.waiting().await, 0);
    assert!(a.beat(1, &[held.response_id]).await.lost_leases.is_empty());
    b.say(request(1, &["a"])).await;
    assert_eq!(b.waiting().await, 1);
    manager.stop().await;
}

/// Leases and requests of the agent are gone long before the lease or the silence would be over.
#[tokio::test]
async fn an_agent_that_dies_loses_what_it_holds() {
    let settings = format!("silence-ms = 600000\nlease-ms = 600000\nreconnect-ms = 300\n{ONE_ADDRESS}");
    let (manager, client, [mut a, mut b]) = with_agents(&settings, ["a", "b"]).await;
    a.say(request(1, &["b"])).await;
    a.granted().await;
    a.say(request(2, &["b"])).await;
    a.waiting().await;
    b.say(request(1, &["a"])).await;
    assert_eq!(b.waiting().await, 1);
    let begun = Instant::now();
    drop(a);
    assert_eq!(b.denied().await.0, "receiver-unknown");
    assert!(begun.elapsed() >= Duration::from_millis(300));
    until(&client, |status| status.leases.is_empty() && status.agents.len() == 1).await;
    manager.stop().await;
}

fn lease(granted: &Granted) -> Lease {
    Lease {
        request_id: granted.request_id,
        response_id: granted.response_id,
        receivers: granted.receivers.iter().map(|receiver| receiver.name.clone()).collect(),
        accepted_size: granted.accepted_size,
        fabric: granted.fabric.clone(),
        channel: granted.channel.clone(),
        app_id: Vec::new(),
        data_id: granted.request_id,
        left_ms: None,
        plan: granted.plan.clone(),
        or_fail: false,
        further_sources: Vec::new(),
    }
}

/// Messages that follow from a join and are for the agent that joins get to it in the session that begins.
#[tokio::test]
async fn who_joins_hears_what_follows_from_it() {
    let (manager, client, [mut a, _b]) = with_agents(&patient(), ["a", "b"]).await;
    a.say(request(1, &["b"])).await;
    let first = a.granted().await;
    a.say(request(2, &["b"])).await;
    assert_eq!(a.waiting().await, 0);
    // It comes back with a path that goes another way than the manager knows: it has lost it, and the other
    // gets its address.
    let mut lost = lease(&first);
    let Some(channel::Channel::Multicast(multicast)) =
        lost.channel.as_mut().and_then(|channel| channel.channel.as_mut())
    else {
        panic!("{lost:?}")
    };
    multicast.attempt_interval_ns += 1;
    let mut a = Session::open(&client, Join { leases: vec![lost], ..join("a") }).await.unwrap();
    let Told::Ended(ended) = a.next().await.unwrap() else { panic!("it does not hear that it has lost it") };
    assert_eq!(ended.response_id, first.response_id);
    assert_eq!(a.granted().await.request_id, 2);
    manager.stop().await;
}

#[tokio::test]
async fn what_is_not_renewed_comes_back() {
    const HELD: Duration = Duration::from_millis(1_500);
    let held = HELD.as_millis();
    let settings = format!("heartbeat-ms = 50\nsilence-ms = {held}\nlease-ms = {held}\n{ONE_ADDRESS}");
    let (manager, client, [mut a, _b]) = with_agents(&settings, ["a", "b"]).await;
    a.say(request(1, &["b"])).await;
    let (first, begun) = (a.granted().await, Instant::now());
    // It would be lost by then without these.
    for number in 0.. {
        if begun.elapsed() > HELD * 3 / 2 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(a.beat(number, &[first.response_id]).await.lost_leases.is_empty());
    }
    assert_eq!(status(&client).await.leases.len(), 1);
    // Nothing is heard of `a` any more (and never was of `b`).
    until(&client, |status| status.leases.is_empty() && status.agents.is_empty()).await;
    let Told::Ended(ended) = a.next().await.unwrap() else { panic!() };
    assert_eq!(ended.response_id, first.response_id);
    assert_eq!(Refusal::from_status(&a.next().await.unwrap_err()).unwrap().kind, Kind::NotJoined);
    manager.stop().await;
}

#[tokio::test]
async fn a_restarted_manager_takes_over_what_runs() {
    let settings = format!("listen = '127.0.0.1:{}'\n{}", free_port(), patient());
    let (manager, _, [mut a, _b]) = with_agents(&settings, ["a", "b"]).await;
    a.say(request(1, &["b"])).await;
    let first = a.granted().await;
    manager.stop().await;
    assert!(a.next().await.is_err(), "its session ends at once");

    let (manager, client, [mut b]) = with_agents(&settings, ["b"]).await;
    let mut again = join("a");
    again.leases.push(lease(&first));
    let a = Session::open(&client, again).await.unwrap();
    assert_eq!(status(&client).await.leases[0].response_id, first.response_id);
    // Its address is not lent a second time.
    b.say(request(1, &["a"])).await;
    assert_eq!(b.waiting().await, 0);
    a.say(Said::Leave(Leave::default())).await;
    // Its receiver has left too, so it cannot have the address that is free now.
    assert_eq!(b.denied().await.0, "receiver-unknown");
    manager.stop().await;
}

#[tokio::test]
async fn a_port_in_use_is_named() {
    let manager = Running::start("").await;
    let config = ManagerConfig { listen: manager.address, ..ManagerConfig::default() };
    let error = Manager::bind(config).await.unwrap_err().to_string();
    assert_eq!(error, format!("the manager cannot listen on {}: the port is in use", manager.address));
    manager.stop().await;
}

fn run_of_a(incarnation: u64) -> Join {
    let mut other = join("a");
    other.agent.as_mut().unwrap().incarnation = incarnation;
    other
}

/// Lets another run of an agent in as soon as the manager does.
async fn join_when_let(client: &ManagerClient<Channel>, join: Join) -> Session {
    let begun = Instant::now();
    loop {
        match Session::open(client, join.clone()).await {
            Ok(session) => return session,
            Err(status) => assert_eq!(Refusal::from_status(&status).unwrap().kind, Kind::NameTaken),
        }
        assert!(begun.elapsed() < HANG);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// An agent that takes the name of one that lives is told so, and the other one goes on.
#[tokio::test]
async fn the_name_of_an_agent_that_lives_cannot_be_taken() {
    // No heartbeat is late.
    let settings = format!("heartbeat-ms = 200000\n{PATIENT}");
    let (manager, client, [mut first]) = with_agents(&settings, ["a"]).await;
    let taken = refusal(&client, run_of_a(2)).await;
    assert_eq!(taken.kind, Kind::NameTaken);
    assert_eq!(
        taken.message,
        "the name 'a' is taken by the agent at 127.0.0.1: stop that one first, or take another name"
    );
    assert!(first.beat(1, &[]).await.lost_leases.is_empty(), "it is there as before");
    // Its own connection may be another one.
    let mut again = Session::join(&client, "a").await;
    assert!(again.beat(1, &[]).await.lost_leases.is_empty());
    // A run of it that comes after it has died is let in at once.
    drop(again);
    let mut second = join_when_let(&client, run_of_a(2)).await;
    assert!(second.beat(1, &[]).await.lost_leases.is_empty());
    manager.stop().await;
}

/// One whose session has not been ended and that has been silent for two and a half heartbeats can be another
/// run's.
#[tokio::test]
async fn the_name_of_a_silent_agent_can_be_taken() {
    let settings = format!("heartbeat-ms = 200\n{PATIENT}");
    let begun = Instant::now();
    let (manager, client, [mut first]) = with_agents(&settings, ["a"]).await;
    let mut second = join_when_let(&client, run_of_a(2)).await;
    assert!(begun.elapsed() >= Duration::from_millis(500));
    let told = Refusal::from_status(&first.next().await.unwrap_err()).unwrap();
    assert_eq!(told.message, "another agent has joined as 'a'");
    assert!(second.beat(1, &[]).await.lost_leases.is_empty());
    manager.stop().await;
}

/// One host does not fill the manager with agents.
#[tokio::test]
async fn agents_of_one_address_have_a_limit() {
    let (manager, client, [_a, _b]) =
        with_agents(&format!("address-agents-max = 2\n{PATIENT}"), ["a", "b"]).await;
    let full = refusal(&client, join("c")).await;
    assert_eq!(full.kind, Kind::Full);
    let words = "2 agents have joined from 127.0.0.1, as many as may: the manager's setting 'address-agents-max' says so";
    assert_eq!(full.message, words);
    manager.stop().await;
}

/// A receiver that comes a moment after its source is no unknown one.
#[tokio::test]
async fn receivers_may_come_after_their_source() {
    let (manager, client, [mut a]) = with_agents(PATIENT, ["a"]).await;
    a.say(request(1, &["b"])).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let _b = Session::join(&client, "b").await;
    assert_eq!(a.granted().await.receivers.len(), 1);
    manager.stop().await;
}

/// A part of a plan that a manager cannot read is the path's loss, and nothing else's.
#[tokio::test]
async fn plans_that_make_no_sense_are_not_followed() {
    let manager = Running::start(PATIENT).await;
    let client = manager.client().await;
    let deep = [vec![b'['; 100_000], vec![b']'; 100_000]].concat();
    let channel = channel::Channel::Multicast(polycast_api::manager::Multicast {
        address: "239.255.64.9".into(),
        port: 7410,
        rate_bps: None,
        attempt_interval_ns: 0,
    });
    let lease = Lease {
        request_id: 1,
        response_id: 9,
        fabric: "ocs".into(),
        channel: Some(polycast_api::manager::Channel { channel: Some(channel) }),
        app_id: vec![0; 16],
        plan: deep,
        ..Lease::default()
    };
    let mut hostile = join("a");
    hostile.leases = vec![lease.clone()];
    let mut a = Session::open(&client, hostile).await.unwrap();
    assert_eq!(a.beat(1, &[9]).await.lost_leases, [9]);
    // One that is too long is refused in a sentence.
    let mut hostile = join("b");
    hostile.leases = vec![Lease { plan: vec![b' '; 2 << 20], ..lease }];
    let refused = refusal(&client, hostile).await;
    assert_eq!(refused.message, "a plan of 2097152 bytes is longer than 1048576");
    manager.stop().await;
}

/// A connection without a certificate to a manager whose authority has this pin, and what it is told from
/// others by.
async fn pinned(address: SocketAddr, pin: &str) -> (Channel, Binding) {
    let (known, pin) = (Arc::new(OnceLock::new()), pin.to_string());
    let told = Arc::clone(&known);
    let connector = tower::service_fn(move |_| {
        let (address, pin, told) = (address.to_string(), pin.clone(), Arc::clone(&told));
        async move {
            let expected = Expected::Manager(MANAGER.into());
            let talk = Talk::connect_pinned(&address, &pin, &expected, &Remark::default()).await?;
            told.set(talk.binding().expect("it is sealed")).expect("it connects once");
            Ok::<_, std::io::Error>(hyper_util::rt::TokioIo::new(talk))
        }
    });
    let endpoint = tonic::transport::Endpoint::from_static("http://manager");
    let channel = endpoint.connect_with_connector(connector).await.unwrap();
    (channel, *known.get().unwrap())
}

/// Attempts of a stranger are counted and not written down each time, and push out nothing that was allowed.
#[tokio::test]
async fn a_strangers_tries_do_not_fill_the_audit_log() {
    const TRIES: u64 = 300;
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::open_or_new(&folder.path().join("ca")).unwrap();
    let token = authority.new_token("a", Duration::from_secs(60)).unwrap();
    let settings = "ca = 'PLACE/ca'\naudit-log = 'PLACE/audit'";
    let settings = settings.replace("PLACE", folder.path().to_str().unwrap());
    let manager = Running::start(&format!("{PATIENT}{settings}")).await;
    let begun = Instant::now();
    let (channel, binding) = pinned(manager.address, &token.pin).await;
    let client = AuthorityClient::new(channel);
    for number in 0..TRIES {
        // Every other name is one that nothing is written of.
        let name = "x".repeat(if number % 2 == 0 { 255 } else { 30_000 });
        let forged = JoinToken::fresh(&token.pin);
        let shown = forged.show(&Claim { binding: &binding, name: &name, request: &[] });
        let (token_id, proof) = (shown.id().to_string(), shown.proof().to_vec());
        let request =
            EnrollRequest { protocol_version: PROTOCOL_VERSION, name, token_id, proof, ..Default::default() };
        client.clone().enroll(request).await.unwrap_err();
    }
    manager.stop().await;
    let lines = |name: &str| -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(folder.path().join(name)).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let allowed: Vec<_> = lines("audit").into_iter().map(|line| line["what"].clone()).collect();
    assert_eq!(allowed, ["begin", "end"]);
    let refused = lines("refusals-audit");
    let times: u64 = refused.iter().map(|line| line["times"].as_u64().unwrap()).sum();
    assert_eq!(times, TRIES / 2, "{refused:?}");
    assert!(refused.iter().all(|line| line["what"] == "certificate-refused"), "{refused:?}");
    // The first one, one each second, and the last one when the manager ends.
    assert!(refused.len() as u64 <= begun.elapsed().as_secs() + 2, "{refused:?}");
    for name in ["audit", "refusals-audit"] {
        let good = polycast_manager::audit::verify(&[folder.path().join(name)], None).unwrap();
        assert_eq!(good.head.map(|head| head.last), Some(good.last));
    }
}

/// A client without a certificate may ask the manager's authority for one, and nothing else; a certificate
/// can be had for its own name only.
#[tokio::test]
async fn a_client_without_a_certificate_may_only_ask_for_one() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::open_or_new(folder.path()).unwrap();
    let token = authority.new_token("a", Duration::from_secs(60)).unwrap();
    let manager = Running::start(&format!("{PATIENT}ca = '{}'", folder.path().display())).await;
    let (channel, binding) = pinned(manager.address, &token.pin).await;
    let client = ManagerClient::new(channel.clone());
    let asked = client.clone().status(StatusRequest { protocol_version: PROTOCOL_VERSION }).await;
    assert!(asked.unwrap_err().message().contains("asks for a certificate"));
    let joined = Session::open(&client, join("a")).await;
    assert!(joined.err().unwrap().message().contains("asks for a certificate"));
    // It need not say anything to hear that: what it would say, as long as a message may be, is neither
    // waited for nor kept.
    let (_silent, nothing) = mpsc::channel(1);
    let mut asks = client.clone();
    let asked = tokio::time::timeout(HANG, asks.session(ReceiverStream::new(nothing))).await;
    let refused = asked.expect("it is answered").unwrap_err();
    assert!(refused.message().contains("asks for a certificate"), "{refused}");
    let request =
        EnrollRequest { protocol_version: PROTOCOL_VERSION, name: "a".into(), ..Default::default() };
    let enrolled = AuthorityClient::new(channel.clone()).enroll(request.clone()).await;
    assert!(enrolled.unwrap_err().message().contains("the certificate of 'a' is for no name"));
    let shown_of = |token: &JoinToken, binding: &Binding, request: EnrollRequest| {
        let shown = token.show(&Claim { binding, name: &request.name, request: &request.request });
        let (token_id, proof) = (shown.id().to_string(), shown.proof().to_vec());
        EnrollRequest { token_id, proof, ..request }
    };
    let shown = |binding: &Binding, request: EnrollRequest| shown_of(&token, binding, request);
    // Nothing is read for a client that has no token, and no long name is written down.
    let odd = EnrollRequest { request: vec![1], ..request.clone() };
    let forged = shown_of(&JoinToken::fresh(&token.pin), &binding, odd.clone());
    let enrolled = AuthorityClient::new(channel.clone()).enroll(forged).await;
    assert!(enrolled.unwrap_err().message().contains("there is no token"));
    let long = EnrollRequest { name: "x".repeat(256), ..request.clone() };
    let enrolled = AuthorityClient::new(channel.clone()).enroll(long).await;
    assert_eq!(enrolled.unwrap_err().message(), "a name of 256 bytes is longer than 255");
    // A request that is none does not use up the token.
    let enrolled = AuthorityClient::new(channel.clone()).enroll(shown(&binding, odd)).await;
    assert!(enrolled.unwrap_err().message().contains("the certificate request is wrong"));

    // One in the middle has heard what was shown to it, and repeats it on a connection of its own.
    let key = rcgen::KeyPair::generate().unwrap();
    let own = rcgen::CertificateParams::new(vec!["a".to_string()]).unwrap();
    let own = own.serialize_request(&key).unwrap().der().to_vec();
    let right = shown(&binding, EnrollRequest { request: own, ..request });
    let (others, _) = pinned(manager.address, &token.pin).await;
    let replayed = AuthorityClient::new(others).enroll(right.clone()).await;
    assert!(replayed.unwrap_err().message().contains("there is no token"));
    let enrolled = AuthorityClient::new(channel).enroll(right).await.unwrap().into_inner();
    assert_eq!(enrolled.authority, authority.pem());
    manager.stop().await;
}

/// An agent whose certificate could be a manager's is turned away, also where it joins by another name in it.
#[tokio::test]
async fn a_managers_certificate_lets_no_agent_in() {
    use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: String| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        path
    };
    let mut own = CertificateParams::default();
    own.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let ca = file("ca", own.self_signed(&key).unwrap().pem());
    let issuer = Issuer::new(own, key);
    let member = |file_name: &str, names: &[&str]| {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        let cert = file(&format!("{file_name}.pem"), params.signed_by(&key, &issuer).unwrap().pem());
        let key = file(&format!("{file_name}.key"), key.serialize_pem());
        TlsFiles { ca: ca.clone(), cert, key, crl: None }
    };
    let TlsFiles { ca, cert, key, .. } = member("manager", &["manager"]);
    let [ca, cert, key] = [ca, cert, key].map(|path| path.display().to_string());
    let settings = format!("{PATIENT}tls-ca = '{ca}'\ntls-cert = '{cert}'\ntls-key = '{key}'");
    let manager = Running::start(&settings).await;
    for (file, names, says) in [
        ("both", &["a", "manager"][..], "the certificate of 'a' is a manager's too"),
        ("other", &["b"], "the certificate of 'a' is for 'b'"),
    ] {
        let security = Security::files(member(file, names)).unwrap();
        let address = manager.address.to_string();
        let connector = tower::service_fn(move |_| {
            let (address, security) = (address.clone(), security.clone());
            async move {
                let expected = Expected::Manager(MANAGER.into());
                let talk = Talk::connect(&address, Some(&security), &expected, &Remark::default()).await;
                talk.map(hyper_util::rt::TokioIo::new)
            }
        });
        let endpoint = tonic::transport::Endpoint::from_static("http://manager");
        let client = ManagerClient::new(endpoint.connect_with_connector(connector).await.unwrap());
        let refused = Session::open(&client, join("a")).await.err().expect("it is turned away");
        assert!(refused.message().contains(says), "{refused}");
    }
    manager.stop().await;
}
