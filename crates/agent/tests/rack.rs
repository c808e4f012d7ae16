//! Orca's controllers on real sockets: the manager's central controller, controllers of leafs, and agents, on
//! addresses of this machine's loopback.

use polycast_agent::rack::{
    Controller, ControllerOptions, LabelMap, LeafController, LeafOptions, LeafSwitch, RackError, incarnation,
};
use polycast_manager::Racks;
use polycast_net::seal::Secret;
use polycast_net::tls::Security;
use polycast_net::words::{Words, WordsKey};
use polycast_protocol::rack::{AgentCounts, Change, FeedConfig, LeafConfig};
use polycast_testing::{HANG, wait_for};
use polycast_types::Duration;
use polycast_wire::rack::{Heartbeat, Name, Rack, Standing, Update, Updates};
use polycast_wire::words::Way;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration as Span;

const SERVERS: u32 = 3;
const PERIOD: Duration = Duration::from_millis(20);
/// Time without a message after which an agent is removed, where a test is about that.
const TIMEOUT: Duration = Duration::from_millis(400);
/// The same where a test is not about that: on a machine that is busy an agent may be late.
const PATIENT: Duration = Duration::from_secs(HANG.as_secs());

/// Labels that the test looks at.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<BTreeMap<u32, Vec<u8>>>>);

impl LabelMap for Kept {
    fn set_label(&mut self, session: u32, label: &[u8]) -> Result<(), RackError> {
        self.0.lock().unwrap().insert(session, label.to_vec());
        Ok(())
    }

    fn remove_label(&mut self, session: u32) -> Result<(), RackError> {
        self.0.lock().unwrap().remove(&session);
        Ok(())
    }
}

/// A switch that only keeps which agents are active.
#[derive(Clone, Default)]
struct Active(Arc<Mutex<Vec<u32>>>);

impl LeafSwitch for Active {
    fn set_agents(&mut self, active: &[u32], _rack: u128) {
        *self.0.lock().unwrap() = active.to_vec();
    }

    fn since_relabelled(&mut self, _port: u32) -> Option<Duration> {
        None
    }
}

/// A port at which no process listens now.
fn free(ip: Ipv4Addr) -> SocketAddrV4 {
    let socket = UdpSocket::bind((ip, 0)).unwrap();
    let SocketAddr::V4(address) = socket.local_addr().unwrap() else { panic!("an IPv4 address") };
    address
}

/// A rack: its controller, and agents that can be stopped.
struct RackOf {
    active: Active,
    kept: Vec<Kept>,
    stops: Vec<Arc<AtomicBool>>,
    stop: Arc<AtomicBool>,
}

fn key() -> WordsKey {
    WordsKey::of(Some(&Security::shared(&Secret::fresh())))
}

/// A leaf controller with one active agent and one that stands by.
fn leaf_config(rack: u32, ports: u32, timeout: Duration) -> LeafConfig {
    LeafConfig {
        rack,
        ports,
        incarnation: incarnation(),
        active: 1,
        standby: 1,
        timeout,
        period: PERIOD,
        labels_max: 1_000,
        feed: FeedConfig::default(),
    }
}

