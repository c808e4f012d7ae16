//! Each bound of a format, from both sides: the last value that is taken, and the first one that is refused.
//! Peers are not trusted: what the machines divide by, allocate for or wait for is checked by the decoders,
//! once.

use polycast_types::{Handle, ObjectId};
use polycast_wire::control::{self, Control, FRAME_LEN_MAX, Form, Hello, LENGTH_LEN, Overlay, Welcome};
use polycast_wire::discovery::{Announcement, Discovery};
use polycast_wire::pull::{self, Digest, HOPS_MAX};
use polycast_wire::rack::{self, Name, Rack, Update, Updates};
use polycast_wire::switches::{self, Change, Word};
use polycast_wire::{WireError, data, label, stream};
use proptest::prelude::*;
use std::ops::Range;

fn emitted(control: &Control<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    control.emit(&mut out);
    out
}

/// A frame with any body, as a hostile peer may send it.
fn frame(kind: u8, body: &[u8]) -> Vec<u8> {
    [&(body.len() as u32 + 1).to_be_bytes()[..], &[kind], body].concat()
}

/// The same frame with other bytes at a place of its body.
fn changed(frame: &[u8], at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[at..at + bytes.len()].copy_from_slice(bytes);
    frame
}

fn is_taken(frame: &[u8]) -> bool {
    match Control::parse(frame) {
        Ok(control) => {
            assert_eq!(emitted(&control), frame, "it is written as it was read");
            true
        }
        Err(error) => {
            assert_eq!(error, WireError::Malformed);
            false
        }
    }
}

#[test]
fn frames_have_one_byte_to_two_mebibytes() {
    let len = |len: u32| Control::frame_len(&len.to_be_bytes());
    assert_eq!(FRAME_LEN_MAX, 2 << 20);
    assert_eq!(len(1), Ok(Some(LENGTH_LEN + 1)));
    assert_eq!(len(2 << 20), Ok(Some(LENGTH_LEN + (2 << 20))));
    for refused in [0, (2 << 20) + 1, i32::MAX as u32, 1 << 31, u32::MAX] {
        assert_eq!(len(refused), Err(WireError::Malformed), "{refused}");
    }
    assert!((0..LENGTH_LEN).all(|n| Control::frame_len(&[0; 4][..n]) == Ok(None)));
    let payload = vec![7; FRAME_LEN_MAX - 9];
    assert!(is_taken(&emitted(&Control::PtchData { sn: 1, payload: &payload })));
    assert!(!is_taken(&frame(10, &[&[0; 8][..], &payload, &[7]].concat())));
}

#[test]
#[should_panic(expected = "too long")]
fn a_frame_that_is_too_long_is_not_written() {
    let _ = emitted(&Control::PtchData { sn: 1, payload: &vec![7; FRAME_LEN_MAX - 8] });
}

