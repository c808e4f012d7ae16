//! Choice of the waiting requests that get a path now (Republic section III-B: the scheduling plug-in).

mod greedy_matching;
mod partition_fcfs;
mod ruled;

pub use greedy_matching::GreedyMatching;
pub use partition_fcfs::PartitionFcfs;
pub use ruled::{Needs, Ruling, decide_as_ruled};

use crate::choice::{Awaited, Choice, Moment, Passed};
use crate::network_state::NetworkState;
use crate::plan::{Group, Plan, PlanId, Refusal};
use crate::registry::Fabrics;
use crate::request::{Pending, RequestId};
use alloc::vec::Vec;
use core::fmt;
use polycast_types::{Duration, Time};

/// Decision about a request.
#[expect(clippy::large_enum_variant, reason = "decisions are few, and live until the next line")]
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Decision {
    /// It gets this path.
    Accept {
        /// The request.
        request: RequestId,
        /// For this many bytes: all that remain, or fewer if the request is divisible.
        bytes: u64,
        /// The path.
        plan: Plan,
        /// The fabrics that were before it in the order of preference, or would have been faster.
        passed_over: Vec<Passed>,
    },
    /// It waits until something changes. A request about which nothing is said waits too.
    Wait {
        /// The request.
        request: RequestId,
        /// Time when the awaited fabric is free, where that is known.
        until: Option<Time>,
    },
    /// It will never get one.
    Reject {
        /// The request.
        request: RequestId,
        /// Reason.
        refusal: Refusal,
    },
}

/// A plug-in that decides about requests.
pub trait Scheduler: fmt::Debug + Send {
    /// Its name in settings and reports.
    fn name(&self) -> &'static str;

    /// Decides about all requests that wait, oldest first in `pending`. The plans of one answer can all be
    /// held at the same time: what is decided is held in the draft of the network, for the next decision.
    ///
    /// Called when a request has come, a path has been released, or the network has changed.
    fn decide(
        &mut self,
        now: Time,
        pending: &[&Pending],
        draft: Draft<'_>,
        fabrics: &Fabrics,
    ) -> Vec<Decision>;
}

/// The network as it will be when the decisions so far are in force. What a draft holds goes back when the
/// draft ends: deciding costs as much as what is decided, however much is held already.
#[derive(Debug)]
pub struct Draft<'a> {
    network: &'a mut NetworkState,
    turn: u64,
    plans: u64,
    decisions: Vec<Decision>,
    moment: Moment,
}

impl<'a> Draft<'a> {
    /// A draft on top of `network`, which is the same again when the draft has ended.
    #[must_use]
    pub fn new(network: &'a mut NetworkState) -> Self {
        Draft { turn: network.turn(), network, plans: 0, decisions: Vec::new(), moment: Moment::default() }
    }

    /// The same at this time: without it nothing is known of when paths in use end.
    #[must_use]
    pub fn at(mut self, now: Time) -> Self {
        self.moment.now = Some(now);
        self
    }

    /// The network with what the draft holds.
    #[must_use]
    pub fn network(&self) -> &NetworkState {
        self.network
    }

    /// Puts a plan in force; numbers from the top are not those of plans that run.
    pub fn hold(&mut self, group: Group, plan: Plan) {
        self.hold_for(group, plan, None);
    }

    fn hold_for(&mut self, group: Group, plan: Plan, takes: Option<Duration>) {
        let id = PlanId(u64::MAX - self.plans);
        let held = self.network.hold(id, group, plan);
        assert!(held, "a fabric planned with what is not free");
        if let (Some(now), Some(takes)) = (self.moment.now, takes) {
            self.network.expect_end(id, now + takes);
        }
        self.plans += 1;
    }

    /// Decides about these requests, in this order.
    fn decide_in(&mut self, order: &[&Pending], fabrics: &Fabrics) -> Vec<Decision> {
        for request in order {
            self.decide(request, fabrics);
        }
        core::mem::take(&mut self.decisions)
    }

    /// Gives everything back that the draft holds.
    fn begin_again(&mut self) {
        for plan in 0..core::mem::take(&mut self.plans) {
            self.network.release(PlanId(u64::MAX - plan));
        }
        self.network.set_turn(self.turn);
        self.moment.queued.clear();
    }

    fn into_decisions(mut self) -> Vec<Decision> {
        core::mem::take(&mut self.decisions)
    }

    /// Gives the request a path now if there is one, whole. True if it waits.
    fn decide(&mut self, request: &Pending, fabrics: &Fabrics) -> bool {
        let decision = match fabrics.choose(self.network, request, &self.moment) {
            Choice::Take(plan, passed_over, takes) => {
                self.hold_for(request.group.clone(), plan.clone(), takes);
                Decision::Accept { request: request.id, bytes: request.remaining_bytes, plan, passed_over }
            }
            Choice::Wait(awaited) => {
                let until = awaited.zip(self.moment.now).map(|(awaited, now)| now + awaited.free_in);
                if let Some(Awaited { fabric, takes, .. }) = awaited {
                    let queued = self.moment.queued.entry(fabric).or_default();
                    *queued = *queued + takes;
                }
                Decision::Wait { request: request.id, until }
            }
            Choice::Never(refusal) => Decision::Reject { request: request.id, refusal },
        };
        let waits = matches!(decision, Decision::Wait { .. });
        self.decisions.push(decision);
        waits
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        self.begin_again();
    }
}

/// First come, first served: a path goes to the oldest request, whole, and none overtakes another.
#[derive(Clone, Copy, Default, Debug)]
pub struct Fcfs;

impl Fcfs {
    /// Its name.
    pub const NAME: &str = "fcfs";
}

impl Scheduler for Fcfs {
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
        for request in pending {
            // Those behind one that waits do so too: small groups must not keep a large one waiting without
            // an end.
            if draft.decide(request, fabrics) {
                break;
            }
        }
        draft.into_decisions()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ip_multicast::{AddressPool, IpMulticast};
    use crate::plan::HostId;
    use crate::request::Wish;
    use alloc::boxed::Box;
    use alloc::collections::BTreeSet;
    use alloc::vec;

    fn request(id: u64, receivers: &[u32]) -> Pending {
        Pending {
            id: RequestId(id),
            group: Group::of_one(HostId(0), receivers.iter().map(|r| HostId(*r)).collect()),
            object_bytes: 10,
            remaining_bytes: 10,
            divisible: true,
            since: Time(id),
            wish: Wish::default(),
        }
    }

    #[test]
    fn the_oldest_are_served_and_the_impossible_delay_no_other() {
        let pool = AddressPool::new([239, 255, 64, 0].into(), 2, 7410).unwrap();
        let fabrics = Fabrics::new(vec![Box::new(IpMulticast::new(pool))]);
        let pending = [request(1, &[1]), request(2, &[]), request(3, &[2]), request(4, &[3])];
        let decisions = Fcfs.decide(
            Time(9),
            &pending.iter().collect::<Vec<_>>(),
            Draft::new(&mut NetworkState::default()),
            &fabrics,
        );
        let mut addresses = BTreeSet::new();
        for decision in &decisions {
            if let Decision::Accept { bytes, plan, .. } = decision {
                assert_eq!(*bytes, 10);
                assert!(addresses.insert(plan.resources[0]));
            }
        }
        assert_eq!(addresses.len(), 2);
        assert!(matches!(decisions[1], Decision::Reject { request: RequestId(2), .. }));
        assert_eq!(decisions[3], Decision::Wait { request: RequestId(4), until: None });
    }
}
