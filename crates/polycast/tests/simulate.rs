//! `polycast simulate`: the JSON document, the seed, and wrong scenarios.

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
