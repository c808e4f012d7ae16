//! Laws of the networks, checked from outside: sizes of the papers, ports that are given out once, digits
//! that make up a number, failures that a second count agrees with, and light that is followed fibre by
//! fibre.

use std::collections::{BTreeMap, BTreeSet};

use polycast_topology::optics::{
    Cascade, PowerBudget, Stage, racks_reachable, splitter_loss_db, splitters_needed,
};
use polycast_topology::{
    BCube, BitSet, Clos, CompactGraph, Failures, FatTree, Graph, Hybrid, Kind, Network, Shufflecast,
    TopologyError, Torus, Wiring,
};
use proptest::prelude::*;

const NETWORKS: [&str; 9] = [
    "bcube:4,2",
    "bcube:3,3",
    "torus:4,2",
    "torus:3,3",
    "fat-tree:4,3",
    "fat-tree:6,2",
    "leaf-spine:3,2,4",
    "clos:3,2,2,4,1",
    "clos:2,2,3,1,2",
];

fn network(text: &str) -> Network {
    text.parse().unwrap()
}

/// The array form of a network is the network.
#[test]
fn arrays_are_the_network() {
    for text in NETWORKS {
        let graph = network(text);
        let arrays = CompactGraph::new(&graph);
        assert_eq!(arrays.node_count(), graph.node_count(), "{text}");
        assert_eq!(arrays.server_count(), graph.server_count(), "{text}");
        assert_eq!(arrays.link_count(), graph.link_count(), "{text}");
        assert_eq!(arrays.arc_count(), 2 * graph.link_count(), "{text}");
        for node in 0..graph.node_count() {
            let targets: Vec<u32> =
                (0..graph.port_count(node)).map(|port| graph.neighbor(node, port)).collect();
            assert_eq!(arrays.targets(node), targets, "{text} {node}");
            for (arc, port) in arrays.arcs(node).zip(0..) {
                let link = graph.link(node, port);
                assert!([arc, arrays.reverse(arc)].contains(&arrays.arc_of_link(link)), "{text} {node}");
                assert_eq!(arrays.reverse(arrays.reverse(arc)), arc);
                assert_eq!(graph.port_to(node, arrays.target(arc)), Some(port));
            }
            assert_eq!(graph.port_to(node, node), None);
        }
    }
}

/// Nodes, servers and links as the papers count them.
#[test]
fn sizes_are_the_papers() {
    for (text, servers, nodes, links) in [
        // n^k servers with k ports, k n^(k-1) switches.
        ("bcube:4,2", 16, 24, 32),
        ("bcube:8,4", 4_096, 6_144, 16_384),
        // n^k servers, k n^k links.
        ("torus:3,3", 27, 27, 81),
        ("torus:16,3", 4_096, 4_096, 12_288),
        // 2 (n/2)^k servers, (2k - 1) (n/2)^(k-1) switches, k layers of as many links.
        ("fat-tree:4,3", 16, 36, 48),
        ("fat-tree:48,3", 27_648, 30_528, 82_944),
        ("fat-tree:4,4", 32, 88, 128),
        ("fat-tree:6,2", 18, 27, 36),
        ("leaf-spine:3,2,4", 12, 17, 18),
        ("clos:3,2,2,4,1", 24, 38, 42),
    ] {
        let graph = network(text);
        let found = (graph.server_count(), graph.node_count(), graph.link_count());
        assert_eq!(found, (servers, nodes, links), "{text}");
    }
}

#[test]
fn networks_that_cannot_be_are_refused_at_their_bounds() {
    let named = |result: Result<u32, TopologyError>, what: &str| match result {
        Err(TopologyError::Size { what: named, .. }) => assert_eq!(named, what),
        other => panic!("{what}: {other:?}"),
    };
    let nodes = |text: &str| text.parse::<Network>().map(|network| network.node_count());
    for (bad, what, good) in [
        ("bcube:1,2", "n", "bcube:2,2"),
        ("bcube:2,0", "k", "bcube:2,1"),
        ("torus:2,2", "n", "torus:3,2"),
        ("torus:3,0", "k", "torus:3,1"),
        ("fat-tree:2,2", "n", "fat-tree:4,2"),
        ("fat-tree:5,2", "n", "fat-tree:6,2"),
        ("fat-tree:4,1", "k", "fat-tree:4,2"),
        ("leaf-spine:0,1,1", "leafs", "leaf-spine:1,1,1"),
        ("leaf-spine:1,0,1", "spines", "leaf-spine:1,1,1"),
        ("leaf-spine:1,1,0", "hosts", "leaf-spine:1,1,1"),
        ("clos:0,1,1,1,1", "pods", "clos:1,1,1,1,1"),
        ("clos:2,1,1,1,0", "cores", "clos:2,1,1,1,1"),
    ] {
        named(nodes(bad), what);
        assert!(nodes(good).is_ok(), "{good}");
    }
    named(Shufflecast::new(1, 2).map(|network| network.tors()), "p");
    named(Shufflecast::new(2, 0).map(|network| network.tors()), "k");
    assert_eq!(Shufflecast::new(2, 1).map(|network| network.tors()), Ok(2));
}

