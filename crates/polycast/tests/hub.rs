//! The hub endpoint, with a hub that counts what it is asked, a manager and agents as processes of their own:
//! a file is read from the hub once, however many hosts ask; what is not the file that the hub has named
//! reaches no client; what is another one's stays so.

mod common;

use common::cluster::{Cluster, Daemon};
use common::hub::{FIRST, FakeHub, Heard, Manner, SECOND, TOKEN, ask, ask_telling};
use common::{Place, noise};
use polycast_testing::{free_port, until};
use std::time::Duration;

/// A manager that gathers for long enough that all of a test are in time.
const GATHERING: &str = "[objects]\nwindow-ms = 1000\nsettle-ms = 300\n";
const QUICK: &str = "silence-ms = 4000\n[objects]\nsettle-ms = 300\n";
const LARGE: &str = "/org/m/resolve/main/model.large";
const SMALL: &str = "/org/m/resolve/main/config.json";

fn hub() -> FakeHub {
    FakeHub::start(&[
        (FIRST, "model.large", noise(3_000_001)),
        (FIRST, "config.json", b"{\"layers\": 2}".to_vec()),
        (FIRST, "empty", Vec::new()),
        (SECOND, "model.large", noise(2_000_003)),
        (SECOND, "config.json", b"{\"layers\": 3}".to_vec()),
    ])
}

/// Agents with an endpoint each.
fn cluster(hub: &FakeHub, manager: &str, names: &[&str]) -> Cluster {
    cluster_with(hub, manager, names, "")
}

fn cluster_with(hub: &FakeHub, manager: &str, names: &[&str], more: &str) -> Cluster {
    let place = Place::new();
    let settings = format!("{more}[hub]\nlisten = '127.0.0.1:0'\nupstream = '{}'\n", hub.address);
    let settings = place.file("agent.toml", settings.as_bytes());
    let manager = place.file("manager.toml", manager.as_bytes());
    let managers = vec![Daemon::manager("127.0.0.1:0", &["--config", &manager])];
    Cluster::of_with(place, managers, names, &["--config", &settings])
}

fn endpoint(cluster: &Cluster, agent: usize) -> String {
    cluster.agents[agent].ready["hub"].as_str().expect("the agent says where its endpoint is").to_string()
}

fn get(cluster: &Cluster, agent: usize, path: &str) -> Heard {
    ask(&endpoint(cluster, agent), "GET", path, &[])
}

/// As many ask at one moment as there are agents.
fn get_at_all(cluster: &Cluster, path: &str) -> Vec<Heard> {
    std::thread::scope(|scope| {
        let asking: Vec<_> = (0..cluster.agents.len())
            .map(|agent| {
                let endpoint = endpoint(cluster, agent);
                scope.spawn(move || {
                    let head = ask(&endpoint, "HEAD", path, &[]);
                    assert_eq!((head.status, head.body.len()), (200, 0), "{head:?}");
                    ask(&endpoint, "GET", path, &[])
                })
            })
            .collect();
        asking.into_iter().map(|asking| asking.join().unwrap()).collect()
    })
}

