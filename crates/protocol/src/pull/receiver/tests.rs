use super::*;
use crate::pull::Hop;
use alloc::collections::VecDeque;

const HANDLE: Handle = Handle(5);

/// Blocks of ten packets of 1000 bytes, w = 3.
fn receiver(packets: u64, trees: usize, retry: RetryTime) -> Receiver {
    let route = Route::new(&[Hop { port: 1, non_branching: false }]).unwrap();
    Receiver::new(ReceiverConfig {
        transfer: HANDLE,
        blocks: Blocks::new(packets * 1000, 1000, 10_000).unwrap(),
        routes: alloc::vec![Some(route); trees],
        credits: 3,
        retry,
        overtaken: None,
        stalled_after: Duration::from_secs(1),
    })
}

fn fixed() -> RetryTime {
    RetryTime::Fixed(Duration(1000))
}

fn data(sn: u64, tree: u8, decision: Decision) -> Data {
    let route = Route::new(&[Hop { port: 1, non_branching: false }]).unwrap();
    let name = Name::new(HANDLE, sn);
    Data { name, route, decision, length: 1000, tree, again: false }
}

fn outputs(receiver: &mut Receiver, now: u64) -> Vec<Output> {
    core::iter::from_fn(|| receiver.poll(Time(now))).collect()
}

/// The interests among what it has to say, as trees and numbers.
fn asked(receiver: &mut Receiver, now: u64) -> Vec<(u8, u64)> {
    let ask = |output| match output {
        Output::Ask(interest) => Some((interest.tree, interest.name.sn)),
        _ => None,
    };
    outputs(receiver, now).into_iter().filter_map(ask).collect()
}

/// Returns the packets that it requests from the source itself.
fn fresh(receiver: &mut Receiver, now: u64) -> Vec<u64> {
    let ask = |output| match output {
        Output::Ask(Interest { name, fresh: true, .. }) => Some(name.sn),
        _ => None,
    };
    outputs(receiver, now).into_iter().filter_map(ask).collect()
}

fn give(receiver: &mut Receiver, now: u64, sn: u64, tree: u8, decision: Decision) {
    receiver.handle(Time(now), Input::Data(data(sn, tree, decision)));
}

#[test]
fn it_asks_for_w_packets_in_each_tree_and_for_one_more_for_each_that_comes() {
    let mut receiver = receiver(30, 2, fixed());
    assert_eq!(outputs(&mut receiver, 0), [], "not before it is told to begin");
    receiver.handle(Time(0), Input::Begin);
    assert_eq!(asked(&mut receiver, 0), [(0, 0), (0, 1), (0, 2), (1, 10), (1, 11), (1, 12)]);
    give(&mut receiver, 10, 1, 0, Decision::Open);
    let out = outputs(&mut receiver, 10);
    assert_eq!(out[0], Output::Keep { sn: 1, round_trip: Some(Duration(10)) });
    assert!(matches!(out[1..], [Output::Ask(Interest { name: Name { sn: 3, .. }, tree: 0, .. })]));
}

/// Sections of 2, 4, 8 and 16 packets: the object has the numbers 0 to 29, the lists 30, 36, 42 to 44 and 48
/// to 51.
fn receiver_of_lists(trees: usize) -> Receiver {
    let plain = receiver(30, trees, fixed());
    let blocks = plain.config.blocks.with_lists(250).unwrap();
    Receiver::new(ReceiverConfig { blocks, ..plain.config })
}

/// Gives a packet of its length, and says which sections are listed with it.
fn give_list(receiver: &mut Receiver, now: u64, sn: u64, tree: u8) -> Vec<u64> {
    let length = receiver.config.blocks.length_of(sn);
    receiver.handle(Time(now), Input::Data(Data { length, ..data(sn, tree, Decision::Open) }));
    assert_eq!(receiver.poll(Time(now)), Some(Output::Keep { sn, round_trip: Some(Duration(1)) }));
    receiver.read_lists();
    let outputs = receiver.outputs.drain(..);
    outputs
        .filter_map(|output| if let Output::Listed { section } = output { Some(section) } else { None })
        .collect()
}

#[test]
fn packets_without_a_name_are_not_asked_for() {
    let mut receiver = receiver_of_lists(2);
    receiver.handle(Time(0), Input::Begin);
    assert_eq!(asked(&mut receiver, 0), []);
    assert_eq!(receiver.deadline(), None);
    receiver.handle(Time(0), Input::Roots { until: 1 });
    assert_eq!(asked(&mut receiver, 0), [(0, 30)]);
    // No list has named this one.
    give(&mut receiver, 1, 36, 0, Decision::Open);
    assert_eq!((receiver.counters().refused, receiver.has(36)), (1, false));
    assert_eq!(give_list(&mut receiver, 1, 30, 0), [0]);
    assert_eq!(asked(&mut receiver, 1), [(0, 0), (0, 1)]);
    give(&mut receiver, 5, 0, 0, Decision::Open);
    give(&mut receiver, 5, 1, 0, Decision::Open);
    assert_eq!(asked(&mut receiver, 5), []);
    receiver.handle(Time(9), Input::Roots { until: 9 });
    assert_eq!(asked(&mut receiver, 9), [(0, 36), (0, 42), (0, 48)]);
    // It never sinks, and the next section waits for the one before.
    receiver.handle(Time(9), Input::Roots { until: 0 });
    assert_eq!(give_list(&mut receiver, 10, 42, 0), []);
    // What a list's packet names has a tree of its own.
    assert_eq!(asked(&mut receiver, 10), [(0, 44), (1, 43)]);
    assert_eq!(give_list(&mut receiver, 11, 43, 1), []);
    assert_eq!(give_list(&mut receiver, 11, 44, 0), []);
    assert_eq!(asked(&mut receiver, 11), []);
    receiver.handle(Time(10), Input::Data(Data { length: 535, ..data(36, 0, Decision::Open) }));
    assert_eq!((receiver.counters().refused, receiver.has(36)), (2, false), "its list has another length");
}

