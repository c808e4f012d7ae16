//! `polycast datacast`: a file of one host goes to others because a third one asks, with a stand-in for ssh;
//! and in a lab over the trees of Datacast, which is skipped without root or the programs that it needs.

#[path = "../../../crates/polycast/tests/common/mod.rs"]
mod common;

use common::cluster::{Cluster, socket};
use common::{Place, Ran, noise, polycast};
use polycast_testing::{Need, needs};
use std::fs;
use std::os::unix::fs::PermissionsExt;

const PROGRAM: &str = common::PROGRAM;

fn script(place: &Place, text: &str) -> String {
    let path = place.file("ssh", text.as_bytes());
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// A stand-in for ssh: each host is a folder, which is its user's home, and has the agent of its name.
fn shell(cluster: &Cluster, hosts: &[&str]) -> String {
    let place = &cluster.place;
    for host in hosts {
        fs::create_dir_all(place.path(&format!("home/{host}"))).unwrap();
    }
    let text = format!(
        "#!/bin/sh\nwhile [ \"$1\" = -o ]; do shift 2; done\n\
         cd {}/\"$1\" 2> /dev/null || {{ echo \"ssh: connect to host $1 port 22: No route to host\" >&2; exit 255; }}\n\
         echo 'Welcome to '\"$1\"\nexport POLYCAST_SOCKET={}\nHOME=\"$PWD\" exec sh -c \"$2\"\n",
        place.path("home"),
        socket(place, "\"$1\""),
    );
    script(place, &text)
}

fn why(ran: &Ran) -> String {
    assert_ne!(ran.status, 0, "{}", ran.stdout);
    ran.json()["error"].as_str().unwrap_or_default().to_string()
}

#[test]
fn a_file_of_another_host_comes_to_those_that_are_named() {
    let cluster = Cluster::start(&["a", "b", "c"]);
    let ssh = shell(&cluster, &["b", "c"]);
    let bytes = noise(3_000_000);
    fs::write(cluster.place.path("home/b/it's a model.bin"), &bytes).unwrap();
    for host in ["a", "c"] {
        fs::create_dir_all(cluster.place.path(&format!("home/{host}"))).unwrap();
    }
    let out = cluster.place.path("out");
    fs::create_dir(&out).unwrap();
    let ask = |more: &[&str]| {
        let words = ["datacast", "--fabric", "ip-multicast", "-e", &ssh, "--program", PROGRAM];
        cluster.at("a", &[&words[..], more].concat())
    };
    // One of the receivers is where it is asked for, and needs no shell.
    let ran = ask(&["--source", "b:it's a model.bin", "--to", "c", "--out", "."]);
    assert_eq!(ran.status, 0, "{}{}", ran.stdout, ran.stderr);
    let report = ran.json();
    assert_eq!((&report["source"], &report["fabric"]), (&"b".into(), &"ip-multicast".into()), "{report}");
    assert_eq!(report["receivers"][0]["verified"], true, "{report}");
    assert!(fs::read(cluster.place.path("home/c/it's a model.bin")).unwrap() == bytes);
    let ran = ask(&["--source", "b:it's a model.bin", "--to", "a", "--out", &out]);
    assert_eq!(ran.status, 0, "{}{}", ran.stdout, ran.stderr);
    assert!(fs::read(format!("{out}/it's a model.bin")).unwrap() == bytes);
    // Where tests run this is a file: that is said for the host, and the other one has a copy.
    let ran = ask(&["--source", "b:it's a model.bin", "--to", "a,c", "--out", "Cargo.toml"]);
    assert_eq!(ran.status, 1, "{}{}", ran.stdout, ran.stderr);
    let report = ran.json();
    let of = |name: &str| {
        report["receivers"]
            .as_array()
            .unwrap()
            .iter()
            .find(|receiver| receiver["name"] == name)
            .unwrap()
            .clone()
    };
    let (a, c) = (of("a"), of("c"));
    assert!(a["verified"] == true && a["path"].is_null() && a["kind"].is_string(), "{report}");
    assert!(a["error"].as_str().unwrap().starts_with("a: "), "{report}");
    assert!(c["path"].as_str().unwrap().ends_with("it's a model.bin") && c["error"].is_null(), "{report}");
    for (words, expected) in [
        (&["--source", "b:nothing", "--to", "c"][..], "b: "),
        (&["--source", "down:x", "--to", "c"], "down: ssh: connect to host down port 22: No route to host"),
        (&["--source", "b", "--to", "c"], "'b' does not say which file of which host"),
        (&["--source=-oProxyCommand=true:x", "--to", "c"], "'-oProxyCommand=true' is not the name of a host"),
    ] {
        let why = why(&ask(words));
        assert!(why.contains(expected) && !why.contains('\n'), "{words:?}: {why}");
    }
}

/// Over trees, from a machine that is neither source nor receiver.
#[test]
fn it_goes_over_the_trees_of_a_lab() {
    let tools = ["ip", "tc"].into_iter().map(Need::Tool);
    let needed: Vec<Need> = [Need::Root, Need::Namespaces].into_iter().chain(tools).collect();
    if !needs(&needed) {
        return;
    }
    struct Lab(String);
    impl Drop for Lab {
        fn drop(&mut self) {
            polycast(&["lab", "down", &self.0]);
        }
    }
    let lab = Lab(format!("datacast-{}", std::process::id()));
    let made = polycast(&["lab", "up", "datacast:bcube:2,2", "--name", &lab.0]);
    assert_eq!(made.status, 0, "{}", made.stderr);
    let place = Place::new();
    let text = format!(
        "#!/bin/sh\nwhile [ \"$1\" = -o ]; do shift 2; done\nmkdir -p {0}/$1\n\
         exec {PROGRAM} lab exec {1} $1 -- sh -c \"cd {0}/$1; $2\"\n",
        place.path("home"),
        lab.0
    );
    let ssh = script(&place, &text);
    let bytes = noise(2_000_000);
    let file = place.file("model.bin", &bytes);
    // Here is no agent: all is done by shells.
    let from = format!("h0:{file}");
    let words = ["datacast", "--source", &from, "--to", "h2,h3", "--or-fail", "--out", "."];
    let ran = polycast(&[&words[..], &["-e", &ssh, "--program", PROGRAM, "--json"]].concat());
    assert_eq!(ran.status, 0, "{}{}", ran.stdout, ran.stderr);
    let report = ran.json();
    assert!(report["fabric"].as_str().is_some_and(|fabric| fabric.starts_with("datacast")), "{report}");
    for host in ["h2", "h3"] {
        assert!(fs::read(place.path(&format!("home/{host}/model.bin"))).unwrap() == bytes);
    }
}
