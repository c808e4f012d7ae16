//! With the ports open that docs/guide.md names, and all others closed, everything works; and where multicast
//! is closed too, everything goes over TCP. So it does where a switch has forgotten a group's hosts.

mod common;

use common::lan::{HOSTS, Lan, Running, address};
use common::{Place, noise, polycast};
use polycast_testing::{Need, needs, until};
use serde_json::Value;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

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

/// An Open vSwitch in place of the hosts' bridge, which passes groups on to those alone that it knows to be
/// in them.
struct Snooping {
    place: Place,
    daemons: Vec<Child>,
}

const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";

impl Snooping {
    fn new(lan: &Lan) -> Self {
        let mut switch = Snooping { place: Place::new(), daemons: Vec::new() };
        let (database, socket) = (switch.place.path("conf.db"), switch.place.path("db.sock"));
        switch.run(&["ovsdb-tool", "create", &database, SCHEMA]);
        let space = lan.switch();
        let remote = format!("--remote=punix:{socket}");
        switch.begin(&["ip", "netns", "exec", &space, "ovsdb-server", &database, &remote]);
        until("the database is there", || std::path::Path::new(&socket).exists());
        let mut words = String::from(
            "--no-wait -- init -- add-br ovs0 -- set bridge ovs0 datapath_type=netdev mcast_snooping_enable=true \
             other_config:mcast-snooping-disable-flood-unregistered=true",
        );
        for host in 0..HOSTS {
            words += &format!(" -- add-port ovs0 p{host}");
            switch.run(&["ip", "-n", &space, "link", "set", &format!("p{host}"), "nomaster"]);
            // What passes a switch in user space has to be whole.
            let whole = ["ethtool", "-K", "eth0", "tx", "off", "tso", "off", "gso", "off"];
            switch.run(&[&["ip", "netns", "exec", &lan.space(host)], &whole[..]].concat());
        }
        let db = format!("unix:{socket}");
        let words: Vec<&str> = words.split_whitespace().collect();
        switch.run(&[&["ovs-vsctl", &format!("--db={db}")], &words[..]].concat());
        let control = format!("--unixctl={}", switch.place.path("control"));
        switch.begin(&["ip", "netns", "exec", &space, "ovs-vswitchd", &db, &control]);
        until("the switch is there", || std::path::Path::new(&switch.place.path("control")).exists());
        switch
    }

    /// Asks the switch.
    fn ask(&self, words: &[&str]) -> String {
        let mut command = self.command(&["ovs-appctl", "-t", &self.place.path("control")]);
        let answer = command.args(words).stdout(Stdio::piped()).output().unwrap();
        assert!(answer.status.success(), "{words:?}");
        String::from_utf8(answer.stdout).unwrap()
    }

    /// Returns the times in seconds since members of Polycast's groups were heard. The querier's host is not
    /// among them: it hears the others' reports, and keeps back its own.
    fn ages(&self) -> Vec<u64> {
        let shown = self.ask(&["mdb/show", "ovs0"]);
        let rows: Vec<Vec<&str>> = shown.lines().map(|line| line.split_whitespace().collect()).collect();
        let asks = rows.iter().find(|row| row.contains(&"querier")).map(|row| row[0]);
        let members = rows.iter().filter(|row| Some(row[0]) != asks && row[2].starts_with("239.255."));
        members.map(|row| row.last().unwrap().parse().unwrap()).collect()
    }

