//! Hosts on one switch, each in a namespace and behind a firewall of its own.

use super::{Place, Ran, end, noise};
use polycast_testing::{Need, needs};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// Number of hosts.
pub(crate) const HOSTS: usize = 4;

/// Hosts on one switch, each in a namespace and behind a firewall of its own.
pub(crate) struct Lan {
    tag: String,
    pub place: Place,
}

fn run(words: &[&str]) {
    let status = Command::new(words[0]).args(&words[1..]).status().unwrap();
    assert!(status.success(), "{words:?}");
}

impl Lan {
    /// `None` where this machine cannot do that: the test is noted as skipped.
    pub(crate) fn new() -> Option<Self> {
        Self::with(&|host| format!("{}/24", address(host)))
    }

    /// The same with IPv6 alone.
    #[allow(dead_code, reason = "not every test has such a network")]
    pub(crate) fn over_ipv6() -> Option<Self> {
        Self::with(&|host| format!("{}/64", address_v6(host)))
    }

    fn with(network: &dyn Fn(usize) -> String) -> Option<Self> {
        if !needs(&[Need::Root, Need::Namespaces, Need::Tool("ip"), Need::Tool("nft")]) {
            return None;
        }
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let tag = format!("fw{}x{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let lan = Lan { tag, place: Place::new() };
        let switch = lan.switch();
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
            let own = network(host);
            let family = if own.contains(':') { "-6" } else { "-4" };
            let flags: &[&str] = if family == "-6" { &["nodad"] } else { &[] };
            run(&[&["ip", "-n", &space, "address", "add", &own, "dev", "eth0"], flags].concat());
            run(&["ip", family, "-n", &space, "route", "add", "default", "dev", "eth0"]);
        }
        Some(lan)
    }

    /// The switch's namespace.
    pub(crate) fn switch(&self) -> String {
        format!("{}s", self.tag)
    }

    /// A host's namespace.
    pub(crate) fn space(&self, host: usize) -> String {
        format!("{}h{host}", self.tag)
    }

    /// A host's firewall: it lets in this, answers, and nothing else.
    pub(crate) fn let_in(&self, host: usize, rules: &str) {
        self.set_rules(
            host,
            &format!(
                "chain input {{\n type filter hook input priority 0; policy drop;\n iif lo accept; \
                 ct state established,related accept; meta l4proto icmpv6 accept; {rules}\n }}"
            ),
        );
    }

    /// A host's firewall: it lets everything in, and out everything but what is named here.
    pub(crate) fn keep_in(&self, host: usize, rules: &str) {
        self.set_rules(host, &format!("chain output {{\n type filter hook output priority 0; {rules}\n }}"));
    }

    fn set_rules(&self, host: usize, chain: &str) {
        let rules = format!("flush ruleset\ntable inet firewall {{\n {chain}\n}}\n");
        let mut nft = Command::new("ip");
        nft.args(["netns", "exec", &self.space(host), "nft", "-f", "-"]).stdin(Stdio::piped());
        let mut nft = nft.spawn().unwrap();
        nft.stdin.take().unwrap().write_all(rules.as_bytes()).unwrap();
        assert!(nft.wait().unwrap().success(), "{rules}");
    }

    /// Begins the program on a host.
    pub(crate) fn begin(&self, host: usize, arguments: &[&str]) -> Running {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.space(host), super::PROGRAM]).args(arguments);
        command.arg("--json").env_remove("POLYCAST_LOG").env_remove("POLYCAST_SOCKET");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Running(Some(command.spawn().unwrap()))
    }

    /// An offer for so many, and its code.
    pub(crate) fn offer(&self, file: &str, receivers: usize, more: &[&str]) -> (Running, String) {
        let receivers = receivers.to_string();
        let words = ["offer", file, "--receivers", &receivers];
        let mut offer = self.begin(0, &[&words[..], more].concat());
        let mut said = String::new();
        let stderr = offer.0.as_mut().unwrap().stderr.as_mut().unwrap();
        BufReader::new(stderr).read_line(&mut said).unwrap();
        let event: Value = serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"));
        (offer, event["code"].as_str().unwrap().to_string())
    }

    /// Offers to hosts 1 and further, that say these words too; gives the source's report.
    pub(crate) fn deliver(&self, receivers: usize, more: &[&str]) -> Value {
        let file = self.place.file("object", &noise(3_000_000));
        // Which fabric brought it is asked: none is to be left behind because it was late.
        let (offer, code) = self.offer(&file, receivers, &["--slow", "wait", "--timeout", "2m"]);
        let outs: Vec<String> = (1..=receivers).map(|host| self.place.path(&format!("out{host}"))).collect();
        let accepting: Vec<Running> = outs
            .iter()
            .enumerate()
            .map(|(at, out)| {
                let name = format!("host{}", at + 1);
                let words = ["accept", &code, "--out", out, "--force", "--name", &name];
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
pub(crate) struct Running(pub Option<Child>);

impl Running {
    pub(crate) fn end(mut self) -> Ran {
        end(self.0.take().unwrap())
    }

    /// Asks it to end in a way of people or systems, and waits for that.
    pub(crate) fn stop(self, asked: rustix::process::Signal) -> Ran {
        super::signal(self.0.as_ref().unwrap(), asked);
        self.end()
    }

    /// Reads what a daemon says when it is ready.
    pub(crate) fn ready(&mut self) {
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

/// A host's address.
pub(crate) fn address(host: usize) -> String {
    format!("10.79.0.{}", host + 1)
}

/// The address of a host where there is IPv6 alone.
#[allow(dead_code, reason = "not every test has such a network")]
pub(crate) fn address_v6(host: usize) -> String {
    format!("fd79::{}", host + 1)
}
