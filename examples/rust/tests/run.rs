//! Runs the examples, as they are, beside a manager and two agents with real sockets on the loopback
//! interface.

use polycast_agent::daemon::{Agent, AgentConfig};
use polycast_api::client::AgentClient;
use polycast_manager::{Manager, ManagerConfig};
use std::fs;
use std::future::pending;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;

const SEND: &str = env!("CARGO_BIN_EXE_send");
const TOPIC: &str = env!("CARGO_BIN_EXE_topic");
const FETCH: &str = env!("CARGO_BIN_EXE_fetch");

/// Time that a program may take, on a machine that does much else.
const WITHIN: Duration = Duration::from_secs(120);
/// No multicast addresses, which other tests may use at the same time; agents that are here are not waited
/// for, and none that is late is taken for dead.
const SETTINGS: &str =
    "fabrics = ['tcp-chain']\nsilence-ms = 120000\nlease-ms = 600000\n[objects]\nsettle-ms = 300\n";

/// Two agents, a and b, and their manager; they end with the test.
struct Cluster {
    place: TempDir,
}

/// In memory, where the machine has a file system there: a disk may have other things to do.
fn place() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

impl Cluster {
    async fn start() -> Self {
        let mut settings = ManagerConfig::from_toml(SETTINGS).unwrap();
        settings.listen = ([127, 0, 0, 1], 0).into();
        let manager = Manager::bind(settings).await.unwrap();
        let address = manager.address();
        tokio::spawn(manager.serve(pending::<()>()));
        let cluster = Cluster { place: place() };
        for name in ["a", "b"] {
            let agent = Agent::start(cluster.agent(name, address)).await.unwrap();
            tokio::spawn(agent.serve(pending::<()>()));
        }
        let client = AgentClient::connect(&cluster.path("a.sock")).await.unwrap();
        let joined = async {
            while client.status().await.unwrap().peers.len() < 2 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(WITHIN, joined).await.expect("both agents join");
        cluster
    }

    fn agent(&self, name: &str, manager: SocketAddr) -> AgentConfig {
        AgentConfig {
            manager: manager.to_string(),
            name: Some(name.into()),
            interface: Some("127.0.0.1".into()),
            store: Some(self.path(name)),
            socket: Some(self.path(&format!("{name}.sock"))),
            ..AgentConfig::default()
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    fn file(&self, name: &str, bytes: &[u8]) -> String {
        fs::write(self.path(name), bytes).unwrap();
        self.path(name).to_str().unwrap().to_string()
    }

    /// An example that uses this agent.
    fn command(&self, program: &str, agent: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(arguments).env("POLYCAST_SOCKET", self.path(&format!("{agent}.sock")));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        command
    }

    /// Runs it to its good end, and gives what it has said.
    async fn run(&self, program: &str, agent: &str, arguments: &[&str]) -> String {
        let output =
            timeout(WITHIN, self.command(program, agent, arguments).output()).await.unwrap().unwrap();
        let (said, error) = (String::from_utf8(output.stdout), String::from_utf8(output.stderr));
        assert!(output.status.success(), "{arguments:?}: {said:?} {error:?}");
        said.unwrap()
    }
}

/// Returns the bytes of the file that the last word of a line names.
fn named_by(line: &str) -> Vec<u8> {
    let path = line.split_whitespace().last().unwrap();
    fs::read(path).unwrap_or_else(|error| panic!("{error}: {line}"))
}

/// The next line of a program that runs.
async fn next_line(lines: &mut Lines<BufReader<ChildStdout>>) -> String {
    timeout(WITHIN, lines.next_line()).await.unwrap().unwrap().expect("it goes on")
}

fn lines_of(child: &mut Child) -> Lines<BufReader<ChildStdout>> {
    BufReader::new(child.stdout.take().unwrap()).lines()
}

fn bytes(seed: u32) -> Vec<u8> {
    (0..1_500_017u32).map(|i| ((i * 31 + seed) >> 3) as u8).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_is_sent_and_read() {
    let cluster = Cluster::start().await;
    let file = cluster.file("model.bin", &bytes(1));
    let reading = cluster.command(SEND, "b", &["read", "7"]).spawn().unwrap();
    let said = cluster.run(SEND, "a", &["send", "7", &file, "b"]).await;
    assert!(said.contains("the path goes over tcp-chain"), "{said}");
    assert!(said.ends_with("b has all 1500017 bytes\n"), "{said}");
    let read = timeout(WITHIN, reading.wait_with_output()).await.unwrap().unwrap();
    let line = String::from_utf8(read.stdout).unwrap();
    assert!(line.starts_with("model.bin has 1500017 bytes, all verified, in "), "{line}");
    assert!(named_by(&line) == bytes(1));
    // An example that cannot do its work says so.
    let refused = cluster.command(SEND, "a", &["send", "8", "none.bin", "b"]).output().await.unwrap();
    assert!(!refused.status.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn versions_of_a_topic_reach_a_subscriber() {
    let cluster = Cluster::start().await;
    let mut subscriber = cluster.command(TOPIC, "b", &["subscribe", "weights", "2"]).spawn().unwrap();
    let mut lines = lines_of(&mut subscriber);
    assert_eq!(next_line(&mut lines).await, "subscribed");
    for version in [1, 2] {
        let file = cluster.file(&format!("step-{version}"), &bytes(version));
        let said = cluster.run(TOPIC, "a", &["publish", "weights", &version.to_string(), &file]).await;
        assert_eq!(said, format!("version {version} is committed, and b have it\n"));
        let line = next_line(&mut lines).await;
        assert!(line.starts_with(&format!("version {version} lies in ")), "{line}");
        assert!(named_by(&line) == bytes(version));
    }
    assert!(timeout(WITHIN, subscriber.wait()).await.unwrap().unwrap().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_origin_of_a_key_is_read_once() {
    let cluster = Cluster::start().await;
    let origin = cluster.file("origin", &bytes(3));
    let first = cluster.run(FETCH, "a", &["data:part-1", &origin]).await;
    assert!(first.contains("no agent has it"), "{first}");
    assert!(named_by(first.lines().last().unwrap()) == bytes(3));
    // The other host gets it from the first one: its origin does not exist.
    let second = cluster.run(FETCH, "b", &["data:part-1", "/does/not/exist"]).await;
    assert!(!second.contains("no agent has it"), "{second}");
    assert!(named_by(second.lines().last().unwrap()) == bytes(3));
}
