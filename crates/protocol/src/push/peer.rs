//! What the sender knows of one receiver.

use super::congestion::{LossHistory, OTHERS_SPAN};
use super::delay::PathDelay;
use super::sender::{PeerId, Slower};
use crate::session::Why;
use core::ops::Range;
use polycast_types::{Duration, RangeSet, Time};

/// How a receiver is being served.
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

/// On a path that others use, a receiver is late only if packets wait in its socket for this long.
const LATE_BESIDE_OTHERS: Duration = Duration::from_millis(20);

/// Fewer packets say nothing about a path.
const LOOK_PACKETS: u64 = 8;

/// What a while has shown of a receiver's path.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Look {
    /// What it had lost in all when the while began.
    pub(super) lost: u64,
    /// The packets that had reached it when the while began, by its last report until then, and when that came.
    received: u64,
    reported_at: Time,
    /// Packets a second that reached it in the while before; nothing is known at first.
    pub(super) pace: Option<u64>,
    queues: u64,
    queue_ns: u64,
}

impl Look {
    /// The first while, before any report.
    fn first(now: Time) -> Self {
        Look { reported_at: now, ..Look::default() }
    }

    /// The next while, which begins when so many packets have reached it, and so many were lost, in all, as it has reported at that
    /// time. Its reports are farther apart than a while is long: what came between two of them is divided by their distance.
    pub(super) fn next(&self, now: Time, (received, lost): (u64, u64), reported_at: Time) -> Self {
        let between = reported_at.since(self.reported_at);
        let pace = if between > Duration::ZERO {
            Some(per_second(received.saturating_sub(self.received), between))
        } else if now.since(reported_at) >= SILENT {
            Some(0)
        } else {
            self.pace
        };
        Look { lost, received, reported_at, pace, ..Look::default() }
    }

    /// A packet has queued for so long.
    pub(super) fn queue(&mut self, queue: Duration) {
        self.queues += 1;
        self.queue_ns = self.queue_ns.saturating_add(queue.0);
    }

    /// The mean queue.
    pub(super) fn mean_queue(&self) -> Duration {
        Duration(self.queue_ns.checked_div(self.queues).unwrap_or(0))
    }
}

/// A receiver whose reports have not advanced for so long gets nothing: they come every 50 ms at least.
const SILENT: Duration = Duration::from_millis(150);

/// Packets a second.
pub(super) fn per_second(packets: u64, span: Duration) -> u64 {
    u64::try_from(u128::from(packets) * 1_000_000_000 / u128::from(span.0.max(1))).unwrap_or(u64::MAX)
}

/// One receiver.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    pub(super) service: Service,
    /// Fragments that it held when it joined.
    pub(super) have: RangeSet,
    /// Packets that may be in flight to it.
    pub(super) window: u64,
    /// Position where its lap began.
    pub(super) initial: Option<u64>,
    /// Highest position it has reported.
    pub(super) position: u64,
    /// How many of the packets sent lie before that position.
    pub(super) acknowledged: u64,
    /// Its totals of the last report.
    pub(super) received: u64,
    pub(super) lost: u64,
    /// `acknowledged` where its lap began, how many fragments it has asked for, and the position after the last.
    pub(super) first_acknowledged: u64,
    pub(super) asked: u64,
    pub(super) asked_until: u64,
    /// `acknowledged` and `received` when the path's settling was looked at last.
    pub(super) watched: (u64, u64),
    /// Packets that came in a row, as far as reports tell, since the path began to settle.
    pub(super) clean: u64,
    /// When it joined.
    pub(super) joined_at: Time,
    pub(super) verified_bytes: u64,
    /// The same as it has said itself, and no other receiver for it.
    pub(super) own_bytes: u64,
    pub(super) patched_bytes: u64,
    pub(super) losses: LossHistory,
    pub(super) path: PathDelay,
    /// Whether the last packet that it reported spent most of its time in the receiver's own socket.
    pub(super) is_late: bool,
    /// When its path was last seen to be shared with others.
    pub(super) shared_at: Option<Time>,
    /// Last sign of life, last report, last progress on the data channel, last progress at all.
    pub(super) heard_at: Time,
    pub(super) reported_at: Time,
    pub(super) advanced_at: Time,
    pub(super) verified_at: Time,
    /// Lost fragments that wait for a patch.
    pub(super) missing: RangeSet,
    /// Fragments that a multicast patch has repeated; a second request for one goes by unicast.
    pub(super) patched: RangeSet,
    /// Fragments sent by unicast lately, in two generations, so that TCP's delay causes no repetition.
    pub(super) unicast: [RangeSet; 2],
    /// Fragments that it has asked for and gets when the others do not need the time, and after how many packets of the stream
    /// it got some last.
    pub(super) later: RangeSet,
    pub(super) later_from: u64,
    /// Fragments that it held when it joined.
    pub(super) held_count: u64,
    /// For how long it could have verified something and did not, and after how many packets of the stream that began.
    pub(super) idle: Duration,
    pub(super) idle_from: Option<u64>,
    /// When to send DATA_FNSD next.
    pub(super) finish_at: Option<Time>,
    /// For how long it alone has held the sender back.
    pub(super) held: Duration,
    /// What was seen of its path since slow receivers were last looked for.
    pub(super) look: Look,
    /// How often the others were tried without it in vain, and when they may be again.
    pub(super) tried: u32,
    pub(super) try_at: Time,
    /// How often the others got on faster without it while it took all that they took, and when they did last.
    pub(super) took_all: u32,
    pub(super) took_all_at: Time,
    /// The others do not wait for it any more, as it is so much slower.
    pub(super) slower: Option<Slower>,
    /// When it began to fetch over TCP, and what it had verified then.
    pub(super) chained: Option<(Time, u64)>,
    /// Whether that was because the data channel did not reach it, or no longer did.
    pub(super) cut_off: bool,
    /// The receiver that reports for it, if it does not do so itself.
    pub(super) spoken_by: Option<PeerId>,
    /// The others do not wait for it from its first packet on: it has come again and again.
    pub(super) unawaited: bool,
    /// Packets have waited at it for long, by its own word: its disk or its processor did not keep up.
    pub(super) was_held_up: bool,
    /// Its next report tells its own totals, which were not known meanwhile.
    pub(super) totals_unknown: bool,
}

