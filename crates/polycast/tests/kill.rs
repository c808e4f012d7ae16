//! Behaviour when a receiver or the source is killed or stopped in mid-transfer.

mod common;

use common::{Place, begin, end, noise, signal, spared};
use polycast_testing::until;
use rustix::process::Signal;
use std::fs;
use std::process::Child;
use std::sync::{Mutex, PoisonError};

/// An acceptor takes whatever is offered on its network: one test at a time.
static NETWORK: Mutex<()> = Mutex::new(());

/// Length of the object: 2.7 s at the rate of the offers here.
const LEN: usize = 40_000_000;
/// Bytes that a receiver has when something happens to it or to the source.
const PART: u64 = 6_000_000;

fn accept(out: &str, name: &str) -> Child {
    begin(&["accept", "--out", out, "--interface", "lo", "--name", name, "--json"])
}

fn offer(file: &str, receivers: &str) -> Child {
    begin(&[
        "offer",
        file,
        "--open",
        "--receivers",
        receivers,
        "--interface",
        "lo",
        "--rate",
        "120mbit",
        "--json",
    ])
}

/// Waits until a receiver has a part of the object.
fn await_part(out: &str) {
    let path = std::path::Path::new(out);
    let name = format!(".{}.polycast-part", path.file_name().unwrap().to_str().unwrap());
    let part = path.with_file_name(name);
    until("a part of it is there", || {
        fs::metadata(&part).is_ok_and(|m| std::os::unix::fs::MetadataExt::blocks(&m) * 512 > PART)
    });
}

#[test]
fn a_killed_receiver_is_named_and_the_others_are_not_held() {
    let _alone = NETWORK.lock().unwrap_or_else(PoisonError::into_inner);
    let place = Place::new();
    let bytes = noise(LEN);
    let file = place.file("object.bin", &bytes);
    let outs = [place.path("a"), place.path("b"), place.path("c")];
    let mut acceptors: Vec<Child> =
        outs.iter().zip(["a", "b", "c"]).map(|(out, name)| accept(out, name)).collect();
    let source = offer(&file, "3");
    await_part(&outs[1]);
    let victim = acceptors.remove(1);
    signal(&victim, Signal::KILL);
    let _ = end(victim);
    let report = end(source);
    assert_eq!(report.status, 1, "{}", report.stderr);
    // And not for being silent: the others were not held for as long as that would take.
    assert!(report.stderr.contains("b failed: it went away in mid-transfer"), "{}", report.stderr);
    for receiver in report.json()["receivers"].as_array().unwrap() {
        assert_eq!(receiver["verified"], receiver["name"] != "b", "{receiver}");
    }
    for (acceptor, out) in acceptors.into_iter().zip([&outs[0], &outs[2]]) {
        assert_eq!(end(acceptor).status, 0);
        assert!(fs::read(out).unwrap() == bytes);
    }
    assert!(!std::path::Path::new(&outs[1]).exists(), "something half-written is visible");
}

#[test]
fn a_killed_source_is_noticed_and_another_try_goes_on_from_there() {
    let _alone = NETWORK.lock().unwrap_or_else(PoisonError::into_inner);
    let place = Place::new();
    let bytes = noise(LEN);
    let file = place.file("object.bin", &bytes);
    let out = place.path("a");
    let acceptor = accept(&out, "a");
    let mut source = offer(&file, "1");
    await_part(&out);
    source.kill().unwrap();
    let failed = end(acceptor);
    source.wait().unwrap();
    assert_eq!(failed.status, 1);
    assert!(failed.stderr.contains("the source went away"), "{}", failed.stderr);
    assert!(!std::path::Path::new(&out).exists(), "something half-written is visible");

    let acceptor = accept(&out, "a");
    let report = end(offer(&file, "1"));
    assert_eq!(report.status, 0, "{}", report.stderr);
    assert!(spared(&report.json()) > PART / 2, "what was verified is not sent again: {}", report.stdout);
    assert_eq!(end(acceptor).status, 0);
    assert!(fs::read(&out).unwrap() == bytes);
}

#[test]
fn a_stopped_receiver_holds_nobody_and_can_go_on() {
    let _alone = NETWORK.lock().unwrap_or_else(PoisonError::into_inner);
    let place = Place::new();
    let bytes = noise(LEN);
    let file = place.file("object.bin", &bytes);
    let outs = [place.path("a"), place.path("b")];
    let first = accept(&outs[0], "a");
    let second = accept(&outs[1], "b");
    let source = offer(&file, "2");
    await_part(&outs[1]);
    signal(&second, Signal::STOP);
    // The one ends while the other stands.
    let done = end(first);
    assert_eq!(done.status, 0, "{}", done.stderr);
    signal(&second, Signal::CONT);
    let (report, went_on) = (end(source), end(second));
    assert_eq!(report.status, went_on.status, "{} {}", report.stderr, went_on.stderr);
    if report.status != 0 {
        // On a slow machine it was given up meanwhile: the same command goes on from there.
        assert!(report.stderr.contains("b failed: no sign of life"), "{}", report.stderr);
        let again = accept(&outs[1], "b");
        let report = end(offer(&file, "1"));
        assert_eq!((report.status, end(again).status), (0, 0), "{}", report.stderr);
        assert!(spared(&report.json()) > 0, "{}", report.stdout);
    }
    assert!(outs.iter().all(|out| fs::read(out).unwrap() == bytes));
}
