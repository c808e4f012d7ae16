//! Whole transfers over real sockets on the loopback interface.

mod common;

use common::{Trickle, patient};
use polycast_agent::transfer::{
    Held, OlderVersions, Options, Path, Prepared, Received, ReceiverSpec, Receivers, Rendezvous, Report,
    Sink, SourceSpec, TransferError, confirm, prepare, receive,
};
use polycast_net::archive::TreeSource;
use polycast_net::object::{FileSource, ObjectKind, ObjectSource};
use polycast_net::store::part_path;
use polycast_testing::{multicast_group, own_address};
use polycast_types::{Duration, ObjectId};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
use std::thread::JoinHandle;

/// Payload of a fragment on the loopback interface, whose MTU is capped at 9,000 bytes.
const FRAGMENT: usize = 9_000 - 28 - 24 - 32;

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 255 + i / 65_537) as u8).collect()
}

/// Every test has a multicast group of its own.
fn group() -> std::net::SocketAddr {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    let process = std::process::id().to_be_bytes();
    std::net::SocketAddr::from((multicast_group([239, 255, 200 ^ process[3] & 31, n as u8]), 31_000 + n))
}

fn source(object: Vec<u8>, receivers: usize, path: Path, options: Options) -> Prepared {
    prepare(spec(object, receivers, path, options)).unwrap()
}

fn spec(object: Vec<u8>, receivers: usize, path: Path, options: Options) -> SourceSpec {
    SourceSpec {
        object: ObjectId::default(),
        name: "object".into(),
        kind: ObjectKind::File,
        source: Arc::new(object),
        root: None,
        receivers: Receivers::Told(receivers),
        location: polycast_types::Location::default(),
        interface: own_address(),
        path,
        options,
        cancel: Arc::default(),
        steering: Arc::default(),
    }
}

fn receiver_spec(source: &Prepared, name: &str, target: PathBuf) -> ReceiverSpec {
    ReceiverSpec {
        name: name.into(),
        rendezvous: Rendezvous::At(source.control_address(), source.handle()),
        called: None,
        location: polycast_types::Location::default(),
        interface: own_address(),
        sink: Sink::At { path: target, replace: false },
        options: patient(),
        cancel: Arc::default(),
    }
}

type Receiving = JoinHandle<Result<Received, TransferError>>;

fn start_receiver(source: &Prepared, name: &str, target: PathBuf, options: Options) -> Receiving {
    let spec = ReceiverSpec { options, ..receiver_spec(source, name, target) };
    std::thread::spawn(move || receive(spec, &mut |_| ()))
}

/// Delivers to `receivers` and compares what they got byte for byte.
fn deliver(object: &[u8], receivers: usize, path: Path, options: &Options) -> (Report, Vec<Received>) {
    let dir = polycast_testing::folder_in_memory();
    let prepared = source(object.to_vec(), receivers, path, options.clone());
    let target = |i: usize| dir.path().join(format!("r{i}/object"));
    let running: Vec<Receiving> = (0..receivers)
        .map(|i| start_receiver(&prepared, &format!("r{i}"), target(i), options.clone()))
        .collect();
    let report = prepared.run(&mut |_| ()).unwrap();
    let received: Vec<Received> = running.into_iter().map(|r| r.join().unwrap().unwrap()).collect();
    for (i, got) in received.iter().enumerate() {
        assert_eq!(got.path, target(i));
        assert!(std::fs::read(target(i)).unwrap() == object, "receiver {i} got other bytes");
        assert_eq!(got.root, blake3::hash(object).to_hex().to_string());
        assert_eq!(
            std::fs::read_dir(target(i).parent().unwrap()).unwrap().count(),
            1,
            "something was left behind"
        );
    }
    assert!(report.receivers.iter().all(|r| r.verified && r.error.is_none()), "{report:?}");
    (report, received)
}

fn multicast() -> Path {
    Path::Multicast { group: group(), rate: None, attempts: None, outer: Vec::new() }
}

