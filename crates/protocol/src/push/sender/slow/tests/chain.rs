//! The laws of the chain: places, trials at the source, and which member is named.

use super::*;

/// Members of the chain in the order of their numbers, each of which has verified so many groups.
fn chained(groups: &[u64]) -> Sender {
    let mut sender = sender(groups.len() as u32, 1_000);
    sender.started_at = Some(START);
    for (id, groups) in (0..).zip(groups) {
        sender.move_to_chain(START, PeerId(id));
        let peer = peer(&mut sender, id);
        (peer.verified_bytes, peer.verified_at, peer.held_from) = (groups * 10_000, BEGAN, groups * 10_000);
    }
    sender.outputs.clear();
    sender
}

fn links(sender: &mut Sender) -> Vec<(u32, Option<u32>)> {
    let link = |output| match output {
        Output::Chain(link) => (link.peer.0, link.upstream.map(|up| up.0)),
        other => panic!("{other:?}"),
    };
    sender.outputs.drain(..).map(link).collect()
}

/// One that gets nothing for one and a half seconds, while its upstream has more, goes to the tail.
#[test]
fn a_member_that_gets_nothing_goes_to_the_tail() {
    for (groups, stalls) in [([50, 49, 0], true), ([50, 50, 0], false), ([50, 51, 0], false)] {
        for (after_ms, is_late) in [(1_499, false), (1_500, true)] {
            let mut sender = chained(&groups);
            let now = BEGAN + MS * after_ms;
            sender.check_chain(now, PeerId(1));
            let expected: &[_] = if stalls && is_late { &[(2, Some(0)), (1, Some(2))] } else { &[] };
            assert_eq!(links(&mut sender), expected, "{groups:?} after {after_ms} ms");
            if is_late {
                // From there it has as long again.
                sender.check_chain(now + MS * 1_499, PeerId(1));
                assert_eq!(links(&mut sender), []);
            }
        }
    }
}

/// One that has all but two groups of what its upstream has, while what comes before that has eight more, is held by its upstream: after
/// 120 ms it takes its place, or after a second where both were measured and the upstream's path is the faster one.
#[test]
fn a_member_that_its_upstream_holds_takes_its_place() {
    for (groups, held) in [
        ([28, 20, 18], true),
        ([28, 20, 20], true),
        ([28, 20, 17], false),
        ([27, 20, 18], false),
        ([100, 20, 19], true),
        ([100, 100, 99], false),
    ] {
        for (rates, patience_ms) in [
            ((None, None), 120),
            ((Some(9), None), 120),
            ((Some(9), Some(8)), 1_000),
            ((Some(8), Some(8)), 120),
            ((Some(8), Some(9)), 120),
        ] {
            let mut sender = chained(&groups);
            (peer(&mut sender, 1).chain_rate, peer(&mut sender, 2).chain_rate) = rates;
            let mut looks = 0;
            while sender.outputs.is_empty() && looks < 600 {
                looks += 1;
                sender.check_chain(BEGAN + MS * (2 * looks), PeerId(2));
            }
            // Every look counts for 2 ms.
            let expected = if held { patience_ms / 2 } else { 600 };
            assert_eq!(looks, expected, "{groups:?}, {rates:?}");
            if held {
                assert_eq!(links(&mut sender), [(2, Some(0)), (1, Some(2))]);
                assert_eq!(sender.peers[&PeerId(1)].chain_rate, Some(0), "what the one behind it got");
            }
        }
    }
}

/// Where little is left, which takes less than a second to come, no place is changed; and one that is held only now and then has all its time anew.
#[test]
fn places_are_not_changed_for_little_or_for_a_moment() {
    // 10,000 bytes come in 120 ms: 83,333 a second.
    for (left, changes) in [(83_000, false), (84_000, true)] {
        let mut sender = chained(&[1, 1, 1]);
        let whole = sender.config.geometry.object_len;
        for (id, less) in [(0, 0), (1, left), (2, left + 10_000)] {
            let peer = peer(&mut sender, id);
            (peer.verified_bytes, peer.held_from) = (whole - less, whole - less);
        }
        for look in 1..=60 {
            if look == 2 {
                peer(&mut sender, 2).verified_bytes += 10_000;
            }
            sender.check_chain(BEGAN + MS * (2 * look), PeerId(2));
        }
        assert_eq!(!links(&mut sender).is_empty(), changes, "{left} bytes are left");
    }
    let mut sender = chained(&[100, 20, 20]);
    for look in 1..=300 {
        // Every hundredth of a second its upstream has more than it.
        peer(&mut sender, 1).verified_bytes = if look % 50 == 0 { 230_000 } else { 200_000 };
        sender.check_chain(BEGAN + MS * (2 * look), PeerId(2));
    }
    assert_eq!(links(&mut sender), []);
}

