//! Several managers and a real etcd: the leader is killed in mid-transfer, or stopped for a while, again and
//! again. Transfers go on, requests that wait are kept, and no path is lent twice.
//!
//! `POLYCAST_RUNS` says how often (default 4); `cargo xtask leaders 100` does it 100 times.

mod common;
#[path = "../../manager/tests/common/etcd.rs"]
mod etcd;

use common::cluster::{Cluster, Daemon};
use common::{Place, Ran, end};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::process::Child;
use std::time::{Duration, Instant};

/// A cluster with three managers.
struct Managers {
    cluster: Cluster,
    etcd: String,
    config: String,
    /// The key or certificates that all of them show.
    shown: Vec<String>,
    _etcd: etcd::Etcd,
}

impl Managers {
    fn start(is_sealed: bool) -> Option<Self> {
        let place = Place::new();
        let (daemon, etcd) = etcd::start(&place.path("etcd"))?;
        // One address: a second transfer has to wait for the first one.
        let [.., third, last] = std::process::id().to_be_bytes();
        let settings = format!(
            "fabrics = ['ip-multicast']\nreconnect-ms = 60000\n\
             [ip-multicast]\npool = '239.254.{third}.{last}/32'\nport = 17412\nrate = '400mbit'\n"
        );
        let config = place.file("manager.toml", settings.as_bytes());
        let mut shown = Vec::new();
        if is_sealed {
            shown = vec!["--key-file".to_string(), place.path("key")];
            assert_eq!(common::polycast(&["key", "new", &shown[1]]).status, 0);
        }
        let words = common::authority::words(&shown);
        let manager = |_| {
            let address = format!("127.0.0.1:{}", polycast_testing::free_port());
            Daemon::manager(&address, &[&["--config", &config, "--etcd", &etcd], &words[..]].concat())
        };
        let managers = (0..3).map(manager).collect();
        let cluster = Cluster::of_with(place, managers, &["a", "b", "c"], &words);
        Some(Managers { cluster, etcd, config, shown, _etcd: daemon })
    }

    /// Kills the leader, or stops it; gives its address.
    fn end_leader(&mut self, kills: bool) -> String {
        let leader = self.cluster.await_status("a", |s| s["manager_connected"] == true)["manager"].clone();
        let leader = leader.as_str().unwrap().to_string();
        match kills {
            true => self.manager(&leader).kill(),
            false => self.manager(&leader).signal(Signal::STOP),
        }
        leader
    }

    /// Waits until a transfer is over; meanwhile the one address is never used by both sources.
    fn watch(&self, mut running: Child) -> Ran {
        let users = |agent: &str| -> Vec<Value> {
            let status: Value =
                serde_json::from_str(&self.cluster.at(agent, &["status"]).stdout).unwrap_or_default();
            let transfers = status["transfers"].as_array().cloned().unwrap_or_default();
            let uses = |transfer: &&Value| transfer["path"]["fabric"] == "ip-multicast";
            transfers.iter().filter(uses).map(|transfer| transfer["id"].clone()).collect()
        };
        while running.try_wait().unwrap().is_none() {
            let (before, other, after) = (users("a"), users("b"), users("a"));
            let throughout = before.iter().any(|id| after.contains(id));
            assert!(
                !throughout || other.is_empty(),
                "the one address is lent to {before:?} and to {other:?}"
            );
        }
        end(running)
    }

    /// Starts a manager again.
    fn start_again(&mut self, address: &str) {
        let shown = common::authority::words(&self.shown);
        let own = ["--config", &self.config, "--etcd", &self.etcd];
        let again = Daemon::manager(address, &[&own, &shown[..]].concat());
        *self.manager(address) = again;
    }

    fn manager(&mut self, address: &str) -> &mut Daemon {
        self.cluster.managers.iter_mut().find(|manager| manager.address() == address).unwrap()
    }
}

