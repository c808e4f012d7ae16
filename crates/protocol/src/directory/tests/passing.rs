//! Holders that are asked to send an object and have not begun, and what is not looked at any more.

use super::*;

/// One that waits for its path is passed over for another that sends nothing, and for no other; nor is the
/// origin read.
#[test]
fn one_that_waits_for_its_path_makes_room_for_an_idle_one() {
    for (others, is_busy, passes) in [(1, false, true), (1, true, false), (0, false, false)] {
        let mut directory = settled(5);
        for holder in [0, 2].into_iter().take(1 + others) {
            directory.handle(ms(20_000), have(holder, 1));
        }
        let wish = Wish { can_fill: true, waits: false, fills: false };
        directory.handle(ms(20_000), DirectoryInput::Want { agent: agent(1), object: object(1), wish });
        if is_busy {
            // Only the second one has another object, and sends it.
            directory.handle(ms(20_000), have(2, 2));
            directory.handle(ms(20_000), DirectoryInput::Want { agent: agent(3), object: object(2), wish });
        }
        outputs(&mut directory, ms(20_100));
        let unserved = DirectoryInput::Unserved { agent: agent(1), object: object(1), waits: true };
        directory.handle(ms(50_000), unserved);
        let told = outputs(&mut directory, ms(50_100));
        let to = |told: &DirectoryOutput| matches!(told, DirectoryOutput::Serve { holder, .. } if *holder == agent(2));
        assert_eq!((told.len(), told.iter().any(to)), (usize::from(passes), passes), "{told:?}");
    }
}

/// An object has come, and is gone again from a full store before the agent could say so; in its next session
/// it asks for it. The one that sent it has not failed: it sends it again, and no origin is read beside it.
#[test]
fn one_that_has_sent_what_is_gone_again_sends_it_once_more() {
    let mut directory = settled(3);
    directory.handle(ms(20_000), have(0, 1));
    let wish = Wish { can_fill: true, waits: false, fills: false };
    let want = || DirectoryInput::Want { agent: agent(1), object: object(1), wish };
    directory.handle(ms(20_000), want());
    assert_eq!(outputs(&mut directory, ms(20_100)), [serve(0, 1, 1, &[1])]);
    directory.handle(ms(20_500), served(0, 1, &[(1, true)]));
    // Within a session the two words may have crossed.
    directory.handle(ms(20_600), want());
    assert_eq!(outputs(&mut directory, ms(20_700)), []);
    directory.handle(ms(21_000), DirectoryInput::Arrived { agent: agent(1) });
    directory.handle(ms(21_010), want());
    directory.handle(ms(21_020), DirectoryInput::Told { agent: agent(1) });
    assert_eq!(outputs(&mut directory, ms(21_100)), [serve(0, 2, 1, &[1])]);
    assert_eq!(outputs(&mut directory, ms(40_000)), [], "its first wish is not judged any more");
}

fn waits(of: u64) -> DirectoryInput {
    DirectoryInput::Unserved { agent: agent(of), object: object(1), waits: true }
}

/// One that was passed over while it waited for its path has not failed: it is asked again before one that
/// has, and no origin is read meanwhile.
#[test]
fn one_that_waited_for_its_path_may_send_it_yet() {
    let fails = |serve| served(2, serve, &[(1, false)]);
    let is_silent = |_| DirectoryInput::Unserved { agent: agent(1), object: object(1), waits: false };
    for (of_second, at) in [(&fails as &dyn Fn(u64) -> DirectoryInput, 50_200), (&is_silent, 80_000)] {
        let mut directory = settled(5);
        directory.handle(ms(20_000), have(0, 1));
        directory.handle(ms(20_000), have(2, 1));
        let wish = Wish { can_fill: true, waits: false, fills: false };
        for of in [1, 3] {
            directory.handle(ms(20_000), DirectoryInput::Want { agent: agent(of), object: object(1), wish });
        }
        assert_eq!(outputs(&mut directory, ms(20_100)), [serve(0, 1, 1, &[1, 3])]);
        // The first one goes on with the other receiver.
        directory.handle(ms(50_000), waits(1));
        assert_eq!(outputs(&mut directory, ms(50_100)), [serve(2, 2, 1, &[1])]);
        directory.handle(ms(at), of_second(2));
        assert_eq!(outputs(&mut directory, ms(at + 100)), [serve(0, 3, 1, &[1])]);
        // Neither is idle and not asked yet: it is waited for.
        directory.handle(ms(at + 30_000), waits(1));
        assert_eq!(outputs(&mut directory, ms(at + 30_100)), []);
        assert_eq!(directory.filler(object(1)), None);
    }
}

/// Receivers of one transfer that waits for its path say so one after the other: they become one transfer of
/// the idle one.
#[test]
fn those_who_wait_together_stay_one_transfer() {
    let mut directory = settled(6);
    directory.handle(ms(20_000), have(0, 1));
    directory.handle(ms(20_000), have(2, 1));
    directory.handle(ms(20_000), have(3, 1));
    for of in [1, 4, 5] {
        directory.handle(ms(20_000), want(of, 1));
    }
    assert_eq!(outputs(&mut directory, ms(20_100)), [serve(0, 1, 1, &[1, 4, 5])]);
    for (at, of) in [(50_000, 1), (50_010, 4), (50_040, 5)] {
        directory.handle(ms(at), waits(of));
        assert_eq!(outputs(&mut directory, ms(at)), []);
    }
    assert_eq!(outputs(&mut directory, ms(50_100)), [serve(2, 2, 1, &[1, 4, 5])]);
}