/// Bytes that the source has sent unasked: a machine that is busy may lose any number of packets, and those
/// that lack them ask for patches.
fn unasked(report: &Report) -> u64 {
    report.sent_bytes - report.patched_bytes
}

#[test]
fn objects_of_all_sizes_arrive() {
    for len in
        [0, 1, FRAGMENT - 1, FRAGMENT, FRAGMENT + 1, (256 << 10) - 1, 256 << 10, (256 << 10) + 1, 3_000_000]
    {
        let (report, _) = deliver(&bytes(len), 3, multicast(), &patient());
        assert_eq!(report.bytes, len as u64);
        assert_eq!(report.fabric, "ip-multicast");
    }
}

#[test]
fn without_loss_every_byte_is_sent_once() {
    let (report, _) = deliver(&bytes(30_000_000), 4, multicast(), &patient());
    assert!(unasked(&report) < 30_000_000 * 101 / 100, "{report:?}");
}

#[test]
fn losses_are_repaired_with_few_more_bytes() {
    let options = Options { loss: 0.05, seed: 7, ..patient() };
    let (report, received) = deliver(&bytes(20_000_000), 4, multicast(), &options);
    assert!(received.iter().all(|r| r.patched_bytes > 400_000), "{received:?}");
    assert!(unasked(&report) < 20_000_000 * 101 / 100, "{report:?}");
    // One patch serves several; some are lost themselves.
    let lost: u64 = received.iter().map(|r| r.patched_bytes).sum();
    assert!(report.patched_bytes < lost, "{} bytes for {lost} that were lost", report.patched_bytes);
}

/// An older version.
struct Older(Vec<u8>);

/// Delivers a new version of an object to receivers of which each has one of these older versions, or none;
/// gives the report and what they got.
fn deliver_over(object: &[u8], older: Vec<Option<Older>>, path: Path) -> (Report, Vec<Received>) {
    let dir = polycast_testing::folder_in_memory();
    let prepared = source(object.to_vec(), older.len(), path, patient());
    let running: Vec<Receiving> = older
        .into_iter()
        .enumerate()
        .map(|(i, older)| {
            let held = older.map(|older| Arc::new(older.0));
            let found =
                move |_: &_| held.iter().map(|bytes| Arc::clone(bytes) as Arc<dyn ObjectSource>).collect();
            let options = Options { older: OlderVersions::found_by(found), ..patient() };
            start_receiver(&prepared, &format!("r{i}"), dir.path().join(format!("r{i}")), options)
        })
        .collect();
    let report = prepared.run(&mut |_| ()).unwrap();
    let received: Vec<Received> = running.into_iter().map(|r| r.join().unwrap().unwrap()).collect();
    for got in &received {
        assert!(std::fs::read(&got.path).unwrap() == object, "other bytes");
    }
    (report, received)
}

#[test]
fn of_a_new_version_only_changed_groups_are_sent() {
    const GROUPS: usize = 400;
    let object = bytes(GROUPS << 18);
    let changed = |at: &[usize]| {
        let mut older = object.clone();
        at.iter().for_each(|group| older[(group << 18) + 1_000] ^= 1);
        Some(Older(older))
    };
    for path in [multicast(), Path::Chain] {
        // One per cent has changed, at both receivers the same; one of them is longer than the new one.
        let same = [7, 100, 101, 399];
        let mut longer = changed(&same).unwrap();
        longer.0.extend_from_slice(&[9; 1_000]);
        let over_tcp = path == Path::Chain;
        let (report, received) = deliver_over(&object, vec![changed(&same), Some(longer)], path);
        let most = if over_tcp { given_most(4 << 18, 2) } else { object.len() as u64 * 15 / 1_000 };
        assert!((4 << 18..=most).contains(&unasked(&report)), "{} bytes sent", report.sent_bytes);
        for (got, told) in received.iter().zip(&report.receivers) {
            assert_eq!(got.spared_bytes, (GROUPS as u64 - 4) << 18);
            // The source counts fragments, of which some lie in two groups.
            let range = got.spared_bytes - 8 * FRAGMENT as u64..=got.spared_bytes;
            assert!(range.contains(&told.spared_bytes), "{told:?}");
        }
        assert_eq!(report.spared_bytes, report.receivers.iter().map(|r| r.spared_bytes).sum::<u64>());
    }
    // One that has another object, one that is short, one that has nothing: they get what they lack.
    let older = vec![Some(Older(vec![3; object.len()])), Some(Older(object[..50 << 18].to_vec())), None];
    let (report, received) = deliver_over(&object, older, multicast());
    assert_eq!(received.iter().map(|r| r.spared_bytes).collect::<Vec<_>>(), [0, 50 << 18, 0]);
    assert!(unasked(&report) < object.len() as u64 * 101 / 100, "{} bytes sent", report.sent_bytes);
}

