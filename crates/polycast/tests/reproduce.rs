//! `polycast reproduce` lists, computes, draws, and says what is wrong with what was typed.

mod common;

use common::polycast;
use serde_json::Value;

#[test]
fn without_arguments_the_items_are_listed() {
    let ran = polycast(&["reproduce", "--json"]);
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    let list: Value = serde_json::from_str(&ran.stdout).unwrap();
    let has = |paper: &str, item: &str| {
        list.as_array().unwrap().iter().any(|entry| entry["paper"] == paper && entry["item"] == item)
    };
    assert!(has("blast", "table-1") && has("shufflecast", "fig-10"), "{list}");
    assert!(polycast(&["reproduce"]).stdout.contains("  fig-10 "));
}

#[test]
fn rows_carry_the_papers_number_and_ours() {
    let ran = polycast(&["reproduce", "shufflecast", "fig-10", "--quick", "--json"]);
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    let rows: Value = serde_json::from_str(&ran.stdout).unwrap();
    for row in rows.as_array().unwrap() {
        assert_eq!(row["item"], "shufflecast fig-10");
        assert!(row["ours"].is_number() && row["name"].is_string() && row["unit"].is_string(), "{row}");
        assert!(row["note"].is_string() && row.get("paper").is_some(), "{row}");
    }
    assert!(rows.as_array().unwrap().len() >= 3);
}

#[test]
fn the_report_is_one_page_and_a_file_per_figure() {
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("new/report");
    let ran = polycast(&["reproduce", "shufflecast", "fig-10", "--out", out.to_str().unwrap()]);
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    let page = std::fs::read_to_string(out.join("index.html")).unwrap();
    assert!(page.starts_with("<!DOCTYPE html>") && page.trim_end().ends_with("</html>"));
    for entry in std::fs::read_dir(&out).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(
            name == "index.html" || (name.starts_with("shufflecast-") && name.ends_with(".svg")),
            "{name}"
        );
    }
}

#[test]
fn wrong_names_are_answered_with_the_choices() {
    let ran = polycast(&["reproduce", "elmo"]);
    assert_eq!(ran.status, 1);
    assert!(ran.stderr.contains("blast, datacast, orca, republic, shufflecast or all"), "{}", ran.stderr);
    let ran = polycast(&["reproduce", "blast", "fig-77", "--json"]);
    assert_eq!(ran.status, 1);
    assert!(ran.stdout.contains("table-1"), "{}", ran.stdout);
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("file");
    std::fs::write(&file, "x").unwrap();
    let ran = polycast(&["reproduce", "shufflecast", "fig-10", "--out", file.to_str().unwrap()]);
    assert_eq!(ran.status, 1, "{}", ran.stderr);
    assert!(ran.stderr.contains("cannot create"), "{}", ran.stderr);
}
