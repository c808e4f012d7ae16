//! Hosts with IPv6 alone, behind firewalls that let in what docs/guide.md names: offers over multicast and
//! without it, and a manager with agents.

mod common;

use common::lan::{HOSTS, Lan, Running, address_v6};
use common::noise;
use polycast_testing::wait_for;
use serde_json::Value;

const OFFER: &str = "tcp dport 18067 accept; ip6 daddr ff15::8050:4c43 udp dport 18067 accept";
const MULTICAST: &str = "ip6 daddr { ff15::8000:0/112, ff15::8050:4c43 } udp dport 18067 accept";
const CHAIN: &str = "tcp dport 18068 accept";
const AGENT: &str = "tcp dport 7401 accept; ip6 daddr ff15::8000:0/120 udp dport 7410 accept";

fn fabrics(report: &Value) -> Vec<&str> {
    let receivers = report["receivers"].as_array().unwrap();
    receivers.iter().map(|receiver| receiver["fabric"].as_str().unwrap()).collect()
}

#[test]
fn an_offer_goes_over_multicast() {
    let Some(lan) = Lan::over_ipv6() else { return };
    lan.let_in(0, OFFER);
    (1..HOSTS).for_each(|host| lan.let_in(host, MULTICAST));
    assert_eq!(fabrics(&lan.deliver(3, &[])), ["ip-multicast"; 3]);
}

#[test]
fn without_multicast_the_receivers_bring_it_to_each_other() {
    let Some(lan) = Lan::over_ipv6() else { return };
    lan.let_in(0, "tcp dport 18067 accept");
    (1..HOSTS).for_each(|host| lan.let_in(host, CHAIN));
    let report = lan.deliver(3, &["--from", &format!("[{}]", address_v6(0))]);
    assert_eq!(fabrics(&report), ["tcp-chain"; 3]);
    let sent = report["sent_bytes"].as_u64().unwrap();
    assert!(sent < 3 * 3_000_000, "{sent} bytes sent: the receivers pass it on");
    // Without brackets it is not seen where the address ends.
    let ran = lan.begin(1, &["accept", "some-code-here", "--from", &address_v6(0)]).end();
    assert!(ran.status == 1 && ran.stderr.contains("write [fd79::1]"), "{}", ran.stderr);
}

/// A manager lends groups of the family that it listens at.
#[test]
fn agents_deliver_to_each_other() {
    let Some(lan) = Lan::over_ipv6() else { return };
    let at = |host: usize| [format!("h{host}"), lan.place.path(&format!("{host}.sock"))];
    let manager = format!("[{}]:7400", address_v6(0));
    lan.let_in(0, &format!("tcp dport 7400 accept; {AGENT}"));
    (1..HOSTS).for_each(|host| lan.let_in(host, AGENT));
    let mut daemons: Vec<Running> = vec![lan.begin(0, &["manager", "--listen", &manager, "--insecure"])];
    daemons[0].ready();
    for host in 0..HOSTS {
        let ([name, socket], store) = (at(host), lan.place.path(&format!("store{host}")));
        let words = ["agent", "--manager", &manager, "--insecure", "--name", &name];
        let local = ["--socket", &socket, "--store", &store];
        daemons.push(lan.begin(host, &[&words[..], &local].concat()));
        daemons.last_mut().unwrap().ready();
    }
    let [_, own] = at(0);
    wait_for("all have joined", || {
        let status = lan.begin(0, &["status", "--socket", &own]).end().json();
        status["peers"].as_array().filter(|peers| peers.len() == HOSTS).map(drop)
    });
    let file = lan.place.file("object", &noise(3_000_000));
    let ran = lan.begin(0, &["send", &file, "--to", "h1,h2,h3", "--socket", &own]).end();
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    assert_eq!(fabrics(&ran.json()), ["ip-multicast"; 3]);
}
