//! A real etcd for tests, where one is installed.

use polycast_testing::free_port;
use std::process::{Child, Command, Stdio};

/// It ends with the test.
pub(crate) struct Etcd(Child);

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts one that keeps its data in a folder; gives its address too. It may not have come up yet.
pub(crate) fn start(folder: &str) -> Option<(Etcd, String)> {
    start_with(folder, "http", &[])
}

/// The same over TLS, with files `ca.pem`, `etcd.pem` and `etcd.key` of this folder; it asks to see a certificate.
#[allow(dead_code, reason = "not each test needs it")]
pub(crate) fn start_sealed(folder: &str) -> Option<(Etcd, String)> {
    let [ca, cert, key] = ["ca.pem", "etcd.pem", "etcd.key"].map(|name| format!("{folder}/{name}"));
    let files = ["--cert-file", &cert, "--key-file", &key, "--client-cert-auth", "--trusted-ca-file", &ca];
    start_with(&format!("{folder}/data"), "https", &files)
}

fn start_with(folder: &str, scheme: &str, more: &[&str]) -> Option<(Etcd, String)> {
    if !polycast_testing::needs(&[polycast_testing::Need::Tool("etcd")]) {
        return None;
    }
    let client = format!("127.0.0.1:{}", free_port());
    let (url, peer) = (format!("{scheme}://{client}"), format!("http://127.0.0.1:{}", free_port()));
    let cluster = format!("one={peer}");
    let mut etcd = Command::new("etcd");
    etcd.args(["--name", "one", "--data-dir", folder, "--listen-client-urls", &url])
        .args(["--advertise-client-urls", &url, "--listen-peer-urls", &peer])
        .args(["--initial-advertise-peer-urls", &peer, "--initial-cluster", &cluster])
        .args(more)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    Some((Etcd(etcd.spawn().expect("etcd is there")), client))
}
