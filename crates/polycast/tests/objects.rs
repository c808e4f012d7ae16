//! Objects that are asked for, and topics, with a manager and agents as processes of their own: an origin is
//! read once, however many ask; the next one reads it where the first dies; a version is at all subscribers,
//! or they are named.

mod common;

use common::cluster::{Cluster, Daemon};
use common::hub::ask;
use common::{Place, Ran, end, noise, signal};
use polycast_testing::{free_port, until};
use rustix::process::Signal;
use serde_json::Value;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;
use std::process::Child;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A manager that gathers for long enough that all of a test are in time, and does not wait for agents that
/// are here anyhow.
const GATHERING: &str = "[objects]\nwindow-ms = 1500\nsettle-ms = 300\n";
const QUICK: &str = "silence-ms = 4000\n[objects]\nsettle-ms = 300\n";
/// Bytes of a group, the least that is sent of what has changed.
const GROUP: u64 = 1 << 18;

/// An HTTP server with one file, which counts requests.
struct Origin {
    address: String,
    bytes: Arc<Vec<u8>>,
    asked: Arc<AtomicUsize>,
    /// While it is set, only half of the file comes.
    halves: Arc<AtomicBool>,
    /// Connections that wait for the other half.
    held: Arc<Mutex<Vec<TcpStream>>>,
}

impl Origin {
    fn start(bytes: Vec<u8>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}/model.bin", listener.local_addr().unwrap());
        let (asked, halves) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let (bytes, held) = (Arc::new(bytes), Arc::new(Mutex::new(Vec::new())));
        let origin = Origin {
            address,
            bytes: Arc::clone(&bytes),
            asked: Arc::clone(&asked),
            halves: Arc::clone(&halves),
            held: Arc::clone(&held),
        };
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                asked.fetch_add(1, Ordering::SeqCst);
                answer(stream, &bytes, halves.load(Ordering::SeqCst), &held);
            }
        });
        origin
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    fn await_asked(&self, times: usize) {
        until("an agent asks", || self.asked() >= times);
    }

    /// Sends the rest to the agents that have half of it.
    fn release(&self) {
        until("one has half of it", || !self.held.lock().unwrap().is_empty());
        for mut stream in self.held.lock().unwrap().drain(..) {
            stream.write_all(&self.bytes[self.bytes.len() / 2..]).unwrap();
        }
    }
}

/// Answers a request; where only half of it comes, the connection stays open.
fn answer(mut stream: TcpStream, bytes: &[u8], half: bool, held: &Mutex<Vec<TcpStream>>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut line = String::new();
    while reader.read_line(&mut line).is_ok_and(|len| len > 2) {
        line.clear();
    }
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", bytes.len());
    let sent = if half { &bytes[..bytes.len() / 2] } else { bytes };
    // The client may have gone.
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(sent));
    if half {
        held.lock().unwrap().push(stream);
    }
}

fn fetch(cluster: &Cluster, agent: &str, what: &[&str]) -> (Child, String) {
    let out = cluster.place.path(&format!("out-{agent}"));
    let child = cluster.begin(agent, &[&["fetch"], what, &["--out", &out]].concat());
    (child, out)
}

fn done(ran: &Ran) {
    assert_eq!(ran.status, 0, "{} {}", ran.stdout, ran.stderr);
}

#[test]
fn an_origin_is_read_once_however_many_ask() {
    let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let cluster = Cluster::with(GATHERING, &names);
    let bytes = noise(6_000_000);
    let origin = Origin::start(bytes.clone());
    let fetching: Vec<_> = names.iter().map(|name| fetch(&cluster, name, &[&origin.address])).collect();
    let mut filled = 0;
    for (child, out) in fetching {
        let ran = end(child);
        done(&ran);
        filled += usize::from(ran.json()["filled"] == true);
        assert!(fs::read(&out).unwrap() == bytes, "{out}");
    }
    assert_eq!((origin.asked(), filled), (1, 1));
    // An agent that comes later gets it from here, or has it already.
    let again = cluster.at("c", &["fetch", &origin.address, "--out", &cluster.place.path("again")]);
    done(&again);
    assert_eq!((origin.asked(), &again.json()["filled"]), (1, &false.into()));
}