/// A packet of a list counts when its driver has had a look at it: one that was corrupt names nothing, and
/// comes again.
#[test]
fn a_corrupt_packet_of_a_list_comes_again_from_the_source() {
    let mut receiver = receiver_of_lists(1);
    receiver.handle(Time(0), Input::Roots { until: 9 });
    receiver.handle(Time(0), Input::Begin);
    assert_eq!(asked(&mut receiver, 0), [(0, 30), (0, 36), (0, 42)]);
    for sn in [30, 42] {
        let length = receiver.config.blocks.length_of(sn);
        receiver.handle(Time(1), Input::Data(Data { length, ..data(sn, 0, Decision::Open) }));
        assert!(matches!(receiver.poll(Time(1)), Some(Output::Keep { .. })));
        receiver.handle(Time(1), Input::Corrupt { sns: sn..sn + 1 });
        assert!(!receiver.has(sn), "{sn}");
        assert_eq!(fresh(&mut receiver, 1), [sn]);
        receiver.handle(Time(2), Input::Data(Data { length, ..data(sn, 0, Decision::Open) }));
        assert!(matches!(receiver.poll(Time(2)), Some(Output::Keep { .. })));
    }
    assert_eq!(receiver.packets(), 0);
    // What was read counts: it is too late then.
    assert_eq!(fresh(&mut receiver, 2), []);
    receiver.handle(Time(2), Input::Corrupt { sns: 30..43 });
    assert!(receiver.has(30) && receiver.has(42));
}

/// The last packet of a block that is there is requested to learn where the tree continues: not before it has
/// a name.
#[test]
fn a_block_that_is_there_is_not_asked_for_without_names() {
    let mut receiver = receiver_of_lists(1);
    receiver.handle(Time(0), Input::Roots { until: 9 });
    receiver.handle(Time(0), Input::Held { sns: 0..10 });
    receiver.handle(Time(0), Input::Begin);
    assert_eq!(asked(&mut receiver, 0), [(0, 30), (0, 36), (0, 42)]);
    assert_eq!(give_list(&mut receiver, 1, 30, 0), [0]);
    assert_eq!(give_list(&mut receiver, 1, 36, 0), [1]);
    assert_eq!(receiver.known, 6);
    assert_eq!(asked(&mut receiver, 1), [(0, 48)], "packets 6 to 9 have no names");
    for (sn, listed) in [(42, None), (43, None), (44, Some(2))] {
        receiver.handle(
            Time(2),
            Input::Data(Data { length: receiver.config.blocks.length_of(sn), ..data(sn, 0, Decision::Open) }),
        );
        let said = outputs(&mut receiver, 2).into_iter();
        let sections: Vec<u64> = said
            .filter_map(|output| if let Output::Listed { section } = output { Some(section) } else { None })
            .collect();
        assert_eq!(sections, Vec::from_iter(listed), "{sn}");
    }
    assert_eq!(receiver.known, 14);
    let open: Vec<u64> = receiver.trees[0].open.iter().map(|open| open.sn).collect();
    assert!(open.contains(&9), "{open:?}");
}

#[test]
fn the_search_for_missing_packets_waits_for_names_too() {
    let mut receiver = receiver_of_lists(1);
    receiver.handle(Time(0), Input::Roots { until: 3 });
    receiver.handle(Time(0), Input::Held { sns: 0..9 });
    receiver.handle(Time(0), Input::Begin);
    assert_eq!(asked(&mut receiver, 0), [(0, 30), (0, 36), (0, 42)]);
    assert_eq!(give_list(&mut receiver, 1, 30, 0), [0]);
    assert_eq!(give_list(&mut receiver, 1, 36, 0), [1]);
    assert_eq!(give_list(&mut receiver, 1, 42, 0), []);
    assert_eq!(asked(&mut receiver, 1), [(0, 43), (0, 44)]);
    assert_eq!(give_list(&mut receiver, 2, 43, 0), []);
    assert_eq!(give_list(&mut receiver, 2, 44, 0), [2]);
    assert_eq!(asked(&mut receiver, 2), [(0, 9)]);
    give(&mut receiver, 3, 9, 0, Decision::End);
    // The tree has no further block: what is missing is looked for, as far as it has names.
    assert_eq!(asked(&mut receiver, 3), [(0, 10), (0, 11), (0, 12)]);
    (10..14).for_each(|sn| give(&mut receiver, sn, sn, 0, Decision::Open));
    assert_eq!(asked(&mut receiver, 20), []);
    receiver.handle(Time(22), Input::Roots { until: 4 });
    assert_eq!(asked(&mut receiver, 22), [(0, 48)]);
}

