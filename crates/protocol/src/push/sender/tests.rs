//! Decisions of a sender, one law at a time, compared with a list of positions. `tests/push` has whole
//! transfers.

use super::*;
use crate::push::Geometry;
use polycast_types::Handle;
use polycast_wire::data::HEADER_LEN;
use proptest::prelude::*;

const FRAGMENTS: u64 = 50;
const MS: Duration = Duration::from_millis(1);
const NOW: Time = Time(1_000_000_000);

/// A sender whose receivers take the stream from its beginning on, at full rate.
fn sender(peers: u32) -> Sender {
    let geometry = Geometry { object_len: FRAGMENTS * 1_000 - 100, fragment_len: 1_000, group_len: 10_000 };
    let mut sender = Sender::new(SenderConfig::new(Handle(1), geometry, 7));
    (0..peers).for_each(|id| sender.join(NOW, PeerId(id), 1 << 20, RangeSet::new(), Location::default()));
    for peer in sender.peers.values_mut() {
        (peer.service, peer.lap.initial) = (Service::Streaming, Some(0));
    }
    (sender.started_at, sender.settling) = (Some(NOW), Settling::Settled);
    sender
}

fn peer(sender: &mut Sender, id: u32) -> &mut Peer {
    sender.peers.get_mut(&PeerId(id)).unwrap()
}

/// Sends all up to this position, one packet at a time.
fn sent_to(sender: &mut Sender, position: u64) {
    while sender.position < position {
        sender.send(NOW, sender.position, 1, 0);
    }
}

fn progress(position: u64, received: u64) -> Control<'static> {
    Control::Progress { position, received, lost: 0, verified_bytes: 0, arrived_ns: 0, waited_ns: 0 }
}

fn outputs(sender: &mut Sender) -> Vec<Output> {
    sender.outputs.drain(..).collect()
}

/// The window is not tried again and again while it is the furthest behind that gets nothing.
#[test]
fn only_the_one_furthest_behind_opens_a_shut_window() {
    for (id, position, opens) in [(0, 9, true), (1, 19, false), (0, 5, false)] {
        let mut sender = sender(2);
        sent_to(&mut sender, 30);
        (peer(&mut sender, 0).lap.position, peer(&mut sender, 0).lap.acknowledged) = (5, 5);
        (peer(&mut sender, 1).lap.position, peer(&mut sender, 1).lap.acknowledged) = (9, 9);
        sender.probes = 3;
        sender.control(NOW + MS, PeerId(id), &progress(position, position));
        assert_eq!(sender.probes, if opens { 0 } else { 3 }, "{id} is at {position}");
    }
}

/// A packet that has waited in a socket for a quarter of a path's patience says nothing of the way: its
/// receiver was held up, or lies.
#[test]
fn one_that_was_held_up_says_nothing_of_the_way() {
    for (waited, counts) in [(MS * 249, true), (MS * 250, false), (MS * 9_000, false)] {
        let mut sender = sender(2);
        sent_to(&mut sender, 30);
        assert!(!sender.status(PeerId(0)).unwrap().held_up);
        let (trip, waited_ns) = (sender.round_trip, waited.0);
        let (received, verified_bytes) = (4, 0);
        let report =
            Control::Progress { position: 4, received, lost: 0, verified_bytes, arrived_ns: 1, waited_ns };
        sender.control(NOW + MS * 2_000, PeerId(0), &report);
        assert_eq!(sender.round_trip != trip, counts, "{waited}");
        assert_eq!(sender.status(PeerId(0)).unwrap().held_up, !counts, "{waited}");
    }
}

/// Reports of one for whom another speaks, and its first report after that, do not govern the pace: its
/// totals are not those that were heard before.
#[test]
fn totals_that_were_not_heard_do_not_govern_the_pace() {
    let mut sender = sender(2);
    sent_to(&mut sender, 30);
    sender.allow(PeerId(1), [PeerId(0)].into());
    sender.name_rack(PeerId(1), &[0]);
    let trip = sender.round_trip;
    sender.control(NOW + MS * 9, PeerId(0), &progress(4, 4));
    assert_eq!(sender.round_trip, trip, "another one speaks for it");
    sender.name_rack(PeerId(1), &[]);
    sender.control(NOW + MS * 9, PeerId(0), &progress(8, 8));
    assert_eq!(sender.round_trip, trip, "what it has got meanwhile is news");
    sender.control(NOW + MS * 9, PeerId(0), &progress(12, 12));
    assert_eq!(sender.round_trip, Duration((trip.0 * 7 + MS.0 * 9) / 8));
    assert_eq!((sender.peers[&PeerId(0)].lap.received, sender.peers[&PeerId(0)].lap.position), (12, 12));
    // What does not lead further says nothing.
    sender.control(NOW + MS * 20, PeerId(0), &progress(12, 30));
    assert_eq!(sender.peers[&PeerId(0)].lap.received, 12);
}

