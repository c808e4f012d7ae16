//! A manager and agents in one process, and an engine that moves bytes without a network.

use polycast_agent::daemon::{Agent, AgentConfig, AgentError, Engine, Transports};
use polycast_agent::transfer::{
    Options, Received, ReceiverProgress, ReceiverReport, ReceiverSpec, Receivers, Rendezvous, Report, Sink,
    SlowPolicy, SourceSpec, TransferError, Verified,
};
use polycast_api::agent::send_event::Event;
use polycast_api::client::{AgentClient, ClientError, Sending, Session, Wait};
use polycast_manager::{Manager, ManagerConfig, ManagerError};
use polycast_net::frames::FrameStream;
use polycast_net::object::ObjectKind;
use polycast_net::store::{PartFile, Placing, StoreError};
use polycast_net::tls::Expected;
use polycast_testing::{HANG, is_ipv6, multicast_group, own_address};
use polycast_types::{AppId, Duration as Span, Handle, ObjectId};
use polycast_wire::control::Control;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::sync::{RwLock, oneshot};
use tokio::task::JoinHandle;

/// Longer than anything takes that is no fault.
pub(crate) const LONG: Span = Span::from_secs(HANG.as_secs());
/// A reader waits until the object is there.
pub(crate) const SOON: Wait = Wait::UntilReady(Some(LONG));

/// A process that has just been made has all our files open until its program begins. None is made while a
/// test looks at which files are open: who makes one writes, who looks reads.
pub(crate) static MAKING: RwLock<()> = RwLock::const_new(());

/// The transports, where no end gives up another one, or goes on without it, because it is slow: a machine
/// that is busy changes nothing.
#[derive(Clone, Default)]
pub(crate) struct Patient(pub(crate) Transports);

fn patient(options: Options) -> Options {
    Options {
        join_timeout: LONG,
        have_timeout: LONG,
        path_timeout: LONG,
        stall_timeout: LONG,
        slow: SlowPolicy::Wait,
        ..options
    }
}

impl Engine for Patient {
    fn deliver(&self, spec: SourceSpec, on_event: &mut dyn FnMut(&Report)) -> Result<Report, TransferError> {
        self.0.deliver(SourceSpec { options: patient(spec.options), ..spec }, on_event)
    }

    fn receive(
        &self,
        spec: ReceiverSpec,
        on_event: &mut dyn FnMut(&ReceiverProgress),
    ) -> Result<Received, TransferError> {
        self.0.receive(ReceiverSpec { options: patient(spec.options), ..spec }, on_event)
    }

    fn can_pull(&self) -> bool {
        self.0.can_pull()
    }
}

/// An object on its way: name, kind, bytes, and how many have it.
type Parcel = (String, ObjectKind, Vec<u8>, Arc<AtomicUsize>);

/// Hands objects over in memory.
#[derive(Default)]
pub(crate) struct FakeEngine {
    parcels: Mutex<BTreeMap<u64, Parcel>>,
    next: AtomicU64,
    /// While set, sources wait after they have invited.
    pub hold: AtomicBool,
    /// Receivers have no room.
    pub break_down: AtomicBool,
    pub deliveries: AtomicUsize,
}

