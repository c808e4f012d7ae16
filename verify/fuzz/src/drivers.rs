//! The drivers at both ends of a transfer, over a connection of this host: a peer says any bytes, and what
//! the driver says to it can be read.

use polycast_agent::transfer::{
    Options, Path, ReceiverSpec, Receivers, Rendezvous, Sink, SourceSpec, prepare, receive,
};
use polycast_net::object::ObjectKind;
use polycast_types::{Handle, ObjectId};
use polycast_wire::control::{CandidateEnd, Control, End, Hello, Overlay};
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The transfer that a receiver is called to.
const HANDLE: Handle = Handle(7);
/// Bytes of the object that a source offers.
const OBJECT_LEN: usize = 20_000;
/// A driver that has heard the end of what its peer says may take so long to end of itself; then it is told
/// to.
const PATIENCE: Duration = Duration::from_millis(300);
/// A host that refuses every connection, there and at the next few ports.
const NOWHERE: ([u8; 4], u16) = ([127, 0, 0, 1], 1);

/// Returns a peer's messages as frames and a rest that is none; nothing in it leads away from this host.
fn tamed(bytes: &[u8], handle: Handle) -> Vec<u8> {
    let (mut left, mut tamed) = (bytes, Vec::new());
    while let Ok(Some(len)) = Control::frame_len(left)
        && let Some((frame, rest)) = left.split_at_checked(len)
    {
        let control = match Control::parse(frame) {
            Ok(Control::Overlay(Overlay::Candidates { entry, is_behind_head, ends })) => {
                let ends = ends.into_iter().zip(NOWHERE.1..);
                let ends = ends.map(|(CandidateEnd { end, share }, port)| CandidateEnd {
                    end: End { address: NOWHERE.0.into(), port, ..end },
                    share,
                });
                let ends = ends.collect();
                Control::Overlay(Overlay::Candidates { entry, is_behind_head, ends })
            }
            Ok(Control::Speaker { member, name, .. }) => {
                Control::Speaker { member, address: NOWHERE.0.into(), port: NOWHERE.1, name }
            }
            Ok(Control::Hello(hello)) => Control::Hello(Hello { handle, ..hello }),
            Ok(other) => other,
            // The driver reads no further than this.
            Err(_) => {
                tamed.extend_from_slice(frame);
                return tamed;
            }
        };
        control.emit(&mut tamed);
        left = rest;
    }
    tamed.extend_from_slice(left);
    tamed
}

/// Says all of it to a driver; gives what the driver says until it ends the connection. One that does not do
/// so soon is told to end.
fn talk(mut stream: TcpStream, says: &[u8], cancel: &AtomicBool) -> Vec<u8> {
    // Ends without waiting, so that ports do not run out.
    rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).expect("a socket");
    // The driver may have ended the connection before it has read everything.
    let _ = stream.write_all(says);
    let _ = stream.shutdown(Shutdown::Write);
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    let (mut said, mut piece) = (Vec::new(), [0; 4_096]);
    loop {
        match stream.read(&mut piece) {
            Ok(0) => return said,
            Ok(len) => said.extend_from_slice(&piece[..len]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                if cancel.swap(true, Ordering::SeqCst) {
                    return said;
                }
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return said,
        }
    }
}

/// Checks that a driver has sent frames of this version, but for the last where the connection ended in its
/// middle.
fn check(said: &[u8]) {
    let mut left = said;
    while let Some(len) = Control::frame_len(left).expect("a driver says frames") {
        let Some((frame, rest)) = left.split_at_checked(len) else { return };
        let control = Control::parse(frame).expect("a driver says frames that can be read");
        let mut again = Vec::new();
        control.emit(&mut again);
        assert_eq!(again, frame);
        left = rest;
    }
}

fn stage() -> std::path::PathBuf {
    let memory = std::path::PathBuf::from("/dev/shm");
    if memory.is_dir() { memory } else { std::env::temp_dir() }
}

/// A source says any bytes: the receiver's driver ends, leaves no object that was not verified, and says only
/// what can be read.
pub fn receiver_driver(bytes: &[u8]) {
    let folder = tempfile::tempdir_in(stage()).expect("a folder");
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port of this host");
    let (path, cancel) = (folder.path().join("object"), Arc::new(AtomicBool::new(false)));
    let spec = ReceiverSpec {
        name: "host-0".into(),
        rendezvous: Rendezvous::At(listener.local_addr().expect("it is bound"), HANDLE),
        called: None,
        location: polycast_types::Location::default(),
        interface: Ipv4Addr::LOCALHOST.into(),
        sink: Sink::At { path: path.clone(), replace: false },
        options: Options::default(),
        cancel: Arc::clone(&cancel),
    };
    let driver = std::thread::spawn(move || receive(spec, &mut |_| ()));
    let (stream, _) = listener.accept().expect("the driver connects");
    let said = talk(stream, &tamed(bytes, HANDLE), &cancel);
    cancel.store(true, Ordering::SeqCst);
    let outcome = driver.join().expect("a driver does not panic");
    check(&said);
    let hello = Control::frame_len(&said).ok().flatten().and_then(|len| said.get(..len));
    let hello = hello.map(Control::parse);
    assert!(matches!(hello, None | Some(Ok(Control::Hello(_)))), "{hello:?}");
    assert_eq!(path.exists(), outcome.is_ok(), "{outcome:?}");
}

/// A receiver says any bytes: the source's driver ends, believes no receiver that has shown nothing, and says
/// only what can be read.
pub fn source_driver(bytes: &[u8]) {
    let cancel = Arc::new(AtomicBool::new(false));
    let group = SocketAddr::from(([239, 255, 233, 1], 32_124));
    let is_chain = bytes.first().is_some_and(|byte| byte % 2 == 1);
    let path = match is_chain {
        true => Path::Chain,
        false => Path::Multicast { group, rate: None, attempts: None, outer: Vec::new() },
    };
    let bytes = bytes.get(1..).unwrap_or_default();
    let options = Options { stall_timeout: Duration::from_secs(2).into(), ..Options::default() };
    let prepared = prepare(SourceSpec {
        object: ObjectId::default(),
        name: "object".into(),
        kind: ObjectKind::File,
        root: None,
        source: Arc::new(vec![7; OBJECT_LEN]),
        receivers: Receivers::Told(1),
        location: polycast_types::Location::default(),
        interface: Ipv4Addr::LOCALHOST.into(),
        path,
        options,
        cancel: Arc::clone(&cancel),
        steering: Arc::default(),
    })
    .expect("sockets of this host");
    let says = tamed(bytes, prepared.handle());
    let address = prepared.control_address();
    let driver = std::thread::spawn(move || prepared.run(&mut |_| ()));
    let stream = TcpStream::connect(address).expect("the driver listens");
    let said = talk(stream, &says, &cancel);
    cancel.store(true, Ordering::SeqCst);
    let outcome = driver.join().expect("a driver does not panic");
    check(&said);
    if let Ok(report) = outcome {
        // The proof hangs on what the source draws: no bytes that are written beforehand have it.
        assert!(report.receivers.iter().all(|receiver| !receiver.verified), "{report:?}");
    }
}
