//! Measurements of receivers, and what follows from them: the laws, one by one. `tests/push/{slow,narrow}.rs`
//! have whole transfers.

use super::*;
use crate::push::{Geometry, SenderConfig};
use alloc::vec;
use polycast_types::{Handle, Location, RangeSet};
use polycast_wire::control::NOWHERE;
use proptest::prelude::*;

/// The receivers that stand out, looked for among all sets of them.
fn among_all_sets(measured: &[u64], least: u64) -> Option<(Vec<usize>, bool)> {
    let count = measured.len();
    let sets = (1u32..1 << count).filter(|set| {
        let size = set.count_ones() as usize;
        size < count && (size == 1 || 2 * size <= count)
    });
    let ends = |set: u32| {
        let of = |inside: bool| {
            measured.iter().enumerate().filter(move |(at, _)| (set >> at & 1 == 1) == inside).map(|(_, m)| *m)
        };
        (of(true).min().unwrap_or(0), of(false).max().unwrap_or(0))
    };
    let stands_out = |set: &u32| {
        let (last, next) = ends(*set);
        last >= least && next <= last / 4
    };
    let set = sets.filter(stands_out).min_by_key(|set| set.count_ones())?;
    let (last, next) = ends(set);
    Some(((0..count).filter(|at| set >> at & 1 == 1).collect(), last >= 8 * least && next <= last / 16))
}

fn sender(peers: u32, fragments: u64) -> Sender {
    let geometry = Geometry { object_len: fragments * 1_000, fragment_len: 1_000, group_len: 10_000 };
    let mut sender = Sender::new(SenderConfig::new(Handle(1), geometry, 7));
    (0..peers).for_each(|id| sender.join(Time(1), PeerId(id), 1 << 20, RangeSet::new(), Location::default()));
    sender
}

fn patches(sender: &mut Sender) -> Vec<Range<u64>> {
    let patch = |output| match output {
        Output::Patch { peer: PeerId(0), sns } => sns,
        other => panic!("{other:?}"),
    };
    sender.outputs.drain(..).map(patch).collect()
}

proptest! {
    #[test]
    fn the_few_that_stand_out_are_those_of_the_smallest_set(
        measured in proptest::collection::vec(prop_oneof![0u64..6, 0u64..40, 0u64..1_000], 1..8),
        least in 1u64..30,
    ) {
        let listed = measured.iter().copied().zip((0..).map(PeerId)).collect();
        let Narrow { mut ids, plain } = standing_out(listed, least);
        ids.sort_unstable();
        let (expected, is_plain) = among_all_sets(&measured, least).unwrap_or_default();
        let expected: Vec<PeerId> = expected.into_iter().map(|at| PeerId(at as u32)).collect();
        prop_assert_eq!((ids, plain), (expected, is_plain));
    }

    /// While others take the stream one gets a patch for twelve packets of it, each once, in rising order;
    /// and the rest when it is waited for again.
    #[test]
    fn who_is_not_waited_for_gets_a_patch_for_twelve_packets(
        steps in proptest::collection::vec((0u64..60, 0u64..60, 0u64..100), 1..12),
    ) {
        let mut sender = sender(1, 50);
        sender.peers.get_mut(&PeerId(0)).unwrap().service = Service::Patching;
        let (mut asked, mut got) = (RangeSet::new(), RangeSet::new());
        let (mut began, mut turns) = (0, 0);
        for (start, len, packets) in steps {
            if asked.is_empty() {
                (began, turns) = (sender.packets, 0);
            }
            sender.put_off(PeerId(0), core::slice::from_ref(&(start..start + len)));
            let inside = start.min(50)..(start + len).min(50);
            if !inside.is_empty() {
                asked.insert(inside);
            }
            sender.packets += packets;
            sender.make_up();
            let may = (sender.packets - began) / 12 - turns;
            turns += may;
            let later = sender.peers[&PeerId(0)].repairs.later.clone();
            let count = |set: &RangeSet| set.iter().map(|run| run.end - run.start).sum::<u64>();
            prop_assert_eq!(count(&later), count(&asked) - may.min(count(&asked)));
            prop_assert!(later.iter().all(|run| asked.covers(run)), "{:?} beyond {:?}", later, asked);
            for run in patches(&mut sender) {
                prop_assert!(asked.covers(run.clone()), "{:?} was not asked for", run);
                prop_assert!(later.gaps(run.clone()) == [run.clone()], "{:?} comes again", run);
                // What it has got is not sent again so soon, but takes its turn.
                prop_assert!(got.gaps(run.clone()) == [run.clone()], "{:?} came before", run);
                got.insert(run);
            }
            prop_assert!(asked.iter().flatten().all(|sn| later.contains(sn) || got.contains(sn)));
            asked = later;
        }
        sender.peers.get_mut(&PeerId(0)).unwrap().service = Service::Streaming;
        sender.make_up();
        for run in patches(&mut sender) {
            prop_assert!(asked.covers(run.clone()));
            got.insert(run);
        }
        prop_assert!(asked.iter().all(|run| got.covers(run)), "{:?} is still missing", asked);
        prop_assert!(sender.peers[&PeerId(0)].repairs.later.is_empty());
    }
}