/// 2^24 nodes are the most; what is larger, or too large to count, is refused.
#[test]
fn networks_have_at_most_16777216_nodes() {
    let nodes = |text: &str| text.parse::<Network>().map(|network| network.node_count());
    // 2^23 servers and as many wires up to one core each: exactly 2^24 nodes are left out, one server less is
    // not.
    assert_eq!(nodes("leaf-spine:1,1,16777214"), Ok(1 << 24));
    for text in [
        "leaf-spine:1,1,16777215",
        "bcube:4000000000,4000000000",
        "bcube:100,4",
        "torus:300,4",
        "torus:3,4000000000",
        "fat-tree:512,3",
        "fat-tree:4000000000,3",
        "clos:4000000000,4000000000,4000000000,4000000000,4000000000",
    ] {
        assert!(matches!(nodes(text), Err(TopologyError::TooLarge { limit: 16_777_216, .. })), "{text}");
    }
    assert!(Shufflecast::new(4_000_000_000, 4).is_err() && Shufflecast::new(2, 20).is_err());
    assert!(Shufflecast::new(2, 19).is_ok());
    // Wires: 2^14 leafs and 2^14 spines have 2^28 of them, which are too many.
    assert!(matches!(nodes("leaf-spine:16384,16384,1"), Err(TopologyError::TooLarge { .. })));
    assert!(nodes("leaf-spine:16384,16383,1").is_ok());
    assert!(matches!(nodes("clos:2,1,8192,1,16384"), Err(TopologyError::TooLarge { .. })));
}

#[test]
fn texts_are_the_network_again() {
    for text in NETWORKS {
        assert_eq!(network(text).to_string(), text);
        assert_eq!(
            network(text).as_clos().is_some(),
            text.contains("leaf") || text.contains("clos") || text == "fat-tree:4,3"
        );
    }
    assert_eq!(network("fat-tree:4"), network("fat-tree:4,3"));
    assert_eq!(network(" torus : 4 , 2 "), network("torus:4,2"));
    // One pod with cores is no leaf-spine network.
    assert_eq!(network("clos:1,2,2,1,1").to_string(), "clos:1,2,2,1,1");
    assert_eq!(network("clos:1,2,2,1,0").to_string(), "leaf-spine:2,2,1");
}

#[test]
fn nodes_and_links_that_are_not_there_are_named() {
    let graph = network("bcube:4,2");
    assert_eq!(graph.checked_node(23), Ok(23));
    for node in [24, 1 << 32, u64::MAX] {
        assert!(graph.checked_node(node).unwrap_err().to_string().contains("0 to 23"), "{node}");
        assert!(graph.link_between(0, node).is_err() && graph.link_between(node, 0).is_err());
    }
    for node in 0..24 {
        for port in 0..graph.port_count(node) {
            let peer = graph.neighbor(node, port);
            assert_eq!(graph.link_between(node.into(), peer.into()), Ok(graph.link(node, port)));
        }
    }
    // Up to eight links are named, and how many more there are.
    let links = |ports: u32| {
        let star = Network::Clos(Clos::leaf_spine(1, 1, ports).unwrap());
        star.link_between((ports).into(), ports.into()).unwrap_err().to_string()
    };
    assert!(links(6).ends_with("links to 0, 1, 2, 3, 4, 5, 7"), "{}", links(6));
    assert!(links(7).ends_with("links to 0, 1, 2, 3, 4, 5, 6, 8"), "{}", links(7));
    assert!(links(8).ends_with("links to 0, 1, 2, 3, 4, 5, 6, 7, 1 more"), "{}", links(8));
    assert!(links(20).ends_with("7, 13 more"), "{}", links(20));
}

