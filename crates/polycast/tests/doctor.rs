//! The doctor says what is wrong with a host and its network: between hosts that are namespaces, whose
//! network is broken on purpose. And the pages and completions that the program writes of itself.

mod common;

use common::cluster::{Cluster, Daemon, socket};
use common::{command, polycast};
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
        self.ask_after("", args)
    }

    /// The same, after lines of a shell that change what this doctor sees, and nothing else: mounts are its
    /// own.
    fn ask_after(&self, lines: &str, args: &[&str]) -> (i32, Value) {
        let host = format!("{}a", self.tag);
        let script = format!("{lines}\nexec \"$0\" doctor --json \"$@\"");
        let ran = Command::new("ip")
            .args(["netns", "exec", &host, "sh", "-ec", &script, PROGRAM])
            .args(args)
            .output()
            .unwrap();
        let document = serde_json::from_slice(&ran.stdout);
        let document = document.unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&ran.stderr)));
        (ran.status.code().unwrap(), document)
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

/// The check of this name: its verdict, and what it says of the state and of the mend.
fn check<'a>(document: &'a Value, name: &str) -> [&'a str; 3] {
    let checks = document["checks"].as_array().unwrap();
    let check = checks.iter().find(|check| check["name"] == name);
    let check = check.unwrap_or_else(|| panic!("no {name} in {document}"));
    ["verdict", "found", "mend"].map(|part| check[part].as_str().unwrap_or_default())
}

/// Checks that a document names a fault and its mend.
fn names(document: &Value, (name, verdict, words, mend): (&str, &str, &str, &str)) {
    let [said, found, how] = check(document, name);
    assert!(said == verdict && found.contains(words) && how.contains(mend), "{name}: {said}: {found}; {how}");
}

#[test]
fn what_is_wrong_with_a_host_is_named() {
    if !needs(&[Need::Root, Need::Namespaces, Need::Tool("ip"), Need::Tool("python3")]) {
        return;
    }
    let hosts = Hosts::new("y");
    // Small buffers, the shared memory of a container, few files, and a port that another program has.
    let poor = "mount -t tmpfs sys /proc/sys/net/core; echo 212992 > /proc/sys/net/core/rmem_max
        mount -t tmpfs -o size=64m shm /dev/shm; ulimit -n 100
        python3 -c 'import socket, time; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind((\"\", 18067)); print(flush=True); time.sleep(60)' > /dev/shm/bound & trap 'kill $!' EXIT
        while [ ! -s /dev/shm/bound ]; do sleep 0.05; done
        \"$0\" doctor --json \"$@\"; exit $?";
    let (status, poor) = hosts.ask_after(poor, &[]);
    assert_eq!(status, 1);
    for fault in [
        ("buffers", "warning", "rmem_max is 212992", "sysctl -w net.core.rmem_max="),
        ("store", "warning", "64.00 MiB", "--shm-size=8g"),
        ("files", "warning", "100 of them", "ulimit -Hn"),
        ("ports", "failed", "18067", "end that program"),
    ] {
        names(&poor, fault);
    }
    // A store that is nearly full, and an interface that does no multicast.
    shell(&format!("ip -n {}a link set eth0 multicast off", hosts.tag));
    let full = "mount -t tmpfs -o size=300m shm /dev/shm; fallocate -l 280m /dev/shm/all";
    let (_, full) = hosts.ask_after(full, &[]);
    names(&full, ("store", "warning", "20.00 MiB free of 300.00 MiB", "polycast rm ID"));
    names(&full, ("interface", "warning", "it does no multicast", "multicast on"));
    // A cable that leads nowhere.
    shell(&format!("ip -n {}b link set eth0 down", hosts.tag));
    until("the kernel tells that the other end is off", || {
        let (status, dark) = hosts.ask(&[]);
        let [_, found, mend] = check(&dark, "interface");
        status == 1 && found.contains("no signal") && mend.starts_with("look at the cable")
    });
}

/// A clock that is two hours ahead, for a program that is started with it.
const AHEAD: &str = "#define _GNU_SOURCE\n#include <dlfcn.h>\n#include <time.h>\n\
    int clock_gettime(clockid_t clock, struct timespec *at) {\n\
    int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, \"clock_gettime\");\n\
    int result = real(clock, at);\n\
    if (!result && clock == CLOCK_REALTIME) at->tv_sec += 7200;\n\
    return result; }\n";

#[test]
fn what_is_wrong_between_a_machine_and_its_manager_is_named() {
    if !needs(&[Need::Tool("cc")]) {
        return;
    }
    let mut cluster = Cluster::start(&["a"]);
    let place = &cluster.place;
    let (source, library) = (place.file("ahead.c", AHEAD.as_bytes()), place.path("ahead.so"));
    shell(&format!("cc -shared -fPIC -o {library} {source} -ldl"));
    // The program of another version: in everything that it says of itself it is one.
    let own = env!("CARGO_PKG_VERSION");
    let other = format!("{}9", &own[..own.len() - 1]);
    let mut program = std::fs::read(PROGRAM).unwrap();
    for at in 0..program.len() - own.len() {
        if program[at..].starts_with(own.as_bytes()) {
            program[at..at + own.len()].copy_from_slice(other.as_bytes());
        }
    }
    let program = place.file("newer", &program);
    shell(&format!("chmod +x {program}"));
    let manager = cluster.managers[0].address().to_string();
    let (store, socket) = (place.path("store-b"), socket(place, "b"));
    let words = ["agent", "--manager", &manager, "--name", "b", "--interface", "lo", "--port", "0"];
    let usual = command(&[&words[..], &["--store", &store, "--socket", &socket]].concat());
    let mut newer = Command::new(&program);
    newer.args(usual.get_args()).env("LD_PRELOAD", &library);
    newer.stdin(std::process::Stdio::null()).stdout(std::process::Stdio::piped());
    cluster.agents.push(Daemon::begin(newer));
    let doctor = ["doctor", "--interface", "lo"];
    let both = |document: &Value| document["peers"].as_array().is_some_and(|peers| peers.len() == 2);
    cluster.await_status("a", both);
    let at_a = cluster.at("a", &doctor).json();
    names(&at_a, ("clock", "ok", "the same time", ""));
    names(&at_a, ("versions", "warning", &format!("and b has {other}"), "install the same version"));
    let at_b = cluster.at("b", &doctor).json();
    names(&at_b, ("clock", "warning", "s ahead of the manager's", "timedatectl set-ntp true"));
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