#[test]
fn leaders_that_are_killed_or_stopped_lose_no_transfer_and_no_request() {
    let Some(managers) = Managers::start(false) else { return };
    let rounds = std::env::var("POLYCAST_RUNS").map_or(4, |text| text.parse::<u32>().unwrap());
    fail_over(managers, rounds);
}

/// The same where all is sealed: permits of the next leader are those of the one before.
#[test]
fn sealed_transfers_outlive_their_leaders() {
    let Some(managers) = Managers::start(true) else { return };
    fail_over(managers, 2);
}

/// Bytes of the objects of a round: 1.2 s at the rate of the path.
const ROUND_BYTES: u64 = 60_000_000;
/// The most: where even that is sent before a leader can be ended, the test says so.
const ROUND_BYTES_MOST: u64 = 32 * ROUND_BYTES;

fn fail_over(mut managers: Managers, rounds: u32) {
    let (mut noticed, mut gaps) = (Vec::new(), Vec::new());
    let (mut bytes, mut done, mut objects) = (ROUND_BYTES, 0, 1_u32..);
    let big = managers.cluster.big(bytes);
    while done < rounds {
        let kills = done % 2 == 0;
        let mut id = || objects.next().unwrap().to_string();
        let (first, second) = (id(), id());
        let send = |agent: &str, to: &str, id: &str| {
            managers.cluster.begin(agent, &["send", &big, "--to", to, "--id", id, "--slow", "wait"])
        };
        let mut running = send("a", "b,c", &first);
        let has = |status: &Value, what: &str| {
            status["transfers"].as_array().is_some_and(|all| all.iter().any(|t| t[what].is_object()))
        };
        managers.cluster.await_status("a", |s| has(s, "path"));
        let mut waiting = send("b", "a,c", &second);
        managers.cluster.await_status("b", |s| has(s, "waiting") || has(s, "path"));
        let ended = managers.end_leader(kills);
        // On a slow machine it may be over before the leader has ended: then the next ones are longer.
        let counts = [&mut running, &mut waiting].into_iter().all(|one| one.try_wait().unwrap().is_none());
        let cluster = &managers.cluster;
        let begun = Instant::now();
        cluster.await_status("b", |s| s["manager_connected"] == false || s["manager"] != ended.as_str());
        noticed.push(begun.elapsed());
        cluster.await_status("b", |s| s["manager_connected"] == true && s["manager"] != ended.as_str());
        gaps.push(begun.elapsed());
        match kills {
            true => managers.start_again(&ended),
            false => managers.manager(&ended).signal(Signal::CONT),
        }
        for (name, child) in [("running", running), ("waiting", waiting)] {
            let ran = managers.watch(child);
            assert_eq!(ran.status, 0, "round {done}, the {name} one: {} {}", ran.stdout, ran.stderr);
            let report = ran.json();
            let receivers = report["receivers"].as_array().unwrap();
            assert!(receivers.len() == 2 && receivers.iter().all(|r| r["verified"] == true), "{report}");
            assert!(report["path_lost"].is_null(), "{report}");
            assert_eq!(report["sealed"], !managers.shown.is_empty(), "{report}");
        }
        match counts {
            true => done += 1,
            false => bytes *= 2,
        }
        assert!(bytes <= ROUND_BYTES_MOST, "a transfer is over before a leader can be ended");
        managers.cluster.big(bytes);
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
    println!("{rounds} of {rounds} leaders killed or stopped without a loss");
}

/// A manager goes on from the state that the last one has written, though its settings name the hosts in
/// another order, or more of them, or fewer.
#[test]
fn a_manager_leads_after_its_settings_have_changed() {
    let place = Place::new();
    let Some((_etcd, etcd)) = etcd::start(&place.path("etcd")) else { return };
    let settings = |hosts: &str| {
        format!(
            "fabrics = ['datacast', 'tcp-chain']\n[datacast]\nnetwork = 'bcube:4,2'\nlink-rate = '1gbit'\n\
             hosts = [{hosts}]\nforwarders = ['127.0.0.1:9']\n"
        )
    };
    let address = format!("127.0.0.1:{}", polycast_testing::free_port());
    let start = |hosts: &str, name: &str| {
        let config = place.file(name, settings(hosts).as_bytes());
        Daemon::manager(&address, &["--config", &config, "--etcd", &etcd])
    };
    let first = start("'a', 'b', 'c', 'd'", "0.toml");
    let mut cluster = Cluster::of(Place::new(), vec![first], &["a", "b"]);
    for (hosts, name) in
        [("'d', 'c', 'b', 'a'", "1.toml"), ("'x', 'a', 'b'", "2.toml"), ("'c', 'd'", "3.toml")]
    {
        cluster.managers[0].kill();
        cluster.managers[0] = start(hosts, name);
        let led = |status: &Value| {
            status["manager_connected"] == true
                && status["peers"].as_array().is_some_and(|peers| peers.len() == 2)
        };
        cluster.await_status("a", led);
    }
}

/// Managers that stand by are named while they are there, and the servers of etcd with what they answer.
#[test]
fn managers_that_stand_by_and_etcd_are_shown() {
    let Some(mut managers) = Managers::start(false) else { return };
    let leader = managers.cluster.await_status("a", |s| s["manager_connected"] == true)["manager"].clone();
    let mut others: Vec<String> =
        managers.cluster.managers.iter().map(|manager| manager.address().to_string()).collect();
    others.retain(|address| *address != leader);
    let named = |status: &Value| -> Vec<String> {
        let standbys = status["standbys"].as_array().into_iter().flatten();
        standbys.map(|standby| standby["address"].as_str().unwrap().to_string()).collect()
    };
    let ask = ["status", "--manager"];
    let both = managers.cluster.await_answer("a", &ask, |status| named(status).len() == 2);
    assert!(others.iter().all(|address| named(&both).contains(address)), "{others:?}: {both}");
    assert_eq!(both["standbys"][0]["program_version"], env!("CARGO_PKG_VERSION"));
    let server = both["etcd"][0].clone();
    assert_eq!((&server["address"], &server["reached"]), (&managers.etcd.clone().into(), &true.into()));
    assert!(server["version"].as_str().unwrap().starts_with('3'), "{server}");
    // One is killed, and the other ends in good order.
    managers.manager(&others[0]).kill();
    managers.cluster.await_answer("a", &ask, |status| named(status) == [others[1].clone()]);
    managers.manager(&others[1]).signal(Signal::TERM);
    managers.cluster.await_answer("a", &ask, |status| named(status).is_empty());
    let socket = common::cluster::socket(&managers.cluster.place, "a");
    let text = common::polycast(&["status", "--manager", "--socket", &socket]).stdout;
    assert!(text.contains("standby    none") && text.contains("answers, version 3"), "{text}");
}

/// An etcd that another program has filled is named to users, and not a manager that they should go to. When
/// there is room again, all goes on.
#[test]
fn users_are_told_that_etcd_is_full() {
    let place = Place::new();
    let Some((_etcd, etcd)) = etcd::start_small(&place.path("etcd"), 2 << 20) else { return };
    let manager = |_| {
        let address = format!("127.0.0.1:{}", polycast_testing::free_port());
        Daemon::manager(&address, &["--etcd", &etcd])
    };
    let cluster = Cluster::of(place, (0..2).map(manager).collect(), &["a", "b"]);
    let file = cluster.big(50_000);
    let mut objects = 1_u32..;
    let mut send =
        || cluster.at("a", &["send", &file, "--to", "b", "--id", &objects.next().unwrap().to_string()]);
    assert_eq!(send().status, 0);
    let mut filled = 0;
    const SAYS: &str = "no manager leads now: etcd's database is full";
    // Managers make what room they can, and what is written just before etcd sees that it is full is written.
    // On a slow machine what was wrong at the end may be that nothing had answered in time.
    let said = polycast_testing::wait_for("what users are told", || {
        filled = etcd::fill(&etcd, filled);
        let ran = send();
        assert!(!ran.stderr.contains("another manager leads"), "{}", ran.stderr);
        Some(ran.stderr).filter(|said| said.contains(SAYS))
    });
    println!("{said}");
    let tells = |status: &Value| status["manager_error"].as_str().is_some_and(|error| error.contains(SAYS));
    println!("{}", cluster.await_status("a", tells)["manager_error"]);
    let asked = polycast_testing::wait_for("what status --manager says", || {
        Some(cluster.at("a", &["status", "--manager"]).stderr).filter(|said| said.contains(SAYS))
    });
    assert!(!asked.contains("another manager leads"), "{asked}");
    let named = |doctor: &Value| {
        let mut checks = doctor["checks"].as_array().into_iter().flatten();
        checks.any(|check| {
            check["found"].as_str().is_some_and(|found| found.contains(SAYS))
                && check["mend"].as_str().is_some_and(|mend| mend.starts_with("make etcd"))
        })
    };
    cluster.await_answer("a", &["doctor", "--interface", "lo"], named);
    etcd::clear(&etcd);
    polycast_testing::until("a transfer", || send().status == 0);
}

/// An etcd that has ended, or hangs, is named by all who cannot do without it, from the first refusal on, and
/// in the manager's log, but not again and again.
#[test]
fn users_are_told_that_etcd_is_away() {
    const SAYS: &str = "no manager leads now: etcd: ";
    for signal in [Signal::KILL, Signal::STOP] {
        let place = Place::new();
        let Some((etcd_process, etcd)) = etcd::start(&place.path("etcd")) else { return };
        let settings = b"silence-ms = 60000\nlease-ms = 600000\n[objects]\nsettle-ms = 4000\n";
        let config = place.file("manager.toml", settings);
        let log = place.path("manager.log");
        let address = format!("127.0.0.1:{}", polycast_testing::free_port());
        let manager = ["manager", "--listen", &address, "--config", &config, "--etcd", &etcd];
        let said = fs::File::create(&log).unwrap();
        let manager = Daemon::begin_saying(common::command(&manager), said.into());
        let cluster = Cluster::of(place, vec![manager], &["a", "b"]);
        let begun = fs::read_to_string(&log).unwrap().lines().count();
        let tell = |signal| kill_process(Pid::from_raw(etcd_process.id() as i32).unwrap(), signal).unwrap();
        tell(signal);
        let mut refused = 0;
        let since = Instant::now();
        while since.elapsed() < Duration::from_secs(12) {
            let ran = cluster.at("a", &["status", "--manager"]);
            if ran.status != 0 {
                refused += 1;
                assert!(ran.stderr.contains(SAYS), "{signal:?}, refusal {refused}: {}", ran.stderr);
            }
        }
        assert!(refused > 0, "{signal:?}: it leads without etcd");
        let lines = fs::read_to_string(&log).unwrap();
        let lines: Vec<&str> = lines.lines().skip(begun).filter(|line| line.contains("etcd")).collect();
        println!("{signal:?}: {refused} refusals, {lines:#?}");
        // It cannot keep leading, leads no more, and no manager can.
        assert!((1..=3).contains(&lines.len()), "{lines:#?}");
        let named = |doctor: &Value| {
            let mut checks = doctor["checks"].as_array().into_iter().flatten();
            checks.any(|check| {
                check["found"].as_str().is_some_and(|found| found.contains(SAYS))
                    && check["mend"].as_str().is_some_and(|mend| mend.starts_with("make etcd"))
            })
        };
        cluster.await_answer("a", &["doctor", "--interface", "lo"], named);
        if signal == Signal::STOP {
            tell(Signal::CONT);
            cluster.await_status("a", |status| status["manager_connected"] == true);
        }
    }
}
