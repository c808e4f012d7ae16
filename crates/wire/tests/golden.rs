//! The bytes of every packet, kept in files: one file for each protocol, `tests/golden/PROTOCOL.hex`, one
//! packet a line.
//!
//! Each packet is made from fixed values. It must be written as the bytes in the file, and these bytes must
//! be read as the value. So a change of the format fails here even if both ends change together: programs of
//! one [`VERSION`] understand each other.
//!
//! After a new packet, or a new format with a raised [`VERSION`], write the files anew:
//!
//! ```text
//! POLYCAST_GOLDEN=write cargo test -p polycast-wire --test golden
//! ```
//!
//! This writes new packets and fails where it wrote, so that it never counts as a test. It does not change
//! the bytes of a packet under the same version: remove the file first if no program with this format was
//! ever given away.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use polycast_types::{AppId, DataId, Handle, ModificationTime, ObjectId};
use polycast_wire::VERSION;
use polycast_wire::control::{
    CameFrom, CandidateEnd, Control, Delta, End, Fault, Form, Hello, Offered, Overlay, SealSecret, Share,
    Welcome,
};
use polycast_wire::data::{self, CodedHeader, FragmentHeader};
use polycast_wire::discovery::{Announcement, CodeSign, Discovery, QUESTION_LEN, QUESTION_LEN_MIN};
use polycast_wire::label::{self, Probe};
use polycast_wire::permit::{Permit, ShownPermit};
use polycast_wire::pull::{self, Digest, Follows, Hops};
use polycast_wire::rack::{Heartbeat, Name, Rack, Standing, Update, Updates};
use polycast_wire::reach::{ASK_LEN_MIN, Reach};
use polycast_wire::stream;
use polycast_wire::switches::{Change, Word};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::path::PathBuf;

/// Variable and value with which the files are written rather than compared.
const WRITE: (&str, &str) = ("POLYCAST_GOLDEN", "write");

/// Numbers of which no two bytes are equal, so that a changed order shows.
const A: u64 = 0x0102_0304_0506_0708;
const B: u64 = 0x1112_1314_1516_1718;
const C: u64 = 0x2122_2324_2526_2728;
const D: u64 = 0x3132_3334_3536_3738;
const E: u64 = 0x4142_4344_4546_4748;
const F: u64 = 0x5152_5354_5556_5758;
const SHORT: u32 = 0x6162_6364;
const OTHER: u32 = 0x7172_7374;
const PORT: u16 = 0x8182;
const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(239, 10, 20, 30));
const ADDRESS_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xff15, 0, 0, 0, 0, 0, 0x8001, 0x1e));

/// Check of the value that `parse` makes of the bytes.
type Check = Box<dyn Fn(&[u8])>;

/// One packet: its name in the file, what `emit` writes, and a check of what `parse` reads.
struct Golden {
    name: String,
    emitted: Vec<u8>,
    check: Check,
}

impl Golden {
    fn new(name: &str, emitted: Vec<u8>, check: impl Fn(&[u8]) + 'static) -> Golden {
        Golden { name: name.to_owned(), emitted, check: Box::new(check) }
    }
}

fn same<T: PartialEq + Debug, E: Debug + PartialEq>(name: &str, parsed: Result<T, E>, value: T) {
    assert_eq!(parsed, Ok(value), "{name}: the bytes are read as something else");
}