/// At a stream's end requests are gathered for half a round trip, at most an eighth of the usual time.
#[test]
fn requests_at_the_end_are_gathered_for_a_short_time() {
    let mut sender = sender(1);
    for (trip_us, delay_us) in [(200, 100), (2_400, 1_200), (2_600, 1_250), (90_000, 1_250)] {
        sender.round_trip = Duration::from_micros(trip_us);
        assert_eq!(sender.short_patch_delay(), Duration::from_micros(delay_us), "{trip_us} us");
    }
}

proptest! {
    /// A report is asked for after a quarter of what may be in flight, and when no more may be.
    #[test]
    fn reports_are_asked_for_every_quarter_of_a_window(window in 1u64..60, acknowledged in 0u64..30, packets in 1u64..90) {
        let mut sender = sender(1);
        sender.fragments = 1 << 20;
        peer(&mut sender, 0).window = window;
        let limit = window.min(sender.congestion.window());
        let (mut since, mut granted) = (0, 0);
        for packet in 1..=packets {
            // Receivers get on meanwhile.
            if packet % 7 == 0 {
                granted = (granted + acknowledged).min(packet - 1);
                peer(&mut sender, 0).lap.acknowledged = granted;
            }
            let Output::Send { flags, count: 1, .. } = sender.send(NOW, sender.position, 1, 0) else { panic!() };
            since += 1;
            let is_shut = packet >= granted + limit;
            let expected = since >= (limit / 4).max(1) || is_shut;
            prop_assert_eq!(flags & FLAG_REPORT != 0, expected, "packet {} of a window of {}", packet, limit);
            since = if expected { 0 } else { since };
        }
    }

    /// Requested fragments count only if one of the receivers has been offered them, from where its lap began
    /// to where the stream is.
    #[test]
    fn what_was_not_offered_is_not_patched(
        initials in proptest::collection::vec(proptest::option::of(0u64..60), 1..4), position in 0u64..130,
        ranges in proptest::collection::vec((0u64..60, 0u64..60), 0..5),
    ) {
        let mut sender = sender(initials.len() as u32);
        sender.position = position.max(60);
        for (id, initial) in (0..).zip(&initials) {
            peer(&mut sender, id).lap.initial = *initial;
        }
        let ranges: Vec<Range<u64>> = ranges.into_iter().map(|(start, len)| start..start + len).collect();
        let offered: BTreeSet<u64> = match initials.iter().flatten().min() {
            // One lap has all.
            Some(initial) => (*initial..sender.position).take(FRAGMENTS as usize).map(|at| at % FRAGMENTS).collect(),
            None => BTreeSet::new(),
        };
        let expected: BTreeSet<u64> = ranges.iter().cloned().flatten().filter(|sn| offered.contains(sn)).collect();
        let given = sender.offered_of((0..initials.len() as u32).map(PeerId), &ranges);
        prop_assert!(given.iter().all(|range| range.start < range.end));
        prop_assert_eq!(given.into_iter().flatten().collect::<BTreeSet<u64>>(), expected);
    }

    /// A first request goes by multicast, and a second one for the same by unicast, once. What is asked for
    /// lies in the object, and tells how far its receiver would have asked.
    #[test]
    fn what_is_asked_for_again_goes_by_unicast(
        requests in proptest::collection::vec((0u64..60, 1u64..20, any::<bool>()), 1..9), position in 1u64..50,
    ) {
        let mut sender = sender(2);
        sent_to(&mut sender, 50);
        peer(&mut sender, 0).lap.position = position;
        let (mut missing, mut patched, mut single) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        let (mut asked, mut until) = (0, 0);
        for (start, len, is_patched) in requests {
            let range = start..start + len;
            sender.request(NOW, PeerId(0), core::slice::from_ref(&range));
            let within: BTreeSet<u64> = range.clone().filter(|sn| *sn < FRAGMENTS).collect();
            if range.end <= FRAGMENTS {
                until = until.max(range.end.min(position));
            }
            let first: BTreeSet<u64> = within.difference(&patched).copied().collect();
            asked += first.difference(&missing).count() as u64;
            missing.extend(first);
            single.extend(within.intersection(&patched).copied());
            let peer = peer(&mut sender, 0);
            prop_assert_eq!(&peer.repairs.missing.iter().flatten().collect::<BTreeSet<u64>>(), &missing);
            prop_assert_eq!((peer.lap.asked, peer.lap.asked_until), (asked, until));
            if is_patched {
                // All that waited was sent.
                patched.append(&mut missing);
                let sent: Vec<Range<u64>> = peer.repairs.missing.iter().collect();
                peer.repairs.missing.clear();
                for run in sent {
                    peer.repairs.patched.insert(run);
                }
            }
        }
        let unicast: Vec<u64> = outputs(&mut sender).into_iter().flat_map(|output| match output {
            Output::Patch { peer: PeerId(0), sns } => sns,
            other => panic!("{other:?}"),
        }).collect();
        prop_assert_eq!(unicast.len(), single.len(), "{:?} twice", unicast);
        prop_assert_eq!(unicast.into_iter().collect::<BTreeSet<u64>>(), single);
    }

    /// An attempt carries what a receiver still has to be offered; while a path settles and all was offered,
    /// what one lacks next, or anything.
    #[test]
    fn attempts_carry_what_is_wanted(
        position in 0u64..120, ends in proptest::collection::vec(0u64..120, 1..4), lacks in proptest::collection::btree_set(0u64..50, 0..4),
        settles: bool,
    ) {
        let mut sender = sender(ends.len() as u32);
        sender.position = position;
        for (id, end) in (0..).zip(&ends) {
            peer(&mut sender, id).lap.initial = Some(end.saturating_sub(FRAGMENTS));
        }
        for sn in &lacks {
            peer(&mut sender, 0).repairs.missing.insert(*sn..*sn + 1);
        }
        let offers = ends.iter().any(|end| position < end.saturating_sub(FRAGMENTS) + FRAGMENTS);
        let next = (position..position + FRAGMENTS).find(|at| lacks.contains(&(at % FRAGMENTS)));
        let expected = if offers {
            Some(position)
        } else if settles {
            Some(next.unwrap_or(position))
        } else {
            None
        };
        prop_assert_eq!(sender.next_for_attempt(settles), expected);
    }
}