#[test]
fn the_next_one_reads_the_origin_where_the_first_dies() {
    let mut cluster = Cluster::with(QUICK, &["a", "b", "c"]);
    let bytes = noise(4_000_000);
    let origin = Origin::start(bytes.clone());
    origin.halves.store(true, Ordering::SeqCst);
    let (mut first, _) = fetch(&cluster, "a", &[&origin.address]);
    origin.await_asked(1);
    let others = ["b", "c"].map(|agent| fetch(&cluster, agent, &[&origin.address]));
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(origin.asked(), 1, "one at a time");
    // The process dies at half; the next one there is asked to, and dies with its agent.
    let mut second = fetch(&cluster, "a", &[&origin.address, "--timeout", "10m"]).0;
    let mut said = BufReader::new(second.stderr.take().unwrap()).lines();
    assert!(said.any(|line| line.unwrap().contains("it is on its way")), "it waits for the first");
    signal(&first, Signal::KILL);
    first.wait().unwrap();
    origin.await_asked(2);
    origin.halves.store(false, Ordering::SeqCst);
    cluster.agents[0].kill();
    let _ = second.kill();
    second.wait().unwrap();
    for (child, out) in others {
        done(&end(child));
        assert!(fs::read(&out).unwrap() == bytes, "{out}");
    }
    assert_eq!(origin.asked(), 3, "each after the one before");
}

/// Makes a cog of a dog.
fn wrong_letter(letter: u8) -> u8 {
    if letter == b'd' { b'c' } else { letter }
}

#[test]
fn wrong_bytes_are_refused_and_the_next_origin_is_asked() {
    let cluster = Cluster::with(QUICK, &["a", "b", "c"]);
    let text = b"The quick brown fox jumps over the lazy dog";
    let (right, wrong) = (Origin::start(text.to_vec()), Origin::start(text.map(wrong_letter).to_vec()));
    let key = "sha256:d7a8fbb307d7809469ca9abcb0082e4f8d5651e46d3cdb762d02d0bf37c9e592";
    // The first one has half of the wrong bytes, and the next one waits for the rest of them.
    [&right, &wrong].iter().for_each(|origin| origin.halves.store(true, Ordering::SeqCst));
    let first = fetch(&cluster, "a", &[key, "--from", &wrong.address]).0;
    wrong.await_asked(1);
    let second = fetch(&cluster, "b", &[key, "--from", &right.address]);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(right.asked(), 0, "one at a time");
    wrong.release();
    right.await_asked(1);
    let third = fetch(&cluster, "c", &[key, "--timeout", "10m"]);
    right.halves.store(false, Ordering::SeqCst);
    right.release();
    let ran = end(first);
    assert_eq!(ran.status, 1, "{}", ran.stdout);
    let says = "the bytes from its origin have the SHA-256 e4c4d8f3bf76b692de791a173e05321150f7a345b46484fe427f6acc7ecc81be";
    assert!(ran.stderr.contains(says), "{}", ran.stderr);
    for (child, out) in [second, third] {
        done(&end(child));
        assert_eq!(fs::read(out).unwrap(), text);
    }
    let out = cluster.place.path("out");
    let missing = "git:e69de29bb2d1d6434b8b29ae775ad8c2e48c5391";
    let nowhere = format!("file://{}", cluster.place.path("nowhere"));
    for (arguments, says) in [
        (vec!["fetch", "name:x", "--out", &out], "name:x: no agent has it"),
        (vec!["fetch", "4711", "--out", &out], "object 4711: no agent has it"),
        (vec!["fetch", "name:x", "--out", &out, "--timeout", "300ms"], "name:x did not come in time"),
        (vec!["fetch", "sha256:12", "--out", &out], "64 hexadecimal digits"),
        (vec!["fetch", "Sha:12", "--out", &out], "lower-case letters"),
        (vec!["fetch", missing, "--from", &right.address, "--out", &out], "have the git digest"),
        (vec!["fetch", "name:y", "--from", &nowhere, "--out", &out], "cannot get file://"),
        (
            vec!["fetch", "name:y", "--from", "gopher://x", "--out", &out],
            "no address of https, http, s3, hf, oci or a file",
        ),
        (vec!["publish", "a topic", &out], "cannot read"),
    ] {
        let ran = cluster.at("a", &arguments);
        let late = says.contains("in time");
        assert_eq!(ran.status, if late { 3 } else { 1 }, "{arguments:?}: {}", ran.stdout);
        assert!(ran.stderr.contains(says), "{arguments:?}: {}", ran.stderr);
    }
}

