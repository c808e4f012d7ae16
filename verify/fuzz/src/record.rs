//! A real transfer between sockets of this machine, and a real manager, recorded as inputs of targets.
//!
//! `POLYCAST_CORPUS=write cargo test -p polycast-fuzz record` puts what was recorded into the corpus. Without
//! it the tests run the targets on the recording itself.

use super::*;
use polycast_agent::transfer::{
    Options, Path, ReceiverSpec, Receivers, Rendezvous, Sink, SourceSpec, prepare, receive,
};
use polycast_api::PROTOCOL_VERSION;
use polycast_api::manager::{self as api, AgentMessage, agent_message::Message as Said};
use polycast_net::archive::{Manifest, TreeSource};
use polycast_net::frames::FrameStream;
use polycast_net::hash::hash_of;
use polycast_net::object::ObjectKind;
use polycast_net::udp::Beacon;
use polycast_types::ObjectId;
use polycast_wire::control::{Control, LENGTH_LEN};
use polycast_wire::data::Header;
use prost::Message;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Variable and value with which the corpus is written.
const WRITE: (&str, &str) = ("POLYCAST_CORPUS", "write");
/// A session's inputs stop at so many bytes.
const SESSION_BYTES_MAX: usize = 3_000;
const FRAGMENTS: u64 = 40;
const FRAGMENT: u64 = 9_000 - 28 - 24 - 32;

/// Writes choices as `Words` reads them.
#[derive(Default)]
struct Pen(Vec<u8>);

impl Pen {
    /// A number below `limit`.
    fn below(&mut self, limit: u64, value: u64) -> &mut Self {
        let bytes = (64 - (limit - 1).leading_zeros()).div_ceil(8) as usize;
        self.0.extend_from_slice(&value.to_be_bytes()[8 - bytes..]);
        self
    }

    fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(&(bytes.len() as u16).to_le_bytes());
        self.0.extend_from_slice(bytes);
        self
    }

    /// A number of the form 2^n.
    fn power(&mut self, n: u64) -> &mut Self {
        self.below(8, 6).below(64, n)
    }

    /// A little time passes.
    fn pass(&mut self, nanos: u64) -> &mut Self {
        self.below(8, 1).below(2_000_000, nanos)
    }

    /// A division into fragments, of which the last one is whole.
    fn geometry(&mut self) -> &mut Self {
        self.below(65_535, FRAGMENT - 1).below(300, FRAGMENTS).below(FRAGMENT, 0).below(5, 2)
    }

    fn is_full(&self) -> bool {
        self.0.len() >= SESSION_BYTES_MAX
    }
}

#[test]
fn the_pen_writes_what_words_read() {
    let mut pen = Pen::default();
    pen.below(9, 7).below(2_000_000, 1_234_567).bytes(&[1, 2]).power(20).below(2, 1);
    let mut words = words::Words::new(&pen.0);
    assert_eq!((words.below(9), words.below(2_000_000)), (7, 1_234_567));
    assert_eq!((words.bytes(300), words.number(5), words.flip()), (&[1, 2][..], 1 << 20, true));
    assert!(words.is_empty());
}

/// One frame or datagram of a session.
#[derive(Clone)]
enum Heard {
    ToSource(u64, Vec<u8>),
    ToReceiver(u64, Vec<u8>),
    Data(Vec<u8>),
}

type Log = Arc<Mutex<Vec<Heard>>>;

/// Passes frames on until the connection ends, and notes them.
fn pass_on(from: TcpStream, to: &TcpStream, note: impl Fn(Vec<u8>)) {
    let (mut from, mut to) =
        (FrameStream::new(from).unwrap(), FrameStream::new(to.try_clone().unwrap()).unwrap());
    while let Ok(more) = from.fill() {
        if !more {
            let _ = from.wait(Duration::from_millis(100));
        }
        while let Ok(Some(control)) = from.next_frame() {
            let mut frame = Vec::new();
            control.emit(&mut frame);
            note(frame);
            if to.send(&control).is_err() {
                return;
            }
        }
        while to.queued() > 0 && to.flush().is_ok() {
            let _ = to.wait(Duration::from_millis(100));
        }
    }
    to.finish();
}

