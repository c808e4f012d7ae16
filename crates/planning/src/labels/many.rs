//! Sessions in which every member may send (Orca, sections 1 and 4): one number, and a label a member.
//!
//! Spines and agents look up what they know by the session's number, which does not say which member has sent
//! a packet. So all of it has to be right for the packets of every member:
//!
//! - The tree of a member leads to the racks of all members, its own rack too. If it left that out, its
//!   filter could hit the link there by mistake, and the entry against that would stop the packets of the
//!   others. As it is, no entry names a link that leads to a member, whichever of them sends and through
//!   whichever spines.
//! - The leaf label of a rack names all its members. A sender in it gets its own packet once more and drops
//!   it.
//! - All trees go through the same spines and core where failures let them. Then the members of one pod have
//!   the same label, a session has as many labels as pods, and entries as if one member sent.
//! - Members whose rack cannot reach all others that way send by the path on which they reach the most.
//!
//! A member that comes to a rack with members costs two messages: its own label, and the rack's. One in a
//! rack of its own, and the last one that leaves a rack, change the labels of all members.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use polycast_topology::{Failures, Node};

use super::format::ones;
use super::session::position;
use super::{
    Label, LabelError, LabelPlan, LabelPlanner, LeafHosts, PodLeafs, SpineState, SpineTree, TreePath,
};

/// Changes that one event makes outside the controller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ManyUpdate {
    /// Members that send with another label now, or that had none and have one, in rising order.
    pub senders: Vec<Node>,
    /// Members that have no label any more: failures cut them off, or they left.
    pub silenced: Vec<Node>,
    /// Leafs whose agents get a new leaf label, or drop the one they had.
    pub leafs: Vec<u32>,
    /// Entries that spines have to add.
    pub added: Vec<SpineState>,
    /// Entries that spines have to remove; a spine that has failed comes back with empty tables.
    pub removed: Vec<SpineState>,
}

impl ManyUpdate {
    /// Counts the devices that have to be notified: members that send, leaf controllers, and each spine once.
    #[must_use]
    pub fn messages(&self) -> u32 {
        let spines: BTreeSet<Node> =
            self.added.iter().chain(&self.removed).map(|entry| entry.spine).collect();
        (self.senders.len() + self.silenced.len() + self.leafs.len() + spines.len()) as u32
    }
}

/// A way to send: that of all members of one pod which use the same path.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Way {
    tree: SpineTree,
    label: Label,
}

/// The state of one session at the centralized controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManySession {
    /// The path of all who can use it.
    path: TreePath,
    /// The members of each leaf: the leaf labels, in rising order.
    members: Vec<LeafHosts>,
    ways: Vec<Way>,
    /// The way of each leaf that has one.
    way_of: BTreeMap<u32, usize>,
    /// The entries that spines keep, in rising order.
    spine_state: Vec<SpineState>,
    /// The members whose own link has failed.
    unplugged: BTreeSet<Node>,
}

impl ManySession {
    /// Plans a session of these members.
    ///
    /// # Errors
    /// If a member is no host, there is only one, or no two of them reach each other.
    pub fn new(
        planner: &LabelPlanner,
        session: u64,
        members: &[Node],
        failures: &Failures,
    ) -> Result<Self, LabelError> {
        let mut by_leaf: BTreeMap<u32, u128> = BTreeMap::new();
        for &host in members {
            check(planner, host)?;
            let (leaf, bit) = position(planner, host);
            *by_leaf.entry(leaf).or_default() |= bit;
        }
        let members = by_leaf.into_iter().map(|(leaf, hosts)| LeafHosts { leaf, hosts }).collect();
        let mut many = ManySession {
            path: TreePath { plane: 0, core: 0 },
            members,
            ways: Vec::new(),
            way_of: BTreeMap::new(),
            spine_state: Vec::new(),
            unplugged: BTreeSet::new(),
        };
        if let Some(first) = many.members.first().map(|entry| entry.leaf * planner.clos().hosts_per_leaf()) {
            let tree = planner.tree(first, many.path, &many.members);
            many.path = planner.least_state(&tree, planner.paths(session, 0));
        }
        many.plan(planner, session, failures)?;
        Ok(many)
    }

