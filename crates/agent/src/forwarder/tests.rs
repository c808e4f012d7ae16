//! Nodes on the loopback interface, without a lab: whole transfers, failures and hostile packets.

mod kept;

use super::*;
use crate::transfer::{
    Options, Path as TransferPath, Received, ReceiverSpec, Receivers, Rendezvous, Report, RouteChange, Sink,
    SourceSpec, Steering, TransferError, TreePath, fetch, prepare_pull,
};
use polycast_net::object::{FileSource, ObjectKind, ObjectSource};
use polycast_net::words::WordsKey;
use polycast_protocol::pull::{Hop, Route};
use polycast_testing::{HANG, wait_for};
use polycast_types::{Handle, ObjectId};
use polycast_wire::pull as wire;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::time::Instant;

/// Addresses that belong to this process, and ports that belong to one test of it.
fn address() -> SocketAddrV4 {
    static NEXT: AtomicU16 = AtomicU16::new(22_000);
    let id = std::process::id();
    let ip = Ipv4Addr::new(127, 100 + (id >> 16) as u8 % 100, (id >> 8) as u8, id as u8);
    SocketAddrV4::new(ip, NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Links between numbered nodes; every node gets its ports in the order in which links name it.
pub(crate) fn configs(nodes: usize, links: &[(usize, usize)]) -> Vec<NodeConfig> {
    let mut configs: Vec<NodeConfig> = (0..nodes).map(|number| node(&format!("n{number}"))).collect();
    for &(a, b) in links {
        let (here, there) = (address(), address());
        configs[a].ports.push(PortConfig { local: here, peer: there, rate: None });
        configs[b].ports.push(PortConfig { local: there, peer: here, rate: None });
    }
    configs
}

fn node(name: &str) -> NodeConfig {
    NodeConfig {
        name: name.into(),
        number: None,
        namespace: None,
        store_packets: 256,
        replacement: Replacement::Oldest,
        pending_interests: 4_096,
        interest_ms: 20,
        greeting_ms: 1_000,
        damping_ms: 0,
        hops_max: 8,
        kernel: true,
        dscp: None,
        ports: Vec::new(),
    }
}

pub(crate) fn start_all(configs: &[NodeConfig]) -> Vec<NodeHandle> {
    configs.iter().map(|config| start(config, &WordsKey::default()).unwrap()).collect()
}

pub(crate) fn route(hops: &[(u8, bool)]) -> Option<Route> {
    let hops: Vec<Hop> = hops.iter().map(|&(port, non_branching)| Hop { port, non_branching }).collect();
    Some(Route::new(&hops).unwrap())
}

fn object(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + at / 977) as u8).collect()
}

const LINK_BPS: u64 = 400_000_000;

/// A receiver's way to the source in each tree.
type Ways = Vec<Option<Route>>;
type Outcomes = (Result<Report, TransferError>, Vec<Result<Received, TransferError>>);

/// Runs a transfer from the first node to others; `meanwhile` may break things.
fn deliver(
    nodes: &[NodeHandle],
    bytes: &[u8],
    receivers: &[(usize, Ways)],
    payload_len: u16,
    folder: &Path,
    meanwhile: impl FnOnce(&Steering),
) -> Outcomes {
    let source = Arc::new(bytes.to_vec());
    deliver_when(nodes, source, receivers, payload_len, folder, |_| {}, |steering, _| meanwhile(steering))
}

/// The same; each receiver comes when `may_come` is over for its node.
fn deliver_when(
    nodes: &[NodeHandle],
    object: Arc<dyn ObjectSource>,
    receivers: &[(usize, Ways)],
    payload_len: u16,
    folder: &Path,
    may_come: impl Fn(usize) + Sync,
    meanwhile: impl FnOnce(&Steering, Handle),
) -> Outcomes {
    let name = |at: usize| nodes[at].name().to_string();
    let steering = Arc::new(Steering::default());
    let path = TreePath {
        trees: receivers.iter().map(|(_, routes)| routes.len()).max().unwrap() as u8,
        payload_len,
        credits: 16,
        link_bps: LINK_BPS,
        tuning: Default::default(),
        routes: receivers.iter().map(|(at, routes)| (name(*at), routes.clone())).collect(),
    };
    let spec = SourceSpec {
        object: ObjectId::default(),
        name: "object".into(),
        kind: ObjectKind::File,
        source: object,
        root: None,
        receivers: Receivers::Told(receivers.len()),
        location: polycast_types::Location::default(),
        interface: Ipv4Addr::LOCALHOST.into(),
        path: TransferPath::Trees(path),
        options: Options { stall_timeout: HANG.into(), ..Options::default() },
        cancel: Arc::default(),
        steering: Arc::clone(&steering),
    };
    let prepared = prepare_pull(spec, &nodes[0]).unwrap();
    let (address, handle) = (prepared.control_address(), prepared.handle());
    std::thread::scope(|scope| {
        let source = scope.spawn(move || prepared.run(&mut |_| {}));
        let fetched: Vec<_> = receivers
            .iter()
            .map(|(at, _)| {
                let spec = ReceiverSpec {
                    name: name(*at),
                    rendezvous: Rendezvous::Pull(address, handle),
                    called: None,
                    location: polycast_types::Location::default(),
                    interface: Ipv4Addr::LOCALHOST.into(),
                    sink: Sink::At { path: folder.join(format!("object-{at}")), replace: true },
                    options: Options::default(),
                    cancel: Arc::new(AtomicBool::new(false)),
                };
                let (node, may_come) = (nodes[*at].clone(), &may_come);
                scope.spawn(move || {
                    may_come(*at);
                    fetch(&spec, &node, &mut |_| {})
                })
            })
            .collect();
        meanwhile(&steering, handle);
        let outcome = source.join().unwrap();
        (outcome, fetched.into_iter().map(|thread| thread.join().unwrap()).collect())
    })
}

