//! Objects that were reported as received are here after their agent was killed, at whatever moment: agents
//! that are processes of their own, with stores in memory and on a disk, and a kernel that kills them, or
//! fails them, at a call that is chosen.

mod common;

use common::cluster::{Cluster, Daemon, OWN_PORT, socket};
use common::{command, end, noise};
use polycast_testing::{Need, needs, until};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// Rounds of the test that kills after each report; more where this variable says so.
const ROUNDS: &str = "POLYCAST_KILL_ROUNDS";
const LEN: usize = 2_000_000;

/// A source, and a receiver whose store is on a disk or in memory.
struct World {
    cluster: Cluster,
    /// Folders of a store on a disk, and of a store in memory.
    disk: TempDir,
    memory: TempDir,
}

/// Place of the receiver's store.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Store {
    Disk,
    Memory,
}

impl World {
    fn start() -> Self {
        let cluster = Cluster::start(&["a"]);
        World { cluster, disk: tempfile::tempdir().unwrap(), memory: polycast_testing::folder_in_memory() }
    }

    fn folder(&self, store: Store) -> PathBuf {
        let folder = if store == Store::Disk { &self.disk } else { &self.memory };
        folder.path().join("store")
    }

    /// Starts the receiver, with these words of strace around it, and waits until the source knows it.
    fn receiver(&self, store: Store, watched: &[&str]) -> Daemon {
        let (folder, socket) = (self.folder(store), socket(&self.cluster.place, "b"));
        let manager = self.cluster.managers[0].address();
        let own = ["agent", "--manager", manager, "--name", "b", "--interface", "lo", "--socket", &socket];
        let agent = command(&[&own[..], OWN_PORT, &["--store", folder.to_str().unwrap()]].concat());
        let mut around = Command::new("strace");
        let daemon = if watched.is_empty() {
            Daemon::begin(agent)
        } else {
            // As a grandchild, so that our child is the agent.
            around.args(["-D", "-f", "-qq", "-o", &self.cluster.place.path("strace")]).args(watched);
            around.arg(agent.get_program()).args(agent.get_args());
            around.env_remove("POLYCAST_LOG").env_remove("POLYCAST_SOCKET");
            around.stdin(std::process::Stdio::null()).stdout(std::process::Stdio::piped());
            Daemon::begin(around)
        };
        for agent in ["a", "b"] {
            self.cluster.await_status(agent, |status| {
                let peers = status["peers"].as_array();
                peers.is_some_and(|peers| peers.len() == 2)
            });
        }
        daemon
    }

    /// The object of this number at the receiver, if it is whole there.
    fn received(&self, id: &str) -> Option<Value> {
        let listed = self.cluster.at("b", &["ls"]).json();
        let is = |object: &&Value| object["object"] == id && object["state"] == "received";
        listed.as_array().unwrap().iter().find(is).cloned()
    }

    /// Checks that all files under final names are the object, whether they count or not.
    fn check_store(&self, store: Store, bytes: &[u8]) {
        for file in fs::read_dir(self.folder(store)).unwrap() {
            let path = file.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "object") {
                assert!(fs::read(&path).unwrap() == bytes, "{}", path.display());
            }
        }
    }

    fn remove(&self, id: &str) {
        assert_eq!(self.cluster.at("b", &["rm", id]).status, 0);
        assert_eq!(self.cluster.at("a", &["rm", id]).status, 0);
    }
}

/// A receiver that is killed at once when the report has come.
#[test]
fn what_is_reported_outlives_its_agent() {
    let rounds = std::env::var(ROUNDS).map_or(3, |rounds| rounds.parse().unwrap());
    let world = World::start();
    for store in [Store::Disk, Store::Memory] {
        let mut receiver = world.receiver(store, &[]);
        for round in 0..rounds {
            let (id, bytes) = (format!("{}", 100 + round), noise(LEN + round));
            let file = world.cluster.place.file("object", &bytes);
            let sent = world.cluster.at("a", &["send", &file, "--to", "b", "--id", &id]);
            receiver.kill();
            assert_eq!(sent.status, 0, "{store:?}, round {round}: {}", sent.stderr);
            assert_eq!(sent.json()["receivers"][0]["verified"], true);
            receiver = world.receiver(store, &[]);
            let here = world.received(&id).unwrap_or_else(|| panic!("{store:?}, round {round}: it has gone"));
            assert!(fs::read(here["path"].as_str().unwrap()).unwrap() == bytes);
            world.remove(&id);
        }
        eprintln!("{store:?}: {rounds} rounds, each object was there");
    }
}

