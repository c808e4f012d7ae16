//! With the ports open that docs/guide.md names, and all others closed, everything works; and where multicast is closed too,
//! everything goes over TCP.

mod common;

use common::{Place, Ran, noise};
use polycast_testing::{Need, needs};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

const HOSTS: usize = 4;
const OFFER: &str = "tcp dport 18067 accept; ip daddr 239.255.80.67 udp dport 18067 accept";
const MULTICAST: &str = "ip daddr 239.255.0.0/16 udp dport 18067 accept";
const CHAIN: &str = "tcp dport 18068 accept";
const NOTHING: &str = "";

/// Hosts on one switch, each in a namespace and behind a firewall of its own.
struct Lan {
    tag: String,
    place: Place,
}

fn run(words: &[&str]) {
    let status = Command::new(words[0]).args(&words[1..]).status().unwrap();
    assert!(status.success(), "{words:?}");
}

impl Lan {
    /// `None` where this machine cannot do that: the test is noted as skipped.
    fn new() -> Option<Self> {
        if !needs(&[Need::Root, Need::Namespaces, Need::Tool("ip"), Need::Tool("nft")]) {
            return None;
        }
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let tag = format!("fw{}x{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let lan = Lan { tag, place: Place::new() };
        let switch = format!("{}s", lan.tag);
        run(&["ip", "netns", "add", &switch]);
        run(&["ip", "-n", &switch, "link", "add", "br0", "type", "bridge", "mcast_snooping", "0"]);
        run(&["ip", "-n", &switch, "link", "set", "br0", "up"]);
        for host in 0..HOSTS {
            let (space, port) = (lan.space(host), format!("p{host}"));
            run(&["ip", "netns", "add", &space]);
            let peer = ["type", "veth", "peer", "name", "eth0", "netns", &space];
            run(&[&["ip", "-n", &switch, "link", "add", &port], &peer[..]].concat());
            run(&["ip", "-n", &switch, "link", "set", &port, "master", "br0", "up"]);
            run(&["ip", "-n", &space, "link", "set", "lo", "up"]);
            run(&["ip", "-n", &space, "link", "set", "eth0", "up"]);
            run(&["ip", "-n", &space, "address", "add", &format!("{}/24", address(host)), "dev", "eth0"]);
            run(&["ip", "-n", &space, "route", "add", "default", "dev", "eth0"]);
        }
        Some(lan)
    }

    fn space(&self, host: usize) -> String {
        format!("{}h{host}", self.tag)
    }

    /// A host's firewall: it lets in this, answers, and nothing else.
    fn let_in(&self, host: usize, rules: &str) {
        let rules = format!(
            "flush ruleset\ntable inet firewall {{\n chain input {{\n type filter hook input priority 0; policy drop;\n \
             iif lo accept; ct state established,related accept; {rules}\n }}\n}}\n"
        );
        let mut nft = Command::new("ip");
        nft.args(["netns", "exec", &self.space(host), "nft", "-f", "-"]).stdin(Stdio::piped());
        let mut nft = nft.spawn().unwrap();
        nft.stdin.take().unwrap().write_all(rules.as_bytes()).unwrap();
        assert!(nft.wait().unwrap().success(), "{rules}");
    }

    /// Begins the program on a host.
    fn begin(&self, host: usize, arguments: &[&str]) -> Running {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.space(host), env!("CARGO_BIN_EXE_polycast")]).args(arguments);
        command.arg("--json").env_remove("POLYCAST_LOG").env_remove("POLYCAST_SOCKET");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Running(Some(command.spawn().unwrap()))
    }

    /// An offer for so many, and its code.
    fn offer(&self, file: &str, receivers: usize) -> (Running, String) {
        let mut offer = self.begin(0, &["offer", file, "--receivers", &receivers.to_string()]);
        let mut said = String::new();
        let stderr = offer.0.as_mut().unwrap().stderr.as_mut().unwrap();
        BufReader::new(stderr).read_line(&mut said).unwrap();
        let event: Value = serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"));
        (offer, event["code"].as_str().unwrap().to_string())
    }

    /// Offers to hosts 1 and further, that say these words too; gives the source's report.
    fn deliver(&self, receivers: usize, more: &[&str]) -> Value {
        let file = self.place.file("object", &noise(3_000_000));
        let (offer, code) = self.offer(&file, receivers);
        let outs: Vec<String> = (1..=receivers).map(|host| self.place.path(&format!("out{host}"))).collect();
        let accepting: Vec<Running> = outs
            .iter()
            .enumerate()
            .map(|(at, out)| {
                let name = format!("host{}", at + 1);
                let words = ["accept", &code, "--out", out, "--timeout", "20s", "--force", "--name", &name];
                self.begin(at + 1, &[&words[..], more].concat())
            })
            .collect();
        for accepting in accepting {
            let ran = accepting.end();
            assert_eq!(ran.status, 0, "{}", ran.stderr);
        }
        let offered = offer.end();
        assert_eq!(offered.status, 0, "{}", offered.stderr);
        for out in outs {
            assert!(fs::read(out).unwrap() == fs::read(&file).unwrap());
        }
        offered.json()
    }
}

