//! `polycast reproduce` lists, computes, draws, and says what is wrong with what was typed.

#[path = "../../../crates/polycast/tests/common/mod.rs"]
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
fn the_report_is_a_page_a_paper_and_a_file_per_figure() {
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("new/report");
    let ran = polycast(&["reproduce", "shufflecast", "fig-10", "--out", out.to_str().unwrap()]);
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    let [index, page, truth] = ["index.html", "shufflecast.html", "truth.html"]
        .map(|name| std::fs::read_to_string(out.join(name)).unwrap());
    assert!(!index.contains("<td>Orca "), "figures of papers that were not asked for: {index}");
    assert!(index.contains("href=\"shufflecast.html\""), "{index}");
    for entry in std::fs::read_dir(&out).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let is_figure =
            name.starts_with("shufflecast-") && [".svg", ".csv"].iter().any(|end| name.ends_with(end));
        assert!(
            ["index.html", "shufflecast.html", "truth.html", "rows.csv"].contains(&name.as_str())
                || is_figure,
            "{name}"
        );
        let beside = name.strip_suffix(".svg").map(|name| out.join(format!("{name}.csv")));
        assert!(beside.is_none_or(|beside| beside.exists()), "{name} has no numbers beside it");
    }
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    assert!(truth.contains("<p>1 of ") && truth.contains(" tests fail.</p>"), "{truth}");
    for page in [&index, &page, &truth] {
        assert!(page.starts_with("<!DOCTYPE html>") && page.trim_end().ends_with("</html>"));
        assert!(host.trim().len() < 6 || !page.contains(host.trim()), "the page names the machine");
        for words in [
            concat!("<td>polycast ", env!("CARGO_PKG_VERSION")),
            " UTC</td>",
            "<th>processor</th>",
            "<th>kernel</th>",
            "polycast reproduce shufflecast fig-10 --out ",
        ] {
            assert!(page.contains(words), "{words}: {page}");
        }
    }
    assert!(page.contains("<th>verdict</th>") && page.contains("<h2>What agrees</h2>"), "{page}");
    let rows = std::fs::read_to_string(out.join("rows.csv")).unwrap();
    let begins = "item,name,paper,ours,unit,tolerance,verdict,note,kind,place\nshufflecast fig-10,";
    assert!(rows.starts_with(begins), "{rows}");
}

/// Rows of items that are soon done: each has a kind, a number of the paper has the place where it is
/// printed, and a verdict is one that the numbers can turn.
#[test]
fn rows_have_a_kind_and_their_numbers_a_place() {
    for (paper, item) in
        [("shufflecast", "fig-1"), ("shufflecast", "fig-6b"), ("shufflecast", "fig-7"), ("orca", "fig-5c")]
    {
        let ran = polycast(&["reproduce", paper, item, "--quick", "--json"]);
        assert_eq!(ran.status, 0, "{}", ran.stderr);
        let rows: Value = serde_json::from_str(&ran.stdout).unwrap();
        for row in rows.as_array().unwrap() {
            assert!(["measured", "simulated", "computed"].contains(&row["kind"].as_str().unwrap()), "{row}");
            assert_eq!(row["paper"].is_number(), !row["place"].as_str().unwrap().is_empty(), "{row}");
        }
    }
}

/// Items that need a lab: without root the paper's numbers stand alone and the note says why, and with it
/// ours are there. The exit status is that of a run that was done in both cases.
#[test]
fn an_item_that_needs_a_lab_is_measured_or_says_why_not() {
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("report");
    let ran = polycast(&["reproduce", "orca", "fig-5d", "--quick", "--json", "--out", out.to_str().unwrap()]);
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    let rows: Value = serde_json::from_str(&ran.stdout).unwrap();
    let rows = rows.as_array().unwrap();
    let median = rows.iter().find(|row| row["name"] == "packets of 72 bytes: latency, median").unwrap();
    assert_eq!((&median["paper"], &median["kind"]), (&11.3.into(), &"measured".into()));
    let csv = std::fs::read_to_string(out.join("rows.csv")).unwrap();
    let page = std::fs::read_to_string(out.join("orca.html")).unwrap();
    if median["ours"].is_null() {
        assert!(median["note"].as_str().unwrap().len() > 10, "{median}");
        assert!(rows.iter().all(|row| row["ours"].is_null()) && !csv.contains("NaN"), "{csv}");
        assert!(!page.contains("NaN"), "{page}");
    } else {
        assert!(median["ours"].as_f64() > Some(0.0) && rows.len() > 10, "{median}");
        assert!(out.join("orca-fig-5d.svg").exists());
    }
}

#[test]
fn the_table_has_a_line_for_every_figure_of_a_paper() {
    let ran = polycast(&["reproduce", "shufflecast", "fig-1", "--table", "--json"]);
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    let lines: Value = serde_json::from_str(&ran.stdout).unwrap();
    let lines = lines.as_array().unwrap();
    assert!(lines.len() > 10 && lines.iter().all(|line| line["paper"] == "shufflecast"));
    let one = lines.iter().find(|line| line["figure"] == "Fig. 1").unwrap();
    assert_eq!(
        (&one["printed"], &one["kind"], &one["agrees"]),
        (&107.0.into(), &"computed".into(), &true.into())
    );
    assert!(one["ratio"].as_f64().is_some_and(|ratio| (ratio - 1.0).abs() < 0.01), "{one}");
    let other = lines.iter().find(|line| line["figure"] == "Fig. 8(c)").unwrap();
    assert!(
        other["ours"].is_null() && other["reason"].as_str().unwrap().contains("docs/howto/spark.md"),
        "{other}"
    );
    let text = polycast(&["reproduce", "shufflecast", "fig-1", "--table"]).stdout;
    assert!(text.starts_with("| figure |") && text.contains("| shufflecast Fig. 1 |"), "{text}");
}

/// Items that are done when the user ends the report are on its page, which states that it is partial.
#[test]
fn a_report_that_is_ended_early_is_partial() {
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("report");
    // The items of the paper that is drawn from millions of sessions are far from done when the first ones of
    // another are.
    let mut command = std::process::Command::new(common::PROGRAM);
    command.args(["reproduce", "all", "--json", "--out"]).arg(&out);
    let mut child =
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap();
    let mut said = std::io::BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut said, &mut line).unwrap();
    assert!(line.ends_with(" s\n"), "{line}");
    let first = line.split(':').next().unwrap().to_string();
    let ended = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(ended.success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let rows: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(rows.as_array().unwrap().iter().any(|row| row["item"] == first.as_str()), "{first}");
    let paper = first.split(' ').next().unwrap();
    for page in ["index.html".to_string(), "truth.html".into(), format!("{paper}.html")] {
        let page = std::fs::read_to_string(out.join(page)).unwrap();
        assert!(
            page.contains("This page is partial: it was ended when ") && page.contains("Missing: "),
            "{first}"
        );
    }
    let page = std::fs::read_to_string(out.join(format!("{paper}.html"))).unwrap();
    assert!(page.contains(&format!("<code>polycast reproduce {first}</code>")), "{first}");
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
