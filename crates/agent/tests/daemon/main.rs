//! The agent's service: over real sockets, with a manager, mostly with an engine that needs no network.

mod assembled;
mod classes;
mod deltas;
mod ending;
mod eviction;
mod fills;
mod impostors;
mod languages;
mod leader;
mod memory;
mod real;
mod renamed;
mod sets;
mod streams;
mod versions;
mod world;

use polycast_agent::daemon::{Agent, AgentError};
use polycast_api::PROTOCOL_VERSION;
use polycast_api::agent::send_event::Event;
use polycast_api::agent::{ObjectState, PathForm};
use polycast_api::client::{AgentClient, ClientError, Receivers, SendOptions, Wait};
use polycast_api::error::Kind;
use polycast_api::manager::StatusRequest;
use polycast_api::manager::manager_client::ManagerClient;
use polycast_testing::{HANG, own_address};
use polycast_types::{AppId, DataId, Duration as Span, Handle};
use std::io::Write as _;
use std::sync::atomic::Ordering;
use std::time::Duration;
use world::{SOON, World, answer, call, events, manager, serve, started, stopped, until};

fn named(names: &[&str]) -> Receivers {
    Receivers::Named(names.iter().map(|name| (*name).to_string()).collect())
}

const NOW: Wait = Wait::WhileComing(Some(Span::ZERO));

async fn leases(manager: std::net::SocketAddr) -> usize {
    let mut client = ManagerClient::connect(format!("http://{manager}")).await.unwrap();
    let request = StatusRequest { protocol_version: PROTOCOL_VERSION };
    client.status(request).await.unwrap().into_inner().leases.len()
}

