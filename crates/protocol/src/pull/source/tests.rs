use super::*;
use crate::pull::Hop;
use polycast_types::Duration;

const HANDLE: Handle = Handle(5);

/// Blocks of ten packets of 1000 bytes, w = 4, 100 Mb/s, tokens for one packet.
fn source(packets: u64, trees: u8) -> Source {
    Source::new(SourceConfig {
        transfer: HANDLE,
        blocks: Blocks::new(packets * 1000, 1000, 10_000).unwrap(),
        trees,
        credits: 4,
        rate: RateConfig {
            initial_bps: 100_000_000,
            least_bps: 1_000_000,
            most_bps: 1_000_000_000,
            increase_bps: 10_000_000,
            interval: Duration::from_millis(1),
            depth_bytes: 1000,
        },
        header_bytes: 0,
        decide_ahead: 1,
        waiting_max: 50,
        chance: false,
    })
}

fn interest(sn: u64, tree: u8) -> Interest {
    let route = Route::new(&[Hop { port: 1, non_branching: false }]).unwrap();
    Interest { name: Name::new(HANDLE, sn), route, tree, fresh: false }
}

fn ask(source: &mut Source, now: u64, port: u8, sn: u64) {
    source.handle(Time(now), Input::Interest { port, interest: interest(sn, 0) });
}

/// Polls at all deadlines until then, and gives what was sent with its time.
fn sent(source: &mut Source, from: u64, until: u64) -> Vec<(u64, u8, Data)> {
    let mut now = from;
    let mut sent = Vec::new();
    loop {
        while let Some(Output::Send { port, data }) = source.poll(Time(now)) {
            sent.push((now, port, data));
        }
        match source.deadline() {
            Some(Time(at)) if at <= until => now = at.max(now),
            _ => return sent,
        }
    }
}

fn sns(sent: &[(u64, u8, Data)]) -> Vec<u64> {
    sent.iter().map(|(_, _, data)| data.name.sn).collect()
}

#[test]
fn packets_leave_at_the_rate_of_the_tree() {
    let mut source = source(10, 1);
    (0..4).for_each(|sn| ask(&mut source, 0, 0, sn));
    let times: Vec<_> = sent(&mut source, 0, 900_000).iter().map(|entry| entry.0).collect();
    // 1000 bytes at 100 Mb/s take 80 us; the first finds its tokens there.
    assert_eq!(times, [0, 80_000, 160_000, 240_000]);
}

#[test]
fn a_port_has_its_own_tokens_at_the_same_rate() {
    let mut source = source(10, 1);
    for port in [0, 1] {
        (0..2).for_each(|sn| ask(&mut source, 0, port, sn));
    }
    let times: Vec<_> = sent(&mut source, 0, 900_000).iter().map(|entry| (entry.0, entry.1)).collect();
    assert_eq!(times, [(0, 0), (0, 1), (80_000, 0), (80_000, 1)]);
}

#[test]
fn a_duplicate_by_the_same_port_halves_the_rate_and_is_marked() {
    let mut source = source(10, 1);
    ask(&mut source, 0, 0, 3);
    ask(&mut source, 10, 1, 3);
    sent(&mut source, 10, 20);
    assert_eq!((source.counters(0).duplicates, source.rate_bps(0)), (0, 100_000_000), "another port");
    ask(&mut source, 100_000, 0, 3);
    assert_eq!((source.counters(0).duplicates, source.rate_bps(0)), (1, 50_000_000));
    let again = sent(&mut source, 100_000, 400_000);
    assert!(again.len() == 1 && again[0].2.again);
}

#[test]
fn an_interest_for_what_still_waits_is_no_duplicate() {
    let mut source = source(10, 1);
    for sn in [0, 1, 1, 1] {
        ask(&mut source, 0, 0, sn);
    }
    assert_eq!(sns(&sent(&mut source, 0, 900_000)), [0, 1]);
    assert_eq!((source.counters(0).duplicates, source.rate_bps(0)), (0, 100_000_000));
}

