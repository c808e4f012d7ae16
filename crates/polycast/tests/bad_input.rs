//! Wrong input: one clear sentence on standard error, exit status 1, nothing half-written.

mod common;

use common::{Place, Ran, polycast};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

/// Runs a command that must fail as the user's fault, and returns what it says.
fn refusal(arguments: &[&str]) -> String {
    sentence(arguments, polycast(arguments))
}

/// Runs it as `refusal` does, bound by permissions: the rights that free root of them are dropped.
fn refusal_of_permissions(arguments: &[&str]) -> String {
    if !rustix::process::geteuid().is_root() {
        return refusal(arguments);
    }
    let rights = "-dac_override,-dac_read_search";
    let program = common::command(arguments);
    let mut bound = Command::new("setpriv");
    bound.args(["--bounding-set", rights, "--inh-caps", rights]).arg(program.get_program());
    let ran =
        bound.args(arguments).stdin(Stdio::null()).output().expect("setpriv is a part of Linux systems");
    sentence(arguments, ran.into())
}

/// The first line of what a command said that had to fail.
fn sentence(arguments: &[&str], ran: Ran) -> String {
    assert_eq!(ran.status, 1, "{arguments:?}: {}", ran.stderr);
    assert!(ran.stdout.is_empty(), "{arguments:?} printed {}", ran.stdout);
    let first = ran.stderr.lines().next().unwrap_or_default().to_string();
    assert!(first.starts_with("error: "), "{arguments:?}: {first}");
    assert!(!first.contains("os error"), "{arguments:?}: {first}");
    first
}

#[test]
fn wrong_words_are_named() {
    for (arguments, said) in [
        (&["frobnicate"][..], "frobnicate"),
        (&["cast", "x", "--bogus"], "--bogus"),
        (&["cast"], "required arguments"),
        (&["offer", "x"], "required arguments"),
        (&["accept"], "required arguments"),
        (&["cast", "x", "--receivers", "0"], "1 to 1000"),
        (&["cast", "x", "--receivers", "many"], "whole number"),
        (&["offer", "x", "--receivers", "0"], "1 to 100000"),
        (&["cast", "x", "--loss", "1"], "below 1"),
        (&["cast", "x", "--loss", "-0.1"], "-0"),
        (&["cast", "x", "--loss", "NaN"], "below 1"),
        (&["cast", "x", "--seed", "x"], "--seed"),
        (&["offer", "x", "--receivers", "1", "--rate", "fast"], "'fast' is not a rate"),
        (&["offer", "x", "--receivers", "1", "--timeout", "soon"], "write a time"),
        (&["send", "x", "--to", "a,b,a"], "'a' is named twice"),
        (&["send", "x", "--to", ""], "names with commas"),
        (&["send", "x", "--to", "a", "--id", "x"], "not an object id"),
        (&["get", "-", "--out", "x"], "not an object id"),
        (&["manager", "--listen", "nowhere"], "--listen"),
        (&["--log", "loud", "cast", "x"], "'loud' is not a log level"),
    ] {
        let line = refusal(arguments);
        assert!(line.contains(said), "{arguments:?}: {line}");
    }
}

#[test]
fn objects_that_cannot_be_read_are_named() {
    let place = Place::new();
    let missing = place.path("missing");
    for command in [&["cast", &missing][..], &["offer", &missing, "--receivers", "1"]] {
        assert!(refusal(command).contains("missing: no such file or directory"));
    }
    assert!(refusal(&["cast", "/dev/null"]).contains("/dev/null is a device"));
    let pipe = place.path("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0)
        .unwrap();
    assert!(refusal(&["cast", &pipe]).contains("pipe is a named pipe"));
    assert!(refusal(&["cast", place.root()]).contains("pipe is a named pipe"));
}

#[test]
fn a_file_without_permission_is_named() {
    let place = Place::new();
    let locked = place.file("locked", b"x");
    fs::set_permissions(&locked, fs::Permissions::from_mode(0o000)).unwrap();
    assert!(refusal_of_permissions(&["cast", &locked]).contains("locked: permission denied"));
    assert!(refusal_of_permissions(&["cast", place.root()]).contains("locked: Permission denied"));
}

#[test]
fn places_that_cannot_be_written_are_named() {
    let place = Place::new();
    let file = place.file("file", b"x");
    assert!(refusal(&["cast", &file, "--out", &file]).contains("cannot write to"));
    assert!(refusal(&["cast", &file, "--out", "/proc/polycast"]).contains("/proc/polycast"));
    assert!(refusal(&["accept", "--out", &place.path("missing/file")]).contains("missing/file"));
    assert!(refusal(&["accept", "--out", "/dev/null"]).contains("special file"));
}

#[test]
fn interfaces_that_are_not_there_are_named() {
    let place = Place::new();
    let file = place.file("file", b"x");
    let line = refusal(&["offer", &file, "--receivers", "1", "--interface", "nothing0"]);
    assert!(line.contains("nothing0"), "{line}");
    let out = place.path("out");
    assert!(refusal(&["accept", "--out", &out, "--interface", "203.0.113.9"]).contains("203.0.113.9"));
    assert!(!std::path::Path::new(&out).exists());
}

#[test]
fn with_json_failures_are_documents_too() {
    for arguments in
        [&["cast", "/missing", "--json"][..], &["--json", "cast", "--bogus"], &["offer", "--json"]]
    {
        let ran = polycast(arguments);
        assert_eq!(ran.status, 1);
        let document: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
        assert!(document["error"].as_str().is_some_and(|text| !text.is_empty()), "{document}");
        assert!(!ran.stderr.is_empty());
    }
}
