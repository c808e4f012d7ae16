//! Elmo, Orca's baseline, beside its own published logs: groups that fit headers, and traffic.

use std::collections::BTreeMap;
use std::time::Instant;

use polycast_planning::elmo::{ElmoLimits, ElmoRandom, SwitchPorts, encode_layer};
use polycast_topology::{Clos, Node};

use super::data_set::{SizeBin, count_size};
use crate::Row;
use crate::random::Random;
use crate::tenants;
use crate::tenants::Placement::{self, ClusteredAsRun, ScatteredAsRun};
use crate::tenants::Sizes::{self, Uniform, Wve};

/// One Elmo run to be compared with its logs.
#[derive(Clone, Copy, Debug)]
pub struct ElmoRun {
    /// The data set.
    pub placement: Placement,
    /// The sizes.
    pub sizes: Sizes,
    /// Rules of the leaf layer.
    pub rules_max: u32,
    /// Redundancy limit of the leaf layer.
    pub redundancy_max: u32,
    /// Entries that a leaf's table holds; without it 10,000 for a million groups.
    pub table_size: Option<u32>,
}

/// What a run of Elmo comes to.
#[derive(Clone, Debug, Default)]
pub struct ElmoResult {
    /// Groups.
    pub groups: u64,
    /// Groups that need neither default rules nor table entries in leafs.
    pub covered: u64,
    /// Links, in proportion to the least.
    pub traffic: f64,
    /// Entries of every leaf, and of the spines of every pod.
    pub leaf_entries: Vec<u32>,
    /// Entries of each spine of a pod, by pod.
    pub pod_entries: Vec<u32>,
    /// Switches with entries, by the group's size.
    pub by_size: Vec<SizeBin>,
    /// Bytes of all headers.
    pub header_bytes: u64,
    /// Bytes of the longest header.
    pub header_most: u32,
    /// Seconds of encoding.
    pub seconds: f64,
}

/// Bits of a header that do not depend on the group: the ports up of leaf and spine, and the core's pods.
const ELMO_FIXED_BITS: u32 = (48 + 4) + (48 + 4) + 12;
/// Spines of a pod of Elmo's network.
pub(super) const ELMO_SPINES: u32 = 4;

/// Encodes all groups of a data set.
///
/// # Panics
/// Never: the network exists.
#[must_use]
pub fn elmo_run(run: &ElmoRun, sessions: u32, seed: u64) -> ElmoResult {
    let clos = Clos::new(12, 48, ELMO_SPINES, 48, 1).expect("Elmo's network exists");
    let mut random = Random::new(seed);
    let tenants = tenants::tenants(&clos, run.placement, sessions, &mut random);
    // The table of a switch is as full as the groups of the whole run make it.
    let table_size = (10_000 * u64::from(sessions) / 1_000_000) as u32;
    let pods_limits =
        ElmoLimits { rules_max: 2, switches_per_rule_max: 3, redundancy_max: 6, table_size: 64_000 };
    let leaf_limits = ElmoLimits {
        rules_max: run.rules_max,
        switches_per_rule_max: 3,
        redundancy_max: run.redundancy_max,
        table_size: run.table_size.unwrap_or(table_size),
    };
    let mut coin = ElmoRandom::new(seed);
    let (mut ideal, mut sent) = (0u64, 0u64);
    let mut result =
        ElmoResult { leaf_entries: vec![0; 576], pod_entries: vec![0; 12], ..ElmoResult::default() };
    for tenant in &tenants {
        let mut hosts = tenant.hosts.clone();
        for _ in 0..tenant.groups {
            let size = tenants::group_size(run.sizes, hosts.len() as u32, &mut random) as usize;
            random.choose_first(&mut hosts, size);
            let (pods, leafs, members) = bitmaps(&hosts[..size]);
            let start = Instant::now();
            let pod_layer = encode_layer(&pods, &pods_limits, &mut result.pod_entries, &mut coin);
            let leaf_layer = encode_layer(&leafs, &leaf_limits, &mut result.leaf_entries, &mut coin);
            result.seconds += start.elapsed().as_secs_f64();
            result.groups += 1;
            result.covered +=
                u64::from(leaf_layer.switch_rules.is_empty() && leaf_layer.default_switches.is_empty());
            let bits = ELMO_FIXED_BITS + pod_layer.header_bits(48, 4) + leaf_layer.header_bits(48, 10);
            result.header_bytes += u64::from(bits.div_ceil(8));
            result.header_most = result.header_most.max(bits.div_ceil(8));
            let spines = ELMO_SPINES * pod_layer.switch_rules.len() as u32;
            count_size(&mut result.by_size, size - 1, spines + leaf_layer.switch_rules.len() as u32);
            let least = 3 + pods.len() as u64 + leafs.len() as u64 + members;
            let wrong_leafs = u64::from(pod_layer.redundant_ports);
            ideal += least;
            sent += least
                + u64::from(leaf_layer.redundant_ports)
                + wrong_leafs * (1 + u64::from(leaf_layer.default_ports.count_ones()));
        }
    }
    result.traffic = sent as f64 / ideal as f64;
    result
}