#[test]
fn a_file_is_read_from_the_hub_once_however_many_hosts_ask() {
    let hub = hub();
    let port = free_port();
    let cluster = cluster(&hub, GATHERING, &["a", "b", "c"]);
    for (path, len) in [(LARGE, 3_000_001), (SMALL, 13)] {
        let before = hub.given();
        for heard in get_at_all(&cluster, path) {
            assert_eq!((heard.status, heard.body.len()), (200, len), "{path}");
            assert!(len < 100 || heard.body == noise(len), "{path}");
            assert_eq!(heard.header("x-repo-commit"), Some(FIRST));
            assert!(heard.header("x-xet-hash").is_none() && heard.header("link").is_none(), "{path}");
        }
        assert_eq!(hub.given(), (before.0 + 1, before.1 + len as u64), "{path}");
    }
    // Again: no byte comes from the hub, nor is it asked for one.
    let before = hub.given();
    get_at_all(&cluster, LARGE).iter().for_each(|heard| assert_eq!(heard.body.len(), 3_000_001));
    assert_eq!(hub.given(), before);
    // Another revision is another file, by a commit and by its parts.
    let second = get(&cluster, 1, &LARGE.replace("main", SECOND));
    assert!(second.body == noise(2_000_003) && second.header("x-repo-commit") == Some(SECOND));
    let first = ask(&endpoint(&cluster, 1), "GET", LARGE, &["Range: bytes=3000000-"]);
    assert_eq!((first.status, &first.body[..]), (206, &noise(3_000_001)[3_000_000..]));
    assert_eq!(hub.given(), (before.0 + 1, before.1 + 2_000_003));
    // What it has answered is counted where the agent is watched.
    let settings =
        format!("http = '127.0.0.1:{port}'\n[hub]\nlisten = '127.0.0.1:0'\nupstream = '{}'\n", hub.address);
    let settings = cluster.place.file("watched.toml", settings.as_bytes());
    let manager = cluster.managers[0].address();
    let watched = Daemon::agent_with(&cluster.place, manager, "watched", &["--config", &settings]);
    let own = watched.ready["hub"].as_str().unwrap();
    for path in [LARGE, LARGE, &LARGE.replace("org/m", "org/other")] {
        assert!(ask(own, "GET", path, &[]).body.len() > 1_000_000);
    }
    let endpoints = cluster.at("watched", &["status"]).json()["endpoints"].to_string();
    for one in ["\"name\":\"org/m\",\"origin\":0,\"peers\":1,\"store\":1", "\"name\":\"org/other\""] {
        assert!(endpoints.contains(one), "{one} in {endpoints}");
    }
    let reads: Vec<_> =
        ["a", "b", "c"].iter().map(|agent| cluster.at(agent, &["why", "org/m"]).json()).collect();
    let reads: usize = reads.iter().map(|why| why["reads"].as_array().map_or(0, Vec::len)).sum();
    assert_eq!(reads, 3, "each file of the two revisions was read by one host");
    assert_eq!(cluster.at("a", &["why", "org/none"]).status, 1);
    let metrics = ask(&format!("http://127.0.0.1:{port}/metrics"), "GET", "", &[]).body;
    let metrics = String::from_utf8(metrics).unwrap();
    for line in [
        "polycast_cache_requests_total{kind=\"hub\",result=\"peer\"} 1\n",
        // The other repository has the same file.
        "polycast_cache_requests_total{kind=\"hub\",result=\"store\"} 2\n",
        "polycast_cache_requests_total{kind=\"hub\",result=\"origin\"} 0\n",
        "polycast_origin_bytes_total{kind=\"hub\"} 0\n",
    ] {
        assert!(metrics.contains(line), "{line} in {metrics}");
    }
}

#[test]
fn bytes_that_are_not_the_file_reach_no_client() {
    let hub = hub();
    let cluster = cluster(&hub, QUICK, &["a", "b"]);
    for (manner, says) in
        [(Manner::Flipped, "have the SHA-256"), (Manner::Short, "1500000 bytes of the 3000001")]
    {
        hub.set(manner);
        for heard in get_at_all(&cluster, LARGE) {
            let said = String::from_utf8_lossy(&heard.body);
            assert!(heard.status == 502 && heard.body.len() < 500, "{manner:?}: {heard:?}");
            assert!(said.contains(says), "{manner:?}: {said}");
        }
    }
    hub.set(Manner::Flipped);
    assert_eq!(get(&cluster, 0, SMALL).status, 502);
    // Nothing of it is left.
    hub.set(Manner::Right);
    get_at_all(&cluster, LARGE).iter().for_each(|heard| assert!(heard.body == noise(3_000_001)));
    assert_eq!(get(&cluster, 0, SMALL).body, b"{\"layers\": 2}");
}

