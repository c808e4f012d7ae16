//! Receivers that have gone in mid-transfer are called again, and waited for a little.

use super::super::tests::{BOTH, config, have, hello, join, ms, named, outputs};
use super::super::*;
use super::BACK_WITHIN;
use alloc::vec::Vec;
use polycast_types::Time;

fn go(roster: &mut Roster, now: Time, guest: u32) {
    roster.handle(now, Input::Gone { guest: GuestId(guest), how: Gone::Closed });
}

fn not_coming(roster: &mut Roster, now: Time, name: &str) {
    roster.handle(now, Input::NotComing { name, why: "connection refused".into() });
}

/// Two have begun; returns them with the time.
fn begun(verdicts: Verdicts) -> Roster {
    let mut roster = Roster::new(ms(0), config(named(&["a", "b"]), verdicts));
    join(&mut roster, ms(0), 1, "a");
    join(&mut roster, ms(0), 2, "b");
    assert!(outputs(&mut roster, ms(0)).contains(&Output::Start));
    roster
}

/// Runs it up to a time by its own deadlines; gives the times of the calls of "a", each of which is in vain.
fn calls_until(roster: &mut Roster, end: Time) -> Vec<u64> {
    let mut calls = Vec::new();
    while let Some(now) = roster.deadline().filter(|at| *at <= end) {
        for output in outputs(roster, now) {
            if output == Output::Call("a".into()) {
                calls.push(now.0 / 1_000_000);
                not_coming(roster, now, "a");
            }
        }
    }
    calls
}

#[test]
fn one_that_has_gone_is_called_again_and_comes() {
    for verdicts in BOTH {
        let mut roster = begun(verdicts);
        go(&mut roster, ms(100), 1);
        let said = outputs(&mut roster, ms(100));
        assert!(said.contains(&Output::Left { guest: GuestId(1), why: Why::WentAway }), "{said:?}");
        assert_eq!(calls_until(&mut roster, ms(1_700)), [600, 1_100, 1_600]);
        assert_eq!(roster.named("a").unwrap().failure(), Some(&Why::WentAway));
        hello(&mut roster, ms(2_000), 3, "a");
        have(&mut roster, ms(2_000), 3);
        let said = outputs(&mut roster, ms(2_000));
        assert!(said.iter().any(|output| matches!(output, Output::Ready { late: true, .. })), "{said:?}");
        assert!(calls_until(&mut roster, ms(4_000)).is_empty(), "it is here");
    }
}

/// A machine that stays away is called more and more rarely, for as long as the others take.
#[test]
fn one_that_stays_away_is_called_more_and_more_rarely() {
    let mut roster = begun(Verdicts::Sender);
    go(&mut roster, ms(0), 1);
    let calls = calls_until(&mut roster, ms(3_600_000));
    assert!((70..110).contains(&calls.len()), "{}", calls.len());
    assert!(calls.windows(2).all(|two| (500..=60_000).contains(&(two[1] - two[0]))), "{calls:?}");
}

/// The transfer ends a little later where one has just gone, and at once where it was gone long before.
#[test]
fn the_end_waits_for_one_that_has_just_gone() {
    let finish = |roster: &mut Roster, at: Time| {
        roster.handle(at, Input::Settled { guest: GuestId(2), failure: None, serves: false });
    };
    // The roster of a push tells its sender when nothing more comes; that of a pull ends by itself.
    let is_end = |output: &Output| matches!(output, Output::Close | Output::Finished);
    for verdicts in BOTH {
        let mut roster = begun(verdicts);
        outputs(&mut roster, ms(0));
        go(&mut roster, ms(1_000), 1);
        finish(&mut roster, ms(1_100));
        let mut ended_at = None;
        while let Some(now) = roster.deadline().filter(|at| *at <= ms(60_000)) {
            let said = outputs(&mut roster, now);
            if said.contains(&Output::Call("a".into())) {
                not_coming(&mut roster, now, "a");
            }
            if said.iter().any(is_end) {
                ended_at = Some(now);
                break;
            }
        }
        assert_eq!(ended_at, Some(ms(1_000) + BACK_WITHIN));
    }
    let mut roster = begun(Verdicts::Roster { deadline: None });
    go(&mut roster, ms(1_000), 1);
    calls_until(&mut roster, ms(9_000));
    finish(&mut roster, ms(9_000));
    assert!(outputs(&mut roster, ms(9_000)).contains(&Output::Finished));
}