impl Drop for Lan {
    fn drop(&mut self) {
        for space in (0..HOSTS).map(|host| self.space(host)).chain([format!("{}s", self.tag)]) {
            let _ = Command::new("ip").args(["netns", "delete", &space]).status();
        }
    }
}

/// A program that ends with the test.
struct Running(Option<Child>);

impl Running {
    fn end(mut self) -> Ran {
        common::end(self.0.take().unwrap())
    }

    /// Reads what a daemon says when it is ready.
    fn ready(&mut self) {
        let mut line = String::new();
        let stdout = self.0.as_mut().unwrap().stdout.as_mut().unwrap();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        assert!(line.starts_with('{'), "{line}");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn address(host: usize) -> String {
    format!("10.79.0.{}", host + 1)
}

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
    assert!(sent < 2 * 3_000_000, "{sent} bytes sent: the receivers pass it on");
    // The receivers let in nothing at all: each fetches from the source.
    (1..HOSTS).for_each(|host| lan.let_in(host, NOTHING));
    assert_eq!(fabrics(&lan.deliver(3, &["--from", &from])), ["tcp-chain"; 3]);
}

#[test]
fn agents_need_the_documented_ports_only() {
    let Some(lan) = Lan::new() else { return };
    lan.let_in(0, "tcp dport 7400 accept");
    let manager_address = format!("{}:7400", address(0));
    let mut manager = lan.begin(0, &["manager", "--listen", &manager_address]);
    manager.ready();
    let sockets: Vec<String> = (0..HOSTS).map(|host| lan.place.path(&format!("{host}.sock"))).collect();
    let agents: Vec<Running> = (1..HOSTS)
        .map(|host| {
            let store = lan.place.path(&format!("store{host}"));
            let name = format!("host{host}");
            let words = ["agent", "--manager", &manager_address, "--name", &name, "--store", &store];
            let mut agent = lan.begin(host, &[&words[..], &["--socket", &sockets[host]]].concat());
            agent.ready();
            agent
        })
        .collect();
    let file = lan.place.file("object", &noise(3_000_000));
    let to = (2..HOSTS).map(|host| format!("host{host}")).collect::<Vec<_>>().join(",");
    let peers = |host: usize| {
        let ran = lan.begin(host, &["status", "--socket", &sockets[host]]).end();
        serde_json::from_str::<Value>(&ran.stdout).map_or(0, |s| s["peers"].as_array().map_or(0, Vec::len))
    };
    let begun = Instant::now();
    while peers(1) < HOSTS - 1 {
        assert!(begun.elapsed() < Duration::from_secs(20), "they do not see each other");
        std::thread::sleep(Duration::from_millis(100));
    }
    let with_multicast = "tcp dport 7401 accept; ip daddr 239.255.64.0/24 udp dport 7410 accept";
    for (id, rules, fabric) in
        [("1", with_multicast, "ip-multicast"), ("2", "tcp dport 7401 accept", "tcp-chain")]
    {
        (1..HOSTS).for_each(|host| lan.let_in(host, rules));
        let ran = lan.begin(1, &["send", &file, "--to", &to, "--id", id, "--socket", &sockets[1]]).end();
        assert_eq!(ran.status, 0, "{}", ran.stderr);
        assert_eq!(fabrics(&ran.json()), [fabric; HOSTS - 2], "{}", ran.stdout);
    }
    drop(agents);
}