/// 0 - 1 - 2 and 3 behind 1; 4 behind 3, so that 3 is a receiver on the way.
fn small_tree() -> (Vec<NodeConfig>, Vec<(usize, Ways)>) {
    let configs = configs(5, &[(0, 1), (1, 2), (1, 3), (3, 4)]);
    let receivers = vec![
        (2, vec![route(&[(0, false), (0, false)])]),
        (3, vec![route(&[(0, false), (0, false)])]),
        (4, vec![route(&[(0, false), (0, false), (0, false)])]),
    ];
    (configs, receivers)
}

fn assert_delivered(outcomes: &Outcomes, bytes: &[u8]) {
    let (outcome, fetched) = outcomes;
    let report = outcome.as_ref().unwrap();
    assert!(report.receivers.iter().all(|receiver| receiver.verified), "{report:?}");
    for received in fetched {
        let received = received.as_ref().unwrap();
        assert!(std::fs::read(&received.path).unwrap() == bytes, "{}", received.path.display());
    }
}

#[test]
fn objects_of_all_sizes_reach_all_and_the_source_sends_once() {
    let (configs, receivers) = small_tree();
    let nodes = start_all(&configs);
    for (number, len) in [0, 1, 1_400, 300_001, 5 << 20].into_iter().enumerate() {
        let folder = tempfile::tempdir().unwrap();
        let bytes = object(len);
        let payload = if number % 2 == 0 { 8_192 } else { 1_400 };
        let outcomes = deliver(&nodes, &bytes, &receivers, payload, folder.path(), |_| {});
        assert_delivered(&outcomes, &bytes);
        let outcome = outcomes.0.unwrap();
        // Each packet, and those with the lists of names, leaves once by the one port. What leaves again was
        // asked for again: a store forgot it before the last had asked, or the answer took long.
        let (again, tree) = (outcome.patched_bytes, &outcome.trees[0]);
        let first = outcome.sent_bytes - again;
        assert!(first >= len as u64 && first < (len + len / 8) as u64 + 8_192, "{first} bytes for {len}");
        assert!(again <= tree.duplicates * u64::from(payload), "{tree:?}");
    }
    for node in &nodes {
        let status = node.status().unwrap();
        assert_eq!((status.transfers, status.poisoned, status.malformed), (0, 0, 0), "{status:?}");
        // Interests that were repeated needlessly are forgotten in time.
        until(node, |status| status.pending == 0);
    }
}

/// An object whose end cannot be read before its owner allows it.
struct Held {
    bytes: Vec<u8>,
    readable: Mutex<u64>,
    changed: Condvar,
}

impl Held {
    /// The first half can be read.
    fn half(bytes: &[u8]) -> Arc<Self> {
        let readable = Mutex::new(bytes.len() as u64 / 2);
        Arc::new(Held { bytes: bytes.to_vec(), readable, changed: Condvar::new() })
    }

    fn open(&self) {
        *self.readable.lock().unwrap() = u64::MAX;
        self.changed.notify_all();
    }
}

impl ObjectSource for Held {
    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> std::io::Result<()> {
        let end = offset + buffer.len() as u64;
        drop(self.changed.wait_while(self.readable.lock().unwrap(), |readable| *readable < end).unwrap());
        self.bytes.read_exact_at(buffer, offset)
    }
}

/// A file to whose first bytes a program writes when its last ones are read. A look at it takes until its
/// owner allows it.
struct Written {
    file: FileSource,
    path: PathBuf,
    may_look: Mutex<bool>,
    allowed: Condvar,
}

impl ObjectSource for Written {
    fn len(&self) -> u64 {
        self.file.len()
    }

