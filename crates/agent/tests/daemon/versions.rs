//! Versions of an object, and parts of it, with the real engine over the loopback interface.

use super::world::{
    AgentTask, LONG, MAKING, ManagerTask, Patient, World, events, manager, serve, stopped, until,
};
use polycast_agent::daemon::{Agent, Engine};
use polycast_agent::transfer::{Received, ReceiverProgress, ReceiverSpec, Report, SourceSpec, TransferError};
use polycast_api::agent::Object;
use polycast_api::agent::send_event::Event;
use polycast_api::client::{Receivers, SendOptions, Session, Versions, Wait, Watching};
use polycast_api::error::Kind;
use polycast_net::object::ObjectSource;
use polycast_testing::HANG;
use polycast_types::{AppId, DataId, Duration as Span};
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Bytes of a hash group.
const GROUP: usize = 256 << 10;

pub(crate) fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u8
    };
    (0..len).map(|_| next()).collect()
}

pub(crate) async fn cluster<const N: usize>(
    settings: &str,
    names: [&str; N],
) -> (ManagerTask, World, Vec<AgentTask>) {
    let manager = manager(0, settings).await;
    let world = World::new(manager.address);
    let mut agents = Vec::new();
    for name in names {
        agents.push(world.real_agent(world.config(name)).await);
    }
    let client = agents[0].client().await;
    until("all agents have joined", async || client.status().await.unwrap().peers.len() == N).await;
    (manager, world, agents)
}

/// The next committed version of a topic.
pub(crate) async fn committed(versions: &mut Versions) -> (u64, Object) {
    loop {
        let event = tokio::time::timeout(HANG, versions.next()).await.unwrap().unwrap().unwrap();
        if let (true, Some(object)) = (event.committed, event.object) {
            return (event.version, object);
        }
    }
}

/// Publishes these bytes as the next version; gives what was sent and spared.
async fn publish(world: &World, source: &Session, number: u64, bytes: &[u8]) -> (u64, u64) {
    let path = world.file(&format!("weights-{number}"), bytes);
    source.add_as(DataId(number), &path, "weights").await.unwrap();
    let published = source.publish("policy", None, DataId(number), Some(LONG)).await.unwrap();
    assert!(published.missing.is_empty() && published.version == number, "{published:?}");
    (published.sent_bytes, published.spared_bytes)
}

