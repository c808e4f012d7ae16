//! Orca, section 6.1: the sessions of one data set, planned and followed through the switches.

use std::time::Instant;

use polycast_planning::labels::pod_labels::{self, PodLabelFormat};
use polycast_planning::labels::switches::Ingress;
use polycast_planning::labels::{LabelOptions, LabelPlan, LabelPlanner, PodLeafs, switches};
use polycast_topology::{Clos, Failures, Node};
use polycast_types::LabelKind;

use crate::random::Random;
use crate::tenants::{self, Sizes, Tenant};

/// The entries that a spine has room for where the encoding is chosen for each session: the paper's own 99 %.
pub const ROOM: u32 = 253;

/// Receivers in a bin of sizes.
pub const SIZE_STEP: usize = 250;

/// Sessions of about one size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SizeBin {
    /// Number of sessions.
    pub sessions: u64,
    /// Switches with entries, over all of them.
    pub switches: u64,
    /// Switches with entries, at most.
    pub most: u32,
}

/// Counts a session's switches with entries.
pub(super) fn count_size(bins: &mut Vec<SizeBin>, receivers: usize, switches: u32) {
    let at = receivers / SIZE_STEP;
    if bins.len() <= at {
        bins.resize(at + 1, SizeBin::default());
    }
    let bin = &mut bins[at];
    bin.sessions += 1;
    bin.switches += u64::from(switches);
    bin.most = bin.most.max(switches);
}

/// Results of one data set.
#[derive(Clone, Debug, Default)]
pub struct DataSet {
    /// Sessions planned.
    pub sessions: u64,
    /// Spines with an entry for a session, by spine.
    pub entries: Vec<u32>,
    /// The same with pod labels: sessions that a spine would copy to more leafs than it should.
    pub pod_entries: Vec<u32>,
    /// The same where the encoding is chosen for each session, and spines have room for [`ROOM`] of a
    /// million.
    pub auto_entries: Vec<u32>,
    /// Leaf labels that the agents of a rack keep, by leaf, in all encodings.
    pub leaf_labels: Vec<u32>,
    /// Spine labels that they keep with pod labels.
    pub spine_labels: Vec<u32>,
    /// Spine labels that they keep where the encoding is chosen.
    pub auto_spine_labels: Vec<u32>,
    /// Spines with entries, by the session's receivers: [`SIZE_STEP`] in each bin.
    pub by_size: Vec<SizeBin>,
    /// Entries counted by link: a spine may leave out several for one session.
    pub links: u64,
    /// Seconds that planning labels took.
    pub planning_s: f64,
    /// Leafs over all sessions.
    pub leafs: u64,
    /// Pods over all sessions, the source's included.
    pub pods: u64,
    /// Sessions whose delivery was followed through the switches.
    pub walked: u64,
    /// Hosts that got something they should not, over all walked sessions and both encodings.
    pub redundant: u64,
    /// Receivers that got nothing or twice, likewise.
    pub missed: u64,
    /// Links crossed by one packet of every walked session, with Orca's labels.
    pub links_orca: u64,
    /// The same with pod labels.
    pub links_pods: u64,
    /// Pods of walked sessions that had to ask an agent for a spine label.
    pub asking_pods: u64,
}

impl DataSet {
    /// The mean over all spines.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.entries.iter().map(|&count| f64::from(count)).sum::<f64>() / self.entries.len().max(1) as f64
    }

    /// The entries of the spine at this fraction of all spines, in rising order.
    #[must_use]
    pub fn quantile(&self, fraction: f64) -> u32 {
        quantile_of(&self.entries, fraction)
    }
}

/// The count at this fraction of all, in rising order.
#[must_use]
pub fn quantile_of(counts: &[u32], fraction: f64) -> u32 {
    let mut sorted = counts.to_vec();
    sorted.sort_unstable();
    let at = (fraction * sorted.len() as f64).ceil() as usize;
    sorted.get(at.clamp(1, sorted.len().max(1)) - 1).copied().unwrap_or(0)
}

/// Plans all sessions of the tenants, one after the other by one planner, which looks at the entries that
/// spines have already; every `walk_every`-th is followed through the switches.
///
/// # Panics
/// If a planner refuses a session, which would be a fault of its own.
#[must_use]
pub fn plan_data_set(
    clos: &Clos,
    tenants: &[Tenant],
    sizes: Sizes,
    labels: LabelOptions,
    seed: u64,
    walk_every: u64,
) -> DataSet {
    let sessions: u64 = tenants.iter().map(|tenant| u64::from(tenant.groups)).sum();
    let room = (u64::from(ROOM) * sessions / 1_000_000).max(1) as u32;
    let mut worker = Worker::new(clos, labels, (walk_every, room), seed);
    for (index, tenant) in tenants.iter().enumerate() {
        worker.tenant(tenant, sizes, index as u64);
    }
    worker.result
}

struct Worker {
    planner: LabelPlanner,
    pod_format: PodLabelFormat,
    walk_every: u64,
    room: u32,
    seed: u64,
    result: DataSet,
}

impl Worker {
    fn new(clos: &Clos, options: LabelOptions, (walk_every, room): (u64, u32), seed: u64) -> Self {
        let planner = LabelPlanner::with_options(*clos, options).expect("labels for this network");
        let pod_format =
            PodLabelFormat::new(clos, planner.format().bytes()).expect("pod labels for this network");
        let (spines, leafs) = (vec![0; clos.spines() as usize], vec![0; clos.leafs() as usize]);
        let result = DataSet {
            entries: spines.clone(),
            pod_entries: spines.clone(),
            auto_entries: spines,
            leaf_labels: leafs.clone(),
            spine_labels: leafs.clone(),
            auto_spine_labels: leafs,
            ..DataSet::default()
        };
        Worker { planner, pod_format, walk_every, room, seed, result }
    }

