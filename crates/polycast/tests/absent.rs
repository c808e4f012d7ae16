//! Agents that crash and are back at once, that do not come back, and a manager that is away, as processes of
//! their own.

mod common;

use common::Talking;
use common::cluster::{Cluster, Daemon};
use serde_json::Value;

/// Kills an agent, and starts it again with the same store and socket, as a supervisor does.
fn restart(cluster: &mut Cluster, at: usize, name: &str) {
    cluster.agents[at].kill();
    let manager = cluster.managers[0].address().to_string();
    cluster.agents[at] = Daemon::agent(&cluster.place, &manager, name);
    cluster.await_status(name, |status| status["manager_connected"] == true);
}

fn subscribe(cluster: &Cluster, name: &str) -> Talking {
    let folder = cluster.place.path(&format!("got-{name}"));
    std::fs::create_dir_all(&folder).unwrap();
    Talking::of(cluster.begin(name, &["subscribe", "t", "--into", &folder, "--update"]))
}

/// Publishes until so many have subscribed; gives the document.
fn published_to(cluster: &Cluster, name: &str, count: usize) -> Value {
    let file = cluster.place.file("w.bin", b"weights");
    let is_to = |document: &Value| document["subscribers"].as_array().is_some_and(|all| all.len() == count);
    cluster.await_answer(name, &["publish", "t", &file], is_to)
}

/// State of an agent's run ends with it, however long the manager waits for agents that are away.
#[test]
fn a_restart_leaves_nothing_of_the_run_before() {
    let mut cluster = Cluster::with("reconnect-ms = 600000\n", &["a", "b", "c"]);
    let (before, other) = (subscribe(&cluster, "b"), subscribe(&cluster, "c"));
    published_to(&cluster, "a", 2);
    restart(&mut cluster, 1, "b");
    assert_eq!(before.end().status, 2, "its agent has gone");
    let again = subscribe(&cluster, "b");
    let document = published_to(&cluster, "a", 2);
    let all_have = |document: &Value| {
        document["subscribers"].as_array().unwrap().iter().all(|one| one["verified"] == true)
    };
    assert!(all_have(&document), "{document}");
    // The next number is that of the topic, whichever agent publishes, and whatever that knew before.
    let last = document["version"].as_u64().unwrap();
    restart(&mut cluster, 0, "a");
    for (publisher, number) in [("c", last + 1), ("a", last + 2)] {
        let document = published_to(&cluster, publisher, 2);
        assert!(document["version"] == number && all_have(&document), "{document}");
    }
    [again, other].into_iter().for_each(|one| drop(one.stop(rustix::process::Signal::INT)));

    // Nothing is looked for at an agent that has it no more.
    let file = cluster.place.file("only.bin", b"the only one");
    assert_eq!(cluster.at("a", &["send", &file, "--to", "b", "--id", "42"]).status, 0);
    assert_eq!(cluster.at("b", &["rm", "42"]).status, 0);
    restart(&mut cluster, 0, "a");
    let fetched = cluster.at("c", &["fetch", "42", "--out", &cluster.place.path("got")]);
    assert!(fetched.status == 1 && fetched.stderr.contains("no agent has it"), "{}", fetched.stderr);
}

/// One that has not come back holds no other, and every command that is for it names it.
#[test]
fn those_that_are_away_are_named() {
    let mut cluster = Cluster::with("reconnect-ms = 200\n", &["a", "b", "c"]);
    let file = cluster.place.file("f", b"bytes");
    assert_eq!(cluster.at("a", &["send", &file, "--to", "all", "--id", "1"]).status, 0);
    cluster.agents[2].kill();
    cluster.await_status("a", |status| status["lost"][0]["name"] == "c");
    let named = cluster.at("a", &["send", &file, "--to", "b,c", "--id", "2"]);
    let receivers = named.json()["receivers"].clone();
    let of =
        |name: &str| receivers.as_array().unwrap().iter().find(|one| one["name"] == name).unwrap().clone();
    assert_eq!((named.status, &of("b")["verified"]), (1, &true.into()), "{}", named.stderr);
    assert!(of("c")["error"].as_str().is_some_and(|why| why.contains("lost")), "{receivers}");
    // What is to be typed is for those alone that have it.
    assert!(named.stderr.contains("on b: polycast get f"), "{}", named.stderr);
    let all = cluster.at("a", &["send", &file, "--to", "all", "--id", "3"]);
    assert_eq!((all.status, &all.json()["missed"]), (0, &serde_json::json!(["c"])), "{}", all.stderr);
    let only = cluster.at("a", &["send", &file, "--to", "c", "--id", "4"]);
    assert!(only.status == 1 && only.stderr.contains("'c' is lost"), "{}", only.stderr);
    assert!(!only.stderr.contains("polycast get"), "{}", only.stderr);
    let removed = cluster.at("a", &["rm", "1", "--to", "all"]);
    assert!(removed.status == 1 && removed.stderr.contains("c is not at the manager"), "{}", removed.stderr);
}

