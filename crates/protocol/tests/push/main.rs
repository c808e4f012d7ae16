//! The push machines in virtual time: loss, reordering, duplication, corruption, late join, crash and
//! restart, slow and stuck receivers, paths that do not get through.

mod alone;
mod asked;
mod held;
mod hostile;
mod idle;
mod liar;
mod narrow;
mod paths;
mod settings;
mod slow;
mod stranger;
mod watch;
mod world;

use polycast_protocol::push::{Geometry, SenderConfig, SlowPolicy};
use polycast_types::{Duration, Rate, Time};
use proptest::prelude::*;
use settings::config;
use std::collections::BTreeSet;
use world::{Faults, World};

const FRAGMENT: u32 = 8_916;

fn geometry(fragments: u64) -> Geometry {
    let object_len = (fragments * u64::from(FRAGMENT)).saturating_sub(100);
    Geometry { object_len, fragment_len: FRAGMENT, group_len: 1 << 16 }
}

fn seconds(n: u64) -> Time {
    Time(n * 1_000_000_000)
}

fn deliver(seed: u64, receivers: u32, fragments: u64, faults: Faults) -> World {
    let mut world = World::new(seed, receivers, config(geometry(fragments)), faults);
    world.start();
    world.close();
    world.run(seconds(60));
    world.assert_all_done();
    world
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn everyone_gets_everything_over_a_bad_channel(
        seed: u64, receivers in 1u32..8, fragments in 0u64..400,
        loss in 0u64..250, duplication in 0u64..100, reordering in 0u64..200, corruption in 0u64..100,
    ) {
        let world = deliver(seed, receivers, fragments, Faults { loss, duplication, reordering, corruption });
        prop_assert!(world.settled.values().all(Option::is_none), "{:?}", world.settled);
    }

    /// A receiver that joins late begins at whatever sn is on air and wraps round.
    #[test]
    fn late_joiners_begin_anywhere(seed: u64, fragments in 1u64..300, delay_us in 0u64..6_000, loss in 0u64..50) {
        let mut world = World::new(seed, 2, config(geometry(fragments)), Faults { loss, ..Faults::default() });
        world.start();
        world.join_at(9, Time(1) + Duration::from_micros(delay_us));
        world.run(Time(1) + Duration::from_millis(8));
        world.close();
        world.run(seconds(60));
        world.assert_all_done();
        prop_assert!(world.nodes[&9].done);
    }

    /// Every part that is granted brings the transfer further, however small it is.
    #[test]
    fn parts_of_the_size_add_up(seed: u64, fragments in 1u64..300, part in 1u64..120, loss in 0u64..50) {
        let config = SenderConfig { allowance: Some(part), ..config(geometry(fragments)) };
        let mut world = World::new(seed, 3, config, Faults { loss, ..Faults::default() });
        world.session_fragments = part;
        world.between_sessions = Duration::from_millis(3);
        world.start();
        world.close();
        world.run(seconds(60));
        world.assert_all_done();
        prop_assert!(world.sessions <= fragments.div_ceil(part), "{} sessions", world.sessions);
    }

    /// A receiver that crashes is named; it comes back under a new number with what it had verified.
    #[test]
    fn crashed_receivers_come_back_with_what_they_have(seed: u64, crash_us in 100u64..3_000, back_us in 0u64..5_000) {
        let mut world = World::new(seed, 3, config(geometry(300)), Faults { loss: 10, ..Faults::default() });
        world.start();
        let crash = Time(1) + Duration::from_micros(crash_us);
        world.run(crash);
        let held: BTreeSet<u64> = world.nodes[&1].intact.clone();
        world.crash_at(1, crash);
        world.hold(11, held);
        world.join_at(11, crash + Duration::from_micros(back_us));
        world.run(crash + Duration::from_micros(back_us + 1_000));
        world.close();
        world.run(seconds(60));
        world.assert_all_done();
        prop_assert!(world.nodes[&11].done);
        let named = world.settled[&1].as_deref();
        prop_assert!(named == Some("it went away in mid-transfer") || named.is_none());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever is lost and whichever receivers crash: all that live get everything, however racks are cut.
    #[test]
    fn racks_with_one_voice_get_everything(
        seed: u64, receivers in 2u32..10, rack in 2u32..6, fragments in 1u64..300, loss in 0u64..150,
        reordering in 0u64..100, corruption in 0u64..50, crash in proptest::option::of((0u32..10, 0u64..6_000)),
    ) {
        let faults = Faults { loss, reordering, corruption, ..Faults::default() };
        let mut world = World::new(seed, receivers, config(geometry(fragments)), faults).in_racks_of(rack);
        world.start();
        world.close();
        if let Some((peer, at_us)) = crash.filter(|(peer, _)| *peer < receivers) {
            world.crash_at(peer, Time(1) + Duration::from_micros(at_us));
        }
        world.run(seconds(60));
        world.assert_all_done();
        for (peer, failure) in &world.settled {
            prop_assert!(failure.is_none() || crash.is_some_and(|(crashed, _)| crashed == *peer), "{failure:?}");
        }
    }
}

/// The messages that the sender hears, and when all are done, with and without a speaker for each rack.
#[test]
fn a_sender_hears_racks_and_not_hosts() {
    for loss in [0, 10] {
        let run = |rack: u32| {
            let faults = Faults { loss, ..Faults::default() };
            let mut world = World::new(5, 16, config(geometry(4_000)), faults).in_racks_of(rack);
            world.start();
            world.close();
            world.run(seconds(60));
            world.assert_all_done();
            let repairs = world.patch_packets + world.unicast_fragments;
            (world.heard, world.finished_at.unwrap(), repairs)
        };
        let ((hosts, alone, repairs), (racks, together, more)) = (run(1), run(4));
        assert!(racks * 2 < hosts, "{racks} messages of racks, {hosts} of hosts, with {loss} of 1000 lost");
        let (alone, together) = (alone.since(Time::ZERO), together.since(Time::ZERO));
        assert!(together.0 * 2 < alone.0 * 3, "{together} and {alone}");
        // A patch for a rack serves all its receivers, and combinations of fragments are as good among racks.
        assert!(more < 2 * repairs + 50, "{more} repairs for racks, {repairs} for hosts");
    }
}

#[test]
fn a_speaker_that_crashes_or_freezes_is_done_without() {
    for freezes in [false, true] {
        let faults = Faults { loss: 10, ..Faults::default() };
        let mut world = World::new(9, 8, config(geometry(2_000)), faults).in_racks_of(4);
        world.start();
        world.close();
        world.run(Time(1) + Duration::from_millis(10));
        assert!(world.nodes[&1].speaker == Some(0) && world.finished_at.is_none());
        if freezes {
            world.freeze(0);
        } else {
            world.crash_at(0, world.now);
        }
        let limit = if freezes { seconds(6) } else { Time(1) + Duration::from_millis(200) };
        world.run(limit);
        assert!((1..8).all(|at| world.nodes[&at].done), "the others are held: {:?}", world.settled);
        // The end waits a little for one that has just gone.
        world.run(seconds(60));
        world.assert_all_done();
        assert_eq!(world.nodes[&1].speaker, None);
        let failed: Vec<u32> =
            world.settled.iter().filter(|(_, f)| f.is_some()).map(|(peer, _)| *peer).collect();
        assert_eq!(failed, [0], "{:?}", world.settled);
        assert!(world.finished_at.unwrap() < limit + seconds(4).since(Time::ZERO), "{:?}", world.finished_at);
    }
}

/// One that multicast does not reach any more does not hold its rack for long.
#[test]
fn one_that_hangs_behind_is_put_out_of_its_rack() {
    let mut world = World::new(3, 8, config(geometry(6_000)), Faults::default()).in_racks_of(4);
    world.start();
    world.close();
    world.run(Time(1) + Duration::from_millis(10));
    world.cut_multicast(2);
    world.run(Time(1) + Duration::from_millis(250));
    assert_eq!((world.nodes[&2].speaker, world.nodes[&1].speaker), (None, Some(0)));
    world.run(seconds(60));
    world.assert_all_done();
    assert!(world.settled.values().all(Option::is_none));
}

/// Wherever a lap begins, every fragment is offered exactly once more.
#[test]
fn laps_wrap_round_from_every_initial_sn() {
    for skipped in 0..40 {
        let mut world = World::new(skipped, 1, config(geometry(40)), Faults::default());
        world.start();
        // The path comes up only after some attempts have gone by.
        world.cut_multicast(0);
        world.run(Time(1) + Duration::from_micros(500) * skipped + Duration::from_micros(100));
        world.nodes.get_mut(&0).unwrap().reached_by_multicast = true;
        world.close();
        world.run(seconds(10));
        world.assert_all_done();
        assert!(world.settled[&0].is_none());
        let redundant = world.data_packets - 40;
        assert!(redundant <= skipped + 2, "{redundant} redundant packets after {skipped} attempts");
    }
}

#[test]
fn without_faults_every_fragment_travels_once() {
    let world = deliver(1, 8, 2_000, Faults::default());
    assert!(world.data_packets <= 2_003, "{} packets for 2000 fragments", world.data_packets);
    assert_eq!(world.patch_packets + world.unicast_fragments, 0);
}

/// Packets that arrive make the window grow: except at its beginning the channel is never idle.
#[test]
fn without_faults_the_stream_fills_the_channel() {
    let world = deliver(2, 3, 20_000, Faults::default());
    let (took, least) = (world.finished_at.unwrap().since(Time(1)), world.packet_time * 20_000);
    assert!(took <= least * 5 / 4, "{took}, where the channel needs {least}");
}

/// Sixteen receivers that lose 1 % each: one coded patch repairs many different losses.
#[test]
fn coded_patches_cost_little() {
    let fragments = 20_000;
    let world = deliver(3, 16, fragments, Faults { loss: 10, ..Faults::default() });
    let repairs = world.patch_packets + world.unicast_fragments;
    let lost_by_someone = fragments as f64 * (1.0 - 0.99f64.powi(16));
    assert!(
        (repairs as f64) < lost_by_someone / 3.0,
        "{repairs} repairs for {lost_by_someone} fragments lost"
    );
}

#[test]
fn no_receiver_is_drowned_by_a_faster_sender() {
    let mut world = World::new(5, 3, config(geometry(20_000)), Faults::default());
    for peer in 0..3 {
        world.service.insert(peer, Duration::from_micros(20 + u64::from(peer)));
    }
    world.start();
    world.close();
    world.run(seconds(60));
    world.assert_all_done();
    assert!(world.nodes.values().all(|n| n.overflow == 0), "packets were dropped at full sockets");
}

#[test]
fn a_slow_receiver_is_dropped_to_patches_and_still_served() {
    let mut world = World::new(6, 3, config(geometry(60_000)), Faults::default());
    world.service.insert(2, Duration::from_micros(120));
    world.start();
    world.close();
    world.run(seconds(3));
    let quick: Vec<bool> = (0..2).map(|p| world.nodes[&p].done).collect();
    assert_eq!(quick, [true, true], "the slow one held the others");
    world.run(seconds(120));
    world.assert_all_done();
    assert!(world.nodes[&2].done);
}

#[test]
fn with_the_policy_wait_all_go_as_fast_as_the_slowest() {
    let mut config = config(geometry(5_000));
    config.slow = SlowPolicy::Wait;
    let mut world = World::new(6, 3, config, Faults::default());
    world.service.insert(2, Duration::from_micros(120));
    world.start();
    world.close();
    world.run(seconds(60));
    world.assert_all_done();
    assert_eq!(world.unicast_fragments + world.patch_packets, 0);
}

#[test]
fn a_window_that_was_lost_as_a_whole_does_not_cost_the_path() {
    // Nothing comes after it that would show the receiver a gap: the sender has to ask.
    for rate in [None, Some(Rate(800_000_000))] {
        let mut config = config(geometry(60_000));
        config.rate = rate;
        let mut world = World::new(8, 3, config, Faults::default());
        world.start();
        world.close();
        world.run(Time(1) + Duration::from_millis(20));
        world.cut_multicast(2);
        world.run(Time(1) + Duration::from_millis(70));
        let before = world.sender.pace().packets;
        world.mend_multicast(2);
        world.run(Time(1) + Duration::from_millis(400));
        let since = world.sender.pace().packets - before;
        assert!(since > 3_000, "the stream goes on at {rate:?}: {since} packets");
        world.run(seconds(10));
        world.assert_all_done();
        assert!(!world.nodes.values().any(|n| n.over_tcp), "one that lives left the channel");
    }
}

#[test]
fn a_stuck_receiver_is_named_and_delays_no_other() {
    // Whichever comes first, the policy for slow receivers or the time-out of paths: those that live are not
    // taken for unreachable because the sender waits for the one that is stuck.
    for path_ms in [200, 1_000] {
        for rate in [None, Some(Rate(2_000_000_000))] {
            let mut config = config(geometry(30_000));
            config.path_timeout = Duration::from_millis(path_ms);
            config.rate = rate;
            stick(config);
        }
    }
}

fn stick(config: SenderConfig) {
    let mut world = World::new(7, 4, config, Faults::default());
    world.start();
    world.close();
    world.run(Time(1) + Duration::from_millis(50));
    world.freeze(3);
    world.run(seconds(3));
    assert!((0..3).all(|p| world.nodes[&p].done), "the others wait for a stuck receiver");
    assert!((0..3).all(|p| !world.nodes[&p].over_tcp), "one that lives left the channel");
    world.run(seconds(30));
    assert!(world.finished_at.is_some());
    assert_eq!(world.settled[&3].as_deref(), Some("no sign of life for 5s"));
}

#[test]
fn a_receiver_that_is_not_done_at_the_deadline_has_failed() {
    let mut config = config(geometry(30_000));
    config.deadline = Some(Duration::from_secs(1));
    let mut world = World::new(8, 2, config, Faults::default());
    world.start();
    world.freeze(1);
    world.close();
    world.run(seconds(10));
    assert!(world.finished_at.unwrap() < seconds(2));
    assert_eq!(world.settled[&1].as_deref(), Some("not done at the deadline"));
    assert!(world.settled[&0].is_none());
}

#[test]
fn receivers_that_multicast_does_not_reach_fetch_over_tcp() {
    let mut world = World::new(9, 4, config(geometry(200)), Faults::default());
    world.start();
    world.cut_multicast(1);
    world.cut_multicast(3);
    world.close();
    world.run(seconds(20));
    world.assert_all_done();
    let over_tcp: Vec<bool> = world.nodes.values().map(|node| node.over_tcp).collect();
    assert_eq!(over_tcp, [false, true, false, true]);
}

#[test]
fn where_a_path_dies_in_mid_transfer_all_go_on_over_tcp() {
    let mut world = World::new(10, 3, config(geometry(60_000)), Faults::default());
    world.start();
    world.close();
    world.run(Time(1) + Duration::from_millis(100));
    let before: Vec<usize> = (0..3).map(|p| world.nodes[&p].intact.len()).collect();
    assert!(before.iter().all(|n| *n > 0));
    (0..3).for_each(|p| world.cut_multicast(p));
    world.run(seconds(60));
    world.assert_all_done();
    assert!(world.settled.values().all(Option::is_none));
}

/// Sessions are waited for as long as it takes: longer than a path may be silent.
#[test]
fn a_transfer_in_several_sessions_sends_everything_once() {
    let config = SenderConfig { allowance: Some(100), ..config(geometry(450)) };
    let mut world = World::new(13, 3, config, Faults::default());
    world.session_fragments = 100;
    world.start();
    world.close();
    world.run(seconds(30));
    world.assert_all_done();
    assert_eq!(world.sessions, 4);
    assert!(world.finished_at.unwrap() > Time(1) + world.between_sessions * 4);
    assert!(!world.nodes.values().any(|node| node.over_tcp), "no receiver needs TCP");
    // A few more are attempts.
    assert!((450..520).contains(&world.data_packets), "{} packets", world.data_packets);
}

#[test]
fn another_path_takes_the_place_of_a_dead_one_in_mid_transfer() {
    let mut world = World::new(14, 3, config(geometry(20_000)), Faults::default());
    world.start();
    world.close();
    world.run(Time(1) + Duration::from_millis(20));
    (0..3).for_each(|p| world.cut_multicast(p));
    world.run(Time(1) + Duration::from_millis(220));
    assert!(world.finished_at.is_none());
    (0..3).for_each(|p| world.mend_multicast(p));
    world.another_path_at(world.now);
    world.run(seconds(60));
    world.assert_all_done();
    assert!(!world.nodes.values().any(|node| node.over_tcp), "no receiver needs TCP");
}

#[test]
fn one_that_dies_or_stops_over_tcp_holds_no_other() {
    let mut config = config(geometry(3_000));
    config.multicast = false;
    let mut world = World::new(11, 5, config, Faults::default());
    world.start();
    world.close();
    world.run(Time(1) + Duration::from_millis(20));
    world.crash_at(1, world.now);
    world.freeze(2);
    world.run(seconds(60));
    assert!(world.finished_at.is_some());
    for peer in [0, 3, 4] {
        assert!(world.nodes[&peer].done, "receiver {peer}");
    }
    assert_eq!(world.settled[&1].as_deref(), Some("it went away in mid-transfer"));
    assert!(world.settled[&2].as_deref().is_some_and(|why| why.starts_with("no sign of life")));
}

#[test]
fn a_granted_rate_is_kept() {
    let mut config = config(geometry(10_000));
    config.rate = Some(Rate(1_000_000_000));
    let mut world = World::new(12, 2, config, Faults::default());
    world.start();
    world.close();
    world.run(seconds(10));
    world.assert_all_done();
    let ideal = 10_000.0 * f64::from(FRAGMENT + 52) * 8.0 / 1e9;
    let took = world.finished_at.unwrap().since(Time(1)).as_secs_f64();
    assert!((ideal * 0.99..ideal * 1.03 + 0.01).contains(&took), "{took} s, ideal {ideal} s");
}

/// Four receivers on a path that is as fast as what was granted: whatever goes out beyond that has to wait
/// somewhere.
fn on_a_granted_path(fragments: u64, faults: Faults) -> World {
    let rate = Rate(500_000_000);
    let mut world =
        World::new(15, 4, SenderConfig { rate: Some(rate), ..config(geometry(fragments)) }, faults);
    world.packet_time = rate.time_for(u64::from(FRAGMENT) + 52);
    world
}

/// Many patches went out, and no packet waited for more than a batch and what a late call may catch up.
fn assert_patches_kept_to_the_rate(world: &mut World) {
    world.run(seconds(20));
    world.assert_all_done();
    assert!(world.patch_packets > 500, "{} patches", world.patch_packets);
    let most = world.packet_time * 8 + Duration::from_millis(2);
    assert!(world.longest_wait <= most, "a packet waited for {:?}, not {most:?}", world.longest_wait);
}

#[test]
fn patches_keep_to_a_granted_rate_too() {
    let mut world = on_a_granted_path(5_000, Faults { loss: 80, ..Faults::default() });
    world.start();
    world.close();
    assert_patches_kept_to_the_rate(&mut world);
}

#[test]
fn patches_of_a_long_gap_keep_to_a_granted_rate_too() {
    let mut world = on_a_granted_path(20_000, Faults::default());
    world.window_packets = 4_096;
    world.start();
    world.close();
    world.run(Time(1) + Duration::from_millis(100));
    (0..2).for_each(|peer| world.cut_multicast(peer));
    world.run(Time(1) + Duration::from_millis(200));
    (0..2).for_each(|peer| world.mend_multicast(peer));
    assert_patches_kept_to_the_rate(&mut world);
}

#[test]
fn what_waits_in_the_host_follows_a_granted_rate_whatever_receivers_see() {
    for rate in [100_000_000, 1_000_000_000, 40_000_000_000] {
        let mut config = config(geometry(1_000));
        config.rate = Some(Rate(rate));
        let mut world = World::new(13, 2, config, Faults::default());
        // What has waited on the way comes as fast as this.
        world.packet_time = Duration::from_micros(2);
        let first = world.sender.host_queue_bytes();
        world.start();
        world.close();
        world.run(seconds(20));
        world.assert_all_done();
        // A few packets, and a third of a millisecond on the wire.
        let ideal = ((40 << 10) + rate / 8 / 3_000).min(1 << 20);
        assert_eq!((first, world.sender.host_queue_bytes()), (ideal, ideal), "{rate} bit/s");
    }
}

#[test]
fn what_waits_in_the_host_follows_the_rate_of_the_path() {
    for packet_us in [40, 100, 400, 2_000] {
        let mut world = World::new(13, 2, config(geometry(1_000)), Faults::default());
        world.packet_time = Duration::from_micros(packet_us);
        let first = world.sender.host_queue_bytes();
        world.start();
        world.close();
        world.run(seconds(20));
        world.assert_all_done();
        // A few packets, and a third of a millisecond on the wire.
        let third_of_ms = 1_000_000.0 / 3.0 / (packet_us * 1_000) as f64 * f64::from(FRAGMENT + 52);
        let ideal = f64::from(40 << 10) + third_of_ms;
        let bytes = world.sender.host_queue_bytes() as f64;
        assert!((0.9 * ideal..1.1 * ideal).contains(&bytes), "{packet_us} us: {bytes} bytes, not {ideal}");
        assert!(first as f64 > bytes, "generous as long as the rate is not known: {first}");
    }
}

#[test]
fn of_a_small_window_only_a_part_leaves_in_one_go() {
    for (window, longest) in [(256, 7), (20, 5), (12, 3), (7, 1)] {
        let mut world = World::new(17, 2, config(geometry(2_000)), Faults::default());
        world.window_packets = window;
        world.start();
        world.close();
        world.run(seconds(20));
        world.assert_all_done();
        assert_eq!(world.longest_burst, longest, "of {window} packets");
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let faults = Faults { loss: 50, duplication: 20, reordering: 50, corruption: 20 };
    let runs: Vec<_> = (0..2)
        .map(|_| {
            let world = deliver(99, 5, 500, faults);
            (world.finished_at, world.data_packets, world.patch_packets, world.unicast_fragments)
        })
        .collect();
    assert_eq!(runs[0], runs[1]);
}
