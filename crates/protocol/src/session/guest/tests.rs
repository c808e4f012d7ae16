//! The stages of a guest, its time-outs, and random frames.

use super::*;
use alloc::vec;
use polycast_types::DataId;
use polycast_wire::control::{End as Candidate, Hash, NOWHERE};
use proptest::prelude::*;

const STALL: Duration = Duration::from_secs(10);

fn ms(at: u64) -> Time {
    Time(at * 1_000_000)
}

fn guest() -> Guest {
    called_for(None)
}

/// A guest that was called for this.
fn called_for(called: Option<Called>) -> Guest {
    let config = GuestConfig {
        handle: Handle(7),
        name: "a".into(),
        window_bytes: 1 << 20,
        serve_port: 9,
        location: Location::default(),
        answer_timeout: STALL,
        called,
    };
    Guest::new(ms(0), config)
}

fn welcome() -> Control<'static> {
    Control::Welcome(Welcome {
        object: ObjectId::default(),
        form: Form::File,
        mode: 0o644,
        name: "x",
        object_len: 100,
        fragment_len: 10,
        group_len: 64,
        channel: ([239, 0, 0, 1].into(), 7),
        outer_len: 0,
        stall_ns: 5_000_000_000,
        salt: [3; 32],
        modified: None,
        data_len: None,
    })
}

fn outputs(guest: &mut Guest, now: Time) -> Vec<Output> {
    core::iter::from_fn(|| guest.poll(now)).collect()
}

fn hear(guest: &mut Guest, now: Time, control: &Control<'_>) {
    guest.handle(now, Input::Frame(control));
}

fn running() -> Guest {
    let mut guest = guest();
    hear(&mut guest, ms(1), &welcome());
    guest.handle(ms(1), Input::Stored { resumes: false });
    outputs(&mut guest, ms(1));
    guest
}

#[test]
fn a_guest_that_has_nothing_begins_at_once() {
    let mut guest = guest();
    assert_eq!(outputs(&mut guest, ms(0)), [Output::Hello]);
    assert_eq!(guest.deadline(), Some(ms(500)), "then it says that it lives");
    hear(&mut guest, ms(1), &welcome());
    let offered = outputs(&mut guest, ms(1));
    assert!(matches!(&offered[..], [Output::Offer(offer)] if offer.name == "x"), "{offered:?}");
    guest.handle(ms(2), Input::Stored { resumes: false });
    assert_eq!(outputs(&mut guest, ms(2)), [Output::Begin]);
    guest.handle(ms(3), Input::Committed);
    assert_eq!(outputs(&mut guest, ms(3)), [Output::Alone]);
    assert!(!guest.is_chained());
    hear(&mut guest, ms(4), &Control::Finished);
    assert_eq!(guest.deadline(), Some(Time::ZERO), "its end is due");
    assert_eq!(outputs(&mut guest, ms(4)), [Output::Ended(End::Done)]);
    assert_eq!(guest.deadline(), None);
}

/// Parts that an earlier try left are checked when the hashes are here, before or after there is room.
#[test]
fn a_guest_that_resumes_waits_for_hashes() {
    for early in [false, true] {
        let mut guest = guest();
        hear(&mut guest, ms(1), &welcome());
        outputs(&mut guest, ms(1));
        if early {
            guest.handle(ms(1), Input::Verifiable);
        }
        guest.handle(ms(2), Input::Stored { resumes: true });
        assert_eq!(outputs(&mut guest, ms(2)).contains(&Output::Resume), early);
        if !early {
            guest.handle(ms(3), Input::Verifiable);
            assert_eq!(outputs(&mut guest, ms(3)), [Output::Resume]);
        }
        // Checking takes longer than a source may be silent, and its frames are read after it.
        assert_eq!(guest.deadline(), None);
        assert!(outputs(&mut guest, ms(60_000)).is_empty());
        guest.handle(ms(60_000), Input::Checked);
        assert_eq!(outputs(&mut guest, ms(60_000)), [Output::Begin]);
    }
}