fn ip(line: &str) {
    let ran = std::process::Command::new("ip").args(line.split(' ')).status();
    assert!(ran.is_ok_and(|status| status.success()), "ip {line}");
}

/// A cluster with a at the loopback interface, and b at another one, which has the address 10.77.0.2 at
/// first.
fn apart(interface: &str) -> (Cluster, Daemon) {
    for line in ["link set lo up", "link add e0 type veth peer name e1", "link set e1 up", "link set e0 up"] {
        ip(line);
    }
    ip("address add 10.77.0.2/24 dev e0");
    let cluster = Cluster::start(&["a"]);
    let (store, socket) = (cluster.place.path("store-b"), cluster.place.path("b.sock"));
    let manager = cluster.managers[0].address();
    let words = ["agent", "--manager", manager, "--name", "b", "--interface", interface, "--insecure"];
    let b = Daemon::start(&[&words[..], &["--store", &store, "--socket", &socket]].concat());
    cluster.await_status("a", |status| is_at(status, "10.77.0.2:"));
    (cluster, b)
}

/// Returns the entry for b in a status.
fn of_b(status: &Value) -> Option<&Value> {
    status["peers"].as_array()?.iter().find(|peer| peer["name"] == "b")
}

fn is_at(status: &Value, address: &str) -> bool {
    let at = of_b(status).and_then(|b| b["control_address"].as_str());
    at.is_some_and(|at| at.starts_with(address))
}

/// An agent follows its interface's address: its manager hears of the new one, and others reach it there.
#[test]
fn an_agent_is_where_its_interface_is() {
    polycast_testing::isolated(|| {
        let (cluster, _b) = apart("e0");
        ip("address del 10.77.0.2/24 dev e0");
        ip("address add 10.77.0.77/24 dev e0");
        cluster.await_status("a", |status| is_at(status, "10.77.0.77:"));
        let file = cluster.place.file("f", b"bytes");
        let sent = cluster.at("a", &["send", &file, "--to", "b", "--id", "1"]);
        assert_eq!(sent.status, 0, "{}", sent.stderr);
        let own = cluster.at("b", &["status"]).json();
        assert_eq!(own["interface"], "10.77.0.77", "{own}");
    });
}

/// An agent whose manager hears it, and that is not where it says, is not well: its peers' status names who
/// could not reach it.
#[test]
fn an_agent_that_cannot_be_reached_is_named() {
    polycast_testing::isolated(|| {
        // It is to have this address and no other.
        let (cluster, _b) = apart("10.77.0.2");
        ip("address del 10.77.0.2/24 dev e0");
        let file = cluster.place.file("f", b"bytes");
        let send = |id: &str| cluster.at("a", &["send", &file, "--to", "b", "--id", id]);
        let failed = send("1");
        assert!(failed.status == 1 && failed.stderr.contains("cannot be reached"), "{}", failed.stderr);
        let said_by = |status: &Value| of_b(status).map(|b| b["unreachable"]["by"].clone());
        cluster.await_status("a", |status| said_by(status) == Some("a".into()));
        ip("address add 10.77.0.2/24 dev e0");
        let sent = send("2");
        assert_eq!(sent.status, 0, "{}", sent.stderr);
        cluster.await_status("a", |status| said_by(status) == Some(Value::Null));
    });
}

/// Commands that wait for what the manager says tell that it is away, and go on when it is back.
#[test]
fn a_manager_that_is_away_is_named() {
    let mut cluster = Cluster::with("", &["a"]);
    let address = cluster.managers[0].address().to_string();
    cluster.managers[0].kill();
    cluster.await_status("a", |status| status["manager_connected"] == false);
    let out = cluster.place.path("out");
    let fetching = Talking::of(cluster.begin("a", &["fetch", "9", "--out", &out]));
    let folder = cluster.place.path("folder");
    std::fs::create_dir_all(&folder).unwrap();
    let subscribed = Talking::of(cluster.begin("a", &["subscribe", "t", "--into", &folder]));
    for waits in [&fetching, &subscribed] {
        waits.await_words(&format!("the manager at {address} cannot be reached"));
    }
    let late = cluster.at("a", &["fetch", "8", "--timeout", "1s", "--out", &out]);
    assert!(late.status == 3 && late.stderr.contains("cannot be reached"), "{}", late.stderr);
    cluster.managers[0] = Daemon::manager(&address, &[]);
    subscribed.await_words("is back");
    let ended = fetching.end();
    assert!(ended.status == 1 && ended.stderr.contains("no agent has it"), "{}", ended.stderr);
    subscribed.stop(rustix::process::Signal::INT);
}
