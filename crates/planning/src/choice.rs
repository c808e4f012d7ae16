//! Choice of the fabric that carries a request: the first that can, or the one by which the object arrives
//! earliest.
//!
//! The second way asks the fabrics that may carry it for a plan, one after the other, and estimates each
//! ([`crate::estimate`]). It stops where none of the others can be clearly faster than the best so far: even
//! the least that they take, the session with all receivers, is no shorter or about as good. Small objects,
//! of which there are many, cost one plan so. A fabric that is in use is free again when as many of its plans
//! have ended as are in the way; when they end is known where they have been estimated, and of one that
//! should have ended already nothing is known. A fabric of which that is not known is never waited for while
//! another one is free.

use crate::estimate::words;
use crate::fabric::{Asked, Fabric};
use crate::fabric_name::FabricName;
use crate::network_state::NetworkState;
use crate::plan::{Plan, Refusal};
use crate::registry::{Fabrics, Patience, explained};
use crate::request::Pending;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use polycast_types::{Duration, Time};

/// So many of a fabric's plans are thought away, the first to end first, to see when it is free.
const ENDS_MAX: usize = 16;
/// Difference that is within the error of estimates, as a time and as one part in so many of the best time:
/// it is no reason to leave the order of the settings.
const GAIN_MIN: Duration = Duration::from_millis(10);
const GAIN_PART: u64 = 8;

/// A fabric that does not carry a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Passed {
    /// Fabric that was passed over.
    pub fabric: FabricName,
    /// Reason.
    pub why: PassedWhy,
}

/// Reason why a fabric does not carry a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PassedWhy {
    /// It cannot, or not now.
    Refused(Refusal),
    /// Another one is faster: in a sentence.
    Slower(String),
}

/// Current time, and requests that wait for a fabric already.
#[derive(Clone, Default, Debug)]
pub(crate) struct Moment {
    /// Time; without it, nothing is known of when paths end.
    pub(crate) now: Option<Time>,
    /// Time for which the requests that wait for a fabric will hold it.
    pub(crate) queued: BTreeMap<FabricName, Duration>,
}

/// Decision about a request.
#[expect(clippy::large_enum_variant, reason = "each lives until the next line")]
#[derive(Debug)]
pub(crate) enum Choice {
    /// This plan, in place of others, and how long the transfer takes where that was estimated.
    Take(Plan, Vec<Passed>, Option<Duration>),
    /// It waits, perhaps for a fabric that it will have for so long, and that is free then.
    Wait(Option<Awaited>),
    /// There is none.
    Never(Refusal),
}

/// Fabric that a request waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Awaited {
    pub(crate) fabric: FabricName,
    pub(crate) free_in: Duration,
    pub(crate) takes: Duration,
}

/// Offer of a fabric for a request.
enum Offered {
    Now(Plan, Duration),
    Later(Refusal, Option<Awaited>),
    Never(Refusal),
}

impl Fabrics {
    /// Chooses a fabric for a request. `network` is the same again afterwards.
    pub(crate) fn choose(&self, network: &mut NetworkState, request: &Pending, moment: &Moment) -> Choice {
        let mut chosen = self.chosen(network, request, moment);
        // Only what is said is worth the search for what stands in the way.
        if let Choice::Take(_, passed, _) = &mut chosen {
            for Passed { fabric, why } in passed {
                if let (PassedWhy::Refused(refusal), Some(fabric)) = (why, self.named(fabric)) {
                    *refusal = explained(refusal.clone(), fabric, network, Asked::by(request));
                }
            }
        }
        chosen
    }

