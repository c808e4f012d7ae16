//! Labs with real namespaces, daemons, switches and devices; skipped without root or the programs they need.

#[path = "../../../crates/polycast/tests/common/mod.rs"]
mod common;

use common::{Place, Ran, command, noise, polycast};
use polycast_testing::{HANG, Need, needs, until};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Switches of labs in which nothing fails have so long: on a busy machine they are late, and not broken.
const PATIENT: &str = "patience-ms=60000";

/// Returns true if a lab that uses these programs can run here.
fn can(programs: &[&'static str]) -> bool {
    let rights = [Need::Root, Need::Namespaces];
    let needed: Vec<Need> = rights.into_iter().chain(programs.iter().copied().map(Need::Tool)).collect();
    needs(&needed)
}

const BRIDGE: [&str; 2] = ["ip", "tc"];
const LABELS: [&str; 3] = ["ip", "tc", "clang"];
const OPTICS: [&str; 4] = ["ip", "tc", "ovs-vswitchd", "ethtool"];

fn labs() -> BTreeSet<String> {
    let listed = polycast(&["lab", "list", "--json"]).json();
    listed.as_array().unwrap().iter().map(|lab| lab["name"].as_str().unwrap().to_string()).collect()
}

fn link(report: &Value, from: &str, to: &str) -> u64 {
    let links = report["links"].as_array().unwrap();
    let link = links.iter().find(|link| link["from"] == from && link["to"] == to);
    link.unwrap_or_else(|| panic!("no link {from} -> {to}"))["bytes"].as_u64().unwrap()
}

fn all_verified(report: &Value, receivers: usize) {
    let list = report["receivers"].as_array().unwrap();
    assert_eq!(list.len(), receivers, "{report}");
    assert!(list.iter().all(|receiver| receiver["verified"] == true), "{report}");
}

/// The report of a delivery that was as it is to be where no host or switch waits for the processor: it is
/// tried until one is, as a neighbour that gets none for a second is silent like one that is gone, and a
/// receiver that gets none is left to catch up. Every try delivers.
fn shown(arguments: &[&str], is: impl Fn(&Value) -> bool) -> Value {
    let begun = Instant::now();
    loop {
        let ran = polycast(arguments);
        assert_eq!(ran.status, 0, "{}", ran.stderr);
        let report = ran.json();
        if is(&report) {
            return report;
        }
        assert!(begun.elapsed() < 3 * HANG, "it is never as it should be: {report}");
        eprintln!("tried again: {} over {}", report["events"], report["fabric"]);
    }
}

/// Returns true if no link was taken for broken, and all receivers were served over the fabric itself.
fn undisturbed(report: &Value) -> bool {
    let down = |event: &Value| event["what"].as_str().unwrap().contains("down");
    let events = report["events"].as_array();
    !events.is_some_and(|all| all.iter().any(down)) && report["path_lost"].is_null() && in_time(report)
}

/// Returns true if no receiver had to be served by another host, over the packet core.
fn in_time(report: &Value) -> bool {
    let chain = |receiver: &Value| receiver["fabric"] == "tcp-chain";
    !report["receivers"].as_array().unwrap().iter().any(chain)
}

/// Returns true if a path of this fabric carried the delivery. Some receivers may have been left to catch up.
fn over(report: &Value, fabric: &str) -> bool {
    report["fabric"].as_str().unwrap().split('+').next() == Some(fabric)
}

#[test]
fn a_bridge_delivers_and_counts_what_crosses_it() {
    if !can(&BRIDGE) {
        return;
    }
    let place = Place::new();
    let file = place.file("object", &noise(3_000_000));
    let ran = polycast(&[
        "lab",
        "cast",
        "bridge:4,mtu=9000",
        &file,
        "--source",
        "2",
        "--receivers",
        "h0,3",
        "--json",
    ]);
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    let report = ran.json();
    all_verified(&report, 2);
    assert!(report["setup_s"].as_f64().unwrap() > 0.0);
    for (from, to) in [("h2", "switch"), ("switch", "h0"), ("switch", "h3")] {
        assert!(link(&report, from, to) > 3_000_000, "{from} -> {to}: {report}");
    }
    // The manager is not on the way of the data.
    assert!(link(&report, "switch", "manager") < 100_000, "{report}");
    assert!(report["control"].as_array().unwrap().iter().any(|step| step["step"] == "manager and agents"));
}

#[test]
fn a_killed_agent_is_named_and_the_others_finish() {
    if !can(&BRIDGE) {
        return;
    }
    let place = Place::new();
    let file = place.file("object", &noise(10_000_000));
    let spec = "bridge:4,rate=40mbit";
    let ran = polycast(&["lab", "cast", spec, &file, "--fail", "agent:h2@10%", "--json"]);
    assert_eq!(ran.status, 1, "{}", ran.stderr);
    for receiver in ran.json()["receivers"].as_array().unwrap() {
        assert_eq!(receiver["verified"], receiver["name"] != "h2", "{receiver}");
    }
}

/// Section 7 of Datacast's paper: server 00 to 02, 10, 21, 23, 31 and 33.
const DATACAST_GROUP: &str = "2,4,9,11,13,15";

#[test]
fn two_trees_share_an_object_and_no_other_link_carries_it() {
    if !can(&BRIDGE) {
        return;
    }
    let place = Place::new();
    let len = 12_000_000;
    let file = place.file("object", &noise(len));
    let spec = "datacast:bcube:4,2,rate=50mbit";
    let report = shown(&["lab", "cast", spec, &file, "--receivers", DATACAST_GROUP, "--json"], undisturbed);
    all_verified(&report, 6);
    assert_eq!(report["fabric"], "datacast");
    let trees = report["trees"].as_array().unwrap();
    assert_eq!(trees.len(), 2);
    let first: Vec<u64> = trees.iter().map(|tree| tree["first_bytes"].as_u64().unwrap()).collect();
    assert!(first.iter().all(|bytes| *bytes > 0) && first.iter().sum::<u64>() >= len as u64, "{trees:?}");
    // Of the fabric only the 13 links of each tree carry data.
    let fabric = |link: &&Value| [&link["from"], &link["to"]].iter().all(|end| end.as_str() != Some("core"));
    let links: Vec<u64> = report["links"]
        .as_array()
        .unwrap()
        .iter()
        .filter(fabric)
        .map(|l| l["bytes"].as_u64().unwrap())
        .collect();
    let busy = links.iter().filter(|bytes| **bytes > len as u64 / 20).count();
    assert_eq!(busy, 26, "{links:?}");
    // Server 32 only passes packets on; switch <0,2> feeds two.
    let node = |name: &str| {
        let nodes = report["nodes"].as_array().unwrap();
        nodes.iter().find(|node| node["name"] == name).unwrap_or_else(|| panic!("no {name} in {nodes:?}"))
    };
    assert_eq!(node("h14")["kept"], 0);
    assert!(node("s18")["kept"].as_u64().unwrap() > 0);
    for node in report["nodes"].as_array().unwrap() {
        assert_eq!(node["transfers"], 0, "{node}");
    }
}

#[test]
fn a_tree_is_repaired_and_one_that_is_cut_off_is_named() {
    if !can(&BRIDGE) {
        return;
    }
    let place = Place::new();
    let file = place.file("object", &noise(24_000_000));
    let spec = "datacast:bcube:4,2,rate=50mbit";
    let lab = ["lab", "cast", spec, &file, "--receivers", DATACAST_GROUP, "--json"];
    let ran = polycast(&[&lab[..], &["--fail", "link:s19-h14@10%"]].concat());
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    let report = ran.json();
    all_verified(&report, 6);
    let told = |step: &&Value| {
        let step = step["step"].as_str().unwrap();
        step.contains("s19") && step.contains("h14") && step.contains("trees repaired and told")
    };
    assert!(report["control"].as_array().unwrap().iter().any(|step| told(&step)), "{report}");
    let both = ["--fail", "link:s18-h11@10%", "--fail", "link:s23-h11@10%"];
    let ran = polycast(&[&lab[..], &both].concat());
    assert_eq!(ran.status, 1, "{}", ran.stderr);
    for receiver in ran.json()["receivers"].as_array().unwrap() {
        assert_eq!(receiver["verified"], receiver["name"] != "h11", "{receiver}");
    }
}

#[test]
fn labs_come_up_are_used_and_leave_nothing_however_they_end() {
    if !can(&BRIDGE) {
        return;
    }
    let name = format!("test-{}", std::process::id());
    let made = polycast(&["lab", "up", "bridge:2", "--name", &name, "--json"]);
    assert_eq!(made.status, 0, "{}", made.stderr);
    assert_eq!(made.json()["hosts"], serde_json::json!(["h0", "h1"]));
    assert!(labs().contains(&name));
    let twice = polycast(&["lab", "up", "bridge:2", "--name", &name]);
    assert_eq!(twice.status, 1);
    assert!(twice.stderr.contains(&format!("there is a lab '{name}' already")), "{}", twice.stderr);
    let program = common::PROGRAM;
    let place = Place::new();
    let file = place.file("object", &noise(100_000));
    let sent: Ran =
        polycast(&["lab", "exec", &name, "h1", "--", program, "send", &file, "--to", "h0", "--json"]);
    assert_eq!(sent.status, 0, "{}", sent.stderr);
    all_verified(&sent.json(), 1);
    let own = polycast(&["lab", "exec", &name, "h1", "--", "sh", "-c", "ip -br addr show eth0; exit 7"]);
    assert_eq!(own.status, 7);
    assert!(own.stdout.contains("10.77.0.2/16"), "{}", own.stdout);
    let absent = polycast(&["lab", "exec", &name, "h9", "--", "true"]);
    assert!(absent.status == 1 && absent.stderr.contains("h0 to h1"), "{}", absent.stderr);
    // However its first process ends.
    let listed = polycast(&["lab", "list", "--json"]).json();
    let lab = listed.as_array().unwrap().iter().find(|lab| lab["name"] == *name).unwrap();
    let pid = lab["pid"].as_i64().unwrap().to_string();
    let inside = processes_of(&name);
    assert!(inside >= 3, "a manager and two agents");
    assert!(Command::new("kill").args(["-KILL", &pid]).status().unwrap().success());
    until("it is gone", || !labs().contains(&name) && processes_of(&name) == 0);
    assert!(!Path::new("/run/polycast-lab").join(&name).exists());
    let gone = polycast(&["lab", "down", &name]);
    assert!(gone.status == 1 && gone.stderr.contains(&format!("no lab '{name}'")), "{}", gone.stderr);
}

/// Counts the processes that have a file of this lab in their command line.
fn processes_of(lab: &str) -> usize {
    let inside = format!("/{lab}/inside/");
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = entries.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    lines.filter(|line| String::from_utf8_lossy(line).contains(&inside)).count()
}

#[test]
fn a_cast_that_is_killed_takes_its_lab_along() {
    if !can(&BRIDGE) {
        return;
    }
    let place = Place::new();
    let file = place.file("object", &noise(20_000_000));
    let mut cast =
        command(&["lab", "cast", "bridge:2,rate=10mbit", &file]).stdout(Stdio::null()).spawn().unwrap();
    let name = format!("cast-{}", cast.id());
    until("its agents run", || processes_of(&name) > 2);
    cast.kill().unwrap();
    cast.wait().unwrap();
    until("it is gone", || processes_of(&name) == 0 && !labs().contains(&name));
}

#[test]
fn circuits_and_splitters_carry_a_delivery() {
    if !can(&OPTICS) {
        return;
    }
    let place = Place::new();
    let file = place.file("object", &noise(2_000_000));
    let spec = format!("blast:racks=3,hosts=2,fanout=2,circuit-ms=4,rate=50mbit,{PATIENT}");
    let ran = polycast(&["lab", "cast", &spec, &file, "--source", "h2", "--receivers", "h0,h3,h5", "--json"]);
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    let report = ran.json();
    all_verified(&report, 3);
    // From rack 1 into the splitter, and out of it to the two other racks: not one byte elsewhere.
    for (from, to) in [("tor1", "ocs:2"), ("ocs:4", "splitter0"), ("ocs:1", "tor0"), ("ocs:3", "tor2")] {
        assert!(link(&report, from, to) > 1_000_000, "{from} -> {to}: {report}");
    }
    for (from, to) in [("tor0", "ocs:1"), ("ocs:2", "tor1"), ("splitter0", "ocs:4")] {
        assert_eq!(link(&report, from, to), 0, "{from} -> {to}: {report}");
    }
    let steps: Vec<&str> =
        report["control"].as_array().unwrap().iter().map(|step| step["step"].as_str().unwrap()).collect();
    for step in ["switches and optics", "3 circuits", "rules of rack 0", "rules of rack 2"] {
        assert!(steps.contains(&step), "{step} is not in {steps:?}");
    }
    // The whole takes at least as long as each part of it, and the source hears of it last.
    let took = |name: &str| {
        let mut steps = report["control"].as_array().unwrap().iter();
        let step = steps.find(|step| step["step"] == name).unwrap_or_else(|| panic!("no '{name}': {report}"));
        step["micros"].as_u64().unwrap()
    };
    let [at_manager, at_source] = PATH_TIMES.map(took);
    for part in ["3 circuits", "rules of rack 0", "rules of rack 1", "rules of rack 2", "scheduling"] {
        assert!(took(part) <= at_manager, "{part} took longer than all: {report}");
    }
    assert!(at_manager <= at_source, "{report}");
}

/// Names in the report for the time from a request to its path, on the manager's clock and on the source's.
const PATH_TIMES: [&str; 2] = ["request to path, at the manager", "request to path, at the source"];

/// Circuits by a switch of each kind, as its own dialect asks for them.
#[test]
fn circuits_are_made_in_every_dialect() {
    if !can(&OPTICS) {
        return;
    }
    let place = Place::new();
    let file = place.file("object", &noise(1_000_000));
    for dialect in polycast_net::devices::circuits::DIALECTS {
        let spec = format!("blast:racks=2,hosts=1,dialect={dialect},{PATIENT}");
        let ran = polycast(&["lab", "cast", &spec, &file, "--json"]);
        assert_eq!(ran.status, 0, "{dialect}: {}", ran.stderr);
        let report = ran.json();
        all_verified(&report, 1);
        assert!(over(&report, "ocs"), "{dialect}: {report}");
    }
}

/// Rules that a ToR's own tool lists, and not those that were planned.
#[test]
fn racks_relay_with_as_many_rules_as_the_paper_counts() {
    if !can(&OPTICS) {
        return;
    }
    let specs =
        [("shufflecast:2,2,hosts=1", 4), ("shufflecast:3,2,hosts=1", 6), ("shufflecast:2,3,hosts=1", 12)];
    for (spec, expected) in specs {
        let name = format!("rules-{}", std::process::id());
        let made = polycast(&["lab", "up", spec, "--name", &name]);
        assert_eq!(made.status, 0, "{}", made.stderr);
        let lab = Up(name.clone());
        let script = format!(
            "for socket in /run/polycast-lab/{name}/inside/ovs/*/tor*.mgmt; do echo tor; \
             ovs-ofctl -O OpenFlow13 dump-flows unix:$socket table=0; done"
        );
        let relayed = || {
            let listed = polycast(&["lab", "exec", &name, "network", "--", "sh", "-c", &script]);
            assert_eq!(listed.status, 0, "{}", listed.stderr);
            let rules =
                |tor: &str| tor.matches("priority=10105").count() + tor.matches("priority=10110").count();
            listed.stdout.split("tor\n").skip(1).map(rules).collect::<BTreeSet<usize>>()
        };
        // Rules of all racks may not be in yet.
        until(spec, || relayed() == BTreeSet::from([expected]));
        drop(lab);
    }
}

#[test]
fn a_circuit_switch_that_misbehaves_stops_nobody() {
    if !can(&OPTICS) {
        return;
    }
    let place = Place::new();
    let file = place.file("object", &noise(2_000_000));
    for (fault, by, said) in [
        ("refuse", "tcp-chain", "refuses ENT-CRS-FIBER"),
        ("hangup", "tcp-chain", "was lost during ENT-CRS-FIBER"),
        ("lie", "tcp-chain", "does not list it"),
        ("late=300", "ocs", ""),
    ] {
        let spec = format!("blast:racks=3,hosts=1,fanout=2,circuit-ms=4,rate=50mbit,{PATIENT}");
        let fail = format!("ocs:{fault}@0");
        let ran = polycast(&["lab", "cast", &spec, &file, "--fail", &fail, "--json"]);
        assert_eq!(ran.status, 0, "{fault}: {}", ran.stderr);
        let report = ran.json();
        all_verified(&report, 2);
        assert!(report["fabric"].as_str().unwrap().contains(by), "{fault}: {report}");
        let lost = report["path_lost"].as_str().unwrap_or_default();
        assert!(lost.contains(said) && lost.is_empty() == said.is_empty(), "{fault}: {report}");
    }
}

/// Replacement of a path that its circuit switch does not make: the next fabric carries the object, or, where
/// only the light is missing, TCP does. The case that it waits is a test of `parts.rs`.
#[test]
fn a_path_that_is_not_made_is_replaced() {
    if !can(&OPTICS) {
        return;
    }
    let place = Place::new();
    let file = place.file("object", &noise(2_000_000));
    let cast = |more: &str, fail: &str| {
        let spec = format!("blast:racks=3,hosts=1,fanout=2,circuit-ms=4,rate=50mbit{more}");
        let ran = polycast(&["lab", "cast", &spec, &file, "--json", "--fail", fail]);
        assert_eq!(ran.status, 0, "{more} {fail}: {}", ran.stderr);
        let report = ran.json();
        all_verified(&report, 2);
        report
    };
    let next = cast(",next=ip-multicast", "ocs:refuse@0");
    assert!(next["fabric"].as_str().unwrap().contains("ip-multicast"), "{next}");
    let lost = next["path_lost"].as_str().unwrap();
    assert!(lost.contains("ip-multicast took over") && lost.contains("refuses ENT-CRS-FIBER"), "{next}");
    let dark = cast("", "ocs:dark@0");
    assert!(dark["fabric"].as_str().unwrap().contains("tcp-chain"), "{dark}");
}

/// A path like the last one costs no device anything (Republic section III-B).
#[test]
fn the_same_path_again_changes_no_device() {
    if !can(&OPTICS) {
        return;
    }
    let name = format!("again-{}", std::process::id());
    let spec = format!("blast:racks=3,hosts=1,fanout=2,rate=50mbit,{PATIENT}");
    let made = polycast(&["lab", "up", &spec, "--name", &name, "--json"]);
    assert_eq!(made.status, 0, "{}", made.stderr);
    let (program, place) = (common::PROGRAM, Place::new());
    let steps: Vec<Vec<String>> = ["one", "other"]
        .into_iter()
        .zip(["1", "2"])
        .map(|(file, id)| {
            let file = place.file(file, &noise(300_000));
            let send = ["send", &file, "--to", "h1,h2", "--id", id, "--json"];
            let sent = polycast(&[&["lab", "exec", &name, "h0", "--", program][..], &send].concat());
            assert_eq!(sent.status, 0, "{}", sent.stderr);
            let report = sent.json();
            all_verified(&report, 2);
            assert!(over(&report, "ocs"), "{report}");
            let control = report["control"].as_array().unwrap().iter();
            control.map(|step| step["step"].as_str().unwrap().to_string()).collect()
        })
        .collect();
    let down = polycast(&["lab", "down", &name]);
    assert_eq!(down.status, 0, "{}", down.stderr);
    assert!(steps[0].iter().any(|step| step.ends_with("circuits")), "{steps:?}");
    let [at_manager, at_source] = PATH_TIMES;
    assert_eq!(steps[1], ["messages", "scheduling", at_manager, at_source], "nothing has to be told");
}

#[test]
fn fixed_splitters_carry_a_delivery_over_relays() {
    if !can(&OPTICS) {
        return;
    }
    let place = Place::new();
    let file = place.file("object", &noise(2_000_000));
    let spec = format!("shufflecast:2,2,hosts=1,rate=50mbit,{PATIENT}");
    let report = shown(&["lab", "cast", &spec, &file, "--source", "h3", "--json"], undisturbed);
    all_verified(&report, 7);
    let once = sent_once(&report);
    // ToR 3's relays are 2, 3, 6 and 7 (Shufflecast, figure 3); the others' splitters stay dark.
    for tor in 0..8 {
        let lit = link(&report, &format!("tor{tor}"), &format!("splitter{tor}"));
        assert_eq!(lit > 1_000_000, [2, 3, 6, 7].contains(&tor), "splitter {tor} got {lit} bytes: {report}");
        assert!([2, 3, 6, 7].contains(&tor) || lit == 0, "splitter {tor} got {lit} bytes: {report}");
        // Once, with headers and attempts.
        assert!(lit < once + once / 50 + 100_000, "splitter {tor} got {lit} bytes: {report}");
    }
}

/// The most that the source can have sent to the group: the report does not tell patches that went there from
/// those over TCP.
fn sent_once(report: &Value) -> u64 {
    report["sent_bytes"].as_u64().unwrap()
}

/// 15 ToRs as a 2,3-Shufflecast of 24 logical ones: nine have two splitters and get two copies, of which
/// hosts see one (Shufflecast section III-A1). A dead splitter is gone around there too, also by the rack
/// that has another one.
#[test]
fn racks_stand_for_several_where_there_are_fewer() {
    if !can(&OPTICS) {
        return;
    }
    let place = Place::new();
    let len = 2_000_000;
    let file = place.file("object", &noise(len));
    let spec = format!("shufflecast:2,3,tors=15,hosts=1,rate=20mbit,{PATIENT}");
    // Splitter 3 is rack 3's first one: it sends by its second then.
    for (source, fail) in [("h3", None), ("h12", None), ("h3", Some("link:splitter3@0"))] {
        let fail: Vec<&str> = fail.iter().flat_map(|fail| ["--fail", *fail]).collect();
        let cast = ["lab", "cast", &spec, &file, "--source", source, "--json"];
        let report =
            shown(&[&cast[..], &fail].concat(), |report| in_time(report) && report["path_lost"].is_null());
        all_verified(&report, 14);
        assert_eq!(report["fabric"], "shufflecast", "{report}");
        let once = sent_once(&report);
        let links = report["links"].as_array().unwrap().iter();
        let into = |link: &&Value| link["to"].as_str().unwrap().starts_with("splitter");
        let lit: Vec<u64> = links.filter(into).map(|link| link["bytes"].as_u64().unwrap()).collect();
        let whole = |bytes: &&u64| (len as u64..once + once / 20 + 100_000).contains(*bytes);
        assert!(lit.iter().all(|bytes| *bytes == 0 || whole(&bytes)), "each is lit once or not: {lit:?}");
        // Every column has a partition of four that relays.
        assert_eq!(lit.iter().filter(whole).count(), 12, "{lit:?}");
        for receiver in report["receivers"].as_array().unwrap() {
            let host = receiver["name"].as_str().unwrap();
            let got = link(&report, &format!("tor{}", &host[1..]), host);
            let most = once * 11 / 10 + receiver["patched_bytes"].as_u64().unwrap() * 11 / 10 + 100_000;
            assert!(got < most, "{host} got {got} bytes, and one copy with its patches is {most}: {report}");
        }
    }
}

#[test]
fn a_dead_splitter_holds_nobody_up() {
    if !can(&OPTICS) {
        return;
    }
    let place = Place::new();
    let file = place.file("object", &noise(4_000_000));
    let spec = "shufflecast:2,2,hosts=1,rate=20mbit";
    // ToR 4 relays for ToR 0, and feeds ToRs 0 and 1. It is this splitter that fails, and not one of the
    // racks that miss its light, of which one is the source's. A lab takes a splitter's ports down one after
    // the other: where its machine stands still between the two, one rack misses light that the other one
    // has, and says so when it is asked.
    let report = shown(&["lab", "cast", spec, &file, "--fail", "link:splitter4@10%", "--json"], |report| {
        report["path_lost"].is_null()
    });
    all_verified(&report, 7);
    assert!(over(&report, "shufflecast"), "{report}");
    assert!(report["events"].to_string().contains("rack 4 relays no more"), "{report}");
}

/// Every link of the tree carries the object once, the agents' detour apart, and hosts outside the group get
/// nothing.
#[test]
fn labels_lead_to_the_receivers_and_nowhere_else() {
    if !can(&LABELS) {
        return;
    }
    let place = Place::new();
    let file = place.file("object", &noise(8_000_000));
    let (spec, receivers) = ("orca:4,rate=100mbit", "h0,h3,h9,h11,h12");
    let cast = ["lab", "cast", spec, &file, "--source", "h1", "--receivers", receivers, "--json"];
    let report = shown(&cast, in_time);
    all_verified(&report, 5);
    let (source, receivers) = (1, [0, 3, 9, 11, 12]);
    let carried = |from: &str, to: &str, times: u64| {
        // Not once more: patches come over the same links.
        let (bytes, least) = (link(&report, from, to), 8_000_000 * times);
        (least..least + 7_000_000).contains(&bytes)
    };
    // One of the two hosts of a rack is its agent, whichever was heard first: packets go there and back.
    for leaf in [0, 1, 4, 5, 6] {
        let is_right = |agent: u32| {
            (2 * leaf..2 * leaf + 2).all(|host| {
                let (detour, switch, server) =
                    (u64::from(host == agent), format!("leaf{leaf}"), format!("h{host}"));
                carried(&server, &switch, detour + u64::from(host == source))
                    && carried(&switch, &server, detour + u64::from(receivers.contains(&host)))
            })
        };
        assert!(is_right(2 * leaf) || is_right(2 * leaf + 1), "leaf{leaf}: {}", report["links"]);
    }
    for bystander in ["h4", "h5", "h6", "h7", "h14", "h15"] {
        let leaf = format!("leaf{}", bystander[1..].parse::<u32>().unwrap() / 2);
        let bytes = link(&report, &leaf, bystander);
        assert!(bytes < 200_000, "{bystander}: {bytes} bytes");
    }
    let patched = report["patched_bytes"].as_u64().unwrap();
    let core = link(&report, "leaf4", "core");
    assert!(
        core < 500_000 + patched * 11 / 10,
        "what has a label does not go over the packet core: {report}"
    );
}

/// With labels that name the leafs of pods: every link of the tree carries the object once, and others
/// nothing.
#[test]
fn labels_with_pods_lead_to_the_receivers_and_nowhere_else() {
    if !can(&LABELS) {
        return;
    }
    let place = Place::new();
    let file = place.file("object", &noise(8_000_000));
    let cast = ["lab", "cast", "orca:4,rate=100mbit,encoding=pods", &file, "--source", "h1"];
    let report = shown(&[&cast[..], &["--receivers", "h0,h3,h9,h11,h12", "--json"]].concat(), in_time);
    all_verified(&report, 5);
    assert_eq!(report["fabric"], "orca", "{report}");
    for leaf in 0..8 {
        // Packets come down to the leafs of receivers but the source's own, where they come from above, too.
        let from_above: u64 = (0..4)
            .map(|spine| link(&report, &format!("spine{}", leaf / 2 * 2 + spine % 2), &format!("leaf{leaf}")))
            .sum::<u64>()
            / 2;
        let times = u64::from([0, 1, 4, 5, 6].contains(&leaf));
        let (least, most) = (8_000_000 * times, sent_once(&report) * 11 / 10 * times + 200_000);
        assert!((least..most).contains(&from_above), "leaf{leaf}: {from_above}, {}", report["links"]);
    }
    for bystander in ["h4", "h5", "h6", "h7", "h14", "h15"] {
        let leaf = format!("leaf{}", bystander[1..].parse::<u32>().unwrap() / 2);
        let bytes = link(&report, &leaf, bystander);
        assert!(bytes < 200_000, "{bystander}: {bytes} bytes");
    }
}

/// A switch on the way fails in mid-transfer: the source gets another label, and nothing goes over TCP.
/// Whatever way the first label took, the way of the second one is in the report.
#[test]
fn labels_lead_around_switches_that_fail() {
    if !can(&LABELS) {
        return;
    }
    let place = Place::new();
    let file = place.file("object", &noise(24_000_000));
    let both = ["--fail", "link:spine0@10%", "--fail", "link:core3@30%", "--json"];
    let cast = ["lab", "cast", "orca:4,rate=100mbit,trees=2", &file];
    let report = shown(&[&cast[..], &both].concat(), |report| {
        all_verified(report, 15);
        report["fabric"] == "orca" && in_time(report)
    });
    let rerouted = |event: &&Value| event["what"].as_str().unwrap().contains("orca goes another way");
    assert!(report["events"].as_array().unwrap().iter().any(|event| rerouted(&event)), "{report}");
    // Every tree of the source's two went through one of its pod's spines: one is dead, and the other carried
    // the rest.
    assert!(link(&report, "leaf0", "spine1") > 12_000_000, "{report}");
}

/// A spine and a core die in mid-transfer without a link going dark: their neighbours' probes tell, and the
/// source gets another label.
#[test]
fn labels_lead_around_switches_that_fall_silent() {
    if !can(&["ip", "tc", "clang"]) {
        return;
    }
    let place = Place::new();
    let file = place.file("object", &noise(24_000_000));
    let both = ["--fail", "silent:spine0@10%", "--fail", "silent:core3@30%", "--json"];
    let cast = ["lab", "cast", "orca:4,rate=100mbit,trees=2", &file];
    let report = shown(&[&cast[..], &both].concat(), |report| {
        all_verified(report, 15);
        report["fabric"] == "orca" && in_time(report)
    });
    // The source's pod has two spines, and above the other one two cores, of which one is left: the way of
    // all that came later.
    assert!(link(&report, "leaf0", "spine1") > 12_000_000, "{report}");
    let events = report["events"].as_array().unwrap();
    let last = events.iter().rfind(|event| event["what"].as_str().unwrap().contains("orca goes another way"));
    assert!(last.is_some(), "{report}");
}

/// The source hears one receiver of each rack, and all of them when that one dies.
#[test]
fn a_source_hears_racks() {
    if !can(&["ip", "tc", "clang"]) {
        return;
    }
    let place = Place::new();
    let file = place.file("object", &noise(24_000_000));
    let cast = |settings: &str, file: &str, more: &[&str], status: i32| {
        let spec = format!("orca:4{settings}");
        let ran = polycast(&[&["lab", "cast", &spec, file, "--json"][..], more].concat());
        assert_eq!(ran.status, status, "{}", ran.stderr);
        ran.json()
    };
    // What a busy machine loses is told of as well, by hosts and racks alike: where packets come slowly it
    // loses few.
    let few = place.file("few", &noise(3_000_000));
    until("racks are heard less than hosts", || {
        let [hosts, racks] = [",rate=10mbit,feedback=0", ",rate=10mbit"].map(|settings| {
            let report = cast(settings, &few, &[], 0);
            all_verified(&report, 15);
            report["heard"].as_u64().unwrap()
        });
        racks * 10 < hosts * 9
    });
    // One of the two in the rack speaks for the other: whichever it is, that one is served to the end.
    let report = cast(",rate=150mbit", &file, &["--fail", "agent:h4@10%"], 1);
    let failed = report["receivers"].as_array().unwrap().iter().filter(|r| r["verified"] == false);
    assert_eq!(failed.map(|r| r["name"].as_str().unwrap()).collect::<Vec<_>>(), ["h4"]);
    assert!(over(&report, "orca"), "{report}");
}

/// A lab that is taken down however its test ends.
struct Up(String);

impl Drop for Up {
    fn drop(&mut self) {
        let down = polycast(&["lab", "down", &self.0]);
        assert!(std::thread::panicking() || down.status == 0, "{}", down.stderr);
    }
}

/// Labelled packets that are wrong, from hosts of a lab: each kind is named once in the log, and none reaches
/// a host that does not have to look at it.
#[test]
fn wrong_labels_are_dropped_and_named_once() {
    if !can(&["ip", "tc", "clang", "bash", "nft"]) {
        return;
    }
    let name = format!("wrong-{}", std::process::id());
    let lab = Up(name.clone());
    let made = polycast(&["lab", "up", "orca:4,probe-ms=0,standby=0", "--name", &name, "--json"]);
    assert_eq!(made.status, 0, "{}", made.stderr);
    let exec = |host: &str, script: &str| {
        let ran = polycast(&["lab", "exec", &name, host, "--", "bash", "-c", script]);
        assert_eq!(ran.status, 0, "{}", ran.stderr);
        ran.stdout
    };
    // What comes to a host that has nothing to do with it, whether it listens or not.
    let counts = "nft add table inet seen; \
                  nft add chain inet seen early '{ type filter hook prerouting priority -300; }'; \
                  nft add rule inet seen early udp dport 7474 counter";
    exec("h15", counts);
    // Version, length of the label, two zeros, session 239.77.64.9, label of ten bytes, two of padding; a
    // hundred times. The shell's own printf would cut a datagram at a line feed, which ten is.
    let send = |host: &str, front: &str, label: &str| {
        let packet = format!("{front}\\x00\\x00\\xef\\x4d\\x40\\x09{label}payload");
        exec(
            host,
            &format!("for i in {{1..100}}; do env printf '{packet}' > /dev/udp/239.77.64.9/7474; done"),
        );
    };
    let label = |first: &str| format!("{first}{}", "\\x00".repeat(11));
    send("h0", "\\x03\\x0b", &label("\\x00"));
    send("h0", "\\x04\\x0a", &label("\\x00"));
    // A leaf label for both hosts of the rack, from the one that is no agent.
    send("h3", "\\x03\\x0a", &label("\\xe0"));
    // To both leafs of the pod, whose agents do not know the session.
    send("h4", "\\x03\\x0a", &label("\\x18"));
    let folder = format!("/run/polycast-lab/{name}/log");
    let log = |daemon: &str| std::fs::read_to_string(format!("{folder}/{daemon}.log")).unwrap_or_default();
    let of_leaf = |leaf: &str, what: &str| {
        let log = log("labels");
        log.lines().filter(|line| line.contains(&format!("device={leaf} ")) && line.contains(what)).count()
    };
    let unknown = || {
        let logs = (4..8).map(|host| log(&format!("rack-h{host}")));
        logs.map(|log| log.matches("a session without a label").count()).collect::<Vec<_>>()
    };
    let named = || {
        [
            of_leaf("leaf0", "another length"),
            of_leaf("leaf0", "another version"),
            of_leaf("leaf1", "no agent of this rack"),
        ]
    };
    until("each is named", || !named().contains(&0) && unknown().iter().sum::<usize>() >= 2);
    // If one is named again, it has happened by then.
    std::thread::sleep(Duration::from_millis(700));
    let seen = exec("h15", "nft list table inet seen");
    let counted = named();
    let unknown = unknown();
    drop(lab);
    assert_eq!(counted, [1, 1, 1]);
    assert!(unknown.iter().all(|count| *count <= 1) && unknown.iter().sum::<usize>() == 2, "{unknown:?}");
    assert!(seen.contains("counter packets 0 "), "a host that has nothing to do with it got some: {seen}");
}

#[test]
fn what_is_no_lab_is_refused_in_a_sentence() {
    for (arguments, part) in [
        (&["lab", "cast", "wormhole:3", "/etc/hostname"][..], "no network 'wormhole'"),
        (&["lab", "cast", "bridge:3", "/no/such/file"], "/no/such/file"),
        (&["lab", "cast", "bridge:3", "/etc/hostname", "--fail", "sun"], "WHAT@SECONDS"),
        (&["lab", "up", "bridge:3000"], "2 to 200"),
        (&["lab", "down"], "required"),
    ] {
        let ran = polycast(arguments);
        assert_eq!(ran.status, 1, "{arguments:?}");
        assert!(ran.stderr.contains(part), "{arguments:?}: {}", ran.stderr);
    }
    if !can(&BRIDGE) {
        return;
    }
    for (arguments, part) in [
        (&["lab", "cast", "bridge:3", "/etc/hostname", "--source", "h7"][..], "no host 'h7'"),
        (&["lab", "cast", "bridge:3", "/etc/hostname", "--fail", "link:tor1@1"], "no node 'tor1'"),
        (&["lab", "cast", "bridge:3", "/etc/hostname", "--fail", "silent:core1@1"], "no label switches"),
        (&["lab", "up", "bridge:3", "--name", "../x"], "no name for a lab"),
        (&["lab", "down", "no-such-lab"], "no lab 'no-such-lab'"),
    ] {
        let ran = polycast(arguments);
        assert_eq!(ran.status, 1, "{arguments:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(part), "{arguments:?}: {}", ran.stderr);
    }
}

#[test]
fn ways_are_compared_in_one_lab() {
    if !can(&["ip", "tc", "aria2c"]) {
        return;
    }
    let place = Place::new();
    let len = 4_000_000;
    let file = place.file("object", &noise(len));
    let ways = "single-tree,tcp,bittorrent";
    let spec = "datacast:bcube:4,2,rate=50mbit";
    let ran =
        polycast(&["lab", "compare", spec, &file, "--receivers", DATACAST_GROUP, "--with", ways, "--json"]);
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    let report = ran.json();
    assert_eq!(report["ideal_links"], 13);
    let run = |way: &str| {
        let runs = report["runs"].as_array().unwrap();
        runs.iter().find(|run| run["way"] == way).unwrap_or_else(|| panic!("no {way} in {report}")).clone()
    };
    let stress = |way: &str, what: &str| run(way)["stress"][what].as_f64().unwrap();
    for way in ["polycast", "single-tree", "tcp", "bittorrent"] {
        assert_eq!(run(way)["verified"], true, "{way}");
        assert!(run(way)["seconds"].as_f64().unwrap() > 0.0);
    }
    // Two trees carry half each, and more where something is sent again; one tree passes every link once, and
    // the source has two branches of it.
    assert!(stress("polycast", "link") > 0.49, "{report}");
    assert!(stress("single-tree", "link") > 0.99, "{report}");
    assert!(stress("single-tree", "source") > 1.9, "{report}");
    // Six copies leave the source.
    assert!(stress("tcp", "source") >= 6.0, "{report}");
    assert!(stress("bittorrent", "network") > 1.0, "{report}");
    let ratio = run("tcp")["network_ratio"].as_f64().unwrap();
    assert!((ratio - stress("tcp", "network") / stress("polycast", "network")).abs() < 1e-6, "{report}");
}

/// Copies of one file, as most people make them: each crosses the source's link, and each receiver has the
/// object.
#[test]
fn scp_rsync_and_nfs_send_a_copy_to_every_receiver() {
    if !can(&["ip", "tc", "sshd", "scp", "rsync", "ganesha.nfsd", "nfs-cp"]) {
        return;
    }
    let place = Place::new();
    // A name that a remote shell would take apart.
    let file = place.file("the object; $HOME", &noise(3_000_000));
    let ran = polycast(&["lab", "compare", "bridge:4", &file, "--with", "scp,rsync,nfs", "--json"]);
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    let report = ran.json();
    let runs = report["runs"].as_array().unwrap();
    let ways: Vec<&str> = runs.iter().map(|run| run["way"].as_str().unwrap()).collect();
    assert_eq!(ways, ["polycast", "scp", "rsync", "nfs"]);
    for run in runs {
        assert_eq!(run["verified"], true, "{run}");
        let copies = run["stress"]["source"].as_f64().unwrap();
        assert!(copies >= if run["way"] == "polycast" { 1.0 } else { 3.0 }, "{run}");
    }
}

#[test]
fn ways_that_a_lab_does_not_have_are_named_before_it_is_made() {
    let place = Place::new();
    let file = place.file("object", b"x");
    for (arguments, part) in [
        (["bridge:3", &file, "--with", "single-tree"], "datacast:bcube:4,2"),
        (
            ["bridge:3", &file, "--with", "pigeon"],
            "write polycast, tcp, scp, rsync, nfs, bittorrent or single-tree",
        ),
    ] {
        let ran = polycast(&[&["lab", "compare"], &arguments[..]].concat());
        assert_ne!(ran.status, 0);
        assert!(ran.stderr.contains(part), "{}", ran.stderr);
    }
}

#[test]
fn other_traffic_and_rates_are_read_while_a_transfer_runs() {
    if !can(&BRIDGE) {
        return;
    }
    let place = Place::new();
    let file = place.file("object", &noise(6_000_000));
    let lab = ["lab", "cast", "bridge:4,rate=50mbit", &file, "--receivers", "1,2", "--sample", "100"];
    let ran = polycast(&[&lab[..], &["--flow", "3-h2@0..5=64KiB", "--json"]].concat());
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    let report = ran.json();
    all_verified(&report, 2);
    assert_eq!(report["readings"]["links"], serde_json::json!(["switch"]));
    let samples = report["readings"]["samples"].as_array().unwrap();
    let most = |of: &str| samples.iter().map(|sample| sample[of][0].as_u64().unwrap()).max().unwrap();
    assert!(most("links_bps") > 1_000_000 && most("flows_bps") > 100_000, "{samples:?}");
}

#[test]
fn messages_over_labels_reach_those_who_join_and_survive_a_racks_agent() {
    if !can(&LABELS) {
        return;
    }
    let load = ["--rate", "2000", "--bytes", "3000", "--json"];
    let joined = polycast(&[&["bench", "join", "orca:4", "--joins", "28"][..], &load].concat());
    assert_eq!(joined.status, 0, "{}", joined.stderr);
    let joined = joined.json();
    // In every rack, twice: h0 sends and h2 stays.
    let hosts: Vec<String> =
        [1].into_iter().chain(3..16).cycle().take(28).map(|host| format!("h{host}")).collect();
    let each = joined["each"].as_array().unwrap();
    assert_eq!(each.iter().map(|join| join["host"].as_str().unwrap()).collect::<Vec<_>>(), hosts);
    let flow = &joined["flow"];
    assert!(flow["received"].as_u64().unwrap() > 100 && flow["failed"] == 0, "{flow}");

    // A machine on which messages come more rarely than an agent is replaced shows no gap: then it is
    // measured again.
    let measure = || polycast(&[&["bench", "rack-kill", "orca:4", "--kills", "2"][..], &load].concat());
    let shows = |ran: &common::Ran| !ran.stderr.contains("no receiver missed a message");
    let killed = std::iter::repeat_with(measure).take(5).find(shows).expect("a kill is seen in one of five");
    assert_eq!(killed.status, 0, "{}", killed.stderr);
    let killed = &killed.json()[0];
    let gaps = killed["gaps"].as_array().unwrap();
    assert_eq!(
        (killed["kills"].as_u64(), gaps.len()),
        (Some(2), 2),
        "two kills, seen by the other host: {killed}"
    );
    // Another agent has taken over, and what the dead one got is lost: said, not passed over.
    assert!(gaps.iter().all(|gap| gap["gap_ns"].as_u64() > Some(0)), "{killed}");
    assert!(gaps.iter().any(|gap| gap["lost"].as_u64() > Some(0)), "{killed}");
}

#[test]
fn many_groups_leave_no_state_behind() {
    if !can(&BRIDGE) {
        return;
    }
    let place = Place::new();
    let file = place.file("object", &noise(3_000));
    let ran = polycast(&["lab", "soak", "datacast:bcube:2,2", &file, "--groups", "60", "--json"]);
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    let report = ran.json();
    assert_eq!(report["verified"], 60, "{report}");
    assert_eq!(report["left"], serde_json::json!({ "transfers": 0, "pending": 0 }));
    let memory = report["memory"].as_array().unwrap();
    assert_eq!((memory.len(), &memory[10]["groups"]), (11, &serde_json::json!(60)));
    assert!(memory.iter().all(|one| one["manager_bytes"].as_u64().unwrap() > 1 << 20), "{report}");
    // Each of the three receivers' nodes keeps the packet.
    let stores = [&memory[0], &memory[10]].map(|one| one["stores_bytes"].as_u64().unwrap());
    assert!(stores[0] == 0 && stores[1] >= 60 * 3 * 3_000, "{report}");
}

#[test]
fn a_host_joins_a_transfer_over_trees_while_it_runs() {
    if !can(&BRIDGE) {
        return;
    }
    let place = Place::new();
    let file = place.file("object", &noise(24_000_000));
    let spec = "datacast:bcube:4,2,rate=50mbit";
    let lab = ["lab", "cast", spec, &file, "--receivers", "2,4,9", "--join", "h13@10%", "--json"];
    let ran = polycast(&lab);
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    let report = ran.json();
    all_verified(&report, 4);
    let late = report["receivers"].as_array().unwrap().iter().find(|one| one["name"] == "h13");
    assert_eq!(late.unwrap()["fabric"], "datacast", "{report}");
    for node in report["nodes"].as_array().unwrap() {
        assert_eq!(node["transfers"], 0, "{node}");
    }
}

/// Counts the object's pieces of 16 bytes in a row that hosts of this lab could see while it was sent to all
/// of them.
fn seen_in(spec: &str) -> usize {
    let place = Place::new();
    let object = noise(1_000_000);
    let file = place.file("object", &object);
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let lab = format!("seen-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
    let up = polycast(&["lab", "up", spec, "--name", &lab]);
    assert_eq!(up.status, 0, "{}", up.stderr);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../crates/polycast/tests/sealed/eaves.py");
    let kept: Vec<String> = (0..3).map(|host| place.path(&format!("frames{host}"))).collect();
    let mut listening = Vec::new();
    for (host, kept) in kept.iter().enumerate() {
        let mut ears = command(&["lab", "exec", &lab, &format!("h{host}"), "--", "python3", script, kept]);
        let mut child = ears.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = [0; 7];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut line).unwrap();
        assert_eq!(&line, b"stands\n");
        listening.push(child);
    }
    let send = [common::PROGRAM, "send", &file, "--to", "h1,h2", "--json"];
    let ran = polycast(&[&["lab", "exec", &lab, "h0", "--"], &send[..]].concat());
    let down = polycast(&["lab", "down", &lab]);
    listening.iter_mut().for_each(|child| drop(child.kill()));
    listening.iter_mut().for_each(|child| drop(child.wait()));
    assert_eq!((ran.status, down.status), (0, 0), "{}", ran.stderr);
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(report["sealed"], !spec.contains("sealed=0"), "{spec}: {report}");
    let windows: BTreeSet<&[u8]> = object.chunks_exact(16).collect();
    let mut seen = BTreeSet::new();
    for kept in kept {
        let frames = std::fs::read(kept).unwrap();
        assert!(frames.len() > object.len(), "{} bytes were heard", frames.len());
        seen.extend(frames.windows(16).filter_map(|window| windows.get(window).copied()));
    }
    seen.len()
}

/// Source, caches and receivers: a listener there that is no agent sees nothing of the object.
#[test]
fn who_listens_in_a_lab_reads_nothing() {
    if !can(&["ip", "tc", "python3"]) {
        return;
    }
    assert!(seen_in("bridge:3,sealed=0") > 60_000, "one who listens to what is not sealed sees it");
    for spec in ["bridge:3", "datacast:bcube:2,2"] {
        assert_eq!(seen_in(spec), 0, "{spec}");
    }
}

#[test]
fn who_listens_to_labels_reads_nothing() {
    if can(&["ip", "tc", "clang", "python3"]) {
        assert_eq!(seen_in("orca:4"), 0);
    }
}

#[test]
fn who_listens_to_optics_reads_nothing() {
    if can(&["ip", "tc", "ovs-vswitchd", "ethtool", "python3"]) {
        assert_eq!(seen_in("shufflecast:2,2"), 0);
        assert_eq!(seen_in("blast:racks=4,hosts=1"), 0);
    }
}
