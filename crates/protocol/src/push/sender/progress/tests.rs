//! For how long receivers could have verified something, one law at a time. `tests/push/idle.rs` has whole
//! transfers.

use super::*;
use crate::push::{Geometry, SenderConfig};
use polycast_types::{Handle, Location, RangeSet};
use proptest::prelude::*;

const MS: Duration = Duration::from_millis(1);
const PATIENCE: Duration = Duration::from_secs(3);
const FRAGMENTS: u64 = 1_000;

fn sender(peers: u32, group_len: u32) -> Sender {
    let geometry = Geometry { object_len: FRAGMENTS * 1_000, fragment_len: 1_000, group_len };
    let config = SenderConfig { progress_timeout: PATIENCE, ..SenderConfig::new(Handle(1), geometry, 7) };
    let mut sender = Sender::new(config);
    (0..peers).for_each(|id| sender.join(Time(1), PeerId(id), 1 << 20, RangeSet::new(), Location::default()));
    for peer in sender.peers.values_mut() {
        (peer.service, peer.lap.initial) = (Service::Streaming, Some(0));
    }
    sender
}

fn is_served(sender: &Sender) -> bool {
    sender.is_served(&sender.peers[&PeerId(0)])
}

proptest! {
    /// On the data channel something could be verified when the lap is over, or when two groups have been
    /// sent since, and besides as much as it held at first; never while the path is not there.
    #[test]
    fn two_groups_are_enough_to_verify_one(
        groups in 1u64..12, odd in 0u64..1_000, held in 0u64..30, from in proptest::option::of(0u64..40), sent in 0u64..90,
        position in 0u64..30, laps in any::<bool>(), patching in any::<bool>(), away in 0u8..4,
    ) {
        let mut sender = sender(1, (groups * 1_000 + odd) as u32);
        sender.packets = from.unwrap_or(0) + sent;
        sender.position = if laps { FRAGMENTS + position } else { position };
        (sender.paused, sender.path_waits) = (away & 1 == 1, away & 2 == 2);
        let peer = sender.peers.get_mut(&PeerId(0)).unwrap();
        (peer.lap.initial, peer.has.held_count, peer.idle.from) = (Some(15), held, from);
        if patching {
            peer.service = Service::Patching;
        }
        let is_over = laps && position >= 15;
        // A group has the fragments that fill it, and part of one more.
        let offered = from.is_some() && sent >= held + 2 * (groups + 1);
        prop_assert_eq!(is_served(&sender), away == 0 && (is_over || offered));
    }

    /// The time counts in which it is served, at most a tenth of a second between two looks; what is verified
    /// makes it count anew.
    #[test]
    fn time_counts_while_something_could_be_verified(looks in proptest::collection::vec((1u64..300, 0u8..4), 1..40)) {
        let mut sender = sender(1, 10_000);
        sender.position = FRAGMENTS;
        let (mut now, mut idle, mut verified) = (Time(1), Duration::ZERO, 0);
        sender.progress_at = now;
        for (millis, what) in looks {
            now += MS * millis;
            sender.paused = what == 1;
            if what == 0 {
                verified += 1;
                sender.peers.get_mut(&PeerId(0)).unwrap().has_verified(now, verified);
                idle = Duration::ZERO;
            }
            if what != 1 {
                idle = idle + MS * millis.min(100);
            }
            if idle >= PATIENCE {
                break;
            }
            sender.check_progress(now);
            prop_assert_eq!(sender.peers[&PeerId(0)].idle.span, idle);
            prop_assert!(sender.peers[&PeerId(0)].is_active());
        }
    }
}

/// Over TCP something can always be verified: the source gives what none else has.
#[test]
fn a_member_of_the_mesh_can_always_get_something() {
    let mut sender = sender(2, 10_000);
    assert!(!is_served(&sender), "nothing was sent");
    sender.move_to_mesh(Time(1), PeerId(0));
    assert!(is_served(&sender));
    for service in [Service::Listening { since: Time(1) }, Service::Done] {
        sender.peers.get_mut(&PeerId(0)).unwrap().service = service;
        assert!(!is_served(&sender));
    }
}

/// It is given up just when its time is over.
#[test]
fn one_that_gets_nothing_done_is_given_up_in_time() {
    let mut sender = sender(2, 10_000);
    sender.position = FRAGMENTS;
    let mut now = Time(1);
    sender.check_progress(now);
    for look in 1..=30 {
        now += MS * 100;
        sender.peers.get_mut(&PeerId(1)).unwrap().has_verified(now, look);
        sender.check_progress(now);
        assert_eq!(sender.peers[&PeerId(0)].is_active(), look < 30, "after {look} looks");
    }
    assert_eq!(sender.peers[&PeerId(0)].service, Service::Failed(Why::NoProgress(PATIENCE)));
    assert_eq!(sender.peers[&PeerId(1)].service, Service::Streaming);
}

/// No receiver of a rack is given up for the others: all speak for themselves, and have their time again.
#[test]
fn a_rack_that_gets_nothing_done_speaks_for_itself() {
    let mut sender = sender(4, 10_000);
    sender.position = FRAGMENTS;
    sender.allow(PeerId(0), [1, 2].map(PeerId).into());
    sender.name_rack(PeerId(0), &[1, 2]);
    let mut now = Time(1);
    sender.check_progress(now);
    let rounds = |sender: &mut Sender, now: &mut Time, count: u64| {
        for _ in 0..count {
            *now += MS * 100;
            sender.peers.get_mut(&PeerId(3)).unwrap().has_verified(*now, now.0);
            sender.check_progress(*now);
        }
    };
    rounds(&mut sender, &mut now, 29);
    assert!(sender.speaks_for_others(PeerId(0)));
    rounds(&mut sender, &mut now, 1);
    assert!(!sender.speaks_for_others(PeerId(0)), "which of them it is is not known");
    assert!(sender.peers.values().all(|peer| peer.is_active() && peer.spoken_by.is_none()));
    rounds(&mut sender, &mut now, 29);
    assert!(sender.peers.values().all(Peer::is_active));
    rounds(&mut sender, &mut now, 1);
    let failed: Vec<bool> = sender.peers.values().map(|peer| !peer.is_active()).collect();
    assert_eq!(failed, [true, true, true, false]);
}