#[test]
fn a_welcome_holds_only_what_machines_can_work_with() {
    let welcome = Welcome {
        object: ObjectId::default(),
        form: Form::File,
        mode: 0o644,
        name: "",
        object_len: 5,
        fragment_len: 1_000,
        group_len: 1 << 18,
        channel: ([239, 1, 2, 3].into(), 9),
        outer_len: 0,
        stall_ns: 1,
        salt: [9; 32],
        modified: None,
        data_len: None,
    };
    let good = emitted(&Control::Welcome(welcome));
    // Behind the length, the kind and the version: object 24, form 1, mode 2, name 2, object_len 8,
    // fragment_len 4, group_len 4, channel 7, outer_len 1.
    let (form, mode) = (30, 31);
    let (object_len, fragment_len, group_len, outer_len) = (35, 43, 47, 58);
    assert!(is_taken(&good));
    for (len, taken) in
        [(0, true), (1 << 50, true), ((1 << 50) + 1, false), (1 << 60, false), (u64::MAX, false)]
    {
        assert_eq!(is_taken(&changed(&good, object_len, &u64::to_be_bytes(len))), taken, "object_len {len}");
    }
    for (len, taken) in [(0, false), (1, true), (65_535, true), (65_536, false), (u32::MAX, false)] {
        assert_eq!(
            is_taken(&changed(&good, fragment_len, &u32::to_be_bytes(len))),
            taken,
            "fragment_len {len}"
        );
    }
    for len in (0..32).map(|bit| 1u32 << bit).chain([0, 3 << 16, (1 << 18) + 1, (1 << 20) + 1, u32::MAX]) {
        let taken = [1 << 16, 1 << 17, 1 << 18, 1 << 19, 1 << 20].contains(&len);
        assert_eq!(is_taken(&changed(&good, group_len, &len.to_be_bytes())), taken, "group_len {len}");
    }
    for len in 0..=u8::MAX {
        let taken = len % 4 == 0 && usize::from(len) <= label::header_len(label::LABEL_LEN_MAX);
        assert_eq!(is_taken(&changed(&good, outer_len, &[len])), taken, "outer_len {len}");
        let channel = changed(
            &emitted(&Control::Channel { channel: ([239, 1, 2, 3].into(), 9), outer_len: 0 }),
            12,
            &[len],
        );
        assert_eq!(is_taken(&channel), taken, "outer_len {len} of CHANNEL");
    }
    for (bits, taken) in [(0, true), (0o777, true), (0o1000, false), (0o4755, false), (u16::MAX, false)] {
        assert_eq!(is_taken(&changed(&good, mode, &bits.to_be_bytes())), taken, "mode {bits:o}");
    }
    for (kind, taken) in [(0, true), (1, true), (2, true), (3, false), (255, false)] {
        assert_eq!(is_taken(&changed(&good, form, &[kind])), taken, "form {kind}");
    }
    // A time may follow, whole and with less than a second of nanoseconds.
    for (len, nanos, taken) in [
        (12, 0, true),
        (12, 999_999_999, true),
        (12, 1_000_000_000, false),
        (12, u32::MAX, false),
        (11, 0, false),
        (1, 0, false),
    ] {
        let time = [&[0xff; 8][..], &u32::to_be_bytes(nanos)].concat();
        let told = frame(2, &[&good[5..], &time[..len]].concat());
        assert_eq!(is_taken(&told), taken, "{len} bytes of a time, {nanos} ns");
    }
    assert!(!is_taken(&frame(2, &[&good[5..], &[0; 13]].concat())));
}

/// The ranges `1..2, 3..4, ...`: each apart from the one before by one number.
fn many_ranges(count: usize) -> Vec<Range<u64>> {
    (0..count as u64).map(|at| 2 * at + 1..2 * at + 2).collect()
}

fn ranges_body(ranges: &[Range<u64>]) -> Vec<u8> {
    ranges.iter().flat_map(|range| [range.start.to_be_bytes(), range.end.to_be_bytes()]).flatten().collect()
}

#[test]
fn ranges_are_at_most_4096() {
    assert_eq!(control::RANGES_MAX, 4_096);
    let enter = [&[polycast_wire::VERSION][..], &9u64.to_be_bytes(), &[7; 32], &5u64.to_be_bytes()].concat();
    for (kind, head, most) in [(6, &[][..], 4_096), (9, &[], 4_096), (34, &[], 4_096), (48, &enter, 4_092)] {
        for (count, taken) in [(0, true), (1, true), (most, true), (most + 1, false), (100_000, false)] {
            let body = [head, &ranges_body(&many_ranges(count))].concat();
            assert_eq!(is_taken(&frame(kind, &body)), taken, "{count} ranges in kind {kind}");
        }
    }
}

/// First frames of a connection are short, however much ENTER names.
#[test]
fn first_frames_are_short() {
    let name = "n".repeat(255);
    let location = [&*name; 2];
    let hello = Hello { handle: Handle(1), name: &name, window_bytes: 1, serve_port: 1, location };
    let hello = Control::Hello(hello);
    let have = many_ranges(control::ENTER_RANGES_MAX);
    let enter = Control::Overlay(Overlay::Enter { handle: Handle(1), ticket: [7; 32], entry: 5, have });
    for first in [hello, enter] {
        assert!(emitted(&first).len() - LENGTH_LEN <= control::FIRST_FRAME_LEN_MAX);
    }
}

#[test]
#[should_panic(expected = "4097 ranges")]
fn more_ranges_are_not_written() {
    let _ = emitted(&Control::Have(many_ranges(4_097)));
}

