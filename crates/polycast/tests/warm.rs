//! Compile caches from one host to another: of the same key, and never of another one.

mod common;

use common::Place;
use common::cluster::{Cluster, Daemon};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

const QUICK: &str = "silence-ms = 4000\n[objects]\nsettle-ms = 300\n";
/// A Python that has these packages.
const PYTHON: &str = "#!/bin/sh\necho python cpython-311\necho torch 2.15.0\necho vllm 0.33.0\n";

fn program(place: &Place, name: &str, text: &str) -> String {
    let path = place.file(name, text.as_bytes());
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

#[test]
fn a_cache_is_installed_where_its_key_is_the_same() {
    let place = Place::new();
    let manager = place.file("manager.toml", QUICK.as_bytes());
    let managers = vec![Daemon::manager("127.0.0.1:0", &["--config", &manager])];
    let cluster = Cluster::of_with(place, managers, &["a", "b", "c"], &[]);
    let python = program(&cluster.place, "python", PYTHON);
    let cache = cluster.place.path("cache");
    std::fs::create_dir_all(Path::new(&cache).join("sub")).unwrap();
    std::fs::write(Path::new(&cache).join("sub/kernel.so"), b"compiled").unwrap();
    std::fs::write(Path::new(&cache).join("index"), b"1").unwrap();
    let same = ["--python", &python, "--part", "gpu=H200", "--part", "driver=580", "--model", "org/m"];
    let warm = |agent: &str, what: &str, path: &str, more: &[&str]| {
        cluster.at(agent, &[&["warm", what, "vllm", "--path", path], &same[..], more].concat())
    };
    let pushed = warm("a", "push", &cache, &[]);
    assert_eq!(pushed.status, 0, "{}", pushed.stderr);
    assert_eq!(
        (&pushed.json()["key"]["vllm"], &pushed.json()["key"]["gpu"]),
        (&"0.33.0".into(), &"H200".into())
    );
    // Of another key nothing comes, and nothing is there.
    let target = cluster.place.path("new/warm");
    for other in
        [["--part", "driver=581"], ["--part", "torch=2.15.1"], ["--model", "org/other"], ["--key", "x"]]
    {
        let none = match other[0] {
            "--model" => {
                let given = ["warm", "pull", "vllm", "--path", &target, "--timeout", "1s"];
                cluster.at("b", &[&given, &same[..6], &other].concat())
            }
            _ => warm("b", "pull", &target, &[&["--timeout", "1s"][..], &other].concat()),
        };
        assert_eq!(none.status, 3, "{other:?}: {}", none.stderr);
        assert!(!Path::new(&target).exists(), "{other:?}");
    }
    let pulled = warm("b", "pull", &target, &[]);
    assert_eq!(pulled.status, 0, "{}", pulled.stderr);
    assert_eq!(std::fs::read(Path::new(&target).join("sub/kernel.so")).unwrap(), b"compiled");
    // What is there stays, unless it is to be replaced.
    std::fs::write(Path::new(&cache).join("index"), b"2").unwrap();
    assert_eq!(warm("a", "push", &cache, &[]).json()["version"], 2);
    let there = warm("b", "pull", &target, &[]);
    assert!(there.status != 0 && there.stderr.contains("--replace"), "{}", there.stderr);
    assert_eq!(std::fs::read(Path::new(&target).join("index")).unwrap(), b"1");
    assert_eq!(warm("b", "pull", &target, &["--replace"]).status, 0);
    assert_eq!(std::fs::read(Path::new(&target).join("index")).unwrap(), b"2");
    // A part that cannot be told is named.
    let unknown = cluster.at("c", &["warm", "pull", "triton", "--path", &target, "--python", &python]);
    assert!(unknown.status == 1 && unknown.stderr.contains("triton ("), "{}", unknown.stderr);
}
