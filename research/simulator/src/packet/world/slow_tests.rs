//! Receivers behind narrow, lossy or late paths: the others do not wait for them.

use super::*;
use crate::packet::{Builder, Faults, LinkConfig, LinkCounters, Outcome};
use polycast_protocol::push::SlowPolicy;
use polycast_topology::Network as Topology;
use polycast_types::Rate;

const OBJECT_LEN: u64 = 60_000_000;

/// Special properties of the link to a receiver.
#[derive(Clone, Copy, Default)]
struct Special {
    rate_mbps: Option<u64>,
    /// Bytes that the queue before it holds, if that is not the usual.
    queue_bytes: Option<u64>,
    loss_ppm: u32,
    service: Duration,
    /// Set if its link lets connections pass before data channels.
    is_split: bool,
}

/// Seven receivers of a network of 1 Gbit/s, of which the first ones are special, to the end.
fn play(special: &[Special], settings: PushConfig, seed: u64) -> (Cluster, Network<Datagram>) {
    let topology: Topology = "leaf-spine:2,2,4".parse().unwrap();
    let usual = LinkConfig::new(Rate(1_000_000_000), Duration::from_micros(5));
    let link = |NodeId(from): NodeId, NodeId(to): NodeId| {
        let what = special.get((from.min(to) as usize).wrapping_sub(1)).copied().unwrap_or_default();
        let faults = Faults { loss_ppm: if to < from { what.loss_ppm } else { 0 }, ..Faults::default() };
        let rate = what.rate_mbps.map_or(usual.rate, |mbps| Rate(mbps * 1_000_000));
        let queue_bytes = what.queue_bytes.unwrap_or(usual.queue_bytes);
        LinkConfig { rate, faults, queue_bytes, priorities: if what.is_split { 2 } else { 1 }, ..usual }
    };
    let mut net = Builder::from_graph(&topology, link).build(seed);
    let mut cluster = Cluster::new(seed, TcpConfig::default());
    let receivers: Vec<NodeId> = (1..8).map(NodeId).collect();
    cluster.add_push(&net, NodeId(0), &receivers, OBJECT_LEN, settings, None);
    for (what, receiver) in special.iter().zip(0..) {
        let happening = Happening::Service { transfer: 0, receiver, service: what.service };
        cluster.plan(&mut net, Time::ZERO, happening);
    }
    cluster.plan(&mut net, Time::ZERO, Happening::StartTransfer { transfer: 0 });
    let outcome = net.run(&mut cluster, Time(600_000_000_000));
    assert_eq!(cluster.breaches(), Vec::<String>::new());
    assert_eq!(outcome, Outcome::Stopped, "not over at {:?}", net.now());
    (cluster, net)
}

/// Returns the times at which receivers had everything, and which of them are reported as slow.
fn finish(special: &[Special], settings: PushConfig, seed: u64) -> (Vec<f64>, Vec<bool>) {
    let (cluster, _) = play(special, settings, seed);
    let push = cluster.push(0);
    let times = push.receivers().iter().map(|host| host.finished_at().unwrap().0 as f64 / 1e9).collect();
    let slow = (0..7).map(|receiver| push.slow_of(receiver).is_some()).collect();
    (times, slow)
}

fn narrow(rate_mbps: u64) -> Special {
    Special { rate_mbps: Some(rate_mbps), ..Special::default() }
}

/// Plays a group whose first receivers are special: these are named as slow, or none is; the others take at
/// most so many percent of what they take without them.
fn delay_no_other(special: &[Special], settings: &PushConfig, named: bool, percent_max: f64) -> Vec<f64> {
    let (alone, none) = finish(&[], settings.clone(), 1);
    assert_eq!(none, [false; 7], "all are alike");
    for seed in 1..3 {
        let (times, slow) = finish(special, settings.clone(), seed);
        let (special_times, others) = times.split_at(special.len());
        let last = |times: &[f64]| times.iter().copied().fold(0.0, f64::max);
        let percent = last(others) / last(&alone) * 100.0;
        assert!(percent <= percent_max, "{special_times:?} hold the others: {others:?} of {alone:?}");
        let expected: Vec<bool> = (0..7).map(|at| named && at < special.len()).collect();
        assert_eq!(slow, expected, "{times:?}");
        if seed == 2 {
            return special_times.to_vec();
        }
    }
    Vec::new()
}

