//! Decoders meet packets that are almost right: none panics, and what one accepts is exactly what the
//! encoder writes, so that no two texts mean the same and none is half understood.

use polycast_types::{AppId, DataId, Handle, ModificationTime, ObjectId};
use polycast_wire::control::{Control, Delta, Form, Hello, Overlay, SealSecret, Welcome};
use polycast_wire::data::{
    CodedHeader, EXTENSION_LEN_MAX, FLAG_ATTEMPT, FLAG_REPORT, FragmentHeader, HEADER_LEN, Header,
};
use polycast_wire::discovery::{Announcement, CodeSign, Discovery, QUESTION_LEN};
use polycast_wire::permit::ShownPermit;
use polycast_wire::pull::Digest;
use polycast_wire::reach::Reach;
use proptest::prelude::*;
use proptest::sample::Index;

/// One way to damage a packet.
#[derive(Clone, Debug)]
enum Damage {
    Set(Index, u8),
    Flip(Index, u8),
    Cut(Index),
    Insert(Index, Vec<u8>),
    Remove(Index, usize),
    Repeat(Index, usize),
}

fn damage() -> impl Strategy<Value = Damage> {
    let at = any::<Index>;
    prop_oneof![
        3 => (at(), prop_oneof![Just(0), Just(1), Just(255), any::<u8>()]).prop_map(|(i, b)| Damage::Set(i, b)),
        3 => (at(), 0u8..8).prop_map(|(i, bit)| Damage::Flip(i, bit)),
        1 => at().prop_map(Damage::Cut),
        1 => (at(), proptest::collection::vec(any::<u8>(), 1..20)).prop_map(|(i, b)| Damage::Insert(i, b)),
        1 => (at(), 1usize..20).prop_map(|(i, n)| Damage::Remove(i, n)),
        1 => (at(), 1usize..20).prop_map(|(i, n)| Damage::Repeat(i, n)),
    ]
}

fn damaged(mut packet: Vec<u8>, damages: &[Damage]) -> Vec<u8> {
    for damage in damages {
        if packet.is_empty() {
            break;
        }
        let len = packet.len();
        let end = |at: usize, count: usize| (at + count).min(len);
        match damage {
            Damage::Set(at, byte) => packet[at.index(len)] = *byte,
            Damage::Flip(at, bit) => packet[at.index(len)] ^= 1 << bit,
            Damage::Cut(at) => packet.truncate(at.index(len)),
            Damage::Insert(at, bytes) => {
                let at = at.index(len);
                packet.splice(at..at, bytes.iter().copied());
            }
            Damage::Remove(at, count) => {
                let at = at.index(len);
                packet.drain(at..end(at, *count));
            }
            Damage::Repeat(at, count) => {
                let at = at.index(len);
                let part = packet[at..end(at, *count)].to_vec();
                packet.splice(at..at, part);
            }
        }
    }
    packet
}

fn emitted(control: &Control<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    control.emit(&mut bytes);
    bytes
}

fn shown(permit: &[u8]) -> ShownPermit<'_> {
    ShownPermit { permit, signature: [3; 64], index: 5, way: vec![[2; 32]; 3] }
}

fn control_frames(number: u64, text: &str, bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut frames = transfer_frames(number, text, bytes);
    frames.extend(group_frames(number, bytes));
    frames
}

/// Frames between a source and a receiver about the object.
fn transfer_frames(number: u64, text: &str, bytes: &[u8]) -> Vec<Vec<u8>> {
    let object = ObjectId { app: AppId([7; 16]), data: DataId(number) };
    let ranges: Vec<_> = (0..6).map(|i| 10 * i + number % 4..10 * i + 5).collect();
    let handle = Handle(number);
    [
        Control::Hello(Hello {
            handle,
            name: text,
            window_bytes: number,
            serve_port: 9,
            location: [text; 2],
        }),
        Control::Welcome(Welcome {
            object,
            form: Form::Directory,
            mode: 0o640,
            name: text,
            object_len: number >> 20,
            fragment_len: 1_416,
            group_len: 1 << 18,
            channel: ([239, 255, 1, 2].into(), 5_000),
            outer_len: 28,
            stall_ns: number,
            salt: [6; 32],
            modified: ModificationTime::new(-(number as i64 >> 1), 7),
            data_len: Some(number >> 21),
        }),
        Control::Refuse(text),
        Control::Hashes { first: number, hashes: vec![[5; 32]; 3] },
        Control::Root([9; 32]),
        Control::Seal(SealSecret([8; 32])),
        Control::Forged { packets: 7 },
        Control::Have(ranges.clone()),
        Control::IntlSeq { position: number },
        Control::Progress {
            position: number,
            received: 1,
            lost: 2,
            verified_bytes: 3,
            arrived_ns: 4,
            waited_ns: 5,
        },
        Control::PtchReq(ranges.clone()),
        Control::PtchData { sn: number, payload: bytes },
        Control::DataRcvd { patched_bytes: number, proof: [4; 32] },
        Control::DataFnsd { position: number },
        Control::Speaker {
            member: 7,
            address: [10, 0, 0, 1].into(),
            port: 80,
            name: (number % 2 == 1).then_some(text),
        },
        Control::Overlay(Overlay::Enter { handle, ticket: [4; 32], entry: number, have: ranges }),
        Control::Group { index: number, payload: bytes },
        Control::Finished,
    ]
    .iter()
    .map(emitted)
    .collect()
}