/// A change of places has to prove itself within 120 ms: if the one that came forward gets no 15 % more, the next change waits for a second, then
/// for two, and so on.
#[test]
fn changes_of_places_in_vain_become_rarer() {
    for (percent, in_vain) in [(114, true), (116, false), (50, true)] {
        let mut sender = chained(&[100, 20, 20]);
        let mut now = BEGAN;
        for round in 1..12u32 {
            sender.slow.swap =
                Some(Swap { peer: PeerId(0), since: now, verified_bytes: 5_000, rate: 10_000 });
            sender.pass_upstream(now + MS * 119, PeerId(2), PeerId(1));
            assert_eq!(links(&mut sender), [], "it has not had its time");
            peer(&mut sender, 0).verified_bytes = 5_000 + 20 * percent;
            now += MS * 200;
            let (upstream, id) =
                if sender.chain.upstream(PeerId(2)) == Some(PeerId(1)) { (1, 2) } else { (2, 1) };
            sender.pass_upstream(now, PeerId(id), PeerId(upstream));
            assert_eq!(links(&mut sender).is_empty(), in_vain);
            let wait = Duration::from_millis(500 << round.min(6));
            if in_vain {
                assert_eq!((sender.slow.swaps_in_vain, sender.slow.swap_at), (round, now + wait));
                sender.pass_upstream(now + (wait - MS), PeerId(id), PeerId(upstream));
                assert_eq!(links(&mut sender), [], "the next one has to wait");
                now += wait;
                sender.pass_upstream(now, PeerId(id), PeerId(upstream));
                assert_eq!(links(&mut sender).len(), 2);
            } else {
                assert_eq!(sender.slow.swaps_in_vain, 0);
            }
            let swap = sender.slow.swap.unwrap();
            assert_eq!((swap.peer, swap.since, swap.verified_bytes), (PeerId(id), now, 200_000));
        }
    }
}

/// A member fetches from the source after a second in the chain, if its upstream has eight groups more than it, and it has got half of what one
/// half of the others have, or less, where those behind it do not count. If it is as slow there, for as long again, it goes back and is named.
#[test]
fn a_member_of_the_chain_is_named_for_its_own_path() {
    for (groups, in_chain_ms, asked, named) in [
        ([40, 40, 20], 1_000, true, true),
        ([40, 40, 20], 999, false, false),
        ([40, 40, 21], 1_000, false, false),
        ([40, 16, 8], 1_000, true, true),
        ([40, 15, 8], 1_000, false, false),
        ([15, 39, 8], 1_000, true, true),
        // One of two may say too much of itself.
        ([14, 39, 8], 1_000, true, false),
    ] {
        for slow in [SlowPolicy::SHIPPED, SlowPolicy::SHIPPED.dropping(), SlowPolicy::Wait] {
            let mut sender = chained(&groups);
            sender.config.slow = slow;
            let now = START + MS * in_chain_ms;
            for id in 0..3 {
                let peer = peer(&mut sender, id);
                // What it had before it came into the chain does not count.
                (peer.verified_at, peer.chained) = (now, Some((START, 10_000)));
            }
            sender.check_chain(now, PeerId(2));
            let asks: &[_] = if asked { &[(2, None)] } else { &[] };
            assert_eq!(links(&mut sender), asks, "{groups:?} after {in_chain_ms} ms");
            assert_eq!(peer(&mut sender, 2).slower, None, "its upstream may be what is slow");
            if !asked {
                continue;
            }
            // At the source it gets no more, in as long again.
            let own = (groups[2] - 1) * 10_000;
            let later = now + MS * 1_000;
            for id in 0..2 {
                peer(&mut sender, id).verified_at = later;
                peer(&mut sender, id).verified_bytes = groups[id as usize] * 20_000;
            }
            let member = peer(&mut sender, 2);
            (member.verified_bytes, member.verified_at) = (member.verified_bytes + own, later);
            sender.check_chain(now + MS * 999, PeerId(2));
            assert_eq!(links(&mut sender), []);
            sender.check_chain(later, PeerId(2));
            let usual = (groups[0].min(groups[1]) * 20_000 - 10_000) / 2;
            let slower = Slower { own: Rate(own * 8), others: Rate(usual * 8) };
            let fails = named && matches!(slow, SlowPolicy::Drop { .. });
            assert_eq!(sender.chain.contains(PeerId(2)), !fails);
            let back = sender.outputs.iter().any(|output| {
                matches!(output, Output::Chain(link) if link.peer == PeerId(2) && link.upstream == Some(PeerId(1)))
            });
            assert!(back, "it is no upstream that makes it slow");
            let peer = &sender.peers[&PeerId(2)];
            assert_eq!(peer.slower, (named && slow != SlowPolicy::Wait).then_some(slower), "{groups:?}");
            assert_eq!(peer.service == Service::Failed(Why::Slow(slower)), fails);
            // It is not asked again.
            sender.outputs.clear();
            sender.check_chain(later + MS * 2_000, PeerId(2));
            let asks = sender
                .outputs
                .iter()
                .any(|output| matches!(output, Output::Chain(link) if link.upstream.is_none()));
            assert_eq!(asks, !named);
        }
    }
}

