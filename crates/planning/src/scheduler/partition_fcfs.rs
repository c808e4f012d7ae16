//! Taking turns at the relays of a Shufflecast (Shufflecast, section IV-C).

use super::{Decision, Draft, Scheduler};
use crate::choice::{Choice, Moment};
use crate::plan::{Plan, Resource};
use crate::registry::Fabrics;
use crate::request::Pending;
use crate::shufflecast::SHARES_MAX;
use alloc::vec::Vec;
use polycast_types::Time;

/// First come, first served at every partition of relays: groups in different partitions go at the same time,
/// and of those that have one in common the older goes first, even where it still waits for another
/// partition.
///
/// Requests that other fabrics carry do not wait for each other.
#[derive(Clone, Copy, Default, Debug)]
pub struct PartitionFcfs;

impl PartitionFcfs {
    /// Its name.
    pub const NAME: &str = "partition-fcfs";
}

impl Scheduler for PartitionFcfs {
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
        let mut idle = draft.network().idle();
        for request in pending {
            if draft.decide(request, fabrics)
                && let Choice::Take(wanted, ..) = fabrics.choose(&mut idle, request, &Moment::default())
            {
                // What it would hold, were it free, is kept for it from those behind it.
                let first_free = |wanted: &Resource| {
                    let Resource::RelayPartition { column, partition, .. } = *wanted else { return None };
                    // One more than there can be. While nothing is lent none is free, however many are looked
                    // at.
                    let mut shares =
                        (0..=SHARES_MAX).map(|share| Resource::RelayPartition { column, partition, share });
                    // Where all shares are held this finds one that does not exist, which keeps nothing.
                    shares.find(|share| draft.network().is_free(share))
                };
                let resources: Vec<Resource> = wanted.resources.iter().filter_map(first_free).collect();
                draft.hold(request.group.clone(), Plan { resources, ..wanted });
            }
        }
        draft.into_decisions()
    }
}
