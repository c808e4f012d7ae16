//! Windows and rates, one law at a time.

use super::super::{PeerId, SenderConfig};
use super::*;
use crate::push::Geometry;
use polycast_types::{Handle, Location, RangeSet, Rate};

const MS: Duration = Duration::from_millis(1);
const BEGAN: Time = Time(1_000_000_000);

/// Receivers whose paths have let through so many packets in a millisecond at best, and half of that since;
/// the queue there has not been shorter than so many milliseconds.
fn behind(paths: &[(u64, u64)]) -> Sender {
    let geometry = Geometry { object_len: 1 << 40, fragment_len: 1_000, group_len: 10_000 };
    let mut sender = Sender::new(SenderConfig::new(Handle(1), geometry, 8));
    for (id, (per_ms, queue_ms)) in (0..).zip(paths) {
        sender.join(Time(1), PeerId(id), 1 << 20, RangeSet::new(), Location::default());
        let peer = sender.peers.get_mut(&PeerId(id)).unwrap();
        (peer.service, peer.lap.initial) = (Service::Streaming, Some(0));
        for (at_ms, queue_ms, received) in [(0, 0, 0), (20, 0, 20 * per_ms), (40, *queue_ms, 30 * per_ms)] {
            let sent = BEGAN + MS * at_ms;
            peer.path.delay.observe(sent, sent, sent + MS * queue_ms);
            peer.path.delay.count(sent, received);
        }
        let _ = peer.path.delay.take_standing();
    }
    sender.congestion.resume(100);
    sender
}

/// So many rounds of 10 ms, in each of which the queues are as before.
fn rounds(sender: &mut Sender, paths: &[(u64, u64)], count: u64) {
    for round in 0..count {
        let sent = BEGAN + MS * (100 + 10 * round);
        for (peer, (_, queue)) in sender.peers.values_mut().zip(paths) {
            peer.path.delay.observe(sent, sent, sent + MS * *queue);
        }
        sender.end_round(sent);
    }
}

/// Others fill the longest queue where it stays however far the window falls: the window is then what a flow
/// with half of the slowest path has in flight in that queue.
#[test]
fn a_queue_of_others_is_shared_with_them() {
    for (paths, share) in [
        (&[(50, 40)][..], 1_000),
        (&[(50, 40), (80, 10)], 1_000),
        (&[(80, 10), (50, 40)], 1_000),
        (&[(50, 20), (80, 40)], 1_000),
        (&[(10, 60), (50, 60)], 300),
    ] {
        let mut sender = behind(paths);
        assert!(
            sender.peers.values().all(|peer| peer.path.delay.is_shared() && !peer.path.delay.has_share())
        );
        rounds(&mut sender, paths, 40);
        assert!(sender.congestion.follows_loss(), "{paths:?}");
        assert_eq!(sender.congestion.window(), share, "{paths:?}");
        // Those that the stream does not wait for do not count.
        let mut sender = behind(paths);
        for peer in sender.peers.values_mut() {
            peer.service = Service::Patching;
        }
        rounds(&mut sender, paths, 40);
        assert!(!sender.congestion.follows_loss());
        assert_eq!(sender.congestion.window(), 100);
    }
}

/// A queue of 4 ms, and of what a batch takes on the slowest path, is worth having.
#[test]
fn a_queue_worth_having_has_room_for_a_batch() {
    // 8 packets take 4 ms at 2 in a millisecond: 8 ms, and a quarter more is near enough.
    for (per_ms, queue_ms, follows) in
        [(2, 9, false), (2, 11, true), (16, 5, false), (16, 6, true), (80, 6, true)]
    {
        let paths = [(per_ms, queue_ms), (100, queue_ms)];
        let mut sender = behind(&paths);
        rounds(&mut sender, &paths, 40);
        assert_eq!(sender.congestion.follows_loss(), follows, "{queue_ms} ms at {per_ms} in a millisecond");
    }
}

/// A window that stays shut lets a packet out after four round trips, and at least 10 ms, then after twice as
/// long, five times.
#[test]
fn a_shut_window_is_probed_ever_more_seldom() {
    let mut sender = behind(&[(1, 1)]);
    assert_eq!(sender.probe_at(), Time::ZERO + MS * 10, "nothing was sent");
    sender.send(BEGAN, 0, 1, 0);
    for (trip_ms, least_ms) in [(1, 10), (2, 10), (3, 12), (50, 200)] {
        sender.round_trip = MS * trip_ms;
        for probes in 0..9 {
            sender.probes = probes;
            assert_eq!(sender.probe_at(), BEGAN + MS * (least_ms << probes.min(5)));
        }
    }
}

