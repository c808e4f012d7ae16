//! Place of a receiver on its lap, by its reports: a lap is one pass of the stream over the object.

use core::ops::Range;
use polycast_types::Time;

/// Fewer packets say nothing about a path.
const LOOK_PACKETS: u64 = 8;

/// Reports of a receiver on the stream.
#[derive(Clone, Debug, Default)]
pub(in crate::push) struct Lap {
    /// Position where it began.
    pub(in crate::push) initial: Option<u64>,
    /// Highest position that it has reported.
    pub(in crate::push) position: u64,
    /// Number of the packets sent that lie before that position.
    pub(in crate::push) acknowledged: u64,
    /// Its totals of the last report.
    pub(in crate::push) received: u64,
    pub(in crate::push) lost: u64,
    /// Its next report tells its own totals, which were not known meanwhile.
    pub(in crate::push) totals_unknown: bool,
    /// `acknowledged` where it began, how many fragments were asked for, and the position after the last.
    pub(in crate::push) first_acknowledged: u64,
    pub(in crate::push) asked: u64,
    pub(in crate::push) asked_until: u64,
    /// `acknowledged` and `received` when the path's settling was looked at last.
    watched: (u64, u64),
    /// Packets that came in a row, as far as reports tell, since the path began to settle.
    pub(in crate::push) clean: u64,
    /// Time to send DATA_FNSD next.
    pub(in crate::push) finish_at: Option<Time>,
}

impl Lap {
    /// Looks anew at what is missed, from here on.
    pub(in crate::push) fn watch(&mut self) {
        self.watched = (self.acknowledged, self.received);
        self.clean = 0;
    }

    /// Returns true if it has missed more than a quarter of the packets since the last check, if these are
    /// enough to tell.
    pub(in crate::push) fn misses_much(&mut self) -> bool {
        let sent = self.acknowledged.saturating_sub(self.watched.0);
        let got = self.received.saturating_sub(self.watched.1);
        let tells = sent >= LOOK_PACKETS;
        if tells {
            self.watched = (self.acknowledged, self.received);
        }
        tells && got.saturating_mul(4) < sent.saturating_mul(3)
    }

    /// It has reported again: whether what came since lacks anything.
    pub(in crate::push) fn count_clean(&mut self) {
        let sent = self.acknowledged.saturating_sub(self.watched.0);
        let got = self.received.saturating_sub(self.watched.1);
        self.clean = if got >= sent { self.clean + sent } else { 0 };
        self.watched = (self.acknowledged, self.received);
    }

    /// Returns true if it would have requested what was sent at this position, had it lost it: it is past
    /// that, and has requested something later, or all that it lacks. Losses are requested a while after they
    /// are seen.
    pub(in crate::push) fn has_reported(&self, position: u64) -> bool {
        let lacks = (self.acknowledged - self.first_acknowledged).saturating_sub(self.received);
        // What was sent before its lap began never reached it: it comes at the lap's end.
        let is_past = position < self.position && self.initial.is_some_and(|initial| position >= initial);
        is_past && (position < self.asked_until || self.asked >= lacks)
    }

    /// Position where it ends, once it began.
    pub(in crate::push) fn end(&self, fragments: u64) -> Option<u64> {
        self.initial.map(|initial| initial + fragments)
    }

    /// Checks it against the positions that were sent, and how many packets that were.
    ///
    /// # Panics
    /// It does not fit.
    pub(in crate::push) fn check(&self, sent: Range<u64>, packets: u64) {
        assert!(
            self.initial.is_none_or(|initial| sent.contains(&initial)),
            "it began where nothing was sent"
        );
        assert!(self.initial.is_none_or(|initial| initial <= self.position), "it is before its lap");
        assert!(self.position <= sent.end, "it is ahead of the stream");
        assert!(self.first_acknowledged <= self.acknowledged, "it has acknowledged less than at first");
        assert!(self.acknowledged <= packets, "it has acknowledged more than was sent");
        assert!(self.received <= packets && self.lost <= packets, "it tells of more than was sent");
    }
}