#[test]
fn duplicates_within_w_of_the_last_signal_are_one_signal() {
    let mut source = source(100, 1);
    let mut now = 0;
    for sn in 0..20 {
        ask(&mut source, now, 0, sn);
        now += 80_000;
        sent(&mut source, now, now);
    }
    let before = source.rate_bps(0);
    for (turn, (sn, signals)) in (0..).zip([(3, 1), (4, 1), (5, 1), (6, 1), (7, 2), (8, 2), (4, 2), (3, 3)]) {
        // Another receiver goes on, so that the rate does matter.
        ask(&mut source, now, 0, 20 + turn);
        sent(&mut source, now, now + 1_000_000);
        ask(&mut source, now + 1_000_000, 0, sn);
        now += 2_000_000;
        sent(&mut source, now - 1_000_000, now);
        assert_eq!(source.counters(0).signals, signals, "after {sn}");
    }
    assert!(source.rate_bps(0) < before / 4);
}

#[test]
fn who_alone_catches_up_does_not_lower_the_rate() {
    let mut source = source(100, 1);
    (0..40).for_each(|sn| ask(&mut source, 0, 0, sn));
    let all = sent(&mut source, 0, 100_000_000);
    let mut now = all.last().unwrap().0 + 80_000;
    let before = source.rate_bps(0);
    for sn in 0..40 {
        ask(&mut source, now, 0, sn);
        now += 80_000;
        sent(&mut source, now, now);
    }
    assert_eq!((source.counters(0).duplicates, source.counters(0).signals), (40, 1));
    assert!(source.rate_bps(0) >= before / 2);
}

#[test]
fn retransmissions_go_before_new_packets() {
    let mut source = source(100, 1);
    ask(&mut source, 0, 0, 0);
    sent(&mut source, 0, 1);
    (1..5).for_each(|sn| ask(&mut source, 1000, 0, sn));
    ask(&mut source, 2000, 0, 0);
    assert_eq!(sns(&sent(&mut source, 2000, 2_000_000)), [0, 1, 2, 3, 4]);
}

#[test]
fn a_fresh_interest_is_answered_and_is_no_congestion() {
    let mut source = source(10, 1);
    ask(&mut source, 0, 0, 0);
    sent(&mut source, 0, 1);
    let fresh = Interest { fresh: true, ..interest(0, 0) };
    source.handle(Time(100_000), Input::Interest { port: 0, interest: fresh });
    assert_eq!(sent(&mut source, 100_000, 200_000).len(), 1);
    assert_eq!((source.counters(0).signals, source.rate_bps(0)), (0, 100_000_000));
}

/// An answer to one that was cut off: where its port's others are, or that the tree has ended.
#[test]
fn a_repeat_past_all_stores_says_where_the_tree_is() {
    let mut source = source(40, 2);
    let mut now = 0;
    let mut decision = |source: &mut Source, port, tree, sn, fresh| {
        now += 1_000_000;
        let asked = Interest { fresh, ..interest(sn, tree) };
        source.handle(Time(now), Input::Interest { port, interest: asked });
        sent(source, now, now + 900_000)[0].2.decision
    };
    for sn in [0, 1, 2, 6, 3] {
        assert_eq!(decision(&mut source, 0, 0, sn, true), Decision::Open, "for the first time");
    }
    assert_eq!(decision(&mut source, 0, 0, 1, false), Decision::Open, "not past all stores");
    assert_eq!(decision(&mut source, 0, 0, 1, true), Decision::At(6));
    // Nothing else has left by this port.
    decision(&mut source, 1, 0, 5, true);
    assert_eq!(decision(&mut source, 1, 0, 5, true), Decision::At(5));
    assert_eq!(decision(&mut source, 0, 0, 9, false), Decision::Next(2));
    assert_eq!(
        decision(&mut source, 0, 0, 1, true),
        Decision::At(20),
        "nothing of its block was asked for yet"
    );
    assert_eq!(decision(&mut source, 0, 0, 9, true), Decision::Next(2), "what was decided stays");
    decision(&mut source, 0, 0, 23, false);
    // What another tree's block lacks is no place of this one.
    decision(&mut source, 0, 0, 15, false);
    assert_eq!(decision(&mut source, 0, 0, 15, true), Decision::At(23));
    source.handle(Time(100_000_000), Input::TreeGone { tree: 0 });
    assert_eq!(source.block(0), None);
}

