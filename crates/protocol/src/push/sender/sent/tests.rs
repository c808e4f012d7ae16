//! Results that follow from what was sent, compared with a list of all its packets.

#[cfg(test)]
extern crate std;

use super::super::{PeerId, SenderConfig, Service};
use super::*;
use crate::push::Geometry;
use crate::push::peer::Peer;
use alloc::vec::Vec;
use polycast_types::{Duration, Handle, Location, RangeSet};
use polycast_wire::control::Control;
use proptest::prelude::*;
use std::panic::{AssertUnwindSafe, catch_unwind};

const FRAGMENTS: u64 = 50;

fn sender(peers: u32) -> Sender {
    let geometry = Geometry { object_len: FRAGMENTS * 1_000, fragment_len: 1_000, group_len: 10_000 };
    let mut sender = Sender::new(SenderConfig::new(Handle(1), geometry, 7));
    (0..peers).for_each(|id| sender.join(Time(1), PeerId(id), 1 << 20, RangeSet::new(), Location::default()));
    for peer in sender.peers.values_mut() {
        (peer.service, peer.lap.initial) = (Service::Streaming, Some(0));
    }
    sender
}

/// Sends batches, of which each skips some positions; gives the position and the time of each packet.
fn sent(sender: &mut Sender, batches: &[(u64, u32)]) -> Vec<(u64, Time)> {
    let mut packets = Vec::new();
    for (at, (skipped, count)) in (1..).zip(batches) {
        let position = sender.position + skipped;
        packets.extend((position..position + u64::from(*count)).map(|position| (position, Time(at))));
        sender.send(Time(at), position, *count, 0);
    }
    packets
}

proptest! {
    /// Before a position lie the packets that were sent there, and the one before it left when its batch did.
    #[test]
    fn positions_are_turned_into_packets(batches in proptest::collection::vec((0u64..5, 1u32..8), 1..20)) {
        let mut sender = sender(1);
        let packets = sent(&mut sender, &batches);
        for position in 0..=sender.position {
            let before = packets.iter().filter(|(at, _)| *at < position).count() as u64;
            // Where nothing was sent the batch that comes next tells no more than that it lies behind.
            if packets.iter().any(|(at, _)| *at + 1 == position) || position == 0 {
                prop_assert_eq!(sender.packets_before(position), before, "{} of {:?}", position, batches);
            }
            prop_assert!(sender.packets_before(position) <= packets.len() as u64);
        }
        for (position, at) in &packets {
            prop_assert_eq!(sender.sent_at(position + 1), Some(*at));
        }
        prop_assert_eq!(sender.sent_at(sender.position + 1), None);
    }

    /// A fragment was sent last at the greatest of its positions.
    #[test]
    fn a_fragment_was_sent_last_in_the_latest_round(position in 1u64..200, sn in 0u64..FRAGMENTS) {
        let mut sender = sender(1);
        sender.position = position;
        let last = (0..position).rev().find(|at| at % FRAGMENTS == sn);
        if let Some(last) = last {
            prop_assert_eq!(sender.last_sent(sn), last);
        }
    }

    /// Batches that every receiver on the channel has passed are forgotten, but for the one that shows where
    /// that ends; the rest answers as before.
    #[test]
    fn what_all_have_passed_is_forgotten(
        batches in proptest::collection::vec((0u64..5, 1u32..8), 1..20), passed in proptest::collection::vec(0u64..140, 1..4),
    ) {
        let mut sender = sender(passed.len() as u32);
        sent(&mut sender, &batches);
        let least = *passed.iter().min().unwrap();
        let before: Vec<u64> = (least..=sender.position).map(|at| sender.packets_before(at)).collect();
        for (id, passed) in (0..).zip(&passed) {
            sender.peers.get_mut(&PeerId(id)).unwrap().lap.position = *passed;
        }
        sender.forget_sent();
        let needless = sender.sent.iter().filter(|batch| batch.position <= least).count();
        prop_assert!(needless <= 1, "{} are kept, {:?} are passed", needless, passed);
        let after: Vec<u64> = (least..=sender.position).map(|at| sender.packets_before(at)).collect();
        prop_assert_eq!(before, after);
    }
}