#[test]
fn a_download_that_breaks_off_goes_on_from_there() {
    let hub = hub();
    let cluster = cluster(&hub, QUICK, &["a"]);
    hub.set(Manner::Broken);
    let heard = get(&cluster, 0, LARGE);
    assert!(heard.status == 200 && heard.body == noise(3_000_001), "{}", heard.status);
    assert_eq!(hub.given(), (2, 3_000_001), "no byte twice");
}

#[test]
fn where_the_reading_agent_dies_another_one_reads() {
    let hub = hub();
    let mut cluster = cluster(&hub, QUICK, &["a", "b", "c"]);
    hub.set(Manner::Held);
    let [a, b, c] = [0, 1, 2].map(|agent| endpoint(&cluster, agent));
    let first = std::thread::spawn(move || {
        // It breaks off, or says so.
        std::panic::catch_unwind(|| ask(&a, "GET", LARGE, &[])).map(|heard| heard.status)
    });
    until("the first one has half", || hub.given() == (1, 1_500_000));
    let others = [b, c].map(|endpoint| std::thread::spawn(move || ask(&endpoint, "GET", LARGE, &[])));
    until("the others have asked", || hub.count("HEAD /base/org/m/resolve/main/model.large") == 3);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(hub.given().0, 1, "one at a time");
    hub.set(Manner::Right);
    cluster.agents[0].kill();
    for other in others {
        let heard = other.join().unwrap();
        assert!(heard.status == 200 && heard.body == noise(3_000_001), "{}", heard.status);
    }
    assert_eq!(hub.given(), (2, 1_500_000 + 3_000_001), "one after the other");
    assert_ne!(first.join().unwrap().unwrap_or(0), 200);
}

#[test]
fn what_is_private_is_given_to_those_whom_the_hub_lets_see_it() {
    let hub = hub();
    let cluster = cluster(&hub, QUICK, &["a", "b"]);
    let path = LARGE.replace("org/m", "org/private");
    let right = format!("Authorization: {TOKEN}");
    let mine = ask(&endpoint(&cluster, 0), "GET", &path, &[&right]);
    assert!(mine.status == 200 && mine.body == noise(3_000_001));
    // It is in the store now, and at the other host after this.
    let before = hub.given();
    assert_eq!(ask(&endpoint(&cluster, 1), "GET", &path, &[&right]).body.len(), 3_000_001);
    assert_eq!(hub.given(), before);
    for wrong in [&["Authorization: Bearer hf_wrong"][..], &[]] {
        for agent in [0, 1] {
            for method in ["HEAD", "GET"] {
                let heard = ask(&endpoint(&cluster, agent), method, &path, wrong);
                assert!(heard.status == 401 && heard.body.len() < 500, "{heard:?}");
                assert_eq!(heard.header("x-error-code"), Some("RepoNotFound"));
            }
        }
    }
    assert_eq!(hub.given(), before);
    // Where the hub sends on to has heard no token; the hub itself has.
    assert_eq!((hub.count("/cdn/"), hub.count("/cdn/") - hub.count("cdn/ token")), (1, 1));
    assert!(hub.state().asked.iter().all(|line| !line.contains("/cdn/") || !line.ends_with("token")));
}

