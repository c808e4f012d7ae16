//! `offer` and `accept` find each other and deliver; signals leave nothing half-written.

mod common;

use common::{Place, begin, end, noise, signal};
use polycast_types::Handle;
use polycast_wire::discovery::{Announcement, Discovery, GROUP, PORT};
use rustix::process::Signal;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
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
    let acceptors: Vec<Child> = [("first", "--out"), ("second", "--into")]
        .iter()
        .zip(&outs)
        .map(|((name, how), out)| begin(&["accept", how, out, "--interface", "lo", "--name", name, "--json"]))
        .collect();
    let offer =
        end(begin(&["offer", &file, "--open", "--receivers", "2", "--interface", "127.0.0.1", "--json"]));
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

/// Says something to all who wait for an offer, again and again, as long as this lives.
fn rogue(datagrams: Vec<Vec<u8>>) -> Arc<AtomicBool> {
    let ends = Arc::new(AtomicBool::new(false));
    let ended = Arc::clone(&ends);
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    std::thread::spawn(move || {
        while !ended.load(Ordering::Relaxed) {
            for datagram in &datagrams {
                // There may be no listener just then.
                let _ = socket.send_to(datagram, (std::net::Ipv4Addr::from(GROUP), PORT));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    ends
}

fn announcement(handle: u64, name: &str) -> Vec<u8> {
    let (handle, name) = (Handle(handle), name.to_string());
    let (address, host, code) = ([127, 0, 0, 1], "rogue".to_string(), None);
    let announcement = Announcement { handle, address, port: 9, places: 1, object_len: 5, name, host, code };
    Discovery::Announce(announcement).emit()
}

/// Runs a test where no other process offers or accepts anything.
fn alone(test: impl FnOnce() + Send) {
    polycast_testing::isolated(|| {
        let up = Command::new("ip").args(["link", "set", "lo", "up"]).status();
        assert!(up.is_ok_and(|status| status.success()));
        test();
    });
}

#[test]
fn of_several_offers_none_is_taken_that_is_not_named() {
    alone(|| {
        let place = Place::new();
        let file = place.file("object.bin", b"bytes");
        let out = place.path("out");
        let mut offer = begin(&["offer", &file, "--open", "--receivers", "1", "--interface", "lo"]);
        // It says what it is called.
        let mut said = String::new();
        BufReader::new(offer.stderr.as_mut().unwrap()).read_line(&mut said).unwrap();
        let handle = said.trim().rsplit_once("handle ").unwrap().1.to_string();
        let ends = rogue(vec![announcement(7, "evil\u{1b}]0;x\u{7}")]);
        let arguments = ["accept", "--out", &out, "--interface", "lo"];
        let ran = end(begin(&arguments));
        assert_eq!(ran.status, 1, "{}", ran.stderr);
        assert!(
            ran.stderr.contains("2 offers are on air") && ran.stderr.contains("--handle"),
            "{}",
            ran.stderr
        );
        assert!(!ran.stderr.contains('\u{1b}') && ran.stderr.contains(&handle), "{}", ran.stderr);
        let taken = end(begin(&[&arguments[..], &["--handle", &handle]].concat()));
        assert_eq!(taken.status, 0, "{}", taken.stderr);
        assert!(taken.stderr.contains("offered: object.bin (5 B) from 127.0.0.1:"), "{}", taken.stderr);
        assert_eq!(fs::read(&out).unwrap(), b"bytes");
        ends.store(true, Ordering::Relaxed);
        assert_eq!(end(offer).status, 0);
    });
}

/// What an offer with `--json` says first.
fn first_event(offer: &mut Child) -> serde_json::Value {
    let mut said = String::new();
    BufReader::new(offer.stderr.as_mut().unwrap()).read_line(&mut said).unwrap();
    serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"))
}

#[test]
fn an_offer_with_a_code_is_for_those_who_know_it() {
    alone(|| {
        let place = Place::new();
        let file = place.file("object.bin", &noise(1_000_000));
        let out = place.path("out");
        let mut offer = begin(&["offer", &file, "--receivers", "1", "--interface", "lo", "--json"]);
        let event = first_event(&mut offer);
        let told = |key: &str| event[key].as_str().unwrap_or_default().to_string();
        assert_eq!(
            (told("event"), told("interface"), told("address")),
            ("offer".into(), "lo".into(), "127.0.0.1".into())
        );
        assert_eq!((&event["port"], &event["open"]), (&18_067.into(), &false.into()));
        let code = told("code");
        let accept = |more: &[&str]| {
            let arguments = ["accept", "--out", &out, "--interface", "lo", "--timeout", "1s"];
            end(begin(&[&arguments[..], more].concat()))
        };
        let from = ["--from", "127.0.0.1"];
        for (more, why) in [
            (&[][..], "it is for those who know its code"),
            (&["lusab-babad-gutih"], "it has another code"),
            (&from, "it is for those who know its code"),
            (&["lusab-babad-gutih", from[0], from[1]], "it has another code"),
        ] {
            let ran = accept(more);
            assert_eq!(ran.status, 1, "{}", ran.stderr);
            assert!(
                ran.stderr.contains(why) && ran.stderr.contains("nothing that could be taken"),
                "{}",
                ran.stderr
            );
            assert!(!ran.stderr.contains(&code), "{}", ran.stderr);
        }
        let taken = accept(&[&code.to_uppercase().replace('-', " "), from[0], from[1]]);
        assert_eq!(taken.status, 0, "{}", taken.stderr);
        let offered = end(offer);
        assert_eq!(offered.status, 0, "{}", offered.stderr);
        assert_eq!(fs::read(&out).unwrap(), fs::read(&file).unwrap());
    });
}

#[test]
fn an_open_offer_is_taken_where_there_is_no_multicast() {
    alone(|| {
        let place = Place::new();
        let file = place.file("object.bin", &noise(1_000_000));
        let offer =
            ["offer", &file, "--open", "--receivers", "2", "--interface", "lo", "--port", "18070", "--json"];
        let mut offer = begin(&offer);
        assert_eq!(first_event(&mut offer)["port"], 18_070);
        let outs = ["one", "two"].map(|name| place.path(name));
        let acceptors = outs
            .each_ref()
            .map(|out| begin(&["accept", "--from", "localhost:18070", "--out", out, "--json"]));
        for acceptor in acceptors {
            let ran = end(acceptor);
            assert_eq!(ran.status, 0, "{}", ran.stderr);
            assert!(ran.stderr.contains("from 127.0.0.1:18070"), "{}", ran.stderr);
        }
        assert_eq!(end(offer).status, 0);
        for out in outs {
            assert!(fs::read(out).unwrap() == fs::read(&file).unwrap());
        }
        // Nothing is there any more.
        let ran =
            end(begin(&["accept", "--from", "127.0.0.1", "--out", &place.path("x"), "--timeout", "1s"]));
        assert!(
            ran.status == 1 && ran.stderr.contains("127.0.0.1:18067 offers nothing yet"),
            "{}",
            ran.stderr
        );
    });
}

#[test]
fn one_that_serves_stays_for_those_who_come_later() {
    alone(|| {
        let place = Place::new();
        let file = place.file("object.bin", &noise(1_000_000));
        let mut offer = begin(&["offer", &file, "--serve", "--interface", "lo", "--json"]);
        let code = first_event(&mut offer)["code"].as_str().unwrap().to_string();
        let accept = |name: &str| {
            let out = place.path(name);
            begin(&["accept", &code, "--out", &out, "--interface", "lo", "--name", name, "--timeout", "20s"])
        };
        let taken = |child: Child, name: &str| {
            let ran = end(child);
            assert_eq!(ran.status, 0, "{}", ran.stderr);
            assert!(fs::read(place.path(name)).unwrap() == fs::read(&file).unwrap());
        };
        taken(accept("first"), "first");
        std::thread::sleep(Duration::from_millis(700));
        let together = [accept("second"), accept("third")];
        together.into_iter().zip(["second", "third"]).for_each(|(child, name)| taken(child, name));
        signal(&offer, Signal::INT);
        let offered = end(offer);
        assert_eq!(offered.status, 0, "{}", offered.stderr);
        assert_eq!(offered.json()["receivers"].as_array().unwrap().len(), 3);
        assert!(offered.stderr.contains(r#""event":"served""#), "{}", offered.stderr);
    });
}

#[test]
fn one_too_many_is_told_so() {
    alone(|| {
        let place = Place::new();
        let file = place.file("object.bin", &noise(20_000_000));
        let offer = ["offer", &file, "--receivers", "1", "--interface", "lo", "--rate", "20mbit", "--json"];
        let mut offer = begin(&offer);
        let code = first_event(&mut offer)["code"].as_str().unwrap().to_string();
        let accept = |out: &str| begin(&["accept", &code, "--out", out, "--interface", "lo"]);
        let first = accept(&place.path("first"));
        std::thread::sleep(Duration::from_secs(1));
        let ran = end(accept(&place.path("second")));
        assert!(ran.status == 1 && ran.stderr.contains("all its receivers have joined"), "{}", ran.stderr);
        for child in [first, offer] {
            signal(&child, Signal::INT);
            end(child);
        }
    });
}

#[test]
fn the_loopback_is_taken_by_nobody_who_has_not_said_so() {
    alone(|| {
        let place = Place::new();
        let file = place.file("object.bin", b"x");
        let up =
            Command::new("ip").args(["link", "add", "eth7", "type", "veth", "peer", "name", "eth8"]).status();
        assert!(up.is_ok_and(|status| status.success()));
        for arguments in [&["offer", &file, "--receivers", "1"][..], &["accept", "--out", &place.path("x")]] {
            let ran = end(begin(arguments));
            for words in
                ["no interface here has an IPv4 address, except lo;", "eth7 is down", "say --interface lo"]
            {
                assert!(ran.status == 1 && ran.stderr.contains(words), "{}", ran.stderr);
            }
        }
    });
}

#[test]
fn a_datagram_of_another_version_ends_no_accept() {
    alone(|| {
        let place = Place::new();
        let file = place.file("object.bin", b"bytes");
        let ends = rogue(vec![b"PLYC\x09\x01".to_vec(), b"PLYC\x01\x02".to_vec(), b"PLYC".to_vec()]);
        let acceptor = begin(&["accept", "--out", &place.path("out"), "--interface", "lo"]);
        std::thread::sleep(Duration::from_millis(300));
        let offer = end(begin(&["offer", &file, "--open", "--receivers", "1", "--interface", "lo"]));
        ends.store(true, Ordering::Relaxed);
        assert_eq!(offer.status, 0, "{}", offer.stderr);
        let accepted = end(acceptor);
        assert_eq!(accepted.status, 0, "{}", accepted.stderr);
        assert_eq!(accepted.stderr.matches("protocol version 9").count(), 1, "{}", accepted.stderr);
    });
}

#[test]
fn what_is_offered_does_not_choose_what_it_replaces() {
    alone(|| {
        let place = Place::new();
        let home = place.path("home");
        let mine = place.file("home/taken", b"mine");
        for (name, why) in [(".bashrc", "begins with a dot"), ("taken", "is there already")] {
            let ends = rogue(vec![announcement(7, name)]);
            let ran = end(begin(&["accept", "--into", &home, "--interface", "lo"]));
            ends.store(true, Ordering::Relaxed);
            assert_eq!(ran.status, 1, "{}", ran.stderr);
            assert!(ran.stderr.contains(why), "{}", ran.stderr);
            // Whatever was on its way when the last one ended.
            std::thread::sleep(Duration::from_millis(100));
        }
        assert_eq!(fs::read(&mine).unwrap(), b"mine");
        assert_eq!(fs::read_dir(&home).unwrap().count(), 1);
        // A place that is taken is named before anything is waited for.
        let ran = end(begin(&["accept", "--out", &mine, "--interface", "lo"]));
        assert!(ran.status == 1 && ran.stderr.contains("is there already"), "{}", ran.stderr);
    });
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

/// Without a terminal a user hears how far it is. With --quiet that is left out, but not what has to be typed at other machines.
#[test]
fn without_a_terminal_lines_say_how_far_it_is() {
    let _alone = NETWORK.lock().unwrap_or_else(PoisonError::into_inner);
    let place = Place::new();
    let file = place.file("object.bin", &noise(14_000_000));
    let accept =
        |name: &str| begin(&["accept", "sababa-dabada", "-q", "-o", &place.path(name), "--interface", "lo"]);
    let offer = [
        "offer",
        &file,
        "--code",
        "sababa-dabada",
        "--receivers",
        "1",
        "--interface",
        "lo",
        "--rate",
        "16mbit",
    ];
    let (first, source) = (accept("first"), begin(&[&offer[..], &["--json"]].concat()));
    let (source, first) = (end(source), end(first));
    assert_eq!((source.status, first.status), (0, 0), "{} {}", source.stderr, first.stderr);
    assert!(source.stderr.contains("{\"event\":\"progress\",\"bytes\":"), "{}", source.stderr);
    assert_eq!(first.stderr, "");
    let quick = &offer[..offer.len() - 2];
    let (second, source) = (accept("second"), begin(&[quick, &["--quiet"]].concat()));
    let (source, second) = (end(source), end(second));
    assert_eq!((source.status, second.status), (0, 0), "{} {}", source.stderr, second.stderr);
    assert_eq!(source.stderr.lines().count(), 1, "{}", source.stderr);
    assert!(source.stderr.contains("polycast accept sababa-dabada"), "{}", source.stderr);
}