/// A topic is not looked at when the patience for a version is over that is not on its way any more.
#[test]
fn versions_with_much_patience_leave_nothing() {
    let mut directory = settled(3);
    for (number, is_lost) in (1..200).flat_map(|number| [(2 * number, false), (2 * number + 1, true)]) {
        let now = ms(20_000 + number);
        directory.handle(now, have(0, number));
        if is_lost {
            directory.handle(now, subscribe(1, "t"));
        }
        let DirectoryInput::Publish { agent, app, topic, version, .. } = publish(0, "t", number, number)
        else {
            unreachable!()
        };
        let patience = Some(Duration::from_nanos((1 << 40) + number));
        directory.handle(now, DirectoryInput::Publish { agent, app, topic, version, patience });
        outputs(&mut directory, now);
        directory.handle(now, DirectoryInput::Lost { agent: super::agent(0), object: object(number) });
        directory.handle(now, DirectoryInput::Unsubscribe { agent: super::agent(1), topic: "t".into() });
        outputs(&mut directory, now);
    }
    assert!(directory.looks.len() < 10, "{} looks", directory.looks.len());
}

/// So many agents may publish the same version; one more hears that it is on its way. One of them may say it
/// again.
#[test]
fn publishers_of_a_version_have_a_limit() {
    let mut directory = settled(300);
    directory.handle(ms(20_000), have(0, 1));
    directory.handle(ms(20_000), subscribe(299, "t"));
    for of in 0..256 {
        assert_eq!(
            said(&mut directory, publish(of, "t", 1, 1)).iter().filter(|told| is_refused(told)).count(),
            0
        );
    }
    let why = TopicRefusal::Staging { topic: "t".into(), staging: 1 };
    assert_eq!(said(&mut directory, publish(256, "t", 1, 1)), [refused(256, Some(1), why)]);
    assert_eq!(said(&mut directory, publish(7, "t", 1, 1)), []);
    let told = said(&mut directory, have(299, 1));
    let published = told.iter().filter(|told| matches!(told, DirectoryOutput::Published { .. })).count();
    assert_eq!(published, 256);
}

fn is_refused(told: &DirectoryOutput) -> bool {
    matches!(told, DirectoryOutput::TopicRefused { .. })
}

/// The numbers of a topic rise, also where no agent has its last version any more, and none asks for it.
#[test]
fn numbers_outlive_their_topic() {
    let mut directory = settled(3);
    directory.handle(ms(20_000), have(0, 1));
    let told = said(&mut directory, publish(0, "t", 7, 1));
    assert_eq!(told, [published(0, 7, &[], &[])]);
    directory.handle(ms(20_000), DirectoryInput::Gone { agent: super::agent(0) });
    assert!(directory.topics.is_empty(), "it takes no place");
    directory.handle(ms(20_000), have(1, 2));
    let why = TopicRefusal::NotAbove { topic: "t".into(), number: 1, last: 7 };
    assert_eq!(why.next_number(), Some(8));
    assert_eq!(said(&mut directory, publish(1, "t", 1, 2)), [refused(1, Some(1), why)]);
    assert_eq!(said(&mut directory, publish(1, "t", 8, 2)), [published(1, 8, &[], &[])]);
}

/// A publisher that did not know of the last version hears of it, and its own is not taken for committed.
#[test]
fn a_version_that_is_overtaken_is_refused() {
    let mut directory = settled(3);
    directory.handle(ms(20_000), have(0, 1));
    directory.handle(ms(20_000), subscribe(2, "t"));
    assert!(!said(&mut directory, publish(0, "t", 1, 1)).iter().any(is_refused), "it is on its way");
    let version = Version { number: 5, object: object(9) };
    let word = DirectoryInput::Committed {
        agent: super::agent(1),
        app: AppId::default(),
        topic: "t".into(),
        version,
    };
    let why = TopicRefusal::NotAbove { topic: "t".into(), number: 1, last: 5 };
    assert!(said(&mut directory, word).contains(&refused(0, Some(1), why)));
    assert_eq!(directory.committed("t").map(|version| version.number), Some(5));
}

/// One that has said a version and died, and whose next run has it, is not said to lack it.
#[test]
fn a_run_that_has_ended_is_not_said_to_lack_what_the_next_one_has() {
    let mut directory = settled(3);
    directory.handle(ms(20_000), have(0, 1));
    directory.handle(ms(20_000), subscribe(1, "t"));
    directory.handle(ms(20_000), subscribe(2, "t"));
    said(&mut directory, publish(0, "t", 1, 1));
    let next = AgentKey { incarnation: 2, ..super::agent(1) };
    directory.handle(ms(20_000), DirectoryInput::Arrived { agent: next.clone() });
    directory.handle(ms(20_000), DirectoryInput::Gone { agent: super::agent(1) });
    let have_it = |agent| {
        let DirectoryInput::Have { object, length, root, age, .. } = have(0, 1) else { unreachable!() };
        DirectoryInput::Have { agent, object, length, root, age }
    };
    directory.handle(ms(20_000), have_it(next.clone()));
    let (app, topic) = (AppId::default(), "t".to_string());
    directory.handle(ms(20_000), DirectoryInput::Subscribe { agent: next.clone(), app, topic });
    directory.handle(ms(20_000), DirectoryInput::Told { agent: next });
    let told = said(&mut directory, have_it(super::agent(2)));
    assert!(told.contains(&published(0, 1, &[1, 2], &[])), "{told:?}");
}