fn file(protocol: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(format!("{protocol}.hex"))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes(hex: &str) -> Vec<u8> {
    assert!(hex.len().is_multiple_of(2) && hex.is_ascii(), "'{hex}' is not a sequence of bytes");
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

/// The version and the packets of a file.
fn read(text: &str) -> (u8, BTreeMap<String, Vec<u8>>) {
    let mut lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let version = lines.next().and_then(|line| line.strip_prefix("version ")).expect("a version comes first");
    let mut packets = BTreeMap::new();
    for line in lines {
        let (name, hex) = line.split_once(' ').expect("a line is a name and bytes");
        assert!(packets.insert(name.to_owned(), bytes(hex)).is_none(), "'{name}' is there twice");
    }
    (version.parse().expect("a version is a number"), packets)
}

fn write(protocol: &str, packets: &[Golden]) -> String {
    let mut text = format!("# Packets of {protocol}.rs, see tests/golden.rs.\nversion {VERSION}\n");
    for packet in packets {
        text += &format!("{} {}\n", packet.name, hex(&packet.emitted));
    }
    text
}

/// Compares the packets with the file, both ways.
fn check(protocol: &str, packets: &[Golden]) {
    let path = file(protocol);
    if std::env::var(WRITE.0).is_ok_and(|value| value == WRITE.1) {
        renew(protocol, packets);
    }
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let (version, mut kept) = read(&text);
    assert_eq!(
        version, VERSION,
        "{protocol}: the file is of another version; see the head of tests/golden.rs"
    );
    for packet in packets {
        let name = &packet.name;
        let kept = kept.remove(name).unwrap_or_else(|| panic!("{protocol}: no bytes of {name} are kept"));
        assert_eq!(hex(&packet.emitted), hex(&kept), "{protocol}: {name} is written as other bytes");
        (packet.check)(&kept);
    }
    assert!(kept.is_empty(), "{protocol}: packets that are not made any more: {:?}", kept.keys());
}

/// Writes the file where packets are new or the version was raised, and fails if it did.
fn renew(protocol: &str, packets: &[Golden]) {
    let path = file(protocol);
    let before = std::fs::read_to_string(&path).unwrap_or_default();
    let text = write(protocol, packets);
    if before == text {
        return;
    }
    if !before.is_empty() && read(&before).0 == VERSION {
        let kept = read(&before).1;
        let changed = |packet: &&Golden| kept.get(&packet.name).is_some_and(|kept| *kept != packet.emitted);
        if let Some(packet) = packets.iter().find(changed) {
            panic!("{protocol}: {} has other bytes under the same version {VERSION}", packet.name);
        }
    }
    std::fs::write(&path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    panic!("{} was written: look at it, and test again without {}", path.display(), WRITE.0);
}

fn object() -> ObjectId {
    ObjectId { app: AppId(*b"0123456789abcdef"), data: DataId(A) }
}

/// The name of a frame. A new kind must be named here, and made in [`control_frames`].
fn kind_name(control: &Control<'_>) -> &'static str {
    match control {
        Control::Hello(_) => "HELLO",
        Control::Ask { .. } => "ASK",
        Control::Offered(_) => "OFFERED",
        Control::Pair { .. } => "PAIR",
        Control::Share(_) => "SHARE",
        Control::Prove { .. } => "PROVE",
        Control::Paired(_) => "PAIRED",
        Control::Join { .. } => "JOIN",
        Control::Welcome(_) => "WELCOME",
        Control::Refuse(_) => "REFUSE",
        Control::Hashes { .. } => "HASHES",
        Control::Root(_) => "ROOT",
        Control::Seal(_) => "SEAL",
        Control::Forged { .. } => "FORGED",
        Control::Have(_) => "HAVE",
        Control::IntlSeq { .. } => "INTL_SEQ",
        Control::Progress { .. } => "PROGRESS",
        Control::PtchReq(_) => "PTCH_REQ",
        Control::PtchData { .. } => "PTCH_DATA",
        Control::DataRcvd { .. } => "DATA_RCVD",
        Control::DataFnsd { .. } => "DATA_FNSD",
        Control::Group { .. } => "GROUP",
        Control::Finished => "FINISHED",
        Control::Invite { .. } => "INVITE",
        Control::Joining => "JOINING",
        Control::Alive => "ALIVE",
        Control::Channel { .. } => "CHANNEL",
        Control::Gather { .. } => "GATHER",
        Control::Speaker { .. } => "SPEAKER",
        Control::Member { .. } => "MEMBER",
        Control::Rack(_) => "RACK",
        Control::RackReq(_) => "RACK_REQ",
        Control::Trees { .. } => "TREES",
        Control::Route { .. } => "ROUTE",
        Control::Roots { .. } => "ROOTS",
        Control::AskHashes => "ASK_HASHES",
        Control::AskSums => "ASK_SUMS",
        Control::Sums { .. } => "SUMS",
        Control::Stalled { .. } => "STALLED",
        Control::Overlay(Overlay::Candidates { .. }) => "CANDIDATES",
        Control::Overlay(Overlay::Enter { .. }) => "ENTER",
        Control::Overlay(Overlay::Holds(_)) => "HOLDS",
        Control::Overlay(Overlay::Want(_)) => "WANT",
        Control::Overlay(Overlay::Lacks(_)) => "LACKS",
        Control::Overlay(Overlay::Fault { .. }) => "FAULT",
        Control::Overlay(Overlay::Came(_)) => "CAME",
    }
}

/// The frames by which a session begins.
fn first_frames() -> Vec<Control<'static>> {
    let handle = Handle(E);
    let hash = |first: u8| -> [u8; 32] { std::array::from_fn(|at| first + at as u8) };
    vec![
        Control::Hello(Hello {
            handle,
            name: "host-ä",
            window_bytes: B,
            serve_port: PORT,
            location: ["zone", "rack"],
        }),
        Control::Ask { handle, nonce: hash(0x10) },
        Control::Offered(Offered {
            handle,
            places: SHORT,
            object_len: B,
            name: "model",
            host: "host",
            code: Some(code_sign()),
            challenge: hash(0x20),
            proof: hash(0x40),
        }),
        Control::Pair { handle, share: hash(0x50) },
        Control::Share(hash(0x51)),
        Control::Prove { share: hash(0x52), proof: hash(0x53) },
        Control::Paired(std::array::from_fn(|at| 0x54 + at as u8)),
        Control::Join {
            proof: hash(0x60),
            hello: Hello { handle, name: "name", window_bytes: B, serve_port: PORT, location: [""; 2] },
        },
        Control::Welcome(Welcome {
            object: object(),
            form: Form::Directory,
            mode: 0o640,
            name: "model",
            object_len: 0x0001_0203_0405_0607,
            fragment_len: 0x2221,
            group_len: 1 << 18,
            channel: (ADDRESS, PORT),
            outer_len: 28,
            stall_ns: F,
            salt: hash(0x30),
            modified: None,
            data_len: None,
        }),
    ]
}

/// One frame of every kind.
fn control_frames() -> Vec<Control<'static>> {
    let handle = Handle(E);
    let hash = |first: u8| -> [u8; 32] { std::array::from_fn(|at| first + at as u8) };
    let digest = |first: u8| Digest(std::array::from_fn(|at| first + at as u8));
    let others = vec![
        Control::Refuse("full"),
        Control::Hashes { first: A, hashes: vec![hash(0x20), hash(0x80)] },
        Control::Root(hash(0xa0)),
        Control::Seal(SealSecret(hash(0xc0))),
        Control::Forged { packets: A },
        Control::Have(vec![A..B, C..D]),
        Control::IntlSeq { position: A },
        Control::Progress {
            position: A,
            received: B,
            lost: C,
            verified_bytes: D,
            arrived_ns: E,
            waited_ns: F,
        },
        Control::PtchReq(vec![B..C, D..E]),
        Control::PtchData { sn: C, payload: b"payload" },
        Control::DataRcvd { patched_bytes: D, proof: hash(0x50) },
        Control::DataFnsd { position: B },
        Control::Group { index: F, payload: b"group" },
        Control::Finished,
        Control::Invite {
            address: ADDRESS,
            port: PORT,
            handle,
            object: object(),
            pulled: true,
            object_len: C,
            root: Some(hash(0xc0)),
            permit: Some(ShownPermit {
                permit: b"permit",
                signature: [0x5a; 64],
                index: SHORT,
                way: vec![hash(0x20), hash(0x60)],
            }),
            delta: None,
        },
        Control::Joining,
        Control::Alive,
        Control::Channel { channel: (ADDRESS, PORT), outer_len: 24 },
        Control::Gather { own: 3, members: vec![SHORT, OTHER] },
        Control::Speaker { member: SHORT, address: ADDRESS, port: PORT, name: None },
        Control::Member { handle, member: OTHER, ticket: hash(0x50) },
        Control::Rack(vec![4, SHORT]),
        Control::RackReq(vec![C..D, E..F]),
        Control::Trees {
            count: 4,
            block_bytes: D,
            credits: 0x8182,
            retry_ms: 0x8384,
            overtaken: 0x8586,
            progress_ms: 0x8788,
        },
        Control::Route { tree: 5, begins: Some(SHORT), hops: &[1, 0x82, 3] },
        Control::Roots { first: E, digests: vec![digest(0x10), digest(0x70)] },
        Control::Stalled { tree: 6 },
        Control::AskHashes,
        Control::AskSums,
        Control::Sums { first: E, sums: vec![A, B] },
    ];
    [first_frames(), others, overlay_frames()].concat()
}

/// The frames by which receivers bring an object to each other.
fn overlay_frames() -> Vec<Control<'static>> {
    let end = End { address: ADDRESS, port: PORT, name: Some("host") };
    let end_v6 = End { address: ADDRESS_V6, port: PORT, name: None };
    let share = Share::new(7, 3, 2).expect("it is one");
    let ends = vec![CandidateEnd { end, share }, CandidateEnd { end: end_v6, share: Share::ALL }];
    let frames = [
        Overlay::Candidates { entry: A, is_behind_head: true, ends },
        Overlay::Enter { handle: Handle(A), ticket: [0x77; 32], entry: B, have: vec![C..D, E..F] },
        Overlay::Holds(vec![A..B, C..D]),
        Overlay::Want(vec![B, A]),
        Overlay::Lacks(vec![C..D, E..F]),
        Overlay::Fault { address: ADDRESS, port: PORT, why: Fault::WrongBytes },
        Overlay::Came(vec![
            CameFrom { address: ADDRESS, port: PORT, bytes: A },
            CameFrom { address: ADDRESS_V6, port: PORT, bytes: B },
        ]),
    ];
    frames.map(Control::Overlay).into()
}

fn emitted(control: &Control<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    control.emit(&mut out);
    out
}

#[test]
fn control_frames_are_as_kept() {
    let frame = |name: &str, frame: Control<'static>| {
        Golden::new(name, emitted(&frame), move |bytes| same("frame", Control::parse(bytes), frame.clone()))
    };
    let mut packets: Vec<_> = control_frames().into_iter().map(|f| frame(kind_name(&f), f)).collect();
    // Both values of what is a flag or may be left out.
    packets.push(frame("ROUTE-open", Control::Route { tree: 7, begins: None, hops: &[] }));
    packets.push(frame("CHANNEL-IPv6", Control::Channel { channel: (ADDRESS_V6, PORT), outer_len: 0 }));
    packets.push(frame("HAVE-nothing", Control::Have(vec![])));
    let (address, port, name) = (ADDRESS, PORT, Some("gpu-1"));
    packets.push(frame("SPEAKER-named", Control::Speaker { member: SHORT, address, port, name }));
    let invite = Control::Invite {
        address: ADDRESS,
        port: 1,
        handle: Handle(2),
        object: object(),
        pulled: false,
        object_len: D,
        root: None,
        permit: None,
        delta: None,
    };
    packets.push(frame("INVITE-pushed", invite.clone()));
    let Control::Invite { address, port, handle, object, .. } = invite else {
        unreachable!("it was just made")
    };
    let delta = Some(Box::new(Delta { base: [0x10; 32], root: [0x80; 32], len: D }));
    packets.push(frame(
        "INVITE-delta",
        Control::Invite {
            address,
            port,
            handle,
            object,
            pulled: false,
            object_len: 9,
            root: None,
            permit: None,
            delta,
        },
    ));
    let Some(Control::Welcome(welcome)) =
        control_frames().into_iter().find(|frame| matches!(frame, Control::Welcome(_)))
    else {
        unreachable!("there is one of every kind");
    };
    let modified = ModificationTime::new(A.cast_signed(), SHORT % ModificationTime::NANOS);
    let welcome = Welcome { form: Form::File, ..welcome };
    packets.push(frame("WELCOME-time", Control::Welcome(Welcome { modified, ..welcome.clone() })));
    let data_len = Some(0x0001_0103_0405_0607);
    packets.push(frame("WELCOME-holes", Control::Welcome(Welcome { data_len, ..welcome.clone() })));
    packets.push(frame("WELCOME-time-holes", Control::Welcome(Welcome { modified, data_len, ..welcome })));
    check("control", &packets);
}

