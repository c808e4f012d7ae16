//! A file that a program writes to while it is sent: no receiver has a mixture of two versions, and both ends
//! say why.

mod common;

use common::patient;
use polycast_agent::transfer::{
    Options, Path, ReceiverSpec, Receivers, Rendezvous, Sink, SourceSpec, TransferError, prepare, receive,
};
use polycast_net::archive::TreeSource;
use polycast_net::object::{FileSource, ObjectKind, ObjectSource, Stamp};
use polycast_testing::{HANG, multicast_group, own_address};
use polycast_types::ObjectId;
use std::fs::OpenOptions;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};

const RECEIVERS: usize = 2;

/// Counts receivers that have heard of the object.
#[derive(Default)]
struct Heard(Mutex<usize>, Condvar);

impl Heard {
    fn add(&self) {
        *self.0.lock().unwrap() += 1;
        self.1.notify_all();
    }

    fn await_all(&self) {
        let heard = self.0.lock().unwrap();
        let (_heard, waited) = self.1.wait_timeout_while(heard, HANG, |heard| *heard < RECEIVERS).unwrap();
        assert!(!waited.timed_out(), "no receiver has heard of it");
    }
}

/// An object of which a program writes to a file in between: when what begins at this place is read, it
/// writes to the file's first and its last bytes. A look at it takes until all receivers know of the object,
/// so that each of them hears what becomes of it.
struct Written<S> {
    object: S,
    file: PathBuf,
    at: u64,
    is_written: AtomicBool,
    heard: Arc<Heard>,
}

impl<S> Written<S> {
    fn new(object: S, file: PathBuf, at: u64) -> Arc<Self> {
        Arc::new(Written { object, file, at, is_written: AtomicBool::new(false), heard: Arc::default() })
    }
}

impl<S: ObjectSource> ObjectSource for Written<S> {
    fn len(&self) -> u64 {
        self.object.len()
    }

    fn stamp(&self) -> Stamp {
        self.object.stamp()
    }

    fn is_checked_quickly(&self) -> bool {
        false
    }

    fn check(&self) -> io::Result<()> {
        self.heard.await_all();
        self.object.check()
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        if offset + buffer.len() as u64 > self.at && !self.is_written.swap(true, Ordering::Relaxed) {
            let file = OpenOptions::new().write(true).open(&self.file)?;
            file.write_all_at(b"new", 0)?;
            file.write_all_at(b"new", file.metadata()?.len() - 3)?;
        }
        self.object.read_exact_at(buffer, offset)
    }
}

fn multicast(number: u16) -> Path {
    let own = std::process::id().to_be_bytes();
    let group = multicast_group([239, 255, 170 ^ own[3] & 31, number as u8]);
    let group = SocketAddr::from((group, 30_500 + number));
    Path::Multicast { group, rate: None, attempts: None, outer: Vec::new() }
}

/// Sends it to two receivers, none of which gets it; gives what the source says, and what they say.
fn refused<S: ObjectSource + 'static>(
    source: Arc<Written<S>>,
    kind: ObjectKind,
    path: Path,
    options: Options,
) -> (String, String) {
    let heard = Arc::clone(&source.heard);
    let folder = polycast_testing::folder_in_memory();
    let spec = SourceSpec {
        object: ObjectId::default(),
        name: "object".into(),
        kind,
        source,
        root: None,
        receivers: Receivers::Told(RECEIVERS),
        location: polycast_types::Location::default(),
        interface: own_address(),
        path,
        options,
        cancel: Arc::default(),
        steering: Arc::default(),
    };
    let prepared = prepare(spec).unwrap();
    let targets = ["a", "b"].map(|name| folder.path().join(name));
    let running = targets.clone().map(|target| {
        let spec = ReceiverSpec {
            name: target.file_name().unwrap().to_string_lossy().into_owned(),
            rendezvous: Rendezvous::At(prepared.control_address(), prepared.handle()),
            called: None,
            location: polycast_types::Location::default(),
            interface: own_address(),
            sink: Sink::At { path: target, replace: false },
            options: patient(),
            cancel: Arc::default(),
        };
        let (heard, mut is_first) = (Arc::clone(&heard), true);
        std::thread::spawn(move || {
            receive(spec, &mut |_| {
                if std::mem::replace(&mut is_first, false) {
                    heard.add();
                }
            })
        })
    });
    let error = prepared.run(&mut |_| ()).unwrap_err();
    assert!(matches!(error, TransferError::Changed(_)), "{error}");
    let said: Vec<_> = running.into_iter().map(|one| one.join().unwrap().unwrap_err().to_string()).collect();
    assert!(targets.iter().all(|target| !target.exists()), "a mixture got a name");
    assert!(
        said.iter().all(|said| said.contains("its bytes were changed while it was being sent")),
        "{said:?}"
    );
    (error.to_string(), said[0].clone())
}