/// A group's bitmaps of leafs by pod and of hosts by leaf, and how many hosts it has.
fn bitmaps(hosts: &[Node]) -> (Vec<SwitchPorts>, Vec<SwitchPorts>, u64) {
    let mut by_leaf = BTreeMap::<u32, u128>::new();
    for &host in hosts {
        *by_leaf.entry(host / 48).or_default() |= 1 << (host % 48);
    }
    let mut by_pod = BTreeMap::<u32, u128>::new();
    for &leaf in by_leaf.keys() {
        *by_pod.entry(leaf / 48).or_default() |= 1 << (leaf % 48);
    }
    let count = by_leaf.values().map(|ports| u64::from(ports.count_ones())).sum();
    let list = |map: BTreeMap<u32, u128>| {
        map.into_iter().map(|(switch, ports)| SwitchPorts { switch, ports }).collect()
    };
    (list(by_pod), list(by_leaf), count)
}

/// Groups of a run in Elmo's logs.
const LOGGED_GROUPS: f64 = 998_500.0;
/// Rules in a header and redundancy limits of the logs.
const SETTINGS: [(u32, u32); 4] = [(10, 0), (10, 12), (30, 0), (30, 12)];

/// A data set of Elmo's logs: covered groups and traffic in proportion to the ideal, by setting.
type Log = (&'static str, Placement, Sizes, [u32; 4], [f64; 4]);

const LOGS: [Log; 4] = [
    (
        "uniform P12",
        ClusteredAsRun,
        Uniform,
        [666_430, 701_513, 814_195, 922_015],
        [1.086, 1.064, 1.0, 1.023],
    ),
    (
        "uniform P1",
        ScatteredAsRun,
        Uniform,
        [47_007, 207_110, 238_909, 716_924],
        [2.917, 2.224, 1.865, 1.395],
    ),
    ("WVE P12", ClusteredAsRun, Wve, [713_214, 829_311, 891_670, 997_843], [1.272, 1.248, 1.0, 1.036]),
    ("WVE P1", ScatteredAsRun, Wve, [513_227, 763_032, 778_057, 959_825], [3.608, 1.762, 1.316, 1.212]),
];

/// Elmo's logs beside our encoder: covered groups and traffic.
#[must_use]
pub fn elmo(sessions: u32, seed: u64) -> Vec<Row> {
    let mut rows = Vec::new();
    for (name, placement, sizes, covered, traffic) in LOGS {
        for (at, (rules_max, redundancy_max)) in SETTINGS.into_iter().enumerate() {
            let run = ElmoRun { placement, sizes, rules_max, redundancy_max, table_size: None };
            let (our_covered, our_traffic) = mean_of_seeds(&run, sessions, seed);
            let name = |what: &str| format!("{name} H{rules_max} R{redundancy_max}: {what}");
            let paper = 100.0 * (f64::from(covered[at]) / LOGGED_GROUPS);
            rows.push(Row::new(name("covered by p-rules"), Some(paper), 100.0 * our_covered, "%"));
            rows.push(Row::new(name("traffic to ideal"), Some(traffic[at]), our_traffic, "x"));
        }
    }
    rows
}

/// The mean over three seeds from this one on, as the logs have it.
fn mean_of_seeds(run: &ElmoRun, sessions: u32, first: u64) -> (f64, f64) {
    let results: Vec<(f64, f64)> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..3)
            .map(|more| first.wrapping_add(more))
            .map(|seed| scope.spawn(move || elmo_run(run, sessions, seed)))
            .collect();
        let results = workers.into_iter().map(|worker| worker.join().expect("encoding does not panic"));
        results.map(|result| (result.covered as f64 / result.groups as f64, result.traffic)).collect()
    });
    let sum = results.iter().fold((0.0, 0.0), |sum, result| (sum.0 + result.0, sum.1 + result.1));
    (sum.0 / 3.0, sum.1 / 3.0)
}
