//! Decisions of an external scheduler: what it is told of a request, and what its rulings come
//! to.
//!
//! It says which requests get a path, and never which path: fabrics plan, as they do for the built-in
//! schedulers. So whatever it says, no plan is made that cannot be.

use super::{Decision, Draft};
use crate::choice::{Choice, Moment};
use crate::fabric::Asked;
use crate::fabric_name::FabricName;
use crate::network_state::NetworkState;
use crate::plan::{Plan, Refusal};
use crate::registry::Fabrics;
use crate::request::{Pending, RequestId, Wish};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use polycast_types::Duration;

/// Ruling of a scheduler about a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ruling {
    /// It gets a path now.
    Accept {
        /// For this many bytes; absent: for all that remain.
        bytes: Option<u64>,
        /// Over this fabric; absent: over whichever is best.
        fabric: Option<FabricName>,
        /// True if it waits where nothing is free for it; otherwise the scheduler was wrong.
        if_free: bool,
    },
    /// It waits, as requests do about which nothing is said.
    Wait,
    /// It will never get one.
    Reject {
        /// Reason, in words.
        reason: String,
    },
}

/// Things that a request would take if nothing were held.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Needs {
    /// The fabric that is the best for it.
    pub fabric: FabricName,
    /// Number of each kind of thing ([`Fabric::kind_of`](crate::Fabric::kind_of)).
    pub takes: Vec<(String, u64)>,
    /// Expected duration of the transfer, where it is estimated.
    pub estimate: Option<Duration>,
}

impl Fabrics {
    /// Returns how much is free of each kind of thing that paths hold, sorted by name. Fabrics that lend the
    /// same things count them once.
    #[must_use]
    pub fn free(&self, network: &NetworkState) -> Vec<(String, u64)> {
        let all = self.names().filter_map(|name| self.named(&name)).flat_map(|fabric| fabric.free(network));
        all.collect::<BTreeMap<_, _>>().into_iter().collect()
    }

    /// Returns how much a plan holds of each kind of thing, sorted by name.
    #[must_use]
    pub fn kinds_of(&self, plan: &Plan) -> Vec<(String, u64)> {
        let mut kinds = BTreeMap::new();
        let fabric = self.named(&plan.fabric);
        for resource in &plan.resources {
            let kind = fabric.map_or_else(|| resource.kind(), |fabric| fabric.kind_of(resource));
            *kinds.entry(kind).or_insert(0) += 1;
        }
        kinds.into_iter().collect()
    }

    /// Returns what a request would take of `idle`, a network where nothing is held; `None` where a path
    /// cannot be planned yet, as some device has still to report.
    ///
    /// # Errors
    /// No fabric can ever carry it.
    pub fn needs(&self, idle: &mut NetworkState, request: &Pending) -> Result<Option<Needs>, Refusal> {
        match self.choose(idle, request, &Moment::default()) {
            Choice::Take(plan, _, estimate) => {
                Ok(Some(Needs { fabric: plan.fabric, takes: self.kinds_of(&plan), estimate }))
            }
            Choice::Wait(_) => Ok(None),
            Choice::Never(refusal) => Err(refusal),
        }
    }

    /// Returns true if a fabric could carry the request now.
    fn can_carry(&self, network: &NetworkState, request: &Pending) -> bool {
        self.in_order(request.wish).any(|fabric| Asked::by(request).plan(fabric, network).is_ok())
    }
}