/// Datacast, appendix A: servers are neighbours of a switch where they differ in its digit alone; servers of
/// a torus where they differ by one in one digit.
#[test]
fn digits_tell_the_neighbours() {
    let digits = |mut number: u32, base: u32, count: u32| -> Vec<u32> {
        (0..count).map(|_| (number % base, number /= base).0).collect()
    };
    let (n, k) = (3, 3);
    let bcube = BCube::new(n, k).unwrap();
    for server in 0..27 {
        let own = digits(server, n, k);
        for level in 0..k {
            assert_eq!(bcube.digit(server, level), own[level as usize]);
            let switch = bcube.switch_of(server, level);
            assert_eq!(bcube.neighbor(server, level), switch);
            assert_eq!(bcube.switch_position(switch).0, level);
            for port in 0..n {
                let mut expected = own.clone();
                expected[level as usize] = port;
                assert_eq!(digits(bcube.server_at(switch, port), n, k), expected);
            }
        }
    }
    let torus = Torus::new(n, k).unwrap();
    assert_eq!((torus.side(), torus.dimensions(), bcube.ports(), bcube.levels()), (n, k, n, k));
    for server in 0..27 {
        for port in 0..2 * k {
            let mut expected = digits(server, n, k);
            let digit = &mut expected[port as usize / 2];
            *digit = (*digit + if port % 2 == 0 { 1 } else { n - 1 }) % n;
            assert_eq!(digits(torus.neighbor(server, port), n, k), expected, "{server} port {port}");
        }
    }
}

/// Datacast, appendix A.1: two servers meet at the lowest layer that their numbers share a subtree of.
#[test]
fn a_fat_tree_is_layered() {
    for (n, k) in [(4, 2), (4, 3), (6, 3), (4, 4)] {
        let tree = FatTree::new(n, k).unwrap();
        assert_eq!((tree.ports(), tree.layers(), tree.half()), (n, k, n / 2));
        let servers = tree.server_count();
        assert_eq!((servers, tree.switches_per_layer()), (2 * (n / 2).pow(k), 2 * (n / 2).pow(k - 1)));
        let mut seen = BTreeMap::<u32, u32>::new();
        for node in 0..tree.node_count() {
            let (layer, index) = tree.position(node);
            assert_eq!(tree.node_at(layer, index), node);
            *seen.entry(layer).or_default() += 1;
            let down =
                (0..tree.port_count(node)).filter(|&port| tree.position(tree.neighbor(node, port)).0 < layer);
            assert_eq!(down.count() as u32, tree.down_ports(layer));
            for port in 0..tree.port_count(node) {
                let other = tree.position(tree.neighbor(node, port)).0;
                assert_eq!(other.abs_diff(layer), 1);
                assert_eq!(port < tree.down_ports(layer), other < layer, "down first");
            }
        }
        let expected = (0..=k).map(|layer| match layer {
            0 => (0, servers),
            layer if layer == k => (k, tree.switches_per_layer() / 2),
            layer => (layer, tree.switches_per_layer()),
        });
        assert_eq!(seen, expected.collect());
        let reach = |node| below(&tree, node);
        for switch in servers..tree.node_count() {
            let (layer, _) = tree.position(switch);
            let under = if layer == k { servers } else { (n / 2).pow(layer) };
            assert_eq!(reach(switch).len() as u32, under, "servers under a switch of layer {layer}");
        }
        assert_eq!(tree.as_clos().is_some(), k == 3);
    }
}

/// The servers below a switch of a fat-tree.
fn below(tree: &FatTree, node: u32) -> BTreeSet<u32> {
    let (layer, _) = tree.position(node);
    if layer == 0 {
        return BTreeSet::from([node]);
    }
    (0..tree.down_ports(layer)).flat_map(|port| below(tree, tree.neighbor(node, port))).collect()
}