/// One that gets twice as much at the source, or more, has an upstream that gives it little, whatever that one says it has: that one comes behind
/// all others, and the member goes back into the chain. It is not called slow, where most others have got even more, too.
#[test]
fn an_upstream_that_gives_little_comes_behind_the_others() {
    for (gain, is_upstream) in [(200, true), (190, false)] {
        // The first says that it has all.
        let mut sender = chained(&[1_000, 11, 9]);
        sender.config.slow = SlowPolicy::SHIPPED.dropping();
        let now = START + MS * 1_000;
        for id in 0..3 {
            (peer(&mut sender, id).verified_at, peer(&mut sender, id).chained) = (now, Some((START, 10_000)));
        }
        sender.check_chain(now, PeerId(1));
        assert_eq!(links(&mut sender), [(1, None)]);
        // While it fetches there the one behind it is not sent to its upstream.
        for look in 1..=400 {
            sender.check_chain(now + MS * (2 * look), PeerId(2));
        }
        assert_eq!(links(&mut sender), []);
        let later = now + MS * 1_000;
        let got = 100_000 * gain / 100;
        let member = peer(&mut sender, 1);
        (member.verified_bytes, member.verified_at) = (member.verified_bytes + got, later);
        sender.check_chain(later, PeerId(1));
        let member = &sender.peers[&PeerId(1)];
        assert_eq!(
            (member.slower, &member.service),
            (None, &Service::Chained),
            "one alone says that it got more"
        );
        assert_eq!(member.blame, Blame::Open);
        if !is_upstream {
            // It is asked again after two seconds, then after four.
            assert_eq!(links(&mut sender), [(1, Some(0))]);
            let mut now = later;
            for wait in [2_000, 4_000, 8_000] {
                peer(&mut sender, 1).verified_at = now + MS * (wait - 1);
                sender.check_chain(now + MS * (wait - 1), PeerId(1));
                assert_eq!(links(&mut sender), []);
                now += MS * wait;
                let member = peer(&mut sender, 1);
                (member.verified_bytes, member.verified_at) = (member.verified_bytes + 100 * wait, now);
                sender.check_chain(now, PeerId(1));
                assert_eq!(links(&mut sender), [(1, None)], "after {wait} ms");
                // It gets some there, but not twice as much.
                now += MS * 1_000;
                let member = peer(&mut sender, 1);
                (member.verified_bytes, member.verified_at) = (member.verified_bytes + 190_000, now);
                sender.check_chain(now, PeerId(1));
                assert_eq!(links(&mut sender), [(1, Some(0))]);
            }
        } else {
            assert_eq!(links(&mut sender), [(1, None), (0, Some(2))]);
            assert_eq!(sender.peers[&PeerId(0)].chain_rate, Some(100_000), "what it gave");
        }
    }
}

