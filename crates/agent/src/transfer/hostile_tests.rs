//! Foreign ends that mean no good: each may end its own session, and no other.

use super::session_tests::{
    Source, ask, frame, hello, next, next_frame, patient, start, start_as, start_with,
};
use super::{Called, OlderVersions, Options, ReceiverSpec, Rendezvous, Sink, TransferError, receive};
use crate::forwarder::tests::Log;
use polycast_net::hash::keyed_hash;
use polycast_net::rolling;
use polycast_net::udp::{DataReceiver, Only, Outer};
use polycast_protocol::session::HAVE_WITHIN;
use polycast_testing::{HANG, until};
use polycast_types::{Handle, ObjectId};
use polycast_wire::control::NOWHERE;
use polycast_wire::control::{Control, Form, Hello, Salt, Welcome, proven_group};
use std::io::{ErrorKind, IoSliceMut, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// REFUSE with a text of so many bytes, as our own programs never write it.
fn long_refusal(len: u16) -> Vec<u8> {
    let text = vec![b'x'; len.into()];
    [&(u32::from(len) + 3).to_be_bytes()[..], &[3], &len.to_be_bytes(), &text].concat()
}

/// The last word on a connection.
fn last(stream: &mut TcpStream) -> String {
    loop {
        let word = next(stream);
        if word != "something else" {
            return word;
        }
    }
}

/// HELLO, WELCOME and HAVE; the salt that WELCOME names.
fn join(source: &Source, name: &str) -> (TcpStream, Salt) {
    let mut stream = TcpStream::connect(source.address).unwrap();
    stream.set_read_timeout(Some(HANG)).unwrap();
    stream.write_all(&hello(source.handle, name)).unwrap();
    let welcome = next_frame(&mut stream);
    let Ok(Control::Welcome(welcome)) = Control::parse(&welcome) else { panic!("{welcome:?}") };
    stream.write_all(&frame(&Control::Have(Vec::new()))).unwrap();
    (stream, welcome.salt)
}

fn errors(source: Source) -> Vec<(bool, Option<String>)> {
    let report = source.thread.join().expect("no panic").unwrap();
    report.receivers.into_iter().map(|receiver| (receiver.verified, receiver.error)).collect()
}

#[test]
fn long_and_odd_words_end_their_own_session_only() {
    for pulled in [false, true] {
        let source = start(pulled);
        let (mut a, _) = join(&source, "a");
        let (mut b, _) = join(&source, "b");
        a.write_all(&long_refusal(65_530)).unwrap();
        b.write_all(&frame(&Control::Refuse("\x1b[2Jno room"))).unwrap();
        let odd = r"\u{1b}[2Jno room";
        let expected =
            ["its connection failed: malformed packet", odd].map(|words| (false, Some(words.into())));
        assert_eq!(errors(source), expected);
    }
}

/// A receiver may say as often as it likes that nothing comes in a tree, and in trees that there are not: the
/// log has it once.
#[test]
fn one_that_stalls_again_and_again_is_named_once() {
    let log = Log::of_all();
    let source = start(true);
    let transfer = source.handle.to_string();
    let mut ends = ["a", "b"].map(|name| join(&source, name).0);
    for tree in [0; 100].into_iter().chain(100..200) {
        ends[0].write_all(&frame(&Control::Stalled { tree })).unwrap();
    }
    ends.iter_mut().for_each(|end| end.write_all(&frame(&Control::Refuse("no more"))).unwrap());
    assert_eq!(errors(source), [(false, Some("no more".into())), (false, Some("no more".into()))]);
    assert_eq!(log.lines_with([&transfer, "nothing comes in a tree"]), 1);
}

/// A receiver that says that it has the object shows bytes of it which it could not choose.
#[test]
fn who_lies_about_the_object_is_not_verified() {
    let object: Vec<u8> = (0..600_000u32).map(|at| (at * 7 + at / 251) as u8).collect();
    for pulled in [false, true] {
        let source = start_with(pulled, object.clone());
        let (mut liar, _) = join(&source, "a");
        let (mut honest, salt) = join(&source, "b");
        let group = proven_group(&salt, 3) as usize;
        let bytes = &object[group << 18..object.len().min((group + 1) << 18)];
        let proof = keyed_hash(&salt, bytes);
        liar.write_all(&frame(&Control::DataRcvd { patched_bytes: 0, proof })).unwrap();
        let refused = "it says that it has the object, but cannot show the bytes of it that it was asked for";
        assert_eq!(last(&mut liar), refused, "another receiver's proof is none");
        honest.write_all(&frame(&Control::DataRcvd { patched_bytes: 0, proof })).unwrap();
        assert_eq!(last(&mut honest), "FINISHED");
        assert_eq!(errors(source), [(false, Some(refused.into())), (true, None)]);
    }
}

#[test]
fn hello_alone_holds_no_place() {
    for pulled in [false, true] {
        let source = start_as(pulled, vec![7; 5_000], Options { have_timeout: HAVE_WITHIN, ..patient() });
        let (mut silent, _) = ask(&source, &hello(source.handle, "a"));
        assert_eq!(last(&mut silent), "it said HELLO and then nothing for 2s");
        assert_eq!(ask(&source, &hello(source.handle, "a")).1, "WELCOME");
        source.cancel.store(true, Ordering::Relaxed);
        assert!(matches!(source.thread.join().unwrap(), Err(TransferError::Cancelled)));
    }
}

/// Returns true while the other end has not closed a connection on which it sends nothing.
fn is_open(stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    matches!(stream.peek(&mut [0]), Err(error) if error.kind() == ErrorKind::WouldBlock)
}

/// Many connections, and none says anything: the next receiver comes in while some of them are still there.
/// On a machine that is busy they may have been there for too long before it comes, and then it comes again.
/// More than a source looks at: see `strangers`.
#[test]
fn idle_connections_keep_no_receiver_out() {
    for pulled in [false, true] {
        until("it comes in beside the others", || {
            let source = start(pulled);
            let idle: Vec<TcpStream> =
                (0..200).map(|_| TcpStream::connect(source.address).unwrap()).collect();
            assert_eq!(ask(&source, &hello(source.handle, "a")).1, "WELCOME");
            let is_beside = idle.iter().any(is_open);
            source.cancel.store(true, Ordering::Relaxed);
            drop(source.thread.join().unwrap());
            is_beside
        });
    }
}

/// A receiver of a source that says this when the receiver comes.
fn receive_from(words: Option<Vec<u8>>) -> TransferError {
    receive_with(words, Options::default(), None)
}

/// The same with these settings of the receiver, which has been called for this.
fn receive_with(words: Option<Vec<u8>>, options: Options, called: Option<Called>) -> TransferError {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let ends = Arc::clone(&over);
    let source = std::thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        let first = next_frame(&mut stream);
        assert!(matches!(Control::parse(&first), Ok(Control::Hello(Hello { .. }))));
        if let Some(words) = words {
            stream.write_all(&words).unwrap();
        }
        while !ends.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    let folder = tempfile::tempdir().unwrap();
    let spec = ReceiverSpec {
        name: "a".into(),
        rendezvous: Rendezvous::At(address, Handle(1)),
        called,
        location: polycast_types::Location::default(),
        interface: Ipv4Addr::LOCALHOST.into(),
        sink: Sink::Raw(folder.path().join("object")),
        options,
        cancel: Arc::new(AtomicBool::new(false)),
    };
    let error = receive(spec, &mut |_| {}).unwrap_err();
    over.store(true, Ordering::Relaxed);
    source.join().unwrap();
    error
}

#[test]
fn what_a_source_says_harms_no_receiver() {
    let long = receive_from(Some(long_refusal(65_530)));
    assert!(matches!(long, TransferError::Protocol(_)), "{long}");
    let odd = receive_from(Some(frame(&Control::Refuse("\x1b]0;pwn\x07"))));
    assert_eq!(odd.to_string(), r"the source refused: \u{1b}]0;pwn\u{7}");
    // Another error than that of one that has answered and then falls silent, which is waited for much
    // longer.
    let silent = receive_from(None);
    assert!(matches!(silent, TransferError::NoAnswer(_)), "{silent}");
}

/// A receiver that asks hears the sum of every group, also of those that were hashed before.
#[test]
fn one_that_asks_hears_every_sum() {
    let object: Vec<u8> = (0..600_000u32).map(|at| (at * 7 + at / 251) as u8).collect();
    let source = start_with(false, object.clone());
    let (mut stream, first) = ask(&source, &hello(source.handle, "a"));
    assert_eq!(first, "WELCOME");
    stream.write_all(&frame(&Control::AskSums)).unwrap();
    let mut told = Vec::new();
    while told.len() < 3 {
        if let Ok(Control::Sums { first, sums }) = Control::parse(&next_frame(&mut stream)) {
            assert_eq!(first, told.len() as u64);
            told.extend(sums);
        }
    }
    assert_eq!(told, object.chunks(1 << 18).map(rolling::sum).collect::<Vec<_>>());
    source.cancel.store(true, Ordering::Relaxed);
    drop(source.thread.join().unwrap());
}

/// WELCOME of an object of so many bytes.
fn welcome(object_len: u64) -> Vec<u8> {
    frame(&Control::Welcome(Welcome {
        object: ObjectId::default(),
        form: Form::File,
        mode: 0o644,
        name: "object",
        object_len,
        fragment_len: 1_000,
        group_len: 1 << 18,
        channel: NOWHERE,
        outer_len: 0,
        stall_ns: 5_000_000_000,
        salt: [0; 32],
        modified: None,
        data_len: None,
    }))
}

/// A source that has called for one object sends that, or the receiver ends it: another length shows at once,
/// another root hash as soon as it is said.
#[test]
fn a_source_that_sends_something_else_than_it_has_called_for_is_left() {
    let called =
        Called { object: ObjectId::default(), object_len: 2 << 20, root: Some([4; 32]), permitted: None };
    let said = |words: &[Vec<u8>]| {
        let error = receive_with(Some(words.concat()), Options::default(), Some(called.clone()));
        assert!(matches!(error, TransferError::Contradiction(_)), "{error}");
        error.to_string()
    };
    let longer = said(&[welcome((2 << 20) + 1)]);
    assert!(longer.contains("it called for 2097152 bytes of object"), "{longer}");
    let other = said(&[welcome(2 << 20), frame(&Control::Root([5; 32]))]);
    assert!(other.contains("it called for the object with the root hash 0404"), "{other}");
}

#[test]
fn sums_that_nothing_asks_for_end_the_session() {
    let welcome = welcome(2 << 20);
    let sums = frame(&Control::Sums { first: 0, sums: vec![1] });
    let older = OlderVersions::found_by(|_| vec![Arc::new(vec![7u8; 3 << 20])]);
    let options = Options { older, ..Options::default() };
    let error = receive_with(Some([welcome, sums].concat()), options, None);
    assert!(matches!(error, TransferError::Contradiction(_)), "{error}");
}

/// The first packet of a receiver that is late may have come before its HAVE is out. A source that is busy
/// reads both words at once, and takes none of them for nothing: the receiver says the second one only once.
#[test]
fn a_late_receiver_may_report_its_first_packet_in_one_breath_with_have() {
    let source = start(false);
    let mut data = DataReceiver::open(Ipv4Addr::LOCALHOST.into()).unwrap();
    let only = Only { source: None, handle: Some(source.handle), outer: Outer::Bytes(0) };
    data.join(
        Ipv4Addr::LOCALHOST.into(),
        SocketAddr::new(Ipv4Addr::new(239, 255, 199, 255).into(), 30_999),
        only,
    )
    .unwrap();
    let (_stays, before) = ["a", "b"].map(|name| join(&source, name).0).into();
    let mut bytes = vec![0; 1 << 16];
    until("the first packet was sent", || {
        data.receive(&mut [IoSliceMut::new(&mut bytes)]).unwrap().is_some()
    });
    // It comes back.
    drop(before);
    let (mut late, said) = ask(&source, &hello(source.handle, "b"));
    assert_eq!(said, "WELCOME");
    let both = [frame(&Control::Have(Vec::new())), frame(&Control::IntlSeq { position: 0 })].concat();
    late.write_all(&both).unwrap();
    let is_end = |frame: &[u8]| matches!(Control::parse(frame), Ok(Control::DataFnsd { .. }));
    while !is_end(&next_frame(&mut late)) {}
    source.cancel.store(true, Ordering::Relaxed);
}