/// Time when all of them began, and when the part that is tested here did.
const START: Time = Time(1);
const BEGAN: Time = Time(10_000_000_001);
const MS: Duration = Duration::from_millis(1);

/// A sender whose receivers all take the stream since its start.
fn streaming(peers: u32) -> Sender {
    let mut sender = sender(peers, 1_000_000);
    sender.started_at = Some(START);
    for peer in sender.peers.values_mut() {
        (peer.service, peer.lap.initial) = (Service::Streaming, Some(0));
        (peer.lap.received, peer.signs.advanced_at, peer.signs.heard_at) = (100, BEGAN, BEGAN);
    }
    // The window has found what the path takes.
    sender.congestion.resume(1_000);
    sender
}

fn peer(sender: &mut Sender, id: u32) -> &mut Peer {
    sender.peers.get_mut(&PeerId(id)).unwrap()
}

/// Packets a second as a rate: each has its header, and those of IP and UDP.
fn rate(sender: &Sender, packets: u64) -> Rate {
    Rate(packets * sender.packet_len() * 8)
}

/// Result of a trial after `span_ms` milliseconds: the others got 16 packets in each, `gained` percent of
/// what they got before, and the one that is left out got `own`, and `usual` since the transfer began.
#[derive(Clone, Copy, Debug)]
struct Shown {
    span_ms: u64,
    gained: u64,
    own: u64,
    usual: u64,
    again: u32,
}

/// Decision that follows from it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Made {
    GoesOn,
    InVain,
    TakesAll,
    LooksAgain,
    LeavesBehind,
}

const OTHERS: u64 = 16_000;

fn shown(shown: Shown, slow: SlowPolicy) -> (Sender, Time) {
    let Shown { span_ms, gained, own, usual, again } = shown;
    let mut sender = streaming(3);
    sender.config.slow = slow;
    sender.packets = 500_000;
    let got = usual * (10_000 + span_ms);
    peer(&mut sender, 2).lap.received = got.saturating_sub(own * span_ms);
    peer(&mut sender, 2).service = Service::Patching;
    let trial = Trial {
        without: [sender.standing(PeerId(2))].to_vec(),
        beside: sender.beside(),
        since: BEGAN,
        packets: sender.packets,
        window: 700,
        pace: OTHERS * 100 / gained,
        again,
        shut: BTreeMap::new(),
        looked_at: BEGAN,
    };
    assert_eq!(trial.beside.len(), 2);
    let now = BEGAN + MS * span_ms;
    sender.packets += 16 * span_ms;
    for id in 0..3 {
        let came = if id == 2 { own } else { 16 } * span_ms;
        peer(&mut sender, id).lap.received += came;
        (peer(&mut sender, id).signs.advanced_at, peer(&mut sender, id).signs.heard_at) = (now, now);
    }
    sender.judge(now, trial);
    (sender, now)
}

fn made(sender: &Sender, now: Time) -> Made {
    let peer = &sender.peers[&PeerId(2)];
    match (&sender.slow.trial, peer.trials.slower, peer.trials.tried) {
        (Some(trial), None, 0) if trial.since == BEGAN => Made::GoesOn,
        (Some(trial), None, 0) => {
            assert_eq!((trial.since, trial.packets), (now, sender.packets), "it begins anew");
            assert!(trial.without.iter().chain(&trial.beside).all(|one| one.reported_at == now));
            Made::LooksAgain
        }
        (None, None, 1) => Made::InVain,
        (None, None, 0) => Made::TakesAll,
        (None, Some(_), 0) => Made::LeavesBehind,
        other => panic!("{other:?}"),
    }
}

