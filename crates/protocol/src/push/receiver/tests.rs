//! Laws of a receiver, one at a time: what it holds to be lost, where it is in the stream, and what it goes
//! back on. `tests/push` has whole transfers.

#[cfg(test)]
extern crate std;

use super::*;
use alloc::collections::BTreeSet;
use proptest::prelude::*;
use std::panic::{AssertUnwindSafe, catch_unwind};

const MS: Duration = Duration::from_millis(1);
const NOW: Time = Time(1_000_000_000);
const FRAGMENTS: u64 = 100;

/// A receiver of an object of 100 fragments, eight of which are a group.
fn receiver() -> Receiver {
    let geometry = Geometry { object_len: FRAGMENTS * 1_000 - 100, fragment_len: 1_000, group_len: 8_000 };
    let mut receiver = Receiver::new(ReceiverConfig {
        geometry,
        reorder_packets: 1_000,
        reorder_delay: MS,
        gather_delay: MS * 2,
        retry_delay: MS * 20,
        reach_packets: 30,
        report_packets: 1_000,
        heartbeat: MS * 50,
    });
    receiver.handle(NOW, Input::Begin);
    receiver
}

fn data(receiver: &mut Receiver, now: Time, positions: Range<u64>, flags: u8) {
    let (round, sn) = ((positions.start / FRAGMENTS) as u32, positions.start % FRAGMENTS);
    let count = (positions.end - positions.start) as u32;
    receiver.handle(now, Input::Data { round, sn, count, flags, arrived: now });
}

fn said(receiver: &mut Receiver, now: Time) -> Vec<Output> {
    core::iter::from_fn(|| receiver.poll(now)).collect()
}

/// The fragments that are asked for.
fn asked(outputs: &[Output]) -> Vec<u64> {
    let ranges = outputs.iter().filter_map(|output| match output {
        Output::Control(Control::PtchReq(ranges)) | Output::Repeat(Control::PtchReq(ranges)) => Some(ranges),
        _ => None,
    });
    ranges.flatten().cloned().flatten().collect()
}

fn initial_sns(outputs: &[Output]) -> Vec<u64> {
    let position = |output: &Output| match output {
        Output::Control(Control::IntlSeq { position }) => Some(*position),
        _ => None,
    };
    outputs.iter().filter_map(position).collect()
}