/// Its servers have addresses that begin with these two bytes.
fn start_rack(
    (net, config): ([u8; 2], LeafConfig),
    listen: SocketAddrV4,
    central: SocketAddrV4,
    key: &WordsKey,
) -> RackOf {
    // Every server has an address of its own; the sender is known by it.
    let rack = config.rack;
    let server = |port: u32| Ipv4Addr::new(net[0], net[1], rack as u8 + 1, port as u8 + 1);
    let options = LeafOptions {
        config,
        listen,
        central,
        servers: (0..SERVERS).map(server).collect(),
        key: key.clone(),
    };
    let (stop, active) = (Arc::new(AtomicBool::new(false)), Active::default());
    let mut leaf = LeafController::open(options).unwrap();
    let (stopped, mut told) = (Arc::clone(&stop), active.clone());
    std::thread::spawn(move || leaf.run(&stopped, &mut told));
    let (mut kept, mut stops) = (Vec::new(), Vec::new());
    for port in 0..2 {
        let (labels, stop) = (Kept::default(), Arc::new(AtomicBool::new(false)));
        let options = ControllerOptions {
            rack,
            port,
            listen: SocketAddrV4::new(server(port), 0),
            leaf: listen,
            period: PERIOD,
            labels_max: 1_000,
            key: key.clone(),
        };
        let mut agent = Controller::open(options, labels.clone()).unwrap();
        let stopped = Arc::clone(&stop);
        std::thread::spawn(move || agent.run(&stopped));
        kept.push(labels);
        stops.push(stop);
    }
    RackOf { active, kept, stops, stop }
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let waits = async {
        while !holds() {
            tokio::time::sleep(Span::from_millis(5)).await;
        }
    };
    assert!(tokio::time::timeout(HANG, waits).await.is_ok(), "never: {what}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn labels_reach_all_agents() {
    let leafs: Vec<SocketAddrV4> = (0..2).map(|_| free(Ipv4Addr::LOCALHOST)).collect();
    let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let key = key();
    let racks = Racks::start(listen, leafs.iter().map(|leaf| (*leaf).into()).collect(), &key).unwrap();
    let SocketAddr::V4(central) = racks.address() else { panic!("an IPv4 address") };
    let config = |rack| ([127, 77], leaf_config(rack, SERVERS, PATIENT));
    let started: Vec<RackOf> = leafs
        .iter()
        .zip(0..)
        .map(|(listen, rack)| start_rack(config(rack), *listen, central, &key))
        .collect();
    let change = |session: u32, leaf: u32, byte: u8| Change { leaf, session, label: vec![0x80 | byte; 3] };
    // Confirmed only when the agents of both racks have it, standbys too.
    for session in 0..200 {
        let changes = vec![change(session, 0, session as u8), change(session, 1, 1)];
        let confirmed = racks.set(changes).unwrap();
        tokio::time::timeout(HANG, confirmed).await.unwrap().unwrap().unwrap();
        let has = |session| {
            started.iter().flat_map(|r| &r.kept).all(|k| k.0.lock().unwrap().contains_key(&session))
        };
        if session == 0 {
            // An agent that its rack has not heard of yet is told when it is.
            until("all agents have been heard of", || has(session)).await;
        }
        assert!(has(session));
    }
    assert_eq!(racks.counts().await.confirmed_updates, 400);
    let refused = racks.set(vec![change(1, 2, 1)]).unwrap().await.unwrap();
    assert_eq!(refused.unwrap_err().to_string(), "there is no leaf 2: the leafs are 0 to 1");
    for rack in &started {
        rack.stops.iter().chain([&rack.stop]).for_each(|stop| stop.store(true, Ordering::Relaxed));
    }
}

/// One agent falls silent: the other takes its place, and knows what changes from then on. On a machine that
/// is busy it may be taken out as well, and come again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_takes_over() {
    let (leaf, key) = (free(Ipv4Addr::LOCALHOST), key());
    let racks = Racks::start((Ipv4Addr::LOCALHOST, 0).into(), vec![leaf.into()], &key).unwrap();
    let SocketAddr::V4(central) = racks.address() else { panic!("an IPv4 address") };
    let rack = start_rack(([127, 78], leaf_config(0, SERVERS, TIMEOUT)), leaf, central, &key);
    let set = async |label: Vec<u8>| {
        let confirmed = racks.set(vec![Change { leaf: 0, session: 7, label }]).unwrap();
        tokio::time::timeout(HANG, confirmed).await.unwrap().unwrap().unwrap();
    };
    set(vec![0x81; 3]).await;
    let has = |at: usize| rack.kept[at].0.lock().unwrap().contains_key(&7);
    until("both know of it", || has(0) && has(1)).await;
    let active = || rack.active.0.lock().unwrap().clone();
    let first = wait_for("an agent is active", || active().first().copied());
    rack.stops[first as usize].store(true, Ordering::Relaxed);
    let other = 1 - first;
    until("the standby is active", || active() == [other]).await;
    set(Vec::new()).await;
    until("it knows of the change", || !has(other as usize)).await;
    assert!(has(first as usize), "the first one has heard nothing more");
    rack.stops[other as usize].store(true, Ordering::Relaxed);
    rack.stop.store(true, Ordering::Relaxed);
}