#[test]
fn members_are_at_most_256_and_rise() {
    assert_eq!(control::MEMBERS_MAX, 256);
    let body = |members: &[u32]| members.iter().flat_map(|member| member.to_be_bytes()).collect::<Vec<u8>>();
    let numbers: Vec<u32> = (0..300).collect();
    for (count, taken) in [(0, true), (1, true), (256, true), (257, false), (300, false)] {
        assert_eq!(is_taken(&frame(33, &body(&numbers[..count]))), taken, "{count} members");
        assert_eq!(
            is_taken(&frame(30, &body(&[&[9], &numbers[..count]].concat()))),
            taken,
            "{count} members"
        );
    }
    for (members, taken) in [([1, 1], false), ([2, 1], false), ([1, 2], true), ([0, u32::MAX], true)] {
        assert_eq!(is_taken(&frame(33, &body(&members))), taken, "{members:?}");
    }
    assert!(!is_taken(&frame(33, &[0; 5])));
}

#[test]
#[should_panic(expected = "257 receivers")]
fn more_members_are_not_written() {
    let _ = emitted(&Control::Rack((0..257).collect()));
}

#[test]
fn hashes_and_digests_are_at_least_one_and_bounded() {
    assert_eq!((control::HASHES_MAX, control::DIGESTS_MAX, control::SUMS_MAX), (8_192, 32_768, 32_768));
    let kinds = [
        (4, 32, control::HASHES_MAX),
        (42, pull::DIGEST_LEN, control::DIGESTS_MAX),
        (46, 8, control::SUMS_MAX),
    ];
    for (kind, len, max) in kinds {
        for (count, taken) in [(0, false), (1, true), (2, true), (max, true), (max + 1, false)] {
            assert_eq!(is_taken(&frame(kind, &vec![9; 8 + count * len])), taken, "{count} in kind {kind}");
            assert!(!is_taken(&frame(kind, &vec![9; 8 + count * len + 1])), "a byte more");
        }
    }
}

#[test]
fn trees_are_some_with_blocks_and_credits() {
    let with_times = |count: u8, block_bytes: u64, numbers: [u32; 4]| {
        let numbers = numbers.map(u32::to_be_bytes).concat();
        is_taken(&frame(40, &[&[count][..], &block_bytes.to_be_bytes(), &numbers].concat()))
    };
    let trees = |count, block_bytes, credits| with_times(count, block_bytes, [credits, 0, 3, 100]);
    let times = |retry_ms, overtaken, progress_ms| with_times(1, 1, [1, retry_ms, overtaken, progress_ms]);
    assert!(times(0, 0, 1) && times(60_000, u32::MAX, 60_000));
    assert!(!times(60_001, 3, 100) && !times(0, 3, 0) && !times(0, 3, 60_001));
    assert!(trees(1, 1, 1) && trees(255, u64::MAX, 65_536));
    assert!(!trees(0, 1, 1) && !trees(1, 0, 1) && !trees(1, 1, 0) && !trees(1, 1, 65_537));
    assert!(!trees(0, 0, 0) && !trees(1, 1, u32::MAX));
}

#[test]
fn routes_have_at_most_14_hops() {
    assert_eq!(HOPS_MAX, 14);
    for (count, taken) in [(0, true), (14, true), (15, false), (200, false)] {
        assert_eq!(is_taken(&frame(41, &[&[3, 0, 0, 0, 9][..], &vec![1; count]].concat())), taken, "{count}");
        if (1..=HOPS_MAX).contains(&count) {
            for position in 0..=count as u8 {
                let hops = pull::Hops::new(&vec![1; count], position).unwrap();
                assert_eq!((hops.bytes(), hops.position()), (&vec![1; count][..], position));
            }
            assert!(pull::Hops::new(&vec![1; count], count as u8 + 1).is_none());
        } else {
            assert!(pull::Hops::new(&vec![1; count], 0).is_none());
        }
    }
}

#[test]
#[should_panic(expected = "15 hops")]
fn a_longer_route_is_not_written() {
    let _ = emitted(&Control::Route { tree: 0, begins: None, hops: &[1; 15] });
}