#[test]
fn lists_of_a_tree_that_is_gone_come_by_another_one() {
    let mut receiver = receiver_of_lists(2);
    receiver.handle(Time(0), Input::Begin);
    receiver.handle(Time(0), Input::Roots { until: 4 });
    assert_eq!(asked(&mut receiver, 0), [(0, 30), (0, 36), (0, 42)]);
    receiver.handle(Time(1), Input::Rerouted { tree: 0, route: None });
    assert_eq!(asked(&mut receiver, 1), [(1, 30), (1, 36), (1, 42)]);
    let blocks = receiver.config.blocks;
    let mut now = 2;
    while !receiver.is_complete() {
        let sns = asked(&mut receiver, now);
        assert!(!sns.is_empty() || receiver.deadline().is_some(), "{} packets", receiver.packets());
        let open: Vec<u64> = receiver.trees[1].open.iter().map(|open| open.sn).collect();
        for sn in open {
            let decision = if sn == 19 { Decision::End } else { Decision::Open };
            receiver.handle(
                Time(now),
                Input::Data(Data { length: blocks.length_of(sn), ..data(sn, 1, decision) }),
            );
        }
        now += 1;
    }
    assert_eq!(receiver.packets(), 30);
}

/// A receiver whose connection has ended begins anew while packets that it had asked for before are on their
/// way: when all are there, the hashes in the lists are still to come, and what is lost of the lists is asked
/// for again.
#[test]
fn packets_that_come_before_their_list_do_not_end_it() {
    let mut receiver = receiver_of_lists(1);
    receiver.handle(Time(0), Input::Roots { until: 4 });
    receiver.handle(Time(0), Input::Begin);
    assert_eq!(asked(&mut receiver, 0), [(0, 30), (0, 36), (0, 42)]);
    (0..30)
        .for_each(|sn| give(&mut receiver, 1, sn, 0, if sn == 29 { Decision::End } else { Decision::Open }));
    outputs(&mut receiver, 1);
    assert!(receiver.is_complete());
    let mut listed = Vec::new();
    while let Some(Time(now)) = receiver.deadline() {
        for (_, sn) in asked(&mut receiver, now) {
            if sn < 30 {
                continue;
            }
            let length = receiver.config.blocks.length_of(sn);
            receiver.handle(Time(now + 1), Input::Data(Data { length, ..data(sn, 0, Decision::Open) }));
            let said = outputs(&mut receiver, now + 1).into_iter();
            listed.extend(said.filter_map(|output| match output {
                Output::Listed { section } => Some(section),
                _ => None,
            }));
        }
        assert!(now < 60_000, "{listed:?}");
    }
    assert_eq!(listed, [0, 1, 2, 3]);
}

/// The last section has the end of a packet and none of its own: its list is asked for when all packets are
/// there.
#[test]
fn a_section_without_packets_is_listed_too() {
    let plain = receiver(3, 1, fixed());
    let blocks = Blocks::new(2_450, 1_000, 10_000).unwrap().with_lists(300).unwrap();
    assert_eq!((blocks.sections(), blocks.packets(), blocks.section_packets(1)), (2, 3, 3..3));
    let mut receiver = Receiver::new(ReceiverConfig { blocks, ..plain.config });
    receiver.handle(Time(0), Input::Begin);
    receiver.handle(Time(0), Input::Roots { until: 1 });
    let mut listed = Vec::new();
    let mut now = 0;
    while !receiver.is_complete() {
        for (tree, sn) in asked(&mut receiver, now) {
            let data = Data { length: blocks.length_of(sn), ..data(sn, tree, Decision::Open) };
            receiver.handle(Time(now), Input::Data(data));
        }
        now += 1;
        assert!(now < 50, "{} packets", receiver.packets());
    }
    outputs(&mut receiver, now);
    assert_eq!(receiver.deadline(), None, "nothing is named yet");
    receiver.handle(Time(now), Input::Roots { until: 2 });
    let root = blocks.list_root(1);
    assert!(asked(&mut receiver, now).contains(&(0, root)));
    // It is lost.
    let again = receiver.deadline().expect("it is asked for again");
    assert!(asked(&mut receiver, again.0).contains(&(0, root)));
    while receiver.deadline().is_some() {
        now = receiver.deadline().unwrap().0;
        for (tree, sn) in asked(&mut receiver, now) {
            let data = Data { length: blocks.length_of(sn), ..data(sn, tree, Decision::Open) };
            receiver.handle(Time(now), Input::Data(data));
            let said = outputs(&mut receiver, now).into_iter();
            listed.extend(said.filter(|output| matches!(output, Output::Listed { .. })));
        }
    }
    assert_eq!(listed, [Output::Listed { section: 1 }]);
}

