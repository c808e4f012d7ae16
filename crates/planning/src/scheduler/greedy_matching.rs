//! Most traffic per rack first (Blast, section III-C).

use super::{Decision, Draft, Scheduler};
use crate::circuits::{Claim, SEARCH_STEPS, search};
use crate::network_state::NetworkState;
use crate::plan::{Group, HostId};
use crate::registry::Fabrics;
use crate::request::{Pending, RequestId};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use polycast_types::Time;

/// The paper's greedy matching: the group whose bytes times receivers are the most for its number of racks
/// comes first, and whatever fits beside what runs already gets its path. A group that does not fit waits,
/// and those after it do not wait for it. Where some wait, a bounded search looks for groups that are worth
/// more together, in bytes times receivers, and they get the paths if the fabrics have plans for them.
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
        // A known rack and an unknown host never count as one.
        let rack = |host: HostId| self.racks.get(&host).map_or((true, host.0), |&rack| (false, rack));
        group.hosts().map(rack).collect::<BTreeSet<_>>().len() as u128
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
        let order: Vec<&Pending> = order.into_iter().map(|(_, _, request)| request).collect();
        let greedy = draft.decide_in(&order, fabrics);
        if !greedy.iter().any(|decision| matches!(decision, Decision::Wait { .. })) {
            return greedy;
        }
        draft.begin_again();
        let Some(order) = searched(draft.network(), &order, fabrics) else { return greedy };
        let other = draft.decide_in(&order, fabrics);
        if granted(&other, pending) > granted(&greedy, pending) { other } else { greedy }
    }
}

/// Bytes times receivers over all requests that are accepted.
fn granted(decisions: &[Decision], pending: &[&Pending]) -> u128 {
    let receivers: BTreeMap<RequestId, usize> =
        pending.iter().map(|request| (request.id, request.group.receivers.len())).collect();
    let of = |decision: &Decision| match decision {
        Decision::Accept { request, bytes, .. } => u128::from(*bytes) * receivers[request] as u128,
        Decision::Wait { .. } | Decision::Reject { .. } => 0,
    };
    decisions.iter().map(of).sum()
}

/// The same requests, those first that a fabric can carry together and that are worth more than the first
/// ones of `order`; nothing if none were found.
fn searched<'a>(
    network: &NetworkState,
    order: &[&'a Pending],
    fabrics: &Fabrics,
) -> Option<Vec<&'a Pending>> {
    let (room, claims) = fabrics.contest(network, order)?;
    let (places, claims): (Vec<usize>, Vec<Claim>) =
        claims.into_iter().enumerate().filter_map(|(place, claim)| Some((place, claim?))).unzip();
    let in_order: Vec<usize> = (0..claims.len()).collect();
    let is_chosen = search(room, &claims, &in_order, SEARCH_STEPS)?;
    let chosen: BTreeSet<usize> =
        places.iter().zip(is_chosen).filter(|(_, is_chosen)| *is_chosen).map(|(place, _)| *place).collect();
    let (first, then): (Vec<usize>, Vec<usize>) = (0..order.len()).partition(|place| chosen.contains(place));
    Some(first.into_iter().chain(then).map(|place| order[place]).collect())
}
