//! What the tests of the command line share.
#![allow(dead_code, reason = "each test program uses its part")]

pub(crate) mod authority;
pub(crate) mod cluster;
pub(crate) mod lan;

use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use tempfile::TempDir;

/// How a command ended.
pub(crate) struct Ran {
    /// Exit status.
    pub status: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Ran {
    /// Standard output as the one JSON document that it must be.
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|error| panic!("{error} in '{}'; it said: {}", self.stdout, self.stderr))
    }
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        Ran {
            status: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

/// The program, without the user's settings.
pub(crate) fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_polycast"));
    command.args(arguments).env_remove("POLYCAST_LOG").env_remove("POLYCAST_SOCKET");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The same as another user of this machine, which root alone can do.
pub(crate) fn command_as(uid: u32, arguments: &[&str]) -> Command {
    let program = command(arguments);
    let mut command = Command::new("setpriv");
    let ids = [format!("--reuid={uid}"), format!("--regid={uid}"), "--clear-groups".to_string()];
    command.args(ids).arg(program.get_program()).args(arguments);
    command.env_remove("POLYCAST_LOG").env_remove("POLYCAST_SOCKET").current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs the program to its end.
pub(crate) fn polycast(arguments: &[&str]) -> Ran {
    command(arguments).output().unwrap().into()
}

/// Begins a command.
pub(crate) fn begin(arguments: &[&str]) -> Child {
    command(arguments).spawn().unwrap()
}

/// Waits for the end of a command.
pub(crate) fn end(child: Child) -> Ran {
    child.wait_with_output().unwrap().into()
}

/// Asks a process to end in one of the ways that people and systems do.
pub(crate) fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// A folder that is removed afterwards.
pub(crate) struct Place(TempDir);

impl Place {
    pub(crate) fn new() -> Self {
        Place(tempfile::tempdir().unwrap())
    }

    pub(crate) fn root(&self) -> &str {
        self.0.path().to_str().unwrap()
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_string()
    }

    /// Writes a file and returns its path.
    pub(crate) fn file(&self, name: &str, contents: &[u8]) -> String {
        let path = self.path(name);
        fs::create_dir_all(Path::new(&path).parent().unwrap()).unwrap();
        fs::write(&path, contents).unwrap();
        path
    }
}

/// Bytes without a pattern, the same every time.
pub(crate) fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64 ^ len as u64;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// All files, folders and links below a folder, with what they hold.
pub(crate) fn tree(root: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut seen = Vec::new();
    let mut pending = vec![PathBuf::new()];
    while let Some(name) = pending.pop() {
        let path = root.join(&name);
        let metadata = fs::symlink_metadata(&path).unwrap();
        let contents = if metadata.is_dir() {
            pending.extend(fs::read_dir(&path).unwrap().map(|item| name.join(item.unwrap().file_name())));
            b"a directory".to_vec()
        } else if metadata.is_symlink() {
            fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes()
        } else {
            fs::read(&path).unwrap()
        };
        seen.push((name, contents));
    }
    seen.sort();
    seen
}
