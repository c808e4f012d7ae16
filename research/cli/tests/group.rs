//! Groups for packets that programs send themselves: made, listed and removed, over restarts of agents and
//! managers, and in labs with programs that know nothing of Polycast. Labs are skipped without root or the
//! programs that they need.

#[path = "../../../crates/polycast/tests/common/mod.rs"]
mod common;

use common::cluster::{Cluster, Daemon, OWN_PORT, socket};
use common::{Ran, command, polycast};
use polycast_testing::{Need, needs, until};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

const PROGRAM: &str = common::PROGRAM;

/// The one group that an agent lists.
fn group_at(cluster: &Cluster, agent: &str) -> Value {
    cluster.await_answer(agent, &["group", "ls"], |groups| groups[0]["address"].is_string())[0].clone()
}

fn why(ran: &Ran) -> String {
    assert_ne!(ran.status, 0, "{}", ran.stdout);
    ran.json()["error"].as_str().unwrap_or_default().to_string()
}

#[test]
fn a_group_is_made_once_and_wrong_ones_are_refused_in_a_sentence() {
    let cluster = Cluster::start(&["a", "b", "c"]);
    let made = cluster.at("a", &["group", "create", "prices", "--to", "b,c", "--rate", "5mbit"]);
    assert_eq!(made.status, 0, "{}", made.stderr);
    let made = made.json();
    assert!(made["address"].as_str().unwrap().starts_with("239.255.64."), "{made}");
    let rest = [&made["name"], &made["fabric"], &made["rate_bps"], &made["members"], &made["away"]];
    let expected = [json!("prices"), json!("ip-multicast"), json!(5_000_000), json!(["b", "c"]), json!([])];
    assert!(rest.into_iter().eq(&expected) && made["port"].is_u64(), "{made}");
    let seen = cluster.at("b", &["group", "ls"]).json();
    assert_eq!(seen, json!([made]), "members see it, too, and at once");
    let status = cluster.await_status("a", |status| status["groups"][0]["name"] == "prices");
    assert_eq!(status["groups"][0]["address"], made["address"]);
    for (at, words, expected) in [
        (
            "a",
            &["create", "prices", "--to", "b"][..],
            "there is a group 'prices' already, made on this host, 'a'",
        ),
        ("c", &["create", "prices", "--to", "b"], "there is a group 'prices' already, made on 'a'"),
        ("a", &["create", "x", "--to", "unknown"], "there is no agent 'unknown'"),
        ("a", &["create", "x", "--to", "b,a"], "'a' is the source and cannot be a receiver"),
        ("a", &["create", "x", "--to", "b", "--fabric", "wormhole"], "there is no fabric 'wormhole' here"),
        ("a", &["create", "x", "--to", "b", "--fabric", "tcp-chain"], "tcp-chain carries no packets that an"),
        ("a", &["create", "../x", "--to", "b"], "'../x' cannot be a group's name: it "),
        ("a", &["create", "", "--to", "b"], "'' cannot be a group's name: it is empty"),
        ("b", &["rm", "prices"], "the group 'prices' was made on 'a': remove it there"),
        ("a", &["rm", "nothing"], "there is no group 'nothing'"),
    ] {
        let ran = cluster.at(at, &[&["group"], words].concat());
        let why = why(&ran);
        assert!(why.contains(expected) && !why.contains('\n'), "{words:?}: {why}");
    }
    let usage = cluster.at("a", &["group", "create", "x", "--to", "all"]);
    assert!(usage.status != 0 && why(&usage).contains("a group names its hosts"), "{}", usage.stdout);
    assert_eq!(cluster.at("a", &["group", "rm", "prices"]).json()["removed"], true);
    for agent in ["a", "b"] {
        cluster.await_answer(agent, &["group", "ls"], |groups| groups == &json!([]));
    }
    cluster.await_answer("a", &["status", "--manager"], |status| status["leases"] == json!([]));
}