/// Bytes of which no group is like another one.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..len).map(next).collect()
}

#[test]
fn what_has_moved_is_taken_from_where_it_lies() {
    const GROUPS: usize = 100;
    let before = noise(GROUPS << 18);
    let mut object = before.clone();
    object.splice((3 << 18) + 5..(3 << 18) + 5, noise(1_000));
    object.drain((60 << 18) + 7..(60 << 18) + 707);
    let len = object.len() as u64;
    for path in [multicast(), Path::Chain] {
        let older = vec![Some(Older(before.clone())), Some(Older(before.clone()))];
        let over_tcp = path == Path::Chain;
        let (report, received) = deliver_over(&object, older, path);
        // Of each place the group that was changed, and what is left of the one behind it.
        assert!(received.iter().all(|got| got.spared_bytes >= len - (4 << 18)), "{received:?}");
        let most = if over_tcp { given_most(4 << 18, 2) } else { 2 * (5 << 18) };
        assert!(unasked(&report) <= most, "{} bytes sent", report.sent_bytes);
    }
    // A version as long as the object is not searched: weights keep their length, and nothing in them moves.
    let mut as_long = before.clone();
    as_long.splice(3 << 18..3 << 18, noise(500));
    as_long.truncate(object.len());
    as_long.resize(object.len(), 0);
    // Nor is what has nothing of the object, for long.
    let older = vec![Some(Older(as_long)), Some(Older(vec![7; object.len() + 9]))];
    let (_, received) = deliver_over(&object, older, multicast());
    assert_eq!(received.iter().map(|got| got.spared_bytes).collect::<Vec<_>>(), [3 << 18, 0]);
}

/// As in a network whose switches forward by labels.
#[test]
fn every_datagram_may_have_the_networks_own_header_first() {
    let options = Options { loss: 0.02, seed: 3, ..patient() };
    for (len, outer_len) in [(FRAGMENT - 28, 28), (5_000_000, 28), (3_000_000, 172)] {
        let path =
            Path::Multicast { group: group(), rate: None, attempts: None, outer: vec![vec![7; outer_len]] };
        let (report, _) = deliver(&bytes(len), 3, path, &options);
        assert_eq!(report.fabric, "ip-multicast");
    }
}

/// Over TCP a source gives each group once. On a machine that stands still for long it gives groups again: to
/// each of those that lack them once.
fn given_most(bytes: u64, receivers: usize) -> u64 {
    bytes * (receivers as u64 + 1)
}

#[test]
fn receivers_bring_the_object_to_each_other() {
    for (len, receivers) in
        [(0, 2), (1, 1), (300_000, 3), (9_000_000, 1), (9_000_000, 2), (9_000_000, 4), (40_000_000, 6)]
    {
        // Where it gave many groups again it is tried again.
        polycast_testing::until("the source gives about one object", || {
            let (report, received) = deliver(&bytes(len), receivers, Path::Chain, &patient());
            assert_eq!(report.fabric, "tcp-chain");
            assert!(received.iter().all(|got| got.bytes == len as u64), "{received:?}");
            let len = len as u64;
            assert!((len..=given_most(len, receivers)).contains(&report.sent_bytes), "{report:?}");
            report.sent_bytes <= len * 11 / 10
        });
    }
}

