//! A running session: hosts join and leave, and some state changes (Orca, section 3.4).

use alloc::vec::Vec;

use polycast_topology::{Failures, Graph, Link, Node};

use super::{Label, LabelError, LabelPlan, LabelPlanner, LeafHosts, SpineState};

/// Changes that one event makes outside the controller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Update {
    /// The source's label is another one now.
    pub source_label: bool,
    /// The leafs whose agents get a new leaf label, or drop the one they had.
    pub leafs: Vec<u32>,
    /// Entries that spines have to add.
    pub added: Vec<SpineState>,
    /// Entries that spines have to remove; a spine that has failed comes back with empty tables.
    pub removed: Vec<SpineState>,
}

impl Update {
    /// Counts the devices that have to be notified before packets can go the new way: [`Update::messages`]
    /// without the spines that only drop entries, which can wait.
    #[must_use]
    pub fn urgent_messages(&self) -> u32 {
        Update { removed: Vec::new(), ..self.clone() }.messages()
    }

    /// Counts the devices that have to be notified: the source, the leaf controllers, and each spine once.
    #[must_use]
    pub fn messages(&self) -> u32 {
        let mut spines: Vec<Node> = self.added.iter().chain(&self.removed).map(|entry| entry.spine).collect();
        spines.sort_unstable();
        spines.dedup();
        u32::from(self.source_label) + self.leafs.len() as u32 + spines.len() as u32
    }
}

/// The state of one session at the centralized controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    source: Node,
    plan: LabelPlan,
}

impl Session {
    /// A session that runs by this plan.
    #[must_use]
    pub fn new(source: Node, plan: LabelPlan) -> Self {
        Session { source, plan }
    }

    /// The source.
    #[must_use]
    pub fn source(&self) -> Node {
        self.source
    }

    /// The plan it runs by.
    #[must_use]
    pub fn plan(&self) -> &LabelPlan {
        &self.plan
    }

    /// Adds a receiver. Nothing changes if it is one already.
    ///
    /// # Errors
    /// If it is no host or the source.
    pub fn join(&mut self, planner: &LabelPlanner, host: Node) -> Result<Update, LabelError> {
        self.check(planner, host)?;
        let (leaf, bit) = position(planner, host);
        match self.plan.leaf_hosts.binary_search_by_key(&leaf, |entry| entry.leaf) {
            Ok(at) if self.plan.leaf_hosts[at].hosts & bit != 0 => Ok(Update::default()),
            Ok(at) => {
                self.plan.leaf_hosts[at].hosts |= bit;
                Ok(Update { leafs: [leaf].into(), ..Update::default() })
            }
            Err(at) => {
                self.plan.leaf_hosts.insert(at, LeafHosts { leaf, hosts: bit });
                Ok(self.encode_again(planner, leaf))
            }
        }
    }

    /// Takes a receiver out. Nothing changes if it is none.
    ///
    /// # Errors
    /// If it is no host or the source.
    pub fn leave(&mut self, planner: &LabelPlanner, host: Node) -> Result<Update, LabelError> {
        self.check(planner, host)?;
        let (leaf, bit) = position(planner, host);
        let Ok(at) = self.plan.leaf_hosts.binary_search_by_key(&leaf, |entry| entry.leaf) else {
            return Ok(Update::default());
        };
        let hosts = &mut self.plan.leaf_hosts[at].hosts;
        if *hosts & bit == 0 {
            return Ok(Update::default());
        }
        *hosts &= !bit;
        if *hosts != 0 {
            return Ok(Update { leafs: [leaf].into(), ..Update::default() });
        }
        self.plan.leaf_hosts.remove(at);
        Ok(self.encode_again(planner, leaf))
    }

    /// Returns true if a host is a receiver.
    #[must_use]
    pub fn is_receiver(&self, planner: &LabelPlanner, host: Node) -> bool {
        let (leaf, bit) = position(planner, host);
        let found = self.plan.leaf_hosts.binary_search_by_key(&leaf, |entry| entry.leaf);
        found.is_ok_and(|at| self.plan.leaf_hosts[at].hosts & bit != 0)
    }