    /// The members, in rising order.
    pub fn members(&self, planner: &LabelPlanner) -> impl Iterator<Item = Node> {
        let per_leaf = planner.clos().hosts_per_leaf();
        self.members.iter().flat_map(move |entry| ones(entry.hosts).map(move |at| entry.leaf * per_leaf + at))
    }

    /// The leaf labels that agents keep, by leaf.
    #[must_use]
    pub fn leaf_hosts(&self) -> &[LeafHosts] {
        &self.members
    }

    /// The entries that spines keep, in rising order.
    #[must_use]
    pub fn spine_state(&self) -> &[SpineState] {
        &self.spine_state
    }

    /// Returns the number of different labels that members send with.
    #[must_use]
    pub fn labels(&self) -> usize {
        self.ways.len()
    }

    /// The label that a member sends with. `None` for a host that is none, and for one that failures cut off.
    #[must_use]
    pub fn label(&self, planner: &LabelPlanner, host: Node) -> Option<&Label> {
        self.way(planner, host).map(|way| &way.label)
    }

    /// Returns the plan by which this member sends, as of a session in which it alone does; the receivers are
    /// the members, itself among them.
    #[must_use]
    pub fn plan_of(&self, planner: &LabelPlanner, host: Node) -> Option<LabelPlan> {
        let Way { tree, label } = self.way(planner, host)?.clone();
        let (spine_state, leaf_hosts) = (self.spine_state.clone(), self.members.clone());
        Some(LabelPlan { tree, label, spine_state, leaf_hosts, left_out: self.left_out(planner, host) })
    }

    /// The other members that do not get what this one sends, because of failures.
    #[must_use]
    pub fn left_out(&self, planner: &LabelPlanner, host: Node) -> Vec<Node> {
        let per_pod = planner.clos().leafs_per_pod();
        let way = self.way(planner, host);
        let is_reached = |member: Node| {
            let leaf = position(planner, member).0;
            let of_pod = |pod: &PodLeafs| pod.pod == leaf / per_pod && pod.leafs >> (leaf % per_pod) & 1 == 1;
            way.is_some_and(|way| way.tree.pods.iter().any(of_pod)) && !self.unplugged.contains(&member)
        };
        self.members(planner).filter(|&member| member != host && !is_reached(member)).collect()
    }

    /// Adds a member. Nothing changes if it is one already.
    ///
    /// # Errors
    /// If it is no host, or no two members reach each other.
    pub fn join(
        &mut self,
        planner: &LabelPlanner,
        session: u64,
        host: Node,
        failures: &Failures,
    ) -> Result<ManyUpdate, LabelError> {
        check(planner, host)?;
        let (leaf, bit) = position(planner, host);
        self.change(planner, session, failures, |members| {
            match members.binary_search_by_key(&leaf, |entry| entry.leaf) {
                Ok(at) => members[at].hosts |= bit,
                Err(at) => members.insert(at, LeafHosts { leaf, hosts: bit }),
            }
        })
    }

    /// Takes a member out. Nothing changes if it is none.
    ///
    /// # Errors
    /// If it is no host, or no two members are left that reach each other.
    pub fn leave(
        &mut self,
        planner: &LabelPlanner,
        session: u64,
        host: Node,
        failures: &Failures,
    ) -> Result<ManyUpdate, LabelError> {
        check(planner, host)?;
        let (leaf, bit) = position(planner, host);
        self.change(planner, session, failures, |members| {
            members.iter_mut().filter(|entry| entry.leaf == leaf).for_each(|entry| entry.hosts &= !bit);
            members.retain(|entry| entry.hosts != 0);
        })
    }

    /// Plans the session anew around failures, by its path if that serves all, and says what changes.
    ///
    /// # Errors
    /// If no two members reach each other any more; the session stays as it was.
    pub fn replan(
        &mut self,
        planner: &LabelPlanner,
        session: u64,
        failures: &Failures,
    ) -> Result<ManyUpdate, LabelError> {
        self.change(planner, session, failures, |_| {})
    }

