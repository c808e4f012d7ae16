use super::*;
use alloc::vec;
use core::net::IpAddr;
use proptest::prelude::*;

const GROUPS: u64 = 200;

fn candidate(last: u8) -> Candidate {
    Candidate { address: [10, 0, 0, last].into(), port: 7, name: None, is_source: false, share: Share::ALL }
}

fn source() -> Candidate {
    Candidate { is_source: true, ..candidate(0) }
}

fn one(range: Range<u64>) -> [Range<u64>; 1] {
    [range]
}

fn at(ms: u64) -> Time {
    Time(ms * 1_000_000)
}

fn fresh() -> Upstreams {
    Upstreams::new(UpstreamsConfig { groups: GROUPS, group_len: 1 << 18, seed: 3 })
}

fn outputs(upstreams: &mut Upstreams) -> Vec<Output> {
    core::iter::from_fn(|| upstreams.poll()).collect()
}

fn asked(outputs: &[Output], of: UpstreamId) -> Vec<u64> {
    let groups = |output: &Output| match output {
        Output::Ask(id, groups) if *id == of => groups.clone(),
        _ => vec![],
    };
    outputs.iter().flat_map(groups).collect()
}

/// Two of three are open.
fn two_open() -> Upstreams {
    let mut upstreams = fresh();
    upstreams.handle(
        at(0),
        Input::Candidates { all: &[candidate(1), candidate(2), candidate(3)], is_behind_head: false },
    );
    let open = (0..3).map(|id| Output::Open(UpstreamId(id), candidate(id as u8 + 1)));
    assert_eq!(outputs(&mut upstreams), open.collect::<Vec<_>>());
    upstreams.handle(at(1), Input::Opened(UpstreamId(0)));
    upstreams.handle(at(1), Input::Opened(UpstreamId(1)));
    upstreams
}

#[test]
fn two_upstreams_are_asked_for_different_groups() {
    let mut upstreams = two_open();
    upstreams.handle(at(2), Input::Has(UpstreamId(0), &one(0..100)));
    upstreams.handle(at(2), Input::Has(UpstreamId(1), &one(0..100)));
    let told = outputs(&mut upstreams);
    let (one, other) = (asked(&told, UpstreamId(0)), asked(&told, UpstreamId(1)));
    assert_eq!((one.len(), other.len()), (ASK_MIN, ASK_MIN));
    assert!(one.iter().all(|group| !other.contains(group)));
    // What has come makes room for one more.
    upstreams.handle(at(4), Input::Heard(UpstreamId(0), 1 << 18));
    upstreams.handle(at(4), Input::Came(UpstreamId(0), one[0]));
    upstreams.handle(at(4), Input::Verified(one[0]));
    assert!(!asked(&outputs(&mut upstreams), UpstreamId(0)).is_empty());
}

#[test]
fn what_only_one_has_is_asked_first() {
    let mut upstreams = two_open();
    upstreams.handle(at(2), Input::Has(UpstreamId(0), &one(0..100)));
    let first = asked(&outputs(&mut upstreams), UpstreamId(0));
    upstreams.handle(at(2), Input::Has(UpstreamId(1), &[0..100, 150..152]));
    assert_eq!(first.len(), ASK_MIN);
    let mut rare = asked(&outputs(&mut upstreams), UpstreamId(1));
    rare.sort_unstable();
    assert_eq!(rare, [150, 151]);
}

#[test]
fn one_that_stalls_is_dropped_and_another_one_gives_what_it_was_asked_for() {
    let mut upstreams = two_open();
    upstreams.handle(at(2), Input::Has(UpstreamId(0), &one(0..1)));
    assert_eq!(asked(&outputs(&mut upstreams), UpstreamId(0)), [0]);
    upstreams.handle(at(2), Input::Has(UpstreamId(1), &one(0..1)));
    // It is late: the other one is asked, too. Then it is dropped.
    let mut told = vec![];
    for ms in (50..1_000).step_by(50) {
        upstreams.handle(at(ms), Input::Tick);
        told.extend(outputs(&mut upstreams).into_iter().map(|output| (ms, output)));
    }
    let when = |output: Output| told.iter().find(|(_, other)| *other == output).map(|(ms, _)| *ms);
    let asked = when(Output::Ask(UpstreamId(1), vec![0]));
    let lost = when(Output::Lost(candidate(1), Fault::NeverGave));
    assert!(asked.is_some_and(|at| at >= 200) && lost.is_some_and(|at| at >= 800), "{told:?}");
    assert!(asked < lost && when(Output::Close(UpstreamId(0))) == lost, "{told:?}");
}

