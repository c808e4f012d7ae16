//! Tables of the sentences, the start rule, and random sequences against a small model.

use super::*;
use alloc::vec;
use alloc::vec::Vec;
use polycast_wire::WireError;
use proptest::prelude::*;

const JOIN: Duration = Duration::from_secs(30);
const STALL: Duration = Duration::from_secs(10);
const HANDLE: Handle = Handle(7);

pub(super) fn config(expected: Expected, verdicts: Verdicts) -> RosterConfig {
    RosterConfig {
        join_timeout: JOIN,
        stall_timeout: STALL,
        ..RosterConfig::new(HANDLE, expected, 1_000, verdicts)
    }
}

pub(super) fn named(names: &[&str]) -> Expected {
    Expected::Named(names.iter().map(|name| (*name).to_string()).collect())
}

/// Both transports: push judges by its sender, pull by the roster.
pub(super) const BOTH: [Verdicts; 2] = [Verdicts::Sender, Verdicts::Roster { deadline: None }];

pub(super) fn ms(at: u64) -> Time {
    Time(at * 1_000_000)
}

pub(super) fn outputs(roster: &mut Roster, now: Time) -> Vec<Output> {
    core::iter::from_fn(|| roster.poll(now)).collect()
}

pub(super) fn hello(roster: &mut Roster, now: Time, guest: u32, name: &str) {
    let hello = Hello { handle: HANDLE, name, window_bytes: 1 << 20, serve_port: 9, location: [""; 2] };
    roster.handle(now, Input::Hello { guest: GuestId(guest), hello: &hello });
}

pub(super) fn have(roster: &mut Roster, now: Time, guest: u32) {
    roster.handle(now, Input::Frame { guest: GuestId(guest), control: &Control::Have(vec![]) });
}

pub(super) fn join(roster: &mut Roster, now: Time, guest: u32, name: &str) {
    hello(roster, now, guest, name);
    have(roster, now, guest);
}

fn refused(outputs: &[Output]) -> Option<String> {
    outputs.iter().find_map(|output| match output {
        Output::Goodbye(_, Goodbye::Refuse(why)) => Some(why.to_string()),
        _ => None,
    })
}

/// Every refusal of a session has one sentence, whatever the transport.
#[test]
fn refusals_have_one_sentence_each() {
    for verdicts in BOTH {
        type Prepare = fn(&mut Roster);
        let cases: [(&str, Expected, Prepare, u64, &str); 6] = [
            ("there is no such transfer here", named(&["a"]), |_| {}, 8, "a"),
            ("its name is not among this transfer's receivers", named(&["a"]), |_| {}, 7, "b"),
            (
                "a receiver of this name has joined already",
                named(&["a", "b"]),
                |roster| hello(roster, ms(0), 1, "a"),
                7,
                "a",
            ),
            (
                "all its receivers have joined",
                Expected::Count(1),
                |roster| hello(roster, ms(0), 1, "a"),
                7,
                "b",
            ),
            (
                "taken out of the transfer",
                named(&["a", "b"]),
                |roster| roster.handle(ms(0), Input::Remove("a")),
                7,
                "a",
            ),
            (
                "the transfer is over",
                named(&["a"]),
                |roster| roster.handle(ms(0), Input::Over(Goodbye::Finished)),
                7,
                "a",
            ),
        ];
        for (sentence, expected, prepare, handle, name) in cases {
            let mut roster = Roster::new(ms(0), config(expected, verdicts));
            prepare(&mut roster);
            outputs(&mut roster, ms(0));
            let hello =
                Hello { handle: Handle(handle), name, window_bytes: 0, serve_port: 0, location: [""; 2] };
            roster.handle(ms(1), Input::Hello { guest: GuestId(5), hello: &hello });
            assert_eq!(refused(&outputs(&mut roster, ms(1))).as_deref(), Some(sentence));
        }
    }
    let words = Why::Foreign(WireError::Version(9)).to_string();
    assert!(words.contains("protocol version 9"), "{words}");
    assert_eq!(Why::Foreign(WireError::Malformed).to_string(), "malformed packet");
}

/// Each way to fail has one sentence, whatever the transport.
#[test]
fn failures_have_one_sentence_each() {
    for verdicts in BOTH {
        type Fail = fn(&mut Roster);
        let cases: [(&str, Fail); 5] = [
            ("it went away in mid-transfer", |roster| {
                roster.handle(ms(1), Input::Gone { guest: GuestId(1), how: Gone::Closed });
            }),
            ("its connection failed: reset", |roster| {
                let how = Gone::Broken("reset".into());
                roster.handle(ms(1), Input::Gone { guest: GuestId(1), how });
            }),
            ("its connection failed: malformed packet", |roster| {
                let how = Gone::Foreign(WireError::Malformed);
                roster.handle(ms(1), Input::Gone { guest: GuestId(1), how });
            }),
            ("the disk is full", |roster| {
                let control = Control::Refuse("the disk is full");
                roster.handle(ms(1), Input::Frame { guest: GuestId(1), control: &control });
            }),
            ("taken out of the transfer", |roster| roster.handle(ms(1), Input::Remove("a"))),
        ];
        for (sentence, fail) in cases {
            let mut roster = Roster::new(ms(0), config(named(&["a", "b"]), verdicts));
            join(&mut roster, ms(0), 1, "a");
            outputs(&mut roster, ms(0));
            fail(&mut roster);
            let why = roster.named("a").and_then(Entry::failure).map(ToString::to_string);
            assert_eq!(why.as_deref(), Some(sentence));
            let told = outputs(&mut roster, ms(1));
            assert!(told.iter().any(|output| matches!(output, Output::Left { guest: GuestId(1), .. })));
        }
        let mut roster = Roster::new(ms(0), config(named(&["a", "b"]), verdicts));
        let why = "no route".to_string();
        roster.handle(ms(1), Input::NotComing { name: "a", why });
        assert_eq!(roster.named("a").unwrap().failure().unwrap().to_string(), "no route");
        outputs(&mut roster, ms(30_000));
        assert_eq!(roster.named("b").unwrap().failure(), Some(&Why::NeverJoined));
        assert_eq!(Why::NeverJoined.to_string(), "never joined");
        roster.handle(ms(30_001), Input::Over(Goodbye::Finished));
        roster.handle(ms(30_001), Input::Add("c"));
        assert_eq!(
            roster.named("c").unwrap().failure().unwrap().to_string(),
            "the transfer had ended when it was added"
        );
    }
}

