//! Several managers and a real etcd: the leader is killed in mid-transfer, again and again. Transfers go on, requests
//! that wait are kept, and no path is lent twice.
//!
//! `POLYCAST_RUNS` says how often (default 1).

mod common;
#[path = "../../manager/tests/common/etcd.rs"]
mod etcd;

use common::{Place, Ran, command, polycast};
use serde_json::Value;
use std::fs;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// A process that ends with the test.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Cluster {
    place: Place,
    etcd: String,
    managers: Vec<(String, Daemon)>,
    _agents: Vec<Daemon>,
    _etcd: etcd::Etcd,
}

impl Cluster {
    fn start() -> Option<Self> {
        let place = Place::new();
        let (daemon, etcd) = etcd::start(&place.path("etcd"))?;
        // One address: a second transfer has to wait for the first one.
        let [.., third, last] = std::process::id().to_be_bytes();
        let settings = format!(
            "fabrics = ['ip-multicast']\n[ip-multicast]\npool = '239.254.{third}.{last}/32'\nport = 17412\nrate = '400mbit'\n"
        );
        place.file("manager.toml", settings.as_bytes());
        let addresses: Vec<String> = (0..3).map(|_| format!("127.0.0.1:{}", etcd::free_port())).collect();
        let managers =
            addresses.iter().map(|address| (address.clone(), start_manager(&place, &etcd, address)));
        let managers = managers.collect();
        let all = addresses.join(",");
        let agent = |name: &&str| {
            let (store, socket) = (place.path(&format!("store-{name}")), place.path(&format!("{name}.sock")));
            let arguments = [
                "agent",
                "--manager",
                &all,
                "--name",
                name,
                "--interface",
                "lo",
                "--store",
                &store,
                "--socket",
                &socket,
            ];
            Daemon(quiet(&arguments))
        };
        let agents = ["a", "b", "c"].iter().map(agent).collect();
        let cluster = Cluster { place, etcd, managers, _agents: agents, _etcd: daemon };
        cluster.await_status("a", |s| s["peers"].as_array().is_some_and(|p| p.len() == 3));
        Some(cluster)
    }

    fn await_status(&self, agent: &str, is: impl Fn(&Value) -> bool) -> Value {
        let begun = Instant::now();
        let socket = self.place.path(&format!("{agent}.sock"));
        loop {
            let ran = polycast(&["status", "--socket", &socket, "--json"]);
            let status: Value = serde_json::from_str(&ran.stdout).unwrap_or_default();
            if is(&status) {
                return status;
            }
            assert!(begun.elapsed() < Duration::from_secs(30), "{status} {}", ran.stderr);
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn send(&self, agent: &str, file: &str, id: &str) -> Child {
        let socket = self.place.path(&format!("{agent}.sock"));
        let to = if agent == "a" { "b,c" } else { "a,c" };
        command(&["send", file, "--to", to, "--id", id, "--socket", &socket, "--json"]).spawn().unwrap()
    }

    /// Kills the leader; gives its address.
    fn kill_leader(&mut self) -> String {
        let leader = self.await_status("a", |s| s["manager_connected"] == true)["manager"].clone();
        let leader = leader.as_str().unwrap().to_string();
        let (_, daemon) = self.managers.iter_mut().find(|(address, _)| *address == leader).unwrap();
        daemon.0.kill().unwrap();
        daemon.0.wait().unwrap();
        leader
    }

    /// Starts a manager again.
    fn start_again(&mut self, address: &str) {
        let (_, daemon) = self.managers.iter_mut().find(|(known, _)| known == address).unwrap();
        *daemon = start_manager(&self.place, &self.etcd, address);
    }
}

fn start_manager(place: &Place, etcd: &str, address: &str) -> Daemon {
    let config = place.path("manager.toml");
    Daemon(quiet(&["manager", "--config", &config, "--listen", address, "--etcd", etcd]))
}

fn quiet(arguments: &[&str]) -> Child {
    command(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

#[test]
fn killed_leaders_lose_no_transfer_and_no_request() {
    let Some(mut cluster) = Cluster::start() else { return };
    let kills = std::env::var("POLYCAST_RUNS").map_or(1, |text| text.parse::<u32>().unwrap());
    let big = cluster.place.path("big");
    fs::File::create(&big).unwrap().set_len(60_000_000).unwrap();
    let (mut noticed, mut gaps) = (Vec::new(), Vec::new());
    for round in 0..kills {
        let (first, second) = (format!("{}", 2 * round + 1), format!("{}", 2 * round + 2));
        let running = cluster.send("a", &big, &first);
        cluster.await_status("a", |s| s["transfers"][0]["path"]["fabric"] == "ip-multicast");
        let waiting = cluster.send("b", &big, &second);
        cluster.await_status("b", |s| {
            s["transfers"].as_array().is_some_and(|all| all.iter().any(|t| t["waiting"]["before"] == 0))
        });
        let killed = cluster.kill_leader();
        let begun = Instant::now();
        cluster.await_status("b", |s| s["manager_connected"] == false || s["manager"] != killed.as_str());
        noticed.push(begun.elapsed());
        cluster.await_status("b", |s| s["manager_connected"] == true && s["manager"] != killed.as_str());
        gaps.push(begun.elapsed());
        cluster.start_again(&killed);
        for (name, child) in [("running", running), ("waiting", waiting)] {
            let ran: Ran = child.wait_with_output().unwrap().into();
            assert_eq!(ran.status, 0, "round {round}, the {name} one: {} {}", ran.stdout, ran.stderr);
            let report = ran.json();
            let receivers = report["receivers"].as_array().unwrap();
            assert!(receivers.len() == 2 && receivers.iter().all(|r| r["verified"] == true), "{report}");
            assert!(report["path_lost"].is_null(), "{report}");
        }
        for (id, agents) in [(&first, ["b", "c"]), (&second, ["a", "c"])] {
            for agent in agents {
                let socket = cluster.place.path(&format!("{agent}.sock"));
                assert_eq!(polycast(&["rm", id, "--socket", &socket]).status, 0);
            }
        }
    }
    for (what, times) in [("noticed after", &mut noticed), ("back at a leader after", &mut gaps)] {
        times.sort();
        let (least, median, most) = (times[0], times[times.len() / 2], times[times.len() - 1]);
        println!("{what} {least:?} to {most:?}, median {median:?}");
    }
    println!("{kills} of {kills} leaders killed without a loss");
}
