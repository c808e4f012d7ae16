use super::*;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::ToString;
use polycast_topology::{FatTree, Graph, Network};
use proptest::prelude::*;

fn clos(text: &str) -> Clos {
    text.parse::<Network>().unwrap().as_clos().unwrap()
}

fn k48() -> Clos {
    FatTree::new(48, 3).unwrap().as_clos().unwrap()
}

/// A small generator for tests that fix a seed.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(1);
    format::mix(*state)
}

fn draw(state: &mut u64, count: usize, hosts: u32, source: Node) -> Vec<Node> {
    let mut set = BTreeSet::new();
    while set.len() < count.min(hosts as usize - 1) {
        let host = (next(state) % u64::from(hosts)) as Node;
        if host != source {
            set.insert(host);
        }
    }
    set.into_iter().collect()
}

/// Both encodings deliver to exactly these receivers.
fn check(planner: &LabelPlanner, session: u64, source: Node, plan: &LabelPlan, receivers: &BTreeSet<Node>) {
    let clos = planner.clos();
    let delivery = switches::deliver(clos, planner.format(), planner.filter(), source, plan);
    assert_eq!(delivery.redundant(clos, receivers), []);
    // Up to a spine and a core, down to the other pods; to each leaf, its agent and back, and to its hosts.
    let others = plan.tree.pods.iter().filter(|pod| pod.pod != plan.tree.source_pod).count() as u32;
    let up = 2 + if clos.cores_per_spine() > 0 { 1 + others } else { 0 };
    let links = up + 3 * plan.leaf_hosts.len() as u32 + receivers.len() as u32;
    assert_eq!(delivery.links, links);
    assert_eq!(delivery.hosts.keys().copied().collect::<BTreeSet<_>>(), *receivers);
    let format = pod_labels::PodLabelFormat::new(clos, planner.format().bytes()).unwrap();
    let asks = format.asked_leaf(session, |_| true).unwrap();
    let pods = pod_labels::encode(&format, plan, asks);
    let delivery = pod_labels::deliver(clos, &format, source, plan, &pods);
    assert_eq!(delivery.redundant(clos, receivers), []);
    // A pod beyond the slots costs four more: to a leaf, its agent, and both ways back.
    assert_eq!(delivery.links, links + 4 * pods.spine_labels.len() as u32);
    assert_eq!(pods.spine_labels.len(), plan.tree.pods.len().saturating_sub(format.slots() as usize));
    assert_eq!(delivery.hosts.keys().copied().collect::<BTreeSet<_>>(), *receivers);
}

#[test]
fn nineteen_bytes_bit_by_bit() {
    let planner = LabelPlanner::new(k48(), 69).unwrap();
    let format = *planner.format();
    assert_eq!((format.bits(), format.bytes()), (152, 19));
    let mut filter = FilterBits::EMPTY;
    filter.set(0);
    filter.set(68);
    let label = format.source_label(
        TreePath { plane: 0b10001, core: 0b00011 },
        1 << 0 | 1 << 23,
        &filter,
        1 | 1 << 47,
    );
    let set: Vec<u32> = (0..152).filter(|&bit| label.bit(bit)).collect();
    // leaf-up 1-5, spine-up 6-10, common 11-34, filter 35-103, core-down 104-151.
    assert_eq!(set, [1, 5, 9, 10, 11, 34, 35, 103, 104, 151]);
    assert_eq!((format.leaf_up(&label), format.spine_up(&label)), (17, 3));
    assert_eq!(label.to_hex().len(), 38);
    for (filter_bits, bytes) in [(61, 18), (69, 19), (77, 20)] {
        assert_eq!(LabelPlanner::new(k48(), filter_bits).unwrap().format().bytes(), bytes);
    }
    let elmo = LabelPlanner::new(clos("clos:12,48,4,48,1"), 69).unwrap();
    assert_eq!(elmo.format().bytes(), 17);
    let slots = |clos| pod_labels::PodLabelFormat::new(clos, 19).unwrap();
    assert_eq!((slots(&k48()).slots(), slots(&k48()).bytes()), (3, 19));
}

