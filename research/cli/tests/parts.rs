//! Parts of optical labs that die, lie or are taken out of use while transfers come one after the other.
//! Skipped without root or the programs that labs need.

#[path = "../../../crates/polycast/tests/common/mod.rs"]
mod common;

use common::{Place, noise, polycast};
use polycast_testing::{Need, needs, until};
use serde_json::Value;

const PROGRAM: &str = common::PROGRAM;
const LEN: usize = 2_000_000;
/// Bytes of an object that takes 6 s at the rate of the labs where it is used.
const LONG: usize = 6_000_000;

fn can() -> bool {
    let tools = ["ip", "tc", "ovs-vswitchd", "ethtool", "bash"].into_iter().map(Need::Tool);
    needs(&[Need::Root, Need::Namespaces].into_iter().chain(tools).collect::<Vec<_>>())
}

/// A lab that is up until this is dropped.
struct Lab {
    name: String,
    place: Place,
}

impl Lab {
    fn up(kind: &str, spec: &str) -> Self {
        let name = format!("{kind}-{}", std::process::id());
        let made = polycast(&["lab", "up", spec, "--name", &name, "--json"]);
        assert_eq!(made.status, 0, "{}", made.stderr);
        Lab { name, place: Place::new() }
    }

    /// Runs something in a namespace of the lab.
    fn run(&self, space: &str, command: &[&str]) -> String {
        let ran = polycast(&[&["lab", "exec", &self.name, space, "--"], command].concat());
        assert_eq!(ran.status, 0, "{command:?}: {}", ran.stderr);
        ran.stdout
    }

    /// The circuit switch's faults, as its management interface of the lab takes them.
    fn misbehave(&self, word: &str) {
        let script = format!(
            "exec 3<>/dev/tcp/10.77.255.2/3083; printf 'ED-FAULT::{word}:1;\\n' >&3; head -c 1 <&3 >/dev/null"
        );
        self.run("network", &["bash", "-c", &script]);
    }

    /// Sends an object that no host has yet to all others; gives the report.
    fn send(&self, source: &str, id: u8) -> Value {
        self.send_bytes(source, id, LEN)
    }

    /// The same of an object of this length.
    fn send_bytes(&self, source: &str, id: u8, len: usize) -> Value {
        let bytes: Vec<u8> = noise(len).into_iter().map(|byte| byte ^ id).collect();
        let (file, id) = (self.place.file(&format!("object-{id}"), &bytes), id.to_string());
        let said = self.run(source, &[PROGRAM, "send", &file, "--to", "all", "--id", &id, "--json"]);
        let report: Value = serde_json::from_str(&said).unwrap();
        let mut receivers = report["receivers"].as_array().unwrap().iter();
        assert!(receivers.all(|receiver| receiver["verified"] == true), "{report}");
        assert_eq!(report["spared_bytes"], 0, "{report}");
        report
    }

    fn status(&self) -> Value {
        serde_json::from_str(&self.run("h0", &[PROGRAM, "status", "--manager", "--json"])).unwrap()
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        polycast(&["lab", "down", &self.name]);
    }
}

/// Returns true if a path of this fabric carried the delivery, though some receivers may have been left to
/// catch up.
fn over(report: &Value, fabric: &str) -> bool {
    report["fabric"].as_str().unwrap().split('+').next() == Some(fabric)
}

/// Transfers of two sources in turn, as long as a splitter that is dead rests, and six at most: all go over
/// circuits, and none over it.
fn others_are_undisturbed(lab: &Lab, splitter: u64) {
    let part = format!("splitter:{splitter}");
    for id in 0..6 {
        let report = lab.send(["h0", "h1"][usize::from(id) % 2], 100 + id);
        let status = lab.status();
        let suspected = status["suspected"].as_array().unwrap();
        let dead = suspected.iter().find(|one| one["part"] == part.as_str());
        let rests = dead.and_then(|one| one["rests_ms"].as_u64()) > Some(0);
        assert!(rests || id > 0, "{part} rests: {status}");
        if !rests {
            // On a machine that is so slow its time is over by now.
            return;
        }
        assert!(over(&report, "ocs"), "transfer {id}: {report}");
        assert!(!report["events"].to_string().contains(&part), "transfer {id}: {report}");
        assert!(!splitters_in_use(&status).contains(&splitter), "transfer {id}: {status}");
    }
}

/// The splitters that circuits lead to; four racks have the ports 1 to 4, and each splitter the next five.
fn splitters_in_use(status: &Value) -> Vec<u64> {
    let circuits = status["circuits"].as_array().unwrap().iter();
    circuits
        .filter_map(|circuit| circuit["to"].as_u64().unwrap().checked_sub(5).map(|port| port / 5))
        .collect()
}

const FOUR_SPLITTERS: &str = "blast:racks=4,hosts=1,splitters=4,circuit-ms=4,rate=40mbit";