/// Stands between a receiver and the source; gives where it is.
fn proxy(source: SocketAddr, number: u64, log: &Log) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let (address, log) = (listener.local_addr().unwrap(), Arc::clone(log));
    std::thread::spawn(move || {
        let (one, _) = listener.accept().unwrap();
        let other = TcpStream::connect(source).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                pass_on(one.try_clone().unwrap(), &other, |frame| {
                    log.lock().unwrap().push(Heard::ToSource(number, frame));
                });
            });
            pass_on(other.try_clone().unwrap(), &one, |frame| {
                log.lock().unwrap().push(Heard::ToReceiver(number, frame));
            });
        });
    });
    address
}

/// Two receivers, one of which loses a part of what comes.
fn session() -> Vec<Heard> {
    let (log, folder) = (Log::default(), tempfile::tempdir().unwrap());
    let process = std::process::id().to_be_bytes();
    let group = SocketAddr::from(([239, 255, 232 ^ process[3] & 7, process[2]], 32_123));
    let prepared = prepare(SourceSpec {
        object: ObjectId::default(),
        name: "object".into(),
        kind: ObjectKind::File,
        root: None,
        source: Arc::new(vec![7; (FRAGMENTS * FRAGMENT) as usize]),
        receivers: Receivers::Told(2),
        location: polycast_types::Location::default(),
        interface: Ipv4Addr::LOCALHOST.into(),
        path: Path::Multicast { group, rate: None, attempts: None, outer: Vec::new() },
        options: Options::default(),
        cancel: Arc::default(),
        steering: Arc::default(),
    })
    .unwrap();
    let receiver = |number: u64| {
        let spec = ReceiverSpec {
            name: format!("host-{number}"),
            rendezvous: Rendezvous::At(proxy(prepared.control_address(), number, &log), prepared.handle()),
            called: None,
            location: polycast_types::Location::default(),
            interface: Ipv4Addr::LOCALHOST.into(),
            sink: Sink::At { path: folder.path().join(number.to_string()), replace: false },
            options: Options { loss: 0.2 * number as f64, seed: 1, ..Options::default() },
            cancel: Arc::default(),
        };
        std::thread::spawn(move || receive(spec, &mut |_| ()))
    };
    let receivers = [0, 1].map(receiver);
    let (ended, beacon) =
        (Arc::new(AtomicBool::new(false)), Beacon::open(Ipv4Addr::LOCALHOST.into(), group).unwrap());
    let listener = {
        let (ended, log) = (Arc::clone(&ended), Arc::clone(&log));
        std::thread::spawn(move || {
            let mut buffer = vec![0; 65_536];
            while !ended.load(Ordering::Relaxed) {
                match beacon.receive(&mut buffer) {
                    Some((datagram, _)) => {
                        let len = Header::parse(datagram).map_or(0, |(_, len)| len);
                        log.lock().unwrap().push(Heard::Data(datagram[..len].to_vec()));
                    }
                    None => std::thread::sleep(Duration::from_millis(1)),
                }
            }
        })
    };
    prepared.run(&mut |_| {}).unwrap();
    receivers.into_iter().for_each(|receiver| drop(receiver.join().unwrap().unwrap()));
    ended.store(true, Ordering::Relaxed);
    listener.join().unwrap();
    log.lock().unwrap().clone()
}

/// Encodes the input of the source's sender.
fn to_sender(session: &[Heard]) -> Vec<u8> {
    let mut pen = Pen::default();
    pen.geometry().below(64, 7).below(2, 0).below(4, 1).below(2, 0).below(2, 0);
    for peer in [0, 1] {
        pen.pass(1_000).below(6, peer).below(2, 0).below(20, 0).below(6, 0).power(20).below(4, 1);
    }
    pen.pass(1_000).below(6, 0).below(2, 0).below(20, 2).below(4, 1);
    for heard in session {
        let Heard::ToSource(peer, frame) = heard else { continue };
        let is_short = frame.len() <= 300 && !pen.is_full();
        if is_short && !matches!(Control::parse(frame), Ok(Control::Hello(_) | Control::Have(_))) {
            pen.pass(900_000).below(6, *peer).below(2, 0).below(20, 9);
            pen.below(16, 0).bytes(&frame[LENGTH_LEN..]).below(4, 1);
        }
    }
    pen.0
}

