//! Labels that carry a multicast tree of a Clos network (Orca, sections 3.3 to 3.5 and appendix A).
//!
//! A packet carries a source label of fixed size up to a core and down to the leafs; there an agent on a
//! server puts the leaf label in its place, which names the hosts of the rack. Switches keep state only
//! where the label's filter says yes to a link that is not in the tree. **The session id is not part of the
//! label**: spines with state and agents look it up, so it travels beside the label in the packet.
//!
//! [`LabelPlanner`] is the paper's scheme (Algorithms 1 and 2); [`switches`] is the forwarding code of the
//! switches and agents (section 3.5, Algorithm 3); [`pod_labels`] is our own encoding of the same size that
//! needs no switch state at all. Which of them a packet has stands beside its label.
//!
//! The paper leaves two things open, and both decide how much state there is: which bucket of the filter a
//! link has, and which of the spines and cores a session goes through. Here the links of a spine lie in a
//! row ([`LinkHash::InRow`]), and of several paths the one is taken whose label needs the least state.

mod encoding;
mod format;
mod many;
pub mod pod_labels;
mod session;
pub mod switches;

use alloc::vec;
use alloc::vec::Vec;

use polycast_topology::{Clos, Failures, Node, TopologyError};

pub use encoding::Encoding;
pub use format::{FILTER_BITS_MAX, Filter, FilterBits, Label, LabelFormat, LinkHash, PORTS_MAX, TreePath};
pub use many::{ManySession, ManyUpdate};
pub use session::{Session, Update};

/// A label that cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LabelError {
    /// A switch with more ports than a label's bitmaps hold.
    #[error("{what} are {value}: labels are for at most {limit} of them")]
    TooManyPorts {
        /// The ports meant.
        what: &'static str,
        /// Number of them.
        value: u32,
        /// Maximum number.
        limit: u32,
    },
    /// A filter that is empty or too large.
    #[error("the filter cannot have {value} bits: choose 1 to {limit}")]
    FilterBits {
        /// The refused size.
        value: u32,
        /// The largest one.
        limit: u32,
    },
    /// A node that the network does not have.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// A member that is not a host.
    #[error("node {node} is not a host: the hosts of this network are 0 to {last}")]
    NotAHost {
        /// The refused node.
        node: u64,
        /// The last host.
        last: Node,
    },
    /// The source cannot send to itself.
    #[error("host {host} is the source and also among the receivers: leave it out of the receivers")]
    SourceIsReceiver {
        /// The source.
        host: Node,
    },
    /// There is no receiver.
    #[error("the session of source {host} has no receivers: name at least one other host")]
    NoReceivers {
        /// The source.
        host: Node,
    },
    /// No path up, or no receiver below any core.
    #[error("no receiver of source {host} can be reached over working links: repair a link of its rack")]
    Disconnected {
        /// The source.
        host: Node,
    },
}

/// The hosts of one rack that are receivers, one bit each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeafHosts {
    /// The leaf, counted over all pods.
    pub leaf: u32,
    /// Its hosts: this is the leaf label.
    pub hosts: u128,
}

/// The leafs of one pod that are in a tree, one bit each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodLeafs {
    /// The pod.
    pub pod: u32,
    /// Its leafs.
    pub leafs: u128,
}

/// The spines and leafs of a tree: all that a source label depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpineTree {
    /// The source's pod.
    pub source_pod: u32,
    /// The spines and the core that the tree goes through.
    pub path: TreePath,
    /// The pods of the tree in rising order. The source's is always among them, if only with no leafs: its
    /// spine sees the label too.
    pub pods: Vec<PodLeafs>,
}

/// A link that a spine must not use for a session although its filter says yes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SpineState {
    /// The spine.
    pub spine: Node,
    /// The leaf at the other end of the link.
    pub leaf: Node,
}

/// The forwarding state of one session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelPlan {
    /// The tree.
    pub tree: SpineTree,
    /// The source label, with leafStatus 0.
    pub label: Label,
    /// The entries that spines keep.
    pub spine_state: Vec<SpineState>,
    /// The leaf labels that agents keep, by leaf.
    pub leaf_hosts: Vec<LeafHosts>,
    /// The receivers that failures cut off, in rising order.
    pub left_out: Vec<Node>,
}

/// Options that the paper leaves open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LabelOptions {
    /// Size of the filter; 69 bits make 19 bytes on fat-tree(48, 3).
    pub filter_bits: u32,
    /// Assignment of links to the filter.
    pub hash: LinkHash,
    /// Number of paths that are compared for a session; with 1 the session's number alone picks the path.
    pub paths_tried: u32,
}

