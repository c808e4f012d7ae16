//! A cluster whose machines show each other their certificates: what they send, and which are kept out, in a
//! sentence.

mod common;

use common::authority::{Authority, words};
use common::cluster::{Cluster, Daemon};
use common::{Place, Ran, begin, command, end, noise, polycast};
use polycast_testing::{until, wait_for};
use polycast_types::{Handle, ObjectId};
use polycast_wire::control::Control;
use std::fs::{self, Permissions};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;

fn key(place: &Place, name: &str) -> String {
    let path = place.path(name);
    assert_eq!(polycast(&["key", "new", &path]).status, 0);
    path
}

/// Runs an agent that is expected not to be let in, to its end. One that the manager has not answered in time
/// knows no better.
fn kept_out(place: &Place, manager: &str, name: &str, more: &[&str]) -> Ran {
    let (store, socket) = (place.path(&format!("store-{name}")), place.path(&format!("{name}.sock")));
    let local = ["--interface", "lo", "--store", &store, "--socket", &socket];
    let words = [&["agent", "--manager", manager, "--name", name], &local[..], more].concat();
    wait_for("an answer", || Some(polycast(&words)).filter(|ran| !common::was_late(ran)))
}

/// Returns the last line of its standard error.
fn sentence(ran: &Ran) -> &str {
    assert_eq!(ran.status, 1, "{}", ran.stderr);
    ran.stderr.lines().last().unwrap_or_default()
}

#[test]
fn who_has_the_key_sends_and_who_has_it_not_is_told_so() {
    let place = Place::new();
    let (ours, other) = (key(&place, "ours"), key(&place, "other"));
    let with_key = ["--key-file", &ours];
    let sealed = Daemon::manager("127.0.0.1:0", &with_key);
    let cluster = Cluster::of_with(place, vec![sealed], &["a", "b"], &with_key);
    let place = &cluster.place;
    let manager = cluster.managers[0].address();
    for (name, more, says) in [
        ("c", &[][..], "the other end seals its connections, and this end has no key"),
        ("d", &["--key-file", &other], "the other end has another key"),
    ] {
        let ran = kept_out(place, manager, name, more);
        assert!(sentence(&ran).contains(says), "{}", ran.stderr);
        assert!(sentence(&ran).contains(manager), "{}", ran.stderr);
    }
    call_without_the_key(cluster.agents[1].ready["control_address"].as_str().unwrap());
    let bytes = noise(3_000_000);
    let file = place.file("model.bin", &bytes);
    let sent = cluster.at("a", &["send", &file, "--to", "all", "--id", "42"]);
    assert_eq!(sent.status, 0, "{}", sent.stderr);
    let report = sent.json();
    assert_eq!((&report["sealed"], report["receivers"].as_array().map(Vec::len)), (&true.into(), Some(1)));
    let out = place.path("copy");
    assert_eq!(cluster.at("b", &["get", "42", "--out", &out]).status, 0);
    assert!(fs::read(&out).unwrap() == bytes);
}