/// A kind that the decoder knows and that is missing above would take at least one of these bodies.
#[test]
fn no_other_kind_of_control_frame_is_read() {
    let frames: Vec<_> = control_frames().iter().map(emitted).collect();
    let known: BTreeSet<u8> = frames.iter().map(|frame| frame[4]).collect();
    assert_eq!(known.len(), frames.len(), "two kinds have one number");
    for kind in (0..=u8::MAX).filter(|kind| !known.contains(kind)) {
        for frame in &frames {
            let mut other = frame.clone();
            other[4] = kind;
            assert!(Control::parse(&other).is_err(), "kind {kind} is read and has no bytes kept");
        }
    }
}

#[test]
fn permits_are_as_kept() {
    let permit = |root: Option<[u8; 32]>, pulled| Permit {
        lease: A,
        source: "train-1",
        address: ADDRESS,
        object: object(),
        object_len: B,
        root,
        name: "model.bin",
        fabric: "ip-multicast",
        channel: (ADDRESS, PORT),
        pulled,
        receivers: SHORT,
        group: [0x10; 32],
        from_unix_s: C,
        until_unix_s: D,
    };
    let golden = |name: &str, permit: Permit<'static>| {
        let mut bytes = Vec::new();
        permit.emit(&mut bytes);
        Golden::new(name, bytes, move |bytes| same("permit", Permit::parse(bytes), permit.clone()))
    };
    check(
        "permit",
        &[golden("PERMIT", permit(Some([0xa0; 32]), true)), golden("PERMIT-pushed", permit(None, false))],
    );
}