/// One splitter of four dies between two transfers that use the same circuits: the next one goes over another
/// splitter, and no later one over the dead one. Where ports tell nothing of light (`optics=lit`), the
/// transfer itself finds out, and goes over TCP.
#[test]
fn a_dead_splitter_is_not_lent_twice() {
    if !can() {
        return;
    }
    for (kind, optics, fabric) in [("dead", "real", "ocs"), ("dead-lit", "lit", "tcp-chain")] {
        let lab = Lab::up(kind, &format!("{FOUR_SPLITTERS},optics={optics}"));
        let before = lab.send("h0", 1);
        assert!(over(&before, "ocs"), "{before}");
        assert_eq!(splitters_in_use(&lab.status()), [0]);
        lab.run("optics", &["ip", "link", "set", "s0i", "down"]);
        let first = lab.send("h0", 2);
        assert!(first["fabric"].as_str().unwrap().contains(fabric), "{first}");
        others_are_undisturbed(&lab, 0);
    }
}

/// The circuit switch says that it has made a circuit, lists it, and no light comes through.
#[test]
fn a_circuit_that_lies_is_not_lent_twice() {
    if !can() {
        return;
    }
    for (kind, optics, fabric) in [("lie", "real", "ocs"), ("lie-lit", "lit", "tcp-chain")] {
        let lab = Lab::up(kind, &format!("{FOUR_SPLITTERS},optics={optics}"));
        // Port 5 is the first splitter's input.
        lab.misbehave("DARK-5");
        let first = lab.send("h0", 1);
        assert!(first["fabric"].as_str().unwrap().contains(fabric), "{first}");
        others_are_undisturbed(&lab, 0);
    }
}

/// A path that its circuit switch does not make waits for it, where the settings say so.
#[test]
fn a_path_waits_for_a_switch_that_refuses() {
    if !can() {
        return;
    }
    let lab = Lab::up("waits", "blast:racks=3,hosts=1,fanout=2,circuit-ms=4,rate=50mbit,on-failure=wait");
    lab.misbehave("REFUSE");
    let log = format!("/run/polycast-lab/{}/log/manager.log", lab.name);
    let waits = std::thread::scope(|scope| {
        let sending = scope.spawn(|| lab.send("h0", 1));
        until("the switch has refused", || {
            assert!(!sending.is_finished(), "it waits for no circuit");
            std::fs::read_to_string(&log).unwrap().contains("refuses ENT-CRS-FIBER")
        });
        lab.misbehave("NONE");
        sending.join().unwrap()
    });
    assert!(over(&waits, "ocs") && waits["path_lost"].is_null(), "{waits}");
    assert!(waits["events"].to_string().contains("the path waits"), "{waits}");
}

/// A part is taken out while a transfer uses it: the transfer goes another way, tells why, and loses nothing.
#[test]
fn a_transfer_leaves_what_is_drained() {
    if !can() {
        return;
    }
    for (kind, spec, fabric, part) in [
        (
            "drain-ocs",
            "blast:racks=4,hosts=1,splitters=4,circuit-ms=4,rate=8mbit,patience-ms=60000",
            "ocs",
            "splitter:0",
        ),
        (
            "drain-relay",
            "shufflecast:2,2,tors=7,hosts=1,rate=8mbit,patience-ms=60000",
            "shufflecast",
            "splitter:4",
        ),
    ] {
        let lab = Lab::up(kind, spec);
        let report = std::thread::scope(|scope| {
            let sending = scope.spawn(|| lab.send_bytes("h0", 1, LONG));
            let uses = || {
                let status = lab.status();
                let mut splitters = status["splitters"].as_array().unwrap().clone().into_iter();
                splitters.any(|splitter| {
                    format!("splitter:{}", splitter["splitter"]) == part && splitter["state"] == "lent"
                })
            };
            until("a path uses the part", || {
                assert!(!sending.is_finished(), "nothing uses {part}");
                uses()
            });
            let said = lab.run("h1", &[PROGRAM, "drain", part]);
            assert!(said.contains("is taken out; 1 paths have moved, 0 have ended"), "{said}");
            sending.join().unwrap()
        });
        assert!(over(&report, fabric) && report["path_lost"].is_null(), "{report}");
        let why = format!("an operator has taken out {part}");
        assert!(report["events"].to_string().contains(&why), "{report}");
        assert!(lab.run("h1", &[PROGRAM, "undrain", part]).contains("can be used again"));
    }
}

/// Every step of Table II is there, and the whole takes at least as long as its parts.
#[test]
fn the_time_until_devices_have_a_path_is_measured() {
    if !can() {
        return;
    }
    let ran =
        polycast(&["bench", "control", "blast:racks=2,hosts=1,circuit-ms=4", "--requests", "3", "--json"]);
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    let report = ran.json();
    assert_eq!((&report["requests"], &report["other_fabric"]), (&3.into(), &0.into()), "{report}");
    let steps = report["steps"].as_array().unwrap();
    let papers: Vec<&Value> = steps.iter().map(|step| &step["paper_ms"]).collect();
    assert_eq!(
        serde_json::json!(papers),
        serde_json::json!([1.747, 8.553, 8.711, 14.172, null, 33.183]),
        "{report}"
    );
    let max = |at: usize| steps[at]["ms"]["max"].as_f64().unwrap();
    assert!(max(3) >= 4.0 && max(4) >= max(3) && max(5) >= max(4), "{report}");
    let foreign = polycast(&["bench", "control", "bridge:3"]);
    assert!(
        foreign.status != 0 && foreign.stderr.contains("only labs such as blast:racks=3"),
        "{}",
        foreign.stderr
    );
}

