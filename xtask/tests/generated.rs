//! The code in `crates/*/generated` is what the protos give. It lies in the repository so that a build of Polycast needs no generator.
//!
//! After a change of a proto, write the code anew:
//!
//! ```text
//! POLYCAST_GOLDEN=write cargo test -p xtask --test generated
//! ```
//!
//! This fails where it wrote, so that it never counts as a test.

use std::fs;
use std::path::Path;

/// Generates the code of one crate's protos anew, and compares each file with the one in the crate.
fn holds(folder: &str, protos: &[&str], with_server: bool) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates").join(folder);
    let fresh = tempfile::tempdir().unwrap();
    let descriptors = protox::compile(protos, [folder.join("proto")]).unwrap();
    tonic_prost_build::configure()
        .build_server(with_server)
        .out_dir(fresh.path())
        .compile_fds(descriptors)
        .unwrap();
    let names = |folder: &Path| {
        let mut names: Vec<_> = fs::read_dir(folder).unwrap().map(|item| item.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let kept = folder.join("generated");
    let is_writing = std::env::var("POLYCAST_GOLDEN").is_ok_and(|value| value == "write");
    let mut written = Vec::new();
    for name in names(fresh.path()) {
        let text = fs::read_to_string(fresh.path().join(&name)).unwrap();
        let path = kept.join(&name);
        if fs::read_to_string(&path).is_ok_and(|is| is == text) {
            continue;
        }
        assert!(
            is_writing,
            "{} is not what its proto gives: see the head of xtask/tests/generated.rs",
            path.display()
        );
        fs::write(&path, text).unwrap();
        written.push(path);
    }
    assert_eq!(names(&kept), names(fresh.path()), "{} has a file that no proto gives", kept.display());
    assert!(written.is_empty(), "wrote {written:?}: run the test again");
}

#[test]
fn services_are_what_their_protos_say() {
    holds("api", &["polycast/agent/v1/agent.proto", "polycast/manager/v1/manager.proto"], true);
}

#[test]
fn the_client_of_etcd_is_what_its_proto_says() {
    holds("manager", &["etcd.proto"], false);
}
