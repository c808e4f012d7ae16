//! Streams that no honest source makes: each is refused, and leaves nothing behind.

use super::format::{Entry, Kind};
use super::{ArchiveError, unpack};
use polycast_types::ModificationTime;
use std::fs;
use std::os::unix::fs::symlink;
use tar::{EntryType, Header};

fn entry(name: &str, kind: Kind) -> Vec<u8> {
    Entry { name: name.into(), kind, mode: 0o644, modified: ModificationTime::default() }.headers()
}

fn directory(name: &str) -> Vec<u8> {
    entry(name, Kind::Directory)
}

fn link(name: &str, target: &str) -> Vec<u8> {
    entry(name, Kind::Symlink { target: target.into() })
}

fn file(name: &str, contents: &[u8]) -> Vec<u8> {
    let mut bytes = entry(name, Kind::File { len: contents.len() as u64 });
    bytes.extend_from_slice(contents);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

/// One header with any type and length.
fn raw(name: &[u8], kind: u8, len: u64) -> Vec<u8> {
    let mut header = Header::new_gnu();
    header.as_old_mut().name[..name.len()].copy_from_slice(name);
    header.set_entry_type(EntryType::new(kind));
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(len);
    header.set_link_name("one").unwrap();
    header.set_cksum();
    header.as_bytes().to_vec()
}

/// Unpacks the parts, expects a failure and nothing left, and returns what was said.
fn refusal(parts: &[Vec<u8>]) -> String {
    refusal_of(&[parts.concat(), vec![0; 1024]].concat())
}

fn refusal_of(bytes: &[u8]) -> String {
    let place = tempfile::tempdir().unwrap();
    let target = place.path().join("inner/target");
    fs::create_dir(place.path().join("inner")).unwrap();
    let error = unpack(bytes, &target, false).unwrap_err();
    let left: Vec<_> =
        fs::read_dir(place.path().join("inner")).unwrap().flatten().map(|e| e.path()).collect();
    assert!(left.is_empty(), "left behind: {left:?}");
    let outside = fs::read_dir(place.path()).unwrap().count();
    assert_eq!(outside, 1, "something was written outside the target");
    error.to_string()
}

fn assert_says(said: &str, expected: &str) {
    assert!(said.contains(expected), "'{said}' does not say '{expected}'");
}

#[test]
fn absolute_paths() {
    assert_says(&refusal(&[file("/polycast-escape", b"x")]), "absolute");
    assert_says(&refusal(&[directory("/")]), "absolute");
}

#[test]
fn paths_that_climb() {
    for name in ["..", "../escape", "a/../../escape", "a/.."] {
        assert_says(&refusal(&[directory("a"), file(name, b"x")]), "leads out");
        assert_says(&refusal(&[directory("a"), directory(name)]), "leads out");
        assert_says(&refusal(&[directory("a"), link(name, "x")]), "leads out");
    }
}

#[test]
fn names_with_empty_components() {
    for name in ["a//b", "./a", "a/./b", "a/"] {
        assert_says(&refusal(&[directory("a"), file(name, b"x")]), "empty component");
    }
    assert_says(&refusal(&[raw(b"", b'0', 0)]), "no valid name");
    assert_says(&refusal(&[raw(b"./", b'0', 0)]), "empty component");
}

#[test]
fn long_names_that_climb_or_hide_a_nul() {
    let deep = format!("{}/../../../escape", "d".repeat(120));
    assert_says(&refusal(&[file(&deep, b"x")]), "leads out");
    let hidden = format!("{}\0/hidden", "d".repeat(120));
    assert_says(&refusal(&[file(&hidden, b"x")]), "no valid name");
}

/// The time that a path takes grows with its depth.
#[test]
fn paths_longer_than_the_system_opens() {
    let name = "d".repeat(255);
    let mut parts: Vec<Vec<u8>> = (1..16).map(|depth| directory(&vec![&*name; depth].join("/"))).collect();
    let deepest = vec![&*name; 16].join("/");
    assert_eq!(deepest.len(), 4_095);
    let stream = [parts.concat(), directory(&deepest), vec![0; 1024]].concat();
    let place = tempfile::tempdir().unwrap();
    assert_eq!(unpack(&*stream, &place.path().join("target"), false).unwrap().directories, 17);
    parts.push(file(&format!("{deepest}x"), b"x"));
    assert_says(&refusal(&parts), "longer than the 4,095 bytes by which the system opens one");
    let deep = "d/".repeat(20_000) + "d";
    assert_says(&refusal(&[directory(&deep)]), "longer than the 4,095 bytes");
    let linked = entry("link", Kind::HardLink { target: deep.into() });
    assert_says(&refusal(&[linked]), "longer than the 4,095 bytes");
}

#[test]
fn files_through_a_link() {
    assert_says(&refusal(&[link("a", ".."), file("a/escape", b"x")]), "through a link or a file");
    assert_says(&refusal(&[link("a", "/tmp"), file("a/polycast-escape", b"x")]), "through a link or a file");
    let inner = [directory("d"), link("d/a", "../.."), directory("d/a/escape")];
    assert_says(&refusal(&inner), "through a link or a file");
    assert_says(&refusal(&[link("a", "."), link("a/b", "x")]), "through a link or a file");
}

#[test]
fn files_through_a_file() {
    assert_says(&refusal(&[file("a", b"x"), file("a/b", b"x")]), "through a link or a file");
}

#[test]
fn a_file_over_a_link() {
    let place = tempfile::tempdir().unwrap();
    let victim = place.path().join("victim");
    fs::write(&victim, b"precious").unwrap();
    let said = refusal(&[link("a", victim.to_str().unwrap()), file("a", b"overwritten")]);
    assert_says(&said, "twice");
    assert_eq!(fs::read(&victim).unwrap(), b"precious");
}

#[test]
fn the_same_name_twice() {
    assert_says(&refusal(&[file("a", b"x"), file("a", b"y")]), "twice");
    assert_says(&refusal(&[directory("a"), link("a", "x")]), "twice");
    assert_says(&refusal(&[directory("a"), directory("a")]), "twice");
    assert_says(&refusal(&[file("a", b"x"), directory("a")]), "twice");
    assert_says(&refusal(&[file("a", b"x"), directory("")]), "comes first");
}

#[test]
fn children_before_their_directory() {
    assert_says(&refusal(&[file("a/b", b"x"), directory("a")]), "comes before the directory");
}

#[test]
fn names_of_files_that_are_none() {
    let second = |target: &str| entry("l", Kind::HardLink { target: target.into() });
    for (target, why) in [
        ("/etc/passwd", "absolute"),
        ("../one", "leads out"),
        ("two", "has not come"),
        ("d", "no file"),
        ("s", "no file"),
        ("s/passwd", "has not come"),
    ] {
        let entries = [file("one", b"1"), directory("d"), link("s", "/etc"), second(target)];
        assert_says(&refusal(&entries), why);
    }
}

#[test]
fn kinds_that_are_never_unpacked() {
    for (kind, why) in [
        (b'3', "devices"),
        (b'4', "devices"),
        (b'6', "named pipes"),
        (b'7', "unknown"),
        (b'S', "unknown"),
        (b'g', "unknown"),
        (b'Z', "unknown"),
    ] {
        assert_says(&refusal(&[file("one", b"1"), raw(b"entry", kind, 0)]), why);
    }
    assert_says(&refusal(&[raw(b"d", b'5', 10)]), "has contents");
}

#[test]
fn links_without_a_target() {
    assert_says(&refusal(&[link("a", "")]), "without a valid target");
    let hidden = format!("{}\0x", "t".repeat(200));
    assert_says(&refusal(&[link("a", &hidden)]), "without a valid target");
}

#[test]
fn records_of_absurd_length() {
    assert_says(&refusal(&[raw(b"././@LongLink", b'L', 1 << 40)]), "too long");
    assert_says(&refusal(&[raw(b"././@LongLink", b'K', 65 * 1024)]), "too long");
    assert_says(&refusal(&[raw(b"pax_header", b'x', u64::MAX)]), "too long");
}

#[test]
fn files_of_absurd_length() {
    assert_says(&refusal(&[raw(b"huge", b'0', u64::MAX)]), "ends too early");
    assert_says(&refusal(&[raw(b"huge", b'0', 1 << 50)]), "ends too early");
}

#[test]
fn time_records_that_are_none() {
    for contents in [&b"nonsense"[..], b"99 mtime=1\n", b"12 mtime=x.y\n", b"3 \n", b"0 x\n"] {
        let mut record = raw(b"pax_header", b'x', contents.len() as u64);
        record.extend_from_slice(contents);
        record.resize(1024, 0);
        refusal(&[record, file("a", b"x")]);
    }
}

#[test]
fn headers_that_are_damaged() {
    let whole = [directory(""), file("a", &[1; 700]), vec![0; 1024]].concat();
    let place = tempfile::tempdir().unwrap();
    unpack(whole.as_slice(), &place.path().join("whole"), false).unwrap();
    for at in (0..512).chain(512..1024) {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x11;
        assert_says(&refusal_of(&damaged), "check sum");
    }
}

#[test]
fn streams_that_end_early() {
    let whole = [directory(""), file("a", &[1; 700]), vec![0; 512]].concat();
    for len in (0..whole.len()).step_by(64) {
        assert_says(&refusal_of(&whole[..len]), "ends too early");
    }
}

#[test]
fn an_occupied_target_is_left_alone() {
    let place = tempfile::tempdir().unwrap();
    let bytes = [file("a", b"new"), vec![0; 1024]].concat();
    let target = place.path().join("target");
    fs::create_dir(&target).unwrap();
    fs::write(target.join("old"), b"old").unwrap();
    let error = unpack(bytes.as_slice(), &target, false).unwrap_err();
    assert!(matches!(error, ArchiveError::TargetExists { .. }), "{error}");
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1);

    let occupied = place.path().join("file");
    fs::write(&occupied, b"old").unwrap();
    assert!(matches!(unpack(bytes.as_slice(), &occupied, false), Err(ArchiveError::TargetExists { .. })));
    let alias = place.path().join("alias");
    symlink("nowhere", &alias).unwrap();
    assert!(matches!(unpack(bytes.as_slice(), &alias, false), Err(ArchiveError::TargetExists { .. })));

    // Unless it is to be replaced: then nothing of it stays, and what a link leads to is not touched.
    symlink(&occupied, place.path().join("link")).unwrap();
    for replaced in [&target, &place.path().join("link"), &alias] {
        assert_eq!(unpack(bytes.as_slice(), replaced, true).unwrap().files, 1);
        assert_eq!(fs::read(replaced.join("a")).unwrap(), b"new");
        assert_eq!(fs::read_dir(replaced).unwrap().count(), 1);
    }
    assert_eq!(fs::read(&occupied).unwrap(), b"old");

    let empty = place.path().join("empty");
    fs::create_dir(&empty).unwrap();
    assert_eq!(unpack(bytes.as_slice(), &empty, false).unwrap().files, 1);
    assert_eq!(fs::read(empty.join("a")).unwrap(), b"new");
}

#[test]
fn what_a_killed_process_has_unpacked_is_removed() {
    let place = tempfile::tempdir().unwrap();
    let left = place.path().join(".other.18262-0.polycast-unpacking");
    fs::create_dir(&left).unwrap();
    fs::write(left.join("a"), b"left").unwrap();
    fs::write(place.path().join(".mine.polycast-unpacking"), b"a file").unwrap();
    let name = "x".repeat(255);
    let bytes = [file("a", b"new"), vec![0; 1024]].concat();
    unpack(bytes.as_slice(), &place.path().join(&name), false).unwrap();
    let mut names: Vec<_> = fs::read_dir(place.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, [".mine.polycast-unpacking", name.as_str()]);
}

#[test]
fn a_target_without_a_parent_is_named() {
    let place = tempfile::tempdir().unwrap();
    let error = unpack(&[0u8; 1024][..], &place.path().join("missing/target"), false).unwrap_err();
    assert_says(&error.to_string(), "missing/target");
}
