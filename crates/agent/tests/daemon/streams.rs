//! Streams of messages between agents, with a manager, over the loopback's multicast.

use super::world::{AgentTask, World, manager, started, stopped, until};
use polycast_api::agent::Message;
use polycast_api::client::{MessageReceiver, Received, Session};
use polycast_api::error::Kind;
use polycast_net::udp::Beacon;
use polycast_testing::{HANG, is_ipv6, multicast_group, own_address};
use polycast_types::{AppId, Duration as Span};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

/// A process that hears a stream.
struct Ear {
    receiver: MessageReceiver,
    waiting: VecDeque<Message>,
}

impl Ear {
    /// Joins, and waits until the agent has said from where the stream comes.
    async fn join(session: &Session, name: &str) -> Self {
        let mut receiver = session.receive_messages(name, None).await.unwrap();
        let first = tokio::time::timeout(HANG, receiver.next()).await;
        let Ok(Ok(Some(Received::Joined(joined)))) = first else { panic!("not joined first: {first:?}") };
        assert_eq!((joined.fabric.as_str(), joined.source.as_str()), ("ip-multicast", "a"));
        Ear { receiver, waiting: VecDeque::new() }
    }

    /// The next message, within reason.
    async fn next(&mut self) -> Message {
        while self.waiting.is_empty() {
            let next = tokio::time::timeout(HANG, self.receiver.next()).await;
            match next.expect("something comes").unwrap().expect("the stream goes on") {
                Received::Messages(messages) => self.waiting.extend(messages),
                Received::Joined(_) => {}
            }
        }
        self.waiting.pop_front().unwrap()
    }

    /// The number of the next message with this text; what comes before is passed over.
    async fn await_text(&mut self, text: &str) -> u64 {
        loop {
            let message = self.next().await;
            if message.payload == text.as_bytes() {
                return message.number;
            }
        }
    }
}

async fn send(session: &Session, name: &str, messages: &[&str]) -> (u64, u64) {
    let mut sender = session.send_messages(name);
    let bytes = messages.iter().map(|message| message.as_bytes().to_vec()).collect();
    sender.send(bytes).await;
    let sent = sender.finish().await.unwrap();
    (sent.messages, sent.unheard)
}