#[test]
fn named_receivers_wait_for_each_other_but_not_for_long() {
    for verdicts in BOTH {
        let mut roster = Roster::new(ms(0), config(named(&["a", "b", "c"]), verdicts));
        let calls = outputs(&mut roster, ms(0));
        assert_eq!(calls, ["a", "b", "c"].map(|name| Output::Call(name.into())));
        join(&mut roster, ms(10), 1, "a");
        join(&mut roster, ms(400), 2, "b");
        assert!(!outputs(&mut roster, ms(899)).contains(&Output::Start), "b has just come");
        assert!(outputs(&mut roster, ms(900)).contains(&Output::Start));
        // The third is still welcome, and the transfer open for it until its time is over.
        hello(&mut roster, ms(1_000), 3, "c");
        assert!(outputs(&mut roster, ms(1_000)).contains(&Output::Welcome(GuestId(3))));
        have(&mut roster, ms(1_001), 3);
        let late = outputs(&mut roster, ms(1_001));
        let ready = Output::Ready { guest: GuestId(3), have: RangeSet::new(), late: true };
        assert_eq!(late, [ready, Output::Close]);
    }
}

/// Receivers with an older version lack the same few groups: they begin together, so that these are sent
/// once. One that has nothing does not wait for them.
#[test]
fn those_who_have_an_older_version_wait_for_each_other_as_long_as_the_check_takes() {
    for (first_has, waits_until) in [(true, 3_000), (false, 1_600)] {
        let mut roster = Roster::new(ms(0), config(named(&["a", "b"]), Verdicts::Sender));
        for (guest, name) in [(1, "a"), (2, "b")] {
            hello(&mut roster, ms(0), guest, name);
            roster.handle(ms(100), Input::Informed { guest: GuestId(guest) });
        }
        let held: Vec<_> = first_has.then_some(0..5).into_iter().collect();
        let control = Control::Have(held);
        roster.handle(ms(1_100), Input::Frame { guest: GuestId(1), control: &control });
        let mut began = None;
        for at in (1_100..5_000).step_by(100) {
            // The other one lives, and checks.
            roster.handle(ms(at), Input::Frame { guest: GuestId(2), control: &Control::Alive });
            if outputs(&mut roster, ms(at)).contains(&Output::Start) {
                began = Some(at);
                break;
            }
        }
        // The first one took a second; the other gets a second more.
        assert_eq!(began, Some(waits_until.min(2_100)), "it has some: {first_has}");
    }
}

/// Only one that knows the hashes, and has not said yet what it has, checks anything: nothing else is waited
/// for longer.
#[test]
fn a_receiver_that_checks_nothing_is_not_given_the_time_of_a_check() {
    type Prepare = fn(&mut Roster);
    let cases: [(&str, Prepare); 3] = [
        ("the other one has not come", |_| {}),
        ("the other one does not know the hashes", |roster| hello(roster, ms(0), 2, "b")),
        ("the other one went away while it checked", |roster| {
            hello(roster, ms(0), 2, "b");
            roster.handle(ms(100), Input::Informed { guest: GuestId(2) });
            roster.handle(ms(200), Input::Gone { guest: GuestId(2), how: Gone::Closed });
        }),
    ];
    for (what, prepare) in cases {
        let mut roster = Roster::new(ms(0), config(named(&["a", "b"]), Verdicts::Sender));
        prepare(&mut roster);
        hello(&mut roster, ms(0), 1, "a");
        roster.handle(ms(100), Input::Informed { guest: GuestId(1) });
        let control = Control::Have(core::iter::once(0..5).collect());
        roster.handle(ms(1_100), Input::Frame { guest: GuestId(1), control: &control });
        assert!(!outputs(&mut roster, ms(1_599)).contains(&Output::Start), "{what}");
        assert!(outputs(&mut roster, ms(1_600)).contains(&Output::Start), "{what}");
    }
}

#[test]
fn counted_receivers_are_waited_for_until_their_time_is_over() {
    for verdicts in BOTH {
        let mut roster = Roster::new(ms(0), config(Expected::Count(2), verdicts));
        join(&mut roster, ms(10), 1, "a");
        assert!(!outputs(&mut roster, ms(29_999)).contains(&Output::Start));
        let late = outputs(&mut roster, ms(30_000));
        assert_eq!(late.iter().filter(|output| **output == Output::Start).count(), 1);
        assert_eq!(late.last(), Some(&Output::Close));
        assert_eq!((roster.free_places(), roster.missing()), (1, 1));
        let mut none = Roster::new(ms(0), config(Expected::Count(2), verdicts));
        assert_eq!(outputs(&mut none, ms(30_000)), [Output::NoneCame]);
    }
}