#[test]
fn a_tree_in_one_pod_needs_no_filter_and_no_state() {
    let mut planner = LabelPlanner::new(k48(), 69).unwrap();
    let receivers: Vec<Node> = (1..500).collect();
    let plan = planner.plan(1, 0, &receivers, &Failures::none()).unwrap();
    assert!(plan.spine_state.is_empty());
    assert!((0..69).all(|bucket| !planner.format().filter_has(&plan.label, bucket)));
    check(&planner, 1, 0, &plan, &receivers.into_iter().collect());
}

#[test]
fn wide_trees_reach_exactly_their_receivers() {
    let mut planner = LabelPlanner::new(k48(), 69).unwrap();
    let mut state = 1;
    let mut entries = 0;
    for session in 0..40 {
        let source = (next(&mut state) % 27_648) as Node;
        let receivers = draw(&mut state, 1 + 10 * session as usize, 27_648, source);
        let plan = planner.plan(session, source, &receivers, &Failures::none()).unwrap();
        entries += plan.spine_state.len();
        check(&planner, session, source, &plan, &receivers.into_iter().collect());
    }
    assert!(entries > 0, "the filter is put to the test");
}

proptest! {
    /// Counts at each spine are those of the entries that running sessions keep there.
    #[test]
    fn the_load_of_a_spine_is_what_runs(
        steps in proptest::collection::vec((any::<bool>(), 0usize..8), 1..40),
        seed in any::<u64>(),
    ) {
        let mut planner = LabelPlanner::new(Clos::new(3, 4, 2, 2, 2).unwrap(), 8).unwrap();
        let first = planner.clos().spine(0, 0);
        let spines = 6;
        // Sessions with made-up entries, several at one spine among them: each spine counts once for a
        // session.
        let mut state = seed;
        let mut sessions: Vec<Vec<SpineState>> = Vec::new();
        for _ in 0..8 {
            let mut entries: Vec<SpineState> = (0..next(&mut state) % 6)
                .map(|leaf| SpineState { spine: first + (next(&mut state) % spines) as Node, leaf: leaf as Node })
                .collect();
            entries.sort_unstable();
            sessions.push(entries);
        }
        let mut running = [false; 8];
        for (anew, session) in steps {
            match (anew, running[session]) {
                (true, _) => {
                    let mut all = BTreeMap::new();
                    for (entries, _) in sessions.iter().zip(running).filter(|(_, runs)| *runs) {
                        entries_at(entries).for_each(|spine| *all.entry(spine).or_insert(0) += 1);
                    }
                    planner.count_anew(all.into_iter());
                }
                (false, true) => planner.count_out(&sessions[session]),
                (false, false) => planner.count_in(&sessions[session]),
            }
            running[session] ^= !anew;
            for at in 0..spines as Node {
                let counts = |entries: &&Vec<SpineState>| entries.iter().any(|entry| entry.spine == first + at);
                let expected = sessions.iter().zip(running).filter(|(entries, runs)| *runs && counts(entries));
                prop_assert_eq!(planner.load[at as usize] as usize, expected.count());
            }
        }
    }
}

/// The bits of a row, turned as words, are those of its buckets one by one.
#[test]
fn rows_are_their_buckets() {
    for (leafs, bits) in [(24, 69), (24, 24), (24, 25), (5, 128), (128, 128), (1, 1), (24, 23), (3, 200)] {
        let clos = Clos::new(6, leafs, 3, 1, 1).unwrap();
        for hash in [LinkHash::InRow, LinkHash::Scattered] {
            let filter = Filter::new(&clos, bits, hash);
            let mut state = u64::from(bits);
            for spine in 0..18 {
                let (pod, path) = (spine / 3, TreePath { plane: spine % 3, core: 0 });
                let low = format::low_bits(leafs);
                let some = u128::from(next(&mut state)) << 64 | u128::from(next(&mut state));
                let mut set = FilterBits::EMPTY;
                filter.add(&mut set, pod, path, some & low);
                let mut one_by_one = FilterBits::EMPTY;
                format::ones(some & low).for_each(|leaf| one_by_one.set(filter.bucket(pod, path, leaf)));
                assert_eq!(set, one_by_one, "{leafs} leafs, {bits} bits, {hash:?}");
                let (other, another) = (5 - pod, TreePath { plane: 2 - path.plane, core: 0 });
                let hits = filter.hits(&set, other, another, low);
                for leaf in 0..leafs {
                    let mut with = set;
                    with.set(filter.bucket(other, another, leaf));
                    assert_eq!(hits >> leaf & 1 == 1, with == set, "leaf {leaf} of {leafs}, {bits} bits");
                }
            }
        }
    }
}

