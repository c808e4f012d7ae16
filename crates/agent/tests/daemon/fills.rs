//! Objects that come in more than one way at a time, and numbers that processes have left behind.

use super::world::{AgentTask, MAKING, events, started, stopped, until};
use polycast_api::agent::fetch_event::Event;
use polycast_api::agent::send_event::Event as Sent;
use polycast_api::agent::{Object, ObjectKind, ObjectState};
use polycast_api::client::{ClientError, Fetching, Receivers, SendOptions, Session, ToPut, Wait, Wanted};
use polycast_testing::HANG;
use polycast_types::{AppId, DataId, Duration as Span, ObjectId};
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::mpsc;

const SETTINGS: &str = "[objects]\nsettle-ms = 100";
const LATEST: Option<Span> = Some(super::world::LONG);

/// The next event of a fetch that is no progress.
async fn next(fetching: &mut Fetching) -> Result<Event, ClientError> {
    loop {
        let event = tokio::time::timeout(HANG, fetching.next()).await.expect("in time")?;
        match event.expect("the fetch goes on") {
            Event::Progress(_) => {}
            event => return Ok(event),
        }
    }
}

async fn is_receiving(agent: &AgentTask, data: DataId) -> bool {
    let objects = agent.client().await.list(None).await.unwrap();
    objects.iter().any(|one| one.data_id == data.0 && one.state() == ObjectState::Receiving)
}

async fn sent(session: &Session, data: DataId) -> (bool, String) {
    let sending = session.send(data, &Receivers::All, &SendOptions::default()).await.unwrap();
    let (events, error) = events(sending).await;
    match events.last() {
        Some(Sent::Finished(report)) => (report.is_complete(), format!("{report:?}")),
        _ => (false, format!("{events:?} {error:?}")),
    }
}

/// Fill from the origin while another agent has begun to send the object: the fill waits for the object that
/// arrives first, and takes the bytes of the origin if that fails. The process that asks gets the object in
/// both cases, and is notified of no failure.
#[tokio::test(flavor = "multi_thread")]
async fn one_that_was_told_to_fill_waits_for_what_comes() {
    for fails in [false, true] {
        let (manager, world, [a, b]) = started(SETTINGS, ["a", "b"]).await;
        let session = b.session(1).await;
        let key = "test:one";
        let mut fetching = session.fetch(Wanted::Key(key.into()), true, LATEST).await.unwrap();
        let Event::Waiting(waiting) = next(&mut fetching).await.unwrap() else { panic!("it waits") };
        let Event::Fill(_) = next(&mut fetching).await.unwrap() else { panic!("it is told to fill") };
        let app = AppId(waiting.app_id.as_slice().try_into().unwrap());
        let id = ObjectId { app, data: DataId(waiting.data_id) };
        let source = a.client().await.register(id.app, 1).await.unwrap();
        source.add(id.data, &world.file("from-a", b"from a")).await.unwrap();
        world.engine.hold.store(true, Ordering::SeqCst);
        let sending = tokio::spawn({
            let source = source.clone();
            async move { sent(&source, id.data).await }
        });
        until("it comes", async || is_receiving(&b, id.data).await).await;
        let (pieces, incoming) = mpsc::channel(4);
        for piece in [&b"from its origin"[..], b""] {
            pieces.send(Ok(piece.to_vec())).await.unwrap();
        }
        let filling = tokio::spawn({
            let session = session.clone();
            async move { session.fill(key, None, "", incoming).await }
        });
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert!(!filling.is_finished(), "it waits for what comes");
        world.engine.break_down.store(fails, Ordering::SeqCst);
        world.engine.hold.store(false, Ordering::SeqCst);
        let filled: Object = filling.await.unwrap().unwrap();
        let expected = if fails { &b"from its origin"[..] } else { b"from a" };
        assert_eq!(filled.length, expected.len() as u64, "fails: {fails}");
        let Event::Object(object) = next(&mut fetching).await.unwrap() else { panic!("the object") };
        assert_eq!(std::fs::read(&object.path).unwrap(), expected);
        let (is_complete, report) = sending.await.unwrap();
        assert!(is_complete || fails, "{report}");
        stopped([a, b], manager).await;
    }
}

