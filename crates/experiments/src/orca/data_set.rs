//! Orca, section 6.1: the sessions of one data set, planned and followed through the switches.

use std::time::Instant;

use polycast_planning::labels::pod_labels::{self, PodLabelFormat};
use polycast_planning::labels::{LabelOptions, LabelPlanner, switches};
use polycast_topology::{Clos, Failures, Node};

use crate::random::Random;
use crate::tenants::{self, Sizes, Tenant};

/// Receivers in a bin of sizes.
pub const SIZE_STEP: usize = 250;

/// Sessions of about one size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SizeBin {
    /// How many.
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

/// What one data set comes to.
#[derive(Clone, Debug, Default)]
pub struct DataSet {
    /// Sessions planned.
    pub sessions: u64,
    /// Spines with an entry for a session, by spine.
    pub entries: Vec<u32>,
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
        let mut sorted = self.entries.clone();
        sorted.sort_unstable();
        let at = (fraction * sorted.len() as f64).ceil() as usize;
        sorted.get(at.clamp(1, sorted.len()) - 1).copied().unwrap_or(0)
    }
}

/// Plans all sessions of the tenants, one after the other by one planner, which looks at the entries that spines have already;
/// every `walk_every`-th is followed through the switches.
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
    let mut worker = Worker::new(clos, labels, walk_every, seed);
    for (index, tenant) in tenants.iter().enumerate() {
        worker.tenant(tenant, sizes, index as u64);
    }
    worker.result
}

struct Worker {
    planner: LabelPlanner,
    pod_format: PodLabelFormat,
    walk_every: u64,
    seed: u64,
    result: DataSet,
}

impl Worker {
    fn new(clos: &Clos, options: LabelOptions, walk_every: u64, seed: u64) -> Self {
        let planner = LabelPlanner::with_options(*clos, options).expect("labels for this network");
        let pod_format =
            PodLabelFormat::new(clos, planner.format().bytes()).expect("pod labels for this network");
        let result = DataSet { entries: vec![0; clos.spines() as usize], ..DataSet::default() };
        Worker { planner, pod_format, walk_every, seed, result }
    }

    fn tenant(&mut self, tenant: &Tenant, sizes: Sizes, index: u64) {
        let mut random = Random::new(self.seed ^ (index + 1) << 20);
        let mut hosts = tenant.hosts.clone();
        for group in 0..u64::from(tenant.groups) {
            let Some((source, receivers)) = members(&mut hosts, sizes, &mut random) else { continue };
            self.session(index << 32 | group, source, &receivers);
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
        let mut last = None;
        let mut spines = 0;
        for entry in &plan.spine_state {
            if last != Some(entry.spine) {
                self.result.entries[(entry.spine - first_spine) as usize] += 1;
                last = Some(entry.spine);
                spines += 1;
            }
        }
        count_size(&mut self.result.by_size, receivers.len(), spines);
        self.result.leafs += plan.leaf_hosts.len() as u64;
        self.result.pods += plan.tree.pods.len() as u64;
        self.result.sessions += 1;
        if self.result.sessions.is_multiple_of(self.walk_every) {
            let receivers = receivers.iter().copied().collect();
            let pods = pod_labels::encode(&self.pod_format, &plan);
            let by_filter =
                switches::deliver(&clos, self.planner.format(), self.planner.filter(), source, &plan);
            let by_pods = pod_labels::deliver(&clos, &self.pod_format, id, source, &plan, &pods);
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