    fn change(
        &mut self,
        planner: &LabelPlanner,
        session: u64,
        failures: &Failures,
        edit: impl FnOnce(&mut Vec<LeafHosts>),
    ) -> Result<ManyUpdate, LabelError> {
        let mut new = self.clone();
        edit(&mut new.members);
        new.plan(planner, session, failures)?;
        let old = core::mem::replace(self, new);
        let only = |these: &[SpineState], those: &[SpineState]| -> Vec<SpineState> {
            these.iter().filter(|entry| those.binary_search(entry).is_err()).copied().collect()
        };
        let mut removed = only(&old.spine_state, &self.spine_state);
        removed.retain(|entry| !failures.node_failed(entry.spine));
        let changed = |these: &[LeafHosts], those: &[LeafHosts]| -> Vec<u32> {
            these.iter().filter(|entry| !those.contains(entry)).map(|entry| entry.leaf).collect()
        };
        let mut leafs = changed(&old.members, &self.members);
        leafs.extend(changed(&self.members, &old.members));
        leafs.sort_unstable();
        leafs.dedup();
        let label = |of: &Self, host: Node| of.label(planner, host).cloned();
        let senders = self.members(planner).filter(|&host| {
            let new = label(self, host);
            new.is_some() && new != label(&old, host)
        });
        let senders = senders.collect();
        let silenced =
            old.members(planner).filter(|&host| label(&old, host).is_some() && label(self, host).is_none());
        let silenced = silenced.collect();
        let added = only(&self.spine_state, &old.spine_state);
        Ok(ManyUpdate { senders, silenced, leafs, added, removed })
    }

    /// The way of a member that may send.
    fn way(&self, planner: &LabelPlanner, host: Node) -> Option<&Way> {
        let (leaf, bit) = position(planner, host);
        let at = self.members.binary_search_by_key(&leaf, |entry| entry.leaf).ok()?;
        if self.members[at].hosts & bit == 0 || self.unplugged.contains(&host) {
            return None;
        }
        self.way_of.get(&leaf).map(|at| &self.ways[*at])
    }

    /// Picks the paths and makes the labels.
    fn plan(&mut self, planner: &LabelPlanner, session: u64, failures: &Failures) -> Result<(), LabelError> {
        let clos = planner.clos();
        let per_leaf = clos.hosts_per_leaf();
        let works = |host: Node| failures.link_works(clos, clos.leaf(host / per_leaf), host % per_leaf);
        let unplugged = self.members(planner).filter(|&host| !works(host)).collect();
        self.unplugged = unplugged;
        let plugged: BTreeMap<u32, u32> = self
            .members
            .iter()
            .map(|entry| {
                (
                    entry.leaf,
                    ones(entry.hosts)
                        .filter(|at| !self.unplugged.contains(&(entry.leaf * per_leaf + at)))
                        .count() as u32,
                )
            })
            .filter(|(_, hosts)| *hosts > 0)
            .collect();
        let total: u32 = plugged.values().sum();
        let first = self.members(planner).next().unwrap_or(0);
        if self.members(planner).nth(1).is_none() {
            return Err(LabelError::NoReceivers { host: first });
        }
        // For every rack the path on which it reaches the most, the session's own one before all others.
        let mut best: BTreeMap<u32, (u32, TreePath)> = BTreeMap::new();
        let mut most = 0;
        let own = core::iter::once(self.path);
        let others = planner.paths(session, 0).filter(|path| *path != self.path);
        for path in own.chain(others).collect::<Vec<_>>() {
            let reach = Reach::new(planner, path, plugged.keys().copied(), failures);
            let mut all = 0;
            for &leaf in plugged.keys() {
                let reached = reach.from(planner, leaf).map(|leaf| plugged[&leaf]).sum::<u32>();
                all += reached;
                let known = best.entry(leaf).or_insert((0, path));
                if reached > known.0 {
                    *known = (reached, path);
                }
            }
            if all > most {
                (most, self.path) = (all, path);
            }
            if best.values().all(|(reached, _)| *reached == total) {
                break;
            }
        }
        // A rack that reaches as many on the session's path uses that.
        let main = Reach::new(planner, self.path, plugged.keys().copied(), failures);
        for (leaf, known) in &mut best {
            let reached = main.from(planner, *leaf).map(|leaf| plugged[&leaf]).sum::<u32>();
            if reached == known.0 {
                known.1 = self.path;
            }
        }
        best.retain(|_, (reached, _)| *reached > 1);
        if best.is_empty() {
            return Err(LabelError::Disconnected { host: first });
        }
        self.encode(planner, failures, &plugged, &best);
        Ok(())
    }