/// A receiver that kept the window shut for half of a trial in which the others gained nothing is left out as
/// well, as long as at least as many go on as are left out. Two that do so in turns would otherwise shield
/// each other.
#[test]
fn one_that_keeps_the_window_shut_during_a_trial_is_left_out_as_well() {
    for (shut, joins) in [
        (&[(1, 125)][..], true),
        (&[(1, 124)], false),
        (&[], false),
        (&[(1, 250), (2, 200)], true),
        (&[(1, 125), (2, 125), (3, 125)], false),
        // It has left meanwhile.
        (&[(6, 250)], false),
    ] {
        let mut sender = streaming(7);
        sender.packets = 500_000;
        peer(&mut sender, 0).service = Service::Patching;
        peer(&mut sender, 6).service = Service::Done;
        let trial = Trial {
            without: [sender.standing(PeerId(0))].to_vec(),
            beside: sender.beside(),
            since: BEGAN,
            packets: sender.packets,
            window: 700,
            pace: OTHERS,
            again: 0,
            shut: shut.iter().map(|(id, ms)| (PeerId(*id), MS * *ms)).collect(),
            looked_at: BEGAN,
        };
        let now = BEGAN + MS * 250;
        sender.packets += 16 * 250;
        for id in 0..7 {
            peer(&mut sender, id).lap.received += 16 * 250;
            (peer(&mut sender, id).signs.advanced_at, peer(&mut sender, id).signs.heard_at) = (now, now);
        }
        sender.judge(now, trial);
        let without = sender.slow.trial.as_ref().map(|trial| {
            assert_eq!((trial.since, trial.shut.len()), (now, 0), "it begins anew");
            trial.without.iter().map(|one| one.id.0).collect::<Vec<u32>>()
        });
        let expected = [0].into_iter().chain(shut.iter().map(|(id, _)| *id)).collect::<Vec<u32>>();
        assert_eq!(without, joins.then_some(expected), "{shut:?}");
        for id in 1..6 {
            let is_out = joins && shut.iter().any(|(out, _)| *out == id);
            assert_eq!(sender.peers[&PeerId(id)].service == Service::Patching, is_out);
        }
        assert_eq!(
            sender.peers[&PeerId(0)].service == Service::Streaming,
            !joins,
            "in vain all go on as before"
        );
    }
}

/// A trial takes 40 ms where the others are twice as fast and it is plain what the one that is left out
/// takes, else 250 ms. Where they have not gained 15 %, it was in vain. Else: one that gets all that the
/// others get, but for a sixteenth, comes back; one that gets less than half of that, and no less than half
/// of what it has got so far, is left behind; any other is looked at again, four times.
#[test]
fn a_trial_ends_when_it_has_shown_enough() {
    for span_ms in [39, 40, 249, 250] {
        for gained in [90, 114, 115, 199, 200, 400] {
            for (own, usual) in
                [(0, 1), (1, 1), (5, 11), (5, 10), (7, 14), (7, 15), (8, 8), (14, 14), (15, 1), (16, 16)]
            {
                for again in 0..6 {
                    let case = Shown { span_ms, gained, own, usual, again };
                    let (sender, now) = shown(case, SlowPolicy::SHIPPED);
                    let takes_all = own >= 15;
                    let is_narrow = own < 8 && 2 * own >= usual;
                    let is_plain = gained >= 200 && (takes_all || is_narrow);
                    let is_over = if is_plain { span_ms >= 40 } else { span_ms >= 250 };
                    let expected = match () {
                        () if !is_over => Made::GoesOn,
                        () if gained < 115 => Made::InVain,
                        () if takes_all => Made::TakesAll,
                        () if is_narrow || again >= 4 => Made::LeavesBehind,
                        () => Made::LooksAgain,
                    };
                    assert_eq!(made(&sender, now), expected, "{case:?}");
                    let streams = matches!(expected, Made::InVain | Made::TakesAll);
                    assert_eq!(sender.peers[&PeerId(2)].service == Service::Streaming, streams, "{case:?}");
                }
            }
        }
    }
}

/// A trial of the third of three receivers that began a second ago, in which it has got as much as the
/// others.
fn has_taken_all(sender: &mut Sender, now: Time) -> Trial {
    let peer = peer(sender, 2);
    (peer.service, peer.signs.advanced_at) = (Service::Patching, now);
    let received = peer.lap.received;
    peer.lap.received += OTHERS;
    let since = Time(now.0 - 1_000_000_000);
    Trial {
        without: [Standing { id: PeerId(2), received, reported_at: since }].to_vec(),
        beside: sender.beside(),
        since,
        packets: sender.packets,
        window: 700,
        pace: OTHERS / 2,
        again: 0,
        shut: BTreeMap::new(),
        looked_at: since,
    }
}

/// One that has taken all that the others took is waited for again, twice within a minute.
#[test]
fn one_that_may_have_paused_is_waited_for_twice_a_minute() {
    for (at_s, waits) in [
        (&[0, 10, 20, 30][..], &[true, true, false, false][..]),
        (&[0, 59, 118], &[true, true, false]),
        (&[0, 60, 119, 179, 238], &[true, true, true, true, true]),
    ] {
        let mut sender = streaming(3);
        for (at_s, waits) in at_s.iter().zip(waits) {
            let now = BEGAN + MS * (at_s * 1_000);
            let trial = has_taken_all(&mut sender, now);
            sender.go_on_without(now, trial, OTHERS);
            assert_eq!(sender.peers[&PeerId(2)].service == Service::Streaming, *waits, "{at_s} s");
        }
    }
}