/// Text that a thread has logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

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
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }

    /// Runs something with this log.
    fn hear<T>(&self, work: impl FnOnce() -> T) -> T {
        let log = self.clone();
        let subscriber = tracing_subscriber::fmt().with_writer(move || log.clone()).with_ansi(false).finish();
        tracing::subscriber::with_default(subscriber, work)
    }
}

fn sent(message: &Rack<'_>) -> Vec<u8> {
    let mut datagram = Vec::new();
    message.emit(&mut datagram);
    datagram
}

/// Agents that claim another's rack or port, and datagrams that are no messages: counted, named once, and no
/// packets go there.
#[test]
fn a_leaf_controller_knows_who_speaks() {
    let (listen, central) = (free(Ipv4Addr::LOCALHOST), free(Ipv4Addr::LOCALHOST));
    let server = |port: u8| Ipv4Addr::new(127, 79, 1, port + 1);
    let config = LeafConfig {
        rack: 4,
        ports: SERVERS,
        incarnation: incarnation(),
        active: 1,
        standby: 1,
        timeout: PATIENT,
        period: PERIOD,
        labels_max: 10,
        feed: FeedConfig::default(),
    };
    let options = LeafOptions {
        config,
        listen,
        central,
        servers: (0..SERVERS as u8).map(server).collect(),
        key: WordsKey::default(),
    };
    let mut leaf = LeafController::open(options).unwrap();
    let (log, stop, active) = (Log::default(), AtomicBool::new(false), Active::default());
    let mut told = active.clone();
    std::thread::scope(|scope| {
        let runs = scope.spawn(|| {
            log.hear(|| leaf.run(&stop, &mut told)).unwrap();
            leaf.counts()
        });
        let claim = |rack: u32, port: u32| {
            sent(&Rack::Heartbeat(Heartbeat {
                from: Name { rack, agent: Some(port) },
                incarnation: 1,
                stream: 0,
                applied: 0,
                confirmed: 0,
                active: false,
                settled: false,
            }))
        };
        let stranger = UdpSocket::bind((server(0), 0)).unwrap();
        let outsider = UdpSocket::bind((Ipv4Addr::new(127, 79, 9, 9), 0)).unwrap();
        for _ in 0..3 {
            stranger.send_to(&claim(5, 0), listen).unwrap();
            stranger.send_to(&claim(4, 1), listen).unwrap();
            stranger.send_to(b"no message", listen).unwrap();
            outsider.send_to(&claim(4, 0), listen).unwrap();
        }
        // When an honest one has its place, everything before has been read.
        let honest = UdpSocket::bind((server(1), 0)).unwrap();
        let begun = std::time::Instant::now();
        while active.0.lock().unwrap().is_empty() {
            honest.send_to(&claim(4, 1), listen).unwrap();
            assert!(begun.elapsed() < HANG, "{}", log.text());
            std::thread::sleep(Span::from_millis(5));
        }
        assert_eq!(*active.0.lock().unwrap(), [1], "only the honest one gets packets");
        stop.store(true, Ordering::Relaxed);
        let (counts, foreign) = runs.join().unwrap();
        assert_eq!((counts.refused["another rack"], counts.refused["another port"]), (3, 3));
        assert_eq!(foreign, 6);
    });
    let text = log.text();
    for said in ["claims to be of rack 5", "claims port 1", "no message of this rack"] {
        assert_eq!(text.matches(said).count(), 1, "'{said}' in {text}");
    }
}

/// Returns the heartbeat of an agent of rack 4 that begins.
fn claim(port: u32) -> Vec<u8> {
    sent(&Rack::Heartbeat(Heartbeat {
        from: Name { rack: 4, agent: Some(port) },
        incarnation: 1,
        stream: 0,
        applied: 0,
        confirmed: 0,
        active: false,
        settled: false,
    }))
}