impl Engine for FakeEngine {
    fn deliver(&self, spec: SourceSpec, on_event: &mut dyn FnMut(&Report)) -> Result<Report, TransferError> {
        self.deliveries.fetch_add(1, Ordering::SeqCst);
        let Receivers::Named(named) = &spec.receivers else { panic!("{:?}", spec.receivers) };
        let mut bytes = vec![0; spec.source.len() as usize];
        spec.source.read_exact_at(&mut bytes, 0).map_err(TransferError::Read)?;
        let root = format!("{:08x}", bytes.len());
        let handle = self.next.fetch_add(1, Ordering::SeqCst);
        let done = Arc::new(AtomicUsize::new(0));
        let length = bytes.len() as u64;
        self.parcels.lock().unwrap().insert(handle, (spec.name.clone(), spec.kind, bytes, Arc::clone(&done)));
        let joined: Vec<Result<(), String>> =
            named.iter().map(|(_, address)| invite(*address, &spec, Handle(handle))).collect();
        let expected = joined.iter().filter(|answer| answer.is_ok()).count();
        let mut report = Report {
            object: spec.object,
            bytes: length,
            root: Some(root),
            seconds: 0.5,
            sent_bytes: length,
            patched_bytes: 0,
            spared_bytes: 0,
            coded_bytes: 0,
            heard: 0,
            fabric: "ip-multicast".into(),
            path_lost: None,
            events: Vec::new(),
            control: Vec::new(),
            receivers: Vec::new(),
            trees: Vec::new(),
            left: Vec::new(),
            sealed: false,
            forged_packets: 0,
            zones: Vec::new(),
            passed_over: Vec::new(),
            estimate_s: None,
            took_s: None,
        };
        on_event(&report);
        let start = Instant::now();
        while self.hold.load(Ordering::SeqCst) || done.load(Ordering::SeqCst) < expected {
            if spec.cancel.load(Ordering::SeqCst) {
                return Err(TransferError::Cancelled);
            }
            if start.elapsed() > HANG || self.break_down.load(Ordering::SeqCst) {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let receiver = |((name, _), answer): (&(String, SocketAddr), &Result<(), String>)| ReceiverReport {
            name: name.clone(),
            verified: answer.is_ok(),
            seconds: 0.5,
            bytes: length,
            patched_bytes: 0,
            fabric: "ip-multicast".into(),
            error: answer.clone().err(),
            ..ReceiverReport::default()
        };
        report.receivers = named.iter().zip(&joined).map(receiver).collect();
        Ok(report)
    }

    fn receive(
        &self,
        spec: ReceiverSpec,
        on_event: &mut dyn FnMut(&ReceiverProgress),
    ) -> Result<Received, TransferError> {
        let Rendezvous::At(_, handle) = spec.rendezvous else { panic!("{:?}", spec.rendezvous) };
        let Sink::Kept { path, keeper } = spec.sink else { panic!("{:?}", spec.sink) };
        let (name, kind, bytes, done) = self.parcels.lock().unwrap().get(&handle.0).unwrap().clone();
        let length = bytes.len() as u64;
        let half = ReceiverProgress {
            name: name.clone(),
            bytes: length / 2,
            spared_bytes: 0,
            total: length,
            corrupt_groups: 0,
            received: None,
        };
        on_event(&half);
        while self.hold.load(Ordering::SeqCst) {
            if spec.cancel.load(Ordering::SeqCst) {
                return Err(TransferError::Cancelled);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        if self.break_down.load(Ordering::SeqCst) {
            return Err(StoreError::Full { place: "/store".into(), needed: 2, free: 1 }.into());
        }
        let part = PartFile::open(&path, length, Placing { replace: true, ..Placing::default() })?;
        part.write(&bytes, 0)?;
        // The id is in the file's name: APP-NUMBER.object.
        let stem = path.file_stem().unwrap().to_str().unwrap();
        let (app, data) = stem.rsplit_once('-').unwrap();
        let object = format!("{app}/{data}").parse().unwrap();
        let root = format!("{length:08x}");
        let len_bytes = length;
        keeper.keep(
            part,
            &Verified {
                object,
                name: name.clone(),
                kind,
                len_bytes,
                mode: 0o644,
                modified: None,
                root: root.clone(),
            },
        )?;
        done.fetch_add(1, Ordering::SeqCst);
        Ok(Received {
            object,
            name,
            kind,
            bytes: length,
            mode: 0o644,
            modified: None,
            root,
            path,
            seconds: 0.1,
            waited: 0.0,
            patched_bytes: 0,
            spared_bytes: 0,
            came_bytes: length,
            corrupt_groups: 0,
            sealed: false,
            forged_packets: 0,
            unchanged: false,
        })
    }
}

fn invite(address: SocketAddr, spec: &SourceSpec, handle: Handle) -> Result<(), String> {
    let mut stream = call(address, (spec.object, spec.source.len()), handle)?;
    loop {
        stream.wait(Duration::from_millis(100)).map_err(|e| e.to_string())?;
        let open = stream.fill();
        match stream.next_frame().map_err(|e| e.to_string())? {
            Some(Control::Alive) => {}
            Some(Control::Joining) => return Ok(()),
            Some(Control::Refuse(reason)) => return Err(reason.to_string()),
            Some(other) => return Err(format!("{other:?}")),
            None => {
                open.map_err(|e| e.to_string())?;
            }
        }
    }
}

/// Says INVITE to an agent, as the source that all transfers here have.
pub(crate) fn call(
    address: SocketAddr,
    (object, object_len): (ObjectId, u64),
    handle: Handle,
) -> Result<FrameStream, String> {
    let mut stream =
        FrameStream::connect(address, HANG, None, &Expected::Sharer).map_err(|e| e.to_string())?;
    let frame = Control::Invite {
        address: [127, 0, 0, 1].into(),
        port: 9,
        handle,
        object,
        pulled: false,
        object_len,
        root: None,
        permit: None,
        delta: None,
    };
    stream.send(&frame).map_err(|e| e.to_string())?;
    Ok(stream)
}

/// The next frame of an agent: that it joins, or why it does not; `None` where it only says that it will
/// answer.
pub(crate) fn answer(stream: &mut FrameStream) -> Option<Result<(), String>> {
    loop {
        match stream.next_frame().unwrap() {
            Some(Control::Alive) => return None,
            Some(Control::Joining) => return Some(Ok(())),
            Some(other) => return Some(Err(format!("{other:?}"))),
            None => {}
        }
        if !stream.fill().unwrap() {
            stream.wait(HANG).unwrap();
        }
    }
}

/// A daemon's task, and how to end it.
pub(crate) struct Task<E> {
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), E>>,
}

impl<E: std::fmt::Debug> Task<E> {
    /// Ends it in good order.
    pub(crate) async fn stop(self) {
        self.stop.send(()).unwrap();
        tokio::time::timeout(HANG, self.task).await.unwrap().unwrap().unwrap();
    }

    /// Waits until it ends by itself.
    pub(crate) async fn end(self) -> Result<(), E> {
        tokio::time::timeout(HANG, self.task).await.unwrap().unwrap()
    }
}

/// The settings with the pool of the family that the test's network has.
fn of_family(settings: &str) -> String {
    let Some((before, pool)) = settings.split_once("pool = '").filter(|_| is_ipv6()) else {
        return settings.into();
    };
    let (address, rest) = pool.split_once('/').unwrap();
    if address.contains(':') {
        return settings.into();
    }
    let (prefix, rest) = rest.split_once('\'').unwrap();
    let address: std::net::Ipv4Addr = address.parse().unwrap();
    let prefix = prefix.parse::<u32>().unwrap() + 96;
    format!("{before}pool = '{}/{prefix}'{rest}", multicast_group(address.octets()))
}

pub(crate) struct ManagerTask {
    pub address: SocketAddr,
    pub task: Task<ManagerError>,
}

/// Starts a manager; port 0 for a new one. It takes none for dead that is only slow, unless the settings say
/// after how long.
pub(crate) async fn manager(port: u16, settings: &str) -> ManagerTask {
    let mut config = ManagerConfig::from_toml(&of_family(settings)).unwrap();
    if !settings.contains("silence-ms") {
        config.silence_ms = LONG.as_millis();
    }
    if !settings.contains("lease-ms") {
        config.lease_ms = LONG.as_millis() * 5;
    }
    config.listen = (own_address(), port).into();
    let manager = Manager::bind(config).await.unwrap();
    let address = manager.address();
    let (stop, stopped) = oneshot::channel::<()>();
    let task = tokio::spawn(manager.serve(async {
        let _ = stopped.await;
    }));
    ManagerTask { address, task: Task { stop, task } }
}

pub(crate) struct AgentTask {
    pub socket: PathBuf,
    pub store: PathBuf,
    /// Address that other agents reach it at.
    pub control: SocketAddr,
    pub task: Task<AgentError>,
}

impl AgentTask {
    pub(crate) async fn client(&self) -> AgentClient {
        AgentClient::connect(&self.socket).await.unwrap()
    }

    /// A registered process of the default application.
    pub(crate) async fn session(&self, process: u64) -> Session {
        self.client().await.register(AppId::default(), process).await.unwrap()
    }
}

/// Folder, engine and manager address of the agents of a test.
pub(crate) struct World {
    pub folder: TempDir,
    pub engine: Arc<FakeEngine>,
    pub manager: SocketAddr,
}

impl World {
    pub(crate) fn new(manager: SocketAddr) -> Self {
        let folder = polycast_testing::folder_in_memory();
        World { folder, engine: Arc::new(FakeEngine::default()), manager }
    }

    pub(crate) fn config(&self, name: &str) -> AgentConfig {
        AgentConfig {
            manager: self.manager.to_string(),
            name: Some(name.into()),
            interface: Some(own_address().to_string()),
            // The usual port of one that ends is soon another test's agent, perhaps one of the same name.
            control_port: Some(0),
            store: Some(self.folder.path().join(name)),
            socket: Some(self.folder.path().join(format!("{name}.sock"))),
            ..AgentConfig::default()
        }
    }

    /// Starts an agent with the fake engine.
    pub(crate) async fn agent(&self, name: &str) -> AgentTask {
        let agent = Agent::start_with(self.config(name), Arc::clone(&self.engine) as _).await.unwrap();
        serve(agent)
    }

    /// Starts an agent with the transports.
    pub(crate) async fn real_agent(&self, config: AgentConfig) -> AgentTask {
        serve(Agent::start_with(config, Arc::new(Patient::default())).await.unwrap())
    }

    /// Starts agents and waits until the manager knows them all.
    pub(crate) async fn agents<const N: usize>(&self, names: [&str; N]) -> [AgentTask; N] {
        let mut agents = Vec::new();
        for name in names {
            agents.push(self.agent(name).await);
        }
        let client = agents[0].client().await;
        until("all agents have joined", async || client.status().await.unwrap().peers.len() == N).await;
        agents.try_into().unwrap_or_else(|_| unreachable!("as many as names"))
    }

    /// A file to send.
    pub(crate) fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }
}

/// Starts a manager with these settings, and agents that know each other.
pub(crate) async fn started<const N: usize>(
    settings: &str,
    names: [&str; N],
) -> (ManagerTask, World, [AgentTask; N]) {
    let manager = manager(0, settings).await;
    let world = World::new(manager.address);
    let agents = world.agents(names).await;
    (manager, world, agents)
}

/// Ends agents and their manager in good order.
pub(crate) async fn stopped(agents: impl IntoIterator<Item = AgentTask>, manager: ManagerTask) {
    for agent in agents {
        agent.task.stop().await;
    }
    manager.task.stop().await;
}

pub(crate) fn serve(agent: Agent) -> AgentTask {
    let (socket, store, control) = (agent.socket().to_path_buf(), agent.store(), agent.control_address());
    let (stop, stopped) = oneshot::channel::<()>();
    let task = tokio::spawn(agent.serve(async {
        let _ = stopped.await;
    }));
    AgentTask { socket, store, control, task: Task { stop, task } }
}

/// Waits until something is so.
pub(crate) async fn until(what: &str, condition: impl AsyncFn() -> bool) {
    let start = Instant::now();
    while !condition().await {
        assert!(start.elapsed() < HANG, "never: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// All events of a transfer until its end.
pub(crate) async fn events(mut sending: Sending) -> (Vec<Event>, Option<ClientError>) {
    let mut events = Vec::new();
    loop {
        match sending.next().await {
            Ok(Some(event)) => events.push(event),
            Ok(None) => return (events, None),
            Err(error) => return (events, Some(error)),
        }
    }
}