/// Whatever text is put into a packet, it can be written, loses only its end, and is read by the other end;
/// longer ones are refused.
#[test]
fn texts_of_any_length_are_written_and_long_ones_are_not_read() {
    let long = |len: usize| "ä".repeat(len / 2) + &"a".repeat(len % 2);
    for len in [0, 1, 254, 255, 256, 511, 512, 513, 1_023, 1_024, 1_025, 65_535, 65_536, 1 << 20] {
        let text = long(len);
        let read = |bytes: &[u8]| match Control::parse(bytes) {
            Ok(Control::Refuse(text) | Control::Hello(Hello { name: text, .. })) => text.to_string(),
            other => panic!("{other:?}"),
        };
        let sentence = read(&emitted(&Control::Refuse(&text)));
        assert!(text.starts_with(&sentence) && sentence.len() == len.min(1_024));
        let name = read(&emitted(&Control::Hello(Hello {
            handle: Handle(1),
            name: &text,
            window_bytes: 1,
            serve_port: 1,
            location: [""; 2],
        })));
        assert!(text.starts_with(&name) && name.len() >= len.min(254));
        let announcement = Announcement {
            handle: Handle(1),
            address: [1; 4].into(),
            port: 1,
            places: 1,
            object_len: 1,
            name: text.clone(),
            host: text.clone(),
            code: None,
        };
        let Ok(Discovery::Announce(read)) = Discovery::parse(&Discovery::Announce(announcement).emit())
        else {
            panic!("an announcement of a name of {len} bytes is not read");
        };
        assert!(text.starts_with(&read.name) && read.name.len() >= len.min(254));
        assert_eq!(read.host, read.name);
    }
    let refuse = |len: usize| [&(len as u16).to_be_bytes()[..], &vec![b'a'; len]].concat();
    assert!(is_taken(&frame(3, &refuse(1_024))) && !is_taken(&frame(3, &refuse(1_025))));
    let hello = |len: usize| [&[polycast_wire::VERSION][..], &[0; 8], &refuse(len), &[0; 14]].concat();
    assert!(is_taken(&frame(1, &hello(255))) && !is_taken(&frame(1, &hello(256))));
}

#[test]
fn proofs_are_asked_of_every_group() {
    let mut salt = [0xff; 32];
    salt[..8].copy_from_slice(&0x0102_0304_0506_0708u64.to_be_bytes());
    assert_eq!(control::proven_group(&salt, 1), 0);
    assert_eq!(control::proven_group(&salt, 1 << 32), 0x0506_0708);
    assert_eq!(control::proven_group(&[0xff; 32], 1_000), u64::MAX % 1_000);
}

#[test]
fn texts_that_are_no_utf8_are_refused() {
    assert!(is_taken(&frame(3, &[0, 2, 0xc3, 0xa4])));
    assert!(!is_taken(&frame(3, &[0, 2, 0xc3, 0x28])));
    assert!(!is_taken(&frame(3, &[0, 3, b'a', b'b'])));
    assert!(!is_taken(&frame(3, &[0, 1, b'a', b'b'])));
}

proptest! {
    /// Ranges are taken exactly where each holds something and a gap lies before the next one.
    #[test]
    fn ranges_rise_apart_from_each_other(numbers in proptest::collection::vec((0u64..12, 0u64..12), 0..4)) {
        let ranges: Vec<Range<u64>> = numbers.iter().map(|&(start, end)| start..end).collect();
        let lawful = ranges.iter().all(|range| range.start < range.end)
            && ranges.windows(2).all(|pair| pair[0].end < pair[1].start);
        prop_assert_eq!(is_taken(&frame(9, &ranges_body(&ranges))), lawful);
    }

    /// Every value is written into its place whole: no two of these headers have the same bytes.
    #[test]
    fn flags_of_data_are_kept_apart(one in 0u8..8, other in 0u8..8, sized: [bool; 2]) {
        let bytes = |flags: u8, sized: bool| {
            let (handle, object_len) = (Handle(1), sized.then_some(5));
            let header = data::FragmentHeader { handle, round: 0, sn: 0, flags: flags << 1, object_len, sealed: false };
            let mut buffer = [0; data::HEADER_LEN + data::EXTENSION_LEN_MAX];
            let len = data::Header::Fragment(header).emit(&mut buffer);
            buffer[..len].to_vec()
        };
        let equal = (one, sized[0]) == (other, sized[1]);
        prop_assert_eq!(bytes(one, sized[0]) == bytes(other, sized[1]), equal);
    }
}