/// The smallest window of the receivers that the sender waits for, and the congestion window, limit the
/// packets in flight: those that the receiver furthest behind has not got. A batch is a quarter of the limit
/// at most.
#[test]
fn the_smallest_window_and_the_one_furthest_behind_rule() {
    for granted in [false, true] {
        let mut sender = behind(&[(1, 1); 3]);
        sender.config.rate = granted.then_some(Rate(1_000_000_000));
        (sender.packets, sender.position) = (1_000, 1_000);
        for (peer, (window, acknowledged)) in
            sender.peers.values_mut().zip([(300, 950), (90, 980), (400, 900)])
        {
            (peer.window, peer.lap.acknowledged) = (window, acknowledged);
        }
        assert_eq!((sender.limit(), sender.burst()), (90, 8));
        // 90 of the second, of which 20 are in flight, or 100 of the third, of which all are.
        assert_eq!(sender.room(), if granted { 70 } else { 0 });
        assert_eq!(sender.acknowledged_min(), Some(900));
        sender.peers.get_mut(&PeerId(2)).unwrap().service = Service::Patching;
        assert_eq!((sender.room(), sender.acknowledged_min()), (if granted { 70 } else { 50 }, Some(950)));
        sender.peers.get_mut(&PeerId(1)).unwrap().window = 12;
        assert_eq!((sender.limit(), sender.burst(), sender.room()), (12, 3, 0));
        sender.peers.get_mut(&PeerId(1)).unwrap().window = 3;
        assert_eq!(sender.burst(), 1, "one packet may always leave");
        // Those whose lap is over hold nothing.
        sender.position = 1 << 41;
        assert_eq!((sender.room(), sender.acknowledged_min()), (0, None));
        let most = if granted { 1 << 32 } else { 100 };
        assert_eq!((sender.limit(), sender.burst()), (most, 8));
    }
}

/// At a granted rate packets follow one another as it says; a late call catches up for 2 ms.
#[test]
fn a_granted_rate_is_spent() {
    let mut sender = behind(&[(1, 1)]);
    sender.spend(BEGAN, 5);
    assert!(!sender.is_ahead(BEGAN), "no rate was granted");
    // A bit takes a nanosecond.
    let packet = Duration(sender.packet_len() * 8);
    sender.config.rate = Some(Rate(1_000_000_000));
    sender.spend(BEGAN, 250);
    let behind = Duration::from_millis(2);
    let free_at = |packets: u64| Time((BEGAN.0 - behind.0) + packet.0 * packets);
    assert_eq!(sender.next_send, free_at(250));
    sender.spend(BEGAN, 3);
    assert_eq!(sender.next_send, free_at(253));
    assert!(sender.is_ahead(Time(sender.next_send.0 - 1)) && !sender.is_ahead(sender.next_send));
}

/// The queue in the host is 40 KiB and what passes in a third of a millisecond, at least two packets and at
/// most 1 MiB.
#[test]
fn what_waits_in_the_host_has_bounds() {
    let mut sender = behind(&[(1, 1)]);
    let waits = |sender: &mut Sender, rate: Option<u64>, best: u64| {
        (sender.config.rate, sender.best_rate) = (rate.map(Rate), best);
        sender.host_queue_bytes()
    };
    assert_eq!(waits(&mut sender, None, 0), 240 << 10);
    assert_eq!(waits(&mut sender, Some(24_000_000), 9), (40 << 10) + 1_000);
    let packet = sender.packet_len();
    assert_eq!(waits(&mut sender, None, 3_000_000), ((40 << 10) + 1_000 * packet).min(1 << 20));
    assert_eq!(waits(&mut sender, None, 30_000), (40 << 10) + 10 * packet);
    assert_eq!(waits(&mut sender, None, u64::MAX), 1 << 20);
    sender.config.geometry.fragment_len = 60_000;
    let packet = sender.packet_len();
    assert_eq!(waits(&mut sender, Some(8), 0), 2 * packet);
}
