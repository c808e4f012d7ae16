//! Place of a receiver in the stream, and what may change it.
//!
//! Any host that can send to the data channel can send a position, so one that is far from where the stream
//! was is a claim. It counts when another packet agrees with it, and nothing has come for a while from where
//! the stream was: the stream is in one place at a time. A claim that was believed wrongly is left in the
//! same way, since the stream goes on where it is. Positions that the source itself sends over the control
//! connection count at once.

use alloc::collections::VecDeque;
use core::ops::Range;
use polycast_types::{Duration, Time};

/// Places that are looked at: a stranger that makes up more hides the stream's for a while, and the source's
/// words tell.
pub(super) const CLAIMS_MAX: usize = 4;
/// Time for which nothing may come from where the stream was before a claim counts.
pub(super) const QUIET: Duration = Duration::from_millis(5);
/// Packets that must agree.
const WITNESSES: u64 = 2;

/// A place far from where the stream was, of which packets have come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    /// From the first packet to after the last.
    pub(super) positions: Range<u64>,
    /// Number of packets that came.
    pub(super) packets: u64,
    /// Set if all were single attempts.
    pub(super) attempts: bool,
    /// Time when the last reached this host, and the time that it waited there.
    pub(super) arrived: Time,
    pub(super) waited: Duration,
}

/// The places that packets claim.
#[derive(Clone, Debug, Default)]
pub(super) struct Claims {
    waiting: VecDeque<Claim>,
    /// Time of the last packet from where the stream is.
    here_at: Time,
}

impl Claims {
    /// Something has come from where the stream is.
    pub(super) fn here(&mut self, now: Time) {
        self.here_at = now;
    }

    /// Packets have come from elsewhere. Those that follow others by no more than `reach` agree with them.
    pub(super) fn came(&mut self, claim: Claim, reach: u64) {
        let Range { start, end } = claim.positions;
        let near = |known: &&mut Claim| {
            let Range { start: first, end: last } = known.positions;
            first <= start && start <= last.saturating_add(reach)
        };
        if let Some(known) = self.waiting.iter_mut().find(near) {
            // What has come before says nothing new.
            if start >= known.positions.end {
                known.positions.end = end;
                known.packets += claim.packets;
                known.attempts &= claim.attempts;
                (known.arrived, known.waited) = (claim.arrived, claim.waited);
            }
            return;
        }
        if self.waiting.len() == CLAIMS_MAX {
            self.waiting.pop_front();
        }
        self.waiting.push_back(claim);
    }

    /// The place to believe, if there is one by now; the others are forgotten.
    pub(super) fn believed(&mut self, now: Time) -> Option<Claim> {
        if self.deadline().is_none_or(|at| now < at) {
            return None;
        }
        let most = core::mem::take(&mut self.waiting).into_iter().max_by_key(|claim| claim.packets);
        self.here_at = now;
        most
    }

    /// Returns the time when a place is to be believed, unless something comes from where the stream is.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.waiting.iter().any(|claim| claim.packets >= WITNESSES).then(|| self.here_at + QUIET)
    }

    /// All that was claimed is of no interest any more.
    pub(super) fn clear(&mut self) {
        self.waiting.clear();
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    const REACH: u64 = 10;
    const HERE: Time = Time(1_000_000_000);
    const LATER: Time = Time(HERE.0 + QUIET.0);

    fn claim(positions: Range<u64>, attempts: bool) -> Claim {
        let packets = positions.end - positions.start;
        let (arrived, waited) = (Time(positions.end), Duration(positions.start));
        Claim { positions, packets, attempts, arrived, waited }
    }

    /// Builds the claims of packets that came in this order, while the last packet of the stream came at
    /// `HERE`.
    fn claims(of: &[(Range<u64>, bool)]) -> Claims {
        let mut claims = Claims::default();
        claims.here(HERE);
        of.iter().for_each(|(positions, attempts)| claims.came(claim(positions.clone(), *attempts), REACH));
        claims
    }

    fn believed(of: &[(Range<u64>, bool)]) -> Option<Claim> {
        claims(of).believed(LATER)
    }

    #[test]
    fn two_packets_that_agree_are_believed_when_nothing_else_comes() {
        for (second, agrees) in [(100, false), (101, true), (111, true), (112, false), (99, false)] {
            let both = [(100..101, false), (second..second + 1, false)];
            let expected = claim(100..second + 1, false);
            let expected = agrees.then_some(Claim { packets: 2, waited: Duration(second), ..expected });
            assert_eq!(believed(&both), expected, "{second} after 100");
            let mut early = claims(&both);
            assert_eq!(early.deadline(), agrees.then_some(LATER));
            assert_eq!(early.believed(Time(LATER.0 - 1)), None, "the stream may go on where it was");
            early.here(Time(HERE.0 + 1));
            assert_eq!(early.believed(LATER), None, "it has gone on");
            early.clear();
            assert_eq!((early.len(), early.deadline()), (0, None));
        }
        let mut once = claims(&[(100..102, false)]);
        assert!(once.believed(LATER).is_some(), "one batch of two packets agrees with itself");
        assert_eq!((once.len(), once.deadline()), (0, None), "and is not believed again");
    }

    /// The place with most packets counts; packets that come again show nothing new; a place is one of
    /// attempts if all its packets are.
    #[test]
    fn the_place_with_most_packets_is_believed() {
        let places =
            [(100..102, true), (500..503, true), (900..902, true), (500..502, false), (101..102, false)];
        assert_eq!(believed(&places), Some(claim(500..503, true)));
        let goes_on = [(100..102, true), (500..503, true), (102..104, false), (105..106, true)];
        let expected = Claim { packets: 5, waited: Duration(105), ..claim(100..106, false) };
        assert_eq!(believed(&goes_on), Some(expected));
    }

    #[test]
    fn the_oldest_place_makes_room_for_a_fifth() {
        let five: Vec<(Range<u64>, bool)> = (1..6).map(|n| (n * 100..n * 100 + 8 - n, false)).collect();
        assert_eq!(believed(&five[..4]), Some(claim(100..107, false)));
        assert_eq!((claims(&five).len(), claims(&five[..4]).len()), (4, 4));
        assert_eq!(believed(&five), Some(claim(200..206, false)), "the first is forgotten");
    }
}