/// Encodes the input of a receiver's machine.
fn to_receiver(session: &[Heard], number: u64) -> Vec<u8> {
    let mut pen = Pen::default();
    pen.geometry().power(20);
    pen.pass(1_000).below(16, 1).below(4, 1).below(8, 1);
    for heard in session.iter().filter(|_| number < 2) {
        if pen.is_full() {
            break;
        }
        match heard {
            Heard::Data(datagram) if !datagram.is_empty() => {
                pen.pass(9_000).below(16, 9).bytes(datagram).below(8, 4).below(3, 0).below(4, 1).below(8, 1);
            }
            Heard::ToReceiver(of, frame) if *of == number => match Control::parse(frame) {
                Ok(Control::PtchData { sn, payload }) => {
                    let count = (payload.len() as u64).div_ceil(FRAGMENT);
                    pen.pass(9_000).below(16, 6).below(8, 0).below(2 * FRAGMENTS + 2, sn);
                    pen.below(8, 0).below(9, count - 1).below(4, 1).below(8, 1);
                }
                Ok(Control::DataFnsd { .. }) => {
                    pen.pass(9_000)
                        .below(16, 4)
                        .below(20, 0)
                        .bytes(&frame[LENGTH_LEN..])
                        .below(4, 1)
                        .below(8, 1);
                }
                _ => {}
            },
            _ => {}
        }
    }
    pen.0
}

/// Encodes the input of the source's list.
fn to_roster(session: &[Heard]) -> Vec<u8> {
    let mut pen = Pen::default();
    // Two receivers, whatever their names; long times.
    pen.below(4, 0).below(2, 0).below(4, 1).below(2, 0).power(20);
    pen.below(8, 6)
        .below(40_000_000_000, 30_000_000_000)
        .below(8, 6)
        .below(40_000_000_000, 10_000_000_000)
        .below(2, 1);
    let mut guests = 0;
    for heard in session {
        let Heard::ToSource(number, frame) = heard else { continue };
        if frame.len() > 300 || pen.is_full() {
            continue;
        }
        pen.pass(900_000).below(u64::max(guests, 1), *number);
        if matches!(Control::parse(frame), Ok(Control::Hello(_))) {
            guests += 1;
            // The name, and its number of bytes, which are not used.
            pen.below(20, 0).below(16, 5 + number).below(8, 1).power(20).below(8, 0).below(11, 1).below(4, 1);
        } else {
            pen.below(20, 12).below(16, 0).bytes(&frame[LENGTH_LEN..]).below(4, 1);
        }
    }
    pen.0
}

/// Encodes the input of a receiver's end of the session, and the actions of its driver.
fn to_guest(session: &[Heard], number: u64) -> Vec<u8> {
    let mut pen = Pen::default();
    pen.power(20).below(8, 0).below(11, 1).below(8, 6).below(40_000_000_000, 10_000_000_000);
    for heard in session {
        let Heard::ToReceiver(of, frame) = heard else { continue };
        if *of != number || frame.len() > 300 || pen.is_full() {
            continue;
        }
        if matches!(Control::parse(frame), Ok(Control::Finished)) {
            pen.pass(1_000).below(16, 5).below(4, 1);
        }
        pen.pass(1_000).below(16, 7).below(20, 0).bytes(&frame[LENGTH_LEN..]).below(4, 1);
        if matches!(Control::parse(frame), Ok(Control::Welcome(_))) {
            pen.pass(1_000).below(16, 5).below(2, 0).below(4, 1);
        }
    }
    pen.0
}