/// Rows lie side by side, but for the one at the end of the filter where that leaves half a row or more.
#[test]
fn rows_begin_at_few_places() {
    for (leafs, bits, at_the_end) in
        [(24, 69, true), (24, 59, false), (24, 60, true), (5, 128, true), (24, 24, false)]
    {
        let clos = Clos::new(64, leafs, 3, 1, 1).unwrap();
        let filter = Filter::new(&clos, bits, LinkHash::InRow);
        let path = |plane| TreePath { plane, core: 0 };
        let starts: BTreeSet<u32> =
            (0..192).map(|spine| filter.bucket(spine / 3, path(spine % 3), 0)).collect();
        let side_by_side = (0..bits / leafs).map(|row| row * leafs);
        assert_eq!(
            starts,
            side_by_side.chain(at_the_end.then_some(bits - leafs)).collect(),
            "{leafs} of {bits}"
        );
    }
}

/// Sessions of one source, and one session of many sources, take different ways first.
#[test]
fn ways_up_are_spread() {
    let planner = LabelPlanner::new(k48(), 69).unwrap();
    let first = |session, source| planner.paths(session, source).next().map(|path| (path.plane, path.core));
    let by_session: BTreeSet<_> = (0..200).map(|session| first(session, 5)).collect();
    let by_source: BTreeSet<_> = (0..200).map(|source| first(9, source)).collect();
    assert!(by_session.len() > 100 && by_source.len() > 100, "{} and {}", by_session.len(), by_source.len());
    let all: BTreeSet<_> = planner.paths(9, 5).map(|path| (path.plane, path.core)).collect();
    assert_eq!(all.len(), 24 * 24, "every way is among them");
}

/// The numbers of SplitMix64 from seed 0, as its authors give them.
#[test]
fn links_are_spread_by_split_mix_64() {
    let gamma = 0x9e37_79b9_7f4a_7c15u64;
    let numbers =
        [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4, 0x06c4_5d18_8009_454f, 0xf88b_b8a8_724c_81ec];
    for (at, number) in numbers.into_iter().enumerate() {
        assert_eq!(format::mix(gamma.wrapping_mul(at as u64)), number);
    }
}

#[test]
fn bits_are_counted() {
    assert_eq!([0, 1, 2, 3, 4, 5, 24, 32, 33].map(format::number_bits), [0, 0, 1, 2, 2, 3, 5, 5, 6]);
    assert_eq!([0, 1, 7, 127].map(format::low_bits), [0, 1, 127, u128::MAX >> 1]);
    assert_eq!((format::low_bits(128), format::low_bits(200)), (u128::MAX, u128::MAX));
    assert_eq!(format::ones(1 << 127 | 1 << 5 | 1).collect::<Vec<_>>(), [0, 5, 127]);
    assert_eq!(format::ones(0).count(), 0);
}