/// One that has come again too often in the middle of a trial is not waited for after it, however it ends.
#[test]
fn one_that_is_not_awaited_is_not_waited_for_after_a_trial() {
    for unawaited in [true, false] {
        let mut sender = streaming(3);
        peer(&mut sender, 2).unawaited = unawaited;
        let trial = has_taken_all(&mut sender, BEGAN);
        sender.in_vain(BEGAN, &trial);
        assert_eq!(sender.peers[&PeerId(2)].service == Service::Streaming, !unawaited);
        let trial = has_taken_all(&mut sender, BEGAN);
        sender.go_on_without(BEGAN, trial, OTHERS);
        assert_eq!(sender.peers[&PeerId(2)].service == Service::Streaming, !unawaited);
    }
}

/// Slow receivers set the pace where only those are left that the others did not wait for; those that have
/// come again too often set it only where no other is left.
#[test]
fn those_that_come_again_too_often_set_the_pace_last() {
    let mut sender = streaming(3);
    for id in 1..3 {
        peer(&mut sender, id).service = Service::Patching;
    }
    peer(&mut sender, 1).unawaited = true;
    peer(&mut sender, 0).service = Service::Done;
    let services =
        |sender: &Sender| sender.peers.values().map(|peer| peer.service.clone()).collect::<Vec<_>>();
    sender.check_slow(BEGAN);
    assert_eq!(services(&sender), [Service::Done, Service::Patching, Service::Streaming]);
    peer(&mut sender, 2).service = Service::Done;
    sender.check_slow(BEGAN + MS);
    assert_eq!(services(&sender), [Service::Done, Service::Streaming, Service::Done]);
}

/// One that is left behind is told both rates. If less than half of the others' reaches it, it leaves the
/// channel for TCP, unless it has not been heard of for a quarter of the time after which a path is given up:
/// then its path is broken rather than narrow. Where that is the policy it is given up.
#[test]
fn one_that_is_left_behind_leaves_the_channel_if_its_path_is_narrow() {
    let shown_of = |own| Shown { span_ms: 250, gained: 300, own, usual: own, again: 4 };
    for own in [1, 4, 7, 8, 12] {
        let (sender, _) = shown(shown_of(own), SlowPolicy::SHIPPED);
        let peer = &sender.peers[&PeerId(2)];
        let (own_rate, others) = (rate(&sender, own * 1_000), rate(&sender, OTHERS));
        assert_eq!(peer.trials.slower, Some(Slower { own: own_rate, others }));
        let leaves = own < 8;
        assert_eq!(peer.service, if leaves { Service::Chained } else { Service::Patching }, "{own} of 16");
        let left = |output: &Output| {
            matches!(
                output,
                Output::Control { peer: PeerId(2), control: Control::Channel { channel: NOWHERE, .. } }
            )
        };
        assert_eq!(sender.outputs.iter().any(left), leaves);

        let (sender, _) = shown(shown_of(own), SlowPolicy::SHIPPED.dropping());
        let why = Why::Slow(Slower { own: own_rate, others });
        assert_eq!(sender.peers[&PeerId(2)].service, Service::Failed(why));
    }
    for (silent_ms, leaves) in [(0, true), (249, true), (250, false), (600, false)] {
        let mut sender = streaming(3);
        peer(&mut sender, 2).service = Service::Patching;
        sender.leave_behind(BEGAN + MS * silent_ms, PeerId(2), 10, 1_000);
        assert_eq!(sender.peers[&PeerId(2)].service == Service::Chained, leaves, "silent for {silent_ms} ms");
    }
}

/// After a trial in vain the next one waits for half a second, then for twice as long, six times; the others
/// go on at once with the window from before, at most.
#[test]
fn trials_in_vain_become_rarer() {
    let mut sender = streaming(2);
    let mut now = BEGAN;
    for tried in 0..10 {
        peer(&mut sender, 1).service = Service::Patching;
        let window = 500 - 40 * u64::from(tried);
        let without = [sender.standing(PeerId(1))].to_vec();
        let (since, packets) = (now, sender.packets);
        let trial = Trial {
            without,
            beside: Vec::new(),
            since,
            packets,
            window,
            pace: 1,
            again: 0,
            shut: BTreeMap::new(),
            looked_at: BEGAN,
        };
        sender.in_vain(now, &trial);
        assert_eq!(sender.congestion.window(), window);
        let peer = peer(&mut sender, 1);
        assert_eq!((peer.service.clone(), peer.trials.tried), (Service::Streaming, tried + 1));
        assert_eq!(peer.trials.try_at, now + Duration::from_millis(500 << tried.min(6)));
        now = peer.trials.try_at;
    }
}

