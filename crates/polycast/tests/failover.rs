//! Several managers and a real etcd: the leader is killed in mid-transfer, again and again. Transfers go on, requests
//! that wait are kept, and no path is lent twice.
//!
//! `POLYCAST_RUNS` says how often (default 1).

mod common;
#[path = "../../manager/tests/common/etcd.rs"]
mod etcd;

use common::cluster::{Cluster, Daemon};
use common::{Place, end};
use std::time::Instant;

/// A cluster with three managers.
struct Managers {
    cluster: Cluster,
    etcd: String,
    config: String,
    _etcd: etcd::Etcd,
}

impl Managers {
    fn start() -> Option<Self> {
        let place = Place::new();
        let (daemon, etcd) = etcd::start(&place.path("etcd"))?;
        // One address: a second transfer has to wait for the first one.
        let [.., third, last] = std::process::id().to_be_bytes();
        let settings = format!(
            "fabrics = ['ip-multicast']\n[ip-multicast]\npool = '239.254.{third}.{last}/32'\nport = 17412\nrate = '400mbit'\n"
        );
        let config = place.file("manager.toml", settings.as_bytes());
        let manager = |_| {
            let address = format!("127.0.0.1:{}", etcd::free_port());
            Daemon::manager(&address, &["--config", &config, "--etcd", &etcd])
        };
        let managers = (0..3).map(manager).collect();
        let cluster = Cluster::of(place, managers, &["a", "b", "c"]);
        Some(Managers { cluster, etcd, config, _etcd: daemon })
    }

    /// Kills the leader; gives its address.
    fn kill_leader(&mut self) -> String {
        let leader = self.cluster.await_status("a", |s| s["manager_connected"] == true)["manager"].clone();
        let leader = leader.as_str().unwrap().to_string();
        self.manager(&leader).kill();
        leader
    }

    /// Starts a manager again.
    fn start_again(&mut self, address: &str) {
        let again = Daemon::manager(address, &["--config", &self.config, "--etcd", &self.etcd]);
        *self.manager(address) = again;
    }

    fn manager(&mut self, address: &str) -> &mut Daemon {
        self.cluster.managers.iter_mut().find(|manager| manager.address() == address).unwrap()
    }
}

#[test]
fn killed_leaders_lose_no_transfer_and_no_request() {
    let Some(mut managers) = Managers::start() else { return };
    let kills = std::env::var("POLYCAST_RUNS").map_or(1, |text| text.parse::<u32>().unwrap());
    let big = managers.cluster.big(60_000_000);
    let (mut noticed, mut gaps) = (Vec::new(), Vec::new());
    for round in 0..kills {
        let (first, second) = (format!("{}", 2 * round + 1), format!("{}", 2 * round + 2));
        let cluster = &managers.cluster;
        let running = cluster.begin("a", &["send", &big, "--to", "b,c", "--id", &first]);
        cluster.await_status("a", |s| s["transfers"][0]["path"]["fabric"] == "ip-multicast");
        let waiting = cluster.begin("b", &["send", &big, "--to", "a,c", "--id", &second]);
        cluster.await_status("b", |s| {
            s["transfers"].as_array().is_some_and(|all| all.iter().any(|t| t["waiting"]["before"] == 0))
        });
        let killed = managers.kill_leader();
        let cluster = &managers.cluster;
        let begun = Instant::now();
        cluster.await_status("b", |s| s["manager_connected"] == false || s["manager"] != killed.as_str());
        noticed.push(begun.elapsed());
        cluster.await_status("b", |s| s["manager_connected"] == true && s["manager"] != killed.as_str());
        gaps.push(begun.elapsed());
        managers.start_again(&killed);
        for (name, child) in [("running", running), ("waiting", waiting)] {
            let ran = end(child);
            assert_eq!(ran.status, 0, "round {round}, the {name} one: {} {}", ran.stdout, ran.stderr);
            let report = ran.json();
            let receivers = report["receivers"].as_array().unwrap();
            assert!(receivers.len() == 2 && receivers.iter().all(|r| r["verified"] == true), "{report}");
            assert!(report["path_lost"].is_null(), "{report}");
        }
        for (id, agents) in [(&first, ["b", "c"]), (&second, ["a", "c"])] {
            for agent in agents {
                assert_eq!(managers.cluster.at(agent, &["rm", id]).status, 0);
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
