//! A machine on the network that has neither code nor key reads nothing of what is delivered, and puts nothing in.

mod common;

use common::lan::{HOSTS, Lan, Running, address};
use common::{Place, begin, end, noise, polycast};
use polycast_testing::{Need, needs};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

/// Bytes of the object that a listener may not see in a row.
const WINDOW_LEN: usize = 16;
/// What the object is called: a listener may not see that either.
const NAME: &str = "the-name-of-the-object";

/// Starts a script in a namespace, and waits until it has begun.
fn script(space: &str, words: &[&str]) -> Running {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/sealed/");
    let mut command = Command::new("ip");
    command.args(["netns", "exec", space, "python3", &format!("{folder}{}", words[0])]).args(&words[1..]);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line.trim(), "stands");
    Running(Some(child))
}

/// How many of the object's pieces of 16 bytes were seen on the way, and whether its name was.
fn seen(frames: &[u8], object: &[u8]) -> (usize, bool) {
    let windows: BTreeSet<&[u8]> = object.chunks_exact(WINDOW_LEN).collect();
    // Any 31 bytes of the object in a row have one of these windows in them.
    let pieces: BTreeSet<&[u8]> =
        frames.windows(WINDOW_LEN).filter(|window| windows.contains(window)).collect();
    (pieces.len(), frames.windows(NAME.len()).any(|window| window == NAME.as_bytes()))
}

/// Delivers to all hosts with these words of the offer and the receivers' while a listener is at the switch; gives the
/// source's report, and what was seen.
fn overheard(lan: &Lan, offer: &[&str], accept: &[&str]) -> (Value, (usize, bool)) {
    let object = noise(1_000_000);
    let file = lan.place.file(NAME, &object);
    let kept = lan.place.path("frames");
    let listening = script(&lan.switch(), &["eaves.py", &kept]);
    let (offering, code) = lan.offer(&file, HOSTS - 1, offer);
    let accepting: Vec<Running> = (1..HOSTS)
        .map(|host| {
            let out = lan.place.path(&format!("out{host}"));
            let words = ["accept", &code, "--out", &out, "--timeout", "20s", "--force"];
            lan.begin(host, &[&words[..], accept].concat())
        })
        .collect();
    for accepting in accepting {
        let ran = accepting.end();
        assert_eq!(ran.status, 0, "{}", ran.stderr);
        assert_eq!(ran.json()["sealed"], accept.is_empty() || accept[0] != "--insecure", "{}", ran.stdout);
        assert_eq!(ran.json()["corrupt_groups"], 0, "patches bring what was sent: {}", ran.stdout);
    }
    let offered = offering.end();
    assert_eq!(offered.status, 0, "{}", offered.stderr);
    drop(listening);
    for host in 1..HOSTS {
        assert!(fs::read(lan.place.path(&format!("out{host}"))).unwrap() == object);
    }
    let frames = fs::read(kept).unwrap();
    assert!(frames.len() > object.len(), "{} bytes were heard", frames.len());
    (offered.json(), seen(&frames, &object))
}

/// Whatever carries the object: multicast, patches, or TCP from one to the next.
#[test]
fn who_listens_reads_nothing() {
    let Some(lan) = Lan::new().filter(|_| needs(&[Need::Tool("python3")])) else { return };
    let (report, (pieces, name)) = overheard(&lan, &["--insecure"], &["--insecure"]);
    assert_eq!(report["sealed"], false);
    assert!(pieces > 30_000 && name, "one who listens to what is not sealed sees {pieces} pieces");
    let (report, seen) = overheard(&lan, &[], &[]);
    assert_eq!((&report["sealed"], &report["fabric"]), (&true.into(), &"ip-multicast".into()));
    assert_eq!(seen, (0, false));
    // Packets are lost, and what the kernel joins to one at a time: patches bring them.
    for host in 1..HOSTS {
        lan.let_in(host, "udp dport 18067 numgen random mod 100 < 20 drop; ip protocol { tcp, udp } accept");
    }
    let (report, seen) = overheard(&lan, &[], &[]);
    assert!(report["patched_bytes"].as_u64() > Some(0), "{report}");
    assert_eq!(seen, (0, false));
    // No multicast: the receivers pass it on.
    (1..HOSTS).for_each(|host| lan.let_in(host, "tcp dport 18068 accept"));
    let from = address(0);
    let (report, seen) = overheard(&lan, &[], &["--from", &from]);
    assert_eq!(report["fabric"], "tcp-chain");
    assert_eq!(seen, (0, false));
}