#[test]
fn the_last_packet_of_a_block_says_which_block_follows() {
    let mut source = source(35, 2);
    let mut decision = |tree, sn, now| {
        source.handle(Time(now), Input::Interest { port: tree, interest: interest(sn, tree) });
        sent(&mut source, now, now + 1_000_000)[0].2.decision
    };
    // Blocks 0 and 1 are the trees' first; the tree that ends first takes block 2.
    assert_eq!(decision(1, 18, 0), Decision::Open);
    assert_eq!(decision(1, 19, 2_000_000), Decision::Next(2));
    assert_eq!(decision(0, 9, 4_000_000), Decision::Next(3));
    assert_eq!(decision(1, 19, 6_000_000), Decision::Next(2), "what was decided stays");
    assert_eq!(decision(1, 29, 8_000_000), Decision::End);
    assert_eq!(decision(0, 34, 10_000_000), Decision::End);
}

#[test]
fn a_source_that_has_restarted_takes_up_the_blocks_it_is_asked_for() {
    let mut source = source(50, 1);
    let mut decision = |sn, now| {
        ask(&mut source, now, 0, sn);
        sent(&mut source, now, now + 1_000_000)[0].2.decision
    };
    assert_eq!(
        decision(29, 0),
        Decision::Next(1),
        "block 2 is taken out, and block 1 is the next without a tree"
    );
    assert_eq!(decision(19, 2_000_000), Decision::Next(3));
}

#[test]
fn the_block_of_a_tree_that_is_gone_goes_to_another() {
    let mut source = source(30, 2);
    source.handle(Time(0), Input::TreeGone { tree: 1 });
    source.handle(Time(0), Input::TreeGone { tree: 1 });
    source.handle(Time(0), Input::TreeGone { tree: 77 });
    ask(&mut source, 0, 0, 9);
    assert_eq!(sent(&mut source, 0, 1)[0].2.decision, Decision::Next(1));
}

#[test]
fn nonsense_is_refused_and_what_waits_is_bounded() {
    let mut source = source(100, 1);
    let wrong = [
        Interest { name: Name::new(Handle(6), 0), ..interest(0, 0) },
        interest(100, 0),
        interest(u64::MAX, 0),
        interest(0, 1),
        interest(0, 255),
    ];
    for interest in wrong {
        source.handle(Time(0), Input::Interest { port: 0, interest });
    }
    assert_eq!(source.refused(), 5);
    (0..60).for_each(|sn| ask(&mut source, 0, 0, sn));
    assert_eq!(source.refused(), 15, "50 may wait");
    assert_eq!(sent(&mut source, 0, 100_000_000).len(), 50);
    ask(&mut source, 100_000_000, 0, 55);
    assert_eq!(source.counters(0).duplicates, 0, "what was refused was not asked");
}

#[test]
fn a_port_without_room_waits_alone() {
    let mut source = source(20, 1);
    for port in [0, 1] {
        (0..2).for_each(|sn| ask(&mut source, 0, port, sn));
    }
    source.handle(Time(0), Input::Port { port: 1, open: false });
    let ports: Vec<_> = sent(&mut source, 0, 2_000_000).iter().map(|entry| entry.1).collect();
    assert_eq!(ports, [0, 0]);
    assert_eq!(source.deadline(), None, "there is nothing to do before the port has room");
    source.handle(Time(2_000_000), Input::Port { port: 1, open: true });
    let ports: Vec<_> = sent(&mut source, 2_000_000, 4_000_000).iter().map(|entry| entry.1).collect();
    assert_eq!(ports, [1, 1]);
}

#[test]
fn a_tree_that_is_back_carries_the_next_block() {
    let mut source = source(40, 2);
    source.handle(Time(0), Input::TreeBack { tree: 1 });
    assert_eq!(source.block(1), Some(1), "it was not gone");
    source.handle(Time(0), Input::TreeGone { tree: 1 });
    assert_eq!(source.block(1), None);
    ask(&mut source, 0, 0, 9);
    assert_eq!(sent(&mut source, 0, 1)[0].2.decision, Decision::Next(1));
    source.handle(Time(1), Input::TreeBack { tree: 1 });
    source.handle(Time(1), Input::TreeBack { tree: 77 });
    assert_eq!(source.block(1), Some(2), "block 1 has gone to the other tree");
    source.handle(Time(1), Input::Interest { port: 1, interest: interest(29, 1) });
    assert_eq!(sent(&mut source, 1, 1)[0].2.decision, Decision::Next(3));
}

