//! The source's side of files: those that change while they are sent, links that lead out of a directory,
//! names that are no text, and addresses with secrets.

mod common;

use common::cluster::{Cluster, Daemon, socket};
use common::{Place, Talking, begin, command, end, noise, polycast, tree};
use polycast_testing::until;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// A program that appends to a file, as to a log, until it is told to stop.
struct Log {
    stops: Arc<AtomicBool>,
    writes: Option<JoinHandle<()>>,
}

impl Log {
    fn begin(path: &str) -> Self {
        let stops = Arc::new(AtomicBool::new(false));
        let (stopped, path) = (Arc::clone(&stops), path.to_string());
        let writes = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let mut log = OpenOptions::new().append(true).open(&path).unwrap();
                log.write_all(b"a line\n").unwrap();
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        Log { stops, writes: Some(writes) }
    }

    fn stop(mut self) {
        self.stops.store(true, Ordering::Relaxed);
        self.writes.take().unwrap().join().unwrap();
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.stops.store(true, Ordering::Relaxed);
    }
}

/// Waits until a command begins again since its file has changed, lets the file rest, and gives what the
/// command came to.
fn rest(sending: Talking, log: Log) -> serde_json::Value {
    sending.await_words("beginning again, time 1 of 1000");
    log.stop();
    let ran = sending.end();
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    assert!(ran.stderr.contains("became longer while it was being sent"), "{}", ran.stderr);
    ran.json()
}

#[test]
fn a_log_that_grows_is_sent_again_when_it_rests() {
    let place = Place::new();
    let file = place.file("log", &noise(3_000_000));
    let log = Log::begin(&file);
    let out = place.path("out");
    let casting = Talking::begin(&[
        "cast",
        &file,
        "--receivers",
        "2",
        "--out",
        &out,
        "--retry-changed",
        "1000",
        "--json",
    ]);
    let report = rest(casting, log);
    let bytes = fs::read(&file).unwrap();
    for receiver in report["receivers"].as_array().unwrap() {
        assert!(fs::read(receiver["path"].as_str().unwrap()).unwrap() == bytes);
    }
    // Without that it ends.
    let log = Log::begin(&file);
    let ran = end(begin(&["cast", &file, "--receivers", "1"]));
    log.stop();
    assert_eq!(ran.status, 1, "{}", ran.stderr);
    assert!(ran.stderr.contains("became longer while it was being sent"), "{}", ran.stderr);
    assert!(ran.stderr.contains("--retry-changed"), "{}", ran.stderr);
}

#[test]
fn whoever_accepts_such_a_log_waits_for_the_next_offer() {
    let place = Place::new();
    let file = place.file("log", &noise(3_000_000));
    let log = Log::begin(&file);
    let code = "quiet-lake-stone-river";
    let target = place.path("got");
    let offer = Talking::begin(&[
        "offer",
        &file,
        "--receivers",
        "1",
        "--code",
        code,
        "--interface",
        "lo",
        "--retry-changed",
        "1000",
        "--timeout",
        "10m",
        "--json",
    ]);
    let accepting = begin(&["accept", code, "--interface", "lo", "--out", &target, "--timeout", "10m"]);
    rest(offer, log);
    let accepted = end(accepting);
    assert_eq!(accepted.status, 0, "{}", accepted.stderr);
    assert!(fs::read(&target).unwrap() == fs::read(&file).unwrap());
}

#[test]
fn agents_send_and_publish_such_a_log_again() {
    let cluster = Cluster::start(&["a", "b"]);
    let file = cluster.place.file("log", &noise(3_000_000));
    let at = socket(&cluster.place, "a");
    let talk = |words: &[&str]| {
        Talking::begin(&[words, &["--retry-changed", "1000", "--socket", &at, "--json"]].concat())
    };
    let log = Log::begin(&file);
    let report = rest(talk(&["send", &file, "--to", "b"]), log);
    assert_eq!(report["receivers"][0]["verified"], true, "{report}");
    let got = cluster.place.path("got");
    assert_eq!(cluster.at("b", &["get", "log", "--out", &got]).status, 0);
    assert!(fs::read(&got).unwrap() == fs::read(&file).unwrap());
    let subscribed = cluster.begin("b", &["subscribe", "logs", "--once", "--out", &got, "--update"]);
    let log = Log::begin(&file);
    let published = talk(&["publish", "logs", &file]);
    // A log that rests when its turn comes is published at once.
    until("it is published, or begins again", || {
        published.said().contains("beginning again") || fs::metadata(&file).unwrap().len() > 4_000_000
    });
    log.stop();
    assert_eq!(published.end().status, 0);
    drop(end(subscribed));
}

