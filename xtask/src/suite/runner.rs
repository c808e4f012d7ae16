//! One test program: in a network of its own where it can have one, for a limited time, and with all that it
//! prints kept.

use super::build::Program;
use super::report::Outcome;
use crate::limit::{self, Ended, Running};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Time that one test program may run: the slowest took 174 s beside builds on two cores.
const PROGRAM_LIMIT: Duration = Duration::from_secs(900);
/// Tests that run at a time in a program. Most wait.
const THREADS: &str = "4";
/// The variables of `polycast-testing`. A person may set the second one to something else than `all`, and
/// skip tests as root too.
const SKIPS: &str = "POLYCAST_SKIPS";
pub(crate) const REQUIRE: &str = "POLYCAST_REQUIRE";
/// Its value where every test has to run.
pub(crate) const ALL: &str = "all";
/// Command that a program of its own network begins with: the loopback interface is down in a new one.
const WITH_LOOPBACK: &str = "ip link set lo up && exec \"$0\" \"$@\"";
/// The same with IPv6 alone: the loopback interface carries no multicast of it, and a cable of which nothing
/// is at the other end does.
const WITH_IPV6: &str = "ip link set lo up && ip -4 address flush dev lo && \
    ip link add own mtu 65535 type veth peer name other mtu 65535 && \
    ip link set other up && ip link set own up && ip address add fd00::1/64 dev own nodad && exec \"$0\" \"$@\"";
/// Variable by which tests hear of it.
const FAMILY: &str = "POLYCAST_TEST_FAMILY";

/// Returns true if every test has to run: as root, unless the variable says otherwise.
pub(crate) fn all_required() -> bool {
    let wish = std::env::var(REQUIRE).ok();
    wish.as_deref().map_or_else(|| rustix::process::geteuid().is_root(), |wish| wish == ALL)
}

/// State that all programs of a run share.
pub(super) struct Runner {
    folder: tempfile::TempDir,
    isolated: bool,
    all: bool,
}

impl Runner {
    pub(super) fn new() -> Self {
        let folder = tempfile::tempdir().expect("the folder of temporary files can be written");
        Runner { folder, isolated: can_isolate(), all: all_required() }
    }

    pub(super) fn is_isolated(&self) -> bool {
        self.isolated
    }

    fn skips_file(&self) -> PathBuf {
        self.folder.path().join("skips")
    }

    /// Returns the tests that were skipped, lines of `test<TAB>reason`, since the last call.
    pub(super) fn skips(&self) -> String {
        let skips = fs::read_to_string(self.skips_file()).unwrap_or_default();
        let _ = fs::remove_file(self.skips_file());
        skips
    }

    /// Runs one program to its end.
    pub(super) fn run(&self, program: &Program) -> Outcome {
        let limit = PROGRAM_LIMIT.mul_f64(limit::patience());
        match tempfile::NamedTempFile::new_in(self.folder.path()) {
            Ok(file) => self.run_into(program, &file, limit),
            Err(error) => Outcome::broken(program, format!("there is no room for what it prints: {error}")),
        }
    }

    fn run_into(&self, program: &Program, file: &tempfile::NamedTempFile, limit: Duration) -> Outcome {
        let output =
            || File::options().append(true).open(file.path()).map_or_else(|_| Stdio::null(), Stdio::from);
        let mut command = self.command(program);
        command.stdin(Stdio::null()).stdout(output()).stderr(output());
        let ended = Running::start(&mut command).and_then(|running| running.end(limit));
        let printed = fs::read(file.path()).unwrap_or_default();
        let printed = String::from_utf8_lossy(&printed).into_owned();
        match ended {
            Ok((Ended::Exited(status), cost)) => Outcome::new(program, status.success(), cost, printed),
            Ok((Ended::Killed(running), cost)) => {
                let killed: String = running.iter().map(|line| format!("    killed {line}\n")).collect();
                let why = format!("still running after {:.0} s\n{killed}", limit.as_secs_f64());
                Outcome::new(program, false, cost, printed + &why)
            }
            Err(error) => Outcome::broken(program, format!("it cannot be run: {error}")),
        }
    }

    fn command(&self, program: &Program) -> Command {
        let mut command = match self.isolated {
            true => {
                let network = if program.over_ipv6.is_some() { WITH_IPV6 } else { WITH_LOOPBACK };
                in_network(network, &program.path)
            }
            false => Command::new(&program.path),
        };
        if let Some(left_out) = program.over_ipv6 {
            command.env(FAMILY, "6").args(left_out.iter().flat_map(|test| ["--skip", test]));
        }
        command.current_dir(&program.folder).env("CARGO_MANIFEST_DIR", &program.folder);
        command.env("CARGO_PKG_NAME", &program.package);
        if !program.builds_networks() {
            command.env("RUST_TEST_THREADS", THREADS);
        }
        command.env(SKIPS, self.skips_file()).env(REQUIRE, if self.all { ALL } else { "" });
        command
    }
}

/// Returns a command that runs `program` in a network of its own, where it can have one.
pub(crate) fn alone(program: &Path) -> Command {
    if can_isolate() { in_network(WITH_LOOPBACK, program) } else { Command::new(program) }
}

/// Returns a command that runs `program` in a new network, which the shell's line `network` lays out.
fn in_network(network: &str, program: &Path) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--net", "--", "sh", "-c", network]).arg(program);
    command
}

/// Returns true if a program can have a network of its own here, with a loopback interface that is up.
fn can_isolate() -> bool {
    let mut command = in_network(WITH_LOOPBACK, Path::new("true"));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// Runs a script as if it were a test program.
    fn outcome(script: &str, limit: Duration) -> Outcome {
        let runner = Runner::new();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("program");
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        let program = Program {
            name: "p".to_string(),
            package: "p".to_string(),
            path,
            folder: folder.path().to_path_buf(),
            over_ipv6: None,
        };
        let file = tempfile::NamedTempFile::new().unwrap();
        runner.run_into(&program, &file, limit)
    }

    #[test]
    fn programs_that_hang_fail_and_others_say_what_they_tested() {
        let long = Duration::from_secs(600);
        let hung = outcome("echo begun; sleep 1000", Duration::from_millis(700));
        assert!(!hung.is_fine() && hung.printed.contains("begun\nstill running after"), "{}", hung.printed);
        assert!(hung.printed.contains("sleep 1000"), "{}", hung.printed);
        let said =
            "test a::b ... ok\ntest a::c ... FAILED\ntest result: FAILED. 1 passed; 1 failed; 0 ignored";
        let failed = outcome(&format!("echo '{said}'; exit 101"), long);
        assert_eq!((failed.passed, failed.failed.as_slice()), (1, ["a::c".to_string()].as_slice()));
        assert!(!failed.is_fine());
        // A program that ends badly has failed, whatever its tests say.
        assert!(
            !outcome("echo 'test result: ok. 1 passed; 0 failed; 0 ignored'; kill -9 $$", long).is_fine()
        );
        assert!(outcome("echo 'test result: ok. 1 passed; 0 failed; 0 ignored'", long).is_fine());
    }

    #[test]
    fn what_each_program_has_alone_is_its_network() {
        if !can_isolate() {
            eprintln!("skipped: no program can have a network of its own here");
            return;
        }
        let links = outcome("ls /proc/self/net/dev >/dev/null; ip -brief link", Duration::from_secs(600));
        assert!(links.printed.starts_with("lo ") && links.printed.lines().count() == 1, "{}", links.printed);
    }
}