#[test]
fn a_source_that_serves_goes_on_until_it_is_told_to_end() {
    let mut roster = Roster::new(ms(0), config(Expected::AtLeast(2), Verdicts::Sender));
    assert_eq!(outputs(&mut roster, ms(40_000)), [], "it waits for the first as long as that takes");
    join(&mut roster, ms(50_000), 1, "a");
    assert!(outputs(&mut roster, ms(50_000)).contains(&Output::Start), "the time for others was over");
    assert!(!roster.is_idle());
    roster.handle(ms(50_100), Input::Settled { guest: GuestId(1), failure: None, serves: false });
    assert_eq!(outputs(&mut roster, ms(50_100)), [Output::Goodbye(GuestId(1), Goodbye::Finished)]);
    assert!(roster.is_idle() && roster.missing() == 0);
    for guest in 2..5 {
        join(&mut roster, ms(90_000), guest, "late");
        let ready = Output::Ready { guest: GuestId(guest), have: RangeSet::new(), late: true };
        assert_eq!(outputs(&mut roster, ms(90_000)).last(), Some(&ready));
    }
    // Two of them fetch from the third, which stays for them, and for no other.
    roster.handle(ms(90_001), Input::Settled { guest: GuestId(2), failure: None, serves: true });
    assert_eq!(outputs(&mut roster, ms(90_001)), []);
    for guest in 3..5 {
        roster.handle(ms(90_002), Input::Settled { guest: GuestId(guest), failure: None, serves: false });
    }
    let last = outputs(&mut roster, ms(90_002));
    let left = Output::Left { guest: GuestId(2), why: Why::WentAway };
    assert!(last.ends_with(&[left, Output::Goodbye(GuestId(2), Goodbye::Finished)]), "{last:?}");
    join(&mut roster, ms(90_003), 5, "last");
    roster.handle(ms(90_004), Input::Over(Goodbye::Finished));
    assert!(roster.entries().all(Entry::is_settled));
    let mut both = Roster::new(ms(0), config(Expected::AtLeast(2), Verdicts::Sender));
    join(&mut both, ms(1), 1, "a");
    assert!(!outputs(&mut both, ms(1)).contains(&Output::Start), "two are waited for");
    join(&mut both, ms(2), 2, "b");
    assert!(outputs(&mut both, ms(2)).contains(&Output::Start));
}