/// Waits until these receivers hear what the source sends: messages that it takes before reach no receiver,
/// or not all.
async fn heard<const N: usize>(session: &Session, name: &str, ears: [&mut Ear; N]) {
    until("a receiver listens", async || send(session, name, &["?"]).await.1 == 0).await;
    for ear in ears {
        let begun = Instant::now();
        while ear.waiting.is_empty() {
            assert!(begun.elapsed() < HANG, "it hears nothing");
            send(session, name, &["?"]).await;
            let next = tokio::time::timeout(Duration::from_millis(20), ear.receiver.next()).await;
            if let Ok(next) = next
                && let Received::Messages(messages) = next.unwrap().expect("the stream goes on")
            {
                ear.waiting.extend(messages);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_reach_all_who_have_joined_and_nobody_else() {
    let (manager, _world, [a, b, c]) = started("", ["a", "b", "c"]).await;
    let source = a.session(1).await;
    source.create_stream("ticks", false).await.unwrap();
    assert_eq!(send(&source, "ticks", &["alone"]).await, (1, 1), "no receiver listens yet");
    let (first, second) = (b.session(1).await, c.session(1).await);
    let mut one = Ear::join(&first, "ticks").await;
    heard(&source, "ticks", [&mut one]).await;
    let mut other = Ear::join(&second, "ticks").await;
    let long = "x".repeat(200_000);
    assert_eq!(send(&source, "ticks", &["hello", &long, ""]).await, (3, 0));
    let mut got = Vec::new();
    while got.last().is_none_or(|message: &Message| !message.payload.is_empty()) {
        got.push(one.next().await);
    }
    let real: Vec<&Message> = got.iter().filter(|message| message.payload != b"?").collect();
    assert_eq!(real.iter().map(|message| message.payload.len()).collect::<Vec<_>>(), [5, 200_000, 0]);
    assert!(got.windows(2).all(|pair| pair[1].number == pair[0].number + 1 && pair[1].lost == 0));
    // Two programs on one host hear the same.
    let third = c.session(2).await;
    let mut beside = Ear::join(&third, "ticks").await;
    heard(&source, "ticks", [&mut other, &mut beside]).await;
    send(&source, "ticks", &["both"]).await;
    assert_eq!(other.await_text("both").await, beside.await_text("both").await);
    let listed = source_view(&c, "ticks").await;
    assert_eq!(listed.0, ["b", "c"]);
    assert!(listed.1.is_some_and(|lost| lost == 0));

    // Programs leave with their calls, and the last one of a host for the host.
    drop(one);
    until("b has left", async || source_view(&c, "ticks").await.0 == ["c"]).await;
    drop(beside);
    send(&source, "ticks", &["both"]).await;
    other.await_text("both").await;
    second.leave_stream("ticks").await.unwrap();
    let error = ended(&mut other.receiver).await;
    assert_eq!(error.kind(), Some(Kind::Cancelled));
    until("no receiver listens", async || send(&source, "ticks", &["?"]).await.1 == 1).await;
    // A receiver comes again while the source sends on, and hears it end; so does the process that sends.
    let mut again = Ear::join(&first, "ticks").await;
    heard(&source, "ticks", [&mut again]).await;
    let mut sender = source.send_messages("ticks");
    assert!(sender.send(vec![b"last".to_vec()]).await);
    again.await_text("last").await;
    source.end_stream("ticks").await.unwrap();
    sender.send(vec![b"too late".to_vec()]).await;
    assert_eq!(sender.finish().await.unwrap_err().to_string(), "the stream has ended");
    let error = ended(&mut again.receiver).await;
    assert_eq!(error.to_string(), "the stream 'ticks' has ended");
    assert_eq!(b.client().await.streams().await.unwrap(), []);
    stopped([a, b, c], manager).await;
}

/// The receivers of a stream, and how many messages an agent has lost.
async fn source_view(agent: &AgentTask, name: &str) -> (Vec<String>, Option<u64>) {
    let streams = agent.client().await.streams().await.unwrap();
    let stream = streams.into_iter().find(|stream| stream.name == name).unwrap();
    (stream.receivers, stream.heard.map(|heard| heard.lost))
}

/// The error by which a call ends.
async fn ended(receiver: &mut MessageReceiver) -> polycast_api::client::ClientError {
    loop {
        match tokio::time::timeout(HANG, receiver.next()).await.expect("an end") {
            Ok(Some(_)) => {}
            Ok(None) => panic!("it ends with a word"),
            Err(error) => return error,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn mistakes_with_streams_get_one_sentence() {
    let (manager, _world, [a, b]) = started("silence-ms = 4000", ["a", "b"]).await;
    let (source, receiver) = (a.session(1).await, b.session(1).await);
    let error = source.create_stream("a/b", false).await.unwrap_err();
    assert_eq!(error.kind(), Some(Kind::Invalid), "{error}");
    source.create_stream("ticks", false).await.unwrap();
    for session in [&source, &receiver] {
        assert_eq!(session.create_stream("ticks", false).await.unwrap_err().kind(), Some(Kind::StreamTaken));
    }
    let error = source.receive_messages("ticks", None).await.unwrap_err();
    assert_eq!(error.to_string(), "the stream 'ticks' is sent by this agent, which cannot join it");
    let error = receiver.receive_messages("ticks", Some(Span::from_secs(60))).await.unwrap_err();
    assert_eq!(error.kind(), Some(Kind::Invalid), "{error}");
    let send = async |session: &Session, name: &str, message: Vec<u8>| {
        let mut sender = session.send_messages(name);
        sender.send(vec![message]).await;
        sender.finish().await
    };
    let error = send(&receiver, "ticks", vec![1]).await.unwrap_err();
    assert_eq!(error.kind(), Some(Kind::StreamUnknown), "{error}");
    let error = send(&source, "ticks", vec![0; 300_000]).await.unwrap_err();
    assert!(error.to_string().contains("longer than 262144"), "{error}");
    assert_eq!(send(&source, "ticks", vec![2]).await.unwrap().messages, 1, "the stream is as it was");
    // Another application on the same host has no say.
    let stranger = a.client().await.register(AppId([7; 16]), 1).await.unwrap();
    assert_eq!(stranger.end_stream("ticks").await.unwrap_err().kind(), Some(Kind::StreamUnknown));
    assert_eq!(send(&stranger, "ticks", vec![1]).await.unwrap_err().kind(), Some(Kind::StreamUnknown));
    assert_eq!(receiver.leave_stream("ticks").await.unwrap_err().kind(), Some(Kind::StreamUnknown));
    // A manager that has just begun waits for streams that agents may still name.
    let mut nowhere = receiver.receive_messages("nowhere", None).await.unwrap();
    let error = ended(&mut nowhere).await;
    assert_eq!(error.to_string(), "there is no stream 'nowhere': its source has to create it first");
    source.unregister().await.unwrap();
    assert_eq!(source.create_stream("x", false).await.unwrap_err().kind(), Some(Kind::NotRegistered));
    stopped([a, b], manager).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_network_without_multicast_refuses_streams() {
    let (manager, _world, [a, b]) = started("fabrics = ['tcp-chain']", ["a", "b"]).await;
    let (source, session) = (a.session(1).await, b.session(1).await);
    source.create_stream("ticks", false).await.unwrap();
    let mut receiver = session.receive_messages("ticks", None).await.unwrap();
    let error = ended(&mut receiver).await;
    assert_eq!(error.kind(), Some(Kind::Denied));
    assert!(error.to_string().contains("as a stream needs"), "{error}");
    stopped([a, b], manager).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_outlive_the_manager() {
    const SETTINGS: &str = "heartbeat-ms = 100";
    let first = manager(0, SETTINGS).await;
    let address = first.address;
    let world = World::new(address);
    let [a, b, c] = world.agents(["a", "b", "c"]).await;
    let (source, session) = (a.session(1).await, b.session(1).await);
    source.create_stream("ticks", false).await.unwrap();
    let mut receiver = Ear::join(&session, "ticks").await;
    heard(&source, "ticks", [&mut receiver]).await;
    first.task.stop().await;
    // Messages need no manager.
    assert_eq!(send(&source, "ticks", &["without"]).await, (1, 0));
    receiver.await_text("without").await;
    let second = manager(address.port(), SETTINGS).await;
    // The new one learns of the stream, its path, and its receivers: another one can join.
    let late = c.session(1).await;
    until("agents have come back", async || c.client().await.status().await.unwrap().peers.len() == 3).await;
    let mut other = Ear::join(&late, "ticks").await;
    until("all are known", async || source_view(&c, "ticks").await.0 == ["b", "c"]).await;
    heard(&source, "ticks", [&mut other]).await;
    send(&source, "ticks", &["again"]).await;
    receiver.await_text("again").await;
    other.await_text("again").await;
    // The source dies: those who hear it are told.
    a.task.stop().await;
    for receiver in [&mut receiver, &mut other] {
        assert_eq!(ended(&mut receiver.receiver).await.to_string(), "the stream 'ticks' has ended");
    }
    stopped([b, c], second).await;
}

/// A host that has recorded a stream, and takes its source's address, plays it to an agent that joins later.
#[tokio::test(flavor = "multi_thread")]
async fn who_joins_late_hears_nothing_that_was_recorded() {
    let group = SocketAddr::from((multicast_group([239, 255, 75, 4]), 17_421));
    let settings = format!(
        "[ip-multicast]\npool = '{}/{}'\nport = {}",
        group.ip(),
        if is_ipv6() { 128 } else { 32 },
        group.port()
    );
    let (manager, _world, [a, b, c]) = started(&settings, ["a", "b", "c"]).await;
    let source = a.session(1).await;
    source.create_stream("ticks", false).await.unwrap();
    let (first, second) = (b.session(1).await, c.session(1).await);
    let mut one = Ear::join(&first, "ticks").await;
    heard(&source, "ticks", [&mut one]).await;
    let host = Beacon::open(own_address(), group).unwrap();
    send(&source, "ticks", &["old", "older", "oldest"]).await;
    let last = one.await_text("oldest").await;
    let mut buffer = vec![0; 65_536];
    let mut recorded: Vec<Vec<u8>> = Vec::new();
    polycast_testing::until("all are recorded", || {
        recorded
            .extend(std::iter::from_fn(|| host.receive(&mut buffer).map(|(datagram, _)| datagram.to_vec())));
        recorded.len() >= 3
    });

    let mut other = Ear::join(&second, "ticks").await;
    let attacker = UdpSocket::bind((own_address(), 0)).unwrap();
    let late = || async {
        let streams = c.client().await.streams().await.unwrap();
        streams[0].heard.map_or(0, |heard| heard.late)
    };
    until("both listen", async || source_view(&c, "ticks").await.0 == ["b", "c"]).await;
    until("what is played comes, and is not taken", async || {
        for datagram in &recorded {
            attacker.send_to(datagram, group).unwrap();
        }
        late().await >= 3
    })
    .await;
    send(&source, "ticks", &["new"]).await;
    let message = other.next().await;
    assert!(message.number > last, "{message:?} was sent before, up to {last}");
    assert_eq!((&message.payload[..], message.number), (&b"new"[..], one.await_text("new").await));
    stopped([a, b, c], manager).await;
}

/// Sends until each has heard both others.
async fn until_all_hear(sessions: [&Session; 3], ears: &mut [Ear; 3]) {
    let mut seen = [BTreeSet::new(), BTreeSet::new(), BTreeSet::new()];
    let begun = Instant::now();
    while seen.iter().any(|seen| seen.len() < 2) {
        assert!(begun.elapsed() < HANG, "they do not hear each other: {seen:?}");
        for session in sessions {
            send(session, "talk", &["?"]).await;
        }
        for (ear, seen) in ears.iter_mut().zip(&mut seen) {
            while let Ok(next) = tokio::time::timeout(Duration::from_millis(20), ear.receiver.next()).await {
                if let Received::Messages(messages) = next.unwrap().expect("the stream goes on") {
                    seen.extend(messages.into_iter().map(|message| message.sender));
                }
            }
        }
    }
}

/// Every member sends: each hears the others in their own order, and not itself.
#[tokio::test(flavor = "multi_thread")]
async fn every_member_of_a_shared_stream_sends() {
    let (manager, _world, [a, b, c]) = started("", ["a", "b", "c"]).await;
    let [first, second, third] = [a.session(1).await, b.session(1).await, c.session(1).await];
    // Neither a stream that is not there nor one of a single source takes what others send.
    first.create_stream("alone", false).await.unwrap();
    for name in ["alone", "nowhere"] {
        let mut sender = second.send_messages(name);
        sender.send(vec![b"x".to_vec()]).await;
        let error = sender.finish().await.unwrap_err();
        assert_eq!(error.kind(), Some(Kind::StreamUnknown), "{error}");
        assert!(error.to_string().contains("there is no shared one of this name"), "{error}");
    }
    first.create_stream("talk", true).await.unwrap();
    let sessions = [&first, &second, &third];
    let mut ears =
        [Ear::join(&second, "talk").await, Ear::join(&third, "talk").await, Ear::join(&first, "talk").await];
    let hosts = ["b", "c", "a"];
    until_all_hear(sessions, &mut ears).await;
    let long = "x".repeat(100_000);
    for (session, name) in sessions.into_iter().zip(["a", "b", "c"]) {
        let texts: Vec<String> = (0..20).map(|number| format!("{name} {number} {long}")).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        assert_eq!(send(session, "talk", &texts).await, (20, 0), "{name}");
    }
    for (ear, own) in ears.iter_mut().zip(hosts) {
        let mut numbers: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        let mut last: BTreeMap<String, u64> = BTreeMap::new();
        while numbers.values().map(Vec::len).sum::<usize>() < 40 {
            let message = ear.next().await;
            if let Some(last) = last.insert(message.sender.clone(), message.number) {
                assert_eq!(message.number, last + 1 + message.lost, "{own} hears {}", message.sender);
            }
            let text = String::from_utf8(message.payload).unwrap();
            let mut words = text.split(' ');
            if words.next() != Some(message.sender.as_str()) {
                assert_eq!(text, "?");
                continue;
            }
            numbers.entry(message.sender).or_default().push(words.next().unwrap().parse().unwrap());
            assert_eq!(words.next(), Some(long.as_str()));
        }
        let others: Vec<&str> = ["a", "b", "c"].into_iter().filter(|name| *name != own).collect();
        assert_eq!(numbers.keys().map(String::as_str).collect::<Vec<_>>(), others, "{own}");
        let all: Vec<u64> = (0..20).collect();
        assert!(numbers.values().all(|heard| *heard == all), "{own}: {numbers:?}");
    }
    // One that leaves is heard no more, and the others go on.
    let [_b, mut other, _a] = ears;
    second.leave_stream("talk").await.unwrap();
    until("b has left", async || source_view(&c, "talk").await.0 == ["a", "c"]).await;
    send(&first, "talk", &["on"]).await;
    other.await_text("on").await;
    let listed = c.client().await.streams().await.unwrap();
    let talk = listed.iter().find(|stream| stream.name == "talk").unwrap();
    assert!(talk.shared && talk.sent.is_some() && talk.heard.is_some(), "{talk:?}");
    first.end_stream("talk").await.unwrap();
    assert_eq!(ended(&mut other.receiver).await.to_string(), "the stream 'talk' has ended");
    stopped([a, b, c], manager).await;
}