/// Inputs for the decoders: two of each kind.
fn packets(session: &[Heard]) -> BTreeMap<&'static str, Vec<Vec<u8>>> {
    let (mut inputs, mut kinds): (BTreeMap<_, Vec<_>>, BTreeMap<_, u32>) = Default::default();
    let mut stream = vec![9; 8];
    for heard in session {
        let (target, bytes, kind) = match heard {
            Heard::ToSource(_, frame) | Heard::ToReceiver(_, frame) => {
                ("control_frame", frame, frame.get(LENGTH_LEN))
            }
            Heard::Data(datagram) => ("data_header", datagram, datagram.get(1)),
        };
        let count = kinds.entry((target, kind.copied())).or_default();
        *count += 1;
        if *count <= 2 && bytes.len() <= 1_000 {
            inputs.entry(target).or_default().push(bytes.clone());
            if target == "control_frame" {
                stream.extend_from_slice(bytes);
            }
        }
    }
    stream.truncate(SESSION_BYTES_MAX);
    inputs.insert("frame_stream", vec![stream]);
    inputs
}

/// Short frames one after the other, as they were on a connection.
fn frames<'a>(frames: impl Iterator<Item = &'a Vec<u8>>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for frame in frames.filter(|frame| frame.len() <= 1_000) {
        if bytes.len() + frame.len() > SESSION_BYTES_MAX {
            break;
        }
        bytes.extend_from_slice(frame);
    }
    bytes
}

fn said_to_receiver(session: &[Heard], number: u64) -> Vec<u8> {
    frames(session.iter().filter_map(|heard| match heard {
        Heard::ToReceiver(of, frame) if *of == number => Some(frame),
        _ => None,
    }))
}

fn said_to_source(session: &[Heard], number: u64) -> Vec<u8> {
    frames(session.iter().filter_map(|heard| match heard {
        Heard::ToSource(of, frame) if *of == number => Some(frame),
        _ => None,
    }))
}

/// The list of a set, as a source that sends one has it.
#[test]
fn a_list_of_files_is_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let tree = folder.path().join("tree");
    fs::create_dir_all(tree.join("shards/empty")).unwrap();
    for (name, bytes) in
        [("config.json", &b"{}"[..]), ("shards/one", &[1; 700][..]), ("shards/same", &[1; 700][..])]
    {
        fs::write(tree.join(name), bytes).unwrap();
    }
    fs::write(tree.join("shards").join("x".repeat(150)), b"long").unwrap();
    std::os::unix::fs::symlink("shards/one", tree.join("latest")).unwrap();
    fs::hard_link(tree.join("config.json"), tree.join("again.json")).unwrap();
    let source = TreeSource::open(&tree).unwrap();
    let list = Manifest::of(&source, |path, _| hash_of(&fs::read(path)?)).unwrap();
    assert_eq!(list.files().count(), 4);
    keep(&BTreeMap::from([("set_list", vec![list.to_bytes()])]));
}

#[test]
fn a_delta_is_recorded() {
    keep(&BTreeMap::from([("delta", vec![crate::delta::seed()])]));
}

#[test]
fn a_transfer_is_recorded_for_the_machines_at_both_ends() {
    let session = session();
    let mut inputs = packets(&session);
    assert!(
        inputs["data_header"].len() >= 2 && inputs["control_frame"].len() >= 8,
        "it was no whole session"
    );
    inputs.insert("push_sender", vec![to_sender(&session)]);
    inputs.insert("push_receiver", [0, 1].map(|number| to_receiver(&session, number)).to_vec());
    inputs.insert("roster", vec![to_roster(&session)]);
    inputs.insert("guest", [0, 1].map(|number| to_guest(&session, number)).to_vec());
    inputs.insert("receiver_driver", [0, 1].map(|number| said_to_receiver(&session, number)).to_vec());
    // One over multicast, one over the chain.
    let said = [0, 1].map(|number| [vec![number as u8], said_to_source(&session, number)].concat());
    inputs.insert("source_driver", said.to_vec());
    keep(&inputs);
}

fn said(message: Said) -> Vec<u8> {
    AgentMessage { message: Some(message) }.encode_to_vec()
}

