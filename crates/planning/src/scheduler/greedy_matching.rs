//! Most traffic per rack first (Blast, section III-C).

use super::{Decision, Draft, Pending, Scheduler};
use crate::plan::{Group, HostId};
use crate::registry::Fabrics;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use polycast_types::Time;

/// The paper's greedy matching: the group whose bytes times receivers are the most for its number of racks
/// comes first, and whatever fits beside what runs already gets its path. A group that does not fit waits,
/// and those after it do not wait for it.
#[derive(Clone, Debug, Default)]
pub struct GreedyMatching {
    racks: BTreeMap<HostId, u32>,
}

impl GreedyMatching {
    /// Its name.
    pub const NAME: &str = "greedy-matching";

    /// With the rack of every host; a host that is not named counts as a rack of its own.
    #[must_use]
    pub fn new(racks: impl IntoIterator<Item = (HostId, u32)>) -> Self {
        GreedyMatching { racks: racks.into_iter().collect() }
    }

    fn racks(&self, group: &Group) -> u128 {
        let members = group.receivers.iter().chain([&group.source]);
        // A known rack and an unknown host never count as one.
        let rack = |host: &HostId| self.racks.get(host).map_or((true, host.0), |&rack| (false, rack));
        members.map(rack).collect::<BTreeSet<_>>().len() as u128
    }
}

impl Scheduler for GreedyMatching {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn decide(
        &mut self,
        _now: Time,
        pending: &[&Pending],
        mut draft: Draft<'_>,
        fabrics: &Fabrics,
    ) -> Vec<Decision> {
        let volume =
            |request: &Pending| u128::from(request.remaining_bytes) * request.group.receivers.len() as u128;
        let mut order: Vec<(u128, u128, &Pending)> =
            pending.iter().map(|&request| (volume(request), self.racks(&request.group), request)).collect();
        // volume / racks without division; the sort is stable, so that the older request wins a tie.
        order.sort_by(|a, b| (b.0 * a.1).cmp(&(a.0 * b.1)));
        for (_, _, request) in order {
            draft.decide(request, fabrics);
        }
        draft.into_decisions()
    }
}
