//! State of one receiver, as the sender knows it.

mod has;
mod lap;
mod look;
mod path;
mod repairs;
mod signs;
mod trials;

pub(super) use look::per_second;

use super::words::PeerId;
use crate::session::Why;
use core::ops::Range;
use has::Has;
use lap::Lap;
use path::OwnPath;
use polycast_types::{Duration, Location, RangeSet, Time};
use repairs::Repairs;
use signs::Signs;
use trials::Trials;

/// Way in which a receiver is being served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Service {
    /// Nothing from the data channel has reached it yet, since then.
    Listening { since: Time },
    /// It takes the data channel and holds the sender's window.
    Streaming,
    /// Too slow: it takes what it can, and patches by unicast for the rest; it does not delay the others.
    Patching,
    /// Multicast does not reach it: it fetches over TCP, and others fetch from it.
    Chained,
    /// Everything is verified and stored there.
    Done,
    /// Given up.
    Failed(Why),
}

/// For how long a receiver could have verified something and did not, and after how many packets of the
/// stream that began.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Idle {
    pub(super) span: Duration,
    pub(super) from: Option<u64>,
}

/// One receiver.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    /// Its zone and rack.
    pub(super) location: Location,
    pub(super) service: Service,
    /// Packets that may be in flight to it.
    pub(super) window: u64,
    pub(super) lap: Lap,
    pub(super) has: Has,
    pub(super) signs: Signs,
    pub(super) path: OwnPath,
    pub(super) repairs: Repairs,
    pub(super) idle: Idle,
    pub(super) trials: Trials,
    /// Time when it began to fetch over TCP, and the bytes that it had verified then.
    pub(super) chained: Option<(Time, u64)>,
    /// Set if that was because the data channel did not reach it, or no longer did.
    pub(super) cut_off: bool,
    /// The receiver that reports for it, if it does not do so itself.
    pub(super) spoken_by: Option<PeerId>,
    /// The others do not wait for it from its first packet on: it has come again and again.
    pub(super) unawaited: bool,
}

impl Peer {
    /// It has verified so many bytes.
    pub(super) fn has_verified(&mut self, now: Time, bytes: u64) {
        if bytes > self.has.own_bytes {
            self.has.own_bytes = bytes;
            self.idle = Idle::default();
        }
        self.is_said_to_have(now, bytes);
    }

    /// The receiver that reports for it says so.
    pub(super) fn is_said_to_have(&mut self, now: Time, bytes: u64) {
        if bytes > self.has.verified_bytes {
            (self.has.verified_bytes, self.signs.verified_at) = (bytes, now);
            self.idle = Idle::default();
        }
    }

    /// No other receiver reports for it any more. What that one has made up is not held against it.
    pub(super) fn speak_for_itself(&mut self) {
        (self.spoken_by, self.lap.totals_unknown) = (None, true);
        if self.service != Service::Done {
            self.has.verified_bytes = self.has.own_bytes;
        }
    }

    /// Since when it waits for a first packet, if it does.
    pub(super) fn listening_since(&self) -> Option<Time> {
        match self.service {
            Service::Listening { since } => Some(since),
            _ => None,
        }
    }

    pub(super) fn new(now: Time, window: u64, have: RangeSet) -> Self {
        Peer {
            service: Service::Listening { since: now },
            location: Location::default(),
            window,
            lap: Lap::default(),
            has: Has::new(have),
            signs: Signs::new(now),
            path: OwnPath::default(),
            repairs: Repairs::default(),
            idle: Idle::default(),
            trials: Trials::new(now),
            chained: None,
            cut_off: false,
            spoken_by: None,
            unawaited: false,
        }
    }

    /// Returns true while it takes part at all.
    pub(super) fn is_active(&self) -> bool {
        !matches!(self.service, Service::Done | Service::Failed(_))
    }

    /// Returns true while the data channel is meant for it.
    pub(super) fn is_on_channel(&self) -> bool {
        matches!(self.service, Service::Listening { .. } | Service::Streaming | Service::Patching)
    }