/// The decisions that a scheduler's rulings come to, in their order. `asked` has the requests that it was
/// asked about, of which some may be gone. With `is_stale` the network has changed since, and what is not
/// free is no mistake of the scheduler's.
///
/// # Errors
/// The rulings contradict the question, each other or what is free: in a sentence. Then none of them counts.
pub fn decide_as_ruled(
    rulings: &[(RequestId, Ruling)],
    asked: &BTreeSet<RequestId>,
    pending: &[&Pending],
    mut draft: Draft<'_>,
    (fabrics, is_stale): (&Fabrics, bool),
) -> Result<Vec<Decision>, String> {
    let waiting: BTreeMap<RequestId, &Pending> =
        pending.iter().map(|request| (request.id, *request)).collect();
    let mut ruled = BTreeSet::new();
    for (id, ruling) in rulings {
        if !asked.contains(id) {
            return Err(format!("it decides about request {}, which was not in the question", id.0));
        }
        if !ruled.insert(*id) {
            return Err(format!("it decides twice about request {}", id.0));
        }
        if matches!(ruling, Ruling::Reject { reason } if reason.is_empty()) {
            return Err(format!("it rejects request {} and gives no reason", id.0));
        }
        // One that has been withdrawn since needs no decision.
        let Some(request) = waiting.get(id) else { continue };
        match ruling {
            Ruling::Accept { bytes, fabric, if_free } => {
                let request = &over(request, *fabric, fabrics)?;
                draft.accept(request, *bytes, fabrics, *if_free || is_stale)?;
            }
            Ruling::Wait => draft.decisions.push(Decision::Wait { request: *id, until: None }),
            Ruling::Reject { reason } => {
                let refusal = Refusal::Impossible(reason.clone());
                draft.decisions.push(Decision::Reject { request: *id, refusal });
            }
        }
    }
    Ok(draft.into_decisions())
}

/// The request as one for this fabric alone, if one is named.
fn over(request: &Pending, fabric: Option<FabricName>, fabrics: &Fabrics) -> Result<Pending, String> {
    let Some(fabric) = fabric else { return Ok(request.clone()) };
    if !fabrics.has(fabric) {
        return Err(format!(
            "it accepts request {} over '{fabric}': {}",
            request.id.0,
            fabrics.no_fabric(fabric)
        ));
    }
    if let Wish { fabric: Some(only), or_fail: true, .. } = request.wish
        && only != fabric
    {
        let id = request.id.0;
        return Err(format!("it accepts request {id} over '{fabric}', and that is for '{only}' alone"));
    }
    Ok(Pending { wish: Wish { fabric: Some(fabric), or_fail: true, ..request.wish }, ..request.clone() })
}

