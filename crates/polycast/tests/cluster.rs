//! A manager and agents as processes of their own: sending, getting, wrong input, and a manager that dies.

mod common;

use common::cluster::{Cluster, Daemon};
use common::{Place, begin, command, end, noise, polycast, signal};
use rustix::process::Signal;
use std::fs;
use std::time::{Duration, Instant};

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
    let again = cluster.at("a", &["send", &file, "--to", "b", "--id", "1"]);
    assert_eq!((again.status, &again.json()["sent_bytes"]), (0, &0.into()), "{}", again.stderr);
    let out = cluster.place.path("out");
    let occupied = cluster.place.file("occupied", b"mine");
    let other = cluster.place.file("other", b"bytes");
    for (arguments, says) in [
        (vec!["send", &file, "--to", "nobody"], "there is no agent 'nobody'"),
        (vec!["send", &file, "--to", "b,b"], "named twice"),
        (vec!["send", &other, "--to", "b", "--id", "1"], "object 1 already"),
        (vec!["get", "1", "--out", &occupied], "is there already"),
        (vec!["send", "/no/such/file", "--to", "b"], "cannot read /no/such/file"),
        (vec!["get", "99", "--out", &out], "no object 99"),
        (vec!["rm", "99"], "no object 99"),
    ] {
        let ran = cluster.at("a", &arguments);
        assert_eq!(ran.status, 1, "{arguments:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(says), "{arguments:?}: {}", ran.stderr);
    }
    assert_eq!(fs::read(&occupied).unwrap(), b"mine");
    assert_eq!(cluster.at("b", &["get", "1", "--out", &occupied, "--force"]).status, 0);
    assert_eq!(fs::read(&occupied).unwrap(), b"bytes");
    let address = cluster.managers[0].address();
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
    let sending = cluster.begin("a", &["send", &file, "--to", "b", "--id", "1"]);
    cluster.await_status("b", |s| s["transfers"].as_array().is_some_and(|t| !t.is_empty()));
    cluster.managers[0].kill();
    let sent = end(sending);
    assert_eq!(sent.status, 0, "{}", sent.stderr);
    let status = cluster.await_status("a", |s| s["manager_connected"] == false);
    let error = status["manager_error"].as_str().unwrap();
    assert!(!error.is_empty() && !error.contains("os error"), "{error}");
    let begun = Instant::now();
    let refused = cluster.at("a", &["send", &file, "--to", "b", "--id", "2"]);
    assert_eq!(refused.status, 1, "{}", refused.stderr);
    assert!(refused.stderr.contains("manager"), "{}", refused.stderr);
    assert!(begun.elapsed() < Duration::from_secs(10), "it took {:?} to say so", begun.elapsed());

    let address = cluster.managers[0].address().to_string();
    cluster.managers[0] = Daemon::manager(&address, &[]);
    cluster.await_status("a", |s| s["peers"].as_array().is_some_and(|p| p.len() == 2));
    assert_eq!(cluster.at("a", &["send", &file, "--to", "b", "--id", "3"]).status, 0);
}

#[test]
fn a_killed_agent_is_named_and_the_others_finish() {
    let mut cluster = Cluster::start(&["a", "b", "c"]);
    let file = cluster.big(1_500_000_000);
    let sending = cluster.begin("a", &["send", &file, "--to", "b,c", "--id", "1"]);
    cluster.await_status("b", |s| s["transfers"].as_array().is_some_and(|t| !t.is_empty()));
    cluster.agents[1].kill();
    let sent = end(sending);
    assert_eq!(sent.status, 1, "{}", sent.stderr);
    for receiver in sent.json()["receivers"].as_array().unwrap() {
        assert_eq!(receiver["verified"], receiver["name"] == "c", "{receiver}");
    }
    assert!(sent.stderr.contains("b failed"), "{}", sent.stderr);
}

#[test]
fn a_cancelled_send_leaves_its_id_free() {
    let cluster = Cluster::start(&["a", "b"]);
    let big = cluster.big(4_000_000_000);
    let sending = cluster.begin("a", &["send", &big, "--to", "b", "--id", "1"]);
    for (agent, direction) in [("a", "sending"), ("b", "receiving")] {
        let status =
            cluster.await_status(agent, |s| s["transfers"].as_array().is_some_and(|t| !t.is_empty()));
        assert_eq!(status["transfers"][0]["direction"], direction, "{status}");
    }
    signal(&sending, Signal::INT);
    let sent = end(sending);
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
    for signal in [Signal::TERM, Signal::INT] {
        let mut manager = Daemon::manager("127.0.0.1:0", &[]);
        assert_eq!(manager.stop(signal), Some(0), "manager, {signal:?}");
        let mut agent = Daemon::agent(&place, "127.0.0.1:9", "x");
        assert_eq!(agent.stop(signal), Some(0), "agent, {signal:?}");
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
        begin(&[&["stream", "recv", "ticks", "--socket", &socket], arguments].concat())
    };
    let (text, json) = (recv("b", &["--count", "3"]), recv("c", &["--count", "3", "--json"]));
    cluster.await_answer("a", &["stream", "ls"], |streams| {
        let stream = &streams[0];
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
        end(child).json()
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
    let text = end(text);
    assert_eq!((text.status, text.stdout.as_str()), (0, "one\n\nthree, without an end\n"), "{}", text.stderr);
    let document = end(json).json();
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
    cluster.await_answer("a", &["stream", "ls"], |streams| *streams == serde_json::json!([]));
}