/// Orca, section 3.2: each leaf sees every spine of its pod; the spines of a plane see the same cores.
#[test]
fn a_clos_network_is_wired_as_it_says() {
    let (pods, leafs, spines, hosts, cores) = (3, 4, 2, 5, 3);
    let clos = Clos::new(pods, leafs, spines, hosts, cores).unwrap();
    let sizes = (
        clos.pods(),
        clos.leafs_per_pod(),
        clos.spines_per_pod(),
        clos.hosts_per_leaf(),
        clos.cores_per_spine(),
    );
    assert_eq!(sizes, (pods, leafs, spines, hosts, cores));
    assert_eq!((clos.hosts(), clos.leafs(), clos.spines(), clos.cores()), (60, 12, 6, 6));
    for host in 0..clos.hosts() {
        assert_eq!((clos.kind(host), clos.leaf_index_of(host)), ((Kind::Host, host), host / hosts));
        assert_eq!(clos.port_to(clos.leaf(host / hosts), host), Some(host % hosts));
    }
    for pod in 0..pods {
        for leaf in 0..leafs {
            let index = pod * leafs + leaf;
            assert_eq!(clos.kind(clos.leaf(index)), (Kind::Leaf, index));
            for plane in 0..spines {
                assert_eq!(clos.neighbor(clos.leaf(index), hosts + plane), clos.spine(pod, plane));
                assert_eq!(clos.port_to(clos.spine(pod, plane), clos.leaf(index)), Some(leaf));
            }
        }
        for plane in 0..spines {
            assert_eq!(clos.kind(clos.spine(pod, plane)), (Kind::Spine, pod * spines + plane));
            for up in 0..cores {
                assert_eq!(clos.neighbor(clos.spine(pod, plane), leafs + up), clos.core(plane, up));
                assert_eq!(clos.port_to(clos.core(plane, up), clos.spine(pod, plane)), Some(pod));
                assert_eq!(clos.kind(clos.core(plane, up)), (Kind::Core, plane * cores + up));
            }
        }
    }
}

proptest! {
    /// A link works exactly where neither it nor one of its two ends has failed, seen from both ends.
    #[test]
    fn failures_agree_with_lists(
        which in 0..NETWORKS.len(),
        steps in proptest::collection::vec((0u8..4, any::<u32>()), 0..30),
    ) {
        let graph = network(NETWORKS[which]);
        let mut failures = Failures::none();
        let (mut nodes, mut links) = (BTreeSet::new(), BTreeSet::new());
        for (step, number) in steps {
            let (node, link) = (number % graph.node_count(), number % graph.link_count());
            match step {
                0 => prop_assert_eq!(failures.fail_node(node), nodes.insert(node)),
                1 => prop_assert_eq!(failures.fail_link(link), links.insert(link)),
                2 => prop_assert_eq!(failures.repair_node(node), nodes.remove(&node)),
                _ => prop_assert_eq!(failures.repair_link(link), links.remove(&link)),
            }
            prop_assert_eq!(failures.is_empty(), nodes.is_empty() && links.is_empty());
        }
        prop_assert_eq!(failures.nodes().iter().collect::<Vec<_>>(), nodes.iter().copied().collect::<Vec<_>>());
        prop_assert_eq!(failures.links().iter().collect::<Vec<_>>(), links.iter().copied().collect::<Vec<_>>());
        for node in 0..graph.node_count() {
            prop_assert_eq!(failures.node_failed(node), nodes.contains(&node));
            for port in 0..graph.port_count(node) {
                let peer = graph.neighbor(node, port);
                let dead = nodes.contains(&node) || nodes.contains(&peer) || links.contains(&graph.link(node, port));
                prop_assert_eq!(failures.link_works(&graph, node, port), !dead);
                prop_assert_eq!(failures.link_works(&graph, peer, graph.port_to(peer, node).unwrap()), !dead);
            }
        }
        failures.clear();
        prop_assert!(failures.is_empty() && failures.nodes().is_empty() && failures.links().is_empty());
        prop_assert_eq!(failures.nodes().iter().count() + failures.links().iter().count(), 0);
    }

    #[test]
    fn sets_of_bits_hold_what_was_put_in(values in proptest::collection::btree_set(0u32..400, 0..40), room in 0u32..300) {
        let set: BitSet = values.iter().copied().collect();
        prop_assert_eq!((set.len() as usize, set.is_empty()), (values.len(), values.is_empty()));
        for value in 0..500 {
            prop_assert_eq!(set.contains(value), values.contains(&value));
        }
        let empty = BitSet::with_size(room);
        prop_assert!(empty.is_empty() && empty.iter().next().is_none() && !empty.contains(room));
    }

    /// Every port of the circuit switch belongs to one fibre, one splitter's input or one of its outputs,
    /// without gaps.
    #[test]
    fn ports_of_a_circuit_switch_are_given_out_once(
        racks in 1u32..9, servers_per_rack in 1u32..4, ports_per_rack in 1u32..4,
        splitters in 0u32..6, splitter_fanout in 2u32..5,
    ) {
        let hybrid = Hybrid { racks, servers_per_rack, ports_per_rack, splitters, splitter_fanout };
        let fibres = (0..racks).flat_map(|rack| (0..ports_per_rack).map(move |uplink| hybrid.rack_port(rack, uplink)));
        let split = (0..splitters).flat_map(|splitter| {
            let outputs = (0..splitter_fanout).map(move |output| hybrid.splitter_output(splitter, output));
            core::iter::once(hybrid.splitter_input(splitter)).chain(outputs)
        });
        let ports: Vec<u32> = fibres.chain(split).collect();
        prop_assert_eq!(&ports, &(0..ports.len() as u32).collect::<Vec<_>>(), "in the order of the module's head");
        prop_assert_eq!(hybrid.ports_needed(), ports.len() as u64);
        prop_assert_eq!(hybrid.checked(ports.len() as u32), Ok(hybrid));
        prop_assert!(hybrid.checked(ports.len() as u32 - 1).is_err());
        for wrong in [
            Hybrid { racks: 0, ..hybrid },
            Hybrid { ports_per_rack: 0, ..hybrid },
            Hybrid { splitters: 1, splitter_fanout: 1, ..hybrid },
        ] {
            prop_assert!(wrong.checked(1_000).is_err());
        }
        let without_splitters = Hybrid { splitters: 0, splitter_fanout: 0, ..hybrid };
        prop_assert_eq!(without_splitters.checked(1_000), Ok(without_splitters));
    }
}