/// One that cannot take the object is not waited for; one that was lost, or was ready and leaves before the
/// start, leaves its place to another.
#[test]
fn a_place_is_free_again_when_a_counted_receiver_is_lost() {
    let mut roster = Roster::new(ms(0), config(Expected::Count(2), Verdicts::Sender));
    hello(&mut roster, ms(1), 1, "a");
    let full = Control::Refuse("the disk is full");
    roster.handle(ms(2), Input::Frame { guest: GuestId(1), control: &full });
    join(&mut roster, ms(3), 2, "b");
    assert!(outputs(&mut roster, ms(3)).contains(&Output::Start));
    let mut roster = Roster::new(ms(0), config(Expected::Count(2), Verdicts::Sender));
    hello(&mut roster, ms(1), 1, "a");
    roster.handle(ms(2), Input::Gone { guest: GuestId(1), how: Gone::Closed });
    join(&mut roster, ms(3), 2, "b");
    assert!(!outputs(&mut roster, ms(3)).contains(&Output::Start), "a's place is free, and is waited for");
    join(&mut roster, ms(4), 3, "a");
    assert!(outputs(&mut roster, ms(4)).contains(&Output::Start));
    assert_eq!(roster.entries().map(|entry| entry.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    // One whose user ends it while it waits says so.
    let mut roster = Roster::new(ms(0), config(Expected::Count(2), Verdicts::Sender));
    join(&mut roster, ms(1), 1, "a");
    let cancelled = Control::Refuse("cancelled");
    roster.handle(ms(2), Input::Frame { guest: GuestId(1), control: &cancelled });
    join(&mut roster, ms(3), 2, "b");
    assert!(!outputs(&mut roster, ms(3)).contains(&Output::Start), "a's place is free, and is waited for");
    join(&mut roster, ms(4), 3, "a");
    assert!(outputs(&mut roster, ms(4)).contains(&Output::Start));
}

#[test]
fn doubles_of_counted_receivers_get_numbers() {
    let mut roster = Roster::new(ms(0), config(Expected::Count(3), Verdicts::Sender));
    (1..=3).for_each(|guest| join(&mut roster, ms(1), guest, "x"));
    assert_eq!(roster.entries().map(|entry| entry.name.as_str()).collect::<Vec<_>>(), ["x", "x#2", "x#3"]);
    roster.handle(ms(2), Input::Gone { guest: GuestId(2), how: Gone::Closed });
    hello(&mut roster, ms(3), 4, "x#2");
    assert_eq!(roster.entry(GuestId(4)).unwrap().name, "x#2");
    assert!(roster.entry(GuestId(2)).is_none(), "another connection has its place");
}

#[test]
fn a_receiver_that_was_lost_comes_again_and_one_taken_out_does_not() {
    for verdicts in BOTH {
        let mut roster = Roster::new(ms(0), config(named(&["a", "b"]), verdicts));
        join(&mut roster, ms(0), 1, "a");
        join(&mut roster, ms(0), 2, "b");
        outputs(&mut roster, ms(0));
        roster.handle(ms(1), Input::Gone { guest: GuestId(1), how: Gone::Closed });
        outputs(&mut roster, ms(1));
        join(&mut roster, ms(2), 3, "a");
        let back = outputs(&mut roster, ms(2));
        assert!(back.iter().any(|output| matches!(output, Output::Ready { late: true, .. })), "{back:?}");
        roster.handle(ms(3), Input::Remove("a"));
        outputs(&mut roster, ms(3));
        hello(&mut roster, ms(4), 4, "a");
        assert_eq!(refused(&outputs(&mut roster, ms(4))).as_deref(), Some("taken out of the transfer"));
        roster.handle(ms(5), Input::Add("a"));
        assert!(outputs(&mut roster, ms(5)).contains(&Output::Call("a".into())), "it is wanted again");
    }
}

#[test]
fn a_roster_that_judges_ends_the_transfer_itself() {
    let deadline = Some(Duration::from_secs(20));
    let mut roster = Roster::new(ms(0), config(named(&["a", "b", "c"]), Verdicts::Roster { deadline }));
    for (guest, name) in [(1, "a"), (2, "b"), (3, "c")] {
        join(&mut roster, ms(0), guest, name);
    }
    outputs(&mut roster, ms(0));
    let done = Control::DataRcvd { patched_bytes: 0, proof: [0; 32] };
    roster.handle(ms(5), Input::Frame { guest: GuestId(1), control: &done });
    let progress = Control::Progress {
        position: 0,
        received: 0,
        lost: 0,
        verified_bytes: u64::MAX,
        arrived_ns: 0,
        waited_ns: 0,
    };
    roster.handle(ms(9_000), Input::Frame { guest: GuestId(2), control: &progress });
    outputs(&mut roster, ms(10_000));
    assert_eq!(roster.named("c").unwrap().failure(), Some(&Why::Starved(STALL)));
    assert_eq!(roster.named("b").unwrap().verified_bytes, 1_000, "none has more than all");
    assert!(!outputs(&mut roster, ms(18_999)).contains(&Output::Finished));
    let last = outputs(&mut roster, ms(19_000));
    assert_eq!(roster.named("b").unwrap().failure(), Some(&Why::Starved(STALL)));
    assert_eq!(last.iter().filter(|output| **output == Output::Finished).count(), 1, "{last:?}");
    // One that is done stays, since others may fetch what it holds, until all is over.
    roster.handle(ms(19_001), Input::Over(Goodbye::Finished));
    let goodbye = Output::Goodbye(GuestId(1), Goodbye::Finished);
    assert!(outputs(&mut roster, ms(19_001)).contains(&goodbye));
}

/// The root hash comes when the source has looked at its object, which may take longer than a receiver may be
/// without progress: one that has verified all only has to live until then.
#[test]
fn one_that_waits_for_the_last_word_is_not_starved() {
    let verdicts = Verdicts::Roster { deadline: None };
    let mut roster = Roster::new(ms(0), config(named(&["a", "b", "c"]), verdicts));
    for (guest, name) in [(1, "a"), (2, "b"), (3, "c")] {
        join(&mut roster, ms(0), guest, name);
    }
    outputs(&mut roster, ms(0));
    for (guest, bytes) in [(1, 1_000), (2, 999), (3, 1_000)] {
        roster.handle(ms(1), Input::Frame { guest: GuestId(guest), control: &progress(bytes) });
    }
    let mut now = ms(1);
    for _ in 0..5 {
        now += STALL / 2;
        for guest in [1, 2] {
            roster.handle(now, Input::Frame { guest: GuestId(guest), control: &Control::Alive });
        }
        outputs(&mut roster, now);
    }
    assert!(roster.is_ready(GuestId(1)), "it waits for the source");
    for name in ["b", "c"] {
        assert_eq!(roster.named(name).unwrap().failure(), Some(&Why::Starved(STALL)), "{name}");
    }
    // From the last word on it has to get on.
    roster.handle(now, Input::Informed { guest: GuestId(1) });
    for _ in 0..2 {
        assert!(roster.is_ready(GuestId(1)));
        now += STALL / 2;
        roster.handle(now, Input::Frame { guest: GuestId(1), control: &Control::Alive });
        outputs(&mut roster, now);
    }
    assert_eq!(roster.named("a").unwrap().failure(), Some(&Why::Starved(STALL)));
}

#[test]
fn the_deadline_names_all_who_are_not_done() {
    let deadline = Some(Duration::from_secs(2));
    let mut roster = Roster::new(ms(0), config(named(&["a", "b"]), Verdicts::Roster { deadline }));
    join(&mut roster, ms(0), 1, "a");
    outputs(&mut roster, ms(500));
    assert_eq!(roster.started_at(), Some(ms(500)));
    outputs(&mut roster, ms(2_500));
    for name in ["a", "b"] {
        assert!(matches!(roster.named(name).unwrap().failure(), Some(Why::Deadline)), "{name}");
    }
}

#[test]
fn a_connection_hears_something_every_half_second() {
    let mut roster = Roster::new(ms(0), config(named(&["a"]), Verdicts::Sender));
    hello(&mut roster, ms(0), 1, "a");
    assert!(!roster.is_ready(GuestId(1)));
    have(&mut roster, ms(0), 1);
    assert!(roster.is_ready(GuestId(1)));
    outputs(&mut roster, ms(0));
    assert_eq!(roster.deadline(), Some(ms(500)));
    roster.handle(ms(1), Input::Frame { guest: GuestId(1), control: &Control::Alive });
    assert_eq!(roster.heard(), 1, "HAVE came before the start");
    roster.handle(ms(300), Input::Told { guest: GuestId(1) });
    assert!(outputs(&mut roster, ms(500)).is_empty(), "it has just heard something");
    assert_eq!(outputs(&mut roster, ms(800)), [Output::Alive(GuestId(1))]);
}

/// A place is for one that asks for the object: HELLO alone does not hold it.
#[test]
fn who_says_hello_and_nothing_more_loses_its_place() {
    let sentence = "it said HELLO and then nothing for 2s";
    for verdicts in BOTH {
        let mut counted = Roster::new(ms(0), config(Expected::Count(1), verdicts));
        hello(&mut counted, ms(1), 1, "x");
        assert_eq!((counted.free_places(), refused(&outputs(&mut counted, ms(2_000)))), (0, None));
        assert_eq!(refused(&outputs(&mut counted, ms(2_001))).as_deref(), Some(sentence));
        assert_eq!(counted.free_places(), 1);
        join(&mut counted, ms(2_500), 2, "honest");
        assert!(outputs(&mut counted, ms(2_500)).contains(&Output::Start));
        assert_eq!(counted.entries().map(|entry| entry.name.as_str()).collect::<Vec<_>>(), ["honest"]);

        // The host that came under a name need not be the one that was called.
        let mut by_name = Roster::new(ms(0), config(named(&["a", "b"]), verdicts));
        outputs(&mut by_name, ms(0));
        hello(&mut by_name, ms(1), 1, "a");
        outputs(&mut by_name, ms(1));
        let said = outputs(&mut by_name, ms(2_001));
        assert_eq!(refused(&said).as_deref(), Some(sentence));
        assert!(said.contains(&Output::Call("a".into())), "{said:?}");
        hello(&mut by_name, ms(2_002), 2, "a");
        by_name.handle(ms(2_003), Input::Gone { guest: GuestId(2), how: Gone::Closed });
        assert!(outputs(&mut by_name, ms(2_003)).contains(&Output::Call("a".into())));
        join(&mut by_name, ms(2_004), 3, "a");
        assert!(by_name.is_ready(GuestId(3)) && by_name.entry(GuestId(1)).is_none());
    }
}

/// Parts that an earlier try has left take time to check, and a sign of life shows that they are checked: but
/// not without an end.
#[test]
fn who_checks_what_it_has_keeps_its_place_as_long_as_a_slow_disk_takes() {
    let mut roster = Roster::new(ms(0), config(Expected::Count(1), Verdicts::Sender));
    hello(&mut roster, ms(0), 1, "a");
    let (mut now, mut lost) = (0, None);
    while lost.is_none() && now < 200_000 {
        now += 1_000;
        if now == 60_000 {
            roster.handle(ms(now), Input::Informed { guest: GuestId(1) });
        }
        roster.handle(ms(now), Input::Frame { guest: GuestId(1), control: &Control::Alive });
        lost = refused(&outputs(&mut roster, ms(now))).map(|_| now);
    }
    assert_eq!(lost, Some(91_000), "the time to join, and what 1,000 bytes take, after the last hash");
}

#[test]
fn who_cannot_show_the_object_has_failed_for_good() {
    for verdicts in BOTH {
        let mut roster = Roster::new(ms(0), config(named(&["a"]), verdicts));
        join(&mut roster, ms(1), 1, "a");
        outputs(&mut roster, ms(1));
        roster.handle(ms(2), Input::Unproven { guest: GuestId(1) });
        let said = outputs(&mut roster, ms(2));
        assert!(said.contains(&Output::Left { guest: GuestId(1), why: Why::Unproven }), "{said:?}");
        assert!(refused(&said).unwrap().contains("cannot show"));
        assert_eq!(roster.named("a").unwrap().verified_bytes, 0);
    }
}

/// A counted receiver's place that one has taken who only says that it has the object may yet be taken by
/// another: it is waited for as long as if that one had not come, and those that are done are let go.
#[test]
fn one_that_lies_takes_no_place_for_good() {
    for comes in [true, false] {
        let mut roster = Roster::new(ms(0), config(Expected::Count(2), Verdicts::Sender));
        join(&mut roster, ms(1), 1, "liar");
        join(&mut roster, ms(1), 2, "b");
        assert!(outputs(&mut roster, ms(1)).contains(&Output::Start));
        roster.handle(ms(2), Input::Unproven { guest: GuestId(1) });
        assert!(outputs(&mut roster, ms(2)).contains(&Output::Open), "another one may come");
        hello(&mut roster, ms(3), 3, "liar");
        assert!(refused(&outputs(&mut roster, ms(3))).is_some_and(|why| why.contains("cannot show")));
        roster.handle(ms(4), Input::Settled { guest: GuestId(2), failure: None, serves: false });
        let said = outputs(&mut roster, ms(4));
        assert!(said.contains(&Output::Goodbye(GuestId(2), Goodbye::Finished)), "{said:?}");
        assert!(!said.contains(&Output::Close), "{said:?}");
        if comes {
            join(&mut roster, ms(5), 4, "c");
            let said = outputs(&mut roster, ms(5));
            assert!(said.contains(&Output::Welcome(GuestId(4))), "{said:?}");
            assert!(said.contains(&Output::Close), "all are here: {said:?}");
        } else {
            let until = roster.deadline().unwrap();
            let late = until.max(ms(0) + config(Expected::Count(2), Verdicts::Sender).join_timeout);
            assert!(outputs(&mut roster, late).contains(&Output::Close));
        }
    }
}

/// An earlier try may have left a receiver everything: there is nothing to send, and the transfer is over all
/// the same.
#[test]
fn receivers_that_are_done_before_the_start_end_the_transfer() {
    for verdicts in BOTH {
        let mut roster = Roster::new(ms(0), config(named(&["a"]), verdicts));
        join(&mut roster, ms(1), 1, "a");
        let done = Control::DataRcvd { patched_bytes: 0, proof: [0; 32] };
        roster.handle(ms(1), Input::Frame { guest: GuestId(1), control: &done });
        roster.handle(ms(1), Input::Settled { guest: GuestId(1), failure: None, serves: false });
        let said = outputs(&mut roster, ms(1));
        assert!(said.contains(&Output::Start), "{said:?}");
        assert_eq!(said.contains(&Output::Finished), verdicts != Verdicts::Sender);
    }
}

/// A roster for which nothing is awaited and no receiver is here is not called again.
#[test]
fn a_roster_that_waits_for_no_receiver_has_no_deadline() {
    let mut roster = Roster::new(ms(0), config(named(&[]), Verdicts::Sender));
    outputs(&mut roster, ms(1));
    assert_eq!(roster.deadline(), None);
    hello(&mut roster, ms(2), 1, "a");
    assert!(roster.deadline().is_some());
}

/// Actions of a driver, its peers and its user on a roster.
#[derive(Clone, Debug)]
enum Step {
    Hello(u8),
    Have(u8),
    Refuse(u8),
    Done(u8),
    Informed(u8),
    Unproven(u8),
    Progress(u8, u64),
    Gone(u8),
    NotComing(u8),
    Add(u8),
    Remove(u8),
    Settle(u8, bool),
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0u8..6).prop_map(Step::Hello),
        6 => (0u8..24).prop_map(Step::Have),
        1 => (0u8..24).prop_map(Step::Refuse),
        2 => (0u8..24).prop_map(Step::Done),
        1 => (0u8..24).prop_map(Step::Informed),
        1 => (0u8..24).prop_map(Step::Unproven),
        1 => (0u8..24, any::<u64>()).prop_map(|(guest, bytes)| Step::Progress(guest, bytes)),
        2 => (0u8..24).prop_map(Step::Gone),
        1 => (0u8..6).prop_map(Step::NotComing),
        2 => (0u8..6).prop_map(Step::Add),
        2 => (0u8..6).prop_map(Step::Remove),
        2 => (0u8..24, any::<bool>()).prop_map(|(guest, fails)| Step::Settle(guest, fails)),
        3 => (0u64..20_000).prop_map(Step::Wait),
    ]
}

