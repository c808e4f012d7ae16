//! The hub endpoint as a server of Xet, with a hub that counts what it is asked: files that are here as a
//! whole are given in xorbs made of them, to those whom the hub lets see them, and the hub's own servers of
//! Xet are asked nothing.

mod common;

use common::cluster::{Cluster, Daemon};
use common::hub::{FIRST, FakeHub, Heard, Manner, TOKEN, ask, hex, name_in_xet};
use common::{Place, noise};
use ring::digest::{SHA256, digest};
use serde_json::Value;
use std::time::{Duration, Instant};

/// Two xorbs, the second of one chunk and a few bytes.
const LEN: usize = (16 << 20) + 65_600;
const PATH: &str = "/org/xet/resolve/main/model.large";

fn begin() -> (FakeHub, Cluster, String) {
    let hub = FakeHub::start(&[(FIRST, "model.large", noise(LEN)), (FIRST, "config.json", b"{}".to_vec())]);
    let place = Place::new();
    let settings = format!("[hub]\nlisten = '127.0.0.1:0'\nupstream = '{}'\n", hub.address);
    let settings = place.file("agent.toml", settings.as_bytes());
    let manager = place.file("manager.toml", b"silence-ms = 4000\n[objects]\nsettle-ms = 300\n");
    let managers = vec![Daemon::manager("127.0.0.1:0", &["--config", &manager])];
    let cluster = Cluster::of_with(place, managers, &["a"], &["--config", &settings]);
    let own = cluster.agents[0].ready["hub"].as_str().unwrap().to_string();
    (hub, cluster, own)
}

fn sha256() -> String {
    hex(digest(&SHA256, &noise(LEN)).as_ref())
}

fn json(heard: &Heard) -> Value {
    serde_json::from_slice(&heard.body).unwrap_or_else(|_| panic!("{}: {heard:?}", heard.status))
}

/// A token for the repository, as a header.
fn token(own: &str, repository: &str, headers: &[&str]) -> Result<String, u16> {
    let heard = ask(own, "GET", &format!("/api/models/{repository}/xet-read-token/{FIRST}"), headers);
    if heard.status != 200 {
        return Err(heard.status);
    }
    let document = json(&heard);
    assert_eq!(heard.header("x-xet-cas-url"), Some(&*format!("{own}/cas")));
    assert_eq!(heard.header("x-xet-access-token"), document["accessToken"].as_str());
    assert!(heard.header("x-xet-token-expiration").unwrap().parse::<u64>().unwrap() > 1_000_000_000);
    Ok(format!("Authorization: Bearer {}", document["accessToken"].as_str().unwrap()))
}

fn reconstruction(own: &str, version: u8, name: &str, headers: &[&str]) -> Heard {
    ask(own, "GET", &format!("/cas/v{version}/reconstructions/{name}"), headers)
}

/// An address here, without that of the endpoint.
fn path<'a>(own: &str, row: &'a Value) -> &'a str {
    row["url"].as_str().unwrap().strip_prefix(own).expect("no client is sent past this one")
}

/// The bytes that a client makes of an answer, and of what it is sent to.
fn made(own: &str, version: u8, answer: &Value) -> Vec<u8> {
    let (mut bytes, mut skipped) = (Vec::new(), answer["offset_into_first_range"].as_u64().unwrap() as usize);
    for term in answer["terms"].as_array().unwrap() {
        let name = term["hash"].as_str().unwrap();
        let row = &answer[if version == 1 { "fetch_info" } else { "xorbs" }][name][0];
        let (chunks, range) = match version {
            1 => (&row["range"], &row["url_range"]),
            _ => (&row["ranges"][0]["chunks"], &row["ranges"][0]["bytes"]),
        };
        let asked = format!("Range: bytes={}-{}", range["start"], range["end"]);
        let heard = ask(own, "GET", path(own, row), &[&asked]);
        assert_eq!(heard.status, 206, "{heard:?}");
        let (mut left, mut chunk, mut len) = (&heard.body[..], chunks["start"].as_u64().unwrap(), 0);
        while !left.is_empty() {
            let size = u32::from_le_bytes([left[1], left[2], left[3], 0]) as usize;
            assert_eq!((left[0], left[4], &left[1..4]), (0, 0, &left[5..8]));
            let wanted = term["range"]["start"].as_u64().unwrap()..term["range"]["end"].as_u64().unwrap();
            if wanted.contains(&chunk) {
                bytes.extend(&left[8 + skipped..8 + size]);
                (skipped, len) = (0, len + size);
            }
            (left, chunk) = (&left[8 + size..], chunk + 1);
        }
        assert_eq!(chunk, chunks["end"].as_u64().unwrap());
        assert_eq!(len as u64, term["unpacked_length"].as_u64().unwrap());
    }
    bytes
}