    /// The first run of positions at or after `position` that it still has to be offered, within one round.
    pub(super) fn needs(&self, position: u64, fragments: u64) -> Option<Range<u64>> {
        let end = match self.service {
            Service::Streaming | Service::Patching => self.lap.end(fragments)?,
            // Not begun: anything it lacks will do.
            Service::Listening { .. } => position + fragments,
            _ => return None,
        };
        let mut at = position;
        while at < end {
            let sn = at % fragments;
            let round = at - sn;
            let missing = self.has.have.first_missing(sn);
            if missing < fragments {
                let until = self.has.have.first_present(missing).unwrap_or(fragments).min(fragments);
                let run = round + missing..(round + until).min(end);
                return (!run.is_empty()).then_some(run);
            }
            at = round + fragments;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::look::Look;
    use super::path::LATE_BESIDE_OTHERS;
    use super::*;
    use crate::push::congestion::OTHERS_SPAN;
    use proptest::prelude::*;

    const MS: Duration = Duration::from_millis(1);

    /// A receiver whose reports come 2 ms after a packet was sent, of which it `waited` in the socket; before
    /// that, a second in which the path gave 1,000 packets every 20 ms, or half as many with a queue that
    /// never emptied.
    fn late(shared: bool, waited: Duration) -> bool {
        let mut peer = Peer::new(Time::ZERO, 100, RangeSet::new());
        let mut now = Time(1_000_000_000);
        for (i, queue) in [0, 0, 0].into_iter().chain([u64::from(shared) * 3; 10]).enumerate() {
            peer.lap.received += if queue == 0 { 1_000 } else { 500 };
            now = Time(1_000_000_000) + MS * (20 * i as u64);
            peer.path.arrived(now + MS * 2, now, (now + MS * queue, Duration::ZERO), peer.lap.received);
            assert!(!peer.path.is_late);
        }
        peer.path.arrived(now + waited + MS, now, (now, waited), peer.lap.received);
        peer.path.is_late
    }

    #[test]
    fn on_a_shared_path_only_long_waits_are_the_receivers_own_fault() {
        assert!(late(false, MS * 2));
        assert!(!late(true, MS * 2));
        assert!(late(true, LATE_BESIDE_OTHERS));
    }

    /// Others that were seen on the path count as present for five seconds.
    #[test]
    fn others_on_a_path_are_remembered_for_a_while() {
        let seen = Time(1_000_000_000);
        for (after, is_late) in
            [(MS, false), (OTHERS_SPAN - Duration(1), false), (OTHERS_SPAN, true), (OTHERS_SPAN * 2, true)]
        {
            let mut peer = Peer::new(Time::ZERO, 100, RangeSet::new());
            peer.path.shared_at = Some(seen);
            let now = seen + after;
            peer.path.arrived(now, Time(now.0 - MS.0 * 15), (now, MS * 10), 0);
            assert_eq!(peer.path.is_late, is_late, "{after}");
        }
    }

    /// Eight packets are enough to tell, and more than a quarter of them is much. Fewer are kept for the next
    /// look.
    #[test]
    fn more_than_a_quarter_of_enough_packets_is_much() {
        for sent in 0..40u64 {
            for got in 0..=sent {
                let mut peer = Peer::new(Time::ZERO, 100, RangeSet::new());
                (peer.lap.acknowledged, peer.lap.received) = (1_000, 900);
                peer.lap.watch();
                (peer.lap.acknowledged, peer.lap.received) = (1_000 + sent, 900 + got);
                assert_eq!(peer.lap.misses_much(), sent >= 8 && 4 * (sent - got) > sent, "{got} of {sent}");
                // From here on it is looked at anew, or with what was too little.
                (peer.lap.acknowledged, peer.lap.received) = (1_008 + sent, 900 + got);
                let lost = if sent >= 8 { 8 } else { 8 + sent - got };
                let looked_at = if sent >= 8 { 8 } else { 8 + sent };
                assert_eq!(peer.lap.misses_much(), 4 * lost > looked_at, "{got} of {sent}, and none of 8");
            }
        }
    }

    #[test]
    fn a_position_is_reported_when_its_loss_would_have_been_asked_for() {
        let mut peer = Peer::new(Time::ZERO, 100, RangeSet::new());
        (peer.lap.initial, peer.lap.position) = (Some(10), 30);
        // 20 packets of its lap were sent, and three of them lost.
        (peer.lap.first_acknowledged, peer.lap.acknowledged, peer.lap.received) = (5, 25, 17);
        for (asked, asked_until) in [(0, 0), (2, 12), (2, 28), (3, 28), (4, 40)] {
            (peer.lap.asked, peer.lap.asked_until) = (asked, asked_until);
            for position in 0..40 {
                let is_of_its_lap = (10..30).contains(&position);
                let expected = is_of_its_lap && (asked >= 3 || position < asked_until);
                assert_eq!(
                    peer.lap.has_reported(position),
                    expected,
                    "{position}, {asked} up to {asked_until}"
                );
            }
        }
        peer.lap.initial = None;
        assert!(!peer.lap.has_reported(20), "its lap has not begun");
    }

    #[test]
    fn only_one_that_nothing_has_reached_is_listening() {
        let mut peer = Peer::new(Time(70), 100, RangeSet::new());
        assert_eq!(peer.listening_since(), Some(Time(70)));
        for service in [Service::Streaming, Service::Patching, Service::Chained, Service::Done] {
            peer.service = service;
            assert_eq!(peer.listening_since(), None);
        }
    }

    /// Packets that reached a receiver between two reports are divided by the time between them. Where no
    /// report has come, the pace is as before, unless the last report is 150 ms old: then nothing reaches it.
    #[test]
    fn a_pace_is_what_came_between_two_reports() {
        let began = Time::ZERO + MS * 1_000;
        let first = Look::first(began);
        assert_eq!(first.pace, None);
        let second = first.next(began + MS * 60, (300, 7), began + MS * 50);
        assert_eq!((second.pace, second.lost), (Some(6_000), 7));
        let third = second.next(began + MS * 100, (400, 9), began + MS * 90);
        assert_eq!((third.pace, third.lost), (Some(2_500), 9));
        for (now_ms, pace) in [(91, 2_500), (239, 2_500), (240, 0), (500, 0)] {
            let silent = third.next(began + MS * now_ms, (400, 9), began + MS * 90);
            assert_eq!(silent.pace, Some(pace), "after {now_ms} ms");
            // What comes then is divided by the whole time.
            let again = silent.next(began + MS * 600, (910, 9), began + MS * 600);
            assert_eq!(again.pace, Some(1_000));
        }
        assert_eq!(first.next(began + MS * 149, (0, 0), began).pace, None, "nothing is known yet");
    }

    #[test]
    fn queues_are_looked_at_by_their_mean() {
        let mut look = Look::first(Time::ZERO);
        assert_eq!(look.mean_queue(), Duration::ZERO);
        [1, 2, 6].into_iter().for_each(|ms| look.queue(MS * ms));
        assert_eq!(look.mean_queue(), MS * 3);
        assert_eq!(look.next(Time::ZERO, (0, 0), Time::ZERO).mean_queue(), Duration::ZERO, "it begins anew");
        look.queue(Duration(u64::MAX));
        assert_eq!(look.mean_queue(), Duration(u64::MAX / 4));
    }

    #[test]
    fn packets_a_second_are_counted_in_nanoseconds() {
        assert_eq!(per_second(0, MS), 0);
        assert_eq!(per_second(7, MS), 7_000);
        assert_eq!(per_second(1, MS * 3_000), 0);
        assert_eq!(per_second(10, MS * 3_000), 3);
        assert_eq!(per_second(2, Duration::ZERO), 2_000_000_000, "a nanosecond at least");
        assert_eq!(per_second(u64::MAX, MS), u64::MAX);
    }

    /// Packets that come in a row are counted until one is missing; one that was late makes up for that
    /// later.
    #[test]
    fn packets_in_a_row_are_counted_until_one_is_missing() {
        let mut peer = Peer::new(Time::ZERO, 100, RangeSet::new());
        (peer.lap.acknowledged, peer.lap.received) = (50, 40);
        peer.lap.watch();
        for (sent, got, clean) in
            [(3, 3, 3), (2, 2, 5), (0, 0, 5), (4, 3, 0), (4, 5, 4), (1, 1, 5), (5, 0, 0), (6, 6, 6)]
        {
            (peer.lap.acknowledged, peer.lap.received) =
                (peer.lap.acknowledged + sent, peer.lap.received + got);
            peer.lap.count_clean();
            assert_eq!(peer.lap.clean, clean, "{got} of {sent}");
        }
        peer.lap.watch();
        assert_eq!(peer.lap.clean, 0);
    }

    /// A receiver that has verified more has made progress, and any other has not.
    #[test]
    fn one_that_verifies_more_gets_on() {
        let mut peer = Peer::new(Time::ZERO, 100, RangeSet::new());
        for (bytes, gets_on) in [(0, false), (1, true), (1, false), (7, true), (6, false)] {
            let most = peer.has.verified_bytes.max(bytes);
            let now = Time::ZERO + MS * (bytes + 1);
            (peer.idle.span, peer.idle.from, peer.signs.verified_at) = (MS, Some(3), Time::ZERO);
            peer.has_verified(now, bytes);
            let expected = if gets_on { (Duration::ZERO, None, now) } else { (MS, Some(3), Time::ZERO) };
            assert_eq!((peer.idle.span, peer.idle.from, peer.signs.verified_at), expected, "{bytes}");
            assert_eq!(peer.has.verified_bytes, most);
        }
    }

    proptest! {
        /// Positions that a receiver still has to be offered are the next run of what it lacked when it came:
        /// within its lap, and within a round; before its lap begins, of what it lacks at any position.
        #[test]
        fn a_receiver_needs_what_it_lacked(
            have in proptest::collection::btree_set(0u64..20, 0..21), initial in 0u64..60, at in 0u64..90, service in 0..5,
        ) {
            let set: RangeSet = have.iter().map(|sn| *sn..*sn + 1).collect();
            let mut peer = Peer::new(Time::ZERO, 100, set);
            assert_eq!(peer.has.held_count, have.len() as u64);
            peer.lap.initial = Some(initial);
            let (service, end) = match service {
                0 => (Service::Listening { since: Time::ZERO }, at + 20),
                1 => (Service::Streaming, initial + 20),
                2 => (Service::Patching, initial + 20),
                3 => (Service::Chained, 0),
                _ => (Service::Done, 0),
            };
            peer.service = service;
            let lacks = |position: &u64| !have.contains(&(position % 20));
            let first = (at..end).find(lacks);
            let expected = first.map(|first| {
                let until = (first..end).find(|position| !lacks(position) || *position > first && position % 20 == 0);
                first..until.unwrap_or(end)
            });
            prop_assert_eq!(peer.needs(at, 20), expected);
        }
    }
}