proptest! {
    /// One that was taken too far goes back: what it skipped from there on is no loss, and what it skipped
    /// before is one as before. Its lap is over no more, unless the source itself has said so. If it goes
    /// back behind where its lap began, that begins there, and the source is told.
    #[test]
    fn what_lies_beyond_a_place_gone_back_to_is_not_lost(
        skips in proptest::collection::vec((1u64..25, 1u64..9), 1..12),
        to in prop_oneof![4 => 0u64..150, 1 => 19u64..22, 1 => 118u64..123],
        offered: bool,
    ) {
        let mut receiver = receiver();
        let initial = 20;
        let mut at = initial;
        let mut skipped = Vec::new();
        data(&mut receiver, NOW, at..at + 1, 0);
        at += 1;
        for (skip, count) in skips {
            skipped.extend(at..at + skip);
            let start = at + skip;
            (start..start + count).for_each(|position| data(&mut receiver, NOW, position..position + 1, 0));
            at = start + count;
        }
        if offered {
            receiver.offered = 1;
        }
        let was_over = receiver.lap_over_at.is_some();
        prop_assert_eq!(was_over, at >= initial + FRAGMENTS);
        let _ = said(&mut receiver, NOW);
        let to = to.min(at);
        receiver.go_back(to);
        prop_assert_eq!(receiver.next, to);
        let suspected: Vec<u64> = receiver.suspects.iter().flat_map(|suspect| suspect.positions.clone()).collect();
        // After a lap's end nothing more is suspected: all that is missing is lost then.
        let within: Vec<u64> = skipped.iter().copied().filter(|position| *position < to).collect();
        if !was_over {
            prop_assert_eq!(&suspected, &within);
        }
        prop_assert!(suspected.iter().all(|position| within.contains(position)));
        let begins = to.min(initial);
        prop_assert_eq!(receiver.initial, Some(begins));
        let told = initial_sns(&said(&mut receiver, NOW));
        prop_assert_eq!(told, if to < initial { vec![to] } else { vec![] });
        let goes_on = !offered && to < begins + FRAGMENTS;
        prop_assert_eq!(receiver.lap_over_at.is_some(), was_over && !goes_on);
    }

    /// Whatever comes in whatever order: when the lap is over just what has not come is asked for, and once.
    #[test]
    fn what_has_not_come_by_the_end_of_the_lap_is_asked_for(
        lost in proptest::collection::btree_set(0u64..FRAGMENTS, 0..40), initial in 0u64..FRAGMENTS,
        chunk in 1u64..9,
    ) {
        let mut receiver = receiver();
        let mut now = NOW;
        let mut outputs = Vec::new();
        let positions: Vec<u64> =
            (initial..initial + FRAGMENTS).filter(|at| !lost.contains(&(at % FRAGMENTS))).collect();
        let Some(first) = positions.first().copied() else { return Ok(()) };
        for run in positions.chunk_by(|a, b| a + 1 == *b && b % chunk != 0 && b % FRAGMENTS != 0) {
            data(&mut receiver, now, run[0]..run[run.len() - 1] + 1, 0);
            outputs.extend(said(&mut receiver, now));
            now += Duration::from_micros(30);
        }
        // The lap began where the first packet was; the source says that all was offered.
        receiver.handle(now, Input::Control(&Control::DataFnsd { position: initial + FRAGMENTS }));
        for step in 0..8 {
            outputs.extend(said(&mut receiver, now + MS * step));
        }
        prop_assert_eq!(initial_sns(&outputs), vec![first]);
        let asked: Vec<u64> = asked(&outputs);
        let once: BTreeSet<u64> = asked.iter().copied().collect();
        prop_assert_eq!(&once, &lost);
        prop_assert_eq!(asked.len(), lost.len(), "asked for twice: {:?}", asked);
    }

    /// Fragments that the source itself sends are kept once each, and their bytes count as patches if they
    /// were missing, whatever has come before.
    #[test]
    fn what_the_source_sends_is_kept_once(runs in proptest::collection::vec((0u64..FRAGMENTS, 1u64..20, any::<bool>()), 1..12)) {
        let mut receiver = receiver();
        let (mut here, mut sent, mut patched) = (BTreeSet::new(), BTreeSet::new(), 0);
        for (start, len, by_source) in runs {
            let run = start..(start + len).min(FRAGMENTS);
            let (sn, count) = (run.start, (run.end - run.start) as u32);
            let bytes: u64 = run
                .clone()
                .filter(|sn| !here.contains(sn))
                .map(|sn| if sn == FRAGMENTS - 1 { 900 } else { 1_000 })
                .sum();
            patched += bytes;
            let expected: BTreeSet<u64> =
                run.clone().filter(|sn| if by_source { !sent.contains(sn) } else { !here.contains(sn) }).collect();
            let input = if by_source { Input::Sent { sn, count } } else { Input::Patched { sn, count } };
            receiver.handle(NOW, input);
            let kept: Vec<u64> = said(&mut receiver, NOW)
                .iter()
                .filter_map(|output| match output {
                    Output::Keep { sn, count } => Some(*sn..*sn + u64::from(*count)),
                    _ => None,
                })
                .flatten()
                .collect();
            prop_assert_eq!(kept.len(), expected.len(), "{:?}", kept);
            prop_assert_eq!(kept.into_iter().collect::<BTreeSet<u64>>(), expected);
            if by_source {
                sent.extend(run.clone());
            }
            here.extend(run);
            prop_assert_eq!(receiver.patched_bytes(), patched);
        }
    }
}