#[test]
fn what_does_not_come_within_the_rto_is_asked_for_again() {
    let mut receiver = receiver(30, 1, fixed());
    receiver.handle(Time(0), Input::Begin);
    asked(&mut receiver, 0);
    give(&mut receiver, 500, 1, 0, Decision::Open);
    assert_eq!(asked(&mut receiver, 500), [(0, 3)]);
    assert_eq!(receiver.deadline(), Some(Time(1000)));
    assert_eq!(asked(&mut receiver, 999), []);
    assert_eq!(asked(&mut receiver, 1000), [(0, 0), (0, 2)]);
    assert_eq!(receiver.counters().repeated, 2);
    assert_eq!(receiver.deadline(), Some(Time(1500)));
    // The round trip of a packet that was asked for twice says nothing.
    give(&mut receiver, 1200, 0, 0, Decision::Open);
    assert_eq!(outputs(&mut receiver, 1200)[0], Output::Keep { sn: 0, round_trip: None });
}

#[test]
fn an_adaptive_rto_follows_the_round_trips() {
    let retry = RetryTime::Adaptive { initial: Duration(50_000), least: Duration(100) };
    let mut receiver = receiver(30, 1, retry);
    receiver.handle(Time(0), Input::Begin);
    asked(&mut receiver, 0);
    assert_eq!(receiver.deadline(), Some(Time(50_000)));
    let mut now = 0;
    for sn in 0..20 {
        now += 1000;
        give(&mut receiver, now, sn, 0, Decision::Next(u32::from(sn >= 9) + 1));
        asked(&mut receiver, now);
    }
    let wait = receiver.deadline().unwrap().since(Time(now)).0;
    assert!((1000..9000).contains(&wait), "three packets are out, so round trips are 3000 ns: {wait}");
}

#[test]
fn the_tree_goes_on_where_the_source_says() {
    let mut receiver = receiver(40, 1, fixed());
    receiver.handle(Time(0), Input::Begin);
    asked(&mut receiver, 0);
    for sn in 0..7 {
        give(&mut receiver, 10, sn, 0, Decision::Open);
        asked(&mut receiver, 10);
    }
    give(&mut receiver, 20, 7, 0, Decision::Open);
    give(&mut receiver, 20, 8, 0, Decision::Open);
    assert_eq!(asked(&mut receiver, 20), [], "it waits for the decision");
    give(&mut receiver, 30, 9, 0, Decision::Next(3));
    assert_eq!(asked(&mut receiver, 30), [(0, 30), (0, 31), (0, 32)]);
}

#[test]
fn of_blocks_that_are_there_only_the_last_packet_is_asked_for() {
    let mut receiver = receiver(30, 1, fixed());
    receiver.handle(Time(0), Input::Held { sns: 0..20 });
    receiver.handle(Time(0), Input::Begin);
    assert_eq!(asked(&mut receiver, 0), [(0, 9)]);
    give(&mut receiver, 10, 9, 0, Decision::Next(1));
    assert_eq!(asked(&mut receiver, 10), [(0, 19)]);
    give(&mut receiver, 20, 19, 0, Decision::Next(2));
    assert_eq!(asked(&mut receiver, 20), [(0, 20), (0, 21), (0, 22)]);
    assert_eq!(receiver.counters().duplicates, 2);
}

#[test]
fn decisions_that_lead_in_a_circle_or_nowhere_end_and_the_rest_is_swept_up() {
    for wrong in [Decision::Next(0), Decision::Next(99), Decision::End, Decision::Open] {
        let mut receiver = receiver(30, 2, fixed());
        receiver.handle(Time(0), Input::Begin);
        let mut now = 0;
        let mut pending = asked(&mut receiver, now);
        for _ in 0..200 {
            now += 10;
            for (tree, sn) in core::mem::take(&mut pending) {
                let decision = if sn % 10 == 9 { wrong } else { Decision::Open };
                give(&mut receiver, now, sn, tree, decision);
            }
            pending = asked(&mut receiver, now);
        }
        assert!(receiver.is_complete(), "{wrong:?}: {} packets", receiver.packets());
    }
}

#[test]
fn a_tree_that_is_taken_away_leaves_its_packets_to_the_others() {
    let mut receiver = receiver(20, 2, fixed());
    receiver.handle(Time(0), Input::Begin);
    asked(&mut receiver, 0);
    receiver.handle(Time(5), Input::Rerouted { tree: 1, route: None });
    assert_eq!(asked(&mut receiver, 5), [], "the other tree has no credit left");
    give(&mut receiver, 10, 0, 0, Decision::Open);
    assert_eq!(asked(&mut receiver, 10), [(0, 10)]);
}

