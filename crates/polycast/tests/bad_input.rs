//! Wrong input: one clear sentence on standard error, exit status 1, nothing half-written.

mod common;

use common::bad::{self, refusal, sentence};
use common::{Place, Ran, polycast};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

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

#[test]
fn wrong_words_are_named() {
    for (arguments, said) in [
        (&["frobnicate"][..], "frobnicate"),
        (&["cast", "x", "--bogus"], "--bogus"),
        (&["cast"], "required arguments"),
        (&["offer"], "required arguments"),
        (&["accept", "lusab", "x!"], "letters and digits"),
        (&["accept", "--out", "x", "--into", "y"], "cannot be used with"),
        (&["accept", "--force", "--update"], "cannot be used with"),
        (&["cast", "x", "--receivers", "0"], "1 to 1000"),
        (&["cast", "x", "--receivers", "many"], "whole number"),
        (&["offer", "x", "--receivers", "0"], "1 to 100000"),
        (&["cast", "x", "--loss", "1"], "below 1"),
        (&["cast", "x", "--loss", "-0.1"], "-0"),
        (&["cast", "x", "--loss", "NaN"], "below 1"),
        (&["cast", "x", "--seed", "x"], "--seed"),
        (&["offer", "x", "--receivers", "1", "--rate", "fast"], "'fast' is not a rate"),
        (&["offer", "x", "--receivers", "1", "--rate", "5"], "'5' has no unit: write 5mbit or 5gbit"),
        (&["offer", "x", "--receivers", "1", "--timeout", "soon"], "write a time"),
        (&["send", "x", "--to", "a,b,a"], "'a' is named twice"),
        (&["send", "x", "--to", ""], "names with commas"),
        (&["doctor", "--to", "fd00::1"], "an IPv6 address needs brackets: write [fd00::1]"),
        (&["doctor", "--to", "fe80::1%eth0"], "is an address of one link"),
        (&["send", "x", "--to", "a", "--id", "x"], "not an object id"),
        (&["get", "-", "--out", "x"], "not an object id"),
        (&["manager", "--listen", "nowhere"], "--listen"),
        (&["manager", "--listen", "fd00::1:7400"], "such as 0.0.0.0:7400 or [::]:7400"),
        (&["offer", "x", "--receivers", "1", "--code", "summer2026"], "this code can be guessed"),
        (&["offer", "-", "--receivers", "1", "--code", "-"], "either the object or the code"),
        (&["accept", "-"], "no code in its first line"),
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
}

#[test]
fn a_file_without_permission_is_named() {
    let place = Place::new();
    let locked = place.file("locked", b"x");
    fs::set_permissions(&locked, fs::Permissions::from_mode(0o000)).unwrap();
    assert!(refusal_of_permissions(&["cast", &locked]).contains("locked: permission denied"));
    assert!(refusal_of_permissions(&["cast", place.root()]).contains("locked: permission denied"));
}

#[test]
fn places_that_cannot_be_written_are_named() {
    let place = Place::new();
    let file = place.file("file", b"x");
    assert!(refusal(&["cast", &file, "--out", &file]).contains("file is no folder"));
    assert!(
        refusal(&["audit", "verify", &place.path("no-log")]).contains("no-log: it cannot be read: no such")
    );
    assert!(refusal(&["cast", &file, "--out", "/proc/polycast"]).contains("/proc/polycast"));
    assert!(refusal(&["accept", "--out", &place.path("missing/file")]).contains("missing/file"));
    for path in ["/dev/null", "/dev/stdout", "/proc/self/object", "/sys/object"] {
        assert!(refusal(&["accept", "--out", path, "--force"]).contains("holds no files of users"));
    }
    let here = refusal(&["accept", "--out", place.root()]);
    assert!(["--into", "--update", "--force"].iter().all(|way| here.contains(way)), "{here}");
    assert!(refusal(&["accept", "--into", &file]).contains("no directory"));
    let both = polycast(&["accept", "--out", "-", "--json"]);
    assert!(both.status == 1 && both.stdout.contains("both write to standard output"), "{}", both.stdout);
}

#[test]
fn files_that_are_none_get_one_sentence() {
    bad::check_files(&[
        &["manager", "--config"],
        &["agent", "--config"],
        &["forwarder", "--config"],
        &["label-switch", "--config"],
        &["rack-agent", "--config"],
    ]);
}

#[test]
fn variables_that_are_none_get_one_sentence() {
    use std::os::unix::ffi::OsStrExt;
    let long = "x".repeat(100_000);
    for (variable, value) in [
        ("POLYCAST_LOG", b"\xff\xfe".as_slice()),
        ("POLYCAST_LOG", b"===,[[["),
        ("POLYCAST_LOG", long.as_bytes()),
        ("POLYCAST_SOCKET", b"\xff\xfe"),
        ("POLYCAST_SOCKET", long.as_bytes()),
        ("POLYCAST_SOCKET", b"/dev/zero"),
        ("POLYCAST_SOCKET", b""),
        ("XDG_RUNTIME_DIR", b"\xff"),
        ("XDG_RUNTIME_DIR", b"/dev/null"),
    ] {
        let mut command = common::command(&["status"]);
        let ran: Ran = command.env(variable, std::ffi::OsStr::from_bytes(value)).output().unwrap().into();
        assert_eq!(ran.status, 1, "{variable}: {}", ran.stderr);
        assert!(
            ran.stderr.starts_with("error: ") && !ran.stderr.contains("panicked"),
            "{variable}: {}",
            ran.stderr
        );
    }
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
