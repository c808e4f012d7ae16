use super::*;
use alloc::collections::BTreeMap;
use proptest::prelude::*;

fn instances() -> Vec<Shufflecast> {
    let sizes = [(2, 2), (2, 3), (3, 2), (3, 3), (4, 2), (2, 4), (4, 3), (5, 2), (2, 5)];
    sizes.map(|(p, k)| Shufflecast::new(p, k).unwrap()).to_vec()
}

#[test]
fn figure_3_routes() {
    let network = Shufflecast::new(2, 2).unwrap();
    let routes = |source| -> Vec<Vec<u32>> {
        (0..8).filter(|&d| d != source).map(|d| route(&network, source, d)).collect()
    };
    let from_0: [&[u32]; 7] =
        [&[0, 4, 1], &[0, 5, 2], &[0, 5, 3], &[0, 4], &[0, 5], &[0, 4, 1, 6], &[0, 4, 1, 7]];
    let from_3: [&[u32]; 7] =
        [&[3, 6, 0], &[3, 6, 1], &[3, 7, 2], &[3, 7, 2, 4], &[3, 7, 2, 5], &[3, 6], &[3, 7]];
    assert_eq!(routes(0), from_0);
    assert_eq!(routes(3), from_3);
    assert_eq!((relay_set(&network, 0), relay_set(&network, 3)), (vec![0, 1, 4, 5], vec![2, 3, 6, 7]));
}

#[test]
fn relay_sets_are_the_union_of_the_routes() {
    for network in instances() {
        let rules = StaticRules::new(&network);
        let mut longest = 0;
        for source in 0..network.tors() {
            let mut union = BTreeSet::new();
            for destination in (0..network.tors()).filter(|&d| d != source) {
                let route = route(&network, source, destination);
                longest = longest.max(route.len() as u32 - 1);
                union.extend(route[..route.len() - 1].iter().copied());
            }
            assert_eq!(union.into_iter().collect::<Vec<_>>(), relay_set(&network, source));
            let by_rules: Vec<u32> =
                (0..network.tors()).filter(|&t| rules.sources(t).binary_search(&source).is_ok()).collect();
            assert_eq!(by_rules, relay_set(&network, source));
        }
        assert_eq!(longest, 2 * network.columns() - 1);
        assert_eq!(rules.rules_per_tor(), network.columns() * network.partition_size());
    }
}

#[test]
fn everybody_gets_one_copy_and_the_source_its_own_back() {
    for network in instances() {
        for source in 0..network.tors() {
            let reach = reach_before_recovery(&network, source, &BTreeSet::new());
            assert!(reach.unreachable().is_empty());
            assert!(reach.copies.iter().all(|&copies| copies == 1));
            assert_eq!(reach.max_hops(), 2 * network.columns() - 1);
        }
    }
}

#[test]
fn loss_of_a_single_failure() {
    let of = |p, k| loss_distribution(&Shufflecast::new(p, k).unwrap());
    assert_eq!(of(2, 3), [(0, 12), (2, 6), (6, 3), (7, 1), (15, 1), (23, 1)]);
    for (p, k) in [(4, 2), (6, 2), (8, 2), (4, 3)] {
        let tors = k * u32::pow(p, k);
        assert_eq!(of(p, k)[0], (0, tors - tors / p), "N (1 - 1/p) sources lose nothing");
    }
}

#[test]
fn algorithm_2_restores_everyone_after_one_failure() {
    for network in instances() {
        for failed in [0, network.tors() / 3, network.tors() - 1] {
            let recovery = algorithm_2(&network, failed);
            for source in (0..network.tors()).filter(|&source| source != failed) {
                let reach = recovery.reach(&network, source);
                assert!(reach.unreachable().is_empty());
                assert!(reach.copies.iter().all(|&copies| copies == 1));
                assert!(reach.max_hops() < 3 * network.columns());
            }
        }
    }
}

