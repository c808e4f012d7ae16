//! Two programs of different versions at one network: what one sends the other gets, or a sentence says that
//! they have to be the same.
//!
//! `POLYCAST_PEER` names the other program, such as that of the release before this one; what it does not
//! understand must be refused in that sentence. Without it the other program is a copy of this one that says
//! the next minor version of itself, and everything must be delivered.

mod common;

use common::cluster::{Cluster, Daemon, OWN_PORT, socket};
use common::{Place, Ran, Talking, command, end, noise};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command};

/// Sentence of each end that meets a version which it does not understand.
const SENTENCE: &str = "install the same on both";

/// A pair of programs.
struct Pair {
    peer: String,
    is_older: bool,
}

impl Pair {
    fn new(place: &Place) -> Self {
        if let Ok(peer) = std::env::var("POLYCAST_PEER") {
            return Pair { peer, is_older: true };
        }
        let own = env!("CARGO_PKG_VERSION");
        let mut parts = own.split('.').map(|part| part.parse::<u32>().unwrap());
        let [major, minor, patch] = std::array::from_fn(|_| parts.next().unwrap());
        let next = format!("{major}.{}.{patch}", if minor % 10 == 9 { minor - 1 } else { minor + 1 });
        assert_eq!(next.len(), own.len(), "it takes the place of the version in the program");
        let mut program = fs::read(env!("CARGO_BIN_EXE_polycast")).unwrap();
        for at in 0..program.len() - own.len() {
            if program[at..].starts_with(own.as_bytes()) {
                program[at..at + own.len()].copy_from_slice(next.as_bytes());
            }
        }
        let peer = place.file("peer", &program);
        fs::set_permissions(&peer, fs::Permissions::from_mode(0o755)).unwrap();
        let said = Command::new(&peer).arg("--version").output().unwrap();
        assert!(String::from_utf8_lossy(&said.stdout).contains(&next), "it says another version of itself");
        Pair { peer, is_older: false }
    }

    /// A command of this program, or of the other one.
    fn command(&self, is_peer: bool, arguments: &[&str]) -> Command {
        let usual = command(arguments);
        if !is_peer {
            return usual;
        }
        let mut peer = Command::new(&self.peer);
        peer.args(arguments).stdin(std::process::Stdio::null());
        peer.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        for (name, value) in usual.get_envs() {
            assert!(value.is_none(), "variables are only taken away");
            peer.env_remove(name);
        }
        peer
    }

    fn begin(&self, is_peer: bool, arguments: &[&str]) -> Child {
        self.command(is_peer, arguments).spawn().unwrap()
    }

    /// Checks that something was done; or, between versions that are really different, was refused in the
    /// sentence.
    fn is_done(&self, what: &str, ran: &Ran) -> bool {
        let is_refused = self.is_older && ran.status == 1 && ran.stderr.contains(SENTENCE);
        assert!(ran.status == 0 || is_refused, "{what}: {}{}", ran.stdout, ran.stderr);
        ran.status == 0
    }
}

#[test]
fn an_offer_of_one_version_is_accepted_by_the_other() {
    let place = Place::new();
    let pair = Pair::new(&place);
    let file = place.file("f", &noise(3_000_000));
    for offers in [false, true] {
        let out = place.path(&format!("out-{offers}"));
        let words = ["offer", &file, "--receivers", "1", "--interface", "lo", "--json"];
        let offer = Talking::of(pair.begin(offers, &words));
        let code = offer.first_event()["code"].as_str().unwrap().to_string();
        let words = ["accept", &code, "--interface", "lo", "--out", &out, "--timeout", "60s"];
        let accepted = end(pair.begin(!offers, &words));
        if pair.is_done("accept", &accepted) {
            assert_eq!(offer.end().status, 0);
            assert_eq!(fs::read(&out).unwrap(), fs::read(&file).unwrap());
        }
    }
}

#[test]
fn daemons_and_commands_of_both_versions_work_together() {
    let place = Place::new();
    let pair = Pair::new(&place);
    for leads in [false, true] {
        let place = Place::new();
        let manager = ["manager", "--listen", "127.0.0.1:0"];
        let manager = Daemon::begin(pair.command(leads, &manager));
        let address = manager.address().to_string();
        let mut cluster = Cluster { managers: vec![manager], agents: Vec::new(), place };
        for (name, is_peer) in [("a", false), ("b", true)] {
            let (store, socket) =
                (cluster.place.path(&format!("store-{name}")), socket(&cluster.place, name));
            let words = ["agent", "--manager", &address, "--name", name, "--interface", "lo"];
            let local = ["--store", &store, "--socket", &socket];
            let agent = pair.command(is_peer, &[&words[..], &local, OWN_PORT].concat());
            cluster.agents.push(Daemon::begin(agent));
        }
        let both = |s: &serde_json::Value| s["peers"].as_array().is_some_and(|peers| peers.len() == 2);
        if pair.is_older {
            // Where one of them is turned away, its status says so in the sentence.
            let ours = if leads { "a" } else { "b" };
            let is_away =
                |s: &serde_json::Value| s["manager_error"].as_str().is_some_and(|e| e.contains(SENTENCE));
            let is_clear = |s: &serde_json::Value| is_away(s) || both(s);
            if is_away(&cluster.await_status(ours, is_clear)) {
                continue;
            }
        }
        cluster.await_status("a", both);
        for (id, source, receiver) in [("1", "a", "b"), ("2", "b", "a")] {
            let file = cluster.place.file(&format!("f{id}"), &noise(2_000_000 + source.len()));
            // The command is of the one version, and the agent that it asks of the other.
            let socket = socket(&cluster.place, source);
            let send = ["send", &file, "--to", receiver, "--id", id, "--socket", &socket];
            let sent = end(pair.begin(source == "a", &send));
            pair.is_done("send", &sent);
            let out = cluster.place.path(&format!("got{id}"));
            let got = cluster.at(receiver, &["get", id, "--out", &out]);
            assert_eq!(got.status, 0, "{}", got.stderr);
            assert_eq!(fs::read(&out).unwrap(), fs::read(&file).unwrap());
        }
        let nodes = cluster.at("a", &["nodes"]).json();
        let text = nodes.to_string();
        assert!(text.contains(env!("CARGO_PKG_VERSION")), "each node's version is named: {text}");
    }
}