#[test]
fn a_narrow_path_delays_no_other_and_is_used_to_the_full() {
    for rate_mbps in [50, 100, 200] {
        let times = delay_no_other(&[narrow(rate_mbps)], &PushConfig::default(), true, 115.0);
        let ideal = OBJECT_LEN as f64 * 8.0 / (rate_mbps as f64 * 1e6);
        assert!(times[0] < 1.4 * ideal, "{times:?} of {ideal} s");
    }
}

/// A receiver that is left behind leaves the data channel: what the others get would only fill its path,
/// beside what it fetches. The word itself must not have to pass through the stream: here connections come
/// before data channels.
#[test]
fn a_narrow_path_carries_the_object_and_not_the_stream_beside_it() {
    for rate_mbps in [50, 100, 400] {
        let special = Special { is_split: true, ..narrow(rate_mbps) };
        let (cluster, net) = play(&[special], PushConfig::default(), 1);
        assert!(cluster.push(0).slow_of(0).is_some());
        let link = net.reverse(net.links_from(NodeId(1))[0]).unwrap();
        let LinkCounters { packets, bytes, queue_drops, .. } = *net.counters(link);
        assert!(bytes < OBJECT_LEN * 12 / 10, "{bytes} bytes at {rate_mbps} Mbit/s");
        let (once, _, _) = cluster.push(0).source().sent();
        let came = packets + queue_drops;
        assert!(came < once * 3 / 2, "{came} packets come to {rate_mbps} Mbit/s, the object is {once}");
    }
}

/// A queue that takes seconds to pass makes round trips long, and what is to be seen of it is seen as soon.
#[test]
fn a_long_queue_before_a_narrow_path_delays_no_other() {
    let long = Special { queue_bytes: Some(16 << 20), ..narrow(50) };
    let wide = PushConfig { window_bytes: 64 << 20, ..PushConfig::default() };
    delay_no_other(&[long], &wide, true, 115.0);
}

/// A granted rate is not slowed by losses, but what one has lost is sent again to all.
#[test]
fn a_narrow_path_delays_no_other_at_a_granted_rate() {
    let rate = Some(Rate(900_000_000));
    let granted = PushConfig { rate, window_bytes: 64 << 20, ..PushConfig::default() };
    delay_no_other(&[narrow(100)], &granted, true, 115.0);
    let hardly = Special { loss_ppm: 10_000, ..Special::default() };
    delay_no_other(&[hardly], &granted, false, 115.0);
}

/// A queue that holds the rest of a short transfer shows nothing until the others are done. A second later
/// its receiver is named, if it has got less than half of what they have.
#[test]
fn a_narrow_path_behind_a_long_queue_is_named_after_the_others() {
    let behind = |rate_mbps| Special { queue_bytes: Some(64 << 20), ..narrow(rate_mbps) };
    let granted = |rate_mbps: u64| {
        let rate = Some(Rate(rate_mbps * 1_000_000));
        PushConfig { rate, window_bytes: 128 << 20, ..PushConfig::default() }
    };
    let times = delay_no_other(&[behind(50)], &granted(900), true, 115.0);
    assert!(times[0] < 1.4 * OBJECT_LEN as f64 * 8.0 / 50e6, "{times:?}");
    let times = delay_no_other(&[behind(70)], &granted(100), false, 115.0);
    assert!(times[0] > OBJECT_LEN as f64 * 8.0 / 100e6 + 1.2, "{times:?}: too quick to tell");
}

#[test]
fn several_narrow_paths_hold_neither_the_others_nor_each_other() {
    let times = delay_no_other(&[narrow(50), narrow(200)], &PushConfig::default(), true, 120.0);
    assert!(times[1] * 2.0 < times[0], "the wider one waits for the narrower: {times:?}");
    delay_no_other(&[narrow(200), narrow(50), narrow(100)], &PushConfig::default(), true, 180.0);
}

#[test]
fn narrow_paths_that_are_alike_delay_no_other() {
    for alike in [2, 3] {
        delay_no_other(&[narrow(100); 3][..alike], &PushConfig::default(), true, 120.0);
    }
}

#[test]
fn a_lossy_path_and_a_late_host_delay_no_other() {
    // What is sent again for one is a part of what it costs the others: a tenth of the link.
    let lossy = Special { loss_ppm: 100_000, ..Special::default() };
    delay_no_other(&[lossy], &PushConfig::default(), true, 110.0);
    let late = Special { service: Duration(50_000), ..Special::default() };
    delay_no_other(&[late], &PushConfig::default(), true, 135.0);
}