#[test]
fn the_papers_example_of_relay_8() {
    let network = Shufflecast::new(2, 3).unwrap();
    let recovery = algorithm_2(&network, 8);
    let with = |set: &BTreeSet<(u32, u32)>, relay| -> Vec<u32> {
        set.iter().filter(|rule| rule.0 == relay).map(|rule| rule.1).collect()
    };
    assert_eq!(with(&recovery.deactivated, 2), [0, 16]);
    assert_eq!(with(&recovery.activated, 6), [0, 16]);
    assert_eq!(with(&recovery.activated, 12), with(&recovery.deactivated, 8));
}

/// With two mirrors there is no choice: our recovery is the paper's, but for the failed source itself.
#[test]
fn with_two_mirrors_both_recoveries_agree() {
    for k in 2..=4 {
        let network = Shufflecast::new(2, k).unwrap();
        for failed in 0..network.tors() {
            let (mut paper, ours) = (algorithm_2(&network, failed), recover(&network, &[failed].into()));
            paper.activated.retain(|rule| rule.1 != failed);
            assert_eq!((paper.activated, paper.deactivated), (ours.activated, ours.deactivated), "{failed}");
        }
    }
}

/// All sets of `size` of `count` ToRs.
fn subsets(count: u32, size: u32, visit: &mut impl FnMut(&BTreeSet<u32>)) {
    fn go(from: u32, count: u32, left: u32, set: &mut BTreeSet<u32>, visit: &mut impl FnMut(&BTreeSet<u32>)) {
        if left == 0 {
            return visit(set);
        }
        for tor in from..count {
            set.insert(tor);
            go(tor + 1, count, left - 1, set, visit);
            set.remove(&tor);
        }
    }
    go(0, count, size, &mut BTreeSet::new(), visit);
}

fn check_recovered(network: &Shufflecast, failed: &BTreeSet<u32>) -> u32 {
    let recovery = recover(network, failed);
    let mut farthest = 0;
    for source in (0..network.tors()).filter(|source| !failed.contains(source)) {
        let reach = recovery.reach(network, source);
        assert!(reach.unreachable().is_empty(), "{failed:?} leaves out ToRs for source {source}");
        assert!(reach.copies.iter().all(|&copies| copies == 1), "{failed:?}: duplicates");
        farthest = farthest.max(reach.max_hops());
    }
    assert!(recovery.activated.iter().all(|rule| !failed.contains(&rule.0)));
    farthest
}

/// Failures below p are recovered: all of them in small fabrics, and every so many in larger ones.
#[test]
fn every_failure_set_below_p_is_recovered() {
    for (p, k, one_in) in [(2, 3, 1), (3, 2, 1), (3, 3, 7), (4, 2, 11)] {
        let network = Shufflecast::new(p, k).unwrap();
        for size in 1..p {
            let mut at = 0;
            subsets(network.tors(), size, &mut |failed| {
                at += 1;
                if size == 1 || at % one_in == 0 {
                    check_recovered(&network, failed);
                }
            });
        }
    }
}

#[test]
fn a_single_failure_costs_at_most_k_more_hops_and_is_spread() {
    for (p, k) in [(3, 2), (4, 2), (4, 3), (5, 2)] {
        let network = Shufflecast::new(p, k).unwrap();
        let failed = network.tors() / 2 + 1;
        assert!(check_recovered(&network, &[failed].into()) < 3 * k);
        let recovery = recover(&network, &[failed].into());
        let mut load: BTreeMap<u32, u32> = BTreeMap::new();
        for &(relay, _) in recovery.activated.iter().filter(|(r, _)| network.mirrors(failed).any(|m| m == *r))
        {
            *load.entry(relay).or_default() += 1;
        }
        assert_eq!(load.len() as u32, p - 1, "all mirrors help");
        let (most, least) = (load.values().max().unwrap(), load.values().min().unwrap());
        assert!(most - least <= k, "{load:?}");
    }
}

