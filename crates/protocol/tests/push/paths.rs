//! Handling of a sender's path: one that waits, one that settles, one that another one follows; and treatment
//! of a late call, a silent receiver and a small socket of a rack.

use crate::settings::config;
use crate::world::{Faults, World};
use crate::{deliver, geometry, on_a_granted_path, seconds};
use polycast_protocol::push::{PeerId, Sender, SenderConfig, SenderInput, SenderOutput};
use polycast_types::{Duration, Location, RangeSet, Time};
use polycast_wire::control::Control;
use polycast_wire::data::FLAG_ATTEMPT;
use proptest::prelude::*;

fn millis(n: u64) -> Time {
    Time(1) + Duration::from_millis(n)
}

fn say(sender: &mut Sender, now: Time, peer: u32, control: &Control<'_>) {
    sender.handle(now, SenderInput::Control { peer: PeerId(peer), control });
}

fn said(sender: &mut Sender, now: Time) -> Vec<SenderOutput> {
    std::iter::from_fn(|| sender.poll(now)).collect()
}

/// Two receivers that have been offered 40 fragments, and have both lost these.
fn that_have_lost(lost: std::ops::Range<u64>) -> Sender {
    so_many_that_have_lost(2, lost)
}

fn so_many_that_have_lost(peers: u32, lost: std::ops::Range<u64>) -> Sender {
    let mut sender = Sender::new(config(geometry(40)));
    for peer in 0..peers {
        let have = RangeSet::new();
        sender.handle(
            Time(1),
            SenderInput::Ready {
                peer: PeerId(peer),
                window_bytes: 1 << 20,
                have,
                location: Location::default(),
            },
        );
    }
    sender.handle(Time(1), SenderInput::Start);
    assert_eq!(said(&mut sender, Time(1)).len(), 1, "an attempt");
    (0..peers).for_each(|peer| say(&mut sender, Time(2), peer, &Control::IntlSeq { position: 0 }));
    let stream = said(&mut sender, Time(3));
    let count = |output: &SenderOutput| match output {
        SenderOutput::Send { count, .. } => u64::from(*count),
        _ => 0,
    };
    assert_eq!(stream.iter().map(count).sum::<u64>(), 39);
    for peer in 0..peers {
        let progress = Control::Progress {
            position: 40,
            received: 40 - (lost.end - lost.start),
            lost: lost.end - lost.start,
            verified_bytes: 0,
            arrived_ns: 0,
            waited_ns: 0,
        };
        say(&mut sender, Time(4), peer, &progress);
        say(&mut sender, Time(4), peer, &Control::PtchReq(vec![lost.clone()]));
    }
    sender
}

fn another_path() -> SenderInput<'static> {
    let attempt_interval = Duration::from_micros(500).into();
    SenderInput::Path { rate: None, attempt_interval, allowance: None }
}

/// Patches that the driver has not fetched yet do not go out on another channel than the one they were meant
/// for.
#[test]
fn nothing_of_an_old_channel_goes_out_on_a_new_one() {
    for lost in [false, true] {
        let mut sender = that_have_lost(5..15);
        let now = millis(10);
        assert!(matches!(sender.poll(now), Some(SenderOutput::SendPatch(_))));
        sender.handle(now, if lost { SenderInput::PathLost } else { another_path() });
        let outputs = said(&mut sender, now);
        assert!(!outputs.iter().any(|output| matches!(output, SenderOutput::SendPatch(_))), "{outputs:?}");
        let full = |output: &SenderOutput| matches!(output, SenderOutput::Send { flags, .. } if flags & FLAG_ATTEMPT == 0);
        assert!(!outputs.iter().any(full), "{outputs:?}");
        let sends = outputs.iter().filter(|output| matches!(output, SenderOutput::Send { .. })).count();
        assert_eq!(sends, usize::from(!lost), "one attempt on the new channel: {outputs:?}");
    }
}

/// While a path settles and everything has been offered, attempts carry what some receiver lacks, wherever
/// that lies.
#[test]
fn attempts_while_a_path_settles_carry_what_is_missing() {
    let mut sender = that_have_lost(5..6);
    sender.handle(millis(1), another_path());
    let mut attempts = Vec::new();
    for step in 0..8 {
        for output in said(&mut sender, millis(1) + Duration::from_micros(500) * step) {
            if let SenderOutput::Send { round, sn, flags, .. } = output {
                assert!(flags & FLAG_ATTEMPT != 0);
                attempts.push((round, sn));
            }
        }
    }
    assert_eq!(attempts[..3], [(1, 5), (2, 5), (3, 5)], "{attempts:?}");
}

