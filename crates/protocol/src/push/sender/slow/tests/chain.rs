//! The laws of the chain: places, trials at the source, and which member is named.

use super::*;
use crate::push::chain::Link;
use crate::push::peer::Fetching;

mod swaps;

/// Members of the chain in the order of their numbers, each of which has verified so many groups.
fn chained(groups: &[u64]) -> Sender {
    let mut sender = sender(groups.len() as u32, 100_000);
    sender.started_at = Some(START);
    (0..groups.len() as u32).for_each(|id| sender.move_to_chain(START, PeerId(id)));
    links_at(&mut sender, START);
    for (id, groups) in (0..).zip(groups) {
        let peer = peer(&mut sender, id);
        (peer.verified_bytes, peer.verified_at, peer.held_from) =
            (groups * 10_000, BEGAN, (groups * 10_000, BEGAN));
    }
    sender
}

/// What the members are told now.
fn links_at(sender: &mut Sender, now: Time) -> Vec<(u32, Option<u32>)> {
    let outputs = core::iter::from_fn(|| sender.next_output(now));
    let link = |output| match output {
        Output::Chain(link) => (link.peer.0, link.upstream.map(|up| up.0)),
        other => panic!("{other:?}"),
    };
    outputs.map(link).collect()
}

fn links(sender: &mut Sender) -> Vec<(u32, Option<u32>)> {
    links_at(sender, BEGAN)
}

/// What the members are told after a look.
fn look(sender: &mut Sender, now: Time) -> Vec<(u32, Option<u32>)> {
    sender.slow.places.look_at = now;
    sender.look_at_chain(now);
    links_at(sender, now)
}

/// A member has got so many groups more now.
fn got(sender: &mut Sender, now: Time, id: u32, groups: u64) {
    let peer = peer(sender, id);
    (peer.verified_bytes, peer.verified_at) = (peer.verified_bytes + groups * 10_000, now);
}

/// Members that came into the chain at the start with nothing, and have got so many groups in each of two seconds.
fn fetching(groups: &[u64]) -> (Sender, Time) {
    let mut sender = sender(groups.len() as u32, 100_000);
    sender.started_at = Some(START);
    (0..groups.len() as u32).for_each(|id| sender.move_to_chain(START, PeerId(id)));
    links_at(&mut sender, START);
    let mut now = START;
    for second in 0..2 {
        if second > 0 {
            assert_eq!(look(&mut sender, now), [], "a host may have paused");
        }
        now += MS * 1_000;
        (0..).zip(groups).for_each(|(id, groups)| got(&mut sender, now, id, *groups));
    }
    (sender, now)
}

/// A member that is tried at the source gets its first group there after 100 ms, and so many in a second from then on, and others get so many in
/// all. What they are told then, and when that is.
fn tried(
    sender: &mut Sender,
    now: Time,
    id: u32,
    groups: u64,
    others: &[(u32, u64)],
) -> (Vec<(u32, Option<u32>)>, Time) {
    assert!(sender.peers[&PeerId(id)].at_source.is_some(), "{id} is not tried");
    got(sender, now + MS * 100, id, 1);
    assert_eq!(look(sender, now + MS * 100), []);
    let later = now + MS * 1_100;
    others.iter().for_each(|(id, groups)| got(sender, later, *id, *groups));
    got(sender, later, id, groups);
    assert_eq!(look(sender, now + MS * 1_099), []);
    (look(sender, later), later)
}

/// One that gets nothing for one and a half seconds, while its upstream has more, goes to the tail.
#[test]
fn a_member_that_gets_nothing_goes_to_the_tail() {
    for (groups, stalls) in [([50, 49, 0], true), ([50, 50, 0], false), ([50, 51, 0], false)] {
        for (after_ms, is_late) in [(1_499, false), (1_500, true)] {
            let mut sender = chained(&groups);
            let now = BEGAN + MS * after_ms;
            sender.check_chain(BEGAN, PeerId(1));
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
                let given = sender.slow.places.swap.unwrap().given;
                assert_eq!(
                    (given, sender.peers[&PeerId(1)].chain_rate),
                    (0, rates.0),
                    "it has to prove itself"
                );
            }
        }
    }
}

/// The time counts from when its upstream has more than it: before that it could get nothing.
#[test]
fn one_that_could_get_nothing_has_not_stalled() {
    let mut sender = chained(&[50, 0, 0, 0]);
    let later = BEGAN + MS * 5_000;
    sender.check_chain(BEGAN, PeerId(2));
    sender.check_chain(later, PeerId(2));
    got(&mut sender, later, 1, 1);
    for (after_ms, stalls) in [(0, false), (1_499, false), (1_500, true)] {
        sender.check_chain(later + MS * after_ms, PeerId(2));
        assert_eq!(!links(&mut sender).is_empty(), stalls, "{after_ms}");
    }
}