#[test]
fn data_headers_are_as_kept() {
    let header = |name: &str, header: data::Header| {
        let mut buffer = [0xee; data::HEADER_LEN + data::EXTENSION_LEN_MAX];
        let len = header.emit(&mut buffer);
        let check = move |bytes: &[u8]| same("data", data::Header::parse(bytes), (header, len));
        Golden::new(name, buffer[..len].to_vec(), check)
    };
    let fragment = |flags, sn, object_len| {
        data::Header::Fragment(FragmentHeader {
            handle: Handle(A),
            round: SHORT,
            sn,
            flags,
            object_len,
            sealed: false,
        })
    };
    let sealed = FragmentHeader {
        handle: Handle(A),
        round: SHORT,
        sn: 0,
        flags: 0,
        object_len: Some(C),
        sealed: true,
    };
    let coded = CodedHeader::new(Handle(A), &[B, B + 1]).unwrap();
    let sns = [B, B + 0x0102, B + 0xff01];
    check(
        "data",
        &[
            header("fragment", fragment(0, B, None)),
            header("fragment-with-size", fragment(0, 0, Some(C))),
            header("patch", fragment(data::FLAG_PATCH, B, None)),
            header("report", fragment(data::FLAG_REPORT, B, None)),
            header("attempt", fragment(data::FLAG_ATTEMPT, B, None)),
            header("sealed", data::Header::Fragment(sealed)),
            header("sealed-coded", data::Header::Coded(coded.sealed().unwrap())),
            header("coded", data::Header::Coded(CodedHeader::new(Handle(A), &sns).unwrap())),
        ],
    );
}

