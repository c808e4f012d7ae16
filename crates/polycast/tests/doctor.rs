//! The doctor says what is wrong with a host and its network: between hosts that are namespaces, whose
//! network is broken on purpose. And the pages and completions that the program writes of itself.

mod common;

use common::polycast;
use polycast_testing::{Need, needs, until};
use serde_json::Value;
use std::process::Command;

const PROGRAM: &str = env!("CARGO_BIN_EXE_polycast");

/// Runs lines of a shell, all of which must do what they say.
fn shell(lines: &str) -> String {
    let ran = Command::new("sh").args(["-ec", lines]).output().unwrap();
    assert!(ran.status.success(), "{lines}\n{}", String::from_utf8_lossy(&ran.stderr));
    String::from_utf8_lossy(&ran.stdout).into_owned()
}

/// Two hosts on a wire, of which the second one answers.
struct Hosts {
    tag: String,
    listener: std::process::Child,
}

impl Hosts {
    fn new(test: &str) -> Self {
        let tag = format!("pd{}{test}", std::process::id());
        shell(&format!(
            "ip netns add {tag}a; ip netns add {tag}b
            ip -n {tag}a link add eth0 mtu 4000 type veth peer name eth0 netns {tag}b mtu 4000
            for h in a b; do ip -n {tag}$h link set lo up; ip -n {tag}$h link set eth0 up; done
            ip -n {tag}a address add 10.79.1.1/24 dev eth0; ip -n {tag}b address add 10.79.1.2/24 dev eth0
            for h in a b; do ip -n {tag}$h route add default dev eth0; done"
        ));
        let listener = Command::new("ip")
            .args(["netns", "exec", &format!("{tag}b"), PROGRAM, "doctor", "--listen"])
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        Hosts { tag, listener }
    }

    /// Runs the first host's doctor. Gives the exit status, and what it prints.
    fn ask(&self, args: &[&str]) -> (i32, Value) {
        let host = format!("{}a", self.tag);
        let ran = Command::new("ip")
            .args(["netns", "exec", &host, PROGRAM, "doctor", "--json"])
            .args(args)
            .output()
            .unwrap();
        (ran.status.code().unwrap(), serde_json::from_slice(&ran.stdout).unwrap())
    }

    /// Waits for verdicts, each on one thing and with these words, and for a way with these: an answer that
    /// is late counts the next time.
    fn finds(&self, args: &[&str], verdicts: &[(&str, &str, &str)], way: &str, why: &str) {
        until(&format!("{verdicts:?}, as {why}"), || {
            let (status, document) = self.ask(args);
            let checks = document["checks"].as_array().unwrap();
            let failed = checks.iter().any(|check| check["verdict"] == "failed");
            assert_eq!(status, i32::from(failed), "{checks:?}");
            let is_found = |(name, verdict, words): &(&str, &str, &str)| {
                let check = checks.iter().find(|check| check["name"] == *name);
                let check = check.unwrap_or_else(|| panic!("no {name} in {checks:?}"));
                check["verdict"] == *verdict && check["found"].as_str().unwrap().contains(words)
            };
            verdicts.iter().all(is_found) && document["way"].as_str().unwrap_or_default().contains(way)
        });
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        let _ = self.listener.kill();
        let _ = self.listener.wait();
        for host in ["a", "b"] {
            let _ = Command::new("ip").args(["netns", "delete", &format!("{}{host}", self.tag)]).status();
        }
    }
}

#[test]
fn what_is_wrong_between_hosts_is_named() {
    if !needs(&[Need::Root, Need::Namespaces, Need::Tool("ip"), Need::Tool("nft"), Need::Tool("python3")]) {
        return;
    }
    let hosts = Hosts::new("x");
    let tag = &hosts.tag;
    let other = ["--to", "10.79.1.2"];
    let all = [("multicast", "ok", ""), ("packets", "ok", ""), ("host", "ok", ""), ("igmp", "ok", "IGMPv3")];
    hosts.finds(&other, &all, "sends each byte once", "the other host answers");
    hosts.finds(&["--to", "10.79.1.3"], &[("host", "failed", "")], "", "no host is there");
    shell(&format!("ip -n {tag}b link set eth0 mtu 1500"));
    hosts.finds(&[], &[("packets", "failed", "")], "", "long packets are lost");
    shell(&format!("ip -n {tag}b link set eth0 mtu 4000"));
    shell(&format!(
        "ip netns exec {tag}b nft 'add table inet f; add chain inet f i {{ type filter hook input priority 0; }}; \
         add rule inet f i ip daddr 239.255.0.0/16 drop'"
    ));
    let lost = [("multicast", "warning", ""), ("host", "failed", ""), ("igmp", "warning", "IGMPv3")];
    let way = "nothing came in 2.4 s): Polycast delivers over TCP, from host to host";
    hosts.finds(&other, &lost, way, "multicast does not get there");
    // A query of version 2: from then on the kernel speaks that one.
    let query = "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_IGMP); \
                 s.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton('10.79.1.2')); \
                 s.sendto(bytes([0x11, 100, 0xee, 0x9b, 0, 0, 0, 0]), ('224.0.0.1', 0))";
    shell(&format!("ip netns exec {tag}b python3 -c \"{query}\""));
    hosts.finds(&other, &[("igmp", "ok", "IGMPv2, as a querier there does")], way, "one was heard");
    shell(&format!("ip -n {tag}a link set eth0 down"));
    hosts.finds(&[], &[("interface", "failed", "")], "", "only the loopback is left");
}

#[test]
fn one_host_alone_is_looked_at() {
    let ran = polycast(&["doctor", "--interface", "lo", "--json"]);
    let document: Value = serde_json::from_str(&ran.stdout).unwrap();
    let names: Vec<&str> =
        document["checks"].as_array().unwrap().iter().map(|check| check["name"].as_str().unwrap()).collect();
    for name in ["interface", "ports", "multicast", "buffers", "store", "kernel", "agent"] {
        assert!(names.contains(&name), "{name} is not in {names:?}");
    }
    let ran = polycast(&["doctor", "--interface", "nothing0"]);
    assert_eq!(ran.status, 1);
    assert!(ran.stdout.contains("no interface nothing0"), "{}", ran.stdout);
}

#[test]
fn shells_and_man_get_every_command() {
    for shell in ["bash", "zsh", "fish"] {
        let ran = polycast(&["completions", shell]);
        assert_eq!(ran.status, 0);
        assert!(ran.stdout.contains("accept") && ran.stdout.contains("completions"), "{shell}");
    }
    assert_eq!(polycast(&["completions", "nosh"]).status, 1);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("man1");
    let ran = polycast(&["man", path.to_str().unwrap(), "--json"]);
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    let document: Value = serde_json::from_str(&ran.stdout).unwrap();
    let pages: Vec<&str> =
        document["pages"].as_array().unwrap().iter().map(|page| page.as_str().unwrap()).collect();
    for page in ["polycast.1", "polycast-accept.1", "polycast-lab-cast.1"] {
        assert!(pages.contains(&page), "{page} is not in {pages:?}");
        assert!(std::fs::read_to_string(path.join(page)).unwrap().contains(".TH"), "{page}");
    }
    assert!(polycast(&["man"]).stdout.contains(".TH"));
}
