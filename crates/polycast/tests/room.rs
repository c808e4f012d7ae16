//! Stores make room by what is really there: on a file system in memory of 24 MB, without a `store-max`, as a container has it.

mod common;

use common::cluster::{Cluster, Daemon, socket};
use common::{command, noise};
use polycast_testing::{Need, needs};
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Bytes of each object.
const LEN: usize = 5_000_000;

/// An agent whose store is a file system of its own, which ends with it.
struct Small {
    cluster: Cluster,
    daemon: Daemon,
}

impl Small {
    fn start() -> Self {
        let cluster = Cluster::start(&["a"]);
        let (store, socket) = (cluster.place.path("small"), socket(&cluster.place, "b"));
        fs::create_dir(&store).unwrap();
        let manager = cluster.managers[0].address();
        let own = ["agent", "--manager", manager, "--name", "b", "--interface", "lo", "--socket", &socket];
        let agent = command(&[&own[..], &["--store", &store]].concat());
        let mut within = Command::new("unshare");
        let mount = "mount -t tmpfs -o size=24m,mode=700 small \"$1\"; shift; exec \"$@\"";
        within.args(["--mount", "--propagation", "private", "sh", "-ec", mount, "sh", &store]);
        within.arg(agent.get_program()).args(agent.get_args());
        within.env_remove("POLYCAST_LOG").env_remove("POLYCAST_SOCKET");
        within.stdin(Stdio::null()).stdout(Stdio::piped());
        let daemon = Daemon::begin(within);
        cluster.await_status("a", |status| status["peers"].as_array().is_some_and(|peers| peers.len() == 2));
        Small { cluster, daemon }
    }

    /// A path in its store, as this process sees it.
    fn seen(&self, name: &str) -> PathBuf {
        let store = self.cluster.place.path("small");
        PathBuf::from(format!("/proc/{}/root{store}/{name}", self.daemon.id()))
    }

    /// Sends an object of its own; gives why it has not come, if it has not.
    fn send(&self, id: u64, len: usize) -> Option<String> {
        let (bytes, id) = (noise(len + id as usize), id.to_string());
        let file = self.cluster.place.file("object", &bytes);
        let sent = self.cluster.at("a", &["send", &file, "--to", "b", "--id", &id]);
        assert_eq!(self.cluster.at("a", &["rm", &id]).status, 0);
        if sent.status != 0 {
            return Some(sent.stderr);
        }
        let name = format!("{}-{id}.object", "00000000-0000-0000-0000-000000000000");
        assert!(fs::read(self.seen(&name)).unwrap() == bytes, "object {id}");
        None
    }

    fn here(&self) -> Vec<u64> {
        let listed = self.cluster.at("b", &["ls"]).json();
        let ids = listed.as_array().unwrap().iter();
        ids.map(|object| object["object"].as_str().unwrap().parse().unwrap()).collect()
    }
}

#[test]
fn a_small_file_system_takes_objects_without_end() {
    if !needs(&[Need::Root, Need::Namespaces]) {
        return;
    }
    let small = Small::start();
    for id in 1..=9 {
        assert_eq!(small.send(id, LEN), None, "object {id}");
    }
    assert_eq!(small.here(), [5, 6, 7, 8, 9], "those that came last");
    // What is pinned stays.
    assert_eq!(small.cluster.at("b", &["pin", "6"]).status, 0);
    assert_eq!((small.send(10, LEN), small.send(11, LEN)), (None, None));
    assert_eq!(small.here(), [6, 8, 9, 10, 11]);
    // Another program fills the file system meanwhile.
    assert_eq!(small.cluster.at("b", &["rm", "11"]).status, 0);
    let other = small.seen("other");
    fs::write(&other, vec![1; 3_000_000]).unwrap();
    assert_eq!(small.send(12, LEN), None);
    assert_eq!(small.here(), [6, 9, 10, 12]);
    let long = 19_000_000;
    let refused = small.send(13, long).expect("there is no room beside the other program's");
    assert!(refused.contains("is full") && refused.contains("not the store's"), "{refused}");
    assert_eq!(small.here(), [6, 9, 10, 12], "nothing goes where that would not be enough");
    fs::remove_file(&other).unwrap();
    assert_eq!(small.send(14, long), None);
    assert_eq!(small.here(), [6, 14]);
}