/// State that the outputs so far have shown, compared with what must hold.
#[derive(Default)]
struct Model {
    started: bool,
    closed: bool,
    finished: bool,
    /// Connections that were named to the transport as ready, and those that it was told have left.
    ready: BTreeSet<u32>,
    left: BTreeSet<u32>,
    /// Connections that were ended, and that are forgotten: nothing is said of those.
    dismissed: BTreeSet<u32>,
    forgotten: BTreeSet<u32>,
}

impl Model {
    fn hear(&mut self, output: &Output) {
        if let Output::Ready { guest, .. } | Output::Left { guest, .. } = output {
            assert!(!self.forgotten.contains(&guest.0), "{output:?} after it was forgotten");
        }
        match output {
            Output::Start => assert!(!core::mem::replace(&mut self.started, true), "it starts twice"),
            Output::Ready { guest, late, .. } => {
                assert_eq!(*late, self.started, "late is after the start");
                assert!(self.ready.insert(guest.0), "ready twice");
            }
            Output::Left { guest, .. } => {
                assert!(self.ready.contains(&guest.0), "only who was ready can leave the transport");
                assert!(self.left.insert(guest.0), "it leaves twice");
            }
            Output::Close => assert!(self.started && !core::mem::replace(&mut self.closed, true)),
            Output::Open => assert!(self.started && core::mem::replace(&mut self.closed, false)),
            Output::Goodbye(guest, _) => {
                assert!(
                    !self.forgotten.contains(&guest.0) && self.dismissed.insert(guest.0),
                    "a second goodbye"
                );
            }
            Output::Finished | Output::NoneCame => {
                assert!(!core::mem::replace(&mut self.finished, true), "it finishes twice");
            }
            Output::Alive(guest) => assert!(!self.dismissed.contains(&guest.0), "a word after the goodbye"),
            Output::Forget(guest) => assert!(self.forgotten.insert(guest.0), "forgotten twice"),
            Output::Unawaited(guest) => assert!(self.ready.contains(&guest.0)),
            Output::Welcome(_) | Output::Call(_) => {}
        }
    }
}