/// A report of a receiver: so many packets have come, the last at `arrived`.
fn report(sender: &mut Sender, now: Time, position: u64, arrived: Time) {
    let report = Control::Progress {
        position,
        received: position,
        lost: 0,
        verified_bytes: 0,
        arrived_ns: arrived.0,
        waited_ns: 0,
    };
    sender.control(now, PeerId(0), &report);
}

const MS: Duration = Duration::from_millis(1);

/// The round trip is a mean of what the last eight reports tell, and so is that without the time in queues.
#[test]
fn round_trips_are_told_by_reports() {
    let mut sender = sender(1);
    let (trip, clock) = (MS * 5, MS * 77);
    for (report_at, queue_ms) in [(1u64, 0), (2, 2)] {
        let now = Time(0) + MS * (100 * report_at);
        sender.send(now, report_at - 1, 1, 0);
        report(&mut sender, now + trip, report_at, now + clock + MS * queue_ms);
        let expected = if report_at == 1 { (1_500, 1_500) } else { (1_937, 1_687) };
        assert_eq!((sender.round_trip.0 / 1_000, sender.bare_trip.0 / 1_000), expected, "microseconds");
    }
    for report_at in 3..100 {
        let now = Time(0) + MS * (100 * report_at);
        sender.send(now, report_at - 1, 1, 0);
        report(&mut sender, now + trip, report_at, now + clock + MS * 2);
    }
    let (with, without) = (sender.round_trip.0 / 10_000, sender.bare_trip.0 / 10_000);
    assert!((495..=500).contains(&with) && (295..=300).contains(&without), "{with}, {without}");
}

/// The window grows by what the receiver furthest behind has got, if at least half of it was in use.
#[test]
fn a_window_that_is_half_empty_does_not_grow() {
    let window = sender(1).congestion.window();
    for (in_flight, grows) in [(window.div_ceil(2), true), (window.div_ceil(2) - 1, false), (window, true)] {
        for furthest in [true, false] {
            let mut sender = sender(2);
            sender.fragments = 1 << 20;
            for position in 0..in_flight {
                sender.send(Time(1) + MS, position, 1, 0);
            }
            // The other one has got less, or more.
            let other = sender.peers.get_mut(&PeerId(1)).unwrap();
            other.lap.acknowledged = if furthest { in_flight } else { 0 };
            report(&mut sender, Time(1) + MS * 3, in_flight / 4, Time(0));
            let expected = if grows && furthest { window + in_flight / 4 } else { window };
            assert_eq!(sender.congestion.window(), expected, "{in_flight} of {window} in flight");
        }
    }
}

proptest! {
    /// While a path settles an attempt carries what the receivers still have to be offered; then the next
    /// fragment that some receiver on its lap has lost; then anything. Without a receiver on its lap there is
    /// none.
    #[test]
    fn an_attempt_carries_the_next_that_is_missing(
        missing in proptest::collection::vec((proptest::collection::vec(0u64..FRAGMENTS, 0..4), any::<bool>()), 1..4),
        position in 3 * FRAGMENTS..5 * FRAGMENTS, settles: bool,
    ) {
        let mut sender = sender(missing.len() as u32);
        sender.position = position;
        for (peer, (sns, streams)) in sender.peers.values_mut().zip(&missing) {
            sns.iter().for_each(|sn| { peer.repairs.missing.insert(*sn..*sn + 1); });
            if !streams {
                peer.service = Service::Patching;
            }
        }
        let streaming = || missing.iter().filter(|(_, streams)| *streams);
        let lost = |sn: u64| streaming().any(|(sns, _)| sns.contains(&sn));
        let next = (position..position + FRAGMENTS).find(|at| lost(at % FRAGMENTS)).unwrap_or(position);
        let expected = (settles && streaming().count() > 0).then_some(next);
        prop_assert_eq!(sender.next_for_attempt(settles), expected);
        // One whose lap has not begun comes first.
        sender.join(Time(1), PeerId(9), 1 << 20, core::iter::once(0..10).collect(), Location::default());
        let offered = (position..).find(|at| at % FRAGMENTS >= 10);
        prop_assert_eq!(sender.next_for_attempt(settles), offered);
    }
}