impl LabelOptions {
    /// Returns the options that need the least state that we know of.
    #[must_use]
    pub fn new(filter_bits: u32) -> Self {
        LabelOptions { filter_bits, hash: LinkHash::InRow, paths_tried: u32::MAX }
    }

    /// A plain Bloom filter, and no choice among planes.
    #[must_use]
    pub fn plain(filter_bits: u32) -> Self {
        LabelOptions { filter_bits, hash: LinkHash::Scattered, paths_tried: 1 }
    }
}

/// Pods that are looked at, at most, while the paths of one session are compared.
const PODS_LOOKED_AT_MAX: u32 = 200;

/// A tree of more pods than this fills every filter, so that comparing paths helps little.
const FULL_AT_PODS: u32 = 16;

/// Paths that reach all receivers and are compared after a failure, at most.
const PATHS_TRIED_AFTER_FAILURE: u32 = 16;

/// Plans labels in one network.
#[derive(Clone, Debug)]
pub struct LabelPlanner {
    clos: Clos,
    format: LabelFormat,
    filter: Filter,
    paths_tried: u32,
    /// Entries of running sessions, by spine.
    load: Vec<u32>,
    /// Receivers by leaf while a group is being sorted; empty between calls.
    by_leaf: Vec<u128>,
    /// Leafs by pod, likewise.
    by_pod: Vec<u128>,
}

impl LabelPlanner {
    /// Labels with a filter of `filter_bits` bits; 69 make 19 bytes on fat-tree(48, 3).
    ///
    /// # Errors
    /// If a switch has too many ports for a label or the filter has no useful size.
    pub fn new(clos: Clos, filter_bits: u32) -> Result<Self, LabelError> {
        Self::with_options(clos, LabelOptions::new(filter_bits))
    }

    /// Labels made in this way.
    ///
    /// # Errors
    /// As [`LabelPlanner::new`].
    pub fn with_options(clos: Clos, options: LabelOptions) -> Result<Self, LabelError> {
        let format = LabelFormat::new(&clos, options.filter_bits)?;
        Ok(LabelPlanner {
            clos,
            format,
            filter: Filter::new(&clos, options.filter_bits, options.hash),
            paths_tried: options.paths_tried.max(1),
            load: vec![0; clos.spines() as usize],
            by_leaf: vec![0; clos.leafs() as usize],
            by_pod: vec![0; clos.pods() as usize],
        })
    }

    /// The network.
    #[must_use]
    pub fn clos(&self) -> &Clos {
        &self.clos
    }

    /// Returns the layout of a label's fields.
    #[must_use]
    pub fn format(&self) -> &LabelFormat {
        &self.format
    }

    /// The filter's hash.
    #[must_use]
    pub fn filter(&self) -> &Filter {
        &self.filter
    }

    /// The label of a session by its number (Algorithm 1). The number picks the path with which the search
    /// for the one that needs the least state begins.
    ///
    /// # Errors
    /// If a member is no host, if the source is among the receivers, or if no receiver can be reached. If
    /// only some receivers can be reached, the plan names the others.
    pub fn plan(
        &mut self,
        session: u64,
        source: Node,
        receivers: &[Node],
        failures: &Failures,
    ) -> Result<LabelPlan, LabelError> {
        let mut plans = self.plan_trees(session, source, receivers, failures, 1)?;
        debug_assert_eq!(plans.len(), 1);
        Ok(plans.swap_remove(0))
    }

    /// Labels of up to `count` trees of one session through different cores, best first (appendix A.4).
    ///
    /// The first trees go through different spines and so share no link above the racks; the leaf labels
    /// are the same for all.
    ///
    /// # Errors
    /// As [`LabelPlanner::plan`].
    pub fn plan_trees(
        &mut self,
        session: u64,
        source: Node,
        receivers: &[Node],
        failures: &Failures,
        count: u32,
    ) -> Result<Vec<LabelPlan>, LabelError> {
        let leaf_hosts = self.sort_receivers(source, receivers)?;
        if !failures.is_empty() {
            let paths = self.paths(session, source);
            return self.around_failures(source, &leaf_hosts, failures, count, paths, |plan| {
                entries_at(&plan.spine_state).count()
            });
        }
        let path = self.paths(session, source).next().unwrap_or(TreePath { plane: 0, core: 0 });
        let mut tree = self.tree(source, path, &leaf_hosts);
        let mut paths = self.paths(session, source).take(count as usize);
        if count == 1 {
            tree.path = self.least_state(&tree, self.paths(session, source));
            return Ok(vec![self.encode(tree, leaf_hosts, Vec::new())]);
        }
        let plan = |path| {
            let tree = SpineTree { path, ..tree.clone() };
            self.encode(tree, leaf_hosts.clone(), Vec::new())
        };
        Ok(paths.by_ref().map(plan).collect())
    }