const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

fn apply(roster: &mut Roster, now: Time, step: &Step, guests: &mut u32) {
    let guest = |number: &u8| GuestId(u32::from(*number));
    match step {
        Step::Hello(name) => {
            hello(roster, now, *guests, NAMES[usize::from(*name)]);
            *guests += 1;
        }
        Step::Have(number) => have(roster, now, u32::from(*number)),
        Step::Refuse(number) => {
            roster.handle(now, Input::Frame { guest: guest(number), control: &Control::Refuse("no") });
        }
        Step::Done(number) => {
            let control = Control::DataRcvd { patched_bytes: 0, proof: [0; 32] };
            roster.handle(now, Input::Frame { guest: guest(number), control: &control });
        }
        Step::Progress(number, verified_bytes) => {
            let control = Control::Progress {
                position: 0,
                received: 0,
                lost: 0,
                verified_bytes: *verified_bytes,
                arrived_ns: 0,
                waited_ns: 0,
            };
            roster.handle(now, Input::Frame { guest: guest(number), control: &control });
        }
        Step::Informed(number) => roster.handle(now, Input::Informed { guest: guest(number) }),
        Step::Unproven(number) => roster.handle(now, Input::Unproven { guest: guest(number) }),
        Step::Gone(number) => roster.handle(now, Input::Gone { guest: guest(number), how: Gone::Closed }),
        Step::NotComing(name) => {
            let why = "no".to_string();
            roster.handle(now, Input::NotComing { name: NAMES[usize::from(*name)], why });
        }
        Step::Add(name) => roster.handle(now, Input::Add(NAMES[usize::from(*name)])),
        Step::Remove(name) => roster.handle(now, Input::Remove(NAMES[usize::from(*name)])),
        Step::Settle(number, fails) => {
            // A sender settles those only whom it knows.
            if roster.is_ready(guest(number)) && !roster.judges() {
                let failure = fails.then_some(Why::Stalled(STALL));
                roster.handle(now, Input::Settled { guest: guest(number), failure, serves: false });
            }
        }
        Step::Wait(_) => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Whatever happens in whatever order: it starts once, each connection becomes ready once, leaves once
    /// and hears one goodbye, the transport hears of whom it knows only, and in the end none is waited for
    /// without end.
    #[test]
    fn any_sequence_keeps_the_rules(
        count in proptest::option::of(1u32..5),
        judged in any::<bool>(),
        steps in proptest::collection::vec(step(), 0..80),
    ) {
        let expected = count.map_or_else(|| named(&NAMES[..3]), Expected::Count);
        let verdicts = if judged { Verdicts::Roster { deadline: None } } else { Verdicts::Sender };
        let mut roster = Roster::new(ms(1), config(expected, verdicts));
        let (mut model, mut now, mut guests) = (Model::default(), ms(1), 0);
        for step in &steps {
            if let Step::Wait(span) = step {
                now += Duration::from_millis(*span);
            }
            apply(&mut roster, now, step, &mut guests);
            roster.check();
            while let Some(output) = roster.poll(now) {
                model.hear(&output);
            }
            // Between two steps nothing is due.
            prop_assert!(roster.deadline().is_none_or(|at| at > now), "{:?} at {now:?}", roster.deadline());
        }
        // Silence: those who are awaited are given up, and a transfer that can begin has begun.
        for _ in 0..4 {
            now = now + JOIN + STALL;
            while let Some(output) = roster.poll(now) {
                model.hear(&output);
            }
        }
        prop_assert!(!roster.entries().any(Entry::is_awaited), "waited for without end");
        if judged {
            prop_assert!(roster.entries().all(Entry::is_settled));
            prop_assert!(model.finished);
        } else if !roster.entries().all(Entry::is_settled) {
            prop_assert!(model.started && model.closed);
        } else {
            prop_assert!(model.started || model.finished);
        }
        for entry in roster.entries().filter(|entry| entry.stage == Stage::Ready) {
            let guest = entry.guest.unwrap().0;
            prop_assert!(model.ready.contains(&guest) && !model.left.contains(&guest));
        }
        roster.handle(now, Input::Over(Goodbye::Finished));
        while let Some(output) = roster.poll(now) {
            model.hear(&output);
        }
        prop_assert!(roster.entries().all(Entry::is_settled));
        prop_assert_eq!(roster.deadline(), None);
    }
}

/// One that checks what an earlier try has left has the time that a slow disk takes for the object, besides
/// the time to join.
#[test]
fn checking_may_take_as_long_as_a_slow_disk() {
    for seconds in [0, 1, 10, 3_600] {
        let config = RosterConfig {
            object_len: CHECKED_PER_SECOND * seconds,
            ..config(named(&["a"]), Verdicts::Sender)
        };
        assert_eq!(config.check_timeout(), JOIN + Duration::from_secs(seconds));
    }
}

/// One that is added again goes on as it is, unless it has failed.
#[test]
fn one_that_is_there_is_not_called_again() {
    let mut roster = Roster::new(ms(0), config(named(&["a", "b"]), Verdicts::Sender));
    join(&mut roster, ms(1), 1, "a");
    outputs(&mut roster, ms(1));
    for name in ["a", "b"] {
        roster.handle(ms(2), Input::Add(name));
    }
    assert_eq!(outputs(&mut roster, ms(2)), []);
    assert!(roster.is_ready(GuestId(1)));
    roster.handle(ms(3), Input::Gone { guest: GuestId(1), how: Gone::Closed });
    outputs(&mut roster, ms(3));
    roster.handle(ms(4), Input::Add("a"));
    assert_eq!(outputs(&mut roster, ms(4)), [Output::Forget(GuestId(1)), Output::Call("a".into())]);
}

/// A receiver that comes again and again leaves nothing behind: what was known of its connections before is
/// forgotten.
#[test]
fn one_that_comes_again_leaves_nothing_behind() {
    for expected in [named(&["a", "b"]), Expected::Count(2), Expected::AtLeast(2)] {
        let mut roster = Roster::new(ms(0), config(expected, Verdicts::Sender));
        join(&mut roster, ms(0), 1_000, "b");
        join(&mut roster, ms(0), 0, "a");
        let mut kept: BTreeSet<u32> = [0].into();
        for guest in 1..100 {
            roster.handle(ms(1), Input::Gone { guest: GuestId(guest - 1), how: Gone::Closed });
            join(&mut roster, ms(1), guest, "a");
            kept.insert(guest);
            let mut is_awaited = true;
            for output in outputs(&mut roster, ms(1)) {
                match output {
                    Output::Forget(guest) => assert!(kept.remove(&guest.0)),
                    Output::Unawaited(unawaited) => is_awaited &= unawaited.0 != guest,
                    _ => {}
                }
            }
            assert_eq!(is_awaited, guest < 4, "the others wait for it four times");
            assert_eq!(kept, [guest].into());
            assert!(roster.is_ready(GuestId(guest)));
        }
        assert_eq!(roster.by_guest.len(), 2);
        roster.handle(ms(2), Input::Gone { guest: GuestId(99), how: Gone::Closed });
        outputs(&mut roster, ms(2));
        hello(&mut roster, ms(2), 100, "a");
        // Where they are only counted, any host may have come under its name.
        let is_named = matches!(roster.config.expected, Expected::Named(_));
        let refused = refused(&outputs(&mut roster, ms(2)));
        assert_eq!(refused.as_deref(), is_named.then_some("it has joined 100 times"));
    }
}

/// Bytes that it has when it comes count, not those that it had at the last count: the hundredth connection
/// may have brought half of the object.
#[test]
fn one_whose_last_connection_got_on_is_not_refused() {
    for (verified_bytes, is_refused) in [(15, true), (16, false)] {
        let mut roster = Roster::new(ms(0), config(named(&["a", "b"]), Verdicts::Sender));
        join(&mut roster, ms(0), 1_000, "b");
        for guest in 0..100 {
            join(&mut roster, ms(1), guest, "a");
            if guest == 99 {
                roster.handle(
                    ms(1),
                    Input::Frame { guest: GuestId(guest), control: &progress(verified_bytes) },
                );
            }
            roster.handle(ms(1), Input::Gone { guest: GuestId(guest), how: Gone::Closed });
        }
        outputs(&mut roster, ms(1));
        hello(&mut roster, ms(2), 100, "a");
        assert_eq!(refused(&outputs(&mut roster, ms(2))).is_some(), is_refused, "{verified_bytes} of 1,000");
    }
}

fn progress(verified_bytes: u64) -> Control<'static> {
    Control::Progress { position: 0, received: 0, lost: 0, verified_bytes, arrived_ns: 0, waited_ns: 0 }
}