/// Connections that say nothing, or what is not allowed, keep no invitation out.
#[tokio::test(flavor = "multi_thread")]
async fn strangers_keep_no_invitation_out() {
    let (manager, world, [a, b]) = started("", ["a", "b"]).await;
    let mut strangers: Vec<_> = (0..200).map(|_| std::net::TcpStream::connect(b.control).unwrap()).collect();
    let long = [&65_533u32.to_be_bytes()[..], &[3, 0xff, 0xfa], &[b'x'; 65_530]].concat();
    let _ = strangers[199].write_all(&long);
    let _ = strangers[198].write_all(&[0, 0x20, 0, 0, 18]);
    let source = a.session(1).await;
    source.add(DataId(1), &world.file("x", b"0123456789")).await.unwrap();
    let sending = source.send(DataId(1), &Receivers::All, &SendOptions::default()).await.unwrap();
    let (events, error) = events(sending).await;
    let Some(Event::Finished(report)) = events.last() else { panic!("{events:?} {error:?}") };
    assert!(report.is_complete(), "{report:?}");
    drop(strangers);
    stopped([a, b], manager).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_goes_from_one_host_to_the_others() {
    let (manager, world, [a, b, c]) = started("", ["a", "b", "c"]).await;
    let source = a.session(1).await;
    assert_eq!(source.agent_name(), "a");
    let path = world.file("model.bin", b"0123456789");
    let added = source.add(DataId(42), &path).await.unwrap();
    assert_eq!((added.length, added.name.as_str()), (10, "model.bin"));
    assert_eq!(added.state(), ObjectState::Added);
    // One reader waits before anything is sent.
    let reader = b.session(7).await;
    let waiting = tokio::spawn(async move { reader.read(DataId(42), Wait::UntilReady(None)).await });

    let sending = source.send(DataId(42), &Receivers::All, &SendOptions::default()).await.unwrap();
    let (events, error) = events(sending).await;
    assert!(error.is_none(), "{error:?}");
    assert!(matches!(events[0], Event::Waiting(_)), "{events:?}");
    let Event::Granted(granted) = &events[1] else { panic!("{events:?}") };
    assert_eq!(
        (granted.fabric.as_str(), &granted.receivers[..]),
        ("ip-multicast", &["b".into(), "c".into()][..])
    );
    let Some(Event::Finished(report)) = events.last() else { panic!("{events:?}") };
    assert!(report.is_complete());

    let read = waiting.await.unwrap().unwrap();
    assert_eq!(std::fs::read(&read.path).unwrap(), b"0123456789");
    assert_eq!((read.name.as_str(), read.form(), read.length), ("model.bin", PathForm::Bytes, 10));
    assert!(read.path.starts_with(b.store.to_str().unwrap()));
    let other = c.session(1).await.read(DataId(42), SOON).await.unwrap();
    assert_eq!(other.root, read.root);
    // At the source it lies where it was.
    assert_eq!(source.read(DataId(42), NOW).await.unwrap().path, path.to_str().unwrap());
    until("the path is released", async || leases(manager.address).await == 0).await;

    let listed = c.client().await.list(None).await.unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].state(), ObjectState::Received);
    let reader = c.session(2).await;
    reader.delete(DataId(42)).await.unwrap();
    assert!(!std::path::Path::new(&other.path).exists());
    assert_eq!(reader.delete(DataId(42)).await.unwrap_err().to_string(), "there is no object 42 here");
    source.delete(DataId(42)).await.unwrap();
    assert!(path.exists(), "an added file is the user's");
    stopped([a, b, c], manager).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mistakes_get_one_sentence() {
    // It has waited for agents that may still come when it has been there for this long.
    let (manager, world, [a, b]) = started("silence-ms = 4000", ["a", "b"]).await;
    let session = a.session(1).await;
    let path = world.file("x", b"x");
    session.add(DataId(1), &path).await.unwrap();
    // A process that does not know whether it was heard may say it again.
    session.add(DataId(1), &path).await.unwrap();
    let error = session.add(DataId(1), &world.file("other", b"x")).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.to_string()),
        (Some(Kind::ObjectTaken), "there is an object 1 already".into())
    );
    let error = session.add(DataId(2), "/no/such".as_ref()).await.unwrap_err();
    assert_eq!(error.kind(), Some(Kind::Path));
    assert!(error.to_string().starts_with("cannot read /no/such: No such file"), "{error}");
    let error = session.add(DataId(2), "/dev/null".as_ref()).await.unwrap_err().to_string();
    assert_eq!(error, "cannot read /dev/null: it is neither a file nor a directory");

    let fails =
        async |receivers: Receivers| match session.send(DataId(1), &receivers, &SendOptions::default()).await
        {
            Ok(sending) => events(sending).await.1.unwrap(),
            Err(error) => error,
        };
    let error = fails(named(&["b", "absent"])).await;
    assert_eq!(
        (error.kind(), error.to_string()),
        (Some(Kind::ReceiverUnknown), "there is no agent 'absent'".into())
    );
    assert_eq!(fails(named(&["b", "b"])).await.to_string(), "the receiver 'b' is named twice");
    assert_eq!(fails(named(&["a"])).await.to_string(), "'a' is the source and cannot be a receiver");
    assert_eq!(fails(named(&[])).await.to_string(), "no receiver is named");
    let error = session.send(DataId(9), &Receivers::All, &SendOptions::default()).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.to_string()),
        (Some(Kind::ObjectUnknown), "there is no object 9 here".into())
    );
    let error = session.read(DataId(9), NOW).await.unwrap_err();
    assert_eq!(error.kind(), Some(Kind::ObjectUnknown));

    session.unregister().await.unwrap();
    let error = session.read(DataId(1), NOW).await.unwrap_err();
    assert_eq!(error.to_string(), "process 1 of this application has not registered");
    // The object is still there for the next process.
    assert!(a.session(2).await.read(DataId(1), NOW).await.is_ok());

    let error = AgentClient::connect("/no/such.sock".as_ref()).await.unwrap_err().to_string();
    assert!(error.starts_with("no agent listens on /no/such.sock: No such file"), "{error}");
    stopped([a, b], manager).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_file_is_not_sent() {
    let (manager, world, [a, b]) = started("", ["a", "b"]).await;
    let session = a.session(1).await;
    let path = world.file("x", b"x");
    session.add(DataId(1), &path).await.unwrap();
    std::fs::write(&path, b"longer").unwrap();
    let sending = session.send(DataId(1), &Receivers::All, &SendOptions::default()).await.unwrap();
    let error = events(sending).await.1.unwrap().to_string();
    assert!(error.ends_with("has changed since it was added"), "{error}");
    stopped([a, b], manager).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_share_a_transfer() {
    let (manager, world, [a, b]) = started("", ["a", "b"]).await;
    let (first, second) = (a.session(1).await, a.session(2).await);
    first.add(DataId(1), &world.file("x", b"x")).await.unwrap();
    world.engine.hold.store(true, Ordering::SeqCst);
    let one = first.send(DataId(1), &Receivers::All, &SendOptions::default()).await.unwrap();
    until("it runs", async || world.engine.deliveries.load(Ordering::SeqCst) == 1).await;
    let two = second.send(DataId(1), &Receivers::All, &SendOptions::default()).await.unwrap();
    let error = first.delete(DataId(1)).await.unwrap_err();
    assert_eq!(error.to_string(), "object 1 is being sent");
    // The first one loses interest: the transfer goes on for the second.
    drop(one);
    let status = a.client().await.status().await.unwrap();
    assert_eq!((status.transfers.len(), status.registered_processes), (1, 2));
    assert!(status.manager_connected);
    let peer = b.client().await;
    until("it is being received", async || {
        let listed = peer.list(None).await.unwrap();
        listed.first().is_some_and(|object| object.state() == ObjectState::Receiving)
    })
    .await;
    world.engine.hold.store(false, Ordering::SeqCst);
    let (events, error) = events(two).await;
    assert!(error.is_none(), "{error:?}");
    assert!(matches!(events.last(), Some(Event::Finished(report)) if report.is_complete()));
    assert_eq!(world.engine.deliveries.load(Ordering::SeqCst), 1);
    stopped([a, b], manager).await;
}

/// A source goes on over another path while a receiver still puts on its disk what has come over the first
/// one, however long that takes.
#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_calls_again_waits_for_what_it_has_sent() {
    let (manager, world, [a, b]) = started("", ["a", "b"]).await;
    let session = a.session(1).await;
    session.add(DataId(1), &world.file("x", b"x")).await.unwrap();
    world.engine.hold.store(true, Ordering::SeqCst);
    let sending = session.send(DataId(1), &Receivers::All, &SendOptions::default()).await.unwrap();
    let peer = b.client().await;
    until("it is being received", async || {
        let listed = peer.list(None).await.unwrap();
        listed.first().is_some_and(|object| object.state() == ObjectState::Receiving)
    })
    .await;
    let id = peer.list(None).await.unwrap()[0].id().unwrap();
    let at = b.control;
    let mut again =
        tokio::task::spawn_blocking(move || call(at, (id, 1), Handle(99)).unwrap()).await.unwrap();
    let (said, mut again) = tokio::task::spawn_blocking(move || (answer(&mut again), again)).await.unwrap();
    world.engine.hold.store(false, Ordering::SeqCst);
    assert_eq!(said, None, "it will answer");
    let answered = tokio::task::spawn_blocking(move || {
        loop {
            if let Some(answered) = answer(&mut again) {
                return answered;
            }
        }
    });
    // The roots of this world are none, by which it could be confirmed.
    let refused = answered.await.unwrap().unwrap_err();
    assert!(refused.contains("already"), "it is here by then: {refused}");
    let (_, error) = events(sending).await;
    assert!(error.is_none(), "{error:?}");
    stopped([a, b], manager).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transfer_that_nobody_watches_is_cancelled_unless_detached() {
    let (manager, world, [a, b]) = started("", ["a", "b"]).await;
    let session = a.session(1).await;
    session.add(DataId(1), &world.file("x", b"x")).await.unwrap();
    session.add(DataId(2), &world.file("y", b"y")).await.unwrap();
    world.engine.hold.store(true, Ordering::SeqCst);
    let watched = session.send(DataId(1), &Receivers::All, &SendOptions::default()).await.unwrap();
    // It has its path before it runs, and one that ends in between never does.
    until("it runs", async || world.engine.deliveries.load(Ordering::SeqCst) == 1).await;
    drop(watched);
    until("its path is released", async || leases(manager.address).await == 0).await;
    let detached = SendOptions { detached: true, ..SendOptions::default() };
    drop(session.send(DataId(2), &Receivers::All, &detached).await.unwrap());
    until("the other runs", async || world.engine.deliveries.load(Ordering::SeqCst) == 2).await;
    world.engine.hold.store(false, Ordering::SeqCst);
    assert!(b.session(1).await.read(DataId(2), SOON).await.is_ok());
    stopped([a, b], manager).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_has_the_object_says_so() {
    let (manager, world, [a, b, c]) = started("", ["a", "b", "c"]).await;
    let session = a.session(1).await;
    session.add(DataId(1), &world.file("x", b"x")).await.unwrap();
    b.session(1).await.add(DataId(1), &world.file("y", b"other")).await.unwrap();
    let sending = session.send(DataId(1), &Receivers::All, &SendOptions::default()).await.unwrap();
    let (events, _) = events(sending).await;
    let Some(Event::Finished(report)) = events.last() else { panic!("{events:?}") };
    let state: Vec<_> =
        report.receivers.iter().map(|r| (r.name.as_str(), r.verified, r.error.as_str())).collect();
    assert_eq!(state, [("b", false, "there is an object 1 already"), ("c", true, "")]);
    stopped([a, b, c], manager).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_learn_why_an_object_did_not_come() {
    let (manager, world, [a, b]) = started("", ["a", "b"]).await;
    let session = a.session(1).await;
    session.add(DataId(1), &world.file("x", b"x")).await.unwrap();
    world.engine.hold.store(true, Ordering::SeqCst);
    let sending = session.send(DataId(1), &Receivers::All, &SendOptions::default()).await.unwrap();
    let peer = b.client().await;
    until("it is being received", async || !peer.list(None).await.unwrap().is_empty()).await;
    let reader = b.session(1).await;
    let waiting = tokio::spawn(async move { reader.read(DataId(1), Wait::WhileComing(None)).await });
    world.engine.break_down.store(true, Ordering::SeqCst);
    world.engine.hold.store(false, Ordering::SeqCst);
    let error = waiting.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), Some(Kind::StoreFull));
    let reason = "object 1 could not be received: /store is full: the object needs 2 B, 1 B are free";
    assert_eq!(error.to_string(), reason);
    drop(sending);
    stopped([a, b], manager).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn transfers_outlive_the_manager() {
    const SETTINGS: &str = "heartbeat-ms = 50\nreconnect-ms = 60000";
    let first = manager(0, SETTINGS).await;
    let world = World::new(first.address);
    let [a, b] = world.agents(["a", "b"]).await;
    let session = a.session(1).await;
    session.add(DataId(1), &world.file("x", b"x")).await.unwrap();
    session.add(DataId(2), &world.file("y", b"y")).await.unwrap();
    world.engine.hold.store(true, Ordering::SeqCst);
    let running = session.send(DataId(1), &Receivers::All, &SendOptions::default()).await.unwrap();
    until("it runs", async || world.engine.deliveries.load(Ordering::SeqCst) == 1).await;
    let port = first.address.port();
    first.task.stop().await;

    // Without a manager nothing new begins, and one is told why.
    let sending = session.send(DataId(2), &Receivers::All, &SendOptions::default()).await.unwrap();
    let error = events(sending).await.1.unwrap();
    assert_eq!(error.kind(), Some(Kind::ManagerUnreachable));
    assert!(
        error.to_string().starts_with(&format!("the manager at {} cannot be reached", first.address)),
        "{error}"
    );
    // Nor is anything removed elsewhere, and the agent goes on answering.
    let removing = session.remove(&Receivers::All, &[DataId(2)], &[], None);
    let refused = tokio::time::timeout(HANG, removing).await.expect("an answer");
    assert_eq!(refused.unwrap_err().kind(), Some(Kind::ManagerUnreachable));
    let client = a.client().await;
    let status = client.status().await.unwrap();
    assert!(!status.manager_connected && !status.manager_error.is_empty(), "{status:?}");

    // A new manager takes the lease over, and gets it back at the end.
    let second = manager(port, SETTINGS).await;
    until("both are back", async || client.status().await.unwrap().peers.len() == 2).await;
    until("the lease is back", async || leases(second.address).await == 1).await;
    world.engine.hold.store(false, Ordering::SeqCst);
    let (events, error) = events(running).await;
    assert!(error.is_none() && matches!(events.last(), Some(Event::Finished(_))), "{error:?}");
    until("the path is released", async || leases(second.address).await == 0).await;
    stopped([a, b], second).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_for_a_path_waits_for_its_deadline() {
    let (manager, world, [a, b]) =
        started("fabrics = ['ip-multicast']\n[ip-multicast]\npool = '239.255.64.0/32'", ["a", "b"]).await;
    let session = a.session(1).await;
    session.add(DataId(1), &world.file("x", b"x")).await.unwrap();
    session.add(DataId(2), &world.file("y", b"y")).await.unwrap();
    world.engine.hold.store(true, Ordering::SeqCst);
    let _holder = session.send(DataId(1), &Receivers::All, &SendOptions::default()).await.unwrap();
    until("the only address is lent", async || leases(manager.address).await == 1).await;
    // One that waits is told that it is the first in the queue.
    session.add(DataId(3), &world.file("z", b"z")).await.unwrap();
    let mut waiting = session.send(DataId(3), &Receivers::All, &SendOptions::default()).await.unwrap();
    let mut told = Vec::new();
    while told.last() != Some(&Some(0)) {
        let event = waiting.next().await.unwrap();
        let Some(Event::Waiting(place)) = event else { panic!("{event:?}") };
        told.push(place.before);
    }
    assert_eq!(told, [None, Some(0)]);
    drop(waiting);
    let hasty = SendOptions { deadline: Some(Span::from_millis(100)), ..SendOptions::default() };
    let sending = session.send(DataId(2), &Receivers::All, &hasty).await.unwrap();
    let (seen, error) = events(sending).await;
    assert_eq!(error.unwrap().to_string(), "no path was free before the deadline");
    assert!(seen.iter().all(|event| matches!(event, Event::Waiting(_))), "{seen:?}");
    stopped([a, b], manager).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn received_objects_survive_a_restart() {
    let unix_ms = || std::time::UNIX_EPOCH.elapsed().unwrap().as_millis() as u64;
    let begun = unix_ms();
    let (manager, world, [a, b]) = started("", ["a", "b"]).await;
    let session = a.session(1).await;
    session.add(DataId(1), &world.file("x", b"x")).await.unwrap();
    let sending = session.send(DataId(1), &Receivers::All, &SendOptions::default()).await.unwrap();
    assert!(events(sending).await.1.is_none());
    let before = b.session(1).await.read(DataId(1), SOON).await.unwrap();
    let there = unix_ms();
    // The system's clock for files is a coarse one.
    tokio::time::sleep(Duration::from_millis(50)).await;
    b.task.stop().await;
    let b = world.agent("b").await;
    let after = b.session(1).await.read(DataId(1), NOW).await.unwrap();
    let since = begun - 20..=there;
    assert!(since.contains(&before.since_unix_ms), "{before:?}, {since:?}");
    assert!(since.contains(&after.since_unix_ms), "it is as old as it was: {after:?}, {since:?}");
    assert_eq!(polycast_api::agent::Object { since_unix_ms: before.since_unix_ms, ..after }, before);
    stopped([a, b], manager).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_used_is_named() {
    // One that has been heard within two heartbeats lives.
    let manager = manager(0, "heartbeat-ms = 15000\nsilence-ms = 120000").await;
    let world = World::new(manager.address);
    let agent = world.agent("a").await;
    let fails = async |config| Agent::start(config).await.err().unwrap().to_string();
    let mut config = world.config("a");
    config.socket = Some(world.folder.path().join("other.sock"));
    assert!(fails(config.clone()).await.ends_with("cannot be used: another agent uses it"));
    config.store = Some(world.folder.path().join("other"));
    config.socket = world.config("a").socket;
    assert!(fails(config).await.ends_with("another agent listens on it"));
    let listener = std::net::TcpListener::bind((own_address(), 0)).unwrap();
    let taken = listener.local_addr().unwrap();
    let mut config = world.config("b");
    config.control_port = Some(taken.port());
    assert_eq!(fails(config).await, format!("the agent cannot listen on {taken}: the port is in use"));
    drop(listener);
    let mut config = world.config("b");
    config.interface = Some("nothing0".into());
    assert!(fails(config).await.starts_with("no interface nothing0"));
    // A second agent of this name is told so, and the first one goes on.
    let mut config = world.config("a");
    config.store = Some(world.folder.path().join("other"));
    config.socket = Some(world.folder.path().join("other.sock"));
    let client = agent.client().await;
    until("the first has joined", async || client.status().await.unwrap().manager_connected).await;
    let second = serve(Agent::start(config).await.unwrap());
    let ended = second.task.end().await.unwrap_err();
    assert!(matches!(ended, AgentError::TurnedDown { .. }));
    let place = own_address();
    let words =
        format!("the name 'a' is taken by the agent at {place}: stop that one first, or take another name");
    assert!(ended.to_string().ends_with(&words), "{ended}");
    assert!(client.status().await.unwrap().manager_connected);
    agent.task.stop().await;
    manager.task.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_that_wait_end_with_the_agent() {
    let (manager, world, [a, b]) = started("", ["a", "b"]).await;
    let reader = a.session(1).await;
    reader.add(DataId(2), &world.file("x", b"x")).await.unwrap();
    world.engine.hold.store(true, Ordering::SeqCst);
    let sending = reader.send(DataId(2), &Receivers::All, &SendOptions::default()).await.unwrap();
    until("it runs", async || world.engine.deliveries.load(Ordering::SeqCst) == 1).await;
    let waiting = tokio::spawn(async move { reader.read(DataId(1), Wait::UntilReady(None)).await });
    a.task.stop().await;
    assert_eq!(events(sending).await.1.unwrap().to_string(), "the transfer was cancelled");
    assert!(matches!(waiting.await.unwrap(), Err(ClientError::Refused(_) | ClientError::Lost(_))));
    until("its path is released", async || leases(manager.address).await == 0).await;
    b.task.stop().await;
    manager.task.stop().await;
}

#[tokio::test]
async fn applications_do_not_see_each_others_numbers() {
    let manager = manager(0, "").await;
    let world = World::new(manager.address);
    let agent = world.agent("a").await;
    let client = agent.client().await;
    let (one, two) = (AppId([1; 16]), AppId([2; 16]));
    let first = client.register(one, 1).await.unwrap();
    let second = client.register(two, 1).await.unwrap();
    first.add(DataId(1), &world.file("x", b"x")).await.unwrap();
    assert_eq!(second.read(DataId(1), NOW).await.unwrap_err().kind(), Some(Kind::ObjectUnknown));
    second.add(DataId(1), &world.file("y", b"yy")).await.unwrap();
    assert_eq!(client.list(Some(two)).await.unwrap()[0].length, 2);
    let all: Vec<_> = client.list(None).await.unwrap().iter().map(|object| object.id().unwrap()).collect();
    assert_eq!(all.len(), 2);
    assert!(all[0] < all[1]);
    agent.task.stop().await;
    manager.task.stop().await;
}