/// Agents that are told to send an object are turned down while it comes from elsewhere. The process that
/// asks goes on waiting, and when it has not come the manager is asked again.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_denied_while_it_comes_is_waited_for() {
    let (manager, world, [a, b]) = started(SETTINGS, ["a", "b"]).await;
    let (source, session) = (a.session(1).await, b.session(1).await);
    let path = world.file("weights", b"0123456789");
    let mut running = Vec::new();
    for (data, comes) in [(DataId(1), true), (DataId(2), false)] {
        let (pieces, incoming) = mpsc::channel(4);
        let what = ToPut {
            name: "weights".into(),
            kind: ObjectKind::File,
            length: 10,
            mode: 0,
            modified: None,
            private: false,
        };
        let putting = tokio::spawn({
            let session = session.clone();
            async move { session.put(data, what, incoming).await }
        });
        pieces.send(Ok(b"01234".to_vec())).await.unwrap();
        until("it is being brought", async || is_receiving(&b, data).await).await;
        let mut fetching = session.fetch(Wanted::Id(data), false, LATEST).await.unwrap();
        let Event::Waiting(_) = next(&mut fetching).await.unwrap() else { panic!("it waits") };
        source.add(data, &path).await.unwrap();
        running.push((data, comes, pieces, putting, fetching));
    }
    // Three tries in vain, of a second and a half each, and more.
    tokio::time::sleep(Duration::from_secs(8)).await;
    for (data, comes, pieces, putting, mut fetching) in running {
        if comes {
            pieces.send(Ok(b"56789".to_vec())).await.unwrap();
            pieces.send(Ok(Vec::new())).await.unwrap();
        } else {
            pieces.send(Err("it is not wanted any more".into())).await.unwrap();
        }
        assert_eq!(putting.await.unwrap().is_ok(), comes);
        let Event::Object(object) = next(&mut fetching).await.unwrap() else { panic!("the object") };
        assert_eq!(std::fs::read(&object.path).unwrap(), b"0123456789", "object {}", data.0);
    }
    stopped([a, b], manager).await;
}

/// A process has added what was in its memory, and has ended: its number is free for what another host sends,
/// and for what is brought.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_process_has_left_behind_is_in_the_way_of_nothing() {
    let (manager, world, [a, b]) = started(SETTINGS, ["a", "b"]).await;
    let (source, session) = (a.session(1).await, b.session(1).await);
    let making = MAKING.write().await;
    let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
    drop(making);
    let left = std::path::PathBuf::from(format!("/proc/{}/exe", child.id()));
    let path = world.file("x", b"0123456789");
    for data in [1, 2] {
        session.add(DataId(data), &left).await.unwrap();
        source.add(DataId(data), &path).await.unwrap();
    }
    let (is_complete, report) = sent(&source, DataId(1)).await;
    assert!(
        !is_complete && report.contains("there is an object 1 already"),
        "the process is there: {report}"
    );
    child.kill().unwrap();
    child.wait().unwrap();
    let (is_complete, report) = sent(&source, DataId(1)).await;
    assert!(is_complete, "{report}");
    let read = session.read(DataId(1), Wait::UntilReady(LATEST)).await.unwrap();
    assert_eq!(std::fs::read(&read.path).unwrap(), b"0123456789");
    let (pieces, incoming) = mpsc::channel(4);
    for piece in [&b"abc"[..], b""] {
        pieces.send(Ok(piece.to_vec())).await.unwrap();
    }
    let what = ToPut {
        name: "x".into(),
        kind: ObjectKind::File,
        length: 3,
        mode: 0,
        modified: None,
        private: false,
    };
    assert_eq!(session.put(DataId(2), what, incoming).await.unwrap().length, 3);
    stopped([a, b], manager).await;
}