#[test]
fn one_that_stood_still_itself_drops_none() {
    let mut upstreams = two_open();
    upstreams.handle(at(2), Input::Has(UpstreamId(0), &one(0..10)));
    outputs(&mut upstreams);
    upstreams.handle(at(60_000), Input::Tick);
    assert_eq!(outputs(&mut upstreams), []);
}

#[test]
fn a_short_object_needs_few_upstreams() {
    let mut upstreams = Upstreams::new(UpstreamsConfig { groups: 1, group_len: 1 << 18, seed: 3 });
    upstreams.handle(
        at(0),
        Input::Candidates { all: &[candidate(1), candidate(2), source()], is_behind_head: false },
    );
    let open = [Output::Open(UpstreamId(0), candidate(1)), Output::Open(UpstreamId(2), source())];
    assert_eq!(outputs(&mut upstreams), open);
}

/// Lists the groups that a receiver reports as lacking, and when; its one upstream has the groups `has` and
/// gives 20 MiB/s of something else.
fn lacks_beside(has: &[Range<u64>]) -> Vec<(u64, Vec<Range<u64>>)> {
    let mut upstreams = two_open();
    upstreams.handle(at(2), Input::Has(UpstreamId(0), has));
    upstreams.handle(at(2), Input::Verified(24));
    let mut lacks = vec![];
    for ms in (50..9_000).step_by(50) {
        // That no whole group comes is not its fault here.
        upstreams.handle(at(ms), Input::HeldUp);
        upstreams.handle(at(ms), Input::Heard(UpstreamId(0), 1 << 20));
        upstreams.handle(at(ms), Input::Tick);
        let told = outputs(&mut upstreams);
        lacks.extend(told.into_iter().filter_map(|output| match output {
            Output::Lacks(ranges) => Some((ms, ranges)),
            _ => None,
        }));
    }
    lacks
}

#[test]
fn what_none_has_after_a_while_is_lacking() {
    // 32 groups take 400 ms.
    let lacks = lacks_beside(&one(0..2));
    let times: Vec<u64> = lacks.iter().map(|(ms, _)| *ms).collect();
    assert!((350..=550).contains(&times[0]) && times.len() > 1, "{times:?}");
    assert!(times.windows(2).all(|two| two[1] - two[0] >= 750), "{times:?}");
    assert_eq!(lacks[0].1, one(2..24), "what comes later is not lacking");
    let rest = [2..24, 25..GROUPS];
    assert!(lacks[1..].iter().all(|(_, ranges)| *ranges == rest), "unless nothing comes any more: {lacks:?}");
}

/// All have the same to fetch, where they are slower than the source: what is not in sight yet may be at one
/// that has as much before it.
#[test]
fn one_that_has_much_to_fetch_waits_longer_before_it_lacks_anything() {
    // Of 28 groups two are asked for: 32 and four times 26 take 1.7 s.
    let lacks = lacks_beside(&[0..10, 12..20, 50..60]);
    assert!((1_600..=1_900).contains(&lacks[0].0), "{lacks:?}");
    assert_eq!(lacks[0].1, [10..12, 20..24]);
}

type Breaks = fn(&mut Upstreams);

#[test]
fn one_that_breaks_the_rules_is_dropped() {
    let wrong: [(&str, Breaks); 5] = [
        ("a group that there is not", |u| u.handle(at(2), Input::Has(UpstreamId(0), &one(199..201)))),
        ("an empty range", |u| u.handle(at(2), Input::Has(UpstreamId(0), &one(5..5)))),
        ("a group that was not asked for", |u| u.handle(at(2), Input::Came(UpstreamId(0), 7))),
        ("a group that there is not", |u| u.handle(at(2), Input::Came(UpstreamId(0), 700))),
        ("wrong bytes", |u| u.handle(at(2), Input::Wrong(UpstreamId(0), 700))),
    ];
    for (what, breaks) in wrong {
        let mut upstreams = two_open();
        breaks(&mut upstreams);
        let told = outputs(&mut upstreams);
        let is_lost = |output: &Output| matches!(output, Output::Lost(lost, _) if *lost == candidate(1));
        assert!(told.iter().any(is_lost), "{what}: {told:?}");
        assert!(told.contains(&Output::Close(UpstreamId(0))), "{what}: {told:?}");
    }
}