/// A fragment as bytes: `flags`, the header's length, and an extension.
fn datagram(kind: u8, flags: u8, round: u32, sn: u64, extension: &[u8]) -> Vec<u8> {
    let head = [polycast_wire::VERSION, kind, flags, 24 + extension.len() as u8];
    [&head[..], &round.to_be_bytes(), &[0; 8], &sn.to_be_bytes(), extension].concat()
}

#[test]
fn data_headers_say_nothing_twice() {
    let taken = |datagram: &[u8]| data::Header::parse(datagram).is_ok();
    assert!(taken(&datagram(1, 0, 3, 7, &[])) && taken(&datagram(1, data::FLAG_SIZE, 3, 0, &[1; 8])));
    for flags in 0..=u8::MAX {
        let known = data::FLAG_SIZE | data::FLAG_PATCH | data::FLAG_REPORT | data::FLAG_ATTEMPT;
        let sized = flags & data::FLAG_SIZE != 0;
        let lawful = flags <= 15 && flags & known == flags;
        assert_eq!(taken(&datagram(1, flags, 0, 0, &[1; 8])), lawful && sized, "{flags} with 8 bytes");
        assert_eq!(taken(&datagram(1, flags, 0, 0, &[])), lawful && !sized, "{flags} without");
        assert!(!taken(&datagram(1, flags | data::FLAG_SIZE, 0, 1, &[1; 8])), "only fragment 0 has the size");
        // A coded patch is a patch and nothing else, of no round.
        assert_eq!(taken(&datagram(2, flags, 0, 0, &[0, 1])), flags == data::FLAG_PATCH);
        assert!(!taken(&datagram(2, flags, 1, 0, &[0, 1])));
    }
    for len in [1, 4, 7, 9, 16] {
        assert!(!taken(&datagram(1, data::FLAG_SIZE, 0, 0, &vec![0; len])), "{len} bytes are no size");
    }
    let short = changed(&datagram(1, 0, 0, 0, &[]), 3, &[23]);
    assert!(!taken(&short) && !taken(&[&short[..], &[0; 9]].concat()));
    assert!(
        !taken(&changed(&datagram(2, data::FLAG_PATCH, 0, 0, &[0, 1]), 3, &[28])),
        "longer than the datagram"
    );
}

#[test]
fn coded_patches_rise_and_end_in_64_bits() {
    let patch = |sn: u64, extension: &[u8]| {
        data::Header::parse(&datagram(2, data::FLAG_PATCH, 0, sn, extension)).map(
            |(header, _)| match header {
                data::Header::Coded(coded) => coded.sns().to_vec(),
                data::Header::Fragment(fragment) => panic!("a fragment: {fragment:?}"),
            },
        )
    };
    assert_eq!(patch(10, &[0, 1, 1, 0]), Ok(vec![10, 11, 266]));
    assert_eq!(patch(u64::MAX - 1, &[0, 1]), Ok(vec![u64::MAX - 1, u64::MAX]));
    for (sn, extension) in
        [(10, &[][..]), (10, &[1]), (10, &[0, 0]), (10, &[0, 2, 0, 2]), (10, &[0, 2, 0, 1])]
    {
        assert_eq!(patch(sn, extension), Err(WireError::Malformed), "{extension:?}");
    }
    assert_eq!(patch(u64::MAX, &[0, 1]), Err(WireError::Malformed));
    let full: Vec<u8> = (1..=16).flat_map(|distance| [0, distance]).collect();
    assert_eq!(patch(0, &full).map(|sns| sns.len()), Ok(data::CODED_FRAGMENTS_MAX));
    assert_eq!(patch(0, &[&full[..], &[0, 17]].concat()), Err(WireError::Malformed));
    let sns: Vec<u64> = (0..18).collect();
    assert!(data::CodedHeader::new(Handle(0), &sns[..17]).is_some());
    assert!(
        data::CodedHeader::new(Handle(0), &sns).is_none() && data::CodedHeader::new(Handle(0), &[]).is_none()
    );
}

