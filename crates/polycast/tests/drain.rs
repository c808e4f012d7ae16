//! Hosts that are drained, with a manager and agents as processes of their own: nothing new goes there, what
//! runs ends as it would, and the next manager knows.

mod common;
#[path = "../../manager/tests/common/etcd.rs"]
mod etcd;

use common::cluster::{Cluster, Daemon};
use common::{Place, end};
use serde_json::{Value, json};

const SAYS: &str = "c is being drained: polycast drain c --undo brings it back";

/// The entry of a machine in `polycast nodes`, once it is right.
fn node(cluster: &Cluster, name: &str, is: impl Fn(&Value) -> bool) -> Value {
    let of = |nodes: &Value| nodes.as_array().and_then(|all| all.iter().find(|n| n["name"] == name)).cloned();
    let nodes = cluster.await_answer("a", &["nodes"], |nodes| of(nodes).is_some_and(|node| is(&node)));
    of(&nodes).unwrap()
}

#[test]
fn a_drained_host_gets_nothing_new() {
    let cluster = Cluster::start(&["a", "b", "c"]);
    let file = cluster.place.file("f", &common::noise(100_000));
    assert_eq!(cluster.at("c", &["send", &file, "--to", "b", "--id", "1"]).status, 0);
    let own = cluster.place.file("own", b"only there");
    let published = cluster.at("c", &["publish", "topic", &own]);
    assert_eq!(published.status, 0, "{}", published.stderr);
    let alone = published.json()["object"].clone();

    let drained = cluster.at("a", &["drain", "c", "--wait"]);
    assert_eq!(drained.status, 0, "{}", drained.stderr);
    let host =
        json!({ "name": "c", "transfers": 0, "objects": [alone], "objects_count": 1, "topics": ["topic"] });
    let said = drained.json();
    assert_eq!(
        (&said["part"], &said["drained"], &said["changed"]),
        (&json!("c"), &json!(true), &json!(true))
    );
    assert_eq!(said["host"], host);
    assert_eq!(node(&cluster, "c", |node| node["drain"] == "drained")["state"], "drained");
    assert_eq!(cluster.at("a", &["status", "--manager"]).json()["drained_hosts"], json!([host]));

    for to in ["c", "b,c"] {
        let sent = cluster.at("a", &["send", &file, "--to", to]);
        assert_eq!(sent.status, 1, "{}", sent.stdout);
        assert!(sent.stderr.contains(SAYS), "{}", sent.stderr);
    }
    let all = cluster.at("a", &["send", &file, "--to", "all", "--id", "5"]);
    assert_eq!(all.status, 0, "{}", all.stderr);
    let receivers = all.json()["receivers"].clone();
    assert_eq!((receivers.as_array().unwrap().len(), &receivers[0]["name"]), (1, &json!("b")), "{receivers}");
    // It may still send, and a name that no agent has is no host's.
    assert_eq!(cluster.at("c", &["send", &file, "--to", "b", "--id", "6"]).status, 0);
    let unknown = cluster.at("a", &["drain", "d"]);
    assert_eq!(unknown.status, 1);
    assert!(unknown.stderr.contains("there is no agent 'd', and 'd' is no part"), "{}", unknown.stderr);

    let back = cluster.at("b", &["drain", "c", "--undo"]);
    assert_eq!((back.status, back.json()["drained"].clone()), (0, json!(false)), "{}", back.stderr);
    assert_eq!(node(&cluster, "c", |node| node["state"] == "ready")["drain"], Value::Null);
    let sent = cluster.at("a", &["send", &file, "--to", "b,c", "--id", "7"]);
    assert_eq!(sent.status, 0, "{}", sent.stderr);
}

/// A transfer that runs when its receiver is drained ends as it would, and is waited for. The host stays
/// drained when its agent begins anew, and at the next manager.
#[test]
fn a_host_stays_drained_and_what_runs_there_ends() {
    let place = Place::new();
    let Some((_etcd, etcd)) = etcd::start(&place.path("etcd")) else { return };
    let [.., third, last] = std::process::id().to_be_bytes();
    let settings = format!(
        "fabrics = ['ip-multicast']\nreconnect-ms = 60000\n\
         [ip-multicast]\npool = '239.253.{third}.{last}/32'\nport = 17413\nrate = '40mbit'\n"
    );
    let config = place.file("manager.toml", settings.as_bytes());
    let manager = |_| {
        let address = format!("127.0.0.1:{}", polycast_testing::free_port());
        Daemon::manager(&address, &["--config", &config, "--etcd", &etcd])
    };
    let mut cluster = Cluster::of(place, (0..2).map(manager).collect(), &["a", "b", "c"]);
    // It takes 8 s.
    let big = cluster.place.file("big", &common::noise(40_000_000));
    let running = cluster.begin("a", &["send", &big, "--to", "b,c", "--id", "1", "--slow", "wait"]);
    cluster.await_status("a", |s| {
        s["transfers"].as_array().is_some_and(|all| all.iter().any(|t| t["path"].is_object()))
    });
    let now = cluster.at("b", &["drain", "c"]);
    assert_eq!((now.status, now.json()["host"]["transfers"].clone()), (0, json!(1)), "{}", now.stderr);
    assert_eq!(node(&cluster, "c", |_| true)["state"], "draining");
    let waited = cluster.at("b", &["drain", "c", "--wait"]);
    assert_eq!((waited.status, waited.json()["host"]["transfers"].clone()), (0, json!(0)));
    let ran = end(running);
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    assert_eq!(cluster.at("c", &["rm", "1"]).status, 0, "it has got all of it");

    let small = cluster.place.file("small", b"bytes");
    let fails = |cluster: &Cluster, when: &str| {
        let sent = cluster.at("a", &["send", &small, "--to", "c"]);
        assert_eq!(sent.status, 1, "{when}: {}", sent.stdout);
        assert!(sent.stderr.contains(SAYS), "{when}: {}", sent.stderr);
    };
    fails(&cluster, "at first");
    let addresses: Vec<String> = cluster.managers.iter().map(|m| m.address().to_string()).collect();
    cluster.agents[2].kill();
    let again = Daemon::agent(&cluster.place, &addresses.join(","), "c");
    cluster.agents[2] = again;
    cluster.await_status("c", |s| s["manager_connected"] == true);
    fails(&cluster, "after the agent's restart");

    let leader = cluster.await_status("a", |s| s["manager_connected"] == true)["manager"].clone();
    cluster.managers.iter_mut().find(|m| leader == m.address()).unwrap().kill();
    for agent in ["a", "c"] {
        cluster.await_status(agent, |s| s["manager_connected"] == true && s["manager"] != leader);
    }
    fails(&cluster, "at the next manager");
    assert_eq!(cluster.at("a", &["undrain", "c"]).status, 0);
    let sent = cluster.at("a", &["send", &small, "--to", "c"]);
    assert_eq!(sent.status, 0, "{}", sent.stderr);
}
