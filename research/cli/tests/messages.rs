//! Streams of messages over fixed splitters, in a lab. Skipped without root or the programs that labs need.

#[path = "../../../crates/polycast/tests/common/mod.rs"]
mod common;

use common::{command, polycast};
use polycast_testing::{Need, needs, until};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write as _};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

const PROGRAM: &str = common::PROGRAM;
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

/// A receiver that prints the messages as they come, until this is dropped.
struct Ear {
    child: Child,
    heard: Arc<Mutex<Vec<String>>>,
}

impl Ear {
    fn begin(lab: &Lab, host: &str) -> Self {
        Ear::of(lab.begin(host, &["recv", "ticks"]))
    }

    fn of(mut child: Child) -> Self {
        let (lines, heard) = (BufReader::new(child.stdout.take().unwrap()).lines(), Arc::default());
        let hears: Arc<Mutex<Vec<String>>> = Arc::clone(&heard);
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                hears.lock().unwrap_or_else(PoisonError::into_inner).push(line);
            }
        });
        Ear { child, heard }
    }

    fn heard(&self) -> Vec<String> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Ear {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn end(child: Child) -> Value {
    let ended = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stdout);
    serde_json::from_str(&said)
        .unwrap_or_else(|error| panic!("{error}: {said} {}", String::from_utf8_lossy(&ended.stderr)))
}

/// A receiver that hears a message hears all that follow, in order, over relays. That a message counts as
/// heard, as there is a receiver, may be a moment before the racks' switches have the rules and the receiver
/// its socket: until each has heard one, some are lost.
#[test]
fn messages_over_splitters_reach_all_in_order_from_the_first_on() {
    let tools = ["ip", "tc", "ovs-vswitchd", "ethtool"].into_iter().map(Need::Tool);
    if !needs(&[Need::Root, Need::Namespaces].into_iter().chain(tools).collect::<Vec<_>>()) {
        return;
    }
    let lab = Lab(format!("messages-{}", std::process::id()));
    let made = polycast(&["lab", "up", "shufflecast:2,2,hosts=1,patience-ms=60000", "--name", &lab.0]);
    assert_eq!(made.status, 0, "{}", made.stderr);
    assert_eq!(end(lab.begin("h0", &["create", "ticks", "--json"]))["created"], true);
    let mut first = lab.hear("h7", 1);
    // Of each that was sent whether there was a receiver.
    let mut counted = Vec::new();
    until("a receiver listens", || {
        counted.push(lab.send("hello\n")["unheard"] == 0);
        first.try_wait().unwrap().is_some()
    });
    let heard = end(first);
    assert_eq!((&heard["fabric"], &heard["lost"]), (&json!("shufflecast"), &json!(0)), "{heard}");
    let number = heard["messages"][0]["number"].as_u64().unwrap();
    assert!(counted[number as usize], "{number} of {counted:?}");
    assert_eq!(heard["messages"], json!([{ "sender": "h0", "number": number, "lost": 0, "text": "hello" }]));
    // Of both columns, and one in the source's own.
    let ears = ["h1", "h4", "h7"].map(|host| Ear::begin(&lab, host));
    until("all have joined", || lab.receivers() == ears.len());
    // Each has heard one of these before the others are sent.
    until("all hear", || {
        lab.send("hello\n");
        ears.iter().all(|ear| !ear.heard().is_empty())
    });
    let lines: String = (0..COUNT).map(|number| format!("message {number}\n")).collect();
    let counts = lab.send(&lines);
    assert_eq!((&counts["messages"], &counts["unheard"]), (&json!(COUNT), &json!(0)), "{counts}");
    let expected: Vec<String> = (0..COUNT).map(|number| format!("message {number}")).collect();
    for ear in &ears {
        until("all have come", || ear.heard().last() == expected.last());
        let heard = ear.heard();
        let (before, after) = heard.split_at(heard.len() - COUNT);
        assert!(before.iter().all(|line| line == "hello") && after == expected, "{heard:?}");
    }
}

/// Three hosts of a leaf-spine network with label switches send to one stream, and each hears both others in
/// their order: the leafs put the labels on.
#[test]
fn every_member_of_a_shared_stream_sends_over_labels() {
    let tools = ["ip", "tc", "ethtool"].into_iter().map(Need::Tool);
    if !needs(&[Need::Root, Need::Namespaces].into_iter().chain(tools).collect::<Vec<_>>()) {
        return;
    }
    let lab = Lab(format!("shared-{}", std::process::id()));
    let made = polycast(&["lab", "up", "orca:4", "--name", &lab.0]);
    assert_eq!(made.status, 0, "{}", made.stderr);
    let hosts = ["h0", "h5", "h12"];
    assert_eq!(end(lab.begin("h0", &["create", "talk", "--shared", "--json"]))["created"], true);
    let say = |host: &str, lines: &str| {
        let mut child = lab.begin(host, &["send", "talk", "--json"]);
        child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
        end(child)
    };
    let ears: Vec<Ear> =
        hosts.iter().map(|host| Ear::of(lab.begin(host, &["recv", "talk", "--names"]))).collect();
    let heard_of = |ear: &Ear, sender: &str| -> Vec<String> {
        let own = format!("{sender}\t");
        ear.heard().iter().filter_map(|line| line.strip_prefix(&own).map(str::to_string)).collect()
    };
    let pairs = || ears.iter().zip(hosts).flat_map(|(ear, own)| hosts.map(|host| (ear, own, host)));
    until("each hears both others", || {
        hosts.iter().for_each(|host| drop(say(host, "hello\n")));
        pairs().all(|(ear, own, sender)| own == sender || !heard_of(ear, sender).is_empty())
    });
    let lines =
        |host: &str| -> Vec<String> { (0..COUNT).map(|number| format!("{number} of {host}")).collect() };
    std::thread::scope(|scope| {
        for host in hosts {
            let (say, lines) = (&say, &lines);
            scope.spawn(move || {
                let counts = say(host, &(lines(host).join("\n") + "\n"));
                assert_eq!((&counts["messages"], &counts["unheard"]), (&json!(COUNT), &json!(0)), "{counts}");
            });
        }
    });
    for (ear, own, sender) in pairs() {
        if own == sender {
            assert!(heard_of(ear, sender).is_empty(), "{own} hears itself");
            continue;
        }
        until("all have come", || heard_of(ear, sender).last() == lines(sender).last());
        let heard: Vec<String> = heard_of(ear, sender).into_iter().filter(|line| line != "hello").collect();
        assert_eq!(heard, lines(sender), "{own} hears {sender}");
    }
    let listed = end(lab.begin("h5", &["ls", "--json"]));
    assert_eq!((&listed[0]["fabric"], &listed[0]["shared"]), (&json!("orca"), &json!(true)), "{listed}");
    assert!(listed[0]["sent"]["messages"].as_u64() > Some(COUNT as u64 - 1), "{listed}");
}
