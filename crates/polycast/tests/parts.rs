//! Parts of optical labs that die, lie or are taken out of use while transfers come one after the other. Skipped without root or
//! the programs that labs need.

mod common;

use common::{Place, noise, polycast};
use polycast_testing::{Need, needs};
use serde_json::Value;
use std::time::Duration;

const PROGRAM: &str = env!("CARGO_BIN_EXE_polycast");
const LEN: usize = 2_000_000;
/// What the first transfer over a dead part may take longer than others, in seconds: where ports tell of light, and where only
/// the transfer itself finds out.
const LOST_S: [f64; 2] = [1.5, 2.5];

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

    /// Sends an object that nobody has yet to all others; gives the report.
    fn send(&self, source: &str, id: u8) -> Value {
        let bytes: Vec<u8> = noise(LEN).into_iter().map(|byte| byte ^ id).collect();
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

fn seconds(report: &Value) -> f64 {
    report["seconds"].as_f64().unwrap()
}

/// Twenty transfers, by two sources in turn: all go over this fabric, and none is disturbed.
fn twenty_are_undisturbed(lab: &Lab, fabric: &str) {
    for id in 0..20 {
        let report = lab.send(["h0", "h1"][usize::from(id) % 2], 100 + id);
        assert_eq!(
            (&report["fabric"], &report["path_lost"]),
            (&fabric.into(), &Value::Null),
            "transfer {id}: {report}"
        );
        assert_eq!(report["events"], Value::Null, "transfer {id}: {report}");
    }
}

/// The splitters that circuits lead to; four racks have the ports 1 to 4, and each splitter the next five.
fn splitters_in_use(lab: &Lab) -> Vec<u64> {
    let status = lab.status();
    let circuits = status["circuits"].as_array().unwrap().iter();
    circuits
        .filter_map(|circuit| circuit["to"].as_u64().unwrap().checked_sub(5).map(|port| port / 5))
        .collect()
}

const FOUR_SPLITTERS: &str = "blast:racks=4,hosts=1,splitters=4,circuit-ms=4,rate=40mbit";

/// One splitter of four dies between two transfers that use the same circuits: the next one loses little, and nobody is sent
/// over it again. Where ports tell nothing of light (`optics=lit`), the transfer itself finds out.
#[test]
fn a_dead_splitter_is_not_lent_twice() {
    if !can() {
        return;
    }
    for (kind, optics, fabric, most) in
        [("dead", "real", "ocs", LOST_S[0]), ("dead-lit", "lit", "tcp-chain", LOST_S[1])]
    {
        let lab = Lab::up(kind, &format!("{FOUR_SPLITTERS},optics={optics}"));
        let before = lab.send("h0", 1);
        assert_eq!(before["fabric"], "ocs", "{before}");
        assert_eq!(splitters_in_use(&lab), [0]);
        lab.run("optics", &["ip", "link", "set", "s0i", "down"]);
        let first = lab.send("h0", 2);
        assert_eq!(first["fabric"], fabric, "{first}");
        let lost = seconds(&first) - seconds(&before);
        eprintln!("optics={optics}: the first transfer after the death took {lost:.2} s longer");
        assert!(lost < most, "{lost} s: {first}");
        twenty_are_undisturbed(&lab, "ocs");
        assert!(!splitters_in_use(&lab).contains(&0), "{}", lab.status());
        let suspected = lab.status()["suspected"].to_string();
        assert!(suspected.contains("splitter:0"), "{suspected}");
    }
}

/// The circuit switch says that it has made a circuit, lists it, and no light comes through.
#[test]
fn a_circuit_that_lies_is_not_lent_twice() {
    if !can() {
        return;
    }
    for (kind, optics, fabric, most) in
        [("lie", "real", "ocs", LOST_S[0]), ("lie-lit", "lit", "tcp-chain", LOST_S[1])]
    {
        let lab = Lab::up(kind, &format!("{FOUR_SPLITTERS},optics={optics}"));
        // Port 5 is the first splitter's input.
        lab.misbehave("DARK-5");
        let first = lab.send("h0", 1);
        assert_eq!(first["fabric"], fabric, "{first}");
        twenty_are_undisturbed(&lab, "ocs");
        assert!(!splitters_in_use(&lab).contains(&0), "{}", lab.status());
        let usual = lab.send("h0", 200);
        let lost = seconds(&first) - seconds(&usual);
        eprintln!("optics={optics}: the first transfer over the lying circuit took {lost:.2} s longer");
        assert!(lost < most, "{lost} s: {first}");
    }
}

/// A part is taken out while a transfer uses it: the transfer goes another way, tells why, and loses nothing.
#[test]
fn a_transfer_leaves_what_is_drained() {
    if !can() {
        return;
    }
    for (kind, spec, fabric, part) in [
        ("drain-ocs", "blast:racks=4,hosts=1,splitters=4,circuit-ms=4,rate=8mbit", "ocs", "splitter:0"),
        ("drain-relay", "shufflecast:2,2,tors=7,hosts=1,rate=8mbit", "shufflecast", "splitter:4"),
    ] {
        let lab = Lab::up(kind, spec);
        let report = std::thread::scope(|scope| {
            let sending = scope.spawn(|| lab.send("h0", 1));
            let uses = || {
                let status = lab.status();
                let mut splitters = status["splitters"].as_array().unwrap().clone().into_iter();
                splitters.any(|splitter| {
                    format!("splitter:{}", splitter["splitter"]) == part && splitter["state"] == "lent"
                })
            };
            while !uses() {
                assert!(!sending.is_finished(), "nothing uses {part}");
                std::thread::sleep(Duration::from_millis(20));
            }
            let said = lab.run("h1", &[PROGRAM, "drain", part]);
            assert!(said.contains("is taken out; 1 paths have moved, 0 have ended"), "{said}");
            sending.join().unwrap()
        });
        assert_eq!((&report["fabric"], &report["path_lost"]), (&fabric.into(), &Value::Null), "{report}");
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
fn acceptors_answer_every_request_by_unicast_and_over_streams() {
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
        let wanted = [(1, "unicast", &one), (1, fabric, &one), (3, "unicast", &three), (3, fabric, &three)];
        assert_eq!(ways, wanted, "{report}");
        for way in report["ways"].as_array().unwrap() {
            assert!(way["latency_us"]["median"].as_f64() > Some(0.0), "{report}");
        }
    }
    let few = polycast(&["bench", "replication", "bridge:4", "--acceptors", "4"]);
    assert!(few.status == 1 && few.stderr.contains("it can have at most 3 acceptors"), "{}", few.stderr);
}

/// One host's links are narrow from the beginning. Over every fabric the others go on without it, and the report names it.
#[test]
fn a_narrow_host_holds_nobody_over_any_fabric() {
    if !can() {
        return;
    }
    let place = Place::new();
    let file = place.file("object", &noise(8_000_000));
    // Of a rack with labels one host takes part: the other one passes labels on, and a narrow one there would hold its rack.
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
        let receivers = report["receivers"].as_array().unwrap();
        assert!(receivers.iter().all(|receiver| receiver["verified"] == true), "{report}");
        let is_slow = |receiver: &&Value| receiver["slow"] == true;
        let slow_names: Vec<&Value> = receivers.iter().filter(is_slow).map(|r| &r["name"]).collect();
        assert_eq!(slow_names, [slow], "{report}");
        let took = |is_slow: bool| {
            let those = receivers.iter().filter(|receiver| (receiver["name"] == slow) == is_slow);
            those.map(|receiver| receiver["seconds"].as_f64().unwrap()).fold(0.0, f64::max)
        };
        // Its link gives it a tenth of what theirs give them.
        assert!(2.0 * took(false) < took(true), "the others take {} s: {report}", took(false));
    }
}