/// In a cluster with a key a word counts once, and only from one that has the key: a host that takes an
/// agent's address says nothing.
#[test]
fn a_leaf_controller_believes_members_only() {
    let (listen, central) = (free(Ipv4Addr::LOCALHOST), free(Ipv4Addr::LOCALHOST));
    let server = |port: u8| Ipv4Addr::new(127, 80, 1, port + 1);
    let config = LeafConfig {
        rack: 4,
        ports: SERVERS,
        incarnation: incarnation(),
        active: 1,
        standby: 1,
        timeout: TIMEOUT,
        period: PERIOD,
        labels_max: 10,
        feed: FeedConfig::default(),
    };
    let (ours, others) = (key(), key());
    let servers = (0..SERVERS as u8).map(server).collect();
    let options = LeafOptions { config, listen, central, servers, key: ours.clone() };
    let mut leaf = LeafController::open(options).unwrap();
    let (log, stop, active) = (Log::default(), AtomicBool::new(false), Active::default());
    let (mut told, losses) = (active.clone(), leaf.losses());
    std::thread::scope(|scope| {
        let runs = scope.spawn(|| {
            log.hear(|| leaf.run(&stop, &mut told)).unwrap();
            leaf.counts()
        });
        let stranger = UdpSocket::bind((server(0), 0)).unwrap();
        let foreign = Words::new(&others).say(Way::AgentToLeaf, &claim(0)).into_owned();
        stranger.send_to(&claim(0), listen).unwrap();
        stranger.send_to(&foreign, listen).unwrap();
        let (mut words, honest) = (Words::new(&ours), UdpSocket::bind((server(1), 0)).unwrap());
        let begun = std::time::Instant::now();
        let mut sent_words = Vec::new();
        let first = wait_for("one is active", || {
            sent_words.push(words.say(Way::AgentToLeaf, &claim(1)).into_owned());
            honest.send_to(sent_words.last().unwrap(), listen).unwrap();
            Some(active.0.lock().unwrap().clone()).filter(|active| !active.is_empty())
        });
        assert_eq!(first, [1], "only the honest one gets packets");
        // A word that was heard is said again, at its own address: the agent has gone, and is taken out all
        // the same.
        let lost = || losses.lock().unwrap().lost > 0;
        let mut replayed = 0;
        while !lost() || replayed == 0 {
            honest.send_to(&sent_words[0], listen).unwrap();
            replayed += 1;
            assert!(begun.elapsed() < HANG, "{}", log.text());
            std::thread::sleep(Span::from_millis(20));
        }
        // When it is heard again, everything before has been read.
        while losses.lock().unwrap().returned == 0 {
            honest.send_to(&words.say(Way::AgentToLeaf, &claim(1)), listen).unwrap();
            assert!(begun.elapsed() < HANG, "{}", log.text());
            std::thread::sleep(Span::from_millis(20));
        }
        stop.store(true, Ordering::Relaxed);
        let (counts, dropped) = runs.join().unwrap();
        assert!(counts.refused.is_empty(), "no machine heard of them: {counts:?}");
        assert_eq!(dropped, 2 + replayed, "those of strangers, and those that were said again");
    });
    assert_eq!(log.text().matches("no right tag of the cluster's key").count(), 1, "{}", log.text());
}