/// Each impossible state is noticed, even if it is the only one.
#[test]
fn a_sender_that_contradicts_itself_is_noticed() {
    const BEYOND: core::ops::Range<u64> = FRAGMENTS..FRAGMENTS + 1;
    type Spoils = (&'static str, fn(&mut Sender));
    fn first(sender: &mut Sender) -> &mut Peer {
        sender.peers.get_mut(&PeerId(0)).unwrap()
    }
    let spoils: [Spoils; 25] = [
        ("two batches at one place", |s| s.sent[1].position = s.position),
        ("a batch of no packet", |s| s.sent[1].packets = s.packets),
        ("a packet of no batch", |s| s.packets += 1),
        ("a report before its packet", |s| s.reported_packets = s.packets + 1),
        ("over TCP and no member", |s| first(s).service = Service::Chained),
        ("on the channel and a member", |s| {
            drop(s.mesh.join([(PeerId(0), Location::default())]));
        }),
        ("streams before its lap", |s| first(s).lap.initial = None),
        ("patches for one that is done", |s| {
            first(s).repairs.missing.insert(1..2);
            first(s).service = Service::Done;
        }),
        ("something later for one that is done", |s| {
            first(s).repairs.later.insert(1..2);
            first(s).service = Service::Done;
        }),
        ("one that is done has a speaker", |s| {
            s.racks.insert(PeerId(1), [PeerId(0)].into());
            (first(s).service, first(s).spoken_by) = (Service::Done, Some(PeerId(1)));
        }),
        ("a lap that began before the stream", |s| s.config.first = 1),
        ("a lap that begins where nothing was sent", |s| {
            (first(s).lap.initial, first(s).lap.position) = (Some(9), 9)
        }),
        ("before its own lap", |s| (first(s).lap.initial, first(s).lap.position) = (Some(4), 3)),
        ("ahead of the stream", |s| first(s).lap.position = 10),
        ("acknowledged less than at first", |s| first(s).lap.first_acknowledged = 8),
        ("acknowledged more than was sent", |s| first(s).lap.acknowledged = 10),
        ("received more than was sent", |s| first(s).lap.received = 10),
        ("lost more than was sent", |s| first(s).lap.lost = 10),
        ("more verified than there is", |s| first(s).has.verified_bytes = FRAGMENTS * 1_000 + 1),
        ("lacks what there is not", |s| {
            first(s).repairs.missing.insert(BEYOND);
        }),
        ("gets later what there is not", |s| {
            first(s).repairs.later.insert(BEYOND);
        }),
        ("was patched what there is not", |s| {
            first(s).repairs.patched.insert(BEYOND);
        }),
        ("was sent what there is not", |s| {
            first(s).repairs.unicast[0].insert(BEYOND);
        }),
        ("one speaks for it that may not", |s| first(s).spoken_by = Some(PeerId(1))),
        ("one in its own rack", |s| drop(s.racks.insert(PeerId(0), [PeerId(0)].into()))),
    ];
    for (what, spoil) in spoils {
        let mut sender = sender(2);
        sent(&mut sender, &[(0, 4), (0, 3), (0, 2)]);
        for peer in sender.peers.values_mut() {
            (peer.lap.position, peer.lap.acknowledged, peer.lap.received) = (7, 7, 7);
        }
        sender.check();
        spoil(&mut sender);
        assert!(catch_unwind(AssertUnwindSafe(|| sender.check())).is_err(), "{what}");
    }
}
