//! Max-min fair rates by progressive filling.
//!
//! All rates rise together until a link is full; the flows over it keep their rate, the others go on. The
//! links wait in a heap by the level at which they would be full. That level only rises as flows stop, so
//! that a stale entry is put back when it comes up: O(F h log L) for F flows over h of L links each.

use alloc::collections::BinaryHeap;
use alloc::vec;
use alloc::vec::Vec;
use core::cmp::{Ordering, Reverse};

use super::{Flow, FlowError, check, check_capacities};

/// The rate of one flow of each entry in bit/s, in the order of the flows.
///
/// # Errors
/// If a flow or a capacity is not valid.
pub fn max_min(capacities_bps: &[f64], flows: &[Flow]) -> Result<Vec<f64>, FlowError> {
    check_capacities(capacities_bps)?;
    flows.iter().try_for_each(|flow| check(capacities_bps, flow))?;
    let all: Vec<&Flow> = flows.iter().collect();
    Ok(solve(capacities_bps, &all))
}

/// The same for flows that have been checked.
pub(super) fn solve(capacities_bps: &[f64], flows: &[&Flow]) -> Vec<f64> {
    let mut left = capacities_bps.to_vec();
    let mut rates = vec![0.0; flows.len()];
    let mut order: Vec<usize> = (0..flows.len()).filter(|&at| flows[at].count > 0).collect();
    // Stable, so that flows of one priority keep their order.
    order.sort_by_key(|&at| Reverse(flows[at].priority));
    for class in order.chunk_by(|&a, &b| flows[a].priority == flows[b].priority) {
        Filling::new(&mut left, flows, class).fill(&mut rates);
    }
    rates
}

/// A level, ordered as a number.
#[derive(Clone, Copy, PartialEq)]
struct Level(f64);

impl Eq for Level {}

impl PartialOrd for Level {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Level {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// The flows of one priority while their rates rise. A flow's rate is its weight times the level.
struct Filling<'a> {
    left: &'a mut [f64],
    flows: &'a [&'a Flow],
    class: &'a [usize],
    /// Weights of rising flows over a link, times the number of crossings.
    load: Vec<f64>,
    /// Rising entries over a link: says exactly when none is left, which sums of weights do not.
    rising: Vec<u32>,
    /// The entries over link `l` are `over[first[l]..first[l + 1]]`.
    first: Vec<u32>,
    over: Vec<u32>,
    fixed: Vec<bool>,
}

impl<'a> Filling<'a> {
    fn new(left: &'a mut [f64], flows: &'a [&'a Flow], class: &'a [usize]) -> Self {
        let links = left.len();
        let mut load = vec![0.0; links];
        let mut rising = vec![0u32; links];
        for &at in class {
            for (link, weight) in crossings(flows[at]) {
                load[link] += weight;
                rising[link] += 1;
            }
        }
        let mut first = vec![0u32; links + 1];
        for link in 0..links {
            first[link + 1] = first[link] + rising[link];
        }
        let mut next = first.clone();
        let mut over = vec![0u32; first[links] as usize];
        for (index, &at) in class.iter().enumerate() {
            for (link, _) in crossings(flows[at]) {
                over[next[link] as usize] = index as u32;
                next[link] += 1;
            }
        }
        Filling { left, flows, class, load, rising, first, over, fixed: vec![false; class.len()] }
    }

    /// The level at which a link is full.
    fn full_at(&self, link: usize) -> Level {
        Level(self.left[link].max(0.0) / self.load[link])
    }

    fn fill(mut self, rates: &mut [f64]) {
        let mut full: BinaryHeap<Reverse<(Level, usize)>> = (0..self.left.len())
            .filter(|&link| self.rising[link] > 0)
            .map(|link| Reverse((self.full_at(link), link)))
            .collect();
        let mut capped: BinaryHeap<Reverse<(Level, usize)>> = (0..self.class.len())
            .filter(|&index| self.flow(index).cap_bps < f64::INFINITY)
            .map(|index| Reverse((Level(self.flow(index).cap_bps / self.flow(index).weight), index)))
            .collect();
        loop {
            let next_full = full.peek().map_or(Level(f64::INFINITY), |entry| entry.0.0);
            if let Some(&Reverse((level, index))) = capped.peek()
                && level <= next_full
            {
                capped.pop();
                self.fix(index, self.flow(index).cap_bps, rates);
                continue;
            }
            let Some(Reverse((level, link))) = full.pop() else { break };
            if self.rising[link] == 0 {
                continue;
            }
            let now = self.full_at(link);
            if now > level {
                full.push(Reverse((now, link)));
                continue;
            }
            for entry in self.first[link]..self.first[link + 1] {
                let index = self.over[entry as usize] as usize;
                let rate = (self.flow(index).weight * level.0).min(self.flow(index).cap_bps);
                self.fix(index, rate, rates);
            }
            // Rounding must not leave anything to lower priorities on a link that is full.
            self.left[link] = 0.0;
        }
    }

    fn flow(&self, index: usize) -> &'a Flow {
        self.flows[self.class[index]]
    }

