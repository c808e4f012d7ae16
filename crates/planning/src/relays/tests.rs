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

#[test]
fn every_failure_set_below_p_is_recovered() {
    for (p, k) in [(2, 3), (3, 2), (3, 3), (4, 2)] {
        let network = Shufflecast::new(p, k).unwrap();
        for size in 1..p {
            subsets(network.tors(), size, &mut |failed| {
                check_recovered(&network, failed);
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
    /// Even for p failures and more, whoever can be reached at all is reached.
    #[test]
    fn nobody_is_left_out_without_need(
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
    assert!(checked_tor(&network, 8).unwrap_err().to_string().contains("ToR 8 is out of range"));
}