/// A host without the key has recorded words of another agent, and of the same port of another rack, and says
/// them with the address of one that has begun earlier: that one is heard all the same.
#[test]
fn a_recorded_word_of_another_agent_silences_none() {
    let (listen, central) = (free(Ipv4Addr::LOCALHOST), free(Ipv4Addr::LOCALHOST));
    let server = |port: u8| Ipv4Addr::new(127, 82, 1, port + 1);
    let key = key();
    let options = LeafOptions {
        config: leaf_config(4, SERVERS, PATIENT),
        listen,
        central,
        servers: (0..SERVERS as u8).map(server).collect(),
        key: key.clone(),
    };
    let mut leaf = LeafController::open(options).unwrap();
    let (stop, active) = (AtomicBool::new(false), Active::default());
    let mut told = active.clone();
    std::thread::scope(|scope| {
        let runs = scope.spawn(|| {
            leaf.run(&stop, &mut told).unwrap();
            leaf.counts()
        });
        let (mut words, honest) = (Words::new(&key), UdpSocket::bind((server(1), 0)).unwrap());
        let stranger = UdpSocket::bind((server(1), 0)).unwrap();
        let elsewhere = Heartbeat {
            from: Name { rack: 5, agent: Some(1) },
            incarnation: 9,
            stream: 0,
            applied: 0,
            confirmed: 0,
            active: false,
            settled: false,
        };
        for recorded in [claim(2), sent(&Rack::Heartbeat(elsewhere))] {
            stranger.send_to(&Words::new(&key).say(Way::AgentToLeaf, &recorded), listen).unwrap();
        }
        let first = wait_for("the honest one is active", || {
            honest.send_to(&words.say(Way::AgentToLeaf, &claim(1)), listen).unwrap();
            Some(active.0.lock().unwrap().clone()).filter(|active| !active.is_empty())
        });
        assert_eq!(first, [1]);
        stop.store(true, Ordering::Relaxed);
        let (counts, dropped) = runs.join().unwrap();
        assert_eq!((counts.refused["another rack"], counts.refused["another port"], dropped), (1, 1, 0));
    });
}

/// An agent of the first rack's first port, what it keeps, and at its end what it has refused.
fn start_agent(
    host: Ipv4Addr,
    leaf: SocketAddrV4,
    key: &WordsKey,
    stop: &Arc<AtomicBool>,
) -> (Kept, std::thread::JoinHandle<AgentCounts>) {
    let (labels, stopped, key) = (Kept::default(), Arc::clone(stop), key.clone());
    let listen = SocketAddrV4::new(host, 0);
    let options =
        ControllerOptions { rack: 0, port: 0, listen, leaf, period: PERIOD, labels_max: 1_000, key };
    let mut agent = Controller::open(options, labels.clone()).unwrap();
    let runs = std::thread::spawn(move || {
        agent.run(&stopped).unwrap();
        agent.counts().0
    });
    (labels, runs)
}

/// Two honest agents for one host, each at the host's own address: the later run has the place, and is told
/// everything. The earlier one is refused, counted and named once, and what is said to the other does not go
/// to it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_agents_for_one_host_the_later_one_has_the_place() {
    for (key, said) in [
        (WordsKey::default(), "an agent of an earlier run still speaks"),
        (key(), "an earlier run of its speaker"),
    ] {
        let (leaf_at, rack) = (free(Ipv4Addr::LOCALHOST), 0);
        let racks = Racks::start((Ipv4Addr::LOCALHOST, 0).into(), vec![leaf_at.into()], &key).unwrap();
        let SocketAddr::V4(central) = racks.address() else { panic!("an IPv4 address") };
        let host = Ipv4Addr::new(127, 81, 1, 1);
        let config = leaf_config(rack, 1, PATIENT);
        let options = LeafOptions { config, listen: leaf_at, central, servers: vec![host], key: key.clone() };
        let mut leaf = LeafController::open(options).unwrap();
        let (log, active) = (Log::default(), Active::default());
        let (mut told, leaf_log, stop) = (active.clone(), log.clone(), Arc::new(AtomicBool::new(false)));
        let stopped = Arc::clone(&stop);
        let leaf = std::thread::spawn(move || {
            leaf_log.hear(|| leaf.run(&stopped, &mut told)).unwrap();
            leaf.counts()
        });
        let start = || start_agent(host, leaf_at, &key, &stop);
        let set =
            |session: u32| racks.set(vec![Change { leaf: rack, session, label: vec![0x81; 3] }]).unwrap();
        let (earlier, earlier_runs) = start();
        let confirmed = set(1);
        tokio::time::timeout(HANG, confirmed).await.unwrap().unwrap().unwrap();
        assert!(earlier.0.lock().unwrap().contains_key(&1));
        let (later, later_runs) = start();
        until("the later one has what there is", || later.0.lock().unwrap().contains_key(&1)).await;
        until("the earlier one has been refused", || log.text().contains(said)).await;
        for session in 2..60 {
            tokio::time::timeout(HANG, set(session)).await.unwrap().unwrap().unwrap();
            assert!(later.0.lock().unwrap().contains_key(&session), "session {session}");
            tokio::time::sleep(Span::from_millis(2)).await;
        }
        assert_eq!(*active.0.lock().unwrap(), [0]);
        stop.store(true, Ordering::Relaxed);
        let (counts, dropped) = leaf.join().unwrap();
        let refused = counts.refused.get("earlier run").copied().unwrap_or(0);
        assert_eq!((refused > 0, dropped > 0), (!key.is_there(), key.is_there()), "{counts:?}, {dropped}");
        assert_eq!(log.text().matches(said).count(), 1, "{}", log.text());
        assert_eq!(earlier.0.lock().unwrap().len(), 1, "it is told nothing more");
        let heard = earlier_runs.join().unwrap();
        assert_eq!(
            (heard.refused, heard.stale, heard.gaps),
            (0, 0, 0),
            "what is for the other one does not come to it"
        );
        later_runs.join().unwrap();
    }
}