/// One to which nothing has come since it was told where to fetch may still connect: it keeps its place until it stalls.
#[test]
fn one_that_still_connects_keeps_its_place() {
    for (from_bytes, keeps) in [(200_000, true), (199_999, false)] {
        let mut sender = chained(&[28, 20, 18]);
        peer(&mut sender, 1).fetching.as_mut().unwrap().from_bytes = from_bytes;
        (1..100).for_each(|look| sender.check_chain(BEGAN + MS * (2 * look), PeerId(2)));
        assert_eq!(links(&mut sender).is_empty(), keeps);
        // From when it was told that it has its time.
        peer(&mut sender, 1).fetching.as_mut().unwrap().since = BEGAN + MS * 1_000;
        sender.check_chain(BEGAN + MS * 1_000, PeerId(1));
        for (after_ms, stalls) in [(2_499, false), (2_500, true)] {
            sender.check_chain(BEGAN + MS * after_ms, PeerId(1));
            assert_eq!(!links(&mut sender).is_empty(), stalls && keeps, "{after_ms}");
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
            (peer.verified_bytes, peer.held_from) = (whole - less, (whole - less, BEGAN));
        }
        for look in 1..=60 {
            if look == 2 {
                got(&mut sender, BEGAN + MS * 120, 2, 1);
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

/// A connection over which something came is made again: that both hosts can reach each other is known.
#[test]
fn a_connection_that_broke_is_made_again() {
    let mut sender = chained(&[50, 49, 48]);
    sender.lose_upstream(BEGAN + MS * 3_000, PeerId(2));
    assert_eq!(links(&mut sender), [(2, Some(1))]);
    assert_eq!((sender.peers[&PeerId(1)].gave_nothing, sender.peers[&PeerId(2)].upstreams_lost), (None, 0));
    // If nothing comes over the next one it is lost.
    sender.lose_upstream(BEGAN + MS * 3_050, PeerId(2));
    assert_eq!(links(&mut sender), [(2, None)]);
    assert_eq!(sender.peers[&PeerId(2)].upstreams_lost, 1);
}

/// One that breaks each connection after a little gives as good as nothing: it goes behind those that complain.
#[test]
fn one_that_breaks_all_connections_goes_behind() {
    for members in [2u32, 4] {
        let groups: Vec<u64> = (0..members).map(|id| if id == 0 { 900 } else { 0 }).collect();
        let mut sender = chained(&groups);
        for step in 1..=100 {
            let now = BEGAN + MS * (100 * step);
            let behind = (1..members).find(|id| sender.chain.upstream(PeerId(*id)) == Some(PeerId(0)));
            if let Some(id) = behind.filter(|id| !sender.peers[&PeerId(*id)].is_at_source()) {
                got(&mut sender, now, id, 1);
                peer(&mut sender, id).heard_at = now;
                sender.lose_upstream(now, PeerId(id));
            }
            (0..members).for_each(|id| sender.check_chain(now, PeerId(id)));
            look_at_times(&mut sender, now);
        }
        let from_it =
            (1..members).find(|id| sender.peers[&PeerId(*id)].fetching.unwrap().upstream == Some(PeerId(0)));
        assert_eq!(from_it, None, "{members}");
    }
}

/// A member fetches from the source after two seconds in which it has got half of what one half of those before it have, or less, while its upstream
/// had eight groups more than it. What it gets there counts beside what others get there: one that fetches beside the head is slow if it gets a
/// quarter of what most others have, or less, and less than half in all. If it is, it is named.
#[test]
fn a_member_of_the_chain_is_named_for_its_own_path() {
    for (groups, before_ms, asked) in [
        ([40, 40, 20], 0, true),
        ([40, 40, 20], 1, false),
        ([40, 40, 21], 0, false),
        ([40, 21, 13], 0, true),
        ([40, 21, 14], 0, true),
        ([16, 39, 8], 0, true),
        // Its upstream is at most two groups ahead of it.
        ([20, 11, 10], 0, false),
        // Nothing has come: it may not have reached its upstream.
        ([40, 40, 0], 0, false),
    ] {
        let (mut sender, now) = fetching(&groups);
        let asks: &[_] = if asked { &[(2, None)] } else { &[] };
        assert_eq!(look(&mut sender, Time(now.0 - before_ms * 1_000_000)), asks, "{groups:?}");
        assert_eq!(peer(&mut sender, 2).slower, None, "its upstream may be what is slow");
    }
    for slow in [SlowPolicy::SHIPPED, SlowPolicy::SHIPPED.dropping(), SlowPolicy::Wait] {
        for (given, at_source, is_slow) in
            [(15, 10, true), (15, 11, false), (20, 10, true), (20, 20, false), (20, 0, false)]
        {
            let (mut sender, now) = fetching(&[40, 40, given]);
            sender.config.slow = slow;
            assert_eq!(look(&mut sender, now), [(2, None)]);
            let later = now + MS * 1_100;
            got(&mut sender, now + MS * 100, 2, 1);
            look(&mut sender, now + MS * 100);
            for (id, groups) in [(0, 44), (1, 45), (2, at_source)] {
                got(&mut sender, later, id, groups);
            }
            let named = is_slow && slow != SlowPolicy::Wait;
            let slower = Slower { own: Rate(at_source * 80_000), others: Rate(3_200_000) };
            let fails = named && matches!(slow, SlowPolicy::Drop { .. });
            sender.slow.places.look_at = later;
            sender.look_at_chain(later);
            let told: Vec<Output> = core::iter::from_fn(|| sender.next_output(later)).collect();
            let back = Output::Chain(Link { peer: PeerId(2), upstream: Some(PeerId(1)) });
            assert_eq!(told.contains(&back), at_source > 0, "{given}, {at_source}");
            assert_eq!(sender.chain.contains(PeerId(2)), !fails);
            let peer = &sender.peers[&PeerId(2)];
            assert_eq!(peer.slower, named.then_some(slower), "{given}, {at_source}");
            assert_eq!(peer.service == Service::Failed(Why::Slow(slower)), fails);
        }
    }
}

/// What comes at the source is looked at from the first that comes. If nothing comes for ten seconds, or only one group, the member goes back, and
/// is not called slow: the source may have had no time for it.
#[test]
fn a_trial_begins_with_the_first_that_comes() {
    for first_ms in [None, Some(9_000), Some(5_000)] {
        let (mut sender, now) = fetching(&[40, 40, 10]);
        sender.config.slow = SlowPolicy::SHIPPED.dropping();
        assert_eq!(look(&mut sender, now), [(2, None)]);
        let mut back_ms = None;
        for step in 1..120 {
            let now = now + MS * (100 * step);
            (0..2).for_each(|id| got(&mut sender, now, id, 4));
            if first_ms == Some(step * 100) {
                got(&mut sender, now, 2, 1);
            }
            if !look(&mut sender, now).is_empty() {
                back_ms.get_or_insert(step * 100);
            }
        }
        assert_eq!(back_ms, Some(10_000), "{first_ms:?}");
        let peer = &sender.peers[&PeerId(2)];
        assert_eq!((peer.slower, &peer.service), (None, &Service::Chained));
    }
}

/// The head fetches from the source anyway: it is named if it has got half of what most others have got, or less, in all. What others fetch from
/// the source beside it counts for it.
#[test]
fn the_head_is_named_without_a_trial() {
    for (groups, beside, named) in [
        ([20, 40, 40], false, true),
        ([21, 40, 40], false, false),
        // One of two may say too much of itself.
        ([20, 39, 90], false, false),
        ([20, 40, 40], true, false),
        ([10, 40, 40], true, true),
    ] {
        let (mut sender, now) = fetching(&groups);
        if beside {
            // It could not reach the others.
            peer(&mut sender, 2).upstreams_lost = 2;
            peer(&mut sender, 2).fetching.as_mut().unwrap().upstream = None;
        }
        assert_eq!(look(&mut sender, now), []);
        let slower = Slower { own: Rate(groups[0] * 80_000), others: Rate(3_200_000) };
        let before = sender.peers[&PeerId(0)].slower;
        assert_eq!(before, named.then_some(slower), "{groups:?}");
    }
}

/// Of two members one alone speaks for the usual: it counts when it has shown that it has all.
#[test]
fn one_of_two_has_to_show_that_it_is_faster() {
    for shows in [false, true] {
        let (mut sender, now) = fetching(&[20, 400]);
        sender.config.slow = SlowPolicy::SHIPPED.dropping();
        if shows {
            let proof = [0; 32];
            sender.control(now, PeerId(1), &Control::DataRcvd { patched_bytes: 0, proof });
            sender.outputs.clear();
        }
        got(&mut sender, now + MS * 1_000, 0, 20);
        sender.slow.places.look_at = now;
        sender.look_at_chain(now + MS * 1_000);
        assert_eq!(matches!(sender.peers[&PeerId(0)].service, Service::Failed(_)), shows);
    }
}

/// What a member has got is looked at from second to second: one that gave much for a while is found out when it gives little, and one that pauses
/// for a second is not tried.
#[test]
fn what_came_before_does_not_count() {
    let (mut sender, mut now) = fetching(&[40, 40, 40]);
    for (second, groups) in [40, 1, 40, 40, 4, 0, 0, 0, 40, 40, 1, 0, 0, 1].into_iter().enumerate() {
        assert_eq!(look(&mut sender, now), [], "after {second} s");
        now += MS * 1_000;
        [(0, 40), (1, 40), (2, groups)]
            .into_iter()
            .for_each(|(id, groups)| got(&mut sender, now, id, groups));
    }
    assert_eq!(look(&mut sender, now), [(2, None)]);
    // What it has got in all is as much as the others have got.
    for _ in 0..10 {
        (0..3).for_each(|id| got(&mut sender, now, id, 400));
    }
    let (told, _) = tried(&mut sender, now, 2, 1, &[(0, 40), (1, 40)]);
    assert_eq!(told, [(2, Some(1))]);
    assert_eq!(peer(&mut sender, 2).slower, None);
}

/// One that gets twice as much at the source, or more, has an upstream that gives it little, whatever that one says it has: that one comes behind
/// all others, and the member goes back into the chain. It is not called slow, where most others have got even more, too.
#[test]
fn an_upstream_that_gives_little_comes_behind_the_others() {
    for (at_source, is_upstream) in [(20, true), (19, false)] {
        // The first says that it has much.
        let (mut sender, now) = fetching(&[4_000, 10, 9]);
        sender.config.slow = SlowPolicy::SHIPPED.dropping();
        assert_eq!(look(&mut sender, now), [(1, None)]);
        // While it fetches there the one behind it is not sent to its upstream.
        for step in 1..=400 {
            sender.check_chain(now + MS * (2 * step), PeerId(2));
        }
        assert_eq!(links(&mut sender), []);
        let (told, mut now) = tried(&mut sender, now, 1, at_source, &[]);
        let member = &sender.peers[&PeerId(1)];
        assert_eq!(
            (member.slower, &member.service),
            (None, &Service::Chained),
            "one alone says that it got more"
        );
        assert_eq!(member.at_source, None);
        if is_upstream {
            // It is at the head: it goes on fetching where it does.
            assert_eq!(told, [(0, Some(2))]);
            assert_eq!(sender.peers[&PeerId(0)].chain_rate, Some(100_000), "what it gave");
            continue;
        }
        // It is asked again after two seconds, then after four, and so on up to 64.
        assert_eq!(told, [(1, Some(0))]);
        for wait in [2, 4, 8, 16, 32, 64, 64] {
            for second in 1..=wait {
                now += MS * 1_000;
                got(&mut sender, now, 1, 10);
                let asks: &[_] = if second == wait { &[(1, None)] } else { &[] };
                assert_eq!(look(&mut sender, now), asks, "{second} of {wait} s");
            }
            let told;
            (told, now) = tried(&mut sender, now, 1, 19, &[]);
            assert_eq!(told, [(1, Some(0))]);
        }
    }
}

/// Some are known to be slow, as by multicast: what holds them in the chain is looked for all the same.
#[test]
fn one_that_is_known_to_be_slow_is_tried_as_well() {
    let (mut sender, now) = fetching(&[40, 40, 4]);
    peer(&mut sender, 2).slower = Some(Slower { own: Rate(9), others: Rate(10) });
    assert_eq!(look(&mut sender, now), [(2, None)]);
    assert_eq!(tried(&mut sender, now, 2, 8, &[]).0, [(2, Some(0)), (1, Some(2))]);
}

/// One that can reach no upstream says so a second later: that is not its upstream's fault, and costs no other its place.
#[test]
fn one_that_reaches_no_other_displaces_none() {
    let (mut sender, now) = fetching(&[40, 40, 40, 0]);
    for step in 0..50 {
        assert_eq!(look(&mut sender, now + MS * (step * 10)), []);
    }
    let mut now = now + MS * 500;
    sender.lose_upstream(now, PeerId(3));
    assert_eq!(look(&mut sender, now), [(3, None)]);
    // Another word that comes at once is about the upstream before.
    sender.lose_upstream(now + MS * 39, PeerId(3));
    assert_eq!((sender.peers[&PeerId(3)].upstreams_lost, links(&mut sender)), (1, vec![]));
    // A second time: it stays at the source, and nothing is tried there.
    now += MS * 40;
    sender.lose_upstream(now, PeerId(3));
    let mut told = look(&mut sender, now);
    assert_eq!(told, [(3, None)], "it is told again");
    for _ in 0..100 {
        now += MS * 1_000;
        for (id, groups) in [(0, 40), (1, 40), (2, 40), (3, 12)] {
            got(&mut sender, now, id, groups);
        }
        sender.check_chain(now, PeerId(3));
        told.extend(look(&mut sender, now));
    }
    assert_eq!(told, [(3, None)]);
    assert!((0..3).all(|id| sender.peers[&PeerId(id)].chain_rate.is_none()), "one has lost its place");
}

/// If two get nothing from the same one, or do not reach it, within five seconds, that one goes to the tail: the others need not find out one by one.
#[test]
fn one_that_gives_nothing_to_two_goes_to_the_tail() {
    for (apart_ms, complains, goes) in
        [(1_500, true, true), (1_500, false, true), (4_999, true, true), (5_000, true, false)]
    {
        // The first has all, and nothing comes from it.
        let mut sender = chained(&[90, 0, 0, 0, 0]);
        let mut now = BEGAN + MS * 1_000;
        for id in [1, 2] {
            let fetching = peer(&mut sender, id).fetching.as_mut().unwrap();
            assert_eq!((fetching.upstream, fetching.from_bytes), (Some(PeerId(0)), 0));
            if complains {
                sender.lose_upstream(now, PeerId(id));
            } else {
                peer(&mut sender, id).verified_at = Time(now.0 - 1_500_000_000);
                peer(&mut sender, id).fetching.as_mut().unwrap().since = START;
                peer(&mut sender, id).behind_since = Some(START);
                peer(&mut sender, id).heard_at = now;
                sender.check_chain(now, PeerId(id));
            }
            let told = links_at(&mut sender, now);
            if id == 1 {
                assert_eq!(told, [(2, Some(0)), (1, Some(4))]);
            } else if goes {
                // It was the head, and goes on at the source.
                assert_eq!(told, [(2, None)]);
                assert_eq!(sender.chain.upstream(PeerId(0)), Some(PeerId(1)));
            } else {
                assert_eq!(told, [(3, Some(0)), (2, Some(1))]);
            }
            now += MS * apart_ms;
        }
        assert_eq!(sender.peers[&PeerId(0)].chain_rate, goes.then_some(0));
    }
    // One that was not the head is told to fetch elsewhere.
    let mut sender = chained(&[90, 90, 0, 0, 0]);
    for (id, expected) in [(2, [(3, Some(1)), (2, Some(4))]), (3, [(3, Some(0)), (1, Some(2))])] {
        sender.lose_upstream(BEGAN, PeerId(id));
        assert_eq!(links(&mut sender), expected);
        peer(&mut sender, 3).fetching.as_mut().unwrap().since = START;
    }
    // One alone may say so as often as it likes.
    let mut sender = chained(&[90, 0, 0]);
    for second in 1..=20 {
        let now = BEGAN + MS * (1_000 * second);
        sender.lose_upstream(now, PeerId(1));
        links_at(&mut sender, now);
    }
    assert_eq!(sender.peers[&PeerId(0)].chain_rate, None);
    assert!(sender.peers[&PeerId(1)].fetches_at_source(), "it reaches no other");
}

/// If the source is slow, each member in turn would get a part of a group and lose it: each has twice the time of the one before, until a head gets
/// some groups in a second again.
#[test]
fn a_slow_source_has_more_time_for_each_head() {
    let mut sender = chained(&[0, 0, 0, 0, 0, 0, 0, 0]);
    let mut now = START;
    for id in 0..8 {
        (peer(&mut sender, id).verified_at, peer(&mut sender, id).behind_since) = (now, Some(now));
    }
    for (id, stall_ms) in (0..7).zip([1_500, 3_000, 6_000, 12_000, 24_000, 24_000, 24_000]) {
        sender.check_chain(now + MS * (stall_ms - 1), PeerId(id));
        assert_eq!(links_at(&mut sender, now), [], "{id}");
        now += MS * stall_ms;
        (0..8).filter(|other| *other != id).for_each(|other| peer(&mut sender, other).verified_at = now);
        sender.check_chain(now, PeerId(id));
        let last = if id == 0 { 7 } else { id - 1 };
        assert_eq!(links_at(&mut sender, now), [(id + 1, None), (id, Some(last))]);
    }
    for (groups, stall) in [(1, 24_000), (2, 1_500)] {
        now += MS * 1_000;
        got(&mut sender, now, 7, groups);
        assert_eq!(look(&mut sender, now), []);
        assert_eq!(sender.stall(&sender.peers[&PeerId(7)]), MS * stall);
    }
}

/// The tail has no other to change places with: if it gets nothing it fetches from the source for a while. If it gets something there, its upstream
/// comes behind it; else it goes back, and is tried again later.
#[test]
fn a_tail_that_gets_nothing_is_tried_at_the_source() {
    for gets in [true, false] {
        let mut sender = chained(&[50, 49, 0]);
        let mut told = Vec::new();
        sender.check_chain(BEGAN, PeerId(2));
        for step in 1..=400 {
            let now = BEGAN + MS * (50 * step);
            (0..2).for_each(|id| got(&mut sender, now, id, 4));
            peer(&mut sender, 2).heard_at = now;
            // Nothing comes from this one alone.
            let fetching = sender.peers[&PeerId(2)].fetching.unwrap();
            if gets && fetching.upstream != Some(PeerId(1)) {
                got(&mut sender, now, 2, 4);
            }
            sender.check_chain(now, PeerId(2));
            told.extend(look(&mut sender, now).into_iter().map(|link| (step * 50, link)));
        }
        let expected: &[_] = if gets {
            &[(1_500, (2, None)), (2_550, (2, Some(0))), (2_550, (1, Some(2)))]
        } else {
            // Ten seconds there, and two until it may be tried again.
            &[(1_500, (2, None)), (11_500, (2, Some(1))), (14_500, (2, None))]
        };
        // As it stays behind it is tried again, now and then.
        assert_eq!(told[..expected.len()], *expected);
        assert!(told.iter().skip(3).all(|(_, link)| link.0 == 2), "{told:?}");
        assert_eq!(sender.peers[&PeerId(2)].upstreams_lost, 0);
    }
}

/// One that says nothing for a while does something else: it goes to the tail, and back to work there. None is blamed for it.
#[test]
fn one_that_pauses_blames_none() {
    for (groups, paused) in
        [(&[50, 40][..], &[1][..]), (&[50, 40, 30, 30], &[1, 2, 3]), (&[90, 0, 0, 0], &[1, 2])]
    {
        let mut sender = chained(groups);
        let members = 0..groups.len() as u32;
        for step in 0..1_200 {
            let now = BEGAN + MS * (50 * step);
            for id in members.clone() {
                if step < 40 && paused.contains(&id) {
                    continue;
                }
                peer(&mut sender, id).heard_at = now;
                // They have what the one before them has, as far as it has it.
                let upstream = sender.chain.upstream(PeerId(id));
                let room = upstream.map_or(u64::MAX, |up| sender.peers[&up].verified_bytes);
                let has = sender.peers[&PeerId(id)].verified_bytes;
                match 4.min(room.saturating_sub(has) / 10_000) {
                    0 => {}
                    groups => got(&mut sender, now, id, groups),
                }
            }
            members.clone().for_each(|id| sender.check_chain(now, PeerId(id)));
            look(&mut sender, now);
        }
        for id in members {
            let member = &sender.peers[&PeerId(id)];
            assert_eq!(member.upstreams_lost, 0, "{id} stays at the source: {groups:?}");
            assert_eq!((member.slower, member.gave_nothing), (None, None), "{id}");
        }
        assert_eq!(sender.peers[&PeerId(0)].chain_rate, None, "it has given what it had");
    }
}

/// One that has lost the source, which had no room for it, goes back into the chain, also at the tail.
#[test]
fn a_tail_that_the_source_has_no_room_for_goes_back() {
    let mut sender = chained(&[50, 40, 30]);
    peer(&mut sender, 2).fetching.as_mut().unwrap().from_bytes = 300_000;
    let mut told = Vec::new();
    for second in 1..=10 {
        let now = BEGAN + MS * (1_000 * second);
        sender.lose_upstream(now, PeerId(2));
        told.extend(links_at(&mut sender, now).into_iter().map(|(id, upstream)| (id, upstream.is_some())));
    }
    let expected = [false, false, true, false, true, false, true, false, true, false];
    assert_eq!(told, expected.map(|is_other| (2, is_other)));
}

/// One that says again and again that it has lost where it fetches begins anew each time: it holds none behind it meanwhile.
#[test]
fn one_that_loses_all_holds_none() {
    for lost in 0..20 {
        let mut sender = chained(&[0, 300]);
        peer(&mut sender, 0).upstreams_lost = lost;
        for second in 1..=10 {
            let now = BEGAN + MS * (1_000 * second);
            got(&mut sender, now, 0, u64::from(second % 3 == 0));
            sender.lose_upstream(now, PeerId(0));
            (0..2).for_each(|id| peer(&mut sender, id).heard_at = now);
            (0..2).for_each(|id| sender.check_chain(now, PeerId(id)));
            links_at(&mut sender, now);
        }
        assert_eq!(sender.chain.upstream(PeerId(1)), None, "{lost}");
    }
}

/// One that has less than the member behind it may have come later: it is not taken for slower than it is.
#[test]
fn one_that_comes_later_has_its_own_pace() {
    let mut sender = chained(&[90, 10, 40]);
    // The 10 groups have come in two seconds.
    peer(&mut sender, 1).fetching.as_mut().unwrap().since = BEGAN;
    sender.check_chain(BEGAN + MS, PeerId(2));
    sender.pass_upstream(BEGAN + MS * 2_000, PeerId(2), PeerId(1));
    assert_eq!(sender.slow.places.swap.unwrap().given, 50_000);
}

/// A member that stays as far behind its upstream as it was, while that one gets little itself, may get no more because of that one: it is tried at
/// the source. One whose report is only older than its upstream's is not.
#[test]
fn one_that_is_kept_behind_is_tried() {
    let same = |_| 5;
    let grows = |second| 5 + 3 * second;
    let closes = |second| if second == 5 { 2 } else { 3 };
    let near = |_| 2;
    // Groups that the head says it has more than the member, at the end of each second, and what the member gets at the source.
    let lags: [&dyn Fn(u64) -> u64; 6] = [&same, &same, &grows, &closes, &near, &same];
    let cases = [
        (false, 40, true, true),
        (false, 1, true, false),
        (false, 40, false, false),
        (false, 40, false, false),
        (false, 40, false, false),
        (true, 40, false, false),
    ];
    for (case, (lag, (is_older, at_source, tries, goes))) in lags.into_iter().zip(cases).enumerate() {
        let mut sender = chained(&[lag(0), 0]);
        peer(&mut sender, 0).chained = Some((BEGAN, lag(0) * 10_000));
        peer(&mut sender, 1).fetching.as_mut().unwrap().looked_at = BEGAN;
        let mut told = Vec::new();
        for second in 1..=9 {
            assert_eq!(told, [], "{case}: too early");
            let now = BEGAN + MS * (1_000 * second);
            let peer = peer(&mut sender, 1);
            peer.has_verified(now, second * 40_000);
            // What came a moment ago it has not told yet.
            peer.gains = if is_older { [30_000, 20_000] } else { [0, 0] };
            let has = peer.verified_bytes + lag(second) * 10_000;
            self::peer(&mut sender, 0).has_verified(now + MS * u64::from(is_older), has);
            told.extend(look(&mut sender, now));
        }
        assert_eq!(told, if tries { vec![(1, None)] } else { vec![] }, "{case}");
        if tries {
            let (told, now) = tried(&mut sender, BEGAN + MS * 9_000, 1, at_source, &[]);
            assert_eq!(told, if goes { [(0, Some(1))] } else { [(1, Some(0))] });
            let wait_ms = if goes { 8_000 } else { 16_000 };
            assert_eq!(sender.slow.places.kept_at, now + MS * wait_ms);
        }
    }
}

/// Seconds in which a member only stays behind, and such in which it gets little, are counted apart.
#[test]
fn one_that_stays_behind_and_pauses_is_not_tried_at_once() {
    let mut sender = chained(&[500, 0]);
    peer(&mut sender, 0).chained = Some((BEGAN, 5_000_000));
    peer(&mut sender, 1).fetching.as_mut().unwrap().looked_at = BEGAN;
    let mut told = Vec::new();
    for second in 1..=15 {
        let now = BEGAN + MS * (1_000 * second);
        let has = sender.peers[&PeerId(1)].verified_bytes;
        let gets = if second % 5 == 0 { 10_000 } else { 40_000 };
        peer(&mut sender, 1).has_verified(now, has + gets);
        peer(&mut sender, 1).gains = [0, 0];
        peer(&mut sender, 0).has_verified(now, 5_000_000 + second * 40_000);
        told.extend(look(&mut sender, now));
    }
    assert_eq!(told, []);
}

/// What newcomers get from what others have is no pace that the head could have: they have no more than it.
#[test]
fn newcomers_do_not_make_the_head_slow() {
    for (had, held, named) in [(100, 0, false), (101, 0, true), (201, 101, false), (201, 100, true)] {
        let (mut sender, now) = fetching(&[50, 0, 0]);
        for id in 1..3 {
            peer(&mut sender, id).chained = Some((now, 0));
            peer(&mut sender, id).held_count = held * 10;
            got(&mut sender, now, id, had);
        }
        look(&mut sender, now);
        assert_eq!(sender.peers[&PeerId(0)].slower.is_some(), named, "{had}");
    }
}

/// What a member did not get before it came to the source is not held against it.
#[test]
fn what_others_did_not_give_is_not_the_own_pace() {
    let (mut sender, mut now) = fetching(&[40, 40, 0]);
    sender.config.slow = SlowPolicy::SHIPPED.dropping();
    for _ in 0..10 {
        now += MS * 1_000;
        (0..2).for_each(|id| got(&mut sender, now, id, 40));
    }
    sender.lose_upstream(now, PeerId(2));
    assert_eq!(links_at(&mut sender, now), [(2, None)]);
    for second in 1..10 {
        let now = now + MS * (1_000 * second);
        for (id, groups) in [(0, 20), (1, 20), (2, 20)] {
            got(&mut sender, now, id, groups);
        }
        assert_eq!(look(&mut sender, now), []);
        assert_eq!(sender.peers[&PeerId(2)].slower, None, "{second} s");
    }
}

/// A member that reports little until it is tried costs two others their places in a minute, and no third: it stays at the source.
#[test]
fn one_member_costs_few_others_their_places() {
    for apart_s in [0, 60] {
        let (mut sender, mut now) = fetching(&[40, 40, 40, 40, 40, 1]);
        for upstream in [4, 3, 2] {
            assert_eq!(look(&mut sender, now), [(5, None)]);
            let others: Vec<(u32, u64)> = (0..5).map(|id| (id, 44)).collect();
            let told;
            (told, now) = tried(&mut sender, now, 5, 40, &others);
            let goes = upstream > 2 || apart_s > 0;
            assert_eq!(told.contains(&(5, Some(upstream - 1))), goes, "{upstream}, {told:?}");
            for second in 0..apart_s + 2 {
                if second > 0 {
                    assert_eq!(look(&mut sender, now), []);
                }
                now += MS * 1_000;
                (0..5).for_each(|id| got(&mut sender, now, id, 40));
                got(&mut sender, now, 5, if second < apart_s { 40 } else { 1 });
            }
        }
        let displaced: Vec<u32> =
            (0..5).filter(|id| sender.peers[&PeerId(*id)].chain_rate.is_some()).collect();
        assert_eq!(displaced, if apart_s > 0 { vec![2, 3, 4] } else { vec![3, 4] });
        assert_eq!(sender.peers[&PeerId(5)].fetches_at_source(), apart_s == 0);
    }
}

/// While a member is tried at the source its upstream may go: the one that is before it then is not blamed, and a head hears of no link.
#[test]
fn one_that_was_not_tried_is_not_blamed() {
    let (mut sender, now) = fetching(&[900, 800, 10]);
    assert_eq!(look(&mut sender, now), [(2, None)]);
    sender.settle(PeerId(1), Some(Why::WentAway));
    sender.outputs.clear();
    assert_eq!(tried(&mut sender, now, 2, 90, &[]).0, [(2, Some(0))]);
    assert_eq!(sender.peers[&PeerId(0)].chain_rate, None);
    // Both before it go: it is the head.
    let (mut sender, now) = fetching(&[900, 10]);
    assert_eq!(look(&mut sender, now), [(1, None)]);
    sender.settle(PeerId(0), Some(Why::WentAway));
    sender.outputs.clear();
    for step in 1..30 {
        got(&mut sender, now + MS * (100 * step), 1, 1);
        assert_eq!(look(&mut sender, now + MS * (100 * step)), []);
    }
}

/// At most four are tried at the source at a time; another one waits for its turn, and is not called slow meanwhile. One that the source has
/// no room for goes back into the chain, and is not tried again at once.
#[test]
fn a_few_at_a_time_are_tried_at_the_source() {
    let (mut sender, now) = fetching(&[900, 800, 10, 700, 10, 600, 10, 500, 10, 400, 10, 300]);
    sender.config.slow = SlowPolicy::SHIPPED.dropping();
    assert_eq!(look(&mut sender, now), [(2, None), (4, None), (6, None), (8, None)]);
    assert_eq!((sender.peers[&PeerId(10)].at_source, sender.peers[&PeerId(10)].slower), (None, None));
    let now = now + MS * 50;
    sender.control(now, PeerId(4), &Control::UpstreamLost);
    let member = &sender.peers[&PeerId(4)];
    assert_eq!((member.at_source, member.fetches_at_source()), (None, false));
    assert_eq!((member.tried_in_vain, member.at_source_next), (1, now + MS * 2_000));
    assert_eq!((member.upstreams_lost, member.moves), (0, 0), "it has lost none of the others");
    assert_eq!(links_at(&mut sender, now), [(4, Some(3))]);
    assert_eq!(look(&mut sender, now), [(10, None)]);
}

/// A pace counts over half a second at least: reports are 50 ms apart, and one that had most of the object may be done before its first. Nor does one
/// count that has got no more in the chain.
#[test]
fn one_that_is_done_at_once_is_not_the_usual() {
    for (groups, named) in [(160, false), (161, true)] {
        let (mut sender, now) = fetching(&[80, 0]);
        // It had most of the object when it came.
        (peer(&mut sender, 1).verified_at, peer(&mut sender, 1).chained) = (START, Some((START, 50_000_000)));
        got(&mut sender, START + MS * 3, 1, 5_000 + groups);
        sender.settle(PeerId(1), None);
        sender.outputs.clear();
        assert_eq!(look(&mut sender, now), []);
        let slower = Slower { own: Rate(80 * 80_000), others: Rate(2 * groups * 80_000) };
        assert_eq!(peer(&mut sender, 0).slower, named.then_some(slower), "{groups}");
    }
}

/// Looks where it is time, and gives out what is said.
fn look_at_times(sender: &mut Sender, now: Time) {
    sender.look_at_chain(now);
    links_at(sender, now);
}

/// A second look comes 100 ms after the first, however often the sender is polled.
#[test]
fn members_are_looked_at_now_and_then() {
    let (mut sender, now) = fetching(&[40, 40, 10]);
    assert_eq!(look(&mut sender, Time(now.0 - 50_000_000)), []);
    sender.look_at_chain(now + MS * 49);
    assert_eq!(links(&mut sender), []);
    sender.look_at_chain(now + MS * 50);
    assert_eq!(links(&mut sender), [(2, None)]);
}

/// One that fetches where it is told to fetch hears nothing: it would begin anew.
#[test]
fn a_link_that_is_there_is_not_told_again() {
    let mut sender = chained(&[40, 40, 40, 40]);
    for id in [2, 3] {
        peer(&mut sender, id).upstreams_lost = 2;
        sender.outputs.push_back(Output::Chain(Link { peer: PeerId(id), upstream: None }));
    }
    assert_eq!(links(&mut sender), [(2, None), (3, None)]);
    let links_of = sender.chain.demote(PeerId(2));
    sender.outputs.extend(links_of.into_iter().map(Output::Chain));
    assert_eq!(links(&mut sender), []);
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
