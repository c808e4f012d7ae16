//! The P4 switches of `p4/` do with packets what the forwarding code of `labels::switches` does.
//!
//! They are held to the lines that the Verilog switches are held to. The programs are run by an interpreter
//! of the tests' own (`machine`), and, where they are installed, by the compiler p4c and the switch BMv2.

mod bits;
#[path = "../lines/mod.rs"]
mod lines;
mod machine;
mod packets;
mod syntax;

use lines::{Case, LINES, LeafLines, core_lines, leaf_lines, spine_lines};
use machine::Switch;
use packets::{CPU_PORT, Script, Step, checksummed, frame};
use polycast_testing::{Need, needs};
use std::path::{Path, PathBuf};
use std::process::Command;

fn programs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../p4")
}

/// The options that give a program its network.
fn options(case: &Case) -> Vec<String> {
    let define = |(name, value): (&'static str, u32)| match name {
        "LABEL_BITS" => format!("-DLABEL_LEN={}", value / 8),
        name => format!("-D{name}={value}"),
    };
    case.parameters().into_iter().map(define).collect()
}

/// A program behind the C preprocessor, without what v1model declares.
fn program(switch: &str, case: &Case) -> Vec<syntax::Item> {
    let empty = tempfile::tempdir().unwrap();
    for name in ["core.p4", "v1model.p4"] {
        std::fs::write(empty.path().join(name), "").unwrap();
    }
    let read = Command::new("cc")
        .args(["-E", "-P", "-x", "c", "-nostdinc", "-I"])
        .arg(empty.path())
        .args(options(case))
        .arg(programs().join(format!("orca_{switch}.p4")))
        .output()
        .unwrap();
    assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
    syntax::read(&String::from_utf8(read.stdout).unwrap())
}

/// Runs the script in the tests' interpreter: how many packets were compared, and how many copies were wrong.
fn interpret(switch: &str, case: &Case, script: &Script) -> (u32, u32) {
    let mut device = Switch::new(&program(switch, case), (0..script.ports).collect());
    let (mut compared, mut wrong) = (0, 0);
    for step in &script.steps {
        match step {
            Step::Command(command) => device.command(command),
            Step::Packet { port, bytes, copies } => {
                let got = device.packet(*port, bytes);
                compared += 1;
                wrong += u32::from(got != *copies);
                if got != *copies && wrong < 4 {
                    println!("{switch}, port {port}, {bytes:02x?}: {got:02x?} and not {copies:02x?}");
                }
            }
        }
    }
    (compared, wrong)
}

/// A program with its lines as a script, for each network.
fn leafs() -> Vec<(Case, Script)> {
    let with_lines = |mut case: Case| {
        let LeafLines { lines, refused, taken } = leaf_lines(&mut case);
        assert!(refused > 20 && taken > 20, "{refused} leaf labels refused, {taken} taken");
        let script = Script::of_leaf(&case, &lines);
        (case, script)
    };
    Case::all().into_iter().map(with_lines).collect()
}

fn cores() -> Vec<(Case, Script)> {
    let has_cores = |case: &Case| case.clos().cores_per_spine() > 0;
    let with_lines = |mut case: Case| {
        let lines = core_lines(&mut case);
        let script = Script::of_core(&case, &lines);
        (case, script)
    };
    Case::all().into_iter().filter(has_cores).map(with_lines).collect()
}

fn spines() -> Vec<(Case, Script)> {
    let with_lines = |mut case: Case| {
        let said = spine_lines(&mut case);
        assert!(said.blocked > 20, "entries are put to the test: {} packets", said.blocked);
        let script = Script::of_spine(&case, said.pod, &said.lines);
        (case, script)
    };
    Case::all().into_iter().map(with_lines).collect()
}

fn all_agree(switch: &str, scripts: &[(Case, Script)]) {
    for (case, script) in scripts {
        let (compared, wrong) = interpret(switch, case, script);
        assert!(compared > LINES / 2, "{switch}: {compared} packets");
        assert_eq!(wrong, 0, "{switch}: {wrong} of {compared} packets went elsewhere");
    }
}

#[test]
fn leafs_in_p4_do_what_ours_do() {
    all_agree("leaf", &leafs());
}

#[test]
fn cores_in_p4_do_what_ours_do() {
    all_agree("core", &cores());
}

#[test]
fn spines_in_p4_do_what_ours_do() {
    all_agree("spine", &spines());
}