#[test]
fn clients_hear_what_they_understand() {
    let hub = hub();
    let cluster = cluster(&hub, QUICK, &["a"]);
    let own = endpoint(&cluster, 0);
    let missing = ask(&own, "HEAD", "/org/m/resolve/main/no.json", &[]);
    assert_eq!((missing.status, missing.header("x-error-code")), (404, Some("EntryNotFound")));
    assert_eq!(missing.header("x-repo-commit"), Some(FIRST));
    let empty = get(&cluster, 0, "/org/m/resolve/main/empty");
    assert_eq!((empty.status, empty.header("content-length")), (200, Some("0")));
    let head = ask(&own, "HEAD", LARGE, &[]);
    assert_eq!((head.header("content-length"), head.header("location")), (Some("3000001"), None));
    assert!(head.header("x-linked-etag").is_some() && head.header("etag").is_some());
    // Ranges.
    let bytes = noise(3_000_001);
    for (range, status, part) in [
        ("bytes=0-99", 206, &bytes[..100]),
        ("bytes=100-", 206, &bytes[100..]),
        ("bytes=-7", 206, &bytes[bytes.len() - 7..]),
        ("bytes=2999999-9999999", 206, &bytes[2_999_999..]),
        ("bytes=0-1,5-6", 200, &bytes),
        ("lines=0-1", 200, &bytes),
    ] {
        let heard = ask(&own, "GET", LARGE, &[&format!("Range: {range}")]);
        assert!(heard.status == status && heard.body == part, "{range}: {}", heard.status);
    }
    let past = ask(&own, "GET", LARGE, &["Range: bytes=3000001-"]);
    assert_eq!((past.status, past.header("content-range")), (416, Some("bytes */3000001")));
    let other = ask(&own, "GET", LARGE, &["Range: bytes=5-", "If-Range: \"abc\""]);
    assert_eq!(other.body.len(), bytes.len(), "of another state of the file nothing goes on");
    // The hub's own words.
    let busy = ask(&own, "GET", "/api/busy", &[]);
    assert_eq!((busy.status, busy.header("retry-after")), (429, Some("17")));
    assert_eq!(busy.header("x-error-message"), Some("slow down"));
    hub.set(Manner::Says(429));
    let busy = ask(&own, "GET", SMALL, &[]);
    assert_eq!((busy.status, busy.header("retry-after")), (429, Some("3")), "{busy:?}");
    hub.set(Manner::Says(503));
    assert_eq!(ask(&own, "GET", SMALL, &[]).status, 502, "it is asked several times first");
    hub.set(Manner::Right);
    assert_eq!(ask(&own, "GET", SMALL, &[]).status, 200);
}

#[test]
fn the_hubs_answers_lead_here_and_nobody_elses_questions_are_taken() {
    let hub = hub();
    let cluster = cluster(&hub, QUICK, &["a"]);
    let own = endpoint(&cluster, 0);
    for _ in 0..3 {
        let tree = ask(&own, "GET", &format!("/api/models/org/m/tree/{FIRST}?recursive=true"), &[]);
        assert_eq!(String::from_utf8_lossy(&tree.body), "[{\"lfs\":{\"size\":7},\"path\":\"a\"}]");
        let next = format!("<{own}/api/next?cursor=1>; rel=\"next\"");
        assert_eq!(tree.header("link"), Some(next.as_str()));
    }
    assert_eq!(hub.count("/tree/"), 1, "it is told again for a while");
    ask(&own, "GET", &format!("/api/models/org/m/tree/{FIRST}?recursive=true"), &["Authorization: Bearer x"]);
    assert_eq!(hub.count("/tree/"), 2, "another one's is another question");
    let who = ask(&own, "GET", "/api/whoami-v2", &["Authorization: Bearer x"]);
    assert_eq!(who.body, b"{\"token\":true}");
    // No client is sent past this one.
    let xet = ask(&own, "GET", &format!("/api/models/org/m/xet-write-token/{FIRST}"), &[]);
    assert!(xet.status == 404 && hub.count("xet-write-token") == 0);
    let asked = hub.state().asked.len();
    for (path, headers, status) in [
        ("/org/m/resolve/main/%2e%2e/secret", &[][..], 400),
        ("/org/m/resolve/main/../../x", &[], 400),
        ("/org/m/resolve/main/a%00b", &[], 400),
        ("/org/m/raw/main/a", &[], 404),
        (SMALL, &["Host: evil.example"], 403),
        (SMALL, &["Host: 127.0.0.1.evil.example:7481"], 403),
        (SMALL, &["Host:"], 403),
    ] {
        assert_eq!(ask(&own, "GET", path, headers).status, status, "{path} {headers:?}");
    }
    let long = format!("/org/m/resolve/main/{}", "a".repeat(10_000));
    assert_eq!(ask(&own, "GET", &long, &[]).status, 400);
    assert_eq!(ask(&own, "DELETE", SMALL, &[]).status, 405);
    assert_eq!(hub.state().asked.len(), asked, "the hub has heard of none of these");
}