#[test]
fn a_hybrid_network_says_what_it_lacks() {
    let hybrid =
        Hybrid { racks: 2, servers_per_rack: 1, ports_per_rack: 3, splitters: 1, splitter_fanout: 4 };
    let what = |hybrid: Hybrid, ports| match hybrid.checked(ports) {
        Err(TopologyError::Size { what, value, .. }) => Some((what, value)),
        _ => None,
    };
    assert_eq!(what(hybrid, 11), None);
    assert_eq!(what(hybrid, 10), Some(("circuit switch ports", 11)));
    assert_eq!(what(Hybrid { racks: 0, ..hybrid }, 99), Some(("racks", 0)));
    assert_eq!(what(Hybrid { ports_per_rack: 0, ..hybrid }, 99), Some(("ports a rack", 0)));
    assert_eq!(what(Hybrid { splitter_fanout: 1, ..hybrid }, 99), Some(("splitter fanout", 1)));
}

/// Shufflecast, section III-A: a ToR feeds the next column's ToRs whose rows are its own row, shifted by one
/// digit.
#[test]
fn shufflecast_shifts_digits() {
    for (p, k) in [(2u32, 1u32), (2, 3), (3, 2), (3, 3), (4, 2)] {
        let network = Shufflecast::new(p, k).unwrap();
        assert_eq!((network.fanout(), network.columns(), network.rows()), (p, k, p.pow(k)));
        assert_eq!((network.tors(), network.partition_size()), (k * p.pow(k), p.pow(k - 1)));
        for tor in 0..network.tors() {
            let (column, row) = (network.column(tor), network.row(tor));
            assert_eq!((column, row, network.tor(column, row)), (tor / p.pow(k), tor % p.pow(k), tor));
            let digits: Vec<u32> = (0..k).map(|place| network.digit(row, place)).collect();
            assert_eq!(
                digits.iter().rev().fold(0, |number, digit| number * p + digit),
                row,
                "digits make up the row"
            );
            assert!(digits.iter().all(|&digit| digit < p));
            assert_eq!(network.partition(tor), digits[k as usize - 1]);
            let fed: Vec<u32> = network.children(tor).collect();
            assert_eq!((fed.len() as u32, fed[0]), (p, network.first_child(tor)));
            for (last, child) in fed.into_iter().enumerate() {
                assert_eq!(network.column(child), (column + 1) % k);
                let mut shifted = digits.clone();
                shifted.rotate_right(1);
                shifted[0] = last as u32;
                let found: Vec<u32> = (0..k).map(|place| network.digit(network.row(child), place)).collect();
                assert_eq!(found, shifted, "{p},{k}: {tor} feeds {child}");
            }
            let mirrors: Vec<u32> = network.mirrors(tor).collect();
            assert!(mirrors.contains(&tor));
            assert_eq!(
                mirrors.iter().map(|&mirror| network.partition(mirror)).collect::<Vec<_>>(),
                (0..p).collect::<Vec<_>>()
            );
            for mirror in mirrors {
                assert_eq!(
                    (network.column(mirror), network.children(mirror)),
                    (column, network.children(tor))
                );
            }
        }
    }
}