/// Updates with stale numbers, and datagrams that are no messages: counted, and the label stays as it is.
#[test]
fn an_agent_takes_no_stale_number() {
    let leaf = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let SocketAddr::V4(address) = leaf.local_addr().unwrap() else { panic!("an IPv4 address") };
    let (labels, stop) = (Kept::default(), AtomicBool::new(false));
    let options = ControllerOptions {
        rack: 4,
        port: 1,
        listen: SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0),
        leaf: address,
        period: PERIOD,
        labels_max: 10,
        key: WordsKey::default(),
    };
    let mut agent = Controller::open(options, labels.clone()).unwrap();
    let log = Log::default();
    std::thread::scope(|scope| {
        let runs = scope.spawn(|| {
            log.hear(|| agent.run(&stop)).unwrap();
            agent.counts()
        });
        leaf.set_read_timeout(Some(HANG)).unwrap();
        let mut buffer = [0; 2_000];
        let mut heartbeat = || {
            let (len, from) = leaf.recv_from(&mut buffer).unwrap();
            let Ok(Rack::Heartbeat(heartbeat)) = Rack::parse(&buffer[..len]) else { panic!("no heartbeat") };
            (heartbeat, from)
        };
        let (first, agent) = heartbeat();
        let to = first.from;
        let standing =
            Standing { to, incarnation: first.incarnation, stream: 9, head: 0, active: true, settled: true };
        let update = |number: u64, after: u64, label: &[u8]| {
            let mut updates = Updates::new(to, 9, after);
            assert!(updates.push(Update { number, session: 7, label }));
            sent(&Rack::Updates(updates))
        };
        leaf.send_to(&sent(&Rack::Standing(standing)), agent).unwrap();
        leaf.send_to(&update(1, 0, &[1; 3]), agent).unwrap();
        leaf.send_to(&update(2, 1, &[2; 3]), agent).unwrap();
        for _ in 0..3 {
            leaf.send_to(&update(1, 0, &[3; 3]), agent).unwrap();
            leaf.send_to(b"no message", agent).unwrap();
        }
        leaf.send_to(&update(3, 2, &[4; 3]), agent).unwrap();
        let begun = std::time::Instant::now();
        while heartbeat().0.applied < 3 {
            assert!(begun.elapsed() < HANG, "{}", log.text());
        }
        stop.store(true, Ordering::Relaxed);
        let (counts, malformed) = runs.join().unwrap();
        assert_eq!((counts.stale, malformed), (3, 3));
    });
    assert_eq!(labels.0.lock().unwrap()[&7], [4; 3]);
    assert_eq!(log.text().matches("no message of a leaf controller").count(), 1, "{}", log.text());
}