    fn is_checked_quickly(&self) -> bool {
        false
    }

    fn check(&self) -> std::io::Result<()> {
        drop(self.allowed.wait_while(self.may_look.lock().unwrap(), |may| !*may).unwrap());
        self.file.check()
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> std::io::Result<()> {
        if offset + buffer.len() as u64 == self.len() {
            let file = std::fs::OpenOptions::new().write(true).open(&self.path)?;
            file.write_all_at(b"new", 0)?;
        }
        self.file.read_exact_at(buffer, offset)
    }
}

#[test]
fn a_file_that_is_written_to_reaches_no_receiver() {
    let (configs, receivers) = small_tree();
    let nodes = start_all(&configs);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    for len in [1_000, 3_000_000] {
        std::fs::write(&path, object(len)).unwrap();
        let (may_look, allowed) = (Mutex::new(false), Condvar::new());
        let file = FileSource::open(&path).unwrap();
        let source = Arc::new(Written { file, path: path.clone(), may_look, allowed });
        let looked_at = Arc::clone(&source);
        // Each receiver hears of it that asks for packets; one that has asked may have all but the last word
        // by the time of the look.
        let before = nodes[2..].iter().map(|node| node.status().unwrap().forwarded).collect::<Vec<_>>();
        let allow = |_: &Steering, _| {
            for (node, before) in nodes[2..].iter().zip(&before) {
                until(node, |status| status.transfers > 0 || status.forwarded > *before);
            }
            *looked_at.may_look.lock().unwrap() = true;
            looked_at.allowed.notify_all();
        };
        let (sent, fetched) = deliver_when(&nodes, source, &receivers, 8_192, folder.path(), |_| {}, allow);
        let error = sent.unwrap_err();
        assert!(matches!(error, TransferError::Changed(_)), "{error}");
        for (number, outcome) in fetched.into_iter().enumerate() {
            let said = outcome.unwrap_err().to_string();
            assert!(said.contains("its bytes were changed while it was being sent"), "{said}");
            assert!(!folder.path().join(format!("object-{}", number + 2)).exists());
        }
    }
}

/// Runs a transfer of which no more than a half can travel before `meanwhile` opens the rest.
fn deliver_held(
    nodes: &[NodeHandle],
    bytes: &[u8],
    receivers: &[(usize, Ways)],
    folder: &Path,
    meanwhile: impl FnOnce(&Held, &Steering, Handle),
) -> Outcomes {
    let held = Held::half(bytes);
    let source: Arc<dyn ObjectSource> = Arc::clone(&held) as _;
    deliver_when(
        nodes,
        source,
        receivers,
        8_192,
        folder,
        |_| {},
        |steering, handle| {
            meanwhile(&held, steering, handle);
        },
    )
}

/// The receiver behind this node has ended.
fn until_ended(node: &NodeHandle) {
    until(node, |status| status.transfers == 0);
}

#[test]
fn who_comes_late_joins_what_is_on_its_way_and_gets_the_rest_from_caches_and_the_source() {
    let (configs, receivers) = small_tree();
    let nodes = start_all(&configs);
    let folder = tempfile::tempdir().unwrap();
    let bytes = object(40 << 20);
    let held = Held::half(&bytes);
    let source: Arc<dyn ObjectSource> = Arc::clone(&held) as _;
    // One comes when the others have much of what can be read, and only then there is more.
    let most = (bytes.len() / 8_192 / 4) as u64;
    let may_come = |at: usize| {
        if at == 4 {
            for other in [2, 3] {
                until(&nodes[other], |status| status.ports[0].received > most);
            }
        }
    };
    let outcomes = deliver_when(&nodes, source, &receivers, 8_192, folder.path(), may_come, |_, _| {
        until(&nodes[4], |status| status.transfers > 0);
        held.open();
    });
    assert_delivered(&outcomes, &bytes);
    let report = outcomes.0.unwrap();
    // It did not begin at the beginning, and others did not get all of it again: it needs the first half.
    let len = bytes.len() as u64;
    let again = report.sent_bytes - len;
    assert!(again > 0 && again < len * 4 / 5, "{again} of {len} bytes were sent again");
    nodes.iter().for_each(|node| drop(until(node, |status| (status.transfers, status.pending) == (0, 0))));
}

#[test]
fn packets_travel_before_the_whole_object_is_read() {
    let (configs, receivers) = small_tree();
    let nodes = start_all(&configs);
    let folder = tempfile::tempdir().unwrap();
    let bytes = object(16 << 20);
    let outcomes = deliver_held(&nodes, &bytes, &receivers, folder.path(), |held, _, _| {
        // What can be read arrives, and no more.
        until(&nodes[2], |status| status.ports[0].received > 700);
        assert!(nodes[2].status().unwrap().ports[0].received < 1_500);
        held.open();
    });
    assert_delivered(&outcomes, &bytes);
}

#[test]
fn two_trees_share_the_work_and_a_node_that_only_passes_keeps_nothing() {
    // A ring 0 - 1 - 2 - 3 - 0; the receiver 2 is reached both ways, over nodes that keep nothing.
    let nodes = start_all(&configs(4, &[(0, 1), (1, 2), (2, 3), (3, 0)]));
    let folder = tempfile::tempdir().unwrap();
    let bytes = object(20 << 20);
    let routes = vec![route(&[(0, false), (0, true)]), route(&[(1, false), (1, true)])];
    let outcomes = deliver(&nodes, &bytes, &[(2, routes)], 8_192, folder.path(), |_| {});
    assert_delivered(&outcomes, &bytes);
    let trees = outcomes.0.unwrap().trees;
    assert!(trees.len() == 2 && trees.iter().all(|tree| tree.first_bytes > 0), "{trees:?}");
    for (tree, passing) in trees.iter().zip([1, 3]) {
        let status = nodes[passing].status().unwrap();
        // Each way what was asked for, and what was sent.
        assert!(status.kept == 0 && status.passed >= tree.first_bytes / 8_192, "{status:?}, {tree:?}");
        assert_eq!(status.forwarded, 0, "{status:?}");
    }
}

#[test]
fn a_tree_that_is_gone_leaves_its_blocks_to_the_other_and_a_new_way_is_taken() {
    let mut configs = configs(4, &[(0, 1), (1, 2), (2, 3), (3, 0)]);
    configs.iter_mut().for_each(|config| config.greeting_ms = 100);
    // Before its neighbours are there it knows nothing of its links.
    let first = start(&configs[0], &WordsKey::default()).unwrap();
    let (watcher, links) = mpsc::channel();
    first.watch(watcher);
    let next = || {
        let event = links.recv_timeout(HANG).unwrap();
        assert_eq!(&*event.node, "n0");
        (event.port, event.up)
    };
    let nodes: Vec<NodeHandle> = std::iter::once(first).chain(start_all(&configs[1..])).collect();
    // Nothing is said of a link before it is known. A neighbour that does not get to greet may be gone and
    // come again.
    let mut known = BTreeMap::new();
    while known.len() < 2 {
        let (port, up) = next();
        known.entry(port).or_insert(up);
    }
    assert_eq!(known, [(0, true), (1, true)].into());
    let folder = tempfile::tempdir().unwrap();
    let bytes = object(16 << 20);
    let ways = [route(&[(0, false), (0, true)]), route(&[(1, false), (1, true)])];
    let routes = ways.to_vec();
    // Node 3 ends in mid-transfer.
    let mut living: Vec<Option<NodeHandle>> = nodes.iter().cloned().map(Some).collect();
    drop(nodes);
    let kept: Vec<NodeHandle> = [0, 1, 2].iter().filter_map(|&at| living[at].clone()).collect();
    let outcomes = deliver_held(&kept, &bytes, &[(2, routes)], folder.path(), |held, changes, handle| {
        until(living[3].as_ref().unwrap(), |status| status.passed > 0);
        living[3] = None;
        while next() != (1, false) {}
        changes.change_routes([RouteChange { receiver: "n2".into(), tree: 1, route: None }]);
        wait_for("the tree is gone", || kept[0].blocks(handle)[1].is_none().then_some(()));
        held.open();
    });
    assert_delivered(&outcomes, &bytes);
}

#[test]
fn a_tree_that_comes_back_carries_blocks_again() {
    let nodes = start_all(&configs(4, &[(0, 1), (1, 2), (2, 3), (3, 0)]));
    let folder = tempfile::tempdir().unwrap();
    let bytes = object(32 << 20);
    let ways = [route(&[(0, false), (0, true)]), route(&[(1, false), (1, true)])];
    let change = |route| RouteChange { receiver: "n2".into(), tree: 1, route };
    let mut before = 0;
    let outcomes =
        deliver_held(&nodes, &bytes, &[(2, ways.to_vec())], folder.path(), |held, changes, handle| {
            let tree = || nodes[0].trees(handle).into_iter().find(|tree| tree.tree == 1);
            wait_for("the tree carries something", || tree().filter(|tree| tree.first_bytes > 0));
            changes.change_routes([change(None)]);
            wait_for("the tree is gone", || nodes[0].blocks(handle)[1].is_none().then_some(()));
            before = tree().unwrap().first_bytes;
            changes.change_routes([change(ways[1])]);
            wait_for("the tree is back", || nodes[0].blocks(handle)[1]);
            held.open();
        });
    assert_delivered(&outcomes, &bytes);
    let trees = outcomes.0.unwrap().trees;
    assert!(trees[1].first_bytes > before, "{before} bytes before it was gone: {trees:?}");
}

#[test]
fn lost_trees_leave_what_is_verified_for_another_path() {
    let (configs, receivers) = small_tree();
    let nodes = start_all(&configs);
    let folder = tempfile::tempdir().unwrap();
    let bytes = object(16 << 20);
    let (outcome, fetched) = deliver_held(&nodes, &bytes, &receivers, folder.path(), |held, changes, _| {
        receivers
            .iter()
            .for_each(|(at, _)| drop(until(&nodes[*at], |status| status.ports[0].received > 700)));
        changes.lose_path("another fabric took over");
        receivers.iter().for_each(|(at, _)| until_ended(&nodes[*at]));
        held.open();
    });
    let report = outcome.unwrap();
    assert_eq!(report.path_lost.as_deref(), Some("another fabric took over"));
    assert_eq!(report.left, ["n2", "n3", "n4"]);
    assert!(fetched.iter().all(Result::is_err));
    // Parts of the object are there, under other names than the object's.
    let kept = std::fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(kept, 3, "a part file each");
    let outcomes = deliver(&nodes, &bytes, &receivers, 8_192, folder.path(), |_| {});
    assert_delivered(&outcomes, &bytes);
    let report = outcomes.0.unwrap();
    let first = report.sent_bytes - report.patched_bytes;
    assert!(first < bytes.len() as u64, "only the rest: {first} bytes");
}

#[test]
fn one_that_is_cut_off_is_named_and_the_others_finish() {
    let (configs, receivers) = small_tree();
    let nodes = start_all(&configs);
    let folder = tempfile::tempdir().unwrap();
    let bytes = object(16 << 20);
    let (outcome, fetched) = deliver_held(&nodes, &bytes, &receivers, folder.path(), |held, changes, _| {
        until(&nodes[2], |status| status.ports[0].received > 100);
        changes.change_routes([RouteChange { receiver: "n2".into(), tree: 0, route: None }]);
        until_ended(&nodes[2]);
        held.open();
    });
    let report = outcome.unwrap();
    assert_eq!(report.left, ["n2"], "another path may reach it");
    let of = |name: &str| report.receivers.iter().find(|receiver| receiver.name == name).unwrap();
    assert!(of("n3").verified && of("n4").verified, "{report:?}");
    assert_eq!(of("n2").error.as_deref(), Some("failed links cut it off from the source"));
    let why = fetched[0].as_ref().unwrap_err().to_string();
    assert!(why.contains("cut it off") && why.contains("kept for another try"), "{why}");
}

/// Log output of nodes: they have threads of their own.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<std::sync::Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// Returns the log of this whole process.
    pub(crate) fn of_all() -> &'static Self {
        static ALL: std::sync::OnceLock<Log> = std::sync::OnceLock::new();
        ALL.get_or_init(|| {
            let log = Log::default();
            let writer = log.clone();
            let subscriber = tracing_subscriber::fmt()
                .with_max_level(tracing::Level::WARN)
                .with_writer(move || writer.clone())
                .with_ansi(false)
                .finish();
            tracing::subscriber::set_global_default(subscriber).unwrap();
            log
        })
    }

    pub(crate) fn lines_with(&self, words: [&str; 2]) -> usize {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        text.lines().filter(|line| words.iter().all(|words| line.contains(words))).count()
    }
}