/// One that comes again may have lost what it had: it gets on if it has more than at first on this
/// connection.
#[test]
fn one_that_begins_anew_is_not_starved() {
    let verdicts = Verdicts::Roster { deadline: None };
    let mut roster = Roster::new(ms(0), config(named(&["a", "b"]), verdicts));
    join(&mut roster, ms(0), 1, "a");
    join(&mut roster, ms(0), 2, "b");
    roster.handle(ms(1), Input::Frame { guest: GuestId(1), control: &progress(900) });
    roster.handle(ms(2), Input::Gone { guest: GuestId(1), how: Gone::Closed });
    outputs(&mut roster, ms(2));
    join(&mut roster, ms(3), 3, "a");
    let (mut now, mut bytes) = (ms(3), 0);
    while bytes < 100 {
        now += STALL / 2;
        bytes += 10;
        for (guest, bytes) in [(2, 500 + bytes), (3, bytes)] {
            roster.handle(now, Input::Frame { guest: GuestId(guest), control: &progress(bytes) });
        }
        outputs(&mut roster, now);
        assert!(roster.is_ready(GuestId(3)), "it has {bytes} bytes");
        assert_eq!(roster.named("a").unwrap().verified_bytes, 900, "the most that it had");
    }
    outputs(&mut roster, now + STALL);
    assert_eq!(roster.named("a").unwrap().failure(), Some(&Why::Starved(STALL)));
}

/// One that gets on between its connections may come as often as it likes: it is counted anew with each 64th
/// of the object.
#[test]
fn one_that_gets_on_may_come_again() {
    for expected in [named(&["a", "b"]), Expected::Count(2)] {
        let mut roster = Roster::new(ms(0), config(expected, Verdicts::Sender));
        join(&mut roster, ms(0), 1_000, "b");
        for guest in 0..300 {
            join(&mut roster, ms(1), guest, "a");
            let told = outputs(&mut roster, ms(1));
            assert!(roster.is_ready(GuestId(guest)), "{guest}");
            assert!(!told.contains(&Output::Unawaited(GuestId(guest))), "{guest}");
            // Of 1,000 bytes.
            let control = Control::Progress {
                position: 0,
                received: 0,
                lost: 0,
                verified_bytes: u64::from(guest + 1) / 4 * 16,
                arrived_ns: 0,
                waited_ns: 0,
            };
            if (guest + 1) / 4 * 16 > 1_000 {
                break;
            }
            roster.handle(ms(1), Input::Frame { guest: GuestId(guest), control: &control });
            roster.handle(ms(1), Input::Gone { guest: GuestId(guest), how: Gone::Closed });
            outputs(&mut roster, ms(1));
        }
    }
}
