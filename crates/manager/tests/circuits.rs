//! The manager and a circuit switch that is only a table behind TL1: restarts, and answers that come late.
//! The racks' switches are not there, so that paths wait for them, or answer without doing anything.

#[path = "common/etcd.rs"]
mod etcd;

use polycast_api::PROTOCOL_VERSION;
use polycast_api::manager::agent_message::Message as Said;
use polycast_api::manager::manager_client::ManagerClient;
use polycast_api::manager::manager_message::Message as Told;
use polycast_api::manager::path_news::State;
use polycast_api::manager::{
    AgentId, AgentMessage, Granted, Heartbeat, Join, Lease, ManagerMessage, PathRequest, Release,
};
use polycast_manager::{Manager, ManagerConfig, ManagerError};
use polycast_net::devices::circuits::{Circuit, Dialect as _, Plain, Request, tl1_answer};
use polycast_net::devices::openflow::{Message, Port};
use polycast_testing::{HANG, folder_in_memory};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

/// A circuit switch: its circuits, and how often one was taken down.
#[derive(Clone, Default)]
struct Switch(Arc<Mutex<Table>>);

#[derive(Default)]
struct Table {
    circuits: BTreeMap<u32, u32>,
    taken_down: usize,
    /// Number of circuits that were made.
    made: usize,
    /// Circuits from this port are not made as long as it is here.
    held: Option<u32>,
    /// Set once one was requested.
    asked_for_held: bool,
}

impl Switch {
    async fn start(&self) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let switch = self.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(switch.clone().talk(stream));
            }
        });
        address
    }

    fn circuits(&self) -> Vec<(u32, u32)> {
        self.0.lock().unwrap().circuits.iter().map(|(from, to)| (*from, *to)).collect()
    }

    async fn talk(self, stream: TcpStream) {
        let (mut reader, mut writer) = stream.into_split();
        let (answers, mut outgoing) = mpsc::unbounded_channel::<String>();
        tokio::spawn(async move {
            while let Some(answer) = outgoing.recv().await {
                if writer.write_all(answer.as_bytes()).await.is_err() {
                    return;
                }
            }
        });
        let (mut text, mut buffer) = (String::new(), [0; 4_096]);
        while let Ok(len @ 1..) = reader.read(&mut buffer).await {
            text.push_str(&String::from_utf8_lossy(&buffer[..len]));
            while let Some(end) = text.find(';') {
                let command: String = text.drain(..=end).collect();
                let Ok((request, tag)) = Plain.parse(&command[..end]) else { continue };
                let (switch, answers) = (self.clone(), answers.clone());
                tokio::spawn(async move { answers.send(switch.answer(request, tag).await) });
            }
        }
    }

    async fn answer(self, request: Request, tag: String) -> String {
        if let Request::Enter(circuit) = &request {
            while self.0.lock().unwrap().held == Some(circuit.from) {
                self.0.lock().unwrap().asked_for_held = true;
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        let mut table = self.0.lock().unwrap();
        let lines = match request {
            Request::Enter(Circuit { from, to }) => {
                assert!(table.circuits.insert(from, to).is_none(), "port {from} is in use");
                table.made += 1;
                vec![]
            }
            Request::Delete(Circuit { from, .. }) => {
                table.circuits.remove(&from);
                table.taken_down += 1;
                vec![]
            }
            Request::Retrieve => {
                table.circuits.iter().map(|(&from, &to)| Plain.circuit_name(Circuit { from, to })).collect()
            }
            _ => vec![],
        };
        tl1_answer(&tag, Ok(lines), "SWITCH", "26-01-01 00:00:00")
    }
}

/// Messages that racks' switches have received.
#[derive(Default)]
struct Heard {
    rules: AtomicUsize,
    /// Number of requests for a switch's ports: each comes after everything that the switch has to keep.
    ports: AtomicUsize,
}

/// A rack's switch that takes everything in and does nothing.
async fn start_rack(told: Arc<Heard>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve_rack(stream, Arc::clone(&told)));
        }
    });
    address
}

