//! A manager and agents as processes of their own: sending, getting, wrong input, and a manager that dies.

mod common;

use common::cluster::{Cluster, Daemon};
use common::{Place, begin, command, end, noise, polycast, signal, spared};
use rustix::process::Signal;
use serde_json::Value;
use std::fs;
use std::time::{Duration, SystemTime};

#[test]
fn objects_travel_between_agents() {
    let cluster = Cluster::start(&["a", "b", "c"]);
    let bytes = noise(5_000_000);
    let file = cluster.place.file("model.bin", &bytes);
    let changed = SystemTime::UNIX_EPOCH + Duration::new(981_158_400, 5);
    fs::File::open(&file).unwrap().set_modified(changed).unwrap();
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
            "path": out, "unchanged": false, "version": 1,
        });
        assert_eq!(got.json(), document);
        assert!(fs::read(&out).unwrap() == bytes);
        assert_eq!(fs::metadata(&out).unwrap().modified().unwrap(), changed);
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
    // As long as that, agents that a request names may still come.
    let cluster = Cluster::with("silence-ms = 4000\n", &["a", "b"]);
    let file = cluster.place.file("f", b"bytes");
    assert_eq!(cluster.at("a", &["send", &file, "--to", "b", "--id", "1"]).status, 0);
    let again = cluster.at("a", &["send", &file, "--to", "b", "--id", "1"]);
    assert_eq!((again.status, &again.json()["sent_bytes"]), (0, &0.into()), "{}", again.stderr);
    let out = cluster.place.path("out");
    let occupied = cluster.place.file("occupied", b"mine");
    let other = cluster.place.file("other", b"bytes");
    for (arguments, says) in [
        (vec!["send", &file, "--to", "absent"], "there is no agent 'absent'"),
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
    let silent = polycast(&["status", "--socket", &cluster.place.path("none.sock")]);
    assert_eq!(silent.status, 1);
    assert!(silent.stderr.contains("no agent listens on"), "{}", silent.stderr);
}

/// The manager is not on the data path: what runs goes on without it, and what is new says why it cannot.
#[test]
fn a_killed_manager_stops_nothing_that_runs_and_may_come_back() {
    // The first transfer takes three seconds.
    let mut cluster = Cluster::with("[ip-multicast]\nrate = '160mbit'\n", &["a", "b"]);
    let file = cluster.place.file("f", &noise(60_000_000));
    let sending = cluster.begin("a", &["send", &file, "--to", "b", "--id", "1"]);
    cluster.await_status("b", |s| s["transfers"].as_array().is_some_and(|t| !t.is_empty()));
    cluster.managers[0].kill();
    let sent = end(sending);
    assert_eq!(sent.status, 0, "{}", sent.stderr);
    let status = cluster.await_status("a", |s| s["manager_connected"] == false);
    let error = status["manager_error"].as_str().unwrap();
    assert!(!error.is_empty() && !error.contains("os error"), "{error}");
    let refused = cluster.at("a", &["send", &file, "--to", "b", "--id", "2"]);
    assert_eq!(refused.status, 1, "{}", refused.stderr);
    assert!(refused.stderr.contains("manager"), "{}", refused.stderr);

    let address = cluster.managers[0].address().to_string();
    cluster.managers[0] = Daemon::manager(&address, &[]);
    cluster.await_status("a", |s| s["peers"].as_array().is_some_and(|p| p.len() == 2));
    assert_eq!(cluster.at("a", &["send", &file, "--to", "b", "--id", "3"]).status, 0);
}

