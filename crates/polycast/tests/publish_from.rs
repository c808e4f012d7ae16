//! Versions of a topic from an address, with servers that count what they are asked and what they give, a
//! manager and agents as processes of their own.

mod common;

use common::cluster::{Cluster, socket};
use common::hub::{FIRST, FakeHub, Manner, TOKEN};
use common::origin::Origin;
use common::registry::Registry;
use common::{Ran, command, end, noise, polycast};
use serde_json::Value;
use std::fs;
use std::process::Child;

const QUICK: &str = "silence-ms = 4000\n[objects]\nwindow-ms = 50\nsettle-ms = 300\n";
const LEN: usize = 3_000_001;

/// Two hosts that wait for one version each.
fn subscribers(cluster: &Cluster, round: &str) -> Vec<(Child, String)> {
    let one = |agent: &&str| {
        let into = cluster.place.path(&format!("into-{round}-{agent}"));
        fs::create_dir(&into).unwrap();
        (cluster.begin(agent, &["subscribe", "models", "--into", &into, "--once"]), into)
    };
    ["b", "c"].iter().map(one).collect()
}

/// Publishes what is at an address, with these variables in the environment.
fn publish(cluster: &Cluster, words: &[&str], variables: &[(&str, &str)]) -> Ran {
    let socket = socket(&cluster.place, "a");
    let words = [&["publish", "models", "--from"], words, &["--socket", &socket, "--json"]].concat();
    let mut command = command(&words);
    command.envs(variables.iter().copied());
    end(command.spawn().unwrap())
}

#[track_caller]
fn done(ran: Ran) -> Value {
    assert_eq!(ran.status, 0, "{} {}", ran.stdout, ran.stderr);
    ran.json()
}

#[test]
fn what_an_address_gives_goes_to_all_subscribers_and_is_read_once() {
    let cluster = Cluster::with(QUICK, &["a", "b", "c"]);
    let origin = Origin::start(noise(LEN), Some("one"));
    let waiting = subscribers(&cluster, "1");
    let first = done(publish(&cluster, &[&origin.address], &[]));
    assert_eq!(
        (&first["version"], &first["name"], &first["bytes"]),
        (&1.into(), &"model.bin".into(), &LEN.into())
    );
    assert_eq!(first["files"][0]["filled"], true, "{first}");
    for (child, into) in waiting {
        done(end(child));
        assert!(fs::read(format!("{into}/model.bin")).unwrap() == noise(LEN), "{into}");
    }
    assert_eq!((origin.count("GET"), origin.state().given), (1, LEN as u64), "1.00 x");
    // The same state is not read again, and another one is: an address stands for what is there now.
    let same = done(publish(&cluster, &[&origin.address], &[]));
    assert_eq!((&same["version"], &same["files"][0]["filled"]), (&2.into(), &false.into()));
    assert_eq!(origin.state().given, LEN as u64);
    let mut changed = noise(LEN);
    changed[7] ^= 1;
    (origin.state().bytes, origin.state().etag) = (changed.clone(), Some("two".into()));
    done(publish(&cluster, &[&origin.address], &[]));
    let out = cluster.place.path("late");
    done(cluster.at("c", &["subscribe", "models", "--out", &out, "--once"]));
    assert!(fs::read(out).unwrap() == changed);
    assert_eq!((origin.count("GET"), origin.state().given), (2, 2 * LEN as u64));
    // A server that names no state is asked each time.
    origin.state().etag = None;
    for round in 3..5 {
        done(publish(&cluster, &[&origin.address], &[]));
        assert_eq!(origin.count("GET"), round);
    }
    // So is a file of this host.
    let path = cluster.place.file("local.bin", &noise(LEN));
    let local = done(publish(&cluster, &[&format!("file://{path}")], &[]));
    assert_eq!((&local["name"], &local["bytes"]), (&"local.bin".into(), &LEN.into()));
}