fn code_sign() -> CodeSign {
    CodeSign::Drawn(0x9091)
}

#[test]
fn discovery_is_as_kept() {
    let message = |name: &str, message: Discovery| {
        Golden::new(name, message.emit(), move |bytes| {
            same("discovery", Discovery::parse(bytes), message.clone());
        })
    };
    let announcement = Announcement {
        handle: Handle(A),
        address: ADDRESS,
        port: PORT,
        places: SHORT,
        object_len: B,
        name: "model.tar".into(),
        host: "source".into(),
        code: None,
    };
    let coded = Announcement { code: Some(code_sign()), ..announcement.clone() };
    let own = Announcement { code: Some(CodeSign::Own), ..announcement.clone() };
    check(
        "discovery",
        &[
            message("ANNOUNCE", Discovery::Announce(announcement)),
            message("ANNOUNCE-coded", Discovery::Announce(coded)),
            message("ANNOUNCE-own", Discovery::Announce(own)),
            message("SOLICIT", Discovery::Solicit { len: QUESTION_LEN_MIN }),
            message("SOLICIT-padded", Discovery::Solicit { len: QUESTION_LEN }),
        ],
    );
}

#[test]
fn questions_of_doctors_are_as_kept() {
    let message = |name: &str, message: Reach| {
        Golden::new(name, message.emit(), move |bytes| same("reach", Reach::parse(bytes), message.clone()))
    };
    let ask = Reach::Ask { number: A, len: ASK_LEN_MIN };
    let answer = Reach::Answer { number: A, len: PORT, name: "host-1".into() };
    check("reach", &[message("ASK", ask), message("ANSWER", answer)]);
}