    /// Makes the labels for these paths, and the entries.
    fn encode(
        &mut self,
        planner: &LabelPlanner,
        failures: &Failures,
        plugged: &BTreeMap<u32, u32>,
        best: &BTreeMap<u32, (u32, TreePath)>,
    ) {
        let per_pod = planner.clos().leafs_per_pod();
        let mut entries = BTreeSet::new();
        (self.ways, self.way_of) = (Vec::new(), BTreeMap::new());
        for (&leaf, &(_, path)) in best {
            let pod = leaf / per_pod;
            let same = self.ways.iter().position(|way| way.tree.path == path && way.tree.source_pod == pod);
            let at = same.unwrap_or_else(|| {
                let reach = Reach::new(planner, path, plugged.keys().copied(), failures);
                let tree = reach.tree(planner, leaf);
                let mut state = Vec::new();
                let label = planner.source_label(&tree, &mut state);
                entries.extend(state);
                self.ways.push(Way { tree, label });
                self.ways.len() - 1
            });
            self.way_of.insert(leaf, at);
        }
        self.spine_state = entries.into_iter().collect();
    }
}

/// Working links of a path. They carry both ways, so what reaches a leaf is reached from it.
struct Reach {
    path: TreePath,
    /// Leafs with a link to their spine of the path, by pod.
    leafs: BTreeMap<u32, u128>,
    /// Pods whose spine has a link to the core.
    pods: BTreeSet<u32>,
}

impl Reach {
    fn new(
        planner: &LabelPlanner,
        path: TreePath,
        leafs: impl Iterator<Item = u32>,
        failures: &Failures,
    ) -> Self {
        let clos = planner.clos();
        let mut reach = Reach { path, leafs: BTreeMap::new(), pods: BTreeSet::new() };
        for leaf in leafs {
            let (pod, at) = (leaf / clos.leafs_per_pod(), leaf % clos.leafs_per_pod());
            let spine = clos.spine(pod, path.plane);
            if failures.link_works(clos, spine, at) {
                *reach.leafs.entry(pod).or_default() |= 1 << at;
            }
            if clos.cores_per_spine() > 0
                && failures.link_works(clos, spine, clos.leafs_per_pod() + path.core)
            {
                reach.pods.insert(pod);
            }
        }
        reach
    }

    /// The pods and leafs that a leaf reaches, its own among them.
    fn pods_from(&self, planner: &LabelPlanner, leaf: u32) -> impl Iterator<Item = PodLeafs> {
        let per_pod = planner.clos().leafs_per_pod();
        let (own, at) = (leaf / per_pod, leaf % per_pod);
        let is_up = self.leafs.get(&own).is_some_and(|leafs| leafs >> at & 1 == 1);
        let crosses = self.pods.contains(&own);
        let pods = self
            .leafs
            .iter()
            .filter(move |(pod, _)| is_up && (**pod == own || crosses && self.pods.contains(pod)));
        pods.map(|(&pod, &leafs)| PodLeafs { pod, leafs })
    }

    fn from(&self, planner: &LabelPlanner, leaf: u32) -> impl Iterator<Item = u32> {
        let per_pod = planner.clos().leafs_per_pod();
        self.pods_from(planner, leaf)
            .flat_map(move |pod| ones(pod.leafs).map(move |at| pod.pod * per_pod + at))
    }

    fn tree(&self, planner: &LabelPlanner, leaf: u32) -> SpineTree {
        let source_pod = leaf / planner.clos().leafs_per_pod();
        SpineTree { source_pod, path: self.path, pods: self.pods_from(planner, leaf).collect() }
    }
}

fn check(planner: &LabelPlanner, host: Node) -> Result<(), LabelError> {
    let hosts = planner.clos().hosts();
    if host < hosts { Ok(()) } else { Err(LabelError::NotAHost { node: host.into(), last: hosts - 1 }) }
}
