//! A machine on the network that has neither code nor key reads nothing of what is delivered, and puts
//! nothing in.

mod common;

use common::lan::{HOSTS, Lan, Running, address};
use common::{Place, Talking, begin, end, noise, polycast};
use polycast_testing::{Need, needs};
use rustix::process::Signal;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{ChildStdout, Command, Stdio};

/// Bytes of the object that a listener may not see in a row.
const WINDOW_LEN: usize = 16;
/// Name of the object: a listener may not see that either.
const NAME: &str = "the-name-of-the-object";

/// Starts a script in a namespace, and waits until it has begun; gives what else it says, too.
fn script(space: &str, words: &[&str]) -> (Running, BufReader<ChildStdout>) {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/sealed/");
    let mut command = Command::new("ip");
    command.args(["netns", "exec", space, "python3", &format!("{folder}{}", words[0])]).args(&words[1..]);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut says = BufReader::new(child.stdout.take().unwrap());
    let running = Running(Some(child));
    await_line(&mut says, "stands");
    (running, says)
}

fn await_line(says: &mut BufReader<ChildStdout>, expected: &str) {
    let mut line = String::new();
    says.read_line(&mut line).unwrap();
    assert_eq!(line.trim(), expected);
}

/// Counts the object's pieces of 16 bytes that were seen on the way, and reports whether its name was.
fn seen(frames: &[u8], object: &[u8]) -> (usize, bool) {
    let windows: BTreeSet<&[u8]> = object.chunks_exact(WINDOW_LEN).collect();
    // Any 31 bytes of the object in a row have one of these windows in them.
    let pieces: BTreeSet<&[u8]> =
        frames.windows(WINDOW_LEN).filter(|window| windows.contains(window)).collect();
    (pieces.len(), frames.windows(NAME.len()).any(|window| window == NAME.as_bytes()))
}

/// Delivers to all hosts with these words of the offer and the receivers' while a listener is at the switch;
/// gives the source's report, and what was seen.
fn overheard(lan: &Lan, offer: &[&str], accept: &[&str]) -> (Value, (usize, bool)) {
    let object = noise(1_000_000);
    let file = lan.place.file(NAME, &object);
    let kept = lan.place.path("frames");
    let listening = script(&lan.switch(), &["eaves.py", &kept]);
    let (offering, code) =
        lan.offer(&file, HOSTS - 1, &[&["--slow", "wait", "--timeout", "2m"], offer].concat());
    let accepting: Vec<Running> = (1..HOSTS)
        .map(|host| {
            let out = lan.place.path(&format!("out{host}"));
            let words = ["accept", &code, "--out", &out, "--force"];
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
    let object = noise(4_000_000);
    let file = lan.place.file("object", &object);
    let own = [address(3), address(0)];
    let (forging, mut says) = script(&lan.space(3), &["forge.py", &own[0], "20000", &own[1]]);
    let (offering, code) = lan.offer(&file, 1, &["--serve", "--rate", "50mbit", "--slow", "wait"]);
    let accept = |host: usize, name: &str| {
        let out = lan.place.path(name);
        (lan.begin(host, &["accept", &code, "--out", &out]), out)
    };
    let received = |(accepting, out): (Running, String)| {
        let ran = accepting.end();
        assert_eq!(ran.status, 0, "{}", ran.stderr);
        assert!(fs::read(out).unwrap() == object);
        ran.json()
    };
    // It forges when it has heard of the transfer: and from then on, when others come.
    received(accept(1, "first"));
    await_line(&mut says, "forges");
    for accepting in [accept(1, "again"), accept(2, "other")] {
        let report = received(accepting);
        assert!(report["forged_packets"].as_u64() > Some(0), "{report}");
        assert_eq!(report["corrupt_groups"], 0, "{report}");
    }
    let offered = offering.stop(Signal::INT).json();
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
        (
            &["--code", "lusab-babad-gutih", "--insecure"],
            &["lusab-babad-gutih"],
            "does not seal its connections",
        ),
        (
            &["--code", "lusab-babad-gutih"],
            &["lusab-babad-gutih", "--insecure"],
            "takes sealed connections only",
        ),
    ];
    for (offer, accept, sentence) in cases {
        let here = ["offer", &file, "--receivers", "1", "--interface", "lo", "--port", &port];
        let mut offering = begin(&[&here[..], offer].concat());
        let there = ["accept", "--interface", "lo", "--from", &from, "--out", &out];
        let looking = Talking::begin(&[&there[..], accept].concat());
        looking.await_words(sentence);
        let ran = looking.stop(Signal::INT);
        assert_eq!(ran.status, 1, "{offer:?} {accept:?}: {}", ran.stderr);
        assert!(!fs::exists(&out).unwrap());
        offering.kill().unwrap();
        offering.wait().unwrap();
    }
    // The right one opens it.
    let here =
        ["offer", &file, "--receivers", "1", "--interface", "lo", "--port", &port, "--key-file", &keys[0]];
    let offering = begin(&here);
    let there = ["accept", "--interface", "lo", "--from", &from, "--out", &out, "--key-file", &keys[0]];
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