/// A packet that skips no more than what may be on its way is near; so is one that skips a lap at most of
/// which most is here.
#[test]
fn a_packet_is_near_if_what_it_skips_may_be_on_its_way() {
    let mut receiver = receiver();
    data(&mut receiver, NOW, 0..1, 0);
    // 30 packets may be on their way.
    for (positions, near) in [(1..2, true), (31..32, true), (32..33, false), (0..1, true), (100..101, false)]
    {
        assert_eq!(receiver.is_near(&positions), near, "{positions:?}");
    }
    // What is here already was skipped for others: 10 to 75.
    receiver.handle(NOW, Input::Patched { sn: 10, count: 65 });
    for (positions, near) in
        [(95..96, true), (96..97, true), (97..98, false), (101..102, false), (102..103, false)]
    {
        assert_eq!(receiver.is_near(&positions), near, "{positions:?}");
    }
    receiver.handle(NOW, Input::Patched { sn: 1, count: 99 });
    for (positions, near) in [(101..102, true), (102..103, false)] {
        assert_eq!(receiver.is_near(&positions), near, "{positions:?}: a lap is skipped at most");
    }
    receiver.next = 80;
    for (positions, near) in [(48..49, false), (49..50, true), (49..51, true), (50..51, true), (79..80, true)]
    {
        assert_eq!(receiver.is_near(&positions), near, "{positions:?}: late by up to 30");
    }
}

/// Single attempts that are skipped are asked for at once, and so is what is lost when the lap is over; other
/// losses are gathered for 2 ms.
#[test]
fn losses_are_gathered_while_there_is_more_to_come() {
    for (flags, gathers) in [(0, true), (FLAG_ATTEMPT, false)] {
        let mut receiver = receiver();
        data(&mut receiver, NOW, 0..1, flags);
        data(&mut receiver, NOW, 3..4, flags);
        assert_eq!(asked(&said(&mut receiver, Time(NOW.0 + MS.0 - 1))), [], "they may be late");
        assert_eq!(asked(&said(&mut receiver, NOW + MS)), if gathers { vec![] } else { vec![1, 2] });
        assert_eq!(asked(&said(&mut receiver, Time(NOW.0 + MS.0 * 3 - 1))), []);
        assert_eq!(asked(&said(&mut receiver, NOW + MS * 3)), if gathers { vec![1, 2] } else { vec![] });
    }
}

proptest! {
    /// Missing fragments are reported in several ways, always the same.
    #[test]
    fn what_is_missing_is_told(
        here in proptest::collection::btree_set(0u64..FRAGMENTS, 0..100), sns in proptest::collection::vec(0u64..FRAGMENTS + 9, 1..6),
        from in 0u64..FRAGMENTS + 9, most in 0u64..40,
    ) {
        let mut receiver = receiver();
        here.iter().for_each(|sn| receiver.handle(NOW, Input::Patched { sn: *sn, count: 1 }));
        let lacks = |sn: &u64| !here.contains(sn);
        let run = (from..from + most).take_while(|sn| *sn < FRAGMENTS && lacks(sn)).count() as u64;
        prop_assert_eq!(receiver.missing_run(from, most), run);
        prop_assert_eq!(receiver.missing_of(&sns), sns.iter().filter(|sn| lacks(sn)).count());
        let lacking: Vec<u64> = sns.iter().copied().filter(lacks).collect();
        // One that is none of the object makes no sense of a patch.
        let one = if let [sn] = lacking[..] { (sn < FRAGMENTS).then_some(sn) } else { None };
        prop_assert_eq!(receiver.decodable(&sns), one);
        for most in [0, 1, 7, 200] {
            let missing = (from..FRAGMENTS).filter(lacks).count() as u64;
            prop_assert_eq!(receiver.missing_in(from..FRAGMENTS.max(from), most).min(most), missing.min(most));
        }
    }

    /// More is expected as long as the lap has more to offer than that, and has not been said to be over.
    #[test]
    fn more_is_expected_until_the_lap_is_over(initial in 0u64..FRAGMENTS, came in 1u64..FRAGMENTS, fragments in 0u64..120) {
        let mut receiver = receiver();
        prop_assert!(receiver.expects_more(fragments), "nothing has come");
        (initial..initial + came).for_each(|at| data(&mut receiver, NOW, at..at + 1, 0));
        prop_assert_eq!(receiver.next_sn(), (initial + came) % FRAGMENTS);
        prop_assert_eq!(receiver.expects_more(fragments), FRAGMENTS - came > fragments);
        receiver.handle(NOW, Input::Control(&Control::DataFnsd { position: initial + FRAGMENTS }));
        prop_assert!(!receiver.expects_more(0), "all was offered");
    }
}

