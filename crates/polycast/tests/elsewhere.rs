//! Commands that another program runs: it is found, gets the same words, and says what is wrong with it.

mod common;

use common::{PROGRAM, Place, Ran};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Held while programs are written and run: a process that another thread starts meanwhile has what is being
/// written open, and nothing can run that.
static TURN: Mutex<()> = Mutex::new(());

/// A folder with a copy of the program, and what runs there.
struct Folder(Place, #[expect(dead_code, reason = "it is held")] MutexGuard<'static, ()>);

impl Folder {
    fn new() -> Self {
        let (turn, place) = (TURN.lock().unwrap_or_else(PoisonError::into_inner), Place::new());
        fs::copy(PROGRAM, place.path("polycast")).unwrap();
        Folder(place, turn)
    }

    fn run(&self, path: &str, arguments: &[&str]) -> Ran {
        let mut command = Command::new(self.0.path("polycast"));
        command.args(arguments).env_clear().env("PATH", path).stdin(Stdio::null());
        command.output().unwrap().into()
    }

    /// Puts a script in the other program's place, in this folder or in one of it.
    fn research(&self, folder: &str, script: &str, mode: u32) {
        let name = Path::new(folder).join("polycast-research");
        let file = self.0.file(name.to_str().unwrap(), script.as_bytes());
        fs::set_permissions(file, fs::Permissions::from_mode(mode)).unwrap();
    }
}

const ECHO: &str = "#!/bin/sh\necho \"$POLYCAST_STARTED_BY:\" \"$@\"\nexit 7\n";

#[test]
fn a_missing_program_is_named() {
    let folder = Folder::new();
    let empty = folder.0.root().to_string();
    for words in [&["plan"][..], &["simulate", "x"], &["lab", "--help"], &["help", "reproduce"]] {
        let ran = folder.run(&empty, words);
        let name = words.iter().find(|word| **word != "help").unwrap();
        let said = format!(
            "error: 'polycast {name}' needs the program polycast-research, which is neither beside polycast nor in PATH\n"
        );
        assert_eq!((ran.status, ran.stdout.as_str()), (1, ""), "{words:?}");
        assert!(ran.stderr.starts_with(&said), "{}", ran.stderr);
        assert!(ran.stderr.contains("cargo install --locked --path research/cli"), "{}", ran.stderr);
    }
    let ran = folder.run(&empty, &["plan", "--json"]);
    assert_eq!((ran.status, ran.json()["kind"].as_str()), (1, Some("invalid")), "{}", ran.stdout);
}

#[test]
fn a_program_that_cannot_be_started_is_named() {
    let folder = Folder::new();
    folder.research("", ECHO, 0o644);
    let ran = folder.run("", &["plan", "cost"]);
    assert_eq!(ran.status, 1);
    assert!(ran.stderr.contains("polycast-research: permission denied"), "{}", ran.stderr);
}

#[test]
fn the_program_gets_the_words_as_they_were_typed() {
    let folder = Folder::new();
    folder.research("elsewhere", ECHO, 0o755);
    let path = folder.0.path("elsewhere");
    let own = format!("version {}", env!("CARGO_PKG_VERSION"));
    for words in [
        &["plan"][..],
        &["plan", "--help"],
        &["help", "lab"],
        &["--json", "lab", "exec", "x", "h0", "--", "polycast", "status", "-q"],
        &["simulate", "-v", "--sweep", "a=1,2", "a b"],
        &["bench", "--no-such-option"],
    ] {
        let ran = folder.run(&path, words);
        assert_eq!((ran.status, ran.stdout), (7, format!("{own}: {}\n", words.join(" "))));
    }
    // What lies beside the program comes first, and prints what is of all commands.
    folder.research("", "#!/bin/sh\necho \"beside: $1\"\n", 0o755);
    assert_eq!(folder.run(&path, &["plan"]).stdout, "beside: plan\n");
    let pages = if cfg!(feature = "pages") { "beside: completions\n" } else { "" };
    assert_eq!(folder.run(&path, &["completions", "bash"]).stdout, pages);
}

#[test]
fn without_the_other_program_there_are_pages_all_the_same() {
    let ran = Folder::new().run("", &["completions", "bash"]);
    assert_eq!(ran.status == 0, cfg!(feature = "pages"), "{}", ran.stderr);
}
