//! Requirements of tests on the machine that they run on: root, namespaces, programs, files.
//!
//! A test that lacks something returns early, and the test harness then calls it `ok`. So that it is not
//! taken for one that has tested something, each such test states here what it needs. A skip is written to
//! the file that `POLYCAST_SKIPS` names, and is a failure where `POLYCAST_REQUIRE` is `all`. `cargo xtask ci`
//! sets both.
//!
//! Only tests use this crate.

mod family;
mod openvswitch;
mod waiting;

pub use family::{is_ipv6, multicast_group, own_address};
pub use openvswitch::OpenVswitch;
pub use waiting::{HANG, until, wait_for};

use std::fs::OpenOptions;
use std::io::Write;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, Ordering};

/// Names the file to which every skip is appended: `program: test<TAB>reason`.
const SKIPS: &str = "POLYCAST_SKIPS";
/// `all` where a skip is a failure.
const REQUIRE: &str = "POLYCAST_REQUIRE";

/// Ports that the system does not give to a socket that asks for any: Linux begins with 32,768 unless it is
/// told otherwise.
const PORTS: std::ops::Range<u16> = 20_000..30_000;

/// A port of this machine on which nothing listens, for a program that is started with it. Until that
/// listens, no socket that asks for any port gets this one, and this process gets it once.
///
/// # Panics
/// If none is free.
#[must_use]
pub fn free_port() -> u16 {
    static TRIED: AtomicU16 = AtomicU16::new(0);
    let count = PORTS.end - PORTS.start;
    // Test programs that run at the same time begin elsewhere.
    let begin = (std::process::id() * 97 % u32::from(count)) as u16;
    let mut ports = (0..count).map(|_| {
        let tried = TRIED.fetch_add(1, Ordering::Relaxed) % count;
        PORTS.start + (begin + tried) % count
    });
    ports.find(|port| TcpListener::bind((own_address(), *port)).is_ok()).expect("a port is free")
}

/// A folder whose files no disk makes slow: in memory, where the machine has a file system there. Its path is
/// short enough for sockets.
///
/// # Panics
/// No folder can be made.
#[must_use]
pub fn folder_in_memory() -> tempfile::TempDir {
    let memory = tempfile::Builder::new().prefix("polycast-test-").tempdir_in("/dev/shm");
    memory.or_else(|_| tempfile::tempdir()).expect("the folder of temporary files can be written")
}

/// Something that a test cannot do without.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Need {
    /// The rights of root.
    Root,
    /// Namespaces of networks, processes and mounts, which can be made.
    Namespaces,
    /// A program on the path.
    Tool(&'static str),
    /// A file that a package brings.
    File(&'static str),
}

impl Need {
    /// Names the missing requirement; `None` if it is met.
    fn missing(self) -> Option<String> {
        let (there, words) = match self {
            Need::Root => (nix::unistd::geteuid().is_root(), "root".to_string()),
            Need::Namespaces => (namespaces(), "the right to make namespaces".to_string()),
            Need::Tool(name) => (is_on_path(name), format!("the program {name}")),
            Need::File(path) => (Path::new(path).exists(), format!("the file {path}")),
        };
        (!there).then_some(words)
    }
}

fn namespaces() -> bool {
    static ABLE: OnceLock<bool> = OnceLock::new();
    *ABLE.get_or_init(|| {
        let mut command = Command::new("unshare");
        command.args(["--net", "--pid", "--mount", "--fork", "true"]).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    })
}

fn is_on_path(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(name).is_file())
}

/// Returns true if everything is there that a test needs. If not, the test is noted as skipped and has to
/// return.
///
/// # Panics
/// Something is missing, and every test must run.
#[must_use = "a test that lacks something has to return"]
pub fn needs(needs: &[Need]) -> bool {
    let missing: Vec<String> = needs.iter().filter_map(|need| need.missing()).collect();
    if missing.is_empty() {
        return true;
    }
    skip(&format!("needs {}", missing.join(", ")));
    false
}

/// Notes that the test which calls this has tested nothing, and why.
///
/// # Panics
/// Every test must run.
pub fn skip(reason: &str) {
    Policy::of_environment().skip(&caller(), reason);
}

/// Runs a part of a test in a network namespace of its own, which ends with it. `None` where that cannot be
/// done: the test is noted as skipped.
///
/// # Panics
/// The test does, or every test must run and this one cannot.
pub fn isolated<T: Send>(test: impl FnOnce() -> T + Send) -> Option<T> {
    if !needs(&[Need::Root, Need::Namespaces]) {
        return None;
    }
    let within = || {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).expect("root can make namespaces");
        test()
    };
    let outcome = std::thread::scope(|scope| scope.spawn(within).join());
    Some(outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
}

