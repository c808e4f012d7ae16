//! Sessions of a source with a foreign client, over sockets: it writes frames itself, and knows no machine of
//! ours.

use super::{
    Change, NextPath, Options, Path, Receivers, Report, SourceSpec, Steering, TransferError, TreePath,
    answer, prepare, prepare_pull,
};
use crate::forwarder::tests::{configs, route, start_all};
use polycast_net::frames::FrameStream;
use polycast_net::object::ObjectKind;
use polycast_net::tls::Security;
use polycast_testing::HANG;
use polycast_types::{Duration, Handle, ObjectId};
use polycast_wire::control::{Control, Hello};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// A source that runs, with receivers "a" and "b".
pub(super) struct Source {
    pub(super) address: SocketAddr,
    pub(super) handle: Handle,
    steering: Arc<Steering>,
    pub(super) cancel: Arc<AtomicBool>,
    pub(super) thread: JoinHandle<Result<Report, TransferError>>,
}

pub(super) fn start(pulled: bool) -> Source {
    start_with(pulled, vec![7; 5_000])
}

/// Like [`start`], with this object.
pub(super) fn start_with(pulled: bool, object: Vec<u8>) -> Source {
    start_as(pulled, object, patient())
}

/// Settings of a source that gives no end up because the machine is busy.
pub(super) fn patient() -> Options {
    let long = Duration::from(HANG);
    Options { join_timeout: long, have_timeout: long, stall_timeout: long, ..Options::default() }
}

/// Agents of this security that say that they join: the tests come in their place. They stay until the
/// program ends.
fn agents(security: Option<Security>) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let called = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let security = security.clone();
            std::thread::spawn(move || {
                let mut stream = FrameStream::stranger(stream, security).ok()?;
                while stream.next_frame().ok()?.is_none() {
                    stream.wait(HANG).ok()?;
                    stream.fill().ok()?;
                }
                answer(&mut stream, Ok(())).ok()
            });
        }
    });
    called
}

/// Like [`start_with`], with these settings.
pub(super) fn start_as(pulled: bool, object: Vec<u8>, options: Options) -> Source {
    let ways = vec![route(&[(0, false)])];
    let path = if pulled {
        Path::Trees(TreePath {
            trees: 1,
            payload_len: 1_400,
            credits: 4,
            link_bps: 1_000_000_000,
            tuning: Default::default(),
            routes: ["a", "b"].map(|name| (name.to_string(), ways.clone())).into(),
        })
    } else {
        let group = SocketAddr::new(Ipv4Addr::new(239, 255, 199, 255).into(), 30_999);
        Path::Multicast { group, rate: None, attempts: None, outer: Vec::new() }
    };
    start_over(path, object, options)
}

/// The same over this path.
pub(super) fn start_over(path: Path, object: Vec<u8>, options: Options) -> Source {
    let called = agents(options.sealing.security());
    let (steering, cancel) = (Arc::new(Steering::default()), Arc::new(AtomicBool::new(false)));
    let nodes = start_all(&configs(2, &[(0, 1)]));
    let pulled = matches!(path, Path::Trees(_));
    let spec = SourceSpec {
        object: ObjectId::default(),
        name: "object".into(),
        kind: ObjectKind::File,
        source: Arc::new(object),
        root: None,
        receivers: Receivers::Named(["a", "b"].map(|name| (name.to_string(), called)).into()),
        location: polycast_types::Location::default(),
        interface: Ipv4Addr::LOCALHOST.into(),
        path,
        options,
        cancel: Arc::clone(&cancel),
        steering: Arc::clone(&steering),
    };
    let (address, handle, thread) = if pulled {
        let prepared = prepare_pull(spec, &nodes[0]).unwrap();
        let told = (prepared.control_address(), prepared.handle());
        (told.0, told.1, std::thread::spawn(move || prepared.run(&mut |_| {})))
    } else {
        let prepared = prepare(spec).unwrap();
        let told = (prepared.control_address(), prepared.handle());
        (told.0, told.1, std::thread::spawn(move || prepared.run(&mut |_| {})))
    };
    Source { address, handle, steering, cancel, thread }
}

pub(super) fn frame(control: &Control<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    control.emit(&mut bytes);
    bytes
}

pub(super) fn hello(handle: Handle, name: &str) -> Vec<u8> {
    frame(&Control::Hello(Hello { handle, name, window_bytes: 1 << 20, serve_port: 9, location: [""; 2] }))
}

/// Writes bytes on a connection of its own and gives the first frame of the answer that is no ALIVE.
pub(super) fn ask(source: &Source, bytes: &[u8]) -> (TcpStream, String) {
    let mut stream = TcpStream::connect(source.address).unwrap();
    stream.set_read_timeout(Some(HANG)).unwrap();
    stream.write_all(bytes).unwrap();
    let answer = next(&mut stream);
    (stream, answer)
}