#[test]
fn fragments_leave_room_for_all_headers() {
    // 28 bytes of IPv4 and UDP, 24 of the header, 32 set aside; blocks of 16, at least 256 bytes, at most
    // what UDP can carry.
    for (mtu, len) in
        [(0, 256), (340, 256), (355, 256), (356, 272), (1_500, 1_408), (9_000, 8_912), (65_535, 65_440)]
    {
        assert_eq!(data::fragment_len_for_mtu(mtu), len, "{mtu}");
    }
    assert_eq!(data::fragment_len_for_mtu(u32::MAX), 65_440);
    for (mtu, len) in [(0, 256), (340, 256), (341, 257), (1_500, 1_416), (2_131, 2_047), (2_132, 2_048)] {
        assert_eq!(pull::payload_len_for_mtu(mtu), len, "{mtu}");
    }
    for (mtu, len) in [(3_155, 2_048), (3_156, 3_072), (9_000, 8_192), (9_216, 8_192), (u32::MAX, 8_192)] {
        assert_eq!(pull::payload_len_for_mtu(mtu), len, "{mtu}");
    }
}

#[test]
fn a_message_of_a_rack_fits_one_frame() {
    let name = Name { rack: 1, agent: None };
    let label = [7; label::LABEL_LEN_MAX];
    let mut updates = Updates::new(name, 1, 0);
    // 26 bytes, and 13 + 164 for each update: 7 fit 1,440 bytes, 8 do not.
    let taken = (1..=9)
        .take_while(|number| updates.push(Update { number: *number, session: 1, label: &label }))
        .count();
    assert_eq!((rack::MESSAGE_LEN_MAX, taken), (1_440, (1_440 - 26) / 177));
    // 175 bytes are left: an update with a label of 162 bytes fills them.
    assert!(!updates.push(Update { number: 8, session: 1, label: &label[..163] }));
    assert!(updates.push(Update { number: 8, session: 1, label: &label[..162] }));
    let mut full = Vec::new();
    Rack::Updates(updates).emit(&mut full);
    assert_eq!(full.len(), 1_440);
    assert!(Rack::parse(&full).is_ok());
    // One byte more: longer than any message, whatever is in it.
    full.push(0);
    assert_eq!(Rack::parse(&full), Err(WireError::Malformed));
}

#[test]
fn updates_rise_and_labels_are_bounded() {
    let updates = |parts: &[(u64, u8)]| {
        let mut bytes =
            [&[polycast_wire::VERSION, 3][..], &[0; 8], &1u64.to_be_bytes(), &5u64.to_be_bytes()].concat();
        for (number, len) in parts {
            bytes.extend_from_slice(
                &[&number.to_be_bytes()[..], &[0, 0, 0, 9, *len], &vec![3; usize::from(*len)]].concat(),
            );
        }
        Rack::parse(&bytes).is_ok()
    };
    assert!(updates(&[(6, 0)]) && updates(&[(6, 184), (7, 1)]) && updates(&[(9, 1), (u64::MAX, 2)]));
    assert!(!updates(&[]) && !updates(&[(5, 1)]) && !updates(&[(6, 1), (6, 1)]) && !updates(&[(6, 185)]));
    for flags in 0..=u8::MAX {
        let heartbeat = [&[polycast_wire::VERSION, 1, flags][..], &[0; 40]].concat();
        let standing = [&[polycast_wire::VERSION, 2, flags][..], &[0; 32]].concat();
        assert_eq!(Rack::parse(&heartbeat).is_ok(), flags < 4, "{flags}");
        assert_eq!(Rack::parse(&standing).is_ok(), flags < 4, "{flags}");
    }
}

