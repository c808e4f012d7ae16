//! Receivers that bring an object to each other, with one among them that does not mean it.

mod common;

use common::patient;
use polycast_agent::transfer::{
    Path, Prepared, Received, ReceiverSpec, Receivers, Rendezvous, Report, Sink, SourceSpec, TransferError,
    prepare, receive,
};
use polycast_net::frames::FrameStream;
use polycast_net::object::{ObjectKind, ObjectSource};
use polycast_testing::own_address;
use polycast_types::{Handle, ObjectId};
use polycast_wire::control::{Control, Form, Hello, NOWHERE, Overlay, Welcome};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

const GROUP_LEN: usize = 1 << 18;
const LOOK: Duration = Duration::from_millis(5);

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + at / 977) as u8).collect()
}

/// An object of which each piece takes so long: time enough to see who gives nothing.
struct Slow(Vec<u8>, Duration);

impl ObjectSource for Slow {
    fn len(&self) -> u64 {
        ObjectSource::len(&self.0)
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> std::io::Result<()> {
        std::thread::sleep(self.1);
        self.0.read_exact_at(buffer, offset)
    }
}

fn source(object: &[u8], each: Duration, receivers: usize) -> Prepared {
    prepare(SourceSpec {
        object: ObjectId::default(),
        name: "object".into(),
        kind: ObjectKind::File,
        source: Arc::new(Slow(object.to_vec(), each)),
        root: None,
        receivers: Receivers::Told(receivers),
        location: polycast_types::Location::default(),
        interface: own_address(),
        path: Path::Chain,
        options: patient(),
        cancel: Arc::default(),
        steering: Arc::default(),
    })
    .unwrap()
}

fn start(
    control: SocketAddr,
    handle: Handle,
    name: &str,
    target: PathBuf,
) -> JoinHandle<Result<Received, TransferError>> {
    let spec = spec(control, handle, name, target);
    std::thread::spawn(move || receive(spec, &mut |_| ()))
}

fn spec(control: SocketAddr, handle: Handle, name: &str, target: PathBuf) -> ReceiverSpec {
    ReceiverSpec {
        name: name.into(),
        rendezvous: Rendezvous::At(control, handle),
        location: polycast_types::Location::default(),
        interface: own_address(),
        sink: Sink::At { path: target, replace: false },
        options: patient(),
        cancel: Arc::default(),
        called: None,
    }
}

/// Misbehaviour of a dishonest member.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mood {
    /// It gives wrong bytes.
    Spoils,
    /// It says that it has everything, and gives nothing.
    Boasts,
    /// It gives what was not asked for.
    Floods,
    /// It gives the first group that it is asked for, and no other.
    Stops,
    /// It gives a byte now and then.
    Drips,
}

/// Joins a transfer by the frames themselves, and serves others as its mood is until the end.
fn join(prepared: &Prepared, mood: Mood, object: &[u8], ends: Arc<AtomicBool>) -> JoinHandle<()> {
    let (address, handle) = (prepared.control_address(), prepared.handle());
    let listener = TcpListener::bind((own_address(), 0)).unwrap();
    let serve_port = listener.local_addr().unwrap().port();
    let object = object.to_vec();
    std::thread::spawn(move || {
        let mut link = FrameStream::new(TcpStream::connect(address).unwrap()).unwrap();
        let hello = Hello { handle, name: "liar", window_bytes: 1 << 20, serve_port, location: [""; 2] };
        link.send(&Control::Hello(hello)).unwrap();
        let mut groups = 0;
        while groups == 0 {
            link.wait(LOOK).unwrap();
            link.fill().unwrap();
            while let Some(frame) = link.next_frame().unwrap() {
                if let Control::Welcome(welcome) = frame {
                    groups = welcome.object_len.div_ceil(welcome.group_len.into());
                }
            }
        }
        link.send(&Control::Have(Vec::new())).unwrap();
        listener.set_nonblocking(true).unwrap();
        let mut members = Vec::new();
        while !ends.load(Ordering::Relaxed) {
            if let Ok((stream, _)) = listener.accept() {
                members.push((FrameStream::new(stream).unwrap(), 0));
            }
            members.retain_mut(|(member, given)| serve(member, given, mood, (&object, groups)));
            // It says that it lives, and hears nothing.
            let _ = link.send(&Control::Alive);
            let _ = link.fill();
            while let Ok(Some(_)) = link.next_frame() {}
            std::thread::sleep(LOOK);
        }
    })
}

