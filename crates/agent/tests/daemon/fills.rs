//! Numbers that processes have left behind.

use super::world::{events, started, stopped};
use polycast_api::agent::ObjectKind;
use polycast_api::agent::send_event::Event as Sent;
use polycast_api::client::{Receivers, SendOptions, Session, ToPut, Wait};
use polycast_types::{DataId, Duration as Span};
use tokio::sync::mpsc;

const SETTINGS: &str = "[objects]\nsettle-ms = 100";
const LATEST: Option<Span> = Some(Span::from_secs(60));

async fn sent(session: &Session, data: DataId) -> (bool, String) {
    let sending = session.send(data, &Receivers::All, &SendOptions::default()).await.unwrap();
    let (events, error) = events(sending).await;
    match events.last() {
        Some(Sent::Finished(report)) => (report.is_complete(), format!("{report:?}")),
        _ => (false, format!("{events:?} {error:?}")),
    }
}

/// A process has added what was in its memory, and has ended: its number is free for what another host sends, and for what is brought.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_process_has_left_behind_is_in_the_way_of_nothing() {
    let (manager, world, [a, b]) = started(SETTINGS, ["a", "b"]).await;
    let (source, session) = (a.session(1).await, b.session(1).await);
    let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
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
    let what = ToPut { name: "x".into(), kind: ObjectKind::File, length: 3, mode: 0, private: false };
    assert_eq!(session.put(DataId(2), what, incoming).await.unwrap().length, 3);
    stopped([a, b], manager).await;
}