#[test]
fn a_group_stays_without_a_member_and_says_so() {
    let mut cluster = Cluster::start(&["a", "b", "c"]);
    let made = cluster.at("a", &["group", "create", "prices", "--to", "b,c"]).json();
    cluster.agents[2].kill();
    let is_away = |groups: &Value| groups[0]["away"] == json!(["c"]);
    let listed = cluster.await_answer("a", &["group", "ls"], is_away);
    assert_eq!((&listed[0]["address"], &listed[0]["members"]), (&made["address"], &json!(["b", "c"])));
    cluster.agents[1].stop(Signal::TERM);
    cluster.await_answer("a", &["group", "ls"], |groups| groups[0]["away"] == json!(["b", "c"]));
    assert_eq!(group_at(&cluster, "a")["address"], made["address"]);
}

/// Several hosts send to one address. One that goes is named; the others go on.
#[test]
fn a_group_names_its_sources_and_stays_without_one() {
    let mut cluster = Cluster::start(&["a", "b", "c"]);
    let words = ["group", "create", "talk", "--to", "a,b,c", "--source", "a,b", "--source", "c"];
    let made = cluster.at("a", &words);
    assert_eq!(made.status, 0, "{}", made.stderr);
    let made = made.json();
    let seen = [&made["source"], &made["sources"], &made["members"], &made["away"]];
    assert!(
        seen.into_iter().eq(&[json!("a"), json!(["a", "b", "c"]), json!(["a", "b", "c"]), json!([])]),
        "{made}"
    );
    assert_eq!(cluster.at("b", &["group", "ls"]).json(), json!([made]));
    let line = polycast(&["group", "ls", "--socket", &socket(&cluster.place, "b")]);
    assert!(line.stdout.contains(", from a, b, c to 3 members"), "{}", line.stdout);
    for (at, words, expected) in [
        ("a", &["--to", "b", "--source", "a,stranger"][..], "there is no agent 'stranger'"),
        ("a", &["--to", "b", "--source", "a", "--source", "a"], "the source 'a' is named twice"),
        ("a", &["--to", "b", "--source", "a,a"], "'a' is named twice"),
        ("a", &["--to", "b", "--source", "all"], "a group names its hosts"),
        ("a", &["--to", "b", "--source", "b,c"], "this host, 'a', is not among the sources 'b', 'c'"),
        ("a", &["--to", "a,b", "--source", "a"], "'a' is the source and cannot be a receiver"),
        (
            "a",
            &["--to", "b", "--source", "a,c", "--fabric", "tcp-chain"],
            "tcp-chain carries no packets that an",
        ),
    ] {
        let ran = cluster.at(at, &[&["group", "create", "x"], words].concat());
        let why = why(&ran);
        assert!(why.contains(expected) && !why.contains('\n'), "{words:?}: {why}");
    }
    let manager = cluster.managers[0].address().to_string();
    cluster.agents[0].kill();
    cluster.agents[0] = Daemon::agent_with(&cluster.place, &manager, "a", OWN_PORT);
    let listed = cluster.await_answer("b", &["group", "ls"], |groups| groups[0]["away"] == json!([]));
    assert_eq!(listed[0], made, "the next run of the agent knows them, too");
    cluster.agents[2].kill();
    let listed = cluster.await_answer("a", &["group", "ls"], |groups| groups[0]["away"] == json!(["c"]));
    assert_eq!((&listed[0]["address"], &listed[0]["sources"]), (&made["address"], &made["sources"]));
}