/// A folder as caches of model hubs have it: all bytes lie elsewhere.
fn hub(place: &Place) -> (String, Vec<u8>) {
    let bytes = noise(300_000);
    place.file("hub/blobs/abc", &bytes);
    let snapshot = place.path("hub/snapshots/1");
    fs::create_dir_all(&snapshot).unwrap();
    symlink("../../blobs/abc", Path::new(&snapshot).join("model.safetensors")).unwrap();
    symlink("/no/such/file", Path::new(&snapshot).join("none")).unwrap();
    (snapshot, bytes)
}

#[test]
fn links_that_lead_out_are_named_or_followed() {
    let place = Place::new();
    let (snapshot, bytes) = hub(&place);
    let ran = polycast(&["cast", &snapshot, "--receivers", "1"]);
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    let named = "2 links lead to what is not in the directory: model.safetensors -> ../../blobs/abc, none -> /no/such/file (nothing is there)";
    assert!(ran.stderr.contains(named) && ran.stderr.contains("--follow"), "{}", ran.stderr);
    let out = place.path("out");
    let ran = polycast(&["cast", "-L", &snapshot, "--receivers", "1", "--out", &out]);
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    assert!(ran.stderr.contains("a link leads to what is not in the directory: none"), "{}", ran.stderr);
    assert!(fs::read(format!("{out}/receiver-1/1/model.safetensors")).unwrap() == bytes);
    symlink("..", Path::new(&snapshot).join("up")).unwrap();
    let ran = polycast(&["cast", "--follow", &snapshot, "--receivers", "1"]);
    assert_eq!(ran.status, 1, "{}", ran.stderr);
    assert!(ran.stderr.contains("a directory that it lies in itself"), "{}", ran.stderr);
}

#[test]
fn agents_follow_links_and_make_no_set_of_such_that_lead_out() {
    let cluster = Cluster::start(&["a", "b"]);
    let (snapshot, bytes) = hub(&cluster.place);
    for words in
        [&["send", &snapshot, "--to", "b", "--files"][..], &["publish", "topic", &snapshot, "--files"]]
    {
        let ran = cluster.at("a", words);
        assert_eq!(ran.status, 1, "{}", ran.stderr);
        let error = ran.stderr.lines().find(|line| line.contains("error")).unwrap_or_default();
        assert!(
            error.contains("model.safetensors -> ../../blobs/abc") && error.contains("--follow"),
            "{}",
            ran.stderr
        );
    }
    fs::remove_file(format!("{snapshot}/none")).unwrap();
    for (words, name) in [
        (&["send", &snapshot, "--to", "b", "--follow", "--name", "whole"][..], "whole"),
        (&["send", &snapshot, "--to", "b", "--follow", "--files", "--name", "set"], "set"),
    ] {
        let ran = cluster.at("a", words);
        assert_eq!(ran.status, 0, "{}", ran.stderr);
        let target = cluster.place.path(&format!("got-{name}"));
        let got = cluster.at("b", &["get", name, "--out", &target]);
        assert_eq!(got.status, 0, "{}", got.stderr);
        assert!(fs::read(format!("{target}/model.safetensors")).unwrap() == bytes, "{name}");
    }
    // A receiver of the links alone is told, too.
    assert_eq!(cluster.at("a", &["send", &snapshot, "--to", "b", "--name", "links"]).status, 0);
    let elsewhere = Place::new();
    let got = cluster.at("b", &["get", "links", "--out", &elsewhere.path("links")]);
    assert!(got.stderr.contains("a link leads to what is not in the directory"), "{}", got.stderr);
}

