//! `cast` delivers real bytes to real receivers, whatever their number, size and luck.

mod common;

use common::{Place, Ran, begin, end, noise, polycast, tree};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, SystemTime};

/// Casts a file or directory to `receivers` receivers with `--out`, and returns the report.
fn cast(path: &str, out: &str, receivers: u64, more: &[&str]) -> Value {
    let count = receivers.to_string();
    let arguments = [&["cast", path, "--receivers", &count, "--out", out, "--json"], more].concat();
    let ran = polycast(&arguments);
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    let report = ran.json();
    assert_report(&report, receivers);
    report
}

fn assert_report(report: &Value, receivers: u64) {
    for key in ["bytes", "seconds", "goodput_bps", "sent_bytes", "patched_bytes"] {
        assert!(report[key].is_number(), "{key} in {report}");
    }
    for key in ["object", "fabric"] {
        assert!(report[key].as_str().is_some_and(|text| !text.is_empty()), "{key} in {report}");
    }
    let list = report["receivers"].as_array().unwrap();
    assert_eq!(list.len() as u64, receivers);
    for receiver in list {
        assert_eq!(receiver["verified"], true, "{report}");
        assert!(receiver["name"].as_str().unwrap().starts_with("receiver-"));
        assert!(receiver["seconds"].as_f64().unwrap() <= report["seconds"].as_f64().unwrap() + 1e-9);
        assert!(receiver["patched_bytes"].is_u64());
    }
}

/// Casts bytes as a file and compares every copy.
fn cast_bytes(bytes: &[u8], receivers: u64, more: &[&str]) -> Value {
    let place = Place::new();
    let file = place.file("object.bin", bytes);
    let out = place.path("out");
    let report = cast(&file, &out, receivers, more);
    assert_eq!(report["bytes"], bytes.len());
    for number in 1..=receivers {
        let copy = fs::read(Path::new(&out).join(format!("receiver-{number}/object.bin"))).unwrap();
        assert!(copy == bytes, "receiver {number} has other bytes");
    }
    report
}

/// Bytes of a fragment on the loopback interface.
fn fragment_len() -> usize {
    let mtu = fs::read_to_string("/sys/class/net/lo/mtu").unwrap().trim().parse::<u32>().unwrap();
    polycast_wire::data::fragment_len_for_mtu(mtu.min(9_000)) as usize
}

#[test]
fn nothing_at_all() {
    let report = cast_bytes(b"", 4, &[]);
    assert_eq!(report["goodput_bps"], 0.0);
}

#[test]
fn one_byte() {
    cast_bytes(b"x", 4, &[]);
}

#[test]
fn one_fragment_more_or_less() {
    for len in [fragment_len() - 1, fragment_len(), fragment_len() + 1] {
        cast_bytes(&noise(len), 2, &[]);
    }
}

#[test]
fn one_hash_group_more_or_less() {
    for len in [(1 << 18) - 1, 1 << 18, (1 << 18) + 1] {
        cast_bytes(&noise(len), 1, &[]);
    }
}

#[test]
fn ten_megabytes_to_eight_receivers() {
    let report = cast_bytes(&noise(10_000_000), 8, &[]);
    assert!(report["goodput_bps"].as_f64().unwrap() > 0.0);
    assert!(report["sent_bytes"].as_u64().unwrap() >= 10_000_000);
}

#[test]
fn ten_megabytes_with_loss() {
    let report = cast_bytes(&noise(10_000_000), 4, &["--loss", "0.05", "--seed", "7"]);
    let patched: u64 =
        report["receivers"].as_array().unwrap().iter().map(|r| r["patched_bytes"].as_u64().unwrap()).sum();
    assert!(patched > 0, "with loss something must be patched: {report}");
}

#[test]
fn a_little_with_heavy_loss() {
    for (len, loss) in [(1, "0.5"), (100_000, "0.5"), (300_000, "0.9")] {
        cast_bytes(&noise(len), 2, &["--loss", loss]);
    }
}

#[test]
fn a_directory() {
    let place = Place::new();
    place.file("tree/top", &noise(3_000));
    place.file("tree/sub/deeper/bottom", b"");
    let script = place.file("tree/sub/script", b"#!/bin/sh\n");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o750)).unwrap();
    fs::create_dir(place.path("tree/empty")).unwrap();
    let changed = SystemTime::UNIX_EPOCH + Duration::new(981_158_400, 5);
    fs::File::open(&script).unwrap().set_modified(changed).unwrap();
    symlink("sub/script", place.path("tree/link")).unwrap();
    symlink("nowhere", place.path("tree/dangling")).unwrap();
    for number in 0..300 {
        place.file(&format!("tree/many/{number}"), &noise(number));
    }
    let source = place.path("tree");
    cast(&source, &place.path("out"), 3, &[]);
    let expected = tree(Path::new(&source));
    for number in 1..=3 {
        let copy = place.path(&format!("out/receiver-{number}/tree"));
        assert!(tree(Path::new(&copy)) == expected, "receiver {number} has another tree");
        let mode = fs::metadata(format!("{copy}/sub/script")).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o750);
    }
    // A file alone keeps the same.
    cast(&script, &place.path("alone"), 1, &[]);
    for copy in ["out/receiver-2/tree/sub/script", "alone/receiver-1/script"] {
        let copy = fs::metadata(place.path(copy)).unwrap();
        assert_eq!((copy.permissions().mode() & 0o7777, copy.modified().unwrap()), (0o750, changed));
    }
}