/// Members and sources come and go; the address stays, and what cannot be is refused and changes nothing.
#[test]
fn a_group_changes_and_keeps_its_address() {
    let mut cluster = Cluster::start(&["a", "b", "c", "d"]);
    let made = cluster.at("a", &["group", "create", "talk", "--to", "a,b", "--source", "a,b"]).json();
    let changed = cluster.at("a", &["group", "change", "talk", "--add", "c", "--source", "c,d"]);
    assert_eq!(changed.status, 0, "{}", changed.stderr);
    let changed = changed.json();
    assert_eq!((&changed["address"], &changed["port"]), (&made["address"], &made["port"]));
    assert_eq!(changed["members"], json!(["a", "b", "c"]));
    assert_eq!(changed["sources"], json!(["a", "b", "c", "d"]));
    assert_eq!(cluster.at("d", &["group", "ls"]).json(), json!([changed]));
    for (words, expected) in [
        (&["talk", "--add", "b"][..], "'b' is a receiver of this transfer already"),
        (&["talk", "--source", "b"], "'b' is a source of this group already"),
        (&["talk", "--source", "a"], "'a' is a source of this group already"),
        (&["talk", "--remove", "stranger"], "'stranger' is not a receiver of this transfer"),
        (&["talk", "--add", "stranger"], "there is no agent 'stranger'"),
        (&["talk", "--source", "stranger"], "there is no agent 'stranger'"),
        (&["talk", "--add", "d", "--remove", "d"], "'d' cannot come and go at the same time"),
        (&["talk", "--remove", "a,b,c"], "no receiver is named"),
        (&["nothing", "--add", "d"], "there is no group 'nothing' that was made on this host"),
    ] {
        let why = why(&cluster.at("a", &[&["group", "change"], words].concat()));
        assert!(why.contains(expected) && !why.contains('\n'), "{words:?}: {why}");
    }
    assert_ne!(cluster.at("a", &["group", "change", "talk"]).status, 0, "nothing is to change");
    assert_eq!(cluster.at("b", &["group", "ls"]).json(), json!([changed]));
    // Hosts that neither receive nor send any more.
    let fewer = cluster.at("a", &["group", "change", "talk", "--remove", "c,d,b", "--add", "d"]);
    assert_ne!(fewer.status, 0, "d would come and go");
    let fewer = cluster.at("a", &["group", "change", "talk", "--remove", "b,d"]).json();
    assert_eq!((&fewer["members"], &fewer["sources"]), (&json!(["a", "c"]), &json!(["a", "c"])));
    // The next run of the agent knows it.
    let manager = cluster.managers[0].address().to_string();
    cluster.agents[0].kill();
    cluster.agents[0] = Daemon::agent_with(&cluster.place, &manager, "a", OWN_PORT);
    let listed = cluster.await_answer("c", &["group", "ls"], |groups| groups[0]["away"] == json!([]));
    assert_eq!(listed[0], fewer);
}

#[test]
fn a_group_without_a_free_path_is_refused_and_leaves_nothing() {
    let cluster = Cluster::with("[ip-multicast]\npool = '239.255.66.9/32'\nport = 7413\n", &["a", "b"]);
    assert_eq!(cluster.at("a", &["group", "create", "first", "--to", "b"]).status, 0);
    let why = why(&cluster.at("a", &["group", "create", "second", "--to", "b"]));
    assert!(why.contains("no path is free for this group now"), "{why}");
    assert_eq!(cluster.at("a", &["group", "ls"]).json().as_array().unwrap().len(), 1);
    assert_eq!(cluster.at("a", &["group", "rm", "first"]).status, 0);
    assert_eq!(cluster.at("a", &["group", "create", "second", "--to", "b"]).status, 0);
}

/// The address stays when the agent is killed or ends, and when the manager is killed.
#[test]
fn a_group_outlives_its_agent_and_its_manager() {
    let mut cluster = Cluster::start(&["a", "b"]);
    let manager = cluster.managers[0].address().to_string();
    let made = cluster.at("a", &["group", "create", "prices", "--to", "b", "--rate", "1mbit"]).json();
    let lease = |cluster: &Cluster| {
        let status =
            cluster.await_answer("b", &["status", "--manager"], |status| status["leases"][0].is_object());
        status["leases"][0]["lease"].clone()
    };
    let before = lease(&cluster);
    for kills in [true, false] {
        match kills {
            true => cluster.agents[0].kill(),
            false => drop(cluster.agents[0].stop(Signal::TERM)),
        }
        cluster.agents[0] = Daemon::agent_with(&cluster.place, &manager, "a", OWN_PORT);
        let listed = cluster.await_answer("b", &["group", "ls"], |groups| groups[0]["address"].is_string());
        assert_eq!(listed[0], made, "killed: {kills}");
        assert_eq!(lease(&cluster), before, "the path is the same one, killed: {kills}");
    }
    cluster.managers[0].kill();
    cluster.managers[0] = Daemon::manager(&manager, &[]);
    let listed = cluster.await_answer("b", &["group", "ls"], |groups| groups[0]["address"].is_string());
    assert_eq!((&listed[0], lease(&cluster)), (&made, before));
    assert_eq!(cluster.at("a", &["group", "rm", "prices"]).status, 0);
    cluster.await_answer("b", &["status", "--manager"], |status| status["leases"] == json!([]));
    cluster.agents[0].stop(Signal::TERM);
    cluster.agents[0] = Daemon::agent_with(&cluster.place, &manager, "a", OWN_PORT);
    cluster.await_answer("a", &["group", "ls"], |groups| groups == &json!([]));
}

