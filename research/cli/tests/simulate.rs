//! `polycast simulate`: the JSON document, the seed, and wrong scenarios.

#[path = "../../../crates/polycast/tests/common/mod.rs"]
mod common;

use common::{Place, polycast};
use std::fs;

fn sample(name: &str) -> String {
    format!("{}/../../docs/scenarios/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn document(arguments: &[&str]) -> serde_json::Value {
    let ran = polycast(arguments);
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    serde_json::from_str(&ran.stdout).unwrap()
}

#[test]
fn one_seed_gives_one_trace() {
    let scenario = sample("spine-fails.toml");
    let run = |seed: &str| document(&["simulate", &scenario, "--seed", seed, "--json"]);
    let (first, second, other) = (run("3"), run("3"), run("4"));
    assert_eq!(first["trace_hash"], second["trace_hash"]);
    assert_ne!(first["trace_hash"], other["trace_hash"]);
    let receivers = first["receivers"].as_array().unwrap();
    assert_eq!(receivers.iter().map(|r| r["id"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 4, 5, 8, 11]);
    let last = receivers.iter().map(|r| r["finish_s"].as_f64().unwrap()).fold(0.0, f64::max);
    assert_eq!(first["finish_s"].as_f64(), Some(last));
    let bytes = |link: &serde_json::Value| link["bytes"].as_u64().unwrap();
    let sum: u64 = first["links"].as_array().unwrap().iter().map(bytes).sum();
    assert_eq!(first["bytes_on_links"].as_u64(), Some(sum));
    for key in ["drops", "duplicates", "events"] {
        assert!(first[key].as_u64().is_some(), "{key}");
    }
    assert!(first["wall_s"].as_f64().is_some());
}

#[test]
fn wrong_scenarios_are_named() {
    let place = Place::new();
    let path = place.path("wrong.toml");
    let text = fs::read_to_string(sample("rack-push.toml")).unwrap();
    for (from, to, said) in [
        ("loss =", "los =", "wrong.toml line 11: unknown field `los`"),
        ("receivers = \"all\"", "receivers = [1, 32]", "transfer.receivers: host 32 is not there"),
        ("rate = \"10gbit\"", "rate = \"-10gbit\"", "rate: '-10gbit' is not a rate"),
        ("to = 17", "to = 9", "flow[0].to: host 9 would send to itself"),
    ] {
        fs::write(&path, text.replacen(from, to, 1)).unwrap();
        let ran = polycast(&["simulate", &path]);
        assert_eq!((ran.status, ran.stdout.as_str()), (1, ""), "{to}");
        assert!(ran.stderr.starts_with("error: ") && ran.stderr.contains(said), "{to}: {}", ran.stderr);
        assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
    }
    let ran = polycast(&["simulate", &place.path("missing.toml")]);
    assert_eq!(ran.status, 1);
    assert!(ran.stderr.contains("missing.toml: no such file or directory"), "{}", ran.stderr);
}

#[test]
fn receivers_that_never_finish_make_it_fail() {
    let place = Place::new();
    let path = place.path("cut.toml");
    let text = fs::read_to_string(sample("rack-push.toml")).unwrap();
    let cut = "\n[[failure]]\nat = \"1ms\"\nnode = 36\n";
    fs::write(
        &path,
        format!("time_limit = \"1s\"\n{text}{cut}")
            .replace("topology = \"leaf-spine:4,2,8\"", "topology = \"leaf-spine:4,1,8\""),
    )
    .unwrap();
    let ran = polycast(&["simulate", &path, "--json"]);
    assert_eq!(ran.status, 1, "{}", ran.stderr);
    let document: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert!(document["finish_s"].is_null());
    assert!(document["receivers"].as_array().unwrap().iter().any(|r| r["failure"].is_string()));
}

#[test]
fn a_series_has_a_row_for_each_receiver_and_link_at_each_time() {
    let place = Place::new();
    let (scenario, path) = (sample("rack-push.toml"), place.path("series.csv"));
    let plain = document(&["simulate", &scenario, "--json"]);
    let watched = document(&["simulate", &scenario, "--json", "--series", &path, "--interval", "5ms"]);
    assert_eq!(plain["trace_hash"], watched["trace_hash"], "looking at a run does not change it");
    let csv = fs::read_to_string(&path).unwrap();
    let mut lines = csv.lines();
    assert_eq!(lines.next(), Some("time_s,kind,from,to,bytes,rate_bps,queue_bytes,drops,transfer"));
    let rows: Vec<Vec<&str>> = lines.map(|line| line.split(',').collect()).collect();
    assert!(rows.iter().all(|row| row.len() == 9), "{csv}");
    let last = rows.last().unwrap()[0];
    let end: Vec<_> = rows.iter().filter(|row| row[0] == last).collect();
    let has_all = |row: &&&Vec<&str>| row[1] == "receiver" && row[4] == "16777216";
    assert_eq!(end.iter().filter(has_all).count(), 31);
    let link = |at: &str, from: &str| {
        let row = rows.iter().find(|row| row[0] == at && row[1] == "link" && row[2] == from).unwrap();
        row[4].parse::<u64>().unwrap()
    };
    let of_source = watched["links"].as_array().unwrap().iter().find(|link| link["from"] == 0).unwrap();
    assert_eq!(of_source["bytes"].as_u64(), Some(link(last, "0")));
    assert!(link("0.005", "0") < link("0.01", "0"));
    let ran = polycast(&["simulate", &scenario, "--series", "/nowhere/series.csv"]);
    assert_eq!(ran.status, 1);
    assert!(ran.stderr.starts_with("error: cannot create /nowhere/series.csv: no such"), "{}", ran.stderr);
}

#[test]
fn several_transfers_are_told_apart() {
    let place = Place::new();
    let (scenario, path) = (sample("transfers.toml"), place.path("series.csv"));
    let run = document(&["simulate", &scenario, "--json", "--series", &path]);
    let transfers = run["transfers"].as_array().unwrap();
    let seconds = |value: &serde_json::Value| value.as_f64().unwrap();
    assert_eq!(transfers.iter().map(|t| t["source"].as_u64().unwrap()).collect::<Vec<_>>(), [0, 0, 3]);
    assert_eq!(seconds(&transfers[2]["start_s"]), 0.005);
    for (transfer, number) in transfers.iter().zip(0..) {
        let receivers = run["receivers"].as_array().unwrap().iter().filter(|r| r["transfer"] == number);
        let last = receivers.map(|r| seconds(&r["finish_s"])).fold(0.0, f64::max);
        assert_eq!(seconds(&transfer["finish_s"]), last);
    }
    // Host 9 is a receiver of the first two, and has a row for each at each time.
    let csv = fs::read_to_string(&path).unwrap();
    let last = csv.lines().last().unwrap().split(',').next().unwrap();
    let rows = |number: &str| {
        let of = |line: &&str| line.starts_with(&format!("{last},receiver,9,,")) && line.ends_with(number);
        csv.lines().filter(of).count()
    };
    assert_eq!((rows(",0"), rows(",1"), rows(",2")), (1, 1, 0));
    let people = polycast(&["simulate", &scenario]);
    assert!(people.stdout.contains("transfer  source"), "{}", people.stdout);
    let swept = document(&["simulate", &scenario, "--json", "--sweep", "transfer[1].push.rate=1gbit,4gbit"]);
    let second = |run: &serde_json::Value| seconds(&run["transfers"][1]["finish_s"]);
    assert!(second(&swept[0]) > second(&swept[1]), "{swept}");
}

#[test]
fn a_sweep_runs_each_value_with_each() {
    let place = Place::new();
    let (scenario, out) = (sample("spine-fails.toml"), place.path("sweep.csv"));
    let sweeps = ["--sweep", "transfer.bytes=1M,2M", "--sweep", "seed=1,2,3", "--out", &out];
    let words = [&["simulate", scenario.as_str(), "--json"][..], &sweeps].concat();
    let runs = document(&words);
    let runs = runs.as_array().unwrap();
    assert_eq!(runs.len(), 6);
    assert_eq!(runs[4]["sweep"], serde_json::json!({ "transfer.bytes": "2M", "seed": "2" }));
    let alone = document(&["simulate", &scenario, "--json", "--seed", "3"]);
    assert_ne!(alone["trace_hash"], runs[2]["trace_hash"], "another size is another run");
    assert!(runs[0]["bytes_on_links"].as_u64().unwrap() < runs[3]["bytes_on_links"].as_u64().unwrap());
    let csv = fs::read_to_string(&out).unwrap();
    let lines: Vec<&str> = csv.lines().collect();
    assert!(lines[0].starts_with("transfer.bytes,seed,receivers,have_it,") && lines.len() == 7, "{csv}");
    assert!(lines[5].contains(runs[4]["trace_hash"].as_str().unwrap()), "{csv}");
    for (sweep, said) in [
        ("links.queue=lots", "spine-fails.toml with links.queue=lots: queue: 'lots' is not a size"),
        ("links.que=1", "unknown field `que`"),
        ("transfer.source=99", "with transfer.source=99: transfer.source: host 99 is not there"),
        ("flow[3].to=1", "flow[3].to: the scenario has"),
        ("seed", "write KEY=V1,V2"),
    ] {
        let ran = polycast(&["simulate", &scenario, "--sweep", sweep]);
        assert_eq!((ran.status, ran.stdout.as_str()), (1, ""), "{sweep}");
        assert!(ran.stderr.contains(said), "{sweep}: {}", ran.stderr);
    }
    // Rows are there as soon as their runs are: the second one is refused.
    let partial = place.path("partial.csv");
    let sweep = "transfer.bytes=1M,lots";
    let ran = polycast(&["simulate", &scenario, "--sweep", sweep, "--out", &partial]);
    let rows: Vec<&str> = ran.stdout.lines().collect();
    assert_eq!((ran.status, rows.len()), (1, 2), "{}", ran.stdout);
    assert!(rows[0].starts_with("transfer.bytes  ") && rows[1].starts_with("1M  "), "{}", ran.stdout);
    assert!(ran.stderr.contains("run 1 of 2: transfer.bytes=1M\nrun 2 of 2"), "{}", ran.stderr);
    assert_eq!(fs::read_to_string(&partial).unwrap().lines().count(), 2);
}

#[test]
fn the_ideal_stands_beside_the_time() {
    // 16 MiB at 10 Gbit/s.
    let scenario = sample("splitters.toml");
    let run = document(&["simulate", &scenario, "--json"]);
    let ideal_s = run["transfers"][0]["ideal_s"].as_f64().unwrap();
    assert!((ideal_s - 0.013_421_773).abs() < 1e-9, "{ideal_s}");
    assert!(run["finish_s"].as_f64().unwrap() > ideal_s);
    let people = polycast(&["simulate", &scenario]);
    assert!(people.stdout.contains("the ideal is 13.4 ms"), "{}", people.stdout);
    // The source has a link of its own to the circuit switch, which is faster than the one to the packet
    // switch.
    let run = document(&["simulate", &sample("circuits.toml"), "--json"]);
    let ideal_s = run["transfers"][0]["ideal_s"].as_f64().unwrap();
    assert!((ideal_s - 0.026_843_546).abs() < 1e-8, "{ideal_s}");
}

/// The trees of BCube(4,2) are two, and have no direction of a link in common: each brings 1 Gbit/s.
#[test]
fn the_ideal_of_trees_is_what_all_of_them_bring() {
    let scenario = sample("bcube-pull.toml");
    let run = document(&["simulate", &scenario, "--json"]);
    let ideal_s = run["transfers"][0]["ideal_s"].as_f64().unwrap();
    assert!((ideal_s - f64::from(8 << 20) * 8.0 / 2e9).abs() < 1e-8, "{ideal_s}");
    assert!(run["finish_s"].as_f64().unwrap() > ideal_s);
    let people = polycast(&["simulate", &scenario]);
    assert!(people.stdout.contains("the bytes alone, over its 2 trees at once"), "{}", people.stdout);
    // One tree alone brings half of that.
    let one = polycast(&["simulate", &scenario, "--sweep", "pull.trees=1,2"]);
    assert!(one.stdout.contains("33.6 ms") && one.stdout.contains("67.1 ms"), "{}", one.stdout);
}