/// One that is alone on the channel gets what it has lost at once, by TCP: no other could use a patch that is
/// sent to all.
#[test]
fn one_that_is_alone_gets_what_it_has_lost_by_tcp_at_once() {
    let mut sender = so_many_that_have_lost(1, 5..15);
    let outputs = said(&mut sender, Time(4));
    let patches = outputs.iter().filter(|output| matches!(output, SenderOutput::Patch { .. }));
    assert_eq!(patches.collect::<Vec<_>>(), [&SenderOutput::Patch { peer: PeerId(0), sns: 5..15 }]);
    let outputs = said(&mut that_have_lost(5..15), Time(4));
    assert!(!outputs.iter().any(|output| matches!(output, SenderOutput::Patch { .. })), "{outputs:?}");
}

/// Patches are repeated by multicast for racks alone: one that says so without a rack, or before its rack has
/// come to it, gets its own by TCP.
#[test]
fn one_without_a_rack_has_nothing_repeated_for_all() {
    for may_speak in [false, true] {
        one_without_a_rack(may_speak);
    }
}

fn one_without_a_rack(may_speak: bool) {
    let mut sender = that_have_lost(5..6);
    if may_speak {
        let members = std::iter::once(PeerId(1)).collect();
        sender.handle(Time(4), SenderInput::Rack { speaker: PeerId(0), members });
    }
    let patch = |output: &SenderOutput| matches!(output, SenderOutput::SendPatch(_));
    assert_eq!(said(&mut sender, millis(10)).iter().filter(|output| patch(output)).count(), 1);
    let mut single = 0;
    for step in 0..20 {
        say(&mut sender, millis(11 + step), 0, &Control::RackReq(std::iter::once(5..6).collect()));
        let outputs = said(&mut sender, millis(11 + step));
        assert!(!outputs.iter().any(patch), "{outputs:?}");
        single += outputs.iter().filter(|output| matches!(output, SenderOutput::Patch { .. })).count();
    }
    assert_eq!(single, 1, "once, and not again within seconds");
}

/// No receiver leaves a channel for not being reached by a channel that is still being set up, and from its
/// end on each has the whole time to be reached.
#[test]
fn who_waits_for_a_path_is_given_time_when_it_is_there() {
    let mut world = World::new(21, 3, config(geometry(300)), Faults::default());
    world.start();
    world.sender.handle(world.now, SenderInput::PathWaits(true));
    (0..3).for_each(|peer| world.cut_multicast(peer));
    world.close();
    world.run(millis(2_000));
    assert!(!world.nodes.values().any(|node| node.over_tcp), "the path still waits");
    world.sender.handle(world.now, SenderInput::PathWaits(false));
    world.run(millis(2_300));
    assert!(!world.nodes.values().any(|node| node.over_tcp), "there was no time to be reached");
    (0..3).for_each(|peer| world.mend_multicast(peer));
    world.run(seconds(20));
    world.assert_all_done();
    assert!(!world.nodes.values().any(|node| node.over_tcp), "one that was reached in time left the channel");
}

/// To be told once more that nothing waits gives no receiver more time.
#[test]
fn a_path_that_does_not_wait_may_be_said_not_to_again_and_again() {
    let mut world = World::new(22, 2, config(geometry(300)), Faults::default());
    world.start();
    world.cut_multicast(1);
    world.close();
    for step in 1..10 {
        world.run(millis(100 * step));
        world.sender.handle(world.now, SenderInput::PathWaits(false));
    }
    assert!(world.nodes[&1].over_tcp, "it is not reached for longer than a path may take");
    world.run(seconds(20));
    world.assert_all_done();
}

/// Full rate begins when all have been reached, and not before one that is not has had its time.
#[test]
fn the_stream_waits_for_those_that_are_not_reached_yet() {
    let mut world = World::new(23, 3, config(geometry(5_000)), Faults::default());
    world.start();
    world.cut_multicast(1);
    world.close();
    world.run(millis(400));
    assert_eq!((world.longest_burst, world.finished_at), (1, None), "single attempts");
    assert!(world.data_packets <= 801, "{} packets", world.data_packets);
    world.run(seconds(20));
    world.assert_all_done();
}

/// A receiver that says nothing is told four times a second that it has been offered everything.
#[test]
fn who_is_silent_hears_four_times_a_second_that_all_was_offered() {
    let mut world = World::new(
        24,
        2,
        SenderConfig { path_timeout: seconds(10).since(Time::ZERO), ..config(geometry(200)) },
        Faults::default(),
    );
    world.start();
    world.close();
    world.run(millis(1));
    world.freeze(1);
    world.run(seconds(20));
    world.assert_all_done();
    let told = &world.watch.finishes[&1];
    assert!(told.len() >= 15, "told {} times in 5 s", told.len());
    for pair in told.windows(2) {
        let gap = pair[1].since(pair[0]).as_millis();
        assert!((250..=253).contains(&gap), "{gap} ms");
    }
}