proptest! {
    /// Most of those that go on decide what the others get, as far as they have reported; packets that have
    /// only been sent, and receivers that have left the stream since, do not count.
    #[test]
    fn what_the_others_get_is_what_most_of_them_get(
        rates in proptest::collection::vec((0u64..50, 0u64..4, any::<bool>()), 1..8), sent in 0u64..60,
    ) {
        let mut sender = streaming(rates.len() as u32);
        let beside = sender.beside();
        let mut reached = Vec::new();
        for (id, (per_ms, spans, stays)) in (0..).zip(&rates) {
            let peer = peer(&mut sender, id);
            let span = Duration::from_millis(10 * spans);
            (peer.signs.advanced_at, peer.lap.received) = (BEGAN + span, peer.lap.received + per_ms * span.as_millis());
            if *stays {
                reached.push(if *spans > 0 { per_ms * 1_000 } else { 0 });
            } else {
                peer.service = Service::Patching;
            }
        }
        let trial = Trial { without: Vec::new(), beside, since: BEGAN, packets: 0, window: 1, pace: 1, again: 0, shut: BTreeMap::new(), looked_at: BEGAN };
        reached.sort_unstable();
        let usual = if reached.is_empty() { u64::MAX } else { reached[reached.len() / 2] };
        prop_assert_eq!(sender.others_get(&trial, sent * 1_000), usual.min(sent * 1_000));
    }

    /// Receivers whose sockets hold far less than the others' keep the window shut by that, alone or
    /// together, if most others, and as many as they are, have half of theirs free.
    #[test]
    fn those_with_little_room_keep_the_window_shut(
        small in proptest::collection::vec(7u64..60, 1..4), behind in proptest::collection::vec(0u64..86, 1..6), spare in 0u64..3,
    ) {
        let window = 100;
        let mut sender = streaming((small.len() + behind.len()) as u32);
        (sender.packets, sender.position) = (1_000, 1_000);
        for (id, behind) in (10..).zip(&behind) {
            let id = id - 10 + small.len() as u32;
            let peer = peer(&mut sender, id);
            (peer.window, peer.lap.acknowledged) = (window, 1_000 - behind);
        }
        for (id, small) in (0..).zip(&small) {
            let peer = peer(&mut sender, id);
            (peer.window, peer.lap.acknowledged) = (*small, 1_000 - small + if id == 0 { spare } else { 0 });
        }
        // What is left of the first one's room may be all of it but less than an eighth.
        prop_assume!(spare == 0 || small[0] / 8 > spare || small.len() == 1);
        let free = behind.iter().filter(|behind| *behind + 50 <= window).count();
        let is_shut = small.len() > 1 || spare == 0;
        let few = small.len() <= free && behind.len() <= 2 * free && small.iter().all(|small| *small <= 50);
        let is_alone = small.len() == 1 && free == behind.len();
        let expected: Vec<PeerId> =
            if is_shut && (few || is_alone) { (0..small.len() as u32).map(PeerId).collect() } else { vec![] };
        prop_assert_eq!(sender.keep_shut(), expected);
    }

    /// One keeps the window shut alone if there is no room, it alone has less than an eighth of it free, and
    /// all others have half of it.
    #[test]
    fn one_alone_keeps_the_window_shut_where_all_others_have_half_of_it_free(
        behind in proptest::collection::vec(prop_oneof![0u64..130, 48u64..52, 86u64..90, 98u64..102], 1..6), window in 98u64..103,
    ) {
        let mut sender = streaming(behind.len() as u32);
        (sender.packets, sender.position) = (1_000, 1_000);
        for (id, behind) in (0..).zip(&behind) {
            let peer = peer(&mut sender, id);
            (peer.window, peer.lap.acknowledged) = (window, 1_000 - behind);
        }
        // More may be in flight than a window that has shrunk.
        let last = behind.iter().copied().max().unwrap().max(window);
        let is_shut = behind.iter().any(|behind| *behind >= window);
        let few: Vec<u32> = (0..).zip(&behind).filter(|(_, behind)| **behind + window / 8 > last).map(|(id, _)| id).collect();
        let free = behind.iter().filter(|behind| **behind + window / 2 <= last).count();
        let is_so = is_shut && few.len() == 1 && free > 0 && free + 1 == behind.len();
        let expected: Vec<PeerId> = if is_so { vec![PeerId(few[0])] } else { vec![] };
        prop_assert_eq!(sender.keep_shut(), expected);
        // One whose lap is over, or for whom another one speaks, keeps nothing shut.
        if is_so {
            peer(&mut sender, few[0]).spoken_by = Some(PeerId(99));
            prop_assert_eq!(sender.keep_shut(), []);
            (peer(&mut sender, few[0]).spoken_by, peer(&mut sender, few[0]).lap.initial) = (None, None);
            prop_assert_eq!(sender.keep_shut(), []);
        }
    }
}