/// Clients give up after 10 s without a byte, and not one byte is verified before the last one has come.
#[test]
fn a_client_hears_that_it_is_not_forgotten_while_a_silent_hub_is_asked_again() {
    let hub = hub();
    let cluster = cluster(&hub, QUICK, &["a"]);
    hub.set(Manner::Held);
    let own = endpoint(&cluster, 0);
    let asking = std::thread::spawn(move || ask(&own, "GET", LARGE, &[]));
    until("half of it has come", || hub.given() == (1, 1_500_000));
    hub.set(Manner::Right);
    let heard = asking.join().unwrap();
    assert!(heard.status == 200 && heard.body == noise(3_000_001));
    assert!(heard.nudges >= 4, "{}", heard.nudges);
    assert_eq!(hub.given(), (2, 3_000_001), "no byte twice");
}

#[test]
fn without_room_or_a_manager_a_client_hears_why() {
    let hub = hub();
    let mut cluster = cluster_with(&hub, QUICK, &["a"], "store-max = '1MiB'\n");
    let full = get(&cluster, 0, LARGE);
    assert_eq!(full.status, 507, "{full:?}");
    assert_eq!(get(&cluster, 0, SMALL).status, 200);
    cluster.managers[0].kill();
    assert_eq!(get(&cluster, 0, SMALL).status, 200, "it is in the store");
    let away = get(&cluster, 0, &SMALL.replace("main", SECOND));
    assert_eq!((away.status, away.header("retry-after")), (503, Some("10")), "{away:?}");
    assert!(String::from_utf8_lossy(&away.body).contains("not at its manager"), "{away:?}");
    drop(hub);
}

/// Agents know a file by its key, and any program that may use an agent can put something under that.
#[test]
fn what_another_program_has_put_under_a_files_key_reaches_no_client() {
    let hub = hub();
    let id = {
        let cluster = cluster(&hub, QUICK, &["a"]);
        assert_eq!(get(&cluster, 0, LARGE).status, 200);
        let listed = cluster.at("a", &["ls"]).json();
        listed[0]["object"].as_str().expect("the file's object has an id").to_string()
    };
    let cluster = cluster(&hub, QUICK, &["a", "b", "c"]);
    let mut bytes = noise(3_000_001);
    bytes[7] ^= 1;
    let wrong = cluster.place.file("wrong", &bytes);
    let sent = cluster.at("a", &["send", &wrong, "--to", "b", "--id", &id]);
    assert_eq!(sent.status, 0, "{}", sent.stderr);
    for agent in [0, 1, 2] {
        let heard = get(&cluster, agent, LARGE);
        assert!(heard.status == 502 && heard.body.len() < 500, "{agent}: {}", heard.status);
        assert!(String::from_utf8_lossy(&heard.body).contains("remove it: polycast rm"), "{heard:?}");
    }
    let digest = "sha256:".to_string()
        + ask(&endpoint(&cluster, 0), "HEAD", LARGE, &[]).header("etag").unwrap().trim_matches('"');
    let fetched = cluster.at("c", &["fetch", &digest, "--out", &cluster.place.path("out")]);
    assert!(fetched.status != 0 && fetched.stderr.contains("has other bytes"), "{}", fetched.stderr);
    let removed = cluster.at("a", &["rm", &id, "--to", "all"]);
    assert_eq!(removed.status, 0, "{}", removed.stderr);
    get_at_all(&cluster, LARGE).iter().for_each(|heard| assert!(heard.body == noise(3_000_001)));
}

