//! Stores that are too small for what their agents ask for. `cargo xtask eviction` runs this for longer, with
//! larger objects, and with the real engine over the loopback interface.

use super::world::{LONG, Patient, World, manager, serve, stopped, until};
use polycast_agent::daemon::{Agent, AgentConfig};
use polycast_api::agent::Object;
use polycast_api::agent::fetch_event::Event as FetchEvent;
use polycast_api::client::{AgentClient, Session, Wanted};
use polycast_types::{AppId, DataId};
use std::fs::File;
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Objects that there are, and how many a store has room for.
const OBJECTS: u64 = 30;
const ROOM: u64 = 6;
/// Variables that `cargo xtask eviction` sets: seconds, and bytes of a store.
const SECONDS: &str = "POLYCAST_EVICTION_SECONDS";
const STORE: &str = "POLYCAST_EVICTION_STORE";
/// Memory of this process beside its files' may grow by so much.
const MEMORY: u64 = 600 << 20;

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Memory of this process that is no file's.
fn own_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() << 10
}

/// Bytes of which no two objects have the same at the same place.
fn content(number: u64, len: usize) -> Vec<u8> {
    let word = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (0..len as u64 / 8).flat_map(|at| (word ^ at).to_le_bytes()).collect()
}

struct Asker {
    session: Session,
    client: AgentClient,
    random: u64,
    len: u64,
    most: u64,
    /// The whole of what this process has in common: asked for, and come over the network.
    asked: Arc<AtomicU64>,
}

impl Asker {
    fn next(&mut self) -> u64 {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % OBJECTS
    }

    async fn fetch(&self, number: u64) -> Object {
        let wanted = Wanted::Id(DataId(number));
        let mut fetching = self.session.fetch(wanted, false, Some(LONG)).await.unwrap();
        loop {
            if let FetchEvent::Object(object) = fetching.next().await.unwrap().unwrap() {
                self.asked.fetch_add(1, Ordering::Relaxed);
                return object;
            }
        }
    }

    /// Asks at random until the time is over. The first object stays pinned, the second one open, and of the
    /// others each is right whose file is still there when it is read.
    async fn run(mut self, until: Instant, least: u32) {
        let (pinned, held) = (self.next(), self.next());
        self.fetch(pinned).await;
        self.session.pin(DataId(pinned), true).await.unwrap();
        let open = File::open(&self.fetch(held).await.path);
        let mut round = 0;
        while round < least || Instant::now() < until {
            round += 1;
            let number = self.next();
            let object = self.fetch(number).await;
            if let Ok(file) = File::open(&object.path) {
                self.check(number, file).await;
            }
            let used = self.client.status().await.unwrap().store_used_bytes;
            assert!(used <= self.most, "{used} bytes in a store for {}", self.most);
        }
        let listed = self.client.list(Some(AppId::default())).await.unwrap();
        let is_kept = |object: &&Object| object.pinned && object.data_id == pinned;
        assert_eq!(listed.iter().filter(is_kept).count(), 1, "what is pinned stays");
        // It may have gone between its coming and its opening; what was opened stays as it was.
        if let Ok(file) = open {
            self.check(held, file).await;
        }
    }

    async fn check(&self, number: u64, mut file: File) {
        let len = self.len as usize;
        let read = tokio::task::spawn_blocking(move || {
            let mut bytes = Vec::with_capacity(len);
            file.read_to_end(&mut bytes).unwrap();
            bytes == content(number, len)
        });
        assert!(read.await.unwrap(), "object {number} has other bytes");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stores_stay_within_their_bounds_under_load() {
    let (seconds, store) = (setting(SECONDS), setting(STORE).unwrap_or(ROOM << 20));
    let len = store / ROOM / 8 * 8;
    let network = "[ip-multicast]\npool = '239.255.73.0/24'\nport = 17418";
    let manager = manager(0, &format!("[objects]\nsettle-ms = 100\nwindow-ms = 5\n{network}")).await;
    let mut world = World::new(manager.address);
    if seconds.is_some() {
        // As large as they are then, stores belong on the disk.
        world.folder = tempfile::tempdir().unwrap();
    }
    let mut agents = Vec::new();
    for name in ["a", "b", "c", "d", "e"] {
        let own = AgentConfig { store_max: Some(format!("{store}")), ..world.config(name) };
        let config = if name == "a" { world.config(name) } else { own };
        let agent = match seconds {
            Some(_) => Agent::start_with(config, Arc::new(Patient::default())).await,
            None => Agent::start_with(config, Arc::clone(&world.engine) as _).await,
        };
        agents.push(serve(agent.unwrap()));
    }
    let client = agents[0].client().await;
    until("all agents have joined", async || client.status().await.unwrap().peers.len() == 5).await;
    let source = agents[0].session(1).await;
    for number in 0..OBJECTS {
        let path = world.file(&format!("object-{number}"), &content(number, len as usize));
        source.add(DataId(number), &path).await.unwrap();
    }
    let (before, begun) = (own_bytes(), Instant::now());
    let ends = begun + Duration::from_secs(seconds.unwrap_or(0));
    let asked: Arc<AtomicU64> = Arc::default();
    let mut asking = Vec::new();
    for (seed, agent) in (1u64..).zip(&agents[1..]) {
        let (session, client) = (agent.session(1).await, agent.client().await);
        let random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let asker = Asker { session, client, random, len, most: store, asked: Arc::clone(&asked) };
        asking.push(tokio::spawn(asker.run(ends, 40)));
    }
    let mut most = before;
    while asking.iter().any(|one| !one.is_finished()) {
        most = most.max(own_bytes());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for one in asking {
        one.await.unwrap();
    }
    assert!(most - before < MEMORY + 8 * len, "{} bytes of memory more", most - before);
    println!(
        "{} requests of {len} bytes in {:.0} s, stores of {store} bytes for {OBJECTS} objects; memory beside files {} MiB at most",
        asked.load(Ordering::Relaxed),
        begun.elapsed().as_secs_f64(),
        most >> 20
    );
    stopped(agents, manager).await;
}
