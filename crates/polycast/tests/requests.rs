//! Requests that wait, change and go, from the command line, with real daemons (Blast section IV-A).

mod common;

use common::cluster::Cluster;
use common::{end, noise, signal};
use rustix::process::Signal;
use serde_json::Value;
use std::fs;
use std::io::Read;
use std::process::Child;

/// A manager with these fabrics, that lends this one address at this rate.
fn cluster_of(fabrics: &str, group: &str, rate: &str, names: &[&str]) -> Cluster {
    let multicast = format!("[ip-multicast]\npool = '{group}/32'\nport = 17413\nrate = '{rate}'\n");
    Cluster::with(&format!("{fabrics}\n{multicast}"), names)
}

/// A manager that lends one path at a time, so slow that who has it still has it when the test is through
/// with it.
fn one_path(group: &str, names: &[&str]) -> Cluster {
    cluster_of("fabrics = ['ip-multicast']", group, "8mbit", names)
}

/// The file of a transfer with this number, which takes 40 s, and 320 s at the rate at which requests have to
/// wait however busy the machine is. Of one that is a hole a receiver needs no bytes, if it comes to know its
/// hashes by another way; nor of one that it is about to send itself, so each transfer has its own.
fn long(cluster: &Cluster, number: usize) -> String {
    cluster.place.file(&format!("long-{number}"), &noise(40_000_000 + number))
}

/// Returns true if an agent has a transfer that waits for a path with this number of others before it.
fn waits(status: &Value, before: u64) -> bool {
    status["transfers"].as_array().is_some_and(|all| all.iter().any(|t| t["waiting"]["before"] == before))
}

/// Waits until an agent has a transfer that waits for a path with so many before it; says why where one of
/// the commands ends before that.
#[track_caller]
fn await_turn(cluster: &Cluster, agent: &str, before: u64, commands: &mut [&mut Child]) -> Value {
    cluster.await_status(agent, |status| {
        for command in &mut *commands {
            if let Some(ended) = command.try_wait().unwrap() {
                let mut said = String::new();
                command.stdout.take().unwrap().read_to_string(&mut said).unwrap();
                command.stderr.take().unwrap().read_to_string(&mut said).unwrap();
                panic!("a command has ended with {ended}: {said}");
            }
        }
        waits(status, before)
    })
}

#[test]
fn a_request_waits_and_can_be_withdrawn_or_cancelled() {
    let cluster = cluster_of("fabrics = ['ip-multicast']", "239.255.69.0", "1mbit", &["a", "b", "c"]);
    let [one, two, three] = [0, 1, 2].map(|number| long(&cluster, number));
    let mut first = cluster.begin("a", &["send", &one, "--to", "b", "--id", "1", "--slow", "wait"]);
    let status = cluster.await_status("a", |s| s["transfers"][0]["path"].is_object());
    // 40 MB at 1 Mbit/s: longer than any test waits.
    assert_eq!(status["transfers"][0]["path"]["service_ms"], 320_000, "{status}");
    let mut second = cluster.begin("b", &["send", &two, "--to", "c", "--id", "2"]);
    let status = await_turn(&cluster, "b", 0, &mut [&mut first, &mut second]);
    let mut transfers = status["transfers"].as_array().unwrap().iter();
    let waiting = &transfers.find(|transfer| transfer["waiting"].is_object()).unwrap()["waiting"];
    assert!(waiting["estimate_ms"].as_u64().unwrap() <= 320_000, "{status}");
    let mut third = cluster.begin("c", &["send", &three, "--to", "b", "--id", "3"]);
    await_turn(&cluster, "c", 1, &mut [&mut first, &mut second, &mut third]);
    let withdrawn = cluster.at("b", &["withdraw", "2"]);
    assert_eq!((withdrawn.status, &withdrawn.json()["withdrawn"]), (0, &true.into()));
    let second = end(second);
    assert_eq!(second.status, 1);
    assert!(second.stderr.contains("waiting for a path"), "{}", second.stderr);
    assert!(second.stderr.contains("the transfer was withdrawn"), "{}", second.stderr);
    await_turn(&cluster, "c", 0, &mut [&mut first, &mut third]);
    // Ctrl-C withdraws too.
    signal(&third, Signal::INT);
    assert_eq!(end(third).status, 130);
    cluster.await_status("c", |s| s["transfers"].as_array().unwrap().iter().all(|t| t["waiting"].is_null()));
    // All the while the first one had its path; what runs can be withdrawn, too.
    let status = cluster.await_status("a", |s| s["transfers"].is_array());
    assert!(status["transfers"][0]["path"].is_object(), "{status}");
    assert_eq!(cluster.at("a", &["withdraw", "1"]).json()["withdrawn"], true);
    let first = end(first);
    assert!(first.status == 1 && first.stderr.contains("the transfer was withdrawn"), "{}", first.stderr);
    for (arguments, says) in [
        (vec!["withdraw", "9"], "object 9 is not being sent"),
        (vec!["extend", "9", "--time", "5s"], "object 9 is not being sent"),
    ] {
        let ran = cluster.at("a", &arguments);
        assert_eq!(ran.status, 1);
        assert!(ran.stderr.contains(says), "{}", ran.stderr);
    }
    assert_eq!(cluster.at("a", &["extend", "1"]).status, 1, "nothing to change");
}