    fn chosen(&self, network: &mut NetworkState, request: &Pending, moment: &Moment) -> Choice {
        let (wish, asked) = (request.wish, Asked::by(request));
        if let Err(refusal) = self.check_wish(wish) {
            return Choice::Never(refusal);
        }
        let all: Vec<&dyn Fabric> = self.in_order(wish).collect();
        if !self.chooses_by_time() {
            return self.first_of(network, asked, &all, Vec::new());
        }
        // The one that is wished for comes before any estimate.
        let (wished, others) = all.split_at(usize::from(wish.fabric.is_some()));
        let mut passed = Vec::new();
        if let Some(fabric) = wished.first() {
            match self.first_of(network, asked, &[*fabric], Vec::new()) {
                taken @ Choice::Take(..) => return taken,
                waits @ Choice::Wait(_) if others.is_empty() => return waits,
                Choice::Never(refusal) if others.is_empty() => return Choice::Never(refusal),
                Choice::Wait(_) | Choice::Never(_) => {}
            }
            let refusal = asked.plan(*fabric, network).err();
            passed.extend(refusal.map(|why| Passed { fabric: fabric.name(), why: PassedWhy::Refused(why) }));
        }
        self.earliest_of(network, request, others, passed, moment)
    }

    /// The first that can.
    fn first_of(
        &self,
        network: &NetworkState,
        asked: Asked<'_>,
        fabrics: &[&dyn Fabric],
        mut passed: Vec<Passed>,
    ) -> Choice {
        for fabric in fabrics {
            let why = match self.plan_of(*fabric, network, asked) {
                Ok(plan) => return Choice::Take(plan, passed, None),
                Err(Refusal::Busy(_)) if self.patience() == Patience::Best => return Choice::Wait(None),
                Err(why) => why,
            };
            passed.push(Passed { fabric: fabric.name(), why: PassedWhy::Refused(why) });
        }
        self.nothing_of(passed, network, asked)
    }

    /// Decides whether a request waits where no fabric has a plan: it does if one of them may have one later.
    fn nothing_of(&self, passed: Vec<Passed>, network: &NetworkState, asked: Asked<'_>) -> Choice {
        let mut last = None;
        for Passed { fabric, why } in passed {
            match why {
                PassedWhy::Refused(Refusal::Busy(_)) => return Choice::Wait(None),
                PassedWhy::Refused(refusal) => last = Some((fabric, refusal)),
                PassedWhy::Slower(_) => {}
            }
        }
        Choice::Never(match last {
            None => Refusal::Impossible("the manager has no fabric to carry it".into()),
            Some((fabric, why)) => match self.named(&fabric) {
                Some(fabric) => explained(why, fabric, network, asked),
                None => why,
            },
        })
    }

    fn plan_of(
        &self,
        fabric: &dyn Fabric,
        network: &NetworkState,
        asked: Asked<'_>,
    ) -> Result<Plan, Refusal> {
        network
            .ready(fabric.name(), asked.group, asked.any_packets)
            .map_or_else(|| asked.plan(fabric, network), |plan| Ok(plan.clone()))
    }

    /// The one by which the object is there earliest.
    fn earliest_of(
        &self,
        network: &mut NetworkState,
        request: &Pending,
        fabrics: &[&dyn Fabric],
        mut passed: Vec<Passed>,
        moment: &Moment,
    ) -> Choice {
        let mut offers: Vec<(FabricName, Offered)> = Vec::with_capacity(fabrics.len());
        for (place, fabric) in fabrics.iter().enumerate() {
            offers.push((fabric.name(), self.offer(*fabric, network, request, moment)));
            let least = self.least_of(moment.now, &fabrics[place + 1..], &request.group);
            if least.is_some_and(|least| is_settled(&offers, least)) {
                break;
            }
        }
        let best = best_of(&offers, None);
        let awaited = offers.iter().filter_map(|(_, offered)| match offered {
            Offered::Later(_, awaited) => *awaited,
            _ => None,
        });
        let awaited = awaited.min_by_key(|awaited| awaited.free_in + awaited.takes);
        let Some((takes, place)) = best else {
            let refused = offers.into_iter().filter_map(|(fabric, offered)| match offered {
                Offered::Now(..) => None,
                Offered::Later(why, _) | Offered::Never(why) => {
                    Some(Passed { fabric, why: PassedWhy::Refused(why) })
                }
            });
            passed.extend(refused);
            return match self.nothing_of(passed, network, Asked::by(request)) {
                Choice::Wait(_) => Choice::Wait(awaited),
                other => other,
            };
        };
        if self.patience() == Patience::Gains
            && let Some(awaited) = awaited.filter(|awaited| awaited.free_in + awaited.takes < takes)
        {
            return Choice::Wait(Some(awaited));
        }
        let chosen = offers[place].0;
        let mut plan = None;
        for (at, (fabric, offered)) in offers.into_iter().enumerate() {
            let because = |own: Duration| format!("estimated {}, {chosen} {}", words(own), words(takes));
            let (why, is_earlier) = match offered {
                Offered::Now(found, _) if at == place => {
                    plan = Some(found);
                    continue;
                }
                Offered::Now(_, own) => (PassedWhy::Slower(because(own)), false),
                Offered::Later(busy, Some(Awaited { free_in, takes: own, .. })) => {
                    let all = free_in + own;
                    let why = format!("{busy}: with the wait {}", because(all));
                    (PassedWhy::Slower(why), all < takes)
                }
                Offered::Later(why, None) | Offered::Never(why) => (PassedWhy::Refused(why), false),
            };
            // Those behind the chosen one are of interest only if they would have been faster.
            if at < place || is_earlier {
                passed.push(Passed { fabric, why });
            }
        }
        plan.map_or(Choice::Wait(None), |plan| Choice::Take(plan, passed, Some(takes)))
    }

