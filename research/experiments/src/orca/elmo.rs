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

/// Results of a run of Elmo.
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
    /// Hosts that get what is not for them, in proportion to the group's receivers, of every group.
    pub redundant: Vec<f32>,
    /// Seconds of encoding.
    pub seconds: f64,
}

impl ElmoResult {
    /// Bytes of a header, mean.
    #[must_use]
    pub fn header_mean(&self) -> f64 {
        self.header_bytes as f64 / self.groups.max(1) as f64
    }
}

/// Bits of a header that do not depend on the group: the ports up of leaf and spine, and the core's pods.
const ELMO_FIXED_BITS: u32 = (48 + 4) + (48 + 4) + 12;
/// Hosts of a leaf and leafs of a pod of Elmo's network.
const ELMO_PORTS: (u32, u32) = (48, 48);
/// Leafs of Elmo's network.
const ELMO_LEAFS: u32 = 576;
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
    let mut result = ElmoResult {
        leaf_entries: vec![0; ELMO_LEAFS as usize],
        pod_entries: vec![0; 12],
        ..ElmoResult::default()
    };
    for tenant in &tenants {
        let mut hosts = tenant.hosts.clone();
        for _ in 0..tenant.groups {
            let size = tenants::group_size(run.sizes, hosts.len() as u32, &mut random) as usize;
            random.choose_first(&mut hosts, size);
            let (pods, leafs, members) = bitmaps(&hosts[..size], ELMO_PORTS);
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
            let wrong_hosts = u64::from(leaf_layer.redundant_ports)
                + wrong_leafs * u64::from(leaf_layer.default_ports.count_ones());
            result.redundant.push(wrong_hosts as f32 / members.saturating_sub(1).max(1) as f32);
            ideal += least;
            sent += least
                + u64::from(leaf_layer.redundant_ports)
                + wrong_leafs * (1 + u64::from(leaf_layer.default_ports.count_ones()));
        }
    }
    result.traffic = sent as f64 / ideal as f64;
    result
}

/// A group's bitmaps of leafs by pod and of hosts by leaf, and how many hosts it has, where leafs have so
/// many hosts and pods so many leafs.
pub(super) fn bitmaps(
    hosts: &[Node],
    (hosts_per_leaf, leafs_per_pod): (u32, u32),
) -> (Vec<SwitchPorts>, Vec<SwitchPorts>, u64) {
    let mut by_leaf = BTreeMap::<u32, u128>::new();
    for &host in hosts {
        *by_leaf.entry(host / hosts_per_leaf).or_default() |= 1 << (host % hosts_per_leaf);
    }
    let mut by_pod = BTreeMap::<u32, u128>::new();
    for &leaf in by_leaf.keys() {
        *by_pod.entry(leaf / leafs_per_pod).or_default() |= 1 << (leaf % leafs_per_pod);
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
            let covered = Some(f64::from(covered[at]));
            let note = "in proportion to the groups of the logs";
            rows.push(
                Row::new(name("covered by p-rules"), covered, LOGGED_GROUPS * our_covered, "groups")
                    .note(note),
            );
            rows.push(Row::new(name("traffic to ideal"), Some(traffic[at]), our_traffic, "x"));
        }
    }
    rows
}

/// A group that changes: its tenant, its hosts, and the switches that have an entry for it.
struct Running {
    tenant: usize,
    hosts: Vec<Node>,
    entries: Vec<Node>,
}

/// Encodes a group and gives the switches that have entries: leafs by number, and the spines of pods behind
/// them.
fn entries(
    hosts: &[Node],
    limits: &[ElmoLimits; 2],
    tables: &mut [Vec<u32>; 2],
    coin: &mut ElmoRandom,
) -> Vec<Node> {
    let (pods, leafs, _) = bitmaps(hosts, ELMO_PORTS);
    let pod_layer = encode_layer(&pods, &limits[0], &mut tables[0], coin);
    let leaf_layer = encode_layer(&leafs, &limits[1], &mut tables[1], coin);
    let pods = pod_layer.switch_rules.iter();
    let spines = pods.flat_map(|pod| (0..ELMO_SPINES).map(move |at| ELMO_LEAFS + pod * ELMO_SPINES + at));
    leaf_layer.switch_rules.iter().copied().chain(spines).collect()
}

/// Running WVE-S groups, each encoded once.
fn running_groups(
    tenants: &[tenants::Tenant],
    random: &mut Random,
    mut encode: impl FnMut(&[Node]) -> Vec<Node>,
) -> Vec<Running> {
    let mut running = Vec::new();
    for (number, tenant) in tenants.iter().enumerate() {
        let mut hosts = tenant.hosts.clone();
        for _ in 0..tenant.groups {
            let size = tenants::group_size(Wve, hosts.len() as u32, random) as usize;
            random.choose_first(&mut hosts, size);
            let hosts = hosts[..size].to_vec();
            let entries = encode(&hosts);
            running.push(Running { tenant: number, hosts, entries });
        }
    }
    running
}

/// Messages to switches for a join or leave of WVE-S groups, mean: one for every switch that gains or loses
/// an entry, and one for the host's own leaf where that keeps one.
///
/// # Panics
/// Never: the network exists.
#[must_use]
pub fn elmo_updates((rules_max, redundancy_max): (u32, u32), sessions: u32, events: u32, seed: u64) -> f64 {
    let clos = Clos::new(12, 48, ELMO_SPINES, 48, 1).expect("Elmo's network exists");
    let mut random = Random::new(seed);
    let tenants = tenants::tenants(&clos, ScatteredAsRun, sessions, &mut random);
    let table_size = u32::MAX;
    let limits = [
        ElmoLimits { rules_max: 2, switches_per_rule_max: 3, redundancy_max: 6, table_size },
        ElmoLimits { rules_max, switches_per_rule_max: 3, redundancy_max, table_size },
    ];
    let mut tables = [vec![0; 12], vec![0; ELMO_LEAFS as usize]];
    let mut coin = ElmoRandom::new(seed);
    let mut encode = |hosts: &[Node]| entries(hosts, &limits, &mut tables, &mut coin);
    let mut running = running_groups(&tenants, &mut random, &mut encode);
    // A group changes in proportion to its size, as in Elmo's program.
    let mut ends: Vec<u32> = Vec::with_capacity(running.len());
    for group in &running {
        ends.push(ends.last().copied().unwrap_or(0) + group.hosts.len() as u32);
    }
    let mut messages = 0u64;
    for _ in 0..events {
        let drawn = random.below(ends.last().copied().unwrap_or(1));
        let group = &mut running[ends.partition_point(|end| *end <= drawn)];
        let all = &tenants[group.tenant].hosts;
        // As in the logs' program: the smallest groups only grow, and those of all machines only shrink.
        let join = group.hosts.len() < all.len() && (group.hosts.len() <= 5 || random.next() & 1 == 0);
        let host = if join {
            let host = all[random.below(all.len() as u32) as usize];
            group.hosts.push(host);
            host
        } else {
            let leaves = random.below(group.hosts.len() as u32) as usize;
            group.hosts.swap_remove(leaves)
        };
        let before = std::mem::take(&mut group.entries);
        group.entries = encode(&group.hosts);
        let gone = before.iter().filter(|switch| !group.entries.contains(switch)).count();
        let new = group.entries.iter().filter(|switch| !before.contains(switch)).count();
        let own = host / 48;
        let changed = before.contains(&own) && group.entries.contains(&own);
        messages += (gone + new) as u64 + u64::from(changed);
    }
    messages as f64 / f64::from(events)
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
