//! Places where objects go, effects of a second run of the same command, and remains of a transfer that is
//! ended.

mod common;

use common::{Place, Ran, begin, command, end, noise, signal, spared, tree};
use polycast_testing::{Need, needs, until};
use rustix::process::Signal;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// An acceptor takes whatever is offered on its network: one test at a time.
static NETWORK: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    NETWORK.lock().unwrap_or_else(PoisonError::into_inner)
}

fn accept(arguments: &[&str]) -> Child {
    begin(&[&["accept", "--interface", "lo"], arguments].concat())
}

fn offer(path: &str, arguments: &[&str]) -> Child {
    begin(&[&["offer", path, "--open", "--receivers", "1", "--interface", "lo"], arguments].concat())
}

/// Offers and accepts once; gives what both have said.
fn pass(path: &str, arguments: &[&str]) -> (Ran, Ran) {
    let acceptor = accept(arguments);
    let offered = end(offer(path, &["--json"]));
    (offered, end(acceptor))
}

#[test]
fn a_file_and_a_directory_have_one_rule() {
    let _alone = alone();
    let place = Place::new();
    let file = place.file("object.bin", b"bytes");
    place.file("tree/sub/x", b"hello");
    let (folder, tree) = (place.path("in"), place.path("tree"));
    fs::create_dir(&folder).unwrap();
    for (path, name, probe) in [(&file, "object.bin", "object.bin"), (&tree, "tree", "tree/sub/x")] {
        let out = place.path(&format!("out-{name}"));
        for arguments in [["--out", &out], ["--into", &folder]] {
            let (offered, accepted) = pass(path, &arguments);
            assert_eq!((offered.status, accepted.status), (0, 0), "{}{}", offered.stderr, accepted.stderr);
        }
        let below = probe.strip_prefix(name).unwrap();
        assert!(Path::new(&format!("{out}{below}")).is_file());
        assert!(Path::new(&folder).join(probe).is_file());
        // The same once more is refused before another machine is waited for, in words that say what can be
        // done.
        let again = end(accept(&["--out", &out]));
        assert_eq!(again.status, 1);
        assert!(again.stderr.contains("--update") && again.stderr.contains("--force"), "{}", again.stderr);
    }
}

/// A user who keeps new files from others keeps what is received from them too, files and directories alike.
#[test]
fn the_users_mask_counts_for_all_that_is_received() {
    let _alone = alone();
    let place = Place::new();
    let file = place.file("object.bin", b"bytes");
    place.file("tree/sub/x", b"hello");
    let open = |name: &str, mode| {
        fs::set_permissions(place.path(name), fs::Permissions::from_mode(mode)).unwrap();
    };
    open("object.bin", 0o666);
    for (name, mode) in [("tree/sub/x", 0o666), ("tree/sub", 0o777), ("tree", 0o777)] {
        open(name, mode);
    }
    for (path, out) in [(file, "file"), (place.path("tree"), "directory")] {
        let out = place.path(out);
        let accept = command(&["accept", "--interface", "lo", "--out", &out]);
        let mut masked = Command::new("sh");
        masked.args(["-c", "umask 027; exec \"$@\"", "sh"]).arg(accept.get_program()).args(accept.get_args());
        let acceptor = masked
            .env_remove("POLYCAST_LOG")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let offered = end(offer(&path, &["--json"]));
        let accepted = end(acceptor);
        assert_eq!((offered.status, accepted.status), (0, 0), "{}{}", offered.stderr, accepted.stderr);
    }
    for (name, mode) in
        [("file", 0o640), ("directory", 0o750), ("directory/sub", 0o750), ("directory/sub/x", 0o640)]
    {
        let there = fs::metadata(place.path(name)).unwrap().permissions().mode() & 0o7777;
        assert_eq!(there, mode, "{name} has {there:o}");
    }
}