#[test]
fn a_new_way_is_used_at_once() {
    let mut receiver = receiver(20, 1, fixed());
    receiver.handle(Time(10_000), Input::Begin);
    asked(&mut receiver, 10_000);
    let route = Route::new(&[Hop { port: 2, non_branching: false }]).unwrap();
    receiver.handle(Time(10_100), Input::Rerouted { tree: 0, route: Some(route) });
    let out = outputs(&mut receiver, 10_100);
    let new = |output: &Output| matches!(output, Output::Ask(interest) if interest.route == route);
    // One packet until the source has answered; what was open is a part of the gap.
    assert!(out.len() == 1 && out.iter().all(new), "{out:?}");
    give(&mut receiver, 10_200, 3, 0, Decision::Open);
    assert_eq!(asked(&mut receiver, 10_200), [(0, 4), (0, 5), (0, 6)]);
}

/// Time at which nothing has come in a tree for two repeats of what is open.
fn until_cut_off(receiver: &mut Receiver, tree: usize) -> u64 {
    while !receiver.trees[tree].cut_off {
        let now = receiver.deadline().unwrap();
        asked(receiver, now.0);
    }
    receiver.deadline().map_or(0, |at| at.0)
}

#[test]
fn one_that_hears_nothing_asks_past_all_stores_where_the_tree_is() {
    let mut receiver = receiver(40, 1, fixed());
    receiver.handle(Time(0), Input::Begin);
    assert_eq!(asked(&mut receiver, 0), [(0, 0), (0, 1), (0, 2)]);
    assert_eq!((asked(&mut receiver, 1_000).len(), asked(&mut receiver, 2_000).len()), (3, 3));
    // The third time in vain: the next one is for the source.
    assert_eq!(fresh(&mut receiver, 3_000), [3]);
    assert_eq!(receiver.trees[0].open.len(), 1);
    give(&mut receiver, 3_100, 3, 0, Decision::At(17));
    assert_eq!(asked(&mut receiver, 3_100), [(0, 17), (0, 18), (0, 19)]);
    (17..20).for_each(|sn| give(&mut receiver, 3_300, sn, 0, Decision::End));
    let rest = [(0, 0), (0, 1), (0, 2)];
    assert_eq!(asked(&mut receiver, 3_300), rest, "all that is missing, when no tree has a block");
}

#[test]
fn other_packets_that_come_show_that_a_tree_is_not_cut() {
    let mut receiver = receiver(40, 1, fixed());
    receiver.handle(Time(0), Input::Begin);
    asked(&mut receiver, 0);
    for turn in 1..9 {
        give(&mut receiver, turn * 1_000 - 1, turn, 0, Decision::Open);
        assert_eq!(fresh(&mut receiver, turn * 1_000 - 1), []);
        assert_eq!(fresh(&mut receiver, turn * 1_000), [], "packet 0 is lost each time");
    }
    assert!(!receiver.trees[0].cut_off);
}

/// Words of the source on a packet, and what is asked for next: past all stores or not.
#[test]
fn a_block_that_the_tree_has_left_is_left_and_a_false_word_means_nothing() {
    let answers = [
        (3, Decision::Next(2), alloc::vec![20], alloc::vec![]),
        (3, Decision::Next(40), alloc::vec![], alloc::vec![0, 1, 2]),
        (3, Decision::End, alloc::vec![], alloc::vec![0, 1, 2]),
        (3, Decision::At(1), alloc::vec![], alloc::vec![4, 5, 6]),
        (3, Decision::At(40), alloc::vec![], alloc::vec![4, 5, 6]),
        (3, Decision::At(u32::MAX), alloc::vec![], alloc::vec![4, 5, 6]),
    ];
    for (sn, decision, past_stores, plain) in answers {
        let mut receiver = receiver(40, 1, fixed());
        receiver.handle(Time(0), Input::Begin);
        asked(&mut receiver, 0);
        until_cut_off(&mut receiver, 0);
        give(&mut receiver, 3_100, sn, 0, decision);
        let mut again = receiver.clone();
        assert_eq!(fresh(&mut again, 3_100), past_stores, "{decision:?}");
        if past_stores.is_empty() {
            let asked: Vec<u64> = asked(&mut receiver, 3_100).iter().map(|entry| entry.1).collect();
            assert_eq!(asked, plain, "{decision:?}");
        }
    }
}

#[test]
fn one_that_gets_no_word_asks_as_always() {
    let mut receiver = receiver(40, 1, fixed());
    receiver.handle(Time(0), Input::Begin);
    asked(&mut receiver, 0);
    while !receiver.trees[0].cut_off {
        let now = receiver.deadline().unwrap().0;
        receiver.poll(Time(now));
    }
    // An answer that any store may have given says nothing; the second one will have to do.
    for (sn, next) in [(3, alloc::vec![(0, 4)]), (4, alloc::vec![(0, 5), (0, 6), (0, 7)])] {
        let mut now = receiver.deadline().unwrap().0;
        for past_stores in [alloc::vec![], alloc::vec![sn], alloc::vec![]] {
            assert_eq!(fresh(&mut receiver, now), past_stores, "at {now}");
            now = receiver.deadline().unwrap().0;
        }
        give(&mut receiver, now, sn, 0, Decision::Open);
        assert_eq!(asked(&mut receiver, now), next);
    }
}