/// A subscription that was answered is one that the manager knows of, however busy its machine is.
#[tokio::test(flavor = "multi_thread")]
async fn a_version_published_after_a_subscription_is_for_it() {
    let settings = "[objects]\nsettle-ms = 100\n[ip-multicast]\npool = '239.255.76.0/24'\nport = 17431";
    let (manager, world, agents) = cluster(settings, ["a", "b"]).await;
    let (source, b) = (agents[0].session(1).await, agents[1].session(1).await);
    let path = world.file("weights", &noise(1_000));
    source.add_as(DataId(1), &path, "weights").await.unwrap();
    let mut subscribed = Vec::new();
    for topic in 0..10 {
        let topic = format!("topic-{topic}");
        subscribed.push(b.subscribe(&topic).await.unwrap());
        let published = source.publish(&topic, None, DataId(1), Some(LONG)).await.unwrap();
        assert_eq!(published.have, ["b"], "{topic}: {published:?}");
    }
    drop(subscribed);
    stopped(agents, manager).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_version_only_what_has_changed_is_sent() {
    const GROUPS: usize = 200;
    let _none_is_made = MAKING.read().await;
    let settings = "[objects]\nsettle-ms = 100\n[ip-multicast]\npool = '239.255.68.0/24'\nport = 17413";
    let (manager, world, agents) = cluster(settings, ["a", "b", "c"]).await;
    let source = agents[0].session(1).await;
    let (b, c) = (agents[1].session(1).await, agents[2].session(1).await);
    let mut subscribed = [b.subscribe("policy").await.unwrap(), c.subscribe("policy").await.unwrap()];
    let mut bytes = noise(GROUPS * GROUP - 1_000);
    let len = bytes.len() as u64;
    let (mut files, mut reader) = (Vec::new(), None);
    for number in 1..=5 {
        // The first byte of the object stays: of a group here and one there another one changes.
        for group in [20 * number, 31 * number] {
            bytes[group * GROUP + number] ^= 0x55;
        }
        let (sent, spared) = publish(&world, &source, number as u64, &bytes).await;
        // Little, and what was lost of it.
        let wanted = if number == 1 { len..=len * 2 } else { 1..=len / 10 };
        assert!(wanted.contains(&sent), "version {number}: {sent} bytes");
        let kept = 2 * (len - 2 * GROUP as u64);
        assert!(number == 1 || (kept - kept / 500..2 * len).contains(&spared), "version {number}: {spared}");
        for (at, versions) in subscribed.iter_mut().enumerate() {
            let (version, object) = committed(versions).await;
            assert_eq!(version, number as u64);
            assert!(std::fs::read(&object.path).unwrap() == bytes, "version {number} at {at}");
            if at == 0 {
                let file = File::open(&object.path).unwrap();
                files.push(file.metadata().unwrap().ino());
                // A process goes on reading the second version.
                reader = if number == 2 { Some((file, bytes.clone())) } else { reader };
            }
        }
        tokio::time::sleep(Duration::from_millis(700)).await;
    }
    assert_eq!(files[3], files[0], "the fourth version lies in the pages of the first");
    assert!(!files[..4].contains(&files[4]), "pages under a reader: {files:?}");
    let (file, before) = reader.unwrap();
    let mut seen = vec![0; before.len()];
    file.read_exact_at(&mut seen, 0).unwrap();
    assert!(seen == before, "the second version was written over");
    stopped(agents, manager).await;
}

/// Publishes an object of this length, whose bytes are all its number, as the next version of a topic; the
/// receiver has it then. It has rested when the next one comes.
async fn follows(world: &World, source: &Session, versions: &mut Versions, next: (&str, u64, usize)) {
    let (topic, number, len) = next;
    let path = world.folder.path().join(format!("object-{number}"));
    if !path.exists() {
        world.file(&format!("object-{number}"), &vec![number as u8; len]);
    }
    source.add(DataId(number), &path).await.unwrap();
    let published = source.publish(topic, None, DataId(number), Some(LONG)).await.unwrap();
    assert!(published.missing.is_empty(), "{published:?}");
    while committed(versions).await.0 != published.version {}
    tokio::time::sleep(Duration::from_millis(700)).await;
}

/// The last version of a topic keeps its pages while another topic, which began with it, moves on.
#[tokio::test(flavor = "multi_thread")]
async fn the_last_version_of_a_topic_stays_where_another_topic_moves_on() {
    let _none_is_made = MAKING.read().await;
    let settings = "[objects]\nsettle-ms = 100\n[ip-multicast]\npool = '239.255.69.32/28'\nport = 17421";
    let (manager, world, agents) = cluster(settings, ["a", "b"]).await;
    let (a, b) = (agents[0].session(1).await, agents[1].session(1).await);
    let mut stable = b.subscribe("stable").await.unwrap();
    let mut latest = b.subscribe("latest").await.unwrap();
    follows(&world, &a, &mut stable, ("stable", 1, 5_000)).await;
    follows(&world, &a, &mut latest, ("latest", 1, 5_000)).await;
    // The last one is as long as the first.
    for (number, len) in [(2, 5_002), (3, 5_003), (4, 5_000)] {
        follows(&world, &a, &mut latest, ("latest", number, len)).await;
    }
    let kept = b.read(DataId(1), Wait::WhileComing(Some(Span::ZERO))).await.unwrap();
    assert!(std::fs::read(&kept.path).unwrap() == [1; 5_000], "the pages of the first one have other bytes");
    // Once that topic has moved on too, none needs it.
    for (number, len) in [(5, 5_005), (6, 5_006), (7, 5_000)] {
        follows(&world, &a, &mut stable, ("stable", number, len)).await;
    }
    b.read(DataId(1), Wait::WhileComing(Some(Span::ZERO))).await.unwrap_err();
    stopped(agents, manager).await;
}

/// A version that comes back as the last one is as good as a new one.
#[tokio::test(flavor = "multi_thread")]
async fn a_version_that_has_come_back_stays() {
    let _none_is_made = MAKING.read().await;
    let settings = "[objects]\nsettle-ms = 100\n[ip-multicast]\npool = '239.255.69.48/28'\nport = 17422";
    let (manager, world, agents) = cluster(settings, ["a", "b"]).await;
    let (a, b) = (agents[0].session(1).await, agents[1].session(1).await);
    let mut versions = b.subscribe("policy").await.unwrap();
    for (number, len) in [(1, 5_000), (2, 5_002), (3, 5_003), (1, 5_000), (4, 5_000)] {
        follows(&world, &a, &mut versions, ("policy", number, len)).await;
    }
    let kept = b.read(DataId(1), Wait::WhileComing(Some(Span::ZERO))).await.unwrap();
    assert!(std::fs::read(&kept.path).unwrap() == [1; 5_000], "the pages of the first one have other bytes");
    stopped(agents, manager).await;
}

/// The transports, with a source that reads what comes behind some of the object, and what is before it, very
/// slowly until a test has seen enough. It does not stop: what is to be hashed is read in turns with what is
/// to be sent.
struct Trickles {
    patient: Patient,
    from: u64,
    is_open: Arc<AtomicBool>,
}

/// Object that the slow source reads.
struct Trickle {
    object: Arc<dyn ObjectSource>,
    from: u64,
    is_open: Arc<AtomicBool>,
}

impl ObjectSource for Trickle {
    fn len(&self) -> u64 {
        self.object.len()
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> std::io::Result<()> {
        let begun = Instant::now();
        while offset >= self.from
            && begun.elapsed() < Duration::from_millis(100)
            && !self.is_open.load(Ordering::Relaxed)
        {
            std::thread::sleep(Duration::from_millis(5));
        }
        self.object.read_exact_at(buffer, offset)
    }
}

impl Engine for Trickles {
    fn deliver(
        &self,
        mut spec: SourceSpec,
        on_event: &mut dyn FnMut(&Report),
    ) -> Result<Report, TransferError> {
        let (object, is_open) = (spec.source, Arc::clone(&self.is_open));
        spec.source = Arc::new(Trickle { object, from: self.from, is_open });
        self.patient.deliver(spec, on_event)
    }

    fn receive(
        &self,
        spec: ReceiverSpec,
        on_event: &mut dyn FnMut(&ReceiverProgress),
    ) -> Result<Received, TransferError> {
        self.patient.receive(spec, on_event)
    }
}

/// Reads events until all is there. What they name is named once, and is right when it is.
async fn named_once(all: &mut Watching, bytes: &[u8]) -> polycast_types::RangeSet {
    let mut named = polycast_types::RangeSet::new();
    let mut open: Option<File> = None;
    loop {
        let event = all.next().await.unwrap().unwrap();
        let file = open.get_or_insert_with(|| File::open(&event.path).unwrap());
        for range in &event.verified {
            let span = range.offset..range.offset + range.length;
            assert_eq!(named.insert(span.clone()), range.length, "named twice");
            let mut seen = vec![0; range.length as usize];
            file.read_exact_at(&mut seen, range.offset).unwrap();
            assert!(seen == bytes[span.start as usize..span.end as usize], "other bytes at {span:?}");
        }
        if event.complete {
            return named;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn parts_can_be_used_before_the_last_byte_is_there() {
    const LEN: usize = 24_000_000;
    const FIRST: u64 = 4_000_000;
    let settings = "[ip-multicast]\npool = '239.255.69.0/28'\nport = 17414";
    let manager = manager(0, settings).await;
    let world = World::new(manager.address);
    let engine =
        Arc::new(Trickles { patient: Patient::default(), from: FIRST + 1_500_000, is_open: Arc::default() });
    let mut agents = Vec::new();
    for name in ["a", "b"] {
        agents.push(serve(Agent::start_with(world.config(name), Arc::clone(&engine) as _).await.unwrap()));
    }
    let client = agents[0].client().await;
    until("both have joined", async || client.status().await.unwrap().peers.len() == 2).await;
    let (source, b) = (agents[0].session(1).await, agents[1].session(1).await);
    let bytes = noise(LEN);
    source.add(DataId(1), &world.file("model", &bytes)).await.unwrap();
    let timeout = Some(LONG);
    let wanted = FIRST + 5..FIRST + 700_000;
    let mut first = b.watch(DataId(1), std::slice::from_ref(&wanted), timeout).await.unwrap();
    let mut all = b.watch(DataId(1), &[], timeout).await.unwrap();
    let mut outside = b.watch(DataId(1), &[0..10, LEN as u64 - 1..LEN as u64 + 1], timeout).await.unwrap();
    let empty = 7..7;
    assert_eq!(
        b.watch(DataId(1), std::slice::from_ref(&empty), None).await.unwrap_err().kind(),
        Some(Kind::Invalid)
    );
    let too_far = SendOptions { first_byte: LEN as u64, ..SendOptions::default() };
    let refused = source.send(DataId(1), &Receivers::All, &too_far).await.unwrap_err();
    assert_eq!(refused.kind(), Some(Kind::Invalid), "{refused}");
    let options = SendOptions { first_byte: FIRST, ..SendOptions::default() };
    let sending = source.send(DataId(1), &Receivers::All, &options).await.unwrap();
    let sent = tokio::spawn(events(sending));
    let mut told = 0;
    loop {
        let event = first.next().await.unwrap().unwrap();
        let file = File::open(&event.path).unwrap();
        for range in &event.verified {
            let mut seen = vec![0; range.length as usize];
            file.read_exact_at(&mut seen, range.offset).unwrap();
            assert!(seen == bytes[range.offset as usize..][..seen.len()], "other bytes than the object's");
            told += range.length;
        }
        if event.complete {
            break;
        }
    }
    let here = agents[1].client().await.list(Some(AppId::default())).await.unwrap();
    let verified = here[0].verified_bytes;
    assert_eq!(told, 700_000 - 5);
    assert!(verified < LEN as u64 / 2, "{verified} bytes are here already");
    engine.is_open.store(true, Ordering::Relaxed);
    let error = outside.next().await.unwrap_err();
    assert_eq!(error.kind(), Some(Kind::Invalid), "{error}");
    let named = named_once(&mut all, &bytes).await;
    assert!(named.covers(0..LEN as u64));
    let (told, error) = sent.await.unwrap();
    let Some(Event::Finished(report)) = told.last() else { panic!("{told:?} {error:?}") };
    assert!(report.is_complete(), "{report:?}");
    stopped(agents, manager).await;
}

/// Texts from a user of the socket are limited before the manager receives them, and a publisher that goes
/// releases its topic.
#[tokio::test(flavor = "multi_thread")]
async fn long_names_and_publishers_that_go_are_in_the_way_of_no_one() {
    let settings = "[objects]\nsettle-ms = 100\n[ip-multicast]\npool = '239.255.69.16/28'\nport = 17420";
    let (manager, world, agents) = cluster(settings, ["a"]).await;
    let a = agents[0].session(1).await;
    a.add(DataId(1), &world.file("one", b"one")).await.unwrap();
    a.add(DataId(2), &world.file("two", b"two")).await.unwrap();
    let long = "x".repeat(4 << 20).split_off(1 << 10);
    let within = |what| tokio::time::timeout(HANG, what);
    let invalid =
        |error: polycast_api::client::ClientError| assert_eq!(error.kind(), Some(Kind::Invalid), "{error}");
    invalid(within(a.publish(&long, None, DataId(1), None)).await.unwrap().unwrap_err());
    invalid(a.subscribe(&long).await.map(|_| ()).unwrap_err());
    invalid(a.create_stream(&long, false).await.unwrap_err());
    let receivers = Receivers::Named(vec![long]);
    invalid(a.send(DataId(1), &receivers, &SendOptions::default()).await.map(|_| ()).unwrap_err());
    let client = agents[0].client().await;
    assert!(client.status().await.unwrap().manager_connected);
    assert_eq!(a.publish("last", Some(u64::MAX), DataId(1), None).await.unwrap().version, u64::MAX);
    let after = a.publish("last", None, DataId(2), None).await.unwrap_err();
    assert!(after.to_string().contains("the last that there can be"), "{after}");
    manager.task.stop().await;
    until("it has gone", async || !client.status().await.unwrap().manager_connected).await;
    let waits = tokio::time::timeout(Duration::from_millis(300), a.publish("t", None, DataId(1), None));
    waits.await.expect_err("there is no manager to commit it");
    let again = async || {
        let tried = tokio::time::timeout(Duration::from_millis(300), a.publish("t", None, DataId(2), None));
        tried.await.is_err()
    };
    until("another one waits for the manager too", again).await;
    for agent in agents {
        agent.task.stop().await;
    }
}
