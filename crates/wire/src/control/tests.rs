use super::*;
use alloc::vec;
use proptest::prelude::*;

fn ranges() -> impl Strategy<Value = Vec<Range<u64>>> {
    proptest::collection::vec((1u64..1000, 1u64..1000), 0..20).prop_map(|steps| {
        let mut at = 0;
        let step = |(gap, len): (u64, u64)| {
            let range = at + gap..at + gap + len;
            at = range.end;
            range
        };
        steps.into_iter().map(step).collect()
    })
}

fn assert_round_trip(control: &Control<'_>) {
    let mut bytes = vec![0xaa];
    control.emit(&mut bytes);
    assert_eq!(Control::frame_len(&bytes[1..]), Ok(Some(bytes.len() - 1)));
    assert_eq!(Control::parse(&bytes[1..]).as_ref(), Ok(control));
}

/// Addresses of both families.
fn address() -> impl Strategy<Value = IpAddr> {
    any::<IpAddr>().prop_map(|address| address.to_canonical())
}

proptest! {
    #[test]
    fn pull_frames_come_back_equal(
        tree: u8, a: u64, count in 1u8.., block in 1u64.., credits in 1u32..65_536,
        hops in proptest::collection::vec(any::<u8>(), 0..=HOPS_MAX),
        digests in proptest::collection::vec(any::<[u8; DIGEST_LEN]>(), 1..9),
    ) {
        let (retry_ms, overtaken, progress_ms) = (credits / 2, credits, 1 + credits / 3);
        assert_round_trip(&Control::Trees {
            count, block_bytes: block, credits, retry_ms, overtaken, progress_ms,
        });
        assert_round_trip(&Control::AskHashes);
        assert_round_trip(&Control::AskSums);
        assert_round_trip(&Control::Sums { first: a, sums: digests.iter().map(|digest| a ^ u64::from(digest[0])).collect() });
        assert_round_trip(&Control::Route { tree, begins: (tree > 9).then_some(credits), hops: &hops });
        let digests = digests.into_iter().map(Digest).collect();
        assert_round_trip(&Control::Roots { first: a, digests });
        assert_round_trip(&Control::Stalled { tree });
    }

    #[test]
    fn frames_come_back_equal(
        a: u64, b: u64, c: u64, d: u64, port: u16, address in address(), app: [u8; 16], flag: bool,
        text in ".{0,60}", ranges in ranges(), payload in proptest::collection::vec(any::<u8>(), 0..300),
        hashes in proptest::collection::vec(any::<[u8; 32]>(), 1..5),
    ) {
        let object = ObjectId { app: AppId(app), data: DataId(d) };
        let frames = [
            Control::Hello(Hello {
                handle: Handle(a), name: &text, window_bytes: b, serve_port: port,
                location: ["z", "r"],
            }),
            Control::Welcome(Welcome {
                object, form: [Form::File, Form::Directory, Form::Set][usize::from(port % 3)], mode: port % 0o1000, name: &text, object_len: b >> 14,
                fragment_len: u32::from(port.max(1)), group_len: 1 << 18, channel: (address, port), outer_len: 4 * (port % 44) as u8, stall_ns: c, salt: hashes[0],
                modified: if flag { ModificationTime::new(a.cast_signed(), (b % 1_000_000_000) as u32) } else { None },
                data_len: port.is_multiple_of(2).then_some(b >> 15),
            }),
            Control::Refuse(&text),
            Control::Ask { handle: Handle(a), nonce: hashes[0] },
            Control::Offered(Offered {
                handle: Handle(a), places: b as u32, object_len: c, name: &text, host: &text,
                code: flag.then_some(CodeSign::Drawn(port)), challenge: hashes[0], proof: hashes[0],
            }),
            Control::Pair { handle: Handle(a), share: hashes[0] },
            Control::Share(hashes[0]),
            Control::Prove { share: hashes[0], proof: hashes[0] },
            Control::Paired([app[0]; 96]),
            Control::Join {
                proof: hashes[0],
                hello: Hello {
                    handle: Handle(a), name: &text, window_bytes: b, serve_port: port, location: ["", "r"],
                },
            },
            Control::Root(hashes[0]),
            Control::Seal(SealSecret(hashes[0])),
            Control::Forged { packets: a },
            Control::Invite {
                address, port, handle: Handle(a), object, pulled: a % 2 == 1,
                object_len: b, root: flag.then_some(hashes[0]),
                permit: flag.then(|| ShownPermit {
                    permit: &payload[..payload.len().min(60)], signature: [7; 64], index: b as u32,
                    way: hashes.iter().take(9).copied().collect(),
                }),
                delta: (c % 2 == 1).then(|| Box::new(Delta { base: hashes[0], root: [c as u8; 32], len: c })),
            },
            Control::Hashes { first: a, hashes: hashes.clone() },
            Control::Have(ranges.clone()),
            Control::IntlSeq { position: a },
            Control::Progress {
                position: a,
                received: b,
                lost: c,
                verified_bytes: d,
                arrived_ns: b,
                waited_ns: a,
            },
            Control::PtchReq(ranges),
            Control::PtchData { sn: a, payload: &payload },
            Control::DataRcvd { patched_bytes: b, proof: hashes[0] },
            Control::DataFnsd { position: c },
            Control::Speaker { member: b as u32, address, port, name: flag.then_some(&*text) },
            Control::Group { index: b, payload: &payload },
            Control::Finished,
            Control::Joining,
            Control::Alive,
            Control::Channel { channel: (address, port), outer_len: 24 },
        ];
        frames.iter().for_each(assert_round_trip);
    }

    #[test]
    fn no_bytes_make_the_parser_panic(body in proptest::collection::vec(any::<u8>(), 0..200), kind in 0u8..24) {
        let mut frame = ((body.len() + 1) as u32).to_be_bytes().to_vec();
        frame.push(kind);
        frame.extend_from_slice(&body);
        if let Ok(control) = Control::parse(&frame) {
            let mut again = Vec::new();
            control.emit(&mut again);
            prop_assert_eq!(again, frame);
        }
        let _ = Control::parse(&body);
    }
}