#[test]
fn receivers_that_multicast_does_not_reach_choose_by_themselves() {
    let options = Options { loss: 1.0, path_timeout: Duration::from_millis(300), ..patient() };
    let (report, _) = deliver(&bytes(5_000_000), 3, multicast(), &options);
    assert!(report.fabric.ends_with("tcp-chain"), "{}", report.fabric);
    assert!(report.receivers.iter().all(|r| r.fabric == "tcp-chain"), "{report:?}");
}

#[test]
fn a_granted_rate_is_kept() {
    let rate = polycast_types::Rate(200_000_000);
    let path = Path::Multicast { group: group(), rate: Some(rate), attempts: None, outer: Vec::new() };
    let (report, _) = deliver(&bytes(5_000_000), 2, path, &patient());
    let ideal = 5e6 * 8.0 / 200e6;
    assert!(report.seconds > ideal * 0.95, "{} s, ideal {ideal} s", report.seconds);
}

/// The rate is that of all that the source sends: one that multicast does not reach gets its bytes no faster.
#[test]
fn a_granted_rate_is_kept_over_tcp_too() {
    let rate = polycast_types::Rate(50_000_000);
    let path = Path::Multicast { group: group(), rate: Some(rate), attempts: None, outer: Vec::new() };
    let options = Options { loss: 1.0, path_timeout: Duration::from_millis(100), ..patient() };
    let (report, _) = deliver(&bytes(5_000_000), 1, path, &options);
    assert_eq!(report.receivers[0].fabric, "tcp-chain");
    let ideal = 5e6 * 8.0 / 50e6;
    assert!(report.seconds > ideal * 0.95, "{} s, ideal {ideal} s", report.seconds);
}

/// A transfer of which there is a second at least.
fn slow_multicast() -> Path {
    let rate = Some(polycast_types::Rate(100_000_000));
    Path::Multicast { group: group(), rate, attempts: None, outer: Vec::new() }
}

#[test]
fn a_receiver_that_leaves_is_named_and_the_others_finish() {
    let dir = polycast_testing::folder_in_memory();
    let trickle = Trickle::new(&Arc::new(bytes(12_000_000)), 2_000_000);
    let prepared = prepare(SourceSpec {
        source: Arc::clone(&trickle) as _,
        ..spec(Vec::new(), 3, slow_multicast(), patient())
    });
    let prepared = prepared.unwrap();
    let running: Vec<_> = (0..3)
        .map(|i| {
            let spec = receiver_spec(&prepared, &format!("r{i}"), dir.path().join(format!("{i}")));
            let (cancel, trickle) = (Arc::clone(&spec.cancel), Arc::clone(&trickle));
            std::thread::spawn(move || {
                let received = receive(spec, &mut |progress| {
                    cancel.fetch_or(i == 1 && progress.bytes > 0, Ordering::Relaxed);
                });
                // The others have the rest soon when it has gone.
                trickle.open();
                received
            })
        })
        .collect();
    let report = prepared.run(&mut |_| ()).unwrap();
    let outcomes: Vec<bool> = running.into_iter().map(|thread| thread.join().unwrap().is_ok()).collect();
    assert_eq!(outcomes, [true, false, true]);
    let failed: Vec<_> = report.receivers.iter().filter(|r| !r.verified).collect();
    assert_eq!(failed.len(), 1);
    assert_eq!(failed[0].name, "r1");
    assert_eq!(failed[0].error.as_deref(), Some("cancelled"));
    // Nothing half-written is visible; what is verified is kept for another try.
    assert!(!dir.path().join("1").exists() && part_path(&dir.path().join("1")).exists());
}