#[test]
fn one_that_has_lost_all_lacks_everything_and_gets_it_from_the_source() {
    let mut upstreams = two_open();
    upstreams.handle(at(2), Input::Verified(4));
    for id in 0..2 {
        upstreams.handle(at(2), Input::Closed(UpstreamId(id), Fault::Ended));
    }
    let lacks = |output: &Output| matches!(output, Output::Lacks(_));
    assert!(!outputs(&mut upstreams).iter().any(lacks));
    upstreams.handle(at(3), Input::Closed(UpstreamId(2), Fault::Unreachable));
    assert!(outputs(&mut upstreams).contains(&Output::Lacks(vec![0..4, 5..GROUPS])));
    upstreams.handle(at(4), Input::Candidates { all: &[source()], is_behind_head: false });
    assert_eq!(outputs(&mut upstreams), [Output::Open(UpstreamId(3), source())]);
    // The source chooses.
    upstreams.handle(at(5), Input::Opened(UpstreamId(3)));
    upstreams.handle(at(6), Input::Came(UpstreamId(3), 9));
    assert_eq!(outputs(&mut upstreams), []);
}

proptest! {
    /// Whatever happens, the laws hold; what is asked of an upstream is something that it has, and that is
    /// not here; and it is asked of two at most.
    #[test]
    fn only_what_lacks_is_asked_for(
        steps in proptest::collection::vec((0u8..9, 0u32..5, 0u64..30, 0u64..120), 0..120),
    ) {
        let mut upstreams = Upstreams::new(UpstreamsConfig { groups: 30, group_len: 1 << 18, seed: 1 });
        let mut now = 0;
        let mut has: BTreeMap<UpstreamId, RangeSet> = BTreeMap::new();
        let mut asked: BTreeMap<UpstreamId, VecDeque<u64>> = BTreeMap::new();
        let mut here = RangeSet::new();
        for (action, id, group, ms) in steps {
            now += ms;
            let id = UpstreamId(id);
            match action {
                0 => upstreams.handle(at(now), Input::Candidates { all: &[candidate(1), candidate(2), candidate(3), source()], is_behind_head: false }),
                1 => upstreams.handle(at(now), Input::Opened(id)),
                2 => {
                    has.entry(id).or_default().insert(group..group + 1);
                    upstreams.handle(at(now), Input::Has(id, &one(group..group + 1)));
                }
                3 => upstreams.handle(at(now), Input::Closed(id, Fault::Ended)),
                4 | 5 => if let Some(group) = asked.get_mut(&id).and_then(VecDeque::pop_front) {
                    upstreams.handle(at(now), Input::Heard(id, 1 << 18));
                    upstreams.handle(at(now), Input::Came(id, group));
                    if action == 4 {
                        here.insert(group..group + 1);
                        upstreams.handle(at(now), Input::Verified(group));
                    } else {
                        upstreams.handle(at(now), Input::Wrong(id, group));
                    }
                },
                6 => {
                    here.insert(group..group + 1);
                    upstreams.handle(at(now), Input::Verified(group));
                }
                _ => upstreams.handle(at(now), Input::Tick),
            }
            for output in outputs(&mut upstreams) {
                match output {
                    Output::Ask(id, groups) => for group in groups {
                        prop_assert!(has.get(&id).is_some_and(|has| has.contains(group)), "{group} of {id:?}");
                        prop_assert!(!here.contains(group), "{group} is here");
                        asked.entry(id).or_default().push_back(group);
                        let times = asked.values().flatten().filter(|other| **other == group).count();
                        prop_assert!(times <= 2, "{group} is asked of {times}");
                    },
                    Output::Close(id) => drop(asked.remove(&id)),
                    Output::Lacks(ranges) => {
                        prop_assert!(ranges.into_iter().flatten().all(|group| !here.contains(group)));
                    }
                    _ => {}
                }
            }
        }
    }
}

#[test]
fn a_receiver_connects_to_none_that_its_source_cannot_have_seen() {
    let parsed = |address: &str| -> IpAddr { address.parse().unwrap() };
    for (own, other, source) in [("10.0.0.9", "10.0.0.2", "10.0.0.1"), ("fd00::9", "fe80::2", "fd00::1")] {
        let check = |address, port, source| {
            let candidate =
                Candidate { address: parsed(address), port, name: None, is_source: false, share: Share::ALL };
            candidate.check((parsed(own), 7), parsed(source))
        };
        assert_eq!(check(other, 7, source), Ok(()));
        assert_eq!(check(own, 8, source), Ok(()), "another receiver of the same host");
        assert_eq!(check(own, 7, source), Err(Refused::Oneself));
        let v4 = ["127.0.0.1", "224.0.0.1", "239.1.2.3", "255.255.255.255", "0.0.0.0", "0.1.2.3"];
        for address in v4.into_iter().chain(["::", "::1", "ff02::1", "ff15::8000:1"]) {
            assert_eq!(check(address, 7, source), Err(Refused::Elsewhere), "{address}");
        }
        assert_eq!(check(other, 0, source), Err(Refused::Elsewhere));
        for loopback in ["127.0.0.1", "::1"] {
            assert_eq!(check(loopback, 7, loopback), Ok(()), "all are on one host");
        }
    }
}

