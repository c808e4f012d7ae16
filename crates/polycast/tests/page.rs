//! The pages of the daemons, asked for as a program that watches them does.

mod common;

use common::Place;
use common::cluster::{Cluster, Daemon};
use polycast_testing::until;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;

fn get(daemon: &Daemon, path: &str) -> String {
    let address = daemon.ready["http"].as_str().expect("a page");
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// First state that a daemon's view is told.
fn view(daemon: &Daemon, query: &str) -> Value {
    let address = daemon.ready["http"].as_str().expect("a page");
    let stream = TcpStream::connect(address).unwrap();
    write!(&stream, "GET /view/events{query} HTTP/1.1\r\nHost: {address}\r\n\r\n").unwrap();
    let mut lines = BufReader::new(stream).lines().map(|line| line.expect("the view tells its state"));
    let told = lines.find_map(|line| line.strip_prefix("data: ").map(str::to_string));
    serde_json::from_str(&told.expect("there is a state")).unwrap()
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
    assert!((value(&cluster.managers[0], "polycast_grant_seconds_count") - 1.0).abs() < 0.1);
    assert!(value(&cluster.agents[1], "polycast_verify_failures_total") < 0.5);
    assert!(value(&cluster.agents[0], "polycast_sent_bytes_total{fabric=\"ip-multicast\"}") >= 100_000.0);
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

/// A certificate that ends, and an etcd that is away, are seen before an agent is turned away.
#[test]
fn what_managers_need_is_on_their_pages() {
    let place = Place::new();
    let config = place.file("manager.toml", b"http = '127.0.0.1:0'\n");
    let sealed = Daemon::manager("127.0.0.1:0", &["--config", &config, "--ca", &place.path("ca")]);
    let left_s = value(&sealed, "polycast_certificate_seconds");
    assert!((3_600.0..4_000.0 * 86_400.0).contains(&left_s), "{left_s}");
    assert!(!get(&sealed, "/metrics").contains("\npolycast_etcd_answers "));
    // No etcd listens there.
    let alone = Daemon::manager("127.0.0.1:0", &["--config", &config, "--etcd", "127.0.0.1:9"]);
    until("etcd is seen to be away", || value(&alone, "polycast_etcd_answers") < 0.5);
    assert!(!get(&alone, "/metrics").contains("\npolycast_certificate_seconds "));
}

/// Other users of the machine are not told, on the page as over the socket, what the agent's user sends by a
/// path: they see that something is sent, and its receivers. A viewer with the token, which that user gives
/// away, sees all.
#[test]
fn names_of_objects_are_for_those_who_may_see_them() {
    const TOKEN: &str = "0123456789abcdef";
    for has_token in [false, true] {
        let place = Place::new();
        let token = place.file("view.token", TOKEN.as_bytes());
        std::fs::set_permissions(&token, PermissionsExt::from_mode(0o600)).unwrap();
        let line = if has_token { format!("view-token-file = '{token}'\n") } else { String::new() };
        let settings = place.file("agent.toml", format!("http = '127.0.0.1:0'\n{line}").as_bytes());
        let managers = vec![Daemon::manager("127.0.0.1:0", &[])];
        let cluster = Cluster::of_with(place, managers, &["a", "b"], &["--config", &settings]);
        let file = cluster.place.file("secret.bin", &[7; 100_000]);
        let sent = cluster.at("a", &["send", &file, "--to", "b"]);
        assert_eq!(sent.status, 0, "{}", sent.stderr);
        let told = view(&cluster.agents[0], &format!("?token={TOKEN}"));
        let past = &told["past"][0];
        assert_eq!((&past["receiver_reports"][0]["name"], &past["done"]), (&json!("b"), &json!(1)), "{told}");
        assert_eq!(told["objects_all"], json!(usize::from(has_token)));
        assert_eq!(past["name"].as_str(), has_token.then_some("secret.bin"));
        assert_eq!(told.to_string().contains("secret.bin"), has_token, "{told}");
        // What has come from elsewhere is for all users.
        assert!(view(&cluster.agents[1], &format!("?token={TOKEN}")).to_string().contains("secret.bin"));
    }
}
