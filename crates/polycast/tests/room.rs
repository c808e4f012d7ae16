//! Stores make room by what is really there: on a file system in memory of 24 MB, without a `store-max`, as a
//! container has it.

mod common;

use common::cluster::{Cluster, Daemon, OWN_PORT, socket};
use common::{command, end, noise};
use polycast_testing::{Need, needs, until};
use rustix::process::Signal;
use std::fs;
use std::os::unix::fs::MetadataExt;
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
    fn start(settings: &str) -> Self {
        let cluster = Cluster::with(settings, &["a"]);
        let (store, socket) = (cluster.place.path("small"), socket(&cluster.place, "b"));
        fs::create_dir(&store).unwrap();
        let manager = cluster.managers[0].address();
        let own = ["agent", "--manager", manager, "--name", "b", "--interface", "lo", "--socket", &socket];
        let agent = command(&[&own[..], OWN_PORT, &["--store", &store]].concat());
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
    fn send(&self, number: u64, len: usize) -> Option<String> {
        let (bytes, id) = (noise(len + number as usize), number.to_string());
        let file = self.cluster.place.file("object", &bytes);
        let sent = self.cluster.at("a", &["send", &file, "--to", "b", "--id", &id]);
        assert_eq!(self.cluster.at("a", &["rm", &id]).status, 0);
        if sent.status != 0 {
            return Some(sent.stderr);
        }
        assert!(fs::read(self.lies(number, false)).unwrap() == bytes, "object {id}");
        None
    }

    /// Returns the path of an object's bytes in its store.
    fn lies(&self, id: u64, is_part: bool) -> PathBuf {
        let name = format!("00000000-0000-0000-0000-000000000000-{id}.object");
        self.seen(&if is_part { format!(".{name}.polycast-part") } else { name })
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
    let small = Small::start("");
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

/// Another program takes all that is left in the middle of a transfer, which was promised room: the store
/// makes it anew.
#[test]
fn room_is_made_while_an_object_comes() {
    if !needs(&[Need::Root, Need::Namespaces]) {
        return;
    }
    // The object takes a second.
    let small = Small::start("[ip-multicast]\nrate = '40mbit'\n");
    for id in 1..=3 {
        assert_eq!(small.send(id, LEN), None);
    }
    let bytes = noise(LEN);
    let file = small.cluster.place.file("object", &bytes);
    let mut sending = small.cluster.begin("a", &["send", &file, "--to", "b", "--id", "4", "--slow", "wait"]);
    until("some of it is there", || {
        let is_some = fs::metadata(small.lies(4, true)).is_ok_and(|part| part.blocks() * 512 > 1 << 20);
        is_some || sending.try_wait().unwrap().is_some()
    });
    small.daemon.signal(Signal::STOP);
    let stat = format!("/proc/{}/stat", small.daemon.id());
    until("it stands", || fs::read_to_string(&stat).unwrap().contains(") T "));
    let is_coming = fs::metadata(small.lies(4, true)).is_ok_and(|part| part.blocks() * 512 < LEN as u64);
    fs::write(small.seen("other"), vec![1; 24 << 20]).unwrap_err();
    small.daemon.signal(Signal::CONT);
    let sent = end(sending);
    assert_eq!(sent.status, 0, "{}", sent.stderr);
    assert!(fs::read(small.lies(4, false)).unwrap() == bytes);
    // On a machine that does not get to this test for a while it may have come before.
    assert!(small.here() == [2, 3, 4] || !is_coming, "{:?}", small.here());
}