/// Joins a group and prints what comes, as any program would.
const HEAR: &str = "import socket, struct, sys
ear = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
ear.bind((sys.argv[1], 5001))
own = socket.inet_aton(sys.argv[2])
ear.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton(sys.argv[1]) + own)
print('joined', flush=True)
while True:
    print(ear.recv(2048).decode(), flush=True)
";
/// Sends one packet for each word.
const SAY: &str = "import socket, sys, time
mouth = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
mouth.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(sys.argv[2]))
for word in sys.argv[3:]:
    mouth.sendto(word.encode(), (sys.argv[1], 5001))
    time.sleep(0.002)
";
const COUNT: usize = 100;

/// A lab that is up until this is dropped.
struct Lab(String);

impl Lab {
    fn up(spec: &str) -> Self {
        static LABS: AtomicUsize = AtomicUsize::new(0);
        let number = LABS.fetch_add(1, Ordering::Relaxed);
        let kind = spec.split(':').next().unwrap_or_default();
        let name = format!("group-{kind}-{}-{number}", std::process::id());
        let made = polycast(&["lab", "up", spec, "--name", &name]);
        assert_eq!(made.status, 0, "{}", made.stderr);
        Lab(name)
    }

    fn run(&self, host: &str, words: &[&str]) -> Ran {
        polycast(&[&["lab", "exec", &self.0, host, "--"], words].concat())
    }

    fn group(&self, words: &[&str]) -> Value {
        let ran = self.run("h0", &[&[PROGRAM, "group"], words, &["--json"]].concat());
        assert_eq!(ran.status, 0, "{}{}", ran.stdout, ran.stderr);
        ran.json()
    }

    /// Kills the agent of a host, and no rack's agent there.
    fn kill_agent(&self, host: &str) {
        let (inside, name) = (format!("/{}/inside/", self.0), format!("--name {host} "));
        let pids = std::fs::read_dir("/proc").unwrap().flatten().filter(|entry| {
            let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            line.contains(&inside) && line.contains(&name)
        });
        let pids: Vec<i32> =
            pids.filter_map(|entry| entry.file_name().to_string_lossy().parse().ok()).collect();
        assert_eq!(pids.len(), 1, "{host}");
        rustix::process::kill_process(rustix::process::Pid::from_raw(pids[0]).unwrap(), Signal::KILL)
            .unwrap();
    }

    /// The packets that a leaf of two hosts has sent by each of its ports up.
    fn sent_up(&self, leaf: &str) -> [u64; 2] {
        ["p2", "p3"].map(|port| {
            let words = ["ip", "netns", "exec", leaf, "ip", "-j", "-s", "link", "show", port];
            self.run("network", &words).json()[0]["stats64"]["tx"]["packets"].as_u64().unwrap()
        })
    }

    fn own_address(&self, host: &str) -> String {
        let listed = self.run(host, &["ip", "-j", "-4", "address", "show", "eth0"]).json();
        listed[0]["addr_info"][0]["local"].as_str().unwrap().to_string()
    }

    fn say(&self, address: &str, words: &[String]) {
        self.say_from("h0", address, words);
    }

    fn say_from(&self, host: &str, address: &str, words: &[String]) {
        let own = self.own_address(host);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let ran = self.run(host, &[&["python3", "-c", SAY, address, &own], &words[..]].concat());
        assert_eq!(ran.status, 0, "{}", ran.stderr);
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        polycast(&["lab", "down", &self.0]);
    }
}

/// A program that hears a group until this is dropped.
struct Ear {
    child: Child,
    heard: Arc<Mutex<Vec<String>>>,
}