/// Passes on what comes to `at` from either of two nodes to the other one, and changes a byte of what the
/// second gets of `first_sn` and higher numbers: the first two times that each comes. Gives how many it has
/// changed.
fn pass_on_and_lie(at: [&UdpSocket; 2], to: [SocketAddrV4; 2], first_sn: u64, stop: &AtomicBool) -> usize {
    let mut times = std::collections::BTreeMap::<u64, u32>::new();
    let (mut buffer, mut changed) = (vec![0; 1 << 16], 0);
    at.iter().for_each(|socket| socket.set_nonblocking(true).unwrap());
    while !stop.load(Ordering::Relaxed) {
        let mut idle = true;
        for (from, other) in [(0, 1), (1, 0)] {
            let Ok(len) = at[from].recv(&mut buffer) else { continue };
            idle = false;
            if let Ok(wire::Packet::Transfer(header, payload)) = wire::Packet::parse(&buffer[..len])
                && matches!(header.kind, wire::Kind::Data { .. })
                && (from, payload.is_empty()) == (0, false)
                && header.sn >= first_sn
            {
                let time = times.entry(header.sn).or_default();
                *time += 1;
                if *time <= 2 {
                    changed += 1;
                    buffer[len - 1] ^= 1;
                }
            }
            at[other].send_to(&buffer[..len], to[other]).unwrap();
        }
        if idle {
            std::thread::sleep(std::time::Duration::from_micros(200));
        }
    }
    changed
}