/// Frames between them about the hosts that take part, and their ways.
fn group_frames(number: u64, bytes: &[u8]) -> Vec<Vec<u8>> {
    let object = ObjectId { app: AppId([7; 16]), data: DataId(number) };
    let handle = Handle(number);
    [
        Control::Invite {
            address: [10, 0, 0, 1].into(),
            port: 80,
            handle,
            object,
            pulled: number % 2 == 1,
            object_len: number,
            root: (number % 3 == 1).then_some([6; 32]),
            permit: (number % 2 == 1).then(|| shown(bytes)),
            delta: (number % 4 == 2).then(|| Box::new(Delta { base: [7; 32], root: [8; 32], len: number })),
        },
        Control::Pair { handle, share: [4; 32] },
        Control::Share([5; 32]),
        Control::Prove { share: [4; 32], proof: [6; 32] },
        Control::Paired([number as u8; 96]),
        Control::Joining,
        Control::Alive,
        Control::Channel { channel: ([239, 255, 1, 3].into(), 5_001), outer_len: 24 },
        Control::Gather { own: 3, members: vec![4, 5, number as u32 | 8] },
        Control::Speaker {
            member: number as u32,
            address: [10, 0, 0, 1].into(),
            port: 80,
            name: (number % 2 == 1).then_some("gpu-1"),
        },
        Control::Member { handle, member: number as u32, ticket: [3; 32] },
        Control::Rack(vec![1, number as u32 | 2]),
        Control::RackReq(vec![1..2, 5..number | 8]),
        Control::Trees {
            count: number as u8 | 1,
            block_bytes: number | 1,
            credits: 16,
            retry_ms: 20,
            overtaken: 3,
            progress_ms: 100,
        },
        Control::Route { tree: number as u8, begins: Some(7), hops: &bytes[..bytes.len().min(14)] },
        Control::Roots { first: number, digests: vec![Digest([7; 16]), Digest([number as u8; 16])] },
        Control::Stalled { tree: number as u8 },
        Control::AskHashes,
        Control::AskSums,
        Control::Sums { first: number, sums: vec![number, 5] },
    ]
    .iter()
    .map(emitted)
    .collect()
}

fn data_headers(number: u64) -> Vec<Vec<u8>> {
    let handle = Handle(number);
    let fragment = |sn, flags, object_len| {
        Header::Fragment(FragmentHeader {
            handle,
            round: number as u32,
            sn,
            flags,
            object_len,
            sealed: number % 2 == 1,
        })
    };
    let first = number >> 1;
    let coded = CodedHeader::new(handle, &[first, first + 1, first + 300, first + 65_535]).unwrap();
    let headers =
        [fragment(number, FLAG_REPORT, None), fragment(0, FLAG_ATTEMPT, Some(number)), Header::Coded(coded)];
    headers
        .iter()
        .map(|header| {
            let mut buffer = [0; HEADER_LEN + EXTENSION_LEN_MAX];
            let len = header.emit(&mut buffer);
            [&buffer[..len], b"payload"].concat()
        })
        .collect()
}

fn check_control(frame: &[u8]) {
    if let Ok(control) = Control::parse(frame) {
        assert_eq!(emitted(&control), frame);
    }
}

fn check_data(datagram: &[u8]) {
    if let Ok((header, len)) = Header::parse(datagram) {
        assert!(len <= datagram.len());
        let mut buffer = [0; HEADER_LEN + EXTENSION_LEN_MAX];
        assert_eq!(header.emit(&mut buffer), len);
        // Tags are not of the header.
        let kept = len - header.tags_len();
        assert_eq!(&buffer[..kept], &datagram[..kept]);
    }
}

fn check_discovery(datagram: &[u8]) {
    if let Ok(message) = Discovery::parse(datagram) {
        assert_eq!(message.emit(), datagram);
    }
    if let Ok(message) = Reach::parse(datagram) {
        assert_eq!(message.emit(), datagram);
    }
}

proptest! {
    #[test]
    fn control_frames_that_are_almost_right(
        number: u64,
        text in ".{0,20}",
        bytes in proptest::collection::vec(any::<u8>(), 0..60),
        damages in proptest::collection::vec(damage(), 0..4),
        which: Index,
        mend_length: bool,
    ) {
        let frames = control_frames(number, &text, &bytes);
        let mut frame = damaged(which.get(&frames).clone(), &damages);
        // Most damage shows in the length already: mend it to reach what lies behind.
        if mend_length && frame.len() > 4 {
            let len = frame.len() as u32 - 4;
            frame[..4].copy_from_slice(&len.to_be_bytes());
        }
        check_control(&frame);
    }

    #[test]
    fn data_headers_that_are_almost_right(
        number: u64,
        damages in proptest::collection::vec(damage(), 0..4),
        which: Index,
    ) {
        check_data(&damaged(which.get(&data_headers(number)).clone(), &damages));
    }

    #[test]
    fn announcements_that_are_almost_right(
        number: u64,
        name in ".{0,20}",
        damages in proptest::collection::vec(damage(), 0..4),
    ) {
        let announcement = Announcement {
            handle: Handle(number), address: [10, 0, 0, 1].into(), port: 7, places: 3, object_len: number, host: name.clone(), name,
            code: (number % 2 == 1).then_some(CodeSign::Drawn(7)),
        };
        check_discovery(&damaged(Discovery::Announce(announcement).emit(), &damages));
        check_discovery(&damaged(Discovery::Solicit { len: QUESTION_LEN }.emit(), &damages));
    }
}

#[test]
fn packets_that_are_right_are_accepted() {
    for frame in control_frames(77, "name", b"payload") {
        Control::parse(&frame).unwrap();
        for len in 0..frame.len() {
            check_control(&frame[..len]);
            assert!(Control::parse(&frame[..len]).is_err());
        }
    }
    for datagram in data_headers(77) {
        Header::parse(&datagram).unwrap();
        (0..datagram.len()).for_each(|len| check_data(&datagram[..len]));
    }
}