/// A tree that has ended would wait for one that is cut off without an end.
#[test]
fn what_a_tree_that_is_cut_off_lacks_comes_by_another() {
    let mut receiver = receiver(20, 2, fixed());
    receiver.handle(Time(0), Input::Begin);
    asked(&mut receiver, 0);
    let mut now = 0;
    while receiver.packets() < 19 {
        now += 500;
        // Tree 1 is silent. Its last packet is asked for there.
        let open: Vec<u64> = receiver.trees[0].open.iter().map(|open| open.sn).collect();
        open.into_iter().for_each(|sn| give(&mut receiver, now, sn, 0, Decision::End));
        asked(&mut receiver, now);
        assert!(now < 20_000, "{} of 20", receiver.packets());
    }
    assert!(receiver.trees[1].cut_off && receiver.trees[0].block.is_none());
}

#[test]
fn what_others_overtake_holds_no_credit_and_is_asked_for_again_early() {
    let mut receiver = receiver(30, 1, RetryTime::Fixed(Duration(10_000)));
    receiver.config.overtaken = Some(3);
    receiver.handle(Time(0), Input::Begin);
    assert_eq!(asked(&mut receiver, 0), [(0, 0), (0, 1), (0, 2)]);
    // The first one does not come. As long as it may be on its way, two credits are left; then there are
    // three again.
    for (now, sn, next) in [(100, 1, 3), (110, 2, 4), (210, 3, 5), (220, 4, 6)] {
        give(&mut receiver, now, sn, 0, Decision::Open);
        assert_eq!(asked(&mut receiver, now), [(0, next)], "at {now}");
    }
    give(&mut receiver, 320, 5, 0, Decision::Open);
    assert_eq!(asked(&mut receiver, 320), [(0, 7), (0, 8)]);
    assert_eq!(receiver.deadline(), Some(Time(5_000)));
    assert_eq!(asked(&mut receiver, 4_999), []);
    assert_eq!(asked(&mut receiver, 5_000), [(0, 0)]);
    assert_eq!(receiver.counters().repeated, 1);
    // Once more it is given its time.
    assert_eq!(receiver.deadline(), Some(Time(10_220)));
}

/// However much is lost, it waits for no more than some times its credits.
#[test]
fn lost_packets_are_bounded() {
    let mut receiver = receiver(1_000, 1, RetryTime::Fixed(Duration(1_000_000)));
    receiver.config.overtaken = Some(1);
    receiver.handle(Time(0), Input::Begin);
    let mut waiting: Vec<u64> = asked(&mut receiver, 0).into_iter().map(|(_, sn)| sn).collect();
    // Later every fourth one never comes.
    let comes = |sn: &u64| *sn < 100 || sn % 4 != 1;
    for now in (100..100_000).step_by(100) {
        if let Some(at) = waiting.iter().position(comes) {
            give(&mut receiver, now, waiting.remove(at), 0, Decision::Open);
        }
        waiting.extend(asked(&mut receiver, now).into_iter().map(|(_, sn)| sn));
    }
    assert_eq!(waiting.len(), 3 * OPEN_PER_CREDIT);
}

#[test]
fn a_corrupt_packet_comes_again_from_the_source_and_completes_again() {
    let mut receiver = receiver(2, 1, fixed());
    receiver.handle(Time(0), Input::Begin);
    asked(&mut receiver, 0);
    give(&mut receiver, 10, 0, 0, Decision::Open);
    give(&mut receiver, 10, 1, 0, Decision::End);
    assert_eq!(outputs(&mut receiver, 10)[2], Output::Complete);
    receiver.handle(Time(20), Input::Corrupt { sns: 1..9 });
    let out = outputs(&mut receiver, 20);
    assert!(
        matches!(out[..], [Output::Ask(Interest { fresh: true, name: Name { sn: 1, .. }, .. })]),
        "{out:?}"
    );
    give(&mut receiver, 30, 1, 0, Decision::End);
    assert_eq!(outputs(&mut receiver, 30)[1], Output::Complete);
}

#[test]
fn a_packet_of_an_impossible_length_is_asked_for_past_the_stores() {
    let mut receiver = receiver(20, 1, fixed());
    receiver.handle(Time(0), Input::Begin);
    asked(&mut receiver, 0);
    let forged = Data { length: 999, ..data(1, 0, Decision::Open) };
    receiver.handle(Time(10), Input::Data(forged));
    let out = outputs(&mut receiver, 10);
    assert!(
        matches!(out[..], [Output::Ask(Interest { fresh: true, name: Name { sn: 1, .. }, .. })]),
        "{out:?}"
    );
    for wrong in [
        data(20, 0, Decision::Open),
        data(3, 7, Decision::Open),
        Data { name: Name::new(Handle(1), 0), ..data(0, 0, Decision::Open) },
    ] {
        receiver.handle(Time(20), Input::Data(wrong));
    }
    assert_eq!((receiver.counters().refused, receiver.packets()), (4, 0));
}

