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

    /// Returns the findings of the first host's doctor: the exit status, and the verdict of each check.
    fn ask(&self, args: &[&str]) -> (i32, Vec<(String, String)>) {
        let host = format!("{}a", self.tag);
        let ran = Command::new("ip")
            .args(["netns", "exec", &host, PROGRAM, "doctor", "--json"])
            .args(args)
            .output()
            .unwrap();
        let document: Value = serde_json::from_slice(&ran.stdout).unwrap();
        let checks = document["checks"].as_array().unwrap().iter().map(|check| {
            (check["name"].as_str().unwrap().to_string(), check["verdict"].as_str().unwrap().to_string())
        });
        (ran.status.code().unwrap(), checks.collect())
    }

    /// The verdict on one thing.
    fn verdict(&self, name: &str, args: &[&str]) -> String {
        let (status, checks) = self.ask(args);
        let failed = checks.iter().any(|(_, verdict)| verdict == "failed");
        assert_eq!(status, i32::from(failed), "{checks:?}");
        let found = checks.iter().find(|check| check.0 == name);
        found.unwrap_or_else(|| panic!("no {name} in {checks:?}")).1.clone()
    }

    /// Waits for a verdict: what an answer says that is late, the next one says, too.
    fn finds(&self, name: &str, args: &[&str], verdict: &str, why: &str) {
        until(&format!("{name} is {verdict}, as {why}"), || self.verdict(name, args) == verdict);
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
    if !needs(&[Need::Root, Need::Namespaces, Need::Tool("ip"), Need::Tool("nft")]) {
        return;
    }
    let hosts = Hosts::new("x");
    let tag = &hosts.tag;
    hosts.finds("multicast", &[], "ok", "the other host answers");
    hosts.finds("packets", &[], "ok", "all lengths come through");
    hosts.finds("host", &["--to", "10.79.1.2"], "ok", "it answers");
    hosts.finds("host", &["--to", "10.79.1.3"], "failed", "no host is there");
    shell(&format!("ip -n {tag}b link set eth0 mtu 1500"));
    hosts.finds("packets", &[], "failed", "long packets are lost");
    shell(&format!("ip -n {tag}b link set eth0 mtu 4000"));
    shell(&format!(
        "ip netns exec {tag}b nft 'add table inet f; add chain inet f i {{ type filter hook input priority 0; }}; \
         add rule inet f i ip daddr 239.255.0.0/16 drop'"
    ));
    hosts.finds("multicast", &[], "warning", "only this host hears it");
    hosts.finds("host", &["--to", "10.79.1.2"], "failed", "multicast does not get there");
    shell(&format!("ip -n {tag}a link set eth0 down"));
    hosts.finds("interface", &[], "failed", "only the loopback is left");
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