#[test]
fn a_killed_agent_is_named_and_the_others_finish() {
    // It takes three seconds.
    let mut cluster = Cluster::with("[ip-multicast]\nrate = '160mbit'\n", &["a", "b", "c"]);
    let file = cluster.place.file("f", &noise(60_000_000));
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

/// An operator sees each machine, what it stores, and that one has gone.
#[test]
fn the_machines_are_listed() {
    let mut cluster = Cluster::with("heartbeat-ms = 100\nreconnect-ms = 300\n", &["a", "b"]);
    let file = cluster.place.file("f", &noise(2_000_000));
    assert_eq!(cluster.at("a", &["send", &file, "--to", "b"]).status, 0);
    // A heartbeat tells of what was there when it was sent.
    let is_told = |nodes: &Value| {
        let all = nodes.as_array().unwrap();
        all.iter().all(|node| node["objects"] == 1) && all[1]["store_used_bytes"] == 2_000_000
    };
    let nodes = cluster.await_answer("a", &["nodes"], is_told);
    for (node, name) in nodes.as_array().unwrap().iter().zip(["a", "b"]) {
        assert_eq!((&node["name"], &node["state"]), (&name.into(), &"ready".into()), "{nodes}");
        assert_eq!(node["node_version"], env!("CARGO_PKG_VERSION"), "{nodes}");
    }
    cluster.agents[1].kill();
    let is_lost = |nodes: &Value| nodes[1]["state"] == "lost";
    let nodes = cluster.await_answer("a", &["nodes"], is_lost);
    assert_eq!((&nodes[1]["name"], &nodes[1]["objects"]), (&"b".into(), &Value::Null), "{nodes}");
    let text = cluster.at("a", &["nodes"]);
    assert_eq!(text.status, 0, "{}", text.stderr);
}

/// The settings of a machine, or its command line, say where it stands.
#[test]
fn racks_and_zones_are_listed() {
    let mut cluster = Cluster::start(&["a"]);
    let settings = cluster.place.file("b.toml", b"rack = 'r1'\nzone = 'hall-1'\n");
    let manager = cluster.managers[0].address().to_string();
    let more = ["--config", &settings, "--zone", "hall-2"];
    cluster.agents.push(Daemon::agent_with(&cluster.place, &manager, "b", &more));
    // The join says it: no heartbeat is waited for.
    let nodes = cluster.await_answer("a", &["nodes"], |nodes| nodes[1]["name"] == "b");
    let place = |at: usize| (nodes[at]["rack"].clone(), nodes[at]["zone"].clone());
    assert_eq!(place(0), (Value::Null, Value::Null), "{nodes}");
    assert_eq!(place(1), ("r1".into(), "hall-2".into()), "{nodes}");
    let wrong = polycast(&["agent", "--manager", &manager, "--interface", "lo", "--rack", "a b"]);
    assert_eq!(wrong.status, 1, "{}", wrong.stderr);
    assert!(wrong.stderr.contains("the setting 'rack' is wrong"), "{}", wrong.stderr);
}

/// A supervisor starts an agent again that was killed: the transfer that it was in goes on for it as well.
#[test]
fn an_agent_that_is_started_again_gets_the_rest() {
    // It takes three seconds.
    let mut cluster = Cluster::with("[ip-multicast]\nrate = '160mbit'\n", &["a", "b", "c"]);
    let file = cluster.place.file("f", &noise(60_000_000));
    let sending = cluster.begin("a", &["send", &file, "--to", "b,c", "--id", "1"]);
    let has_some = |s: &serde_json::Value| s["transfers"][0]["verified_bytes"].as_u64() > Some(10_000_000);
    cluster.await_status("b", has_some);
    cluster.agents[1].kill();
    let address = cluster.managers[0].address().to_string();
    let port = cluster.agents[1].control_port();
    cluster.agents[1] = Daemon::agent_with(&cluster.place, &address, "b", &["--port", &port]);
    let sent = end(sending);
    assert_eq!(sent.status, 0, "{}", sent.stderr);
    for receiver in sent.json()["receivers"].as_array().unwrap() {
        assert_eq!(receiver["verified"], true, "{receiver}");
        let had = receiver["spared_bytes"].as_u64().unwrap();
        assert_eq!(had > 5_000_000, receiver["name"] == "b", "what it had is not sent again: {receiver}");
    }
    let out = cluster.place.path("out");
    assert_eq!(cluster.at("b", &["get", "1", "--out", &out]).status, 0);
    assert!(std::fs::read(out).unwrap() == std::fs::read(&file).unwrap());
}

#[test]
fn a_cancelled_send_leaves_its_id_free() {
    // It would take 40 s.
    let cluster = Cluster::with("[ip-multicast]\nrate = '8mbit'\n", &["a", "b"]);
    let long = cluster.place.file("long", &noise(40_000_000));
    let sending = cluster.begin("a", &["send", &long, "--to", "b", "--id", "1", "--slow", "wait"]);
    for (agent, direction) in [("a", "sending"), ("b", "receiving")] {
        let status =
            cluster.await_status(agent, |s| s["transfers"].as_array().is_some_and(|t| !t.is_empty()));
        assert_eq!(status["transfers"][0]["direction"], direction, "{status}");
    }
    let listed = cluster.await_answer("a", &["transfers"], |rows| rows[0]["rate_bps"].as_f64() > Some(0.0));
    let row = &listed[0];
    assert_eq!((&row["name"], &row["direction"]), (&"long".into(), &"sending".into()), "{listed}");
    assert_eq!((&row["receivers"], &row["done"], &row["slowest"]), (&1.into(), &0.into(), &"b".into()));
    assert_eq!(row["fabric"], "ip-multicast", "{listed}");
    let said = cluster.at("b", &["transfers"]);
    assert!(said.status == 0 && said.json()[0]["direction"] == "receiving", "{}", said.stdout);
    signal(&sending, Signal::INT);
    let sent = end(sending);
    assert_eq!(sent.status, 130, "{}", sent.stderr);
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

/// Lines of messages; the last one has no end.
const THREE: [&str; 3] = ["one", "", "three, without an end"];

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
    let (mut text, mut json) = (recv("b", &["--count", "3"]), recv("c", &["--count", "3", "--json"]));
    cluster.await_answer("a", &["stream", "ls"], |streams| {
        let stream = &streams[0];
        stream["receivers"].as_array().is_some_and(|r| r.len() == 2) && stream["fabric"] == "ip-multicast"
    });
    let send = || {
        let socket = cluster.place.path("a.sock");
        let mut child = command(&["stream", "send", "ticks", "--json", "--socket", &socket])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), THREE.join("\n").as_bytes()).unwrap();
        end(child).json()
    };
    // The source's agent hears of its path at the same time as we did, and datagrams may be lost where
    // processors are busy: so there are messages until both have had enough.
    let mut is_heard = false;
    while [&mut text, &mut json].into_iter().any(|child| child.try_wait().unwrap().is_none()) {
        let sent = send();
        assert_eq!((&sent["messages"], &sent["failed"]), (&3.into(), &0.into()));
        is_heard |= sent["unheard"] == 0;
    }
    assert!(is_heard);
    let text = end(text);
    assert_eq!(text.status, 0, "{}", text.stderr);
    let lines: Vec<&str> = text.stdout.lines().collect();
    assert!(lines.len() == 3 && lines.iter().all(|line| THREE.contains(line)), "{lines:?}");
    let document = end(json).json();
    assert_eq!(document["source"], "a");
    let messages = document["messages"].as_array().unwrap();
    assert_eq!(messages.len(), 3);
    let number = |message: &Value| message["number"].as_u64().unwrap();
    for message in messages {
        assert_eq!(message["text"], THREE[(number(message) % 3) as usize], "{messages:?}");
    }
    // What did not come is counted, one way or the other.
    for pair in messages.windows(2) {
        assert_eq!(
            number(&pair[1]),
            number(&pair[0]) + 1 + pair[1]["lost"].as_u64().unwrap(),
            "{messages:?}"
        );
    }
    assert_eq!(document["lost"], messages.iter().map(|one| one["lost"].as_u64().unwrap()).sum::<u64>());
    for (arguments, says) in [
        (vec!["stream", "recv", "ticks"], "say with --count how many"),
        (vec!["stream", "send", "ticks"], "has created no stream 'ticks'"),
        (vec!["stream", "leave", "ticks"], "no process on this host hears the stream"),
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

#[test]
fn objects_are_named_replaced_and_removed_everywhere() {
    let cluster = Cluster::start(&["a", "b", "c"]);
    let file = cluster.place.file("model.bin", b"first");
    // It says what to type, and that works. The same once more sends nothing.
    let sent = cluster.at("a", &["send", &file, "--to", "all"]);
    assert_eq!(sent.status, 0, "{}", sent.stderr);
    let id = sent.json()["object"].as_str().unwrap().to_string();
    assert!(sent.stderr.contains("polycast get model.bin") && !sent.stderr.contains(&id), "{}", sent.stderr);
    let again = cluster.at("a", &["send", &file, "--to", "all"]).json();
    assert_eq!((&again["sent_bytes"], &again["object"]), (&0.into(), &id.as_str().into()));
    let folder = cluster.place.path("got");
    let got = cluster.at("b", &["get", "model.bin", "--into", &folder]);
    assert_eq!(got.json()["path"], format!("{folder}/model.bin"), "{}", got.stderr);
    assert_eq!(cluster.at("b", &["get", "model.bin", "--into", &folder]).status, 1);
    let equal = cluster.at("b", &["get", &id, "--into", &folder, "--update"]);
    assert_eq!(equal.json()["unchanged"], true, "{}", equal.stderr);

    // A new version takes the old one's place.
    fs::write(&file, b"second").unwrap();
    let sent = cluster.at("a", &["send", &file, "--to", "all", "--replace"]);
    assert_eq!(sent.status, 0, "{}", sent.stderr);
    let listed = cluster.at("c", &["ls"]).json();
    assert_eq!((listed.as_array().unwrap().len(), &listed[0]["name"]), (1, &"model.bin".into()), "{listed}");
    let got = cluster.at("b", &["get", "model.bin", "--into", &folder, "--update"]);
    assert_eq!((got.status, fs::read(format!("{folder}/model.bin")).unwrap()), (0, b"second".to_vec()));
    // So does another file under an id that is used; without a word it is refused.
    let other = cluster.place.file("other.bin", b"third");
    assert_eq!(cluster.at("a", &["send", &file, "--to", "b", "--id", "5"]).status, 0);
    let refused = cluster.at("a", &["send", &other, "--to", "b,c", "--id", "5"]);
    assert!(refused.status == 1 && refused.stderr.contains("--replace"), "{}", refused.stderr);
    let replaced = cluster.at("a", &["send", &other, "--to", "b,c", "--id", "5", "--replace"]);
    assert_eq!(replaced.status, 0, "{}", replaced.stderr);
    let out = cluster.place.path("third");
    assert_eq!(cluster.at("b", &["get", "5", "--out", &out]).status, 0);
    assert_eq!(fs::read(&out).unwrap(), b"third");

    // Several paths are one object; standard input is one as long as the command runs.
    let sent = cluster.at("a", &["send", &file, &other, "--to", "b", "--name", "both", "--exclude", "x*"]);
    assert_eq!(sent.status, 0, "{}", sent.stderr);
    let got = cluster.at("b", &["get", "both", "--into", &folder]);
    assert_eq!((got.status, fs::read(format!("{folder}/both/other.bin")).unwrap()), (0, b"third".to_vec()));
    assert_eq!(cluster.at("b", &["rm", "both", "--to", "all"]).status, 0);

    // Many go at once, here and elsewhere; what is not at an agent is no error there.
    let gone = cluster.at("c", &["rm", "model.bin", "5", "--to", "a,b"]);
    assert_eq!(gone.status, 0, "{}", gone.stderr);
    let objects = gone.json()["objects"].as_array().unwrap().len();
    assert_eq!(objects, 4, "{}", gone.stdout);
    let gone = cluster.at("c", &["rm", "model.bin", "5"]);
    assert_eq!((gone.status, &gone.json()["removed"]), (0, &true.into()), "{}", gone.stderr);
    for agent in ["a", "b", "c"] {
        assert_eq!(cluster.at(agent, &["ls"]).json(), serde_json::json!([]), "{agent}");
    }
    let absent = cluster.at("c", &["rm", "5", "--to", "a,absent"]);
    assert!(
        absent.status == 1 && absent.stderr.contains("absent is not at the manager"),
        "{}",
        absent.stderr
    );
    assert!(cluster.at("c", &["get", "model.bin"]).stderr.contains("no object called model.bin"));
}

#[test]
fn a_send_that_is_ended_goes_on_from_what_receivers_have() {
    const LEN: usize = 40_000_000;
    // It would take 40 s.
    let cluster = Cluster::with("[ip-multicast]\nrate = '8mbit'\n", &["a", "b"]);
    let file = cluster.place.file("big.bin", &noise(LEN));
    let sending = cluster.begin("a", &["send", &file, "--to", "b", "--fabric", "ip-multicast", "--or-fail"]);
    let of = |percent: u64| LEN as u64 * percent / 100;
    cluster.await_status("b", |status| {
        status["transfers"][0]["verified_bytes"].as_u64().is_some_and(|bytes| bytes >= of(5))
    });
    let coming = cluster.at("b", &["ls"]).json();
    assert_eq!(coming[0]["name"], "big.bin", "{coming}");
    let percent = coming[0]["percent"].as_u64().unwrap();
    assert!((5..100).contains(&percent), "{coming}");
    signal(&sending, Signal::INT);
    let stopped = end(sending);
    assert!(stopped.status == 130 && stopped.stderr.contains("goes on from there"), "{}", stopped.stderr);
    cluster.await_answer("b", &["ls"], |listed| listed.as_array().is_some_and(Vec::is_empty));
    let again = cluster.at("a", &["send", &file, "--to", "b", "--fabric", "tcp-chain", "--or-fail"]);
    assert_eq!(again.status, 0, "{}", again.stderr);
    // What it had then, and not more than it may have got since.
    let spared = spared(&again.json());
    assert!(spared >= of(percent), "{spared} bytes were spared after {percent} %: {}", again.stdout);
}

#[test]
fn a_store_has_a_size_and_a_time() {
    let place = Place::new();
    let manager = Daemon::manager("127.0.0.1:0", &[]);
    let store = place.path("store-b");
    let socket = place.path("b.sock");
    let limits = ["--store", &store, "--store-max", "4MiB", "--store-ttl", "1h"];
    let b = Daemon::start(
        &[
            &[
                "agent",
                "--manager",
                manager.address(),
                "--name",
                "b",
                "--interface",
                "lo",
                "--socket",
                &socket,
            ],
            &limits[..],
        ]
        .concat(),
    );
    let a = Daemon::agent(&place, manager.address(), "a");
    let cluster = Cluster { managers: vec![manager], agents: vec![a, b], place };
    cluster.await_status("a", |s| s["peers"].as_array().is_some_and(|p| p.len() == 2));
    for number in ["1", "2", "3"] {
        let file = cluster.place.file(&format!("f{number}"), &noise(1_500_000));
        let sent = cluster.at("a", &["send", &file, "--to", "b", "--id", number]);
        assert_eq!(sent.status, 0, "{}", sent.stderr);
    }
    let listed = cluster.at("b", &["ls"]).json();
    let names: Vec<&str> = listed.as_array().unwrap().iter().map(|o| o["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["f2", "f3"], "the oldest has made room");
    let large = cluster.place.file("large", &noise(5_000_000));
    let refused = cluster.at("a", &["send", &large, "--to", "b"]);
    assert_eq!(refused.status, 1);
    assert!(refused.stderr.contains("store-max"), "{}", refused.stderr);
    assert_eq!(refused.json()["sent_bytes"], 0, "{}", refused.stdout);
    let status = cluster.at("b", &["status"]).json();
    assert_eq!(
        (&status["store_max_bytes"], &status["store_used_bytes"]),
        (&(4 << 20).into(), &3_000_000.into())
    );
}

#[test]
fn who_is_not_there_when_an_object_goes_to_all_is_named() {
    let mut cluster = Cluster::start(&["a", "b", "c"]);
    let file = cluster.place.file("f", b"bytes");
    cluster.agents[2].kill();
    cluster.await_status("a", |status| status["lost"][0]["name"] == "c");
    let sent = cluster.at("a", &["send", &file, "--to", "all"]);
    assert_eq!((sent.status, &sent.json()["missed"]), (0, &serde_json::json!(["c"])), "{}", sent.stderr);
    assert!(sent.stderr.contains("missed: c was not there"), "{}", sent.stderr);
    cluster.agents.push(Daemon::agent(&cluster.place, cluster.managers[0].address(), "c"));
    cluster.await_status("a", |status| status["peers"].as_array().is_some_and(|peers| peers.len() == 3));
    let sent = cluster.at("a", &["send", &file, "--to", "all"]);
    assert_eq!((sent.status, &sent.json()["missed"]), (0, &serde_json::json!([])), "{}", sent.stderr);
}
