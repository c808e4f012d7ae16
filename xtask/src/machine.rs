//! Requirements of the steps of `cargo xtask ci` on the machine, checked before the first of them begins.

use crate::ci::{Step, cargo};
use crate::suite::{ALL, REQUIRE, all_required};
use crate::{limit, workspace};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Tools that builds of everything need.
const BUILD_TOOLS: [&str; 1] = ["cc"];
/// Tools that tests need beside that, where all of them have to run.
const TEST_TOOLS: [&str; 17] = [
    "aria2c",
    "clang",
    "etcd",
    "ethtool",
    "ganesha.nfsd",
    "ip",
    "iverilog",
    "nfs-cp",
    "nft",
    "ovs-vswitchd",
    "rpmbuild",
    "rsync",
    "setpriv",
    "sshd",
    "strace",
    "unshare",
    "vvp",
];
/// Programs that a step needs, by its name.
const STEP_TOOLS: [(&str, &[&str]); 6] = [
    ("python", &["python3"]),
    ("packaging", &["python3"]),
    ("spark", &["javac", "mvn", "python3"]),
    ("fuzz", &["c++"]),
    ("deny", &["cargo-deny"]),
    ("site", &[crate::site::MDBOOK]),
];
/// Room on the disk that a build of everything takes from nothing, and what it takes again where it was built
/// before, in bytes.
const ROOM_BYTES: u64 = 10 << 30;
const ROOM_AGAIN_BYTES: u64 = 3 << 30;
/// Time limit for fetching the crates that builds need.
const FETCH_LIMIT: Duration = Duration::from_secs(15 * 60);

/// Results of the check.
#[derive(Default)]
pub(crate) struct Found {
    /// Without these nothing begins: a sentence each.
    pub(crate) errors: Vec<String>,
    /// Parts that are left out, and the reasons.
    pub(crate) notes: Vec<String>,
}

/// Looks at the machine, for these steps.
pub(crate) fn look(steps: &[&Step]) -> Found {
    let mut found = Found::default();
    let has = |name: &str| steps.iter().any(|step| step.name == name);
    look_for_tools(&has, &is_on_path, &mut found);
    let is_root = rustix::process::geteuid().is_root();
    if has("test") && !is_root {
        found.notes.push("tests that need root are left out, and named at the end: they make networks, switches and kernel programs".to_string());
    }
    if ["python", "packaging", "spark"].iter().any(|step| has(step)) {
        look_at_python(&mut found);
    }
    let target = workspace::target();
    let needed = if target.join("debug/deps").is_dir() { ROOM_AGAIN_BYTES } else { ROOM_BYTES };
    found.errors.extend(lacks_room(&target, room(&target), needed));
    if found.errors.is_empty() && steps.iter().any(|step| step.name != "fmt") {
        fetch(&mut found);
    }
    found
}

