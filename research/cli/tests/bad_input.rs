//! Wrong input of the commands that this program alone has: one clear sentence, exit status 1.

#[path = "../../../crates/polycast/tests/common/mod.rs"]
mod common;

use common::{bad, command, polycast};

#[test]
fn files_that_are_none_get_one_sentence() {
    bad::check_files(&[
        &["plan", "circuits"],
        &["plan", "cost", "--tors", "4", "--rate", "10g", "--parts"],
        &["simulate"],
    ]);
}

/// A polycast of another build that starts this program is told so; one of the same build gets what it asks
/// for.
#[test]
fn a_program_of_another_build_is_named() {
    let plan = ["plan", "cost", "--tors", "4", "--rate", "10g"];
    let run = |started_by: &str| -> common::Ran {
        command(&plan).env("POLYCAST_STARTED_BY", started_by).output().unwrap().into()
    };
    let own = format!("version {}", env!("CARGO_PKG_VERSION"));
    assert_eq!(run(&own).stdout, polycast(&plan).stdout);
    let other = run("version 99.0.0 (commit 0123456789)");
    assert_eq!((other.status, other.stdout.as_str()), (1, ""));
    let said = format!(
        "error: polycast-research is {own}, and the polycast that started it is version 99.0.0 (commit 0123456789)\n"
    );
    assert!(other.stderr.starts_with(&said), "{}", other.stderr);
    assert!(other.stderr.contains("install both from one build"), "{}", other.stderr);
}

/// The program has the commands of `polycast` too, under that name.
#[test]
fn pages_are_of_one_command_line() {
    let page = polycast(&["plan", "cost", "--help"]).stdout;
    assert!(page.contains("Usage: polycast plan cost [OPTIONS]"), "{page}");
    assert_eq!(polycast(&["help", "plan", "cost"]).stdout, page);
    assert!(polycast(&["send", "--help"]).stdout.contains("Usage: polycast send"));
    assert!(polycast(&["completions", "bash"]).stdout.contains("--tors"));
}