/// Every field of a label comes back as it was put in, and no two fields share a bit.
#[test]
fn fields_of_labels_lie_apart() {
    for (text, filter_bits) in
        [("fat-tree:8,3", 20), ("clos:5,6,3,9,2", 7), ("leaf-spine:7,3,5", 1), ("clos:12,48,4,48,1", 69)]
    {
        let clos = clos(text);
        let format = *LabelPlanner::new(clos, filter_bits).unwrap().format();
        let widths = [
            format.leaf_up_bits,
            format.spine_up_bits,
            format.spine_down,
            format.filter_bits,
            format.core_down,
        ];
        let ends: Vec<u32> = widths
            .iter()
            .scan(1, |end, width| {
                *end += width;
                Some(*end)
            })
            .collect();
        assert_eq!(
            [format.spine_up_at(), format.common_at(), format.filter_at(), format.core_at()],
            ends[..4]
        );
        assert_eq!(format.bits(), ends[4].max(1 + clos.hosts_per_leaf()), "{text}");
        assert_eq!(format.bytes(), format.bits().div_ceil(8));
        let path =
            TreePath { plane: clos.spines_per_pod() - 1, core: clos.cores_per_spine().saturating_sub(1) };
        let (common, cores) =
            (format::low_bits(format.spine_down) & 0b1101, format::low_bits(format.core_down) & 0b1011);
        let mut filter = FilterBits::EMPTY;
        (0..filter_bits).step_by(3).for_each(|bucket| filter.set(bucket));
        let label = format.source_label(path, common, &filter, cores);
        assert!(!format.leaf_status(&label));
        assert_eq!((format.leaf_up(&label), format.spine_up(&label)), (path.plane, path.core), "{text}");
        assert_eq!((format.common(&label), format.cores_down(&label)), (common, cores), "{text}");
        assert!((0..filter_bits).all(|bucket| format.filter_has(&label, bucket) == (bucket % 3 == 0)));
        let hosts = format::low_bits(clos.hosts_per_leaf()) & 0b10_1001;
        let label = format.leaf_label(hosts);
        assert!(format.leaf_status(&label) && format.hosts(&label) == hosts);
        assert_eq!(format!("{label:?}"), label.to_hex());
    }
}

/// The table of section 3.5, and what a leaf that knows its rack drops.
#[test]
fn leafs_do_what_labels_say() {
    use polycast_types::LabelKind;
    use switches::{Ingress, LeafAction, LeafRefusal, guarded_leaf, leaf};
    let format = *LabelPlanner::new(clos("fat-tree:8,3"), 20).unwrap().format();
    let source = format.source_label(TreePath { plane: 3, core: 1 }, 0, &FilterBits::EMPTY, 0);
    let hosts = format.leaf_label(0b101);
    for (label, ingress, action) in [
        (&source, Ingress::Below, LeafAction::Up(3)),
        (&source, Ingress::Above, LeafAction::ToAgent),
        (&hosts, Ingress::Below, LeafAction::ToHosts(0b101)),
        (&hosts, Ingress::Above, LeafAction::ToAgent),
    ] {
        assert_eq!(leaf(&format, label, ingress), action);
        let guarded = |kind, is_from_agent| guarded_leaf(&format, (kind, label), ingress, is_from_agent);
        let (names_hosts, goes_up) =
            (matches!(action, LeafAction::ToHosts(_)), matches!(action, LeafAction::Up(_)));
        for kind in LabelKind::ALL {
            let asks = goes_up && kind == LabelKind::Asks;
            assert_eq!(guarded(kind, true), if asks { Err(LeafRefusal::Kind) } else { Ok(action) });
            let only_agents = names_hosts || goes_up && kind == LabelKind::Spine;
            let expected = if only_agents { Err(LeafRefusal::NotAnAgent) } else { guarded(kind, true) };
            assert_eq!(guarded(kind, false), expected);
        }
    }
}

#[test]
fn devices_are_told_once() {
    let entry = |spine, leaf| SpineState { spine, leaf };
    let update = Update {
        source_label: true,
        leafs: vec![4, 9],
        added: vec![entry(50, 1), entry(50, 2), entry(51, 1)],
        removed: vec![entry(51, 2), entry(52, 1), entry(52, 3)],
    };
    // The source, two leafs, and the spines 50, 51 and 52; the last one only drops entries.
    assert_eq!((update.messages(), update.urgent_messages()), (6, 5));
    assert_eq!((Update::default().messages(), Update::default().urgent_messages()), (0, 0));
    let label = Update { source_label: true, ..Update::default() };
    assert_eq!(label.messages(), 1);
}

#[test]
fn labels_have_sizes_that_bitmaps_hold() {
    let planner =
        |leafs, hosts, pods| LabelPlanner::new(Clos::new(pods, leafs, 1, hosts, 1).unwrap(), 9).map(drop);
    assert_eq!(planner(128, 128, 128), Ok(()));
    for (leafs, hosts, pods) in [(129, 1, 1), (1, 129, 1), (1, 1, 129)] {
        assert!(matches!(
            planner(leafs, hosts, pods),
            Err(LabelError::TooManyPorts { value: 129, limit: 128, .. })
        ));
    }
    for (bits, fits) in [(0, false), (1, true), (1024, true), (1025, false)] {
        assert_eq!(LabelPlanner::new(k48(), bits).is_ok(), fits, "{bits}");
    }
}

