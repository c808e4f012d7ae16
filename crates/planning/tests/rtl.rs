//! The Verilog switches of `rtl/` do what the forwarding code of `labels::switches` does, clock by clock.
//!
//! Every test writes lines of inputs and of the outputs that our own code gives, and lets iverilog compare.
//! The lines are described in `rtl/README.md`. Skipped without iverilog.

mod lines;

use lines::{Case, LINES, LeafLines, SET_BITS, bucket_bits, core_lines, leaf_lines, spine_lines};
use polycast_testing::{Need, needs};
use std::path::{Path, PathBuf};
use std::process::Command;

fn rtl() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../rtl")
}

fn has_iverilog() -> bool {
    needs(&[Need::Tool("iverilog"), Need::Tool("vvp")])
}

/// Simulates a switch with these lines: how many were compared, and how many outputs were wrong.
fn simulate(switch: &str, name: &str, parameters: &[(&'static str, u32)], lines: &str) -> (u32, u32) {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (program, vectors) =
        (folder.join(format!("rtl-{switch}-{name}")), folder.join(format!("rtl-{switch}-{name}.txt")));
    std::fs::write(&vectors, lines).unwrap();
    let top = format!("{switch}_test");
    let compiled = Command::new("iverilog")
        .args(["-g2012", "-s", &top, "-I"])
        .arg(rtl())
        .args(parameters.iter().map(|(name, value)| format!("-P{top}.{name}={value}")))
        .arg("-o")
        .arg(&program)
        .args([rtl().join(format!("tests/{top}.v")), rtl().join(format!("orca_{switch}.v"))])
        .output()
        .unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let run =
        Command::new("vvp").arg(&program).arg(format!("+vectors={}", vectors.display())).output().unwrap();
    let said = String::from_utf8_lossy(&run.stdout).into_owned();
    let last: Vec<&str> =
        said.lines().rfind(|line| line.starts_with("compared")).unwrap_or_default().split(' ').collect();
    assert_eq!(last.len(), 4, "{switch} {name}: {said}");
    if last[3] != "0" {
        println!("{switch} {name}: {said}");
    }
    (last[1].parse().unwrap(), last[3].parse().unwrap())
}

#[test]
fn leafs_in_verilog_do_what_ours_do() {
    if has_iverilog() {
        for (at, mut case) in Case::all().into_iter().enumerate() {
            let LeafLines { lines, refused, taken } = leaf_lines(&mut case);
            assert!(refused > 20 && taken > 20, "{refused} leaf labels refused, {taken} taken");
            assert_eq!(simulate("leaf", &at.to_string(), &case.parameters(), &lines), (LINES, 0));
        }
    }
}

#[test]
fn cores_in_verilog_do_what_ours_do() {
    if has_iverilog() {
        for (at, mut case) in Case::all().into_iter().enumerate() {
            if case.clos().cores_per_spine() > 0 {
                let lines = core_lines(&mut case);
                assert_eq!(simulate("core", &at.to_string(), &case.parameters(), &lines), (LINES, 0));
            }
        }
    }
}

#[test]
fn spines_in_verilog_do_what_ours_do() {
    if has_iverilog() {
        let (mut outside, mut asked) = (0, 0);
        for (at, mut case) in Case::all().into_iter().enumerate() {
            let said = spine_lines(&mut case);
            let (clos, mut parameters) = (case.clos(), case.parameters());
            let own = bucket_bits(case.planner.format().filter_bits);
            parameters.push(("BUCKET_BITS", own));
            parameters.push(("UP_PORTS", clos.cores_per_spine().max(1)));
            parameters.push(("SET_BITS", SET_BITS));
            parameters.push(("POD", said.pod));
            let compared = LINES + clos.cores_per_spine().max(1) + 3;
            assert_eq!(simulate("spine", &at.to_string(), &parameters, &said.lines), (compared, 0));
            assert!(said.blocked > 20, "entries are put to the test: {} packets", said.blocked);
            outside += said.outside;
            asked += said.asked;
        }
        assert!(asked > 100, "labels that ask are put to the test: {asked} packets");
        assert!(outside > 20, "ports outside the switch are put to the test: {outside} packets");
    }
}

/// A wrong output is found: the test can fail.
#[test]
fn a_wrong_output_is_found() {
    if has_iverilog() {
        let mut case = Case::all().remove(1);
        let mut lines = core_lines(&mut case);
        let end = lines.trim_end().len();
        let last = lines[end - 1..end].parse::<u32>().unwrap_or(9);
        lines.replace_range(end - 1..end, if last == 0 { "1" } else { "0" });
        assert_eq!(simulate("core", "wrong", &case.parameters(), &lines), (LINES, 1));
    }
}