/// A host without the key calls an agent to a transfer: it hears why the agent does not come.
fn call_without_the_key(agent: &str) {
    let mut stream = TcpStream::connect(agent).unwrap();
    let invite = Control::Invite {
        address: [127, 0, 0, 1].into(),
        port: 9,
        handle: Handle(7),
        object: ObjectId::default(),
        pulled: false,
        object_len: 5,
        root: None,
        permit: None,
        delta: None,
    };
    let mut frame = Vec::new();
    invite.emit(&mut frame);
    stream.write_all(&frame).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    match Control::parse(&answer) {
        Ok(Control::Refuse(why)) => assert!(why.contains("takes sealed connections only"), "{why}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_agent_with_a_key_does_not_join_without_it() {
    let place = Place::new();
    let ours = key(&place, "ours");
    let open = Daemon::manager("127.0.0.1:0", &[]);
    let ran = kept_out(&place, open.address(), "a", &["--key-file", &ours]);
    assert!(sentence(&ran).contains("the other end does not seal its connections"), "{}", ran.stderr);
}

#[test]
fn a_key_file_that_is_none_ends_a_manager_before_it_listens() {
    let place = Place::new();
    let short = place.file("short", b"abc\n");
    fs::set_permissions(&short, Permissions::from_mode(0o600)).unwrap();
    let shown = key(&place, "shown");
    fs::set_permissions(&shown, Permissions::from_mode(0o644)).unwrap();
    let missing = place.path("missing");
    for (file, says) in
        [(&short, "it holds 3 characters"), (&shown, "chmod 600"), (&missing, "cannot be read")]
    {
        let ran = polycast(&["manager", "--listen", "127.0.0.1:0", "--key-file", file]);
        assert!(sentence(&ran).contains(says), "{}", ran.stderr);
        assert!(!ran.stderr.contains("listens on"), "{}", ran.stderr);
    }
}

#[test]
fn agents_are_who_their_certificates_say() {
    let place = Place::new();
    let authority = Authority::new();
    let of_manager = authority.issue(&place, "manager", "manager");
    let manager = Daemon::manager("127.0.0.1:0", &words(&of_manager));
    let address = manager.address().to_string();
    let agent = |name: &str| {
        let files = authority.issue(&place, name, name);
        Daemon::agent_with(&place, &address, name, &words(&files))
    };
    let agents = vec![agent("a"), agent("b")];
    let mut cluster = Cluster { managers: vec![manager], agents, place };
    cluster.await_status("a", |s| s["peers"].as_array().is_some_and(|peers| peers.len() == 2));

    let foreign = Authority::new().issue(&cluster.place, "c", "c");
    let ran = kept_out(&cluster.place, &address, "c", &words(&foreign));
    assert!(sentence(&ran).contains("was not issued by an authority that this end trusts"), "{}", ran.stderr);
    let of_a = authority.issue(&cluster.place, "d", "a");
    let ran = kept_out(&cluster.place, &address, "d", &words(&of_a));
    assert!(sentence(&ran).contains("the certificate of 'd' is for 'a'"), "{}", ran.stderr);

    let file = cluster.place.file("f", &noise(300_000));
    let sent = cluster.at("a", &["send", &file, "--to", "b", "--id", "1"]);
    assert_eq!(sent.status, 0, "{}", sent.stderr);
    assert_eq!(sent.json()["sealed"], true);

    lines_between_two(&cluster);

    // An agent whose certificate is changed for another one's is neither sent to nor let in again.
    authority.issue(&cluster.place, "b", "x");
    let file = cluster.place.file("g", &noise(300_001));
    let sent = cluster.at("a", &["send", &file, "--to", "b", "--id", "2"]);
    assert_eq!(sent.status, 1, "{}", sent.stdout);
    let to_b = &sent.json()["receivers"][0];
    assert_eq!(to_b["verified"], false, "{}", sent.stdout);
    let why = to_b["error"].as_str().unwrap_or_default();
    assert!(why.contains("the certificate of 'b' is for 'x'"), "{why}");
    cluster.managers[0].kill();
    cluster.managers[0] = Daemon::manager(&address, &words(&of_manager));
    assert_eq!(cluster.agents[1].ended(), Some(1));
    cluster.await_status("a", |s| s["peers"].as_array().is_some_and(|peers| peers.len() == 1));
}

/// A stream from a to b, which share no key: what it is sealed with they have from the manager.
fn lines_between_two(cluster: &Cluster) {
    assert_eq!(cluster.at("a", &["stream", "create", "ticks"]).json()["created"], true);
    let socket = cluster.place.path("b.sock");
    let hears = begin(&["stream", "recv", "ticks", "--count", "1", "--socket", &socket]);
    cluster.await_answer("a", &["stream", "ls"], |streams| {
        streams[0]["receivers"].as_array().is_some_and(|r| r.len() == 1)
            && streams[0]["fabric"] == "ip-multicast"
    });
    // The source's agent hears of its path at the same time as we did.
    let socket = cluster.place.path("a.sock");
    until("a message that is heard", || {
        let mut child = command(&["stream", "send", "ticks", "--json", "--socket", &socket])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(b"one\n").unwrap();
        end(child).json()["unheard"] == 0
    });
    let heard = end(hears);
    assert_eq!((heard.status, heard.stdout.as_str()), (0, "one\n"), "{}", heard.stderr);
    assert_eq!(cluster.at("a", &["stream", "end", "ticks"]).json()["ended"], true);
}

/// Makes a token where the manager's authority is.
fn token(folder: &str, name: &str) -> String {
    let ran = polycast(&["token", "new", "--name", name, "--for", "1h", "--ca", folder, "--json"]);
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    ran.json()["token"].as_str().unwrap().to_string()
}

#[test]
fn a_token_lets_one_agent_in_once_and_its_certificate_after_that() {
    let place = Place::new();
    let (own, others) = (place.path("ca"), place.path("other-ca"));
    let manager = Daemon::manager("127.0.0.1:0", &["--ca", &own]);
    let other = Daemon::manager("127.0.0.1:0", &["--ca", &others]);
    let address = manager.address().to_string();
    let identity = |name: &str| place.path(&format!("identity-{name}"));
    let agent = |name: &str, token: &str| {
        Daemon::agent_with(&place, &address, name, &["--token", token, "--identity", &identity(name)])
    };
    let of_a = token(&own, "a");
    let mut agents = vec![agent("a", &of_a), agent("b", &token(&own, "b"))];
    let of_d = token(&own, "d");
    for (name, with, says) in [
        ("c", &of_a, "has been used already"),
        ("c", &of_d, "is for 'd', not for 'c': start the agent with --name d"),
        ("c", &token(&others, "c"), "its authority is another one than the token's"),
        ("c", &"polycast-1".to_string(), "that is no token"),
    ] {
        let ran = kept_out(&place, &address, name, &["--token", with, "--identity", &identity("c")]);
        assert!(sentence(&ran).contains(says), "{}", ran.stderr);
    }
    let ran = kept_out(&place, &address, "c", &["--identity", &identity("c")]);
    assert!(sentence(&ran).contains("start the agent with --token"), "{}", ran.stderr);

    // With the certificate it comes back without a token.
    agents[1].kill();
    agents[1] = Daemon::agent_with(&place, &address, "b", &["--identity", &identity("b")]);
    let cluster = Cluster { managers: vec![manager, other], agents, place };
    cluster.await_status("a", |s| s["peers"].as_array().is_some_and(|peers| peers.len() == 2));
    let file = cluster.place.file("f", &noise(300_000));
    let sent = cluster.at("a", &["send", &file, "--to", "b", "--id", "1"]);
    assert_eq!((sent.status, &sent.json()["sealed"]), (0, &true.into()), "{}", sent.stderr);

    let listed = polycast(&["token", "ls", "--ca", &own, "--json"]).json();
    let mut standings: Vec<(&str, &str)> = listed
        .as_array()
        .unwrap()
        .iter()
        .map(|token| (token["name"].as_str().unwrap(), token["standing"].as_str().unwrap()))
        .collect();
    standings.sort_unstable();
    assert_eq!(standings, [("a", "used"), ("b", "used"), ("d", "good")]);
    let id = of_d.split('-').nth(1).unwrap();
    assert_eq!(polycast(&["token", "revoke", id, "--ca", &own]).status, 0);
    let again = polycast(&["token", "revoke", id, "--ca", &own]);
    assert!(sentence(&again).contains("there is no token"), "{}", again.stderr);
    let nowhere = polycast(&["token", "ls", "--ca", &cluster.place.path("none")]);
    assert!(sentence(&nowhere).contains("there is no authority in"), "{}", nowhere.stderr);
}