    /// Counts the entries of a session that runs: later sessions prefer spines that have few.
    pub fn count_in(&mut self, spine_state: &[SpineState]) {
        let first = self.clos.spine(0, 0);
        entries_at(spine_state).for_each(|spine| self.load[(spine - first) as usize] += 1);
    }

    /// Sets the number of entries of each spine; earlier counts are discarded.
    pub(crate) fn count_anew(&mut self, spines: impl Iterator<Item = (Node, u64)>) {
        self.load.fill(0);
        let first = self.clos.spine(0, 0);
        for (spine, entries) in spines {
            if let Some(load) = spine.checked_sub(first).and_then(|at| self.load.get_mut(at as usize)) {
                *load = u32::try_from(entries).unwrap_or(u32::MAX);
            }
        }
    }

    /// Counts the entries of a session no more that was counted before.
    pub fn count_out(&mut self, spine_state: &[SpineState]) {
        let first = self.clos.spine(0, 0);
        entries_at(spine_state).for_each(|spine| {
            let load = &mut self.load[(spine - first) as usize];
            debug_assert!(*load > 0, "only what was counted in is counted out");
            *load = load.saturating_sub(1);
        });
    }

    /// Returns the cost of one more entry at a spine: higher where there are many.
    fn cost_at(&self, pod: u32, path: TreePath) -> u32 {
        self.load[(pod * self.clos.spines_per_pod() + path.plane) as usize] + 1
    }

    /// The path that needs the fewest entries, and those at spines that have few, among the first of `paths`.
    fn least_state(&self, tree: &SpineTree, paths: impl Iterator<Item = TreePath>) -> TreePath {
        let pods = tree.pods.len() as u32;
        let looks = if pods > FULL_AT_PODS { 0 } else { PODS_LOOKED_AT_MAX };
        let tried = self.paths_tried.min(looks / pods).max(1);
        let mut paths = paths.take(tried as usize).peekable();
        let first = paths.peek().copied().unwrap_or(tree.path);
        let common = common_leafs(tree);
        if tried == 1 || tree.pods.iter().all(|pod| pod.leafs == common) {
            return first;
        }
        let (mut best, mut least) = (first, u32::MAX);
        for path in paths {
            let bits = self.filter_bits(tree, path, common);
            let wrong = |pod: &&PodLeafs| self.false_positives(&bits, pod, path, common) != 0;
            let cost = tree.pods.iter().filter(wrong).map(|pod| self.cost_at(pod.pod, path)).sum();
            if cost < least {
                (best, least) = (path, cost);
            }
            if cost == 0 {
                break;
            }
        }
        best
    }

    /// The session of `old` after failures, by the path that changes the least state outside the source.
    ///
    /// # Errors
    /// As [`LabelPlanner::plan`].
    pub(crate) fn plan_near(
        &mut self,
        session: u64,
        source: Node,
        receivers: &[Node],
        failures: &Failures,
        old: &LabelPlan,
    ) -> Result<LabelPlan, LabelError> {
        let leaf_hosts = self.sort_receivers(source, receivers)?;
        let TreePath { plane, core } = old.tree.path;
        let cores = self.clos.cores_per_spine().max(1);
        // Entries do not depend on the core: another one of the same plane changes nothing at spines.
        let same_plane = (0..cores).map(|step| TreePath { plane, core: (core + step) % cores });
        let others = self.paths(session, source).filter(|path| path.plane != plane);
        let paths = same_plane.clone().take(2).chain(others).chain(same_plane.skip(2));
        let cost = |plan: &LabelPlan| {
            let only = |these: &[SpineState], those: &[SpineState]| -> Vec<SpineState> {
                these.iter().filter(|entry| those.binary_search(entry).is_err()).copied().collect()
            };
            let mut changed = only(&old.spine_state, &plan.spine_state);
            changed.retain(|entry| !failures.node_failed(entry.spine));
            changed.extend(only(&plan.spine_state, &old.spine_state));
            changed.sort_unstable();
            entries_at(&changed).count()
        };
        let mut plans = self.around_failures(source, &leaf_hosts, failures, 1, paths, cost)?;
        Ok(plans.swap_remove(0))
    }