/// A connection to the source that neither end knows to be broken is opened anew, after the second word of
/// what lacks.
#[test]
fn a_silent_source_is_connected_to_again() {
    let mut upstreams = fresh();
    upstreams.handle(at(0), Input::Candidates { all: &[source()], is_behind_head: false });
    assert_eq!(outputs(&mut upstreams), [Output::Open(UpstreamId(0), source())]);
    upstreams.handle(at(1), Input::Opened(UpstreamId(0)));
    upstreams.handle(at(2), Input::Verified(0));
    let mut told = vec![];
    for ms in (50..12_000).step_by(50) {
        upstreams.handle(at(ms), Input::Tick);
        for output in outputs(&mut upstreams) {
            if let Output::Lacks(_) = output {
                // The source names itself again.
                upstreams.handle(at(ms), Input::Candidates { all: &[source()], is_behind_head: false });
            }
            told.push(output);
        }
    }
    let lacks = |output: &Output| matches!(output, Output::Lacks(_));
    assert!(lacks(&told[0]) && told[1] == Output::Close(UpstreamId(0)) && lacks(&told[2]), "{told:?}");
    assert_eq!(told[3], Output::Open(UpstreamId(1), source()));
}

/// One that no member serves, and that the source has no room for, asks it a few times a second.
#[test]
fn one_that_is_turned_away_comes_again_after_a_while() {
    let mut upstreams = fresh();
    let mut opened = 0;
    upstreams.handle(at(0), Input::Candidates { all: &[source()], is_behind_head: false });
    for ms in 0..10_000 {
        upstreams.handle(at(ms), Input::Tick);
        while let Some(output) = upstreams.poll() {
            match output {
                Output::Open(id, _) => {
                    opened += 1;
                    upstreams.handle(at(ms), Input::Closed(id, Fault::Unreachable));
                }
                Output::Lacks(_) => {
                    upstreams.handle(at(ms), Input::Candidates { all: &[source()], is_behind_head: false })
                }
                _ => {}
            }
        }
    }
    assert!((4..=70).contains(&opened), "{opened} times in 10 s");
}

/// Returns the time in ms after which a receiver behind a head has all groups, where the source gives it, in
/// a millisecond each, what it says that it lacks; the only other member gives nothing, or is lost.
fn has_all_from_its_source_at(is_lost: bool) -> Option<u64> {
    let mut upstreams = Upstreams::new(UpstreamsConfig { groups: 2_000, group_len: 1 << 18, seed: 3 });
    let all = [source(), candidate(1)];
    upstreams.handle(at(0), Input::Candidates { all: &all, is_behind_head: true });
    let (at_source, member) = (UpstreamId(0), UpstreamId(1));
    upstreams.handle(at(1), Input::Opened(at_source));
    upstreams.handle(at(1), Input::Opened(member));
    let (mut given, mut here): (VecDeque<u64>, u64) = ((0..10).collect(), 0);
    for ms in 2..120_000 {
        if let Some(group) = given.pop_front() {
            upstreams.handle(at(ms), Input::Heard(at_source, 1 << 18));
            upstreams.handle(at(ms), Input::Came(at_source, group));
            upstreams.handle(at(ms), Input::Verified(group));
            here += 1;
        }
        if ms == 20 && is_lost {
            upstreams.handle(at(ms), Input::Closed(member, Fault::Ended));
        }
        if ms % 50 == 0 {
            upstreams.handle(at(ms), Input::Tick);
        }
        for output in outputs(&mut upstreams) {
            if let Output::Lacks(ranges) = output {
                given.extend(ranges.into_iter().flatten());
            }
        }
        if here == 2_000 {
            return Some(ms);
        }
    }
    None
}

/// No head brings anything to one that has lost all other members: it waits for none, and says at once all
/// that it lacks.
#[test]
fn one_behind_a_head_that_has_lost_all_gets_all_from_the_source() {
    let had = has_all_from_its_source_at(true);
    assert!(had.is_some_and(|ms| ms < 3_000), "{had:?}");
}

/// Groups that a head owes and does not bring come from the source, more of them each time: the waits do not
/// grow with the object.
#[test]
fn one_whose_head_brings_nothing_says_more_each_time() {
    let had = has_all_from_its_source_at(false);
    assert!(had.is_some_and(|ms| ms < 30_000), "{had:?}");
}
