//! `offer` and `accept` find each other and deliver; signals leave nothing half-written.

mod common;

use common::{Place, begin, end, noise, signal};
use rustix::process::Signal;
use std::fs;
use std::process::Child;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// An acceptor takes whatever is offered on its network: one test at a time.
static NETWORK: Mutex<()> = Mutex::new(());

#[test]
fn an_offer_reaches_all_who_accept() {
    let _alone = NETWORK.lock().unwrap_or_else(PoisonError::into_inner);
    let place = Place::new();
    let bytes = noise(3_000_000);
    let file = place.file("object.bin", &bytes);
    fs::create_dir(place.path("folder")).unwrap();
    let outs = [place.path("copy"), place.path("folder")];
    let acceptors: Vec<Child> = ["first", "second"]
        .iter()
        .zip(&outs)
        .map(|(name, out)| begin(&["accept", "--out", out, "--interface", "lo", "--name", name, "--json"]))
        .collect();
    let offer = end(begin(&["offer", &file, "--receivers", "2", "--interface", "127.0.0.1", "--json"]));
    assert_eq!(offer.status, 0, "{}", offer.stderr);
    let report = offer.json();
    let mut names: Vec<_> =
        report["receivers"].as_array().unwrap().iter().map(|r| r["name"].as_str().unwrap()).collect();
    names.sort_unstable();
    assert_eq!(names, ["first", "second"]);
    assert_eq!(report["bytes"], bytes.len());
    for acceptor in acceptors {
        let acceptance = end(acceptor);
        assert_eq!(acceptance.status, 0, "{}", acceptance.stderr);
        let account = acceptance.json();
        assert_eq!((&account["verified"], &account["name"]), (&true.into(), &"object.bin".into()));
        assert_eq!(account["root"], report["root"]);
        assert!(fs::read(account["path"].as_str().unwrap()).unwrap() == bytes);
    }
    assert!(fs::read(place.path("copy")).unwrap() == bytes);
    assert!(fs::read(place.path("folder/object.bin")).unwrap() == bytes);
}

#[test]
fn an_offer_that_nobody_accepts_says_so() {
    let _alone = NETWORK.lock().unwrap_or_else(PoisonError::into_inner);
    let place = Place::new();
    let file = place.file("object.bin", b"x");
    let start_at = Instant::now();
    let ran = end(begin(&["offer", &file, "--receivers", "1", "--interface", "lo", "--timeout", "1s"]));
    assert_eq!(ran.status, 1, "{}", ran.stdout);
    assert!(ran.stderr.contains("no receiver joined"), "{}", ran.stderr);
    assert!(start_at.elapsed() < Duration::from_secs(10));
}

#[test]
fn signals_leave_nothing_behind() {
    let _alone = NETWORK.lock().unwrap_or_else(PoisonError::into_inner);
    for asked in [Signal::INT, Signal::TERM] {
        let place = Place::new();
        let out = place.path("out");
        let acceptor = begin(&["accept", "--out", &out, "--interface", "lo"]);
        std::thread::sleep(Duration::from_millis(300));
        signal(&acceptor, asked);
        let ran = end(acceptor);
        assert_eq!(ran.status, 1, "{}", ran.stderr);
        assert!(ran.stderr.contains("cancelled"), "{}", ran.stderr);
        assert_eq!(fs::read_dir(place.root()).unwrap().count(), 0);
    }
}