    /// Forgets all hosts from half a second after the beginning of `meanwhile` on, again and again until it
    /// ends: a host that has joined says so once more within ten seconds, whether asked or not.
    fn forgets<T>(&self, meanwhile: impl FnOnce() -> T) -> T {
        std::thread::scope(|threads| {
            let (_until_here, ended) = mpsc::channel::<()>();
            threads.spawn(move || {
                let mut pause = Duration::from_millis(500);
                while ended.recv_timeout(pause) == Err(mpsc::RecvTimeoutError::Timeout) {
                    self.ask(&["mdb/flush", "ovs0"]);
                    pause = Duration::from_millis(50);
                }
            });
            meanwhile()
        })
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(words[0]);
        command
            .args(&words[1..])
            .env("OVS_RUNDIR", self.place.path(""))
            .env("OVS_LOGDIR", self.place.path(""));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    fn run(&self, words: &[&str]) {
        assert!(self.command(words).status().unwrap().success(), "{words:?}");
    }

    fn begin(&mut self, words: &[&str]) {
        let begun = self.command(words).spawn().unwrap();
        self.daemons.push(begun);
    }
}

impl Drop for Snooping {
    fn drop(&mut self) {
        for daemon in &mut self.daemons {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}

/// Querier of IGMPv2, which asks twice a second; members have half a second to answer.
const QUERIER: &str = "import socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_IGMP)
s.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(sys.argv[1]))
while True:
    s.sendto(bytes([0x11, 5, 0xee, 0xfa, 0, 0, 0, 0]), ('224.0.0.1', 0))
    time.sleep(0.5)";

/// A switch passes multicast on to members that it has heard by IGMPv2, and hears them again as long as a
/// querier asks. It forgets them after 15 s at least, and at once where it is told to: then the rest comes
/// over TCP.
#[test]
fn a_switch_that_snoops_needs_a_querier() {
    let tools = ["ovs-vswitchd", "ethtool", "python3"].map(Need::Tool);
    if !needs(&[&tools[..], &[Need::File(SCHEMA)]].concat()) {
        return;
    }
    let Some(lan) = Lan::new() else { return };
    let switch = Snooping::new(&lan);
    let force = |version: &str| {
        for host in 0..HOSTS {
            let write = format!("echo {version} > /proc/sys/net/ipv4/conf/all/force_igmp_version");
            switch.run(&["ip", "netns", "exec", &lan.space(host), "sh", "-c", &write]);
        }
    };
    // Without a querier hosts are heard when they join, by the version that they are told to speak.
    force("2");
    assert_eq!(fabrics(&lan.deliver(2, &["--from", &address(0)])), ["ip-multicast"; 2]);
    let said = lan.begin(0, &["doctor"]).end().stdout;
    assert!(said.contains("speaks IGMPv2: net.ipv4.conf.all.force_igmp_version says so"), "{said}");
    force("0");
    let ask = ["ip", "netns", "exec", &lan.space(0), "python3", "-c", QUERIER, &address(0)];
    let mut querier = switch.command(&ask).spawn().unwrap();
    let doctor = |args: &[&str]| {
        let document = lan.begin(0, &[&["doctor"], args].concat()).end().json();
        let checks = document["checks"].as_array().unwrap();
        let found = checks.iter().map(|check| check["found"].as_str().unwrap()).collect::<Vec<_>>();
        format!("{}\n{}", found.join("\n"), document["way"].as_str().unwrap())
    };
    let _listener = lan.begin(1, &["doctor", "--listen"]);
    let is_known = ["sends each byte once", "eth0 speaks IGMPv2, as a querier there does", "by IGMPv2\n"];
    until("the doctor sees multicast and the querier", || {
        let said = doctor(&["--querier", "2s"]);
        is_known.iter().all(|words| said.contains(words))
    });
    // It was heard again since it has joined.
    let ages = switch.ages();
    assert!(!ages.is_empty() && ages.iter().all(|age| *age <= 2), "{ages:?}");
    let file = lan.place.file("slow", &noise(2_000_000));
    let rate = ["--rate", "4mbit", "--slow", "wait", "--timeout", "1m"];
    let deliver = |name: &str| {
        let (offer, code) = lan.offer(&file, 2, &rate);
        let accept = |host: usize| {
            let (from, out) = (address(0), lan.place.path(&format!("{name}{host}")));
            lan.begin(host, &["accept", &code, "--from", &from, "--out", &out, "--name", &format!("h{host}")])
        };
        let accepting = [1, 2].map(accept);
        for accepting in accepting {
            let ran = accepting.end();
            assert_eq!(ran.status, 0, "{}", ran.stderr);
        }
        offer.end().json()
    };
    assert_eq!(fabrics(&deliver("known")), ["ip-multicast"; 2]);
    querier.kill().unwrap();
    querier.wait().unwrap();
    // The delivery takes eight times as long as the half second: half of it at least passes in silence.
    let report = switch.forgets(|| deliver("forgotten"));
    assert_eq!(fabrics(&report), ["tcp-chain"; 2], "{report}");
    let said = doctor(&["--to", &address(1)]);
    assert!(said.contains("no multicast passes between these hosts (this one joined"), "{said}");
}