#[test]
fn two_pods_fit_the_filter_without_state() {
    let mut planner = LabelPlanner::new(k48(), 69).unwrap();
    let mut state = 9;
    for session in 0..200 {
        let pods = [next(&mut state) % 48, next(&mut state) % 48];
        let mut hosts = BTreeSet::new();
        for _ in 0..60 {
            let pod = pods[(next(&mut state) % 2) as usize];
            hosts.insert((pod * 576 + next(&mut state) % 576) as Node);
        }
        let hosts: Vec<Node> = hosts.into_iter().collect();
        let plan = planner.plan(session, hosts[0], &hosts[1..], &Failures::none()).unwrap();
        assert_eq!(plan.spine_state, [], "pods {pods:?}");
        check(&planner, session, hosts[0], &plan, &hosts[1..].iter().copied().collect());
    }
}

/// A core that fails costs a message to the source where links keep their buckets; what a spine had is not
/// asked back from it.
#[test]
fn failures_touch_few_switches() {
    let mut planner = LabelPlanner::with_options(k48(), LabelOptions::plain(69)).unwrap();
    let mut state = 5;
    for session in 0..30 {
        let source = (next(&mut state) % 27_648) as Node;
        let receivers = draw(&mut state, 40, 27_648, source);
        let plan = planner.plan(session, source, &receivers, &Failures::none()).unwrap();
        let (tree, clos) = (plan.tree.clone(), *planner.clos());
        let mut failures = Failures::none();
        failures.fail_node(clos.core(tree.path.plane, tree.path.core));
        let mut running = Session::new(source, plan.clone());
        let update = running.replan(&mut planner, session, &failures).unwrap();
        assert_eq!((update.messages(), update.source_label), (1, true));
        check(&planner, session, source, running.plan(), &receivers.iter().copied().collect());
        let dead = clos.spine(tree.pods[0].pod, tree.path.plane);
        let mut failures = Failures::none();
        failures.fail_node(dead);
        let mut running = Session::new(source, plan);
        let update = running.replan(&mut planner, session, &failures).unwrap();
        assert!(update.removed.iter().all(|entry| entry.spine != dead));
        assert_ne!(running.plan().tree.path.plane, tree.path.plane);
        check(&planner, session, source, running.plan(), &receivers.into_iter().collect());
    }
}

#[test]
fn trees_through_different_cores_share_no_spine() {
    let mut planner = LabelPlanner::new(k48(), 69).unwrap();
    let receivers = [5, 600, 7000, 27_000];
    let plans = planner.plan_trees(9, 0, &receivers, &Failures::none(), 24).unwrap();
    let planes: BTreeSet<u32> = plans.iter().map(|plan| plan.tree.path.plane).collect();
    assert_eq!(planes.len(), 24);
    for plan in &plans {
        assert_eq!(plan.leaf_hosts, plans[0].leaf_hosts);
        check(&planner, 9, 0, plan, &receivers.into());
    }
}

#[test]
fn wrong_sessions_are_named() {
    let mut planner = LabelPlanner::new(clos("fat-tree:4,3"), 8).unwrap();
    let mut refuse = |source, receivers: &[Node]| {
        planner.plan(0, source, receivers, &Failures::none()).unwrap_err().to_string()
    };
    assert!(refuse(0, &[16]).contains("node 16 is not a host"));
    assert!(refuse(3, &[1, 3]).contains("host 3 is the source"));
    assert!(refuse(3, &[]).contains("no receivers"));
    let large = Clos::leaf_spine(200, 4, 4).unwrap();
    assert!(LabelPlanner::new(large, 69).unwrap_err().to_string().contains("200"));
    assert!(LabelPlanner::new(k48(), 0).unwrap_err().to_string().contains("1 to 1024"));
}

