//! Receivers behind paths of their own that are narrower than the channel, hosts that pause, and channels
//! that all share: which of them are named as slow, what is said of them, and what the others get meanwhile.

use crate::settings::config;
use crate::world::{Faults, OwnPath, World};
use crate::{geometry, seconds};
use polycast_protocol::push::{PeerId, SenderConfig, SlowPolicy, Slower};
use polycast_types::{Duration, Rate, Time};
use proptest::prelude::*;

/// Time that the channel takes for a packet of 8,968 bytes.
const PACKET: Duration = Duration::from_micros(100);
const PACKET_BITS: u64 = 8_968 * 8;
/// Resulting rate of the channel.
const FULL: Rate = Rate(PACKET_BITS * 10_000);
const PATIENCE: Duration = Duration::from_millis(100);
const CATCH_UP: SlowPolicy = SlowPolicy::CatchUp { after: PATIENCE };

fn millis(n: u64) -> Time {
    Time(1) + Duration::from_millis(n)
}

/// A transfer that takes so many packets, and receivers whose own paths take so long for one.
fn world(seed: u64, receivers: u32, packets: u64, config_of: impl Fn(SenderConfig) -> SenderConfig) -> World {
    let config = SenderConfig { slow: CATCH_UP, ..config(geometry(packets)) };
    let mut world = World::new(seed, receivers, config_of(config), Faults::default());
    world.packet_time = PACKET;
    world
}

/// A path that takes so many hundredths of what the channel takes, and as long over TCP.
fn narrow(world: &mut World, peer: u32, hundredths: u64, queue_packets: u64) {
    let packet = Duration(PACKET.0 * hundredths / 100);
    world.paths.insert(peer, OwnPath::new(packet, queue_packets));
    world.group_time.insert(peer, packet * ((1 << 16) / 8_916 + 1));
}

fn begin(world: &mut World) {
    world.start();
    world.close();
}

fn named(world: &World, peer: u32) -> Option<Slower> {
    world.sender.status(PeerId(peer)).unwrap().slow
}

fn all_named(world: &World) -> Vec<u32> {
    world.nodes.keys().copied().filter(|peer| named(world, *peer).is_some()).collect()
}

/// Asserts that a rate is that of packets at this interval, within this percentage.
fn assert_rate(rate: Rate, packet: Duration, percent: u64) {
    let expected = PACKET_BITS * 1_000_000_000 / packet.0;
    assert!(rate.0.abs_diff(expected) * 100 <= expected * percent, "{rate}, where {} comes", Rate(expected));
}

/// Returns the time in milliseconds when all of these had everything, or `most_ms` if they have not by then.
fn done_by(world: &mut World, peers: &[u32], most_ms: u64) -> u64 {
    let mut at = 0;
    while at < most_ms && !peers.iter().all(|peer| world.nodes[peer].done) {
        at += 10;
        world.run(millis(at));
    }
    at
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10))]

    /// However many there are, and whichever it is: one whose path takes less than a half of what the channel
    /// takes is named with both rates, and it alone; it leaves the channel, and the others take hardly longer
    /// than without it.
    #[test]
    fn one_behind_a_narrow_path_is_named_and_holds_no_other(
        seed: u64, receivers in 2u32..6, at in 0u32..6, hundredths in 300u64..1_200, queue in 24u64..200,
    ) {
        let slow = at % receivers;
        let mut world = world(seed, receivers, 12_000, |config| config);
        narrow(&mut world, slow, hundredths, queue);
        begin(&mut world);
        world.run(millis(PATIENCE.as_millis() / 4));
        prop_assert_eq!(named(&world, slow), None, "nothing can be told so soon");
        let others: Vec<u32> = (0..receivers).filter(|peer| *peer != slow).collect();
        let took = done_by(&mut world, &others, 10_000);
        prop_assert!((1_200..1_900).contains(&took), "{} ms, alone 1,200", took);
        prop_assert_eq!(all_named(&world), vec![slow]);
        let slower = named(&world, slow).unwrap();
        // Its reports come every 50 ms, and the others have just begun to take more.
        prop_assert!(slower.own.0 > 0 && slower.own.0 <= PACKET_BITS * 2_000_000 / hundredths, "{:?}", slower);
        prop_assert!(slower.others.0 > slower.own.0 * 2, "{:?}", slower);
        prop_assert!(slower.others.0 <= PACKET_BITS * 11_000, "{:?}", slower);
        prop_assert!(world.nodes[&slow].over_tcp);
        world.run(seconds(60));
        world.assert_all_done();
        prop_assert_eq!(all_named(&world), vec![slow]);
    }

    /// One that is hardly slower is waited for, and so are all where most are as slow, or where there is no
    /// other.
    #[test]
    fn who_is_hardly_slower_or_as_slow_as_most_is_not_named(
        seed: u64, receivers in 1u32..5, hundredths in 101u64..108, most in 300u64..800, queue in 24u64..200,
    ) {
        for most_are_slow in [false, true] {
            let mut world = world(seed, receivers, 4_000, |config| config);
            let (slow, hundredths) =
                if most_are_slow { (receivers / 2 + 1, most) } else { (1, hundredths) };
            (0..slow).for_each(|peer| narrow(&mut world, peer, hundredths, queue));
            begin(&mut world);
            world.run(seconds(60));
            world.assert_all_done();
            prop_assert_eq!(all_named(&world), Vec::<u32>::new(), "{} slow ones", slow);
            prop_assert!(!world.nodes.values().any(|node| node.over_tcp));
        }
    }

    /// At a granted rate losses show a narrow path. What it loses is not sent again to all as long as it is
    /// not known: the others have everything when the rate allows.
    #[test]
    fn one_behind_a_narrow_path_is_named_at_a_granted_rate(
        seed: u64, receivers in 2u32..6, at in 0u32..6, hundredths in 300u64..1_200, queue in 24u64..200,
    ) {
        let slow = at % receivers;
        let rate = Some(FULL);
        let mut world = world(seed, receivers, 10_000, |config| SenderConfig { rate, ..config });
        world.window_packets = 4_096;
        narrow(&mut world, slow, hundredths, queue);
        begin(&mut world);
        let others: Vec<u32> = (0..receivers).filter(|peer| *peer != slow).collect();
        let took = done_by(&mut world, &others, 10_000);
        prop_assert!((1_000..1_500).contains(&took), "{} ms, alone 1,000", took);
        prop_assert_eq!(all_named(&world), vec![slow]);
        let slower = named(&world, slow).unwrap();
        prop_assert!(slower.others.0 > slower.own.0, "{:?}", slower);
        world.run(seconds(60));
        world.assert_all_done();
    }
}