/// The layout of the cache is that of the hub's clients: blobs by their ETags, links, and names of commits.
#[test]
fn a_repository_is_pulled_into_the_clients_cache_and_to_all_stores() {
    let hub = hub();
    let cluster = cluster(&hub, QUICK, &["a", "b"]);
    let cache = cluster.place.path("cache");
    let pull = |agent: &str, more: &[&str]| {
        let given = ["hf", "pull", "org/pull", "--upstream", &hub.address, "--cache", &cache];
        cluster.at(agent, &[&given, more].concat())
    };
    let some = pull("a", &["--include", "*.json"]);
    assert_eq!(some.status, 0, "{}", some.stderr);
    assert_eq!(some.json()["files"].as_array().map(Vec::len), Some(1));
    let all = pull("a", &["--to", "all"]);
    assert_eq!(all.status, 0, "{}", all.stderr);
    let document = all.json();
    let sources: Vec<_> = document["files"].as_array().unwrap().iter().map(|file| &file["source"]).collect();
    assert_eq!(sources, ["store", "store", "origin"], "{document}");
    let folder = std::path::Path::new(&cache).join("models--org--pull");
    assert_eq!(std::fs::read_to_string(folder.join("refs/main")).unwrap(), FIRST);
    let snapshot = folder.join("snapshots").join(FIRST);
    assert!(std::fs::read(snapshot.join("model.large")).unwrap() == noise(3_000_001));
    assert_eq!(std::fs::read(snapshot.join("empty")).unwrap(), b"");
    let link = std::fs::read_link(snapshot.join("config.json")).unwrap();
    assert!(link.starts_with("../../blobs"), "{}", link.display());
    // The other agent has it now, and gives it to clients.
    let given = hub.given();
    assert!(get(&cluster, 1, LARGE).body == noise(3_000_001));
    assert_eq!(hub.given(), given);
    let none = cluster.at("a", &["hf", "pull", "org/none", "--upstream", &hub.address, "--cache", &cache]);
    assert!(none.status != 0 && none.stderr.contains("cannot pull org/none"), "{}", none.stderr);
}

/// A file that is long enough to come in parts, at this rate within 8 s.
const LONG: usize = 40_000_003;
const LONG_RATE: usize = 5_000_000;
const LONG_PATH: &str = "/org/m/resolve/main/model.large";

fn long() -> (FakeHub, Vec<u8>) {
    let bytes = noise(LONG);
    (FakeHub::start(&[(FIRST, "model.large", bytes.clone())]), bytes)
}

#[test]
fn what_is_read_is_with_all_before_the_hub_is_half_through() {
    let (hub, bytes) = long();
    let cluster = cluster(&hub, QUICK, &["a", "b", "c"]);
    hub.set(Manner::Slowly(LONG_RATE, false));
    let begun = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for agent in 0..3 {
            let (endpoint, hub, begun, bytes) = (endpoint(&cluster, agent), &hub, &begun, &bytes);
            scope.spawn(move || {
                let at = || begun.lock().unwrap().push(hub.given().1);
                let heard = ask_telling(&endpoint, "GET", LONG_PATH, &[], at);
                assert!(heard.status == 200 && heard.body == *bytes, "{}", heard.status);
            });
        }
    });
    let begun = begun.into_inner().unwrap();
    assert_eq!(begun.len(), 3);
    assert!(begun.iter().all(|at| *at < LONG as u64 / 2), "the hub had given {begun:?} bytes");
    assert_eq!(hub.given(), (1, LONG as u64), "from the hub it comes once");
    // What is left is the file, for all.
    until("the parts are gone", || {
        ["b", "c"].iter().all(|agent| cluster.at(agent, &["ls"]).json().as_array().map(Vec::len) == Some(1))
    });
}

