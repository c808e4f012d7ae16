//! Versions that go as deltas between processes: sealed and with permits, over each way that needs no device,
//! and with subscribers that are killed.

mod common;

use common::Place;
use common::cluster::{Cluster, Daemon};
use polycast_testing::wait_for;
use serde_json::Value;
use std::fs;

const LEN: usize = 6_000_000;

/// The next version of some weights: one element in a hundred has changed.
fn step(weights: &mut [u8], number: u64) {
    let mut state = number;
    for element in weights.chunks_mut(2) {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        if (state >> 33).is_multiple_of(100) {
            element[0] ^= (state >> 20) as u8 | 1;
        }
    }
}

/// Versions of a file that is published from `a`.
struct Versions {
    cluster: Cluster,
    weights: Vec<u8>,
    number: u64,
}

impl Versions {
    fn new(cluster: Cluster) -> Self {
        Versions { cluster, weights: common::noise(LEN), number: 0 }
    }

    /// Publishes the next one, with more arguments; gives the document.
    fn publish(&mut self, more: &[&str]) -> Value {
        self.number += 1;
        step(&mut self.weights, self.number);
        let name = format!("weights-{}.bin", self.number);
        let file = self.cluster.place.file(&name, &self.weights);
        let published = self.cluster.at("a", &[&["publish", "policy", &file], more].concat());
        published.json()
    }

    /// Waits until one has the last version.
    fn await_at(&self, agent: &str) {
        let file = self.cluster.place.path(&format!("models-{agent}/weights-{}.bin", self.number));
        let has = || fs::read(&file).is_ok_and(|bytes| bytes == self.weights).then_some(());
        wait_for("the last version", has);
    }

    /// A process of an agent's host that gets each version.
    fn subscribe(&self, agent: &str) -> Killed {
        let folder = self.cluster.place.path(&format!("models-{agent}"));
        Killed(self.cluster.begin(agent, &["subscribe", "policy", "--into", &folder, "--update"]))
    }
}

/// A process that ends with this.
struct Killed(std::process::Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn has(document: &Value) -> Vec<&str> {
    let subscribers = document["subscribers"].as_array().unwrap();
    let have = subscribers.iter().filter(|one| one["verified"] == true);
    have.map(|one| one["name"].as_str().unwrap()).collect()
}

#[track_caller]
fn is_delta(document: &Value) {
    let number = |what: &str| document[what].as_u64().unwrap();
    assert!((1..LEN as u64 / 50).contains(&number("coded_bytes")), "{document}");
    assert!(number("sent_bytes") < LEN as u64 / 4, "{document}");
}

/// Publishes three versions to two subscribers of a cluster with this key and these settings of its manager.
fn delivers(settings: &str, fabric: &str) {
    let place = Place::new();
    let key = place.path("key");
    assert_eq!(common::polycast(&["key", "new", &key]).status, 0);
    let config = place.file("manager.toml", settings.as_bytes());
    let manager = Daemon::manager("127.0.0.1:0", &["--config", &config, "--key-file", &key]);
    let cluster = Cluster::of_with(place, vec![manager], &["a", "b", "c"], &["--key-file", &key]);
    let mut versions = Versions::new(cluster);
    let _subscribers = ["b", "c"].map(|agent| versions.subscribe(agent));
    versions.cluster.await_answer("a", &["status"], |_| true);
    let first = wait_for("two subscribers", || {
        let published = versions.publish(&[]);
        (has(&published) == ["b", "c"]).then_some(published)
    });
    assert!(first["version"].as_u64().unwrap() >= 1);
    for _ in 0..2 {
        let published = versions.publish(&[]);
        assert_eq!(has(&published), ["b", "c"], "{published}");
        is_delta(&published);
        ["b", "c"].into_iter().for_each(|agent| versions.await_at(agent));
    }
    // The object's own words: how long it is, and by which way its delta came.
    let file = versions.cluster.place.file("sent.bin", &versions.weights);
    let sent = versions.cluster.at("a", &["send", &file, "--to", "b,c"]).json();
    assert_eq!((&sent["bytes"], &sent["sealed"]), (&LEN.into(), &true.into()), "{sent}");
    assert!(sent["fabric"].as_str().unwrap().contains(fabric), "{sent}");
    assert!(sent["coded_bytes"].as_u64().unwrap() < 10_000, "nothing has changed: {sent}");
    assert!(sent["receivers"].as_array().unwrap().iter().all(|one| one["verified"] == true), "{sent}");
}

#[test]
fn deltas_are_sealed_and_permitted_like_objects() {
    delivers("", "ip-multicast");
}

#[test]
fn deltas_go_over_tcp() {
    delivers("fabrics = ['tcp-chain']", "tcp-chain");
}

/// The rest of a topic goes on when a host dies, also in mid-version; the host goes on from what it has.
#[test]
fn a_host_that_dies_holds_no_other_and_goes_on_from_what_it_has() {
    let mut versions = Versions::new(Cluster::start(&["a", "b", "c"]));
    let _b = versions.subscribe("b");
    let mut c = versions.subscribe("c");
    wait_for("two subscribers", || {
        let published = versions.publish(&[]);
        (has(&published) == ["b", "c"]).then_some(())
    });
    for _ in 0..2 {
        versions.await_at("c");
        versions.cluster.agents[2].kill();
        drop(c);
        let published = versions.publish(&["--timeout", "60"]);
        assert_eq!(has(&published), ["b"], "{published}");
        is_delta(&published);
        let manager = versions.cluster.managers[0].address().to_string();
        versions.cluster.agents[2] = Daemon::agent(&versions.cluster.place, &manager, "c");
        c = versions.subscribe("c");
        versions.await_at("c");
        let published = wait_for("all are back", || {
            let published = versions.publish(&[]);
            (has(&published) == ["b", "c"]).then_some(published)
        });
        is_delta(&published);
    }
}

/// A delta is not spoken of where all have the object: none had to help. Holes are nothing that one lacks.
#[test]
fn of_what_all_have_no_delta_is_spoken_of() {
    let cluster = Cluster::start(&["a", "b"]);
    let mut weights = common::noise(LEN);
    let file = |name: &str, weights: &[u8]| {
        let path = cluster.place.file(name, weights);
        let file = fs::File::options().write(true).open(&path).unwrap();
        file.set_len(3 * LEN as u64).unwrap();
        path
    };
    let first = file("v1", &weights);
    step(&mut weights, 1);
    let second = file("v2", &weights);
    let send = |file: &str| cluster.at("a", &["send", file, "--as", "w", "--to", "b"]).json();
    assert_eq!(send(&first)["receivers"][0]["verified"], true);
    let changed = send(&second);
    assert!(changed["coded_bytes"].as_u64() > Some(0), "{changed}");
    let again = send(&second);
    assert_eq!(
        (&again["sent_bytes"], &again["receivers"][0]["came_bytes"]),
        (&0.into(), &0.into()),
        "{again}"
    );
    assert_eq!(
        (&again["events"], &again["receivers"][0]["verified"]),
        (&Value::Null, &true.into()),
        "{again}"
    );
}
