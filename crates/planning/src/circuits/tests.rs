use super::*;
use crate::plan::Resource;
use alloc::format;
use alloc::string::ToString;
use polycast_topology::Hybrid;
use polycast_topology::optics::{PowerBudget, splitter_loss_db};
use proptest::prelude::*;

const NETWORK: CircuitNetwork =
    CircuitNetwork { racks: 8, ports_per_rack: 1, splitters: 3, splitter_fanout: 3, cascade_max: 2 };

fn group(id: u64, racks: &[u32], bytes: u64, receivers: u32) -> CircuitGroup {
    CircuitGroup { id, racks: racks.to_vec(), bytes, receivers }
}

#[test]
fn the_most_traffic_per_rack_wins() {
    let groups = [
        group(1, &[0, 1, 2, 3], 100, 4),
        group(2, &[0, 4], 100, 3),
        group(3, &[1, 2, 3], 100, 4),
        group(4, &[5, 6], 1, 1),
    ];
    let schedule = schedule(&NETWORK, &groups, &BTreeSet::new()).unwrap();
    assert_eq!((schedule.granted, schedule.waiting), (vec![2, 3, 4], vec![1]));
    assert_eq!((schedule.volume, schedule.splitters_used), (701, 1));
}

#[test]
fn running_groups_keep_what_they_have() {
    let groups = [group(1, &[0, 1, 2], 1, 1), group(2, &[0, 4], 1000, 1000)];
    let schedule = schedule(&NETWORK, &groups, &BTreeSet::from([1])).unwrap();
    assert_eq!((schedule.granted, schedule.waiting), (vec![], vec![2]));
    assert_eq!((schedule.volume, schedule.splitters_used), (0, 1));
}

#[test]
fn what_never_fits_is_rejected_with_its_reason() {
    let seven = group(1, &[0, 1, 2, 3, 4, 5, 6], 1, 1);
    let schedule = schedule(&NETWORK, &[seven, group(2, &[3], 1, 1)], &BTreeSet::new()).unwrap();
    let reasons: Vec<_> = schedule.rejected.iter().map(|(_, why)| why.to_string()).collect();
    assert!(reasons[0].contains("7 racks") && reasons[0].contains("reach 6"), "{reasons:?}");
    assert!(reasons[1].contains("at least 2 racks"));
}

#[test]
fn wrong_requests_are_named() {
    let none = BTreeSet::new();
    let refuse = |groups: &[CircuitGroup], running: &BTreeSet<u64>| {
        schedule(&NETWORK, groups, running).unwrap_err().to_string()
    };
    assert!(refuse(&[group(1, &[0, 8], 1, 1)], &none).contains("rack 8: the racks are 0 to 7"));
    assert!(refuse(&[group(1, &[0, 1], 1, 1), group(1, &[2, 3], 1, 1)], &none).contains("called 1"));
    assert!(refuse(&[], &[5].into()).contains("running group 5"));
    let twice = [group(1, &[0, 1], 1, 1), group(2, &[1, 2], 1, 1)];
    assert!(refuse(&twice, &[1, 2].into()).contains("rack 1"));
}