#[test]
fn who_is_hardly_slower_is_waited_for() {
    delay_no_other(&[narrow(950)], &PushConfig::default(), false, 115.0);
    let lossy = Special { loss_ppm: 10_000, ..Special::default() };
    delay_no_other(&[lossy], &PushConfig::default(), false, 115.0);
}

/// All share the source's narrow link, and each host does something else for a while now and then: a trial
/// that counts what was sent into the queue of that link, or what has come before a report says so, names one
/// of them.
#[test]
fn hosts_that_are_late_now_and_then_behind_one_narrow_link_are_not_slow() {
    let topology: Topology = "leaf-spine:1,1,8".parse().unwrap();
    let settings = PushConfig { fragment_bytes: 8_900, ..PushConfig::default() };
    for seed in 1..6 {
        let lossy = Faults { loss_ppm: 1_000, ..Faults::default() };
        let usual = LinkConfig::new(Rate(40_000_000), Duration::from_micros(50));
        let link = LinkConfig { faults: lossy, queue_bytes: 2 << 20, ..usual };
        let mut net = Builder::from_graph(&topology, |_, _| link).build(seed);
        let mut cluster = Cluster::new(seed, TcpConfig::default());
        let receivers: Vec<NodeId> = (1..8).map(NodeId).collect();
        cluster.add_push(&net, NodeId(0), &receivers, OBJECT_LEN / 2, settings.clone(), None);
        for step in 0..120 {
            let receiver = ((seed + step * 5) % 7) as u32;
            for (at_ms, service) in [(0, Duration::from_millis(40)), (60, Duration::ZERO)] {
                let happening = Happening::Service { transfer: 0, receiver, service };
                cluster.plan(&mut net, Time::ZERO + Duration::from_millis(step * 70 + at_ms), happening);
            }
        }
        cluster.plan(&mut net, Time::ZERO, Happening::StartTransfer { transfer: 0 });
        let outcome = net.run(&mut cluster, Time(600_000_000_000));
        assert_eq!((outcome, cluster.breaches()), (Outcome::Stopped, Vec::new()));
        let slow: Vec<u32> = (0..7).filter(|receiver| cluster.push(0).slow_of(*receiver).is_some()).collect();
        assert_eq!(
            slow,
            Vec::<u32>::new(),
            "seed {seed}: {:?}",
            cluster.push(0).slow_of(slow.first().copied().unwrap_or(0))
        );
    }
}

#[test]
fn with_the_policy_wait_all_go_at_the_pace_of_the_narrowest_path() {
    let settings = PushConfig { slow: SlowPolicy::Wait, ..PushConfig::default() };
    let (times, slow) = finish(&[narrow(100)], settings, 1);
    assert!(times.iter().all(|time| *time > 4.0), "{times:?}");
    assert_eq!(slow, [false; 7]);
}

#[test]
fn with_the_policy_drop_a_slow_one_is_given_up_and_told_why() {
    let settings = PushConfig { slow: SlowPolicy::SHIPPED.dropping(), ..PushConfig::default() };
    let (cluster, _) = play(&[narrow(50)], settings, 1);
    let said = cluster.push(0).failure_of(0).unwrap();
    assert!(said.starts_with("slower than the others: "), "{said}");
    assert!((1..7).all(|receiver| cluster.push(0).failure_of(receiver).is_none()));
}

#[test]
fn a_narrow_path_delays_no_other_in_the_mesh() {
    let settings = PushConfig { multicast: false, ..PushConfig::default() };
    for rate_mbps in [20, 50, 100] {
        // One group comes to it before its source knows it: the others lack it for 125 ms of half a second.
        let times = delay_no_other(&[narrow(rate_mbps)], &settings, true, 130.0);
        let ideal = OBJECT_LEN as f64 * 8.0 / (rate_mbps as f64 * 1e6);
        assert!(times[0] < 1.2 * ideal, "{times:?} of {ideal} s");
    }
    let dropping = PushConfig { slow: SlowPolicy::SHIPPED.dropping(), ..settings };
    let (cluster, _) = play(&[narrow(50)], dropping, 1);
    let said = cluster.push(0).failure_of(0).unwrap();
    assert!(said.starts_with("slower than the others: "), "{said}");
}