#[test]
fn frames_to_switches_have_at_most_1024_bytes() {
    for (len, whole) in [(0, Some(2)), (1, Some(3)), (1_022, Some(1_024)), (1_023, None), (u16::MAX, None)] {
        assert_eq!(Word::frame_len(&len.to_be_bytes()), whole.map(Some).ok_or(WireError::Malformed), "{len}");
    }
    assert_eq!(Word::frame_len(&[]), Ok(None));
    assert_eq!(switches::FRAME_LEN_MAX, 1_024);
    let failed = |len: usize| {
        let reason = "x".repeat(len);
        let body = [&[6, 0, 0, 0, 1][..], &(len as u16).to_be_bytes(), reason.as_bytes()].concat();
        Word::parse(&[&(body.len() as u16).to_be_bytes()[..], &body].concat()).is_ok()
    };
    assert!(failed(0) && failed(512) && !failed(513) && !failed(1_015) && !failed(2_000));
    let mut out = b"before".to_vec();
    let change = Change::SetEntry { spine: 1, session: 2, leaf: 3 };
    Word::Change { number: 4, change }.emit(&mut out);
    assert_eq!(Word::parse(&out[6..]), Ok(Word::Change { number: 4, change }), "the frame is appended");
}

#[test]
fn messages_of_streams_are_bounded() {
    let header = stream::Header { stream: Handle(1), number: 2, piece: 0, pieces: 1, sealed: false };
    let mut datagram = Vec::new();
    header.emit(&mut datagram);
    datagram.resize(stream::HEADER_LEN + stream::MESSAGE_LEN_MAX, 0);
    assert!(stream::Header::parse(&datagram).is_ok());
    datagram.push(0);
    assert_eq!(stream::Header::parse(&datagram), Err(WireError::Malformed));
    for (at, byte) in [(6, 1), (7, 2)] {
        assert!(stream::Header::parse(&changed(&datagram[..40], at, &[byte])).is_err(), "byte {at}");
    }
    let sealed = changed(&datagram[..40], 7, &[1]);
    assert!(stream::Header::parse(&sealed).is_ok_and(|(header, _)| header.sealed));
    assert!(stream::Header::parse(&sealed[..35]).is_err(), "there is no room for a tag");
}

#[test]
fn packets_of_pull_say_nothing_twice() {
    let hops = pull::Hops::new(&[1, 2], 1).unwrap();
    let header =
        |kind| pull::Header { kind, tree: 0, hops, handle: Handle(1), sn: 2, digest: Digest([3; 16]) };
    let interest = header(pull::Kind::Interest { fresh: false }).emit();
    let data = header(pull::Kind::Data { again: false, follows: pull::Follows::Open }).emit();
    let taken = |packet: &[u8]| pull::Packet::parse(packet).is_ok();
    assert!(taken(&interest) && !taken(&[&interest[..], &[0]].concat()), "an interest has no payload");
    for flags in 0..=u8::MAX {
        assert_eq!(taken(&changed(&interest, 2, &[flags])), flags < 2, "interest with {flags}");
        // Again is free; next and end together are a place, and there is nothing else.
        let lawful = [0, 2, 4, 6, 8, 10, 12, 14].contains(&flags);
        assert_eq!(taken(&changed(&data, 2, &[flags])), lawful, "data with {flags}");
        let next = changed(&changed(&data, 2, &[flags]), 20, &[0, 0, 0, 1]);
        assert_eq!(taken(&next), [4, 6, 12, 14].contains(&flags), "a block or a packet with {flags}");
    }
    // Two hops are used: the others are zero.
    for at in pull::ROUTE_AT + 2..pull::ROUTE_AT + HOPS_MAX {
        assert!(!taken(&changed(&data, at, &[1])), "byte {at}");
    }
    let greeting = pull::greeting(false);
    for flags in 0..=u8::MAX {
        assert_eq!(taken(&changed(&greeting, 2, &[flags])), flags < 2, "greeting with {flags}");
    }
    for at in 3..pull::HEADER_LEN {
        assert!(!taken(&changed(&greeting, at, &[1])), "byte {at}");
    }
    assert!(!taken(&[&greeting[..], &[0]].concat()));
}

#[test]
fn names_of_faults_and_errors_differ() {
    let names: std::collections::BTreeSet<String> =
        label::Fault::ALL.iter().map(ToString::to_string).collect();
    assert_eq!(names.len(), label::Fault::ALL.len());
    assert!(names.iter().all(|name| !name.is_empty()));
    assert!(WireError::Version(9).to_string().contains('9'));
}

#[test]
fn secrets_are_not_printed() {
    assert_eq!(format!("{:?}", control::SealSecret([0xab; 32])), "SealSecret(..)");
}