/// Among all Shufflecasts up to a fanout, by looking at every one.
#[test]
fn instances_are_the_best_of_all() {
    let all: Vec<Shufflecast> = (2..=8)
        .flat_map(|fanout| (2..12).filter_map(move |columns| Shufflecast::new(fanout, columns).ok()))
        .collect();
    for tors in 1..1_100 {
        let exact = all.iter().filter(|network| network.tors() == tors);
        let expected = exact.min_by_key(|network| (network.columns(), network.fanout())).copied();
        assert_eq!(Shufflecast::exactly(tors, 8), expected, "{tors}");
        let enough = all.iter().filter(|network| network.tors() >= tors);
        let expected = enough.min_by_key(|network| (network.tors(), network.columns())).copied();
        assert_eq!(Shufflecast::at_least(tors, 8), expected, "{tors}");
    }
    assert_eq!(Shufflecast::at_least(9, 2).map(|network| network.tors()), Some(24));
}

/// Section III-A1: the logical ToRs are dealt out among the physical ones, all of them, as evenly as numbers
/// allow.
#[test]
fn wirings_deal_out_all_splitters() {
    for (fanout, columns) in [(2, 2), (3, 2), (2, 3)] {
        let logical = Shufflecast::new(fanout, columns).unwrap();
        for tors in 1..=logical.tors() {
            let wiring = Wiring::new(logical, tors).unwrap();
            assert_eq!((wiring.logical(), wiring.tors()), (logical, tors));
            let shares: Vec<Vec<u32>> = (0..tors).map(|tor| wiring.logical_of(tor)).collect();
            let all: BTreeSet<u32> = shares.iter().flatten().copied().collect();
            assert_eq!(all, (0..logical.tors()).collect());
            assert_eq!(shares.iter().map(Vec::len).sum::<usize>(), all.len(), "each for one");
            for (tor, share) in (0..).zip(&shares) {
                assert!(share.iter().all(|&logical| wiring.physical(logical) == tor));
            }
            let (most, least) = (shares.iter().map(Vec::len).max(), shares.iter().map(Vec::len).min());
            assert!(most.unwrap() - least.unwrap() <= 1);
            assert_eq!(wiring.doubled() as usize, shares.iter().filter(|share| share.len() > 1).count());
        }
        assert!(Wiring::new(logical, 0).is_err() && Wiring::new(logical, logical.tors() + 1).is_err());
    }
    // 1, 2 has 2 ToRs, 2, 2 has 8 and 2, 3 has 24.
    let smallest = |tors| Wiring::smallest(tors, 2).map(|wiring| (wiring.logical().tors(), wiring.tors()));
    assert_eq!(
        [1, 2, 3, 8, 9, 24].map(|tors| smallest(tors).unwrap()),
        [(2, 1), (2, 2), (8, 3), (8, 8), (24, 9), (24, 24)]
    );
    assert!(
        Wiring::smallest(5, 1).is_err()
            && Wiring::smallest(0, 2).is_err()
            && Wiring::smallest(u32::MAX, 2).is_err()
    );
}

/// Shufflecast, table I, and half a decibel of it: 4, 7.3 and 10.6 dB.
#[test]
fn splitters_lose_what_they_split() {
    for (fanout, loss) in [(1, 1.0), (2, 4.01), (4, 7.02), (8, 10.03), (16, 13.04)] {
        assert!(
            (splitter_loss_db(fanout) - loss).abs() < 0.01,
            "1:{fanout} loses {}",
            splitter_loss_db(fanout)
        );
    }
    assert_eq!(splitter_loss_db(0), splitter_loss_db(1));
}