#[test]
fn a_file_that_is_here_is_given_in_xorbs_and_one_that_is_not_is_not_offered() {
    let (hub, _cluster, own) = begin();
    let tree = || json(&ask(&own, "GET", &format!("/api/models/org/xet/tree/{FIRST}?recursive=true"), &[]));
    let head = ask(&own, "HEAD", PATH, &[]);
    assert!(head.header("x-xet-hash").is_none() && head.header("link").is_none());
    assert!(!tree().to_string().contains("xetHash"), "{}", tree());
    assert!(ask(&own, "GET", PATH, &[]).body == noise(LEN));
    let given = hub.given();
    // The same answers of the hub, as the file is here now.
    let name = name_in_xet(&sha256());
    let head = ask(&own, "HEAD", PATH, &[]);
    assert_eq!(head.header("x-xet-hash"), Some(&*name));
    let route = format!("<{own}/api/models/org/xet/xet-read-token/{FIRST}>; rel=\"xet-auth\"");
    assert_eq!(head.header("link"), Some(&*route));
    assert_eq!(tree()[1]["xetHash"], *name, "{}", tree());
    assert_eq!(tree()[0].get("xetHash"), None);
    // A hub that knows no Xet names no file: it is called by its SHA-256.
    let plain = ask(&own, "HEAD", &PATH.replace("org/xet", "org/plain"), &[]);
    assert_eq!(plain.header("x-xet-hash"), Some(&*sha256()));
    let pass = token(&own, "org/xet", &[]).unwrap();
    for version in [1, 2] {
        let all = reconstruction(&own, version, &name, &[&pass]);
        assert!(made(&own, version, &json(&all)) == noise(LEN));
        for (first, last) in [(0, 9), (70_000, 140_000), (16_777_210, 16_777_230), (LEN - 1, LEN + 99)] {
            let some =
                reconstruction(&own, version, &name, &[&pass, &format!("Range: bytes={first}-{last}")]);
            let bytes = made(&own, version, &json(&some));
            // The end is that of a chunk: the client takes what it has asked for.
            let end = (last + 1).min(LEN);
            assert!(bytes.len() >= end - first && bytes[..end - first] == noise(LEN)[first..end], "{first}");
        }
        let past = reconstruction(&own, version, &name, &[&pass, &format!("Range: bytes={LEN}-")]);
        assert_eq!(past.status, 416);
    }
    let by_digest = token(&own, "org/plain", &[]).unwrap();
    let all = reconstruction(&own, 2, &sha256(), &[&by_digest]);
    assert!(made(&own, 2, &json(&all)) == noise(LEN));
    assert_eq!(
        reconstruction(&own, 2, &sha256(), &[&pass]).status,
        404,
        "of that revision none is called so"
    );
    assert_eq!((hub.given(), hub.count("xet-read-token"), hub.count("/cas/")), (given, 0, 0));
}

#[test]
fn tokens_and_addresses_are_good_for_whom_the_hub_lets_see_the_file() {
    let (hub, cluster, own) = begin();
    let mine = format!("Authorization: {TOKEN}");
    let name = name_in_xet(&sha256());
    let private = PATH.replace("org/xet", "org/private");
    assert_eq!(ask(&own, "GET", &private, &[&mine]).status, 200);
    for wrong in [&["Authorization: Bearer hf_wrong"][..], &[]] {
        assert_eq!(token(&own, "org/private", wrong), Err(401));
    }
    let pass = token(&own, "org/private", &[&mine]).unwrap();
    assert!(!pass.contains("hf_right"));
    let answer = json(&reconstruction(&own, 2, &name, &[&pass]));
    assert!(made(&own, 2, &answer) == noise(LEN));
    // No other client's, no other one, and no part of one.
    for odd in [&[][..], &[&*mine], &["Authorization: Bearer AAAA"], &[&pass[..pass.len() - 1]]] {
        assert_eq!(reconstruction(&own, 2, &name, odd).status, 401, "{odd:?}");
    }
    let row = answer["xorbs"].as_object().unwrap().values().next().unwrap();
    let address = path(&own, &row[0]);
    let xorb = address.split_once('?').unwrap();
    let pass_of_a_revision = pass.rsplit(' ').next().unwrap();
    for odd in ["", "?pass=", "?pass=AAAA", &format!("?pass={pass_of_a_revision}")] {
        assert_eq!(ask(&own, "GET", &format!("{}{odd}", xorb.0), &[]).status, 403, "{odd}");
    }
    let as_token = format!("Authorization: Bearer {}", xorb.1.strip_prefix("pass=").unwrap());
    assert_eq!(reconstruction(&own, 2, &name, &[&as_token]).status, 401);
    // The hub has been asked with the client's own token, for the list and the file.
    assert!(hub.count("/api/models/org/private/tree/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa?recursive=true&expand=false token") == 2, "one of each token");
    assert_eq!(cluster.at("a", &["status"]).status, 0);
    // It lets no client see it any more.
    hub.close();
    let (begun, mut closed) = (Instant::now(), false);
    while !closed && begun.elapsed() < Duration::from_secs(90) {
        std::thread::sleep(Duration::from_secs(2));
        closed = ask(&own, "GET", address, &["Range: bytes=0-9"]).status == 401
            && reconstruction(&own, 2, &name, &[&pass]).status == 401;
    }
    assert!(closed, "an address outlives the right to the file");
}

/// A client whose cache has been filled from the hub itself asks by Xet at once.
#[test]
fn a_file_that_is_asked_for_by_xet_comes_first_and_a_wrong_one_does_not() {
    let (hub, _cluster, own) = begin();
    let (pass, name) = (token(&own, "org/xet", &[]).unwrap(), name_in_xet(&sha256()));
    hub.set(Manner::Flipped);
    let wrong = reconstruction(&own, 2, &name, &[&pass]);
    assert!(wrong.status == 502 && wrong.body.len() < 500, "{wrong:?}");
    hub.set(Manner::Slowly(4_000_000, false));
    let before = hub.given();
    let answer = json(&reconstruction(&own, 2, &name, &[&pass]));
    assert_eq!(hub.given(), (before.0 + 1, before.1 + LEN as u64), "it has come as a whole before");
    assert!(made(&own, 2, &answer) == noise(LEN));
    assert_eq!(hub.given().0, before.0 + 1);
}