/// A sender of four receivers that has looked last at `BEGAN`, and has sent so many packets in each of the 20
/// ms since; the last receiver has queued for so many microseconds, and has lost so many packets.
fn looked(per_ms: u64, queue_us: u64, lost: u64, of_others: u64) -> Sender {
    let mut sender = streaming(4);
    (sender.slow.since, sender.slow.packets, sender.packets) = (BEGAN, 7, 7 + 20 * per_ms);
    for id in 0..4 {
        let peer = peer(&mut sender, id);
        let part = if id == 3 { 1 } else { of_others };
        (peer.lap.lost, peer.lap.received) = (1_000, 1_000);
        peer.trials.look = peer.trials.look.next(BEGAN, (peer.lap.received, peer.lap.lost), BEGAN);
        peer.lap.lost += lost.checked_div(part).unwrap_or(0);
        let queue = Duration::from_micros(queue_us.checked_div(part).unwrap_or(0));
        // Some packets queue for longer, some for less: the mean counts.
        [Duration::ZERO, queue, queue * 2].into_iter().for_each(|queue| peer.trials.look.queue(queue));
    }
    sender
}

/// For how long the receivers are held to have kept the others waiting, in milliseconds, after a look 20 ms
/// later.
fn held_after(mut sender: Sender) -> Vec<u64> {
    sender.config.slow = SlowPolicy::CatchUp { after: Duration::from_secs(9) };
    sender.peers.values_mut().for_each(|peer| peer.trials.held = MS * 10);
    sender.check_slow(BEGAN + MS * 20);
    assert!(sender.slow.trial.is_none(), "its patience is not over");
    sender.peers.values().map(|peer| peer.trials.held.as_millis()).collect()
}

/// A look takes 20 ms. A receiver whose path alone has a queue of a millisecond and of eight packets, or
/// eight losses, while the others have a quarter of that at most, has held them for as long; for four times
/// as long where it is plain. What others were held to have done fades by a quarter of that.
#[test]
fn queues_and_losses_of_one_path_alone_are_held_against_it() {
    let (counts, plain, none) = ([5, 5, 5, 30], [5, 5, 5, 90], [5, 5, 5, 5]);
    for (queue_us, of_others, expected) in [
        (999, 0, none),
        (1_000, 0, counts),
        (1_000, 4, counts),
        (4_000, 3, none),
        (7_999, 0, counts),
        (8_000, 0, plain),
        (8_000, 15, counts),
        (8_000, 16, plain),
    ] {
        // 8 packets take less than a millisecond; at 2 in a millisecond they take 4.
        assert_eq!(held_after(looked(20, queue_us, 0, of_others)), expected, "{queue_us} us, {of_others}");
        assert_eq!(held_after(looked(2, queue_us * 4, 0, of_others)), expected, "{queue_us} us, {of_others}");
        // Beside a granted rate queues do not count.
        let mut granted = looked(20, queue_us, 0, of_others);
        granted.config.rate = Some(Rate(1_000_000_000));
        assert_eq!(held_after(granted), none);
    }
    for (lost, of_others, expected) in [
        (7, 0, none),
        (8, 0, counts),
        (8, 4, counts),
        (32, 3, none),
        (63, 0, counts),
        (64, 0, plain),
        (64, 12, counts),
        (64, 16, plain),
    ] {
        assert_eq!(held_after(looked(20, 0, lost, of_others)), expected, "{lost} lost, {of_others}");
        let mut granted = looked(20, 0, lost, of_others);
        granted.config.rate = Some(Rate(1_000_000_000));
        assert_eq!(held_after(granted), expected, "{lost} lost, {of_others}");
        let mut seeks = looked(20, 0, lost, of_others);
        seeks.congestion.seek();
        assert_eq!(held_after(seeks), none, "a window that still grows has met no limit");
    }
}