/// Serves one that fetches, and was given so many groups; gives whether it is still there.
fn serve(member: &mut FrameStream, given: &mut u64, mood: Mood, (object, groups): (&[u8], u64)) -> bool {
    let most = if mood == Mood::Drips { 1 } else { usize::MAX };
    let open = member.fill().is_ok() && member.flush_some(most).is_ok();
    let mut wanted = Vec::new();
    while let Ok(Some(frame)) = member.next_frame() {
        match frame {
            Control::Overlay(Overlay::Enter { .. }) => {
                let all = std::iter::once(0..groups).collect();
                member.queue(&Control::Overlay(Overlay::Holds(all)));
                if mood == Mood::Floods {
                    wanted.push(0);
                }
            }
            Control::Overlay(Overlay::Want(groups)) => wanted.extend(groups),
            _ => {}
        }
    }
    for index in wanted {
        let right = object.chunks(GROUP_LEN).nth(index as usize).unwrap_or_default();
        let payload = match mood {
            Mood::Boasts => continue,
            Mood::Stops if *given > 0 => continue,
            Mood::Stops | Mood::Drips => right,
            Mood::Spoils | Mood::Floods => &vec![0x66; GROUP_LEN],
        };
        *given += 1;
        member.queue(&Control::Group { index, payload });
    }
    open && member.flush_some(most).is_ok()
}

fn deliver_beside(mood: Mood, object: &[u8]) -> (Report, Vec<PathBuf>, tempfile::TempDir) {
    let dir = polycast_testing::folder_in_memory();
    // One that has given something is dropped after half a second in which it gives nothing.
    let each = if matches!(mood, Mood::Stops | Mood::Drips) { LOOK * 4 } else { LOOK };
    let prepared = source(object, each, 4);
    let (control, handle) = (prepared.control_address(), prepared.handle());
    let ends = Arc::new(AtomicBool::new(false));
    let liar = join(&prepared, mood, object, Arc::clone(&ends));
    let targets: Vec<PathBuf> = (0..3).map(|at| dir.path().join(format!("to{at}"))).collect();
    let running: Vec<_> = targets
        .iter()
        .enumerate()
        .map(|(at, target)| start(control, handle, &format!("r{at}"), target.clone()))
        .collect();
    let source = std::thread::spawn(move || prepared.run(&mut |_| ()));
    // The honest ones wait for the end of the transfer once they have all; that comes when the liar is gone.
    polycast_testing::until("the honest have all", || targets.iter().all(|target| target.exists()));
    ends.store(true, Ordering::Relaxed);
    liar.join().unwrap();
    let report = source.join().unwrap().unwrap();
    for ran in running {
        ran.join().unwrap().unwrap();
    }
    (report, targets, dir)
}

#[test]
fn one_that_lies_is_named_and_holds_none_of_the_others() {
    let object = bytes(100 * GROUP_LEN + 5);
    for (mood, says) in [
        (Mood::Spoils, "it gave wrong bytes"),
        (Mood::Boasts, "it gives nothing of what it says it has"),
        (Mood::Floods, "it breaks the rules of the exchange"),
        (Mood::Stops, "it has stopped giving what it was asked for"),
        (Mood::Drips, "it has stopped giving what it was asked for"),
    ] {
        let (report, targets, _dir) = deliver_beside(mood, &object);
        for target in &targets {
            assert!(std::fs::read(target).unwrap() == object, "{mood:?}");
        }
        let named =
            report.events.iter().any(|(_, what)| what.contains("says of liar") && what.contains(says));
        assert!(named, "{mood:?}: {:?}", report.events);
        let verified: Vec<&str> =
            report.receivers.iter().filter(|r| r.verified).map(|r| r.name.as_str()).collect();
        assert_eq!(verified.len(), 3, "{mood:?}: {verified:?}");
    }
}