/// Talks with one manager, and counts what it is told.
async fn serve_rack(mut stream: TcpStream, told: Arc<Heard>) -> std::io::Result<()> {
    stream.write_all(&Message::Hello { versions: None }.emit(1)).await?;
    let (mut buffer, mut bytes) = ([0; 4_096], Vec::new());
    loop {
        let len = stream.read(&mut buffer).await?;
        if len == 0 {
            return Ok(());
        }
        bytes.extend_from_slice(&buffer[..len]);
        while let Some(len) = Message::len_at(&bytes).unwrap().filter(|len| *len <= bytes.len()) {
            let message: Vec<u8> = bytes.drain(..len).collect();
            let (message, transaction) = Message::parse(&message).unwrap();
            let (address, name, disabled, link_down) = ([2, 0, 0, 0, 0, 9], "fibre".into(), false, false);
            let answer = match message {
                Message::FeaturesRequest => Message::FeaturesReply { datapath_id: 1, buffers: 0, tables: 2 },
                Message::EchoRequest(data) => Message::EchoReply(data),
                Message::BarrierRequest => Message::BarrierReply,
                Message::GroupFeaturesRequest => Message::GroupFeaturesReply { types: 1 },
                Message::PortsRequest => {
                    told.ports.fetch_add(1, Ordering::SeqCst);
                    let ports = vec![Port { number: 9, address, name, disabled, link_down }];
                    Message::PortsReply { ports, more: false }
                }
                Message::FlowMod(_) => {
                    told.rules.fetch_add(1, Ordering::SeqCst);
                    continue;
                }
                _ => continue,
            };
            stream.write_all(&answer.emit(transaction)).await?;
        }
    }
}

/// Four racks of a host and a fibre each, whose switches are not there.
fn settings(switch: SocketAddr, listen: &str) -> String {
    let nowhere: Vec<String> = (0..4).map(|rack| format!("unix:/nowhere/{rack}")).collect();
    settings_with(switch, listen, &nowhere)
}

/// The same with racks' switches at these places.
fn settings_with(switch: SocketAddr, listen: &str, racks: &[String]) -> String {
    let rack = |(rack, switch): (usize, &String)| {
        format!(
            "[[tor]]\nopenflow = '{switch}'\nfibre-ports = [9]\n\
             hosts = [{{ name = 'h{rack}', port = 1 }}]\n"
        )
    };
    let racks: String = racks.iter().enumerate().map(rack).collect();
    format!(
        "listen = '{listen}'\nfabrics = ['ocs']\nscheduler = 'greedy-matching'\non-device-failure = 'wait'\n\
         silence-ms = 600000\nlease-ms = 600000\ndevice-timeout-ms = 120000\n\
         [ocs]\ntl1 = '{switch}'\ndialect = 'plain'\nsplitters = 1\nsplitter-fanout = 2\nrate = '1gbit'\n{racks}"
    )
}

struct Running {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), ManagerError>>,
}

impl Running {
    async fn start(settings: &str) -> Self {
        let manager = Manager::bind(ManagerConfig::from_toml(settings).unwrap()).await.unwrap();
        let (address, (stop, stopped)) = (manager.address(), oneshot::channel::<()>());
        let task = tokio::spawn(manager.serve(async {
            let _ = stopped.await;
        }));
        Running { address, stop, task }
    }

    async fn stop(self) {
        self.stop.send(()).unwrap();
        tokio::time::timeout(HANG, self.task).await.unwrap().unwrap().unwrap();
    }

    async fn join(&self, host: u32, leases: Vec<Lease>) -> Session {
        self.try_join(host, leases).await.unwrap()
    }