/// A neighbour changes the lists of names on their way: each packet that does not fit its root is refused and
/// counted, the neighbour is named once, nothing of it is kept, and the receiver gets the right bytes.
#[test]
fn lists_that_do_not_fit_their_roots_are_refused_and_come_again() {
    let log = Log::of_all();
    let (payload, bytes) = (1_400, object(3 << 20));
    let mut configs = configs(2, &[(0, 1)]);
    configs[1].name = "deceived".into();
    // The neighbour of each is the one between them.
    let sockets = [0, 1].map(|at| {
        let between = address();
        let socket = UdpSocket::bind(between).unwrap();
        configs[at].ports[0].peer = between;
        socket
    });
    let to = [0, 1].map(|at: usize| configs[at].ports[0].local);
    let nodes = start_all(&configs);
    let (stop, folder) = (AtomicBool::new(false), tempfile::tempdir().unwrap());
    let first_sn = bytes.len().div_ceil(payload) as u64;
    let changed = std::thread::scope(|scope| {
        let passes = scope.spawn(|| pass_on_and_lie([&sockets[0], &sockets[1]], to, first_sn, &stop));
        let receivers = [(1, vec![route(&[(0, false)])])];
        let outcomes = deliver(&nodes, &bytes, &receivers, payload as u16, folder.path(), |_| {});
        stop.store(true, Ordering::Relaxed);
        assert_delivered(&outcomes, &bytes);
        passes.join().unwrap()
    });
    // Those of one section at the least: a root, and what it names.
    assert!(changed > 4, "{changed} packets were changed");
    let status = until(&nodes[1], |status| status.poisoned >= changed as u64);
    assert_eq!((status.poisoned, status.malformed), (changed as u64, 0), "{status:?}");
    assert_eq!(log.lines_with(["deceived", "a neighbour sends other bytes"]), 1);
}

