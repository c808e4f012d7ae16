//! Help is there for everything, and goes where it belongs.

mod common;

use common::{command, polycast};
use std::process::Stdio;

const COMMANDS: [&str; 22] = [
    "cast",
    "offer",
    "accept",
    "manager",
    "agent",
    "forwarder",
    "label-switch",
    "rack-agent",
    "send",
    "get",
    "fetch",
    "hf",
    "publish",
    "subscribe",
    "ls",
    "rm",
    "pin",
    "unpin",
    "status",
    "doctor",
    "completions",
    "man",
];
/// Commands that another program runs.
const ELSEWHERE: [&str; 4] = ["plan", "simulate", "lab", "reproduce"];

#[test]
fn the_first_page_names_every_command() {
    let ran = polycast(&["--help"]);
    assert_eq!(ran.status, 0);
    assert!(ran.stderr.is_empty());
    for name in COMMANDS.into_iter().chain(ELSEWHERE) {
        assert!(ran.stdout.contains(&format!("\n  {name} ")), "{name} is not in\n{}", ran.stdout);
    }
    for words in ["Exit status:", "polycast cast FILE", "--json", "POLYCAST_LOG"] {
        assert!(ran.stdout.contains(words), "'{words}' is not in\n{}", ran.stdout);
    }
}

#[test]
fn every_command_has_a_page() {
    for name in COMMANDS {
        let ran = polycast(&[name, "--help"]);
        assert_eq!(ran.status, 0, "{name}");
        assert!(ran.stderr.is_empty(), "{name}: {}", ran.stderr);
        assert!(ran.stdout.contains("--json"), "{name}");
        let too_wide = ran.stdout.lines().find(|line| line.chars().count() > 110);
        assert_eq!(too_wide, None, "{name}");
        // A comment that is broken stands below its command as if it were one.
        let is_example = |line: &&str| line.starts_with("  polycast ") && line.contains(" (");
        let broken = ran.stdout.lines().filter(is_example).find(|line| line.len() > 80);
        assert_eq!(broken, None, "{name}");
        assert_eq!(polycast(&["help", name]).stdout, ran.stdout);
    }
    assert!(polycast(&["offer", "--help"]).stdout.contains("Examples:"));
}

#[test]
fn the_version_is_one_line_and_says_what_is_in_the_build() {
    let ran = polycast(&["--version"]);
    let programs = "orca_switch, orca_agent, datacast";
    let version = env!("CARGO_PKG_VERSION");
    let expected = format!("polycast {version} (kernel programs: {programs})\n");
    assert_eq!((ran.status, ran.stdout), (0, expected));
}

#[test]
fn nothing_at_all_shows_help_and_fails() {
    let ran = polycast(&[]);
    assert_eq!(ran.status, 1);
    assert!(ran.stdout.is_empty());
    assert!(ran.stderr.contains("Usage: polycast"));
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let mut child = command(&["--help"]).stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let ran: common::Ran = child.wait_with_output().unwrap().into();
    assert!(!ran.stderr.contains("panicked"), "{}", ran.stderr);
    assert_eq!(ran.status, 0);
}
