//! Hosts that are drained: they are sent nothing new, and are asked for what only they have.

use super::*;

fn drained(hosts: &[u64]) -> DirectoryInput {
    DirectoryInput::Drained { hosts: hosts.iter().map(|host| format!("h{host}")).collect() }
}

fn draining(host: u64) -> WishRefusal {
    WishRefusal::Draining(format!("h{host}"))
}

/// A wish of its own is refused, also one that waits already; that of another host is met, by it only where
/// no other has the object.
#[test]
fn it_gets_nothing_and_gives_what_no_other_has() {
    let mut directory = settled(4);
    for (of, what) in [(0, 1), (1, 1), (0, 2)] {
        directory.handle(ms(20_000), have(of, what));
    }
    let waits = Wish { can_fill: false, waits: true, fills: false };
    directory.handle(ms(20_000), DirectoryInput::Want { agent: agent(0), object: object(3), wish: waits });
    assert_eq!(spoken(&mut directory, 20_000..20_200), []);
    directory.handle(ms(21_000), drained(&[0]));
    let denied = |what| DirectoryOutput::Denied { agent: agent(0), object: object(what), why: draining(0) };
    assert_eq!(spoken(&mut directory, 21_000..21_010), [(21_000, denied(3))]);
    directory.handle(ms(21_100), want(0, 4));
    assert_eq!(spoken(&mut directory, 21_100..21_200), [(21_150, denied(4))]);
    // Its name is the first: without the drain it would be asked.
    directory.handle(ms(22_000), want(2, 1));
    assert_eq!(spoken(&mut directory, 22_000..22_100), [(22_050, serve(1, 1, 1, &[2]))]);
    directory.handle(ms(23_000), want(2, 2));
    assert_eq!(spoken(&mut directory, 23_000..23_100), [(23_050, serve(0, 2, 2, &[2]))]);
}

/// The others are not kept waiting for a version, and it gets the last one when it is taken back.
#[test]
fn a_version_is_committed_without_it_and_comes_when_it_is_back() {
    let mut directory = settled(3);
    for of in [0, 1, 2] {
        directory.handle(ms(20_000), subscribe(of, "t"));
    }
    directory.handle(ms(20_000), have(0, 1));
    directory.handle(ms(20_000), drained(&[2]));
    directory.handle(ms(20_000), publish(0, "t", 1, 1));
    let outputs = spoken(&mut directory, 20_000..20_100);
    assert!(outputs.contains(&(20_000, serve(0, 1, 1, &[1]))), "{outputs:?}");
    let said = said(&mut directory, have(1, 1));
    assert!(said.contains(&published(0, 1, &[0, 1], &[(2, Missed::Object(draining(2)))])), "{said:?}");
    directory.handle(ms(30_000), drained(&[]));
    let outputs = spoken(&mut directory, 30_000..30_100);
    assert!(outputs.contains(&(30_000, serve(0, 2, 1, &[2]))), "{outputs:?}");
}

/// Objects that would be lost with it are named: those that no host has that stays.
#[test]
fn what_only_it_has_is_named() {
    let mut directory = settled(3);
    for (of, what) in [(0, 1), (0, 2), (0, 3), (1, 2), (2, 3)] {
        directory.handle(ms(20_000), have(of, what));
    }
    for (topic, what) in [("alone", 1), ("two", 2)] {
        directory.handle(ms(20_000), publish(0, topic, 1, what));
    }
    outputs(&mut directory, ms(20_000));
    directory.handle(ms(20_000), drained(&[0]));
    let only = |directory: &Directory| {
        let OnlyThere { objects, topics } = directory.only_at("h0");
        (objects, topics)
    };
    assert_eq!(only(&directory), (vec![object(1)], vec!["alone".to_string()]));
    directory.handle(ms(20_001), drained(&[0, 2]));
    assert_eq!(only(&directory).0, [object(1), object(3)], "the other one is about to go as well");
    directory.handle(ms(20_002), have(1, 1));
    assert_eq!(only(&directory), (vec![object(3)], vec![]));
    assert_eq!(directory.only_at("h9"), OnlyThere::default());
}
