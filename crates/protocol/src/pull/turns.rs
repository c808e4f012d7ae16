//! Detection of packets lost by chance, from the queues that a source sees on the way to its receivers.
//!
//! Datacast's source takes every packet that is requested twice for congestion (section 5.1). Where links
//! lose one packet in a hundred by chance, the rate is then halved a hundred times faster than it rises. But
//! a receiver has w packets under way, and requests the next one when one comes: from the moment a packet is
//! sent to the moment when the w-th next one is requested, there is a round trip. If none is longer than it
//! was on idle links, there is no queue, and nothing is congested.

use alloc::collections::VecDeque;

use polycast_types::{Duration, Time};

/// So many round trips are looked at together, and the one in the middle counts: a lost packet makes some
/// longer, and receivers that take turns at being first make some shorter.
const LOOK: usize = 15;
/// The shortest look is forgotten after two of these: ways change.
const MEMORY: Duration = Duration::from_secs(5);

/// The round trips between packets and the interests that they bring forth, of one port in one tree.
#[derive(Clone, Debug)]
pub(super) struct Turns {
    /// Number of packets in flight (w).
    credits: u32,
    /// First interests that came before any packet could bring them forth.
    early: u32,
    /// Times when packets were sent that have brought forth no interest yet.
    sent: VecDeque<Time>,
    /// Interests that came before the packet was sent that is to have brought them forth.
    ahead: u32,
    /// The present look, and the last one.
    look: [Duration; LOOK],
    looked: usize,
    recent: Option<Duration>,
    /// The shortest look of this memory and of the one before, and when this one began.
    least: [Duration; 2],
    least_since: Time,
}

const NEVER: Duration = Duration(u64::MAX);

impl Turns {
    pub(super) fn new(credits: u32) -> Self {
        Turns {
            credits,
            early: 0,
            sent: VecDeque::new(),
            ahead: 0,
            look: [NEVER; LOOK],
            looked: 0,
            recent: None,
            least: [NEVER; 2],
            least_since: Time::ZERO,
        }
    }

    /// A packet is sent for the first time.
    pub(super) fn sent(&mut self, now: Time) {
        if self.ahead > 0 {
            self.ahead -= 1;
            return;
        }
        // Receivers that each ask for something else have more under way: the oldest of these is past.
        if self.sent.len() >= self.credits as usize * 2 {
            self.sent.pop_front();
        }
        self.sent.push_back(now);
    }

    /// A packet is asked for the first time.
    pub(super) fn asked(&mut self, now: Time) {
        if self.early < self.credits {
            self.early += 1;
            return;
        }
        let Some(sent) = self.sent.pop_front() else {
            self.ahead = (self.ahead + 1).min(self.credits);
            return;
        };
        self.look[self.looked] = now.since(sent);
        self.looked += 1;
        if self.looked < LOOK {
            return;
        }
        self.look.sort_unstable();
        let middle = self.look[LOOK / 2];
        self.looked = 0;
        self.recent = Some(middle);
        if now.since(self.least_since) >= MEMORY {
            self.least = [NEVER, self.least[0]];
            self.least_since = now;
        }
        self.least[0] = self.least[0].min(middle);
    }

    /// Returns true if round trips are at most twice as long as the shortest, or longer by no more than this.
    pub(super) fn are_quick(&self, slack: Duration) -> bool {
        let least = self.least[0].min(self.least[1]);
        self.recent.is_some_and(|recent| recent.0 <= least.0.saturating_add(least.0.max(slack.0)))
    }
}

/// Share of packets that a tree has sent before, of those that it sends lately.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Share {
    first: u32,
    again: u32,
}

impl Share {
    /// Approximate number of packets that it covers.
    const LATELY: u32 = 256;
    /// One in so many is much: a receiver that lags behind all stores asks for everything again.
    const MUCH: u32 = 16;

    pub(super) fn first(&mut self) {
        self.first += 1;
        if self.first >= Self::LATELY {
            (self.first, self.again) = (self.first / 2, self.again / 2);
        }
    }

    pub(super) fn again(&mut self) {
        self.again = (self.again + 1).min(Self::LATELY);
    }

    /// Returns true if the share is small enough to be chance. A few packets prove nothing.
    pub(super) fn is_small(&self) -> bool {
        self.first >= Self::LATELY / 4 && self.again * Self::MUCH <= self.first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Packets that are sent every `gap`, each of which brings forth an interest after `turn`.
    fn play(turns: &mut Turns, from: u64, count: u64, gap: u64, turn: u64) {
        let mut events: alloc::vec::Vec<(u64, bool)> = (0..count)
            .flat_map(|number| [(from + number * gap, true), (from + number * gap + turn, false)])
            .collect();
        events.sort_unstable();
        for (at, is_sent) in events {
            if is_sent { turns.sent(Time(at)) } else { turns.asked(Time(at)) }
        }
    }

    #[test]
    fn round_trips_that_grow_are_queues() {
        let mut turns = Turns::new(8);
        (0..8).for_each(|_| turns.asked(Time(0)));
        assert!(!turns.are_quick(Duration(0)), "nothing is known");
        play(&mut turns, 0, 64, 100, 500);
        assert!(turns.are_quick(Duration(0)));
        play(&mut turns, 10_000, 64, 100, 900);
        assert!(turns.are_quick(Duration(0)), "not twice as long");
        play(&mut turns, 20_000, 64, 200, 1_400);
        assert!(!turns.are_quick(Duration(0)));
        assert!(turns.are_quick(Duration(900)), "a queue of that length is none");
        play(&mut turns, 40_000, 64, 100, 500);
        assert!(turns.are_quick(Duration(0)));
    }

    #[test]
    fn a_longer_way_becomes_the_usual_one() {
        let mut turns = Turns::new(8);
        (0..8).for_each(|_| turns.asked(Time(0)));
        play(&mut turns, 0, 64, 100, 500);
        let later = MEMORY.0 + 1_000_000;
        play(&mut turns, later, 64, 100, 5_000);
        assert!(!turns.are_quick(Duration(0)));
        play(&mut turns, 2 * later, 64, 100, 5_000);
        assert!(turns.are_quick(Duration(0)));
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut turns = Turns::new(4);
        (0..1_000).for_each(|at| turns.sent(Time(at)));
        assert_eq!(turns.sent.len(), 8);
    }

    /// One in sixteen is chance, of 64 packets at least.
    #[test]
    fn one_repeat_in_sixteen_is_chance() {
        for (first, most) in [(63, None), (64, Some(4)), (79, Some(4)), (80, Some(5)), (160, Some(10))] {
            for again in 0..20 {
                let share = Share { first, again };
                assert_eq!(share.is_small(), most.is_some_and(|most| again <= most), "{again} of {first}");
            }
        }
        let mut share = Share { first: 255, again: 9 };
        share.first();
        assert_eq!((share.first, share.again), (128, 4), "what was long ago counts half");
        (0..1_000).for_each(|_| share.again());
        assert_eq!(share.again, 256);
    }

    #[test]
    fn few_repeats_are_chance_and_many_are_not() {
        let mut share = Share::default();
        assert!(!share.is_small(), "nothing was sent");
        (0..100).for_each(|_| share.first());
        share.again();
        assert!(share.is_small());
        (0..100).for_each(|_| share.again());
        assert!(!share.is_small());
        (0..10_000).for_each(|_| share.first());
        assert!(share.is_small());
    }
}