    /// Under failures every path is looked at, until enough of them reach all receivers: those that reach
    /// the most come first, and of those the ones of the least cost.
    fn around_failures(
        &self,
        source: Node,
        leaf_hosts: &[LeafHosts],
        failures: &Failures,
        count: u32,
        paths: impl Iterator<Item = TreePath>,
        cost: impl Fn(&LabelPlan) -> usize,
    ) -> Result<Vec<LabelPlan>, LabelError> {
        let tried = self.paths_tried.min(PATHS_TRIED_AFTER_FAILURE).max(count);
        let mut best: Vec<(usize, usize, LabelPlan)> = Vec::new();
        let mut complete = 0;
        for path in paths {
            let (kept, left_out) = self.working(source, path, leaf_hosts, failures);
            if kept.is_empty() {
                continue;
            }
            let tree = self.tree(source, path, &kept);
            let plan = self.encode(tree, kept, left_out);
            let cost = if plan.left_out.is_empty() { cost(&plan) } else { 0 };
            complete += u32::from(plan.left_out.is_empty());
            let done = complete >= tried || complete == count && cost == 0;
            // The order is stable: among equals the session's own order of paths stays.
            let key = (plan.left_out.len(), cost);
            let at = best.partition_point(|other| (other.0, other.1) <= key);
            best.insert(at, (key.0, key.1, plan));
            best.truncate(count as usize);
            if done {
                break;
            }
        }
        if best.is_empty() {
            return Err(LabelError::Disconnected { host: source });
        }
        Ok(best.into_iter().map(|(_, _, plan)| plan).collect())
    }

    /// All ways up, each plane once before any plane twice, from where the session's number points to.
    fn paths(&self, session: u64, source: Node) -> impl Iterator<Item = TreePath> + use<> {
        let planes = self.clos.spines_per_pod();
        let cores = self.clos.cores_per_spine().max(1);
        let start = format::mix(session ^ u64::from(source) << 40);
        let (first_plane, first_core) = (start as u32 % planes, (start >> 32) as u32 % cores);
        (0..cores).flat_map(move |core| {
            (0..planes).map(move |plane| TreePath {
                plane: (first_plane + plane) % planes,
                core: (first_core + core) % cores,
            })
        })
    }

    /// Checks the members and sorts the receivers by leaf.
    fn sort_receivers(&mut self, source: Node, receivers: &[Node]) -> Result<Vec<LeafHosts>, LabelError> {
        let hosts = self.clos.hosts();
        if let Some(&node) = receivers.iter().chain([&source]).find(|&&node| node >= hosts) {
            return Err(LabelError::NotAHost { node: node.into(), last: hosts - 1 });
        }
        if receivers.contains(&source) {
            return Err(LabelError::SourceIsReceiver { host: source });
        }
        if receivers.is_empty() {
            return Err(LabelError::NoReceivers { host: source });
        }
        let (per_leaf, per_pod) = (self.clos.hosts_per_leaf(), self.clos.leafs_per_pod());
        let mut pods = 0u128;
        for &host in receivers {
            let leaf = host / per_leaf;
            self.by_leaf[leaf as usize] |= 1 << (host % per_leaf);
            let pod = leaf / per_pod;
            self.by_pod[pod as usize] |= 1 << (leaf % per_pod);
            pods |= 1 << pod;
        }
        let mut sorted = Vec::with_capacity(receivers.len().min(self.by_leaf.len()));
        for pod in format::ones(pods) {
            for leaf in format::ones(core::mem::take(&mut self.by_pod[pod as usize])) {
                let leaf = pod * per_pod + leaf;
                let hosts = core::mem::take(&mut self.by_leaf[leaf as usize]);
                sorted.push(LeafHosts { leaf, hosts });
            }
        }
        Ok(sorted)
    }