/// Reports of a speaker count for all of its rack, as long as they show no more than was sent.
#[test]
fn a_speaker_reports_for_those_that_it_has_named() {
    for (position, counts) in [(12, true), (20, true), (21, false), (90, false)] {
        let mut sender = sender(4);
        sent_to(&mut sender, 20);
        sender.allow(PeerId(0), [1, 2].map(PeerId).into());
        sender.name_rack(PeerId(0), &[1, 3]);
        peer(&mut sender, 1).signs.heard_at = NOW;
        let report = Control::Progress {
            position,
            received: 9,
            lost: 0,
            verified_bytes: 5_000,
            arrived_ns: 0,
            waited_ns: 0,
        };
        sender.control(NOW + MS, PeerId(0), &report);
        let at = |id| {
            let peer = &sender.peers[&PeerId(id)];
            (peer.lap.position, peer.lap.acknowledged, peer.has.verified_bytes)
        };
        let all = if counts { (position, position, 5_000) } else { (0, 0, 0) };
        assert_eq!([at(1), at(2), at(3)], [all, (0, 0, 0), (0, 0, 0)], "at {position}");
        assert_eq!(at(0), (position.min(20), position.min(20), 5_000));
        // One that has got further by itself does not go back.
        peer(&mut sender, 1).lap.position = 30;
        sender.rack_progress(NOW + MS, PeerId(0), 15, 4_000);
        assert_eq!(sender.peers[&PeerId(1)].lap.position, 30);
    }
}

/// Patches that have waited are sent when the path takes the full rate, if there are any.
#[test]
fn patches_that_wait_are_sent_soon_when_the_path_is_there() {
    let proving = Settling::Proving { until: NOW + MS * 90, interval: MS };
    let waiting = Settling::Waiting { until: NOW + MS * 90, interval: MS };
    for (settling, allows) in
        [(Settling::Settled, true), (proving, true), (waiting, false), (Settling::Dark, false)]
    {
        for lacks in [false, true] {
            let mut sender = sender(2);
            sender.settling = settling;
            if lacks {
                peer(&mut sender, 1).repairs.missing.insert(3..4);
            }
            sender.patch_soon(NOW);
            let at = (allows && lacks).then(|| NOW + sender.config.patch_delay);
            assert_eq!(sender.next_patch, at, "{settling:?}");
        }
    }
}