impl Peer {
    /// The last packet it reports left at `sent`, reached its host at `arrived` by its own clock (zero: not known), and
    /// waited there in the socket.
    pub(super) fn arrived(&mut self, now: Time, sent: Time, (arrived, waited): (Time, Duration)) {
        let sample = now.since(sent);
        if arrived == Time::ZERO {
            self.is_late = true;
            return;
        }
        self.path.observe(now, sent, arrived);
        self.path.count(arrived, self.received);
        if self.path.is_shared() {
            self.shared_at = Some(now);
        }
        // Others on its path make it slow, not the moment that it takes to be woken up.
        let others = self.shared_at.is_some_and(|at| now.since(at) < OTHERS_SPAN);
        let long = waited >= if others { LATE_BESIDE_OTHERS } else { Duration::ZERO };
        self.is_late = waited * 2 >= sample && long;
    }

    /// It has verified so many bytes.
    pub(super) fn has_verified(&mut self, now: Time, bytes: u64) {
        if bytes > self.own_bytes {
            self.own_bytes = bytes;
            (self.idle, self.idle_from) = (Duration::ZERO, None);
        }
        self.is_said_to_have(now, bytes);
    }

    /// The receiver that reports for it says so.
    pub(super) fn is_said_to_have(&mut self, now: Time, bytes: u64) {
        if bytes > self.verified_bytes {
            (self.verified_bytes, self.verified_at) = (bytes, now);
            (self.idle, self.idle_from) = (Duration::ZERO, None);
        }
    }

    /// No other receiver reports for it any more. What that one has made up is not held against it.
    pub(super) fn speak_for_itself(&mut self) {
        (self.spoken_by, self.totals_unknown) = (None, true);
        if self.service != Service::Done {
            self.verified_bytes = self.own_bytes;
        }
    }

    /// Looks anew at what it misses, from here on.
    pub(super) fn watch(&mut self) {
        self.watched = (self.acknowledged, self.received);
        self.clean = 0;
    }

    /// Whether it has missed more than a quarter of the packets since the last look, if these are enough to tell.
    pub(super) fn misses_much(&mut self) -> bool {
        let sent = self.acknowledged.saturating_sub(self.watched.0);
        let got = self.received.saturating_sub(self.watched.1);
        let tells = sent >= LOOK_PACKETS;
        if tells {
            self.watched = (self.acknowledged, self.received);
        }
        tells && got.saturating_mul(4) < sent.saturating_mul(3)
    }

