//! Where a receiver is in the stream, and what may change it.
//!
//! Any host that can send to the data channel can send a position, so one that is far from where the stream was is a claim. It
//! counts when another packet agrees with it, and nothing has come for a while from where the stream was: the stream is in
//! one place at a time. A claim that was believed wrongly is left in the same way, since the stream goes on where it is.
//! What the source itself says over the control connection counts at once.

use alloc::collections::VecDeque;
use core::ops::Range;
use polycast_types::{Duration, Time};

/// Places that are looked at: a stranger that makes up more hides the stream's for a while, and the source's words tell.
pub(super) const CLAIMS_MAX: usize = 4;
/// How long nothing may have come from where the stream was.
pub(super) const QUIET: Duration = Duration::from_millis(5);
/// Packets that must agree.
const WITNESSES: u64 = 2;

/// A place far from where the stream was, of which packets have come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    /// From the first packet to after the last.
    pub(super) positions: Range<u64>,
    /// How many came.
    pub(super) packets: u64,
    /// Whether all were single attempts.
    pub(super) attempts: bool,
    /// When the last reached this host, and how long it waited there.
    pub(super) arrived: Time,
    pub(super) waited: Duration,
}

/// The places that packets claim.
#[derive(Clone, Debug, Default)]
pub(super) struct Claims {
    waiting: VecDeque<Claim>,
    /// When the last packet came from where the stream is.
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

    /// When a place is to be believed, unless something comes from where the stream is.
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
