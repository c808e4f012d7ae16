//! Objects that are made from others in the store.

use super::versions::cluster;
use super::world::{LONG, started, stopped};
use polycast_api::agent::fetch_event::Event;
use polycast_api::agent::{Object, ObjectKind as Kinds};
use polycast_api::client::{Session, Wait, Wanted};
use polycast_api::error::Kind;
use polycast_testing::HANG;
use polycast_types::{AppId, DataId, ObjectId};
use std::fs;
use std::os::unix::fs::MetadataExt;
use tokio::sync::mpsc;

const SETTINGS: &str = "[objects]\nsettle-ms = 100";

/// An object that a key names, which this process has brought.
async fn brought(session: &Session, key: &str, bytes: &[u8]) -> Object {
    let mut fetching = session.fetch(Wanted::Key(key.into()), true, Some(LONG)).await.unwrap();
    loop {
        let event = tokio::time::timeout(HANG, fetching.next()).await.expect("in time").unwrap();
        match event.expect("the fetch goes on") {
            Event::Fill(_) => {
                let (sender, pieces) = mpsc::channel(2);
                sender.send(Ok(bytes.to_vec())).await.unwrap();
                sender.send(Ok(Vec::new())).await.unwrap();
                session.fill(key, None, "", pieces).await.unwrap();
            }
            Event::Object(object) => return object,
            _ => {}
        }
    }
}

fn id(object: &Object) -> ObjectId {
    object.id().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn files_and_sets_are_made_without_a_copy_and_last_longer_than_what_they_are_made_from() {
    let (manager, _world, agents) = cluster(SETTINGS, ["a", "b"]).await;
    let [a, b] = &agents[..] else { panic!("there are two") };
    let session = a.session(1).await;
    let (one, two) =
        (brought(&session, "test:one", b"one").await, brought(&session, "test:two", b"two").await);
    let file = session.assemble(DataId(1), "named.bin", id(&one)).await.unwrap();
    assert_eq!((file.name.as_str(), file.length, file.root.as_str()), ("named.bin", 3, one.root.as_str()));
    assert_eq!(fs::metadata(&file.path).unwrap().ino(), fs::metadata(&one.path).unwrap().ino(), "no copy");
    // The same once more is the same.
    assert_eq!(session.assemble(DataId(1), "named.bin", id(&one)).await.unwrap(), file);
    let parts = |paths: &[(&str, Option<&Object>)]| {
        paths.iter().map(|(path, object)| (path.to_string(), object.map(id))).collect::<Vec<_>>()
    };
    let files = [("a/one", Some(&one)), ("b", Some(&two)), ("c", Some(&one)), ("empty", None)];
    let set = session.assemble_set(DataId(7), "model", parts(&files)).await.unwrap();
    assert_eq!(set.kind(), Kinds::Set);
    // What they are made from goes, and they stay, also for others.
    for object in [&one, &two] {
        let owner = a.client().await.register(id(object).app, 1).await.unwrap();
        owner.delete(id(object).data).await.unwrap();
        assert!(!fs::exists(&object.path).unwrap());
    }
    assert_eq!(fs::read(&file.path).unwrap(), b"one");
    let other = b.session(2).await;
    let mut fetching = other.fetch(Wanted::Id(DataId(7)), false, Some(LONG)).await.unwrap();
    while !matches!(
        tokio::time::timeout(HANG, fetching.next()).await.unwrap().unwrap(),
        Some(Event::Object(_))
    ) {}
    assert_eq!(other.read(DataId(7), Wait::UntilReady(Some(LONG))).await.unwrap().root, set.root);
    stopped(agents, manager).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_makes_no_file_or_directory_is_refused_and_leaves_nothing() {
    let (manager, world, [a, b]) = started(SETTINGS, ["a", "b"]).await;
    let session = a.session(1).await;
    let one = id(&brought(&session, "test:one", b"one").await);
    let added = session.add(DataId(9), &world.file("added", b"added")).await.unwrap();
    let unknown = ObjectId { app: AppId::default(), data: DataId(99) };
    for (from, kind, says) in [
        (unknown, Kind::ObjectUnknown, "there is no object"),
        (id(&added), Kind::Invalid, "lies where it was added"),
    ] {
        let refusal = session.assemble(DataId(1), "x", from).await.unwrap_err();
        assert!(refusal.kind() == Some(kind) && refusal.to_string().contains(says), "{refusal}");
    }
    for name in ["", "a/b", ".."] {
        session.assemble(DataId(1), name, one).await.unwrap_err();
    }
    for paths in [&["a", "a"][..], &["a", "a/b"], &["../a"], &["/a"], &["a//b"]] {
        let files = paths.iter().map(|path| (path.to_string(), Some(one))).collect();
        let refusal = session.assemble_set(DataId(7), "model", files).await.unwrap_err();
        assert_eq!(refusal.kind(), Some(Kind::Invalid), "{paths:?}: {refusal}");
    }
    // A number that something else has.
    let refusal = session.assemble_set(DataId(9), "model", vec![("a".into(), Some(one))]).await.unwrap_err();
    assert_eq!(refusal.kind(), Some(Kind::ObjectTaken), "{refusal}");
    let left = a.client().await.list(None).await.unwrap();
    assert_eq!(left.len(), 2, "{left:?}");
    stopped([a, b], manager).await;
}