/// Blast, section III-C: m = ceil((r - 2) / (N - 1)), and the largest group of k splitters.
#[test]
fn cascades_have_the_papers_sizes() {
    assert_eq!([1, 2, 3, 5, 6, 8, 9].map(|racks| splitters_needed(racks, 4)), [0, 0, 1, 1, 2, 2, 3]);
    assert_eq!([0, 1, 2, 3].map(|k| racks_reachable(k, 4)), [2, 5, 8, 11]);
    assert_eq!((splitters_needed(9, 0), splitters_needed(9, 1), splitters_needed(9, 2)), (7, 7, 7));
    assert_eq!(
        (racks_reachable(3, 0), racks_reachable(u32::MAX, 3), racks_reachable(u32::MAX, u32::MAX)),
        (2, u32::MAX, u32::MAX)
    );
}

/// A cascade of as few splitters as possible and as flat as possible, fed output by output.
#[test]
fn cascades_are_flat_trees() {
    for fanout in 2..6 {
        for receivers in 0..60 {
            let cascade = Cascade::new(receivers, fanout);
            let count = splitters_needed(receivers + 1, fanout);
            assert_eq!(cascade.stages.len() as u32, count, "{receivers} receivers of 1:{fanout}");
            let mut fed = BTreeSet::new();
            for (splitter, &Stage { fed_by, depth }) in (0..).zip(&cascade.stages) {
                match fed_by {
                    None => assert_eq!((splitter, depth), (0, 1)),
                    Some((from, output)) => {
                        assert!(from < splitter && output < fanout && fed.insert((from, output)));
                        assert_eq!(depth, cascade.stages[from as usize].depth + 1);
                    }
                }
            }
            let deepest =
                cascade.receivers.iter().map(|&(splitter, _)| cascade.stages[splitter as usize].depth).max();
            assert_eq!(cascade.depth(), deepest.unwrap_or(0));
            // d levels have at most fanout^d outputs, so fewer levels would not do.
            let depth = cascade.depth();
            assert!(receivers <= 1 || fanout.pow(depth) >= receivers && fanout.pow(depth - 1) < receivers);
            assert!(
                cascade
                    .receivers
                    .iter()
                    .all(|&output| output.0 < count && output.1 < fanout && fed.insert(output))
            );
        }
    }
    assert_eq!(Cascade::new(5, 0), Cascade::new(5, 2));
}

/// Returns the least light left at a receiver, followed splitter by splitter; `None` if it goes out on the
/// way. The light may not get weaker than the budget before an amplifier or a receiver, nor stronger than it
/// was launched.
fn light(budget: &PowerBudget, cascade: &Cascade, amplified: &BTreeSet<u32>) -> Option<f64> {
    let mut behind: Vec<f64> = Vec::new();
    for (splitter, stage) in (0..).zip(&cascade.stages) {
        let fed = stage.fed_by.map_or(budget.budget_db, |(from, _)| behind[from as usize]);
        let mut here = fed - budget.switch_loss_db;
        if amplified.contains(&splitter) {
            if here < 0.0 {
                return None;
            }
            here = (here + budget.amplifier_gain_db).min(budget.budget_db);
        }
        behind.push(here - budget.splitter_loss_db);
    }
    let fed: Vec<f64> = if cascade.stages.is_empty() {
        vec![budget.budget_db]
    } else {
        cascade.receivers.iter().map(|&(splitter, _)| behind[splitter as usize]).collect()
    };
    let weakest = fed.into_iter().map(|fed| fed - budget.switch_loss_db).fold(f64::MAX, f64::min);
    (weakest >= 0.0).then_some(weakest)
}

/// The splitters that the light of a receiver passes, the last one first.
fn way(cascade: &Cascade, receiver: (u32, u32)) -> Vec<u32> {
    let mut way = vec![receiver.0];
    while let Some((from, _)) = cascade.stages[way[way.len() - 1] as usize].fed_by {
        way.push(from);
    }
    way
}