/// While a member is tried at the source its upstream may go: the one that is before it then is not blamed, and a head hears of no link.
#[test]
fn one_that_was_not_tried_is_not_blamed() {
    {
        let left = 1;
        let mut sender = chained(&[900, 800, 10]);
        let now = START + MS * 1_000;
        for id in 0..3 {
            (peer(&mut sender, id).verified_at, peer(&mut sender, id).chained) = (now, Some((START, 10_000)));
        }
        sender.check_chain(now, PeerId(2));
        assert_eq!(links(&mut sender), [(2, None)]);
        sender.settle(PeerId(left), Some(Why::WentAway));
        sender.outputs.clear();
        let member = peer(&mut sender, 2);
        (member.verified_bytes, member.verified_at) = (member.verified_bytes + 900_000, now + MS * 1_000);
        sender.check_chain(now + MS * 1_000, PeerId(2));
        assert_eq!(links(&mut sender), [(2, Some(0))]);
        assert_eq!(sender.peers[&PeerId(0)].chain_rate, None);
    }
    // Both before it go: it is the head.
    let mut sender = chained(&[900, 10]);
    let now = START + MS * 1_000;
    for id in 0..2 {
        (peer(&mut sender, id).verified_at, peer(&mut sender, id).chained) = (now, Some((START, 0)));
    }
    sender.check_chain(now, PeerId(1));
    sender.settle(PeerId(0), Some(Why::WentAway));
    sender.outputs.clear();
    peer(&mut sender, 1).verified_at = now + MS * 1_000;
    for look in 500..600 {
        sender.check_chain(now + MS * (2 * look), PeerId(1));
    }
    assert_eq!(links(&mut sender), []);
}

/// At most four are tried at the source at a time; another one waits for its turn, and is not called slow meanwhile. One that the source has
/// no room for goes back into the chain.
#[test]
fn a_few_at_a_time_are_tried_at_the_source() {
    let mut sender = chained(&[900, 800, 10, 700, 10, 600, 10, 500, 10, 400, 10, 300]);
    sender.config.slow = SlowPolicy::SHIPPED.dropping();
    let now = START + MS * 1_000;
    for id in 0..12 {
        (peer(&mut sender, id).verified_at, peer(&mut sender, id).chained) = (now, Some((START, 0)));
    }
    for id in [2, 4, 6, 8, 10] {
        sender.check_chain(now, PeerId(id));
    }
    assert_eq!(links(&mut sender), [(2, None), (4, None), (6, None), (8, None)]);
    assert_eq!((sender.peers[&PeerId(10)].blame, sender.peers[&PeerId(10)].slower), (Blame::Open, None));
    sender.control(now, PeerId(4), &Control::UpstreamLost);
    assert_eq!(sender.peers[&PeerId(4)].blame, Blame::Open);
    assert!(!sender.peers[&PeerId(4)].fetches_at_source());
    links(&mut sender);
    sender.check_chain(now, PeerId(10));
    assert_eq!(links(&mut sender), [(10, None)]);
}

proptest! {
    /// In the chain come those that are known to be slow after all that are faster, or of whom nothing is known.
    #[test]
    fn the_chain_has_its_slow_ones_at_its_end(rates in proptest::collection::vec(proptest::option::of(0u64..6), 1..8)) {
        let mut sender = sender(rates.len() as u32, 1_000);
        for (id, rate) in (0..).zip(&rates) {
            peer(&mut sender, id).chain_rate = *rate;
            sender.move_to_chain(BEGAN, PeerId(id));
        }
        let links = links(&mut sender);
        let at = |member: u32| links.iter().rev().find(|(peer, _)| *peer == member).unwrap().1;
        for member in 0..rates.len() as u32 {
            let speed = |member: u32| rates[member as usize].unwrap_or(u64::MAX);
            if let Some(upstream) = at(member) {
                prop_assert!(speed(upstream) >= speed(member), "{} before {} of {:?}", upstream, member, rates);
            }
        }
        prop_assert_eq!((0..rates.len() as u32).filter(|member| at(*member).is_none()).count(), 1);
    }
}