#[test]
fn a_silent_tree_is_reported_and_asked_ever_more_seldom() {
    let mut receiver = receiver(20, 1, RetryTime::Fixed(Duration::from_millis(20)));
    receiver.handle(Time(0), Input::Begin);
    outputs(&mut receiver, 0);
    let mut stalls = Vec::new();
    while let Some(Time(at)) = receiver.deadline()
        && at < 20_000_000_000
    {
        let stalled = outputs(&mut receiver, at).contains(&Output::Stalled { tree: 0 });
        stalls.extend(stalled.then_some(at));
    }
    assert_eq!(stalls.len(), 1);
    assert!((1_000_000_000..1_300_000_000).contains(&stalls[0]), "{stalls:?}");
    assert!(receiver.counters().repeated < 3 * 50, "{}", receiver.counters().repeated);
}

/// A link has become slower than the time to wait for an answer: without doubling, every packet would be
/// asked for again before it comes, and no round trip would ever be seen.
#[test]
fn a_way_that_has_become_slow_is_understood() {
    let millis = |ms: u64| ms * 1_000_000;
    let retry = RetryTime::Adaptive { initial: Duration::from_millis(100), least: Duration::from_millis(20) };
    let mut receiver = receiver(300, 1, retry);
    receiver.handle(Time(millis(1)), Input::Begin);
    let mut now = millis(1);
    // What was asked for comes a round trip later; a repeated interest gets no answer.
    let mut coming: VecDeque<(u64, u64)> = VecDeque::new();
    let mut repeated_when_slow = 0;
    while !receiver.is_complete() {
        let round_trip = if receiver.packets() < 100 { millis(2) } else { millis(53) };
        let before = receiver.counters().repeated;
        for (_, sn) in asked(&mut receiver, now) {
            if !coming.iter().any(|entry| entry.1 == sn) {
                coming.push_back((now + round_trip, sn));
            }
        }
        repeated_when_slow += receiver.counters().repeated - before;
        let next = coming.front().map_or(u64::MAX, |entry| entry.0);
        now = next.min(receiver.deadline().map_or(u64::MAX, |at| at.0)).max(now);
        while let Some(&(at, sn)) = coming.front().filter(|entry| entry.0 <= now) {
            coming.pop_front();
            give(&mut receiver, at, sn, 0, Decision::Open);
        }
    }
    assert!((1..40).contains(&repeated_when_slow), "{repeated_when_slow} of 200");
}

#[test]
fn a_tree_that_is_back_goes_on_with_its_block() {
    let mut receiver = receiver(40, 2, fixed());
    receiver.handle(Time(0), Input::Begin);
    asked(&mut receiver, 0);
    receiver.handle(Time(5), Input::Rerouted { tree: 1, route: None });
    assert_eq!(asked(&mut receiver, 5), []);
    let route = Route::new(&[Hop { port: 1, non_branching: false }]).unwrap();
    receiver.handle(Time(6), Input::Regained { tree: 1, route, block: 2 });
    // The source says where the tree is; what was open comes next, and then its block.
    assert_eq!(fresh(&mut receiver, 6), [20]);
    give(&mut receiver, 6, 20, 1, Decision::At(25));
    assert_eq!(asked(&mut receiver, 6), [(1, 10), (1, 11), (1, 12)]);
    (10..13).for_each(|sn| give(&mut receiver, 7, sn, 1, Decision::Open));
    assert_eq!(asked(&mut receiver, 7), [(1, 25), (1, 26), (1, 27)]);
    // A block that there is not, or a tree, means nothing.
    receiver.handle(Time(8), Input::Regained { tree: 1, route, block: 4 });
    receiver.handle(Time(8), Input::Regained { tree: 9, route, block: 0 });
    assert_eq!(fresh(&mut receiver, 8), [28], "its way is another one again");
}

#[test]
fn one_round_trip_is_taken_with_half_of_it_as_its_deviation() {
    let retry = RetryTime::Adaptive { initial: Duration(50_000), least: Duration(1) };
    let mut receiver = receiver(30, 1, retry);
    receiver.handle(Time(0), Input::Begin);
    asked(&mut receiver, 0);
    give(&mut receiver, 1_000, 0, 0, Decision::Open);
    asked(&mut receiver, 1_000);
    // RFC 6298: R, and four times R / 2; two packets are open since 0.
    assert_eq!(receiver.deadline(), Some(Time(3_000)));
}

#[test]
fn a_new_way_begins_with_the_time_that_round_trips_take() {
    let retry = RetryTime::Adaptive { initial: Duration::from_millis(10), least: Duration::from_millis(1) };
    let mut receiver = receiver(30, 1, retry);
    receiver.handle(Time(0), Input::Begin);
    asked(&mut receiver, 0);
    // Nothing comes: the time doubles.
    let mut now = Time(0);
    while receiver.trees[0].timer.doubled < 4 {
        now = receiver.deadline().unwrap();
        asked(&mut receiver, now.0);
    }
    let route = Route::new(&[Hop { port: 2, non_branching: false }]).unwrap();
    receiver.handle(now, Input::Rerouted { tree: 0, route: Some(route) });
    assert_eq!(asked(&mut receiver, now.0).len(), 1);
    // Asked again at once, which may be one more time in vain.
    let wait = receiver.deadline().unwrap().since(now);
    assert!(wait <= Duration::from_millis(20), "{wait}");
}