    fn offer(
        &self,
        fabric: &dyn Fabric,
        network: &mut NetworkState,
        request: &Pending,
        moment: &Moment,
    ) -> Offered {
        // All parts of an object go over the fabric that is the best for the whole.
        let takes = |network: &NetworkState, plan: &Plan| {
            let estimate = self.estimate(moment.now, network, plan, &request.group, request.object_bytes);
            estimate.map_or(Duration(u64::MAX), |(_, takes)| takes)
        };
        match self.plan_of(fabric, network, Asked::by(request)) {
            Ok(plan) => {
                let takes = takes(network, &plan);
                Offered::Now(plan, takes)
            }
            Err(busy @ Refusal::Busy(_)) => {
                let found = moment.now.and_then(|now| free_in(fabric, network, Asked::by(request), now));
                let awaited = found.map(|(free_in, plan)| {
                    let name = fabric.name();
                    let queued = moment.queued.get(&name).copied().unwrap_or_default();
                    Awaited { fabric: name, free_in: free_in + queued, takes: takes(network, &plan) }
                });
                Offered::Later(busy, awaited)
            }
            Err(never) => Offered::Never(never),
        }
    }
}

/// Finds the first of those that are free and about as good as the best of them, by its time and place;
/// `least` is the least time of the others.
fn best_of(offers: &[(FabricName, Offered)], least: Option<Duration>) -> Option<(Duration, usize)> {
    let ready = || {
        offers.iter().enumerate().filter_map(|(place, (_, offered))| match offered {
            Offered::Now(_, takes) => Some((*takes, place)),
            _ => None,
        })
    };
    let best = ready().map(|(takes, _)| takes).min()?;
    let best = least.map_or(best, |least| least.min(best));
    let about = best + GAIN_MIN.max(best / GAIN_PART);
    ready().find(|(takes, _)| *takes <= about)
}

/// Returns true if it stays the same one, whatever the others offer, which take at least `least`.
fn is_settled(offers: &[(FabricName, Offered)], least: Duration) -> bool {
    let best = best_of(offers, None);
    best.is_some() && best == best_of(offers, Some(least))
}

/// Returns the time until a fabric that is in use is free for a group, and its plan then; nothing where that
/// is not known.
fn free_in(
    fabric: &dyn Fabric,
    network: &mut NetworkState,
    asked: Asked<'_>,
    now: Time,
) -> Option<(Duration, Plan)> {
    let ends: Vec<_> = network.ends_of(fabric.name(), now).take(ENDS_MAX).collect();
    let mut lifted = Vec::new();
    let mut found = None;
    for (at, id) in ends {
        lifted.extend(network.lift(id));
        if let Ok(plan) = asked.plan(fabric, network) {
            found = Some((at.since(now), plan));
            break;
        }
    }
    lifted.into_iter().rev().for_each(|lifted| network.put_back(lifted));
    found
}
