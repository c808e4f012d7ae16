//! A real etcd for tests, where one is installed.

use polycast_testing::free_port;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

/// It ends with the test.
pub(crate) struct Etcd(Child);

impl Etcd {
    /// The number of its process.
    #[allow(dead_code, reason = "not each test needs it")]
    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts one that keeps its data in a folder, which is best in memory: it waits for the disk at each change.
/// Gives its address too; it may not have come up yet.
#[allow(dead_code, reason = "not each test needs it")]
pub(crate) fn start(folder: &str) -> Option<(Etcd, String)> {
    start_with(folder, "http", &[])
}

/// The same with a database that may have so many bytes.
#[allow(dead_code, reason = "not each test needs it")]
pub(crate) fn start_small(folder: &str, quota_bytes: u64) -> Option<(Etcd, String)> {
    start_with(folder, "http", &["--quota-backend-bytes", &quota_bytes.to_string()])
}

/// The same over TLS, with files `ca.pem`, `etcd.pem` and `etcd.key` of this folder; it asks to see a
/// certificate.
#[allow(dead_code, reason = "not each test needs it")]
pub(crate) fn start_sealed(folder: &str, quota_bytes: u64) -> Option<(Etcd, String)> {
    let [ca, cert, key] = ["ca.pem", "etcd.pem", "etcd.key"].map(|name| format!("{folder}/{name}"));
    let files = ["--cert-file", &cert, "--key-file", &key, "--client-cert-auth", "--trusted-ca-file", &ca];
    let quota = ["--quota-backend-bytes", &quota_bytes.to_string()];
    start_with(&format!("{folder}/data"), "https", &[&files[..], &quota].concat())
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

/// Takes the leader's key away, as if the lease that it lives by had ended.
#[allow(dead_code, reason = "not each test needs it")]
pub(crate) fn forget_leader(client: &str) {
    // The name of `/polycast/leader` as etcd takes it in JSON.
    let answer = call(client, "kv/deleterange", r#"{"key":"L3BvbHljYXN0L2xlYWRlcg=="}"#);
    assert!(answer.contains(r#""deleted":"1""#), "{answer}");
}

/// Another program writes keys of its own, from this one on, until there is no room; gives the next one.
/// Where managers have made room, it is called again.
#[allow(dead_code, reason = "not each test needs it")]
pub(crate) fn fill(client: &str, from: usize) -> usize {
    // Both are base64: keys of three bytes of which the first is 0, and a value of zeros.
    let value = "A".repeat(32 << 10);
    for key in from..1 << 12 {
        let [high, low] = [key >> 6, key & 63].map(|six| BASE64[six] as char);
        let answer = call(client, "kv/put", &format!(r#"{{"key":"AA{high}{low}","value":"{value}"}}"#));
        if answer.contains("database space exceeded") {
            return key;
        }
        assert!(answer.contains("revision"), "{answer}");
    }
    panic!("there is always room");
}

/// The same program removes its keys again.
#[allow(dead_code, reason = "not each test needs it")]
pub(crate) fn clear(client: &str) {
    let answer = call(client, "kv/deleterange", r#"{"key":"AAAA","range_end":"AQ=="}"#);
    assert!(answer.contains("deleted"), "{answer}");
}

const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Asks etcd something in JSON; gives its answer with what HTTP says before it.
fn call(client: &str, what: &str, body: &str) -> String {
    let head = format!("POST /v3/{what} HTTP/1.1\r\nHost: etcd\r\nConnection: close");
    let request = format!("{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    let (mut stream, mut answer) = (TcpStream::connect(client).unwrap(), String::new());
    stream.write_all(request.as_bytes()).unwrap();
    stream.read_to_string(&mut answer).unwrap();
    answer
}
