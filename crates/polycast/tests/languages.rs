//! The examples of other languages: each is built in a copy of its folder, and run beside a manager and two
//! agents.
//!
//! Those that download libraries run where they are named: `cargo test -p polycast --test languages --
//! --ignored`.

mod common;

use common::cluster::{Cluster, socket};
use common::{Ran, noise};
use polycast_testing::{Need, folder_in_memory, needs};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
const PROTOS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../api/proto");
const LENGTH: usize = 1_500_017;

/// A copy of an example's folder, without what was made there.
fn copied(language: &str) -> TempDir {
    let folder = folder_in_memory();
    must(
        &folder,
        &format!("cp -R '{EXAMPLES}/{language}/.' .; rm -rf generated build target polycast-example"),
    );
    folder
}

/// Runs a step of a build to its good end.
fn must(folder: &TempDir, line: &str) {
    let mut command = Command::new("sh");
    command.args(["-euc", line]).env("PROTOS", PROTOS).current_dir(folder.path()).stdin(Stdio::null());
    assert!(command.status().unwrap().success(), "{line}");
}

/// An example, and what it is run by.
struct Example<'a> {
    cluster: &'a Cluster,
    line: Vec<PathBuf>,
}

impl Example<'_> {
    fn run(&self, agent: &str, words: &[&str]) -> Ran {
        let program = Path::new(env!("CARGO_BIN_EXE_polycast")).parent().unwrap();
        let paths = [program.to_path_buf()].into_iter();
        let paths =
            std::env::join_paths(paths.chain(std::env::split_paths(&std::env::var_os("PATH").unwrap())));
        let mut command = Command::new(&self.line[0]);
        command.args(&self.line[1..]).args(words).env("PATH", paths.unwrap()).stdin(Stdio::null());
        command.env("POLYCAST_SOCKET", socket(&self.cluster.place, agent)).output().unwrap().into()
    }

    /// Tells of the cluster and sends a file; gives the object's number.
    fn sends(&self, file: &str) -> String {
        let status = self.run("a", &["status"]);
        let manager = self.cluster.managers[0].address();
        assert_eq!(status.stdout, format!("manager {manager}: a, b\n"), "{}", status.stderr);
        let sent = self.run("a", &["send", file, "b"]);
        assert_eq!(sent.status, 0, "{}", sent.stderr);
        let lines: Vec<&str> = sent.stdout.lines().collect();
        let [made, over, verified] = lines[..] else { panic!("{}", sent.stdout) };
        assert!(over.starts_with("over "), "{over}");
        assert_eq!(verified, "b: verified");
        let (object, what) = made.split_once(" is ").unwrap();
        assert_eq!(what, format!("model.bin, {LENGTH} bytes"));
        object.strip_prefix("object ").unwrap().to_string()
    }

    /// Checks the operations of a generated client.
    fn is_right(&self) {
        let bytes = noise(LENGTH);
        let file = self.cluster.place.file("model.bin", &bytes);
        let number = self.sends(&file);
        let read = self.run("b", &["read", &number]);
        let start = format!("model.bin, {LENGTH} bytes, in ");
        let path = read.stdout.trim_end().strip_prefix(&start).unwrap_or_else(|| panic!("{}", read.stderr));
        assert!(fs::read(path).unwrap() == bytes);
        let late = self.run("b", &["read", "9", "1"]);
        let why = "error: timed-out: object 9 did not come in time: no source has begun to send it\n";
        assert_eq!((late.status, late.stderr.as_str()), (1, why));
        let missing = self.run("a", &["send", "/no/such", "all"]);
        assert_eq!(missing.status, 1);
        assert!(missing.stderr.starts_with("error: path: cannot read /no/such: "), "{}", missing.stderr);
    }
}

#[test]
fn shell() {
    if !needs(&[Need::Tool("jq")]) {
        return;
    }
    let (folder, cluster) = (copied("shell"), Cluster::start(&["a", "b"]));
    let example = Example { cluster: &cluster, line: vec![folder.path().join("polycast-example.sh")] };
    let bytes = noise(LENGTH);
    let number = example.sends(&cluster.place.file("model.bin", &bytes));
    for (which, name) in [("model.bin", "by-name"), (number.as_str(), "by-number")] {
        let out = cluster.place.path(name);
        let got = example.run("b", &["get", which, &out]);
        assert_eq!(got.stdout, format!("model.bin, {LENGTH} bytes, in {out}\n"), "{}", got.stderr);
        assert!(fs::read(out).unwrap() == bytes);
    }
    for wrong in [&["get", "none", "x"][..], &["send", "/no/such", "all"], &["send"]] {
        let ran = example.run("a", wrong);
        assert!(ran.status == 1 && ran.stdout.is_empty() && !ran.stderr.is_empty(), "{}", ran.stdout);
    }
}

#[test]
#[ignore = "it downloads gRPC for Go, and takes protoc with its plug-ins for Go"]
fn go() {
    let folder = copied("go");
    must(&folder, "./generate.sh \"$PROTOS\"; go build");
    let cluster = Cluster::start(&["a", "b"]);
    Example { cluster: &cluster, line: vec![folder.path().join("polycast-example")] }.is_right();
}

#[test]
#[ignore = "it takes gRPC for C++: apt install cmake pkg-config libgrpc++-dev protobuf-compiler-grpc"]
fn cpp() {
    let folder = copied("cpp");
    must(&folder, "cmake -S . -B build -DPOLYCAST_PROTOS=\"$PROTOS\"; cmake --build build");
    let cluster = Cluster::start(&["a", "b"]);
    Example { cluster: &cluster, line: vec![folder.path().join("build/polycast-example")] }.is_right();
}

#[test]
#[ignore = "it downloads gRPC for Java, and takes Maven"]
fn java() {
    let folder = copied("java");
    must(&folder, "mvn -q -B package -Dpolycast.protos=\"$PROTOS\"");
    let jar = folder.path().join("target/polycast-example.jar");
    let cluster = Cluster::start(&["a", "b"]);
    Example { cluster: &cluster, line: vec!["java".into(), "-jar".into(), jar] }.is_right();
}
