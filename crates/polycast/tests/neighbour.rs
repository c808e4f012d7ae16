//! A hostile neighbour, which speaks the wire format on its own (`neighbour/*.py`, written from
//! docs/protocol.md alone), beside honest transfers: what it says, and how slowly, ends its own session only.
//! And a receiver of the same second implementation, which is honest.
//!
//! How much time an attack costs is measured by the same program (docs/measurements.md), not asserted here.

mod common;

use common::{Place, begin, end, noise};
use polycast_testing::{Need, needs};
use std::process::{Command, Output};

const PROGRAM: &str = env!("CARGO_BIN_EXE_polycast");

/// A program of the second implementation.
fn python(script: &str) -> Command {
    let mut command = Command::new("python3");
    command.arg("-B").arg(format!("{}/tests/neighbour/{script}", env!("CARGO_MANIFEST_DIR")));
    command
}

fn words(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

/// Plays attacks, each beside a transfer to two honest receivers.
fn beside(attacks: &[&str]) {
    if !needs(&[Need::Root, Need::Namespaces, Need::Tool("ip"), Need::Tool("ethtool"), Need::Tool("python3")])
    {
        return;
    }
    let ran =
        python("neighbour.py").arg(PROGRAM).args(["--bytes", "4000000"]).args(attacks).output().unwrap();
    assert!(ran.status.success(), "{}", words(&ran));
}

/// The second implementation seals as the first one does.
#[test]
fn both_implementations_seal_alike() {
    if !needs(&[Need::Tool("python3")]) {
        return;
    }
    let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../net/tests/golden/seal.json");
    let ran = python("seal.py").arg(examples).output().unwrap();
    assert!(ran.status.success(), "{}", words(&ran));
}

#[test]
fn receivers_that_are_none_harm_no_other() {
    beside(&["liar"]);
}

#[test]
fn connections_of_a_stranger_close_no_door() {
    beside(&["idle-600", "promises-600"]);
}

#[test]
fn who_has_no_code_gets_no_place() {
    beside(&["--code", "sabab-dabad-tabat", "seat", "zombie"]);
}

#[test]
fn rogue_offers_replace_nothing() {
    beside(&["rogue-dot"]);
}

#[test]
fn forged_packets_change_no_byte() {
    beside(&["forged-jump"]);
}

#[test]
fn a_receiver_of_another_implementation_gets_the_object() {
    if !needs(&[Need::Tool("python3")]) {
        return;
    }
    let place = Place::new();
    let bytes = noise(700_000);
    let (file, out) = (place.file("object.bin", &bytes), place.path("second"));
    let offer = begin(&[
        "offer",
        &file,
        "--open",
        "--receivers",
        "1",
        "--interface",
        "lo",
        "--timeout",
        "10m",
        "--json",
    ]);
    let ran = python("receiver.py").args([&out, "--loss", "0.1"]).output().unwrap();
    assert!(ran.status.success(), "{}", words(&ran));
    assert!(std::fs::read(&out).unwrap() == bytes);
    let ended = end(offer);
    assert_eq!(ended.status, 0, "{}", ended.stderr);
    assert_eq!(ended.json()["receivers"][0]["verified"], true);
    assert!(
        ended.json()["receivers"][0]["patched_bytes"].as_u64().unwrap() > 0,
        "some packets were thrown away"
    );
}