    /// Joins as soon as this manager leads.
    async fn join_leader(&self, host: u32) -> Session {
        let begun = Instant::now();
        loop {
            match self.try_join(host, vec![]).await {
                Ok(session) => return session,
                Err(status) => assert!(begun.elapsed() < HANG, "{status}"),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn try_join(&self, host: u32, leases: Vec<Lease>) -> Result<Session, Status> {
        let (outbox, stream) = mpsc::channel(64);
        let join = Join {
            protocol_version: PROTOCOL_VERSION,
            agent: Some(AgentId { name: format!("h{host}"), incarnation: 1 }),
            address: format!("10.0.0.{host}"),
            control_port: 7401,
            leases,
            node: None,
        };
        outbox.send(AgentMessage { message: Some(Said::Join(join)) }).await.unwrap();
        let mut client = ManagerClient::connect(format!("http://{}", self.address)).await.unwrap();
        let messages = client.session(ReceiverStream::new(stream)).await?.into_inner();
        Ok(Session { outbox, messages })
    }
}

struct Session {
    outbox: mpsc::Sender<AgentMessage>,
    messages: Streaming<ManagerMessage>,
}

impl Session {
    async fn ask(&self, receiver: u32) {
        let request = PathRequest {
            request_id: 1,
            app_id: vec![0; 16],
            data_id: 1,
            data_size: 1_000,
            remaining_size: 1_000,
            receivers: vec![format!("h{receiver}")],
            ..PathRequest::default()
        };
        self.outbox.send(AgentMessage { message: Some(Said::Request(request)) }).await.unwrap();
    }

    async fn granted(&mut self) -> Granted {
        self.until(|told| if let Told::Granted(granted) = told { Some(granted) } else { None }).await
    }

    /// Waits until all devices have the path.
    async fn ready(&mut self) {
        self.until(|told| matches!(told, Told::Path(news) if news.state() == State::Ready).then_some(()))
            .await;
    }

    /// Waits until everything that was said before has been heard, and written where it is kept.
    async fn heard(&mut self) {
        let beat = Heartbeat { number: 1, leases: vec![], node: None };
        self.outbox.send(AgentMessage { message: Some(Said::Heartbeat(beat)) }).await.unwrap();
        self.until(|told| matches!(told, Told::Heartbeat(_)).then_some(())).await;
    }

    async fn until<T>(&mut self, what: impl Fn(Told) -> Option<T>) -> T {
        let told = async {
            loop {
                match self.messages.message().await.unwrap().unwrap().message {
                    Some(Told::Denied(denied)) => panic!("{denied:?}"),
                    Some(told) => {
                        if let Some(found) = what(told) {
                            return found;
                        }
                    }
                    None => {}
                }
            }
        };
        tokio::time::timeout(HANG, told).await.unwrap()
    }
}

fn lease(granted: &Granted, receiver: u32) -> Lease {
    Lease {
        request_id: granted.request_id,
        response_id: granted.response_id,
        receivers: vec![format!("h{receiver}")],
        accepted_size: granted.accepted_size,
        fabric: granted.fabric.clone(),
        channel: granted.channel.clone(),
        app_id: vec![0; 16],
        data_id: 1,
        left_ms: None,
        plan: granted.plan.clone(),
        or_fail: false,
        further_sources: Vec::new(),
    }
}

async fn until(what: &str, is: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is() {
        assert!(begun.elapsed() < HANG, "not yet: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A circuit in use is neither taken down nor lent to others, however early these ask.
#[tokio::test]
async fn circuits_in_use_survive_a_restart_of_the_manager() {
    let switch = Switch::default();
    let tl1 = switch.start().await;
    let settings = settings(tl1, "127.0.0.1:0");
    let manager = Running::start(&settings).await;
    let mut source = manager.join(0, vec![]).await;
    let _receiver = manager.join(1, vec![]).await;
    source.ask(1).await;
    let granted = source.granted().await;
    until("its circuit", || !switch.circuits().is_empty()).await;
    let circuits = switch.circuits();
    manager.stop().await;

    let manager = Running::start(&settings).await;
    let mut other = manager.join(2, vec![]).await;
    let _receiver = manager.join(1, vec![]).await;
    other.ask(1).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let source = manager.join(0, vec![lease(&granted, 1)]).await;
    let lent = tokio::time::timeout(Duration::from_millis(500), other.granted()).await;
    assert!(lent.is_err(), "the fibre of rack 1 is in use: {lent:?}");
    assert_eq!((switch.circuits(), switch.0.lock().unwrap().taken_down), (circuits.clone(), 0));
    // Given back, the other gets it.
    let release =
        Release { request_id: granted.request_id, response_id: granted.response_id, ..Default::default() };
    source.outbox.send(AgentMessage { message: Some(Said::Release(release)) }).await.unwrap();
    other.granted().await;
    until("the other's circuit", || switch.circuits().iter().any(|(from, _)| *from == 2)).await;
    manager.stop().await;
}

#[tokio::test]
async fn a_late_answer_of_the_circuit_switch_delays_no_other() {
    let switch = Switch::default();
    switch.0.lock().unwrap().held = Some(0);
    let tl1 = switch.start().await;
    let manager = Running::start(&settings(tl1, "127.0.0.1:0")).await;
    let mut sessions = Vec::new();
    for host in 0..4 {
        sessions.push(manager.join(host, vec![]).await);
    }
    // Light from rack 0 is made late.
    sessions[0].ask(1).await;
    sessions[0].granted().await;
    until("the circuit switch is asked", || switch.0.lock().unwrap().asked_for_held).await;
    sessions[2].ask(3).await;
    sessions[2].granted().await;
    until("the circuit of the second", || switch.circuits().iter().any(|(from, _)| *from == 2)).await;
    assert!(!switch.circuits().iter().any(|(from, _)| *from == 0), "it is held");
    switch.0.lock().unwrap().held = None;
    until("the circuit of the first", || switch.circuits().iter().any(|(from, _)| *from == 0)).await;
    manager.stop().await;
}

/// A path that is kept ready costs devices nothing, though another manager leads now.
#[tokio::test]
async fn a_path_that_is_kept_ready_survives_its_leader() {
    let folder = folder_in_memory();
    let Some((_etcd, etcd)) = etcd::start(folder.path().to_str().unwrap()) else { return };
    let switch = Switch::default();
    let (tl1, told) = (switch.start().await, Arc::new(Heard::default()));
    let mut racks = Vec::new();
    for _ in 0..4 {
        racks.push(start_rack(Arc::clone(&told)).await.to_string());
    }
    // No leader is taken for dead.
    let settings =
        settings_with(tl1, "127.0.0.1:0", &racks) + &format!("[etcd]\nttl-s = 120\nendpoints = ['{etcd}']\n");
    let first = Running::start(&settings).await;
    let (mut source, receiver) = (first.join_leader(0).await, first.join_leader(1).await);
    source.ask(1).await;
    let granted = source.granted().await;
    source.ready().await;
    let before = switch.circuits();
    assert!(!before.is_empty());
    // All racks have the rules that stand, and two of them those of the path.
    until("all racks are told", || told.ports.load(Ordering::SeqCst) >= 4).await;
    let rules = told.rules.load(Ordering::SeqCst);
    let release =
        Release { request_id: granted.request_id, response_id: granted.response_id, ..Default::default() };
    source.outbox.send(AgentMessage { message: Some(Said::Release(release)) }).await.unwrap();
    source.heard().await;
    // It says nothing more to etcd, the devices or agents.
    first.task.abort();
    assert!(first.task.await.unwrap_err().is_cancelled());
    drop((source, receiver));
    etcd::forget_leader(&etcd);

    let second = Running::start(&settings).await;
    let (mut source, _receiver) = (second.join_leader(0).await, second.join_leader(1).await);
    // It tells racks what they have to keep.
    until("racks are told again", || told.rules.load(Ordering::SeqCst) >= 2 * rules).await;
    let rules = told.rules.load(Ordering::SeqCst);
    source.ask(1).await;
    source.granted().await;
    source.ready().await;
    assert_eq!(told.rules.load(Ordering::SeqCst), rules, "racks have had their rules all the time");
    let table = switch.0.lock().unwrap();
    assert_eq!((table.made, table.taken_down), (before.len(), 0), "{:?}", table.circuits);
}