impl Ear {
    fn begin(lab: &Lab, host: &str, address: &str) -> Self {
        let own = lab.own_address(host);
        let mut command = command(&["lab", "exec", &lab.0, host, "--", "python3", "-c", HEAR, address, &own]);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "joined");
        let heard: Arc<Mutex<Vec<String>>> = Arc::default();
        let hears = Arc::clone(&heard);
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                hears.lock().unwrap_or_else(PoisonError::into_inner).push(line);
            }
        });
        Ear { child, heard }
    }

    fn heard(&self) -> Vec<String> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Ear {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A lab, of which the closed ones have Open vSwitch; none where this machine cannot have it.
fn lab_of(spec: &str, is_closed: bool) -> Option<Lab> {
    let tools = ["ip", "tc", "python3"].into_iter();
    let tools = tools.chain(if is_closed { &["ovs-vswitchd", "ethtool"][..] } else { &[] }.iter().copied());
    let needed: Vec<Need> = [Need::Root, Need::Namespaces].into_iter().chain(tools.map(Need::Tool)).collect();
    needs(&needed).then(|| Lab::up(spec))
}

/// Every member hears every packet of an unchanged program, others hear nothing although they have joined,
/// and after the removal no host hears anything. An ordinary switch forwards to all that have joined.
fn unchanged_programs(spec: &str, fabric: &str, (members, other): (&[&str], &str), is_closed: bool) {
    let Some(lab) = lab_of(spec, is_closed) else { return };
    let made = lab.group(&["create", "prices", "--to", &members.join(","), "--fabric", fabric]);
    assert_eq!(made["fabric"], fabric, "{made}");
    let address = made["address"].as_str().unwrap();
    let ears: Vec<Ear> = members.iter().map(|host| Ear::begin(&lab, host, address)).collect();
    let stranger = is_closed.then(|| Ear::begin(&lab, other, address));
    let words =
        |from: usize| (from..from + COUNT).map(|number| format!("packet-{number}")).collect::<Vec<_>>();
    let sent = words(0);
    lab.say(address, &sent);
    for ear in &ears {
        until("all packets are there", || ear.heard().len() >= COUNT);
        assert_eq!(ear.heard(), sent, "each once, and in order");
    }
    let rules = || {
        let script = format!(
            "for socket in /run/polycast-lab/{}/inside/ovs/*/tor*.mgmt; do \
             ovs-ofctl -O OpenFlow13 dump-flows unix:$socket; done",
            lab.0
        );
        let listed = lab.run("network", &["sh", "-c", &script]);
        assert_eq!(listed.status, 0, "{}", listed.stderr);
        listed.stdout.matches(&format!("nw_dst={address} ")).count()
            + listed.stdout.matches(&format!("nw_dst={address},")).count()
    };
    assert!(!is_closed || rules() > 0, "while it is there");
    lab.group(&["rm", "prices"]);
    assert_eq!(lab.group(&["ls"]), json!([]));
    if let Some(stranger) = stranger {
        assert_eq!(stranger.heard(), [""; 0], "not a member");
        until("the switches have no rule of it", || rules() == 0);
        lab.say(address, &words(COUNT));
        // What was still to come would be there by now: packets take a fraction of a millisecond here.
        thread::sleep(Duration::from_millis(500));
        assert!(ears.iter().all(|ear| ear.heard() == sent), "it was removed");
    }
}

#[test]
fn unchanged_programs_send_over_an_ordinary_switch() {
    unchanged_programs("bridge:4", "ip-multicast", (&["h1", "h3"], "h2"), false);
}

#[test]
fn unchanged_programs_send_over_splitters() {
    unchanged_programs(
        "shufflecast:2,2,hosts=1,patience-ms=60000",
        "shufflecast",
        (&["h1", "h4", "h7"], "h5"),
        true,
    );
}

#[test]
fn unchanged_programs_send_over_circuits() {
    unchanged_programs(
        "blast:racks=4,hosts=1,fanout=2,rate=50mbit,patience-ms=60000",
        "ocs",
        (&["h1", "h2"], "h3"),
        true,
    );
}

/// Programs of two hosts send to one address; every member hears each packet of both once, but its own.
fn several_sources(spec: &str, fabric: &str, sources: [&str; 2], members: &[&str], is_closed: bool) {
    let Some(lab) = lab_of(spec, is_closed) else { return };
    let (from, to) = (sources.join(","), members.join(","));
    let made = lab.group(&["create", "talk", "--to", &to, "--source", &from, "--fabric", fabric]);
    assert_eq!((&made["fabric"], &made["sources"]), (&json!(fabric), &json!(sources)), "{made}");
    let address = made["address"].as_str().unwrap();
    let ears: Vec<Ear> = members.iter().map(|host| Ear::begin(&lab, host, address)).collect();
    for source in sources {
        let words: Vec<String> = (0..COUNT).map(|number| format!("{source}-{number}")).collect();
        lab.say_from(source, address, &words);
        for (ear, member) in ears.iter().zip(members) {
            let from_it = || -> Vec<String> {
                let begins = format!("{source}-");
                ear.heard().into_iter().filter(|word| word.starts_with(&begins)).collect()
            };
            // A host hears its own packets from its own kernel, before any network.
            until("all packets are there", || from_it().len() >= COUNT);
            assert_eq!(from_it(), words, "{member} hears each packet of {source} once, and in order");
        }
    }
    // What comes back late would be there by now.
    thread::sleep(Duration::from_millis(300));
    assert!(ears.iter().all(|ear| ear.heard().len() == 2 * COUNT), "each once");
    lab.group(&["rm", "talk"]);
}

#[test]
fn several_sources_send_over_an_ordinary_switch() {
    several_sources("bridge:4", "ip-multicast", ["h0", "h2"], &["h1", "h2", "h3"], false);
}

#[test]
fn several_sources_send_over_splitters() {
    let spec = "shufflecast:2,2,hosts=1,patience-ms=60001";
    several_sources(spec, "shufflecast", ["h0", "h5"], &["h1", "h4", "h5", "h7"], true);
}

#[test]
fn several_sources_send_over_circuits() {
    let spec = "blast:racks=4,hosts=1,fanout=2,ports=2,splitters=6,rate=50mbit,patience-ms=60001";
    several_sources(spec, "ocs", ["h0", "h3"], &["h1", "h2", "h3"], true);
}

/// A group over labels: its switches are programs in the kernel, which know what a program's packets are.
const LABELS: &str = "orca:4";

/// Words that an ear has heard from a source.
fn from(ear: &Ear, source: &str) -> Vec<String> {
    let begins = format!("{source}-");
    ear.heard().into_iter().filter(|word| word.starts_with(&begins)).collect()
}

/// Every one of these members sends, and all of them hear each word once, in the order in which it was sent.
fn all_hear_all(lab: &Lab, address: &str, ears: &BTreeMap<&str, Ear>, senders: &[&str], first: usize) {
    for sender in senders {
        let words: Vec<String> = (first..first + COUNT).map(|number| format!("{sender}-{number}")).collect();
        lab.say_from(sender, address, &words);
        for (member, ear) in ears {
            let heard = || from(ear, sender).into_iter().filter(|word| words.contains(word)).count();
            until(&format!("{member} hears {sender}"), || heard() >= COUNT);
        }
    }
    // What comes twice would be there by now.
    thread::sleep(Duration::from_millis(300));
    for ((member, ear), sender) in ears.iter().flat_map(|ear| senders.iter().map(move |sender| (ear, sender)))
    {
        let heard = from(ear, sender);
        let expected: Vec<String> =
            (first..first + COUNT).map(|number| format!("{sender}-{number}")).collect();
        assert!(heard.ends_with(&expected), "{member} hears {sender} in order: {heard:?}");
        let mut each: Vec<&String> = heard.iter().collect();
        each.sort_unstable();
        each.dedup();
        assert_eq!(each.len(), heard.len(), "{member} hears each packet of {sender} once");
    }
}

/// Programs on all members of a session over labels send and hear, unchanged. No other host hears them, nor
/// do members hear another host, a member that dies changes nothing for others, and a link that breaks leads
/// to other labels.
#[test]
fn every_member_of_a_session_sends_over_labels() {
    let Some(lab) = lab_of(LABELS, false) else { return };
    let members = ["h0", "h1", "h5", "h9"];
    let all = members.join(",");
    let made = lab.group(&["create", "talk", "--to", &all, "--source", &all, "--fabric", "orca"]);
    assert_eq!((&made["fabric"], &made["sources"]), (&json!("orca"), &json!(members)), "{made}");
    let address = made["address"].as_str().unwrap();
    let mut ears: BTreeMap<&str, Ear> =
        members.iter().map(|host| (*host, Ear::begin(&lab, host, address))).collect();
    // One in a rack with a member, and one in a rack without.
    let strangers = ["h8", "h2"].map(|host| Ear::begin(&lab, host, address));
    all_hear_all(&lab, address, &ears, &members, 0);
    for stranger in ["h8", "h2"] {
        lab.say_from(stranger, address, &["intruder-0".to_string()]);
    }
    thread::sleep(Duration::from_millis(300));
    assert!(ears.values().all(|ear| from(ear, "intruder").is_empty()), "it is none of the sources");
    for (stranger, ear) in ["h8", "h2"].into_iter().zip(&strangers) {
        let others: Vec<String> =
            ear.heard().into_iter().filter(|word| !word.starts_with("intruder-")).collect();
        assert!(others.is_empty(), "{stranger} is no member: {others:?}");
    }
    // The link by which a rack sends breaks: its hosts send by another label, and are sent to by others.
    let before = lab.sent_up("leaf0");
    lab.say_from("h0", address, &(0..COUNT).map(|number| format!("probe-{number}")).collect::<Vec<_>>());
    let link = usize::from(lab.sent_up("leaf0")[1] - before[1] >= COUNT as u64);
    let down = ["ip", "netns", "exec", "leaf0", "ip", "link", "set", ["p2", "p3"][link], "down"];
    assert_eq!(lab.run("network", &down).status, 0);
    for (sender, receiver) in [("h0", "h5"), ("h5", "h0")] {
        let word = format!("around-{sender}");
        until("another label leads around", || {
            lab.say_from(sender, address, std::slice::from_ref(&word));
            ears[receiver].heard().contains(&word)
        });
    }
    all_hear_all(&lab, address, &ears, &members, COUNT);
    assert_eq!(lab.group(&["ls"])[0]["address"], made["address"]);
    // One comes, in a rack of its own, and sends and hears as the others do.
    let changed = lab.group(&["change", "talk", "--add", "h14", "--source", "h14"]);
    assert_eq!(changed["address"], made["address"], "{changed}");
    ears.insert("h14", Ear::begin(&lab, "h14", address));
    all_hear_all(&lab, address, &ears, &["h0", "h1", "h5", "h9", "h14"], 2 * COUNT);
    // Another goes, whose host hears nothing more and is not heard.
    lab.group(&["change", "talk", "--remove", "h1"]);
    let gone = ears.remove("h1").unwrap();
    let before = gone.heard().len();
    all_hear_all(&lab, address, &ears, &["h0", "h5", "h14"], 3 * COUNT);
    assert_eq!(gone.heard().len(), before, "it is out");
    lab.say_from("h1", address, &["gone-0".to_string()]);
    thread::sleep(Duration::from_millis(300));
    assert!(ears.values().all(|ear| from(ear, "gone").is_empty()), "it sends no more");
    // The program and the agent of a member die.
    ears.remove("h9");
    lab.kill_agent("h9");
    until("one is away", || lab.group(&["ls"])[0]["away"] == json!(["h9"]));
    all_hear_all(&lab, address, &ears, &["h0", "h5", "h14"], 4 * COUNT);
    lab.group(&["rm", "talk"]);
    lab.say_from("h0", address, &["late-0".to_string()]);
    thread::sleep(Duration::from_millis(300));
    let late = ears.iter().filter(|(host, ear)| **host != "h0" && !from(ear, "late").is_empty());
    assert_eq!(late.count(), 0, "it was removed");
}

#[test]
fn unchanged_programs_send_over_labels() {
    let Some(lab) = lab_of(LABELS, false) else { return };
    let members = ["h1", "h6", "h15"];
    let made = lab.group(&["create", "prices", "--to", &members.join(",")]);
    assert_eq!(made["fabric"], "orca", "{made}");
    let address = made["address"].as_str().unwrap();
    let ears: BTreeMap<&str, Ear> =
        members.iter().map(|host| (*host, Ear::begin(&lab, host, address))).collect();
    let stranger = Ear::begin(&lab, "h7", address);
    all_hear_all(&lab, address, &ears, &["h0"], 0);
    lab.say_from("h1", address, &["h1-0".to_string()]);
    thread::sleep(Duration::from_millis(300));
    assert!(stranger.heard().is_empty() && from(&ears["h6"], "h1").is_empty(), "h1 is no source");
    lab.group(&["rm", "prices"]);
}