/// A program that subscribes and puts versions into a folder of its own, until the test ends.
struct Subscriber {
    child: Child,
    folder: String,
}

impl Subscriber {
    fn start(cluster: &Cluster, agent: &str) -> Self {
        let folder = cluster.place.path(&format!("into-{agent}"));
        fs::create_dir(&folder).unwrap();
        let child = cluster.begin(agent, &["subscribe", "policy", "--into", &folder]);
        Subscriber { child, folder }
    }

    fn await_bytes(&self, bytes: &[u8]) {
        until(&format!("{} gets it", self.folder), || {
            fs::read(format!("{}/weights", self.folder)).ok().as_deref() == Some(bytes)
        });
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn versions_are_at_all_subscribers_or_these_are_named() {
    let place = Place::new();
    let config = place.file("manager.toml", QUICK.as_bytes());
    let manager = Daemon::manager("127.0.0.1:0", &["--config", &config]);
    let address = manager.address().to_string();
    let mut cluster = Cluster::of(place, vec![manager], &["a", "b", "c", "d"]);
    let publish = |cluster: &Cluster, bytes: &[u8], more: &[&str]| {
        let file = cluster.place.file(&format!("{}/weights", bytes[0]), bytes);
        cluster.at("a", &[&["publish", "policy", &file], more].concat())
    };
    let versions: Vec<Vec<u8>> = (1..=4u8).map(|first| [&[first], &noise(1_500_000)[..]].concat()).collect();
    let first = publish(&cluster, &versions[0], &[]);
    done(&first);
    assert_eq!((&first.json()["version"], &first.json()["subscribers"]), (&1.into(), &serde_json::json!([])));
    // A send that fails takes nothing away that was there before.
    let file = cluster.place.path("1/weights");
    assert_eq!(cluster.at("a", &["send", &file, "--to", "absent"]).status, 1);
    // Late ones get what is committed.
    let subscribers = ["b", "c", "d"].map(|agent| Subscriber::start(&cluster, agent));
    subscribers.iter().for_each(|one| one.await_bytes(&versions[0]));
    let second = publish(&cluster, &versions[1], &["--version", "7"]);
    done(&second);
    let document = second.json();
    let list = document["subscribers"].as_array().unwrap();
    assert_eq!((&document["version"], list.len()), (&7.into(), 3), "{document}");
    assert!(list.iter().all(|one| one["verified"] == true), "{document}");
    subscribers.iter().for_each(|one| one.await_bytes(&versions[1]));
    let back = publish(&cluster, &versions[2], &["--version", "6"]);
    assert_eq!(back.status, 1);
    assert!(back.stderr.contains("version 6 of 'policy' is not above version 7"), "{}", back.stderr);
    // One dies: it is named, and the others have it.
    cluster.agents[3].kill();
    let third = publish(&cluster, &versions[2], &[]);
    assert_eq!(third.status, 1, "{}", third.stderr);
    let document = third.json();
    assert_eq!(document["version"], 8, "{document}");
    let list = document["subscribers"].as_array().unwrap();
    let missing: Vec<&Value> = list.iter().filter(|one| one["verified"] != true).collect();
    assert!(matches!(&missing[..], [one] if one["name"] == "d"), "{document}");
    // The manager has seen it go, or the transfer has.
    assert!(missing[0]["kind"] == "not-joined" || missing[0]["kind"] == "transfer-failed", "{document}");
    assert!(list.iter().all(|one| (one["verified"] == true) == one["kind"].is_null()), "{document}");
    subscribers[..2].iter().for_each(|one| one.await_bytes(&versions[2]));
    // A manager that knows nothing learns the last version from the agents.
    cluster.managers[0].kill();
    let config = cluster.place.path("manager.toml");
    cluster.managers[0] = Daemon::manager(&address, &["--config", &config]);
    cluster.await_status("a", |status| status["peers"].as_array().is_some_and(|peers| peers.len() == 3));
    let back = publish(&cluster, &versions[3], &["--version", "8"]);
    assert!(back.status == 1 && back.stderr.contains("is not above version 8"), "{}", back.stderr);
    let fourth = publish(&cluster, &versions[3], &[]);
    done(&fourth);
    assert_eq!(fourth.json()["subscribers"].as_array().unwrap().len(), 2);
    subscribers[..2].iter().for_each(|one| one.await_bytes(&versions[3]));
}

#[test]
fn what_replaces_another_object_is_sent_as_far_as_it_has_changed() {
    let cluster = Cluster::start(&["a", "b", "c"]);
    let mut bytes = noise(12_000_000);
    let path = cluster.place.file("weights", &bytes);
    for (round, how) in
        [&["--id", "7"][..], &["--id", "7", "--replace"], &["--replace"]].into_iter().enumerate()
    {
        bytes[round * 3_000_000 + 5] ^= 1;
        fs::write(&path, &bytes).unwrap();
        let sent = cluster.at("a", &[&["send", &path, "--to", "b,c"], how].concat());
        done(&sent);
        let report = sent.json();
        let wire = report["sent_bytes"].as_u64().unwrap();
        let spared = report["spared_bytes"].as_u64().unwrap();
        if round == 0 {
            assert!(wire >= 12_000_000 && spared == 0, "{report}");
        } else {
            // Both lack one group, which is sent once, or to each over TCP, and again after a loss.
            let patched = report["patched_bytes"].as_u64().unwrap();
            assert!(wire <= 3 * GROUP + patched && spared >= 2 * 11_000_000, "round {round}: {report}");
        }
        let copy = cluster.place.path(&format!("copy-{round}"));
        done(&cluster.at("b", &["get", "weights", "--out", &copy]));
        assert!(fs::read(&copy).unwrap() == bytes, "round {round}");
    }
    // What is pinned says so, also after it was let go.
    let listed = |pinned: bool| {
        let ran = cluster.at("b", &["ls"]);
        ran.json().as_array().unwrap().iter().all(|object| object["pinned"] == pinned)
    };
    done(&cluster.at("b", &["pin", "weights"]));
    assert!(listed(true));
    done(&cluster.at("b", &["unpin", "weights"]));
    assert!(listed(false));
    let unknown = cluster.at("b", &["pin", "nothing"]);
    assert!(unknown.status == 1 && unknown.stdout.contains("no object called nothing"), "{}", unknown.stdout);
}

#[test]
fn a_set_of_files_travels_file_by_file() {
    let cluster = Cluster::with(QUICK, &["a", "b", "c"]);
    let one = noise(2_000_000);
    let folder = cluster.place.path("model");
    let file = |name: &str, bytes: &[u8]| cluster.place.file(&format!("model/{name}"), bytes);
    for (name, bytes) in [("a.bin", &one[..]), ("sub/again.bin", &one), ("sub/.config", b"{}")] {
        file(name, bytes);
    }
    std::os::unix::fs::symlink("a.bin", format!("{folder}/link")).unwrap();
    let published = cluster.at("a", &["publish", "models", &folder, "--files"]);
    done(&published);
    assert_eq!(published.json()["bytes"], 2_000_002, "{}", published.stdout);
    let id = published.json()["object"].as_str().unwrap().to_string();
    // One that asks for it, and one that subscribes late, have the directory.
    let out = cluster.place.path("out");
    done(&cluster.at("b", &["fetch", &id, "--out", &out]));
    let into = cluster.place.path("into");
    fs::create_dir(&into).unwrap();
    done(&cluster.at("c", &["subscribe", "models", "--into", &into, "--once"]));
    for copy in [&out, &format!("{into}/model")] {
        assert!(fs::read(format!("{copy}/sub/again.bin")).unwrap() == one, "{copy}");
        assert_eq!(fs::read(format!("{copy}/sub/.config")).unwrap(), b"{}");
        assert_eq!(fs::read_link(format!("{copy}/link")).unwrap().to_str(), Some("a.bin"));
    }
    // Of the next one only what is new is sent.
    file("sub/.config", b"{1}");
    let sent = cluster.at("a", &["send", &folder, "--files", "--to", "b,c"]);
    done(&sent);
    let report = sent.json();
    let again = report["patched_bytes"].as_u64().unwrap();
    assert!(report["sent_bytes"].as_u64().unwrap() < 200_000 + again, "{report}");
    done(&cluster.at("b", &["get", "model", "--out", &out, "--force"]));
    assert_eq!(fs::read(format!("{out}/sub/.config")).unwrap(), b"{1}");
    let sets = cluster.at("b", &["ls"]).json();
    assert_eq!(sets.as_array().unwrap().iter().filter(|object| object["kind"] == "set").count(), 2, "{sets}");
    let wrong = cluster.at("a", &["publish", "models", &file("a.bin", b"x"), "--files"]);
    assert!(wrong.status == 1 && wrong.stderr.contains("--files is for directories"), "{}", wrong.stderr);
}

/// A process names memory by the number of its descriptor, and gives the number to another file when it has
/// closed that one.
#[test]
fn a_descriptor_that_is_another_file_by_now_is_not_taken_for_the_object() {
    let cluster = Cluster::with(QUICK, &["a"]);
    let bytes = noise(300_000);
    let (first, second) = (cluster.place.path("first"), cluster.place.path("second"));
    fs::write(&first, &bytes).unwrap();
    fs::write(&second, bytes.iter().map(|byte| !byte).collect::<Vec<_>>()).unwrap();
    let mut held = OwnedFd::from(File::open(&first).unwrap());
    let path = format!("/proc/{}/fd/{}", std::process::id(), held.as_raw_fd());
    let published = cluster.at("a", &["publish", "weights", &path]);
    done(&published);
    let object = published.json()["object"].as_str().unwrap().to_string();
    let get = |to: &str| cluster.at("a", &["get", &object, "--out", &cluster.place.path(to)]);
    done(&get("before"));
    assert_eq!(fs::read(cluster.place.path("before")).unwrap(), bytes);
    rustix::io::dup2(File::open(&second).unwrap(), &mut held).unwrap();
    let after = get("after");
    assert_eq!(after.status, 1, "{} {}", after.stdout, after.stderr);
    assert!(after.stderr.contains("has changed since it was added"), "{}", after.stderr);
    assert!(!Path::new(&cluster.place.path("after")).exists());
}

/// The publisher chooses the name: what a subscriber has of that name already stays, unless the user says
/// otherwise.
#[test]
fn versions_replace_nothing_of_the_users() {
    let cluster = Cluster::with(QUICK, &["a", "b"]);
    let model = cluster.place.file("1/proj/weights", b"version one");
    let folder = Path::new(&model).parent().unwrap().to_str().unwrap().to_string();
    done(&cluster.at("a", &["publish", "folders", &folder]));
    done(&cluster.at("a", &["publish", "files", &model]));
    let thesis = cluster.place.file("home/proj/thesis", b"three years");
    let home = cluster.place.path("home");
    let refused = cluster.at("b", &["subscribe", "folders", "--into", &home, "--once"]);
    assert_eq!(refused.status, 1, "{}", refused.stderr);
    assert!(refused.stderr.contains("--update"), "{}", refused.stderr);
    let notes = cluster.place.file("home/weights", b"notes");
    let refused = cluster.at("b", &["subscribe", "files", "--into", &home, "--once"]);
    assert_eq!(refused.status, 1, "{}", refused.stderr);
    assert_eq!(
        (fs::read(&thesis).unwrap(), fs::read(&notes).unwrap()),
        (b"three years".to_vec(), b"notes".to_vec())
    );
    // Nor does a folder go that the user lives in.
    fs::create_dir(cluster.place.path("home/proj/deep")).unwrap();
    let socket = cluster.place.path("b.sock");
    for lives in ["home/proj", "home/proj/deep"] {
        let line = ["subscribe", "folders", "--into", &home, "--once", "--force", "--socket", &socket];
        let ran: Ran = common::command(&line).env("HOME", cluster.place.path(lives)).output().unwrap().into();
        assert!(ran.status == 1 && ran.stderr.contains("your home directory"), "{}", ran.stderr);
    }
    assert_eq!(fs::read(&thesis).unwrap(), b"three years");
    done(&cluster.at("b", &["subscribe", "files", "--into", &home, "--once", "--update"]));
    assert_eq!(fs::read(&notes).unwrap(), b"version one");
    // Standard output is the object's alone, and it ends like any other.
    let shown: Ran = common::command(&["subscribe", "files", "--once", "--out", "-", "--socket", &socket])
        .output()
        .unwrap()
        .into();
    assert_eq!((shown.status, shown.stdout.as_str()), (0, "version one"), "{}", shown.stderr);
    let both = cluster.at("b", &["subscribe", "files", "--once", "--out", "-"]);
    assert!(both.status == 1 && both.stderr.contains("--json"), "{}", both.stderr);
}

/// Hosts ask within moments of each other, and not at the same one.
#[test]
fn those_who_ask_one_after_the_other_are_added_to_one_transfer() {
    const NAMES: [&str; 8] = ["b", "c", "d", "e", "f", "g", "h", "i"];
    let (place, port) = (Place::new(), free_port());
    let watched = place.file("watched.toml", format!("http = '127.0.0.1:{port}'\n").as_bytes());
    let manager = place.file(
        "manager.toml",
        b"silence-ms = 60000\n[objects]\nwindow-ms = 1\nsettle-ms = 300\n[ip-multicast]\nrate = '80mbit'\n",
    );
    let managers = vec![Daemon::manager("127.0.0.1:0", &["--config", &manager])];
    let cluster = Cluster::of(place, managers, &NAMES);
    let address = cluster.managers[0].address();
    let _source = Daemon::agent_with(&cluster.place, address, "a", &["--config", &watched]);
    let version = cluster.place.file("version", &noise(30_000_001));
    let published = cluster.at("a", &["publish", "policy", &version]);
    assert_eq!(published.status, 0, "{}", published.stderr);
    let begun = NAMES.map(|name| {
        let out = cluster.place.path(&format!("out-{name}"));
        std::thread::sleep(Duration::from_millis(5));
        cluster.begin(name, &["subscribe", "policy", "--once", "--out", &out])
    });
    for (name, child) in NAMES.iter().zip(begun) {
        let ran = end(child);
        assert_eq!(ran.status, 0, "{}", ran.stderr);
        assert!(fs::read(cluster.place.path(&format!("out-{name}"))).unwrap() == noise(30_000_001));
    }
    let ended = || {
        let page = ask(&format!("http://127.0.0.1:{port}/metrics"), "GET", "", &[]).body;
        let page = String::from_utf8(page).unwrap();
        let lines = page.lines().filter(|line| line.starts_with("polycast_sends_total"));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum::<f64>()
    };
    until("the transfers have ended", || ended() >= 1.0);
    assert!(ended() < 3.0, "{} transfers to {} hosts", ended(), NAMES.len());
}
