//! `offer` and `accept` find each other and deliver; signals leave nothing half-written.

mod common;

use common::{Place, Talking, begin, command, end, noise};
use polycast_testing::until;
use polycast_types::Handle;
use polycast_wire::discovery::{Announcement, Discovery, GROUP, PORT};
use rustix::process::Signal;
use std::fs;
use std::io::Write as _;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

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

/// Says something to all who wait for an offer, again and again, until it is ended.
struct Rogue {
    ends: Arc<AtomicBool>,
    speaks: Option<std::thread::JoinHandle<()>>,
}

impl Rogue {
    fn start(datagrams: Vec<Vec<u8>>) -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&ends);
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let speaks = std::thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                for datagram in &datagrams {
                    // There may be no listener just then.
                    let _ = socket.send_to(datagram, (GROUP, PORT));
                }
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        Rogue { ends, speaks: Some(speaks) }
    }
}

impl Drop for Rogue {
    /// Nothing of it is on its way after that: the loopback delivers at once.
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        drop(self.speaks.take().map(std::thread::JoinHandle::join));
    }
}

fn announcement(handle: u64, name: &str, port: u16) -> Vec<u8> {
    let (handle, name) = (Handle(handle), name.to_string());
    let (address, host, code) = ([127, 0, 0, 1].into(), "rogue".to_string(), None);
    let announcement = Announcement { handle, address, port, places: 1, object_len: 5, name, host, code };
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

/// Another program has the port of announcements for itself: the offer goes on, and each end says what is in
/// the way.
#[test]
fn where_another_program_has_the_port_offers_go_on() {
    alone(|| {
        let _taken = std::net::UdpSocket::bind(("0.0.0.0", PORT)).unwrap();
        let taken = format!("UDP port {PORT} is in use by ");
        let holder = format!("(process {})", std::process::id());
        let place = Place::new();
        let file = place.file("object.bin", b"bytes");
        for (more, fabric) in [(&[][..], "tcp-chain"), (&["--udp-port", "20067"][..], "ip-multicast")] {
            let out = place.path(fabric);
            let words = ["offer", &file, "--receivers", "1", "--slow", "wait", "--interface", "lo", "--json"];
            let offer = Talking::begin(&[&words[..], more].concat());
            let event = offer.first_event();
            let why = event["unannounced"].as_str().unwrap();
            assert!(why.starts_with(&taken) && why.contains(&holder), "{why}");
            let code = event["code"].as_str().unwrap();
            let alone = end(begin(&["accept", code, "--out", &out, "--interface", "lo"]));
            assert_eq!(alone.status, 1, "{}", alone.stderr);
            assert!(
                alone.stderr.contains(&taken) && alone.stderr.contains("--from HOST"),
                "{}",
                alone.stderr
            );
            let from =
                end(begin(&["accept", code, "--from", "127.0.0.1", "--out", &out, "--interface", "lo"]));
            assert_eq!(from.status, 0, "{}", from.stderr);
            let offered = offer.end();
            assert_eq!(offered.status, 0, "{}", offered.stderr);
            assert_eq!(offered.json()["receivers"][0]["fabric"], fabric, "{}", offered.stdout);
        }
        let doctor = end(begin(&["doctor", "--interface", "lo", "--json"])).json();
        let checks = doctor["checks"].as_array().unwrap();
        let found = checks.iter().find(|check| check["name"] == "ports").unwrap()["found"].as_str().unwrap();
        assert!(found.starts_with(&taken) && found.ends_with(&holder), "{found}");
    });
}

/// A second address of an interface is as good as the first, named or chosen by the kernel.
#[test]
fn every_address_of_an_interface_can_be_used() {
    alone(|| {
        for address in ["10.77.0.1/24", "10.78.0.1/24"] {
            let added = Command::new("ip").args(["address", "add", address, "dev", "lo"]).status();
            assert!(added.is_ok_and(|status| status.success()));
        }
        let place = Place::new();
        let (file, out) = (place.file("object.bin", b"bytes"), place.path("out"));
        let words = ["offer", &file, "--receivers", "1", "--interface", "10.78.0.1", "--json"];
        let offer = Talking::begin(&words);
        let event = offer.first_event();
        assert_eq!(
            (&event["address"], &event["interface"], &event["unannounced"]),
            (&"10.78.0.1".into(), &"lo".into(), &serde_json::Value::Null)
        );
        let code = event["code"].as_str().unwrap();
        let accepted = end(begin(&["accept", code, "--from", "10.78.0.1", "--out", &out]));
        assert_eq!(accepted.status, 0, "{}", accepted.stderr);
        assert_eq!(offer.end().status, 0);
        let doctor = end(begin(&["doctor", "--interface", "10.77.0.1", "--json"])).json();
        let found = doctor["checks"][0]["found"].as_str().unwrap();
        assert!(found.starts_with("lo (10.77.0.1)"), "{found}");
    });
}

#[test]
fn of_several_offers_none_is_taken_that_is_not_named() {
    alone(|| {
        let place = Place::new();
        let file = place.file("object.bin", b"bytes");
        let out = place.path("out");
        let offer =
            Talking::begin(&["offer", &file, "--open", "--receivers", "1", "--interface", "lo", "--json"]);
        // It says what it is called.
        let event = offer.first_event();
        let handle = event["handle"].as_str().unwrap().to_string();
        let (number, port) = (u64::from_str_radix(&handle, 16).unwrap(), event["port"].as_u64().unwrap());
        // Both are heard at the same time, however busy the machine is.
        let evil = announcement(7, "evil\u{1b}]0;x\u{7}", 9);
        let rogue = Rogue::start(vec![evil, announcement(number, "object.bin", port as u16)]);
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
        drop(rogue);
        assert_eq!(offer.end().status, 0);
    });
}

#[test]
fn an_offer_with_a_code_is_for_those_who_know_it() {
    alone(|| {
        let place = Place::new();
        let file = place.file("object.bin", &noise(1_000_000));
        let out = place.path("out");
        let offer = ["offer", &file, "--receivers", "1", "--interface", "lo", "--timeout", "10m", "--json"];
        let offer = Talking::begin(&offer);
        let event = offer.first_event();
        let told = |key: &str| event[key].as_str().unwrap_or_default().to_string();
        assert_eq!(
            (told("event"), told("interface"), told("address")),
            ("offer".into(), "lo".into(), "127.0.0.1".into())
        );
        assert_eq!((&event["port"], &event["open"]), (&18_067.into(), &false.into()));
        let code = told("code");
        let accept = |more: &[&str]| {
            Talking::begin(&[&["accept", "--out", &out, "--interface", "lo"][..], more].concat())
        };
        let from = ["--from", "127.0.0.1"];
        for (more, why) in [
            (&[][..], "it is for those who know its code"),
            (&["lusab-babad-gutih"], "it has another code"),
            (&from, "it is for those who know its code"),
            (&["lusab-babad-gutih", from[0], from[1]], "it has another code"),
        ] {
            let looking = accept(more);
            looking.await_words(why);
            let ran = looking.stop(Signal::INT);
            assert_eq!(ran.status, 130, "{}", ran.stderr);
            assert!(!ran.stderr.contains(&code), "{}", ran.stderr);
        }
        let ran = end(begin(&["accept", "--out", &out, "--interface", "lo", "--timeout", "1s"]));
        assert!(ran.status == 3 && ran.stderr.contains("nothing that could be taken"), "{}", ran.stderr);
        let taken = accept(&[&code.to_uppercase().replace('-', " "), from[0], from[1]]).end();
        assert_eq!(taken.status, 0, "{}", taken.stderr);
        let offered = offer.end();
        assert_eq!(offered.status, 0, "{}", offered.stderr);
        assert_eq!(fs::read(&out).unwrap(), fs::read(&file).unwrap());
    });
}

/// A code that was drawn says whose offer it is: the user that has drawn it offers under it again, and no
/// other one does.
#[test]
fn a_drawn_code_is_its_sources_own() {
    alone(|| {
        let place = Place::new();
        let file = place.file("object.bin", &noise(100_000));
        let (out, states) = (place.path("copy"), place.path("states"));
        let offer = |states: &str, more: &[&str]| {
            let words =
                [&["offer", &file, "--receivers", "1", "--interface", "lo", "--json"][..], more].concat();
            Talking::of(command(&words).env("XDG_STATE_HOME", states).spawn().unwrap())
        };
        let first = offer(&states, &[]);
        let code = first.first_event()["code"].as_str().unwrap().to_string();
        assert_eq!(code.split('-').count(), 4, "{code}");
        assert_eq!(first.stop(Signal::KILL).status, -1);
        let other = offer(&place.path("others"), &["--code", &code]).end();
        assert_eq!(other.status, 1, "{}", other.stderr);
        assert!(other.stderr.contains("were drawn for another offer"), "{}", other.stderr);
        let again = offer(&states, &["--code", &code]);
        assert_eq!(again.first_event()["code"], code.as_str());
        let taken = end(begin(&["accept", &code, "--out", &out, "--interface", "lo"]));
        let offered = again.end();
        assert_eq!((taken.status, offered.status), (0, 0), "{} {}", taken.stderr, offered.stderr);
        assert_eq!(fs::read(&out).unwrap(), fs::read(&file).unwrap());
        let gone = offer(&states, &["--code", &code]).end();
        assert_eq!(gone.status, 1, "it is forgotten once all have it: {}", gone.stderr);
    });
}

/// Other users of a machine can read the arguments of what runs there.
#[test]
fn a_code_need_not_be_in_the_arguments() {
    let _alone = NETWORK.lock().unwrap_or_else(PoisonError::into_inner);
    let place = Place::new();
    let file = place.file("object.bin", &noise(100_000));
    let (out, code) = (place.path("copy"), "sabab-dabad-tabat");
    let mut offer = command(&["offer", &file, "--receivers", "1", "--interface", "lo"]);
    let offer = offer.env("POLYCAST_CODE", code).spawn().unwrap();
    let mut accept = command(&["accept", "-", "--out", &out, "--interface", "lo"]);
    let mut accept = accept.stdin(Stdio::piped()).spawn().unwrap();
    accept.stdin.take().unwrap().write_all(format!("{code}\n").as_bytes()).unwrap();
    let (accepted, offered) = (end(accept), end(offer));
    assert_eq!((accepted.status, offered.status), (0, 0), "{} {}", accepted.stderr, offered.stderr);
    assert_eq!(fs::read(&out).unwrap(), fs::read(&file).unwrap());
    let help = command(&["accept", "--help"]).env("POLYCAST_CODE", code).output().unwrap();
    assert!(!String::from_utf8_lossy(&help.stdout).contains(code), "the environment is not shown");
}

#[test]
fn an_open_offer_is_taken_where_there_is_no_multicast() {
    alone(|| {
        let place = Place::new();
        let file = place.file("object.bin", &noise(1_000_000));
        let offer =
            ["offer", &file, "--open", "--receivers", "2", "--interface", "lo", "--port", "18070", "--json"];
        let offer = Talking::begin(&offer);
        assert_eq!(offer.first_event()["port"], 18_070);
        let outs = ["one", "two"].map(|name| place.path(name));
        let acceptors = outs
            .each_ref()
            .map(|out| begin(&["accept", "--from", "localhost:18070", "--out", out, "--json"]));
        for acceptor in acceptors {
            let ran = end(acceptor);
            assert_eq!(ran.status, 0, "{}", ran.stderr);
            assert!(ran.stderr.contains("from 127.0.0.1:18070"), "{}", ran.stderr);
        }
        assert_eq!(offer.end().status, 0);
        for out in outs {
            assert!(fs::read(out).unwrap() == fs::read(&file).unwrap());
        }
        // Nothing is there any more.
        let looking = Talking::begin(&["accept", "--from", "127.0.0.1", "--out", &place.path("x")]);
        looking.await_words("127.0.0.1:18067 offers nothing yet");
        assert_eq!(looking.stop(Signal::INT).status, 130);
    });
}

#[test]
fn one_that_serves_stays_for_those_who_come_later() {
    alone(|| {
        let place = Place::new();
        let file = place.file("object.bin", &noise(1_000_000));
        let offer = Talking::begin(&["offer", &file, "--interface", "lo", "--json"]);
        let code = offer.first_event()["code"].as_str().unwrap().to_string();
        // As it is read out.
        let words: Vec<&str> = code.split('-').collect();
        let accept = |name: &str| {
            let out = place.path(name);
            let to = ["--out", &out, "--interface", "lo", "--host", name];
            begin(&[&["accept"], &words[..], &to].concat())
        };
        let taken = |child: Child, name: &str| {
            let ran = end(child);
            assert_eq!(ran.status, 0, "{}", ran.stderr);
            assert!(fs::read(place.path(name)).unwrap() == fs::read(&file).unwrap());
        };
        taken(accept("first"), "first");
        offer.await_words(r#""event":"served""#);
        std::thread::sleep(Duration::from_millis(700));
        let together = [accept("second"), accept("third")];
        together.into_iter().zip(["second", "third"]).for_each(|(child, name)| taken(child, name));
        let offered = offer.stop(Signal::INT);
        assert_eq!(offered.status, 0, "{}", offered.stderr);
        let report = offered.json();
        let names: Vec<&str> =
            report["receivers"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
        assert!(names.len() == 3 && names.contains(&"third"), "{names:?}");
        assert!(offered.stderr.contains(r#""event":"served""#), "{}", offered.stderr);
    });
}

#[test]
fn one_too_many_is_told_so() {
    alone(|| {
        let place = Place::new();
        // It would take 80 s.
        let file = place.file("object.bin", &noise(20_000_000));
        let offer = ["offer", &file, "--receivers", "1", "--interface", "lo", "--rate", "2mbit", "--json"];
        let offer = Talking::begin(&offer);
        let code = offer.first_event()["code"].as_str().unwrap().to_string();
        let first = ["accept", &code, "--out", &place.path("first"), "--interface", "lo", "--name", "first"];
        let first = Talking::begin(&first);
        until("the first has joined", || fs::exists(place.path(".first.polycast-part")).unwrap());
        let ran = end(begin(&["accept", &code, "--out", &place.path("second"), "--interface", "lo"]));
        assert!(ran.status == 1 && ran.stderr.contains("all its receivers have joined"), "{}", ran.stderr);
        first.stop(Signal::INT);
        offer.stop(Signal::INT);
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
                ["no interface here has an address, except lo;", "eth7 is down", "say --interface lo"]
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
        let datagrams = vec![b"PLYC\x09\x01".to_vec(), b"PLYC\x01\x02".to_vec(), b"PLYC".to_vec()];
        let rogue = Rogue::start(datagrams);
        let acceptor = Talking::begin(&["accept", "--out", &place.path("out"), "--interface", "lo"]);
        acceptor.await_words("protocol version 9");
        let offer = end(begin(&["offer", &file, "--open", "--receivers", "1", "--interface", "lo"]));
        drop(rogue);
        assert_eq!(offer.status, 0, "{}", offer.stderr);
        let accepted = acceptor.end();
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
            let rogue = Rogue::start(vec![announcement(7, name, 9)]);
            let ran = end(begin(&["accept", "--into", &home, "--interface", "lo"]));
            drop(rogue);
            assert_eq!(ran.status, 1, "{}", ran.stderr);
            assert!(ran.stderr.contains(why), "{}", ran.stderr);
        }
        assert_eq!(fs::read(&mine).unwrap(), b"mine");
        assert_eq!(fs::read_dir(&home).unwrap().count(), 1);
        // A place that is taken is named before anything is waited for.
        let ran = end(begin(&["accept", "--out", &mine, "--interface", "lo"]));
        assert!(ran.status == 1 && ran.stderr.contains("is there already"), "{}", ran.stderr);
    });
}

/// The source chooses the name: the directory that the user lives or works in stays, also with `--force` and
/// `--update`, and the source serves another receiver.
#[test]
fn an_offer_does_not_replace_the_directory_that_one_lives_in() {
    let _alone = NETWORK.lock().unwrap_or_else(PoisonError::into_inner);
    let place = Place::new();
    place.file("source/proj/new", b"new");
    let thesis = place.file("home/proj/deep/thesis", b"three years");
    let (home, code) = (place.path("home"), "sabab-dabad-tabat");
    let folder = place.path("source/proj");
    let words = ["offer", &folder, "--code", code, "--receivers", "1", "--interface", "lo", "--json"];
    let offer = Talking::begin(&words);
    offer.first_event();
    let accept = |into: &str, more: &str| {
        command(&["accept", code, "--from", "127.0.0.1", "--into", into, more, "--interface", "lo"])
    };
    for more in ["--force", "--update"] {
        for (into, lives, works, what) in [
            (&*home, "home/proj", "source", "your home directory"),
            (&home, "home/proj/deep", "source", "your home directory"),
            ("..", "source", "home/proj", "the directory that you are in"),
            ("../..", "source", "home/proj/deep", "the directory that you are in"),
        ] {
            let mut accept = accept(into, more);
            let accept = accept.env("HOME", place.path(lives)).current_dir(place.path(works));
            let ran = end(accept.spawn().unwrap());
            assert_eq!(ran.status, 1, "{}", ran.stderr);
            assert!(ran.stderr.contains(what) && ran.stderr.contains("--into"), "{}", ran.stderr);
            assert_eq!(fs::read(&thesis).unwrap(), b"three years");
        }
    }
    // Any other directory goes, as that is what the user asks for.
    let elsewhere = place.file("elsewhere/proj/old", b"old");
    let mut accept = accept(&place.path("elsewhere"), "--force");
    let taken = end(accept.env("HOME", &home).current_dir(&home).spawn().unwrap());
    let offered = offer.end();
    assert_eq!((taken.status, offered.status), (0, 0), "{} {}", taken.stderr, offered.stderr);
    assert_eq!(fs::read(place.path("elsewhere/proj/new")).unwrap(), b"new");
    assert!(!fs::exists(elsewhere).unwrap());
}

#[test]
fn an_offer_that_nobody_accepts_says_so() {
    let _alone = NETWORK.lock().unwrap_or_else(PoisonError::into_inner);
    let place = Place::new();
    let file = place.file("object.bin", b"x");
    let offer = ["offer", &file, "--receivers", "1", "--interface", "lo", "--timeout", "1s", "--json"];
    let ran = end(begin(&offer));
    assert_eq!((ran.status, &ran.json()["kind"]), (3, &"timed-out".into()), "{}", ran.stdout);
    assert!(ran.stderr.contains("no receiver joined"), "{}", ran.stderr);
}

#[test]
fn signals_leave_nothing_behind() {
    let _alone = NETWORK.lock().unwrap_or_else(PoisonError::into_inner);
    for asked in [Signal::INT, Signal::TERM] {
        let place = Place::new();
        let out = place.path("out");
        let acceptor = Talking::begin(&["accept", "--out", &out, "--interface", "lo"]);
        until("it hears signals", || catches(acceptor.child().id(), asked));
        let ran = acceptor.stop(asked);
        assert_eq!(ran.status, 130, "{}", ran.stderr);
        assert!(ran.stderr.contains("cancelled"), "{}", ran.stderr);
        assert_eq!(fs::read_dir(place.root()).unwrap().count(), 0);
    }
}

/// Returns true if a process does something of its own when this signal comes; until then it just ends.
fn catches(pid: u32, signal: Signal) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal.as_raw() - 1) & 1 == 1)
}

/// Without a terminal a user hears how far it is. With --quiet that is left out, but not what has to be typed
/// at other machines.
#[test]
fn without_a_terminal_lines_say_how_far_it_is() {
    let _alone = NETWORK.lock().unwrap_or_else(PoisonError::into_inner);
    let place = Place::new();
    let file = place.file("object.bin", &noise(14_000_000));
    let accept = |name: &str| {
        begin(&["accept", "sabab-dabad-tabat", "-q", "-o", &place.path(name), "--interface", "lo"])
    };
    let offer = [
        "offer",
        &file,
        "--code",
        "sabab-dabad-tabat",
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
    assert!(source.stderr.contains("polycast accept sabab-dabad-tabat"), "{}", source.stderr);
}

/// The events of progress in what a command has said: the bytes that were there, and the rate.
fn progress_in(said: &str) -> Vec<(u64, f64)> {
    let events = said.lines().filter(|line| line.starts_with("{\"event\":\"progress\""));
    let events = events.map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    events.map(|event| (event["bytes"].as_u64().unwrap(), event["rate_bps"].as_f64().unwrap())).collect()
}

/// Bytes that a receiver had before do not travel: no rate is above the one that was allowed.
#[test]
fn rates_are_of_what_comes() {
    let _alone = NETWORK.lock().unwrap_or_else(PoisonError::into_inner);
    let place = Place::new();
    let mut bytes = noise(24_000_000);
    let (file, copy) = (place.file("object.bin", &bytes), place.path("copy"));
    // Eight groups of 256 KiB have to come: half a second at this rate.
    (0..8).for_each(|at| bytes[at * 3_000_000] ^= 1);
    fs::write(&copy, &bytes).unwrap();
    let code = ["--interface", "lo", "--json", "--code", "sabab-dabad-tabat"];
    let offer = begin(&[&["offer", &file, "--receivers", "1", "--rate", "40mbit"], &code[..]].concat());
    let accept = ["accept", "sabab-dabad-tabat", "--update", "-o", &copy, "--interface", "lo", "--json"];
    let (accept, offer) = (end(begin(&accept)), end(offer));
    assert_eq!((accept.status, offer.status), (0, 0), "{} {}", accept.stderr, offer.stderr);
    let (got, report) = (accept.json(), offer.json());
    let came = got["came_bytes"].as_u64().unwrap();
    // The source counts whole fragments, the last of which may lie in two groups.
    let sent = report["receivers"][0]["came_bytes"].as_u64().unwrap();
    assert!(came == 8 << 18 && (came..came + 8 * 9_000).contains(&sent), "{got} {report}");
    assert_eq!(got["spared_bytes"].as_u64().unwrap() + came, 24_000_000);
    assert!(report["receivers"][0]["rate_bps"].as_f64().unwrap() < 40e6, "{report}");
    for said in [&accept.stderr, &offer.stderr] {
        let told = progress_in(said);
        assert_eq!(told.last().unwrap().0, 24_000_000, "{said}");
        // Packets that were queued may come a little faster than they were sent.
        assert!(told.iter().all(|(_, rate_bps)| *rate_bps < 60e6), "{said}");
    }
}