/// DATA_FNSD comes two round trips after all was sent, and at least a millisecond; then every 250 ms; while
/// patches wait, not at all.
#[test]
fn the_end_is_said_after_a_while_and_again() {
    for (trip, grace) in [(MS * 3, MS * 6), (Duration::from_micros(100), MS)] {
        let mut sender = sender(1);
        sent_to(&mut sender, FRAGMENTS);
        sender.round_trip = trip;
        let mut said = Vec::new();
        for step in 0..6_000 {
            let now = NOW + Duration::from_micros(100) * step;
            let lacks = (2_000..4_000).contains(&step);
            let peer = peer(&mut sender, 0);
            peer.repairs.missing.clear();
            if lacks {
                peer.repairs.missing.insert(1..2);
            }
            sender.finish(now, PeerId(0));
            let finished =
                Output::Control { peer: PeerId(0), control: Control::DataFnsd { position: FRAGMENTS } };
            for output in outputs(&mut sender) {
                assert_eq!(output, finished);
                said.push(now.since(NOW));
            }
        }
        // The second time was not to come before 200 ms; from 400 ms on it begins anew.
        assert_eq!(said, [grace, MS * 400 + grace], "{trip:?}");
    }
}

/// No attempt follows where every receiver has been offered all; one that still listens is tried.
#[test]
fn attempts_are_for_those_that_listen() {
    for listens in [false, true] {
        let mut sender = sender(2);
        sent_to(&mut sender, FRAGMENTS);
        if listens {
            (peer(&mut sender, 1).service, peer(&mut sender, 1).lap.initial) =
                (Service::Listening { since: NOW }, None);
        }
        sender.settling = if listens { Settling::Dark } else { Settling::Settled };
        let output = sender.stream(NOW + MS);
        let is_attempt = |output: &Output| matches!(output, Output::Send { count: 1, flags, .. } if flags & FLAG_ATTEMPT != 0);
        assert_eq!(output.as_ref().is_some_and(is_attempt), listens, "{output:?}");
        assert_eq!(sender.stream(NOW + MS), None);
        assert_eq!(sender.stream_at.is_some(), listens);
        assert!(!listens || sender.stream_at == Some(sender.next_attempt));
    }
}

/// Status of a receiver, and values of the pace of all.
#[test]
fn what_is_shown_is_what_is_known() {
    let mut sender = sender(4);
    let slower = Slower { own: polycast_types::Rate(1), others: polycast_types::Rate(9) };
    let first = peer(&mut sender, 0);
    (first.has.verified_bytes, first.has.patched_bytes, first.has.held_count) = (7_000, 2_000, 3);
    (peer(&mut sender, 1).has.held_count, peer(&mut sender, 1).trials.slower) = (FRAGMENTS, Some(slower));
    sender.cut_off(NOW, PeerId(2));
    sender.move_to_mesh(NOW, PeerId(3));
    peer(&mut sender, 3).lap.initial = None;
    let status = |id| sender.status(PeerId(id)).unwrap();
    let expected = PeerStatus {
        verified_bytes: 7_000,
        patched_bytes: 2_000,
        spared_bytes: 3_000,
        chained: false,
        streamed: true,
        cut_off: false,
        held_up: false,
        slow: None,
    };
    assert_eq!(status(0), expected);
    // The last fragment is shorter.
    assert_eq!((status(1).spared_bytes, status(1).slow), (FRAGMENTS * 1_000 - 100, Some(slower)));
    assert_eq!((status(2).chained, status(2).cut_off, status(2).streamed), (true, true, true));
    assert_eq!((status(3).chained, status(3).cut_off, status(3).streamed), (true, false, false));
    assert_eq!(sender.status(PeerId(4)), None);
    sent_to(&mut sender, 20);
    for (id, queue_ms) in [(0, 3), (1, 8), (2, 30)] {
        let path = &mut peer(&mut sender, id).path.delay;
        path.observe(NOW, NOW, NOW);
        path.observe(NOW, NOW, NOW + MS * queue_ms);
    }
    let pace = sender.pace();
    assert_eq!((pace.packets, pace.slow, pace.cuts, pace.follows_loss), (20, 1, 0, false));
    assert_eq!(
        (pace.queue, pace.round_trip, pace.window),
        (MS * 8, sender.round_trip, sender.congestion.window())
    );
}

