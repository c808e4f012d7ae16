//! Exit statuses and kinds of errors, as docs/reference/exit.md has them, each of a command that really ends
//! so.

mod common;

use common::cluster::{Cluster, Daemon};
use common::{Place, Ran, Talking, end, noise, polycast};
use rustix::process::Signal;
use serde_json::Value;

/// The page: statuses, and the kinds in each row.
fn rows() -> Vec<(i32, String)> {
    let page = include_str!("../../../docs/reference/exit.md");
    let row = |line: &str| {
        let cells: Vec<&str> = line.split(" | ").collect();
        Some((cells[0].strip_prefix("| ")?.parse().ok()?, cells.get(2)?.to_string()))
    };
    page.lines().filter_map(row).collect()
}

/// Checks what a command that did nothing says, and that the page has it so.
fn ends(ran: &Ran, status: i32, kind: &str) {
    assert_eq!(ran.status, status, "{} {}", ran.stdout, ran.stderr);
    let document = ran.json();
    assert_eq!(document["kind"], kind, "{document}");
    assert!(document["error"].as_str().is_some_and(|said| !said.is_empty()), "{document}");
    let row = rows().into_iter().find(|(_, kinds)| kinds.contains(&format!("`{kind}`")));
    assert_eq!(row.map_or(1, |(status, _)| status), status, "the page on {kind}");
}

#[test]
fn commands_end_with_the_statuses_of_the_page() {
    let statuses: Vec<i32> = rows().into_iter().map(|(status, _)| status).collect();
    assert_eq!(statuses, [0, 1, 2, 3, 130]);
    let place = Place::new();
    let file = place.file("f", b"bytes");
    let done = polycast(&["cast", &file, "--json"]);
    assert_eq!(done.status, 0, "{}", done.stderr);
    ends(&polycast(&["cast", &place.path("none"), "--json"]), 1, "path");
    ends(&polycast(&["cast", &file, "--receivers", "0", "--json"]), 1, "invalid");
    let no_agent = place.path("none.sock");
    ends(&polycast(&["ls", "--socket", &no_agent, "--json"]), 1, "agent-unreachable");
    // No source offers under this code.
    let code = "lusab-babad-gutih-tugad";
    let late = polycast(&[
        "accept",
        code,
        "--interface",
        "lo",
        "--timeout",
        "300ms",
        "--out",
        &place.path("o"),
        "--json",
    ]);
    ends(&late, 3, "timed-out");
    let offer = Talking::begin(&["offer", &file, "--receivers", "1", "--interface", "lo", "--json"]);
    offer.await_words("\"event\":\"offer\"");
    offer.signal(Signal::INT);
    ends(&offer.end(), 130, "cancelled");
}

/// A receiver that has failed has a kind, and so has what cannot be removed; an agent that ends in mid-call
/// is not expected to.
#[test]
fn failures_in_a_cluster_have_kinds() {
    let mut cluster = Cluster::with("silence-ms = 4000\n[ip-multicast]\nrate = '40mbit'\n", &["a"]);
    let manager = cluster.managers[0].address().to_string();
    let small = ["--store-max", "1MiB"];
    cluster.agents.push(Daemon::agent_with(&cluster.place, &manager, "b", &small));
    cluster.await_status("a", |s| s["peers"].as_array().is_some_and(|peers| peers.len() == 2));
    let file = cluster.place.file("f", &noise(3_000_000));
    let sent = cluster.at("a", &["send", &file, "--to", "b", "--id", "1"]);
    assert_eq!(sent.status, 1, "{}", sent.stderr);
    let receiver = sent.json()["receivers"][0].clone();
    assert_eq!(
        (&receiver["verified"], &receiver["kind"]),
        (&false.into(), &"transfer-failed".into()),
        "{receiver}"
    );
    ends(&cluster.at("a", &["send", &file, "--to", "absent"]), 1, "receiver-unknown");
    let removed = cluster.at("a", &["rm", "1", "99"]);
    assert_eq!(removed.status, 1, "{}", removed.stderr);
    let objects = removed.json()["objects"].clone();
    assert_eq!(
        (&objects[0]["kind"], &objects[1]["kind"]),
        (&Value::Null, &"object-unknown".into()),
        "{objects}"
    );

    // It takes 12 s.
    let big = cluster.place.file("big", &noise(60_000_000));
    let sends = cluster.begin("b", &["send", &big, "--to", "a", "--id", "2"]);
    cluster.await_status("b", |s| s["transfers"].as_array().is_some_and(|all| !all.is_empty()));
    cluster.agents[1].kill();
    ends(&end(sends), 2, "agent-lost");
}