#[test]
fn a_beginning_that_is_another_files_is_none_that_a_client_goes_on_from() {
    let (hub, bytes) = long();
    let cluster = cluster(&hub, QUICK, &["a", "b"]);
    hub.set(Manner::Slowly(2 * LONG_RATE, true));
    let mut had = Vec::new();
    for heard in get_at_all(&cluster, LONG_PATH) {
        // It has begun, and the last byte does not come.
        assert!(heard.status == 200 && heard.body.len() < LONG, "{} {}", heard.status, heard.body.len());
        had.push(heard.body.len());
    }
    assert!(had.iter().any(|len| *len > LONG / 3), "what is wrong was on its way: {had:?}");
    hub.set(Manner::Right);
    for (agent, had) in had.into_iter().enumerate() {
        let range = format!("Range: bytes={}-", had.max(1));
        let heard = ask(&endpoint(&cluster, agent), "GET", LONG_PATH, &[&range]);
        assert!(heard.status == 200 && heard.body == bytes, "{}", heard.status);
        // Bytes that it has not had it may ask for.
        let part = ask(&endpoint(&cluster, agent), "GET", LONG_PATH, &["Range: bytes=5-8"]);
        assert_eq!((part.status, &part.body[..]), (206, &bytes[5..9]));
    }
}

#[test]
fn where_the_reading_agent_dies_between_parts_clients_of_others_go_on() {
    let (hub, bytes) = long();
    let mut cluster = cluster(&hub, QUICK, &["a", "b", "c"]);
    hub.set(Manner::Slowly(LONG_RATE, false));
    let [a, b, c] = [0, 1, 2].map(|agent| endpoint(&cluster, agent));
    let first = std::thread::spawn(move || {
        std::panic::catch_unwind(|| ask(&a, "GET", LONG_PATH, &[])).map(|heard| heard.body.len())
    });
    until("it is being read", || hub.given().1 > 0);
    let (begun, at_begin) = std::sync::mpsc::channel();
    let others = [b, c].map(|endpoint| {
        let begun = begun.clone();
        let tell = move || begun.send(()).unwrap();
        std::thread::spawn(move || ask_telling(&endpoint, "GET", LONG_PATH, &[], tell))
    });
    for _ in 0..2 {
        at_begin.recv_timeout(polycast_testing::HANG).unwrap();
    }
    assert_eq!(hub.given().0, 1);
    hub.set(Manner::Right);
    cluster.agents[0].kill();
    for other in others {
        let heard = other.join().unwrap();
        assert!(heard.status == 200 && heard.body == bytes, "{} {}", heard.status, heard.body.len());
    }
    assert_eq!(hub.given().0, 2, "one after the other");
    assert!(first.join().unwrap().unwrap_or(0) < LONG);
    // Its parts are in its store, until an agent with an endpoint begins there.
    let manager = cluster.managers[0].address().to_string();
    cluster.agents[0] = Daemon::agent(&cluster.place, &manager, "a");
    assert!(cluster.at("a", &["ls"]).stdout.contains("polycast-part-"));
    cluster.agents[0].kill();
    let settings = cluster.place.path("agent.toml");
    cluster.agents[0] = Daemon::agent_with(&cluster.place, &manager, "a", &["--config", &settings]);
    until("they are gone", || !cluster.at("a", &["ls"]).stdout.contains("polycast-part-"));
}

#[test]
fn a_host_that_asks_late_gets_what_has_been_read_before() {
    let (hub, bytes) = long();
    let cluster = cluster(&hub, QUICK, &["a", "b"]);
    hub.set(Manner::Slowly(LONG_RATE, false));
    let [a, b] = [0, 1].map(|agent| endpoint(&cluster, agent));
    let first = std::thread::spawn(move || ask(&a, "GET", LONG_PATH, &[]));
    until("half of it is read", || hub.given().1 > LONG as u64 / 2);
    let mut at_begin = 0;
    let heard = ask_telling(&b, "GET", LONG_PATH, &[], || at_begin = hub.given().1);
    assert!(heard.status == 200 && heard.body == bytes, "{}", heard.status);
    assert!(at_begin < LONG as u64, "it had first bytes when all had been read");
    assert!(first.join().unwrap().body == bytes);
    assert_eq!(hub.given(), (1, LONG as u64));
}