/// Frames that are no labelled packets, or bad ones, and what a switch does with them.
fn others(case: &Case) -> Script {
    let len = case.planner.format().bytes() as usize;
    let good = frame(0, 7, &vec![0; len], 1);
    let changed = |at: usize, to: u8| {
        let mut bytes = good.clone();
        bytes[at] = to;
        bytes
    };
    let (front, label_end) = (packets::HEADER_AT, packets::HEADER_AT + 8 + len);
    let mut script = Script { ports: 2, steps: Vec::new() };
    let mut add = |bytes: Vec<u8>, copies| script.steps.push(Step::Packet { port: 0, bytes, copies });
    // For the switch's own processor: another protocol, options, a fragment, TCP, another port of UDP.
    for (at, to) in [(12, 0x86), (14, 0x46), (20, 0x20), (21, 1), (23, 6), (37, 1)] {
        let bytes = changed(at, to);
        add(bytes.clone(), vec![(CPU_PORT, bytes)]);
    }
    // Another version, another length, a kind that there is not, a byte that is no zero, bytes behind the
    // label.
    for (at, to) in [(front, 2), (front + 1, len as u8 + 1), (front + 2, 4), (front + 3, 1)] {
        add(changed(at, to), Vec::new());
    }
    if !len.is_multiple_of(4) {
        add(changed(label_end, 1), Vec::new());
    }
    // Cut within a header.
    for end in [label_end.next_multiple_of(2) - 2, front + 7, front - 1, 30, 10] {
        add(good[..end].to_vec(), Vec::new());
    }
    // A probe goes back as its answer; an answer is for the processor.
    let probe = |answer: u8| [&good[..front], &[0x83, answer, 0, 0, 1, 2, 3, 4]].concat();
    let (question, answer) = (checksummed(probe(0), false), checksummed(probe(1), false));
    add(question, vec![(0, answer.clone())]);
    add(answer.clone(), vec![(CPU_PORT, answer)]);
    // A port that the switch does not have.
    let bytes = frame(0, 7, &vec![0xff; len], 1);
    script.steps.push(Step::Packet { port: 300, bytes, copies: Vec::new() });
    script
}

#[test]
fn frames_that_are_no_labelled_packets_are_not_forwarded() {
    for case in Case::all() {
        let script = others(&case);
        let switches = if case.clos().cores_per_spine() > 0 { 3 } else { 2 };
        for switch in &["leaf", "spine", "core"][..switches] {
            assert_eq!(interpret(switch, &case, &script).1, 0, "{switch}");
        }
    }
}

/// A wrong output is found: the test can fail.
#[test]
fn a_copy_too_many_is_found() {
    let (case, mut script) = cores().remove(1);
    let copies = script.steps.iter_mut().rev().find_map(|step| match step {
        Step::Packet { copies, .. } if copies.len() > 1 => Some(copies),
        _ => None,
    });
    copies.unwrap().pop();
    assert_eq!(interpret("core", &case, &script).1, 1);
}

/// Compiles a program with p4c and runs the script on BMv2, in a network namespace of its own.
fn run_on_bmv2(switch: &str, case: &Case, script: &Script) -> (u32, u32) {
    let folder = tempfile::tempdir().unwrap();
    let (compiled, steps) = (folder.path().join("switch.json"), folder.path().join("steps"));
    let made = Command::new("p4c-bm2-ss")
        .args(options(case))
        .arg("-o")
        .args([&compiled, &programs().join(format!("orca_{switch}.p4"))])
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    std::fs::write(&steps, script.text()).unwrap();
    let run = Command::new("unshare")
        .args(["--net", "python3"])
        .arg(programs().join("tests/bmv2.py"))
        .args([&compiled, &steps])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&run.stdout).into_owned();
    let last: Vec<&str> =
        said.lines().rfind(|line| line.starts_with("compared")).unwrap_or_default().split(' ').collect();
    assert_eq!(last.len(), 4, "{switch}: {said}{}", String::from_utf8_lossy(&run.stderr));
    if last[3] != "0" {
        println!("{switch}: {said}");
    }
    (last[1].parse().unwrap(), last[3].parse().unwrap())
}

#[test]
#[ignore = "it takes p4c-bm2-ss, simple_switch and simple_switch_CLI, which no package of Debian brings"]
fn switches_in_bmv2_do_what_ours_do() {
    let tools = ["p4c-bm2-ss", "simple_switch", "simple_switch_CLI", "python3", "ip"].map(Need::Tool);
    if needs(&[Need::Root, Need::Namespaces]) && needs(&tools) {
        for (switch, scripts) in [("core", cores()), ("leaf", leafs()), ("spine", spines())] {
            for (case, mut script) in scripts {
                script.steps.extend(others(&case).steps.into_iter().filter(Step::has_its_port));
                let packets = script.packets();
                println!("{switch}, {} ports: {packets} packets", script.ports);
                assert_eq!(run_on_bmv2(switch, &case, &script), (packets, 0), "{switch}");
            }
        }
    }
}