/// A part file that an earlier try left is verified, and only what is wrong or missing in it is sent.
#[test]
fn a_receiver_resumes_from_its_part_file() {
    let dir = polycast_testing::folder_in_memory();
    let object = bytes(20 << 20);
    let target = dir.path().join("object");
    let mut part = object.clone();
    part[15 << 20..].fill(0);
    part[3 << 20] ^= 1;
    std::fs::write(part_path(&target), &part).unwrap();
    let prepared = source(object.clone(), 1, multicast(), patient());
    let running = start_receiver(&prepared, "r0", target.clone(), patient());
    let report = prepared.run(&mut |_| ()).unwrap();
    running.join().unwrap().unwrap();
    assert!(std::fs::read(&target).unwrap() == object);
    assert!(unasked(&report) < 7 << 20, "{} bytes sent for 5.25 MiB that were missing", report.sent_bytes);
}

#[test]
fn when_the_source_goes_away_the_verified_part_is_kept() {
    let dir = polycast_testing::folder_in_memory();
    let target = dir.path().join("object");
    let source = Trickle::new(&Arc::new(bytes(20_000_000)), 4_000_000);
    let sending = SourceSpec { source, ..spec(Vec::new(), 1, slow_multicast(), patient()) };
    let cancel = Arc::clone(&sending.cancel);
    let prepared = prepare(sending).unwrap();
    let receiving = receiver_spec(&prepared, "r0", target.clone());
    let running = std::thread::spawn(move || {
        receive(receiving, &mut |progress| {
            cancel.fetch_or(progress.bytes > 0, Ordering::Relaxed);
        })
    });
    assert!(matches!(prepared.run(&mut |_| ()), Err(TransferError::Cancelled)));
    let error = running.join().unwrap().unwrap_err();
    assert!(matches!(error, TransferError::Ended { .. } | TransferError::SourceLost { .. }), "{error}");
    assert!(!target.exists() && part_path(&target).exists());
}