    /// Returns true if the tree uses a link between switches, or one to a receiver or the source.
    #[must_use]
    pub fn uses_link(&self, planner: &LabelPlanner, link: Link) -> bool {
        let clos = planner.clos();
        let tree = &self.plan.tree;
        let up_leaf = clos.leaf(clos.leaf_index_of(self.source));
        let up = clos.link(self.source, 0) == link
            || clos.link(up_leaf, clos.hosts_per_leaf() + tree.path.plane) == link;
        let core = clos.cores_per_spine() > 0
            && tree.pods.iter().any(|pod| {
                let spine = clos.spine(pod.pod, tree.path.plane);
                clos.link(spine, clos.leafs_per_pod() + tree.path.core) == link
            });
        up || core
            || self.plan.leaf_hosts.iter().any(|entry| {
                let leaf = clos.leaf(entry.leaf);
                clos.link(leaf, clos.hosts_per_leaf() + tree.path.plane) == link
                    || super::format::ones(entry.hosts).any(|port| clos.link(leaf, port) == link)
            })
    }

    /// Plans the session anew around failures, so that as few switches as possible have to be told, and says
    /// what changes.
    ///
    /// # Errors
    /// If no receiver can be reached any more.
    pub fn replan(
        &mut self,
        planner: &mut LabelPlanner,
        session: u64,
        failures: &Failures,
    ) -> Result<Update, LabelError> {
        let per_leaf = planner.clos().hosts_per_leaf();
        let receivers: Vec<Node> = self
            .plan
            .leaf_hosts
            .iter()
            .flat_map(|entry| super::format::ones(entry.hosts).map(|port| entry.leaf * per_leaf + port))
            .chain(self.plan.left_out.iter().copied())
            .collect();
        let plan = planner.plan_near(session, self.source, &receivers, failures, &self.plan)?;
        let old = core::mem::replace(&mut self.plan, plan);
        let changed = |entry: &&LeafHosts| !self.plan.leaf_hosts.contains(entry);
        let mut leafs: Vec<u32> = old.leaf_hosts.iter().filter(changed).map(|entry| entry.leaf).collect();
        let new = self.plan.leaf_hosts.iter().filter(|entry| !old.leaf_hosts.contains(entry));
        leafs.extend(new.map(|entry| entry.leaf));
        leafs.sort_unstable();
        leafs.dedup();
        let mut update = self.changes(&old.label, &old.spine_state, leafs);
        update.removed.retain(|entry| !failures.node_failed(entry.spine));
        Ok(update)
    }

    fn check(&self, planner: &LabelPlanner, host: Node) -> Result<(), LabelError> {
        if host >= planner.clos().hosts() {
            return Err(LabelError::NotAHost { node: host.into(), last: planner.clos().hosts() - 1 });
        }
        if host == self.source { Err(LabelError::SourceIsReceiver { host }) } else { Ok(()) }
    }

    /// The set of leafs is another one: the source label and the spines' entries may be too.
    fn encode_again(&mut self, planner: &LabelPlanner, leaf: u32) -> Update {
        let path = self.plan.tree.path;
        self.plan.tree = planner.tree(self.source, path, &self.plan.leaf_hosts);
        let mut state = Vec::new();
        let label = planner.source_label(&self.plan.tree, &mut state);
        let old_label = core::mem::replace(&mut self.plan.label, label);
        let old_state = core::mem::replace(&mut self.plan.spine_state, state);
        self.changes(&old_label, &old_state, [leaf].into())
    }

    fn changes(&self, old_label: &Label, old_state: &[SpineState], leafs: Vec<u32>) -> Update {
        // Both lists are in rising order of spine and leaf, because pods and ports are visited so.
        let only = |these: &[SpineState], those: &[SpineState]| -> Vec<SpineState> {
            these.iter().filter(|entry| those.binary_search(entry).is_err()).copied().collect()
        };
        let new_state = &self.plan.spine_state;
        Update {
            source_label: *old_label != self.plan.label,
            leafs,
            added: only(new_state, old_state),
            removed: only(old_state, new_state),
        }
    }
}

pub(super) fn position(planner: &LabelPlanner, host: Node) -> (u32, u128) {
    let per_leaf = planner.clos().hosts_per_leaf();
    (host / per_leaf, 1 << (host % per_leaf))
}