/// One that was taken out is not called, although it had gone before; one that comes and goes is not waited
/// for without an end.
#[test]
fn one_that_was_taken_out_or_goes_again_and_again_is_not_waited_for() {
    let mut roster = begun(Verdicts::Sender);
    go(&mut roster, ms(100), 1);
    roster.handle(ms(200), Input::Remove("a"));
    assert_eq!(calls_until(&mut roster, ms(20_000)), []);
    hello(&mut roster, ms(20_000), 3, "a");
    let said = outputs(&mut roster, ms(20_000));
    assert!(said.contains(&Output::Goodbye(GuestId(3), Goodbye::Refuse(Why::TakenOut))), "{said:?}");

    let mut roster = begun(Verdicts::Roster { deadline: None });
    for guest in 3..3 + AWAITED_MAX {
        go(&mut roster, ms(u64::from(guest)), guest - if guest == 3 { 2 } else { 1 });
        join(&mut roster, ms(u64::from(guest)), guest, "a");
    }
    go(&mut roster, ms(100), 2 + AWAITED_MAX);
    roster.handle(ms(101), Input::Settled { guest: GuestId(2), failure: None, serves: false });
    assert!(outputs(&mut roster, ms(101)).contains(&Output::Finished));
}

/// Counted receivers come by themselves.
#[test]
fn counted_receivers_are_not_called() {
    let mut roster = Roster::new(ms(0), config(Expected::Count(2), Verdicts::Sender));
    join(&mut roster, ms(0), 1, "a");
    join(&mut roster, ms(0), 2, "b");
    outputs(&mut roster, ms(0));
    go(&mut roster, ms(100), 1);
    assert_eq!(calls_until(&mut roster, ms(20_000)), []);
}

/// Receivers that will not come are not waited for, before the start and after it.
#[test]
fn one_that_will_not_come_is_not_waited_for() {
    for verdicts in BOTH {
        let mut roster = Roster::new(ms(0), config(Expected::Count(3), verdicts));
        join(&mut roster, ms(0), 1, "a");
        join(&mut roster, ms(0), 2, "b");
        assert!(!outputs(&mut roster, ms(0)).contains(&Output::Start));
        roster.handle(ms(10), Input::Fewer("c"));
        assert!(outputs(&mut roster, ms(10)).contains(&Output::Start));
        // All that are still expected are here: none of them loses its place.
        roster.handle(ms(20), Input::Fewer("d"));
        assert_eq!((roster.missing(), roster.entries().count()), (0, 2));

        let mut roster = Roster::new(ms(0), config(Expected::Count(2), verdicts));
        outputs(&mut roster, ms(0));
        roster.handle(ms(1), Input::Fewer("a"));
        assert!(!outputs(&mut roster, ms(1)).contains(&Output::Finished), "one may come");
        roster.handle(ms(2), Input::Fewer("b"));
        assert!(outputs(&mut roster, ms(2)).contains(&Output::Finished), "none comes");
    }
}

/// No receiver loses its place by what another one says: one that was here, and has failed or gone, says
/// nothing of the others, nor does one that says it twice, or comes though it was not to.
#[test]
fn one_that_will_not_come_says_it_for_itself_alone() {
    for verdicts in BOTH {
        let mut roster = Roster::new(ms(0), config(Expected::Count(3), verdicts));
        join(&mut roster, ms(0), 1, "a");
        outputs(&mut roster, ms(0));
        roster.handle(ms(1), Input::Fewer("a"));
        assert_eq!(roster.missing(), 2, "it is here");
        go(&mut roster, ms(2), 1);
        outputs(&mut roster, ms(2));
        roster.handle(ms(3), Input::Fewer("a"));
        assert_eq!(roster.missing(), 2, "it was here");
        for at in [4, 5] {
            roster.handle(ms(at), Input::Fewer("b"));
            assert_eq!(roster.missing(), 1);
        }
        // It comes all the same, and the third one has its place.
        join(&mut roster, ms(6), 2, "b");
        join(&mut roster, ms(6), 3, "c");
        let said = outputs(&mut roster, ms(6));
        assert!(said.contains(&Output::Welcome(GuestId(2))) && said.contains(&Output::Welcome(GuestId(3))));
        assert_eq!(roster.missing(), 0);
    }
}

/// One that has gone and will not come again is not waited for, and the others are.
#[test]
fn one_that_was_here_and_will_not_come_again_keeps_no_other_waiting() {
    for verdicts in BOTH {
        let mut roster = Roster::new(ms(0), config(Expected::Count(2), verdicts));
        join(&mut roster, ms(0), 1, "a");
        go(&mut roster, ms(1), 1);
        join(&mut roster, ms(2), 2, "b");
        assert!(!outputs(&mut roster, ms(2)).contains(&Output::Start), "it may come again");
        roster.handle(ms(3), Input::Fewer("a"));
        assert!(outputs(&mut roster, ms(3)).contains(&Output::Start));
    }
}
