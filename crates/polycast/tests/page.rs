//! The pages of the daemons, asked for as a program that watches them does.

mod common;

use common::Place;
use common::cluster::{Cluster, Daemon};
use polycast_testing::until;
use std::io::{Read, Write};
use std::net::TcpStream;

fn get(daemon: &Daemon, path: &str) -> String {
    let address = daemon.ready["http"].as_str().expect("a page");
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// The value of a metric on a daemon's page.
fn value(daemon: &Daemon, metric: &str) -> f64 {
    let page = get(daemon, "/metrics");
    let line = page.lines().find_map(|line| line.strip_prefix(metric)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {metric} in {page}")).parse().unwrap()
}

#[test]
fn daemons_show_what_they_do() {
    let place = Place::new();
    let manager = place.file("manager.toml", b"http = '127.0.0.1:0'\n");
    let agent = place.file("agent.toml", b"http = '127.0.0.1:0'\n");
    let manager = Daemon::manager("127.0.0.1:0", &["--config", &manager]);
    let mut cluster = Cluster::of_with(place, vec![manager], &["a", "b"], &["--config", &agent]);
    let file = cluster.place.file("f", &[7; 100_000]);
    let sent = cluster.at("a", &["send", &file, "--to", "b"]);
    assert_eq!(sent.status, 0, "{}", sent.stderr);
    assert!((value(&cluster.managers[0], "polycast_agents") - 2.0).abs() < 0.1);
    assert!((value(&cluster.managers[0], "polycast_manager_leads") - 1.0).abs() < 0.1);
    assert!(value(&cluster.agents[0], "polycast_sent_bytes_total") >= 100_000.0);
    assert!((value(&cluster.agents[0], "polycast_sends_total{outcome=\"complete\"}") - 1.0).abs() < 0.1);
    // The source may hear that its receiver has the object a moment before that one counts it.
    let at_receiver = |metric: &str, expected: f64| {
        until(metric, || (value(&cluster.agents[1], metric) - expected).abs() < 0.1);
    };
    at_receiver("polycast_received_bytes_total", 100_000.0);
    at_receiver("polycast_objects{state=\"received\"}", 1.0);
    assert!(get(&cluster.agents[0], "/readyz").starts_with("HTTP/1.1 200"));
    cluster.managers[0].kill();
    until("the agent knows that its manager has gone", || {
        get(&cluster.agents[0], "/readyz").starts_with("HTTP/1.1 503")
    });
    assert!(get(&cluster.agents[0], "/healthz").starts_with("HTTP/1.1 200"));
}