/// A source may need a while for all hashes; one that is silent meanwhile would lose its place.
#[test]
fn a_guest_that_waits_for_hashes_says_that_it_lives() {
    let mut guest = guest();
    hear(&mut guest, ms(1), &welcome());
    guest.handle(ms(1), Input::Stored { resumes: true });
    outputs(&mut guest, ms(1));
    let mut said = 0;
    for at in (100..4_100).step_by(100) {
        said += outputs(&mut guest, ms(at)).iter().filter(|o| **o == Output::Say(Control::Alive)).count();
    }
    assert_eq!(said, 8);
    assert_eq!(guest.deadline(), Some(ms(4_500)));
}

/// The way to a source may be longer than a receiver's place stays its own: the source hears of it before its
/// WELCOME is here.
#[test]
fn a_guest_that_waits_for_an_answer_says_that_it_lives() {
    let mut guest = guest();
    assert_eq!(outputs(&mut guest, ms(0)), [Output::Hello]);
    let said = |guest: &mut Guest, at: u64| outputs(guest, ms(at)).contains(&Output::Say(Control::Alive));
    let signs: Vec<u64> = (100..2_600).step_by(100).filter(|at| said(&mut guest, *at)).collect();
    assert_eq!(signs, [500, 1_000, 1_500, 2_000, 2_500]);
    hear(&mut guest, ms(2_600), &welcome());
    assert!(matches!(outputs(&mut guest, ms(2_600))[..], [Output::Offer(_)]));
}

/// Every way in which a session ends for a receiver.
#[test]
fn the_ends() {
    type Play = fn(&mut Guest) -> Vec<Output>;
    let cases: [(End, Play); 8] = [
        (End::NoAnswer(STALL), |guest| outputs(guest, ms(10_000))),
        (End::Refused("full".into()), |guest| {
            hear(guest, ms(1), &Control::Refuse("full"));
            outputs(guest, ms(1))
        }),
        (End::Lost(Gone::Foreign(WireError::Malformed)), |guest| {
            hear(guest, ms(1), &Control::Alive);
            outputs(guest, ms(1))
        }),
        (End::Lost(Gone::Closed), |guest| {
            guest.handle(ms(1), Input::Gone(Gone::Closed));
            outputs(guest, ms(1))
        }),
        (End::Silent(Duration::from_secs(5)), |guest| {
            *guest = running();
            outputs(guest, ms(5_001))
        }),
        (End::Refused("it is over".into()), |guest| {
            *guest = running();
            hear(guest, ms(2), &Control::Finished);
            outputs(guest, ms(2))
        }),
        (End::Failed("no room".into()), |guest| {
            hear(guest, ms(1), &welcome());
            guest.handle(ms(1), Input::Failed("no room".into()));
            outputs(guest, ms(1))
        }),
        (End::Done, |guest| {
            *guest = running();
            guest.handle(ms(2), Input::Committed);
            assert_eq!(outputs(guest, ms(3_001)), [Output::Alone]);
            outputs(guest, ms(3_002))
        }),
    ];
    for (end, play) in cases {
        let mut guest = guest();
        outputs(&mut guest, ms(0));
        assert_eq!(play(&mut guest).last(), Some(&Output::Ended(end)));
        guest.handle(ms(10_001), Input::Gone(Gone::Closed));
        assert!(outputs(&mut guest, ms(60_000)).is_empty(), "nothing follows");
    }
}