/// Encodes messages of agents to a manager: they join, one requests a path and gives it back, one makes a
/// stream that the other receives.
fn sessions() -> Vec<u8> {
    let join = |number: u64| {
        let agent = Some(api::AgentId { name: format!("host-{number}"), incarnation: 1 });
        let control_address = format!("10.0.0.{number}");
        said(Said::Join(api::Join {
            protocol_version: PROTOCOL_VERSION,
            agent,
            address: control_address,
            control_port: 7401,
            leases: Vec::new(),
            node: None,
        }))
    };
    let request = |request_id: u64| {
        said(Said::Request(api::PathRequest {
            request_id,
            app_id: vec![0; 16],
            data_id: 1,
            data_size: 1_000,
            remaining_size: 1_000,
            receivers: vec!["host-1".into()],
            ..api::PathRequest::default()
        }))
    };
    let words = [
        (0, join(0)),
        (1, join(1)),
        (0, request(1)),
        (0, said(Said::Heartbeat(api::Heartbeat { number: 1, ..api::Heartbeat::default() }))),
        (
            0,
            said(Said::Extend(api::Extend { request_id: 1, time_ms: Some(5_000), ..api::Extend::default() })),
        ),
        (0, said(Said::Release(api::Release { request_id: 1, response_id: 1, ..api::Release::default() }))),
        (
            0,
            said(Said::CreateStream(api::CreateStream {
                name: "news".into(),
                request_id: 1 << 63,
                ..api::CreateStream::default()
            })),
        ),
        (1, said(Said::JoinStream(api::JoinStream { name: "news".into(), ask: 5, sends: Some(6) }))),
        (
            0,
            said(Said::StreamAt(api::StreamAt {
                name: "news".into(),
                receiver: "host-1".into(),
                ask: 5,
                next: 7,
            })),
        ),
        (1, said(Said::LeaveStream(api::LeaveStream { name: "news".into() }))),
        (0, said(Said::EndStream(api::EndStream { name: "news".into() }))),
        (1, said(Said::Leave(api::Leave::default()))),
    ];
    let mut pen = Pen::default();
    for (session, message) in words {
        pen.below(4, session).bytes(&message);
    }
    pen.0
}

#[test]
fn a_manager_is_recorded_with_its_records() {
    let records = leases::recorded();
    assert!(records.len() >= 4, "members, a lease and a request that waits: {records:?}");
    let lines: Vec<Vec<u8>> = records.iter().map(|record| serde_json::to_vec(record).unwrap()).collect();
    let plans = records.iter().filter_map(|record| {
        let value = serde_json::to_value(record).unwrap();
        value.get("Lease").map(|lease| serde_json::to_vec(&lease["grant"]["plan"]).unwrap())
    });
    let plans: Vec<_> = plans.collect();
    assert!(!plans.is_empty());
    keep(&BTreeMap::from([
        ("manager_records", vec![lines.join(&b'\n')]),
        ("plan_record", plans),
        ("manager_session", vec![sessions()]),
    ]));
}

/// Runs targets on what was recorded, and writes it if that is asked for.
fn keep(inputs: &BTreeMap<&str, Vec<Vec<u8>>>) {
    for (name, inputs) in inputs {
        let body = target(name).unwrap();
        inputs.iter().for_each(|input| body(input));
        if std::env::var(WRITE.0).is_ok_and(|value| value == WRITE.1) {
            write(name, inputs);
        }
    }
}

fn write(name: &str, inputs: &[Vec<u8>]) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(format!("{name}.hex"));
    let before = fs::read_to_string(&path).unwrap_or_default();
    let mut seen = BTreeSet::new();
    let mut text = String::new();
    for input in inputs.iter().filter(|input| seen.insert(*input)) {
        text.push_str("session ");
        input.iter().for_each(|byte| write!(text, "{byte:02x}").unwrap());
        text.push('\n');
    }
    before
        .lines()
        .filter(|line| !line.starts_with("session "))
        .for_each(|line| writeln!(text, "{line}").unwrap());
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}