    fn tenant(&mut self, tenant: &Tenant, sizes: Sizes, index: u64) {
        let mut random = Random::new(self.seed ^ (index + 1) << 20);
        let mut hosts = tenant.hosts.clone();
        for group in 0..u64::from(tenant.groups) {
            let Some((source, receivers)) = members(&mut hosts, sizes, &mut random) else { continue };
            self.session(index << 32 | group, source, &receivers);
        }
    }

    fn asked(&self, id: u64) -> u32 {
        self.pod_format.asked_leaf(id, |_| true).expect("a pod has a leaf")
    }

    /// Counts what spines and agents keep of a session, which has entries at these spines with the filter.
    fn keep(&mut self, id: u64, plan: &LabelPlan, spines: &[usize]) {
        let clos = *self.planner.clos();
        let (format, tree) = (self.pod_format, &plan.tree);
        let pods = pod_labels::encode(&format, plan, self.asked(id));
        let asked = |pod: &PodLeafs| (pod.pod * clos.leafs_per_pod() + self.asked(id)) as usize;
        let racks: Vec<usize> = pods.spine_labels.iter().map(asked).collect();
        plan.leaf_hosts.iter().for_each(|entry| self.result.leaf_labels[entry.leaf as usize] += 1);
        racks.iter().for_each(|rack| self.result.spine_labels[*rack] += 1);
        // What a spine copies to beyond its leafs of the tree it would have to be told of.
        for pod in &tree.pods {
            let ingress = if pod.pod == tree.source_pod { Ingress::Below } else { Ingress::Above };
            let label = (LabelKind::Pods, &pods.label);
            let mut action = pod_labels::spine(&format, label, pod.pod, ingress);
            if action.as_ref().is_some_and(|action| action.asks.is_some()) {
                let kept = pods.spine_labels.iter().find(|kept| kept.pod == pod.pod);
                let label = format.spine_label(tree.path.plane, kept.map_or(0, |kept| kept.leafs));
                action = pod_labels::spine(&format, (LabelKind::Spine, &label), pod.pod, Ingress::Below);
            }
            let down = action.map_or(0, |action| action.down);
            let spine = (pod.pod * clos.spines_per_pod() + tree.path.plane) as usize;
            self.result.pod_entries[spine] += u32::from(down & !pod.leafs != 0);
        }
        let fits = |spine: &usize| self.result.auto_entries[*spine] < self.room;
        match racks.is_empty() || !spines.iter().all(fits) {
            true => racks.iter().for_each(|rack| self.result.auto_spine_labels[*rack] += 1),
            false => spines.iter().for_each(|spine| self.result.auto_entries[*spine] += 1),
        }
    }

    fn session(&mut self, id: u64, source: Node, receivers: &[Node]) {
        let start = Instant::now();
        let plan = self.planner.plan(id, source, receivers, &Failures::none()).expect("members are hosts");
        self.result.planning_s += start.elapsed().as_secs_f64();
        self.planner.count_in(&plan.spine_state);
        self.result.links += plan.spine_state.len() as u64;
        let clos = *self.planner.clos();
        let first_spine = clos.spine(0, 0);
        let mut spines_of: Vec<usize> =
            plan.spine_state.iter().map(|entry| (entry.spine - first_spine) as usize).collect();
        spines_of.dedup();
        spines_of.iter().for_each(|spine| self.result.entries[*spine] += 1);
        count_size(&mut self.result.by_size, receivers.len(), spines_of.len() as u32);
        self.result.leafs += plan.leaf_hosts.len() as u64;
        self.result.pods += plan.tree.pods.len() as u64;
        self.result.sessions += 1;
        self.keep(id, &plan, &spines_of);
        if self.result.sessions.is_multiple_of(self.walk_every) {
            let receivers = receivers.iter().copied().collect();
            let pods = pod_labels::encode(&self.pod_format, &plan, self.asked(id));
            let by_filter =
                switches::deliver(&clos, self.planner.format(), self.planner.filter(), source, &plan);
            let by_pods = pod_labels::deliver(&clos, &self.pod_format, source, &plan, &pods);
            for delivery in [&by_filter, &by_pods] {
                self.result.redundant += delivery.redundant(&clos, &receivers).len() as u64;
                let got = receivers.iter().filter(|host| delivery.hosts.get(host) == Some(&1)).count();
                self.result.missed += (receivers.len() - got) as u64;
            }
            self.result.walked += 1;
            self.result.links_orca += u64::from(by_filter.links);
            self.result.links_pods += u64::from(by_pods.links);
            self.result.asking_pods += pods.spine_labels.len() as u64;
        }
    }
}

/// A drawn group: its source and its receivers; `None` if all of its machines are on one host.
pub(super) fn members(hosts: &mut [Node], sizes: Sizes, random: &mut Random) -> Option<(Node, Vec<Node>)> {
    let size = tenants::group_size(sizes, hosts.len() as u32, random) as usize;
    random.choose_first(hosts, size);
    let source = hosts[0];
    let receivers: Vec<Node> = hosts[1..size].iter().copied().filter(|&host| host != source).collect();
    (!receivers.is_empty()).then_some((source, receivers))
}
