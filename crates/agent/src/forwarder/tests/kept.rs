//! Receivers over trees that are cancelled: what they have verified stays for another try.

use super::*;
use crate::transfer::{OlderVersions, PreparedPull};
use polycast_net::store::part_path;
use std::sync::atomic::AtomicU64;

/// Payload of a packet.
const PACKET: usize = 8_192;

/// An object at which a look takes until its owner allows it: before that its source does not send the root
/// hash. Nor are packets read for sending before the owner allows that.
struct LookedAt {
    bytes: Vec<u8>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    may_look: bool,
    may_send: bool,
    /// A packet was asked for.
    asked: bool,
}

impl LookedAt {
    fn of(bytes: &[u8]) -> Arc<Self> {
        Arc::new(LookedAt { bytes: bytes.to_vec(), state: Mutex::default(), changed: Condvar::new() })
    }

    fn set(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap());
        self.changed.notify_all();
    }

    fn wait_while(&self, condition: impl Fn(&State) -> bool) {
        drop(self.changed.wait_while(self.state.lock().unwrap(), |state| condition(state)).unwrap());
    }
}

impl ObjectSource for LookedAt {
    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn is_checked_quickly(&self) -> bool {
        false
    }

    fn check(&self) -> std::io::Result<()> {
        self.wait_while(|state| !state.may_look);
        Ok(())
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> std::io::Result<()> {
        if buffer.len() == PACKET {
            self.set(|state| state.asked = true);
            self.wait_while(|state| !state.may_send);
        }
        self.bytes.read_exact_at(buffer, offset)
    }
}

/// A source over one tree to the node `n1`, and a receiver there that writes to this path.
fn pair(node: &NodeHandle, object: Arc<dyn ObjectSource>, target: &Path) -> (PreparedPull, ReceiverSpec) {
    let path = TreePath {
        trees: 1,
        payload_len: PACKET as u16,
        credits: 16,
        link_bps: LINK_BPS,
        tuning: Default::default(),
        routes: [("n1".to_string(), vec![route(&[(0, false)])])].into(),
    };
    let spec = SourceSpec {
        object: ObjectId::default(),
        name: "object".into(),
        kind: ObjectKind::File,
        source: object,
        root: None,
        receivers: Receivers::Told(1),
        location: polycast_types::Location::default(),
        interface: Ipv4Addr::LOCALHOST.into(),
        path: TransferPath::Trees(path),
        options: Options { stall_timeout: HANG.into(), ..Options::default() },
        cancel: Arc::default(),
        steering: Arc::default(),
    };
    let prepared = prepare_pull(spec, node).unwrap();
    let receiver = ReceiverSpec {
        name: "n1".into(),
        rendezvous: Rendezvous::Pull(prepared.control_address(), prepared.handle()),
        called: None,
        location: polycast_types::Location::default(),
        interface: Ipv4Addr::LOCALHOST.into(),
        sink: Sink::At { path: target.to_path_buf(), replace: true },
        options: Options::default(),
        cancel: Arc::default(),
    };
    (prepared, receiver)
}

/// A receiver that has verified every byte and is cancelled before the source says the last word keeps them,
/// at whatever moment the node is done.
#[test]
fn what_is_verified_is_kept_while_the_source_looks_at_its_object() {
    let nodes = start_all(&configs(2, &[(0, 1)]));
    let folder = tempfile::tempdir().unwrap();
    // One list names all of its packets.
    let bytes = object(8 << 18);
    let (len, packets) = (bytes.len() as u64, (bytes.len() / PACKET) as u64);
    for at_once in [true, false] {
        let target = folder.path().join(format!("object-{at_once}"));
        let before = nodes[1].status().unwrap().ports[0].received;
        let source = LookedAt::of(&bytes);
        let (prepared, spec) = pair(&nodes[0], Arc::clone(&source) as _, &target);
        let cancel = Arc::clone(&spec.cancel);
        let cancel_when_here = || {
            source.set(|state| state.may_send = true);
            let is_here =
                |status: &NodeStatus| status.ports[0].received >= before + packets && status.transfers == 0;
            until(&nodes[1], is_here);
            cancel.store(true, Ordering::Relaxed);
        };
        let error = std::thread::scope(|scope| {
            let sends = scope.spawn(move || prepared.run(&mut |_| {}));
            let fetches = scope.spawn(|| {
                // The cancellation is seen before the node's word is.
                fetch(&spec, &nodes[1], &mut |_| {
                    if at_once && source.state.lock().unwrap().asked {
                        cancel_when_here();
                    }
                })
            });
            if !at_once {
                cancel_when_here();
            }
            let error = fetches.join().unwrap().unwrap_err();
            source.set(|state| state.may_look = true);
            drop(sends.join().unwrap());
            error
        });
        let TransferError::Interrupted { verified, total } = error else { panic!("{error}") };
        assert_eq!((verified, total), (len, len));
        assert!(std::fs::read(part_path(&target)).unwrap() == bytes, "at once: {at_once}");
    }
}

/// An object that says when it was read to its end.
struct ReadToEnd(Vec<u8>, AtomicBool);

impl ObjectSource for ReadToEnd {
    fn len(&self) -> u64 {
        self.0.len() as u64
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> std::io::Result<()> {
        self.1.fetch_or(offset + buffer.len() as u64 == self.len(), Ordering::Relaxed);
        self.0.read_exact_at(buffer, offset)
    }
}

/// An older version that has the object's bytes, and whose reader is cancelled in mid-look. It is read when
/// the source has told all hashes.
struct Cancelling {
    bytes: Vec<u8>,
    reads: AtomicU64,
    told: Mutex<mpsc::Receiver<()>>,
    cancel: Arc<AtomicBool>,
}

impl ObjectSource for Cancelling {
    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> std::io::Result<()> {
        let reads = self.reads.fetch_add(1, Ordering::Relaxed) + 1;
        if reads == 1 {
            self.told.lock().unwrap().recv_timeout(HANG).unwrap();
        }
        self.cancel.fetch_or(reads == 130, Ordering::Relaxed);
        self.bytes.read_exact_at(buffer, offset)
    }
}

#[test]
fn a_receiver_that_looks_at_much_can_be_cancelled() {
    let nodes = start_all(&configs(2, &[(0, 1)]));
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("object");
    let bytes = object(300 << 18);
    let source = Arc::new(ReadToEnd(bytes.clone(), AtomicBool::new(false)));
    let (prepared, spec) = pair(&nodes[0], Arc::clone(&source) as _, &target);
    let (tell, told) = mpsc::channel();
    let (reads, told, cancel) = (AtomicU64::new(0), Mutex::new(told), Arc::clone(&spec.cancel));
    let older = Arc::new(Cancelling { bytes, reads, told, cancel });
    let found = Arc::clone(&older);
    let found = move |_: &_| vec![Arc::clone(&found) as Arc<dyn ObjectSource>];
    let options = Options { older: OlderVersions::found_by(found), ..Options::default() };
    let spec = ReceiverSpec { options, ..spec };
    let sends = std::thread::spawn(move || {
        // Two events after the last byte was read its hash is told.
        let mut events = 0;
        prepared.run(&mut |_| {
            events += u32::from(source.1.load(Ordering::Relaxed));
            if events == 3 {
                // The receiver may have gone.
                let _ = tell.send(());
            }
        })
    });
    let error = fetch(&spec, &nodes[1], &mut |_| {}).unwrap_err();
    drop(sends.join().unwrap());
    assert!(matches!(error, TransferError::Cancelled), "{error}");
    let reads = older.reads.load(Ordering::Relaxed);
    assert!((130..=130 + 64).contains(&reads), "{reads} groups were looked at");
}
