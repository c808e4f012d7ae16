//! A manager and agents as processes of their own: sending, getting, wrong input, and a manager that dies.

mod common;

use common::{Place, Ran, command, noise, polycast};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Child;
use std::time::{Duration, Instant};

/// A daemon that ends with the test.
struct Daemon {
    child: Child,
    /// What it said when it was ready.
    ready: Value,
}

impl Daemon {
    fn start(arguments: &[&str]) -> Self {
        let mut child = command(arguments).stderr(std::process::Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Daemon { ready: serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: '{line}'")), child }
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Cluster {
    place: Place,
    manager: Daemon,
    agents: Vec<Daemon>,
}

impl Cluster {
    fn start(names: &[&str]) -> Self {
        let place = Place::new();
        let manager = Daemon::start(&["manager", "--listen", "127.0.0.1:0", "--json"]);
        let address = manager.ready["listening"].as_str().unwrap().to_string();
        let agent = |name: &&str| {
            let (store, socket) = (place.path(&format!("store-{name}")), place.path(&format!("{name}.sock")));
            Daemon::start(&[
                "agent",
                "--manager",
                &address,
                "--name",
                name,
                "--interface",
                "lo",
                "--store",
                &store,
                "--socket",
                &socket,
                "--json",
            ])
        };
        let agents = names.iter().map(agent).collect();
        let cluster = Cluster { place, manager, agents };
        cluster.await_status(names[0], |s| s["peers"].as_array().is_some_and(|p| p.len() == names.len()));
        cluster
    }

    /// Runs a command at an agent.
    fn at(&self, agent: &str, arguments: &[&str]) -> Ran {
        let socket = self.place.path(&format!("{agent}.sock"));
        polycast(&[arguments, &["--socket", &socket, "--json"]].concat())
    }

    fn await_stream(&self, agent: &str, is: impl Fn(&Value) -> bool) {
        let begun = Instant::now();
        loop {
            let streams = self.at(agent, &["stream", "ls"]).json();
            if streams.as_array().is_some_and(|streams| streams.len() == 1 && is(&streams[0])) {
                return;
            }
            assert!(begun.elapsed() < Duration::from_secs(20), "{streams}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn await_status(&self, agent: &str, is: impl Fn(&Value) -> bool) -> Value {
        let begun = Instant::now();
        loop {
            let status = self.at(agent, &["status"]).json();
            if is(&status) {
                return status;
            }
            assert!(begun.elapsed() < Duration::from_secs(20), "{status}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

#[test]
fn objects_travel_between_agents() {
    let cluster = Cluster::start(&["a", "b", "c"]);
    let bytes = noise(5_000_000);
    let file = cluster.place.file("model.bin", &bytes);
    let sent = cluster.at("a", &["send", &file, "--to", "b,c", "--id", "42"]);
    assert_eq!(sent.status, 0, "{}", sent.stderr);
    let report = sent.json();
    assert_eq!((&report["object"], &report["bytes"]), (&"42".into(), &bytes.len().into()));
    assert!(report["receivers"].as_array().unwrap().iter().all(|r| r["verified"] == true), "{report}");
    for agent in ["b", "c"] {
        let out = cluster.place.path(&format!("copy-{agent}"));
        let got = cluster.at(agent, &["get", "42", "--out", &out]);
        assert_eq!(got.status, 0, "{}", got.stderr);
        let document = serde_json::json!({
            "object": "42", "name": "model.bin", "kind": "file", "bytes": bytes.len(), "root": report["root"],
            "path": out,
        });
        assert_eq!(got.json(), document);
        assert!(fs::read(&out).unwrap() == bytes);
    }
    let listed = cluster.at("b", &["ls"]).json();
    assert_eq!(listed[0]["state"], "received");
    assert_eq!(cluster.at("b", &["rm", "42"]).json()["removed"], true);
    assert_eq!(cluster.at("b", &["ls"]).json(), serde_json::json!([]));

    cluster.place.file("tree/sub/x", b"hello");
    fs::create_dir(cluster.place.path("tree/empty")).unwrap();
    let sent = cluster.at("b", &["send", &cluster.place.path("tree"), "--to", "all", "--id", "7"]);
    assert_eq!(sent.status, 0, "{}", sent.stderr);
    let out = cluster.place.path("tree-copy");
    assert_eq!(cluster.at("c", &["get", "7", "--out", &out]).status, 0);
    assert_eq!(fs::read(format!("{out}/sub/x")).unwrap(), b"hello");
    assert!(fs::metadata(format!("{out}/empty")).unwrap().is_dir());
}

#[test]
fn wrong_input_gets_one_sentence() {
    let cluster = Cluster::start(&["a", "b"]);
    let file = cluster.place.file("f", b"bytes");
    assert_eq!(cluster.at("a", &["send", &file, "--to", "b", "--id", "1"]).status, 0);
    let out = cluster.place.path("out");
    for (arguments, says) in [
        (vec!["send", &file, "--to", "nobody"], "there is no agent 'nobody'"),
        (vec!["send", &file, "--to", "b,b"], "named twice"),
        (vec!["send", &file, "--to", "b", "--id", "1"], "object 1 already"),
        (vec!["send", "/no/such/file", "--to", "b"], "cannot read /no/such/file"),
        (vec!["get", "99", "--out", &out], "no object 99"),
        (vec!["rm", "99"], "no object 99"),
    ] {
        let ran = cluster.at("a", &arguments);
        assert_eq!(ran.status, 1, "{arguments:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(says), "{arguments:?}: {}", ran.stderr);
    }
    let address = cluster.manager.ready["listening"].as_str().unwrap();
    let second = polycast(&["manager", "--listen", address]);
    assert_eq!(second.status, 1);
    assert!(second.stderr.contains("in use"), "{}", second.stderr);
    let nobody = polycast(&["status", "--socket", &cluster.place.path("none.sock")]);
    assert_eq!(nobody.status, 1);
    assert!(nobody.stderr.contains("no agent listens on"), "{}", nobody.stderr);
}

/// The manager is not on the data path: what runs goes on without it, and what is new says why it cannot.
#[test]
fn a_killed_manager_stops_nothing_that_runs_and_may_come_back() {
    let mut cluster = Cluster::start(&["a", "b"]);
    let bytes = noise(60_000_000);
    let file = cluster.place.file("f", &bytes);
    let socket = cluster.place.path("a.sock");
    let sending =
        command(&["send", &file, "--to", "b", "--id", "1", "--socket", &socket, "--json"]).spawn().unwrap();
    cluster.await_status("b", |s| s["transfers"].as_array().is_some_and(|t| !t.is_empty()));
    cluster.manager.kill();
    let sent: Ran = sending.wait_with_output().unwrap().into();
    assert_eq!(sent.status, 0, "{}", sent.stderr);
    let status = cluster.await_status("a", |s| s["manager_connected"] == false);
    let error = status["manager_error"].as_str().unwrap();
    assert!(!error.is_empty() && !error.contains("os error"), "{error}");
    let begun = Instant::now();
    let refused = cluster.at("a", &["send", &file, "--to", "b", "--id", "2"]);
    assert_eq!(refused.status, 1, "{}", refused.stderr);
    assert!(refused.stderr.contains("manager"), "{}", refused.stderr);
    assert!(begun.elapsed() < Duration::from_secs(10), "it took {:?} to say so", begun.elapsed());

    let address = cluster.manager.ready["listening"].as_str().unwrap().to_string();
    cluster.manager = Daemon::start(&["manager", "--listen", &address, "--json"]);
    cluster.await_status("a", |s| s["peers"].as_array().is_some_and(|p| p.len() == 2));
    assert_eq!(cluster.at("a", &["send", &file, "--to", "b", "--id", "3"]).status, 0);
}

#[test]
fn a_killed_agent_is_named_and_the_others_finish() {
    let mut cluster = Cluster::start(&["a", "b", "c"]);
    let file = cluster.place.path("big");
    // Without contents on the disk, but not without bytes to move.
    fs::File::create(&file).unwrap().set_len(1_500_000_000).unwrap();
    let socket = cluster.place.path("a.sock");
    let sending =
        command(&["send", &file, "--to", "b,c", "--id", "1", "--socket", &socket, "--json"]).spawn().unwrap();
    cluster.await_status("b", |s| s["transfers"].as_array().is_some_and(|t| !t.is_empty()));
    cluster.agents[1].kill();
    let sent: Ran = sending.wait_with_output().unwrap().into();
    assert_eq!(sent.status, 1, "{}", sent.stderr);
    for receiver in sent.json()["receivers"].as_array().unwrap() {
        assert_eq!(receiver["verified"], receiver["name"] == "c", "{receiver}");
    }
    assert!(sent.stderr.contains("b failed"), "{}", sent.stderr);
}

/// Asks a process to end in one of the ways that people and systems do.
fn signal(child: &Child, name: &str) {
    let killed = std::process::Command::new("kill").args([name, &child.id().to_string()]).status();
    assert!(killed.is_ok_and(|status| status.success()), "cannot send {name}");
}

#[test]
fn a_cancelled_send_leaves_its_id_free() {
    let cluster = Cluster::start(&["a", "b"]);
    let big = cluster.place.path("big");
    fs::File::create(&big).unwrap().set_len(4_000_000_000).unwrap();
    let socket = cluster.place.path("a.sock");
    let sending =
        command(&["send", &big, "--to", "b", "--id", "1", "--socket", &socket, "--json"]).spawn().unwrap();
    for (agent, direction) in [("a", "sending"), ("b", "receiving")] {
        let status =
            cluster.await_status(agent, |s| s["transfers"].as_array().is_some_and(|t| !t.is_empty()));
        assert_eq!(status["transfers"][0]["direction"], direction, "{status}");
    }
    signal(&sending, "-INT");
    let sent: Ran = sending.wait_with_output().unwrap().into();
    assert_eq!(sent.status, 1, "{}", sent.stderr);
    assert!(sent.stderr.contains("cancelled"), "{}", sent.stderr);
    assert_eq!(cluster.at("a", &["ls"]).json(), serde_json::json!([]));
    let small = cluster.place.file("small", b"another object of the same number");
    let again = cluster.at("a", &["send", &small, "--to", "b", "--id", "1"]);
    assert_eq!(again.status, 0, "{}", again.stderr);
}

#[test]
fn a_daemon_ends_in_order_from_its_first_line_on() {
    let place = Place::new();
    for name in ["-TERM", "-INT"] {
        let mut manager = Daemon::start(&["manager", "--listen", "127.0.0.1:0", "--json"]);
        signal(&manager.child, name);
        assert_eq!(manager.child.wait().unwrap().code(), Some(0), "manager, {name}");
        let (store, socket) = (place.path("store"), place.path("agent.sock"));
        let mut agent = Daemon::start(&[
            "agent",
            "--manager",
            "127.0.0.1:9",
            "--name",
            "x",
            "--interface",
            "lo",
            "--store",
            &store,
            "--socket",
            &socket,
            "--json",
        ]);
        signal(&agent.child, name);
        assert_eq!(agent.child.wait().unwrap().code(), Some(0), "agent, {name}");
    }
}

#[test]
fn lines_go_from_one_agent_to_those_who_have_joined() {
    let cluster = Cluster::start(&["a", "b", "c"]);
    assert_eq!(cluster.at("a", &["stream", "create", "ticks"]).json()["created"], true);
    let listed = cluster.at("b", &["stream", "ls"]).json();
    assert_eq!(
        (&listed[0]["name"], &listed[0]["source"], &listed[0]["fabric"]),
        (&"ticks".into(), &"a".into(), &"".into())
    );
    let recv = |agent: &str, arguments: &[&str]| {
        let socket = cluster.place.path(&format!("{agent}.sock"));
        command(&[&["stream", "recv", "ticks", "--socket", &socket], arguments].concat()).spawn().unwrap()
    };
    let (text, json) = (recv("b", &["--count", "3"]), recv("c", &["--count", "3", "--json"]));
    cluster.await_stream("a", |stream| {
        stream["receivers"].as_array().is_some_and(|r| r.len() == 2) && stream["fabric"] == "ip-multicast"
    });
    // The source's agent hears of its path at the same time as we did.
    let send = |lines: &'static str| {
        let socket = cluster.place.path("a.sock");
        let mut child = command(&["stream", "send", "ticks", "--json", "--socket", &socket])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), lines.as_bytes()).unwrap();
        Ran::from(child.wait_with_output().unwrap()).json()
    };
    let begun = Instant::now();
    let first = loop {
        let sent = send("one\n");
        if sent["unheard"] == 0 {
            break sent["messages"].clone();
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "{sent}");
    };
    assert_eq!(first, 1);
    assert_eq!(send("\nthree, without an end")["messages"], 2);
    let text = Ran::from(text.wait_with_output().unwrap());
    assert_eq!((text.status, text.stdout.as_str()), (0, "one\n\nthree, without an end\n"), "{}", text.stderr);
    let document = Ran::from(json.wait_with_output().unwrap()).json();
    assert_eq!((&document["source"], &document["lost"]), (&"a".into(), &0.into()));
    let texts: Vec<&str> =
        document["messages"].as_array().unwrap().iter().map(|m| m["text"].as_str().unwrap()).collect();
    assert_eq!(texts, ["one", "", "three, without an end"]);
    for (arguments, says) in [
        (vec!["stream", "recv", "ticks"], "say with --count how many"),
        (vec!["stream", "send", "ticks"], "has created no stream 'ticks'"),
        (vec!["stream", "leave", "ticks"], "nobody on this host hears the stream"),
        (vec!["stream", "create", "a b"], "cannot be a stream's name"),
    ] {
        let ran = cluster.at("b", &arguments);
        let error = ran.json()["error"].as_str().unwrap().to_string();
        assert!(ran.status == 1 && error.contains(says), "{arguments:?}: {error}");
    }
    assert_eq!(cluster.at("a", &["stream", "end", "ticks"]).json()["ended"], true);
    // The manager hears of it a moment later.
    let begun = Instant::now();
    while cluster.at("a", &["stream", "ls"]).json() != serde_json::json!([]) {
        assert!(begun.elapsed() < Duration::from_secs(20), "the stream is still listed");
        std::thread::sleep(Duration::from_millis(20));
    }
}
