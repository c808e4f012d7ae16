//! Helpers that the tests of the command line share.
#![allow(dead_code, reason = "each test program uses its part")]

pub(crate) mod authority;
pub(crate) mod bad;
pub(crate) mod cluster;
pub(crate) mod hub;
pub(crate) mod lan;
pub(crate) mod origin;
pub(crate) mod registry;
pub(crate) mod scope;

use polycast_testing::{folder_in_memory, until};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use tempfile::TempDir;

/// The program of the package whose tests these are: `polycast`, or `polycast-research`, which has all of its
/// commands.
pub(crate) const PROGRAM: &str = match option_env!("CARGO_BIN_EXE_polycast") {
    Some(program) => program,
    None => match option_env!("CARGO_BIN_EXE_polycast-research") {
        Some(program) => program,
        None => panic!("these are tests of a package without a program"),
    },
};

/// Outcome of a command.
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
    let mut command = Command::new(PROGRAM);
    command.args(arguments);
    for name in ["POLYCAST_LOG", "POLYCAST_SOCKET", "POLYCAST_CODE"] {
        command.env_remove(name);
    }
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

/// Returns true if an agent ended because it was not answered in time, which does not show why else it would
/// have ended.
pub(crate) fn was_late(ran: &Ran) -> bool {
    ran.stderr.contains("no answer within")
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

/// A command whose words on standard error are read as they come.
pub(crate) struct Talking {
    child: Option<Child>,
    said: Arc<Mutex<String>>,
    reader: Option<JoinHandle<()>>,
}

impl Talking {
    /// Begins a command.
    pub(crate) fn begin(arguments: &[&str]) -> Self {
        Self::of(begin(arguments))
    }

    /// Follows a command that has begun.
    pub(crate) fn of(mut child: Child) -> Self {
        let stderr = child.stderr.take().unwrap();
        let said = Arc::new(Mutex::new(String::new()));
        let hears = Arc::clone(&said);
        let reader = std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                let mut said = hears.lock().unwrap_or_else(PoisonError::into_inner);
                said.push_str(&line);
                said.push('\n');
            }
        });
        Talking { child: Some(child), said, reader: Some(reader) }
    }

    /// Returns the command's standard error so far.
    pub(crate) fn said(&self) -> String {
        self.said.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until it has said this.
    #[track_caller]
    pub(crate) fn await_words(&self, words: &str) {
        let is_over = || self.reader.as_ref().is_none_or(JoinHandle::is_finished);
        until(words, || {
            let is_over = is_over();
            let said = self.said();
            assert!(!is_over || said.contains(words), "it has ended without '{words}': {said}");
            said.contains(words)
        });
    }

    /// The first line that it says, as a document.
    #[track_caller]
    pub(crate) fn first_event(&self) -> serde_json::Value {
        self.await_words("\n");
        let said = self.said();
        let line = said.lines().next().unwrap_or_default();
        serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {said}"))
    }

    pub(crate) fn child(&self) -> &Child {
        self.child.as_ref().expect("it has not been waited for")
    }

    pub(crate) fn signal(&self, asked: Signal) {
        signal(self.child(), asked);
    }

    /// Waits for its end.
    pub(crate) fn end(mut self) -> Ran {
        let mut ran = end_quiet(self.child.take().expect("it is waited for once"));
        if let Some(reader) = self.reader.take() {
            reader.join().unwrap();
        }
        ran.stderr = self.said();
        ran
    }

    /// Asks it to end, and waits for that.
    pub(crate) fn stop(self, asked: Signal) -> Ran {
        self.signal(asked);
        self.end()
    }
}

impl Drop for Talking {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Waits for the end of a command whose standard error is read elsewhere.
fn end_quiet(child: Child) -> Ran {
    child.wait_with_output().unwrap().into()
}

/// Most bytes that may be sent again to a receiver that kept part of an object: the groups at the end of that
/// part, which it has not verified.
pub(crate) const UNVERIFIED_MOST: u64 = 2 << 18;

/// Returns the number of bytes of this report's object that its one receiver already had. No more than the
/// others are sent, and those that were lost on the way; TCP that takes over in the middle may send again
/// what the source goes on to send, and so is not checked. Over TCP alone a machine that stands still for
/// long may have groups sent twice.
pub(crate) fn spared(report: &serde_json::Value) -> u64 {
    let of = |key: &str| report[key].as_u64().unwrap_or_else(|| panic!("no {key} in {report}"));
    let (bytes, spared) = (of("bytes"), of("spared_bytes"));
    if !report["fabric"].as_str().unwrap_or_default().contains('+') {
        let again = if report["fabric"] == "tcp-chain" { bytes - spared } else { UNVERIFIED_MOST };
        let most = bytes - spared + of("patched_bytes") + again;
        assert!(of("sent_bytes") <= most, "more than {most} bytes were sent: {report}");
    }
    assert!(of("sent_bytes") > 0 && spared < bytes, "something was left to send: {report}");
    spared
}

/// A folder that is removed afterwards.
pub(crate) struct Place(TempDir);

impl Place {
    /// In memory: a busy disk holds nothing up there.
    pub(crate) fn new() -> Self {
        Place(folder_in_memory())
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
