//! Versions that go as deltas, with the real engine over the loopback interface.

use super::real::{Daemons, Trees};
use super::versions::{cluster, committed, noise};
use super::world::{LONG, MAKING, World, events, stopped};
use polycast_api::agent::PublishResponse;
use polycast_api::agent::send_event::Event;
use polycast_api::client::{Receivers, SendOptions, Session, Wait};
use polycast_types::DataId;
use std::fs::{File, FileTimes, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;

const LEN: usize = 9_000_001;
/// No usual permissions.
const MODE: u32 = 0o750;

/// The next version of some weights: one element of two bytes in so many has changed.
fn step(weights: &mut [u8], number: u64, one_in: u64) {
    let mut state = number;
    for element in weights.chunks_mut(2) {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        if (state >> 33).is_multiple_of(one_in) {
            element[0] ^= (state >> 20) as u8 | 1;
        }
    }
}

async fn publish(world: &World, source: &Session, number: u64, bytes: &[u8]) -> PublishResponse {
    let path = world.file(&format!("weights-{number}"), bytes);
    std::fs::set_permissions(&path, Permissions::from_mode(MODE)).unwrap();
    source.add_as(DataId(number), &path, "weights").await.unwrap();
    let published = source.publish("policy", None, DataId(number), Some(LONG)).await.unwrap();
    assert!(published.missing.is_empty() && published.version == number, "{published:?}");
    published
}

/// Changes bytes of a file, and nothing that shows it.
fn change_unseen(path: &Path) {
    let file = File::options().write(true).open(path).unwrap();
    let modified = file.metadata().unwrap().modified().unwrap();
    file.write_all_at(&[0xee; 1_000], LEN as u64 / 2).unwrap();
    file.set_times(FileTimes::new().set_modified(modified)).unwrap();
}

/// Weights of which one element in a hundred changes everywhere: no group stays, and next to nothing is sent.
/// Those who come later, and those whose version is not what it was, get the object.
#[tokio::test(flavor = "multi_thread")]
async fn a_step_of_training_is_sent_as_what_it_has_changed() {
    let _none_is_made = MAKING.read().await;
    let settings = "[objects]\nsettle-ms = 100\n[ip-multicast]\npool = '239.255.69.0/24'\nport = 17414";
    let (manager, world, agents) = cluster(settings, ["a", "b", "c", "d"]).await;
    let source = agents[0].session(1).await;
    let (b, c, d) = (agents[1].session(1).await, agents[2].session(1).await, agents[3].session(1).await);
    let mut subscribed = vec![b.subscribe("policy").await.unwrap(), c.subscribe("policy").await.unwrap()];
    let mut weights = noise(LEN);
    let mut at_b = None;
    for number in 1..=6u64 {
        let late = number == 4;
        if late {
            // It is served as well, from the version before on, which comes by itself.
            subscribed.push(d.subscribe("policy").await.unwrap());
            committed(&mut subscribed[2]).await;
        }
        if number == 5 {
            change_unseen(Path::new(at_b.as_ref().unwrap()));
        }
        step(&mut weights, number, 100);
        let published = publish(&world, &source, number, &weights).await;
        let len = LEN as u64;
        let sent = published.sent_bytes;
        match number {
            1 => assert!(sent >= len && published.coded_bytes == 0, "{published:?}"),
            // One has spoiled its version, and is sent what the delta did not give.
            5 => assert!(sent >= 1 << 20 && published.coded_bytes > 0, "{published:?}"),
            // A busy machine sends the delta to some of them once more, and never the object.
            _ => assert!(
                (1..len / 4).contains(&sent) && (1..len / 60).contains(&published.coded_bytes),
                "version {number}: {published:?}"
            ),
        }
        for (at, versions) in subscribed.iter_mut().enumerate() {
            let (version, object) = committed(versions).await;
            assert!(version == number && std::fs::read(&object.path).unwrap() == weights, "{number}");
            assert_eq!(object.mode, MODE, "{number}");
            at_b = if at == 0 { Some(object.path) } else { at_b };
        }
    }
    stopped(agents, manager).await;
}

/// The same where receivers pull over trees, with a receiver in mid-topic that has nothing.
#[tokio::test(flavor = "multi_thread")]
async fn deltas_are_pulled_as_objects_are() {
    let trees = Trees { test: 3, fabrics: "'datacast'", ..Trees::default() };
    let Daemons { world, agents, switches, manager } = Daemons::start(trees).await;
    let source = agents[0].session(1).await;
    let mut weights = noise(LEN);
    for number in 1..=3u64 {
        step(&mut weights, number, 100);
        let path = world.file(&format!("weights-{number}"), &weights);
        source.add_as(DataId(number), &path, "weights").await.unwrap();
        let names: &[&str] = if number == 3 { &["b", "c", "d"] } else { &["b", "c"] };
        let to = Receivers::Named(names.iter().map(|name| (*name).into()).collect());
        let sending = source.send(DataId(number), &to, &SendOptions::default()).await.unwrap();
        let (events, error) = events(sending).await;
        assert!(error.is_none(), "{error:?}");
        let Some(Event::Finished(report)) = events.last() else { panic!("{events:?}") };
        assert!(report.is_complete() && report.length == LEN as u64, "{report:?}");
        assert_eq!(report.fabric, "datacast", "{report:?}");
        match number {
            1 => assert!(report.coded_bytes == 0 && report.sent_bytes >= LEN as u64, "{report:?}"),
            2 => assert!(report.coded_bytes > 0 && report.sent_bytes < LEN as u64 / 4, "{report:?}"),
            // One of three has no version before.
            _ => assert!(report.coded_bytes > 0 && report.sent_bytes >= LEN as u64, "{report:?}"),
        }
        for (agent, name) in agents[1..].iter().zip(["b", "c", "d"]).filter(|(_, name)| names.contains(name))
        {
            let wait = Wait::UntilReady(Some(LONG));
            let file = agent.session(1).await.read(DataId(number), wait).await.unwrap();
            assert!(std::fs::read(&file.path).unwrap() == weights, "version {number} at {name}");
        }
    }
    stopped(agents, manager).await;
    drop(switches);
}
