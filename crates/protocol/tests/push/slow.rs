//! Receivers that are slower than the others: which are found, when, and what is said of them.

use crate::settings::config;
use crate::world::{Faults, World};
use crate::{geometry, seconds};
use polycast_protocol::push::{PeerId, SenderConfig, SlowPolicy};
use polycast_types::{Duration, Rate, Time};

const PATIENCE: Duration = Duration::from_millis(400);
/// Time that the slow receiver takes for a packet of 8,968 bytes, and for a group of 65,536 over TCP.
const PACKET: Duration = Duration::from_micros(120);
const GROUP: Duration = Duration::from_millis(60);

fn millis(n: u64) -> Time {
    Time(1) + Duration::from_millis(n)
}

fn assert_near(rate: Rate, bytes: u64, span: Duration) {
    let expected = bytes * 8 * 1_000_000_000 / span.0;
    assert!(rate.0.abs_diff(expected) < expected / 7, "{rate} instead of {}", Rate(expected));
}

/// Three receivers, of which the last takes 15 times as long for a packet as the channel does.
fn with_one_slow(slow: SlowPolicy) -> World {
    let config = SenderConfig { slow, ..config(geometry(60_000)) };
    let mut world = World::new(6, 3, config, Faults::default());
    world.service.insert(2, PACKET);
    world.start();
    world.close();
    world.run(millis(400));
    assert_eq!(world.sender.status(PeerId(2)).unwrap().slow, None, "its patience is not over");
    world
}

#[test]
fn one_that_is_given_up_for_being_slow_is_told_both_rates() {
    let mut world = with_one_slow(SlowPolicy::Drop { after: PATIENCE });
    world.run(millis(1_000));
    let slower = world.sender.status(PeerId(2)).unwrap().slow.expect("it is given up");
    assert_near(slower.own, 8_968, PACKET);
    assert_near(slower.others, 8_968, world.packet_time);
    assert_eq!(world.settled[&2], Some(slower.to_string()));
    assert_eq!((world.settled[&0].clone(), world.settled[&1].clone()), (None, None));
    assert!(world.finished_at.is_some(), "nothing is left to wait for");
}

#[test]
fn one_that_catches_up_goes_on_at_its_own_pace() {
    let mut world = with_one_slow(SlowPolicy::CatchUp { after: PATIENCE });
    world.run(millis(1_000));
    let status = world.sender.status(PeerId(2)).unwrap();
    assert_near(status.slow.expect("it holds the others").own, 8_968, PACKET);
    assert!(world.nodes[&0].done && world.nodes[&1].done && !world.nodes[&2].done);
    assert!(world.nodes[&2].over_tcp, "it takes too little of the stream");
    assert!((0..2).all(|peer| !world.nodes[&peer].over_tcp));
    world.run(seconds(12));
    world.assert_all_done();
}

#[test]
fn one_that_is_waited_for_is_not_called_slow() {
    let mut world = with_one_slow(SlowPolicy::Wait);
    world.run(seconds(12));
    world.assert_all_done();
    for peer in 0..3 {
        let status = world.sender.status(PeerId(peer)).unwrap();
        assert_eq!((status.slow, status.chained), (None, false), "{peer}");
    }
}

/// A member that holds the others while they wait for it, and takes all while they do not, which it sees by
/// how fast the stream comes: it holds them a few times, and then no more.
#[test]
fn one_that_is_slow_only_while_it_is_waited_for_holds_the_others_a_few_times() {
    const LOOK: Duration = Duration::from_millis(10);
    let took = |lies: bool| {
        let slow = SlowPolicy::CatchUp { after: PATIENCE };
        let config = SenderConfig { slow, ..config(geometry(200_000)) };
        let mut world = World::new(6, 3, config, Faults::default());
        world.start();
        world.close();
        let (mut sent, mut fast_until) = (0, Time::ZERO);
        while !(world.nodes[&0].done && world.nodes[&1].done) {
            assert!(world.now < seconds(60), "the others are held without an end");
            let came = world.data_packets - sent;
            sent = world.data_packets;
            if lies && world.now >= fast_until {
                // A third of what the channel takes is far more than its own pace.
                let is_tried = came > LOOK.0 / world.packet_time.0 / 3;
                fast_until = if is_tried { world.now + LOOK * 10 } else { world.now };
                world.service.insert(2, if is_tried { Duration(1_000) } else { PACKET });
            }
            world.run(world.now + LOOK);
        }
        let at = world.now;
        world.run(seconds(60));
        world.assert_all_done();
        at.since(Time(1))
    };
    let (usual, beside) = (took(false), took(true));
    // Three times its patience and a trial.
    let bound = usual + usual / 4 + (PATIENCE + Duration::from_millis(250)) * 3;
    assert!(beside <= bound, "{beside} beside a liar, {usual} without");
}