/// The most that any rules could reach: every live ToR relays.
fn reachable(network: &Shufflecast, source: u32, failed: &BTreeSet<u32>) -> Vec<u32> {
    walk(network, source, |tor| !failed.contains(&tor)).unreachable()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    /// Even for p failures and more, every ToR that can be reached at all is reached.
    #[test]
    fn no_tor_is_left_out_without_need(
        which in 0usize..4,
        failed in proptest::collection::btree_set(0u32..18, 0..9),
    ) {
        let (p, k) = [(2, 3), (3, 2), (2, 4), (4, 2)][which];
        let network = Shufflecast::new(p, k).unwrap();
        let recovery = recover(&network, &failed);
        for source in (0..network.tors()).filter(|source| !failed.contains(source)) {
            prop_assert_eq!(recovery.reach(&network, source).unreachable(), reachable(&network, source, &failed));
        }
    }
}

/// The best of all ways to choose one live relay for every mirror class: the most ToRs that are reached, and
/// then the fewest hops to the farthest.
fn best_of_all_plans(network: &Shufflecast, source: u32, failed: &BTreeSet<u32>) -> (usize, u32) {
    let classes: Vec<u32> = (0..network.tors()).filter(|&tor| network.partition(tor) == 0).collect();
    let plans = (0..classes.len()).fold(1, |plans, _| plans * network.fanout());
    let mut best = (0, u32::MAX);
    for plan in 0..plans {
        let mut relays = BTreeSet::new();
        let mut left = plan;
        for class in &classes {
            relays.insert(class + left % network.fanout() * network.partition_size());
            left /= network.fanout();
        }
        if !relays.contains(&source) {
            continue;
        }
        let reach = walk(network, source, |tor| relays.contains(&tor) && !failed.contains(&tor));
        let reached = reach.hops.iter().filter(|hops| **hops != UNREACHED).count();
        if (reached, core::cmp::Reverse(reach.max_hops())) > (best.0, core::cmp::Reverse(best.1)) {
            best = (reached, reach.max_hops());
        }
    }
    best
}

/// ToRs that fail, by themselves and with all of their mirrors.
fn failures() -> impl Strategy<Value = (BTreeSet<u32>, Option<u32>)> {
    (proptest::collection::btree_set(0u32..1000, 2..7), proptest::option::weighted(0.3, 0u32..1000))
}

