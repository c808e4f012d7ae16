//! Streams of messages over fixed splitters, in a lab. Skipped without root or the programs that labs need.

mod common;

use common::{command, polycast};
use polycast_testing::{Need, needs};
use serde_json::{Value, json};
use std::io::Write as _;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

const PROGRAM: &str = env!("CARGO_BIN_EXE_polycast");
const COUNT: usize = 200;

/// A lab that is up until this is dropped.
struct Lab(String);

impl Lab {
    fn begin(&self, host: &str, arguments: &[&str]) -> Child {
        let inside = [&["lab", "exec", &self.0, host, "--", PROGRAM, "stream"], arguments].concat();
        let piped = || Stdio::piped();
        command(&inside).stdin(piped()).stdout(piped()).stderr(piped()).spawn().unwrap()
    }

    fn hear(&self, host: &str, count: usize) -> Child {
        self.begin(host, &["recv", "ticks", "--count", &count.to_string(), "--json"])
    }

    /// Sends these lines; gives what the agent says of them.
    fn send(&self, lines: &str) -> Value {
        let mut child = self.begin("h0", &["send", "ticks", "--json"]);
        child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
        end(child)
    }

    fn receivers(&self) -> usize {
        let listed = end(self.begin("h0", &["ls", "--json"]));
        assert!(["", "shufflecast"].contains(&listed[0]["fabric"].as_str().unwrap()), "{listed}");
        listed[0]["receivers"].as_array().unwrap().len()
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        polycast(&["lab", "down", &self.0]);
    }
}

fn end(child: Child) -> Value {
    let ended = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stdout);
    serde_json::from_str(&said)
        .unwrap_or_else(|error| panic!("{error}: {said} {}", String::from_utf8_lossy(&ended.stderr)))
}

/// A message for which there is a receiver arrives: the source hears of its path when the racks' switches have the rules, and the receiver opens its
/// socket at about that time. On a busy machine that may be a moment later, and then it is the next one. All that
/// follow reach all who have joined, in order, over relays.
#[test]
fn messages_over_splitters_reach_all_in_order_from_the_first_on() {
    let tools = ["ip", "tc", "ovs-vswitchd", "ethtool"].into_iter().map(Need::Tool);
    if !needs(&[Need::Root, Need::Namespaces].into_iter().chain(tools).collect::<Vec<_>>()) {
        return;
    }
    let lab = Lab(format!("messages-{}", std::process::id()));
    let made = polycast(&["lab", "up", "shufflecast:2,2,hosts=1", "--name", &lab.0]);
    assert_eq!(made.status, 0, "{}", made.stderr);
    assert_eq!(end(lab.begin("h0", &["create", "ticks", "--json"]))["created"], true);
    let mut first = lab.hear("h7", 1);
    let begun = Instant::now();
    // How many were sent that none could hear, and how many in all.
    let (mut unheard, mut sent) = (0, 0);
    while first.try_wait().unwrap().is_none() {
        assert!(begun.elapsed() < Duration::from_secs(60), "no receiver listens");
        if lab.send("hello\n")["unheard"] != 0 {
            unheard = sent + 1;
        } else {
            std::thread::sleep(Duration::from_secs(1));
        }
        sent += 1;
    }
    let heard = end(first);
    assert_eq!((&heard["fabric"], &heard["lost"]), (&json!("shufflecast"), &json!(0)), "{heard}");
    let number = heard["messages"][0]["number"].as_u64().unwrap();
    assert!((unheard..sent.min(unheard + 2)).contains(&number), "{number} of {unheard} to {sent}");
    assert_eq!(heard["messages"], json!([{ "number": number, "lost": 0, "text": "hello" }]));
    // Of both columns, and one in the source's own.
    let hosts = ["h1", "h4", "h7"];
    let ears: Vec<Child> = hosts.iter().map(|host| lab.hear(host, COUNT)).collect();
    while lab.receivers() != hosts.len() {
        assert!(begun.elapsed() < Duration::from_secs(120), "not all have joined");
    }
    // The list has them a moment before their switches do: they are told when they may count on messages, and so are we by a pause.
    std::thread::sleep(Duration::from_secs(2));
    let lines: String = (0..COUNT).map(|number| format!("message {number}\n")).collect();
    let counts = lab.send(&lines);
    assert_eq!((&counts["messages"], &counts["unheard"]), (&json!(COUNT), &json!(0)), "{counts}");
    for (host, ear) in hosts.iter().zip(ears) {
        let heard = end(ear);
        assert_eq!((&heard["fabric"], &heard["lost"]), (&json!("shufflecast"), &json!(0)), "{host}");
        let messages = heard["messages"].as_array().unwrap();
        let texts: Vec<&str> = messages.iter().map(|message| message["text"].as_str().unwrap()).collect();
        let expected: Vec<String> = (0..COUNT).map(|number| format!("message {number}")).collect();
        assert_eq!(texts, expected, "{host}");
    }
}
