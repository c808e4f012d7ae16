//! Certificates that change while a cluster works: renewed ones, and revoked ones.

mod common;

use common::authority::{Authority, words};
use common::cluster::{Cluster, Daemon, socket};
use common::{Place, end, polycast};
use serde_json::Value;

/// A cluster of a, b and c whose certificates have the numbers 1 to 3, and whose one path is slow enough to
/// do something meanwhile.
fn cluster(authority: &Authority) -> Cluster {
    let place = Place::new();
    let list = authority.revoke(&place, &[]);
    let [.., third, last] = std::process::id().to_be_bytes();
    let settings = format!(
        "fabrics = ['ip-multicast']\n[ip-multicast]\npool = '239.252.{third}.{last}/32'\nport = 17414\nrate = '16mbit'\n"
    );
    let config = place.file("manager.toml", settings.as_bytes());
    let own =
        [authority.issue_numbered(&place, "manager", "manager", 9), vec!["--tls-crl".into(), list.clone()]];
    let manager =
        Daemon::manager("127.0.0.1:0", &[&["--config", &config][..], &words(&own.concat())].concat());
    let agent = |(name, number)| {
        let own =
            [authority.issue_numbered(&place, name, name, number), vec!["--tls-crl".into(), list.clone()]];
        Daemon::agent_with(&place, manager.address(), name, &words(&own.concat()))
    };
    let agents = [("a", 1), ("b", 2), ("c", 3)].map(agent).into_iter().collect();
    let cluster = Cluster { managers: vec![manager], agents, place };
    await_peers(&cluster, 3);
    cluster
}

fn await_peers(cluster: &Cluster, count: usize) {
    cluster.await_status("a", |s| s["peers"].as_array().is_some_and(|peers| peers.len() == count));
}

/// Waits until an agent has verified something of what it receives.
fn await_bytes(cluster: &Cluster, agent: &str) {
    cluster.await_status(agent, |status| {
        let all = status["transfers"].as_array();
        all.is_some_and(|all| all.iter().any(|one| one["verified_bytes"].as_u64() > Some(0)))
    });
}

/// Waits until the rest goes to b alone. The connection of c ends when the source sees the list, and the keys
/// change when the manager does.
fn await_new_keys(cluster: &Cluster) {
    let rest = serde_json::json!(["b"]);
    cluster.await_status("a", |status| {
        let all = status["transfers"].as_array();
        all.is_some_and(|all| all.iter().all(|one| one["path"]["receivers"] == rest))
    });
}

fn receiver(report: &Value, name: &str) -> Value {
    let receivers = report["receivers"].as_array().unwrap();
    receivers.iter().find(|receiver| receiver["name"] == name).unwrap_or_else(|| panic!("{report}")).clone()
}

#[test]
fn certificates_change_and_are_revoked_in_mid_transfer() {
    let authority = Authority::new();
    let mut cluster = cluster(&authority);
    let file = cluster.place.file("first", &common::noise(10_000_000));

    // All get new ones: what runs goes on, and so does what comes.
    let sending = cluster.begin("a", &["send", &file, "--to", "b,c", "--id", "5", "--slow", "wait"]);
    await_bytes(&cluster, "c");
    for (name, number) in [("manager", 19), ("a", 11), ("b", 12), ("c", 13)] {
        authority.issue_numbered(&cluster.place, name, name, number);
    }
    let sent = end(sending);
    assert_eq!((sent.status, &sent.json()["sealed"]), (0, &true.into()), "{} {}", sent.stdout, sent.stderr);

    // One is revoked: it gets no new keys, its connections end, and the others go on.
    let file = cluster.place.file("other", &common::noise(60_000_000));
    let sending = cluster.begin("a", &["send", &file, "--to", "b,c", "--id", "6", "--slow", "wait"]);
    await_bytes(&cluster, "c");
    // The session of c has begun with the first.
    authority.revoke(&cluster.place, &[3, 13]);
    // It would take 30 s in all. The rest goes over TCP, which is quick, once it is under the new keys.
    cluster.await_status("c", |status| status["transfers"].as_array().is_some_and(Vec::is_empty));
    await_new_keys(&cluster);
    let extended = cluster.at("a", &["extend", "6", "--time", "300ms"]);
    // The transfer to the other one may have ended by now.
    assert!(extended.status == 0 || extended.stderr.contains("there is no request"), "{}", extended.stderr);
    let sent = end(sending);
    let report = sent.json();
    assert_eq!(receiver(&report, "b")["verified"], true, "{report}");
    assert_eq!((&receiver(&report, "c")["verified"], sent.status), (&false.into(), 1), "{report}");
    assert!(report.to_string().contains("the certificate of 'c' has been revoked"), "{report}");
    assert!(report.to_string().contains("goes on under new keys"), "{report}");
    let alone = |status: &Value| {
        status["manager_connected"] == false
            && status["manager_error"].as_str().is_some_and(|why| why.contains("it has been revoked"))
    };
    cluster.await_status("c", alone);
    assert_ne!(cluster.at("c", &["get", "6", "--out", &cluster.place.path("none")]).status, 0);
    // What is said to one that begins with it.
    cluster.agents[2].kill();
    let (store, at) = (cluster.place.path("store-c"), socket(&cluster.place, "c"));
    let own = ["--tls-ca", "--tls-cert", "--tls-key"].map(|flag| {
        let file = format!("c/{}.pem", flag.trim_start_matches("--tls-"));
        [flag.to_string(), cluster.place.path(&file)]
    });
    let local = ["agent", "--manager", cluster.managers[0].address(), "--name", "c", "--interface", "lo"];
    let more = ["--store", &store, "--socket", &at];
    let own = own.concat();
    let again = polycast(&[&local[..], &more, &words(&own)].concat());
    let last = again.stderr.lines().last().unwrap_or_default();
    assert!(again.status == 1 && last.contains("it has been revoked: get another one"), "{}", again.stderr);

    // With another one it is a member like any other.
    authority.issue_numbered(&cluster.place, "c", "c", 33);
    cluster.agents[2] = Daemon::agent_with(&cluster.place, cluster.managers[0].address(), "c", &words(&own));
    await_peers(&cluster, 3);
    let file = cluster.place.file("last", b"for all");
    let sent = cluster.at("a", &["send", &file, "--to", "b,c", "--id", "7"]);
    assert_eq!(sent.status, 0, "{} {}", sent.stdout, sent.stderr);

    // The manager's own is revoked, under both numbers that it has shown: those leave it that go by a list.
    authority.revoke(&cluster.place, &[3, 13, 9, 19]);
    for agent in ["a", "b"] {
        cluster.await_status(agent, |status| {
            let why = status["manager_error"].as_str().unwrap_or_default();
            status["manager_connected"] == false && why.contains("its authority has revoked it")
        });
    }
}