fn any_groups() -> impl Strategy<Value = Vec<CircuitGroup>> {
    let racks = proptest::collection::btree_set(0u32..8, 1..8);
    let one = (racks, 0u64..1000, 1u32..50);
    proptest::collection::vec(one, 0..10).prop_map(|list| {
        let make = |(id, (racks, bytes, receivers)): (usize, (BTreeSet<u32>, u64, u32))| {
            group(id as u64, &racks.into_iter().collect::<Vec<_>>(), bytes, receivers)
        };
        list.into_iter().enumerate().map(make).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]
    /// Nothing is used more than there is, every group is answered once, and no group waits that would fit.
    #[test]
    fn constraints_hold(groups in any_groups(), ports in 1u32..3, splitters in 0u32..6, fanout in 2u32..5, cascade in 0u32..4) {
        let network = CircuitNetwork {
            racks: 8, ports_per_rack: ports, splitters, splitter_fanout: fanout, cascade_max: cascade,
        };
        let answer = schedule(&network, &groups, &BTreeSet::new()).unwrap();
        let mut used = [0u32; 8];
        let mut splitters_used = 0;
        let mut volume = 0;
        for group in groups.iter().filter(|group| answer.granted.contains(&group.id)) {
            group.racks.iter().for_each(|&rack| used[rack as usize] += 1);
            prop_assert!(group.racks.len() as u32 <= cascade * (fanout + 1) - 2 * cascade + 2);
            splitters_used += (group.racks.len() as u32 - 2).div_ceil(fanout - 1);
            volume += u128::from(group.bytes) * u128::from(group.receivers);
        }
        prop_assert!(used.iter().all(|&used| used <= ports));
        prop_assert!(splitters_used <= splitters);
        prop_assert_eq!((splitters_used, volume), (answer.splitters_used, answer.volume));
        prop_assert_eq!(answer.granted.len() + answer.waiting.len() + answer.rejected.len(), groups.len());
        for group in groups.iter().filter(|group| answer.waiting.contains(&group.id)) {
            let needed = group.splitters(&network);
            let fits = needed + splitters_used <= splitters && group.racks.iter().all(|&r| used[r as usize] < ports);
            prop_assert!(!fits);
        }
        // The greedy choice is at least its best single group.
        let best = groups.iter().filter(|g| answer.granted.contains(&g.id) || answer.waiting.contains(&g.id));
        if let Some(best) = best.max_by_key(|g| g.volume() * 1000 / g.racks.len() as u128) {
            prop_assert!(answer.granted.contains(&best.id) || answer.volume > 0 || best.volume() == 0);
        }
    }
}

/// The most that groups that fit together are worth, by trying all subsets.
fn best_by_trying(network: &CircuitNetwork, groups: &[CircuitGroup], running: &BTreeSet<u64>) -> u128 {
    let left = residual(network, groups, running).unwrap();
    let worth = |subset: u32| {
        let (mut left, mut volume) = (left.clone(), 0);
        for (at, &index) in left.candidates.clone().iter().enumerate() {
            if subset >> at & 1 == 1 {
                if !left.fits(network, &groups[index]) {
                    return 0;
                }
                left.take(network, &groups[index]);
                volume += groups[index].volume();
            }
        }
        volume
    };
    (0..1 << left.candidates.len()).map(worth).max().unwrap_or(0)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    /// A choice of the search fits beside what runs, is never worth less than the greedy choice, and is
    /// within a hundredth of the best; with no steps at all it is at least the greedy choice.
    #[test]
    fn the_search_is_never_worse_than_greedy_and_nearly_the_best(
        groups in any_groups(), ports in 1u32..4, splitters in 0u32..6, fanout in 2u32..5, steps in 0u64..300,
        running in proptest::collection::btree_set(0u64..10, 0..3),
    ) {
        let network = CircuitNetwork {
            racks: 8, ports_per_rack: ports, splitters, splitter_fanout: fanout, cascade_max: 4,
        };
        let running: BTreeSet<u64> = running.into_iter().filter(|id| *id < groups.len() as u64).collect();
        let Ok(greedy) = schedule(&network, &groups, &running) else { return Ok(()) };
        let best = best_by_trying(&network, &groups, &running);
        for steps_max in [0, steps, SEARCH_STEPS] {
            let found = schedule_with_search(&network, &groups, &running, steps_max).unwrap();
            let mut left = residual(&network, &groups, &running).unwrap();
            let mut volume = 0;
            for group in groups.iter().filter(|group| found.granted.contains(&group.id)) {
                prop_assert!(left.fits(&network, group) && !running.contains(&group.id));
                left.take(&network, group);
                volume += group.volume();
            }
            prop_assert_eq!((volume, network.splitters - left.free_splitters), (found.volume, found.splitters_used));
            prop_assert!(found.volume >= greedy.volume && found.volume <= best);
            prop_assert!(steps_max < SEARCH_STEPS || found.volume + found.volume / 100 + 1 >= best, "{} of {}", found.volume, best);
            let answered = |of: &Schedule| {
                of.granted.iter().chain(&of.waiting).copied().collect::<BTreeSet<_>>()
            };
            prop_assert_eq!((answered(&found), &found.rejected), (answered(&greedy), &greedy.rejected));
            let again = schedule_with_search(&network, &groups, &running, steps_max).unwrap();
            prop_assert_eq!(found, again);
        }
    }

    /// Every change that a rejection names lets the group have circuits, and one less does not.
    #[test]
    fn what_a_rejection_names_helps(racks in 2u32..12, splitters in 0u32..5, fanout in 2u32..6, cascade in 0u32..5) {
        let network = CircuitNetwork { racks: 12, ports_per_rack: 1, splitters, splitter_fanout: fanout, cascade_max: cascade };
        let one = [group(1, &(0..racks).collect::<Vec<_>>(), 1, 1)];
        let rejected = |network: CircuitNetwork| schedule(&network, &one, &BTreeSet::new()).unwrap().rejected.pop();
        let Some((_, why)) = rejected(network) else { return Ok(()) };
        let (Rejection::Cascade { remedies, .. } | Rejection::Splitters { remedies, .. }) = why else {
            panic!("{why}")
        };
        let mut changes = Vec::new();
        if let Some(most) = remedies.cascade_max {
            changes.push([most, most - 1].map(|cascade_max| CircuitNetwork { cascade_max, ..network }));
        }
        if let Some(more) = remedies.more_splitters {
            changes.push([more, more - 1].map(|more| CircuitNetwork { splitters: splitters + more, ..network }));
        }
        if let Some((more, cascade_max)) = remedies.more_and_cascade_max {
            changes.push([more, more - 1].map(|more| CircuitNetwork { splitters: splitters + more, cascade_max, ..network }));
            changes.push([cascade_max, cascade_max - 1].map(|cascade_max| CircuitNetwork { splitters: splitters + more, cascade_max, ..network }));
        }
        if let Some(fanout) = remedies.fanout {
            changes.push([fanout, fanout - 1].map(|splitter_fanout| CircuitNetwork { splitter_fanout, ..network }));
        }
        prop_assert!(!changes.is_empty(), "{}", why);
        for [enough, too_few] in changes {
            prop_assert!(rejected(enough).is_none(), "{}", why);
            prop_assert!(rejected(too_few).is_some(), "{}", why);
        }
        prop_assert_eq!(remedies.more_fibres, None);
    }
}

#[test]
fn circuits_use_every_port_once_and_reach_every_rack() {
    let hybrid =
        Hybrid { racks: 120, servers_per_rack: 40, ports_per_rack: 1, splitters: 40, splitter_fanout: 4 };
    let budget = PowerBudget {
        budget_db: 30.0,
        switch_loss_db: 1.5,
        splitter_loss_db: splitter_loss_db(4),
        amplifier_gain_db: 20.0,
    };
    let mut pool = PortPool::new(hybrid);
    let mut ports = BTreeSet::new();
    let mut setups = Vec::new();
    for group in 0..20 {
        let racks: Vec<u32> = (6 * group + 1..6 * group + 6).collect();
        let setup = setup(&mut pool, 6 * group, &racks, &budget).unwrap();
        assert_eq!((setup.connections.len(), setup.splitters.len()), (7, 2));
        assert!(setup.power.margin_db >= 0.0);
        for connection in &setup.connections {
            assert!(ports.insert(("in", connection.from)) && ports.insert(("out", connection.to)));
        }
        setups.push(setup);
    }
    assert_eq!(setups[0].connections[0].tl1_enter(7), "ENT-CRS-FIBER::1,121:7;");
    assert!(matches!(setup(&mut pool, 0, &[1], &budget), Err(SetupError::RackBusy { rack: 1, .. })));
    pool.release(&setups[0]);
    assert!(setup(&mut pool, 0, &[1], &budget).is_ok());
    let dark = PowerBudget { budget_db: 5.0, amplifier_gain_db: 0.0, ..budget };
    assert!(matches!(setup(&mut pool, 2, &[3, 4], &dark), Err(SetupError::Power(_))));
}

/// Each bound of a request from both sides.
#[test]
fn bounds_of_requests() {
    let none = BTreeSet::new();
    let ask = |network: CircuitNetwork, groups: &[CircuitGroup]| schedule(&network, groups, &none);
    let pair = [group(1, &[0, 1], 5, 2)];
    assert!(ask(NETWORK, &pair).is_ok());
    assert_eq!(ask(CircuitNetwork { racks: 0, ..NETWORK }, &[]), Err(CircuitError::Empty { what: "racks" }));
    let without = CircuitNetwork { ports_per_rack: 0, ..NETWORK };
    assert_eq!(ask(without, &[]), Err(CircuitError::Empty { what: "ports per rack" }));
    assert!(ask(CircuitNetwork { racks: 1 << 20, ..NETWORK }, &pair).is_ok());
    let many = CircuitNetwork { racks: (1 << 20) + 1, ..NETWORK };
    assert_eq!(ask(many, &pair), Err(CircuitError::TooManyRacks { racks: (1 << 20) + 1, limit: 1 << 20 }));
    let dull =
        |splitters, splitter_fanout| ask(CircuitNetwork { splitters, splitter_fanout, ..NETWORK }, &pair);
    assert_eq!(dull(1, 1), Err(CircuitError::SplitterFanout { fanout: 1 }));
    assert!(dull(0, 0).is_ok() && dull(0, 1).is_ok() && dull(1, 2).is_ok());
    assert_eq!(ask(NETWORK, &[group(4, &[1, 1], 1, 1)]), Err(CircuitError::SameRack { group: 4, rack: 1 }));
    assert_eq!(
        ask(NETWORK, &[group(4, &[8], 1, 1)]),
        Err(CircuitError::RackRange { group: 4, rack: 8, last: 7 })
    );
    assert!(ask(NETWORK, &[group(4, &[7, 6], 1, 1)]).is_ok());
    // Two groups may name the same rack.
    assert!(ask(NETWORK, &[group(4, &[1, 2], 1, 1), group(5, &[2, 1], 1, 1)]).is_ok());
    // Six racks take two splitters of three outputs: one is too few, two suffice.
    let six = [group(1, &[0, 1, 2, 3, 4, 5], 5, 2)];
    let with = |splitters| ask(CircuitNetwork { splitters, ..NETWORK }, &six).unwrap();
    let remedies = Remedies { more_splitters: Some(1), fanout: Some(5), ..Remedies::default() };
    assert_eq!(with(1).rejected, [(1, Rejection::Splitters { needed: 2, splitters: 1, remedies })]);
    assert_eq!(with(2).granted, [1]);
}

/// Running groups are taken out of the network, and groups that need more than there is cannot run.
#[test]
fn what_runs_is_taken_out() {
    let network = CircuitNetwork { ports_per_rack: 2, ..NETWORK };
    let groups = [group(1, &[0, 1, 2], 1, 1), group(2, &[0, 3, 4, 5], 1, 1), group(3, &[6, 7], 1, 1)];
    let left = residual(&network, &groups, &[1, 2].into()).unwrap();
    assert_eq!((left.candidates.clone(), left.free_splitters), (vec![2], 1));
    assert_eq!(left.free_ports, [0, 1, 1, 1, 1, 1, 2, 2]);
    assert!(left.fits(&network, &groups[2]) && !left.fits(&network, &groups[0]), "rack 0 has no fibre left");
    assert!(
        left.fits(&network, &group(9, &[1, 2, 3], 1, 1))
            && !left.fits(&network, &group(9, &[1, 2, 3, 4, 5], 1, 1))
    );
    let one = CircuitNetwork { splitters: 1, ..network };
    let much = residual(&one, &groups, &[1, 2].into()).unwrap_err();
    assert_eq!(much, CircuitError::RunningTooMuch { what: "splitter number", value: 1, limit: 1 });
    let narrow =
        residual(&CircuitNetwork { ports_per_rack: 1, ..network }, &groups, &[1, 2].into()).unwrap_err();
    assert_eq!(narrow, CircuitError::RunningTooMuch { what: "rack", value: 0, limit: 1 });
}

proptest! {
    /// Resources that may have failed are taken only where nothing else would do.
    #[test]
    fn what_may_have_failed_is_taken_last(
        ports in 1u32..5,
        splitters in 1u32..5,
        doubtful in any::<u64>(),
    ) {
        let hybrid = Hybrid { racks: 4, servers_per_rack: 1, ports_per_rack: ports, splitters, splitter_fanout: 3 };
        let table = polycast_topology::PortTable::of(&hybrid);
        let is_doubtful = |resource: &Resource| match resource {
            Resource::CircuitPort { port } => doubtful >> port & 1 == 1,
            Resource::Splitter { splitter } => doubtful >> (32 + splitter) & 1 == 1,
            _ => false,
        };
        let splitter = |splitter: &u32| is_doubtful(&Resource::Splitter { splitter: *splitter });
        let fibre = |rack: u32, uplink: u32| {
            is_doubtful(&Resource::CircuitPort { port: table.of_rack(rack)[uplink as usize] })
        };
        let budget =
            PowerBudget { budget_db: 90.0, switch_loss_db: 1.0, splitter_loss_db: 4.0, amplifier_gain_db: 0.0 };
        let mut pool = PortPool::new(hybrid);
        pool.put_last(is_doubtful);
        let mut held = CircuitSetup {
            connections: Vec::new(),
            splitters: Vec::new(),
            uplinks: Vec::new(),
            power: budget.plan_each(&polycast_topology::optics::Cascade::of(1, &[]), &[]).unwrap(),
        };
        while let Ok(made) = setup(&mut pool, 0, &[1, 2, 3], &budget) {
            held.splitters.extend(&made.splitters);
            held.uplinks.extend(&made.uplinks);
            let left = |one: &u32| !held.splitters.contains(one);
            for one in made.splitters.iter().filter(|one| splitter(one)) {
                prop_assert!((0..splitters).filter(left).all(|other| splitter(&other)), "splitter {}", one);
            }
            for &(rack, uplink) in made.uplinks.iter().filter(|(rack, uplink)| fibre(*rack, *uplink)) {
                let left = (0..ports).filter(|other| !held.uplinks.contains(&(rack, *other)));
                prop_assert!(left.into_iter().all(|other| fibre(rack, other)), "{} of rack {}", uplink, rack);
            }
        }
        prop_assert_eq!(held.uplinks.len() as u32, 4 * ports.min(splitters));
    }
}

/// A set-up that fails leaves the pool as it was, and one that is released gives all of it back.
#[test]
fn pools_are_whole_after_refusals() {
    let hybrid =
        Hybrid { racks: 4, servers_per_rack: 1, ports_per_rack: 2, splitters: 1, splitter_fanout: 2 };
    let budget =
        PowerBudget { budget_db: 90.0, switch_loss_db: 1.0, splitter_loss_db: 4.0, amplifier_gain_db: 0.0 };
    let mut pool = PortPool::new(hybrid);
    let whole = format!("{pool:?}");
    let refused = setup(&mut pool, 0, &[1, 4], &budget).unwrap_err();
    assert_eq!(refused, SetupError::RackRange { rack: 4, last: 3 });
    assert!(matches!(setup(&mut pool, 9, &[1], &budget), Err(SetupError::RackRange { rack: 9, last: 3 })));
    assert_eq!(
        setup(&mut pool, 0, &[1, 2, 3], &budget).unwrap_err(),
        SetupError::SplittersBusy { needed: 2, free: 1 }
    );
    // Three times the same rack: it has two fibres.
    let dense = Hybrid { splitters: 3, ..hybrid };
    let mut dense = PortPool::new(dense);
    let before = format!("{dense:?}");
    assert_eq!(
        setup(&mut dense, 0, &[1, 1, 1], &budget).unwrap_err(),
        SetupError::RackBusy { rack: 1, ports: 2 }
    );
    assert_eq!(format!("{dense:?}"), before);
    let made = setup(&mut pool, 0, &[3, 1], &budget).unwrap();
    // Into the splitter, and from its outputs to the racks in the order in which they were named.
    let ports: Vec<(u32, u32)> = made.connections.iter().map(|made| (made.from, made.to)).collect();
    assert_eq!((ports, made.uplinks.clone()), (vec![(0, 8), (9, 6), (10, 2)], vec![(0, 0), (3, 0), (1, 0)]));
    assert_eq!(
        (made.connections[1].tl1_enter(3), made.connections[1].tl1_delete(4)),
        ("ENT-CRS-FIBER::10,7:3;".to_string(), "DLT-CRS-FIBER::10,7:4;".to_string())
    );
    let direct = setup(&mut pool, 0, &[3], &budget).unwrap();
    assert_eq!((direct.connections[0].from, direct.connections[0].to), (1, 7));
    assert!(matches!(setup(&mut pool, 0, &[2], &budget), Err(SetupError::RackBusy { rack: 0, ports: 2 })));
    pool.release(&direct);
    pool.release(&made);
    assert_eq!(format!("{pool:?}"), whole);
}
