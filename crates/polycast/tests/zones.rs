//! Two zones of two hosts behind one link: an object crosses it once in each direction at most.

mod common;

use common::lan::{HOSTS, Lan, Running, address};
use common::noise;
use polycast_testing::wait_for;
use std::process::Command;

/// Bytes of the object.
const LEN: usize = 8_000_000;

fn ip(words: &[&str]) {
    let status = Command::new("ip").args(words).status().expect("ip runs");
    assert!(status.success(), "ip {words:?}");
}

/// Puts the second half of the hosts behind a link of their own.
fn divide(lan: &Lan) {
    let switch = lan.switch();
    ip(&["-n", &switch, "link", "add", "br1", "type", "bridge", "mcast_snooping", "0"]);
    ip(&["-n", &switch, "link", "set", "br1", "up"]);
    ip(&["-n", &switch, "link", "add", "j0", "type", "veth", "peer", "name", "j1"]);
    ip(&["-n", &switch, "link", "set", "j0", "master", "br0", "up"]);
    ip(&["-n", &switch, "link", "set", "j1", "master", "br1", "up"]);
    for host in HOSTS / 2..HOSTS {
        ip(&["-n", &switch, "link", "set", &format!("p{host}"), "master", "br1"]);
    }
}

/// Bytes that have gone out by an interface of the switch.
fn sent_by(lan: &Lan, interface: &str) -> u64 {
    let file = format!("/sys/class/net/{interface}/statistics/tx_bytes");
    let ran =
        Command::new("ip").args(["netns", "exec", &lan.switch(), "cat", &file]).output().expect("ip runs");
    String::from_utf8_lossy(&ran.stdout).trim().parse().expect("a number")
}

#[test]
fn an_object_crosses_the_link_between_zones_once() {
    let Some(lan) = Lan::new() else { return };
    divide(&lan);
    let manager = format!("{}:7400", address(0));
    let mut daemons: Vec<Running> = vec![lan.begin(0, &["manager", "--listen", &manager, "--insecure"])];
    daemons[0].ready();
    let socket = |host: usize| lan.place.path(&format!("{host}.sock"));
    for host in 0..HOSTS {
        let (name, zone) = (format!("h{host}"), format!("zone-{}", host / (HOSTS / 2)));
        let words = ["agent", "--manager", &manager, "--insecure", "--name", &name, "--zone", &zone];
        let local = ["--socket", &socket(host), "--store", &lan.place.path(&format!("store{host}"))];
        daemons.push(lan.begin(host, &[&words[..], &local].concat()));
        daemons.last_mut().unwrap().ready();
    }
    wait_for("all have joined", || {
        let status = lan.begin(0, &["status", "--socket", &socket(0)]).end().json();
        status["peers"].as_array().filter(|peers| peers.len() == HOSTS).map(drop)
    });
    let file = lan.place.file("object", &noise(LEN));
    let before = ["j0", "j1"].map(|joint| sent_by(&lan, joint));
    let sent = ["send", &file, "--to", "h1,h2,h3", "--fabric", "tcp-chain", "--socket", &socket(0)];
    let ran = lan.begin(0, &sent).end();
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    let after = ["j0", "j1"].map(|joint| sent_by(&lan, joint));
    let crossed: Vec<u64> = before.into_iter().zip(after).map(|(before, after)| after - before).collect();
    for bytes in &crossed {
        let objects = *bytes as f64 / LEN as f64;
        println!("{objects:.3} objects");
        assert!(objects < 1.15, "{objects:.3} objects crossed the link");
    }
    // The report says what the link carried, but for what packets and control connections take.
    let report = ran.json();
    for (from, to, bytes) in [("zone-0", "zone-1", crossed[0]), ("zone-1", "zone-0", crossed[1])] {
        let said = report["zones"].as_array().into_iter().flatten();
        let said = said.filter(|zone| zone["from"] == from && zone["to"] == to);
        let said: u64 = said.map(|zone| zone["bytes"].as_u64().unwrap()).sum();
        let besides = bytes.checked_sub(said);
        println!("{from} to {to}: {said} of {bytes} bytes");
        assert!(besides.is_some_and(|besides| besides < LEN as u64 / 8), "{said} of {bytes}: {report}");
    }
}

/// Machines without agents say their zones themselves.
#[test]
fn an_offer_tells_what_crossed_between_zones() {
    let Some(lan) = Lan::new() else { return };
    lan.keep_in(0, "ip daddr 224.0.0.0/4 drop");
    let file = lan.place.file("object", &noise(LEN));
    let (offer, code) = lan.offer(&file, 2, &["--zone", "east", "--slow", "wait"]);
    let accept = |host: usize, zone: &str| {
        let (from, out) = (address(0), lan.place.path(&format!("out{host}")));
        lan.begin(host, &["accept", &code, "--from", &from, "--out", &out, "--zone", zone])
    };
    let accepting = [accept(1, "west"), accept(2, "west")];
    for accepting in accepting {
        let ran = accepting.end();
        assert_eq!(ran.status, 0, "{}", ran.stderr);
    }
    let report = offer.end().json();
    let crossed = report["zones"][0]["bytes"].as_u64().unwrap_or_else(|| panic!("{report}"));
    assert_eq!((&report["zones"][0]["from"], &report["zones"][0]["to"]), (&"east".into(), &"west".into()));
    assert!((LEN as u64..LEN as u64 * 11 / 10).contains(&crossed), "{crossed} bytes: {report}");
    let ran = common::polycast(&["accept", "lusab-babad-gutih-tugad", "--zone", "a b"]);
    assert!(ran.status == 1 && ran.stderr.contains("'a b' cannot be one"), "{}", ran.stderr);
}