/// A source offers, or sends, something else than it has called for: nothing of it is taken.
#[test]
fn who_was_called_takes_nothing_else() {
    let called =
        Called { object: ObjectId::default(), object_len: 100, root: Some([4; 32]), permitted: None };
    let other = ObjectId { data: DataId(9), ..ObjectId::default() };
    let outcome = |called: &Called, root: Hash| {
        let mut guest = called_for(Some(called.clone()));
        outputs(&mut guest, ms(0));
        hear(&mut guest, ms(1), &welcome());
        hear(&mut guest, ms(2), &Control::Root(root));
        outputs(&mut guest, ms(2))
    };
    assert!(matches!(outcome(&called, [4; 32])[..], [Output::Offer(_)]));
    assert!(matches!(outcome(&Called { root: None, ..called.clone() }, [5; 32])[..], [Output::Offer(_)]));
    for (called, root, offered) in [
        (Called { object: other, ..called.clone() }, [4; 32], false),
        (Called { object_len: 101, ..called.clone() }, [4; 32], false),
        (called, [5; 32], true),
    ] {
        let outputs = outcome(&called, root);
        let [.., Output::Refuse(words), Output::Ended(End::Contradicts(why))] = &outputs[..] else {
            panic!("{outputs:?}");
        };
        assert_eq!(*words, why.to_string());
        assert_eq!(outputs.iter().any(|output| matches!(output, Output::Offer(_))), offered);
    }
}

/// The time that WELCOME names is a peer's number.
#[test]
fn no_source_asks_for_patience_without_end() {
    let mut guest = guest();
    let Control::Welcome(mut welcome) = welcome() else { unreachable!("it is one") };
    welcome.stall_ns = u64::MAX;
    hear(&mut guest, ms(1), &Control::Welcome(welcome));
    guest.handle(ms(1), Input::Stored { resumes: false });
    outputs(&mut guest, ms(1));
    assert_eq!(guest.deadline(), Some(ms(3_600_001)));
}

/// The source names one that the receiver may fetch from.
fn candidate(name: Option<&str>) -> Control<'_> {
    let end = Candidate { address: [10, 0, 0, 1].into(), port: 5, name };
    let share = Share::ALL;
    Control::Overlay(Overlay::Candidates {
        entry: 7,
        is_behind_head: false,
        ends: vec![CandidateEnd { end, share }],
    })
}

#[test]
fn one_that_is_done_stays_while_it_is_needed() {
    let mut guest = running();
    hear(&mut guest, ms(2), &candidate(Some("b")));
    let ends = vec![([10, 0, 0, 1].into(), 5, Some("b".into()), Share::ALL)];
    assert_eq!(
        outputs(&mut guest, ms(2)),
        [Output::Alone, Output::Candidates { entry: Some(7), is_behind_head: false, ends }]
    );
    guest.handle(ms(3), Input::Committed);
    outputs(&mut guest, ms(3));
    for at in 1..60 {
        hear(&mut guest, ms(at * 1_000), &Control::Alive);
        assert!(outputs(&mut guest, ms(at * 1_000)).is_empty(), "others fetch from it");
    }
    // A word against it does not take away what it has.
    hear(&mut guest, ms(60_001), &Control::Refuse("the source failed"));
    assert_eq!(outputs(&mut guest, ms(60_001)), [Output::Ended(End::Done)]);
}

/// A source that says nothing any more holds none that is done, whether others fetch from it or not.
#[test]
fn one_that_is_done_does_not_wait_for_a_silent_source_without_end() {
    for serves in [false, true] {
        let mut guest = running();
        if serves {
            guest.handle(ms(2), Input::Serves(true));
        } else {
            hear(&mut guest, ms(2), &candidate(None));
        }
        guest.handle(ms(4_000), Input::Committed);
        outputs(&mut guest, ms(4_000));
        assert_eq!(guest.deadline(), Some(ms(9_000)), "the source may be silent for five seconds");
        assert!(outputs(&mut guest, ms(8_999)).is_empty());
        assert_eq!(outputs(&mut guest, ms(9_000)), [Output::Ended(End::Done)]);
        assert_eq!(guest.deadline(), None);
    }
}