#[test]
fn an_empty_directory() {
    let place = Place::new();
    fs::create_dir(place.path("tree")).unwrap();
    cast(&place.path("tree"), &place.path("out"), 1, &[]);
    assert_eq!(fs::read_dir(place.path("out/receiver-1/tree")).unwrap().count(), 0);
}

#[test]
fn casts_at_the_same_time_do_not_mix() {
    std::thread::scope(|scope| {
        for len in [1_000, 200_000, 400_000, 800_000] {
            scope.spawn(move || cast_bytes(&noise(len), 2, &[]));
        }
    });
}

#[test]
fn without_out_nothing_stays() {
    let place = Place::new();
    let file = place.file("file", b"some bytes");
    let cast = begin(&["cast", &file]);
    let mark = format!("polycast-cast-{}-", cast.id());
    let ran = end(cast);
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    assert!(ran.stdout.contains("4 of 4 receivers"), "{}", ran.stdout);
    assert!(ran.stdout.contains("receiver-4  verified"), "{}", ran.stdout);
    assert!(ran.stderr.is_empty(), "{}", ran.stderr);
    let listing = fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    let left = listing.filter(|item| item.file_name().to_string_lossy().starts_with(&mark));
    assert_eq!(left.count(), 0, "copies were left behind");
}

#[test]
fn a_second_cast_to_the_same_place_replaces_files_if_it_is_told_to() {
    let place = Place::new();
    let out = place.path("out");
    cast(&place.file("file", b"old and longer"), &out, 1, &[]);
    let file = place.file("file", b"new");
    let ran = polycast(&["cast", &file, "--receivers", "1", "--out", &out]);
    assert_eq!(ran.status, 1);
    assert!(ran.stderr.contains("receiver-1/file is there already"), "{}", ran.stderr);
    assert_eq!(fs::read(place.path("out/receiver-1/file")).unwrap(), b"old and longer");
    cast(&file, &out, 1, &["--force"]);
    assert_eq!(fs::read(place.path("out/receiver-1/file")).unwrap(), b"new");
    assert_eq!(fs::read_dir(place.path("out/receiver-1")).unwrap().count(), 1);
}

#[test]
fn what_killed_casts_have_left_is_removed() {
    let place = Place::new();
    let file = place.file("file", b"some bytes");
    // No process holds its lock: the one that made it is gone.
    let left = format!("/dev/shm/polycast-cast-{}-test.stage", std::process::id());
    // Other casts of these tests look for such as well.
    let made = format!("{left}.new");
    fs::create_dir(&made).unwrap();
    fs::write(format!("{made}/copy"), b"left").unwrap();
    fs::rename(made, &left).unwrap();
    assert_eq!(polycast(&["cast", &file, "--receivers", "1"]).status, 0);
    assert!(!fs::exists(&left).unwrap());
}

#[test]
fn a_directory_is_never_mixed_with_what_is_there() {
    let place = Place::new();
    place.file("tree/file", b"new");
    place.file("out/receiver-1/tree/other", b"old");
    let ran = polycast(&["cast", &place.path("tree"), "--receivers", "1", "--out", &place.path("out")]);
    assert_eq!(ran.status, 1);
    assert!(ran.stderr.contains("is there already"), "{}", ran.stderr);
    assert_eq!(tree(Path::new(&place.path("out/receiver-1"))).len(), 3);
}

#[test]
fn a_receiver_that_cannot_store_is_named() {
    let place = Place::new();
    let file = place.file("file", b"new");
    // Where the file is to go there is a directory that is not empty.
    place.file("out/receiver-2/file/occupied", b"old");
    let ran: Ran = polycast(&["cast", &file, "--receivers", "3", "--out", &place.path("out"), "--json"]);
    assert_eq!(ran.status, 1, "{}", ran.stderr);
    assert!(ran.stderr.contains("receiver-2 failed: "), "{}", ran.stderr);
    let report = ran.json();
    let verified: Vec<_> =
        report["receivers"].as_array().unwrap().iter().map(|r| r["verified"].as_bool().unwrap()).collect();
    assert_eq!(verified, [true, false, true], "{report}");
    assert!(report["receivers"][1]["error"].is_string());
    assert_eq!(fs::read(place.path("out/receiver-3/file")).unwrap(), b"new");
}