#[test]
fn a_store_without_room_is_named_at_once() {
    let dir = polycast_testing::folder_in_memory();
    /// Claims to be larger than any disk.
    struct Huge;
    impl polycast_net::object::ObjectSource for Huge {
        fn len(&self) -> u64 {
            1 << 49
        }
        fn read_exact_at(&self, buffer: &mut [u8], _: u64) -> std::io::Result<()> {
            buffer.fill(0);
            Ok(())
        }
    }
    let prepared = prepare(SourceSpec {
        object: ObjectId::default(),
        name: "huge".into(),
        kind: ObjectKind::File,
        source: Arc::new(Huge),
        root: None,
        receivers: Receivers::Told(1),
        location: polycast_types::Location::default(),
        interface: own_address(),
        path: multicast(),
        options: patient(),
        cancel: Arc::default(),
        steering: Arc::default(),
    })
    .unwrap();
    let running = start_receiver(&prepared, "r0", dir.path().join("object"), patient());
    // The source is told at once, and its report says why.
    let report = prepared.run(&mut |_| ()).unwrap();
    assert!(report.receivers[0].error.as_ref().unwrap().contains("full"), "{report:?}");
    let error = running.join().unwrap().unwrap_err().to_string();
    assert!(error.contains("full"), "{error}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn what_is_there_stays_and_the_source_hears_why() {
    let dir = polycast_testing::folder_in_memory();
    let target = dir.path().join("object");
    std::fs::write(&target, b"mine").unwrap();
    let prepared = source(bytes(100), 1, multicast(), patient());
    let running = start_receiver(&prepared, "r0", target.clone(), patient());
    let report = prepared.run(&mut |_| ()).unwrap();
    assert!(report.receivers[0].error.as_ref().unwrap().contains("is there already"), "{report:?}");
    running.join().unwrap().unwrap_err();
    assert_eq!(std::fs::read(&target).unwrap(), b"mine");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn names_of_the_source_stay_within_the_folder() {
    for name in [".bashrc", "../up", "a\u{1b}[2J"] {
        let dir = polycast_testing::folder_in_memory();
        let folder = dir.path().join("folder");
        std::fs::create_dir(&folder).unwrap();
        let prepared =
            prepare(SourceSpec { name: name.into(), ..spec(bytes(100), 1, multicast(), patient()) });
        let prepared = prepared.unwrap();
        let stranger = ReceiverSpec {
            sink: Sink::Into { folder: folder.clone(), replace: true },
            ..receiver_spec(&prepared, "r0", dir.path().join("unused"))
        };
        let running = std::thread::spawn(move || receive(stranger, &mut |_| ()));
        let report = prepared.run(&mut |_| ()).unwrap();
        assert!(!report.receivers[0].verified, "{report:?}");
        let error = running.join().unwrap().unwrap_err();
        assert!(matches!(&error, TransferError::Name(..)), "{error}");
        assert!(!error.to_string().contains('\u{1b}'), "{error}");
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}

#[test]
fn permissions_and_time_travel_with_a_file() {
    let dir = polycast_testing::folder_in_memory();
    let from = dir.path().join("from");
    std::fs::write(&from, b"secret").unwrap();
    std::fs::set_permissions(&from, std::fs::Permissions::from_mode(0o500)).unwrap();
    // Before 1970, and not at a whole second.
    let changed = std::time::SystemTime::UNIX_EPOCH - std::time::Duration::new(86_400, 5);
    std::fs::File::open(&from).unwrap().set_modified(changed).unwrap();
    let object = Arc::new(FileSource::open(&from).unwrap());
    let prepared = prepare(SourceSpec { source: object, ..spec(Vec::new(), 1, multicast(), patient()) });
    let prepared = prepared.unwrap();
    let target = dir.path().join("to");
    let running = start_receiver(&prepared, "r0", target.clone(), patient());
    prepared.run(&mut |_| ()).unwrap();
    assert_eq!(running.join().unwrap().unwrap().mode, 0o500);
    let there = std::fs::metadata(&target).unwrap();
    assert_eq!((there.permissions().mode() & 0o7777, there.modified().unwrap()), (0o500, changed));
}

/// Holes are not sent, over any way, and are holes where they arrive.
#[test]
fn holes_of_a_file_are_not_sent() {
    let dir = polycast_testing::folder_in_memory();
    let from = dir.path().join("from");
    let file = std::fs::File::create(&from).unwrap();
    file.set_len(64 << 20).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"data", 40_000_000).unwrap();
    for (way, path) in [multicast(), Path::Chain].into_iter().enumerate() {
        let object = Arc::new(FileSource::open(&from).unwrap());
        let prepared =
            prepare(SourceSpec { source: object, ..spec(Vec::new(), 1, path, patient()) }).unwrap();
        let target = dir.path().join(format!("to{way}"));
        let running = start_receiver(&prepared, "r0", target.clone(), patient());
        let report = prepared.run(&mut |_| ()).unwrap();
        let received = running.join().unwrap().unwrap();
        assert!(report.sent_bytes < 1 << 20, "{report:?}");
        // Nothing was here already.
        assert_eq!((report.spared_bytes, received.spared_bytes, received.unchanged), (0, 0, false));
        assert!(std::fs::read(&target).unwrap() == std::fs::read(&from).unwrap());
        let blocks = std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(&target).unwrap());
        assert!(blocks * 512 < 1 << 20, "{blocks} blocks");
    }
}

/// Brings what is at the target up to date.
fn update(kind: ObjectKind, source: Arc<dyn ObjectSource>, target: &std::path::Path) -> Received {
    let spec = SourceSpec { kind, source, ..spec(Vec::new(), 1, multicast(), patient()) };
    let prepared = prepare(spec).unwrap();
    let options = Options { update: true, ..patient() };
    let running = start_receiver(&prepared, "r0", target.to_path_buf(), options);
    prepared.run(&mut |_| ()).unwrap();
    running.join().unwrap().unwrap()
}

/// Bytes where the object has holes are not the object, however equal the rest is.
#[test]
fn what_differs_in_holes_only_is_brought_up_to_date() {
    let dir = polycast_testing::folder_in_memory();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    std::fs::File::create(&from).unwrap().set_len(4 << 20).unwrap();
    std::fs::write(&to, vec![0xff; 4 << 20]).unwrap();
    for unchanged in [false, true] {
        let received = update(ObjectKind::File, Arc::new(FileSource::open(&from).unwrap()), &to);
        assert!(std::fs::read(&to).unwrap() == std::fs::read(&from).unwrap(), "unchanged: {unchanged}");
        assert_eq!((received.unchanged, received.spared_bytes), (unchanged, 0));
    }
}

/// All groups of the object are in the directory, and some of them are elsewhere: it is not the object.
#[test]
fn what_has_moved_within_a_directory_is_brought_up_to_date() {
    let dir = polycast_testing::folder_in_memory();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(981_158_400);
    let make = |folder: &std::path::Path, bytes: &[u8]| {
        std::fs::create_dir(folder).unwrap();
        std::fs::write(folder.join("file"), bytes).unwrap();
        for path in [folder.join("file"), folder.to_path_buf()] {
            std::fs::File::open(path).unwrap().set_modified(time).unwrap();
        }
    };
    let object = bytes(4 << 20);
    make(&from, &object);
    let mut begin = vec![0; 8 << 10];
    TreeSource::open(&from).unwrap().read_exact_at(&mut begin, 0).unwrap();
    let headers_len = begin.windows(64).position(|window| *window == object[..64]).unwrap();
    // Whole groups take each other's places. The first one has the headers, and stays.
    let mut moved = object.clone();
    moved[(1 << 18) - headers_len..(15 << 18) - headers_len].rotate_left(5 << 18);
    make(&to, &moved);
    for unchanged in [false, true] {
        let received = update(ObjectKind::Directory, Arc::new(TreeSource::open(&from).unwrap()), &to);
        assert!(std::fs::read(to.join("file")).unwrap() == object, "unchanged: {unchanged}");
        assert_eq!((received.unchanged, received.spared_bytes), (unchanged, received.bytes));
    }
}

/// An object before whose last part the disk is slow: each read takes a turn of the source. It counts the
/// slow reads of which the caller has heard nothing.
struct SlowBefore {
    bytes: Vec<u8>,
    slow_until: u64,
    unheard: AtomicUsize,
    unheard_most: AtomicUsize,
}

/// Time that a slow read takes: longer than a turn of reading, and than the interval between two events.
const SLOW_READ: std::time::Duration = std::time::Duration::from_millis(120);

impl ObjectSource for SlowBefore {
    fn len(&self) -> u64 {
        ObjectSource::len(&self.bytes)
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> std::io::Result<()> {
        if offset < self.slow_until && buffer.len() == 256 << 10 {
            let unheard = self.unheard.fetch_add(1, Ordering::Relaxed) + 1;
            self.unheard_most.fetch_max(unheard, Ordering::Relaxed);
            std::thread::sleep(SLOW_READ);
        }
        self.bytes.read_exact_at(buffer, offset)
    }
}

/// With a first byte near the end all before it is hashed before a packet leaves. The source hears its
/// receivers and its caller between two reads.
#[test]
fn a_source_listens_while_it_hashes_up_to_the_first_byte() {
    const GROUPS: usize = 40;
    let object = bytes(GROUPS << 18);
    let slow = Arc::new(SlowBefore {
        bytes: object.clone(),
        slow_until: 30 << 18,
        unheard: AtomicUsize::new(0),
        unheard_most: AtomicUsize::new(0),
    });
    let options = Options { first_byte: object.len() as u64 - 1, ..patient() };
    let sending = SourceSpec { source: Arc::clone(&slow) as _, ..spec(Vec::new(), 2, multicast(), options) };
    let prepared = prepare(sending).unwrap();
    let dir = polycast_testing::folder_in_memory();
    let targets = ["a", "b"].map(|name| dir.path().join(name));
    let running: Vec<Receiving> =
        targets.iter().map(|target| start_receiver(&prepared, "r", target.clone(), patient())).collect();
    let report = prepared.run(&mut |_| slow.unheard.store(0, Ordering::Relaxed)).unwrap();
    running.into_iter().for_each(|receiver| drop(receiver.join().unwrap().unwrap()));
    assert!(report.receivers.iter().all(|receiver| receiver.verified), "{report:?}");
    assert!(targets.iter().all(|target| std::fs::read(target).unwrap() == object));
    assert_eq!(report.fabric, "ip-multicast");
    let most = slow.unheard_most.load(Ordering::Relaxed);
    assert!(most <= 2, "{most} reads in a turn");
}

#[test]
fn a_receiver_that_has_the_object_needs_no_byte_of_it() {
    let object = bytes(3_000_000);
    let root = *blake3::hash(&object).as_bytes();
    let (length, bytes) = (object.len() as u64, Arc::new(object.clone()));
    let held = Held { object: ObjectId::default(), length, root, bytes };
    for path in [multicast(), Path::Chain] {
        let prepared = source(object.clone(), 1, path, patient());
        let spec = receiver_spec(&prepared, "r0", PathBuf::from("/nowhere"));
        let held = held.clone();
        let running = std::thread::spawn(move || confirm(&spec, &held));
        let report = prepared.run(&mut |_| ()).unwrap();
        running.join().unwrap().unwrap();
        assert!(report.receivers[0].verified, "{report:?}");
        assert_eq!((report.sent_bytes, report.patched_bytes), (0, 0));
    }
    // Another object of the same length is none.
    let prepared = source(object, 1, multicast(), patient());
    let spec = receiver_spec(&prepared, "r0", PathBuf::from("/nowhere"));
    let other = Held { root: [7; 32], ..held };
    let running = std::thread::spawn(move || confirm(&spec, &other));
    let report = prepared.run(&mut |_| ()).unwrap();
    running.join().unwrap().unwrap_err();
    assert!(!report.receivers[0].verified, "{report:?}");
    assert!(report.receivers[0].error.as_ref().unwrap().contains("there is another object"), "{report:?}");
}

#[test]
fn a_transfer_that_is_full_or_unknown_turns_receivers_away() {
    let dir = polycast_testing::folder_in_memory();
    let prepared = source(bytes(100), 1, multicast(), patient());
    let (address, handle) = (prepared.control_address(), prepared.handle());
    let wrong = polycast_types::Handle(handle.0 ^ 1);
    let stranger = ReceiverSpec {
        name: "stranger".into(),
        rendezvous: Rendezvous::At(address, wrong),
        called: None,
        location: polycast_types::Location::default(),
        interface: own_address(),
        sink: Sink::At { path: dir.path().join("a"), replace: false },
        options: patient(),
        cancel: Arc::default(),
    };
    let turned_away = std::thread::spawn(move || receive(stranger, &mut |_| ()));
    let source = std::thread::spawn(move || prepared.run(&mut |_| ()));
    let error = turned_away.join().unwrap().unwrap_err().to_string();
    assert!(error.contains("no such transfer"), "{error}");
    let welcome = ReceiverSpec {
        name: "r0".into(),
        rendezvous: Rendezvous::At(address, handle),
        called: None,
        location: polycast_types::Location::default(),
        interface: own_address(),
        sink: Sink::At { path: dir.path().join("b"), replace: false },
        options: patient(),
        cancel: Arc::default(),
    };
    receive(welcome, &mut |_| ()).unwrap();
    assert!(source.join().unwrap().unwrap().receivers[0].verified);
}