#[test]
fn racks_are_for_those_on_the_data_channel() {
    let speak = Control::Gather { own: 1, members: vec![2, 3] };
    let follow = Control::Speaker { member: 1, address: [10, 0, 0, 9].into(), port: 4, name: Some("c") };
    let mut guest = running();
    hear(&mut guest, ms(2), &speak);
    hear(&mut guest, ms(2), &follow);
    let said = outputs(&mut guest, ms(2));
    assert_eq!(said[0], Output::Speak { own: 1, members: vec![2, 3] });
    assert_eq!(
        said[1],
        Output::Follow { member: 1, address: [10, 0, 0, 9].into(), port: 4, name: Some("c".into()) }
    );
    hear(&mut guest, ms(2), &Control::Speaker { member: 1, address: NOWHERE.0, port: NOWHERE.1, name: None });
    assert_eq!(outputs(&mut guest, ms(2)), [Output::Alone]);
    hear(&mut guest, ms(3), &candidate(None));
    outputs(&mut guest, ms(3));
    hear(&mut guest, ms(4), &speak);
    hear(&mut guest, ms(4), &follow);
    assert!(outputs(&mut guest, ms(4)).is_empty());
}

fn frame() -> impl Strategy<Value = Control<'static>> {
    prop_oneof![
        Just(welcome()),
        Just(Control::Refuse("no")),
        Just(Control::Finished),
        Just(Control::Alive),
        Just(Control::Have(core::iter::once(0..3).collect())),
        any::<u64>().prop_map(|entry| Control::Overlay(Overlay::Candidates {
            entry,
            is_behind_head: true,
            ends: Vec::new()
        })),
        any::<u16>().prop_map(|port| Control::Speaker {
            member: 1,
            address: [127, 0, 0, 1].into(),
            port,
            name: None
        }),
        any::<u32>().prop_map(|own| Control::Gather { own, members: vec![own] }),
        any::<u8>().prop_map(|outer_len| Control::Channel { channel: ([239, 0, 0, 2].into(), 9), outer_len }),
    ]
}

proptest! {
    /// Whatever a source says, a guest ends once, and says nothing after it.
    #[test]
    fn any_source_ends_a_guest_once(
        frames in proptest::collection::vec((frame(), 0u64..4_000), 0..40),
        resumes in any::<bool>(),
    ) {
        let mut guest = guest();
        let (mut now, mut ended) = (ms(1), 0);
        for (control, wait) in frames {
            now += Duration::from_millis(wait);
            hear(&mut guest, now, &control);
            guest.check();
            while let Some(output) = guest.poll(now) {
                prop_assert_eq!(ended, 0, "{:?} follows the end", output);
                match output {
                    Output::Offer(_) => guest.handle(now, Input::Stored { resumes }),
                    Output::Resume => guest.handle(now, Input::Checked),
                    Output::Begin if wait % 3 == 0 => guest.handle(now, Input::Committed),
                    Output::Ended(_) => ended += 1,
                    _ => {}
                }
            }
            prop_assert!(guest.deadline().is_none_or(|at| at > now));
        }
    }
}

/// One that has the object has what it came for, also where its source is gone; before that it has lost it.
#[test]
fn a_source_that_is_gone_is_missed_by_those_who_have_not_all() {
    for serves in [false, true] {
        let mut guest = running();
        guest.handle(ms(2), Input::Serves(serves));
        guest.handle(ms(3), Input::Committed);
        assert_eq!(outputs(&mut guest, ms(3)), [Output::Alone]);
        guest.handle(ms(4), Input::Gone(Gone::Closed));
        assert_eq!(outputs(&mut guest, ms(4)), [Output::Ended(End::Done)]);
    }
    let mut guest = running();
    guest.handle(ms(4), Input::Gone(Gone::Closed));
    assert_eq!(outputs(&mut guest, ms(4)), [Output::Ended(End::Lost(Gone::Closed))]);
    assert_eq!(guest.deadline(), None);
}

/// Holes that a source reports make no object look small that is too long for its tables.
#[test]
fn holes_count_in_objects_of_bounded_length() {
    let offer_of = |object_len, data_len| {
        let Control::Welcome(welcome) = welcome() else { unreachable!("it is one") };
        Offer::from(&Welcome { object_len, data_len, ..welcome }).data_len
    };
    assert_eq!(offer_of(100, None), 100);
    assert_eq!(offer_of(1 << 42, Some(7)), 7);
    assert_eq!(offer_of((1 << 42) + 1, Some(7)), (1 << 42) + 1);
}