/// A request that is not answered is repeated after 20 ms, then after twice as long, and so on, up to a
/// second.
#[test]
fn requests_are_repeated_ever_more_seldom() {
    let mut receiver = receiver();
    data(&mut receiver, NOW, 0..1, FLAG_ATTEMPT);
    data(&mut receiver, NOW, 3..4, FLAG_ATTEMPT);
    let mut at = Vec::new();
    for step in 0..4_000 {
        if !asked(&said(&mut receiver, NOW + MS * step)).is_empty() {
            at.push(step);
        }
    }
    let waits: Vec<u64> = at.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(waits, [20, 40, 80, 160, 320, 640, 640, 640, 640, 640], "{at:?}");
}

/// One that has believed a place far from where it was asks for what was skipped on the way there, and
/// between the packets that agreed.
#[test]
fn what_was_skipped_on_the_way_to_a_place_believed_is_lost() {
    let mut receiver = receiver();
    data(&mut receiver, NOW, 0..1, 0);
    for position in [60, 63] {
        data(&mut receiver, NOW + MS, position..position + 1, 0);
    }
    assert_eq!(receiver.next_sn(), 1, "the stream may go on where it was");
    let _ = said(&mut receiver, NOW + MS * 5);
    assert_eq!(receiver.next_sn(), 64, "nothing has come from there for a while");
    let outputs: Vec<Output> = (5..12).flat_map(|step| said(&mut receiver, NOW + MS * step)).collect();
    let expected: Vec<u64> = (1..60).chain(61..63).collect();
    assert_eq!(asked(&outputs), expected);
}

/// Nothing has to be checked before the next report is due where nothing was skipped.
#[test]
fn nothing_is_looked_for_where_nothing_was_skipped() {
    let mut receiver = receiver();
    for position in 0..9 {
        data(&mut receiver, NOW, position..position + 1, 0);
    }
    let _ = said(&mut receiver, NOW);
    assert_eq!(receiver.deadline(), Some(NOW + MS * 50));
    data(&mut receiver, NOW, 10..11, 0);
    let _ = said(&mut receiver, NOW);
    assert_eq!(receiver.deadline(), Some(NOW + MS), "a late packet is waited for");
}

proptest! {
    /// Packets can be the next ones where no more than may be on its way is skipped or repeated: of what lies
    /// between, up to a lap, only what is missing counts.
    #[test]
    fn what_is_near_is_told_by_what_is_missing_between(
        here in proptest::collection::vec(any::<bool>(), FRAGMENTS as usize), next in 0u64..250, start in 0u64..400, count in 1u64..40,
    ) {
        let mut receiver = receiver();
        let held = (0..FRAGMENTS).filter(|sn| here[*sn as usize]);
        held.for_each(|sn| {
            receiver.have.insert(sn..sn + 1);
        });
        receiver.next = next;
        let reach = receiver.config.reach_packets;
        let missing = (next..start).filter(|at| !here[(at % FRAGMENTS) as usize]).count() as u64;
        let near = if start <= next {
            start + count + reach >= next
        } else {
            start - next <= reach || (start - next <= FRAGMENTS && missing <= reach)
        };
        prop_assert_eq!(receiver.is_near(&(start..start + count)), near, "{} missing", missing);
    }

    /// However the fragments between lie: one more that is missing than may be on its way is too many.
    #[test]
    fn one_more_missing_than_may_be_on_its_way_is_far(runs in proptest::collection::vec((1u64..8, 1u64..3), 1..12)) {
        let mut receiver = receiver();
        (receiver.config.reach_packets, receiver.next) = (runs.iter().map(|run| run.0).sum(), 1);
        let mut at = 1;
        for (missing, held) in runs {
            at += missing;
            receiver.have.insert(at..at + held);
            at += held;
        }
        let is_near = |receiver: &Receiver, at| receiver.is_near(&(at..at + 1));
        let skips_more = at - 1 > receiver.config.reach_packets;
        prop_assert!(skips_more && is_near(&receiver, at.min(FRAGMENTS)));
        if at < FRAGMENTS - 1 {
            prop_assert!(!is_near(&receiver, at + 1), "{} is missing too", at);
        }
    }
}