#[test]
fn words_of_racks_are_as_kept() {
    let message = |name: &str, message: Rack<'static>| {
        let mut out = Vec::new();
        message.emit(&mut out);
        Golden::new(name, out, move |bytes| same("rack", Rack::parse(bytes), message.clone()))
    };
    let agent = Name { rack: SHORT, agent: Some(OTHER) };
    let controller = Name { rack: SHORT, agent: None };
    let heartbeat = Heartbeat {
        from: agent,
        incarnation: A,
        stream: B,
        applied: C,
        confirmed: D,
        active: true,
        settled: false,
    };
    let standing =
        Standing { to: controller, incarnation: A, stream: B, head: C, active: false, settled: true };
    let mut updates = Updates::new(controller, A, B);
    assert!(updates.push(Update { number: C, session: OTHER, label: &[1, 2, 3] }));
    assert!(updates.push(Update { number: D, session: SHORT, label: &[] }));
    check(
        "rack",
        &[
            message("heartbeat", Rack::Heartbeat(heartbeat)),
            message("standing", Rack::Standing(standing)),
            message("updates", Rack::Updates(updates)),
        ],
    );
}

#[test]
fn pieces_of_messages_are_as_kept() {
    let header =
        stream::Header { stream: Handle(A), number: B, piece: 0x0102, pieces: 0x0304, sealed: false };
    let mut out = Vec::new();
    header.emit(&mut out);
    let check_header = move |bytes: &[u8]| same("stream", stream::Header::parse(bytes), (header, &[][..]));
    let sealed = stream::Header { sealed: true, ..header };
    let mut bytes = Vec::new();
    sealed.emit(&mut bytes);
    bytes.extend_from_slice(&[0xdd; 12]);
    let check_sealed =
        move |bytes: &[u8]| same("stream", stream::Header::parse(bytes), (sealed, &[0xdd; 12][..]));
    check("stream", &[Golden::new("sealed", bytes, check_sealed), Golden::new("piece", out, check_header)]);
}