/// One that has room for fewer packets than a batch has room for a batch; bytes count with all their headers.
#[test]
fn room_is_counted_in_whole_packets() {
    let mut sender = sender(0);
    let packet = 1_000 + HEADER_LEN as u64 + 28;
    for (id, bytes, window) in
        [(0, packet * 9, 9), (1, packet * 9 - 1, 8), (2, packet * 7, 7), (3, packet, 7), (4, 0, 7)]
    {
        sender.join(NOW, PeerId(id), bytes, RangeSet::new(), Location::default());
        assert_eq!(sender.peers[&PeerId(id)].window, window, "{bytes} bytes");
    }
}

/// Fragments sent by unicast are not sent that way again for two seconds, and are after four.
#[test]
fn unicast_is_not_repeated_before_it_can_have_come() {
    let mut sender = sender(1);
    let mut at = Vec::new();
    for step in 0..60 {
        let now = NOW + MS * (200 * step);
        peer(&mut sender, 0).signs.heard_at = now;
        sender.look_at_timers(now, NOW);
        outputs(&mut sender);
        unicast(PeerId(0), sender.peers.get_mut(&PeerId(0)).unwrap(), 3..5, &mut sender.outputs);
        if outputs(&mut sender) == [Output::Patch { peer: PeerId(0), sns: 3..5 }] {
            at.push(step * 200);
        }
    }
    assert_eq!(at, [0, 4_000, 8_000]);
}

/// At most a quarter of a window of patches goes out at a time, and eight; the rest a round trip later.
#[test]
fn patches_give_way_to_the_stream() {
    for (window, count) in [(64, 16), (10, 8), (1, 8)] {
        let mut sender = sender(2);
        // Windows count while there is more to come.
        sent_to(&mut sender, 40);
        for id in 0..2 {
            peer(&mut sender, id).window = window;
            peer(&mut sender, id).repairs.missing.insert(0..40);
        }
        sender.round_trip = MS * 3;
        sender.send_patches(NOW);
        let sent = outputs(&mut sender);
        assert!(
            sent.iter().all(|output| matches!(output, Output::SendPatch(sns) if sns.len() == 1)),
            "{sent:?}"
        );
        assert_eq!(sent.len(), count, "of a window of {window}");
        assert_eq!(sender.next_patch, Some(NOW + MS * 3));
        let left = &sender.peers[&PeerId(0)];
        assert_eq!(
            (left.repairs.missing.len(), left.repairs.patched.len()),
            (40 - count as u64, count as u64)
        );
    }
}

/// A patch that helps one receiver goes to it alone, as TCP would; over a granted path, and where it speaks
/// for others, all get it.
#[test]
fn a_patch_for_one_goes_to_it_alone_unless_it_speaks_for_others() {
    for (granted, speaks) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut sender = sender(3);
        sent_to(&mut sender, 40);
        peer(&mut sender, 0).repairs.missing.insert(3..12);
        if speaks {
            sender.allow(PeerId(0), [PeerId(1)].into());
            sender.name_rack(PeerId(0), &[1]);
        }
        sender.config.rate = granted.then_some(polycast_types::Rate(1_000_000_000));
        sender.send_patches(NOW);
        let expected: Vec<Output> = if granted || speaks {
            (3..12).map(|sn| Output::SendPatch([sn].into())).collect()
        } else {
            [3..10, 10..12].map(|sns| Output::Patch { peer: PeerId(0), sns }).into()
        };
        assert_eq!(outputs(&mut sender), expected, "granted {granted}, speaks {speaks}");
    }
}

/// While the stream goes on requests are gathered for the usual time, at its end for a short one; a later one
/// does not put off those before.
#[test]
fn requests_are_gathered_as_long_as_there_is_more_to_come() {
    for (position, delay) in [(40, MS * 10), (FRAGMENTS, Duration::from_micros(500))] {
        let mut sender = sender(2);
        sent_to(&mut sender, position);
        for (after, sn) in [(Duration::ZERO, 3), (Duration::from_micros(200), 7)] {
            sender.request(NOW + after, PeerId(0), core::slice::from_ref(&(sn..sn + 1)));
            assert_eq!(sender.next_patch, Some(NOW + delay), "at {position}");
        }
    }
}

