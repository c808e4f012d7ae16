//! A transfer that is ended on purpose: what receivers have verified stays, and the next one sends the rest
//! only.

mod common;

use common::{Trickle, patient};
use polycast_agent::transfer::{
    Options, Path, Prepared, ReceiverSpec, Receivers, Rendezvous, Report, Sink, SourceSpec, TransferError,
    prepare, receive,
};
use polycast_net::object::ObjectKind;
use polycast_net::store::part_path;
use polycast_testing::{multicast_group, own_address};
use polycast_types::{Duration, ObjectId, Rate};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};

/// Length of the object.
const LEN: usize = 20_000_000;
/// Number of verified bytes at which the transfer is ended.
const ENDED_AT: u64 = LEN as u64 * 60 / 100;
/// Number of bytes after which the object trickles until then.
const TRICKLES_FROM: u64 = LEN as u64 * 65 / 100;
/// Bytes that the next transfer may send besides the ones not verified: fragments around them, and data in
/// flight when a connection was made again.
const BESIDE_MAX: u64 = LEN as u64 / 10;

/// Cause of the end of the first transfer.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Ends {
    Source,
    Receiver,
    Deadline,
}

fn multicast() -> Path {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    let process = std::process::id().to_be_bytes();
    let group = SocketAddr::from((multicast_group([239, 255, 192 ^ process[3] & 31, n as u8]), 32_000 + n));
    Path::Multicast { group, rate: Some(Rate(200_000_000)), attempts: None, outer: Vec::new() }
}

fn source(
    source: Arc<Trickle>,
    path: Path,
    deadline: Option<Duration>,
    cancel: &Arc<AtomicBool>,
) -> Prepared {
    prepare(SourceSpec {
        object: ObjectId::default(),
        name: "object".into(),
        kind: ObjectKind::File,
        source,
        root: None,
        receivers: Receivers::Told(1),
        location: polycast_types::Location::default(),
        interface: own_address(),
        path,
        options: Options { deadline, ..patient() },
        cancel: Arc::clone(cancel),
        steering: Arc::default(),
    })
    .unwrap()
}

/// Runs a transfer; `ended` is set when so much is verified. Gives how much that was at last, too.
fn run(
    prepared: Prepared,
    target: PathBuf,
    ended: &Arc<AtomicBool>,
    receiver_cancel: &Arc<AtomicBool>,
) -> (Result<Report, TransferError>, Result<(), TransferError>, u64) {
    let spec = ReceiverSpec {
        name: "r0".into(),
        rendezvous: Rendezvous::At(prepared.control_address(), prepared.handle()),
        called: None,
        location: polycast_types::Location::default(),
        interface: own_address(),
        sink: Sink::At { path: target, replace: false },
        options: patient(),
        cancel: Arc::clone(receiver_cancel),
    };
    let (ended, verified) = (Arc::clone(ended), Arc::new(AtomicU64::new(0)));
    let told = Arc::clone(&verified);
    let receiving = std::thread::spawn(move || {
        receive(spec, &mut |progress| {
            told.store(progress.bytes, Ordering::Relaxed);
            ended.fetch_or(progress.bytes >= ENDED_AT, Ordering::Relaxed);
        })
        .map(drop)
    });
    let delivered = prepared.run(&mut |_| ());
    let received = receiving.join().unwrap();
    (delivered, received, verified.load(Ordering::Relaxed))
}

/// Ends a transfer at 60 %, or at a deadline, and gives what the next one sends, and may send.
fn again_after(path: fn() -> Path, ends: Ends) -> (u64, u64) {
    let bytes: Arc<Vec<u8>> = Arc::new((0..LEN).map(|i| (i * 31 + i / 255 + i / 65_537) as u8).collect());
    let dir = polycast_testing::folder_in_memory();
    let target = dir.path().join("object");
    let (unused, cancel) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (at_source, at_receiver) =
        if ends == Ends::Receiver { (&unused, &cancel) } else { (&cancel, &unused) };
    let ended = if ends == Ends::Deadline { Arc::default() } else { Arc::clone(&cancel) };
    // The deadline is over before the last third can have been read, which takes 17 s. It is a later one
    // where nothing was verified by the first.
    let deadlines = match ends {
        Ends::Deadline => vec![Some(2), Some(8), Some(14)],
        _ => vec![None],
    };
    let first = deadlines.into_iter().find_map(|seconds| {
        let deadline = seconds.map(Duration::from_secs);
        let first = source(Trickle::new(&bytes, TRICKLES_FROM), path(), deadline, at_source);
        let (_, received, verified) = run(first, target.clone(), &ended, at_receiver);
        (verified > 0).then_some((received.expect_err("it was ended"), verified))
    });
    let (error, verified) = first.expect("something is verified by the last deadline");
    assert!(!target.exists() && part_path(&target).exists(), "something half-written is visible");
    let words = error.to_string();
    assert!(words.contains("kept"), "{words}");

    let quick = Trickle::new(&bytes, 0);
    quick.open();
    let second = source(quick, path(), None, &Arc::default());
    let (delivered, received, _) = run(second, target.clone(), &Arc::default(), &Arc::default());
    received.unwrap();
    assert!(std::fs::read(&target).unwrap() == **bytes, "other bytes");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "something was left behind");
    let report = delivered.unwrap();
    (report.sent_bytes - report.patched_bytes, LEN as u64 - verified + BESIDE_MAX)
}

fn the_next_transfer_sends_the_rest(path: fn() -> Path) {
    for ends in [Ends::Source, Ends::Receiver, Ends::Deadline] {
        let (sent, most) = again_after(path, ends);
        assert!((1..=most).contains(&sent), "{ends:?}: {sent} bytes were sent again, and {most} may be");
    }
}

#[test]
fn by_multicast_the_next_transfer_sends_the_rest() {
    the_next_transfer_sends_the_rest(multicast);
}

#[test]
fn over_tcp_the_next_transfer_sends_the_rest() {
    the_next_transfer_sends_the_rest(|| Path::Chain);
}