#[test]
fn words_to_switches_are_as_kept() {
    let word = |name: &str, word: Word<'static>| {
        let mut out = Vec::new();
        word.emit(&mut out);
        Golden::new(name, out, move |bytes| same("switches", Word::parse(bytes), word.clone()))
    };
    let (spine, session, leaf) = (0x3132_3334, OTHER, 0x4142_4344);
    let change = |change| Word::Change { number: SHORT, change };
    check(
        "switches",
        &[
            word("SET_ENTRY", change(Change::SetEntry { spine, session, leaf })),
            word("CLEAR_ENTRY", change(Change::ClearEntry { spine, session, leaf })),
            word("DONE", Word::Done { number: SHORT }),
            word("FAILED", Word::Failed { number: SHORT, reason: "no such spine" }),
            word("LINK-works", Word::Link { ends: (SHORT, OTHER), works: true }),
            word("LINK-broken", Word::Link { ends: (SHORT, OTHER), works: false }),
        ],
    );
}

#[test]
fn packets_of_pull_are_as_kept() {
    let packet = |name: &str, kind: pull::Kind, payload: &'static [u8]| {
        let digest = Digest(std::array::from_fn(|at| 0xa0 + at as u8));
        let hops = Hops::new(&[3, 0x81, 5], 1).unwrap();
        let header = pull::Header { kind, tree: 9, hops, handle: Handle(A), sn: B, digest };
        let emitted = [&header.emit()[..], payload].concat();
        let parsed = move |bytes: &[u8]| {
            same("pull", pull::Packet::parse(bytes), pull::Packet::Transfer(header, payload));
        };
        Golden::new(name, emitted, parsed)
    };
    let greeting = |name: &str, heard: bool| {
        let check =
            move |bytes: &[u8]| same("pull", pull::Packet::parse(bytes), pull::Packet::Greeting { heard });
        Golden::new(name, pull::greeting(heard).to_vec(), check)
    };
    let data = |again, follows| pull::Kind::Data { again, follows };
    check(
        "pull",
        &[
            packet("interest", pull::Kind::Interest { fresh: false }, &[]),
            packet("interest-fresh", pull::Kind::Interest { fresh: true }, &[]),
            packet("data", data(false, Follows::Open), b"payload"),
            packet("data-again", data(true, Follows::Open), b"payload"),
            packet("data-next", data(false, Follows::Next(SHORT)), b"payload"),
            packet("data-end", data(true, Follows::End), b""),
            greeting("greeting", false),
            greeting("greeting-heard", true),
        ],
    );
}

#[test]
fn labelled_packets_are_as_kept() {
    let labelled = |name: &str, kind, label: &'static [u8]| {
        let header = label::Header { kind, session: SHORT, label };
        let mut out = Vec::new();
        header.emit(&mut out);
        let len = out.len();
        out.extend_from_slice(b"payload");
        let check = move |bytes: &[u8]| same("label", label::Header::parse(bytes), (header, len));
        Golden::new(name, out, check)
    };
    let probe = |name: &str, is_answer| {
        let probe = Probe { is_answer, number: SHORT };
        Golden::new(name, probe.emit().to_vec(), move |bytes| same("probe", Probe::parse(bytes), probe))
    };
    check(
        "label",
        &[
            labelled("label", label::LabelKind::Filter, &[0x91, 0x92, 0x93, 0x94]),
            labelled("label-padded", label::LabelKind::Filter, &[0x91, 0x92, 0x93, 0x94, 0x95]),
            labelled("label-pods", label::LabelKind::Pods, &[0x11, 0x92, 0x93, 0x94]),
            labelled("label-asks", label::LabelKind::Asks, &[0x11, 0x92, 0x93, 0x94]),
            labelled("label-spine", label::LabelKind::Spine, &[0x11, 0x92, 0x93, 0x94]),
            probe("probe", false),
            probe("probe-answer", true),
        ],
    );
}
