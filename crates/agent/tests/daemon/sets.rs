//! Sets of files: each is an object of its own.

use super::versions::{cluster, committed, noise};
use super::world::{LONG, World, events, started, stopped};
use polycast_agent::daemon::Engine;
use polycast_agent::transfer::{Options, Path as Way, Receivers as Invited, SourceSpec};
use polycast_api::agent::fetch_event::Event as FetchEvent;
use polycast_api::agent::send_event::Event;
use polycast_api::agent::{Object, ObjectKind as Kinds, SetFile};
use polycast_api::client::{Files, Receivers, Selected, SendOptions, Session, Wait, Wanted};
use polycast_api::error::Kind;
use polycast_net::archive::{Manifest, TreeSource};
use polycast_net::object::ObjectKind;
use polycast_testing::HANG;
use polycast_types::{AppId, DataId, Duration as Span, ObjectId};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const SET: DataId = DataId(7);

/// A folder with these files.
fn folder(world: &World, name: &str, files: &[(&str, &[u8])]) -> PathBuf {
    let folder = world.folder.path().join(name);
    for (name, bytes) in files {
        let path = folder.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
    folder
}

async fn add(session: &Session, data: DataId, folder: &Path) -> Object {
    let set = session.add_set(data, &[folder.to_path_buf()], "model", &Selected::default()).await.unwrap();
    assert_eq!(set.kind(), Kinds::Set);
    set
}

/// The files that are here by the names that they have, to the end or to the first error.
async fn told(mut files: Files) -> (BTreeMap<String, SetFile>, bool, Option<String>) {
    let mut known = BTreeMap::new();
    loop {
        match tokio::time::timeout(HANG, files.next()).await.unwrap() {
            Ok(Some(event)) => {
                let named = event.files.into_iter();
                known.extend(named.map(|file| (String::from_utf8(file.name.clone()).unwrap(), file)));
                if event.complete {
                    return (known, true, None);
                }
            }
            Ok(None) => return (known, false, None),
            Err(error) => return (known, false, Some(error.to_string())),
        }
    }
}

/// Every file as it was at the source, at a place where it can be mapped.
async fn check(session: &Session, data: DataId, files: &[(&str, &[u8])]) {
    let (here, complete, error) = told(session.files(data, None).await.unwrap()).await;
    assert!(complete, "{error:?}");
    let names: Vec<&str> = here.keys().map(String::as_str).collect();
    assert_eq!(names, files.iter().map(|(name, _)| *name).collect::<Vec<_>>());
    for (name, bytes) in files {
        assert!(std::fs::read(&here[*name].path).unwrap() == *bytes, "{name}");
        assert_eq!(here[*name].root, blake3::hash(bytes).to_hex().to_string());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn equal_files_travel_once_and_those_that_are_there_not_at_all() {
    let settings = "[objects]\nsettle-ms = 100\n[ip-multicast]\npool = '239.255.70.0/24'\nport = 17415";
    let (manager, world, agents) = cluster(settings, ["a", "b", "c"]).await;
    let (source, b, c) = (agents[0].session(1).await, agents[1].session(1).await, agents[2].session(1).await);
    let (one, other, small) = (noise(3_000_000), noise(2_000_000), b"{}".to_vec());
    let files: [(&str, &[u8]); 4] =
        [("a.bin", &one), ("config.json", &small), ("w/b.bin", &one), ("w/c.bin", &other[1..])];
    let first = folder(&world, "first", &files);
    std::os::unix::fs::symlink("a.bin", first.join("link")).unwrap();
    let set = add(&source, SET, &first).await;
    assert_eq!(add(&source, SET, &first).await, set, "the same once more changes nothing");
    check(&source, SET, &files).await;
    let mut versions = b.subscribe("models").await.unwrap();
    let published = source.publish("models", None, SET, Some(LONG)).await.unwrap();
    assert!(published.missing.is_empty() && published.have == ["b"], "{published:?}");
    let distinct = (one.len() + other.len()) as u64;
    // Less than with any of them once more; some packets may have been lost.
    assert!((distinct..distinct + one.len() as u64).contains(&published.sent_bytes), "{published:?}");
    assert_eq!(committed(&mut versions).await.1.kind(), Kinds::Set);
    check(&b, SET, &files).await;
    // A version of which one small file is new: the others do not travel again.
    let newer: [(&str, &[u8]); 4] =
        [("a.bin", &one), ("config.json", b"{1}"), ("w/b.bin", &other[1..]), ("w/d.bin", &one)];
    let second = folder(&world, "second", &newer);
    add(&source, DataId(8), &second).await;
    let published = source.publish("models", None, DataId(8), Some(LONG)).await.unwrap();
    assert!(published.missing.is_empty() && published.sent_bytes < 100_000, "{published:?}");
    check(&b, DataId(8), &newer).await;
    // One that asks gets it with its files, and the directory's stream is that of the directory.
    let mut fetching = c.fetch(Wanted::Id(SET), false, Some(LONG)).await.unwrap();
    let object = loop {
        match fetching.next().await.unwrap().unwrap() {
            FetchEvent::Object(object) => break object,
            _ => continue,
        }
    };
    assert_eq!(object.root, set.root);
    check(&c, SET, &files).await;
    let mut taking = c.take(object.id().unwrap()).await.unwrap();
    let mut stream = Vec::new();
    while let Some(piece) = taking.next().await.unwrap() {
        stream.extend(piece);
    }
    let to = world.folder.path().join("unpacked");
    polycast_net::archive::unpack(stream.as_slice(), &to, false).unwrap();
    assert!(std::fs::read(to.join("link")).unwrap() == one);
    // Files go with the last set that needs them.
    let (here, ..) = told(b.files(SET, None).await.unwrap()).await;
    let part = DataId(here["a.bin"].data_id);
    let busy = b.delete(part).await.unwrap_err();
    assert!(busy.to_string().contains("is a file of set"), "{busy}");
    b.delete(SET).await.unwrap();
    check(&b, DataId(8), &newer).await;
    b.delete(DataId(8)).await.unwrap();
    assert_eq!(agents[1].client().await.list(Some(AppId::default())).await.unwrap(), []);
    let left = std::fs::read_dir(&agents[1].store).unwrap().flatten().map(|entry| entry.file_name());
    assert_eq!(left.filter(|name| name != ".lock").count(), 0);
    stopped(agents, manager).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_is_usable_before_the_set_is_whole() {
    let settings = "[ip-multicast]\npool = '239.255.71.0/24'\nport = 17416";
    let (manager, world, agents) = cluster(settings, ["a", "b"]).await;
    let (source, b) = (agents[0].session(1).await, agents[1].session(1).await);
    let (one, other) = (noise(1_000_000), noise(600_000));
    let files: [(&str, &[u8]); 2] = [("a.bin", &one), ("z.bin", &other[1..])];
    let first = folder(&world, "first", &files);
    add(&source, SET, &first).await;
    // A file that has changed meanwhile never arrives: what is told of the other one is told before the set
    // is there.
    std::fs::write(first.join("z.bin"), b"changed").unwrap();
    let mut early = b.files(SET, Some(LONG)).await.unwrap();
    let sending = source.send(SET, &Receivers::All, &SendOptions::default()).await.unwrap();
    let sent = tokio::spawn(events(sending));
    let mut known = BTreeMap::new();
    while known.values().filter(|file: &&SetFile| file.here).count() == 0 {
        let event = tokio::time::timeout(HANG, early.next()).await.unwrap().unwrap().unwrap();
        assert!(!event.complete && event.total_bytes == 1_599_999, "{event:?}");
        known.extend(event.files.into_iter().map(|file| (file.name.clone(), file)));
    }
    assert_eq!(known.len(), 2, "all files are named first");
    let file = &known[&b"a.bin".to_vec()];
    assert!(std::fs::read(&file.path).unwrap() == one && !known[&b"z.bin".to_vec()].here);
    let (told_events, error) = sent.await.unwrap();
    let Some(Event::Finished(report)) = told_events.last() else { panic!("{told_events:?} {error:?}") };
    let why = &report.receivers[0].error;
    assert!(!report.receivers[0].verified && why.contains("'z.bin'") && why.contains("has changed"), "{why}");
    let waits = Wait::WhileComing(Some(Span::ZERO));
    assert_eq!(b.read(SET, waits).await.unwrap_err().kind(), Some(Kind::TimedOut), "it is not whole");
    // The source has it right again, and sends what lacks.
    source.delete(SET).await.unwrap();
    std::fs::write(first.join("z.bin"), &other[1..]).unwrap();
    add(&source, SET, &first).await;
    let list = source.read(SET, waits).await.unwrap();
    let sending = source.send(SET, &Receivers::All, &SendOptions::default()).await.unwrap();
    let (told_events, error) = events(sending).await;
    let Some(Event::Finished(report)) = told_events.last() else { panic!("{told_events:?} {error:?}") };
    assert!(report.is_complete(), "{report:?}");
    assert_eq!(report.length, list.length + 1_599_999);
    assert!(report.sent_bytes < 1_599_999, "{} bytes were sent", report.sent_bytes);
    check(&b, SET, &files).await;
    stopped(agents, manager).await;
}

/// A directory that was moved, or copied with its times, is added again: the set is the same, and its files
/// are taken from where they are now.
#[tokio::test(flavor = "multi_thread")]
async fn a_set_that_is_added_again_has_its_files_where_they_are_now() {
    let (manager, world, agents) = cluster("fabrics = ['tcp-chain']", ["a", "b"]).await;
    let (source, b) = (agents[0].session(1).await, agents[1].session(1).await);
    let one = noise(300_000);
    let files: [(&str, &[u8]); 2] = [("a.bin", &one), ("w/z.bin", b"small")];
    let first = folder(&world, "first", &files);
    let set = add(&source, SET, &first).await;
    let second = world.folder.path().join("second");
    std::fs::rename(&first, &second).unwrap();
    assert_eq!(add(&source, SET, &second).await, set, "the same set at another place");
    check(&source, SET, &files).await;
    // Other files with all that the list names of them, as a copy that keeps the times has them.
    let third = folder(&world, "third", &files);
    for name in ["a.bin", "w/z.bin", "w", ""] {
        let time = std::fs::metadata(second.join(name)).unwrap().modified().unwrap();
        std::fs::File::open(third.join(name)).unwrap().set_modified(time).unwrap();
    }
    std::fs::remove_dir_all(&second).unwrap();
    std::fs::rename(&third, &second).unwrap();
    assert_eq!(add(&source, SET, &second).await, set, "the same set of other files");
    let sending = source.send(SET, &Receivers::All, &SendOptions::default()).await.unwrap();
    let (told_events, error) = events(sending).await;
    let Some(Event::Finished(report)) = told_events.last() else { panic!("{told_events:?} {error:?}") };
    assert!(report.is_complete(), "{report:?}");
    check(&b, SET, &files).await;
    stopped(agents, manager).await;
}

/// Hands an object to an agent as a source does that says what it likes.
fn hand_over(
    world: &World,
    to: &super::world::AgentTask,
    (object, kind, bytes): (ObjectId, ObjectKind, Vec<u8>),
) {
    let spec = SourceSpec {
        object,
        name: "model".into(),
        kind,
        source: Arc::new(bytes),
        root: None,
        receivers: Invited::Named(vec![("b".into(), to.control)]),
        location: polycast_types::Location::default(),
        interface: [127, 0, 0, 1].into(),
        path: Way::Chain,
        options: Options::default(),
        cancel: Arc::default(),
        steering: Arc::default(),
    };
    world.engine.deliver(spec, &mut |_| {}).unwrap();
}

/// Waits until an object that was handed over is refused, and gives the sentence.
async fn refusal(session: &Session, data: DataId) -> String {
    let error = session.read(data, Wait::WhileComing(Some(LONG))).await.unwrap_err();
    let text = error.to_string();
    assert_eq!(text.lines().count(), 1, "{text}");
    text
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_that_lies_is_refused() {
    let (manager, world, agents) = started("", ["a", "b"]).await;
    let b = agents[1].session(1).await;
    let set = |data| ObjectId { app: AppId::default(), data: DataId(data) };
    let files = folder(&world, "files", &[("model.bin", b"the bytes"), ("second", b"others")]);
    let tree = TreeSource::open(&files).unwrap();
    let root_of = |path: &Path, _| Ok(*blake3::hash(&std::fs::read(path)?).as_bytes());
    let honest = Manifest::of(&tree, root_of).unwrap().to_bytes();
    let at = honest.windows(9).position(|bytes| bytes == b"model.bin").unwrap();
    let mut climbs = honest.clone();
    climbs[at..at + 9].copy_from_slice(b"../bashrc");
    // As the check sum is to be: that of the names' letters.
    let header = &mut climbs[at..at + 512];
    header[148..156].fill(b' ');
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    hand_over(&world, &agents[1], (set(1), ObjectKind::Set, climbs));
    let said = refusal(&b, DataId(1)).await;
    assert!(said.contains("../bashrc") && said.contains("leads out of the directory"), "{said}");
    hand_over(&world, &agents[1], (set(2), ObjectKind::Set, b"no list at all".to_vec()));
    assert!(refusal(&b, DataId(2)).await.contains("the list of set 2"));
    // A file whose bytes are not those that the list names.
    let root = blake3::hash(b"the bytes");
    let part = u64::from_be_bytes(*root.as_bytes().first_chunk().unwrap());
    hand_over(&world, &agents[1], (set(part), ObjectKind::File, b"the butes".to_vec()));
    hand_over(&world, &agents[1], (set(3), ObjectKind::Set, honest.clone()));
    let said = refusal(&b, DataId(3)).await;
    assert!(said.contains("'model.bin'") && said.contains(&root.to_hex().to_string()), "{said}");
    let there = b.read(DataId(part), Wait::WhileComing(Some(Span::ZERO))).await;
    assert_eq!(there.expect("what was here before the list stays").length, 9);
    // What comes for the set belongs to the set alone, and would be in the way of the right one.
    b.delete(DataId(part)).await.unwrap();
    hand_over(&world, &agents[1], (set(4), ObjectKind::Set, honest));
    let mut waiting = b.files(DataId(4), Some(LONG)).await.unwrap();
    assert_eq!(waiting.next().await.unwrap().unwrap().files.len(), 2);
    hand_over(&world, &agents[1], (set(part), ObjectKind::File, b"the butes".to_vec()));
    assert!(refusal(&b, DataId(4)).await.contains("'model.bin'"));
    let left = agents[1].client().await.list(None).await.unwrap();
    assert!(left.is_empty(), "what is wrong is not in the way of the right one: {left:?}");
    stopped(agents, manager).await;
}
