//! Members of the chain that change places, and those that have to stay where they are.

use super::*;

/// A change of places has to prove itself within 120 ms from the first that comes: if the one that came forward gets no 15 % more, the rates that were
/// known before count again, and the next change waits for a second, then for two, and so on.
#[test]
fn changes_of_places_in_vain_become_rarer() {
    for (gets, in_vain) in [(114, true), (115, false), (50, true)] {
        let mut sender = chained(&[9_000, 20, 20, 0]);
        peer(&mut sender, 1).chain_rate = Some(123);
        let mut now = BEGAN;
        for round in 1..12u32 {
            // 100 kB in the 100 ms before.
            let has = sender.peers[&PeerId(2)].verified_bytes;
            (peer(&mut sender, 2).held_from, peer(&mut sender, 2).verified_at) =
                ((has - 100_000, now), now + MS * 100);
            now += MS * 100;
            peer(&mut sender, 1).verified_bytes = has;
            peer(&mut sender, 3).verified_bytes = has;
            sender.pass_upstream(now, PeerId(2), PeerId(1));
            assert_eq!(links_at(&mut sender, now), [(2, Some(0)), (1, Some(3))]);
            assert_eq!(sender.peers[&PeerId(1)].chain_rate, Some(123), "it has to prove itself");
            // Its first report comes after 30 ms, and the next 120 ms later.
            got(&mut sender, now + MS * 30, 2, 1);
            assert_eq!(look(&mut sender, now + MS * 30), []);
            peer(&mut sender, 2).has_verified(now + MS * 149, has + 10_001);
            assert_eq!(look(&mut sender, now + MS * 149), []);
            assert!(sender.slow.places.swap.is_some());
            peer(&mut sender, 2).has_verified(now + MS * 150, has + 10_000 + 1_200 * gets);
            assert_eq!(look(&mut sender, now + MS * 150), []);
            // What comes first may be the rest of what came before: it has four times the longest pause, which was 119 ms.
            assert_eq!(sender.slow.places.swap.is_some(), in_vain);
            if !in_vain {
                assert_eq!(sender.slow.places.swaps_in_vain, 0);
                assert_eq!(sender.peers[&PeerId(1)].chain_rate, Some(1_000_000));
                break;
            }
            let mut waited_ms = 150;
            while sender.slow.places.swap.is_some() {
                waited_ms += 60;
                let has = sender.peers[&PeerId(2)].verified_bytes;
                peer(&mut sender, 2).has_verified(now + MS * waited_ms, has + 600 * gets);
                assert_eq!(look(&mut sender, now + MS * waited_ms), []);
            }
            assert!((476..476 + 180).contains(&waited_ms), "{waited_ms}");
            now += MS * waited_ms;
            assert_eq!(sender.peers[&PeerId(1)].chain_rate, Some(123));
            let wait = Duration::from_millis(500 << round.min(6));
            assert_eq!((sender.slow.places.swaps_in_vain, sender.slow.places.swap_at), (round, now + wait));
            let mut back: Vec<Link> = sender.chain.remove(PeerId(1)).into_iter().collect();
            back.extend(sender.chain.insert(PeerId(1), |member| member == PeerId(2)));
            sender.outputs.extend(back.into_iter().map(Output::Chain));
            links_at(&mut sender, now);
            sender.pass_upstream(now + (wait - MS), PeerId(2), PeerId(1));
            assert_eq!(links_at(&mut sender, now), [], "the next one has to wait");
            now += wait;
        }
    }
}