#[test]
fn a_download_that_breaks_off_goes_on_and_no_byte_is_read_twice() {
    let cluster = Cluster::with(QUICK, &["a", "b", "c"]);
    let origin = Origin::start(noise(LEN), Some("one"));
    origin.state().halves = 2;
    let waiting = subscribers(&cluster, "1");
    done(publish(&cluster, &[&origin.address], &[]));
    for (child, into) in waiting {
        done(end(child));
        assert!(fs::read(format!("{into}/model.bin")).unwrap() == noise(LEN), "{into}");
    }
    assert_eq!((origin.count("GET"), origin.count("GET range"), origin.state().given), (3, 2, LEN as u64));
    // A fetch goes on in the same way. Without a state nothing shows that the rest is the same file's.
    let fetched = |out: &str| {
        origin.state().halves = 1;
        cluster.at("b", &["fetch", &origin.address, "--out", &cluster.place.path(out)])
    };
    origin.state().etag = None;
    let refused = fetched("refused");
    assert!(refused.status != 0 && refused.stderr.contains("cannot get"), "{}", refused.stderr);
    origin.state().etag = Some("one".into());
    done(fetched("fetched"));
    assert!(fs::read(cluster.place.path("fetched")).unwrap() == noise(LEN));
    // Another file in the middle is none of its rest.
    let mut other = Origin::start(noise(LEN), Some("one"));
    other.state().halves = 1;
    let address = std::mem::take(&mut other.address);
    let child = cluster.begin("c", &["fetch", &address, "--out", &cluster.place.path("other")]);
    polycast_testing::until("half of it has come", || other.state().halves == 0);
    other.state().etag = Some("two".into());
    let ran = end(child);
    assert!(ran.status != 0 && ran.stderr.contains("has another file by now"), "{}", ran.stderr);
}

#[test]
fn headers_and_tokens_are_for_the_server_of_the_address_alone() {
    let cluster = Cluster::with(QUICK, &["a"]);
    let origin = Origin::start(noise(LEN), Some("one"));
    origin.state().is_private = true;
    let refused = publish(&cluster, &[&origin.address], &[]);
    assert!(
        refused.status == 1 && refused.stderr.contains("the server answers 401, Unauthorized"),
        "{}",
        refused.stderr
    );
    done(publish(&cluster, &[&origin.address, "--header", "X-Key: secret"], &[]));
    let lines = cluster.place.file("headers", b"X-Other: 1\n\nX-Key: secret\n");
    done(publish(&cluster, &[&origin.address, "--header", &format!("@{lines}")], &[]));
    done(publish(&cluster, &[&origin.address, "--token-env", "OWN"], &[("OWN", "secret")]));
    let fetch = |words: &[&str]| {
        let out = cluster.place.path("fetched");
        cluster.at("a", &[&["fetch", &origin.address, "--force", "--out", &out], words].concat())
    };
    let refused = fetch(&[]);
    assert!(refused.status != 0 && refused.stderr.contains("401"), "{}", refused.stderr);
    done(fetch(&["--header", "X-Key: secret"]));
    // The next server hears of none.
    let door = Origin::start(Vec::new(), None);
    door.state().elsewhere = Some(origin.address.replace("127.0.0.1", "localhost"));
    let before = origin.count("GET key");
    let ran = publish(
        &cluster,
        &[&door.address, "--header", "X-Key: secret", "--token-env", "OWN"],
        &[("OWN", "secret")],
    );
    assert!(ran.status != 0 && ran.stderr.contains("401"), "{}", ran.stderr);
    assert_eq!((door.count("GET key key"), origin.count("GET key")), (1, before));
    for (words, says) in [
        (&["--token-env", "NOT_SET"][..], "the variable NOT_SET is not set"),
        (&["--header", "x"], "has a colon"),
        (&["--header", "Range: bytes=1-"], "set by polycast itself"),
        (&["--header", "@/nonexistent"], "cannot read"),
    ] {
        let refused = publish(&cluster, &[&[origin.address.as_str()], words].concat(), &[]);
        assert!(refused.status == 1 && refused.stderr.contains(says), "{words:?}: {}", refused.stderr);
    }
    let elsewhere = publish(&cluster, &["file:///etc/hostname", "--header", "x: y"], &[]);
    assert!(elsewhere.stderr.contains("headers go with addresses of https and http"), "{}", elsewhere.stderr);
}