#[test]
fn a_peer_of_another_version_is_named() {
    let mut bytes = Vec::new();
    let hello = Hello { handle: Handle(1), name: "r1", window_bytes: 1, serve_port: 1, location: [""; 2] };
    Control::Hello(hello).emit(&mut bytes);
    bytes[5] = VERSION + 1;
    assert_eq!(Control::parse(&bytes), Err(WireError::Version(VERSION + 1)));
}

#[test]
fn lengths_out_of_range_are_refused_before_any_allocation() {
    assert_eq!(Control::frame_len(&[0, 0]), Ok(None));
    assert_eq!(Control::frame_len(&[0, 0, 0, 0]), Err(WireError::Malformed));
    assert_eq!(Control::frame_len(&[255, 255, 255, 255]), Err(WireError::Malformed));
}

proptest! {
    #[test]
    fn frames_of_the_overlay_come_back_equal(
        a: u64, port: u16, address in address(), ticket: [u8; 32], flag: bool, why in 0u8..6,
        text in ".{0,60}", ranges in ranges(), groups in proptest::collection::vec(any::<u64>(), 1..=WANT_MAX), ends in 0u8..5,
    ) {
        let name = flag.then_some(&*text);
        let share = Share::new(port | 1, port / 2, port | 1).unwrap();
        let ends = (0..ends).map(|at| End { address: IpAddr::from([10, 0, 0, at]), port, name });
        let ends = ends.map(|end| CandidateEnd { end, share }).collect();
        assert_round_trip(&Control::Overlay(Overlay::Candidates { entry: a, is_behind_head: flag, ends }));
        let have = ranges.clone();
        assert_round_trip(&Control::Overlay(Overlay::Enter { handle: Handle(a), ticket, entry: a, have }));
        assert_round_trip(&Control::Overlay(Overlay::Holds(ranges.clone())));
        assert_round_trip(&Control::Overlay(Overlay::Want(groups)));
        assert_round_trip(&Control::Overlay(Overlay::Lacks(ranges)));
        let mut bytes = Vec::new();
        Control::Overlay(Overlay::Fault { address, port, why: Fault::Stalled }).emit(&mut bytes);
        *bytes.last_mut().unwrap() = why;
        assert_round_trip(&Control::parse(&bytes).unwrap());
    }
}

#[test]
fn a_candidate_is_named_once_and_groups_are_asked_for_in_small_numbers() {
    let end = End { address: IpAddr::from([10, 0, 0, 1]), port: 5, name: None };
    let parsed = |control: Control<'_>| {
        let mut bytes = Vec::new();
        control.emit(&mut bytes);
        Control::parse(&bytes).map(drop)
    };
    let candidates = |ends: Vec<End<'static>>| {
        let ends = ends.into_iter().map(|end| CandidateEnd { end, share: Share::ALL }).collect();
        Control::Overlay(Overlay::Candidates { entry: 1, is_behind_head: false, ends })
    };
    assert_eq!(parsed(candidates(vec![end, end])), Err(WireError::Malformed));
    assert_eq!(parsed(candidates(vec![end, End { port: 6, ..end }])), Ok(()));
    // A share that is none: the last six bytes but one are its numbers.
    for (at, value) in [(2, 0), (4, 1), (6, 0)] {
        let mut bytes = Vec::new();
        candidates(vec![end]).emit(&mut bytes);
        let share = bytes.len() - 7;
        bytes[share + at - 1] = value;
        assert_eq!(Control::parse(&bytes).map(drop), Err(WireError::Malformed), "a share of nothing");
    }
    assert_eq!(parsed(Control::Overlay(Overlay::Want(Vec::new()))), Err(WireError::Malformed), "nothing");
    let mut bytes = Vec::new();
    Control::Overlay(Overlay::Want(vec![1; WANT_MAX])).emit(&mut bytes);
    bytes.extend_from_slice(&[0; 8]);
    let len = (bytes.len() - LENGTH_LEN) as u32;
    bytes[..LENGTH_LEN].copy_from_slice(&len.to_be_bytes());
    assert_eq!(Control::parse(&bytes).map(drop), Err(WireError::Malformed), "too many");
}