/// Paths that are alike are tried without together: without one of them the other would hold the rest as
/// before.
#[test]
fn narrow_paths_that_are_alike_are_named_together() {
    for (receivers, slow) in [(5, 2), (6, 3)] {
        let mut world = world(4, receivers, 14_000, |config| config);
        (0..slow).for_each(|peer| narrow(&mut world, peer, 300, 60));
        begin(&mut world);
        let others: Vec<u32> = (slow..receivers).collect();
        let took = done_by(&mut world, &others, 10_000);
        assert!((1_400..2_000).contains(&took), "{took} ms, alone 1,400");
        assert_eq!(all_named(&world), (0..slow).collect::<Vec<u32>>());
        world.run(seconds(60));
        world.assert_all_done();
    }
}

/// The narrowest of paths that are narrow in different ways is found first, and then the next.
#[test]
fn narrow_paths_that_differ_are_all_found() {
    for hundredths in [[300, 1_200], [1_200, 300], [2_000, 500]] {
        let mut world = world(5, 5, 16_000, |config| config);
        (0..2).for_each(|peer| narrow(&mut world, peer, hundredths[peer as usize], 60));
        begin(&mut world);
        let took = done_by(&mut world, &[2, 3, 4], 10_000);
        assert!((1_600..3_200).contains(&took), "{took} ms");
        assert_eq!(all_named(&world), [0, 1]);
        for (peer, hundredths) in [0, 1].into_iter().zip(hundredths) {
            let slower = named(&world, peer).unwrap();
            assert_rate(slower.own, Duration(PACKET.0 * hundredths / 100), 20);
        }
        world.run(seconds(90));
        world.assert_all_done();
    }
}

/// Hosts that do something else for a while, now this one and then that one, are not slow, whether the
/// channel is wide or is the one narrow link that all share.
#[test]
fn hosts_that_pause_now_and_then_are_not_named() {
    for (seed, pause_ms, packet_us) in [(1, 30, 100), (2, 60, 100), (4, 40, 400)] {
        let mut world = world(seed, 5, 800_000 / packet_us * 2, |config| config);
        world.packet_time = Duration::from_micros(packet_us);
        begin(&mut world);
        for step in 1..40 {
            world.run(millis(step * pause_ms * 4));
            if world.finished_at.is_some() {
                break;
            }
            let peer = ((seed + step * 3) % 5) as u32;
            world.pause(peer, Duration::from_millis(pause_ms));
        }
        world.run(seconds(60));
        world.assert_all_done();
        assert_eq!(all_named(&world), Vec::<u32>::new(), "pauses of {pause_ms} ms");
        assert!(!world.nodes.values().any(|node| node.over_tcp));
    }
}

/// A path that is narrow for less than the patience, and as wide as the others from then on, has held them
/// for a while only.
#[test]
fn one_whose_path_is_narrow_only_for_a_while_is_waited_for_afterwards() {
    let mut world = world(6, 4, 20_000, |config| SenderConfig {
        slow: SlowPolicy::CatchUp { after: Duration::from_millis(400) },
        ..config
    });
    narrow(&mut world, 1, 600, 60);
    begin(&mut world);
    world.run(millis(250));
    world.paths.remove(&1);
    world.run(seconds(60));
    world.assert_all_done();
    assert_eq!(all_named(&world), Vec::<u32>::new());
    assert!(!world.nodes[&1].over_tcp);
}