#[test]
fn a_repository_of_the_hub_is_published_as_a_set() {
    let cluster = Cluster::with(QUICK, &["a", "b", "c"]);
    let hub = FakeHub::start(&[
        (FIRST, "model.large", noise(LEN)),
        (FIRST, "sub/again.large", noise(LEN)),
        (FIRST, "sub/config.json", b"{\"layers\": 2}".to_vec()),
        (FIRST, "empty", Vec::new()),
    ]);
    let at_hub =
        [("HF_ENDPOINT", hub.address.as_str()), ("HF_TOKEN", "hf_right"), ("HF_HOME", "/nonexistent")];
    let waiting = subscribers(&cluster, "1");
    hub.set(Manner::Broken);
    let first = done(publish(&cluster, &["hf://org/pull"], &at_hub));
    assert_eq!((&first["name"], first["files"].as_array().unwrap().len()), (&"pull".into(), 4), "{first}");
    for (child, into) in waiting {
        done(end(child));
        for (path, bytes) in [
            ("model.large", noise(LEN)),
            ("sub/again.large", noise(LEN)),
            ("sub/config.json", b"{\"layers\": 2}".to_vec()),
            ("empty", Vec::new()),
        ] {
            assert!(fs::read(format!("{into}/pull/{path}")).unwrap() == bytes, "{into} {path}");
        }
    }
    // Equal files are one object, and what had broken off went on.
    let all = LEN + b"{\"layers\": 2}".len();
    assert_eq!(hub.given().1, all as u64);
    let again = done(publish(&cluster, &["hf://org/pull@main"], &at_hub));
    assert_eq!(again["version"], 2);
    assert_eq!(hub.state().bytes, all as u64);
    // One file of it, and one of a repository that is not for all.
    let one = done(publish(&cluster, &["hf://org/m/sub/config.json"], &at_hub));
    assert_eq!((&one["name"], &one["bytes"]), (&"config.json".into(), &13.into()));
    done(publish(&cluster, &["hf://org/private/model.large"], &at_hub));
    assert_eq!(hub.state().bytes, all as u64);
    let closed = publish(&cluster, &["hf://org/private/model.large"], &[("HF_TOKEN", "wrong"), at_hub[0]]);
    assert!(closed.status == 1 && closed.stderr.contains("Repository not found"), "{}", closed.stderr);
    assert!(!closed.stderr.contains("wrong") && TOKEN.ends_with("hf_right"));
    hub.set(Manner::Flipped);
    let flipped = FakeHub::start(&[(FIRST, "new.large", noise(LEN + 1))]);
    flipped.set(Manner::Flipped);
    let wrong = publish(&cluster, &["hf://org/pull"], &[("HF_ENDPOINT", &flipped.address)]);
    assert!(wrong.status != 0 && wrong.stderr.contains("SHA-256"), "{}", wrong.stderr);
    let fetched = cluster.place.path("fetched");
    let mut fetch = command(&["fetch", "hf://org/pull", "--out", &fetched, "--json", "--socket"]);
    fetch.arg(socket(&cluster.place, "b")).envs(at_hub);
    done(end(fetch.spawn().unwrap()));
    assert!(fs::read(format!("{fetched}/model.large")).unwrap() == noise(LEN));
    assert_eq!(hub.state().bytes, all as u64, "it came from another agent");
}

#[test]
fn an_artifact_of_a_registry_is_published_and_each_layer_is_read_once() {
    let cluster = Cluster::with(QUICK, &["a", "b", "c"]);
    let registry = Registry::start(noise(LEN));
    let waiting = subscribers(&cluster, "1");
    let address = format!("oci://{}/org/image:3", registry.address);
    let first = done(publish(&cluster, &[&address, "--files"], &[]));
    assert_eq!(first["name"], "image");
    for (child, into) in waiting {
        done(end(child));
        assert!(fs::read(format!("{into}/image/weights/model.bin")).unwrap() == noise(LEN), "{into}");
    }
    let layers = |registry: &Registry| {
        registry.given().asked.iter().filter(|line| line.starts_with("GET /store/")).count()
    };
    assert_eq!(layers(&registry), 2);
    // One layer is one file.
    let one = done(publish(&cluster, &[&format!("oci://{}/org/image:1", registry.address)], &[]));
    assert_eq!((&one["bytes"], layers(&registry)), (&LEN.into(), 2));
    let private = publish(&cluster, &[&format!("oci://{}/org/private:1", registry.address)], &[]);
    assert!(
        private.status == 1 && private.stderr.contains("does not give that to all"),
        "{}",
        private.stderr
    );
    let file = publish(&cluster, &[&format!("oci://{}/org/image:1", registry.address), "--files"], &[]);
    assert!(file.status == 1 && file.stderr.contains("--files is for directories"), "{}", file.stderr);
}

/// No agent is needed to hear that.
#[test]
fn what_is_not_spoken_is_refused_at_once() {
    for (from, says) in [
        ("gs://bucket/key", "https, http, s3, hf, oci or a file"),
        ("model.bin", "https, http, s3, hf, oci or a file"),
        ("hf://model", "write hf://ORG/NAME"),
        ("oci://org/image", "write oci://REGISTRY/REPOSITORY:TAG"),
        ("s3://b", "no name of a bucket"),
    ] {
        let refused = polycast(&["publish", "models", "--from", from, "--socket", "/nonexistent"]);
        assert!(refused.status == 1 && refused.stderr.contains(says), "{from}: {}", refused.stderr);
    }
    for words in [
        &["publish", "models"][..],
        &["publish", "models", "a", "--from", "https://a/b"],
        &["publish", "models", "--from", "https://a/b", "--follow"],
        &["publish", "models", "a", "--header", "x: y"],
    ] {
        assert_eq!(polycast(words).status, 1, "{words:?}");
    }
}