#[test]
fn a_file_that_is_written_to_reaches_no_receiver() {
    let folder = polycast_testing::folder_in_memory();
    let file = folder.path().join("file");
    // In one group, in several, and so that the last one has a byte of its own.
    for (number, len) in [(0, 1_000), (1, 3_000_000), (2, (5 << 18) + 1)] {
        for path in [multicast(number), Path::Chain] {
            for at in [len / 2, len - 1] {
                std::fs::write(&file, vec![7; len as usize]).unwrap();
                let source = Written::new(FileSource::open(&file).unwrap(), file.clone(), at);
                let (said, _) = refused(source, ObjectKind::File, path.clone(), patient());
                assert_eq!(
                    said,
                    format!(
                        "{} was changed while it was being sent: send it when no program writes to it",
                        file.display()
                    )
                );
            }
        }
    }
}

#[test]
fn a_directory_with_such_a_file_reaches_no_receiver() {
    let folder = polycast_testing::folder_in_memory();
    let root = folder.path().join("root");
    std::fs::create_dir(&root).unwrap();
    for name in ["a", "b", "c"] {
        std::fs::write(root.join(name), vec![7; 900_000]).unwrap();
    }
    for (number, path) in [(10, multicast(10)), (11, Path::Chain)] {
        // While the file itself is read, and when it has been read long ago.
        for at in [1_400_000, 2_500_000 + number] {
            let source = Written::new(TreeSource::open(&root).unwrap(), root.join("b"), at);
            let (said, _) = refused(source, ObjectKind::Directory, path.clone(), patient());
            assert!(said.contains("root/b was changed while it was being sent"), "{said}");
        }
    }
}

#[test]
fn receivers_hear_whether_it_is_sent_again() {
    let folder = polycast_testing::folder_in_memory();
    let file = folder.path().join("file");
    for again in [false, true] {
        std::fs::write(&file, vec![7; 1_000_000]).unwrap();
        let source = Written::new(FileSource::open(&file).unwrap(), file.clone(), 500_000);
        let options = Options { again, ..patient() };
        let (_, heard) = refused(source, ObjectKind::File, multicast(20), options);
        assert_eq!(heard.contains("and it is sent again"), again, "{heard}");
    }
}

/// A change that comes when receivers know all hashes ends a transfer that still waits for others.
#[test]
fn a_change_is_seen_while_an_offer_stands() {
    let folder = polycast_testing::folder_in_memory();
    let file = folder.path().join("file");
    std::fs::write(&file, vec![7; 1_000_000]).unwrap();
    let spec = SourceSpec {
        object: ObjectId::default(),
        name: "object".into(),
        kind: ObjectKind::File,
        source: Arc::new(FileSource::open(&file).unwrap()),
        root: None,
        receivers: Receivers::Told(2),
        location: polycast_types::Location::default(),
        interface: own_address(),
        path: multicast(30),
        options: patient(),
        cancel: Arc::default(),
        steering: Arc::default(),
    };
    let prepared = prepare(spec).unwrap();
    let offered = std::thread::spawn(move || prepared.run(&mut |_| ()));
    OpenOptions::new().append(true).open(&file).unwrap().write_all_at(b"more", 1_000_000).unwrap();
    let error = offered.join().unwrap().unwrap_err().to_string();
    assert!(error.contains("file became longer while it was being sent"), "{error}");
}