/// The sender's host does something else for a while: neither does it catch up at more than the granted rate,
/// nor do those that lack something ask as often as ever.
#[test]
fn a_late_call_does_not_catch_up() {
    for (seed, loss) in [(1, 0), (2, 50), (3, 100)] {
        let mut world = on_a_granted_path(2_000, Faults { loss, ..Faults::default() });
        world.start();
        world.close();
        for at in [20 + seed, 60, 130] {
            world.run(millis(at));
            world.busy_until = world.now + Duration::from_millis(40 + 100 * seed);
        }
        world.run(seconds(20));
        world.assert_all_done();
        let most = world.packet_time * 8 + Duration::from_millis(2);
        assert!(world.longest_wait <= most, "a packet waited for {:?}, not {most:?}", world.longest_wait);
    }
}

/// A dedicated path that has just come up is watched closely: it may have to settle.
#[test]
fn a_path_that_may_have_to_settle_is_asked_for_reports_often() {
    let mut world = on_a_granted_path(2_000, Faults::default());
    world.start();
    world.close();
    world.run(millis(10));
    let reports = world.watch.reports.len();
    assert!(reports >= 7, "{reports} reports were asked for in {} packets", world.data_packets);
}

/// The smallest socket of a rack holds the window of the one that speaks for it.
#[test]
fn the_smallest_socket_of_a_rack_is_not_drowned() {
    let mut world = World::new(25, 4, config(geometry(6_000)), Faults::default()).in_racks_of(4);
    for peer in 0..4 {
        world.service.insert(peer, Duration::from_micros(if peer == 2 { 30 } else { 9 }));
    }
    world.windows.insert(2, 24);
    world.start();
    world.close();
    world.run(millis(8));
    assert_eq!(world.nodes[&1].speaker, Some(0));
    world.run(seconds(20));
    world.assert_all_done();
    let overflow: Vec<u64> = world.nodes.values().map(|node| node.overflow).collect();
    assert_eq!(overflow, [0; 4], "packets were dropped at full sockets");
}

/// One that others speak for, and that has missed the last packets, is told by itself that all was offered.
#[test]
fn one_of_a_rack_that_missed_the_end_is_told_so() {
    let mut world = World::new(26, 4, config(geometry(2_000)), Faults::default()).in_racks_of(4);
    world.start();
    world.close();
    while world.data_packets < 1_900 {
        let step = world.now + Duration::from_micros(20);
        world.run(step);
    }
    world.cut_multicast(2);
    while world.data_packets < 2_000 {
        let step = world.now + Duration::from_micros(20);
        world.run(step);
    }
    let ended = world.now;
    world.run(ended + Duration::from_millis(1));
    world.mend_multicast(2);
    world.run(seconds(20));
    world.assert_all_done();
    assert!(world.watch.finishes.contains_key(&2), "it was not told");
    let took = world.finished_at.unwrap().since(ended);
    assert!(took < Duration::from_millis(60), "{took} after the end of the stream");
}

/// Receiver 0 speaks for receiver 1; both have been offered everything, and have lost nothing.
fn that_speaks_for_another() -> Sender {
    let mut sender = that_have_lost(5..5);
    let members = std::iter::once(PeerId(1)).collect();
    sender.handle(Time(5), SenderInput::Rack { speaker: PeerId(0), members });
    say(&mut sender, Time(5), 0, &Control::Rack(vec![1]));
    sender
}

/// One that others speak for is told by itself that all was offered.
#[test]
fn one_that_is_spoken_for_hears_that_all_was_offered() {
    let mut sender = that_speaks_for_another();
    let mut told = Vec::new();
    for step in 1..20 {
        for output in said(&mut sender, millis(step)) {
            if let SenderOutput::Control { peer, control: Control::DataFnsd { .. } } = output {
                told.push(peer.0);
            }
        }
    }
    told.sort_unstable();
    assert_eq!(told, [0, 1]);
}

/// A report of a speaker beyond the stream is believed for no receiver of its rack.
#[test]
fn a_speaker_beyond_the_stream_is_not_believed() {
    let mut sender = that_speaks_for_another();
    let progress = |position| Control::Progress {
        position,
        received: 40,
        lost: 0,
        verified_bytes: 0,
        arrived_ns: 0,
        waited_ns: 0,
    };
    for position in [41, 1 << 40, u64::MAX] {
        say(&mut sender, Time(6), 0, &progress(position));
        sender.check();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// A late packet is not lost: no receiver requests it.
    #[test]
    fn reordering_costs_no_repairs(seed: u64, receivers in 1u32..5, fragments in 1u64..400, reordering in 1u64..200) {
        let world = deliver(seed, receivers, fragments, Faults { reordering, ..Faults::default() });
        prop_assert_eq!((world.watch.requests, world.watch.lost), (0, 0));
        prop_assert_eq!(world.patch_packets + world.unicast_fragments, 0);
    }
}