/// A source chooses its handle. One that takes the handle of a transfer that runs gets no place at a node
/// where that has one: neither its receiver nor its source is displaced.
#[test]
fn a_taken_handle_displaces_no_transfer() {
    let nodes = start_all(&configs(2, &[(0, 1)]));
    let receivers = [(1, vec![route(&[(0, false)])])];
    let folder = tempfile::tempdir().unwrap();
    let (sender, handles) = mpsc::channel();
    let (handles, first) = (Mutex::new(handles), Mutex::new(None));
    let take_it_first = |at: usize| {
        let handle = handles.lock().unwrap().recv().unwrap();
        *first.lock().unwrap() = Some((handle, nodes[at].place(handle).unwrap()));
    };
    let object = Arc::new(object(1_000));
    let (sent, fetched) =
        deliver_when(&nodes, object, &receivers, 1_400, folder.path(), take_it_first, |_, handle| {
            assert!(nodes[0].place(handle).is_err(), "its source has it");
            sender.send(handle).unwrap();
        });
    let sentence = "another transfer at this agent's node has the same handle";
    let said = fetched[0].as_ref().unwrap_err().to_string();
    assert!(said.contains(sentence), "{said}");
    let told = sent.unwrap().receivers[0].error.clone().unwrap();
    assert!(told.contains(sentence), "{told}");
    let (handle, place) = first.lock().unwrap().take().unwrap();
    assert!(nodes[1].place(handle).is_err(), "the one that came first has it still");
    drop(place);
    assert!(nodes[1].place(handle).is_ok() && nodes[0].place(handle).is_ok());
}

/// A socket that stands for a neighbour.
struct Stranger {
    socket: UdpSocket,
    peer: SocketAddrV4,
}

impl Stranger {
    /// In place of the node at the other end of a port.
    fn beside(config: &NodeConfig, port: usize) -> Self {
        let PortConfig { local, peer, .. } = &config.ports[port];
        let socket = UdpSocket::bind(peer).unwrap();
        Stranger { socket, peer: *local }
    }

    fn send(&self, bytes: &[u8]) {
        self.socket.send_to(bytes, self.peer).unwrap();
    }

    /// The next packet that is no greeting.
    fn next(&self) -> (wire::Header, Vec<u8>) {
        self.next_within(HANG).expect("a packet comes")
    }

    /// The same, if it comes in time.
    fn next_within(&self, patience: std::time::Duration) -> Option<(wire::Header, Vec<u8>)> {
        let (mut buffer, begun) = (vec![0; 1 << 16], Instant::now());
        loop {
            let left = patience.checked_sub(begun.elapsed()).filter(|left| !left.is_zero())?;
            self.socket.set_read_timeout(Some(left)).unwrap();
            let len = self.socket.recv(&mut buffer).ok()?;
            if let wire::Packet::Transfer(header, payload) = wire::Packet::parse(&buffer[..len]).unwrap() {
                return Some((header, payload.to_vec()));
            }
        }
    }
}