/// The test's program and name. The test harness gives each test's thread the test's name.
fn caller() -> String {
    let program = std::env::current_exe().unwrap_or_default();
    let stem = program.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    // Cargo puts a number behind the name.
    let name = stem.rsplit_once('-').map_or(stem.as_str(), |(name, _)| name);
    format!("{name}: {}", std::thread::current().name().unwrap_or("a test"))
}

/// Policy for skips.
struct Policy {
    file: Option<PathBuf>,
    all_required: bool,
}

impl Policy {
    fn of_environment() -> Self {
        let file = std::env::var_os(SKIPS).filter(|file| !file.is_empty()).map(PathBuf::from);
        Policy { file, all_required: std::env::var_os(REQUIRE).is_some_and(|what| what == "all") }
    }

    fn skip(&self, test: &str, reason: &str) {
        if let Some(file) = &self.file {
            // One write a line: tests of several programs may append at the same time.
            let line = format!("{test}\t{}\n", reason.replace(['\n', '\t'], " "));
            let opened = OpenOptions::new().create(true).append(true).open(file);
            let written = opened.and_then(|mut file| file.write_all(line.as_bytes()));
            written.unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        }
        assert!(!self.all_required, "{test} was skipped, and {REQUIRE}=all: {reason}");
        eprintln!("skipped: {test}: {reason}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_in_memory_goes_with_its_value() {
        let folder = folder_in_memory();
        let path = folder.path().to_path_buf();
        assert!(path.is_dir() && path.as_os_str().len() < 60, "{}", path.display());
        drop(folder);
        assert!(!path.exists());
    }

    const ABSENT: Need = Need::Tool("there-is-no-such-program");

    #[test]
    fn what_is_missing_is_said() {
        assert_eq!(Need::Tool("sh").missing(), None);
        assert_eq!(Need::File("/proc/self/status").missing(), None);
        assert_eq!(ABSENT.missing().unwrap(), "the program there-is-no-such-program");
        assert_eq!(Need::File("/nothing/here").missing().unwrap(), "the file /nothing/here");
        let uid = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").unwrap());
        assert_eq!(Need::Root.missing().is_none(), uid == 0);
    }

    #[test]
    fn ports_are_given_once_and_to_no_other_socket() {
        let ports: std::collections::BTreeSet<u16> = (0..20).map(|_| free_port()).collect();
        assert!(ports.len() == 20 && ports.iter().all(|port| PORTS.contains(port)), "{ports:?}");
        let any = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        assert!(!PORTS.contains(&any), "the system gives {any} to any socket");
    }

    #[test]
    fn skips_are_written_down_one_a_line() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("skips");
        let policy = Policy { file: Some(file.clone()), all_required: false };
        policy.skip("one: a", "needs root");
        policy.skip("two: b", "needs\nthis\tand that");
        assert_eq!(
            std::fs::read_to_string(file).unwrap(),
            "one: a\tneeds root\ntwo: b\tneeds this and that\n"
        );
    }

    #[test]
    fn a_skip_fails_where_all_is_required_and_is_written_down_too() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("skips");
        let policy = Policy { file: Some(file.clone()), all_required: true };
        let panic = std::panic::catch_unwind(|| policy.skip("one: a", "needs root")).unwrap_err();
        let said = panic.downcast_ref::<String>().unwrap();
        assert!(said.contains("one: a was skipped") && said.contains("needs root"), "{said}");
        assert_eq!(std::fs::read_to_string(file).unwrap(), "one: a\tneeds root\n");
    }

    /// Set where a test runs its own program again.
    const AGAIN: &str = "POLYCAST_TESTING_AGAIN";

    /// The variables are what `cargo xtask ci` sets: this test is run again with them in a process of its
    /// own, where it lacks something.
    #[test]
    fn the_variables_are_heard() {
        if std::env::var_os(AGAIN).is_some() {
            assert!(!needs(&[Need::Tool("sh"), ABSENT]));
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("skips");
        let run = |require: &str| {
            let mut again = Command::new(std::env::current_exe().unwrap());
            again.args(["--exact", "tests::the_variables_are_heard"]).env(AGAIN, "1").env(SKIPS, &file);
            again.env(REQUIRE, require).output().unwrap().status.success()
        };
        let line =
            "polycast_testing: tests::the_variables_are_heard\tneeds the program there-is-no-such-program\n";
        assert!(run(""), "a skip is no failure");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), line);
        assert!(!run("all"), "a skip is a failure");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), line.repeat(2));
    }
}
