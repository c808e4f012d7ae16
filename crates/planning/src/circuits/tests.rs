use super::*;
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
    /// Nothing is used more than there is, everyone is answered once, and nobody waits who would fit.
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