impl Draft<'_> {
    /// Gives a request a path for so many bytes.
    fn accept(
        &mut self,
        request: &Pending,
        bytes: Option<u64>,
        fabrics: &Fabrics,
        may_wait: bool,
    ) -> Result<(), String> {
        let (id, remaining) = (request.id.0, request.remaining_bytes);
        match bytes {
            Some(bytes) if bytes > remaining => {
                return Err(format!("it accepts {bytes} bytes of request {id}, of which {remaining} remain"));
            }
            Some(bytes) if bytes < remaining && (bytes == 0 || !request.divisible) => {
                return Err(format!(
                    "it accepts {bytes} bytes of request {id}, which takes {remaining} or none"
                ));
            }
            Some(_) | None => {}
        }
        let waits = self.decide(request, fabrics);
        if waits && !may_wait && !fabrics.can_carry(self.network, request) {
            return Err(format!("it accepts request {id}, and nothing is free for that"));
        }
        let is_over_one_only = request.wish.or_fail;
        match self.decisions.last_mut() {
            Some(Decision::Accept { bytes: all, .. }) => *all = bytes.unwrap_or(*all),
            // Another fabric may do.
            Some(last @ Decision::Reject { .. }) if is_over_one_only => {
                *last = Decision::Wait { request: request.id, until: None };
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ip_multicast::{AddressPool, IpMulticast};
    use crate::plan::{Group, HostId};
    use crate::tcp_chain::TcpChain;
    use alloc::boxed::Box;
    use alloc::vec;
    use polycast_types::Time;

    fn request(id: u64) -> Pending {
        Pending {
            id: RequestId(id),
            group: Group::of_one(HostId(0), [HostId(1)].into()),
            object_bytes: 10,
            remaining_bytes: 8,
            divisible: id == 1,
            since: Time(id),
            wish: Wish::default(),
        }
    }

    fn fabrics() -> Fabrics {
        let pool = AddressPool::new([239, 255, 64, 0].into(), 2, 7410).unwrap();
        Fabrics::new(vec![Box::new(IpMulticast::new(pool))])
    }

    fn decided(rulings: &[(u64, Ruling)], is_stale: bool) -> Result<Vec<Decision>, String> {
        let pending: Vec<Pending> = (1..=3).map(request).collect();
        // The fourth was asked about, and is gone.
        let asked = (1..=4).map(RequestId).collect();
        let rulings: Vec<_> = rulings.iter().map(|(id, ruling)| (RequestId(*id), ruling.clone())).collect();
        let (mut network, fabrics) = (NetworkState::default(), fabrics());
        let draft = Draft::new(&mut network).at(Time(9));
        let decided = decide_as_ruled(
            &rulings,
            &asked,
            &pending.iter().collect::<Vec<_>>(),
            draft,
            (&fabrics, is_stale),
        );
        assert_eq!(fabrics.free(&network), [("addresses".into(), 2)], "a draft leaves nothing behind");
        decided
    }

    const ALL: Ruling = Ruling::Accept { bytes: None, fabric: None, if_free: false };

    fn part(bytes: u64) -> Ruling {
        Ruling::Accept { bytes: Some(bytes), fabric: None, if_free: false }
    }

    #[test]
    fn the_rulings_are_carried_out_in_their_order() {
        let no = Ruling::Reject { reason: "not today".into() };
        let decisions = decided(&[(3, ALL), (4, ALL), (1, part(5)), (2, no)], false).unwrap();
        let [
            Decision::Accept { request: three, bytes: 8, .. },
            Decision::Accept { request: one, bytes: 5, .. },
            Decision::Reject { request: two, .. },
        ] = &decisions[..]
        else {
            panic!("{decisions:?}")
        };
        assert_eq!((three.0, one.0, two.0), (3, 1, 2));
    }

    #[test]
    fn what_cannot_be_makes_all_of_an_answer_void() {
        let elsewhere = Ruling::Accept { bytes: None, fabric: Some(TcpChain::NAME), if_free: false };
        let wrong: [(&[(u64, Ruling)], &str); 8] = [
            (&[(1, ALL), (7, ALL)], "it decides about request 7, which was not in the question"),
            (&[(1, ALL), (1, Ruling::Wait)], "it decides twice about request 1"),
            (&[(1, Ruling::Reject { reason: String::new() })], "it rejects request 1 and gives no reason"),
            (&[(1, ALL), (2, ALL), (3, ALL)], "it accepts request 3, and nothing is free for that"),
            (&[(1, part(9))], "it accepts 9 bytes of request 1, of which 8 remain"),
            (&[(1, part(0))], "it accepts 0 bytes of request 1, which takes 8 or none"),
            (&[(2, part(7))], "it accepts 7 bytes of request 2, which takes 8 or none"),
            (
                &[(1, elsewhere)],
                "it accepts request 1 over 'tcp-chain': there is no fabric 'tcp-chain' here, only ip-multicast",
            ),
        ];
        for (rulings, why) in wrong {
            assert_eq!(decided(rulings, false).unwrap_err(), why);
        }
    }

    #[test]
    fn what_is_not_free_waits_where_the_scheduler_cannot_know_or_says_so() {
        let waits =
            |decisions: Vec<Decision>| matches!(decisions[2], Decision::Wait { request: RequestId(3), .. });
        assert!(waits(decided(&[(1, ALL), (2, ALL), (3, ALL)], true).unwrap()));
        let if_free = Ruling::Accept { bytes: None, fabric: None, if_free: true };
        assert!(waits(decided(&[(1, ALL), (2, ALL), (3, if_free)], false).unwrap()));
    }

    #[test]
    fn needs_are_those_of_a_network_where_nothing_is_held() {
        let (fabrics, mut network) = (fabrics(), NetworkState::default());
        let needs = fabrics.needs(&mut network, &request(1)).unwrap().unwrap();
        assert_eq!((needs.fabric, &needs.takes[..]), (IpMulticast::NAME, &[("addresses".into(), 1)][..]));
        let wish = Wish { fabric: Some(TcpChain::NAME), or_fail: true, any_packets: false };
        let never = Pending { wish, ..request(1) };
        assert!(fabrics.needs(&mut network, &never).is_err());
    }
}