/// A receiver whose lap is over waits for no message from the source: a millisecond later all that is missing
/// is lost, and what was gathered before at once.
#[test]
fn the_end_of_the_lap_ends_all_waiting() {
    let mut receiver = receiver();
    data(&mut receiver, NOW, 0..1, 0);
    data(&mut receiver, NOW, 3..FRAGMENTS - 1, 0);
    assert_eq!(asked(&said(&mut receiver, NOW + MS)), [], "they are gathered");
    let end = NOW + MS + Duration(9);
    data(&mut receiver, end, FRAGMENTS - 1..FRAGMENTS, 0);
    assert_eq!(asked(&said(&mut receiver, end)), [1, 2]);
    // One that has lost something just before the end waits for it as long as it may be late.
    let mut receiver = self::receiver();
    data(&mut receiver, NOW, 0..1, 0);
    data(&mut receiver, NOW, 3..FRAGMENTS, 0);
    assert_eq!(receiver.deadline(), Some(Time::ZERO));
    assert_eq!(asked(&said(&mut receiver, Time(NOW.0 + MS.0 - 1))), []);
    assert_eq!(receiver.deadline(), Some(NOW + MS));
    assert_eq!(asked(&said(&mut receiver, NOW + MS)), [1, 2]);
}

proptest! {
    /// Fragments that the source itself has sent are remembered as long as one of their groups is not
    /// verified, and no longer.
    #[test]
    fn what_was_sent_is_remembered_until_it_is_verified(
        group_len in 1_024u32..20_000, order in proptest::collection::vec(any::<prop::sample::Index>(), 1..12), extra in 0u64..4,
    ) {
        let mut receiver = receiver();
        receiver.config.geometry.group_len = group_len;
        let geometry = receiver.config.geometry;
        let groups = geometry.groups();
        (receiver.checking, receiver.verified) = (Bits::new(groups), Bits::new(groups));
        (receiver.spoiled, receiver.distrusted) = (Bits::new(groups), Bits::new(groups));
        let mut sent = BTreeSet::new();
        for index in order {
            let group = index.index(groups as usize) as u64;
            let sns = geometry.fragments_of_group(group);
            let sns = sns.start..(sns.end + extra).min(FRAGMENTS);
            receiver.handle(NOW, Input::Sent { sn: sns.start, count: (sns.end - sns.start) as u32 });
            sent.extend(sns);
            let checks: Vec<u64> = said(&mut receiver, NOW)
                .into_iter()
                .filter_map(|output| if let Output::Check { group } = output { Some(group) } else { None })
                .collect();
            for group in checks {
                receiver.handle(NOW, Input::Checked { group, intact: true });
            }
            sent.retain(|sn| {
                geometry.groups_of_fragments(*sn..*sn + 1).any(|group| !receiver.is_verified(group))
            });
            prop_assert_eq!(&receiver.sent.iter().flatten().collect::<BTreeSet<u64>>(), &sent);
        }
    }
}