#[test]
fn names_that_are_no_text_are_kept_inside_and_refused_as_names() {
    let place = Place::new();
    let odd = OsStr::from_bytes(b"caf\xe9.bin");
    let folder = place.path("folder");
    fs::create_dir(&folder).unwrap();
    fs::write(Path::new(&folder).join(odd), b"bytes").unwrap();
    let out = place.path("out");
    assert_eq!(polycast(&["cast", &folder, "--receivers", "1", "--out", &out]).status, 0);
    assert_eq!(tree(Path::new(&format!("{out}/receiver-1/folder"))), tree(Path::new(&folder)));
    for words in
        [&["cast"][..], &["offer", "--receivers", "1"], &["send", "--to", "b"], &["publish", "topic"]]
    {
        let mut words = command(words);
        let ran = common::Ran::from(words.arg(Path::new(&folder).join(odd)).output().unwrap());
        assert_eq!(ran.status, 1, "{}", ran.stderr);
        assert!(ran.stderr.contains("it is not UTF-8"), "{}", ran.stderr);
    }
}

#[test]
fn agents_keep_names_that_are_no_text_inside_a_directory() {
    let cluster = Cluster::start(&["a", "b"]);
    let odd = |name: &[u8]| Path::new(cluster.place.root()).join(OsStr::from_bytes(name));
    let (file, folder) = (odd(b"caf\xe9.bin"), odd(b"d\xe9"));
    fs::create_dir(&folder).unwrap();
    fs::write(&file, b"bytes").unwrap();
    fs::write(folder.join(OsStr::from_bytes(b"\xe9")), b"more").unwrap();
    let at = ["--to", "b", "--socket", &socket(&cluster.place, "a"), "--name"];
    for (paths, name) in [(vec![&file, &folder], "several"), (vec![&folder], "one"), (vec![&file], "file")] {
        let ran = command(&["send"]).args(paths).args(at).arg(name).output().unwrap();
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        // The agent that has it where it lies gives it, too.
        for agent in ["a", "b"] {
            let target = cluster.place.path(&format!("got-{agent}-{name}"));
            let got = cluster.at(agent, &["get", name, "--out", &target]);
            assert_eq!(got.status, 0, "{}", got.stderr);
        }
    }
    let got = |name: &str| cluster.place.path(&format!("got-b-{name}"));
    assert_eq!(tree(Path::new(&got("one"))), tree(&folder));
    assert_eq!(tree(Path::new(&cluster.place.path("got-a-one"))), tree(&folder));
    assert_eq!(fs::read(got("file")).unwrap(), b"bytes");
    let several = Path::new(&got("several")).join(OsStr::from_bytes(b"caf\xe9.bin"));
    assert_eq!(fs::read(several).unwrap(), b"bytes");
}

#[test]
fn secrets_in_addresses_reach_no_log_and_no_sentence() {
    let place = Place::new();
    let manager = Daemon::manager("127.0.0.1:0", &[]);
    let (store, at, log) = (place.path("store"), socket(&place, "a"), place.path("log"));
    let words = [
        "agent",
        "--manager",
        manager.address(),
        "--name",
        "a",
        "--interface",
        "lo",
        "--store",
        &store,
        "--socket",
        &at,
    ];
    let agent = Daemon::begin_saying(
        command(&[&words[..], &["--log", "trace"]].concat()),
        File::create(&log).unwrap().into(),
    );
    // Nothing listens there.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let address = format!("http://me:s3cret-p@{free}/model.bin?X-Amz-Signature=s3cret-q");
    for words in [&["fetch", &address][..], &["fetch", "name:model", "--from", &address]] {
        let ran =
            polycast(&[words, &["--out", &place.path("out"), "--socket", &at, "--log", "trace"]].concat());
        assert_eq!(ran.status, 1, "{}", ran.stderr);
        assert!(ran.stderr.contains(&format!("@{free}/model.bin?***")), "{}", ran.stderr);
        assert!(!ran.stderr.contains("s3cret") && !ran.stdout.contains("s3cret"), "{}", ran.stderr);
    }
    drop(agent);
    let log = fs::read_to_string(log).unwrap();
    assert!(log.contains(&format!("{free}/model.bin")) && !log.contains("s3cret"), "{log}");
}