proptest! {
    /// Blast, section II: the plan's margin is the light that is left where it is followed, and there are no
    /// more amplifiers on any way than the longest one needs. Losses are sixteenths of a decibel, so that
    /// sums are exact.
    #[test]
    fn light_reaches_all_with_few_amplifiers(
        receivers in 1u32..20, fanout in 2u32..5,
        budget in 0i32..320, switch in 0i32..64, splitter in 16i32..160, gain in prop_oneof![Just(0i32), 0i32..400],
    ) {
        let db = |sixteenths: i32| f64::from(sixteenths) / 16.0;
        let budget = PowerBudget {
            budget_db: db(budget), switch_loss_db: db(switch), splitter_loss_db: db(splitter), amplifier_gain_db: db(gain),
        };
        let cascade = Cascade::new(receivers, fanout);
        match budget.plan(&cascade) {
            Ok(plan) => {
                let amplified: BTreeSet<u32> = plan.amplified.iter().copied().collect();
                prop_assert_eq!(amplified.len(), plan.amplified.len());
                prop_assert_eq!(light(&budget, &cascade, &amplified), Some(plan.margin_db));
                prop_assert!(plan.margin_db <= budget.budget_db - budget.switch_loss_db);
                prop_assert!(gain > 0 || amplified.is_empty());
                let fewest = fewest_amplifiers(&budget, cascade.depth() as usize);
                for &receiver in &cascade.receivers {
                    let way = way(&cascade, receiver);
                    let placed = way.iter().filter(|splitter| amplified.contains(splitter)).count();
                    prop_assert!(Some(placed) <= fewest, "on the way {:?}", way);
                    prop_assert!(way.len() < cascade.depth() as usize || Some(placed) == fewest, "on the way {:?}", way);
                }
            }
            Err(error) => {
                prop_assert_eq!(light(&budget, &cascade, &BTreeSet::new()), None);
                prop_assert_eq!((error.budget_db, error.receivers), (budget.budget_db, cascade.receivers.len() as u32));
                prop_assert!(error.loss_db > error.budget_db);
                // Even the best places do not help the receiver that is farthest away.
                prop_assert_eq!(fewest_amplifiers(&budget, cascade.depth() as usize), None);
            }
        }
    }
}

/// The fewest amplifiers with which light passes this many splitters in a row, by trying all places.
fn fewest_amplifiers(budget: &PowerBudget, splitters: usize) -> Option<usize> {
    let stages = (0..splitters as u32)
        .map(|at| Stage { fed_by: at.checked_sub(1).map(|before| (before, 0)), depth: at + 1 })
        .collect();
    let receivers = (splitters as u32).checked_sub(1).map(|last| (last, 0)).into_iter().collect();
    let row = Cascade { stages, receivers };
    let choices = (0u32..1 << splitters).filter(|places| {
        let places = (0..splitters as u32).filter(|at| places >> at & 1 == 1).collect();
        light(budget, &row, &places).is_some()
    });
    choices.map(|places| places.count_ones() as usize).min()
}

/// The budgets of Shufflecast's table I over the splitters of its list, and amplifiers where they are due.
#[test]
fn amplifiers_come_late_and_never_above_the_launch() {
    let budget =
        PowerBudget { budget_db: 14.0, switch_loss_db: 2.0, splitter_loss_db: 7.0, amplifier_gain_db: 100.0 };
    // One splitter: 14 - 2 - 7 - 2 = 3 dB are left. The second one needs an amplifier, which lifts to 14 dB
    // and no higher: 14 - 7 - 2 = 5 dB are left behind it.
    let plan = budget.plan(&Cascade::new(4, 4)).unwrap();
    assert_eq!((plan.amplified.len(), plan.margin_db), (0, 3.0));
    let plan = budget.plan(&Cascade::new(5, 4)).unwrap();
    assert_eq!((plan.amplified, plan.margin_db), (vec![1], 3.0));
    let plan = budget.plan(&Cascade::new(16, 4)).unwrap();
    assert_eq!((plan.amplified, plan.margin_db), (vec![1, 2, 3, 4], 5.0));
    // The last pass through the switch is counted: with 11 dB nothing is left, and with less there is no
    // light.
    let last =
        |budget_db| PowerBudget { budget_db, amplifier_gain_db: 0.0, ..budget }.plan(&Cascade::new(4, 4));
    assert_eq!(last(11.0).map(|plan| plan.margin_db), Ok(0.0));
    let dark = last(10.75).unwrap_err();
    assert_eq!((dark.loss_db, dark.budget_db, dark.receivers), (11.0, 10.75, 4));
    // A direct circuit passes the switch once.
    let direct =
        |budget_db| PowerBudget { budget_db, ..budget }.plan(&Cascade::new(1, 4)).map(|plan| plan.margin_db);
    assert_eq!((direct(2.0), direct(1.5).is_err()), (Ok(0.0), true));
}
