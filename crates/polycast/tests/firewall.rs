//! With the ports open that docs/guide.md names, and all others closed, everything works; and where multicast
//! is closed too, everything goes over TCP.

mod common;

use common::lan::{HOSTS, Lan, Running, address};
use common::{noise, polycast};
use polycast_testing::until;
use serde_json::Value;

const OFFER: &str = "tcp dport 18067 accept; ip daddr 239.255.80.67 udp dport 18067 accept";
const MULTICAST: &str = "ip daddr 239.255.0.0/16 udp dport 18067 accept";
const CHAIN: &str = "tcp dport 18068 accept";
const NOTHING: &str = "";

fn fabrics(report: &Value) -> Vec<&str> {
    let receivers = report["receivers"].as_array().unwrap();
    receivers.iter().map(|receiver| receiver["fabric"].as_str().unwrap()).collect()
}

#[test]
fn an_offer_needs_the_documented_ports_only() {
    let Some(lan) = Lan::new() else { return };
    lan.let_in(0, OFFER);
    (1..HOSTS).for_each(|host| lan.let_in(host, MULTICAST));
    let report = lan.deliver(3, &[]);
    assert_eq!(fabrics(&report), ["ip-multicast"; 3]);
}

#[test]
fn without_multicast_an_offer_needs_tcp_only() {
    let Some(lan) = Lan::new() else { return };
    lan.let_in(0, "tcp dport 18067 accept");
    (1..HOSTS).for_each(|host| lan.let_in(host, CHAIN));
    let from = address(0);
    let report = lan.deliver(3, &["--from", &from]);
    assert_eq!(fabrics(&report), ["tcp-chain"; 3]);
    let sent = report["sent_bytes"].as_u64().unwrap();
    assert!(sent < 3 * 3_000_000, "{sent} bytes sent: the receivers pass it on");
    // The receivers let in nothing at all: each fetches from the source.
    (1..HOSTS).for_each(|host| lan.let_in(host, NOTHING));
    assert_eq!(fabrics(&lan.deliver(3, &["--from", &from])), ["tcp-chain"; 3]);
}

/// A host that may not send multicast sends everything over TCP, and one that may not ask for offers hears of
/// them.
#[test]
fn a_host_that_may_not_send_multicast_does_without() {
    const ALL_MULTICAST: &str = "ip daddr 224.0.0.0/4 drop";
    let Some(lan) = Lan::new() else { return };
    lan.keep_in(0, ALL_MULTICAST);
    let report = lan.deliver(2, &["--from", &address(0)]);
    assert_eq!(fabrics(&report), ["tcp-chain"; 2]);
    let why = report["path_lost"].as_str().unwrap();
    assert!(why.starts_with(&format!("no multicast on {}: Operation not permitted", address(0))), "{why}");
    assert!(why.ends_with("a firewall or a sandbox of this host forbids it"), "{why}");
    lan.keep_in(0, "");
    (1..HOSTS).for_each(|host| lan.keep_in(host, ALL_MULTICAST));
    assert_eq!(fabrics(&lan.deliver(2, &[])), ["ip-multicast"; 2]);
}

#[test]
fn agents_need_the_documented_ports_only() {
    let Some(lan) = Lan::new() else { return };
    lan.let_in(0, "tcp dport 7400 accept");
    let key = lan.place.path("key");
    assert_eq!(polycast(&["key", "new", &key]).status, 0);
    let manager_address = format!("{}:7400", address(0));
    let mut manager = lan.begin(0, &["manager", "--listen", &manager_address, "--key-file", &key]);
    manager.ready();
    let sockets: Vec<String> = (0..HOSTS).map(|host| lan.place.path(&format!("{host}.sock"))).collect();
    let agents: Vec<Running> = (1..HOSTS)
        .map(|host| {
            let store = lan.place.path(&format!("store{host}"));
            let name = format!("host{host}");
            let words = ["agent", "--manager", &manager_address, "--name", &name, "--store", &store];
            let own = ["--socket", &sockets[host], "--key-file", &key];
            let mut agent = lan.begin(host, &[&words[..], &own].concat());
            agent.ready();
            agent
        })
        .collect();
    let to = (2..HOSTS).map(|host| format!("host{host}")).collect::<Vec<_>>().join(",");
    let peers = |host: usize| {
        let ran = lan.begin(host, &["status", "--socket", &sockets[host]]).end();
        serde_json::from_str::<Value>(&ran.stdout).map_or(0, |s| s["peers"].as_array().map_or(0, Vec::len))
    };
    until("they see each other", || peers(1) == HOSTS - 1);
    let with_multicast = "tcp dport 7401 accept; ip daddr 239.255.64.0/24 udp dport 7410 accept";
    for (id, rules, fabric) in
        [("1", with_multicast, "ip-multicast"), ("2", "tcp dport 7401 accept", "tcp-chain")]
    {
        (1..HOSTS).for_each(|host| lan.let_in(host, rules));
        // Of what receivers have already nothing would be sent.
        let mut bytes = noise(3_000_000);
        bytes.iter_mut().for_each(|byte| *byte ^= id.as_bytes()[0]);
        let file = lan.place.file(&format!("object {id}"), &bytes);
        let send = ["send", &file, "--to", &to, "--id", id, "--slow", "wait", "--socket", &sockets[1]];
        let ran = lan.begin(1, &send).end();
        assert_eq!(ran.status, 0, "{}", ran.stderr);
        assert_eq!(fabrics(&ran.json()), [fabric; HOSTS - 2], "{}", ran.stdout);
    }
    drop(agents);
}