/// If the one that lost its place gets nothing where it stands now, since those before it have less, it goes before these.
#[test]
fn one_that_lost_its_place_in_vain_and_starves_goes_back() {
    for (last, after_ms, back) in
        [(20, 2_000, false), (12, 2_000, false), (11, 2_000, true), (11, 1_999, false)]
    {
        let mut sender = chained(&[9_000, 20, 20, 20, last]);
        peer(&mut sender, 1).chain_rate = Some(123);
        // None lacks more than what came in a second.
        peer(&mut sender, 2).held_from = (0, Time(BEGAN.0 - 500_000_000));
        sender.pass_upstream(BEGAN, PeerId(2), PeerId(1));
        assert_eq!(links(&mut sender), [(2, Some(0)), (1, Some(4))]);
        // Nothing comes to the one that came forward.
        let told: &[_] = if back { &[(1, Some(3)), (4, Some(1))] } else { &[] };
        let now = BEGAN + MS * after_ms;
        assert_eq!(look(&mut sender, now), told, "{last}");
        assert_eq!(sender.peers[&PeerId(1)].chain_rate, Some(123));
    }
    // It has gone to the tail meanwhile, or away: the other one stays where it is, and what was known of it counts.
    for goes in [false, true] {
        let mut sender = chained(&[9_000, 20, 20, 0]);
        sender.pass_upstream(BEGAN, PeerId(2), PeerId(1));
        if goes {
            sender.settle(PeerId(2), Some(Why::WentAway));
        } else {
            sender.chain.demote(PeerId(2));
        }
        sender.outputs.clear();
        assert_eq!(look(&mut sender, BEGAN + MS * 2_000), []);
        assert_eq!(sender.peers[&PeerId(1)].chain_rate, None);
    }
}

/// One that gives its place to another one does not come behind those that have far less: it could get nothing from them.
#[test]
fn one_that_gives_way_stays_before_those_that_lack_much() {
    let mut sender = chained(&[9_000, 9_000, 500, 0]);
    sender.pass_upstream(BEGAN, PeerId(1), PeerId(0));
    assert_eq!(links(&mut sender), [(1, None), (0, Some(1)), (2, Some(0))]);
}

/// What it gets in its new place says nothing of the old one where nothing had come before.
#[test]
fn one_from_which_nothing_had_come_yet_is_not_called_slow() {
    for begins in [true, false] {
        let mut sender = chained(&[9_000, 20, 20]);
        sender.slow.places.swaps_in_vain = 3;
        peer(&mut sender, 2).fetching.as_mut().unwrap().from_bytes = if begins { 200_000 } else { 0 };
        sender.pass_upstream(BEGAN, PeerId(2), PeerId(1));
        links(&mut sender);
        for step in 1..=10 {
            got(&mut sender, BEGAN + MS * (50 * step), 2, 5);
            look(&mut sender, BEGAN + MS * (50 * step));
        }
        assert!(sender.slow.places.swap.is_none());
        let expected = if begins { (3, None) } else { (0, Some(0)) };
        assert_eq!((sender.slow.places.swaps_in_vain, sender.peers[&PeerId(1)].chain_rate), expected);
    }
}

/// It comes behind the one that takes its place, also where that one lacks some that is on its way, and then gets nothing.
#[test]
fn one_that_gives_way_comes_behind_the_other() {
    let mut sender = chained(&[90, 60]);
    peer(&mut sender, 1).gains = [200_000, 200_000];
    peer(&mut sender, 0).verified_at = BEGAN + MS;
    for step in 1..=600 {
        sender.check_chain(BEGAN + MS * (2 * step), PeerId(1));
    }
    assert_eq!(links(&mut sender), [(1, None), (0, Some(1))]);
}

/// Slower at 60 ms of round trip: the rest of what came before comes first, and then nothing while it connects.
#[test]
fn a_change_is_not_judged_by_what_came_before_it() {
    let mut sender = chained(&[9_000, 20, 20, 20]);
    peer(&mut sender, 2).held_from = (100_000, Time(BEGAN.0 - 100_000_000));
    sender.pass_upstream(BEGAN, PeerId(2), PeerId(1));
    links(&mut sender);
    let mut has = 200_000;
    for (after_ms, bytes) in [(30, 50_000), (260, 110_000), (310, 150_000), (360, 150_000), (380, 60_000)] {
        has += bytes;
        peer(&mut sender, 2).has_verified(BEGAN + MS * after_ms, has);
        assert_eq!(look(&mut sender, BEGAN + MS * after_ms), []);
    }
    assert_eq!((sender.slow.places.swaps_in_vain, sender.slow.places.swap.is_none()), (0, true));
}