/// A volume of a container is mounted where the directory is to be; a file that is mounted by itself is
/// refused before an offer is looked for.
#[test]
fn what_is_mounted_stays_and_gets_the_contents() {
    if !needs(&[Need::Root, Need::Namespaces]) {
        return;
    }
    let _alone = alone();
    let place = Place::new();
    place.file("tree/sub/x", b"hello");
    let (volume, seen, file) = (place.path("volume"), place.path("seen"), place.file("file", b"mine"));
    fs::create_dir(&volume).unwrap();
    fs::create_dir(&seen).unwrap();
    let mounted = |script: &str, arguments: &[&str]| {
        let accept = command(&[&["accept", "--interface", "lo"], arguments].concat());
        let mut within = Command::new("unshare");
        within.args(["--mount", "--propagation", "private", "sh", "-c", script, "sh"]);
        within.arg(accept.get_program()).args(accept.get_args()).env_remove("POLYCAST_LOG");
        within.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    // What is in the volume goes with the namespace.
    let script = format!(r#"mount -t tmpfs none {volume} && "$@" && cp -a {volume}/. {seen}"#);
    let acceptor = mounted(&script, &["--out", &volume]);
    let offered = end(offer(&place.path("tree"), &["--json"]));
    let accepted = end(acceptor);
    assert_eq!((offered.status, accepted.status), (0, 0), "{}{}", offered.stderr, accepted.stderr);
    assert_eq!(tree(Path::new(&seen)), tree(Path::new(&place.path("tree"))));
    assert_eq!(fs::read_dir(&volume).unwrap().count(), 0);
    let script = format!(r#"mount --bind {file} {file} && "$@""#);
    for how in ["--force", "--update"] {
        let refused = end(mounted(&script, &["--out", &file, how]));
        assert!(
            refused.status == 1 && refused.stderr.contains("mounted there by itself"),
            "{}",
            refused.stderr
        );
    }
}

#[test]
fn what_is_equal_is_not_sent_again() {
    let _alone = alone();
    let place = Place::new();
    let mut bytes = noise(3_000_000);
    let file = place.file("object.bin", &bytes);
    place.file("tree/a", &bytes);
    place.file("tree/b", b"hello");
    for (path, out) in [(file.clone(), place.path("copy")), (place.path("tree"), place.path("copies"))] {
        assert_eq!(pass(&path, &["--out", &out]).1.status, 0);
        let (offered, accepted) = pass(&path, &["--out", &out, "--update", "--json"]);
        assert_eq!((offered.status, accepted.status), (0, 0), "{}{}", offered.stderr, accepted.stderr);
        assert_eq!(offered.json()["sent_bytes"], 0);
        assert_eq!(accepted.json()["unchanged"], true);
    }
    // Of what has changed, groups of 256 KiB are sent.
    bytes[1_000_000] ^= 1;
    fs::write(&file, &bytes).unwrap();
    let (offered, accepted) = pass(&file, &["--out", &place.path("copy"), "--update", "--json"]);
    assert!(spared(&offered.json()) >= 3_000_000 - 2 * (1 << 18), "{}", offered.stdout);
    assert_eq!(accepted.json()["unchanged"], false);
    assert!(fs::read(place.path("copy")).unwrap() == bytes);
}

#[test]
fn links_and_devices_are_not_replaced() {
    let _alone = alone();
    let place = Place::new();
    let file = place.file("object.bin", b"new");
    let target = place.file("target.bin", b"old");
    let link = place.path("link");
    symlink("target.bin", &link).unwrap();
    let (_, accepted) = pass(&file, &["--out", &link, "--force"]);
    assert_eq!(accepted.status, 0, "{}", accepted.stderr);
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(fs::read(&target).unwrap(), b"new");
}

#[test]
fn objects_come_from_and_go_to_pipes() {
    let _alone = alone();
    let place = Place::new();
    let bytes = noise(1_000_000);
    let acceptor = command(&["accept", "--out", "-", "--interface", "lo"]).spawn().unwrap();
    let mut source = command(&["offer", "-", "--open", "--receivers", "1", "--interface", "lo"]);
    let mut source = source.stdin(Stdio::piped()).spawn().unwrap();
    source.stdin.take().unwrap().write_all(&bytes).unwrap();
    let offered = end(source);
    assert_eq!(offered.status, 0, "{}", offered.stderr);
    let accepted = acceptor.wait_with_output().unwrap();
    assert!(accepted.status.success() && accepted.stdout == bytes, "other bytes on standard output");
    assert_eq!(fs::read_dir(place.root()).unwrap().count(), 0);
}

#[test]
fn a_transfer_that_is_ended_by_a_signal_goes_on_from_there() {
    const LEN: usize = 40_000_000;
    const PART: u64 = 4_000_000;
    let _alone = alone();
    let bytes = noise(LEN);
    for at_source in [true, false] {
        let place = Place::new();
        let file = place.file("object.bin", &bytes);
        let out = place.path("copy");
        let part = place.path(".copy.polycast-part");
        let acceptor = accept(&["--out", &out]);
        // It would take 20 s.
        let source = offer(&file, &["--rate", "16mbit"]);
        let written = || fs::metadata(&part).map_or(0, |m| std::os::unix::fs::MetadataExt::blocks(&m) * 512);
        until("a part of it is there", || written() >= PART);
        signal(if at_source { &source } else { &acceptor }, Signal::INT);
        let (stopped, other) = (end(source), end(acceptor));
        assert!(other.stderr.contains("kept"), "{}", other.stderr);
        assert_eq!((stopped.status, other.status), if at_source { (130, 1) } else { (1, 130) });
        assert!(!Path::new(&out).exists(), "something half-written is visible");
        let (offered, accepted) = pass(&file, &["--out", &out]);
        assert_eq!((offered.status, accepted.status), (0, 0), "{}{}", offered.stderr, accepted.stderr);
        assert!(spared(&offered.json()) > PART / 2, "what was verified is sent again: {}", offered.stdout);
        assert!(fs::read(&out).unwrap() == bytes);
        assert!(!Path::new(&part).exists(), "the part stays behind");
    }
}

#[test]
fn several_paths_travel_without_what_has_no_bytes() {
    let _alone = alone();
    let place = Place::new();
    let long = "n".repeat(255);
    for name in ["run/a.json", "run/b.json", "run/b.tmp", "run/sub/c", "run/cache/d", &long] {
        place.file(name, name.as_bytes());
    }
    let pipe = place.path("run/sub/pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0)
        .unwrap();
    let folder = place.path("in");
    let acceptor = accept(&["--into", &folder]);
    let [a, b, sub] = ["run/a.json", "run/b.json", "run/sub"].map(|name| place.path(name));
    let offered = end(offer(&a, &[&b, &sub, "--json"]));
    assert_eq!(offered.status, 0, "{}", offered.stderr);
    assert!(offered.stderr.contains("pipe is a named pipe"), "{}", offered.stderr);
    assert_eq!(end(acceptor).status, 0);
    // They are called as the directory that they lie in.
    for (name, there) in
        [("run/a.json", true), ("run/sub/c", true), ("run/sub/pipe", false), ("run/b.tmp", false)]
    {
        assert_eq!(Path::new(&format!("{folder}/{name}")).exists(), there, "{name}");
    }
    let out = place.path("chosen");
    let acceptor = accept(&["--out", &out]);
    let run = place.path("run");
    let chosen = ["--exclude", "*.tmp", "--exclude", "cache/", "--name", "chosen"];
    assert_eq!(end(offer(&run, &chosen)).status, 0);
    assert_eq!(end(acceptor).status, 0);
    assert!(Path::new(&format!("{out}/sub/c")).exists());
    assert!(!Path::new(&format!("{out}/b.tmp")).exists() && !Path::new(&format!("{out}/cache")).exists());
    // The longest name that a file can have.
    let (offered, accepted) = pass(&place.path(&long), &["--into", &folder]);
    assert_eq!((offered.status, accepted.status), (0, 0), "{}{}", offered.stderr, accepted.stderr);
    assert!(Path::new(&format!("{folder}/{long}")).exists());
}

#[test]
fn holes_do_not_become_bytes_on_the_disk() {
    let _alone = alone();
    let place = Place::new();
    let file = place.file("sparse", b"");
    fs::File::options().write(true).open(&file).unwrap().set_len(50_000_000).unwrap();
    let out = place.path("copy");
    assert_eq!(pass(&file, &["--out", &out]).1.status, 0);
    let copy = fs::metadata(&out).unwrap();
    let written = std::os::unix::fs::MetadataExt::blocks(&copy) * 512;
    assert!(copy.len() == 50_000_000 && written < 1_000_000, "{written} bytes on the disk");
}