#[test]
fn failures_are_gone_around_or_named() {
    let network: Network = "fat-tree:4,3".parse().unwrap();
    let mut planner = LabelPlanner::new(clos("fat-tree:4,3"), 16).unwrap();
    let receivers: Vec<Node> = (1..16).collect();
    for link in 0..network.link_count() {
        let mut failures = Failures::none();
        failures.fail_link(link);
        match planner.plan(3, 0, &receivers, &failures) {
            Err(error) => assert_eq!((link, error), (0, LabelError::Disconnected { host: 0 })),
            Ok(plan) => {
                let lost: Vec<Node> = if link < 16 { vec![link] } else { Vec::new() };
                assert_eq!(plan.left_out, lost);
                let session = Session::new(0, plan.clone());
                assert!(!session.uses_link(&planner, link), "link {link}");
                let kept = receivers.iter().copied().filter(|host| !lost.contains(host)).collect();
                check(&planner, 3, 0, &plan, &kept);
            }
        }
    }
    let mut failures = Failures::none();
    failures.fail_node(planner.clos().spine(0, 0));
    let plan = planner.plan(3, 0, &receivers, &failures).unwrap();
    assert!(plan.left_out.is_empty() && plan.tree.path.plane == 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    /// Exactly the receivers, whatever the network, the filter and the group.
    #[test]
    fn exactly_the_receivers_always(
        which in 0usize..7,
        filter in 1u32..200,
        plain in any::<bool>(),
        paths_tried in 0u32..9,
        seed in any::<u64>(),
        size in 1usize..60,
    ) {
        let texts = [
            "fat-tree:4,3", "fat-tree:8,3", "leaf-spine:7,3,5", "clos:5,6,2,3,1",
            "clos:12,8,4,8,1", "leaf-spine:1,1,9", "clos:3,20,2,2,4",
        ];
        let hash = if plain { LinkHash::Scattered } else { LinkHash::InRow };
        let options = LabelOptions { hash, paths_tried, ..LabelOptions::new(filter) };
        let mut planner = LabelPlanner::with_options(clos(texts[which]), options).unwrap();
        let mut state = seed;
        let hosts = planner.clos().hosts();
        let source = (next(&mut state) % u64::from(hosts)) as Node;
        let receivers = draw(&mut state, size, hosts, source);
        let plan = planner.plan(seed, source, &receivers, &Failures::none()).unwrap();
        check(&planner, seed, source, &plan, &receivers.into_iter().collect());
    }

    /// After any joins and leaves the session's state is what planning it anew on the same plane gives.
    #[test]
    fn updates_equal_planning_anew(filter in 1u32..40, seed in any::<u64>(), events in 1usize..60) {
        let options = LabelOptions { paths_tried: 1, ..LabelOptions::new(filter) };
        let mut planner = LabelPlanner::with_options(clos("fat-tree:8,3"), options).unwrap();
        let hosts = planner.clos().hosts();
        let mut state = seed;
        let source = (next(&mut state) % u64::from(hosts)) as Node;
        let mut members: BTreeSet<Node> = draw(&mut state, 6, hosts, source).into_iter().collect();
        let list: Vec<Node> = members.iter().copied().collect();
        let plan = planner.plan(seed, source, &list, &Failures::none()).unwrap();
        let mut known: BTreeSet<SpineState> = plan.spine_state.iter().copied().collect();
        let mut session = Session::new(source, plan);
        for _ in 0..events {
            let host = (next(&mut state) % u64::from(hosts)) as Node;
            if host == source { continue; }
            let update = if members.contains(&host) && members.len() > 1 {
                members.remove(&host);
                session.leave(&planner, host).unwrap()
            } else {
                members.insert(host);
                session.join(&planner, host).unwrap()
            };
            prop_assert!(update.removed.iter().all(|entry| known.remove(entry)));
            prop_assert!(update.added.iter().all(|entry| known.insert(*entry)));
            let list: Vec<Node> = members.iter().copied().collect();
            let anew = planner.plan(seed, source, &list, &Failures::none()).unwrap();
            prop_assert_eq!(session.plan(), &anew);
            prop_assert_eq!(&known, &anew.spine_state.iter().copied().collect());
        }
        check(&planner, seed, source, session.plan(), &members);
    }
}