/// The next frame that is no ALIVE: REFUSE by its sentence.
pub(super) fn next(stream: &mut TcpStream) -> String {
    loop {
        let answer = next_frame(stream);
        match Control::parse(&answer).unwrap() {
            Control::Refuse(why) => return why.to_string(),
            Control::Alive => {}
            Control::Welcome(_) => return "WELCOME".into(),
            Control::Finished => return "FINISHED".into(),
            _ => return "something else".into(),
        }
    }
}

/// The bytes of the next frame.
pub(super) fn next_frame(stream: &mut TcpStream) -> Vec<u8> {
    let mut len = [0; 4];
    stream.read_exact(&mut len).expect("an answer");
    let mut answer = vec![0; 4 + u32::from_be_bytes(len) as usize];
    answer[..4].copy_from_slice(&len);
    stream.read_exact(&mut answer[4..]).unwrap();
    answer
}

/// Every refusal of a session, for both transports: one sentence each.
#[test]
fn refusals_read_the_same_over_both_transports() {
    for pulled in [false, true] {
        let source = start(pulled);
        let handle = source.handle;
        let other = hello(Handle(handle.0 ^ 1), "a");
        assert_eq!(ask(&source, &other).1, "there is no such transfer here");
        let stranger = hello(handle, "c");
        assert_eq!(ask(&source, &stranger).1, "its name is not among this transfer's receivers");
        // Byte 5 is the version.
        let mut future = hello(handle, "a");
        future[5] = 9;
        let answer = ask(&source, &future).1;
        assert!(answer.starts_with("the peer speaks protocol version 9"), "{answer}");
        assert_eq!(ask(&source, &frame(&Control::Alive)).1, "malformed packet");
        assert_eq!(ask(&source, &[0, 0, 0, 1, 255]).1, "malformed packet");

        let (_first, welcome) = ask(&source, &hello(handle, "a"));
        assert_eq!(welcome, "WELCOME");
        assert_eq!(ask(&source, &hello(handle, "a")).1, "a receiver of this name has joined already");

        // One that is taken out hears it, at once and whenever it comes again.
        let (mut second, _) = ask(&source, &hello(handle, "b"));
        source.steering.change(Change::Remove("b".into()));
        let mut last = next(&mut second);
        while last == "something else" {
            last = next(&mut second);
        }
        assert_eq!(last, "taken out of the transfer");
        assert_eq!(ask(&source, &hello(handle, "b")).1, "taken out of the transfer");
        source.cancel.store(true, Ordering::Relaxed);
        assert!(matches!(source.thread.join().unwrap(), Err(TransferError::Cancelled)));
    }
}

/// Whatever changes while a receiver says HELLO, WELCOME is what it hears first.
#[test]
fn welcome_is_the_first_word() {
    for _ in 0..20 {
        let source = start(false);
        let channel = std::thread::scope(|scope| {
            let steering = &source.steering;
            let changes = scope.spawn(move || {
                for number in 0..50 {
                    let group = SocketAddr::new(Ipv4Addr::new(239, 255, 199, number).into(), 30_999);
                    let path = Path::Multicast { group, rate: None, attempts: None, outer: Vec::new() };
                    let fabric = "ip-multicast".to_string();
                    steering.take_path(NextPath { fabric, path, bytes: None, lost: None });
                    std::thread::sleep(std::time::Duration::from_micros(200));
                }
            });
            let heard = ["a", "b"].map(|name| ask(&source, &hello(source.handle, name)).1);
            changes.join().unwrap();
            heard
        });
        assert_eq!(channel, ["WELCOME", "WELCOME"]);
        // Both have gone meanwhile: it is over, or is cancelled just before.
        source.cancel.store(true, Ordering::Relaxed);
        drop(source.thread.join().unwrap());
    }
}

/// A connection that says nothing, and one that ends in the middle of its first frame, harm none.
#[test]
fn silence_and_half_frames_end_no_session_but_their_own() {
    for pulled in [false, true] {
        let source = start(pulled);
        let silent: Vec<TcpStream> = (0..40).map(|_| TcpStream::connect(source.address).unwrap()).collect();
        for _ in 0..10 {
            let mut half = TcpStream::connect(source.address).unwrap();
            half.write_all(&hello(source.handle, "a")[..7]).unwrap();
        }
        let (mut a, welcome) = ask(&source, &hello(source.handle, "a"));
        assert_eq!(welcome, "WELCOME");
        a.write_all(&frame(&Control::Refuse("the disk is full"))).unwrap();
        let (mut b, _) = ask(&source, &hello(source.handle, "b"));
        b.write_all(&frame(&Control::Refuse("no room"))).unwrap();
        let report = source.thread.join().unwrap().unwrap();
        let errors: Vec<_> = report.receivers.iter().map(|receiver| receiver.error.as_deref()).collect();
        assert_eq!(errors, [Some("the disk is full"), Some("no room")]);
        drop(silent);
    }
}