/// Every acceptor has every request, by both ways, in the order in which they were sent.
#[test]
fn acceptors_answer_every_request_by_unicast_over_streams_and_over_groups() {
    if !can() {
        return;
    }
    let labs = ["bridge:4", "shufflecast:2,2,hosts=1", "orca:4"];
    let arguments = ["--acceptors", "1,3", "--requests", "40", "--json"];
    let ran = polycast(&[&["bench", "replication"][..], &labs, &arguments].concat());
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    let reports = ran.json();
    let reports = reports.as_array().unwrap();
    assert_eq!(reports.len(), labs.len());
    for (report, fabric) in reports.iter().zip(["ip-multicast", "shufflecast", "orca"]) {
        let ways: Vec<_> = report["ways"]
            .as_array()
            .unwrap()
            .iter()
            .map(|way| (way["acceptors"].as_u64().unwrap(), way["way"].as_str().unwrap(), &way["answered"]))
            .collect();
        let (one, three) = (serde_json::json!([40]), serde_json::json!([40, 40, 40]));
        let (paxos, rounds): (Vec<_>, Vec<_>) =
            ways.into_iter().partition(|(_, way, _)| way.starts_with("udp "));
        let wanted = [(1, "unicast", &one), (1, fabric, &one), (3, "unicast", &three), (3, fabric, &three)];
        assert_eq!(rounds, wanted, "{report}");
        // Labels carry no packets of applications.
        let over_group = format!("udp group over {fabric}");
        let expected = [(1, "udp unicast"), (1, &over_group), (3, "udp unicast"), (3, &over_group)];
        let expected = if fabric == "orca" { &[][..] } else { &expected };
        assert!(
            paxos.iter().map(|(acceptors, way, _)| (*acceptors, *way)).eq(expected.iter().copied()),
            "{report}"
        );
        for (acceptors, way, answered) in paxos {
            // One that no majority needs may hear the last value when all is over.
            let all = answered.as_array().unwrap().iter().filter(|count| **count == 40).count() as u64;
            assert!(all > acceptors / 2, "{way}: {report}");
        }
        for way in report["ways"].as_array().unwrap() {
            assert!(way["latency_us"]["median"].as_f64() > Some(0.0), "{report}");
        }
    }
    let few = polycast(&["bench", "replication", "bridge:4", "--acceptors", "4"]);
    assert!(few.status == 1 && few.stderr.contains("it can have at most 3 acceptors"), "{}", few.stderr);
}

/// One host's links are narrow from the beginning. Over every fabric the others go on without it, and the
/// report names it.
#[test]
fn a_narrow_host_holds_nobody_over_any_fabric() {
    if !can() {
        return;
    }
    let place = Place::new();
    let file = place.file("object", &noise(8_000_000));
    // Of a rack with labels one host takes part: the other one passes labels on, and a narrow one there would
    // hold its rack.
    for (spec, fabric, receivers, slow) in [
        ("blast:racks=4,hosts=1,circuit-ms=4,rate=100mbit", "ocs", "h1,h2,h3", "h3"),
        ("shufflecast:2,2,hosts=1,rate=100mbit", "shufflecast", "h1,h2,h3,h4,h5,h6,h7", "h5"),
        ("orca:4,rate=100mbit", "orca", "h3,h5,h7,h9,h11,h13", "h9"),
    ] {
        let fault = format!("rate:{slow}=10mbit@0");
        let cast = ["lab", "cast", spec, &file, "--receivers", receivers, "--fail", &fault, "--json"];
        let ran = polycast(&cast);
        assert_eq!(ran.status, 0, "{spec}: {}", ran.stderr);
        let report = ran.json();
        // What the narrow link cannot take of the stream goes there over TCP.
        assert!(report["fabric"].as_str().unwrap().starts_with(fabric), "{report}");
        let receivers = report["receivers"].as_array().unwrap().iter();
        assert!(receivers.clone().all(|receiver| receiver["verified"] == true), "{report}");
        // Others may be late on a busy machine, and are left to catch up, too. This one is whatever the
        // machine does.
        let narrow = receivers.clone().find(|receiver| receiver["name"] == slow).unwrap();
        assert_eq!(narrow["slow"], true, "{report}");
        let took = |receiver: &Value| receiver["seconds"].as_f64().unwrap();
        let mut in_time = receivers.filter(|receiver| receiver["slow"] != true);
        assert!(in_time.all(|receiver| took(receiver) < took(narrow)), "the others wait for it: {report}");
    }
}