/// The digest of a packet of this file's strangers.
fn digest_of(payload: &[u8]) -> wire::Digest {
    super::digest_of(Handle(7), 3, payload, wire::DIGEST_SHORT_LEN)
}

fn header(kind: wire::Kind, hops: &[u8], position: u8, digest: wire::Digest) -> wire::Header {
    let hops = wire::Hops::new(hops, position).unwrap();
    wire::Header { kind, tree: 0, hops, handle: Handle(7), sn: 3, digest }
}

const INTEREST: wire::Kind = wire::Kind::Interest { fresh: false };
const DATA: wire::Kind = wire::Kind::Data { again: false, follows: wire::Follows::Open };

fn until(node: &NodeHandle, what: impl Fn(&NodeStatus) -> bool) -> NodeStatus {
    let begun = Instant::now();
    loop {
        let status = node.status().unwrap();
        if what(&status) {
            return status;
        }
        assert!(begun.elapsed() < HANG, "{status:?}");
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}

#[test]
fn a_poisoned_packet_is_dropped_and_never_kept() {
    let mut config = node("n");
    for _ in 0..2 {
        config.ports.push(PortConfig { local: address(), peer: address(), rate: None });
    }
    let node = start(&config, &WordsKey::default()).unwrap();
    let (asks, answers) = (Stranger::beside(&config, 0), Stranger::beside(&config, 1));
    let (right, wrong) = (b"what was announced".as_slice(), b"what was not asked for".as_slice());
    let digest = digest_of(right);
    // A route of two hops; the first node has been left by port 0, and this one is to be left by port 1.
    asks.send(&header(INTEREST, &[0, 1], 1, digest).emit());
    let (asked, _) = answers.next();
    assert_eq!((asked.digest, asked.hops.position()), (digest, 2));
    let data = |digest| header(DATA, &[0], 1, digest).emit();
    // Other bytes under the right name, and the other bytes' own name, which was not asked for.
    answers.send(&[&data(digest)[..], wrong].concat());
    answers.send(&[&data(digest_of(wrong))[..], wrong].concat());
    let status = until(&node, |status| status.poisoned + status.unsolicited == 2);
    assert_eq!((status.poisoned, status.unsolicited, status.kept, status.pending), (1, 1, 0, 1));
    answers.send(&[&data(digest)[..], right].concat());
    let (answered, payload) = asks.next();
    assert_eq!((answered.digest, &payload[..]), (digest, right));
    // What belongs under one name belongs under no other.
    let other = wire::Header { sn: 4, ..header(INTEREST, &[0, 1], 1, digest) };
    asks.send(&other.emit());
    assert_eq!(answers.next().0.sn, 4);
    answers.send(&[&wire::Header { sn: 4, ..header(DATA, &[0], 1, digest) }.emit()[..], right].concat());
    until(&node, |status| status.poisoned == 2);
    // The next that asks gets it from the store; one that asks for the poison does not.
    asks.send(&header(INTEREST, &[0, 1], 1, digest).emit());
    assert_eq!(asks.next().1, right);
    asks.send(&header(INTEREST, &[0, 1], 1, digest_of(wrong)).emit());
    assert_eq!(answers.next().0.digest, digest_of(wrong));
    let status = until(&node, |status| status.hits == 1);
    assert_eq!((status.kept, status.forwarded), (1, 3));
}

#[test]
fn bad_routes_unknown_names_and_noise_are_dropped_and_counted() {
    let mut config = node("n");
    config.ports.push(PortConfig { local: address(), peer: address(), rate: None });
    let node = start(&config, &WordsKey::default()).unwrap();
    let stranger = Stranger::beside(&config, 0);
    let digest = digest_of(b"");
    // Through a port that is not there, back where it came from, one hop more than the node takes, and one
    // more than a packet can have.
    stranger.send(&header(INTEREST, &[0, 5], 1, digest).emit());
    stranger.send(&header(INTEREST, &[0, 0], 1, digest).emit());
    stranger.send(&header(INTEREST, &[1; 9], 1, digest).emit());
    stranger.send(&header(DATA, &[1; 9], 1, digest).emit());
    let mut long = header(INTEREST, &[1; 14], 1, digest).emit();
    long[5] = 15;
    stranger.send(&long);
    stranger.send(b"noise");
    // The end of the route is here, and there is no such transfer.
    stranger.send(&header(INTEREST, &[0], 1, digest).emit());
    let dropped = |status: &NodeStatus| (status.bad_routes, status.too_far, status.malformed, status.unknown);
    let status = until(&node, |status| {
        let (routes, far, malformed, unknown) = dropped(status);
        routes + far + malformed + unknown == 7
    });
    assert_eq!(dropped(&status), (2, 2, 2, 1));
    assert_eq!((status.kept, status.pending), (0, 0));
}

#[test]
fn routes_are_as_long_as_the_settings_say() {
    let mut config = node("n");
    for _ in 0..2 {
        config.ports.push(PortConfig { local: address(), peer: address(), rate: None });
    }
    config.hops_max = 10;
    let node = start(&config, &WordsKey::default()).unwrap();
    let (asks, answers) = (Stranger::beside(&config, 0), Stranger::beside(&config, 1));
    let digest = digest_of(b"far");
    // A datagram may be lost on a busy machine: then both are sent again.
    let answer = wait_for("one is passed on", || {
        asks.send(&header(INTEREST, &[1; 11], 1, digest).emit());
        asks.send(&header(INTEREST, &[0, 1, 1, 1, 1, 1, 1, 1, 1, 1], 1, digest).emit());
        answers.next_within(std::time::Duration::from_millis(500))
    });
    let hops = answer.0.hops;
    assert_eq!(hops.bytes().len(), 10, "the other one was dropped");
    assert!(node.status().unwrap().too_far > 0);
    config.hops_max = 15;
    let wrong = config.check().unwrap_err().to_string();
    assert!(wrong.contains("hops-max") && wrong.contains("1 to 14, not 15"), "{wrong}");
}

#[test]
fn a_full_store_uses_its_memory_again() {
    let mut config = node("n");
    config.store_packets = 20;
    for _ in 0..2 {
        config.ports.push(PortConfig { local: address(), peer: address(), rate: None });
    }
    let node = start(&config, &WordsKey::default()).unwrap();
    let (asks, answers) = (Stranger::beside(&config, 0), Stranger::beside(&config, 1));
    for number in 0..100u8 {
        // Long ones first: those that take their places need less.
        let payload = vec![number; if number < 20 { 3_000 } else { 100 + usize::from(number) }];
        let digest = digest_of(&payload);
        asks.send(&header(INTEREST, &[0, 1], 1, digest).emit());
        answers.next();
        answers.send(&[&header(DATA, &[0], 1, digest).emit()[..], &payload].concat());
        assert_eq!(asks.next().1, payload);
    }
    let status = node.status().unwrap();
    // A tenth of the store is for what is sent again.
    assert_eq!((status.kept, status.kept_bytes), (18, 18 * 3_000));
}

/// Whole deliveries, each with a set-up, connections and a file. What they leave in memory:
/// `tests/daemon/memory.rs`.
#[test]
fn groups_that_were_served_leave_nothing_behind() {
    let (configs, _) = small_tree();
    let nodes = start_all(&configs);
    let folder = tempfile::tempdir().unwrap();
    let receivers = vec![(2, vec![route(&[(0, false), (0, false)])])];
    for number in 0..60 {
        let bytes = object(3_000 + number % 7);
        assert_delivered(&deliver(&nodes, &bytes, &receivers, 1_400, folder.path(), |_| {}), &bytes);
    }
    for node in &nodes {
        until(node, |status| (status.transfers, status.pending) == (0, 0));
    }
}

fn sums(object: &Arc<dyn ObjectSource>) -> Arc<crate::transfer::pull::sums::Sums> {
    use polycast_protocol::push::Geometry;
    let geometry = Geometry { object_len: object.len(), fragment_len: 1_400, group_len: 1 << 18 };
    let blocks = polycast_protocol::pull::Blocks::new(object.len(), 1_400, 1_400).unwrap();
    let blocks = blocks.with_lists(geometry.group_len).unwrap();
    crate::transfer::pull::sums::Sums::start(
        object,
        (Handle(1), geometry, blocks),
        None,
        crate::transfer::bell::Bell::new().unwrap(),
    )
    .unwrap()
}

#[test]
fn ten_thousand_sources_leave_nothing_behind() {
    let (configs, _) = small_tree();
    let nodes = start_all(&configs);
    for number in 0..10_000 {
        let blocks = polycast_protocol::pull::Blocks::new(1, 1_400, 1_400).unwrap();
        let config = polycast_protocol::pull::SourceConfig {
            transfer: Handle(number),
            blocks,
            trees: 1,
            credits: 1,
            rate: polycast_protocol::pull::RateConfig::in_proportion(1_000_000, 1_500),
            header_bytes: 0,
            decide_ahead: 1,
            waiting_max: 1,
            chance: true,
        };
        let object: Arc<dyn ObjectSource> = Arc::new(vec![1u8]);
        nodes[0].serve(SourceEnd::new(config, 1_400, Arc::clone(&object), sums(&object)));
        nodes[0].end(Handle(number));
    }
    for node in &nodes {
        until(node, |status| (status.transfers, status.pending) == (0, 0));
    }
}