    /// The part of the receivers that this path reaches over working links, and the hosts of the others.
    fn working(
        &self,
        source: Node,
        path: TreePath,
        leaf_hosts: &[LeafHosts],
        failures: &Failures,
    ) -> (Vec<LeafHosts>, Vec<Node>) {
        let TreePath { plane, core } = path;
        let clos = &self.clos;
        let works = |node, port| failures.link_works(clos, node, port);
        let source_leaf = clos.leaf_index_of(source);
        let source_pod = source_leaf / clos.leafs_per_pod();
        let up = works(source, 0) && works(clos.leaf(source_leaf), clos.hosts_per_leaf() + plane);
        let core_up = up
            && clos.cores_per_spine() > 0
            && works(clos.spine(source_pod, plane), clos.leafs_per_pod() + core);
        let pod_works: Vec<bool> = (0..clos.pods())
            .map(|pod| if pod == source_pod { up } else { core_up && works(clos.core(plane, core), pod) })
            .collect();
        let mut kept = Vec::with_capacity(leaf_hosts.len());
        let mut left_out = Vec::new();
        for entry in leaf_hosts {
            let (pod, index) = (entry.leaf / clos.leafs_per_pod(), entry.leaf % clos.leafs_per_pod());
            let leaf_works = pod_works[pod as usize] && works(clos.spine(pod, plane), index);
            let mut hosts = 0u128;
            for port in format::ones(entry.hosts) {
                if leaf_works && works(clos.leaf(entry.leaf), port) {
                    hosts |= 1 << port;
                } else {
                    left_out.push(entry.leaf * clos.hosts_per_leaf() + port);
                }
            }
            if hosts != 0 {
                kept.push(LeafHosts { leaf: entry.leaf, hosts });
            }
        }
        (kept, left_out)
    }

    fn encode(&self, tree: SpineTree, leaf_hosts: Vec<LeafHosts>, left_out: Vec<Node>) -> LabelPlan {
        let mut spine_state = Vec::new();
        let label = self.source_label(&tree, &mut spine_state);
        LabelPlan { tree, label, spine_state, leaf_hosts, left_out }
    }

    /// The spines and leafs above the receivers.
    pub(crate) fn tree(&self, source: Node, path: TreePath, leaf_hosts: &[LeafHosts]) -> SpineTree {
        let per_pod = self.clos.leafs_per_pod();
        let source_pod = self.clos.leaf_index_of(source) / per_pod;
        let mut pods: Vec<PodLeafs> = Vec::new();
        for entry in leaf_hosts {
            let (pod, bit) = (entry.leaf / per_pod, 1 << (entry.leaf % per_pod));
            match pods.last_mut() {
                Some(last) if last.pod == pod => last.leafs |= bit,
                _ => pods.push(PodLeafs { pod, leafs: bit }),
            }
        }
        if let Err(at) = pods.binary_search_by_key(&source_pod, |entry| entry.pod) {
            pods.insert(at, PodLeafs { pod: source_pod, leafs: 0 });
        }
        SpineTree { source_pod, path, pods }
    }

    /// The source label of a tree (Algorithm 1), and the entries for its spines (Algorithm 2).
    pub(crate) fn source_label(&self, tree: &SpineTree, state: &mut Vec<SpineState>) -> Label {
        // Ports that every spine of the tree uses stand in the label as they are.
        let common = common_leafs(tree);
        let bits = self.filter_bits(tree, tree.path, common);
        // Links that the filter says yes to although they are not in the tree: the spine must know.
        if bits != FilterBits::EMPTY {
            for pod in &tree.pods {
                for leaf in format::ones(self.false_positives(&bits, pod, tree.path, common)) {
                    let leaf = self.clos.leaf(pod.pod * self.clos.leafs_per_pod() + leaf);
                    state.push(SpineState { spine: self.clos.spine(pod.pod, tree.path.plane), leaf });
                }
            }
        }
        let other_pods = tree.pods.iter().filter(|pod| pod.pod != tree.source_pod);
        let cores_down = other_pods.fold(0u128, |pods, pod| pods | 1 << pod.pod);
        self.format.source_label(tree.path, common, &bits, cores_down)
    }

    /// The filter of a tree through this plane.
    #[inline]
    fn filter_bits(&self, tree: &SpineTree, path: TreePath, common: u128) -> FilterBits {
        let mut bits = FilterBits::EMPTY;
        for pod in &tree.pods {
            self.filter.add(&mut bits, pod.pod, path, pod.leafs & !common);
        }
        bits
    }

    /// The leafs of a pod that the filter says yes to although they are not in the tree.
    #[inline]
    fn false_positives(&self, bits: &FilterBits, pod: &PodLeafs, path: TreePath, common: u128) -> u128 {
        let others = format::low_bits(self.clos.leafs_per_pod()) & !pod.leafs & !common;
        self.filter.hits(bits, pod.pod, path, others)
    }
}

/// The ports that every spine of the tree uses.
fn common_leafs(tree: &SpineTree) -> u128 {
    tree.pods.iter().fold(u128::MAX, |common, pod| common & pod.leafs)
}

/// The spines that have entries in a sorted list.
fn entries_at(state: &[SpineState]) -> impl Iterator<Item = Node> {
    state.chunk_by(|a, b| a.spine == b.spine).map(|of_one| of_one[0].spine)
}

#[cfg(test)]
mod tests;
