//! The best possible choice of groups, by integer programming: the yardstick of Blast's greedy scheduler
//! (Blast, section III-C).
//!
//! One binary variable a group; one constraint a rack (no more groups than free fibres), and one for the
//! splitters. The solver is [microlp](https://docs.rs/microlp), all in Rust.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use microlp::{ComparisonOp, OptimizationDirection, Problem, SolutionStatus, SolveOutcome};
use polycast_planning::circuits::{self, CircuitError, CircuitGroup, CircuitNetwork, Schedule};

/// An answer of the exact scheduler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exact {
    /// The schedule.
    pub schedule: Schedule,
    /// Set if it is proven that none is better; false if time ran out first.
    pub proven: bool,
}

/// No exact answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExactError {
    /// The request is wrong.
    #[error(transparent)]
    Request(#[from] CircuitError),
    /// The solver gave up.
    #[error("the solver found no answer: {0}; try without --exact")]
    Solver(String),
}

/// The groups of the greatest total volume that fit together.
///
/// # Errors
/// If the request is wrong in itself or the solver fails.
pub fn schedule(
    network: &CircuitNetwork,
    groups: &[CircuitGroup],
    running: &BTreeSet<u64>,
    time_limit: Duration,
) -> Result<Exact, ExactError> {
    let greedy = circuits::schedule(network, groups, running)?;
    let residual = circuits::residual(network, groups, running)?;
    // Groups that do not fit even alone would only slow the solver down.
    let candidates: Vec<&CircuitGroup> = residual
        .candidates
        .iter()
        .map(|&index| &groups[index])
        .filter(|group| residual.fits(network, group))
        .collect();
    let largest = candidates.iter().map(|group| group.volume()).max().unwrap_or(0);
    if largest == 0 {
        return Ok(Exact { schedule: greedy, proven: true });
    }
    let mut problem = Problem::new(OptimizationDirection::Maximize);
    problem.set_time_limit(time_limit);
    let weight = |group: &CircuitGroup| group.volume() as f64 / largest as f64;
    let chosen: Vec<_> = candidates.iter().map(|group| problem.add_binary_var(weight(group))).collect();
    let mut at_rack = vec![Vec::new(); network.racks as usize];
    let mut splitters = Vec::new();
    for (group, &variable) in candidates.iter().zip(&chosen) {
        group.racks.iter().for_each(|&rack| at_rack[rack as usize].push((variable, 1.0)));
        if group.splitters(network) > 0 {
            splitters.push((variable, f64::from(group.splitters(network))));
        }
    }
    for (users, &free) in at_rack.iter().zip(&residual.free_ports) {
        if users.len() > free as usize {
            problem.add_constraint(users.as_slice(), ComparisonOp::Le, f64::from(free));
        }
    }
    if !splitters.is_empty() {
        let free = f64::from(residual.free_splitters);
        problem.add_constraint(splitters.as_slice(), ComparisonOp::Le, free);
    }
    let outcome = problem.solve().map_err(|error| ExactError::Solver(error.to_string()))?;
    let SolveOutcome::Solution(solution) = outcome else {
        return Ok(Exact { schedule: greedy, proven: false });
    };
    let granted: BTreeSet<u64> = candidates
        .iter()
        .zip(&chosen)
        .filter(|&(_, &variable)| solution.var_value(variable) > 0.5)
        .map(|(group, _)| group.id)
        .collect();
    let proven = solution.status() == SolutionStatus::Optimal;
    Ok(Exact { schedule: laid_out(network, groups, running, &granted, greedy), proven })
}

/// The chosen groups as a schedule; the greedy one where that is better, which rounding could make so.
fn laid_out(
    network: &CircuitNetwork,
    groups: &[CircuitGroup],
    running: &BTreeSet<u64>,
    granted: &BTreeSet<u64>,
    greedy: Schedule,
) -> Schedule {
    let volume = groups.iter().filter(|g| granted.contains(&g.id)).map(CircuitGroup::volume).sum();
    if volume < greedy.volume {
        return greedy;
    }
    let holds = |group: &&CircuitGroup| granted.contains(&group.id) || running.contains(&group.id);
    let all = greedy.granted.iter().chain(&greedy.waiting);
    let (granted, waiting) = all.partition(|id| granted.contains(id));
    Schedule {
        granted,
        waiting,
        rejected: greedy.rejected,
        volume,
        splitters_used: groups.iter().filter(holds).map(|group| group.splitters(network)).sum(),
    }
}

/// Things that a request would take, of which there are few, and its worth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Number of each kind.
    pub takes: Vec<(String, u64)>,
    /// Bytes times receivers.
    pub volume: u128,
}