fn look_for_tools(has: &dyn Fn(&str) -> bool, is_here: &dyn Fn(&str) -> bool, found: &mut Found) {
    let absent =
        |names: &[&'static str]| names.iter().filter(|name| !is_here(name)).copied().collect::<Vec<_>>();
    for name in absent(&BUILD_TOOLS) {
        found.errors.push(format!(
            "{name} is not installed, and nothing can be built without it: .ci/run installs it"
        ));
    }
    for (step, tools) in STEP_TOOLS.iter().filter(|(step, _)| has(step)) {
        let absent = absent(tools);
        if !absent.is_empty() {
            let hint = match *step {
                "deny" => "cargo install --locked cargo-deny",
                "site" => "cargo install --locked mdbook",
                _ => ".ci/run installs what it can",
            };
            found
                .errors
                .push(format!("the step {step} needs {}, which cannot be found: {hint}", absent.join(", ")));
        }
    }
    let absent = absent(&TEST_TOOLS);
    if has("test") && !absent.is_empty() {
        let absent = absent.join(", ");
        if all_required() {
            found.errors.push(format!(
                "as root every test has to run, and {absent} cannot be found: .ci/run installs what it can, and {REQUIRE}=none lets \
                 the tests be that need more ({REQUIRE}={ALL} is the default of root)"
            ));
        } else {
            found.notes.push(format!(
                "{absent} cannot be found: tests that need it are left out, and named at the end"
            ));
        }
    }
}

fn look_at_python(found: &mut Found) {
    let mut python = Command::new("python3");
    python.args(["-c", "import ensurepip, venv"]).stdout(Stdio::null()).stderr(Stdio::null());
    if !python.status().is_ok_and(|status| status.success()) {
        found
            .errors
            .push("python3 cannot make environments: install python3-venv, as .ci/run does".to_string());
    }
}

/// Says that a folder's file system has less room than is needed, where it has.
fn lacks_room(folder: &Path, free: Option<u64>, needed: u64) -> Option<String> {
    let free = free.filter(|free| *free < needed)?;
    let gigabytes = |bytes: u64| bytes as f64 / 1e9;
    Some(format!(
        "the disk of {} has {:.1} GB free, and {:.0} GB are needed: make room, or name a folder elsewhere in CARGO_TARGET_DIR",
        folder.display(),
        gigabytes(free),
        gigabytes(needed),
    ))
}

/// Bytes that may be written where a folder is, or will be.
fn room(folder: &Path) -> Option<u64> {
    let there: PathBuf = folder.ancestors().find(|folder| folder.exists())?.to_path_buf();
    let system = rustix::fs::statvfs(&there).ok()?;
    Some(system.f_bavail.saturating_mul(system.f_frsize))
}

/// Fetches what crates are built from, so that a registry which cannot be reached is named now.
fn fetch(found: &mut Found) {
    let mut command = Command::new(cargo());
    command.args(["fetch", "--locked", "--quiet"]).current_dir(workspace::root());
    let said = tempfile::tempfile().ok();
    let copy = said.as_ref().and_then(|file| file.try_clone().ok());
    command.stdout(Stdio::null()).stderr(copy.map_or_else(Stdio::null, Stdio::from));
    match limit::run(&mut command, FETCH_LIMIT.mul_f64(limit::patience())) {
        Ok(ended) if ended.is_success() => {}
        Ok(_) => found.errors.push(format!(
            "the crates that Cargo.lock names cannot be fetched ({}): this needs the registry once, and later builds do not",
            said.map(last_words).unwrap_or_default()
        )),
        Err(error) => found.errors.push(format!("cargo cannot be run: {error}")),
    }
}

/// Returns the last line that a program printed: the cause.
fn last_words(mut file: std::fs::File) -> String {
    use std::io::{Read, Seek};
    let mut text = String::new();
    let read = file.rewind().and_then(|()| file.read_to_string(&mut text));
    let last = text.lines().rev().map(str::trim).find(|line| !line.is_empty());
    read.map_or_else(|error| error.to_string(), |_| last.unwrap_or("without a word").to_string())
}

/// Returns true if a program can be found. Programs that only root uses lie where the path of others does not
/// lead.
fn is_on_path(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    folders.any(|folder| folder.join(name).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(steps: &[&str], here: &[&str]) -> Found {
        let mut found = Found::default();
        look_for_tools(&|step| steps.contains(&step), &|tool| here.contains(&tool), &mut found);
        found
    }

    #[test]
    fn what_is_missing_is_said_by_step() {
        assert!(found(&["fmt"], &["cc"]).errors.is_empty());
        assert!(found(&["fmt"], &[]).errors[0].starts_with("cc is not installed"));
        let spark = found(&["spark"], &["cc", "python3"]).errors;
        assert_eq!(spark.len(), 1);
        assert!(spark[0].starts_with("the step spark needs javac, mvn, which"), "{spark:?}");
        let tests = found(&["test"], &["cc", "ip"]);
        assert_eq!((tests.errors.len(), tests.notes.len()), if all_required() { (1, 0) } else { (0, 1) });
    }

    #[test]
    fn a_full_disk_is_said_with_what_is_needed() {
        let folder = Path::new("/somewhere/target");
        assert_eq!(lacks_room(folder, Some(9 << 30), 8 << 30), None);
        assert_eq!(lacks_room(folder, None, 8 << 30), None);
        let said = lacks_room(folder, Some(1_500_000_000), 8_000_000_000).unwrap();
        assert!(
            said.starts_with("the disk of /somewhere/target has 1.5 GB free, and 8 GB are needed"),
            "{said}"
        );
        assert!(room(Path::new("/proc/self/there/is/none")).is_some());
    }

    #[test]
    fn the_last_words_are_the_cause() {
        use std::io::Write;
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"error: one\n  Caused by:\n    no route\n\n").unwrap();
        assert_eq!(last_words(file), "no route");
    }
}
