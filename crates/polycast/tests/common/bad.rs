//! Input that is wrong, for the commands of both programs.

use super::{Place, Ran, begin, end, polycast};
use std::fs;
use std::process::Command;

/// Runs a command that must fail as the user's fault, and returns what it says.
pub(crate) fn refusal(arguments: &[&str]) -> String {
    sentence(arguments, polycast(arguments))
}

/// The first line of what a command said that had to fail.
pub(crate) fn sentence(arguments: &[&str], ran: Ran) -> String {
    assert_eq!(ran.status, 1, "{arguments:?}: {}", ran.stderr);
    assert!(ran.stdout.is_empty(), "{arguments:?} printed {}", ran.stdout);
    let first = ran.stderr.lines().next().unwrap_or_default().to_string();
    assert!(first.starts_with("error: "), "{arguments:?}: {first}");
    assert!(!first.contains("os error"), "{arguments:?}: {first}");
    first
}

/// Checks options that name a file with files on which none may choke, and what is said of some of them.
pub(crate) fn check_files(options: &[&[&str]]) {
    let place = Place::new();
    let huge = place.path("huge");
    fs::File::create(&huge).unwrap().set_len(1 << 40).unwrap();
    let pipe = place.path("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    std::os::unix::fs::symlink("loop", place.path("loop")).unwrap();
    let files = [
        ("/dev/zero".to_string(), "longer than 64 MiB"),
        (huge, "longer than 64 MiB"),
        ("/dev/full".to_string(), "longer than 64 MiB"),
        (place.root().to_string(), "it is a directory"),
        (place.path("loop"), "oo many"),
        (place.file("binary", &[0xff; 4_096]), "not text in UTF-8"),
        (place.file("zeros", &[0; 4_096]), ""),
        (place.file("array", b"[[[[[["), ""),
        (place.file("number", b"7"), ""),
        (place.file("types", b"listen = [[1]]\nmanager = {}\nseed = 'x'\nracks = true\nnodes = 3"), ""),
        (place.file("nested.toml", format!("x = {}", "[".repeat(200_000)).as_bytes()), ""),
        (place.file("nested.json", "[".repeat(200_000).as_bytes()), ""),
        (place.file("tables", format!("[{}b]", "a.".repeat(100_000)).as_bytes()), ""),
    ];
    for option in options {
        for (file, says) in &files {
            let said = refusal(&[*option, &[file.as_str()]].concat());
            assert!(said.contains(says), "{option:?} {file}: {said}");
            assert!(said.chars().count() < 1_200, "{option:?} {file}: {said}");
        }
    }
    // No program ever writes to it: this takes as long as a writer is waited for.
    let waits: Vec<_> = options.iter().map(|option| begin(&[*option, &[pipe.as_str()]].concat())).collect();
    for wait in waits {
        let ran = end(wait);
        assert!(ran.status == 1 && ran.stderr.contains("no program writes to it"), "{}", ran.stderr);
    }
}