/// One whose trial was in vain lately is not the reason, and hides no other that is; nor does one for whom
/// another one speaks count.
#[test]
fn one_that_may_not_be_tried_yet_hides_no_other() {
    let exempt: [fn(&mut Peer); 2] =
        [|peer| peer.trials.try_at = BEGAN + MS * 21, |peer| peer.spoken_by = Some(PeerId(0))];
    for exempt in exempt {
        let mut sender = looked(20, 2_000, 0, 0);
        for _ in 0..3 {
            peer(&mut sender, 1).trials.look.queue(MS * 30);
        }
        exempt(peer(&mut sender, 1));
        assert_eq!(held_after(sender), [5, 5, 5, 30]);
    }
    let mut sender = looked(20, 2_000, 0, 0);
    peer(&mut sender, 3).trials.try_at = BEGAN + MS * 20;
    assert_eq!(held_after(sender), [5, 5, 5, 30], "its time has come");
}

/// Looks are not closer together than 20 ms, nor than eight round trips without their queues.
#[test]
fn a_look_takes_20_ms_and_eight_round_trips() {
    for (bare_us, least_us) in [(100, 20_000), (2_500, 20_000), (3_000, 24_000)] {
        for (span_us, expected) in [(least_us - 1, false), (least_us, true)] {
            let mut sender = streaming(3);
            (sender.slow.since, sender.bare_trip) = (BEGAN, Duration::from_micros(bare_us));
            assert_eq!(sender.look(BEGAN + Duration::from_micros(span_us)).is_some(), expected);
        }
    }
}

/// All that have held the others for longer than these are patient are tried without, unless no other is
/// there that gains by it.
#[test]
fn those_that_have_held_the_others_for_too_long_are_tried_without() {
    let patience = MS * 30;
    for held in
        [[30, 0, 0, 0], [29, 0, 0, 0], [40, 30, 0, 29], [30, 30, 30, 0], [30, 30, 30, 30], [30, 30, 30, 29]]
    {
        for later in [false, true] {
            let mut sender = streaming(4);
            sender.config.slow = SlowPolicy::CatchUp { after: patience };
            (sender.slow.since, sender.packets, sender.slow.pace) = (BEGAN, 900, 5_000);
            for (id, held) in (0..).zip(held) {
                peer(&mut sender, id).trials.held = MS * held;
                peer(&mut sender, id).trials.try_at = BEGAN + MS * u64::from(later);
            }
            sender.check_slow(BEGAN);
            let due: Vec<u32> = (0..).zip(held).filter(|(_, held)| *held >= 30).map(|(id, _)| id).collect();
            let is_tried = !due.is_empty() && due.len() < 4 && !later;
            assert_eq!(sender.slow.trial.is_some(), is_tried, "{held:?}");
            for id in 0..4 {
                let is_out = is_tried && due.contains(&id);
                let expected = if is_out { Service::Patching } else { Service::Streaming };
                assert_eq!(sender.peers[&PeerId(id)].service, expected, "{id} of {held:?}");
            }
            let Some(trial) = &sender.slow.trial else { continue };
            assert_eq!((trial.since, trial.packets, trial.pace, trial.again), (BEGAN, 900, 5_000, 0));
            let ids = |standings: &[Standing]| standings.iter().map(|one| one.id.0).collect::<Vec<u32>>();
            assert_eq!(ids(&trial.without), due);
            assert_eq!(ids(&trial.beside), (0..4).filter(|id| !due.contains(id)).collect::<Vec<u32>>());
        }
    }
}

/// Another receiver that plainly holds the rest while a trial goes on is left out too, and the trial begins
/// again; unless none would be left.
#[test]
fn another_one_that_plainly_holds_the_rest_joins_a_trial() {
    for (queue_us, beside, joins) in [(8_000, 3, true), (7_900, 3, false), (8_000, 1, false)] {
        let mut sender = looked(20, queue_us, 0, 0);
        (0..4 - beside).for_each(|id| peer(&mut sender, id).service = Service::Patching);
        if beside == 1 {
            // Two are measured, of which one has been settled meanwhile.
            peer(&mut sender, 2).service = Service::Done;
        }
        let without = [sender.standing(PeerId(0))].to_vec();
        let began = BEGAN + MS * 5;
        let mut trial = Trial {
            without,
            beside: sender.beside(),
            since: began,
            packets: 11,
            window: 700,
            pace: 900,
            again: 0,
            shut: BTreeMap::new(),
            looked_at: BEGAN,
        };
        let now = BEGAN + MS * 20;
        peer(&mut sender, 3).trials.look.pace = Some(600);
        sender.look_beside(now, &mut trial);
        assert_eq!(trial.without.len(), if joins { 2 } else { 1 }, "{queue_us} us, {beside} beside");
        assert_eq!(sender.peers[&PeerId(3)].service == Service::Patching, joins);
        let expected = if joins { (now, sender.packets) } else { (began, 11) };
        assert_eq!((trial.since, trial.packets), expected);
        assert_eq!(trial.beside.len(), if joins { 2 } else { beside as usize });
        assert_eq!(sender.congestion.has_found(), !joins, "what the others take is found anew");
    }
}