/// A way to spoil a receiver's state, and what that is.
type Spoils = (&'static str, fn(&mut Receiver));

fn suspect(positions: Range<u64>) -> Suspect {
    Suspect { positions, at: NOW, attempts: false }
}

fn gather(receiver: &mut Receiver, sns: Range<u64>) {
    (receiver.gathered_at, receiver.gathered) = (Some(NOW), vec![sns]);
}

/// Impossible states of a receiver to which nothing has come.
const IDLE: [Spoils; 21] = [
    ("a verified group too many", |r| r.verified.count += 1),
    ("a checked group too many", |r| r.checking.count += 1),
    ("a spoiled group too many", |r| r.spoiled.count += 1),
    ("a distrusted group too many", |r| r.distrusted.count += 1),
    ("all groups verified, and no bytes", |r| {
        for group in 0..13 {
            r.verified.set(group, true);
        }
    }),
    ("all bytes verified, and not all groups", |r| {
        r.verified.set(1, true);
        r.verified_bytes = r.config.geometry.object_len;
    }),
    ("a fragment that there is not", |r| {
        r.have.insert(FRAGMENTS..FRAGMENTS + 1);
    }),
    ("one asked for that there is not", |r| {
        r.requested.insert(FRAGMENTS..FRAGMENTS + 1);
    }),
    ("one gathered that there is not", |r| gather(r, FRAGMENTS..FRAGMENTS + 1)),
    ("nothing gathered", |r| gather(r, 5..5)),
    ("gathered, and never asked for", |r| r.gathered.push(5..6)),
    ("complete with nothing", |r| r.complete = true),
    ("committed before complete", |r| r.committed = true),
    ("reported what has not come", |r| r.reported_received = 1),
    ("distrusted what was right", |r| {
        r.distrusted.set(1, true);
    }),
    ("sent, and not there", |r| {
        r.sent.insert(3..4);
    }),
    ("sent, and verified", |r| {
        r.have.insert(0..8);
        r.sent.insert(0..1);
        r.verified.set(0, true);
    }),
    ("somewhere before its lap has begun", |r| r.next = 1),
    ("at its lap's end before it has begun", |r| r.lap_over_at = Some(NOW)),
    ("packets before its lap has begun", |r| r.received = 1),
    ("skipped before its lap has begun", |r| r.suspects.push_back(suspect(0..1))),
];

/// Impossible states of a receiver to which 4 to 19 have come.
const RUNNING: [Spoils; 9] = [
    ("before its own lap", |r| r.initial = Some(21)),
    ("skipped twice", |r| r.suspects.extend([suspect(5..8), suspect(7..9)])),
    ("skipped in another order", |r| r.suspects.extend([suspect(7..9), suspect(5..6)])),
    ("skipped nothing", |r| r.suspects.push_back(suspect(7..7))),
    ("skipped what is still to come", |r| r.suspects.push_back(suspect(19..21))),
    ("skipped before its lap", |r| r.suspects.push_back(suspect(3..5))),
    ("chained, and something was skipped", |r| {
        r.suspects.push_back(suspect(7..8));
        r.chained = true;
    }),
    ("chained, and something is gathered", |r| {
        r.gathered.push(7..8);
        r.chained = true;
    }),
    ("chained, and something was asked for", |r| {
        r.requested.insert(7..8);
        r.chained = true;
    }),
];

/// Each impossible state is noticed, even if it is the only one.
#[test]
fn a_receiver_that_contradicts_itself_is_noticed() {
    let begun = || {
        let mut receiver = receiver();
        data(&mut receiver, NOW, 4..20, 0);
        receiver
    };
    let cases = IDLE.into_iter().map(|case| (receiver(), case));
    for (mut receiver, (what, spoil)) in cases.chain(RUNNING.into_iter().map(|case| (begun(), case))) {
        receiver.check();
        spoil(&mut receiver);
        assert!(catch_unwind(AssertUnwindSafe(|| receiver.check())).is_err(), "{what}");
    }
}