/// Five receivers without a data channel.
fn over_tcp(slow: SlowPolicy, groups_take: &[(u32, Duration)]) -> World {
    let config = SenderConfig { slow, multicast: false, ..config(geometry(3_000)) };
    let mut world = World::new(11, 5, config, Faults::default());
    world.group_time.extend(groups_take.iter().copied());
    world.start();
    world.close();
    world
}

/// It alone is named, when three looks of half a second have shown it.
#[test]
fn the_slowest_over_tcp_is_named() {
    for slow in 0..5 {
        let mut world = over_tcp(SlowPolicy::CatchUp { after: PATIENCE }, &[(slow, GROUP)]);
        world.run(millis(900));
        assert!((0..5).all(|peer| world.nodes[&peer].done == (peer != slow)), "{slow} holds others");
        let named = |world: &World, peer| world.sender.status(PeerId(peer)).unwrap().slow;
        assert_eq!(named(&world, slow), None, "it may have paused");
        world.run(millis(2_600));
        assert_near(named(&world, slow).expect("it gets little, look after look").own, 1 << 16, GROUP);
        world.run(seconds(30));
        world.assert_all_done();
        assert!((0..5).all(|peer| named(&world, peer).is_some() == (peer == slow)), "{slow}");
    }
}

#[test]
fn the_slowest_over_tcp_is_given_up_where_that_is_the_policy() {
    let mut world = over_tcp(SlowPolicy::Drop { after: PATIENCE }, &[(1, GROUP)]);
    world.run(seconds(5));
    assert!(world.finished_at.is_some_and(|at| at < millis(4_200)), "{:?}", world.finished_at);
    let failed: Vec<u32> = world.settled.iter().filter(|(_, why)| why.is_some()).map(|(id, _)| *id).collect();
    assert_eq!(failed, [1]);
    assert!(world.settled[&1].as_ref().unwrap().starts_with("slower than the others"));
}

/// A speed that most receivers share is the usual one: no receiver is named, and none is given up.
#[test]
fn where_most_are_slow_none_is_the_slowest() {
    let all: Vec<(u32, Duration)> = (0..5).map(|peer| (peer, Duration::from_millis(8))).collect();
    for slow in [SlowPolicy::CatchUp { after: PATIENCE }, SlowPolicy::Drop { after: PATIENCE }] {
        let mut world = over_tcp(slow, &all);
        world.run(seconds(30));
        world.assert_all_done();
        assert!(world.settled.values().all(Option::is_none));
        assert!((0..5).all(|peer| world.sender.status(PeerId(peer)).unwrap().slow.is_none()));
    }
}

/// Members that say their sockets hold hardly anything, one or two of five: the others go on without them,
/// and finish about as soon as they do without them.
#[test]
fn those_with_little_room_do_not_hold_the_others() {
    let patience = Duration::from_millis(100);
    let took = |windows: &[u64]| {
        let slow = SlowPolicy::CatchUp { after: patience };
        let config = SenderConfig { slow, batch: 2, ..config(geometry(100_000)) };
        let mut world = World::new(6, 5, config, Faults::default());
        world.windows.extend((3..).zip(windows.iter().copied()));
        world.start();
        world.close();
        while !(0..3).all(|peer| world.nodes[&peer].done) {
            assert!(world.now < seconds(60), "the others are held without an end by {windows:?}");
            world.run(world.now + Duration::from_millis(10));
        }
        let at = world.now;
        world.run(seconds(20));
        world.assert_all_done();
        at.since(Time(1))
    };
    let usual = took(&[]);
    for windows in [&[0][..], &[0, 5]] {
        let beside = took(windows);
        let bound = usual + usual / 10 + (patience + Duration::from_millis(250)) * 3;
        assert!(beside <= bound, "{beside} beside room for {windows:?} packets, {usual} without");
    }
}