/// Returns a receiver's answer to a forbidden request; `None` if it sends nothing and closes.
fn answer_to(serves: SocketAddr, frames: &[Control<'_>]) -> Option<String> {
    let mut stream = FrameStream::new(TcpStream::connect(serves).unwrap()).unwrap();
    for frame in frames {
        stream.send(frame).ok()?;
    }
    loop {
        match stream.next_frame().ok()? {
            Some(Control::Refuse(why)) => return Some(why.to_string()),
            Some(_) => {}
            None => {
                if !stream.fill().ok()? {
                    stream.wait(LOOK).ok()?;
                }
            }
        }
    }
}

#[test]
fn one_that_asks_for_what_it_must_not_hears_why() {
    let dir = polycast_testing::folder_in_memory();
    let object = bytes(40 * GROUP_LEN);
    let prepared = source(&object, LOOK, 2);
    let (control, handle) = (prepared.control_address(), prepared.handle());
    let enter = |entry| Control::Overlay(Overlay::Enter { handle, ticket: [0; 32], entry, have: Vec::new() });
    let source = std::thread::spawn(move || prepared.run(&mut |_| ()));
    let refused = answer_to(control, &[enter(7)]);
    assert_eq!(refused.as_deref(), Some("this source has not told it to take what it gives"));
    let beyond = Control::Overlay(Overlay::Enter {
        handle,
        ticket: [0; 32],
        entry: 1,
        have: std::iter::once(0..41).collect(),
    });
    assert!(answer_to(control, &[beyond]).is_some(), "a group that there is not");
    let first = start(control, handle, "r0", dir.path().join("to0"));
    let second = start(control, handle, "r1", dir.path().join("to1"));
    assert!(first.join().unwrap().is_ok() && second.join().unwrap().is_ok());
    assert!(source.join().unwrap().unwrap().receivers.iter().all(|receiver| receiver.verified));
}

/// Delivers one group to a receiver in a named zone, as a source does that says these before CANDIDATES; the
/// kinds of the frames that the receiver says from then on.
fn kinds_after(asks: &[Control<'_>]) -> Vec<u8> {
    let listener = TcpListener::bind((own_address(), 0)).unwrap();
    let folder = polycast_testing::folder_in_memory();
    let (address, handle) = (listener.local_addr().unwrap(), Handle(7));
    let spec = ReceiverSpec {
        location: polycast_types::Location { zone: "hall".into(), rack: String::new() },
        ..spec(address, handle, "a", folder.path().join("object"))
    };
    let receiver = std::thread::spawn(move || receive(spec, &mut |_| ()));
    let mut link = FrameStream::new(listener.accept().unwrap().0).unwrap();
    let object = bytes(5_000);
    let hash = polycast_net::hash::group_hash(&object, 0, GROUP_LEN as u32, 1);
    let welcome = Welcome {
        object: ObjectId::default(),
        form: Form::File,
        mode: 0o644,
        modified: None,
        name: "object",
        object_len: object.len() as u64,
        fragment_len: 1_400,
        group_len: GROUP_LEN as u32,
        channel: NOWHERE,
        outer_len: 0,
        stall_ns: 10_000_000_000,
        salt: [3; 32],
        data_len: None,
    };
    let await_kind = |link: &mut FrameStream, wanted: u8| {
        let mut kinds = Vec::new();
        while !kinds.contains(&wanted) {
            link.wait(LOOK).unwrap();
            link.fill().unwrap();
            while let Some(frame) = link.next_frame().unwrap() {
                // Without the length that the frame begins with.
                let mut bytes = Vec::new();
                frame.emit(&mut bytes);
                kinds.push(bytes[4]);
            }
        }
        kinds
    };
    await_kind(&mut link, 1);
    link.send(&Control::Welcome(welcome)).unwrap();
    link.send(&Control::Hashes { first: 0, hashes: vec![hash] }).unwrap();
    link.send(&Control::Root(polycast_net::hash::root_hash(&[hash]))).unwrap();
    await_kind(&mut link, 6);
    asks.iter().for_each(|asks| link.send(asks).unwrap());
    let candidates = Overlay::Candidates { entry: 9, is_behind_head: false, ends: Vec::new() };
    link.send(&Control::Overlay(candidates)).unwrap();
    let mut lane = FrameStream::new(listener.accept().unwrap().0).unwrap();
    await_kind(&mut lane, 48);
    lane.send(&Control::Group { index: 0, payload: &object }).unwrap();
    let kinds = await_kind(&mut link, 11);
    link.send(&Control::Finished).unwrap();
    receiver.join().expect("no panic").expect("it has the object");
    kinds
}

/// A source of an earlier commit knows no CAME, and ends a connection that brings it: it gets none.
#[test]
fn only_a_source_that_asks_hears_where_bytes_came_from() {
    let came = |kinds: Vec<u8>| kinds.into_iter().filter(|kind| *kind == 53).count();
    assert_eq!(came(kinds_after(&[])), 0, "as a source of an earlier commit");
    assert_eq!(came(kinds_after(&[Control::Overlay(Overlay::Lacks(Vec::new()))])), 1);
}