/// A packet of the old way that comes just before it would be asked for by the new one tells nothing of round
/// trips.
#[test]
fn an_answer_by_the_old_way_is_no_round_trip() {
    let retry = RetryTime::Adaptive { initial: Duration::from_millis(10), least: Duration::from_millis(1) };
    let mut receiver = receiver(30, 1, retry);
    let start = 3_600_000_000_000;
    receiver.handle(Time(start), Input::Begin);
    asked(&mut receiver, start);
    let route = Route::new(&[Hop { port: 2, non_branching: false }]).unwrap();
    receiver.handle(Time(start + 10), Input::Rerouted { tree: 0, route: Some(route) });
    give(&mut receiver, start + 20, 0, 0, Decision::Open);
    assert_eq!(outputs(&mut receiver, start + 20)[0], Output::Keep { sn: 0, round_trip: None });
}

/// A packet that has come from the source once may come from anywhere when it is requested again.
#[test]
fn what_came_fresh_is_fresh_no_more() {
    let mut receiver = receiver(20, 1, fixed());
    receiver.handle(Time(0), Input::Held { sns: 0..9 });
    receiver.handle(Time(0), Input::Begin);
    assert_eq!(asked(&mut receiver, 0), [(0, 9)]);
    let forged = Data { length: 999, ..data(9, 0, Decision::Open) };
    receiver.handle(Time(1), Input::Data(forged));
    let fresh = |receiver: &mut Receiver, now| {
        let ask = |output| match output {
            Output::Ask(interest) => Some((interest.name.sn, interest.fresh)),
            _ => None,
        };
        outputs(receiver, now).into_iter().filter_map(ask).collect::<Vec<_>>()
    };
    assert_eq!(fresh(&mut receiver, 1), [(9, true)]);
    give(&mut receiver, 2, 9, 0, Decision::Next(1));
    assert_eq!(fresh(&mut receiver, 2), [(10, false), (11, false), (12, false)]);
    // It is corrupt, comes again, and is what a tree that comes back asks for.
    receiver.handle(Time(3), Input::Corrupt { sns: 9..10 });
    give(&mut receiver, 4, 9, 0, Decision::Open);
    outputs(&mut receiver, 4);
    (10..13).for_each(|sn| give(&mut receiver, 5, sn, 0, Decision::Open));
    let route = Route::new(&[Hop { port: 1, non_branching: false }]).unwrap();
    receiver.handle(Time(5), Input::Regained { tree: 0, route, block: 0 });
    assert_eq!(fresh(&mut receiver, 5)[0], (9, false), "the last packet of a block that is there");
}

/// A round trip is a mean in which the last one counts for an eighth, its deviation one in which it counts
/// for a quarter. An answer is waited for as long as the mean and four deviations, within bounds; after each
/// loss for twice as long, and as before when a packet comes.
#[test]
fn round_trips_are_smoothed_and_doubled() {
    let (initial, least) = (Duration::from_millis(70), Duration::from_millis(2));
    let retry = RetryTime::Adaptive { initial, least };
    let micros = Duration::from_micros;
    let mut trips = RoundTrips::default();
    assert_eq!(trips.retry_time(retry), initial, "nothing is known");
    trips.seen(micros(8_000));
    assert_eq!((trips.smoothed_ns, trips.deviation_ns), (8_000_000, 4_000_000));
    assert_eq!(trips.retry_time(retry), micros(24_000));
    trips.seen(micros(16_000));
    // It differs by 8 ms.
    assert_eq!((trips.smoothed_ns, trips.deviation_ns), (9_000_000, 5_000_000));
    trips.seen(micros(1_000));
    assert_eq!((trips.smoothed_ns, trips.deviation_ns), (8_000_000, 5_750_000));
    assert_eq!(trips.retry_time(retry), micros(31_000));
    let mut now = Time(1_000_000_000);
    for factor in [2, 4, 8] {
        trips.expired(now, retry);
        assert_eq!(trips.retry_time(retry), micros(31_000 * factor));
        trips.expired(now, retry);
        assert_eq!(
            trips.retry_time(retry),
            micros(31_000 * factor),
            "once for all that were asked for together"
        );
        now += trips.retry_time(retry);
    }
    (0..40).for_each(|_| {
        trips.expired(now, retry);
        now += Duration::from_secs(100);
    });
    assert_eq!(trips.retry_time(retry), RETRY_MOST);
    trips.seen(micros(8_000));
    assert!(trips.retry_time(retry) < micros(31_000), "a packet came that was asked for once");
    (0..200).for_each(|_| trips.seen(micros(10)));
    assert_eq!(trips.retry_time(retry), least);
    trips.seen(Duration::ZERO);
    assert!(trips.smoothed_ns > 0, "zero stands for what is not known");
    assert_eq!(trips.retry_time(RetryTime::Fixed(micros(7))), micros(7));
}
