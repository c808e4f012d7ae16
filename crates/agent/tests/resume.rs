//! A transfer that is ended on purpose: what receivers have verified stays, and the next one sends the rest only.

use polycast_agent::transfer::{
    Options, Path, Prepared, ReceiverSpec, Receivers, Rendezvous, Report, Sink, SourceSpec, TransferError,
    prepare, receive,
};
use polycast_net::object::{ObjectKind, ObjectSource};
use polycast_types::{Duration, ObjectId, Rate};
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};

/// Length of the object.
const LEN: usize = 20_000_000;
/// The transfer is ended when so much is verified.
const ENDED_AT: u64 = LEN as u64 * 60 / 100;
/// The next one may send so much.
const AGAIN_MAX: u64 = LEN as u64 * 45 / 100;
/// What the source reads in a second, so that there is time to end it.
const READ_RATE: f64 = 25e6;

/// What ends the first transfer.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Ends {
    Source,
    Receiver,
    Deadline,
}

/// Bytes on a slow disk: read at `rate` bytes a second from `from` on.
struct Slow {
    bytes: Arc<Vec<u8>>,
    from: u64,
    rate: f64,
}

impl ObjectSource for Slow {
    fn len(&self) -> u64 {
        ObjectSource::len(&*self.bytes)
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        if offset + buffer.len() as u64 > self.from {
            std::thread::sleep(std::time::Duration::from_secs_f64(buffer.len() as f64 / self.rate));
        }
        self.bytes.read_exact_at(buffer, offset)
    }
}

fn multicast() -> Path {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    let process = std::process::id().to_be_bytes();
    let group = SocketAddrV4::new(Ipv4Addr::new(239, 255, 192 ^ process[3] & 31, n as u8), 32_000 + n);
    Path::Multicast { group, rate: Some(Rate(200_000_000)), attempts: None, outer: Vec::new() }
}

fn source(bytes: Slow, path: Path, deadline: Option<Duration>, cancel: &Arc<AtomicBool>) -> Prepared {
    prepare(SourceSpec {
        object: ObjectId::default(),
        name: "object".into(),
        kind: ObjectKind::File,
        source: Arc::new(bytes),
        root: None,
        receivers: Receivers::Told(1),
        interface: Ipv4Addr::LOCALHOST,
        path,
        options: Options { deadline, ..Options::default() },
        cancel: Arc::clone(cancel),
        steering: Arc::default(),
    })
    .unwrap()
}

/// Runs a transfer; `ended` is set when so much is verified.
fn run(
    prepared: Prepared,
    target: PathBuf,
    ended: &Arc<AtomicBool>,
    receiver_cancel: &Arc<AtomicBool>,
) -> (Result<Report, TransferError>, Result<(), TransferError>) {
    let spec = ReceiverSpec {
        name: "r0".into(),
        rendezvous: Rendezvous::At(prepared.control_address(), prepared.handle()),
        interface: Ipv4Addr::LOCALHOST,
        sink: Sink::At { path: target, replace: false },
        options: Options::default(),
        cancel: Arc::clone(receiver_cancel),
    };
    let ended = Arc::clone(ended);
    let receiving = std::thread::spawn(move || {
        receive(spec, &mut |progress| {
            if progress.bytes >= ENDED_AT {
                ended.store(true, Ordering::Relaxed);
            }
        })
        .map(drop)
    });
    let delivered = prepared.run(&mut |_| ());
    (delivered, receiving.join().unwrap())
}

/// Ends a transfer at 60 %, and gives what the next one sends.
fn again_after(path: fn() -> Path, ends: Ends) -> u64 {
    let bytes: Arc<Vec<u8>> = Arc::new((0..LEN).map(|i| (i * 31 + i / 255 + i / 65_537) as u8).collect());
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("object");
    let (unused, cancel) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (slow, deadline) = match ends {
        // The deadline is over before the last third can have been read, which takes 7 s. A receiver waits 2 s for an answer, and the
        // source gives it between two reads.
        Ends::Deadline => {
            let slow = Slow { bytes: Arc::clone(&bytes), from: ENDED_AT + (1 << 20), rate: 1e6 };
            (slow, Some(Duration::from_secs(3)))
        }
        _ => (Slow { bytes: Arc::clone(&bytes), from: 0, rate: READ_RATE }, None),
    };
    let (at_source, at_receiver) =
        if ends == Ends::Receiver { (&unused, &cancel) } else { (&cancel, &unused) };
    let ended = if ends == Ends::Deadline { Arc::default() } else { Arc::clone(&cancel) };
    let first = source(slow, path(), deadline, at_source);
    let (_, received) = run(first, target.clone(), &ended, at_receiver);
    let error = received.expect_err("it was ended");
    assert!(!target.exists(), "something half-written is visible");
    let words = error.to_string();
    assert!(words.contains("kept"), "{words}");

    let quick = Slow { bytes: Arc::clone(&bytes), from: u64::MAX, rate: 1.0 };
    let second = source(quick, path(), None, &Arc::default());
    let (delivered, received) = run(second, target.clone(), &Arc::default(), &Arc::default());
    received.unwrap();
    assert!(std::fs::read(&target).unwrap() == **bytes, "other bytes");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "something was left behind");
    delivered.unwrap().sent_bytes
}

#[test]
fn by_multicast_the_next_transfer_sends_the_rest() {
    for ends in [Ends::Source, Ends::Receiver, Ends::Deadline] {
        let sent = again_after(multicast, ends);
        assert!((1..=AGAIN_MAX).contains(&sent), "{ends:?}: {sent} bytes were sent again");
    }
}

#[test]
fn over_tcp_the_next_transfer_sends_the_rest() {
    for ends in [Ends::Source, Ends::Receiver, Ends::Deadline] {
        let sent = again_after(|| Path::Chain, ends);
        assert!((1..=AGAIN_MAX).contains(&sent), "{ends:?}: {sent} bytes were sent again");
    }
}
