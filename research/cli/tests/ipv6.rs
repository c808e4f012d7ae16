//! Hosts with IPv6 alone, behind firewalls that let in what docs/guide.md names: offers over multicast and
//! without it, and a manager with agents. And a host with IPv6 alone among others with IPv4.

#[path = "../../../crates/polycast/tests/common/mod.rs"]
mod common;

use common::lan::{HOSTS, Lan, Running, address, address_v6};
use common::{Place, noise, polycast};
use polycast_testing::{Need, needs, until, wait_for};
use serde_json::Value;
use std::process::Command;

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

/// A switch that snoops hears by MLDv2 from which source a receiver takes packets, and by MLDv1 of the group
/// alone; the doctor says which version is spoken, and by whose word.
#[test]
fn a_switch_that_snoops_hears_of_the_source() {
    let Some(lan) = Lan::over_ipv6() else { return };
    if !needs(&[Need::Tool("bridge")]) {
        return;
    }
    let bridge = |options: &str| {
        let words = format!("ip -n {} link set br0 type bridge {options}", lan.switch());
        let ran = Command::new("sh").args(["-ec", &words]).status().unwrap();
        assert!(ran.success(), "{words}");
    };
    let doctor = |args: &[&str], name: &str| {
        let document = lan.begin(0, &[&["doctor"], args].concat()).end().json();
        let checks = document["checks"].as_array().unwrap().clone();
        let check = checks.into_iter().find(|check| check["name"] == name);
        check.map(|check| format!("{}: {}", check["verdict"], check["found"])).unwrap_or_default()
    };
    let said = doctor(&[], "mld");
    assert!(said.contains("skipped") && said.contains("unless a querier of MLDv1 was heard"), "{said}");
    let other = format!("[{}]", address_v6(1));
    let said = doctor(&["--to", &other], "host");
    assert!(said.contains(&format!("{other} does not answer")), "{said}");
    let said = doctor(&["--querier", "1s"], "querier");
    assert!(said.contains("warning") && said.contains("has asked which hosts are in which group"), "{said}");
    bridge("mcast_snooping 1 mcast_querier 1 mcast_mld_version 2 mcast_query_interval 100");
    until("a querier of MLDv2 is heard", || doctor(&["--querier", "3s"], "querier").contains("by MLDv2"));
    until("the doctor says so", || {
        let said = doctor(&["--querier", "3s"], "mld");
        said.contains(
            "eth0 speaks MLDv2, as a querier there does; the network is asked for a group's packets",
        )
    });
    let file = lan.place.file("slow", &noise(2_000_000));
    let (offer, code) = lan.offer(&file, 2, &["--rate", "4mbit", "--slow", "wait", "--timeout", "1m"]);
    let accepting = [1, 2].map(|host: usize| {
        let (from, out) = (format!("[{}]", address_v6(0)), lan.place.path(&format!("out{host}")));
        lan.begin(host, &["accept", &code, "--from", &from, "--out", &out, "--name", &format!("h{host}")])
    });
    until("the switch hears of the source", || {
        let shown = Command::new("ip")
            .args(["netns", "exec", &lan.switch(), "bridge", "-d", "mdb", "show"])
            .output()
            .unwrap();
        let source = format!(" src {} ", address_v6(0));
        let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
        [1, 2].iter().all(|host| {
            shown
                .lines()
                .any(|line| line.contains(&format!("port p{host} grp ff15:")) && line.contains(&source))
        })
    });
    for accepting in accepting {
        let ran = accepting.end();
        assert_eq!(ran.status, 0, "{}", ran.stderr);
    }
    assert_eq!(fabrics(&offer.end().json()), ["ip-multicast"; 2]);
    bridge("mcast_mld_version 1");
    until("the doctor says MLDv1", || {
        let said = doctor(&["--querier", "3s"], "mld");
        said.contains("eth0 speaks MLDv1, as a querier there does; the network hears of groups, and not")
    });
    assert_eq!(fabrics(&lan.deliver(2, &["--from", &format!("[{}]", address_v6(0))])), ["ip-multicast"; 2]);
    let force = "echo 2 > /proc/sys/net/ipv6/conf/all/force_mld_version";
    let ran = Command::new("ip").args(["netns", "exec", &lan.space(0), "sh", "-c", force]).status().unwrap();
    assert!(ran.success());
    let said = doctor(&[], "mld");
    assert!(said.contains("eth0 speaks MLDv2: net.ipv6.conf.all.force_mld_version says so"), "{said}");
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

/// A manager that listens at all addresses has agents of both families. A source sends to those of its own.
#[test]
fn one_of_the_other_family_is_named_and_the_others_go_on() {
    let Some(lan) = Lan::new() else { return };
    let ip = |host: usize, words: &str| {
        let ran = Command::new("ip").args(["-n", &lan.space(host)]).args(words.split(' ')).status().unwrap();
        assert!(ran.success(), "{words}");
    };
    ip(3, "address flush dev eth0");
    for host in [0, 3] {
        ip(host, &format!("address add {}/64 dev eth0 nodad", address_v6(host)));
    }
    let mut daemons: Vec<Running> = vec![lan.begin(0, &["manager", "--listen", "[::]:7400", "--insecure"])];
    daemons[0].ready();
    for host in 0..HOSTS {
        let (name, socket) = (format!("h{host}"), lan.place.path(&format!("{host}.sock")));
        let store = lan.place.path(&format!("store{host}"));
        let manager =
            if host == 3 { format!("[{}]:7400", address_v6(0)) } else { format!("{}:7400", address(0)) };
        let words = ["agent", "--manager", &manager, "--insecure", "--name", &name];
        let local = ["--socket", &socket, "--store", &store];
        daemons.push(lan.begin(host, &[&words[..], &local].concat()));
        daemons.last_mut().unwrap().ready();
    }
    let own = lan.place.path("0.sock");
    wait_for("all have joined", || {
        let status = lan.begin(0, &["status", "--socket", &own]).end().json();
        status["peers"].as_array().filter(|peers| peers.len() == HOSTS).map(drop)
    });
    let file = lan.place.file("object", &noise(3_000_000));
    let ran = lan.begin(0, &["send", &file, "--to", "h1,h2,h3", "--socket", &own]).end();
    assert_eq!(ran.status, 1, "{}", ran.stderr);
    let report = ran.json();
    println!("{report}");
    for receiver in report["receivers"].as_array().unwrap() {
        assert_eq!(receiver["verified"], receiver["name"] != "h3", "{report}");
    }
    let why = report["receivers"][2]["error"].as_str().unwrap();
    assert!(why.contains("its agent has IPv6 (fd79::4), and the source IPv4 (10.79.0.1)"), "{why}");
    assert!(report["seconds"].as_f64().unwrap() < 5.0, "the others waited for it: {report}");
}

#[test]
fn a_lab_has_hosts_with_ipv6_alone() {
    if !needs(&[Need::Root, Need::Namespaces, Need::Tool("ip"), Need::Tool("tc")]) {
        return;
    }
    let place = Place::new();
    let file = place.file("object", &noise(1_000_000));
    let ran = polycast(&["lab", "cast", "bridge:3,ip=6", &file, "--json"]);
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    assert_eq!(fabrics(&ran.json()), ["ip-multicast"; 2]);
    let ran = polycast(&["lab", "compare", "bridge:3,ip=6", &file, "--with", "scp"]);
    assert!(ran.status == 1 && ran.stderr.contains("in a lab with ip=6 only tcp"), "{}", ran.stderr);
}