    /// The entry keeps this rate from now on.
    fn fix(&mut self, index: usize, rate: f64, rates: &mut [f64]) {
        if core::mem::replace(&mut self.fixed[index], true) {
            return;
        }
        rates[self.class[index]] = rate;
        let flow = self.flow(index);
        let level = rate / flow.weight;
        for (link, weight) in crossings(flow) {
            self.left[link] = (self.left[link] - level * weight).max(0.0);
            self.load[link] -= weight;
            self.rising[link] -= 1;
        }
    }
}

/// The links of an entry with its weight there.
fn crossings(flow: &Flow) -> impl Iterator<Item = (usize, f64)> + '_ {
    let one = flow.weight * f64::from(flow.count);
    flow.links
        .iter()
        .filter(|&&(_, times)| times > 0)
        .map(move |&(link, times)| (link as usize, one * f64::from(times)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Water-filling without a heap: every round looks at every link and flow.
    fn naive(capacities: &[f64], flows: &[Flow]) -> Vec<f64> {
        let mut left = capacities.to_vec();
        let mut rates = vec![0.0; flows.len()];
        for priority in (0..=u8::MAX).rev() {
            let mut rising: Vec<usize> =
                (0..flows.len()).filter(|&f| flows[f].priority == priority && flows[f].count > 0).collect();
            while !rising.is_empty() {
                let load = |link: usize| -> f64 {
                    rising
                        .iter()
                        .flat_map(|&f| crossings(&flows[f]))
                        .filter(|c| c.0 == link)
                        .map(|c| c.1)
                        .sum()
                };
                let loads: Vec<f64> = (0..left.len()).map(load).collect();
                let full = |link: usize| left[link] / loads[link];
                let level = |f: usize| {
                    let links = crossings(&flows[f]).map(|(link, _)| full(link));
                    links.fold(flows[f].cap_bps / flows[f].weight, f64::min)
                };
                let lowest = rising.iter().map(|&f| level(f)).fold(f64::INFINITY, f64::min);
                let fixed: Vec<usize> =
                    rising.iter().copied().filter(|&f| level(f) <= lowest * (1.0 + 1e-12)).collect();
                for &f in &fixed {
                    rates[f] = lowest * flows[f].weight;
                    crossings(&flows[f]).for_each(|(link, weight)| left[link] -= lowest * weight);
                }
                left.iter_mut().for_each(|left| *left = left.max(0.0));
                rising.retain(|f| !fixed.contains(f));
            }
        }
        rates
    }

    fn network() -> impl Strategy<Value = (Vec<f64>, Vec<Flow>)> {
        (1usize..12).prop_flat_map(|links| {
            let capacity = prop_oneof![Just(0.0), (1u32..100).prop_map(f64::from), 0.001f64..1e3];
            let flow = (
                proptest::collection::btree_map(0..links as u32, 0u32..4, 1..5),
                0u32..5,
                prop_oneof![Just(1.0), 0.1f64..10.0],
                prop_oneof![Just(f64::INFINITY), 0.0f64..20.0],
                0u8..3,
            );
            let flow = flow.prop_map(|(links, count, weight, cap_bps, priority)| {
                let mut links: Vec<(u32, u32)> = links.into_iter().collect();
                links[0].1 += 1;
                Flow { links, count, weight, cap_bps, priority }
            });
            (proptest::collection::vec(capacity, links), proptest::collection::vec(flow, 0..20))
        })
    }

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() <= 1e-6 * a.abs().max(b.abs()).max(1e-3)
    }

    proptest! {
        #[test]
        fn rates_are_those_of_water_filling((capacities, flows) in network()) {
            let fast = max_min(&capacities, &flows).unwrap();
            let slow = naive(&capacities, &flows);
            for (at, (&a, &b)) in fast.iter().zip(&slow).enumerate() {
                prop_assert!(close(a, b), "flow {at}: {a} and {b} of {flows:?}");
            }
        }

        #[test]
        fn no_flow_can_have_more_without_taking_from_a_poorer_one((capacities, mut flows) in network()) {
            flows.iter_mut().for_each(|flow| flow.priority = 0);
            let rates = max_min(&capacities, &flows).unwrap();
            let used = |link: usize| -> f64 {
                let of = |(f, flow): (usize, &Flow)| -> f64 {
                    crossings(flow).filter(|c| c.0 == link).map(|c| c.1 * rates[f] / flow.weight).sum()
                };
                flows.iter().enumerate().map(of).sum()
            };
            for (link, &capacity) in capacities.iter().enumerate() {
                prop_assert!(used(link) <= capacity * (1.0 + 1e-9) + 1e-9);
            }
            for (f, flow) in flows.iter().enumerate().filter(|(_, flow)| flow.count > 0) {
                let level = rates[f] / flow.weight;
                let richest_on = |link: usize| {
                    let over = |g: &usize| flows[*g].count > 0 && crossings(&flows[*g]).any(|c| c.0 == link);
                    (0..flows.len()).filter(over).map(|g| rates[g] / flows[g].weight).fold(0.0, f64::max)
                };
                let bottleneck = crossings(flow).any(|(link, _)| {
                    used(link) >= capacities[link] * (1.0 - 1e-6) - 1e-6
                        && level >= richest_on(link) * (1.0 - 1e-6) - 1e-6
                });
                prop_assert!(bottleneck || close(rates[f], flow.cap_bps), "flow {f} of {flows:?}");
            }
        }

        #[test]
        fn many_at_once_are_many_one_by_one((capacities, flows) in network()) {
            let together = max_min(&capacities, &flows).unwrap();
            let single: Vec<Flow> = flows
                .iter()
                .flat_map(|flow| (0..flow.count).map(|_| flow.clone().times(1)))
                .collect();
            let mut apart = max_min(&capacities, &single).unwrap().into_iter();
            for (flow, rate) in flows.iter().zip(together) {
                for alone in apart.by_ref().take(flow.count as usize) {
                    prop_assert!(close(alone, rate), "{alone} and {rate}");
                }
            }
        }
    }

    #[test]
    fn a_tree_gets_what_its_slowest_link_gives() {
        let flows = [Flow::over([0, 1, 2]), Flow::over([1]), Flow::over([2]).times(3)];
        assert_eq!(max_min(&[10.0, 10.0, 8.0], &flows).unwrap(), [2.0, 8.0, 2.0]);
    }

    #[test]
    fn priority_comes_first_and_caps_leave_the_rest_to_others() {
        let flows = [Flow::over([0]).times(2), Flow::over([0]).priority(1).cap(4.0)];
        assert_eq!(max_min(&[10.0], &flows).unwrap(), [3.0, 4.0]);
        let flows = [Flow::over([0]).weight(3.0), Flow::over([0])];
        assert_eq!(max_min(&[8.0], &flows).unwrap(), [6.0, 2.0]);
    }

    #[test]
    fn what_is_wrong_is_said() {
        let error = |capacities: &[f64], flow: Flow| max_min(capacities, &[flow]).unwrap_err();
        assert_eq!(error(&[1.0], Flow::over([1])), FlowError::NoSuchLink { link: 1, links: 1 });
        assert_eq!(error(&[-1.0], Flow::over([0])), FlowError::Capacity { link: 0, capacity_bps: -1.0 });
        assert_eq!(error(&[1.0], Flow::over([0]).weight(0.0)), FlowError::Weight(0.0));
        assert_eq!(error(&[1.0], Flow::over([0]).cap(-1.0)), FlowError::Cap(-1.0));
        assert_eq!(error(&[1.0], Flow::over([])), FlowError::Unlimited);
    }
}