/// A receiver on trial is named if the others are done before the trial is over, and it was checked again,
/// gets something and not what the others get.
#[test]
fn one_of_a_trial_is_named_when_the_others_are_done() {
    for again in 0..3 {
        for own in [0, 1, 8, 14, 15, 16] {
            let mut sender = streaming(3);
            peer(&mut sender, 2).service = Service::Patching;
            for id in 0..2 {
                let peer = peer(&mut sender, id);
                (peer.service, peer.signs.verified_at) = (Service::Done, BEGAN + MS * 50);
            }
            let without = [sender.standing(PeerId(2))].to_vec();
            let packets = sender.packets;
            sender.slow.trial = Some(Trial {
                without,
                beside: Vec::new(),
                since: BEGAN,
                packets,
                window: 1,
                pace: 1,
                again,
                shut: BTreeMap::new(),
                looked_at: BEGAN,
            });
            sender.packets += 16 * 50;
            (peer(&mut sender, 2).lap.received, peer(&mut sender, 2).signs.advanced_at) =
                (100 + own * 50, BEGAN + MS * 50);
            sender.check_slow(BEGAN + MS * 50);
            let named = (again > 0 && (1..15).contains(&own))
                .then(|| Slower { own: rate(&sender, own * 1_000), others: rate(&sender, OTHERS) });
            assert_eq!(
                sender.peers[&PeerId(2)].trials.slower,
                named,
                "{own} of 16, looked at again {again} times"
            );
            assert!(sender.slow.trial.is_none());
            let peer = &sender.peers[&PeerId(2)];
            assert_eq!(
                (&peer.service, peer.trials.held),
                (&Service::Streaming, Duration::ZERO),
                "it sets the pace now"
            );
        }
    }
}

/// Receivers that go on alone a second after the last of the others are named, if the bytes a second that
/// have reached them, without those they held before, are at most half of what most of the others have got;
/// unless they outnumber those that are done.
#[test]
fn the_last_ones_are_named_a_second_after_the_others() {
    // Bytes a millisecond of those that are done, and of the last one, which has held some before;
    // milliseconds since the others are done.
    for (done, own, held, after_ms, named) in [
        (&[40, 60, 80][..], 30, 0, 1_000, true),
        (&[40, 60, 80], 30, 0, 999, false),
        (&[40, 60, 80], 31, 0, 1_000, false),
        (&[40, 60, 80], 31, 2_000, 1_000, true),
        (&[60], 30, 0, 1_000, true),
        (&[40, 60], 30, 0, 1_000, true),
        (&[], 1, 0, 9_000, false),
    ] {
        let lasts = if done.len() == 2 { 2 } else { 1 };
        let mut sender = streaming(done.len() as u32 + lasts);
        sender.config.slow = SlowPolicy::SHIPPED.dropping();
        let since_ms = 2_000;
        for (id, rate) in (0..).zip(done) {
            let peer = peer(&mut sender, id);
            (peer.service, peer.has.verified_bytes) = (Service::Done, rate * since_ms);
            peer.signs.verified_at = START + MS * since_ms;
        }
        let now_ms = since_ms + after_ms;
        for id in (0..).skip(done.len()).take(lasts as usize) {
            let peer = peer(&mut sender, id);
            // It came later than the others.
            peer.signs.joined_at = START + MS * 500;
            (peer.has.held_count, peer.has.verified_bytes) = (held, own * (now_ms - 500));
            if held > 0 {
                peer.has.verified_bytes = 30 * (now_ms - 500) + held * 1_000;
            }
        }
        sender.name_the_last(START + MS * now_ms);
        for id in (0..).skip(done.len()).take(lasts as usize) {
            let peer = &sender.peers[&PeerId(id)];
            let usual = done.get(done.len() / 2).copied().unwrap_or(0);
            let slower = Slower { own: Rate(30 * 8_000), others: Rate(usual * 8_000) };
            assert_eq!(peer.trials.slower, named.then_some(slower), "{own} after {after_ms} ms of {done:?}");
            assert_eq!(peer.service == Service::Failed(Why::Slow(slower)), named);
        }
    }
    // More that go on than are done: they are the usual.
    let mut sender = streaming(3);
    (peer(&mut sender, 0).service, peer(&mut sender, 0).has.verified_bytes) = (Service::Done, 100_000);
    sender.name_the_last(START + MS * 9_000);
    assert!(sender.peers.values().all(|peer| peer.trials.slower.is_none()));
}