#[test]
fn what_waits_in_a_tree_that_is_gone_is_not_sent() {
    let mut source = source(30, 2);
    (0..5).for_each(|sn| ask(&mut source, 0, 0, sn));
    source.handle(Time(0), Input::Interest { port: 0, interest: interest(12, 1) });
    assert_eq!(sns(&sent(&mut source, 0, 0)), [0, 12]);
    source.handle(Time(0), Input::TreeGone { tree: 0 });
    assert_eq!(sent(&mut source, 0, 100_000_000), [], "the tree leads to no receiver");
    assert_eq!(source.deadline(), None);
}

#[test]
fn late_interests_give_no_block_to_a_tree_that_is_gone() {
    let mut source = source(40, 2);
    source.handle(Time(0), Input::TreeGone { tree: 1 });
    source.handle(Time(1), Input::Interest { port: 0, interest: interest(19, 1) });
    assert_eq!(sent(&mut source, 1, 1)[0].2.decision, Decision::Open);
    assert_eq!(source.block(1), None);
    ask(&mut source, 1_000_000, 0, 9);
    assert_eq!(
        sent(&mut source, 1_000_000, 1_000_001)[0].2.decision,
        Decision::Next(1),
        "nothing is left out"
    );
}

#[test]
fn an_interest_that_comes_again_by_another_way_is_answered_by_that() {
    let mut source = source(10, 1);
    (0..3).for_each(|sn| ask(&mut source, 0, 0, sn));
    let route =
        Route::new(&[Hop { port: 7, non_branching: false }, Hop { port: 3, non_branching: false }]).unwrap();
    source.handle(Time(5), Input::Interest { port: 0, interest: Interest { route, ..interest(2, 0) } });
    let sent = sent(&mut source, 5, 900_000);
    let ways: Vec<_> = sent.iter().map(|(_, _, data)| (data.name.sn, data.route.bytes().to_vec())).collect();
    assert_eq!(ways, [(0, [1].to_vec()), (1, [1].to_vec()), (2, [7, 3].to_vec())]);
}

/// With four credits a repeat is chance where round trips are longer than the shortest by no more than two
/// packets take, here 16 us, or as long again.
#[test]
fn a_repeat_is_chance_where_no_queue_has_grown() {
    for (later_ns, signals) in [(2_500, 0), (5_000, 0), (6_000, 0), (6_400, 0), (6_600, 1), (8_000, 1)] {
        let mut source = source(1_000, 1);
        source.config.chance = true;
        source.config.rate =
            RateConfig { initial_bps: 1_000_000_000, depth_bytes: 1_000_000, ..source.config.rate };
        source.trees[0].rate = TreeRate::new(source.config.rate);
        // Each packet is sent when it is asked for, so that a round trip takes four of these steps: 10 us at
        // first.
        let mut now = 0;
        for sn in 0..200 {
            now += if sn < 100 { 2_500 } else { later_ns };
            ask(&mut source, now, 0, sn);
            let sent: Vec<Output> = core::iter::from_fn(|| source.poll(Time(now))).collect();
            assert!(matches!(sent[..], [Output::Send { .. }]), "{sent:?}");
        }
        ask(&mut source, now, 0, 3);
        let counted = source.counters(0);
        assert_eq!((counted.duplicates, counted.signals), (1, signals), "{} ns", later_ns * 4);
    }
}

/// One that asks for the same without an end does not starve the others: of 257 packets one was not sent
/// before. It takes half of the places.
#[test]
fn one_that_asks_again_and_again_does_not_starve_the_others() {
    let mut source = source(400, 1);
    (0..40).for_each(|sn| ask(&mut source, 0, 0, sn));
    let mut now = 10_000_000;
    assert_eq!(sent(&mut source, 0, now).len(), 40);
    let (mut asked, mut firsts, mut repeats) = (40, 0, 0);
    while firsts < 5 {
        for again in 0..40 {
            ask(&mut source, now, 0, again);
        }
        // Honest receivers have four credits.
        while asked < 44 + firsts {
            ask(&mut source, now, 0, asked);
            asked += 1;
        }
        let lane = &source.trees[0].lanes[0];
        assert!(lane.again.len() <= 25, "{} of 50 places", lane.again.len());
        for (_, _, data) in sent(&mut source, now, now + 1_000_000) {
            if data.again { repeats += 1 } else { firsts += 1 }
        }
        now += 1_000_000;
        assert!(repeats <= 257 * (firsts + 1), "{firsts} for the first time, {repeats} again");
    }
}