/// A host that knows handle, group and port, and sends in the source's name.
#[test]
fn forged_packets_change_nothing_and_are_counted() {
    let Some(lan) = Lan::new().filter(|_| needs(&[Need::Tool("python3")])) else { return };
    let object = noise(30_000_000);
    let file = lan.place.file("object", &object);
    let forging = script(&lan.space(3), &["forge.py", &address(3), "20000", &address(0)]);
    let (offering, code) = lan.offer(&file, 2, &["--rate", "500mbit"]);
    let accepting: Vec<(String, Running)> = (1..3)
        .map(|host| {
            let out = lan.place.path(&format!("out{host}"));
            let running = lan.begin(host, &["accept", &code, "--out", &out, "--timeout", "20s"]);
            (out, running)
        })
        .collect();
    for (out, accepting) in accepting {
        let ran = accepting.end();
        assert_eq!(ran.status, 0, "{}", ran.stderr);
        let report = ran.json();
        assert!(report["forged_packets"].as_u64() > Some(0), "{report}");
        assert_eq!(report["corrupt_groups"], 0, "{report}");
        assert!(fs::read(out).unwrap() == object);
    }
    let offered = offering.end().json();
    assert!(offered["forged_packets"].as_u64() > Some(0), "{offered}");
    drop(forging);
}

/// Both ends without sockets of a lab: what they say when they do not belong together.
#[test]
fn ends_that_do_not_belong_together_say_so() {
    let place = Place::new();
    let file = place.file("object", b"bytes");
    let keys: Vec<String> = ["one", "other"].map(|name| place.path(name)).to_vec();
    for key in &keys {
        assert_eq!(polycast(&["key", "new", key]).status, 0);
    }
    let port = polycast_testing::free_port().to_string();
    let from = format!("127.0.0.1:{port}");
    let out = place.path("out");
    let cases: [(&[&str], &[&str], &str); 5] = [
        (&["--key-file", &keys[0]], &["--key-file", &keys[1]], "the other end has another key or code"),
        (&["--key-file", &keys[0]], &[], "takes sealed connections only"),
        (&["--open"], &["--key-file", &keys[0]], "does not seal its connections"),
        (&["--code", "lusab-babad", "--insecure"], &["lusab-babad"], "does not seal its connections"),
        (&["--code", "lusab-babad"], &["lusab-babad", "--insecure"], "takes sealed connections only"),
    ];
    for (offer, accept, sentence) in cases {
        let here = ["offer", &file, "--receivers", "1", "--interface", "lo", "--port", &port];
        let mut offering = begin(&[&here[..], offer].concat());
        let there = ["accept", "--interface", "lo", "--from", &from, "--out", &out, "--timeout", "3s"];
        let ran = end(begin(&[&there[..], accept].concat()));
        assert_eq!(ran.status, 1, "{offer:?} {accept:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(sentence), "{offer:?} {accept:?}: {}", ran.stderr);
        assert!(!fs::exists(&out).unwrap());
        offering.kill().unwrap();
        offering.wait().unwrap();
    }
    // The right one opens it.
    let here =
        ["offer", &file, "--receivers", "1", "--interface", "lo", "--port", &port, "--key-file", &keys[0]];
    let offering = begin(&here);
    let there = [
        "accept",
        "--interface",
        "lo",
        "--from",
        &from,
        "--out",
        &out,
        "--key-file",
        &keys[0],
        "--timeout",
        "9s",
    ];
    let ran = end(begin(&there));
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    assert_eq!(fs::read(&out).unwrap(), b"bytes");
    assert_eq!(end(offering).status, 0);
}

/// A key file that is none, or that others can read, is refused in a sentence, and nothing runs.
#[test]
fn key_files_that_are_none_are_refused() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new();
    let file = place.file("object", b"bytes");
    let key = place.path("key");
    assert_eq!(polycast(&["key", "new", &key]).status, 0);
    let again = polycast(&["key", "new", &key]);
    assert_eq!(again.status, 1);
    assert!(again.stderr.contains("is there already"), "{}", again.stderr);
    let refused = |words: &[&str], sentence: &str| {
        let ran = polycast(words);
        assert_eq!(ran.status, 1, "{}", ran.stderr);
        assert!(ran.stderr.contains(sentence), "{}", ran.stderr);
    };
    let offer = ["offer", &file, "--receivers", "1", "--interface", "lo", "--key-file", &key];
    let agent = ["agent", "--manager", "127.0.0.1:9", "--interface", "lo", "--key-file", &key];
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    refused(&offer, "chmod 600");
    refused(&agent, "chmod 600");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(&key, "too short\n").unwrap();
    refused(&offer, "9 characters");
    refused(&agent, "9 characters");
}

/// A daemon that other machines reach needs a key, or the user's word that it needs none.
#[test]
fn daemons_do_not_take_part_with_strangers_unasked() {
    let Some(lan) = Lan::new() else { return };
    let own = address(0);
    let listen = format!("{own}:7400");
    let (store, socket) = (lan.place.path("store"), lan.place.path("agent.sock"));
    let agent = ["agent", "--manager", &listen, "--store", &store, "--socket", &socket];
    for words in [&["manager", "--listen", &listen][..], &agent] {
        let ran = lan.begin(0, words).end();
        assert_eq!(ran.status, 1, "{}", ran.stderr);
        for part in [own.as_str(), "--key-file", "--insecure"] {
            assert!(ran.stderr.contains(part), "{part} is not in: {}", ran.stderr);
        }
        lan.begin(0, &[words, &["--insecure"]].concat()).ready();
    }
}