fn failed_of(network: &Shufflecast, (drawn, class): &(BTreeSet<u32>, Option<u32>)) -> BTreeSet<u32> {
    let mirrors = class.map(|tor| network.mirrors(tor % network.tors()));
    drawn.iter().map(|tor| tor % network.tors()).chain(mirrors.into_iter().flatten()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// After several failures no other plan of as good a reach has fewer hops, by trying them all.
    #[test]
    fn the_farthest_tor_is_as_near_as_any_plan_makes_it(
        which in 0usize..3,
        drawn in failures(),
        source in 0u32..1000,
    ) {
        let network = [(2, 2), (2, 3), (3, 2)].map(|(p, k)| Shufflecast::new(p, k).unwrap())[which];
        let (failed, source) = (failed_of(&network, &drawn), source % network.tors());
        if failed.len() < 2 || failed.contains(&source) {
            return Ok(());
        }
        let reach = recover_source(&network, &failed, source).reach(&network, source);
        let reached = reach.hops.iter().filter(|hops| **hops != UNREACHED).count();
        prop_assert_eq!((reached, reach.max_hops()), best_of_all_plans(&network, source, &failed));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    /// No rules are better than all live relays at once, and rules of one relay a class are as good.
    #[test]
    fn one_relay_a_class_is_as_near_as_all_live_relays(which in 0usize..9, drawn in failures()) {
        let network = instances()[which];
        let failed = failed_of(&network, &drawn);
        if failed.len() < 2 {
            return Ok(());
        }
        let recovery = recover(&network, &failed);
        for source in (0..network.tors()).filter(|source| !failed.contains(source)).step_by(3) {
            let (reach, all) = (recovery.reach(&network, source), walk(&network, source, |tor| !failed.contains(&tor)));
            prop_assert_eq!(reach.unreachable(), all.unreachable());
            prop_assert_eq!(reach.max_hops(), all.max_hops(), "{:?} for {}", failed, source);
            prop_assert!(reach.copies.iter().all(|&copies| copies <= 1), "{:?} for {}", failed, source);
            let relays = recovery.relay_set(&network, source);
            prop_assert!(relays.iter().all(|relay| !failed.contains(relay)));
            let classes: BTreeSet<(u32, u32)> =
                relays.iter().map(|&tor| (network.column(tor), network.row(tor) % network.partition_size())).collect();
            prop_assert_eq!(classes.len(), relays.len(), "no class has two rules for a source");
        }
    }
}

/// Failures after which the fewest switches lead farther than 3k - 1 hops: to 22, 22, 11 and 6.
#[test]
fn several_failures_stay_within_the_papers_bound_where_that_is_possible() {
    let cases: [(u32, u32, &[u32], u32); 4] = [
        (2, 5, &[14, 30], 10),
        (2, 5, &[63, 127, 147], 12),
        (3, 3, &[0, 21, 33, 69], 6),
        (6, 2, &[26, 27, 36, 53, 56], 4),
    ];
    for (p, k, failed, hops) in cases {
        let network = Shufflecast::new(p, k).unwrap();
        let failed: BTreeSet<u32> = failed.iter().copied().collect();
        let recovery = recover(&network, &failed);
        let sources = (0..network.tors()).filter(|source| !failed.contains(source));
        let farthest = sources.map(|source| recovery.reach(&network, source).max_hops()).max().unwrap();
        assert!(farthest < 3 * k, "{p},{k} {failed:?}: {farthest} hops");
        assert_eq!(farthest, hops, "{p},{k} {failed:?}");
    }
}

#[test]
fn sources_share_as_lemma_3_says() {
    for network in instances() {
        let (p, k) = (network.fanout(), network.columns());
        // The p sources whose digits are all raised by the same amount share nothing.
        let shifted = |row: u32, j: u32| -> u32 {
            (0..k).map(|place| (network.digit(row, place) + j) % p * p.pow(place)).sum()
        };
        let disjoint: Vec<u32> = (0..p).map(|j| shifted(1, j)).collect();
        assert!(fair_shares(&network, &disjoint).iter().all(|&rate| rate == 1.0));
        let mut table = PartitionTable::new(network);
        assert!(disjoint.iter().all(|&source| table.admit(source)));
        assert!(!table.admit(disjoint[0]));
        table.release(disjoint[0]);
        assert!(table.admit(disjoint[0]));
        let column: Vec<u32> = (0..network.rows()).collect();
        let share = 1.0 / f64::from(network.partition_size());
        assert!(fair_shares(&network, &column).iter().all(|rate| (rate - share).abs() < 1e-9));
    }
}

#[test]
fn tors_out_of_range_are_named() {
    use alloc::string::ToString;
    let network = Shufflecast::new(2, 2).unwrap();
    assert_eq!(checked_tor(&network, 7), Ok(7));
    let why = checked_tor(&network, 8).unwrap_err().to_string();
    assert_eq!(why, "ToR 8 is out of range: this Shufflecast has ToRs 0 to 7");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]
    /// Max-min fairness: no partition carries more than the line rate, and every source has one that is full
    /// and in which none has more than it.
    #[test]
    fn shares_are_max_min_fair(which in 0usize..9, drawn in proptest::collection::btree_set(0u32..1000, 1..12)) {
        let network = instances()[which];
        let active: Vec<u32> = drawn.iter().map(|at| at % network.tors()).collect::<BTreeSet<_>>().into_iter().collect();
        let shares = fair_shares(&network, &active);
        prop_assert_eq!(shares.len(), active.len());
        let places = |source: u32| (0..network.columns()).map(move |column| (column, relaying_partition(&network, source, column)));
        let mut carried: BTreeMap<(u32, u32), (f64, f64)> = BTreeMap::new();
        for (&source, &share) in active.iter().zip(&shares) {
            for place in places(source) {
                let (sum, most) = carried.entry(place).or_insert((0.0, 0.0));
                (*sum, *most) = (*sum + share, most.max(share));
            }
        }
        prop_assert!(carried.values().all(|(sum, _)| *sum < 1.0 + 1e-9));
        for (&source, &share) in active.iter().zip(&shares) {
            let is_bottleneck = |place| carried[&place].0 > 1.0 - 1e-9 && carried[&place].1 < share + 1e-9;
            prop_assert!(places(source).any(is_bottleneck), "{} has {} and could have more", source, share);
        }
    }

    /// A source is admitted where no admitted one has a partition of its own.
    #[test]
    fn partitions_are_lent_once(which in 0usize..9, steps in proptest::collection::vec((any::<bool>(), 0u32..1000), 1..40)) {
        let network = instances()[which];
        let places = |source: u32| -> BTreeSet<(u32, u32)> {
            (0..network.columns()).map(|column| (column, relaying_partition(&network, source, column))).collect()
        };
        let mut table = PartitionTable::new(network);
        let mut admitted: Vec<u32> = Vec::new();
        for (comes, number) in steps {
            if comes || admitted.is_empty() {
                let source = number % network.tors();
                let free = admitted.iter().all(|&other| places(other).is_disjoint(&places(source)));
                prop_assert_eq!(table.admit(source), free);
                admitted.extend(free.then_some(source));
            } else {
                table.release(admitted.swap_remove(number as usize % admitted.len()));
            }
        }
    }
}

/// Hops and losses by hand on 2,2-Shufflecast (figure 3), and the mean over those that are reached.
#[test]
fn reaches_are_measured_over_who_is_reached() {
    let reach = Reach { hops: vec![0, 3, UNREACHED, 1, 2, UNREACHED], copies: vec![0; 6] };
    assert_eq!((reach.unreachable(), reach.max_hops(), reach.mean_hops()), (vec![2, 5], 3, 2.0));
    let alone = Reach { hops: vec![0, UNREACHED], copies: vec![0; 2] };
    assert_eq!((alone.max_hops(), alone.mean_hops()), (0, 0.0));
    let network = Shufflecast::new(2, 2).unwrap();
    let whole = reach_before_recovery(&network, 0, &BTreeSet::new());
    assert_eq!((whole.hops.clone(), whole.mean_hops()), (vec![0, 2, 2, 2, 1, 1, 3, 3], 2.0));
    // For each source, what a failure of ToR 0 leaves unreached, counted source by source.
    for network in instances() {
        let mut counted: BTreeMap<u32, u32> = BTreeMap::new();
        for source in 0..network.tors() {
            let lost = (0..network.tors()).filter(|&tor| {
                let relays = |at: u32| at != 0 && is_relay(&network, at, source);
                walk(&network, source, relays).hops[tor as usize] == UNREACHED
            });
            *counted.entry(lost.count() as u32).or_default() += 1;
        }
        assert_eq!(loss_distribution(&network), counted.into_iter().collect::<Vec<_>>());
    }
}

/// Recovery for one source is the part of the whole recovery that concerns it.
#[test]
fn recovery_of_a_source_is_its_part_of_the_whole() {
    for network in [Shufflecast::new(2, 3).unwrap(), Shufflecast::new(3, 2).unwrap()] {
        for failed in [BTreeSet::from([0]), BTreeSet::from([1, 5]), BTreeSet::from([3, 7, 11])] {
            let whole = recover(&network, &failed);
            for source in (0..network.tors()).filter(|source| !failed.contains(source)) {
                let of_source = |set: &BTreeSet<(u32, u32)>| -> BTreeSet<(u32, u32)> {
                    set.iter().copied().filter(|rule| rule.1 == source).collect()
                };
                let part = recover_source(&network, &failed, source);
                assert_eq!(part.failed, failed);
                assert_eq!(part.activated, of_source(&whole.activated), "{failed:?} for {source}");
                assert_eq!(part.deactivated, of_source(&whole.deactivated), "{failed:?} for {source}");
            }
        }
    }
}