/// A receiver that is killed as soon as something is to be seen of the object in its store, whatever it does
/// just then.
#[test]
fn a_receiver_that_is_killed_in_between_has_all_or_a_rest() {
    let world = World::start();
    let bytes = noise(LEN);
    let file = world.cluster.place.file("object", &bytes);
    for store in [Store::Disk, Store::Memory] {
        for (round, seen) in [".polycast-part", ".new", ".object", ".toml"].into_iter().enumerate() {
            let mut receiver = world.receiver(store, &[]);
            let id = format!("{}", 10 + round);
            let mut sending = world.cluster.begin("a", &["send", &file, "--to", "b", "--id", &id]);
            let folder = world.folder(store);
            let is_seen =
                || fs::read_dir(&folder).unwrap().flatten().any(|file| name_ends(&file.path(), seen));
            until(seen, || is_seen() || sending.try_wait().unwrap().is_some());
            receiver.kill();
            let sent = end(sending);
            let is_reported = sent.json()["receivers"][0]["verified"] == true;
            let _receiver = world.receiver(store, &[]);
            world.check_store(store, &bytes);
            assert!(!is_reported || world.received(&id).is_some(), "{store:?}, at {seen}: it has gone");
            let again = world.cluster.at("a", &["send", &file, "--to", "b", "--id", &id]);
            assert_eq!(again.status, 0, "{}", again.stderr);
            world.check_store(store, &bytes);
            world.remove(&id);
        }
    }
}

fn name_ends(path: &Path, with: &str) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().ends_with(with))
}

/// The call by which a file gets another name.
const RENAME: &str = if cfg!(target_arch = "x86_64") { "rename" } else { "renameat" };

/// The calls of an object on its way to its place, and which of them it is in its thread. The first sync of a
/// folder is for what an earlier run may have taken away, the second one for the names.
fn calls(store: Store) -> Vec<(&'static str, u8)> {
    let names = [(RENAME, 1), (RENAME, 2)];
    let disk = [("fdatasync", 1), ("fdatasync", 2), ("fsync", 1), ("fsync", 2)];
    names.into_iter().chain(disk).filter(|(call, _)| store == Store::Disk || *call == RENAME).collect()
}

/// Returns true if the kernel waits for a disk there.
fn waits(store: Store, world: &World) -> bool {
    let folder = fs::File::open(world.folder(store).parent().unwrap()).unwrap();
    !polycast_net::store::is_in_memory(&folder)
}

/// A receiver that the kernel kills, or a disk that fails, at each call in turn: nothing is reported, nothing
/// is lost that had come, and nothing that is wrong has a final name.
#[test]
fn nothing_is_reported_before_it_is_kept() {
    if !needs(&[Need::Tool("strace")]) {
        return;
    }
    let world = World::start();
    let bytes = noise(LEN);
    let file = world.cluster.place.file("object", &bytes);
    let mut id = 100;
    for store in [Store::Disk, Store::Memory] {
        if store == Store::Disk && !waits(store, &world) {
            eprintln!("temporary files lie in memory here: there is no disk to look at");
            continue;
        }
        for (call, when) in calls(store) {
            for fault in ["signal=KILL", "error=EIO"] {
                id += 1;
                let (id, at) = (id.to_string(), format!("{store:?}, {fault} at {call} {when}"));
                let inject = format!("inject={call}:{fault}:when={when}");
                let mut receiver = world.receiver(store, &["-e", &format!("trace={call}"), "-e", &inject]);
                let sent = world.cluster.at("a", &["send", &file, "--to", "b", "--id", &id]);
                assert_eq!(sent.status, 1, "{at}: it was reported: {} {}", sent.stdout, sent.stderr);
                if fault == "signal=KILL" {
                    receiver.ended();
                } else {
                    assert!(world.received(&id).is_none(), "{at}");
                    receiver.kill();
                }
                let _receiver = world.receiver(store, &[]);
                world.check_store(store, &bytes);
                let rests = world.cluster.at("b", &["status"]).json()["rests"].clone();
                let rest = rests.as_array().unwrap().iter().find(|rest| rest["object"] == *id);
                let is_kept = rest.is_some_and(|rest| rest["bytes"] == LEN);
                assert!(is_kept || world.received(&id).is_some(), "{at}: nothing is left: {rests}");
                let again = world.cluster.at("a", &["send", &file, "--to", "b", "--id", &id]);
                assert_eq!(again.status, 0, "{at}: {}", again.stderr);
                let sent_bytes = again.json()["sent_bytes"].as_u64().unwrap();
                assert!(sent_bytes < LEN as u64 / 4, "{at}: {sent_bytes} were sent once more");
                assert!(world.received(&id).is_some());
                world.check_store(store, &bytes);
                world.remove(&id);
            }
        }
    }
}