#[test]
fn a_running_transfer_takes_receivers_in_and_out_and_survives_the_end_of_its_lease() {
    let cluster = one_path("239.255.70.0", &["a", "b", "c", "d"]);
    let big = cluster.place.file("big", &noise(30_000_000));
    let send = ["send", &big, "--to", "b,c", "--id", "1", "--lease", "30s", "--slow", "wait"];
    let sending = cluster.begin("a", &send);
    cluster.await_status("b", |s| s["transfers"].as_array().is_some_and(|t| !t.is_empty()));
    let extended = cluster.at("a", &["extend", "1", "--add", "d", "--remove", "c", "--time", "700ms"]);
    assert_eq!(extended.status, 0, "{}", extended.stderr);
    let path = extended.json()["path"].clone();
    assert_eq!((&path["receivers"], &path["lease_ms"]), (&serde_json::json!(["b", "d"]), &700.into()));
    let again = cluster.at("a", &["extend", "1", "--add", "d"]);
    assert!(again.stderr.contains("'d' is a receiver of this transfer already"), "{}", again.stderr);
    // It would take 30 s: the rest goes over TCP.
    let sent = end(sending);
    let report = sent.json();
    assert!(report["path_lost"].as_str().unwrap().starts_with("the time is over"), "{report}");
    assert_eq!(report["fabric"], "ip-multicast+tcp-chain", "{report}");
    for receiver in report["receivers"].as_array().unwrap() {
        assert_eq!(receiver["verified"], receiver["name"] != "c", "{report}");
    }
    assert_eq!(report["receivers"].as_array().unwrap().len(), 3, "{report}");
    assert!(sent.stderr.contains("taken out of the transfer"), "{}", sent.stderr);
}

/// An agent that dies loses its path at once: the next in the queue need not wait for a lease to expire.
#[test]
fn the_path_of_a_killed_agent_goes_to_the_next() {
    let mut cluster = cluster_of("fabrics = ['ip-multicast']", "239.255.71.0", "1mbit", &["a", "b", "c"]);
    let big = long(&cluster, 0);
    let small = cluster.place.file("small", b"waits");
    let dying = cluster.begin("a", &["send", &big, "--to", "c", "--id", "1", "--slow", "wait"]);
    cluster.await_status("a", |s| s["transfers"][0]["path"].is_object());
    let waiting = cluster.begin("b", &["send", &small, "--to", "c", "--id", "2"]);
    cluster.await_status("b", |s| waits(s, 0));
    cluster.agents[0].kill();
    // No lease expires while a test runs.
    let waited = end(waiting);
    assert_eq!(waited.status, 0, "{}", waited.stderr);
    assert_ne!(end(dying).status, 0);
}