/// A path is what fails one that says that nothing has come for as long: one that has been silent may be held
/// up itself, and so may one whose last word is older than that.
#[test]
fn only_one_that_says_that_nothing_comes_is_cut_off() {
    let timeout = MS * 1_000;
    let ends = [(MS, false), (timeout - Duration(1), false), (timeout, true), (MS * 4_999, true)];
    for (reported, cut_off) in ends {
        for (silent, lives) in
            [(MS, true), (timeout - Duration(1), true), (timeout, false), (MS * 2_000, false)]
        {
            let mut sender = sender(2);
            let listening = peer(&mut sender, 1);
            (listening.service, listening.lap.initial) = (Service::Listening { since: NOW }, None);
            let now = NOW + reported + silent;
            (listening.signs.reported_at, listening.signs.heard_at) = (NOW + reported, now);
            sender.check_path(now, PeerId(1));
            let expected = cut_off && lives;
            assert_eq!(
                sender.peers[&PeerId(1)].cut_off,
                expected,
                "reported {reported} on, and {silent} ago"
            );
        }
    }
}

/// A path has settled when all that take it, and speak for themselves, have got six packets in a row.
#[test]
fn a_path_has_settled_when_all_have_got_enough_in_a_row() {
    for (clean, all) in [([6, 6], true), ([6, 5], false), ([9, 7], true), ([0, 0], false)] {
        let mut sender = sender(4);
        for (id, clean) in (0..).zip(clean) {
            peer(&mut sender, id).lap.clean = clean;
        }
        // One for whom another one speaks does not count, nor one that the stream is not for.
        peer(&mut sender, 2).spoken_by = Some(PeerId(0));
        peer(&mut sender, 3).service = Service::Patching;
        assert_eq!(sender.all_clean(), all, "{clean:?}");
    }
}

/// The state of a receiver that has failed or is done is dropped where it is no longer needed; one that is
/// served stays.
#[test]
fn one_that_has_failed_can_be_forgotten() {
    let mut sender = sender(5);
    sent_to(&mut sender, 5);
    sender.handle(NOW, Input::Left { peer: PeerId(0), why: Why::WentAway });
    for id in [3, 4] {
        sender.move_to_mesh(NOW, PeerId(id));
    }
    for id in [1, 3] {
        sender.settle(PeerId(id), None);
    }
    for id in [0, 1, 2, 3, 9] {
        sender.handle(NOW, Input::Forget { peer: PeerId(id) });
    }
    assert_eq!(sender.peers.keys().map(|id| id.0).collect::<Vec<u32>>(), [2, 4]);
    assert_eq!(sender.status(PeerId(0)), None);
    // It is said that it has failed all the same, and the one that fetched from it has no candidate left.
    let said = outputs(&mut sender);
    assert!(said.contains(&Output::Settled { peer: PeerId(0), failure: Some(Why::WentAway) }), "{said:?}");
    let Some(Output::Candidates(told)) = said.last() else { panic!("{said:?}") };
    assert!(told.peer == PeerId(4) && told.from.is_empty(), "{told:?}");
}

/// One that has come again and again takes the stream as it comes, from its first packet on or at once.
#[test]
fn the_others_do_not_wait_for_one_that_comes_again_and_again() {
    let mut sender = sender(3);
    sent_to(&mut sender, 5);
    let late = peer(&mut sender, 1);
    (late.service, late.lap.initial) = (Service::Listening { since: NOW }, None);
    for id in [0, 1, 9] {
        sender.handle(NOW, Input::Unawaited { peer: PeerId(id) });
    }
    sender.control(NOW, PeerId(1), &Control::IntlSeq { position: 4 });
    let services: Vec<Service> = sender.peers.values().map(|peer| peer.service.clone()).collect();
    assert_eq!(services, [Service::Patching, Service::Patching, Service::Streaming]);
    assert_eq!(sender.gating().count(), 1);
    // When no other is there they set the pace, whatever the policy, until another one begins.
    for slow in [SlowPolicy::Wait, SlowPolicy::SHIPPED] {
        sender.config.slow = slow;
        let other = peer(&mut sender, 2);
        (other.service, other.lap.initial) = (Service::Listening { since: NOW }, None);
        sender.check_slow(NOW + MS);
        assert_eq!(sender.gating().count(), 2, "{slow:?}");
        sender.control(NOW, PeerId(2), &Control::IntlSeq { position: 4 });
        assert_eq!(sender.gating().count(), 1, "{slow:?}");
    }
}