    /// It has reported again: whether what came since lacks anything.
    pub(super) fn count_clean(&mut self) {
        let sent = self.acknowledged.saturating_sub(self.watched.0);
        let got = self.received.saturating_sub(self.watched.1);
        self.clean = if got >= sent { self.clean + sent } else { 0 };
        self.watched = (self.acknowledged, self.received);
    }

    /// Whether it would have asked for what was sent at this position, had it lost it: it is past that, and has asked
    /// for something later, or for all that it lacks. Losses are asked for a while after they are seen.
    pub(super) fn has_reported(&self, position: u64) -> bool {
        let lacks = (self.acknowledged - self.first_acknowledged).saturating_sub(self.received);
        // What was sent before its lap began never reached it: it comes at the lap's end.
        let is_past = position < self.position && self.initial.is_some_and(|initial| position >= initial);
        is_past && (position < self.asked_until || self.asked >= lacks)
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
            held_count: have.iter().map(|range| range.end - range.start).sum(),
            have,
            window,
            initial: None,
            position: 0,
            acknowledged: 0,
            received: 0,
            lost: 0,
            first_acknowledged: 0,
            asked: 0,
            asked_until: 0,
            watched: (0, 0),
            clean: 0,
            joined_at: now,
            verified_bytes: 0,
            own_bytes: 0,
            patched_bytes: 0,
            losses: LossHistory::default(),
            path: PathDelay::default(),
            is_late: true,
            shared_at: None,
            heard_at: now,
            reported_at: now,
            advanced_at: now,
            verified_at: now,
            missing: RangeSet::new(),
            patched: RangeSet::new(),
            unicast: [RangeSet::new(), RangeSet::new()],
            idle: Duration::ZERO,
            idle_from: None,
            later: RangeSet::new(),
            later_from: 0,
            finish_at: None,
            held: Duration::ZERO,
            look: Look::first(now),
            tried: 0,
            try_at: Time::ZERO,
            took_all: 0,
            took_all_at: Time::ZERO,
            slower: None,
            cut_off: false,
            chained: None,
            unawaited: false,
            was_held_up: false,
            spoken_by: None,
            totals_unknown: false,
        }
    }

    /// Whether it takes part at all.
    pub(super) fn is_active(&self) -> bool {
        !matches!(self.service, Service::Done | Service::Failed(_))
    }

    /// Whether the data channel is meant for it.
    pub(super) fn is_on_channel(&self) -> bool {
        matches!(self.service, Service::Listening { .. } | Service::Streaming | Service::Patching)
    }

    /// Position where its lap ends, once it began.
    pub(super) fn lap_end(&self, fragments: u64) -> Option<u64> {
        self.initial.map(|initial| initial + fragments)
    }

    /// The first run of positions at or after `position` that it still has to be offered, within one round.
    pub(super) fn needs(&self, position: u64, fragments: u64) -> Option<Range<u64>> {
        let end = match self.service {
            Service::Streaming | Service::Patching => self.lap_end(fragments)?,
            // Not begun: anything it lacks will do.
            Service::Listening { .. } => position + fragments,
            _ => return None,
        };
        let mut at = position;
        while at < end {
            let sn = at % fragments;
            let round = at - sn;
            let missing = self.have.first_missing(sn);
            if missing < fragments {
                let until = self.have.first_present(missing).unwrap_or(fragments).min(fragments);
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
    use super::*;
    use proptest::prelude::*;

    const MS: Duration = Duration::from_millis(1);

    /// A receiver whose reports come 2 ms after a packet was sent, of which it `waited` in the socket; before that, a
    /// second in which the path gave 1,000 packets every 20 ms, or half as many with a queue that never emptied.
    fn late(shared: bool, waited: Duration) -> bool {
        let mut peer = Peer::new(Time::ZERO, 100, RangeSet::new());
        let mut now = Time(1_000_000_000);
        for (i, queue) in [0, 0, 0].into_iter().chain([u64::from(shared) * 3; 10]).enumerate() {
            peer.received += if queue == 0 { 1_000 } else { 500 };
            now = Time(1_000_000_000) + MS * (20 * i as u64);
            peer.arrived(now + MS * 2, now, (now + MS * queue, Duration::ZERO));
            assert!(!peer.is_late);
        }
        peer.arrived(now + waited + MS, now, (now, waited));
        peer.is_late
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
            peer.shared_at = Some(seen);
            let now = seen + after;
            peer.arrived(now, Time(now.0 - MS.0 * 15), (now, MS * 10));
            assert_eq!(peer.is_late, is_late, "{after}");
        }
    }

    /// Eight packets are enough to tell, and more than a quarter of them is much. Fewer are kept for the next look.
    #[test]
    fn more_than_a_quarter_of_enough_packets_is_much() {
        for sent in 0..40u64 {
            for got in 0..=sent {
                let mut peer = Peer::new(Time::ZERO, 100, RangeSet::new());
                (peer.acknowledged, peer.received) = (1_000, 900);
                peer.watch();
                (peer.acknowledged, peer.received) = (1_000 + sent, 900 + got);
                assert_eq!(peer.misses_much(), sent >= 8 && 4 * (sent - got) > sent, "{got} of {sent}");
                // From here on it is looked at anew, or with what was too little.
                (peer.acknowledged, peer.received) = (1_008 + sent, 900 + got);
                let lost = if sent >= 8 { 8 } else { 8 + sent - got };
                let looked_at = if sent >= 8 { 8 } else { 8 + sent };
                assert_eq!(peer.misses_much(), 4 * lost > looked_at, "{got} of {sent}, and none of 8");
            }
        }
    }

    #[test]
    fn a_position_is_reported_when_its_loss_would_have_been_asked_for() {
        let mut peer = Peer::new(Time::ZERO, 100, RangeSet::new());
        (peer.initial, peer.position) = (Some(10), 30);
        // 20 packets of its lap were sent, and three of them lost.
        (peer.first_acknowledged, peer.acknowledged, peer.received) = (5, 25, 17);
        for (asked, asked_until) in [(0, 0), (2, 12), (2, 28), (3, 28), (4, 40)] {
            (peer.asked, peer.asked_until) = (asked, asked_until);
            for position in 0..40 {
                let is_of_its_lap = (10..30).contains(&position);
                let expected = is_of_its_lap && (asked >= 3 || position < asked_until);
                assert_eq!(peer.has_reported(position), expected, "{position}, {asked} up to {asked_until}");
            }
        }
        peer.initial = None;
        assert!(!peer.has_reported(20), "its lap has not begun");
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

    /// What reached a receiver between two reports is divided by their distance. Where none has come, the pace is as before, unless the last is
    /// 150 ms old: then nothing reaches it.
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

    /// Packets that come in a row are counted until one is missing; one that was late makes up for that later.
    #[test]
    fn packets_in_a_row_are_counted_until_one_is_missing() {
        let mut peer = Peer::new(Time::ZERO, 100, RangeSet::new());
        (peer.acknowledged, peer.received) = (50, 40);
        peer.watch();
        for (sent, got, clean) in
            [(3, 3, 3), (2, 2, 5), (0, 0, 5), (4, 3, 0), (4, 5, 4), (1, 1, 5), (5, 0, 0), (6, 6, 6)]
        {
            (peer.acknowledged, peer.received) = (peer.acknowledged + sent, peer.received + got);
            peer.count_clean();
            assert_eq!(peer.clean, clean, "{got} of {sent}");
        }
        peer.watch();
        assert_eq!(peer.clean, 0);
    }

    /// What has verified more has got on, and what has not has not.
    #[test]
    fn one_that_verifies_more_gets_on() {
        let mut peer = Peer::new(Time::ZERO, 100, RangeSet::new());
        for (bytes, gets_on) in [(0, false), (1, true), (1, false), (7, true), (6, false)] {
            let most = peer.verified_bytes.max(bytes);
            let now = Time::ZERO + MS * (bytes + 1);
            (peer.idle, peer.idle_from, peer.verified_at) = (MS, Some(3), Time::ZERO);
            peer.has_verified(now, bytes);
            let expected = if gets_on { (Duration::ZERO, None, now) } else { (MS, Some(3), Time::ZERO) };
            assert_eq!((peer.idle, peer.idle_from, peer.verified_at), expected, "{bytes}");
            assert_eq!(peer.verified_bytes, most);
        }
    }

    proptest! {
        /// What a receiver still has to be offered is the next run of what it lacked when it came: within its lap, and within a
        /// round; of what it lacks at any time before its lap begins.
        #[test]
        fn a_receiver_needs_what_it_lacked(
            have in proptest::collection::btree_set(0u64..20, 0..21), initial in 0u64..60, at in 0u64..90, service in 0..5,
        ) {
            let set: RangeSet = have.iter().map(|sn| *sn..*sn + 1).collect();
            let mut peer = Peer::new(Time::ZERO, 100, set);
            assert_eq!(peer.held_count, have.len() as u64);
            peer.initial = Some(initial);
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