/// One that has more than its upstream comes before it, and stays there if it gets on. If it is known to be slower than that one, it waits, where
/// that one has as much in a second.
#[test]
fn one_that_has_more_comes_before_one_that_came_later() {
    for (own, has, passes) in [
        (None, 100, true),
        (Some(500_000), 100, true),
        (Some(499_999), 100, false),
        (Some(499_999), 101, true),
    ] {
        let mut sender = chained(&[9_000, 50, has]);
        peer(&mut sender, 2).chain_rate = own;
        // 50 groups in a second.
        peer(&mut sender, 1).fetching.as_mut().unwrap().since = BEGAN;
        let mut now = BEGAN + MS * 1_000;
        sender.pass_upstream(now, PeerId(2), PeerId(1));
        let told: &[_] = if passes { &[(2, Some(0)), (1, Some(2))] } else { &[] };
        assert_eq!(links_at(&mut sender, now), told, "{own:?}");
        for _ in 0..20 {
            now += MS * 50;
            got(&mut sender, now, 2, 2);
            got(&mut sender, now, 1, 2);
            assert_eq!(look(&mut sender, now), []);
        }
        assert_eq!(sender.slow.places.swaps_in_vain, 0);
    }
}

/// Members that are as fast as each other change places now and then, in vain. None loses anything by that, also where others come later.
#[test]
fn equals_are_not_starved_behind_those_that_come_later() {
    for joins_ms in [500, 600, 900, 2_000, 4_000] {
        let mut sender = chained(&[0, 0]);
        let mut now = BEGAN;
        let mut starved = Duration::ZERO;
        for step in 1..=4_000u64 {
            now += MS * 2;
            if step * 2 == joins_ms {
                sender.peers.insert(PeerId(2), Peer::new(now, 1_000, RangeSet::new()));
                sender.move_to_chain(now, PeerId(2));
            }
            for id in 0..sender.peers.len() as u32 {
                // Reports of 24 groups, each at its own time, as far as the one before has them.
                if step % 25 == u64::from(id) * 8 {
                    let upstream =
                        sender.chain.upstream(PeerId(id)).map(|up| sender.peers[&up].verified_bytes);
                    let has = sender.peers[&PeerId(id)].verified_bytes;
                    let room = upstream.map_or(u64::MAX, |up| up + 240_000);
                    let bytes = (has + 240_000).min(room).max(has);
                    peer(&mut sender, id).has_verified(now, bytes);
                    peer(&mut sender, id).heard_at = now;
                    if id < 2 && bytes == has {
                        starved = starved + MS * 50;
                    }
                }
                sender.check_chain(now, PeerId(id));
                links_at(&mut sender, now);
            }
            look_at_times(&mut sender, now);
        }
        assert!(starved <= MS * 1_500, "{joins_ms}: the first two got nothing for {starved}");
    }
}

/// Many that came later stay behind those before them: they are tried one at a time, and rarely.
#[test]
fn those_that_came_later_are_rarely_tried() {
    let mut sender = chained(&[2_000, 1_500, 1_000, 500, 0]);
    for peer in sender.peers.values_mut() {
        peer.chained = Some((BEGAN, peer.verified_bytes));
        peer.fetching = peer.fetching.map(|old| Fetching::new(BEGAN, old.upstream, peer.verified_bytes));
    }
    let (mut now, mut trials) = (BEGAN, 0);
    let is_tried = |sender: &Sender| sender.peers.values().filter(|peer| peer.at_source.is_some()).count();
    for _ in 0..600 {
        now += MS * 50;
        for id in 0..5 {
            let has = sender.peers[&PeerId(id)].verified_bytes;
            peer(&mut sender, id).has_verified(now, has + 20_000);
            peer(&mut sender, id).heard_at = now;
        }
        let before = is_tried(&sender);
        look_at_times(&mut sender, now);
        assert!(is_tried(&sender) <= 1);
        trials += is_tried(&sender).saturating_sub(before);
    }
    assert!((1..=5).contains(&trials), "{trials}");
}

/// What a member held when it joined has not come in the chain: it does not make it close to its upstream.
#[test]
fn what_was_held_is_not_on_its_way() {
    let mut sender = chained(&[5_000, 0]);
    peer(&mut sender, 1).has_verified(BEGAN, 3_000 * 10_000);
    for step in 1..=120 {
        let now = BEGAN + MS * (2 * step);
        if step % 25 == 0 {
            let has = sender.peers[&PeerId(0)].verified_bytes;
            peer(&mut sender, 0).has_verified(now, has + 240_000);
        }
        sender.check_chain(now, PeerId(1));
    }
    assert_eq!(links(&mut sender), []);
}
