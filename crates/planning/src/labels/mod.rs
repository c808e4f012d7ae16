//! Labels that carry a multicast tree of a Clos network (Orca, sections 3.3 to 3.5 and appendix A).
//!
//! A packet carries a source label of fixed size up to a core and down to the leafs; there an agent on a
//! server puts the leaf label in its place, which names the hosts of the rack. Switches keep state only
//! where the label's filter says yes to a link that is not in the tree. **The session id is not part of the
//! label**: spines with state and agents look it up, so it travels beside the label in the packet.
//!
//! [`LabelPlanner`] is the paper's scheme (Algorithms 1 and 2); [`switches`] is the forwarding code of the
//! switches and agents (section 3.5, Algorithm 3); [`pod_labels`] is our own encoding of the same size that
//! needs no switch state at all.

mod format;
pub mod pod_labels;
mod session;
pub mod switches;

use alloc::vec;
use alloc::vec::Vec;

use polycast_topology::{Clos, Failures, Node, TopologyError};

pub use format::{FILTER_BITS_MAX, Filter, Label, LabelFormat, PORTS_MAX};
pub use session::{Session, Update};

/// A label that cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LabelError {
    /// A switch with more ports than a label's bitmaps hold.
    #[error("{what} are {value}: labels are for at most {limit} of them")]
    TooManyPorts {
        /// The ports meant.
        what: &'static str,
        /// How many there are.
        value: u32,
        /// How many there may be.
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
    /// Nobody to send to.
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
    /// Which of a pod's spines the tree goes through: the leaf's port up.
    pub plane: u32,
    /// Which core: the spine's port up.
    pub core: u32,
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

/// Plans labels in one network.
#[derive(Clone, Debug)]
pub struct LabelPlanner {
    clos: Clos,
    format: LabelFormat,
    filter: Filter,
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
        let format = LabelFormat::new(&clos, filter_bits)?;
        Ok(LabelPlanner {
            clos,
            format,
            filter: Filter::new(&clos, filter_bits),
            by_leaf: vec![0; clos.leafs() as usize],
            by_pod: vec![0; clos.pods() as usize],
        })
    }

    /// The network.
    #[must_use]
    pub fn clos(&self) -> &Clos {
        &self.clos
    }

    /// Where the fields of a label lie.
    #[must_use]
    pub fn format(&self) -> &LabelFormat {
        &self.format
    }

    /// The filter's hash.
    #[must_use]
    pub fn filter(&self) -> &Filter {
        &self.filter
    }

    /// The label of a session by its number, which also picks the spine and the core (Algorithm 1).
    ///
    /// # Errors
    /// If a member is no host, if the source is among the receivers, or if nobody can be reached. If only
    /// some receivers can be reached, the plan names the others.
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
        let plans = if failures.is_empty() {
            let paths = self.paths(session, source).take(count as usize);
            paths
                .map(|(plane, core)| self.encode(source, plane, core, leaf_hosts.clone(), Vec::new()))
                .collect()
        } else {
            self.around_failures(session, source, &leaf_hosts, failures, count)
        };
        if plans.is_empty() { Err(LabelError::Disconnected { host: source }) } else { Ok(plans) }
    }

    /// Under failures every path is looked at: those that reach the most receivers come first.
    fn around_failures(
        &self,
        session: u64,
        source: Node,
        leaf_hosts: &[LeafHosts],
        failures: &Failures,
        count: u32,
    ) -> Vec<LabelPlan> {
        let mut best: Vec<(usize, u32, u32)> = Vec::new();
        for (plane, core) in self.paths(session, source) {
            let (kept, left_out) = self.working(source, plane, core, leaf_hosts, failures);
            if !kept.is_empty() {
                best.push((left_out.len(), plane, core));
            }
            let complete = best.iter().filter(|path| path.0 == 0).count();
            if complete as u32 >= count {
                break;
            }
        }
        // The sort is stable: among equals the session's own order of paths stays.
        best.sort_by_key(|path| path.0);
        best.truncate(count as usize);
        best.into_iter()
            .map(|(_, plane, core)| {
                let (kept, left_out) = self.working(source, plane, core, leaf_hosts, failures);
                self.encode(source, plane, core, kept, left_out)
            })
            .collect()
    }

    /// All ways up, each plane once before any plane twice, from where the session's number points to.
    fn paths(&self, session: u64, source: Node) -> impl Iterator<Item = (u32, u32)> + use<> {
        let planes = self.clos.spines_per_pod();
        let cores = self.clos.cores_per_spine().max(1);
        let start = format::mix(session ^ u64::from(source) << 40);
        let (first_plane, first_core) = (start as u32 % planes, (start >> 32) as u32 % cores);
        (0..cores).flat_map(move |core| {
            (0..planes).map(move |plane| ((first_plane + plane) % planes, (first_core + core) % cores))
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
        plane: u32,
        core: u32,
        leaf_hosts: &[LeafHosts],
        failures: &Failures,
    ) -> (Vec<LeafHosts>, Vec<Node>) {
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

    fn encode(
        &self,
        source: Node,
        plane: u32,
        core: u32,
        leaf_hosts: Vec<LeafHosts>,
        left_out: Vec<Node>,
    ) -> LabelPlan {
        let tree = self.tree(source, plane, core, &leaf_hosts);
        let mut spine_state = Vec::new();
        let label = self.source_label(&tree, &mut spine_state);
        LabelPlan { tree, label, spine_state, leaf_hosts, left_out }
    }

    /// The spines and leafs above the receivers.
    pub(crate) fn tree(&self, source: Node, plane: u32, core: u32, leaf_hosts: &[LeafHosts]) -> SpineTree {
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
        SpineTree { source_pod, plane, core, pods }
    }

    /// The source label of a tree (Algorithm 1), and the entries for its spines (Algorithm 2).
    pub(crate) fn source_label(&self, tree: &SpineTree, state: &mut Vec<SpineState>) -> Label {
        // Ports that every spine of the tree uses stand in the label as they are.
        let common = tree.pods.iter().fold(u128::MAX, |common, pod| common & pod.leafs);
        let mut bits = [0u64; FILTER_BITS_MAX as usize / 64];
        for pod in &tree.pods {
            for leaf in format::ones(pod.leafs & !common) {
                let bucket = self.filter.bucket(pod.pod, tree.plane, leaf);
                bits[bucket as usize / 64] |= 1 << (bucket % 64);
            }
        }
        // Links that the filter says yes to although they are not in the tree: the spine must know.
        let all =
            if self.clos.leafs_per_pod() == 128 { u128::MAX } else { (1 << self.clos.leafs_per_pod()) - 1 };
        if bits.iter().any(|&word| word != 0) {
            for pod in &tree.pods {
                for leaf in format::ones(all & !pod.leafs & !common) {
                    let bucket = self.filter.bucket(pod.pod, tree.plane, leaf);
                    if bits[bucket as usize / 64] >> (bucket % 64) & 1 == 1 {
                        let leaf = self.clos.leaf(pod.pod * self.clos.leafs_per_pod() + leaf);
                        state.push(SpineState { spine: self.clos.spine(pod.pod, tree.plane), leaf });
                    }
                }
            }
        }
        let other_pods = tree.pods.iter().filter(|pod| pod.pod != tree.source_pod);
        let cores_down = other_pods.fold(0u128, |pods, pod| pods | 1 << pod.pod);
        self.format.source_label(tree.plane, tree.core, common, &bits, cores_down)
    }
}

#[cfg(test)]
mod tests;