/// The places of the claims of the greatest total volume that fit together into what is free, whatever the
/// kinds of things are; the best ones found where time runs out first.
///
/// # Errors
/// If the solver fails.
pub fn choose(
    free: &BTreeMap<String, u64>,
    claims: &[Claim],
    time_limit: Duration,
) -> Result<Vec<usize>, ExactError> {
    let of = |kind: &String| free.get(kind).copied().unwrap_or(0);
    let fits = |claim: &Claim| claim.takes.iter().all(|(kind, count)| *count <= of(kind));
    let fitting: Vec<usize> =
        (0..claims.len()).filter(|at| claims[*at].volume > 0 && fits(&claims[*at])).collect();
    let Some(largest) = fitting.iter().map(|at| claims[*at].volume).max() else { return Ok(Vec::new()) };
    let mut problem = Problem::new(OptimizationDirection::Maximize);
    problem.set_time_limit(time_limit);
    let mut of_kind: BTreeMap<&String, Vec<_>> = BTreeMap::new();
    let variables: Vec<_> = fitting
        .iter()
        .map(|at| {
            let variable = problem.add_binary_var(claims[*at].volume as f64 / largest as f64);
            for (kind, count) in &claims[*at].takes {
                of_kind.entry(kind).or_default().push((variable, *count as f64));
            }
            variable
        })
        .collect();
    for (kind, users) in &of_kind {
        problem.add_constraint(users.as_slice(), ComparisonOp::Le, of(kind) as f64);
    }
    let outcome = problem.solve().map_err(|error| ExactError::Solver(error.to_string()))?;
    let SolveOutcome::Solution(solution) = outcome else { return Ok(Vec::new()) };
    let chosen = fitting.iter().zip(&variables).filter(|(_, variable)| solution.var_value(**variable) > 0.5);
    Ok(chosen.map(|(at, _)| *at).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The best subset by trying all of them.
    fn brute_force(network: &CircuitNetwork, groups: &[CircuitGroup]) -> u128 {
        let residual = circuits::residual(network, groups, &BTreeSet::new()).unwrap();
        let candidates: Vec<&CircuitGroup> =
            residual.candidates.iter().map(|&index| &groups[index]).collect();
        let mut best = 0;
        for subset in 0u32..1 << candidates.len() {
            let chosen = || (0..candidates.len()).filter(|at| subset >> at & 1 == 1).map(|at| candidates[at]);
            let mut used = vec![0; network.racks as usize];
            chosen().flat_map(|group| &group.racks).for_each(|&rack| used[rack as usize] += 1);
            let splitters: u32 = chosen().map(|group| group.splitters(network)).sum();
            if splitters <= network.splitters && used.iter().all(|&used| used <= network.ports_per_rack) {
                best = best.max(chosen().map(CircuitGroup::volume).sum());
            }
        }
        best
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn no_other_choice_fits_and_is_worth_more(
            free in proptest::collection::vec(0u64..4, 5),
            list in proptest::collection::vec((proptest::collection::btree_map(0usize..6, 1u64..3, 0..4), 0u32..100), 0..9),
        ) {
            let kind = |at: usize| format!("kind {at}");
            let free: BTreeMap<String, u64> = free.into_iter().enumerate().map(|(at, count)| (kind(at), count)).collect();
            let claim = |(takes, volume): (BTreeMap<usize, u64>, u32)| {
                let takes = takes.into_iter().map(|(at, count)| (kind(at), count)).collect();
                Claim { takes, volume: volume.into() }
            };
            let claims: Vec<Claim> = list.into_iter().map(claim).collect();
            // The worth of these claims, where they fit.
            let worth = |chosen: &[usize]| {
                let mut left = free.clone();
                let takes = chosen.iter().flat_map(|at| &claims[*at].takes);
                let fits = takes.fold(true, |fits, (kind, count)| {
                    let free = left.entry(kind.clone()).or_default();
                    let enough = fits && *free >= *count;
                    *free = free.saturating_sub(*count);
                    enough
                });
                fits.then(|| chosen.iter().map(|at| claims[*at].volume).sum::<u128>())
            };
            let all = 0u32..1 << claims.len();
            let subset = |bits: u32| (0..claims.len()).filter(|at| bits >> at & 1 == 1).collect::<Vec<_>>();
            let best = all.filter_map(|bits| worth(&subset(bits))).max();
            let chosen = choose(&free, &claims, Duration::from_secs(10)).unwrap();
            prop_assert_eq!(worth(&chosen), best);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn nothing_is_better(
            list in proptest::collection::vec((proptest::collection::btree_set(0u32..8, 2..6), 0u64..1000, 1u32..50), 0..10),
            ports_per_rack in 1u32..3,
            splitters in 0u32..6,
        ) {
            let network = CircuitNetwork { racks: 8, ports_per_rack, splitters, splitter_fanout: 3, cascade_max: 2 };
            let groups: Vec<CircuitGroup> = list
                .into_iter()
                .zip(0..)
                .map(|((racks, bytes, receivers), id)| CircuitGroup { id, racks: racks.into_iter().collect(), bytes, receivers })
                .collect();
            let exact = schedule(&network, &groups, &BTreeSet::new(), Duration::from_secs(10)).unwrap();
            prop_assert!(exact.proven);
            prop_assert_eq!(exact.schedule.volume, brute_force(&network, &groups));
        }
    }
}