/// Parts of the size: two transfers share one path, and neither waits until the other is whole.
#[test]
fn transfers_take_turns_where_parts_are_granted() {
    let log = polycast_testing::folder_in_memory();
    let log = log.path().join("audit");
    let settings = format!("fabrics = ['ip-multicast']\ngrant-max = '3M'\naudit-log = {log:?}");
    let cluster = cluster_of(&settings, "239.255.72.0", "100mbit", &["a", "b", "c"]);
    // A stream has the path until both ask for it.
    assert_eq!(cluster.at("c", &["stream", "create", "ticks"]).json()["created"], true);
    let ear = cluster.begin("a", &["stream", "recv", "ticks", "--count", "1"]);
    cluster.await_answer("c", &["stream", "ls"], |streams| streams[0]["fabric"] == "ip-multicast");
    // The network's own digest notices a fragment that went astray between two sessions.
    let one = cluster.place.file("one", &noise(12_000_000));
    let other = cluster.place.file("other", &noise(12_000_001));
    let wait = ["--slow", "wait"];
    let first = cluster.begin("a", &[&["send", &one, "--to", "b,c", "--id", "1"], &wait[..]].concat());
    cluster.await_status("a", |s| waits(s, 0));
    let second = cluster.begin("b", &[&["send", &other, "--to", "a,c", "--id", "2"], &wait[..]].concat());
    cluster.await_status("b", |s| waits(s, 1));
    assert_eq!(cluster.at("c", &["stream", "end", "ticks"]).json()["ended"], true);
    let asked = [("first", first), ("second", second)].map(|(name, child)| {
        let ran = end(child);
        assert_eq!(ran.status, 0, "{name}: {} {}", ran.stdout, ran.stderr);
        let report = ran.json();
        assert_eq!(report["fabric"], "ip-multicast", "{name}: {report}");
        assert!(report["receivers"].as_array().unwrap().iter().all(|r| r["verified"] == true), "{report}");
        let events = report["events"].as_array().unwrap();
        let asked = events.iter().filter(|event| event.to_string().contains("asking for a path")).count();
        // Four parts are enough. What is repaired beside them is of none: on a busy machine there are fewer.
        assert!((1..=3).contains(&asked), "{name}: {report}");
        asked
    });
    end(ear);
    // While one has the path, the other waits for it: so each has it after the other.
    let turns = || {
        let text = fs::read_to_string(&log).unwrap_or_default();
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let leases = lines.filter(|line| line["what"] == "lease" && line["stream"] == false);
        leases.map(|line| line["source"].as_str().unwrap().to_string()).collect::<Vec<_>>()
    };
    let all = asked.iter().sum::<usize>() + asked.len();
    polycast_testing::until("all that was lent is written down", || turns().len() == all);
    let turn = |at: usize| ["a", "b"].into_iter().zip(asked).filter(move |(_, asked)| at <= *asked);
    let expected: Vec<&str> = (0..=3).flat_map(turn).map(|(source, _)| source).collect();
    assert_eq!(turns(), expected);
    for (agent, id, file) in [("c", "1", &one), ("c", "2", &other)] {
        let out = cluster.place.path(&format!("got-{id}"));
        assert_eq!(cluster.at(agent, &["get", id, "--out", &out]).status, 0);
        assert_eq!(fs::read(out).unwrap(), fs::read(file).unwrap());
    }
}

/// The time that a path is asked for is that of all parts together.
#[test]
fn the_time_of_a_path_does_not_begin_again_with_every_part() {
    let settings = "fabrics = ['ip-multicast']\ngrant-max = '3M'";
    let cluster = cluster_of(settings, "239.255.74.0", "100mbit", &["a", "b", "c"]);
    let file = cluster.place.file("file", &noise(12_000_000));
    // A part takes a quarter of a second, all of them a second.
    let ran = cluster.at("a", &["send", &file, "--to", "b,c", "--id", "1", "--lease", "600ms"]);
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    let report = ran.json();
    assert!(report["receivers"].as_array().unwrap().iter().all(|r| r["verified"] == true), "{report}");
    assert!(report["path_lost"].as_str().is_some_and(|why| why.contains("time")), "{report}");
}

/// The devices of the best fabric cannot be reached: the next fabric carries the transfer, not TCP.
#[test]
fn the_next_fabric_takes_over_where_devices_fail() {
    // No process listens on port 1, and there are no such sockets.
    let settings = "fabrics = ['ocs', 'ip-multicast', 'tcp-chain']\nchoose = 'order'\n[ocs]\ntl1 = '127.0.0.1:1'\nsplitters = 1\n\
        splitter-fanout = 2\nrate = '200mbit'\npool = '239.255.73.128/32'\n\
        [[tor]]\nopenflow = 'unix:/nowhere/0'\nfibre-ports = [9]\nhosts = [{ name = 'a', port = 1 }]\n\
        [[tor]]\nopenflow = 'unix:/nowhere/1'\nfibre-ports = [9]\nhosts = [{ name = 'b', port = 1 }]";
    let cluster = cluster_of(settings, "239.255.73.0", "100mbit", &["a", "b"]);
    let file = cluster.place.file("file", &noise(8_000_000));
    let ran = cluster.at("a", &["send", &file, "--to", "b", "--id", "1", "--slow", "wait"]);
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    let report = ran.json();
    assert!(report["fabric"].as_str().unwrap().ends_with("ip-multicast"), "{report}");
    assert_eq!(report["receivers"][0]["fabric"], "ip-multicast", "{report}");
    // A circuit switch that does not say what it holds lends nothing: the fabric is passed over from the
    // start.
    assert_eq!(report["passed_over"][0]["fabric"], "ocs", "{report}");
    assert!(report["passed_over"][0]["why"].as_str().is_some_and(|why| !why.is_empty()), "{report}");
}
